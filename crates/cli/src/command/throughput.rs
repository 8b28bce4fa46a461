//! `linerate throughput`: how much payload arrives in a second.

use crate::args::ThroughputArgs;
use crate::load::Load;
use crate::output::complain;
use crate::plan;

/// Runs it; gives the exit code.
pub fn run(args: ThroughputArgs) -> u8 {
    if matches!(args.bitrate, Some(Load::Max { .. })) {
        return super::search::run(&args);
    }
    if matches!(args.bitrate, Some(Load::Rate { bps: 0, .. })) && !args.measure.output.quiet {
        complain("note: -b 0 sets no limit, as in iperf3: payload leaves as fast as it goes");
    }
    super::measure::run(plan::throughput(&args), &args.measure)
}
