//! `linerate throughput`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use linerate_record::pace::PacingMethod;
use linerate_record::plan::PerEnd;
use linerate_stats::units::ByteSize;

use super::values::{duration, fraction, longer_call};
use super::{MeasureArgs, heading};
use crate::load_option::{LoadOption, PacketRateOption};

/// Offloads that send or receive many datagrams in one call, or without a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OffloadOption {
    /// UDP: split one send call into datagrams (UDP_SEGMENT)
    Gso,
    /// UDP: join datagrams for one receive call (UDP_GRO)
    Gro,
    /// Send without a copy: MSG_ZEROCOPY, or from the buffers of the user-space stack
    Zerocopy,
    /// TCP: send from a file in memory
    Sendfile,
    /// TCP: send pages through a pipe
    Splice,
    /// TCP: discard received bytes (MSG_TRUNC), or read them in the buffers of the user-space stack
    Trunc,
    /// One datagram per call, every byte copied
    None,
}

/// [`DEFAULT_BATCH_DATAGRAMS`](linerate_record::plan::DEFAULT_BATCH_DATAGRAMS) as text for the command line.
const BATCH_DEFAULT: &str = "64";

const _: () = assert!(linerate_record::plan::DEFAULT_BATCH_DATAGRAMS == 64);

/// `linerate throughput`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples (start `linerate server` in another terminal first):
  linerate throughput 127.0.0.1                         TCP, sending, 10 s
  linerate throughput 127.0.0.1 -R -t 5                 receiving, 5 s
  linerate throughput 127.0.0.1 -u -b 100M              UDP at 100 Mb/s
  linerate throughput 127.0.0.1 -u --pps 10k -l 200     10,000 datagrams of 200 B per second
  linerate throughput 127.0.0.1 -u -b max:0.1%          highest rate with at most 0.1 % loss
  linerate throughput 127.0.0.1 -P 4 -i 0.5             four flows, a line every half second
  linerate throughput 127.0.0.1 -P 1000 --threads 2     a thousand flows on two threads at each end
  linerate throughput localhost -n 1G -C reno           1 GiB over TCP reno
  linerate throughput 127.0.0.1 --cpu 0/1 --json -q     pinned; the record on standard output
  linerate throughput 127.0.0.1 --connect -P 8          connections per second with eight flows
  linerate throughput 127.0.0.1 --expect 'goodput>1G'   exit code 3 if it is less

Servers of other tools:
  linerate throughput 127.0.0.1 --peer iperf3 --bidir    against `iperf3 -s`
  linerate throughput 127.0.0.1 --peer iperf2 -u -b 10M  against `iperf -s -u`
  linerate throughput 192.0.2.9 --peer discard -u --far-report 'tail -1 log'")]
pub struct ThroughputArgs {
    /// Receive instead of send
    #[arg(short = 'R', long, conflicts_with = "bidir", env = "LINERATE_REVERSE")]
    pub reverse: bool,
    /// Send and receive at the same time
    #[arg(long, env = "LINERATE_BIDIR")]
    pub bidir: bool,
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// Payload rate of each flow (10M = 10^7 bit/s), optionally in bursts of datagrams or bytes
    /// (10M/16, 10M/64K); max or max:LOSS searches for the highest UDP rate with at most that loss
    /// [default: unlimited]
    #[arg(
        short,
        long,
        value_name = "RATE[/BURST]",
        conflicts_with = "pps",
        help_heading = heading::LOAD,
        env = "LINERATE_BITRATE"
    )]
    pub bitrate: Option<LoadOption>,
    /// Datagrams per second of each flow (TCP: calls of -l bytes), in place of a bit rate
    #[arg(long, value_name = "N[/BURST]", help_heading = heading::LOAD, env = "LINERATE_PPS")]
    pub pps: Option<PacketRateOption>,
    /// Time of each trial of -b max; -t sets the time of the confirming trial [default: 500ms, 2]
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = heading::LOAD, env = "LINERATE_TRIAL")]
    pub trial: Option<Duration>,
    /// Width of the interval that ends the search of -b max [default: 1%]
    #[arg(long, value_name = "SHARE", value_parser = fraction, help_heading = heading::LOAD, env = "LINERATE_RESOLUTION")]
    pub resolution: Option<f64>,
    /// Pacing by user (this program), socket (SO_MAX_PACING_RATE) or txtime (SO_TXTIME, UDP)
    #[arg(
        long,
        value_name = "METHOD",
        default_value = "user",
        help_heading = heading::LOAD,
        env = "LINERATE_PACING"
    )]
    pub pacing: PacingMethod,
    /// Measure connections per second: open, one request and response (-l bytes), close
    #[arg(long, conflicts_with_all = ["reverse", "bidir", "bitrate", "pps", "offload", "bytes", "verify", "batch", "trace", "trace_on", "pacing", "trial", "resolution"], help_heading = heading::LOAD, env = "LINERATE_CONNECT")]
    pub connect: bool,
    /// Offloads: UDP gso, gro [default: both, unless paced]; zerocopy, TCP also sendfile, splice,
    /// trunc; or none
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        help_heading = heading::SOCKETS,
        env = "LINERATE_OFFLOAD"
    )]
    pub offload: Vec<OffloadOption>,
    /// Verify every received byte; exit code 1 if one differs
    #[arg(long, help_heading = heading::CHECKS, env = "LINERATE_VERIFY")]
    pub verify: bool,
    /// UDP: send and receive N datagrams per call (sendmmsg, recvmmsg), without gso and gro
    #[arg(
        long,
        value_name = "N",
        num_args = 0..=1,
        default_missing_value = BATCH_DEFAULT,
        help_heading = heading::SOCKETS,
        env = "LINERATE_BATCH"
    )]
    pub batch: Option<u32>,
    /// Number of threads for the flows of a direction [default: one a flow; for many flows one a
    /// CPU]. Without /SERVER both ends use the same
    #[arg(long, value_name = "CLIENT[/SERVER]", help_heading = heading::CPU, env = "LINERATE_THREADS")]
    pub threads: Option<PerEnd<u32>>,
    /// Pause spinning real-time threads for 0.8 ms in every 10 ms, before the kernel throttles them
    #[arg(long, help_heading = heading::CPU, env = "LINERATE_RT_YIELD")]
    pub rt_yield: bool,
    /// Bytes to send in each direction instead of a time
    #[arg(short = 'n', long, value_name = "SIZE", help_heading = heading::SIZES, env = "LINERATE_BYTES")]
    pub bytes: Option<ByteSize>,
    /// With --peer: command that prints within 10 s what the server counted (a board's console);
    /// REGEX matches it with `(?P<bytes>..)`, `(?P<packets>..)`, `(?P<seconds>..)` [default: N
    /// bytes, N packets]
    #[arg(
        long,
        value_name = "CMD[,REGEX]",
        requires = "peer",
        help_heading = heading::DIAGNOSIS,
        env = "LINERATE_FAR_REPORT"
    )]
    pub far_report: Option<String>,
    /// Write a timeline of the latest calls of both ends to FILE, for ui.perfetto.dev; in Trace
    /// Event Format if FILE ends in .json
    #[arg(long, value_name = "FILE", help_heading = heading::DIAGNOSIS, env = "LINERATE_TRACE")]
    pub trace: Option<PathBuf>,
    /// End the timeline at the first call that meets this: 'call>1ms'
    #[arg(long, value_name = "CONDITION", value_parser = longer_call, help_heading = heading::DIAGNOSIS, env = "LINERATE_TRACE_ON")]
    pub trace_on: Option<Duration>,
}
