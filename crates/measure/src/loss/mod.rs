//! Loss accounting: counters of all loss points on the path, read before and after a run, and the
//! losses that follow from them.
//!
//! [`ledger`] reads counters, [`network`] finds the hops of a direction, [`places`] converts
//! counters to bounds in datagrams, and [`explain`] computes the losses. Only the first does I/O.
//! [`live`] shows the counters during a run.

use std::net::IpAddr;
use std::sync::Arc;

use linerate_host::snapshot::loss_counters::name;
use linerate_metric::facts::{Host, Role};
use linerate_metric::record::PlaceCounter;
use linerate_metric::stack::StackFacts;

mod accounting;
mod attribution;
mod counter_snapshot;
mod lab_network;
mod live_view;

pub use accounting::{Ways, account, name_of};
pub use counter_snapshot::{Ledger, Spot};
pub use lab_network::Network;
pub use live_view::{Lookout, SeenPlace};

/// Frames dropped at the full receive ring of the user-space stack's port.
const PORT_RING_FULL: &str = "port_ring_full";
/// Frames dropped there for want of a buffer.
const PORT_NO_BUFFER: &str = "port_no_buffer";

/// Reads this host's counters, and those of the interface towards the other end.
#[must_use]
pub fn own_ledger(role: Role, host: &Host, ipv6: bool) -> Ledger {
    let interface = host.interface.as_ref();
    let spots = [
        interface.map(|interface| Some(interface.name.clone())),
        Some(None),
    ];
    let spot = |interface| Spot {
        host: accounting::name_of(role).to_owned(),
        namespace: None,
        interface,
    };
    Ledger::open(spots.into_iter().flatten().map(spot).collect(), ipv6)
}

/// Returns the counters of the user-space stack, which no counter of the kernel covers.
#[must_use]
pub fn of_stack(role: Role, stack: &StackFacts) -> Vec<PlaceCounter> {
    let count = |name: &str| stack.counter("ip", name);
    let failed =
        count("reassembly_no_buffer") + count("reassembly_too_long") + count("reassembly_errors");
    // Abandoned datagrams, each counted once.
    let timeouts = count("reassembly_timeouts") + count("reassembly_evicted");
    [
        (name::FRAGMENTS, count("reassembly_required")),
        (name::REASSEMBLED, count("reassembly_ok")),
        (name::REASSEMBLY_FAILED, failed + timeouts),
        (name::REASSEMBLY_TIMEOUTS, timeouts),
        (PORT_RING_FULL, stack.counter("link", PORT_RING_FULL)),
        (PORT_NO_BUFFER, stack.counter("link", PORT_NO_BUFFER)),
    ]
    .map(|(counter, after)| PlaceCounter {
        host: accounting::name_of(role).to_owned(),
        interface: None,
        counter: counter.to_owned(),
        before: 0,
        after,
    })
    .into()
}

/// Counters of the complete path of a run, where it is visible (lab).
#[derive(Debug)]
pub struct Region {
    ways: Ways,
    ledger: Ledger,
}

impl Region {
    /// Reads the counters of the path between the ends, given the client's address first; `None`
    /// outside of a lab network.
    #[must_use]
    pub fn open(network: Option<&Arc<Network>>, near: IpAddr, far: IpAddr) -> Option<Self> {
        let (ways, spots) = Ways::within(network?, near, far)?;
        let ipv6 = near.to_canonical().is_ipv6();
        Some(Self {
            ways,
            ledger: Ledger::open(spots, ipv6),
        })
    }

    /// Reads the counters again.
    #[must_use]
    pub fn close(self) -> (Ways, Vec<PlaceCounter>) {
        let counters = self.ledger.close();
        (self.ways, counters)
    }
}

#[cfg(test)]
mod tests {
    use linerate_metric::plan::{Direction, Kind, Plan, Protocol};
    use linerate_metric::record::{DirectionFigures, Summary};

    use super::*;

    /// Before, these datagrams were attributed to the path, which has no counter.
    #[test]
    fn what_the_port_of_our_stack_had_no_room_for_is_lost_at_the_end_that_has_it() {
        let mut stack = StackFacts::default();
        let link = stack.counters.entry("link".to_owned()).or_default();
        link.insert("port_ring_full".to_owned(), 50);
        link.insert("port_no_buffer".to_owned(), 7);
        let plan = Plan::new(Kind::Throughput, Protocol::Udp, "10.9.0.1");
        let ways = Ways::between_ends(None, None, false, false);
        // Frames of other traffic are dropped too, so the count is an upper bound.
        let (at_ring, rest) = (("interface-rx", 57, false), ("path", 3, false));
        for (role, direction, places) in [
            (Role::Client, Direction::Receive, vec![at_ring, rest]),
            (Role::Server, Direction::Send, vec![at_ring, rest]),
            (Role::Client, Direction::Send, vec![("path", 60, false)]),
            (Role::Server, Direction::Receive, vec![("path", 60, false)]),
        ] {
            let figures = DirectionFigures {
                direction,
                summary: Summary {
                    lost: Some(60),
                    ..Summary::default()
                },
                streams: Vec::new(),
            };
            let counters = of_stack(role, &stack);
            let (losses, _) = account(&plan, &ways, &counters, &[figures], |_| None);
            let found = losses.iter();
            let found = found.map(|loss| (loss.place.as_str(), loss.packets, loss.exact));
            assert_eq!(found.collect::<Vec<_>>(), places, "{role:?} {direction:?}");
        }
    }
}
