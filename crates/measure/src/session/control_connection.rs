//! Control connection: a socket and the codec of the control protocol.

use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use linerate_dialect::control::{Connection, Frame, Heartbeat};
use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::readiness::{Ready, poll_any};
use linerate_host::sys::socket::{self, Flags};
use socket2::Socket;

use crate::coordinator::Correspondence;
use crate::error::MeasureError;

/// Silence after which a server drops a client. It outlasts a process that is stopped for ten
/// seconds, in a debugger or with its virtual machine. A killed process closes its connection at
/// once. A test whose client host is lost occupies its slot for this time.
pub const PEER_PATIENCE: Duration = Duration::from_secs(20);

/// Silence after which a client gives up its server: a user waits for it, so it is no longer than a
/// stop of ten seconds needs.
pub const FAR_PATIENCE: Duration = Duration::from_secs(14);

/// Longest time in one state of the handshake, even while heartbeats arrive. A connection without a
/// test gets no longer silence, at either end.
pub const STATE_PATIENCE: Duration = Duration::from_secs(10);

/// Longest sleep in the handshake: the delay until a stop is noticed.
const LOOK_UP_NS: Nanos = 50_000_000;

/// Reads of one [`Wire::hear`]: a peer that sends without pause does not block the caller.
const READS_AT_ONCE: usize = 64;

/// Idle time of the sender after which a heartbeat is sent.
const HEARTBEAT_NS: Nanos = 1_000_000_000;

/// Byte stream of a control connection.
pub struct Line {
    socket: Socket,
    /// Address and port of this end.
    pub local: SocketAddr,
    /// Address and port of the remote end.
    pub peer: SocketAddr,
}

impl Line {
    /// Wraps a kernel TCP connection.
    ///
    /// # Errors
    /// When its options cannot be set, or it is broken already.
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

    /// Wraps one end of a socket pair that is bridged to a connection of the user-space stack.
    #[must_use]
    pub fn bridged(pair: UnixStream, local: SocketAddr, peer: SocketAddr) -> Self {
        Self {
            socket: Socket::from(OwnedFd::from(pair)),
            local,
            peer,
        }
    }
}

/// Control connection: frames over a byte stream, with heartbeats and timeouts.
pub struct Wire {
    stream: Socket,
    codec: Connection,
    local: SocketAddr,
    peer: SocketAddr,
    heard_ns: Nanos,
    said_ns: Nanos,
    closed: bool,
    /// Silence after which the remote end counts as lost.
    patience: Duration,
}

impl Wire {
    /// Starts the codec on a stream, and sends its first bytes.
    ///
    /// # Errors
    /// When the socket cannot be made non-blocking, or is broken already.
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

    /// Sets the silence timeout that applies after the remote end's hello.
    #[must_use]
    pub fn patient(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Returns the address and port of this end.
    #[must_use]
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Returns the address and port of the remote end.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Returns whether the remote end closed or reset the connection after its hello.
    #[must_use]
    pub fn was_left(&self) -> bool {
        self.closed && self.codec.peer().is_some()
    }

    /// Passes bytes to the codec that were read from the socket before.
    ///
    /// # Errors
    /// When they are not our protocol.
    pub fn preload(&mut self, bytes: &[u8]) -> Result<(), MeasureError> {
        self.codec
            .receive(bytes)
            .map_err(|source| self.protocol(source))
    }

    /// Sends a frame; bytes that the socket does not accept leave with the next [`Self::flush`].
    ///
    /// # Errors
    /// When the remote end is lost.
    pub fn say(&mut self, frame: impl Into<Frame>) -> Result<(), MeasureError> {
        let frame = frame.into();
        self.codec
            .send(&frame)
            .map_err(|source| self.protocol(source))?;
        self.said_ns = clock::now();
        self.flush()
    }

    /// Sends a heartbeat if nothing was sent for a second. Before the hello nothing can be sent.
    ///
    /// # Errors
    /// When the remote end is lost.
    pub fn beat(&mut self) -> Result<(), MeasureError> {
        if clock::now() < self.said_ns + HEARTBEAT_NS || self.codec.peer().is_none() {
            return Ok(());
        }
        self.say(Heartbeat {})
    }

    /// Time of the next heartbeat.
    #[must_use]
    pub fn due_ns(&self) -> Nanos {
        self.said_ns + HEARTBEAT_NS
    }

    /// Sends queued bytes.
    ///
    /// # Errors
    /// When the remote end is lost.
    pub fn flush(&mut self) -> Result<(), MeasureError> {
        while !self.codec.outgoing().is_empty() {
            // A plain write to a closed connection would raise SIGPIPE.
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

    /// Returns the next frame; `None` when none is complete.
    ///
    /// # Errors
    /// When the remote end closed the connection, violated the protocol, sent no hello within
    /// [`STATE_PATIENCE`], or was silent for longer than the timeout since then.
    pub fn hear(&mut self) -> Result<Option<Frame>, MeasureError> {
        for _ in 0..READS_AT_ONCE {
            let frame = self.codec.next_frame();
            if let Some(frame) = frame.map_err(|source| self.protocol(source))? {
                return Ok(Some(frame));
            }
            if self.closed {
                return Err(match self.codec.peer() {
                    None => self.other("closed the connection and"),
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

    /// Waits until data arrives here or on `other`, or until `deadline`.
    ///
    /// # Errors
    /// Errors of `poll`.
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

    /// Limits the length of received frames (see [`Connection::take_at_most`]).
    pub fn take_at_most(&mut self, bytes: usize) {
        self.codec.take_at_most(bytes);
    }

    /// Waits for the next frame that is not a heartbeat, at most for [`STATE_PATIENCE`].
    ///
    /// # Errors
    /// Those of [`Self::hear`], a timeout, and [`MeasureError::Interrupted`] when `stop` is set.
    pub fn expect(&mut self, stop: &AtomicBool) -> Result<Frame, MeasureError> {
        self.expect_until(deadline(STATE_PATIENCE), stop, &mut || {})
    }

    /// Waits as [`Self::expect`] does until `deadline`, and calls `idle` at each wake-up.
    ///
    /// # Errors
    /// Those of [`Self::expect`].
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
            // Heartbeats do not extend the deadline: a state without progress ends.
            if now >= deadline {
                return Err(match self.codec.peer() {
                    None => self.silent(),
                    Some(_) => self.vanished("it did not continue the handshake"),
                });
            }
            self.beat()?;
            self.flush()?;
            idle();
            self.wait(None, deadline.min(now + LOOK_UP_NS))?;
        }
    }

    /// Sends queued bytes, closes this direction, and waits until the remote end closes too, for at
    /// most `patience`. Closing with unread data would reset the connection, and the remote end
    /// would lose data that it has not read yet.
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

    /// Error of a failed call. Before the remote end's hello, its close can appear as a reset,
    /// because our hello was still in flight.
    fn lost(&self, error: &io::Error) -> MeasureError {
        match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
                if self.codec.peer().is_none() =>
            {
                self.other("closed the connection and")
            }
            _ => self.vanished(error.to_string()),
        }
    }

    /// Error of a remote end that accepts a connection and sends nothing: another program, or a
    /// hang.
    fn silent(&self) -> MeasureError {
        let seconds = STATE_PATIENCE.as_secs();
        self.other(&format!("accepted the connection and in {seconds} s"))
    }

    /// Error of a remote end that sends no hello: another program.
    fn other(&self, what: &str) -> MeasureError {
        MeasureError::Foreign {
            peer: self.peer,
            situation: format!("{what} sent no linerate hello"),
            next_step:
                "the port belongs to another program, or its server hangs: --peer auto detects the \
                        protocol"
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

/// Returns the time that is `patience` from now.
pub fn deadline(patience: Duration) -> Nanos {
    let patience = Nanos::try_from(patience.as_nanos()).unwrap_or(Nanos::MAX);
    clock::now().saturating_add(patience)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use linerate_dialect::control::Hello;

    use super::*;

    /// Receives from a remote end that has been silent for `seconds`.
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
        // As if its last bytes had arrived then.
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
