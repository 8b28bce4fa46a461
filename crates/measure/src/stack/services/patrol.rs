//! Which connections are asked whether they have been silent for too long: a share at a time.
//!
//! A host that spins looks after its services millions of times a second, and ten thousand connections that say nothing
//! would cost each answer to another one a walk past all of them.

use std::ops::Range;

use linerate_host::sys::clock::Nanos;

/// Time from one share to the next.
const SHARE_NS: Nanos = 100_000_000;

/// Shares that make up all of them: ten seconds, of the minutes that a connection may be silent.
const SHARES: usize = 100;

/// Goes past all places, again and again.
#[derive(Default)]
pub struct Patrol {
    next: usize,
    due_ns: Nanos,
}

impl Patrol {
    /// Those of so many places that it is time to look at: none, but once in a while.
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

    /// The whole table was walked in each round: with 10,000 connections most of what a round took.
    #[test]
    fn all_places_are_seen_in_time_and_few_at_once() {
        for places in [1, 8, 99, 100, 101, 10_000, 65_535] {
            let mut patrol = Patrol::default();
            let (mut seen, mut looks) = (vec![0; places], 0);
            // Rounds of a millisecond, for as long as all shares take.
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
