//! Conversion of the counters along a path to losses in datagrams.

use std::net::IpAddr;

use linerate_host::snapshot::loss_counters::name;
use linerate_record::facts::Role;
use linerate_record::ids::{CaveatId, LossPoint};
use linerate_record::plan::{Direction, MAX_DATAGRAM_BYTES, Plan, RunKind, TransportProtocol};
use linerate_record::record::{Caveat, CounterDelta, DirectionFigures, PacketLoss};
use linerate_stats::size_costs::fragment_count;

use super::attribution::{LossBounds, attribute_losses};
use super::counter_snapshot::CounterLocation;
use super::lab_network::{LabNetwork, PathHop};
use super::{PORT_NO_BUFFER, PORT_RING_FULL};

/// Most datagrams in one packet of the kernel (UDP_MAX_SEGMENTS of Linux 6.9; 64 before).
const MAX_SEGMENTS: u64 = 128;

/// Returns the most datagrams of this size that the kernel carries in one packet.
#[must_use]
pub fn datagrams_per_packet(payload_bytes: u64) -> u64 {
    (MAX_DATAGRAM_BYTES / payload_bytes.max(1)).clamp(1, MAX_SEGMENTS)
}

/// Interface as named in counters.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CounterInterface {
    host: String,
    interface: Option<String>,
}

/// Links from the client to the server, as far as they are visible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathLinks {
    forward_links: Vec<[CounterInterface; 2]>,
    /// The complete path is visible, and carries no other traffic.
    fully_visible: bool,
    /// Both ends of each link are on this machine, so their counters may count the same packet
    /// twice.
    one_machine: bool,
    ipv6: bool,
}

impl PathLinks {
    /// Path with only the ends' interfaces towards each other visible.
    #[must_use]
    pub fn between_ends(
        client: Option<&str>,
        server: Option<&str>,
        one_machine: bool,
        ipv6: bool,
    ) -> Self {
        let end = |role: Role, interface: Option<&str>| CounterInterface {
            host: role.as_str().to_owned(),
            interface: interface.map(str::to_owned),
        };
        Self {
            forward_links: vec![[end(Role::Client, client), end(Role::Server, server)]],
            fully_visible: false,
            one_machine,
            ipv6,
        }
    }

    /// Path with both ends on one interface of this host, such as loopback.
    #[must_use]
    pub(super) fn on_one_interface(interface: &str, ipv6: bool) -> Self {
        let at = CounterInterface {
            host: Role::Client.as_str().to_owned(),
            interface: Some(interface.to_owned()),
        };
        Self {
            forward_links: vec![[at.clone(), at]],
            fully_visible: false,
            one_machine: true,
            ipv6,
        }
    }

    /// Returns the losses counted at each loss point between the sockets, in the kernel's units;
    /// `None` where a counter is not visible.
    pub(super) fn counted_losses(
        &self,
        direction: Direction,
        counters: &[CounterDelta],
    ) -> [(LossPoint, Option<u64>); 4] {
        let links = self.links(direction);
        let has_counter = |at: &CounterInterface, name| counter_delta(counters, at, name).is_some();
        let sends = links.iter().all(|[from, _]| has_counter(from, name::TX));
        let receives = links.iter().all(|[_, to]| has_counter(to, name::RX));
        let counted = count_drops(self, direction, counters);
        [
            (LossPoint::Qdisc, sends.then_some(counted.qdisc)),
            (LossPoint::InterfaceTx, sends.then_some(counted.tx)),
            (LossPoint::InterfaceRx, receives.then_some(counted.rx)),
            (
                LossPoint::SoftnetBacklog,
                receives.then_some(counted.backlog),
            ),
        ]
    }

    /// Returns every link between two addresses of a network, with all counter locations; `None`
    /// when one of them is not in it.
    #[must_use]
    pub fn in_network(
        network: &LabNetwork,
        client: IpAddr,
        server: IpAddr,
    ) -> Option<(Self, Vec<CounterLocation>)> {
        let hops = network.path(client, server)?;
        let (first, last) = (hops.first()?, hops.last()?);
        let mut locations = Vec::new();
        for PathHop {
            transmitter: from,
            receiver: to,
        } in &hops
        {
            for interface in [from, to] {
                locations.push(CounterLocation {
                    host: interface.host.clone(),
                    namespace: interface.namespace.clone(),
                    interface: Some(interface.interface.clone()),
                });
            }
        }
        for end in [&first.transmitter, &last.receiver] {
            locations.push(CounterLocation {
                host: end.host.clone(),
                namespace: end.namespace.clone(),
                interface: None,
            });
        }
        let counter_interface = |interface: &super::lab_network::HopInterface| CounterInterface {
            host: interface.host.clone(),
            interface: Some(interface.interface.clone()),
        };
        let path = Self {
            forward_links: hops
                .iter()
                .map(|hop| {
                    [
                        counter_interface(&hop.transmitter),
                        counter_interface(&hop.receiver),
                    ]
                })
                .collect(),
            fully_visible: true,
            one_machine: true,
            ipv6: client.to_canonical().is_ipv6(),
        };
        Some((path, locations))
    }

    /// Returns the links in the order of a direction's payload.
    fn links(&self, direction: Direction) -> Vec<[&CounterInterface; 2]> {
        let forward = self.forward_links.iter();
        match direction {
            Direction::Send => forward.map(|[from, to]| [from, to]).collect(),
            Direction::Receive => forward.rev().map(|[from, to]| [to, from]).collect(),
        }
    }
}

/// Packets counted as lost in one direction, in the kernel's units.
#[derive(Debug, Default)]
struct DirectionDrops {
    qdisc: u64,
    tx: u64,
    rx: u64,
    backlog: u64,
    /// The counters of both ends are known.
    complete: bool,
}

fn counter_delta(counters: &[CounterDelta], at: &CounterInterface, name: &str) -> Option<u64> {
    counters
        .iter()
        .find(|c| c.host == at.host && c.interface == at.interface && c.counter == name)
        .map(CounterDelta::increase)
}

/// Adds up the losses on the path, each packet once: a packet that is dropped between two virtual
/// interfaces is counted at both.
fn count_drops(
    path: &PathLinks,
    direction: Direction,
    counters: &[CounterDelta],
) -> DirectionDrops {
    let links = path.links(direction);
    let mut counted = DirectionDrops {
        complete: true,
        ..DirectionDrops::default()
    };
    let host = links.last().map(|[_, to]| CounterInterface {
        host: to.host.clone(),
        interface: None,
    });
    // A counter of the machine; in a lab the interface counters limit it to each hop.
    let backlog = |at: &CounterInterface| counter_delta(counters, at, name::BACKLOG).unwrap_or(0);
    let backlog = host.as_ref().map_or(0, backlog);
    let mut backlog_rest = backlog;
    for [from, to] in links {
        let tx = counter_delta(counters, from, name::TX);
        let rx = counter_delta(counters, to, name::RX);
        counted.complete &= tx.is_some() && rx.is_some();
        let (tx, rx) = (tx.unwrap_or(0), rx.unwrap_or(0));
        let at_device = [
            name::RX_MISSED,
            name::RX_ERRORS,
            PORT_RING_FULL,
            PORT_NO_BUFFER,
        ];
        let at_device = at_device.map(|name| counter_delta(counters, to, name).unwrap_or(0));
        counted.qdisc += counter_delta(counters, from, name::QDISC).unwrap_or(0);
        counted.tx += if path.one_machine {
            tx.saturating_sub(rx)
        } else {
            tx
        };
        let at_backlog = rx.min(backlog_rest);
        backlog_rest -= at_backlog;
        counted.backlog += at_backlog;
        counted.rx += rx - at_backlog + at_device.iter().sum::<u64>();
    }
    if !path.fully_visible {
        counted.backlog = backlog;
    }
    counted
}

/// Returns lower and upper bound of the losses at the receiving host's reassembly.
fn reassembly_bounds(
    path: &PathLinks,
    direction: Direction,
    counters: &[CounterDelta],
    per_datagram: u64,
) -> (u64, u64) {
    let links = path.links(direction);
    let Some(host) = links.last().map(|[_, to]| CounterInterface {
        host: to.host.clone(),
        interface: None,
    }) else {
        return (0, 0);
    };
    let delta = |name| counter_delta(counters, &host, name).unwrap_or(0);
    let open = counters
        .iter()
        .find(|c| c.host == host.host && c.counter == name::REASSEMBLY_OPEN)
        .map_or(0, |c| i128::from(c.after) - i128::from(c.before));
    let timeouts = delta(name::REASSEMBLY_TIMEOUTS);
    // Datagrams that became incomplete meanwhile; those of earlier runs may time out in ours.
    let incomplete = u64::try_from(open + i128::from(timeouts)).unwrap_or(0);
    let rejected = delta(name::REASSEMBLY_FAILED).saturating_sub(timeouts);
    // Received fragments of datagrams that were not reassembled.
    let unassembled =
        delta(name::FRAGMENTS).saturating_sub(per_datagram * delta(name::REASSEMBLED));
    if !path.fully_visible {
        return (0, incomplete + rejected);
    }
    // An incomplete datagram has at least one fragment, and at most all but one. A datagram that
    // was rejected for want of memory may have had all fragments, each counted.
    if rejected == 0 {
        let (least, most) = (unassembled.div_ceil((per_datagram - 1).max(1)), unassembled);
        if (least..=most).contains(&incomplete) {
            return (incomplete, incomplete);
        }
        return (least, most);
    }
    let least = unassembled.div_ceil(per_datagram);
    let most = unassembled.min(incomplete + rejected).max(least);
    (least.max(incomplete).min(most), most)
}

/// Returns the losses of one direction by loss point, and a warning if some are unexplained.
fn split_losses(
    plan: &Plan,
    path: &PathLinks,
    counters: &[CounterDelta],
    figures: &DirectionFigures,
    mtu: Option<u32>,
) -> (Vec<PacketLoss>, Option<Caveat>) {
    let direction = figures.direction;
    let Some(lost) = figures.summary.lost.filter(|&lost| lost > 0) else {
        return (Vec::new(), None);
    };
    let (mut at_queue, mut at_sender) = (0u64, 0u64);
    for stream in &figures.streams {
        let rejected = stream.sender.as_ref().and_then(|s| s.send_refused);
        at_sender += rejected.unwrap_or(0);
        let drops = stream.receiver.as_ref().and_then(|s| s.receive_queue_drops);
        let most = stream.summary.lost.unwrap_or(0);
        // A socket counts from its opening; with omitted time it may count more than were lost.
        at_queue += drops.unwrap_or(0).min(most);
    }
    let max_segments = datagrams_per_packet(plan.payload_bytes);
    let gso = plan.udp_offload.gso == Some(true);
    let coalesced = gso || plan.udp_offload.gro == Some(true);
    let fragment_count = mtu.map_or(1, |mtu| {
        fragment_count(plan.payload_bytes, u64::from(mtu), path.ipv6)
    });
    let counted = count_drops(path, direction, counters);
    // With omitted time, the counted losses may lie in it, completely or not at all.
    let no_omitted_time = plan.omit_ns == 0;
    let path_drops = [
        (LossPoint::Qdisc, counted.qdisc),
        (LossPoint::InterfaceTx, counted.tx),
        (LossPoint::InterfaceRx, counted.rx),
        (LossPoint::SoftnetBacklog, counted.backlog),
    ];
    let mut candidates = vec![LossBounds {
        point: LossPoint::SenderSocket,
        least: if no_omitted_time { at_sender } else { 0 },
        most: at_sender,
        run_only: true,
    }];
    for (point, packets) in path_drops {
        let (least, most) = if fragment_count > 1 {
            // If any fragment of a datagram arrived, the loss belongs to reassembly. Of other
            // datagrams all fragments were dropped, or only the first: the kernel abandons a
            // datagram whose fragment was rejected (FragFails).
            (0, packets)
        } else if gso {
            (packets, packets.saturating_mul(max_segments))
        } else {
            (packets, packets)
        };
        candidates.push(LossBounds {
            point,
            least: if no_omitted_time && path.fully_visible {
                least
            } else {
                0
            },
            most,
            run_only: false,
        });
    }
    let (least, most) = if fragment_count > 1 {
        reassembly_bounds(path, direction, counters, fragment_count)
    } else {
        (0, 0)
    };
    candidates.push(LossBounds {
        point: LossPoint::Reassembly,
        least: if no_omitted_time { least } else { 0 },
        most,
        run_only: false,
    });
    let super_datagrams = coalesced && fragment_count == 1;
    candidates.push(LossBounds {
        point: LossPoint::UdpReceiveQueue,
        least: if no_omitted_time { at_queue } else { 0 },
        most: if super_datagrams {
            at_queue.saturating_mul(max_segments)
        } else {
            at_queue
        },
        run_only: true,
    });
    let shares = attribute_losses(lost, &candidates, path.fully_visible);
    let mut losses = Vec::new();
    for share in shares.iter().filter(|share| share.packets > 0) {
        let counters_missing = share.point == LossPoint::Path && !counted.complete;
        let exact = share.least == share.most && !counters_missing;
        losses.push(PacketLoss {
            direction,
            place: share.point.into(),
            packets: share.packets,
            exact,
            at_least: (!exact).then_some(if counters_missing { 0 } else { share.least }),
            at_most: (!exact).then_some(share.most),
        });
    }
    let unexplained = shares.iter().find(|share| share.point == LossPoint::Path);
    // A lost carrier explains the losses.
    let kept_carrier = lost_carrier(counters).is_empty();
    let caveat = unexplained
        .filter(|share| path.fully_visible && kept_carrier && share.packets > 0)
        .map(|share| {
            Caveat::new(
                CaveatId::LossNotExplained,
                format!(
                    "{} of {lost} lost datagrams are in no counter on their path, although the complete \
                     lab is visible",
                    share.packets
                ),
            )
        });
    (losses, caveat)
}

/// Returns the interfaces that lost their carrier during the run, with the number of times.
fn lost_carrier(counters: &[CounterDelta]) -> Vec<(&CounterDelta, u64)> {
    let carriers = counters.iter().filter(|c| c.counter == name::CARRIER);
    let counted = carriers.map(|counter| (counter, counter.increase()));
    counted.filter(|(_, times)| *times > 0).collect()
}

/// Warns about links that went down.
fn carrier_warning(counters: &[CounterDelta]) -> Option<Caveat> {
    let named = lost_carrier(counters).into_iter().map(|(counter, times)| {
        let interface = counter.interface.as_deref().unwrap_or("an interface");
        let times = match times {
            1 => "once".to_owned(),
            times => format!("{times} times"),
        };
        format!("{interface} of {} {times}", counter.host)
    });
    let named: Vec<String> = named.collect();
    (!named.is_empty()).then(|| {
        Caveat::new(
            CaveatId::CarrierLost,
            format!(
                "links lost their carrier during the run: {}; no interface counter has the packets sent \
                 meanwhile",
                named.join(", ")
            ),
        )
    })
}

/// Returns the losses of each direction by loss point, and the warnings.
///
/// `mtu` returns the MTU of a direction's outgoing interface, where it is known.
#[must_use]
pub fn account_losses(
    plan: &Plan,
    path: &PathLinks,
    counters: &[CounterDelta],
    directions: &[DirectionFigures],
    mtu: impl Fn(Direction) -> Option<u32>,
) -> (Vec<PacketLoss>, Vec<Caveat>) {
    let (mut losses, mut caveats) = (Vec::new(), Vec::new());
    caveats.extend(carrier_warning(counters));
    if plan.kind == RunKind::Throughput && plan.protocol == TransportProtocol::Udp {
        for figures in directions {
            let mtu = mtu(figures.direction);
            let (direction_losses, caveat) = split_losses(plan, path, counters, figures, mtu);
            losses.extend(direction_losses);
            caveats.extend(caveat);
        }
    }
    (losses, caveats)
}

#[cfg(test)]
mod tests {
    use linerate_record::record::{SocketFacts, StreamFigures, Summary};

    use super::*;

    fn figures(lost: u64, at_queue: u64, at_sender: u64) -> DirectionFigures {
        let summary = Summary {
            lost: Some(lost),
            ..Summary::default()
        };
        DirectionFigures {
            direction: Direction::Send,
            summary: summary.clone(),
            streams: vec![StreamFigures {
                id: 1,
                summary,
                mismatch: None,
                sender: Some(SocketFacts {
                    send_refused: Some(at_sender),
                    ..SocketFacts::default()
                }),
                receiver: Some(SocketFacts {
                    receive_queue_drops: Some(at_queue),
                    ..SocketFacts::default()
                }),
            }],
        }
    }

    fn plan(payload_bytes: u64) -> Plan {
        let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Udp, "host");
        plan.payload_bytes = payload_bytes;
        plan
    }

    fn counter(host: &str, interface: Option<&str>, name: &str, added: u64) -> CounterDelta {
        CounterDelta {
            host: host.to_owned(),
            interface: interface.map(str::to_owned),
            counter: name.to_owned(),
            before: 1_000,
            after: 1_000 + added,
        }
    }

    fn lab_links() -> PathLinks {
        let at = |host: &str, interface: &str| CounterInterface {
            host: host.to_owned(),
            interface: Some(interface.to_owned()),
        };
        PathLinks {
            forward_links: vec![
                [at("client", "eth0"), at("s1", "p1")],
                [at("s1", "p2"), at("server", "eth0")],
            ],
            fully_visible: true,
            one_machine: true,
            ipv6: false,
        }
    }

    fn loss_points(losses: &[PacketLoss]) -> Vec<(LossPoint, u64, bool)> {
        losses
            .iter()
            .map(|loss| (loss.place.known().unwrap(), loss.packets, loss.exact))
            .collect()
    }

    #[test]
    fn in_a_lab_every_counter_on_the_path_counts_once() {
        let counters = [
            counter("client", Some("eth0"), name::TX, 3),
            counter("s1", Some("p1"), name::RX, 3),
            counter("s1", Some("p1"), name::QDISC, 50),
            counter("s1", Some("p2"), name::QDISC, 40),
            counter("s1", Some("p2"), name::TX, 6),
            counter("server", Some("eth0"), name::RX, 5),
            counter("server", None, name::BACKLOG, 4),
        ];
        let (losses, caveat) = split_losses(
            &plan(1000),
            &lab_links(),
            &counters,
            &figures(60, 10, 1),
            None,
        );
        assert_eq!(
            loss_points(&losses),
            [
                (LossPoint::SenderSocket, 1, true),
                (LossPoint::Qdisc, 40, true),
                (LossPoint::InterfaceTx, 1, true),
                (LossPoint::InterfaceRx, 4, true),
                (LossPoint::SoftnetBacklog, 4, true),
                (LossPoint::UdpReceiveQueue, 10, true),
            ]
        );
        assert_eq!(caveat, None);
        let (losses, caveat) = split_losses(
            &plan(1000),
            &lab_links(),
            &counters,
            &figures(70, 10, 1),
            None,
        );
        assert_eq!(losses.last().map(|loss| loss.packets), Some(10));
        assert!(caveat.is_some_and(|caveat| caveat.id == CaveatId::LossNotExplained));
    }

    /// An overrun device and a bad cable lose packets at the same loss point.
    #[test]
    fn overruns_and_broken_frames_are_lost_at_the_interface() {
        for (counter_name, lost) in [(name::RX_MISSED, 40), (name::RX_ERRORS, 40)] {
            let counters = [
                counter("server", Some("eth0"), name::RX, 0),
                counter("server", Some("eth0"), counter_name, lost),
            ];
            let figures = figures(lost, 0, 0);
            let (losses, _) = split_losses(&plan(1000), &lab_links(), &counters, &figures, None);
            assert_eq!(
                loss_points(&losses),
                [(LossPoint::InterfaceRx, lost, true)],
                "{counter_name}"
            );
        }
    }

    #[test]
    fn a_link_that_went_down_explains_the_rest() {
        let mut counters = vec![
            counter("client", Some("eth0"), name::CARRIER, 0),
            counter("s1", Some("p1"), name::CARRIER, 0),
        ];
        let warnings = |counters: &[CounterDelta]| {
            let figures = [figures(60, 0, 0)];
            let (losses, caveats) =
                account_losses(&plan(1000), &lab_links(), counters, &figures, |_| None);
            assert_eq!(loss_points(&losses), [(LossPoint::Path, 60, false)]);
            let caveats = caveats.into_iter();
            caveats
                .map(|caveat| (caveat.id.known().unwrap(), caveat.reason))
                .collect::<Vec<_>>()
        };
        assert_eq!(warnings(&counters)[0].0, CaveatId::LossNotExplained);
        counters[0].after += 1;
        counters[1].after += 2;
        let warnings = warnings(&counters);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert_eq!(warnings[0].0, CaveatId::CarrierLost);
        assert!(
            warnings[0]
                .1
                .contains("eth0 of client once, p1 of s1 2 times;"),
            "{warnings:?}"
        );
    }

    #[test]
    fn the_other_direction_passes_the_other_queues() {
        let counters = [
            counter("s1", Some("p1"), name::QDISC, 50),
            counter("s1", Some("p2"), name::QDISC, 40),
        ];
        let back = DirectionFigures {
            direction: Direction::Receive,
            ..figures(50, 0, 0)
        };
        let (losses, _) = split_losses(&plan(1000), &lab_links(), &counters, &back, None);
        assert_eq!(loss_points(&losses), [(LossPoint::Qdisc, 50, true)]);
    }

    #[test]
    fn between_ends_shared_counters_bound_and_the_path_has_the_rest() {
        let path = PathLinks::between_ends(Some("eth0"), Some("eth1"), false, false);
        let mut counters = vec![
            counter("client", Some("eth0"), name::TX, 0),
            counter("client", Some("eth0"), name::QDISC, 20),
            counter("server", Some("eth1"), name::RX, 0),
        ];
        let (losses, _) = split_losses(&plan(1000), &path, &counters, &figures(100, 10, 0), None);
        assert_eq!(
            loss_points(&losses),
            [
                (LossPoint::Qdisc, 20, false),
                (LossPoint::UdpReceiveQueue, 10, true),
                (LossPoint::Path, 70, false)
            ]
        );
        assert_eq!(
            (losses[2].at_least, losses[2].at_most),
            (Some(70), Some(90))
        );
        // No other counter increased: the rest was certainly lost on the path.
        counters[1].after = counters[1].before;
        let (losses, _) = split_losses(&plan(1000), &path, &counters, &figures(100, 10, 0), None);
        assert_eq!(
            loss_points(&losses),
            [
                (LossPoint::UdpReceiveQueue, 10, true),
                (LossPoint::Path, 90, true)
            ]
        );
        // Without the server's counters this is not certain.
        let (losses, _) = split_losses(&plan(1000), &path, &[], &figures(100, 10, 0), None);
        assert_eq!(
            loss_points(&losses),
            [
                (LossPoint::UdpReceiveQueue, 10, true),
                (LossPoint::Path, 90, false)
            ]
        );
    }

    #[test]
    fn super_datagrams_are_resolved_where_one_point_dropped() {
        let mut plan = plan(1472);
        plan.udp_offload.gso = Some(true);
        plan.udp_offload.gro = Some(true);
        let (losses, caveat) = split_losses(&plan, &lab_links(), &[], &figures(880, 20, 0), None);
        assert_eq!(
            loss_points(&losses),
            [(LossPoint::UdpReceiveQueue, 880, true)]
        );
        assert_eq!(caveat, None);
        let counters = [counter("s1", Some("p2"), name::QDISC, 5)];
        let (losses, _) = split_losses(&plan, &lab_links(), &counters, &figures(880, 18, 0), None);
        assert_eq!(losses.iter().map(|loss| loss.packets).sum::<u64>(), 880);
        assert!(losses.iter().all(|loss| !loss.exact));
    }

    #[test]
    fn an_incomplete_datagram_is_lost_once_at_reassembly() {
        // 100 datagrams of 4 fragments; a queue dropped 30 fragments: 5 complete datagrams, and one
        // or more fragments of 7 others.
        let counters = [
            counter("client", Some("eth0"), name::QDISC, 30),
            counter("server", None, name::FRAGMENTS, 370),
            counter("server", None, name::REASSEMBLED, 88),
            counter("server", None, name::REASSEMBLY_OPEN, 7),
        ];
        let (losses, caveat) = split_losses(
            &plan(5888),
            &lab_links(),
            &counters,
            &figures(12, 0, 0),
            Some(1500),
        );
        assert_eq!(
            loss_points(&losses),
            [
                (LossPoint::Qdisc, 5, true),
                (LossPoint::Reassembly, 7, true)
            ]
        );
        assert_eq!(caveat, None);
        // The kernel abandons a datagram with its first rejected fragment: each drop is one
        // datagram.
        let counters = [
            counter("client", Some("eth0"), name::QDISC, 11_277),
            counter("server", None, name::FRAGMENTS, 4_590),
            counter("server", None, name::REASSEMBLED, 574),
            counter("server", None, name::REASSEMBLY_OPEN, 1_148),
        ];
        let (losses, caveat) = split_losses(
            &plan(5888),
            &lab_links(),
            &counters,
            &figures(11_277, 0, 0),
            Some(1500),
        );
        assert_eq!(
            loss_points(&losses),
            [
                (LossPoint::Qdisc, 10_129, true),
                (LossPoint::Reassembly, 1_148, true)
            ]
        );
        assert_eq!(caveat, None);
        // Rejected for want of memory, each fragment counted.
        let counters = [
            counter("server", None, name::FRAGMENTS, 400),
            counter("server", None, name::REASSEMBLED, 90),
            counter("server", None, name::REASSEMBLY_FAILED, 35),
        ];
        let (losses, _) = split_losses(
            &plan(5888),
            &lab_links(),
            &counters,
            &figures(13, 3, 0),
            Some(1500),
        );
        assert_eq!(
            loss_points(&losses),
            [
                (LossPoint::Reassembly, 10, true),
                (LossPoint::UdpReceiveQueue, 3, true)
            ]
        );
    }
}
