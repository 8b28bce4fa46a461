//! Cost of a run on its hosts: processor time by thread and by machine, and memory.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ends::FlowEnd;
use crate::facts::Role;
use crate::plan::{CpuList, Direction};

/// Most threads of an end that a record lists; the sums include all threads.
pub const MAX_LISTED_THREADS: usize = 64;

/// Cost of one measuring thread, from its start to its end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ThreadCost {
    /// Direction of its flows.
    pub direction: Direction,
    /// End of the flows: `sender` (for round trips the requesting end) or `receiver`.
    #[serde(alias = "part")]
    pub flow_end: FlowEnd,
    /// Flows that it moved.
    pub flows: u32,
    /// Wall time from its start to its end, ns.
    pub wall_ns: u64,
    /// Processor time, ns: as exact as the scheduler's clock.
    pub cpu_ns: u64,
    /// Processor time in user mode, ns; an estimate if the kernel samples it by ticks.
    pub user_ns: u64,
    /// Processor time in the kernel, ns; an estimate if the kernel samples it by ticks.
    pub system_ns: u64,
    /// Time runnable and not running, ns (run_delay of /proc/PID/schedstat):
    /// [`ThreadCost::run_delay`] divides it into wake-up latency and waiting for a core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runnable_ns: Option<u64>,
    /// Time asleep, ns: wall time less processor time and `runnable_ns`. A sender sleeps for buffer
    /// space, a receiver for payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked_ns: Option<u64>,
    /// Voluntary context switches.
    pub voluntary_switches: u64,
    /// Involuntary context switches.
    pub involuntary_switches: u64,
    /// Processors on which the thread was sampled while it ran, and at its end; absent: not sampled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuList>,
    /// Send or receive calls; absent: not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls: Option<u64>,
    /// Calls that had nothing to receive, or no buffer space to send.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub empty_calls: Option<u64>,
    /// Processor cycles; absent if the machine has no counter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cycles: Option<u64>,
    /// Instructions retired; absent if the machine has no counter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<u64>,
}

/// Cost of a receive call without data, ns (docs/method/defaults.md#constants-of-estimates: 190 to
/// 210 ns on the 2-core VM). With it, empty calls give the idle time of a spinning thread.
pub const EMPTY_CALL_NS: u64 = 200;

/// Longest wake-up latency on a free core, ns: from runnable to running, including the exit from an
/// idle state (for a halted virtual core 15 to 25 us).
const MAX_WAKEUP_NS: u64 = 30_000;

/// Time runnable and not running (run_delay), divided into its two causes; the kernel reports only
/// the sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunDelay {
    /// Wake-up latency: at most 30 us for each sleep.
    pub wakeup_ns: u64,
    /// Rest: time in which other threads had the core.
    pub core_wait_ns: u64,
}

impl RunDelay {
    /// Splits the scheduler's run delay over a number of sleeps.
    #[must_use]
    pub fn split(runnable_ns: u64, sleeps: u64) -> Self {
        let waking_ns = runnable_ns.min(sleeps.saturating_mul(MAX_WAKEUP_NS));
        Self {
            wakeup_ns: waking_ns,
            core_wait_ns: runnable_ns - waking_ns,
        }
    }

    /// Returns the sum over threads; `None` without threads, or if a thread has no run delay.
    #[must_use]
    pub fn sum_over<'a>(threads: impl IntoIterator<Item = &'a ThreadCost>) -> Option<Self> {
        let each: Option<Vec<Self>> = threads.into_iter().map(ThreadCost::run_delay).collect();
        let each = each.filter(|each| !each.is_empty())?;
        Some(Self {
            wakeup_ns: each.iter().map(|run_delay| run_delay.wakeup_ns).sum(),
            core_wait_ns: each.iter().map(|run_delay| run_delay.core_wait_ns).sum(),
        })
    }
}

/// Returns wake-up latency and waiting for a core as shares of the threads' time, 0 to 1. Threads
/// without a run delay are skipped; `None` if all are.
#[must_use]
pub fn run_delay_shares(threads: &[ThreadCost]) -> Option<(f64, f64)> {
    let measured: Vec<_> = (threads.iter())
        .filter(|thread| thread.blocked_ns.is_some())
        .collect();
    let wall: u64 = measured.iter().map(|thread| thread.wall_ns).sum();
    let run_delay = RunDelay::sum_over(measured).filter(|_| wall > 0)?;
    let share = |ns: u64| (ns as f64 / wall as f64).min(1.0);
    Some((share(run_delay.wakeup_ns), share(run_delay.core_wait_ns)))
}

impl ThreadCost {
    /// Returns its run delay, divided into wake-up latency and waiting for a core.
    #[must_use]
    pub fn run_delay(&self) -> Option<RunDelay> {
        let runnable_ns = self.runnable_ns?;
        Some(RunDelay::split(runnable_ns, self.voluntary_switches))
    }
}

/// Stops of an end's threads by a quota of processor time (cpu.stat of the cgroup). Includes all
/// programs of the cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CpuThrottling {
    /// Periods in which a thread ran.
    pub periods: u64,
    /// Periods in which the quota was used up.
    pub throttled_periods: u64,
    /// Time for which threads were stopped, ns: the sum over processors.
    pub throttled_ns: u64,
}

impl CpuThrottling {
    /// Returns why polling threads had less than their CPUs: the quota if it stopped them, or other
    /// threads.
    #[must_use]
    pub fn lost_time_reason(throttling: Option<&Self>) -> String {
        match throttling {
            Some(stops) if stops.throttled_periods > 0 => format!(
                "the CPU quota was used up in {} of {} periods",
                stops.throttled_periods, stops.periods
            ),
            _ => "other threads ran there".to_owned(),
        }
    }

    /// Returns the difference to an earlier reading.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let periods = self.periods.saturating_sub(earlier.periods);
        let throttled_periods = (self.throttled_periods).saturating_sub(earlier.throttled_periods);
        Self {
            periods,
            // The counts of nested cgroups are added, and both may be throttled in one period.
            throttled_periods: throttled_periods.min(periods),
            throttled_ns: self.throttled_ns.saturating_sub(earlier.throttled_ns),
        }
    }
}

/// Time of all processors of a machine while a run moved payload, by use, in ns (/proc/stat,
/// sampled by ticks on most kernels). Includes all programs of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct MachineTime {
    /// Number of processors.
    pub processors: u32,
    /// User mode.
    pub user_ns: u64,
    /// Kernel, for programs.
    pub system_ns: u64,
    /// Hardware interrupts.
    pub irq_ns: u64,
    /// Soft interrupts: most of the receive work of a network stack.
    pub softirq_ns: u64,
    /// Stolen by the hypervisor.
    pub steal_ns: u64,
    /// Idle, disk waits included.
    pub idle_ns: u64,
}

/// Shortest time per processor for which shares are meaningful, ns: ten ticks (USER_HZ, 10 ms each)
/// of /proc/stat.
const MIN_SHARE_TIME_NS: u64 = 100_000_000;

impl MachineTime {
    /// Returns the total time of all processors, which covers the measured period and not a
    /// thread's own time.
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        let parts = [
            self.user_ns,
            self.system_ns,
            self.irq_ns,
            self.softirq_ns,
            self.steal_ns,
            self.idle_ns,
        ];
        parts.into_iter().fold(0, u64::saturating_add)
    }

    /// Returns a part as a share of the total, 0 to 1; `None` if the time is so short that one tick
    /// decides.
    #[must_use]
    pub fn share_of_total(&self, part_ns: u64) -> Option<f64> {
        let total_ns = self.total_ns();
        let enough = MIN_SHARE_TIME_NS.saturating_mul(self.processors.max(1).into());
        (total_ns >= enough).then(|| (part_ns as f64 / total_ns as f64).min(1.0))
    }
}

/// Time of one processor during a run, in ns (/proc/stat), and its receive work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ProcessorTime {
    /// Processor number.
    pub cpu: u32,
    /// Programs, and the kernel for them.
    pub program_ns: u64,
    /// Hardware and soft interrupts.
    pub interrupt_ns: u64,
    /// Stolen by the hypervisor.
    pub steal_ns: u64,
    /// Idle.
    pub idle_ns: u64,
    /// NET_RX soft interrupts (/proc/softirqs).
    pub receive_rounds: u64,
}

/// Memory of the flows of one end.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryCost {
    /// End of the run.
    pub role: Role,
    /// Flows at that end, both directions.
    pub streams: u32,
    /// Growth of the process's resident memory per flow, from before its flows were opened to the
    /// end of the run. Includes threads, call buffers and other tests of the same server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_bytes_per_stream: Option<f64>,
    /// Memory of a socket's queues: the largest mean over its flows at the end of an interval
    /// (SO_MEMINFO, of up to 64 flows). Excludes the kernel's own structures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_bytes_per_stream: Option<f64>,
}

/// Use of an interval by the threads of one end, as shares of its length, 0 to 1: means over the
/// threads that are still running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ThreadShares {
    /// On a processor.
    pub running: f64,
    /// Runnable and not running: wake-up latency and waiting for a core.
    pub runnable: f64,
    /// Blocked in a send, receive or wait call.
    pub blocked: f64,
}

/// State of a direction's TCP connections at the sender (TCP_INFO), for one interval.
///
/// Counters are differences over the interval, states are those at its end. Values are sums over
/// all flows unless the field is a mean. A field that the kernel lacks is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TcpInterval {
    /// Connections that were sampled.
    pub flows: u32,
    /// Congestion windows in bytes.
    pub cwnd_bytes: u64,
    /// Mean smoothed round-trip time.
    pub rtt_ns: u64,
    /// Smallest minimum round-trip time of a flow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_rtt_ns: Option<u64>,
    /// Mean over the flows of their most recent delivery rate. With several flows, their number
    /// times this exceeds the real rate, because each is measured while it is sending.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery_rate_bps: Option<u64>,
    /// Segments retransmitted.
    pub retransmits: u64,
    /// Bytes retransmitted (Linux 4.19).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retransmitted_bytes: Option<u64>,
    /// Segments that arrived twice, as the receiver reported (DSACK): unnecessary retransmits
    /// (Linux 4.19).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spurious_retransmits: Option<u64>,
    /// Times the sender detected reordering (Linux 4.19).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reordering_seen: Option<u64>,
    /// Retransmission timeouts (Linux 6.7).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<u64>,
    /// Segments that arrived with a congestion mark (ECN, Linux 4.18).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub marked: Option<u64>,
    /// Share of the interval with data to send, 0 to 1; mean over the flows (Linux 4.10).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy: Option<f64>,
    /// Share limited by the receiver's window, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive_window_limited: Option<f64>,
    /// Share limited by the send buffer, 0 to 1 (the kernel misses most of it:
    /// docs/method/tcp-state.md).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_buffer_limited: Option<f64>,
}

/// Most flows of a direction for which the intervals list each flow.
pub const MAX_STREAMS_IN_SERIES: u32 = 64;

/// Figures of one flow in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StreamInterval {
    /// Number of the flow.
    pub id: u32,
    /// Payload bytes, at the end that counted the interval.
    pub bytes: u64,
    /// UDP: datagrams. Latency: round trips.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packets: Option<u64>,
    /// UDP: sequence numbers found missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
    /// TCP: segments retransmitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retransmits: Option<u64>,
    /// TCP: congestion window at the end of the interval, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwnd_bytes: Option<u64>,
    /// TCP: smoothed round-trip time at the end of the interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp_rtt_ns: Option<u64>,
}

/// Returns Jain's fairness index: 1 if all shares are equal, 1/n if one flow has everything.
///
/// Formula: `(sum x)^2 / (n * sum x^2)` (Jain, Chiu, Hawe, DEC-TR-301, 1984). `None` for fewer than
/// two flows, and if all shares are zero.
#[must_use]
pub fn fairness_index(shares: &[f64]) -> Option<f64> {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    (shares.len() > 1 && squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_quota_that_stopped_threads_is_the_reason() {
        let stops = |throttled_periods| CpuThrottling {
            periods: 20,
            throttled_periods,
            throttled_ns: 0,
        };
        let reason = CpuThrottling::lost_time_reason;
        let quota = "the CPU quota was used up in 18 of 20 periods";
        assert_eq!(reason(Some(&stops(18))), quota);
        for throttling in [None, Some(stops(0))] {
            assert_eq!(reason(throttling.as_ref()), "other threads ran there");
        }
    }

    #[test]
    fn periods_of_nested_cgroups_count_once() {
        let reading = |periods, throttled_periods| CpuThrottling {
            periods,
            throttled_periods,
            throttled_ns: 0,
        };
        for (earlier, later, expected) in [
            ((10, 3), (30, 9), (20, 6)),
            ((10, 3), (30, 43), (20, 20)),
            ((10, 3), (10, 3), (0, 0)),
        ] {
            let difference = reading(later.0, later.1).since(&reading(earlier.0, earlier.1));
            assert_eq!(difference, reading(expected.0, expected.1), "{later:?}");
        }
    }

    #[test]
    fn fairness_of_known_shares() {
        for (shares, expected) in [
            (&[][..], None),
            (&[5.0][..], None),
            (&[0.0, 0.0][..], None),
            (&[5.0, 5.0, 5.0][..], Some(1.0)),
            (&[8.0, 0.0, 0.0, 0.0][..], Some(0.25)),
            (&[1.0, 2.0, 3.0][..], Some(36.0 / 42.0)),
        ] {
            let got = fairness_index(shares);
            let is_close = match (got, expected) {
                (Some(got), Some(expected)) => (got - expected).abs() < 1e-12,
                (got, expected) => got == expected,
            };
            assert!(is_close, "{shares:?}: {got:?}");
        }
    }

    fn thread(runnable_ns: Option<u64>, sleeps: u64) -> ThreadCost {
        ThreadCost {
            direction: Direction::Send,
            flow_end: FlowEnd::Sender,
            flows: 1,
            wall_ns: 1_000_000,
            cpu_ns: 100_000,
            user_ns: 0,
            system_ns: 0,
            runnable_ns,
            blocked_ns: runnable_ns.map(|runnable| 900_000 - runnable),
            voluntary_switches: sleeps,
            involuntary_switches: 0,
            cpus: None,
            calls: None,
            empty_calls: None,
            cycles: None,
            instructions: None,
        }
    }

    #[test]
    fn shares_of_the_machine_are_of_its_own_time() {
        let time = |ticks: [u64; 3]| MachineTime {
            processors: 2,
            user_ns: ticks[0] * 10_000_000,
            softirq_ns: ticks[1] * 10_000_000,
            idle_ns: ticks[2] * 10_000_000,
            ..MachineTime::default()
        };
        for (ticks, idle) in [
            ([0, 0, 0], None),
            // The shortest time with shares: 0.1 s on each of two processors.
            ([5, 4, 10], None),
            ([5, 5, 10], Some(0.5)),
            ([0, 0, 400], Some(1.0)),
        ] {
            let time = time(ticks);
            assert_eq!(time.share_of_total(time.idle_ns), idle, "{ticks:?}");
        }
    }

    #[test]
    fn waking_up_is_no_waiting_for_a_core() {
        for (runnable, sleeps, expected) in [
            (0, 5, (0, 0)),
            (400_000, 0, (0, 400_000)),
            (400_000, 10, (300_000, 100_000)),
            (400_000, 100, (400_000, 0)),
        ] {
            let run_delay = RunDelay::split(runnable, sleeps);
            assert_eq!(
                (run_delay.wakeup_ns, run_delay.core_wait_ns),
                expected,
                "{runnable} {sleeps}"
            );
        }
        let threads = [
            thread(Some(400_000), 10),
            thread(Some(0), 0),
            thread(None, 9),
        ];
        let (wakeup, core_wait) = run_delay_shares(&threads).unwrap();
        assert!((wakeup - 0.15).abs() < 1e-9 && (core_wait - 0.05).abs() < 1e-9);
        assert_eq!(run_delay_shares(&[thread(None, 1)]), None);
        assert_eq!(RunDelay::sum_over(&threads), None);
        assert_eq!(RunDelay::sum_over(&[]), None);
    }

    proptest! {
        #[test]
        fn fairness_lies_between_one_share_and_all(shares in prop::collection::vec(0.0f64..1e12, 2..200)) {
            if let Some(index) = fairness_index(&shares) {
                let least = 1.0 / shares.len() as f64;
                prop_assert!((least * 0.999_999..=1.000_001).contains(&index), "{}", index);
            }
        }
    }
}
