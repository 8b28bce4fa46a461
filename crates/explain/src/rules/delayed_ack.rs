//! The sender waits for an acknowledgement that the receiver holds back.

use linerate_metric::facts::Role;
use linerate_metric::finding::Finding;
use linerate_metric::plan::{Kind, Protocol};
use linerate_metric::record::CountedAt;
use linerate_metric::units::{format_bytes, format_nanos};

use super::{HEADROOM, tcp_info, within_headroom};
use crate::Rule;
use crate::case::{Case, Way, name};
use crate::draft::Draft;

/// How long receivers hold an acknowledgement back: Linux 40 ms (TCP_DELACK_MIN), others up to the 500 ms of RFC 1122
/// section 4.2.3.2, most of them 200 ms. Less than the timer where payload comes in between.
const HELD_NS: std::ops::Range<f64> = 18e6..550e6;

/// What Linux waits at least before it acknowledges by its timer.
const TIMER_NS: f64 = 40e6;

/// Share of the time that a receiver's counted timers take from which they are what takes it, however many
/// acknowledgements come at once between them.
const TAKES: f64 = 0.3;

/// Windows above this hold many segments, and every second one is acknowledged at once.
const SMALL: f64 = 65_536.0;

/// Share of the time that an end waits for a processor from which that is what takes so long.
const IN_LINE: f64 = 0.3;

/// See docs/CAUSES.md#delayed-ack.
pub struct DelayedAck;

/// How long a small window, or what one call sends, takes: `(bytes, ns, what it is)`.
pub(super) fn stall(way: &Way<'_>, payload: u64) -> Option<(f64, f64, &'static str)> {
    let goodput = way.goodput().filter(|&goodput| goodput > 0.0)?;
    // Linux grants twice what is asked for, for its own overhead; other stacks say what they hold.
    let own = |role| match way.stack(role) == "kernel" {
        true => 2.0,
        false => 1.0,
    };
    let send = way.send_buffer().map(|bytes| bytes as f64 / own(way.sender));
    let send = send.map(|bytes| (bytes, "send buffer"));
    let window = way.receive_buffer().map(|bytes| bytes as f64 / own(way.receiver));
    let window = window.map(|bytes| (bytes, "receive window"));
    let smallest = [send, window, Some((payload as f64, "write"))]
        .into_iter()
        .flatten()
        .min_by(|a, b| a.0.total_cmp(&b.0))?;
    let flows = way.streams().len().max(1) as f64;
    Some((smallest.0, smallest.0 * 8e9 * flows / goodput, smallest.1))
}

/// The least round trip that a kernel at either end told of the path: our own stack tells none.
pub(super) fn told_path_ns(case: &Case<'_>) -> Option<u64> {
    let sockets = |way: &Way<'_>| way.senders().chain(way.receivers()).filter_map(|socket| socket.tcp.as_ref()?.min_rtt_ns).min();
    case.ways.iter().filter_map(sockets).min()
}

/// Round trips between hosts that are beside each other, where nobody told.
const LEAST_RTT_NS: f64 = 20e3;

/// Room for several segments on their way.
const ENOUGH: u64 = 64 << 10;

/// What is enough where there is so much now: never less.
fn room(now: u64) -> u64 {
    match now < ENOUGH {
        true => ENOUGH,
        false => now.saturating_mul(4),
    }
}

/// What holds too little, and how it gets more: in words, and as the command.
pub(super) fn roomier(case: &Case<'_>, way: &Way<'_>, what: &str) -> (String, String) {
    let (end, key, option, now) = match what {
        "send buffer" => (way.sender, "tcp.send_buffer", "sndbuf", way.send_buffer()),
        "receive window" => (way.receiver, "tcp.receive_window", "rcvbuf", way.receive_buffer()),
        _ => {
            let words = format!("larger writes than {}", format_bytes(case.plan.payload_bytes));
            return (words, case.again(&format!("-l {}K", room(case.plan.payload_bytes) >> 10)));
        }
    };
    let enough = room(now.unwrap_or(0));
    let words = format!("a {what} of the {} of {} or more", name(end), format_bytes(enough));
    let size = format!("{}K", enough >> 10);
    let command = match way.is_own_stack(end) {
        true => case.again_with_key(end, key, &size),
        // A size asked for both goes behind one that is asked for here.
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
        // Time-outs of what was lost take as long.
        let by_own = way.sent_by_own_stack();
        let lossy = tcp.is_some_and(|tcp| tcp.repeated() > 0.002)
            || by_own.is_some_and(|(sent, again)| again > 3 && again * 50 > sent)
            || super::congestion_loss::dropped_in_view(case) > 0;
        let delayed = case.added("delayed_acks", |host, _| host == name(way.receiver));
        // Some bufferfuls wait for the timer, and others go on at once.
        let timers = delayed.unwrap_or(0) as f64 * TIMER_NS / (way.seconds() * 1e9).max(1.0);
        let some = timers >= TAKES && rtt < TIMER_NS / 4.0 && took > LEAST_RTT_NS;
        let each = HELD_NS.contains(&took) && rtt < took / 4.0;
        let held = bytes <= SMALL && (each || some);
        if !held || super::is_paced(case) || timeouts > 0 || lossy || way.fills_path() {
            return None;
        }
        // Acknowledgements that were held back: as many as there were such waits, where the receiver's kernel counts
        // them. Without that a path that is known to be shorter has to do.
        let waits = way.goodput()? / 8.0 * way.seconds() / bytes.max(1.0);
        let proven = some || delayed.map_or(rtt > 0.0, |delayed| delayed as f64 >= waits / 2.0);
        // An end that waits for its processor lets the other one wait as long.
        let in_line = [CountedAt::Sender, CountedAt::Receiver]
            .into_iter()
            .filter_map(|part| way.time(part))
            .any(|time| time.runnable > IN_LINE);
        if !proven || in_line {
            return None;
        }
        let (remedy, command) = roomier(case, way, what);
        // So much more would be on its way in a round trip, where its time is known.
        let wider = (ENOUGH as f64 / bytes.max(1.0)).max(1.0);
        let (gain, formula) = match rtt > 0.0 {
            true => (
                within_headroom(way, took / rtt * wider),
                format!("time for each over the round-trip time, and room for {} in place of {}; at most {HEADROOM}", format_bytes(ENOUGH), format_bytes(bytes as u64)),
            ),
            // Our own stack does not tell its round-trip time.
            false if !each => (
                within_headroom(way, took / LEAST_RTT_NS * wider),
                format!("time for each over 20 us, what round trips take at least, and room for {} in place of {}; at most {HEADROOM}", format_bytes(ENOUGH), format_bytes(bytes as u64)),
            ),
            false => (
                within_headroom(way, took / LEAST_RTT_NS),
                format!("time for each over 20 us, what round trips take at least; at most {HEADROOM}"),
            ),
        };
        Draft::cause(self.id(), way.receiver)
            .way(way.direction)
            .cost(if each { 1.0 - rtt / took } else { timers.min(0.99) })
            .says(match each {
                true => format!(
                    "each {what} of {} took {}: the {} holds its acknowledgement back, and the sender has no room to go on",
                    format_bytes(bytes as u64),
                    format_nanos(took),
                    name(way.receiver)
                ),
                false => format!(
                    "a {what} of {} took {} on average: the {} held {} acknowledgements back for 40 ms or more, and the sender had no room to go on",
                    format_bytes(bytes as u64),
                    format_nanos(took),
                    name(way.receiver),
                    delayed.unwrap_or(0)
                ),
            })
            .seen("time for each", took.round(), "ns", format!("{what} / goodput"))
            .seen("goodput_bps", way.goodput()?, "bit/s", "receiver")
            .seen_if("tcpi_min_rtt", (rtt > 0.0).then_some(rtt), "ns", tcp_info(way.sender))
            .seen("such waits", waits.round(), "", "bytes received / what is sent in each")
            .seen_if("DelayedACKs", delayed, "segments", format!("{} /proc/net/netstat", name(way.receiver)))
            .remedy(format!("let two full segments be on their way: {remedy}; or let the {} acknowledge at once (TCP_QUICKACK, `quickack 1` of its route)", name(way.receiver)))
            .command(command)
            .gain(gain, formula)
            .found()
    }

    /// Answers that take as long as the timer on a path that is far shorter.
    fn of_answers(&self, case: &Case<'_>) -> Option<Finding> {
        if case.plan.kind != Kind::Latency || case.plan.protocol != Protocol::Tcp {
            return None;
        }
        let rtt = case.record.summary.rtt_ns?;
        let p50 = rtt.p50 as f64;
        let least = rtt.min as f64;
        let path = told_path_ns(case).map_or(least, |told| told as f64);
        // A question that our own stack cannot hold goes in parts, and each waits for the one before.
        let room = case.ways.iter().filter_map(Way::send_buffer).min();
        let parts = room.filter(|&room| case.is_own_stack(Role::Client) && room < case.plan.payload_bytes);
        let timer = match parts {
            // Some of them wait for the timer, one after the other.
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
                "half of the answers took {}, {} that acknowledgements are held back, on a path of {}",
                format_nanos(p50),
                if parts.is_some() && p50 >= 50e6 { "several times of the time" } else { "the time" },
                format_nanos(path)
            ))
            .seen("rtt_ns.p50", rtt.p50, "ns", "client")
            .seen("tcpi_min_rtt", path, "ns", "TCP_INFO of either end");
        if let Some(room) = parts {
            let whole = case.plan.payload_bytes.next_power_of_two().max(ENOUGH);
            return draft
                .seen("tcp.send_buffer", room, "B", "client stack")
                .seen("payload_bytes", case.plan.payload_bytes, "B", "plan")
                .remedy("let our stack hold a whole question: each part that it has room for waits until the one before is acknowledged")
                .command(case.again_with_key(Role::Client, "tcp.send_buffer", &format!("{}K", whole >> 10)))
                .gain(Some((p50 / path.max(1.0)).min(100.0)), "p50 over the path's round-trip time")
                .found();
        }
        let draft = draft
            .remedy("the answering program writes in parts: let it write each answer at once, or set TCP_NODELAY on its socket; where it cannot be changed, `quickack 1` on this host's route to it acknowledges each part at once");
        // Another program's source is nothing that can be typed.
        let draft = match case.is_own_stack(Role::Server) {
            true => draft.command(case.again_with_key(Role::Server, "tcp.nagle", "off")),
            false => draft,
        };
        draft
            .gain(Some((p50 / path.max(1.0)).min(100.0)), "p50 over the path's round-trip time")
            .found()
    }
}
