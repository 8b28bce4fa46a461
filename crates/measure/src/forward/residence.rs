//! How long frames are in the forwarder: from before the poll that finds them until the transmit queue has
//! them.

use linerate_metric::forward::Residence;

/// Times of polls that found frames.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    polls: u64,
    sum_ns: u64,
    min_ns: u64,
    max_ns: u64,
    last_ns: u64,
    /// Sixteen times the jitter, as RFC 3550 (appendix A.8) keeps it.
    jitter_16: u64,
}

impl Times {
    /// Takes the time of a poll.
    pub(super) fn take(&mut self, ns: u64) {
        if self.polls == 0 {
            self.min_ns = ns;
        } else {
            let smoothed = (self.jitter_16 + 8) >> 4;
            self.jitter_16 = self.jitter_16.saturating_add(self.last_ns.abs_diff(ns)) - smoothed;
        }
        self.polls += 1;
        self.sum_ns += ns;
        self.min_ns = self.min_ns.min(ns);
        self.max_ns = self.max_ns.max(ns);
        self.last_ns = ns;
    }

    /// As the record has it; none where no poll found a frame.
    pub(super) fn found(&self) -> Option<Residence> {
        Some(Residence {
            polls: self.polls,
            min_ns: self.min_ns,
            mean_ns: self.sum_ns.checked_div(self.polls)?,
            max_ns: self.max_ns,
            jitter_ns: self.jitter_16 >> 4,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_summed_up() {
        let mut times = Times::default();
        assert_eq!(times.found(), None);
        for ns in [100, 300, 200] {
            times.take(ns);
        }
        let found = times.found().unwrap();
        assert_eq!(
            (found.polls, found.min_ns, found.mean_ns, found.max_ns),
            (3, 100, 200, 300)
        );
        // 200 apart for ever: the jitter comes to that.
        let mut times = Times::default();
        (0..1000).for_each(|at| times.take(100 + at % 2 * 200));
        assert!(times.found().unwrap().jitter_ns.abs_diff(200) <= 1);
        // Never apart: none.
        let mut times = Times::default();
        (0..9).for_each(|_| times.take(7));
        assert_eq!(times.found().unwrap().jitter_ns, 0);
    }
}
