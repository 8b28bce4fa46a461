//! Turns options into a plan; contradictory or impossible options are rejected here.

mod latency;
mod search;
pub mod stack;
mod throughput;

use std::path::PathBuf;
use std::time::Duration;

use linerate_interop::client_protocol;
use linerate_record::event::ErrorReport;
use linerate_record::plan::{
    DEFAULT_PORT, MAX_CALL_BYTES, MAX_DATAGRAM_BYTES, MIN_INTERVAL_NS, Plan, RunKind, SocketPlan,
    TransportProtocol, WaitMode,
};
use linerate_session::client::Client;
use linerate_session::dial::AddressFamily;

use crate::args::MeasureArgs;
use crate::failure::CommandFailure;
use crate::key_source::KeySource;
pub use latency::{LatencySeries, plan_latency};
pub use search::{SearchPlan, plan_search};
pub use throughput::plan_throughput;

/// A measurement: one run or repeats of it.
pub struct MeasurementPlan {
    pub client: Client,
    /// Number of runs.
    pub repeat: u32,
    /// File of the timeline.
    pub trace: Option<PathBuf>,
}

fn reject<T>(object: &str, situation: &str, next_step: &str) -> Result<T, CommandFailure> {
    Err(CommandFailure::usage(ErrorReport::new(
        situation, object, next_step,
    )))
}

fn check_rt_yield(plan: &Plan, requested: bool, args: &MeasureArgs) -> Result<(), CommandFailure> {
    let real_time = plan.sched.client.is_real_time() || plan.sched.server.is_real_time();
    let spins = match &plan.wait {
        Some(wait) => wait.client == WaitMode::Spin || wait.server == WaitMode::Spin,
        // Our stack spins by default.
        None => args.local_stack.stack.dev.is_some(),
    };
    if requested && !(real_time && spins) {
        return reject(
            "--rt-yield",
            "only spinning real-time threads are throttled by the kernel",
            "leave it out, or add --sched fifo:50 --wait spin",
        );
    }
    Ok(())
}

fn check_single_length(args: &MeasureArgs) -> Result<(), CommandFailure> {
    if args.length.len() > 1 {
        return reject(
            "-l",
            "several sizes are only possible for round trips",
            "give one size, or use `linerate latency`",
        );
    }
    Ok(())
}

/// Rejects a timeline of repeated runs.
fn check_single_timeline(traced: bool, args: &MeasureArgs) -> Result<(), CommandFailure> {
    if traced && args.repeat > 1 {
        return reject(
            "--trace with --repeat",
            "one file holds only one timeline",
            "leave one of them out",
        );
    }
    Ok(())
}

/// Rejects options that conflict with an amount (-n).
fn check_amount(args: &MeasureArgs) -> Result<(), CommandFailure> {
    if args.time.is_some() {
        return reject(
            "-n with -t",
            "both an amount and a time end the run",
            "give one of them",
        );
    }
    if !args.omit.is_zero() {
        return reject(
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

fn common_plan(kind: RunKind, args: &MeasureArgs) -> Result<Plan, CommandFailure> {
    let protocol = if args.udp {
        TransportProtocol::Udp
    } else {
        TransportProtocol::Tcp
    };
    let mut plan = Plan::new(kind, protocol, args.host.host.clone());
    if args.port == Some(0) {
        return reject(
            "-p 0",
            "a server cannot have port 0",
            "use the port of its READY line",
        );
    }
    plan.peer_protocol.clone_from(&args.peer);
    let peer_protocol = args.peer.as_deref().and_then(client_protocol);
    let default_port = peer_protocol.map_or(DEFAULT_PORT, |caller| caller.port);
    let ports = (args.host.port, args.port);
    if let (Some(in_host), Some(option)) = ports
        && in_host != option
    {
        return reject(
            &format!("-p {option} with {}", args.host),
            "two ports of one server",
            "give one of them",
        )
        .map_err(|failure: CommandFailure| failure.with_variable("port"));
    }
    plan.port = ports.0.or(ports.1).unwrap_or(default_port);
    if args.parallel == 0 {
        return reject("-P 0", "no flow to measure", "give 1 or more");
    }
    plan.streams = args.parallel;
    if let Some(time) = args.time {
        if time.is_zero() {
            return reject("-t 0", "must be above 0", "give a time such as 5 or 500ms");
        }
        plan.duration_ns = Some(nanos(time));
    }
    plan.omit_ns = nanos(args.omit);
    if !args.interval.is_zero() && nanos(args.interval) < MIN_INTERVAL_NS {
        return reject(
            "-i",
            "shorter than 10 ms: the reports would disturb the measurement",
            "give 10ms or more, or 0 for none",
        );
    }
    plan.interval_ns = (!args.interval.is_zero()).then(|| nanos(args.interval));
    for length in &args.length {
        let option = format!("-l {}", length.0);
        let largest = match protocol {
            TransportProtocol::Udp => MAX_DATAGRAM_BYTES,
            TransportProtocol::Tcp => MAX_CALL_BYTES,
        };
        if length.0 == 0 {
            return reject(&option, "nothing to send", "give a size above 0");
        }
        if length.0 > largest {
            return reject(
                &option,
                &format!("larger than the maximum of a {protocol} call or payload ({largest} B)"),
                "give a smaller size",
            );
        }
        plan.payload_bytes = length.0;
    }
    if let Some(window) = args.window {
        if window.0 == 0 || window.0 > i32::MAX as u64 {
            return reject("-w", "not a valid buffer size", "give 1 B to 2 GiB");
        }
        plan.window_bytes = Some(window.0);
    }
    plan.socket = socket_plan(args)?;
    if let Some(name) = &args.congestion {
        if args.udp {
            return reject(
                "-C with -u",
                "UDP has no congestion control",
                "leave one of them out",
            );
        }
        plan.congestion_control = Some(name.clone());
        plan.congestion_control_requested = true;
    }
    if args.repeat == 0 {
        return reject("--repeat 0", "no run to measure", "give 1 or more");
    }
    plan.bind = args.bind.as_ref().map(ToString::to_string);
    plan.source_port = args.source_port;
    if let Some(port) = args.source_port {
        let flows = args.parallel.saturating_mul(2);
        if port == 0 || u32::from(port) + flows > 65_535 {
            return reject(
                "--source-port",
                "the ports of all flows do not fit below 65536",
                "choose a lower port",
            );
        }
    }
    plan.wait.clone_from(&args.wait);
    plan.hold_latency = args.hold_latency;
    plan.calls = args.calls;
    plan.sched = args.sched.clone().unwrap_or_default();
    plan.cpu = args.cpu.clone().unwrap_or_default();
    Ok(plan)
}

/// Returns the options of the payload sockets.
fn socket_plan(args: &MeasureArgs) -> Result<SocketPlan, CommandFailure> {
    for (option, size) in [
        ("--sndbuf", args.sndbuf),
        ("--rcvbuf", args.rcvbuf),
        ("--rcvlowat", args.rcvlowat),
    ] {
        if size.is_some_and(|size| size.0 == 0 || size.0 > i32::MAX as u64) {
            return reject(option, "not a valid buffer size", "give 1 B to 2 GiB");
        }
    }
    if args.udp && (args.mss.is_some() || args.no_delay || args.rcvlowat.is_some()) {
        return reject(
            "-M, -N or --rcvlowat with -u",
            "UDP has no segment size, no Nagle's algorithm and no low-water mark",
            "leave them out",
        );
    }
    // Limits of the kernel (tcp(7)).
    if args.mss.is_some_and(|mss| !(88..=32_767).contains(&mss)) {
        return reject("-M", "not a valid segment size", "give 88 to 32767 bytes");
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

fn finish_measurement(
    mut plan: Plan,
    args: &MeasureArgs,
) -> Result<MeasurementPlan, CommandFailure> {
    stack::set_local_stack(&mut plan, &args.local_stack, ["--sndbuf", "--rcvbuf"])?;
    for expectation in &args.expect {
        if let Err(error) = expectation.check_kind(plan.kind) {
            return reject(
                "--expect",
                &error.to_string(),
                "choose a figure from this list",
            );
        }
    }
    Ok(MeasurementPlan {
        client: Client {
            plan,
            family: match (args.ipv4, args.ipv6) {
                (true, _) => AddressFamily::V4,
                (_, true) => AddressFamily::V6,
                _ => AddressFamily::Any,
            },
            retry_timeout: args.retry,
            key: args.key.as_ref().map(KeySource::read).transpose()?,
        },
        repeat: args.repeat,
        trace: None,
    })
}

#[cfg(test)]
mod tests;
