//! Trials of a capacity measurement in their order: per frame size throughput, then latency, frame
//! loss and back-to-back bursts.
//!
//! Decides without I/O: a trial result goes in, the next trial comes out.

use linerate_record::capacity::{
    CapacityTrial, DelayPoint, FrameLossPoint, SizeCapacity, Throughput,
};
use linerate_record::generate::{WIRE_OVERHEAD_BYTES, line_rate_fps};
use linerate_record::ids::SearchEnd;
use linerate_stats::histogram::Quantiles;

use super::burst_search::{BurstSearch, BurstSearchStep};
use super::multi_goal_search;
use super::multi_goal_search::{GoalSearchEnd, MultiGoalSearch};
use crate::{HostDisturbance, QueueGrowth};

/// A test of RFC 2544 section 26.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SuiteTest {
    /// Section 26.1, for each loss goal.
    Throughput,
    /// Section 26.2.
    Latency,
    /// Section 26.3.
    FrameLoss,
    /// Section 26.4.
    BackToBack,
}

impl SuiteTest {
    /// Name in records.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Throughput => "throughput",
            Self::Latency => "latency",
            Self::FrameLoss => "frame-loss",
            Self::BackToBack => "back-to-back",
        }
    }
}

/// Plan of a measurement.
#[derive(Clone, Debug)]
pub struct SuiteOptions {
    /// Frame sizes as given by the user, with the mean bytes of each, FCS included.
    pub sizes: Vec<(String, f64)>,
    pub tests: Vec<SuiteTest>,
    /// Loss goals: highest fractions of the frames that may be lost, the smallest first.
    pub loss_goals: Vec<f64>,
    /// Highest distance of the bounds, as a fraction of the upper one.
    pub resolution: f64,
    /// Duration of the full-length trials, which decide, in seconds.
    pub trial_s: f64,
    /// Duration of the first, shortest trials, in seconds.
    pub first_trial_s: f64,
    /// Loads of the latency test, as fractions of the throughput.
    pub latency_loads: Vec<f64>,
    /// Maximum number of trials per search.
    pub max_trials: u32,
    /// Number of failed full-length trials after which a load counts as failed.
    pub tries: u32,
    /// Number of searches for the longest burst, which are averaged (RFC 9004: many).
    pub burst_searches: u32,
    /// Bit rate of the line, where it is known.
    pub line_bps: Option<u64>,
}

/// Least and usual number of trials in the search of a loss goal: those that decide, and the
/// shorter ones before, whose time is twice that of the first on average (simulated devices).
const DECIDING_TRIALS: (f64, f64) = (1.0, 4.0);
const SHORT_TRIALS: (f64, f64) = (5.0, 9.0);
/// Most loads of the test of frame loss: 100 % to 10 %.
const LOSS_TRIALS: f64 = 10.0;
/// Trials of a search for the longest burst: doubling to its length and halving the rest.
const BURST_TRIALS: f64 = 15.0;

impl SuiteOptions {
    /// Returns the least and the usual time of all tests in seconds, with `drain_s` after each
    /// trial.
    #[must_use]
    pub fn expected_time_s(&self, drain_s: f64) -> (f64, f64) {
        let has = |test| f64::from(u8::from(self.tests.contains(&test)));
        let goals = self.loss_goals.len() as f64;
        let loads = has(SuiteTest::Latency) * self.latency_loads.len() as f64;
        let bursts = has(SuiteTest::BackToBack) * f64::from(self.burst_searches) * BURST_TRIALS;
        let time = |deciding: f64, short: f64, loss: f64| {
            let full = goals * deciding + loads + has(SuiteTest::FrameLoss) * loss;
            let short = goals * short;
            let trials = full + short + bursts;
            let of_a_size =
                full * self.trial_s + short * 2.0 * self.first_trial_s + trials * drain_s;
            of_a_size * self.sizes.len() as f64
        };
        (
            time(DECIDING_TRIALS.0, SHORT_TRIALS.0, 2.0),
            time(DECIDING_TRIALS.1, SHORT_TRIALS.1, LOSS_TRIALS),
        )
    }
}

/// Amount of traffic of a trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TrialAmount {
    /// Duration in seconds.
    Time(f64),
    /// Number of frames.
    Frames(u64),
}

/// A trial to run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SuiteTrial {
    /// Index into [`SuiteOptions::sizes`].
    pub size: usize,
    pub test: SuiteTest,
    /// Intended load in frames per second; `None`: unlimited.
    pub load: Option<f64>,
    pub amount: TrialAmount,
}

/// Measured result of a trial.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SuiteTrialResult {
    /// Number of frames that left.
    pub sent: u64,
    /// Number of frames that did not arrive.
    pub lost: u64,
    /// Duration of sending.
    pub duration_ns: u64,
    /// Offered load: frames per second that left.
    pub offered_fps: f64,
    /// Forwarding rate: frames that arrived, per second of sending (RFC 2285 section 3.6.1).
    pub forwarding_fps: f64,
    /// True if the generator offered the intended load.
    pub load_met: bool,
    pub one_way_delay_ns: Option<Quantiles>,
    /// Queue on the path that was growing when sending ended.
    pub queue_growth: Option<QueueGrowth>,
    /// Frames that arrived, per second between the first and the last arrival.
    pub arrival_fps: Option<f64>,
    /// Disturbances of this program: late frames, stalls, drops in its own ring.
    pub disturbance: HostDisturbance,
}

impl SuiteTrialResult {
    /// Returns the lost fraction, or `None` if nothing was sent: such a trial has not passed.
    fn loss_fraction(&self) -> Option<f64> {
        (self.sent > 0).then(|| self.lost as f64 / self.sent as f64)
    }
}

/// Steps of the offered load in the frame loss test: 100 %, 90 %, … (RFC 2544 section 26.3).
const LOSS_STEPS: u32 = 10;
/// Trials at unlimited load, of which the best counts. A single one may run on a busy host, and all
/// that follows would be compared with it.
const MAX_LOAD_TRIALS: u32 = 3;
/// Trials in a row without a sent frame after which the measurement ends. A stalled generator
/// causes one such trial.
const UNSENT_TRIALS: u32 = 3;
/// Repetitions of a trial whose losses this host may have caused, before they count.
const DISTURBED_TRIALS: u32 = 2;
/// Ratio up to which two loads are the same: an offered load is a count divided by a time.
const SAME_LOAD_RATIO: f64 = 1.001;
/// Longest burst, in seconds at the highest rate (RFC 2544 section 26.4: trials of at least 2 s).
const MAX_BURST_S: f64 = 2.0;

enum SuitePhase {
    /// Unlimited load, where the line rate is unknown: trials so far and the best offered load.
    MaxLoad {
        trials_done: u32,
        best_fps: f64,
    },
    Throughput(MultiGoalSearch),
    Latency {
        next: usize,
    },
    FrameLoss {
        step: u32,
        clean: u32,
    },
    BackToBack {
        search: BurstSearch,
        longest: Option<PassedBurst>,
    },
    Done,
}

/// Longest burst that passed.
#[derive(Clone, Copy)]
struct PassedBurst {
    frames: u64,
    /// Rate in frames per second at which it left; 0 if unknown.
    fps: f64,
    /// True if it left at the intended gap.
    load_met: bool,
}

/// State of a measurement.
pub struct Rfc2544Suite {
    options: SuiteOptions,
    size: usize,
    phase: SuitePhase,
    trials_done: u32,
    /// Trials in a row without a sent frame.
    unsent_trials: u32,
    /// Repetitions of the present trial because this host was disturbed.
    retries: u32,
    /// True if the highest load is the limit of the generator and not of the line.
    is_generator_limited: bool,
    results: Vec<SizeCapacity>,
}

impl Rfc2544Suite {
    #[must_use]
    pub fn new(options: SuiteOptions) -> Self {
        let mut suite = Self {
            size: 0,
            phase: SuitePhase::Done,
            trials_done: 0,
            unsent_trials: 0,
            retries: 0,
            is_generator_limited: false,
            results: Vec::new(),
            options,
        };
        suite.start_size(0);
        suite
    }

    /// Returns the results so far, by frame size.
    #[must_use]
    pub fn results(&self) -> &[SizeCapacity] {
        &self.results
    }

    /// Returns the last trial.
    #[must_use]
    pub fn last_trial(&self) -> Option<&CapacityTrial> {
        self.results.last()?.trials.last()
    }

    /// Ends the measurement early and stores the present bounds of its search.
    pub fn interrupt(&mut self) {
        if let SuitePhase::Throughput(search) = &self.phase {
            let results = search.interim_results();
            self.store_throughput(&results, true);
        }
        self.phase = SuitePhase::Done;
    }

    fn start_size(&mut self, size: usize) {
        self.size = size;
        let Some((name, frame_bytes)) = self.options.sizes.get(size).cloned() else {
            self.phase = SuitePhase::Done;
            return;
        };
        let line = self
            .options
            .line_bps
            .map(|bps| line_rate_fps(bps, frame_bytes));
        self.is_generator_limited = line.is_none();
        self.results.push(SizeCapacity {
            size: name,
            frame_bytes,
            max_tried_fps: line.unwrap_or(0.0),
            ..SizeCapacity::default()
        });
        self.phase = match line {
            None => SuitePhase::MaxLoad {
                trials_done: 0,
                best_fps: 0.0,
            },
            Some(max_load) => self.throughput_phase(max_load, 0),
        };
    }

    fn current_result(&mut self) -> &mut SizeCapacity {
        self.results.last_mut().expect("a frame size was started")
    }

    fn max_load(&self) -> f64 {
        self.results
            .last()
            .map_or(0.0, |result| result.max_tried_fps)
    }

    /// Starts a throughput search with a known highest load, after `trials_done` trials that found
    /// it.
    fn throughput_phase(&self, max_load: f64, trials_done: u32) -> SuitePhase {
        SuitePhase::Throughput(MultiGoalSearch::new(multi_goal_search::MultiGoalOptions {
            loss_goals: self.options.loss_goals.clone(),
            resolution: self.options.resolution,
            trial_s: self.options.trial_s,
            first_trial_s: self.options.first_trial_s,
            max_load: max_load.max(1.0 / self.options.trial_s),
            max_trials: self.options.max_trials.saturating_sub(trials_done),
            tries: self.options.tries,
        }))
    }

    /// Returns the next trial, or `None` at the end.
    pub fn propose(&mut self) -> Option<SuiteTrial> {
        loop {
            let suite_trial = |test, load, amount| {
                Some(SuiteTrial {
                    size: self.size,
                    test,
                    load,
                    amount,
                })
            };
            let full_length = TrialAmount::Time(self.options.trial_s);
            let is_selected = |test| self.options.tests.contains(&test);
            match &self.phase {
                SuitePhase::Done => return None,
                SuitePhase::MaxLoad { .. } => {
                    let first_trial_s = self.options.first_trial_s.min(self.options.trial_s);
                    return suite_trial(
                        SuiteTest::Throughput,
                        None,
                        TrialAmount::Time(first_trial_s),
                    );
                }
                SuitePhase::Throughput(search) => match search.next() {
                    multi_goal_search::MultiGoalStep::Try(request) => {
                        let amount = TrialAmount::Time(request.duration_s);
                        return suite_trial(SuiteTest::Throughput, Some(request.load), amount);
                    }
                    multi_goal_search::MultiGoalStep::Done(results) => {
                        self.store_throughput(&results, false);
                        self.phase = SuitePhase::Latency { next: 0 };
                    }
                },
                SuitePhase::Latency { next } => {
                    let share = self
                        .options
                        .latency_loads
                        .get(*next)
                        .filter(|_| is_selected(SuiteTest::Latency));
                    match share.zip(self.throughput()) {
                        Some((share, fps)) => {
                            return suite_trial(SuiteTest::Latency, Some(fps * share), full_length);
                        }
                        None => self.phase = SuitePhase::FrameLoss { step: 0, clean: 0 },
                    }
                }
                &SuitePhase::FrameLoss { step, clean } => {
                    if is_selected(SuiteTest::FrameLoss) && step < LOSS_STEPS && clean < 2 {
                        let load = self.max_load() * loss_step_share(step);
                        return suite_trial(SuiteTest::FrameLoss, Some(load), full_length);
                    }
                    self.start_burst_search(None);
                }
                SuitePhase::BackToBack { search, .. } => match search.next() {
                    BurstSearchStep::Try(frames) if is_selected(SuiteTest::BackToBack) => {
                        // The smallest gap is that of the line or, if its rate is unknown, of the
                        // generator.
                        let load = self.options.line_bps.map(|_| self.max_load());
                        return suite_trial(
                            SuiteTest::BackToBack,
                            load,
                            TrialAmount::Frames(frames),
                        );
                    }
                    BurstSearchStep::Done {
                        frames,
                        is_unlimited,
                    } => self.store_burst(frames, is_unlimited),
                    BurstSearchStep::Try(_) => self.start_size(self.size + 1),
                },
            }
        }
    }

    fn start_burst_search(&mut self, longest: Option<PassedBurst>) {
        let max_load = (self.max_load() * MAX_BURST_S).max(1.0) as u64;
        let search = BurstSearch::new(max_load, self.options.resolution);
        self.phase = SuitePhase::BackToBack { search, longest };
    }

    /// Returns the highest rate that met the smallest loss goal met by any rate.
    fn throughput(&self) -> Option<f64> {
        let goals = &self.results.last()?.throughput;
        goals.iter().find_map(|goal| goal.fps)
    }

    /// Records the result of the trial that [`Rfc2544Suite::propose`] returned.
    pub fn record(&mut self, trial: SuiteTrial, result: &SuiteTrialResult) {
        self.trials_done += 1;
        let resolution = self.options.resolution;
        // The growth of a queue is defined relative to an intended load only.
        let queued = trial.load.map_or(0, |_| result.queued_frames(resolution));
        let is_excusable = result.is_excusable(&self.loss_goals_of(&trial), resolution);
        let is_retried = is_excusable && self.retries < DISTURBED_TRIALS;
        self.retries = if is_retried { self.retries + 1 } else { 0 };
        let nonzero = |count: u64| Some(count).filter(|&count| count > 0);
        let trial_record = CapacityTrial {
            number: self.trials_done,
            test: trial.test.name().to_owned(),
            size: self.options.sizes[trial.size].0.clone(),
            intended_fps: trial.load,
            duration_ns: result.duration_ns,
            sent: result.sent,
            lost: result.lost,
            offered_fps: result.offered_fps,
            forwarding_fps: result.forwarding_fps,
            loss_fraction: result.loss_fraction().unwrap_or(0.0),
            load_met: result.load_met,
            queued: nonzero(queued),
            queue_wait_ns: result
                .queue_growth
                .filter(|_| queued > 0)
                .map(|filling| filling.wait_ns),
            local_loss: nonzero(result.host_lost_frames()),
            repeated: is_retried,
        };
        self.current_result().trials.push(trial_record);
        let Some(loss) = result.loss_fraction() else {
            return self.record_unsent();
        };
        self.unsent_trials = 0;
        if is_retried {
            if let SuitePhase::Throughput(search) = &mut self.phase {
                search.skip_trial();
            }
            return;
        }
        let loss_with_queued = loss + queued as f64 / result.sent as f64;
        if matches!(trial.test, SuiteTest::Latency | SuiteTest::FrameLoss) && !is_excusable {
            self.mark_contradicted(result.offered_fps, loss_with_queued);
        }
        let shares = self.options.latency_loads.clone();
        let missed_intended_fps = trial.load.filter(|_| !result.load_met);
        match &mut self.phase {
            SuitePhase::MaxLoad {
                trials_done,
                best_fps,
            } => {
                *trials_done += 1;
                *best_fps = best_fps.max(result.offered_fps);
                let (trials_done, best_fps) = (*trials_done, *best_fps);
                self.current_result().max_tried_fps = best_fps;
                // These trials belong to the search, which keeps at least one.
                let most_trials =
                    MAX_LOAD_TRIALS.min(self.options.max_trials.saturating_sub(1).max(1));
                if trials_done >= most_trials {
                    self.phase = self.throughput_phase(best_fps, trials_done);
                }
            }
            SuitePhase::Throughput(search) => {
                let TrialAmount::Time(duration_s) = trial.amount else {
                    return;
                };
                let request = multi_goal_search::TrialRequest {
                    load: trial.load.unwrap_or(0.0),
                    duration_s,
                    is_full_length: false,
                };
                // Under overload a queue delivers for longer than was sent: the arrival rate is the
                // better guess.
                let forwarded = match loss_with_queued > 0.0 {
                    true => result
                        .forwarding_fps
                        .min(result.arrival_fps.unwrap_or(f64::INFINITY)),
                    false => result.forwarding_fps,
                };
                search.record(
                    request,
                    multi_goal_search::TrialResult {
                        offered_fps: result.offered_fps,
                        forwarding_fps: forwarded,
                        loss: loss_with_queued,
                        load_met: result.load_met,
                        disturbed: is_excusable,
                    },
                );
            }
            SuitePhase::Latency { next } => {
                let share = shares[*next];
                *next += 1;
                self.current_result().latency.push(DelayPoint {
                    share,
                    offered_fps: result.offered_fps,
                    missed_intended_fps,
                    loss_fraction: loss,
                    one_way_delay_ns: result.one_way_delay_ns,
                });
            }
            SuitePhase::FrameLoss { step, clean } => {
                let share = loss_step_share(*step);
                *clean = if loss_with_queued == 0.0 {
                    *clean + 1
                } else {
                    0
                };
                *step += 1;
                self.current_result().frame_loss.push(FrameLossPoint {
                    share,
                    offered_fps: result.offered_fps,
                    missed_intended_fps,
                    forwarding_fps: result.forwarding_fps,
                    loss_fraction: loss,
                });
            }
            SuitePhase::BackToBack { search, longest } => {
                if let TrialAmount::Frames(frames) = trial.amount {
                    let passed = result.lost == 0 && result.sent == frames;
                    search.record(frames, passed);
                    // A generator slower than the line would otherwise send for longer than a
                    // trial.
                    if passed && result.duration_ns as f64 >= MAX_BURST_S * 1e9 {
                        search.cap_at(frames);
                    }
                    if passed && longest.is_none_or(|longest| frames > longest.frames) {
                        *longest = Some(PassedBurst {
                            frames,
                            fps: result.offered_fps,
                            load_met: result.load_met,
                        });
                    }
                }
            }
            SuitePhase::Done => {}
        }
    }

    /// Returns the loss goals that apply to a trial.
    fn loss_goals_of(&self, trial: &SuiteTrial) -> Vec<f64> {
        match trial.test {
            SuiteTest::Throughput => self.options.loss_goals.clone(),
            // The goal of the throughput that the load is a fraction of.
            SuiteTest::Latency => {
                let goals = self
                    .results
                    .last()
                    .into_iter()
                    .flat_map(|size| &size.throughput);
                let goals = goals.filter(|goal| goal.fps.is_some());
                goals.map(|goal| goal.loss_goal).take(1).collect()
            }
            SuiteTest::FrameLoss | SuiteTest::BackToBack => vec![0.0],
        }
    }

    /// Returns whether the measurement ended because no frame was sent any more.
    #[must_use]
    pub fn is_unable_to_send(&self) -> bool {
        self.unsent_trials >= UNSENT_TRIALS
    }

    /// Counts a trial without a sent frame, which is no result of the device. The trial is
    /// repeated, and after [`UNSENT_TRIALS`] in a row the measurement ends, also for the remaining
    /// sizes.
    fn record_unsent(&mut self) {
        self.unsent_trials += 1;
        if !self.is_unable_to_send() {
            return;
        }
        if matches!(
            self.phase,
            SuitePhase::MaxLoad { .. } | SuitePhase::Throughput(_)
        ) {
            let goals = self.options.loss_goals.iter();
            let unsent = goals.map(|&goal| Throughput {
                name: goal_name(goal).to_owned(),
                loss_goal: goal,
                stopped_by: SearchEnd::NothingSent.into(),
                ..Throughput::default()
            });
            self.current_result().throughput = unsent.collect();
        }
        self.phase = SuitePhase::Done;
    }

    /// Checks a trial after the search: marks each throughput that is not below the trial's load if
    /// the trial lost more than the goal allows.
    fn mark_contradicted(&mut self, offered: f64, loss: f64) {
        for throughput in &mut self.current_result().throughput {
            let is_below = throughput
                .fps
                .is_some_and(|fps| offered <= fps * SAME_LOAD_RATIO);
            let is_lowest = throughput
                .contradicted_fps
                .is_none_or(|lowest| offered < lowest);
            if is_below && loss > throughput.loss_goal && is_lowest {
                throughput.contradicted_fps = Some(offered);
                throughput.contradicted_loss = Some(loss);
            }
        }
    }

    fn store_throughput(&mut self, results: &[multi_goal_search::GoalResult], interrupted: bool) {
        let bytes = self.results.last().map_or(0.0, |result| result.frame_bytes);
        let is_generator_limited = self.is_generator_limited;
        let throughput = results.iter().map(|results| {
            let passed = results
                .lower
                .map(|load| reported_load(load, results.lower_offered));
            let failed = results
                .upper
                .map(|load| reported_load(load, results.upper_offered));
            let bits_per_second =
                |overhead_bytes: f64| passed.map(|fps| fps * (bytes + overhead_bytes) * 8.0);
            Throughput {
                name: goal_name(results.loss_goal).to_owned(),
                loss_goal: results.loss_goal,
                fps: passed,
                l2_bps: bits_per_second(0.0),
                l1_bps: bits_per_second(f64::from(WIRE_OVERHEAD_BYTES)),
                loss_fraction: results.lower_loss,
                forwarding_fps: results.lower_forwarding_fps,
                failed_fps: failed,
                failed_intended_fps: results
                    .upper_intended
                    .filter(|&intended| failed != Some(intended)),
                stopped_by: match results.end {
                    _ if interrupted => SearchEnd::Interrupted,
                    GoalSearchEnd::Resolution => SearchEnd::Resolution,
                    GoalSearchEnd::MaxLoad if is_generator_limited => SearchEnd::Generator,
                    GoalSearchEnd::MaxLoad => SearchEnd::Line,
                    GoalSearchEnd::Generator => SearchEnd::Generator,
                    GoalSearchEnd::Floor => SearchEnd::MinimumRate,
                    GoalSearchEnd::Trials => SearchEnd::Trials,
                }
                .into(),
                contradicted_fps: None,
                contradicted_loss: None,
                disturbed: results.disturbed,
                short_trial_surplus_frames: Some(results.frames_beyond)
                    .filter(|&frames| frames > 0.0),
            }
        });
        self.current_result().throughput = throughput.collect();
    }

    fn store_burst(&mut self, frames: u64, is_unlimited: bool) {
        let SuitePhase::BackToBack { longest, .. } = &self.phase else {
            return;
        };
        let (longest, throughput, searches) =
            (*longest, self.throughput(), self.options.burst_searches);
        let has_line = self.options.line_bps.is_some();
        let result = self.current_result();
        let back_to_back = result.back_to_back.get_or_insert_default();
        back_to_back.searches.push(frames);
        back_to_back.unlimited |= is_unlimited;
        if let Some(longest) = longest {
            back_to_back.burst_fps = longest.fps;
            back_to_back.at_line_rate = has_line.then_some(longest.load_met);
        }
        let sum: u64 = back_to_back.searches.iter().sum();
        back_to_back.frames = sum as f64 / back_to_back.searches.len() as f64;
        // Corrected buffer time (RFC 9004 section 6.4): minus the frames that leave while the burst
        // arrives.
        let max_load = result.max_tried_fps.max(back_to_back.burst_fps);
        back_to_back.buffer_ns = throughput
            .filter(|_| max_load > 0.0 && !back_to_back.unlimited)
            .map(|throughput| {
                let implied = back_to_back.frames / max_load;
                (implied * (1.0 - (throughput / max_load).min(1.0)) * 1e9) as u64
            });
        if (back_to_back.searches.len() as u32) < searches && !is_unlimited {
            self.start_burst_search(longest);
        } else {
            self.start_size(self.size + 1);
        }
    }
}

/// Returns the load to report: the intended one, unless the offered load differs by more than
/// rounding.
fn reported_load(load: f64, offered: Option<f64>) -> f64 {
    let differing = offered.filter(|offered| (offered / load - 1.0).abs() > SAME_LOAD_RATIO - 1.0);
    differing.unwrap_or(load)
}

fn goal_name(goal: f64) -> &'static str {
    if goal > 0.0 { "pdr" } else { "ndr" }
}

/// Returns the fraction of the highest load at a step.
fn loss_step_share(step: u32) -> f64 {
    f64::from(LOSS_STEPS - step) / f64::from(LOSS_STEPS)
}

#[cfg(test)]
mod tests;
