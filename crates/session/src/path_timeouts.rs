//! Time-outs that follow from the round-trip time of the path.

use std::os::fd::AsRawFd;

use linerate_record::plan::{Plan, RunKind};
use linerate_sys::clock::Nanos;
use linerate_sys::socket::{read_tcp_info, read_unacknowledged_bytes};

/// Shortest time-out of a response that no option sets (RFC 6298 section 2.4).
pub const MIN_RESPONSE_TIMEOUT_NS: Nanos = 1_000_000_000;

/// Round trips of the path in the time-out: that of TCP after one measured round trip, with the
/// variation at half of it (RFC 6298 section 2.2).
const TIMEOUT_ROUND_TRIPS: Nanos = 3;

/// Step of the time-out: repeated runs on one path have the same plan.
const TIMEOUT_STEP_NS: Nanos = 1_000_000_000;

/// Returns the time after which a response counts as lost on a path with this round-trip time.
fn response_timeout_ns(rtt_ns: Nanos) -> Nanos {
    let timeout_ns = rtt_ns.saturating_mul(TIMEOUT_ROUND_TRIPS);
    MIN_RESPONSE_TIMEOUT_NS.max(timeout_ns.div_ceil(TIMEOUT_STEP_NS) * TIMEOUT_STEP_NS)
}

/// Sets the time-out of responses from the path, unless an option has set it.
pub fn resolve_response_timeout(plan: &mut Plan, rtt_ns: Option<Nanos>) {
    if plan.kind == RunKind::Latency {
        plan.response_timeout_ns
            .get_or_insert(response_timeout_ns(rtt_ns.unwrap_or(0)));
    }
}

/// Longest wait for a queue that no reading shows: 1 MB, as modems have, at 200 kb/s.
const HIDDEN_QUEUE_NS: Nanos = 45_000_000_000;

/// Returns the time by which a reply on a connection may be late because of the queues of its path;
/// 0 for another socket.
///
/// It is what TCP allows a round trip (RFC 6298 section 2.3: its time-out without the doubling), as
/// far as acknowledgements have arrived. While bytes of this end are unacknowledged, a queue that it
/// has filled with datagrams (`sends_datagrams`) looks like a dead path.
#[must_use]
pub fn path_delay_ns(connection: &impl AsRawFd, sends_datagrams: bool) -> Nanos {
    let allowed = read_tcp_info(connection).map_or(0, |info| {
        (u64::from(info.rtt_us) + 4 * u64::from(info.rtt_variation_us)) * 1_000
    });
    let is_unacknowledged =
        sends_datagrams && read_unacknowledged_bytes(connection).is_ok_and(|bytes| bytes > 0);
    allowed.max(if is_unacknowledged {
        HIDDEN_QUEUE_NS
    } else {
        0
    })
}

#[cfg(test)]
mod tests {
    use linerate_record::plan::TransportProtocol;

    use super::*;

    #[test]
    fn a_response_has_three_round_trips_and_at_least_a_second() {
        const MS: Nanos = 1_000_000;
        for (rtt, requested, expected) in [
            (None, None, 1_000),
            (Some(0), None, 1_000),
            (Some(333), None, 1_000),
            (Some(600), None, 2_000),
            (Some(1_400), None, 5_000),
            // An option decides, whatever the path.
            (Some(1_400), Some(200), 200),
        ] {
            let mut plan = Plan::new(RunKind::Latency, TransportProtocol::Udp, "far");
            // Without an option, the plan of a command leaves it open.
            if let Some(requested) = requested {
                plan.response_timeout_ns = Some(requested * MS);
            }
            resolve_response_timeout(&mut plan, rtt.map(|rtt| rtt * MS));
            assert_eq!(plan.response_timeout_ns, Some(expected * MS), "{rtt:?}");
        }
        let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Udp, "far");
        resolve_response_timeout(&mut plan, Some(MS));
        assert_eq!(plan.response_timeout_ns, None);
    }
}
