//! The search for the highest rates at which no more than some share of frames is lost, for several
//! shares at once.
//!
//! Decides without I/O and without a clock: what a trial saw goes in, the next trial comes out. As in
//! MLRsearch (draft-ietf-bmwg-mlrsearch) the goals share their trials, short trials come first and bound
//! the rates that the long ones then decide: phases of growing length, each of which narrows the bounds
//! of every goal until they are as close as that phase wants them.

/// What is searched for.
#[derive(Clone, Debug)]
pub struct Options {
    /// Shares of the frames that may be lost, a goal each.
    pub goals: Vec<f64>,
    /// The search ends when bounds are so close, as a share of the upper one.
    pub resolution: f64,
    /// Length of the trials that decide, in seconds.
    pub trial_s: f64,
    /// Length of the first, short ones.
    pub first_s: f64,
    /// The highest load to try in frames per second: the line's, or what the generator is asked for.
    pub most: f64,
    /// Trials at most.
    pub trials: u32,
    /// How often a load may fail before it counts as failed in a trial that decides (1: once is
    /// enough, as RFC 2544 has it).
    pub tries: u32,
}

/// A trial to be made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ask {
    /// Frames per second.
    pub load: f64,
    /// Seconds.
    pub duration_s: f64,
    /// Whether it is long enough to decide.
    pub decides: bool,
}

/// What a trial saw.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// Frames per second that left.
    pub offered: f64,
    /// Frames per second that arrived.
    pub forwarded: f64,
    /// Share that was lost, or that a queue on the way still held.
    pub loss: f64,
    /// Whether the generator offered what it was asked for.
    pub kept: bool,
    /// Whether this machine may be to blame for what was lost.
    pub disturbed: bool,
}

/// Why the search of a goal ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Its bounds are close.
    Resolution,
    /// The highest load passes.
    Most,
    /// The generator can offer no more, and that passes.
    Generator,
    /// Not even a frame a trial passes.
    Floor,
    /// Too many trials.
    Trials,
}

/// What was found for a goal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// Share that may be lost.
    pub goal: f64,
    /// The highest load that passed below all that failed, frames per second; none when none did.
    pub lower: Option<f64>,
    /// The lowest load that failed.
    pub upper: Option<f64>,
    /// Share lost in the trials at the lower one.
    pub loss: Option<f64>,
    /// Frames per second that arrived then.
    pub forwarded: Option<f64>,
    /// Frames per second that left in the trials at the lower one.
    pub lower_offered: Option<f64>,
    /// The same at the upper one, in those that failed.
    pub upper_offered: Option<f64>,
    /// What was asked for then.
    pub upper_asked: Option<f64>,
    /// Whether all trials in which the upper one failed were disturbed.
    pub disturbed: bool,
    /// Frames beyond the upper one that a shorter trial let through: what the device has room or an allowance
    /// for, by which the longest trials overstate its rate as well. 0 where none did.
    pub beyond: f64,
    /// Why it ended.
    pub end: End,
}

/// What comes next.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// This trial.
    Try(Ask),
    /// Nothing: this was found, by goal.
    Over(Vec<Found>),
}

/// How often a trial is made again in which the generator did not offer what it was asked for, before
/// that counts as all it can.
const SHORT_OFFERS: u32 = 3;
/// A rate this much above the lowest load that failed, in a trial that decides, is no allowance: it was carried.
const CARRIED: f64 = 1.1;
/// Standard deviations by which chance alone is not told: once in some thousand times.
const CHANCE: f64 = 3.0;
/// How often a load that failed is tried again where a higher one passes and the goal allows loss.
const MORE_TRIES: u32 = 4;
/// Largest step downwards, as a share of the rate.
const LARGEST_STEP: f64 = 0.5;
/// Widths of a phase in those of the next.
const COARSER: f64 = 4.0;

#[derive(Clone, Copy, Debug)]
struct Trial {
    load: f64,
    /// More than the load, where that was not to be had.
    asked: f64,
    duration_s: f64,
    seen: Seen,
}

/// All trials of a load.
#[derive(Clone, Copy, Debug, Default)]
struct Tried {
    load: f64,
    trials: u32,
    failed: u32,
    /// Whether the last one passed.
    passed: bool,
    sent: f64,
    lost: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Verdict {
    Passes,
    Fails,
    /// It failed, and may fail once more.
    Open,
}

/// A search on its way.
#[derive(Clone, Debug)]
pub struct Search {
    options: Options,
    trials: Vec<Trial>,
    /// Where each goal is. A goal never goes back: what longer trials find changes the bounds of the
    /// shorter ones, which have done their work by then.
    phases: Vec<usize>,
    made: u32,
    /// The highest load that can be offered, as far as is known.
    most: f64,
    /// Whether the generator is what limits it.
    generator: bool,
    short: u32,
    /// Of those in a row in which the generator fell short, the one in which the most left.
    best: Option<Seen>,
}

/// What a goal needs in a phase.
enum Step {
    Try(f64),
    Done(End),
}

impl Search {
    /// Nothing tried yet.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            most: options.most,
            phases: vec![0; options.goals.len()],
            options,
            trials: Vec::new(),
            made: 0,
            generator: false,
            short: 0,
            best: None,
        }
    }

    /// Length of each phase's trials, the shortest first.
    fn durations(&self) -> [f64; 3] {
        let (first, last) = (
            self.options.first_s.min(self.options.trial_s),
            self.options.trial_s,
        );
        [first, (first * last).sqrt(), last]
    }

    /// The lowest load: a frame a trial.
    fn floor(&self) -> f64 {
        (1.0 / self.options.trial_s).min(self.most)
    }

    /// What is to be done now.
    #[must_use]
    pub fn next(&self) -> Next {
        let phases = self.durations();
        let last = phases.len() - 1;
        if self.made >= self.options.trials {
            return self.over(|_| End::Trials);
        }
        let ask = |load, phase: usize| {
            Next::Try(Ask {
                load,
                duration_s: phases[phase],
                decides: phase == last,
            })
        };
        if self.trials.is_empty() {
            return ask(self.most, 0);
        }
        for (phase, goal) in self.in_turn() {
            if let Step::Try(load) = self.step(goal, phase) {
                // A bound may be of a time when more could be offered.
                return ask(load.min(self.most), phase);
            }
        }
        self.over(|goal| match self.step(goal, last) {
            Step::Done(end) => end,
            Step::Try(_) => End::Trials,
        })
    }

    /// Goals with their phases, those in the earliest phase first.
    fn in_turn(&self) -> Vec<(usize, usize)> {
        let goals = self.phases.iter().copied().zip(0..);
        let mut goals: Vec<(usize, usize)> = goals.collect();
        goals.sort_unstable();
        goals
    }

    /// What is known before it is over.
    #[must_use]
    pub fn so_far(&self) -> Vec<Found> {
        self.found(|_| End::Trials)
    }

    fn over(&self, end: impl Fn(usize) -> End) -> Next {
        Next::Over(self.found(end))
    }

    fn found(&self, end: impl Fn(usize) -> End) -> Vec<Found> {
        let last = self.durations().len() - 1;
        let found = (0..self.options.goals.len()).map(|goal| {
            let (lower, upper) = self.bounds(goal, last);
            let at = |load: Option<f64>| load.map_or_else(Vec::new, |load| self.at(load, last));
            let (passed, mut failed) = (at(lower), at(upper));
            let limit = self.options.goals[goal];
            failed.retain(|trial| trial.seen.loss > limit);
            Found {
                goal: limit,
                lower,
                upper,
                loss: mean(&passed, |seen| seen.loss),
                forwarded: mean(&passed, |seen| seen.forwarded),
                lower_offered: mean(&passed, |seen| seen.offered),
                upper_offered: mean(&failed, |seen| seen.offered),
                upper_asked: failed.first().map(|trial| trial.asked),
                disturbed: upper.is_some_and(|load| self.is_disturbed(goal, load)),
                beyond: upper.map_or(0.0, |load| self.beyond(goal, load)),
                end: end(goal),
            }
        });
        found.collect()
    }

    /// Whether nothing but disturbed trials that decide failed at a load.
    fn is_disturbed(&self, goal: usize, load: f64) -> bool {
        let limit = self.options.goals[goal];
        let trials = self.at(load, self.durations().len() - 1);
        let mut failed = trials.iter().filter(|trial| trial.seen.loss > limit);
        failed.all(|trial| trial.seen.disturbed)
    }

    /// Most frames above a load that passed in a trial too short to decide, where that tells of room or of an
    /// allowance and not of chance: frames that are lost at random are seldom lost in few of them.
    fn beyond(&self, goal: usize, load: f64) -> f64 {
        let limit = self.options.goals[goal];
        let least = self.options.trial_s * (1.0 - 1e-9);
        let (long, short): (Vec<&Trial>, Vec<&Trial>) =
            (self.trials.iter()).partition(|trial| trial.duration_s >= least);
        // Room is used up by then: what goes on for as long is carried.
        if (long.iter()).any(|trial| trial.seen.forwarded > load * CARRIED) {
            return 0.0;
        }
        let passed = short
            .iter()
            .filter(|trial| trial.load > load && trial.seen.loss <= limit);
        passed
            .filter(|trial| !self.is_chance(load, trial))
            .map(|trial| (trial.load - load) * trial.duration_s)
            .fold(0.0, f64::max)
    }

    /// Whether a trial may have lost so little by chance alone, if each frame were as likely to be lost as in the
    /// longer trials from this load up to its own.
    fn is_chance(&self, load: f64, passed: &Trial) -> bool {
        let sent = |trial: &Trial| trial.seen.offered * trial.duration_s;
        let lost = |trial: &Trial| trial.seen.loss * sent(trial);
        let longer = self.trials.iter().filter(|trial| {
            trial.duration_s > passed.duration_s && (load..=passed.load).contains(&trial.load)
        });
        let (all, gone) = longer.fold((0.0, 0.0), |(all, gone), trial| {
            (all + sent(trial), gone + lost(trial))
        });
        let expected = if all > 0.0 {
            gone / all * sent(passed)
        } else {
            0.0
        };
        // As events that do not know of each other are spread (Poisson).
        expected - lost(passed) <= CHANCE * expected.sqrt()
    }

    /// A trial was made that says nothing.
    pub fn pass_over(&mut self) {
        self.made += 1;
    }

    /// Whether less left than was asked for, by more than the resolution bears: what lies between would be
    /// named by a load that never was.
    fn is_short(&self, ask: &Ask, seen: &Seen) -> bool {
        // A frame more or less is no share of a short trial.
        let frame = 1.0 / ask.duration_s;
        let bearable = ask.load * (1.0 - self.options.resolution / 2.0);
        seen.offered < ask.load && (!seen.kept || seen.offered + frame < bearable)
    }

    /// Takes what the trial of [`Self::next`] saw.
    pub fn take(&mut self, ask: Ask, mut seen: Seen) {
        self.made += 1;
        let mut load = ask.load;
        if self.is_short(&ask, &seen) {
            // A moment in which the generator stood still is no limit: only the best of several tries is.
            self.short += 1;
            // What the others lost says nothing of a load that they did not offer.
            seen = match self.best {
                Some(best) if best.offered >= seen.offered => best,
                _ => seen,
            };
            self.best = Some(seen);
            if self.short < SHORT_OFFERS {
                return;
            }
            self.generator = true;
            self.most = self.most.min(seen.offered.max(self.floor()));
            load = self.most;
        }
        self.short = 0;
        self.best = None;
        self.trials.push(Trial {
            load,
            asked: ask.load,
            duration_s: ask.duration_s,
            seen,
        });
        let last = self.durations().len() - 1;
        for goal in 0..self.phases.len() {
            while self.phases[goal] < last
                && matches!(self.step(goal, self.phases[goal]), Step::Done(_))
            {
                self.phases[goal] += 1;
            }
        }
    }

    /// Trials at a load that are long enough for a phase.
    fn at(&self, load: f64, phase: usize) -> Vec<Trial> {
        let least = self.durations()[phase] * (1.0 - 1e-9);
        let trials = self.trials.iter().filter(|trial| trial.duration_s >= least);
        trials.filter(|trial| trial.load == load).copied().collect()
    }

    /// Every load of a phase with its verdict, ascending: a load passes when no more of its trials fail
    /// than may, and fails once so many did. Where a goal allows loss, one that was tried again passes as well
    /// when all its trials together lost no more.
    fn verdicts(&self, goal: usize, phase: usize) -> Vec<(f64, Verdict)> {
        let limit = self.options.goals[goal];
        let least = self.durations()[phase] * (1.0 - 1e-9);
        let mut loads: Vec<Tried> = Vec::new();
        for trial in self.trials.iter().filter(|trial| trial.duration_s >= least) {
            let at = loads.iter().position(|known| known.load == trial.load);
            let at = at.unwrap_or_else(|| {
                loads.push(Tried {
                    load: trial.load,
                    ..Tried::default()
                });
                loads.len() - 1
            });
            let sent = trial.seen.offered * trial.duration_s;
            let tried = &mut loads[at];
            tried.passed = trial.seen.loss <= limit;
            tried.failed += u32::from(!tried.passed);
            tried.trials += 1;
            tried.sent += sent;
            tried.lost += trial.seen.loss * sent;
        }
        loads.sort_by(|one, other| one.load.total_cmp(&other.load));
        let verdict = |tried: Tried| {
            let together = limit > 0.0 && tried.trials > self.options.tries;
            let verdict = match tried.passed {
                _ if together && tried.lost <= limit * tried.sent => Verdict::Passes,
                _ if tried.failed >= self.options.tries => Verdict::Fails,
                true => Verdict::Passes,
                false => Verdict::Open,
            };
            (tried.load, verdict)
        };
        loads.into_iter().map(verdict).collect()
    }

    /// A load that failed below one that passes, which is to be tried again: few frames may lose more than
    /// their share by chance, and would bound a goal that allows loss far below what the device carries.
    fn contradicted(&self, goal: usize, phase: usize) -> Option<f64> {
        if self.options.goals[goal] <= 0.0 {
            return None;
        }
        let (passing, failing) = self.sorted(goal, phase);
        let lowest = *failing.first()?;
        let tried = self.at(lowest, phase).len();
        let above = passing.last().is_some_and(|highest| *highest > lowest);
        (above && tried < (self.options.tries + MORE_TRIES) as usize).then_some(lowest)
    }

    /// The lowest load that fails, and the highest below it that passes.
    fn bounds(&self, goal: usize, phase: usize) -> (Option<f64>, Option<f64>) {
        let (passing, failing) = self.sorted(goal, phase);
        let upper = failing.first().copied();
        let below = |load: &f64| upper.is_none_or(|upper| *load < upper);
        (passing.into_iter().rev().find(below), upper)
    }

    /// Loads that pass and loads that fail, ascending.
    fn sorted(&self, goal: usize, phase: usize) -> (Vec<f64>, Vec<f64>) {
        let verdicts = self.verdicts(goal, phase);
        let of = |wanted: Verdict| -> Vec<f64> {
            let loads = verdicts.iter().filter(|(_, verdict)| *verdict == wanted);
            loads.map(|&(load, _)| load).collect()
        };
        (of(Verdict::Passes), of(Verdict::Fails))
    }

    fn width(&self, phase: usize) -> f64 {
        let coarser = (self.durations().len() - 1 - phase) as i32;
        (self.options.resolution * COARSER.powi(coarser)).min(LARGEST_STEP)
    }

    fn step(&self, goal: usize, phase: usize) -> Step {
        // A load that failed once and may fail again is looked at before anything else.
        if let Some(last) = self.trials.last()
            && self
                .verdicts(goal, phase)
                .contains(&(last.load, Verdict::Open))
        {
            return Step::Try(last.load);
        }
        if let Some(load) = self.contradicted(goal, phase) {
            return Step::Try(load);
        }
        let (lower, upper) = self.bounds(goal, phase);
        let width = self.width(phase);
        match (lower, upper) {
            (Some(lower), None) if lower >= self.most => Step::Done(match self.generator {
                true => End::Generator,
                false => End::Most,
            }),
            (Some(lower), None) => Step::Try(self.up(goal, phase, lower, width)),
            (None, Some(upper)) if upper <= self.floor() => Step::Done(End::Floor),
            (None, Some(upper)) => Step::Try(self.down(goal, phase, upper, width)),
            (None, None) => Step::Try(self.first(goal, phase)),
            (Some(lower), Some(upper)) => {
                let middle = f64::midpoint(lower, upper);
                let split = middle > lower && middle < upper;
                // An upper bound above what can be offered stays where it is.
                if (upper - lower) / upper <= width || !split {
                    Step::Done(End::Resolution)
                } else if lower >= self.most {
                    Step::Done(End::Generator)
                } else {
                    // A bound of the shorter trials, where it lies in between, is the best guess.
                    Step::Try(self.hint(goal, phase, lower, upper).unwrap_or(middle))
                }
            }
        }
    }

    /// A bound of the phase before, strictly between these.
    fn hint(&self, goal: usize, phase: usize, lower: f64, upper: f64) -> Option<f64> {
        let (low, high) = self.bounds(goal, phase.checked_sub(1)?);
        let margin = (upper - lower) * 1e-6;
        // What cannot be offered any more would be asked for again and again.
        let upper = upper.min(self.most + 2.0 * margin);
        let inside = |load: &f64| *load > lower + margin && *load < upper - margin;
        let tried = |load: &f64| !self.at(*load, phase).is_empty();
        [low, high]
            .into_iter()
            .flatten()
            .find(|load| inside(load) && !tried(load))
    }

    fn first(&self, goal: usize, phase: usize) -> f64 {
        let before = phase.checked_sub(1).map(|phase| self.bounds(goal, phase));
        let load = match before {
            Some((Some(lower), _)) => lower,
            Some((None, Some(upper))) => upper,
            _ => self.most,
        };
        load.clamp(self.floor(), self.most)
    }

    /// Away from a load that passes: to the bound of shorter trials, or in steps that double.
    fn up(&self, goal: usize, phase: usize, lower: f64, width: f64) -> f64 {
        if let Some(hint) = self.hint(goal, phase, lower, self.most * 2.0) {
            return hint.min(self.most);
        }
        let (passing, _) = self.sorted(goal, phase);
        let before = passing.iter().rev().find(|&&load| load < lower);
        let step = before.map_or(width, |before| ((lower - before) / lower * 2.0).max(width));
        (lower * (1.0 + step)).min(self.most)
    }

    /// Away from a load that fails: to what arrived then, to the bound of shorter trials, or in steps
    /// that double.
    fn down(&self, goal: usize, phase: usize, upper: f64, width: f64) -> f64 {
        let floor = self.floor();
        let (_, failing) = self.sorted(goal, phase);
        let before = failing.iter().find(|&&load| load > upper);
        if before.is_none() {
            // What arrives under overload is a good guess, if the device does not drown.
            let trials = self.at(upper, phase);
            let most = trials
                .iter()
                .map(|trial| trial.seen.forwarded)
                .reduce(f64::max);
            if let Some(guess) = most.filter(|&guess| guess < upper * (1.0 - width / 2.0)) {
                return guess.clamp(floor, upper);
            }
        }
        let least = self.hint(goal, phase, floor, upper);
        let step = before.map_or(width, |before| ((before - upper) / upper * 2.0).max(width));
        let next = upper * (1.0 - step.min(LARGEST_STEP));
        least.unwrap_or(next).min(next.max(floor)).max(floor)
    }
}

/// Of the trials' figures; none of no trial.
fn mean(trials: &[Trial], figure: impl Fn(&Seen) -> f64) -> Option<f64> {
    let sum: f64 = trials.iter().map(|trial| figure(&trial.seen)).sum();
    (!trials.is_empty()).then(|| sum / trials.len() as f64)
}

#[cfg(test)]
mod tests;
