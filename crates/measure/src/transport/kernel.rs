//! Transport over kernel sockets.

mod buffer;
pub(crate) mod connect;
mod options;
mod socket_facts;
pub(super) mod socket_wait;
mod sockets;
mod syscall;
mod timestamping_device;
mod timestamps;
mod transfer;

pub use self::buffer::Buffer;
pub(crate) use self::socket_facts::congestion_control;
pub use self::socket_facts::{Watch, facts_of};
pub use self::syscall::{EINVAL, EIO, outcome};

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::task;
use std::time::Duration;

use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::datagram_batch::Messages;
use linerate_host::sys::pacing::{self, DepartureTimes};
use linerate_host::sys::packet_timestamps::{self, Bridge};
use linerate_host::sys::readiness::Ready;
use linerate_host::sys::socket::{self, Flags};
use linerate_host::sys::zerocopy::{self, Pipe};
use linerate_metric::plan::{Copies, LARGEST_DATAGRAM_BYTES, Protocol, ReceiveCopy, SendCopy};
use linerate_metric::record::Socket as SocketFacts;
use socket2::Socket;

pub use self::socket_wait::IDLE_PATIENCE;
pub use self::socket_wait::{Block, Epoll, Poll, Select, Spin, Waiting};
use self::sockets::Peer;
use self::syscall::{at_once, sending};
use self::timestamping_device::Device;
use self::transfer::Lies;
use super::call_times::{Call, CallTally, Recorder, Silent};
use super::copy_mode::{Way, ZeroCopySends, memory_file};
use super::{
    Adapter, Attempts, Capabilities, Departure, Echoed, FlowOptions, Meta, Setup, Transport,
};
use crate::flow::Timeline;

/// Longest time in which a flow may open: two retransmitted SYNs (1 s + 2 s) and a reserve.
pub(super) const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// Time before a departure during which the thread spins: a sleep ends up to 70 us late on a core
/// that halts.
pub const AWAKE_NS: Nanos = 150_000;

/// Kernel sockets of one thread; `R` records their calls.
pub struct Kernel<W, R = Silent> {
    sockets: Vec<Option<Entry>>,
    /// Slots of closed sockets.
    free: Vec<usize>,
    open: usize,
    outgoing: Buffer,
    incoming: Buffer,
    waiting: W,
    calls: R,
    /// For `sendmmsg` and `recvmmsg`: the message lists and the receive bytes of each datagram.
    batch: Option<(Messages, usize)>,
    copies: Copies,
    /// Source of `sendfile`, shared by all flows.
    file: Option<Arc<File>>,
    /// Payload bytes of a datagram, or of a stream's call.
    payload_bytes: usize,
    /// True from the start of the run. Before it, flow openings are sent and received with copies.
    started: bool,
    /// Converts timestamps to our clock, once they are enabled.
    bridge: Option<Bridge>,
    /// Clock of the interface, if it makes hardware timestamps.
    device: Option<Device>,
    attempts: Attempts,
}

/// A socket and the state that its calls need.
struct Entry {
    /// Shared with observers: the coordinator closes it, in the file table in which it was opened.
    socket: Arc<Socket>,
    patience: Duration,
    /// Datagrams that one send call may hold; 1 without UDP GSO.
    datagrams: usize,
    /// UDP GSO size to be set before the first burst. The opening of a flow is larger than a small
    /// datagram and must not be split.
    to_segment: Option<u16>,
    /// True if a receive call may return several datagrams (UDP GRO).
    coalesces: bool,
    /// Send path without a copy, if any.
    way: Option<Way>,
    /// True if a send on a full socket returns at once, however other calls wait.
    paced: bool,
    /// Departure times for the kernel (SO_TXTIME).
    departures: Option<DepartureTimes>,
    /// Peer of its datagrams.
    peer: Peer,
    /// Sends that failed because the remote port is closed (ECONNREFUSED).
    refusals: Arc<AtomicU32>,
    /// Sends that failed because a route, host or link was unreachable.
    unroutable: u32,
}

impl Entry {
    fn plain(socket: Socket, patience: Duration) -> Self {
        Self {
            socket: Arc::new(socket),
            patience,
            datagrams: 1,
            to_segment: None,
            coalesces: false,
            way: None,
            paced: false,
            departures: None,
            peer: Peer::Connected,
            refusals: Arc::default(),
            unroutable: 0,
        }
    }
}

/// Handle of a socket of a [`Kernel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Index(pub usize);

impl<W: Waiting, R: Recorder> Adapter for Kernel<W, R> {
    fn new(setup: &Setup) -> io::Result<Self> {
        let batch = setup.batch.map(|batch| {
            let room = setup.receive_bytes / batch.max(1);
            (Messages::new(batch), room)
        });
        let mut calls = vec![Call::SendTo, Call::RecvFrom];
        calls.extend(W::WAITS_WITH);
        Ok(Self {
            sockets: Vec::new(),
            free: Vec::new(),
            open: 0,
            outgoing: Buffer::new(setup.send_bytes),
            incoming: Buffer::new(setup.receive_bytes),
            waiting: W::new(setup.wait)?,
            calls: R::new(&calls),
            batch,
            copies: setup.copies,
            file: match setup.copies.send {
                SendCopy::SendFile => Some(Arc::new(memory_file(setup.send_bytes)?)),
                _ => None,
            },
            payload_bytes: setup.send_bytes,
            started: false,
            bridge: None,
            device: None,
            attempts: Attempts::default(),
        })
    }

    fn adopt(&mut self, fd: OwnedFd, options: &FlowOptions) -> io::Result<Index> {
        let socket = connect::take_over(fd, options, W::CALLS_SLEEP)?;
        self.keep(socket, options, Peer::adopted(options))
    }

    fn watch(&self, socket: Index) -> Option<Watch> {
        let entry = self.entry(socket);
        Some(Watch::of(&entry.socket).counting(&entry.refusals))
    }

    fn descriptors(&self) -> Option<Vec<RawFd>> {
        // Send paths without a copy use pipes and other files.
        let sockets_alone = W::SOCKETS_ALONE && self.copies.send == SendCopy::Copied;
        let sockets = self.sockets.iter().flatten();
        sockets_alone.then(|| sockets.map(|entry| entry.socket.as_raw_fd()).collect())
    }

    fn connect_many(
        &mut self,
        wanted: &[(SocketAddr, &FlowOptions)],
        called_off: &dyn Fn() -> bool,
    ) -> io::Result<Vec<Index>> {
        let sockets = connect::many(wanted, called_off)?;
        let kept = sockets.into_iter().zip(wanted);
        kept.map(|(socket, (remote, options))| {
            self.keep(socket, options, Peer::towards(*remote, options))
        })
        .collect()
    }

    fn sleep_without_limit(&mut self, socket: Index) -> io::Result<()> {
        self.entry(socket).socket.set_read_timeout(None)
    }

    fn start(&mut self, timeline: &Timeline) {
        self.started = true;
        self.calls.start(timeline);
    }

    fn tally(&self) -> Option<CallTally> {
        self.calls.tally()
    }
}

impl<W: Waiting, R: Recorder> Kernel<W, R> {
    fn keep(&mut self, socket: Socket, options: &FlowOptions, peer: Peer) -> io::Result<Index> {
        if options.coalesce {
            socket::set_udp_coalescing(&socket)?;
        }
        let way = self.way(&socket, options)?;
        if let Some(bytes) = options.max_rate {
            pacing::set_max_rate(&socket, bytes)?;
        }
        let departures = match options.departure_clock {
            Some(clock) => Some(DepartureTimes::enable(&socket, clock)?),
            None => None,
        };
        Ok(self.put(Entry {
            socket: Arc::new(socket),
            patience: options.patience,
            datagrams: match (options.segment_bytes, options.batch) {
                (Some(_), _) => SEGMENT_LIMITS[0],
                (None, Some(batch)) => batch as usize,
                (None, None) => 1,
            },
            to_segment: options.segment_bytes,
            coalesces: options.coalesce,
            way,
            paced: options.paced,
            departures,
            peer,
            refusals: Arc::default(),
            unroutable: 0,
        }))
    }

    /// Prepares the send path of a new socket; `None` where payload is copied.
    fn way(&self, socket: &Socket, options: &FlowOptions) -> io::Result<Option<Way>> {
        let way = match (self.copies.send, &self.file) {
            (SendCopy::ZeroCopy, _) if options.zero_copy => {
                zerocopy::allow_zero_copy(socket)?;
                let place = match options.protocol {
                    Protocol::Udp => self.payload_bytes,
                    Protocol::Tcp => 0,
                };
                return Ok(Some(Way::ZeroCopy(Box::new(ZeroCopySends::new(place)))));
            }
            (SendCopy::SendFile, Some(file)) => Way::File(Arc::clone(file)),
            (SendCopy::Splice, _) => Way::Pipe(Pipe::new(self.payload_bytes)?),
            _ => return Ok(None),
        };
        // `sendfile` and `splice` have no flag for a non-blocking call.
        socket.set_nonblocking(true)?;
        Ok(Some(way))
    }

    #[inline]
    fn entry(&self, index: Index) -> &Entry {
        self.sockets[index.0].as_ref().expect(OPEN)
    }
}

/// Panic message of a lookup by a stale handle.
const OPEN: &str = "a workload does not use a socket that it closed";

/// Limits of datagrams in one GSO send: Linux 6.9 and later, earlier, and for devices without
/// checksum offload.
pub const SEGMENT_LIMITS: [usize; 3] = [128, 64, 1];

/// Largest payload of one UDP send call, with or without GSO.
pub const UDP_CALL_BYTES: usize = LARGEST_DATAGRAM_BYTES as usize;

impl<W: Waiting, R: Recorder> Transport for Kernel<W, R> {
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
            self.waiting.idle(&mut self.calls, IDLE_PATIENCE);
            return;
        };
        if W::SLEEPS && until > clock::now() + AWAKE_NS {
            clock::sleep_until(until - AWAKE_NS);
        }
    }

    fn connect(&mut self, remote: SocketAddr, options: &FlowOptions) -> io::Result<Index> {
        let socket = connect::open(remote, options)?;
        self.keep(socket, options, Peer::towards(remote, options))
    }

    fn open(&mut self, remote: SocketAddr, options: &FlowOptions) -> io::Result<Index> {
        self.open_socket(remote, options)
    }

    fn bind(&mut self, socket: Index, local: SocketAddr) -> io::Result<()> {
        self.bind_socket(socket, local)
    }

    fn begin_connect(&mut self, socket: Index, remote: SocketAddr) -> task::Poll<io::Result<()>> {
        self.connect_socket(socket, remote)
    }

    fn accept(&mut self, listener: Index, options: &FlowOptions) -> task::Poll<io::Result<Index>> {
        self.accept_socket(listener, options)
    }

    fn close(&mut self, socket: Index) {
        self.close_socket(socket);
    }

    fn recognise(&mut self, socket: Index) {
        self.keep_to_sender(socket);
    }

    fn be_patient(&mut self, socket: Index, patience: Duration) {
        self.limit_patience(socket, patience);
    }

    #[inline]
    fn udp_send(
        &mut self,
        socket: Index,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> task::Poll<io::Result<usize>> {
        if self.started && matches!(self.entry(socket).way, Some(Way::ZeroCopy(_))) {
            let mut fill = Some(fill);
            return self.send_from_place(socket, bytes, 1, |_, payload| {
                if let Some(fill) = fill.take() {
                    fill(payload);
                }
            });
        }
        self.send(socket, bytes, fill)
    }

    #[inline]
    fn udp_send_at(
        &mut self,
        socket: Index,
        bytes: usize,
        at_ns: Nanos,
        fill: impl FnOnce(&mut [u8]),
    ) -> task::Poll<io::Result<usize>> {
        let entry = self.sockets[socket.0].as_ref().expect(OPEN);
        let Some(departures) = entry.departures else {
            return self.udp_send(socket, bytes, fill);
        };
        let payload = self.outgoing.front(bytes);
        fill(payload);
        self.calls.begin();
        let sent = departures.send(&entry.socket, payload, Flags::DONT_WAIT, at_ns);
        self.calls.end(Call::SendMsg, at_once(&sent));
        self.sent(socket, sent)
    }

    #[inline]
    fn udp_receive<T>(
        &mut self,
        socket: Index,
        take: impl FnOnce(&[u8], Meta) -> T,
    ) -> task::Poll<io::Result<T>> {
        let room = self.incoming.length;
        let received = match self.entry(socket).peer {
            Peer::Connected => self.receive(socket, Call::RecvFrom, room, socket::receive),
            _ => self.receive_from_peer(socket),
        };
        received.map_ok(|bytes| take(self.incoming.front(bytes), Meta::default()))
    }

    #[inline]
    fn udp_echo(
        &mut self,
        socket: Index,
        buffer: &mut [u8],
        is_question: impl FnOnce(&[u8]) -> bool,
    ) -> task::Poll<io::Result<Echoed>> {
        let bytes = match self.udp_receive(socket, |payload, _| payload.len().min(buffer.len())) {
            task::Poll::Ready(Ok(bytes)) => bytes,
            task::Poll::Ready(Err(error)) => return task::Poll::Ready(Err(error)),
            task::Poll::Pending => return task::Poll::Pending,
        };
        if !is_question(self.incoming.front(bytes)) {
            return task::Poll::Ready(Ok(Echoed::Ignored));
        }
        match self.send_from(socket, bytes, Lies::Incoming) {
            task::Poll::Ready(sent) => task::Poll::Ready(sent.map(Echoed::Sent)),
            task::Poll::Pending => {
                buffer[..bytes].copy_from_slice(self.incoming.front(bytes));
                task::Poll::Ready(Ok(Echoed::Full(bytes)))
            }
        }
    }

    #[inline]
    fn burst(&self, socket: Index, bytes: usize) -> usize {
        let fits = match &self.batch {
            Some(_) => self.outgoing.length / bytes.max(1),
            None => UDP_CALL_BYTES / bytes.max(1),
        };
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
        if let Some((messages, _)) = &mut self.batch {
            let payload = self.outgoing.front(bytes * count);
            for (number, datagram) in payload.chunks_mut(bytes).enumerate() {
                fill(number, datagram);
            }
            let entry = self.sockets[socket.0].as_ref().expect(OPEN);
            let calls = &mut self.calls;
            let sent = sending::<W, R>(calls, Call::SendMmsg, count, |from, flags| {
                messages.send(&entry.socket, &payload[from * bytes..], bytes, flags)
            });
            return self.sent(socket, sent);
        }
        let entry = self.sockets[socket.0].as_mut().expect(OPEN);
        if let Some(bytes) = entry.to_segment.take()
            && let Err(error) = socket::set_udp_segment(&entry.socket, bytes)
        {
            return task::Poll::Ready(Err(error));
        }
        let sent = if matches!(self.entry(socket).way, Some(Way::ZeroCopy(_))) {
            self.send_from_place(socket, bytes, count, fill)
        } else {
            self.send(socket, bytes * count, |payload| {
                for (number, datagram) in payload.chunks_mut(bytes).enumerate() {
                    fill(number, datagram);
                }
            })
        };
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
        if let Some((mut messages, room)) = self.batch.take() {
            let whole = self.incoming.length;
            let received = self.receive(socket, Call::RecvMmsg, whole, |socket, all, flags| {
                messages.receive(socket, all, room, flags)
            });
            if let task::Poll::Ready(Ok(count)) = received {
                let all = self.incoming.front(whole);
                for (number, slot) in all.chunks(room).take(count).enumerate() {
                    take(&slot[..messages.length(number).min(room)], Meta::default());
                }
            }
            self.batch = Some((messages, room));
            return received;
        }
        if !self.entry(socket).coalesces {
            return self.udp_receive(socket, take).map_ok(|()| 1);
        }
        let room = self.incoming.length;
        let received = self.receive(socket, Call::RecvMsg, room, socket::receive_segments);
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
        if self.started && self.entry(socket).way.is_some() {
            return self.send_by_way(socket, bytes);
        }
        self.send(socket, bytes, fill)
    }

    #[inline]
    fn tcp_receive<T>(
        &mut self,
        socket: Index,
        room: usize,
        take: impl FnOnce(&[u8]) -> T,
    ) -> task::Poll<io::Result<T>> {
        if self.copies.receive == ReceiveCopy::Discarded && self.started {
            let received = self.receive(socket, Call::RecvFrom, room, |socket, buffer, flags| {
                socket::receive(socket, buffer, flags.and(Flags::TRUNCATE))
            });
            // MSG_TRUNC discards the payload: only the length is valid.
            return received.map_ok(|bytes| take(self.incoming.front(bytes)));
        }
        let received = self.receive(socket, Call::RecvFrom, room, socket::receive);
        received.map_ok(|bytes| take(self.incoming.front(bytes)))
    }

    fn stamp(&mut self, socket: Index, protocol: Protocol) -> io::Result<Vec<String>> {
        self.start_stamps(socket, protocol)
    }

    #[inline]
    fn receive_stamped<T>(
        &mut self,
        socket: Index,
        room: usize,
        take: impl FnOnce(&[u8], Meta) -> T,
    ) -> task::Poll<io::Result<T>> {
        self.take_stamped(socket, room, take)
    }

    fn departures(&mut self, socket: Index, take: impl FnMut(Departure)) -> io::Result<()> {
        self.take_departures(socket, take)
    }

    fn device_error_ns(&self) -> Option<Nanos> {
        self.device.as_ref().map(|device| device.error_ns())
    }

    fn moved_clock_ns(&self) -> Nanos {
        self.clock_moved_by_ns()
    }

    fn finish_sending(&mut self, socket: Index) -> io::Result<()> {
        self.entry(socket)
            .socket
            .shutdown(std::net::Shutdown::Write)
    }

    fn release(&mut self, socket: Index) {
        let entry = self.sockets[socket.0].as_mut().expect(OPEN);
        if let Some(Way::ZeroCopy(sends)) = &mut entry.way {
            sends.settle(&mut self.calls, &entry.socket);
        }
        self.waiting.forget(socket.0, &entry.socket);
    }

    fn enrol(&mut self, socket: Index, ready: Ready, key: usize) -> io::Result<bool> {
        let entry = self.sockets[socket.0].as_ref().expect(OPEN);
        self.waiting.enrol(socket.0, &entry.socket, ready, key)
    }

    fn enrol_changes(&mut self, socket: Index, key: usize) -> io::Result<()> {
        let entry = self.sockets[socket.0].as_ref().expect(OPEN);
        (self.waiting).enrol_changes(socket.0, &entry.socket, key)
    }

    #[inline]
    fn ready(&mut self, keys: &mut Vec<usize>, patience: Duration) {
        self.waiting.ready(&mut self.calls, keys, patience);
    }

    fn attempts(&self) -> Option<Attempts> {
        Some(self.attempts)
    }

    fn facts(&self, socket: Index) -> SocketFacts {
        let entry = self.entry(socket);
        SocketFacts {
            datagrams_per_call: (entry.datagrams > 1).then_some(entry.datagrams as u32),
            zero_copy: match &entry.way {
                Some(Way::ZeroCopy(sends)) => Some(sends.facts()),
                _ => None,
            },
            refusals: Some(entry.refusals.load(Relaxed)).filter(|&refusals| refusals > 0),
            unroutable: (entry.unroutable > 0).then_some(entry.unroutable),
            ..facts_of(&entry.socket)
        }
    }

    fn retransmits(&self, socket: Index) -> Option<u64> {
        let info = socket::tcp_info(&self.entry(socket).socket).ok()?;
        Some(u64::from(info.retransmits))
    }

    fn note_arrivals(&self, socket: Index) {
        // The first query enables timestamps; its result does not matter.
        let _ = packet_timestamps::last_arrival(&self.entry(socket).socket);
    }

    fn since_arrival(&self, socket: Index) -> Option<Nanos> {
        let socket = &self.entry(socket).socket;
        if let Some(arrived) = packet_timestamps::last_arrival(socket) {
            return Some(clock::real().saturating_sub(arrived));
        }
        // A jiffy of the slowest kernels (100 Hz) bounds the rounding error.
        const TICK_MS: u64 = 10;
        let info = socket::tcp_info(socket).ok()?;
        let certain = u64::from(info.since_arrival_ms).checked_sub(TICK_MS)?;
        (certain > 0).then_some(certain * 1_000_000)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            sleeps_in_calls: W::SLEEPS_IN_CALLS,
            stamps_end_waits: W::WAITS_WITH.is_some(),
            tells_changes: W::TELLS_CHANGES,
        }
    }
}
