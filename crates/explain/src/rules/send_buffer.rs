//! The send buffer holds too little.

use linerate_metric::finding::Finding;
use linerate_metric::plan::Protocol;
use linerate_metric::record::CountedAt;
use linerate_metric::units::{format_bytes, format_nanos, format_share};

use super::{HEADROOM, WAITING_GAIN, is_paced, schedstat, tcp_info, waiting_gain, within_headroom};
use crate::Rule;
use crate::case::{Case, Way, name};
use crate::draft::Draft;

/// Share of the time from which it matters.
const MATTERS: f64 = 0.15;

/// A buffer up to this is small where nobody asked for it.
const SMALL: u64 = 256 << 10;

/// One that was asked for may matter up to this.
const ASKED: u64 = 2 << 20;

/// Our own stack tells no round-trip time. One of so few segments is the limit where it goes round quickly and the
/// receiver has time: of 64 KiB, which more did not raise, a kernel got 3.3 Gb/s, and 0.26 of that with 1 KiB, 0.6 with
/// 8 KiB, each in 10 to 30 us.
const OWN_SMALL: u64 = 8 << 10;

/// What takes longer may have waited for a slow path, unless that is how long the path is.
const OWN_ROUND_NS: f64 = 200e3;

/// Time of a bufferful over the path's least round trip where each of them waits for that: 0.99 over 6 ms.
const A_ROUND: std::ops::RangeInclusive<f64> = 0.75..=1.5;

/// Share of the segments of our own stack sent again that are an accident.
const OWN_AGAIN: f64 = 0.002;

/// See docs/CAUSES.md#send-buffer.
pub struct SendBuffer;

impl Rule for SendBuffer {
    fn id(&self) -> &'static str {
        "send-buffer"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        if is_paced(case) {
            return Vec::new();
        }
        let ways = case.throughput(Protocol::Tcp);
        ways.filter_map(|way| self.of(case, way).or_else(|| self.of_own_stack(case, way))).collect()
    }
}

impl SendBuffer {
    /// Our own stack sends, and looks again and again whether there is room.
    fn of_own_stack(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let (sent, again) = way.sent_by_own_stack()?;
        let granted = way.send_buffer().filter(|&granted| granted <= ASKED)?;
        let lossy = again as f64 > OWN_AGAIN * sent as f64;
        let free = way.time(CountedAt::Receiver)?.free();
        let flows = way.streams().len().max(1) as f64;
        let round_ns = granted as f64 * 8e9 * flows / way.goodput().filter(|&goodput| goodput > 0.0)?;
        // The receiving kernel knows the path by the handshake.
        let told = way.receivers().filter_map(|socket| socket.tcp.as_ref()?.min_rtt_ns).min();
        let path_ns = told.filter(|&path_ns| path_ns as f64 > OWN_ROUND_NS);
        let each_round = path_ns.is_some_and(|path_ns| A_ROUND.contains(&(round_ns / path_ns as f64)));
        let quick = granted <= OWN_SMALL && round_ns <= OWN_ROUND_NS;
        if free < MATTERS || !(quick || each_round) || lossy || way.fills_path() {
            return None;
        }
        let role = way.sender;
        let larger = (granted * 8).max(64 << 10);
        Draft::cause(self.id(), role)
            .way(way.direction)
            .cost(free)
            .says(format!(
                "all that the {}'s stack sends until it is acknowledged is {}, once in {}; the receiver had time for more during {} of the run",
                name(role),
                format_bytes(granted),
                format_nanos(round_ns),
                format_share(free)
            ))
            .seen("tcp.send_buffer", granted, "B", format!("{} stack", name(role)))
            .seen("time for each", round_ns.round(), "ns", "send buffer / goodput")
            .seen_if("tcpi_min_rtt", path_ns.filter(|_| each_round), "ns", tcp_info(way.receiver))
            .seen("free time of the receiving threads", free, "share", schedstat(way.receiver))
            .seen("retransmitted_segments", again, "segments", format!("{} stack", name(role)))
            .remedy(format!("let our stack hold more than {} until it is acknowledged", format_bytes(granted)))
            .command(case.again_with_key(role, "tcp.send_buffer", &format!("{}K", larger >> 10)))
            .gain(within_headroom(way, waiting_gain(way, free, granted, larger)), format!("{WAITING_GAIN}, at most {HEADROOM}"))
            .found()
    }

    fn of(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let granted = way.send_buffer()?;
        let asked = case
            .plan
            .socket
            .send_buffer_bytes
            .or(case.plan.window_bytes);
        if granted > if asked.is_some() { ASKED } else { SMALL } || way.fills_path() {
            return None;
        }
        let tcp = way.tcp()?;
        let time = way.time(CountedAt::Sender)?;
        // The kernel misses most of it: a sender that sleeps for room has nothing to send meanwhile, and
        // is told as not busy (docs/METHOD.md, What TCP_INFO tells).
        let idle = tcp.busy.map_or(0.0, |busy| 1.0 - busy);
        let starved = time.free().min(idle).max(tcp.send_buffer);
        // A window that is as small shows as its own: what the buffer adds is the rest.
        let held = match granted < 64 << 10 && time.free() > 0.3 {
            true => starved.max(time.free() - tcp.receive_window),
            false => starved,
        };
        if held < MATTERS {
            return None;
        }
        let role = way.sender;
        let end = name(role);
        let larger = (granted * 4).max(4 << 20);
        // The kernel makes room for what the congestion window lets go, up to its limit: as long as that is not
        // reached, the buffer is small because no more is needed.
        let most = case.sysctl(role, "net.ipv4.tcp_wmem");
        let raised = case.raise(role, "net.ipv4.tcp_wmem", larger);
        let sized = most.is_some_and(|most| granted < most / 2) || raised.is_none();
        if asked.is_none() && !way.is_own_stack(role) && sized {
            return None;
        }
        let (remedy, command) = match (way.is_own_stack(role), asked) {
            (true, _) => (
                format!("let our stack hold more than {} until it is acknowledged", format_bytes(granted)),
                case.again_with_key(role, "tcp.send_buffer", &format!("{}K", larger >> 10)),
            ),
            (false, Some(asked)) => (
                format!(
                    "give the {end}'s socket a larger send buffer than {}, or let its kernel size it",
                    format_bytes(asked)
                ),
                super::larger_buffer(case, "sndbuf", case.plan.socket.send_buffer_bytes, larger),
            ),
            (false, None) => (
                format!("raise the largest send buffer of the {end}'s kernel"),
                raised.unwrap_or_default(),
            ),
        };
        Draft::cause(self.id(), role)
            .way(way.direction)
            .cost(held)
            .says(format!(
                "the {end}'s sending threads slept for room in a send buffer of {} for {} of the time",
                format_bytes(granted),
                format_share(time.free())
            ))
            .seen("SO_SNDBUF", granted, "B", format!("{end} socket"))
            .seen("free time of the sending threads", time.free(), "share", schedstat(role))
            .seen_if("tcpi_busy_time", tcp.busy, "share", tcp_info(role))
            .seen("tcpi_sndbuf_limited", tcp.send_buffer, "share", tcp_info(role))
            .seen("tcpi_rwnd_limited", tcp.receive_window, "share", tcp_info(role))
            .remedy(remedy)
            .command(command)
            .tried(asked.map(|asked| format!("a send buffer of {}", format_bytes(asked))))
            .gain(
                within_headroom(way, waiting_gain(way, held, granted, larger)),
                format!("{WAITING_GAIN}, at most {HEADROOM}"),
            )
            .found()
    }
}
