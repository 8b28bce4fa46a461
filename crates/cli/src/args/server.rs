//! `linerate server`.

use std::time::Duration;

use clap::Args;
use linerate_measure::{AddressRange, Also, Grant};
use linerate_metric::plan::DEFAULT_PORT;
use linerate_metric::units::BitRate;

use super::OutputArgs;
use super::values::{dialect, some_rate, some_time};
use crate::key;
use crate::local::Local;

/// `linerate server`.
#[derive(Debug, Args)]
#[command(after_help = "\
The first line on standard output tells scripts where it can be reached (READY port=5201 ...).
With -q the summaries of the tests follow it, and nothing else. With --json standard output gets one
document for each test, each on one line; the ready line is on standard error.

Examples:
  linerate server                       serve until Ctrl-C
  linerate server -1 -p 0               serve one test on any free port
  linerate server -p 0 --json           one line of JSON for each test
  linerate server -B 127.0.0.1 --json-stream
  linerate server --also 7,9,19         echo, discard and chargen too
  linerate server --also 5002=iperf2    one more port, for iperf2 alone

Clients of iperf3, iperf (2), nuttcp, ttcp and sockperf are served on any of its ports.")]
pub struct ServerArgs {
    /// Port for TCP and UDP; 0 takes any free one
    #[arg(short, long, default_value_t = DEFAULT_PORT, env = "LINERATE_PORT")]
    pub port: u16,
    /// Serve one test, then exit
    #[arg(short = '1', long, env = "LINERATE_ONE_OFF")]
    pub one_off: bool,
    /// Listen on this address, interface (%eth0), or both only
    #[arg(short = 'B', long, value_name = "ADDRESS[%IF]", env = "LINERATE_BIND")]
    pub bind: Option<Local>,
    /// IPv4 only
    #[arg(short = '4', long, conflicts_with = "ipv6", env = "LINERATE_IPV4")]
    pub ipv4: bool,
    /// IPv6 only
    #[arg(short = '6', long, env = "LINERATE_IPV6")]
    pub ipv6: bool,
    /// Serve only those who have this secret too: a FILE, or `env[:NAME]` for a variable
    /// (LINERATE_SECRET); what both ends say to each other is then sealed, payload is not
    #[arg(long, value_name = "FILE|env", env = "LINERATE_KEY")]
    pub key: Option<key::Source>,
    /// What far clients may have for their runs: idle (keep cores from halting), sched (scheduling),
    /// load (keep processors busy), buffers (socket buffers beyond the system's limit), trace (watch
    /// the scheduler of the whole machine for --stages and --trace), multicast (join a group),
    /// socket (what the kernel keeps from users: -C with a reserved congestion control, priorities above
    /// 6, busy polling), tune (have buffer limits of this host set by `linerate tune --try-far`, until it ends)
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        env = "LINERATE_GRANT"
    )]
    pub grant: Vec<Grant>,
    /// Which other programs are served, and how far
    #[command(flatten)]
    pub guests: GuestArgs,
    /// Where results go
    #[command(flatten)]
    pub output: OutputArgs,
}

/// How a server serves other programs than ours.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Other programs")]
pub struct GuestArgs {
    /// Listen on these ports too. Each finds out what its client speaks, unless =DIALECT says it; 7, 9
    /// and 19 are echo, discard and chargen. 5001, 5000 and 11111 are open without asking where they
    /// are free
    #[arg(
        long,
        value_name = "PORT[=DIALECT],...",
        value_delimiter = ',',
        env = "LINERATE_ALSO"
    )]
    pub also: Vec<Also>,
    /// Answer UDP from these networks, too, though its senders prove nothing: as CIDR. An address that stands
    /// there by itself may also be sent a flow that it asks for (`iperf -u -R`)
    #[arg(
        long,
        value_name = "CIDR,...",
        value_delimiter = ',',
        env = "LINERATE_ALLOW"
    )]
    pub allow: Vec<AddressRange>,
    /// Speak these dialects only, beside our own: iperf3, iperf2, iperf2-legacy, nuttcp, ttcp,
    /// sockperf, echo, discard, chargen, plain, or none
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        value_parser = dialect,
        env = "LINERATE_ALLOW_DIALECT"
    )]
    pub allow_dialect: Vec<String>,
    /// Run so many tests at a time at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), env = "LINERATE_MAX_TESTS")]
    pub max_tests: Option<u16>,
    /// Send no more than this in one test, in bits a second; our own clients have to ask for it (-b).
    /// Answers to questions, which are as long as these, leave when they come
    #[arg(long, value_name = "RATE", value_parser = some_rate, env = "LINERATE_MAX_RATE")]
    pub max_rate: Option<BitRate>,
    /// End tests after this time; our own clients have to ask for no more (-t)
    #[arg(long, value_name = "TIME", value_parser = some_time, env = "LINERATE_MAX_TIME")]
    pub max_time: Option<Duration>,
}
