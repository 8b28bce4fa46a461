//! Server: one port that serves many tests at a time.
//!
//! One thread accepts connections and classifies their first bytes without blocking on one of them
//! ([`acceptor`](super::acceptor)). Each test has a thread of its own
//! ([`server_session`](super::server_session)), in addition to those that move payload.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use linerate_record::event::{Event, EventKind};
use linerate_session::error::SessionError;
use linerate_session::loss::LabNetwork;
use linerate_sys::fd_table;
use linerate_workload::timestamps::scheduler_tracer;

use crate::acceptor::Acceptor;
use crate::interop_state::InteropState;
use crate::listen_ports::ListenPort;
use crate::options::{EventCallback, ServerOptions};
use crate::server_state::ServerState;
use crate::{grants, listen_ports};

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
    /// [`SessionError::PortInUse`], or an invalid address or interface.
    pub fn bind(options: &ServerOptions) -> Result<Self, SessionError> {
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
    pub fn run(self, stop: Arc<AtomicBool>, emit: EventCallback) -> Result<(), SessionError> {
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
            .map_err(|error| SessionError::system("listening", error))?;
        while !server.stop.load(Relaxed) && !server.finished.load(Relaxed) {
            acceptor
                .poll_once()
                .map_err(|error| SessionError::system("listening", error))?;
        }
        acceptor.close();
        let failure = server.failure.lock().expect("no holder panics").take();
        match failure {
            Some(failure) if server.single_test => Err(failure),
            _ => Ok(()),
        }
    }
}
