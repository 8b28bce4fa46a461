//! The command line: every option, with its variable in the environment.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::FalseyValueParser;
use clap::{ArgAction, Args, CommandFactory, Parser, Subcommand, ValueEnum};
use linerate_measure::Grant;
use linerate_metric::expect::Expectation;
use linerate_metric::plan::{Cpus, DEFAULT_PORT, Ends, Sched, Wait};
use linerate_metric::units::{BitRate, ByteSize, parse_count, parse_duration};
use linerate_report::style::ColorChoice;

use crate::local::Local;

/// How fast a network stack goes, why it goes no faster, and what to change
#[derive(Debug, Parser)]
#[command(
    name = "linerate",
    version,
    max_term_width = 100,
    after_help = "\
Examples:
  linerate demo                         measure everything on this machine, write a report
  linerate server                       be the far end
  linerate throughput 127.0.0.1         send TCP for 10 s to the server on this machine
  linerate latency 127.0.0.1 -u         UDP round trips
  linerate doctor                       what this machine can do

Every option can also be set in the environment: --time as LINERATE_TIME, and so on.
Exit codes: 0 ok, 1 failed, 2 usage, 3 an --expect missed, 4 privilege or kernel feature missing,
5 the far end refused, vanished or cannot be reached, 130 interrupted."
)]
pub struct Cli {
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// The whole command line.
pub fn command() -> clap::Command {
    settle(Cli::command())
}

/// What holds for the options of every command.
fn settle(command: clap::Command) -> clap::Command {
    command.mut_args(variable).mut_subcommands(settle)
}

/// How an option is set in the environment.
fn variable(arg: clap::Arg) -> clap::Arg {
    // The variables of all options follow one rule, which is told once.
    let arg = arg.hide_env(true);
    let Some(value) = arg.get_env().and_then(std::env::var_os) else {
        return arg;
    };
    let switch = matches!(arg.get_action(), ArgAction::SetTrue);
    // An empty variable is one that is not set, and so is a switch that is off: as a value it would
    // contradict other switches.
    if value.is_empty() || (switch && !is_on(&value)) {
        return arg.env(None::<&'static str>);
    }
    if switch {
        arg.value_parser(FalseyValueParser::new())
    } else {
        arg
    }
}

/// Whether a switch in the environment is on: anything but empty, `0`, `n`, `no`, `f`, `false` and
/// `off`.
fn is_on(value: &std::ffi::OsStr) -> bool {
    let value = value.to_string_lossy().to_ascii_lowercase();
    !matches!(
        value.as_str(),
        "" | "0" | "n" | "no" | "f" | "false" | "off"
    )
}

/// Whether a variable of the environment turns a switch on.
pub fn switched_on(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| is_on(&value))
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure everything at once on this machine and write a report; no root needed
    Demo(DemoArgs),
    /// Be the far end of other hosts' tests
    Server(ServerArgs),
    /// Measure how much payload arrives in a second
    Throughput(ThroughputArgs),
    /// Measure round trips
    Latency(LatencyArgs),
    /// Build hosts, switches and links to test on
    Lab(LabArgs),
    /// Say what this machine can and cannot do, and how to enable it
    Doctor(DoctorArgs),
    /// Print a completion script for a shell
    #[command(hide = true)]
    Completions(CompletionsArgs),
    /// Write the manual pages, one for each command
    #[command(hide = true)]
    Man(ManArgs),
}

/// Where results go and how they look.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Print one JSON document on standard output, and nothing else there
    #[arg(long, env = "LINERATE_JSON", conflicts_with = "json_stream")]
    pub json: bool,
    /// Print one line of JSON for each interval and event, failures and the result included
    #[arg(long, env = "LINERATE_JSON_STREAM")]
    pub json_stream: bool,
    /// Write the record to FILE as JSON; with --json instead of standard output
    #[arg(short = 'o', long, value_name = "FILE", env = "LINERATE_OUTPUT")]
    pub output: Option<PathBuf>,
    /// Print the result only
    #[arg(short, long, env = "LINERATE_QUIET")]
    pub quiet: bool,
    /// Say more on standard error
    #[arg(short, long, env = "LINERATE_VERBOSE")]
    pub verbose: bool,
    /// Keep no record under $XDG_DATA_HOME/linerate/runs
    #[arg(long, env = "LINERATE_NO_STORE")]
    pub no_store: bool,
    /// Colours: auto, always or never
    #[arg(
        long,
        value_name = "WHEN",
        default_value = "auto",
        env = "LINERATE_COLOR"
    )]
    pub color: ColorChoice,
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| error.to_string())
}

fn count(text: &str) -> Result<u64, String> {
    parse_count(text).map_err(|error| error.to_string())
}

/// Code points by name, RFC 2474, 2597, 3246, 8622: the upper six bits of the byte.
fn tos(text: &str) -> Result<u8, String> {
    let lower = text.to_ascii_lowercase();
    let number = match lower.strip_prefix("0x") {
        Some(hex) => u8::from_str_radix(hex, 16).ok(),
        None => lower.parse().ok(),
    };
    let digits: Vec<u8> = lower
        .bytes()
        .skip_while(u8::is_ascii_alphabetic)
        .map(|digit| digit.wrapping_sub(b'0'))
        .collect();
    let code_point = match (
        lower.trim_end_matches(|c: char| c.is_ascii_digit()),
        &digits[..],
    ) {
        ("ef", []) => Some(46),
        ("le", []) => Some(1),
        ("cs", &[class @ 0..=7]) => Some(class * 8),
        ("af", &[class @ 1..=4, drop @ 1..=3]) => Some(class * 8 + drop * 2),
        _ => None,
    };
    number
        .or(code_point.map(|point| point << 2))
        .ok_or_else(|| {
            format!("`{text}` is neither 0 to 255 nor a DSCP name (ef, le, cs0-7, af11-43)")
        })
}

/// What all measurements between two hosts have.
#[derive(Debug, Clone, Args)]
pub struct MeasureArgs {
    /// The far end: a name or an address where `linerate server` runs
    #[arg(env = "LINERATE_HOST")]
    pub host: String,
    /// Its port
    #[arg(short, long, default_value_t = DEFAULT_PORT, env = "LINERATE_PORT")]
    pub port: u16,
    /// UDP instead of TCP
    #[arg(short, long, env = "LINERATE_UDP")]
    pub udp: bool,
    /// Seconds to measure (also 500ms, 2m) [default: 10]
    #[arg(short, long, value_name = "TIME", value_parser = duration, env = "LINERATE_TIME")]
    pub time: Option<Duration>,
    /// Bytes per call, datagram or message (64K = 65536)
    #[arg(short, long, value_name = "SIZE", env = "LINERATE_LENGTH")]
    pub length: Option<ByteSize>,
    /// Flows at the same time
    #[arg(
        short = 'P',
        long,
        value_name = "N",
        default_value_t = 1,
        env = "LINERATE_PARALLEL"
    )]
    pub parallel: u32,
    /// Time between interval lines; 0 for none
    #[arg(short, long, value_name = "TIME", default_value = "1", value_parser = duration, env = "LINERATE_INTERVAL")]
    pub interval: Duration,
    /// Time at the start that is not counted
    #[arg(short = 'O', long, value_name = "TIME", default_value = "0", value_parser = duration, env = "LINERATE_OMIT")]
    pub omit: Duration,
    /// Socket buffers to ask for at both ends; without it the kernel sizes them
    #[arg(short, long, value_name = "SIZE", env = "LINERATE_WINDOW")]
    pub window: Option<ByteSize>,
    /// Send buffers to ask for at both ends (SO_SNDBUF)
    #[arg(long, value_name = "SIZE", env = "LINERATE_SNDBUF")]
    pub sndbuf: Option<ByteSize>,
    /// Receive buffers to ask for at both ends (SO_RCVBUF)
    #[arg(long, value_name = "SIZE", env = "LINERATE_RCVBUF")]
    pub rcvbuf: Option<ByteSize>,
    /// TCP maximum segment size
    #[arg(short = 'M', long, value_name = "BYTES", env = "LINERATE_MSS")]
    pub mss: Option<u32>,
    /// TCP without Nagle's algorithm: small writes leave at once
    #[arg(short = 'N', long, env = "LINERATE_NO_DELAY")]
    pub no_delay: bool,
    /// Type of service or traffic class of the packets: 0 to 255, 0x10, or a DSCP name (ef, af11, cs1)
    #[arg(short = 'S', long, value_name = "TOS", value_parser = tos, env = "LINERATE_TOS")]
    pub tos: Option<u8>,
    /// Priority of the packets in queueing disciplines (SO_PRIORITY)
    #[arg(long, value_name = "N", env = "LINERATE_SOCKET_PRIORITY")]
    pub socket_priority: Option<u32>,
    /// Bytes before a sleeping receiver is woken (SO_RCVLOWAT)
    #[arg(long, value_name = "SIZE", env = "LINERATE_RCVLOWAT")]
    pub rcvlowat: Option<ByteSize>,
    /// TCP congestion control at both ends
    #[arg(short = 'C', long, value_name = "NAME", env = "LINERATE_CONGESTION")]
    pub congestion: Option<String>,
    /// Local address, interface (%eth0), or both
    #[arg(short = 'B', long, value_name = "ADDRESS[%IF]", env = "LINERATE_BIND")]
    pub bind: Option<Local>,
    /// Local port of the first flow; the next ones follow
    #[arg(long, value_name = "PORT", env = "LINERATE_SOURCE_PORT")]
    pub source_port: Option<u16>,
    /// IPv4 only
    #[arg(short = '4', long, conflicts_with = "ipv6", env = "LINERATE_IPV4")]
    pub ipv4: bool,
    /// IPv6 only
    #[arg(short = '6', long, env = "LINERATE_IPV6")]
    pub ipv6: bool,
    /// How to wait: block, spin, poll, `select[:TIMEOUT]` or epoll; without /FAR the far end does as
    /// this one
    #[arg(long, value_name = "NEAR[/FAR]", env = "LINERATE_WAIT")]
    pub wait: Option<Ends<Wait>>,
    /// Processors for the threads: 0/1, or 0-3/4-7
    #[arg(long, value_name = "NEAR[/FAR]", env = "LINERATE_CPU")]
    pub cpu: Option<Ends<Cpus>>,
    /// Scheduling of the threads: nice:-20, fifo:80 or rr:99; the far end needs `server --grant sched`
    #[arg(long, value_name = "NEAR[/FAR]", env = "LINERATE_SCHED")]
    pub sched: Option<Ends<Sched>>,
    /// Keep the cores from halting for the run; the far end needs `server --grant idle`
    #[arg(long, env = "LINERATE_HOLD_LATENCY")]
    pub hold_latency: bool,
    /// Try again for so long while nobody answers
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = duration, env = "LINERATE_RETRY")]
    pub retry: Duration,
    /// Run N times; the result is the median with its interval
    #[arg(long, value_name = "N", default_value_t = 1, env = "LINERATE_REPEAT")]
    pub repeat: u32,
    /// End with exit code 3 unless this holds ('p99<100us', 'goodput>9G'); repeatable
    #[arg(
        long,
        value_name = "FIGURE<VALUE",
        env = "LINERATE_EXPECT",
        value_delimiter = ';'
    )]
    pub expect: Vec<Expectation>,
    /// Where results go
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Something that the kernel can do for many datagrams in one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Offload {
    /// Cut what one call sends into datagrams (UDP_SEGMENT)
    Gso,
    /// Join datagrams for one receive call (UDP_GRO)
    Gro,
    /// Neither: one datagram a call
    None,
}

/// `linerate throughput`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples (start `linerate server` in another terminal first):
  linerate throughput 127.0.0.1                         TCP, sending, 10 s
  linerate throughput 127.0.0.1 -R -t 5                 receiving, 5 s
  linerate throughput 127.0.0.1 -u -b 100M              UDP at 100 Mb/s
  linerate throughput 127.0.0.1 -P 4 -i 0.5             four flows, a line every half second
  linerate throughput localhost -n 1G -C reno           1 GiB over TCP reno
  linerate throughput 127.0.0.1 --cpu 0/1 --json -q     pinned; the record on standard output
  linerate throughput 127.0.0.1 --expect 'goodput>1G'   exit code 3 if it is less")]
pub struct ThroughputArgs {
    /// Receive instead of sending
    #[arg(short = 'R', long, conflicts_with = "bidir", env = "LINERATE_REVERSE")]
    pub reverse: bool,
    /// Both directions at the same time
    #[arg(long, env = "LINERATE_BIDIR")]
    pub bidir: bool,
    /// Payload rate of each flow (10M = 10^7 bit/s); without it: as fast as it goes
    #[arg(short, long, value_name = "RATE", env = "LINERATE_BITRATE")]
    pub bitrate: Option<BitRate>,
    /// UDP: what the kernel does for many datagrams in one call: gso, gro or none [default: both,
    /// unless paced]
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        env = "LINERATE_OFFLOAD"
    )]
    pub offload: Vec<Offload>,
    /// Bytes to move in each direction instead of a time
    #[arg(short = 'n', long, value_name = "SIZE", env = "LINERATE_BYTES")]
    pub bytes: Option<ByteSize>,
    /// The measurement
    #[command(flatten)]
    pub measure: MeasureArgs,
}

/// `linerate latency`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples (start `linerate server` in another terminal first):
  linerate latency 127.0.0.1 -u                         UDP round trips of 64 B for 10 s
  linerate latency 127.0.0.1 -u --wait spin             neither end ever sleeps
  linerate latency 127.0.0.1 -n 100k -l 1024            100,000 TCP round trips of 1 KiB
  linerate latency 127.0.0.1 -u --expect 'p99<10ms'     exit code 3 if it takes longer
  linerate latency 127.0.0.1 -u --repeat 5 -t 2         median of five runs, with its interval")]
pub struct LatencyArgs {
    /// Round trips to make instead of a time (500k = 500,000)
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = count, env = "LINERATE_COUNT")]
    pub count: Option<u64>,
    /// An answer later than this counts as lost
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = duration, env = "LINERATE_TIMEOUT")]
    pub timeout: Duration,
    /// The measurement
    #[command(flatten)]
    pub measure: MeasureArgs,
}

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
  linerate server -B 127.0.0.1 --json-stream")]
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
    /// What far clients may have for their runs: idle (keep cores from halting), sched (scheduling)
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        env = "LINERATE_GRANT"
    )]
    pub grant: Vec<Grant>,
    /// Where results go
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `linerate demo`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  linerate demo                         about half a minute; writes linerate-demo/report.html
  linerate demo --json > demo.json      the same as one document
  linerate demo --json-stream           what happens while it happens, then that document

Its runs are too different for one --expect: `linerate throughput` and `linerate latency` have it.")]
pub struct DemoArgs {
    /// Folder for the report and the records
    #[arg(
        long,
        value_name = "DIR",
        default_value = "linerate-demo",
        env = "LINERATE_DEMO_DIR"
    )]
    pub dir: PathBuf,
    /// Time for each of the seven measurements
    #[arg(short, long, value_name = "TIME", default_value = "3", value_parser = duration, env = "LINERATE_TIME")]
    pub time: Duration,
    /// Use loopback instead of two hosts joined by a virtual link
    #[arg(long, env = "LINERATE_LOOPBACK")]
    pub loopback: bool,
    /// Where results go
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `linerate lab`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  linerate lab up --hops 1                              client, one switch, server
  linerate lab exec client -- ip address
  linerate lab list
  linerate lab down

A lab file:
  [hosts.client]
  [hosts.server]
  address = \"10.77.0.2/24\"
  [[links]]
  between = [\"client\", \"server\"]
  rate = \"100M\"")]
pub struct LabArgs {
    /// What to do with labs
    #[command(subcommand)]
    pub action: LabAction,
}

/// The actions on labs.
#[derive(Debug, Subcommand)]
pub enum LabAction {
    /// Build a lab; returns once every host reaches every other
    #[command(after_help = "\
Examples:
  linerate lab up --hops 2 --name two   client, two switches, server
  linerate lab up my-lab.toml")]
    Up {
        /// The lab file
        #[arg(required_unless_present = "hops", conflicts_with = "hops")]
        file: Option<PathBuf>,
        /// Hosts `client` and `server` with N switches between them
        #[arg(long, value_name = "N", env = "LINERATE_HOPS")]
        hops: Option<usize>,
        /// Its name [default: lab1, or the next free one]
        #[arg(long, env = "LINERATE_NAME")]
        name: Option<String>,
        /// Print one JSON document
        #[arg(long, env = "LINERATE_JSON")]
        json: bool,
    },
    /// Run a command on a host of a lab
    #[command(after_help = "\
Examples:
  linerate lab exec client -- ip address
  linerate lab exec two/server -- linerate server -1")]
    Exec {
        /// The host; with several labs up, LAB/HOST
        #[arg(value_name = "[LAB/]HOST")]
        host: String,
        /// The command
        #[arg(required = true, last = true, value_name = "CMD")]
        command: Vec<std::ffi::OsString>,
    },
    /// List the labs that are up
    #[command(after_help = "\
Examples:
  linerate lab list
  linerate lab list --json")]
    List {
        /// Print one JSON document
        #[arg(long, env = "LINERATE_JSON")]
        json: bool,
    },
    /// End a lab and everything that runs in it
    #[command(after_help = "\
Examples:
  linerate lab down
  linerate lab down two")]
    Down {
        /// Its name; not needed when only one is up
        name: Option<String>,
    },
}

/// `linerate doctor`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  linerate doctor
  linerate doctor --json")]
pub struct DoctorArgs {
    /// Where results go
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `linerate completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// `linerate man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// The folder that they go to
    pub dir: PathBuf,
}
