//! Interleaved pairs, and the state of the machine around each of them.

use linerate_host::doctor::cache_line::{NEAR_BELOW, cache_line_round_trip};
use linerate_host::sys::cpu;
use linerate_metric::comparison::Pair;
use linerate_tune::pair_scheduler::{Interleave, Next};

use crate::command::series::Ended;

/// Pairs measured one after the other.
pub struct Turns {
    /// Decides order and number of the pairs.
    pub order: Interleave,
    /// State of the processors.
    pub machine: Machine,
    /// Pairs so far.
    pub pairs: Vec<Pair>,
    /// Significance level of the decision.
    pub significance: f64,
}

impl Turns {
    /// Measures until there are enough pairs; `half` measures side 0 or 1 of a pair, counted from
    /// 1.
    ///
    /// # Errors
    /// Returns what ended it early; the pairs so far are kept.
    pub fn run(
        &mut self,
        half: impl Fn(usize, usize) -> Result<f64, Ended>,
        mut tell: impl FnMut(usize, &Pair),
    ) -> Result<(), Ended> {
        let mut before = self.machine.line_rtt_ns();
        loop {
            let b_first = match self.order.next(&self.pairs) {
                Next::Judge { significance } => {
                    self.significance = significance;
                    return Ok(());
                }
                Next::Measure { b_first } => b_first,
            };
            let number = self.pairs.len() + 1;
            let first = half(number, usize::from(b_first))?;
            let second = half(number, usize::from(!b_first))?;
            let after = self.machine.line_rtt_ns();
            let line_rtt_ns = before.zip(after).map(|(before, after)| [before, after]);
            let moved = line_rtt_ns.is_some_and(|[before, after]| Machine::moved(before, after));
            let (a, b) = match b_first {
                true => (second, first),
                false => (first, second),
            };
            let pair = Pair {
                a,
                b,
                b_first,
                line_rtt_ns,
                dropped: moved.then(|| "machine-state".to_owned()),
            };
            tell(number, &pair);
            self.pairs.push(pair);
            before = after;
        }
    }
}

/// Two processors whose cache-line round trip shows the state of a virtual machine.
pub struct Machine {
    processors: Option<(u32, u32)>,
}

impl Machine {
    /// Selects the first two processors that this process may use.
    pub fn new() -> Self {
        let usable = cpu::usable().unwrap_or_default();
        let processors = match usable.as_slice() {
            &[first, second, ..] => Some((first, second)),
            _ => None,
        };
        Self { processors }
    }

    /// Returns the round-trip time of a cache line in nanoseconds.
    fn line_rtt_ns(&self) -> Option<f64> {
        let (first, second) = self.processors?;
        cache_line_round_trip(first, second).map(|time| time.as_nanos() as f64)
    }

    /// Returns whether the state of the machine changed (near to far, or far to near).
    fn moved(before: f64, after: f64) -> bool {
        let near = NEAR_BELOW.as_nanos() as f64;
        (before < near) != (after < near)
    }
}
