//! Calls move so little data that the calls themselves are the cost.

use linerate_metric::facts::Role;
use linerate_metric::finding::Finding;
use linerate_metric::plan::Protocol;
use linerate_metric::record::CountedAt;
use linerate_metric::units::{format_bytes, format_per_second, format_share};

use super::{is_paced, schedstat};
use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, Way, name};

/// Fixed cost of a stream's send call, ns, in addition to 0.08 ns per byte: a write of 1 KiB takes
/// 3.5 us on the 2-core VM (docs/method/defaults.md#constants-of-estimates). Only the ratio of both
/// is used.
const CALL_NS: f64 = 3_000.0;

/// Call size from which the bytes cost more than the call.
const LARGE: u64 = 32 << 10;

/// Cost of a datagram with GSO and GRO, ns: per datagram and per byte. 33 ns for 64 B and 111 ns
/// for 1472 B at best on the 2-core VM (docs/BENCHMARKS.md, throughput/udp/*/gso_gro).
const JOINED_NS: f64 = 30.0;
const JOINED_BYTE_NS: f64 = 0.055;

/// Largest gain ever measured (143 times in the same row for 64 B).
const MOST: f64 = 150.0;

/// Smallest share of the time that matters.
const MATTERS: f64 = 0.2;

/// See docs/CAUSES.md#small-writes.
pub struct SmallWrites;

impl Rule for SmallWrites {
    fn id(&self) -> &'static str {
        "small-writes"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        if is_paced(case) {
            return Vec::new();
        }
        let tcp = case.throughput(Protocol::Tcp);
        let udp = case.throughput(Protocol::Udp);
        (tcp.filter_map(|way| self.of_tcp(case, way)))
            .chain(udp.filter_map(|way| self.of_udp(case, way)))
            .collect()
    }
}

/// Returns the mean time of a send whose data fit into the buffer, if calls were timed (those of
/// the client).
fn timed(case: &Case<'_>, role: Role) -> Option<f64> {
    let sends = case.record.calls.values().filter(|_| role == Role::Client);
    let room: Vec<_> = sends.filter_map(|call| call.room.as_ref()).collect();
    let count: u64 = room.iter().map(|times| times.times.count).sum();
    let total: u64 = room.iter().map(|times| times.total_ns).sum();
    (count > 0).then(|| total as f64 / count as f64)
}

/// Returns the part of a call's time that its bytes take, ns: on a slower machine both parts grow
/// in proportion. At least the receiver's time per byte, if that works in large chunks.
fn of_bytes(way: &Way<'_>, each: f64, payload: u64) -> f64 {
    let bytes = payload as f64 * super::BYTE_NS;
    let alike = each * bytes / (CALL_NS + bytes);
    let large = way.works_in_large_pieces(CountedAt::Receiver);
    let received = way
        .time(CountedAt::Receiver)
        .filter(|_| large)
        .zip(way.goodput());
    let received =
        received.map(|(time, goodput)| time.working * time.threads as f64 * 8e9 / goodput.max(1.0));
    received
        .map_or(alike, |byte| alike.max(byte * payload as f64))
        .min(each)
}

impl SmallWrites {
    fn of_tcp(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let payload = case.plan.payload_bytes;
        if payload >= LARGE || !super::is_saturated(way) || way.fills_path() {
            return None;
        }
        let calls = way.summary().calls_per_second?;
        let time = way.time(CountedAt::Sender)?;
        let flows = time.threads.max(1) as f64;
        let role = way.sender;
        let timed = timed(case, role);
        let each = timed.unwrap_or((time.working + time.turning) * 1e9 * flows / calls.max(1.0));
        let share = ((each - of_bytes(way, each, payload)) * calls / 1e9 / flows).clamp(0.0, 0.95);
        if share < MATTERS {
            return None;
        }
        Draft::cause(self.id(), role)
            .way(way.direction)
            .cost(share)
            .says(format!(
                "each call sends {}, and {} calls take {} of the sending threads' time",
                format_bytes(payload),
                format_per_second(calls),
                format_share(share)
            ))
            .seen("payload_bytes", payload, "B", "plan")
            .seen("calls_per_second", calls, "1/s", "sender")
            .seen(
                "time of a call",
                each.round(),
                "ns",
                match timed {
                    Some(_) => "calls".to_owned(),
                    None => format!("{} / calls", schedstat(role)),
                },
            )
            .seen(
                "working time of the sending threads",
                time.working,
                "share",
                schedstat(role),
            )
            .remedy("write more per call: 128 KiB to 1 MiB")
            .command(case.again("-l 128K"))
            .gain(
                super::within_headroom(way, each / (payload.max(1) as f64 * super::BYTE_NS)),
                "time of a call over the shortest time of its bytes (0.08 ns each)",
            )
            .found()
    }

    fn of_udp(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let plan = case.plan;
        let together = way
            .senders()
            .filter_map(|socket| socket.datagrams_per_call)
            .max();
        // Our stack makes no call per datagram, and has neither GSO nor GRO: with it at either end
        // the option is not available.
        let own = way.is_own_stack(way.sender) || way.is_own_stack(way.receiver);
        let alone = together.unwrap_or(1) == 1 && plan.udp_offload.gso != Some(true) && !own;
        if !alone || way.fragments() > 1.0 || !super::is_saturated(way) || way.fills_path() {
            return None;
        }
        let packets = way.summary().packets_per_second?;
        let sender = way.time(CountedAt::Sender)?;
        let each = sender.working * 1e9 / packets.max(1.0);
        let joined = JOINED_NS + JOINED_BYTE_NS * plan.payload_bytes as f64;
        let share = 1.0 - joined / each.max(joined);
        if share < MATTERS {
            return None;
        }
        let role = way.sender;
        Draft::cause(self.id(), role)
            .way(way.direction)
            .cost(share * sender.working)
            .says(format!(
                "each call of the {} sends one datagram of {} and takes {:.1} us",
                name(role),
                format_bytes(plan.payload_bytes),
                each / 1e3
            ))
            .seen(
                "datagrams_per_call",
                together.unwrap_or(1),
                "datagrams",
                "plan",
            )
            .seen("payload_bytes", plan.payload_bytes, "B", "plan")
            .seen("packets_per_second", packets, "1/s", "receiver")
            .seen(
                "working time of the sending threads",
                sender.working,
                "share",
                schedstat(role),
            )
            .remedy(
                "send many datagrams per call (UDP_SEGMENT, UDP_GRO), or with sendmmsg if GSO is \
                 not possible",
            )
            .command(case.again("--offload gso,gro"))
            .tried(plan.udp_offload.asked.then(|| "--offload none".to_owned()))
            .tried(plan.batch.map(|batch| format!("--batch {batch}")))
            .gain(
                Some((each / joined).min(MOST)),
                "time of a datagram over 30 ns + 0.055 ns per byte with GSO and GRO",
            )
            .found()
    }
}
