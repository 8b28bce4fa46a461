//! Work of a stack's thread in addition to the measured payload: bridges, services, and requests of
//! other threads.

use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};

use linerate_stack::{SocketId, Stack};
use linerate_sys::clock::Nanos;

use super::bridge::{ConnectionAddresses, ConnectionBridge};
use super::port_state::PortState;
use super::stack_service::{PayloadCounters, StackService};
use crate::stack_error;

/// Interval at which the port's state and counters are refreshed.
const REFRESH_NS: Nanos = 500_000_000;

/// Request of another thread to the thread that owns the stack.
pub enum StackRequest {
    /// Opens a connection and carries its bytes through a pair of sockets.
    Connect {
        remote: SocketAddr,
        /// The stack's socket of the pair.
        pair: UnixStream,
        /// Receives the result once the connection is established or has failed.
        reply: mpsc::Sender<io::Result<ConnectionAddresses>>,
    },
    /// Runs a function on the stack and its services.
    Inspect(InspectFn),
    /// Refreshes all counters, then runs a function.
    InspectFresh(InspectFn),
}

/// Function to be run on the stack and its services.
pub type InspectFn = Box<dyn FnOnce(&mut Stack, Option<&mut dyn StackService>) + Send>;

/// Bridges, services, and requests of other threads.
pub struct BackgroundWork {
    bridges: Vec<ConnectionBridge>,
    requests: mpsc::Receiver<StackRequest>,
    services: Option<Box<dyn StackService>>,
    next_refresh_ns: Nanos,
    port_state: Arc<PortState>,
}

impl BackgroundWork {
    /// Creates the background work, without bridges.
    pub fn new(
        requests: mpsc::Receiver<StackRequest>,
        services: Option<Box<dyn StackService>>,
        port: Arc<PortState>,
    ) -> Self {
        Self {
            bridges: Vec::with_capacity(8),
            requests,
            services,
            next_refresh_ns: 0,
            port_state: port,
        }
    }

    /// Returns whether the host has services, whose clients must not wait.
    pub fn has_services(&self) -> bool {
        self.services.is_some()
    }

    /// Returns whether a service continues with the next poll, even without new frames.
    #[inline]
    pub fn has_ready_work(&self) -> bool {
        (self.services.as_ref()).is_some_and(|services| services.has_ready_work())
    }

    /// Handles a change of a socket that is not a workload's.
    #[inline]
    pub fn on_socket_change(&mut self, stack: &mut Stack, socket: SocketId, now: Nanos) {
        if let Some(services) = &mut self.services {
            services.on_socket_change(stack, socket, now);
        }
    }

    /// Continues services that one round was not enough for.
    #[inline]
    pub fn run_ready_services(&mut self, stack: &mut Stack, now: Nanos) {
        if let Some(services) = &mut self.services {
            services.run_ready(stack, now);
        }
    }

    /// Sets the payload that workloads have moved in all: that of the linerate service's tests.
    #[inline]
    pub fn set_test_payload(&mut self, payload: PayloadCounters) {
        if let Some(services) = &mut self.services {
            services.set_test_payload(payload);
        }
    }

    /// Hands a socket that the acceptor opened over to a workload.
    pub fn hand_over_socket(&mut self, socket: SocketId) {
        if let Some(services) = &mut self.services {
            services.hand_over_socket(socket);
        }
    }

    /// Called when a test starts: data on its flows is payload from here on.
    pub fn stop_openings(&mut self) {
        if let Some(services) = &mut self.services {
            services.stop_openings();
        }
    }

    /// Called when a test is over: closes its unused sockets.
    pub fn end_test(&mut self, stack: &mut Stack) {
        if let Some(services) = &mut self.services {
            services.end_test(stack);
        }
    }

    /// Polls everything that tolerates a delay; returns whether anything happened.
    pub fn poll(&mut self, stack: &mut Stack, now: Nanos) -> bool {
        let mut worked = false;
        while let Ok(request) = self.requests.try_recv() {
            worked = true;
            match request {
                StackRequest::Connect {
                    remote,
                    pair,
                    reply,
                } => {
                    let started =
                        (stack.tcp_connect(remote, None).map_err(stack_error)).and_then(|socket| {
                            ConnectionBridge::for_pending(socket, pair, reply.clone(), now)
                        });
                    match started {
                        Ok(bridge) => self.bridges.push(bridge),
                        // The requester may have given up.
                        Err(error) => drop(reply.send(Err(error))),
                    }
                }
                StackRequest::Inspect(inspect) => inspect(stack, self.services.as_deref_mut()),
                StackRequest::InspectFresh(inspect) => {
                    self.refresh(stack);
                    inspect(stack, self.services.as_deref_mut());
                }
            }
        }
        if let Some(services) = &mut self.services {
            let new_bridges = services.take_bridges();
            worked |= !new_bridges.is_empty();
            self.bridges.extend(new_bridges);
        }
        self.bridges.retain_mut(|bridge| {
            let progress = bridge.pump(stack, now);
            worked |= progress != Some(false);
            progress.is_some()
        });
        if let Some(services) = &mut self.services {
            services.poll_timers(stack, now);
        }
        if now >= self.next_refresh_ns {
            self.next_refresh_ns = now + REFRESH_NS;
            self.refresh(stack);
        }
        worked
    }

    /// Refreshes the port's state, and those of its counters that only the kernel has.
    pub fn refresh(&mut self, stack: &mut Stack) {
        let now = stack.now();
        if let Err(error) = stack.refresh() {
            self.port_state.fail(error);
        }
        self.port_state.record_peer(stack.peer_state(), now);
        // The driver thread may have detected it.
        if self.port_state.is_unusable(now) {
            // The port is unusable: closing the bridges reports that to the sessions.
            self.bridges.clear();
        }
    }

    /// Returns whether a bridge is open.
    pub fn is_busy(&self) -> bool {
        !self.bridges.is_empty()
    }
}
