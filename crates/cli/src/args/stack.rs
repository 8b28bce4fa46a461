//! Options of our own stack: as a host, and in place of the kernel's.

use std::fmt::Write;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use linerate_measure::AddressRange;
use linerate_measure::stack::services::{SERVICES, ServiceSpec};
use linerate_metric::device_stamps::DeviceStamps;
use linerate_metric::stack::Control;
use linerate_stack::config::KEYS;
use linerate_stack::{Network, PROFILES};

use super::values::duration;
use super::{OutputArgs, ScreenArgs};

/// Where our stack stands, and how it is configured.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Our own stack in place of the kernel's")]
pub struct StackArgs {
    /// The port that it stands on: tap:NAME, shm:NAME, packet:IF, xdp:IF (see `linerate forward --help`)
    #[arg(long, value_name = "URL", requires = "ip", env = "LINERATE_DEV")]
    pub dev: Option<String>,
    /// Its address with the prefix of its network (10.0.0.2/24); repeatable
    #[arg(
        long,
        value_name = "ADDRESS/PREFIX",
        value_parser = network,
        requires = "dev",
        value_delimiter = ',',
        env = "LINERATE_IP"
    )]
    pub ip: Vec<Network>,
    /// Gateway to other networks; one for IPv4, one for IPv6
    #[arg(
        long,
        value_name = "ADDRESS",
        requires = "dev",
        value_delimiter = ',',
        env = "LINERATE_GATEWAY"
    )]
    pub gateway: Vec<IpAddr>,
    /// Configuration to begin with: default, embedded-default or embedded-tuned [default: default]
    #[arg(long, value_name = "NAME", requires = "dev", env = "LINERATE_PROFILE")]
    pub profile: Option<String>,
    /// Change a key of it (tcp.send_buffer=16K); repeatable; `linerate stack --help` lists all
    #[arg(
        long,
        value_name = "KEY=VALUE",
        requires = "dev",
        value_delimiter = ';',
        env = "LINERATE_SET"
    )]
    pub set: Vec<String>,
    /// The same from a file of TOML
    #[arg(long, value_name = "FILE", requires = "dev", env = "LINERATE_CONFIG")]
    pub config: Option<PathBuf>,
}

/// The same for a run with a far end.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Our own stack in place of the kernel's")]
pub struct NearStackArgs {
    #[command(flatten)]
    pub stack: StackArgs,
    /// What the control connection goes over: stack, or kernel where that reaches the host too
    /// [default: stack]
    #[arg(long, value_name = "WAY", requires = "dev", env = "LINERATE_CONTROL")]
    pub control: Option<Control>,
}

fn network(text: &str) -> Result<Network, String> {
    let parsed: Result<Network, _> = text.parse();
    parsed.map_err(|error| error.to_string())
}

/// `linerate stack`.
#[derive(Debug, Clone, Args)]
#[command(after_help = after_help())]
pub struct StackHostArgs {
    #[command(flatten)]
    pub stack: StackArgs,
    /// What it serves beside ping: echo, discard, chargen, sockperf, iperf2, linerate, each with :PORT
    /// where it is another one
    #[arg(
        long,
        value_name = "NAME[:PORT],...",
        value_delimiter = ',',
        default_value = "echo,discard,chargen",
        env = "LINERATE_SERVE"
    )]
    pub serve: Vec<ServiceSpec>,
    /// Write into each UDP answer of echo and sockperf when its question came from the driver and when it went there: two
    /// counts of a clock (16,width=4,order=le,hz=25M) [default: width=8,order=be,hz=1G]
    #[arg(
        long,
        value_name = "OFFSET[,KEY=VALUE]",
        env = "LINERATE_STAMP_PAYLOAD"
    )]
    pub stamp_payload: Option<DeviceStamps>,
    /// Send datagrams to these addresses though they prove nothing (iperf2 -u -R, -d); an address with a connection
    /// within the last minute needs none of this
    #[arg(
        long,
        value_name = "CIDR,...",
        value_delimiter = ',',
        env = "LINERATE_ALLOW"
    )]
    pub allow: Vec<AddressRange>,
    /// How long to serve [default: until Ctrl-C]
    #[arg(short, long, value_name = "TIME", value_parser = duration, env = "LINERATE_TIME")]
    pub time: Option<Duration>,
    /// Time between lines with what was counted; 0 for none
    #[arg(short, long, value_name = "TIME", default_value = "0", value_parser = duration, env = "LINERATE_INTERVAL")]
    pub interval: Duration,
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
    /// Where results go
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Services, profiles and keys, as their tables have them.
fn after_help() -> String {
    let mut text = "\
The first line on standard output tells scripts that it can be reached (READY dev=tap:t0 ...); with
--json that line is on standard error.

Services:\n"
        .to_owned();
    // Writing to a String cannot fail.
    for (name, _, port, about) in SERVICES {
        let _ = writeln!(text, "  {name:<10} port {port:<6} {about}");
    }
    text.push_str("\nProfiles:\n");
    for (name, about, _) in PROFILES {
        let _ = writeln!(text, "  {name:<18} {about}");
    }
    text.push_str("\nKeys of the configuration:\n");
    for key in KEYS {
        let _ = writeln!(text, "  {:<30} {}; {}", key.name, key.about, key.takes);
    }
    text.push_str(
        "\n\
Examples:
  linerate stack --dev tap:t0 --ip 10.0.0.2/24            then: ip address add 10.0.0.1/24 dev t0
                                                          linerate latency 10.0.0.2 -u --peer echo
  linerate stack --dev xdp:eth1 --ip 10.0.0.2/24 --serve echo,iperf2,sockperf
  linerate stack --dev shm:x,role=server --ip 10.0.0.2/24 --profile embedded-tuned
  linerate stack --dev tap:t0 --ip 10.0.0.2/24 --set tcp.send_buffer=1K --set tcp.psh=never
  linerate stack --dev tap:t0 --ip 10.0.0.2/24 --stamp-payload 16
                                                          linerate latency 10.0.0.2 -u --peer echo --device-stamps 16",
    );
    text
}
