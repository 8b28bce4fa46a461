//! `linerate server`.

use std::time::Duration;

use clap::Args;
use linerate_protocol::amplification_guard::IpNetwork as AddressRange;
use linerate_record::plan::DEFAULT_PORT;
use linerate_server::options::ExtraPort;
use linerate_server::options::Grant;
use linerate_stats::units::BitRate;

use super::values::{nonzero_rate, nonzero_time, served_protocol};
use super::{OutputArgs, heading};
use crate::key_source;
use crate::local_binding::LocalBinding;

/// `linerate server`.
#[derive(Debug, Args)]
#[command(after_help = "\
Standard output starts with a ready line for scripts (READY port=5201 ...). One line for each test follows:
time, client, result, causes. With -v, each test has its intervals and its summary. With --json, standard
output gets one JSON document for each test, one per line, and the ready line goes to standard error.

Examples:
  linerate server                       run until Ctrl-C
  linerate server -1 -p 0               serve one test on any free port
  linerate server -p 0 --json           one line of JSON for each test
  linerate server -B 127.0.0.1 --json-stream
  linerate server --also 7,9,19         also echo, discard and chargen
  linerate server --also 5002=iperf2    one more port, for iperf2 only

Clients of iperf3, iperf2, nuttcp, ttcp and sockperf can use any of its ports.")]
pub struct ServerArgs {
    /// Port for TCP and UDP; 0 for any free one
    #[arg(short, long, default_value_t = DEFAULT_PORT, env = "LINERATE_PORT")]
    pub port: u16,
    /// Serve one test, then exit
    #[arg(short = '1', long, env = "LINERATE_ONE_OFF")]
    pub one_off: bool,
    /// Listen only on this address, interface (%eth0), or both
    #[arg(short = 'B', long, value_name = "ADDRESS[%IF]", help_heading = heading::NETWORK, env = "LINERATE_BIND")]
    pub bind: Option<LocalBinding>,
    /// Use IPv4 only
    #[arg(short = '4', long, conflicts_with = "ipv6", help_heading = heading::NETWORK, env = "LINERATE_IPV4")]
    pub ipv4: bool,
    /// Use IPv6 only
    #[arg(short = '6', long, help_heading = heading::NETWORK, env = "LINERATE_IPV6")]
    pub ipv6: bool,
    /// Accept only clients with this shared secret: a FILE, or `env[:NAME]` for a variable
    /// (LINERATE_SECRET). It encrypts the control connection; payload is not encrypted
    #[arg(long, value_name = "FILE|env", help_heading = heading::NETWORK, env = "LINERATE_KEY")]
    pub key: Option<key_source::KeySource>,
    /// Permissions of remote clients for their runs: idle (keep CPUs out of idle states),
    /// sched (scheduling class), load (generate CPU load), buffers (socket buffers beyond the
    /// system's limit), trace (trace the scheduler of the whole machine for --stages and --trace),
    /// multicast (join a group), socket (privileged socket options: -C with a reserved congestion
    /// control, priorities above 6, busy polling), tune (buffer limits of this host, set by
    /// `linerate tune --try-far` until it ends)
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        help_heading = heading::LIMITS,
        env = "LINERATE_GRANT"
    )]
    pub grant: Vec<Grant>,
    #[command(flatten)]
    pub access: AccessArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Protocols of other tools, and limits of what clients may do.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = heading::LIMITS)]
pub struct AccessArgs {
    /// Listen on these ports too. Each detects the protocol of its client unless =PROTOCOL fixes
    /// it; 7, 9 and 19 are echo, discard and chargen. Ports 5001, 5000 and 11111 are always open if
    /// they are free
    #[arg(
        long,
        value_name = "PORT[=PROTOCOL],...",
        value_delimiter = ',',
        help_heading = heading::OTHER_TOOLS,
        env = "LINERATE_ALSO"
    )]
    pub also: Vec<ExtraPort>,
    /// Respond to UDP from these networks (CIDR) although their source addresses are not validated.
    /// A single address may also be sent a flow that it requests (`iperf -u -R`)
    #[arg(
        long,
        value_name = "CIDR,...",
        value_delimiter = ',',
        env = "LINERATE_ALLOW"
    )]
    pub allow: Vec<AddressRange>,
    /// Accept only these protocols and our own: iperf3, iperf2, iperf2-legacy, nuttcp, ttcp,
    /// sockperf, echo, discard, chargen, plain, or none
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        value_parser = served_protocol,
        help_heading = heading::OTHER_TOOLS,
        env = "LINERATE_ALLOW_DIALECT"
    )]
    pub allow_dialect: Vec<String>,
    /// Maximum number of concurrent tests
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), env = "LINERATE_MAX_TESTS")]
    pub max_tests: Option<u16>,
    /// Maximum rate the server sends at in one test; our own clients must request it (-b).
    /// Responses, which are as long as their requests, are not limited
    #[arg(long, value_name = "RATE", value_parser = nonzero_rate, env = "LINERATE_MAX_RATE")]
    pub max_rate: Option<BitRate>,
    /// Maximum time of a test; our own clients must request no more (-t)
    #[arg(long, value_name = "TIME", value_parser = nonzero_time, env = "LINERATE_MAX_TIME")]
    pub max_time: Option<Duration>,
}
