//! An interface drops packets.

use linerate_metric::finding::{End, Finding};
use linerate_metric::plan::{Kind, Protocol};
use linerate_metric::units::{format_count, format_share};

use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, Way, name};

/// Smallest share of the packets that matters.
pub(super) const MATTERS: f64 = 0.0005;

/// Fewest drops; fewer are noise.
pub(super) const FEW: u64 = 10;

/// See docs/CAUSES.md#nic-drop.
pub struct NicDrop;

impl Rule for NicDrop {
    fn id(&self) -> &'static str {
        "nic-drop"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        if case.plan.kind != Kind::Throughput {
            return Vec::new();
        }
        let ways = case.ways.iter();
        ways.filter_map(|way| self.of(case, way)).collect()
    }
}

/// Interface counters, with true for those that count received payload.
const COUNTERS: [(&str, bool); 4] = [
    ("rx_missed", true),
    ("rx_errors", true),
    ("rx_dropped", true),
    ("tx_dropped", false),
];

/// Returns the segments whose retransmission was necessary; without a counter any number.
pub(super) fn needed_again(way: &Way<'_>) -> u64 {
    way.tcp()
        .map_or(u64::MAX, |tcp| tcp.retransmits.saturating_sub(tcp.spurious))
}

impl NicDrop {
    fn of(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        // Drops at the port of our stack belong to too-few-descriptors.
        let at_rx = match way.is_own_stack(way.receiver) {
            true => 0,
            false => way.lost_at("interface-rx"),
        };
        let at_tx = way.lost_at("interface-tx");
        let of_udp = at_rx + at_tx;
        let is_udp = case.plan.protocol == Protocol::Udp;
        let backlog = case.added("backlog_drops", |_, _| true).unwrap_or(0);
        let (sender, receiver) = (name(way.sender), name(way.receiver));
        // The largest counter. A virtual link counts a packet at both of its ends: it is assigned
        // to the receiving one, as in `losses`.
        let at = COUNTERS
            .iter()
            .flat_map(|&(counter, receives)| {
                let found = case.record.counters.iter();
                found
                    .filter(move |found| {
                        let here = match receives {
                            true => found.host != sender,
                            false => found.host != receiver,
                        };
                        let lost_there = !is_udp || if receives { at_rx > 0 } else { at_tx > 0 };
                        found.counter == counter && here && lost_there
                    })
                    .map(move |found| (found, receives))
            })
            .max_by_key(|(found, receives)| (found.added(), *receives))?
            .0;
        let dropped = at.added().saturating_sub(match at.counter == "rx_dropped" {
            // The counter includes packets that the backlog queues dropped.
            true => backlog,
            false => 0,
        });
        let lost = match is_udp {
            true => of_udp,
            // Drops without a retransmission belong to other traffic.
            false => dropped.min(needed_again(way)),
        };
        let whole = match is_udp {
            true => way.packets_sent(),
            false => way.packets() + lost as f64,
        };
        let share = lost as f64 / whole.max(1.0);
        if lost < FEW || share < MATTERS || dropped == 0 {
            return None;
        }
        let interface = at.interface.as_deref().unwrap_or("IF");
        let end = match at.host.as_str() {
            host if host == receiver => End::from(way.receiver),
            host if host == sender => End::from(way.sender),
            _ => End::Path,
        };
        let rings = case
            .interface(way.receiver)
            .filter(|_| end == End::from(way.receiver));
        let descriptors = rings.and_then(|found| found.rx_descriptors);
        let longest = rings.and_then(|found| found.rx_descriptors_max);
        let longer = longest.filter(|&most| descriptors.is_none_or(|now| now < most));
        let cost = match (is_udp, way.tcp()) {
            (false, Some(tcp)) => super::congestion_loss::held_by_congestion(&tcp).max(share),
            _ => share,
        };
        let receives = way.receives_by().filter(|_| end == End::from(way.receiver));
        let largest = way.packet_bytes().unwrap_or(0.0);
        let short = receives
            .and_then(|found| found.mtu)
            .filter(|&mtu| largest > f64::from(mtu));
        let is_virtual = receives
            .or(way.sends_by().filter(|_| end == End::from(way.sender)))
            .is_some_and(|found| found.driver.as_deref() == Some("veth"));
        let (remedy, command) = match (short, is_virtual) {
            (Some(mtu), _) => (
                format!(
                    "its MTU of {mtu} is smaller than the received packets: set the same MTU at \
                     both ends of the link, or send smaller packets"
                ),
                case.again(&format!(
                    "-l {}",
                    mtu.saturating_sub(case.datagram_headers()).max(1)
                )),
            ),
            (None, true) => (
                "it is a virtual link, which drops packets that its other end does not accept: \
                 check that end's MTU, state and filters"
                    .to_owned(),
                case.at_host(&at.host, &format!("ip -s -d link show {interface}")),
            ),
            (None, false) if at.counter == "rx_errors" => (
                "it received corrupted frames: check the cable, its connectors, the switch port, \
                 and the negotiated mode"
                    .to_owned(),
                case.at_host(
                    &at.host,
                    &format!("ethtool -S {interface} | grep -iE 'crc|align|symbol|err'"),
                ),
            ),
            (None, false) => (
                "use more receive descriptors, more queues, or a receiver that polls faster"
                    .to_owned(),
                match longer {
                    Some(most) => {
                        case.at_host(&at.host, &format!("ethtool -G {interface} rx {most}"))
                    }
                    None => case.at_host(
                        &at.host,
                        &format!("ethtool -S {interface} | grep -iE 'drop|miss|err'"),
                    ),
                },
            ),
        };
        Draft::cause(self.id(), end)
            .way(way.direction)
            .cost(cost)
            .says(format!(
                "the interface {interface} of {} dropped {} packets ({})",
                at.host,
                format_count(lost),
                format_share(share)
            ))
            .seen(
                &at.counter,
                at.added(),
                "packets",
                format!("{} {interface} rtnl_link_stats64", at.host),
            )
            .seen_if("rx descriptors", descriptors, "", "ethtool -g")
            .seen_if("mtu", short, "B", format!("{} {interface}", at.host))
            .seen_if("largest packet", short.map(|_| largest), "B", "plan")
            .remedy(remedy)
            .command(command)
            .gain(
                is_udp.then(|| 1.0 / (1.0 - share).max(0.01)),
                "1 / (1 - share lost here)",
            )
            .found()
    }
}
