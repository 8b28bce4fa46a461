//! `linerate throughput`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use linerate_metric::pace::Pacing;
use linerate_metric::plan::Ends;
use linerate_metric::units::ByteSize;

use super::MeasureArgs;
use super::values::{duration, fraction, longer_call};
use crate::load::{Load, Pps};

/// What the kernel can do for many datagrams in one call, or without a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Offload {
    /// Cut what one call sends into datagrams (UDP_SEGMENT)
    Gso,
    /// Join datagrams for one receive call (UDP_GRO)
    Gro,
    /// Send without a copy: MSG_ZEROCOPY, or in our own stack's buffers
    Zerocopy,
    /// TCP: send from a file in memory
    Sendfile,
    /// TCP: send pages through a pipe
    Splice,
    /// TCP: throw away what arrives (MSG_TRUNC), or see it in our own stack's buffers
    Trunc,
    /// Nothing of all that: one datagram a call, every byte copied
    None,
}

/// [`BATCH`](linerate_metric::plan::BATCH) as it stands on a command line.
const BATCH_DEFAULT: &str = "64";

const _: () = assert!(linerate_metric::plan::BATCH == 64);

/// `linerate throughput`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples (start `linerate server` in another terminal first):
  linerate throughput 127.0.0.1                         TCP, sending, 10 s
  linerate throughput 127.0.0.1 -R -t 5                 receiving, 5 s
  linerate throughput 127.0.0.1 -u -b 100M              UDP at 100 Mb/s
  linerate throughput 127.0.0.1 -u --pps 10k -l 200     10,000 datagrams of 200 B a second
  linerate throughput 127.0.0.1 -u -b max:0.1%          the highest rate with 0.1 % loss
  linerate throughput 127.0.0.1 -P 4 -i 0.5             four flows, a line every half second
  linerate throughput 127.0.0.1 -P 1000 --threads 2     a thousand flows on two threads at each end
  linerate throughput localhost -n 1G -C reno           1 GiB over TCP reno
  linerate throughput 127.0.0.1 --cpu 0/1 --json -q     pinned; the record on standard output
  linerate throughput 127.0.0.1 --connect -P 8          connections a second, by eight flows
  linerate throughput 127.0.0.1 --expect 'goodput>1G'   exit code 3 if it is less

Other programs as the far end:
  linerate throughput 127.0.0.1 --peer iperf3 --bidir   against `iperf3 -s`
  linerate throughput 127.0.0.1 --peer iperf2 -u -b 10M against `iperf -s -u`
  linerate throughput 192.0.2.9 --peer discard -u --far-report 'sleep 2; tail -1 log'    a board's count")]
pub struct ThroughputArgs {
    /// Receive instead of sending
    #[arg(short = 'R', long, conflicts_with = "bidir", env = "LINERATE_REVERSE")]
    pub reverse: bool,
    /// Both directions at the same time
    #[arg(long, env = "LINERATE_BIDIR")]
    pub bidir: bool,
    /// Payload rate of each flow (10M = 10^7 bit/s), in bursts of datagrams or bytes (10M/16, 10M/64K);
    /// max or max:LOSS searches the highest UDP rate with at most that loss; without it: as fast as it goes
    #[arg(
        short,
        long,
        value_name = "RATE[/BURST]",
        conflicts_with = "pps",
        env = "LINERATE_BITRATE"
    )]
    pub bitrate: Option<Load>,
    /// Datagrams per second of each flow instead of a rate (TCP: calls of -l bytes)
    #[arg(long, value_name = "N[/BURST]", env = "LINERATE_PPS")]
    pub pps: Option<Pps>,
    /// -b max: time of each trial; -t is the time that confirms the winner [default: 500ms, 2]
    #[arg(long, value_name = "TIME", value_parser = duration, env = "LINERATE_TRIAL")]
    pub trial: Option<Duration>,
    /// -b max: how close to the highest rate the search comes [default: 1%]
    #[arg(long, value_name = "SHARE", value_parser = fraction, env = "LINERATE_RESOLUTION")]
    pub resolution: Option<f64>,
    /// Who keeps the rate: user (this program), socket (SO_MAX_PACING_RATE) or txtime (SO_TXTIME, UDP)
    #[arg(
        long,
        value_name = "WAY",
        default_value = "user",
        env = "LINERATE_PACING"
    )]
    pub pacing: Pacing,
    /// Connections a second: each is opened, asked and answered once (-l bytes), and closed
    #[arg(long, conflicts_with_all = ["reverse", "bidir", "bitrate", "pps", "offload", "bytes", "verify", "batch", "trace", "trace_on", "pacing", "trial", "resolution"], env = "LINERATE_CONNECT")]
    pub connect: bool,
    /// What the kernel does for many datagrams in one call, UDP: gso, gro [default: both, unless
    /// paced]; without a copy: zerocopy, TCP also sendfile, splice, trunc; or none
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        env = "LINERATE_OFFLOAD"
    )]
    pub offload: Vec<Offload>,
    /// Compare the content of every byte received; exit code 1 if one differs
    #[arg(long, env = "LINERATE_VERIFY")]
    pub verify: bool,
    /// UDP: N datagrams a call without gso and gro, each on its own way through the kernel
    #[arg(
        long,
        value_name = "N",
        num_args = 0..=1,
        default_missing_value = BATCH_DEFAULT,
        env = "LINERATE_BATCH"
    )]
    pub batch: Option<u32>,
    /// Threads that move the flows of a direction; without it one a flow, or one a core for many
    /// flows. Without /FAR the far end does as this one
    #[arg(long, value_name = "N[/FAR]", env = "LINERATE_THREADS")]
    pub threads: Option<Ends<u32>>,
    /// Real-time threads that spin pause for 0.8 ms in 10 before the kernel makes them
    #[arg(long, env = "LINERATE_RT_YIELD")]
    pub rt_yield: bool,
    /// Bytes to move in each direction instead of a time
    #[arg(short = 'n', long, value_name = "SIZE", env = "LINERATE_BYTES")]
    pub bytes: Option<ByteSize>,
    /// With --peer: a command that tells within 10 s what the far end counted (a board's console); REGEX
    /// finds it by `(?P<bytes>..)`, `(?P<packets>..)`, `(?P<seconds>..)` [default: N bytes, N packets]
    #[arg(
        long,
        value_name = "CMD[,REGEX]",
        requires = "peer",
        env = "LINERATE_FAR_REPORT"
    )]
    pub far_report: Option<String>,
    /// Write a timeline of the latest calls, both ends on one axis: for ui.perfetto.dev, or as the
    /// Trace Event Format where FILE ends in .json
    #[arg(long, value_name = "FILE", env = "LINERATE_TRACE")]
    pub trace: Option<PathBuf>,
    /// End the timeline at the first call like this: 'call>1ms'
    #[arg(long, value_name = "CONDITION", value_parser = longer_call, env = "LINERATE_TRACE_ON")]
    pub trace_on: Option<Duration>,
    /// The measurement
    #[command(flatten)]
    pub measure: MeasureArgs,
}
