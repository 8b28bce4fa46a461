//! The link is saturated.

use linerate_record::finding::{Finding, FindingLocation};
use linerate_record::ids::CauseId;
use linerate_record::plan::RunKind;
use linerate_stats::units::{format_bit_rate, format_share};

use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, percent};
use crate::run_view::{DirectionView, RunView};

/// Share of the link speed from which it is saturated.
const FULL_SHARE: f64 = 0.9;

/// See docs/CAUSES.md#line-rate.
pub struct LineRate;

impl Rule for LineRate {
    fn id(&self) -> CauseId {
        CauseId::LineRate
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "The link is full.",
            shown_when: vec![
                detection(
                    "TCP and UDP",
                    [format!(
                        "goodput with headers, preambles and gaps is {} of the slower link's speed \
                         or more",
                        percent(FULL_SHARE)
                    )],
                ),
                detection(
                    "`generate`",
                    [format!(
                        "sent frames with preambles and gaps are {} of the line rate or more",
                        percent(FULL_SHARE)
                    )],
                ),
            ],
            evidence: &[
                ("speed", "bit/s"),
                ("on the wire", "bit/s"),
                ("goodput_bps", "bit/s"),
                ("line_bps", "bit/s"),
                ("offered_l1_bps", "bit/s"),
            ],
            cost: vec!["That share.".into()],
            remedy: vec![
                "Use a faster link.".into(),
                "Or use larger packets, which have less header overhead.".into(),
            ],
            wrong_when: vec!["a driver reports a speed that is not the one of the wire".into()],
            ..CauseReference::limit()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        match run.plan.kind {
            RunKind::Throughput => run
                .directions
                .iter()
                .filter_map(|direction| self.evaluate_direction(run, direction))
                .collect(),
            RunKind::Generate => self.evaluate_generator(run).into_iter().collect(),
            _ => Vec::new(),
        }
    }
}

impl LineRate {
    fn evaluate_direction(
        &self,
        run: &RunView<'_>,
        direction: &DirectionView<'_>,
    ) -> Option<Finding> {
        let share = direction
            .line_share()
            .filter(|&share| share >= FULL_SHARE)?;
        let line = direction.line_bps()?;
        let slower = match direction
            .sender_interface()
            .and_then(|interface| interface.speed_bps)
        {
            Some(speed) if speed == line => direction.sender,
            _ => direction.receiver,
        };
        let interface = match slower == direction.sender {
            true => direction.sender_interface(),
            false => direction.receiver_interface(),
        };
        FindingBuilder::limit(self.id(), FindingLocation::Path)
            .direction(direction.direction)
            .cost(share)
            .summary(format!(
                "the link of {} is saturated: {} in use, with headers, preambles and gaps",
                format_bit_rate(line as f64),
                format_share(share.min(1.0))
            ))
            .evidence(
                "speed",
                line,
                "bit/s",
                format!("{} ethtool", slower.as_str()),
            )
            .evidence(
                "on the wire",
                direction.l1_bps()?,
                "bit/s",
                "goodput with headers, preambles and gaps",
            )
            .evidence_if("goodput_bps", direction.goodput(), "bit/s", "receiver")
            .remedy("use a faster link, or larger packets, which have less header overhead")
            .command(run.command_at(slower, &format!("ethtool {}", interface?.name)))
            .build()
    }

    fn evaluate_generator(&self, run: &RunView<'_>) -> Option<Finding> {
        let figures = run.record.generate.as_ref()?;
        let line = run.plan.generate.as_ref()?.line_bps?;
        let share = figures.offered_l1_bps / line as f64;
        if share < FULL_SHARE {
            return None;
        }
        FindingBuilder::limit(self.id(), FindingLocation::Path)
            .cost(share)
            .summary(format!(
                "frames were sent at {} of the line rate",
                format_share(share.min(1.0))
            ))
            .evidence("line_bps", line, "bit/s", "plan")
            .evidence(
                "offered_l1_bps",
                figures.offered_l1_bps,
                "bit/s",
                "generator",
            )
            .remedy("use a faster link")
            .command(run.rerun_command("--rate 100%"))
            .build()
    }
}
