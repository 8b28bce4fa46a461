//! The path is long: windows or requests wait for round trips.

use linerate_metric::facts::Role;
use linerate_metric::finding::{End, Finding};
use linerate_metric::plan::Protocol;
use linerate_metric::units::{format_bytes, format_nanos};

use super::receive_window::SHORT_NS;
use super::{HEADROOM, headroom, is_paced, tcp_info, within_headroom};
use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, Way};

/// Round-trip time from which a path counts as long: idle neighbouring hosts stay below it.
const LONG_NS: u64 = 1_000_000;

/// Smallest share of the time limited by a window that matters.
const MATTERS: f64 = 0.2;

/// Assumed speedup on a path of unknown rate.
const FURTHER: f64 = 8.0;

/// Largest suggested buffer: twice 10 Gb/s over 100 ms.
const MOST_BYTES: u64 = 256 << 20;

/// See docs/CAUSES.md#path-delay.
pub struct PathDelay;

impl Rule for PathDelay {
    fn id(&self) -> &'static str {
        "path-delay"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        let ways = case.throughput(Protocol::Tcp);
        let mut found: Vec<_> = ways.filter_map(|way| self.of(case, way)).collect();
        found.extend(self.of_round_trips(case));
        found
    }
}

impl PathDelay {
    fn of(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let tcp = way.tcp()?;
        if tcp.min_rtt_ns < SHORT_NS
            || way.fills_path()
            || is_paced(case)
            || super::is_saturated(way)
        {
            return None;
        }
        let goodput = way.goodput()?;
        let in_flight = goodput / 8.0 * tcp.rtt_ns / 1e9;
        let windows = tcp.receive_window + tcp.send_buffer;
        // If no window is full and loss does not limit it, the congestion window is still growing,
        // round trip by round trip.
        let starting = windows < MATTERS
            && !(way.heeds_loss() && tcp.loss() >= 0.0005 && way.is_cut_by(&tcp, tcp.loss()));
        let held = match starting {
            true => super::congestion_loss::held_by_congestion(&tcp),
            false => windows.min(1.0),
        };
        if held < MATTERS || windows < MATTERS && !starting {
            return None;
        }
        // Windows without scaling are not a matter of buffer size.
        if !super::receive_window::unscaled(case).is_empty() && tcp.receive_window >= MATTERS {
            return None;
        }
        let known = way.share_of_line().or(way.share_of_shape()).is_some();
        let further = if known { f64::INFINITY } else { FURTHER };
        let aim = headroom(way).unwrap_or(1.0).min(further) * goodput;
        let needed = (aim / 8.0 * tcp.min_rtt_ns / 1e9) as u64;
        let flows = way.streams().len().max(1) as u64;
        let most = most_of_memory(case, flows);
        let larger = (2 * needed / flows)
            .max(4 << 20)
            .next_power_of_two()
            .min(most);
        // The windows of our stack have their configured size.
        let ends = [
            (way.sender, "tcp.send_buffer"),
            (way.receiver, "tcp.receive_window"),
        ];
        let own = ends.into_iter().find(|(role, _)| way.is_own_stack(*role));
        Draft::limit_if(starting, self.id(), End::Path)
            .way(way.direction)
            .cost(held)
            .says(match starting {
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
            .seen(
                "tcpi_min_rtt",
                tcp.min_rtt_ns.round(),
                "ns",
                tcp_info(way.sender),
            )
            .seen("tcpi_rtt", tcp.rtt_ns.round(), "ns", tcp_info(way.sender))
            .seen("in flight", in_flight.round(), "B", "goodput * tcpi_rtt")
            .seen(
                "tcpi_rwnd_limited",
                tcp.receive_window,
                "share",
                tcp_info(way.sender),
            )
            .seen(
                "tcpi_sndbuf_limited",
                tcp.send_buffer,
                "share",
                tcp_info(way.sender),
            )
            .seen(
                "tcpi_snd_cwnd",
                tcp.cwnd_bytes.round(),
                "B",
                tcp_info(way.sender),
            )
            .seen_if("SO_RCVBUF", way.receive_buffer(), "B", "receiver socket")
            .seen_if("SO_SNDBUF", way.send_buffer(), "B", "sender socket")
            .remedy(match starting {
                true => {
                    "measure longer, or omit the start (-O); several flows start faster than one"
                }
                false if larger == most => {
                    "raise the buffer limits of both ends (a larger buffer per flow would use too \
                     much of their memory), and use several flows"
                }
                false if known => {
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
                true => case.again(&format!("-t {} -O 5", longer_s(case))),
                false if own.is_some() => case.again_with_key(
                    own.map_or(way.sender, |(role, _)| role),
                    own.map_or("", |(_, key)| key),
                    &format!("{}M", larger >> 20),
                ),
                false => larger_windows(case, way, larger).unwrap_or_else(|| {
                    case.again(&format!("-P {}", (2 * case.plan.streams).max(4)))
                }),
            })
            .tried(
                case.plan
                    .window_bytes
                    .map(|asked| format!("-w {}", format_bytes(asked))),
            )
            // On a path of unknown rate the final congestion window is unknown: its current value
            // is the minimum.
            .gain(
                within_headroom(way, 1.0 / (1.0 - held).max(0.01)).filter(|_| known || !starting),
                format!(
                    "window / round-trip time: 1 / (1 - share limited by windows), at most \
                     {HEADROOM}"
                ),
            )
            .found()
    }

    fn of_round_trips(&self, case: &Case<'_>) -> Option<Finding> {
        if !case.is_latency() {
            return None;
        }
        let rtt = case.record.summary.rtt_ns?;
        if rtt.min < LONG_NS {
            return None;
        }
        // If a kernel reported a far shorter path, the delay has another cause.
        if super::delayed_ack::told_path_ns(case).is_some_and(|path| path < rtt.min / 4) {
            return None;
        }
        // The poll interval of our stack may be the delay.
        let sleeps = [Role::Client, Role::Server]
            .into_iter()
            .filter_map(|role| case.poll_interval_ns(role));
        if sleeps.fold(0.0, f64::max) > rtt.min as f64 / 2.0 {
            return None;
        }
        let share = rtt.min as f64 / rtt.p50.max(1) as f64;
        Draft::limit(self.id(), End::Path)
            .cost(share)
            .says(format!(
                "no round trip took less than {}: the delay of the path, with the response time \
                 of the server",
                format_nanos(rtt.min as f64)
            ))
            .seen("rtt_ns.min", rtt.min, "ns", "client")
            .seen("rtt_ns.p50", rtt.p50, "ns", "client")
            .remedy("keep several requests outstanding: they hide the delay")
            .command(case.again(&format!(
                "--outstanding {}",
                (2 * case.plan.round_trip.outstanding).max(8)
            )))
            .tried(
                (case.plan.round_trip.outstanding > 1)
                    .then(|| format!("--outstanding {}", case.plan.round_trip.outstanding)),
            )
            .found()
    }
}

/// Returns the largest buffer of one flow: all buffers of all flows together take at most a 16th of
/// the smaller end's memory, and each at most 256 MiB.
fn most_of_memory(case: &Case<'_>, flows: u64) -> u64 {
    let ends = [Role::Client, Role::Server].into_iter();
    let memory = ends.filter_map(|role| case.host(role)?.memory_bytes).min();
    let share = memory.map_or(MOST_BYTES, |memory| {
        (memory / 16 / 2 / flows).clamp(1 << 20, MOST_BYTES)
    });
    // Largest power of two within it.
    1 << share.ilog2()
}

/// Returns twice the duration of the run in seconds, at least 30.
fn longer_s(case: &Case<'_>) -> u64 {
    let asked = case.plan.duration_ns.unwrap_or(0);
    (2 * asked).div_ceil(1_000_000_000).max(30)
}

/// Returns the command that raises the buffer limits of both ends to `larger`; `None` if both are
/// high enough.
fn larger_windows(case: &Case<'_>, way: &Way<'_>, larger: u64) -> Option<String> {
    let sends = case.raise(way.sender, "net.ipv4.tcp_wmem", larger);
    let receives = case.raise(way.receiver, "net.ipv4.tcp_rmem", larger);
    match (sends, receives) {
        (Some(sends), Some(receives)) => Some(format!("{receives}; {sends}")),
        (sends, receives) => receives.or(sends),
    }
}
