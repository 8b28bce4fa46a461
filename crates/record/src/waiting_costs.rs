//! Cost of sleeping: the same round trips with blocking threads, with cores kept out of idle
//! states, and with spinning threads.

use linerate_stats::statistics::{Estimate, estimate};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Median round trips of interleaved runs in ns, one of each wait mode per round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WaitingRuns {
    /// Both ends block; cores enter idle states as configured.
    pub blocking: Vec<f64>,
    /// Both ends block; cores are kept out of idle states. Empty if that is not possible.
    pub no_halt: Vec<f64>,
    /// Both ends spin.
    pub spinning: Vec<f64>,
}

/// Time that sleeping adds to a round trip, in ns, with 95 % intervals over the rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WaitingCosts {
    /// Median round trip with both ends blocking.
    pub blocking_ns: Estimate,
    /// Median round trip with both ends blocking and cores kept out of idle states; absent if that
    /// is not possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "held_ns")]
    pub no_halt_ns: Option<Estimate>,
    /// Median round trip with both ends spinning.
    pub spinning_ns: Estimate,
    /// Exit from idle states: blocking minus `no_halt`, by round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halt_ns: Option<Estimate>,
    /// Wake-up of the threads: `no_halt` minus spinning, by round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wake_up_ns: Option<Estimate>,
    /// Total: blocking minus spinning, by round.
    pub sleeping_ns: Estimate,
}

impl WaitingRuns {
    /// Computes the costs; `None` without a complete round of blocking and spinning.
    #[must_use]
    pub fn costs(&self) -> Option<WaitingCosts> {
        let differences = |more: &[f64], less: &[f64]| {
            let each: Vec<f64> = more.iter().zip(less).map(|(a, b)| a - b).collect();
            estimate(&each)
        };
        Some(WaitingCosts {
            blocking_ns: estimate(&self.blocking)?,
            no_halt_ns: estimate(&self.no_halt),
            spinning_ns: estimate(&self.spinning)?,
            halt_ns: differences(&self.blocking, &self.no_halt),
            wake_up_ns: differences(&self.no_halt, &self.spinning),
            sleeping_ns: differences(&self.blocking, &self.spinning)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_taken_round_by_round() {
        // Times increase from round to round; the differences do not.
        let runs = WaitingRuns {
            blocking: vec![50.0, 60.0, 70.0],
            no_halt: vec![12.0, 22.0, 32.0],
            spinning: vec![6.0, 16.0, 26.0],
        };
        let costs = runs.costs().unwrap();
        assert_eq!(costs.halt_ns.unwrap().median, 38.0);
        let wake_up = costs.wake_up_ns.unwrap();
        assert_eq!((wake_up.low, wake_up.median, wake_up.high), (6.0, 6.0, 6.0));
        assert_eq!(costs.sleeping_ns.median, 44.0);
    }

    #[test]
    fn without_no_halt_runs_the_parts_are_unknown() {
        let runs = WaitingRuns {
            blocking: vec![50.0],
            no_halt: Vec::new(),
            spinning: vec![6.0],
        };
        let costs = runs.costs().unwrap();
        assert_eq!((costs.halt_ns, costs.wake_up_ns), (None, None));
        assert_eq!(costs.sleeping_ns.median, 44.0);
        assert_eq!(WaitingRuns::default().costs(), None);
    }
}
