//! `linerate throughput`: payload streams, and connections per second.

use linerate_record::pace::PacingMethod;
use linerate_record::plan::{
    Direction, MAX_BATCH_DATAGRAMS, Plan, ReceiveCopy, RunKind, SendCopy, TransportProtocol,
    UdpOffload, WaitMode, tcp_send_bytes,
};
use linerate_record::round_trip::SocketMode;

use super::{
    MeasurementPlan, check_amount, check_rt_yield, check_single_length, check_single_timeline,
    common_plan, finish_measurement, nanos, reject,
};
use crate::args::{OffloadOption, ThroughputArgs};
use crate::failure::CommandFailure;
use crate::load_option::LoadOption;

/// Plans `linerate throughput`.
pub fn plan_throughput(args: &ThroughputArgs) -> Result<MeasurementPlan, CommandFailure> {
    if args.connect {
        return plan_connections(args);
    }
    check_single_length(&args.measure)?;
    let mut plan = common_plan(RunKind::Throughput, &args.measure)?;
    plan.server_report_command.clone_from(&args.far_report);
    if args.reverse {
        plan.directions = vec![Direction::Receive];
    } else if args.bidir {
        plan.directions = vec![Direction::Send, Direction::Receive];
    }
    if plan.protocol == TransportProtocol::Tcp && args.measure.length.is_empty() {
        plan.payload_bytes = tcp_send_bytes(plan.streams);
    }
    set_pace(&mut plan, args)?;
    if let (Some(rate), TransportProtocol::Tcp, None) =
        (plan.rate_bps, plan.protocol, args.measure.length.first())
    {
        // A paced stream sends in small calls: one millisecond of the rate each.
        plan.payload_bytes = (rate / 8 / 1_000).clamp(1_024, plan.payload_bytes);
    }
    set_offload(&mut plan, args)?;
    let uses_io_uring = plan.wait.as_ref();
    let uses_io_uring =
        uses_io_uring.is_some_and(|wait| [wait.client, wait.server].contains(&WaitMode::IoUring));
    if uses_io_uring && (args.batch.is_some() || !plan.copies.is_default()) {
        return reject(
            "--wait io-uring with --batch or --offload",
            "io_uring has its own calls and supports no zerocopy, sendfile, splice, trunc or batches",
            "leave one of them out, or use another wait mode",
        );
    }
    if uses_io_uring && args.pacing == PacingMethod::Txtime {
        return reject(
            "--wait io-uring with --pacing txtime",
            "io_uring sends carry no send time",
            "leave one of them out",
        );
    }
    if uses_io_uring && args.trace.is_some() {
        return reject(
            "--wait io-uring with --trace",
            "io_uring operations are not recorded in timelines",
            "leave one of them out",
        );
    }
    plan.verify = args.verify;
    if plan.verify && !plan.copies.delivers_content() {
        return reject(
            "--verify with --offload",
            "bytes can be compared only if both ends copy them to their own memory",
            "leave out zerocopy, sendfile, splice and trunc",
        );
    }
    if let Some(batch) = args.batch {
        set_batch(&mut plan, args, batch)?;
    }
    set_threads(&mut plan, args)?;
    set_rt_yield(&mut plan, args)?;
    if let Some(bytes) = args.bytes {
        if bytes.0 == 0 {
            return reject("-n 0", "nothing to send", "give a size above 0");
        }
        check_amount(&args.measure)?;
        plan.duration_ns = None;
        plan.amount_bytes = Some(bytes.0);
    }
    if args.trace_on.is_some() && args.trace.is_none() {
        return reject(
            "--trace-on without --trace",
            "no timeline to end",
            "give the timeline's file with --trace",
        );
    }
    check_single_timeline(args.trace.is_some(), &args.measure)?;
    plan.trace = args.trace.is_some();
    plan.trace_on_ns = args.trace_on.map(nanos);
    let mut measurement = finish_measurement(plan, &args.measure)?;
    // The timeline is made from recorded calls.
    measurement.client.plan.calls |= args.trace.is_some();
    measurement.trace.clone_from(&args.trace);
    Ok(measurement)
}

/// Applies `--offload`.
fn set_offload(plan: &mut Plan, args: &ThroughputArgs) -> Result<(), CommandFailure> {
    let has = |offload| args.offload.contains(&offload);
    if args.offload.is_empty() {
        return Ok(());
    }
    if has(OffloadOption::None)
        && args
            .offload
            .iter()
            .any(|&offload| offload != OffloadOption::None)
    {
        return reject("--offload", "none excludes the others", "leave none out");
    }
    if !args.measure.udp && (has(OffloadOption::Gso) || has(OffloadOption::Gro)) {
        return reject(
            "--offload without -u",
            "gso and gro here are those of UDP",
            "add -u; for TCP they are settings of the interface (`ethtool -k`)",
        );
    }
    let only_tcp = [
        OffloadOption::Sendfile,
        OffloadOption::Splice,
        OffloadOption::Trunc,
    ];
    if args.measure.udp && only_tcp.into_iter().any(has) {
        return reject(
            "--offload with -u",
            "sendfile, splice and trunc need a stream: the headers of datagrams are written and read",
            "leave -u out, or use gso, gro and zerocopy",
        );
    }
    let copies = [
        (OffloadOption::Zerocopy, SendCopy::ZeroCopy),
        (OffloadOption::Sendfile, SendCopy::SendFile),
        (OffloadOption::Splice, SendCopy::Splice),
    ];
    let mut requested = copies.into_iter().filter(|&(offload, _)| has(offload));
    if let Some((_, copy)) = requested.next() {
        plan.copies.send = copy;
    }
    if requested.next().is_some() {
        return reject(
            "--offload",
            "zerocopy, sendfile and splice exclude each other",
            "choose one of them",
        );
    }
    if has(OffloadOption::Trunc) {
        plan.copies.receive = ReceiveCopy::Discarded;
    }
    if args.measure.udp {
        plan.udp_offload = UdpOffload {
            gso: Some(has(OffloadOption::Gso)),
            gro: Some(has(OffloadOption::Gro)),
            requested: true,
        };
    }
    Ok(())
}

/// Applies `--batch`: many datagrams per call, without GSO and GRO.
fn set_batch(plan: &mut Plan, args: &ThroughputArgs, batch: u32) -> Result<(), CommandFailure> {
    if !args.measure.udp {
        return reject(
            "--batch without -u",
            "a TCP call sends bytes, not datagrams",
            "add -u, or leave --batch out",
        );
    }
    if batch == 0 || batch > MAX_BATCH_DATAGRAMS {
        return reject(
            &format!("--batch {batch}"),
            "the kernel takes 1 to 1024 datagrams in one call",
            "give a number in this range, or none for 64",
        );
    }
    if plan.rate_bps.is_some() {
        return reject(
            "--batch with -b",
            "a rate decides how many datagrams leave together",
            "leave --batch out, or give that number: -b RATE/COUNT",
        );
    }
    if args
        .offload
        .iter()
        .any(|&offload| offload != OffloadOption::None)
    {
        return reject(
            "--batch with --offload",
            "a batch passes datagrams to the kernel one by one, gso and gro join them",
            "leave one of them out",
        );
    }
    plan.batch = Some(batch);
    plan.udp_offload = UdpOffload {
        gso: Some(false),
        gro: Some(false),
        requested: true,
    };
    Ok(())
}

/// Sets the offered load and its pacing.
fn set_pace(plan: &mut Plan, args: &ThroughputArgs) -> Result<(), CommandFailure> {
    let searches = matches!(args.bitrate, Some(LoadOption::Max { .. }));
    if !searches && (args.trial.is_some() || args.resolution.is_some()) {
        return reject(
            "--trial or --resolution without -b max",
            "only a search has trials",
            "leave it out, or search with -b max",
        );
    }
    let burst = match (args.bitrate, args.pps) {
        (Some(LoadOption::Rate { bps, burst }), _) => {
            plan.rate_bps = (bps > 0).then_some(bps);
            burst
        }
        (Some(LoadOption::Max { .. }), _) | (None, None) => None,
        (None, Some(pps)) => {
            if !args.measure.udp && args.measure.length.is_empty() {
                return reject(
                    "--pps without -u",
                    "TCP has no packets here: calls are counted",
                    "give the size of a call with -l, or add -u",
                );
            }
            plan.pace.packets_per_second = Some(pps.count);
            // Corrected later, once the payload size is final.
            plan.rate_bps = Some(
                pps.count
                    .saturating_mul(plan.payload_bytes.max(1))
                    .saturating_mul(8),
            );
            pps.burst
        }
    };
    plan.pace.burst = burst;
    plan.pace.method = args.pacing;
    if args.pacing == PacingMethod::User {
        return match burst {
            Some(_) if plan.rate_bps.is_none() => reject(
                "-b 0 with a burst",
                "bursts need a rate to be spaced by",
                "give a rate above 0, or leave the burst out",
            ),
            _ => Ok(()),
        };
    }
    let option = format!("--pacing {}", args.pacing);
    if plan.rate_bps.is_none() {
        return reject(&option, "no rate to pace", "give one with -b or --pps");
    }
    if args.pacing == PacingMethod::Txtime && !args.measure.udp {
        return reject(
            &option,
            "the kernel takes send times for datagrams only",
            "add -u, or use --pacing socket",
        );
    }
    if burst.is_some() {
        return reject(
            &format!("{option} with a burst"),
            "the kernel sends paced datagrams one by one",
            "leave one of them out",
        );
    }
    if !args.offload.is_empty()
        && args.offload.contains(&OffloadOption::Gso)
        && args.pacing == PacingMethod::Txtime
    {
        return reject(
            &format!("{option} with --offload gso"),
            "joined datagrams share one send time",
            "leave one of them out",
        );
    }
    Ok(())
}

/// Sets the number of threads: at most one per flow, and several flows per thread only if no call
/// blocks.
fn set_threads(plan: &mut Plan, args: &ThroughputArgs) -> Result<(), CommandFailure> {
    let Some(threads) = &args.threads else {
        return Ok(());
    };
    let thread_counts = [
        (threads.client, plan.wait.as_ref().map(|wait| wait.client)),
        (threads.server, plan.wait.as_ref().map(|wait| wait.server)),
    ];
    for (count, wait) in thread_counts {
        let option = format!("--threads {count}");
        if count == 0 {
            return reject(&option, "no thread to send payload", "give 1 or more");
        }
        if count > plan.streams {
            return reject(
                &format!("{option} with -P {}", plan.streams),
                "each flow is served by one thread, so some threads would have none",
                "give more flows (-P), or fewer threads",
            );
        }
        if let Some(wait @ (WaitMode::Block | WaitMode::Poll | WaitMode::Select { .. })) = wait
            && count < plan.streams
        {
            return reject(
                &format!("{option} with --wait {wait} and -P {}", plan.streams),
                "a thread with blocking calls serves one flow",
                "use --wait epoll or spin, or as many threads as flows",
            );
        }
    }
    plan.threads = Some(threads.clone());
    Ok(())
}

/// Applies `--rt-yield`.
fn set_rt_yield(plan: &mut Plan, args: &ThroughputArgs) -> Result<(), CommandFailure> {
    check_rt_yield(plan, args.rt_yield, &args.measure)?;
    plan.round_trip.rt_yield = args.rt_yield;
    Ok(())
}

/// Plans `linerate throughput --connect`: TCP round trips with a connection each.
fn plan_connections(args: &ThroughputArgs) -> Result<MeasurementPlan, CommandFailure> {
    if args.measure.peer.is_some() {
        return reject(
            "--connect with --peer",
            "only linerate's server responds on one connection per request",
            "leave one of them out",
        );
    }
    let measure = &args.measure;
    if measure.udp {
        return reject(
            "--connect with -u",
            "UDP has no connections",
            "leave one of them out; `linerate latency -u --reopen` opens a socket each time",
        );
    }
    check_single_length(measure)?;
    let mut plan = common_plan(RunKind::Latency, measure)?;
    let waits = plan.wait.iter().flat_map(|wait| [wait.client, wait.server]);
    if waits.into_iter().any(|wait| wait == WaitMode::IoUring) {
        return reject(
            "--connect with --wait io-uring",
            "io_uring sends and receives need one connected socket",
            "leave one of them out, or use another wait mode",
        );
    }
    plan.round_trip.socket_mode = SocketMode::Reopened;
    plan.round_trip.connections = true;
    set_threads(&mut plan, args)?;
    set_rt_yield(&mut plan, args)?;
    finish_measurement(plan, measure)
}
