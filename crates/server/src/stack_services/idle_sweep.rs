//! Incremental scan of the connections for idle timeouts.
//!
//! A host that spins polls its services millions of times a second. A scan of ten thousand idle
//! connections each time would delay every response.

use std::ops::Range;

use linerate_sys::clock::Nanos;

/// Time between two parts of the scan.
const STEP_INTERVAL_NS: Nanos = 100_000_000;

/// Number of parts of a complete scan: ten seconds, short against the idle timeout of minutes.
const STEP_COUNT: usize = 100;

/// Position of the scan, repeated endlessly.
#[derive(Default)]
pub struct IdleSweep {
    next: usize,
    next_step_ns: Nanos,
}

impl IdleSweep {
    /// Returns the slots to check now out of `slots`; mostly none.
    #[inline]
    pub fn next_range(&mut self, slots: usize, now: Nanos) -> Range<usize> {
        if now < self.next_step_ns {
            return 0..0;
        }
        self.next_step_ns = now.saturating_add(STEP_INTERVAL_NS);
        let from = if self.next < slots { self.next } else { 0 };
        self.next = slots.min(from + slots.div_ceil(STEP_COUNT));
        from..self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A complete scan in each round took most of the time with 10,000 connections.
    #[test]
    fn all_slots_are_checked_in_time_and_few_at_once() {
        for slots in [1, 8, 99, 100, 101, 10_000, 65_535] {
            let mut sweep = IdleSweep::default();
            let (mut checks, mut step_count) = (vec![0; slots], 0);
            // Rounds of a millisecond, for the time of a complete scan.
            for now in (0..STEP_COUNT as u64 * STEP_INTERVAL_NS).step_by(1_000_000) {
                let range = sweep.next_range(slots, now);
                assert!(range.len() <= slots.div_ceil(STEP_COUNT), "{slots}");
                step_count += usize::from(!range.is_empty());
                range.for_each(|slot| checks[slot] += 1);
            }
            assert!(checks.iter().all(|&times| times > 0), "{slots}");
            assert_eq!(step_count, STEP_COUNT, "{slots}");
        }
        assert_eq!(IdleSweep::default().next_range(0, 0), 0..0);
    }
}
