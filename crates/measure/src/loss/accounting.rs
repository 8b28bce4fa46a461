//! Conversion of the counters along a path to losses in datagrams.

use std::net::IpAddr;

use linerate_host::snapshot::loss_counters::name;
use linerate_metric::facts::Role;
use linerate_metric::plan::{Direction, Kind, LARGEST_DATAGRAM_BYTES, Plan, Protocol};
use linerate_metric::record::{DirectionFigures, Doubt, Loss, PlaceCounter};
use linerate_metric::size_costs::fragments;

use super::attribution::{Candidate, PATH, explain};
use super::counter_snapshot::Spot;
use super::lab_network::{Hop, Network};
use super::{PORT_NO_BUFFER, PORT_RING_FULL};

/// Most datagrams in one packet of the kernel (UDP_MAX_SEGMENTS of Linux 6.9).
const SEGMENTS: u64 = 128;

/// Interface as named in counters.
#[derive(Clone, Debug, PartialEq, Eq)]
struct At {
    host: String,
    interface: Option<String>,
}

/// Links from the client to the server, as far as they are visible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ways {
    there: Vec<[At; 2]>,
    /// The complete path is visible, and carries no other traffic.
    closed: bool,
    /// Both ends of each link are on this machine, so their counters may count the same packet
    /// twice.
    one_machine: bool,
    ipv6: bool,
}

impl Ways {
    /// Path with only the ends' interfaces towards each other visible.
    #[must_use]
    pub fn between_ends(
        near: Option<&str>,
        far: Option<&str>,
        one_machine: bool,
        ipv6: bool,
    ) -> Self {
        let at = |role, interface: Option<&str>| At {
            host: name_of(role).to_owned(),
            interface: interface.map(str::to_owned),
        };
        Self {
            there: vec![[at(Role::Client, near), at(Role::Server, far)]],
            closed: false,
            one_machine,
            ipv6,
        }
    }

    /// Path with both ends on one interface of this host, such as loopback.
    #[must_use]
    pub(super) fn on_this_host(interface: &str, ipv6: bool) -> Self {
        let at = At {
            host: name_of(Role::Client).to_owned(),
            interface: Some(interface.to_owned()),
        };
        Self {
            there: vec![[at.clone(), at]],
            closed: false,
            one_machine: true,
            ipv6,
        }
    }

    /// Returns the losses counted at each loss point between the sockets, in the kernel's units;
    /// `None` where a counter is not visible.
    pub(super) fn seen(
        &self,
        direction: Direction,
        counters: &[PlaceCounter],
    ) -> [(&'static str, Option<u64>); 4] {
        let links = self.links(direction);
        let knows = |at: &At, name| added(counters, at, name).is_some();
        let sends = links.iter().all(|[from, _]| knows(from, name::TX));
        let receives = links.iter().all(|[_, to]| knows(to, name::RX));
        let counted = count(self, direction, counters);
        [
            ("qdisc", sends.then_some(counted.qdisc)),
            ("interface-tx", sends.then_some(counted.tx)),
            ("interface-rx", receives.then_some(counted.rx)),
            ("softnet-backlog", receives.then_some(counted.backlog)),
        ]
    }

    /// Returns every link between two addresses of a network, with all counter locations; `None`
    /// when one of them is not in it.
    #[must_use]
    pub fn within(network: &Network, near: IpAddr, far: IpAddr) -> Option<(Self, Vec<Spot>)> {
        let hops = network.way(near, far)?;
        let (first, last) = (hops.first()?, hops.last()?);
        let mut spots = Vec::new();
        for Hop { from, to } in &hops {
            for place in [from, to] {
                spots.push(Spot {
                    host: place.host.clone(),
                    namespace: place.namespace.clone(),
                    interface: Some(place.interface.clone()),
                });
            }
        }
        for end in [&first.from, &last.to] {
            spots.push(Spot {
                host: end.host.clone(),
                namespace: end.namespace.clone(),
                interface: None,
            });
        }
        let at = |place: &super::lab_network::Place| At {
            host: place.host.clone(),
            interface: Some(place.interface.clone()),
        };
        let ways = Self {
            there: hops
                .iter()
                .map(|hop| [at(&hop.from), at(&hop.to)])
                .collect(),
            closed: true,
            one_machine: true,
            ipv6: near.to_canonical().is_ipv6(),
        };
        Some((ways, spots))
    }

    /// Returns the links in the order of a direction's payload.
    fn links(&self, direction: Direction) -> Vec<[&At; 2]> {
        let there = self.there.iter();
        match direction {
            Direction::Send => there.map(|[from, to]| [from, to]).collect(),
            Direction::Receive => there.rev().map(|[from, to]| [to, from]).collect(),
        }
    }
}

/// Returns the host name of an end in its own counters.
#[must_use]
pub fn name_of(role: Role) -> &'static str {
    match role {
        Role::Client => "client",
        Role::Server => "server",
    }
}

/// Packets counted as lost in one direction, in the kernel's units.
#[derive(Debug, Default)]
struct Counted {
    qdisc: u64,
    tx: u64,
    rx: u64,
    backlog: u64,
    /// The counters of both ends are known.
    complete: bool,
}

fn added(counters: &[PlaceCounter], at: &At, name: &str) -> Option<u64> {
    counters
        .iter()
        .find(|c| c.host == at.host && c.interface == at.interface && c.counter == name)
        .map(PlaceCounter::added)
}

/// Adds up the losses on the path, each packet once: a packet that is dropped between two virtual
/// interfaces is counted at both.
fn count(ways: &Ways, direction: Direction, counters: &[PlaceCounter]) -> Counted {
    let links = ways.links(direction);
    let mut counted = Counted {
        complete: true,
        ..Counted::default()
    };
    let host = links.last().map(|[_, to]| At {
        host: to.host.clone(),
        interface: None,
    });
    // A counter of the machine; in a lab the interface counters limit it to each hop.
    let backlog = |at: &At| added(counters, at, name::BACKLOG).unwrap_or(0);
    let backlog = host.as_ref().map_or(0, backlog);
    let mut backlog_left = backlog;
    for [from, to] in links {
        let tx = added(counters, from, name::TX);
        let rx = added(counters, to, name::RX);
        counted.complete &= tx.is_some() && rx.is_some();
        let (tx, rx) = (tx.unwrap_or(0), rx.unwrap_or(0));
        let at_device = [
            name::RX_MISSED,
            name::RX_ERRORS,
            PORT_RING_FULL,
            PORT_NO_BUFFER,
        ];
        let at_device = at_device.map(|name| added(counters, to, name).unwrap_or(0));
        counted.qdisc += added(counters, from, name::QDISC).unwrap_or(0);
        counted.tx += if ways.one_machine {
            tx.saturating_sub(rx)
        } else {
            tx
        };
        let at_backlog = rx.min(backlog_left);
        backlog_left -= at_backlog;
        counted.backlog += at_backlog;
        counted.rx += rx - at_backlog + at_device.iter().sum::<u64>();
    }
    if !ways.closed {
        counted.backlog = backlog;
    }
    counted
}

/// Returns lower and upper bound of the losses at the receiving host's reassembly.
fn reassembly(
    ways: &Ways,
    direction: Direction,
    counters: &[PlaceCounter],
    per_datagram: u64,
) -> (u64, u64) {
    let links = ways.links(direction);
    let Some(host) = links.last().map(|[_, to]| At {
        host: to.host.clone(),
        interface: None,
    }) else {
        return (0, 0);
    };
    let of = |name| added(counters, &host, name).unwrap_or(0);
    let open = counters
        .iter()
        .find(|c| c.host == host.host && c.counter == name::REASSEMBLY_OPEN)
        .map_or(0, |c| i128::from(c.after) - i128::from(c.before));
    let timeouts = of(name::REASSEMBLY_TIMEOUTS);
    // Datagrams that became incomplete meanwhile; those of earlier runs may time out in ours.
    let incomplete = u64::try_from(open + i128::from(timeouts)).unwrap_or(0);
    let refused = of(name::REASSEMBLY_FAILED).saturating_sub(timeouts);
    // Received fragments of datagrams that were not reassembled.
    let stray = of(name::FRAGMENTS).saturating_sub(per_datagram * of(name::REASSEMBLED));
    if !ways.closed {
        return (0, incomplete + refused);
    }
    // An incomplete datagram has at least one fragment, and at most all but one. A datagram that
    // was rejected for want of memory may have had all fragments, each counted.
    if refused == 0 {
        let (least, most) = (stray.div_ceil((per_datagram - 1).max(1)), stray);
        if (least..=most).contains(&incomplete) {
            return (incomplete, incomplete);
        }
        return (least, most);
    }
    let least = stray.div_ceil(per_datagram);
    let most = stray.min(incomplete + refused).max(least);
    (least.max(incomplete).min(most), most)
}

/// Returns the losses of one direction by loss point, and a warning if some are unexplained.
fn split(
    plan: &Plan,
    ways: &Ways,
    counters: &[PlaceCounter],
    figures: &DirectionFigures,
    mtu: Option<u32>,
) -> (Vec<Loss>, Option<Doubt>) {
    let direction = figures.direction;
    let Some(lost) = figures.summary.lost.filter(|&lost| lost > 0) else {
        return (Vec::new(), None);
    };
    let (mut at_queue, mut at_sender) = (0u64, 0u64);
    for stream in &figures.streams {
        let refused = stream.sender.as_ref().and_then(|s| s.send_refused);
        at_sender += refused.unwrap_or(0);
        let drops = stream.receiver.as_ref().and_then(|s| s.receive_queue_drops);
        let most = stream.summary.lost.unwrap_or(0);
        // A socket counts from its opening; with omitted time it may count more than were lost.
        at_queue += drops.unwrap_or(0).min(most);
    }
    let bundle = (LARGEST_DATAGRAM_BYTES / plan.payload_bytes.max(1)).clamp(1, SEGMENTS);
    let gso = plan.udp_offload.gso == Some(true);
    let joined = gso || plan.udp_offload.gro == Some(true);
    let pieces = mtu.map_or(1, |mtu| {
        fragments(plan.payload_bytes, u64::from(mtu), ways.ipv6)
    });
    let counted = count(ways, direction, counters);
    // With omitted time, the counted losses may lie in it, completely or not at all.
    let whole = plan.omit_ns == 0;
    let on_the_way = [
        ("qdisc", counted.qdisc),
        ("interface-tx", counted.tx),
        ("interface-rx", counted.rx),
        ("softnet-backlog", counted.backlog),
    ];
    let mut candidates = vec![Candidate {
        place: "sender-socket",
        least: if whole { at_sender } else { 0 },
        most: at_sender,
        own: true,
    }];
    for (place, packets) in on_the_way {
        let (least, most) = if pieces > 1 {
            // If any fragment of a datagram arrived, the loss belongs to reassembly. Of other
            // datagrams all fragments were dropped, or only the first: the kernel abandons a
            // datagram whose fragment was rejected (FragFails).
            (0, packets)
        } else if gso {
            (packets, packets.saturating_mul(bundle))
        } else {
            (packets, packets)
        };
        candidates.push(Candidate {
            place,
            least: if whole && ways.closed { least } else { 0 },
            most,
            own: false,
        });
    }
    let (least, most) = if pieces > 1 {
        reassembly(ways, direction, counters, pieces)
    } else {
        (0, 0)
    };
    candidates.push(Candidate {
        place: "reassembly",
        least: if whole { least } else { 0 },
        most,
        own: false,
    });
    let bundled = joined && pieces == 1;
    candidates.push(Candidate {
        place: "udp-receive-queue",
        least: if whole { at_queue } else { 0 },
        most: if bundled {
            at_queue.saturating_mul(bundle)
        } else {
            at_queue
        },
        own: true,
    });
    let parts = explain(lost, &candidates, ways.closed);
    let mut losses = Vec::new();
    for part in parts.iter().filter(|part| part.packets > 0) {
        let blind = part.place == PATH && !counted.complete;
        let exact = part.least == part.most && !blind;
        losses.push(Loss {
            direction,
            place: part.place.to_owned(),
            packets: part.packets,
            exact,
            at_least: (!exact).then_some(if blind { 0 } else { part.least }),
            at_most: (!exact).then_some(part.most),
        });
    }
    let beyond = parts.iter().find(|part| part.place == PATH);
    // A lost carrier explains the losses.
    let stood = lost_carrier(counters).is_empty();
    let doubt = beyond
        .filter(|part| ways.closed && stood && part.packets > 0)
        .map(|part| {
            Doubt::new(
                "loss-not-explained",
                format!(
                    "{} of {lost} lost datagrams are in no counter on their path, although the complete \
                     lab is visible",
                    part.packets
                ),
            )
        });
    (losses, doubt)
}

/// Returns the interfaces that lost their carrier during the run, with the number of times.
fn lost_carrier(counters: &[PlaceCounter]) -> Vec<(&PlaceCounter, u64)> {
    let found = counters.iter().filter(|c| c.counter == name::CARRIER);
    let counted = found.map(|counter| (counter, counter.added()));
    counted.filter(|(_, times)| *times > 0).collect()
}

/// Warns about links that went down.
fn without_carrier(counters: &[PlaceCounter]) -> Option<Doubt> {
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
        Doubt::new(
            "carrier-lost",
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
pub fn account(
    plan: &Plan,
    ways: &Ways,
    counters: &[PlaceCounter],
    directions: &[DirectionFigures],
    mtu: impl Fn(Direction) -> Option<u32>,
) -> (Vec<Loss>, Vec<Doubt>) {
    let (mut losses, mut doubts) = (Vec::new(), Vec::new());
    doubts.extend(without_carrier(counters));
    if plan.kind == Kind::Throughput && plan.protocol == Protocol::Udp {
        for figures in directions {
            let mtu = mtu(figures.direction);
            let (more, doubt) = split(plan, ways, counters, figures, mtu);
            losses.extend(more);
            doubts.extend(doubt);
        }
    }
    (losses, doubts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_metric::record::{Socket, Stream, Summary};

    fn figures(lost: u64, at_queue: u64, at_sender: u64) -> DirectionFigures {
        let summary = Summary {
            lost: Some(lost),
            ..Summary::default()
        };
        DirectionFigures {
            direction: Direction::Send,
            summary: summary.clone(),
            streams: vec![Stream {
                id: 1,
                summary,
                mismatch: None,
                sender: Some(Socket {
                    send_refused: Some(at_sender),
                    ..Socket::default()
                }),
                receiver: Some(Socket {
                    receive_queue_drops: Some(at_queue),
                    ..Socket::default()
                }),
            }],
        }
    }

    fn plan(payload_bytes: u64) -> Plan {
        let mut plan = Plan::new(Kind::Throughput, Protocol::Udp, "host");
        plan.payload_bytes = payload_bytes;
        plan
    }

    fn counter(host: &str, interface: Option<&str>, name: &str, added: u64) -> PlaceCounter {
        PlaceCounter {
            host: host.to_owned(),
            interface: interface.map(str::to_owned),
            counter: name.to_owned(),
            before: 1_000,
            after: 1_000 + added,
        }
    }

    fn lab() -> Ways {
        let at = |host: &str, interface: &str| At {
            host: host.to_owned(),
            interface: Some(interface.to_owned()),
        };
        Ways {
            there: vec![
                [at("client", "eth0"), at("s1", "p1")],
                [at("s1", "p2"), at("server", "eth0")],
            ],
            closed: true,
            one_machine: true,
            ipv6: false,
        }
    }

    fn places(losses: &[Loss]) -> Vec<(&str, u64, bool)> {
        losses
            .iter()
            .map(|loss| (loss.place.as_str(), loss.packets, loss.exact))
            .collect()
    }

    #[test]
    fn in_a_lab_every_counter_on_the_way_is_taken_once() {
        let counters = [
            counter("client", Some("eth0"), name::TX, 3),
            counter("s1", Some("p1"), name::RX, 3),
            counter("s1", Some("p1"), name::QDISC, 50),
            counter("s1", Some("p2"), name::QDISC, 40),
            counter("s1", Some("p2"), name::TX, 6),
            counter("server", Some("eth0"), name::RX, 5),
            counter("server", None, name::BACKLOG, 4),
        ];
        let (losses, doubt) = split(&plan(1000), &lab(), &counters, &figures(60, 10, 1), None);
        assert_eq!(
            places(&losses),
            [
                ("sender-socket", 1, true),
                ("qdisc", 40, true),
                ("interface-tx", 1, true),
                ("interface-rx", 4, true),
                ("softnet-backlog", 4, true),
                ("udp-receive-queue", 10, true),
            ]
        );
        assert_eq!(doubt, None);
        let (losses, doubt) = split(&plan(1000), &lab(), &counters, &figures(70, 10, 1), None);
        assert_eq!(losses.last().map(|loss| loss.packets), Some(10));
        assert!(doubt.is_some_and(|doubt| doubt.doubt == "loss-not-explained"));
    }

    /// An overrun device and a bad cable lose packets at the same loss point.
    #[test]
    fn what_a_device_missed_and_what_came_broken_is_lost_at_the_interface() {
        for (counter_name, lost) in [(name::RX_MISSED, 40), (name::RX_ERRORS, 40)] {
            let counters = [
                counter("server", Some("eth0"), name::RX, 0),
                counter("server", Some("eth0"), counter_name, lost),
            ];
            let figures = figures(lost, 0, 0);
            let (losses, _) = split(&plan(1000), &lab(), &counters, &figures, None);
            assert_eq!(
                places(&losses),
                [("interface-rx", lost, true)],
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
        let told = |counters: &[PlaceCounter]| {
            let figures = [figures(60, 0, 0)];
            let (losses, doubts) = account(&plan(1000), &lab(), counters, &figures, |_| None);
            assert_eq!(places(&losses), [(PATH, 60, false)]);
            let doubts = doubts.into_iter();
            doubts
                .map(|doubt| (doubt.doubt, doubt.why))
                .collect::<Vec<_>>()
        };
        assert_eq!(told(&counters)[0].0, "loss-not-explained");
        counters[0].after += 1;
        counters[1].after += 2;
        let told = told(&counters);
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!(told[0].0, "carrier-lost");
        assert!(
            told[0].1.contains("eth0 of client once, p1 of s1 2 times;"),
            "{told:?}"
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
        let (losses, _) = split(&plan(1000), &lab(), &counters, &back, None);
        assert_eq!(places(&losses), [("qdisc", 50, true)]);
    }

    #[test]
    fn between_ends_shared_counters_bound_and_the_path_has_the_rest() {
        let ways = Ways::between_ends(Some("eth0"), Some("eth1"), false, false);
        let mut counters = vec![
            counter("client", Some("eth0"), name::TX, 0),
            counter("client", Some("eth0"), name::QDISC, 20),
            counter("server", Some("eth1"), name::RX, 0),
        ];
        let (losses, _) = split(&plan(1000), &ways, &counters, &figures(100, 10, 0), None);
        assert_eq!(
            places(&losses),
            [
                ("qdisc", 20, false),
                ("udp-receive-queue", 10, true),
                ("path", 70, false)
            ]
        );
        assert_eq!(
            (losses[2].at_least, losses[2].at_most),
            (Some(70), Some(90))
        );
        // No other counter increased: the rest was certainly lost on the path.
        counters[1].after = counters[1].before;
        let (losses, _) = split(&plan(1000), &ways, &counters, &figures(100, 10, 0), None);
        assert_eq!(
            places(&losses),
            [("udp-receive-queue", 10, true), ("path", 90, true)]
        );
        // Without the server's counters this is not certain.
        let (losses, _) = split(&plan(1000), &ways, &[], &figures(100, 10, 0), None);
        assert_eq!(
            places(&losses),
            [("udp-receive-queue", 10, true), ("path", 90, false)]
        );
    }

    #[test]
    fn bundles_are_worked_out_where_only_one_place_dropped_any() {
        let mut plan = plan(1472);
        plan.udp_offload.gso = Some(true);
        plan.udp_offload.gro = Some(true);
        let (losses, doubt) = split(&plan, &lab(), &[], &figures(880, 20, 0), None);
        assert_eq!(places(&losses), [("udp-receive-queue", 880, true)]);
        assert_eq!(doubt, None);
        let counters = [counter("s1", Some("p2"), name::QDISC, 5)];
        let (losses, _) = split(&plan, &lab(), &counters, &figures(880, 18, 0), None);
        assert_eq!(losses.iter().map(|loss| loss.packets).sum::<u64>(), 880);
        assert!(losses.iter().all(|loss| !loss.exact));
    }

    #[test]
    fn a_datagram_of_which_fragments_came_is_lost_once_and_at_reassembly() {
        // 100 datagrams of 4 fragments; a queue dropped 30 fragments: 5 complete datagrams, and one
        // or more fragments of 7 others.
        let counters = [
            counter("client", Some("eth0"), name::QDISC, 30),
            counter("server", None, name::FRAGMENTS, 370),
            counter("server", None, name::REASSEMBLED, 88),
            counter("server", None, name::REASSEMBLY_OPEN, 7),
        ];
        let (losses, doubt) = split(
            &plan(5888),
            &lab(),
            &counters,
            &figures(12, 0, 0),
            Some(1500),
        );
        assert_eq!(
            places(&losses),
            [("qdisc", 5, true), ("reassembly", 7, true)]
        );
        assert_eq!(doubt, None);
        // The kernel abandons a datagram with its first rejected fragment: each drop is one
        // datagram.
        let counters = [
            counter("client", Some("eth0"), name::QDISC, 11_277),
            counter("server", None, name::FRAGMENTS, 4_590),
            counter("server", None, name::REASSEMBLED, 574),
            counter("server", None, name::REASSEMBLY_OPEN, 1_148),
        ];
        let (losses, doubt) = split(
            &plan(5888),
            &lab(),
            &counters,
            &figures(11_277, 0, 0),
            Some(1500),
        );
        assert_eq!(
            places(&losses),
            [("qdisc", 10_129, true), ("reassembly", 1_148, true)]
        );
        assert_eq!(doubt, None);
        // Rejected for want of memory, each fragment counted.
        let counters = [
            counter("server", None, name::FRAGMENTS, 400),
            counter("server", None, name::REASSEMBLED, 90),
            counter("server", None, name::REASSEMBLY_FAILED, 35),
        ];
        let (losses, _) = split(
            &plan(5888),
            &lab(),
            &counters,
            &figures(13, 3, 0),
            Some(1500),
        );
        assert_eq!(
            places(&losses),
            [("reassembly", 10, true), ("udp-receive-queue", 3, true)]
        );
    }
}
