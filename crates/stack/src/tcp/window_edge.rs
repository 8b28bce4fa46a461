//! Segments at the right edge of the receive window that smoltcp would mishandle.
//!
//! smoltcp drops a segment outside its receive window together with the acknowledgement in it. If
//! the window is full, the peer's next sequence number can lie a few bytes beyond it: a scaled
//! window is rounded down, so that its right edge moves back. From then on no acknowledgement is
//! accepted; if the reader waits until it can send, the connection deadlocks. RFC 9293, section
//! 3.10.7.4 requires acknowledgements to be processed: smoltcp gets them without payload, at the
//! sequence number that it expects.
//!
//! Until smoltcp has sent its first scaled window it applies the scale to the window of its SYN,
//! which has none: eight times 64 KiB for a buffer of 256 KiB. Data beyond the buffer would be
//! counted but not stored, and smoltcp panics when it gets there. So it gets the acknowledgement
//! alone in this case, too; a peer that keeps to the announced window never sends such a segment.

use std::net::SocketAddr;

use smoltcp::socket::tcp::{Socket, State};

use crate::wire::ip::{self, Header};
use crate::wire::{ACK, FIN, RST, SYN, TCP, TCP_BYTES, long, put, word};

/// Longest TCP header: its length field counts up to fifteen 32-bit words.
const MOST_TCP_HEADER: usize = 15 * 4;

/// Longest headers: IPv4 with options or IPv6, and TCP with options. IPv6 extension headers have
/// been removed.
const MOST_HEADERS: usize = 60 + MOST_TCP_HEADER;

/// Maximum Segment Size option: its first bytes, and its length.
const LONGEST_SEGMENT: [u8; 2] = [2, 4];
const MSS_OPTION_BYTES: usize = 4;

/// Maximum segment size if none is announced (RFC 9293, section 3.7.1).
const UNTOLD_MSS: u16 = 536;

const SYN_RST: u16 = SYN | RST;

/// Packet of IP and TCP headers without payload.
pub(super) struct Bare {
    bytes: [u8; MOST_HEADERS],
    length: usize,
    /// Offset of the TCP header.
    body: usize,
}

impl Bare {
    /// Returns the acknowledgement of a segment, without payload, at the sequence number that
    /// smoltcp expects.
    pub(super) fn of(expected: u32, header: &Header, packet: &[u8]) -> Option<Self> {
        let segment = &packet[header.body..header.end];
        let flags = word(segment, 12);
        let head = usize::from(flags >> 12) * 4;
        let end = header.body + head;
        if head < TCP_BYTES || head > segment.len() || end > MOST_HEADERS {
            return None;
        }
        let mut bare = Self {
            bytes: [0; MOST_HEADERS],
            length: end,
            body: header.body,
        };
        bare.bytes[..end].copy_from_slice(&packet[..end]);
        bare.tell_length();
        let tcp = &mut bare.bytes[header.body..end];
        tcp[4..8].copy_from_slice(&expected.to_be_bytes());
        put(tcp, 12, flags & !FIN);
        Some(bare)
    }

    /// Writes the packet's length into the IP header.
    fn tell_length(&mut self) {
        match self.bytes[0] >> 4 {
            4 => put(&mut self.bytes, 2, self.length as u16),
            _ => put(&mut self.bytes, 4, (self.length - ip::V6_BYTES) as u16),
        }
    }

    /// Returns a SYN that announces a segment size of at most `most` bytes.
    #[cold]
    pub(super) fn greeting(header: &Header, packet: &[u8], most: u16) -> Option<Self> {
        let sequence = long(&packet[header.body..header.end], 4);
        let mut bare = Self::of(sequence, header, packet)?;
        let (from, to) = (bare.body, bare.length);
        if !limit_mss(&mut bare.bytes[from..to], most) && most < UNTOLD_MSS {
            bare.tell_mss(most);
        }
        Some(bare)
    }

    /// Inserts the Maximum Segment Size option in front of the other options of a SYN. A full
    /// header has no space for it; no known sender of a full header leaves this option out.
    fn tell_mss(&mut self, most: u16) {
        let tcp = &mut self.bytes[self.body..];
        let flags = word(tcp, 12);
        let head = usize::from(flags >> 12) * 4;
        if head + MSS_OPTION_BYTES > MOST_TCP_HEADER {
            return;
        }
        tcp.copy_within(TCP_BYTES..head, TCP_BYTES + MSS_OPTION_BYTES);
        tcp[TCP_BYTES..TCP_BYTES + 2].copy_from_slice(&LONGEST_SEGMENT);
        put(tcp, TCP_BYTES + 2, most);
        put(tcp, 12, flags + ((MSS_OPTION_BYTES as u16 / 4) << 12));
        self.length += MSS_OPTION_BYTES;
        self.tell_length();
    }

    /// Returns a crafted acknowledgement from the first address to the second.
    pub(super) fn made(
        (from, to): (SocketAddr, SocketAddr),
        sequence: u32,
        number: u32,
        window: u16,
    ) -> Self {
        let body = ip::header_bytes(to.ip());
        let mut bare = Self {
            bytes: [0; MOST_HEADERS],
            length: body + TCP_BYTES,
            body,
        };
        ip::write(&mut bare.bytes, from.ip(), to.ip(), TCP, TCP_BYTES, 0);
        let tcp = &mut bare.bytes[body..];
        put(tcp, 0, from.port());
        put(tcp, 2, to.port());
        tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
        tcp[8..12].copy_from_slice(&number.to_be_bytes());
        put(tcp, 12, (TCP_BYTES as u16 / 4) << 12 | ACK);
        put(tcp, 14, window);
        bare
    }

    /// Sets the RST flag.
    pub(super) fn breaking_off(mut self) -> Self {
        let at = self.body + 12;
        let flags = word(&self.bytes, at);
        put(&mut self.bytes, at, flags | RST);
        self
    }

    /// Sets the FIN flag.
    pub(super) fn ending(mut self) -> Self {
        let at = self.body + 12;
        let flags = word(&self.bytes, at);
        put(&mut self.bytes, at, flags | FIN);
        self
    }

    /// Returns a segment with one byte that was received before: smoltcp acknowledges it at once.
    pub(super) fn stale(ends: (SocketAddr, SocketAddr), sequence: u32, number: u32) -> Self {
        let mut bare = Self::made(ends, sequence, number, 1);
        bare.length += 1;
        bare.tell_length();
        bare
    }

    /// Decrements the sequence number: smoltcp takes the segment as a keep-alive probe, and
    /// replies.
    pub(super) fn step_back(&mut self) {
        let sequence = long(&self.bytes[self.body..], 4).wrapping_sub(1);
        self.bytes[self.body + 4..self.body + 8].copy_from_slice(&sequence.to_be_bytes());
    }

    pub(super) fn packet(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    pub(super) fn set_number(&mut self, number: u32) {
        let at = self.body + 8;
        self.bytes[at..at + 4].copy_from_slice(&number.to_be_bytes());
    }

    /// Returns the window field, unscaled.
    pub(super) fn window(&self) -> u16 {
        word(&self.bytes, self.body + 14)
    }

    pub(super) fn set_window(&mut self, window: u16) {
        put(&mut self.bytes, self.body + 14, window);
    }
}

/// Returns the number that a segment acknowledges; `None` with SYN or RST.
pub(super) fn acknowledged(segment: &[u8]) -> Option<u32> {
    let flags = word(segment, 12);
    (flags & SYN_RST == 0 && flags & ACK != 0).then(|| long(segment, 8))
}

/// Lowers the Maximum Segment Size option of a SYN to `most` (RFC 9293, section 3.2); zero counts
/// as absent value. Returns whether the option is there. The caller updates the checksum.
pub(super) fn limit_mss(tcp: &mut [u8], most: u16) -> bool {
    let Some((at, told)) = find_mss(tcp) else {
        return false;
    };
    put(tcp, at, told.min(most));
    true
}

/// Returns the maximum segment size that smoltcp derives from a SYN.
pub(super) fn told_mss(tcp: &[u8]) -> u16 {
    /// Lower limit of smoltcp.
    const LEAST: u16 = 48;
    find_mss(tcp).map_or(UNTOLD_MSS, |(_, told)| told.max(LEAST))
}

/// Returns offset and value of the Maximum Segment Size option of a SYN.
fn find_mss(tcp: &[u8]) -> Option<(usize, u16)> {
    const END: u8 = 0;
    const NOTHING: u8 = 1;
    let head = (usize::from(word(tcp, 12) >> 12) * 4).min(tcp.len());
    let mut at = TCP_BYTES;
    while at < head && tcp[at] != END {
        if tcp[at] == NOTHING {
            at += 1;
            continue;
        }
        let option = &tcp[at..head];
        if option.len() >= 4 && option.starts_with(&LONGEST_SEGMENT) {
            let told = match word(option, 2) {
                0 => UNTOLD_MSS,
                told => told,
            };
            return Some((at + 2, told));
        }
        match option.get(1) {
            Some(&length) if length >= 2 => at += usize::from(length),
            _ => return None,
        }
    }
    None
}

/// Returns the acknowledgement to process in place of a segment whose payload does not fit into
/// smoltcp's buffer. `base` is the sequence number of the next byte that the application reads.
#[inline]
pub(super) fn beyond(
    socket: &Socket<'_>,
    base: u32,
    header: &Header,
    packet: &[u8],
) -> Option<Bare> {
    let (capacity, queued) = (socket.recv_capacity(), socket.recv_queue());
    let expected = base.wrapping_add(queued as u32);
    let segment = &packet[header.body..header.end];
    let head = usize::from(word(segment, 12) >> 12) * 4;
    let ahead = i64::from(long(segment, 4).wrapping_sub(expected) as i32);
    let end = ahead + segment.len() as i64 - head as i64;
    match segment.len() > head && end > (capacity - queued) as i64 {
        true => without_payload(socket.state(), expected, header, packet),
        false => None,
    }
}

/// Before a connection is established smoltcp ignores payload anyway.
#[cold]
fn without_payload(state: State, expected: u32, header: &Header, packet: &[u8]) -> Option<Bare> {
    let flags = word(&packet[header.body..header.end], 12);
    if matches!(state, State::Closed | State::Listen | State::SynSent)
        || flags & SYN_RST != 0
        || flags & ACK == 0
    {
        return None;
    }
    Bare::of(expected, header, packet)
}

/// Returns the acknowledgement of a segment that smoltcp would drop. `base` is the sequence number
/// of the next byte that the application reads.
#[inline]
pub(super) fn overlooked(
    socket: &Socket<'_>,
    base: u32,
    header: &Header,
    packet: &[u8],
) -> Option<Bare> {
    let (capacity, queued) = (socket.recv_capacity(), socket.recv_queue());
    let log2 = usize::BITS - capacity.leading_zeros();
    // Rounding takes less than one unit of the scaled window; four units leave a margin.
    let near_full = capacity - queued < 4 << log2.saturating_sub(16);
    if !near_full {
        return None;
    }
    make(
        socket.state(),
        base.wrapping_add(queued as u32),
        capacity,
        header,
        packet,
    )
}

#[cold]
fn make(
    state: State,
    expected: u32,
    capacity: usize,
    header: &Header,
    packet: &[u8],
) -> Option<Bare> {
    if !matches!(
        state,
        State::Established | State::FinWait1 | State::FinWait2
    ) {
        return None;
    }
    let segment = &packet[header.body..header.end];
    let flags = word(segment, 12);
    let head = usize::from(flags >> 12) * 4;
    if flags & SYN_RST != 0 || flags & ACK == 0 {
        return None;
    }
    let sequence = long(segment, 4);
    let ahead = i64::from(sequence.wrapping_sub(expected) as i32);
    let in_order = ahead == 0 && segment.len() == head;
    // Sequence number -1 is that of window and keep-alive probes.
    if in_order || ahead < -1 || ahead > capacity as i64 {
        return None;
    }
    Bare::of(expected, header, packet)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_longest_segment_is_lowered_where_it_is_told() {
        let greeting = |options: &[u8]| {
            let mut tcp = vec![0; TCP_BYTES];
            tcp.extend_from_slice(options);
            let words = tcp.len() as u16 / 4;
            put(&mut tcp, 12, words << 12 | 0x02);
            tcp
        };
        for (options, lowered) in [
            (&[2, 4, 5, 180][..], &[2, 4, 2, 24][..]),
            // A smaller value is kept; zero counts as absent, which allows the default.
            (&[2, 4, 1, 0], &[2, 4, 1, 0]),
            (&[2, 4, 0, 0], &[2, 4, 2, 24]),
            // Behind other options.
            (&[1, 3, 3, 7, 2, 4, 5, 180], &[1, 3, 3, 7, 2, 4, 2, 24]),
            // Behind the end of options, truncated, or of length zero: not found.
            (&[0, 0, 0, 0, 2, 4, 5, 180], &[0, 0, 0, 0, 2, 4, 5, 180]),
            (&[1, 1, 2, 4], &[1, 1, 2, 4]),
            (&[9, 0, 2, 4, 5, 180, 1, 1], &[9, 0, 2, 4, 5, 180, 1, 1]),
        ] {
            let mut tcp = greeting(options);
            limit_mss(&mut tcp, 536);
            assert_eq!(&tcp[TCP_BYTES..], lowered, "{options:?}");
        }
    }

    /// Returns a SYN with these options, and its parsed header.
    fn packet(v6: bool, options: &[u8]) -> (Header, Vec<u8>) {
        let ends = match v6 {
            true => ["fd00::1", "fd00::2"],
            false => ["10.0.0.1", "10.0.0.2"],
        };
        let [from, to]: [std::net::IpAddr; 2] = ends.map(|end| end.parse().unwrap());
        let head = TCP_BYTES + options.len();
        let body = ip::header_bytes(to);
        let mut packet = vec![0; body + head];
        ip::write(&mut packet, from, to, TCP, head, 0);
        put(&mut packet, body + 12, (head as u16 / 4) << 12 | 0x02);
        packet[body + TCP_BYTES..].copy_from_slice(options);
        let header = ip::parse(&packet, !v6, false).unwrap();
        (header, packet)
    }

    /// A peer without the option accepts 536 B, and may still be sent less.
    #[test]
    fn a_greeting_that_tells_no_longest_segment_is_made_to() {
        for v6 in [false, true] {
            for (options, most, shown) in [
                (&[][..], 200, &[2, 4, 0, 200][..]),
                (&[1, 3, 3, 7], 200, &[2, 4, 0, 200, 1, 3, 3, 7]),
                // smoltcp would send no more anyway.
                (&[1, 3, 3, 7], 536, &[1, 3, 3, 7]),
                // No space: unchanged.
                (&[1; 40], 200, &[1; 40]),
            ] {
                let (header, packet) = packet(v6, options);
                let bare = Bare::greeting(&header, &packet, most).unwrap();
                let read = ip::parse(bare.packet(), !v6, false).unwrap();
                let tcp = &bare.packet()[read.body..read.end];
                assert_eq!(
                    usize::from(word(tcp, 12) >> 12) * 4,
                    tcp.len(),
                    "{options:?}"
                );
                assert_eq!(&tcp[TCP_BYTES..], shown, "{options:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn no_options_panic(mut tcp in prop::collection::vec(any::<u8>(), TCP_BYTES..80), most: u16) {
            limit_mss(&mut tcp, most);
        }
    }
}
