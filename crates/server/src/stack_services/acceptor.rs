//! Acceptor of the linerate service, on the thread that owns the stack. It classifies connections,
//! opens the sockets of flows, and responds to their openings until the test starts.
//!
//! The tests themselves run in the threads of their sessions.

use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};
use std::task::Poll;

use linerate_protocol::control::flow::{OPENING_BYTES, read_opening, reply};
use linerate_protocol::control::{FlowToken, OpeningKind};
use linerate_record::plan::TransportProtocol;
use linerate_stack::{SocketId, SocketKind, Stack, StackError, TcpState};
use linerate_sys::clock::Nanos;
use linerate_transport::stack_thread::bridge::ConnectionBridge;

use crate::server_state::{AcceptedSocket, ServerState};

/// Length of the magic in front of each connection.
const MAGIC_BYTES: usize = 8;

/// Largest number of flow openings per round.
const OPENINGS_PER_ROUND: usize = 64;

/// Handle to the server behind the acceptor.
#[derive(Clone)]
pub struct AcceptHandle {
    /// Server state, in which flows are announced.
    pub server: Arc<ServerState>,
    /// Channel for control connections.
    pub connections: mpsc::Sender<AcceptedConnection>,
}

/// An accepted control connection.
pub struct AcceptedConnection {
    /// Socket that carries its bytes.
    pub pair: UnixStream,
    /// Local address.
    pub local: SocketAddr,
    /// Address of the client.
    pub peer: SocketAddr,
}

/// Acceptor of the linerate service.
pub struct NetstackAcceptor {
    handle: AcceptHandle,
    port: u16,
    udp_socket: SocketId,
    /// Connections that are not classified yet, with their time of arrival.
    unclassified: Vec<(SocketId, Nanos)>,
    /// Sockets of flows that belong to a test and that no worker has adopted yet.
    admitted_flows: Vec<SocketId>,
    /// UDP flows whose openings may be repeated, because the response may have been lost.
    opening_flows: Vec<OpeningUdpFlow>,
    /// Bridges of new control connections.
    new_bridges: Vec<ConnectionBridge>,
}

/// A UDP flow that is being opened.
struct OpeningUdpFlow {
    socket: SocketId,
    token: FlowToken,
    /// Accepted host of an unconnected socket; only its openings get a response.
    accepted_host: Option<IpAddr>,
}

impl NetstackAcceptor {
    /// Creates the acceptor of a port with its UDP socket.
    pub fn new(handle: AcceptHandle, port: u16, datagrams: SocketId) -> Self {
        Self {
            handle,
            port,
            udp_socket: datagrams,
            unclassified: Vec::with_capacity(16),
            admitted_flows: Vec::with_capacity(16),
            opening_flows: Vec::with_capacity(16),
            new_bridges: Vec::new(),
        }
    }

    /// Handles an accepted connection.
    pub fn on_accepted(&mut self, stack: &mut Stack, socket: SocketId, now: Nanos) {
        self.unclassified.push((socket, now));
        self.classify(stack, socket);
    }

    /// Classifies a connection whose first bytes may have arrived.
    pub fn classify(&mut self, stack: &mut Stack, socket: SocketId) {
        let is_socket = |(candidate, _): &(SocketId, Nanos)| *candidate == socket;
        let Some(index) = self.unclassified.iter().position(is_socket) else {
            return;
        };
        let mut first = [0; OPENING_BYTES];
        let received = stack.tcp_receive(socket, |bytes| {
            let count = bytes.len().min(OPENING_BYTES);
            first[..count].copy_from_slice(&bytes[..count]);
            // The first bytes of a control connection stay in the socket for its session.
            let is_flow = OpeningKind::from_first_bytes(&first[..count]) == Some(OpeningKind::Data);
            let is_taken = if is_flow && count == OPENING_BYTES {
                count
            } else {
                0
            };
            (is_taken, count)
        });
        let first_bytes = match received {
            Poll::Pending => return,
            Poll::Ready(Ok(count)) if count > 0 => &first[..count],
            // Closed or failed.
            Poll::Ready(_) => &[],
        };
        // A connection that the client has closed sends no further bytes.
        let is_open = matches!(
            stack.tcp_state(socket),
            Ok(TcpState::Established | TcpState::LocalFinished)
        );
        match OpeningKind::from_first_bytes(first_bytes) {
            None if is_open && (1..MAGIC_BYTES).contains(&first_bytes.len()) => return,
            Some(OpeningKind::Data) if is_open && first_bytes.len() < OPENING_BYTES => return,
            _ => {}
        }
        self.unclassified.swap_remove(index);
        let is_accepted = match OpeningKind::from_first_bytes(first_bytes) {
            Some(OpeningKind::Control) => self.accept_control(stack, socket),
            Some(OpeningKind::Data) => read_opening(first_bytes).is_some_and(|token| {
                let admitted = &mut self.admitted_flows;
                let mut is_taken = false;
                self.handle.server.deliver_socket(token, |waiting| {
                    is_taken = waiting.protocol == TransportProtocol::Tcp;
                    is_taken.then(|| {
                        admitted.push(socket);
                        AcceptedSocket::Netstack(socket)
                    })
                });
                is_taken
            }),
            None => false,
        };
        if !is_accepted {
            // Invalid input: the connection is closed, which every protocol understands.
            let _ = stack.abort(socket);
        }
    }

    /// Passes a control connection to a session.
    fn accept_control(&mut self, stack: &mut Stack, socket: SocketId) -> bool {
        let (Ok(local), Ok(Some(peer))) = (stack.local(socket), stack.remote(socket)) else {
            return false;
        };
        let Ok((pair, bridge_socket)) = UnixStream::pair() else {
            return false;
        };
        let Ok(bridge) = ConnectionBridge::for_established(socket, bridge_socket) else {
            return false;
        };
        let connection = AcceptedConnection { pair, local, peer };
        if self.handle.connections.send(connection).is_err() {
            return false;
        }
        self.new_bridges.push(bridge);
        true
    }

    /// Opens a socket for each new UDP flow; returns the number of datagrams received.
    pub fn accept_udp_flows(&mut self, stack: &mut Stack) -> u64 {
        let port = self.port;
        let mut datagrams = 0;
        for _ in 0..OPENINGS_PER_ROUND {
            let received = stack.udp_receive(self.udp_socket, |bytes, meta| {
                read_opening(bytes).map(|token| (token, meta.from, meta.to))
            });
            let opening = match received {
                Poll::Pending => break,
                Poll::Ready(Ok(opening)) => opening,
                Poll::Ready(Err(_)) => continue,
            };
            datagrams += 1;
            let Some((token, from, to)) = opening else {
                continue;
            };
            let (admitted, opening_flows) = (&mut self.admitted_flows, &mut self.opening_flows);
            self.handle.server.deliver_socket(token, |waiting| {
                // The source address is not validated: only that of the control connection gets a
                // response.
                if waiting.protocol != TransportProtocol::Udp || from.ip() != waiting.peer {
                    return None;
                }
                let local = SocketAddr::new(to, port);
                let socket = match stack.udp_bind_pair(local, from) {
                    Ok(socket) => socket,
                    // Reported to the client: a repetition would rarely find a free socket.
                    Err(StackError::TooManySockets { limit, .. }) => {
                        return Some(AcceptedSocket::Exhausted(limit));
                    }
                    // Other errors are transient: the client repeats its opening.
                    Err(_) => return None,
                };
                stack.udp_disable_stamps(socket).ok()?;
                send_opening_response(stack, socket, None, token);
                admitted.push(socket);
                opening_flows.push(OpeningUdpFlow {
                    socket,
                    token,
                    accepted_host: None,
                });
                Some(AcceptedSocket::Netstack(socket))
            });
        }
        datagrams
    }

    /// Responds to repeated openings, and aborts connections that stay silent.
    pub fn poll_timers(&mut self, stack: &mut Stack, now: Nanos) {
        for flow in &self.opening_flows {
            let socket = flow.socket;
            loop {
                let peeked = stack.udp_peek(socket, |bytes, from| {
                    let is_unexpected = (flow.accepted_host)
                        .is_some_and(|accepted_host| accepted_host != from.ip());
                    (is_unexpected, read_opening(bytes) == Some(flow.token), from)
                });
                let Ok(Some((is_unexpected, opens, from))) = peeked else {
                    break;
                };
                // Payload is left for the flow's worker; datagrams of other hosts are dropped,
                // because they would hide it.
                if !is_unexpected && !opens {
                    break;
                }
                let _ = stack.udp_receive(socket, |_, _| ());
                if !is_unexpected {
                    let to = flow.accepted_host.map(|_| from);
                    send_opening_response(stack, socket, to, flow.token);
                }
            }
        }
        let timeout_ns = self.handle.server.interop.timeouts().classify.as_nanos() as Nanos;
        self.unclassified.retain(|&(socket, since)| {
            let is_waiting = now.saturating_sub(since) < timeout_ns;
            if !is_waiting {
                let _ = stack.abort(socket);
            }
            is_waiting
        });
    }

    /// Takes the bridges of new control connections.
    pub fn take_bridges(&mut self) -> Vec<ConnectionBridge> {
        std::mem::take(&mut self.new_bridges)
    }

    /// Adds the socket that a test has opened for a flow, for this host alone.
    pub fn add_flow(&mut self, socket: SocketId, token: FlowToken, accepted_host: IpAddr) {
        self.admitted_flows.push(socket);
        if socket.kind() == SocketKind::Udp {
            self.opening_flows.push(OpeningUdpFlow {
                socket,
                token,
                accepted_host: Some(accepted_host),
            });
        }
    }

    /// Removes a socket that a worker has adopted and will close.
    pub fn hand_over_socket(&mut self, socket: SocketId) {
        self.admitted_flows.retain(|candidate| *candidate != socket);
    }

    /// Called when a test starts: data on its flows is payload from here on.
    pub fn stop_openings(&mut self) {
        self.opening_flows.clear();
    }

    /// Called when a test is over: closes the flows that no worker adopted.
    pub fn end_test(&mut self, stack: &mut Stack) {
        self.opening_flows.clear();
        for socket in self.admitted_flows.drain(..) {
            // It may be closed already.
            let _ = stack.close(socket);
        }
    }
}

/// Responds to the opening of a flow. If the response is lost, the client repeats the opening.
fn send_opening_response(
    stack: &mut Stack,
    socket: SocketId,
    to: Option<SocketAddr>,
    token: FlowToken,
) {
    let response = reply(token);
    let _ = stack.udp_send(socket, to, response.len(), |payload| {
        payload.copy_from_slice(&response);
    });
}
