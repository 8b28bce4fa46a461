//! What the screen shows, as data: no terminal, no clock.

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
use crate::scene::{Part, Scene};

/// Lines of what is over that are listed: more than any terminal has.
const LISTED: usize = 256;

/// Findings and doubts by name whose runs are counted: far more than there are.
const COUNTED: usize = 4_096;

/// Width for which lines of trials are made; the screen breaks them where it is narrower.
const WIDE: usize = 200;

/// What somebody wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// The picture stands still; the run goes on.
    Pause,
    /// The run ends.
    Quit,
    /// What was told so far goes to a file.
    Save,
    /// What hands were asked to do is done.
    Done,
}

/// How a note ranks: what slowed a run before what speaks against it, and then what holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Cause,
    Doubt,
    Limit,
}

/// Something that was found, or has to be known.
#[derive(Clone, Debug)]
struct Note {
    rank: Rank,
    /// The same again takes its place.
    id: String,
    text: String,
}

/// What is known of a series and of the run that goes on.
#[derive(Clone, Debug, Default)]
pub(super) struct Picture {
    /// What a series is; empty: the run says it.
    pub(super) title: String,
    /// What of a series runs now.
    pub(super) part: Option<Part>,
    /// Parts that have begun.
    begun: u32,
    /// Runs that are over.
    over: u32,
    /// The run that goes on.
    pub(super) run: Run,
    /// Time since the screen is there, as it was told last.
    pub(super) elapsed: Duration,
    /// The same when the run, or what of a series runs now, began.
    began: Duration,
    /// What is over and what it came to, the latest first.
    pub(super) done: VecDeque<String>,
    notes: Vec<Note>,
    /// Runs that had a note, by its name; notes that found no room any more come back with their number.
    runs: BTreeMap<String, u32>,
}

/// The screen.
#[derive(Debug, Default)]
pub(super) struct State {
    /// What is known by now.
    pub(super) picture: Picture,
    /// The one that stands still, while it does.
    still: Option<Box<Picture>>,
    /// What somebody has to do, and who waits for that.
    pub(super) hands: Option<(String, Sender<()>)>,
    /// What a key led to.
    pub(super) said: String,
    /// It was told to end.
    ends: bool,
}

impl Picture {
    /// What was found so far: causes first, then what speaks against the figures.
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

    /// Time since the run, or what of a series runs now, began.
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
            // The screen of such a host is told of its frames instead.
            | What::StackInterval { .. } => {}
        }
    }

    fn scene(&mut self, scene: Scene) {
        match scene {
            Scene::Title(title) => self.title = clean(&title).into_owned(),
            Scene::Part(part) => {
                self.begun += 1;
                // What it is of is not known before it has started; the last rate is none of its own.
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
            // No matter of the picture; counters are not ours to look at.
            Scene::Hands(..) | Scene::Elsewhere => {}
        }
    }

    /// A run is over: what it lost where, and what was found.
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
            // The same cause may be at both ends.
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
                    // Causes are few; what is said against figures may be new at each of many points.
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
    /// What is drawn.
    pub(super) fn shown(&self) -> &Picture {
        self.still.as_deref().unwrap_or(&self.picture)
    }

    /// Whether the picture stands still.
    pub(super) fn is_paused(&self) -> bool {
        self.still.is_some()
    }

    /// Parts of a series that have begun.
    pub(super) fn begun(&self) -> u32 {
        self.picture.begun
    }

    pub(super) fn take(&mut self, told: Told) {
        match told {
            // Whoever asked waits, and whoever quit meanwhile does nothing by hand any more.
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

    /// What counters of places say now.
    pub(super) fn see(&mut self, (places, is_shared): (Vec<SeenPlace>, bool)) {
        self.picture.run.seen = places;
        self.picture.run.seen_is_shared = is_shared;
    }

    /// How long the screen is there by now.
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
                "ending; q once more ends it at once".clone_into(&mut self.said);
                // Nobody waits for hands any longer.
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
                "43.7 % of the time the receiver's threads waited for a core"
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
        // What is saved meanwhile has the number of its run.
        assert_eq!(state.begun(), 1);
        state.key(Key::Pause);
        assert!(!state.is_paused());
        assert_eq!(state.shown().findings(), ["one"]);
    }

    /// However long it goes on, and whether or not somebody looks.
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

    /// As many other notes as find room lie between the two runs that had it.
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
        // Whoever ends it leaves nobody waiting.
        let (sender, receiver) = std::sync::mpsc::channel();
        state.take(Told::Scene(Scene::Hands("set hops=3".to_owned(), sender)));
        state.key(Key::Quit);
        assert!(receiver.recv().is_err());
    }
}
