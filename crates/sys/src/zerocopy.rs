//! Zero-copy sends: MSG_ZEROCOPY, sendfile, vmsplice and splice.
//!
//! The kernel reads the memory after the call returned: a change in the meantime changes the sent
//! data. The kernel holds references to the pages, so freed memory is safe.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::control_message::{self, ErrorQueueEntry};

fn to_result(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Enables [`MessageFlags::ZERO_COPY`](super::socket::MessageFlags::ZERO_COPY) on a socket.
///
/// # Errors
/// Fails before Linux 4.14 (TCP) or 5.0 (UDP).
pub fn enable_zero_copy(socket: &impl AsRawFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: `on` is a readable c_int of the size given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ZEROCOPY,
            (&raw const on).cast(),
            mem::size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    to_result(result as isize).map(drop)
}

/// Completion of the sends numbered `first` to `last`. Numbers count the calls that sent at least
/// one byte, from 0 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZeroCopyCompletion {
    pub first: u32,
    pub last: u32,
    /// True if the kernel copied the data after all.
    pub copied: bool,
}

/// Takes the next completion of zero-copy sends; never waits.
///
/// # Errors
/// `WouldBlock` when there is none, else errors of `recvmsg`.
pub fn next_completion(socket: &impl AsRawFd) -> io::Result<Option<ZeroCopyCompletion>> {
    /// Buffer for the control message.
    const CONTROL: usize = 128;
    const ORIGIN_ZEROCOPY: u8 = 5;
    const COPIED: u8 = 1;

    let mut done = None;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    control_message::receive_with_control::<CONTROL>(
        socket,
        &mut [],
        flags,
        |level, kind, data| {
            if let Some(entry) = ErrorQueueEntry::parse(level, kind, data)
                && entry.errno == 0
                && entry.origin == ORIGIN_ZEROCOPY
            {
                done = Some(ZeroCopyCompletion {
                    first: entry.info,
                    last: entry.data,
                    copied: entry.code & COPIED != 0,
                });
            }
        },
    )?;
    Ok(done)
}

/// Sends the first `bytes` of a file; returns the number of bytes accepted. Blocks if the socket
/// does.
///
/// # Errors
/// Errors of `sendfile`.
#[inline]
pub fn send_file(socket: &impl AsRawFd, file: &impl AsRawFd, bytes: usize) -> io::Result<usize> {
    let mut offset: libc::off_t = 0;
    // SAFETY: `offset` is writable through the call.
    let result =
        unsafe { libc::sendfile(socket.as_raw_fd(), file.as_raw_fd(), &raw mut offset, bytes) };
    to_result(result)
}

/// Pipe through which memory moves to a socket without a copy.
#[derive(Debug)]
pub struct SplicePipe {
    read: OwnedFd,
    write: OwnedFd,
    capacity: usize,
    /// Bytes in the pipe.
    queued_bytes: usize,
}

impl SplicePipe {
    /// Creates a pipe for up to `bytes`, or for the largest size that this user may have.
    ///
    /// # Errors
    /// Fails when the process has no file descriptor left.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let mut fds: [libc::c_int; 2] = [0; 2];
        // SAFETY: the call writes two integers.
        let result = unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) };
        to_result(result as isize)?;
        // SAFETY: the kernel just returned both descriptors, and no other value owns them.
        let to_owned_fd = |fd| unsafe { OwnedFd::from_raw_fd(fd) };
        let (read, write) = (to_owned_fd(fds[0]), to_owned_fd(fds[1]));
        let mut requested_bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
        const MIN_PIPE_BYTES: libc::c_int = 4096;
        let capacity = loop {
            // SAFETY: the call takes no pointers.
            let fcntl_result =
                unsafe { libc::fcntl(write.as_raw_fd(), libc::F_SETPIPE_SZ, requested_bytes) };
            match to_result(fcntl_result as isize) {
                Ok(capacity) => break capacity,
                // Limited by fs.pipe-max-size, or by the user's share of pipe memory.
                Err(_) if requested_bytes > MIN_PIPE_BYTES => {
                    requested_bytes = (requested_bytes / 2).max(MIN_PIPE_BYTES)
                }
                Err(error) => return Err(error),
            }
        };
        Ok(Self {
            read,
            write,
            capacity,
            queued_bytes: 0,
        })
    }

    /// Sends a part of `payload`; returns the number of bytes that the socket accepted. Bytes
    /// already in the pipe leave first, so the payload must be the same in every call.
    ///
    /// # Errors
    /// Errors of `vmsplice` or `splice`; `WouldBlock` when the socket is full and non-blocking.
    #[inline]
    pub fn send(&mut self, socket: &impl AsRawFd, payload: &[u8]) -> io::Result<usize> {
        if self.queued_bytes == 0 {
            let io_vector = libc::iovec {
                iov_base: payload.as_ptr().cast_mut().cast(),
                iov_len: payload.len().min(self.capacity),
            };
            // SAFETY: the part is readable; the kernel takes references to its pages, so they may
            // be freed after the call.
            let spliced =
                unsafe { libc::vmsplice(self.write.as_raw_fd(), &raw const io_vector, 1, 0) };
            self.queued_bytes = to_result(spliced)?;
        }
        // SAFETY: no offsets are passed; both descriptors are open.
        let moved_bytes = unsafe {
            libc::splice(
                self.read.as_raw_fd(),
                std::ptr::null_mut(),
                socket.as_raw_fd(),
                std::ptr::null_mut(),
                self.queued_bytes.min(payload.len()),
                libc::SPLICE_F_MOVE,
            )
        };
        let moved_bytes = to_result(moved_bytes)?;
        self.queued_bytes -= moved_bytes;
        Ok(moved_bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;
    use crate::socket;
    use crate::socket::MessageFlags;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let local = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (local, listener.accept().unwrap().0)
    }

    #[test]
    fn zero_copy_sends_are_completed() {
        let (local, mut remote) = pair();
        if let Err(error) = enable_zero_copy(&local) {
            println!("this kernel has no MSG_ZEROCOPY: {error}");
            return;
        }
        let payload = vec![7; 100_000];
        let flags = MessageFlags::ZERO_COPY.union(MessageFlags::DONT_WAIT);
        let mut sent = socket::send(&local, &payload, flags).unwrap();
        sent += socket::send(&local, b"more", flags).unwrap_or(0);
        let mut buffer = vec![0; sent];
        remote.read_exact(&mut buffer).unwrap();
        let mut completions = Vec::new();
        while completions.is_empty() {
            match next_completion(&local) {
                Ok(found) => completions.extend(found),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        assert_eq!(completions[0].first, 0);
        println!("{completions:?}");
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        println!("UDP: {:?}", enable_zero_copy(&udp));
    }

    #[test]
    fn files_and_pipes_arrive() {
        let (local, mut remote) = pair();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"from a file").unwrap();
        assert_eq!(send_file(&local, &file, 11).unwrap(), 11);
        assert_eq!(send_file(&local, &file, 4).unwrap(), 4);
        let mut pipe = SplicePipe::new(1 << 20).unwrap();
        assert!(pipe.capacity >= 4096);
        assert_eq!(pipe.send(&local, b"through a pipe").unwrap(), 14);
        let mut buffer = [0; 29];
        remote.read_exact(&mut buffer).unwrap();
        assert_eq!(&buffer, b"from a filefromthrough a pipe");
    }

    #[test]
    fn a_truncating_receive_discards_the_stream() {
        let (mut local, remote) = pair();
        local.write_all(&[9; 5_000]).unwrap();
        let mut buffer = [0; 8_192];
        let mut discarded = 0;
        while discarded < 5_000 {
            discarded += socket::receive(&remote, &mut buffer, MessageFlags::TRUNCATE).unwrap();
        }
        assert_eq!((discarded, buffer), (5_000, [0; 8_192]));
    }
}
