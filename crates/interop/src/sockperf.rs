//! sockperf: round trips with `sockperf server`.

use linerate_protocol::sockperf::{HEADER_BYTES, MESSAGE_LIMIT_BYTES, PORT};
use linerate_record::plan::{Plan, RunKind};
use linerate_session::error::SessionError;
use linerate_workload::framing::Framing;
use linerate_workload::probes::sockperf_probe;

use super::setup_context::SetupContext;
use super::{ClientProtocol, ClientProtocolSpec, PlanRejection, first_rejection, round_trips};

/// Client of sockperf.
pub const SPEC: ClientProtocolSpec = ClientProtocolSpec {
    name: "sockperf",
    about: "round trips over TCP and UDP, like its ping-pong; the full round trip, not half",
    kinds: &[RunKind::Latency],
    port: PORT,
    datagram_bytes: 64,
    reject: reject_plan,
    open,
};

fn reject_plan(plan: &Plan) -> Option<PlanRejection> {
    let sizes = HEADER_BYTES as u64..=MESSAGE_LIMIT_BYTES as u64;
    first_rejection(&[(
        !sizes.contains(&plan.payload_bytes),
        "-l",
        "sockperf's messages have 14 to 65507 B",
    )])
    .or_else(|| round_trips::reject_plan(plan, false))
}

fn open(context: &SetupContext<'_>) -> Result<Box<dyn ClientProtocol>, SessionError> {
    round_trips::open_flows(context, "sockperf", &Framing::Sockperf, |attempt| {
        let probe = sockperf_probe(attempt);
        (probe.to_bytes().into(), probe.to_reply().to_bytes().into())
    })
}
