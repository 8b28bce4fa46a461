//! Search for the highest loads at which the loss stays within a limit, for several limits at once.
//!
//! Decides without I/O and without a clock: a trial result goes in, the next trial comes out. As in
//! MLRsearch (draft-ietf-bmwg-mlrsearch), the goals share their trials. Short trials come first and
//! bound the loads that the long trials then decide: the phases have growing trial durations, and
//! each phase narrows the bounds of every goal to its own width.

/// Goals and limits of a search.
#[derive(Clone, Debug)]
pub struct Options {
    /// Loss goals: highest fraction of the frames that may be lost.
    pub goals: Vec<f64>,
    /// The search ends when the bounds are this close, as a fraction of the upper one.
    pub resolution: f64,
    /// Duration of the full-length trials, which decide, in seconds.
    pub trial_s: f64,
    /// Duration of the first, shortest trials, in seconds.
    pub first_s: f64,
    /// Highest load to try, in frames per second: the line rate, or the rate requested of the
    /// generator.
    pub most: f64,
    /// Maximum number of trials.
    pub trials: u32,
    /// Number of failed full-length trials after which a load counts as failed (1 as in RFC 2544).
    pub tries: u32,
}

/// A trial to run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ask {
    /// Intended load in frames per second.
    pub load: f64,
    pub duration_s: f64,
    /// True for a full-length trial.
    pub decides: bool,
}

/// Result of a trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// Offered load: frames per second that left.
    pub offered: f64,
    /// Forwarding rate: frames per second that arrived.
    pub forwarded: f64,
    /// Fraction of the frames that were lost or still in a queue on the path.
    pub loss: f64,
    /// True if the generator offered the intended load.
    pub kept: bool,
    /// True if this host may have caused the loss.
    pub disturbed: bool,
}

/// Reason why the search of a goal ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The bounds are within the resolution.
    Resolution,
    /// The highest load passed.
    Most,
    /// The generator cannot offer more, and its highest load passed.
    Generator,
    /// Even one frame per trial failed.
    Floor,
    /// The maximum number of trials was reached.
    Trials,
}

/// Result of one loss goal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// Highest fraction of the frames that may be lost.
    pub goal: f64,
    /// Highest load in frames per second that passed, below all loads that failed; `None` if no
    /// load passed.
    pub lower: Option<f64>,
    /// Lowest load in frames per second that failed.
    pub upper: Option<f64>,
    /// Mean loss of the trials at the lower bound.
    pub loss: Option<f64>,
    /// Mean forwarding rate of those trials.
    pub forwarded: Option<f64>,
    /// Mean offered load of those trials.
    pub lower_offered: Option<f64>,
    /// Mean offered load of the failed trials at the upper bound.
    pub upper_offered: Option<f64>,
    /// Intended load of the failed trials at the upper bound.
    pub upper_asked: Option<f64>,
    /// True if this host disturbed every failed trial at the upper bound.
    pub disturbed: bool,
    /// Frames beyond the upper bound that a shorter trial passed (0: none): the burst that a buffer
    /// or a rate limiter of the device takes. The full-length trials overstate the rate by it as
    /// well.
    pub beyond: f64,
    pub end: End,
}

/// Next step of a search.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// Run this trial.
    Try(Ask),
    /// The search has ended, with a result for each goal.
    Over(Vec<Found>),
}

/// Number of trials below the intended load after which their best counts as all that the generator
/// can offer.
const SHORT_OFFERS: u32 = 3;
/// Ratio of a forwarding rate to the lowest failed load, in a full-length trial, from which on the
/// device sustains the rate: a buffer alone cannot explain it.
const CARRIED: f64 = 1.1;
/// Standard deviations within which a loss counts as chance; exceeded by chance about once in a
/// thousand times.
const CHANCE: f64 = 3.0;
/// Further trials of a load that failed although a higher one passes, for goals that allow loss.
const MORE_TRIES: u32 = 4;
/// Largest downward step, as a fraction of the load.
const LARGEST_STEP: f64 = 0.5;
/// Ratio of the width of a phase to the width of the next phase.
const COARSER: f64 = 4.0;

#[derive(Clone, Copy, Debug)]
struct Trial {
    load: f64,
    /// Load that the search requested; higher than `load` if the generator could not offer it.
    asked: f64,
    duration_s: f64,
    seen: Seen,
}

/// Sums over all trials at one load.
#[derive(Clone, Copy, Debug, Default)]
struct Tried {
    load: f64,
    trials: u32,
    failed: u32,
    /// True if the last trial passed.
    passed: bool,
    sent: f64,
    lost: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Verdict {
    Passes,
    Fails,
    /// Failed, but fewer than `tries` times.
    Open,
}

/// State of a search.
#[derive(Clone, Debug)]
pub struct Search {
    options: Options,
    trials: Vec<Trial>,
    /// Phase of each goal. A goal never returns to an earlier phase: long trials may change the
    /// bounds of the short trials, but these are no longer needed then.
    phases: Vec<usize>,
    made: u32,
    /// Highest load that can be offered, as measured so far.
    most: f64,
    /// True if the generator is the limit.
    generator: bool,
    short: u32,
    /// Result with the highest offered load among the present row of trials below the intended
    /// load.
    best: Option<Seen>,
}

/// Next step of one goal in one phase.
enum Step {
    Try(f64),
    Done(End),
}

impl Search {
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

    /// Returns the trial duration of each phase in seconds, the shortest first.
    fn durations(&self) -> [f64; 3] {
        let (first, last) = (
            self.options.first_s.min(self.options.trial_s),
            self.options.trial_s,
        );
        [first, (first * last).sqrt(), last]
    }

    /// Returns the lowest load in frames per second: one frame per trial.
    fn floor(&self) -> f64 {
        (1.0 / self.options.trial_s).min(self.most)
    }

    /// Returns the next trial, or the results when the search has ended.
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
                // An old bound may exceed the load that can still be offered.
                return ask(load.min(self.most), phase);
            }
        }
        self.over(|goal| match self.step(goal, last) {
            Step::Done(end) => end,
            Step::Try(_) => End::Trials,
        })
    }

    /// Returns goals with their phases, goals in the earliest phase first.
    fn in_turn(&self) -> Vec<(usize, usize)> {
        let goals = self.phases.iter().copied().zip(0..);
        let mut goals: Vec<(usize, usize)> = goals.collect();
        goals.sort_unstable();
        goals
    }

    /// Returns the results of a search that has not ended.
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

    /// Returns whether this host disturbed all full-length trials that failed at a load.
    fn is_disturbed(&self, goal: usize, load: f64) -> bool {
        let limit = self.options.goals[goal];
        let trials = self.at(load, self.durations().len() - 1);
        let mut failed = trials.iter().filter(|trial| trial.seen.loss > limit);
        failed.all(|trial| trial.seen.disturbed)
    }

    /// Returns the largest number of frames above a load that passed in a shorter trial, if a
    /// buffer or a rate limiter's burst explains it. Chance is excluded: a short trial has few
    /// frames, so random loss often spares it.
    fn beyond(&self, goal: usize, load: f64) -> f64 {
        let limit = self.options.goals[goal];
        let least = self.options.trial_s * (1.0 - 1e-9);
        let (long, short): (Vec<&Trial>, Vec<&Trial>) =
            (self.trials.iter()).partition(|trial| trial.duration_s >= least);
        // A buffer is full by the end of such a trial, so the device sustains this rate.
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

    /// Returns whether chance can explain the low loss of a trial, given the loss probability of
    /// the longer trials at loads from `load` to its own.
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
        // Independent events: the standard deviation is the square root of the mean (Poisson).
        expected - lost(passed) <= CHANCE * expected.sqrt()
    }

    /// Counts a trial whose result is not used.
    pub fn pass_over(&mut self) {
        self.made += 1;
    }

    /// Returns whether the offered load was below the intended one by more than half of the
    /// resolution. A bound must not be named by a load that was not offered.
    fn is_short(&self, ask: &Ask, seen: &Seen) -> bool {
        // Rounding to whole frames matters in short trials.
        let frame = 1.0 / ask.duration_s;
        let bearable = ask.load * (1.0 - self.options.resolution / 2.0);
        seen.offered < ask.load && (!seen.kept || seen.offered + frame < bearable)
    }

    /// Records the result of the trial that [`Self::next`] returned.
    pub fn take(&mut self, ask: Ask, mut seen: Seen) {
        self.made += 1;
        let mut load = ask.load;
        if self.is_short(&ask, &seen) {
            // A single stall of the generator is no limit: the best of several trials is.
            self.short += 1;
            // The losses of the other trials belong to loads below this one.
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

    /// Returns the trials at a load whose duration reaches that of a phase.
    fn at(&self, load: f64, phase: usize) -> Vec<Trial> {
        let least = self.durations()[phase] * (1.0 - 1e-9);
        let trials = self.trials.iter().filter(|trial| trial.duration_s >= least);
        trials.filter(|trial| trial.load == load).copied().collect()
    }

    /// Returns each load of a phase with its verdict, in ascending order. A load fails once it has
    /// failed `tries` times. If the goal allows loss, a repeated load also passes when the loss of
    /// all its trials together is within the goal.
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

    /// Returns a failed load below one that passes, if it is to be tried again. A trial with few
    /// frames may exceed the goal by chance, and would bound a goal that allows loss far below the
    /// capacity of the device.
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

    /// Returns the highest load that passes below all that fail, and the lowest load that fails.
    fn bounds(&self, goal: usize, phase: usize) -> (Option<f64>, Option<f64>) {
        let (passing, failing) = self.sorted(goal, phase);
        let upper = failing.first().copied();
        let below = |load: &f64| upper.is_none_or(|upper| *load < upper);
        (passing.into_iter().rev().find(below), upper)
    }

    /// Returns the loads that pass and the loads that fail, in ascending order.
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
        // A load that failed and may fail again is repeated before any other trial.
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
                // An upper bound above the highest possible load cannot be narrowed.
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

    /// Returns a bound of the previous phase that lies strictly between the given bounds.
    fn hint(&self, goal: usize, phase: usize, lower: f64, upper: f64) -> Option<f64> {
        let (low, high) = self.bounds(goal, phase.checked_sub(1)?);
        let margin = (upper - lower) * 1e-6;
        // Loads that can no longer be offered would be requested again and again.
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

    /// Returns the next load above one that passes: the bound of shorter trials, or a step that
    /// doubles each time.
    fn up(&self, goal: usize, phase: usize, lower: f64, width: f64) -> f64 {
        if let Some(hint) = self.hint(goal, phase, lower, self.most * 2.0) {
            return hint.min(self.most);
        }
        let (passing, _) = self.sorted(goal, phase);
        let before = passing.iter().rev().find(|&&load| load < lower);
        let step = before.map_or(width, |before| ((lower - before) / lower * 2.0).max(width));
        (lower * (1.0 + step)).min(self.most)
    }

    /// Returns the next load below one that fails: the forwarding rate at that load, the bound of
    /// shorter trials, or a step that doubles each time.
    fn down(&self, goal: usize, phase: usize, upper: f64, width: f64) -> f64 {
        let floor = self.floor();
        let (_, failing) = self.sorted(goal, phase);
        let before = failing.iter().find(|&&load| load > upper);
        if before.is_none() {
            // The forwarding rate under overload is a good first guess, unless overload lowers it.
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

/// Returns the mean of a figure of the trials, or `None` without trials.
fn mean(trials: &[Trial], figure: impl Fn(&Seen) -> f64) -> Option<f64> {
    let sum: f64 = trials.iter().map(|trial| figure(&trial.seen)).sum();
    (!trials.is_empty()).then(|| sum / trials.len() as f64)
}

#[cfg(test)]
mod tests;
