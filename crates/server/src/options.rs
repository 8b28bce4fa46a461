//! Options of a server and the privileges that it grants.

use std::net::IpAddr;
use std::sync::Arc;

use linerate_protocol::amplification_guard::IpNetwork;
use linerate_protocol::control::PresharedKey;
use linerate_record::event::Event;
use linerate_session::dial::AddressFamily;
use linerate_session::remote_settings::RemoteTuning;

use crate::timeouts::Timeouts;

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
    /// Silence limits.
    pub timeouts: Timeouts,
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
    pub allowed_networks: Vec<IpNetwork>,
    /// Most concurrent tests; absent: the server's own limit.
    pub max_tests: Option<usize>,
    /// Most payload bits per second that one test sends; absent: no limit for validated clients.
    pub max_rate_bps: Option<u64>,
    /// Longest test in nanoseconds; absent: no limit.
    pub max_time_ns: Option<u64>,
}

/// Port that the server opens in addition to its own (`--also`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtraPort {
    pub port: u16,
    /// Only protocol accepted there; absent: classified by the client's first bytes.
    pub protocol: Option<&'static str>,
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
