//! Round trips with responders: parts that their protocols share.

use std::net::SocketAddr;

use linerate_host::sys::clock::{self, Nanos};
use linerate_metric::plan::{Direction, Plan, Protocol};
use linerate_metric::round_trip::Attachment;

use super::flow_socket::FlowSocket;
use super::setup_context::{Context, failed};
use super::{CalledFlow, Refusal, Speech, first};
use crate::error::MeasureError;
use crate::interop::framing::Framing;

/// Attempts for a first response, and the timeout of each.
const TRIES: u32 = 5;
const TRY_NS: Nanos = 500_000_000;

/// Rejects options that need our own server, or a reply that is a copy of the request.
pub fn refuse(plan: &Plan, echoes: bool) -> Option<Refusal> {
    first(&[
        (
            plan.round_trip.attachment == Attachment::Reopened,
            "--reopen",
            "its sockets stay for the whole test",
        ),
        (
            !echoes && plan.round_trip.is_open(),
            "--rate or --outstanding",
            "it sends one request at a time",
        ),
        (
            !echoes && plan.round_trip.attachment == Attachment::Unconnected,
            "--unconnected",
            "its sockets are connected",
        ),
    ])
    .or_else(|| {
        let unconnected = plan.round_trip.attachment == Attachment::Unconnected;
        first(&[(
            unconnected,
            "--unconnected",
            "without a token, replies of any host would count",
        )])
    })
}

/// Client that sends requests.
pub struct Asking {
    name: &'static str,
    called: Vec<CalledFlow>,
}

/// Opens the flows of a protocol with requests as `framing` describes. `first` is a request that
/// must get a reply before the measurement starts, and `is_reply` recognises that reply.
pub fn open(
    context: &Context<'_>,
    name: &'static str,
    framing: &Framing,
    first: &[u8],
    is_answer: &dyn Fn(&[u8]) -> bool,
) -> Result<Box<dyn Speech>, MeasureError> {
    let mut called = Vec::new();
    for id in 1..=context.plan.streams {
        let socket = context.flow(id, Direction::Send, context.far.port())?;
        if id == 1 && context.plan.protocol == Protocol::Udp {
            probe(context, &socket, first, is_answer)?;
        }
        called.push(CalledFlow {
            id,
            direction: Direction::Send,
            opening: socket.opening(),
            framing: framing.clone(),
        });
    }
    Ok(Box::new(Asking { name, called }))
}

/// Sends a request until it gets a reply.
fn probe(
    context: &Context<'_>,
    socket: &FlowSocket,
    question: &[u8],
    is_answer: &dyn Fn(&[u8]) -> bool,
) -> Result<(), MeasureError> {
    let far: SocketAddr = context.far;
    let mut room = vec![0; 1 << 16];
    for _ in 0..TRIES {
        socket.send(question).map_err(|error| failed(far, error))?;
        let until = clock::now() + TRY_NS;
        while context.readable(socket, until)? {
            match socket.receive(&mut room) {
                Ok(bytes) if is_answer(&room[..bytes]) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(failed(far, error)),
            }
        }
    }
    Err(context.silent(TRY_NS * Nanos::from(TRIES)))
}

impl Speech for Asking {
    fn flows(&mut self) -> Vec<CalledFlow> {
        std::mem::take(&mut self.called)
    }

    fn turn(&mut self, _: Nanos) -> Result<(), MeasureError> {
        Ok(())
    }

    fn stop(&mut self, _: Nanos, _early: bool) {}

    fn is_over(&self) -> bool {
        true
    }

    fn agent(&self) -> String {
        self.name.to_owned()
    }
}
