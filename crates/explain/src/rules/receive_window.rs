//! The receive window is too small.

use linerate_record::facts::Role;
use linerate_record::finding::Finding;
use linerate_record::ids::CauseId;
use linerate_record::plan::TransportProtocol;
use linerate_record::record::FlowEnd;
use linerate_stats::units::{format_bytes, format_share};

use super::{
    HEADROOM_FORMULA, WAITING_GAIN_FORMULA, is_paced, tcp_info_source, waiting_gain,
    within_headroom,
};
use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, duration, percent, size};
use crate::run_view::{DirectionView, RunView, TcpSummary};

/// Smallest share of the time limited by the window that matters.
const MIN_RELEVANT_SHARE: f64 = 0.2;

/// Largest granted buffer that counts as small: kernels of the last ten years exceed it by
/// themselves once a stream flows (half of it is the middle number of net.ipv4.tcp_rmem).
pub(super) const SMALL_BUFFER_BYTES: u64 = 256 << 10;

/// Largest granted buffer that holds only a few GSO packets.
const TINY_BUFFER_BYTES: u64 = 64 << 10;

/// Longest round-trip time of a short path: a full-sized window does not limit it.
pub(super) const SHORT_RTT_NS: f64 = 2e6;

/// Goodput over window / round-trip time below which the window is closed by a slow reader, not by
/// its size.
pub(super) const CLOSED_WINDOW_USE: f64 = 0.02;

/// Goodput over window / minimum round-trip time from which the window limits the sender.
const MIN_WINDOW_USE: f64 = 0.2;

/// Such a limit for our stack, whose round trips under load take longer than the minimum. Windows
/// of 4 to 16 KiB gave 0.13 to 0.20, and 64 KiB gave 1.4 to 4 times the goodput; 64 KiB, where more
/// gave no gain, had 0.05.
const MIN_NETSTACK_WINDOW_USE: f64 = 0.1;

/// Smallest share of the time limited by the window of our stack: most waits are shorter than the
/// kernel's resolution (0.13 to 0.58 with 1 to 16 KiB).
const MIN_NETSTACK_LIMITED_SHARE: f64 = 0.12;

/// Share of a window in flight from which it is full: while half of it is in flight, the other half
/// is read and advertised again.
const FULL_WINDOW_SHARE: f64 = 0.4;

/// Part of a kernel's granted buffer that holds payload: the rest is overhead (socket(7)).
const USABLE_PART: u64 = 2;

/// Largest window without scaling (RFC 9293, section 3.1; RFC 7323).
const MAX_UNSCALED_WINDOW_BYTES: u64 = 65_535;

/// Growth of a window to try, and its smallest size, in bytes: the kernel's automatic size ends
/// there by default.
const WINDOW_GROWTH: u64 = 4;
const MIN_LARGER_BYTES: u64 = 4 << 20;

/// Sysctls of window scaling, and of automatic receive buffer sizes.
const WINDOW_SCALING_SYSCTL: &str = "net.ipv4.tcp_window_scaling";
const RECEIVE_TUNING_SYSCTL: &str = "net.ipv4.tcp_moderate_rcvbuf";

/// See docs/CAUSES.md#receive-window.
pub struct ReceiveWindow;

impl Rule for ReceiveWindow {
    fn id(&self) -> CauseId {
        CauseId::ReceiveWindow
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "The receiver offers so small a window that the sender waits for it.",
            shown_when: vec![
                detection(
                    "TCP",
                    [
                        format!(
                            "the window limits the sender for {} of the time or more \
                             (`tcpi_rwnd_limited`); {} if the user-space stack receives",
                            percent(MIN_RELEVANT_SHARE),
                            percent(MIN_NETSTACK_LIMITED_SHARE)
                        ),
                        format!(
                            "the window is {} at most. Or the receiver has more than {} idle time, \
                             and goodput is {} of window / round-trip time or more",
                            size(SMALL_BUFFER_BYTES),
                            percent(MIN_RELEVANT_SHARE),
                            percent(CLOSED_WINDOW_USE)
                        ),
                        format!(
                            "a larger window without a fixed size also needs a minimum round-trip \
                             time of {} at most",
                            duration(SHORT_RTT_NS)
                        ),
                        format!(
                            "goodput is {} of window / minimum round-trip time if another tool \
                             receives, {} if the user-space stack does",
                            percent(MIN_WINDOW_USE),
                            percent(MIN_NETSTACK_WINDOW_USE)
                        ),
                    ],
                ),
                detection(
                    "TCP, a full window",
                    [
                        format!(
                            "goodput * round-trip time is {} of the usable window or more, which \
                             is {} of the granted buffer",
                            percent(FULL_WINDOW_SHARE),
                            percent(1.0 / USABLE_PART as f64)
                        ),
                        format!(
                            "the size is fixed, and {} at most",
                            size(SMALL_BUFFER_BYTES)
                        ),
                        format!(
                            "a kernel receives, with idle time of more than {}",
                            percent(MIN_RELEVANT_SHARE)
                        ),
                    ],
                ),
                detection(
                    "TCP from another tool, which reports no statistics",
                    [
                        format!(
                            "a size was requested, and {} or less was granted",
                            size(TINY_BUFFER_BYTES)
                        ),
                        format!(
                            "the receiver has idle time of {} or more",
                            percent(MIN_RELEVANT_SHARE)
                        ),
                    ],
                ),
            ],
            not_when: vec![
                "a rate was requested".into(),
                "the path is full".into(),
                format!(
                    "no size was requested, and the kernel may already grant {WINDOW_GROWTH} times \
                     the window and {}",
                    size(MIN_LARGER_BYTES)
                ),
            ],
            evidence: &[
                ("tcpi_rwnd_limited", "share"),
                ("SO_RCVBUF", "B"),
                ("tcpi_snd_wnd", "B"),
                ("tcpi_rtt", "ns"),
                ("idle time of the receiving threads", "share"),
                (WINDOW_SCALING_SYSCTL, ""),
                (RECEIVE_TUNING_SYSCTL, ""),
            ],
            cost: vec![
                "Share of the time in which the window limits the sender.".into(),
                "For a full window, and for another tool, the idle time of the receiver.".into(),
            ],
            notes: vec![
                format!(
                    "A size is fixed if it was requested, without `{RECEIVE_TUNING_SYSCTL}` at the \
                     receiver, or without `{WINDOW_SCALING_SYSCTL}` at either end."
                ),
                "A sender that works on each small part of a window is hardly ever reported as \
                 limited."
                    .into(),
            ],
            remedy: vec![
                "Request a larger receive buffer (`-w`, `--rcvbuf`), or none: then the kernel \
                 sizes it."
                    .into(),
                "Raise the last number of `net.ipv4.tcp_rmem` if it is small.".into(),
                format!(
                    "Enable `{RECEIVE_TUNING_SYSCTL}` at the receiver: without it a buffer keeps \
                     its first size."
                ),
                format!(
                    "Enable `{WINDOW_SCALING_SYSCTL}` at both ends: without it no window is larger \
                     than {MAX_UNSCALED_WINDOW_BYTES} B, whatever the buffer."
                ),
                "Raise `tcp.receive_window` of the user-space stack, or `TCP_WND` of an embedded stack."
                    .into(),
            ],
            wrong_when: vec![
                "the window of the remote stack is small on purpose, because its memory is".into(),
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
            .filter_map(|direction| match direction.tcp() {
                Some(_) => self.evaluate_direction(run, direction),
                None => self.evaluate_third_party(run, direction),
            })
            .collect()
    }
}

/// Returns the goodput over window / round-trip time.
pub(super) fn window_use(direction: &DirectionView<'_>) -> Option<f64> {
    let tcp = direction.tcp()?;
    let bits = direction.receive_buffer()? as f64 * 8.0 * direction.streams().len().max(1) as f64;
    let through = bits / (tcp.rtt_ns / 1e9).max(1e-9);
    Some(direction.goodput()? / through)
}

/// Returns the usable window of a kernel socket; without scaling at most 65535 bytes.
fn usable_window_bytes(granted: u64, is_scaled: bool) -> u64 {
    match is_scaled {
        true => granted / USABLE_PART,
        false => MAX_UNSCALED_WINDOW_BYTES.min(granted / USABLE_PART),
    }
}

/// Returns the ends whose kernel does not scale windows: one is enough to disable it for the
/// connection.
pub(super) fn ends_without_scaling(run: &RunView<'_>) -> Vec<Role> {
    run.ends_without(WINDOW_SCALING_SYSCTL)
}

/// Returns the bytes in flight or not yet received by the application: goodput * round-trip time.
pub(super) fn bytes_in_flight(direction: &DirectionView<'_>, tcp: &TcpSummary) -> f64 {
    direction.goodput().unwrap_or(0.0) / 8.0 * tcp.rtt_ns / 1e9
}

impl ReceiveWindow {
    /// The sender is another tool without statistics: a small requested window and an idle receiver
    /// are the evidence.
    fn evaluate_third_party(
        &self,
        run: &RunView<'_>,
        direction: &DirectionView<'_>,
    ) -> Option<Finding> {
        let requested = run
            .plan
            .socket
            .receive_buffer_bytes
            .or(run.plan.window_bytes)?;
        let granted = direction.receive_buffer()?;
        let free = direction.thread_time(FlowEnd::Receiver)?.free_share();
        let is_third_party_sender =
            run.has_third_party_server() && direction.receiver == Role::Client;
        if !is_third_party_sender
            || granted > TINY_BUFFER_BYTES
            || free < MIN_RELEVANT_SHARE
            || direction.fills_path()
        {
            return None;
        }
        let larger = MIN_LARGER_BYTES;
        FindingBuilder::cause(self.id(), direction.receiver)
            .direction(direction.direction)
            .cost(free)
            .summary(format!(
                "the {} advertises a window of at most {}, and was idle for {} of the run",
                direction.receiver.as_str(),
                format_bytes(granted),
                format_share(free)
            ))
            .evidence(
                "SO_RCVBUF",
                granted,
                "B",
                format!("{} socket", direction.receiver.as_str()),
            )
            .evidence(
                "idle time of the receiving threads",
                free,
                "share",
                super::schedstat_source(direction.receiver),
            )
            .remedy(format!(
                "request a receive buffer larger than {}, or let the kernel choose the size",
                format_bytes(requested)
            ))
            .command(super::larger_buffer_command(
                run,
                "rcvbuf",
                run.plan.socket.receive_buffer_bytes,
                larger,
            ))
            .tried(Some(format!(
                "a receive buffer of {}",
                format_bytes(requested)
            )))
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
        let tcp = direction.tcp()?;
        if direction.fills_path() {
            return None;
        }
        let granted = direction.receive_buffer();
        let requested = run
            .plan
            .socket
            .receive_buffer_bytes
            .or(run.plan.window_bytes);
        let offered = direction
            .senders()
            .filter_map(|socket| socket.tcp.as_ref()?.send_window_bytes)
            .min();
        // The last reading may have been a closed window: the data in flight did fit.
        let offered = offered.map(|offered| offered.max(bytes_in_flight(direction, &tcp) as u64));
        let unscaled = ends_without_scaling(run);
        // No size was requested, and the kernel does not change it.
        let is_fixed_size = requested.is_none()
            && run
                .ends_without(RECEIVE_TUNING_SYSCTL)
                .contains(&direction.receiver);
        let window = match unscaled.is_empty() {
            true => granted.or(offered)?,
            false => granted.or(offered)?.min(MAX_UNSCALED_WINDOW_BYTES),
        };
        let is_size_known = requested.is_some() || is_fixed_size || !unscaled.is_empty();
        let free = direction
            .thread_time(FlowEnd::Receiver)
            .map(|time| time.free_share());
        // The kernel hardly ever reports a sender as limited that works on each small part of the
        // window: the data in flight shows that the window is full.
        let flows = direction.streams().len().max(1) as f64;
        let usable_bytes = granted.map_or(0, |granted| {
            usable_window_bytes(granted, unscaled.is_empty())
        });
        let fill_share = bytes_in_flight(direction, &tcp) / (usable_bytes.max(1) as f64 * flows);
        let is_measurable = direction.stack_name(direction.receiver) == "kernel"
            && usable_bytes > 0
            && is_size_known
            && window <= SMALL_BUFFER_BYTES;
        let fill_share = Some(fill_share)
            .filter(|_| is_measurable && free.is_some_and(|free| free > MIN_RELEVANT_SHARE));
        let limited = match fill_share {
            Some(fill_share) if fill_share >= FULL_WINDOW_SHARE => {
                tcp.receive_window_limited.max(free.unwrap_or(0.0))
            }
            _ => tcp.receive_window_limited,
        };
        let is_netstack = direction.uses_netstack(direction.receiver);
        if limited
            < if is_netstack {
                MIN_NETSTACK_LIMITED_SHARE
            } else {
                MIN_RELEVANT_SHARE
            }
        {
            return None;
        }
        if window > SMALL_BUFFER_BYTES {
            // A busy receiver closes its window, and a long path needs a large one.
            let idle = free.is_some_and(|free| free > MIN_RELEVANT_SHARE);
            let by_reader = window_use(direction).is_none_or(|share| share < CLOSED_WINDOW_USE);
            let long = tcp.min_rtt_ns > SHORT_RTT_NS && !is_size_known;
            if !idle || by_reader || long {
                return None;
            }
        }
        // The idle time of a polling stack, or of another tool, is unknown: then the window is the
        // limit if it is used up within the path's round-trip time.
        let through =
            window as f64 * 8e9 * direction.streams().len().max(1) as f64 / tcp.min_rtt_ns.max(1.0);
        let used = if is_netstack {
            MIN_NETSTACK_WINDOW_USE
        } else {
            MIN_WINDOW_USE
        };
        if (is_netstack || free.is_none() && run.has_third_party_server())
            && direction.goodput()? < used * through
        {
            return None;
        }
        let role = direction.receiver;
        let end = role.as_str();
        // Our stack allocates the window of each connection at its start.
        let larger = if is_netstack {
            (window * 8).max(64 << 10)
        } else {
            (window * WINDOW_GROWTH).max(MIN_LARGER_BYTES)
        };
        // The kernel's limit may already permit the larger size: then it is not the cause.
        let raised = run.raise_command(role, "net.ipv4.tcp_rmem", larger);
        if !is_size_known && !is_netstack && raised.is_none() {
            return None;
        }
        let (remedy, command) = match (is_netstack, requested) {
            _ if !unscaled.is_empty() => (
                "enable window scaling at both ends: without it windows are limited to 64 KiB, \
                 whatever the buffer size"
                    .to_owned(),
                run.enable_command(&unscaled, WINDOW_SCALING_SYSCTL),
            ),
            (false, None) if is_fixed_size => (
                format!(
                    "enable automatic receive buffer sizes at the {end}, or request a size (-w)"
                ),
                run.command_at(
                    role,
                    &match run.raised_setting(role, "net.ipv4.tcp_rmem", larger) {
                        Some(raised) => format!("sysctl -w {RECEIVE_TUNING_SYSCTL}=1 {raised}"),
                        None => format!("sysctl -w {RECEIVE_TUNING_SYSCTL}=1"),
                    },
                ),
            ),
            (true, _) => (
                format!(
                    "raise the receive window of the user-space stack above {}",
                    format_bytes(window)
                ),
                run.rerun_with_key(role, "tcp.receive_window", &format!("{}K", larger >> 10)),
            ),
            (false, Some(requested)) => (
                format!(
                    "request a receive buffer larger than {} at the {end}, or let its kernel \
                     choose the size",
                    format_bytes(requested)
                ),
                super::larger_buffer_command(
                    run,
                    "rcvbuf",
                    run.plan.socket.receive_buffer_bytes,
                    larger,
                ),
            ),
            (false, None) => (
                format!("raise the receive buffer limit of the {end}'s kernel or stack"),
                // If the limit is unknown, the command shows it.
                match run.host(role) {
                    Some(_) => raised.unwrap_or_default(),
                    None => run.command_at(role, "sysctl net.ipv4.tcp_rmem"),
                },
            ),
        };
        let mut builder = FindingBuilder::cause(self.id(), role)
            .direction(direction.direction)
            .cost(limited)
            .summary(match fill_share.filter(|_| limited > tcp.receive_window_limited) {
                Some(fill_share) => format!(
                    "the {end}'s receive window was full: {} of {} were in flight, and the {end} \
                     was idle for {} of the run",
                    format_bytes((fill_share.min(1.0) * usable_bytes as f64) as u64),
                    format_bytes(usable_bytes),
                    format_share(limited)
                ),
                None => format!(
                    "the sender waited for the {end}'s receive window for {} of the time",
                    format_share(limited)
                ),
            })
            .evidence(
                "tcpi_rwnd_limited",
                tcp.receive_window_limited,
                "share",
                tcp_info_source(direction.sender),
            )
            .evidence_if("SO_RCVBUF", granted, "B", format!("{end} socket"))
            .evidence_if("tcpi_snd_wnd", offered, "B", tcp_info_source(direction.sender))
            .evidence("tcpi_rtt", tcp.rtt_ns.round(), "ns", tcp_info_source(direction.sender))
            .evidence_if(
                "idle time of the receiving threads",
                free,
                "share",
                super::schedstat_source(role),
            );
        for &role in &unscaled {
            builder = builder.evidence(
                WINDOW_SCALING_SYSCTL,
                0_u64,
                "",
                format!("{} sysctl", role.as_str()),
            );
        }
        if is_fixed_size {
            builder = builder.evidence(RECEIVE_TUNING_SYSCTL, 0_u64, "", format!("{end} sysctl"));
        }
        builder
            .remedy(remedy)
            .command(command)
            .tried(
                requested
                    .map(|requested| format!("a receive buffer of {}", format_bytes(requested))),
            )
            .estimated_gain(
                within_headroom(direction, waiting_gain(direction, limited, window, larger)),
                format!("{WAITING_GAIN_FORMULA}, at most {HEADROOM_FORMULA}"),
            )
            .build()
    }
}
