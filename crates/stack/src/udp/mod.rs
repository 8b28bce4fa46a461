//! UDP: a table of ports, queues of packets, headers made once for each peer.

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
use crate::link::Link;
use crate::neighbors::Unreached;
use crate::queue::IndexQueue;
use crate::socket::{Meta, SocketId, SocketKind};
use crate::wire::ip::{self, Header};
use crate::wire::{Sum, UDP, UDP_BYTES, Verdict, word};
use fragment::Fragmenter;
use ports::Ports;
use reassembly::Reassembly;
use receive_queue::{Body, ReceiveQueue};
use send::Template;

/// First of the ports that are given to whoever asks for any (RFC 6335).
pub(crate) const FIRST_FREE_PORT: u16 = 49_152;

/// All UDP sockets.
pub(crate) struct Udp {
    sockets: Vec<Socket>,
    free: Vec<u32>,
    ports: Ports,
    /// The socket beside the owner of its port at which something came last.
    latest: u32,
    /// Packets in all queues, and how many there may be.
    held: u32,
    limit: u32,
    ready: IndexQueue,
    pub(crate) reassembly: Reassembly,
    pub(crate) fragmenter: Fragmenter,
    verify: bool,
    /// Whether a checksum that was left to a device does for one.
    takes_open: bool,
    /// The stack has several addresses: an answer is to come from the one that was asked.
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
    /// It stands beside the owner of its port, for its peer alone.
    paired: bool,
    /// What became of something that it sent.
    fault: Option<Fault>,
    queue: ReceiveQueue,
    drops: u32,
    template: Template,
    /// When the datagram came that was received last, where answers carry that.
    asked: Option<Nanos>,
    /// What it sends is an answer that may carry times.
    answers: bool,
    /// Datagrams sent.
    sent: u32,
    /// Who sent what was received last, and to which own address; where the stack has several.
    heard: Option<(SocketAddr, IpAddr)>,
}

/// Why what a socket sent did not arrive.
#[derive(Clone, Copy)]
enum Fault {
    /// The far end said that nobody has its port.
    Refused(SocketAddr),
    /// This neighbour did not answer.
    Unreached(IpAddr),
}

impl Socket {
    /// What whoever asks an empty queue is told.
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

/// Why a datagram that came whole is nobody's.
pub(crate) enum Refusal {
    /// It is not right; it was counted.
    Wrong,
    /// Nobody has its port.
    NoPort,
}

/// A datagram for a socket, in a frame.
#[derive(Clone, Copy)]
pub(crate) struct Arrival {
    socket: u32,
    /// The sender's port.
    from: u16,
    payload: u16,
    /// Payload of each, when it is several datagrams of one size; otherwise zero.
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

    /// Bytes from the heap: sockets with their queues; the table of ports.
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

    /// Opens a socket for the datagrams between two ends alone, beside whoever has the port.
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

    /// A socket that nobody uses, on this address and port.
    fn take(&mut self, local: SocketAddr, limit: u32) -> Result<u32, StackError> {
        let index = self.free.pop().ok_or(StackError::TooManySockets {
            kind: "UDP",
            limit,
            key: "sockets.udp",
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

    /// The socket between two ends, where one stands beside the owner of its port.
    fn paired(&self, local: SocketAddr, remote: SocketAddr) -> Option<u32> {
        self.ports
            .pair(local, remote, |index| self.is_pair(index, local, remote))
    }

    /// Whether a socket is the one between two ends.
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
        // A socket that is found by its peer keeps it.
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

    /// Datagrams that a socket has sent, modulo 2^32.
    pub(crate) fn sent(&mut self, id: SocketId) -> Result<u32, StackError> {
        Ok(self.socket(id, "udp_sent")?.sent)
    }

    /// Keeps times out of what a socket sends.
    pub(crate) fn leave_unstamped(&mut self, id: SocketId) -> Result<(), StackError> {
        let socket = self.socket(id, "udp_leave_unstamped")?;
        (socket.answers, socket.asked) = (false, None);
        Ok(())
    }

    /// The next socket at which something came.
    pub(crate) fn next_ready(&mut self) -> Option<SocketId> {
        loop {
            let index = self.ready.pop()?;
            if self.sockets[index as usize].open {
                return Some(self.id(index));
            }
        }
    }

    /// Whether no queue holds a frame.
    #[inline]
    pub(crate) fn none_waits(&self) -> bool {
        self.held == 0
    }

    /// Packets that wait at a socket.
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

    /// Looks at a datagram that came whole.
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
        // The frame is as long as all datagrams together; each but the last has `segment_bytes`.
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

    /// Takes in a datagram, whose IP header begins `at` its frame's bytes; gives the frame back unless a queue holds it.
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

    /// A datagram was put together in a part of a buffer, which the queue holds from here on. False when nobody has
    /// the port.
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
            // Most come where the last one did.
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

    /// Nobody has the port that a socket sent to.
    pub(crate) fn unreachable(&mut self, local: SocketAddr, remote: SocketAddr) {
        self.fail(local, remote, Fault::Refused(remote));
    }

    /// What a socket sent waited for a neighbour in vain.
    pub(crate) fn unreached(&mut self, lost: &Unreached) {
        self.fail(lost.local, lost.remote, Fault::Unreached(lost.hop));
    }

    /// Tells the socket between two ends, if it is connected.
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

    /// Shows the datagram in front, which stays there.
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

    /// Gives all packets back.
    pub(crate) fn drain(&mut self, link: &mut Link) {
        for index in 0..self.sockets.len() {
            while let Some(body) = self.sockets[index].queue.pop() {
                self.release(body, link);
            }
        }
    }
}

/// Bytes of a datagram with its header, if header and checksum are right; `pseudo` is the sum of its pseudo header without
/// the length.
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
    // No checksum is a way to send over IPv4 (RFC 768) and not over IPv6 (RFC 8200).
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
