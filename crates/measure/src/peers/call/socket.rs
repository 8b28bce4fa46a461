//! The socket of a flow as its dialect uses it, beside the thread that moves payload: the kernel's, or our
//! own stack's.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::Poll;
use std::time::Duration;

use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::socket::{Flags, receive, send, tcp_info, unacknowledged};
use linerate_host::sys::wait::{Ready, poll};
use linerate_metric::plan::Protocol;
use linerate_stack::{SocketId, SocketKind, Stack, StackError, TcpState};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::lane::Opening;
use crate::stack::{StackHandle, gone};
use crate::transport::{FlowOptions, open_socket, stack_error, why_closed};

/// How often our own stack is looked at while something of it is waited for.
const LOOK: Duration = Duration::from_millis(1);

/// How long a connection may take, and what is said may take to be taken.
const PATIENCE_NS: Nanos = 5_000_000_000;

/// A socket of a flow, or one on which a flow is waited for.
pub enum FlowSocket {
    /// The kernel's.
    Kernel(Socket),
    /// One of our own stack's.
    Stack(StackHandle, SocketId),
}

/// Any address of the family of another one.
fn anywhere(like: SocketAddr) -> IpAddr {
    match like {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Does something with a stack, in the thread that owns it.
fn on<R: Send + 'static>(
    stack: &StackHandle,
    work: impl FnOnce(&mut Stack) -> Result<R, StackError> + Send + 'static,
) -> io::Result<R> {
    let done = stack.look(move |stack, _| work(stack).map_err(stack_error));
    done.unwrap_or_else(|| Err(gone()))
}

/// The outcome of a call that does not wait.
fn at_once<R>(found: Poll<Result<R, StackError>>) -> io::Result<R> {
    match found {
        Poll::Ready(found) => found.map_err(stack_error),
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

impl FlowSocket {
    /// Opens one towards a far end; returns once it stands.
    ///
    /// # Errors
    /// Why it does not; `Interrupted` once `stop` is set.
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
        // It is opened for nobody: also one that was refused holds its place until it is given back.
        let _ = on(stack, move |stack| stack.abort(id));
        Err(failed)
    }

    /// Opens one of a stack for datagrams between these two.
    ///
    /// # Errors
    /// When the port is taken, the address is no own one, or there is no way.
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

    /// Gives back one of a stack that no flow takes; the kernel's goes with this.
    pub fn close(&self) {
        if let Self::Stack(stack, id) = self {
            let id = *id;
            // It may be gone already.
            let _ = on(stack, move |stack| stack.close(id));
        }
    }

    /// Opens one on which one far end is waited for.
    ///
    /// # Errors
    /// When the port is taken, or the address is no own one.
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
            // Before the connection stands: its window scale follows from it.
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

    /// The same socket for somebody else, too.
    ///
    /// # Errors
    /// When the process has no file descriptor left.
    pub fn copy(&self) -> io::Result<Self> {
        match self {
            Self::Kernel(socket) => socket.try_clone().map(Self::Kernel),
            Self::Stack(stack, id) => Ok(Self::Stack(stack.clone(), *id)),
        }
    }

    /// How a flow comes to it.
    pub fn opening(self) -> Opening {
        match self {
            Self::Kernel(socket) => Opening::Adopt(socket.into()),
            Self::Stack(_, id) => Opening::Take(id),
        }
    }

    /// Its own port.
    ///
    /// # Errors
    /// When it is gone.
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

    /// Says all of it on a stream.
    ///
    /// # Errors
    /// What the connection says; `TimedOut` when it takes nothing.
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

    /// Sends a datagram, once there is room for it.
    ///
    /// # Errors
    /// What the socket says.
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

    /// The same where there is room now.
    ///
    /// # Errors
    /// What the socket says; `WouldBlock` without room.
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

    /// Takes a datagram, or what a stream has, if there is any.
    ///
    /// # Errors
    /// What the socket says; `WouldBlock` when nothing is there.
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

    /// The beginning of the next datagram and who sent it, which stays where it is.
    ///
    /// # Errors
    /// What the socket says; `WouldBlock` when nothing is there.
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

    /// From now on only this peer's datagrams come in.
    ///
    /// # Errors
    /// When there is no way to it.
    pub fn keep_to(&self, peer: SocketAddr) -> io::Result<()> {
        match self {
            Self::Kernel(socket) => socket.connect(&SockAddr::from(peer)),
            Self::Stack(stack, id) => {
                let id = *id;
                on(stack, move |stack| stack.udp_connect(id, peer))
            }
        }
    }

    /// Whether something can be read, or a connection accepted, before the time is over.
    ///
    /// # Errors
    /// What the socket says.
    pub fn wait(&self, time: Duration) -> io::Result<bool> {
        let (stack, id) = match self {
            Self::Kernel(socket) => return poll(socket, Ready::Receive, time),
            Self::Stack(stack, id) => (stack, *id),
        };
        if id.kind() == SocketKind::Listener {
            // What waits there is counted nowhere: whoever asks tries.
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

    /// The next connection of one that listens.
    ///
    /// # Errors
    /// What the socket says; `WouldBlock` where there is none.
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

    /// Payload of a stream that was not acknowledged yet; `finished`: nothing more will be sent.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn unacknowledged(&self, finished: bool) -> io::Result<u64> {
        match self {
            // To the kernel the end of the stream is one byte more, and an idle receiver acknowledges it as
            // late as it closes: the payload is there before.
            Self::Kernel(socket) => Ok(unacknowledged(socket)?.saturating_sub(u64::from(finished))),
            Self::Stack(stack, id) => {
                let id = *id;
                on(stack, move |stack| Ok(stack.tcp_queued(id)?.0 as u64))
            }
        }
    }

    /// How long ago the last acknowledgement came at the most, as far as that is known.
    pub fn since_acknowledgement(&self) -> Nanos {
        let Self::Kernel(socket) = self else {
            return 0;
        };
        tcp_info(socket).map_or(0, |info| {
            u64::from(info.since_acknowledgement_ms) * 1_000_000
        })
    }

    /// Whether a connection still stands.
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

    /// Ends a stream both ways; on our own stack all that are received.
    pub fn cut(&self) {
        match self {
            Self::Kernel(socket) => drop(socket.shutdown(Shutdown::Both)),
            Self::Stack(stack, _) => stack.cut(),
        }
    }

    /// Nothing more comes to a socket of datagrams: whoever sends there is refused from now on.
    pub fn deafen(&self) {
        match self {
            Self::Kernel(socket) => {
                if let Ok(own) = socket.local_addr() {
                    // What cannot be cut off ends with its time.
                    let _ = socket.connect(&own);
                }
            }
            Self::Stack(stack, id) => {
                let id = *id;
                // The same: its only peer is one that never sends.
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

/// Listens on a port of the stack that nobody has.
fn listen_anywhere(stack: &mut Stack, address: IpAddr) -> Result<SocketId, StackError> {
    // Ports that no service is known by (RFC 6335).
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

/// Whether something waits at a socket; what went wrong there is something, too.
fn has_something(stack: &mut Stack, id: SocketId) -> io::Result<bool> {
    match id.kind() {
        SocketKind::Udp => {
            if stack.udp_waiting(id).map_err(stack_error)? > 0 {
                return Ok(true);
            }
            // Nothing is there to be taken: only a refusal can come of this.
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
    use crate::session::setup::flow_options;
    use crate::stack::StackThread;
    use crate::stack::services::Front;

    /// A stack that may have one socket of a kind, on a link on which nobody is.
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

    /// One that was opened for a connection that never stands is given back: it is the only one.
    #[test]
    fn a_connection_that_did_not_come_to_stand_leaves_its_place() {
        let stack = alone("sockets.tcp");
        let flow = Plan::new(Kind::Throughput, Protocol::Tcp, "10.9.0.1");
        let options = flow_options(&flow, Part::Source);
        let far = "10.9.0.1:7".parse().unwrap();
        for _ in 0..3 {
            let stop = AtomicBool::new(true);
            let tried = FlowSocket::connect(Some(stack.handle()), far, &options, &stop);
            let error = tried.err().expect("nobody is there");
            assert_eq!(error.kind(), io::ErrorKind::Interrupted, "{error}");
            // Its place is free once its last word has left, or found no way.
            let begin = clock::now();
            let used = || stack.handle().look(|stack, _| stack.connections());
            while used() != Some(0) {
                assert!(clock::now() < begin + 20_000_000_000, "it is never free");
                std::thread::sleep(LOOK);
            }
        }
    }

    /// One that was opened for a flow that has no way to go is given back.
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
