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
}

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
    } = *situation;
    if kind == Kind::Latency {
        return (Wait::Block, "as applications wait by default".to_owned());
    }
    if !receives {
        return (Wait::Block, "a sender gains nothing by spinning".to_owned());
    }
    if paced {
        return (
            Wait::Block,
            "a rate leaves the receiver time to sleep".to_owned(),
        );
    }
    if let Some(name) = congestion_control.filter(|name| PACED.contains(name)) {
        return (
            Wait::Block,
            format!("a spinning receiver does not go with {name}'s pacing"),
        );
    }
    if busy_threads > processors {
        return (
            Wait::Block,
            format!("{busy_threads} busy threads share {processors} cores"),
        );
    }
    (Wait::Spin, "a core is free for the receiver".to_owned())
}

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
        ] {
            assert_eq!(wait(&situation).0, want, "{situation:?}");
        }
    }
}
