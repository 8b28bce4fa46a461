//! Options of `linerate capacity`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::frames::{FRAME_VALUES_HELP, FrameArgs, PortArgs};
use super::heading;
use super::values::{duration, fraction};
use super::{OutputArgs, ScreenArgs};

/// Tests of RFC 2544.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Rfc2544Test {
    /// Highest rates with a loss of at most --loss (section 26.1)
    Throughput,
    /// Delay at fractions of the throughput (section 26.2)
    Latency,
    /// Loss at 100 %, 90 %, … of the highest rate (section 26.3)
    FrameLoss,
    /// Longest burst without loss (section 26.4)
    BackToBack,
}

/// Parses an accepted frame loss: `0`, `0.1%` or `0.001`.
fn loss_goal(text: &str) -> Result<f64, String> {
    let goal = fraction(text)?;
    match (0.0..1.0).contains(&goal) {
        true => Ok(goal),
        false => Err(format!(
            "`{text}` is not a fraction of frames: write 0, 0.1% or 0.001"
        )),
    }
}

/// Parses a percentage of the throughput. The sign may be missing, because a list has it once:
/// `10,50,90%`.
fn percentage(text: &str) -> Result<f64, String> {
    let number: f64 = text
        .trim_end_matches('%')
        .parse()
        .map_err(|_| format!("`{text}` is not a percentage: write 10,50,90%"))?;
    match number > 0.0 && number <= 100.0 {
        true => Ok(number / 100.0),
        false => Err(format!("`{text}` is not between 0 and 100 %")),
    }
}

fn resolution(text: &str) -> Result<f64, String> {
    let share = fraction(text)?;
    match (0.0001..=0.5).contains(&share) {
        true => Ok(share),
        false => Err(format!("`{text}` is not between 0.01% and 50%")),
    }
}

/// `linerate capacity`.
#[derive(Debug, Clone, Args)]
#[command(after_help = format!("{FRAME_VALUES_HELP}\n\n{EXAMPLES}"))]
pub struct CapacityArgs {
    /// Accepted frame loss: 0 finds the NDR (throughput of RFC 2544), more than 0 a PDR
    #[arg(long, value_name = "SHARE", value_delimiter = ',', default_value = "0", value_parser = loss_goal, env = "LINERATE_LOSS")]
    pub loss: Vec<f64>,
    /// Time of each trial that decides; RFC 2544 requires 60s
    #[arg(long, value_name = "TIME", default_value = "5", value_parser = duration, env = "LINERATE_TRIAL")]
    pub trial: Duration,
    /// Time of the first, short trials [default: a twentieth of --trial]
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = heading::SEARCH, env = "LINERATE_FIRST_TRIAL")]
    pub first_trial: Option<Duration>,
    /// Width of the interval that ends the search, as a fraction of the rate
    #[arg(long, value_name = "SHARE", default_value = "0.5%", value_parser = resolution, help_heading = heading::SEARCH, env = "LINERATE_RESOLUTION")]
    pub resolution: f64,
    /// Fractions of the throughput at which delay is measured
    #[arg(long, value_name = "SHARE", value_delimiter = ',', default_value = "10,50,90%", value_parser = percentage, env = "LINERATE_LATENCY_AT")]
    pub latency_at: Vec<f64>,
    /// Frame sizes including the FCS, and imix [default: that of the template file, else
    /// 64,128,256,512,1024,1280,1518,imix; sizes too short for the headers are raised to the
    /// shortest that fits]
    #[arg(
        long,
        value_name = "SIZE",
        value_delimiter = ',',
        env = "LINERATE_SIZES"
    )]
    pub sizes: Vec<String>,
    /// Tests to run; throughput always runs, because the others are based on it
    #[arg(
        long,
        value_name = "TEST",
        value_delimiter = ',',
        default_value = "throughput,latency",
        env = "LINERATE_TESTS"
    )]
    pub tests: Vec<Rfc2544Test>,
    /// Failed trials at a load that make the load fail
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10), help_heading = heading::SEARCH, env = "LINERATE_TRIES")]
    pub tries: u32,
    /// Maximum number of trials in the search of a size, including those that find the highest rate
    /// when --line-rate is not given; trials of other --tests are not counted
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000), help_heading = heading::SEARCH, env = "LINERATE_TRIALS")]
    pub trials: u32,
    /// Number of searches for the longest burst, which are averaged
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000), help_heading = heading::SEARCH, env = "LINERATE_BURST_SEARCHES")]
    pub burst_searches: u32,
    /// Time to wait for late frames after a trial
    #[arg(long, value_name = "TIME", default_value = "2", value_parser = duration, help_heading = heading::SEARCH, env = "LINERATE_DRAIN")]
    pub drain: Duration,
    #[command(flatten)]
    pub ports: PortArgs,
    #[command(flatten)]
    pub frames: FrameArgs,
    /// End with exit code 3 if a deciding trial has a finding of kind `cause`
    #[arg(long, help_heading = heading::CHECKS, env = "LINERATE_FAIL_ON_FINDING")]
    pub fail_on_finding: bool,
    /// Write a report (HTML) with all figures and charts to FILE
    #[arg(long, value_name = "FILE", help_heading = heading::OUTPUT, env = "LINERATE_HTML")]
    pub html: Option<PathBuf>,
    /// Label of the record, for `linerate runs`
    #[arg(long, value_name = "TEXT", help_heading = heading::OUTPUT, env = "LINERATE_LABEL")]
    pub label: Option<String>,
    #[command(flatten)]
    pub screen: ScreenArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

const EXAMPLES: &str = "\
Examples:
  linerate capacity --dev packet:eth0 --dev packet:eth1 --learn
  linerate capacity --dev xdp:eth0 --dev xdp:eth1 --loss 0,0.1% --trial 60s --line-rate 10G
  linerate capacity --dev packet:eth0 --dev packet:eth1 --sizes 64,imix --trial 1s
  linerate capacity --dev packet:eth0 --dev packet:eth1 --tests frame-loss,back-to-back";
