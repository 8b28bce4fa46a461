//! A small segment waits until all earlier data is acknowledged (RFC 896).

use linerate_record::finding::Finding;
use linerate_record::ids::CauseId;
use linerate_record::plan::TransportProtocol;
use linerate_stats::units::{format_bytes, format_nanos};

use super::delayed_ack::smallest_buffer_stall;
use super::{HEADROOM_FORMULA, tcp_info_source, within_headroom};
use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, duration, percent};
use crate::run_view::{DirectionView, RunView};

/// Time of a transfer over the round-trip time from which each transfer waits for one, and shortest
/// such time, ns.
const MIN_ROUND_TRIP_SHARE: f64 = 0.7;
const MIN_TRANSFER_NS: f64 = 1e6;

/// See docs/CAUSES.md#nagle.
pub struct Nagle;

impl Rule for Nagle {
    fn id(&self) -> CauseId {
        CauseId::Nagle
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "A write of less than a segment waits until all earlier data is acknowledged \
                      (RFC 896).",
            shown_when: vec![detection(
                "TCP",
                [
                    "the smallest of send buffer and write is smaller than a segment".into(),
                    format!(
                        "one of them is in flight at a time: each takes more than {} of the \
                         round-trip time",
                        percent(MIN_ROUND_TRIP_SHARE)
                    ),
                    format!("each takes more than {}", duration(MIN_TRANSFER_NS)),
                ],
            )],
            not_when: vec![
                "TCP_NODELAY is on".into(),
                "a rate was requested".into(),
                "the path is full".into(),
                "the receive window is smaller than buffer and write".into(),
            ],
            evidence: &[
                ("payload_bytes", "B"),
                ("SO_SNDBUF", "B"),
                ("tcpi_snd_mss", "B"),
                ("time per transfer", "ns"),
                ("tcpi_rtt", "ns"),
                ("TCP_NODELAY", ""),
            ],
            cost: vec![
                "Share of the time of a transfer beyond the minimum round-trip time.".into(),
            ],
            notes: vec![
                "Typical of embedded stacks, whose send buffer is smaller than a segment.".into(),
            ],
            remedy: vec![
                "Use `-N` (TCP_NODELAY), or `tcp.nagle=off` of the user-space stack.".into(),
                "Write more per call, with a buffer of several segments.".into(),
            ],
            wrong_when: vec![
                "the stack has Nagle's algorithm disabled and does not report it".into(),
            ],
            ..CauseReference::cause()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        if run.plan.socket.no_delay || super::is_paced(run) {
            return Vec::new();
        }
        let directions = run.throughput_directions(TransportProtocol::Tcp);
        directions
            .filter_map(|direction| self.evaluate_direction(run, direction))
            .collect()
    }
}

impl Nagle {
    fn evaluate_direction(
        &self,
        run: &RunView<'_>,
        direction: &DirectionView<'_>,
    ) -> Option<Finding> {
        let payload = run.plan.payload_bytes;
        let (bytes, stall_ns, buffer_name) = smallest_buffer_stall(direction, payload)?;
        let tcp = direction.tcp()?;
        // One write, or one full buffer, is in flight at a time, and it is smaller than a segment.
        let one_at_a_time =
            stall_ns > MIN_ROUND_TRIP_SHARE * tcp.rtt_ns && stall_ns > MIN_TRANSFER_NS;
        let by_sender = bytes < tcp.mss_bytes && buffer_name != "receive window";
        if !one_at_a_time || !by_sender || direction.fills_path() {
            return None;
        }
        let role = direction.sender;
        FindingBuilder::cause(self.id(), role)
            .direction(direction.direction)
            .cost(1.0 - (tcp.min_rtt_ns / stall_ns).min(1.0))
            .summary(format!(
                "one {buffer_name} of {} is in flight at a time, each for {}: a small segment waits for \
                 the acknowledgement of earlier data",
                format_bytes(bytes as u64),
                format_nanos(stall_ns)
            ))
            .evidence("payload_bytes", payload, "B", "plan")
            .evidence_if(
                "SO_SNDBUF",
                direction.send_buffer(),
                "B",
                format!("{} socket", role.as_str()),
            )
            .evidence("tcpi_snd_mss", tcp.mss_bytes.round(), "B", tcp_info_source(role))
            .evidence(
                "time per transfer",
                stall_ns.round(),
                "ns",
                format!("{buffer_name} / goodput"),
            )
            .evidence("tcpi_rtt", tcp.rtt_ns.round(), "ns", tcp_info_source(role))
            .evidence("TCP_NODELAY", "off", "", "plan")
            .remedy(
                "send small writes at once (TCP_NODELAY), or write more per call with a buffer of \
                 several segments",
            )
            .command(match direction.uses_netstack(role) {
                true => run.rerun_with_key(role, "tcp.nagle", "off"),
                false => run.rerun_command("-N"),
            })
            .estimated_gain(
                within_headroom(direction, stall_ns / tcp.min_rtt_ns.max(1.0)),
                format!("time per transfer over the minimum round-trip time, at most {HEADROOM_FORMULA}"),
            )
            .build()
    }
}
