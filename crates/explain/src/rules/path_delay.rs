//! The path is long: windows or requests wait for round trips.

use linerate_record::facts::Role;
use linerate_record::finding::{Finding, FindingLocation};
use linerate_record::ids::CauseId;
use linerate_record::plan::TransportProtocol;
use linerate_stats::units::{format_bytes, format_nanos};

use super::receive_window::SHORT_RTT_NS;
use super::{HEADROOM_FORMULA, headroom, is_paced, tcp_info_source, within_headroom};
use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, duration, percent, size};
use crate::run_view::{DirectionView, RunView};

/// Round-trip time from which a path counts as long: idle neighbouring hosts stay below it.
const LONG_RTT_NS: u64 = 1_000_000;

/// Smallest share of the time limited by a window that matters.
const MIN_RELEVANT_SHARE: f64 = 0.2;

/// Smallest loss share that limits a congestion window.
const MIN_LOSS_SHARE: f64 = 0.0005;

/// Part of the minimum round trip from which the poll interval of our stack is the delay, and up to
/// which a reported path is not the delay.
const POLL_PART: f64 = 2.0;
const PATH_PART: u64 = 4;

/// Parts of an end's memory for all buffers: a 16th, for two buffers of each flow.
const MEMORY_PART: u64 = 16 * 2;

/// Assumed speedup on a path of unknown rate.
const UNKNOWN_RATE_FACTOR: f64 = 8.0;

/// Largest suggested buffer: twice 10 Gb/s over 100 ms.
const MAX_BUFFER_BYTES: u64 = 256 << 20;

/// See docs/CAUSES.md#path-delay.
pub struct PathDelay;

impl Rule for PathDelay {
    fn id(&self) -> CauseId {
        CauseId::PathDelay
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "The path is long: windows do not hold its bandwidth-delay product, or \
                      requests wait for it.",
            shown_when: vec![
                detection(
                    "TCP",
                    [
                        format!(
                            "the minimum round-trip time is {} or more",
                            duration(SHORT_RTT_NS)
                        ),
                        "no end is saturated".into(),
                        format!(
                            "receive window and send buffer limit the sender for {} of the time or \
                             more",
                            percent(MIN_RELEVANT_SHARE)
                        ),
                    ],
                ),
                detection(
                    "round trips",
                    [
                        format!("the minimum is {} or more", duration(LONG_RTT_NS as f64)),
                        format!(
                            "no kernel reports a path of less than {} of it",
                            percent(1.0 / PATH_PART as f64)
                        ),
                        format!(
                            "`poll.interval` of the user-space stack is {} of it at most",
                            percent(1.0 / POLL_PART)
                        ),
                    ],
                ),
            ],
            limit_when: vec![
                format!(
                    "TCP: the congestion window still grows, and limits the sender for {} of the \
                     time",
                    percent(MIN_RELEVANT_SHARE)
                ),
                "the run measures round trips".into(),
            ],
            not_when: vec![
                "streams: a rate was requested".into(),
                "streams: the path is full".into(),
                "windows are not scaled: see [receive-window](#receive-window)".into(),
                format!(
                    "a growing congestion window is limited by a loss of {} or more",
                    percent(MIN_LOSS_SHARE)
                ),
            ],
            evidence: &[
                ("tcpi_min_rtt", "ns"),
                ("tcpi_rtt", "ns"),
                ("in flight", "B"),
                ("tcpi_rwnd_limited", "share"),
                ("tcpi_sndbuf_limited", "share"),
                ("tcpi_snd_cwnd", "B"),
                ("SO_RCVBUF", "B"),
                ("SO_SNDBUF", "B"),
                ("rtt_ns.min", "ns"),
                ("rtt_ns.p50", "ns"),
            ],
            cost: vec![
                "Share of the time limited by windows, or share of the median.".into(),
                "A growing window has no gain if the rate of the path is unknown.".into(),
            ],
            remedy: vec![
                "Raise `net.ipv4.tcp_rmem` and `tcp_wmem` above the product, or window and send \
                 buffer of the user-space stack."
                    .into(),
                format!(
                    "The advised size is for the known rate, or for {UNKNOWN_RATE_FACTOR} times the \
                     received one."
                ),
                format!(
                    "It is {} at most, and one part in {MEMORY_PART} of the smaller end's memory.",
                    size(MAX_BUFFER_BYTES)
                ),
                "Use several flows.".into(),
                "Measure longer, and omit the start (`-t`, `-O`).".into(),
                "Keep more requests outstanding (`--outstanding`).".into(),
            ],
            wrong_when: vec!["the remote end itself needs that long for a response".into()],
            ..CauseReference::cause()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        let directions = run.throughput_directions(TransportProtocol::Tcp);
        let mut findings: Vec<_> = directions
            .filter_map(|direction| self.evaluate_direction(run, direction))
            .collect();
        findings.extend(self.evaluate_round_trips(run));
        findings
    }
}

impl PathDelay {
    fn evaluate_direction(
        &self,
        run: &RunView<'_>,
        direction: &DirectionView<'_>,
    ) -> Option<Finding> {
        let tcp = direction.tcp()?;
        if tcp.min_rtt_ns < SHORT_RTT_NS
            || direction.fills_path()
            || is_paced(run)
            || super::is_saturated(direction)
        {
            return None;
        }
        let goodput = direction.goodput()?;
        let in_flight = goodput / 8.0 * tcp.rtt_ns / 1e9;
        let windows = tcp.receive_window_limited + tcp.send_buffer_limited;
        // If no window is full and loss does not limit it, the congestion window is still growing,
        // round trip by round trip.
        let starting = windows < MIN_RELEVANT_SHARE
            && !(direction.reacts_to_loss()
                && tcp.loss_share() >= MIN_LOSS_SHARE
                && direction.is_loss_bound(&tcp, tcp.loss_share()));
        let limited = match starting {
            true => super::congestion_loss::cwnd_limited_share(&tcp),
            false => windows.min(1.0),
        };
        if limited < MIN_RELEVANT_SHARE || windows < MIN_RELEVANT_SHARE && !starting {
            return None;
        }
        // Windows without scaling are not a matter of buffer size.
        if !super::receive_window::ends_without_scaling(run).is_empty()
            && tcp.receive_window_limited >= MIN_RELEVANT_SHARE
        {
            return None;
        }
        let is_rate_known = direction
            .line_share()
            .or(direction.shaper_share())
            .is_some();
        let further = if is_rate_known {
            f64::INFINITY
        } else {
            UNKNOWN_RATE_FACTOR
        };
        let aim = headroom(direction).unwrap_or(1.0).min(further) * goodput;
        let needed = (aim / 8.0 * tcp.min_rtt_ns / 1e9) as u64;
        let flows = direction.streams().len().max(1) as u64;
        let most = max_flow_buffer_bytes(run, flows);
        let larger = (2 * needed / flows)
            .max(4 << 20)
            .next_power_of_two()
            .min(most);
        // The windows of our stack have their configured size.
        let roles = [
            (direction.sender, "tcp.send_buffer"),
            (direction.receiver, "tcp.receive_window"),
        ];
        let netstack_end = roles
            .into_iter()
            .find(|(role, _)| direction.uses_netstack(*role));
        FindingBuilder::limit_if(starting, self.id(), FindingLocation::Path)
            .direction(direction.direction)
            .cost(limited)
            .summary(match starting {
                true => format!(
                    "the path's round-trip time is {}: the congestion window was still growing, \
                     round trip by round trip",
                    format_nanos(tcp.min_rtt_ns)
                ),
                false => format!(
                    "the path's round-trip time is {}: windows limit the data in flight to {}, \
                     below the bandwidth-delay product",
                    format_nanos(tcp.min_rtt_ns),
                    format_bytes(in_flight as u64)
                ),
            })
            .evidence(
                "tcpi_min_rtt",
                tcp.min_rtt_ns.round(),
                "ns",
                tcp_info_source(direction.sender),
            )
            .evidence(
                "tcpi_rtt",
                tcp.rtt_ns.round(),
                "ns",
                tcp_info_source(direction.sender),
            )
            .evidence("in flight", in_flight.round(), "B", "goodput * tcpi_rtt")
            .evidence(
                "tcpi_rwnd_limited",
                tcp.receive_window_limited,
                "share",
                tcp_info_source(direction.sender),
            )
            .evidence(
                "tcpi_sndbuf_limited",
                tcp.send_buffer_limited,
                "share",
                tcp_info_source(direction.sender),
            )
            .evidence(
                "tcpi_snd_cwnd",
                tcp.cwnd_bytes.round(),
                "B",
                tcp_info_source(direction.sender),
            )
            .evidence_if(
                "SO_RCVBUF",
                direction.receive_buffer(),
                "B",
                "receiver socket",
            )
            .evidence_if("SO_SNDBUF", direction.send_buffer(), "B", "sender socket")
            .remedy(match starting {
                true => {
                    "measure longer, or omit the start (-O); several flows start faster than one"
                }
                false if larger == most => {
                    "raise the buffer limits of both ends (a larger buffer per flow would use too \
                     much of their memory), and use several flows"
                }
                false if is_rate_known => {
                    "raise the buffer limits of both ends above the bandwidth-delay product, or \
                     use several flows"
                }
                false => {
                    "raise the buffer limits of both ends above the bandwidth-delay product, or \
                     use several flows; the path's rate is not known: this permits 8 times the \
                     current rate, raise it further while that helps"
                }
            })
            .command(match starting {
                true => run.rerun_command(&format!("-t {} -O 5", longer_duration_s(run))),
                false if netstack_end.is_some() => run.rerun_with_key(
                    netstack_end.map_or(direction.sender, |(role, _)| role),
                    netstack_end.map_or("", |(_, key)| key),
                    &format!("{}M", larger >> 20),
                ),
                false => larger_buffers_command(run, direction, larger).unwrap_or_else(|| {
                    run.rerun_command(&format!("-P {}", (2 * run.plan.streams).max(4)))
                }),
            })
            .tried(
                run.plan
                    .window_bytes
                    .map(|requested| format!("-w {}", format_bytes(requested))),
            )
            // On a path of unknown rate the final congestion window is unknown: its current value
            // is the minimum.
            .estimated_gain(
                within_headroom(direction, 1.0 / (1.0 - limited).max(0.01))
                    .filter(|_| is_rate_known || !starting),
                format!(
                    "window / round-trip time: 1 / (1 - share limited by windows), at most \
                     {HEADROOM_FORMULA}"
                ),
            )
            .build()
    }

    fn evaluate_round_trips(&self, run: &RunView<'_>) -> Option<Finding> {
        if !run.is_latency() {
            return None;
        }
        let rtt = run.record.summary.rtt_ns?;
        if rtt.min < LONG_RTT_NS {
            return None;
        }
        // If a kernel reported a far shorter path, the delay has another cause.
        if super::delayed_ack::reported_path_rtt_ns(run)
            .is_some_and(|path| path < rtt.min / PATH_PART)
        {
            return None;
        }
        // The poll interval of our stack may be the delay.
        let sleeps = [Role::Client, Role::Server]
            .into_iter()
            .filter_map(|role| run.poll_interval_ns(role));
        if sleeps.fold(0.0, f64::max) > rtt.min as f64 / POLL_PART {
            return None;
        }
        let share = rtt.min as f64 / rtt.p50.max(1) as f64;
        FindingBuilder::limit(self.id(), FindingLocation::Path)
            .cost(share)
            .summary(format!(
                "no round trip took less than {}: the delay of the path, with the response time \
                 of the server",
                format_nanos(rtt.min as f64)
            ))
            .evidence("rtt_ns.min", rtt.min, "ns", "client")
            .evidence("rtt_ns.p50", rtt.p50, "ns", "client")
            .remedy("keep several requests outstanding: they hide the delay")
            .command(run.rerun_command(&format!(
                "--outstanding {}",
                (2 * run.plan.round_trip.outstanding).max(8)
            )))
            .tried(
                (run.plan.round_trip.outstanding > 1)
                    .then(|| format!("--outstanding {}", run.plan.round_trip.outstanding)),
            )
            .build()
    }
}

/// Returns the largest buffer of one flow: all buffers of all flows together take at most a 16th of
/// the smaller end's memory, and each at most 256 MiB.
fn max_flow_buffer_bytes(run: &RunView<'_>, flows: u64) -> u64 {
    let roles = [Role::Client, Role::Server].into_iter();
    let memory = roles.filter_map(|role| run.host(role)?.memory_bytes).min();
    let share = memory.map_or(MAX_BUFFER_BYTES, |memory| {
        (memory / MEMORY_PART / flows).clamp(1 << 20, MAX_BUFFER_BYTES)
    });
    // Largest power of two within it.
    1 << share.ilog2()
}

/// Returns twice the duration of the run in seconds, at least 30.
fn longer_duration_s(run: &RunView<'_>) -> u64 {
    let requested_ns = run.plan.duration_ns.unwrap_or(0);
    (2 * requested_ns).div_ceil(1_000_000_000).max(30)
}

/// Returns the command that raises the buffer limits of both ends to `larger`; `None` if both are
/// high enough.
fn larger_buffers_command(
    run: &RunView<'_>,
    direction: &DirectionView<'_>,
    larger: u64,
) -> Option<String> {
    let sends = run.raise_command(direction.sender, "net.ipv4.tcp_wmem", larger);
    let receives = run.raise_command(direction.receiver, "net.ipv4.tcp_rmem", larger);
    match (sends, receives) {
        (Some(sends), Some(receives)) => Some(format!("{receives}; {sends}")),
        (sends, receives) => receives.or(sends),
    }
}
