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

use super::smoltcp_device::Sent;
use crate::Nanos;
use crate::wire::{ACK, FIN, RST, SYN, long, word};

const SYN_RST: u16 = SYN | RST;

/// DupThresh: duplicates after which a segment counts as lost (RFC 5681, section 3.2).
const DUPLICATES: u32 = 3;

const OPTION_END: u8 = 0;
const OPTION_NOTHING: u8 = 1;
const OPTION_WINDOW_SCALE: u8 = 3;
const OPTION_SACK_PERMITTED: u8 = 4;
const OPTION_SACK: u8 = 5;
/// Largest window scale (RFC 7323, section 2.3).
const MOST_SHIFT: u8 = 14;

/// Form in which an acknowledgement is replayed to smoltcp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nudge {
    /// Repeated until smoltcp has counted three duplicates.
    Again,
    /// Repeated after a different one: smoltcp has counted three before.
    Anew,
    /// With this window in place of its own.
    Window(u16),
    /// In steps of `each` bytes from number `from`, then unchanged.
    InSteps { from: u32, each: u32 },
    /// With the number acknowledged last and this window: the segment was sent before others that
    /// have arrived.
    Late(u16),
}

/// Recovery state of a connection.
#[derive(Clone, Copy, Default)]
pub(super) struct Recovery {
    /// SND.UNA: number acknowledged last.
    acknowledged: Option<u32>,
    window: u16,
    /// SND.WL1 (RFC 9293): sequence number of the segment with this window.
    window_from: u32,
    /// Window scale: bits by which windows are shifted.
    shift: u8,
    /// Number of duplicates of the last acknowledgement.
    duplicates: u32,
    /// The peer sends SACK blocks.
    selective: bool,
    /// RecoveryPoint (RFC 6675): SND.NXT when a loss was detected. Until it is acknowledged, an
    /// acknowledgement that advances ends at the next lost segment.
    until: Option<u32>,
    /// Segment that smoltcp was last made to retransmit. Before `until` another one may be missing
    /// that was not known when everything before it was acknowledged: it is detected by its own
    /// duplicates.
    asked: Option<u32>,
    /// SND.NXT when smoltcp's timeout expired: it retransmits everything up to here, and duplicates
    /// caused by data that had arrived are to be ignored (RFC 6582, section 4).
    resent: Option<u32>,
    /// SND.NXT at the last check, and the time when it or the acknowledgement last advanced.
    seen: Option<u32>,
    moved: Nanos,
    /// Segment whose round trip is measured, and when it left.
    timed: Option<(u32, Nanos)>,
    round_trip: Option<Nanos>,
    /// RTTVAR (RFC 6298).
    varies: Nanos,
    /// A tail loss probe was sent, and nothing acknowledged since.
    probed: bool,
    /// Duplicates for data that was sent after the missing segment was retransmitted.
    overtaken: u32,
}

impl Recovery {
    /// Processes a SYN or SYN-ACK.
    pub(super) fn greeted(&mut self, segment: &[u8]) {
        let head = usize::from(word(segment, 12) >> 12) * 4;
        let header = segment.get(..head).unwrap_or_default();
        self.shift = shift(header);
        // Needed before the first SACK block, too: a spurious tail loss probe is answered by
        // acknowledgements without a gap, each of which would count as a loss.
        each_option(header, |kind, _| {
            self.selective |= kind == OPTION_SACK_PERMITTED
        });
    }

    /// Processes the acknowledgement of a segment; returns how to replay it.
    #[inline]
    pub(super) fn heard(&mut self, segment: &[u8], sent: &mut Sent, now: Nanos) -> Option<Nudge> {
        let up_to = sent.up_to?;
        let flags = word(segment, 12);
        if flags & SYN_RST != 0 || flags & ACK == 0 {
            return None;
        }
        let number = long(segment, 8);
        if Some(number) == self.acknowledged && number == up_to {
            // All data is acknowledged: the segment contains payload or a window update.
            let (sequence, window) = (long(segment, 4), word(segment, 14));
            if self.is_late(sequence, window) {
                return Some(Nudge::Late(self.window));
            }
            self.told(sequence, window, sent);
            return None;
        }
        self.judge(number, up_to, segment, sent, now)
    }

    /// Returns whether a segment without new acknowledgement was sent before the one with the
    /// current window (SND.WL1; RFC 9293, section 3.10.7.4), and has a smaller one. A larger window
    /// is accepted: the peer has, or had, that buffer space.
    #[inline]
    fn is_late(&self, sequence: u32, window: u16) -> bool {
        window < self.window && ahead(sequence, self.window_from) < 0
    }

    /// Records the window of a segment that smoltcp gets, too.
    #[inline]
    fn told(&mut self, sequence: u32, window: u16, sent: &mut Sent) {
        if ahead(sequence, self.window_from) > 0 {
            self.window_from = sequence;
        }
        self.window = window;
        sent.closed = window == 0;
    }

    /// Records the time if segments have left.
    #[inline]
    pub(super) fn left(&mut self, sent: &Sent, now: Nanos) {
        if self.seen == sent.up_to {
            return;
        }
        (self.seen, self.moved) = (sent.up_to, now);
        if self.timed.is_none() {
            self.timed = sent.up_to.map(|up_to| (up_to, now));
        }
    }

    /// Updates the round-trip time estimate (RFC 6298).
    fn time(&mut self, number: u32, now: Nanos) {
        let Some((_, since)) = self.timed.filter(|(end, _)| ahead(number, *end) >= 0) else {
            return;
        };
        self.timed = None;
        let took = now.saturating_sub(since);
        (self.round_trip, self.varies) = match self.round_trip {
            None => (Some(took), took / 2),
            Some(before) => (
                Some(before - before / 8 + took / 8),
                self.varies - self.varies / 4 + before.abs_diff(took) / 4,
            ),
        };
    }

    /// Returns when a tail loss probe is due. A single segment is left to its timeout, as its
    /// acknowledgement may be delayed.
    #[inline]
    pub(super) fn probe_at(&self, sent: &Sent, slack: Nanos) -> Option<Nanos> {
        let (up_to, number) = (sent.up_to?, self.acknowledged?);
        let lone = ahead(up_to, number) <= sent.largest as i32;
        if lone || self.probed || self.window == 0 || sent.largest == 0 {
            return None;
        }
        Some(self.moved + 2 * self.round_trip? + slack.max(4 * self.varies))
    }

    /// Records a tail loss probe; returns number and window of the acknowledgement to replay for
    /// it.
    pub(super) fn probe(&mut self, sent: &mut Sent) -> Option<(u32, u16)> {
        let number = self.acknowledged?;
        (self.probed, self.timed, self.asked) = (true, None, Some(number));
        if self.until.is_none() && self.resent.is_none() {
            self.until = sent.up_to;
        }
        sent.ask(Nudge::Anew);
        Some((number, self.window))
    }

    /// Returns whether this number was acknowledged last.
    pub(super) fn is_at(&self, number: u32) -> bool {
        self.acknowledged == Some(number)
    }

    /// Returns whether no loss is known, and no retransmission is outstanding.
    #[inline]
    pub(super) fn is_undisturbed(&self) -> bool {
        self.until.is_none() && self.resent.is_none()
    }

    /// Returns the unacknowledged bytes before `up_to`.
    #[inline]
    pub(super) fn flight(&self, up_to: u32) -> Option<u32> {
        let number = self.acknowledged?;
        Some(ahead(up_to, number).max(0) as u32)
    }

    /// Returns the sequence number at the end of the peer's window.
    pub(super) fn window_ends(&self) -> Option<u32> {
        let number = self.acknowledged?;
        Some(number.wrapping_add(u32::from(self.window) << self.shift))
    }

    fn judge(
        &mut self,
        number: u32,
        up_to: u32,
        segment: &[u8],
        sent: &mut Sent,
        now: Nanos,
    ) -> Option<Nudge> {
        if ahead(number, up_to) > 0 {
            return None;
        }
        let head = usize::from(word(segment, 12) >> 12) * 4;
        let (sequence, window) = (long(segment, 4), word(segment, 14));
        let moved = self.acknowledged.map_or(1, |last| ahead(number, last));
        if moved < 0 {
            // smoltcp would drop its payload or FIN, too. No valid segment is older than a window
            // (RFC 5961, section 5).
            let carries = segment.len() > head || word(segment, 12) & FIN != 0;
            let recent = i64::from(moved) >= -(1 << 16 << self.shift);
            return (carries && recent).then_some(Nudge::Late(self.window));
        }
        if moved == 0 && self.is_late(sequence, window) {
            return Some(Nudge::Late(self.window));
        }
        let before = self.window;
        if moved > 0 {
            // A segment that acknowledges more is newer, whatever its sequence number.
            self.window_from = sequence;
        }
        self.told(sequence, window, sent);
        let came = furthest(segment.get(..head)?, number);
        self.selective |= came.is_some();
        if std::mem::take(&mut sent.timed_out) {
            (self.until, self.resent) = (None, Some(up_to));
            self.timed = None;
        }
        if moved > 0 {
            sent.moved(number, now);
            let last = self.acknowledged.replace(number);
            // Only the retransmitted segment was acknowledged, one round trip later: nothing behind
            // it had arrived.
            let alone = moved as u32 <= sent.largest
                && (self.round_trip).is_none_or(|took| now.saturating_sub(self.moved) >= took / 2);
            (self.moved, self.probed) = (now, false);
            self.time(number, now);
            let undisturbed = self.until.is_none() && self.resent.is_none() && came.is_none();
            // A SACK block in this segment counts as the first duplicate.
            (self.duplicates, self.overtaken) = (came.is_some().into(), 0);
            let beyond = |end: &u32| ahead(*end, number) > 0;
            self.until = self.until.filter(beyond);
            self.resent = self.resent.filter(beyond);
            // A router has reported the next segment as dropped.
            let dropped = sent.passes_dropped(number);
            // No SACK block from a peer that sends them: nothing is missing, the first segment was
            // only late.
            let next = self.until.is_some()
                && (came.is_some() || !self.selective || alone)
                && sent.again.is_none_or(|(first, _)| first != number);
            if next || dropped {
                self.until.get_or_insert(up_to);
                self.asked = Some(number);
                return Some(sent.ask(Nudge::Again));
            }
            let (from, each) = (last?, sent.largest);
            // A sender that fills the peer's window is not limited by its congestion window.
            let flight = ahead(up_to, from) as u64;
            let free = flight + u64::from(each) <= u64::from(before) << self.shift;
            let many = each > 0 && moved as u32 > each;
            return (undisturbed && free && many).then_some(Nudge::InSteps { from, each });
        }
        // A FIN makes it no duplicate (RFC 5681, section 2).
        if segment.len() != head || window == 0 || word(segment, 12) & FIN != 0 {
            return None;
        }
        // With a changed window it is a window update, unless it has SACK blocks.
        let counts = came.is_some() || (window == before && self.resent.is_none());
        if !counts {
            return None;
        }
        self.duplicates += 1;
        if self.resent.is_some() {
            return (self.duplicates == DUPLICATES).then(|| sent.ask(Nudge::Again));
        }
        if self.until.is_none() || self.asked != Some(number) {
            let on_their_way = (ahead(up_to, number) as u32).div_ceil(sent.largest.max(1));
            // Fewer than four segments in flight cannot cause three duplicates (RFC 5827).
            let enough = match came {
                Some(_) => DUPLICATES.min(on_their_way.saturating_sub(1)).max(1),
                None => DUPLICATES,
            };
            // One duplicate may stand for many segments that were coalesced on their way (RFC
            // 6675).
            let beyond = came.map_or(0, |came| came.bytes / sent.largest.max(1));
            if self.duplicates.max(beyond) < enough {
                return None;
            }
            self.until.get_or_insert(up_to);
            self.asked = Some(number);
            return Some(sent.ask(Nudge::Again));
        }
        // Data sent after the retransmission has arrived, and the missing segment has not: it was
        // lost again.
        if let Some((first, behind)) = sent.again
            && first == number
            && came.is_some_and(|came| ahead(came.end, behind) > 0)
        {
            self.overtaken += 1;
            let left_since = (ahead(up_to, behind) as u32).div_ceil(sent.largest.max(1));
            if self.overtaken >= DUPLICATES.min(left_since) {
                self.overtaken = 0;
                return Some(sent.ask(Nudge::Anew));
            }
        }
        // A changed window would make smoltcp restart its count, and retransmit data in flight.
        // Into a closed window it sends nothing.
        (window != before && before > 0).then(|| {
            self.window = before;
            Nudge::Window(before)
        })
    }
}

/// Returns the signed distance from sequence number `of` to `number`.
pub(super) fn ahead(number: u32, of: u32) -> i32 {
    number.wrapping_sub(of) as i32
}

/// Returns the window scale in a SYN's header (RFC 7323).
fn shift(header: &[u8]) -> u8 {
    let mut shift = 0;
    each_option(header, |kind, body| {
        if let (OPTION_WINDOW_SCALE, [places]) = (kind, body) {
            shift = (*places).min(MOST_SHIFT);
        }
    });
    shift
}

/// Calls `show` with type and content of each option in a header.
fn each_option(header: &[u8], mut show: impl FnMut(u8, &[u8])) {
    let mut options = header.get(20..).unwrap_or_default();
    loop {
        match options {
            [OPTION_NOTHING, rest @ ..] => options = rest,
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
struct Block {
    end: u32,
    bytes: u32,
}

/// Returns the furthest SACK block beyond `number` in a segment's header (RFC 2018).
fn furthest(header: &[u8], number: u32) -> Option<Block> {
    let mut furthest: Option<Block> = None;
    each_option(header, |kind, body| {
        if kind != OPTION_SACK {
            return;
        }
        for block in body.chunks_exact(8) {
            let (start, end) = (long(block, 0), long(block, 4));
            // A block before it reports a duplicate (D-SACK, RFC 2883).
            let is_beyond = ahead(start, number) > 0 && ahead(end, start) > 0;
            if is_beyond && furthest.is_none_or(|last| ahead(end, last.end) > 0) {
                let bytes = end.wrapping_sub(start);
                furthest = Some(Block { end, bytes });
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

    fn at(segments: u32) -> u32 {
        BASE.wrapping_add(segments * 1_000)
    }

    /// Returns the state after sending segments of 1000 bytes.
    fn sent(segments: u32) -> Sent {
        Sent {
            up_to: Some(at(segments)),
            first: BASE,
            largest: 1_000,
            ..Sent::default()
        }
    }

    #[test]
    fn what_left_earlier_tells_no_window_and_loses_no_payload() {
        let (mut recovery, mut sent) = (Recovery::default(), sent(10));
        let segment = |number, sequence: u32, window, payload: usize, flags| {
            let mut segment = acknowledgement(number, window, &[]);
            segment[4..8].copy_from_slice(&sequence.to_be_bytes());
            segment[13] |= flags;
            segment.resize(20 + payload, 0);
            segment
        };
        let mut heard = |segment: Vec<u8>| recovery.heard(&segment, &mut sent, 0);
        let late = Some(Nudge::Late(50));
        assert_eq!(heard(segment(at(2), 700, 50, 100, 0)), None);
        // The number is lower than the one acknowledged.
        assert_eq!(heard(segment(at(1), 600, 9, 100, 0)), late);
        assert_eq!(heard(segment(at(1), 600, 9, 0, FIN as u8)), late);
        assert_eq!(heard(segment(at(1), 700, 9, 0, 0)), None);
        let ancient = BASE.wrapping_sub(70_000);
        assert_eq!(heard(segment(ancient, 600, 9, 100, 0)), None);
        // The number is equal, but the segment was sent earlier.
        assert_eq!(heard(segment(at(2), 600, 0, 100, 0)), late);
        assert_eq!(heard(segment(at(2), 600, 0, 0, 0)), late);
        // Later segments and new acknowledgements change the window.
        assert_eq!(heard(segment(at(2), 800, 40, 100, 0)), None);
        assert_eq!(
            heard(segment(at(2), 700, 30, 100, 0)),
            Some(Nudge::Late(40))
        );
        assert_eq!(heard(segment(at(3), 700, 30, 0, 0)), None);
        assert_eq!(recovery.window, 30);
    }

    /// Also when all data sent is acknowledged.
    #[test]
    fn the_window_that_was_told_last_is_known() {
        let (mut recovery, mut sent) = (Recovery::default(), sent(3));
        let segment = |sequence: u32, window, payload: usize| {
            let mut segment = acknowledgement(at(3), window, &[]);
            segment[4..8].copy_from_slice(&sequence.to_be_bytes());
            segment.resize(20 + payload, 0);
            segment
        };
        for (name, sequence, window, payload, nudge, known) in [
            ("it closes", 700, 0, 0, None, 0),
            ("it opens", 1_200, 50, 0, None, 50),
            ("late", 700, 0, 500, Some(Nudge::Late(50)), 50),
            ("late, and no smaller", 700, 60, 0, None, 60),
            ("late once more", 900, 40, 0, Some(Nudge::Late(60)), 60),
            ("it closes again", 1_200, 0, 100, None, 0),
        ] {
            let heard = recovery.heard(&segment(sequence, window, payload), &mut sent, 0);
            assert_eq!(heard, nudge, "{name}");
            assert_eq!(recovery.window, known, "{name}");
            assert_eq!(sent.closed, known == 0, "{name}");
        }
    }

    /// smoltcp can send nothing into a closed window, so it gets the update.
    #[test]
    fn a_window_that_opens_in_a_recovery_is_told() {
        let (mut recovery, mut sent) = (Recovery::default(), sent(10));
        first_is_missing(&mut recovery, &mut sent);
        sent.again = Some((at(1), at(10)));
        let duplicate = |window| acknowledgement(at(1), window, &[(at(2), at(6))]);
        assert_eq!(recovery.heard(&duplicate(0), &mut sent, 0), None);
        assert_eq!(recovery.heard(&duplicate(40), &mut sent, 0), None);
        assert_eq!(recovery.window, 40);
    }

    #[test]
    fn windows_that_grow_hide_no_loss() {
        let (mut recovery, mut sent) = (Recovery::default(), sent(10));
        assert_eq!(
            recovery.heard(&acknowledgement(at(1), 50, &[]), &mut sent, 0),
            None
        );
        let mut nudges = Vec::new();
        for (number, window) in (3..8).zip([51, 52, 53, 54, 55]) {
            let duplicate = acknowledgement(at(1), window, &[(at(2), at(number))]);
            nudges.push(recovery.heard(&duplicate, &mut sent, 0));
        }
        // After the retransmission smoltcp must see no different window.
        let held = Some(Nudge::Window(53));
        assert_eq!(nudges, [None, None, Some(Nudge::Again), held, held]);
        // Without SACK blocks a changed window is only a window update.
        let (mut recovery, mut sent) = (Recovery::default(), self::sent(10));
        for window in 50..60 {
            let update = acknowledgement(at(1), window, &[]);
            assert_eq!(recovery.heard(&update, &mut sent, 0), None);
        }
    }

    #[test]
    fn the_second_loss_of_a_window_is_sent_with_the_first_answer() {
        let (mut recovery, mut sent) = (Recovery::default(), sent(10));
        recovery.heard(&acknowledgement(at(1), 50, &[]), &mut sent, 0);
        for end in [3, 4, 6] {
            recovery.heard(
                &acknowledgement(at(1), 50, &[(at(2), at(end))]),
                &mut sent,
                0,
            );
        }
        // smoltcp retransmitted the first segment; then the next one is missing.
        sent.again = Some((at(1), at(10)));
        let partial = acknowledgement(at(4), 50, &[(at(5), at(10))]);
        assert_eq!(recovery.heard(&partial, &mut sent, 0), Some(Nudge::Again));
        // All data in flight has arrived: a loss from here on is a new one.
        sent.again = Some((at(4), at(10)));
        assert_eq!(
            recovery.heard(&acknowledgement(at(10), 50, &[]), &mut sent, 0),
            None
        );
        sent.up_to = Some(at(20));
        assert_eq!(
            recovery.heard(&acknowledgement(at(12), 50, &[]), &mut sent, 0),
            None
        );
    }

    /// The peer paused for a moment: all data had arrived.
    #[test]
    fn a_probe_too_early_sends_nothing_else_again() {
        let greeting = |options: &[u8]| {
            let mut segment = acknowledgement(BASE, 50, &[]);
            segment.extend(options);
            segment[12] = (segment.len() as u8 / 4) << 4;
            segment
        };
        for (options, nudged) in [(&[OPTION_SACK_PERMITTED, 2, 1, 1][..], 0), (&[], 4)] {
            let (mut recovery, mut sent) = (Recovery::default(), sent(10));
            recovery.greeted(&greeting(options));
            recovery.heard(&acknowledgement(at(1), 50, &[]), &mut sent, 0);
            assert!(recovery.probe(&mut sent).is_some());
            recovery.round_trip = Some(1_000);
            let answers = [3, 6, 7, 8].map(|number| {
                let partial = acknowledgement(at(number), 50, &[]);
                recovery.heard(&partial, &mut sent, 2_000 + 10 * Nanos::from(number))
            });
            let again = answers.iter().filter(|nudge| **nudge == Some(Nudge::Again));
            // Without SACK there is no other way to detect the next loss.
            assert_eq!(again.count(), nudged, "{options:?}: {answers:?}");
        }
    }

    /// The peer sends SACK blocks, and nothing beyond the gap has arrived.
    #[test]
    fn a_tail_that_is_lost_comes_a_segment_a_round_trip() {
        let (mut recovery, mut sent) = (Recovery::default(), sent(10));
        recovery.selective = true;
        recovery.heard(&acknowledgement(at(7), 50, &[]), &mut sent, 0);
        recovery.round_trip = Some(1_000);
        assert!(recovery.probe(&mut sent).is_some());
        let answers = [8, 9].map(|number| {
            let partial = acknowledgement(at(number), 50, &[]);
            recovery.heard(&partial, &mut sent, 1_000 * Nanos::from(number))
        });
        assert_eq!(answers, [Some(Nudge::Again); 2]);
    }

    /// Feeds three duplicates with SACK blocks.
    fn first_is_missing(recovery: &mut Recovery, sent: &mut Sent) {
        recovery.heard(&acknowledgement(at(1), 50, &[]), sent, 0);
        for end in 3..6 {
            let duplicate = acknowledgement(at(1), 50, &[(at(2), at(end))]);
            recovery.heard(&duplicate, sent, 0);
        }
    }

    #[test]
    fn what_is_lost_twice_is_sent_twice() {
        let (mut recovery, mut sent) = (Recovery::default(), sent(10));
        first_is_missing(&mut recovery, &mut sent);
        sent.again = Some((at(1), at(10)));
        sent.up_to = Some(at(16));
        let mut nudges = Vec::new();
        for end in 9..15 {
            let duplicate = acknowledgement(at(1), 50, &[(at(2), at(end))]);
            nudges.push(recovery.heard(&duplicate, &mut sent, 0));
        }
        let want = [None, None, None, None, Some(Nudge::Anew), None];
        assert_eq!(nudges, want, "three of them left after it was sent again");
    }

    #[test]
    fn few_segments_on_their_way_need_few_duplicates() {
        for (segments, needed) in [(2, 1), (3, 1), (4, 2), (5, 3), (9, 3)] {
            let (mut recovery, mut sent) = (Recovery::default(), sent(segments));
            recovery.heard(&acknowledgement(at(1), 50, &[]), &mut sent, 0);
            let mut count = 0;
            loop {
                count += 1;
                let duplicate = acknowledgement(at(1), 50, &[(at(2), at(3))]);
                if recovery.heard(&duplicate, &mut sent, 0).is_some() {
                    break;
                }
            }
            assert_eq!(count, needed, "{segments}");
        }
    }

    #[test]
    fn after_a_time_out_the_engine_is_left_alone() {
        let (mut recovery, mut sent) = (Recovery::default(), sent(10));
        first_is_missing(&mut recovery, &mut sent);
        sent.timed_out = true;
        let partial = acknowledgement(at(4), 50, &[]);
        assert_eq!(recovery.heard(&partial, &mut sent, 0), None);
    }

    /// Everything before it was acknowledged while nothing beyond it had arrived: its own
    /// duplicates reveal it.
    #[test]
    fn a_loss_that_is_told_late_in_a_recovery_is_sent_again() {
        let (mut recovery, mut sent) = (Recovery::default(), sent(10));
        first_is_missing(&mut recovery, &mut sent);
        sent.again = Some((at(1), at(10)));
        sent.up_to = Some(at(12));
        assert_eq!(
            recovery.heard(&acknowledgement(at(8), 50, &[]), &mut sent, 0),
            None
        );
        let mut nudges = Vec::new();
        for end in [10, 11, 12] {
            let duplicate = acknowledgement(at(8), 50, &[(at(9), at(end))]);
            nudges.push(recovery.heard(&duplicate, &mut sent, 0));
        }
        let once = nudges
            .iter()
            .flatten()
            .filter(|nudge| **nudge == Nudge::Again);
        assert_eq!(once.count(), 1, "{nudges:?}");
    }

    proptest! {
        #[test]
        fn no_segment_panics(bytes in prop::collection::vec(any::<u8>(), 20..80), up_to: u32) {
            let mut recovery = Recovery::default();
            let mut sent = Sent { up_to: Some(up_to), ..Sent::default() };
            let head = usize::from(bytes[12] >> 4) * 4;
            if (20..=bytes.len()).contains(&head) {
                for _ in 0..4 {
                    let _ = recovery.heard(&bytes, &mut sent, 0);
                }
            }
        }
    }
}
