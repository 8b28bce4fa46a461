//! The kernel granted a smaller buffer than requested.

use linerate_record::facts::Role;
use linerate_record::finding::Finding;
use linerate_record::ids::{CauseId, LossPoint};
use linerate_record::plan::{RunKind, TransportProtocol};
use linerate_record::record::FlowEnd;
use linerate_stats::units::format_bytes;

use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, percent};
use crate::run_view::{DirectionView, RunView};

/// Cost from which it is a cause.
const MIN_RELEVANT_SHARE: f64 = 0.02;

/// Granted over requested size below which it was limited: the kernel doubles it (socket(7)).
const MIN_GRANTED_FACTOR: f64 = 1.9;

/// Idle time from which a larger buffer helps a stream.
const MIN_IDLE_SHARE: f64 = 0.1;

/// See docs/CAUSES.md#socket-buffer-cap.
pub struct SocketBufferCap;

impl Rule for SocketBufferCap {
    fn id(&self) -> CauseId {
        CauseId::SocketBufferCap
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "The kernel grants a smaller buffer than was requested.",
            shown_when: vec![detection(
                "TCP and UDP",
                [
                    format!(
                        "SO_RCVBUF or SO_SNDBUF is below {MIN_GRANTED_FACTOR} times the requested \
                         size, which the kernel doubles"
                    ),
                    "the limit (`net.core.rmem_max`, `net.core.wmem_max`) is below the requested \
                     size, or unknown"
                        .into(),
                ],
            )],
            limit_when: vec![
                format!("the cost is below {}", percent(MIN_RELEVANT_SHARE)),
                format!(
                    "TCP: the end has {} idle time at most",
                    percent(MIN_IDLE_SHARE)
                ),
            ],
            not_when: vec!["the user-space stack is the end: it has no such limit".into()],
            evidence: &[
                ("requested size", "B"),
                ("SO_SNDBUF", "B"),
                ("SO_RCVBUF", "B"),
                ("net.core.wmem_max", "B"),
                ("net.core.rmem_max", "B"),
            ],
            cost: vec![
                "TCP: share of the time limited by the buffer.".into(),
                "UDP: share of the datagrams lost at the socket.".into(),
                "Zero if the path is full.".into(),
            ],
            remedy: vec![
                "Raise the limit in the initial network namespace, or run with CAP_NET_ADMIN."
                    .into(),
            ],
            wrong_when: vec!["the program requested more than it needs".into()],
            ..CauseReference::cause()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        if run.plan.kind != RunKind::Throughput {
            return Vec::new();
        }
        let directions = run.directions.iter();
        directions
            .flat_map(|direction| {
                [
                    self.evaluate_flow_end(run, direction, FlowEnd::Sender),
                    self.evaluate_flow_end(run, direction, FlowEnd::Receiver),
                ]
            })
            .flatten()
            .collect()
    }
}

impl SocketBufferCap {
    fn evaluate_flow_end(
        &self,
        run: &RunView<'_>,
        direction: &DirectionView<'_>,
        part: FlowEnd,
    ) -> Option<Finding> {
        // Our stack has no such limit: its buffers have their configured size.
        let role = match part {
            FlowEnd::Sender => direction.sender,
            FlowEnd::Receiver => direction.receiver,
        };
        if direction.uses_netstack(role) {
            return None;
        }
        let socket = &run.plan.socket;
        let window_bytes = run.plan.window_bytes;
        let (role, requested, granted, option, limit): (Role, _, _, _, _) = match part {
            FlowEnd::Sender => (
                direction.sender,
                socket.send_buffer_bytes.or(window_bytes)?,
                direction.send_buffer()?,
                "SO_SNDBUF",
                "net.core.wmem_max",
            ),
            FlowEnd::Receiver => (
                direction.receiver,
                socket.receive_buffer_bytes.or(window_bytes)?,
                direction.receive_buffer()?,
                "SO_RCVBUF",
                "net.core.rmem_max",
            ),
        };
        if granted as f64 >= MIN_GRANTED_FACTOR * requested as f64 {
            return None;
        }
        let most = run.sysctl(role, limit);
        if most.is_some_and(|most| most >= requested) {
            return None;
        }
        let free = direction
            .thread_time(part)
            .map_or(0.0, |time| time.free_share());
        let cost = match (run.plan.protocol, part) {
            (TransportProtocol::Tcp, FlowEnd::Receiver) => direction
                .tcp()
                .map_or(0.0, |tcp| tcp.receive_window_limited),
            (TransportProtocol::Tcp, FlowEnd::Sender) => direction.tcp().map_or(0.0, |tcp| {
                tcp.send_buffer_limited
                    .max((1.0 - tcp.busy_share.unwrap_or(1.0)).min(free))
            }),
            (TransportProtocol::Udp, FlowEnd::Receiver) => {
                direction.lost_share(LossPoint::UdpReceiveQueue)
            }
            (TransportProtocol::Udp, FlowEnd::Sender) => {
                direction.sender_socket_drops() as f64 / direction.packets_sent()
            }
        };
        let cost = if direction.fills_path() { 0.0 } else { cost };
        // A larger buffer does not help a thread without idle time.
        let is_relevant = cost >= MIN_RELEVANT_SHARE
            && (free > MIN_IDLE_SHARE || run.plan.protocol == TransportProtocol::Udp);
        FindingBuilder::limit_if(!is_relevant, self.id(), role)
            .direction(direction.direction)
            .cost(cost)
            .summary(format!(
                "a buffer of {} was requested, and the {}'s kernel grants at most {}",
                format_bytes(requested),
                role.as_str(),
                format_bytes(granted / 2)
            ))
            .evidence("requested size", requested, "B", "plan")
            .evidence(option, granted, "B", format!("{} socket", role.as_str()))
            .evidence_if(limit, most, "B", format!("{} sysctl", role.as_str()))
            .remedy(format!(
                "raise the limit of the {}'s kernel (in its initial network namespace), or run as \
                 root",
                role.as_str()
            ))
            .command(super::sysctl_command(limit, requested))
            .estimated_gain(
                (is_relevant.then(|| requested as f64 * 2.0 / granted.max(1) as f64))
                    .and_then(|wider| super::within_headroom(direction, wider)),
                format!(
                    "window / round-trip time: at most requested over granted size, and {}",
                    super::HEADROOM_FORMULA
                ),
            )
            .build()
    }
}
