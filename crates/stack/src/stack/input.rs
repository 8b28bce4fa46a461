//! Input path: classifies each received frame and passes it to its protocol.

use std::net::SocketAddr;

use linerate_port::Frame;
use linerate_port::vnet::VnetHeader;

use super::Stack;
use crate::icmp::{self, News};
use crate::link::Link;
use crate::parameter_problem;
use crate::tcp::Tcp;
use crate::udp::reassembly::Outcome;
use crate::udp::{Arrival, Refusal, Udp};
use crate::wire::ip::{self, Header};
use crate::wire::{
    ETHERNET_BYTES, ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ICMP, ICMPV6, TCP, UDP, word,
};

impl Stack {
    pub(super) fn input(&mut self, frame: Frame) {
        if let Some(frame) = self.sort(frame) {
            self.link.pool.free(frame);
        }
    }

    /// Processes a frame; returns it unless a queue keeps it.
    #[inline]
    fn sort(&mut self, frame: Frame) -> Option<Frame> {
        let bytes = self.memory.bytes(&frame);
        let mut at = self.link.vnet;
        let vnet = if at > 0 {
            VnetHeader::read(bytes).unwrap_or_default()
        } else {
            VnetHeader::default()
        };
        let Some(ethernet) = bytes.get(at..).filter(|rest| rest.len() >= ETHERNET_BYTES) else {
            self.link.counters.link.in_errors += 1;
            return Some(frame);
        };
        if ethernet[..6] != self.link.ethernet && ethernet[0] & 1 == 0 {
            self.link.counters.link.in_not_ours += 1;
            return Some(frame);
        }
        at += ETHERNET_BYTES;
        // Separate paths for IPv4 and IPv6: a header of known version stays in registers, while a
        // header that may be of either is copied through memory, and the copy waits for the short
        // stores that wrote it.
        match word(ethernet, 12) {
            ETHERTYPE_IPV4 => {
                let packet = &bytes[at..];
                let header = ip::parse_v4(packet, self.verify);
                let found = judge(&mut self.link, &mut self.udp, packet, header, vnet);
                self.hand_on(frame, at, vnet, found)
            }
            ETHERTYPE_IPV6 => self.sort_v6(frame, at, vnet),
            ETHERTYPE_ARP => {
                self.link.input_arp(&bytes[at..]);
                Some(frame)
            }
            _ => {
                self.link.counters.link.in_unknown_protocols += 1;
                Some(frame)
            }
        }
    }

    #[inline(never)]
    fn sort_v6(&mut self, frame: Frame, at: usize, vnet: VnetHeader) -> Option<Frame> {
        let packet = &self.memory.bytes(&frame)[at..];
        let header = ip::parse_v6(packet);
        let is_header = header.is_some();
        let found = judge(&mut self.link, &mut self.udp, packet, header, vnet);
        if !is_header {
            self.refuse_v6(&frame, at);
        }
        self.hand_on(frame, at, vnet, found)
    }

    /// Sends a Parameter Problem to the sender of an IPv6 packet whose headers are rejected, if RFC
    /// 4443 calls for one.
    #[cold]
    fn refuse_v6(&mut self, frame: &Frame, at: usize) {
        let bytes = self.memory.bytes(frame);
        if let Some(told) = ip::problem(&bytes[at..]) {
            let to_many = bytes[at - ETHERNET_BYTES] & 1 != 0;
            parameter_problem::tell(&mut self.link, &bytes[at..], told, to_many);
        }
    }

    /// Passes a packet, which begins at offset `at` of the frame, to its protocol.
    #[inline(always)]
    fn hand_on(
        &mut self,
        frame: Frame,
        at: usize,
        vnet: VnetHeader,
        found: Found,
    ) -> Option<Frame> {
        match found {
            Found::Nothing => Some(frame),
            Found::Datagram(header, arrival) => {
                (self.udp).input(&mut self.link, frame, at, &header, arrival)
            }
            Found::NoPort(header) => {
                self.no_port(header, &frame, at);
                Some(frame)
            }
            Found::Other(header) => {
                self.take_in(header, &frame, at, vnet);
                Some(frame)
            }
        }
    }

    /// Processes everything but complete datagrams. Not inlined, and the header is passed by value:
    /// by reference the caller would have to write it to memory, on the path of datagrams too.
    #[inline(never)]
    fn take_in(&mut self, header: Header, frame: &Frame, at: usize, vnet: VnetHeader) {
        let v4 = header.to.is_ipv4();
        let packet = &self.memory.bytes(frame)[at..];
        if let Some(piece) = header.piece {
            let payload = &packet[header.body..header.end];
            let counters = &mut self.link.counters;
            let now = self.link.now;
            let outcome = self
                .udp
                .reassembly
                .input(&header, piece, payload, now, counters);
            if let Outcome::Whole(buffer, length, protocol) = outcome {
                self.input_whole(&Header { protocol, ..header }, buffer, length);
            }
            return;
        }
        match header.protocol {
            TCP if !v4 && header.body != ip::V6_BYTES => {
                let segment = &packet[header.body..header.end];
                input_segment(&mut self.link, &mut self.tcp, &header, segment, vnet);
            }
            TCP => {
                self.link.counters.ip.in_delivers += 1;
                self.tcp.input(&mut self.link, &header, packet, vnet);
            }
            ICMP | ICMPV6 if (header.protocol == ICMP) == v4 => {
                self.link.counters.ip.in_delivers += 1;
                let message = &packet[header.body..header.end];
                self.tcp.told(&mut self.link, &header, message);
                let hops = match v4 {
                    true => packet[8],
                    // Neighbour discovery messages are never fragmented, not even into a single
                    // fragment (RFC 6980, section 5).
                    false if header.body != ip::V6_BYTES && ip::has_fragment_header(packet) => 0,
                    false => packet[7],
                };
                let news = icmp::input(
                    &mut self.link,
                    &mut self.udp.fragmenter,
                    &header,
                    message,
                    hops,
                    self.mtu,
                );
                match news {
                    Some(News::NoPort(port, remote)) => {
                        let local = SocketAddr::new(header.to, port);
                        self.udp.unreachable(local, remote);
                    }
                    Some(News::TooLong(packet)) => packet.heed(&mut self.link),
                    None => {}
                }
            }
            _ => self.link.counters.ip.in_unknown_protocols += 1,
        }
    }

    #[cold]
    fn no_port(&mut self, header: Header, frame: &Frame, at: usize) {
        self.link.counters.udp.no_ports += 1;
        let bytes = self.memory.bytes(frame);
        // No errors for frames to a group: every host on the link would send one (RFC 1122, section
        // 3.2.2).
        if bytes[at - ETHERNET_BYTES] & 1 == 0 {
            icmp::port_unreachable(&mut self.link, &header, &bytes[at..]);
        }
    }

    /// Processes a reassembled datagram.
    fn input_whole(&mut self, header: &Header, buffer: u32, length: usize) {
        let v4 = header.to.is_ipv4();
        let whole = &self.udp.reassembly.bytes(buffer)[..length];
        // Fragments of IPv6 may contain further extension headers in front of the transport header.
        let behind = match v4 {
            true => Some((header.protocol, 0)),
            false => ip::past_extensions(whole, header.protocol, (0, 0)).ok(),
        };
        let Some((protocol, start)) = behind else {
            self.link.counters.ip.in_header_errors += 1;
            self.udp.reassembly.free(buffer);
            return;
        };
        match protocol {
            UDP => {
                self.link.counters.ip.in_delivers += 1;
                let within = start..length;
                let known = (self.udp).input_whole(&mut self.link, header, buffer, within);
                self.link.counters.udp.no_ports += u64::from(!known);
                return;
            }
            ICMP | ICMPV6 if (protocol == ICMP) == v4 => {
                self.link.counters.ip.in_delivers += 1;
                let message = &whole[start..];
                icmp::input(
                    &mut self.link,
                    &mut self.udp.fragmenter,
                    header,
                    message,
                    // Neighbour discovery messages are never fragmented (RFC 6980).
                    0,
                    self.mtu,
                );
            }
            // Fragmented by a router in front of a link with a smaller MTU, where the sender allows
            // that.
            TCP => {
                let segment = &whole[start..];
                let vnet = VnetHeader::default();
                input_segment(&mut self.link, &mut self.tcp, header, segment, vnet);
            }
            _ => self.link.counters.ip.in_unknown_protocols += 1,
        }
        self.udp.reassembly.free(buffer);
    }
}

/// Classification of a received packet.
enum Found {
    /// Dropped, and counted.
    Nothing,
    /// Complete datagram for a socket.
    Datagram(Header, Arrival),
    /// Datagram for a port without a socket.
    NoPort(Header),
    /// Any other packet for this host.
    Other(Header),
}

/// Classifies a packet; `header` is `None` if it could not be parsed.
#[inline(always)]
fn judge(
    link: &mut Link,
    udp: &mut Udp,
    packet: &[u8],
    header: Option<Header>,
    vnet: VnetHeader,
) -> Found {
    link.counters.ip.in_receives += 1;
    let Some(header) = header else {
        link.counters.ip.in_header_errors += 1;
        return Found::Nothing;
    };
    if !link.own.accepts(header.to) {
        link.counters.ip.in_address_errors += 1;
        return Found::Nothing;
    }
    if link.own.is_nobody(header.from) {
        link.counters.ip.in_source_errors += 1;
        return Found::Nothing;
    }
    if header.protocol != UDP || header.piece.is_some() {
        return Found::Other(header);
    }
    link.counters.ip.in_delivers += 1;
    match udp.judge(&mut link.counters.udp, packet, &header, vnet) {
        Ok(arrival) => Found::Datagram(header, arrival),
        Err(Refusal::NoPort) => Found::NoPort(header),
        Err(Refusal::Wrong) => Found::Nothing,
    }
}

/// Processes a segment that was reassembled, or that lies behind extension headers: smoltcp handles
/// neither, so it receives the segment behind a plain IP header.
#[cold]
fn input_segment(
    link: &mut Link,
    tcp: &mut Tcp,
    header: &Header,
    segment: &[u8],
    vnet: VnetHeader,
) {
    let body = ip::header_bytes(header.to);
    let end = body + segment.len();
    if end > usize::from(link.memory.frame_bytes()) {
        link.counters.ip.in_too_long += 1;
        return;
    }
    let Some(mut plain) = link.pool.allocate() else {
        link.counters.ip.in_no_buffer += 1;
        return;
    };
    link.counters.ip.in_delivers += 1;
    let memory = link.memory.clone();
    plain.set_len(end as u16);
    let packet = memory.bytes_mut(&mut plain);
    ip::write(packet, header.from, header.to, TCP, segment.len(), 0);
    ip::mark(packet, header.tos);
    packet[body..].copy_from_slice(segment);
    let header = Header {
        protocol: TCP,
        body,
        end,
        piece: None,
        ..*header
    };
    tcp.input(link, &header, packet, vnet);
    link.pool.free(plain);
}
