//! `linerate throughput`: payload streams, and connections per second.

use linerate_metric::pace::Pacing;
use linerate_metric::plan::{
    Direction, Kind, LARGEST_BATCH, Plan, Protocol, ReceiveCopy, SendCopy, UdpOffload, Wait,
    tcp_send_bytes,
};
use linerate_metric::round_trip::Attachment;

use super::{
    Measurement, amount, common, finish, meets_throttle, nanos, one_length, one_timeline, refuse,
};
use crate::args::{Offload, ThroughputArgs};
use crate::failure::Failure;
use crate::load_option::Load;

/// Plans `linerate throughput`.
pub fn throughput(args: &ThroughputArgs) -> Result<Measurement, Failure> {
    if args.connect {
        return connections(args);
    }
    one_length(&args.measure)?;
    let mut plan = common(Kind::Throughput, &args.measure)?;
    plan.far_report.clone_from(&args.far_report);
    if args.reverse {
        plan.directions = vec![Direction::Receive];
    } else if args.bidir {
        plan.directions = vec![Direction::Send, Direction::Receive];
    }
    if plan.protocol == Protocol::Tcp && args.measure.length.is_empty() {
        plan.payload_bytes = tcp_send_bytes(plan.streams);
    }
    pace(&mut plan, args)?;
    if let (Some(rate), Protocol::Tcp, None) =
        (plan.rate_bps, plan.protocol, args.measure.length.first())
    {
        // A paced stream sends in small calls: one millisecond of the rate each.
        plan.payload_bytes = (rate / 8 / 1_000).clamp(1_024, plan.payload_bytes);
    }
    offload(&mut plan, args)?;
    let by_ring = plan.wait.as_ref();
    let by_ring = by_ring.is_some_and(|wait| [wait.near, wait.far].contains(&Wait::IoUring));
    if by_ring && (args.batch.is_some() || !plan.copies.are_made()) {
        return refuse(
            "--wait io-uring with --batch or --offload",
            "io_uring has its own calls and supports no zerocopy, sendfile, splice, trunc or batches",
            "leave one of them out, or use another wait mode",
        );
    }
    if by_ring && args.pacing == Pacing::Txtime {
        return refuse(
            "--wait io-uring with --pacing txtime",
            "io_uring sends carry no send time",
            "leave one of them out",
        );
    }
    if by_ring && args.trace.is_some() {
        return refuse(
            "--wait io-uring with --trace",
            "io_uring operations are not recorded in timelines",
            "leave one of them out",
        );
    }
    plan.verify = args.verify;
    if plan.verify && !plan.copies.show_content() {
        return refuse(
            "--verify with --offload",
            "bytes can be compared only if both ends copy them to their own memory",
            "leave out zerocopy, sendfile, splice and trunc",
        );
    }
    if let Some(batch) = args.batch {
        batches(&mut plan, args, batch)?;
    }
    threads(&mut plan, args)?;
    rt_yield(&mut plan, args)?;
    if let Some(bytes) = args.bytes {
        if bytes.0 == 0 {
            return refuse("-n 0", "nothing to send", "give a size above 0");
        }
        amount(&args.measure)?;
        plan.duration_ns = None;
        plan.amount_bytes = Some(bytes.0);
    }
    if args.trace_on.is_some() && args.trace.is_none() {
        return refuse(
            "--trace-on without --trace",
            "no timeline to end",
            "give the timeline's file with --trace",
        );
    }
    one_timeline(args.trace.is_some(), &args.measure)?;
    plan.trace = args.trace.is_some();
    plan.trace_on_ns = args.trace_on.map(nanos);
    let mut measurement = finish(plan, &args.measure)?;
    // The timeline is made from recorded calls.
    measurement.client.plan.calls |= args.trace.is_some();
    measurement.trace.clone_from(&args.trace);
    Ok(measurement)
}

/// Applies `--offload`.
fn offload(plan: &mut Plan, args: &ThroughputArgs) -> Result<(), Failure> {
    let has = |offload| args.offload.contains(&offload);
    if args.offload.is_empty() {
        return Ok(());
    }
    if has(Offload::None) && args.offload.iter().any(|&offload| offload != Offload::None) {
        return refuse("--offload", "none excludes the others", "leave none out");
    }
    if !args.measure.udp && (has(Offload::Gso) || has(Offload::Gro)) {
        return refuse(
            "--offload without -u",
            "gso and gro here are those of UDP",
            "add -u; for TCP they are settings of the interface (`ethtool -k`)",
        );
    }
    let only_tcp = [Offload::Sendfile, Offload::Splice, Offload::Trunc];
    if args.measure.udp && only_tcp.into_iter().any(has) {
        return refuse(
            "--offload with -u",
            "sendfile, splice and trunc need a stream: the headers of datagrams are written and read",
            "leave -u out, or use gso, gro and zerocopy",
        );
    }
    let ways = [
        (Offload::Zerocopy, SendCopy::ZeroCopy),
        (Offload::Sendfile, SendCopy::SendFile),
        (Offload::Splice, SendCopy::Splice),
    ];
    let mut asked = ways.into_iter().filter(|&(offload, _)| has(offload));
    if let Some((_, way)) = asked.next() {
        plan.copies.send = way;
    }
    if asked.next().is_some() {
        return refuse(
            "--offload",
            "zerocopy, sendfile and splice exclude each other",
            "choose one of them",
        );
    }
    if has(Offload::Trunc) {
        plan.copies.receive = ReceiveCopy::Discarded;
    }
    if args.measure.udp {
        plan.udp_offload = UdpOffload {
            gso: Some(has(Offload::Gso)),
            gro: Some(has(Offload::Gro)),
            asked: true,
        };
    }
    Ok(())
}

/// Applies `--batch`: many datagrams per call, without GSO and GRO.
fn batches(plan: &mut Plan, args: &ThroughputArgs, batch: u32) -> Result<(), Failure> {
    if !args.measure.udp {
        return refuse(
            "--batch without -u",
            "a TCP call sends bytes, not datagrams",
            "add -u, or leave --batch out",
        );
    }
    if batch == 0 || batch > LARGEST_BATCH {
        return refuse(
            &format!("--batch {batch}"),
            "the kernel takes 1 to 1024 datagrams in one call",
            "give a number in this range, or none for 64",
        );
    }
    if plan.rate_bps.is_some() {
        return refuse(
            "--batch with -b",
            "paced datagrams are sent one by one",
            "leave one of them out",
        );
    }
    if args.offload.iter().any(|&offload| offload != Offload::None) {
        return refuse(
            "--batch with --offload",
            "a batch passes datagrams to the kernel one by one, gso and gro join them",
            "leave one of them out",
        );
    }
    plan.batch = Some(batch);
    plan.udp_offload = UdpOffload {
        gso: Some(false),
        gro: Some(false),
        asked: true,
    };
    Ok(())
}

/// Sets the offered load and its pacing.
fn pace(plan: &mut Plan, args: &ThroughputArgs) -> Result<(), Failure> {
    let searches = matches!(args.bitrate, Some(Load::Max { .. }));
    if !searches && (args.trial.is_some() || args.resolution.is_some()) {
        return refuse(
            "--trial or --resolution without -b max",
            "only a search has trials",
            "leave it out, or search with -b max",
        );
    }
    let burst = match (args.bitrate, args.pps) {
        (Some(Load::Rate { bps, burst }), _) => {
            plan.rate_bps = (bps > 0).then_some(bps);
            burst
        }
        (Some(Load::Max { .. }), _) | (None, None) => None,
        (None, Some(pps)) => {
            if !args.measure.udp && args.measure.length.is_empty() {
                return refuse(
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
    plan.pace.by = args.pacing;
    if args.pacing == Pacing::User {
        return match burst {
            Some(_) if plan.rate_bps.is_none() => refuse(
                "-b 0 with a burst",
                "bursts need a rate to be spaced by",
                "give a rate above 0, or leave the burst out",
            ),
            _ => Ok(()),
        };
    }
    let option = format!("--pacing {}", args.pacing);
    if plan.rate_bps.is_none() {
        return refuse(&option, "no rate to pace", "give one with -b or --pps");
    }
    if args.pacing == Pacing::Txtime && !args.measure.udp {
        return refuse(
            &option,
            "the kernel takes send times for datagrams only",
            "add -u, or use --pacing socket",
        );
    }
    if burst.is_some() {
        return refuse(
            &format!("{option} with a burst"),
            "the kernel sends paced datagrams one by one",
            "leave one of them out",
        );
    }
    if !args.offload.is_empty()
        && args.offload.contains(&Offload::Gso)
        && args.pacing == Pacing::Txtime
    {
        return refuse(
            &format!("{option} with --offload gso"),
            "joined datagrams share one send time",
            "leave one of them out",
        );
    }
    Ok(())
}

/// Sets the number of threads: at most one per flow, and several flows per thread only if no call
/// blocks.
fn threads(plan: &mut Plan, args: &ThroughputArgs) -> Result<(), Failure> {
    let Some(threads) = &args.threads else {
        return Ok(());
    };
    let ends = [
        (threads.near, plan.wait.as_ref().map(|wait| wait.near)),
        (threads.far, plan.wait.as_ref().map(|wait| wait.far)),
    ];
    for (count, wait) in ends {
        let option = format!("--threads {count}");
        if count == 0 {
            return refuse(&option, "no thread to send payload", "give 1 or more");
        }
        if count > plan.streams {
            return refuse(
                &format!("{option} with -P {}", plan.streams),
                "each flow is served by one thread, so some threads would have none",
                "give more flows (-P), or fewer threads",
            );
        }
        if let Some(wait @ (Wait::Block | Wait::Poll | Wait::Select { .. })) = wait
            && count < plan.streams
        {
            return refuse(
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
fn rt_yield(plan: &mut Plan, args: &ThroughputArgs) -> Result<(), Failure> {
    meets_throttle(plan, args.rt_yield, &args.measure)?;
    plan.round_trip.rt_yield = args.rt_yield;
    Ok(())
}

/// Plans `linerate throughput --connect`: TCP round trips with a connection each.
fn connections(args: &ThroughputArgs) -> Result<Measurement, Failure> {
    if args.measure.peer.is_some() {
        return refuse(
            "--connect with --peer",
            "only linerate's server responds on one connection per request",
            "leave one of them out",
        );
    }
    let measure = &args.measure;
    if measure.udp {
        return refuse(
            "--connect with -u",
            "UDP has no connections",
            "leave one of them out; `linerate latency -u --reopen` opens a socket each time",
        );
    }
    one_length(measure)?;
    let mut plan = common(Kind::Latency, measure)?;
    let waits = plan.wait.iter().flat_map(|wait| [wait.near, wait.far]);
    if waits.into_iter().any(|wait| wait == Wait::IoUring) {
        return refuse(
            "--connect with --wait io-uring",
            "io_uring sends and receives need one connected socket",
            "leave one of them out, or use another wait mode",
        );
    }
    plan.round_trip.attachment = Attachment::Reopened;
    plan.round_trip.connections = true;
    threads(&mut plan, args)?;
    rt_yield(&mut plan, args)?;
    finish(plan, measure)
}
