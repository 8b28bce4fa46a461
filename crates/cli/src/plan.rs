//! From options to a plan: what contradicts itself or makes no sense is refused here.

use std::time::Duration;

use linerate_measure::{Client, Family};
use linerate_metric::event::Problem;
use linerate_metric::plan::{
    Direction, Kind, LARGEST_CALL_BYTES, LARGEST_DATAGRAM_BYTES, Plan, Protocol,
    SHORTEST_INTERVAL_NS, SocketPlan, UdpOffload,
};

use crate::args::{LatencyArgs, MeasureArgs, Offload, ThroughputArgs};
use crate::failure::Failure;

/// A measurement that can be asked for.
pub struct Measurement {
    /// The run.
    pub client: Client,
    /// How often.
    pub repeat: u32,
}

fn refuse<T>(object: &str, situation: &str, next_step: &str) -> Result<T, Failure> {
    Err(Failure::usage(Problem::new(situation, object, next_step)))
}

/// `linerate throughput`.
pub fn throughput(args: &ThroughputArgs) -> Result<Measurement, Failure> {
    let mut plan = common(Kind::Throughput, &args.measure)?;
    if args.reverse {
        plan.directions = vec![Direction::Receive];
    } else if args.bidir {
        plan.directions = vec![Direction::Send, Direction::Receive];
    }
    plan.rate_bps = args.bitrate.map(|rate| rate.0).filter(|&rate| rate > 0);
    if let (Some(rate), Protocol::Tcp, None) = (plan.rate_bps, plan.protocol, args.measure.length) {
        // A paced stream leaves in small steps: what the rate gives in a millisecond.
        plan.payload_bytes = (rate / 8 / 1_000).clamp(1_024, plan.payload_bytes);
    }
    if !args.offload.is_empty() {
        if !args.measure.udp {
            return refuse(
                "--offload without -u",
                "gso and gro here are UDP's",
                "add -u; TCP's are settings of the interface (`ethtool -k`)",
            );
        }
        if args.offload.contains(&Offload::None) && args.offload.len() > 1 {
            return refuse("--offload", "none excludes the others", "leave none out");
        }
        plan.udp_offload = UdpOffload {
            gso: Some(args.offload.contains(&Offload::Gso)),
            gro: Some(args.offload.contains(&Offload::Gro)),
            asked: true,
        };
    }
    if let Some(bytes) = args.bytes {
        if bytes.0 == 0 {
            return refuse("-n 0", "there is nothing to move", "give a size above 0");
        }
        amount(&args.measure)?;
        plan.duration_ns = None;
        plan.amount_bytes = Some(bytes.0);
    }
    finish(plan, &args.measure)
}

/// `linerate latency`.
pub fn latency(args: &LatencyArgs) -> Result<Measurement, Failure> {
    let mut plan = common(Kind::Latency, &args.measure)?;
    if let Some(count) = args.count {
        if count == 0 {
            return refuse("-n 0", "there is nothing to ask", "give a count above 0");
        }
        amount(&args.measure)?;
        plan.duration_ns = None;
        plan.round_trips = Some(count);
    }
    if args.timeout < Duration::from_millis(1) {
        return refuse("--timeout", "shorter than 1 ms", "give 1ms or more");
    }
    plan.answer_timeout_ns = Some(nanos(args.timeout));
    finish(plan, &args.measure)
}

/// What an amount excludes.
fn amount(args: &MeasureArgs) -> Result<(), Failure> {
    if args.time.is_some() {
        return refuse(
            "-n with -t",
            "both an amount and a time end the run",
            "give one of them",
        );
    }
    if !args.omit.is_zero() {
        return refuse(
            "-n with -O",
            "omitted time would use up the amount",
            "give a time (-t) with -O",
        );
    }
    Ok(())
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn common(kind: Kind, args: &MeasureArgs) -> Result<Plan, Failure> {
    let protocol = if args.udp {
        Protocol::Udp
    } else {
        Protocol::Tcp
    };
    let mut plan = Plan::new(kind, protocol, args.host.clone());
    if args.port == 0 {
        return refuse(
            "-p 0",
            "a far end has no port 0",
            "give the port of its READY line",
        );
    }
    plan.port = args.port;
    if args.parallel == 0 {
        return refuse("-P 0", "there is nothing to measure", "give 1 or more");
    }
    plan.streams = args.parallel;
    if let Some(time) = args.time {
        if time.is_zero() {
            return refuse("-t 0", "there is nothing to measure", "give a time above 0");
        }
        plan.duration_ns = Some(nanos(time));
    }
    plan.omit_ns = nanos(args.omit);
    if !args.interval.is_zero() && nanos(args.interval) < SHORTEST_INTERVAL_NS {
        return refuse(
            "-i",
            "shorter than 10 ms: the reports would disturb what they report",
            "give 10ms or more, or 0 for none",
        );
    }
    plan.interval_ns = (!args.interval.is_zero()).then(|| nanos(args.interval));
    if let Some(length) = args.length {
        let option = format!("-l {}", length.0);
        let largest = match protocol {
            Protocol::Udp => LARGEST_DATAGRAM_BYTES,
            Protocol::Tcp => LARGEST_CALL_BYTES,
        };
        if length.0 == 0 {
            return refuse(&option, "there is nothing to send", "give a size above 0");
        }
        if length.0 > largest {
            return refuse(
                &option,
                &format!("larger than a {protocol} payload or call can be ({largest} B)"),
                "give a smaller size",
            );
        }
        plan.payload_bytes = length.0;
    }
    if let Some(window) = args.window {
        if window.0 == 0 || window.0 > i32::MAX as u64 {
            return refuse("-w", "no buffer has that size", "give 1 B to 2 GiB");
        }
        plan.window_bytes = Some(window.0);
    }
    plan.socket = socket(args)?;
    if let Some(name) = &args.congestion {
        if args.udp {
            return refuse(
                "-C with -u",
                "UDP has no congestion control",
                "leave one of them out",
            );
        }
        plan.congestion_control = Some(name.clone());
        plan.congestion_control_asked = true;
    }
    if args.repeat == 0 {
        return refuse("--repeat 0", "there is nothing to repeat", "give 1 or more");
    }
    plan.bind = args.bind.as_ref().map(ToString::to_string);
    plan.source_port = args.source_port;
    if let Some(port) = args.source_port {
        let flows = args.parallel.saturating_mul(2);
        if port == 0 || u32::from(port) + flows > 65_535 {
            return refuse(
                "--source-port",
                "the ports of all flows do not fit below 65536",
                "choose a lower port",
            );
        }
    }
    plan.wait.clone_from(&args.wait);
    plan.hold_latency = args.hold_latency;
    plan.sched = args.sched.clone().unwrap_or_default();
    plan.cpu = args.cpu.clone().unwrap_or_default();
    Ok(plan)
}

/// What is asked of the payload sockets.
fn socket(args: &MeasureArgs) -> Result<SocketPlan, Failure> {
    for (option, size) in [
        ("--sndbuf", args.sndbuf),
        ("--rcvbuf", args.rcvbuf),
        ("--rcvlowat", args.rcvlowat),
    ] {
        if size.is_some_and(|size| size.0 == 0 || size.0 > i32::MAX as u64) {
            return refuse(option, "no buffer has that size", "give 1 B to 2 GiB");
        }
    }
    if args.udp && (args.mss.is_some() || args.no_delay || args.rcvlowat.is_some()) {
        return refuse(
            "-M, -N or --rcvlowat with -u",
            "UDP has no segments, no Nagle and no stream",
            "leave them out",
        );
    }
    // tcp(7): outside these bounds the kernel refuses.
    if args.mss.is_some_and(|mss| !(88..=32_767).contains(&mss)) {
        return refuse("-M", "no segment has that size", "give 88 to 32767 bytes");
    }
    Ok(SocketPlan {
        send_buffer_bytes: args.sndbuf.map(|size| size.0),
        receive_buffer_bytes: args.rcvbuf.map(|size| size.0),
        mss_bytes: args.mss,
        no_delay: args.no_delay,
        tos: args.tos,
        priority: args.socket_priority,
        receive_low_water_bytes: args.rcvlowat.and_then(|size| u32::try_from(size.0).ok()),
    })
}

fn finish(plan: Plan, args: &MeasureArgs) -> Result<Measurement, Failure> {
    for expectation in &args.expect {
        if let Err(error) = expectation.check_kind(plan.kind) {
            return refuse(
                "--expect",
                &error.to_string(),
                "choose a figure of this list",
            );
        }
    }
    Ok(Measurement {
        client: Client {
            plan,
            family: match (args.ipv4, args.ipv6) {
                (true, _) => Family::V4,
                (_, true) => Family::V6,
                _ => Family::Any,
            },
            retry: args.retry,
        },
        repeat: args.repeat,
    })
}
