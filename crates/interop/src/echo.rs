//! Echo (RFC 862): round trips with any responder that returns received bytes.

use linerate_protocol::echo;
use linerate_record::plan::{Plan, RunKind};
use linerate_session::error::SessionError;
use linerate_workload::framing::Framing;
use linerate_workload::probes::echo_probe;

use super::setup_context::SetupContext;
use super::{ClientProtocol, ClientProtocolSpec, PlanRejection, round_trips};

/// Client of echo.
pub const SPEC: ClientProtocolSpec = ClientProtocolSpec {
    name: "echo",
    about: "round trips over TCP and UDP; every byte is compared",
    kinds: &[RunKind::Latency],
    port: echo::PORT,
    datagram_bytes: 64,
    reject: reject_plan,
    open,
};

fn reject_plan(plan: &Plan) -> Option<PlanRejection> {
    round_trips::reject_plan(plan, true)
}

fn open(context: &SetupContext<'_>) -> Result<Box<dyn ClientProtocol>, SessionError> {
    // Shorter than a request may be, because it only probes for a responder.
    round_trips::open_flows(context, "echo", &Framing::Linerate, |attempt| {
        let probe = echo_probe(attempt);
        (probe.clone(), probe)
    })
}
