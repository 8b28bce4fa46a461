//! Loss recovery for cases in which smoltcp would wait for its timeout.
//!
//! smoltcp retransmits after three duplicate acknowledgements, with three gaps. One with a
//! different window is no duplicate to it, and Linux's receivers widen their window while segments
//! are missing. Of two segments lost in one window it recovers the second by timeout only; the same
//! holds if fewer than four are in flight. Here acknowledgements are counted as in RFC 6675 (with
//! SACK blocks), and answered as in RFC 6582 and RFC 5827: the same acknowledgement is replayed to
//! smoltcp until it has counted three. It retransmits the first missing segment, one per round
//! trip.
//!
//! The last segments, or their only acknowledgement, may be lost. If no acknowledgement arrives for
//! two round trips, smoltcp is made to retransmit one segment (tail loss probe, RFC 8985, section
//! 7), before its timeout resets the congestion window.
//!
//! smoltcp's congestion window grows by one segment for each acknowledgement, whatever that covers,
//! and hardly at all if a receiver acknowledges whole bursts. So such an acknowledgement is
//! replayed in steps, which is equivalent to byte counting (RFC 3465). This is done only while the
//! window limits the sender, as a window that is not used is no evidence about the path (RFC 7661).

use super::smoltcp_device::SendState;
use crate::Nanos;
use crate::wire::{ACK, FIN, RST, SYN, read_u16, read_u32};

const SYN_RST: u16 = SYN | RST;

/// DupThresh: duplicates after which a segment counts as lost (RFC 5681, section 3.2).
const DUPLICATE_THRESHOLD: u32 = 3;

const OPTION_END: u8 = 0;
const OPTION_NOP: u8 = 1;
const OPTION_WINDOW_SCALE: u8 = 3;
const OPTION_SACK_PERMITTED: u8 = 4;
const OPTION_SACK: u8 = 5;
/// Largest window scale (RFC 7323, section 2.3).
const MAX_WINDOW_SHIFT: u8 = 14;

/// Form in which an acknowledgement is replayed to smoltcp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AckReplay {
    /// Repeated until smoltcp has counted three duplicates.
    Duplicate,
    /// Repeated after a different one: smoltcp has counted three before.
    DuplicateAfterOther,
    /// With this window in place of its own.
    WithWindow(u16),
    /// In steps of `step` bytes from number `from`, then unchanged.
    Split { from: u32, step: u32 },
    /// With the number acknowledged last and this window: the segment was sent before others that
    /// have arrived.
    Outdated(u16),
}

/// Recovery state of a connection.
#[derive(Clone, Copy, Default)]
pub(super) struct LossRecovery {
    /// SND.UNA: number acknowledged last.
    snd_una: Option<u32>,
    window: u16,
    /// SND.WL1 (RFC 9293): sequence number of the segment with this window.
    snd_wl1: u32,
    /// Window scale: bits by which windows are shifted.
    window_shift: u8,
    /// Number of duplicates of the last acknowledgement.
    duplicates: u32,
    /// The peer sends SACK blocks.
    has_sack: bool,
    /// RecoveryPoint (RFC 6675): SND.NXT when a loss was detected. Until it is acknowledged, an
    /// acknowledgement that advances ends at the next lost segment.
    recovery_point: Option<u32>,
    /// Segment that smoltcp was last made to retransmit. Before `recovery_point` another one may be
    /// missing that was not known when everything before it was acknowledged: it is detected by its
    /// own duplicates.
    last_requested: Option<u32>,
    /// SND.NXT when smoltcp's timeout expired: it retransmits everything up to here, and duplicates
    /// caused by data that had arrived are to be ignored (RFC 6582, section 4).
    timeout_recovery_point: Option<u32>,
    /// SND.NXT at the last check, and the time when it or the acknowledgement last advanced.
    last_snd_nxt: Option<u32>,
    progress_at: Nanos,
    /// Segment whose round trip is measured, and when it left.
    timed_segment: Option<(u32, Nanos)>,
    srtt: Option<Nanos>,
    /// RTTVAR (RFC 6298).
    rttvar: Nanos,
    /// A tail loss probe was sent, and nothing acknowledged since.
    is_probed: bool,
    /// Duplicates for data that was sent after the missing segment was retransmitted.
    later_duplicates: u32,
}

impl LossRecovery {
    /// Processes a SYN or SYN-ACK.
    pub(super) fn on_syn(&mut self, segment: &[u8]) {
        let head = usize::from(read_u16(segment, 12) >> 12) * 4;
        let header = segment.get(..head).unwrap_or_default();
        self.window_shift = window_shift(header);
        // Needed before the first SACK block, too: a spurious tail loss probe is answered by
        // acknowledgements without a gap, each of which would count as a loss.
        for_each_option(header, |kind, _| {
            self.has_sack |= kind == OPTION_SACK_PERMITTED
        });
    }

    /// Processes the acknowledgement of a segment; returns how to replay it.
    #[inline]
    pub(super) fn on_ack(
        &mut self,
        segment: &[u8],
        send_state: &mut SendState,
        now: Nanos,
    ) -> Option<AckReplay> {
        let snd_nxt = send_state.snd_nxt?;
        let flags = read_u16(segment, 12);
        if flags & SYN_RST != 0 || flags & ACK == 0 {
            return None;
        }
        let number = read_u32(segment, 8);
        if Some(number) == self.snd_una && number == snd_nxt {
            // All data is acknowledged: the segment contains payload or a window update.
            let (sequence, window) = (read_u32(segment, 4), read_u16(segment, 14));
            if self.is_outdated(sequence, window) {
                return Some(AckReplay::Outdated(self.window));
            }
            self.update_window(sequence, window, send_state);
            return None;
        }
        self.evaluate_ack(number, snd_nxt, segment, send_state, now)
    }

    /// Returns whether a segment without new acknowledgement was sent before the one with the
    /// current window (SND.WL1; RFC 9293, section 3.10.7.4), and has a smaller one. A larger window
    /// is accepted: the peer has, or had, that buffer space.
    #[inline]
    fn is_outdated(&self, sequence: u32, window: u16) -> bool {
        window < self.window && sequence_distance(sequence, self.snd_wl1) < 0
    }

    /// Records the window of a segment that smoltcp gets, too.
    #[inline]
    fn update_window(&mut self, sequence: u32, window: u16, send_state: &mut SendState) {
        if sequence_distance(sequence, self.snd_wl1) > 0 {
            self.snd_wl1 = sequence;
        }
        self.window = window;
        send_state.window_closed = window == 0;
    }

    /// Records the time if segments have left.
    #[inline]
    pub(super) fn on_sent(&mut self, send_state: &SendState, now: Nanos) {
        if self.last_snd_nxt == send_state.snd_nxt {
            return;
        }
        (self.last_snd_nxt, self.progress_at) = (send_state.snd_nxt, now);
        if self.timed_segment.is_none() {
            self.timed_segment = send_state.snd_nxt.map(|up_to| (up_to, now));
        }
    }

    /// Updates the round-trip time estimate (RFC 6298).
    fn update_rtt(&mut self, number: u32, now: Nanos) {
        let Some((_, started_at)) = self
            .timed_segment
            .filter(|(end, _)| sequence_distance(number, *end) >= 0)
        else {
            return;
        };
        self.timed_segment = None;
        let sample = now.saturating_sub(started_at);
        (self.srtt, self.rttvar) = match self.srtt {
            None => (Some(sample), sample / 2),
            Some(previous_srtt) => (
                Some(previous_srtt - previous_srtt / 8 + sample / 8),
                self.rttvar - self.rttvar / 4 + previous_srtt.abs_diff(sample) / 4,
            ),
        };
    }

    /// Returns when a tail loss probe is due. A single segment is left to its timeout, as its
    /// acknowledgement may be delayed.
    #[inline]
    pub(super) fn probe_deadline(&self, send_state: &SendState, slack: Nanos) -> Option<Nanos> {
        let (up_to, number) = (send_state.snd_nxt?, self.snd_una?);
        let is_single_segment = sequence_distance(up_to, number) <= send_state.max_payload as i32;
        if is_single_segment || self.is_probed || self.window == 0 || send_state.max_payload == 0 {
            return None;
        }
        Some(self.progress_at + 2 * self.srtt? + slack.max(4 * self.rttvar))
    }

    /// Records a tail loss probe; returns number and window of the acknowledgement to replay for
    /// it.
    pub(super) fn record_probe(&mut self, send_state: &mut SendState) -> Option<(u32, u16)> {
        let number = self.snd_una?;
        (self.is_probed, self.timed_segment, self.last_requested) = (true, None, Some(number));
        if self.recovery_point.is_none() && self.timeout_recovery_point.is_none() {
            self.recovery_point = send_state.snd_nxt;
        }
        send_state.request_retransmit(AckReplay::DuplicateAfterOther);
        Some((number, self.window))
    }

    /// Returns whether this number was acknowledged last.
    pub(super) fn is_acknowledged_up_to(&self, number: u32) -> bool {
        self.snd_una == Some(number)
    }

    /// Returns whether no loss is known, and no retransmission is outstanding.
    #[inline]
    pub(super) fn has_no_loss(&self) -> bool {
        self.recovery_point.is_none() && self.timeout_recovery_point.is_none()
    }

    /// Returns the unacknowledged bytes before `up_to`.
    #[inline]
    pub(super) fn bytes_in_flight(&self, up_to: u32) -> Option<u32> {
        let number = self.snd_una?;
        Some(sequence_distance(up_to, number).max(0) as u32)
    }

    /// Returns the sequence number at the end of the peer's window.
    pub(super) fn window_end(&self) -> Option<u32> {
        let number = self.snd_una?;
        Some(number.wrapping_add(u32::from(self.window) << self.window_shift))
    }

    fn evaluate_ack(
        &mut self,
        number: u32,
        snd_nxt: u32,
        segment: &[u8],
        send_state: &mut SendState,
        now: Nanos,
    ) -> Option<AckReplay> {
        if sequence_distance(number, snd_nxt) > 0 {
            return None;
        }
        let head = usize::from(read_u16(segment, 12) >> 12) * 4;
        let (sequence, window) = (read_u32(segment, 4), read_u16(segment, 14));
        let advance = self
            .snd_una
            .map_or(1, |previous| sequence_distance(number, previous));
        if advance < 0 {
            // smoltcp would drop its payload or FIN, too. No valid segment is older than a window
            // (RFC 5961, section 5).
            let has_data = segment.len() > head || read_u16(segment, 12) & FIN != 0;
            let is_within_window = i64::from(advance) >= -(1 << 16 << self.window_shift);
            return (has_data && is_within_window).then_some(AckReplay::Outdated(self.window));
        }
        if advance == 0 && self.is_outdated(sequence, window) {
            return Some(AckReplay::Outdated(self.window));
        }
        let previous_window = self.window;
        if advance > 0 {
            // A segment that acknowledges more is newer, whatever its sequence number.
            self.snd_wl1 = sequence;
        }
        self.update_window(sequence, window, send_state);
        let sack_block = furthest_sack_block(segment.get(..head)?, number);
        self.has_sack |= sack_block.is_some();
        if std::mem::take(&mut send_state.timed_out) {
            (self.recovery_point, self.timeout_recovery_point) = (None, Some(snd_nxt));
            self.timed_segment = None;
        }
        if advance > 0 {
            send_state.on_progress(number, now);
            let previous = self.snd_una.replace(number);
            // Only the retransmitted segment was acknowledged, one round trip later: nothing behind
            // it had arrived.
            let only_retransmission = advance as u32 <= send_state.max_payload
                && (self.srtt)
                    .is_none_or(|sample| now.saturating_sub(self.progress_at) >= sample / 2);
            (self.progress_at, self.is_probed) = (now, false);
            self.update_rtt(number, now);
            let has_no_loss = self.recovery_point.is_none()
                && self.timeout_recovery_point.is_none()
                && sack_block.is_none();
            // A SACK block in this segment counts as the first duplicate.
            (self.duplicates, self.later_duplicates) = (sack_block.is_some().into(), 0);
            let is_beyond = |end: &u32| sequence_distance(*end, number) > 0;
            self.recovery_point = self.recovery_point.filter(is_beyond);
            self.timeout_recovery_point = self.timeout_recovery_point.filter(is_beyond);
            // A router has reported the next segment as dropped.
            let is_dropped_probe = send_state.reaches_dropped_probe(number);
            // No SACK block from a peer that sends them: nothing is missing, the first segment was
            // only late.
            let is_next_lost = self.recovery_point.is_some()
                && (sack_block.is_some() || !self.has_sack || only_retransmission)
                && send_state
                    .last_retransmit
                    .is_none_or(|(first, _)| first != number);
            if is_next_lost || is_dropped_probe {
                self.recovery_point.get_or_insert(snd_nxt);
                self.last_requested = Some(number);
                return Some(send_state.request_retransmit(AckReplay::Duplicate));
            }
            let (previous_number, step) = (previous?, send_state.max_payload);
            // A sender that fills the peer's window is not limited by its congestion window.
            let flight = sequence_distance(snd_nxt, previous_number) as u64;
            let is_cwnd_limited =
                flight + u64::from(step) <= u64::from(previous_window) << self.window_shift;
            let covers_several = step > 0 && advance as u32 > step;
            return (has_no_loss && is_cwnd_limited && covers_several).then_some(
                AckReplay::Split {
                    from: previous_number,
                    step,
                },
            );
        }
        // A FIN makes it no duplicate (RFC 5681, section 2).
        if segment.len() != head || window == 0 || read_u16(segment, 12) & FIN != 0 {
            return None;
        }
        // With a changed window it is a window update, unless it has SACK blocks.
        let is_duplicate = sack_block.is_some()
            || (window == previous_window && self.timeout_recovery_point.is_none());
        if !is_duplicate {
            return None;
        }
        self.duplicates += 1;
        if self.timeout_recovery_point.is_some() {
            return (self.duplicates == DUPLICATE_THRESHOLD)
                .then(|| send_state.request_retransmit(AckReplay::Duplicate));
        }
        if self.recovery_point.is_none() || self.last_requested != Some(number) {
            let segments_in_flight =
                (sequence_distance(snd_nxt, number) as u32).div_ceil(send_state.max_payload.max(1));
            // Fewer than four segments in flight cannot cause three duplicates (RFC 5827).
            let threshold = match sack_block {
                Some(_) => DUPLICATE_THRESHOLD
                    .min(segments_in_flight.saturating_sub(1))
                    .max(1),
                None => DUPLICATE_THRESHOLD,
            };
            // One duplicate may stand for many segments that were coalesced on their way (RFC
            // 6675).
            let is_beyond = sack_block.map_or(0, |sack_block| {
                sack_block.bytes / send_state.max_payload.max(1)
            });
            if self.duplicates.max(is_beyond) < threshold {
                return None;
            }
            self.recovery_point.get_or_insert(snd_nxt);
            self.last_requested = Some(number);
            return Some(send_state.request_retransmit(AckReplay::Duplicate));
        }
        // Data sent after the retransmission has arrived, and the missing segment has not: it was
        // lost again.
        if let Some((first, behind)) = send_state.last_retransmit
            && first == number
            && sack_block.is_some_and(|sack_block| sequence_distance(sack_block.end, behind) > 0)
        {
            self.later_duplicates += 1;
            let segments_since =
                (sequence_distance(snd_nxt, behind) as u32).div_ceil(send_state.max_payload.max(1));
            if self.later_duplicates >= DUPLICATE_THRESHOLD.min(segments_since) {
                self.later_duplicates = 0;
                return Some(send_state.request_retransmit(AckReplay::DuplicateAfterOther));
            }
        }
        // A changed window would make smoltcp restart its count, and retransmit data in flight.
        // Into a closed window it sends nothing.
        (window != previous_window && previous_window > 0).then(|| {
            self.window = previous_window;
            AckReplay::WithWindow(previous_window)
        })
    }
}

/// Returns the signed distance from sequence number `of` to `number`.
pub(super) fn sequence_distance(number: u32, of: u32) -> i32 {
    number.wrapping_sub(of) as i32
}

/// Returns the window scale in a SYN's header (RFC 7323).
fn window_shift(header: &[u8]) -> u8 {
    let mut shift = 0;
    for_each_option(header, |kind, body| {
        if let (OPTION_WINDOW_SCALE, [bits]) = (kind, body) {
            shift = (*bits).min(MAX_WINDOW_SHIFT);
        }
    });
    shift
}

/// Calls `show` with type and content of each option in a header.
fn for_each_option(header: &[u8], mut show: impl FnMut(u8, &[u8])) {
    let mut options = header.get(20..).unwrap_or_default();
    loop {
        match options {
            [OPTION_NOP, rest @ ..] => options = rest,
            [] | [_] | [OPTION_END, ..] => return,
            [kind, length, ..] => {
                let length = usize::from(*length).max(2);
                let Some(body) = options.get(2..length) else {
                    return;
                };
                show(*kind, body);
                options = &options[length..];
            }
        }
    }
}

/// SACK block: data received beyond a gap.
#[derive(Clone, Copy)]
struct SackBlock {
    end: u32,
    bytes: u32,
}

/// Returns the furthest SACK block beyond `number` in a segment's header (RFC 2018).
fn furthest_sack_block(header: &[u8], number: u32) -> Option<SackBlock> {
    let mut furthest: Option<SackBlock> = None;
    for_each_option(header, |kind, body| {
        if kind != OPTION_SACK {
            return;
        }
        for block in body.chunks_exact(8) {
            let (start, end) = (read_u32(block, 0), read_u32(block, 4));
            // A block before it reports a duplicate (D-SACK, RFC 2883).
            let is_beyond =
                sequence_distance(start, number) > 0 && sequence_distance(end, start) > 0;
            if is_beyond && furthest.is_none_or(|last| sequence_distance(end, last.end) > 0) {
                let bytes = end.wrapping_sub(start);
                furthest = Some(SackBlock { end, bytes });
            }
        }
    });
    furthest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BASE: u32 = u32::MAX - 3_000;

    /// Returns an acknowledgement of `number` with these SACK blocks.
    fn acknowledgement(number: u32, window: u16, blocks: &[(u32, u32)]) -> Vec<u8> {
        let mut segment = vec![0; 20];
        segment[8..12].copy_from_slice(&number.to_be_bytes());
        segment[13] = ACK as u8;
        segment[14..16].copy_from_slice(&window.to_be_bytes());
        if !blocks.is_empty() {
            segment.extend([1, 1, OPTION_SACK, 2 + 8 * blocks.len() as u8]);
            for (from, to) in blocks {
                segment.extend(from.to_be_bytes());
                segment.extend(to.to_be_bytes());
            }
        }
        segment[12] = (segment.len() as u8 / 4) << 4;
        segment
    }

    fn sequence_at(segments: u32) -> u32 {
        BASE.wrapping_add(segments * 1_000)
    }

    /// Returns the state after sending segments of 1000 bytes.
    fn send_state(segments: u32) -> SendState {
        SendState {
            snd_nxt: Some(sequence_at(segments)),
            first_sequence: BASE,
            max_payload: 1_000,
            ..SendState::default()
        }
    }

    #[test]
    fn outdated_segments_change_no_window_and_lose_no_payload() {
        let (mut recovery, mut send_state) = (LossRecovery::default(), send_state(10));
        let segment = |number, sequence: u32, window, payload: usize, flags| {
            let mut segment = acknowledgement(number, window, &[]);
            segment[4..8].copy_from_slice(&sequence.to_be_bytes());
            segment[13] |= flags;
            segment.resize(20 + payload, 0);
            segment
        };
        let mut on_ack = |segment: Vec<u8>| recovery.on_ack(&segment, &mut send_state, 0);
        let outdated = Some(AckReplay::Outdated(50));
        assert_eq!(on_ack(segment(sequence_at(2), 700, 50, 100, 0)), None);
        // The number is lower than the one acknowledged.
        assert_eq!(on_ack(segment(sequence_at(1), 600, 9, 100, 0)), outdated);
        assert_eq!(
            on_ack(segment(sequence_at(1), 600, 9, 0, FIN as u8)),
            outdated
        );
        assert_eq!(on_ack(segment(sequence_at(1), 700, 9, 0, 0)), None);
        let ancient = BASE.wrapping_sub(70_000);
        assert_eq!(on_ack(segment(ancient, 600, 9, 100, 0)), None);
        // The number is equal, but the segment was sent earlier.
        assert_eq!(on_ack(segment(sequence_at(2), 600, 0, 100, 0)), outdated);
        assert_eq!(on_ack(segment(sequence_at(2), 600, 0, 0, 0)), outdated);
        // Later segments and new acknowledgements change the window.
        assert_eq!(on_ack(segment(sequence_at(2), 800, 40, 100, 0)), None);
        assert_eq!(
            on_ack(segment(sequence_at(2), 700, 30, 100, 0)),
            Some(AckReplay::Outdated(40))
        );
        assert_eq!(on_ack(segment(sequence_at(3), 700, 30, 0, 0)), None);
        assert_eq!(recovery.window, 30);
    }

    /// Also when all data sent is acknowledged.
    #[test]
    fn the_latest_window_is_kept() {
        let (mut recovery, mut send_state) = (LossRecovery::default(), send_state(3));
        let segment = |sequence: u32, window, payload: usize| {
            let mut segment = acknowledgement(sequence_at(3), window, &[]);
            segment[4..8].copy_from_slice(&sequence.to_be_bytes());
            segment.resize(20 + payload, 0);
            segment
        };
        for (name, sequence, window, payload, expected, expected_window) in [
            ("it closes", 700, 0, 0, None, 0),
            ("it opens", 1_200, 50, 0, None, 50),
            ("late", 700, 0, 500, Some(AckReplay::Outdated(50)), 50),
            ("late, and no smaller", 700, 60, 0, None, 60),
            (
                "late once more",
                900,
                40,
                0,
                Some(AckReplay::Outdated(60)),
                60,
            ),
            ("it closes again", 1_200, 0, 100, None, 0),
        ] {
            let replay = recovery.on_ack(&segment(sequence, window, payload), &mut send_state, 0);
            assert_eq!(replay, expected, "{name}");
            assert_eq!(recovery.window, expected_window, "{name}");
            assert_eq!(send_state.window_closed, expected_window == 0, "{name}");
        }
    }

    /// smoltcp can send nothing into a closed window, so it gets the update.
    #[test]
    fn a_window_that_opens_in_a_recovery_is_passed_on() {
        let (mut recovery, mut send_state) = (LossRecovery::default(), send_state(10));
        lose_first_segment(&mut recovery, &mut send_state);
        send_state.last_retransmit = Some((sequence_at(1), sequence_at(10)));
        let duplicate =
            |window| acknowledgement(sequence_at(1), window, &[(sequence_at(2), sequence_at(6))]);
        assert_eq!(recovery.on_ack(&duplicate(0), &mut send_state, 0), None);
        assert_eq!(recovery.on_ack(&duplicate(40), &mut send_state, 0), None);
        assert_eq!(recovery.window, 40);
    }

    #[test]
    fn windows_that_grow_hide_no_loss() {
        let (mut recovery, mut send_state) = (LossRecovery::default(), send_state(10));
        assert_eq!(
            recovery.on_ack(
                &acknowledgement(sequence_at(1), 50, &[]),
                &mut send_state,
                0
            ),
            None
        );
        let mut replays = Vec::new();
        for (number, window) in (3..8).zip([51, 52, 53, 54, 55]) {
            let duplicate = acknowledgement(
                sequence_at(1),
                window,
                &[(sequence_at(2), sequence_at(number))],
            );
            replays.push(recovery.on_ack(&duplicate, &mut send_state, 0));
        }
        // After the retransmission smoltcp must see no different window.
        let with_window = Some(AckReplay::WithWindow(53));
        assert_eq!(
            replays,
            [
                None,
                None,
                Some(AckReplay::Duplicate),
                with_window,
                with_window
            ]
        );
        // Without SACK blocks a changed window is only a window update.
        let (mut recovery, mut send_state) = (LossRecovery::default(), self::send_state(10));
        for window in 50..60 {
            let update = acknowledgement(sequence_at(1), window, &[]);
            assert_eq!(recovery.on_ack(&update, &mut send_state, 0), None);
        }
    }

    #[test]
    fn the_second_loss_of_a_window_is_sent_with_the_first_partial_ack() {
        let (mut recovery, mut send_state) = (LossRecovery::default(), send_state(10));
        recovery.on_ack(
            &acknowledgement(sequence_at(1), 50, &[]),
            &mut send_state,
            0,
        );
        for end in [3, 4, 6] {
            recovery.on_ack(
                &acknowledgement(sequence_at(1), 50, &[(sequence_at(2), sequence_at(end))]),
                &mut send_state,
                0,
            );
        }
        // smoltcp retransmitted the first segment; then the next one is missing.
        send_state.last_retransmit = Some((sequence_at(1), sequence_at(10)));
        let partial = acknowledgement(sequence_at(4), 50, &[(sequence_at(5), sequence_at(10))]);
        assert_eq!(
            recovery.on_ack(&partial, &mut send_state, 0),
            Some(AckReplay::Duplicate)
        );
        // All data in flight has arrived: a loss from here on is a new one.
        send_state.last_retransmit = Some((sequence_at(4), sequence_at(10)));
        assert_eq!(
            recovery.on_ack(
                &acknowledgement(sequence_at(10), 50, &[]),
                &mut send_state,
                0
            ),
            None
        );
        send_state.snd_nxt = Some(sequence_at(20));
        assert_eq!(
            recovery.on_ack(
                &acknowledgement(sequence_at(12), 50, &[]),
                &mut send_state,
                0
            ),
            None
        );
    }

    /// The peer paused for a moment: all data had arrived.
    #[test]
    fn a_spurious_probe_causes_no_other_retransmission() {
        let syn = |options: &[u8]| {
            let mut segment = acknowledgement(BASE, 50, &[]);
            segment.extend(options);
            segment[12] = (segment.len() as u8 / 4) << 4;
            segment
        };
        for (options, expected_count) in [(&[OPTION_SACK_PERMITTED, 2, 1, 1][..], 0), (&[], 4)] {
            let (mut recovery, mut send_state) = (LossRecovery::default(), send_state(10));
            recovery.on_syn(&syn(options));
            recovery.on_ack(
                &acknowledgement(sequence_at(1), 50, &[]),
                &mut send_state,
                0,
            );
            assert!(recovery.record_probe(&mut send_state).is_some());
            recovery.srtt = Some(1_000);
            let replays = [3, 6, 7, 8].map(|number| {
                let partial = acknowledgement(sequence_at(number), 50, &[]);
                recovery.on_ack(&partial, &mut send_state, 2_000 + 10 * Nanos::from(number))
            });
            let duplicates = replays
                .iter()
                .filter(|replay| **replay == Some(AckReplay::Duplicate));
            // Without SACK there is no other way to detect the next loss.
            assert_eq!(
                duplicates.count(),
                expected_count,
                "{options:?}: {replays:?}"
            );
        }
    }

    /// The peer sends SACK blocks, and nothing beyond the gap has arrived.
    #[test]
    fn a_tail_that_is_lost_comes_a_segment_a_round_trip() {
        let (mut recovery, mut send_state) = (LossRecovery::default(), send_state(10));
        recovery.has_sack = true;
        recovery.on_ack(
            &acknowledgement(sequence_at(7), 50, &[]),
            &mut send_state,
            0,
        );
        recovery.srtt = Some(1_000);
        assert!(recovery.record_probe(&mut send_state).is_some());
        let replays = [8, 9].map(|number| {
            let partial = acknowledgement(sequence_at(number), 50, &[]);
            recovery.on_ack(&partial, &mut send_state, 1_000 * Nanos::from(number))
        });
        assert_eq!(replays, [Some(AckReplay::Duplicate); 2]);
    }

    /// Feeds three duplicates with SACK blocks.
    fn lose_first_segment(recovery: &mut LossRecovery, send_state: &mut SendState) {
        recovery.on_ack(&acknowledgement(sequence_at(1), 50, &[]), send_state, 0);
        for end in 3..6 {
            let duplicate =
                acknowledgement(sequence_at(1), 50, &[(sequence_at(2), sequence_at(end))]);
            recovery.on_ack(&duplicate, send_state, 0);
        }
    }

    #[test]
    fn a_retransmission_that_is_lost_is_sent_again() {
        let (mut recovery, mut send_state) = (LossRecovery::default(), send_state(10));
        lose_first_segment(&mut recovery, &mut send_state);
        send_state.last_retransmit = Some((sequence_at(1), sequence_at(10)));
        send_state.snd_nxt = Some(sequence_at(16));
        let mut replays = Vec::new();
        for end in 9..15 {
            let duplicate =
                acknowledgement(sequence_at(1), 50, &[(sequence_at(2), sequence_at(end))]);
            replays.push(recovery.on_ack(&duplicate, &mut send_state, 0));
        }
        let expected = [
            None,
            None,
            None,
            None,
            Some(AckReplay::DuplicateAfterOther),
            None,
        ];
        assert_eq!(
            replays, expected,
            "three of them left after it was sent again"
        );
    }

    #[test]
    fn few_segments_on_their_way_need_few_duplicates() {
        for (segments, expected_count) in [(2, 1), (3, 1), (4, 2), (5, 3), (9, 3)] {
            let (mut recovery, mut send_state) = (LossRecovery::default(), send_state(segments));
            recovery.on_ack(
                &acknowledgement(sequence_at(1), 50, &[]),
                &mut send_state,
                0,
            );
            let mut count = 0;
            loop {
                count += 1;
                let duplicate =
                    acknowledgement(sequence_at(1), 50, &[(sequence_at(2), sequence_at(3))]);
                if recovery.on_ack(&duplicate, &mut send_state, 0).is_some() {
                    break;
                }
            }
            assert_eq!(count, expected_count, "{segments}");
        }
    }

    #[test]
    fn after_a_timeout_no_ack_is_replayed() {
        let (mut recovery, mut send_state) = (LossRecovery::default(), send_state(10));
        lose_first_segment(&mut recovery, &mut send_state);
        send_state.timed_out = true;
        let partial = acknowledgement(sequence_at(4), 50, &[]);
        assert_eq!(recovery.on_ack(&partial, &mut send_state, 0), None);
    }

    /// Everything before it was acknowledged while nothing beyond it had arrived: its own
    /// duplicates reveal it.
    #[test]
    fn a_loss_detected_late_in_a_recovery_is_retransmitted() {
        let (mut recovery, mut send_state) = (LossRecovery::default(), send_state(10));
        lose_first_segment(&mut recovery, &mut send_state);
        send_state.last_retransmit = Some((sequence_at(1), sequence_at(10)));
        send_state.snd_nxt = Some(sequence_at(12));
        assert_eq!(
            recovery.on_ack(
                &acknowledgement(sequence_at(8), 50, &[]),
                &mut send_state,
                0
            ),
            None
        );
        let mut replays = Vec::new();
        for end in [10, 11, 12] {
            let duplicate =
                acknowledgement(sequence_at(8), 50, &[(sequence_at(9), sequence_at(end))]);
            replays.push(recovery.on_ack(&duplicate, &mut send_state, 0));
        }
        let duplicates = replays
            .iter()
            .flatten()
            .filter(|replay| **replay == AckReplay::Duplicate);
        assert_eq!(duplicates.count(), 1, "{replays:?}");
    }

    proptest! {
        #[test]
        fn no_segment_panics(bytes in prop::collection::vec(any::<u8>(), 20..80), up_to: u32) {
            let mut recovery = LossRecovery::default();
            let mut sent = SendState { snd_nxt: Some(up_to), ..SendState::default() };
            let head = usize::from(bytes[12] >> 4) * 4;
            if (20..=bytes.len()).contains(&head) {
                for _ in 0..4 {
                    let _ = recovery.on_ack(&bytes, &mut sent, 0);
                }
            }
        }
    }
}
