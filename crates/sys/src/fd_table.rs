//! Descriptor table: its limit, its use, and a private table for a thread.
//!
//! While several threads share a table, each system call on a descriptor takes and drops a
//! reference with two atomic operations. Ratio of a busy-polling loop of small datagrams to a bare
//! loop: 1.048 with a shared table, 1.01 with a private one
//! (docs/method/defaults.md#file-table-of-a-thread).

use std::io;
use std::os::fd::RawFd;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Gives the calling thread a private descriptor table with only the listed descriptors and the
/// three standard ones open. Other threads keep their table.
///
/// From then on this thread must not close descriptors that other threads use: the close affects
/// only its private table, and the shared descriptor would leak.
///
/// # Errors
/// Errors of `close_range` (Linux 5.9; its flag since 5.11). Nothing has changed in that case.
pub fn unshare_table(keep: &[RawFd]) -> io::Result<()> {
    let mut keep: Vec<libc::c_uint> = keep
        .iter()
        .filter_map(|&fd| libc::c_uint::try_from(fd).ok())
        .chain(0..=2)
        .collect();
    keep.sort_unstable();
    keep.dedup();
    let highest = *keep.last().expect("the standard ones are among them");
    // Start above the last one: the kernel then copies only the lower part of the table.
    close_range(highest + 1, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE)?;
    for pair in keep.windows(2) {
        if pair[0] + 1 < pair[1] {
            close_range(pair[0] + 1, pair[1] - 1, 0)?;
        }
    }
    Ok(())
}

fn close_range(first: libc::c_uint, last: libc::c_uint, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: the call takes no pointers. This thread does not use the closed descriptors any more:
    // the caller named the ones in use, and other threads have another table.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Raises the soft limit of open files to the hard limit. A failure shows in [`open_file_limit`].
pub fn raise_open_file_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        let raised = Rlimit {
            current: maximum,
            maximum,
        };
        let _ = setrlimit(Resource::Nofile, raised);
    }
}

/// Returns the limit of open files of this process; `None` without a limit.
#[must_use]
pub fn open_file_limit() -> Option<usize> {
    let limit = getrlimit(Resource::Nofile).current?;
    Some(usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Counts the open descriptors in the calling thread's table; `None` without /proc.
#[must_use]
pub fn count_open_files() -> Option<usize> {
    // The directory that is being read counts as one.
    Some(
        std::fs::read_dir("/proc/thread-self/fd")
            .ok()?
            .count()
            .saturating_sub(1),
    )
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_private_table_keeps_listed_descriptors_only() {
        let kept = UdpSocket::bind("127.0.0.1:0").unwrap();
        let unlisted = UdpSocket::bind("127.0.0.1:0").unwrap();
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = receiver.local_addr().unwrap();
        let result = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    unshare_table(&[kept.as_raw_fd()])?;
                    let sent = kept.send_to(b"kept", address).is_ok();
                    let is_closed = unlisted.send_to(b"gone", address).is_err();
                    Ok::<_, io::Error>((sent, is_closed, count_open_files()))
                })
                .join()
                .unwrap()
        });
        match result {
            Ok((sent, is_closed, open)) => {
                assert!(sent && is_closed);
                // The standard descriptors and the kept one; a test harness may close the standard
                // ones.
                assert!(open.is_none_or(|open| open <= 4), "{open:?}");
            }
            Err(error) => println!("skipped: no private descriptor table: {error}"),
        }
        unlisted.send_to(b"still there", address).unwrap();
        kept.send_to(b"still there", address).unwrap();
    }

    #[test]
    fn open_files_are_counted() {
        let Some(before) = count_open_files() else {
            println!("needs /proc");
            return;
        };
        let _files: Vec<_> = (0..50)
            .map(|_| UdpSocket::bind("127.0.0.1:0").unwrap())
            .collect();
        // Concurrent tests open and close files too.
        assert!(count_open_files().unwrap() + 25 > before + 50 - 25);
        assert!(open_file_limit().is_none_or(|limit| limit > 50));
    }
}
