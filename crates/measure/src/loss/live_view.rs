//! Losses by loss point during a run, as far as their counters are visible.

use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;

use linerate_host::snapshot::{interface_towards, is_own_address, loss_counters};
use linerate_metric::facts::Role;
use linerate_metric::plan::{Direction, Plan, Protocol};

use super::counter_snapshot::within;
use super::{Ledger, Network, Spot, Ways, name_of};

/// Losses at one loss point since the view was opened, in the kernel's units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenPlace {
    pub direction: Direction,
    /// Name as in the losses of a record: `qdisc`, `udp-receive-queue`.
    pub place: &'static str,
    /// Packets of all programs that share the counter; `None` where it is not visible.
    pub packets: Option<u64>,
}

/// UDP socket counters of an end's host, with their first values.
#[derive(Debug)]
struct Sockets {
    spot: Spot,
    before: Option<[u64; 2]>,
}

/// View of the losses of a running test: from this host alone, or along the complete path in a lab.
#[derive(Debug)]
pub struct Lookout {
    ways: Ways,
    ledger: Ledger,
    /// By role, the client first; `None`: not visible, or not over UDP.
    sockets: [Option<Sockets>; 2],
    directions: Vec<Direction>,
    is_udp: bool,
    ipv6: bool,
    is_shared: bool,
}

impl Lookout {
    /// Opens the view of the path to the server of a plan.
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
                // Locations without an interface are the two end hosts, the client first.
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

    /// Returns whether the counters include other traffic of the host; those of a lab do not.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Returns the losses of all loss points since the view was opened, in path order.
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
    within(spot, || loss_counters::udp_buffers_full(ipv6)).ok()?
}

/// Returns the local address that the kernel uses towards `far`; sends nothing.
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
        // The socket is not read: its queue overflows.
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = receiver.local_addr().unwrap();
        for _ in 0..2_000 {
            sender.send_to(&[0; 1_400], to).unwrap();
        }
        let seen = lookout.look();
        // Counted although it belongs to no run: a display must say so.
        assert!(lookout.is_shared());
        assert!(seen.iter().all(|seen| seen.packets.is_some()), "{seen:?}");
        let queue = seen.iter().find(|seen| seen.place == "udp-receive-queue");
        assert!(queue.unwrap().packets > Some(100), "{seen:?}");
    }
}
