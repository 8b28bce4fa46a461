//! Zero-copy sends: MSG_ZEROCOPY, sendfile, vmsplice and splice.
//!
//! The kernel reads the memory after the call returned: a change in the meantime changes the sent
//! data. The kernel holds references to the pages, so freed memory is safe.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::control_message::{self, Notice};

fn check(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Enables [`Flags::ZERO_COPY`](super::socket::Flags::ZERO_COPY) on a socket.
///
/// # Errors
/// Fails before Linux 4.14 (TCP) or 5.0 (UDP).
pub fn allow_zero_copy(socket: &impl AsRawFd) -> io::Result<()> {
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
    check(result as isize).map(drop)
}

/// Completion of the sends numbered `first` to `last`. Numbers count the calls that sent at least
/// one byte, from 0 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    pub first: u32,
    pub last: u32,
    /// True if the kernel copied the data after all.
    pub copied: bool,
}

/// Takes the next completion of zero-copy sends; never waits.
///
/// # Errors
/// `WouldBlock` when there is none, else errors of `recvmsg`.
pub fn completion(socket: &impl AsRawFd) -> io::Result<Option<Completion>> {
    /// Buffer for the control message.
    const CONTROL: usize = 128;
    const ORIGIN_ZEROCOPY: u8 = 5;
    const COPIED: u8 = 1;

    let mut done = None;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    control_message::receive::<CONTROL>(socket, &mut [], flags, |level, kind, data| {
        if let Some(notice) = Notice::of(level, kind, data)
            && notice.errno == 0
            && notice.origin == ORIGIN_ZEROCOPY
        {
            done = Some(Completion {
                first: notice.info,
                last: notice.data,
                copied: notice.code & COPIED != 0,
            });
        }
    })?;
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
    check(result)
}

/// Pipe through which memory moves to a socket without a copy.
#[derive(Debug)]
pub struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    capacity: usize,
    /// Bytes in the pipe.
    held: usize,
}

impl Pipe {
    /// Creates a pipe for up to `bytes`, or for the largest size that this user may have.
    ///
    /// # Errors
    /// Fails when the process has no file descriptor left.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let mut ends: [libc::c_int; 2] = [0; 2];
        // SAFETY: the call writes two integers.
        let result = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) };
        check(result as isize)?;
        // SAFETY: the kernel just returned both descriptors, and no other value owns them.
        let own = |fd| unsafe { OwnedFd::from_raw_fd(fd) };
        let (read, write) = (own(ends[0]), own(ends[1]));
        let mut wanted = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
        const LEAST: libc::c_int = 4096;
        let capacity = loop {
            // SAFETY: the call takes no pointers.
            let got = unsafe { libc::fcntl(write.as_raw_fd(), libc::F_SETPIPE_SZ, wanted) };
            match check(got as isize) {
                Ok(capacity) => break capacity,
                // Limited by fs.pipe-max-size, or by the user's share of pipe memory.
                Err(_) if wanted > LEAST => wanted = (wanted / 2).max(LEAST),
                Err(error) => return Err(error),
            }
        };
        Ok(Self {
            read,
            write,
            capacity,
            held: 0,
        })
    }

    /// Sends a part of `payload`; returns the number of bytes that the socket accepted. Bytes
    /// already in the pipe leave first, so the payload must be the same in every call.
    ///
    /// # Errors
    /// Errors of `vmsplice` or `splice`; `WouldBlock` when the socket is full and non-blocking.
    #[inline]
    pub fn send(&mut self, socket: &impl AsRawFd, payload: &[u8]) -> io::Result<usize> {
        if self.held == 0 {
            let part = libc::iovec {
                iov_base: payload.as_ptr().cast_mut().cast(),
                iov_len: payload.len().min(self.capacity),
            };
            // SAFETY: the part is readable; the kernel takes references to its pages, so they may
            // be freed after the call.
            let put = unsafe { libc::vmsplice(self.write.as_raw_fd(), &raw const part, 1, 0) };
            self.held = check(put)?;
        }
        // SAFETY: no offsets are passed; both descriptors are open.
        let moved = unsafe {
            libc::splice(
                self.read.as_raw_fd(),
                std::ptr::null_mut(),
                socket.as_raw_fd(),
                std::ptr::null_mut(),
                self.held.min(payload.len()),
                libc::SPLICE_F_MOVE,
            )
        };
        let moved = check(moved)?;
        self.held -= moved;
        Ok(moved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::socket::{self, Flags};
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    #[test]
    fn zero_copy_sends_are_told_of() {
        let (near, mut far) = pair();
        if let Err(error) = allow_zero_copy(&near) {
            println!("this kernel has no MSG_ZEROCOPY: {error}");
            return;
        }
        let payload = vec![7; 100_000];
        let flags = Flags::ZERO_COPY.and(Flags::DONT_WAIT);
        let mut sent = socket::send(&near, &payload, flags).unwrap();
        sent += socket::send(&near, b"more", flags).unwrap_or(0);
        let mut room = vec![0; sent];
        far.read_exact(&mut room).unwrap();
        let mut seen = Vec::new();
        while seen.is_empty() {
            match completion(&near) {
                Ok(found) => seen.extend(found),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        assert_eq!(seen[0].first, 0);
        println!("{seen:?}");
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        println!("UDP: {:?}", allow_zero_copy(&udp));
    }

    #[test]
    fn files_and_pipes_arrive() {
        let (near, mut far) = pair();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"from a file").unwrap();
        assert_eq!(send_file(&near, &file, 11).unwrap(), 11);
        assert_eq!(send_file(&near, &file, 4).unwrap(), 4);
        let mut pipe = Pipe::new(1 << 20).unwrap();
        assert!(pipe.capacity >= 4096);
        assert_eq!(pipe.send(&near, b"through a pipe").unwrap(), 14);
        let mut room = [0; 29];
        far.read_exact(&mut room).unwrap();
        assert_eq!(&room, b"from a filefromthrough a pipe");
    }

    #[test]
    fn a_truncating_receive_discards_the_stream() {
        let (mut near, far) = pair();
        near.write_all(&[9; 5_000]).unwrap();
        let mut room = [0; 8_192];
        let mut discarded = 0;
        while discarded < 5_000 {
            discarded += socket::receive(&far, &mut room, Flags::TRUNCATE).unwrap();
        }
        assert_eq!((discarded, room), (5_000, [0; 8_192]));
    }
}
