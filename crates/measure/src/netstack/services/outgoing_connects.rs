//! Connections that iperf2 clients request towards themselves.

use std::net::SocketAddr;

use linerate_dialect::iperf2::Settings;
use linerate_host::sys::clock::Nanos;
use linerate_stack::{SocketId, Stack, TcpState};

use super::iperf2_udp::may_be_called;
use crate::interop::handlers::Hall;

/// Longest time in which a client may accept one.
const PATIENCE_NS: Nanos = 5_000_000_000;

/// Pause between two attempts: a client may start to listen a moment after its request.
const AGAIN_NS: Nanos = 20_000_000;

/// Largest number of connections being opened.
const MOST: usize = 64;

/// Connections being opened.
#[derive(Default)]
pub struct Dials(Vec<Dial>);

struct Dial {
    to: SocketAddr,
    service: usize,
    settings: Box<Settings>,
    /// Socket of the current attempt; without one, `try_ns` is the time of the next.
    socket: Option<SocketId>,
    try_ns: Nanos,
    until_ns: Nanos,
}

/// An established connection.
pub struct Dialled {
    pub socket: SocketId,
    /// Index of the service.
    pub service: usize,
    /// Settings of the test to run on it.
    pub settings: Box<Settings>,
}

impl Dials {
    /// Adds a connection to the port that the client named, if permitted.
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

    /// Advances all attempts; returns one that is established.
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
                    // A refused attempt, too, keeps its slot until it is aborted.
                    let _ = stack.abort(socket);
                    (self.socket, self.try_ns) = (None, now + AGAIN_NS);
                }
                Ok(_) => return Step::Stands(socket),
            },
        }
        Step::Waits
    }
}
