//! `linerate latency`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use linerate_metric::device_stamps::DeviceStamps;
use linerate_metric::load::Background;
use linerate_metric::round_trip::Group;

use super::MeasureArgs;
use super::values::{count, duration, per_second, slower_than};

/// `linerate latency`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples (start `linerate server` in another terminal first):
  linerate latency 127.0.0.1 -u                         UDP round trips of 64 B for 10 s
  linerate latency 127.0.0.1 -u --wait spin             neither end ever sleeps
  linerate latency 127.0.0.1 -n 100k -l 1024            100,000 TCP round trips of 1 KiB
  linerate latency 127.0.0.1 -u --expect 'p99<10ms'     exit code 3 if it takes longer
  linerate latency 127.0.0.1 -u --repeat 5 -t 2         median of five runs, with its interval
  linerate latency 127.0.0.1 -u --limit 200us           each slow answer with its cause
  linerate latency 127.0.0.1 -u --stages                where the time of a round trip goes
  linerate latency 127.0.0.1 -u --trace slow.pftrace --trace-on 'rtt>1ms'    the way to a slow one
  linerate latency 127.0.0.1 -u -l 64,1024,32K -t 3     what a round trip costs by size
  linerate latency 127.0.0.1 -u --compare-waiting       what waking threads and halting cores cost
  linerate latency 127.0.0.1 --reopen                   connect, ask and close each time, by step
  linerate latency 127.0.0.1 -u --rate 5k/s             on a schedule: from when each was due, too
  linerate latency 127.0.0.1 -u --load tcp              idle and beside a TCP transfer
  linerate latency 127.0.0.1 -u --peer sockperf         against `sockperf server`
  linerate latency 192.0.2.9 -u --peer echo --device-stamps 16    a device that notes its times")]
pub struct LatencyArgs {
    /// Round trips to make instead of a time (500k = 500,000)
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = count, env = "LINERATE_COUNT")]
    pub count: Option<u64>,
    /// Split the round trip by stage, in a second pass with the kernel's time stamps
    #[arg(long, env = "LINERATE_STAGES")]
    pub stages: bool,
    /// Write a timeline of the stamped pass, both ends on one axis: for ui.perfetto.dev, or as the
    /// Trace Event Format where FILE ends in .json
    #[arg(long, value_name = "FILE", env = "LINERATE_TRACE")]
    pub trace: Option<PathBuf>,
    /// End the timeline at the first round trip like this: 'rtt>200us'
    #[arg(long, value_name = "CONDITION", value_parser = slower_than, env = "LINERATE_TRACE_ON")]
    pub trace_on: Option<Duration>,
    /// An answer later than this counts as lost
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = duration, env = "LINERATE_TIMEOUT")]
    pub timeout: Duration,
    /// List each answer above this with its number, its time and its cause as far as it shows (100us)
    #[arg(long, value_name = "TIME", value_parser = duration, env = "LINERATE_LIMIT")]
    pub limit: Option<Duration>,
    /// UDP: read when a question came into the device and when its answer left, two counts of its clock
    /// in the answer (16,width=4,order=le,hz=25M) [default: width=8,order=be,hz=1G]
    #[arg(
        long,
        value_name = "OFFSET[,KEY=VALUE]",
        conflicts_with = "reopen",
        env = "LINERATE_DEVICE_STAMPS"
    )]
    pub device_stamps: Option<DeviceStamps>,
    /// Do not compare answers with their questions
    #[arg(long, env = "LINERATE_NO_VERIFY")]
    pub no_verify: bool,
    /// Open and close a socket for each round trip, and say what each step costs
    #[arg(long, conflicts_with = "unconnected", env = "LINERATE_REOPEN")]
    pub reopen: bool,
    /// UDP sockets that are not connected: each call names the far end
    #[arg(long, env = "LINERATE_UNCONNECTED")]
    pub unconnected: bool,
    /// Ask a multicast group that the server joins (239.1.2.3, ff12::77%eth0); needs -u, and from
    /// another machine `server --grant multicast`
    #[arg(long, value_name = "GROUP[%IF]", conflicts_with_all = ["reopen", "unconnected"], env = "LINERATE_MULTICAST")]
    pub multicast: Option<Group>,
    /// Networks that questions to a group may cross [default: 1]
    #[arg(long, value_name = "N", requires = "multicast", value_parser = clap::value_parser!(u8).range(1..), env = "LINERATE_TTL")]
    pub ttl: Option<u8>,
    /// Ask on a fixed schedule, so many a second on each flow, whatever the answers do (10k/s)
    #[arg(long, value_name = "N/s", value_parser = per_second, conflicts_with = "reopen", env = "LINERATE_RATE")]
    pub rate: Option<u64>,
    /// Questions that may be open at a time on each flow [default: 1, with --rate or --load-curve 64]
    #[arg(
        long,
        value_name = "M",
        conflicts_with = "reopen",
        env = "LINERATE_OUTSTANDING"
    )]
    pub outstanding: Option<u32>,
    /// Latency against load: the capacity, then 10 to 95 % of it, each for the time of -t [default: 2]
    #[arg(long, conflicts_with_all = ["rate", "reopen"], env = "LINERATE_LOAD_CURVE")]
    pub load_curve: bool,
    /// Run once alone and once beside a load: tcp, udp:100M, cpu:2; cpu:2/2 needs `server --grant load`.
    /// Beside traffic each flow asks 500 questions a second, unless --rate or --outstanding (1: each as soon
    /// as the last is answered) says otherwise
    #[arg(
        long,
        value_name = "LOAD",
        conflicts_with = "load_curve",
        env = "LINERATE_LOAD"
    )]
    pub load: Option<Background>,
    /// Run blocking, blocking with the cores held, and spinning in turn: what waking and halting cost
    #[arg(long, conflicts_with_all = ["load_curve", "load", "wait", "hold_latency", "rate"], env = "LINERATE_COMPARE_WAITING")]
    pub compare_waiting: bool,
    /// Keep all memory of this process resident (mlockall)
    #[arg(long, env = "LINERATE_LOCK_MEMORY")]
    pub lock_memory: bool,
    /// Real-time threads that spin pause for 0.8 ms in 10 before the kernel makes them
    #[arg(long, conflicts_with_all = ["rate", "load_curve"], env = "LINERATE_RT_YIELD")]
    pub rt_yield: bool,
    /// The measurement
    #[command(flatten)]
    pub measure: MeasureArgs,
}
