//! Echo (RFC 862): round trips with any responder that returns received bytes.

use linerate_dialect::echo;
use linerate_metric::plan::{Kind, Plan};

use super::setup_context::Context;
use super::{Caller, Refusal, Speech, round_trips};
use crate::error::MeasureError;
use crate::interop::framing::Framing;
use crate::interop::probes::MARK;

/// Client of echo.
pub const CALLER: Caller = Caller {
    name: "echo",
    about: "round trips over TCP and UDP; every byte is compared",
    kinds: &[Kind::Latency],
    port: echo::PORT,
    datagram_bytes: 64,
    refuse,
    open,
};

fn refuse(plan: &Plan) -> Option<Refusal> {
    round_trips::refuse(plan, true)
}

fn open(context: &Context<'_>) -> Result<Box<dyn Speech>, MeasureError> {
    // Shorter than a request may be, because it only probes for a responder.
    round_trips::open(context, "echo", &Framing::Own, MARK, &|answer| {
        answer == MARK
    })
}
