//! Connecting to the server: address family, local binding and the TCP connect.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use linerate_sys::readiness::{Readiness, poll};
use rustix::io::Errno;
use socket2::{Domain, SockAddr, Socket, Type};

use crate::error::SessionError;

/// Address families that may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressFamily {
    /// Any family, in the resolver's order.
    #[default]
    Any,
    V4,
    V6,
}

impl AddressFamily {
    /// Returns whether an address belongs to the family.
    #[must_use]
    pub fn allows(self, address: IpAddr) -> bool {
        match self {
            Self::Any => true,
            Self::V4 => address.is_ipv4(),
            Self::V6 => address.is_ipv6(),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Any => "IPv4 or IPv6",
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }
}

/// Local address and interface, `ADDRESS[%IF]` or `%IF`.
#[derive(Clone, Debug, Default)]
pub struct SourceBinding {
    pub address: Option<IpAddr>,
    pub interface: Option<String>,
}

impl SourceBinding {
    pub fn parse(text: Option<&str>) -> Result<Self, SessionError> {
        let Some(text) = text else {
            return Ok(Self::default());
        };
        let (address, interface) = match text.split_once('%') {
            Some((address, interface)) => (address, Some(interface.to_owned())),
            None => (text, None),
        };
        let address = if address.is_empty() {
            None
        } else {
            let address = address.parse().map_err(|_| SessionError::LocalAddress {
                address: text.to_owned(),
                source: io::Error::new(io::ErrorKind::InvalidInput, "not an IP address"),
            })?;
            Some(address)
        };
        Ok(Self { address, interface })
    }

    /// Binds a socket to the address and interface, with any port.
    pub fn bind(&self, socket: &Socket) -> Result<(), SessionError> {
        if let Some(interface) = &self.interface {
            socket
                .bind_device(Some(interface.as_bytes()))
                .map_err(|source| SessionError::LocalAddress {
                    address: format!("%{interface}"),
                    source,
                })?;
        }
        if let Some(ip) = self.address {
            socket
                .bind(&SockAddr::from(SocketAddr::new(ip, 0)))
                .map_err(|source| SessionError::LocalAddress {
                    address: ip.to_string(),
                    source,
                })?;
        }
        Ok(())
    }
}

/// Pause between attempts with `--retry`, and the delay until Ctrl-C is noticed.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Longest connect: two retransmitted SYNs (1 s + 2 s) and 2 s more.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Opens a TCP connection; waits in short steps, so that Ctrl-C ends it.
pub fn connect(
    address: SocketAddr,
    local: &SourceBinding,
    stop: &AtomicBool,
) -> Result<TcpStream, SessionError> {
    let system = |error| SessionError::system("new socket", error);
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).map_err(system)?;
    local.bind(&socket)?;
    socket.set_nonblocking(true).map_err(system)?;
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::ConnectionRefused => SessionError::ConnectionRefused { address },
        io::ErrorKind::TimedOut => SessionError::NoReply {
            address,
            timeout: CONNECT_TIMEOUT,
        },
        _ => SessionError::NoRoute {
            address,
            source: error,
        },
    };
    match socket.connect(&SockAddr::from(address)) {
        Ok(()) => return Ok(socket.into()),
        Err(error) if error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => {}
        Err(error) => return Err(failed(error)),
    }
    let deadline = Instant::now() + CONNECT_TIMEOUT;
    while !poll(&socket, Readiness::Send, RETRY_INTERVAL).map_err(system)? {
        if stop.load(Relaxed) {
            return Err(SessionError::Interrupted);
        }
        if Instant::now() >= deadline {
            return Err(SessionError::NoReply {
                address,
                timeout: CONNECT_TIMEOUT,
            });
        }
    }
    match socket.take_error() {
        Ok(None) => Ok(socket.into()),
        Ok(Some(error)) | Err(error) => Err(failed(error)),
    }
}
