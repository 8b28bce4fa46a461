//! Opens connections: one, or many in parallel.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use linerate_host::sys::readiness::{Ready, poll_any};
use linerate_metric::plan::Protocol;
use socket2::{Domain, SockAddr, Socket, Type};

use super::CONNECT_PATIENCE;
use super::options::{apply, group};
use crate::transport::{Correspondent, FlowOptions};

/// Longest delay until a cancelled run is noticed.
const LOOK_UP: Duration = Duration::from_millis(50);

/// EINPROGRESS, "Operation now in progress": a non-blocking connect has started.
const EINPROGRESS: i32 = 115;

/// Creates a socket with its options before it is connected: the handshake fixes window scale and
/// segment size.
fn unconnected(remote: SocketAddr, options: &FlowOptions) -> io::Result<Socket> {
    let kind = match options.protocol {
        Protocol::Tcp => Type::STREAM,
        Protocol::Udp => Type::DGRAM,
    };
    let socket = Socket::new(Domain::for_address(remote), kind, None)?;
    if let Some(interface) = &options.interface {
        socket.bind_device(Some(interface.as_bytes()))?;
    }
    apply(&socket, options)?;
    if let (Protocol::Tcp, Some(bytes)) = (options.protocol, options.socket.mss_bytes) {
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
    let socket = unconnected(remote, options)?;
    match &options.correspondent {
        Correspondent::Connected | Correspondent::Asker(_) => {
            socket.connect_timeout(&SockAddr::from(remote), CONNECT_PATIENCE)?;
        }
        Correspondent::Unconnected => {}
        Correspondent::Group(_) => group(&socket, remote, options)?,
    }
    limit(&socket, options)?;
    Ok(socket)
}

/// Sets the timeouts of blocking calls.
fn limit(socket: &Socket, options: &FlowOptions) -> io::Result<()> {
    socket.set_read_timeout(Some(options.patience))?;
    socket.set_write_timeout(Some(options.patience))
}

/// Adopts a socket that was opened or accepted elsewhere, for a thread whose calls block or do not.
///
/// # Errors
/// When the kernel rejects one of the options.
pub fn take_over(fd: OwnedFd, options: &FlowOptions, calls_sleep: bool) -> io::Result<Socket> {
    let socket = Socket::from(fd);
    // Blocking mode: calls that must not block pass MSG_DONTWAIT. `accept` has no such flag.
    let listens = options.protocol == Protocol::Tcp && socket.is_listener()?;
    socket.set_nonblocking(listens && !calls_sleep)?;
    limit(&socket, options)?;
    apply(&socket, options)?;
    Ok(socket)
}

/// Opens connections in parallel; returns once all are established, in the order of the targets.
///
/// # Errors
/// The error of the first connection that fails; `Interrupted` when `called_off` returns true.
pub fn many(
    wanted: &[(SocketAddr, &FlowOptions)],
    called_off: &dyn Fn() -> bool,
) -> io::Result<Vec<Socket>> {
    let give_up = Instant::now() + CONNECT_PATIENCE;
    let mut sockets = Vec::with_capacity(wanted.len());
    let mut opening = Vec::with_capacity(wanted.len());
    for (place, (remote, options)) in wanted.iter().enumerate() {
        let socket = unconnected(*remote, options)?;
        socket.set_nonblocking(true)?;
        match socket.connect(&SockAddr::from(*remote)) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(EINPROGRESS) => opening.push(place),
            Err(error) => return Err(error),
        }
        sockets.push(socket);
    }
    while let Some(&place) = opening.first() {
        // All use the same path, so the first is as good an indicator as any.
        let ready = poll_any(&[(sockets[place].as_fd(), Ready::Send)], LOOK_UP)?;
        if ready {
            let first: &Socket = &sockets[place];
            if let Some(error) = first.take_error()? {
                return Err(error);
            }
            opening.remove(0);
            continue;
        }
        if called_off() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        if Instant::now() >= give_up {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    for (socket, (_, options)) in sockets.iter().zip(wanted) {
        // Calls that must not block pass MSG_DONTWAIT.
        socket.set_nonblocking(false)?;
        limit(socket, options)?;
    }
    Ok(sockets)
}
