//! File descriptors that a test needs at one end, checked before any is opened.

use linerate_host::sys::{cpu, fd_table};
use linerate_metric::cost::THREADS_LISTED;
use linerate_metric::facts::Role;
use linerate_metric::plan::{Direction, Kind, Plan, Protocol, SendCopy, Stamping, Wait};
use linerate_metric::round_trip::Attachment;

use super::setup::part;
use crate::error::MeasureError;
use crate::flow::Part;
use crate::timestamps::scheduler_tracer::{self, needs};
use crate::wait_policy;

/// Descriptors beyond those of flows and threads: the wake-up socket pair and kernel files that are
/// read.
const SPARE: usize = 24;

/// Descriptors of a flow of another tool: its listening socket, its connection, and a duplicate
/// that the test uses to monitor it.
const FOREIGN_FLOW: usize = 3;

/// CPUs of a machine.
#[derive(Clone, Copy)]
struct Processors {
    /// CPUs that this process may run on.
    usable: usize,
    all: usize,
}

/// Rejects a test that needs more descriptors than this process may open.
///
/// # Errors
/// [`MeasureError::OptionRefused`].
pub fn check(plan: &Plan, role: Role) -> Result<(), MeasureError> {
    let (Some(limit), Some(open)) = (fd_table::limit(), fd_table::open()) else {
        return Ok(());
    };
    let processors = Processors {
        usable: cpu::usable().map_or(1, |cpus| cpus.len()),
        all: scheduler_tracer::processors(),
    };
    let needed = needed(plan, role, processors);
    // Pending connections of a server use the other half, and are closed when it is needed.
    if needed <= limit / 2 {
        return Ok(());
    }
    let wanted = open.saturating_add(needed);
    if wanted <= limit {
        return Ok(());
    }
    let flows = plan.streams as usize * plan.directions.len();
    let watches = plan.stamps >= Stamping::Scheduler;
    Err(MeasureError::OptionRefused {
        option: match watches {
            true => "--stages or --trace".to_owned(),
            false => format!("-P {}", plan.streams),
        },
        why: match watches {
            true => format!(
                "tracing {} CPUs needs {wanted} open files, and the limit is {limit}",
                processors.all
            ),
            false => {
                format!("its {flows} flows need {wanted} open files, and the limit is {limit}")
            }
        },
        next_step: format!(
            "use fewer streams, or raise the limit before the start: `ulimit -n {wanted}` (root: \
             also above the hard limit)"
        ),
    })
}

/// Returns the descriptors needed with `flows` flows of another tool, and the limit, where it is
/// lower.
pub fn too_few(flows: usize) -> Option<(usize, usize)> {
    let (limit, open) = (fd_table::limit()?, fd_table::open()?);
    let wanted = open.saturating_add(flows.saturating_mul(FOREIGN_FLOW));
    (wanted > limit).then_some((wanted, limit))
}

/// Returns the descriptors that a test opens at one end.
fn needed(plan: &Plan, role: Role, processors: Processors) -> usize {
    let streams = plan.streams as usize;
    let each = plan.directions.len();
    let flows = streams.saturating_mul(each);
    let counters = match plan.kind {
        Kind::Throughput => 2 * flows.min(THREADS_LISTED),
        Kind::Latency | Kind::Forward | Kind::Generate | Kind::Stack => 0,
    };
    let source = |&&direction: &&Direction| part(role, direction) == Part::Source;
    let sources = plan.directions.iter().filter(source).count();
    let threads = threads(plan, role, processors.usable);
    let ways = match plan.copies.send {
        // Both ends of a pipe for each flow; a memory file for each thread.
        SendCopy::Splice => 2 * streams * sources,
        SendCopy::SendFile => threads * sources,
        SendCopy::Copied | SendCopy::ZeroCopy => 0,
    };
    // An epoll instance or a ring; threads with blocking calls have none.
    let waits = match wait(plan, role) {
        Some(Wait::Epoll | Wait::IoUring) => threads * each,
        None if threads < streams => threads * each,
        _ => 0,
    };
    SPARE
        .saturating_add(flows.saturating_mul(a_flow(plan, role)))
        .saturating_add(counters)
        .saturating_add(ways)
        .saturating_add(waits)
        .saturating_add(needs(plan.stamps, processors.all).files)
}

/// Returns the sockets of one flow.
fn a_flow(plan: &Plan, role: Role) -> usize {
    match (plan.protocol, role) {
        // Until the start, repeated openings are confirmed on a duplicate of the descriptor.
        (Protocol::Udp, Role::Server) => 2,
        // The listening socket, or the first connection, and the current connection.
        (Protocol::Tcp, _) if plan.round_trip.attachment == Attachment::Reopened => 2,
        _ => 1,
    }
}

fn wait(plan: &Plan, role: Role) -> Option<Wait> {
    plan.wait.as_ref().map(|wait| match role {
        Role::Client => wait.near,
        Role::Server => wait.far,
    })
}

/// Returns the number of threads of one direction.
fn threads(plan: &Plan, role: Role, processors: usize) -> usize {
    let streams = plan.streams as usize;
    let asked = plan.threads.as_ref().map(|threads| match role {
        Role::Client => threads.near,
        Role::Server => threads.far,
    });
    match asked {
        Some(threads) => (threads as usize).min(streams),
        None => wait_policy::threads(
            plan.kind,
            wait(plan, role),
            streams,
            processors,
            plan.round_trip.connections,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_metric::plan::Ends;

    const FOUR: Processors = Processors { usable: 4, all: 8 };

    #[test]
    fn each_end_counts_what_it_opens() {
        type Change = fn(&mut Plan);
        let table: &[(&str, Kind, Protocol, Change, usize, usize)] = &[
            ("TCP", Kind::Throughput, Protocol::Tcp, |_| {}, 10, 10),
            // The server confirms openings on a duplicate.
            ("UDP", Kind::Throughput, Protocol::Udp, |_| {}, 10, 20),
            (
                "both ways",
                Kind::Throughput,
                Protocol::Tcp,
                |p| {
                    p.directions.push(Direction::Receive);
                },
                20,
                20,
            ),
            (
                "splice",
                Kind::Throughput,
                Protocol::Tcp,
                |p| {
                    p.copies.send = SendCopy::Splice;
                },
                30,
                10,
            ),
            (
                "splice back",
                Kind::Throughput,
                Protocol::Tcp,
                |p| {
                    p.directions = vec![Direction::Receive];
                    p.copies.send = SendCopy::Splice;
                },
                10,
                30,
            ),
            (
                "sendfile",
                Kind::Throughput,
                Protocol::Tcp,
                |p| {
                    p.copies.send = SendCopy::SendFile;
                    p.wait = Some(Ends::both(Wait::Spin));
                },
                14,
                10,
            ),
            (
                "epoll",
                Kind::Throughput,
                Protocol::Tcp,
                |p| {
                    p.wait = Some(Ends {
                        near: Wait::Epoll,
                        far: Wait::Spin,
                    });
                    p.threads = Some(Ends { near: 2, far: 3 });
                },
                12,
                10,
            ),
            ("round trips", Kind::Latency, Protocol::Tcp, |_| {}, 10, 10),
            (
                "reopened",
                Kind::Latency,
                Protocol::Tcp,
                |p| {
                    p.round_trip.attachment = Attachment::Reopened;
                },
                20,
                20,
            ),
            (
                "reopened UDP",
                Kind::Latency,
                Protocol::Udp,
                |p| {
                    p.round_trip.attachment = Attachment::Reopened;
                },
                10,
                20,
            ),
            (
                "packets",
                Kind::Latency,
                Protocol::Tcp,
                |p| {
                    p.stamps = Stamping::Packets;
                },
                10,
                10,
            ),
            (
                "scheduler",
                Kind::Latency,
                Protocol::Tcp,
                |p| {
                    p.stamps = Stamping::Scheduler;
                },
                26,
                26,
            ),
            (
                "driver",
                Kind::Latency,
                Protocol::Tcp,
                |p| {
                    p.stamps = Stamping::Driver;
                },
                42,
                42,
            ),
        ];
        for &(name, kind, protocol, change, near, far) in table {
            let mut plan = Plan::new(kind, protocol, "host");
            plan.streams = 10;
            change(&mut plan);
            let counters = match kind {
                Kind::Throughput => 2 * 10 * plan.directions.len(),
                Kind::Latency | Kind::Forward | Kind::Generate | Kind::Stack => 0,
            };
            for (role, want) in [(Role::Client, near), (Role::Server, far)] {
                let got = needed(&plan, role, FOUR);
                assert_eq!(got, want + counters + SPARE, "{name} {role:?}");
            }
        }
    }
}
