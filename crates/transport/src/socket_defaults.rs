//! Socket options that the plan leaves open: buffers and Nagle's algorithm.

use linerate_record::plan::{Plan, RunKind, SocketPlan, TransportProtocol};

use crate::flow_role::FlowRole;

/// Default receive buffer of a UDP receiver: the kernel's default of 208 KiB holds three large
/// datagrams, and drops there look like loss on the path. The kernel grants at most
/// net.core.rmem_max.
const DEFAULT_UDP_RECEIVE_BUFFER_BYTES: u64 = 4 << 20;

/// Returns the socket options of the plan, with defaults where it has none.
pub(crate) fn socket_with_defaults(plan: &Plan, flow_role: FlowRole) -> SocketPlan {
    let mut socket = plan.socket.clone();
    socket.send_buffer_bytes = socket.send_buffer_bytes.or(plan.window_bytes);
    socket.receive_buffer_bytes = socket.receive_buffer_bytes.or(plan.window_bytes);
    if plan.kind == RunKind::Throughput
        && plan.protocol == TransportProtocol::Udp
        && flow_role == FlowRole::Receiver
    {
        socket
            .receive_buffer_bytes
            .get_or_insert(DEFAULT_UDP_RECEIVE_BUFFER_BYTES);
    }
    socket.no_delay |= plan.kind == RunKind::Latency;
    socket
}
