//! The neighbour's link-layer address is unresolved, or two hosts have the same IP address.

use linerate_record::facts::Role;
use linerate_record::finding::{Finding, FindingLocation};
use linerate_record::ids::CauseId;
use linerate_record::plan::RunKind;
use linerate_stats::units::{format_count, format_nanos};

use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, duration, percent};
use crate::run_view::RunView;

/// Retry time of address resolution (neigh.*.retrans_time_ms of both families), ns.
const RESOLUTION_RETRY_NS: u64 = 900_000_000;

/// Setting of the queue of packets that wait for the resolution, for IPv4 and IPv6.
const QUEUE_SETTING: [&str; 2] = [
    "net.ipv4.neigh.default.unres_qlen_bytes",
    "net.ipv6.neigh.default.unres_qlen_bytes",
];
/// Advised size of that queue in bytes: a burst of 1 ms at 32 Gb/s.
const QUEUE_BYTES: u64 = 4 << 20;

/// Number of the last request that can wait for the resolution.
const LAST_FIRST_REQUEST: u64 = 2;

/// Part of the missing packets that the machine-wide counter must have: one in four.
const DISCARDED_PART: u64 = 4;

/// Cost of a duplicate address, and smallest cost of a resolution.
const DUPLICATE_COST: f64 = 0.5;
const MIN_COST: f64 = 0.001;

/// See docs/CAUSES.md#neighbour.
pub struct Neighbour;

impl Rule for Neighbour {
    fn id(&self) -> CauseId {
        CauseId::Neighbour
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "The link-layer address of the next hop was unknown at the start, or two hosts \
                      have the same IP address.",
            shown_when: vec![
                detection(
                    "streams and round trips, an unresolved address",
                    [
                        format!(
                            "packets were dropped during the resolution; or a neighbour did not \
                             reply, and one of the first {LAST_FIRST_REQUEST} round trips took {}",
                            duration(RESOLUTION_RETRY_NS as f64)
                        ),
                        format!(
                            "the drops are {} of the missing packets or more, or packets are \
                             missing at the start",
                            percent(1.0 / DISCARDED_PART as f64)
                        ),
                    ],
                ),
                detection(
                    "every run, a duplicate address",
                    ["the address of the next hop changed during the run (RTM_NEWNEIGH)".into()],
                ),
            ],
            evidence: &[
                ("unresolved_discards", "packets"),
                ("neighbour_unanswered", ""),
                ("lost or delayed", "packets"),
                ("neighbour_address_changes", ""),
            ],
            cost: vec![
                "Share of the packets lost that way.".into(),
                format!("{} for a duplicate address.", percent(DUPLICATE_COST)),
            ],
            notes: vec![
                "The counter of dropped packets is machine-wide: other programs have neighbours, \
                 too."
                    .into(),
            ],
            remedy: vec![
                "Resolve the address before the run (ping), or add a permanent entry.".into(),
                "Enlarge the queue of waiting packets \
                 (`net.ipv4.neigh.default.unres_qlen_bytes`; over IPv6 \
                 `net.ipv6.neigh.default.unres_qlen_bytes`)."
                    .into(),
                "Give one of two hosts another address; `arping` or `ndisc6` shows both.".into(),
            ],
            wrong_when: vec!["a router was replaced by its standby".into()],
            ..CauseReference::cause()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        [
            self.evaluate_address_changes(run),
            self.evaluate_resolution(run),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

impl Neighbour {
    /// The link-layer address of the other end alternated between two devices.
    fn evaluate_address_changes(&self, run: &RunView<'_>) -> Option<Finding> {
        let counter = run.record.counters.iter().find(|counter| {
            counter.counter == "neighbour_address_changes" && counter.increase() > 0
        })?;
        // The observer's own entry is for the address of the other end.
        let observer = if counter.host == Role::Server.as_str() {
            Role::Server
        } else {
            Role::Client
        };
        let own_interface = run
            .interface(observer)
            .map(|own_interface| own_interface.name.as_str());
        let interface = counter
            .interface
            .as_deref()
            .or(own_interface)
            .unwrap_or("eth0");
        let address = run.address(super::other_role(observer));
        // Two hosts with the address both reply, each with its own link-layer address.
        let probe_command = match address.contains(':') {
            true => format!("ndisc6 -m {address} {interface}"),
            false => format!("arping -c 3 -I {interface} {address}"),
        };
        FindingBuilder::cause(self.id(), FindingLocation::Path)
            .cost(DUPLICATE_COST)
            .summary(format!(
                "the link-layer address of the other end changed {} times at {}: two hosts have \
                 the same IP address",
                counter.increase(),
                counter.host
            ))
            .evidence(
                "neighbour_address_changes",
                counter.increase(),
                "",
                format!("{} rtnetlink RTM_NEWNEIGH", counter.host),
            )
            .remedy("give one of the two hosts another address")
            .command(run.command_at_host(&counter.host, &probe_command))
            .build()
    }

    /// Packets were dropped, or waited, while the link-layer address was being resolved.
    fn evaluate_resolution(&self, run: &RunView<'_>) -> Option<Finding> {
        let host_increase = |name: &str| {
            let counters = run
                .record
                .counters
                .iter()
                .filter(|counters| counters.counter == name);
            let added = counters.map(|counters| counters.increase());
            // Both ends of one machine read the same machine-wide counter.
            match run.is_one_machine() {
                true => added.max(),
                false => added.reduce(|a, b| a + b),
            }
        };
        let discards = host_increase("neighbour_discards");
        let unanswered = run.counter_increase("neighbour_unanswered", |_, _| true);
        let failures = unanswered.or_else(|| host_increase("neighbour_failures"));
        let from = run
            .record
            .counters
            .iter()
            .find(|counter| counter.counter == "neighbour_discards" && counter.increase() > 0);
        let lost = discards.unwrap_or(0);
        let summary = &run.record.summary;
        // The first request, or the first datagrams, waited for the resolution.
        let first_slow = run.record.slow.first().is_some_and(|slow| {
            slow.number <= LAST_FIRST_REQUEST && slow.time_ns >= RESOLUTION_RETRY_NS
        });
        // Other neighbours may be unresolved: the first request must show it as well.
        if lost == 0 && (failures.unwrap_or(0) == 0 || !first_slow) {
            return None;
        }
        let (part, total) = match run.plan.kind {
            RunKind::Throughput => {
                let direction = run.directions.first()?;
                let missing = direction
                    .summary()
                    .lost
                    .or(direction.summary().retransmits)
                    .unwrap_or(0);
                let first = direction.intervals().next();
                let start =
                    first.and_then(|first| first.lost.or_else(|| Some(first.tcp?.retransmits)));
                let start = start.unwrap_or(missing);
                // Other programs have neighbours as well: the drops must match the loss of this
                // run, or the loss must be at its start.
                let part = if lost * DISCARDED_PART >= missing {
                    lost.min(missing)
                } else {
                    start
                };
                if part == 0 {
                    return None;
                }
                let total = match direction.summary().packets_sent {
                    Some(sent) => sent as f64,
                    None => direction.path_packets(),
                };
                (part as f64, total)
            }
            RunKind::Latency => {
                let round_trips = summary.round_trips? as f64;
                let missing = summary.lost.unwrap_or(0);
                if missing == 0 && !first_slow {
                    return None;
                }
                (missing.max(1) as f64, round_trips + missing as f64)
            }
            _ => return None,
        };
        let cache = run.family_setting(["arp_cache", "ndisc_cache"]);
        let slowest = summary.rtt_ns.map(|rtt| rtt.max);
        let host = from.map_or_else(
            || Role::Client.as_str().to_owned(),
            |from| from.host.clone(),
        );
        FindingBuilder::cause(self.id(), FindingLocation::Path)
            .cost((part / total.max(1.0)).max(MIN_COST))
            .summary(format!(
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
            .evidence(
                "unresolved_discards",
                lost,
                "packets",
                format!("{host} /proc/net/stat/{cache}, machine-wide"),
            )
            .evidence_if(
                "neighbour_unanswered",
                failures,
                "",
                format!("{host} rtnetlink RTM_NEWNEIGH"),
            )
            .evidence(
                "lost or delayed",
                part,
                "packets",
                "lost packets that were dropped or were the first",
            )
            .remedy(
                "resolve the address before the run (ping), add a permanent entry, or enlarge the \
                 queue of waiting packets",
            )
            .command(run.command_at_host(
                &host,
                &super::sysctl_command(run.family_setting(QUEUE_SETTING), QUEUE_BYTES),
            ))
            .build()
    }
}
