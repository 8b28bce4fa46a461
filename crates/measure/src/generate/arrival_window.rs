//! Arrival window of the frames of a run, where the frames carry no tag.
//!
//! Untagged frames are identified by their length, and unrelated frames may have the same length: a
//! discovery frame of a neighbour seconds after the end did not wait in a queue that long. The
//! frames of a run arrive densely. So an arrival after a gap counts as the end of the window only
//! once enough frames have followed to fill half of the gap at the usual rate.

use linerate_host::sys::clock::Nanos;

/// Gaps below this are normal: schedulers cause them on any host.
const GAP_NS: Nanos = 5_000_000;
/// The first frame is unrelated if the gap after it exceeds this many of the mean gaps that follow.
const FIRST_GAPS: Nanos = 16;

/// Arrivals so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Span {
    first: Nanos,
    second: Nanos,
    /// Latest arrival that belongs to the run, and the number of such arrivals.
    last: Nanos,
    crowd: u64,
    /// Number of arrivals since then.
    apart: u64,
}

impl Span {
    /// Adds a frame that certainly belongs to the run.
    #[inline]
    pub(super) fn take(&mut self, now: Nanos) {
        match self.crowd {
            0 => self.first = now,
            1 => self.second = now,
            _ => {}
        }
        self.last = now;
        self.crowd += 1 + self.apart;
        self.apart = 0;
    }

    /// Adds a frame that may be unrelated.
    #[inline]
    pub(super) fn take_unsure(&mut self, now: Nanos) {
        let near = now <= self.last.saturating_add(GAP_NS);
        if near || self.crowd < 2 || self.is_crowded(now) {
            self.take(now);
        } else {
            self.apart += 1;
        }
    }

    /// Returns whether this frame and the pending ones before it fill half of the gap, at the mean
    /// rate so far.
    #[cold]
    fn is_crowded(&self, now: Nanos) -> bool {
        let (gap, all) = (now - self.last, now - self.first);
        let frames = self.crowd + self.apart;
        u128::from(self.apart + 1) * 2 * u128::from(all) >= u128::from(gap) * u128::from(frames)
    }

    /// Returns the time between the first and the last frame, if all frames belong to the run.
    pub(super) fn sure_ns(&self) -> Nanos {
        self.last - self.first
    }

    /// Returns that time if any frame may be unrelated.
    pub(super) fn unsure_ns(&self) -> Nanos {
        let (early, rest) = (
            self.second.saturating_sub(self.first),
            self.last.saturating_sub(self.second),
        );
        let gaps = self.crowd.saturating_sub(2);
        let is_stray = gaps > 0 && early > GAP_NS && early > rest / gaps * FIRST_GAPS;
        if is_stray { rest } else { self.sure_ns() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nanoseconds in a millisecond.
    const MS: Nanos = 1_000_000;

    fn span(arrivals: impl IntoIterator<Item = Nanos>) -> Nanos {
        let mut span = Span::default();
        for at in arrivals {
            span.take_unsure(at);
        }
        span.unsure_ns()
    }

    /// Arrival times of one second of frames, in bursts of `burst`.
    fn steady(gap_ns: Nanos, burst: u64) -> impl Iterator<Item = Nanos> + Clone {
        let bursts = 1000 * MS / gap_ns / burst;
        (0..bursts).flat_map(move |at| (0..burst).map(move |_| 5000 * MS + at * gap_ns * burst))
    }

    #[test]
    fn a_crowd_is_as_long_as_it_is() {
        for (gap_ns, burst) in [
            (1_000, 1),
            (1_000, 32),
            (400_000, 1),
            (2 * MS, 32),
            (100 * MS, 1),
        ] {
            let all = steady(gap_ns, burst);
            let want = all.clone().last().unwrap() - 5000 * MS;
            assert_eq!(span(all), want, "{gap_ns} {burst}");
        }
        assert_eq!(span([]), 0);
        assert_eq!(span([7]), 0);
        assert_eq!(span([7, 9]), 2);
    }

    #[test]
    fn strays_before_and_after_it_are_none_of_it() {
        for gap_ns in [1_000, 400_000, 20 * MS] {
            let all = || steady(gap_ns, 1);
            let want = span(all());
            let later = [6_800, 6_900, 7_400, 7_400, 7_900].map(|at| at * MS);
            assert_eq!(span(all().chain([7_000 * MS])), want, "{gap_ns}");
            assert_eq!(span([4_000 * MS].into_iter().chain(all())), want);
            if gap_ns < MS {
                assert_eq!(span(all().chain(later)), want, "{gap_ns}");
            }
        }
    }

    /// After a stall within the run, the frames that follow belong to the run: a queue may still
    /// deliver them.
    #[test]
    fn a_stall_parts_no_crowd() {
        let with_stall = |from: u64, to: u64, clump: bool| {
            steady(400_000, 1).map(move |at| match at - 5000 * MS {
                since if (from * MS..to * MS).contains(&since) => {
                    // Frames of the stall arrive at its end, or are late themselves.
                    if clump {
                        5000 * MS + to * MS
                    } else {
                        at + (to - from) * MS
                    }
                }
                since if since >= to * MS && !clump => at + (to - from) * MS,
                _ => at,
            })
        };
        let want = span(steady(400_000, 1));
        for (from, to) in [(1, 21), (100, 200), (500, 530), (850, 890)] {
            let found = span(with_stall(from, to, true));
            assert!(found.abs_diff(want) < MS, "{from} to {to}: {found}");
        }
        for (from, to) in [(100, 200), (500, 530), (850, 890)] {
            let found = span(with_stall(from, to, false));
            let later = want + (to - from) * MS;
            assert!(found.abs_diff(later) < MS, "{from} to {to}: {found}");
        }
    }
}
