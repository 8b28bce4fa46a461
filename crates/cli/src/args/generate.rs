//! Options of `linerate generate`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use linerate_port::PortUrl;
use linerate_record::expect::{ExpectError, Expectation};
use linerate_record::generate::IntendedLoad;
use linerate_record::plan::RunKind;

use super::frames::{FRAME_VALUES_HELP, FrameArgs, PortArgs, port};
use super::values::{count, duration};
use super::{OutputArgs, ScreenArgs, heading};

/// Parses a number of frames of at least one.
fn nonzero_count(text: &str) -> Result<u64, String> {
    match count(text)? {
        0 => Err("0 frames send nothing: leave --count out to send until --time ends".to_owned()),
        frames => Ok(frames),
    }
}

/// Parses a rate in frames per second of at least one: `10k`.
fn frames_per_second(text: &str) -> Result<IntendedLoad, String> {
    if let Some((rate, burst)) = text.split_once('/') {
        return Err(format!("write --pps {rate} --burst {burst}"));
    }
    match count(text.strip_suffix("pps").unwrap_or(text))? {
        0 => Err("0 frames per second send nothing: give 1 or more".to_owned()),
        frames => Ok(IntendedLoad::FrameRate(frames as f64)),
    }
}

/// Parses a threshold on a figure of a generator run.
fn expectation(text: &str) -> Result<Expectation, ExpectError> {
    Expectation::of_kind(text, RunKind::Generate)
}

/// Options that describe generated frames; they conflict with --pcap.
const FRAME_OPTIONS: [&str; 13] = [
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

/// `linerate generate`.
#[derive(Debug, Clone, Args)]
#[command(after_help = format!("{FRAME_VALUES_HELP}\n\n{EXAMPLES}"))]
pub struct GenerateArgs {
    /// Rate: 10kpps, l2:1G (frames), l1:1G (frames, preambles and gaps), 50% (of the line rate) or
    /// max
    #[arg(
        short = 'r',
        long,
        value_name = "LOAD",
        default_value = "1kpps",
        env = "LINERATE_RATE"
    )]
    pub rate: IntendedLoad,
    /// Rate in frames per second: 10k
    #[arg(long, value_name = "N", value_parser = frames_per_second, conflicts_with = "rate", env = "LINERATE_PPS")]
    pub pps: Option<IntendedLoad>,
    /// Time to send (5, 500ms, 2m) [default: 10, unless --count is given]
    #[arg(short, long, value_name = "TIME", value_parser = duration, env = "LINERATE_TIME")]
    pub time: Option<Duration>,
    /// Number of frames to send
    #[arg(short = 'n', long, value_name = "N", value_parser = nonzero_count, env = "LINERATE_COUNT")]
    pub count: Option<u64>,
    /// Frames sent back to back
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000), help_heading = heading::LOAD, env = "LINERATE_BURST")]
    pub burst: u32,
    /// Time to wait for late frames
    #[arg(long, value_name = "TIME", default_value = "2", value_parser = duration, env = "LINERATE_DRAIN")]
    pub drain: Duration,
    /// Time between interval lines; 0 prints none
    #[arg(short, long, value_name = "TIME", default_value = "1", value_parser = duration, env = "LINERATE_INTERVAL")]
    pub interval: Duration,
    /// Frame sizes including the FCS: 64, 64,512,1518, 64-1518+2, draw:64-1518, imix or
    /// 64:7,594:4,1518:1 [default: 64, or the shortest that holds the headers]
    #[arg(short = 'l', long, value_name = "SIZE", env = "LINERATE_SIZE", help_heading = heading::FRAMES)]
    pub size: Option<String>,
    #[command(flatten)]
    pub ports: PortArgs,
    /// Port that receives [default: the second --dev]
    #[arg(long, value_name = "URL", value_parser = port, env = "LINERATE_RECEIVE", help_heading = heading::PORTS)]
    pub receive: Option<PortUrl>,
    /// Do not receive
    #[arg(long, env = "LINERATE_NO_RECEIVE", conflicts_with = "receive", help_heading = heading::PORTS)]
    pub no_receive: bool,
    #[command(flatten)]
    pub frames: FrameArgs,
    /// Send the frames of a capture file instead, repeatedly
    #[arg(long, value_name = "FILE", env = "LINERATE_PCAP", conflicts_with_all = FRAME_OPTIONS, help_heading = heading::FRAMES)]
    pub pcap: Option<PathBuf>,
    /// Send captured frames with their recorded timing
    #[arg(
        long,
        requires = "pcap",
        conflicts_with_all = ["rate", "pps", "burst"],
        env = "LINERATE_RECORDED_TIMES",
        help_heading = heading::FRAMES
    )]
    pub recorded_times: bool,
    /// End with exit code 3 unless this is true ('loss<0.1%', 'pps>10k'); repeatable
    #[arg(
        long,
        value_name = "FIGURE<VALUE",
        value_parser = expectation,
        help_heading = heading::CHECKS,
        env = "LINERATE_EXPECT",
        value_delimiter = ';'
    )]
    pub expect: Vec<Expectation>,
    /// End with exit code 3 if the run has a finding of kind `cause`
    #[arg(long, help_heading = heading::CHECKS, env = "LINERATE_FAIL_ON_FINDING")]
    pub fail_on_finding: bool,
    /// Write a report (HTML) with all figures to FILE
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
  linerate generate --dev packet:eth0 --dev packet:eth1 --rate 10kpps
  linerate generate --dev xdp:eth0 --receive xdp:eth1 --size imix --rate 50% --line-rate 1G
  linerate generate --dev packet:eth0 --no-receive --destination 198.18.1.1-198.18.1.16 --rate max
  linerate generate --dev packet:eth0 --dev packet:eth1 --pps 10k --source 2001:2::1 --count 1000
  linerate generate --dev ring:0 --rate max --time 1     the generator's limit; no privilege";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_per_second_are_counts() {
        for (text, expected) in [("1", 1.0), ("10k", 10_000.0), ("2Mpps", 2e6)] {
            assert_eq!(
                frames_per_second(text),
                Ok(IntendedLoad::FrameRate(expected)),
                "{text}"
            );
        }
        for (text, next) in [
            ("0", "1 or more"),
            ("", "missing"),
            ("50%", "%"),
            ("10k/16", "write --pps 10k --burst 16"),
        ] {
            let error = frames_per_second(text).unwrap_err();
            assert!(error.contains(next), "{text}: {error}");
        }
    }
}
