//! State of the full-screen display, without terminal and clock.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::Sender;
use std::time::Duration;

use linerate_record::event::EventKind;
use linerate_record::finding::FindingKind;
use linerate_record::record::Record;
use linerate_report::style::strip_control_characters;
use linerate_report::text;
use linerate_session::loss::LiveLoss;

use super::run::LiveRun;
use crate::event_queue::UiMessage;
use crate::ui_update::{SeriesPart, UiUpdate};

/// Maximum number of finished lines and of notes: more than any terminal shows.
const MAX_LISTED: usize = 256;

/// Maximum number of notes whose runs are counted: far more than exist.
const MAX_COUNTED_NOTES: usize = 4_096;

/// Width in columns for which lines of trials are made; the screen wraps them if it is narrower.
const TRIAL_LINE_COLUMNS: usize = 200;

/// Keys of the display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScreenKey {
    /// Freezes the display; the run continues.
    Pause,
    /// Ends the run.
    Quit,
    /// Saves the events so far to a file.
    Save,
    /// Confirms a manual step.
    ConfirmStep,
}

/// Order of notes: causes, then warnings, then limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NoteRank {
    Cause,
    Caveat,
    Limit,
}

/// A finding or a warning.
#[derive(Clone, Debug)]
struct ScreenNote {
    rank: NoteRank,
    /// Key of the note: a new note with the same id replaces it.
    id: String,
    text: String,
}

/// State of a series and of its current run.
#[derive(Clone, Debug, Default)]
pub(super) struct ScreenState {
    /// Title of a series; if empty, the run's title is shown.
    pub(super) title: String,
    /// Current part of a series.
    pub(super) part: Option<SeriesPart>,
    /// Number of parts started.
    parts_started: u32,
    /// Number of runs finished.
    runs_finished: u32,
    /// The current run.
    pub(super) run: LiveRun,
    /// Time since the display started.
    pub(super) elapsed: Duration,
    /// Time, since the display started, at which the current run or part started.
    part_started_at: Duration,
    /// Results of finished parts, latest first.
    pub(super) finished_lines: VecDeque<String>,
    notes: Vec<ScreenNote>,
    /// Number of runs per note id. It outlives the notes, so that a note that reappears has its
    /// number.
    runs_by_note: BTreeMap<String, u32>,
}

/// State of the whole screen.
#[derive(Debug, Default)]
pub(super) struct ScreenModel {
    /// Current state.
    pub(super) current: ScreenState,
    /// State shown while the display is paused.
    paused: Option<Box<ScreenState>>,
    /// Manual step that the user must do, and the sender that confirms it.
    pub(super) manual_step: Option<(String, Sender<()>)>,
    /// Message after a key.
    pub(super) message: String,
    /// The run is ending.
    is_ending: bool,
}

impl ScreenState {
    /// Returns the findings and warnings so far, causes first.
    pub(super) fn findings(&self) -> Vec<String> {
        let mut notes: Vec<&ScreenNote> = self.notes.iter().collect();
        notes.sort_by_key(|note| (note.rank, std::cmp::Reverse(self.runs_with(note))));
        let text_of = |note: &&ScreenNote| match self.runs_with(note) {
            0 | 1 => note.text.clone(),
            runs => format!("{} ({runs} of {} runs)", note.text, self.runs_finished),
        };
        let (causes, other_notes): (Vec<_>, Vec<_>) =
            notes.iter().partition(|note| note.rank == NoteRank::Cause);
        let mut found: Vec<String> = causes.iter().map(text_of).collect();
        found.extend(self.run.caveats());
        found.extend(other_notes.iter().map(text_of));
        found
    }

    fn runs_with(&self, note: &ScreenNote) -> u32 {
        self.runs_by_note.get(&note.id).copied().unwrap_or(0)
    }

    /// Returns the time since the current run or part started.
    pub(super) fn part_elapsed(&self) -> Duration {
        self.elapsed.saturating_sub(self.part_started_at)
    }

    fn on_event(&mut self, what: &EventKind) {
        match what {
            EventKind::Started { plan, .. } => {
                self.run = LiveRun::from_plan(plan);
                self.part_started_at = self.elapsed;
            }
            EventKind::Interval { interval } => self.run.add_interval(interval),
            EventKind::CaveatRaised { caveat } => self.set_note(NoteRank::Caveat, caveat.id.as_str(), &caveat.reason, 0),
            EventKind::Refused { problem } | EventKind::Failed { problem } => {
                let text = problem.to_string();
                self.set_note(NoteRank::Caveat, &text, &text, 0);
            }
            EventKind::Finished { record } => self.on_finished(record),
            EventKind::CapacityTrial { trial } => {
                self.run.add_trial(trial);
                self.push_line(text::describe_capacity_trial(trial));
            }
            EventKind::Trial { trial } => self.push_line(text::describe_trial(trial, TRIAL_LINE_COLUMNS)),
            EventKind::Pass {
                pass,
                passes,
                notes,
            } => self.push_line(format!("pass {pass} of {passes}: {notes}")),
            EventKind::Waiting { .. }
            | EventKind::Ready { .. }
            | EventKind::Connected { .. }
            // The display shows frames of such a host in place of its intervals.
            | EventKind::StackInterval { .. } => {}
        }
    }

    fn apply_update(&mut self, update: UiUpdate) {
        match update {
            UiUpdate::Title(title) => self.title = strip_control_characters(&title).into_owned(),
            UiUpdate::PartStarted(part) => {
                self.parts_started += 1;
                // The run of the part is unknown until it starts; the last rate belongs to the
                // previous part.
                self.run = LiveRun::default();
                self.part = Some(part);
                self.part_started_at = self.elapsed;
            }
            UiUpdate::Line(line) => line
                .lines()
                .for_each(|line| self.push_line(line.to_owned())),
            UiUpdate::Warning(text) => self.set_note(NoteRank::Caveat, &text, &text, 0),
            UiUpdate::Frames {
                start_ns,
                end_ns,
                count,
            } => self.run.add_frames(start_ns, end_ns, count),
            UiUpdate::LossCounters(loss_points) => self.run.port_drops = Some(loss_points),
            // Not part of this state: handled by `ScreenModel` and by the loss counters.
            UiUpdate::ManualStep(..) | UiUpdate::LabHosts => {}
        }
    }

    /// Records a finished run: its losses and findings.
    fn on_finished(&mut self, record: &Record) {
        self.runs_finished += 1;
        self.run.losses = Some(record.losses.clone());
        let explained;
        let findings = match record.findings.is_empty() {
            true => {
                explained = linerate_explain::explain(record);
                &explained
            }
            false => &record.findings,
        };
        for finding in findings {
            let rank = match finding.kind {
                FindingKind::Cause => NoteRank::Cause,
                FindingKind::Limit => NoteRank::Limit,
                FindingKind::Unknown => continue,
            };
            // Both ends may have the same cause.
            let id = format!(
                "{} {:?} {:?}",
                finding.cause, finding.end, finding.direction
            );
            self.set_note(rank, &id, &text::describe_finding(finding, false), 1);
        }
        for caveat in &record.validity {
            self.set_note(NoteRank::Caveat, caveat.id.as_str(), &caveat.reason, 1);
        }
    }

    fn set_note(&mut self, rank: NoteRank, id: &str, text: &str, runs: u32) {
        let text = strip_control_characters(text).into_owned();
        if runs > 0
            && (self.runs_by_note.len() < MAX_COUNTED_NOTES || self.runs_by_note.contains_key(id))
        {
            *self.runs_by_note.entry(id.to_owned()).or_default() += runs;
        }
        match self.notes.iter_mut().find(|note| note.id == id) {
            Some(note) => note.text = text,
            None => {
                if self.notes.len() >= MAX_LISTED {
                    // Causes are few; warnings may be new at each of many points.
                    let caveat = |note: &ScreenNote| note.rank == NoteRank::Caveat;
                    self.notes
                        .remove(self.notes.iter().position(caveat).unwrap_or(0));
                }
                self.notes.push(ScreenNote {
                    rank,
                    id: id.to_owned(),
                    text,
                });
            }
        }
    }

    fn push_line(&mut self, line: String) {
        let line = strip_control_characters(&line).into_owned();
        if line.trim().is_empty() {
            return;
        }
        self.finished_lines.push_front(line);
        self.finished_lines.truncate(MAX_LISTED);
    }
}

impl ScreenModel {
    /// Returns the state to draw.
    pub(super) fn visible(&self) -> &ScreenState {
        self.paused.as_deref().unwrap_or(&self.current)
    }

    /// Returns whether the display is paused.
    pub(super) fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    /// Returns the number of parts started.
    pub(super) fn parts_started(&self) -> u32 {
        self.current.parts_started
    }

    pub(super) fn apply(&mut self, message: UiMessage) {
        match message {
            // A step that arrives after the user quit is dropped, which unblocks its sender.
            UiMessage::Update(UiUpdate::ManualStep(step, confirm)) => {
                self.manual_step = (!self.is_ending).then_some((step, confirm));
                if self.manual_step.is_some() {
                    self.message.clear();
                }
            }
            UiMessage::Update(update) => self.current.apply_update(update),
            UiMessage::Event(_, event) => {
                if let EventKind::Waiting { activity: what } = &event.kind {
                    self.message = strip_control_characters(&format!("waiting for {what}")).into();
                }
                self.current.on_event(&event.kind);
            }
            UiMessage::End => {}
        }
    }

    /// Sets the current loss counters.
    pub(super) fn set_loss_counters(&mut self, (loss_points, is_shared): (Vec<LiveLoss>, bool)) {
        self.current.run.loss_points = loss_points;
        self.current.run.counters_are_shared = is_shared;
    }

    /// Sets the time since the display started.
    pub(super) fn set_elapsed(&mut self, elapsed: Duration) {
        self.current.elapsed = elapsed;
    }

    pub(super) fn on_key(&mut self, key: ScreenKey) {
        self.message.clear();
        match key {
            ScreenKey::Pause => {
                self.paused = match self.paused {
                    Some(_) => None,
                    None => Some(Box::new(self.current.clone())),
                };
            }
            ScreenKey::Quit => {
                "ending; press q again to end at once".clone_into(&mut self.message);
                // A dropped step unblocks its sender.
                (self.manual_step, self.is_ending) = (None, true);
            }
            ScreenKey::ConfirmStep => {
                if let Some((_, confirm)) = self.manual_step.take() {
                    let _ = confirm.send(());
                }
            }
            ScreenKey::Save => {}
        }
    }

    pub(super) fn set_message(&mut self, text: String) {
        self.message = text;
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use linerate_record::event::Event;
    use linerate_record::ids::CaveatId;
    use linerate_record::record::{Caveat, Interval};

    use super::*;

    fn event(what: EventKind) -> UiMessage {
        UiMessage::Event(
            Timestamp::UNIX_EPOCH,
            Event {
                test: 1,
                kind: what,
            },
        )
    }

    fn caveat(why: &str) -> UiMessage {
        event(EventKind::CaveatRaised {
            caveat: Caveat::new(CaveatId::Steal, why),
        })
    }

    #[test]
    fn losses_and_waiting_threads_of_intervals_are_caveats() {
        let mut interval: Interval = serde_json::from_value(serde_json::json!({
            "start_ns": 0, "end_ns": 1_000_000_000u64, "direction": "send", "counted_at": "receiver",
            "bytes": 1000, "packets": 75, "packets_sent": 100, "lost": 25,
            "receiver_threads": { "running": 0.5, "runnable": 0.437, "blocked": 0.063 },
        }))
        .unwrap();
        let interval_event = |interval: &Interval| {
            event(EventKind::Interval {
                interval: Box::new(interval.clone()),
            })
        };
        let mut state = ScreenModel::default();
        state.apply(interval_event(&interval));
        assert_eq!(
            state.current.findings(),
            [
                "25 datagrams are lost (25.0 %)",
                "the receiver's threads waited for a CPU for 43.7 % of the time"
            ]
        );
        interval.lost = Some(0);
        interval.receiver_threads = None;
        let mut state = ScreenModel::default();
        state.apply(interval_event(&interval));
        assert!(state.current.findings().is_empty() && state.current.run.loss() == Some((0, 0.0)));
    }

    #[test]
    fn updates_while_paused_are_kept_and_not_shown() {
        let mut state = ScreenModel::default();
        state.on_key(ScreenKey::Pause);
        state.apply(caveat("one"));
        state.apply(UiMessage::Update(UiUpdate::PartStarted(
            SeriesPart::default(),
        )));
        assert!(state.is_paused() && state.visible().findings().is_empty());
        // Events saved meanwhile have the number of their run.
        assert_eq!(state.parts_started(), 1);
        state.on_key(ScreenKey::Pause);
        assert!(!state.is_paused());
        assert_eq!(state.visible().findings(), ["one"]);
    }

    /// The state stays bounded for any duration, paused or not.
    #[test]
    fn the_state_is_bounded() {
        let mut state = ScreenModel::default();
        state.on_key(ScreenKey::Pause);
        state.apply(UiMessage::Update(UiUpdate::Warning("first".to_owned())));
        for number in 0..3 * MAX_LISTED {
            state.apply(caveat(&format!("{number} is a caveat")));
            state.apply(UiMessage::Update(UiUpdate::Warning(format!(
                "point {number}"
            ))));
            state.apply(UiMessage::Update(UiUpdate::Line(format!(
                "point {number}: 1 us"
            ))));
        }
        assert_eq!(state.current.notes.len(), MAX_LISTED);
        assert_eq!(state.current.finished_lines.len(), MAX_LISTED);
        let findings = state.current.findings();
        let last = format!("point {}", 3 * MAX_LISTED - 1);
        assert!(findings.contains(&last) && !findings.contains(&"first".to_owned()));
    }

    /// Between the two runs with a note, enough other notes arrive to displace it.
    #[test]
    fn the_number_of_runs_outlives_a_displaced_note() {
        let text = include_str!("../../../report/tests/fixtures/run-1.json");
        let mut record: Record = serde_json::from_str(text).expect("a record");
        record.validity = vec![Caveat::new(CaveatId::ThinTail, "3 are few")];
        let finished = || {
            event(EventKind::Finished {
                record: Box::new(record.clone()),
            })
        };
        let mut state = ScreenModel::default();
        state.apply(finished());
        for number in 0..2 * MAX_LISTED {
            state.apply(UiMessage::Update(UiUpdate::Warning(format!(
                "point {number}"
            ))));
        }
        let few = |state: &ScreenModel| {
            let findings = state.current.findings();
            findings.into_iter().find(|line| line.contains("few"))
        };
        assert_eq!(few(&state), None);
        state.apply(finished());
        assert_eq!(few(&state).as_deref(), Some("3 are few (2 of 2 runs)"));
    }

    #[test]
    fn a_part_has_its_own_elapsed_time() {
        let mut state = ScreenModel::default();
        state.set_elapsed(Duration::from_secs(7));
        state.apply(UiMessage::Update(UiUpdate::PartStarted(
            SeriesPart::default(),
        )));
        state.set_elapsed(Duration::from_secs(9));
        let visible = state.visible();
        assert_eq!(visible.part_elapsed(), Duration::from_secs(2));
        assert_eq!(visible.elapsed, Duration::from_secs(9));
    }

    #[test]
    fn a_finding_of_several_runs_is_shown_once_with_their_number() {
        let text = include_str!("../../../report/tests/fixtures/run-1.json");
        let mut record: Record = serde_json::from_str(text).expect("a record");
        record.findings = serde_json::from_value(serde_json::json!([
            { "kind": "limit", "cause": "held", "end": "client", "cost": 0.1, "what": "it is held",
              "evidence": [], "remedy": "" },
            { "kind": "cause", "cause": "slow", "end": "server", "cost": 0.5, "what": "it is slow",
              "evidence": [], "remedy": "" },
        ]))
        .expect("findings");
        record.validity = vec![Caveat::new(CaveatId::ThinTail, "3 are few")];
        let mut state = ScreenModel::default();
        for _ in 0..2 {
            state.apply(UiMessage::Update(UiUpdate::PartStarted(SeriesPart {
                number: 1,
                ..SeriesPart::default()
            })));
            state.apply(event(EventKind::Finished {
                record: Box::new(record.clone()),
            }));
            record.validity = vec![Caveat::new(CaveatId::ThinTail, "2 are few")];
        }
        assert_eq!(
            state.current.findings(),
            [
                "slow (server, 50.0 %): it is slow (2 of 2 runs)",
                "2 are few (2 of 2 runs)",
                "held (client, 10.0 %): it is held (2 of 2 runs)"
            ]
        );
    }

    #[test]
    fn a_manual_step_is_shown_while_paused() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let mut state = ScreenModel::default();
        state.on_key(ScreenKey::Pause);
        state.apply(UiMessage::Update(UiUpdate::ManualStep(
            "set hops=2".to_owned(),
            sender,
        )));
        assert!(state.manual_step.is_some());
        state.on_key(ScreenKey::ConfirmStep);
        assert_eq!(receiver.try_recv(), Ok(()));
        // After quit, the sender of a step is not left blocked.
        let (sender, receiver) = std::sync::mpsc::channel();
        state.apply(UiMessage::Update(UiUpdate::ManualStep(
            "set hops=3".to_owned(),
            sender,
        )));
        state.on_key(ScreenKey::Quit);
        assert!(receiver.recv().is_err());
    }
}
