//! ICMP and ICMPv6: echo replies, Port Unreachable and Packet Too Big.

use std::net::{IpAddr, SocketAddr};

use linerate_packet::vnet::VnetHeader;

use crate::link::LinkLayer;
use crate::path_mtu_cache::{PathMtuCache, plausible_mtu};
use crate::udp::fragment::{Fragmenter, fragment_count};
use crate::wire::ip::IpHeader;
use crate::wire::{
    FRAGMENT_HEADER_V6, ICMP, ICMPV6, UDP, checksum_sum, combine_sums, ip, read_u16, read_u32,
    update_checksum, write_u16,
};

const HEADER_BYTES: usize = 8;
/// Type of the ICMPv6 Packet Too Big message (RFC 4443, section 3.2).
const PACKET_TOO_BIG: u8 = 2;
/// Bytes of the offending packet that an error quotes (RFC 1812, section 4.3.2.3; RFC 4443).
const QUOTE_BYTES: usize = 548;

struct MessageTypes {
    echo: u8,
    reply: u8,
    unreachable: u8,
    port: u8,
}

const TYPES_V4: MessageTypes = MessageTypes {
    echo: 8,
    reply: 0,
    unreachable: 3,
    port: 3,
};

const TYPES_V6: MessageTypes = MessageTypes {
    echo: 128,
    reply: 129,
    unreachable: 1,
    port: 4,
};

const fn message_types(to: IpAddr) -> (&'static MessageTypes, u8) {
    match to {
        IpAddr::V4(_) => (&TYPES_V4, ICMP),
        IpAddr::V6(_) => (&TYPES_V6, ICMPV6),
    }
}

fn pseudo_header_sum(header: &IpHeader, bytes: usize) -> u16 {
    match header.to {
        IpAddr::V4(_) => 0,
        IpAddr::V6(_) => ip::folded_pseudo_sum(header.from, header.to, ICMPV6, bytes),
    }
}

/// Error received about a packet that the stack sent.
pub(crate) enum UdpIcmpError {
    /// Port Unreachable for a datagram: its local port, and its destination.
    PortUnreachable(u16, SocketAddr),
    PacketTooBig(PacketTooBig),
}

/// Packet Too Big message for an IPv6 packet.
pub(crate) struct PacketTooBig {
    /// Source and destination of the quoted packet; ports are zero for an echo reply.
    from: SocketAddr,
    to: SocketAddr,
    is_echo_reply: bool,
    /// Length of the quoted packet, and the MTU of the router's link, in bytes.
    bytes: u16,
    mtu: u32,
}

impl PacketTooBig {
    /// Parses the quoted packet; `None` for TCP segments, which [`crate::tcp`] handles.
    fn parse(message: &[u8]) -> Option<Self> {
        let quote = &message[HEADER_BYTES..];
        let head = quote.get(..ip::V6_BYTES)?;
        let address = |at: usize| -> [u8; 16] { head[at..at + 16].try_into().expect("sixteen") };
        let (protocol, body) = match head[6] {
            FRAGMENT_HEADER_V6 => {
                let fragment = quote.get(ip::V6_BYTES..ip::V6_BYTES + ip::FRAGMENT_BYTES)?;
                // Only the first fragment contains ports; if it is too long, so are the others.
                if read_u16(fragment, 2) & 0xfff8 != 0 {
                    return None;
                }
                (fragment[0], ip::V6_BYTES + ip::FRAGMENT_BYTES)
            }
            protocol => (protocol, ip::V6_BYTES),
        };
        let transport_start = quote.get(body..body + 4)?;
        let ports = match protocol {
            UDP => (read_u16(transport_start, 0), read_u16(transport_start, 2)),
            ICMPV6 if transport_start[0] == TYPES_V6.reply => (0, 0),
            _ => return None,
        };
        Some(Self {
            from: SocketAddr::new(address(8).into(), ports.0),
            to: SocketAddr::new(address(24).into(), ports.1),
            is_echo_reply: protocol == ICMPV6,
            bytes: read_u16(head, 4).saturating_add(ip::V6_BYTES as u16),
            mtu: read_u32(message, 4),
        })
    }

    /// Records the path MTU if a long packet was sent recently between these addresses and ports:
    /// any host can send such a message (RFC 8201, section 6). No message reduces packets below the
    /// minimum MTU.
    #[cold]
    pub(crate) fn apply(&self, link: &mut LinkLayer) {
        let recent_flows = match self.is_echo_reply {
            true => &link.path_mtu_cache.echo_replies,
            false => &link.path_mtu_cache.datagrams,
        };
        let was_sent = recent_flows.contains(self.from, self.to);
        if !was_sent || self.mtu >= self.bytes.into() || !link.path_mtu_limit.take_token(link.now) {
            return;
        }
        let mtu = plausible_mtu(self.mtu.max(1), self.bytes, false);
        if link.learn_path_mtu(self.to.ip(), mtu) {
            link.counters.ip.path_mtu_reported += 1;
        }
    }
}

impl LinkLayer {
    /// Returns whether an error may be sent; counts it if not. A message that does not fit into the
    /// poll takes no token.
    pub(crate) fn may_send_error(&mut self) -> bool {
        if !self.error_limit.has_token(self.now) {
            self.counters.icmp.out_limited += 1;
            return false;
        }
        self.may_reply(1) && self.error_limit.take_token(self.now)
    }
}

/// Processes a message; `hops` is the hop limit of its packet. Returns the error that it reports
/// about a packet of the stack.
pub(crate) fn input_message(
    link: &mut LinkLayer,
    fragmenter: &mut Fragmenter,
    header: &IpHeader,
    message: &[u8],
    hops: u8,
    mtu: usize,
) -> Option<UdpIcmpError> {
    link.counters.icmp.in_messages += 1;
    if message.len() < HEADER_BYTES {
        link.counters.icmp.in_errors += 1;
        return None;
    }
    if combine_sums([
        pseudo_header_sum(header, message.len()),
        checksum_sum(message),
    ]) != 0xffff
    {
        link.counters.icmp.in_checksum_errors += 1;
        return None;
    }
    let (types, _) = message_types(header.to);
    let message_type = message[0];
    if message_type == types.echo {
        link.counters.icmp.in_echos += 1;
        // Replies to a request for all IPv4 hosts would flood the claimed sender (RFC 1122, section
        // 3.2.2.6); for IPv6 groups they are required (RFC 4443, section 4.2).
        if (header.to.is_ipv4() && !link.addressing.is_local(header.to))
            || header.from.is_unspecified()
        {
            link.counters.icmp.in_echos_ignored += 1;
        } else {
            send_echo_reply(link, fragmenter, header, message, mtu);
        }
    } else if message_type == types.unreachable && message[1] == types.port {
        link.counters.icmp.in_port_unreachables += 1;
        let (port, remote) = parse_quoted_datagram(&message[HEADER_BYTES..], header.to.is_ipv4())?;
        return Some(UdpIcmpError::PortUnreachable(port, remote));
    } else if message_type == PACKET_TOO_BIG && message[1] == 0 && header.to.is_ipv6() {
        return PacketTooBig::parse(message).map(UdpIcmpError::PacketTooBig);
    } else if let IpAddr::V6(from) = header.from {
        link.input_discovery(from, message, hops);
    }
    None
}

/// Returns local port and destination of the datagram that an IPv4 or IPv6 error quotes.
fn parse_quoted_datagram(quote: &[u8], v4: bool) -> Option<(u16, SocketAddr)> {
    // The quote is truncated, so that its length fields do not apply: only header and ports are
    // read.
    let (protocol, body, to): (u8, usize, IpAddr) = if v4 {
        let to: [u8; 4] = quote.get(16..20)?.try_into().ok()?;
        (quote[9], usize::from(quote[0] & 0xf) * 4, to.into())
    } else {
        let to: [u8; 16] = quote.get(24..40)?.try_into().ok()?;
        match quote[6] {
            // Only the first fragment contains ports.
            FRAGMENT_HEADER_V6 if read_u16(quote.get(42..44)?, 0) & 0xfff8 == 0 => {
                (quote[40], ip::V6_BYTES + ip::FRAGMENT_BYTES, to.into())
            }
            protocol => (protocol, ip::V6_BYTES, to.into()),
        }
    };
    let ports = quote.get(body..body + 4)?;
    (protocol == UDP).then(|| (read_u16(ports, 0), SocketAddr::new(to, read_u16(ports, 2))))
}

fn send_echo_reply(
    link: &mut LinkLayer,
    fragmenter: &mut Fragmenter,
    header: &IpHeader,
    message: &[u8],
    link_mtu: usize,
) {
    // The reply to a request for a group has one of the stack's own addresses as its source.
    let local = if link.addressing.is_local(header.to) {
        header.to
    } else {
        match link.addressing.source_for(header.from) {
            Some(local) => local,
            None => return,
        }
    };
    let (types, protocol) = message_types(header.to);
    let bytes = ip::header_bytes(local) + message.len();
    let packet_limit = link.path_mtu_cache.packet_limit(header.from, link_mtu);
    let is_fragmented = bytes > packet_limit;
    if is_fragmented && !fragmenter.is_on() {
        link.counters.ip.fragmented_fails += 1;
        return;
    }
    if is_fragmented && !fragmenter.is_idle() {
        link.counters.link.out_answers_limited += 1;
        return;
    }
    let frames = match is_fragmented {
        true => fragment_count(header.from, message.len(), packet_limit),
        false => 1,
    };
    if !link.may_reply(frames) {
        return;
    }
    if PathMtuCache::may_exceed_path(bytes, local.is_ipv4()) {
        let recent_replies = &mut link.path_mtu_cache.echo_replies;
        let flow_hash =
            recent_replies.flow_hash(SocketAddr::new(local, 0), SocketAddr::new(header.from, 0));
        recent_replies.insert(flow_hash);
    }
    let write_reply = |to: &mut [u8]| {
        to.copy_from_slice(message);
        let from = read_u16(to, 0);
        to[0] = types.reply;
        to[1] = 0;
        let mut checksum = update_checksum(read_u16(message, 2), from, read_u16(to, 0));
        if protocol == ICMPV6 && local != header.to {
            write_u16(to, 2, 0);
            let pseudo = ip::folded_pseudo_sum(local, header.from, ICMPV6, to.len());
            checksum = !combine_sums([pseudo, checksum_sum(to)]);
        }
        write_u16(to, 2, checksum);
    };
    if is_fragmented {
        if let Some(buffer) = fragmenter.begin(message.len()) {
            write_reply(buffer);
            fragmenter.send(link, (local, header.from), protocol, packet_limit);
            link.counters.icmp.out_echo_replies += 1;
            link.counters.icmp.out_messages += 1;
        }
        return;
    }
    let id = link.ip_ids.next(local, header.from) as u16;
    let Some(mut frame) = link.allocate_frame(bytes) else {
        return;
    };
    let packet = link.packet(&mut frame);
    ip::write_header(packet, local, header.from, protocol, message.len(), id);
    write_reply(&mut packet[bytes - message.len()..]);
    link.counters.icmp.out_echo_replies += 1;
    link.counters.icmp.out_messages += 1;
    link.send(frame, header.from, VnetHeader::default());
}

/// Sends Port Unreachable to the sender of a packet.
pub(crate) fn send_port_unreachable(link: &mut LinkLayer, header: &IpHeader, packet: &[u8]) {
    if !link.addressing.is_local(header.to) || header.from.is_unspecified() {
        return;
    }
    if !link.may_send_error() {
        return;
    }
    let quote = &packet[..header.end.min(QUOTE_BYTES)];
    let (types, protocol) = message_types(header.to);
    let head = ip::header_bytes(header.to);
    let length = HEADER_BYTES + quote.len();
    let id = link.ip_ids.next(header.to, header.from) as u16;
    let Some(mut frame) = link.allocate_frame(head + length) else {
        return;
    };
    let packet_out = link.packet(&mut frame);
    ip::write_header(packet_out, header.to, header.from, protocol, length, id);
    let message = &mut packet_out[head..];
    message[..HEADER_BYTES].fill(0);
    message[0] = types.unreachable;
    message[1] = types.port;
    message[HEADER_BYTES..].copy_from_slice(quote);
    let pseudo = match header.to {
        IpAddr::V4(_) => 0,
        IpAddr::V6(_) => ip::folded_pseudo_sum(header.to, header.from, ICMPV6, length),
    };
    let checksum = !combine_sums([pseudo, checksum_sum(message)]);
    write_u16(message, 2, checksum);
    link.counters.icmp.out_port_unreachables += 1;
    link.counters.icmp.out_messages += 1;
    link.send(frame, header.from, VnetHeader::default());
}
