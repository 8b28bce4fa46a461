//! The link is saturated.

use linerate_metric::finding::{End, Finding};
use linerate_metric::plan::Kind;
use linerate_metric::units::{format_bit_rate, format_share};

use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, Way, name};

/// Share of the link speed from which it is saturated.
const FULL: f64 = 0.9;

/// See docs/CAUSES.md#line-rate.
pub struct LineRate;

impl Rule for LineRate {
    fn id(&self) -> &'static str {
        "line-rate"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        match case.plan.kind {
            Kind::Throughput => case
                .ways
                .iter()
                .filter_map(|way| self.of(case, way))
                .collect(),
            Kind::Generate => self.of_frames(case).into_iter().collect(),
            _ => Vec::new(),
        }
    }
}

impl LineRate {
    fn of(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let share = way.share_of_line().filter(|&share| share >= FULL)?;
        let line = way.line_bps()?;
        let slower = match way.sends_by().and_then(|interface| interface.speed_bps) {
            Some(speed) if speed == line => way.sender,
            _ => way.receiver,
        };
        let interface = match slower == way.sender {
            true => way.sends_by(),
            false => way.receives_by(),
        };
        Draft::limit(self.id(), End::Path)
            .way(way.direction)
            .cost(share)
            .says(format!(
                "the link of {} is saturated: {} in use, with headers, preambles and gaps",
                format_bit_rate(line as f64),
                format_share(share.min(1.0))
            ))
            .seen("speed", line, "bit/s", format!("{} ethtool", name(slower)))
            .seen(
                "on the wire",
                way.l1_bps()?,
                "bit/s",
                "goodput with headers, preambles and gaps",
            )
            .seen_if("goodput_bps", way.goodput(), "bit/s", "receiver")
            .remedy("use a faster link, or larger packets, which have less header overhead")
            .command(case.at(slower, &format!("ethtool {}", interface?.name)))
            .found()
    }

    fn of_frames(&self, case: &Case<'_>) -> Option<Finding> {
        let figures = case.record.generate.as_ref()?;
        let line = case.plan.generate.as_ref()?.line_bps?;
        let share = figures.offered_l1_bps / line as f64;
        if share < FULL {
            return None;
        }
        Draft::limit(self.id(), End::Path)
            .cost(share)
            .says(format!(
                "frames were sent at {} of the line rate",
                format_share(share.min(1.0))
            ))
            .seen("line_bps", line, "bit/s", "plan")
            .seen(
                "offered_l1_bps",
                figures.offered_l1_bps,
                "bit/s",
                "generator",
            )
            .remedy("use a faster link")
            .command(case.again("--rate 100%"))
            .found()
    }
}
