//! Names of the values of a plan or record: roles, directions, wait modes, copy modes.

use linerate_record::facts::Role;
use linerate_record::finding::FindingLocation;
use linerate_record::plan::{CopyModes, CpuList, Direction, Plan, ReceiveCopy, SendCopy, WaitMode};

use super::format::format_duration;

/// Names an end: client or server, for ttcp sender or receiver, since either end of it may
/// connect.
pub(crate) fn role_name(plan: &Plan, role: Role) -> &'static str {
    if plan.peer_protocol.as_deref() != Some("ttcp") {
        return role.as_str();
    }
    match plan.has_direction(Direction::Send) == (role == Role::Client) {
        true => "sender",
        false => "receiver",
    }
}

/// Returns the end that a finding is about, as text.
pub(crate) fn finding_location(end: FindingLocation) -> &'static str {
    match end {
        FindingLocation::Client => "client",
        FindingLocation::Server => "server",
        FindingLocation::Both => "both ends",
        FindingLocation::Path => "path",
    }
}

/// Names the copies that were skipped. Such figures are not comparable with others, so they are
/// always marked.
pub(crate) fn skipped_copies(copies: CopyModes) -> Option<String> {
    let send = match copies.send {
        SendCopy::Copied => None,
        SendCopy::ZeroCopy => Some("zero-copy sends"),
        SendCopy::SendFile => Some("send copy skipped by sendfile"),
        SendCopy::Splice => Some("send copy skipped by splice"),
    };
    let receive = match copies.receive {
        ReceiveCopy::Copied => None,
        ReceiveCopy::Discarded => Some("receive copy skipped"),
    };
    let parts: Vec<_> = send.into_iter().chain(receive).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Names the direction of the payload from the view of the client or of the server.
pub(crate) fn direction_name(direction: Direction, serving: bool) -> &'static str {
    match (direction, serving) {
        (Direction::Send, false) => "send",
        (Direction::Receive, false) => "receive",
        (Direction::Send, true) => "in",
        (Direction::Receive, true) => "out",
    }
}

/// Names a wait mode: `blocking`.
pub(crate) fn wait_mode_name(wait: WaitMode) -> String {
    match wait {
        WaitMode::Block => "blocking".to_owned(),
        WaitMode::Spin => "spinning".to_owned(),
        WaitMode::IoUring => "waiting in io_uring".to_owned(),
        WaitMode::BusyPoll { .. } => "busy polling".to_owned(),
        WaitMode::Interval { time_ns } => format!("polling every {}", format_duration(time_ns)),
        WaitMode::Poll | WaitMode::Select { .. } | WaitMode::Epoll => format!("waiting in {wait}"),
    }
}

/// Names a set of CPUs: `any core`, `core 1`, `cores 0-3`.
pub(crate) fn core_list(cpus: &CpuList) -> String {
    match cpus.0.len() {
        0 => "any CPU".to_owned(),
        1 => format!("CPU {cpus}"),
        _ => format!("CPUs {cpus}"),
    }
}
