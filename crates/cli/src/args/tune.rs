//! `linerate tune`.

use std::time::Duration;

use clap::{Args, ValueEnum};
use linerate_metric::units::ByteSize;

use super::values::duration;
use super::{KnobArgs, ManyArgs, OutputArgs, PairArgs, ScreenArgs};

/// What is to get better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Goal {
    /// Payload per second
    Goodput,
    /// The median round trip
    P50,
    /// The round trip that 99 of 100 stay within
    P99,
    /// Datagrams per second; needs -u
    Pps,
    /// Processor time for what is moved
    Cpu,
}

impl Goal {
    /// The figure that tells it.
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

/// The most that a setting may take.
#[derive(Clone, Copy, Debug)]
pub struct Under {
    /// Bytes of buffers at both ends.
    pub memory_bytes: u64,
}

fn under(text: &str) -> Result<Under, String> {
    let size = text
        .strip_prefix("memory=")
        .ok_or("only memory can be limited: write memory=64K")?;
    let size: ByteSize = size
        .parse()
        .map_err(|error: linerate_metric::units::UnitError| error.to_string())?;
    Ok(Under {
        memory_bytes: size.0,
    })
}

/// `linerate tune`.
#[derive(Debug, Args)]
#[command(after_help = after_help())]
pub struct TuneArgs {
    /// The far end, where `linerate server` runs
    #[arg(required_unless_present_any = ["restore", "experiment"], env = "LINERATE_HOST")]
    pub host: Option<String>,
    /// Search the knobs of an experiment (`linerate run`); with HOST it measures to there
    #[arg(long, value_name = "FILE|NAME", conflicts_with_all = ["port", "udp", "time", "try_host", "try_far"], env = "LINERATE_EXPERIMENT")]
    pub experiment: Option<String>,
    /// What is to get better
    #[arg(
        long,
        value_name = "GOAL",
        default_value = "goodput",
        env = "LINERATE_GOAL"
    )]
    pub goal: Goal,
    /// Settings that take more are not chosen: memory=64K, the socket buffers of both ends together
    #[arg(long, value_name = "LIMIT", value_parser = under, env = "LINERATE_UNDER")]
    pub under: Option<Under>,
    /// Turn these knobs alone, those of the list below and your own
    #[arg(
        long = "knobs",
        value_name = "LIST",
        value_delimiter = ',',
        env = "LINERATE_KNOBS"
    )]
    pub only: Vec<String>,
    /// What may be turned
    #[command(flatten)]
    pub knobs: KnobArgs,
    /// Its port [default: 5201]
    #[arg(short, long, env = "LINERATE_PORT")]
    pub port: Option<u16>,
    /// UDP instead of TCP
    #[arg(short, long, env = "LINERATE_UDP")]
    pub udp: bool,
    /// Time of each run
    #[arg(short, long, value_name = "TIME", default_value = "500ms", value_parser = duration, env = "LINERATE_TIME")]
    pub time: Duration,
    /// Runs of the search at most. What it finds is then asked of in pairs of two runs each: every change
    /// whether it matters, and all together against the start, --max-pairs (30) of each at most
    #[arg(long, value_name = "N", default_value_t = 100, env = "LINERATE_RUNS")]
    pub runs: usize,
    /// When pairs are decided
    #[command(flatten)]
    pub until: PairArgs,
    /// Order and page
    #[command(flatten)]
    pub many: ManyArgs,
    /// Leave settings of hosts as they were found best
    #[arg(long, env = "LINERATE_KEEP")]
    pub keep: bool,
    /// Set back what a killed `tune` left, and do nothing else
    #[arg(long, conflicts_with_all = ["only", "knob_file", "under", "keep", "try_host", "try_far"], env = "LINERATE_RESTORE")]
    pub restore: bool,
    /// A screen meanwhile
    #[command(flatten)]
    pub screen: ScreenArgs,
    /// Where results go
    #[command(flatten)]
    pub output: OutputArgs,
    /// Options of every run
    #[arg(last = true, value_name = "OPTIONS")]
    pub options: Vec<String>,
}

const AFTER_HELP: &str = "\
Examples (start `linerate server` in another terminal first):
  linerate tune 127.0.0.1 --goal goodput                what makes TCP faster, with proof
  linerate tune 127.0.0.1 --goal p50 -u                 what makes UDP round trips shorter
  linerate tune 127.0.0.1 --goal goodput --under memory=64K      the best within 64 KiB of buffers
  linerate tune 127.0.0.1 --knobs wait,cpu -- -l 1024   these knobs alone; -l for every run
  linerate tune HOST --goal goodput --try-host          settings of this host, too; they go back
  linerate tune HOST --try-host --try-interface eth1    and of this interface
  linerate tune HOST --try-far                          and of the far host (its server: --grant tune)
  linerate tune 10.0.0.2 -- --dev packet:eth0 --ip 10.0.0.3/24   sizes of our own stack
  linerate tune --experiment mine.toml --goal p50       the knobs of an experiment, each from its first value
  linerate tune --restore                               after kill -9: sets everything back

It measures once, and first turns the knobs that the findings of this run point at. Options of the
measurement are knobs everywhere. Settings of hosts are knobs inside a lab (`lab exec`), and with --try-host; each
old value is written to a journal before, and set back at the end, however it ends. So are knobs of your own: by
their `restore` command, or by the command with their first value.
A change is kept only if the result is worse without it, by more than noise.

Knobs:
";

/// Examples, and every knob that comes along.
fn after_help() -> String {
    let mut text = AFTER_HELP.to_owned();
    let mut line = String::new();
    for name in linerate_tune::knob::names() {
        if line.len() + name.len() > 90 {
            text.push_str(&format!("  {line},\n"));
            line.clear();
        }
        let comma = if line.is_empty() { "" } else { ", " };
        line.push_str(&format!("{comma}{name}"));
    }
    text.push_str(&format!("  {line}"));
    text
}
