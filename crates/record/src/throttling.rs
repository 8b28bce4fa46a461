//! Stops of threads by a quota of processor time.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Stops of an end's threads by a quota of processor time (cpu.stat of the cgroup). Includes all
/// programs of the cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CpuThrottling {
    /// Periods in which a thread ran.
    pub periods: u64,
    /// Periods in which the quota was used up.
    pub throttled_periods: u64,
    /// Time for which threads were stopped, ns: the sum over processors.
    pub throttled_ns: u64,
}

impl CpuThrottling {
    /// Returns why polling threads had less than their CPUs: the quota if it stopped them, or other
    /// threads.
    #[must_use]
    pub fn lost_time_reason(throttling: Option<&Self>) -> String {
        match throttling {
            Some(stops) if stops.throttled_periods > 0 => format!(
                "the CPU quota was used up in {} of {} periods",
                stops.throttled_periods, stops.periods
            ),
            _ => "other threads ran there".to_owned(),
        }
    }

    /// Returns the difference to an earlier reading.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let periods = self.periods.saturating_sub(earlier.periods);
        let throttled_periods = (self.throttled_periods).saturating_sub(earlier.throttled_periods);
        Self {
            periods,
            // The counts of nested cgroups are added, and both may be throttled in one period.
            throttled_periods: throttled_periods.min(periods),
            throttled_ns: self.throttled_ns.saturating_sub(earlier.throttled_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_that_stopped_threads_is_the_reason() {
        let stops = |throttled_periods| CpuThrottling {
            periods: 20,
            throttled_periods,
            throttled_ns: 0,
        };
        let reason = CpuThrottling::lost_time_reason;
        let quota = "the CPU quota was used up in 18 of 20 periods";
        assert_eq!(reason(Some(&stops(18))), quota);
        for throttling in [None, Some(stops(0))] {
            assert_eq!(reason(throttling.as_ref()), "other threads ran there");
        }
    }

    #[test]
    fn periods_of_nested_cgroups_count_once() {
        let reading = |periods, throttled_periods| CpuThrottling {
            periods,
            throttled_periods,
            throttled_ns: 0,
        };
        for (earlier, later, expected) in [
            ((10, 3), (30, 9), (20, 6)),
            ((10, 3), (30, 43), (20, 20)),
            ((10, 3), (10, 3), (0, 0)),
        ] {
            let difference = reading(later.0, later.1).since(&reading(earlier.0, earlier.1));
            assert_eq!(difference, reading(expected.0, expected.1), "{later:?}");
        }
    }
}
