//! The send buffer is too small.

use linerate_record::finding::Finding;
use linerate_record::ids::CauseId;
use linerate_record::plan::TransportProtocol;
use linerate_record::record::FlowEnd;
use linerate_stats::units::{format_bytes, format_nanos, format_share};

use super::{
    HEADROOM_FORMULA, WAITING_GAIN_FORMULA, is_paced, schedstat_source, tcp_info_source,
    waiting_gain, within_headroom,
};
use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, duration, percent, size};
use crate::run_view::{DirectionView, RunView};

/// Smallest share of the time that matters.
const MIN_RELEVANT_SHARE: f64 = 0.15;

/// Largest buffer that counts as small if no size was requested.
const SMALL_BUFFER_BYTES: u64 = 256 << 10;

/// Largest buffer whose cost is idle time, and idle time from which it is.
const TINY_BUFFER_BYTES: u64 = 64 << 10;
const MIN_TINY_IDLE_SHARE: f64 = 0.3;

/// Part of the kernel's limit from which a buffer that it sizes can no longer grow: the buffer is
/// doubled for overhead, so half of the limit is the end.
const GROWN_PART: u64 = 2;

/// Growth of a buffer to try, and its smallest size, in bytes.
const BUFFER_GROWTH: u64 = 4;
const MIN_LARGER_BYTES: u64 = 4 << 20;

/// Largest requested buffer that may matter.
const MAX_REQUESTED_BYTES: u64 = 2 << 20;

/// Largest send buffer of our stack that is the limit if it is sent within a short time and the
/// receiver has idle time; our stack reports no round-trip time. With 64 KiB, where more gave no
/// gain, a kernel received 3.3 Gb/s; 1 KiB gave 0.26 of that and 8 KiB 0.6, each within 10 to 30
/// us.
const NETSTACK_SMALL_BYTES: u64 = 8 << 10;

/// Longest transfer time of such a buffer: a longer one may have waited for a slow path, unless it
/// equals the path's round-trip time.
const NETSTACK_MAX_ROUND_NS: f64 = 200e3;

/// Transfer time of a full buffer over the path's minimum round-trip time if each waits for one
/// round trip: 0.99 was measured over 6 ms.
const ROUND_TRIP_RATIO: std::ops::RangeInclusive<f64> = 0.75..=1.5;

/// Largest retransmit share of our stack that is noise.
const MAX_NETSTACK_RETRANSMIT_SHARE: f64 = 0.002;

/// See docs/CAUSES.md#send-buffer.
pub struct SendBuffer;

impl Rule for SendBuffer {
    fn id(&self) -> CauseId {
        CauseId::SendBuffer
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "The send buffer holds less than must be in flight.",
            shown_when: vec![
                detection(
                    "TCP, a kernel sends",
                    [
                        format!(
                            "the buffer is {} at most; {} if a size was requested",
                            size(SMALL_BUFFER_BYTES),
                            size(MAX_REQUESTED_BYTES)
                        ),
                        format!(
                            "the sender waits for {} of the time or more",
                            percent(MIN_RELEVANT_SHARE)
                        ),
                        "waiting is idle time of the threads without data in flight \
                         (`tcpi_busy_time`), or `tcpi_sndbuf_limited` if that is larger"
                            .into(),
                        format!(
                            "below {} and with {} of idle time, waiting is idle time less \
                             `tcpi_rwnd_limited`",
                            size(TINY_BUFFER_BYTES),
                            percent(MIN_TINY_IDLE_SHARE)
                        ),
                        format!(
                            "a buffer that the kernel sizes has reached {} of its limit",
                            percent(1.0 / GROWN_PART as f64)
                        ),
                    ],
                ),
                detection(
                    "TCP, the user-space stack sends",
                    [
                        format!(
                            "a buffer of {} at most is sent within {}. Or one of {} at most takes \
                             {} to {} of a longer round trip",
                            size(NETSTACK_SMALL_BYTES),
                            duration(NETSTACK_MAX_ROUND_NS),
                            size(MAX_REQUESTED_BYTES),
                            percent(*ROUND_TRIP_RATIO.start()),
                            percent(*ROUND_TRIP_RATIO.end())
                        ),
                        "the round trip is the minimum that the receiving kernel reports".into(),
                        format!(
                            "the receiver has idle time of {} or more",
                            percent(MIN_RELEVANT_SHARE)
                        ),
                        format!(
                            "{} of the segments or less were retransmitted",
                            percent(MAX_NETSTACK_RETRANSMIT_SHARE)
                        ),
                    ],
                ),
            ],
            not_when: vec![
                "a rate was requested".into(),
                "the path is full".into(),
                format!(
                    "no size was requested, and the kernel may already grant {BUFFER_GROWTH} times \
                     the buffer and {}",
                    size(MIN_LARGER_BYTES)
                ),
            ],
            evidence: &[
                ("SO_SNDBUF", "B"),
                ("idle time of the sending threads", "share"),
                ("tcpi_busy_time", "share"),
                ("tcpi_sndbuf_limited", "share"),
                ("tcpi_rwnd_limited", "share"),
                ("tcp.send_buffer", "B"),
                ("time per transfer", "ns"),
                ("tcpi_min_rtt", "ns"),
                ("idle time of the receiving threads", "share"),
                ("retransmitted_segments", "segments"),
            ],
            cost: vec![
                "Share of the time in which the sender waits.".into(),
                "If the user-space stack sends, the idle time of the receiver.".into(),
            ],
            notes: vec![
                "`tcpi_sndbuf_limited` alone shows little: the kernel misses most of that time \
                 ([method](method/tcp-state.md#times-of-limits-busy_ns-receive_window_limited_ns-send_buffer_limited_ns))."
                    .into(),
                "A buffer that the kernel sizes grows with the congestion window, up to its limit."
                    .into(),
            ],
            remedy: vec![
                "Request a larger send buffer (`-w`, `--sndbuf`), or none: then the kernel sizes \
                 it."
                    .into(),
                "Raise the last number of `net.ipv4.tcp_wmem` if it is small.".into(),
                "Raise `tcp.send_buffer` of the user-space stack, or `TCP_SND_BUF` of an embedded stack."
                    .into(),
            ],
            wrong_when: vec![
                "the program waits for something else within its send call".into(),
            ],
            ..CauseReference::cause()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        if is_paced(run) {
            return Vec::new();
        }
        let directions = run.throughput_directions(TransportProtocol::Tcp);
        directions
            .filter_map(|direction| {
                self.evaluate_direction(run, direction)
                    .or_else(|| self.evaluate_netstack(run, direction))
            })
            .collect()
    }
}

impl SendBuffer {
    /// Our stack sends, and polls for free buffer space.
    fn evaluate_netstack(
        &self,
        run: &RunView<'_>,
        direction: &DirectionView<'_>,
    ) -> Option<Finding> {
        let (sent, retransmitted) = direction.netstack_segments()?;
        let granted = direction
            .send_buffer()
            .filter(|&granted| granted <= MAX_REQUESTED_BYTES)?;
        let lossy = retransmitted as f64 > MAX_NETSTACK_RETRANSMIT_SHARE * sent as f64;
        let free = direction.thread_time(FlowEnd::Receiver)?.free_share();
        let flows = direction.streams().len().max(1) as f64;
        let round_ns =
            granted as f64 * 8e9 * flows / direction.goodput().filter(|&goodput| goodput > 0.0)?;
        // The receiving kernel measured the path in the handshake.
        let path_rtt_ns = direction
            .receivers()
            .filter_map(|socket| socket.tcp.as_ref()?.min_rtt_ns)
            .min();
        let path_ns = path_rtt_ns.filter(|&path_ns| path_ns as f64 > NETSTACK_MAX_ROUND_NS);
        let each_round =
            path_ns.is_some_and(|path_ns| ROUND_TRIP_RATIO.contains(&(round_ns / path_ns as f64)));
        let quick = granted <= NETSTACK_SMALL_BYTES && round_ns <= NETSTACK_MAX_ROUND_NS;
        if free < MIN_RELEVANT_SHARE || !(quick || each_round) || lossy || direction.fills_path() {
            return None;
        }
        let role = direction.sender;
        let larger = (granted * 8).max(64 << 10);
        FindingBuilder::cause(self.id(), role)
            .direction(direction.direction)
            .cost(free)
            .summary(format!(
                "the {}'s stack sends at most {} before an acknowledgement, once per {}; the \
                 receiver was idle for {} of the run",
                role.as_str(),
                format_bytes(granted),
                format_nanos(round_ns),
                format_share(free)
            ))
            .evidence(
                "tcp.send_buffer",
                granted,
                "B",
                format!("{} stack", role.as_str()),
            )
            .evidence(
                "time per transfer",
                round_ns.round(),
                "ns",
                "send buffer / goodput",
            )
            .evidence_if(
                "tcpi_min_rtt",
                path_ns.filter(|_| each_round),
                "ns",
                tcp_info_source(direction.receiver),
            )
            .evidence(
                "idle time of the receiving threads",
                free,
                "share",
                schedstat_source(direction.receiver),
            )
            .evidence(
                "retransmitted_segments",
                retransmitted,
                "segments",
                format!("{} stack", role.as_str()),
            )
            .remedy(format!(
                "raise the send buffer of the user-space stack above {}",
                format_bytes(granted)
            ))
            .command(run.rerun_with_key(role, "tcp.send_buffer", &format!("{}K", larger >> 10)))
            .estimated_gain(
                within_headroom(direction, waiting_gain(direction, free, granted, larger)),
                format!("{WAITING_GAIN_FORMULA}, at most {HEADROOM_FORMULA}"),
            )
            .build()
    }

    fn evaluate_direction(
        &self,
        run: &RunView<'_>,
        direction: &DirectionView<'_>,
    ) -> Option<Finding> {
        let granted = direction.send_buffer()?;
        let requested = run.plan.socket.send_buffer_bytes.or(run.plan.window_bytes);
        if granted
            > if requested.is_some() {
                MAX_REQUESTED_BYTES
            } else {
                SMALL_BUFFER_BYTES
            }
            || direction.fills_path()
        {
            return None;
        }
        let tcp = direction.tcp()?;
        let time = direction.thread_time(FlowEnd::Sender)?;
        // The kernel misses most of it: a sender that sleeps for buffer space has no data to send
        // meanwhile and is not counted as busy (docs/method/tcp-state.md).
        let idle = tcp.busy_share.map_or(0.0, |busy| 1.0 - busy);
        let starved = time.free_share().min(idle).max(tcp.send_buffer_limited);
        // An equally small window is reported separately: the rest is due to the buffer.
        let limited = match granted < TINY_BUFFER_BYTES && time.free_share() > MIN_TINY_IDLE_SHARE {
            true => starved.max(time.free_share() - tcp.receive_window_limited),
            false => starved,
        };
        if limited < MIN_RELEVANT_SHARE {
            return None;
        }
        let role = direction.sender;
        let end = role.as_str();
        let larger = (granted * BUFFER_GROWTH).max(MIN_LARGER_BYTES);
        // The kernel enlarges the buffer to the congestion window, up to its limit: below the limit
        // a small buffer means that no more was needed.
        let most = run.sysctl(role, "net.ipv4.tcp_wmem");
        let raised = run.raise_command(role, "net.ipv4.tcp_wmem", larger);
        let sized = most.is_some_and(|most| granted < most / GROWN_PART) || raised.is_none();
        if requested.is_none() && !direction.uses_netstack(role) && sized {
            return None;
        }
        let (remedy, command) = match (direction.uses_netstack(role), requested) {
            (true, _) => (
                format!(
                    "raise the send buffer of the user-space stack above {}",
                    format_bytes(granted)
                ),
                run.rerun_with_key(role, "tcp.send_buffer", &format!("{}K", larger >> 10)),
            ),
            (false, Some(requested)) => (
                format!(
                    "request a send buffer larger than {} at the {end}, or let its kernel choose \
                     the size",
                    format_bytes(requested)
                ),
                super::larger_buffer_command(
                    run,
                    "sndbuf",
                    run.plan.socket.send_buffer_bytes,
                    larger,
                ),
            ),
            (false, None) => (
                format!("raise the send buffer limit of the {end}'s kernel"),
                raised.unwrap_or_default(),
            ),
        };
        FindingBuilder::cause(self.id(), role)
            .direction(direction.direction)
            .cost(limited)
            .summary(format!(
                "the {end}'s sending threads waited for space in a send buffer of {} for {} of \
                 the time",
                format_bytes(granted),
                format_share(time.free_share())
            ))
            .evidence("SO_SNDBUF", granted, "B", format!("{end} socket"))
            .evidence(
                "idle time of the sending threads",
                time.free_share(),
                "share",
                schedstat_source(role),
            )
            .evidence_if(
                "tcpi_busy_time",
                tcp.busy_share,
                "share",
                tcp_info_source(role),
            )
            .evidence(
                "tcpi_sndbuf_limited",
                tcp.send_buffer_limited,
                "share",
                tcp_info_source(role),
            )
            .evidence(
                "tcpi_rwnd_limited",
                tcp.receive_window_limited,
                "share",
                tcp_info_source(role),
            )
            .remedy(remedy)
            .command(command)
            .tried(
                requested.map(|requested| format!("a send buffer of {}", format_bytes(requested))),
            )
            .estimated_gain(
                within_headroom(direction, waiting_gain(direction, limited, granted, larger)),
                format!("{WAITING_GAIN_FORMULA}, at most {HEADROOM_FORMULA}"),
            )
            .build()
    }
}
