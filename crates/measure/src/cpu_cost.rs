//! CPU cost of one end's worker threads.

use linerate_host::sys::clock::Nanos;
use linerate_host::sys::cpu::ThreadUsage;
use linerate_metric::cost::{MachineTime, ProcessorTime, THREADS_LISTED, ThreadCost};
use linerate_metric::facts::Role;
use linerate_metric::plan::{Kind, Plan, Protocol};
use linerate_metric::record::CpuCost;

use crate::flow_counters::Totals;

/// Inputs of the CPU cost.
pub struct Spent<'a> {
    pub role: Role,
    pub plan: &'a Plan,
    /// Time from the start to the end of the last thread.
    pub wall_ns: Nanos,
    /// CPU time of all threads.
    pub usage: &'a ThreadUsage,
    /// Cost of each thread.
    pub threads: &'a [ThreadCost],
    /// Moved payload, including the omitted time.
    pub moved: Totals,
    /// CPU time of the machine during the run.
    pub machine: Option<MachineTime>,
    /// CPU time of each CPU during the run.
    pub processors: Vec<ProcessorTime>,
    /// Reason why cycles and instructions are missing.
    pub uncounted: Option<&'a str>,
}

/// Returns the sum over all threads; `None` when one thread lacks the figure.
fn sum(threads: &[ThreadCost], read: impl Fn(&ThreadCost) -> Option<u64>) -> Option<u64> {
    let known: Option<Vec<u64>> = threads.iter().map(read).collect();
    known
        .filter(|known| !known.is_empty())
        .map(|known| known.iter().sum())
}

/// Returns a fraction, at most 1; `None` when the total is 0.
fn share(part: Option<u64>, whole: Option<u64>) -> Option<f64> {
    let whole = whole.filter(|&whole| whole > 0)?;
    Some((part? as f64 / whole as f64).min(1.0))
}

/// Computes the CPU cost.
#[must_use]
pub fn cpu(spent: &Spent<'_>) -> CpuCost {
    let Spent { usage, threads, .. } = *spent;
    let wall = spent.wall_ns.max(1) as f64;
    // Only the first `THREADS_LISTED` threads have scheduler statistics.
    let noted: Vec<_> = threads
        .iter()
        .filter(|thread| thread.blocked_ns.is_some())
        .cloned()
        .collect();
    let alive = sum(&noted, |thread| Some(thread.wall_ns));
    let per = |count: u64| (count > 0).then(|| usage.cpu_ns as f64 / count as f64);
    let has_packets = spent.plan.protocol == Protocol::Udp || spent.plan.kind == Kind::Latency;
    CpuCost {
        role: spent.role,
        share: usage.cpu_ns as f64 / wall,
        user_share: usage.knows_parts().then(|| usage.user_ns as f64 / wall),
        voluntary_switches: usage.voluntary_switches,
        involuntary_switches: usage.involuntary_switches,
        blocked_share: share(sum(&noted, |thread| thread.blocked_ns), alive),
        runnable_share: share(sum(&noted, |thread| thread.runnable_ns), alive),
        empty_share: share(
            sum(threads, |thread| thread.empty_calls),
            sum(threads, |thread| thread.calls),
        ),
        ns_per_byte: per(spent.moved.bytes),
        ns_per_packet: has_packets.then(|| per(spent.moved.packets)).flatten(),
        cycles: sum(threads, |thread| thread.cycles),
        instructions: sum(threads, |thread| thread.instructions),
        uncounted_because: spent.uncounted.map(str::to_owned),
        machine: spent.machine,
        processors: spent.processors.clone(),
        threads: threads.iter().take(THREADS_LISTED).cloned().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_metric::plan::Direction;
    use linerate_metric::record::CountedAt;

    fn thread(cpu_ns: u64, blocked_ns: Option<u64>) -> ThreadCost {
        ThreadCost {
            direction: Direction::Send,
            part: CountedAt::Sender,
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
    fn shares_are_of_those_that_are_known() {
        let plan = Plan::new(Kind::Throughput, Protocol::Tcp, "host");
        let threads = [
            thread(300, Some(600)),
            thread(100, Some(800)),
            thread(50, None),
        ];
        let usage = ThreadUsage {
            cpu_ns: 450,
            ..ThreadUsage::default()
        };
        let cost = cpu(&Spent {
            role: Role::Client,
            plan: &plan,
            wall_ns: 1_000,
            usage: &usage,
            threads: &threads,
            moved: Totals {
                bytes: 900,
                packets: 3,
                ..Totals::default()
            },
            machine: None,
            processors: Vec::new(),
            uncounted: Some("none here"),
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
        assert_eq!(cost.uncounted_because.as_deref(), Some("none here"));
    }
}
