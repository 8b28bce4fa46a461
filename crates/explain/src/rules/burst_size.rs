//! Bursts are too large for a queue, or too small for efficient polling.

use linerate_metric::finding::{End, Finding};
use linerate_metric::plan::{Kind, Protocol};
use linerate_metric::units::{format_bytes, format_share};

use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, Way, name, rate_word};

/// Frames per poll from which the cost of the poll is small
/// (docs/method/defaults.md#constants-of-estimates).
pub(super) const ENOUGH: u32 = 8;

/// Cost of a poll in frames: with bursts of 1 a ring forwards about a third of what it forwards
/// with 32.
pub(super) const POLL: f64 = 2.0;

/// Smallest loss share that matters.
const MATTERS: f64 = 0.001;

/// See docs/CAUSES.md#burst-size.
pub struct BurstSize;

impl Rule for BurstSize {
    fn id(&self) -> &'static str {
        "burst-size"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        match case.plan.kind {
            Kind::Forward => self.of_polls(case).into_iter().collect(),
            Kind::Throughput => {
                let ways = case.throughput(Protocol::Udp);
                ways.filter_map(|way| self.of_datagrams(case, way))
                    .collect()
            }
            _ => Vec::new(),
        }
    }
}

impl BurstSize {
    fn of_polls(&self, case: &Case<'_>) -> Option<Finding> {
        let plan = case.plan.forward.as_ref()?;
        let figures = case.record.forward.as_ref()?;
        let rounds: u64 = figures.cores.iter().map(|core| core.rounds).sum();
        let idle: u64 = figures.cores.iter().map(|core| core.idle_rounds).sum();
        if plan.burst >= ENOUGH || plan.burst == 0 || rounds == 0 || idle * 3 > rounds {
            return None;
        }
        let burst = f64::from(plan.burst);
        let share = (POLL / burst) / (1.0 + POLL / burst);
        Draft::cause(self.id(), End::Both)
            .cost(share)
            .says(format!(
                "each poll moves at most {} frames, and nearly every poll found some: polling is \
                 {} of the work",
                plan.burst,
                format_share(share)
            ))
            .seen("burst", plan.burst, "frames", "plan")
            .seen("rounds", rounds, "rounds", "forwarding threads")
            .seen("idle_rounds", idle, "rounds", "forwarding threads")
            .remedy("move more frames per poll")
            .command(case.again("--burst 32"))
            .tried(Some(format!("--burst {}", plan.burst)))
            .gain(
                Some((1.0 + POLL / burst) / (1.0 + POLL / 32.0)),
                "a frame costs 1 + 2 / burst (docs/method/defaults.md)",
            )
            .found()
    }

    /// A paced flow sends bursts that the next queue cannot hold.
    fn of_datagrams(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let plan = case.plan;
        let rate = plan.rate_bps?;
        if !plan.pace.has_bursts(plan.payload_bytes) {
            return None;
        }
        let burst = plan.pace.burst_bytes(plan.payload_bytes);
        let in_queues = ["udp-receive-queue", "qdisc", "interface-rx", "interface-tx"]
            .iter()
            .map(|place| way.lost_share(place))
            .fold(way.lost_for_room() as f64 / way.packets_sent(), f64::max);
        // Loss that no visible queue counted may be random: then the loss itself is the first
        // cause.
        let on_the_way = way.lost_share("path");
        let in_view = in_queues >= on_the_way;
        let lost = in_queues.max(on_the_way);
        // The average rate is below the limits.
        let average = way.share_of_shape().is_none_or(|share| share < 0.9)
            && way.share_of_line().is_none_or(|share| share < 0.9);
        let held = way.receive_buffer().is_some_and(|room| burst * 2 > room);
        if lost < MATTERS || !average || !(held || way.lost_share("udp-receive-queue") < lost / 2.0)
        {
            return None;
        }
        // If the buffer holds the burst, the loss has another cause.
        let role = way.sender;
        Draft::cause(self.id(), role)
            .way(way.direction)
            .cost(if in_view { lost + 1e-4 } else { lost / 2.0 })
            .says(format!(
                "datagrams are sent in bursts of {}, and {} of them are lost although the average \
                 rate fits{}",
                format_bytes(burst),
                format_share(lost),
                if in_view {
                    ""
                } else {
                    "; no counter shows where: the bursts may be the cause"
                }
            ))
            .seen("burst", burst, "B", "plan")
            .seen("rate_bps", rate, "bit/s", "plan")
            .seen_if(
                "loss_fraction",
                way.summary().loss_fraction,
                "share",
                "receiver",
            )
            .seen_if(
                "SO_RCVBUF",
                way.receive_buffer(),
                "B",
                format!("{} socket", name(way.receiver)),
            )
            .remedy(
                "send single datagrams at that rate, or enlarge the queue that drops them to hold \
                 a burst",
            )
            .command(case.again(&format!("-b {}", rate_word(rate as f64))))
            .gain(Some(1.0 / (1.0 - lost).max(0.01)), "1 / (1 - share lost)")
            .found()
    }
}
