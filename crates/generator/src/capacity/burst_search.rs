//! Search for the longest burst of back-to-back frames without loss (RFC 2544 section 26.4, RFC
//! 9004).
//!
//! Decides without I/O: the length of the next burst comes out, and whether all of it arrived goes
//! in.

/// State of a search.
#[derive(Clone, Debug)]
pub struct BurstSearch {
    max_frames: u64,
    resolution: f64,
    /// Length of the longest burst that passed.
    longest_passed: u64,
    /// Length of the shortest burst that failed.
    shortest_failed: Option<u64>,
}

/// Next step of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BurstSearchStep {
    /// Send a burst of this many frames.
    Try(u64),
    /// The search has ended.
    Done {
        /// Length of the longest burst that passed.
        frames: u64,
        /// True if the longest permitted burst passed.
        is_unlimited: bool,
    },
}

/// Frames of the first burst: the usual burst of poll-mode programs.
const FIRST_BURST_FRAMES: u64 = 32;

impl BurstSearch {
    /// Starts a search up to `max_frames` frames, down to bounds within `resolution` (a fraction of
    /// the result).
    #[must_use]
    pub fn new(max_frames: u64, resolution: f64) -> Self {
        Self {
            max_frames: max_frames.max(1),
            resolution,
            longest_passed: 0,
            shortest_failed: None,
        }
    }

    /// Returns the next burst, or the result.
    #[must_use]
    pub fn next(&self) -> BurstSearchStep {
        let done = |is_unlimited| BurstSearchStep::Done {
            frames: self.longest_passed,
            is_unlimited,
        };
        match self.shortest_failed {
            None if self.longest_passed >= self.max_frames => done(true),
            None => BurstSearchStep::Try(
                (self.longest_passed * 2)
                    .clamp(FIRST_BURST_FRAMES, self.max_frames.max(FIRST_BURST_FRAMES))
                    .min(self.max_frames),
            ),
            Some(upper) => {
                let gap = upper - self.longest_passed;
                if gap <= 1 || gap as f64 <= upper as f64 * self.resolution {
                    done(false)
                } else {
                    BurstSearchStep::Try(self.longest_passed + gap / 2)
                }
            }
        }
    }

    /// Limits the search to `frames`: a burst of that length already took the maximum time.
    pub fn cap_at(&mut self, frames: u64) {
        self.max_frames = frames.max(1);
    }

    /// Records whether all frames of a burst arrived.
    pub fn record(&mut self, frames: u64, passed: bool) {
        if passed {
            self.longest_passed = self.longest_passed.max(frames);
            // A longer burst passed, so the earlier failure was noise.
            self.shortest_failed = self
                .shortest_failed
                .filter(|&upper| upper > self.longest_passed);
        } else {
            self.shortest_failed = Some(
                self.shortest_failed
                    .map_or(frames, |upper| upper.min(frames)),
            );
            self.longest_passed = self.longest_passed.min(frames.saturating_sub(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(buffer_frames: u64, max_frames: u64, resolution: f64) -> (u64, bool, u32) {
        let mut search = BurstSearch::new(max_frames, resolution);
        let mut bursts_sent = 0;
        loop {
            match search.next() {
                BurstSearchStep::Done {
                    frames,
                    is_unlimited,
                } => return (frames, is_unlimited, bursts_sent),
                BurstSearchStep::Try(frames) => {
                    assert!((1..=max_frames.max(1)).contains(&frames));
                    search.record(frames, frames <= buffer_frames);
                    bursts_sent += 1;
                }
            }
        }
    }

    #[test]
    fn the_edge_of_a_buffer() {
        for (buffer_frames, max_frames, expected) in [
            (1000, 1_000_000, (1000, false)),
            (0, 1_000_000, (0, false)),
            (1, 100, (1, false)),
            (5000, 4000, (4000, true)),
            (5000, 7, (7, true)),
        ] {
            let (frames, is_unlimited, _) = run(buffer_frames, max_frames, 0.0);
            assert_eq!(
                (frames, is_unlimited),
                expected,
                "{buffer_frames} of {max_frames}"
            );
        }
    }

    #[test]
    fn a_burst_that_takes_too_long_is_the_last() {
        let mut search = BurstSearch::new(1_000_000, 0.0);
        search.record(32, true);
        search.cap_at(32);
        let done = BurstSearchStep::Done {
            frames: 32,
            is_unlimited: true,
        };
        assert_eq!(search.next(), done);
    }

    proptest! {
        #[test]
        fn the_search_ends_within_the_resolution(buffer in 0u64..10_000_000, most in 1u64..10_000_000, resolution in 0.0f64..0.2) {
            let (frames, unlimited, made) = run(buffer, most, resolution);
            prop_assert!(made < 60);
            prop_assert_eq!(unlimited, buffer >= most);
            prop_assert!(frames <= buffer.min(most));
            if !unlimited {
                prop_assert!((buffer - frames) as f64 <= (buffer + 1) as f64 * resolution + 1.0);
            }
        }
    }
}
