//! Search for the highest loads at which the loss stays within a limit, for several limits at once.
//!
//! Decides without I/O and without a clock: a trial result goes in, the next trial comes out. As in
//! MLRsearch (draft-ietf-bmwg-mlrsearch), the goals share their trials. Short trials come first and
//! bound the loads that the long trials then decide: the phases have growing trial durations, and
//! each phase narrows the bounds of every goal to its own width.

/// Goals and limits of a search.
#[derive(Clone, Debug)]
pub struct MultiGoalOptions {
    /// Loss goals: highest fraction of the frames that may be lost.
    pub loss_goals: Vec<f64>,
    /// The search ends when the bounds are this close, as a fraction of the upper one.
    pub resolution: f64,
    /// Duration of the full-length trials, which decide, in seconds.
    pub trial_s: f64,
    /// Duration of the first, shortest trials, in seconds.
    pub first_trial_s: f64,
    /// Highest load to try, in frames per second: the line rate, or the rate requested of the
    /// generator.
    pub max_load: f64,
    /// Maximum number of trials.
    pub max_trials: u32,
    /// Number of failed full-length trials after which a load counts as failed (1 as in RFC 2544).
    pub tries: u32,
}

/// A trial to run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrialRequest {
    /// Intended load in frames per second.
    pub load: f64,
    pub duration_s: f64,
    /// True for a full-length trial.
    pub is_full_length: bool,
}

/// Result of a trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrialResult {
    /// Offered load: frames per second that left.
    pub offered_fps: f64,
    /// Forwarding rate: frames per second that arrived.
    pub forwarding_fps: f64,
    /// Fraction of the frames that were lost or still in a queue on the path.
    pub loss: f64,
    /// True if the generator offered the intended load.
    pub load_met: bool,
    /// True if this host may have caused the loss.
    pub disturbed: bool,
}

/// Reason why the search of a goal ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoalSearchEnd {
    /// The bounds are within the resolution.
    Resolution,
    /// The highest load passed.
    MaxLoad,
    /// The generator cannot offer more, and its highest load passed.
    Generator,
    /// Even one frame per trial failed.
    Floor,
    /// The maximum number of trials was reached.
    Trials,
}

/// Result of one loss goal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GoalResult {
    /// Highest fraction of the frames that may be lost.
    pub loss_goal: f64,
    /// Highest load in frames per second that passed, below all loads that failed; `None` if no
    /// load passed.
    pub lower: Option<f64>,
    /// Lowest load in frames per second that failed.
    pub upper: Option<f64>,
    /// Mean loss of the trials at the lower bound.
    pub lower_loss: Option<f64>,
    /// Mean forwarding rate of those trials.
    pub lower_forwarding_fps: Option<f64>,
    /// Mean offered load of those trials.
    pub lower_offered: Option<f64>,
    /// Mean offered load of the failed trials at the upper bound.
    pub upper_offered: Option<f64>,
    /// Intended load of the failed trials at the upper bound.
    pub upper_intended: Option<f64>,
    /// True if this host disturbed every failed trial at the upper bound.
    pub disturbed: bool,
    /// Frames beyond the upper bound that a shorter trial passed (0: none): the burst that a buffer
    /// or a rate limiter of the device takes. The full-length trials overstate the rate by it as
    /// well.
    pub frames_beyond: f64,
    pub end: GoalSearchEnd,
}

/// Next step of a search.
#[derive(Clone, Debug, PartialEq)]
pub enum MultiGoalStep {
    /// Run this trial.
    Try(TrialRequest),
    /// The search has ended, with a result for each goal.
    Done(Vec<GoalResult>),
}

/// Number of trials below the intended load after which their best counts as all that the generator
/// can offer.
const UNDERLOAD_TRIALS: u32 = 3;
/// Ratio of a forwarding rate to the lowest failed load, in a full-length trial, from which on the
/// device sustains the rate: a buffer alone cannot explain it.
const CARRIED_RATIO: f64 = 1.1;
/// Standard deviations within which a loss counts as chance; exceeded by chance about once in a
/// thousand times.
const CHANCE_SIGMAS: f64 = 3.0;
/// Further trials of a load that failed although a higher one passes, for goals that allow loss.
const CONTRADICTION_TRIES: u32 = 4;
/// Largest downward step, as a fraction of the load.
const LARGEST_STEP: f64 = 0.5;
/// Ratio of the width of a phase to the width of the next phase.
const PHASE_WIDTH_RATIO: f64 = 4.0;

#[derive(Clone, Copy, Debug)]
struct CompletedTrial {
    load: f64,
    /// Load that the search requested; higher than `load` if the generator could not offer it.
    intended: f64,
    duration_s: f64,
    result: TrialResult,
}

/// Sums over all trials at one load.
#[derive(Clone, Copy, Debug, Default)]
struct LoadTotals {
    load: f64,
    trials: u32,
    failures: u32,
    /// True if the last trial passed.
    last_passed: bool,
    sent: f64,
    lost: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum LoadVerdict {
    Passes,
    Fails,
    /// Failed, but fewer than `tries` times.
    Undecided,
}

/// State of a search.
#[derive(Clone, Debug)]
pub struct MultiGoalSearch {
    options: MultiGoalOptions,
    trials: Vec<CompletedTrial>,
    /// Phase of each goal. A goal never returns to an earlier phase: long trials may change the
    /// bounds of the short trials, but these are no longer needed then.
    phases: Vec<usize>,
    trials_done: u32,
    /// Highest load that can be offered, as measured so far.
    max_load: f64,
    /// True if the generator is the limit.
    is_generator_limited: bool,
    underload_trials: u32,
    /// Result with the highest offered load among the present row of trials below the intended
    /// load.
    best_underload: Option<TrialResult>,
}

/// Next step of one goal in one phase.
enum GoalStep {
    Try(f64),
    Done(GoalSearchEnd),
}

impl MultiGoalSearch {
    #[must_use]
    pub fn new(options: MultiGoalOptions) -> Self {
        Self {
            max_load: options.max_load,
            phases: vec![0; options.loss_goals.len()],
            options,
            trials: Vec::new(),
            trials_done: 0,
            is_generator_limited: false,
            underload_trials: 0,
            best_underload: None,
        }
    }

    /// Returns the trial duration of each phase in seconds, the shortest first.
    fn durations(&self) -> [f64; 3] {
        let (first, last) = (
            self.options.first_trial_s.min(self.options.trial_s),
            self.options.trial_s,
        );
        [first, (first * last).sqrt(), last]
    }

    /// Returns the lowest load in frames per second: one frame per trial.
    fn floor(&self) -> f64 {
        (1.0 / self.options.trial_s).min(self.max_load)
    }

    /// Returns the next trial, or the results when the search has ended.
    #[must_use]
    pub fn next(&self) -> MultiGoalStep {
        let durations = self.durations();
        let last = durations.len() - 1;
        if self.trials_done >= self.options.max_trials {
            return self.done(|_| GoalSearchEnd::Trials);
        }
        let trial_step = |load, phase: usize| {
            MultiGoalStep::Try(TrialRequest {
                load,
                duration_s: durations[phase],
                is_full_length: phase == last,
            })
        };
        if self.trials.is_empty() {
            return trial_step(self.max_load, 0);
        }
        for (phase, goal) in self.goals_by_phase() {
            if let GoalStep::Try(load) = self.goal_step(goal, phase) {
                // An old bound may exceed the load that can still be offered.
                return trial_step(load.min(self.max_load), phase);
            }
        }
        self.done(|goal| match self.goal_step(goal, last) {
            GoalStep::Done(end) => end,
            GoalStep::Try(_) => GoalSearchEnd::Trials,
        })
    }

    /// Returns goals with their phases, goals in the earliest phase first.
    fn goals_by_phase(&self) -> Vec<(usize, usize)> {
        let goals = self.phases.iter().copied().zip(0..);
        let mut goals: Vec<(usize, usize)> = goals.collect();
        goals.sort_unstable();
        goals
    }

    /// Returns the results of a search that has not ended.
    #[must_use]
    pub fn interim_results(&self) -> Vec<GoalResult> {
        self.goal_results(|_| GoalSearchEnd::Trials)
    }

    fn done(&self, end: impl Fn(usize) -> GoalSearchEnd) -> MultiGoalStep {
        MultiGoalStep::Done(self.goal_results(end))
    }

    fn goal_results(&self, end: impl Fn(usize) -> GoalSearchEnd) -> Vec<GoalResult> {
        let last = self.durations().len() - 1;
        let results = (0..self.options.loss_goals.len()).map(|goal| {
            let (lower, upper) = self.bounds(goal, last);
            let trials_at =
                |load: Option<f64>| load.map_or_else(Vec::new, |load| self.trials_at(load, last));
            let (passed, mut failed) = (trials_at(lower), trials_at(upper));
            let limit = self.options.loss_goals[goal];
            failed.retain(|trial| trial.result.loss > limit);
            GoalResult {
                loss_goal: limit,
                lower,
                upper,
                lower_loss: mean(&passed, |result| result.loss),
                lower_forwarding_fps: mean(&passed, |result| result.forwarding_fps),
                lower_offered: mean(&passed, |result| result.offered_fps),
                upper_offered: mean(&failed, |result| result.offered_fps),
                upper_intended: failed.first().map(|trial| trial.intended),
                disturbed: upper.is_some_and(|load| self.is_bound_disturbed(goal, load)),
                frames_beyond: upper.map_or(0.0, |load| self.frames_beyond(goal, load)),
                end: end(goal),
            }
        });
        results.collect()
    }

    /// Returns whether this host disturbed all full-length trials that failed at a load.
    fn is_bound_disturbed(&self, goal: usize, load: f64) -> bool {
        let limit = self.options.loss_goals[goal];
        let trials = self.trials_at(load, self.durations().len() - 1);
        let mut failed = trials.iter().filter(|trial| trial.result.loss > limit);
        failed.all(|trial| trial.result.disturbed)
    }

    /// Returns the largest number of frames above a load that passed in a shorter trial, if a
    /// buffer or a rate limiter's burst explains it. Chance is excluded: a short trial has few
    /// frames, so random loss often spares it.
    fn frames_beyond(&self, goal: usize, load: f64) -> f64 {
        let limit = self.options.loss_goals[goal];
        let min_duration_s = self.options.trial_s * (1.0 - 1e-9);
        let (full_length, shorter): (Vec<&CompletedTrial>, Vec<&CompletedTrial>) =
            (self.trials.iter()).partition(|trial| trial.duration_s >= min_duration_s);
        // A buffer is full by the end of such a trial, so the device sustains this rate.
        if (full_length.iter()).any(|trial| trial.result.forwarding_fps > load * CARRIED_RATIO) {
            return 0.0;
        }
        let passed = shorter
            .iter()
            .filter(|trial| trial.load > load && trial.result.loss <= limit);
        passed
            .filter(|trial| !self.is_by_chance(load, trial))
            .map(|trial| (trial.load - load) * trial.duration_s)
            .fold(0.0, f64::max)
    }

    /// Returns whether chance can explain the low loss of a trial, given the loss probability of
    /// the longer trials at loads from `load` to its own.
    fn is_by_chance(&self, load: f64, trial: &CompletedTrial) -> bool {
        let sent_frames = |other: &CompletedTrial| other.result.offered_fps * other.duration_s;
        let lost_frames = |other: &CompletedTrial| other.result.loss * sent_frames(other);
        let longer = self.trials.iter().filter(|other| {
            other.duration_s > trial.duration_s && (load..=trial.load).contains(&other.load)
        });
        let (sent_longer, lost_longer) =
            longer.fold((0.0, 0.0), |(sent_longer, lost_longer), other| {
                (
                    sent_longer + sent_frames(other),
                    lost_longer + lost_frames(other),
                )
            });
        let expected = if sent_longer > 0.0 {
            lost_longer / sent_longer * sent_frames(trial)
        } else {
            0.0
        };
        // Independent events: the standard deviation is the square root of the mean (Poisson).
        expected - lost_frames(trial) <= CHANCE_SIGMAS * expected.sqrt()
    }

    /// Counts a trial whose result is not used.
    pub fn skip_trial(&mut self) {
        self.trials_done += 1;
    }

    /// Returns whether the offered load was below the intended one by more than half of the
    /// resolution. A bound must not be named by a load that was not offered.
    fn is_underload(&self, request: &TrialRequest, result: &TrialResult) -> bool {
        // Rounding to whole frames matters in short trials.
        let one_frame_fps = 1.0 / request.duration_s;
        let min_offered = request.load * (1.0 - self.options.resolution / 2.0);
        result.offered_fps < request.load
            && (!result.load_met || result.offered_fps + one_frame_fps < min_offered)
    }

    /// Records the result of the trial that [`Self::next`] returned.
    pub fn record(&mut self, request: TrialRequest, mut result: TrialResult) {
        self.trials_done += 1;
        let mut load = request.load;
        if self.is_underload(&request, &result) {
            // A single stall of the generator is no limit: the best of several trials is.
            self.underload_trials += 1;
            // The losses of the other trials belong to loads below this one.
            result = match self.best_underload {
                Some(best) if best.offered_fps >= result.offered_fps => best,
                _ => result,
            };
            self.best_underload = Some(result);
            if self.underload_trials < UNDERLOAD_TRIALS {
                return;
            }
            self.is_generator_limited = true;
            self.max_load = self.max_load.min(result.offered_fps.max(self.floor()));
            load = self.max_load;
        }
        self.underload_trials = 0;
        self.best_underload = None;
        self.trials.push(CompletedTrial {
            load,
            intended: request.load,
            duration_s: request.duration_s,
            result,
        });
        let last = self.durations().len() - 1;
        for goal in 0..self.phases.len() {
            while self.phases[goal] < last
                && matches!(self.goal_step(goal, self.phases[goal]), GoalStep::Done(_))
            {
                self.phases[goal] += 1;
            }
        }
    }

    /// Returns the trials at a load whose duration reaches that of a phase.
    fn trials_at(&self, load: f64, phase: usize) -> Vec<CompletedTrial> {
        let min_duration_s = self.durations()[phase] * (1.0 - 1e-9);
        let trials = self
            .trials
            .iter()
            .filter(|trial| trial.duration_s >= min_duration_s);
        trials.filter(|trial| trial.load == load).copied().collect()
    }

    /// Returns each load of a phase with its verdict, in ascending order. A load fails once it has
    /// failed `tries` times. If the goal allows loss, a repeated load also passes when the loss of
    /// all its trials together is within the goal.
    fn verdicts(&self, goal: usize, phase: usize) -> Vec<(f64, LoadVerdict)> {
        let limit = self.options.loss_goals[goal];
        let min_duration_s = self.durations()[phase] * (1.0 - 1e-9);
        let mut loads: Vec<LoadTotals> = Vec::new();
        for trial in self
            .trials
            .iter()
            .filter(|trial| trial.duration_s >= min_duration_s)
        {
            let index = loads.iter().position(|totals| totals.load == trial.load);
            let index = index.unwrap_or_else(|| {
                loads.push(LoadTotals {
                    load: trial.load,
                    ..LoadTotals::default()
                });
                loads.len() - 1
            });
            let sent = trial.result.offered_fps * trial.duration_s;
            let tried = &mut loads[index];
            tried.last_passed = trial.result.loss <= limit;
            tried.failures += u32::from(!tried.last_passed);
            tried.trials += 1;
            tried.sent += sent;
            tried.lost += trial.result.loss * sent;
        }
        loads.sort_by(|left, right| left.load.total_cmp(&right.load));
        let verdict = |tried: LoadTotals| {
            let is_pooled = limit > 0.0 && tried.trials > self.options.tries;
            let verdict = match tried.last_passed {
                _ if is_pooled && tried.lost <= limit * tried.sent => LoadVerdict::Passes,
                _ if tried.failures >= self.options.tries => LoadVerdict::Fails,
                true => LoadVerdict::Passes,
                false => LoadVerdict::Undecided,
            };
            (tried.load, verdict)
        };
        loads.into_iter().map(verdict).collect()
    }

    /// Returns a failed load below one that passes, if it is to be tried again. A trial with few
    /// frames may exceed the goal by chance, and would bound a goal that allows loss far below the
    /// capacity of the device.
    fn contradicted_load(&self, goal: usize, phase: usize) -> Option<f64> {
        if self.options.loss_goals[goal] <= 0.0 {
            return None;
        }
        let (passing, failing) = self.split_by_verdict(goal, phase);
        let lowest = *failing.first()?;
        let trials_done = self.trials_at(lowest, phase).len();
        let higher_passes = passing.last().is_some_and(|highest| *highest > lowest);
        (higher_passes && trials_done < (self.options.tries + CONTRADICTION_TRIES) as usize)
            .then_some(lowest)
    }

    /// Returns the highest load that passes below all that fail, and the lowest load that fails.
    fn bounds(&self, goal: usize, phase: usize) -> (Option<f64>, Option<f64>) {
        let (passing, failing) = self.split_by_verdict(goal, phase);
        let upper = failing.first().copied();
        let below = |load: &f64| upper.is_none_or(|upper| *load < upper);
        (passing.into_iter().rev().find(below), upper)
    }

    /// Returns the loads that pass and the loads that fail, in ascending order.
    fn split_by_verdict(&self, goal: usize, phase: usize) -> (Vec<f64>, Vec<f64>) {
        let verdicts = self.verdicts(goal, phase);
        let loads_with = |verdict_wanted: LoadVerdict| -> Vec<f64> {
            let loads = verdicts
                .iter()
                .filter(|(_, verdict)| *verdict == verdict_wanted);
            loads.map(|&(load, _)| load).collect()
        };
        (
            loads_with(LoadVerdict::Passes),
            loads_with(LoadVerdict::Fails),
        )
    }

    fn phase_width(&self, phase: usize) -> f64 {
        let coarser = (self.durations().len() - 1 - phase) as i32;
        (self.options.resolution * PHASE_WIDTH_RATIO.powi(coarser)).min(LARGEST_STEP)
    }

    fn goal_step(&self, goal: usize, phase: usize) -> GoalStep {
        // A load that failed and may fail again is repeated before any other trial.
        if let Some(last) = self.trials.last()
            && self
                .verdicts(goal, phase)
                .contains(&(last.load, LoadVerdict::Undecided))
        {
            return GoalStep::Try(last.load);
        }
        if let Some(load) = self.contradicted_load(goal, phase) {
            return GoalStep::Try(load);
        }
        let (lower, upper) = self.bounds(goal, phase);
        let width = self.phase_width(phase);
        match (lower, upper) {
            (Some(lower), None) if lower >= self.max_load => {
                GoalStep::Done(match self.is_generator_limited {
                    true => GoalSearchEnd::Generator,
                    false => GoalSearchEnd::MaxLoad,
                })
            }
            (Some(lower), None) => GoalStep::Try(self.load_above(goal, phase, lower, width)),
            (None, Some(upper)) if upper <= self.floor() => GoalStep::Done(GoalSearchEnd::Floor),
            (None, Some(upper)) => GoalStep::Try(self.load_below(goal, phase, upper, width)),
            (None, None) => GoalStep::Try(self.first_load(goal, phase)),
            (Some(lower), Some(upper)) => {
                let middle = f64::midpoint(lower, upper);
                let is_divisible = middle > lower && middle < upper;
                // An upper bound above the highest possible load cannot be narrowed.
                if (upper - lower) / upper <= width || !is_divisible {
                    GoalStep::Done(GoalSearchEnd::Resolution)
                } else if lower >= self.max_load {
                    GoalStep::Done(GoalSearchEnd::Generator)
                } else {
                    // A bound of the shorter trials, where it lies in between, is the best guess.
                    GoalStep::Try(
                        self.bound_of_previous_phase(goal, phase, lower, upper)
                            .unwrap_or(middle),
                    )
                }
            }
        }
    }

    /// Returns a bound of the previous phase that lies strictly between the given bounds.
    fn bound_of_previous_phase(
        &self,
        goal: usize,
        phase: usize,
        lower: f64,
        upper: f64,
    ) -> Option<f64> {
        let (low, high) = self.bounds(goal, phase.checked_sub(1)?);
        let margin = (upper - lower) * 1e-6;
        // Loads that can no longer be offered would be requested again and again.
        let upper = upper.min(self.max_load + 2.0 * margin);
        let is_between = |load: &f64| *load > lower + margin && *load < upper - margin;
        let is_tried = |load: &f64| !self.trials_at(*load, phase).is_empty();
        [low, high]
            .into_iter()
            .flatten()
            .find(|load| is_between(load) && !is_tried(load))
    }

    fn first_load(&self, goal: usize, phase: usize) -> f64 {
        let previous = phase.checked_sub(1).map(|phase| self.bounds(goal, phase));
        let load = match previous {
            Some((Some(lower), _)) => lower,
            Some((None, Some(upper))) => upper,
            _ => self.max_load,
        };
        load.clamp(self.floor(), self.max_load)
    }

    /// Returns the next load above one that passes: the bound of shorter trials, or a step that
    /// doubles each time.
    fn load_above(&self, goal: usize, phase: usize, lower: f64, width: f64) -> f64 {
        if let Some(hint) = self.bound_of_previous_phase(goal, phase, lower, self.max_load * 2.0) {
            return hint.min(self.max_load);
        }
        let (passing, _) = self.split_by_verdict(goal, phase);
        let previous = passing.iter().rev().find(|&&load| load < lower);
        let step = previous.map_or(width, |previous| {
            ((lower - previous) / lower * 2.0).max(width)
        });
        (lower * (1.0 + step)).min(self.max_load)
    }

    /// Returns the next load below one that fails: the forwarding rate at that load, the bound of
    /// shorter trials, or a step that doubles each time.
    fn load_below(&self, goal: usize, phase: usize, upper: f64, width: f64) -> f64 {
        let floor = self.floor();
        let (_, failing) = self.split_by_verdict(goal, phase);
        let previous = failing.iter().find(|&&load| load > upper);
        if previous.is_none() {
            // The forwarding rate under overload is a good first guess, unless overload lowers it.
            let trials = self.trials_at(upper, phase);
            let max_forwarding = trials
                .iter()
                .map(|trial| trial.result.forwarding_fps)
                .reduce(f64::max);
            if let Some(guess) = max_forwarding.filter(|&guess| guess < upper * (1.0 - width / 2.0))
            {
                return guess.clamp(floor, upper);
            }
        }
        let bound = self.bound_of_previous_phase(goal, phase, floor, upper);
        let step = previous.map_or(width, |previous| {
            ((previous - upper) / upper * 2.0).max(width)
        });
        let next = upper * (1.0 - step.min(LARGEST_STEP));
        bound.unwrap_or(next).min(next.max(floor)).max(floor)
    }
}

/// Returns the mean of a figure of the trials, or `None` without trials.
fn mean(trials: &[CompletedTrial], figure: impl Fn(&TrialResult) -> f64) -> Option<f64> {
    let sum: f64 = trials.iter().map(|trial| figure(&trial.result)).sum();
    (!trials.is_empty()).then(|| sum / trials.len() as f64)
}

#[cfg(test)]
mod tests;
