//! A link negotiated less than its maximum speed.

use linerate_record::facts::Role;
use linerate_record::finding::Finding;
use linerate_record::ids::CauseId;
use linerate_record::plan::RunKind;
use linerate_stats::units::format_bit_rate;

use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, percent};
use crate::run_view::RunView;

/// Share of the slower link in use from which its speed is the limit.
const MIN_LINK_USE: f64 = 0.75;

/// Smallest ratio of the possible to the negotiated speed.
const MIN_SPEED_RATIO: f64 = 1.5;

/// Smallest cost of half duplex.
const MIN_HALF_DUPLEX_COST: f64 = 0.5;

/// See docs/CAUSES.md#link-speed.
pub struct LinkSpeed;

impl Rule for LinkSpeed {
    fn id(&self) -> CauseId {
        CauseId::LinkSpeed
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "A link negotiated less than its device supports, or than the other end has, \
                      or half duplex.",
            shown_when: vec![
                detection(
                    "TCP and UDP, a slow link",
                    [
                        format!(
                            "the supported modes, or else the other end, have {MIN_SPEED_RATIO} \
                             times the speed or more"
                        ),
                        format!(
                            "{} of the slower link or more are in use",
                            percent(MIN_LINK_USE)
                        ),
                    ],
                ),
                detection(
                    "TCP and UDP, half duplex",
                    ["an end reports half duplex".into()],
                ),
            ],
            limit_when: vec![
                "only the other end is known to be faster; then it has no gain".into(),
            ],
            not_when: vec!["the requested rate was received".into()],
            evidence: &[
                ("speed", "bit/s"),
                ("fastest supported mode", "bit/s"),
                ("duplex", ""),
                ("speed of the other end", "bit/s"),
                ("share of the link in use", "share"),
            ],
            cost: vec![
                "Missing share of the speed.".into(),
                format!(
                    "Half duplex: unused share of the link, {} at least; the cost of collisions is \
                     unknown, so it has no gain.",
                    percent(MIN_HALF_DUPLEX_COST)
                ),
            ],
            remedy: vec![
                "Check the cable, the switch port, and the modes that both ends advertise.".into(),
            ],
            wrong_when: vec!["the slower link is slow on purpose".into()],
            ..CauseReference::cause()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        if run.plan.kind != RunKind::Throughput {
            return Vec::new();
        }
        self.evaluate_link(run).into_iter().collect()
    }
}

impl LinkSpeed {
    fn evaluate_link(&self, run: &RunView<'_>) -> Option<Finding> {
        let speed = |role| {
            run.interface(role)
                .and_then(|interface| interface.speed_bps)
        };
        let fastest = |role| {
            run.interface(role)
                .and_then(|interface| interface.fastest_bps)
        };
        let half_duplex = [Role::Client, Role::Server].into_iter().find(|&role| {
            run.interface(role)
                .and_then(|interface| interface.duplex.as_deref())
                == Some("half")
        });
        let (client_speed, server_speed) = (speed(Role::Client), speed(Role::Server));
        let slow = match (client_speed, server_speed) {
            (Some(client_speed), Some(server_speed)) if server_speed < client_speed => Role::Server,
            (None, Some(_)) => Role::Server,
            (Some(_), _) => Role::Client,
            (None, None) => return None,
        };
        let slow = half_duplex.unwrap_or(slow);
        let slow_speed = speed(slow)?;
        let peer_speed = match slow {
            Role::Client => server_speed,
            Role::Server => client_speed,
        };
        // A half-duplex link needs no proof that it could be faster.
        let reported_speed = fastest(slow)
            .or(peer_speed)
            .or(half_duplex.and(Some(slow_speed)))?;
        let possible_speed = reported_speed.max(
            peer_speed
                .unwrap_or(0)
                .min(fastest(slow).unwrap_or(u64::MAX)),
        );
        let speed_ratio = possible_speed as f64 / slow_speed.max(1) as f64;
        if speed_ratio < MIN_SPEED_RATIO && half_duplex.is_none() {
            return None;
        }
        let link_use = run
            .directions
            .iter()
            .filter_map(|direction| Some(direction.l1_bps()? / slow_speed as f64))
            .fold(0.0, f64::max);
        if link_use < MIN_LINK_USE && half_duplex.is_none() {
            return None;
        }
        // The requested rate was received.
        if super::met_requested_rate(run) {
            return None;
        }
        let interface = run.interface(slow)?;
        let cost = match half_duplex {
            Some(_) => {
                (1.0 - link_use.min(1.0 - MIN_HALF_DUPLEX_COST)).max(1.0 - 1.0 / speed_ratio)
            }
            None => 1.0 - 1.0 / speed_ratio,
        };
        // Without the supported modes it is unknown whether the device could be faster.
        let is_known = fastest(slow).is_some();
        FindingBuilder::limit_if(!is_known && half_duplex.is_none(), self.id(), slow)
            .cost(cost)
            .summary(format!(
                "{} of the {} runs at {}{}{}",
                interface.name,
                slow.as_str(),
                format_bit_rate(slow_speed as f64),
                if half_duplex.is_some() {
                    ", half duplex"
                } else {
                    ""
                },
                match (speed_ratio >= MIN_SPEED_RATIO, is_known) {
                    (true, true) => format!(
                        ", and the device supports {}",
                        format_bit_rate(possible_speed as f64)
                    ),
                    (true, false) => format!(
                        ", and the other end at {}; the modes that the device supports are unknown",
                        format_bit_rate(possible_speed as f64)
                    ),
                    (false, _) => String::new(),
                }
            ))
            .evidence(
                "speed",
                slow_speed,
                "bit/s",
                format!("{} {} ethtool", slow.as_str(), interface.name),
            )
            .evidence_if(
                "fastest supported mode",
                fastest(slow),
                "bit/s",
                format!("{} {} ethtool", slow.as_str(), interface.name),
            )
            .evidence_if(
                "duplex",
                interface.duplex.as_deref(),
                "",
                format!("{} {} ethtool", slow.as_str(), interface.name),
            )
            .evidence_if("speed of the other end", peer_speed, "bit/s", "ethtool")
            .evidence(
                "share of the link in use",
                link_use,
                "share",
                "goodput with headers, preambles and gaps",
            )
            .remedy(
                "check the cable (two pairs carry only 100 Mb/s), the switch port, and the modes \
                 that both ends advertise",
            )
            .command(run.command_at(
                slow,
                &format!(
                    "ethtool -s {} autoneg on; ethtool {}",
                    interface.name, interface.name
                ),
            ))
            // The cost of collisions is unknown.
            .gain(
                (speed_ratio >= MIN_SPEED_RATIO && is_known).then_some(speed_ratio),
                "fastest supported over negotiated speed",
            )
            .build()
    }
}
