//! Connections and flows that a running test expects, apart from its control connection.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, mpsc};

use linerate_dialect::iperf3::Cookie;

use super::{Hall, lock};
use crate::interop::handlers::Caller;
use crate::session::server_state::House;
use crate::session::udp_demux::Arrived;

/// Connection or flow that a test expects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Connection that opens with the cookie of an iperf3 test.
    Cookie(Cookie),
    /// Next UDP flow of an iperf3 test; its hello has no test identifier.
    Hello {
        /// Server port.
        port: u16,
    },
    /// Any connection of the client to this port.
    Connection {
        /// Server port.
        port: u16,
    },
    /// Any datagram of the client to this port.
    Datagrams {
        /// Server port.
        port: u16,
    },
}

pub(super) struct Expected {
    what: Wanted,
    /// Address of the client; flows of other addresses do not match.
    peer: IpAddr,
    arrived: mpsc::Sender<Arrived>,
}

/// Registration of an expected flow; removed on drop.
pub struct Expectation {
    house: Arc<House>,
    id: u64,
}

impl Drop for Expectation {
    fn drop(&mut self) {
        lock(&self.house.hall.expected).remove(&self.id);
    }
}

impl Hall {
    /// Registers an expected flow of a client; matching arrivals go to `arrivals`. Returns `None`
    /// if another test of this client already expects the same.
    pub fn expect(
        caller: &Caller,
        what: Wanted,
        arrived: mpsc::Sender<Arrived>,
    ) -> Option<Expectation> {
        let hall = &caller.house.hall;
        let peer = caller.peer.ip();
        let mut expected = lock(&hall.expected);
        let taken = |other: &Expected| other.what == what && other.peer == peer;
        if expected.values().any(taken) {
            return None;
        }
        let id = hall.next.fetch_add(1, Relaxed);
        expected.insert(
            id,
            Expected {
                what,
                peer,
                arrived,
            },
        );
        Some(Expectation {
            house: Arc::clone(&caller.house),
            id,
        })
    }

    /// Returns whether a test expects this flow from this address.
    #[must_use]
    pub fn expects(&self, what: &Wanted, from: SocketAddr) -> bool {
        let peer = from.ip().to_canonical();
        let expected = lock(&self.expected);
        expected
            .values()
            .any(|other| other.what == *what && other.peer == peer)
    }

    /// Passes an arrival to the test that expects it. Returns false if no test does.
    pub fn admit(
        &self,
        what: &Wanted,
        from: SocketAddr,
        open: impl FnOnce() -> Option<Arrived>,
    ) -> bool {
        let peer = from.ip().to_canonical();
        let arrived = {
            let expected = lock(&self.expected);
            let mut expected = expected.values();
            expected
                .find(|other| other.what == *what && other.peer == peer)
                .map(|other| other.arrived.clone())
        };
        let Some(arrived) = arrived else {
            return false;
        };
        // The test may have given up in the meantime; then the socket is closed.
        open().is_some_and(|socket| arrived.send(socket).is_ok())
    }
}
