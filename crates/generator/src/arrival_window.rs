//! Arrival window of the frames of a run, where the frames carry no tag.
//!
//! Untagged frames are identified by their length, and unrelated frames may have the same length: a
//! discovery frame of a neighbour seconds after the end did not wait in a queue that long. The
//! frames of a run arrive densely. So an arrival after a gap counts as the end of the window only
//! once enough frames have followed to fill half of the gap at the usual rate.

use linerate_sys::clock::Nanos;

/// Gaps below this are normal: schedulers cause them on any host.
const GAP_NS: Nanos = 5_000_000;
/// The first frame is unrelated if the gap after it exceeds this many of the mean gaps that follow.
const MAX_FIRST_GAPS: Nanos = 16;

/// Arrivals so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ArrivalWindow {
    first: Nanos,
    second: Nanos,
    /// Latest arrival that belongs to the run, and the number of such arrivals.
    last: Nanos,
    members: u64,
    /// Number of arrivals since then.
    pending: u64,
}

impl ArrivalWindow {
    /// Adds a frame that certainly belongs to the run.
    #[inline]
    pub(super) fn add(&mut self, now: Nanos) {
        match self.members {
            0 => self.first = now,
            1 => self.second = now,
            _ => {}
        }
        self.last = now;
        self.members += 1 + self.pending;
        self.pending = 0;
    }

    /// Adds a frame that may be unrelated.
    #[inline]
    pub(super) fn add_unidentified(&mut self, now: Nanos) {
        let is_without_gap = now <= self.last.saturating_add(GAP_NS);
        if is_without_gap || self.members < 2 || self.is_dense(now) {
            self.add(now);
        } else {
            self.pending += 1;
        }
    }

    /// Returns whether this frame and the pending ones before it fill half of the gap, at the mean
    /// rate so far.
    #[cold]
    fn is_dense(&self, now: Nanos) -> bool {
        let (gap, elapsed) = (now - self.last, now - self.first);
        let frames = self.members + self.pending;
        u128::from(self.pending + 1) * 2 * u128::from(elapsed)
            >= u128::from(gap) * u128::from(frames)
    }

    /// Returns the time between the first and the last frame, if all frames belong to the run.
    pub(super) fn identified_ns(&self) -> Nanos {
        self.last - self.first
    }

    /// Returns that time if any frame may be unrelated.
    pub(super) fn unidentified_ns(&self) -> Nanos {
        let (first_gap, rest) = (
            self.second.saturating_sub(self.first),
            self.last.saturating_sub(self.second),
        );
        let gaps = self.members.saturating_sub(2);
        let is_first_unrelated =
            gaps > 0 && first_gap > GAP_NS && first_gap > rest / gaps * MAX_FIRST_GAPS;
        if is_first_unrelated {
            rest
        } else {
            self.identified_ns()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nanoseconds in a millisecond.
    const NANOS_PER_MS: Nanos = 1_000_000;

    fn window_ns(arrivals: impl IntoIterator<Item = Nanos>) -> Nanos {
        let mut window = ArrivalWindow::default();
        for at in arrivals {
            window.add_unidentified(at);
        }
        window.unidentified_ns()
    }

    /// Arrival times of one second of frames, in bursts of `burst`.
    fn steady_arrivals(gap_ns: Nanos, burst: u64) -> impl Iterator<Item = Nanos> + Clone {
        let bursts = 1000 * NANOS_PER_MS / gap_ns / burst;
        (0..bursts)
            .flat_map(move |at| (0..burst).map(move |_| 5000 * NANOS_PER_MS + at * gap_ns * burst))
    }

    #[test]
    fn window_covers_all_arrivals() {
        for (gap_ns, burst) in [
            (1_000, 1),
            (1_000, 32),
            (400_000, 1),
            (2 * NANOS_PER_MS, 32),
            (100 * NANOS_PER_MS, 1),
        ] {
            let all = steady_arrivals(gap_ns, burst);
            let expected_ns = all.clone().last().unwrap() - 5000 * NANOS_PER_MS;
            assert_eq!(window_ns(all), expected_ns, "{gap_ns} {burst}");
        }
        assert_eq!(window_ns([]), 0);
        assert_eq!(window_ns([7]), 0);
        assert_eq!(window_ns([7, 9]), 2);
    }

    #[test]
    fn unrelated_frames_do_not_extend_the_window() {
        for gap_ns in [1_000, 400_000, 20 * NANOS_PER_MS] {
            let all = || steady_arrivals(gap_ns, 1);
            let expected_ns = window_ns(all());
            let strays = [6_800, 6_900, 7_400, 7_400, 7_900].map(|at| at * NANOS_PER_MS);
            assert_eq!(
                window_ns(all().chain([7_000 * NANOS_PER_MS])),
                expected_ns,
                "{gap_ns}"
            );
            assert_eq!(
                window_ns([4_000 * NANOS_PER_MS].into_iter().chain(all())),
                expected_ns
            );
            if gap_ns < NANOS_PER_MS {
                assert_eq!(window_ns(all().chain(strays)), expected_ns, "{gap_ns}");
            }
        }
    }

    /// After a stall within the run, the frames that follow belong to the run: a queue may still
    /// deliver them.
    #[test]
    fn stall_does_not_end_the_window() {
        let with_stall = |from: u64, to: u64, is_clumped: bool| {
            steady_arrivals(400_000, 1).map(move |at| match at - 5000 * NANOS_PER_MS {
                since if (from * NANOS_PER_MS..to * NANOS_PER_MS).contains(&since) => {
                    // Frames of the stall arrive at its end, or are late themselves.
                    if is_clumped {
                        5000 * NANOS_PER_MS + to * NANOS_PER_MS
                    } else {
                        at + (to - from) * NANOS_PER_MS
                    }
                }
                since if since >= to * NANOS_PER_MS && !is_clumped => {
                    at + (to - from) * NANOS_PER_MS
                }
                _ => at,
            })
        };
        let expected_ns = window_ns(steady_arrivals(400_000, 1));
        for (from, to) in [(1, 21), (100, 200), (500, 530), (850, 890)] {
            let measured_ns = window_ns(with_stall(from, to, true));
            assert!(
                measured_ns.abs_diff(expected_ns) < NANOS_PER_MS,
                "{from} to {to}: {measured_ns}"
            );
        }
        for (from, to) in [(100, 200), (500, 530), (850, 890)] {
            let measured_ns = window_ns(with_stall(from, to, false));
            let expected_late_ns = expected_ns + (to - from) * NANOS_PER_MS;
            assert!(
                measured_ns.abs_diff(expected_late_ns) < NANOS_PER_MS,
                "{from} to {to}: {measured_ns}"
            );
        }
    }
}
