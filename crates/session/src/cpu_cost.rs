//! CPU cost of one end's worker threads.

use linerate_record::cost::{MAX_LISTED_THREADS, MachineTime, ProcessorTime, ThreadCost};
use linerate_record::facts::Role;
use linerate_record::plan::{Plan, RunKind, TransportProtocol};
use linerate_record::record::CpuCost;
use linerate_record::throttling::CpuThrottling;
use linerate_sys::clock::Nanos;
use linerate_sys::cpu::ThreadUsage;
use linerate_workload::flow_counters::PayloadTotals;

/// Inputs of the CPU cost.
pub struct CpuCostInputs<'a> {
    pub role: Role,
    pub plan: &'a Plan,
    /// Time from the start to the end of the last thread.
    pub wall_ns: Nanos,
    /// CPU time of all threads.
    pub thread_usage: &'a ThreadUsage,
    /// Cost of each thread.
    pub thread_costs: &'a [ThreadCost],
    /// Moved payload, including the omitted time.
    pub totals: PayloadTotals,
    /// Stops by a CPU quota during the run.
    pub throttling: Option<CpuThrottling>,
    /// CPU time of the machine during the run.
    pub machine: Option<MachineTime>,
    /// CPU time of each CPU during the run.
    pub processors: Vec<ProcessorTime>,
    /// Reason why cycles and instructions are missing.
    pub uncounted_because: Option<&'a str>,
}

/// Returns the sum over all threads; `None` when one thread lacks the figure.
fn sum_known(threads: &[ThreadCost], read: impl Fn(&ThreadCost) -> Option<u64>) -> Option<u64> {
    let values: Option<Vec<u64>> = threads.iter().map(read).collect();
    values
        .filter(|values| !values.is_empty())
        .map(|values| values.iter().sum())
}

/// Returns a fraction, at most 1; `None` when the total is 0.
fn capped_share(part: Option<u64>, total: Option<u64>) -> Option<f64> {
    let total = total.filter(|&total| total > 0)?;
    Some((part? as f64 / total as f64).min(1.0))
}

/// Computes the CPU cost.
#[must_use]
pub fn cpu_cost(inputs: &CpuCostInputs<'_>) -> CpuCost {
    let CpuCostInputs {
        thread_usage: usage,
        thread_costs: threads,
        ..
    } = *inputs;
    let wall = inputs.wall_ns.max(1) as f64;
    // Only the first `MAX_LISTED_THREADS` threads have scheduler statistics.
    let sampled: Vec<_> = threads
        .iter()
        .filter(|thread| thread.blocked_ns.is_some())
        .cloned()
        .collect();
    let lifetime = sum_known(&sampled, |thread| Some(thread.wall_ns));
    let per = |count: u64| (count > 0).then(|| usage.cpu_ns as f64 / count as f64);
    let has_packets =
        inputs.plan.protocol == TransportProtocol::Udp || inputs.plan.kind == RunKind::Latency;
    CpuCost {
        role: inputs.role,
        share: usage.cpu_ns as f64 / wall,
        user_share: usage
            .has_reliable_split()
            .then(|| usage.user_ns as f64 / wall),
        voluntary_switches: usage.voluntary_switches,
        involuntary_switches: usage.involuntary_switches,
        blocked_share: capped_share(sum_known(&sampled, |thread| thread.blocked_ns), lifetime),
        runnable_share: capped_share(sum_known(&sampled, |thread| thread.runnable_ns), lifetime),
        empty_share: capped_share(
            sum_known(threads, |thread| thread.empty_calls),
            sum_known(threads, |thread| thread.calls),
        ),
        ns_per_byte: per(inputs.totals.bytes),
        ns_per_packet: has_packets.then(|| per(inputs.totals.packets)).flatten(),
        cycles: sum_known(threads, |thread| thread.cycles),
        instructions: sum_known(threads, |thread| thread.instructions),
        uncounted_reason: inputs.uncounted_because.map(str::to_owned),
        throttling: inputs.throttling,
        machine: inputs.machine,
        processors: inputs.processors.clone(),
        threads: threads.iter().take(MAX_LISTED_THREADS).cloned().collect(),
    }
}

#[cfg(test)]
mod tests {
    use linerate_record::plan::Direction;
    use linerate_record::record::FlowEnd;

    use super::*;

    fn thread(cpu_ns: u64, blocked_ns: Option<u64>) -> ThreadCost {
        ThreadCost {
            direction: Direction::Send,
            flow_end: FlowEnd::Sender,
            flows: 1,
            wall_ns: 1_000,
            cpu_ns,
            user_ns: 0,
            system_ns: cpu_ns,
            runnable_ns: blocked_ns.map(|blocked| 1_000 - cpu_ns - blocked),
            blocked_ns,
            voluntary_switches: 1,
            involuntary_switches: 2,
            cpus: None,
            calls: Some(10),
            empty_calls: Some(4),
            cycles: None,
            instructions: None,
        }
    }

    #[test]
    fn shares_cover_sampled_threads_only() {
        let plan = Plan::new(RunKind::Throughput, TransportProtocol::Tcp, "host");
        let threads = [
            thread(300, Some(600)),
            thread(100, Some(800)),
            thread(50, None),
        ];
        let usage = ThreadUsage {
            cpu_ns: 450,
            ..ThreadUsage::default()
        };
        let cost = cpu_cost(&CpuCostInputs {
            role: Role::Client,
            plan: &plan,
            wall_ns: 1_000,
            thread_usage: &usage,
            thread_costs: &threads,
            totals: PayloadTotals {
                bytes: 900,
                packets: 3,
                ..PayloadTotals::default()
            },
            throttling: None,
            machine: None,
            processors: Vec::new(),
            uncounted_because: Some("none here"),
        });
        assert_eq!(cost.blocked_share, Some(0.7));
        assert_eq!(cost.runnable_share, Some(0.1));
        assert_eq!(cost.empty_share, Some(0.4));
        assert_eq!(cost.ns_per_byte, Some(0.5));
        assert_eq!(
            cost.ns_per_packet, None,
            "a stream's packets are the kernel's"
        );
        assert_eq!(cost.user_share, None, "no tick fell into so little time");
        assert_eq!((cost.cycles, cost.threads.len()), (None, 3));
        assert_eq!(cost.uncounted_reason.as_deref(), Some("none here"));
    }
}
