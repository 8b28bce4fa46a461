//! Options of `linerate capacity`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::frames::{FrameArgs, PortArgs, VALUES};
use super::values::{duration, fraction};
use super::{OutputArgs, ScreenArgs};

/// A test of RFC 2544.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Test {
    /// The highest rates with no more than --loss (section 26.1)
    Throughput,
    /// Delay at shares of the throughput (section 26.2)
    Latency,
    /// Loss at 100 %, 90 %, … of the highest rate (section 26.3)
    FrameLoss,
    /// The longest burst without loss (section 26.4)
    BackToBack,
}

/// `0,0.1%`.
fn goals(text: &str) -> Result<f64, String> {
    let goal = fraction(text)?;
    match (0.0..1.0).contains(&goal) {
        true => Ok(goal),
        false => Err(format!(
            "`{text}` is no share of frames: write 0, 0.1% or 0.001"
        )),
    }
}

/// `10,50,90%`: a bare number is a percentage, as the last of a list says it.
fn shares(text: &str) -> Result<f64, String> {
    let number: f64 = text
        .trim_end_matches('%')
        .parse()
        .map_err(|_| format!("`{text}` is no share: write 10,50,90%"))?;
    match number > 0.0 && number <= 100.0 {
        true => Ok(number / 100.0),
        false => Err(format!("`{text}` is not within 0 and 100 %")),
    }
}

fn resolution(text: &str) -> Result<f64, String> {
    let share = fraction(text)?;
    match (0.0001..=0.5).contains(&share) {
        true => Ok(share),
        false => Err(format!("`{text}` is not within 0.01% and 50%")),
    }
}

/// Measure what a device can carry.
#[derive(Debug, Clone, Args)]
#[command(after_help = format!("{VALUES}\n\n{EXAMPLES}"))]
pub struct CapacityArgs {
    #[command(flatten)]
    pub ports: PortArgs,
    /// Shares of the frames that may be lost: 0 finds the NDR (RFC 2544's throughput), more a PDR
    #[arg(long, value_name = "SHARE", value_delimiter = ',', default_value = "0", value_parser = goals, env = "LINERATE_LOSS")]
    pub loss: Vec<f64>,
    /// Length of the trials that decide; RFC 2544 asks for 60s
    #[arg(long, value_name = "TIME", default_value = "5", value_parser = duration, env = "LINERATE_TRIAL")]
    pub trial: Duration,
    /// Length of the first, short trials [default: a twentieth of --trial]
    #[arg(long, value_name = "TIME", value_parser = duration, env = "LINERATE_FIRST_TRIAL")]
    pub first_trial: Option<Duration>,
    /// How close bounds have to come, as a share of the rate
    #[arg(long, value_name = "SHARE", default_value = "0.5%", value_parser = resolution, env = "LINERATE_RESOLUTION")]
    pub resolution: f64,
    /// Shares of the throughput at which delay is measured
    #[arg(long, value_name = "SHARE", value_delimiter = ',', default_value = "10,50,90%", value_parser = shares, env = "LINERATE_LATENCY_AT")]
    pub latency_at: Vec<f64>,
    /// Sizes with check sequence, and imix [default: that of the template file, else
    /// 64,128,256,512,1024,1280,1518,imix, those too short for the headers as short as they fit]
    #[arg(
        long,
        value_name = "SIZE",
        value_delimiter = ',',
        env = "LINERATE_SIZES"
    )]
    pub sizes: Vec<String>,
    /// Tests beside throughput, which the others stand on
    #[arg(
        long,
        value_name = "TEST",
        value_delimiter = ',',
        default_value = "throughput,latency",
        env = "LINERATE_TESTS"
    )]
    pub tests: Vec<Test>,
    /// How often a load may fail before it counts as failed
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10), env = "LINERATE_TRIES")]
    pub tries: u32,
    /// Trials of the search of a size at most, those included that find the highest rate without
    /// --line-rate; trials of the other --tests come on top
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000), env = "LINERATE_TRIALS")]
    pub trials: u32,
    /// Searches for the longest burst, which are averaged
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000), env = "LINERATE_BURST_SEARCHES")]
    pub burst_searches: u32,
    /// How long late frames are waited for after a trial
    #[arg(long, value_name = "TIME", default_value = "2", value_parser = duration, env = "LINERATE_DRAIN")]
    pub drain: Duration,
    #[command(flatten)]
    pub frames: FrameArgs,
    /// End with exit code 3 if a finding says that something slowed a trial that decides down (kind `cause`)
    #[arg(long, env = "LINERATE_FAIL_ON_FINDING")]
    pub fail_on_finding: bool,
    /// Write a page with all figures and charts to FILE
    #[arg(long, value_name = "FILE", env = "LINERATE_HTML")]
    pub html: Option<PathBuf>,
    /// A name for the record, which `linerate runs` shows and finds
    #[arg(
        long,
        value_name = "TEXT",
        help_heading = "Output",
        env = "LINERATE_LABEL"
    )]
    pub label: Option<String>,
    /// A screen meanwhile
    #[command(flatten)]
    pub screen: ScreenArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

const EXAMPLES: &str = "\
Examples:
  linerate capacity --dev packet:eth0 --dev packet:eth1 --learn
  linerate capacity --dev xdp:eth0 --dev xdp:eth1 --loss 0,0.1% --trial 60s --line-rate 10G
  linerate capacity --dev packet:eth0 --dev packet:eth1 --sizes 64,imix \\
      --tests throughput,latency,frame-loss,back-to-back --trial 1s --drain 200ms";
