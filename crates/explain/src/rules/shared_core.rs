//! Threads of both ends share one core.

use linerate_metric::facts::Role;
use linerate_metric::finding::{End, Finding};
use linerate_metric::plan::{Kind, Protocol, Wait};
use linerate_metric::record::CpuCost;
use linerate_metric::units::format_share;

use super::{HEADROOM, headroom, parts, schedstat};
use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, Time, Way};

/// Smallest share of the time waiting for the core that matters.
const MATTERS: f64 = 0.1;

/// Largest excess of one end's waiting over the other end's running time: kernel work.
const SOMEBODY_ELSE: f64 = 0.15;

/// Largest gain of two processors over one for large chunks: 82 to 90 Gb/s against 67 on veth of
/// the 2-core VM while a cache line crosses quickly, and a loss otherwise.
const TWO_CORES: f64 = 1.35;

/// Returns true if both ends work at the same time, so that a second processor helps: an end that
/// polls never stops, and a sender of datagrams does not wait.
///
/// Ends that wait for each other alternate anyway, and moving data from cache to cache costs more
/// than the alternation. On the 2-core VM, where a cache line takes 320 ns, a stream over two
/// processors reached 0.24 of the rate of one (in calls of 16 KiB 0.46, of 1 KiB 0.88; 0.86 at
/// another time). A blocking round trip took 3 to 3.7 times as long, while datagrams reached 1.3
/// and 1.5.
fn work_at_once(case: &Case<'_>) -> bool {
    let polls = |role| {
        let waits = case.wait(role);
        matches!(waits, Some(Wait::Spin | Wait::Interval { .. })) || case.is_own_stack(role)
    };
    let plan = case.plan;
    // Requests that do not wait for responses: on a schedule, with several outstanding, or of
    // several flows.
    let questions = plan.kind == Kind::Latency
        && (plan.round_trip.rate_per_second.is_some()
            || plan.round_trip.outstanding > 1
            || plan.streams > 1);
    polls(Role::Client)
        || polls(Role::Server)
        || questions
        || case.throughput(Protocol::Udp).next().is_some()
}

/// See docs/CAUSES.md#shared-core.
pub struct SharedCore;

impl Rule for SharedCore {
    fn id(&self) -> &'static str {
        "shared-core"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        self.of(case).into_iter().collect()
    }
}

/// Returns the processors of an end's threads: those assigned, or those sampled.
fn processors(case: &Case<'_>, role: Role, cost: &CpuCost) -> Vec<u32> {
    let put = &case.cpus(role).0;
    if !put.is_empty() {
        return put.clone();
    }
    let seen = cost
        .threads
        .iter()
        .filter_map(|thread| thread.cpus.as_ref());
    let mut seen: Vec<u32> = seen.flat_map(|cpus| cpus.0.iter().copied()).collect();
    seen.sort_unstable();
    seen.dedup();
    seen
}

/// Returns true if both ends ran on one and the same processor only.
pub(super) fn is_one(case: &Case<'_>) -> bool {
    let of = |role| case.cpu(role).map(|cost| processors(case, role, cost));
    let (Some(near), Some(far)) = (of(Role::Client), of(Role::Server)) else {
        return false;
    };
    let usable = case.host(Role::Client).and_then(|host| host.cpu.usable);
    // Each end may have been started with an affinity for a different processor.
    let apart = !near.is_empty() && !far.is_empty() && near.iter().all(|cpu| !far.contains(cpu));
    case.one_machine() && !apart && (near.len() == 1 && near == far || usable == Some(1))
}

impl SharedCore {
    fn of(&self, case: &Case<'_>) -> Option<Finding> {
        if !is_one(case) {
            return None;
        }
        let (near, far) = (case.cpu(Role::Client)?, case.cpu(Role::Server)?);
        let near_cpus = processors(case, Role::Client, near);
        let far_cpus = processors(case, Role::Server, far);
        let (a, b) = (case.time(Role::Client)?, case.time(Role::Server)?);
        let waited = (a.runnable + a.waking).max(b.runnable + b.waking);
        let together = a.working + a.turning + b.working + b.turning;
        if waited < MATTERS || together < 0.6 {
            return None;
        }
        let at_once = work_at_once(case);
        // An end that waits while the other one does not run waits for another program.
        let turns = |waits: Time, runs: Time| {
            waits.runnable + waits.waking <= runs.working + runs.turning + SOMEBODY_ELSE
        };
        // Several threads of an end also wait for each other.
        let single = near.threads.len() == 1 && far.threads.len() == 1;
        if !at_once && single && !(turns(a, b) && turns(b, a)) {
            return None;
        }
        // The requested rate was received.
        if super::kept_its_rate(case) {
            return None;
        }
        // The gain of a second processor is limited by the highest rate of a flow, and by cache
        // transfers between the processors.
        let streams = || {
            case.throughput(Protocol::Tcp)
                .chain(case.throughput(Protocol::Udp))
        };
        let most = streams()
            .filter_map(headroom)
            .fold(1.0 / (1.0 - waited).max(0.1), f64::min);
        let large = |way: &Way<'_>| {
            parts(way)
                .into_iter()
                .any(|(_, part)| way.works_in_large_pieces(part))
        };
        let gain = if streams().any(large) {
            most.min(TWO_CORES)
        } else {
            most
        };
        let cost = waited.min(1.0 - 1.0 / gain);
        if cost < 0.05 {
            return None;
        }
        // The program may be restricted to a part of the machine's processors.
        let cpu = &case.host(Role::Client)?.cpu;
        let usable = cpu.usable.or(cpu.logical).unwrap_or(1);
        let asked = !case.plan.cpu.near.0.is_empty() || !case.plan.cpu.far.0.is_empty();
        let core = near_cpus.first().map_or("one".to_owned(), u32::to_string);
        // Another processor of the machine, which the program could be permitted to use.
        let taken = near_cpus.first().copied().unwrap_or(0);
        let logical = cpu.logical.filter(|&logical| logical > 1).unwrap_or(0);
        let other = (0..logical).find(|&other| other != taken);
        let draft = Draft::limit_if(other.is_none() || !at_once, self.id(), End::Both)
            .cost(cost)
            .says(format!(
                "both ends ran on processor {core}: one of them waited for it for {} of the time",
                format_share(waited)
            ))
            .seen(
                "processors of the client's threads",
                near_cpus_text(&near_cpus),
                "",
                "plan, /proc/PID/task/TID/stat",
            )
            .seen(
                "processors of the server's threads",
                near_cpus_text(&far_cpus),
                "",
                "plan, /proc/PID/task/TID/stat",
            )
            .seen(
                "runnable and not running, client",
                a.runnable + a.waking,
                "share",
                schedstat(Role::Client),
            )
            .seen(
                "runnable and not running, server",
                b.runnable + b.waking,
                "share",
                schedstat(Role::Server),
            )
            .remedy(match usable {
                1 if cpu.logical.is_some_and(|logical| logical > 1) => {
                    "both ends are restricted to the same processor: let one of them use another \
                     one (taskset, its cpuset)"
                }
                1 => "the machine has one processor: run the ends on two machines",
                _ if at_once => {
                    "use a separate processor for each end, and compare: with large chunks, which \
                     stay in one cache, there may be no gain"
                }
                _ => {
                    "compare with a separate processor for each end: ends that wait for each \
                     other alternate anyway, and cache transfers may cost more than they gain"
                }
            })
            .tried(asked.then(|| format!("--cpu {}", case.plan.cpu)));
        let draft = match (usable, other) {
            (1, None) => draft,
            (1, Some(other)) => draft.command(format!("taskset -c {other} {}", case.again(""))),
            _ => draft.command(case.again("--cpu 0/1")),
        };
        match at_once && other.is_some() {
            true => draft.gain(
                Some(gain),
                format!(
                    "1 / (1 - share of the time waiting for the processor); at most {HEADROOM}, \
                     and 1.35 with large chunks, as measured with two processors against one"
                ),
            ),
            false => draft,
        }
        .found()
    }
}

fn near_cpus_text(cpus: &[u32]) -> String {
    linerate_metric::plan::Cpus(cpus.to_vec()).to_string()
}

#[cfg(test)]
mod tests {
    use linerate_metric::plan::{Cpus, Ends};
    use linerate_metric::record::Record;

    /// Returns a record of a run whose ends could each use one of two processors.
    fn bound(client: u32, server: u32) -> Record {
        let text = include_str!("../../../../tests/bank/recorded/shared-core-tcp.json");
        let planted: serde_json::Value = serde_json::from_str(text).expect("JSON");
        let mut record: Record =
            serde_json::from_value(planted["record"].clone()).expect("a record");
        record.plan.cpu = Ends::both(Cpus(Vec::new()));
        for host in &mut record.hosts {
            host.cpu.usable = Some(1);
        }
        for (cost, cpu) in record.summary.cpu.iter_mut().zip([client, server]) {
            for thread in &mut cost.threads {
                thread.cpus = Some(Cpus(vec![cpu]));
            }
        }
        record
    }

    #[test]
    fn ends_that_were_each_given_a_processor_share_none() {
        for (client, server, shared) in [(0, 1, false), (1, 1, true)] {
            let found = crate::explain(&bound(client, server));
            let found = found.iter().any(|finding| finding.cause == "shared-core");
            assert_eq!(found, shared, "on {client} and {server}");
        }
    }
}
