//! Resource limits of a server for its clients.

use linerate_protocol::control::FLOWS_PER_FRAME;
use linerate_protocol::control::flow::HEADER_BYTES;
use linerate_record::event::ErrorReport;
use linerate_record::pace::PacingMethod;
use linerate_record::plan::{
    Direction, MAX_BATCH_DATAGRAMS, MAX_CALL_BYTES, MAX_DATAGRAM_BYTES, MIN_INTERVAL_NS, Plan,
    ReceiveCopy, RunKind, SendCopy, TransportProtocol, WaitMode,
};
use linerate_record::round_trip::{
    MAX_OUTSTANDING, MAX_RATE_PER_SECOND, MulticastGroup, SocketMode,
};
use linerate_transport::call_times::{ALL_TRACES_BYTES, TRACE_BYTES};
use linerate_transport::flow_role::FlowRole;
use linerate_transport::{pool_bytes, zero_copy_bytes};
use linerate_workload::timestamps::TimestampRing;
use linerate_workload::timestamps::scheduler_tracer::required_resources;
use linerate_workload::worker::call_buffer_bytes;

/// Most connections that are not classified yet.
pub const PENDING_CONNECTION_LIMIT: usize = 16_384;

/// Most concurrent sessions that have not started a test: each has a thread.
pub const SESSION_PERMIT_LIMIT: usize = 64;

/// Most such sessions of one address that have not proved the server's key: half of all.
pub const UNPROVED_SESSIONS_PER_ADDRESS: usize = SESSION_PERMIT_LIMIT / 2;

/// Age at which a session without a test may lose its place to another one. Negotiation takes a few
/// round trips.
pub const STALLED_SESSION_NS: u64 = 2_000_000_000;

/// Silence after which a test that began without a handshake may lose its place to another one.
pub const SILENT_TEST_NS: u64 = 1_000_000_000;

/// Most concurrent tests: each has at least two threads.
pub const TEST_LIMIT: usize = 256;

/// Longest frame from a client without a test, in bytes: a PROPOSE is below 16 KiB.
pub const PROPOSE_LIMIT_BYTES: usize = 256 << 10;

/// Memory of all tests, in bytes.
pub const MEMORY_LIMIT: u64 = 1 << 30;

/// Most flows of one test: as many as one frame can grant (16,384 structures).
const FLOW_LIMIT: u64 = 16_000;

/// Most threads of a plan in one direction.
const THREAD_LIMIT: u32 = 16_000;

/// Largest burst of a paced flow, in bytes: a tenth of a second at 5 Gb/s.
const BURST_LIMIT_BYTES: u64 = 64 << 20;

/// Longest time in a plan: 11 days.
pub const TIME_LIMIT_NS: u64 = 1_000_000 * 1_000_000_000;

/// Most report intervals of one run.
const INTERVAL_LIMIT: u64 = 1_000_000;

/// Most CPU load threads at one end.
const LOAD_THREAD_LIMIT: u32 = 256;

/// Longest text in a plan, in characters.
const TEXT_LIMIT: usize = 256;

/// Most flows of one test with a port of their own at the server: a machine has some 28,000 such
/// ports (net.ipv4.ip_local_port_range).
const SERVICE_FLOW_LIMIT: u64 = 1_024;

/// Most such flows of all tests.
pub const SERVICE_PORT_LIMIT: usize = 4 * SERVICE_FLOW_LIMIT as usize;

/// Sockets of all tests whose clients, of another tool, name a number of flows: 128 ports, or flows
/// in each direction, are the most of one client.
pub const INTEROP_SOCKET_LIMIT: usize = 4_096;
/// Sockets that are reserved for each possible test: otherwise one client that names large numbers
/// could exclude the others.
pub const RESERVED_SOCKETS_PER_TEST: usize = 4;

const _: () = assert!(2 * TEST_LIMIT * RESERVED_SOCKETS_PER_TEST <= INTEROP_SOCKET_LIMIT);

/// Most threads in one timeline: with more, each would have next to no entries.
const TRACED_THREAD_LIMIT: usize = 1_024;

/// Most CPUs that a plan may name.
const CPU_LIMIT: usize = 1_024;

/// Memory of a thread without its call buffers: used stack and the kernel's part, in bytes.
const THREAD_BYTES: u64 = 48 << 10;

/// Memory of a thread's call recorder: the used buckets of six kinds of calls, in bytes.
const RECORDER_BYTES: u64 = 6 * (64 << 10);

/// Memory of a flow's own distribution ([`Histogram::coarse`]), in bytes.
///
/// [`Histogram::coarse`]: linerate_stats::histogram::Histogram::coarse
const DISTRIBUTION_BYTES: u64 = 32 << 10;

/// Further memory of a flow in bytes: window of received sequence numbers (8 KiB, UDP), counters,
/// figures of both ends and in the record. With many flows there are few threads, which share their
/// call buffers.
const FLOW_BYTES: u64 = 16 << 10;

/// Interval reports that the other end may send ahead of this one, in bytes per direction.
const EARLY_INTERVALS_BYTES: u64 = 1 << 20;

/// Returns whether system calls are recorded; a timeline needs the recorder too.
fn records_calls(plan: &Plan) -> bool {
    plan.calls || plan.trace
}

/// Returns the longest frame from a client with a test, in bytes: its results, with full histograms
/// (0.5 MiB each) and 3 KiB for each flow, of which one frame holds `FLOWS_PER_FRAME`.
#[must_use]
pub fn max_frame_bytes(plan: &Plan) -> usize {
    let flows = plan.streams as usize * plan.directions.len();
    // Recorded calls: up to a dozen full histograms more.
    let calls = if records_calls(plan) { 8 << 20 } else { 0 };
    let histograms = match plan.kind {
        RunKind::Throughput | RunKind::Forward | RunKind::Generate | RunKind::Stack => 2 << 20,
        // One for each step of a round trip, and the list of slow responses.
        RunKind::Latency => 5 << 20,
    };
    histograms + calls + flows.min(FLOWS_PER_FRAME) * (4 << 10)
}

/// Returns the memory in bytes that a test needs at the server, given the threads of each direction
/// and the number of CPUs; `None` on overflow.
#[must_use]
pub fn memory_bytes(plan: &Plan, threads: &[(FlowRole, usize)], cpus: usize) -> Option<u64> {
    let flow = match plan.kind {
        // A responding flow keeps the message that it responds to.
        RunKind::Latency => FLOW_BYTES.checked_add(plan.payload_bytes)?,
        // Distributions of departures, or of arrivals and their variation.
        RunKind::Throughput
            if plan.protocol == TransportProtocol::Udp || plan.rate_bps.is_some() =>
        {
            FLOW_BYTES + 2 * DISTRIBUTION_BYTES
        }
        RunKind::Throughput | RunKind::Forward | RunKind::Generate | RunKind::Stack => FLOW_BYTES,
    };
    let flow = flow.checked_add(forced_buffer_bytes(plan))?;
    let mut bytes = u64::from(plan.streams)
        .checked_mul(plan.directions.len() as u64)?
        .checked_mul(flow)?
        .checked_add(plan.directions.len() as u64 * EARLY_INTERVALS_BYTES)?
        .checked_add(max_frame_bytes(plan) as u64)?;
    for &(flow_role, count) in threads {
        let (sent, received) = call_buffer_bytes(plan, flow_role);
        let recorder = if records_calls(plan) {
            RECORDER_BYTES
        } else {
            0
        };
        let latest = if plan.trace { TRACE_BYTES } else { 0 };
        let file = match plan.copies.send {
            SendCopy::SendFile if flow_role == FlowRole::Sender => sent as u64,
            _ => 0,
        };
        let thread = THREAD_BYTES
            .checked_add(recorder)?
            .checked_add(latest)?
            .checked_add(file)?
            .checked_add(ring_bytes(plan, received))?
            .checked_add(sent as u64)?
            .checked_add(received as u64)?;
        bytes = bytes.checked_add(thread.checked_mul(count as u64)?)?;
        if flow_role == FlowRole::Sender {
            let flow = copy_mode_bytes(plan, sent)?;
            bytes = bytes.checked_add(flow.checked_mul(u64::from(plan.streams))?)?;
        }
    }
    if plan.trace {
        bytes = bytes.checked_add(ALL_TRACES_BYTES)?;
    }
    if !plan.timestamps.is_none() {
        let rings = required_resources(plan.timestamps, cpus).bytes;
        bytes = bytes.checked_add(TimestampRing::memory_bytes(plan.timestamps))?;
        bytes = bytes.checked_add(rings)?;
    }
    Some(bytes)
}

/// Returns the memory of a sending flow for payload that leaves without a copy, in calls of up to
/// `sent` bytes.
fn copy_mode_bytes(plan: &Plan, sent: usize) -> Option<u64> {
    match (plan.copies.send, plan.protocol) {
        // Datagrams have slots of their own until they have left; the content of a stream never
        // changes.
        (SendCopy::ZeroCopy, TransportProtocol::Udp) => zero_copy_bytes(sent),
        // A pipe references the pages of the call, with 40 bytes for each.
        (SendCopy::Splice, _) => Some(sent as u64 / 64 + 4096),
        _ => Some(0),
    }
}

/// Returns the receive buffers of a thread's io_uring in bytes; 0 without one.
fn ring_bytes(plan: &Plan, received: usize) -> u64 {
    match plan.wait.as_ref().map(|wait| wait.server) {
        Some(WaitMode::IoUring) => pool_bytes(received) as u64,
        _ => 0,
    }
}

/// Returns the kernel memory of one socket's forced buffers, in bytes.
fn forced_buffer_bytes(plan: &Plan) -> u64 {
    if !plan.forced_buffers.server {
        return 0;
    }
    let requested = |bytes: Option<u64>| bytes.or(plan.window_bytes).unwrap_or(0);
    // The kernel doubles the requested size.
    requested(plan.socket.send_buffer_bytes)
        .saturating_add(requested(plan.socket.receive_buffer_bytes))
        .saturating_mul(2)
}

/// Returns the reason why no server of this version runs a plan.
#[must_use]
pub fn reject_plan(plan: &Plan) -> Option<ErrorReport> {
    check_kind(plan)
        .or_else(|| check_sizes(plan))
        .or_else(|| check_times(plan))
        .or_else(|| check_round_trips(plan))
        .or_else(|| check_texts(plan))
}

/// Rejects kinds of runs that have no remote end.
fn check_kind(plan: &Plan) -> Option<ErrorReport> {
    let single_end = matches!(
        plan.kind,
        RunKind::Forward | RunKind::Generate | RunKind::Stack
    );
    if !single_end && plan.forward.is_none() && plan.generate.is_none() {
        return None;
    }
    out_of_range(
        "kind of run",
        plan.kind.to_string(),
        "run `linerate forward` or `linerate generate` instead: they need no server",
    )
}

fn check_round_trips(plan: &Plan) -> Option<ErrorReport> {
    let requested = &plan.round_trip;
    let mut others = requested.clone();
    // A spinning thread of a throughput run may yield, too.
    others.rt_yield = false;
    if plan.kind != RunKind::Latency && !others.is_default() {
        return out_of_range(
            "options of round trips",
            "the plan",
            "use them with latency",
        );
    }
    let flows = u64::from(plan.streams) * plan.directions.len() as u64;
    if requested.needs_flow_socket() && flows > SERVICE_FLOW_LIMIT {
        return out_of_range(
            "number of flows",
            format!("-P {}", plan.streams),
            "use 1024 at most with --connect, --reopen, --unconnected or --multicast: each has its \
             own port at the server",
        );
    }
    let several_outstanding = requested.is_pipelined() && requested.rate_per_second.is_none();
    if !plan.timestamps.is_none() && (requested.needs_flow_socket() || several_outstanding) {
        return out_of_range(
            "options of round trips",
            "--stages or --trace",
            "timestamps need one outstanding request on a connected socket: leave the others out",
        );
    }
    if !(1..=MAX_OUTSTANDING).contains(&requested.outstanding) {
        return out_of_range(
            "number of outstanding requests",
            format!("--outstanding {}", requested.outstanding),
            "use 1 to 65536",
        );
    }
    if (requested.rate_per_second).is_some_and(|rate| !(1..=MAX_RATE_PER_SECOND).contains(&rate)) {
        return out_of_range("request rate", "--rate", "use 1 to 10M per second");
    }
    if requested
        .limit_ns
        .is_some_and(|limit| limit > TIME_LIMIT_NS)
    {
        return out_of_range("time", "--limit", "use 1000000 s at most");
    }
    if requested.load_threads.client > LOAD_THREAD_LIMIT
        || requested.load_threads.server > LOAD_THREAD_LIMIT
    {
        return out_of_range("number of threads", "--load cpu", "use 256 at most");
    }
    let udp_only = requested.group.is_some() || requested.socket_mode == SocketMode::Unconnected;
    if udp_only && plan.protocol != TransportProtocol::Udp {
        return out_of_range(
            "protocol",
            "--multicast or --unconnected",
            "add -u: a TCP connection has one peer",
        );
    }
    if (requested.group.as_ref()).is_some_and(|group| !group.address.is_multicast()) {
        return out_of_range("group", "--multicast", "use a multicast address");
    }
    if requested
        .group
        .as_ref()
        .is_some_and(MulticastGroup::is_reserved)
    {
        return out_of_range("group", "--multicast", MulticastGroup::FREE_GROUPS);
    }
    None
}

/// Rejects a timeline of more threads than it can hold.
#[must_use]
pub fn check_traced_threads(plan: &Plan, threads: usize) -> Option<ErrorReport> {
    if !plan.trace || threads <= TRACED_THREAD_LIMIT {
        return None;
    }
    out_of_range(
        "number of threads",
        format!("--trace with {threads} threads"),
        "use 1024 threads at most with --trace: fewer flows (-P), or --threads",
    )
}

fn out_of_range(quantity: &str, value: impl Into<String>, next: &str) -> Option<ErrorReport> {
    Some(ErrorReport::new(
        format!("{quantity} out of range"),
        value,
        next,
    ))
}

fn check_sizes(plan: &Plan) -> Option<ErrorReport> {
    let largest = match plan.protocol {
        TransportProtocol::Tcp => MAX_CALL_BYTES,
        TransportProtocol::Udp => MAX_DATAGRAM_BYTES,
    };
    let mut directions = plan.directions.clone();
    directions.sort_unstable();
    directions.dedup();
    if directions.is_empty() || directions.len() != plan.directions.len() {
        return out_of_range("directions", "the plan", "name each at most once");
    }
    if plan.kind == RunKind::Latency && directions != [Direction::Send] {
        return out_of_range(
            "directions",
            "the plan",
            "round trips have one direction: from the client",
        );
    }
    let flows = u64::from(plan.streams) * directions.len() as u64;
    if flows == 0 || flows > FLOW_LIMIT {
        return out_of_range(
            "number of flows",
            format!("-P {}", plan.streams),
            "use 1 to 16000 in total, both directions together",
        );
    }
    let threads = plan.threads.iter();
    let mut threads = threads.flat_map(|threads| [threads.client, threads.server]);
    if threads.any(|threads| threads == 0 || threads > THREAD_LIMIT) {
        return out_of_range(
            "number of threads",
            "--threads",
            "use 1 to as many as flows",
        );
    }
    if plan.payload_bytes == 0 || plan.payload_bytes > largest {
        return out_of_range(
            "payload size",
            format!("-l {}", plan.payload_bytes),
            "use 1 B to 64 MiB for TCP, to 65507 B for UDP",
        );
    }
    if let Some(bytes) = plan.receive_bytes
        && (bytes == 0 || bytes > MAX_CALL_BYTES)
    {
        return out_of_range("receive size", format!("{bytes} B"), "use 1 B to 64 MiB");
    }
    let batches = plan.protocol == TransportProtocol::Udp && plan.kind == RunKind::Throughput;
    if let Some(batch) = plan.batch
        && (!batches || batch == 0 || batch > MAX_BATCH_DATAGRAMS)
    {
        return out_of_range(
            "datagrams per call",
            format!("--batch {batch}"),
            "use 1 to 1024, with UDP throughput",
        );
    }
    let waits = plan.wait.iter().flat_map(|wait| [wait.client, wait.server]);
    if plan.trace && waits.clone().any(|wait| wait == WaitMode::IoUring) {
        return out_of_range(
            "traced wait mode",
            "--trace with --wait io-uring",
            "use another --wait: the timeline has no io_uring calls",
        );
    }
    if plan.trace && plan.kind != RunKind::Throughput {
        return out_of_range(
            "traced kind of run",
            "the plan",
            "a timeline of calls needs throughput; round trips have timestamps",
        );
    }
    if !plan.timestamps.is_none() {
        let allowed = plan.kind == RunKind::Latency
            && plan.streams == 1
            && plan.payload_bytes >= HEADER_BYTES as u64;
        if !allowed {
            return out_of_range(
                "timestamped flow",
                "--stages",
                "use it for round trips on one flow (no -P) with messages of 16 B or more",
            );
        }
        let mut waits = waits;
        if waits.any(|wait| wait == WaitMode::IoUring) {
            return out_of_range(
                "timestamped wait mode",
                "--stages or --trace with --wait io-uring",
                "use another --wait: io_uring receives carry no timestamps",
            );
        }
    }
    check_copies(plan).map_or_else(|| check_rates(plan), Some)
}

/// Checks copy modes and content verification.
fn check_copies(plan: &Plan) -> Option<ErrorReport> {
    let copies = &plan.copies;
    let only_tcp = matches!(copies.send, SendCopy::SendFile | SendCopy::Splice)
        || copies.receive == ReceiveCopy::Discarded;
    if plan.kind == RunKind::Latency && (plan.verify || !copies.is_default()) {
        return out_of_range(
            "options of throughput",
            "the plan",
            "leave --offload and --verify out of round trips",
        );
    }
    if plan.protocol == TransportProtocol::Udp && only_tcp {
        return out_of_range(
            "copy mode",
            "--offload with -u",
            "use gso, gro, zerocopy or none with UDP",
        );
    }
    let uses_io_uring = plan.wait.as_ref();
    let uses_io_uring =
        uses_io_uring.is_some_and(|wait| [wait.client, wait.server].contains(&WaitMode::IoUring));
    let timed = plan.pace.method == PacingMethod::Txtime;
    let round_trip = &plan.round_trip;
    let special_socket =
        round_trip.socket_mode != SocketMode::Connected || round_trip.group.is_some();
    if uses_io_uring && (plan.batch.is_some() || timed || special_socket || !copies.is_default()) {
        return out_of_range(
            "options of other system calls",
            "--wait io-uring",
            "leave --batch and --offload zerocopy, sendfile, splice and trunc out with it",
        );
    }
    if plan.batch.is_some() && copies.send != SendCopy::Copied {
        return out_of_range(
            "copy mode",
            "--offload with --batch",
            "leave one of them out: datagrams of a batch are copied",
        );
    }
    if plan.verify && !copies.delivers_content() {
        return out_of_range(
            "copy mode",
            "--offload with --verify",
            "leave one of them out: content that is not copied cannot be verified",
        );
    }
    None
}

fn check_rates(plan: &Plan) -> Option<ErrorReport> {
    // A burst is limited by what one call holds, so that it cannot flood the network.
    if plan.pace.burst.is_some() && plan.pace.burst_bytes(plan.payload_bytes) > BURST_LIMIT_BYTES {
        return out_of_range("burst", "the plan", "use 64 MiB at most");
    }
    if plan.rate_bps == Some(0) {
        return out_of_range("rate", "-b 0", "leave -b out to send at full speed");
    }
    None
}

fn check_times(plan: &Plan) -> Option<ErrorReport> {
    let longest = "use 1000000 s at most";
    for (option, time) in [
        ("-t", plan.duration_ns),
        ("-O", Some(plan.omit_ns)),
        ("-i", plan.interval_ns),
        ("--timeout", plan.response_timeout_ns),
    ] {
        if let Some(time) = time.filter(|&time| time > TIME_LIMIT_NS) {
            return out_of_range("time", format!("{option} {time}ns"), longest);
        }
    }
    if plan.duration_ns == Some(0) || plan.response_timeout_ns == Some(0) {
        return out_of_range("time", "the plan", "use more than 0 s");
    }
    let amount = match plan.kind {
        RunKind::Throughput | RunKind::Forward | RunKind::Generate | RunKind::Stack => {
            plan.amount_bytes
        }
        RunKind::Latency => plan.round_trips,
    };
    if plan.duration_ns.is_none() && amount.is_none() {
        return out_of_range("time", "the plan", "set an end with -t or -n");
    }
    if let Some(interval) = plan.interval_ns {
        if interval < MIN_INTERVAL_NS {
            return out_of_range(
                "interval",
                format!("-i {interval}ns"),
                "use -i 10ms or more",
            );
        }
        let total_ns = plan.duration_ns.unwrap_or(0) + plan.omit_ns;
        if total_ns / interval > INTERVAL_LIMIT {
            return out_of_range(
                "interval",
                format!("-i {interval}ns"),
                "use longer ones: a run has 1000000 at most",
            );
        }
    }
    let waits = plan.wait.iter().flat_map(|wait| [wait.client, wait.server]);
    for wait in waits {
        if let WaitMode::Select {
            timeout_ns: Some(timeout),
        } = wait
            && timeout > TIME_LIMIT_NS
        {
            return out_of_range("time", format!("--wait {wait}"), longest);
        }
    }
    None
}

fn check_texts(plan: &Plan) -> Option<ErrorReport> {
    for (option, text) in [
        ("the host", Some(&plan.host)),
        ("-B", plan.bind.as_ref()),
        ("-C", plan.congestion_control.as_ref()),
        ("the stack", Some(&plan.stack.client)),
        ("the stack", Some(&plan.stack.server)),
    ] {
        if text.is_some_and(|text| text.chars().nth(TEXT_LIMIT).is_some()) {
            return out_of_range("length of a name", option, "use 256 characters at most");
        }
    }
    let interface = plan.round_trip.group.as_ref();
    let interface = interface.and_then(|group| group.interface.as_ref());
    if interface.is_some_and(|name| name.len() > TEXT_LIMIT) {
        return out_of_range(
            "length of a name",
            "--multicast",
            "use 256 characters at most",
        );
    }
    if plan.cpu.client.0.len() > CPU_LIMIT || plan.cpu.server.0.len() > CPU_LIMIT {
        return out_of_range("number of CPUs", "--cpu", "name 1024 at most");
    }
    None
}

#[cfg(test)]
mod tests {
    use linerate_record::pace::PaceBurst;
    use linerate_record::plan::{CpuList, PerEnd, TimestampLevel};

    use super::*;

    fn plan() -> Plan {
        Plan::new(RunKind::Throughput, TransportProtocol::Tcp, "host")
    }

    /// A group as a client may send it, even if the command line would reject it.
    fn group(address: &str) -> Option<MulticastGroup> {
        Some(MulticastGroup {
            address: address.parse().unwrap(),
            interface: None,
            ttl: 1,
        })
    }

    #[test]
    fn plans_close_to_a_limit_are_accepted() {
        let mut timestamped = Plan::new(RunKind::Latency, TransportProtocol::Udp, "host");
        timestamped.timestamps = TimestampLevel::Driver;
        timestamped.wait = Some(PerEnd {
            client: WaitMode::Block,
            server: WaitMode::Spin,
        });
        timestamped.round_trip.limit_ns = Some(TIME_LIMIT_NS);
        timestamped.response_timeout_ns = Some(TIME_LIMIT_NS);
        let mut joined = Plan::new(RunKind::Latency, TransportProtocol::Udp, "host");
        joined.round_trip.group = group("239.1.2.3");
        joined.round_trip.rate_per_second = Some(MAX_RATE_PER_SECOND);
        let mut many = Plan::new(RunKind::Latency, TransportProtocol::Tcp, "host");
        many.streams = 1_024;
        many.round_trip.socket_mode = SocketMode::Reopened;
        let mut without_copy = plan();
        without_copy.protocol = TransportProtocol::Udp;
        without_copy.payload_bytes = 1_472;
        without_copy.copies.send = SendCopy::ZeroCopy;
        for plan in [timestamped, joined, many, without_copy] {
            assert_eq!(reject_plan(&plan), None);
        }
    }

    /// Memory that a change adds, with one sending thread.
    fn grown(mut plan: Plan, change: impl FnOnce(&mut Plan)) -> u64 {
        let memory = |plan: &Plan| memory_bytes(plan, &[(FlowRole::Sender, 1)], 4).unwrap();
        let before = memory(&plan);
        change(&mut plan);
        memory(&plan) - before
    }

    #[test]
    fn payload_without_a_copy_is_counted() {
        let mut sent = plan();
        sent.directions = vec![Direction::Receive];
        let grows = |sent: &Plan, copy| grown(sent.clone(), |plan| plan.copies.send = copy);
        assert_eq!(grows(&sent, SendCopy::ZeroCopy), 0);
        assert_eq!(grows(&sent, SendCopy::SendFile), 1 << 20);
        sent.protocol = TransportProtocol::Udp;
        sent.payload_bytes = 8_000;
        sent.streams = 10;
        let slots_bytes = 10 * (16 * 8_000 + 4_096);
        assert_eq!(grows(&sent, SendCopy::ZeroCopy), slots_bytes);
        // Segmented by the kernel, a call holds 64 KiB.
        sent.udp_offload.gso = Some(true);
        let slots_bytes = 10 * (16 * (64 << 10) + 4_096);
        assert_eq!(grows(&sent, SendCopy::ZeroCopy), slots_bytes);
    }

    #[test]
    fn timelines_and_timestamps_are_counted() {
        let traced = grown(plan(), |plan| plan.trace = true);
        let recorded = grown(plan(), |plan| plan.calls = true);
        assert_eq!(traced, recorded + TRACE_BYTES + ALL_TRACES_BYTES);
        const { assert!(TRACE_BYTES >= 8_192 * 24) };
        let plan_of_round_trips = Plan::new(RunKind::Latency, TransportProtocol::Udp, "host");
        let added = |level| grown(plan_of_round_trips.clone(), |plan| plan.timestamps = level);
        let packets = added(TimestampLevel::Packets);
        assert!(packets > 1 << 20, "{packets}");
        assert!(added(TimestampLevel::Scheduler) >= packets + 4 * (256 << 10));
        assert!(added(TimestampLevel::Driver) > 3_400_000 + 4 * (256 << 10));
        let mut plan = plan();
        assert!(check_traced_threads(&plan, 1_025).is_none());
        plan.trace = true;
        assert!(check_traced_threads(&plan, 1_024).is_none());
        assert!(check_traced_threads(&plan, 1_025).is_some());
    }

    #[test]
    fn defaults_are_accepted() {
        assert_eq!(reject_plan(&plan()), None);
        assert_eq!(
            reject_plan(&Plan::new(RunKind::Latency, TransportProtocol::Udp, "host")),
            None
        );
    }

    #[test]
    fn plans_beyond_a_limit_are_rejected() {
        type Change = fn(&mut Plan);
        let changes: &[(&str, Change)] = &[
            ("no streams", |p| p.streams = 0),
            ("many streams", |p| p.streams = 16_001),
            ("many both ways", |p| {
                p.streams = 8_001;
                p.directions = vec![Direction::Send, Direction::Receive];
            }),
            ("no threads", |p| p.threads = Some(PerEnd::same(0))),
            ("many threads", |p| p.threads = Some(PerEnd::same(u32::MAX))),
            ("largest number of streams", |p| p.streams = u32::MAX),
            ("no payload", |p| p.payload_bytes = 0),
            ("much payload", |p| p.payload_bytes = u64::MAX),
            ("no receive size", |p| p.receive_bytes = Some(0)),
            ("large receive size", |p| p.receive_bytes = Some(1 << 40)),
            ("no directions", |p| p.directions.clear()),
            ("twice", |p| p.directions = vec![Direction::Send; 2]),
            ("long", |p| p.duration_ns = Some(u64::MAX)),
            ("not at all", |p| p.duration_ns = Some(0)),
            ("endless", |p| p.duration_ns = None),
            ("omit", |p| p.omit_ns = u64::MAX),
            ("long interval", |p| p.interval_ns = Some(u64::MAX)),
            ("no interval", |p| p.interval_ns = Some(0)),
            ("short interval", |p| {
                p.interval_ns = Some(MIN_INTERVAL_NS - 1)
            }),
            ("many intervals", |p| {
                p.duration_ns = Some(TIME_LIMIT_NS);
                p.interval_ns = Some(MIN_INTERVAL_NS);
            }),
            ("timeout", |p| p.response_timeout_ns = Some(u64::MAX)),
            ("no timeout", |p| p.response_timeout_ns = Some(0)),
            ("select", |p| {
                p.wait = Some(PerEnd::same(WaitMode::Select {
                    timeout_ns: Some(u64::MAX),
                }));
            }),
            ("round trips of a throughput run", |p| {
                p.round_trip.verify = false
            }),
            ("no outstanding request", |p| {
                p.kind = RunKind::Latency;
                p.round_trip.outstanding = 0;
            }),
            ("many outstanding requests", |p| {
                p.kind = RunKind::Latency;
                p.round_trip.outstanding = u32::MAX;
            }),
            ("request rate", |p| {
                p.kind = RunKind::Latency;
                p.round_trip.rate_per_second = Some(u64::MAX);
            }),
            ("time of a slow response", |p| {
                p.kind = RunKind::Latency;
                p.round_trip.limit_ns = Some(TIME_LIMIT_NS + 1);
            }),
            ("unconnected TCP", |p| {
                p.kind = RunKind::Latency;
                p.round_trip.socket_mode = SocketMode::Unconnected;
            }),
            ("burning", |p| {
                p.kind = RunKind::Latency;
                p.round_trip.load_threads.server = 100_000;
            }),
            ("rate", |p| p.rate_bps = Some(0)),
            ("unseen content", |p| {
                p.verify = true;
                p.copies.receive = ReceiveCopy::Discarded;
            }),
            ("datagrams from a file", |p| {
                p.protocol = TransportProtocol::Udp;
                p.payload_bytes = 64;
                p.copies.send = SendCopy::SendFile;
            }),
            ("a batch of a stream", |p| p.batch = Some(8)),
            ("a large batch", |p| {
                p.protocol = TransportProtocol::Udp;
                p.payload_bytes = 64;
                p.batch = Some(1_025);
            }),
            ("a batch without a copy", |p| {
                p.protocol = TransportProtocol::Udp;
                p.payload_bytes = 1_472;
                p.batch = Some(1_024);
                p.copies.send = SendCopy::ZeroCopy;
            }),
            ("a traced ring", |p| {
                p.trace = true;
                p.wait = Some(PerEnd::same(WaitMode::IoUring));
            }),
            ("a stamped ring", |p| {
                p.kind = RunKind::Latency;
                p.payload_bytes = 64;
                p.timestamps = TimestampLevel::Packets;
                p.wait = Some(PerEnd::same(WaitMode::IoUring));
            }),
            ("many ports", |p| {
                p.kind = RunKind::Latency;
                p.payload_bytes = 64;
                p.streams = 1_025;
                p.round_trip.socket_mode = SocketMode::Reopened;
            }),
            ("the group of all hosts", |p| {
                p.kind = RunKind::Latency;
                p.protocol = TransportProtocol::Udp;
                p.payload_bytes = 64;
                p.round_trip.group = group("224.0.0.1");
            }),
            ("the group of all nodes", |p| {
                p.kind = RunKind::Latency;
                p.protocol = TransportProtocol::Udp;
                p.payload_bytes = 64;
                p.round_trip.group = group("ff02::1");
            }),
            ("burst", |p| {
                p.pace.burst = Some(PaceBurst::Payloads(u64::MAX))
            }),
            ("host", |p| p.host = "x".repeat(257)),
            ("bind", |p| p.bind = Some("x".repeat(257))),
            ("congestion control", |p| {
                p.congestion_control = Some("x".repeat(1 << 20));
            }),
            ("cpus", |p| p.cpu.server = CpuList((0..1_025).collect())),
        ];
        for (name, change) in changes {
            let mut plan = plan();
            change(&mut plan);
            assert!(reject_plan(&plan).is_some(), "{name}");
        }
    }

    #[test]
    fn memory_is_counted_without_wrapping() {
        let mut plan = plan();
        let one_thread = memory_bytes(&plan, &[(FlowRole::Receiver, 1)], 4).unwrap();
        let one_thread = one_thread - max_frame_bytes(&plan) as u64 - EARLY_INTERVALS_BYTES;
        // The default buffer of a receive call, and little else.
        assert!((256 << 10..400 << 10).contains(&one_thread), "{one_thread}");
        plan.receive_bytes = Some(MAX_CALL_BYTES);
        let many = memory_bytes(&plan, &[(FlowRole::Receiver, 2_000)], 4).unwrap();
        assert!(many > MEMORY_LIMIT);
        plan.receive_bytes = Some(u64::MAX / 2);
        assert_eq!(memory_bytes(&plan, &[(FlowRole::Receiver, 2_000)], 4), None);
        plan.kind = RunKind::Latency;
        plan.payload_bytes = u64::MAX;
        assert_eq!(memory_bytes(&plan, &[], 4), None);
    }
}
