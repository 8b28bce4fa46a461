//! Per-flow sockets of a test on their own ports: for requests from many sockets, from unconnected
//! ones, or to a multicast group.
//!
//! Such a socket replies only to the test's client, and with no more bytes than it received.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use linerate_host::snapshot::egress_interface;
use linerate_record::plan::{Plan, TransportProtocol};
use linerate_sys::socket::interface_index;
use linerate_transport::PeerAddressing;
use socket2::{Domain, SockAddr, Socket, Type};

/// Backlog: each flow opens one connection at a time.
const BACKLOG: i32 = 128;

/// Opens the socket of one flow, reached at `local` by the client at `peer`; returns its port too.
///
/// # Errors
/// Errors of the kernel's socket calls.
pub fn open_service(
    plan: &Plan,
    local: SocketAddr,
    peer: IpAddr,
    interface: Option<&str>,
) -> io::Result<(OwnedFd, u16)> {
    let kind = match plan.protocol {
        TransportProtocol::Tcp => Type::STREAM,
        TransportProtocol::Udp => Type::DGRAM,
    };
    let group = plan.round_trip.group.as_ref();
    let mut address = SocketAddr::new(local.ip().to_canonical(), 0);
    if group.is_some() {
        // Multicast datagrams do not match a socket that is bound to a host address.
        address.set_ip(match address {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        });
    } else if let (SocketAddr::V6(address), SocketAddr::V6(local)) = (&mut address, local) {
        address.set_scope_id(local.scope_id());
    }
    let socket = Socket::new(Domain::for_address(address), kind, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    if let Some(interface) = interface {
        socket.bind_device(Some(interface.as_bytes()))?;
    }
    socket.bind(&SockAddr::from(address))?;
    if let Some(group) = group {
        join_group(&socket, group.address, local.ip().to_canonical(), peer)?;
    }
    if plan.protocol == TransportProtocol::Tcp {
        socket.listen(BACKLOG)?;
    }
    let port = socket.local_addr()?.as_socket().map(|local| local.port());
    let port = port.ok_or(io::ErrorKind::AddrNotAvailable)?;
    Ok((socket.into(), port))
}

/// Joins a group on the interface towards the client.
fn join_group(socket: &Socket, group: IpAddr, local: IpAddr, peer: IpAddr) -> io::Result<()> {
    match (group, local) {
        (IpAddr::V4(group), IpAddr::V4(local)) => {
            socket.join_multicast_v4(&group, &local)?;
            // Excludes groups that other programs of this host have joined.
            socket.set_multicast_all_v4(false)
        }
        (IpAddr::V6(group), IpAddr::V6(_)) => {
            let name = egress_interface(peer).ok_or(io::ErrorKind::NotFound)?;
            socket.join_multicast_v6(&group, interface_index(&name)?)?;
            // Since Linux 4.20; before it, the port of the test is unique anyway.
            let _ = socket.set_multicast_all_v6(false);
            Ok(())
        }
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Returns the peer addressing of a flow's sockets at the responding end.
#[must_use]
pub fn peer_addressing(plan: &Plan, peer: IpAddr) -> PeerAddressing {
    match plan.round_trip.needs_flow_socket() {
        true => PeerAddressing::AnyFrom(peer.to_canonical()),
        false => PeerAddressing::Connected,
    }
}
