//! Bursts are too large for a queue, or too small for efficient polling.

use linerate_record::finding::{Finding, FindingLocation};
use linerate_record::ids::{CauseId, LossPoint};
use linerate_record::plan::{RunKind, TransportProtocol};
use linerate_stats::units::{format_bytes, format_share};

use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, percent};
use crate::run_view::{DirectionView, RunView, format_rate_option};

/// Frames per poll from which the cost of the poll is small
/// (docs/method/defaults.md#constants-of-estimates).
pub(super) const LARGE_BURST_FRAMES: u32 = 8;

/// Cost of a poll in frames: with bursts of 1 a ring forwards about a third of what it forwards
/// with 32.
pub(super) const POLL_COST_FRAMES: f64 = 2.0;

/// Part of the rounds up to which polls that find no frame are rare: one in three.
pub(super) const IDLE_PART: u64 = 3;

/// Largest use of a known rate at which the average rate fits.
const MAX_RATE_USE: f64 = 0.9;

/// Bursts that a sufficient receive buffer holds.
const BUFFERED_BURSTS: u64 = 2;

/// Part of the loss at the receiving socket from which its buffer decides.
const SOCKET_LOSS_PART: f64 = 2.0;

/// Part of the loss that is the cost, if no counter shows a queue.
const HIDDEN_COST_PART: f64 = 2.0;

/// Smallest loss share that matters.
const MIN_RELEVANT_SHARE: f64 = 0.001;

/// See docs/CAUSES.md#burst-size.
pub struct BurstSize;

impl Rule for BurstSize {
    fn id(&self) -> CauseId {
        CauseId::BurstSize
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "Too much is sent at once, or too little is moved by one poll.",
            shown_when: vec![
                detection(
                    "UDP in bursts, `-b RATE/BURST`",
                    [
                        format!("{} or more is lost", percent(MIN_RELEVANT_SHARE)),
                        format!(
                            "the average rate fits: less than {} of every known rate",
                            percent(MAX_RATE_USE)
                        ),
                        format!(
                            "the receive buffer holds less than {BUFFERED_BURSTS} bursts, or less \
                             than {} of the loss is there",
                            percent(1.0 / SOCKET_LOSS_PART)
                        ),
                    ],
                ),
                detection(
                    "`forward`",
                    [
                        format!("`--burst` is below {LARGE_BURST_FRAMES}"),
                        format!("one in {IDLE_PART} rounds at most finds no frame"),
                    ],
                ),
            ],
            evidence: &[
                ("burst", "frames"),
                ("rounds", "rounds"),
                ("idle_rounds", "rounds"),
                ("burst", "B"),
                ("rate_bps", "bit/s"),
                ("loss_fraction", "share"),
                ("SO_RCVBUF", "B"),
            ],
            cost: vec![
                "Lost share.".into(),
                format!(
                    "{} of it if no counter shows where: the loss may be random, so \
                     [path-loss](#path-loss) is first.",
                    percent(1.0 / HIDDEN_COST_PART)
                ),
                format!("`forward`: a poll costs as much as {POLL_COST_FRAMES} frames."),
            ],
            remedy: vec![
                "Send single datagrams (`-b RATE/1`), or provide a queue that holds a burst."
                    .into(),
                "`forward`: use `--burst 32`.".into(),
            ],
            wrong_when: vec![
                "bursts of the application are the subject of the test".into(),
                "the path also loses single datagrams".into(),
            ],
            ..CauseReference::cause()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        match run.plan.kind {
            RunKind::Forward => self.evaluate_polls(run).into_iter().collect(),
            RunKind::Throughput => {
                let directions = run.throughput_directions(TransportProtocol::Udp);
                directions
                    .filter_map(|direction| self.evaluate_datagrams(run, direction))
                    .collect()
            }
            _ => Vec::new(),
        }
    }
}

impl BurstSize {
    fn evaluate_polls(&self, run: &RunView<'_>) -> Option<Finding> {
        let plan = run.plan.forward.as_ref()?;
        let figures = run.record.forward.as_ref()?;
        let rounds: u64 = figures.cores.iter().map(|core| core.rounds).sum();
        let idle: u64 = figures.cores.iter().map(|core| core.idle_rounds).sum();
        if plan.burst >= LARGE_BURST_FRAMES
            || plan.burst == 0
            || rounds == 0
            || idle * IDLE_PART > rounds
        {
            return None;
        }
        let burst = f64::from(plan.burst);
        let share = (POLL_COST_FRAMES / burst) / (1.0 + POLL_COST_FRAMES / burst);
        FindingBuilder::cause(self.id(), FindingLocation::Both)
            .cost(share)
            .summary(format!(
                "each poll moves at most {} frames, and nearly every poll found some: polling is \
                 {} of the work",
                plan.burst,
                format_share(share)
            ))
            .evidence("burst", plan.burst, "frames", "plan")
            .evidence("rounds", rounds, "rounds", "forwarding threads")
            .evidence("idle_rounds", idle, "rounds", "forwarding threads")
            .remedy("move more frames per poll")
            .command(run.rerun_command("--burst 32"))
            .tried(Some(format!("--burst {}", plan.burst)))
            .estimated_gain(
                Some((1.0 + POLL_COST_FRAMES / burst) / (1.0 + POLL_COST_FRAMES / 32.0)),
                "a frame costs 1 + 2 / burst (docs/method/defaults.md)",
            )
            .build()
    }

    /// A paced flow sends bursts that the next queue cannot hold.
    fn evaluate_datagrams(
        &self,
        run: &RunView<'_>,
        direction: &DirectionView<'_>,
    ) -> Option<Finding> {
        let plan = run.plan;
        let rate = plan.rate_bps?;
        if !plan.pace.has_bursts(plan.payload_bytes) {
            return None;
        }
        let burst = plan.pace.burst_bytes(plan.payload_bytes);
        let in_queues = [
            LossPoint::UdpReceiveQueue,
            LossPoint::Qdisc,
            LossPoint::InterfaceRx,
            LossPoint::InterfaceTx,
        ]
        .map(|point| direction.lost_share(point))
        .into_iter()
        .fold(
            direction.sender_socket_drops() as f64 / direction.packets_sent(),
            f64::max,
        );
        // Loss that no visible queue counted may be random: then the loss itself is the first
        // cause.
        let path_loss = direction.lost_share(LossPoint::Path);
        let is_counted = in_queues >= path_loss;
        let lost = in_queues.max(path_loss);
        // The average rate is below the limits.
        let fits_on_average = direction
            .shaper_share()
            .is_none_or(|share| share < MAX_RATE_USE)
            && direction
                .line_share()
                .is_none_or(|share| share < MAX_RATE_USE);
        let exceeds_buffer = direction
            .receive_buffer()
            .is_some_and(|buffer_bytes| burst * BUFFERED_BURSTS > buffer_bytes);
        if lost < MIN_RELEVANT_SHARE
            || !fits_on_average
            || !(exceeds_buffer
                || direction.lost_share(LossPoint::UdpReceiveQueue) < lost / SOCKET_LOSS_PART)
        {
            return None;
        }
        // If the buffer holds the burst, the loss has another cause.
        let role = direction.sender;
        FindingBuilder::cause(self.id(), role)
            .direction(direction.direction)
            .cost(if is_counted {
                lost + 1e-4
            } else {
                lost / HIDDEN_COST_PART
            })
            .summary(format!(
                "datagrams are sent in bursts of {}, and {} of them are lost although the average \
                 rate fits{}",
                format_bytes(burst),
                format_share(lost),
                if is_counted {
                    ""
                } else {
                    "; no counter shows where: the bursts may be the cause"
                }
            ))
            .evidence("burst", burst, "B", "plan")
            .evidence("rate_bps", rate, "bit/s", "plan")
            .evidence_if(
                "loss_fraction",
                direction.summary().loss_fraction,
                "share",
                "receiver",
            )
            .evidence_if(
                "SO_RCVBUF",
                direction.receive_buffer(),
                "B",
                format!("{} socket", direction.receiver.as_str()),
            )
            .remedy(
                "send single datagrams at that rate, or enlarge the queue that drops them to hold \
                 a burst",
            )
            // A high rate alone has bursts by default.
            .command(run.rerun_command(&format!("-b {}/1", format_rate_option(rate as f64))))
            .gain(Some(1.0 / (1.0 - lost).max(0.01)), "1 / (1 - share lost)")
            .build()
    }
}
