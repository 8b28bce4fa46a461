//! State of the full-screen display, without terminal and clock.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::Sender;
use std::time::Duration;

use linerate_measure::SeenPlace;
use linerate_metric::event::What;
use linerate_metric::finding::FindingKind;
use linerate_metric::record::Record;
use linerate_report::{style::clean, text};

use super::run::Run;
use crate::printer::Told;
use crate::ui_update::{Part, Scene};

/// Maximum number of finished lines and of notes: more than any terminal shows.
const LISTED: usize = 256;

/// Maximum number of notes whose runs are counted: far more than exist.
const COUNTED: usize = 4_096;

/// Width in columns for which lines of trials are made; the screen wraps them if it is narrower.
const WIDE: usize = 200;

/// Keys of the display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// Freezes the display; the run continues.
    Pause,
    /// Ends the run.
    Quit,
    /// Saves the events so far to a file.
    Save,
    /// Confirms a manual step.
    Done,
}

/// Order of notes: causes, then warnings, then limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Cause,
    Doubt,
    Limit,
}

/// A finding or a warning.
#[derive(Clone, Debug)]
struct Note {
    rank: Rank,
    /// Key of the note: a new note with the same id replaces it.
    id: String,
    text: String,
}

/// State of a series and of its current run.
#[derive(Clone, Debug, Default)]
pub(super) struct Picture {
    /// Title of a series; if empty, the run's title is shown.
    pub(super) title: String,
    /// Current part of a series.
    pub(super) part: Option<Part>,
    /// Number of parts started.
    begun: u32,
    /// Number of runs finished.
    over: u32,
    /// The current run.
    pub(super) run: Run,
    /// Time since the display started.
    pub(super) elapsed: Duration,
    /// Time, since the display started, at which the current run or part started.
    began: Duration,
    /// Results of finished parts, latest first.
    pub(super) done: VecDeque<String>,
    notes: Vec<Note>,
    /// Number of runs per note id. It outlives the notes, so that a note that reappears has its
    /// number.
    runs: BTreeMap<String, u32>,
}

/// State of the whole screen.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Current state.
    pub(super) picture: Picture,
    /// State shown while the display is paused.
    still: Option<Box<Picture>>,
    /// Manual step that the user must do, and the sender that confirms it.
    pub(super) hands: Option<(String, Sender<()>)>,
    /// Message after a key.
    pub(super) said: String,
    /// The run is ending.
    ends: bool,
}

impl Picture {
    /// Returns the findings and warnings so far, causes first.
    pub(super) fn findings(&self) -> Vec<String> {
        let mut notes: Vec<&Note> = self.notes.iter().collect();
        notes.sort_by_key(|note| (note.rank, std::cmp::Reverse(self.runs_with(note))));
        let said = |note: &&Note| match self.runs_with(note) {
            0 | 1 => note.text.clone(),
            runs => format!("{} ({runs} of {} runs)", note.text, self.over),
        };
        let (causes, others): (Vec<_>, Vec<_>) =
            notes.iter().partition(|note| note.rank == Rank::Cause);
        let mut found: Vec<String> = causes.iter().map(said).collect();
        found.extend(self.run.doubts());
        found.extend(others.iter().map(said));
        found
    }

    fn runs_with(&self, note: &Note) -> u32 {
        self.runs.get(&note.id).copied().unwrap_or(0)
    }

    /// Returns the time since the current run or part started.
    pub(super) fn going_on(&self) -> Duration {
        self.elapsed.saturating_sub(self.began)
    }

    fn event(&mut self, what: &What) {
        match what {
            What::Started { plan, .. } => {
                self.run = Run::of(plan);
                self.began = self.elapsed;
            }
            What::Interval { interval } => self.run.interval(interval),
            What::Doubted { doubt } => self.note(Rank::Doubt, &doubt.doubt, &doubt.why, 0),
            What::Refused { problem } | What::Failed { problem } => {
                let text = problem.to_string();
                self.note(Rank::Doubt, &text, &text, 0);
            }
            What::Finished { record } => self.finished(record),
            What::CapacityTrial { trial } => {
                self.run.trial(trial);
                self.list(text::capacity_trial(trial));
            }
            What::Trial { trial } => self.list(text::trial(trial, WIDE)),
            What::Pass {
                pass,
                passes,
                notes,
            } => self.list(format!("pass {pass} of {passes}: {notes}")),
            What::Awaited { .. }
            | What::Ready { .. }
            | What::Connected { .. }
            // The display shows frames of such a host in place of its intervals.
            | What::StackInterval { .. } => {}
        }
    }

    fn scene(&mut self, scene: Scene) {
        match scene {
            Scene::Title(title) => self.title = clean(&title).into_owned(),
            Scene::Part(part) => {
                self.begun += 1;
                // The run of the part is unknown until it starts; the last rate belongs to the
                // previous part.
                self.run = Run::default();
                self.part = Some(part);
                self.began = self.elapsed;
            }
            Scene::Line(line) => line.lines().for_each(|line| self.list(line.to_owned())),
            Scene::Remark(text) => self.note(Rank::Doubt, &text, &text, 0),
            Scene::Frames {
                start_ns,
                end_ns,
                count,
            } => self.run.frames(start_ns, end_ns, count),
            Scene::Places(places) => self.run.dropped = Some(places),
            // Not part of this state: handled by `State` and by the loss counters.
            Scene::Hands(..) | Scene::Elsewhere => {}
        }
    }

    /// Records a finished run: its losses and findings.
    fn finished(&mut self, record: &Record) {
        self.over += 1;
        self.run.losses = Some(record.losses.clone());
        let found;
        let findings = match record.findings.is_empty() {
            true => {
                found = linerate_explain::explain(record);
                &found
            }
            false => &record.findings,
        };
        for finding in findings {
            let rank = match finding.kind {
                FindingKind::Cause => Rank::Cause,
                FindingKind::Limit => Rank::Limit,
                FindingKind::Unknown => continue,
            };
            // Both ends may have the same cause.
            let id = format!(
                "{} {:?} {:?}",
                finding.cause, finding.end, finding.direction
            );
            self.note(rank, &id, &finding.what, 1);
        }
        for doubt in &record.validity {
            self.note(Rank::Doubt, &doubt.doubt, &doubt.why, 1);
        }
    }

    fn note(&mut self, rank: Rank, id: &str, text: &str, runs: u32) {
        let text = clean(text).into_owned();
        if runs > 0 && (self.runs.len() < COUNTED || self.runs.contains_key(id)) {
            *self.runs.entry(id.to_owned()).or_default() += runs;
        }
        match self.notes.iter_mut().find(|note| note.id == id) {
            Some(note) => note.text = text,
            None => {
                if self.notes.len() >= LISTED {
                    // Causes are few; warnings may be new at each of many points.
                    let doubt = |note: &Note| note.rank == Rank::Doubt;
                    self.notes
                        .remove(self.notes.iter().position(doubt).unwrap_or(0));
                }
                self.notes.push(Note {
                    rank,
                    id: id.to_owned(),
                    text,
                });
            }
        }
    }

    fn list(&mut self, line: String) {
        let line = clean(&line).into_owned();
        if line.trim().is_empty() {
            return;
        }
        self.done.push_front(line);
        self.done.truncate(LISTED);
    }
}

impl State {
    /// Returns the state to draw.
    pub(super) fn shown(&self) -> &Picture {
        self.still.as_deref().unwrap_or(&self.picture)
    }

    /// Returns whether the display is paused.
    pub(super) fn is_paused(&self) -> bool {
        self.still.is_some()
    }

    /// Returns the number of parts started.
    pub(super) fn begun(&self) -> u32 {
        self.picture.begun
    }

    pub(super) fn take(&mut self, told: Told) {
        match told {
            // A step that arrives after the user quit is dropped, which unblocks its sender.
            Told::Scene(Scene::Hands(words, waiting)) => {
                self.hands = (!self.ends).then_some((words, waiting));
                if self.hands.is_some() {
                    self.said.clear();
                }
            }
            Told::Scene(scene) => self.picture.scene(scene),
            Told::Event(_, event) => {
                if let What::Awaited { what } = &event.what {
                    self.said = clean(&format!("waiting for {what}")).into();
                }
                self.picture.event(&event.what);
            }
            Told::End => {}
        }
    }

    /// Sets the current loss counters.
    pub(super) fn see(&mut self, (places, is_shared): (Vec<SeenPlace>, bool)) {
        self.picture.run.seen = places;
        self.picture.run.seen_is_shared = is_shared;
    }

    /// Sets the time since the display started.
    pub(super) fn pass(&mut self, elapsed: Duration) {
        self.picture.elapsed = elapsed;
    }

    pub(super) fn key(&mut self, key: Key) {
        self.said.clear();
        match key {
            Key::Pause => {
                self.still = match self.still {
                    Some(_) => None,
                    None => Some(Box::new(self.picture.clone())),
                };
            }
            Key::Quit => {
                "ending; press q again to end at once".clone_into(&mut self.said);
                // A dropped step unblocks its sender.
                (self.hands, self.ends) = (None, true);
            }
            Key::Done => {
                if let Some((_, waiting)) = self.hands.take() {
                    let _ = waiting.send(());
                }
            }
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
    use jiff::Timestamp;
    use linerate_metric::event::Event;
    use linerate_metric::record::{Doubt, Interval};

    fn event(what: What) -> Told {
        Told::Event(Timestamp::UNIX_EPOCH, Event { test: 1, what })
    }

    fn doubt(why: &str) -> Told {
        event(What::Doubted {
            doubt: Doubt::new("x", why),
        })
    }

    #[test]
    fn what_intervals_tell_against_the_figures_is_a_doubt_at_once() {
        let mut interval: Interval = serde_json::from_value(serde_json::json!({
            "start_ns": 0, "end_ns": 1_000_000_000u64, "direction": "send", "counted_at": "receiver",
            "bytes": 1000, "packets": 75, "packets_sent": 100, "lost": 25,
            "receiver_threads": { "running": 0.5, "runnable": 0.437, "blocked": 0.063 },
        }))
        .unwrap();
        let told = |interval: &Interval| {
            event(What::Interval {
                interval: Box::new(interval.clone()),
            })
        };
        let mut state = State::default();
        state.take(told(&interval));
        assert_eq!(
            state.picture.findings(),
            [
                "25 datagrams are lost (25.0 %)",
                "43.7 % of the time the receiver's threads waited for a processor"
            ]
        );
        interval.lost = Some(0);
        interval.receiver_threads = None;
        let mut state = State::default();
        state.take(told(&interval));
        assert!(state.picture.findings().is_empty() && state.picture.run.loss() == Some((0, 0.0)));
    }

    #[test]
    fn what_is_told_while_it_stands_still_is_known_and_not_shown() {
        let mut state = State::default();
        state.key(Key::Pause);
        state.take(doubt("one"));
        state.take(Told::Scene(Scene::Part(Part::default())));
        assert!(state.is_paused() && state.shown().findings().is_empty());
        // Events saved meanwhile have the number of their run.
        assert_eq!(state.begun(), 1);
        state.key(Key::Pause);
        assert!(!state.is_paused());
        assert_eq!(state.shown().findings(), ["one"]);
    }

    /// The state stays bounded for any duration, paused or not.
    #[test]
    fn what_is_kept_is_bounded() {
        let mut state = State::default();
        state.key(Key::Pause);
        state.take(Told::Scene(Scene::Remark("first".to_owned())));
        for number in 0..3 * LISTED {
            state.take(doubt(&format!("{number} is a doubt")));
            state.take(Told::Scene(Scene::Remark(format!("point {number}"))));
            state.take(Told::Scene(Scene::Line(format!("point {number}: 1 us"))));
        }
        assert_eq!(state.picture.notes.len(), LISTED);
        assert_eq!(state.picture.done.len(), LISTED);
        let found = state.picture.findings();
        let last = format!("point {}", 3 * LISTED - 1);
        assert!(found.contains(&last) && !found.contains(&"first".to_owned()));
    }

    /// Between the two runs with a note, enough other notes arrive to displace it.
    #[test]
    fn the_number_of_runs_outlives_a_note_that_found_no_room() {
        let text = include_str!("../../../report/tests/fixtures/run-1.json");
        let mut record: Record = serde_json::from_str(text).expect("a record");
        record.validity = vec![Doubt::new("few", "3 are few")];
        let finished = || {
            event(What::Finished {
                record: Box::new(record.clone()),
            })
        };
        let mut state = State::default();
        state.take(finished());
        for number in 0..2 * LISTED {
            state.take(Told::Scene(Scene::Remark(format!("point {number}"))));
        }
        let few = |state: &State| {
            let found = state.picture.findings();
            found.into_iter().find(|said| said.contains("few"))
        };
        assert_eq!(few(&state), None);
        state.take(finished());
        assert_eq!(few(&state).as_deref(), Some("3 are few (2 of 2 runs)"));
    }

    #[test]
    fn what_goes_on_has_its_own_time() {
        let mut state = State::default();
        state.pass(Duration::from_secs(7));
        state.take(Told::Scene(Scene::Part(Part::default())));
        state.pass(Duration::from_secs(9));
        let picture = state.shown();
        assert_eq!(picture.going_on(), Duration::from_secs(2));
        assert_eq!(picture.elapsed, Duration::from_secs(9));
    }

    #[test]
    fn what_several_runs_of_a_series_had_is_told_once_with_their_number() {
        let text = include_str!("../../../report/tests/fixtures/run-1.json");
        let mut record: Record = serde_json::from_str(text).expect("a record");
        record.findings = serde_json::from_value(serde_json::json!([
            { "kind": "limit", "cause": "held", "end": "client", "cost": 0.1, "what": "it is held",
              "evidence": [], "remedy": "" },
            { "kind": "cause", "cause": "slow", "end": "server", "cost": 0.5, "what": "it is slow",
              "evidence": [], "remedy": "" },
        ]))
        .expect("findings");
        record.validity = vec![Doubt::new("few", "3 are few")];
        let mut state = State::default();
        for _ in 0..2 {
            state.take(Told::Scene(Scene::Part(Part {
                number: 1,
                ..Part::default()
            })));
            state.take(event(What::Finished {
                record: Box::new(record.clone()),
            }));
            record.validity = vec![Doubt::new("few", "2 are few")];
        }
        assert_eq!(
            state.picture.findings(),
            [
                "it is slow (2 of 2 runs)",
                "2 are few (2 of 2 runs)",
                "it is held (2 of 2 runs)"
            ]
        );
    }

    #[test]
    fn who_waits_for_hands_hears_of_them_even_while_it_stands_still() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let mut state = State::default();
        state.key(Key::Pause);
        state.take(Told::Scene(Scene::Hands("set hops=2".to_owned(), sender)));
        assert!(state.hands.is_some());
        state.key(Key::Done);
        assert_eq!(receiver.try_recv(), Ok(()));
        // After quit, the sender of a step is not left blocked.
        let (sender, receiver) = std::sync::mpsc::channel();
        state.take(Told::Scene(Scene::Hands("set hops=3".to_owned(), sender)));
        state.key(Key::Quit);
        assert!(receiver.recv().is_err());
    }
}
