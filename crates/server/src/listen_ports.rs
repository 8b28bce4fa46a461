//! Listening ports of a server: each has a TCP and a UDP socket, and either a fixed protocol or
//! classification by the client's first bytes.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::str::FromStr;

use linerate_session::dial::AddressFamily;
use linerate_session::error::SessionError;
use linerate_sys::datagram;
use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use crate::handlers;
use crate::handlers::ProtocolHandler;
use crate::options::{ExtraPort, ServerOptions};

/// Default ports of other tools' servers: iperf2 and ttcp (5001), nuttcp (5000), sockperf (11111).
const WELL_KNOWN_PORTS: [u16; 3] = [5001, 5000, 11111];

/// Receive buffer of a UDP listening socket, as far as net.core.rmem_max allows.
const LISTEN_BUFFER_BYTES: usize = 4 << 20;

impl FromStr for ExtraPort {
    type Err = String;

    /// Parses `9` or `9=discard`. The ports of echo, discard and chargen imply their protocol.
    fn from_str(text: &str) -> Result<Self, String> {
        let (port, protocol) = match text.split_once('=') {
            None => (text, None),
            Some((port, name)) => (port, Some(name)),
        };
        let port = port
            .parse()
            .ok()
            .filter(|&port: &u16| port > 0)
            .ok_or_else(|| format!("`{text}` is not a port: write 5001 or 5001=iperf2"))?;
        let protocol = match protocol {
            Some(name) => Some(handlers::handler_named(name).ok_or_else(|| {
                let names: Vec<_> = handlers::HANDLERS
                    .iter()
                    .map(|handler| handler.name)
                    .collect();
                format!(
                    "`{name}` is not a protocol of the server: {}",
                    names.join(", ")
                )
            })?),
            None => handlers::handler_of_port(port),
        };
        Ok(Self {
            port,
            protocol: protocol.map(|handler| handler.name),
        })
    }
}

/// Open port with its two listening sockets.
pub struct ListenPort {
    pub tcp: std::net::TcpListener,
    pub udp: UdpSocket,
    pub port: u16,
    pub address: IpAddr,
    /// Only protocol accepted there; `None`: classified by first bytes.
    pub forced: Option<&'static ProtocolHandler>,
}

/// Opens all ports of the options; the first is the server's own.
///
/// # Errors
/// [`SessionError::PortInUse`], or an invalid address or interface.
pub fn open_ports(options: &ServerOptions) -> Result<Vec<ListenPort>, SessionError> {
    // With port 0 the port chosen for TCP may be in use for UDP: try another.
    let mut tries = if options.port == 0 { 32 } else { 1 };
    let first = loop {
        match bind(options, options.port, None) {
            Err(SessionError::PortInUse { .. }) if tries > 1 => tries -= 1,
            done => break done?,
        }
    };
    let mut listeners = vec![first];
    for also in &options.interop.extra_ports {
        if listeners.iter().any(|listener| listener.port == also.port) {
            continue;
        }
        let forced = also.protocol.and_then(handlers::handler_named);
        let listener = bind(options, also.port, forced);
        listeners.push(listener.map_err(|error| name_extra_port(error, also.port))?);
    }
    if options.interop.well_known_ports {
        for port in WELL_KNOWN_PORTS {
            // These ports were not requested explicitly: one that is in use is skipped.
            if !listeners.iter().any(|listener| listener.port == port)
                && let Ok(listener) = bind(options, port, None)
            {
                listeners.push(listener);
            }
        }
    }
    Ok(listeners)
}

/// Replaces the option of a rejection by the `--also` that requested the port.
fn name_extra_port(error: SessionError, port: u16) -> SessionError {
    match error {
        SessionError::OptionRejected { why, next_step, .. } => SessionError::OptionRejected {
            option: format!("--also {port}"),
            why,
            next_step,
        },
        other => other,
    }
}

fn bind(
    options: &ServerOptions,
    port: u16,
    forced: Option<&'static ProtocolHandler>,
) -> Result<ListenPort, SessionError> {
    let address = match (options.address, options.family) {
        (Some(address), _) => address,
        (None, AddressFamily::V4) => Ipv4Addr::UNSPECIFIED.into(),
        (None, _) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let dual_stack = options.address.is_none() && options.family == AddressFamily::Any;
    let bound = listen(options, SocketAddr::new(address, port), dual_stack);
    let (tcp, udp) = match bound {
        // A kernel without IPv6 still has IPv4.
        Err(SessionError::LocalAddress { .. }) if dual_stack => {
            let address = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
            listen(options, address, false)?
        }
        bound => bound?,
    };
    let local = tcp.local_addr();
    let local = local.map_err(|error| SessionError::system("listening socket", error))?;
    if local.ip().is_unspecified() {
        // Replies leave from the address that the client used. Where the kernel cannot report it,
        // the kernel's own choice of source address is used.
        let _ = datagram::enable_destination(&udp, local.is_ipv6());
    }
    // Flows that start with payload wait there until they have a socket of their own.
    let _ = SockRef::from(&udp).set_recv_buffer_size(LISTEN_BUFFER_BYTES);
    Ok(ListenPort {
        tcp,
        udp,
        port: local.port(),
        address: local.ip(),
        forced,
    })
}

fn listen(
    options: &ServerOptions,
    address: SocketAddr,
    dual_stack: bool,
) -> Result<(std::net::TcpListener, UdpSocket), SessionError> {
    let bind = |kind: Type, address: SocketAddr| -> io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(address), kind, None)?;
        if address.is_ipv6() {
            socket.set_only_v6(!dual_stack)?;
        }
        // TCP: connections of an earlier server may linger. UDP: each flow gets its own socket on
        // the same port.
        socket.set_reuse_address(true)?;
        if let Some(interface) = &options.interface {
            socket.bind_device(Some(interface.as_bytes()))?;
        }
        socket.bind(&SockAddr::from(address))?;
        Ok(socket)
    };
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => SessionError::PortInUse {
            port: address.port(),
            source,
        },
        io::ErrorKind::PermissionDenied if address.port() < 1024 => SessionError::OptionRejected {
            option: format!("-p {}", address.port()),
            why: "ports below 1024 need a privilege".to_owned(),
            next_step: "run as root, or choose a port above 1023".to_owned(),
        },
        _ => SessionError::LocalAddress {
            address: match &options.interface {
                Some(interface) => format!("{}%{interface}", address.ip()),
                None => address.ip().to_string(),
            },
            source,
        },
    };
    let requested_port = address.port();
    let tcp = bind(Type::STREAM, address).map_err(failed)?;
    tcp.listen(4096).map_err(failed)?;
    let port = tcp.local_addr().map_err(failed)?.as_socket();
    let address = SocketAddr::new(address.ip(), port.map_or(address.port(), |a| a.port()));
    // SO_REUSEADDR lets two servers share a UDP port: a bind without it detects an existing one.
    if requested_port != 0 {
        let probe = Socket::new(Domain::for_address(address), Type::DGRAM, None);
        let probe = probe.and_then(|socket| {
            if address.is_ipv6() {
                socket.set_only_v6(!dual_stack)?;
            }
            if let Some(interface) = &options.interface {
                socket.bind_device(Some(interface.as_bytes()))?;
            }
            socket.bind(&SockAddr::from(address))
        });
        probe.map_err(failed)?;
    }
    let udp = bind(Type::DGRAM, address).map_err(failed)?;
    Ok((tcp.into(), udp.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unavailable_port_is_named_by_its_option() {
        let rejected = |option: &str| SessionError::OptionRejected {
            option: option.to_owned(),
            why: "ports below 1024 need a privilege".to_owned(),
            next_step: "run as root, or choose a port above 1023".to_owned(),
        };
        let problem = name_extra_port(rejected("-p 7"), 7).to_report();
        assert_eq!(problem, rejected("--also 7").to_report());
    }
}
