//! Round trips with responders: parts that their protocols share.

use std::net::SocketAddr;

use linerate_record::plan::{Direction, Plan, TransportProtocol};
use linerate_record::round_trip::SocketMode;
use linerate_session::error::SessionError;
use linerate_sys::clock;
use linerate_sys::clock::Nanos;
use linerate_workload::framing::Framing;

use super::flow_socket::FlowSocket;
use super::other_sender::OtherSenderWatch;
use super::setup_context::{SetupContext, flow_open_error};
use super::{ClientProtocol, ConnectedFlow, PlanRejection, first_rejection};

/// Attempts for a first response, and the timeout of each.
const PROBE_ATTEMPTS: u32 = 5;
const PROBE_TIMEOUT_NS: Nanos = 500_000_000;

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
}

/// Opens the flows of a protocol with requests as `framing` describes. `first` is a request that
/// must get a reply before the measurement starts, and `is_reply` recognises that reply.
pub fn open_flows(
    context: &SetupContext<'_>,
    name: &'static str,
    framing: &Framing,
    first: &[u8],
    is_reply: &dyn Fn(&[u8]) -> bool,
) -> Result<Box<dyn ClientProtocol>, SessionError> {
    let mut new_flows = Vec::new();
    for id in 1..=context.plan.streams {
        let socket = context.connect_flow(id, Direction::Send, context.remote.port())?;
        if id == 1 && context.plan.protocol == TransportProtocol::Udp {
            probe_responder(context, &socket, first, is_reply)?;
        }
        new_flows.push(ConnectedFlow {
            id,
            direction: Direction::Send,
            opening: socket.into_opening(),
            framing: framing.clone(),
        });
    }
    Ok(Box::new(RequestDriver { name, new_flows }))
}

/// Sends a request until it gets a reply.
fn probe_responder(
    context: &SetupContext<'_>,
    socket: &FlowSocket,
    request: &[u8],
    is_reply: &dyn Fn(&[u8]) -> bool,
) -> Result<(), SessionError> {
    let remote: SocketAddr = context.remote;
    let watch = OtherSenderWatch::open(socket);
    let mut buffer = vec![0; 1 << 16];
    for _ in 0..PROBE_ATTEMPTS {
        socket
            .send(request)
            .map_err(|error| flow_open_error(remote, error))?;
        let until = clock::now() + PROBE_TIMEOUT_NS;
        while context.wait_readable(socket, until)? {
            match socket.receive(&mut buffer) {
                Ok(bytes) if is_reply(&buffer[..bytes]) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(flow_open_error(remote, error)),
            }
        }
    }
    let timeout = context.udp_timeout(PROBE_TIMEOUT_NS * Nanos::from(PROBE_ATTEMPTS));
    Err(watch.explain(remote, timeout))
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

    fn agent(&self) -> String {
        self.name.to_owned()
    }
}
