//! `linerate tune`.

use std::convert::Infallible;
use std::time::Duration;

use clap::{Args, ValueEnum};
use linerate_stats::units::ByteSize;

use super::values::duration;
use super::{KnobArgs, OutputArgs, PairArgs, ScreenArgs, SeriesArgs, heading};

/// Metrics that tuning can optimise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TuneGoal {
    /// Payload per second
    Goodput,
    /// Median round-trip time
    P50,
    /// 99th percentile of the round-trip time
    P99,
    /// Datagrams per second; needs -u
    Pps,
    /// CPU time for the same amount of work
    Cpu,
}

impl TuneGoal {
    /// Returns the name of the figure.
    pub fn figure(self) -> &'static str {
        match self {
            Self::Goodput => "goodput",
            Self::P50 => "p50",
            Self::P99 => "p99",
            Self::Pps => "pps",
            Self::Cpu => "cpu",
        }
    }
}

/// Limit on the memory that settings may take.
#[derive(Clone, Copy, Debug)]
pub struct MemoryLimit {
    /// Bytes of buffers at both ends.
    pub memory_bytes: u64,
}

fn memory_limit(text: &str) -> Result<MemoryLimit, String> {
    let size = text
        .strip_prefix("memory=")
        .ok_or("only memory can be limited: write memory=64K")?;
    let size: ByteSize = size
        .parse()
        .map_err(|error: linerate_stats::units::UnitError| error.to_string())?;
    Ok(MemoryLimit {
        memory_bytes: size.0,
    })
}

fn knob_name(text: &str) -> Result<String, Infallible> {
    Ok(linerate_tune::knob::present_name(text))
}

/// `linerate tune`.
#[derive(Debug, Args)]
#[command(after_help = after_help())]
#[command(group(clap::ArgGroup::new("subject").required(true).multiple(true).args(["host", "experiment", "restore"])))]
pub struct TuneArgs {
    /// Server to measure to: a host where `linerate server` runs
    #[arg(env = "LINERATE_HOST")]
    pub host: Option<String>,
    /// Options for every run
    #[arg(last = true, value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Search the knobs of an experiment (`linerate run`); with HOST, measure to that host
    #[arg(long, value_name = "FILE|NAME", conflicts_with_all = ["port", "udp", "time", "try_host", "try_far"], env = "LINERATE_EXPERIMENT")]
    pub experiment: Option<String>,
    /// Metric to optimise
    #[arg(
        long,
        value_name = "GOAL",
        default_value = "goodput",
        env = "LINERATE_GOAL"
    )]
    pub goal: TuneGoal,
    /// Port of the server [default: 5201]
    #[arg(short, long, env = "LINERATE_PORT")]
    pub port: Option<u16>,
    /// Use UDP instead of TCP
    #[arg(short, long, env = "LINERATE_UDP")]
    pub udp: bool,
    /// Time of each run
    #[arg(short, long, value_name = "TIME", default_value = "500ms", value_parser = duration, env = "LINERATE_TIME")]
    pub time: Duration,
    /// Keep the best settings of hosts instead of restoring the old ones
    #[arg(long, env = "LINERATE_KEEP")]
    pub keep: bool,
    /// Restore the settings that a killed `tune` left changed, and exit
    #[arg(long, conflicts_with_all = ["only", "knob_file", "under", "keep", "try_host", "try_far"], env = "LINERATE_RESTORE")]
    pub restore: bool,
    /// Maximum memory of the socket buffers of both ends together: memory=64K
    #[arg(long, value_name = "LIMIT", value_parser = memory_limit, help_heading = heading::KNOBS, env = "LINERATE_UNDER")]
    pub under: Option<MemoryLimit>,
    /// Try only these knobs: names of the list below, or of --knob-file
    #[arg(
        long = "knobs",
        value_name = "LIST",
        value_parser = knob_name,
        value_delimiter = ',',
        help_heading = heading::KNOBS,
        env = "LINERATE_KNOBS"
    )]
    pub only: Vec<String>,
    #[command(flatten)]
    pub knobs: KnobArgs,
    /// Maximum number of runs of the search. Its result is then verified in pairs of two runs: each
    /// change alone, and all changes against the baseline, with at most --max-pairs (30) each
    #[arg(long, value_name = "N", default_value_t = 100, help_heading = heading::SEARCH, env = "LINERATE_RUNS")]
    pub runs: usize,
    #[command(flatten)]
    pub pairs_until: PairArgs,
    #[command(flatten)]
    pub many: SeriesArgs,
    #[command(flatten)]
    pub screen: ScreenArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

const AFTER_HELP: &str = "\
Examples (start `linerate server` in another terminal first):
  linerate tune 127.0.0.1 --goal goodput                faster TCP, verified
  linerate tune 127.0.0.1 --goal p50 -u                 shorter UDP round trips
  linerate tune 127.0.0.1 --goal goodput --under memory=64K      the best within 64 KiB of buffers
  linerate tune 127.0.0.1 --knobs wait,cpu -- -l 1024   only these knobs; -l for every run
  linerate tune HOST --goal goodput --try-host          also settings of this host
  linerate tune HOST --try-host --try-interface eth1    also settings of this interface
  linerate tune HOST --try-far                          also of the server's host (--grant tune)
  linerate tune 10.0.0.2 -- --dev packet:eth0 --ip 10.0.0.3/24   sizes of the user-space stack
  linerate tune --experiment mine.toml --goal p50       knobs of an experiment
  linerate tune --restore                               restore all settings after kill -9

The first run is explained, and the knobs that its findings point at are tried first. Options of the
measurement are always knobs. Settings of hosts are knobs inside a lab (`lab exec`), and with --try-host. Old
values are written to a journal first and restored at the end, however the command ends. Knobs of your own
are restored by their `restore` command, or by the command with their first value.
A change is kept only if the result is worse without it by more than noise.

Knobs: ";

/// Returns the notes of the help: examples, and the list of knobs.
fn after_help() -> String {
    let names = linerate_tune::knob::knob_names().join(", ");
    format!("{AFTER_HELP}{names}.")
}
