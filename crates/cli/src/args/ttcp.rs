//! `linerate ttcp` and `linerate target-code`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use linerate_metric::plan::Wait;
use linerate_metric::units::ByteSize;

use super::values::{count, longer_call};
use super::{NearStackArgs, OutputArgs, ScreenArgs};

/// The port of classic ttcp.
const TTCP_PORT: u16 = 5001;

/// `linerate ttcp`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  linerate ttcp -r                      wait for a sender, on this host or any other
  linerate ttcp -t 127.0.0.1            send 16 MiB to it
  linerate ttcp -t -u 127.0.0.1         the same as 2048 datagrams
  linerate ttcp -r --calls              how long select and recvfrom take, with data and without
  linerate ttcp -t 127.0.0.1 --trace calls.json --trace-on 'call>1ms'
  linerate ttcp -t 10.0.0.1 --dev tap:t0 --ip 10.0.0.2/24      over our own stack

Payload is made and thrown away (-s of the classic, always).")]
#[command(group(clap::ArgGroup::new("role").required(true).args(["transmit", "receive"])))]
pub struct TtcpArgs {
    /// The host to send to
    #[arg(value_name = "HOST", conflicts_with = "receive")]
    pub host: Option<String>,
    /// Send to HOST
    #[arg(short, long, requires = "host", env = "LINERATE_TRANSMIT")]
    pub transmit: bool,
    /// Receive from whoever sends
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
    /// Writes to make
    #[arg(short = 'n', long, value_name = "N", default_value = "2048", value_parser = count, env = "LINERATE_BUFFERS")]
    pub buffers: u64,
    /// Port
    #[arg(short, long, default_value_t = TTCP_PORT, env = "LINERATE_PORT")]
    pub port: u16,
    /// UDP instead of TCP
    #[arg(short, long, env = "LINERATE_UDP")]
    pub udp: bool,
    /// Socket buffers to ask for
    #[arg(short, long, value_name = "SIZE", env = "LINERATE_WINDOW")]
    pub buffer: Option<ByteSize>,
    /// Make payload and throw it away; there is nothing else, and so it is always on
    #[arg(short, long, env = "LINERATE_SINKMODE")]
    pub sinkmode: bool,
    /// How to wait: block, spin, poll, `select[:TIMEOUT]`, epoll, io-uring or `busy-poll[:TIME]`
    /// [default: block to send, select to receive]
    #[arg(long, value_name = "WAY", env = "LINERATE_WAIT")]
    pub wait: Option<Wait>,
    /// Time every system call (of our own stack: every call on it), with what it found (data, room) or
    /// had to wait for
    #[arg(long, env = "LINERATE_CALLS")]
    pub calls: bool,
    /// Write a timeline of the latest calls: for ui.perfetto.dev, or as the Trace Event Format where
    /// FILE ends in .json
    #[arg(long, value_name = "FILE", env = "LINERATE_TRACE")]
    pub trace: Option<PathBuf>,
    /// End the timeline at the first call like this: 'call>1ms'
    #[arg(long, value_name = "CONDITION", value_parser = longer_call, requires = "trace", env = "LINERATE_TRACE_ON")]
    pub trace_on: Option<Duration>,
    /// End with exit code 3 if a finding says that something slowed the run down (kind `cause`)
    #[arg(long, env = "LINERATE_FAIL_ON_FINDING")]
    pub fail_on_finding: bool,
    #[command(flatten)]
    pub stack: NearStackArgs,
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

/// `linerate target-code`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  linerate target-code > target.c               then: cc -std=c99 -O2 -o target target.c
  linerate target-code --stamps > target.c      its UDP echo notes when a question came and left:
                                                linerate latency DEVICE --peer echo -u --device-stamps 16

It serves discard on port 9, chargen on 19 and echo on 7 (or the ports it is started with):
  linerate throughput DEVICE --peer discard     how fast the device receives
  linerate throughput DEVICE --peer chargen -R  how fast it sends
  linerate latency DEVICE --peer echo -u        how soon it answers")]
pub struct TargetCodeArgs {
    /// Answers over UDP carry when their question arrived and when they left
    #[arg(long, env = "LINERATE_STAMPS")]
    pub stamps: bool,
}
