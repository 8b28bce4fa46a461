//! Echo (RFC 862): round trips against anything that sends back what it gets.

use linerate_dialect::echo;
use linerate_metric::plan::{Kind, Plan};

use super::context::Context;
use super::{Caller, Refusal, Speech, questions};
use crate::error::MeasureError;
use crate::peers::framing::Framing;
use crate::peers::probes::MARK;

/// Calling echo.
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
    questions::refuse(plan, true)
}

fn open(context: &Context<'_>) -> Result<Box<dyn Speech>, MeasureError> {
    // Not as long as a question may be: whether anybody is there is all that is asked.
    questions::open(context, "echo", &Framing::Own, MARK, &|answer| {
        answer == MARK
    })
}
