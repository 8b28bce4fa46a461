//! A connection on which a dialect talks about a test.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};

use socket2::Socket;

/// Reads of one turn: a peer that talks without end does not keep us listening.
const READS_A_TURN: usize = 16;

/// A connection whose calls never wait.
pub struct Control {
    stream: Socket,
    closed: bool,
}

impl Control {
    /// Talks on a connection.
    ///
    /// # Errors
    /// When the socket refuses its options.
    pub fn new(stream: Socket) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            closed: false,
        })
    }

    /// Shows what has come to `take`; false once the peer has closed its side.
    ///
    /// # Errors
    /// When the connection broke, and what `take` says.
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

    /// Writes what the socket takes; how much that was.
    ///
    /// # Errors
    /// When the connection broke.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match (&self.stream).write(bytes) {
            Ok(bytes) => Ok(bytes),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(0),
                _ => Err(error),
            },
        }
    }

    /// Says that nothing more will be said.
    pub fn finish(&self) {
        // A connection that is gone already needs no farewell.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// What becomes readable when the peer says something; nothing once it has closed.
    #[must_use]
    pub fn listens(&self) -> Vec<BorrowedFd<'_>> {
        match self.closed {
            true => Vec::new(),
            false => vec![self.stream.as_fd()],
        }
    }
}
