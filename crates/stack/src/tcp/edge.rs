//! Acknowledgements that the engine would overlook.
//!
//! The engine drops a segment that lies outside its receive window together with the acknowledgement in
//! it. Where the window is full, the far end's next sequence number can lie a few bytes beyond it: a scaled
//! window is rounded down, so that its right edge moves back. From then on nothing is acknowledged any
//! more; and if the reader waits until it can send, nothing ever moves again. RFC 9293, section 3.10.7.4
//! asks that acknowledgements be taken from such segments: the engine is shown them without their payload,
//! at the number that it expects.

use std::net::SocketAddr;

use smoltcp::socket::tcp::{Socket, State};

use crate::wire::ip::{self, Header};
use crate::wire::{TCP, TCP_BYTES, long, put, word};

/// The longest headers: IPv4 with options or IPv6, and TCP with options; extensions of IPv6 are left out.
const MOST_HEADERS: usize = 60 + 60;

const FIN: u16 = 0x01;
const SYN_RST: u16 = 0x06;
const ACK: u16 = 0x10;

/// Headers alone.
pub(super) struct Bare {
    bytes: [u8; MOST_HEADERS],
    length: usize,
    /// Where TCP's header begins.
    body: usize,
}

impl Bare {
    /// The acknowledgement of a segment, without payload, at the number that the engine expects.
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
        let bytes = &mut bare.bytes[..end];
        bytes.copy_from_slice(&packet[..end]);
        if header.to.is_ipv4() {
            put(bytes, 2, end as u16);
        } else {
            put(bytes, 4, (end - crate::wire::ip::V6_BYTES) as u16);
        }
        let tcp = &mut bytes[header.body..];
        tcp[4..8].copy_from_slice(&expected.to_be_bytes());
        put(tcp, 12, flags & !FIN);
        Some(bare)
    }

    /// An acknowledgement that never came, from the first of two ends to the other.
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

    pub(super) fn packet(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    pub(super) fn set_number(&mut self, number: u32) {
        let at = self.body + 8;
        self.bytes[at..at + 4].copy_from_slice(&number.to_be_bytes());
    }

    /// The window that it tells of, as it stands there.
    pub(super) fn window(&self) -> u16 {
        word(&self.bytes, self.body + 14)
    }

    pub(super) fn set_window(&mut self, window: u16) {
        put(&mut self.bytes, self.body + 14, window);
    }
}

/// The acknowledgement of a segment that the engine would overlook. `base` is the number that the far
/// end's stream begins with, and what the application has fetched since.
#[inline]
pub(super) fn overlooked(
    socket: &Socket<'_>,
    base: u32,
    header: &Header,
    packet: &[u8],
) -> Option<Bare> {
    let (capacity, queued) = (socket.recv_capacity(), socket.recv_queue());
    let log2 = usize::BITS - capacity.leading_zeros();
    // Rounding takes less than one unit; with some more in hand the window cannot close unseen.
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
    // One behind is how windows and idle connections are probed.
    if in_order || ahead < -1 || ahead > capacity as i64 {
        return None;
    }
    Bare::of(expected, header, packet)
}
