//! What a stack does beside what is measured.

use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, mpsc};

use linerate_host::sys::clock::Nanos;
use linerate_stack::{Stack, StackError};

use super::bridge::{Bridge, Ends};
use super::services::Services;
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
}

/// Something to be looked at.
pub type Look = Box<dyn FnOnce(&mut Stack, Option<&mut Services>) + Send>;

/// Why the port does not work any more, for whoever waits for it.
pub type Failure = Arc<Mutex<Option<StackError>>>;

/// Bridges, services, and what others ask for.
pub struct Background {
    bridges: Vec<Bridge>,
    asks: mpsc::Receiver<Ask>,
    services: Option<Box<Services>>,
    refresh_ns: Nanos,
    failure: Failure,
}

impl Background {
    /// Nothing yet but somebody to be asked by.
    pub fn new(
        asks: mpsc::Receiver<Ask>,
        services: Option<Box<Services>>,
        failure: Failure,
    ) -> Self {
        Self {
            bridges: Vec::with_capacity(8),
            asks,
            services,
            refresh_ns: 0,
            failure,
        }
    }

    /// Whether others are served, who are not to wait.
    pub fn serves(&self) -> bool {
        self.services.is_some()
    }

    /// Serves whoever something came from in the last turn.
    #[inline]
    pub fn serve(&mut self, stack: &mut Stack, now: Nanos) {
        if let Some(services) = &mut self.services {
            services.serve(stack, now);
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
            }
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
            if let Err(error) = stack.refresh() {
                let mut failure = self.failure.lock().expect("no holder panics");
                failure.get_or_insert(error);
                // Nothing will come any more: whoever talks learns it now.
                self.bridges.clear();
            }
        }
        worked
    }

    /// Bridges that still carry something.
    pub fn is_busy(&self) -> bool {
        !self.bridges.is_empty()
    }
}
