//! The kernel's own stack behind its sockets.

use std::io;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::task::Poll;
use std::time::Duration;

use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::socket::{self, Flags};
use linerate_metric::plan::{Protocol, Wait};
use linerate_metric::record::{Socket as SocketFacts, TcpState};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use super::{Capabilities, FlowOptions, Meta, Transport};

/// Longest time a flow may take to open: two retransmitted SYNs (1 s + 2 s) and some.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// Below this a departure is waited for awake: a sleep ends up to 70 us late on a halting core.
const AWAKE_NS: Nanos = 150_000;

/// How calls on sockets wait.
pub trait Waiting {
    /// Flags of every call.
    const FLAGS: Flags;
    /// The name of it.
    const WAIT: Wait;
}

/// Calls sleep until they can go on.
pub struct Block;
/// Calls return at once.
pub struct Spin;

impl Waiting for Block {
    const FLAGS: Flags = Flags::NONE;
    const WAIT: Wait = Wait::Block;
}

impl Waiting for Spin {
    const FLAGS: Flags = Flags::DONT_WAIT;
    const WAIT: Wait = Wait::Spin;
}

/// Kernel sockets of one thread.
pub struct Kernel<W> {
    sockets: Vec<Option<Socket>>,
    outgoing: Buffer,
    incoming: Buffer,
    waiting: PhantomData<W>,
}

/// Names a socket of a [`Kernel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Index(usize);

/// A page-aligned buffer: an unaligned one costs the kernel's copy a few percent.
struct Buffer {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl Buffer {
    fn new(length: usize) -> Self {
        const PAGE: usize = 4096;
        // Not zero: never-written pages would all map the one zero page and flatter the copy.
        let memory = vec![0xa5; length + PAGE];
        let start = memory.as_ptr().align_offset(PAGE).min(PAGE);
        Self {
            memory,
            start,
            length,
        }
    }

    #[inline]
    fn front(&mut self, bytes: usize) -> &mut [u8] {
        let bytes = bytes.min(self.length);
        &mut self.memory[self.start..self.start + bytes]
    }
}

impl<W: Waiting> Kernel<W> {
    /// A transport without sockets, with room for calls of `send_bytes` and `receive_bytes`.
    #[must_use]
    pub fn new(send_bytes: usize, receive_bytes: usize) -> Self {
        Self {
            sockets: Vec::new(),
            outgoing: Buffer::new(send_bytes),
            incoming: Buffer::new(receive_bytes),
            waiting: PhantomData,
        }
    }

    /// Takes over a connected socket that somebody else opened or accepted.
    ///
    /// # Errors
    /// When one of the options is refused.
    pub fn adopt(&mut self, fd: OwnedFd, options: &FlowOptions) -> io::Result<Index> {
        let socket = Socket::from(fd);
        // Blocking mode throughout: calls that must not wait say so themselves (MSG_DONTWAIT).
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(options.patience))?;
        socket.set_write_timeout(Some(options.patience))?;
        apply(&socket, options)?;
        Ok(self.keep(socket))
    }

    /// A handle for a thread that looks on.
    ///
    /// # Errors
    /// When the process has no file descriptor left.
    pub fn watch(&self, socket: Index) -> io::Result<Watch> {
        let socket = self.sockets[socket.0].as_ref();
        let socket = socket.expect("a workload does not use a socket that it closed");
        Ok(Watch(socket::watch(socket)?))
    }

    fn keep(&mut self, socket: Socket) -> Index {
        self.sockets.push(Some(socket));
        Index(self.sockets.len() - 1)
    }

    #[inline]
    fn socket(&self, index: Index) -> SockRef<'_> {
        let socket = self.sockets[index.0].as_ref();
        SockRef::from(socket.expect("a workload does not use a socket that it closed"))
    }
}

/// Looks at a socket that another thread uses.
pub struct Watch(OwnedFd);

impl Watch {
    /// The kernel's view of the connection; `None` for what is not TCP.
    #[must_use]
    pub fn tcp(&self) -> Option<socket::TcpInfo> {
        socket::tcp_info(&self.0).ok()
    }
}

fn apply(socket: &Socket, options: &FlowOptions) -> io::Result<()> {
    if let Some(bytes) = options.window_bytes {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        socket.set_send_buffer_size(bytes)?;
        socket.set_recv_buffer_size(bytes)?;
    }
    if options.protocol == Protocol::Tcp {
        if let Some(name) = &options.congestion_control {
            socket.set_tcp_congestion(name.as_bytes())?;
        }
        if options.no_delay {
            socket.set_tcp_nodelay(true)?;
        }
    }
    Ok(())
}

/// What a call came to: done, not now, or broken.
#[inline]
fn poll<R>(result: io::Result<R>) -> Poll<io::Result<R>> {
    match result {
        Err(error) => match error.kind() {
            // A signal is as good a reason to look up as a time-out.
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Poll::Pending,
            // The interface's queue is full: the same as a full socket, only later.
            _ if error.raw_os_error() == Some(ENOBUFS) => Poll::Pending,
            _ => Poll::Ready(Err(error)),
        },
        done => Poll::Ready(done),
    }
}

/// "No buffer space available"; std has no kind for it.
const ENOBUFS: i32 = 105;

impl<W: Waiting> Transport for Kernel<W> {
    type Socket = Index;

    #[inline]
    fn turn(&mut self) {}

    #[inline]
    fn now(&self) -> Nanos {
        clock::now()
    }

    #[inline]
    fn idle(&mut self, until: Option<Nanos>) {
        // For a socket, the call itself has waited, or the run is to spin.
        let Some(until) = until else { return };
        if until > clock::now() + AWAKE_NS {
            clock::sleep_until(until - AWAKE_NS);
        }
    }

    fn connect(&mut self, remote: SocketAddr, options: &FlowOptions) -> io::Result<Index> {
        let kind = match options.protocol {
            Protocol::Tcp => Type::STREAM,
            Protocol::Udp => Type::DGRAM,
        };
        let socket = Socket::new(Domain::for_address(remote), kind, None)?;
        if let Some(interface) = &options.interface {
            socket.bind_device(Some(interface.as_bytes()))?;
        }
        // Before connecting: the window scale is settled by the handshake.
        apply(&socket, options)?;
        if let Some(local) = options.local {
            socket.set_reuse_address(true)?;
            socket.bind(&SockAddr::from(local))?;
        }
        socket.connect_timeout(&SockAddr::from(remote), CONNECT_PATIENCE)?;
        socket.set_read_timeout(Some(options.patience))?;
        socket.set_write_timeout(Some(options.patience))?;
        Ok(self.keep(socket))
    }

    #[inline]
    fn udp_send(
        &mut self,
        socket: Index,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Poll<io::Result<usize>> {
        self.tcp_send(socket, bytes, fill)
    }

    #[inline]
    fn udp_receive<R>(
        &mut self,
        socket: Index,
        take: impl FnOnce(&[u8], Meta) -> R,
    ) -> Poll<io::Result<R>> {
        let room = self.incoming.length;
        self.tcp_receive(socket, room, |payload| take(payload, Meta::default()))
    }

    #[inline]
    fn tcp_send(
        &mut self,
        socket: Index,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Poll<io::Result<usize>> {
        let payload = self.outgoing.front(bytes);
        fill(payload);
        let socket = self.sockets[socket.0].as_ref();
        let socket = socket.expect("a workload does not use a socket that it closed");
        poll(socket::send(socket, payload, W::FLAGS))
    }

    #[inline]
    fn tcp_receive<R>(
        &mut self,
        socket: Index,
        room: usize,
        take: impl FnOnce(&[u8]) -> R,
    ) -> Poll<io::Result<R>> {
        let socket = self.sockets[socket.0].as_ref();
        let socket = socket.expect("a workload does not use a socket that it closed");
        let room = self.incoming.front(room);
        poll(socket::receive(socket, room, W::FLAGS)).map_ok(|bytes| take(&room[..bytes]))
    }

    fn finish_sending(&mut self, socket: Index) -> io::Result<()> {
        self.socket(socket).shutdown(std::net::Shutdown::Write)
    }

    fn close(&mut self, socket: Index) {
        self.sockets[socket.0] = None;
    }

    fn facts(&self, socket: Index) -> SocketFacts {
        let socket = self.socket(socket);
        let address = |address: io::Result<SockAddr>| {
            let address = address.ok()?.as_socket()?;
            Some(SocketAddr::new(address.ip().to_canonical(), address.port()).to_string())
        };
        let size = |bytes: io::Result<usize>| bytes.ok().map(|bytes| bytes as u64);
        let is_stream = socket.r#type().ok() == Some(Type::STREAM);
        SocketFacts {
            local: address(socket.local_addr()),
            remote: address(socket.peer_addr()),
            send_buffer_bytes: size(socket.send_buffer_size()),
            receive_buffer_bytes: size(socket.recv_buffer_size()),
            congestion_control: is_stream.then(|| congestion_control(&socket)).flatten(),
            receive_queue_drops: (!is_stream)
                .then(|| socket::receive_queue_drops(&socket.as_fd()).ok())
                .flatten()
                .map(u64::from),
            tcp: socket::tcp_info(&socket.as_fd()).ok().map(tcp_state),
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            sleeps_in_calls: W::WAIT == Wait::Block,
        }
    }
}

/// The congestion control that a socket uses.
pub(crate) fn congestion_control(socket: &SockRef<'_>) -> Option<String> {
    let name = socket.tcp_congestion().ok()?;
    let name = String::from_utf8_lossy(&name);
    let name = name.trim_end_matches('\0');
    (!name.is_empty()).then(|| name.to_owned())
}

fn tcp_state(info: socket::TcpInfo) -> TcpState {
    const US: u64 = 1_000;
    TcpState {
        retransmits: u64::from(info.retransmits),
        cwnd_segments: u64::from(info.cwnd),
        mss_bytes: u64::from(info.mss),
        path_mtu_bytes: u64::from(info.path_mtu),
        rtt_ns: u64::from(info.rtt_us) * US,
        rtt_variation_ns: u64::from(info.rtt_variation_us) * US,
        min_rtt_ns: info.min_rtt_us.map(|rtt| u64::from(rtt) * US),
        delivery_rate_bps: info.delivery_rate.map(|rate| rate.saturating_mul(8)),
        busy_ns: info.busy_us.map(|time| time.saturating_mul(US)),
        receive_window_limited_ns: info
            .receive_window_limited_us
            .map(|time| time.saturating_mul(US)),
        send_buffer_limited_ns: info
            .send_buffer_limited_us
            .map(|time| time.saturating_mul(US)),
    }
}
