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

use crate::wire::ip::{self, IpHeader};
use crate::wire::{ACK, FIN, RST, SYN, TCP, TCP_BYTES, read_u16, read_u32, write_u16};

/// Longest TCP header: its length field counts up to fifteen 32-bit words.
const MAX_TCP_HEADER_BYTES: usize = 15 * 4;

/// Longest headers: IPv4 with options or IPv6, and TCP with options. IPv6 extension headers have
/// been removed.
const MAX_HEADERS_BYTES: usize = 60 + MAX_TCP_HEADER_BYTES;

/// Maximum Segment Size option: its first bytes, and its length.
const MSS_OPTION: [u8; 2] = [2, 4];
const MSS_OPTION_BYTES: usize = 4;

/// Maximum segment size if none is announced (RFC 9293, section 3.7.1).
const DEFAULT_MSS: u16 = 536;

const SYN_RST: u16 = SYN | RST;

/// Packet of IP and TCP headers without payload.
pub(super) struct HeadersOnly {
    bytes: [u8; MAX_HEADERS_BYTES],
    length: usize,
    /// Offset of the TCP header.
    tcp_offset: usize,
}

impl HeadersOnly {
    /// Returns the acknowledgement of a segment, without payload, at the sequence number that
    /// smoltcp expects.
    pub(super) fn ack_of(expected: u32, header: &IpHeader, packet: &[u8]) -> Option<Self> {
        let segment = &packet[header.transport..header.end];
        let flags = read_u16(segment, 12);
        let head = usize::from(flags >> 12) * 4;
        let end = header.transport + head;
        if head < TCP_BYTES || head > segment.len() || end > MAX_HEADERS_BYTES {
            return None;
        }
        let mut headers_only = Self {
            bytes: [0; MAX_HEADERS_BYTES],
            length: end,
            tcp_offset: header.transport,
        };
        headers_only.bytes[..end].copy_from_slice(&packet[..end]);
        headers_only.write_length();
        let tcp = &mut headers_only.bytes[header.transport..end];
        tcp[4..8].copy_from_slice(&expected.to_be_bytes());
        write_u16(tcp, 12, flags & !FIN);
        Some(headers_only)
    }

    /// Writes the packet's length into the IP header.
    fn write_length(&mut self) {
        match self.bytes[0] >> 4 {
            4 => write_u16(&mut self.bytes, 2, self.length as u16),
            _ => write_u16(&mut self.bytes, 4, (self.length - ip::V6_BYTES) as u16),
        }
    }

    /// Returns a SYN that announces a segment size of at most `max_mss` bytes.
    #[cold]
    pub(super) fn syn_with_mss(header: &IpHeader, packet: &[u8], max_mss: u16) -> Option<Self> {
        let sequence = read_u32(&packet[header.transport..header.end], 4);
        let mut headers_only = Self::ack_of(sequence, header, packet)?;
        let (from, to) = (headers_only.tcp_offset, headers_only.length);
        if !limit_mss(&mut headers_only.bytes[from..to], max_mss) && max_mss < DEFAULT_MSS {
            headers_only.insert_mss_option(max_mss);
        }
        Some(headers_only)
    }

    /// Inserts the Maximum Segment Size option in front of the other options of a SYN. A full
    /// header has no space for it; no known sender of a full header leaves this option out.
    fn insert_mss_option(&mut self, max_mss: u16) {
        let tcp = &mut self.bytes[self.tcp_offset..];
        let flags = read_u16(tcp, 12);
        let head = usize::from(flags >> 12) * 4;
        if head + MSS_OPTION_BYTES > MAX_TCP_HEADER_BYTES {
            return;
        }
        tcp.copy_within(TCP_BYTES..head, TCP_BYTES + MSS_OPTION_BYTES);
        tcp[TCP_BYTES..TCP_BYTES + 2].copy_from_slice(&MSS_OPTION);
        write_u16(tcp, TCP_BYTES + 2, max_mss);
        write_u16(tcp, 12, flags + ((MSS_OPTION_BYTES as u16 / 4) << 12));
        self.length += MSS_OPTION_BYTES;
        self.write_length();
    }

    /// Returns a crafted acknowledgement from the first address to the second.
    pub(super) fn crafted_ack(
        (from, to): (SocketAddr, SocketAddr),
        sequence: u32,
        number: u32,
        window: u16,
    ) -> Self {
        let body = ip::header_bytes(to.ip());
        let mut headers_only = Self {
            bytes: [0; MAX_HEADERS_BYTES],
            length: body + TCP_BYTES,
            tcp_offset: body,
        };
        ip::write_header(
            &mut headers_only.bytes,
            from.ip(),
            to.ip(),
            TCP,
            TCP_BYTES,
            0,
        );
        let tcp = &mut headers_only.bytes[body..];
        write_u16(tcp, 0, from.port());
        write_u16(tcp, 2, to.port());
        tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
        tcp[8..12].copy_from_slice(&number.to_be_bytes());
        write_u16(tcp, 12, (TCP_BYTES as u16 / 4) << 12 | ACK);
        write_u16(tcp, 14, window);
        headers_only
    }

    /// Sets the RST flag.
    pub(super) fn with_rst(mut self) -> Self {
        let at = self.tcp_offset + 12;
        let flags = read_u16(&self.bytes, at);
        write_u16(&mut self.bytes, at, flags | RST);
        self
    }

    /// Sets the FIN flag.
    pub(super) fn with_fin(mut self) -> Self {
        let at = self.tcp_offset + 12;
        let flags = read_u16(&self.bytes, at);
        write_u16(&mut self.bytes, at, flags | FIN);
        self
    }

    /// Returns a segment with one byte that was received before: smoltcp acknowledges it at once.
    pub(super) fn old_byte(
        addresses: (SocketAddr, SocketAddr),
        sequence: u32,
        number: u32,
    ) -> Self {
        let mut headers_only = Self::crafted_ack(addresses, sequence, number, 1);
        headers_only.length += 1;
        headers_only.write_length();
        headers_only
    }

    /// Decrements the sequence number: smoltcp takes the segment as a keep-alive probe, and
    /// replies.
    pub(super) fn decrement_sequence(&mut self) {
        let sequence = read_u32(&self.bytes[self.tcp_offset..], 4).wrapping_sub(1);
        self.bytes[self.tcp_offset + 4..self.tcp_offset + 8]
            .copy_from_slice(&sequence.to_be_bytes());
    }

    pub(super) fn packet(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    pub(super) fn set_number(&mut self, number: u32) {
        let at = self.tcp_offset + 8;
        self.bytes[at..at + 4].copy_from_slice(&number.to_be_bytes());
    }

    /// Returns the window field, unscaled.
    pub(super) fn window(&self) -> u16 {
        read_u16(&self.bytes, self.tcp_offset + 14)
    }

    pub(super) fn set_window(&mut self, window: u16) {
        write_u16(&mut self.bytes, self.tcp_offset + 14, window);
    }
}

/// Returns the number that a segment acknowledges; `None` with SYN or RST.
pub(super) fn acknowledged_number(segment: &[u8]) -> Option<u32> {
    let flags = read_u16(segment, 12);
    (flags & SYN_RST == 0 && flags & ACK != 0).then(|| read_u32(segment, 8))
}

/// Lowers the Maximum Segment Size option of a SYN to `max_mss` (RFC 9293, section 3.2); zero
/// counts as absent value. Returns whether the option is there. The caller updates the checksum.
pub(super) fn limit_mss(tcp: &mut [u8], max_mss: u16) -> bool {
    let Some((at, value)) = find_mss_option(tcp) else {
        return false;
    };
    write_u16(tcp, at, value.min(max_mss));
    true
}

/// Returns the maximum segment size that smoltcp derives from a SYN.
pub(super) fn peer_mss(tcp: &[u8]) -> u16 {
    /// Lower limit of smoltcp.
    const SMOLTCP_MIN: u16 = 48;
    find_mss_option(tcp).map_or(DEFAULT_MSS, |(_, value)| value.max(SMOLTCP_MIN))
}

/// Returns offset and value of the Maximum Segment Size option of a SYN.
fn find_mss_option(tcp: &[u8]) -> Option<(usize, u16)> {
    const END: u8 = 0;
    const NOP: u8 = 1;
    let head = (usize::from(read_u16(tcp, 12) >> 12) * 4).min(tcp.len());
    let mut at = TCP_BYTES;
    while at < head && tcp[at] != END {
        if tcp[at] == NOP {
            at += 1;
            continue;
        }
        let option = &tcp[at..head];
        if option.len() >= 4 && option.starts_with(&MSS_OPTION) {
            let value = match read_u16(option, 2) {
                0 => DEFAULT_MSS,
                value => value,
            };
            return Some((at + 2, value));
        }
        match option.get(1) {
            Some(&length) if length >= 2 => at += usize::from(length),
            _ => return None,
        }
    }
    None
}

/// Returns the acknowledgement to process in place of a segment whose payload does not fit into
/// smoltcp's buffer. `read_sequence` is the sequence number of the next byte that the application
/// reads.
#[inline]
pub(super) fn ack_beyond_buffer(
    socket: &Socket<'_>,
    read_sequence: u32,
    header: &IpHeader,
    packet: &[u8],
) -> Option<HeadersOnly> {
    let (capacity, buffered) = (socket.recv_capacity(), socket.recv_queue());
    let expected = read_sequence.wrapping_add(buffered as u32);
    let segment = &packet[header.transport..header.end];
    let head = usize::from(read_u16(segment, 12) >> 12) * 4;
    let offset = i64::from(read_u32(segment, 4).wrapping_sub(expected) as i32);
    let end = offset + segment.len() as i64 - head as i64;
    match segment.len() > head && end > (capacity - buffered) as i64 {
        true => without_payload(socket.state(), expected, header, packet),
        false => None,
    }
}

/// Before a connection is established smoltcp ignores payload anyway.
#[cold]
fn without_payload(
    state: State,
    expected: u32,
    header: &IpHeader,
    packet: &[u8],
) -> Option<HeadersOnly> {
    let flags = read_u16(&packet[header.transport..header.end], 12);
    if matches!(state, State::Closed | State::Listen | State::SynSent)
        || flags & SYN_RST != 0
        || flags & ACK == 0
    {
        return None;
    }
    HeadersOnly::ack_of(expected, header, packet)
}

/// Returns the acknowledgement of a segment that smoltcp would drop. `read_sequence` is the
/// sequence number of the next byte that the application reads.
#[inline]
pub(super) fn ack_outside_window(
    socket: &Socket<'_>,
    read_sequence: u32,
    header: &IpHeader,
    packet: &[u8],
) -> Option<HeadersOnly> {
    let (capacity, buffered) = (socket.recv_capacity(), socket.recv_queue());
    let log2 = usize::BITS - capacity.leading_zeros();
    // Rounding takes less than one unit of the scaled window; four units leave a margin.
    let is_nearly_full = capacity - buffered < 4 << log2.saturating_sub(16);
    if !is_nearly_full {
        return None;
    }
    ack_if_dropped(
        socket.state(),
        read_sequence.wrapping_add(buffered as u32),
        capacity,
        header,
        packet,
    )
}

#[cold]
fn ack_if_dropped(
    state: State,
    expected: u32,
    capacity: usize,
    header: &IpHeader,
    packet: &[u8],
) -> Option<HeadersOnly> {
    if !matches!(
        state,
        State::Established | State::FinWait1 | State::FinWait2
    ) {
        return None;
    }
    let segment = &packet[header.transport..header.end];
    let flags = read_u16(segment, 12);
    let head = usize::from(flags >> 12) * 4;
    if flags & SYN_RST != 0 || flags & ACK == 0 {
        return None;
    }
    let sequence = read_u32(segment, 4);
    let offset = i64::from(sequence.wrapping_sub(expected) as i32);
    let in_order = offset == 0 && segment.len() == head;
    // Sequence number -1 is that of window and keep-alive probes.
    if in_order || offset < -1 || offset > capacity as i64 {
        return None;
    }
    HeadersOnly::ack_of(expected, header, packet)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_mss_option_is_lowered() {
        let syn = |options: &[u8]| {
            let mut tcp = vec![0; TCP_BYTES];
            tcp.extend_from_slice(options);
            let header_words = tcp.len() as u16 / 4;
            write_u16(&mut tcp, 12, header_words << 12 | 0x02);
            tcp
        };
        for (options, expected) in [
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
            let mut tcp = syn(options);
            limit_mss(&mut tcp, 536);
            assert_eq!(&tcp[TCP_BYTES..], expected, "{options:?}");
        }
    }

    /// Returns a SYN with these options, and its parsed header.
    fn packet(v6: bool, options: &[u8]) -> (IpHeader, Vec<u8>) {
        let addresses = match v6 {
            true => ["fd00::1", "fd00::2"],
            false => ["10.0.0.1", "10.0.0.2"],
        };
        let [from, to]: [std::net::IpAddr; 2] = addresses.map(|end| end.parse().unwrap());
        let head = TCP_BYTES + options.len();
        let body = ip::header_bytes(to);
        let mut packet = vec![0; body + head];
        ip::write_header(&mut packet, from, to, TCP, head, 0);
        write_u16(&mut packet, body + 12, (head as u16 / 4) << 12 | 0x02);
        packet[body + TCP_BYTES..].copy_from_slice(options);
        let header = ip::parse(&packet, !v6, false).unwrap();
        (header, packet)
    }

    /// A peer without the option accepts 536 B, and may still be sent less.
    #[test]
    fn a_syn_without_mss_option_gets_one() {
        for v6 in [false, true] {
            for (options, max_mss, expected) in [
                (&[][..], 200, &[2, 4, 0, 200][..]),
                (&[1, 3, 3, 7], 200, &[2, 4, 0, 200, 1, 3, 3, 7]),
                // smoltcp would send no more anyway.
                (&[1, 3, 3, 7], 536, &[1, 3, 3, 7]),
                // No space: unchanged.
                (&[1; 40], 200, &[1; 40]),
            ] {
                let (header, packet) = packet(v6, options);
                let headers_only = HeadersOnly::syn_with_mss(&header, &packet, max_mss).unwrap();
                let read = ip::parse(headers_only.packet(), !v6, false).unwrap();
                let tcp = &headers_only.packet()[read.transport..read.end];
                assert_eq!(
                    usize::from(read_u16(tcp, 12) >> 12) * 4,
                    tcp.len(),
                    "{options:?}"
                );
                assert_eq!(&tcp[TCP_BYTES..], expected, "{options:?}");
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
