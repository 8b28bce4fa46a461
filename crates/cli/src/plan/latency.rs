//! `linerate latency`: round trips, as one run or a series of runs.

use std::time::Duration;

use linerate_record::load::BackgroundLoad;
use linerate_record::plan::{Plan, RunKind, TimestampLevel, TransportProtocol, WaitMode};
use linerate_record::round_trip::{MAX_OUTSTANDING, MulticastGroup, RoundTripPlan, SocketMode};
use linerate_session::client::Client;
use linerate_session::path_timeouts::MIN_RESPONSE_TIMEOUT_NS;

use super::{
    MeasurementPlan, check_amount, check_rt_yield, check_single_timeline, common_plan,
    finish_measurement, nanos, reject,
};
use crate::args::LatencyArgs;
use crate::failure::CommandFailure;

/// Runs that `linerate latency` makes.
pub enum LatencySeries {
    /// One run, or repeats of it.
    Single(MeasurementPlan),
    /// One run for each size.
    Sizes(Client, Vec<u64>),
    /// Wait modes in alternation.
    Waiting(Client),
    /// Latency against load.
    Curve(Client),
    /// Without and with a background load; the name is the TCP congestion control of the load.
    Loaded(Client, BackgroundLoad, Option<String>),
}

/// Default maximum of outstanding requests on a flow with a schedule: more than a path of 1 ms
/// needs at 50,000 requests per second.
const DEFAULT_OUTSTANDING: u32 = 64;

/// Default requests per second with background traffic: 0.4 Mb/s with 64 B of payload, little on
/// any path where queues matter, and 1,000 requests in the shortest useful run.
const DEFAULT_LOADED_RATE: u64 = 500;

/// Default time at each load of a curve.
const CURVE_STEP: Duration = Duration::from_secs(2);

/// Plans `linerate latency`.
pub fn plan_latency(args: &LatencyArgs) -> Result<LatencySeries, CommandFailure> {
    let traffic = is_traffic(args.load);
    let loads_server = matches!(
        args.load,
        Some(BackgroundLoad::Cpu {
            server_threads: Some(1..),
            ..
        })
    );
    let measure = &args.measure;
    if measure.peer.is_some()
        && (args.load_curve || args.compare_waiting || traffic || loads_server)
    {
        return reject(
            "--load tcp, udp or cpu:N/SERVER, --load-curve or --compare-waiting with --peer",
            "they need a linerate server",
            "leave one of them out; --load cpu without /SERVER loads only this end and works with any server",
        );
    }
    if measure.local_stack.stack.dev.is_some() && (args.compare_waiting || traffic) {
        return reject(
            "--compare-waiting, --load tcp or --load udp with --dev",
            "a port has one stack, which polls: a parallel run would need another one",
            "leave one of them out; --load cpu works with --dev",
        );
    }
    let load_congestion = load_congestion(args)?;
    // UDP requests have no congestion control themselves.
    let mut measure = measure.clone();
    if measure.udp {
        measure.congestion = None;
    }
    let measure = &measure;
    let mut plan = common_plan(RunKind::Latency, measure)?;
    if let Some(count) = args.count {
        if count == 0 {
            return reject("-n 0", "no request to send", "give a count above 0");
        }
        check_amount(measure)?;
        plan.duration_ns = None;
        plan.round_trips = Some(count);
    }
    if (args.timeout).is_some_and(|timeout| timeout < Duration::from_millis(1)) {
        return reject("--timeout", "shorter than 1 ms", "give 1ms or more");
    }
    plan.response_timeout_ns = args.timeout.map(nanos);
    plan.response_timeout_requested = args.timeout.is_some();
    plan.round_trip = round_trip_plan(args, &plan)?;
    let by_ring = plan.wait.as_ref();
    let by_ring =
        by_ring.is_some_and(|wait| [wait.client, wait.server].contains(&WaitMode::IoUring));
    let is_special =
        plan.round_trip.socket_mode != SocketMode::Connected || plan.round_trip.group.is_some();
    if by_ring && is_special {
        return reject(
            "--wait io-uring with --reopen, --unconnected or --multicast",
            "io_uring sends and receives need one connected socket",
            "leave one of them out, or use another wait mode",
        );
    }
    plan.timestamps = timestamp_kind(args, &plan)?;
    plan.trace_on_ns = args.trace_on.map(nanos);
    check_single_timeline(args.trace.is_some(), measure)?;
    if args.load_curve && measure.time.is_none() && args.count.is_none() {
        plan.duration_ns = Some(nanos(CURVE_STEP));
    }
    let has_several_sizes = measure.length.len() > 1;
    let series = [
        has_several_sizes,
        args.load_curve,
        args.load.is_some(),
        args.compare_waiting,
    ];
    let count = series.iter().filter(|&&is| is).count();
    if count == 0 {
        let measurement = finish_measurement(plan, measure)?;
        return Ok(LatencySeries::Single(MeasurementPlan {
            trace: args.trace.clone(),
            ..measurement
        }));
    }
    if !plan.timestamps.is_none() {
        return reject(
            "--stages or --trace",
            "they examine one run, and this command makes several",
            "leave one of them out",
        );
    }
    if count > 1 || measure.repeat > 1 {
        return reject(
            "several sizes, --load-curve, --load, --compare-waiting and --repeat",
            "each of them makes several runs",
            "give one of them at a time",
        );
    }
    if !measure.expect.is_empty() {
        return reject(
            "--expect",
            "a threshold applies to one kind of run, and this command makes several",
            "leave it out; --json has all figures for scripts",
        );
    }
    let client = finish_measurement(plan, measure)?.client;
    if has_several_sizes {
        let mut sizes: Vec<u64> = measure.length.iter().map(|length| length.0).collect();
        sizes.sort_unstable();
        sizes.dedup();
        return Ok(LatencySeries::Sizes(client, sizes));
    }
    Ok(match args.load {
        Some(load) => LatencySeries::Loaded(client, load, load_congestion),
        None if args.load_curve => LatencySeries::Curve(client),
        None => LatencySeries::Waiting(client),
    })
}

/// Returns the data that the timestamp passes record, if any.
fn timestamp_kind(args: &LatencyArgs, plan: &Plan) -> Result<TimestampLevel, CommandFailure> {
    let option = match (&args.trace, args.stages) {
        (Some(_), _) => "--trace",
        (None, true) => "--stages",
        (None, false) if args.trace_on.is_some() => {
            return reject(
                "--trace-on without --trace",
                "no timeline to end",
                "give the timeline's file with --trace",
            );
        }
        (None, false) => return Ok(TimestampLevel::None),
    };
    if plan.streams > 1 {
        return reject(
            &format!("{option} with -P"),
            "stages are measured on one flow",
            "leave -P out",
        );
    }
    for (is_given, other_option, why, next_step) in [
        (
            args.reopen,
            "--reopen",
            "kernel timestamps are numbered per socket, and each request uses a new one",
            "leave one of them out: --reopen alone splits a round trip into open, bind, connect, send, \
             receive and close",
        ),
        (
            args.unconnected,
            "--unconnected",
            "the timestamp passes use connected sockets",
            "leave one of them out: the difference of p50 with and without --unconnected is the saving \
             of connected sockets",
        ),
        (
            args.multicast.is_some(),
            "--multicast",
            "the timestamp passes use connected sockets, which a group cannot have",
            "leave one of them out, and split the unicast round trip of the same path",
        ),
        (
            plan.peer_protocol.is_some(),
            "--peer",
            "half of the stages come from timestamps of linerate's server",
            "leave one of them out: stages need `linerate server`, without --peer",
        ),
    ] {
        if is_given {
            return reject(&format!("{option} with {other_option}"), why, next_step);
        }
    }
    if plan.round_trip.is_pipelined() && plan.round_trip.rate_per_second.is_none() {
        return reject(
            &format!("{option} with --outstanding or --load-curve"),
            "stages are measured with one outstanding request",
            "leave one of them out, or give a --rate: the timestamp passes then use it",
        );
    }
    if plan.payload_bytes < HEADER_BYTES {
        return reject(
            &format!("{option} with -l {}", plan.payload_bytes),
            "the message is too short for its number",
            "give -l 16 or more",
        );
    }
    if let Some(wait) = &plan.wait
        && [wait.client, wait.server].contains(&WaitMode::IoUring)
    {
        return reject(
            &format!("{option} with --wait {wait}"),
            "io_uring receives deliver no kernel timestamps",
            "use another wait mode: `--wait epoll` is the closest",
        );
    }
    Ok(if args.trace.is_some() {
        TimestampLevel::Driver
    } else {
        TimestampLevel::Scheduler
    })
}

/// Bytes of the sequence number and the time in a message.
const HEADER_BYTES: u64 = 16;

/// Returns the options of requests and responses.
fn round_trip_plan(args: &LatencyArgs, plan: &Plan) -> Result<RoundTripPlan, CommandFailure> {
    if args.limit.is_some_and(|limit| limit.is_zero()) {
        return reject(
            "--limit 0",
            "all responses would be slow",
            "give a time above 0",
        );
    }
    let timeout = args.timeout;
    if (args.limit.zip(timeout)).is_some_and(|(limit, timeout)| limit >= timeout) {
        return reject(
            "--limit",
            "a response that late counts as lost (--timeout)",
            "give a shorter limit, or a longer --timeout",
        );
    }
    let udp = plan.protocol == TransportProtocol::Udp;
    for (option, is_given) in [
        ("--unconnected", args.unconnected),
        ("--multicast", args.multicast.is_some()),
    ] {
        if is_given && !udp {
            return reject(
                option,
                "a TCP connection has one peer",
                "add -u, or leave it out",
            );
        }
    }
    check_device_stamps(args, plan)?;
    let rate = args.rate.or_else(|| default_loaded_rate(args, plan));
    let scheduled = rate.is_some() || args.load_curve;
    let default = match (rate, args.rate) {
        // As many as are sent until the first one times out: no request waits for another's
        // response.
        (Some(rate), None) => {
            let timeout = timeout.unwrap_or(Duration::from_nanos(MIN_RESPONSE_TIMEOUT_NS));
            let in_flight = (rate as f64 * timeout.as_secs_f64()).ceil() as u32;
            in_flight.clamp(DEFAULT_OUTSTANDING, MAX_OUTSTANDING)
        }
        _ if scheduled => DEFAULT_OUTSTANDING,
        _ => 1,
    };
    let outstanding = args.outstanding.unwrap_or(default);
    if !(1..=MAX_OUTSTANDING).contains(&outstanding) {
        let option = format!("--outstanding {outstanding}");
        return reject(&option, "out of range", "give 1 to 65536");
    }
    if (scheduled || outstanding > 1) && plan.payload_bytes < MIN_NUMBERED_BYTES {
        return reject(
            "-l with --rate, --outstanding or --load-curve",
            "messages below 8 B have no number to match responses with requests",
            "give 8 or more",
        );
    }
    check_rt_yield(plan, args.rt_yield, &args.measure)?;
    if args.rt_yield && (scheduled || outstanding > 1) {
        return reject(
            "--rt-yield with --rate, --outstanding or --load-curve",
            "a schedule has no idle time between requests in which a thread could pause",
            "leave one of them out, or use --wait block",
        );
    }
    if args.rt_yield && (args.stages || args.trace.is_some()) {
        return reject(
            "--rt-yield with --stages or --trace",
            "a pause would be counted in the stages",
            "leave one of them out",
        );
    }
    Ok(RoundTripPlan {
        verify: !args.no_verify,
        limit_ns: args.limit.map(nanos),
        socket_mode: match (args.reopen, args.unconnected) {
            (true, _) => SocketMode::Reopened,
            (_, true) => SocketMode::Unconnected,
            _ => SocketMode::Connected,
        },
        rate_per_second: rate,
        outstanding,
        group: args.multicast.clone().map(|group| MulticastGroup {
            ttl: args.ttl.unwrap_or(group.ttl),
            ..group
        }),
        rt_yield: args.rt_yield,
        lock_memory: args.lock_memory,
        device_timestamps: args.device_stamps,
        ..RoundTripPlan::default()
    })
}

/// Returns the default request rate with background traffic. A closed loop would send mostly while
/// the queue that the load fills is empty, because it waits for responses.
fn default_loaded_rate(args: &LatencyArgs, plan: &Plan) -> Option<u64> {
    let is_possible = !args.reopen && !args.rt_yield && plan.payload_bytes >= MIN_NUMBERED_BYTES;
    (is_traffic(args.load) && args.outstanding.is_none() && is_possible)
        .then_some(DEFAULT_LOADED_RATE)
}

/// Returns the congestion control of the load, which `-C` names. UDP requests have none.
fn load_congestion(args: &LatencyArgs) -> Result<Option<String>, CommandFailure> {
    let Some(name) = &args.measure.congestion else {
        return Ok(None);
    };
    let over_tcp = matches!(args.load, Some(BackgroundLoad::Tcp(_)));
    if args.measure.udp && !over_tcp {
        return reject(
            "-C with -u",
            "UDP has no congestion control",
            "leave one of them out; with --load tcp it applies to the load",
        );
    }
    Ok(over_tcp.then(|| name.clone()))
}

/// Returns whether a load is packets, not CPU load.
fn is_traffic(load: Option<BackgroundLoad>) -> bool {
    load.is_some_and(|load| !matches!(load, BackgroundLoad::Cpu { .. }))
}

/// Checks `--device-stamps`.
fn check_device_stamps(args: &LatencyArgs, plan: &Plan) -> Result<(), CommandFailure> {
    let Some(stamps) = args.device_stamps else {
        return Ok(());
    };
    let option = format!("--device-stamps {stamps}");
    if plan.protocol != TransportProtocol::Udp {
        return reject(
            &format!("{option} without -u"),
            "a TCP stream has no separate responses",
            "add -u",
        );
    }
    if let Some(peer) = plan.peer_protocol.as_deref().filter(|peer| *peer != "echo") {
        return reject(
            &format!("{option} with --peer {peer}"),
            "responses of that tool have a header of their own",
            "use --peer echo, or leave one of them out",
        );
    }
    let sizes = args.measure.length.iter().map(|length| length.0).min();
    match stamps.fit_error(sizes.unwrap_or(plan.payload_bytes)) {
        Some(why) => reject(&option, &why, "choose another offset, or a larger -l"),
        None => Ok(()),
    }
}

/// Minimum message size in bytes that holds a sequence number.
const MIN_NUMBERED_BYTES: u64 = 8;

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;

    use super::*;
    use crate::args::{Cli, Command, command};

    fn latency_args(options: &str) -> LatencyArgs {
        let line = format!("linerate latency host {options}");
        let matches = command().try_get_matches_from(line.split_whitespace());
        let Command::Latency(args) = Cli::from_arg_matches(&matches.expect("it parses"))
            .expect("it parses")
            .command
        else {
            panic!("another command");
        };
        args
    }

    /// Returns the rate and the maximum of outstanding requests of a series with background load.
    fn loaded_schedule(options: &str) -> (Option<u64>, u32) {
        let Ok(LatencySeries::Loaded(client, ..)) = plan_latency(&latency_args(options)) else {
            panic!("{options} is no series beside a load");
        };
        let plan = client.plan.round_trip;
        (plan.rate_per_second, plan.outstanding)
    }

    #[test]
    fn requests_under_traffic_have_a_schedule() {
        for (options, expected) in [
            ("-u --load tcp", (Some(500), 500)),
            ("--load udp:10M --timeout 2s", (Some(500), 1_000)),
            ("-u --load tcp --timeout 10ms", (Some(500), 64)),
            ("-u --load tcp --rate 2k/s", (Some(2_000), 64)),
            ("-u --load tcp --outstanding 1", (None, 1)),
            ("-u --load tcp --outstanding 8", (None, 8)),
            // Cases without a schedule.
            ("--load tcp --reopen", (None, 1)),
            ("-u --load tcp -l 7", (None, 1)),
            // CPU load fills no queue.
            ("-u --load cpu:1", (None, 1)),
        ] {
            assert_eq!(loaded_schedule(options), expected, "{options}");
        }
    }

    #[test]
    fn local_cpu_load_works_with_other_tools() {
        for options in ["--load cpu:1", "--load cpu", "--load cpu:2/0"] {
            loaded_schedule(&format!("-u --peer echo {options}"));
        }
        for options in [
            "--load tcp",
            "--load cpu:1/1",
            "--load-curve",
            "--compare-waiting",
        ] {
            let options = format!("-u --peer echo {options}");
            let Err(failure) = plan_latency(&latency_args(&options)) else {
                panic!("{options}: the server cannot do that");
            };
            assert_eq!(
                failure.code,
                linerate_record::exit_codes::USAGE,
                "{options}"
            );
        }
    }
}
