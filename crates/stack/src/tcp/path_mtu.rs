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

use super::smoltcp_device::SendState;
use crate::Nanos;
use crate::path_mtu_cache::{MIN_PMTU_V4, MIN_PMTU_V6, PMTU_LIFETIME_NS};
use crate::wire::{FIN, PSH, TCP_BYTES, ip, read_u16, read_u32, write_u16};

/// Timeouts of the same segment after which its length is suspected. Linux, which returns to longer
/// ones sooner, suspects it after three (tcp_retries1). With 5 % random loss, a million segments do
/// not suffer five in a row, nor does a link that is down for a second cause them.
const SUSPECT_TIMEOUTS: u8 = 5;

/// MTU probe in flight: a segment longer than the known path MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MtuProbe {
    /// First sequence number.
    pub(super) start: u32,
    end: u32,
    /// Length of its packet in bytes.
    pub(super) mtu: u16,
    /// True if packets on the local link are no longer.
    is_longest: bool,
}

/// Packet written by smoltcp.
#[derive(Clone, Copy)]
pub(super) struct WrittenPacket {
    v4: bool,
    /// Length of the IP and TCP headers.
    header_bytes: usize,
    payload_bytes: usize,
    sequence: u32,
}

impl WrittenPacket {
    pub(super) fn parse(packet: &[u8]) -> Self {
        let (ip, tcp) = header_lengths(packet);
        Self {
            v4: packet[0] >> 4 == 4,
            header_bytes: ip + tcp,
            payload_bytes: packet.len() - ip - tcp,
            sequence: read_u32(packet, ip + 4),
        }
    }

    pub(super) fn is_v4(&self) -> bool {
        self.v4
    }

    fn end(&self) -> u32 {
        self.sequence.wrapping_add(self.payload_bytes as u32)
    }

    /// Returns the length of its packets after a split into `segment_payload` bytes of payload.
    fn packet_bytes(&self, segment_payload: u16) -> u16 {
        (self.header_bytes + self.payload_bytes.min(segment_payload.into())) as u16
    }
}

impl SendState {
    /// Reduces the path MTU.
    pub(super) fn reduce_path_mtu(&mut self, mtu: u16, v4: bool, now: Nanos) {
        (self.path_mtu, self.probe_at, self.mtu_probe) = (mtu, now + PMTU_LIFETIME_NS, None);
        self.timeout_repeats.1 = 0;
        // Data in flight is retransmitted in segments of this length, which is the unit for
        // counting them.
        let part_payload = usize::from(mtu) - ip::header_bytes_for_version(v4) - TCP_BYTES;
        self.max_payload = self.max_payload.min(part_payload as u32);
    }

    /// Sets the path MTU from the cache, before the connection starts.
    pub(super) fn set_path_mtu(&mut self, mtu: u16, until: Nanos) {
        (self.path_mtu, self.probe_at) = (mtu, until);
    }

    /// Returns whether the segment retransmitted now may be too long for the path: it was
    /// retransmitted by timeouts alone.
    #[inline]
    pub(super) fn is_length_suspected(&self) -> bool {
        self.timeout_repeats.1 >= SUSPECT_TIMEOUTS - 1
    }

    /// Handles a suspected segment that is split into `segment_payload` bytes of payload. After
    /// enough timeouts the path MTU is reduced, unless the segment is short; returns whether it
    /// was.
    #[cold]
    pub(super) fn reduce_if_black_hole(
        &mut self,
        written: &WrittenPacket,
        segment_payload: u16,
        now: Nanos,
    ) -> bool {
        let was_sent = self.was_sent(written)
            && !self.retransmit_requested
            && self.timeout_repeats.0 == written.sequence;
        if !self.is_length_suspected() || !was_sent {
            return false;
        }
        let packet = match (written.packet_bytes(segment_payload), self.path_mtu) {
            (packet, 0) => packet,
            (packet, mtu) => packet.min(mtu),
        };
        let smaller_mtus = [
            MIN_PMTU_V6,
            if written.v4 { MIN_PMTU_V4 } else { MIN_PMTU_V6 },
        ];
        let Some(shorter) = smaller_mtus.into_iter().find(|step| *step < packet) else {
            return false;
        };
        self.reduce_path_mtu(shorter, written.v4, now);
        true
    }

    /// Returns whether all of it was sent before.
    fn was_sent(&self, written: &WrittenPacket) -> bool {
        let before = |last: u32| written.end().wrapping_sub(last) as i32 <= 0;
        self.snd_nxt.is_some_and(before)
    }

    /// Returns an MTU probe, if one is due: the first part of a packet with new payload, longer
    /// than the path MTU. `max_payload` is the maximum payload on the local link.
    #[cold]
    pub(super) fn propose_probe(
        &self,
        written: &WrittenPacket,
        max_payload: u16,
        now: Nanos,
    ) -> Option<MtuProbe> {
        let is_new = self.snd_nxt == Some(written.sequence);
        let is_time = self.path_mtu != 0 && self.mtu_probe.is_none() && now >= self.probe_at;
        let longest = (written.header_bytes + usize::from(max_payload)) as u16;
        let next = match self.path_mtu < MIN_PMTU_V6 {
            true => MIN_PMTU_V6.min(longest),
            false => longest,
        };
        let mtu = next.min(written.packet_bytes(max_payload));
        let payload = u32::from(mtu) - written.header_bytes as u32;
        let probe = MtuProbe {
            start: written.sequence,
            end: written.sequence.wrapping_add(payload),
            mtu,
            is_longest: mtu == longest,
        };
        (is_new && is_time && mtu > self.path_mtu).then_some(probe)
    }

    /// Records an MTU probe that has left.
    pub(super) fn record_probe(&mut self, probe: MtuProbe, now: Nanos) {
        (self.mtu_probe, self.probe_at) = (Some(probe), now + PMTU_LIFETIME_NS);
    }

    /// Cancels the probe if this range overlaps it: it is retransmitted, so the probe did not
    /// arrive.
    pub(super) fn cancel_overlapping_probe(&mut self, from: u32, end: u32) {
        let is_ahead = |number: u32, of: u32| number.wrapping_sub(of) as i32 > 0;
        let overlaps = |probe: MtuProbe| is_ahead(end, probe.start) && is_ahead(probe.end, from);
        self.mtu_probe = self.mtu_probe.filter(|probe| !overlaps(*probe));
    }

    /// Removes a dropped probe from the state once `number` reaches it; returns whether it begins
    /// exactly there.
    #[inline]
    pub(super) fn reaches_dropped_probe(&mut self, number: u32) -> bool {
        let end = |from: &mut u32| number.wrapping_sub(*from) as i32 >= 0;
        self.dropped_probe.take_if(end) == Some(number)
    }

    /// Handles an acknowledgement that advances to `number`.
    #[inline]
    pub(super) fn on_progress(&mut self, number: u32, now: Nanos) {
        self.timeout_repeats.1 = 0;
        if let Some(probe) = self.mtu_probe
            && number.wrapping_sub(probe.end) as i32 >= 0
        {
            self.raise_path_mtu(probe, now);
        }
    }

    /// Raises the path MTU after a probe has arrived.
    #[cold]
    fn raise_path_mtu(&mut self, probe: MtuProbe, now: Nanos) {
        self.path_mtu = if probe.is_longest { 0 } else { probe.mtu };
        (self.probe_at, self.mtu_probe) = (now, None);
    }
}

/// Returns the lengths of the IP and TCP headers.
fn header_lengths(packet: &[u8]) -> (usize, usize) {
    let ip = match packet[0] >> 4 {
        4 => ip::V4_BYTES,
        _ => ip::V6_BYTES,
    };
    (ip, usize::from(packet[ip + 12] >> 4) * 4)
}

/// Returns the payload that a packet of `mtu` bytes holds with these headers.
pub(super) fn payload_limit(packet: &[u8], mtu: u16) -> u16 {
    let (ip, tcp) = header_lengths(packet);
    mtu - (ip + tcp) as u16
}

/// Returns the length of a packet with these headers and this payload.
pub(super) fn packet_bytes(packet: &[u8], payload: u16) -> u16 {
    let (ip, tcp) = header_lengths(packet);
    (ip + tcp) as u16 + payload
}

/// Part of a split packet.
pub(super) struct PacketPart<'a> {
    packet: &'a [u8],
    /// Offset of its payload in that of the whole packet.
    payload_offset: usize,
    pub(super) payload_bytes: usize,
}

/// Splits a packet into packets of at most `mtu` bytes; the first one may have `first_mtu` bytes.
pub(super) fn split_packet(
    packet: &[u8],
    first_mtu: u16,
    mtu: u16,
) -> impl Iterator<Item = PacketPart<'_>> {
    let (ip, tcp) = header_lengths(packet);
    let payload = packet.len() - ip - tcp;
    let part_payload = |mtu: u16| usize::from(mtu) - ip - tcp;
    let (first_payload, segment_payload) =
        (part_payload(first_mtu).min(payload), part_payload(mtu));
    let part = move |at: usize, max_payload: usize| PacketPart {
        packet,
        payload_offset: at,
        payload_bytes: max_payload.min(payload - at),
    };
    let rest = (first_payload..payload).step_by(segment_payload);
    std::iter::once(part(0, first_payload)).chain(rest.map(move |at| part(at, segment_payload)))
}

impl PacketPart<'_> {
    /// Returns its packet's length.
    pub(super) fn packet_bytes(&self) -> usize {
        let (ip, tcp) = header_lengths(self.packet);
        ip + tcp + self.payload_bytes
    }

    /// Writes its packet, without checksums.
    pub(super) fn write(&self, packet: &mut [u8]) {
        let (ip, tcp) = header_lengths(self.packet);
        let head = ip + tcp;
        packet[..head].copy_from_slice(&self.packet[..head]);
        let payload = &self.packet[head..][self.payload_offset..][..self.payload_bytes];
        packet[head..].copy_from_slice(payload);
        match ip {
            ip::V4_BYTES => write_u16(packet, 2, (head + self.payload_bytes) as u16),
            _ => write_u16(packet, 4, (tcp + self.payload_bytes) as u16),
        }
        let segment = &mut packet[ip..];
        let sequence = read_u32(segment, 4).wrapping_add(self.payload_offset as u32);
        segment[4..8].copy_from_slice(&sequence.to_be_bytes());
        let is_last = head + self.payload_offset + self.payload_bytes == self.packet.len();
        if !is_last {
            let flags = read_u16(segment, 12);
            write_u16(segment, 12, flags & !(FIN | PSH));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = 1_000_000_000;

    /// Returns an IPv4 segment without options, as written by smoltcp.
    fn written_packet(sequence: u32, payload: usize) -> WrittenPacket {
        WrittenPacket {
            v4: true,
            header_bytes: 40,
            payload_bytes: payload,
            sequence,
        }
    }

    fn send_state(up_to: u32) -> SendState {
        SendState {
            snd_nxt: Some(up_to),
            max_payload: 1_460,
            ..SendState::default()
        }
    }

    /// The unit for counting segments in flight follows the path MTU.
    #[test]
    fn the_largest_segment_follows_the_path_mtu() {
        for (v4, mtu, largest, expected) in [
            (true, 552, 1_460, 512),
            (false, 1_280, 1_440, 1_220),
            (true, 1_400, 600, 600),
        ] {
            let mut send_state = SendState {
                max_payload: largest,
                ..send_state(1_000)
            };
            send_state.reduce_path_mtu(mtu, v4, SECOND);
            assert_eq!(send_state.max_payload, expected, "{mtu}");
        }
    }

    #[test]
    fn the_fifth_timeout_of_a_long_segment_reduces_the_path_mtu() {
        for (name, timeouts, was_requested, sequence, payload, path_mtu, expected) in [
            ("in vain", 4, false, 7, 1_460, 0, 1_280),
            ("shorter, in vain", 4, false, 7, 1_460, 1_280, 552),
            ("once less", 3, false, 7, 1_460, 0, 0),
            ("requested", 4, true, 7, 1_460, 0, 0),
            ("another one", 4, false, 1_467, 1_460, 0, 0),
            ("a new one", 4, false, 3_000, 1_460, 0, 0),
            ("a short one", 4, false, 7, 500, 0, 0),
            ("not that long", 4, false, 7, 1_000, 0, 552),
        ] {
            let mut send_state = SendState {
                timeout_repeats: (7, timeouts),
                retransmit_requested: was_requested,
                path_mtu,
                ..send_state(3_000)
            };
            let is_reduced =
                send_state.reduce_if_black_hole(&written_packet(sequence, payload), 1_460, SECOND);
            assert_eq!(
                (is_reduced, send_state.path_mtu),
                (expected != path_mtu, expected),
                "{name}"
            );
            if is_reduced {
                assert_eq!(
                    (send_state.timeout_repeats.1, send_state.probe_at),
                    (0, SECOND + PMTU_LIFETIME_NS),
                    "{name}"
                );
            }
        }
    }

    #[test]
    fn a_probe_that_arrives_raises_the_path_mtu() {
        let probe_time = SECOND + PMTU_LIFETIME_NS;
        for (name, path_mtu, sequence, payload, at, expected_mtu) in [
            ("too early", 1_280, 3_000, 1_460, probe_time - 1, None),
            ("due", 1_280, 3_000, 1_460, probe_time, Some(1_500)),
            ("by a step", 552, 3_000, 1_460, probe_time, Some(1_280)),
            (
                "as long as there is",
                1_280,
                3_000,
                1_300,
                probe_time,
                Some(1_340),
            ),
            ("no longer one", 1_280, 3_000, 1_240, probe_time, None),
            ("of before", 1_280, 2_000, 1_460, probe_time, None),
            ("no path", 0, 3_000, 1_460, probe_time, None),
        ] {
            let mut send_state = send_state(3_000);
            if path_mtu != 0 {
                send_state.reduce_path_mtu(path_mtu, true, SECOND);
            }
            let written = written_packet(sequence, payload);
            let probe = send_state.propose_probe(&written, 1_460, at);
            assert_eq!(probe.map(|trial| trial.mtu), expected_mtu, "{name}");
            let (Some(probe), Some(mtu)) = (probe, expected_mtu) else {
                continue;
            };
            send_state.record_probe(probe, at);
            let end = sequence + u32::from(mtu) - 40;
            send_state.snd_nxt = Some(end);
            // One probe at a time.
            let next = self::written_packet(end, 1_460);
            assert_eq!(
                send_state.propose_probe(&next, 1_460, at + PMTU_LIFETIME_NS),
                None,
                "{name}"
            );
            let mut send_state_after_loss = send_state;
            send_state_after_loss.cancel_overlapping_probe(sequence, sequence + 500);
            send_state_after_loss.on_progress(end, at);
            let unchanged = (
                send_state_after_loss.path_mtu,
                send_state_after_loss.probe_at,
                send_state_after_loss.mtu_probe,
            );
            assert_eq!(unchanged, (path_mtu, at + PMTU_LIFETIME_NS, None), "{name}");
            // Data before it has no effect.
            send_state.cancel_overlapping_probe(sequence - 500, sequence);
            send_state.on_progress(end - 1, at + 1);
            assert_eq!(send_state.path_mtu, path_mtu, "{name}");
            send_state.on_progress(end, at + 2);
            let widened = (
                send_state.path_mtu,
                send_state.probe_at,
                send_state.mtu_probe,
            );
            let expected_path_mtu = if mtu == 1_500 { 0 } else { mtu };
            assert_eq!(widened, (expected_path_mtu, at + 2, None), "{name}");
        }
    }

    #[test]
    fn a_split_packet_is_the_same_stream() {
        for (v6, options, payload, mtu) in [(false, 0, 1_460usize, 552), (true, 12, 3_000, 1_280)] {
            let ip = if v6 { 40 } else { 20 };
            let head = ip + 20 + options;
            let mut original = vec![0; head];
            original[0] = if v6 { 0x60 } else { 0x45 };
            original[ip + 4..ip + 8].copy_from_slice(&(u32::MAX - 700).to_be_bytes());
            write_u16(
                &mut original,
                ip + 12,
                ((20 + options) as u16 / 4) << 12 | 0x10 | PSH | FIN,
            );
            original.extend((0..payload).map(|position| (position % 251) as u8));
            let packets: Vec<Vec<u8>> = split_packet(&original, mtu, mtu)
                .map(|part| {
                    let mut packet = vec![0; part.packet_bytes()];
                    part.write(&mut packet);
                    packet
                })
                .collect();
            let segment_payload = usize::from(mtu) - head;
            assert_eq!(packets.len(), payload.div_ceil(segment_payload));
            let mut stream = Vec::new();
            for (number, packet) in packets.iter().enumerate() {
                assert!(packet.len() <= usize::from(mtu));
                let length = if v6 {
                    usize::from(read_u16(packet, 4)) + 40
                } else {
                    read_u16(packet, 2).into()
                };
                assert_eq!(length, packet.len());
                let sequence = read_u32(packet, ip + 4).wrapping_sub(u32::MAX - 700);
                assert_eq!(sequence as usize, stream.len());
                let last = number + 1 == packets.len();
                assert_eq!(read_u16(packet, ip + 12) & (FIN | PSH) != 0, last);
                stream.extend_from_slice(&packet[head..]);
            }
            assert_eq!(stream, original[head..]);
        }
    }
}
