//! The receive window is too small.

use linerate_metric::facts::Role;
use linerate_metric::finding::Finding;
use linerate_metric::plan::Protocol;
use linerate_metric::record::CountedAt;
use linerate_metric::units::{format_bytes, format_share};

use super::{HEADROOM, WAITING_GAIN, is_paced, tcp_info, waiting_gain, within_headroom};
use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, Tcp, Way, name};

/// Smallest share of the time limited by the window that matters.
const MATTERS: f64 = 0.2;

/// Largest granted buffer that counts as small: kernels of the last ten years exceed it by
/// themselves once a stream flows (half of it is the middle number of net.ipv4.tcp_rmem).
pub(super) const SMALL: u64 = 256 << 10;

/// Largest granted buffer that holds only a few GSO packets.
const LITTLE: u64 = 64 << 10;

/// Longest round-trip time of a short path: a full-sized window does not limit it.
pub(super) const SHORT_NS: f64 = 2e6;

/// Goodput over window / round-trip time below which the window is closed by a slow reader, not by
/// its size.
pub(super) const CLOSED_BY_READER: f64 = 0.02;

/// Goodput over window / minimum round-trip time from which the window limits the sender.
const USED: f64 = 0.2;

/// The same limit for our stack, whose round trips under load take longer than the minimum. Windows
/// of 4 to 16 KiB gave 0.13 to 0.20, and 64 KiB gave 1.4 to 4 times the goodput; 64 KiB, where more
/// gave no gain, had 0.05.
const USED_OWN: f64 = 0.1;

/// Smallest share of the time limited by the window of our stack: most waits are shorter than the
/// kernel's resolution (0.13 to 0.58 with 1 to 16 KiB).
const MATTERS_OWN: f64 = 0.12;

/// Share of a window in flight from which it is full: while half of it is in flight, the other half
/// is read and advertised again.
const FILLED: f64 = 0.4;

/// Largest window without scaling (RFC 9293, section 3.1; RFC 7323).
const UNSCALED: u64 = 65_535;

/// Sysctls of window scaling, and of automatic receive buffer sizes.
const SCALING: &str = "net.ipv4.tcp_window_scaling";
const TUNING: &str = "net.ipv4.tcp_moderate_rcvbuf";

/// See docs/CAUSES.md#receive-window.
pub struct ReceiveWindow;

impl Rule for ReceiveWindow {
    fn id(&self) -> &'static str {
        "receive-window"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        if is_paced(case) {
            return Vec::new();
        }
        let ways = case.throughput(Protocol::Tcp);
        ways.filter_map(|way| match way.tcp() {
            Some(_) => self.of(case, way),
            None => self.of_foreign(case, way),
        })
        .collect()
    }
}

/// Returns the goodput over window / round-trip time.
pub(super) fn use_of_window(way: &Way<'_>) -> Option<f64> {
    let tcp = way.tcp()?;
    let bits = way.receive_buffer()? as f64 * 8.0 * way.streams().len().max(1) as f64;
    let through = bits / (tcp.rtt_ns / 1e9).max(1e-9);
    Some(way.goodput()? / through)
}

/// Returns the usable window of a kernel socket: half of the granted buffer, because the other half
/// is overhead; without scaling at most 65535 bytes.
fn takes(granted: u64, is_scaled: bool) -> u64 {
    match is_scaled {
        true => granted / 2,
        false => UNSCALED.min(granted / 2),
    }
}

/// Returns the ends whose kernel does not scale windows: one is enough to disable it for the
/// connection.
pub(super) fn unscaled(case: &Case<'_>) -> Vec<Role> {
    case.off_at(SCALING)
}

/// Returns the bytes in flight or not yet received by the application: goodput * round-trip time.
pub(super) fn on_its_way(way: &Way<'_>, tcp: &Tcp) -> f64 {
    way.goodput().unwrap_or(0.0) / 8.0 * tcp.rtt_ns / 1e9
}

impl ReceiveWindow {
    /// The sender is another tool without statistics: a small requested window and an idle receiver
    /// are the evidence.
    fn of_foreign(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let asked = case
            .plan
            .socket
            .receive_buffer_bytes
            .or(case.plan.window_bytes)?;
        let granted = way.receive_buffer()?;
        let free = way.time(CountedAt::Receiver)?.free();
        let foreign = case.far_is_foreign() && way.receiver == Role::Client;
        if !foreign || granted > LITTLE || free < MATTERS || way.fills_path() {
            return None;
        }
        let larger = 4 << 20;
        Draft::cause(self.id(), way.receiver)
            .way(way.direction)
            .cost(free)
            .says(format!(
                "the {} advertises a window of at most {}, and was idle for {} of the run",
                name(way.receiver),
                format_bytes(granted),
                format_share(free)
            ))
            .seen(
                "SO_RCVBUF",
                granted,
                "B",
                format!("{} socket", name(way.receiver)),
            )
            .seen(
                "idle time of the receiving threads",
                free,
                "share",
                super::schedstat(way.receiver),
            )
            .remedy(format!(
                "request a receive buffer larger than {}, or let the kernel choose the size",
                format_bytes(asked)
            ))
            .command(super::larger_buffer(
                case,
                "rcvbuf",
                case.plan.socket.receive_buffer_bytes,
                larger,
            ))
            .tried(Some(format!("a receive buffer of {}", format_bytes(asked))))
            .gain(
                within_headroom(way, waiting_gain(way, free, granted, larger)),
                format!("{WAITING_GAIN}, at most {HEADROOM}"),
            )
            .found()
    }

    fn of(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let tcp = way.tcp()?;
        if way.fills_path() {
            return None;
        }
        let granted = way.receive_buffer();
        let asked = case
            .plan
            .socket
            .receive_buffer_bytes
            .or(case.plan.window_bytes);
        let offered = way
            .senders()
            .filter_map(|socket| socket.tcp.as_ref()?.send_window_bytes)
            .min();
        // The last reading may have been a closed window: the data in flight did fit.
        let offered = offered.map(|offered| offered.max(on_its_way(way, &tcp) as u64));
        let unscaled = unscaled(case);
        // No size was requested, and the kernel does not change it.
        let stays = asked.is_none() && case.off_at(TUNING).contains(&way.receiver);
        let window = match unscaled.is_empty() {
            true => granted.or(offered)?,
            false => granted.or(offered)?.min(UNSCALED),
        };
        let is_known = asked.is_some() || stays || !unscaled.is_empty();
        let free = way.time(CountedAt::Receiver).map(|time| time.free());
        // The kernel hardly ever reports a sender as limited that works on each small part of the
        // window: the data in flight shows that the window is full.
        let flows = way.streams().len().max(1) as f64;
        let takes = granted.map_or(0, |granted| takes(granted, unscaled.is_empty()));
        let filled = on_its_way(way, &tcp) / (takes.max(1) as f64 * flows);
        let tells = way.stack(way.receiver) == "kernel" && takes > 0 && is_known && window <= SMALL;
        let filled = Some(filled).filter(|_| tells && free.is_some_and(|free| free > MATTERS));
        let held = match filled {
            Some(filled) if filled >= FILLED => tcp.receive_window.max(free.unwrap_or(0.0)),
            _ => tcp.receive_window,
        };
        let own = way.is_own_stack(way.receiver);
        if held < if own { MATTERS_OWN } else { MATTERS } {
            return None;
        }
        if window > SMALL {
            // A busy receiver closes its window, and a long path needs a large one.
            let idle = free.is_some_and(|free| free > 0.2);
            let by_reader = use_of_window(way).is_none_or(|share| share < CLOSED_BY_READER);
            let long = tcp.min_rtt_ns > SHORT_NS && !is_known;
            if !idle || by_reader || long {
                return None;
            }
        }
        // The idle time of a polling stack, or of another tool, is unknown: then the window is the
        // limit if it is used up within the path's round-trip time.
        let through =
            window as f64 * 8e9 * way.streams().len().max(1) as f64 / tcp.min_rtt_ns.max(1.0);
        let used = if own { USED_OWN } else { USED };
        if (own || free.is_none() && case.far_is_foreign()) && way.goodput()? < used * through {
            return None;
        }
        let role = way.receiver;
        let end = name(role);
        // Our stack allocates the window of each connection at its start.
        let larger = if own {
            (window * 8).max(64 << 10)
        } else {
            (window * 4).max(4 << 20)
        };
        // The kernel's limit may already permit the larger size: then it is not the cause.
        let raised = case.raise(role, "net.ipv4.tcp_rmem", larger);
        if !is_known && !own && raised.is_none() {
            return None;
        }
        let (remedy, command) = match (own, asked) {
            _ if !unscaled.is_empty() => (
                "enable window scaling at both ends: without it windows are limited to 64 KiB, \
                 whatever the buffer size"
                    .to_owned(),
                case.switched_on(&unscaled, SCALING),
            ),
            (false, None) if stays => (
                format!(
                    "enable automatic receive buffer sizes at the {end}, or request a size (-w)"
                ),
                case.at(
                    role,
                    &match case.raised(role, "net.ipv4.tcp_rmem", larger) {
                        Some(raised) => format!("sysctl -w {TUNING}=1 {raised}"),
                        None => format!("sysctl -w {TUNING}=1"),
                    },
                ),
            ),
            (true, _) => (
                format!(
                    "raise the receive window of our stack above {}",
                    format_bytes(window)
                ),
                case.again_with_key(role, "tcp.receive_window", &format!("{}K", larger >> 10)),
            ),
            (false, Some(asked)) => (
                format!(
                    "request a receive buffer larger than {} at the {end}, or let its kernel \
                     choose the size",
                    format_bytes(asked)
                ),
                super::larger_buffer(
                    case,
                    "rcvbuf",
                    case.plan.socket.receive_buffer_bytes,
                    larger,
                ),
            ),
            (false, None) => (
                format!("raise the receive buffer limit of the {end}'s kernel or stack"),
                // If the limit is unknown, the command shows it.
                match case.host(role) {
                    Some(_) => raised.unwrap_or_default(),
                    None => case.at(role, "sysctl net.ipv4.tcp_rmem"),
                },
            ),
        };
        let mut draft = Draft::cause(self.id(), role)
            .way(way.direction)
            .cost(held)
            .says(match filled.filter(|_| held > tcp.receive_window) {
                Some(filled) => format!(
                    "the {end}'s receive window was full: {} of {} were in flight, and the {end} \
                     was idle for {} of the run",
                    format_bytes((filled.min(1.0) * takes as f64) as u64),
                    format_bytes(takes),
                    format_share(held)
                ),
                None => format!(
                    "the sender waited for the {end}'s receive window for {} of the time",
                    format_share(held)
                ),
            })
            .seen(
                "tcpi_rwnd_limited",
                tcp.receive_window,
                "share",
                tcp_info(way.sender),
            )
            .seen_if("SO_RCVBUF", granted, "B", format!("{end} socket"))
            .seen_if("tcpi_snd_wnd", offered, "B", tcp_info(way.sender))
            .seen("tcpi_rtt", tcp.rtt_ns.round(), "ns", tcp_info(way.sender))
            .seen_if(
                "idle time of the receiving threads",
                free,
                "share",
                super::schedstat(role),
            );
        for &role in &unscaled {
            draft = draft.seen(SCALING, 0_u64, "", format!("{} sysctl", name(role)));
        }
        if stays {
            draft = draft.seen(TUNING, 0_u64, "", format!("{end} sysctl"));
        }
        draft
            .remedy(remedy)
            .command(command)
            .tried(asked.map(|asked| format!("a receive buffer of {}", format_bytes(asked))))
            .gain(
                within_headroom(way, waiting_gain(way, held, window, larger)),
                format!("{WAITING_GAIN}, at most {HEADROOM}"),
            )
            .found()
    }
}
