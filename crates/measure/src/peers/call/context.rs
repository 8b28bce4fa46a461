//! What a dialect needs to open its sockets.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use linerate_host::sys::clock::{self, Nanos};
use linerate_metric::plan::{Direction, Plan};
use rustix::io::Errno;
use socket2::Socket;

use super::socket::FlowSocket;
use crate::error::{MeasureError, two_parts};
use crate::flow::Part;
use crate::session::reach::{Local, open};
use crate::session::{ground, pace, setup};
use crate::stack::StackHandle;
use crate::transport::FlowOptions;

/// How long a step of an opening may take.
pub const PATIENCE_NS: Nanos = 5_000_000_000;

/// How soon Ctrl-C is noticed.
const LOOK_UP: Duration = Duration::from_millis(50);

/// What a dialect needs to open its sockets.
pub struct Context<'a> {
    /// What is to be run, settled as far as this end can.
    pub plan: &'a Plan,
    /// The far end, with the port of the dialect.
    pub far: SocketAddr,
    /// Local address and interface.
    pub local: &'a Local,
    /// Set by Ctrl-C.
    pub stop: &'a AtomicBool,
    /// Queueing disciplines of the interface.
    pub disciplines: &'a [String],
    /// Our own stack, where all of it goes over that.
    pub stack: Option<&'a StackHandle>,
}

impl Context<'_> {
    /// A control connection: over our own stack the near end of a pair whose bytes it carries.
    pub fn control(&self) -> Result<Socket, MeasureError> {
        let Some(stack) = self.stack else {
            let stream = open(self.far, self.local, self.stop)?;
            let set = stream.set_nodelay(true);
            set.map_err(|error| MeasureError::system("control connection", error))?;
            return Ok(stream.into());
        };
        let far = self.far;
        let (pair, _) = (stack.connect(far, &|| self.stop.load(Relaxed)))
            .map_err(|error| ground::failed(far, error))?;
        Ok(OwnedFd::from(pair).into())
    }

    /// How the sockets of a flow are set up.
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

    /// The socket of the flow with that number, connected to a port of the far end.
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

    /// A socket that the far end can reach, on a port.
    pub fn listening(&self, direction: Direction, port: u16) -> io::Result<FlowSocket> {
        let any = match self.far.is_ipv4() {
            true => IpAddr::from([0; 4]),
            false => IpAddr::from([0; 16]),
        };
        let local = SocketAddr::new(self.local.address.unwrap_or(any), port);
        FlowSocket::listen(self.stack, local, &self.options(direction))
    }

    /// Waits until something can be read from a socket; false when the time is over.
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

    /// Connections are taken, and nothing comes back that a server of the dialect says.
    pub fn mute(&self, dialect: &str) -> MeasureError {
        self.foreign(format!(
            "takes the connection and does not answer as a {dialect} server does: --peer auto finds out \
             what it speaks; if it is a {dialect} server, it may be busy with another client"
        ))
    }

    /// No datagram came back within a time.
    pub fn silent(&self, until_now: Nanos) -> MeasureError {
        MeasureError::SilentUdp {
            address: self.far,
            patience: Duration::from_nanos(until_now),
        }
    }

    /// What the far end did that makes no sense.
    pub fn foreign(&self, error: impl std::fmt::Display) -> MeasureError {
        foreign(self.far, error)
    }
}

/// An error of a dialect: what went wrong and what to do are the two parts of its text.
pub fn foreign(peer: SocketAddr, error: impl std::fmt::Display) -> MeasureError {
    let text = error.to_string();
    let (situation, next_step) = two_parts(&text);
    let look = "look at the far end's own messages, and whether it speaks this dialect";
    MeasureError::Foreign {
        peer,
        situation: situation.to_owned(),
        next_step: next_step.unwrap_or(look).to_owned(),
    }
}

/// Why a socket could not be opened.
pub fn failed(address: SocketAddr, error: io::Error) -> MeasureError {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::CONNREFUSED) => MeasureError::Refused { address },
        Some(Errno::NETUNREACH | Errno::HOSTUNREACH) => MeasureError::NoRoute {
            address,
            source: error,
        },
        Some(Errno::ACCESS) => own_address(error),
        // The kernel's have numbers, those of our own stack have not.
        _ => match error.kind() {
            io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable => own_address(error),
            io::ErrorKind::ConnectionRefused
            | io::ErrorKind::TimedOut
            | io::ErrorKind::Interrupted
            | io::ErrorKind::NetworkUnreachable => ground::failed(address, error),
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
