//! The far end: one port that serves many tests at a time.
//!
//! One thread accepts connections and reads their first bytes without ever waiting for one of them
//! ([`lobby`](super::lobby)); each test then has a thread of its own
//! ([`session`](super::session)), besides those that move payload.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use linerate_dialect::control::Key;
use linerate_host::sys::descriptors;
use linerate_metric::event::{Event, What};

use super::doors::{self, Also, Door};
use super::grants;
use super::house::House;
use super::lobby::Lobby;
use super::reach::Family;
use super::settings::Maker;
use crate::error::MeasureError;
use crate::loss::Network;
use crate::peers::serve::Hall;
use crate::stamped::instruments;

/// How a server listens.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// Its port; 0 takes any free one.
    pub port: u16,
    /// The address that it listens on; all when absent.
    pub address: Option<IpAddr>,
    /// The interface that it listens on; all when absent.
    pub interface: Option<String>,
    /// The families that it listens on, when no address is given.
    pub family: Family,
    /// Serve one test and end.
    pub once: bool,
    /// What far clients may have for the time of their runs.
    pub grants: Vec<Grant>,
    /// Who makes settings of this host for clients; nobody unless [`Grant::Tune`] is granted.
    pub settings: Option<Maker>,
    /// What clients have to know; whoever does not prove to know it is told so and has nothing.
    pub key: Option<Key>,
    /// How it serves programs of other kinds.
    pub peers: PeerOptions,
}

/// How a server serves programs of other kinds.
#[derive(Clone, Debug, Default)]
pub struct PeerOptions {
    /// Ports beside its own, which have to be free.
    pub also: Vec<Also>,
    /// Ports that those programs expect are open too, as far as they are free.
    pub well_known: bool,
    /// The only dialects that are spoken beside our own; absent: all.
    pub only: Option<Vec<String>>,
    /// Networks whose addresses are answered though they prove nothing, beside those directly
    /// connected.
    pub allow: Vec<linerate_dialect::guard::Network>,
    /// Tests at a time; absent: as many as the server can bear.
    pub max_tests: Option<usize>,
    /// Payload bits per second that one test sends; absent: no limit for those who proved where they are.
    pub max_rate_bps: Option<u64>,
    /// Longest time of a test, in nanoseconds; absent: no limit.
    pub max_time_ns: Option<u64>,
}

/// Something that a far client may have for the time of its run, if the server says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// Keep the cores from halting.
    Idle,
    /// Run its threads at a scheduling class and priority of its choice.
    Sched,
    /// Keep processors busy beside its run.
    Load,
    /// Have socket buffers beyond the system's limit, within the server's own.
    Buffers,
    /// Have the scheduler and the receive work of the whole machine watched.
    Trace,
    /// Have the server join a multicast group.
    Multicast,
    /// Have sockets set up in ways that the kernel keeps from ordinary users.
    Socket,
    /// Have settings of this host changed while it is there.
    Tune,
}

/// Every grant by its name, in the order help lists them.
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
        let known = GRANTS.iter().find(|(name, _)| *name == text);
        known.map(|&(_, grant)| grant).ok_or_else(|| {
            let names: Vec<_> = GRANTS.iter().map(|(name, _)| *name).collect();
            format!("`{text}` cannot be granted: {}", names.join(", "))
        })
    }
}

/// Takes events of any test, from any thread.
pub type Emit = Arc<dyn Fn(Event) + Send + Sync>;

/// A bound server.
pub struct Server {
    /// The first is its own, the others are for programs of other kinds.
    doors: Vec<Door>,
    options: ServerOptions,
    network: Option<Arc<Network>>,
}

impl Server {
    /// Binds TCP and UDP to the same port, and to those beside it.
    ///
    /// # Errors
    /// [`MeasureError::PortTaken`], or what is wrong with the address or interface.
    pub fn bind(options: &ServerOptions) -> Result<Self, MeasureError> {
        descriptors::raise_limit();
        instruments::remember_tracepoints();
        Ok(Self {
            doors: doors::open(options)?,
            options: options.clone(),
            network: None,
        })
    }

    /// The same in a network that can be looked into as a whole, so that every lost datagram is
    /// accounted for.
    #[must_use]
    pub fn within(self, network: Option<Arc<Network>>) -> Self {
        Self { network, ..self }
    }

    /// The port it listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.own().port
    }

    fn own(&self) -> &Door {
        self.doors.first().expect("the server's own port is open")
    }

    /// The ports beside its own.
    #[must_use]
    pub fn also(&self) -> Vec<u16> {
        self.doors.iter().skip(1).map(|door| door.port).collect()
    }

    /// The addresses it listens on.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        vec![self.own().bound.to_string()]
    }

    /// Serves until `stop` is set, or until one test is over when it is to serve only one.
    ///
    /// # Errors
    /// What broke the one test of a server that serves only one, or the listening sockets.
    pub fn run(self, stop: Arc<AtomicBool>, emit: Emit) -> Result<(), MeasureError> {
        emit(Event {
            test: 0,
            what: What::Ready {
                port: self.port(),
                addresses: self.addresses(),
                also: self.also(),
            },
        });
        let ports = self.doors.iter().map(|door| door.port).collect();
        let options = ServerOptions {
            port: self.port(),
            ..self.options
        };
        for doubt in grants::lacking(&options.grants) {
            emit(Event {
                test: 0,
                what: What::Doubted { doubt },
            });
        }
        let hall = Hall::new(&options, ports, Arc::clone(&emit));
        let house = House::new(options, emit, stop, self.network).with_hall(hall);
        let house = Arc::new(house);
        let mut lobby = Lobby::new(self.doors, Arc::clone(&house))
            .map_err(|error| MeasureError::system("listening", error))?;
        while !house.stop.load(Relaxed) && !house.over.load(Relaxed) {
            lobby
                .turn()
                .map_err(|error| MeasureError::system("listening", error))?;
        }
        lobby.close();
        let failure = house.failure.lock().expect("no holder panics").take();
        match failure {
            Some(failure) if house.once => Err(failure),
            _ => Ok(()),
        }
    }
}
