//! A link negotiated less than its maximum speed.

use linerate_metric::facts::Role;
use linerate_metric::finding::Finding;
use linerate_metric::plan::Kind;
use linerate_metric::units::format_bit_rate;

use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, name};

/// Share of the slower link in use from which its speed is the limit.
const USED: f64 = 0.75;

/// See docs/CAUSES.md#link-speed.
pub struct LinkSpeed;

impl Rule for LinkSpeed {
    fn id(&self) -> &'static str {
        "link-speed"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        if case.plan.kind != Kind::Throughput {
            return Vec::new();
        }
        self.of(case).into_iter().collect()
    }
}

impl LinkSpeed {
    fn of(&self, case: &Case<'_>) -> Option<Finding> {
        let speed = |role| {
            case.interface(role)
                .and_then(|interface| interface.speed_bps)
        };
        let fastest = |role| {
            case.interface(role)
                .and_then(|interface| interface.fastest_bps)
        };
        let half = [Role::Client, Role::Server].into_iter().find(|&role| {
            case.interface(role)
                .and_then(|interface| interface.duplex.as_deref())
                == Some("half")
        });
        let (near, far) = (speed(Role::Client), speed(Role::Server));
        let slow = match (near, far) {
            (Some(near), Some(far)) if far < near => Role::Server,
            (None, Some(_)) => Role::Server,
            (Some(_), _) => Role::Client,
            (None, None) => return None,
        };
        let slow = half.unwrap_or(slow);
        let own = speed(slow)?;
        let other = match slow {
            Role::Client => far,
            Role::Server => near,
        };
        // A half-duplex link needs no proof that it could be faster.
        let told = fastest(slow).or(other).or(half.and(Some(own)))?;
        let could = told.max(other.unwrap_or(0).min(fastest(slow).unwrap_or(u64::MAX)));
        let less = could as f64 / own.max(1) as f64;
        if less < 1.5 && half.is_none() {
            return None;
        }
        let used = case
            .ways
            .iter()
            .filter_map(|way| Some(way.l1_bps()? / own as f64))
            .fold(0.0, f64::max);
        if used < USED && half.is_none() {
            return None;
        }
        // The requested rate was received.
        if super::kept_its_rate(case) {
            return None;
        }
        let interface = case.interface(slow)?;
        let cost = match half {
            Some(_) => (1.0 - used.min(0.5)).max(1.0 - 1.0 / less),
            None => 1.0 - 1.0 / less,
        };
        // Without the supported modes it is unknown whether the device could be faster.
        let known = fastest(slow).is_some();
        Draft::limit_if(!known && half.is_none(), self.id(), slow)
            .cost(cost)
            .says(format!(
                "{} of the {} runs at {}{}{}",
                interface.name,
                name(slow),
                format_bit_rate(own as f64),
                if half.is_some() { ", half duplex" } else { "" },
                match (less >= 1.5, known) {
                    (true, true) => format!(
                        ", and the device supports {}",
                        format_bit_rate(could as f64)
                    ),
                    (true, false) => format!(
                        ", and the other end at {}; the modes that the device supports are unknown",
                        format_bit_rate(could as f64)
                    ),
                    (false, _) => String::new(),
                }
            ))
            .seen(
                "speed",
                own,
                "bit/s",
                format!("{} {} ethtool", name(slow), interface.name),
            )
            .seen_if(
                "fastest supported mode",
                fastest(slow),
                "bit/s",
                format!("{} {} ethtool", name(slow), interface.name),
            )
            .seen_if(
                "duplex",
                interface.duplex.as_deref(),
                "",
                format!("{} {} ethtool", name(slow), interface.name),
            )
            .seen_if("speed of the other end", other, "bit/s", "ethtool")
            .seen(
                "share of the link in use",
                used,
                "share",
                "goodput with headers, preambles and gaps",
            )
            .remedy(
                "check the cable (two pairs carry only 100 Mb/s), the switch port, and the modes \
                 that both ends advertise",
            )
            .command(case.at(
                slow,
                &format!(
                    "ethtool -s {} autoneg on; ethtool {}",
                    interface.name, interface.name
                ),
            ))
            // The cost of collisions is unknown.
            .gain(
                (less >= 1.5 && known).then_some(less),
                "fastest supported over negotiated speed",
            )
            .found()
    }
}
