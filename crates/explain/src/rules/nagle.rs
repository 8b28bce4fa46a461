//! A small segment waits until all earlier data is acknowledged (RFC 896).

use linerate_metric::finding::Finding;
use linerate_metric::plan::Protocol;
use linerate_metric::units::{format_bytes, format_nanos};

use super::delayed_ack::stall;
use super::{HEADROOM, tcp_info, within_headroom};
use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, Way, name};

/// See docs/CAUSES.md#nagle.
pub struct Nagle;

impl Rule for Nagle {
    fn id(&self) -> &'static str {
        "nagle"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        if case.plan.socket.no_delay || super::is_paced(case) {
            return Vec::new();
        }
        let ways = case.throughput(Protocol::Tcp);
        ways.filter_map(|way| self.of(case, way)).collect()
    }
}

impl Nagle {
    fn of(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let payload = case.plan.payload_bytes;
        let (bytes, took, what) = stall(way, payload)?;
        let tcp = way.tcp()?;
        // One write, or one full buffer, is in flight at a time, and it is smaller than a segment.
        let one_at_a_time = took > 0.7 * tcp.rtt_ns && took > 1e6;
        let by_sender = bytes < tcp.mss && what != "receive window";
        if !one_at_a_time || !by_sender || way.fills_path() {
            return None;
        }
        let role = way.sender;
        Draft::cause(self.id(), role)
            .way(way.direction)
            .cost(1.0 - (tcp.min_rtt_ns / took).min(1.0))
            .says(format!(
                "one {what} of {} is in flight at a time, each for {}: a small segment waits for \
                 the acknowledgement of earlier data",
                format_bytes(bytes as u64),
                format_nanos(took)
            ))
            .seen("payload_bytes", payload, "B", "plan")
            .seen_if(
                "SO_SNDBUF",
                way.send_buffer(),
                "B",
                format!("{} socket", name(role)),
            )
            .seen("tcpi_snd_mss", tcp.mss.round(), "B", tcp_info(role))
            .seen(
                "time per transfer",
                took.round(),
                "ns",
                format!("{what} / goodput"),
            )
            .seen("tcpi_rtt", tcp.rtt_ns.round(), "ns", tcp_info(role))
            .seen("TCP_NODELAY", "off", "", "plan")
            .remedy(
                "send small writes at once (TCP_NODELAY), or write more per call with a buffer of \
                 several segments",
            )
            .command(match way.is_own_stack(role) {
                true => case.again_with_key(role, "tcp.nagle", "off"),
                false => case.again("-N"),
            })
            .gain(
                within_headroom(way, took / tcp.min_rtt_ns.max(1.0)),
                format!("time per transfer over the minimum round-trip time, at most {HEADROOM}"),
            )
            .found()
    }
}
