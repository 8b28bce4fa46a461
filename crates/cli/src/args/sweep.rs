//! `linerate sweep`.

use clap::Args;
use linerate_tune::over::Over;

use super::{KnobArgs, ManyArgs, OutputArgs, ScreenArgs};

fn over(text: &str) -> Result<Over, String> {
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
  linerate sweep --resume 20261121T144042Z-3f9a1c       goes on where a crash or Ctrl-C ended it
  linerate sweep --over window --over mtu=1500,9000 --knob-file mine.toml throughput 10.77.0.2

NAME is the long name of any option of the measuring command, a knob of your own, or one of `linerate tune`.
Values are a list, or FROM..TO with a step: :x2 doubles, :+8K adds; a switch takes off and on; default leaves the
option out. A knob without =VALUES takes all that it has. Settings of hosts need a lab, or --try-host; they go
back at the end, and after kill -9 with `linerate tune --restore`.")]
pub struct SweepArgs {
    /// What to vary, over which values; repeatable: every combination is measured
    #[arg(long, value_name = "NAME[=VALUES]", value_parser = over, env = "LINERATE_OVER", value_delimiter = ';')]
    pub over: Vec<Over>,
    /// How often each point is measured; every point has one run before any has two
    #[arg(long, value_name = "N", default_value_t = 3, env = "LINERATE_REPEATS")]
    pub repeats: u32,
    /// The figure: goodput, p50, p99, pps, cpu, ... [default: goodput, or p50 of round trips]
    #[arg(long, value_name = "FIGURE", env = "LINERATE_FIGURE")]
    pub figure: Option<String>,
    /// Go on with a sweep that was ended: its id, or the file of its journal
    #[arg(long, value_name = "ID|FILE", conflicts_with_all = ["over", "figure", "repeats", "seed", "command"], env = "LINERATE_RESUME")]
    pub resume: Option<String>,
    /// Order and page
    #[command(flatten)]
    pub many: ManyArgs,
    /// What may be turned
    #[command(flatten)]
    pub knobs: KnobArgs,
    /// A screen meanwhile
    #[command(flatten)]
    pub screen: ScreenArgs,
    /// Where results go
    #[command(flatten)]
    pub output: OutputArgs,
    /// What measures: `throughput HOST ...`, `latency HOST ...`
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}
