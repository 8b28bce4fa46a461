//! Options of all measurements between two hosts.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use linerate_record::expect::Expectation;
use linerate_record::plan::{CpuList, PerEnd, RunKind, SchedPolicy, WaitMode};
use linerate_stats::units::ByteSize;

use super::values::{client_protocol, duration, tos};
use super::{LocalStackArgs, OutputArgs, ScreenArgs, heading};
use crate::key_source;
use crate::local_binding::LocalBinding;
use crate::server_name::ServerName;

/// Options of `linerate throughput` and `linerate latency`.
#[derive(Debug, Clone, Args)]
pub struct MeasureArgs {
    /// Server to measure to, where `linerate server` or the tool of --peer runs: a name or an
    /// address, or either with its port (HOST:PORT, [IPv6]:PORT)
    #[arg(env = "LINERATE_HOST")]
    pub host: ServerName,
    /// Port of the server [default: 5201; with --peer, that of its protocol]
    #[arg(short, long, env = "LINERATE_PORT")]
    pub port: Option<u16>,
    /// Protocol of a server that is another tool
    #[arg(long, value_name = "PROTOCOL", value_parser = client_protocol, env = "LINERATE_PEER")]
    pub peer: Option<String>,
    /// Use UDP instead of TCP
    #[arg(short, long, env = "LINERATE_UDP")]
    pub udp: bool,
    /// Time to measure (5, 500ms, 2m) [default: 10]
    #[arg(short, long, value_name = "TIME", value_parser = duration, env = "LINERATE_TIME")]
    pub time: Option<Duration>,
    /// Bytes per call, datagram or message (64K = 65536)
    #[arg(
        short,
        long,
        value_name = "SIZE",
        value_delimiter = ',',
        help_heading = heading::SIZES,
        env = "LINERATE_LENGTH"
    )]
    pub length: Vec<ByteSize>,
    /// Number of parallel flows
    #[arg(
        short = 'P',
        long,
        value_name = "N",
        default_value_t = 1,
        help_heading = heading::SIZES,
        env = "LINERATE_PARALLEL"
    )]
    pub parallel: u32,
    /// Time between interval lines; 0 prints none
    #[arg(short, long, value_name = "TIME", default_value = "1", value_parser = duration, env = "LINERATE_INTERVAL")]
    pub interval: Duration,
    /// Time to omit at the start (warm-up)
    #[arg(short = 'O', long, value_name = "TIME", default_value = "0", value_parser = duration, help_heading = heading::SIZES, env = "LINERATE_OMIT")]
    pub omit: Duration,
    /// Socket buffer size at both ends [default: autotuning by the kernel]
    #[arg(short, long, value_name = "SIZE", help_heading = heading::SOCKETS, env = "LINERATE_WINDOW")]
    pub window: Option<ByteSize>,
    /// Send buffer size at both ends (SO_SNDBUF)
    #[arg(long, value_name = "SIZE", help_heading = heading::SOCKETS, env = "LINERATE_SNDBUF")]
    pub sndbuf: Option<ByteSize>,
    /// Receive buffer size at both ends (SO_RCVBUF)
    #[arg(long, value_name = "SIZE", help_heading = heading::SOCKETS, env = "LINERATE_RCVBUF")]
    pub rcvbuf: Option<ByteSize>,
    /// TCP maximum segment size
    #[arg(short = 'M', long, value_name = "BYTES", help_heading = heading::SOCKETS, env = "LINERATE_MSS")]
    pub mss: Option<u32>,
    /// Disable Nagle's algorithm (TCP_NODELAY)
    #[arg(short = 'N', long, help_heading = heading::SOCKETS, env = "LINERATE_NO_DELAY")]
    pub no_delay: bool,
    /// Type of service or traffic class of the packets: 0 to 255, 0x10, or a DSCP name (ef, af11,
    /// cs1)
    #[arg(short = 'S', long, value_name = "TOS", value_parser = tos, help_heading = heading::SOCKETS, env = "LINERATE_TOS")]
    pub tos: Option<u8>,
    /// Priority of the packets in queueing disciplines (SO_PRIORITY)
    #[arg(long, value_name = "N", help_heading = heading::SOCKETS, env = "LINERATE_SOCKET_PRIORITY")]
    pub socket_priority: Option<u32>,
    /// Bytes that must arrive before a blocked receiver wakes up (SO_RCVLOWAT)
    #[arg(long, value_name = "SIZE", help_heading = heading::SOCKETS, env = "LINERATE_RCVLOWAT")]
    pub rcvlowat: Option<ByteSize>,
    /// TCP congestion control at both ends
    #[arg(short = 'C', long, value_name = "NAME", help_heading = heading::SOCKETS, env = "LINERATE_CONGESTION")]
    pub congestion: Option<String>,
    /// Local address, interface (%eth0), or both
    #[arg(short = 'B', long, value_name = "ADDRESS[%IF]", help_heading = heading::NETWORK, env = "LINERATE_BIND")]
    pub bind: Option<LocalBinding>,
    /// Local port of the first flow; further flows use the next ports
    #[arg(long, value_name = "PORT", help_heading = heading::NETWORK, env = "LINERATE_SOURCE_PORT")]
    pub source_port: Option<u16>,
    /// Use IPv4 only
    #[arg(short = '4', long, conflicts_with = "ipv6", help_heading = heading::NETWORK, env = "LINERATE_IPV4")]
    pub ipv4: bool,
    /// Use IPv6 only
    #[arg(short = '6', long, help_heading = heading::NETWORK, env = "LINERATE_IPV6")]
    pub ipv6: bool,
    /// Wait mode: block, spin, poll, `select[:TIMEOUT]`, epoll, io-uring or `busy-poll[:TIME]`;
    /// with the user-space stack spin or interval:TIME; without /SERVER both ends use the same
    #[arg(long, value_name = "CLIENT[/SERVER]", help_heading = heading::CPU, env = "LINERATE_WAIT")]
    pub wait: Option<PerEnd<WaitMode>>,
    /// CPUs of the threads: 0/1, or 0-3/4-7
    #[arg(long, value_name = "CLIENT[/SERVER]", help_heading = heading::CPU, env = "LINERATE_CPU")]
    pub cpu: Option<PerEnd<CpuList>>,
    /// Scheduling class of the threads: nice:-20, fifo:80 or rr:99; the server needs
    /// `--grant sched`
    #[arg(long, value_name = "CLIENT[/SERVER]", help_heading = heading::CPU, env = "LINERATE_SCHED")]
    pub sched: Option<PerEnd<SchedPolicy>>,
    /// Keep CPUs out of idle states during the run; the server needs `--grant idle`
    #[arg(long, help_heading = heading::CPU, env = "LINERATE_HOLD_LATENCY")]
    pub hold_latency: bool,
    /// Time every system call (with the user-space stack: every call to it) at both ends, and count whether
    /// data or buffer space was ready or the call had to wait
    #[arg(long, help_heading = heading::DIAGNOSIS, env = "LINERATE_CALLS")]
    pub calls: bool,
    /// Time to keep trying to connect while the server does not respond
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = duration, help_heading = heading::NETWORK, env = "LINERATE_RETRY")]
    pub retry: Duration,
    /// Shared secret with the server: a FILE, or `env[:NAME]` for a variable (LINERATE_SECRET). It
    /// encrypts the control connection; payload is not encrypted
    #[arg(long, value_name = "FILE|env", help_heading = heading::NETWORK, env = "LINERATE_KEY")]
    pub key: Option<key_source::KeySource>,
    /// Number of runs; the result is their median with its interval
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = heading::CHECKS, env = "LINERATE_REPEAT")]
    pub repeat: u32,
    /// End with exit code 3 unless this is true ('p99<100us', 'goodput>9G'); repeatable
    #[arg(
        long,
        value_name = "FIGURE<VALUE",
        help_heading = heading::CHECKS,
        env = "LINERATE_EXPECT",
        value_delimiter = ';'
    )]
    pub expect: Vec<Expectation>,
    /// End with exit code 3 if the run has a finding of kind `cause`
    #[arg(long, help_heading = heading::CHECKS, env = "LINERATE_FAIL_ON_FINDING")]
    pub fail_on_finding: bool,
    /// Write a report (HTML, self-contained) with all figures and charts to FILE
    #[arg(long, value_name = "FILE", help_heading = heading::OUTPUT, env = "LINERATE_HTML")]
    pub html: Option<PathBuf>,
    #[command(flatten)]
    pub screen: ScreenArgs,
    /// Label of the record, for `linerate runs`
    #[arg(long, value_name = "TEXT", help_heading = heading::OUTPUT, env = "LINERATE_LABEL")]
    pub label: Option<String>,
    #[command(flatten)]
    pub local_stack: LocalStackArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

impl MeasureArgs {
    /// Returns the title of the report: `UDP throughput, 10.77.0.2`.
    pub fn report_title(&self, kind: RunKind) -> String {
        let protocol = if self.udp { "UDP" } else { "TCP" };
        format!("{protocol} {kind}, {}", self.host)
    }
}
