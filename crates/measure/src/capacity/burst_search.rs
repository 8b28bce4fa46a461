//! Search for the longest burst of back-to-back frames without loss (RFC 2544 section 26.4, RFC
//! 9004).
//!
//! Decides without I/O: the length of the next burst comes out, and whether all of it arrived goes
//! in.

/// State of a search.
#[derive(Clone, Debug)]
pub struct BurstSearch {
    most: u64,
    resolution: f64,
    /// Length of the longest burst that passed.
    lower: u64,
    /// Length of the shortest burst that failed.
    upper: Option<u64>,
}

/// Next step of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextBurst {
    /// Send a burst of this many frames.
    Try(u64),
    /// The search has ended.
    Over {
        /// Length of the longest burst that passed.
        frames: u64,
        /// True if the longest permitted burst passed.
        unlimited: bool,
    },
}

/// Frames of the first burst: the usual burst of poll-mode programs.
const FIRST: u64 = 32;

impl BurstSearch {
    /// Starts a search up to `most` frames, down to bounds within `resolution` (a fraction of the
    /// result).
    #[must_use]
    pub fn new(most: u64, resolution: f64) -> Self {
        Self {
            most: most.max(1),
            resolution,
            lower: 0,
            upper: None,
        }
    }

    /// Returns the next burst, or the result.
    #[must_use]
    pub fn next(&self) -> NextBurst {
        let over = |unlimited| NextBurst::Over {
            frames: self.lower,
            unlimited,
        };
        match self.upper {
            None if self.lower >= self.most => over(true),
            None => NextBurst::Try(
                (self.lower * 2)
                    .clamp(FIRST, self.most.max(FIRST))
                    .min(self.most),
            ),
            Some(upper) => {
                let gap = upper - self.lower;
                if gap <= 1 || gap as f64 <= upper as f64 * self.resolution {
                    over(false)
                } else {
                    NextBurst::Try(self.lower + gap / 2)
                }
            }
        }
    }

    /// Limits the search to `frames`: a burst of that length already took the maximum time.
    pub fn end_with(&mut self, frames: u64) {
        self.most = frames.max(1);
    }

    /// Records whether all frames of a burst arrived.
    pub fn take(&mut self, frames: u64, passed: bool) {
        if passed {
            self.lower = self.lower.max(frames);
            // A longer burst passed, so the earlier failure was noise.
            self.upper = self.upper.filter(|&upper| upper > self.lower);
        } else {
            self.upper = Some(self.upper.map_or(frames, |upper| upper.min(frames)));
            self.lower = self.lower.min(frames.saturating_sub(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(buffer: u64, most: u64, resolution: f64) -> (u64, bool, u32) {
        let mut search = BurstSearch::new(most, resolution);
        let mut made = 0;
        loop {
            match search.next() {
                NextBurst::Over { frames, unlimited } => return (frames, unlimited, made),
                NextBurst::Try(frames) => {
                    assert!((1..=most.max(1)).contains(&frames));
                    search.take(frames, frames <= buffer);
                    made += 1;
                }
            }
        }
    }

    #[test]
    fn the_edge_of_a_buffer() {
        for (buffer, most, want) in [
            (1000, 1_000_000, (1000, false)),
            (0, 1_000_000, (0, false)),
            (1, 100, (1, false)),
            (5000, 4000, (4000, true)),
            (5000, 7, (7, true)),
        ] {
            let (frames, unlimited, _) = run(buffer, most, 0.0);
            assert_eq!((frames, unlimited), want, "{buffer} of {most}");
        }
    }

    #[test]
    fn a_burst_that_takes_too_long_is_the_last() {
        let mut search = BurstSearch::new(1_000_000, 0.0);
        search.take(32, true);
        search.end_with(32);
        let over = NextBurst::Over {
            frames: 32,
            unlimited: true,
        };
        assert_eq!(search.next(), over);
    }

    proptest! {
        #[test]
        fn it_ends_within_the_resolution(buffer in 0u64..10_000_000, most in 1u64..10_000_000, resolution in 0.0f64..0.2) {
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
