//! The neighbour's link-layer address is unresolved, or two hosts have the same IP address.

use linerate_metric::facts::Role;
use linerate_metric::finding::{End, Finding};
use linerate_metric::plan::Kind;
use linerate_metric::units::{format_count, format_nanos};

use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, name};

/// Retry time of address resolution (net.ipv4.neigh.*.retrans_time_ms), ns.
const ASKED_AGAIN_NS: u64 = 900_000_000;

/// See docs/CAUSES.md#neighbour.
pub struct Neighbour;

impl Rule for Neighbour {
    fn id(&self) -> &'static str {
        "neighbour"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        [self.moved(case), self.unresolved(case)]
            .into_iter()
            .flatten()
            .collect()
    }
}

impl Neighbour {
    /// The link-layer address of the other end alternated between two devices.
    fn moved(&self, case: &Case<'_>) -> Option<Finding> {
        let counter = case.record.counters.iter().find(|counter| {
            counter.counter == "neighbour_address_changes" && counter.added() > 0
        })?;
        // The observer's own entry is for the address of the other end.
        let saw = if counter.host == name(Role::Server) {
            Role::Server
        } else {
            Role::Client
        };
        let own = case.interface(saw).map(|own| own.name.as_str());
        let interface = counter.interface.as_deref().or(own).unwrap_or("eth0");
        let address = case.address(super::other_end(saw));
        // Two hosts with the address both reply, each with its own link-layer address.
        let ask = match address.contains(':') {
            true => format!("ndisc6 -m {address} {interface}"),
            false => format!("arping -c 3 -I {interface} {address}"),
        };
        Draft::cause(self.id(), End::Path)
            .cost(0.5)
            .says(format!(
                "the link-layer address of the other end changed {} times at {}: two hosts have \
                 the same IP address",
                counter.added(),
                counter.host
            ))
            .seen(
                "neighbour_address_changes",
                counter.added(),
                "",
                format!("{} rtnetlink RTM_NEWNEIGH", counter.host),
            )
            .remedy("give one of the two hosts another address")
            .command(case.at_host(&counter.host, &ask))
            .found()
    }

    /// Packets were dropped, or waited, while the link-layer address was being resolved.
    fn unresolved(&self, case: &Case<'_>) -> Option<Finding> {
        let of = |name: &str| {
            let found = case
                .record
                .counters
                .iter()
                .filter(|found| found.counter == name);
            let added = found.map(|found| found.added());
            // Both ends of one machine read the same machine-wide counter.
            match case.one_machine() {
                true => added.max(),
                false => added.reduce(|a, b| a + b),
            }
        };
        let discards = of("neighbour_discards");
        let unanswered = case.added("neighbour_unanswered", |_, _| true);
        let failures = unanswered.or_else(|| of("neighbour_failures"));
        let from = case
            .record
            .counters
            .iter()
            .find(|counter| counter.counter == "neighbour_discards" && counter.added() > 0);
        let lost = discards.unwrap_or(0);
        let summary = &case.record.summary;
        // The first request, or the first datagrams, waited for the resolution.
        let first_slow = case
            .record
            .slow
            .first()
            .is_some_and(|slow| slow.number <= 2 && slow.time_ns >= ASKED_AGAIN_NS);
        // Other neighbours may be unresolved: the first request must show it as well.
        if lost == 0 && (failures.unwrap_or(0) == 0 || !first_slow) {
            return None;
        }
        let (part, whole) = match case.plan.kind {
            Kind::Throughput => {
                let way = case.ways.first()?;
                let gone = way
                    .summary()
                    .lost
                    .or(way.summary().retransmits)
                    .unwrap_or(0);
                let first = way.intervals().next();
                let start =
                    first.and_then(|first| first.lost.or_else(|| Some(first.tcp?.retransmits)));
                let start = start.unwrap_or(gone);
                // Other programs have neighbours as well: the drops must match the loss of this
                // run, or the loss must be at its start.
                let part = if lost * 4 >= gone {
                    lost.min(gone)
                } else {
                    start
                };
                if part == 0 {
                    return None;
                }
                let whole = match way.summary().packets_sent {
                    Some(sent) => sent as f64,
                    None => way.packets(),
                };
                (part as f64, whole)
            }
            Kind::Latency => {
                let trips = summary.round_trips? as f64;
                let gone = summary.lost.unwrap_or(0);
                if gone == 0 && !first_slow {
                    return None;
                }
                (gone.max(1) as f64, trips + gone as f64)
            }
            _ => return None,
        };
        let slowest = summary.rtt_ns.map(|rtt| rtt.max);
        let host = from.map_or_else(|| name(Role::Client).to_owned(), |from| from.host.clone());
        Draft::cause(self.id(), End::Path)
            .cost((part / whole.max(1.0)).max(0.001))
            .says(format!(
                "{} during address resolution of the next hop{}",
                match lost {
                    0 => "packets waited".to_owned(),
                    1 => "1 packet was dropped".to_owned(),
                    _ => format!("{} packets were dropped", format_count(lost)),
                },
                match slowest.filter(|_| first_slow) {
                    Some(slowest) => format!(
                        "; the first round trip took {}",
                        format_nanos(slowest as f64)
                    ),
                    None => String::new(),
                }
            ))
            .seen(
                "unresolved_discards",
                lost,
                "packets",
                format!("{host} /proc/net/stat/arp_cache, machine-wide"),
            )
            .seen_if(
                "neighbour_unanswered",
                failures,
                "",
                format!("{host} rtnetlink RTM_NEWNEIGH"),
            )
            .seen(
                "lost or delayed",
                part,
                "packets",
                "lost packets that were dropped or were the first",
            )
            .remedy(
                "resolve the address before the run (ping), add a permanent entry, or enlarge the \
                 queue of waiting packets",
            )
            .command(case.at_host(
                &host,
                "sysctl -w net.ipv4.neigh.default.unres_qlen_bytes=4194304",
            ))
            .found()
    }
}
