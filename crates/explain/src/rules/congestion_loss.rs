//! Segments are lost in a full queue on the path.

use linerate_metric::finding::{End, Finding};
use linerate_metric::plan::Protocol;
use linerate_metric::units::format_share;

use super::{is_paced, sent_again, tcp_info};
use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, DROPS, MATHIS, Tcp, Way, name, rate_word};

/// Smallest loss share that matters: by Mathis' formula it limits a stream of 1448 B segments on a
/// path of 1 ms to 450 Mb/s.
pub(super) const MATTERS: f64 = 0.001;

/// Fewest lost segments; fewer are noise.
pub(super) const FEW: u64 = 10;

/// Share of queueing in the round-trip time from which queues cause the loss.
pub(super) const QUEUED: f64 = 0.5;

/// Sysctl of selective acknowledgements (RFC 2018). Without them one lost segment is repaired per
/// round trip, a loss at the end of a window needs a timeout, and duplicates are not reported.
pub(super) const SELECTIVE: &str = "net.ipv4.tcp_sack";

/// Adds the remedy of enabling selective acknowledgements, which comes before any other.
pub(super) fn selective(draft: Draft, case: &Case<'_>, way: &Way<'_>, tcp: &Tcp) -> Draft {
    let ends = case.off_at(SELECTIVE);
    if ends.is_empty() {
        return draft;
    }
    let draft = ends.iter().fold(draft, |draft, &role| {
        draft.seen(SELECTIVE, 0_u64, "", format!("{} sysctl", name(role)))
    });
    draft
        .seen("timeouts", tcp.timeouts, "", tcp_info(way.sender))
        .remedy(
            "first enable selective acknowledgements (SACK) at both ends: without them only one \
             lost segment is repaired per round trip, others wait for timeouts of 200 ms or more, \
             and unnecessary retransmits are not reported",
        )
        .command(case.switched_on(&ends, SELECTIVE))
}

/// See docs/CAUSES.md#congestion-loss.
pub struct CongestionLoss;

impl Rule for CongestionLoss {
    fn id(&self) -> &'static str {
        "congestion-loss"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        let ways = case.throughput(Protocol::Tcp);
        ways.filter_map(|way| self.of(case, way)).collect()
    }
}

/// Returns the packets that counters on the path report as dropped.
pub(super) fn dropped_in_view(case: &Case<'_>) -> u64 {
    DROPS
        .iter()
        .filter_map(|counter| case.added(counter, |_, _| true))
        .sum()
}

/// Returns the share of the time in which only the congestion window limited the sender.
pub(super) fn held_by_congestion(tcp: &Tcp) -> f64 {
    (tcp.busy.unwrap_or(1.0) - tcp.receive_window - tcp.send_buffer).clamp(0.0, 1.0)
}

/// Returns the rate of a stream with this loss share in bit/s (Mathis, Semke, Mahdavi, Ott, CCR
/// 1997).
pub(super) fn mathis(tcp: &Tcp, loss: f64, flows: usize) -> f64 {
    let segment_rate = MATHIS / loss.max(1e-9).sqrt() / (tcp.rtt_ns / 1e9).max(1e-9);
    segment_rate * tcp.mss * 8.0 * flows.max(1) as f64
}

impl CongestionLoss {
    fn of(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let tcp = way.tcp()?;
        let (loss, lost) = (tcp.loss(), tcp.retransmits.saturating_sub(tcp.spurious));
        let dropped = dropped_in_view(case);
        // If every queue is visible, one of them must have counted drops.
        let out_of_view = !case.one_machine();
        let queued = dropped >= lost / 2 || dropped > 0 && tcp.queueing() >= QUEUED;
        let queued = queued || out_of_view && tcp.queueing() >= QUEUED;
        let reordered = tcp.spurious * 2 >= tcp.retransmits;
        if loss < MATTERS || lost < FEW || !queued || reordered {
            return None;
        }
        let each = 0.95 * way.goodput()? / way.streams().len().max(1) as f64;
        let full = way.fills_path() || is_paced(case);
        let draft = Draft::limit_if(full, self.id(), End::Path)
            .way(way.direction)
            .cost(if full {
                loss
            } else {
                held_by_congestion(&tcp).min(0.9)
            })
            .says(format!(
                "{} of the segments were lost in a full queue: {}",
                format_share(loss),
                match full {
                    true => "the path is saturated",
                    false => "it is shorter than the burst of one window",
                }
            ));
        let draft = sent_again(draft, way.sender, &tcp)
            .seen(
                "drops on the path",
                dropped,
                "packets",
                "counters of both ends",
            )
            .remedy(
                "enlarge the queue before the slowest link, or send smaller bursts (a smaller \
                 window, or pacing by the kernel)",
            )
            .command(match (case.is_own_stack(way.sender), is_paced(case)) {
                (false, false) => case.again(&format!("-b {} --pacing socket", rate_word(each))),
                _ => case.again(&format!("-b {}", rate_word(each))),
            })
            .gain(
                (!full).then_some(std::f64::consts::SQRT_2),
                "Mathis: MSS / RTT * 1.22 / sqrt(loss); half the loss gives sqrt(2)",
            );
        selective(draft, case, way, &tcp).found()
    }
}
