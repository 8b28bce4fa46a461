//! UDP: port table, receive queues, and prepared headers for each peer.

mod echo;
pub(crate) mod fragment;
mod ports;
pub(crate) mod reassembly;
mod receive_queue;
mod send;

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::task::Poll;

use linerate_port::Frame;
use linerate_port::vnet::{Segmentation, VnetHeader};

use crate::Nanos;
use crate::addressing::Addressing;
use crate::config::{Checksum, Config};
use crate::error::StackError;
use crate::index_queue::IndexQueue;
use crate::link::Link;
use crate::neighbors::Unreached;
use crate::socket::{Meta, SocketId, SocketKind};
use crate::wire::ip::{self, Header};
use crate::wire::{Sum, UDP, UDP_BYTES, Verdict, word};
use fragment::Fragmenter;
use ports::Ports;
use reassembly::Reassembly;
use receive_queue::{Body, ReceiveQueue};
use send::Template;

/// First of the dynamic ports, assigned when port 0 is requested (RFC 6335).
pub(crate) const FIRST_FREE_PORT: u16 = 49_152;

/// UDP sockets of a stack.
pub(crate) struct Udp {
    sockets: Vec<Socket>,
    free: Vec<u32>,
    ports: Ports,
    /// Socket bound to one peer that received the last datagram.
    latest: u32,
    /// Packets in all queues, and their limit.
    held: u32,
    limit: u32,
    ready: IndexQueue,
    pub(crate) reassembly: Reassembly,
    pub(crate) fragmenter: Fragmenter,
    verify: bool,
    /// Partial checksums are accepted.
    takes_open: bool,
    /// The stack has several addresses: a reply must come from the address of the request.
    several: bool,
    checksum: Checksum,
    mtu: usize,
}

struct Socket {
    generation: u32,
    open: bool,
    address: Option<IpAddr>,
    port: u16,
    peer: Option<SocketAddr>,
    /// Bound to one peer, in addition to the owner of the port.
    paired: bool,
    /// Error reported for a datagram that it sent.
    fault: Option<Fault>,
    queue: ReceiveQueue,
    drops: u32,
    template: Template,
    /// Arrival of the datagram received last, if replies are stamped.
    asked: Option<Nanos>,
    /// Datagrams that it sends may be stamped replies.
    answers: bool,
    /// Number of datagrams sent.
    sent: u32,
    /// Source and local destination of the datagram received last; only if the stack has several
    /// addresses.
    heard: Option<(SocketAddr, IpAddr)>,
}

/// Reason why a sent datagram was not delivered.
#[derive(Clone, Copy)]
enum Fault {
    /// Port Unreachable from the peer.
    Refused(SocketAddr),
    /// No reply from this next hop.
    Unreached(IpAddr),
}

impl Socket {
    /// Returns the result of a receive call on an empty queue: the pending error, or `Pending`.
    fn nothing_came<R>(&mut self) -> Poll<Result<R, StackError>> {
        match self.fault.take() {
            Some(Fault::Refused(remote)) => Poll::Ready(Err(StackError::Refused { remote })),
            Some(Fault::Unreached(neighbor)) => {
                Poll::Ready(Err(StackError::NeighborSilent { neighbor }))
            }
            None => Poll::Pending,
        }
    }
}

/// Reason why a received datagram is dropped.
pub(crate) enum Refusal {
    /// Invalid, and counted.
    Wrong,
    /// No socket at its port.
    NoPort,
}

/// Validated datagram in a frame, and its socket.
#[derive(Clone, Copy)]
pub(crate) struct Arrival {
    socket: u32,
    /// Source port.
    from: u16,
    payload: u16,
    /// Payload of each datagram, if the frame holds several of one size; otherwise zero.
    segment: u16,
}

impl Udp {
    pub(crate) fn new(
        config: &Config,
        limit: u32,
        (verify, takes_open): (bool, bool),
        own: &Addressing,
    ) -> Self {
        let count = config.udp_sockets as usize;
        let depth = config.udp.receive_queue as usize;
        let socket = || Socket {
            generation: 0,
            open: false,
            address: None,
            port: 0,
            peer: None,
            paired: false,
            fault: None,
            queue: ReceiveQueue::new(depth),
            drops: 0,
            template: Template::default(),
            asked: None,
            answers: true,
            sent: 0,
            heard: None,
        };
        let mut sockets = Vec::with_capacity(count);
        sockets.extend((0..count).map(|_| socket()));
        let mut free = Vec::with_capacity(count);
        free.extend((0..config.udp_sockets).rev());
        Self {
            sockets,
            free,
            ports: Ports::new(count, own.seed),
            latest: 0,
            held: 0,
            limit,
            ready: IndexQueue::new(count),
            reassembly: Reassembly::new(
                config.ip.reassembly,
                config.ip.reassembly_count,
                config.ip.reassembly_bytes,
                config.ip.reassembly_timeout.as_nanos() as Nanos,
            ),
            fragmenter: Fragmenter::new(config.ip.fragmentation),
            verify,
            takes_open,
            several: own.networks.len() > 1,
            checksum: config.checksum,
            mtu: config.mtu.into(),
        }
    }

    /// Returns the heap memory in bytes: sockets with their queues; port table.
    pub(crate) const fn heap_bytes(sockets: usize, depth: usize) -> (usize, usize) {
        let queues = 2 * size_of::<u32>() + size_of::<bool>();
        let each = size_of::<Socket>() + queues + ReceiveQueue::heap_bytes(depth);
        (sockets * each, Ports::heap_bytes(sockets))
    }

    pub(crate) fn open(&mut self, local: SocketAddr, limit: u32) -> Result<SocketId, StackError> {
        let port = match local.port() {
            0 => (self.ports.free()).ok_or(StackError::PortTaken { port: 0 })?,
            port if self.ports.owner(port).is_some() => {
                return Err(StackError::PortTaken { port });
            }
            port => port,
        };
        let index = self.take(SocketAddr::new(local.ip(), port), limit)?;
        self.ports.give(port, index);
        Ok(self.id(index))
    }

    /// Opens a socket for one pair of addresses, in addition to the owner of the port.
    pub(crate) fn open_pair(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        limit: u32,
    ) -> Result<SocketId, StackError> {
        if self.paired(local, remote).is_some() {
            return Err(StackError::PortTaken { port: local.port() });
        }
        let index = self.take(local, limit)?;
        let socket = &mut self.sockets[index as usize];
        (socket.peer, socket.paired) = (Some(remote), true);
        self.ports.add_pair(local, remote, index);
        Ok(self.id(index))
    }

    /// Takes a free socket and sets its address and port.
    fn take(&mut self, local: SocketAddr, limit: u32) -> Result<u32, StackError> {
        let index = self.free.pop().ok_or(StackError::TooManySockets {
            kind: "UDP",
            limit,
            key: "set sockets.udp higher",
        })?;
        let socket = &mut self.sockets[index as usize];
        socket.open = true;
        socket.address = (!local.ip().is_unspecified()).then_some(local.ip());
        socket.port = local.port();
        (socket.peer, socket.paired, socket.fault) = (None, false, None);
        socket.drops = 0;
        socket.template = Template::default();
        (socket.asked, socket.answers, socket.sent) = (None, true, 0);
        socket.heard = None;
        Ok(index)
    }

    fn id(&self, index: u32) -> SocketId {
        SocketId {
            kind: SocketKind::Udp,
            index,
            generation: self.sockets[index as usize].generation,
        }
    }

    /// Returns the socket bound to this pair, if any.
    fn paired(&self, local: SocketAddr, remote: SocketAddr) -> Option<u32> {
        self.ports
            .pair(local, remote, |index| self.is_pair(index, local, remote))
    }

    /// Returns whether a socket is bound to this pair.
    #[inline]
    fn is_pair(&self, index: u32, local: SocketAddr, remote: SocketAddr) -> bool {
        let socket = &self.sockets[index as usize];
        socket.paired
            && socket.port == local.port()
            && socket.address == Some(local.ip())
            && socket.peer == Some(remote)
    }

    #[inline]
    fn socket(&mut self, id: SocketId, call: &'static str) -> Result<&mut Socket, StackError> {
        match self.sockets.get_mut(id.index as usize) {
            Some(socket)
                if id.kind == SocketKind::Udp
                    && socket.open
                    && socket.generation == id.generation =>
            {
                Ok(socket)
            }
            _ => Err(Self::no_socket(id, call)),
        }
    }

    #[cold]
    fn no_socket(id: SocketId, call: &'static str) -> StackError {
        match id.kind {
            SocketKind::Udp => StackError::Stale,
            kind => StackError::WrongKind {
                kind: kind.name(),
                call,
            },
        }
    }

    pub(crate) fn close(&mut self, id: SocketId, link: &mut Link) -> Result<(), StackError> {
        self.socket(id, "close")?;
        while let Some(body) = self.sockets[id.index as usize].queue.pop() {
            self.release(body, link);
        }
        let socket = &mut self.sockets[id.index as usize];
        socket.open = false;
        socket.generation = socket.generation.wrapping_add(1);
        let (address, port, peer) = (socket.address, socket.port, socket.peer);
        match (std::mem::take(&mut socket.paired), address, peer) {
            (true, Some(address), Some(peer)) => {
                let sockets = &self.sockets;
                let ends = |other: u32| {
                    let socket = &sockets[other as usize];
                    let ends = socket.address.zip(socket.peer);
                    let (address, peer) = ends.expect("a pair has two ends");
                    (SocketAddr::new(address, socket.port), peer)
                };
                let local = SocketAddr::new(address, port);
                self.ports.remove_pair(local, peer, id.index, ends);
            }
            _ => self.ports.take_back(port),
        }
        self.free.push(id.index);
        Ok(())
    }

    pub(crate) fn connect(&mut self, id: SocketId, peer: SocketAddr) -> Result<(), StackError> {
        let socket = self.socket(id, "connect")?;
        // A socket bound to one peer is looked up by it and keeps it.
        if !socket.paired {
            socket.peer = Some(peer);
        }
        Ok(())
    }

    pub(crate) fn local(&mut self, id: SocketId) -> Result<(Option<IpAddr>, u16), StackError> {
        let socket = self.socket(id, "local")?;
        Ok((socket.address, socket.port))
    }

    pub(crate) fn peer(&mut self, id: SocketId) -> Result<Option<SocketAddr>, StackError> {
        Ok(self.socket(id, "remote")?.peer)
    }

    /// Returns the number of datagrams that a socket has sent, modulo 2^32.
    pub(crate) fn sent(&mut self, id: SocketId) -> Result<u32, StackError> {
        Ok(self.socket(id, "udp_sent")?.sent)
    }

    /// Excludes a socket from stamping.
    pub(crate) fn leave_unstamped(&mut self, id: SocketId) -> Result<(), StackError> {
        let socket = self.socket(id, "udp_leave_unstamped")?;
        (socket.answers, socket.asked) = (false, None);
        Ok(())
    }

    /// Returns the next socket with an event.
    pub(crate) fn next_ready(&mut self) -> Option<SocketId> {
        loop {
            let index = self.ready.pop()?;
            if self.sockets[index as usize].open {
                return Some(self.id(index));
            }
        }
    }

    /// Returns whether no queue holds a frame.
    #[inline]
    pub(crate) fn none_waits(&self) -> bool {
        self.held == 0
    }

    /// Returns the number of packets in a socket's queue.
    pub(crate) fn waiting(&mut self, id: SocketId) -> Result<usize, StackError> {
        Ok(self.socket(id, "udp_waiting")?.queue.len())
    }

    #[inline]
    fn release(&mut self, body: Body, link: &mut Link) {
        match body {
            Body::Frame(frame) => {
                self.held -= 1;
                link.pool.free(frame);
            }
            Body::Buffer(buffer, ..) => self.reassembly.free(buffer),
            Body::Empty => {}
        }
    }

    /// Validates an unfragmented datagram and finds its socket.
    #[inline(always)]
    pub(crate) fn judge(
        &mut self,
        counters: &mut crate::counters::Udp,
        packet: &[u8],
        header: &Header,
        vnet: VnetHeader,
    ) -> Result<Arrival, Refusal> {
        let packet = &packet[..header.end];
        let datagram = &packet[header.body..];
        let checked = vnet.needs_checksum || vnet.checksum_valid || !self.verify;
        let split = vnet.segmentation == Segmentation::Udp;
        let checks = (checked || split, self.takes_open);
        let v4 = header.to.is_ipv4();
        let pseudo = ip::pseudo_sum_in(packet, v4, UDP);
        let Some(length) = check(counters, v4, datagram, checks, pseudo) else {
            return Err(Refusal::Wrong);
        };
        let ports = (word(datagram, 0), word(datagram, 2));
        let Some(socket) = self.find(header, ports) else {
            return Err(Refusal::NoPort);
        };
        let payload = length - UDP_BYTES;
        // The frame holds all datagrams; each but the last has `segment_bytes` of payload.
        let segment = if split && usize::from(vnet.segment_bytes) < payload {
            vnet.segment_bytes
        } else {
            0
        };
        Ok(Arrival {
            socket,
            from: ports.0,
            payload: payload as u16,
            segment,
        })
    }

    /// Queues a datagram whose IP header begins at offset `at` of its frame; returns the frame if
    /// it was dropped.
    #[inline(always)]
    pub(crate) fn input(
        &mut self,
        link: &mut Link,
        mut frame: Frame,
        at: usize,
        header: &Header,
        arrival: Arrival,
    ) -> Option<Frame> {
        let socket = &mut self.sockets[arrival.socket as usize];
        if self.held >= self.limit && !socket.queue.is_full() {
            socket.drops = socket.drops.wrapping_add(1);
            link.counters.udp.no_buffer += 1;
            return Some(frame);
        }
        let Some(slot) = socket.queue.add() else {
            socket.drops = socket.drops.wrapping_add(1);
            link.counters.udp.receive_queue_full += 1;
            return Some(frame);
        };
        let start = usize::from(frame.offset()) + at + header.body + UDP_BYTES;
        frame.set_offset(start as u16);
        frame.set_len(arrival.payload);
        slot.fill(Body::Frame(frame), header, arrival.from, link);
        slot.segment = arrival.segment;
        self.held += 1;
        link.counters.udp.in_datagrams += 1;
        self.ready.push(arrival.socket);
        None
    }

    /// Queues a reassembled datagram, which keeps its buffer. Returns false if no socket has the
    /// port.
    pub(crate) fn input_whole(
        &mut self,
        link: &mut Link,
        header: &Header,
        buffer: u32,
        within: Range<usize>,
    ) -> bool {
        let checks = (!self.verify, self.takes_open);
        let start = within.start;
        let datagram = &self.reassembly.bytes(buffer)[within];
        let pseudo = ip::pseudo_sum(header.from, header.to, UDP, 0);
        let v4 = header.to.is_ipv4();
        let Some(length) = check(&mut link.counters.udp, v4, datagram, checks, pseudo) else {
            self.reassembly.free(buffer);
            return true;
        };
        let ports = (word(datagram, 0), word(datagram, 2));
        let Some(index) = self.find(header, ports) else {
            self.reassembly.free(buffer);
            return false;
        };
        let socket = &mut self.sockets[index as usize];
        let Some(slot) = socket.queue.add() else {
            socket.drops = socket.drops.wrapping_add(1);
            link.counters.udp.receive_queue_full += 1;
            self.reassembly.free(buffer);
            return true;
        };
        let body = Body::Buffer(buffer, (start + UDP_BYTES) as u32, (start + length) as u32);
        slot.fill(body, header, ports.0, link);
        link.counters.udp.in_datagrams += 1;
        self.ready.push(index);
        true
    }

    #[inline(always)]
    fn find(&mut self, header: &Header, (from, to): (u16, u16)) -> Option<u32> {
        let sender = SocketAddr::new(header.from, from);
        if self.ports.has_pairs() {
            let own = SocketAddr::new(header.to, to);
            // Most datagrams are for the same socket as the last one.
            if self.is_pair(self.latest, own, sender) {
                return Some(self.latest);
            }
            if let Some(index) = self.paired(own, sender) {
                self.latest = index;
                return Some(index);
            }
        }
        let index = self.ports.owner(to)?;
        let socket = &self.sockets[index as usize];
        let bound = socket.address.is_none_or(|own| own == header.to);
        (bound && socket.peer.is_none_or(|peer| peer == sender)).then_some(index)
    }

    /// Reports Port Unreachable to the sending socket.
    pub(crate) fn unreachable(&mut self, local: SocketAddr, remote: SocketAddr) {
        self.fail(local, remote, Fault::Refused(remote));
    }

    /// Reports to the sending socket that its next hop did not reply.
    pub(crate) fn unreached(&mut self, lost: &Unreached) {
        self.fail(lost.local, lost.remote, Fault::Unreached(lost.hop));
    }

    /// Sets the error of the socket with these addresses, if it is connected.
    fn fail(&mut self, local: SocketAddr, remote: SocketAddr, fault: Fault) {
        let found = self.paired(local, remote);
        let Some(index) = found.or_else(|| self.ports.owner(local.port())) else {
            return;
        };
        let socket = &mut self.sockets[index as usize];
        if socket.peer == Some(remote) {
            socket.fault = Some(fault);
            self.ready.push(index);
        }
    }

    /// Passes the first datagram of the queue to a closure without removing it.
    pub(crate) fn peek<R>(
        &mut self,
        link: &Link,
        id: SocketId,
        look: impl FnOnce(&[u8], SocketAddr) -> R,
    ) -> Result<Option<R>, StackError> {
        let index = id.index as usize;
        self.socket(id, "udp_peek")?;
        let Some(packet) = self.sockets[index].queue.front() else {
            return Ok(None);
        };
        let shown = match &packet.body {
            Body::Frame(frame) => {
                let bytes = link.memory.bytes(frame);
                let first = match packet.segment {
                    0 => bytes.len(),
                    segment => bytes.len().min(segment.into()),
                };
                look(&bytes[..first], packet.from)
            }
            Body::Buffer(buffer, start, end) => {
                let bytes = self.reassembly.bytes(*buffer);
                look(&bytes[*start as usize..*end as usize], packet.from)
            }
            Body::Empty => unreachable!("the one in front has a body"),
        };
        Ok(Some(shown))
    }

    #[inline]
    pub(crate) fn receive<R>(
        &mut self,
        link: &mut Link,
        id: SocketId,
        take: impl FnOnce(&[u8], Meta) -> R,
    ) -> Poll<Result<R, StackError>> {
        let several = self.several;
        let socket = match self.socket(id, "udp_receive") {
            Ok(socket) => socket,
            Err(error) => return Poll::Ready(Err(error)),
        };
        let Some(packet) = socket.queue.front_mut() else {
            return socket.nothing_came();
        };
        let meta = packet.meta(socket.drops);
        socket.asked = socket.answers.then_some(packet.arrived);
        if several && link.own.is_own(packet.to) {
            socket.heard = Some((packet.from, packet.to));
        }
        let segment = packet.segment;
        if let Body::Frame(frame) = &mut packet.body
            && segment > 0
            && frame.len() > segment
        {
            let result = take(&link.memory.bytes(frame)[..usize::from(segment)], meta);
            frame.set_offset(frame.offset() + segment);
            frame.set_len(frame.len() - segment);
            return Poll::Ready(Ok(result));
        }
        let body = socket.queue.pop().expect("there is one in front");
        let result = match &body {
            Body::Frame(frame) => take(link.memory.bytes(frame), meta),
            Body::Buffer(buffer, start, end) => {
                let bytes = self.reassembly.bytes(*buffer);
                take(&bytes[*start as usize..*end as usize], meta)
            }
            Body::Empty => unreachable!("the one in front has a body"),
        };
        self.release(body, link);
        Poll::Ready(Ok(result))
    }

    /// Frees all queued packets.
    pub(crate) fn drain(&mut self, link: &mut Link) {
        for index in 0..self.sockets.len() {
            while let Some(body) = self.sockets[index].queue.pop() {
                self.release(body, link);
            }
        }
    }
}

/// Validates header and checksum of a datagram and returns its length with header; `pseudo` is the
/// sum of its pseudo header without the length.
#[inline(always)]
fn check(
    counters: &mut crate::counters::Udp,
    v4: bool,
    datagram: &[u8],
    (checked, takes_open): (bool, bool),
    pseudo: Sum,
) -> Option<usize> {
    let length = match datagram.len() {
        0..UDP_BYTES => 0,
        _ => usize::from(word(datagram, 4)),
    };
    if length < UDP_BYTES || length > datagram.len() {
        counters.in_errors += 1;
        return None;
    }
    let sent = word(datagram, 6);
    // Checksum zero means "none" over IPv4 (RFC 768), and is invalid over IPv6 (RFC 8200).
    let none = sent == 0 && v4;
    if !checked && !none {
        match Verdict::of(pseudo + Sum::word(length as u16), &datagram[..length], sent) {
            Verdict::Right => {}
            Verdict::Open if takes_open => counters.in_open_checksums += 1,
            Verdict::Open => {
                counters.open_checksum_drops += 1;
                return None;
            }
            Verdict::Wrong => {
                counters.in_checksum_errors += 1;
                return None;
            }
        }
    }
    Some(length)
}
