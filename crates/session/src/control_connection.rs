//! Control connection: a socket and the codec of the control protocol.

use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use linerate_protocol::control::{ControlCodec, Frame, Heartbeat};
use linerate_sys::clock;
use linerate_sys::clock::Nanos;
use linerate_sys::readiness::{Readiness, poll_any};
use linerate_sys::socket;
use linerate_sys::socket::MessageFlags;
use socket2::Socket;

use crate::coordinator::{ControlChannel, MAX_RESULT_WAIT_NS};
use crate::error::SessionError;
use crate::path_timeouts::path_delay_ns;

/// Silence after which a server drops a client. It outlasts a process that is stopped for ten
/// seconds, in a debugger or with its virtual machine. A killed process closes its connection at
/// once. A test whose client host is lost occupies its slot for this time.
pub const CLIENT_SILENCE_TIMEOUT: Duration = Duration::from_secs(20);

/// Silence after which a client gives up its server: a user waits for it, so it is no longer than a
/// stop of ten seconds needs.
pub const SERVER_SILENCE_TIMEOUT: Duration = Duration::from_secs(14);

/// Longest time in one state of the handshake, even while heartbeats arrive. A connection without a
/// test gets no longer silence, at either end.
pub const HANDSHAKE_STATE_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest delay by queues that extends the silence timeout: the wait for results ends then, too.
const MAX_DELAY_NS: Nanos = MAX_RESULT_WAIT_NS;

/// Longest sleep in the handshake: the delay until a stop is noticed.
const STOP_POLL_NS: Nanos = 50_000_000;

/// Reads of one [`ControlConnection::receive`]: a peer that sends without pause does not block the
/// caller.
const MAX_READS_PER_RECEIVE: usize = 64;

/// Idle time of the sender after which a heartbeat is sent.
const HEARTBEAT_INTERVAL_NS: Nanos = 1_000_000_000;

/// Byte stream of a control connection.
pub struct ControlStream {
    socket: Socket,
    /// Address and port of this end.
    pub local: SocketAddr,
    /// Address and port of the remote end.
    pub peer: SocketAddr,
}

impl ControlStream {
    /// Wraps a kernel TCP connection.
    ///
    /// # Errors
    /// When its options cannot be set, or it is broken already.
    pub fn from_tcp(stream: TcpStream) -> Result<Self, SessionError> {
        let addresses = || -> io::Result<(SocketAddr, SocketAddr)> {
            stream.set_nodelay(true)?;
            Ok((stream.local_addr()?, stream.peer_addr()?))
        };
        let (local, peer) =
            addresses().map_err(|error| SessionError::system("control connection", error))?;
        Ok(Self {
            socket: Socket::from(stream),
            local,
            peer,
        })
    }

    /// Wraps one end of a socket pair that is bridged to a connection of the user-space stack.
    #[must_use]
    pub fn bridged(socket: UnixStream, local: SocketAddr, peer: SocketAddr) -> Self {
        Self {
            socket: Socket::from(OwnedFd::from(socket)),
            local,
            peer,
        }
    }
}

/// Control connection: frames over a byte stream, with heartbeats and timeouts.
pub struct ControlConnection {
    stream: Socket,
    codec: ControlCodec,
    local: SocketAddr,
    peer: SocketAddr,
    last_received_ns: Nanos,
    last_sent_ns: Nanos,
    /// Longest delay by queues so far: of the path, and of this end's own payload. It stays once the
    /// queue is empty, because TCP's next retransmission may take as long again.
    longest_delay_ns: Nanos,
    /// This end sends datagrams, which delay its frames without any sign on this connection.
    sends_datagrams: bool,
    closed: bool,
    /// Longest time in one state of the handshake.
    handshake_timeout: Duration,
    /// Silence after which the remote end counts as lost.
    silence_timeout: Duration,
}

impl ControlConnection {
    /// Starts the codec on a stream, and sends its first bytes.
    ///
    /// # Errors
    /// When the socket cannot be made non-blocking, or is broken already.
    pub fn new(stream: ControlStream, codec: ControlCodec) -> Result<Self, SessionError> {
        Self::from_socket(stream.socket, codec, stream.local, stream.peer)
    }

    fn from_socket(
        stream: Socket,
        codec: ControlCodec,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Result<Self, SessionError> {
        (stream.set_nonblocking(true))
            .map_err(|error| SessionError::system("control connection", error))?;
        let mut connection = Self {
            stream,
            codec,
            local,
            peer: SocketAddr::new(peer.ip().to_canonical(), peer.port()),
            last_received_ns: clock::now(),
            last_sent_ns: clock::now(),
            longest_delay_ns: 0,
            sends_datagrams: false,
            closed: false,
            handshake_timeout: HANDSHAKE_STATE_TIMEOUT,
            silence_timeout: HANDSHAKE_STATE_TIMEOUT,
        };
        connection.flush()?;
        Ok(connection)
    }

    /// Sets the longest time in one state of the handshake.
    #[must_use]
    pub fn with_handshake_timeout(mut self, timeout: Duration) -> Self {
        self.handshake_timeout = timeout;
        self
    }

    /// Sets the silence timeout that applies after the remote end's hello.
    #[must_use]
    pub fn with_silence_timeout(mut self, timeout: Duration) -> Self {
        self.silence_timeout = timeout;
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

    /// Returns the round-trip time of the path as the kernel measured it; `None` over the
    /// user-space stack.
    #[must_use]
    pub fn rtt_ns(&self) -> Option<Nanos> {
        let info = socket::read_tcp_info(&self.stream).ok()?;
        Some(u64::from(info.rtt_us) * 1_000)
    }

    /// Extends the silence timeout from now on by the queue that datagrams of this end may fill.
    pub fn expect_send_queue(&mut self) {
        self.sends_datagrams = true;
    }

    /// Returns the time by which the reply of the remote end may be late.
    fn delay_ns(&self) -> Nanos {
        let path_ns = path_delay_ns(&self.stream, self.sends_datagrams);
        path_ns.max(self.longest_delay_ns).min(MAX_DELAY_NS)
    }

    /// Returns whether the remote end closed or reset the connection after its hello.
    #[must_use]
    pub fn is_closed_by_peer(&self) -> bool {
        self.closed && self.codec.peer_hello().is_some()
    }

    /// Passes bytes to the codec that were read from the socket before.
    ///
    /// # Errors
    /// When they are not our protocol.
    pub fn preload(&mut self, bytes: &[u8]) -> Result<(), SessionError> {
        self.codec
            .receive(bytes)
            .map_err(|source| self.protocol_error(source))
    }

    /// Sends a frame; bytes that the socket does not accept leave with the next [`Self::flush`].
    ///
    /// # Errors
    /// When the remote end is lost.
    pub fn send(&mut self, frame: impl Into<Frame>) -> Result<(), SessionError> {
        let frame = frame.into();
        self.codec
            .send(&frame)
            .map_err(|source| self.protocol_error(source))?;
        self.last_sent_ns = clock::now();
        self.flush()
    }

    /// Sends a heartbeat if nothing was sent for a second. Before the hello nothing can be sent.
    ///
    /// # Errors
    /// When the remote end is lost.
    pub fn send_heartbeat(&mut self) -> Result<(), SessionError> {
        if clock::now() < self.last_sent_ns + HEARTBEAT_INTERVAL_NS
            || self.codec.peer_hello().is_none()
        {
            return Ok(());
        }
        self.longest_delay_ns = self
            .longest_delay_ns
            .max(path_delay_ns(&self.stream, false));
        self.send(Heartbeat {})
    }

    /// Time of the next heartbeat.
    #[must_use]
    pub fn next_deadline_ns(&self) -> Nanos {
        self.last_sent_ns + HEARTBEAT_INTERVAL_NS
    }

    /// Sends queued bytes.
    ///
    /// # Errors
    /// When the remote end is lost.
    pub fn flush(&mut self) -> Result<(), SessionError> {
        while !self.codec.outgoing().is_empty() {
            // A plain write to a closed connection would raise SIGPIPE.
            match socket::send(&self.stream, self.codec.outgoing(), MessageFlags::DONT_WAIT) {
                Ok(bytes) => self.codec.mark_sent(bytes),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(()),
                    io::ErrorKind::Interrupted => {}
                    _ => {
                        self.closed = true;
                        return Err(self.call_error(&error));
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
    /// the handshake timeout, or was silent for longer than the timeout since then.
    pub fn receive(&mut self) -> Result<Option<Frame>, SessionError> {
        for _ in 0..MAX_READS_PER_RECEIVE {
            let frame = self.codec.next_frame();
            if let Some(frame) = frame.map_err(|source| self.protocol_error(source))? {
                return Ok(Some(frame));
            }
            if self.closed {
                return Err(match self.codec.peer_hello() {
                    None => self.no_hello("closed the connection and"),
                    Some(_) => self.peer_lost("control connection closed"),
                });
            }
            let mut buffer = [0; 16 << 10];
            match (&self.stream).read(&mut buffer) {
                Ok(0) => self.closed = true,
                Ok(bytes) => {
                    self.last_received_ns = clock::now();
                    let received = self.codec.receive(&buffer[..bytes]);
                    received.map_err(|source| self.protocol_error(source))?;
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock => {
                        let has_hello = self.codec.peer_hello().is_some();
                        let timeout = match has_hello {
                            false => self.handshake_timeout,
                            true => self.silence_timeout,
                        };
                        let silent_ns = clock::now().saturating_sub(self.last_received_ns);
                        let timeout_ns = timeout.as_nanos() as Nanos;
                        // Before the hello there is no allowance: any host could claim a long path
                        // and occupy a slot.
                        if silent_ns > timeout_ns
                            && (!has_hello || silent_ns > timeout_ns + self.delay_ns())
                        {
                            let seconds = silent_ns / 1_000_000_000;
                            return Err(match has_hello {
                                false => self.hello_timeout(),
                                true => self.peer_lost(format!("silent for {seconds} s")),
                            });
                        }
                        return Ok(None);
                    }
                    _ => {
                        self.closed = true;
                        return Err(self.call_error(&error));
                    }
                },
            }
        }
        Ok(None)
    }

    /// Waits until data arrives here or on `extra_fd`, or until `deadline`.
    ///
    /// # Errors
    /// Errors of `poll`.
    pub fn wait(
        &self,
        extra_fd: Option<BorrowedFd<'_>>,
        deadline: Nanos,
    ) -> Result<(), SessionError> {
        let timeout = Duration::from_nanos(deadline.saturating_sub(clock::now()));
        let socket = self.stream.as_fd();
        let mut events = vec![(socket, Readiness::Receive)];
        if !self.codec.outgoing().is_empty() {
            events.push((socket, Readiness::Send));
        }
        events.extend(extra_fd.map(|fd| (fd, Readiness::Receive)));
        poll_any(&events, timeout)
            .map(|_| ())
            .map_err(|error| SessionError::system("poll", error))
    }

    /// Limits the length of received frames (see [`Connection::limit_frame_bytes`]).
    pub fn limit_frame_bytes(&mut self, bytes: usize) {
        self.codec.limit_incoming(bytes);
    }

    /// Waits for the next frame that is not a heartbeat, at most for the handshake timeout.
    ///
    /// # Errors
    /// Those of [`Self::receive`], a timeout, and [`SessionError::Interrupted`] when `stop` is set.
    pub fn receive_next(&mut self, stop: &AtomicBool) -> Result<Frame, SessionError> {
        self.receive_until(deadline_after(self.handshake_timeout), stop, &mut || {})
    }

    /// Waits as [`Self::receive_next`] does until `deadline`, and calls `idle` at each
    /// wake-up.
    ///
    /// # Errors
    /// Those of [`Self::receive_next`].
    pub fn receive_until(
        &mut self,
        deadline: Nanos,
        stop: &AtomicBool,
        idle: &mut dyn FnMut(),
    ) -> Result<Frame, SessionError> {
        loop {
            match self.receive()? {
                None | Some(Frame::Heartbeat(_)) => {}
                Some(frame) => return Ok(frame),
            }
            if stop.load(Relaxed) {
                return Err(SessionError::Interrupted);
            }
            let now = clock::now();
            // Heartbeats do not extend the deadline: a state without progress ends.
            if now >= deadline {
                return Err(match self.codec.peer_hello() {
                    None => self.hello_timeout(),
                    Some(_) => self.peer_lost("it did not continue the handshake"),
                });
            }
            self.send_heartbeat()?;
            self.flush()?;
            idle();
            self.wait(None, deadline.min(now + STOP_POLL_NS))?;
        }
    }

    /// Sends queued bytes, closes this direction, and waits until the remote end closes too, for at
    /// most `timeout`. Closing with unread data would reset the connection, and the remote end
    /// would lose data that it has not read yet.
    pub fn close(mut self, timeout: Duration) {
        let deadline = deadline_after(timeout);
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
        let mut buffer = [0; 16 << 10];
        while clock::now() < deadline {
            match (&self.stream).read(&mut buffer) {
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
    fn call_error(&self, error: &io::Error) -> SessionError {
        match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
                if self.codec.peer_hello().is_none() =>
            {
                self.no_hello("closed the connection and")
            }
            _ => self.peer_lost(error.to_string()),
        }
    }

    /// Error of a remote end that accepts a connection and sends nothing: another program, or a
    /// hang.
    fn hello_timeout(&self) -> SessionError {
        let seconds = self.handshake_timeout.as_secs_f64();
        self.no_hello(&format!("accepted the connection and in {seconds} s"))
    }

    /// Error of a remote end that sends no hello: another program.
    fn no_hello(&self, action: &str) -> SessionError {
        SessionError::PeerFailed {
            peer: self.peer,
            situation: format!("{action} sent no linerate hello"),
            next_step:
                "the port belongs to another program, or its server hangs: --peer auto detects the \
                        protocol"
                    .to_owned(),
        }
    }

    fn peer_lost(&self, reason: impl Into<String>) -> SessionError {
        SessionError::PeerLost {
            peer: self.peer,
            reason: reason.into(),
        }
    }

    fn protocol_error(&self, source: linerate_protocol::control::ControlError) -> SessionError {
        SessionError::Protocol {
            peer: self.peer,
            source,
        }
    }
}

impl ControlChannel for ControlConnection {
    fn receive(&mut self) -> Result<Option<Frame>, SessionError> {
        Self::receive(self)
    }

    fn send(&mut self, frame: Frame) -> Result<(), SessionError> {
        Self::send(self, frame)
    }

    fn send_heartbeat(&mut self) -> Result<(), SessionError> {
        Self::send_heartbeat(self)
    }

    fn flush(&mut self) -> Result<(), SessionError> {
        Self::flush(self)
    }

    fn wait(&self, extra_fd: Option<BorrowedFd<'_>>, deadline: Nanos) -> Result<(), SessionError> {
        Self::wait(self, extra_fd, deadline)
    }

    fn on_arrival(&mut self, now: Nanos) {
        self.last_received_ns = now;
    }

    fn on_send_delay(&mut self, _: Nanos, delay_ns: Nanos) {
        self.longest_delay_ns = self.longest_delay_ns.max(delay_ns);
    }

    fn path_delay_ns(&self) -> Nanos {
        self.delay_ns()
    }

    fn next_deadline_ns(&self) -> Nanos {
        Self::next_deadline_ns(self)
    }

    fn peer(&self) -> SocketAddr {
        Self::peer(self)
    }
}

/// Returns the time that is `timeout` from now.
pub fn deadline_after(timeout: Duration) -> Nanos {
    let timeout = Nanos::try_from(timeout.as_nanos()).unwrap_or(Nanos::MAX);
    clock::now().saturating_add(timeout)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use linerate_protocol::control::Hello;

    use super::*;

    /// Receives from a remote end that has been silent for `seconds`.
    fn receive_after_silence(
        seconds: u64,
        sends_hello: bool,
    ) -> Result<Option<Frame>, SessionError> {
        receive_behind_queue(seconds, sends_hello, 0)
    }

    /// Receives like [`receive_after_silence`], with frames of this end behind a queue.
    fn receive_behind_queue(
        seconds: u64,
        sends_hello: bool,
        queue_seconds: u64,
    ) -> Result<Option<Frame>, SessionError> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let remote = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (local, _) = listener.accept().unwrap();
        let open = |stream, codec| {
            ControlConnection::new(ControlStream::from_tcp(stream).unwrap(), codec).unwrap()
        };
        let local = open(local, ControlCodec::server(Hello::new("local")).unwrap());
        let mut local = local.with_silence_timeout(CLIENT_SILENCE_TIMEOUT);
        let _client = sends_hello.then(|| {
            let remote = open(
                remote.try_clone().unwrap(),
                ControlCodec::client(Hello::new("remote")).unwrap(),
            );
            local
                .wait(None, deadline_after(Duration::from_secs(5)))
                .unwrap();
            assert!(matches!(local.receive(), Ok(Some(Frame::Hello(_)))));
            remote
        });
        ControlChannel::on_send_delay(&mut local, clock::now(), queue_seconds * 1_000_000_000);
        // As if its last bytes had arrived then.
        local.last_received_ns = clock::now() - seconds * 1_000_000_000;
        local.receive()
    }

    #[test]
    fn a_peer_stopped_for_ten_seconds_is_not_dropped() {
        assert!(matches!(receive_after_silence(12, true), Ok(None)));
        assert!(matches!(
            receive_after_silence(21, true),
            Err(SessionError::PeerLost { .. })
        ));
    }

    #[test]
    fn a_queue_is_no_silence() {
        for (seconds, queue_seconds, is_lost) in [
            (40, 30, false),
            (55, 30, true),
            (19, 0, false),
            (500, 490, false),
            (700, 900, true),
        ] {
            let received = receive_behind_queue(seconds, true, queue_seconds);
            assert_eq!(received.is_err(), is_lost, "{seconds} {queue_seconds}");
        }
        // Without a hello there is no allowance for the path.
        assert!(receive_behind_queue(12, false, 30).is_err());
    }

    #[test]
    fn before_the_hello_the_timeout_is_shorter() {
        assert!(matches!(receive_after_silence(9, false), Ok(None)));
        assert!(matches!(
            receive_after_silence(12, false),
            Err(SessionError::PeerFailed { .. })
        ));
    }
}
