//! The kernel granted a smaller buffer than requested.

use linerate_metric::facts::Role;
use linerate_metric::finding::Finding;
use linerate_metric::plan::{Kind, Protocol};
use linerate_metric::record::CountedAt;
use linerate_metric::units::format_bytes;

use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, Way, name};

/// Cost from which it is a cause.
const MATTERS: f64 = 0.02;

/// See docs/CAUSES.md#socket-buffer-cap.
pub struct SocketBufferCap;

impl Rule for SocketBufferCap {
    fn id(&self) -> &'static str {
        "socket-buffer-cap"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        if case.plan.kind != Kind::Throughput {
            return Vec::new();
        }
        let ways = case.ways.iter();
        ways.flat_map(|way| {
            [
                self.of(case, way, CountedAt::Sender),
                self.of(case, way, CountedAt::Receiver),
            ]
        })
        .flatten()
        .collect()
    }
}

impl SocketBufferCap {
    fn of(&self, case: &Case<'_>, way: &Way<'_>, part: CountedAt) -> Option<Finding> {
        // Our stack has no such limit: its buffers have their configured size.
        let role = match part {
            CountedAt::Sender => way.sender,
            CountedAt::Receiver => way.receiver,
        };
        if way.is_own_stack(role) {
            return None;
        }
        let socket = &case.plan.socket;
        let both = case.plan.window_bytes;
        let (role, asked, granted, option, limit): (Role, _, _, _, _) = match part {
            CountedAt::Sender => (
                way.sender,
                socket.send_buffer_bytes.or(both)?,
                way.send_buffer()?,
                "SO_SNDBUF",
                "net.core.wmem_max",
            ),
            CountedAt::Receiver => (
                way.receiver,
                socket.receive_buffer_bytes.or(both)?,
                way.receive_buffer()?,
                "SO_RCVBUF",
                "net.core.rmem_max",
            ),
        };
        // The kernel doubles the requested size (socket(7)).
        if granted as f64 >= 1.9 * asked as f64 {
            return None;
        }
        let most = case.sysctl(role, limit);
        if most.is_some_and(|most| most >= asked) {
            return None;
        }
        let free = way.time(part).map_or(0.0, |time| time.free());
        let cost = match (case.plan.protocol, part) {
            (Protocol::Tcp, CountedAt::Receiver) => way.tcp().map_or(0.0, |tcp| tcp.receive_window),
            (Protocol::Tcp, CountedAt::Sender) => way.tcp().map_or(0.0, |tcp| {
                tcp.send_buffer
                    .max((1.0 - tcp.busy.unwrap_or(1.0)).min(free))
            }),
            (Protocol::Udp, CountedAt::Receiver) => way.lost_share("udp-receive-queue"),
            (Protocol::Udp, CountedAt::Sender) => way.lost_for_room() as f64 / way.packets_sent(),
        };
        let cost = if way.fills_path() { 0.0 } else { cost };
        // A larger buffer does not help a thread without idle time.
        let matters = cost >= MATTERS && (free > 0.1 || case.plan.protocol == Protocol::Udp);
        Draft::limit_if(!matters, self.id(), role)
            .way(way.direction)
            .cost(cost)
            .says(format!(
                "a buffer of {} was requested, and the {}'s kernel grants at most {}",
                format_bytes(asked),
                name(role),
                format_bytes(granted / 2)
            ))
            .seen("requested size", asked, "B", "plan")
            .seen(option, granted, "B", format!("{} socket", name(role)))
            .seen_if(limit, most, "B", format!("{} sysctl", name(role)))
            .remedy(format!(
                "raise the limit of the {}'s kernel (in its initial network namespace), or run as \
                 root",
                name(role)
            ))
            .command(super::sysctl(limit, asked))
            .gain(
                (matters.then(|| asked as f64 * 2.0 / granted.max(1) as f64))
                    .and_then(|wider| super::within_headroom(way, wider)),
                format!(
                    "window / round-trip time: at most requested over granted size, and {}",
                    super::HEADROOM
                ),
            )
            .found()
    }
}
