//! Input path: classifies each received frame and passes it to its protocol.

use std::net::SocketAddr;

use linerate_packet::vnet::VnetHeader;
use linerate_sys::frames::frame::Frame;

use super::Stack;
use crate::icmp::UdpIcmpError;
use crate::link::LinkLayer;
use crate::tcp::TcpLayer;
use crate::udp::reassembly::FragmentResult;
use crate::udp::{DatagramRejection, ReceivedDatagram, UdpLayer};
use crate::wire::ip::IpHeader;
use crate::wire::{
    ETHERNET_BYTES, ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ICMP, ICMPV6, TCP, UDP, ip,
    read_u16,
};
use crate::{icmp, parameter_problem};

impl Stack {
    pub(super) fn input_frame(&mut self, frame: Frame) {
        if let Some(frame) = self.classify_frame(frame) {
            self.link.pool.free(frame);
        }
    }

    /// Processes a frame; returns it unless a queue keeps it.
    #[inline]
    fn classify_frame(&mut self, frame: Frame) -> Option<Frame> {
        let bytes = self.memory.bytes(&frame);
        let mut at = self.link.vnet_bytes;
        let vnet = if at > 0 {
            VnetHeader::parse(bytes).unwrap_or_default()
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
        match read_u16(ethernet, 12) {
            ETHERTYPE_IPV4 => {
                let packet = &bytes[at..];
                let header = ip::parse_v4(packet, self.verifies_checksums);
                let class = classify_packet(&mut self.link, &mut self.udp, packet, header, vnet);
                self.dispatch(frame, at, vnet, class)
            }
            ETHERTYPE_IPV6 => self.classify_v6(frame, at, vnet),
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
    fn classify_v6(&mut self, frame: Frame, at: usize, vnet: VnetHeader) -> Option<Frame> {
        let packet = &self.memory.bytes(&frame)[at..];
        let header = ip::parse_v6(packet);
        let is_header = header.is_some();
        let class = classify_packet(&mut self.link, &mut self.udp, packet, header, vnet);
        if !is_header {
            self.report_v6_problem(&frame, at);
        }
        self.dispatch(frame, at, vnet, class)
    }

    /// Sends a Parameter Problem to the sender of an IPv6 packet whose headers are rejected, if RFC
    /// 4443 calls for one.
    #[cold]
    fn report_v6_problem(&mut self, frame: &Frame, at: usize) {
        let bytes = self.memory.bytes(frame);
        if let Some(field) = ip::find_problem(&bytes[at..]) {
            let is_group_frame = bytes[at - ETHERNET_BYTES] & 1 != 0;
            parameter_problem::send_parameter_problem(
                &mut self.link,
                &bytes[at..],
                field,
                is_group_frame,
            );
        }
    }

    /// Passes a packet, which begins at offset `at` of the frame, to its protocol.
    #[inline(always)]
    fn dispatch(
        &mut self,
        frame: Frame,
        at: usize,
        vnet: VnetHeader,
        class: PacketClass,
    ) -> Option<Frame> {
        match class {
            PacketClass::Dropped => Some(frame),
            PacketClass::Datagram(header, arrival) => {
                (self.udp).input(&mut self.link, frame, at, &header, arrival)
            }
            PacketClass::ClosedPort(header) => {
                self.reject_closed_port(header, &frame, at);
                Some(frame)
            }
            PacketClass::OtherProtocol(header) => {
                self.input_packet(header, &frame, at, vnet);
                Some(frame)
            }
        }
    }

    /// Processes everything but complete datagrams. Not inlined, and the header is passed by value:
    /// by reference the caller would have to write it to memory, on the path of datagrams too.
    #[inline(never)]
    fn input_packet(&mut self, header: IpHeader, frame: &Frame, at: usize, vnet: VnetHeader) {
        let v4 = header.to.is_ipv4();
        let packet = &self.memory.bytes(frame)[at..];
        if let Some(fragment) = header.fragment {
            let payload = &packet[header.transport..header.end];
            let counters = &mut self.link.counters;
            let now = self.link.now;
            let result = self
                .udp
                .reassembly
                .input(&header, fragment, payload, now, counters);
            if let FragmentResult::Complete(buffer, length, protocol) = result {
                self.input_reassembled(&IpHeader { protocol, ..header }, buffer, length);
            }
            return;
        }
        match header.protocol {
            TCP if !v4 && header.transport != ip::V6_BYTES => {
                let segment = &packet[header.transport..header.end];
                input_segment(&mut self.link, &mut self.tcp, &header, segment, vnet);
            }
            TCP => {
                self.link.counters.ip.in_delivers += 1;
                self.tcp
                    .input_segment(&mut self.link, &header, packet, vnet);
            }
            ICMP | ICMPV6 if (header.protocol == ICMP) == v4 => {
                self.link.counters.ip.in_delivers += 1;
                let message = &packet[header.transport..header.end];
                self.tcp.input_icmp(&mut self.link, &header, message);
                let hops = match v4 {
                    true => packet[8],
                    // Neighbour discovery messages are never fragmented, not even into a single
                    // fragment (RFC 6980, section 5).
                    false
                        if header.transport != ip::V6_BYTES && ip::has_fragment_header(packet) =>
                    {
                        0
                    }
                    false => packet[7],
                };
                let icmp_error = icmp::input_message(
                    &mut self.link,
                    &mut self.udp.fragmenter,
                    &header,
                    message,
                    hops,
                    self.mtu,
                );
                match icmp_error {
                    Some(UdpIcmpError::PortUnreachable(port, remote)) => {
                        let local = SocketAddr::new(header.to, port);
                        self.udp.report_port_unreachable(local, remote);
                    }
                    Some(UdpIcmpError::PacketTooBig(packet)) => packet.apply(&mut self.link),
                    None => {}
                }
            }
            _ => self.link.counters.ip.in_unknown_protocols += 1,
        }
    }

    #[cold]
    fn reject_closed_port(&mut self, header: IpHeader, frame: &Frame, at: usize) {
        self.link.counters.udp.no_ports += 1;
        let bytes = self.memory.bytes(frame);
        // No errors for frames to a group: every host on the link would send one (RFC 1122, section
        // 3.2.2).
        if bytes[at - ETHERNET_BYTES] & 1 == 0 {
            icmp::send_port_unreachable(&mut self.link, &header, &bytes[at..]);
        }
    }

    /// Processes a reassembled datagram.
    fn input_reassembled(&mut self, header: &IpHeader, buffer: u32, length: usize) {
        let v4 = header.to.is_ipv4();
        let datagram = &self.udp.reassembly.bytes(buffer)[..length];
        // Fragments of IPv6 may contain further extension headers in front of the transport header.
        let transport = match v4 {
            true => Some((header.protocol, 0)),
            false => ip::skip_extensions(datagram, header.protocol, (0, 0)).ok(),
        };
        let Some((protocol, start)) = transport else {
            self.link.counters.ip.in_header_errors += 1;
            self.udp.reassembly.free(buffer);
            return;
        };
        match protocol {
            UDP => {
                self.link.counters.ip.in_delivers += 1;
                let range = start..length;
                let has_socket =
                    (self.udp).input_reassembled(&mut self.link, header, buffer, range);
                self.link.counters.udp.no_ports += u64::from(!has_socket);
                return;
            }
            ICMP | ICMPV6 if (protocol == ICMP) == v4 => {
                self.link.counters.ip.in_delivers += 1;
                let message = &datagram[start..];
                icmp::input_message(
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
                let segment = &datagram[start..];
                let vnet = VnetHeader::default();
                input_segment(&mut self.link, &mut self.tcp, header, segment, vnet);
            }
            _ => self.link.counters.ip.in_unknown_protocols += 1,
        }
        self.udp.reassembly.free(buffer);
    }
}

/// Classification of a received packet.
enum PacketClass {
    /// Dropped, and counted.
    Dropped,
    /// Complete datagram for a socket.
    Datagram(IpHeader, ReceivedDatagram),
    /// Datagram for a port without a socket.
    ClosedPort(IpHeader),
    /// Any other packet for this host.
    OtherProtocol(IpHeader),
}

/// Classifies a packet; `header` is `None` if it could not be parsed.
#[inline(always)]
fn classify_packet(
    link: &mut LinkLayer,
    udp: &mut UdpLayer,
    packet: &[u8],
    header: Option<IpHeader>,
    vnet: VnetHeader,
) -> PacketClass {
    link.counters.ip.in_receives += 1;
    let Some(header) = header else {
        link.counters.ip.in_header_errors += 1;
        return PacketClass::Dropped;
    };
    if !link.addressing.accepts(header.to) {
        link.counters.ip.in_address_errors += 1;
        return PacketClass::Dropped;
    }
    if link.addressing.is_invalid_source(header.from) {
        link.counters.ip.in_source_errors += 1;
        return PacketClass::Dropped;
    }
    if header.protocol != UDP || header.fragment.is_some() {
        return PacketClass::OtherProtocol(header);
    }
    link.counters.ip.in_delivers += 1;
    match udp.validate(&mut link.counters.udp, packet, &header, vnet) {
        Ok(arrival) => PacketClass::Datagram(header, arrival),
        Err(DatagramRejection::NoPort) => PacketClass::ClosedPort(header),
        Err(DatagramRejection::Invalid) => PacketClass::Dropped,
    }
}

/// Processes a segment that was reassembled, or that lies behind extension headers: smoltcp handles
/// neither, so it receives the segment behind a plain IP header.
#[cold]
fn input_segment(
    link: &mut LinkLayer,
    tcp: &mut TcpLayer,
    header: &IpHeader,
    segment: &[u8],
    vnet: VnetHeader,
) {
    let body = ip::header_bytes(header.to);
    let end = body + segment.len();
    if end > usize::from(link.memory.frame_bytes()) {
        link.counters.ip.in_too_long += 1;
        return;
    }
    let Some(mut frame) = link.pool.allocate() else {
        link.counters.ip.in_no_buffer += 1;
        return;
    };
    link.counters.ip.in_delivers += 1;
    let memory = link.memory.clone();
    frame.set_len(end as u16);
    let packet = memory.bytes_mut(&mut frame);
    ip::write_header(packet, header.from, header.to, TCP, segment.len(), 0);
    ip::write_tos(packet, header.tos);
    packet[body..].copy_from_slice(segment);
    let header = IpHeader {
        protocol: TCP,
        transport: body,
        end,
        fragment: None,
        ..*header
    };
    tcp.input_segment(link, &header, packet, vnet);
    link.pool.free(frame);
}
