//! The control connection: a socket and the codec that speaks on it.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use linerate_dialect::control::{Connection, Frame, Heartbeat};
use linerate_host::sys::clock::{self, Nanos};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::MeasureError;

/// Silence after which the other end counts as gone.
pub const PEER_PATIENCE: Duration = Duration::from_secs(10);

/// Nothing sent for so long: say that we are still there.
const HEARTBEAT_NS: Nanos = 1_000_000_000;

/// A control connection.
pub struct Wire {
    stream: TcpStream,
    codec: Connection,
    peer: SocketAddr,
    heard_ns: Nanos,
    said_ns: Nanos,
    closed: bool,
}

impl Wire {
    /// Speaks `codec` on `stream`; what the codec has to say first is sent at once.
    ///
    /// # Errors
    /// When the socket refuses its options or is broken already.
    pub fn new(stream: TcpStream, codec: Connection) -> Result<Self, MeasureError> {
        let setup = || -> io::Result<SocketAddr> {
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            stream.peer_addr()
        };
        let peer = setup().map_err(|error| MeasureError::system("control connection", error))?;
        let mut wire = Self {
            stream,
            codec,
            peer: SocketAddr::new(peer.ip().to_canonical(), peer.port()),
            heard_ns: clock::now(),
            said_ns: clock::now(),
            closed: false,
        };
        wire.flush()?;
        Ok(wire)
    }

    /// The other end.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Gives the codec bytes that somebody else has read from the socket already.
    ///
    /// # Errors
    /// When they are not our protocol.
    pub fn preload(&mut self, bytes: &[u8]) -> Result<(), MeasureError> {
        self.codec
            .receive(bytes)
            .map_err(|source| self.protocol(source))
    }

    /// Says something; what does not leave at once leaves with the next [`Self::flush`].
    ///
    /// # Errors
    /// When the other end is gone.
    pub fn say(&mut self, frame: impl Into<Frame>) -> Result<(), MeasureError> {
        let frame = frame.into();
        self.codec
            .send(&frame)
            .map_err(|source| self.protocol(source))?;
        self.said_ns = clock::now();
        self.flush()
    }

    /// Says that we are still there, if nothing was said for a while.
    ///
    /// # Errors
    /// When the other end is gone.
    pub fn beat(&mut self) -> Result<(), MeasureError> {
        if clock::now() < self.said_ns + HEARTBEAT_NS {
            return Ok(());
        }
        self.say(Heartbeat {})
    }

    /// When something has to be said or heard at the latest.
    #[must_use]
    pub fn due_ns(&self) -> Nanos {
        self.said_ns + HEARTBEAT_NS
    }

    /// Sends what is waiting.
    ///
    /// # Errors
    /// When the other end is gone.
    pub fn flush(&mut self) -> Result<(), MeasureError> {
        while !self.codec.outgoing().is_empty() {
            match (&self.stream).write(self.codec.outgoing()) {
                Ok(bytes) => self.codec.sent(bytes),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(()),
                    io::ErrorKind::Interrupted => {}
                    _ => return Err(self.vanished(error.to_string())),
                },
            }
        }
        Ok(())
    }

    /// The next frame that has arrived; `None` when none has.
    ///
    /// # Errors
    /// When the other end closed the connection, broke the protocol, or has been silent for
    /// [`PEER_PATIENCE`].
    pub fn hear(&mut self) -> Result<Option<Frame>, MeasureError> {
        loop {
            let frame = self.codec.next_frame();
            if let Some(frame) = frame.map_err(|source| self.protocol(source))? {
                return Ok(Some(frame));
            }
            if self.closed {
                return Err(self.vanished("it closed the control connection"));
            }
            let mut room = [0; 16 << 10];
            match (&self.stream).read(&mut room) {
                Ok(0) => self.closed = true,
                Ok(bytes) => {
                    self.heard_ns = clock::now();
                    let heard = self.codec.receive(&room[..bytes]);
                    heard.map_err(|source| self.protocol(source))?;
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock => {
                        if clock::now() > self.heard_ns + PEER_PATIENCE.as_nanos() as Nanos {
                            let seconds = PEER_PATIENCE.as_secs();
                            return Err(self.vanished(format!("silent for {seconds} s")));
                        }
                        return Ok(None);
                    }
                    _ => return Err(self.vanished(error.to_string())),
                },
            }
        }
    }

    /// Waits until something arrives here or on `other`, or until `deadline`.
    ///
    /// # Errors
    /// What `poll` says.
    pub fn wait(&self, other: Option<BorrowedFd<'_>>, deadline: Nanos) -> Result<(), MeasureError> {
        let left = deadline.saturating_sub(clock::now());
        let timeout = Timespec {
            tv_sec: (left / 1_000_000_000) as _,
            tv_nsec: (left % 1_000_000_000) as _,
        };
        let mut events = PollFlags::IN;
        if !self.codec.outgoing().is_empty() {
            events |= PollFlags::OUT;
        }
        let mut fds = vec![PollFd::from_borrowed_fd(self.stream.as_fd(), events)];
        fds.extend(other.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(MeasureError::system("poll", error.into())),
        }
    }

    /// Waits for the next frame that is more than a sign of life.
    ///
    /// # Errors
    /// As [`Self::hear`].
    pub fn expect(&mut self) -> Result<Frame, MeasureError> {
        loop {
            match self.hear()? {
                None | Some(Frame::Heartbeat(_)) => {}
                Some(frame) => return Ok(frame),
            }
            self.flush()?;
            self.wait(None, clock::now() + HEARTBEAT_NS)?;
        }
    }

    /// Sends what is left, for at most `patience`, and closes.
    pub fn close(mut self, patience: Duration) {
        let deadline = clock::now() + patience.as_nanos() as Nanos;
        while !self.codec.outgoing().is_empty() && clock::now() < deadline {
            if self.flush().is_err() || self.wait(None, deadline).is_err() {
                return;
            }
        }
    }

    fn vanished(&self, how: impl Into<String>) -> MeasureError {
        MeasureError::Vanished {
            peer: self.peer,
            how: how.into(),
        }
    }

    fn protocol(&self, source: linerate_dialect::control::ControlError) -> MeasureError {
        MeasureError::Protocol {
            peer: self.peer,
            source,
        }
    }
}
