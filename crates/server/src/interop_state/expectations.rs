//! Connections and flows that a running test expects, apart from its control connection.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, mpsc};

use linerate_protocol::iperf3::Cookie;

use super::lock;
use crate::interop_state::{IncomingFlow, InteropState};

/// Connection or flow that a test expects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpectedFlow {
    /// Connection that opens with the cookie of an iperf3 test.
    Iperf3Cookie(Cookie),
    /// Next UDP flow of an iperf3 test; its hello has no test identifier.
    Iperf3Hello {
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

/// Expected flows of all tests, by number.
pub(super) type ExpectationTable = Arc<Mutex<HashMap<u64, ExpectationEntry>>>;

pub(super) struct ExpectationEntry {
    flow: ExpectedFlow,
    /// Address of the client; flows of other addresses do not match.
    peer: IpAddr,
    arrivals: mpsc::Sender<IncomingFlow>,
}

/// Registration of an expected flow; removed on drop.
pub struct ExpectationGuard {
    expectations: ExpectationTable,
    id: u64,
}

impl Drop for ExpectationGuard {
    fn drop(&mut self) {
        lock(&self.expectations).remove(&self.id);
    }
}

impl InteropState {
    /// Registers an expected flow of a client; matching arrivals go to `arrivals`. Returns `None`
    /// if another test of this client already expects the same.
    pub fn expect(
        &self,
        peer: IpAddr,
        flow: ExpectedFlow,
        arrivals: mpsc::Sender<IncomingFlow>,
    ) -> Option<ExpectationGuard> {
        let mut expected = lock(&self.expectations);
        let is_taken = |entry: &ExpectationEntry| entry.flow == flow && entry.peer == peer;
        if expected.values().any(is_taken) {
            return None;
        }
        let id = self.next_expectation.fetch_add(1, Relaxed);
        expected.insert(
            id,
            ExpectationEntry {
                flow,
                peer,
                arrivals,
            },
        );
        Some(ExpectationGuard {
            expectations: Arc::clone(&self.expectations),
            id,
        })
    }

    /// Returns whether a test expects this flow from this address.
    #[must_use]
    pub fn expects(&self, flow: &ExpectedFlow, from: SocketAddr) -> bool {
        let peer = from.ip().to_canonical();
        let expected = lock(&self.expectations);
        expected
            .values()
            .any(|entry| entry.flow == *flow && entry.peer == peer)
    }

    /// Passes an arrival to the test that expects it. Returns false if no test does.
    pub fn deliver(
        &self,
        flow: &ExpectedFlow,
        from: SocketAddr,
        accept: impl FnOnce() -> Option<IncomingFlow>,
    ) -> bool {
        let peer = from.ip().to_canonical();
        let arrivals = {
            let expected = lock(&self.expectations);
            let mut expected = expected.values();
            expected
                .find(|entry| entry.flow == *flow && entry.peer == peer)
                .map(|entry| entry.arrivals.clone())
        };
        let Some(arrivals) = arrivals else {
            return false;
        };
        // The test may have given up in the meantime; then the socket is closed.
        accept().is_some_and(|socket| arrivals.send(socket).is_ok())
    }
}
