//! Socket of a flow as its protocol driver uses it, next to the thread that moves payload: of the
//! kernel or of the user-space stack.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Duration;

use linerate_record::plan::TransportProtocol;
use linerate_stack::{SocketId, SocketKind, Stack, StackError, TcpState};
use linerate_sys::clock;
use linerate_sys::clock::Nanos;
use linerate_sys::readiness::{Readiness, poll};
use linerate_sys::socket::{MessageFlags, read_tcp_info, read_unacknowledged_bytes, receive, send};
use linerate_transport::stack_thread::{StackHandle, thread_ended};
use linerate_transport::{FlowOptions, close_reason, open_socket, stack_error};
use linerate_workload::worker::FlowOpening;
use socket2::{Domain, SockAddr, Socket, Type};

/// Poll interval of the user-space stack during a wait.
const STACK_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Timeout of a connect, and of a send without space.
const SOCKET_TIMEOUT_NS: Nanos = 5_000_000_000;

/// Socket of a flow, or listening socket for one.
pub enum FlowSocket {
    Kernel(Socket),
    /// Socket of our user-space stack.
    Netstack(StackHandle, SocketId),
}

/// Returns the unspecified address of the family of `address`.
fn unspecified_address(address: SocketAddr) -> IpAddr {
    match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Runs a closure on a stack, in the thread that owns it.
fn with_stack<R: Send + 'static>(
    stack: &StackHandle,
    work: impl FnOnce(&mut Stack) -> Result<R, StackError> + Send + 'static,
) -> io::Result<R> {
    let result = stack.with_stack(move |stack, _| work(stack).map_err(stack_error));
    result.unwrap_or_else(|| Err(thread_ended()))
}

/// Converts the result of a stack call that does not wait.
fn nonblocking_result<R>(outcome: Poll<Result<R, StackError>>) -> io::Result<R> {
    match outcome {
        Poll::Ready(outcome) => outcome.map_err(stack_error),
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

impl FlowSocket {
    /// Opens a socket to a remote address; returns once it is connected.
    ///
    /// # Errors
    /// Error of the connect; `Interrupted` once `stop` is set.
    pub fn connect(
        stack: Option<&StackHandle>,
        remote: SocketAddr,
        options: &FlowOptions,
        stop: &AtomicBool,
    ) -> io::Result<Self> {
        let Some(stack) = stack else {
            return open_socket(remote, options).map(Self::Kernel);
        };
        let local = options.local;
        if options.protocol == TransportProtocol::Udp {
            let local_address =
                local.unwrap_or_else(|| SocketAddr::new(unspecified_address(remote), 0));
            return Self::open_udp(stack, local_address, remote);
        }
        let id = with_stack(stack, move |stack| stack.tcp_connect(remote, local))?;
        let deadline = clock::now() + SOCKET_TIMEOUT_NS;
        let failed = loop {
            let connected = stack.with_stack(move |stack, _| match stack.tcp_state(id) {
                Ok(TcpState::Connecting) => Ok(false),
                Ok(TcpState::Closed) => Err(close_reason(stack, id)),
                Ok(_) => Ok(true),
                Err(error) => Err(stack_error(error)),
            });
            match connected.unwrap_or_else(|| Err(thread_ended())) {
                Ok(true) => return Ok(Self::Netstack(stack.clone(), id)),
                Ok(false) if stop.load(Relaxed) => break io::ErrorKind::Interrupted.into(),
                Ok(false) if clock::now() >= deadline => break io::ErrorKind::TimedOut.into(),
                Ok(false) => std::thread::sleep(STACK_POLL_INTERVAL),
                Err(error) => break error,
            }
        };
        // No flow owns this socket: even a rejected connection occupies it until it is given back.
        let _ = with_stack(stack, move |stack| stack.abort(id));
        Err(failed)
    }

    /// Opens a socket of a stack for datagrams between two addresses.
    ///
    /// # Errors
    /// If the port is taken, the address is not local, or there is no route.
    pub fn open_udp(
        stack: &StackHandle,
        local_address: SocketAddr,
        remote: SocketAddr,
    ) -> io::Result<Self> {
        let id = with_stack(stack, move |stack| {
            let id = stack.udp_bind(local_address)?;
            match stack.udp_connect(id, remote) {
                Ok(()) => Ok(id),
                Err(error) => {
                    let _ = stack.close(id);
                    Err(error)
                }
            }
        })?;
        Ok(Self::Netstack(stack.clone(), id))
    }

    /// Closes a socket of a stack that no flow has taken; a socket of the kernel closes on drop.
    pub fn close(&self) {
        if let Self::Netstack(stack, id) = self {
            let id = *id;
            // It may be closed already.
            let _ = with_stack(stack, move |stack| stack.close(id));
        }
    }

    /// Opens a socket that waits for one remote end.
    ///
    /// # Errors
    /// If the port is taken, or the address is not local.
    pub fn listen(
        stack: Option<&StackHandle>,
        local: SocketAddr,
        options: &FlowOptions,
    ) -> io::Result<Self> {
        let tcp = options.protocol == TransportProtocol::Tcp;
        if let Some(stack) = stack {
            let id = with_stack(stack, move |stack| match (tcp, local.port()) {
                (false, _) => stack.udp_bind(local),
                (true, 0) => listen_on_free_port(stack, local.ip()),
                (true, _) => stack.tcp_listen(local, 1),
            })?;
            return Ok(Self::Netstack(stack.clone(), id));
        }
        let kind = if tcp { Type::STREAM } else { Type::DGRAM };
        let socket = Socket::new(Domain::for_address(local), kind, None)?;
        socket.set_reuse_address(tcp)?;
        if let Some(bytes) = options.socket_plan.receive_buffer_bytes {
            // Before the connection exists: its window scale follows from the buffer.
            socket.set_recv_buffer_size(usize::try_from(bytes).unwrap_or(usize::MAX))?;
        }
        if let Some(interface) = &options.interface {
            socket.bind_device(Some(interface.as_bytes()))?;
        }
        socket.bind(&SockAddr::from(local))?;
        if tcp {
            socket.listen(1)?;
        }
        Ok(Self::Kernel(socket))
    }

    /// Duplicates the handle of the socket.
    ///
    /// # Errors
    /// If the process has no file descriptor left.
    pub fn duplicate(&self) -> io::Result<Self> {
        match self {
            Self::Kernel(socket) => socket.try_clone().map(Self::Kernel),
            Self::Netstack(stack, id) => Ok(Self::Netstack(stack.clone(), *id)),
        }
    }

    /// Converts the socket into the opening of a flow.
    pub fn into_opening(self) -> FlowOpening {
        match self {
            Self::Kernel(socket) => FlowOpening::Adopt(socket.into()),
            Self::Netstack(_, id) => FlowOpening::AdoptNetstack(id),
        }
    }

    /// Returns the local port.
    ///
    /// # Errors
    /// If the socket is closed.
    pub fn port(&self) -> io::Result<u16> {
        match self {
            Self::Kernel(socket) => {
                let address = socket.local_addr()?.as_socket();
                Ok(address.map_or(0, |address| address.port()))
            }
            Self::Netstack(stack, id) => {
                let id = *id;
                with_stack(stack, move |stack| Ok(stack.local(id)?.port()))
            }
        }
    }

    /// Writes all bytes to a stream.
    ///
    /// # Errors
    /// Error of the connection; `TimedOut` if it accepts nothing.
    pub fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        let (stack, id) = match self {
            Self::Kernel(socket) => return io::Write::write_all(&mut &*socket, bytes),
            Self::Netstack(stack, id) => (stack, *id),
        };
        let deadline = clock::now() + SOCKET_TIMEOUT_NS;
        let mut rest = bytes.to_vec();
        while !rest.is_empty() {
            let some = rest.clone();
            let written = stack.with_stack(move |stack, _| {
                let written = stack.tcp_send(id, |buffer| {
                    let bytes = some.len().min(buffer.len());
                    buffer[..bytes].copy_from_slice(&some[..bytes]);
                    bytes
                });
                stack.flush();
                nonblocking_result(written)
            });
            match written.unwrap_or_else(|| Err(thread_ended())) {
                Ok(written) => drop(rest.drain(..written)),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                Err(_) if clock::now() >= deadline => return Err(io::ErrorKind::TimedOut.into()),
                Err(_) => std::thread::sleep(STACK_POLL_INTERVAL),
            }
        }
        Ok(())
    }

    /// Sends a datagram, waiting for space.
    ///
    /// # Errors
    /// Error of the socket.
    pub fn send(&self, datagram: &[u8]) -> io::Result<()> {
        if let Self::Kernel(socket) = self {
            return send(socket, datagram, MessageFlags::NONE).map(|_| ());
        }
        let deadline = clock::now() + SOCKET_TIMEOUT_NS;
        loop {
            match self.try_send(datagram) {
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock && clock::now() < deadline =>
                {
                    std::thread::sleep(STACK_POLL_INTERVAL);
                }
                done => return done,
            }
        }
    }

    /// Sends a datagram without waiting.
    ///
    /// # Errors
    /// Error of the socket; `WouldBlock` without space.
    pub fn try_send(&self, datagram: &[u8]) -> io::Result<()> {
        match self {
            Self::Kernel(socket) => send(socket, datagram, MessageFlags::DONT_WAIT).map(|_| ()),
            Self::Netstack(stack, id) => {
                let (id, bytes) = (*id, datagram.to_vec());
                let sent = stack.with_stack(move |stack, _| {
                    let sent = stack.udp_send(id, None, bytes.len(), |buffer| {
                        buffer.copy_from_slice(&bytes);
                    });
                    stack.flush();
                    nonblocking_result(sent)
                });
                sent.unwrap_or_else(|| Err(thread_ended())).map(|_| ())
            }
        }
    }

    /// Receives a datagram, or pending bytes of a stream, without waiting.
    ///
    /// # Errors
    /// Error of the socket; `WouldBlock` if nothing is pending.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let (stack, id) = match self {
            Self::Kernel(socket) => return receive(socket, buffer, MessageFlags::DONT_WAIT),
            Self::Netstack(stack, id) => (stack, *id),
        };
        let most = buffer.len();
        let received = stack.with_stack(move |stack, _| {
            nonblocking_result(match id.kind() {
                SocketKind::Udp => stack.udp_receive(id, |bytes, _| prefix(bytes, most)),
                _ => stack.tcp_receive(id, |bytes| {
                    let received_bytes = prefix(bytes, most);
                    (received_bytes.len(), received_bytes)
                }),
            })
        });
        let received = received.unwrap_or_else(|| Err(thread_ended()))?;
        buffer[..received.len()].copy_from_slice(&received);
        Ok(received.len())
    }

    /// Copies the start of the next datagram without removing it, and returns its sender.
    ///
    /// # Errors
    /// Error of the socket; `WouldBlock` if nothing is pending.
    pub fn peek(&self, buffer: &mut [u8]) -> io::Result<(usize, Option<SocketAddr>)> {
        match self {
            Self::Kernel(socket) => {
                let bytes = receive(
                    socket,
                    buffer,
                    MessageFlags::DONT_WAIT.union(MessageFlags::PEEK),
                )?;
                Ok((bytes, socket.peek_sender()?.as_socket()))
            }
            Self::Netstack(stack, id) => {
                let (id, most) = (*id, buffer.len());
                let seen = with_stack(stack, move |stack| {
                    stack.udp_peek(id, |bytes, from| (prefix(bytes, most), from))
                })?;
                let (seen, from) = seen.ok_or(io::ErrorKind::WouldBlock)?;
                buffer[..seen.len()].copy_from_slice(&seen);
                Ok((seen.len(), Some(from)))
            }
        }
    }

    /// Connects to a peer: datagrams of others are dropped from now on.
    ///
    /// # Errors
    /// If there is no route to it.
    pub fn connect_to(&self, peer: SocketAddr) -> io::Result<()> {
        match self {
            Self::Kernel(socket) => socket.connect(&SockAddr::from(peer)),
            Self::Netstack(stack, id) => {
                let id = *id;
                with_stack(stack, move |stack| stack.udp_connect(id, peer))
            }
        }
    }

    /// Waits until something can be read or accepted; false at the timeout.
    ///
    /// # Errors
    /// Error of the socket.
    pub fn wait_readable(&self, time: Duration) -> io::Result<bool> {
        let (stack, id) = match self {
            Self::Kernel(socket) => return poll(socket, Readiness::Receive, time),
            Self::Netstack(stack, id) => (stack, *id),
        };
        if id.kind() == SocketKind::Listener {
            // The stack has no count of pending connections, so the caller tries to accept.
            std::thread::sleep(STACK_POLL_INTERVAL.min(time));
            return Ok(true);
        }
        let deadline = clock::now() + u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        loop {
            let has = stack.with_stack(move |stack, _| is_readable(stack, id));
            if has.unwrap_or_else(|| Err(thread_ended()))? {
                return Ok(true);
            }
            if clock::now() >= deadline {
                return Ok(false);
            }
            std::thread::sleep(STACK_POLL_INTERVAL);
        }
    }

    /// Accepts the next connection.
    ///
    /// # Errors
    /// Error of the socket; `WouldBlock` if none is pending.
    pub fn accept(&self) -> io::Result<(Self, SocketAddr)> {
        match self {
            Self::Kernel(socket) => {
                let (socket, from) = socket.accept()?;
                let from = from.as_socket().ok_or(io::ErrorKind::Other)?;
                Ok((Self::Kernel(socket), from))
            }
            Self::Netstack(stack, id) => {
                let id = *id;
                let accepted = stack.with_stack(move |stack, _| {
                    let socket = nonblocking_result(stack.tcp_accept(id))?;
                    let from = stack.remote(socket).map_err(stack_error)?;
                    Ok((socket, from.ok_or(io::ErrorKind::NotConnected)?))
                });
                let (socket, from) = accepted.unwrap_or_else(|| Err(thread_ended()))?;
                Ok((Self::Netstack(stack.clone(), socket), from))
            }
        }
    }

    /// Returns the unacknowledged payload of a stream; `finished` if its sending half is closed.
    ///
    /// # Errors
    /// If the connection is gone.
    pub fn unacknowledged(&self, finished: bool) -> io::Result<u64> {
        match self {
            // For the kernel the FIN counts as one byte, and an idle receiver acknowledges it as
            // late as it closes: the payload has arrived before.
            Self::Kernel(socket) => {
                Ok(read_unacknowledged_bytes(socket)?.saturating_sub(u64::from(finished)))
            }
            Self::Netstack(stack, id) => {
                let id = *id;
                with_stack(stack, move |stack| Ok(stack.tcp_queued(id)?.0 as u64))
            }
        }
    }

    /// Returns the time since the last acknowledgement, 0 if unknown.
    pub fn since_acknowledgement(&self) -> Nanos {
        let Self::Kernel(socket) = self else {
            return 0;
        };
        read_tcp_info(socket).map_or(0, |info| {
            u64::from(info.since_acknowledgement_ms) * 1_000_000
        })
    }

    /// Returns whether a connection is still established.
    pub fn is_established(&self) -> bool {
        match self {
            Self::Kernel(socket) => socket.peer_addr().is_ok(),
            Self::Netstack(stack, id) => {
                let id = *id;
                let state = with_stack(stack, move |stack| stack.tcp_state(id));
                state.is_ok_and(|state| state != TcpState::Closed)
            }
        }
    }

    /// Closes a stream in both directions; on the user-space stack, all receiving ones.
    pub fn shutdown_both(&self) {
        match self {
            Self::Kernel(socket) => drop(socket.shutdown(Shutdown::Both)),
            Self::Netstack(stack, _) => stack.end_receives(),
        }
    }

    /// Makes a datagram socket reject all further datagrams.
    pub fn reject_datagrams(&self) {
        match self {
            Self::Kernel(socket) => {
                if let Ok(address) = socket.local_addr() {
                    // A flow that cannot be stopped this way ends at its time.
                    let _ = socket.connect(&address);
                }
            }
            Self::Netstack(stack, id) => {
                let id = *id;
                // The new peer address never sends.
                let _ = with_stack(stack, move |stack| match stack.remote(id)? {
                    Some(peer) => stack.udp_connect(id, SocketAddr::new(peer.ip(), 0)),
                    None => Ok(()),
                });
            }
        }
    }
}

fn prefix(bytes: &[u8], most: usize) -> Vec<u8> {
    bytes[..bytes.len().min(most)].to_vec()
}

/// Listens on a free port of the stack.
fn listen_on_free_port(stack: &mut Stack, address: IpAddr) -> Result<SocketId, StackError> {
    // Dynamic ports (RFC 6335).
    const DYNAMIC_PORTS: std::ops::RangeInclusive<u16> = 49_152..=u16::MAX;
    const ATTEMPTS: usize = 64;
    for _ in 0..ATTEMPTS {
        let local = SocketAddr::new(address, fastrand::u16(DYNAMIC_PORTS));
        match stack.tcp_listen(local, 1) {
            Err(StackError::PortInUse { .. }) => {}
            done => return done,
        }
    }
    Err(StackError::PortInUse { port: 0 })
}

/// Returns whether a socket has pending data, or an error.
fn is_readable(stack: &mut Stack, id: SocketId) -> io::Result<bool> {
    match id.kind() {
        SocketKind::Udp => {
            if stack.udp_queued(id).map_err(stack_error)? > 0 {
                return Ok(true);
            }
            // No datagram is pending, so only an error can be returned.
            match stack.udp_receive(id, |_, _| ()) {
                Poll::Ready(Err(error)) => Err(stack_error(error)),
                _ => Ok(false),
            }
        }
        SocketKind::Tcp => {
            let (_, received) = stack.tcp_queued(id).map_err(stack_error)?;
            let is_open = matches!(
                stack.tcp_state(id),
                Ok(TcpState::Connecting | TcpState::Established | TcpState::LocalFinished)
            );
            Ok(received > 0 || !is_open)
        }
        SocketKind::Listener => Ok(true),
    }
}

#[cfg(test)]
mod tests {
    use linerate_record::plan::{Plan, RunKind};
    use linerate_record::stack::StackPlan;
    use linerate_transport::flow_options::flow_options;
    use linerate_transport::flow_role::FlowRole;
    use linerate_transport::stack_thread::StackThread;

    use super::*;
    /// Starts a stack with one socket of a kind, on a link without a peer.
    fn start_stack(sockets: &str) -> StackThread {
        let plan = StackPlan {
            device: "null:".to_owned(),
            addresses: vec!["10.9.0.2/24".to_owned()],
            profile: "default".to_owned(),
            configuration: [(sockets, "1"), ("poll.interval", "1ms")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            ..StackPlan::default()
        };
        StackThread::start(&plan, None).unwrap()
    }

    /// An aborted connect gives back the only socket.
    #[test]
    fn a_failed_connect_gives_its_socket_back() {
        let stack = start_stack("sockets.tcp");
        let flow = Plan::new(RunKind::Throughput, TransportProtocol::Tcp, "10.9.0.1");
        let options = flow_options(&flow, FlowRole::Sender);
        let remote = "10.9.0.1:7".parse().unwrap();
        for _ in 0..3 {
            let stop = AtomicBool::new(true);
            let result = FlowSocket::connect(Some(stack.handle()), remote, &options, &stop);
            let error = result.err().expect("no peer replies");
            assert_eq!(error.kind(), io::ErrorKind::Interrupted, "{error}");
            // The socket is free once its reset was sent, or had no route.
            let begin = clock::now();
            let used = || {
                stack
                    .handle()
                    .with_stack(|stack, _| stack.connection_count())
            };
            while used() != Some(0) {
                assert!(clock::now() < begin + 20_000_000_000, "it is never free");
                std::thread::sleep(STACK_POLL_INTERVAL);
            }
        }
    }

    /// A socket that finds no route is given back.
    #[test]
    fn a_socket_that_could_not_be_connected_is_closed() {
        let stack = start_stack("sockets.udp");
        let flow = Plan::new(RunKind::Throughput, TransportProtocol::Udp, "10.9.0.1");
        let options = flow_options(&flow, FlowRole::Sender);
        let connect = |remote: &str| {
            let remote = remote.parse().unwrap();
            let stop = AtomicBool::new(false);
            FlowSocket::connect(Some(stack.handle()), remote, &options, &stop)
        };
        assert!(connect("10.8.0.1:7").is_err(), "there is no way there");
        assert!(
            connect("10.9.0.1:7").is_ok(),
            "its place was not given back"
        );
    }
}
