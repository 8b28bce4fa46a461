//! Each call moves so little that the calls are the work.

use linerate_metric::facts::Role;
use linerate_metric::finding::Finding;
use linerate_metric::plan::Protocol;
use linerate_metric::record::CountedAt;
use linerate_metric::units::{format_bytes, format_per_second, format_share};

use super::{is_paced, schedstat};
use crate::Rule;
use crate::case::{Case, Way, name};
use crate::draft::Draft;

/// What a send call of a stream costs whatever it moves, ns, beside 0.08 ns for each of its bytes: a write of 1 KiB
/// takes 3.5 us on the 2-core VM (docs/METHOD.md, calls). Only the relation of the two is used.
const CALL_NS: f64 = 3_000.0;

/// Calls from this size on move more than they cost.
const LARGE: u64 = 32 << 10;

/// What a datagram costs where the kernel cuts and joins them (GSO, GRO), ns: a part of each, and of each byte.
/// 33 ns of 64 B and 111 ns of 1472 B at best on the 2-core VM (docs/BENCHMARKS.md, throughput/udp/*/gso_gro).
const JOINED_NS: f64 = 30.0;
const JOINED_BYTE_NS: f64 = 0.055;

/// The most that it was ever measured to give (the same row of 64 B: 143 times).
const MOST: f64 = 150.0;

/// Share of the time from which it matters.
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

/// Mean time of a send that found room, where calls were timed (those of the client).
fn timed(case: &Case<'_>, role: Role) -> Option<f64> {
    let sends = case.record.calls.values().filter(|_| role == Role::Client);
    let room: Vec<_> = sends.filter_map(|call| call.room.as_ref()).collect();
    let count: u64 = room.iter().map(|times| times.times.count).sum();
    let total: u64 = room.iter().map(|times| times.total_ns).sum();
    (count > 0).then(|| total as f64 / count as f64)
}

/// What of a call's time its bytes take, ns: on a slower machine both parts are longer alike. No less than they took the
/// receiver, where that takes large pieces.
fn of_bytes(way: &Way<'_>, each: f64, payload: u64) -> f64 {
    let bytes = payload as f64 * super::BYTE_NS;
    let alike = each * bytes / (CALL_NS + bytes);
    let large = way.works_in_large_pieces(CountedAt::Receiver);
    let received = way.time(CountedAt::Receiver).filter(|_| large).zip(way.goodput());
    let received = received.map(|(time, goodput)| time.working * time.threads as f64 * 8e9 / goodput.max(1.0));
    received.map_or(alike, |byte| alike.max(byte * payload as f64)).min(each)
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
                "each call moves {}, and {} calls take {} of the sending threads' time",
                format_bytes(payload),
                format_per_second(calls),
                format_share(share)
            ))
            .seen("payload_bytes", payload, "B", "plan")
            .seen("calls_per_second", calls, "1/s", "sender")
            .seen("time of a call", each.round(), "ns", match timed {
                Some(_) => "calls".to_owned(),
                None => format!("{} over the calls", schedstat(role)),
            })
            .seen("working time of the sending threads", time.working, "share", schedstat(role))
            .remedy("write more at a time: 128 KiB to 1 MiB a call")
            .command(case.again("-l 128K"))
            .gain(super::within_headroom(way, each / (payload.max(1) as f64 * super::BYTE_NS)), "time of a call now over that of its bytes at best (0.08 ns each)")
            .found()
    }

    fn of_udp(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let plan = case.plan;
        let together = way
            .senders()
            .filter_map(|socket| socket.datagrams_per_call)
            .max();
        // Our own stack makes no call for a datagram, and nobody cuts or joins them for it: none that is asked for can
        // have it at either end.
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
                "each call of the {} sends one datagram of {}, and takes {:.1} us",
                name(role),
                format_bytes(plan.payload_bytes),
                each / 1e3
            ))
            .seen("datagrams_per_call", together.unwrap_or(1), "datagrams", "plan")
            .seen("payload_bytes", plan.payload_bytes, "B", "plan")
            .seen("packets_per_second", packets, "1/s", "receiver")
            .seen("working time of the sending threads", sender.working, "share", schedstat(role))
            .remedy("hand the kernel many datagrams in one call (UDP_SEGMENT, UDP_GRO); where they must stay apart, sendmmsg")
            .command(case.again("--offload gso,gro"))
            .tried(plan.udp_offload.asked.then(|| "--offload none".to_owned()))
            .tried(plan.batch.map(|batch| format!("--batch {batch}")))
            .gain(Some((each / joined).min(MOST)), "time of a datagram now over 30 ns and 0.055 ns a byte with GSO and GRO")
            .found()
    }
}
