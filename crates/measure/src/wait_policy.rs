//! Wait policy: default wait mode and number of threads of an end.

use linerate_metric::plan::{Kind, Wait};

/// Inputs of the default wait mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Situation<'a> {
    pub kind: Kind,
    /// This end receives payload.
    pub receives: bool,
    /// The sender keeps a rate.
    pub paced: bool,
    /// The sender's congestion control, where it is known.
    pub congestion_control: Option<&'a str>,
    /// Busy threads on the CPUs: those of this run (of both ends when they share the machine) and
    /// of other runs.
    pub busy_threads: usize,
    /// Number of usable CPUs.
    pub processors: usize,
    /// Flows of a direction.
    pub streams: usize,
    /// Threads of a direction.
    pub threads: usize,
    /// Connections are counted, their single times are not.
    pub connections: bool,
}

/// Flows of one thread up to which spinning over all of them is efficient: an empty poll costs 0.2
/// us.
const LOOKED_AT_IN_TURN: usize = 4;

/// Congestion controls that pace segments. A spinning receiver acknowledges each segment at once,
/// and the rate then depends on the sender's timers (a drop from 100 to 3 Gb/s was measured on
/// loopback).
const PACED: &[&str] = &["bbr", "bbr2", "bbr3", "bbr1"];

/// Returns the wait mode and its reason.
#[must_use]
pub fn wait(situation: &Situation<'_>) -> (Wait, String) {
    let Situation {
        kind,
        receives,
        paced,
        congestion_control,
        busy_threads,
        processors,
        streams,
        threads,
        connections,
    } = *situation;
    // A blocking call serves one flow.
    let asleep = |why: String| {
        if streams <= threads {
            (Wait::Block, why)
        } else {
            let shared = format!("{streams} streams on {}", count(threads));
            (Wait::Epoll, format!("{shared}; {why}"))
        }
    };
    if connections && streams > threads {
        return asleep("each ready connection continues".to_owned());
    }
    if kind == Kind::Latency {
        return (Wait::Block, "the default of applications".to_owned());
    }
    if !receives {
        return asleep("a sender gains nothing by spinning".to_owned());
    }
    if paced {
        return asleep("a rate leaves the receiver time to sleep".to_owned());
    }
    if let Some(name) = congestion_control.filter(|name| PACED.contains(name)) {
        return asleep(format!("a spinning receiver slows down {name}'s pacing"));
    }
    if busy_threads > processors {
        return asleep(format!(
            "{busy_threads} busy threads share {processors} CPUs"
        ));
    }
    if streams > threads.saturating_mul(LOOKED_AT_IN_TURN) {
        return asleep("too many to poll each in a loop".to_owned());
    }
    (Wait::Spin, "a CPU is free for the receiver".to_owned())
}

fn count(threads: usize) -> String {
    match threads {
        1 => "1 thread".to_owned(),
        n => format!("{n} threads"),
    }
}

/// Returns the default number of threads of a direction. `connections`: they are counted, their
/// single times are not.
#[must_use]
pub fn threads(
    kind: Kind,
    asked: Option<Wait>,
    streams: usize,
    processors: usize,
    connections: bool,
) -> usize {
    let one_each = match (kind, asked) {
        // Blocking calls serve one flow each, and its times are independent of the others.
        (_, Some(Wait::Block | Wait::Poll | Wait::Select { .. } | Wait::BusyPoll { .. })) => true,
        // Threads beyond the number of CPUs take time from each other and from the coordinator.
        (Kind::Latency, None) => !connections,
        (_, Some(Wait::Spin | Wait::Epoll | Wait::IoUring | Wait::Interval { .. })) => false,
        (Kind::Throughput | Kind::Forward | Kind::Generate | Kind::Stack, None) => {
            streams <= processors.saturating_mul(FEW)
        }
    };
    if one_each {
        streams
    } else {
        streams.min(processors).max(1)
    }
}

/// Flows per CPU up to which each flow has a thread of its own: on fewer threads, such flows would
/// get shares as uneven as 3:2. Above it, one thread per CPU needs less time per byte
/// (docs/method/defaults.md#many-streams).
const FEW: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spins_only_where_it_helps() {
        let fit = Situation {
            kind: Kind::Throughput,
            receives: true,
            paced: false,
            congestion_control: Some("cubic"),
            busy_threads: 2,
            processors: 2,
            streams: 1,
            threads: 1,
            connections: false,
        };
        let many = Situation {
            streams: 100,
            threads: 2,
            ..fit
        };
        for (situation, want) in [
            (fit, Wait::Spin),
            (
                Situation {
                    congestion_control: None,
                    ..fit
                },
                Wait::Spin,
            ),
            (
                Situation {
                    congestion_control: Some("bbr"),
                    ..fit
                },
                Wait::Block,
            ),
            (Situation { paced: true, ..fit }, Wait::Block),
            (
                Situation {
                    receives: false,
                    ..fit
                },
                Wait::Block,
            ),
            (
                Situation {
                    busy_threads: 3,
                    ..fit
                },
                Wait::Block,
            ),
            (
                Situation {
                    kind: Kind::Latency,
                    ..fit
                },
                Wait::Block,
            ),
            (many, Wait::Epoll),
            (
                Situation {
                    kind: Kind::Latency,
                    connections: true,
                    ..many
                },
                Wait::Epoll,
            ),
            (
                Situation {
                    kind: Kind::Latency,
                    connections: true,
                    ..fit
                },
                Wait::Block,
            ),
            (Situation { streams: 8, ..many }, Wait::Spin),
            (
                Situation {
                    receives: false,
                    ..many
                },
                Wait::Epoll,
            ),
            (
                Situation {
                    busy_threads: 4,
                    streams: 3,
                    ..many
                },
                Wait::Epoll,
            ),
        ] {
            assert_eq!(wait(&situation).0, want, "{situation:?}");
        }
    }

    #[test]
    fn many_streams_share_a_thread_a_core() {
        let throughput = Kind::Throughput;
        let threads = |kind, asked, streams| threads(kind, asked, streams, 2, false);
        for (kind, asked, streams, want) in [
            (throughput, None, 1, 1),
            (throughput, None, 2 * FEW, 2 * FEW),
            (throughput, None, 2 * FEW + 1, 2),
            (throughput, None, 10_000, 2),
            (throughput, Some(Wait::Block), 10_000, 10_000),
            (throughput, Some(Wait::Epoll), 3, 2),
            (throughput, Some(Wait::Spin), 1, 1),
            (Kind::Latency, None, 50, 50),
            (Kind::Latency, Some(Wait::Spin), 50, 2),
        ] {
            assert_eq!(threads(kind, asked, streams), want, "{asked:?} {streams}");
        }
        for (asked, streams, want) in [
            (None, 1, 1),
            (None, 3, 2),
            (None, 500, 2),
            (Some(Wait::Block), 500, 500),
        ] {
            let got = super::threads(Kind::Latency, asked, streams, 2, true);
            assert_eq!(got, want, "{asked:?} {streams} connections");
        }
    }
}
