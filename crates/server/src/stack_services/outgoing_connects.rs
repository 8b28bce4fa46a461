//! Connections that iperf2 clients request towards themselves.

use std::net::SocketAddr;

use linerate_protocol::iperf2::Iperf2Settings;
use linerate_stack::{SocketId, Stack, TcpState};
use linerate_sys::clock::Nanos;

use super::iperf2_udp::is_connect_back_permitted;
use crate::interop_state::InteropState;

/// Longest time in which a client may accept one.
const CONNECT_TIMEOUT_NS: Nanos = 5_000_000_000;

/// Pause between two attempts: a client may start to listen a moment after its request.
const RETRY_NS: Nanos = 20_000_000;

/// Largest number of connections being opened.
const MAX_PENDING: usize = 64;

/// Connections being opened.
#[derive(Default)]
pub struct OutgoingConnects(Vec<OutgoingConnect>);

struct OutgoingConnect {
    destination: SocketAddr,
    service: usize,
    settings: Box<Iperf2Settings>,
    /// Socket of the current attempt; without one, `next_try_ns` is the time of the next.
    socket: Option<SocketId>,
    next_try_ns: Nanos,
    deadline_ns: Nanos,
}

/// An established connection.
pub struct EstablishedConnect {
    pub socket: SocketId,
    /// Index of the service.
    pub service: usize,
    /// Settings of the test to run on it.
    pub settings: Box<Iperf2Settings>,
}

impl OutgoingConnects {
    /// Adds a connection to the port that the client named, if permitted.
    pub fn add(
        &mut self,
        stack: &Stack,
        interop: &InteropState,
        client: SocketAddr,
        service: usize,
        settings: Box<Iperf2Settings>,
        now: Nanos,
    ) {
        if self.0.len() < MAX_PENDING
            && is_connect_back_permitted(stack, interop, client, settings.port)
        {
            self.0.push(OutgoingConnect {
                destination: SocketAddr::new(client.ip(), settings.port),
                service,
                settings,
                socket: None,
                next_try_ns: now,
                deadline_ns: now.saturating_add(CONNECT_TIMEOUT_NS),
            });
        }
    }

    /// Advances all attempts; returns one that is established.
    pub fn poll(&mut self, stack: &mut Stack, now: Nanos) -> Option<EstablishedConnect> {
        let mut index = 0;
        while let Some(connect) = self.0.get_mut(index) {
            match connect.step(stack, now) {
                ConnectStep::Pending => index += 1,
                ConnectStep::GivenUp => drop(self.0.swap_remove(index)),
                ConnectStep::Established(socket) => {
                    let OutgoingConnect {
                        service, settings, ..
                    } = self.0.swap_remove(index);
                    return Some(EstablishedConnect {
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

enum ConnectStep {
    Pending,
    Established(SocketId),
    GivenUp,
}

impl OutgoingConnect {
    fn step(&mut self, stack: &mut Stack, now: Nanos) -> ConnectStep {
        let is_timed_out = now >= self.deadline_ns;
        match self.socket {
            None if is_timed_out => return ConnectStep::GivenUp,
            None if now < self.next_try_ns => {}
            None => match stack.tcp_connect(self.destination, None) {
                Ok(socket) => self.socket = Some(socket),
                Err(_) => self.next_try_ns = now + RETRY_NS,
            },
            Some(socket) => match stack.tcp_state(socket) {
                Ok(TcpState::Connecting) if !is_timed_out => {}
                Ok(TcpState::Connecting | TcpState::Closed) | Err(_) => {
                    // A refused attempt, too, keeps its slot until it is aborted.
                    let _ = stack.abort(socket);
                    (self.socket, self.next_try_ns) = (None, now + RETRY_NS);
                }
                Ok(_) => return ConnectStep::Established(socket),
            },
        }
        ConnectStep::Pending
    }
}
