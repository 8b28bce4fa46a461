//! Loss accounting: counters of all loss points on the path, read before and after a run, and the
//! losses that follow from them.
//!
//! [`counter_snapshot`] reads counters, [`lab_network`] finds the hops of a direction,
//! [`accounting`] converts counters to bounds in datagrams, and [`attribution`] computes the
//! losses. Only the first does I/O. [`live_view`] shows the counters during a run.

use std::net::IpAddr;
use std::sync::Arc;

use linerate_host::snapshot::loss_counters::name;
use linerate_record::facts::{HostFacts, Role};
use linerate_record::record::CounterDelta;
use linerate_record::stack::StackFacts;

mod accounting;
mod attribution;
mod counter_snapshot;
mod lab_network;
mod live_view;

pub use accounting::{PathLinks, account_losses, datagrams_per_packet};
pub use counter_snapshot::{CounterLocation, CounterSnapshot};
pub use lab_network::LabNetwork;
pub use live_view::{LiveLoss, LiveLossView};

/// Frames dropped at the full receive ring of the user-space stack's port.
const PORT_RING_FULL: &str = "port_ring_full";
/// Frames dropped there for want of a buffer.
const PORT_NO_BUFFER: &str = "port_no_buffer";

/// Reads this host's counters, and those of the interface towards the other end.
#[must_use]
pub fn read_local_counters(role: Role, host: &HostFacts, ipv6: bool) -> CounterSnapshot {
    let interface = host.interface.as_ref();
    let interfaces = [
        interface.map(|interface| Some(interface.name.clone())),
        Some(None),
    ];
    let location = |interface| CounterLocation {
        host: role.as_str().to_owned(),
        namespace: None,
        interface,
    };
    CounterSnapshot::read_first(
        interfaces.into_iter().flatten().map(location).collect(),
        ipv6,
    )
}

/// Returns the counters of the user-space stack, which no counter of the kernel covers.
#[must_use]
pub fn netstack_counters(role: Role, stack: &StackFacts) -> Vec<CounterDelta> {
    let count = |name: &str| stack.counter("ip", name);
    let failures =
        count("reassembly_no_buffer") + count("reassembly_too_long") + count("reassembly_errors");
    // Abandoned datagrams, each counted once.
    let timeouts = count("reassembly_timeouts") + count("reassembly_evicted");
    [
        (name::FRAGMENTS, count("reassembly_required")),
        (name::REASSEMBLED, count("reassembly_ok")),
        (name::REASSEMBLY_FAILED, failures + timeouts),
        (name::REASSEMBLY_TIMEOUTS, timeouts),
        (PORT_RING_FULL, stack.counter("link", PORT_RING_FULL)),
        (PORT_NO_BUFFER, stack.counter("link", PORT_NO_BUFFER)),
    ]
    .map(|(counter, after)| CounterDelta {
        host: role.as_str().to_owned(),
        interface: None,
        counter: counter.to_owned(),
        before: 0,
        after,
    })
    .into()
}

/// Counters of the complete path of a run, where it is visible (lab).
#[derive(Debug)]
pub struct PathCounters {
    path: PathLinks,
    snapshot: CounterSnapshot,
}

impl PathCounters {
    /// Reads the counters of the path between the ends, given the client's address first; `None`
    /// outside of a lab network.
    #[must_use]
    pub fn read_first(
        network: Option<&Arc<LabNetwork>>,
        client: IpAddr,
        server: IpAddr,
    ) -> Option<Self> {
        let (path, locations) = PathLinks::in_network(network?, client, server)?;
        let ipv6 = client.to_canonical().is_ipv6();
        Some(Self {
            path,
            snapshot: CounterSnapshot::read_first(locations, ipv6),
        })
    }

    /// Reads the counters again.
    #[must_use]
    pub fn read_again(self) -> (PathLinks, Vec<CounterDelta>) {
        let counters = self.snapshot.read_again();
        (self.path, counters)
    }
}

#[cfg(test)]
mod tests {
    use linerate_record::ids::LossPoint;
    use linerate_record::plan::{Direction, Plan, RunKind, TransportProtocol};
    use linerate_record::record::{DirectionFigures, Summary};

    use super::*;

    /// Before, these datagrams were attributed to the path, which has no counter.
    #[test]
    fn drops_of_the_stack_port_are_lost_at_its_end() {
        let mut stack = StackFacts::default();
        let link = stack.counters.entry("link".to_owned()).or_default();
        link.insert("port_ring_full".to_owned(), 50);
        link.insert("port_no_buffer".to_owned(), 7);
        let plan = Plan::new(RunKind::Throughput, TransportProtocol::Udp, "10.9.0.1");
        let path = PathLinks::between_ends(None, None, false, false);
        // Frames of other traffic are dropped too, so the count is an upper bound.
        let (at_ring, rest) = (
            (LossPoint::InterfaceRx, 57, false),
            (LossPoint::Path, 3, false),
        );
        for (role, direction, expected) in [
            (Role::Client, Direction::Receive, vec![at_ring, rest]),
            (Role::Server, Direction::Send, vec![at_ring, rest]),
            (
                Role::Client,
                Direction::Send,
                vec![(LossPoint::Path, 60, false)],
            ),
            (
                Role::Server,
                Direction::Receive,
                vec![(LossPoint::Path, 60, false)],
            ),
        ] {
            let figures = DirectionFigures {
                direction,
                summary: Summary {
                    lost: Some(60),
                    ..Summary::default()
                },
                streams: Vec::new(),
            };
            let counters = netstack_counters(role, &stack);
            let (losses, _) = account_losses(&plan, &path, &counters, &[figures], |_| None);
            let points = losses.iter();
            let points = points.map(|loss| (loss.place.known().unwrap(), loss.packets, loss.exact));
            assert_eq!(
                points.collect::<Vec<_>>(),
                expected,
                "{role:?} {direction:?}"
            );
        }
    }
}
