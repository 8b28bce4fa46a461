//! What the screen shows, as data: no terminal, no clock.

use std::collections::{BTreeMap, VecDeque};

use linerate_metric::event::{Event, What};
use linerate_metric::plan::Kind;
use linerate_metric::record::{Interval, Loss, Quantiles};
use linerate_metric::units::{format_count, format_share};

/// Intervals that the curve shows at most: wider than any terminal.
const KEPT: usize = 512;

/// What somebody wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// The picture stands still; the run goes on.
    Pause,
    /// The run ends.
    Quit,
    /// What was told so far goes to a file.
    Save,
}

/// What a rate counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Rate {
    /// Payload bits.
    #[default]
    Bits,
    /// Round trips.
    Trips,
    /// Frames.
    Frames,
}

/// Trials that are listed: more than any terminal has lines for.
const TRIALS: usize = 64;

/// The picture.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    /// What is measured.
    pub(super) title: String,
    /// In what its rates are.
    pub(super) rate: Rate,
    /// How long it takes; `None`: until something else ends it.
    pub(super) duration_ns: Option<u64>,
    /// How far it is.
    pub(super) now_ns: u64,
    /// The rate of each interval, or of each trial.
    pub(super) rates: VecDeque<f64>,
    /// Round-trip times of the latest interval.
    pub(super) trips: Option<Quantiles>,
    /// Lost so far, where that is told.
    pub(super) lost: Option<u64>,
    /// Datagrams, or questions, of which it is known whether they arrived.
    pub(super) asked: u64,
    /// What each end's threads had of the time so far, by end and state.
    pub(super) threads: BTreeMap<&'static str, Shares>,
    /// Sent again so far.
    pub(super) retransmits: Option<u64>,
    /// Places where packets were lost, once a run is over and its counters are read.
    pub(super) losses: Vec<Loss>,
    /// The trials of a search, the latest first.
    pub(super) trials: VecDeque<String>,
    /// What speaks against the figures.
    pub(super) findings: Vec<String>,
    /// Whether it stands still.
    pub(super) paused: bool,
    /// What a key led to.
    pub(super) said: String,
    /// What was told while it stood still.
    pub(super) held: Vec<Event>,
}

/// How the threads of one end spent the intervals so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Shares {
    /// Nanoseconds that they are of.
    of_ns: f64,
    /// Of those ready to run and not running.
    runnable_ns: f64,
}

/// Waiting for a core from which on it is told: below, every thread that sleeps has as much.
const CROWDED: f64 = 0.1;

impl State {
    /// What speaks against the figures as far as intervals tell, then what was told as such.
    ///
    /// Causes are known when the run is over: they come from counters of both ends.
    pub(super) fn doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        if let Some((lost, share)) = self.loss().filter(|(lost, _)| *lost > 0) {
            let what = match self.rate {
                Rate::Trips => "questions have no answer",
                Rate::Bits | Rate::Frames => "datagrams are lost",
            };
            let place = match self.losses.is_empty() {
                true => ": where is read from counters when the run is over",
                false => "",
            };
            doubts.push(format!(
                "{} {what} ({}){place}",
                format_count(lost),
                format_share(share)
            ));
        }
        for (end, shares) in &self.threads {
            let share = shares.runnable_ns / shares.of_ns.max(1.0);
            if share >= CROWDED {
                doubts.push(format!(
                    "{} of the time the {end}'s threads waited for a core",
                    format_share(share)
                ));
            }
        }
        doubts.extend(self.findings.iter().cloned());
        doubts
    }

    /// What is lost so far, and which share that is; `None` where nobody counts.
    pub(super) fn loss(&self) -> Option<(u64, f64)> {
        let lost = self.lost?;
        Some((lost, lost as f64 / self.asked.max(lost).max(1) as f64))
    }

    pub(super) fn take(&mut self, event: &Event) {
        if self.paused {
            self.held.push(event.clone());
            return;
        }
        match &event.what {
            What::Started { plan, .. } => {
                let host = linerate_report::style::clean(&plan.host);
                (self.rate, self.title) = match plan.kind {
                    Kind::Latency => (
                        Rate::Trips,
                        format!("{} latency with {host}:{}", plan.protocol, plan.port),
                    ),
                    Kind::Forward => (Rate::Frames, format!("forwarding between {host}")),
                    Kind::Generate if plan.generate.is_some() => {
                        (Rate::Frames, format!("frames over {host}"))
                    }
                    Kind::Generate => (Rate::Frames, format!("capacity of {host}")),
                    Kind::Throughput | Kind::Stack => (
                        Rate::Bits,
                        format!("{} {} with {host}:{}", plan.protocol, plan.kind, plan.port),
                    ),
                };
                self.duration_ns = plan.duration_ns;
                self.rates.clear();
                self.threads.clear();
                (self.lost, self.asked, self.now_ns) = (None, 0, 0);
                self.retransmits = None;
            }
            What::Interval { interval } => self.interval(interval),
            What::Doubted { doubt } => self.find(&doubt.why),
            What::Pass { .. } | What::Awaited { .. } => {}
            What::Refused { problem } | What::Failed { problem } => {
                self.find(&problem.to_string());
            }
            What::Finished { record } => {
                self.losses.clone_from(&record.losses);
                for doubt in &record.validity {
                    self.find(&doubt.why);
                }
            }
            What::CapacityTrial { trial } => {
                self.asked += trial.sent;
                self.now_ns += trial.duration_ns;
                self.push(trial.forwarding_fps);
                self.lost = Some(self.lost.unwrap_or(0) + trial.lost);
                self.trials
                    .push_front(linerate_report::text::capacity_trial(trial));
                self.trials.truncate(TRIALS);
            }
            What::Ready { .. } | What::Connected { .. } | What::Trial { .. } => {}
        }
    }

    fn interval(&mut self, interval: &Interval) {
        self.now_ns = self.now_ns.max(interval.end_ns);
        let length = interval.end_ns.saturating_sub(interval.start_ns).max(1) as f64;
        self.push(match self.rate {
            Rate::Trips | Rate::Frames => interval.packets.unwrap_or(0) as f64 * 1e9 / length,
            Rate::Bits => interval.bytes as f64 * 8e9 / length,
        });
        self.trips = interval.rtt_ns.or(self.trips);
        let add = |sum: &mut Option<u64>, more: Option<u64>| {
            if let Some(more) = more {
                *sum = Some(sum.unwrap_or(0) + more);
            }
        };
        add(&mut self.lost, interval.lost);
        let answered = interval.packets.unwrap_or(0) + interval.lost.unwrap_or(0);
        self.asked += interval.packets_sent.unwrap_or(answered);
        for (end, threads) in [
            ("sender", &interval.sender_threads),
            ("receiver", &interval.receiver_threads),
        ] {
            if let Some(shares) = threads {
                let known = self.threads.entry(end).or_default();
                known.of_ns += length;
                known.runnable_ns += shares.runnable * length;
            }
        }
        add(&mut self.retransmits, interval.retransmits);
    }

    fn push(&mut self, rate: f64) {
        self.rates.push_back(rate);
        if self.rates.len() > KEPT {
            self.rates.pop_front();
        }
    }

    fn find(&mut self, text: &str) {
        let text = linerate_report::style::clean(text).into_owned();
        if !self.findings.contains(&text) {
            self.findings.push(text);
        }
    }

    pub(super) fn key(&mut self, key: Key) {
        self.said.clear();
        match key {
            Key::Pause => {
                self.paused = !self.paused;
                let held = std::mem::take(&mut self.held);
                for event in held {
                    self.take(&event);
                }
            }
            Key::Quit => "ending the run".clone_into(&mut self.said),
            Key::Save => {}
        }
    }

    pub(super) fn say(&mut self, text: String) {
        self.said = text;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_metric::record::Doubt;

    fn doubt(why: &str) -> Event {
        Event {
            test: 1,
            what: What::Doubted {
                doubt: Doubt::new("x", why),
            },
        }
    }

    #[test]
    fn what_intervals_tell_against_the_figures_is_a_doubt_at_once() {
        let mut interval: Interval = serde_json::from_value(serde_json::json!({
            "start_ns": 0, "end_ns": 1_000_000_000u64, "direction": "send", "counted_at": "receiver",
            "bytes": 1000, "packets": 75, "packets_sent": 100, "lost": 25,
            "receiver_threads": { "running": 0.5, "runnable": 0.437, "blocked": 0.063 },
        }))
        .unwrap();
        let mut state = State::default();
        let event = |interval: &Interval| Event {
            test: 1,
            what: What::Interval {
                interval: Box::new(interval.clone()),
            },
        };
        state.take(&event(&interval));
        assert_eq!(
            state.doubts(),
            [
                "25 datagrams are lost (25.0 %): where is read from counters when the run is over",
                "43.7 % of the time the receiver's threads waited for a core"
            ]
        );
        interval.lost = Some(0);
        interval.receiver_threads = None;
        let mut state = State::default();
        state.take(&event(&interval));
        assert!(state.doubts().is_empty() && state.loss() == Some((0, 0.0)));
    }

    #[test]
    fn nothing_told_while_it_stands_still_is_lost() {
        let mut state = State::default();
        state.key(Key::Pause);
        state.take(&doubt("one"));
        assert!(state.paused && state.findings.is_empty());
        state.key(Key::Pause);
        state.take(&doubt("one"));
        assert_eq!(state.findings, ["one"]);
    }
}
