//! Services over UDP.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::task::Poll;

use linerate_protocol::amplification_guard::{RecentReplies, ReturnedReply};
use linerate_protocol::sockperf::SockperfDatagram;
use linerate_protocol::{chargen, echo, sockperf};
use linerate_record::stack::ServiceFigures;
use linerate_stack::{DatagramMeta, EchoResult, SocketId, Stack, StackError};
use linerate_sys::clock::Nanos;

use super::iperf2_udp::{FlowContext, Iperf2Flows};
use super::tcp_connection::NextStep;
use super::{ServiceKind, ServiceSpec};
use crate::interop_state::InteropState;

/// Largest number of datagrams per round; the stack is polled in between.
const MAX_BURST: usize = 32;

/// UDP socket of a service.
pub struct UdpService {
    socket: SocketId,
    port: u16,
    kind: ServiceKind,
    protocol: UdpProtocol,
    returned: ReturnedRequests,
}

/// Requests that repeat recent responses of a service.
struct ReturnedRequests {
    protocol: &'static str,
    recent: RecentReplies,
    /// Peer to be checked next, and the socket of the last check with its peer.
    to_check: Option<SocketAddr>,
    check: Option<(SocketId, SocketAddr)>,
}

enum UdpProtocol {
    InFrame(FrameResponder),
    Discard,
    Chargen { line: u64 },
    Iperf2(Iperf2Flows),
}

/// Services that respond in the frame of the request, with at most its length.
enum FrameResponder {
    Echo,
    Sockperf(Box<sockperf::SockperfServer>),
}

impl UdpService {
    /// Creates the service; `stamped` are the bytes of a response in which the stack writes times.
    pub fn new(spec: ServiceSpec, socket: SocketId, stamped: Option<Range<usize>>) -> Self {
        Self {
            socket,
            port: spec.port,
            kind: spec.kind,
            returned: ReturnedRequests {
                protocol: spec.kind.name(),
                recent: RecentReplies::new(stamped),
                to_check: None,
                check: None,
            },
            protocol: match spec.kind {
                ServiceKind::Echo => UdpProtocol::InFrame(FrameResponder::Echo),
                // Sockets of the linerate service are handled by the acceptor.
                ServiceKind::Discard | ServiceKind::Linerate => UdpProtocol::Discard,
                ServiceKind::Chargen => UdpProtocol::Chargen { line: 0 },
                ServiceKind::Sockperf => {
                    UdpProtocol::InFrame(FrameResponder::Sockperf(Box::default()))
                }
                ServiceKind::Iperf2 => UdpProtocol::Iperf2(Iperf2Flows::new()),
            },
        }
    }

    pub fn socket(&self) -> SocketId {
        self.socket
    }

    /// Receives up to a burst and sends what is due; returns when to continue.
    pub fn step(
        &mut self,
        stack: &mut Stack,
        now: Nanos,
        buffer: &mut [u8],
        interop: &InteropState,
        figures: &mut ServiceFigures,
    ) -> NextStep {
        let has_more = self.receive(stack, now, buffer, interop, figures);
        self.returned.check_peers(stack, now, interop);
        let context = self.flow_context(interop);
        let next = match &mut self.protocol {
            UdpProtocol::Iperf2(flows) => flows.send_due(stack, &context, now, figures),
            _ => NextStep::Wait,
        };
        match has_more {
            true => NextStep::Ready,
            false => next,
        }
    }

    fn flow_context<'a>(&self, interop: &'a InteropState) -> FlowContext<'a> {
        FlowContext {
            socket: self.socket,
            port: self.port,
            interop,
        }
    }

    /// Receives up to a burst; returns whether there may be more.
    fn receive(
        &mut self,
        stack: &mut Stack,
        now: Nanos,
        buffer: &mut [u8],
        interop: &InteropState,
        figures: &mut ServiceFigures,
    ) -> bool {
        let context = self.flow_context(interop);
        for _ in 0..MAX_BURST {
            // A request stays in the socket's queue while its response could not be sent.
            if self.protocol.responds() && !stack.udp_can_send() {
                return stack
                    .udp_queued(self.socket)
                    .is_ok_and(|waiting| waiting > 0);
            }
            match self.echo(stack, now, interop, figures) {
                Poll::Ready(Ok(EchoResult::Sent(_))) => {
                    if self.flush_last(stack) {
                        return false;
                    }
                    continue;
                }
                Poll::Ready(Ok(EchoResult::StillQueued)) => {}
                // An ICMP error for an earlier response does not end the service.
                Poll::Ready(Ok(EchoResult::Ignored) | Err(_)) => continue,
                Poll::Pending => return false,
            }
            let received = stack.udp_receive(self.socket, |payload, meta| {
                let bytes = payload.len().min(buffer.len());
                buffer[..bytes].copy_from_slice(&payload[..bytes]);
                (bytes, meta)
            });
            let (bytes, meta) = match received {
                Poll::Ready(Ok(received)) => received,
                // An ICMP error for an earlier response does not end the service.
                Poll::Ready(Err(_)) => continue,
                Poll::Pending => return false,
            };
            figures.datagrams += 1;
            figures.bytes_received += bytes as u64;
            let request = self.returned.recent.digest(meta.from, &buffer[..bytes]);
            let response_bytes =
                (self.protocol).respond(stack, &context, now, &meta, &mut buffer[..bytes]);
            // A response to a service's port would be responded to forever.
            let Some(response_bytes) =
                response_bytes.filter(|_| self.returned.permits(now, request, meta.from, interop))
            else {
                continue;
            };
            let response = &buffer[..response_bytes];
            let recent = &mut self.returned.recent;
            recent.insert(recent.digest(meta.from, response));
            let sent = stack.udp_send(self.socket, Some(meta.from), response_bytes, |frame| {
                frame.copy_from_slice(response);
            });
            match sent {
                Poll::Ready(Ok(_)) => figures.bytes_sent += response_bytes as u64,
                // Too long for the stack, unreachable, or no buffer.
                Poll::Ready(Err(_)) | Poll::Pending => figures.responses_lost += 1,
            }
            if self.flush_last(stack) {
                return false;
            }
        }
        true
    }

    /// Responds to a request in its frame, if the service does that.
    #[inline]
    fn echo(
        &mut self,
        stack: &mut Stack,
        now: Nanos,
        interop: &InteropState,
        figures: &mut ServiceFigures,
    ) -> Poll<Result<EchoResult, StackError>> {
        let UdpProtocol::InFrame(service) = &mut self.protocol else {
            return Poll::Ready(Ok(EchoResult::StillQueued));
        };
        let (returned, kind) = (&mut self.returned, self.kind);
        let echoed = stack.udp_echo(self.socket, None, |datagram, meta| {
            figures.datagrams += 1;
            figures.bytes_received += datagram.len() as u64;
            let request = returned.recent.digest(meta.from, datagram);
            let response_bytes = service.respond(datagram)?;
            if !returned.permits(now, request, meta.from, interop) {
                return None;
            }
            // A response of sockperf is no request, because its flags differ.
            if kind == ServiceKind::Echo {
                returned.recent.insert(request);
            }
            Some(response_bytes)
        });
        if let Poll::Ready(Ok(EchoResult::Sent(bytes))) = &echoed {
            figures.bytes_sent += *bytes as u64;
        }
        echoed
    }

    /// Transmits the last response at once; returns whether no request is waiting.
    #[inline]
    fn flush_last(&self, stack: &mut Stack) -> bool {
        let is_last = matches!(stack.udp_queued(self.socket), Ok(0));
        if is_last {
            stack.flush_frames();
        }
        is_last
    }

    /// Removes flows that have ended; returns whether one was started, which continues at a time.
    pub fn poll_timers(&mut self, stack: &mut Stack, interop: &InteropState, now: Nanos) -> bool {
        let context = self.flow_context(interop);
        match &mut self.protocol {
            UdpProtocol::Iperf2(flows) => flows.poll_timers(stack, &context, now),
            _ => false,
        }
    }
}

impl ReturnedRequests {
    /// Returns whether a request, with its digest, may be responded to: its sender is no service
    /// that responds to the response.
    #[inline]
    fn permits(
        &mut self,
        now: Nanos,
        request: u64,
        from: SocketAddr,
        interop: &InteropState,
    ) -> bool {
        echo::may_reply_to(from.port(), interop.ports())
            && (!self.recent.contains(request) || self.permits_again(now, from, interop))
    }

    #[cold]
    fn permits_again(&mut self, now: Nanos, from: SocketAddr, interop: &InteropState) -> bool {
        match interop.count_returned(self.protocol, now, from) {
            ReturnedReply::Send => true,
            ReturnedReply::SendAndCheck => {
                self.to_check = Some(from);
                true
            }
            ReturnedReply::Reject => false,
        }
    }

    /// Sends a byte from a port of its own to a peer that may be a service, and looks for a response
    /// to the last one: the connected socket of a client does not receive it.
    fn check_peers(&mut self, stack: &mut Stack, now: Nanos, interop: &InteropState) {
        if let Some((socket, peer)) = self.check {
            let responded = stack.udp_receive(socket, |_, _| ());
            if let Poll::Ready(Ok(())) = responded {
                interop.mark_service(now, peer.ip());
            }
            if responded.is_ready() || self.to_check.is_some() {
                let _ = stack.close(socket);
                self.check = None;
            }
        }
        let Some(peer) = self.to_check.take() else {
            return;
        };
        let unspecified: IpAddr = match peer.is_ipv4() {
            true => Ipv4Addr::UNSPECIFIED.into(),
            false => Ipv6Addr::UNSPECIFIED.into(),
        };
        let Ok(socket) = stack.udp_bind(SocketAddr::new(unspecified, 0)) else {
            return;
        };
        let _ = stack.udp_connect(socket, peer);
        let _ = stack.udp_send(socket, None, 1, |payload| payload.copy_from_slice(b"?"));
        self.check = Some((socket, peer));
    }
}

impl UdpProtocol {
    fn responds(&self) -> bool {
        !matches!(self, Self::Discard)
    }

    /// Handles a datagram and writes the response over it; returns the response's length.
    #[inline]
    fn respond(
        &mut self,
        stack: &mut Stack,
        context: &FlowContext,
        now: Nanos,
        meta: &DatagramMeta,
        datagram: &mut [u8],
    ) -> Option<usize> {
        match self {
            Self::InFrame(service) => service.respond(datagram),
            Self::Discard => None,
            Self::Chargen { line } => {
                let bytes = chargen::reply(datagram.len(), *line, datagram);
                *line += 1;
                Some(bytes)
            }
            Self::Iperf2(flows) => flows.handle_datagram(stack, context, now, meta, datagram),
        }
    }
}

impl FrameResponder {
    /// Writes the response over a request; returns its length.
    #[inline]
    fn respond(&mut self, datagram: &mut [u8]) -> Option<usize> {
        match self {
            Self::Echo => Some(datagram.len()),
            Self::Sockperf(server) => match server.receive_datagram(datagram) {
                SockperfDatagram::Reply(_) => Some(datagram.len()),
                SockperfDatagram::Counted(_) | SockperfDatagram::Ignored => None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use linerate_record::stack::ServiceFigures;
    use linerate_stack::Stack;
    use linerate_sys::clock;
    use linerate_transport::stack_thread::stack_service::StackService;
    use linerate_transport::test_support;

    use super::super::{ServiceContext, StackServices};
    use super::*;

    const REQUESTS: usize = 24;

    /// Sends a number of requests at once to the echo service of a stack with this setting. Returns
    /// the figures of the service when all are settled, and the number of responses.
    fn request_at_once(name: &str, bytes: usize, setting: (&str, &str)) -> (ServiceFigures, usize) {
        let mut stacks = test_support::stack_pair_with(name, &[setting]);
        let specs = vec!["echo".parse().unwrap()];
        let mut services =
            StackServices::open(&mut stacks[1], specs, ServiceContext::default()).unwrap();
        let to = SocketAddr::from(([10, 9, 0, 2], echo::PORT));
        let socket = stacks[0].udp_bind(SocketAddr::from(([0; 4], 0))).unwrap();
        let (mut sent, mut received) = (0, 0);
        let mut serve = |server: &mut Stack| {
            let now = clock::now();
            while let Some(socket) = server.next_ready() {
                services.on_socket_change(server, socket, now);
            }
            services.run_ready(server, now);
            services.figures().remove(0)
        };
        // The ARP queue holds few frames, so the address is resolved first.
        test_support::poll_until(&mut stacks, |[client, _]| {
            client.resolve_next_hop(to.ip()).unwrap().1
        });
        // All requests wait at the service before it handles the first.
        test_support::poll_until(&mut stacks, |[client, server]| {
            while sent < REQUESTS
                && client
                    .udp_send(socket, Some(to), bytes, |payload| payload.fill(7))
                    .is_ready()
            {
                sent += 1;
            }
            server.counters().udp.in_datagrams == REQUESTS as u64
        });
        let mut figures = ServiceFigures::default();
        test_support::poll_until(&mut stacks, |[client, server]| {
            figures = serve(server);
            let mut take =
                || client.udp_receive(socket, |response, _| assert_eq!(response.len(), bytes));
            while let Poll::Ready(Ok(())) = take() {
                received += 1;
            }
            received + figures.responses_lost as usize == REQUESTS
        });
        (figures, received)
    }

    /// Responses without space used to be dropped: only four arrived.
    #[test]
    fn a_request_waits_until_its_response_has_space() {
        // In one frame, and in three.
        for (name, bytes) in [("answers", 64), ("long-answers", 4_000)] {
            let (figures, received) = request_at_once(name, bytes, ("tx_descriptors", "4"));
            assert_eq!(
                (received, figures.responses_lost),
                (REQUESTS, 0),
                "{bytes} B"
            );
            assert_eq!(figures.bytes_sent, (REQUESTS * bytes) as u64);
        }
    }

    #[test]
    fn an_unsendable_response_is_counted() {
        let (figures, received) = request_at_once("no-answers", 4_000, ("ip.fragmentation", "off"));
        assert_eq!((received, figures.responses_lost), (0, REQUESTS as u64));
        assert_eq!(
            (figures.datagrams, figures.bytes_sent),
            (REQUESTS as u64, 0)
        );
    }
}
