//! What a dialect needs to open its sockets.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::wait::{Ready, poll};
use linerate_metric::plan::{Direction, Plan};
use rustix::io::Errno;
use socket2::Socket;

use crate::error::{MeasureError, two_parts};
use crate::flow::Part;
use crate::session::reach::{Local, open};
use crate::session::{pace, setup};
use crate::transport::{FlowOptions, open_socket};

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
}

impl Context<'_> {
    /// A control connection.
    pub fn control(&self) -> Result<TcpStream, MeasureError> {
        open(self.far, self.local, self.stop)
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
    pub fn flow(&self, id: u32, direction: Direction, port: u16) -> Result<Socket, MeasureError> {
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
        open_socket(far, &options).map_err(|error| failed(far, error))
    }

    /// Waits until something can be read from a socket; false when the time is over.
    pub fn readable(&self, socket: &Socket, until: Nanos) -> Result<bool, MeasureError> {
        loop {
            if self.stop.load(Relaxed) {
                return Err(MeasureError::Interrupted);
            }
            let now = clock::now();
            let left = Duration::from_nanos(until.saturating_sub(now)).min(LOOK_UP);
            let ready = poll(socket, Ready::Receive, left)
                .map_err(|error| MeasureError::system("poll", error))?;
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

/// Nothing more comes to a socket of datagrams: whoever sends there is refused from now on.
pub fn deafen(socket: &Socket) {
    if let Ok(own) = socket.local_addr() {
        // What cannot be cut off ends with its time.
        let _ = socket.connect(&own);
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
        Some(Errno::ADDRINUSE | Errno::ADDRNOTAVAIL | Errno::ACCESS) => {
            MeasureError::LocalAddress {
                address: "the local address or port of a flow".to_owned(),
                source: error,
            }
        }
        _ if error.kind() == io::ErrorKind::TimedOut => MeasureError::Silent {
            address,
            patience: Duration::from_secs(5),
        },
        _ => MeasureError::system("opening a flow", error),
    }
}
