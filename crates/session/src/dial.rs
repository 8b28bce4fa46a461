//! Connecting to the server: address family, local binding and the TCP connect.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use linerate_sys::readiness::{Readiness, poll};
use linerate_sys::socket::enable_keepalive;
use linerate_transport::CONNECT_TIMEOUT;
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

/// Returns the usable addresses of a host, in the resolver's order; never empty. Without
/// `has_scopes`, scope ids do not apply.
///
/// # Errors
/// An unknown name, no address that the family and `local` permit, or no interface of a link-local
/// address.
pub fn resolve_host(
    host: &str,
    port: u16,
    family: AddressFamily,
    local: &SourceBinding,
    has_scopes: bool,
) -> Result<Vec<SocketAddr>, SessionError> {
    // Brackets as in URLs are removed: [::1] is written next to a port.
    let name = host.trim_start_matches('[').trim_end_matches(']');
    let name = match name.split_once('%') {
        Some((address, _)) if !has_scopes => address,
        _ => name,
    };
    let all: Vec<SocketAddr> = (name, port)
        .to_socket_addrs()
        .map_err(|source| SessionError::UnknownName {
            host: host.to_owned(),
            source,
        })?
        .collect();
    let is_usable = |address: &SocketAddr| {
        family.allows(address.ip())
            && local
                .address
                .is_none_or(|local| local.is_ipv4() == address.is_ipv4())
    };
    let literal = name.parse::<IpAddr>().ok();
    let usable: Vec<_> = all.into_iter().filter(is_usable).collect();
    if usable.is_empty() {
        let family = match local.address {
            Some(address) if address.is_ipv4() => AddressFamily::V4,
            Some(_) => AddressFamily::V6,
            None => family,
        };
        let option = match (local.address, family) {
            (Some(address), _) => format!("-B {address}"),
            (None, AddressFamily::V4) => "-4".to_owned(),
            (None, _) => "-6".to_owned(),
        };
        let host = host.to_owned();
        return Err(match literal {
            Some(address) => SessionError::FamilyMismatch {
                host,
                family: match address.is_ipv4() {
                    true => AddressFamily::V4.name(),
                    false => AddressFamily::V6.name(),
                },
                option,
            },
            None => SessionError::NoAddress {
                host,
                family: family.name(),
            },
        });
    }
    let lacks_scope = |address: &SocketAddr| match address {
        SocketAddr::V6(address) => address.ip().is_unicast_link_local() && address.scope_id() == 0,
        SocketAddr::V4(_) => false,
    };
    if has_scopes && local.interface.is_none() && usable.iter().all(lacks_scope) {
        return Err(SessionError::NoInterface {
            host: name.to_owned(),
        });
    }
    Ok(usable)
}

/// Opens a UDP socket towards `remote`, so that the kernel chooses the route; sends nothing.
fn udp_socket_towards(remote: SocketAddr, local: &SourceBinding) -> Result<Socket, SessionError> {
    let system = |error| SessionError::system("path MTU", error);
    let socket = Socket::new(Domain::for_address(remote), Type::DGRAM, None).map_err(system)?;
    local.bind(&socket)?;
    (socket.connect(&SockAddr::from(remote))).map_err(|error| route_error(remote, error))?;
    Ok(socket)
}

/// Converts the error of connecting a UDP socket: a missing route gets its own variant.
fn route_error(remote: SocketAddr, error: io::Error) -> SessionError {
    match error.kind() {
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => {
            SessionError::NoRoute {
                address: remote,
                source: error,
            }
        }
        _ => SessionError::system("path MTU", error),
    }
}

/// Returns the path MTU towards `remote` in bytes, as far as the kernel has it.
pub(super) fn path_mtu(remote: SocketAddr, local: &SourceBinding) -> Result<u32, SessionError> {
    let socket = udp_socket_towards(remote, local)?;
    linerate_sys::socket::read_path_mtu(&socket, remote.is_ipv6())
        .map_err(|error| SessionError::system("path MTU", error))
}

/// Returns the local address that the kernel uses towards `remote`.
#[must_use]
pub fn local_address_towards(remote: SocketAddr) -> Option<IpAddr> {
    let socket = udp_socket_towards(remote, &SourceBinding::default()).ok()?;
    let address = socket.local_addr().ok()?.as_socket()?;
    Some(address.ip())
}

/// Replaces the port of an address; an IPv6 scope id stays.
#[must_use]
pub fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// Returns the bytes of the IP and UDP headers of a datagram, without options and extensions.
pub(super) fn udp_headers_bytes(is_ipv6: bool) -> u64 {
    match is_ipv6 {
        false => 20 + 8,
        true => 40 + 8,
    }
}

/// Pause between attempts with `--retry`, and the delay until Ctrl-C is noticed.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Opens a TCP connection that keepalive probes hold open; waits in short steps, so that Ctrl-C ends
/// it.
pub fn connect(
    address: SocketAddr,
    local: &SourceBinding,
    stop: &AtomicBool,
) -> Result<TcpStream, SessionError> {
    let system = |error| SessionError::system("new socket", error);
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).map_err(system)?;
    local.bind(&socket)?;
    enable_keepalive(&socket).map_err(system)?;
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

#[cfg(test)]
mod tests {
    use linerate_record::exit_codes;

    use super::*;

    /// Without a control connection, no other call reports the missing route.
    #[test]
    fn an_unreachable_host_is_reported_as_over_tcp() {
        let server: SocketAddr = "192.0.2.1:7".parse().unwrap();
        let error_of = |number| route_error(server, io::Error::from_raw_os_error(number));
        const ENETUNREACH: i32 = 101;
        const EHOSTUNREACH: i32 = 113;
        const EINVAL: i32 = 22;
        for number in [ENETUNREACH, EHOSTUNREACH] {
            let error = error_of(number);
            assert!(matches!(error, SessionError::NoRoute { address, .. } if address == server));
            assert_eq!(error.exit_code(), exit_codes::PEER);
        }
        assert_eq!(error_of(EINVAL).exit_code(), exit_codes::FAILED);
    }

    /// A router that translates addresses would drop a control connection that is silent for long.
    #[test]
    fn connections_are_held_open() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stop = AtomicBool::new(false);
        let stream = connect(address, &SourceBinding::default(), &stop).unwrap();
        let socket = socket2::SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        let idle = socket.tcp_keepalive_time().unwrap();
        assert!(idle < Duration::from_secs(30), "{idle:?}");
    }

    #[test]
    fn a_host_resolves_as_family_and_binding_permit() {
        let resolve = |host, family, local| {
            let local = SourceBinding::parse(local).unwrap();
            let found = resolve_host(host, 7, family, &local, true);
            found.map(|all| {
                all.into_iter()
                    .map(|one| one.to_string())
                    .collect::<Vec<_>>()
            })
        };
        for (host, family, local, expected) in [
            ("[::1]", AddressFamily::Any, None, Some("[::1]:7")),
            ("::1", AddressFamily::V6, Some("::1"), Some("[::1]:7")),
            ("127.0.0.1", AddressFamily::V4, None, Some("127.0.0.1:7")),
            ("127.0.0.1", AddressFamily::V6, None, None),
            ("127.0.0.1", AddressFamily::Any, Some("::1"), None),
            // A link-local address needs its interface.
            ("fe80::1", AddressFamily::Any, None, None),
            ("fe80::1%1", AddressFamily::Any, None, Some("[fe80::1%1]:7")),
        ] {
            match (resolve(host, family, local), expected) {
                (Ok(found), Some(expected)) => assert_eq!(found, [expected], "{host}"),
                (Err(_), None) => {}
                (found, _) => panic!("{host} {family:?} {local:?}: {found:?}"),
            }
        }
    }
}
