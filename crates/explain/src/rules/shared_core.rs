//! Threads of both ends share one core.

use linerate_record::facts::Role;
use linerate_record::finding::{Finding, FindingLocation};
use linerate_record::ids::CauseId;
use linerate_record::plan::{RunKind, TransportProtocol, WaitMode};
use linerate_record::record::CpuCost;
use linerate_stats::units::format_share;

use super::{HEADROOM_FORMULA, flow_ends, headroom, schedstat_source};
use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, percent};
use crate::run_view::{DirectionView, RunView, ThreadTime};

/// Smallest share of the time waiting for the core that matters.
const MIN_RELEVANT_SHARE: f64 = 0.1;

/// Smallest sum of both ends' work that fills a processor.
const MIN_TOTAL_WORK: f64 = 0.6;

/// Smallest cost of a finding.
const MIN_COST: f64 = 0.05;

/// Largest excess of one end's waiting over the other end's running time: kernel work.
const MAX_UNEXPLAINED_WAIT: f64 = 0.15;

/// Largest gain of two processors over one for large chunks: 82 to 90 Gb/s against 67 on veth of
/// the 2-core VM while a cache line crosses quickly, and a loss otherwise.
const MAX_TWO_CORE_GAIN: f64 = 1.35;

/// Returns true if both ends work at the same time, so that a second processor helps: an end that
/// polls never stops, and a sender of datagrams does not wait.
///
/// Ends that wait for each other alternate anyway, and moving data from cache to cache costs more
/// than the alternation. On the 2-core VM, where a cache line takes 320 ns, a stream over two
/// processors reached 0.24 of the rate of one (in calls of 16 KiB 0.46, of 1 KiB 0.88; 0.86 at
/// another time). A blocking round trip took 3 to 3.7 times as long, while datagrams reached 1.3
/// and 1.5.
fn is_concurrent(run: &RunView<'_>) -> bool {
    let polls = |role| {
        let wait_mode = run.wait(role);
        matches!(wait_mode, Some(WaitMode::Spin | WaitMode::Interval { .. }))
            || run.uses_netstack(role)
    };
    let plan = run.plan;
    // Requests that do not wait for responses: on a schedule, with several outstanding, or of
    // several flows.
    let is_pipelined = plan.kind == RunKind::Latency
        && (plan.round_trip.rate_per_second.is_some()
            || plan.round_trip.outstanding > 1
            || plan.streams > 1);
    polls(Role::Client)
        || polls(Role::Server)
        || is_pipelined
        || run
            .throughput_directions(TransportProtocol::Udp)
            .next()
            .is_some()
}

/// See docs/CAUSES.md#shared-core.
pub struct SharedCore;

impl Rule for SharedCore {
    fn id(&self) -> CauseId {
        CauseId::SharedCore
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "Threads of both ends run on one CPU and wait for each other.",
            shown_when: vec![detection(
                "streams and round trips on one machine",
                [
                    "both ends were assigned to, or sampled on, the same single CPU".into(),
                    format!(
                        "one end waits for it, wake-ups included, for {} of the time or more",
                        percent(MIN_RELEVANT_SHARE)
                    ),
                    format!(
                        "both ends together work for {} of the time or more",
                        percent(MIN_TOTAL_WORK)
                    ),
                    format!("the cost is {} or more", percent(MIN_COST)),
                ],
            )],
            limit_when: vec![
                "the ends wait for each other, as in a TCP stream or in blocking round trips: they \
                 alternate anyway"
                    .into(),
                "the machine has one CPU".into(),
            ],
            not_when: vec![
                "the requested rate was received".into(),
                format!(
                    "ends of one thread each alternate, and one waits longer than the other runs \
                     by more than {}: another program had the CPU",
                    percent(MAX_UNEXPLAINED_WAIT)
                ),
            ],
            evidence: &[
                ("processors of the client's threads", ""),
                ("processors of the server's threads", ""),
                ("runnable and not running, client", "share"),
                ("runnable and not running, server", "share"),
            ],
            cost: vec![
                "Share of the time waiting for the CPU, within what the gain permits.".into(),
                "Gain: 1 / (1 - that share), within the highest rate of a flow; none as a limit."
                    .into(),
                format!("In large chunks the gain is {MAX_TWO_CORE_GAIN} at most."),
            ],
            notes: vec![
                "Both ends have work at once if one polls, if datagrams are sent, or if requests \
                 do not wait for responses."
                    .into(),
                "Requests do not wait on a schedule, with several outstanding, or of several flows."
                    .into(),
            ],
            remedy: vec![
                "Use one CPU for each end (`--cpu 0/1`).".into(),
                "Use `taskset -c N` for one end if both are restricted to the same CPU.".into(),
                "Compare a limit first: `linerate compare --a '--cpu 0/0' --b '--cpu 0/1'`. A \
                 stream may be slower on two CPUs."
                    .into(),
            ],
            wrong_when: vec![
                "the shared CPU is the only one with the interface's interrupts in its cache"
                    .into(),
            ],
            ..CauseReference::cause()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        self.evaluate_run(run).into_iter().collect()
    }
}

/// Returns the processors of an end's threads: those assigned, or those sampled.
fn end_processors(run: &RunView<'_>, role: Role, cost: &CpuCost) -> Vec<u32> {
    let assigned = &run.cpus(role).0;
    if !assigned.is_empty() {
        return assigned.clone();
    }
    let sampled = cost
        .threads
        .iter()
        .filter_map(|thread| thread.cpus.as_ref());
    let mut sampled: Vec<u32> = sampled.flat_map(|cpus| cpus.0.iter().copied()).collect();
    sampled.sort_unstable();
    sampled.dedup();
    sampled
}

/// Returns true if both ends ran on one and the same processor only.
pub(super) fn is_single_core(run: &RunView<'_>) -> bool {
    let of = |role| run.cpu(role).map(|cost| end_processors(run, role, cost));
    let (Some(client), Some(server)) = (of(Role::Client), of(Role::Server)) else {
        return false;
    };
    let usable = run.host(Role::Client).and_then(|host| host.cpu.usable);
    // Each end may have been started with an affinity for a different processor.
    let is_disjoint =
        !client.is_empty() && !server.is_empty() && client.iter().all(|cpu| !server.contains(cpu));
    run.is_one_machine()
        && !is_disjoint
        && (client.len() == 1 && client == server || usable == Some(1))
}

impl SharedCore {
    fn evaluate_run(&self, run: &RunView<'_>) -> Option<Finding> {
        if !is_single_core(run) {
            return None;
        }
        let (client, server) = (run.cpu(Role::Client)?, run.cpu(Role::Server)?);
        let client_cpus = end_processors(run, Role::Client, client);
        let server_cpus = end_processors(run, Role::Server, server);
        let (a, b) = (
            run.thread_time(Role::Client)?,
            run.thread_time(Role::Server)?,
        );
        let waited = (a.core_wait + a.wakeup).max(b.core_wait + b.wakeup);
        let total_work = a.working + a.spinning + b.working + b.spinning;
        if waited < MIN_RELEVANT_SHARE || total_work < MIN_TOTAL_WORK {
            return None;
        }
        let is_concurrent = is_concurrent(run);
        // An end that waits while the other one does not run waits for another program.
        let is_alternating = |waits: ThreadTime, runs: ThreadTime| {
            waits.core_wait + waits.wakeup <= runs.working + runs.spinning + MAX_UNEXPLAINED_WAIT
        };
        // Several threads of an end also wait for each other.
        let single = client.threads.len() == 1 && server.threads.len() == 1;
        if !is_concurrent && single && !(is_alternating(a, b) && is_alternating(b, a)) {
            return None;
        }
        // The requested rate was received.
        if super::met_requested_rate(run) {
            return None;
        }
        // The gain of a second processor is limited by the highest rate of a flow, and by cache
        // transfers between the processors.
        let streams = || {
            run.throughput_directions(TransportProtocol::Tcp)
                .chain(run.throughput_directions(TransportProtocol::Udp))
        };
        let most = streams()
            .filter_map(headroom)
            .fold(1.0 / (1.0 - waited).max(0.1), f64::min);
        let large = |direction: &DirectionView<'_>| {
            flow_ends(direction)
                .into_iter()
                .any(|(_, part)| direction.has_large_chunks(part))
        };
        let gain = if streams().any(large) {
            most.min(MAX_TWO_CORE_GAIN)
        } else {
            most
        };
        let cost = waited.min(1.0 - 1.0 / gain);
        if cost < MIN_COST {
            return None;
        }
        // The program may be restricted to a part of the machine's processors.
        let cpu = &run.host(Role::Client)?.cpu;
        let usable = cpu.usable.or(cpu.logical).unwrap_or(1);
        let is_cpu_requested =
            !run.plan.cpu.client.0.is_empty() || !run.plan.cpu.server.0.is_empty();
        let core = client_cpus.first().map_or("one".to_owned(), u32::to_string);
        // Another processor of the machine, which the program could be permitted to use.
        let used_cpu = client_cpus.first().copied().unwrap_or(0);
        let logical = cpu.logical.filter(|&logical| logical > 1).unwrap_or(0);
        let other_cpu = (0..logical).find(|&other_cpu| other_cpu != used_cpu);
        let builder = FindingBuilder::limit_if(
            other_cpu.is_none() || !is_concurrent,
            self.id(),
            FindingLocation::Both,
        )
        .cost(cost)
        .summary(format!(
            "both ends ran on CPU {core}: one of them waited for it for {} of the time",
            format_share(waited)
        ))
        .evidence(
            "processors of the client's threads",
            format_cpus(&client_cpus),
            "",
            "plan, /proc/PID/task/TID/stat",
        )
        .evidence(
            "processors of the server's threads",
            format_cpus(&server_cpus),
            "",
            "plan, /proc/PID/task/TID/stat",
        )
        .evidence(
            "runnable and not running, client",
            a.core_wait + a.wakeup,
            "share",
            schedstat_source(Role::Client),
        )
        .evidence(
            "runnable and not running, server",
            b.core_wait + b.wakeup,
            "share",
            schedstat_source(Role::Server),
        )
        .remedy(match usable {
            1 if cpu.logical.is_some_and(|logical| logical > 1) => {
                "both ends are restricted to the same processor: let one of them use another \
                     one (taskset, its cpuset)"
            }
            1 => "the machine has one processor: run the ends on two machines",
            _ if is_concurrent => {
                "use a separate CPU for each end, and compare: with large chunks, which \
                     stay in one cache, there may be no gain"
            }
            _ => {
                "compare with a separate CPU for each end: ends that wait for each \
                     other alternate anyway, and cache transfers may cost more than they gain"
            }
        })
        .tried(is_cpu_requested.then(|| format!("--cpu {}", run.plan.cpu)));
        let builder = match (usable, other_cpu) {
            (1, None) => builder,
            (1, Some(other_cpu)) => {
                builder.command(format!("taskset -c {other_cpu} {}", run.rerun_command("")))
            }
            _ => builder.command(run.rerun_command("--cpu 0/1")),
        };
        match is_concurrent && other_cpu.is_some() {
            true => builder.estimated_gain(
                Some(gain),
                format!(
                    "1 / (1 - share of the time waiting for the CPU); at most {HEADROOM_FORMULA}, \
                     and 1.35 with large chunks, as measured with two CPUs against one"
                ),
            ),
            false => builder,
        }
        .build()
    }
}

fn format_cpus(cpus: &[u32]) -> String {
    linerate_record::plan::CpuList(cpus.to_vec()).to_string()
}

#[cfg(test)]
mod tests {
    use linerate_record::ids::CauseId;
    use linerate_record::plan::{CpuList, PerEnd};
    use linerate_record::record::Record;

    /// Returns a record of a run whose ends could each use one of two processors.
    fn pinned_record(client: u32, server: u32) -> Record {
        let text = include_str!("../../../../tests/bank/recorded/shared-core-tcp.json");
        let injected: serde_json::Value = serde_json::from_str(text).expect("JSON");
        let mut record: Record =
            serde_json::from_value(injected["record"].clone()).expect("a record");
        record.plan.cpu = PerEnd::same(CpuList(Vec::new()));
        for host in &mut record.hosts {
            host.cpu.usable = Some(1);
        }
        for (cost, cpu) in record.summary.cpu.iter_mut().zip([client, server]) {
            for thread in &mut cost.threads {
                thread.cpus = Some(CpuList(vec![cpu]));
            }
        }
        record
    }

    #[test]
    fn ends_on_separate_processors_share_none() {
        for (client, server, shared) in [(0, 1, false), (1, 1, true)] {
            let findings = crate::explain(&pinned_record(client, server));
            let findings = findings
                .iter()
                .any(|finding| finding.cause == CauseId::SharedCore);
            assert_eq!(findings, shared, "on {client} and {server}");
        }
    }
}
