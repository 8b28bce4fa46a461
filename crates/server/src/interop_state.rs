//! State shared by all tests with other tools: amplification guard, expected and open flows,
//! permits of unvalidated clients, rejection log, limits.

mod expectations;
mod incoming_flow;
mod open_flows;
mod rejection_log;
mod rejections;

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use expectations::ExpectationTable;
use linerate_protocol::amplification_guard::{
    AmplificationGuard, GuardRules, IpNetwork, SendRejection,
};
use linerate_sys::clock;
use linerate_sys::clock::Nanos;
use open_flows::FlowTable;

use crate::interop_limits::InteropLimits;
use crate::limits::TEST_LIMIT;
use crate::options::{EventCallback, ServerOptions};
pub use expectations::{ExpectationGuard, ExpectedFlow};
pub use incoming_flow::{IncomingFlow, canonical};
pub use open_flows::OpenFlowEntry;
pub use rejection_log::RejectionKey;
use rejection_log::RejectionLog;

/// Limit of concurrent tests of unvalidated and unidentified clients, which can be forged: half of
/// all tests.
const UNVALIDATED_TEST_LIMIT: usize = TEST_LIMIT / 2;

/// Maximum age of the list of local networks before a rejection relies on it.
const NETWORKS_MAX_AGE_NS: Nanos = 5_000_000_000;

/// State shared by all tests with other tools.
pub struct InteropState {
    guard: Mutex<AmplificationGuard>,
    networks_read_ns: AtomicU64,
    expectations: ExpectationTable,
    next_expectation: AtomicU64,
    open_flows: FlowTable,
    unvalidated_tests: Arc<AtomicUsize>,
    rejection_log: Mutex<RejectionLog>,
    emit: Option<EventCallback>,
    ports: Vec<u16>,
    protocols: Option<Vec<String>>,
    has_key: bool,
    max_tests: Option<usize>,
    limits: InteropLimits,
}

/// Permit for one test of an unvalidated client; released on drop.
pub struct UnvalidatedPermit(Arc<AtomicUsize>);

impl Drop for UnvalidatedPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Locks a mutex; no panic leaves the data behind these locks half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for InteropState {
    fn default() -> Self {
        Self {
            guard: Mutex::new(AmplificationGuard::with_addresses(
                GuardRules::default(),
                16,
            )),
            networks_read_ns: AtomicU64::new(0),
            expectations: Arc::default(),
            next_expectation: AtomicU64::new(0),
            open_flows: Arc::default(),
            unvalidated_tests: Arc::default(),
            rejection_log: Mutex::default(),
            emit: None,
            ports: Vec::new(),
            protocols: None,
            has_key: false,
            max_tests: None,
            limits: InteropLimits::default(),
        }
    }
}

impl InteropState {
    /// Creates the state of a server with these options and listening ports.
    #[must_use]
    pub fn new(options: &ServerOptions, ports: Vec<u16>, emit: EventCallback) -> Self {
        let has_key = options.key.is_some();
        let options = &options.interop;
        let mut rules = GuardRules {
            neighbours: linerate_host::snapshot::list_connected_networks()
                .into_iter()
                .map(|(address, prefix)| IpNetwork::new(address, prefix))
                .chain(IpNetwork::loopback())
                .collect(),
            allowed: options.allowed_networks.clone(),
            ..GuardRules::default()
        };
        if let Some(rate) = options.max_rate_bps {
            rules.address_bytes_per_second = rules.address_bytes_per_second.min(rate / 8);
            rules.total_bytes_per_second = rules.total_bytes_per_second.min(rate / 4);
        }
        Self {
            guard: Mutex::new(AmplificationGuard::new(rules)),
            networks_read_ns: AtomicU64::new(clock::now()),
            emit: Some(emit),
            ports,
            // No third-party protocol can prove that its client has the key.
            protocols: options.protocols.clone().or_else(|| has_key.then(Vec::new)),
            has_key,
            max_tests: options.max_tests,
            limits: InteropLimits {
                rate_bps: options.max_rate_bps,
                time_ns: options.max_time_ns,
            },
            ..Self::default()
        }
    }

    /// Returns whether this server serves a protocol.
    #[must_use]
    pub fn serves(&self, name: &str) -> bool {
        (self.protocols.as_ref()).is_none_or(|only| only.iter().any(|allowed| allowed == name))
    }

    /// Returns the limit of concurrent tests, if any.
    #[must_use]
    pub fn max_tests(&self) -> Option<usize> {
        self.max_tests
    }

    /// Returns the limits of one test.
    #[must_use]
    pub fn limits(&self) -> &InteropLimits {
        &self.limits
    }

    /// Returns whether `to` is this server itself, seen from its address `local`. The server never
    /// connects to its own ports.
    #[must_use]
    pub fn is_self(&self, to: SocketAddr, local: IpAddr) -> bool {
        let ip = to.ip().to_canonical();
        self.ports.contains(&to.port()) && (ip.is_loopback() || ip == local.to_canonical())
    }

    /// Returns the listening ports.
    #[must_use]
    pub fn ports(&self) -> &[u16] {
        &self.ports
    }

    /// Takes a permit for one more test of an unvalidated client; `None` at the limit.
    pub fn acquire_unvalidated_permit(&self) -> Option<UnvalidatedPermit> {
        let increment = |now: usize| (now < UNVALIDATED_TEST_LIMIT).then_some(now + 1);
        let taken = self
            .unvalidated_tests
            .fetch_update(Relaxed, Relaxed, increment);
        taken
            .ok()
            .map(|_| UnvalidatedPermit(Arc::clone(&self.unvalidated_tests)))
    }

    /// Marks an address as validated: it returned a value that only a host there could receive.
    pub fn mark_validated(&self, address: IpAddr) {
        lock(&self.guard).validate(clock::now(), address);
    }

    /// Returns whether an address is validated (recently, or listed in `--allow`), so that it may
    /// be sent a flow.
    #[must_use]
    pub fn is_validated(&self, address: IpAddr) -> bool {
        lock(&self.guard).may_receive_flow(clock::now(), address)
    }

    /// Returns whether payload may be sent to a client that has only sent UDP; a rejection is logged.
    #[must_use]
    pub fn check_validated(&self, protocol: &'static str, client: SocketAddr) -> bool {
        let address = client.ip();
        let is_validated = self.is_validated(address);
        if !is_validated {
            self.reject_response(protocol, client, SendRejection::Unvalidated { address });
        }
        is_validated
    }

    /// Returns whether an address belongs to a connected network or to one listed in `--allow`.
    #[must_use]
    pub fn is_in_trusted_network(&self, address: IpAddr) -> bool {
        self.refresh_networks();
        lock(&self.guard).allows_replies_to(address.to_canonical())
    }

    /// Reads the connected networks again once they are older than [`NETWORKS_MAX_AGE_NS`]: an
    /// interface may have come up.
    fn refresh_networks(&self) {
        let now = clock::now();
        let read = self.networks_read_ns.load(Relaxed);
        let expired = self.emit.is_some() && now.saturating_sub(read) > NETWORKS_MAX_AGE_NS;
        let claims_refresh = || {
            let swap = self
                .networks_read_ns
                .compare_exchange(read, now, Relaxed, Relaxed);
            swap.is_ok()
        };
        if expired && claims_refresh() {
            let networks = linerate_host::snapshot::list_connected_networks().into_iter();
            let networks = networks.map(|(address, prefix)| IpNetwork::new(address, prefix));
            let neighbours = networks.chain(IpNetwork::loopback()).collect();
            lock(&self.guard).set_neighbours(neighbours);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unvalidated_clients_have_half_of_all_tests() {
        let interop = InteropState::default();
        let mut all: Vec<_> = (0..128)
            .map(|_| interop.acquire_unvalidated_permit().expect("room"))
            .collect();
        assert!(interop.acquire_unvalidated_permit().is_none());
        all.pop();
        assert!(interop.acquire_unvalidated_permit().is_some());
    }

    #[test]
    fn the_server_itself_is_recognised_by_address_and_port() {
        let interop = InteropState {
            ports: vec![5201, 5001],
            ..InteropState::default()
        };
        let local: IpAddr = "10.77.0.2".parse().unwrap();
        for (to, is_self) in [
            ("10.77.0.2:5001", true),
            ("[::ffff:10.77.0.2]:5201", true),
            ("127.0.0.1:5001", true),
            ("10.77.0.1:5001", false),
            ("10.77.0.2:5002", false),
        ] {
            assert_eq!(interop.is_self(to.parse().unwrap(), local), is_self, "{to}");
        }
    }
}
