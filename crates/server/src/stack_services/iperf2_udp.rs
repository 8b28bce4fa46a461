//! iperf2 over UDP: flows from its clients, and flows that they request.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::task::Poll;

use linerate_protocol::iperf2::{
    DualTest, Iperf2Direction, Iperf2Settings, Iperf2UdpServer, PROTOCOL, QUIET_NS,
    REPORT_MIN_BYTES,
};
use linerate_record::event::ErrorReport;
use linerate_record::stack::ServiceFigures;
use linerate_stack::{DatagramMeta, SocketId, Stack};
use linerate_sys::clock;
use linerate_sys::clock::Nanos;

use super::is_on_link;
use super::tcp_connection::NextStep;
use crate::handlers::{
    DatagramAction, DatagramFlow, Iperf2Flow, Iperf2ReverseFlow, send_time_limit_s,
};
use crate::interop_state::InteropState;

/// Largest number of flows of a service.
const MAX_FLOWS: usize = 64;

/// Largest number of datagrams sent per round; the stack is polled in between.
const MAX_BURST: usize = 32;

/// The flows of a service.
pub struct Iperf2Flows(Vec<Iperf2Peer>);

/// Flows between one client address and the service.
struct Iperf2Peer {
    peer: SocketAddr,
    /// Destination of the client's datagrams.
    local: SocketAddr,
    /// Flow from the client.
    incoming: Option<Iperf2Flow>,
    /// Flow to the client.
    outgoing: Option<OutgoingFlow>,
    /// Settings of the flow that is sent once the client's has ended.
    pending_settings: Option<Box<Iperf2Settings>>,
    /// Time of the last datagram in either direction.
    last_activity_ns: Nanos,
}

/// A flow to a client.
struct OutgoingFlow {
    sender: Iperf2ReverseFlow,
    /// Connected socket, which reports ICMP errors; `None`: the service's socket.
    socket: Option<SocketId>,
    destination: SocketAddr,
}

/// Socket and permissions of the service whose flows are handled.
pub struct FlowContext<'a> {
    /// The service's socket.
    pub socket: SocketId,
    pub port: u16,
    /// Address validation and permissions.
    pub interop: &'a InteropState,
}

impl Iperf2Flows {
    pub fn new() -> Self {
        Self(Vec::with_capacity(MAX_FLOWS))
    }

    /// Handles a datagram and writes the response over it; returns the response's length.
    pub fn handle_datagram(
        &mut self,
        stack: &mut Stack,
        context: &FlowContext,
        now: Nanos,
        meta: &DatagramMeta,
        datagram: &mut [u8],
    ) -> Option<usize> {
        let Some(entry) = self.0.iter_mut().find(|entry| entry.peer == meta.from) else {
            self.open(stack, context, now, meta, datagram);
            return None;
        };
        entry.last_activity_ns = now;
        let flow = entry.incoming.as_mut()?;
        match flow.receive(now, datagram) {
            DatagramAction::ReplyInPlace { bytes, .. } => Some(bytes),
            // A report is written over the request here; the iperf2 client reads its beginning.
            DatagramAction::Reply => {
                let bytes = flow.reply().len().min(datagram.len());
                datagram[..bytes].copy_from_slice(&flow.reply()[..bytes]);
                (bytes >= REPORT_MIN_BYTES).then_some(bytes)
            }
            DatagramAction::Payload
            | DatagramAction::Start
            | DatagramAction::Ignore
            | DatagramAction::Unparsed => None,
        }
    }

    fn open(
        &mut self,
        stack: &mut Stack,
        context: &FlowContext,
        now: Nanos,
        meta: &DatagramMeta,
        datagram: &[u8],
    ) {
        if self.0.len() == MAX_FLOWS {
            return;
        }
        let wall_ahead_ns = clock::wall_offset();
        // The end marker of an ended flow opens none.
        let Some(server) = Iperf2UdpServer::open(datagram, now.wrapping_add(wall_ahead_ns)) else {
            return;
        };
        let settings = server.settings().cloned();
        let (direction, dual) = (
            server.direction(),
            settings.as_ref().and_then(|requested| requested.dual),
        );
        let mut entry = Iperf2Peer {
            peer: meta.from,
            local: SocketAddr::new(meta.to, context.port),
            incoming: (direction != Iperf2Direction::Reverse).then(|| {
                Iperf2Flow::new(
                    server,
                    wall_ahead_ns,
                    now,
                    context.interop.timeouts().flow_silence,
                )
            }),
            outgoing: None,
            pending_settings: None,
            last_activity_ns: now,
        };
        if let Some(settings) = settings
            && (direction != Iperf2Direction::Forward || dual.is_some())
            && is_send_permitted(stack, context.interop, meta.from, &settings)
        {
            match dual {
                Some(DualTest::Sequential) => entry.pending_settings = Some(Box::new(settings)),
                Some(DualTest::Simultaneous) => {
                    entry.start_second_flow(stack, context, &settings, now)
                }
                None => entry.start_outgoing(stack, context, &settings, now),
            }
        }
        if entry.incoming.is_some() || entry.outgoing.is_some() {
            self.0.push(entry);
        }
    }

    /// Sends what is due; returns when to continue.
    pub fn send_due(
        &mut self,
        stack: &mut Stack,
        context: &FlowContext,
        now: Nanos,
        figures: &mut ServiceFigures,
    ) -> NextStep {
        let mut next = NextStep::Wait;
        for entry in &mut self.0 {
            let last = &mut entry.last_activity_ns;
            if let Some(outgoing) = &mut entry.outgoing {
                let sent = outgoing.send_due(stack, context.socket, now);
                figures.bytes_sent += sent;
                if sent > 0 {
                    *last = now;
                }
                if !outgoing.sender.is_finished() {
                    next = NextStep::Timed;
                }
            }
        }
        next
    }

    /// Removes flows that have ended, and starts those that waited for that; returns whether one
    /// started.
    pub fn poll_timers(&mut self, stack: &mut Stack, context: &FlowContext, now: Nanos) -> bool {
        let mut has_started = false;
        for entry in &mut self.0 {
            // The client may still respond to the end, and would report a closed port as an error.
            let is_quiet = now.saturating_sub(entry.last_activity_ns) > QUIET_NS;
            if is_quiet
                && entry
                    .outgoing
                    .as_ref()
                    .is_some_and(|outgoing| outgoing.sender.is_finished())
            {
                entry.stop_sending(stack);
            }
            let has_ended = entry
                .incoming
                .as_mut()
                .is_none_or(|flow| flow.is_finished(now));
            if !has_ended {
                continue;
            }
            let client_is_gone = entry.incoming.take().is_some_and(|flow| flow.is_gone());
            // Without an end marker (no FIN), silence is the end.
            let has_no_fin = entry
                .pending_settings
                .as_ref()
                .is_some_and(|requested| requested.no_fin);
            if client_is_gone && !has_no_fin {
                // The client is gone.
                entry.pending_settings = None;
                entry.stop_sending(stack);
            }
            if let Some(settings) = entry.pending_settings.take() {
                entry.start_second_flow(stack, context, &settings, now);
                has_started |= entry.outgoing.is_some();
            }
        }
        self.0.retain(|entry| {
            let is_silent = now.saturating_sub(entry.last_activity_ns) > QUIET_NS;
            entry.incoming.is_some() || entry.outgoing.is_some() || !is_silent
        });
        has_started
    }
}

impl Iperf2Peer {
    /// Sends on the flow that the client opened.
    fn start_outgoing(
        &mut self,
        stack: &mut Stack,
        context: &FlowContext,
        settings: &Iperf2Settings,
        now: Nanos,
    ) {
        // With both directions, the client's datagrams must arrive at the service's socket.
        let local_socket = match settings.direction {
            Iperf2Direction::Both => None,
            _ => stack.udp_bind_pair(self.local, self.peer).ok(),
        };
        self.start_sender(
            stack,
            context.interop,
            (local_socket, self.peer),
            settings,
            now,
        );
    }

    /// Sends to the port on which the client listens.
    fn start_second_flow(
        &mut self,
        stack: &mut Stack,
        context: &FlowContext,
        settings: &Iperf2Settings,
        now: Nanos,
    ) {
        let unspecified: IpAddr = match self.peer.is_ipv4() {
            true => Ipv4Addr::UNSPECIFIED.into(),
            false => Ipv6Addr::UNSPECIFIED.into(),
        };
        let to = SocketAddr::new(self.peer.ip(), settings.port);
        let Ok(socket) = stack.udp_bind(SocketAddr::new(unspecified, 0)) else {
            return;
        };
        if stack.udp_connect(socket, to).is_err() {
            let _ = stack.close(socket);
            return;
        }
        self.start_sender(stack, context.interop, (Some(socket), to), settings, now);
    }

    fn start_sender(
        &mut self,
        stack: &mut Stack,
        interop: &InteropState,
        (socket, to): (Option<SocketId>, SocketAddr),
        settings: &Iperf2Settings,
        now: Nanos,
    ) {
        let wall_ahead_ns = clock::wall_offset();
        if let Some(socket) = socket {
            // Its payload has iperf2 headers where timestamps would be written.
            let _ = stack.udp_disable_stamps(socket);
        }
        let sender = Iperf2ReverseFlow::new(
            settings,
            self.peer,
            settings.dual.is_some(),
            now,
            wall_ahead_ns,
        );
        if sender.is_time_limited() {
            interop.reject_request(
                PROTOCOL.name,
                self.peer,
                &ErrorReport::new(
                    format!(
                        "datagrams are sent for at most {} s to a client without a TCP connection that \
                         would show it is still there",
                        send_time_limit_s()
                    ),
                    "a longer flow",
                    "use a shorter -t, or leave -u out",
                ),
            );
        }
        self.last_activity_ns = now;
        self.outgoing = Some(OutgoingFlow {
            sender,
            socket,
            destination: to,
        });
    }

    fn stop_sending(&mut self, stack: &mut Stack) {
        if let Some(socket) = self.outgoing.take().and_then(|outgoing| outgoing.socket) {
            let _ = stack.close(socket);
        }
    }
}

impl OutgoingFlow {
    /// Sends what is due; returns the number of bytes.
    fn send_due(&mut self, stack: &mut Stack, service: SocketId, now: Nanos) -> u64 {
        if let Some(local_socket) = self.socket {
            // Received data is discarded, but ICMP errors and responses to the end are counted.
            for _ in 0..MAX_BURST {
                match stack.udp_receive(local_socket, |_, _| ()) {
                    Poll::Ready(Ok(())) => self.sender.on_client_datagram(),
                    Poll::Ready(Err(_)) => self.sender.on_send_error(now),
                    Poll::Pending => break,
                }
            }
        }
        let (socket, to) = match self.socket {
            Some(local_socket) => (local_socket, None),
            None => (service, Some(self.destination)),
        };
        let mut sent = 0;
        for _ in 0..MAX_BURST {
            let Some(datagram) = self.sender.next_datagram(now) else {
                break;
            };
            let bytes = datagram.len();
            match stack.udp_send(socket, to, bytes, |payload| {
                payload.copy_from_slice(datagram)
            }) {
                Poll::Ready(Ok(_)) => {
                    self.sender.confirm_sent(now);
                    sent += bytes as u64;
                }
                Poll::Ready(Err(_)) => {
                    self.sender.on_send_error(now);
                    break;
                }
                Poll::Pending => break,
            }
        }
        sent
    }
}

/// Returns whether a flow may be sent to the client that requests it. Its address may be forged,
/// and the flow is far larger than the request. A rejection is logged.
fn is_send_permitted(
    stack: &Stack,
    interop: &InteropState,
    from: SocketAddr,
    settings: &Iperf2Settings,
) -> bool {
    interop.check_validated(PROTOCOL.name, from)
        && (settings.dual.is_none()
            || is_connect_back_permitted(stack, interop, from, settings.port))
}

/// Returns whether a port that a client names may be connected to. A rejection is logged.
pub fn is_connect_back_permitted(
    stack: &Stack,
    interop: &InteropState,
    client: SocketAddr,
    port: u16,
) -> bool {
    /// Alternative for the client.
    const ALTERNATIVE: &str = "use --full-duplex or -R at the client";
    let address = client.ip();
    if port == 0 || stack.addressing().is_local(address) {
        return false;
    }
    is_on_link(stack, address) || interop.may_connect_back(PROTOCOL.name, client, port, ALTERNATIVE)
}

#[cfg(test)]
mod tests;
