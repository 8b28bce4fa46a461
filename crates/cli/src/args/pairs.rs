//! What all commands that make many runs have in common.

use std::path::PathBuf;

use clap::Args;
use linerate_tune::TuneError;
use linerate_tune::knob::Limit;

use super::values::fraction;

/// When pairs are decided.
#[derive(Debug, Clone, Args)]
pub struct PairArgs {
    /// The smallest difference that matters: decides how many pairs it takes, and what fails
    #[arg(long, value_name = "SHARE", default_value = "5%", value_parser = fraction, env = "LINERATE_EFFECT")]
    pub effect: f64,
    /// No more than N pairs, decided or not [default: 100; for each question of `tune` 30]
    #[arg(long, value_name = "N", env = "LINERATE_MAX_PAIRS")]
    pub max_pairs: Option<usize>,
}

/// The random order, and where a page of it goes.
#[derive(Debug, Clone, Args)]
pub struct ManyArgs {
    /// Seed of the random order; without it a new one, which is told
    #[arg(long, value_name = "N", env = "LINERATE_SEED")]
    pub seed: Option<u64>,
    /// Write a page with the result to FILE
    #[arg(
        long,
        value_name = "FILE",
        help_heading = "Output",
        env = "LINERATE_HTML"
    )]
    pub html: Option<PathBuf>,
}

/// Knobs beyond options of the measuring command, and what may be turned.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Knobs")]
pub struct KnobArgs {
    /// Knobs of your own: a file with `[[knob]]` name, values (the first is the start), and set = "make flash
    /// WND={}", option, stack or sysctl; also restore, memory, least, most, ordered
    #[arg(long, value_name = "FILE", env = "LINERATE_KNOB_FILE")]
    pub knob_file: Option<PathBuf>,
    /// Turn a knob no further: rcvbuf=16K..1M, mtu=..9000; repeatable
    #[arg(long, value_name = "KNOB=LEAST..MOST", value_parser = limit, env = "LINERATE_LIMIT", value_delimiter = ';')]
    pub limit: Vec<Limit>,
    /// Turn settings of this host as well; they go back at the end
    #[arg(long, env = "LINERATE_TRY_HOST")]
    pub try_host: bool,
    /// Turn settings of these interfaces of this host as well: MTU, offloads, rings, coalescing, RPS, XPS
    #[arg(
        long,
        value_name = "IF,...",
        value_delimiter = ',',
        requires = "try_host",
        env = "LINERATE_TRY_INTERFACE"
    )]
    pub try_interface: Vec<String>,
    /// Even where such an interface carries the control connection, which a bad setting may cut
    #[arg(long, requires = "try_interface", env = "LINERATE_TOUCH_CONTROL")]
    pub touch_control: bool,
    /// Turn settings of the far host as well; its server needs --grant tune, and sets them back
    #[arg(long, env = "LINERATE_TRY_FAR")]
    pub try_far: bool,
}

fn limit(text: &str) -> Result<Limit, String> {
    text.parse().map_err(|error: TuneError| error.to_string())
}
