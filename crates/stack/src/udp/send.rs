//! Sending of datagrams.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::task::Poll;

use linerate_packet::checksum::UnfoldedSum;
use linerate_packet::vnet::VnetHeader;
use linerate_sys::frames::frame::Frame;

use super::fragment::max_payload;
use super::{UdpLayer, UdpSocket};
use crate::config::ChecksumMode;
use crate::error::StackError;
use crate::link::LinkLayer;
use crate::path_mtu_cache::PathMtuCache;
use crate::socket::SocketId;
use crate::stage_watch::FrameMark;
use crate::wire::ip::{V4_BYTES, V6_BYTES};
use crate::wire::{ETHERNET_BYTES, UDP, UDP_BYTES, ip, write_u16};

const MAX_HEADER_BYTES: usize = ETHERNET_BYTES + V6_BYTES + UDP_BYTES;

/// Prepared headers for one peer: a datagram then costs a copy and a few additions.
pub(super) struct HeaderTemplate {
    to: SocketAddr,
    /// Epoch of the neighbour cache when it was made; zero: without an Ethernet address.
    epoch: u32,
    /// Ethernet, IP and UDP headers; lengths, identification and checksums are zero.
    headers: [u8; MAX_HEADER_BYTES],
    /// Sums of the IPv4 header, of the pseudo header without the length, and of the ports.
    header_sum: UnfoldedSum,
    pseudo_sum: UnfoldedSum,
    ports_sum: UnfoldedSum,
    from: IpAddr,
    /// Offset of IPv4 identification numbers.
    ip_id_offset: u16,
    /// Longest packet that may leave unfragmented, in bytes.
    packet_limit: usize,
    /// Hash under which long packets are recorded; zero before the first one.
    flow_hash: u32,
}

impl Default for HeaderTemplate {
    fn default() -> Self {
        Self {
            to: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
            epoch: 0,
            headers: [0; MAX_HEADER_BYTES],
            header_sum: UnfoldedSum::default(),
            pseudo_sum: UnfoldedSum::default(),
            ports_sum: UnfoldedSum::default(),
            from: Ipv4Addr::UNSPECIFIED.into(),
            ip_id_offset: 0,
            packet_limit: 0,
            flow_hash: 0,
        }
    }
}

impl HeaderTemplate {
    /// Makes the headers; the peer's Ethernet address may be unknown.
    fn fill(&mut self, link: &LinkLayer, from: IpAddr, port: u16, to: SocketAddr) {
        let head = ip::header_bytes(to.ip());
        (self.from, self.to, self.flow_hash) = (from, to, 0);
        self.headers[6..12].copy_from_slice(&link.ethernet);
        write_u16(&mut self.headers, 12, ip::ethertype(to.ip()));
        let packet = &mut self.headers[ETHERNET_BYTES..];
        ip::write_header(packet, from, to.ip(), UDP, 0, 0);
        link.set_tos_and_hops(packet, to.ip());
        if head == V4_BYTES {
            self.ip_id_offset = link.ip_ids.pair_offset(from, to.ip()) as u16;
            write_u16(packet, 2, 0);
            write_u16(packet, 10, 0);
            self.header_sum = UnfoldedSum::from_bytes(&packet[..V4_BYTES]);
        }
        write_udp_header(&mut packet[head..], port, to, 0);
        self.pseudo_sum = ip::pseudo_sum(from, to.ip(), UDP, 0);
        self.ports_sum = UnfoldedSum::from_u16(port) + UnfoldedSum::from_u16(to.port());
    }

    /// Returns whether the headers are valid for these addresses, and a packet of this length
    /// leaves unfragmented.
    #[inline]
    pub(super) fn matches(
        &self,
        (from, to): (IpAddr, SocketAddr),
        epoch: u32,
        packet: usize,
    ) -> bool {
        self.to == to && self.from == from && self.epoch == epoch && packet <= self.packet_limit
    }

    /// Records a datagram that a router may report as too long.
    fn record_long(&mut self, port: u16, paths: &mut PathMtuCache) {
        if self.flow_hash == 0 {
            let local = SocketAddr::new(self.from, port);
            self.flow_hash = paths.datagrams.flow_hash(local, self.to);
        }
        paths.datagrams.insert(self.flow_hash);
    }
}

/// Writes a UDP header with checksum zero.
#[inline]
fn write_udp_header(datagram: &mut [u8], port: u16, to: SocketAddr, length: u16) {
    for (at, value) in [(0, port), (2, to.port()), (4, length), (6, 0)] {
        write_u16(datagram, at, value);
    }
}

/// Returns a datagram's checksum. Zero would mean "none"; 0xffff is equivalent in ones' complement
/// (RFC 768).
#[inline(always)]
fn finish_checksum(sum: UnfoldedSum) -> u16 {
    match !sum.to_u16() {
        0 => 0xffff,
        checksum => checksum,
    }
}

impl UdpSocket {
    /// Returns the local address at which the last datagram of this peer arrived: the next one sent
    /// to that peer is a reply and must come from there (RFC 1122, section 4.1.3.5).
    #[inline]
    fn reply_address(&self, peer: SocketAddr) -> Option<IpAddr> {
        let (from, local) = self.last_request?;
        (from == peer && self.address.is_none()).then_some(local)
    }
}

impl UdpLayer {
    /// Sends a datagram.
    #[inline]
    pub(crate) fn send(
        &mut self,
        link: &mut LinkLayer,
        id: SocketId,
        to: Option<SocketAddr>,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Poll<Result<usize, StackError>> {
        let (to, packet_limit) = match self.prepare_send(link, id, to) {
            Poll::Ready(Ok(prepared)) => prepared,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => return Poll::Pending,
        };
        if ip::header_bytes(to.ip()) + UDP_BYTES + bytes > packet_limit {
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
        link: &mut LinkLayer,
        id: SocketId,
        to: Option<SocketAddr>,
        (bytes, count): (usize, usize),
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> Poll<Result<usize, StackError>> {
        let (to, packet_limit) = match self.prepare_send(link, id, to) {
            Poll::Ready(Ok(prepared)) => prepared,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => return Poll::Pending,
        };
        let is_fragmented = ip::header_bytes(to.ip()) + UDP_BYTES + bytes > packet_limit;
        for number in 0..count {
            let fill = |buffer: &mut [u8]| fill(number, buffer);
            let sent = if is_fragmented {
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
    pub(crate) fn can_send(&mut self, link: &mut LinkLayer) -> bool {
        self.can_begin(link) && link.can_send()
    }

    /// Returns whether no fragmented datagram is leaving; others wait, so that none overtakes it.
    #[inline]
    fn can_begin(&mut self, link: &mut LinkLayer) -> bool {
        if !self.fragmenter.is_idle() {
            self.fragmenter.poll(link);
        }
        self.fragmenter.is_idle()
    }

    /// Prepares the socket's headers; returns the destination and the longest packet that may leave
    /// unfragmented.
    #[inline]
    fn prepare_send(
        &mut self,
        link: &mut LinkLayer,
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
        if !self.can_begin(link) {
            return Poll::Pending;
        }
        let epoch = link.neighbors.epoch();
        let socket = &self.sockets[id.index as usize];
        let template = &socket.template;
        if (template.to != to
            || template.epoch != epoch
            || (self.has_several_addresses
                && socket
                    .reply_address(to)
                    .is_some_and(|local| local != template.from)))
            && let Err(error) = self.make_headers(link, id, to)
        {
            return Poll::Ready(Err(error));
        }
        let packet_limit = self.sockets[id.index as usize].template.packet_limit;
        Poll::Ready(Ok((to, packet_limit)))
    }

    /// Sends a datagram that fits into a frame; returns false without space.
    #[inline]
    fn send_one(
        &mut self,
        link: &mut LinkLayer,
        id: SocketId,
        to: SocketAddr,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> bool {
        if !link.can_send() {
            return false;
        }
        let Some(frame) = link.allocate_frame(ip::header_bytes(to.ip()) + UDP_BYTES + bytes) else {
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
        link: &mut LinkLayer,
        id: SocketId,
        to: SocketAddr,
        mut frame: Frame,
        fill: impl FnOnce(&mut [u8]),
    ) {
        let head = ip::header_bytes(to.ip());
        let bytes = usize::from(frame.len()) - link.header_bytes() - head - UDP_BYTES;
        let (vnet, offload) = (link.vnet_bytes, self.checksum == ChecksumMode::Offload);
        let template = &self.sockets[id.index as usize].template;
        let has_ethernet = template.epoch != 0;
        let frame_bytes = link.memory.bytes_mut(&mut frame);
        let ethernet = &mut frame_bytes[vnet..];
        // Copies of constant length compile to moves instead of a call.
        if head == V4_BYTES {
            const HEADERS: usize = ETHERNET_BYTES + V4_BYTES + UDP_BYTES;
            ethernet[..HEADERS].copy_from_slice(&template.headers[..HEADERS]);
        } else {
            ethernet[..MAX_HEADER_BYTES].copy_from_slice(&template.headers);
        }
        let length = (UDP_BYTES + bytes) as u16;
        let packet = &mut ethernet[ETHERNET_BYTES..];
        if head == V4_BYTES {
            let ip_id = link.ip_ids.next_from(template.ip_id_offset);
            let total_bytes = V4_BYTES as u16 + length;
            write_u16(packet, 2, total_bytes);
            write_u16(packet, 4, ip_id);
            let header_sum = template.header_sum
                + UnfoldedSum::from_u16(total_bytes)
                + UnfoldedSum::from_u16(ip_id);
            write_u16(packet, 10, !header_sum.to_u16());
        } else {
            write_u16(packet, 4, length);
        }
        let datagram = &mut packet[head..];
        write_u16(datagram, 4, length);
        fill(&mut datagram[UDP_BYTES..]);
        let pseudo = template.pseudo_sum + UnfoldedSum::from_u16(length);
        let mut vnet_header = VnetHeader::default();
        if !offload {
            // The header's sum is made from its values, not from the bytes just written: a load
            // wider than the stores before it would wait for them.
            let header = template.ports_sum + UnfoldedSum::from_u16(length);
            let payload = UnfoldedSum::from_bytes(&datagram[UDP_BYTES..]);
            write_u16(datagram, 6, finish_checksum(pseudo + header + payload));
        } else if vnet > 0 {
            write_u16(datagram, 6, pseudo.to_u16());
            vnet_header.needs_checksum = true;
            vnet_header.checksum_start = (ETHERNET_BYTES + head) as u16;
            vnet_header.checksum_offset = 6;
        }
        link.counters.udp.out_datagrams += 1;
        let socket = &mut self.sockets[id.index as usize];
        let number = socket.sent;
        socket.sent = number.wrapping_add(1);
        if PathMtuCache::may_exceed_path(head + UDP_BYTES + bytes, head == V4_BYTES) {
            socket
                .template
                .record_long(socket.port, &mut link.path_mtu_cache);
        }
        if let Some(watch) = &link.stage_watch {
            link.mark = Some(FrameMark {
                socket: id,
                number,
                request_arrived: socket.request_arrived,
                finished_at: watch.read_stage_clock(),
                udp_offset: vnet + ETHERNET_BYTES + head,
                has_checksum: !offload,
            });
        }
        if has_ethernet {
            if vnet > 0 {
                link.memory.bytes_mut(&mut frame)[..vnet].copy_from_slice(&vnet_header.to_bytes());
            }
            link.push(frame);
        } else {
            link.send(frame, to.ip(), vnet_header);
        }
    }

    /// Makes a socket's headers, with the next hop's Ethernet address if it is known.
    #[cold]
    fn make_headers(
        &mut self,
        link: &mut LinkLayer,
        id: SocketId,
        to: SocketAddr,
    ) -> Result<(), StackError> {
        let address = to.ip();
        let hop = link.next_hop(address).ok_or_else(|| {
            link.counters.ip.out_no_routes += 1;
            StackError::NoRoute { address }
        })?;
        let socket = &mut self.sockets[id.index as usize];
        let bound_address = socket
            .address
            .filter(|local| local.is_ipv4() == address.is_ipv4());
        let from = bound_address
            .or_else(|| socket.reply_address(to))
            .or_else(|| link.addressing.source_for(address));
        let from = from.ok_or(StackError::NoRoute { address })?;
        socket.template.fill(link, from, socket.port, to);
        socket.template.packet_limit = link.path_mtu_cache.packet_limit(address, self.mtu);
        let resolved = link.resolve_neighbor(hop);
        let template = &mut self.sockets[id.index as usize].template;
        template.epoch = match resolved {
            Some(ethernet) => {
                template.headers[..6].copy_from_slice(&ethernet);
                link.neighbors.epoch()
            }
            None => 0,
        };
        Ok(())
    }

    fn send_long(
        &mut self,
        link: &mut LinkLayer,
        id: SocketId,
        to: SocketAddr,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Poll<Result<usize, StackError>> {
        let head = ip::header_bytes(to.ip());
        let length = UDP_BYTES + bytes;
        let packet_limit = self.sockets[id.index as usize].template.packet_limit;
        let (limit, remedy) = match self.fragmenter.is_on() {
            false if packet_limit < self.mtu => (
                packet_limit - head - UDP_BYTES,
                "the path MTU is smaller: set ip.fragmentation=on, or send less",
            ),
            false => (
                packet_limit - head - UDP_BYTES,
                "it needs fragmentation: set ip.fragmentation=on, send less, or raise mtu",
            ),
            true => (max_payload(to.ip()) - UDP_BYTES, "send less"),
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
        write_udp_header(datagram, port, to, length as u16);
        fill(&mut datagram[UDP_BYTES..]);
        if let Some(watch) = &link.stage_watch
            && let (Some(stamps), Some(request_arrived)) = (&watch.stamps, socket.request_arrived)
        {
            stamps.write(&mut datagram[UDP_BYTES..], request_arrived, (watch.clock)());
        }
        // Fragments are never offloaded: the stack sums them, unless the port stays in memory.
        if self.checksum == ChecksumMode::Software || link.vnet_bytes > 0 {
            let pseudo = ip::pseudo_sum(from, to.ip(), UDP, length);
            write_u16(
                datagram,
                6,
                finish_checksum(pseudo + UnfoldedSum::from_bytes(datagram)),
            );
        }
        let socket = &mut self.sockets[id.index as usize];
        socket.sent = socket.sent.wrapping_add(1);
        if PathMtuCache::may_exceed_path(head + length, head == V4_BYTES) {
            socket
                .template
                .record_long(socket.port, &mut link.path_mtu_cache);
        }
        let addresses = (from, to.ip());
        self.fragmenter.send(link, addresses, UDP, packet_limit);
        link.counters.udp.out_datagrams += 1;
        self.fragmenter.poll(link);
        Poll::Ready(Ok(bytes))
    }
}
