//! `linerate throughput`: how much payload arrives in a second.

use crate::args::ThroughputArgs;
use crate::plan;

/// Runs it; gives the exit code.
pub fn run(args: ThroughputArgs) -> u8 {
    super::measure::run(plan::throughput(&args), &args.measure)
}
