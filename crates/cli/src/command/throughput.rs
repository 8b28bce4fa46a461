//! `linerate throughput`: TCP or UDP throughput.

use crate::args::ThroughputArgs;
use crate::load_option::LoadOption;
use crate::plan;
use crate::standard_streams::print_stderr;

/// Runs the command and returns the exit code.
pub fn run(args: ThroughputArgs) -> u8 {
    if matches!(args.bitrate, Some(LoadOption::Max { .. })) {
        return super::rate_search::run(&args);
    }
    if matches!(args.bitrate, Some(LoadOption::Rate { bps: 0, .. })) && !args.measure.output.quiet {
        print_stderr("note: -b 0 sets no rate limit, as in iperf3");
    }
    super::measure::run_measurement(plan::plan_throughput(&args), &args.measure)
}
