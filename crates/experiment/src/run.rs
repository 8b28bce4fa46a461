//! Running an experiment: rounds over its points, labs that stay up between them.

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
use linerate_metric::set::RunSet;
use linerate_metric::statistics::estimate;
use serde::{Deserialize, Serialize};

use crate::ExperimentError;
use crate::again::{Failures, PAUSE, Then};
use crate::file::{Experiment, KnobOf};
use crate::outcome::set;
use crate::place::Place;
use crate::point::{settings, words_of};
use crate::runner::{Alike, LeftOut, Runner};

/// How an experiment is run.
pub struct Options<'a> {
    /// The id that its set gets.
    pub id: String,
    /// The experiment as it was named: a file, or one that ships.
    pub file: String,
    /// When it was begun.
    pub started: Timestamp,
    /// What an earlier process measured of it, before something ended that.
    pub done: &'a [Measured],
    /// Fewer points, shorter.
    pub quick: bool,
    /// Where.
    pub place: Place,
    /// Only points of this setting.
    pub only: Setting,
    /// Rounds; as the file says without it.
    pub repeats: Option<u32>,
    /// The table that points are added to.
    pub label: Option<String>,
    /// What is in that table. It is asked when all points are measured: others may have added some meanwhile.
    pub before: &'a dyn Fn() -> Option<RunSet>,
    /// The folder of the results.
    pub dir: PathBuf,
    /// The program that measures: this one.
    pub program: PathBuf,
    /// Processors of this machine.
    pub cores: usize,
    /// Measures how far apart two of them are. Virtual machines are moved within seconds, so it is asked before and
    /// behind each run of a point, and only where a shape depends on it.
    pub distance: fn() -> Option<Distance>,
    /// Ends it early.
    pub stop: &'a AtomicBool,
    /// Who hears what commands tell while they measure.
    pub listener: Option<Listener>,
}

/// Hears what a command tells while it measures, on a thread of its own.
pub type Listener = Arc<dyn Fn(Event) + Send + Sync>;

/// A point that was measured once: all that is needed to go on without measuring it again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The round, from 0.
    pub round: u32,
    /// The point.
    pub setting: Setting,
    /// The commands that measured it.
    pub commands: Vec<String>,
    /// What it takes around them.
    pub around: Vec<String>,
    /// Its figures.
    pub values: BTreeMap<String, f64>,
    /// Its records.
    pub runs: Vec<Record>,
    /// How far apart the processors were meanwhile; none where nobody asked, or that changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distance: Option<Distance>,
}

/// What happens meanwhile.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// A point is about to be measured.
    Point {
        /// Which, from 1.
        number: usize,
        /// Of how many, all rounds.
        of: usize,
        /// Its setting in words.
        words: String,
    },
    /// It failed in a way that may pass, and is tried again.
    Again {
        /// Its setting in words.
        words: String,
        /// Why.
        because: String,
    },
    /// It was measured.
    Measured {
        /// Its setting in words.
        words: String,
        /// Its figures, each with its unit, in the order of the file.
        figures: Vec<(String, String)>,
        /// What came of it, to be kept.
        measured: Box<Measured>,
    },
    /// It could not be.
    Skipped {
        /// Its setting in words.
        words: String,
        /// Why.
        because: String,
    },
    /// Other points name what kept the last one from being measured: they are left out as well.
    Alike {
        /// How many.
        points: usize,
        /// What they name.
        object: String,
        /// What to do.
        next_step: String,
    },
    /// A knob with a command of its own has to get this value; an error is why the point is left out.
    Turn {
        /// The knob.
        knob: KnobOf,
        /// Its value.
        value: String,
    },
    /// What must run on the host of `--on` before anything is measured.
    Serve {
        /// Its command line.
        command: String,
    },
    /// What hands must set or start now; nothing goes on before this returns.
    Hands {
        /// In words, what it is: `set hops=2`.
        words: String,
    },
}

/// Longest time of one command: none of an experiment takes a tenth of it.
pub(crate) const COMMAND_LIMIT: Duration = Duration::from_secs(180);

/// How soon a stop is noticed between two tries.
const LOOK: Duration = Duration::from_millis(50);

/// Why a point was not measured that was still to come when somebody ended it.
pub(crate) const INTERRUPTED: &str = "interrupted before it was measured";

/// Runs an experiment: the records of all points, and what they say. Of what `progress` returns only the
/// error of [`Progress::Turn`] counts.
///
/// # Errors
/// [`ExperimentError`]; a point that cannot be measured is no error as long as another can.
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
                next_step: "see what its command lacks".to_owned(),
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
            // Whatever a command says that was ended with us is not why it did not go on.
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
                    // Whatever it was left for before and may pass: this stays.
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

/// That not one point was measured: a failure of one comes first, then what this machine lacks for one.
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

/// Rounds over the points, each a place in `hands`: all rounds over those for which hands do the same come before
/// the next, so that nobody inserts a switch twice.
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

/// Measures a point, several times where its failure may pass; why it could not be otherwise.
fn tried(
    runner: &mut Runner<'_>,
    kept: &[Kept],
    (at, round): (usize, u32),
    failures: &mut Failures,
    progress: &mut dyn FnMut(&Progress) -> Result<(), String>,
) -> Result<Result<Measured, Left>, ExperimentError> {
    let mut tries = 0;
    // What was measured and then failed for good may be back: only who was waited for in vain is asked once.
    let left = kept[at].left.as_ref().filter(|left| left.may_pass);
    let before = left.is_some();
    // With few points a round takes no time.
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
                // What another program left behind may be gone by then.
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

/// Waits until then, or until somebody ends it.
fn wait(until: Instant, runner: &Runner<'_>) {
    while Instant::now() < until && !runner.is_stopped() {
        std::thread::sleep(LOOK);
    }
}

/// Turns the knobs that have a command of their own. `turned` is what they stand at; absent: never turned, or
/// it failed.
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
    // Inside a user namespace of our own everybody is root; the map tells.
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let outside = map
        .split_whitespace()
        .nth(1)
        .is_some_and(|first| first == "0");
    outside && rustix::process::geteuid().is_root()
}

/// Why a point was left unmeasured in a round.
struct Left {
    because: String,
    /// What to do about it.
    next_step: String,
    /// The exit code that fits.
    code: u8,
    /// Whether that may be otherwise in the next one.
    may_pass: bool,
    /// What would fail alike.
    alike: Option<Alike>,
    /// When that was.
    at: Instant,
}

/// A point while it is measured.
pub(crate) struct Kept {
    pub(crate) setting: Setting,
    pub(crate) commands: Vec<String>,
    pub(crate) around: Vec<String>,
    pub(crate) values: BTreeMap<String, Vec<f64>>,
    values_at: BTreeMap<Distance, BTreeMap<String, Vec<f64>>>,
    pub(crate) runs: Vec<Record>,
    /// Why it has no run.
    pub(crate) skipped: Option<String>,
    /// Why it was left in the latest round, if it was.
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

    /// Takes what was measured of it in one round.
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

    /// Whether it is measured no more: it is not for this machine, or failed in a way that stays and has
    /// never been measured.
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
        // In a lab nobody does anything: rounds go over all points.
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
