//! Where lost datagrams went: the counters of the places on their way, read before and after, and
//! what follows from them.
//!
//! Reading is [`ledger`]'s; which places a direction passes is [`network`]'s; what their counters mean
//! in datagrams is [`places`]'; and what must then be true is [`explain`]'s. All but the first are pure.
//! While a run goes on [`live`] tells what of this is in view.

use std::net::IpAddr;
use std::sync::Arc;

use linerate_host::snapshot::places::name;
use linerate_metric::facts::{Host, Role};
use linerate_metric::record::PlaceCounter;
use linerate_metric::stack::StackFacts;

mod explain;
mod ledger;
mod live;
mod network;
mod places;

pub use ledger::{Ledger, Spot};
pub use live::{Lookout, SeenPlace};
pub use network::Network;
pub use places::{Ways, account, name_of};

/// Frames that found the receive ring full at the port of our own stack, which is its interface.
const PORT_RING_FULL: &str = "port_ring_full";
/// The same for want of a buffer.
const PORT_NO_BUFFER: &str = "port_no_buffer";

/// This host's own counters, by the interface towards the other end.
#[must_use]
pub fn own_ledger(role: Role, host: &Host, ipv6: bool) -> Ledger {
    let interface = host.interface.as_ref();
    let spots = [
        interface.map(|interface| Some(interface.name.clone())),
        Some(None),
    ];
    let spot = |interface| Spot {
        host: places::name_of(role).to_owned(),
        namespace: None,
        interface,
    };
    Ledger::open(spots.into_iter().flatten().map(spot).collect(), ipv6)
}

/// The counters of our own stack, where that is an end's: nothing of the kernel's is on its way in.
#[must_use]
pub fn of_stack(role: Role, stack: &StackFacts) -> Vec<PlaceCounter> {
    let count = |name: &str| stack.counter("ip", name);
    let failed =
        count("reassembly_no_buffer") + count("reassembly_too_long") + count("reassembly_errors");
    // Datagrams that were given up, each counted once.
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
        host: places::name_of(role).to_owned(),
        interface: None,
        counter: counter.to_owned(),
        before: 0,
        after,
    })
    .into()
}

/// The whole way of a run, where it is in view, with its counters.
#[derive(Debug)]
pub struct Region {
    ways: Ways,
    ledger: Ledger,
}

impl Region {
    /// Looks at all of the way between the ends, the client's address first; `None` outside of such a
    /// network.
    #[must_use]
    pub fn open(network: Option<&Arc<Network>>, near: IpAddr, far: IpAddr) -> Option<Self> {
        let (ways, spots) = Ways::within(network?, near, far)?;
        let ipv6 = near.to_canonical().is_ipv6();
        Some(Self {
            ways,
            ledger: Ledger::open(spots, ipv6),
        })
    }

    /// Looks again.
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

    /// They were on the path, where no counter looks.
    #[test]
    fn what_the_port_of_our_stack_had_no_room_for_is_lost_at_the_end_that_has_it() {
        let mut stack = StackFacts::default();
        let link = stack.counters.entry("link".to_owned()).or_default();
        link.insert("port_ring_full".to_owned(), 50);
        link.insert("port_no_buffer".to_owned(), 7);
        let plan = Plan::new(Kind::Throughput, Protocol::Udp, "10.9.0.1");
        let ways = Ways::between_ends(None, None, false, false);
        // Frames of others find no room either: no more than that were ours.
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
