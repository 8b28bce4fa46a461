//! The send buffer is too small.

use linerate_metric::finding::Finding;
use linerate_metric::plan::Protocol;
use linerate_metric::record::CountedAt;
use linerate_metric::units::{format_bytes, format_nanos, format_share};

use super::{HEADROOM, WAITING_GAIN, is_paced, schedstat, tcp_info, waiting_gain, within_headroom};
use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, Way, name};

/// Smallest share of the time that matters.
const MATTERS: f64 = 0.15;

/// Largest buffer that counts as small if no size was requested.
const SMALL: u64 = 256 << 10;

/// Largest requested buffer that may matter.
const ASKED: u64 = 2 << 20;

/// Largest send buffer of our stack that is the limit if it is sent within a short time and the
/// receiver has idle time; our stack reports no round-trip time. With 64 KiB, where more gave no
/// gain, a kernel received 3.3 Gb/s; 1 KiB gave 0.26 of that and 8 KiB 0.6, each within 10 to 30
/// us.
const OWN_SMALL: u64 = 8 << 10;

/// Longest transfer time of such a buffer: a longer one may have waited for a slow path, unless it
/// equals the path's round-trip time.
const OWN_ROUND_NS: f64 = 200e3;

/// Transfer time of a full buffer over the path's minimum round-trip time if each waits for one
/// round trip: 0.99 was measured over 6 ms.
const A_ROUND: std::ops::RangeInclusive<f64> = 0.75..=1.5;

/// Largest retransmit share of our stack that is noise.
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
        ways.filter_map(|way| self.of(case, way).or_else(|| self.of_own_stack(case, way)))
            .collect()
    }
}

impl SendBuffer {
    /// Our stack sends, and polls for free buffer space.
    fn of_own_stack(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let (sent, again) = way.sent_by_own_stack()?;
        let granted = way.send_buffer().filter(|&granted| granted <= ASKED)?;
        let lossy = again as f64 > OWN_AGAIN * sent as f64;
        let free = way.time(CountedAt::Receiver)?.free();
        let flows = way.streams().len().max(1) as f64;
        let round_ns =
            granted as f64 * 8e9 * flows / way.goodput().filter(|&goodput| goodput > 0.0)?;
        // The receiving kernel measured the path in the handshake.
        let told = way
            .receivers()
            .filter_map(|socket| socket.tcp.as_ref()?.min_rtt_ns)
            .min();
        let path_ns = told.filter(|&path_ns| path_ns as f64 > OWN_ROUND_NS);
        let each_round =
            path_ns.is_some_and(|path_ns| A_ROUND.contains(&(round_ns / path_ns as f64)));
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
                "the {}'s stack sends at most {} before an acknowledgement, once per {}; the \
                 receiver was idle for {} of the run",
                name(role),
                format_bytes(granted),
                format_nanos(round_ns),
                format_share(free)
            ))
            .seen(
                "tcp.send_buffer",
                granted,
                "B",
                format!("{} stack", name(role)),
            )
            .seen(
                "time per transfer",
                round_ns.round(),
                "ns",
                "send buffer / goodput",
            )
            .seen_if(
                "tcpi_min_rtt",
                path_ns.filter(|_| each_round),
                "ns",
                tcp_info(way.receiver),
            )
            .seen(
                "idle time of the receiving threads",
                free,
                "share",
                schedstat(way.receiver),
            )
            .seen(
                "retransmitted_segments",
                again,
                "segments",
                format!("{} stack", name(role)),
            )
            .remedy(format!(
                "raise the send buffer of our stack above {}",
                format_bytes(granted)
            ))
            .command(case.again_with_key(role, "tcp.send_buffer", &format!("{}K", larger >> 10)))
            .gain(
                within_headroom(way, waiting_gain(way, free, granted, larger)),
                format!("{WAITING_GAIN}, at most {HEADROOM}"),
            )
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
        // The kernel misses most of it: a sender that sleeps for buffer space has no data to send
        // meanwhile and is not counted as busy (docs/method/tcp-state.md).
        let idle = tcp.busy.map_or(0.0, |busy| 1.0 - busy);
        let starved = time.free().min(idle).max(tcp.send_buffer);
        // An equally small window is reported separately: the rest is due to the buffer.
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
        // The kernel enlarges the buffer to the congestion window, up to its limit: below the limit
        // a small buffer means that no more was needed.
        let most = case.sysctl(role, "net.ipv4.tcp_wmem");
        let raised = case.raise(role, "net.ipv4.tcp_wmem", larger);
        let sized = most.is_some_and(|most| granted < most / 2) || raised.is_none();
        if asked.is_none() && !way.is_own_stack(role) && sized {
            return None;
        }
        let (remedy, command) = match (way.is_own_stack(role), asked) {
            (true, _) => (
                format!(
                    "raise the send buffer of our stack above {}",
                    format_bytes(granted)
                ),
                case.again_with_key(role, "tcp.send_buffer", &format!("{}K", larger >> 10)),
            ),
            (false, Some(asked)) => (
                format!(
                    "request a send buffer larger than {} at the {end}, or let its kernel choose \
                     the size",
                    format_bytes(asked)
                ),
                super::larger_buffer(case, "sndbuf", case.plan.socket.send_buffer_bytes, larger),
            ),
            (false, None) => (
                format!("raise the send buffer limit of the {end}'s kernel"),
                raised.unwrap_or_default(),
            ),
        };
        Draft::cause(self.id(), role)
            .way(way.direction)
            .cost(held)
            .says(format!(
                "the {end}'s sending threads waited for space in a send buffer of {} for {} of \
                 the time",
                format_bytes(granted),
                format_share(time.free())
            ))
            .seen("SO_SNDBUF", granted, "B", format!("{end} socket"))
            .seen(
                "idle time of the sending threads",
                time.free(),
                "share",
                schedstat(role),
            )
            .seen_if("tcpi_busy_time", tcp.busy, "share", tcp_info(role))
            .seen(
                "tcpi_sndbuf_limited",
                tcp.send_buffer,
                "share",
                tcp_info(role),
            )
            .seen(
                "tcpi_rwnd_limited",
                tcp.receive_window,
                "share",
                tcp_info(role),
            )
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
