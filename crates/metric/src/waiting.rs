//! What waiting costs: the same round trips with sleeping, with cores that do not halt, and without
//! sleeping.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::statistics::{Estimate, estimate};

/// Medians of runs that took turns, in ns, one of each kind a round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Turns {
    /// Both ends sleep; cores halt as the machine has it.
    pub blocking: Vec<f64>,
    /// Both ends sleep; cores are kept from halting. Empty where that was not to be had.
    pub held: Vec<f64>,
    /// Neither end sleeps.
    pub spinning: Vec<f64>,
}

/// What sleeping adds to a round trip, in ns, with 95 % intervals over the rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WaitingCosts {
    /// Median round trip when both ends sleep.
    pub blocking_ns: Estimate,
    /// The same with cores kept from halting; absent where that was not to be had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_ns: Option<Estimate>,
    /// Median round trip when neither end sleeps.
    pub spinning_ns: Estimate,
    /// Leaving the halt: blocking minus held, round by round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halt_ns: Option<Estimate>,
    /// Waking the threads: held minus spinning, round by round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wake_up_ns: Option<Estimate>,
    /// Both together: blocking minus spinning, round by round.
    pub sleeping_ns: Estimate,
}

impl Turns {
    /// The costs; `None` without a whole round of blocking and spinning.
    #[must_use]
    pub fn costs(&self) -> Option<WaitingCosts> {
        let differences = |more: &[f64], less: &[f64]| {
            let each: Vec<f64> = more.iter().zip(less).map(|(a, b)| a - b).collect();
            estimate(&each)
        };
        Some(WaitingCosts {
            blocking_ns: estimate(&self.blocking)?,
            held_ns: estimate(&self.held),
            spinning_ns: estimate(&self.spinning)?,
            halt_ns: differences(&self.blocking, &self.held),
            wake_up_ns: differences(&self.held, &self.spinning),
            sleeping_ns: differences(&self.blocking, &self.spinning)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_taken_round_by_round() {
        // The machine slows down from round to round; the differences do not.
        let turns = Turns {
            blocking: vec![50.0, 60.0, 70.0],
            held: vec![12.0, 22.0, 32.0],
            spinning: vec![6.0, 16.0, 26.0],
        };
        let costs = turns.costs().unwrap();
        assert_eq!(costs.halt_ns.unwrap().median, 38.0);
        let wake_up = costs.wake_up_ns.unwrap();
        assert_eq!((wake_up.low, wake_up.median, wake_up.high), (6.0, 6.0, 6.0));
        assert_eq!(costs.sleeping_ns.median, 44.0);
    }

    #[test]
    fn without_the_hold_the_parts_are_not_told_apart() {
        let turns = Turns {
            blocking: vec![50.0],
            held: Vec::new(),
            spinning: vec![6.0],
        };
        let costs = turns.costs().unwrap();
        assert_eq!((costs.halt_ns, costs.wake_up_ns), (None, None));
        assert_eq!(costs.sleeping_ns.median, 44.0);
        assert_eq!(Turns::default().costs(), None);
    }
}
