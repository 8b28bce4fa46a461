//! What a run cost the hosts: processor time thread by thread, the machine's own work, memory.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::facts::Role;
use crate::plan::{Cpus, Direction};
use crate::record::CountedAt;

/// Threads of an end that a record lists one by one; the sums hold all of them.
pub const THREADS_LISTED: usize = 64;

/// What one measuring thread cost, from the start to its end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ThreadCost {
    /// Which way its flows went.
    pub direction: Direction,
    /// What it did in them: `sender` (the asking end of round trips) or `receiver`.
    pub part: CountedAt,
    /// Flows that it moved.
    pub flows: u32,
    /// Time from the start to its end, ns.
    pub wall_ns: u64,
    /// Processor time, ns: exact to the scheduler's clock.
    pub cpu_ns: u64,
    /// Of that in user mode, ns; an estimate where the kernel samples it by ticks.
    pub user_ns: u64,
    /// Of that in the kernel, ns; an estimate likewise.
    pub system_ns: u64,
    /// Time that it could have run and did not, ns (run_delay of /proc/PID/schedstat):
    /// [`ThreadCost::delay`] tells waking up from waiting for a core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runnable_ns: Option<u64>,
    /// Time that it slept, ns: wall time less the two above. What sends sleeps for room, what
    /// receives sleeps for payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked_ns: Option<u64>,
    /// Times it went to sleep.
    pub voluntary_switches: u64,
    /// Times it was pushed off its processor.
    pub involuntary_switches: u64,
    /// Processors that it was seen on when intervals ended; absent: nobody looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Cpus>,
    /// Send or receive calls that were made; absent: not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls: Option<u64>,
    /// Of these, calls that found nothing to receive, or no room to send.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub empty_calls: Option<u64>,
    /// Processor cycles; absent where the machine counts none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cycles: Option<u64>,
    /// Instructions retired; absent where the machine counts none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<u64>,
}

/// What a receive call costs that finds nothing, ns (docs/METHOD.md, calls: 190 to 210 ns on the 2-core VM): by it calls in
/// vain tell of the free time of a thread that spins.
pub const EMPTY_CALL_NS: u64 = 200;

/// What waking up takes at most without anybody in the way, ns: from being made ready to running, a
/// core that leaves its idle state included (a halted virtual one: 15 to 25 us).
const WAKE_NS: u64 = 30_000;

/// Time in which a thread was ready to run and did not (run_delay): the kernel counts both as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delay {
    /// As long as a core takes to wake up after each sleep.
    pub waking_ns: u64,
    /// All beyond that: others had the core.
    pub waited_ns: u64,
}

impl Delay {
    /// Both parts of what the scheduler counted over so many sleeps.
    #[must_use]
    pub fn of(runnable_ns: u64, sleeps: u64) -> Self {
        let waking_ns = runnable_ns.min(sleeps.saturating_mul(WAKE_NS));
        Self {
            waking_ns,
            waited_ns: runnable_ns - waking_ns,
        }
    }

    /// The sum over threads; `None` without any, and where the scheduler told nothing of one.
    #[must_use]
    pub fn of_all<'a>(threads: impl IntoIterator<Item = &'a ThreadCost>) -> Option<Self> {
        let each: Option<Vec<Self>> = threads.into_iter().map(ThreadCost::delay).collect();
        let each = each.filter(|each| !each.is_empty())?;
        Some(Self {
            waking_ns: each.iter().map(|delay| delay.waking_ns).sum(),
            waited_ns: each.iter().map(|delay| delay.waited_ns).sum(),
        })
    }
}

/// Shares of some threads' time, 0 to 1: waking up, and waiting for a core. Threads of which the
/// scheduler told nothing are left out; `None` when those are all.
#[must_use]
pub fn delay_shares(threads: &[ThreadCost]) -> Option<(f64, f64)> {
    let noted: Vec<_> = (threads.iter())
        .filter(|thread| thread.blocked_ns.is_some())
        .collect();
    let wall: u64 = noted.iter().map(|thread| thread.wall_ns).sum();
    let delay = Delay::of_all(noted).filter(|_| wall > 0)?;
    let share = |ns: u64| (ns as f64 / wall as f64).min(1.0);
    Some((share(delay.waking_ns), share(delay.waited_ns)))
}

impl ThreadCost {
    /// What of its time ready to run was waking up, and what was waiting for a core.
    #[must_use]
    pub fn delay(&self) -> Option<Delay> {
        let runnable_ns = self.runnable_ns?;
        Some(Delay::of(runnable_ns, self.voluntary_switches))
    }
}

/// Where the time of all processors of a machine went while a run moved payload, in ns
/// (/proc/stat, which most kernels sample by ticks). Everything that ran there is in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct MachineTime {
    /// Processors.
    pub processors: u32,
    /// Programs in user mode.
    pub user_ns: u64,
    /// The kernel on behalf of programs.
    pub system_ns: u64,
    /// Hardware interrupts.
    pub irq_ns: u64,
    /// Deferred interrupt work: most of a network stack's receiving.
    pub softirq_ns: u64,
    /// Taken by the hypervisor for others.
    pub steal_ns: u64,
    /// Idle, waiting for disks included.
    pub idle_ns: u64,
}

/// What a processor's time has to come to before shares of it mean something, ns: ten of the ticks
/// (USER_HZ, 10 ms each) that /proc/stat counts in.
const SHARES_OF_NS: u64 = 100_000_000;

impl MachineTime {
    /// All processors' time together: what they were looked at for, whatever a thread's own time was.
    #[must_use]
    pub fn whole_ns(&self) -> u64 {
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

    /// A part of it as a share, 0 to 1; `None` over so short a time that a tick more or less decides.
    #[must_use]
    pub fn share(&self, part_ns: u64) -> Option<f64> {
        let whole = self.whole_ns();
        let enough = SHARES_OF_NS.saturating_mul(self.processors.max(1).into());
        (whole >= enough).then(|| (part_ns as f64 / whole as f64).min(1.0))
    }
}

/// Where the time of one processor went meanwhile, in ns (/proc/stat), and what it received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ProcessorTime {
    /// Its number.
    pub cpu: u32,
    /// Programs, and the kernel on their behalf.
    pub program_ns: u64,
    /// Interrupts and deferred interrupt work.
    pub interrupt_ns: u64,
    /// Taken by the hypervisor for others.
    pub steal_ns: u64,
    /// Idle.
    pub idle_ns: u64,
    /// Rounds of deferred receive work (NET_RX of /proc/softirqs).
    pub receive_rounds: u64,
}

/// What the flows of one end took in memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryCost {
    /// Which end.
    pub role: Role,
    /// Flows at that end, both directions.
    pub streams: u32,
    /// Growth of the process's resident memory from before its flows were opened to the end of the
    /// run, by flow; threads, call buffers and other tests of a server are in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_bytes_per_stream: Option<f64>,
    /// Memory that a socket held for its queues: the largest mean over its flows at an interval's
    /// end (SO_MEMINFO, of up to 64 flows). The kernel's own structures are not in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_bytes_per_stream: Option<f64>,
}

/// How the threads of one end spent an interval, as shares of its length, 0 to 1: means over the
/// threads that have not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ThreadShares {
    /// On a processor.
    pub running: f64,
    /// Ready to run and not running: waking up, and waiting for a core.
    pub runnable: f64,
    /// Asleep in a send, receive or waiting call.
    pub blocked: f64,
}

/// What the sending kernels told of a direction's TCP connections (TCP_INFO), for one interval.
///
/// Counts are those of the interval, states those at its end; all flows added up where a mean is
/// not named. A field that an older kernel lacks is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TcpInterval {
    /// Connections that were looked at.
    pub flows: u32,
    /// Congestion windows, in bytes.
    pub cwnd_bytes: u64,
    /// Mean of the smoothed round-trip times.
    pub rtt_ns: u64,
    /// Least of the least round-trip times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_rtt_ns: Option<u64>,
    /// Mean over flows of the rates of their latest deliveries: what one got while it was its turn. With
    /// several flows, their number times this is more than ever passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery_rate_bps: Option<u64>,
    /// Segments sent again.
    pub retransmits: u64,
    /// Bytes sent again (Linux 4.19).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retransmitted_bytes: Option<u64>,
    /// Segments that arrived twice, as the receiver said (DSACK): retransmits that were not needed
    /// (Linux 4.19).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spurious_retransmits: Option<u64>,
    /// Times the sender found segments reordered (Linux 4.19).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reordering_seen: Option<u64>,
    /// Retransmission time-outs (Linux 6.7).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<u64>,
    /// Segments that arrived with a congestion mark (ECN, Linux 4.18).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub marked: Option<u64>,
    /// Share of the interval with data to send, 0 to 1; mean over flows (Linux 4.10).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy: Option<f64>,
    /// Share limited by the receiver's window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive_window_limited: Option<f64>,
    /// Share limited by the send buffer (the kernel misses most of it: docs/METHOD.md).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_buffer_limited: Option<f64>,
}

/// Flows of a direction up to which the series holds each of them.
pub const STREAMS_IN_SERIES: u32 = 64;

/// One flow's part of an interval.
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
    /// UDP: numbers found missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
    /// TCP: segments sent again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retransmits: Option<u64>,
    /// TCP: congestion window at the end, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwnd_bytes: Option<u64>,
    /// TCP: smoothed round-trip time at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp_rtt_ns: Option<u64>,
}

/// Jain's fairness index of what flows got: 1 when all got the same, 1/n when one got everything.
///
/// Formula: `(sum x)^2 / (n * sum x^2)` (Jain, Chiu, Hawe, DEC-TR-301, 1984). `None` for fewer than
/// two flows, and when nothing was got.
#[must_use]
pub fn fairness(shares: &[f64]) -> Option<f64> {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    (shares.len() > 1 && squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fairness_of_known_shares() {
        for (shares, want) in [
            (&[][..], None),
            (&[5.0][..], None),
            (&[0.0, 0.0][..], None),
            (&[5.0, 5.0, 5.0][..], Some(1.0)),
            (&[8.0, 0.0, 0.0, 0.0][..], Some(0.25)),
            (&[1.0, 2.0, 3.0][..], Some(36.0 / 42.0)),
        ] {
            let got = fairness(shares);
            let near = match (got, want) {
                (Some(got), Some(want)) => (got - want).abs() < 1e-12,
                (got, want) => got == want,
            };
            assert!(near, "{shares:?}: {got:?}");
        }
    }

    fn thread(runnable_ns: Option<u64>, sleeps: u64) -> ThreadCost {
        ThreadCost {
            direction: Direction::Send,
            part: CountedAt::Sender,
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
            // A tenth of a second on two processors is the least.
            ([5, 4, 10], None),
            ([5, 5, 10], Some(0.5)),
            ([0, 0, 400], Some(1.0)),
        ] {
            let time = time(ticks);
            assert_eq!(time.share(time.idle_ns), idle, "{ticks:?}");
        }
    }

    #[test]
    fn waking_up_is_no_waiting_for_a_core() {
        for (runnable, sleeps, want) in [
            (0, 5, (0, 0)),
            (400_000, 0, (0, 400_000)),
            (400_000, 10, (300_000, 100_000)),
            (400_000, 100, (400_000, 0)),
        ] {
            let delay = Delay::of(runnable, sleeps);
            assert_eq!(
                (delay.waking_ns, delay.waited_ns),
                want,
                "{runnable} {sleeps}"
            );
        }
        let threads = [
            thread(Some(400_000), 10),
            thread(Some(0), 0),
            thread(None, 9),
        ];
        let (waking, waited) = delay_shares(&threads).unwrap();
        assert!((waking - 0.15).abs() < 1e-9 && (waited - 0.05).abs() < 1e-9);
        assert_eq!(delay_shares(&[thread(None, 1)]), None);
        assert_eq!(Delay::of_all(&threads), None);
        assert_eq!(Delay::of_all(&[]), None);
    }

    proptest! {
        #[test]
        fn fairness_lies_between_one_share_and_all(shares in prop::collection::vec(0.0f64..1e12, 2..200)) {
            if let Some(index) = fairness(&shares) {
                let least = 1.0 / shares.len() as f64;
                prop_assert!((least * 0.999_999..=1.000_001).contains(&index), "{}", index);
            }
        }
    }
}
