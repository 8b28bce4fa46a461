//! The search for the longest burst of frames at the smallest gap of which none is lost (RFC 2544
//! section 26.4, RFC 9004).
//!
//! Decides without I/O: the length of the next burst comes out, whether all of it arrived goes in.

/// A search on its way.
#[derive(Clone, Debug)]
pub struct BurstSearch {
    most: u64,
    resolution: f64,
    /// The longest that passed.
    lower: u64,
    /// The shortest that failed.
    upper: Option<u64>,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextBurst {
    /// A burst of so many frames.
    Try(u64),
    /// The longest that passed, and whether a longer one was tried.
    Over {
        /// Frames.
        frames: u64,
        /// Whether the longest that may be tried passed.
        unlimited: bool,
    },
}

/// Frames of the first burst: what poll-mode programs move at once.
const FIRST: u64 = 32;

impl BurstSearch {
    /// Bursts of up to `most` frames, to within a share of the result.
    #[must_use]
    pub fn new(most: u64, resolution: f64) -> Self {
        Self {
            most: most.max(1),
            resolution,
            lower: 0,
            upper: None,
        }
    }

    /// What is to be done now.
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

    /// Nothing longer than this burst is to be tried: it took as long as one may.
    pub fn end_with(&mut self, frames: u64) {
        self.most = frames.max(1);
    }

    /// Takes whether all of a burst arrived.
    pub fn take(&mut self, frames: u64, passed: bool) {
        if passed {
            self.lower = self.lower.max(frames);
            // A longer one passes after all: what failed before was noise.
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
