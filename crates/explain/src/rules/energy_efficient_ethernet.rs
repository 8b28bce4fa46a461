//! The link sleeps between frames.

use linerate_record::facts::Role;
use linerate_record::finding::Finding;
use linerate_record::ids::CauseId;
use linerate_stats::units::format_nanos;

use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, percent};
use crate::run_view::RunView;

/// Wake time of a link by its speed in bit/s, ns (IEEE 802.3az, table 78-4, minimum `T_w_sys_tx`).
const LINK_WAKE_NS: &[(u64, f64)] = &[
    (100_000_000, 30_000.0),
    (1_000_000_000, 16_500.0),
    (10_000_000_000, 7_360.0),
];

/// Wake times in a round trip: one of each direction.
const WAKES_PER_ROUND_TRIP: f64 = 2.0;

/// Largest cost.
const MAX_COST: f64 = 0.8;

/// Smallest share of a median round trip that matters.
const MIN_RELEVANT_SHARE: f64 = 0.05;

/// See docs/CAUSES.md#energy-efficient-ethernet.
pub struct EnergyEfficientEthernet;

impl Rule for EnergyEfficientEthernet {
    fn id(&self) -> CauseId {
        CauseId::EnergyEfficientEthernet
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "The link sleeps between frames (IEEE 802.3az) and takes time to wake up.",
            shown_when: vec![detection(
                "round trips",
                [
                    "EEE is active".into(),
                    "the time between requests exceeds its timer (`tx-timer`)".into(),
                    format!(
                        "{WAKES_PER_ROUND_TRIP} wake times of the standard are {} of the median or \
                         more",
                        percent(MIN_RELEVANT_SHARE)
                    ),
                ],
            )],
            evidence: &[
                ("eee active", ""),
                ("tx-timer", "us"),
                ("time between requests", "ns"),
                ("rtt_ns.p50", "ns"),
            ],
            cost: vec![format!("That share, {} at most.", percent(MAX_COST))],
            remedy: vec!["Disable it: `ethtool --set-eee IF eee off`.".into()],
            wrong_when: vec!["other traffic keeps the link awake".into()],
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

impl EnergyEfficientEthernet {
    fn evaluate_end(&self, run: &RunView<'_>, role: Role) -> Option<Finding> {
        if !run.is_latency() {
            return None;
        }
        let interface = run.interface(role)?;
        let eee = interface.energy_efficient.filter(|eee| eee.active)?;
        let rtt = run.record.summary.rtt_ns?;
        // A link with shorter idle times does not sleep.
        let gap = 1e9
            / run
                .record
                .summary
                .round_trips_per_second
                .unwrap_or(1.0)
                .max(1.0);
        if gap < f64::from(eee.tx_timer_us) * 1e3 {
            return None;
        }
        let speed = interface.speed_bps.unwrap_or(1_000_000_000);
        let wake = LINK_WAKE_NS
            .iter()
            .find(|(of, _)| speed <= *of)
            .map_or(5_000.0, |&(_, wake)| wake);
        // Each direction of this link wakes up once per round trip.
        let added = WAKES_PER_ROUND_TRIP * wake;
        let share = (added / rtt.p50.max(1) as f64).min(MAX_COST);
        if share < MIN_RELEVANT_SHARE {
            return None;
        }
        let end = role.as_str();
        let at = format!("{end} {} ethtool --show-eee", interface.name);
        FindingBuilder::cause(self.id(), role)
            .cost(share)
            .summary(format!(
                "the link of {} of the {end} sleeps between frames: waking up adds about {} to \
                 each round trip",
                interface.name,
                format_nanos(added)
            ))
            .evidence("eee active", "yes", "", at.clone())
            .evidence("tx-timer", eee.tx_timer_us, "us", at)
            .evidence("time between requests", gap.round(), "ns", "client")
            .evidence("rtt_ns.p50", rtt.p50, "ns", "client")
            .remedy("disable Energy-Efficient Ethernet at either end if round trips matter")
            .command(run.command_at(
                role,
                &format!("ethtool --set-eee {} eee off", interface.name),
            ))
            .gain(
                Some(1.0 / (1.0 - share)),
                "p50 / (p50 - two wake times of IEEE 802.3az)",
            )
            .build()
    }
}
