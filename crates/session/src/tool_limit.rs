//! Checks whether the tool itself, or two ends on one CPU, limited the run, from the cost of both
//! ends' threads.

use linerate_record::cost::ThreadCost;
use linerate_record::facts::Role;
use linerate_record::ids::CaveatId;
use linerate_record::plan::{Direction, Plan, RunKind, TransportProtocol};
use linerate_record::record::{Caveat, CpuCost, DirectionFigures, FlowEnd};
use linerate_stats::units::format_share;

/// CPU share from which a sending thread counts as saturated.
const BUSY_SHARE: f64 = 0.97;

/// Share of the calls, or of the time, in which a saturated thread may wait for buffer space.
const MAX_WAIT_SHARE: f64 = 0.01;

/// Share of lost datagrams above which the sender is not the limit.
const MAX_LOST_SHARE: f64 = 0.001;

/// Share of ready-to-run time from which sharing one CPU matters.
const MIN_RUNNABLE_SHARE: f64 = 0.05;

/// Cost of one end's threads.
#[derive(Clone, Copy, Debug)]
pub struct EndCpuCost<'a> {
    pub role: Role,
    /// Identifies its machine.
    pub boot_id: Option<&'a str>,
    /// CPU cost of its threads.
    pub cpu: Option<&'a CpuCost>,
}

/// Returns the warnings for a run with these thread costs.
#[must_use]
pub fn limit_warnings(
    plan: &Plan,
    ends: &[EndCpuCost<'_>],
    directions: &[DirectionFigures],
) -> Vec<Caveat> {
    let saturated = (plan.directions.iter())
        .filter(|_| plan.kind == RunKind::Throughput)
        .filter_map(|&direction| saturated_sender(plan, ends, directions, direction));
    saturated.chain(shared_core(ends)).collect()
}

fn threads_of<'a>(
    ends: &'a [EndCpuCost<'a>],
    direction: Direction,
    role: FlowEnd,
) -> impl Iterator<Item = (Role, &'a ThreadCost)> {
    let all = ends.iter().flat_map(|end| {
        let threads = end.cpu.iter().flat_map(|cpu| &cpu.threads);
        threads.map(move |thread| (end.role, thread))
    });
    all.filter(move |(_, thread)| thread.direction == direction && thread.flow_end == role)
}

/// Warns when all sending threads of a direction were busy without waiting: the path may carry
/// more.
fn saturated_sender(
    plan: &Plan,
    ends: &[EndCpuCost<'_>],
    directions: &[DirectionFigures],
    direction: Direction,
) -> Option<Caveat> {
    if plan.rate_bps.is_some() {
        return None;
    }
    let figures = directions
        .iter()
        .find(|direction_figures| direction_figures.direction == direction);
    let lost = figures.and_then(|direction_figures| direction_figures.summary.loss_fraction);
    if plan.protocol == TransportProtocol::Udp && lost.is_none_or(|lost| lost > MAX_LOST_SHARE) {
        return None;
    }
    let mut least_busy: Option<(Role, f64)> = None;
    for (role, thread) in threads_of(ends, direction, FlowEnd::Sender) {
        let wall = thread.wall_ns.max(1) as f64;
        let busy = thread.cpu_ns as f64 / wall;
        let blocked_share = thread.blocked_ns? as f64 / wall;
        let calls = thread.calls.filter(|&calls| calls > 0);
        let empty = (thread.empty_calls.zip(calls))
            .map_or(0.0, |(empty, calls)| empty as f64 / calls as f64);
        if busy < BUSY_SHARE || blocked_share > MAX_WAIT_SHARE || empty > MAX_WAIT_SHARE {
            return None;
        }
        let lowest = least_busy.map_or(f64::INFINITY, |(_, busy)| busy);
        least_busy = Some((role, busy.min(lowest)));
    }
    let (role, busy) = least_busy?;
    Some(Caveat::new(
        CaveatId::GeneratorSaturated,
        format!(
            "the {}'s sending threads were busy for {} of the time and never waited for buffer space: \
             {direction} may be limited by them, not by the path",
            role.as_str(),
            format_share(busy),
        ),
    ))
}

/// Warns when threads of both ends shared a CPU of one machine and waited for it.
fn shared_core(ends: &[EndCpuCost<'_>]) -> Option<Caveat> {
    let [a, b] = ends else { return None };
    if b.boot_id != Some(a.boot_id?) {
        return None;
    }
    let (a, b) = (a.cpu?, b.cpu?);
    let runnable_share = a.runnable_share?.max(b.runnable_share?);
    if runnable_share < MIN_RUNNABLE_SHARE {
        return None;
    }
    let cpus_of = |threads: &[ThreadCost]| -> Vec<u32> {
        let cpus = threads.iter().filter_map(|thread| thread.cpus.as_ref());
        cpus.flat_map(|cpus| cpus.0.clone()).collect()
    };
    let other_cpus = cpus_of(&b.threads);
    let core = cpus_of(&a.threads)
        .into_iter()
        .find(|cpu| other_cpus.contains(cpu))?;
    Some(Caveat::new(
        CaveatId::CoreShared,
        format!(
            "threads of both ends ran on CPU {core}, and those of one waited for it (ready to run) for {} of \
             the time",
            format_share(runnable_share)
        ),
    ))
}

#[cfg(test)]
mod tests {
    use linerate_record::ids::StoredId;
    use linerate_record::plan::CpuList;

    use super::*;

    fn thread(role: FlowEnd, cpu_ns: u64, runnable_ns: u64, cpu: u32) -> ThreadCost {
        ThreadCost {
            direction: Direction::Send,
            flow_end: role,
            flows: 1,
            wall_ns: 1_000,
            cpu_ns,
            user_ns: 0,
            system_ns: cpu_ns,
            runnable_ns: Some(runnable_ns),
            blocked_ns: Some(1_000 - cpu_ns - runnable_ns),
            voluntary_switches: 0,
            involuntary_switches: 0,
            cpus: Some(CpuList(vec![cpu])),
            calls: Some(1_000),
            empty_calls: Some(0),
            cycles: None,
            instructions: None,
        }
    }

    fn cost(role: Role, thread: ThreadCost) -> CpuCost {
        CpuCost {
            role,
            share: thread.cpu_ns as f64 / 1e3,
            user_share: None,
            voluntary_switches: 0,
            involuntary_switches: 0,
            blocked_share: thread.blocked_ns.map(|ns| ns as f64 / 1e3),
            runnable_share: thread.runnable_ns.map(|ns| ns as f64 / 1e3),
            empty_share: None,
            ns_per_byte: None,
            ns_per_packet: None,
            cycles: None,
            instructions: None,
            uncounted_reason: None,
            throttling: None,
            machine: None,
            processors: Vec::new(),
            threads: vec![thread],
        }
    }

    fn warning_ids(
        sender: ThreadCost,
        receiver: ThreadCost,
        change: fn(&mut Plan),
    ) -> Vec<StoredId<CaveatId>> {
        let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Tcp, "host");
        change(&mut plan);
        let costs = [cost(Role::Client, sender), cost(Role::Server, receiver)];
        let ends = costs.each_ref().map(|cost| EndCpuCost {
            role: cost.role,
            boot_id: Some("one machine"),
            cpu: Some(cost),
        });
        let caveats = limit_warnings(&plan, &ends, &[]);
        caveats.into_iter().map(|caveat| caveat.id).collect()
    }

    #[test]
    fn a_sender_that_never_waits_is_the_limit() {
        let receiver = || thread(FlowEnd::Receiver, 500, 0, 1);
        let busy = || thread(FlowEnd::Sender, 995, 0, 0);
        let none = |_: &mut Plan| {};
        assert_eq!(
            warning_ids(busy(), receiver(), none),
            [CaveatId::GeneratorSaturated]
        );
        let waiting = thread(FlowEnd::Sender, 700, 0, 0);
        assert!(warning_ids(waiting, receiver(), none).is_empty());
        // A spinning sender is always busy: only its empty calls show whether it waited.
        let mut spinning = busy();
        spinning.empty_calls = Some(300);
        assert!(warning_ids(spinning, receiver(), none).is_empty());
        assert!(warning_ids(busy(), receiver(), |plan| plan.rate_bps = Some(1_000)).is_empty());
        // Without the receiver's count, its losses are unknown.
        assert!(
            warning_ids(busy(), receiver(), |plan| plan.protocol =
                TransportProtocol::Udp)
            .is_empty()
        );
        let mut unknown = busy();
        unknown.blocked_ns = None;
        assert!(warning_ids(unknown, receiver(), none).is_empty());
    }

    #[test]
    fn ends_that_wait_for_one_cpu_share_it() {
        let sender = || thread(FlowEnd::Sender, 600, 100, 1);
        let none = |_: &mut Plan| {};
        assert_eq!(
            warning_ids(sender(), thread(FlowEnd::Receiver, 500, 0, 1), none),
            [CaveatId::CoreShared]
        );
        assert!(warning_ids(sender(), thread(FlowEnd::Receiver, 500, 0, 0), none).is_empty());
        // Round trips too: their requests wait where the responding thread runs.
        let round_trips = |plan: &mut Plan| plan.kind = RunKind::Latency;
        assert_eq!(
            warning_ids(sender(), thread(FlowEnd::Receiver, 500, 0, 1), round_trips),
            [CaveatId::CoreShared]
        );
        let busy = thread(FlowEnd::Sender, 995, 0, 0);
        let receiver = thread(FlowEnd::Receiver, 500, 0, 1);
        assert!(warning_ids(busy, receiver, round_trips).is_empty());
        let calm = thread(FlowEnd::Sender, 600, 10, 1);
        assert!(warning_ids(calm, thread(FlowEnd::Receiver, 500, 10, 1), none).is_empty());
    }
}
