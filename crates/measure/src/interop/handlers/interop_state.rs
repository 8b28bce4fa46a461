//! State shared by all tests with other tools: amplification guard, expected and open flows,
//! permits of unvalidated clients, rejection log, limits.

mod expectations;
mod open_flows;
mod rejections;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use linerate_dialect::amplification_guard::{Guard, Network, Rules};
use linerate_host::sys::clock::{self, Nanos};

pub use expectations::{Expectation, Wanted};
pub use open_flows::FlowKey;

use super::limits::Limits;
use super::rejection_log::Refusals;
use crate::session::limits::TEST_LIMIT;
use crate::session::{Emit, ServerOptions};
use expectations::Expected;
use open_flows::Flows;

/// Limit of concurrent tests of unvalidated and unidentified clients, which can be forged: half of
/// all tests.
const STRANGER_LIMIT: usize = TEST_LIMIT / 2;

/// Maximum age of the list of local networks before a rejection relies on it.
const NETWORKS_NS: Nanos = 5_000_000_000;

/// State shared by all tests with other tools.
pub struct Hall {
    guard: Mutex<Guard>,
    networks_read_ns: AtomicU64,
    expected: Mutex<HashMap<u64, Expected>>,
    next: AtomicU64,
    flows: Flows,
    strangers: Arc<AtomicUsize>,
    refusals: Mutex<Refusals>,
    emit: Option<Emit>,
    ports: Vec<u16>,
    only: Option<Vec<String>>,
    has_key: bool,
    max_tests: Option<usize>,
    limits: Limits,
}

/// Permit for one test of an unvalidated client; released on drop.
pub struct Stranger(Arc<AtomicUsize>);

impl Drop for Stranger {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Locks a mutex; no panic leaves the data behind these locks half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for Hall {
    fn default() -> Self {
        Self {
            guard: Mutex::new(Guard::with_addresses(Rules::default(), 16)),
            networks_read_ns: AtomicU64::new(0),
            expected: Mutex::default(),
            next: AtomicU64::new(0),
            flows: Arc::default(),
            strangers: Arc::default(),
            refusals: Mutex::default(),
            emit: None,
            ports: Vec::new(),
            only: None,
            has_key: false,
            max_tests: None,
            limits: Limits::default(),
        }
    }
}

impl Hall {
    /// Creates the state of a server with these options and listening ports.
    #[must_use]
    pub fn new(options: &ServerOptions, ports: Vec<u16>, emit: Emit) -> Self {
        let has_key = options.key.is_some();
        let options = &options.peers;
        let mut rules = Rules {
            neighbours: linerate_host::snapshot::connected_networks()
                .into_iter()
                .map(|(address, prefix)| Network::new(address, prefix))
                .chain(Network::loopback())
                .collect(),
            allowed: options.allow.clone(),
            ..Rules::default()
        };
        if let Some(rate) = options.max_rate_bps {
            rules.address_bytes_per_second = rules.address_bytes_per_second.min(rate / 8);
            rules.total_bytes_per_second = rules.total_bytes_per_second.min(rate / 4);
        }
        Self {
            guard: Mutex::new(Guard::new(rules)),
            networks_read_ns: AtomicU64::new(clock::now()),
            emit: Some(emit),
            ports,
            // No third-party protocol can prove that its client has the key.
            only: options.only.clone().or_else(|| has_key.then(Vec::new)),
            has_key,
            max_tests: options.max_tests,
            limits: Limits {
                rate_bps: options.max_rate_bps,
                time_ns: options.max_time_ns,
            },
            ..Self::default()
        }
    }

    /// Returns whether this server serves a protocol.
    #[must_use]
    pub fn speaks(&self, name: &str) -> bool {
        (self.only.as_ref()).is_none_or(|only| only.iter().any(|allowed| allowed == name))
    }

    /// Returns the limit of concurrent tests, if any.
    #[must_use]
    pub fn max_tests(&self) -> Option<usize> {
        self.max_tests
    }

    /// Returns the limits of one test.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns whether `to` is this server itself, seen from its address `local`. The server never
    /// connects to its own ports.
    #[must_use]
    pub fn is_own(&self, to: SocketAddr, local: IpAddr) -> bool {
        let ip = to.ip().to_canonical();
        self.ports.contains(&to.port()) && (ip.is_loopback() || ip == local.to_canonical())
    }

    /// Returns the listening ports.
    #[must_use]
    pub fn ports(&self) -> &[u16] {
        &self.ports
    }

    /// Takes a permit for one more test of an unvalidated client; `None` at the limit.
    pub fn stranger(&self) -> Option<Stranger> {
        let more = |now: usize| (now < STRANGER_LIMIT).then_some(now + 1);
        let taken = self.strangers.fetch_update(Relaxed, Relaxed, more);
        taken.ok().map(|_| Stranger(Arc::clone(&self.strangers)))
    }

    /// Marks an address as validated: it returned a value that only a host there could receive.
    pub fn prove(&self, address: IpAddr) {
        lock(&self.guard).prove(clock::now(), address);
    }

    /// Returns whether an address is validated (recently, or listed in `--allow`), so that it may
    /// be sent a flow.
    #[must_use]
    pub fn is_known(&self, address: IpAddr) -> bool {
        lock(&self.guard).may_have_flow(clock::now(), address)
    }

    /// Returns whether an address belongs to a connected network or to one listed in `--allow`.
    #[must_use]
    pub fn is_near(&self, address: IpAddr) -> bool {
        self.refresh();
        lock(&self.guard).may_know(address.to_canonical())
    }

    /// Reads the connected networks again once they are older than [`NETWORKS_NS`]: an interface
    /// may have come up.
    fn refresh(&self) {
        let now = clock::now();
        let read = self.networks_read_ns.load(Relaxed);
        let due = self.emit.is_some() && now.saturating_sub(read) > NETWORKS_NS;
        let mine = || {
            let swap = self
                .networks_read_ns
                .compare_exchange(read, now, Relaxed, Relaxed);
            swap.is_ok()
        };
        if due && mine() {
            let networks = linerate_host::snapshot::connected_networks().into_iter();
            let networks = networks.map(|(address, prefix)| Network::new(address, prefix));
            let neighbours = networks.chain(Network::loopback()).collect();
            lock(&self.guard).set_neighbours(neighbours);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unknown_have_half_of_all_tests() {
        let hall = Hall::default();
        let mut all: Vec<_> = (0..128).map(|_| hall.stranger().expect("room")).collect();
        assert!(hall.stranger().is_none());
        all.pop();
        assert!(hall.stranger().is_some());
    }

    #[test]
    fn a_server_is_told_from_others_by_address_and_port() {
        let hall = Hall {
            ports: vec![5201, 5001],
            ..Hall::default()
        };
        let local: IpAddr = "10.77.0.2".parse().unwrap();
        for (to, own) in [
            ("10.77.0.2:5001", true),
            ("[::ffff:10.77.0.2]:5201", true),
            ("127.0.0.1:5001", true),
            ("10.77.0.1:5001", false),
            ("10.77.0.2:5002", false),
        ] {
            assert_eq!(hall.is_own(to.parse().unwrap(), local), own, "{to}");
        }
    }
}
