//! sockperf: round trips with `sockperf server`.

use linerate_dialect::sockperf::{HEADER_BYTES, Header, MESSAGE_LIMIT_BYTES, PORT};
use linerate_metric::plan::{Kind, Plan};

use super::setup_context::Context;
use super::{Caller, Refusal, Speech, first, round_trips};
use crate::error::MeasureError;
use crate::interop::framing::Framing;

/// Client of sockperf.
pub const CALLER: Caller = Caller {
    name: "sockperf",
    about: "round trips over TCP and UDP, like its ping-pong; the full round trip, not half",
    kinds: &[Kind::Latency],
    port: PORT,
    datagram_bytes: 64,
    refuse,
    open,
};

fn refuse(plan: &Plan) -> Option<Refusal> {
    let sizes = HEADER_BYTES as u64..=MESSAGE_LIMIT_BYTES as u64;
    first(&[(
        !sizes.contains(&plan.payload_bytes),
        "-l",
        "sockperf's messages have 14 to 65507 B",
    )])
    .or_else(|| round_trips::refuse(plan, false))
}

fn open(context: &Context<'_>) -> Result<Box<dyn Speech>, MeasureError> {
    let question = Header::question(1, HEADER_BYTES as u32);
    let is_answer = |answer: &[u8]| Header::read(answer) == Some(question.answered());
    let first = question.bytes();
    round_trips::open(context, "sockperf", &Framing::Sockperf, &first, &is_answer)
}
