//! Interleaved pairs, and the state of the machine around each of them.

use linerate_host::doctor::cache_line::{NEAR_LIMIT, measure_cache_line};
use linerate_record::comparison::RunPair;
use linerate_sys::cpu;
use linerate_tune::pair_scheduler::{PairScheduler, PairStep};

use crate::failure::SeriesEnd;

/// Pairs measured one after the other.
pub struct PairRunner {
    /// Decides order and number of the pairs.
    pub order: PairScheduler,
    /// State of the processors.
    pub machine: MachineState,
    /// Pairs so far.
    pub pairs: Vec<RunPair>,
    /// Significance level of the decision.
    pub significance: f64,
}

impl PairRunner {
    /// Measures until there are enough pairs; `measure` measures side 0 or 1 of a pair, counted
    /// from 1.
    ///
    /// # Errors
    /// Returns what ended it early; the pairs so far are kept.
    pub fn run(
        &mut self,
        measure: impl Fn(usize, usize) -> Result<f64, SeriesEnd>,
        mut report: impl FnMut(usize, &RunPair),
    ) -> Result<(), SeriesEnd> {
        let mut before = self.machine.line_rtt_ns();
        loop {
            let b_first = match self.order.next_step(&self.pairs) {
                PairStep::Judge { significance } => {
                    self.significance = significance;
                    return Ok(());
                }
                PairStep::Measure { b_first } => b_first,
            };
            let number = self.pairs.len() + 1;
            let first = measure(number, usize::from(b_first))?;
            let second = measure(number, usize::from(!b_first))?;
            let after = self.machine.line_rtt_ns();
            let line_rtt_ns = before.zip(after).map(|(before, after)| [before, after]);
            let has_changed =
                line_rtt_ns.is_some_and(|[before, after]| MachineState::has_changed(before, after));
            let (a, b) = match b_first {
                true => (second, first),
                false => (first, second),
            };
            let pair = RunPair {
                a,
                b,
                b_first,
                cache_line_rtt_ns: line_rtt_ns,
                dropped: has_changed.then(|| "machine-state".to_owned()),
            };
            report(number, &pair);
            self.pairs.push(pair);
            before = after;
        }
    }
}

/// Two processors whose cache-line round trip shows the state of a virtual machine.
pub struct MachineState {
    processors: Option<(u32, u32)>,
}

impl MachineState {
    /// Selects the first two processors that this process may use.
    pub fn new() -> Self {
        let usable = cpu::list_usable().unwrap_or_default();
        let processors = match usable.as_slice() {
            &[first, second, ..] => Some((first, second)),
            _ => None,
        };
        Self { processors }
    }

    /// Returns the round-trip time of a cache line in nanoseconds.
    fn line_rtt_ns(&self) -> Option<f64> {
        let (first, second) = self.processors?;
        measure_cache_line(first, second).map(|time| time.as_nanos() as f64)
    }

    /// Returns whether the state of the machine changed (near to far, or far to near).
    fn has_changed(before: f64, after: f64) -> bool {
        let near_below_ns = NEAR_LIMIT.as_nanos() as f64;
        (before < near_below_ns) != (after < near_below_ns)
    }
}
