//! Options of `linerate generate`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use linerate_metric::expect::{ExpectError, Expectation};
use linerate_metric::generate::Load;
use linerate_metric::plan::Kind;
use linerate_port::PortUrl;

use super::frames::{FrameArgs, PortArgs, VALUES, port};
use super::values::{count, duration};
use super::{OutputArgs, ScreenArgs};

/// A number of frames, at least one.
fn some(text: &str) -> Result<u64, String> {
    match count(text)? {
        0 => Err("sends nothing: leave it out to send until --time is over".to_owned()),
        frames => Ok(frames),
    }
}

/// `10k`: frames in a second, at least one.
fn frames_per_second(text: &str) -> Result<Load, String> {
    if let Some((rate, burst)) = text.split_once('/') {
        return Err(format!("write --pps {rate} --burst {burst}"));
    }
    match count(text.strip_suffix("pps").unwrap_or(text))? {
        0 => Err("nothing would be sent: give 1 or more".to_owned()),
        frames => Ok(Load::Frames(frames as f64)),
    }
}

/// A threshold on a figure that a generating run has.
fn expectation(text: &str) -> Result<Expectation, ExpectError> {
    Expectation::of_kind(text, Kind::Generate)
}

/// Options that say what made frames are: those of a capture are as they were captured.
const MADE: [&str; 13] = [
    "template",
    "size",
    "flows",
    "content",
    "source_mac",
    "destination_mac",
    "vlan",
    "source",
    "destination",
    "transport",
    "source_port",
    "destination_port",
    "learn",
];

/// Generate frames.
#[derive(Debug, Clone, Args)]
#[command(after_help = format!("{VALUES}\n\n{EXAMPLES}"))]
pub struct GenerateArgs {
    #[command(flatten)]
    pub ports: PortArgs,
    /// The port that receives, where it is not the second --dev
    #[arg(long, value_name = "URL", value_parser = port, env = "LINERATE_RECEIVE", help_heading = "Ports")]
    pub receive: Option<PortUrl>,
    /// Receive nothing
    #[arg(
        long,
        env = "LINERATE_NO_RECEIVE",
        conflicts_with = "receive",
        help_heading = "Ports"
    )]
    pub no_receive: bool,
    /// 10kpps, l2:1G (frames), l1:1G (frames, preambles and gaps), 50% (of the line) or max
    #[arg(
        short = 'r',
        long,
        value_name = "LOAD",
        default_value = "1kpps",
        env = "LINERATE_RATE"
    )]
    pub rate: Load,
    /// The same in frames per second: 10k
    #[arg(long, value_name = "N", value_parser = frames_per_second, conflicts_with = "rate", env = "LINERATE_PPS")]
    pub pps: Option<Load>,
    /// Seconds to send (also 500ms, 2m) [default: 10, unless --count is given]
    #[arg(short, long, value_name = "TIME", value_parser = duration, env = "LINERATE_TIME")]
    pub time: Option<Duration>,
    /// Frames to send
    #[arg(short = 'n', long, value_name = "N", value_parser = some, env = "LINERATE_COUNT")]
    pub count: Option<u64>,
    /// Frames that leave at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000), env = "LINERATE_BURST")]
    pub burst: u32,
    /// How long late frames are waited for
    #[arg(long, value_name = "TIME", default_value = "2", value_parser = duration, env = "LINERATE_DRAIN")]
    pub drain: Duration,
    /// Time between interval lines; 0 for none
    #[arg(short, long, value_name = "TIME", default_value = "1", value_parser = duration, env = "LINERATE_INTERVAL")]
    pub interval: Duration,
    /// Sizes with check sequence: 64, 64,512,1518, 64-1518+2, draw:64-1518, imix or 64:7,594:4,1518:1
    /// [default: 64, or the least for the headers]
    #[arg(
        short = 'l',
        long,
        value_name = "SIZE",
        env = "LINERATE_SIZE",
        help_heading = "Frames"
    )]
    pub size: Option<String>,
    #[command(flatten)]
    pub frames: FrameArgs,
    /// Send the frames of a capture instead, again and again
    #[arg(long, value_name = "FILE", env = "LINERATE_PCAP", conflicts_with_all = MADE, help_heading = "Frames")]
    pub pcap: Option<PathBuf>,
    /// At the times at which they were captured
    #[arg(
        long,
        requires = "pcap",
        conflicts_with_all = ["rate", "pps", "burst"],
        env = "LINERATE_RECORDED_TIMES",
        help_heading = "Frames"
    )]
    pub recorded_times: bool,
    /// End with exit code 3 unless this holds ('loss<0.1%', 'pps>10k'); repeatable
    #[arg(
        long,
        value_name = "FIGURE<VALUE",
        value_parser = expectation,
        env = "LINERATE_EXPECT",
        value_delimiter = ';'
    )]
    pub expect: Vec<Expectation>,
    /// End with exit code 3 if a finding says that something slowed the run down (kind `cause`)
    #[arg(long, env = "LINERATE_FAIL_ON_FINDING")]
    pub fail_on_finding: bool,
    /// Write a page with all figures to FILE
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
  linerate generate --dev packet:eth0 --dev packet:eth1 --rate 10kpps
  linerate generate --dev xdp:eth0 --receive xdp:eth1 --size imix --rate 50% --line-rate 1G
  linerate generate --dev packet:eth0 --no-receive --destination 198.18.1.1-198.18.1.16 --rate max
  linerate generate --dev packet:eth0 --dev packet:eth1 --pps 10k --source 2001:2::1 --count 1000
  linerate generate --dev ring:0 --rate max --time 1     no privilege: what the generator can do";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_per_second_are_counts() {
        for (text, want) in [("1", 1.0), ("10k", 10_000.0), ("2Mpps", 2e6)] {
            assert_eq!(frames_per_second(text), Ok(Load::Frames(want)), "{text}");
        }
        for (text, next) in [
            ("0", "1 or more"),
            ("", "missing"),
            ("50%", "%"),
            ("10k/16", "write --pps 10k --burst 16"),
        ] {
            let refused = frames_per_second(text).unwrap_err();
            assert!(refused.contains(next), "{text}: {refused}");
        }
    }
}
