//! Socket options of a flow, derived from the plan and the role of this end.

use std::time::Duration;

use linerate_record::plan::{Plan, ReceiveCopy, RunKind, SendCopy};

use crate::flow_role::FlowRole;
use crate::socket_defaults::socket_with_defaults;
use crate::{FlowOptions, MAX_IDLE_NS, PeerAddressing};

/// Congestion control of the user-space stack that no kernel has. It concerns the sender: a kernel
/// that only receives is not checked for it.
pub const NETSTACK_ONLY_CONGESTION_CONTROL: &str = "none";

/// Returns the socket options of a flow at this end.
///
/// An accepted TCP socket gets its buffers after the handshake, which has fixed the window scale
/// from the kernel's defaults. A connecting socket gets them before.
#[must_use]
pub fn flow_options(plan: &Plan, flow_role: FlowRole) -> FlowOptions {
    let timeout_ns = match (plan.kind, flow_role) {
        // A requesting end sleeps until its response is overdue.
        (RunKind::Latency, FlowRole::Sender) => plan
            .response_timeout_ns
            .map_or(MAX_IDLE_NS, |timeout| timeout.min(MAX_IDLE_NS)),
        _ => MAX_IDLE_NS,
    };
    FlowOptions {
        protocol: plan.protocol,
        local: None,
        interface: None,
        socket_plan: socket_with_defaults(plan, flow_role),
        congestion_control: plan
            .congestion_control
            .clone()
            .filter(|_| plan.congestion_control_requested)
            .filter(|name| {
                flow_role == FlowRole::Sender || name != NETSTACK_ONLY_CONGESTION_CONTROL
            }),
        segment_bytes: (flow_role == FlowRole::Sender && plan.udp_offload.gso == Some(true))
            .then(|| u16::try_from(plan.payload_bytes).ok())
            .flatten(),
        gro: flow_role == FlowRole::Receiver && plan.udp_offload.gro == Some(true),
        batch: plan.batch,
        force_buffers: false,
        busy_poll: None,
        zero_copy: flow_role == FlowRole::Sender && plan.copies.send == SendCopy::ZeroCopy,
        receive_in_place: flow_role == FlowRole::Receiver
            && plan.copies.receive == ReceiveCopy::Discarded,
        paced: false,
        max_rate: None,
        departure_clock: None,
        timeout: Duration::from_nanos(timeout_ns),
        addressing: PeerAddressing::Connected,
        multicast_hops: plan.round_trip.group.as_ref().map_or(1, |group| group.ttl),
    }
}
