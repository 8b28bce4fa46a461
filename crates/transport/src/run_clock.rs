//! Times of a run: start, counting, report intervals.

use linerate_sys::clock::Nanos;

/// Start, counting and intervals of a run, on this end's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunClock {
    /// Start of payload.
    pub start_ns: Nanos,
    /// Start of counting, after the omitted time.
    pub count_from_ns: Nanos,
    /// Length of a report interval; `None`: no reports.
    pub interval_ns: Option<Nanos>,
    /// Call duration that ends the recorded timeline of calls soon after.
    pub trace_stop_call_ns: Option<Nanos>,
}

impl RunClock {
    /// Returns the end of the interval that starts at `start_ns`; `None` without reports.
    ///
    /// The end of the omitted time ends an interval early, so that none is partly counted.
    #[inline]
    #[must_use]
    pub fn interval_end(&self, start_ns: Nanos) -> Option<Nanos> {
        let end = start_ns + self.interval_ns?;
        if start_ns < self.count_from_ns {
            return Some(end.min(self.count_from_ns));
        }
        Some(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_omitted_time_ends_an_interval() {
        let clock = RunClock {
            start_ns: 1_000,
            count_from_ns: 1_250,
            interval_ns: Some(100),
            trace_stop_call_ns: None,
        };
        let mut interval_ends = Vec::new();
        let mut start_ns = clock.start_ns;
        for _ in 0..5 {
            start_ns = clock.interval_end(start_ns).unwrap();
            interval_ends.push(start_ns);
        }
        assert_eq!(interval_ends, [1_100, 1_200, 1_250, 1_350, 1_450]);
    }
}
