//! A link on the path lost its carrier.

use linerate_metric::finding::{End, Finding};
use linerate_metric::plan::Kind;
use linerate_metric::units::{format_count, format_share};

use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, Way};

/// See docs/CAUSES.md#link-down.
pub struct LinkDown;

impl Rule for LinkDown {
    fn id(&self) -> &'static str {
        "link-down"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        self.of(case).into_iter().collect()
    }
}

/// Returns the share of intervals without payload.
fn stood_still(way: &Way<'_>) -> f64 {
    let (all, empty) = way
        .intervals()
        .fold((0_u32, 0_u32), |(all, empty), interval| {
            (all + 1, empty + u32::from(interval.bytes == 0))
        });
    f64::from(empty) / f64::from(all.max(1))
}

impl LinkDown {
    fn of(&self, case: &Case<'_>) -> Option<Finding> {
        let found = case.record.counters.iter();
        let found = found.filter(|found| found.counter == "carrier_losses" && found.added() > 0);
        let down: Vec<_> = found.collect();
        let first = down.first()?;
        let summary = &case.record.summary;
        // Datagrams without a drop counter were lost on the path, at an interface, or expired
        // before they could be sent.
        let gone = |way: &Way<'_>| {
            let seen: u64 = ["path", "interface-tx", "interface-rx"]
                .map(|place| way.lost_at(place))
                .iter()
                .sum();
            seen + way.lost_at("sender-socket") - way.lost_for_room()
        };
        let lost: u64 = case.ways.iter().map(gone).sum();
        let unroutable: u64 = case.ways.iter().map(Way::unroutable).sum();
        let cost = match case.plan.kind {
            Kind::Throughput => {
                let of_way =
                    |way: &Way<'_>| (gone(way) as f64 / way.packets_sent()).max(stood_still(way));
                case.ways.iter().map(of_way).fold(0.0, f64::max)
            }
            Kind::Latency => {
                let lost = summary.lost.unwrap_or(0) as f64;
                lost / (lost + summary.round_trips.unwrap_or(0) as f64).max(1.0)
            }
            _ => return None,
        };
        let named: Vec<String> = (down.iter())
            .map(|found| {
                format!(
                    "{} of {}",
                    found.interface.as_deref().unwrap_or("an interface"),
                    found.host
                )
            })
            .collect();
        let times = down.iter().map(|found| found.added()).max().unwrap_or(1);
        let mut draft = Draft::cause(self.id(), End::Path)
            .cost(cost.max(0.001))
            .says(format!(
                "{} lost {} carrier {}{}",
                named.join(" and "),
                if named.len() == 1 { "its" } else { "their" },
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
        for found in &down {
            let interface = found.interface.as_deref().unwrap_or_default();
            draft = draft.seen(
                &found.counter,
                found.added(),
                "",
                format!("{} {interface} IFLA_CARRIER_DOWN_COUNT", found.host),
            );
        }
        let interface = first.interface.as_deref().unwrap_or("eth0");
        draft
            .seen_if(
                "sends without a route",
                (unroutable > 0).then_some(unroutable),
                "sends",
                "ENETUNREACH, EHOSTUNREACH, ENETDOWN",
            )
            .seen_if(
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
            .found()
    }
}
