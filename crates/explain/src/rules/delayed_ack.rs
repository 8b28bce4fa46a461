//! The sender waits for a delayed acknowledgement.

use linerate_record::facts::Role;
use linerate_record::finding::Finding;
use linerate_record::ids::CauseId;
use linerate_record::plan::{RunKind, TransportProtocol};
use linerate_record::record::FlowEnd;
use linerate_stats::units::{format_bytes, format_nanos};

use super::{HEADROOM_FORMULA, tcp_info_source, within_headroom};
use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, duration, percent, size};
use crate::run_view::{DirectionView, RunView};

/// Delay of acknowledgements, ns: Linux 40 ms (TCP_DELACK_MIN), others up to the 500 ms of RFC 1122
/// section 4.2.3.2, mostly 200 ms. Shorter than the timer if payload arrives in between.
const DELAYED_ACK_NS: std::ops::Range<f64> = 18e6..550e6;

/// Minimum delay of an acknowledgement by Linux's timer, ns.
const LINUX_DELAYED_ACK_NS: f64 = 40e6;

/// Share of the time spent in counted timers from which they are the cause, however many immediate
/// acknowledgements come in between.
const MIN_TIMER_SHARE: f64 = 0.3;

/// Part of a wait that the path's round-trip time may be: a longer path explains it.
const MAX_PATH_PART: f64 = 4.0;

/// Part of the transfers that the receiver's kernel must have counted as delayed: one in two.
const COUNTED_PART: f64 = 2.0;

/// Largest retransmit share without losses; for our stack, which also retransmits after late
/// acknowledgements, a number and a part.
const MAX_RETRANSMIT_SHARE: f64 = 0.002;
const MAX_NETSTACK_RETRANSMITS: u64 = 3;
const NETSTACK_RETRANSMIT_PART: u64 = 50;

/// Median round trips that are a timer, ns: 40 ms of Linux, 200 ms of other stacks, with the time
/// around them.
const LINUX_RESPONSE_NS: std::ops::Range<f64> = 38e6..50e6;
const OTHER_RESPONSE_NS: std::ops::Range<f64> = 190e6..230e6;

/// Largest gain of responses without a delay: a shorter path was never measured.
const MAX_RESPONSE_GAIN: f64 = 100.0;

/// Largest window with so few segments that the rule of acknowledging every second one may not
/// apply.
const SMALL_WINDOW_BYTES: u64 = 64 << 10;

/// Share of the time waiting for a core from which that is the cause instead.
const MAX_CORE_WAIT_SHARE: f64 = 0.3;

/// See docs/CAUSES.md#delayed-ack.
pub struct DelayedAck;

/// Returns the smallest buffer and its transfer time: `(bytes, ns, buffer name)`.
pub(super) fn smallest_buffer_stall(
    direction: &DirectionView<'_>,
    payload: u64,
) -> Option<(f64, f64, &'static str)> {
    let goodput = direction.goodput().filter(|&goodput| goodput > 0.0)?;
    // Linux grants twice the requested size, for its own overhead; other stacks report what they
    // hold.
    let overhead_factor = |role| match direction.stack_name(role) == "kernel" {
        true => 2.0,
        false => 1.0,
    };
    let send = direction
        .send_buffer()
        .map(|bytes| bytes as f64 / overhead_factor(direction.sender));
    let send = send.map(|bytes| (bytes, "send buffer"));
    let window = direction
        .receive_buffer()
        .map(|bytes| bytes as f64 / overhead_factor(direction.receiver));
    let window = window.map(|bytes| (bytes, "receive window"));
    let smallest = [send, window, Some((payload as f64, "write"))]
        .into_iter()
        .flatten()
        .min_by(|a, b| a.0.total_cmp(&b.0))?;
    let flows = direction.streams().len().max(1) as f64;
    Some((smallest.0, smallest.0 * 8e9 * flows / goodput, smallest.1))
}

/// Returns the minimum round-trip time that a kernel at either end reported; our stack reports
/// none.
pub(super) fn reported_path_rtt_ns(run: &RunView<'_>) -> Option<u64> {
    let min_rtt_ns = |direction: &DirectionView<'_>| {
        direction
            .senders()
            .chain(direction.receivers())
            .filter_map(|socket| socket.tcp.as_ref()?.min_rtt_ns)
            .min()
    };
    run.directions.iter().filter_map(min_rtt_ns).min()
}

/// Minimum round-trip time between neighbouring hosts, if it was not reported.
const MIN_RTT_NS: f64 = 20e3;

/// Buffer size for several segments in flight.
const SUFFICIENT_BYTES: u64 = 64 << 10;

/// Returns a sufficient size for a buffer: never smaller than now.
fn sufficient_bytes(now: u64) -> u64 {
    match now < SUFFICIENT_BYTES {
        true => SUFFICIENT_BYTES,
        false => now.saturating_mul(4),
    }
}

/// Returns the remedy and the command that enlarge the smallest buffer.
pub(super) fn larger_buffer_remedy(
    run: &RunView<'_>,
    direction: &DirectionView<'_>,
    buffer_name: &str,
) -> (String, String) {
    let (end, key, option, now) = match buffer_name {
        "send buffer" => (
            direction.sender,
            "tcp.send_buffer",
            "sndbuf",
            direction.send_buffer(),
        ),
        "receive window" => (
            direction.receiver,
            "tcp.receive_window",
            "rcvbuf",
            direction.receive_buffer(),
        ),
        _ => {
            let remedy = format!(
                "writes larger than {}",
                format_bytes(run.plan.payload_bytes)
            );
            return (
                remedy,
                run.rerun_command(&format!(
                    "-l {}K",
                    sufficient_bytes(run.plan.payload_bytes) >> 10
                )),
            );
        }
    };
    let enough = sufficient_bytes(now.unwrap_or(0));
    let remedy = format!(
        "a {buffer_name} of the {} of at least {}",
        end.as_str(),
        format_bytes(enough)
    );
    let size = format!("{}K", enough >> 10);
    let command = match direction.uses_netstack(end) {
        true => run.rerun_with_key(end, key, &size),
        // The option for one buffer overrides the size for both.
        false => run.rerun_command(&format!("--{option} {size}")),
    };
    (remedy, command)
}

impl Rule for DelayedAck {
    fn id(&self) -> CauseId {
        CauseId::DelayedAck
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "The sender has no space left, and the receiver delays the acknowledgement \
                      that frees some.",
            shown_when: vec![
                detection(
                    "TCP streams",
                    [
                        format!(
                            "the smallest of send buffer, window and write is {} at most",
                            size(SMALL_WINDOW_BYTES)
                        ),
                        format!(
                            "each transfer of it takes {} to {}; or `DelayedACKs` * {} is {} of the \
                             time or more",
                            duration(DELAYED_ACK_NS.start),
                            duration(DELAYED_ACK_NS.end),
                            duration(LINUX_DELAYED_ACK_NS),
                            percent(MIN_TIMER_SHARE)
                        ),
                        format!(
                            "the minimum round-trip time is less than {} of that, or of {}",
                            percent(1.0 / MAX_PATH_PART),
                            duration(LINUX_DELAYED_ACK_NS)
                        ),
                        format!(
                            "the receiver's kernel counts `DelayedACKs` for {} of the transfers or \
                             more; without the counter the path is known to be shorter",
                            percent(1.0 / COUNTED_PART)
                        ),
                    ],
                ),
                detection(
                    "TCP round trips",
                    [
                        format!(
                            "the median is {} to {}, or {} to {}. For requests that the user-space stack \
                             splits it is {} or more, up to {} for each part and {}",
                            duration(LINUX_RESPONSE_NS.start),
                            duration(LINUX_RESPONSE_NS.end),
                            duration(OTHER_RESPONSE_NS.start),
                            duration(OTHER_RESPONSE_NS.end),
                            duration(LINUX_RESPONSE_NS.start),
                            duration(LINUX_DELAYED_ACK_NS),
                            duration(LINUX_RESPONSE_NS.end)
                        ),
                        format!(
                            "the path, as a kernel at either end reports it, takes {} of the median \
                             at most",
                            percent(1.0 / MAX_PATH_PART)
                        ),
                    ],
                ),
            ],
            not_when: vec![
                "a rate was requested".into(),
                "the path is full".into(),
                format!(
                    "timeouts, drops in any counter, or more than {} of retransmits",
                    percent(MAX_RETRANSMIT_SHARE)
                ),
                format!(
                    "the user-space stack retransmits more than {MAX_NETSTACK_RETRANSMITS} segments, and more \
                     than {}",
                    percent(1.0 / NETSTACK_RETRANSMIT_PART as f64)
                ),
                format!(
                    "an end waits for a CPU for more than {} of the time",
                    percent(MAX_CORE_WAIT_SHARE)
                ),
            ],
            evidence: &[
                ("time per transfer", "ns"),
                ("goodput_bps", "bit/s"),
                ("tcpi_min_rtt", "ns"),
                ("transfers", ""),
                ("DelayedACKs", "segments"),
                ("rtt_ns.p50", "ns"),
                ("tcp.send_buffer", "B"),
                ("payload_bytes", "B"),
            ],
            cost: vec![
                "Share of the time of a transfer, or of the median, beyond the round-trip time of \
                 the path."
                    .into(),
                "If only some transfers wait, the share of the time in timers.".into(),
            ],
            remedy: vec![
                "Permit two full segments in the send buffer and in the window.".into(),
                "Give the user-space stack a send buffer for a full request (`tcp.send_buffer`)."
                    .into(),
                "Let the responding program write each response at once.".into(),
                "Let the receiver acknowledge at once (`TCP_QUICKACK`, `quickack 1` in its route)."
                    .into(),
            ],
            wrong_when: vec![
                "the remote device, or the responding program, needs that long for another reason"
                    .into(),
            ],
            ..CauseReference::cause()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        let directions = run.throughput_directions(TransportProtocol::Tcp);
        let mut findings: Vec<_> = directions
            .filter_map(|direction| self.evaluate_direction(run, direction))
            .collect();
        findings.extend(self.evaluate_responses(run));
        findings
    }
}

impl DelayedAck {
    fn evaluate_direction(
        &self,
        run: &RunView<'_>,
        direction: &DirectionView<'_>,
    ) -> Option<Finding> {
        let (bytes, stall_ns, buffer_name) =
            smallest_buffer_stall(direction, run.plan.payload_bytes)?;
        let tcp = direction.tcp();
        let rtt = tcp.map_or(0.0, |tcp| tcp.min_rtt_ns);
        let timeouts = tcp.map_or(0, |tcp| tcp.timeouts);
        // Timeouts after losses take as long.
        let netstack_segments = direction.netstack_segments();
        let lossy = tcp.is_some_and(|tcp| tcp.retransmit_share() > MAX_RETRANSMIT_SHARE)
            || netstack_segments.is_some_and(|(sent, retransmitted)| {
                retransmitted > MAX_NETSTACK_RETRANSMITS
                    && retransmitted * NETSTACK_RETRANSMIT_PART > sent
            })
            || super::congestion_loss::counted_drops(run) > 0;
        let delayed = run.counter_increase("delayed_acks", |host, _| {
            host == direction.receiver.as_str()
        });
        // Some full buffers wait for the timer, and others are sent at once.
        let timers = delayed.unwrap_or(0) as f64 * LINUX_DELAYED_ACK_NS
            / (direction.seconds() * 1e9).max(1.0);
        let is_timer_bound = timers >= MIN_TIMER_SHARE
            && rtt < LINUX_DELAYED_ACK_NS / MAX_PATH_PART
            && stall_ns > MIN_RTT_NS;
        let is_every_stall = DELAYED_ACK_NS.contains(&stall_ns) && rtt < stall_ns / MAX_PATH_PART;
        let is_delayed = bytes <= SMALL_WINDOW_BYTES as f64 && (is_every_stall || is_timer_bound);
        if !is_delayed || super::is_paced(run) || timeouts > 0 || lossy || direction.fills_path() {
            return None;
        }
        // Requires as many delayed acknowledgements as stalls, if the receiver's kernel counts
        // them. Without the counter the path must be known to be shorter.
        let waits = direction.goodput()? / 8.0 * direction.seconds() / bytes.max(1.0);
        let proven = is_timer_bound
            || delayed.map_or(rtt > 0.0, |delayed| delayed as f64 >= waits / COUNTED_PART);
        // An end that waits for a core delays the other one as long.
        let is_core_limited = [FlowEnd::Sender, FlowEnd::Receiver]
            .into_iter()
            .filter_map(|part| direction.thread_time(part))
            .any(|time| time.core_wait > MAX_CORE_WAIT_SHARE);
        if !proven || is_core_limited {
            return None;
        }
        let (remedy, command) = larger_buffer_remedy(run, direction, buffer_name);
        // With a known round-trip time the gain includes the larger amount in flight.
        let wider = (SUFFICIENT_BYTES as f64 / bytes.max(1.0)).max(1.0);
        let (gain, formula) = match rtt > 0.0 {
            true => (
                within_headroom(direction, stall_ns / rtt * wider),
                format!(
                    "time per transfer over the round-trip time, times {} over {}; at most \
                     {HEADROOM_FORMULA}",
                    format_bytes(SUFFICIENT_BYTES),
                    format_bytes(bytes as u64)
                ),
            ),
            // Our stack does not report its round-trip time.
            false if !is_every_stall => (
                within_headroom(direction, stall_ns / MIN_RTT_NS * wider),
                format!(
                    "time per transfer over 20 us, the shortest round trip, times {} over {}; at \
                     most {HEADROOM_FORMULA}",
                    format_bytes(SUFFICIENT_BYTES),
                    format_bytes(bytes as u64)
                ),
            ),
            false => (
                within_headroom(direction, stall_ns / MIN_RTT_NS),
                format!(
                    "time per transfer over 20 us, the shortest round trip; at most {HEADROOM_FORMULA}"
                ),
            ),
        };
        FindingBuilder::cause(self.id(), direction.receiver)
            .direction(direction.direction)
            .cost(if is_every_stall {
                1.0 - rtt / stall_ns
            } else {
                timers.min(0.99)
            })
            .summary(match is_every_stall {
                true => format!(
                    "each {buffer_name} of {} took {}: the {} delays its acknowledgement, and the sender \
                     has no buffer space left",
                    format_bytes(bytes as u64),
                    format_nanos(stall_ns),
                    direction.receiver.as_str()
                ),
                false => format!(
                    "a {buffer_name} of {} took {} on average: the {} delayed {} acknowledgements for 40 \
                     ms or more, and the sender had no buffer space left",
                    format_bytes(bytes as u64),
                    format_nanos(stall_ns),
                    direction.receiver.as_str(),
                    delayed.unwrap_or(0)
                ),
            })
            .evidence(
                "time per transfer",
                stall_ns.round(),
                "ns",
                format!("{buffer_name} / goodput"),
            )
            .evidence("goodput_bps", direction.goodput()?, "bit/s", "receiver")
            .evidence_if(
                "tcpi_min_rtt",
                (rtt > 0.0).then_some(rtt),
                "ns",
                tcp_info_source(direction.sender),
            )
            .evidence(
                "transfers",
                waits.round(),
                "",
                "bytes received / bytes per transfer",
            )
            .evidence_if(
                "DelayedACKs",
                delayed,
                "segments",
                format!("{} /proc/net/netstat", direction.receiver.as_str()),
            )
            .remedy(format!(
                "permit two full segments in flight: {remedy}; or let the {} acknowledge at once \
                 (TCP_QUICKACK, `quickack 1` in its route)",
                direction.receiver.as_str()
            ))
            .command(command)
            .estimated_gain(gain, formula)
            .build()
    }

    /// Responses take as long as the timer on a path that is far shorter.
    fn evaluate_responses(&self, run: &RunView<'_>) -> Option<Finding> {
        if run.plan.kind != RunKind::Latency || run.plan.protocol != TransportProtocol::Tcp {
            return None;
        }
        let rtt = run.record.summary.rtt_ns?;
        let p50 = rtt.p50 as f64;
        let least = rtt.min as f64;
        let path = reported_path_rtt_ns(run).map_or(least, |path_rtt| path_rtt as f64);
        // A request that exceeds the send buffer of our stack is split, and each part waits for the
        // one before.
        let buffer_bytes = run
            .directions
            .iter()
            .filter_map(DirectionView::send_buffer)
            .min();
        let parts = buffer_bytes.filter(|&buffer_bytes| {
            run.uses_netstack(Role::Client) && buffer_bytes < run.plan.payload_bytes
        });
        let timer = match parts {
            // Several parts may wait for the timer, one after the other.
            Some(buffer_bytes) => {
                let parts = run.plan.payload_bytes.div_ceil(buffer_bytes.max(1));
                (LINUX_RESPONSE_NS.start
                    ..LINUX_DELAYED_ACK_NS * parts as f64 + LINUX_RESPONSE_NS.end)
                    .contains(&p50)
            }
            None => LINUX_RESPONSE_NS.contains(&p50) || OTHER_RESPONSE_NS.contains(&p50),
        };
        if !timer || path > p50 / MAX_PATH_PART {
            return None;
        }
        let builder = FindingBuilder::cause(self.id(), Role::Server)
            .cost(1.0 - path / p50)
            .summary(format!(
                "the median response took {}, {} of delayed acknowledgements, on a path of {}",
                format_nanos(p50),
                if parts.is_some() && p50 >= LINUX_RESPONSE_NS.end {
                    "several times the timeout"
                } else {
                    "the timeout"
                },
                format_nanos(path)
            ))
            .evidence("rtt_ns.p50", rtt.p50, "ns", "client")
            .evidence("tcpi_min_rtt", path, "ns", "TCP_INFO of either end");
        if let Some(buffer_bytes) = parts {
            let message_bytes = run
                .plan
                .payload_bytes
                .next_power_of_two()
                .max(SUFFICIENT_BYTES);
            return builder
                .evidence("tcp.send_buffer", buffer_bytes, "B", "client stack")
                .evidence("payload_bytes", run.plan.payload_bytes, "B", "plan")
                .remedy(
                    "enlarge the user-space stack's send buffer to a full request: each part waits until the \
                     one before is acknowledged",
                )
                .command(run.rerun_with_key(
                    Role::Client,
                    "tcp.send_buffer",
                    &format!("{}K", message_bytes >> 10),
                ))
                .estimated_gain(
                    Some((p50 / path.max(1.0)).min(MAX_RESPONSE_GAIN)),
                    "p50 over the path's round-trip time",
                )
                .build();
        }
        let builder = builder.remedy(
            "the responding program writes in parts: let it write each response at once, or set \
             TCP_NODELAY on its socket; if it cannot be changed, set `quickack 1` in this host's \
             route to it",
        );
        // There is no command for changing another program's source.
        let builder = match run.uses_netstack(Role::Server) {
            true => builder.command(run.rerun_with_key(Role::Server, "tcp.nagle", "off")),
            false => builder,
        };
        builder
            .estimated_gain(
                Some((p50 / path.max(1.0)).min(MAX_RESPONSE_GAIN)),
                "p50 over the path's round-trip time",
            )
            .build()
    }
}
