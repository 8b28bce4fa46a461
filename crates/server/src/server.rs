//! Server: one port that serves many tests at a time.
//!
//! One thread accepts connections and classifies their first bytes without blocking on one of them
//! ([`acceptor`](super::acceptor)). Each test has a thread of its own ([`session`](linerate_session::session)), in
//! addition to those that move payload.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use linerate_protocol::control::PresharedKey;
use linerate_record::event::{Event, EventKind};
use linerate_session::dial::AddressFamily;
use linerate_session::error::MeasureError;
use linerate_session::loss::LabNetwork;
use linerate_session::settings::RemoteTuning;
use linerate_sys::fd_table;
use linerate_workload::timestamps::scheduler_tracer;

use super::acceptor::Acceptor;
use super::listen_ports::{ExtraPort, ListenPort};
use super::server_state::ServerState;
use super::{grants, listen_ports};
use crate::handlers::InteropState;

/// Options of a server.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// Port; 0 takes any free one.
    pub port: u16,
    /// Listen address; all when absent.
    pub address: Option<IpAddr>,
    /// Listen interface; all when absent.
    pub interface: Option<String>,
    /// Listen families when no address is given.
    pub family: AddressFamily,
    /// Serve one test, then end.
    pub single_test: bool,
    /// Privileges that remote clients may request for the time of their tests.
    pub grants: Vec<Grant>,
    /// Applies settings that clients request; unused without [`Grant::Tune`].
    pub tuning: Option<RemoteTuning>,
    /// Shared secret: clients that do not prove it are rejected with the reason.
    pub key: Option<PresharedKey>,
    /// Service for clients of other tools.
    pub interop: InteropOptions,
}

/// Options for clients of other tools.
#[derive(Clone, Debug, Default)]
pub struct InteropOptions {
    /// Additional ports, which must be free.
    pub extra_ports: Vec<ExtraPort>,
    /// Open the default ports of other tools as well, as far as they are free.
    pub well_known_ports: bool,
    /// Only protocols served in addition to our own; absent: all.
    pub protocols: Option<Vec<String>>,
    /// Networks whose unvalidated addresses get replies, in addition to directly connected ones.
    pub allowed_networks: Vec<linerate_protocol::amplification_guard::IpNetwork>,
    /// Most concurrent tests; absent: the server's own limit.
    pub max_tests: Option<usize>,
    /// Most payload bits per second that one test sends; absent: no limit for validated clients.
    pub max_rate_bps: Option<u64>,
    /// Longest test in nanoseconds; absent: no limit.
    pub max_time_ns: Option<u64>,
}

/// Privilege that a remote client may request for its test, if the server grants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// Keep CPUs out of idle states.
    Idle,
    /// Run measuring threads with a scheduling class and priority of its choice.
    Sched,
    /// Run CPU load threads next to its test.
    Load,
    /// Set socket buffers beyond the system's limit, within the server's own.
    Buffers,
    /// Trace the scheduler and the receive path of the whole machine.
    Trace,
    /// Join a multicast group.
    Multicast,
    /// Set socket options that need privileges.
    Socket,
    /// Change settings of this host while the client is connected.
    Tune,
}

/// Grants by name, in the order of the help.
pub const GRANTS: &[(&str, Grant)] = &[
    ("idle", Grant::Idle),
    ("sched", Grant::Sched),
    ("load", Grant::Load),
    ("buffers", Grant::Buffers),
    ("trace", Grant::Trace),
    ("multicast", Grant::Multicast),
    ("socket", Grant::Socket),
    ("tune", Grant::Tune),
];

impl std::str::FromStr for Grant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = GRANTS.iter().find(|(name, _)| *name == text);
        named.map(|&(_, grant)| grant).ok_or_else(|| {
            let names: Vec<_> = GRANTS.iter().map(|(name, _)| *name).collect();
            format!("`{text}` is not a grant: {}", names.join(", "))
        })
    }
}

/// Callback for events of any test, from any thread.
pub type EventCallback = Arc<dyn Fn(Event) + Send + Sync>;

/// Bound server.
pub struct Server {
    /// First the server's own port, then those for clients of other tools.
    listeners: Vec<ListenPort>,
    options: ServerOptions,
    network: Option<Arc<LabNetwork>>,
}

impl Server {
    /// Binds TCP and UDP sockets to the server's port and to the additional ones.
    ///
    /// # Errors
    /// [`MeasureError::PortInUse`], or an invalid address or interface.
    pub fn bind(options: &ServerOptions) -> Result<Self, MeasureError> {
        fd_table::raise_open_file_limit();
        scheduler_tracer::cache_tracepoint_ids();
        Ok(Self {
            listeners: listen_ports::open_ports(options)?,
            options: options.clone(),
            network: None,
        })
    }

    /// Sets the lab network around the server, whose counters account for every lost datagram.
    #[must_use]
    pub fn in_network(self, network: Option<Arc<LabNetwork>>) -> Self {
        Self { network, ..self }
    }

    /// Returns the server's own port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.main_listener().port
    }

    fn main_listener(&self) -> &ListenPort {
        self.listeners
            .first()
            .expect("the server's own port is open")
    }

    /// Returns the additional ports.
    #[must_use]
    pub fn extra_ports(&self) -> Vec<u16> {
        self.listeners
            .iter()
            .skip(1)
            .map(|listener| listener.port)
            .collect()
    }

    /// Returns the listen addresses.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        vec![self.main_listener().address.to_string()]
    }

    /// Serves until `stop` is set, or until the test of a single-test server has ended.
    ///
    /// # Errors
    /// The error that ended the single test, or errors of the listening sockets.
    pub fn run(self, stop: Arc<AtomicBool>, emit: EventCallback) -> Result<(), MeasureError> {
        emit(Event {
            test: 0,
            kind: EventKind::Ready {
                port: self.port(),
                addresses: self.addresses(),
                other_ports: self.extra_ports(),
            },
        });
        let ports = self
            .listeners
            .iter()
            .map(|listener| listener.port)
            .collect();
        let options = ServerOptions {
            port: self.port(),
            ..self.options
        };
        for warning in grants::unprivileged(&options.grants) {
            emit(Event {
                test: 0,
                kind: EventKind::CaveatRaised { caveat: warning },
            });
        }
        let interop = InteropState::new(&options, ports, Arc::clone(&emit));
        let server = ServerState::new(options, emit, stop, self.network).with_interop(interop);
        let server = Arc::new(server);
        let mut acceptor = Acceptor::new(self.listeners, Arc::clone(&server))
            .map_err(|error| MeasureError::system("listening", error))?;
        while !server.stop.load(Relaxed) && !server.finished.load(Relaxed) {
            acceptor
                .poll_once()
                .map_err(|error| MeasureError::system("listening", error))?;
        }
        acceptor.close();
        let failure = server.failure.lock().expect("no holder panics").take();
        match failure {
            Some(failure) if server.single_test => Err(failure),
            _ => Ok(()),
        }
    }
}
