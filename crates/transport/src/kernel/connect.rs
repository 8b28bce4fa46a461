//! Opens connections: one, or many in parallel.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use linerate_record::plan::TransportProtocol;
use linerate_sys::readiness::{Readiness, poll_any};
use linerate_sys::socket::enable_keepalive;
use socket2::{Domain, SockAddr, Socket, Type};

use super::options::{apply_options, set_multicast_options};
use crate::{CONNECT_TIMEOUT, FlowOptions, PeerAddressing};

/// Longest delay until a cancelled run is noticed.
const CANCEL_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// EINPROGRESS, "Operation now in progress": a non-blocking connect has started.
const EINPROGRESS: i32 = 115;

/// Creates a socket with its options before it is connected: the handshake fixes window scale and
/// segment size.
fn create_socket(remote: SocketAddr, options: &FlowOptions) -> io::Result<Socket> {
    let kind = match options.protocol {
        TransportProtocol::Tcp => Type::STREAM,
        TransportProtocol::Udp => Type::DGRAM,
    };
    let socket = Socket::new(Domain::for_address(remote), kind, None)?;
    if let Some(interface) = &options.interface {
        socket.bind_device(Some(interface.as_bytes()))?;
    }
    apply_options(&socket, options)?;
    if options.protocol == TransportProtocol::Tcp {
        enable_keepalive(&socket)?;
    }
    if let (TransportProtocol::Tcp, Some(bytes)) = (options.protocol, options.socket_plan.mss_bytes)
    {
        socket.set_tcp_mss(bytes)?;
    }
    if let Some(local) = options.local {
        socket.set_reuse_address(true)?;
        socket.bind(&SockAddr::from(local))?;
    }
    Ok(socket)
}

/// Opens a socket to `remote`; returns once it is connected.
///
/// # Errors
/// The error of the kernel; `PermissionDenied` when an option is not permitted.
pub fn open(remote: SocketAddr, options: &FlowOptions) -> io::Result<Socket> {
    let socket = create_socket(remote, options)?;
    match &options.addressing {
        PeerAddressing::Connected | PeerAddressing::AnyFrom(_) => {
            socket.connect_timeout(&SockAddr::from(remote), CONNECT_TIMEOUT)?;
        }
        PeerAddressing::Unconnected => {}
        PeerAddressing::Multicast(_) => set_multicast_options(&socket, remote, options)?,
    }
    set_timeouts(&socket, options)?;
    Ok(socket)
}

/// Sets the timeouts of blocking calls.
fn set_timeouts(socket: &Socket, options: &FlowOptions) -> io::Result<()> {
    socket.set_read_timeout(Some(options.timeout))?;
    socket.set_write_timeout(Some(options.timeout))
}

/// Adopts a socket that was opened or accepted elsewhere, for a thread whose calls block or do not.
///
/// # Errors
/// When the kernel rejects one of the options.
pub fn adopt_socket(fd: OwnedFd, options: &FlowOptions, calls_sleep: bool) -> io::Result<Socket> {
    let socket = Socket::from(fd);
    // Blocking mode: calls that must not block pass MSG_DONTWAIT. `accept` has no such flag.
    let listens = options.protocol == TransportProtocol::Tcp && socket.is_listener()?;
    socket.set_nonblocking(listens && !calls_sleep)?;
    set_timeouts(&socket, options)?;
    apply_options(&socket, options)?;
    // The connections of a listener are part of what is measured: each has the same options.
    if options.protocol == TransportProtocol::Tcp && !listens {
        enable_keepalive(&socket)?;
    }
    Ok(socket)
}

/// Opens connections in parallel; returns once all are established, in the order of the targets.
///
/// # Errors
/// The error of the first connection that fails; `Interrupted` when `is_cancelled` returns true.
pub fn connect_many(
    targets: &[(SocketAddr, &FlowOptions)],
    is_cancelled: &dyn Fn() -> bool,
) -> io::Result<Vec<Socket>> {
    let deadline = Instant::now() + CONNECT_TIMEOUT;
    let mut sockets = Vec::with_capacity(targets.len());
    let mut pending = Vec::with_capacity(targets.len());
    for (position, (remote, options)) in targets.iter().enumerate() {
        let socket = create_socket(*remote, options)?;
        socket.set_nonblocking(true)?;
        match socket.connect(&SockAddr::from(*remote)) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(EINPROGRESS) => pending.push(position),
            Err(error) => return Err(error),
        }
        sockets.push(socket);
    }
    while let Some(&position) = pending.first() {
        // All use the same path, so the first is as good an indicator as any.
        let ready = poll_any(
            &[(sockets[position].as_fd(), Readiness::Send)],
            CANCEL_POLL_INTERVAL,
        )?;
        if ready {
            let first: &Socket = &sockets[position];
            if let Some(error) = first.take_error()? {
                return Err(error);
            }
            pending.remove(0);
            continue;
        }
        if is_cancelled() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        if Instant::now() >= deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    for (socket, (_, options)) in sockets.iter().zip(targets) {
        // Calls that must not block pass MSG_DONTWAIT.
        socket.set_nonblocking(false)?;
        set_timeouts(socket, options)?;
    }
    Ok(sockets)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use linerate_record::plan::{Plan, RunKind};

    use super::*;
    use crate::flow_options::flow_options;
    use crate::flow_role::FlowRole;

    /// Connections of flows are held open, as control connections are; those of a listener have
    /// nothing that a measured connect would not need.
    #[test]
    fn flows_are_held_open() {
        let plan = Plan::new(RunKind::Throughput, TransportProtocol::Tcp, "127.0.0.1");
        let options = flow_options(&plan, FlowRole::Sender);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let opened = open(listener.local_addr().unwrap(), &options).unwrap();
        let accepted = listener.accept().unwrap().0;
        let adopted = adopt_socket(accepted.into(), &options, true).unwrap();
        let listening = adopt_socket(listener.into(), &options, true).unwrap();
        assert!(opened.keepalive().unwrap());
        assert!(adopted.keepalive().unwrap());
        assert!(!listening.keepalive().unwrap());
    }
}
