//! Control connection of a protocol.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};

use socket2::Socket;

/// Reads of one poll: a peer that sends without end does not block the caller.
const READS_A_TURN: usize = 16;

/// Non-blocking control connection.
pub struct Control {
    stream: Socket,
    closed: bool,
}

impl Control {
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

    /// Passes received bytes to `take`; false once the peer has closed its side.
    ///
    /// # Errors
    /// If the connection broke, or `take` fails.
    pub fn read<E: From<io::Error>>(
        &mut self,
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<bool, E> {
        let mut room = [0; 8 << 10];
        for _ in 0..READS_A_TURN {
            if self.closed {
                break;
            }
            match (&self.stream).read(&mut room) {
                Ok(0) => self.closed = true,
                Ok(bytes) => take(&room[..bytes])?,
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

    /// Closes the sending half.
    pub fn finish(&self) {
        // The connection may be closed already.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Returns the descriptor that becomes readable on messages; none once the peer has closed.
    #[must_use]
    pub fn listens(&self) -> Vec<BorrowedFd<'_>> {
        match self.closed {
            true => Vec::new(),
            false => vec![self.stream.as_fd()],
        }
    }
}
