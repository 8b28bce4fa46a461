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

use fragment::Fragmenter;
use linerate_packet::checksum::UnfoldedSum;
use linerate_packet::vnet::{Segmentation, VnetHeader};
use linerate_sys::frames::frame::Frame;
use ports::PortTable;
use reassembly::ReassemblyBuffers;
use receive_queue::{DatagramBody, ReceiveQueue};
use send::HeaderTemplate;

use crate::Nanos;
use crate::addressing::StackAddressing;
use crate::config::{ChecksumMode, StackConfig};
use crate::error::StackError;
use crate::index_queue::IndexQueue;
use crate::link::LinkLayer;
use crate::neighbors::UndeliveredDatagram;
use crate::socket::{DatagramMeta, SocketId, SocketKind};
use crate::wire::ip::{self, IpHeader};
use crate::wire::{ChecksumVerdict, UDP, UDP_BYTES, read_u16};

/// UDP sockets of a stack.
pub(crate) struct UdpLayer {
    sockets: Vec<UdpSocket>,
    free: Vec<u32>,
    ports: PortTable,
    /// Socket bound to one peer that received the last datagram.
    last_pair_socket: u32,
    /// Packets in all queues, and their limit.
    queued_frames: u32,
    queued_frames_limit: u32,
    ready: IndexQueue,
    pub(crate) reassembly: ReassemblyBuffers,
    pub(crate) fragmenter: Fragmenter,
    verifies_checksums: bool,
    /// Partial checksums are accepted.
    accepts_partial_checksum: bool,
    /// The stack has several addresses: a reply must come from the address of the request.
    has_several_addresses: bool,
    checksum: ChecksumMode,
    mtu: usize,
}

struct UdpSocket {
    generation: u32,
    is_open: bool,
    address: Option<IpAddr>,
    port: u16,
    peer: Option<SocketAddr>,
    /// Bound to one peer, in addition to the owner of the port.
    is_pair: bool,
    /// Error reported for a datagram that it sent.
    delivery_error: Option<DeliveryError>,
    queue: ReceiveQueue,
    drops: u32,
    template: HeaderTemplate,
    /// Arrival of the datagram received last, if replies are stamped.
    request_arrived: Option<Nanos>,
    /// Datagrams that it sends may be stamped replies.
    stamps_replies: bool,
    /// Number of datagrams sent.
    sent: u32,
    /// Source and local destination of the datagram received last; only if the stack has several
    /// addresses.
    last_request: Option<(SocketAddr, IpAddr)>,
}

/// Reason why a sent datagram was not delivered.
#[derive(Clone, Copy)]
enum DeliveryError {
    /// Port Unreachable from the peer.
    PortUnreachable(SocketAddr),
    /// No reply from this next hop.
    NeighborSilent(IpAddr),
}

impl UdpSocket {
    /// Returns the result of a receive call on an empty queue: the pending error, or `Pending`.
    fn pending_or_error<R>(&mut self) -> Poll<Result<R, StackError>> {
        match self.delivery_error.take() {
            Some(DeliveryError::PortUnreachable(remote)) => {
                Poll::Ready(Err(StackError::ConnectionRefused { remote }))
            }
            Some(DeliveryError::NeighborSilent(neighbor)) => {
                Poll::Ready(Err(StackError::NeighborSilent { neighbor }))
            }
            None => Poll::Pending,
        }
    }
}

/// Reason why a received datagram is dropped.
pub(crate) enum DatagramRejection {
    /// Invalid, and counted.
    Invalid,
    /// No socket at its port.
    NoPort,
}

/// Validated datagram in a frame, and its socket.
#[derive(Clone, Copy)]
pub(crate) struct ReceivedDatagram {
    socket: u32,
    /// Source port.
    from: u16,
    payload_bytes: u16,
    /// Payload of each datagram, if the frame holds several of one size; otherwise zero.
    segment_bytes: u16,
}

impl UdpLayer {
    pub(crate) fn new(
        config: &StackConfig,
        queued_frames_limit: u32,
        (verify, accepts_partial_checksum): (bool, bool),
        addressing: &StackAddressing,
    ) -> Self {
        let count = config.udp_sockets as usize;
        let queue_depth = config.udp.receive_queue as usize;
        let socket = || UdpSocket {
            generation: 0,
            is_open: false,
            address: None,
            port: 0,
            peer: None,
            is_pair: false,
            delivery_error: None,
            queue: ReceiveQueue::new(queue_depth),
            drops: 0,
            template: HeaderTemplate::default(),
            request_arrived: None,
            stamps_replies: true,
            sent: 0,
            last_request: None,
        };
        let mut sockets = Vec::with_capacity(count);
        sockets.extend((0..count).map(|_| socket()));
        let mut free = Vec::with_capacity(count);
        free.extend((0..config.udp_sockets).rev());
        Self {
            sockets,
            free,
            ports: PortTable::new(count, addressing.seed),
            last_pair_socket: 0,
            queued_frames: 0,
            queued_frames_limit,
            ready: IndexQueue::new(count),
            reassembly: ReassemblyBuffers::new(
                config.ip.reassembly,
                config.ip.reassembly_count,
                config.ip.reassembly_bytes,
                config.ip.reassembly_timeout.as_nanos() as Nanos,
            ),
            fragmenter: Fragmenter::new(config.ip.fragmentation),
            verifies_checksums: verify,
            accepts_partial_checksum,
            has_several_addresses: addressing.networks.len() > 1,
            checksum: config.checksum,
            mtu: config.mtu.into(),
        }
    }

    /// Returns the heap memory in bytes: sockets with their queues; port table.
    pub(crate) const fn heap_bytes(sockets: usize, queue_depth: usize) -> (usize, usize) {
        let ready_bytes = 2 * size_of::<u32>() + size_of::<bool>();
        let socket_bytes =
            size_of::<UdpSocket>() + ready_bytes + ReceiveQueue::heap_bytes(queue_depth);
        (sockets * socket_bytes, PortTable::heap_bytes(sockets))
    }

    pub(crate) fn open(&mut self, local: SocketAddr, limit: u32) -> Result<SocketId, StackError> {
        let port = match local.port() {
            0 => (self.ports.find_free()).ok_or(StackError::PortInUse { port: 0 })?,
            port if self.ports.owner(port).is_some() => {
                return Err(StackError::PortInUse { port });
            }
            port => port,
        };
        let index = self.allocate(SocketAddr::new(local.ip(), port), limit)?;
        self.ports.assign(port, index);
        Ok(self.id(index))
    }

    /// Opens a socket for one pair of addresses, in addition to the owner of the port.
    pub(crate) fn open_pair(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        limit: u32,
    ) -> Result<SocketId, StackError> {
        if self.pair_socket(local, remote).is_some() {
            return Err(StackError::PortInUse { port: local.port() });
        }
        let index = self.allocate(local, limit)?;
        let socket = &mut self.sockets[index as usize];
        (socket.peer, socket.is_pair) = (Some(remote), true);
        self.ports.add_pair(local, remote, index);
        Ok(self.id(index))
    }

    /// Takes a free socket and sets its address and port.
    fn allocate(&mut self, local: SocketAddr, limit: u32) -> Result<u32, StackError> {
        let index = self.free.pop().ok_or(StackError::TooManySockets {
            kind: "UDP",
            limit,
            remedy: "set sockets.udp higher",
        })?;
        let socket = &mut self.sockets[index as usize];
        socket.is_open = true;
        socket.address = (!local.ip().is_unspecified()).then_some(local.ip());
        socket.port = local.port();
        (socket.peer, socket.is_pair, socket.delivery_error) = (None, false, None);
        socket.drops = 0;
        socket.template = HeaderTemplate::default();
        (socket.request_arrived, socket.stamps_replies, socket.sent) = (None, true, 0);
        socket.last_request = None;
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
    fn pair_socket(&self, local: SocketAddr, remote: SocketAddr) -> Option<u32> {
        self.ports
            .find_pair(local, remote, |index| self.is_pair(index, local, remote))
    }

    /// Returns whether a socket is bound to this pair.
    #[inline]
    fn is_pair(&self, index: u32, local: SocketAddr, remote: SocketAddr) -> bool {
        let socket = &self.sockets[index as usize];
        socket.is_pair
            && socket.port == local.port()
            && socket.address == Some(local.ip())
            && socket.peer == Some(remote)
    }

    #[inline]
    fn socket(&mut self, id: SocketId, call: &'static str) -> Result<&mut UdpSocket, StackError> {
        match self.sockets.get_mut(id.index as usize) {
            Some(socket)
                if id.kind == SocketKind::Udp
                    && socket.is_open
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
            SocketKind::Udp => StackError::SocketClosed,
            kind => StackError::WrongKind {
                kind: kind.name(),
                call,
            },
        }
    }

    pub(crate) fn close(&mut self, id: SocketId, link: &mut LinkLayer) -> Result<(), StackError> {
        self.socket(id, "close")?;
        while let Some(body) = self.sockets[id.index as usize].queue.pop() {
            self.free_body(body, link);
        }
        let socket = &mut self.sockets[id.index as usize];
        socket.is_open = false;
        socket.generation = socket.generation.wrapping_add(1);
        let (address, port, peer) = (socket.address, socket.port, socket.peer);
        match (std::mem::take(&mut socket.is_pair), address, peer) {
            (true, Some(address), Some(peer)) => {
                let sockets = &self.sockets;
                let addresses_of = |other_index: u32| {
                    let socket = &sockets[other_index as usize];
                    let addresses_of = socket.address.zip(socket.peer);
                    let (address, peer) = addresses_of.expect("a pair has two ends");
                    (SocketAddr::new(address, socket.port), peer)
                };
                let local = SocketAddr::new(address, port);
                self.ports.remove_pair(local, peer, id.index, addresses_of);
            }
            _ => self.ports.unassign(port),
        }
        self.free.push(id.index);
        Ok(())
    }

    pub(crate) fn connect(&mut self, id: SocketId, peer: SocketAddr) -> Result<(), StackError> {
        let socket = self.socket(id, "connect")?;
        // A socket bound to one peer is looked up by it and keeps it.
        if !socket.is_pair {
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
    pub(crate) fn sent_count(&mut self, id: SocketId) -> Result<u32, StackError> {
        Ok(self.socket(id, "udp_sent")?.sent)
    }

    /// Excludes a socket from stamping.
    pub(crate) fn disable_stamps(&mut self, id: SocketId) -> Result<(), StackError> {
        let socket = self.socket(id, "udp_leave_unstamped")?;
        (socket.stamps_replies, socket.request_arrived) = (false, None);
        Ok(())
    }

    /// Returns the next socket with an event.
    pub(crate) fn next_ready(&mut self) -> Option<SocketId> {
        loop {
            let index = self.ready.pop()?;
            if self.sockets[index as usize].is_open {
                return Some(self.id(index));
            }
        }
    }

    /// Returns whether no queue holds a frame.
    #[inline]
    pub(crate) fn queues_are_empty(&self) -> bool {
        self.queued_frames == 0
    }

    /// Returns the number of packets in a socket's queue.
    pub(crate) fn queued(&mut self, id: SocketId) -> Result<usize, StackError> {
        Ok(self.socket(id, "udp_waiting")?.queue.len())
    }

    #[inline]
    fn free_body(&mut self, body: DatagramBody, link: &mut LinkLayer) {
        match body {
            DatagramBody::Frame(frame) => {
                self.queued_frames -= 1;
                link.pool.free(frame);
            }
            DatagramBody::Buffer(buffer, ..) => self.reassembly.free(buffer),
            DatagramBody::Empty => {}
        }
    }

    /// Validates an unfragmented datagram and finds its socket.
    #[inline(always)]
    pub(crate) fn validate(
        &mut self,
        counters: &mut crate::counters::Udp,
        packet: &[u8],
        header: &IpHeader,
        vnet: VnetHeader,
    ) -> Result<ReceivedDatagram, DatagramRejection> {
        let packet = &packet[..header.end];
        let datagram = &packet[header.transport..];
        let is_checked = vnet.needs_checksum || vnet.checksum_valid || !self.verifies_checksums;
        let is_coalesced = vnet.segmentation == Segmentation::Udp;
        let checksum_options = (is_checked || is_coalesced, self.accepts_partial_checksum);
        let v4 = header.to.is_ipv4();
        let pseudo = ip::pseudo_sum_of_packet(packet, v4, UDP);
        let Some(length) = check_datagram(counters, v4, datagram, checksum_options, pseudo) else {
            return Err(DatagramRejection::Invalid);
        };
        let ports = (read_u16(datagram, 0), read_u16(datagram, 2));
        let Some(socket) = self.find_socket(header, ports) else {
            return Err(DatagramRejection::NoPort);
        };
        let payload_bytes = length - UDP_BYTES;
        // The frame holds all datagrams; each but the last has `segment_bytes` of payload.
        let segment_bytes = if is_coalesced && usize::from(vnet.segment_bytes) < payload_bytes {
            vnet.segment_bytes
        } else {
            0
        };
        Ok(ReceivedDatagram {
            socket,
            from: ports.0,
            payload_bytes: payload_bytes as u16,
            segment_bytes,
        })
    }

    /// Queues a datagram whose IP header begins at offset `at` of its frame; returns the frame if
    /// it was dropped.
    #[inline(always)]
    pub(crate) fn input(
        &mut self,
        link: &mut LinkLayer,
        mut frame: Frame,
        at: usize,
        header: &IpHeader,
        received: ReceivedDatagram,
    ) -> Option<Frame> {
        let socket = &mut self.sockets[received.socket as usize];
        if self.queued_frames >= self.queued_frames_limit && !socket.queue.is_full() {
            socket.drops = socket.drops.wrapping_add(1);
            link.counters.udp.no_buffer += 1;
            return Some(frame);
        }
        let Some(slot) = socket.queue.push_slot() else {
            socket.drops = socket.drops.wrapping_add(1);
            link.counters.udp.receive_queue_full += 1;
            return Some(frame);
        };
        let start = usize::from(frame.offset()) + at + header.transport + UDP_BYTES;
        frame.set_offset(start as u16);
        frame.set_len(received.payload_bytes);
        slot.fill(DatagramBody::Frame(frame), header, received.from, link);
        slot.segment_bytes = received.segment_bytes;
        self.queued_frames += 1;
        link.counters.udp.in_datagrams += 1;
        self.ready.push(received.socket);
        None
    }

    /// Queues a reassembled datagram, which keeps its buffer. Returns false if no socket has the
    /// port.
    pub(crate) fn input_reassembled(
        &mut self,
        link: &mut LinkLayer,
        header: &IpHeader,
        buffer: u32,
        range: Range<usize>,
    ) -> bool {
        let checksum_options = (!self.verifies_checksums, self.accepts_partial_checksum);
        let start = range.start;
        let datagram = &self.reassembly.bytes(buffer)[range];
        let pseudo = ip::pseudo_sum(header.from, header.to, UDP, 0);
        let v4 = header.to.is_ipv4();
        let Some(length) = check_datagram(
            &mut link.counters.udp,
            v4,
            datagram,
            checksum_options,
            pseudo,
        ) else {
            self.reassembly.free(buffer);
            return true;
        };
        let ports = (read_u16(datagram, 0), read_u16(datagram, 2));
        let Some(index) = self.find_socket(header, ports) else {
            self.reassembly.free(buffer);
            return false;
        };
        let socket = &mut self.sockets[index as usize];
        let Some(slot) = socket.queue.push_slot() else {
            socket.drops = socket.drops.wrapping_add(1);
            link.counters.udp.receive_queue_full += 1;
            self.reassembly.free(buffer);
            return true;
        };
        let body =
            DatagramBody::Buffer(buffer, (start + UDP_BYTES) as u32, (start + length) as u32);
        slot.fill(body, header, ports.0, link);
        link.counters.udp.in_datagrams += 1;
        self.ready.push(index);
        true
    }

    #[inline(always)]
    fn find_socket(&mut self, header: &IpHeader, (from, to): (u16, u16)) -> Option<u32> {
        let sender = SocketAddr::new(header.from, from);
        if self.ports.has_pairs() {
            let local = SocketAddr::new(header.to, to);
            // Most datagrams are for the same socket as the last one.
            if self.is_pair(self.last_pair_socket, local, sender) {
                return Some(self.last_pair_socket);
            }
            if let Some(index) = self.pair_socket(local, sender) {
                self.last_pair_socket = index;
                return Some(index);
            }
        }
        let index = self.ports.owner(to)?;
        let socket = &self.sockets[index as usize];
        let matches_address = socket.address.is_none_or(|local| local == header.to);
        (matches_address && socket.peer.is_none_or(|peer| peer == sender)).then_some(index)
    }

    /// Reports Port Unreachable to the sending socket.
    pub(crate) fn report_port_unreachable(&mut self, local: SocketAddr, remote: SocketAddr) {
        self.set_error(local, remote, DeliveryError::PortUnreachable(remote));
    }

    /// Reports to the sending socket that its next hop did not reply.
    pub(crate) fn report_neighbor_silent(&mut self, undelivered: &UndeliveredDatagram) {
        self.set_error(
            undelivered.local,
            undelivered.remote,
            DeliveryError::NeighborSilent(undelivered.hop),
        );
    }

    /// Sets the error of the socket with these addresses, if it is connected.
    fn set_error(&mut self, local: SocketAddr, remote: SocketAddr, error: DeliveryError) {
        let pair_index = self.pair_socket(local, remote);
        let Some(index) = pair_index.or_else(|| self.ports.owner(local.port())) else {
            return;
        };
        let socket = &mut self.sockets[index as usize];
        if socket.peer == Some(remote) {
            socket.delivery_error = Some(error);
            self.ready.push(index);
        }
    }

    /// Passes the first datagram of the queue to a closure without removing it.
    pub(crate) fn peek<R>(
        &mut self,
        link: &LinkLayer,
        id: SocketId,
        look: impl FnOnce(&[u8], SocketAddr) -> R,
    ) -> Result<Option<R>, StackError> {
        let index = id.index as usize;
        self.socket(id, "udp_peek")?;
        let Some(packet) = self.sockets[index].queue.front() else {
            return Ok(None);
        };
        let result = match &packet.body {
            DatagramBody::Frame(frame) => {
                let bytes = link.memory.bytes(frame);
                let first_bytes = match packet.segment_bytes {
                    0 => bytes.len(),
                    segment => bytes.len().min(segment.into()),
                };
                look(&bytes[..first_bytes], packet.from)
            }
            DatagramBody::Buffer(buffer, start, end) => {
                let bytes = self.reassembly.bytes(*buffer);
                look(&bytes[*start as usize..*end as usize], packet.from)
            }
            DatagramBody::Empty => unreachable!("the one in front has a body"),
        };
        Ok(Some(result))
    }

    #[inline]
    pub(crate) fn receive<R>(
        &mut self,
        link: &mut LinkLayer,
        id: SocketId,
        take: impl FnOnce(&[u8], DatagramMeta) -> R,
    ) -> Poll<Result<R, StackError>> {
        let has_several_addresses = self.has_several_addresses;
        let socket = match self.socket(id, "udp_receive") {
            Ok(socket) => socket,
            Err(error) => return Poll::Ready(Err(error)),
        };
        let Some(packet) = socket.queue.front_mut() else {
            return socket.pending_or_error();
        };
        let meta = packet.meta(socket.drops);
        socket.request_arrived = socket.stamps_replies.then_some(packet.arrived_at);
        if has_several_addresses && link.addressing.is_local(packet.to) {
            socket.last_request = Some((packet.from, packet.to));
        }
        let segment_bytes = packet.segment_bytes;
        if let DatagramBody::Frame(frame) = &mut packet.body
            && segment_bytes > 0
            && frame.len() > segment_bytes
        {
            let result = take(
                &link.memory.bytes(frame)[..usize::from(segment_bytes)],
                meta,
            );
            frame.set_offset(frame.offset() + segment_bytes);
            frame.set_len(frame.len() - segment_bytes);
            return Poll::Ready(Ok(result));
        }
        let body = socket.queue.pop().expect("there is one in front");
        let result = match &body {
            DatagramBody::Frame(frame) => take(link.memory.bytes(frame), meta),
            DatagramBody::Buffer(buffer, start, end) => {
                let bytes = self.reassembly.bytes(*buffer);
                take(&bytes[*start as usize..*end as usize], meta)
            }
            DatagramBody::Empty => unreachable!("the one in front has a body"),
        };
        self.free_body(body, link);
        Poll::Ready(Ok(result))
    }

    /// Frees all queued packets.
    pub(crate) fn free_queued(&mut self, link: &mut LinkLayer) {
        for index in 0..self.sockets.len() {
            while let Some(body) = self.sockets[index].queue.pop() {
                self.free_body(body, link);
            }
        }
    }
}

/// Validates header and checksum of a datagram and returns its length with header; `pseudo` is the
/// sum of its pseudo header without the length.
#[inline(always)]
fn check_datagram(
    counters: &mut crate::counters::Udp,
    v4: bool,
    datagram: &[u8],
    (is_checked, accepts_partial_checksum): (bool, bool),
    pseudo: UnfoldedSum,
) -> Option<usize> {
    let length = match datagram.len() {
        0..UDP_BYTES => 0,
        _ => usize::from(read_u16(datagram, 4)),
    };
    if length < UDP_BYTES || length > datagram.len() {
        counters.in_errors += 1;
        return None;
    }
    let field = read_u16(datagram, 6);
    // Checksum zero means "none" over IPv4 (RFC 768), and is invalid over IPv6 (RFC 8200).
    let is_omitted = field == 0 && v4;
    if !is_checked && !is_omitted {
        match ChecksumVerdict::verify(
            pseudo + UnfoldedSum::from_u16(length as u16),
            &datagram[..length],
            field,
        ) {
            ChecksumVerdict::Valid => {}
            ChecksumVerdict::Partial if accepts_partial_checksum => counters.in_open_checksums += 1,
            ChecksumVerdict::Partial => {
                counters.open_checksum_drops += 1;
                return None;
            }
            ChecksumVerdict::Invalid => {
                counters.in_checksum_errors += 1;
                return None;
            }
        }
    }
    Some(length)
}
