//! Socket of a flow as its protocol driver uses it, next to the thread that moves payload: of the
//! kernel or of the user-space stack.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::Poll;
use std::time::Duration;

use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::readiness::{Ready, poll};
use linerate_host::sys::socket::{Flags, receive, send, tcp_info, unacknowledged};
use linerate_metric::plan::Protocol;
use linerate_stack::{SocketId, SocketKind, Stack, StackError, TcpState};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::netstack::{StackHandle, gone};
use crate::transport::{FlowOptions, open_socket, stack_error, why_closed};
use crate::worker::Opening;

/// Poll interval of the user-space stack during a wait.
const LOOK: Duration = Duration::from_millis(1);

/// Timeout of a connect, and of a send without space.
const PATIENCE_NS: Nanos = 5_000_000_000;

/// Socket of a flow, or listening socket for one.
pub enum FlowSocket {
    Kernel(Socket),
    /// Socket of our user-space stack.
    Stack(StackHandle, SocketId),
}

/// Returns the unspecified address of the family of `address`.
fn anywhere(like: SocketAddr) -> IpAddr {
    match like {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Runs a closure on a stack, in the thread that owns it.
fn on<R: Send + 'static>(
    stack: &StackHandle,
    work: impl FnOnce(&mut Stack) -> Result<R, StackError> + Send + 'static,
) -> io::Result<R> {
    let done = stack.look(move |stack, _| work(stack).map_err(stack_error));
    done.unwrap_or_else(|| Err(gone()))
}

/// Converts the result of a stack call that does not wait.
fn at_once<R>(found: Poll<Result<R, StackError>>) -> io::Result<R> {
    match found {
        Poll::Ready(found) => found.map_err(stack_error),
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
        far: SocketAddr,
        options: &FlowOptions,
        stop: &AtomicBool,
    ) -> io::Result<Self> {
        let Some(stack) = stack else {
            return open_socket(far, options).map(Self::Kernel);
        };
        let local = options.local;
        if options.protocol == Protocol::Udp {
            let own = local.unwrap_or_else(|| SocketAddr::new(anywhere(far), 0));
            return Self::datagrams(stack, own, far);
        }
        let id = on(stack, move |stack| stack.tcp_connect(far, local))?;
        let give_up = clock::now() + PATIENCE_NS;
        let failed = loop {
            let looked = stack.look(move |stack, _| match stack.tcp_state(id) {
                Ok(TcpState::Opening) => Ok(false),
                Ok(TcpState::Closed) => Err(why_closed(stack, id)),
                Ok(_) => Ok(true),
                Err(error) => Err(stack_error(error)),
            });
            match looked.unwrap_or_else(|| Err(gone())) {
                Ok(true) => return Ok(Self::Stack(stack.clone(), id)),
                Ok(false) if stop.load(Relaxed) => break io::ErrorKind::Interrupted.into(),
                Ok(false) if clock::now() >= give_up => break io::ErrorKind::TimedOut.into(),
                Ok(false) => std::thread::sleep(LOOK),
                Err(error) => break error,
            }
        };
        // No flow owns this socket: even a rejected connection occupies it until it is given back.
        let _ = on(stack, move |stack| stack.abort(id));
        Err(failed)
    }

    /// Opens a socket of a stack for datagrams between two addresses.
    ///
    /// # Errors
    /// If the port is taken, the address is not local, or there is no route.
    pub fn datagrams(stack: &StackHandle, own: SocketAddr, far: SocketAddr) -> io::Result<Self> {
        let id = on(stack, move |stack| {
            let id = stack.udp_bind(own)?;
            match stack.udp_connect(id, far) {
                Ok(()) => Ok(id),
                Err(error) => {
                    let _ = stack.close(id);
                    Err(error)
                }
            }
        })?;
        Ok(Self::Stack(stack.clone(), id))
    }

    /// Closes a socket of a stack that no flow has taken; a socket of the kernel closes on drop.
    pub fn close(&self) {
        if let Self::Stack(stack, id) = self {
            let id = *id;
            // It may be closed already.
            let _ = on(stack, move |stack| stack.close(id));
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
        let tcp = options.protocol == Protocol::Tcp;
        if let Some(stack) = stack {
            let id = on(stack, move |stack| match (tcp, local.port()) {
                (false, _) => stack.udp_bind(local),
                (true, 0) => listen_anywhere(stack, local.ip()),
                (true, _) => stack.tcp_listen(local, 1),
            })?;
            return Ok(Self::Stack(stack.clone(), id));
        }
        let kind = if tcp { Type::STREAM } else { Type::DGRAM };
        let socket = Socket::new(Domain::for_address(local), kind, None)?;
        socket.set_reuse_address(tcp)?;
        if let Some(bytes) = options.socket.receive_buffer_bytes {
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
    pub fn copy(&self) -> io::Result<Self> {
        match self {
            Self::Kernel(socket) => socket.try_clone().map(Self::Kernel),
            Self::Stack(stack, id) => Ok(Self::Stack(stack.clone(), *id)),
        }
    }

    /// Converts the socket into the opening of a flow.
    pub fn opening(self) -> Opening {
        match self {
            Self::Kernel(socket) => Opening::Adopt(socket.into()),
            Self::Stack(_, id) => Opening::Take(id),
        }
    }

    /// Returns the local port.
    ///
    /// # Errors
    /// If the socket is closed.
    pub fn port(&self) -> io::Result<u16> {
        match self {
            Self::Kernel(socket) => {
                let own = socket.local_addr()?.as_socket();
                Ok(own.map_or(0, |own| own.port()))
            }
            Self::Stack(stack, id) => {
                let id = *id;
                on(stack, move |stack| Ok(stack.local(id)?.port()))
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
            Self::Stack(stack, id) => (stack, *id),
        };
        let give_up = clock::now() + PATIENCE_NS;
        let mut rest = bytes.to_vec();
        while !rest.is_empty() {
            let some = rest.clone();
            let said = stack.look(move |stack, _| {
                let said = stack.tcp_send(id, |room| {
                    let bytes = some.len().min(room.len());
                    room[..bytes].copy_from_slice(&some[..bytes]);
                    bytes
                });
                stack.flush();
                at_once(said)
            });
            match said.unwrap_or_else(|| Err(gone())) {
                Ok(said) => drop(rest.drain(..said)),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                Err(_) if clock::now() >= give_up => return Err(io::ErrorKind::TimedOut.into()),
                Err(_) => std::thread::sleep(LOOK),
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
            return send(socket, datagram, Flags::NONE).map(|_| ());
        }
        let give_up = clock::now() + PATIENCE_NS;
        loop {
            match self.offer(datagram) {
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock && clock::now() < give_up =>
                {
                    std::thread::sleep(LOOK);
                }
                done => return done,
            }
        }
    }

    /// Sends a datagram without waiting.
    ///
    /// # Errors
    /// Error of the socket; `WouldBlock` without space.
    pub fn offer(&self, datagram: &[u8]) -> io::Result<()> {
        match self {
            Self::Kernel(socket) => send(socket, datagram, Flags::DONT_WAIT).map(|_| ()),
            Self::Stack(stack, id) => {
                let (id, own) = (*id, datagram.to_vec());
                let sent = stack.look(move |stack, _| {
                    let sent = stack.udp_send(id, None, own.len(), |room| {
                        room.copy_from_slice(&own);
                    });
                    stack.flush();
                    at_once(sent)
                });
                sent.unwrap_or_else(|| Err(gone())).map(|_| ())
            }
        }
    }

    /// Receives a datagram, or pending bytes of a stream, without waiting.
    ///
    /// # Errors
    /// Error of the socket; `WouldBlock` if nothing is pending.
    pub fn receive(&self, room: &mut [u8]) -> io::Result<usize> {
        let (stack, id) = match self {
            Self::Kernel(socket) => return receive(socket, room, Flags::DONT_WAIT),
            Self::Stack(stack, id) => (stack, *id),
        };
        let most = room.len();
        let came = stack.look(move |stack, _| {
            at_once(match id.kind() {
                SocketKind::Udp => stack.udp_receive(id, |bytes, _| front(bytes, most)),
                _ => stack.tcp_receive(id, |bytes| {
                    let front = front(bytes, most);
                    (front.len(), front)
                }),
            })
        });
        let came = came.unwrap_or_else(|| Err(gone()))?;
        room[..came.len()].copy_from_slice(&came);
        Ok(came.len())
    }

    /// Copies the start of the next datagram without removing it, and returns its sender.
    ///
    /// # Errors
    /// Error of the socket; `WouldBlock` if nothing is pending.
    pub fn peek(&self, room: &mut [u8]) -> io::Result<(usize, Option<SocketAddr>)> {
        match self {
            Self::Kernel(socket) => {
                let bytes = receive(socket, room, Flags::DONT_WAIT.and(Flags::PEEK))?;
                Ok((bytes, socket.peek_sender()?.as_socket()))
            }
            Self::Stack(stack, id) => {
                let (id, most) = (*id, room.len());
                let seen = on(stack, move |stack| {
                    stack.udp_peek(id, |bytes, from| (front(bytes, most), from))
                })?;
                let (seen, from) = seen.ok_or(io::ErrorKind::WouldBlock)?;
                room[..seen.len()].copy_from_slice(&seen);
                Ok((seen.len(), Some(from)))
            }
        }
    }

    /// Connects to a peer: datagrams of others are dropped from now on.
    ///
    /// # Errors
    /// If there is no route to it.
    pub fn keep_to(&self, peer: SocketAddr) -> io::Result<()> {
        match self {
            Self::Kernel(socket) => socket.connect(&SockAddr::from(peer)),
            Self::Stack(stack, id) => {
                let id = *id;
                on(stack, move |stack| stack.udp_connect(id, peer))
            }
        }
    }

    /// Waits until something can be read or accepted; false at the timeout.
    ///
    /// # Errors
    /// Error of the socket.
    pub fn wait(&self, time: Duration) -> io::Result<bool> {
        let (stack, id) = match self {
            Self::Kernel(socket) => return poll(socket, Ready::Receive, time),
            Self::Stack(stack, id) => (stack, *id),
        };
        if id.kind() == SocketKind::Listener {
            // The stack has no count of pending connections, so the caller tries to accept.
            std::thread::sleep(LOOK.min(time));
            return Ok(true);
        }
        let until = clock::now() + u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        loop {
            let has = stack.look(move |stack, _| has_something(stack, id));
            if has.unwrap_or_else(|| Err(gone()))? {
                return Ok(true);
            }
            if clock::now() >= until {
                return Ok(false);
            }
            std::thread::sleep(LOOK);
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
            Self::Stack(stack, id) => {
                let id = *id;
                let came = stack.look(move |stack, _| {
                    let socket = at_once(stack.tcp_accept(id))?;
                    let from = stack.remote(socket).map_err(stack_error)?;
                    Ok((socket, from.ok_or(io::ErrorKind::NotConnected)?))
                });
                let (socket, from) = came.unwrap_or_else(|| Err(gone()))?;
                Ok((Self::Stack(stack.clone(), socket), from))
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
            Self::Kernel(socket) => Ok(unacknowledged(socket)?.saturating_sub(u64::from(finished))),
            Self::Stack(stack, id) => {
                let id = *id;
                on(stack, move |stack| Ok(stack.tcp_queued(id)?.0 as u64))
            }
        }
    }

    /// Returns the time since the last acknowledgement, 0 if unknown.
    pub fn since_acknowledgement(&self) -> Nanos {
        let Self::Kernel(socket) = self else {
            return 0;
        };
        tcp_info(socket).map_or(0, |info| {
            u64::from(info.since_acknowledgement_ms) * 1_000_000
        })
    }

    /// Returns whether a connection is still established.
    pub fn stands(&self) -> bool {
        match self {
            Self::Kernel(socket) => socket.peer_addr().is_ok(),
            Self::Stack(stack, id) => {
                let id = *id;
                let state = on(stack, move |stack| stack.tcp_state(id));
                state.is_ok_and(|state| state != TcpState::Closed)
            }
        }
    }

    /// Closes a stream in both directions; on the user-space stack, all receiving ones.
    pub fn cut(&self) {
        match self {
            Self::Kernel(socket) => drop(socket.shutdown(Shutdown::Both)),
            Self::Stack(stack, _) => stack.cut(),
        }
    }

    /// Makes a datagram socket reject all further datagrams.
    pub fn deafen(&self) {
        match self {
            Self::Kernel(socket) => {
                if let Ok(own) = socket.local_addr() {
                    // A flow that cannot be stopped this way ends at its time.
                    let _ = socket.connect(&own);
                }
            }
            Self::Stack(stack, id) => {
                let id = *id;
                // The new peer address never sends.
                let _ = on(stack, move |stack| match stack.remote(id)? {
                    Some(peer) => stack.udp_connect(id, SocketAddr::new(peer.ip(), 0)),
                    None => Ok(()),
                });
            }
        }
    }
}

fn front(bytes: &[u8], most: usize) -> Vec<u8> {
    bytes[..bytes.len().min(most)].to_vec()
}

/// Listens on a free port of the stack.
fn listen_anywhere(stack: &mut Stack, address: IpAddr) -> Result<SocketId, StackError> {
    // Dynamic ports (RFC 6335).
    const DYNAMIC: std::ops::RangeInclusive<u16> = 49_152..=u16::MAX;
    const TRIES: usize = 64;
    for _ in 0..TRIES {
        let local = SocketAddr::new(address, fastrand::u16(DYNAMIC));
        match stack.tcp_listen(local, 1) {
            Err(StackError::PortTaken { .. }) => {}
            done => return done,
        }
    }
    Err(StackError::PortTaken { port: 0 })
}

/// Returns whether a socket has pending data, or an error.
fn has_something(stack: &mut Stack, id: SocketId) -> io::Result<bool> {
    match id.kind() {
        SocketKind::Udp => {
            if stack.udp_waiting(id).map_err(stack_error)? > 0 {
                return Ok(true);
            }
            // No datagram is pending, so only an error can be returned.
            match stack.udp_receive(id, |_, _| ()) {
                Poll::Ready(Err(error)) => Err(stack_error(error)),
                _ => Ok(false),
            }
        }
        SocketKind::Tcp => {
            let (_, came) = stack.tcp_queued(id).map_err(stack_error)?;
            let open = matches!(
                stack.tcp_state(id),
                Ok(TcpState::Opening | TcpState::Established | TcpState::Finished)
            );
            Ok(came > 0 || !open)
        }
        SocketKind::Listener => Ok(true),
    }
}

#[cfg(test)]
mod tests {
    use linerate_metric::plan::{Kind, Plan};
    use linerate_metric::stack::StackPlan;

    use super::*;
    use crate::flow::Part;
    use crate::netstack::StackThread;
    use crate::netstack::services::Front;
    use crate::session::setup::flow_options;

    /// Starts a stack with one socket of a kind, on a link without a peer.
    fn alone(sockets: &str) -> StackThread {
        let plan = StackPlan {
            device: "null:".to_owned(),
            addresses: vec!["10.9.0.2/24".to_owned()],
            profile: "default".to_owned(),
            configuration: [(sockets, "1"), ("poll.interval", "1ms")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            ..StackPlan::default()
        };
        StackThread::start(&plan, Vec::new(), Front::default()).unwrap()
    }

    /// An aborted connect gives back the only socket.
    #[test]
    fn a_connection_that_did_not_come_to_stand_leaves_its_place() {
        let stack = alone("sockets.tcp");
        let flow = Plan::new(Kind::Throughput, Protocol::Tcp, "10.9.0.1");
        let options = flow_options(&flow, Part::Source);
        let far = "10.9.0.1:7".parse().unwrap();
        for _ in 0..3 {
            let stop = AtomicBool::new(true);
            let tried = FlowSocket::connect(Some(stack.handle()), far, &options, &stop);
            let error = tried.err().expect("no peer replies");
            assert_eq!(error.kind(), io::ErrorKind::Interrupted, "{error}");
            // The socket is free once its reset was sent, or had no route.
            let begin = clock::now();
            let used = || stack.handle().look(|stack, _| stack.connections());
            while used() != Some(0) {
                assert!(clock::now() < begin + 20_000_000_000, "it is never free");
                std::thread::sleep(LOOK);
            }
        }
    }

    /// A socket that finds no route is given back.
    #[test]
    fn a_socket_that_could_not_be_connected_is_closed() {
        let stack = alone("sockets.udp");
        let flow = Plan::new(Kind::Throughput, Protocol::Udp, "10.9.0.1");
        let options = flow_options(&flow, Part::Source);
        let connect = |far: &str| {
            let far = far.parse().unwrap();
            let stop = AtomicBool::new(false);
            FlowSocket::connect(Some(stack.handle()), far, &options, &stop)
        };
        assert!(connect("10.8.0.1:7").is_err(), "there is no way there");
        assert!(
            connect("10.9.0.1:7").is_ok(),
            "its place was not given back"
        );
    }
}
