//! ICMP errors about TCP segments, processed as RFC 5461 and RFC 5927 recommend.
//!
//! Any host can send such a message. It is accepted only if it quotes a segment of a connection
//! that is in flight: an off-path attacker cannot guess its sequence number.

use std::net::{IpAddr, SocketAddr};

use smoltcp::socket::tcp::State;

use super::TcpLayer;
use super::recovery::AckReplay;
use crate::link::LinkLayer;
use crate::path_mtu_cache::plausible_mtu;
use crate::socket::UnreachableReason;
use crate::wire::ip::IpHeader;
use crate::wire::{ICMPV6, TCP, checksum_sum, combine_sums, ip, read_u16, read_u32};

const HEADER_BYTES: usize = 8;

/// Attempts to force the retransmission timeout; the delayed acknowledgement timer may expire
/// first.
const RESEND_ATTEMPTS: u8 = 3;

/// ICMP error about a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TcpIcmpError {
    /// Too long for a link with this MTU; 0: the router did not report it.
    PacketTooBig(u32),
    Unreachable(UnreachableReason),
}

fn parse_error(message: &[u8], v4: bool) -> Option<TcpIcmpError> {
    let reason = match (v4, message[0], message[1]) {
        (true, 3, 4) => return Some(TcpIcmpError::PacketTooBig(read_u16(message, 6).into())),
        (false, 2, 0) => return Some(TcpIcmpError::PacketTooBig(read_u32(message, 4).max(1))),
        (true, 3, 2) | (false, 4, 1) => UnreachableReason::Protocol,
        (true, 3, 3) | (false, 1, 4) => UnreachableReason::Port,
        (true, 3, 9 | 10 | 13) | (false, 1, 1 | 5) => UnreachableReason::Prohibited,
        (true, 3, 0 | 6 | 11) | (false, 1, 0 | 2 | 6) => UnreachableReason::Network,
        (true, 3, _) | (false, 1, _) => UnreachableReason::Host,
        (true, 11, 0) | (false, 3, 0) => UnreachableReason::HopLimit,
        _ => return None,
    };
    Some(TcpIcmpError::Unreachable(reason))
}

/// Returns local and remote address of the quoted segment, its sequence number, and its packet's
/// length.
fn parse_quoted_segment(quote: &[u8], v4: bool) -> Option<(SocketAddr, SocketAddr, u32, u16)> {
    let head = quote.get(..if v4 { ip::V4_BYTES } else { ip::V6_BYTES })?;
    let (body, protocol, packet_bytes) = match v4 {
        true => (usize::from(head[0] & 0xf) * 4, head[9], read_u16(head, 2)),
        false => (
            ip::V6_BYTES,
            head[6],
            read_u16(head, 4).saturating_add(ip::V6_BYTES as u16),
        ),
    };
    let (from, to): (IpAddr, IpAddr) = match v4 {
        true => {
            let address = |at: usize| -> [u8; 4] { head[at..at + 4].try_into().expect("four") };
            (address(12).into(), address(16).into())
        }
        false => {
            let address =
                |at: usize| -> [u8; 16] { head[at..at + 16].try_into().expect("sixteen") };
            (address(8).into(), address(24).into())
        }
    };
    let segment = quote.get(body..body + 8)?;
    (protocol == TCP).then(|| {
        (
            SocketAddr::new(from, read_u16(segment, 0)),
            SocketAddr::new(to, read_u16(segment, 2)),
            read_u32(segment, 4),
            packet_bytes,
        )
    })
}

impl TcpLayer {
    /// Processes an ICMP message, about a segment or not.
    pub(crate) fn input_icmp(&mut self, link: &mut LinkLayer, header: &IpHeader, message: &[u8]) {
        let v4 = header.to.is_ipv4();
        let errors = if v4 { [3, 11, 3, 3] } else { [1, 2, 3, 4] };
        if message.len() > HEADER_BYTES && errors.contains(&message[0]) {
            self.input_icmp_error(link, header, message, v4);
        }
    }

    #[cold]
    fn input_icmp_error(
        &mut self,
        link: &mut LinkLayer,
        header: &IpHeader,
        message: &[u8],
        v4: bool,
    ) {
        let pseudo = match v4 {
            true => 0,
            false => ip::folded_pseudo_sum(header.from, header.to, ICMPV6, message.len()),
        };
        if combine_sums([pseudo, checksum_sum(message)]) != 0xffff {
            return;
        }
        let Some((local, remote, number, bytes)) =
            parse_quoted_segment(&message[HEADER_BYTES..], v4)
        else {
            return;
        };
        let (Some(error), Some(index)) = (
            parse_error(message, v4),
            self.find_connection(local, remote),
        ) else {
            return;
        };
        if !self.connections[index as usize].is_in_flight(number) {
            return;
        }
        match error {
            TcpIcmpError::PacketTooBig(mtu) if mtu >= bytes.into() => {}
            TcpIcmpError::PacketTooBig(mtu) => {
                self.on_packet_too_big(link, index, plausible_mtu(mtu, bytes, v4), v4)
            }
            TcpIcmpError::Unreachable(reason) => {
                self.on_unreachable(link, index, reason, header.from)
            }
        }
    }

    /// Limits segments to a path MTU, and retransmits longer ones in flight.
    fn on_packet_too_big(&mut self, link: &mut LinkLayer, index: u32, mtu: u16, v4: bool) {
        let max_payload = self.format.max_payload.for_version(v4);
        let connection = &mut self.connections[index as usize];
        // The cache serves datagrams and later connections to the same host.
        link.learn_path_mtu(connection.remote.ip(), mtu);
        if connection.reduce_path_mtu(mtu, max_payload, RESEND_ATTEMPTS, link.now) {
            link.counters.tcp.path_mtu_reported += 1;
            if let Some(headers_only) = connection.resend_dropped_probe() {
                let now = self.clock.smoltcp_instant(link.now);
                self.feed_duplicates(
                    link,
                    now,
                    index,
                    headers_only,
                    AckReplay::DuplicateAfterOther,
                );
            }
            self.dirty.push(index);
        }
    }

    fn on_unreachable(
        &mut self,
        link: &mut LinkLayer,
        index: u32,
        reason: UnreachableReason,
        reporter: IpAddr,
    ) {
        let connection = &mut self.connections[index as usize];
        connection.icmp_error = Some((reason, reporter));
        if reason.is_final() && connection.socket().state() == State::SynSent {
            // Processed as a reset of the SYN, to which smoltcp sends no reply.
            let Some(reset) = connection.reset_of_syn() else {
                return;
            };
            let now = self.clock.smoltcp_instant(link.now);
            self.feed(link, now, index, reset.packet());
            self.update_state(link, index);
            self.dirty.push(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_message_panics(message in prop::collection::vec(any::<u8>(), HEADER_BYTES..120), v4: bool) {
            let _ = parse_error(&message, v4);
            let _ = parse_quoted_segment(&message[HEADER_BYTES..], v4);
        }
    }
}
