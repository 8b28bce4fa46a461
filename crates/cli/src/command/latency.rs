//! `linerate latency`: how long an answer takes.

use crate::args::LatencyArgs;
use crate::plan;

/// Runs it; gives the exit code.
pub fn run(args: LatencyArgs) -> u8 {
    super::measure::run(plan::latency(&args), &args.measure)
}
