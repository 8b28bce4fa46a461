//! Context in which a protocol opens its sockets.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use linerate_record::plan::{Direction, Plan};
use linerate_session::dial::{SourceBinding, connect};
use linerate_session::error::{SessionError, split_situation};
use linerate_session::flow_handle::flow_role;
use linerate_session::{client_stack, pacing};
use linerate_sys::clock;
use linerate_sys::clock::Nanos;
use linerate_transport::FlowOptions;
use linerate_transport::flow_role::FlowRole;
use linerate_transport::stack_thread::StackHandle;
use rustix::io::Errno;
use socket2::Socket;

use crate::flow_socket::FlowSocket;

/// Timeout of a step of the setup.
pub const SETUP_TIMEOUT_NS: Nanos = 5_000_000_000;

/// Interval at which a wait checks for Ctrl-C.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Context in which a protocol opens its sockets.
pub struct SetupContext<'a> {
    /// Plan to run, completed as far as this end can.
    pub plan: &'a Plan,
    /// Remote address, with the port of the protocol.
    pub remote: SocketAddr,
    /// Local address and interface.
    pub local: &'a SourceBinding,
    /// Set on Ctrl-C.
    pub stop: &'a AtomicBool,
    /// Queueing disciplines of the interface.
    pub disciplines: &'a [String],
    /// User-space stack, if it carries the test.
    pub stack: Option<&'a StackHandle>,
}

impl SetupContext<'_> {
    /// Opens the control connection; on the user-space stack, the local end of a pair whose bytes
    /// the stack carries.
    pub fn connect_control(&self) -> Result<Socket, SessionError> {
        let Some(stack) = self.stack else {
            let stream = connect(self.remote, self.local, self.stop)?;
            let set = stream.set_nodelay(true);
            set.map_err(|error| SessionError::system("control connection", error))?;
            return Ok(stream.into());
        };
        let remote = self.remote;
        let (pair, _) = (stack.connect(remote, &|| self.stop.load(Relaxed)))
            .map_err(|error| client_stack::netstack_connect_error(remote, error))?;
        Ok(OwnedFd::from(pair).into())
    }

    /// Returns the socket options of a flow.
    pub fn flow_options(&self, direction: Direction) -> FlowOptions {
        let role = flow_role(linerate_record::facts::Role::Client, direction);
        let mut options = linerate_transport::flow_options::flow_options(self.plan, role);
        if role == FlowRole::Sender {
            let remote = self.remote.ip();
            pacing::apply_pacing(&mut options, self.plan, role, self.disciplines, remote);
        }
        options.interface.clone_from(&self.local.interface);
        options.force_buffers = self.plan.forced_buffers.client;
        options
    }

    /// Opens the socket of a flow, connected to a port of the server.
    pub fn connect_flow(
        &self,
        id: u32,
        direction: Direction,
        port: u16,
    ) -> Result<FlowSocket, SessionError> {
        if self.stop.load(Relaxed) {
            return Err(SessionError::Interrupted);
        }
        let mut remote = self.remote;
        remote.set_port(port);
        let mut options = self.flow_options(direction);
        let local_port = self.plan.source_port.map_or(0, |first| {
            first.wrapping_add(u16::try_from(id - 1).unwrap_or(0))
        });
        if self.local.address.is_some() || local_port != 0 {
            let any = match remote.is_ipv4() {
                true => IpAddr::from([0; 4]),
                false => IpAddr::from([0; 16]),
            };
            options.local = Some(SocketAddr::new(
                self.local.address.unwrap_or(any),
                local_port,
            ));
        }
        FlowSocket::connect(self.stack, remote, &options, self.stop)
            .map_err(|error| flow_open_error(remote, error))
    }

    /// Opens a listening socket that the server can reach.
    pub fn open_listener(&self, direction: Direction, port: u16) -> io::Result<FlowSocket> {
        let any = match self.remote.is_ipv4() {
            true => IpAddr::from([0; 4]),
            false => IpAddr::from([0; 16]),
        };
        let local = SocketAddr::new(self.local.address.unwrap_or(any), port);
        FlowSocket::listen(self.stack, local, &self.flow_options(direction))
    }

    /// Waits until a socket is readable; false at the timeout.
    pub fn wait_readable(
        &self,
        socket: &FlowSocket,
        until_ns: Nanos,
    ) -> Result<bool, SessionError> {
        loop {
            if self.stop.load(Relaxed) {
                return Err(SessionError::Interrupted);
            }
            let now = clock::now();
            let remaining =
                Duration::from_nanos(until_ns.saturating_sub(now)).min(STOP_POLL_INTERVAL);
            let ready = socket
                .wait_readable(remaining)
                .map_err(|error| flow_open_error(self.remote, error))?;
            if ready || now >= until_ns {
                return Ok(ready);
            }
        }
    }

    /// Returns the error for a server that accepts connections without a reply of the protocol.
    pub fn no_protocol_reply(&self, protocol: &str) -> SessionError {
        self.protocol_error(format!(
            "accepts the connection and does not answer as a {protocol} server does: --peer auto detects \
             its protocol; if it is a {protocol} server, it may be busy with another client"
        ))
    }

    /// Returns the error for a port without a reply in a time.
    pub fn udp_timeout(&self, waited_ns: Nanos) -> SessionError {
        SessionError::NoDatagram {
            address: self.remote,
            timeout: Duration::from_nanos(waited_ns),
        }
    }

    /// Returns the error for invalid behaviour of the server.
    pub fn protocol_error(&self, error: impl std::fmt::Display) -> SessionError {
        protocol_error(self.remote, error)
    }
}

/// Converts an error of a protocol; the next step follows a colon in its text.
pub fn protocol_error(peer: SocketAddr, error: impl std::fmt::Display) -> SessionError {
    let text = error.to_string();
    let (situation, next_step) = split_situation(&text);
    let default_next_step = "see the server's own messages, and whether it serves this protocol";
    SessionError::PeerFailed {
        peer,
        situation: situation.to_owned(),
        next_step: next_step.unwrap_or(default_next_step).to_owned(),
    }
}

/// Converts the error of opening a socket.
pub fn flow_open_error(address: SocketAddr, error: io::Error) -> SessionError {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::CONNREFUSED) => SessionError::ConnectionRefused { address },
        Some(Errno::NETUNREACH | Errno::HOSTUNREACH) => SessionError::NoRoute {
            address,
            source: error,
        },
        Some(Errno::ACCESS) => local_address_error(error),
        // Errors of the kernel have numbers, those of the user-space stack have none.
        _ => match error.kind() {
            io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable => {
                local_address_error(error)
            }
            io::ErrorKind::ConnectionRefused
            | io::ErrorKind::TimedOut
            | io::ErrorKind::Interrupted
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::HostUnreachable => {
                client_stack::netstack_connect_error(address, error)
            }
            _ => SessionError::system("opening a flow", error),
        },
    }
}

fn local_address_error(source: io::Error) -> SessionError {
    SessionError::LocalAddress {
        address: "the local address or port of a flow".to_owned(),
        source,
    }
}
