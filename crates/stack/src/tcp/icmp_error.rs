//! ICMP errors about TCP segments, processed as RFC 5461 and RFC 5927 recommend.
//!
//! Any host can send such a message. It is accepted only if it quotes a segment of a connection
//! that is in flight: an off-path attacker cannot guess its sequence number.

use std::net::{IpAddr, SocketAddr};

use smoltcp::socket::tcp::State;

use super::Tcp;
use super::recovery::Nudge;
use crate::link::Link;
use crate::pmtu_cache::believed;
use crate::socket::Unreachable;
use crate::wire::ip::{self, Header};
use crate::wire::{ICMPV6, TCP, combine, long, sum, word};

const HEADER_BYTES: usize = 8;

/// Attempts to force the retransmission timeout; the delayed acknowledgement timer may expire
/// first.
const ATTEMPTS: u8 = 3;

/// ICMP error about a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Says {
    /// Too long for a link with this MTU; 0: the router did not report it.
    TooLong(u32),
    Unreachable(Unreachable),
}

fn says(message: &[u8], v4: bool) -> Option<Says> {
    let what = match (v4, message[0], message[1]) {
        (true, 3, 4) => return Some(Says::TooLong(word(message, 6).into())),
        (false, 2, 0) => return Some(Says::TooLong(long(message, 4).max(1))),
        (true, 3, 2) | (false, 4, 1) => Unreachable::Protocol,
        (true, 3, 3) | (false, 1, 4) => Unreachable::Port,
        (true, 3, 9 | 10 | 13) | (false, 1, 1 | 5) => Unreachable::Prohibited,
        (true, 3, 0 | 6 | 11) | (false, 1, 0 | 2 | 6) => Unreachable::Network,
        (true, 3, _) | (false, 1, _) => Unreachable::Host,
        (true, 11, 0) | (false, 3, 0) => Unreachable::Hops,
        _ => return None,
    };
    Some(Says::Unreachable(what))
}

/// Returns local and remote address of the quoted segment, its sequence number, and its packet's
/// length.
fn quoted(quote: &[u8], v4: bool) -> Option<(SocketAddr, SocketAddr, u32, u16)> {
    let head = quote.get(..if v4 { ip::V4_BYTES } else { ip::V6_BYTES })?;
    let (body, protocol, bytes) = match v4 {
        true => (usize::from(head[0] & 0xf) * 4, head[9], word(head, 2)),
        false => (
            ip::V6_BYTES,
            head[6],
            word(head, 4).saturating_add(ip::V6_BYTES as u16),
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
            SocketAddr::new(from, word(segment, 0)),
            SocketAddr::new(to, word(segment, 2)),
            long(segment, 4),
            bytes,
        )
    })
}

impl Tcp {
    /// Processes an ICMP message, about a segment or not.
    pub(crate) fn told(&mut self, link: &mut Link, header: &Header, message: &[u8]) {
        let v4 = header.to.is_ipv4();
        let errors = if v4 { [3, 11, 3, 3] } else { [1, 2, 3, 4] };
        if message.len() > HEADER_BYTES && errors.contains(&message[0]) {
            self.told_of_error(link, header, message, v4);
        }
    }

    #[cold]
    fn told_of_error(&mut self, link: &mut Link, header: &Header, message: &[u8], v4: bool) {
        let pseudo = match v4 {
            true => 0,
            false => ip::pseudo(header.from, header.to, ICMPV6, message.len()),
        };
        if combine([pseudo, sum(message)]) != 0xffff {
            return;
        }
        let Some((local, remote, number, bytes)) = quoted(&message[HEADER_BYTES..], v4) else {
            return;
        };
        let (Some(says), Some(index)) = (says(message, v4), self.find(local, remote)) else {
            return;
        };
        if !self.connections[index as usize].is_on_its_way(number) {
            return;
        }
        match says {
            Says::TooLong(mtu) if mtu >= bytes.into() => {}
            Says::TooLong(mtu) => self.too_long(link, index, believed(mtu, bytes, v4), v4),
            Says::Unreachable(what) => self.unreachable(link, index, what, header.from),
        }
    }

    /// Limits segments to a path MTU, and retransmits longer ones in flight.
    fn too_long(&mut self, link: &mut Link, index: u32, mtu: u16, v4: bool) {
        let longest = self.wire.longest.of(v4);
        let connection = &mut self.connections[index as usize];
        // The cache serves datagrams and later connections to the same host.
        link.learn_path(connection.remote.ip(), mtu);
        if connection.narrow(mtu, longest, ATTEMPTS, link.now) {
            link.counters.tcp.path_mtu_told += 1;
            if let Some(bare) = connection.dropped() {
                let now = self.clock.instant(link.now);
                self.repeat(link, now, index, bare, Nudge::Anew);
            }
            self.dirty.push(index);
        }
    }

    fn unreachable(&mut self, link: &mut Link, index: u32, what: Unreachable, by: IpAddr) {
        let connection = &mut self.connections[index as usize];
        connection.trouble = Some((what, by));
        if what.is_final() && connection.socket().state() == State::SynSent {
            // Processed as a reset of the SYN, to which smoltcp sends no reply.
            let Some(refusal) = connection.refusal() else {
                return;
            };
            let now = self.clock.instant(link.now);
            self.show(link, now, index, refusal.packet());
            self.look(link, index);
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
            let _ = says(&message, v4);
            let _ = quoted(&message[HEADER_BYTES..], v4);
        }
    }
}
