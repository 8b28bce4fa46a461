//! File descriptors that a test needs at one end, checked before any is opened.

use linerate_record::cost::MAX_LISTED_THREADS;
use linerate_record::facts::Role;
use linerate_record::plan::{
    Direction, Plan, RunKind, SendCopy, TimestampLevel, TransportProtocol, WaitMode,
};
use linerate_record::round_trip::SocketMode;
use linerate_sys::fd_table;
use linerate_transport::flow_role::FlowRole;
use linerate_workload::timestamps::scheduler_tracer;
use linerate_workload::timestamps::scheduler_tracer::required_resources;

use crate::error::SessionError;
use crate::flow_handle::flow_role;
use crate::thread_plan::count_usable_cpus;
use crate::wait_policy;

/// Descriptors beyond those of flows and threads: the wake-up socket pair and kernel files that are
/// read.
const BASE_DESCRIPTORS: usize = 24;

/// Descriptors of a flow of another tool: its listening socket, its connection, and a duplicate
/// that the test uses to monitor it.
const DESCRIPTORS_PER_INTEROP_FLOW: usize = 3;

/// CPUs of a machine.
#[derive(Clone, Copy)]
struct CpuCounts {
    /// CPUs that this process may run on.
    usable: usize,
    all: usize,
}

/// Rejects a test that needs more descriptors than this process may open.
///
/// # Errors
/// [`SessionError::OptionRejected`].
pub fn check(plan: &Plan, role: Role) -> Result<(), SessionError> {
    let (Some(limit), Some(open)) = (fd_table::open_file_limit(), fd_table::count_open_files())
    else {
        return Ok(());
    };
    let counts = CpuCounts {
        usable: count_usable_cpus(),
        all: scheduler_tracer::traced_processors(),
    };
    let needed = needed_descriptors(plan, role, counts);
    // Pending connections of a server use the other half, and are closed when it is needed.
    if needed <= limit / 2 {
        return Ok(());
    }
    let total = open.saturating_add(needed);
    if total <= limit {
        return Ok(());
    }
    let flows = plan.streams as usize * plan.directions.len();
    let traces = plan.timestamps >= TimestampLevel::Scheduler;
    Err(SessionError::OptionRejected {
        option: match traces {
            true => "--stages or --trace".to_owned(),
            false => format!("-P {}", plan.streams),
        },
        why: match traces {
            true => format!(
                "tracing {} CPUs needs {total} open files, and the limit is {limit}",
                counts.all
            ),
            false => {
                format!("its {flows} flows need {total} open files, and the limit is {limit}")
            }
        },
        next_step: format!(
            "use fewer flows, or raise the limit before the start: `ulimit -n {total}` (root: \
             also above the hard limit)"
        ),
    })
}

/// Returns the descriptors needed with `flows` flows of another tool, and the limit, where it is
/// lower.
pub fn exceeds_limit(flows: usize) -> Option<(usize, usize)> {
    let (limit, open) = (fd_table::open_file_limit()?, fd_table::count_open_files()?);
    let total = open.saturating_add(flows.saturating_mul(DESCRIPTORS_PER_INTEROP_FLOW));
    (total > limit).then_some((total, limit))
}

/// Returns the descriptors that a test opens at one end.
fn needed_descriptors(plan: &Plan, role: Role, cpus: CpuCounts) -> usize {
    let streams = plan.streams as usize;
    let directions = plan.directions.len();
    let flows = streams.saturating_mul(directions);
    let counters = match plan.kind {
        RunKind::Throughput => 2 * flows.min(MAX_LISTED_THREADS),
        RunKind::Latency | RunKind::Forward | RunKind::Generate | RunKind::Stack => 0,
    };
    let source = |&&direction: &&Direction| flow_role(role, direction) == FlowRole::Sender;
    let sources = plan.directions.iter().filter(source).count();
    let threads = threads_per_direction(plan, role, cpus.usable);
    let copy_files = match plan.copies.send {
        // Both ends of a pipe for each flow; a memory file for each thread.
        SendCopy::Splice => 2 * streams * sources,
        SendCopy::SendFile => threads * sources,
        SendCopy::Copied | SendCopy::ZeroCopy => 0,
    };
    // An epoll instance or a ring; threads with blocking calls have none.
    let wait_files = match wait_of(plan, role) {
        Some(WaitMode::Epoll | WaitMode::IoUring) => threads * directions,
        None if threads < streams => threads * directions,
        _ => 0,
    };
    BASE_DESCRIPTORS
        .saturating_add(flows.saturating_mul(sockets_per_flow(plan, role)))
        .saturating_add(counters)
        .saturating_add(copy_files)
        .saturating_add(wait_files)
        .saturating_add(required_resources(plan.timestamps, cpus.all).files)
}

/// Returns the sockets of one flow.
fn sockets_per_flow(plan: &Plan, role: Role) -> usize {
    match (plan.protocol, role) {
        // Until the start, repeated openings are confirmed on a duplicate of the descriptor.
        (TransportProtocol::Udp, Role::Server) => 2,
        // The listening socket, or the first connection, and the current connection.
        (TransportProtocol::Tcp, _) if plan.round_trip.socket_mode == SocketMode::Reopened => 2,
        _ => 1,
    }
}

fn wait_of(plan: &Plan, role: Role) -> Option<WaitMode> {
    plan.wait.as_ref().map(|wait| match role {
        Role::Client => wait.client,
        Role::Server => wait.server,
    })
}

/// Returns the number of threads of one direction.
fn threads_per_direction(plan: &Plan, role: Role, cpus: usize) -> usize {
    let streams = plan.streams as usize;
    let requested = plan.threads.as_ref().map(|threads| match role {
        Role::Client => threads.client,
        Role::Server => threads.server,
    });
    match requested {
        Some(threads) => (threads as usize).min(streams),
        None => wait_policy::choose_threads(
            plan.kind,
            wait_of(plan, role),
            streams,
            cpus,
            plan.round_trip.connections,
        ),
    }
}

#[cfg(test)]
mod tests {
    use linerate_record::plan::PerEnd;

    use super::*;

    const FOUR_OF_EIGHT: CpuCounts = CpuCounts { usable: 4, all: 8 };

    #[test]
    fn each_end_counts_its_descriptors() {
        type Change = fn(&mut Plan);
        let table: &[(&str, RunKind, TransportProtocol, Change, usize, usize)] = &[
            (
                "TCP",
                RunKind::Throughput,
                TransportProtocol::Tcp,
                |_| {},
                10,
                10,
            ),
            // The server confirms openings on a duplicate.
            (
                "UDP",
                RunKind::Throughput,
                TransportProtocol::Udp,
                |_| {},
                10,
                20,
            ),
            (
                "both ways",
                RunKind::Throughput,
                TransportProtocol::Tcp,
                |p| {
                    p.directions.push(Direction::Receive);
                },
                20,
                20,
            ),
            (
                "splice",
                RunKind::Throughput,
                TransportProtocol::Tcp,
                |p| {
                    p.copies.send = SendCopy::Splice;
                },
                30,
                10,
            ),
            (
                "splice back",
                RunKind::Throughput,
                TransportProtocol::Tcp,
                |p| {
                    p.directions = vec![Direction::Receive];
                    p.copies.send = SendCopy::Splice;
                },
                10,
                30,
            ),
            (
                "sendfile",
                RunKind::Throughput,
                TransportProtocol::Tcp,
                |p| {
                    p.copies.send = SendCopy::SendFile;
                    p.wait = Some(PerEnd::same(WaitMode::Spin));
                },
                14,
                10,
            ),
            (
                "epoll",
                RunKind::Throughput,
                TransportProtocol::Tcp,
                |p| {
                    p.wait = Some(PerEnd {
                        client: WaitMode::Epoll,
                        server: WaitMode::Spin,
                    });
                    p.threads = Some(PerEnd {
                        client: 2,
                        server: 3,
                    });
                },
                12,
                10,
            ),
            (
                "round trips",
                RunKind::Latency,
                TransportProtocol::Tcp,
                |_| {},
                10,
                10,
            ),
            (
                "reopened",
                RunKind::Latency,
                TransportProtocol::Tcp,
                |p| {
                    p.round_trip.socket_mode = SocketMode::Reopened;
                },
                20,
                20,
            ),
            (
                "reopened UDP",
                RunKind::Latency,
                TransportProtocol::Udp,
                |p| {
                    p.round_trip.socket_mode = SocketMode::Reopened;
                },
                10,
                20,
            ),
            (
                "packets",
                RunKind::Latency,
                TransportProtocol::Tcp,
                |p| {
                    p.timestamps = TimestampLevel::Packets;
                },
                10,
                10,
            ),
            (
                "scheduler",
                RunKind::Latency,
                TransportProtocol::Tcp,
                |p| {
                    p.timestamps = TimestampLevel::Scheduler;
                },
                26,
                26,
            ),
            (
                "driver",
                RunKind::Latency,
                TransportProtocol::Tcp,
                |p| {
                    p.timestamps = TimestampLevel::Driver;
                },
                42,
                42,
            ),
        ];
        for &(name, kind, protocol, change, client, server) in table {
            let mut plan = Plan::new(kind, protocol, "host");
            plan.streams = 10;
            change(&mut plan);
            let counters = match kind {
                RunKind::Throughput => 2 * 10 * plan.directions.len(),
                RunKind::Latency | RunKind::Forward | RunKind::Generate | RunKind::Stack => 0,
            };
            for (role, expected) in [(Role::Client, client), (Role::Server, server)] {
                let got = needed_descriptors(&plan, role, FOUR_OF_EIGHT);
                assert_eq!(
                    got,
                    expected + counters + BASE_DESCRIPTORS,
                    "{name} {role:?}"
                );
            }
        }
    }
}
