//! Segments are lost in a full queue on the path.

use linerate_record::finding::{Finding, FindingLocation};
use linerate_record::ids::CauseId;
use linerate_record::plan::TransportProtocol;
use linerate_stats::units::format_share;

use super::{is_paced, tcp_info_source, with_retransmits};
use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, percent};
use crate::run_view::{
    DROP_COUNTERS, DirectionView, MATHIS_FACTOR, RunView, TcpSummary, format_rate_option,
};

/// Smallest loss share that matters: by Mathis' formula it limits a stream of 1448 B segments on a
/// path of 1 ms to 450 Mb/s.
pub(super) const MIN_RELEVANT_SHARE: f64 = 0.001;

/// Fewest lost segments; fewer are noise.
pub(super) const MIN_LOST_SEGMENTS: u64 = 10;

/// Share of queueing in the round-trip time from which queues cause the loss.
pub(super) const MIN_QUEUEING_SHARE: f64 = 0.5;

/// Part of the lost segments that counters must have dropped: one in two.
const COUNTED_PART: u64 = 2;

/// Part of the retransmits from which unnecessary ones are reordering: one in two.
const REORDERED_PART: u64 = 2;

/// Largest cost: a sender without any loss also needs its slow start.
const MAX_COST: f64 = 0.9;

/// Sysctl of selective acknowledgements (RFC 2018). Without them one lost segment is repaired per
/// round trip, a loss at the end of a window needs a timeout, and duplicates are not reported.
pub(super) const SACK_SYSCTL: &str = "net.ipv4.tcp_sack";

/// Adds the remedy of enabling selective acknowledgements, which comes before any other.
pub(super) fn with_sack_remedy(
    builder: FindingBuilder,
    run: &RunView<'_>,
    direction: &DirectionView<'_>,
    tcp: &TcpSummary,
) -> FindingBuilder {
    let ends = run.ends_without(SACK_SYSCTL);
    if ends.is_empty() {
        return builder;
    }
    let builder = ends.iter().fold(builder, |builder, &role| {
        builder.evidence(SACK_SYSCTL, 0_u64, "", format!("{} sysctl", role.as_str()))
    });
    builder
        .evidence(
            "timeouts",
            tcp.timeouts,
            "",
            tcp_info_source(direction.sender),
        )
        .remedy(
            "first enable selective acknowledgements (SACK) at both ends: without them only one \
             lost segment is repaired per round trip, others wait for timeouts of 200 ms or more, \
             and unnecessary retransmits are not reported",
        )
        .command(run.enable_command(&ends, SACK_SYSCTL))
}

/// See docs/CAUSES.md#congestion-loss.
pub struct CongestionLoss;

impl Rule for CongestionLoss {
    fn id(&self) -> CauseId {
        CauseId::CongestionLoss
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "Segments are lost in a full queue on the path.",
            shown_when: vec![detection(
                "TCP",
                [
                    format!(
                        "{MIN_LOST_SEGMENTS} or more needed retransmits, and {} of the segments \
                         or more",
                        percent(MIN_RELEVANT_SHARE)
                    ),
                    format!(
                        "less than {} of the retransmits were unnecessary",
                        percent(1.0 / REORDERED_PART as f64)
                    ),
                    format!(
                        "counters on the path have {} of the lost segments or more; or queueing \
                         takes {} of the round-trip time or more",
                        percent(1.0 / COUNTED_PART as f64),
                        percent(MIN_QUEUEING_SHARE)
                    ),
                    "queueing counts with a drop in a counter, or if a queue may be hidden \
                     between two machines"
                        .into(),
                ],
            )],
            limit_when: vec!["the path is full".into(), "a rate was requested".into()],
            evidence: &[
                ("tcpi_total_retrans", "segments"),
                ("tcpi_dsack_dups", "segments"),
                ("tcpi_rtt", "ns"),
                ("tcpi_min_rtt", "ns"),
                ("drops on the path", "packets"),
                (SACK_SYSCTL, ""),
                ("timeouts", ""),
            ],
            cost: vec![
                format!(
                    "Share of the time in which only the congestion window limits the sender, {} \
                     at most.",
                    percent(MAX_COST)
                ),
                "As a limit the lost share: TCP finds the rate of a path by losing segments."
                    .into(),
            ],
            remedy: vec![
                format!(
                    "Enable `{SACK_SYSCTL}` first if it is off at an end, as for \
                     [path-loss](#path-loss)."
                ),
                "Enlarge the queue before the slowest link, or send smaller bursts.".into(),
                "Let the kernel pace below the received rate (`-b RATE --pacing socket`).".into(),
            ],
            wrong_when: vec!["loss and queues are at different places".into()],
            ..CauseReference::cause()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        let directions = run.throughput_directions(TransportProtocol::Tcp);
        directions
            .filter_map(|direction| self.evaluate_direction(run, direction))
            .collect()
    }
}

/// Returns the packets that counters on the path report as dropped.
pub(super) fn counted_drops(run: &RunView<'_>) -> u64 {
    DROP_COUNTERS
        .iter()
        .filter_map(|counter| run.counter_increase(counter, |_, _| true))
        .sum()
}

/// Returns the share of the time in which only the congestion window limited the sender.
pub(super) fn cwnd_limited_share(tcp: &TcpSummary) -> f64 {
    (tcp.busy_share.unwrap_or(1.0) - tcp.receive_window_limited - tcp.send_buffer_limited)
        .clamp(0.0, 1.0)
}

/// Returns the rate of a stream with this loss share in bit/s (Mathis, Semke, Mahdavi, Ott, CCR
/// 1997).
pub(super) fn mathis_bps(tcp: &TcpSummary, loss: f64, flows: usize) -> f64 {
    let segment_rate = MATHIS_FACTOR / loss.max(1e-9).sqrt() / (tcp.rtt_ns / 1e9).max(1e-9);
    segment_rate * tcp.mss_bytes * 8.0 * flows.max(1) as f64
}

impl CongestionLoss {
    fn evaluate_direction(
        &self,
        run: &RunView<'_>,
        direction: &DirectionView<'_>,
    ) -> Option<Finding> {
        let tcp = direction.tcp()?;
        let (loss, lost) = (
            tcp.loss_share(),
            tcp.retransmits.saturating_sub(tcp.spurious_retransmits),
        );
        let dropped = counted_drops(run);
        // If every queue is visible, one of them must have counted drops.
        let has_hidden_queues = !run.is_one_machine();
        let has_queue = dropped >= lost / COUNTED_PART
            || dropped > 0 && tcp.queueing_share() >= MIN_QUEUEING_SHARE;
        let has_queue =
            has_queue || has_hidden_queues && tcp.queueing_share() >= MIN_QUEUEING_SHARE;
        let is_reordering = tcp.spurious_retransmits * REORDERED_PART >= tcp.retransmits;
        if loss < MIN_RELEVANT_SHARE || lost < MIN_LOST_SEGMENTS || !has_queue || is_reordering {
            return None;
        }
        let each = 0.95 * direction.goodput()? / direction.streams().len().max(1) as f64;
        let full = direction.fills_path() || is_paced(run);
        let builder = FindingBuilder::limit_if(full, self.id(), FindingLocation::Path)
            .direction(direction.direction)
            .cost(if full {
                loss
            } else {
                cwnd_limited_share(&tcp).min(MAX_COST)
            })
            .summary(format!(
                "{} of the segments were lost in a full queue: {}",
                format_share(loss),
                match full {
                    true => "the path is saturated",
                    false => "it is shorter than the burst of one window",
                }
            ));
        let builder = with_retransmits(builder, direction.sender, &tcp)
            .evidence(
                "drops on the path",
                dropped,
                "packets",
                "counters of both ends",
            )
            .remedy(
                "enlarge the queue before the slowest link, or send smaller bursts (a smaller \
                 window, or pacing by the kernel)",
            )
            .command(match (run.uses_netstack(direction.sender), is_paced(run)) {
                (false, false) => {
                    run.rerun_command(&format!("-b {} --pacing socket", format_rate_option(each)))
                }
                _ => run.rerun_command(&format!("-b {}", format_rate_option(each))),
            })
            .estimated_gain(
                (!full).then_some(std::f64::consts::SQRT_2),
                "Mathis: MSS / RTT * 1.22 / sqrt(loss); half the loss gives sqrt(2)",
            );
        with_sack_remedy(builder, run, direction, &tcp).build()
    }
}
