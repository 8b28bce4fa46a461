//! What all measurements between two hosts can be told.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use linerate_metric::expect::Expectation;
use linerate_metric::plan::{Cpus, Ends, Sched, Wait};
use linerate_metric::units::ByteSize;

use super::values::{duration, peer, tos};
use super::{NearStackArgs, OutputArgs, ScreenArgs};
use crate::key;
use crate::local::Local;

/// What all measurements between two hosts have.
#[derive(Debug, Clone, Args)]
pub struct MeasureArgs {
    /// The far end: a name or an address where `linerate server` runs, or what --peer names
    #[arg(env = "LINERATE_HOST")]
    pub host: String,
    /// Its port [default: 5201; with --peer that of its dialect]
    #[arg(short, long, env = "LINERATE_PORT")]
    pub port: Option<u16>,
    /// What the far end speaks, if it is another program: throughput iperf3, iperf2, iperf2-legacy,
    /// nuttcp, ttcp, discard, chargen; latency sockperf, echo, iperf2; auto finds out
    #[arg(long, value_name = "DIALECT", value_parser = peer, env = "LINERATE_PEER")]
    pub peer: Option<String>,
    /// UDP instead of TCP
    #[arg(short, long, env = "LINERATE_UDP")]
    pub udp: bool,
    /// Seconds to measure (also 500ms, 2m) [default: 10]
    #[arg(short, long, value_name = "TIME", value_parser = duration, env = "LINERATE_TIME")]
    pub time: Option<Duration>,
    /// Bytes per call, datagram or message (64K = 65536); round trips of several sizes: 64,1024,32K
    #[arg(
        short,
        long,
        value_name = "SIZE",
        value_delimiter = ',',
        env = "LINERATE_LENGTH"
    )]
    pub length: Vec<ByteSize>,
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
    /// How to wait: block, spin, poll, `select[:TIMEOUT]`, epoll, io-uring or `busy-poll[:TIME]`; our own
    /// stack: spin or interval:TIME;
    /// without /FAR the far end does as this one
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
    /// Time every system call (of our own stack: every call on it) at both ends, with what it found (data,
    /// room) or had to wait for
    #[arg(long, env = "LINERATE_CALLS")]
    pub calls: bool,
    /// Try again for so long while nobody answers
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = duration, env = "LINERATE_RETRY")]
    pub retry: Duration,
    /// Secret that the server must have too: a FILE, or `env[:NAME]` for a variable (LINERATE_SECRET);
    /// what both ends say to each other is then sealed, payload is not
    #[arg(long, value_name = "FILE|env", env = "LINERATE_KEY")]
    pub key: Option<key::Source>,
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
    /// End with exit code 3 if a finding says that something slowed the run down (kind `cause`)
    #[arg(long, env = "LINERATE_FAIL_ON_FINDING")]
    pub fail_on_finding: bool,
    /// Write a page with all figures and charts to FILE: self-contained, for any browser
    #[arg(
        long,
        value_name = "FILE",
        help_heading = "Output",
        env = "LINERATE_HTML"
    )]
    pub html: Option<PathBuf>,
    /// A screen meanwhile
    #[command(flatten)]
    pub screen: ScreenArgs,
    /// A name for the record, which `linerate runs` shows and finds
    #[arg(
        long,
        value_name = "TEXT",
        help_heading = "Output",
        env = "LINERATE_LABEL"
    )]
    pub label: Option<String>,
    /// Our own stack at this end
    #[command(flatten)]
    pub near: NearStackArgs,
    /// Where results go
    #[command(flatten)]
    pub output: OutputArgs,
}
