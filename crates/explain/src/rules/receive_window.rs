//! The receiver offers too small a window.

use linerate_metric::facts::Role;
use linerate_metric::finding::Finding;
use linerate_metric::plan::Protocol;
use linerate_metric::record::CountedAt;
use linerate_metric::units::{format_bytes, format_share};

use super::{HEADROOM, WAITING_GAIN, is_paced, tcp_info, waiting_gain, within_headroom};
use crate::Rule;
use crate::case::{Case, Tcp, Way, name};
use crate::draft::Draft;

/// Share of the time from which a window matters.
const MATTERS: f64 = 0.2;

/// A granted buffer up to this is small: no kernel of the last ten years ends below it by itself once a
/// stream flows (the middle number of net.ipv4.tcp_rmem is half of it).
pub(super) const SMALL: u64 = 256 << 10;

/// One up to this holds a few packets of many segments.
const LITTLE: u64 = 64 << 10;

/// A path is short up to this round-trip time: a full-sized window does not limit it.
pub(super) const SHORT_NS: f64 = 2e6;

/// Goodput over window / round-trip time below which something else than the window's size keeps it closed.
pub(super) const CLOSED_BY_READER: f64 = 0.02;

/// Share of window / least round-trip time from which the window is what holds the sender.
const USED: f64 = 0.2;

/// The same of our own stack: at work its round trips take longer than the least one. From 4 to 16 KiB it came to
/// 0.13 to 0.20, and 64 KiB gave 1.4 to 4 times more; of these 64 KiB, which more did not raise, to 0.05.
const USED_OWN: f64 = 0.1;

/// Share of the time from which a window matters of which so much is used: most waits are shorter than what the kernel
/// tells them by (0.13 to 0.58 with 1 to 16 KiB).
const MATTERS_OWN: f64 = 0.12;

/// Share of a window on its way from which it is full: while half of it travels the other half is read and offered
/// again.
const FILLED: f64 = 0.4;

/// What the window's field of a header holds without a scale (RFC 9293, section 3.1; RFC 7323).
const UNSCALED: u64 = 65_535;

/// Whether windows are scaled, and whether a kernel makes receive buffers larger by itself.
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

/// Goodput over what the window would let through: window / round-trip time.
pub(super) fn use_of_window(way: &Way<'_>) -> Option<f64> {
    let tcp = way.tcp()?;
    let bits = way.receive_buffer()? as f64 * 8.0 * way.streams().len().max(1) as f64;
    let through = bits / (tcp.rtt_ns / 1e9).max(1e-9);
    Some(way.goodput()? / through)
}

/// What a kernel's window takes: half of the granted buffer, the other half is its own overhead; unscaled no more than
/// its field holds.
fn takes(granted: u64, is_scaled: bool) -> u64 {
    match is_scaled {
        true => granted / 2,
        false => UNSCALED.min(granted / 2),
    }
}

/// The ends whose kernels scale no window: of one that does not, none is scaled.
pub(super) fn unscaled(case: &Case<'_>) -> Vec<Role> {
    case.off_at(SCALING)
}

/// Bytes under way, or not yet taken in by the receiver: goodput * round-trip time.
pub(super) fn on_its_way(way: &Way<'_>, tcp: &Tcp) -> f64 {
    way.goodput().unwrap_or(0.0) / 8.0 * tcp.rtt_ns / 1e9
}

impl ReceiveWindow {
    /// The sender is another program, of whose waiting nobody tells: a window that was asked for so small, and a
    /// receiver with time, tell as much.
    fn of_foreign(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let asked = case.plan.socket.receive_buffer_bytes.or(case.plan.window_bytes)?;
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
                "the {} offers a window of {} at most, and had time for more during {} of the run",
                name(way.receiver),
                format_bytes(granted),
                format_share(free)
            ))
            .seen("SO_RCVBUF", granted, "B", format!("{} socket", name(way.receiver)))
            .seen("free time of the receiving threads", free, "share", super::schedstat(way.receiver))
            .remedy(format!("ask for a larger receive buffer than {}, or let the kernel size it", format_bytes(asked)))
            .command(super::larger_buffer(case, "rcvbuf", case.plan.socket.receive_buffer_bytes, larger))
            .tried(Some(format!("a receive buffer of {}", format_bytes(asked))))
            .gain(within_headroom(way, waiting_gain(way, free, granted, larger)), format!("{WAITING_GAIN}, at most {HEADROOM}"))
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
        // It may have been closed when it was read last: what was on its way fitted.
        let offered = offered.map(|offered| offered.max(on_its_way(way, &tcp) as u64));
        let unscaled = unscaled(case);
        // Nobody asked for a size, and the kernel leaves it as it was.
        let stays = asked.is_none() && case.off_at(TUNING).contains(&way.receiver);
        let window = match unscaled.is_empty() {
            true => granted.or(offered)?,
            false => granted.or(offered)?.min(UNSCALED),
        };
        let is_known = asked.is_some() || stays || !unscaled.is_empty();
        let free = way.time(CountedAt::Receiver).map(|time| time.free());
        // A sender that works on each little piece that the window lets go is hardly ever told as waiting: what is on
        // its way shows that the window is full.
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
            // A receiver that has no time closes its window; a long path needs a large one.
            let idle = free.is_some_and(|free| free > 0.2);
            let by_reader = use_of_window(way).is_none_or(|share| share < CLOSED_BY_READER);
            let long = tcp.min_rtt_ns > SHORT_NS && !is_known;
            if !idle || by_reader || long {
                return None;
            }
        }
        // Our own stack polls, and another program does not tell, so that nobody knows whether they have time: the
        // window is the limit where it is used up within the path's own round trip.
        let through = window as f64 * 8e9 * way.streams().len().max(1) as f64 / tcp.min_rtt_ns.max(1.0);
        let used = if own { USED_OWN } else { USED };
        if (own || free.is_none() && case.far_is_foreign()) && way.goodput()? < used * through {
            return None;
        }
        let role = way.receiver;
        let end = name(role);
        // Our own stack has the window of each of its connections from the beginning.
        let larger = if own { (window * 8).max(64 << 10) } else { (window * 4).max(4 << 20) };
        // The kernel may make it as large already: then its limit is not what keeps it small.
        let raised = case.raise(role, "net.ipv4.tcp_rmem", larger);
        if !is_known && !own && raised.is_none() {
            return None;
        }
        let (remedy, command) = match (own, asked) {
            _ if !unscaled.is_empty() => (
                "let both ends scale their windows: without it none holds more than 64 KiB, however large the buffer is".to_owned(),
                case.switched_on(&unscaled, SCALING),
            ),
            (false, None) if stays => (
                format!("let the {end}'s kernel make receive buffers larger by itself, or ask for a size (-w)"),
                case.at(role, &match case.raised(role, "net.ipv4.tcp_rmem", larger) {
                    Some(raised) => format!("sysctl -w {TUNING}=1 {raised}"),
                    None => format!("sysctl -w {TUNING}=1"),
                }),
            ),
            (true, _) => (
                format!("let our stack take in more than {} before it is fetched", format_bytes(window)),
                case.again_with_key(role, "tcp.receive_window", &format!("{}K", larger >> 10)),
            ),
            (false, Some(asked)) => (
                format!(
                    "give the {end}'s socket a larger receive buffer than {}, or let its kernel size it",
                    format_bytes(asked)
                ),
                super::larger_buffer(case, "rcvbuf", case.plan.socket.receive_buffer_bytes, larger),
            ),
            (false, None) => (
                format!("raise the largest receive buffer of the {end}'s kernel, or of its stack"),
                // Where the host did not tell how large it is, the command shows it.
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
                    "the {end}'s receive window was full: {} were on their way of {} that it takes, and it had time for more during {} of the run",
                    format_bytes((filled.min(1.0) * takes as f64) as u64),
                    format_bytes(takes),
                    format_share(held)
                ),
                None => format!(
                    "the sender waited for the {end}'s receive window for {} of the time",
                    format_share(held)
                ),
            })
            .seen("tcpi_rwnd_limited", tcp.receive_window, "share", tcp_info(way.sender))
            .seen_if("SO_RCVBUF", granted, "B", format!("{end} socket"))
            .seen_if("tcpi_snd_wnd", offered, "B", tcp_info(way.sender))
            .seen("tcpi_rtt", tcp.rtt_ns.round(), "ns", tcp_info(way.sender))
            .seen_if("free time of the receiving threads", free, "share", super::schedstat(role));
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
