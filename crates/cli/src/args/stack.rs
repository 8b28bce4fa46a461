//! Options of our user-space stack: as a host, and in place of the kernel's.

use std::fmt::Write;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use linerate_protocol::amplification_guard::IpNetwork as AddressRange;
use linerate_record::device_timestamps::DeviceTimestamps;
use linerate_record::stack::ControlPath;
use linerate_server::stack_services::{SERVICES, ServiceSpec};
use linerate_stack::config::KEYS;
use linerate_stack::{InterfaceAddress, PROFILES};

use super::values::duration;
use super::{OutputArgs, ScreenArgs, heading};

/// Port, addresses and configuration of the user-space stack.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = heading::STACK)]
pub struct StackArgs {
    /// Port of the stack: tap:NAME, shm:NAME, packet:IF, xdp:IF (see `linerate forward --help`)
    #[arg(long, value_name = "URL", requires = "ip", env = "LINERATE_DEV")]
    pub dev: Option<String>,
    /// Address and prefix length of the stack (10.0.0.2/24); repeatable
    #[arg(
        long,
        value_name = "ADDRESS/PREFIX",
        value_parser = network,
        requires = "dev",
        value_delimiter = ',',
        env = "LINERATE_IP"
    )]
    pub ip: Vec<InterfaceAddress>,
    /// Gateway; at most one for IPv4 and one for IPv6
    #[arg(
        long,
        value_name = "ADDRESS",
        requires = "dev",
        value_delimiter = ',',
        env = "LINERATE_GATEWAY"
    )]
    pub gateway: Vec<IpAddr>,
    /// Base configuration: default, embedded-default or embedded-tuned [default: default]
    #[arg(long, value_name = "NAME", requires = "dev", env = "LINERATE_PROFILE")]
    pub profile: Option<String>,
    /// Set a configuration key (tcp.send_buffer=16K); repeatable; `linerate stack --help` lists
    /// them
    #[arg(
        long,
        value_name = "KEY=VALUE",
        requires = "dev",
        value_delimiter = ';',
        env = "LINERATE_SET"
    )]
    pub set: Vec<String>,
    /// Read configuration keys from a TOML file
    #[arg(long, value_name = "FILE", requires = "dev", env = "LINERATE_CONFIG")]
    pub config: Option<PathBuf>,
}

/// Options of the user-space stack at the client of a run.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = heading::STACK)]
pub struct LocalStackArgs {
    #[command(flatten)]
    pub stack: StackArgs,
    /// Path of the control connection: stack, or kernel if that reaches the server too [default:
    /// stack]
    #[arg(long, value_name = "PATH", requires = "dev", env = "LINERATE_CONTROL")]
    pub control: Option<ControlPath>,
}

fn network(text: &str) -> Result<InterfaceAddress, String> {
    let parsed: Result<InterfaceAddress, _> = text.parse();
    parsed.map_err(|error| error.to_string())
}

/// `linerate stack`.
#[derive(Debug, Clone, Args)]
#[command(after_help = after_help())]
pub struct StackHostArgs {
    /// Services in addition to ping: echo, discard, chargen, sockperf, iperf2, linerate, each with
    /// :PORT for another port
    #[arg(
        long,
        value_name = "NAME[:PORT],...",
        value_delimiter = ',',
        default_value = "echo,discard,chargen",
        env = "LINERATE_SERVE"
    )]
    pub serve: Vec<ServiceSpec>,
    /// Time to run [default: until Ctrl-C]
    #[arg(short, long, value_name = "TIME", value_parser = duration, env = "LINERATE_TIME")]
    pub time: Option<Duration>,
    /// Time between lines with counters; 0 prints none
    #[arg(short, long, value_name = "TIME", default_value = "0", value_parser = duration, env = "LINERATE_INTERVAL")]
    pub interval: Duration,
    /// Write two timestamps into each UDP response of echo and sockperf: request received from the
    /// driver, response passed to it (16,width=4,order=le,hz=25M) [default: width=8,order=be,hz=1G]
    #[arg(
        long,
        value_name = "OFFSET[,KEY=VALUE]",
        env = "LINERATE_STAMP_PAYLOAD"
    )]
    pub stamp_payload: Option<DeviceTimestamps>,
    #[command(flatten)]
    pub stack: StackArgs,
    /// Send UDP flows to these addresses although they are not validated (iperf2 -u -R, -d); an
    /// address with a connection within the last minute does not need this
    #[arg(
        long,
        value_name = "CIDR,...",
        value_delimiter = ',',
        help_heading = heading::LIMITS,
        env = "LINERATE_ALLOW"
    )]
    pub allow: Vec<AddressRange>,
    /// Label of the record, for `linerate runs`
    #[arg(long, value_name = "TEXT", help_heading = heading::OUTPUT, env = "LINERATE_LABEL")]
    pub label: Option<String>,
    #[command(flatten)]
    pub screen: ScreenArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Returns the notes of the help: services, profiles and configuration keys from their tables.
fn after_help() -> String {
    let mut text = "\
Standard output starts with a ready line for scripts (READY dev=tap:t0 ...); with --json that line goes
to standard error.

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
    text.push_str("\nConfiguration keys:\n");
    for key in KEYS {
        let _ = writeln!(
            text,
            "  {:<30} {}; {}",
            key.name, key.description, key.accepted_values
        );
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
