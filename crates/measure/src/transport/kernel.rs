//! The kernel's own stack behind its sockets.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::task;
use std::time::Duration;

use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::socket::{self, Flags};
use linerate_host::sys::wait::{self, Ready};
use linerate_metric::plan::{Protocol, Wait};
use linerate_metric::record::{Socket as SocketFacts, TcpState};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use super::{Capabilities, FlowOptions, Meta, Transport};

/// Longest time a flow may take to open: two retransmitted SYNs (1 s + 2 s) and some.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// Below this a departure is waited for awake: a sleep ends up to 70 us late on a halting core.
const AWAKE_NS: Nanos = 150_000;

/// Longest sleep for any of several sockets: how soon a stop is noticed.
const IDLE_PATIENCE: Duration = Duration::from_millis(100);

/// How calls on sockets wait.
pub trait Waiting: Sized {
    /// Flags of every call.
    const FLAGS: Flags;
    /// Whether a call, or what goes before it, sleeps until its one socket can go on.
    const SLEEPS_IN_CALLS: bool;
    /// Whether a thread may sleep until a departure is due.
    const SLEEPS: bool = true;
    /// How often an empty receive queue is looked at before the workload is told.
    const LOOKS: usize = 1;

    /// Gets ready to wait.
    ///
    /// # Errors
    /// When the process has no file descriptor left.
    fn new(wait: Wait) -> io::Result<Self>;

    /// Sleeps until there is something to receive; false when nothing came in time.
    #[inline]
    fn before_receive(&mut self, _socket: &Socket, _patience: Duration) -> io::Result<bool> {
        Ok(true)
    }

    /// Sleeps until there may be room to send again.
    #[inline]
    fn no_room(&mut self, _socket: &Socket, _patience: Duration) -> io::Result<()> {
        Ok(())
    }

    /// Notes that a socket could not go on.
    #[inline]
    fn starved(&mut self, _index: usize, _socket: &Socket, _ready: Ready) -> io::Result<()> {
        Ok(())
    }

    /// Sleeps until any socket can go on.
    #[inline]
    fn idle(&mut self, _patience: Duration) {}

    /// Does not wait for a socket any more.
    fn forget(&mut self, _index: usize, _socket: &Socket) {}
}

/// Calls sleep until they can go on.
pub struct Block;
/// Calls return at once.
pub struct Spin;
/// `poll` sleeps before each receive call.
pub struct Poll;
/// `select` sleeps before each receive call.
pub struct Select {
    timeout: Option<Duration>,
}
/// `epoll_wait` sleeps when no socket could go on.
pub struct Epoll {
    instance: wait::Epoll,
    /// What each socket is watched for.
    watched: Vec<Option<Ready>>,
}

impl Waiting for Block {
    const FLAGS: Flags = Flags::NONE;
    const SLEEPS_IN_CALLS: bool = true;

    fn new(_: Wait) -> io::Result<Self> {
        Ok(Self)
    }
}

impl Waiting for Spin {
    const FLAGS: Flags = Flags::DONT_WAIT;
    const SLEEPS_IN_CALLS: bool = false;
    const SLEEPS: bool = false;
    // A dozen microseconds: what the workload does between two looks is no longer seen in the
    // round trip, and a stop is still noticed at once.
    const LOOKS: usize = 64;

    fn new(_: Wait) -> io::Result<Self> {
        Ok(Self)
    }
}

impl Waiting for Poll {
    const FLAGS: Flags = Flags::DONT_WAIT;
    const SLEEPS_IN_CALLS: bool = true;

    fn new(_: Wait) -> io::Result<Self> {
        Ok(Self)
    }

    #[inline]
    fn before_receive(&mut self, socket: &Socket, patience: Duration) -> io::Result<bool> {
        wait::poll(socket, Ready::Receive, patience)
    }

    fn no_room(&mut self, socket: &Socket, patience: Duration) -> io::Result<()> {
        wait::poll(socket, Ready::Send, patience).map(|_| ())
    }
}

impl Waiting for Select {
    const FLAGS: Flags = Flags::DONT_WAIT;
    const SLEEPS_IN_CALLS: bool = true;

    fn new(wait: Wait) -> io::Result<Self> {
        let timeout = match wait {
            // A stop has to be noticed, whatever the time-out.
            Wait::Select { timeout_ns } => timeout_ns.map(Duration::from_nanos),
            _ => None,
        };
        Ok(Self {
            timeout: timeout.map(|timeout| timeout.min(IDLE_PATIENCE)),
        })
    }

    #[inline]
    fn before_receive(&mut self, socket: &Socket, patience: Duration) -> io::Result<bool> {
        wait::select(socket, Ready::Receive, self.timeout.unwrap_or(patience))
    }

    fn no_room(&mut self, socket: &Socket, patience: Duration) -> io::Result<()> {
        let patience = self.timeout.unwrap_or(patience);
        wait::select(socket, Ready::Send, patience).map(|_| ())
    }
}

impl Waiting for Epoll {
    const FLAGS: Flags = Flags::DONT_WAIT;
    const SLEEPS_IN_CALLS: bool = false;

    fn new(_: Wait) -> io::Result<Self> {
        Ok(Self {
            instance: wait::Epoll::new()?,
            watched: Vec::new(),
        })
    }

    #[inline]
    fn starved(&mut self, index: usize, socket: &Socket, ready: Ready) -> io::Result<()> {
        if self.watched.len() <= index {
            self.watched.resize(index + 1, None);
        }
        let watched = &mut self.watched[index];
        if *watched != Some(ready) {
            self.instance.watch(socket, ready, watched.is_some())?;
            *watched = Some(ready);
        }
        Ok(())
    }

    #[inline]
    fn idle(&mut self, patience: Duration) {
        // A failure shows at the next call on the socket.
        let _ = self.instance.wait(patience);
    }

    fn forget(&mut self, index: usize, socket: &Socket) {
        if let Some(watched) = self.watched.get_mut(index)
            && watched.take().is_some()
        {
            // Not watched is what was wanted, whatever the reason.
            let _ = self.instance.forget(socket);
        }
    }
}

/// Kernel sockets of one thread.
pub struct Kernel<W> {
    sockets: Vec<Option<Entry>>,
    outgoing: Buffer,
    incoming: Buffer,
    waiting: W,
}

/// A socket and what its calls need to know.
struct Entry {
    socket: Socket,
    patience: Duration,
    /// Datagrams that one send call may hold; 1 without UDP GSO.
    datagrams: usize,
    /// The size that the kernel is to cut at, until it has been told: the opening of a flow is
    /// larger than a small datagram and must leave whole.
    to_segment: Option<u16>,
    /// Whether a receive call may give several datagrams.
    coalesces: bool,
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
    ///
    /// # Errors
    /// When the process has no file descriptor left.
    pub fn new(wait: Wait, send_bytes: usize, receive_bytes: usize) -> io::Result<Self> {
        Ok(Self {
            sockets: Vec::new(),
            outgoing: Buffer::new(send_bytes),
            incoming: Buffer::new(receive_bytes),
            waiting: W::new(wait)?,
        })
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
        self.keep(socket, options)
    }

    /// A handle for a thread that looks on.
    ///
    /// # Errors
    /// When the process has no file descriptor left.
    pub fn watch(&self, socket: Index) -> io::Result<Watch> {
        Ok(Watch(socket::watch(&self.entry(socket).socket)?))
    }

    /// Lets a blocking receive call sleep until something comes: somebody wakes the thread.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn sleep_without_limit(&mut self, socket: Index) -> io::Result<()> {
        self.entry(socket).socket.set_read_timeout(None)
    }

    fn keep(&mut self, socket: Socket, options: &FlowOptions) -> io::Result<Index> {
        if options.coalesce {
            socket::set_udp_coalescing(&socket)?;
        }
        self.sockets.push(Some(Entry {
            socket,
            patience: options.patience,
            datagrams: match options.segment_bytes {
                Some(_) => SEGMENT_LIMITS[0],
                None => 1,
            },
            to_segment: options.segment_bytes,
            coalesces: options.coalesce,
        }));
        Ok(Index(self.sockets.len() - 1))
    }

    #[inline]
    fn entry(&self, index: Index) -> &Entry {
        self.sockets[index.0].as_ref().expect(OPEN)
    }
}

/// Why a socket is there.
const OPEN: &str = "a workload does not use a socket that it closed";

/// Datagrams that a GSO send may hold: Linux 6.9 on, before, and where a device cannot finish
/// their checksums.
const SEGMENT_LIMITS: [usize; 3] = [128, 64, 1];

/// Largest payload of one UDP send call, cut or not.
const UDP_CALL_BYTES: usize = 65_507;

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
    let asked = &options.socket;
    let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    if let Some(bytes) = asked.send_buffer_bytes {
        socket.set_send_buffer_size(size(bytes))?;
    }
    if let Some(bytes) = asked.receive_buffer_bytes {
        socket.set_recv_buffer_size(size(bytes))?;
    }
    if let Some(tos) = asked.tos.map(u32::from) {
        if socket.domain()? == Domain::IPV6 {
            socket.set_tclass_v6(tos)?;
            // For IPv4 peers of such a socket; where it has none, there is nothing to mark.
            let _ = socket.set_tos_v4(tos);
        } else {
            socket.set_tos_v4(tos)?;
        }
    }
    if let Some(priority) = asked.priority {
        socket.set_priority(priority)?;
    }
    if let Some(bytes) = asked.receive_low_water_bytes {
        socket::set_receive_low_water(socket, bytes)?;
    }
    if options.protocol == Protocol::Tcp {
        if let Some(name) = &options.congestion_control {
            socket.set_tcp_congestion(name.as_bytes())?;
        }
        if asked.no_delay {
            socket.set_tcp_nodelay(true)?;
        }
    }
    Ok(())
}

/// What a call came to: done, not now, or broken.
#[inline]
fn outcome<R>(result: io::Result<R>) -> task::Poll<io::Result<R>> {
    match result {
        Err(error) => match error.kind() {
            // A signal is as good a reason to look up as a time-out.
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => task::Poll::Pending,
            // The interface's queue is full: the same as a full socket, only later.
            _ if error.raw_os_error() == Some(ENOBUFS) => task::Poll::Pending,
            // UDP only, TCP does not say this of a standing connection: the other end has closed
            // its socket, as it does when its part is over. The control connection knows more.
            io::ErrorKind::ConnectionRefused => task::Poll::Pending,
            _ => task::Poll::Ready(Err(error)),
        },
        done => task::Poll::Ready(done),
    }
}

/// "No buffer space available"; std has no kind for it.
const ENOBUFS: i32 = 105;

/// "Input/output error": the device cannot finish the checksums of what it would cut.
const EIO: i32 = 5;

/// "Invalid argument": more datagrams in a call than this kernel takes.
const EINVAL: i32 = 22;

impl<W: Waiting> Kernel<W> {
    #[inline]
    fn send(
        &mut self,
        index: Index,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> task::Poll<io::Result<usize>> {
        let payload = self.outgoing.front(bytes);
        fill(payload);
        let entry = self.sockets[index.0].as_ref().expect(OPEN);
        let sent = outcome(socket::send(&entry.socket, payload, W::FLAGS));
        if sent.is_pending()
            && let Err(error) = self
                .waiting
                .no_room(&entry.socket, entry.patience)
                .and_then(|()| self.waiting.starved(index.0, &entry.socket, Ready::Send))
        {
            return task::Poll::Ready(Err(error));
        }
        sent
    }

    /// One receive call; gives the bytes that it wrote to the front of the room, and the size of each
    /// datagram where several came as one.
    #[inline]
    fn receive(
        &mut self,
        index: Index,
        room: usize,
        call: impl Fn(&Socket, &mut [u8]) -> io::Result<(usize, Option<u16>)>,
    ) -> task::Poll<io::Result<(usize, Option<u16>)>> {
        let entry = self.sockets[index.0].as_ref().expect(OPEN);
        match self.waiting.before_receive(&entry.socket, entry.patience) {
            Ok(true) => {}
            Ok(false) => return task::Poll::Pending,
            Err(error) => return task::Poll::Ready(Err(error)),
        }
        // Several sockets take turns, so none is looked at for long.
        let looks = if self.sockets.len() == 1 { W::LOOKS } else { 1 };
        let room = self.incoming.front(room);
        let mut received = outcome(call(&entry.socket, room));
        for _ in 1..looks {
            if received.is_ready() {
                break;
            }
            received = outcome(call(&entry.socket, room));
        }
        if received.is_pending()
            && let Err(error) = self.waiting.starved(index.0, &entry.socket, Ready::Receive)
        {
            return task::Poll::Ready(Err(error));
        }
        received
    }
}

/// The plain receive call.
#[inline]
fn plain<W: Waiting>(socket: &Socket, room: &mut [u8]) -> io::Result<(usize, Option<u16>)> {
    socket::receive(socket, room, W::FLAGS).map(|bytes| (bytes, None))
}

impl<W: Waiting> Transport for Kernel<W> {
    type Socket = Index;

    #[inline]
    fn turn(&mut self) {}

    #[inline]
    fn now(&self) -> Nanos {
        clock::now()
    }

    #[inline]
    fn clock() -> Nanos {
        clock::now()
    }

    #[inline]
    fn idle(&mut self, until: Option<Nanos>) {
        let Some(until) = until else {
            self.waiting.idle(IDLE_PATIENCE);
            return;
        };
        if W::SLEEPS && until > clock::now() + AWAKE_NS {
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
        // Before connecting: window scale and segment size are settled by the handshake.
        apply(&socket, options)?;
        if let (Protocol::Tcp, Some(bytes)) = (options.protocol, options.socket.mss_bytes) {
            socket.set_tcp_mss(bytes)?;
        }
        if let Some(local) = options.local {
            socket.set_reuse_address(true)?;
            socket.bind(&SockAddr::from(local))?;
        }
        socket.connect_timeout(&SockAddr::from(remote), CONNECT_PATIENCE)?;
        socket.set_read_timeout(Some(options.patience))?;
        socket.set_write_timeout(Some(options.patience))?;
        self.keep(socket, options)
    }

    #[inline]
    fn udp_send(
        &mut self,
        socket: Index,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> task::Poll<io::Result<usize>> {
        self.send(socket, bytes, fill)
    }

    #[inline]
    fn udp_receive<R>(
        &mut self,
        socket: Index,
        take: impl FnOnce(&[u8], Meta) -> R,
    ) -> task::Poll<io::Result<R>> {
        let room = self.incoming.length;
        let received = self.receive(socket, room, plain::<W>);
        received.map_ok(|(bytes, _)| take(self.incoming.front(bytes), Meta::default()))
    }

    #[inline]
    fn burst(&self, socket: Index, bytes: usize) -> usize {
        let fits = UDP_CALL_BYTES / bytes.max(1);
        self.entry(socket).datagrams.min(fits).max(1)
    }

    #[inline]
    fn udp_send_burst(
        &mut self,
        socket: Index,
        bytes: usize,
        count: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> task::Poll<io::Result<usize>> {
        let entry = self.sockets[socket.0].as_mut().expect(OPEN);
        if let Some(bytes) = entry.to_segment.take()
            && let Err(error) = socket::set_udp_segment(&entry.socket, bytes)
        {
            return task::Poll::Ready(Err(error));
        }
        let sent = self.send(socket, bytes * count, |payload| {
            for (number, datagram) in payload.chunks_mut(bytes).enumerate() {
                fill(number, datagram);
            }
        });
        match sent {
            task::Poll::Ready(Err(error))
                if count > 1 && matches!(error.raw_os_error(), Some(EINVAL | EIO)) =>
            {
                let entry = self.sockets[socket.0].as_mut().expect(OPEN);
                let fewer = SEGMENT_LIMITS.into_iter().find(|&limit| limit < count);
                entry.datagrams = fewer.unwrap_or(1);
                task::Poll::Pending
            }
            sent => sent.map_ok(|sent| sent.div_ceil(bytes)),
        }
    }

    #[inline]
    fn udp_receive_burst(
        &mut self,
        socket: Index,
        mut take: impl FnMut(&[u8], Meta),
    ) -> task::Poll<io::Result<usize>> {
        if !self.entry(socket).coalesces {
            return self.udp_receive(socket, take).map_ok(|()| 1);
        }
        let room = self.incoming.length;
        let received = self.receive(socket, room, |socket, room| {
            socket::receive_segments(socket, room, W::FLAGS)
        });
        received.map_ok(|(bytes, segment)| {
            let meta = Meta {
                segment_bytes: segment,
                ..Meta::default()
            };
            let size = segment.map_or(bytes, usize::from).max(1);
            let mut count = 0;
            for datagram in self.incoming.front(bytes).chunks(size) {
                take(datagram, meta);
                count += 1;
            }
            count
        })
    }

    #[inline]
    fn tcp_send(
        &mut self,
        socket: Index,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> task::Poll<io::Result<usize>> {
        self.send(socket, bytes, fill)
    }

    #[inline]
    fn tcp_receive<R>(
        &mut self,
        socket: Index,
        room: usize,
        take: impl FnOnce(&[u8]) -> R,
    ) -> task::Poll<io::Result<R>> {
        let received = self.receive(socket, room, plain::<W>);
        received.map_ok(|(bytes, _)| take(self.incoming.front(bytes)))
    }

    fn finish_sending(&mut self, socket: Index) -> io::Result<()> {
        self.entry(socket)
            .socket
            .shutdown(std::net::Shutdown::Write)
    }

    fn release(&mut self, socket: Index) {
        let entry = self.sockets[socket.0].as_ref().expect(OPEN);
        self.waiting.forget(socket.0, &entry.socket);
    }

    fn facts(&self, socket: Index) -> SocketFacts {
        let entry = self.entry(socket);
        let socket = &entry.socket;
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
            congestion_control: is_stream
                .then(|| congestion_control(&SockRef::from(socket)))
                .flatten(),
            datagrams_per_call: (entry.datagrams > 1).then_some(entry.datagrams as u32),
            receive_queue_drops: (!is_stream)
                .then(|| socket::receive_queue_drops(socket).ok())
                .flatten()
                .map(u64::from),
            tcp: socket::tcp_info(socket).ok().map(tcp_state),
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            sleeps_in_calls: W::SLEEPS_IN_CALLS,
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
