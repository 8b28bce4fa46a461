//! The interface is a USB adapter.

use linerate_record::facts::{InterfaceFacts, Role};
use linerate_record::finding::Finding;
use linerate_record::ids::CauseId;
use linerate_record::plan::RunKind;
use linerate_stats::units::format_nanos;

use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, duration, percent};
use crate::run_view::RunView;

/// Microframe of USB 2 (section 8.4.3.1): frames wait for the next one in both directions.
const MICROFRAME_NS: f64 = 125_000.0;

/// Drivers of USB adapters (linux drivers/net/usb).
const DRIVERS: &[&str] = &[
    "r8152",
    "ax88179_178a",
    "asix",
    "cdc_ether",
    "cdc_ncm",
    "cdc_mbim",
    "cdc_eem",
    "smsc75xx",
    "smsc95xx",
    "lan78xx",
    "rtl8150",
    "r8153_ecm",
    "aqc111",
    "dm9601",
    "mcs7830",
    "pegasus",
    "rndis_host",
    "sr9700",
    "sr9800",
    "ch9200",
    "ipheth",
];

/// Largest cost for round trips, and share of the unused link that the adapter takes.
const MAX_COST: f64 = 0.8;
const UNUSED_COST: f64 = 0.9;

/// Part of a microframe below which a round trip did not wait for one: one in two.
const MICROFRAME_PART: f64 = 2.0;

/// Smallest share of a median round trip, or of the link speed, that matters.
const MIN_RELEVANT_SHARE: f64 = 0.1;

/// See docs/CAUSES.md#usb-adapter.
pub struct UsbAdapter;

impl Rule for UsbAdapter {
    fn id(&self) -> CauseId {
        CauseId::UsbAdapter
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "The interface is a USB adapter.",
            shown_when: vec![
                detection(
                    "round trips",
                    [
                        "the interface is on USB, by its driver or its bus".into(),
                        format!(
                            "a microframe ({}) is {} of the median or more",
                            duration(MICROFRAME_NS),
                            percent(MIN_RELEVANT_SHARE)
                        ),
                        format!(
                            "the median is {} of a microframe or more",
                            percent(1.0 / MICROFRAME_PART)
                        ),
                    ],
                ),
                detection(
                    "TCP and UDP",
                    [
                        "the interface is on USB, by its driver or its bus".into(),
                        format!(
                            "{} of the link at most are in use",
                            percent(1.0 - MIN_RELEVANT_SHARE)
                        ),
                    ],
                ),
            ],
            not_when: vec![
                "streams: a rate was requested".into(),
                "streams: the path is full".into(),
            ],
            evidence: &[
                ("driver", ""),
                ("bus", ""),
                ("speed", "bit/s"),
                ("rtt_ns.p50", "ns"),
                ("share of the link in use", "share"),
            ],
            cost: vec![
                format!(
                    "Round trips: a microframe as a share of the median, {} at most.",
                    percent(MAX_COST)
                ),
                format!(
                    "Streams: {} of the unused share of the link.",
                    percent(UNUSED_COST)
                ),
            ],
            remedy: vec![
                "Use a PCI interface.".into(),
                "Keep more requests outstanding.".into(),
            ],
            wrong_when: vec!["the other end, or a slower link behind it, is the limit".into()],
            ..CauseReference::cause()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        [Role::Client, Role::Server]
            .into_iter()
            .filter_map(|role| self.evaluate_end(run, role))
            .collect()
    }
}

fn is_usb(interface: &InterfaceFacts) -> bool {
    let driver = interface.driver.as_deref();
    interface.bus.as_deref() == Some("usb")
        || driver.is_some_and(|driver| DRIVERS.contains(&driver))
}

impl UsbAdapter {
    fn evaluate_end(&self, run: &RunView<'_>, role: Role) -> Option<Finding> {
        let interface = run.interface(role).filter(|interface| is_usb(interface))?;
        let end = role.as_str();
        let driver = interface.driver.as_deref().unwrap_or("unknown");
        let builder = FindingBuilder::cause(self.id(), role)
            .evidence(
                "driver",
                driver,
                "",
                format!("{end} {} ethtool -i", interface.name),
            )
            .evidence_if(
                "bus",
                interface.bus.as_deref(),
                "",
                format!("{end} {} ethtool -i", interface.name),
            )
            .evidence_if(
                "speed",
                interface.speed_bps,
                "bit/s",
                format!("{end} {} ethtool", interface.name),
            )
            .remedy("use a PCI interface; on USB keep several requests outstanding")
            .command(run.command_at(role, &format!("ethtool -i {}", interface.name)));
        match run.plan.kind {
            RunKind::Latency => {
                let rtt = run.record.summary.rtt_ns?;
                // Half a microframe on average in each direction.
                let share = (MICROFRAME_NS / rtt.p50.max(1) as f64).min(MAX_COST);
                if share < MIN_RELEVANT_SHARE || (rtt.p50 as f64) < MICROFRAME_NS / MICROFRAME_PART
                {
                    return None;
                }
                builder
                    .cost(share)
                    .summary(format!(
                        "{} of the {end} is a USB adapter ({driver}): frames wait for a \
                         microframe of {} in each direction",
                        interface.name,
                        format_nanos(MICROFRAME_NS)
                    ))
                    .evidence("rtt_ns.p50", rtt.p50, "ns", "client")
                    .gain(
                        Some(1.0 / (1.0 - share)),
                        "p50 / (p50 - half a microframe per direction)",
                    )
                    .build()
            }
            RunKind::Throughput => {
                let used = (run.directions.iter())
                    .filter_map(|direction| Some(direction.l1_bps()? / interface.speed_bps? as f64))
                    .fold(0.0, f64::max);
                // A path that is saturated elsewhere is not limited by the adapter.
                let full = run
                    .directions
                    .iter()
                    .all(|direction| direction.fills_path());
                let paced = super::is_paced(run);
                if used <= 0.0 || used > 1.0 - MIN_RELEVANT_SHARE || paced || full {
                    return None;
                }
                builder
                    .cost((1.0 - used) * UNUSED_COST)
                    .summary(format!(
                        "{} of the {end} is a USB adapter ({driver}) and uses {:.0} % of its \
                         link: the bus, and the CPU time per transfer, are the limit",
                        interface.name,
                        used * 100.0
                    ))
                    .evidence(
                        "share of the link in use",
                        used,
                        "share",
                        "goodput with headers, preambles and gaps",
                    )
                    .gain(Some(1.0 / used.max(0.05)), "link speed over its use")
                    .build()
            }
            _ => None,
        }
    }
}
