//! ICMP and ICMPv6: echo replies, Port Unreachable and Packet Too Big.

use std::net::{IpAddr, SocketAddr};

use linerate_port::vnet::VnetHeader;

use crate::Nanos;
use crate::link::Link;
use crate::pmtu_cache::{Paths, believed};
use crate::udp::fragment::{Fragmenter, pieces};
use crate::wire::ip::{self, Header};
use crate::wire::{FRAGMENT_V6, ICMP, ICMPV6, UDP, changed, combine, long, put, sum, word};

const HEADER_BYTES: usize = 8;
/// Type of the ICMPv6 Packet Too Big message (RFC 4443, section 3.2).
const TOO_LONG: u8 = 2;
/// Bytes of the offending packet that an error quotes (RFC 1812, section 4.3.2.3; RFC 4443).
const QUOTE_BYTES: usize = 548;

/// Limits of errors sent: at once, and per second (Linux's defaults of net.ipv4.icmp_msgs_burst and
/// icmp_msgs_per_sec).
const BURST: u32 = 50;
const PER_SECOND: u64 = 1_000;
const SECOND: Nanos = 1_000_000_000;

/// Limits of accepted Packet Too Big messages about datagrams and echo replies, at once and per
/// second. An attacker who makes the stack send long packets to many hosts can forge such messages;
/// within these limits they evict few remembered paths and invalidate few headers.
const TOLD_BURST: u32 = 16;
const TOLD_PER_SECOND: u64 = 10;

/// Rate limiter: a token bucket that fills with time (for errors: RFC 1812, section 4.3.2.8; RFC
/// 4443, section 2.4).
pub(crate) struct Allowance {
    burst: u32,
    /// Time in which one token is added.
    each: Nanos,
    left: u32,
    /// Time up to which tokens were added.
    filled: Nanos,
}

impl Allowance {
    /// Returns the limiter of ICMP errors sent.
    pub(crate) const fn of_errors() -> Self {
        Self::new(BURST, PER_SECOND)
    }

    /// Returns the limiter of accepted path MTU messages.
    pub(crate) const fn of_paths() -> Self {
        Self::new(TOLD_BURST, TOLD_PER_SECOND)
    }

    const fn new(burst: u32, per_second: u64) -> Self {
        assert!(SECOND.is_multiple_of(per_second));
        Self {
            burst,
            each: SECOND / per_second,
            left: burst,
            filled: 0,
        }
    }

    /// Adds the tokens of the elapsed time and returns whether there is one.
    fn has_one(&mut self, now: Nanos) -> bool {
        let more = now.saturating_sub(self.filled) / self.each;
        self.filled += more * self.each;
        let left = u64::from(self.left).saturating_add(more);
        self.left = left.min(self.burst.into()) as u32;
        self.left > 0
    }

    /// Takes a token; false if there is none.
    pub(crate) fn take(&mut self, now: Nanos) -> bool {
        let has_one = self.has_one(now);
        self.left -= u32::from(has_one);
        has_one
    }
}

struct Kinds {
    echo: u8,
    reply: u8,
    unreachable: u8,
    port: u8,
}

const V4: Kinds = Kinds {
    echo: 8,
    reply: 0,
    unreachable: 3,
    port: 3,
};
const V6: Kinds = Kinds {
    echo: 128,
    reply: 129,
    unreachable: 1,
    port: 4,
};

const fn kinds(to: IpAddr) -> (&'static Kinds, u8) {
    match to {
        IpAddr::V4(_) => (&V4, ICMP),
        IpAddr::V6(_) => (&V6, ICMPV6),
    }
}

fn pseudo(header: &Header, bytes: usize) -> u16 {
    match header.to {
        IpAddr::V4(_) => 0,
        IpAddr::V6(_) => ip::pseudo(header.from, header.to, ICMPV6, bytes),
    }
}

/// Error received about a packet that the stack sent.
pub(crate) enum News {
    /// Port Unreachable for a datagram: its local port, and its destination.
    NoPort(u16, SocketAddr),
    TooLong(TooLong),
}

/// Packet Too Big message for an IPv6 packet.
pub(crate) struct TooLong {
    /// Source and destination of the quoted packet; ports are zero for an echo reply.
    from: SocketAddr,
    to: SocketAddr,
    is_answer: bool,
    /// Length of the quoted packet, and the MTU of the router's link, in bytes.
    bytes: u16,
    mtu: u32,
}

impl TooLong {
    /// Parses the quoted packet; `None` for TCP segments, which [`crate::tcp`] handles.
    fn quoted(message: &[u8]) -> Option<Self> {
        let quote = &message[HEADER_BYTES..];
        let head = quote.get(..ip::V6_BYTES)?;
        let address = |at: usize| -> [u8; 16] { head[at..at + 16].try_into().expect("sixteen") };
        let (protocol, body) = match head[6] {
            FRAGMENT_V6 => {
                let fragment = quote.get(ip::V6_BYTES..ip::V6_BYTES + ip::FRAGMENT_BYTES)?;
                // Only the first fragment contains ports; if it is too long, so are the others.
                if word(fragment, 2) & 0xfff8 != 0 {
                    return None;
                }
                (fragment[0], ip::V6_BYTES + ip::FRAGMENT_BYTES)
            }
            protocol => (protocol, ip::V6_BYTES),
        };
        let begins = quote.get(body..body + 4)?;
        let ports = match protocol {
            UDP => (word(begins, 0), word(begins, 2)),
            ICMPV6 if begins[0] == V6.reply => (0, 0),
            _ => return None,
        };
        Some(Self {
            from: SocketAddr::new(address(8).into(), ports.0),
            to: SocketAddr::new(address(24).into(), ports.1),
            is_answer: protocol == ICMPV6,
            bytes: word(head, 4).saturating_add(ip::V6_BYTES as u16),
            mtu: long(message, 4),
        })
    }

    /// Records the path MTU if a long packet was sent recently between these addresses and ports:
    /// any host can send such a message (RFC 8201, section 6). No message reduces packets below the
    /// minimum MTU.
    #[cold]
    pub(crate) fn heed(&self, link: &mut Link) {
        let left = match self.is_answer {
            true => &link.paths.answers,
            false => &link.paths.datagrams,
        };
        let left_here = left.has(self.from, self.to);
        if !left_here || self.mtu >= self.bytes.into() || !link.told.take(link.now) {
            return;
        }
        let mtu = believed(self.mtu.max(1), self.bytes, false);
        if link.learn_path(self.to.ip(), mtu) {
            link.counters.ip.path_mtu_told += 1;
        }
    }
}

impl Link {
    /// Returns whether an error may be sent; counts it if not. A message that does not fit into the
    /// poll takes no token.
    pub(crate) fn may_complain(&mut self) -> bool {
        if !self.errors.has_one(self.now) {
            self.counters.icmp.out_limited += 1;
            return false;
        }
        self.may_answer(1) && self.errors.take(self.now)
    }
}

/// Processes a message; `hops` is the hop limit of its packet. Returns the error that it reports
/// about a packet of the stack.
pub(crate) fn input(
    link: &mut Link,
    fragmenter: &mut Fragmenter,
    header: &Header,
    message: &[u8],
    hops: u8,
    mtu: usize,
) -> Option<News> {
    link.counters.icmp.in_messages += 1;
    if message.len() < HEADER_BYTES {
        link.counters.icmp.in_errors += 1;
        return None;
    }
    if combine([pseudo(header, message.len()), sum(message)]) != 0xffff {
        link.counters.icmp.in_checksum_errors += 1;
        return None;
    }
    let (kinds, _) = kinds(header.to);
    let kind = message[0];
    if kind == kinds.echo {
        link.counters.icmp.in_echos += 1;
        // Replies to a request for all IPv4 hosts would flood the claimed sender (RFC 1122, section
        // 3.2.2.6); for IPv6 groups they are required (RFC 4443, section 4.2).
        if (header.to.is_ipv4() && !link.own.is_own(header.to)) || header.from.is_unspecified() {
            link.counters.icmp.in_echos_ignored += 1;
        } else {
            echo(link, fragmenter, header, message, mtu);
        }
    } else if kind == kinds.unreachable && message[1] == kinds.port {
        link.counters.icmp.in_port_unreachables += 1;
        let (port, remote) = quoted(&message[HEADER_BYTES..], header.to.is_ipv4())?;
        return Some(News::NoPort(port, remote));
    } else if kind == TOO_LONG && message[1] == 0 && header.to.is_ipv6() {
        return TooLong::quoted(message).map(News::TooLong);
    } else if let IpAddr::V6(from) = header.from {
        link.input_discovery(from, message, hops);
    }
    None
}

/// Returns local port and destination of the datagram that an IPv4 or IPv6 error quotes.
fn quoted(quote: &[u8], v4: bool) -> Option<(u16, SocketAddr)> {
    // The quote is truncated, so that its length fields do not apply: only header and ports are
    // read.
    let (protocol, body, to): (u8, usize, IpAddr) = if v4 {
        let to: [u8; 4] = quote.get(16..20)?.try_into().ok()?;
        (quote[9], usize::from(quote[0] & 0xf) * 4, to.into())
    } else {
        let to: [u8; 16] = quote.get(24..40)?.try_into().ok()?;
        match quote[6] {
            // Only the first fragment contains ports.
            FRAGMENT_V6 if word(quote.get(42..44)?, 0) & 0xfff8 == 0 => {
                (quote[40], ip::V6_BYTES + ip::FRAGMENT_BYTES, to.into())
            }
            protocol => (protocol, ip::V6_BYTES, to.into()),
        }
    };
    let ports = quote.get(body..body + 4)?;
    (protocol == UDP).then(|| (word(ports, 0), SocketAddr::new(to, word(ports, 2))))
}

fn echo(
    link: &mut Link,
    fragmenter: &mut Fragmenter,
    header: &Header,
    message: &[u8],
    own_mtu: usize,
) {
    // The reply to a request for a group has one of the stack's own addresses as its source.
    let own = if link.own.is_own(header.to) {
        header.to
    } else {
        match link.own.source_for(header.from) {
            Some(own) => own,
            None => return,
        }
    };
    let (kinds, protocol) = kinds(header.to);
    let bytes = ip::header_bytes(own) + message.len();
    let whole = link.paths.whole(header.from, own_mtu);
    let is_cut = bytes > whole;
    if is_cut && !fragmenter.is_on() {
        link.counters.ip.fragmented_fails += 1;
        return;
    }
    if is_cut && !fragmenter.is_idle() {
        link.counters.link.out_answers_limited += 1;
        return;
    }
    let frames = match is_cut {
        true => pieces(header.from, message.len(), whole),
        false => 1,
    };
    if !link.may_answer(frames) {
        return;
    }
    if Paths::may_be_too_long(bytes, own.is_ipv4()) {
        let answers = &mut link.paths.answers;
        let name = answers.name(SocketAddr::new(own, 0), SocketAddr::new(header.from, 0));
        answers.add(name);
    }
    let answer = |to: &mut [u8]| {
        to.copy_from_slice(message);
        let from = word(to, 0);
        to[0] = kinds.reply;
        to[1] = 0;
        let mut checksum = changed(word(message, 2), from, word(to, 0));
        if protocol == ICMPV6 && own != header.to {
            put(to, 2, 0);
            let pseudo = ip::pseudo(own, header.from, ICMPV6, to.len());
            checksum = !combine([pseudo, sum(to)]);
        }
        put(to, 2, checksum);
    };
    if is_cut {
        if let Some(room) = fragmenter.begin(message.len()) {
            answer(room);
            fragmenter.send(link, (own, header.from), protocol, whole);
            link.counters.icmp.out_echo_replies += 1;
            link.counters.icmp.out_messages += 1;
        }
        return;
    }
    let id = link.numbers.next(own, header.from) as u16;
    let Some(mut frame) = link.make(bytes) else {
        return;
    };
    let packet = link.packet(&mut frame);
    ip::write(packet, own, header.from, protocol, message.len(), id);
    answer(&mut packet[bytes - message.len()..]);
    link.counters.icmp.out_echo_replies += 1;
    link.counters.icmp.out_messages += 1;
    link.send(frame, header.from, VnetHeader::default());
}

/// Sends Port Unreachable to the sender of a packet.
pub(crate) fn port_unreachable(link: &mut Link, header: &Header, packet: &[u8]) {
    if !link.own.is_own(header.to) || header.from.is_unspecified() {
        return;
    }
    if !link.may_complain() {
        return;
    }
    let quote = &packet[..header.end.min(QUOTE_BYTES)];
    let (kinds, protocol) = kinds(header.to);
    let head = ip::header_bytes(header.to);
    let length = HEADER_BYTES + quote.len();
    let id = link.numbers.next(header.to, header.from) as u16;
    let Some(mut frame) = link.make(head + length) else {
        return;
    };
    let made = link.packet(&mut frame);
    ip::write(made, header.to, header.from, protocol, length, id);
    let message = &mut made[head..];
    message[..HEADER_BYTES].fill(0);
    message[0] = kinds.unreachable;
    message[1] = kinds.port;
    message[HEADER_BYTES..].copy_from_slice(quote);
    let pseudo = match header.to {
        IpAddr::V4(_) => 0,
        IpAddr::V6(_) => ip::pseudo(header.to, header.from, ICMPV6, length),
    };
    let checksum = !combine([pseudo, sum(message)]);
    put(message, 2, checksum);
    link.counters.icmp.out_port_unreachables += 1;
    link.counters.icmp.out_messages += 1;
    link.send(frame, header.from, VnetHeader::default());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_limited() {
        let mut allowance = Allowance::of_errors();
        let mut taken = |now, times| (0..times).filter(|_| allowance.take(now)).count();
        let start = 77 * SECOND + 5;
        assert_eq!(taken(start, 200), 50);
        assert_eq!(taken(start + SECOND / 100, 200), 10);
        assert_eq!(taken(start + SECOND / 100 + 999_000, 200), 0);
        // A steady stream: a thousand per second.
        let after = start + SECOND / 100;
        let sent: usize = (1..=10_000)
            .map(|step| taken(after + step * SECOND / 10_000, 1))
            .sum();
        assert_eq!(sent, 1_000);
        assert_eq!(taken(start + 60 * SECOND, 200), 50);
    }

    #[test]
    fn few_paths_are_believed_at_a_time() {
        let mut allowance = Allowance::of_paths();
        let mut taken = |now, times| (0..times).filter(|_| allowance.take(now)).count();
        // Fewer than are remembered, so that one burst leaves most of the known paths.
        assert_eq!(taken(7 * SECOND, 1_000), 16);
        assert_eq!(taken(7 * SECOND + SECOND / 2, 1_000), 5);
        assert_eq!(taken(60 * SECOND, 1_000), 16);
    }
}
