//! `linerate latency`: round trips, as one run or a series of runs.

use std::time::Duration;

use linerate_measure::Client;
use linerate_metric::load::Background;
use linerate_metric::plan::{Kind, Plan, Protocol, Stamping, Wait};
use linerate_metric::round_trip::{Attachment, Group, OUTSTANDING_LIMIT, RoundTripPlan};

use super::{Measurement, amount, common, finish, meets_throttle, nanos, one_timeline, refuse};
use crate::args::LatencyArgs;
use crate::failure::Failure;

/// Runs that `linerate latency` makes.
pub enum LatencySeries {
    /// One run, or repeats of it.
    One(Measurement),
    /// One run for each size.
    Sizes(Client, Vec<u64>),
    /// Wait modes in alternation.
    Waiting(Client),
    /// Latency against load.
    Curve(Client),
    /// Without and with a background load; the name is the TCP congestion control of the load.
    Loaded(Client, Background, Option<String>),
}

/// Default maximum of outstanding requests on a flow with a schedule: more than a path of 1 ms
/// needs at 50,000 requests per second.
const OPEN_QUESTIONS: u32 = 64;

/// Default requests per second with background traffic: 0.4 Mb/s with 64 B of payload, little on
/// any path where queues matter, and 1,000 requests in the shortest useful run.
const BESIDE_TRAFFIC: u64 = 500;

/// Default time at each load of a curve.
const CURVE_STEP: Duration = Duration::from_secs(2);

/// Plans `linerate latency`.
pub fn latency(args: &LatencyArgs) -> Result<LatencySeries, Failure> {
    let traffic = is_traffic(args.load);
    let far_burns = matches!(args.load, Some(Background::Cpu { far: Some(1..), .. }));
    let measure = &args.measure;
    if measure.peer.is_some() && (args.load_curve || args.compare_waiting || traffic || far_burns) {
        return refuse(
            "--load tcp, udp or cpu:N/SERVER, --load-curve or --compare-waiting with --peer",
            "they need a linerate server",
            "leave one of them out; --load cpu without /SERVER loads only this end and works with any server",
        );
    }
    if measure.near.stack.dev.is_some() && (args.compare_waiting || traffic) {
        return refuse(
            "--compare-waiting, --load tcp or --load udp with --dev",
            "a port has one stack, which polls: a parallel run would need another one",
            "leave one of them out; --load cpu works with --dev",
        );
    }
    let load_congestion = congestion_of_load(args)?;
    // UDP requests have no congestion control themselves.
    let mut measure = measure.clone();
    if measure.udp {
        measure.congestion = None;
    }
    let measure = &measure;
    let mut plan = common(Kind::Latency, measure)?;
    if let Some(count) = args.count {
        if count == 0 {
            return refuse("-n 0", "no request to send", "give a count above 0");
        }
        amount(measure)?;
        plan.duration_ns = None;
        plan.round_trips = Some(count);
    }
    if args.timeout < Duration::from_millis(1) {
        return refuse("--timeout", "shorter than 1 ms", "give 1ms or more");
    }
    plan.answer_timeout_ns = Some(nanos(args.timeout));
    plan.round_trip = round_trip(args, &plan)?;
    let by_ring = plan.wait.as_ref();
    let by_ring = by_ring.is_some_and(|wait| [wait.near, wait.far].contains(&Wait::IoUring));
    let own =
        plan.round_trip.attachment != Attachment::Connected || plan.round_trip.group.is_some();
    if by_ring && own {
        return refuse(
            "--wait io-uring with --reopen, --unconnected or --multicast",
            "io_uring sends and receives need one connected socket",
            "leave one of them out, or use another wait mode",
        );
    }
    plan.stamps = stamping(args, &plan)?;
    plan.trace_on_ns = args.trace_on.map(nanos);
    one_timeline(args.trace.is_some(), measure)?;
    if args.load_curve && measure.time.is_none() && args.count.is_none() {
        plan.duration_ns = Some(nanos(CURVE_STEP));
    }
    let several = measure.length.len() > 1;
    let series = [
        several,
        args.load_curve,
        args.load.is_some(),
        args.compare_waiting,
    ];
    let count = series.iter().filter(|&&is| is).count();
    if count == 0 {
        let measurement = finish(plan, measure)?;
        return Ok(LatencySeries::One(Measurement {
            trace: args.trace.clone(),
            ..measurement
        }));
    }
    if !plan.stamps.is_none() {
        return refuse(
            "--stages or --trace",
            "they examine one run, and this command makes several",
            "leave one of them out",
        );
    }
    if count > 1 || measure.repeat > 1 {
        return refuse(
            "several sizes, --load-curve, --load, --compare-waiting and --repeat",
            "each of them makes several runs",
            "give one of them at a time",
        );
    }
    if !measure.expect.is_empty() {
        return refuse(
            "--expect",
            "a threshold applies to one kind of run, and this command makes several",
            "leave it out; --json has all figures for scripts",
        );
    }
    let client = finish(plan, measure)?.client;
    if several {
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
fn stamping(args: &LatencyArgs, plan: &Plan) -> Result<Stamping, Failure> {
    let option = match (&args.trace, args.stages) {
        (Some(_), _) => "--trace",
        (None, true) => "--stages",
        (None, false) if args.trace_on.is_some() => {
            return refuse(
                "--trace-on without --trace",
                "no timeline to end",
                "give the timeline's file with --trace",
            );
        }
        (None, false) => return Ok(Stamping::None),
    };
    if plan.streams > 1 {
        return refuse(
            &format!("{option} with -P"),
            "stages are measured on one flow",
            "leave -P out",
        );
    }
    for (given, other, why, next_step) in [
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
            plan.dialect.is_some(),
            "--peer",
            "half of the stages come from timestamps of linerate's server",
            "leave one of them out: stages need `linerate server`, without --peer",
        ),
    ] {
        if given {
            return refuse(&format!("{option} with {other}"), why, next_step);
        }
    }
    if plan.round_trip.is_open() && plan.round_trip.rate_per_second.is_none() {
        return refuse(
            &format!("{option} with --outstanding or --load-curve"),
            "stages are measured with one outstanding request",
            "leave one of them out, or give a --rate: the timestamp passes then use it",
        );
    }
    if plan.payload_bytes < HEADER_BYTES {
        return refuse(
            &format!("{option} with -l {}", plan.payload_bytes),
            "the message is too short for its number",
            "give -l 16 or more",
        );
    }
    if let Some(wait) = &plan.wait
        && [wait.near, wait.far].contains(&Wait::IoUring)
    {
        return refuse(
            &format!("{option} with --wait {wait}"),
            "io_uring receives deliver no kernel timestamps",
            "use another wait mode: `--wait epoll` is the closest",
        );
    }
    Ok(if args.trace.is_some() {
        Stamping::Driver
    } else {
        Stamping::Scheduler
    })
}

/// Bytes of the sequence number and the time in a message.
const HEADER_BYTES: u64 = 16;

/// Returns the options of requests and responses.
fn round_trip(args: &LatencyArgs, plan: &Plan) -> Result<RoundTripPlan, Failure> {
    if args.limit.is_some_and(|limit| limit.is_zero()) {
        return refuse(
            "--limit 0",
            "all responses would be slow",
            "give a time above 0",
        );
    }
    if args.limit.is_some_and(|limit| limit >= args.timeout) {
        return refuse(
            "--limit",
            "a response that late counts as lost (--timeout)",
            "give a shorter limit, or a longer --timeout",
        );
    }
    let udp = plan.protocol == Protocol::Udp;
    for (option, given) in [
        ("--unconnected", args.unconnected),
        ("--multicast", args.multicast.is_some()),
    ] {
        if given && !udp {
            return refuse(
                option,
                "a TCP connection has one peer",
                "add -u, or leave it out",
            );
        }
    }
    device_stamps(args, plan)?;
    let rate = args.rate.or_else(|| rate_beside_load(args, plan));
    let scheduled = rate.is_some() || args.load_curve;
    let default = match (rate, args.rate) {
        // As many as are sent until the first one times out: no request waits for another's
        // response.
        (Some(rate), None) => {
            let open = (rate as f64 * args.timeout.as_secs_f64()).ceil() as u32;
            open.clamp(OPEN_QUESTIONS, OUTSTANDING_LIMIT)
        }
        _ if scheduled => OPEN_QUESTIONS,
        _ => 1,
    };
    let outstanding = args.outstanding.unwrap_or(default);
    if !(1..=OUTSTANDING_LIMIT).contains(&outstanding) {
        let option = format!("--outstanding {outstanding}");
        return refuse(&option, "out of range", "give 1 to 65536");
    }
    if (scheduled || outstanding > 1) && plan.payload_bytes < SHORTEST_OPEN_BYTES {
        return refuse(
            "-l with --rate, --outstanding or --load-curve",
            "messages below 8 B have no number to match responses with requests",
            "give 8 or more",
        );
    }
    meets_throttle(plan, args.rt_yield, &args.measure)?;
    if args.rt_yield && (scheduled || outstanding > 1) {
        return refuse(
            "--rt-yield with --rate, --outstanding or --load-curve",
            "a schedule has no idle time between requests in which a thread could pause",
            "leave one of them out, or use --wait block",
        );
    }
    if args.rt_yield && (args.stages || args.trace.is_some()) {
        return refuse(
            "--rt-yield with --stages or --trace",
            "a pause would be counted in the stages",
            "leave one of them out",
        );
    }
    Ok(RoundTripPlan {
        verify: !args.no_verify,
        limit_ns: args.limit.map(nanos),
        attachment: match (args.reopen, args.unconnected) {
            (true, _) => Attachment::Reopened,
            (_, true) => Attachment::Unconnected,
            _ => Attachment::Connected,
        },
        rate_per_second: rate,
        outstanding,
        group: args.multicast.clone().map(|group| Group {
            ttl: args.ttl.unwrap_or(group.ttl),
            ..group
        }),
        rt_yield: args.rt_yield,
        lock_memory: args.lock_memory,
        device_stamps: args.device_stamps,
        ..RoundTripPlan::default()
    })
}

/// Returns the default request rate with background traffic. A closed loop would send mostly while
/// the queue that the load fills is empty, because it waits for responses.
fn rate_beside_load(args: &LatencyArgs, plan: &Plan) -> Option<u64> {
    let fits = !args.reopen && !args.rt_yield && plan.payload_bytes >= SHORTEST_OPEN_BYTES;
    (is_traffic(args.load) && args.outstanding.is_none() && fits).then_some(BESIDE_TRAFFIC)
}

/// Returns the congestion control of the load, which `-C` names. UDP requests have none.
fn congestion_of_load(args: &LatencyArgs) -> Result<Option<String>, Failure> {
    let Some(name) = &args.measure.congestion else {
        return Ok(None);
    };
    let over_tcp = matches!(args.load, Some(Background::Tcp(_)));
    if args.measure.udp && !over_tcp {
        return refuse(
            "-C with -u",
            "UDP has no congestion control",
            "leave one of them out; with --load tcp it applies to the load",
        );
    }
    Ok(over_tcp.then(|| name.clone()))
}

/// Returns whether a load is packets, not CPU load.
fn is_traffic(load: Option<Background>) -> bool {
    load.is_some_and(|load| !matches!(load, Background::Cpu { .. }))
}

/// Checks `--device-stamps`.
fn device_stamps(args: &LatencyArgs, plan: &Plan) -> Result<(), Failure> {
    let Some(stamps) = args.device_stamps else {
        return Ok(());
    };
    let option = format!("--device-stamps {stamps}");
    if plan.protocol != Protocol::Udp {
        return refuse(
            &format!("{option} without -u"),
            "a TCP stream has no separate responses",
            "add -u",
        );
    }
    if let Some(peer) = plan.dialect.as_deref().filter(|peer| *peer != "echo") {
        return refuse(
            &format!("{option} with --peer {peer}"),
            "responses of that tool have a header of their own",
            "use --peer echo, or leave one of them out",
        );
    }
    let sizes = args.measure.length.iter().map(|length| length.0).min();
    match stamps.unfit(sizes.unwrap_or(plan.payload_bytes)) {
        Some(why) => refuse(&option, &why, "choose another offset, or a larger -l"),
        None => Ok(()),
    }
}

/// Minimum message size in bytes that holds a sequence number.
const SHORTEST_OPEN_BYTES: u64 = 8;

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;

    use super::*;
    use crate::args::{Cli, Command, command};

    fn arguments(words: &str) -> LatencyArgs {
        let all = format!("linerate latency host {words}");
        let matches = command().try_get_matches_from(all.split_whitespace());
        let Command::Latency(args) = Cli::from_arg_matches(&matches.expect("it parses"))
            .expect("it parses")
            .command
        else {
            panic!("another command");
        };
        args
    }

    /// Returns the rate and the maximum of outstanding requests of a series with background load.
    fn beside_load(words: &str) -> (Option<u64>, u32) {
        let Ok(LatencySeries::Loaded(client, ..)) = latency(&arguments(words)) else {
            panic!("{words} is no series beside a load");
        };
        let plan = client.plan.round_trip;
        (plan.rate_per_second, plan.outstanding)
    }

    #[test]
    fn beside_traffic_questions_have_a_schedule() {
        for (words, want) in [
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
            assert_eq!(beside_load(words), want, "{words}");
        }
    }

    #[test]
    fn threads_that_burn_here_ask_nothing_of_another_program() {
        for words in ["--load cpu:1", "--load cpu", "--load cpu:2/0"] {
            beside_load(&format!("-u --peer echo {words}"));
        }
        for words in [
            "--load tcp",
            "--load cpu:1/1",
            "--load-curve",
            "--compare-waiting",
        ] {
            let words = format!("-u --peer echo {words}");
            let Err(failure) = latency(&arguments(&words)) else {
                panic!("{words}: the far end cannot do that");
            };
            assert_eq!(failure.code, linerate_metric::exit::USAGE, "{words}");
        }
    }
}
