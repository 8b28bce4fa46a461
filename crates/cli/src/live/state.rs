//! What the screen shows, as data: no terminal, no clock.

use std::collections::VecDeque;

use linerate_metric::event::{Event, What};
use linerate_metric::record::{Interval, Loss, Quantiles};

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

/// The picture.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    /// What is measured.
    pub(super) title: String,
    /// Whether round trips are.
    pub(super) latency: bool,
    /// How long it takes; `None`: until something else ends it.
    pub(super) duration_ns: Option<u64>,
    /// How far it is.
    pub(super) now_ns: u64,
    /// The rate of each interval: bit/s, or round trips a second.
    pub(super) rates: VecDeque<f64>,
    /// Round-trip times of the latest interval.
    pub(super) trips: Option<Quantiles>,
    /// Lost so far, where that is told.
    pub(super) lost: Option<u64>,
    /// Sent again so far.
    pub(super) retransmits: Option<u64>,
    /// Places where packets were lost, once a run is over.
    pub(super) losses: Vec<Loss>,
    /// What speaks against the figures.
    pub(super) findings: Vec<String>,
    /// Whether it stands still.
    pub(super) paused: bool,
    /// What a key led to.
    pub(super) said: String,
    /// What was told while it stood still.
    pub(super) held: Vec<Event>,
}

impl State {
    pub(super) fn take(&mut self, event: &Event) {
        if self.paused {
            self.held.push(event.clone());
            return;
        }
        match &event.what {
            What::Started { plan, .. } => {
                let kind = plan.kind.to_string();
                self.latency = kind == "latency";
                self.title = format!(
                    "{} {kind} with {}:{}",
                    plan.protocol,
                    linerate_report::style::clean(&plan.host),
                    plan.port
                );
                self.duration_ns = plan.duration_ns;
                self.rates.clear();
            }
            What::Interval { interval } => self.interval(interval),
            What::Doubted { doubt } => self.find(&doubt.why),
            What::Refused { problem } | What::Failed { problem } => {
                self.find(&problem.to_string());
            }
            What::Finished { record } => {
                self.losses.clone_from(&record.losses);
                for doubt in &record.validity {
                    self.find(&doubt.why);
                }
            }
            What::Ready { .. }
            | What::Connected { .. }
            | What::Trial { .. }
            | What::CapacityTrial { .. } => {}
        }
    }

    fn interval(&mut self, interval: &Interval) {
        self.now_ns = self.now_ns.max(interval.end_ns);
        let length = interval.end_ns.saturating_sub(interval.start_ns).max(1) as f64;
        let rate = match self.latency {
            true => interval.packets.unwrap_or(0) as f64 * 1e9 / length,
            false => interval.bytes as f64 * 8e9 / length,
        };
        self.rates.push_back(rate);
        if self.rates.len() > KEPT {
            self.rates.pop_front();
        }
        self.trips = interval.rtt_ns.or(self.trips);
        let add = |sum: &mut Option<u64>, more: Option<u64>| {
            if let Some(more) = more {
                *sum = Some(sum.unwrap_or(0) + more);
            }
        };
        add(&mut self.lost, interval.lost);
        add(&mut self.retransmits, interval.retransmits);
    }

    fn find(&mut self, text: &str) {
        let text = linerate_report::style::clean(text).into_owned();
        if !self.findings.contains(&text) {
            self.findings.push(text);
        }
    }

    pub(super) fn key(&mut self, key: Key) {
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
