//! Counted time of a receiver.
//!
//! Both ends start and stop their clocks with control messages. Payload passes the path in between:
//! at the end that requests it, it arrives a round trip after the start, and ends as late.

use linerate_sys::clock::Nanos;

/// Times of one receiving flow, on this end's clock.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveTimes {
    /// Start of the run.
    pub start_ns: Nanos,
    /// Start of counting, after the omitted time.
    pub counted_from_ns: Nanos,
    /// Time at which the first payload arrived, or would have if it was not lost.
    pub first_ns: Option<Nanos>,
    /// Time of the last payload.
    pub last_ns: Nanos,
    /// End of the run; `None` if all of an amount arrived, which ends with its last payload.
    pub run_end_ns: Option<Nanos>,
    /// True if the run ends by this end's clock, and not with a message behind the payload.
    pub ends_by_time: bool,
    /// TCP: the round-trip time, above which the start is late because of a retransmission.
    pub min_rtt_ns: Option<Nanos>,
    /// End time of the last thread.
    pub workers_ended_ns: Nanos,
}

impl ReceiveTimes {
    /// Returns start and end of the counted time. It lasts at least until the end of the run, so
    /// that a dead path counts as slow and not as short.
    #[must_use]
    pub fn window(&self) -> (Nanos, Nanos) {
        let first_ns = self.first_ns.unwrap_or(self.start_ns);
        let delay_ns = first_ns.saturating_sub(self.start_ns);
        let delay_ns = delay_ns.min(self.min_rtt_ns.unwrap_or(Nanos::MAX));
        let from = |delay_ns| self.counted_from_ns.max(self.start_ns + delay_ns);
        let Some(run_end_ns) = self.run_end_ns else {
            // The time of a transfer that is shorter than the delay says too little.
            let lasted_ns = self.last_ns.saturating_sub(self.start_ns + delay_ns);
            let delay_ns = if lasted_ns < delay_ns { 0 } else { delay_ns };
            return (from(delay_ns), self.last_ns);
        };
        let delayed_end_ns = match self.ends_by_time {
            true => (run_end_ns.saturating_add(delay_ns)).min(self.workers_ended_ns),
            false => run_end_ns,
        };
        let end_ns = self.last_ns.max(run_end_ns).max(delayed_end_ns);
        (from(delay_ns), end_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of 3 s from 10 s on, over a path with a round trip of 600 ms, in milliseconds.
    fn window_of(change: impl FnOnce(&mut ReceiveTimes)) -> (u64, u64) {
        let mut times = ReceiveTimes {
            start_ns: 10_000,
            counted_from_ns: 10_000,
            first_ns: Some(10_600),
            last_ns: 13_599,
            run_end_ns: Some(13_000),
            ends_by_time: true,
            min_rtt_ns: None,
            workers_ended_ns: 13_850,
        };
        change(&mut times);
        times.window()
    }

    #[test]
    fn the_window_is_the_senders_time_a_path_later() {
        assert_eq!(window_of(|_| ()), (10_600, 13_600));
        // The last second was lost, or everything.
        assert_eq!(window_of(|times| times.last_ns = 12_600), (10_600, 13_600));
        let nothing = |times: &mut ReceiveTimes| (times.first_ns, times.last_ns) = (None, 10_000);
        assert_eq!(window_of(nothing), (10_000, 13_000));
        // A long queue.
        assert_eq!(window_of(|times| times.last_ns = 15_000), (10_600, 15_000));
        // No delay where the run starts with the first payload.
        let early =
            |times: &mut ReceiveTimes| (times.first_ns, times.last_ns) = (Some(9_990), 12_990);
        assert_eq!(window_of(early), (10_000, 13_000));
        // The first segment was sent again after a second.
        let repeated = |times: &mut ReceiveTimes| {
            (times.first_ns, times.min_rtt_ns) = (Some(11_600), Some(600));
        };
        assert_eq!(window_of(repeated), (10_600, 13_600));
        // Counted from a second later on, or from before the first payload on.
        assert_eq!(
            window_of(|times| times.counted_from_ns = 11_000),
            (11_000, 13_600)
        );
        assert_eq!(
            window_of(|times| times.counted_from_ns = 10_200),
            (10_600, 13_600)
        );
        // The peer was lost in the middle: later time is not counted.
        let lost = |times: &mut ReceiveTimes| {
            (times.last_ns, times.run_end_ns, times.workers_ended_ns) =
                (11_900, Some(12_000), 12_001);
        };
        assert_eq!(window_of(lost), (10_600, 12_001));
    }

    #[test]
    fn an_amount_ends_with_its_last_payload() {
        assert_eq!(window_of(|times| times.run_end_ns = None), (10_600, 13_599));
        // All arrived at once.
        let burst = |times: &mut ReceiveTimes| (times.run_end_ns, times.last_ns) = (None, 10_601);
        assert_eq!(window_of(burst), (10_000, 10_601));
        // With losses, the sender's message ends it.
        let incomplete = |times: &mut ReceiveTimes| {
            (times.run_end_ns, times.ends_by_time) = (Some(13_605), false);
        };
        assert_eq!(window_of(incomplete), (10_600, 13_605));
    }
}
