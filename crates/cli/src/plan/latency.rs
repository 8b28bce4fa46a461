//! `linerate latency`: round trips, one run or a series of them.

use std::time::Duration;

use linerate_measure::Client;
use linerate_metric::load::Background;
use linerate_metric::plan::{Kind, Plan, Protocol, Stamping, Wait};
use linerate_metric::round_trip::{Attachment, Group, OUTSTANDING_LIMIT, RoundTripPlan};

use super::{Measurement, amount, common, finish, meets_throttle, nanos, one_timeline, refuse};
use crate::args::LatencyArgs;
use crate::failure::Failure;

/// What `linerate latency` is to run.
pub enum LatencySeries {
    /// One run, or repeats of it.
    One(Measurement),
    /// A run for each size.
    Sizes(Client, Vec<u64>),
    /// Ways of waiting in turn.
    Waiting(Client),
    /// Latency against load.
    Curve(Client),
    /// Alone, then beside a load, with the TCP congestion control that was asked of that.
    Loaded(Client, Background, Option<String>),
}

/// Questions that may be open at a time on a flow with a schedule, when nobody said how many: more
/// than a path of 1 ms needs at 50,000 a second.
const OPEN_QUESTIONS: u32 = 64;

/// Questions a second beside a load of traffic, when nobody said how many: with 64 B of payload 0.4 Mb/s,
/// which is little on any path where somebody looks for queues, and 1,000 in the shortest useful run.
const BESIDE_TRAFFIC: u64 = 500;

/// Time at each load of a curve, when nobody said how long.
const CURVE_STEP: Duration = Duration::from_secs(2);

/// `linerate latency`.
pub fn latency(args: &LatencyArgs) -> Result<LatencySeries, Failure> {
    let traffic = is_traffic(args.load);
    let far_burns = matches!(args.load, Some(Background::Cpu { far: Some(1..), .. }));
    let measure = &args.measure;
    if measure.peer.is_some() && (args.load_curve || args.compare_waiting || traffic || far_burns) {
        return refuse(
            "--load tcp, udp or cpu:N/FAR, --load-curve or --compare-waiting with --peer",
            "they need runs whose far end does as it is told",
            "leave one of them out; --load cpu burns at this end alone and goes beside any far end",
        );
    }
    if measure.near.stack.dev.is_some() && (args.compare_waiting || traffic) {
        return refuse(
            "--compare-waiting, --load tcp or --load udp with --dev",
            "a port has one stack, which polls: a second run beside it would need another",
            "leave one of them out; --load cpu goes beside it",
        );
    }
    let load_congestion = congestion_of_load(args)?;
    // Questions over UDP have none themselves.
    let mut measure = measure.clone();
    if measure.udp {
        measure.congestion = None;
    }
    let measure = &measure;
    let mut plan = common(Kind::Latency, measure)?;
    if let Some(count) = args.count {
        if count == 0 {
            return refuse("-n 0", "there is nothing to ask", "give a count above 0");
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
            "its sends and receives are those of one connected socket",
            "leave one of them out, or wait in another way",
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
            "they look into one run, and this makes several",
            "leave one of them out",
        );
    }
    if count > 1 || measure.repeat > 1 {
        return refuse(
            "several sizes, --load-curve, --load, --compare-waiting and --repeat",
            "each makes runs of its own",
            "give one of them at a time",
        );
    }
    if !measure.expect.is_empty() {
        return refuse(
            "--expect",
            "a threshold is held against one kind of run, and this makes several",
            "leave it out here; scripts find every figure in --json",
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

/// What the second pass is to note, where there is one.
fn stamping(args: &LatencyArgs, plan: &Plan) -> Result<Stamping, Failure> {
    let option = match (&args.trace, args.stages) {
        (Some(_), _) => "--trace",
        (None, true) => "--stages",
        (None, false) if args.trace_on.is_some() => {
            return refuse(
                "--trace-on without --trace",
                "there is no timeline to end",
                "give the timeline's file with --trace",
            );
        }
        (None, false) => return Ok(Stamping::None),
    };
    if plan.streams > 1 {
        return refuse(
            &format!("{option} with -P"),
            "stages are those of one flow at a time",
            "leave -P out",
        );
    }
    for (given, other, why, next_step) in [
        (
            args.reopen,
            "--reopen",
            "the kernel numbers the stamps of each socket on its own, and each question has another one",
            "leave one of them out: --reopen alone splits a round trip into open, bind, connect, send, \
             receive and close",
        ),
        (
            args.unconnected,
            "--unconnected",
            "the stamped passes ask over connected sockets",
            "leave one of them out: what connecting saves is the difference of p50 with --unconnected \
             and without",
        ),
        (
            args.multicast.is_some(),
            "--multicast",
            "the stamped passes ask over connected sockets, and a group is nobody's",
            "leave one of them out, and split the unicast round trip of the same path",
        ),
        (
            plan.dialect.is_some(),
            "--peer",
            "the far end is another program, and half of the stages are what our server notes",
            "leave one of them out: stages need `linerate server` at the far end, without --peer",
        ),
    ] {
        if given {
            return refuse(&format!("{option} with {other}"), why, next_step);
        }
    }
    if plan.round_trip.is_open() && plan.round_trip.rate_per_second.is_none() {
        return refuse(
            &format!("{option} with --outstanding or --load-curve"),
            "stages are those of one question at a time",
            "leave one of them out, or give a --rate: then the stamped passes keep to it",
        );
    }
    if plan.payload_bytes < HEADER_BYTES {
        return refuse(
            &format!("{option} with -l {}", plan.payload_bytes),
            "the message has no room for its number",
            "give -l 16 or more",
        );
    }
    if let Some(wait) = &plan.wait
        && [wait.near, wait.far].contains(&Wait::IoUring)
    {
        return refuse(
            &format!("{option} with --wait {wait}"),
            "what a ring keeps receiving comes without the kernel's stamps",
            "wait in another way: `--wait epoll` is the nearest",
        );
    }
    Ok(if args.trace.is_some() {
        Stamping::Driver
    } else {
        Stamping::Scheduler
    })
}

/// Bytes of the number and the time in a message of ours.
const HEADER_BYTES: u64 = 16;

/// How round trips are asked and judged.
fn round_trip(args: &LatencyArgs, plan: &Plan) -> Result<RoundTripPlan, Failure> {
    if args.limit.is_some_and(|limit| limit.is_zero()) {
        return refuse("--limit 0", "every answer is slow", "give a time above 0");
    }
    if args.limit.is_some_and(|limit| limit >= args.timeout) {
        return refuse(
            "--limit",
            "an answer as late as that counts as lost (--timeout)",
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
                "a TCP connection has one far end",
                "add -u, or leave it out",
            );
        }
    }
    device_stamps(args, plan)?;
    let rate = args.rate.or_else(|| rate_beside_load(args, plan));
    let scheduled = rate.is_some() || args.load_curve;
    let default = match (rate, args.rate) {
        // As many as are asked until the first one is given up: none waits for another's answer.
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
            "messages below 8 B do not carry the number that tells their answers apart",
            "give 8 or more",
        );
    }
    meets_throttle(plan, args.rt_yield, &args.measure)?;
    if args.rt_yield && (scheduled || outstanding > 1) {
        return refuse(
            "--rt-yield with --rate, --outstanding or --load-curve",
            "a schedule has no pause between two questions that a thread could give up",
            "leave one of them out, or use --wait block",
        );
    }
    if args.rt_yield && (args.stages || args.trace.is_some()) {
        return refuse(
            "--rt-yield with --stages or --trace",
            "a pause would stand among the stages",
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

/// The schedule of questions beside a load of traffic. A closed loop asks as often as it is answered: mostly
/// while the queue that the load fills is empty.
fn rate_beside_load(args: &LatencyArgs, plan: &Plan) -> Option<u64> {
    let fits = !args.reopen && !args.rt_yield && plan.payload_bytes >= SHORTEST_OPEN_BYTES;
    (is_traffic(args.load) && args.outstanding.is_none() && fits).then_some(BESIDE_TRAFFIC)
}

/// The congestion control of a load: what `-C` names, which questions over UDP have no use for.
fn congestion_of_load(args: &LatencyArgs) -> Result<Option<String>, Failure> {
    let Some(name) = &args.measure.congestion else {
        return Ok(None);
    };
    let over_tcp = matches!(args.load, Some(Background::Tcp(_)));
    if args.measure.udp && !over_tcp {
        return refuse(
            "-C with -u",
            "UDP has no congestion control",
            "leave one of them out; beside --load tcp it is the load's",
        );
    }
    Ok(over_tcp.then(|| name.clone()))
}

/// Whether a load is packets, and not threads.
fn is_traffic(load: Option<Background>) -> bool {
    load.is_some_and(|load| !matches!(load, Background::Cpu { .. }))
}

/// Times that a device writes into its answers: where they can be.
fn device_stamps(args: &LatencyArgs, plan: &Plan) -> Result<(), Failure> {
    let Some(stamps) = args.device_stamps else {
        return Ok(());
    };
    let option = format!("--device-stamps {stamps}");
    if plan.protocol != Protocol::Udp {
        return refuse(
            &format!("{option} without -u"),
            "a stream has no answers that a driver could tell apart",
            "add -u",
        );
    }
    if let Some(peer) = plan.dialect.as_deref().filter(|peer| *peer != "echo") {
        return refuse(
            &format!("{option} with --peer {peer}"),
            "the answers of that program have a header of its own",
            "use --peer echo, or leave one of them out",
        );
    }
    let sizes = args.measure.length.iter().map(|length| length.0).min();
    match stamps.unfit(sizes.unwrap_or(plan.payload_bytes)) {
        Some(why) => refuse(&option, &why, "choose another offset, or a larger -l"),
        None => Ok(()),
    }
}

/// Shortest message that carries a whole number.
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

    /// The schedule of a series beside a load, and how many questions it lets be open.
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
            // Where there can be none.
            ("--load tcp --reopen", (None, 1)),
            ("-u --load tcp -l 7", (None, 1)),
            // Threads that burn time fill no queue.
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
