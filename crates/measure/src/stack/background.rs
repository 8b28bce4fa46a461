//! What a stack does beside what is measured.

use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};

use linerate_host::sys::clock::Nanos;
use linerate_stack::{SocketId, Stack};

use super::bridge::{Bridge, Ends};
use super::port_state::PortState;
use super::services::reception::Reception;
use super::services::{Payload, Services};
use crate::transport::stack_error;

/// How often the port is asked whether it still works.
const REFRESH_NS: Nanos = 500_000_000;

/// What another thread wants of the one that owns the stack, whatever that does just now.
pub enum Ask {
    /// A connection, whose bytes a pair of sockets carries.
    Connect {
        /// Where to.
        remote: SocketAddr,
        /// The stack's end of the pair.
        pair: UnixStream,
        /// Told once it stands, or why it does not.
        said: mpsc::Sender<io::Result<Ends>>,
    },
    /// To look at the stack and its services.
    Look(Look),
    /// The same, with all that is counted up to now.
    Count(Look),
}

/// Something to be looked at.
pub type Look = Box<dyn FnOnce(&mut Stack, Option<&mut Services>) + Send>;

/// Bridges, services, and what others ask for.
pub struct Background {
    bridges: Vec<Bridge>,
    asks: mpsc::Receiver<Ask>,
    services: Option<Box<Services>>,
    refresh_ns: Nanos,
    port: Arc<PortState>,
}

impl Background {
    /// Nothing yet but somebody to be asked by.
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

    /// Whether others are served, who are not to wait.
    pub fn serves(&self) -> bool {
        self.services.is_some()
    }

    /// Whether somebody who is served goes on with the next turn, whatever comes.
    #[inline]
    pub fn is_pressed(&self) -> bool {
        (self.services.as_ref()).is_some_and(|services| services.is_pressed())
    }

    /// Something changed at a socket that is no workload's.
    #[inline]
    pub fn changed(&mut self, stack: &mut Stack, socket: SocketId, now: Nanos) {
        if let Some(services) = &mut self.services {
            services.changed(stack, socket, now);
        }
    }

    /// Serves on where one round was not enough.
    #[inline]
    pub fn serve(&mut self, stack: &mut Stack, now: Nanos) {
        if let Some(services) = &mut self.services {
            services.go_on(stack, now);
        }
    }

    /// What workloads have moved in all: tests of our own server, where it is served.
    #[inline]
    pub fn moved(&mut self, payload: Payload) {
        if let Some(services) = &mut self.services {
            services.moved(payload);
        }
    }

    fn reception(&mut self) -> Option<&mut Reception> {
        self.services.as_mut()?.reception()
    }

    /// A workload has a socket now that the reception opened.
    pub fn hand_over(&mut self, socket: SocketId) {
        if let Some(reception) = self.reception() {
            reception.hand_over(socket);
        }
    }

    /// A test begins: what comes on its flows is payload.
    pub fn stop_greeting(&mut self) {
        if let Some(reception) = self.reception() {
            reception.stop_greeting();
        }
    }

    /// A test is over: what was opened for it and not used is closed.
    pub fn part(&mut self, stack: &mut Stack) {
        if let Some(reception) = self.reception() {
            reception.part(stack);
        }
    }

    /// Looks after everything that can wait a little; whether anything happened.
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
                        // Whoever asked may be gone.
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

    /// Has the port say what only the kernel counts of it, and whether it still works: once in a while, and whenever
    /// its counters are to be those of this moment.
    pub fn refresh(&mut self, stack: &mut Stack) {
        let now = stack.now();
        if let Err(error) = stack.refresh() {
            self.port.fail(error);
        }
        self.port.see(stack.partner(), now);
        // A thread of its own may have found out.
        if self.port.is_over(now) {
            // Nothing will come any more: whoever talks learns it now.
            self.bridges.clear();
        }
    }

    /// Bridges that still carry something.
    pub fn is_busy(&self) -> bool {
        !self.bridges.is_empty()
    }
}
