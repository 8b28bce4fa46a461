//! Connections that clients of iperf2 want to be opened towards them.

use std::net::SocketAddr;

use linerate_dialect::iperf2::Settings;
use linerate_host::sys::clock::Nanos;
use linerate_stack::{SocketId, Stack, TcpState};

use super::flows::may_be_called;
use crate::peers::serve::Hall;

/// How long a client may take to accept one.
const PATIENCE_NS: Nanos = 5_000_000_000;

/// Between two tries: it may listen there a moment after it has asked.
const AGAIN_NS: Nanos = 20_000_000;

/// Those that are being opened at a time.
const MOST: usize = 64;

/// All of them.
#[derive(Default)]
pub struct Dials(Vec<Dial>);

struct Dial {
    to: SocketAddr,
    service: usize,
    settings: Box<Settings>,
    /// The try that is under way; without one, when the next one begins.
    socket: Option<SocketId>,
    try_ns: Nanos,
    until_ns: Nanos,
}

/// One that stands.
pub struct Dialled {
    /// Its socket.
    pub socket: SocketId,
    /// Whose service it is of.
    pub service: usize,
    /// What is to be sent on it.
    pub settings: Box<Settings>,
}

impl Dials {
    /// A client wants one, to the port that it names.
    pub fn add(
        &mut self,
        stack: &Stack,
        hall: &Hall,
        client: SocketAddr,
        service: usize,
        settings: Box<Settings>,
        now: Nanos,
    ) {
        if self.0.len() < MOST && may_be_called(stack, hall, client, settings.port) {
            self.0.push(Dial {
                to: SocketAddr::new(client.ip(), settings.port),
                service,
                settings,
                socket: None,
                try_ns: now,
                until_ns: now.saturating_add(PATIENCE_NS),
            });
        }
    }

    /// Goes on with all; gives one that stands.
    pub fn look(&mut self, stack: &mut Stack, now: Nanos) -> Option<Dialled> {
        let mut at = 0;
        while let Some(dial) = self.0.get_mut(at) {
            match dial.step(stack, now) {
                Step::Waits => at += 1,
                Step::Over => drop(self.0.swap_remove(at)),
                Step::Stands(socket) => {
                    let Dial {
                        service, settings, ..
                    } = self.0.swap_remove(at);
                    return Some(Dialled {
                        socket,
                        service,
                        settings,
                    });
                }
            }
        }
        None
    }
}

enum Step {
    Waits,
    Stands(SocketId),
    Over,
}

impl Dial {
    fn step(&mut self, stack: &mut Stack, now: Nanos) -> Step {
        let is_late = now >= self.until_ns;
        match self.socket {
            None if is_late => return Step::Over,
            None if now < self.try_ns => {}
            None => match stack.tcp_connect(self.to, None) {
                Ok(socket) => self.socket = Some(socket),
                Err(_) => self.try_ns = now + AGAIN_NS,
            },
            Some(socket) => match stack.tcp_state(socket) {
                Ok(TcpState::Opening) if !is_late => {}
                Ok(TcpState::Opening | TcpState::Closed) | Err(_) => {
                    // Also one that was refused holds its place until it is given back.
                    let _ = stack.abort(socket);
                    (self.socket, self.try_ns) = (None, now + AGAIN_NS);
                }
                Ok(_) => return Step::Stands(socket),
            },
        }
        Step::Waits
    }
}
