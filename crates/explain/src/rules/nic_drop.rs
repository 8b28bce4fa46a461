//! An interface drops packets.

use linerate_record::finding::{Finding, FindingLocation};
use linerate_record::ids::{CauseId, LossPoint};
use linerate_record::plan::{RunKind, TransportProtocol};
use linerate_stats::units::{format_count, format_share};

use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, percent};
use crate::run_view::{DirectionView, RunView};

/// Smallest share of the packets that matters.
pub(super) const MIN_RELEVANT_SHARE: f64 = 0.0005;

/// Fewest drops; fewer are noise.
pub(super) const MIN_DROPS: u64 = 10;

/// See docs/CAUSES.md#nic-drop.
pub struct NicDrop;

impl Rule for NicDrop {
    fn id(&self) -> CauseId {
        CauseId::NicDrop
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "An interface drops packets that it receives or sends.",
            shown_when: vec![detection(
                "TCP and UDP",
                [
                    format!(
                        "an interface on the path dropped {MIN_DROPS} packets or more, and {} or \
                         more",
                        percent(MIN_RELEVANT_SHARE)
                    ),
                    "counters: `rx_missed` (no space), `rx_errors` (corrupted), `rx_dropped`, \
                     `tx_dropped` (with failed sends)"
                        .into(),
                    "`rx_dropped` counts less the drops of [softnet-backlog](#softnet-backlog)"
                        .into(),
                    "UDP: as many packets as `losses` has there".into(),
                    "TCP: no more packets than the needed retransmits".into(),
                ],
            )],
            not_when: vec![
                "the port is one of the user-space stack: see [too-few-descriptors](#too-few-descriptors)"
                    .into(),
            ],
            evidence: &[
                ("rx_missed", "packets"),
                ("rx_errors", "packets"),
                ("rx_dropped", "packets"),
                ("tx_dropped", "packets"),
                ("rx descriptors", ""),
                ("mtu", "B"),
                ("largest packet", "B"),
            ],
            cost: vec![
                "UDP: share of the packets lost there.".into(),
                "TCP: share of the time in which only the congestion window limits the sender."
                    .into(),
            ],
            notes: vec![
                "A virtual link counts a packet that it drops at both of its ends: the finding \
                 names the one that `losses` has."
                    .into(),
                "MTU and largest packet are evidence if packets exceed the MTU of the receiving \
                 interface."
                    .into(),
            ],
            remedy: vec![
                "`rx_errors`: check the cable, its connectors and the switch port.".into(),
                "Otherwise use more descriptors (`ethtool -G`), more queues, or a receiver that \
                 polls faster."
                    .into(),
                "Set the same MTU at both ends of a link.".into(),
            ],
            wrong_when: vec![
                "`rx_dropped` counts frames of protocols that the host does not have".into(),
            ],
            ..CauseReference::cause()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        if run.plan.kind != RunKind::Throughput {
            return Vec::new();
        }
        let directions = run.directions.iter();
        directions
            .filter_map(|direction| self.evaluate_direction(run, direction))
            .collect()
    }
}

/// Interface counters, with true for those that count received payload.
const INTERFACE_DROP_COUNTERS: [(&str, bool); 4] = [
    ("rx_missed", true),
    ("rx_errors", true),
    ("rx_dropped", true),
    ("tx_dropped", false),
];

/// Returns the segments whose retransmission was necessary; without a counter any number.
pub(super) fn needed_retransmits(direction: &DirectionView<'_>) -> u64 {
    direction.tcp().map_or(u64::MAX, |tcp| {
        tcp.retransmits.saturating_sub(tcp.spurious_retransmits)
    })
}

impl NicDrop {
    fn evaluate_direction(
        &self,
        run: &RunView<'_>,
        direction: &DirectionView<'_>,
    ) -> Option<Finding> {
        // Drops at the port of our stack belong to too-few-descriptors.
        let at_rx = match direction.uses_netstack(direction.receiver) {
            true => 0,
            false => direction.lost_at(LossPoint::InterfaceRx),
        };
        let at_tx = direction.lost_at(LossPoint::InterfaceTx);
        let of_udp = at_rx + at_tx;
        let is_udp = run.plan.protocol == TransportProtocol::Udp;
        let backlog = run
            .counter_increase("backlog_drops", |_, _| true)
            .unwrap_or(0);
        let (sender, receiver) = (direction.sender.as_str(), direction.receiver.as_str());
        // The largest counter. A virtual link counts a packet at both of its ends: it is assigned
        // to the receiving one, as in `losses`.
        let drop_counter = INTERFACE_DROP_COUNTERS
            .iter()
            .flat_map(|&(counter, receives)| {
                let entries = run.record.counters.iter();
                entries
                    .filter(move |entry| {
                        let is_at_end = match receives {
                            true => entry.host != sender,
                            false => entry.host != receiver,
                        };
                        let lost_there = !is_udp || if receives { at_rx > 0 } else { at_tx > 0 };
                        entry.counter == counter && is_at_end && lost_there
                    })
                    .map(move |entry| (entry, receives))
            })
            .max_by_key(|(entry, receives)| (entry.increase(), *receives))?
            .0;
        let dropped =
            drop_counter
                .increase()
                .saturating_sub(match drop_counter.counter == "rx_dropped" {
                    // The counter includes packets that the backlog queues dropped.
                    true => backlog,
                    false => 0,
                });
        let lost = match is_udp {
            true => of_udp,
            // Drops without a retransmission belong to other traffic.
            false => dropped.min(needed_retransmits(direction)),
        };
        let total = match is_udp {
            true => direction.packets_sent(),
            false => direction.path_packets() + lost as f64,
        };
        let share = lost as f64 / total.max(1.0);
        if lost < MIN_DROPS || share < MIN_RELEVANT_SHARE || dropped == 0 {
            return None;
        }
        let interface = drop_counter.interface.as_deref().unwrap_or("IF");
        let end = match drop_counter.host.as_str() {
            host if host == receiver => FindingLocation::from(direction.receiver),
            host if host == sender => FindingLocation::from(direction.sender),
            _ => FindingLocation::Path,
        };
        let rings = run
            .interface(direction.receiver)
            .filter(|_| end == FindingLocation::from(direction.receiver));
        let descriptors = rings.and_then(|entry| entry.rx_descriptors);
        let longest = rings.and_then(|entry| entry.rx_descriptors_max);
        let longer = longest.filter(|&most| descriptors.is_none_or(|now| now < most));
        let cost = match (is_udp, direction.tcp()) {
            (false, Some(tcp)) => super::congestion_loss::cwnd_limited_share(&tcp).max(share),
            _ => share,
        };
        let receives = direction
            .receiver_interface()
            .filter(|_| end == FindingLocation::from(direction.receiver));
        let largest = direction.packet_bytes().unwrap_or(0.0);
        let short = receives
            .and_then(|entry| entry.mtu)
            .filter(|&mtu| largest > f64::from(mtu));
        let is_virtual = receives
            .or(direction
                .sender_interface()
                .filter(|_| end == FindingLocation::from(direction.sender)))
            .is_some_and(|entry| entry.driver.as_deref() == Some("veth"));
        let (remedy, command) = match (short, is_virtual) {
            (Some(mtu), _) => (
                format!(
                    "its MTU of {mtu} is smaller than the received packets: set the same MTU at \
                     both ends of the link, or send smaller packets"
                ),
                run.rerun_command(&format!(
                    "-l {}",
                    mtu.saturating_sub(run.datagram_headers()).max(1)
                )),
            ),
            (None, true) => (
                "it is a virtual link, which drops packets that its other end does not accept: \
                 check that end's MTU, state and filters"
                    .to_owned(),
                run.command_at_host(
                    &drop_counter.host,
                    &format!("ip -s -d link show {interface}"),
                ),
            ),
            (None, false) if drop_counter.counter == "rx_errors" => (
                "it received corrupted frames: check the cable, its connectors, the switch port, \
                 and the negotiated mode"
                    .to_owned(),
                run.command_at_host(
                    &drop_counter.host,
                    &format!("ethtool -S {interface} | grep -iE 'crc|align|symbol|err'"),
                ),
            ),
            (None, false) => (
                "use more receive descriptors, more queues, or a receiver that polls faster"
                    .to_owned(),
                match longer {
                    Some(most) => run.command_at_host(
                        &drop_counter.host,
                        &format!("ethtool -G {interface} rx {most}"),
                    ),
                    None => run.command_at_host(
                        &drop_counter.host,
                        &format!("ethtool -S {interface} | grep -iE 'drop|miss|err'"),
                    ),
                },
            ),
        };
        FindingBuilder::cause(self.id(), end)
            .direction(direction.direction)
            .cost(cost)
            .summary(format!(
                "the interface {interface} of {} dropped {} packets ({})",
                drop_counter.host,
                format_count(lost),
                format_share(share)
            ))
            .evidence(
                &drop_counter.counter,
                drop_counter.increase(),
                "packets",
                format!("{} {interface} rtnl_link_stats64", drop_counter.host),
            )
            .evidence_if("rx descriptors", descriptors, "", "ethtool -g")
            .evidence_if(
                "mtu",
                short,
                "B",
                format!("{} {interface}", drop_counter.host),
            )
            .evidence_if("largest packet", short.map(|_| largest), "B", "plan")
            .remedy(remedy)
            .command(command)
            .gain(
                is_udp.then(|| 1.0 / (1.0 - share).max(0.01)),
                "1 / (1 - share lost here)",
            )
            .build()
    }
}
