//! The sender waits for a delayed acknowledgement.

use linerate_metric::facts::Role;
use linerate_metric::finding::Finding;
use linerate_metric::plan::{Kind, Protocol};
use linerate_metric::record::CountedAt;
use linerate_metric::units::{format_bytes, format_nanos};

use super::{HEADROOM, tcp_info, within_headroom};
use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, Way, name};

/// Delay of acknowledgements, ns: Linux 40 ms (TCP_DELACK_MIN), others up to the 500 ms of RFC 1122
/// section 4.2.3.2, mostly 200 ms. Shorter than the timer if payload arrives in between.
const HELD_NS: std::ops::Range<f64> = 18e6..550e6;

/// Minimum delay of an acknowledgement by Linux's timer, ns.
const TIMER_NS: f64 = 40e6;

/// Share of the time spent in counted timers from which they are the cause, however many immediate
/// acknowledgements come in between.
const TAKES: f64 = 0.3;

/// Largest window with so few segments that the rule of acknowledging every second one may not
/// apply.
const SMALL: f64 = 65_536.0;

/// Share of the time waiting for a core from which that is the cause instead.
const IN_LINE: f64 = 0.3;

/// See docs/CAUSES.md#delayed-ack.
pub struct DelayedAck;

/// Returns the smallest buffer and its transfer time: `(bytes, ns, buffer name)`.
pub(super) fn stall(way: &Way<'_>, payload: u64) -> Option<(f64, f64, &'static str)> {
    let goodput = way.goodput().filter(|&goodput| goodput > 0.0)?;
    // Linux grants twice the requested size, for its own overhead; other stacks report what they
    // hold.
    let own = |role| match way.stack(role) == "kernel" {
        true => 2.0,
        false => 1.0,
    };
    let send = way
        .send_buffer()
        .map(|bytes| bytes as f64 / own(way.sender));
    let send = send.map(|bytes| (bytes, "send buffer"));
    let window = way
        .receive_buffer()
        .map(|bytes| bytes as f64 / own(way.receiver));
    let window = window.map(|bytes| (bytes, "receive window"));
    let smallest = [send, window, Some((payload as f64, "write"))]
        .into_iter()
        .flatten()
        .min_by(|a, b| a.0.total_cmp(&b.0))?;
    let flows = way.streams().len().max(1) as f64;
    Some((smallest.0, smallest.0 * 8e9 * flows / goodput, smallest.1))
}

/// Returns the minimum round-trip time that a kernel at either end reported; our stack reports
/// none.
pub(super) fn told_path_ns(case: &Case<'_>) -> Option<u64> {
    let sockets = |way: &Way<'_>| {
        way.senders()
            .chain(way.receivers())
            .filter_map(|socket| socket.tcp.as_ref()?.min_rtt_ns)
            .min()
    };
    case.ways.iter().filter_map(sockets).min()
}

/// Minimum round-trip time between neighbouring hosts, if it was not reported.
const LEAST_RTT_NS: f64 = 20e3;

/// Buffer size for several segments in flight.
const ENOUGH: u64 = 64 << 10;

/// Returns a sufficient size for a buffer: never smaller than now.
fn room(now: u64) -> u64 {
    match now < ENOUGH {
        true => ENOUGH,
        false => now.saturating_mul(4),
    }
}

/// Returns the remedy and the command that enlarge the smallest buffer.
pub(super) fn roomier(case: &Case<'_>, way: &Way<'_>, what: &str) -> (String, String) {
    let (end, key, option, now) = match what {
        "send buffer" => (way.sender, "tcp.send_buffer", "sndbuf", way.send_buffer()),
        "receive window" => (
            way.receiver,
            "tcp.receive_window",
            "rcvbuf",
            way.receive_buffer(),
        ),
        _ => {
            let words = format!(
                "writes larger than {}",
                format_bytes(case.plan.payload_bytes)
            );
            return (
                words,
                case.again(&format!("-l {}K", room(case.plan.payload_bytes) >> 10)),
            );
        }
    };
    let enough = room(now.unwrap_or(0));
    let words = format!(
        "a {what} of the {} of at least {}",
        name(end),
        format_bytes(enough)
    );
    let size = format!("{}K", enough >> 10);
    let command = match way.is_own_stack(end) {
        true => case.again_with_key(end, key, &size),
        // The option for one buffer overrides the size for both.
        false => case.again(&format!("--{option} {size}")),
    };
    (words, command)
}

impl Rule for DelayedAck {
    fn id(&self) -> &'static str {
        "delayed-ack"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        let ways = case.throughput(Protocol::Tcp);
        let mut found: Vec<_> = ways.filter_map(|way| self.of(case, way)).collect();
        found.extend(self.of_answers(case));
        found
    }
}

impl DelayedAck {
    fn of(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let (bytes, took, what) = stall(way, case.plan.payload_bytes)?;
        let tcp = way.tcp();
        let rtt = tcp.map_or(0.0, |tcp| tcp.min_rtt_ns);
        let timeouts = tcp.map_or(0, |tcp| tcp.timeouts);
        // Timeouts after losses take as long.
        let by_own = way.sent_by_own_stack();
        let lossy = tcp.is_some_and(|tcp| tcp.repeated() > 0.002)
            || by_own.is_some_and(|(sent, again)| again > 3 && again * 50 > sent)
            || super::congestion_loss::dropped_in_view(case) > 0;
        let delayed = case.added("delayed_acks", |host, _| host == name(way.receiver));
        // Some full buffers wait for the timer, and others are sent at once.
        let timers = delayed.unwrap_or(0) as f64 * TIMER_NS / (way.seconds() * 1e9).max(1.0);
        let some = timers >= TAKES && rtt < TIMER_NS / 4.0 && took > LEAST_RTT_NS;
        let each = HELD_NS.contains(&took) && rtt < took / 4.0;
        let held = bytes <= SMALL && (each || some);
        if !held || super::is_paced(case) || timeouts > 0 || lossy || way.fills_path() {
            return None;
        }
        // Requires as many delayed acknowledgements as stalls, if the receiver's kernel counts
        // them. Without the counter the path must be known to be shorter.
        let waits = way.goodput()? / 8.0 * way.seconds() / bytes.max(1.0);
        let proven = some || delayed.map_or(rtt > 0.0, |delayed| delayed as f64 >= waits / 2.0);
        // An end that waits for a core delays the other one as long.
        let in_line = [CountedAt::Sender, CountedAt::Receiver]
            .into_iter()
            .filter_map(|part| way.time(part))
            .any(|time| time.runnable > IN_LINE);
        if !proven || in_line {
            return None;
        }
        let (remedy, command) = roomier(case, way, what);
        // With a known round-trip time the gain includes the larger amount in flight.
        let wider = (ENOUGH as f64 / bytes.max(1.0)).max(1.0);
        let (gain, formula) = match rtt > 0.0 {
            true => (
                within_headroom(way, took / rtt * wider),
                format!(
                    "time per transfer over the round-trip time, times {} over {}; at most \
                     {HEADROOM}",
                    format_bytes(ENOUGH),
                    format_bytes(bytes as u64)
                ),
            ),
            // Our stack does not report its round-trip time.
            false if !each => (
                within_headroom(way, took / LEAST_RTT_NS * wider),
                format!(
                    "time per transfer over 20 us, the shortest round trip, times {} over {}; at \
                     most {HEADROOM}",
                    format_bytes(ENOUGH),
                    format_bytes(bytes as u64)
                ),
            ),
            false => (
                within_headroom(way, took / LEAST_RTT_NS),
                format!(
                    "time per transfer over 20 us, the shortest round trip; at most {HEADROOM}"
                ),
            ),
        };
        Draft::cause(self.id(), way.receiver)
            .way(way.direction)
            .cost(if each {
                1.0 - rtt / took
            } else {
                timers.min(0.99)
            })
            .says(match each {
                true => format!(
                    "each {what} of {} took {}: the {} delays its acknowledgement, and the sender \
                     has no buffer space left",
                    format_bytes(bytes as u64),
                    format_nanos(took),
                    name(way.receiver)
                ),
                false => format!(
                    "a {what} of {} took {} on average: the {} delayed {} acknowledgements for 40 \
                     ms or more, and the sender had no buffer space left",
                    format_bytes(bytes as u64),
                    format_nanos(took),
                    name(way.receiver),
                    delayed.unwrap_or(0)
                ),
            })
            .seen(
                "time per transfer",
                took.round(),
                "ns",
                format!("{what} / goodput"),
            )
            .seen("goodput_bps", way.goodput()?, "bit/s", "receiver")
            .seen_if(
                "tcpi_min_rtt",
                (rtt > 0.0).then_some(rtt),
                "ns",
                tcp_info(way.sender),
            )
            .seen(
                "transfers",
                waits.round(),
                "",
                "bytes received / bytes per transfer",
            )
            .seen_if(
                "DelayedACKs",
                delayed,
                "segments",
                format!("{} /proc/net/netstat", name(way.receiver)),
            )
            .remedy(format!(
                "permit two full segments in flight: {remedy}; or let the {} acknowledge at once \
                 (TCP_QUICKACK, `quickack 1` in its route)",
                name(way.receiver)
            ))
            .command(command)
            .gain(gain, formula)
            .found()
    }

    /// Responses take as long as the timer on a path that is far shorter.
    fn of_answers(&self, case: &Case<'_>) -> Option<Finding> {
        if case.plan.kind != Kind::Latency || case.plan.protocol != Protocol::Tcp {
            return None;
        }
        let rtt = case.record.summary.rtt_ns?;
        let p50 = rtt.p50 as f64;
        let least = rtt.min as f64;
        let path = told_path_ns(case).map_or(least, |told| told as f64);
        // A request that exceeds the send buffer of our stack is split, and each part waits for the
        // one before.
        let room = case.ways.iter().filter_map(Way::send_buffer).min();
        let parts =
            room.filter(|&room| case.is_own_stack(Role::Client) && room < case.plan.payload_bytes);
        let timer = match parts {
            // Several parts may wait for the timer, one after the other.
            Some(room) => {
                let parts = case.plan.payload_bytes.div_ceil(room.max(1));
                (38e6..TIMER_NS * parts as f64 + 50e6).contains(&p50)
            }
            None => (38e6..50e6).contains(&p50) || (190e6..230e6).contains(&p50),
        };
        if !timer || path > p50 / 4.0 {
            return None;
        }
        let draft = Draft::cause(self.id(), Role::Server)
            .cost(1.0 - path / p50)
            .says(format!(
                "the median response took {}, {} of delayed acknowledgements, on a path of {}",
                format_nanos(p50),
                if parts.is_some() && p50 >= 50e6 {
                    "several times the timeout"
                } else {
                    "the timeout"
                },
                format_nanos(path)
            ))
            .seen("rtt_ns.p50", rtt.p50, "ns", "client")
            .seen("tcpi_min_rtt", path, "ns", "TCP_INFO of either end");
        if let Some(room) = parts {
            let whole = case.plan.payload_bytes.next_power_of_two().max(ENOUGH);
            return draft
                .seen("tcp.send_buffer", room, "B", "client stack")
                .seen("payload_bytes", case.plan.payload_bytes, "B", "plan")
                .remedy(
                    "enlarge our stack's send buffer to a full request: each part waits until the \
                     one before is acknowledged",
                )
                .command(case.again_with_key(
                    Role::Client,
                    "tcp.send_buffer",
                    &format!("{}K", whole >> 10),
                ))
                .gain(
                    Some((p50 / path.max(1.0)).min(100.0)),
                    "p50 over the path's round-trip time",
                )
                .found();
        }
        let draft = draft.remedy(
            "the responding program writes in parts: let it write each response at once, or set \
             TCP_NODELAY on its socket; if it cannot be changed, set `quickack 1` in this host's \
             route to it",
        );
        // There is no command for changing another program's source.
        let draft = match case.is_own_stack(Role::Server) {
            true => draft.command(case.again_with_key(Role::Server, "tcp.nagle", "off")),
            false => draft,
        };
        draft
            .gain(
                Some((p50 / path.max(1.0)).min(100.0)),
                "p50 over the path's round-trip time",
            )
            .found()
    }
}
