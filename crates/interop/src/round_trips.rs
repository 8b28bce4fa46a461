//! Round trips with responders: parts that their protocols share.

use std::net::SocketAddr;

use linerate_record::plan::{Direction, Plan, TransportProtocol};
use linerate_record::round_trip::SocketMode;
use linerate_session::error::SessionError;
use linerate_sys::clock;
use linerate_sys::clock::Nanos;
use linerate_workload::framing::Framing;
use linerate_workload::probes::RESPONDER_PROBES;

use super::flow_socket::FlowSocket;
use super::other_sender::OtherSenderWatch;
use super::setup_context::{SETUP_TIMEOUT_NS, SetupContext, flow_open_error};
use super::{ClientProtocol, ConnectedFlow, PlanRejection, first_rejection};

/// Time after which a probe is repeated, because one may be lost. The replies to all of them are
/// awaited for [`SETUP_TIMEOUT_NS`], as an answer to a connect is.
const PROBE_INTERVAL_NS: Nanos = 500_000_000;
const _: () = assert!(PROBE_INTERVAL_NS * (RESPONDER_PROBES as Nanos) < SETUP_TIMEOUT_NS);

/// Rejects options that need our own server, or a reply that is a copy of the request.
pub fn reject_plan(plan: &Plan, replies_are_copies: bool) -> Option<PlanRejection> {
    first_rejection(&[
        (
            plan.round_trip.socket_mode == SocketMode::Reopened,
            "--reopen",
            "its sockets stay for the whole test",
        ),
        (
            !replies_are_copies && plan.round_trip.is_pipelined(),
            "--rate or --outstanding",
            "it sends one request at a time",
        ),
        (
            !replies_are_copies && plan.round_trip.socket_mode == SocketMode::Unconnected,
            "--unconnected",
            "its sockets are connected",
        ),
    ])
    .or_else(|| {
        let unconnected = plan.round_trip.socket_mode == SocketMode::Unconnected;
        first_rejection(&[(
            unconnected,
            "--unconnected",
            "without a token, replies of any host would count",
        )])
    })
}

/// Client that sends requests.
pub struct RequestDriver {
    name: &'static str,
    new_flows: Vec<ConnectedFlow>,
    /// Time of the first connect, or of the reply to a probe.
    rtt_ns: Nanos,
}

/// Probe of a responder, and its reply, by attempt.
pub type ResponderProbe = fn(attempt: u8) -> (Vec<u8>, Vec<u8>);

/// Opens the flows of a protocol with requests as `framing` describes. Over UDP a probe must get its
/// reply before the measurement starts.
pub fn open_flows(
    context: &SetupContext<'_>,
    name: &'static str,
    framing: &Framing,
    probe: ResponderProbe,
) -> Result<Box<dyn ClientProtocol>, SessionError> {
    let mut new_flows = Vec::new();
    let mut rtt_ns = 0;
    for id in 1..=context.plan.streams {
        let start_ns = clock::now();
        let socket = context.connect_flow(id, Direction::Send, context.remote.port())?;
        if id == 1 {
            rtt_ns = match context.plan.protocol {
                TransportProtocol::Tcp => clock::now().saturating_sub(start_ns),
                TransportProtocol::Udp => probe_responder(context, &socket, probe)?,
            };
        }
        new_flows.push(ConnectedFlow {
            id,
            direction: Direction::Send,
            opening: socket.into_opening(),
            framing: framing.clone(),
        });
    }
    Ok(Box::new(RequestDriver {
        name,
        new_flows,
        rtt_ns,
    }))
}

/// Sends probes until one gets its reply; returns the time that it took.
fn probe_responder(
    context: &SetupContext<'_>,
    socket: &FlowSocket,
    probe: ResponderProbe,
) -> Result<Nanos, SessionError> {
    let remote: SocketAddr = context.remote;
    let watch = OtherSenderWatch::open(socket);
    let mut buffer = vec![0; 1 << 16];
    let mut sent = Vec::new();
    let end_ns = clock::now() + SETUP_TIMEOUT_NS;
    for attempt in 0..RESPONDER_PROBES {
        let (request, reply) = probe(attempt);
        sent.push((reply, clock::now()));
        socket
            .send(&request)
            .map_err(|error| flow_open_error(remote, error))?;
        let until = match attempt + 1 == RESPONDER_PROBES {
            true => end_ns,
            false => clock::now() + PROBE_INTERVAL_NS,
        };
        while context.wait_readable(socket, until)? {
            match socket.receive(&mut buffer) {
                Ok(bytes) => {
                    let received_ns = clock::now();
                    if let Some((_, sent_ns)) =
                        sent.iter().find(|(reply, _)| *reply == buffer[..bytes])
                    {
                        return Ok(received_ns.saturating_sub(*sent_ns));
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(flow_open_error(remote, error)),
            }
        }
    }
    Err(watch.explain(remote, context.udp_timeout(SETUP_TIMEOUT_NS)))
}

impl ClientProtocol for RequestDriver {
    fn flows(&mut self) -> Vec<ConnectedFlow> {
        std::mem::take(&mut self.new_flows)
    }

    fn poll(&mut self, _: Nanos) -> Result<(), SessionError> {
        Ok(())
    }

    fn stop(&mut self, _: Nanos, _early: bool) {}

    fn is_finished(&self) -> bool {
        true
    }

    fn rtt_ns(&self) -> Option<Nanos> {
        Some(self.rtt_ns)
    }

    fn agent(&self) -> String {
        self.name.to_owned()
    }
}
