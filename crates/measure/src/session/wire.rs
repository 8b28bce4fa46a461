//! The control connection: a socket and the codec that speaks on it.

use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use linerate_dialect::control::{Connection, Frame, Heartbeat};
use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::socket::{self, Flags};
use linerate_host::sys::wait::{Ready, poll_any};
use socket2::Socket;

use crate::end::Correspondence;
use crate::error::MeasureError;

/// Silence after which a client counts as gone. A process that is stopped for ten seconds, in a debugger
/// or with its virtual machine, goes on behind it; one that is killed is known of by its connection at
/// once. A test that nobody comes back to costs its place for so long.
pub const PEER_PATIENCE: Duration = Duration::from_secs(20);

/// The same of a server: somebody sits before the client and waits, so it is no longer than a stop of ten seconds
/// needs.
pub const FAR_PATIENCE: Duration = Duration::from_secs(14);

/// How long one state of the handshake may take, whatever arrives meanwhile: who has no test yet is
/// waited for no longer, and a client waits no longer for its server.
pub const STATE_PATIENCE: Duration = Duration::from_secs(10);

/// Longest sleep in the handshake: how soon a stop is noticed.
const LOOK_UP_NS: Nanos = 50_000_000;

/// Reads of one [`Wire::hear`]: a peer that talks without end does not keep us listening.
const READS_AT_ONCE: usize = 64;

/// Nothing sent for so long: say that we are still there.
const HEARTBEAT_NS: Nanos = 1_000_000_000;

/// What bytes of a control connection go over.
pub struct Line {
    socket: Socket,
    /// This end's address and port.
    pub local: SocketAddr,
    /// The other end.
    pub peer: SocketAddr,
}

impl Line {
    /// A connection of the kernel.
    ///
    /// # Errors
    /// When the socket refuses its options or is broken already.
    pub fn of(stream: TcpStream) -> Result<Self, MeasureError> {
        let ends = || -> io::Result<(SocketAddr, SocketAddr)> {
            stream.set_nodelay(true)?;
            Ok((stream.local_addr()?, stream.peer_addr()?))
        };
        let (local, peer) =
            ends().map_err(|error| MeasureError::system("control connection", error))?;
        Ok(Self {
            socket: Socket::from(stream),
            local,
            peer,
        })
    }

    /// A pair of sockets, whose other end hands the bytes on between these addresses.
    #[must_use]
    pub fn bridged(pair: UnixStream, local: SocketAddr, peer: SocketAddr) -> Self {
        Self {
            socket: Socket::from(OwnedFd::from(pair)),
            local,
            peer,
        }
    }
}

/// A control connection.
pub struct Wire {
    stream: Socket,
    codec: Connection,
    local: SocketAddr,
    peer: SocketAddr,
    heard_ns: Nanos,
    said_ns: Nanos,
    closed: bool,
    /// Silence after which the other end is gone.
    patience: Duration,
}

impl Wire {
    /// Speaks `codec` on a line; what the codec has to say first is sent at once.
    ///
    /// # Errors
    /// When it refuses its options or is broken already.
    pub fn on(line: Line, codec: Connection) -> Result<Self, MeasureError> {
        Self::over(line.socket, codec, line.local, line.peer)
    }

    fn over(
        stream: Socket,
        codec: Connection,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Result<Self, MeasureError> {
        (stream.set_nonblocking(true))
            .map_err(|error| MeasureError::system("control connection", error))?;
        let mut wire = Self {
            stream,
            codec,
            local,
            peer: SocketAddr::new(peer.ip().to_canonical(), peer.port()),
            heard_ns: clock::now(),
            said_ns: clock::now(),
            closed: false,
            patience: STATE_PATIENCE,
        };
        wire.flush()?;
        Ok(wire)
    }

    /// Waits longer for the other end, once it has greeted.
    #[must_use]
    pub fn patient(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// This end's address and port.
    #[must_use]
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// The other end.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Whether the other end has greeted, and closed the connection or broken it off.
    #[must_use]
    pub fn was_left(&self) -> bool {
        self.closed && self.codec.peer().is_some()
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

    /// Says that we are still there, if nothing was said for a while. Before the greeting nothing
    /// can be said.
    ///
    /// # Errors
    /// When the other end is gone.
    pub fn beat(&mut self) -> Result<(), MeasureError> {
        if clock::now() < self.said_ns + HEARTBEAT_NS || self.codec.peer().is_none() {
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
            // A plain write to an end that is gone would end the process (SIGPIPE).
            match socket::send(&self.stream, self.codec.outgoing(), Flags::DONT_WAIT) {
                Ok(bytes) => self.codec.sent(bytes),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(()),
                    io::ErrorKind::Interrupted => {}
                    _ => {
                        self.closed = true;
                        return Err(self.lost(&error));
                    }
                },
            }
        }
        Ok(())
    }

    /// The next frame that has arrived; `None` when none has.
    ///
    /// # Errors
    /// When the other end closed the connection, broke the protocol, has not greeted within
    /// [`STATE_PATIENCE`], or has been silent for longer than this end's patience since.
    pub fn hear(&mut self) -> Result<Option<Frame>, MeasureError> {
        for _ in 0..READS_AT_ONCE {
            let frame = self.codec.next_frame();
            if let Some(frame) = frame.map_err(|source| self.protocol(source))? {
                return Ok(Some(frame));
            }
            if self.closed {
                return Err(match self.codec.peer() {
                    None => self.other("closes the connection and"),
                    Some(_) => self.vanished("it closed the control connection"),
                });
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
                        let greeted = self.codec.peer().is_some();
                        let patience = match greeted {
                            false => STATE_PATIENCE,
                            true => self.patience,
                        };
                        if clock::now() > self.heard_ns + patience.as_nanos() as Nanos {
                            let seconds = patience.as_secs();
                            return Err(match greeted {
                                false => self.silent(),
                                true => self.vanished(format!("silent for {seconds} s")),
                            });
                        }
                        return Ok(None);
                    }
                    _ => {
                        self.closed = true;
                        return Err(self.lost(&error));
                    }
                },
            }
        }
        Ok(None)
    }

    /// Waits until something arrives here or on `other`, or until `deadline`.
    ///
    /// # Errors
    /// What `poll` says.
    pub fn wait(&self, other: Option<BorrowedFd<'_>>, deadline: Nanos) -> Result<(), MeasureError> {
        let left = Duration::from_nanos(deadline.saturating_sub(clock::now()));
        let own = self.stream.as_fd();
        let mut wanted = vec![(own, Ready::Receive)];
        if !self.codec.outgoing().is_empty() {
            wanted.push((own, Ready::Send));
        }
        wanted.extend(other.map(|fd| (fd, Ready::Receive)));
        poll_any(&wanted, left)
            .map(|_| ())
            .map_err(|error| MeasureError::system("poll", error))
    }

    /// Takes no long frames until it is told otherwise (see [`Connection::take_at_most`]).
    pub fn take_at_most(&mut self, bytes: usize) {
        self.codec.take_at_most(bytes);
    }

    /// Waits for the next frame that is more than a sign of life, until [`STATE_PATIENCE`] is over.
    ///
    /// # Errors
    /// As [`Self::hear`], when nothing came in time, and [`MeasureError::Interrupted`] when `stop`
    /// is set.
    pub fn expect(&mut self, stop: &AtomicBool) -> Result<Frame, MeasureError> {
        self.expect_until(deadline(STATE_PATIENCE), stop, &mut || {})
    }

    /// Waits as [`Self::expect`] does until `deadline`, and calls `idle` every now and then.
    ///
    /// # Errors
    /// As [`Self::expect`].
    pub fn expect_until(
        &mut self,
        deadline: Nanos,
        stop: &AtomicBool,
        idle: &mut dyn FnMut(),
    ) -> Result<Frame, MeasureError> {
        loop {
            match self.hear()? {
                None | Some(Frame::Heartbeat(_)) => {}
                Some(frame) => return Ok(frame),
            }
            if stop.load(Relaxed) {
                return Err(MeasureError::Interrupted);
            }
            let now = clock::now();
            // Signs of life do not prolong it: a state that leads nowhere ends.
            if now >= deadline {
                return Err(match self.codec.peer() {
                    None => self.silent(),
                    Some(_) => self.vanished("it did not go on with the handshake"),
                });
            }
            self.beat()?;
            self.flush()?;
            idle();
            self.wait(None, deadline.min(now + LOOK_UP_NS))?;
        }
    }

    /// Sends what is left, says that nothing follows, and waits until the other end has closed too;
    /// for at most `patience`. To close while something unread is here would take back what the
    /// other end has not read yet.
    pub fn close(mut self, patience: Duration) {
        let deadline = deadline(patience);
        while !self.codec.outgoing().is_empty() {
            if clock::now() >= deadline
                || self.flush().is_err()
                || self.wait(None, deadline).is_err()
            {
                return;
            }
        }
        if self.closed || self.stream.shutdown(Shutdown::Write).is_err() {
            return;
        }
        let mut room = [0; 16 << 10];
        while clock::now() < deadline {
            match (&self.stream).read(&mut room) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock => {
                        if self.wait(None, deadline).is_err() {
                            return;
                        }
                    }
                    _ => return,
                },
            }
        }
    }

    /// What a failed call on the connection means: before the other end greeted, a greeting of ours that
    /// was on its way makes a reset of its close.
    fn lost(&self, error: &io::Error) -> MeasureError {
        match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
                if self.codec.peer().is_none() =>
            {
                self.other("closes the connection and")
            }
            _ => self.vanished(error.to_string()),
        }
    }

    /// What takes a connection and says nothing is another program, or hangs.
    fn silent(&self) -> MeasureError {
        let seconds = STATE_PATIENCE.as_secs();
        self.other(&format!("takes the connection and in {seconds} s"))
    }

    /// What does not even greet is another program.
    fn other(&self, what: &str) -> MeasureError {
        MeasureError::Foreign {
            peer: self.peer,
            situation: format!("{what} does not greet as linerate does"),
            next_step:
                "it is another program's port, or its server hangs: --peer auto finds out what it \
                        speaks"
                    .to_owned(),
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

impl Correspondence for Wire {
    fn hear(&mut self) -> Result<Option<Frame>, MeasureError> {
        Self::hear(self)
    }

    fn say(&mut self, frame: Frame) -> Result<(), MeasureError> {
        Self::say(self, frame)
    }

    fn beat(&mut self) -> Result<(), MeasureError> {
        Self::beat(self)
    }

    fn flush(&mut self) -> Result<(), MeasureError> {
        Self::flush(self)
    }

    fn wait(&self, other: Option<BorrowedFd<'_>>, deadline: Nanos) -> Result<(), MeasureError> {
        Self::wait(self, other, deadline)
    }

    fn due_ns(&self) -> Nanos {
        Self::due_ns(self)
    }

    fn peer(&self) -> SocketAddr {
        Self::peer(self)
    }
}

/// So much time from now.
pub fn deadline(patience: Duration) -> Nanos {
    let patience = Nanos::try_from(patience.as_nanos()).unwrap_or(Nanos::MAX);
    clock::now().saturating_add(patience)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use linerate_dialect::control::Hello;

    use super::*;

    /// What is heard of a silent end after so many seconds.
    fn after(seconds: u64, greets: bool) -> Result<Option<Frame>, MeasureError> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (near, _) = listener.accept().unwrap();
        let on = |stream, codec| Wire::on(Line::of(stream).unwrap(), codec).unwrap();
        let near = on(near, Connection::server(Hello::new("near")).unwrap());
        let mut near = near.patient(PEER_PATIENCE);
        let _far = greets.then(|| {
            let far = on(
                far.try_clone().unwrap(),
                Connection::client(Hello::new("far")).unwrap(),
            );
            near.wait(None, deadline(Duration::from_secs(5))).unwrap();
            assert!(matches!(near.hear(), Ok(Some(Frame::Hello(_)))));
            far
        });
        // As if the last of it had come then.
        near.heard_ns = clock::now() - seconds * 1_000_000_000;
        near.hear()
    }

    #[test]
    fn an_end_that_is_stopped_for_ten_seconds_is_waited_for() {
        assert!(matches!(after(12, true), Ok(None)));
        assert!(matches!(
            after(21, true),
            Err(MeasureError::Vanished { .. })
        ));
    }

    #[test]
    fn who_has_not_greeted_is_waited_for_no_longer_than_before() {
        assert!(matches!(after(9, false), Ok(None)));
        assert!(matches!(
            after(12, false),
            Err(MeasureError::Foreign { .. })
        ));
    }
}
