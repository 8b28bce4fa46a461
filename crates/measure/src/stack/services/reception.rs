//! Our own server's part of the thread that owns a stack: who comes is shown to a test, and what has to be
//! answered until it begins is.
//!
//! Tests themselves are conducted by threads of their own; here their sockets are opened.

use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};
use std::task::Poll;

use linerate_dialect::control::flow::{OPENING_BYTES, answer, read_opening};
use linerate_dialect::control::{Opening, Token};
use linerate_host::sys::clock::Nanos;
use linerate_metric::plan::Protocol;
use linerate_stack::{SocketId, SocketKind, Stack, StackError, TcpState};

use crate::session::house::{Arrival, House};
use crate::session::limits::GREETING_PATIENCE;
use crate::stack::bridge::Bridge;

/// Bytes that tell a connection of ours from any other.
const MAGIC_BYTES: usize = 8;

/// Openings that are taken at once.
const AT_ONCE: usize = 64;

/// What a reception needs of the server behind it.
#[derive(Clone)]
pub struct Desk {
    /// Whom flows are announced to.
    pub house: Arc<House>,
    /// Takes control connections.
    pub visitors: mpsc::Sender<Visitor>,
}

/// A control connection that came.
pub struct Visitor {
    /// Carries its bytes.
    pub pair: UnixStream,
    /// This end of it.
    pub local: SocketAddr,
    /// The other one.
    pub peer: SocketAddr,
}

/// Where clients of ours arrive.
pub struct Reception {
    desk: Desk,
    port: u16,
    datagrams: SocketId,
    /// Connections that have not said what they are, and since when they are there.
    undecided: Vec<(SocketId, Nanos)>,
    /// Flows that a test was told of and that no thread has taken yet.
    admitted: Vec<SocketId>,
    /// Flows over UDP whose openings may come again: the answer may have been lost.
    greeted: Vec<Greeted>,
    /// Control connections that nobody looks after yet.
    bridges: Vec<Bridge>,
}

/// A flow over UDP that opens.
struct Greeted {
    socket: SocketId,
    token: Token,
    /// Of a socket without a peer: whose openings are answered.
    asker: Option<IpAddr>,
}

impl Reception {
    /// In front of this desk, at a port whose datagrams come to `datagrams`.
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

    /// A connection was accepted.
    pub fn came(&mut self, stack: &mut Stack, socket: SocketId, now: Nanos) {
        self.undecided.push((socket, now));
        self.hear(stack, socket);
    }

    /// Something changed at a connection: it may have said what it is.
    pub fn hear(&mut self, stack: &mut Stack, socket: SocketId) {
        let known = |(other, _): &(SocketId, Nanos)| *other == socket;
        let Some(at) = self.undecided.iter().position(known) else {
            return;
        };
        let mut first = [0; OPENING_BYTES];
        let heard = stack.tcp_receive(socket, |bytes| {
            let count = bytes.len().min(OPENING_BYTES);
            first[..count].copy_from_slice(&bytes[..count]);
            // A control connection's first bytes are its session's.
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
            // It is gone, or says nothing any more.
            Poll::Ready(_) => &[],
        };
        // Whoever has gone says no more.
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
            // Closing is the one answer that no protocol misunderstands.
            let _ = stack.abort(socket);
        }
    }

    /// A control connection goes to a session.
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

    /// Flows over UDP that open get a socket of their own; how many datagrams came.
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
                // An address in a datagram proves nothing: only the control connection's is answered.
                if waiting.protocol != Protocol::Udp || from.ip() != waiting.peer {
                    return None;
                }
                let local = SocketAddr::new(to, port);
                let socket = match stack.udp_bind_pair(local, from) {
                    Ok(socket) => socket,
                    // Whoever waits for one is told: seldom does a repetition find any.
                    Err(StackError::TooManySockets { limit, .. }) => {
                        return Some(Arrival::NoneLeft(limit));
                    }
                    // What else fails here is tried again: the client repeats its opening.
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

    /// Answers openings that came again, and gives up who says nothing.
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
                // Payload belongs to the flow's thread; what others send would hide it.
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

    /// Control connections that came since the last look.
    pub fn bridges(&mut self) -> Vec<Bridge> {
        std::mem::take(&mut self.bridges)
    }

    /// A test has opened a socket for a flow, which answers this host alone.
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

    /// A thread has a flow's socket now, and closes it.
    pub fn hand_over(&mut self, socket: SocketId) {
        self.admitted.retain(|other| *other != socket);
    }

    /// The test begins: what comes from now on is payload.
    pub fn stop_greeting(&mut self) {
        self.greeted.clear();
    }

    /// The test is over: flows that nobody took are closed.
    pub fn part(&mut self, stack: &mut Stack) {
        self.greeted.clear();
        for socket in self.admitted.drain(..) {
            // It may be gone already.
            let _ = stack.close(socket);
        }
    }
}

/// Answers the opening of a flow. What is lost is asked for again.
fn greet(stack: &mut Stack, socket: SocketId, to: Option<SocketAddr>, token: Token) {
    let answer = answer(token);
    let _ = stack.udp_send(socket, to, answer.len(), |payload| {
        payload.copy_from_slice(&answer);
    });
}
