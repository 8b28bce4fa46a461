//! Work of a stack's thread in addition to the measured payload: bridges, services, and requests of
//! other threads.

use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};

use linerate_host::sys::clock::Nanos;
use linerate_stack::{SocketId, Stack};

use super::bridge::{Bridge, Ends};
use super::port_state::PortState;
use super::services::acceptor::Reception;
use super::services::{Payload, Services};
use crate::transport::stack_error;

/// Interval at which the port's state and counters are refreshed.
const REFRESH_NS: Nanos = 500_000_000;

/// Request of another thread to the thread that owns the stack.
pub enum Ask {
    /// Opens a connection and carries its bytes through a pair of sockets.
    Connect {
        remote: SocketAddr,
        /// The stack's socket of the pair.
        pair: UnixStream,
        /// Receives the result once the connection is established or has failed.
        said: mpsc::Sender<io::Result<Ends>>,
    },
    /// Runs a function on the stack and its services.
    Look(Look),
    /// Refreshes all counters, then runs a function.
    Count(Look),
}

/// Function to be run on the stack and its services.
pub type Look = Box<dyn FnOnce(&mut Stack, Option<&mut Services>) + Send>;

/// Bridges, services, and requests of other threads.
pub struct Background {
    bridges: Vec<Bridge>,
    asks: mpsc::Receiver<Ask>,
    services: Option<Box<Services>>,
    refresh_ns: Nanos,
    port: Arc<PortState>,
}

impl Background {
    /// Creates the background work, without bridges.
    pub fn new(
        asks: mpsc::Receiver<Ask>,
        services: Option<Box<Services>>,
        port: Arc<PortState>,
    ) -> Self {
        Self {
            bridges: Vec::with_capacity(8),
            asks,
            services,
            refresh_ns: 0,
            port,
        }
    }

    /// Returns whether the host has services, whose clients must not wait.
    pub fn serves(&self) -> bool {
        self.services.is_some()
    }

    /// Returns whether a service continues with the next poll, even without new frames.
    #[inline]
    pub fn is_pressed(&self) -> bool {
        (self.services.as_ref()).is_some_and(|services| services.is_pressed())
    }

    /// Handles a change of a socket that is not a workload's.
    #[inline]
    pub fn changed(&mut self, stack: &mut Stack, socket: SocketId, now: Nanos) {
        if let Some(services) = &mut self.services {
            services.changed(stack, socket, now);
        }
    }

    /// Continues services that one round was not enough for.
    #[inline]
    pub fn serve(&mut self, stack: &mut Stack, now: Nanos) {
        if let Some(services) = &mut self.services {
            services.go_on(stack, now);
        }
    }

    /// Sets the payload that workloads have moved in all: that of the linerate service's tests.
    #[inline]
    pub fn moved(&mut self, payload: Payload) {
        if let Some(services) = &mut self.services {
            services.moved(payload);
        }
    }

    fn reception(&mut self) -> Option<&mut Reception> {
        self.services.as_mut()?.reception()
    }

    /// Hands a socket that the acceptor opened over to a workload.
    pub fn hand_over(&mut self, socket: SocketId) {
        if let Some(reception) = self.reception() {
            reception.hand_over(socket);
        }
    }

    /// Called when a test starts: data on its flows is payload from here on.
    pub fn stop_greeting(&mut self) {
        if let Some(reception) = self.reception() {
            reception.stop_greeting();
        }
    }

    /// Called when a test is over: closes its unused sockets.
    pub fn part(&mut self, stack: &mut Stack) {
        if let Some(reception) = self.reception() {
            reception.part(stack);
        }
    }

    /// Polls everything that tolerates a delay; returns whether anything happened.
    pub fn look(&mut self, stack: &mut Stack, now: Nanos) -> bool {
        let mut worked = false;
        while let Ok(ask) = self.asks.try_recv() {
            worked = true;
            match ask {
                Ask::Connect { remote, pair, said } => {
                    let begun = (stack.tcp_connect(remote, None).map_err(stack_error))
                        .and_then(|socket| Bridge::opening(socket, pair, said.clone(), now));
                    match begun {
                        Ok(bridge) => self.bridges.push(bridge),
                        // The requester may have given up.
                        Err(error) => drop(said.send(Err(error))),
                    }
                }
                Ask::Look(look) => look(stack, self.services.as_deref_mut()),
                Ask::Count(look) => {
                    self.refresh(stack);
                    look(stack, self.services.as_deref_mut());
                }
            }
        }
        if let Some(reception) = self.reception() {
            let came = reception.bridges();
            worked |= !came.is_empty();
            self.bridges.extend(came);
        }
        self.bridges.retain_mut(|bridge| {
            let moved = bridge.pump(stack, now);
            worked |= moved != Some(false);
            moved.is_some()
        });
        if let Some(services) = &mut self.services {
            services.look(stack, now);
        }
        if now >= self.refresh_ns {
            self.refresh_ns = now + REFRESH_NS;
            self.refresh(stack);
        }
        worked
    }

    /// Refreshes the port's state, and those of its counters that only the kernel has.
    pub fn refresh(&mut self, stack: &mut Stack) {
        let now = stack.now();
        if let Err(error) = stack.refresh() {
            self.port.fail(error);
        }
        self.port.see(stack.partner(), now);
        // The driver thread may have detected it.
        if self.port.is_over(now) {
            // The port is unusable: closing the bridges reports that to the sessions.
            self.bridges.clear();
        }
    }

    /// Returns whether a bridge is open.
    pub fn is_busy(&self) -> bool {
        !self.bridges.is_empty()
    }
}
