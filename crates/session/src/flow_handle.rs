//! Handle of a running flow at one end, and readings of its counters.

use std::sync::Arc;

use linerate_record::facts::Role;
use linerate_record::plan::Direction;
use linerate_transport::SocketWatch;
use linerate_transport::flow_role::FlowRole;
use linerate_workload::flow::FlowShared;
use linerate_workload::flow_counters::PayloadTotals;

/// Handle of a running flow.
pub struct FlowHandle {
    pub id: u32,
    pub direction: Direction,
    pub role: FlowRole,
    /// State shared with the flow's thread.
    pub shared: Arc<FlowShared>,
    /// Observer of its socket, which keeps the descriptor open and closes it on drop.
    pub socket_watch: Option<SocketWatch>,
}

/// Finds a flow by number in `flows`, which are sorted by number.
#[must_use]
pub fn find_flow(flows: &[FlowHandle], id: u32) -> Option<&FlowHandle> {
    let index = flows.binary_search_by_key(&id, |flow| flow.id).ok()?;
    flows.get(index)
}

/// Counters of a flow or a direction at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct CounterReading {
    pub totals: PayloadTotals,
    /// Retransmitted TCP segments.
    pub retransmits: u64,
}

/// Returns the role of an end in a direction; directions are named from the client's side.
#[must_use]
pub fn flow_role(role: Role, direction: Direction) -> FlowRole {
    match (role, direction) {
        (Role::Client, Direction::Send) | (Role::Server, Direction::Receive) => FlowRole::Sender,
        (Role::Client, Direction::Receive) | (Role::Server, Direction::Send) => FlowRole::Receiver,
    }
}
