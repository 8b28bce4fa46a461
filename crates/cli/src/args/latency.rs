//! `linerate latency`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use linerate_record::device_timestamps::DeviceTimestamps;
use linerate_record::load::BackgroundLoad;
use linerate_record::round_trip::MulticastGroup;

use super::values::{count, duration, per_second, slower_than};
use super::{MeasureArgs, heading};

/// `linerate latency`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples (start `linerate server` in another terminal first):
  linerate latency 127.0.0.1 -u                         UDP round trips of 64 B for 10 s
  linerate latency 127.0.0.1 -u --wait spin             busy-wait at both ends
  linerate latency 127.0.0.1 -n 100k -l 1024            100,000 TCP round trips of 1 KiB
  linerate latency 127.0.0.1 -u --expect 'p99<10ms'     exit code 3 if p99 is longer
  linerate latency 127.0.0.1 -u --repeat 5 -t 2         median of five runs, with its interval
  linerate latency 127.0.0.1 -u --limit 200us           list each slow response with its cause
  linerate latency 127.0.0.1 -u --stages                time of each stage of a round trip
  linerate latency 127.0.0.1 -u --trace slow.pftrace --trace-on 'rtt>1ms'    timeline to a slow one
  linerate latency 127.0.0.1 -u -l 64,1024,32K -t 3     round-trip time by size
  linerate latency 127.0.0.1 -u --compare-waiting       cost of waking threads and of idle states
  linerate latency 127.0.0.1 --reopen                   connect, request and close, each step timed
  linerate latency 127.0.0.1 -u --rate 5k/s             open loop: also timed from the schedule
  linerate latency 127.0.0.1 -u --load tcp              idle, then with a TCP transfer in parallel
  linerate latency 127.0.0.1 -u --peer sockperf         against `sockperf server`
  linerate latency 192.0.2.9 -u --peer echo --device-stamps 16    a device with timestamps")]
pub struct LatencyArgs {
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// Number of round trips instead of a time (500k = 500,000)
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = count, help_heading = heading::SIZES, env = "LINERATE_COUNT")]
    pub count: Option<u64>,
    /// Split the round-trip time by stage, in a second pass with kernel timestamps
    #[arg(long, help_heading = heading::DIAGNOSIS, env = "LINERATE_STAGES")]
    pub stages: bool,
    /// Write a timeline of the timestamp pass with both ends to FILE, for ui.perfetto.dev; in Trace
    /// Event Format if FILE ends in .json
    #[arg(long, value_name = "FILE", help_heading = heading::DIAGNOSIS, env = "LINERATE_TRACE")]
    pub trace: Option<PathBuf>,
    /// End the timeline at the first round trip that meets this: 'rtt>200us'
    #[arg(long, value_name = "CONDITION", value_parser = slower_than, help_heading = heading::DIAGNOSIS, env = "LINERATE_TRACE_ON")]
    pub trace_on: Option<Duration>,
    /// Time after which a missing response counts as lost [default: 1, or 3 round trips of the path]
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = heading::LOAD, env = "LINERATE_TIMEOUT")]
    pub timeout: Option<Duration>,
    /// List each response slower than this with its number, time and, where visible, cause (100us)
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = heading::DIAGNOSIS, env = "LINERATE_LIMIT")]
    pub limit: Option<Duration>,
    /// UDP: read two timestamps of the device from each response: request received, response sent
    /// (16,width=4,order=le,hz=25M) [default: width=8,order=be,hz=1G]
    #[arg(
        long,
        value_name = "OFFSET[,KEY=VALUE]",
        conflicts_with = "reopen",
        help_heading = heading::DIAGNOSIS,
        env = "LINERATE_DEVICE_STAMPS"
    )]
    pub device_stamps: Option<DeviceTimestamps>,
    /// Do not compare responses with their requests
    #[arg(long, help_heading = heading::CHECKS, env = "LINERATE_NO_VERIFY")]
    pub no_verify: bool,
    /// Open and close a socket for each round trip, and time each step
    #[arg(long, conflicts_with = "unconnected", help_heading = heading::SOCKETS, env = "LINERATE_REOPEN")]
    pub reopen: bool,
    /// Use unconnected UDP sockets: each call gives the server's address
    #[arg(long, help_heading = heading::SOCKETS, env = "LINERATE_UNCONNECTED")]
    pub unconnected: bool,
    /// Send requests to a multicast group that the server joins (239.1.2.3, ff12::77%eth0); needs
    /// -u, and from another machine `server --grant multicast`
    #[arg(long, value_name = "GROUP[%IF]", conflicts_with_all = ["reopen", "unconnected"], help_heading = heading::NETWORK, env = "LINERATE_MULTICAST")]
    pub multicast: Option<MulticastGroup>,
    /// Multicast TTL or hop limit [default: 1]
    #[arg(long, value_name = "N", requires = "multicast", value_parser = clap::value_parser!(u8).range(1..), help_heading = heading::NETWORK, env = "LINERATE_TTL")]
    pub ttl: Option<u8>,
    /// Open loop: send this many requests per second on each flow, whether or not responses arrive
    /// (10k/s)
    #[arg(long, value_name = "N/s", value_parser = per_second, conflicts_with = "reopen", help_heading = heading::LOAD, env = "LINERATE_RATE")]
    pub rate: Option<u64>,
    /// Maximum number of outstanding requests on each flow [default: 1, with --rate or --load-curve
    /// 64]
    #[arg(
        long,
        value_name = "M",
        conflicts_with = "reopen",
        help_heading = heading::LOAD,
        env = "LINERATE_OUTSTANDING"
    )]
    pub outstanding: Option<u32>,
    /// Measure latency against load: find the capacity, then run at 10 to 95 % of it for -t each
    /// [default: 2]
    #[arg(long, conflicts_with_all = ["rate", "reopen"], help_heading = heading::LOAD, env = "LINERATE_LOAD_CURVE")]
    pub load_curve: bool,
    /// Measure once without and once with background load: tcp, udp:100M, cpu:2 (cpu:2/2 needs
    /// `server --grant load`). With traffic, each flow sends 500 requests per second unless --rate
    /// or
    /// --outstanding is given (--outstanding 1: each request as soon as the last response arrived)
    #[arg(
        long,
        value_name = "LOAD",
        conflicts_with = "load_curve",
        help_heading = heading::LOAD,
        env = "LINERATE_LOAD"
    )]
    pub load: Option<BackgroundLoad>,
    /// Compare blocking, blocking without idle states, and spinning: cost of wakeups and of idle
    /// states
    #[arg(long, conflicts_with_all = ["load_curve", "load", "wait", "hold_latency", "rate"], help_heading = heading::CPU, env = "LINERATE_COMPARE_WAITING")]
    pub compare_waiting: bool,
    /// Keep all memory of this process resident (mlockall)
    #[arg(long, help_heading = heading::CPU, env = "LINERATE_LOCK_MEMORY")]
    pub lock_memory: bool,
    /// Pause spinning real-time threads for 0.8 ms in every 10 ms, before the kernel throttles them
    #[arg(long, conflicts_with_all = ["rate", "load_curve"], help_heading = heading::CPU, env = "LINERATE_RT_YIELD")]
    pub rt_yield: bool,
}
