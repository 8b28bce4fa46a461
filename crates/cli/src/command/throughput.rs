//! `linerate throughput`: TCP or UDP throughput.

use crate::args::ThroughputArgs;
use crate::load_option::Load;
use crate::output::complain;
use crate::plan;

/// Runs the command and returns the exit code.
pub fn run(args: ThroughputArgs) -> u8 {
    if matches!(args.bitrate, Some(Load::Max { .. })) {
        return super::rate_search::run(&args);
    }
    if matches!(args.bitrate, Some(Load::Rate { bps: 0, .. })) && !args.measure.output.quiet {
        complain("note: -b 0 sets no rate limit, as in iperf3");
    }
    super::measure::run(plan::throughput(&args), &args.measure)
}
