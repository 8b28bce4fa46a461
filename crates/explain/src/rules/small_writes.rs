//! Calls move so little data that the calls themselves are the cost.

use linerate_record::facts::Role;
use linerate_record::finding::Finding;
use linerate_record::ids::CauseId;
use linerate_record::plan::TransportProtocol;
use linerate_record::record::FlowEnd;
use linerate_stats::units::{format_bytes, format_per_second, format_share};

use super::{is_paced, schedstat_source};
use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, duration, percent, size};
use crate::run_view::{DirectionView, RunView};

/// Fixed cost of a stream's send call, ns, in addition to 0.08 ns per byte: a write of 1 KiB takes
/// 3.5 us on the 2-core VM (docs/method/defaults.md#constants-of-estimates). Only the ratio of both
/// is used.
const SEND_CALL_NS: f64 = 3_000.0;

/// Call size from which the bytes cost more than the call.
const LARGE_WRITE_BYTES: u64 = 32 << 10;

/// Cost of a datagram with GSO and GRO, ns: per datagram and per byte. 33 ns for 64 B and 111 ns
/// for 1472 B at best on the 2-core VM (docs/BENCHMARKS.md, throughput/udp/*/gso_gro).
const OFFLOADED_DATAGRAM_NS: f64 = 30.0;
const OFFLOADED_BYTE_NS: f64 = 0.055;

/// Largest gain ever measured (143 times in the same row for 64 B).
const MAX_GAIN: f64 = 150.0;

/// Largest cost of the calls of a stream: the bytes take the rest.
const MAX_CALL_SHARE: f64 = 0.95;

/// Smallest share of the time that matters.
const MIN_RELEVANT_SHARE: f64 = 0.2;

/// See docs/CAUSES.md#small-writes.
pub struct SmallWrites;

impl Rule for SmallWrites {
    fn id(&self) -> CauseId {
        CauseId::SmallWrites
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "Each call moves so little that the calls are the cost.",
            shown_when: vec![
                detection(
                    "TCP",
                    [
                        "an end is saturated".into(),
                        format!("calls are smaller than {}", size(LARGE_WRITE_BYTES)),
                        format!(
                            "the calls take {} of the sending threads' time or more",
                            percent(MIN_RELEVANT_SHARE)
                        ),
                    ],
                ),
                detection(
                    "UDP between sockets of two kernels",
                    [
                        "an end is saturated".into(),
                        "each call sends one datagram, each datagram is one packet, and GSO is off"
                            .into(),
                        format!(
                            "GSO would save {} of a datagram's time or more",
                            percent(MIN_RELEVANT_SHARE)
                        ),
                    ],
                ),
            ],
            not_when: vec!["a rate was requested".into(), "the path is full".into()],
            evidence: &[
                ("payload_bytes", "B"),
                ("calls_per_second", "1/s"),
                ("time of a call", "ns"),
                ("working time of the sending threads", "share"),
                ("datagrams_per_call", "datagrams"),
                ("packets_per_second", "1/s"),
            ],
            cost: vec![
                "TCP: time of the calls less that of their bytes, as a share of the sending \
                 threads' time."
                    .into(),
                "The time of a call is the one that `--calls` measures, or the threads' time over \
                 the calls."
                    .into(),
                format!(
                    "Bytes take {} ns each for {} of a call, in this proportion on machines of any \
                     speed.",
                    super::MIN_BYTE_NS,
                    duration(SEND_CALL_NS)
                ),
                "They take at least the time of a receiver that works in large chunks.".into(),
                format!(
                    "UDP: time of a datagram less {OFFLOADED_DATAGRAM_NS} ns and \
                     {OFFLOADED_BYTE_NS} ns a byte, which it takes with GSO."
                ),
            ],
            remedy: vec![
                "TCP: write much more a call (`-l 128K` to `-l 1M`).".into(),
                "UDP: send many datagrams a call with UDP_SEGMENT and UDP_GRO (`--offload \
                 gso,gro`), or with `--batch`."
                    .into(),
            ],
            wrong_when: vec![
                "single packets are the subject of the measurement: then it is the result".into(),
            ],
            ..CauseReference::cause()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        if is_paced(run) {
            return Vec::new();
        }
        let tcp = run.throughput_directions(TransportProtocol::Tcp);
        let udp = run.throughput_directions(TransportProtocol::Udp);
        (tcp.filter_map(|direction| self.evaluate_tcp(run, direction)))
            .chain(udp.filter_map(|direction| self.evaluate_udp(run, direction)))
            .collect()
    }
}

/// Returns the mean time of a send whose data fit into the buffer, if calls were timed (those of
/// the client).
fn mean_send_call_ns(run: &RunView<'_>, role: Role) -> Option<f64> {
    let sends = run.record.calls.values().filter(|_| role == Role::Client);
    let accepted: Vec<_> = sends.filter_map(|call| call.accepted.as_ref()).collect();
    let count: u64 = accepted.iter().map(|times| times.times.count).sum();
    let total: u64 = accepted.iter().map(|times| times.total_ns).sum();
    (count > 0).then(|| total as f64 / count as f64)
}

/// Returns the part of a call's time that its bytes take, ns: on a slower machine both parts grow
/// in proportion. At least the receiver's time per byte, if that works in large chunks.
fn byte_time_ns(direction: &DirectionView<'_>, call_ns: f64, payload: u64) -> f64 {
    let bytes = payload as f64 * super::MIN_BYTE_NS;
    let proportional = call_ns * bytes / (SEND_CALL_NS + bytes);
    let has_large_chunks = direction.has_large_chunks(FlowEnd::Receiver);
    let received = direction
        .thread_time(FlowEnd::Receiver)
        .filter(|_| has_large_chunks)
        .zip(direction.goodput());
    let received =
        received.map(|(time, goodput)| time.working * time.threads as f64 * 8e9 / goodput.max(1.0));
    received
        .map_or(proportional, |byte| proportional.max(byte * payload as f64))
        .min(call_ns)
}

impl SmallWrites {
    fn evaluate_tcp(&self, run: &RunView<'_>, direction: &DirectionView<'_>) -> Option<Finding> {
        let payload = run.plan.payload_bytes;
        if payload >= LARGE_WRITE_BYTES || !super::is_saturated(direction) || direction.fills_path()
        {
            return None;
        }
        let calls = direction.summary().calls_per_second?;
        let time = direction.thread_time(FlowEnd::Sender)?;
        let flows = time.threads.max(1) as f64;
        let role = direction.sender;
        let timed = mean_send_call_ns(run, role);
        let each = timed.unwrap_or((time.working + time.spinning) * 1e9 * flows / calls.max(1.0));
        let share = ((each - byte_time_ns(direction, each, payload)) * calls / 1e9 / flows)
            .clamp(0.0, MAX_CALL_SHARE);
        if share < MIN_RELEVANT_SHARE {
            return None;
        }
        FindingBuilder::cause(self.id(), role)
            .direction(direction.direction)
            .cost(share)
            .summary(format!(
                "each call sends {}, and {} calls take {} of the sending threads' time",
                format_bytes(payload),
                format_per_second(calls),
                format_share(share)
            ))
            .evidence("payload_bytes", payload, "B", "plan")
            .evidence("calls_per_second", calls, "1/s", "sender")
            .evidence(
                "time of a call",
                each.round(),
                "ns",
                match timed {
                    Some(_) => "calls".to_owned(),
                    None => format!("{} / calls", schedstat_source(role)),
                },
            )
            .evidence(
                "working time of the sending threads",
                time.working,
                "share",
                schedstat_source(role),
            )
            .remedy("write more per call: 128 KiB to 1 MiB")
            .command(run.rerun_command("-l 128K"))
            .estimated_gain(
                super::within_headroom(
                    direction,
                    each / (payload.max(1) as f64 * super::MIN_BYTE_NS),
                ),
                "time of a call over the shortest time of its bytes (0.08 ns each)",
            )
            .build()
    }

    fn evaluate_udp(&self, run: &RunView<'_>, direction: &DirectionView<'_>) -> Option<Finding> {
        let plan = run.plan;
        let datagrams_per_call = direction
            .senders()
            .filter_map(|socket| socket.datagrams_per_call)
            .max();
        // Our stack makes no call per datagram, and has neither GSO nor GRO: with it at either end
        // the option is not available.
        let uses_netstack = direction.uses_netstack(direction.sender)
            || direction.uses_netstack(direction.receiver);
        let is_single_datagram = datagrams_per_call.unwrap_or(1) == 1
            && plan.udp_offload.gso != Some(true)
            && !uses_netstack;
        if !is_single_datagram
            || direction.fragments() > 1.0
            || !super::is_saturated(direction)
            || direction.fills_path()
        {
            return None;
        }
        let packets = direction.summary().packets_per_second?;
        let sender = direction.thread_time(FlowEnd::Sender)?;
        let each = sender.working * 1e9 / packets.max(1.0);
        let offloaded_ns = OFFLOADED_DATAGRAM_NS + OFFLOADED_BYTE_NS * plan.payload_bytes as f64;
        let share = 1.0 - offloaded_ns / each.max(offloaded_ns);
        if share < MIN_RELEVANT_SHARE {
            return None;
        }
        let role = direction.sender;
        FindingBuilder::cause(self.id(), role)
            .direction(direction.direction)
            .cost(share * sender.working)
            .summary(format!(
                "each call of the {} sends one datagram of {} and takes {:.1} us",
                role.as_str(),
                format_bytes(plan.payload_bytes),
                each / 1e3
            ))
            .evidence(
                "datagrams_per_call",
                datagrams_per_call.unwrap_or(1),
                "datagrams",
                "plan",
            )
            .evidence("payload_bytes", plan.payload_bytes, "B", "plan")
            .evidence("packets_per_second", packets, "1/s", "receiver")
            .evidence(
                "working time of the sending threads",
                sender.working,
                "share",
                schedstat_source(role),
            )
            .remedy(
                "send many datagrams per call (UDP_SEGMENT, UDP_GRO), or with sendmmsg if GSO is \
                 not possible",
            )
            .command(run.rerun_command("--offload gso,gro"))
            .tried(
                plan.udp_offload
                    .requested
                    .then(|| "--offload none".to_owned()),
            )
            .tried(plan.batch.map(|batch| format!("--batch {batch}")))
            .estimated_gain(
                Some((each / offloaded_ns).min(MAX_GAIN)),
                "time of a datagram over 30 ns + 0.055 ns per byte with GSO and GRO",
            )
            .build()
    }
}
