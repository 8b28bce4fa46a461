//! Losses by loss point during a run, as far as their counters are visible.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use linerate_host::snapshot::{egress_interface, is_local_address, loss_counters};
use linerate_record::facts::Role;
use linerate_record::ids::LossPoint;
use linerate_record::plan::{Direction, Plan, TransportProtocol};

use super::counter_snapshot::in_namespace;
use super::{CounterLocation, CounterSnapshot, LabNetwork, PathLinks};
use crate::dial::local_address_towards;

/// Losses at one loss point since the view was opened, in the kernel's units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveLoss {
    pub direction: Direction,
    pub point: LossPoint,
    /// Packets of all programs that share the counter; `None` where it is not visible.
    pub packets: Option<u64>,
}

/// UDP socket counters of an end's host, with their first values.
#[derive(Debug)]
struct UdpCounters {
    location: CounterLocation,
    before: Option<[u64; 2]>,
}

/// View of the losses of a running test: from this host alone, or along the complete path in a lab.
#[derive(Debug)]
pub struct LiveLossView {
    path: PathLinks,
    snapshot: CounterSnapshot,
    /// By role, the client first; `None`: not visible, or not over UDP.
    sockets: [Option<UdpCounters>; 2],
    directions: Vec<Direction>,
    is_udp: bool,
    ipv6: bool,
    is_shared: bool,
}

impl LiveLossView {
    /// Opens the view of the path to the server of a plan.
    #[must_use]
    pub fn open(network: Option<&Arc<LabNetwork>>, server: IpAddr, plan: &Plan) -> Self {
        let server = server.to_canonical();
        let ipv6 = server.is_ipv6();
        let interface = egress_interface(server);
        let lab_path = network
            .zip(local_address_towards(SocketAddr::new(server, 9)))
            .and_then(|(network, client)| PathLinks::in_network(network, client, server));
        let is_shared = lab_path.is_none();
        let at_this_host = |interface| CounterLocation {
            host: Role::Client.as_str().to_owned(),
            namespace: None,
            interface,
        };
        let (path, locations, end_hosts) = match lab_path {
            Some((path, locations)) => {
                // Locations without an interface are the two end hosts, the client first.
                let mut end_hosts = locations
                    .iter()
                    .filter(|location| location.interface.is_none());
                let end_hosts = [end_hosts.next().cloned(), end_hosts.next().cloned()];
                (path, locations, end_hosts)
            }
            None => {
                let same_host = is_local_address(server);
                let path = match (&interface, same_host) {
                    (Some(interface), true) => PathLinks::on_one_interface(interface, ipv6),
                    _ => PathLinks::between_ends(interface.as_deref(), None, false, ipv6),
                };
                let locations = vec![at_this_host(interface), at_this_host(None)];
                let end_hosts = [
                    Some(at_this_host(None)),
                    same_host.then(|| at_this_host(None)),
                ];
                (path, locations, end_hosts)
            }
        };
        let is_udp = plan.protocol == TransportProtocol::Udp;
        let sockets = end_hosts.map(|location| {
            let location = location.filter(|_| is_udp)?;
            let before = full_buffer_counts(&location, ipv6);
            Some(UdpCounters { location, before })
        });
        Self {
            snapshot: CounterSnapshot::read_first(locations, ipv6),
            path,
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
    pub fn read(&self) -> Vec<LiveLoss> {
        let counters = self.snapshot.read_again();
        let sockets = [0, 1].map(|end| {
            self.sockets[end]
                .as_ref()
                .and_then(|counters_of_end| self.added_since_open(counters_of_end))
        });
        let mut losses = Vec::new();
        for &direction in &self.directions {
            let [sender, receiver] = match direction {
                Direction::Send => [sockets[0], sockets[1]],
                Direction::Receive => [sockets[1], sockets[0]],
            };
            let first = (LossPoint::SenderSocket, sender.map(|[full, _]| full));
            let last = (LossPoint::UdpReceiveQueue, receiver.map(|[_, full]| full));
            let path_losses = self.path.counted_losses(direction, &counters);
            let points = (self.is_udp.then_some(first).into_iter())
                .chain(path_losses)
                .chain(self.is_udp.then_some(last));
            losses.extend(points.map(|(point, packets)| LiveLoss {
                direction,
                point,
                packets,
            }));
        }
        losses
    }

    fn added_since_open(&self, sockets: &UdpCounters) -> Option<[u64; 2]> {
        let now = full_buffer_counts(&sockets.location, self.ipv6)?;
        let before = sockets.before?;
        Some([0, 1].map(|index| now[index].saturating_sub(before[index])))
    }
}

fn full_buffer_counts(location: &CounterLocation, ipv6: bool) -> Option<[u64; 2]> {
    in_namespace(location, || loss_counters::read_udp_buffer_errors(ipv6)).ok()?
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use linerate_record::plan::RunKind;

    use super::*;

    fn visible_points(losses: &[LiveLoss]) -> Vec<(LossPoint, bool)> {
        let visible = |losses: &LiveLoss| (losses.point, losses.packets.is_some());
        losses.iter().map(visible).collect()
    }

    #[test]
    fn counters_of_the_remote_host_are_not_visible() {
        let plan = Plan::new(RunKind::Throughput, TransportProtocol::Udp, "192.0.2.1");
        let view = LiveLossView::open(None, "192.0.2.1".parse().unwrap(), &plan);
        let points = visible_points(&view.read());
        assert!(
            points.contains(&(LossPoint::SenderSocket, true)),
            "{points:?}"
        );
        for point in [
            LossPoint::InterfaceRx,
            LossPoint::SoftnetBacklog,
            LossPoint::UdpReceiveQueue,
        ] {
            assert!(points.contains(&(point, false)), "{points:?}");
        }
    }

    #[test]
    fn over_loopback_all_loss_points_are_visible_and_count() {
        let plan = Plan::new(RunKind::Throughput, TransportProtocol::Udp, "127.0.0.1");
        let view = LiveLossView::open(None, "127.0.0.1".parse().unwrap(), &plan);
        // The socket is not read: its queue overflows.
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = receiver.local_addr().unwrap();
        for _ in 0..2_000 {
            sender.send_to(&[0; 1_400], to).unwrap();
        }
        let losses = view.read();
        // Counted although it belongs to no run: a display must say so.
        assert!(view.is_shared());
        assert!(
            losses.iter().all(|loss| loss.packets.is_some()),
            "{losses:?}"
        );
        let queue = losses
            .iter()
            .find(|losses| losses.point == LossPoint::UdpReceiveQueue);
        assert!(queue.unwrap().packets > Some(100), "{losses:?}");
    }
}
