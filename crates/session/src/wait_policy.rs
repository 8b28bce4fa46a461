//! Wait policy: default wait mode and number of threads of an end.

use linerate_record::plan::{RunKind, WaitMode};

/// Inputs of the default wait mode.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WaitContext<'a> {
    pub kind: RunKind,
    /// This end receives payload.
    pub receives: bool,
    /// The sender keeps a rate.
    pub is_paced: bool,
    /// The sender's congestion control, where it is known.
    pub congestion_control: Option<&'a str>,
    /// The sender is another program's TCP, whose congestion control this end cannot read.
    pub is_sender_unknown: bool,
    /// Busy threads on the CPUs: those of this run (of both ends when they share the machine) and
    /// of other runs.
    pub busy_threads: usize,
    /// Number of usable CPUs.
    pub cpus: usize,
    /// CPU quota of this process, in CPUs; absent without a limit.
    pub cpu_quota: Option<f64>,
    /// Flows of a direction.
    pub streams: usize,
    /// Threads of a direction.
    pub threads: usize,
    /// Connections are counted, their single times are not.
    pub connections: bool,
}

/// Flows of one thread up to which spinning over all of them is efficient: an empty poll costs 0.2
/// us.
const MAX_SPIN_FLOWS_PER_THREAD: usize = 4;

/// Congestion controls that pace segments. A spinning receiver acknowledges each segment at once,
/// and the rate then depends on the sender's timers (a drop from 100 to 3 Gb/s was measured on
/// loopback).
const PACING_CONGESTION_CONTROLS: &[&str] = &["bbr", "bbr2", "bbr3", "bbr1"];

/// Returns the wait mode of threads that sleep: a blocking call serves one flow.
#[must_use]
pub fn sleeping_wait(streams: usize, threads: usize) -> WaitMode {
    match streams <= threads {
        true => WaitMode::Block,
        false => WaitMode::Epoll,
    }
}

/// Returns the wait mode and its reason.
#[must_use]
pub fn choose_wait(situation: &WaitContext<'_>) -> (WaitMode, String) {
    let WaitContext {
        kind,
        receives,
        is_paced,
        congestion_control,
        is_sender_unknown,
        busy_threads,
        cpus,
        cpu_quota,
        streams,
        threads,
        connections,
    } = *situation;
    let sleeping = |reason: String| match sleeping_wait(streams, threads) {
        WaitMode::Block => (WaitMode::Block, reason),
        wait => {
            let prefix = format!("{streams} flows share {}", thread_text(threads));
            (wait, format!("{prefix}, and {reason}"))
        }
    };
    if connections && streams > threads {
        return sleeping("each ready connection continues".to_owned());
    }
    if kind == RunKind::Latency {
        return (
            WaitMode::Block,
            "that is the default of applications".to_owned(),
        );
    }
    if !receives {
        return sleeping("a sender gains nothing by spinning".to_owned());
    }
    if is_paced {
        return sleeping("the rate is limited".to_owned());
    }
    if is_sender_unknown {
        return sleeping(
            "a spinning receiver may slow down the sender's unknown pacing".to_owned(),
        );
    }
    if let Some(name) = congestion_control.filter(|name| PACING_CONGESTION_CONTROLS.contains(name))
    {
        return sleeping(format!("a spinning receiver slows down {name}'s pacing"));
    }
    if busy_threads > cpus {
        return sleeping(format!("{busy_threads} busy threads share {cpus} CPUs"));
    }
    // Spinning threads use all of their time, and other threads of the process need some, too.
    if let Some(quota) = cpu_quota.filter(|&quota| quota <= busy_threads as f64) {
        return sleeping(format!(
            "spinning would use up the CPU quota of {quota:.2} CPUs"
        ));
    }
    if streams > threads.saturating_mul(MAX_SPIN_FLOWS_PER_THREAD) {
        return sleeping("they are too many to poll each in a loop".to_owned());
    }
    (WaitMode::Spin, "a CPU is free for the receiver".to_owned())
}

fn thread_text(threads: usize) -> String {
    match threads {
        1 => "1 thread".to_owned(),
        n => format!("{n} threads"),
    }
}

/// Returns the default number of threads of a direction. `connections`: they are counted, their
/// single times are not.
#[must_use]
pub fn choose_threads(
    kind: RunKind,
    requested: Option<WaitMode>,
    streams: usize,
    cpus: usize,
    connections: bool,
) -> usize {
    let own_thread = match (kind, requested) {
        // Blocking calls serve one flow each, and its times are independent of the others.
        (
            _,
            Some(
                WaitMode::Block
                | WaitMode::Poll
                | WaitMode::Select { .. }
                | WaitMode::BusyPoll { .. },
            ),
        ) => true,
        // Threads beyond the number of CPUs take time from each other and from the coordinator.
        (RunKind::Latency, None) => !connections,
        (
            _,
            Some(WaitMode::Spin | WaitMode::Epoll | WaitMode::IoUring | WaitMode::Interval { .. }),
        ) => false,
        (RunKind::Throughput | RunKind::Forward | RunKind::Generate | RunKind::Stack, None) => {
            streams <= cpus.saturating_mul(OWN_THREAD_FLOWS_PER_CPU)
        }
    };
    if own_thread {
        streams
    } else {
        streams.min(cpus).max(1)
    }
}

/// Flows per CPU up to which each flow has a thread of its own: on fewer threads, such flows would
/// get shares as uneven as 3:2. Above it, one thread per CPU needs less time per byte
/// (docs/method/defaults.md#many-streams).
const OWN_THREAD_FLOWS_PER_CPU: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spins_only_where_it_helps() {
        let fit = WaitContext {
            kind: RunKind::Throughput,
            receives: true,
            is_paced: false,
            congestion_control: Some("cubic"),
            is_sender_unknown: false,
            busy_threads: 2,
            cpus: 2,
            cpu_quota: None,
            streams: 1,
            threads: 1,
            connections: false,
        };
        let many = WaitContext {
            streams: 100,
            threads: 2,
            ..fit
        };
        for (situation, expected) in [
            (fit, WaitMode::Spin),
            (
                WaitContext {
                    congestion_control: None,
                    ..fit
                },
                WaitMode::Spin,
            ),
            (
                WaitContext {
                    congestion_control: Some("bbr"),
                    ..fit
                },
                WaitMode::Block,
            ),
            (
                WaitContext {
                    is_sender_unknown: true,
                    ..fit
                },
                WaitMode::Block,
            ),
            (
                WaitContext {
                    is_paced: true,
                    ..fit
                },
                WaitMode::Block,
            ),
            (
                WaitContext {
                    receives: false,
                    ..fit
                },
                WaitMode::Block,
            ),
            (
                WaitContext {
                    busy_threads: 3,
                    ..fit
                },
                WaitMode::Block,
            ),
            (
                WaitContext {
                    kind: RunKind::Latency,
                    ..fit
                },
                WaitMode::Block,
            ),
            (
                WaitContext {
                    cpu_quota: Some(0.3),
                    ..fit
                },
                WaitMode::Block,
            ),
            (
                WaitContext {
                    cpu_quota: Some(2.0),
                    ..fit
                },
                WaitMode::Block,
            ),
            (
                WaitContext {
                    cpu_quota: Some(2.5),
                    ..fit
                },
                WaitMode::Spin,
            ),
            (
                WaitContext {
                    cpu_quota: Some(1.0),
                    streams: 8,
                    ..many
                },
                WaitMode::Epoll,
            ),
            (many, WaitMode::Epoll),
            (
                WaitContext {
                    kind: RunKind::Latency,
                    connections: true,
                    ..many
                },
                WaitMode::Epoll,
            ),
            (
                WaitContext {
                    kind: RunKind::Latency,
                    connections: true,
                    ..fit
                },
                WaitMode::Block,
            ),
            (WaitContext { streams: 8, ..many }, WaitMode::Spin),
            (
                WaitContext {
                    receives: false,
                    ..many
                },
                WaitMode::Epoll,
            ),
            (
                WaitContext {
                    busy_threads: 4,
                    streams: 3,
                    ..many
                },
                WaitMode::Epoll,
            ),
        ] {
            assert_eq!(choose_wait(&situation).0, expected, "{situation:?}");
        }
    }

    #[test]
    fn many_streams_share_a_thread_a_core() {
        let throughput = RunKind::Throughput;
        let threads = |kind, requested, streams| choose_threads(kind, requested, streams, 2, false);
        for (kind, requested, streams, expected) in [
            (throughput, None, 1, 1),
            (
                throughput,
                None,
                2 * OWN_THREAD_FLOWS_PER_CPU,
                2 * OWN_THREAD_FLOWS_PER_CPU,
            ),
            (throughput, None, 2 * OWN_THREAD_FLOWS_PER_CPU + 1, 2),
            (throughput, None, 10_000, 2),
            (throughput, Some(WaitMode::Block), 10_000, 10_000),
            (throughput, Some(WaitMode::Epoll), 3, 2),
            (throughput, Some(WaitMode::Spin), 1, 1),
            (RunKind::Latency, None, 50, 50),
            (RunKind::Latency, Some(WaitMode::Spin), 50, 2),
        ] {
            assert_eq!(
                threads(kind, requested, streams),
                expected,
                "{requested:?} {streams}"
            );
        }
        for (requested, streams, expected) in [
            (None, 1, 1),
            (None, 3, 2),
            (None, 500, 2),
            (Some(WaitMode::Block), 500, 500),
        ] {
            let got = super::choose_threads(RunKind::Latency, requested, streams, 2, true);
            assert_eq!(got, expected, "{requested:?} {streams} connections");
        }
    }
}
