//! Acceptor of the linerate service, on the thread that owns the stack. It classifies connections,
//! opens
//! the sockets of flows, and responds to their openings until the test starts.
//!
//! The tests themselves run in the threads of their sessions.

use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};
use std::task::Poll;

use linerate_dialect::control::flow::{OPENING_BYTES, answer, read_opening};
use linerate_dialect::control::{Opening, Token};
use linerate_host::sys::clock::Nanos;
use linerate_metric::plan::Protocol;
use linerate_stack::{SocketId, SocketKind, Stack, StackError, TcpState};

use crate::netstack::bridge::Bridge;
use crate::session::limits::GREETING_PATIENCE;
use crate::session::server_state::{Arrival, House};

/// Length of the magic in front of each connection.
const MAGIC_BYTES: usize = 8;

/// Largest number of flow openings per round.
const AT_ONCE: usize = 64;

/// Handle to the server behind the acceptor.
#[derive(Clone)]
pub struct Desk {
    /// Server state, in which flows are announced.
    pub house: Arc<House>,
    /// Channel for control connections.
    pub visitors: mpsc::Sender<Visitor>,
}

/// An accepted control connection.
pub struct Visitor {
    /// Socket that carries its bytes.
    pub pair: UnixStream,
    /// Local address.
    pub local: SocketAddr,
    /// Address of the client.
    pub peer: SocketAddr,
}

/// Acceptor of the linerate service.
pub struct Reception {
    desk: Desk,
    port: u16,
    datagrams: SocketId,
    /// Connections that are not classified yet, with their time of arrival.
    undecided: Vec<(SocketId, Nanos)>,
    /// Sockets of flows that belong to a test and that no worker has adopted yet.
    admitted: Vec<SocketId>,
    /// UDP flows whose openings may be repeated, because the response may have been lost.
    greeted: Vec<Greeted>,
    /// Bridges of new control connections.
    bridges: Vec<Bridge>,
}

/// A UDP flow that is being opened.
struct Greeted {
    socket: SocketId,
    token: Token,
    /// Accepted host of an unconnected socket; only its openings get a response.
    asker: Option<IpAddr>,
}

impl Reception {
    /// Creates the acceptor of a port with its UDP socket.
    pub fn new(desk: Desk, port: u16, datagrams: SocketId) -> Self {
        Self {
            desk,
            port,
            datagrams,
            undecided: Vec::with_capacity(16),
            admitted: Vec::with_capacity(16),
            greeted: Vec::with_capacity(16),
            bridges: Vec::new(),
        }
    }

    /// Handles an accepted connection.
    pub fn came(&mut self, stack: &mut Stack, socket: SocketId, now: Nanos) {
        self.undecided.push((socket, now));
        self.hear(stack, socket);
    }

    /// Classifies a connection whose first bytes may have arrived.
    pub fn hear(&mut self, stack: &mut Stack, socket: SocketId) {
        let known = |(other, _): &(SocketId, Nanos)| *other == socket;
        let Some(at) = self.undecided.iter().position(known) else {
            return;
        };
        let mut first = [0; OPENING_BYTES];
        let heard = stack.tcp_receive(socket, |bytes| {
            let count = bytes.len().min(OPENING_BYTES);
            first[..count].copy_from_slice(&bytes[..count]);
            // The first bytes of a control connection stay in the socket for its session.
            let is_flow = Opening::of(&first[..count]) == Some(Opening::Data);
            let taken = if is_flow && count == OPENING_BYTES {
                count
            } else {
                0
            };
            (taken, count)
        });
        let said = match heard {
            Poll::Pending => return,
            Poll::Ready(Ok(count)) if count > 0 => &first[..count],
            // Closed or failed.
            Poll::Ready(_) => &[],
        };
        // A connection that the client has closed sends no further bytes.
        let stays = matches!(
            stack.tcp_state(socket),
            Ok(TcpState::Established | TcpState::Finished)
        );
        match Opening::of(said) {
            None if stays && (1..MAGIC_BYTES).contains(&said.len()) => return,
            Some(Opening::Data) if stays && said.len() < OPENING_BYTES => return,
            _ => {}
        }
        self.undecided.swap_remove(at);
        let shown_in = match Opening::of(said) {
            Some(Opening::Control) => self.show_in(stack, socket),
            Some(Opening::Data) => read_opening(said).is_some_and(|token| {
                let admitted = &mut self.admitted;
                let mut taken = false;
                self.desk.house.admit(token, |waiting| {
                    taken = waiting.protocol == Protocol::Tcp;
                    taken.then(|| {
                        admitted.push(socket);
                        Arrival::Stack(socket)
                    })
                });
                taken
            }),
            None => false,
        };
        if !shown_in {
            // Invalid input: the connection is closed, which every protocol understands.
            let _ = stack.abort(socket);
        }
    }

    /// Passes a control connection to a session.
    fn show_in(&mut self, stack: &mut Stack, socket: SocketId) -> bool {
        let (Ok(local), Ok(Some(peer))) = (stack.local(socket), stack.remote(socket)) else {
            return false;
        };
        let Ok((pair, own)) = UnixStream::pair() else {
            return false;
        };
        let Ok(bridge) = Bridge::over(socket, own) else {
            return false;
        };
        let visitor = Visitor { pair, local, peer };
        if self.desk.visitors.send(visitor).is_err() {
            return false;
        }
        self.bridges.push(bridge);
        true
    }

    /// Opens a socket for each new UDP flow; returns the number of datagrams received.
    pub fn open_flows(&mut self, stack: &mut Stack) -> u64 {
        let port = self.port;
        let mut came = 0;
        for _ in 0..AT_ONCE {
            let received = stack.udp_receive(self.datagrams, |bytes, meta| {
                read_opening(bytes).map(|token| (token, meta.from, meta.to))
            });
            let opening = match received {
                Poll::Pending => break,
                Poll::Ready(Ok(opening)) => opening,
                Poll::Ready(Err(_)) => continue,
            };
            came += 1;
            let Some((token, from, to)) = opening else {
                continue;
            };
            let (admitted, greeted) = (&mut self.admitted, &mut self.greeted);
            self.desk.house.admit(token, |waiting| {
                // The source address is not validated: only that of the control connection gets a
                // response.
                if waiting.protocol != Protocol::Udp || from.ip() != waiting.peer {
                    return None;
                }
                let local = SocketAddr::new(to, port);
                let socket = match stack.udp_bind_pair(local, from) {
                    Ok(socket) => socket,
                    // Reported to the client: a repetition would rarely find a free socket.
                    Err(StackError::TooManySockets { limit, .. }) => {
                        return Some(Arrival::NoneLeft(limit));
                    }
                    // Other errors are transient: the client repeats its opening.
                    Err(_) => return None,
                };
                stack.udp_leave_unstamped(socket).ok()?;
                greet(stack, socket, None, token);
                admitted.push(socket);
                greeted.push(Greeted {
                    socket,
                    token,
                    asker: None,
                });
                Some(Arrival::Stack(socket))
            });
        }
        came
    }

    /// Responds to repeated openings, and aborts connections that stay silent.
    pub fn look(&mut self, stack: &mut Stack, now: Nanos) {
        for flow in &self.greeted {
            let socket = flow.socket;
            loop {
                let shown = stack.udp_peek(socket, |bytes, from| {
                    let foreign = (flow.asker).is_some_and(|asker| asker != from.ip());
                    (foreign, read_opening(bytes) == Some(flow.token), from)
                });
                let Ok(Some((foreign, opens, from))) = shown else {
                    break;
                };
                // Payload is left for the flow's worker; datagrams of other hosts are dropped,
                // because
                // they would hide it.
                if !foreign && !opens {
                    break;
                }
                let _ = stack.udp_receive(socket, |_, _| ());
                if !foreign {
                    let to = flow.asker.map(|_| from);
                    greet(stack, socket, to, flow.token);
                }
            }
        }
        let patience = GREETING_PATIENCE.as_nanos() as Nanos;
        self.undecided.retain(|&(socket, since)| {
            let waits = now.saturating_sub(since) < patience;
            if !waits {
                let _ = stack.abort(socket);
            }
            waits
        });
    }

    /// Takes the bridges of new control connections.
    pub fn bridges(&mut self) -> Vec<Bridge> {
        std::mem::take(&mut self.bridges)
    }

    /// Adds the socket that a test has opened for a flow, for this host alone.
    pub fn keep(&mut self, socket: SocketId, token: Token, asker: IpAddr) {
        self.admitted.push(socket);
        if socket.kind() == SocketKind::Udp {
            self.greeted.push(Greeted {
                socket,
                token,
                asker: Some(asker),
            });
        }
    }

    /// Removes a socket that a worker has adopted and will close.
    pub fn hand_over(&mut self, socket: SocketId) {
        self.admitted.retain(|other| *other != socket);
    }

    /// Called when a test starts: data on its flows is payload from here on.
    pub fn stop_greeting(&mut self) {
        self.greeted.clear();
    }

    /// Called when a test is over: closes the flows that no worker adopted.
    pub fn part(&mut self, stack: &mut Stack) {
        self.greeted.clear();
        for socket in self.admitted.drain(..) {
            // It may be closed already.
            let _ = stack.close(socket);
        }
    }
}

/// Responds to the opening of a flow. If the response is lost, the client repeats the opening.
fn greet(stack: &mut Stack, socket: SocketId, to: Option<SocketAddr>, token: Token) {
    let answer = answer(token);
    let _ = stack.udp_send(socket, to, answer.len(), |payload| {
        payload.copy_from_slice(&answer);
    });
}
