//! Sending of datagrams.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::task::Poll;

use linerate_port::Frame;
use linerate_port::vnet::VnetHeader;

use super::fragment::longest;
use super::{Socket, Udp};
use crate::config::Checksum;
use crate::error::StackError;
use crate::link::Link;
use crate::pmtu_cache::Paths;
use crate::socket::SocketId;
use crate::stage_watch::Mark;
use crate::wire::ip::{self, V4_BYTES, V6_BYTES};
use crate::wire::{ETHERNET_BYTES, Sum, UDP, UDP_BYTES, put};

const MOST_HEADER: usize = ETHERNET_BYTES + V6_BYTES + UDP_BYTES;

/// Prepared headers for one peer: a datagram then costs a copy and a few additions.
pub(super) struct Template {
    to: SocketAddr,
    /// Epoch of the neighbour cache when it was made; zero: without an Ethernet address.
    epoch: u32,
    /// Ethernet, IP and UDP headers; lengths, identification and checksums are zero.
    bytes: [u8; MOST_HEADER],
    /// Sums of the IPv4 header, of the pseudo header without the length, and of the ports.
    header_sum: Sum,
    pseudo_sum: Sum,
    ports_sum: Sum,
    from: IpAddr,
    /// Offset of IPv4 identification numbers.
    place: u16,
    /// Longest packet that may leave unfragmented, in bytes.
    whole: usize,
    /// Hash under which long packets are recorded; zero before the first one.
    name: u32,
}

impl Default for Template {
    fn default() -> Self {
        Self {
            to: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
            epoch: 0,
            bytes: [0; MOST_HEADER],
            header_sum: Sum::default(),
            pseudo_sum: Sum::default(),
            ports_sum: Sum::default(),
            from: Ipv4Addr::UNSPECIFIED.into(),
            place: 0,
            whole: 0,
            name: 0,
        }
    }
}

impl Template {
    /// Makes the headers; the peer's Ethernet address may be unknown.
    fn make(&mut self, link: &Link, from: IpAddr, port: u16, to: SocketAddr) {
        let head = ip::header_bytes(to.ip());
        (self.from, self.to, self.name) = (from, to, 0);
        self.bytes[6..12].copy_from_slice(&link.ethernet);
        put(&mut self.bytes, 12, ip::ethertype(to.ip()));
        let packet = &mut self.bytes[ETHERNET_BYTES..];
        ip::write(packet, from, to.ip(), UDP, 0, 0);
        link.label(packet, to.ip());
        if head == V4_BYTES {
            self.place = link.numbers.place(from, to.ip()) as u16;
            put(packet, 2, 0);
            put(packet, 10, 0);
            self.header_sum = Sum::of(&packet[..V4_BYTES]);
        }
        head_of(&mut packet[head..], port, to, 0);
        self.pseudo_sum = ip::pseudo_sum(from, to.ip(), UDP, 0);
        self.ports_sum = Sum::word(port) + Sum::word(to.port());
    }

    /// Returns whether the headers are valid for these addresses, and a packet of this length
    /// leaves unfragmented.
    #[inline]
    pub(super) fn suits(
        &self,
        (from, to): (IpAddr, SocketAddr),
        epoch: u32,
        packet: usize,
    ) -> bool {
        self.to == to && self.from == from && self.epoch == epoch && packet <= self.whole
    }

    /// Records a datagram that a router may report as too long.
    fn leaves_long(&mut self, port: u16, paths: &mut Paths) {
        if self.name == 0 {
            let local = SocketAddr::new(self.from, port);
            self.name = paths.datagrams.name(local, self.to);
        }
        paths.datagrams.add(self.name);
    }
}

/// Writes a UDP header with checksum zero.
#[inline]
fn head_of(datagram: &mut [u8], port: u16, to: SocketAddr, length: u16) {
    for (at, word) in [(0, port), (2, to.port()), (4, length), (6, 0)] {
        put(datagram, at, word);
    }
}

/// Returns a datagram's checksum. Zero would mean "none"; 0xffff is equivalent in ones' complement
/// (RFC 768).
#[inline(always)]
fn checksum(sum: Sum) -> u16 {
    match !sum.folded() {
        0 => 0xffff,
        checksum => checksum,
    }
}

impl Socket {
    /// Returns the local address at which the last datagram of this peer arrived: the next one sent
    /// to that peer is a reply and must come from there (RFC 1122, section 4.1.3.5).
    #[inline]
    fn asked_at(&self, peer: SocketAddr) -> Option<IpAddr> {
        let (from, own) = self.heard?;
        (from == peer && self.address.is_none()).then_some(own)
    }
}

impl Udp {
    /// Sends a datagram.
    #[inline]
    pub(crate) fn send(
        &mut self,
        link: &mut Link,
        id: SocketId,
        to: Option<SocketAddr>,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Poll<Result<usize, StackError>> {
        let (to, whole) = match self.begin(link, id, to) {
            Poll::Ready(Ok(found)) => found,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => return Poll::Pending,
        };
        if ip::header_bytes(to.ip()) + UDP_BYTES + bytes > whole {
            return self.send_long(link, id, to, bytes, fill);
        }
        match self.send_one(link, id, to, bytes, fill) {
            true => Poll::Ready(Ok(bytes)),
            false => Poll::Pending,
        }
    }

    /// Sends datagrams of one size while there is space; what they have in common is checked once.
    #[inline]
    pub(crate) fn send_burst(
        &mut self,
        link: &mut Link,
        id: SocketId,
        to: Option<SocketAddr>,
        (bytes, count): (usize, usize),
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> Poll<Result<usize, StackError>> {
        let (to, whole) = match self.begin(link, id, to) {
            Poll::Ready(Ok(found)) => found,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => return Poll::Pending,
        };
        let long = ip::header_bytes(to.ip()) + UDP_BYTES + bytes > whole;
        for number in 0..count {
            let fill = |room: &mut [u8]| fill(number, room);
            let sent = if long {
                match self.send(link, id, Some(to), bytes, fill) {
                    Poll::Ready(Err(error)) if number == 0 => return Poll::Ready(Err(error)),
                    sent => matches!(sent, Poll::Ready(Ok(_))),
                }
            } else {
                self.send_one(link, id, to, bytes, fill)
            };
            if !sent {
                return match number {
                    0 => Poll::Pending,
                    _ => Poll::Ready(Ok(number)),
                };
            }
        }
        Poll::Ready(Ok(count))
    }

    /// Returns whether a datagram may be sent now.
    #[inline]
    pub(crate) fn has_room(&mut self, link: &mut Link) -> bool {
        self.may_begin(link) && link.has_room()
    }

    /// Returns whether no fragmented datagram is leaving; others wait, so that none overtakes it.
    #[inline]
    fn may_begin(&mut self, link: &mut Link) -> bool {
        if !self.fragmenter.is_idle() {
            self.fragmenter.work(link);
        }
        self.fragmenter.is_idle()
    }

    /// Prepares the socket's headers; returns the destination and the longest packet that may leave
    /// unfragmented.
    #[inline]
    fn begin(
        &mut self,
        link: &mut Link,
        id: SocketId,
        to: Option<SocketAddr>,
    ) -> Poll<Result<(SocketAddr, usize), StackError>> {
        let to = match self.socket(id, "udp_send") {
            Ok(socket) => match to.or(socket.peer) {
                Some(to) => to,
                None => return Poll::Ready(Err(StackError::NotConnected)),
            },
            Err(error) => return Poll::Ready(Err(error)),
        };
        if !self.may_begin(link) {
            return Poll::Pending;
        }
        let epoch = link.neighbors.epoch();
        let socket = &self.sockets[id.index as usize];
        let template = &socket.template;
        if (template.to != to
            || template.epoch != epoch
            || (self.several && socket.asked_at(to).is_some_and(|own| own != template.from)))
            && let Err(error) = self.prepare(link, id, to)
        {
            return Poll::Ready(Err(error));
        }
        let whole = self.sockets[id.index as usize].template.whole;
        Poll::Ready(Ok((to, whole)))
    }

    /// Sends a datagram that fits into a frame; returns false without space.
    #[inline]
    fn send_one(
        &mut self,
        link: &mut Link,
        id: SocketId,
        to: SocketAddr,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> bool {
        if !link.has_room() {
            return false;
        }
        let Some(frame) = link.make(ip::header_bytes(to.ip()) + UDP_BYTES + bytes) else {
            return false;
        };
        self.send_frame(link, id, to, frame, fill);
        true
    }

    /// Writes headers and checksum around the payload that `fill` writes into a frame of the right
    /// length, and sends it.
    #[inline(always)]
    pub(super) fn send_frame(
        &mut self,
        link: &mut Link,
        id: SocketId,
        to: SocketAddr,
        mut frame: Frame,
        fill: impl FnOnce(&mut [u8]),
    ) {
        let head = ip::header_bytes(to.ip());
        let bytes = usize::from(frame.len()) - link.head() - head - UDP_BYTES;
        let (vnet, offload) = (link.vnet, self.checksum == Checksum::Offload);
        let template = &self.sockets[id.index as usize].template;
        let known = template.epoch != 0;
        let frame_bytes = link.memory.bytes_mut(&mut frame);
        let ethernet = &mut frame_bytes[vnet..];
        // Copies of constant length compile to moves instead of a call.
        if head == V4_BYTES {
            const HEADERS: usize = ETHERNET_BYTES + V4_BYTES + UDP_BYTES;
            ethernet[..HEADERS].copy_from_slice(&template.bytes[..HEADERS]);
        } else {
            ethernet[..MOST_HEADER].copy_from_slice(&template.bytes);
        }
        let length = (UDP_BYTES + bytes) as u16;
        let packet = &mut ethernet[ETHERNET_BYTES..];
        if head == V4_BYTES {
            let number = link.numbers.next_from(template.place);
            let total = V4_BYTES as u16 + length;
            put(packet, 2, total);
            put(packet, 4, number);
            let summed = template.header_sum + Sum::word(total) + Sum::word(number);
            put(packet, 10, !summed.folded());
        } else {
            put(packet, 4, length);
        }
        let datagram = &mut packet[head..];
        put(datagram, 4, length);
        fill(&mut datagram[UDP_BYTES..]);
        let pseudo = template.pseudo_sum + Sum::word(length);
        let mut vnet_header = VnetHeader::default();
        if !offload {
            // The header's sum is made from its values, not from the bytes just written: a load
            // wider than the stores before it would wait for them.
            let header = template.ports_sum + Sum::word(length);
            let payload = Sum::of(&datagram[UDP_BYTES..]);
            put(datagram, 6, checksum(pseudo + header + payload));
        } else if vnet > 0 {
            put(datagram, 6, pseudo.folded());
            vnet_header.needs_checksum = true;
            vnet_header.checksum_start = (ETHERNET_BYTES + head) as u16;
            vnet_header.checksum_offset = 6;
        }
        link.counters.udp.out_datagrams += 1;
        let socket = &mut self.sockets[id.index as usize];
        let sent = socket.sent;
        socket.sent = sent.wrapping_add(1);
        if Paths::may_be_too_long(head + UDP_BYTES + bytes, head == V4_BYTES) {
            socket.template.leaves_long(socket.port, &mut link.paths);
        }
        if let Some(watch) = &link.watch {
            link.mark = Some(Mark {
                socket: id,
                number: sent,
                asked: socket.asked,
                handed: watch.stage_now(),
                datagram: vnet + ETHERNET_BYTES + head,
                summed: !offload,
            });
        }
        if known {
            if vnet > 0 {
                link.memory.bytes_mut(&mut frame)[..vnet].copy_from_slice(&vnet_header.bytes());
            }
            link.push(frame);
        } else {
            link.send(frame, to.ip(), vnet_header);
        }
    }

    /// Makes a socket's headers, with the next hop's Ethernet address if it is known.
    #[cold]
    fn prepare(&mut self, link: &mut Link, id: SocketId, to: SocketAddr) -> Result<(), StackError> {
        let address = to.ip();
        let hop = link.hop(address).ok_or_else(|| {
            link.counters.ip.out_no_routes += 1;
            StackError::NoRoute { address }
        })?;
        let socket = &mut self.sockets[id.index as usize];
        let bound = socket
            .address
            .filter(|own| own.is_ipv4() == address.is_ipv4());
        let from = bound
            .or_else(|| socket.asked_at(to))
            .or_else(|| link.own.source_for(address));
        let from = from.ok_or(StackError::NoRoute { address })?;
        socket.template.make(link, from, socket.port, to);
        socket.template.whole = link.paths.whole(address, self.mtu);
        let known = link.neighbor(hop);
        let template = &mut self.sockets[id.index as usize].template;
        template.epoch = match known {
            Some(ethernet) => {
                template.bytes[..6].copy_from_slice(&ethernet);
                link.neighbors.epoch()
            }
            None => 0,
        };
        Ok(())
    }

    fn send_long(
        &mut self,
        link: &mut Link,
        id: SocketId,
        to: SocketAddr,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Poll<Result<usize, StackError>> {
        let head = ip::header_bytes(to.ip());
        let length = UDP_BYTES + bytes;
        let whole = self.sockets[id.index as usize].template.whole;
        let (limit, remedy) = match self.fragmenter.is_on() {
            false if whole < self.mtu => (
                whole - head - UDP_BYTES,
                "the path MTU is smaller: set ip.fragmentation=on, or send less",
            ),
            false => (
                whole - head - UDP_BYTES,
                "it needs fragmentation: set ip.fragmentation=on, send less, or raise mtu",
            ),
            true => (longest(to.ip()) - UDP_BYTES, "send less"),
        };
        if bytes > limit {
            link.counters.ip.fragmented_fails += 1;
            return Poll::Ready(Err(StackError::TooLong {
                bytes,
                limit,
                remedy,
            }));
        }
        let socket = &self.sockets[id.index as usize];
        let (from, port) = (socket.template.from, socket.port);
        let Some(datagram) = self.fragmenter.begin(length) else {
            return Poll::Pending;
        };
        head_of(datagram, port, to, length as u16);
        fill(&mut datagram[UDP_BYTES..]);
        if let Some(watch) = &link.watch
            && let (Some(stamps), Some(asked)) = (&watch.stamps, socket.asked)
        {
            stamps.write(&mut datagram[UDP_BYTES..], asked, (watch.clock)());
        }
        // Fragments are never offloaded: the stack sums them, unless the port stays in memory.
        if self.checksum == Checksum::Software || link.vnet > 0 {
            let pseudo = ip::pseudo_sum(from, to.ip(), UDP, length);
            put(datagram, 6, checksum(pseudo + Sum::of(datagram)));
        }
        let socket = &mut self.sockets[id.index as usize];
        socket.sent = socket.sent.wrapping_add(1);
        if Paths::may_be_too_long(head + length, head == V4_BYTES) {
            socket.template.leaves_long(socket.port, &mut link.paths);
        }
        let ends = (from, to.ip());
        self.fragmenter.send(link, ends, UDP, whole);
        link.counters.udp.out_datagrams += 1;
        self.fragmenter.work(link);
        Poll::Ready(Ok(bytes))
    }
}
