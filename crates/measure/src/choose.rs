//! How an end waits when nobody said: decided from what is known before the run.

use linerate_metric::plan::{Kind, Wait};

/// What the choice rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Situation<'a> {
    /// What is measured.
    pub kind: Kind,
    /// Whether payload arrives at this end.
    pub receives: bool,
    /// Whether the sender keeps a rate.
    pub paced: bool,
    /// The sender's congestion control, where it is known.
    pub congestion_control: Option<&'a str>,
    /// Threads that are kept busy on them: of this run, those of both ends when they share the
    /// machine, and of other runs.
    pub busy_threads: usize,
    /// Processors that they may use.
    pub processors: usize,
    /// Flows of a direction, and threads that move them.
    pub streams: usize,
    /// See above.
    pub threads: usize,
    /// Whether connections are counted and not the time of each.
    pub connections: bool,
}

/// Flows of one thread up to which looking at each in turn is no detour: an empty look costs 0.2 us.
const LOOKED_AT_IN_TURN: usize = 4;

/// Congestion controls that space their segments out: a receiver that never sleeps acknowledges
/// each at once, and the sender's timers then rule (100 to 3 Gb/s was seen on loopback).
const PACED: &[&str] = &["bbr", "bbr2", "bbr3", "bbr1"];

/// The way of waiting, and why.
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
    // A call that sleeps serves one flow.
    let asleep = |why: String| {
        if streams <= threads {
            (Wait::Block, why)
        } else {
            let shared = format!("{streams} streams on {}", count(threads));
            (Wait::Epoll, format!("{shared}; {why}"))
        }
    };
    if connections && streams > threads {
        return asleep("whichever connection can go on does".to_owned());
    }
    if kind == Kind::Latency {
        return (Wait::Block, "as applications wait by default".to_owned());
    }
    if !receives {
        return asleep("a sender gains nothing by spinning".to_owned());
    }
    if paced {
        return asleep("a rate leaves the receiver time to sleep".to_owned());
    }
    if let Some(name) = congestion_control.filter(|name| PACED.contains(name)) {
        return asleep(format!(
            "a spinning receiver does not go with {name}'s pacing"
        ));
    }
    if busy_threads > processors {
        return asleep(format!(
            "{busy_threads} busy threads share {processors} cores"
        ));
    }
    if streams > threads.saturating_mul(LOOKED_AT_IN_TURN) {
        return asleep("too many to look at each in turn".to_owned());
    }
    (Wait::Spin, "a core is free for the receiver".to_owned())
}

fn count(threads: usize) -> String {
    match threads {
        1 => "1 thread".to_owned(),
        n => format!("{n} threads"),
    }
}

/// Threads that move the flows of a direction, when nobody said how many. `connections`: they are
/// counted, not the time of each.
#[must_use]
pub fn threads(
    kind: Kind,
    asked: Option<Wait>,
    streams: usize,
    processors: usize,
    connections: bool,
) -> usize {
    let one_each = match (kind, asked) {
        // Their calls sleep, and each flow's time is its own.
        (_, Some(Wait::Block | Wait::Poll | Wait::Select { .. } | Wait::BusyPoll { .. })) => true,
        // Threads that outnumber the processors take their time, and that of whoever keeps the run's.
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

/// Flows for each processor up to which every flow has a thread of its own: dealt to fewer threads,
/// so few would get shares as uneven as 3:2. Above it a thread a processor needs less time for a byte
/// (docs/METHOD.md#many-streams).
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
