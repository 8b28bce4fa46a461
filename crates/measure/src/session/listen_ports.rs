//! Listening ports of a server: each has a TCP and a UDP socket, and either a fixed protocol or
//! classification by the client's first bytes.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::str::FromStr;

use linerate_host::sys::datagram;
use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use super::dial::Family;
use super::server::ServerOptions;
use crate::error::MeasureError;
use crate::interop::handlers::{self, Speaker};

/// Default ports of other tools' servers: iperf2 and ttcp (5001), nuttcp (5000), sockperf (11111).
const WELL_KNOWN: [u16; 3] = [5001, 5000, 11111];

/// Receive buffer of a UDP listening socket, as far as net.core.rmem_max allows.
const LISTENING_BUFFER_BYTES: usize = 4 << 20;

/// Port that the server opens in addition to its own (`--also`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Also {
    pub port: u16,
    /// Only protocol accepted there; absent: classified by the client's first bytes.
    pub dialect: Option<&'static str>,
}

impl FromStr for Also {
    type Err = String;

    /// Parses `9` or `9=discard`. The ports of echo, discard and chargen imply their protocol.
    fn from_str(text: &str) -> Result<Self, String> {
        let (port, dialect) = match text.split_once('=') {
            None => (text, None),
            Some((port, name)) => (port, Some(name)),
        };
        let port = port
            .parse()
            .ok()
            .filter(|&port: &u16| port > 0)
            .ok_or_else(|| format!("`{text}` is not a port: write 5001 or 5001=iperf2"))?;
        let dialect = match dialect {
            Some(name) => Some(handlers::speaker_named(name).ok_or_else(|| {
                let names: Vec<_> = handlers::SPEAKERS
                    .iter()
                    .map(|speaker| speaker.name)
                    .collect();
                format!(
                    "`{name}` is not a protocol of the server: {}",
                    names.join(", ")
                )
            })?),
            None => handlers::speaker_of_port(port),
        };
        Ok(Self {
            port,
            dialect: dialect.map(|speaker| speaker.name),
        })
    }
}

/// Open port with its two listening sockets.
pub struct Door {
    pub tcp: std::net::TcpListener,
    pub udp: UdpSocket,
    pub port: u16,
    pub bound: IpAddr,
    /// Only protocol accepted there; `None`: classified by first bytes.
    pub forced: Option<&'static Speaker>,
}

/// Opens all ports of the options; the first is the server's own.
///
/// # Errors
/// [`MeasureError::PortTaken`], or an invalid address or interface.
pub fn open(options: &ServerOptions) -> Result<Vec<Door>, MeasureError> {
    // With port 0 the port chosen for TCP may be in use for UDP: try another.
    let mut tries = if options.port == 0 { 32 } else { 1 };
    let own = loop {
        match bind(options, options.port, None) {
            Err(MeasureError::PortTaken { .. }) if tries > 1 => tries -= 1,
            done => break done?,
        }
    };
    let mut doors = vec![own];
    for also in &options.peers.also {
        if doors.iter().any(|door| door.port == also.port) {
            continue;
        }
        let forced = also.dialect.and_then(handlers::speaker_named);
        let door = bind(options, also.port, forced);
        doors.push(door.map_err(|error| named_also(error, also.port))?);
    }
    if options.peers.well_known {
        for port in WELL_KNOWN {
            // These ports were not requested explicitly: one that is in use is skipped.
            if !doors.iter().any(|door| door.port == port)
                && let Ok(door) = bind(options, port, None)
            {
                doors.push(door);
            }
        }
    }
    Ok(doors)
}

/// Replaces the option of a rejection by the `--also` that requested the port.
fn named_also(error: MeasureError, port: u16) -> MeasureError {
    match error {
        MeasureError::OptionRefused { why, next_step, .. } => MeasureError::OptionRefused {
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
    forced: Option<&'static Speaker>,
) -> Result<Door, MeasureError> {
    let address = match (options.address, options.family) {
        (Some(address), _) => address,
        (None, Family::V4) => Ipv4Addr::UNSPECIFIED.into(),
        (None, _) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let both = options.address.is_none() && options.family == Family::Any;
    let bound = listen(options, SocketAddr::new(address, port), both);
    let (tcp, udp) = match bound {
        // A kernel without IPv6 still has IPv4.
        Err(MeasureError::LocalAddress { .. }) if both => {
            let address = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
            listen(options, address, false)?
        }
        bound => bound?,
    };
    let local = tcp.local_addr();
    let local = local.map_err(|error| MeasureError::system("listening socket", error))?;
    if local.ip().is_unspecified() {
        // Replies leave from the address that the client used. Where the kernel cannot report it,
        // the kernel's own choice of source address is used.
        let _ = datagram::tell_destination(&udp, local.is_ipv6());
    }
    // Flows that start with payload wait there until they have a socket of their own.
    let _ = SockRef::from(&udp).set_recv_buffer_size(LISTENING_BUFFER_BYTES);
    Ok(Door {
        tcp,
        udp,
        port: local.port(),
        bound: local.ip(),
        forced,
    })
}

fn listen(
    options: &ServerOptions,
    address: SocketAddr,
    both: bool,
) -> Result<(std::net::TcpListener, UdpSocket), MeasureError> {
    let bind = |kind: Type, address: SocketAddr| -> io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(address), kind, None)?;
        if address.is_ipv6() {
            socket.set_only_v6(!both)?;
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
        io::ErrorKind::AddrInUse => MeasureError::PortTaken {
            port: address.port(),
            source,
        },
        io::ErrorKind::PermissionDenied if address.port() < 1024 => MeasureError::OptionRefused {
            option: format!("-p {}", address.port()),
            why: "ports below 1024 need a privilege".to_owned(),
            next_step: "run as root, or choose a port above 1023".to_owned(),
        },
        _ => MeasureError::LocalAddress {
            address: match &options.interface {
                Some(interface) => format!("{}%{interface}", address.ip()),
                None => address.ip().to_string(),
            },
            source,
        },
    };
    let asked = address.port();
    let tcp = bind(Type::STREAM, address).map_err(failed)?;
    tcp.listen(4096).map_err(failed)?;
    let port = tcp.local_addr().map_err(failed)?.as_socket();
    let address = SocketAddr::new(address.ip(), port.map_or(address.port(), |a| a.port()));
    // SO_REUSEADDR lets two servers share a UDP port: a bind without it detects an existing one.
    if asked != 0 {
        let probe = Socket::new(Domain::for_address(address), Type::DGRAM, None);
        let probe = probe.and_then(|socket| {
            if address.is_ipv6() {
                socket.set_only_v6(!both)?;
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
    fn a_port_that_is_not_to_be_had_is_named_by_its_option() {
        let refused = |option: &str| MeasureError::OptionRefused {
            option: option.to_owned(),
            why: "ports below 1024 need a privilege".to_owned(),
            next_step: "run as root, or choose a port above 1023".to_owned(),
        };
        let problem = named_also(refused("-p 7"), 7).problem();
        assert_eq!(problem, refused("--also 7").problem());
    }
}
