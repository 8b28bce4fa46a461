//! `linerate throughput`: how much payload arrives in a second.

use crate::args::ThroughputArgs;
use crate::load::Load;
use crate::plan;

/// Runs it; gives the exit code.
pub fn run(args: ThroughputArgs) -> u8 {
    if matches!(args.bitrate, Some(Load::Max { .. })) {
        return super::search::run(&args);
    }
    super::measure::run(plan::throughput(&args), &args.measure)
}
