//! Control connection of a protocol.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};

use linerate_session::path_timeouts;
use linerate_sys::clock::Nanos;
use linerate_sys::socket::read_tcp_info;
use socket2::Socket;

/// Reads of one poll: a peer that sends without end does not block the caller.
const READS_PER_POLL: usize = 16;

/// Non-blocking control connection.
pub struct ControlSocket {
    stream: Socket,
    closed: bool,
}

impl ControlSocket {
    /// Wraps a connection.
    ///
    /// # Errors
    /// If the socket cannot be made non-blocking.
    pub fn new(stream: Socket) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            closed: false,
        })
    }

    /// Passes received bytes to `handle`; false once the peer has closed its side.
    ///
    /// # Errors
    /// If the connection broke, or `handle` fails.
    pub fn read<E: From<io::Error>>(
        &mut self,
        mut handle: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<bool, E> {
        let mut buffer = [0; 8 << 10];
        for _ in 0..READS_PER_POLL {
            if self.closed {
                break;
            }
            match (&self.stream).read(&mut buffer) {
                Ok(0) => self.closed = true,
                Ok(bytes) => handle(&buffer[..bytes])?,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => break,
                    io::ErrorKind::Interrupted => {}
                    _ => return Err(error.into()),
                },
            }
        }
        Ok(!self.closed)
    }

    /// Writes as much as the socket accepts and returns the number of bytes.
    ///
    /// # Errors
    /// If the connection broke.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match (&self.stream).write(bytes) {
            Ok(bytes) => Ok(bytes),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(0),
                _ => Err(error),
            },
        }
    }

    /// Returns the minimum round-trip time of the connection; `None` if the kernel has none.
    #[must_use]
    pub fn min_rtt_ns(&self) -> Option<Nanos> {
        let info = read_tcp_info(&self.stream).ok()?;
        info.min_rtt_us.map(|us| u64::from(us) * 1000)
    }

    /// Returns the time by which a reply may be late because of the queues of the path;
    /// `sends_datagrams` if this end has sent datagrams ahead of the request.
    #[must_use]
    pub fn path_delay_ns(&self, sends_datagrams: bool) -> Nanos {
        path_timeouts::path_delay_ns(&self.stream, sends_datagrams)
    }

    /// Closes the sending half.
    pub fn shutdown_send(&self) {
        // The connection may be closed already.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Returns the descriptor that becomes readable on messages; none once the peer has closed.
    #[must_use]
    pub fn readable_fds(&self) -> Vec<BorrowedFd<'_>> {
        match self.closed {
            true => Vec::new(),
            false => vec![self.stream.as_fd()],
        }
    }
}
