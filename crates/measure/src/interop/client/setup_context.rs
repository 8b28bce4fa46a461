//! Context in which a protocol opens its sockets.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use linerate_host::sys::clock::{self, Nanos};
use linerate_metric::plan::{Direction, Plan};
use rustix::io::Errno;
use socket2::Socket;

use super::flow_socket::FlowSocket;
use crate::error::{MeasureError, two_parts};
use crate::flow::Part;
use crate::netstack::StackHandle;
use crate::session::dial::{Local, open};
use crate::session::{local_stack, pace, setup};
use crate::transport::FlowOptions;

/// Timeout of a step of the setup.
pub const PATIENCE_NS: Nanos = 5_000_000_000;

/// Interval at which a wait checks for Ctrl-C.
const LOOK_UP: Duration = Duration::from_millis(50);

/// Context in which a protocol opens its sockets.
pub struct Context<'a> {
    /// Plan to run, completed as far as this end can.
    pub plan: &'a Plan,
    /// Remote address, with the port of the protocol.
    pub far: SocketAddr,
    /// Local address and interface.
    pub local: &'a Local,
    /// Set on Ctrl-C.
    pub stop: &'a AtomicBool,
    /// Queueing disciplines of the interface.
    pub disciplines: &'a [String],
    /// User-space stack, if it carries the test.
    pub stack: Option<&'a StackHandle>,
}

impl Context<'_> {
    /// Opens the control connection; on the user-space stack, the local end of a pair whose bytes
    /// the stack carries.
    pub fn control(&self) -> Result<Socket, MeasureError> {
        let Some(stack) = self.stack else {
            let stream = open(self.far, self.local, self.stop)?;
            let set = stream.set_nodelay(true);
            set.map_err(|error| MeasureError::system("control connection", error))?;
            return Ok(stream.into());
        };
        let far = self.far;
        let (pair, _) = (stack.connect(far, &|| self.stop.load(Relaxed)))
            .map_err(|error| local_stack::failed(far, error))?;
        Ok(OwnedFd::from(pair).into())
    }

    /// Returns the socket options of a flow.
    pub fn options(&self, direction: Direction) -> FlowOptions {
        let part = setup::part(linerate_metric::facts::Role::Client, direction);
        let mut options = setup::flow_options(self.plan, part);
        if part == Part::Source {
            let far = self.far.ip();
            pace::apply(&mut options, self.plan, part, self.disciplines, far);
        }
        options.interface.clone_from(&self.local.interface);
        options.force_buffers = self.plan.forced_buffers.near;
        options
    }

    /// Opens the socket of a flow, connected to a port of the server.
    pub fn flow(
        &self,
        id: u32,
        direction: Direction,
        port: u16,
    ) -> Result<FlowSocket, MeasureError> {
        if self.stop.load(Relaxed) {
            return Err(MeasureError::Interrupted);
        }
        let mut far = self.far;
        far.set_port(port);
        let mut options = self.options(direction);
        let own_port = self.plan.source_port.map_or(0, |first| {
            first.wrapping_add(u16::try_from(id - 1).unwrap_or(0))
        });
        if self.local.address.is_some() || own_port != 0 {
            let any = match far.is_ipv4() {
                true => IpAddr::from([0; 4]),
                false => IpAddr::from([0; 16]),
            };
            options.local = Some(SocketAddr::new(self.local.address.unwrap_or(any), own_port));
        }
        FlowSocket::connect(self.stack, far, &options, self.stop)
            .map_err(|error| failed(far, error))
    }

    /// Opens a listening socket that the server can reach.
    pub fn listening(&self, direction: Direction, port: u16) -> io::Result<FlowSocket> {
        let any = match self.far.is_ipv4() {
            true => IpAddr::from([0; 4]),
            false => IpAddr::from([0; 16]),
        };
        let local = SocketAddr::new(self.local.address.unwrap_or(any), port);
        FlowSocket::listen(self.stack, local, &self.options(direction))
    }

    /// Waits until a socket is readable; false at the timeout.
    pub fn readable(&self, socket: &FlowSocket, until: Nanos) -> Result<bool, MeasureError> {
        loop {
            if self.stop.load(Relaxed) {
                return Err(MeasureError::Interrupted);
            }
            let now = clock::now();
            let left = Duration::from_nanos(until.saturating_sub(now)).min(LOOK_UP);
            let ready = socket.wait(left).map_err(|error| failed(self.far, error))?;
            if ready || now >= until {
                return Ok(ready);
            }
        }
    }

    /// Returns the error for a server that accepts connections without a reply of the protocol.
    pub fn mute(&self, dialect: &str) -> MeasureError {
        self.foreign(format!(
            "accepts the connection and does not answer as a {dialect} server does: --peer auto detects \
             its protocol; if it is a {dialect} server, it may be busy with another client"
        ))
    }

    /// Returns the error for a port without a reply in a time.
    pub fn silent(&self, until_now: Nanos) -> MeasureError {
        MeasureError::SilentUdp {
            address: self.far,
            patience: Duration::from_nanos(until_now),
        }
    }

    /// Returns the error for invalid behaviour of the server.
    pub fn foreign(&self, error: impl std::fmt::Display) -> MeasureError {
        foreign(self.far, error)
    }
}

/// Converts an error of a protocol; the next step follows a colon in its text.
pub fn foreign(peer: SocketAddr, error: impl std::fmt::Display) -> MeasureError {
    let text = error.to_string();
    let (situation, next_step) = two_parts(&text);
    let look = "see the server's own messages, and whether it speaks this protocol";
    MeasureError::Foreign {
        peer,
        situation: situation.to_owned(),
        next_step: next_step.unwrap_or(look).to_owned(),
    }
}

/// Converts the error of opening a socket.
pub fn failed(address: SocketAddr, error: io::Error) -> MeasureError {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::CONNREFUSED) => MeasureError::Refused { address },
        Some(Errno::NETUNREACH | Errno::HOSTUNREACH) => MeasureError::NoRoute {
            address,
            source: error,
        },
        Some(Errno::ACCESS) => own_address(error),
        // Errors of the kernel have numbers, those of the user-space stack have none.
        _ => match error.kind() {
            io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable => own_address(error),
            io::ErrorKind::ConnectionRefused
            | io::ErrorKind::TimedOut
            | io::ErrorKind::Interrupted
            | io::ErrorKind::NetworkUnreachable => local_stack::failed(address, error),
            _ => MeasureError::system("opening a flow", error),
        },
    }
}

fn own_address(source: io::Error) -> MeasureError {
    MeasureError::LocalAddress {
        address: "the local address or port of a flow".to_owned(),
        source,
    }
}
