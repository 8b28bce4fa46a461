//! Opens, connects, accepts and closes the sockets of workloads.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{OwnedFd, RawFd};
use std::task::Poll;

use linerate_record::plan::TransportProtocol;
use linerate_record::stack::StackFacts;
use linerate_stack::{SocketId, TcpState};
use linerate_sys::clock;

use super::socket_table::{CopyBypass, NetstackSocket, SocketSlot};
use super::{
    IDLE_POLL_INTERVAL_NS, MAX_BATCH, NetstackTransport, close_reason, connect_timeout_reason,
    to_io_error,
};
use crate::call_times::CallStats;
use crate::kernel::SocketWatch;
use crate::{
    CONNECT_TIMEOUT_NS, FlowOptions, PeerAddressing, RunClock, TransportSetup, WorkerTransport,
};

/// Returns the unspecified address of the same family.
fn unspecified_address(sample: SocketAddr) -> SocketAddr {
    let address: IpAddr = match sample {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(address, 0)
}

impl NetstackTransport {
    pub(super) fn add_socket(&mut self, socket: SocketId, options: &FlowOptions) -> SocketSlot {
        let remote = self.stack.remote(socket).ok().flatten();
        self.sockets.add(NetstackSocket {
            socket: Some(socket),
            local: self.stack.local(socket).ok(),
            remote,
            batch: max_batch(options),
            copy_bypass: copy_bypass(options),
            accepted_host: match options.addressing {
                PeerAddressing::AnyFrom(accepted_host) => Some(accepted_host),
                _ => None,
            },
            ..NetstackSocket::default()
        })
    }

    /// Drops waiting datagrams of hosts other than the one that the socket accepts.
    #[inline]
    pub(super) fn drop_unexpected(&mut self, slot: SocketSlot, socket: SocketId) {
        let Some(accepted_host) = self.sockets.get(slot).accepted_host else {
            return;
        };
        let is_unexpected = |_: &[u8], from: SocketAddr| from.ip().to_canonical() != accepted_host;
        while let Ok(Some(true)) = self.stack.udp_peek(socket, is_unexpected) {
            let _ = self.stack.udp_receive(socket, |_, _| ());
        }
    }

    pub(super) fn connect_udp(
        &mut self,
        remote: SocketAddr,
        options: &FlowOptions,
    ) -> io::Result<SocketSlot> {
        let local = options.local.unwrap_or_else(|| unspecified_address(remote));
        let socket = self.stack.udp_bind(local).map_err(to_io_error)?;
        if options.addressing == PeerAddressing::Connected {
            if let Err(error) = self.stack.udp_connect(socket, remote) {
                let _ = self.stack.close(socket);
                return Err(to_io_error(error));
            }
            return Ok(self.add_socket(socket, options));
        }
        let slot = self.add_socket(socket, options);
        self.sockets.get_mut(slot).destination = Some(match options.addressing {
            PeerAddressing::Multicast(group) => {
                self.stack.set_group_hops(options.multicast_hops);
                SocketAddr::new(group, remote.port())
            }
            // In the form in which replies are compared: without a scope of a kernel interface.
            _ => SocketAddr::new(remote.ip(), remote.port()),
        });
        Ok(slot)
    }

    /// Starts several connections and waits until all are established.
    pub(super) fn connect_tcp(
        &mut self,
        targets: &[(SocketAddr, &FlowOptions)],
        is_cancelled: &dyn Fn() -> bool,
    ) -> io::Result<Vec<SocketSlot>> {
        let mut started = Vec::with_capacity(targets.len());
        match self.connect_all(targets, &mut started, is_cancelled) {
            Ok(()) => Ok((started.into_iter().zip(targets))
                .map(|(socket, (_, options))| self.add_socket(socket, options))
                .collect()),
            Err(error) => {
                // A retry needs their slots.
                for socket in started {
                    let _ = self.stack.abort(socket);
                }
                self.has_unsent = true;
                Err(error)
            }
        }
    }

    fn connect_all(
        &mut self,
        targets: &[(SocketAddr, &FlowOptions)],
        started: &mut Vec<SocketId>,
        is_cancelled: &dyn Fn() -> bool,
    ) -> io::Result<()> {
        for (remote, options) in targets {
            let socket = self.stack.tcp_connect(*remote, options.local);
            started.push(socket.map_err(to_io_error)?);
        }
        let deadline = clock::now() + CONNECT_TIMEOUT_NS;
        for &socket in started.iter() {
            loop {
                match self.stack.tcp_state(socket).map_err(to_io_error)? {
                    TcpState::Connecting => {}
                    TcpState::Closed => return Err(close_reason(&mut self.stack, socket)),
                    _ => break,
                }
                if is_cancelled() {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                if clock::now() >= deadline {
                    return Err(connect_timeout_reason(&self.stack, socket));
                }
                self.poll_background();
            }
        }
        Ok(())
    }

    /// Adds a socket that is opened later, by `bind` or `connect`.
    pub(super) fn add_unopened(&mut self, remote: SocketAddr, options: &FlowOptions) -> SocketSlot {
        self.sockets.add(NetstackSocket {
            local: options.local,
            remote: Some(remote),
            batch: max_batch(options),
            copy_bypass: copy_bypass(options),
            protocol: Some(options.protocol),
            ..NetstackSocket::default()
        })
    }

    pub(super) fn bind_socket(&mut self, slot: SocketSlot, local: SocketAddr) -> io::Result<()> {
        let entry = self.sockets.get_mut(slot);
        entry.local = Some(local);
        if entry.protocol == Some(TransportProtocol::Udp) {
            let socket = self.stack.udp_bind(local).map_err(to_port_error)?;
            self.sockets.open(slot, socket);
        }
        Ok(())
    }

    /// Connects such a socket, or continues to.
    pub(super) fn connect_socket(
        &mut self,
        slot: SocketSlot,
        remote: SocketAddr,
    ) -> Poll<io::Result<()>> {
        match self.sockets.get(slot).protocol {
            Some(TransportProtocol::Udp) => Poll::Ready(self.connect_udp_socket(slot, remote)),
            _ => self.connect_tcp_socket(slot, remote),
        }
    }

    fn connect_udp_socket(&mut self, slot: SocketSlot, remote: SocketAddr) -> io::Result<()> {
        if self.sockets.get(slot).socket.is_none() {
            self.bind_socket(slot, unspecified_address(remote))?;
        }
        let socket = self.socket_id(slot)?;
        self.stack.udp_connect(socket, remote).map_err(to_io_error)
    }

    fn connect_tcp_socket(&mut self, slot: SocketSlot, remote: SocketAddr) -> Poll<io::Result<()>> {
        let entry = *self.sockets.get(slot);
        let socket = match entry.socket {
            Some(socket) => socket,
            None => match self.stack.tcp_connect(remote, entry.local) {
                Ok(socket) => {
                    self.sockets.open(slot, socket);
                    self.has_unsent = true;
                    socket
                }
                Err(error) => return Poll::Ready(Err(to_port_error(error))),
            },
        };
        match self.stack.tcp_state(socket) {
            Ok(TcpState::Connecting) => Poll::Pending,
            Ok(TcpState::Closed) => Poll::Ready(Err(close_reason(&mut self.stack, socket))),
            Ok(_) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(to_io_error(error))),
        }
    }

    pub(super) fn accept_next(
        &mut self,
        slot: SocketSlot,
        options: &FlowOptions,
    ) -> Poll<io::Result<SocketSlot>> {
        let listener = match self.socket_id(slot) {
            Ok(listener) => listener,
            Err(error) => return Poll::Ready(Err(error)),
        };
        match self.stack.tcp_accept(listener) {
            Poll::Ready(Ok(socket)) => Poll::Ready(Ok(self.add_socket(socket, options))),
            Poll::Ready(Err(error)) => Poll::Ready(Err(to_io_error(error))),
            Poll::Pending => Poll::Pending,
        }
    }
}

fn max_batch(options: &FlowOptions) -> usize {
    options.batch.map_or(MAX_BATCH, |batch| batch as usize)
}

fn copy_bypass(options: &FlowOptions) -> CopyBypass {
    CopyBypass {
        send: options.zero_copy,
        receive: options.receive_in_place,
    }
}

/// Maps a lack of sockets or ports to EADDRNOTAVAIL, the kernel's error, on which workloads that
/// open sockets wait and retry.
fn to_port_error(error: linerate_stack::StackError) -> io::Error {
    /// "Cannot assign requested address" (errno 99).
    const EADDRNOTAVAIL: i32 = 99;
    match error {
        linerate_stack::StackError::TooManySockets { .. }
        | linerate_stack::StackError::PortInUse { port: 0 } => {
            io::Error::from_raw_os_error(EADDRNOTAVAIL)
        }
        error => to_io_error(error),
    }
}

impl WorkerTransport for NetstackTransport {
    fn new(_: &TransportSetup) -> io::Result<Self> {
        // The thread owns a stack before it runs a workload.
        Err(io::ErrorKind::Unsupported.into())
    }

    fn adopt(&mut self, _: OwnedFd, _: &FlowOptions) -> io::Result<SocketSlot> {
        // Kernel sockets do not belong to this stack.
        Err(io::ErrorKind::Unsupported.into())
    }

    fn adopt_netstack(
        &mut self,
        socket: SocketId,
        options: &FlowOptions,
    ) -> io::Result<SocketSlot> {
        self.background.hand_over_socket(socket);
        Ok(self.add_socket(socket, options))
    }

    fn watch(&self, _: SocketSlot) -> Option<SocketWatch> {
        None
    }

    fn poll_background(&mut self) -> bool {
        let worked = self.poll_stack() == Some(true);
        self.poll_background_if_due();
        if !worked {
            self.stack.flush();
            clock::sleep_until(self.now + IDLE_POLL_INTERVAL_NS);
        }
        true
    }

    fn netstack_facts(&mut self) -> Option<Box<StackFacts>> {
        Some(Box::new(self.current_facts()))
    }

    fn descriptors(&self) -> Option<Vec<RawFd>> {
        // The port and the bridges have files of their own.
        None
    }

    fn connect_many(
        &mut self,
        targets: &[(SocketAddr, &FlowOptions)],
        is_cancelled: &dyn Fn() -> bool,
    ) -> io::Result<Vec<SocketSlot>> {
        self.connect_tcp(targets, is_cancelled)
    }

    fn clear_receive_timeout(&mut self, _: SocketSlot) -> io::Result<()> {
        // No call blocks.
        Ok(())
    }

    fn start(&mut self, _: &RunClock) {
        self.background.stop_openings();
        self.reset_counters();
    }

    fn call_stats(&self) -> Option<CallStats> {
        None
    }
}

#[cfg(test)]
mod tests {
    use linerate_record::plan::{Plan, RunKind};

    use super::*;
    use crate::flow_options::flow_options;
    use crate::flow_role::FlowRole;
    use crate::test_support;
    /// Runs `work` on a stack with two TCP sockets.
    fn run_on_stack<R: Send + 'static>(
        work: impl FnOnce(&mut NetstackTransport) -> R + Send + 'static,
    ) -> R {
        test_support::run_on_stack(
            "null:",
            &[("sockets.tcp", "2"), ("poll.interval", "1ms")],
            work,
        )
    }

    fn options() -> FlowOptions {
        let plan = Plan::new(RunKind::Throughput, TransportProtocol::Tcp, "10.9.0.1");
        flow_options(&plan, FlowRole::Sender)
    }

    /// Polls the stack until all aborted connections are gone.
    fn all_connections_closed(stack: &mut NetstackTransport) -> bool {
        let deadline = clock::now() + 20_000_000_000;
        while stack.stack.connection_count() > 0 && clock::now() < deadline {
            stack.poll_background();
        }
        stack.stack.connection_count() == 0
    }

    #[test]
    fn connections_that_fail_to_open_free_their_slots() {
        let free = run_on_stack(|stack| {
            let options = options();
            let server: SocketAddr = "10.9.0.1:7".parse().unwrap();
            let mut all = true;
            for _ in 0..3 {
                let targets = [(server, &options), (server, &options)];
                let result = stack.connect_tcp(&targets, &|| true);
                assert_eq!(result.unwrap_err().kind(), io::ErrorKind::Interrupted);
                all &= all_connections_closed(stack);
            }
            all
        });
        assert!(free, "slots leaked");
    }

    /// The first connection is started before the second one fails without a route.
    #[test]
    fn one_failed_start_aborts_the_started_ones() {
        let free = run_on_stack(|stack| {
            let options = options();
            let server = "10.9.0.1:7".parse().unwrap();
            let unroutable = "10.8.0.1:7".parse().unwrap();
            let targets = [(server, &options), (unroutable, &options)];
            let result = stack.connect_tcp(&targets, &|| false);
            assert_eq!(
                result.unwrap_err().kind(),
                io::ErrorKind::NetworkUnreachable
            );
            all_connections_closed(stack)
        });
        assert!(free, "the slot of the first one leaked");
    }

    /// The third connection has no slot; the first two release theirs.
    #[test]
    fn more_connections_than_slots_free_them_all() {
        let free = run_on_stack(|stack| {
            let options = options();
            let server = "10.9.0.1:7".parse().unwrap();
            let targets = [(server, &options); 3];
            assert!(stack.connect_tcp(&targets, &|| false).is_err());
            all_connections_closed(stack)
        });
        assert!(free, "slots leaked");
    }
}
