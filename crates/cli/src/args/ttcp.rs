//! `linerate ttcp` and `linerate target-code`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use linerate_record::plan::WaitMode;
use linerate_stats::units::ByteSize;

use super::values::{count, longer_call};
use super::{LocalStackArgs, OutputArgs, ScreenArgs, heading};
use crate::server_name::ServerName;

/// Default port of classic ttcp.
const TTCP_PORT: u16 = 5001;

/// `linerate ttcp`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  linerate ttcp -r                      wait for a sender, on this host or any other
  linerate ttcp -t 127.0.0.1            send 16 MiB to it
  linerate ttcp -t -u 127.0.0.1         send 2048 UDP datagrams instead
  linerate ttcp -r --calls              time of select and recvfrom, with data and without
  linerate ttcp -t 127.0.0.1 --trace calls.json --trace-on 'call>1ms'
  linerate ttcp -t 10.0.0.1 --dev tap:t0 --ip 10.0.0.2/24      over the user-space stack

Payload is generated and discarded (-s of classic ttcp, always on).")]
#[command(group(clap::ArgGroup::new("role").required(true).args(["transmit", "receive"])))]
pub struct TtcpArgs {
    /// Host to send to
    #[arg(value_name = "HOST", conflicts_with = "receive")]
    pub host: Option<ServerName>,
    /// Send to HOST
    #[arg(short, long, requires = "host", env = "LINERATE_TRANSMIT")]
    pub transmit: bool,
    /// Receive from any sender
    #[arg(short, long, env = "LINERATE_RECEIVE")]
    pub receive: bool,
    /// Bytes of each write or read, and of each datagram
    #[arg(
        short,
        long,
        value_name = "SIZE",
        default_value = "8192",
        env = "LINERATE_LENGTH"
    )]
    pub length: ByteSize,
    /// Number of writes
    #[arg(short = 'n', long, value_name = "N", default_value = "2048", value_parser = count, env = "LINERATE_BUFFERS")]
    pub buffers: u64,
    /// Port
    #[arg(short, long, default_value_t = TTCP_PORT, env = "LINERATE_PORT")]
    pub port: u16,
    /// UDP instead of TCP
    #[arg(short, long, env = "LINERATE_UDP")]
    pub udp: bool,
    /// Socket buffer size
    #[arg(short, long, value_name = "SIZE", help_heading = heading::SOCKETS, env = "LINERATE_WINDOW")]
    pub buffer: Option<ByteSize>,
    /// Generate and discard the payload; always on
    #[arg(short, long, env = "LINERATE_SINKMODE")]
    pub sinkmode: bool,
    /// Wait mode: block, spin, poll, `select[:TIMEOUT]`, epoll, io-uring or `busy-poll[:TIME]`
    /// [default: block to send, select to receive]
    #[arg(long, value_name = "MODE", help_heading = heading::CPU, env = "LINERATE_WAIT")]
    pub wait: Option<WaitMode>,
    /// Time every system call (with the user-space stack: every call to it), and count whether data or buffer
    /// space was ready or the call had to wait
    #[arg(long, help_heading = heading::DIAGNOSIS, env = "LINERATE_CALLS")]
    pub calls: bool,
    /// Write a timeline of the latest calls to FILE, for ui.perfetto.dev; in Trace Event Format if
    /// FILE ends in .json
    #[arg(long, value_name = "FILE", help_heading = heading::DIAGNOSIS, env = "LINERATE_TRACE")]
    pub trace: Option<PathBuf>,
    /// End the timeline at the first call that meets this: 'call>1ms'
    #[arg(long, value_name = "CONDITION", value_parser = longer_call, requires = "trace", help_heading = heading::DIAGNOSIS, env = "LINERATE_TRACE_ON")]
    pub trace_on: Option<Duration>,
    /// End with exit code 3 if the run has a finding of kind `cause`
    #[arg(long, help_heading = heading::CHECKS, env = "LINERATE_FAIL_ON_FINDING")]
    pub fail_on_finding: bool,
    #[command(flatten)]
    pub stack: LocalStackArgs,
    /// Label of the record, for `linerate runs`
    #[arg(long, value_name = "TEXT", help_heading = heading::OUTPUT, env = "LINERATE_LABEL")]
    pub label: Option<String>,
    #[command(flatten)]
    pub screen: ScreenArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `linerate target-code`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  linerate target-code > target.c               then: cc -std=c99 -O2 -o target target.c
  linerate target-code --stamps > target.c      its UDP echo adds receive and send timestamps:
                                                linerate latency DEVICE --peer echo -u --device-stamps 16

It serves discard on port 9, chargen on 19 and echo on 7, unless it is started with other ports:
  linerate throughput DEVICE --peer discard     rate at which the device receives
  linerate throughput DEVICE --peer chargen -R  rate at which it sends
  linerate latency DEVICE --peer echo -u        its response time")]
pub struct TargetCodeArgs {
    /// Add receive and send timestamps to UDP echo responses
    #[arg(long, env = "LINERATE_STAMPS")]
    pub stamps: bool,
}
