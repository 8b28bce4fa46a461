//! Incremental scan of the connections for idle timeouts.
//!
//! A host that spins polls its services millions of times a second. A scan of ten thousand idle
//! connections each time would delay every response.

use std::ops::Range;

use linerate_host::sys::clock::Nanos;

/// Time between two parts of the scan.
const SHARE_NS: Nanos = 100_000_000;

/// Number of parts of a complete scan: ten seconds, short against the idle timeout of minutes.
const SHARES: usize = 100;

/// Position of the scan, repeated endlessly.
#[derive(Default)]
pub struct Patrol {
    next: usize,
    due_ns: Nanos,
}

impl Patrol {
    /// Returns the slots to check now out of `places`; mostly none.
    #[inline]
    pub fn share(&mut self, places: usize, now: Nanos) -> Range<usize> {
        if now < self.due_ns {
            return 0..0;
        }
        self.due_ns = now.saturating_add(SHARE_NS);
        let from = if self.next < places { self.next } else { 0 };
        self.next = places.min(from + places.div_ceil(SHARES));
        from..self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A complete scan in each round took most of the time with 10,000 connections.
    #[test]
    fn all_places_are_seen_in_time_and_few_at_once() {
        for places in [1, 8, 99, 100, 101, 10_000, 65_535] {
            let mut patrol = Patrol::default();
            let (mut seen, mut looks) = (vec![0; places], 0);
            // Rounds of a millisecond, for the time of a complete scan.
            for now in (0..SHARES as u64 * SHARE_NS).step_by(1_000_000) {
                let share = patrol.share(places, now);
                assert!(share.len() <= places.div_ceil(SHARES), "{places}");
                looks += usize::from(!share.is_empty());
                share.for_each(|place| seen[place] += 1);
            }
            assert!(seen.iter().all(|&times| times > 0), "{places}");
            assert_eq!(looks, SHARES, "{places}");
        }
        assert_eq!(Patrol::default().share(0, 0), 0..0);
    }
}
