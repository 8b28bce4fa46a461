//! Path MTU of connections, and MTU probing.
//!
//! TCP segments are never fragmented on their way (RFC 1191, RFC 8201): a router drops those that
//! are too long and reports its link's MTU. smoltcp takes the segment size from SYNs alone, so its
//! packets are split here, or by the port's other side if that segments. Without such reports the
//! path is a black hole for long packets: a segment that was retransmitted several times by
//! timeouts is sent shorter from then on (RFC 4821; Linux does so with `tcp_mtu_probing=1`).
//!
//! Paths change, and a supposed black hole may have been a link that was down. So after ten minutes
//! one longer segment is tried (RFC 8899, section 5.1.1: PMTU_RAISE_TIMER). If it arrives, longer
//! segments are sent and the next length is tried. If not, it is retransmitted in shorter ones, at
//! the cost of one lost segment.

use super::smoltcp_device::Sent;
use crate::Nanos;
use crate::pmtu_cache::{HOLDS, LEAST_V4, LEAST_V6};
use crate::wire::ip;
use crate::wire::{FIN, PSH, TCP_BYTES, long, put, word};

/// Timeouts of the same segment after which its length is suspected. Linux, which returns to longer
/// ones sooner, suspects it after three (tcp_retries1). With 5 % random loss, a million segments do
/// not suffer five in a row, nor does a link that is down for a second cause them.
const VAIN: u8 = 5;

/// MTU probe in flight: a segment longer than the known path MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trial {
    /// First sequence number.
    pub(super) from: u32,
    behind: u32,
    /// Length of its packet in bytes.
    pub(super) mtu: u16,
    /// True if packets on the local link are no longer.
    is_longest: bool,
}

/// Packet written by smoltcp.
#[derive(Clone, Copy)]
pub(super) struct Written {
    v4: bool,
    /// Length of the IP and TCP headers.
    head: usize,
    payload: usize,
    sequence: u32,
}

impl Written {
    pub(super) fn of(packet: &[u8]) -> Self {
        let (ip, tcp) = heads(packet);
        Self {
            v4: packet[0] >> 4 == 4,
            head: ip + tcp,
            payload: packet.len() - ip - tcp,
            sequence: long(packet, ip + 4),
        }
    }

    pub(super) fn is_v4(&self) -> bool {
        self.v4
    }

    fn behind(&self) -> u32 {
        self.sequence.wrapping_add(self.payload as u32)
    }

    /// Returns the length of its packets after a split into `each` bytes of payload.
    fn packet(&self, each: u16) -> u16 {
        (self.head + self.payload.min(each.into())) as u16
    }
}

impl Sent {
    /// Reduces the path MTU.
    pub(super) fn narrow(&mut self, mtu: u16, v4: bool, now: Nanos) {
        (self.path_mtu, self.wider_at, self.trial) = (mtu, now + HOLDS, None);
        self.vain.1 = 0;
        // Data in flight is retransmitted in segments of this length, which is the unit for
        // counting them.
        let holds = usize::from(mtu) - ip::header_bytes_of(v4) - TCP_BYTES;
        self.largest = self.largest.min(holds as u32);
    }

    /// Sets the path MTU from the cache, before the connection starts.
    pub(super) fn known(&mut self, mtu: u16, until: Nanos) {
        (self.path_mtu, self.wider_at) = (mtu, until);
    }

    /// Returns whether the segment retransmitted now may be too long for the path: it was
    /// retransmitted by timeouts alone.
    #[inline]
    pub(super) fn is_suspected(&self) -> bool {
        self.vain.1 >= VAIN - 1
    }

    /// Handles a suspected segment that is split into `each` bytes of payload. After enough
    /// timeouts the path MTU is reduced, unless the segment is short; returns whether it was.
    #[cold]
    pub(super) fn guess(&mut self, written: &Written, each: u16, now: Nanos) -> bool {
        let again = self.is_again(written) && !self.asked && self.vain.0 == written.sequence;
        if !self.is_suspected() || !again {
            return false;
        }
        let packet = match (written.packet(each), self.path_mtu) {
            (packet, 0) => packet,
            (packet, mtu) => packet.min(mtu),
        };
        let steps = [LEAST_V6, if written.v4 { LEAST_V4 } else { LEAST_V6 }];
        let Some(shorter) = steps.into_iter().find(|step| *step < packet) else {
            return false;
        };
        self.narrow(shorter, written.v4, now);
        true
    }

    /// Returns whether all of it was sent before.
    fn is_again(&self, written: &Written) -> bool {
        let before = |last: u32| written.behind().wrapping_sub(last) as i32 <= 0;
        self.up_to.is_some_and(before)
    }

    /// Returns an MTU probe, if one is due: the first part of a packet with new payload, longer
    /// than the path MTU. `most` is the maximum payload on the local link.
    #[cold]
    pub(super) fn tries(&self, written: &Written, most: u16, now: Nanos) -> Option<Trial> {
        let is_new = self.up_to == Some(written.sequence);
        let is_time = self.path_mtu != 0 && self.trial.is_none() && now >= self.wider_at;
        let longest = (written.head + usize::from(most)) as u16;
        let next = match self.path_mtu < LEAST_V6 {
            true => LEAST_V6.min(longest),
            false => longest,
        };
        let mtu = next.min(written.packet(most));
        let payload = u32::from(mtu) - written.head as u32;
        let trial = Trial {
            from: written.sequence,
            behind: written.sequence.wrapping_add(payload),
            mtu,
            is_longest: mtu == longest,
        };
        (is_new && is_time && mtu > self.path_mtu).then_some(trial)
    }

    /// Records an MTU probe that has left.
    pub(super) fn tried(&mut self, trial: Trial, now: Nanos) {
        (self.trial, self.wider_at) = (Some(trial), now + HOLDS);
    }

    /// Cancels the probe if this range overlaps it: it is retransmitted, so the probe did not
    /// arrive.
    pub(super) fn leaves_again(&mut self, from: u32, behind: u32) {
        let ahead = |number: u32, of: u32| number.wrapping_sub(of) as i32 > 0;
        let meets = |trial: Trial| ahead(behind, trial.from) && ahead(trial.behind, from);
        self.trial = self.trial.filter(|trial| !meets(*trial));
    }

    /// Removes a dropped probe from the state once `number` reaches it; returns whether it begins
    /// exactly there.
    #[inline]
    pub(super) fn passes_dropped(&mut self, number: u32) -> bool {
        let behind = |from: &mut u32| number.wrapping_sub(*from) as i32 >= 0;
        self.dropped.take_if(behind) == Some(number)
    }

    /// Handles an acknowledgement that advances to `number`.
    #[inline]
    pub(super) fn moved(&mut self, number: u32, now: Nanos) {
        self.vain.1 = 0;
        if let Some(trial) = self.trial
            && number.wrapping_sub(trial.behind) as i32 >= 0
        {
            self.widen(trial, now);
        }
    }

    /// Raises the path MTU after a probe has arrived.
    #[cold]
    fn widen(&mut self, trial: Trial, now: Nanos) {
        self.path_mtu = if trial.is_longest { 0 } else { trial.mtu };
        (self.wider_at, self.trial) = (now, None);
    }
}

/// Returns the lengths of the IP and TCP headers.
fn heads(packet: &[u8]) -> (usize, usize) {
    let ip = match packet[0] >> 4 {
        4 => ip::V4_BYTES,
        _ => ip::V6_BYTES,
    };
    (ip, usize::from(packet[ip + 12] >> 4) * 4)
}

/// Returns the payload that a packet of `mtu` bytes holds with these headers.
pub(super) fn payload_within(packet: &[u8], mtu: u16) -> u16 {
    let (ip, tcp) = heads(packet);
    mtu - (ip + tcp) as u16
}

/// Returns the length of a packet with these headers and this payload.
pub(super) fn packet_of(packet: &[u8], payload: u16) -> u16 {
    let (ip, tcp) = heads(packet);
    (ip + tcp) as u16 + payload
}

/// Part of a split packet.
pub(super) struct Piece<'a> {
    whole: &'a [u8],
    /// Offset of its payload in that of the whole packet.
    at: usize,
    pub(super) payload: usize,
}

/// Splits a packet into packets of at most `mtu` bytes; the first one may have `first` bytes.
pub(super) fn pieces(whole: &[u8], first: u16, mtu: u16) -> impl Iterator<Item = Piece<'_>> {
    let (ip, tcp) = heads(whole);
    let payload = whole.len() - ip - tcp;
    let holds = |mtu: u16| usize::from(mtu) - ip - tcp;
    let (begins, each) = (holds(first).min(payload), holds(mtu));
    let piece = move |at: usize, most: usize| Piece {
        whole,
        at,
        payload: most.min(payload - at),
    };
    let rest = (begins..payload).step_by(each);
    std::iter::once(piece(0, begins)).chain(rest.map(move |at| piece(at, each)))
}

impl Piece<'_> {
    /// Returns its packet's length.
    pub(super) fn bytes(&self) -> usize {
        let (ip, tcp) = heads(self.whole);
        ip + tcp + self.payload
    }

    /// Writes its packet, without checksums.
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

    const SECOND: Nanos = 1_000_000_000;

    /// Returns an IPv4 segment without options, as written by smoltcp.
    fn written(sequence: u32, payload: usize) -> Written {
        Written {
            v4: true,
            head: 40,
            payload,
            sequence,
        }
    }

    fn sent(up_to: u32) -> Sent {
        Sent {
            up_to: Some(up_to),
            largest: 1_460,
            ..Sent::default()
        }
    }

    /// The unit for counting segments in flight follows the path MTU.
    #[test]
    fn the_longest_segment_gets_as_short_as_the_path() {
        for (v4, mtu, largest, then) in [
            (true, 552, 1_460, 512),
            (false, 1_280, 1_440, 1_220),
            (true, 1_400, 600, 600),
        ] {
            let mut sent = Sent {
                largest,
                ..sent(1_000)
            };
            sent.narrow(mtu, v4, SECOND);
            assert_eq!(sent.largest, then, "{mtu}");
        }
    }

    #[test]
    fn the_fifth_time_out_of_a_long_segment_makes_it_shorter() {
        for (name, vain, asked, sequence, payload, path_mtu, then) in [
            ("in vain", 4, false, 7, 1_460, 0, 1_280),
            ("shorter, in vain", 4, false, 7, 1_460, 1_280, 552),
            ("once less", 3, false, 7, 1_460, 0, 0),
            ("requested", 4, true, 7, 1_460, 0, 0),
            ("another one", 4, false, 1_467, 1_460, 0, 0),
            ("a new one", 4, false, 3_000, 1_460, 0, 0),
            ("a short one", 4, false, 7, 500, 0, 0),
            ("not that long", 4, false, 7, 1_000, 0, 552),
        ] {
            let mut sent = Sent {
                vain: (7, vain),
                asked,
                path_mtu,
                ..sent(3_000)
            };
            let guesses = sent.guess(&written(sequence, payload), 1_460, SECOND);
            assert_eq!((guesses, sent.path_mtu), (then != path_mtu, then), "{name}");
            if guesses {
                assert_eq!((sent.vain.1, sent.wider_at), (0, SECOND + HOLDS), "{name}");
            }
        }
    }

    #[test]
    fn a_longer_segment_is_tried_and_widens_the_path_where_it_arrives() {
        let due = SECOND + HOLDS;
        for (name, path_mtu, sequence, payload, at, tried) in [
            ("too early", 1_280, 3_000, 1_460, due - 1, None),
            ("due", 1_280, 3_000, 1_460, due, Some(1_500)),
            ("by a step", 552, 3_000, 1_460, due, Some(1_280)),
            ("as long as there is", 1_280, 3_000, 1_300, due, Some(1_340)),
            ("no longer one", 1_280, 3_000, 1_240, due, None),
            ("of before", 1_280, 2_000, 1_460, due, None),
            ("no path", 0, 3_000, 1_460, due, None),
        ] {
            let mut sent = sent(3_000);
            if path_mtu != 0 {
                sent.narrow(path_mtu, true, SECOND);
            }
            let written = written(sequence, payload);
            let trial = sent.tries(&written, 1_460, at);
            assert_eq!(trial.map(|trial| trial.mtu), tried, "{name}");
            let (Some(trial), Some(mtu)) = (trial, tried) else {
                continue;
            };
            sent.tried(trial, at);
            let behind = sequence + u32::from(mtu) - 40;
            sent.up_to = Some(behind);
            // One probe at a time.
            let next = self::written(behind, 1_460);
            assert_eq!(sent.tries(&next, 1_460, at + HOLDS), None, "{name}");
            let mut again = sent;
            again.leaves_again(sequence, sequence + 500);
            again.moved(behind, at);
            let stays = (again.path_mtu, again.wider_at, again.trial);
            assert_eq!(stays, (path_mtu, at + HOLDS, None), "{name}");
            // Data before it has no effect.
            sent.leaves_again(sequence - 500, sequence);
            sent.moved(behind - 1, at + 1);
            assert_eq!(sent.path_mtu, path_mtu, "{name}");
            sent.moved(behind, at + 2);
            let widens = (sent.path_mtu, sent.wider_at, sent.trial);
            let wide = if mtu == 1_500 { 0 } else { mtu };
            assert_eq!(widens, (wide, at + 2, None), "{name}");
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
            let cut: Vec<Vec<u8>> = pieces(&whole, mtu, mtu)
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
