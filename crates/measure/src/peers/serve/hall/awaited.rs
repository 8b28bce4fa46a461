//! What tests wait for: connections and flows that come beside a conversation.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, mpsc};

use linerate_dialect::iperf3::Cookie;

use super::{Hall, lock};
use crate::peers::serve::Caller;
use crate::session::house::House;
use crate::session::porch::Arrived;

/// What a test waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A connection that opens with the cookie of an iperf3 test.
    Cookie(Cookie),
    /// The next flow of an iperf3 test over UDP, which says no name.
    Hello {
        /// The server's port.
        port: u16,
    },
    /// Any connection from the client at this port.
    Connection {
        /// The server's port.
        port: u16,
    },
    /// Any datagram from the client at this port.
    Datagrams {
        /// The server's port.
        port: u16,
    },
}

pub(super) struct Expected {
    what: Wanted,
    /// Nobody else's is taken for it.
    peer: IpAddr,
    arrived: mpsc::Sender<Arrived>,
}

/// Something is waited for as long as this is held.
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
    /// Waits for something from a client; what comes goes to `arrived`. `None` when another test of
    /// that client waits for the same already.
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

    /// Whether a test waits for this from there.
    #[must_use]
    pub fn expects(&self, what: &Wanted, from: SocketAddr) -> bool {
        let peer = from.ip().to_canonical();
        let expected = lock(&self.expected);
        expected
            .values()
            .any(|other| other.what == *what && other.peer == peer)
    }

    /// Gives a test what it waits for; whether one did.
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
        // The test may have given up meanwhile; then the socket just closes.
        open().is_some_and(|socket| arrived.send(socket).is_ok())
    }
}
