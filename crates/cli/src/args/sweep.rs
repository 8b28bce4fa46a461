//! `linerate sweep`.

use clap::Args;
use linerate_tune::sweep_axis::SweepAxis;

use super::{KnobArgs, OutputArgs, ScreenArgs, SeriesArgs, heading};

fn over(text: &str) -> Result<SweepAxis, String> {
    text.parse()
        .map_err(|error: linerate_tune::TuneError| error.to_string())
}

/// `linerate sweep`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  linerate sweep --over rcvbuf=4K..1M:x4 --over sndbuf=4K..1M:x4 throughput 127.0.0.1 -t 500ms
  linerate sweep --over congestion=bbr,cubic --over length=16K,128K,1M throughput 127.0.0.1
  linerate sweep --over wait=block,spin --over hold-latency=off,on --figure p99 latency 127.0.0.1 -u
  linerate sweep --resume 20261121T144042Z-3f9a1c       continue after a crash or Ctrl-C
  linerate sweep --over window --over mtu=1500,9000 --knob-file mine.toml throughput 10.77.0.2

NAME is the long name of any option of the measuring command, a knob of your own, or a knob of `linerate tune`.
Values are a list, or FROM..TO with a step: :x2 doubles, :+8K adds. A switch takes off and on; default leaves
the option out. A knob without =VALUES takes all of its values. Settings of hosts need a lab or --try-host;
they are restored at the end, and after kill -9 by `linerate tune --restore`.")]
pub struct SweepArgs {
    /// Option or knob to vary, and its values; repeatable: every combination is measured
    #[arg(long, value_name = "NAME[=VALUES]", value_parser = over, env = "LINERATE_OVER", value_delimiter = ';')]
    pub over: Vec<SweepAxis>,
    /// Number of runs of each point; all points run once before any runs again
    #[arg(long, value_name = "N", default_value_t = 3, help_heading = heading::CHECKS, env = "LINERATE_REPEATS")]
    pub repeats: u32,
    /// Figure to report: goodput, p50, p99, pps, cpu, ... [default: goodput; for latency p50]
    #[arg(long, value_name = "FIGURE", env = "LINERATE_FIGURE")]
    pub figure: Option<String>,
    /// Continue an interrupted sweep: its id, or its journal file
    #[arg(long, value_name = "ID|FILE", conflicts_with_all = ["over", "figure", "repeats", "seed", "command"], env = "LINERATE_RESUME")]
    pub resume: Option<String>,
    /// Measuring command: `throughput HOST ...`, `latency HOST ...`
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
    #[command(flatten)]
    pub many: SeriesArgs,
    #[command(flatten)]
    pub knobs: KnobArgs,
    #[command(flatten)]
    pub screen: ScreenArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}
