//! Losses that the engine would wait out.
//!
//! The engine sends again after three duplicate acknowledgements, and has three gaps there: one whose window
//! differs from the last one's is none to it, and Linux's receivers widen their window while segments are
//! missing; of two segments lost in one window it learns of the second by its time-out alone; and so it does
//! where fewer than four are on their way. Here acknowledgements are counted as RFC 6675 has them (they say
//! what else came), and answered as RFC 6582 and RFC 5827 ask: the engine is shown the same acknowledgement
//! until it has counted three. It sends the first segment that is missing, one a round trip.
//!
//! Where nothing at all is heard for two round trips, because the last segments were lost or their one
//! acknowledgement was, it is asked to send one again (RFC 8985, section 7), before its time-out empties its
//! congestion window.
//!
//! The engine's congestion window grows by one segment for each acknowledgement, however much that acknowledges,
//! and hardly at all where receivers acknowledge a whole burst at once. So it is shown such an acknowledgement
//! in steps, which comes to the same as counting bytes (RFC 3465); only where the window held something back, as one
//! that nothing fills says nothing of the path (RFC 7661).

use super::device::Sent;
use crate::Nanos;
use crate::wire::{ACK, FIN, RST, SYN, long, word};

const SYN_RST: u16 = SYN | RST;

/// Duplicates after which a segment counts as lost (RFC 5681, section 3.2).
const DUPLICATES: u32 = 3;

const OPTION_END: u8 = 0;
const OPTION_NOTHING: u8 = 1;
const OPTION_WINDOW_SCALE: u8 = 3;
const OPTION_SACK_PERMITTED: u8 = 4;
const OPTION_SACK: u8 = 5;
/// RFC 7323, section 2.3.
const MOST_SHIFT: u8 = 14;

/// What the engine is to be shown again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nudge {
    /// The acknowledgement, until the engine has counted three duplicates.
    Again,
    /// The same after another one: the engine has counted three before.
    Anew,
    /// The acknowledgement with this window in place of its own.
    Window(u16),
    /// The acknowledgement in steps of so many bytes from this number on, before it is shown whole.
    InSteps { from: u32, each: u32 },
    /// The segment with the number that was acknowledged last, and with this window: it left before others that have
    /// come.
    Late(u16),
}

/// What is known of the segments of a connection that were sent and not acknowledged.
#[derive(Clone, Copy, Default)]
pub(super) struct Recovery {
    /// The number acknowledged last.
    acknowledged: Option<u32>,
    window: u16,
    /// The number of the segment that this window came with (SND.WL1 of RFC 9293).
    window_from: u32,
    /// Places that windows are shifted by.
    shift: u8,
    /// How often it came again.
    duplicates: u32,
    /// The far end says what came beyond a gap.
    selective: bool,
    /// Where the stream ended when a segment was found lost. Until that is acknowledged, an acknowledgement
    /// that moves on ends at the next one that is lost.
    until: Option<u32>,
    /// What the engine was asked to send again last. Until `until` another one may be missing, of which nothing
    /// was known when all before it was acknowledged: it has its own duplicates.
    asked: Option<u32>,
    /// Where the stream ended when the engine's time-out ran out: up to there it sends everything again, and
    /// what had come before gives duplicates that mean nothing (RFC 6582, section 4).
    resent: Option<u32>,
    /// How far the stream was sent when last looked at, and when that or an acknowledgement last moved.
    seen: Option<u32>,
    moved: Nanos,
    /// What a round trip is measured by, and since when.
    timed: Option<(u32, Nanos)>,
    round_trip: Option<Nanos>,
    /// By how much it varies.
    varies: Nanos,
    /// Since then nothing was acknowledged but one segment sent again.
    probed: bool,
    /// Duplicates that tell of something sent after the missing segment was sent again.
    overtaken: u32,
}

impl Recovery {
    /// The far end asked for the connection, or agreed to it.
    pub(super) fn greeted(&mut self, segment: &[u8]) {
        let head = usize::from(word(segment, 12) >> 12) * 4;
        let header = segment.get(..head).unwrap_or_default();
        self.shift = shift(header);
        // Before it has said so for the first time, too: a probe that came too early is answered by
        // acknowledgements without a gap, and each of them would be taken for one more loss.
        each_option(header, |kind, _| {
            self.selective |= kind == OPTION_SACK_PERMITTED
        });
    }

    /// An acknowledgement came, in a segment that is whole: whether the engine needs a nudge.
    #[inline]
    pub(super) fn heard(&mut self, segment: &[u8], sent: &mut Sent, now: Nanos) -> Option<Nudge> {
        let up_to = sent.up_to?;
        let flags = word(segment, 12);
        if flags & SYN_RST != 0 || flags & ACK == 0 {
            return None;
        }
        let number = long(segment, 8);
        if Some(number) == self.acknowledged && number == up_to {
            // Everything that was sent is acknowledged: what comes is payload, and a window.
            let (sequence, window) = (long(segment, 4), word(segment, 14));
            if self.is_late(sequence, window) {
                return Some(Nudge::Late(self.window));
            }
            self.told(sequence, window, sent);
            return None;
        }
        self.judge(number, up_to, segment, sent, now)
    }

    /// Whether a segment that acknowledges nothing new left before the one that told of the window, and tells of a smaller
    /// one (RFC 9293, section 3.10.7.4, SND.WL1). A larger one is believed: who told of it has that room, or had.
    #[inline]
    fn is_late(&self, sequence: u32, window: u16) -> bool {
        window < self.window && ahead(sequence, self.window_from) < 0
    }

    /// A segment with this number tells of this window, and so does the engine know it from here on.
    #[inline]
    fn told(&mut self, sequence: u32, window: u16, sent: &mut Sent) {
        if ahead(sequence, self.window_from) > 0 {
            self.window_from = sequence;
        }
        self.window = window;
        sent.closed = window == 0;
    }

    /// Segments may have left.
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

    /// Measures a round trip, as RFC 6298 smooths it.
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

    /// When a segment is sent again if nothing is heard: a lone one is left to its time-out, as its
    /// acknowledgement may wait for company.
    #[inline]
    pub(super) fn probe_at(&self, sent: &Sent, slack: Nanos) -> Option<Nanos> {
        let (up_to, number) = (sent.up_to?, self.acknowledged?);
        let lone = ahead(up_to, number) <= sent.largest as i32;
        if lone || self.probed || self.window == 0 || sent.largest == 0 {
            return None;
        }
        Some(self.moved + 2 * self.round_trip? + slack.max(4 * self.varies))
    }

    /// It is sent again now: the acknowledgement that the engine is shown for it, as number and window.
    pub(super) fn probe(&mut self, sent: &mut Sent) -> Option<(u32, u16)> {
        let number = self.acknowledged?;
        (self.probed, self.timed, self.asked) = (true, None, Some(number));
        if self.until.is_none() && self.resent.is_none() {
            self.until = sent.up_to;
        }
        sent.ask(Nudge::Anew);
        Some((number, self.window))
    }

    /// Whether this is the number that was acknowledged last.
    pub(super) fn is_at(&self, number: u32) -> bool {
        self.acknowledged == Some(number)
    }

    /// Whether nothing is lost that is known of, nor sent again.
    #[inline]
    pub(super) fn is_undisturbed(&self) -> bool {
        self.until.is_none() && self.resent.is_none()
    }

    /// How much of what was sent up to this number was not acknowledged.
    #[inline]
    pub(super) fn flight(&self, up_to: u32) -> Option<u32> {
        let number = self.acknowledged?;
        Some(ahead(up_to, number).max(0) as u32)
    }

    /// The number that the far end's window ends in front of, as it was told last.
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
            // The engine would drop its payload, or its end, too. Older than a window no segment is (RFC 5961, section 5).
            let carries = segment.len() > head || word(segment, 12) & FIN != 0;
            let recent = i64::from(moved) >= -(1 << 16 << self.shift);
            return (carries && recent).then_some(Nudge::Late(self.window));
        }
        if moved == 0 && self.is_late(sequence, window) {
            return Some(Nudge::Late(self.window));
        }
        let before = self.window;
        if moved > 0 {
            // What acknowledges more is newer, whatever its number.
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
            // A round trip after the one that was sent again, that one alone came: nothing was there behind it.
            let alone = moved as u32 <= sent.largest
                && (self.round_trip).is_none_or(|took| now.saturating_sub(self.moved) >= took / 2);
            (self.moved, self.probed) = (now, false);
            self.time(number, now);
            let undisturbed = self.until.is_none() && self.resent.is_none() && came.is_none();
            // What came beyond is told by this one, too.
            (self.duplicates, self.overtaken) = (came.is_some().into(), 0);
            let beyond = |end: &u32| ahead(*end, number) > 0;
            self.until = self.until.filter(beyond);
            self.resent = self.resent.filter(beyond);
            // A router has said that the next one is lost.
            let dropped = sent.passes_dropped(number);
            // Who says what came, and says nothing, misses nothing: the first one was only late.
            let next = self.until.is_some()
                && (came.is_some() || !self.selective || alone)
                && sent.again.is_none_or(|(first, _)| first != number);
            if next || dropped {
                self.until.get_or_insert(up_to);
                self.asked = Some(number);
                return Some(sent.ask(Nudge::Again));
            }
            let (from, each) = (last?, sent.largest);
            // Whoever fills the far end's window is not held by the own one.
            let flight = ahead(up_to, from) as u64;
            let free = flight + u64::from(each) <= u64::from(before) << self.shift;
            let many = each > 0 && moved as u32 > each;
            return (undisturbed && free && many).then_some(Nudge::InSteps { from, each });
        }
        // Nor does one count that ends the stream (RFC 5681, section 2).
        if segment.len() != head || window == 0 || word(segment, 12) & FIN != 0 {
            return None;
        }
        // A window that changes is news of its own, unless the segment also says what came.
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
            // Fewer than four cannot give three duplicates (RFC 5827).
            let enough = match came {
                Some(_) => DUPLICATES.min(on_their_way.saturating_sub(1)).max(1),
                None => DUPLICATES,
            };
            // One duplicate may stand for many segments that were joined on their way (RFC 6675).
            let beyond = came.map_or(0, |came| came.bytes / sent.largest.max(1));
            if self.duplicates.max(beyond) < enough {
                return None;
            }
            self.until.get_or_insert(up_to);
            self.asked = Some(number);
            return Some(sent.ask(Nudge::Again));
        }
        // What left after the missing segment was sent again has come, and it has not: it was lost again.
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
        // From another window on the engine would count anew, and send once more what is on its way. Into one that is
        // closed it sends nothing at all.
        (window != before && before > 0).then(|| {
            self.window = before;
            Nudge::Window(before)
        })
    }
}

/// How far a number lies ahead of another one.
pub(super) fn ahead(number: u32, of: u32) -> i32 {
    number.wrapping_sub(of) as i32
}

/// Places that the windows of who sent this header are shifted by (RFC 7323).
fn shift(header: &[u8]) -> u8 {
    let mut shift = 0;
    each_option(header, |kind, body| {
        if let (OPTION_WINDOW_SCALE, [places]) = (kind, body) {
            shift = (*places).min(MOST_SHIFT);
        }
    });
    shift
}

/// Shows each option of a header with what stands in it.
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

/// A block of a stream that came beyond a gap.
#[derive(Clone, Copy)]
struct Block {
    end: u32,
    bytes: u32,
}

/// The furthest block beyond `number` that a segment's header says has come (RFC 2018).
fn furthest(header: &[u8], number: u32) -> Option<Block> {
    let mut furthest: Option<Block> = None;
    each_option(header, |kind, body| {
        if kind != OPTION_SACK {
            return;
        }
        for block in body.chunks_exact(8) {
            let (start, end) = (long(block, 0), long(block, 4));
            // What lies before it came twice (RFC 2883).
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

    /// An acknowledgement of `number` with blocks of what came beyond.
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

    /// So many segments of 1000 bytes were sent.
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
        // Its number lies behind what was acknowledged.
        assert_eq!(heard(segment(at(1), 600, 9, 100, 0)), late);
        assert_eq!(heard(segment(at(1), 600, 9, 0, FIN as u8)), late);
        assert_eq!(heard(segment(at(1), 700, 9, 0, 0)), None);
        let ancient = BASE.wrapping_sub(70_000);
        assert_eq!(heard(segment(ancient, 600, 9, 100, 0)), None);
        // It acknowledges the same, and left before.
        assert_eq!(heard(segment(at(2), 600, 0, 100, 0)), late);
        assert_eq!(heard(segment(at(2), 600, 0, 0, 0)), late);
        // What leaves later tells what there is now, and so does what moves.
        assert_eq!(heard(segment(at(2), 800, 40, 100, 0)), None);
        assert_eq!(
            heard(segment(at(2), 700, 30, 100, 0)),
            Some(Nudge::Late(40))
        );
        assert_eq!(heard(segment(at(3), 700, 30, 0, 0)), None);
        assert_eq!(recovery.window, 30);
    }

    /// Where all that was sent is acknowledged, too.
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

    /// The engine can send nothing into a window that is closed: it is not held there.
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
        // Once it was sent again the engine is to see no window that differs.
        let held = Some(Nudge::Window(53));
        assert_eq!(nudges, [None, None, Some(Nudge::Again), held, held]);
        // Without word of what came, a window that changes is all that it says.
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
        // The engine sent the first one again; then the next one is missing.
        sent.again = Some((at(1), at(10)));
        let partial = acknowledgement(at(4), 50, &[(at(5), at(10))]);
        assert_eq!(recovery.heard(&partial, &mut sent, 0), Some(Nudge::Again));
        // All that was on its way has come: a loss from here on is another one.
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

    /// A far end that stood still for a moment: all that was sent had come.
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
            // Who never says what came leaves no other way to learn of the next hole.
            assert_eq!(again.count(), nudged, "{options:?}: {answers:?}");
        }
    }

    /// The far end says what comes beyond a gap, and nothing has.
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

    /// The three duplicates that say so.
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

    /// All before it was acknowledged when nothing beyond it had come: its own duplicates tell of it.
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
