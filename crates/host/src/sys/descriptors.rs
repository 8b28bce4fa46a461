//! The table of open files: how full it is, and one of its own for a thread.
//!
//! While several threads share a table, each system call on a file takes and gives back a reference
//! to it, two atomic operations: 1.048 of a bare spinning loop of small datagrams. With a table of
//! its own a thread is at 1.01 (docs/METHOD.md#own-table).

use std::io;
use std::os::fd::RawFd;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Gives the calling thread a table of open files of its own, in which only those named, and the
/// three standard ones, are still open. The other threads keep theirs as it is.
///
/// From here on this thread may close nothing that others have open too: what it closes is closed
/// in its own table alone, and would stay open in theirs under a number that nobody knows any more.
///
/// # Errors
/// What the kernel says: `close_range` is there since Linux 5.9, its flag since 5.11. Nothing has
/// changed then.
pub fn own_table(keep: &[RawFd]) -> io::Result<()> {
    let mut keep: Vec<libc::c_uint> = keep
        .iter()
        .filter_map(|&fd| libc::c_uint::try_from(fd).ok())
        .chain(0..=2)
        .collect();
    keep.sort_unstable();
    keep.dedup();
    let last = *keep.last().expect("the standard ones are among them");
    // Behind the last one first: only what lies before is copied.
    close_range(last + 1, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE)?;
    for pair in keep.windows(2) {
        if pair[0] + 1 < pair[1] {
            close_range(pair[0] + 1, pair[1] - 1, 0)?;
        }
    }
    Ok(())
}

fn close_range(first: libc::c_uint, last: libc::c_uint, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: the call takes no pointers. What it closes is not used by this thread any more: the
    // caller named all that is, and other threads have a table that it does not touch.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Raises the soft limit of open files to the hard one. What does not succeed shows in [`limit`].
pub fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        let most = Rlimit {
            current: maximum,
            maximum,
        };
        let _ = setrlimit(Resource::Nofile, most);
    }
}

/// Files that this process may have open; `None` for any number.
#[must_use]
pub fn limit() -> Option<usize> {
    let limit = getrlimit(Resource::Nofile).current?;
    Some(usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Files that the calling thread, and whoever shares its table, has open; `None` without /proc.
#[must_use]
pub fn open() -> Option<usize> {
    // One of them is the folder itself.
    Some(
        std::fs::read_dir("/proc/thread-self/fd")
            .ok()?
            .count()
            .saturating_sub(1),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_thread_keeps_what_it_named_and_the_others_keep_all() {
        let kept = UdpSocket::bind("127.0.0.1:0").unwrap();
        let other = UdpSocket::bind("127.0.0.1:0").unwrap();
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = far.local_addr().unwrap();
        let told = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    own_table(&[kept.as_raw_fd()])?;
                    let sent = kept.send_to(b"kept", address).is_ok();
                    let gone = other.send_to(b"gone", address).is_err();
                    Ok::<_, io::Error>((sent, gone, open()))
                })
                .join()
                .unwrap()
        });
        match told {
            Ok((sent, gone, open)) => {
                assert!(sent && gone);
                // The three standard ones and the one that was named; a harness may close the former.
                assert!(open.is_none_or(|open| open <= 4), "{open:?}");
            }
            Err(error) => println!("no table of its own to be had: {error}"),
        }
        other.send_to(b"still there", address).unwrap();
        kept.send_to(b"still there", address).unwrap();
    }

    #[test]
    fn open_files_are_counted() {
        let Some(before) = open() else {
            println!("needs /proc");
            return;
        };
        let _files: Vec<_> = (0..50)
            .map(|_| UdpSocket::bind("127.0.0.1:0").unwrap())
            .collect();
        // Tests beside this one open and close files too.
        assert!(open().unwrap() + 25 > before + 50 - 25);
        assert!(limit().is_none_or(|limit| limit > 50));
    }
}
