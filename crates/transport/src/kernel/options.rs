//! Socket options that are set before payload moves.

use std::io;
use std::net::SocketAddr;

use linerate_record::plan::TransportProtocol;
use linerate_sys::socket;
use socket2::{Domain, Socket};

use crate::FlowOptions;

pub(super) fn apply_options(socket: &Socket, options: &FlowOptions) -> io::Result<()> {
    let requested = &options.socket_plan;
    let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    if let Some(bytes) = requested.send_buffer_bytes {
        match options.force_buffers {
            true => socket::force_send_buffer(socket, bytes)?,
            false => socket.set_send_buffer_size(size(bytes))?,
        }
    }
    if let Some(bytes) = requested.receive_buffer_bytes {
        match options.force_buffers {
            true => socket::force_receive_buffer(socket, bytes)?,
            false => socket.set_recv_buffer_size(size(bytes))?,
        }
    }
    if let Some(time) = options.busy_poll {
        socket::set_busy_poll(socket, time)?;
    }
    if let Some(tos) = requested.tos.map(u32::from) {
        if socket.domain()? == Domain::IPV6 {
            socket.set_tclass_v6(tos)?;
            // For IPv4 peers of a dual-stack socket; an error means that it has none.
            let _ = socket.set_tos_v4(tos);
        } else {
            socket.set_tos_v4(tos)?;
        }
    }
    if let Some(priority) = requested.priority {
        socket.set_priority(priority)?;
    }
    if let Some(bytes) = requested.receive_low_water_bytes {
        socket::set_receive_low_water(socket, bytes)?;
    }
    if options.protocol == TransportProtocol::Tcp {
        if let Some(name) = &options.congestion_control {
            socket.set_tcp_congestion(name.as_bytes())?;
        }
        if requested.no_delay {
            socket.set_tcp_nodelay(true)?;
        }
    }
    Ok(())
}

/// Sets the interface and the hop limit of multicast datagrams. Without a given interface, the one
/// of the route to `remote` is used.
pub(super) fn set_multicast_options(
    socket: &Socket,
    remote: SocketAddr,
    options: &FlowOptions,
) -> io::Result<()> {
    let hops = u32::from(options.multicast_hops);
    let named = options.interface.clone();
    let towards = || linerate_host::snapshot::egress_interface(remote.ip());
    let name = named.or_else(towards).ok_or(io::ErrorKind::NotFound)?;
    socket::set_multicast_interface(socket, &name, remote.is_ipv6())?;
    if remote.is_ipv6() {
        socket.set_multicast_hops_v6(hops)
    } else {
        socket.set_multicast_ttl_v4(hops)
    }
}
