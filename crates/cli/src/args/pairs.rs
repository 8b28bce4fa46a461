//! Options of all commands that make many runs.

use std::path::PathBuf;

use clap::Args;
use linerate_tune::TuneError;
use linerate_tune::knob::KnobLimit;

use super::heading;
use super::values::fraction;

/// Options that decide when pairs of runs suffice.
#[derive(Debug, Clone, Args)]
pub struct PairArgs {
    /// Smallest difference that matters: sets how many pairs are needed, and what fails
    #[arg(long, value_name = "SHARE", default_value = "5%", value_parser = fraction, help_heading = heading::SEARCH, env = "LINERATE_EFFECT")]
    pub effect: f64,
    /// Maximum number of pairs, decided or not [default: 100; for each comparison of `tune` 30]
    #[arg(long, value_name = "N", help_heading = heading::SEARCH, env = "LINERATE_MAX_PAIRS")]
    pub max_pairs: Option<usize>,
}

/// Random order of the runs, and the report of a series.
#[derive(Debug, Clone, Args)]
pub struct SeriesArgs {
    /// Seed of the random order [default: a new one, which is printed]
    #[arg(long, value_name = "N", help_heading = heading::SEARCH, env = "LINERATE_SEED")]
    pub seed: Option<u64>,
    /// Write a report (HTML) with the result to FILE
    #[arg(long, value_name = "FILE", help_heading = heading::OUTPUT, env = "LINERATE_HTML")]
    pub html: Option<PathBuf>,
}

/// Knobs beyond options of the measuring command, and permission to change settings of hosts.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = heading::KNOBS)]
pub struct KnobArgs {
    /// File with knobs of your own: `[[knob]]` with name, values (the first is the start), and one
    /// of set = "make flash WND={}", option, stack, sysctl; also restore, memory, least, most,
    /// ordered
    #[arg(long, value_name = "FILE", env = "LINERATE_KNOB_FILE")]
    pub knob_file: Option<PathBuf>,
    /// Limit the range of a knob: rcvbuf=16K..1M, mtu=..9000; repeatable
    #[arg(long, value_name = "KNOB=LEAST..MOST", value_parser = limit, env = "LINERATE_LIMIT", value_delimiter = ';')]
    pub limit: Vec<KnobLimit>,
    /// Also try settings of this host; they are restored at the end
    #[arg(long, env = "LINERATE_TRY_HOST")]
    pub try_host: bool,
    /// Also try settings of these interfaces of this host: MTU, offloads, rings, coalescing, RPS,
    /// XPS
    #[arg(
        long,
        value_name = "IF,...",
        value_delimiter = ',',
        requires = "try_host",
        env = "LINERATE_TRY_INTERFACE"
    )]
    pub try_interface: Vec<String>,
    /// Allow this for the interface of the control connection too, which a bad setting may cut off
    #[arg(long, requires = "try_interface", env = "LINERATE_TOUCH_CONTROL")]
    pub touch_control: bool,
    /// Also try settings of the server's host; its server needs --grant tune and restores them
    #[arg(long, env = "LINERATE_TRY_FAR")]
    pub try_far: bool,
}

fn limit(text: &str) -> Result<KnobLimit, String> {
    text.parse().map_err(|error: TuneError| error.to_string())
}
