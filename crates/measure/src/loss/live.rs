//! Losses by place while a run goes on, as far as their counters are in view.

use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;

use linerate_host::snapshot::{interface_towards, is_own_address, places};
use linerate_metric::facts::Role;
use linerate_metric::plan::{Direction, Plan, Protocol};

use super::ledger::within;
use super::{Ledger, Network, Spot, Ways, name_of};

/// What a place has lost since somebody began to look, in the kernel's own units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenPlace {
    /// Which way the packets were going.
    pub direction: Direction,
    /// As in the losses of a record: `qdisc`, `udp-receive-queue`.
    pub place: &'static str,
    /// How many, of all programs that share the place; `None` where its counter is out of view.
    pub packets: Option<u64>,
}

/// The sockets of an end's host, and what they had lost before.
#[derive(Debug)]
struct Sockets {
    spot: Spot,
    before: Option<[u64; 2]>,
}

/// Looks at the way of a run that goes on: from this host alone, or all along it in a lab.
#[derive(Debug)]
pub struct Lookout {
    ways: Ways,
    ledger: Ledger,
    /// By role, the client first; `None`: out of view, or not over UDP.
    sockets: [Option<Sockets>; 2],
    directions: Vec<Direction>,
    is_udp: bool,
    ipv6: bool,
    is_shared: bool,
}

impl Lookout {
    /// Begins to look at the way to the far end of a plan.
    #[must_use]
    pub fn open(network: Option<&Arc<Network>>, far: IpAddr, plan: &Plan) -> Self {
        let far = far.to_canonical();
        let ipv6 = far.is_ipv6();
        let interface = interface_towards(far);
        let region = network
            .zip(near_address(far))
            .and_then(|(network, near)| Ways::within(network, near, far));
        let is_shared = region.is_none();
        let here = |interface| Spot {
            host: name_of(Role::Client).to_owned(),
            namespace: None,
            interface,
        };
        let (ways, spots, ends) = match region {
            Some((ways, spots)) => {
                // Hosts as a whole are the ends, the client first.
                let mut ends = spots.iter().filter(|spot| spot.interface.is_none());
                let ends = [ends.next().cloned(), ends.next().cloned()];
                (ways, spots, ends)
            }
            None => {
                let at_home = is_own_address(far);
                let ways = match (&interface, at_home) {
                    (Some(interface), true) => Ways::on_this_host(interface, ipv6),
                    _ => Ways::between_ends(interface.as_deref(), None, false, ipv6),
                };
                let spots = vec![here(interface), here(None)];
                let ends = [Some(here(None)), at_home.then(|| here(None))];
                (ways, spots, ends)
            }
        };
        let is_udp = plan.protocol == Protocol::Udp;
        let sockets = ends.map(|spot| {
            let spot = spot.filter(|_| is_udp)?;
            let before = buffers_full(&spot, ipv6);
            Some(Sockets { spot, before })
        });
        Self {
            ledger: Ledger::open(spots, ipv6),
            ways,
            sockets,
            directions: plan.directions.clone(),
            is_udp,
            ipv6,
            is_shared,
        }
    }

    /// Whether the counters are of whatever the host does. In a lab they are of the lab alone.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// What every place has lost since, in the order in which packets pass them.
    #[must_use]
    pub fn look(&self) -> Vec<SeenPlace> {
        let counters = self.ledger.close();
        let sockets = [0, 1].map(|end| self.sockets[end].as_ref().and_then(|at| self.added(at)));
        let mut seen = Vec::new();
        for &direction in &self.directions {
            let [sender, receiver] = match direction {
                Direction::Send => [sockets[0], sockets[1]],
                Direction::Receive => [sockets[1], sockets[0]],
            };
            let first = ("sender-socket", sender.map(|[full, _]| full));
            let last = ("udp-receive-queue", receiver.map(|[_, full]| full));
            let between = self.ways.seen(direction, &counters);
            let places = (self.is_udp.then_some(first).into_iter())
                .chain(between)
                .chain(self.is_udp.then_some(last));
            seen.extend(places.map(|(place, packets)| SeenPlace {
                direction,
                place,
                packets,
            }));
        }
        seen
    }

    fn added(&self, sockets: &Sockets) -> Option<[u64; 2]> {
        let now = buffers_full(&sockets.spot, self.ipv6)?;
        let before = sockets.before?;
        Some([0, 1].map(|which| now[which].saturating_sub(before[which])))
    }
}

fn buffers_full(spot: &Spot, ipv6: bool) -> Option<[u64; 2]> {
    within(spot, || places::udp_buffers_full(ipv6)).ok()?
}

/// The address from which this host sends to another one. Nothing is sent for that.
fn near_address(far: IpAddr) -> Option<IpAddr> {
    let any = if far.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect((far, 9)).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_metric::plan::Kind;

    fn places(seen: &[SeenPlace]) -> Vec<(&'static str, bool)> {
        let known = |seen: &SeenPlace| (seen.place, seen.packets.is_some());
        seen.iter().map(known).collect()
    }

    #[test]
    fn what_the_far_host_counts_is_out_of_view() {
        let plan = Plan::new(Kind::Throughput, Protocol::Udp, "192.0.2.1");
        let lookout = Lookout::open(None, "192.0.2.1".parse().unwrap(), &plan);
        let seen = places(&lookout.look());
        assert!(seen.contains(&("sender-socket", true)), "{seen:?}");
        for far in ["interface-rx", "softnet-backlog", "udp-receive-queue"] {
            assert!(seen.contains(&(far, false)), "{seen:?}");
        }
    }

    #[test]
    fn over_loopback_all_places_are_in_view_and_count_what_is_lost() {
        let plan = Plan::new(Kind::Throughput, Protocol::Udp, "127.0.0.1");
        let lookout = Lookout::open(None, "127.0.0.1".parse().unwrap(), &plan);
        // Nobody reads: the queue overflows.
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = receiver.local_addr().unwrap();
        for _ in 0..2_000 {
            sender.send_to(&[0; 1_400], to).unwrap();
        }
        let seen = lookout.look();
        // Counted although it is no run's: whoever shows it has to say so.
        assert!(lookout.is_shared());
        assert!(seen.iter().all(|seen| seen.packets.is_some()), "{seen:?}");
        let queue = seen.iter().find(|seen| seen.place == "udp-receive-queue");
        assert!(queue.unwrap().packets > Some(100), "{seen:?}");
    }
}
