//! Paths whose MTU is smaller than the own link's.
//!
//! Segments of TCP are never cut on their way (RFC 1191, RFC 8201): a router that would have to drops them, and says
//! which MTU its link has. The engine learns how long segments may be from greetings alone, so what it makes is cut
//! here, by the port's other side where that cuts. A router that says nothing makes a hole that nothing comes out of: what a
//! time-out has sent again in vain several times is sent shorter from then on (RFC 4821, as Linux does with
//! `tcp_mtu_probing=1`). Nothing here tries longer ones again, so that it takes more to be sure than there.

use super::device::Sent;
use crate::wire::ip;
use crate::wire::{FIN, PSH, long, put, word};

/// Time-outs of the same segment after which its length is suspected. Linux, which goes back to longer ones, suspects
/// it after three (tcp_retries1); plain loss of 5 % does not come to five of them in a million segments, nor a link
/// that is gone for a second.
pub(super) const VAIN: u8 = 5;

/// Links with a smaller one are not believed in: Linux's (min_pmtu), and RFC 8200, section 5.
const LEAST_V4: u16 = 552;
const LEAST_V6: u16 = 1_280;

/// What links have below the one that a packet was too long for, where the router does not say (RFC 1191, section 7).
const PLATEAUS: [u16; 7] = [32_000, 17_914, 8_166, 4_352, 2_002, 1_492, 1_006];

/// The MTU to be used where a router said this one of a packet of so many bytes.
pub(super) fn believed(told: u32, packet: u16, v4: bool) -> u16 {
    let least = if v4 { LEAST_V4 } else { LEAST_V6 };
    let told = match told {
        0 => PLATEAUS.into_iter().find(|plateau| *plateau < packet),
        told => Some(told.min(u16::MAX.into()) as u16),
    };
    told.unwrap_or(least).max(least)
}

/// A segment with these headers and so much payload was sent again in vain: shorter ones will be, unless it is short.
/// Whether they will.
#[cold]
pub(super) fn guess(headers: usize, payload: usize, v4: bool, sent: &mut Sent) -> bool {
    let packet = headers + payload;
    let steps = [LEAST_V6, if v4 { LEAST_V4 } else { LEAST_V6 }];
    let Some(shorter) = steps.into_iter().find(|step| usize::from(*step) < packet) else {
        return false;
    };
    sent.path_mtu = shorter;
    sent.moved();
    true
}

/// Headers of IP and TCP.
fn heads(packet: &[u8]) -> (usize, usize) {
    let ip = match packet[0] >> 4 {
        4 => ip::V4_BYTES,
        _ => ip::V6_BYTES,
    };
    (ip, usize::from(packet[ip + 12] >> 4) * 4)
}

/// How much of its payload a packet of this length holds.
pub(super) fn payload_within(packet: &[u8], mtu: u16) -> u16 {
    let (ip, tcp) = heads(packet);
    mtu - (ip + tcp) as u16
}

/// One of the packets that a longer one is cut into.
pub(super) struct Piece<'a> {
    whole: &'a [u8],
    /// Where its payload begins in that of the whole.
    at: usize,
    payload: usize,
}

/// The packets of this length at most that a longer one is cut into.
pub(super) fn pieces(whole: &[u8], mtu: u16) -> impl Iterator<Item = Piece<'_>> {
    let (ip, tcp) = heads(whole);
    let payload = whole.len() - ip - tcp;
    let each = usize::from(payload_within(whole, mtu));
    (0..payload).step_by(each).map(move |at| Piece {
        whole,
        at,
        payload: each.min(payload - at),
    })
}

impl Piece<'_> {
    /// Its length.
    pub(super) fn bytes(&self) -> usize {
        let (ip, tcp) = heads(self.whole);
        ip + tcp + self.payload
    }

    /// Writes it; the checksums are left to who sends it.
    pub(super) fn write(&self, packet: &mut [u8]) {
        let (ip, tcp) = heads(self.whole);
        let head = ip + tcp;
        packet[..head].copy_from_slice(&self.whole[..head]);
        let payload = &self.whole[head..][self.at..][..self.payload];
        packet[head..].copy_from_slice(payload);
        match ip {
            ip::V4_BYTES => put(packet, 2, (head + self.payload) as u16),
            _ => put(packet, 4, (tcp + self.payload) as u16),
        }
        let segment = &mut packet[ip..];
        let sequence = long(segment, 4).wrapping_add(self.at as u32);
        segment[4..8].copy_from_slice(&sequence.to_be_bytes());
        let is_last = head + self.at + self.payload == self.whole.len();
        if !is_last {
            let flags = word(segment, 12);
            put(segment, 12, flags & !(FIN | PSH));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routers_are_believed_within_reason() {
        for (told, packet, v4, believe) in [
            (1_400, 1_500, true, 1_400),
            (68, 1_500, true, 552),
            (1_400, 1_500, false, 1_400),
            (600, 1_500, false, 1_280),
            // Before RFC 1191 routers said nothing.
            (0, 1_500, true, 1_492),
            (0, 1_492, true, 1_006),
            (0, 900, true, 552),
            (70_000, 9_000, false, u16::MAX),
        ] {
            assert_eq!(believed(told, packet, v4), believe, "{told} of {packet}");
        }
    }

    #[test]
    fn what_is_cut_is_the_same_stream() {
        for (v6, options, payload, mtu) in [(false, 0, 1_460usize, 552), (true, 12, 3_000, 1_280)] {
            let ip = if v6 { 40 } else { 20 };
            let head = ip + 20 + options;
            let mut whole = vec![0; head];
            whole[0] = if v6 { 0x60 } else { 0x45 };
            whole[ip + 4..ip + 8].copy_from_slice(&(u32::MAX - 700).to_be_bytes());
            put(
                &mut whole,
                ip + 12,
                ((20 + options) as u16 / 4) << 12 | 0x10 | PSH | FIN,
            );
            whole.extend((0..payload).map(|place| (place % 251) as u8));
            let cut: Vec<Vec<u8>> = pieces(&whole, mtu)
                .map(|piece| {
                    let mut packet = vec![0; piece.bytes()];
                    piece.write(&mut packet);
                    packet
                })
                .collect();
            let each = usize::from(mtu) - head;
            assert_eq!(cut.len(), payload.div_ceil(each));
            let mut stream = Vec::new();
            for (number, packet) in cut.iter().enumerate() {
                assert!(packet.len() <= usize::from(mtu));
                let told = if v6 {
                    usize::from(word(packet, 4)) + 40
                } else {
                    word(packet, 2).into()
                };
                assert_eq!(told, packet.len());
                let sequence = long(packet, ip + 4).wrapping_sub(u32::MAX - 700);
                assert_eq!(sequence as usize, stream.len());
                let last = number + 1 == cut.len();
                assert_eq!(word(packet, ip + 12) & (FIN | PSH) != 0, last);
                stream.extend_from_slice(&packet[head..]);
            }
            assert_eq!(stream, whole[head..]);
        }
    }
}
