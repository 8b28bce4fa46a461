//! Run of an experiment: rounds over its points, with labs that stay up in between.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use linerate_metric::event::{Again, Event};
use linerate_metric::exit;
use linerate_metric::experiment::{Distance, Point, Setting};
use linerate_metric::record::Record;
use linerate_metric::run_set::RunSet;
use linerate_metric::statistics::estimate;
use serde::{Deserialize, Serialize};

use crate::ExperimentError;
use crate::file::{Experiment, KnobOf};
use crate::location::Place;
use crate::point::{settings, words_of};
use crate::results::set;
use crate::retry::{Failures, PAUSE, Then};
use crate::runner::{Alike, LeftOut, Runner};

/// Options of a run.
pub struct Options<'a> {
    /// Id of the resulting set.
    pub id: String,
    /// Argument that selected the experiment: a file, or the name of a built-in one.
    pub file: String,
    pub started: Timestamp,
    /// Results of an earlier process that was interrupted.
    pub done: &'a [Measured],
    /// True for fewer points and shorter measurements (`--quick`).
    pub quick: bool,
    pub place: Place,
    /// Restricts the run to points with these values.
    pub only: Setting,
    /// Number of rounds; `None`: as in the file.
    pub repeats: Option<u32>,
    /// Label of the table to which points are added.
    pub label: Option<String>,
    /// Reads the current content of that table; called after the last point, since others may add
    /// points meanwhile.
    pub before: &'a dyn Fn() -> Option<RunSet>,
    /// Directory of the results.
    pub dir: PathBuf,
    /// Path of the program that measures: this one.
    pub program: PathBuf,
    /// Number of CPUs of this machine.
    pub cores: usize,
    /// Measures the distance between two CPUs.
    ///
    /// Virtual machines migrate within seconds, so it is called before and after each run, but only
    /// if an
    /// assertion depends on it.
    pub distance: fn() -> Option<Distance>,
    /// Stops the run.
    pub stop: &'a AtomicBool,
    /// Receives the events of commands while they measure.
    pub listener: Option<Listener>,
}

/// Callback for events of a command, called on another thread.
pub type Listener = Arc<dyn Fn(Event) + Send + Sync>;

/// Result of one measurement of a point, complete enough to resume without measuring it again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Round, from 0.
    pub round: u32,
    pub setting: Setting,
    /// Command lines that measured the point.
    pub commands: Vec<String>,
    /// Commands to run before them to reproduce the point.
    pub around: Vec<String>,
    pub values: BTreeMap<String, f64>,
    pub runs: Vec<Record>,
    /// Distance of the CPUs; `None` if it was not measured or changed during the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distance: Option<Distance>,
}

/// Progress of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// A point is about to be measured.
    Point {
        /// Number of the measurement, from 1.
        number: usize,
        /// Number of measurements in all rounds.
        of: usize,
        /// Setting as text.
        words: String,
    },
    /// The point failed with a transient error and is tried again.
    Again {
        /// Setting as text.
        words: String,
        because: String,
    },
    /// The point was measured.
    Measured {
        /// Setting as text.
        words: String,
        /// Figures with their values as text, in the order of the file.
        figures: Vec<(String, String)>,
        /// Result to save.
        measured: Box<Measured>,
    },
    /// The point could not be measured.
    Skipped {
        /// Setting as text.
        words: String,
        because: String,
    },
    /// Other points depend on the object that failed, and are skipped too.
    Alike {
        /// Number of these points.
        points: usize,
        /// Object that they have in common.
        object: String,
        next_step: String,
    },
    /// A knob with a command must be set to this value; an error skips the point.
    Turn { knob: KnobOf, value: String },
    /// A server must be started on the host of `--on` before anything is measured.
    Serve {
        /// Command line of the server.
        command: String,
    },
    /// A manual step is required; the run continues when the callback returns.
    Hands {
        /// Step as text: `set hops=2`.
        words: String,
    },
}

/// Time limit of one command: more than ten times what any built-in experiment needs.
pub(crate) const COMMAND_LIMIT: Duration = Duration::from_secs(180);

/// Poll interval of the stop flag between two tries.
const LOOK: Duration = Duration::from_millis(50);

/// Reason of points that were not reached before the run was stopped.
pub(crate) const INTERRUPTED: &str = "interrupted before it was measured";

/// Runs an experiment and returns the records of all points with the results.
///
/// Of the values that `progress` returns only the error of [`Progress::Turn`] is used.
///
/// # Errors
/// [`ExperimentError`]; a point that cannot be measured is an error only if no other one can be
/// either.
pub fn run(
    experiment: &Experiment,
    options: &Options<'_>,
    progress: &mut dyn FnMut(&Progress) -> Result<(), String>,
) -> Result<RunSet, ExperimentError> {
    let settings = settings(experiment, options.quick, &options.only)?;
    let rootless = !linerate_lab::privileged() || !is_root();
    let mut runner = Runner::new(experiment, options, rootless)?;
    let rounds = options.repeats.unwrap_or(match options.quick {
        true => experiment.quick_repeats,
        false => experiment.repeats,
    });
    let mut kept: Vec<Kept> = settings.into_iter().map(Kept::new).collect();
    for point in &mut kept {
        point.skipped = runner.left_out(&point.setting).map(|out| out.because);
    }
    runner.leave_to_hands(&mut kept)?;
    for done in options.done {
        if let Some(point) = kept.iter_mut().find(|point| point.setting == done.setting) {
            point.add(done);
            runner.note_way(&done.setting)?;
        }
    }
    if let Some(command) = runner.server_of(&kept) {
        let _ = progress(&Progress::Serve { command });
    }
    let measured = kept.iter().filter(|point| point.skipped.is_none());
    let of = measured.count() * rounds as usize;
    let mut number = 0;
    let mut by_hand: Option<&String> = None;
    let mut turned = BTreeMap::new();
    let distance = || experiment.asks_distance().then(options.distance).flatten();
    let mut failures = Failures::after_measuring(!options.done.is_empty());
    let mut hands = Vec::new();
    for point in &kept {
        hands.push(runner.hands(&point.setting)?.words());
    }
    let mut current = None;
    for (round, at) in order(&hands, rounds) {
        if current.replace(round) != Some(round) {
            failures.another_round();
        }
        let point = &mut kept[at];
        if options.stop.load(Relaxed) {
            break;
        }
        if point.is_out() {
            continue;
        }
        number += 1;
        let is_done = |done: &Measured| done.round == round && done.setting == point.setting;
        if options.done.iter().any(is_done) {
            continue;
        }
        let words = words_of(experiment, &point.setting);
        let now = &hands[at];
        if !now.is_empty() && by_hand != Some(now) {
            let _ = progress(&Progress::Hands { words: now.clone() });
            by_hand = Some(now);
            if options.stop.load(Relaxed) {
                break;
            }
        }
        let _ = progress(&Progress::Point {
            number,
            of,
            words: words.clone(),
        });
        let before = distance();
        let measured = match turn(experiment, &point.setting, &mut turned, progress) {
            Ok(()) => tried(&mut runner, &kept, (at, round), &mut failures, progress)?,
            Err(because) => Err(Left {
                because,
                next_step: "run its command by hand to see the error".to_owned(),
                code: exit::FAILED,
                may_pass: false,
                alike: None,
                at: Instant::now(),
            }),
        };
        let point = &mut kept[at];
        match measured {
            Ok(mut measured) => {
                failures.measured = true;
                measured.distance = before.filter(|_| distance() == before);
                point.add(&measured);
                let _ = progress(&Progress::Measured {
                    words,
                    figures: runner.figures_of(&measured),
                    measured: Box::new(measured),
                });
            }
            // Errors of a command that was stopped with the run are not the reason to report.
            Err(_) if options.stop.load(Relaxed) => break,
            Err(left) => {
                let because = left.because.clone();
                let alike = left.alike.clone();
                let next_step = left.next_step.clone();
                if point.runs.is_empty() {
                    point.skipped = Some(because.clone());
                }
                point.left = Some(left);
                for &other in alike.iter().flat_map(|alike| &alike.points) {
                    kept[other].skipped = Some(because.clone());
                    // This error is permanent, whatever transient error the point had before.
                    kept[other].left = None;
                }
                let _ = progress(&Progress::Skipped { words, because });
                if let Some(alike) = alike {
                    let _ = progress(&Progress::Alike {
                        points: alike.points.len(),
                        object: alike.object,
                        next_step,
                    });
                }
            }
        }
    }
    let interrupted = options.stop.load(Relaxed);
    if interrupted {
        for point in kept.iter_mut().filter(|point| point.runs.is_empty()) {
            point.skipped.get_or_insert_with(|| INTERRUPTED.to_owned());
        }
    }
    if kept.iter().all(|point| point.runs.is_empty()) && !interrupted {
        return Err(nothing(&runner, &kept));
    }
    let ground = (rootless, runner.into_between());
    Ok(set(experiment, options, kept, ground, interrupted))
}

/// Error for a run without any measured point: a failure if there is one, otherwise a missing
/// requirement.
fn nothing(runner: &Runner<'_>, kept: &[Kept]) -> ExperimentError {
    if let Some(left) = kept.iter().find_map(|point| point.left.as_ref()) {
        return ExperimentError::Nothing {
            why: left.because.clone(),
            next_step: left.next_step.clone(),
            code: left.code,
        };
    }
    let out: Vec<LeftOut> = (kept.iter())
        .filter_map(|point| runner.left_out(&point.setting))
        .collect();
    let lacks = out.iter().find(|out| out.code == exit::MISSING);
    match lacks.or(out.first()) {
        Some(out) => ExperimentError::Nothing {
            why: out.because.clone(),
            next_step: out.next_step.clone(),
            code: out.code,
        },
        None => {
            let why = kept.iter().find_map(|point| point.skipped.clone());
            ExperimentError::Nothing {
                why: why.unwrap_or_default(),
                next_step: String::new(),
                code: exit::FAILED,
            }
        }
    }
}

/// Order of the rounds over the points, as (round, index into `hands`).
///
/// Points with the same manual steps are measured in all rounds before the next step is required,
/// so
/// that no step is repeated.
fn order(hands: &[String], rounds: u32) -> Vec<(u32, usize)> {
    let mut kinds: Vec<&String> = Vec::new();
    for words in hands {
        if !kinds.contains(&words) {
            kinds.push(words);
        }
    }
    let mut order = Vec::new();
    for kind in kinds {
        for round in 0..rounds {
            let alike = (0..hands.len()).filter(|&at| hands[at] == *kind);
            order.extend(alike.map(|at| (round, at)));
        }
    }
    order
}

/// Measures a point, with retries if its failure may be transient; the inner error is the reason.
fn tried(
    runner: &mut Runner<'_>,
    kept: &[Kept],
    (at, round): (usize, u32),
    failures: &mut Failures,
    progress: &mut dyn FnMut(&Progress) -> Result<(), String>,
) -> Result<Result<Measured, Left>, ExperimentError> {
    let mut tries = 0;
    // A point that was measured and then failed permanently may work again: only transient failures
    // count.
    let left = kept[at].left.as_ref().filter(|left| left.may_pass);
    let before = left.is_some();
    // With few points a round may take less than the pause.
    if let Some(left) = left {
        wait(left.at + PAUSE, runner);
    }
    loop {
        let mut failed = match runner.measure(&kept[at].setting, round)? {
            Ok(measured) => return Ok(Ok(measured)),
            Err(failed) => failed,
        };
        tries += 1;
        if let Some(command) = &failed.far_command
            && runner.is_at_every_point(command, kept)?
        {
            failed.failed.problem.again = Some(match tries {
                // A program left behind by another one may have ended by then.
                1 => Again::MayPass,
                _ => Again::Stays,
            });
        }
        let mut failed = failed.failed;
        let mut alike = None;
        if failed.problem.again == Some(Again::StaysForObject) {
            alike = runner.alike(&failed.problem.object, kept, at)?;
            if alike.as_ref().is_some_and(|alike| alike.is_all) {
                failed.problem.again = Some(Again::Stays);
                alike = None;
            }
        }
        let left = Left {
            because: failed.problem.to_string(),
            next_step: failed.problem.next_step.clone(),
            code: failed.code,
            may_pass: failed.problem.again == Some(Again::MayPass),
            alike,
            at: Instant::now(),
        };
        if runner.is_stopped() || left.alike.is_some() {
            return Ok(Err(left));
        }
        match failures.after(&failed, tries, before) {
            Then::TryAgain => {
                let _ = progress(&Progress::Again {
                    words: runner.words_of(&kept[at].setting),
                    because: left.because.clone(),
                });
                wait(left.at + PAUSE, runner);
                if runner.is_stopped() {
                    return Ok(Err(left));
                }
            }
            Then::LeaveIt => return Ok(Err(left)),
            Then::End => {
                return Err(ExperimentError::Stays {
                    problem: Box::new(failed.problem),
                    code: failed.code,
                });
            }
        }
    }
}

/// Waits until this time, or until a stop.
fn wait(until: Instant, runner: &Runner<'_>) {
    while Instant::now() < until && !runner.is_stopped() {
        std::thread::sleep(LOOK);
    }
}

/// Sets the knobs that have a command.
///
/// `turned` has their current values; a knob is absent if it was never set or its command failed.
fn turn(
    experiment: &Experiment,
    setting: &Setting,
    turned: &mut BTreeMap<String, String>,
    progress: &mut dyn FnMut(&Progress) -> Result<(), String>,
) -> Result<(), String> {
    for knob in experiment.knobs.iter().filter(|knob| knob.set.is_some()) {
        let Some(value) = setting.get(&knob.name) else {
            continue;
        };
        if turned.get(&knob.name) == Some(value) {
            continue;
        }
        turned.remove(&knob.name);
        progress(&Progress::Turn {
            knob: knob.clone(),
            value: value.clone(),
        })?;
        turned.insert(knob.name.clone(), value.clone());
    }
    Ok(())
}

fn is_root() -> bool {
    // In a user namespace every user may be root; the uid map shows whether this is the initial
    // one.
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let outside = map
        .split_whitespace()
        .nth(1)
        .is_some_and(|first| first == "0");
    outside && rustix::process::geteuid().is_root()
}

/// Reason why a point was skipped in a round.
struct Left {
    because: String,
    next_step: String,
    /// Exit code for it.
    code: u8,
    /// True if the point may succeed in the next round.
    may_pass: bool,
    /// Other points that would fail the same way.
    alike: Option<Alike>,
    /// Time of the failure.
    at: Instant,
}

/// State of a point during the run.
pub(crate) struct Kept {
    pub(crate) setting: Setting,
    pub(crate) commands: Vec<String>,
    pub(crate) around: Vec<String>,
    pub(crate) values: BTreeMap<String, Vec<f64>>,
    values_at: BTreeMap<Distance, BTreeMap<String, Vec<f64>>>,
    pub(crate) runs: Vec<Record>,
    /// Reason why it has no run.
    pub(crate) skipped: Option<String>,
    /// Reason why it was skipped in the latest round.
    left: Option<Left>,
}

impl Kept {
    fn new(setting: Setting) -> Self {
        Self {
            setting,
            commands: Vec::new(),
            around: Vec::new(),
            values: BTreeMap::new(),
            values_at: BTreeMap::new(),
            runs: Vec::new(),
            skipped: None,
            left: None,
        }
    }

    /// Adds the result of one round.
    fn add(&mut self, measured: &Measured) {
        (self.skipped, self.left) = (None, None);
        self.commands.clone_from(&measured.commands);
        self.around.clone_from(&measured.around);
        self.runs.extend(measured.runs.iter().cloned());
        let at = measured
            .distance
            .map(|distance| self.values_at.entry(distance).or_default());
        for values in [&mut self.values].into_iter().chain(at) {
            for (name, value) in &measured.values {
                values.entry(name.clone()).or_default().push(*value);
            }
        }
    }

    /// Returns whether the point is not measured any more.
    ///
    /// True if this machine cannot measure it, or if it failed permanently and was never measured.
    pub(crate) fn is_out(&self) -> bool {
        self.skipped.is_some() && self.left.as_ref().is_none_or(|left| !left.may_pass)
    }

    pub(crate) fn point(&self) -> Point {
        let figures = self
            .values
            .iter()
            .filter_map(|(name, values)| Some((name.clone(), estimate(values)?)));
        let several = self.values.iter().filter(|(_, values)| values.len() > 1);
        let several = several.map(|(name, values)| (name.clone(), values.clone()));
        Point {
            setting: self.setting.clone(),
            commands: self.commands.clone(),
            around: self.around.clone(),
            figures: figures.collect(),
            values: several.collect(),
            values_at: self.values_at.clone(),
            runs: self.runs.iter().map(|run| run.id.clone()).collect(),
            skipped: self.skipped.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hands_do_is_done_once_for_all_rounds() {
        let told = |hands: &[&str]| -> Vec<(u32, usize)> {
            let hands: Vec<String> = hands.iter().map(|&words| words.to_owned()).collect();
            order(&hands, 2)
        };
        // A lab requires no manual steps: rounds go over all points.
        assert_eq!(told(&["", ""]), [(0, 0), (0, 1), (1, 0), (1, 1)]);
        let hops = ["set hops=0", "set hops=0", "set hops=2"];
        let groups = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (1, 2)];
        assert_eq!(told(&hops), groups);
        let apart = ["", "start a", ""];
        assert_eq!(
            told(&apart),
            [(0, 0), (0, 2), (1, 0), (1, 2), (0, 1), (1, 1)]
        );
    }
}
