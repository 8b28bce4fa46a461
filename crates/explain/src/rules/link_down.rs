//! A link on the path lost its carrier.

use linerate_record::finding::{Finding, FindingLocation};
use linerate_record::ids::{CauseId, LossPoint};
use linerate_record::plan::RunKind;
use linerate_stats::units::{format_count, format_share};

use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection};
use crate::run_view::{DirectionView, RunView};

/// Smallest cost: a link that went down is reported even if nothing was lost.
const MIN_COST: f64 = 0.001;

/// See docs/CAUSES.md#link-down.
pub struct LinkDown;

impl Rule for LinkDown {
    fn id(&self) -> CauseId {
        CauseId::LinkDown
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "A link on the path lost its carrier during the run.",
            shown_when: vec![detection(
                "streams and round trips",
                [
                    "`carrier_losses` of an interface on the path grew (IFLA_CARRIER_DOWN_COUNT)"
                        .into(),
                    "in a lab all interfaces on the path count, elsewhere those of the ends".into(),
                ],
            )],
            evidence: &[
                ("carrier_losses", ""),
                ("sends without a route", "sends"),
                ("lost there", "datagrams"),
            ],
            cost: vec![
                "UDP: share of the datagrams lost there, or of the intervals without payload."
                    .into(),
                "TCP: share of the intervals without payload.".into(),
                "Round trips: share of the requests without a response.".into(),
            ],
            notes: vec![
                "Datagrams sent meanwhile are at `path`: the kernel drops them while it resolves a \
                 neighbour that cannot reply."
                    .into(),
                "They are at `sender-socket` if the local link was down and there was no route \
                 (`streams[].sender.unroutable`)."
                    .into(),
            ],
            remedy: vec![
                "Check cable, switch port and driver (kernel log), or who sets the interface down."
                    .into(),
                "Findings that follow from it need no remedy of their own.".into(),
            ],
            wrong_when: vec!["the link is one of several that replace each other".into()],
            ..CauseReference::cause()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        self.evaluate(run).into_iter().collect()
    }
}

/// Returns the share of intervals without payload.
fn empty_interval_share(direction: &DirectionView<'_>) -> f64 {
    let (all, empty) = direction
        .intervals()
        .fold((0_u32, 0_u32), |(all, empty), interval| {
            (all + 1, empty + u32::from(interval.bytes == 0))
        });
    f64::from(empty) / f64::from(all.max(1))
}

impl LinkDown {
    fn evaluate(&self, run: &RunView<'_>) -> Option<Finding> {
        let counter = run.record.counters.iter();
        let counter =
            counter.filter(|counter| counter.counter == "carrier_losses" && counter.increase() > 0);
        let down: Vec<_> = counter.collect();
        let first = down.first()?;
        let summary = &run.record.summary;
        // Datagrams without a drop counter were lost on the path, at an interface, or expired
        // before they could be sent.
        let path_losses = |direction: &DirectionView<'_>| {
            let counted: u64 = [
                LossPoint::Path,
                LossPoint::InterfaceTx,
                LossPoint::InterfaceRx,
            ]
            .map(|point| direction.lost_at(point))
            .iter()
            .sum();
            counted + direction.lost_at(LossPoint::SenderSocket) - direction.sender_socket_drops()
        };
        let lost: u64 = run.directions.iter().map(path_losses).sum();
        let unroutable: u64 = run.directions.iter().map(DirectionView::unroutable).sum();
        let cost = match run.plan.kind {
            RunKind::Throughput => {
                let direction_cost = |direction: &DirectionView<'_>| {
                    (path_losses(direction) as f64 / direction.packets_sent())
                        .max(empty_interval_share(direction))
                };
                run.directions
                    .iter()
                    .map(direction_cost)
                    .fold(0.0, f64::max)
            }
            RunKind::Latency => {
                let lost = summary.lost.unwrap_or(0) as f64;
                lost / (lost + summary.round_trips.unwrap_or(0) as f64).max(1.0)
            }
            _ => return None,
        };
        let interfaces: Vec<String> = (down.iter())
            .map(|counter| {
                format!(
                    "{} of {}",
                    counter.interface.as_deref().unwrap_or("an interface"),
                    counter.host
                )
            })
            .collect();
        let times = down
            .iter()
            .map(|counter| counter.increase())
            .max()
            .unwrap_or(1);
        let mut builder = FindingBuilder::cause(self.id(), FindingLocation::Path)
            .cost(cost.max(MIN_COST))
            .summary(format!(
                "{} lost {} carrier {}{}",
                interfaces.join(" and "),
                if interfaces.len() == 1 {
                    "its"
                } else {
                    "their"
                },
                match times {
                    1 => "once during the run".to_owned(),
                    times => format!("up to {times} times during the run"),
                },
                match lost {
                    0 => String::new(),
                    lost => format!(
                        ": {} datagrams were lost ({})",
                        format_count(lost),
                        format_share(cost)
                    ),
                }
            ));
        for counter in &down {
            let interface = counter.interface.as_deref().unwrap_or_default();
            builder = builder.evidence(
                &counter.counter,
                counter.increase(),
                "",
                format!("{} {interface} IFLA_CARRIER_DOWN_COUNT", counter.host),
            );
        }
        let interface = first.interface.as_deref().unwrap_or("eth0");
        builder
            .evidence_if(
                "sends without a route",
                (unroutable > 0).then_some(unroutable),
                "sends",
                "ENETUNREACH, EHOSTUNREACH, ENETDOWN",
            )
            .evidence_if(
                "lost there",
                (lost > 0).then_some(lost),
                "datagrams",
                "losses on the path and at interfaces",
            )
            .remedy(
                "find out why the link went down: check the cable, the switch port, the driver \
                 (kernel log), or an interface set down by a user",
            )
            .command(format!("dmesg --ctime | grep {interface}"))
            .gain(
                (lost > 0).then(|| 1.0 / (1.0 - cost).max(0.01)),
                "1 / (1 - share lost there)",
            )
            .build()
    }
}
