//! Trials of a capacity measurement in their order: per frame size throughput, then latency, frame
//! loss and back-to-back bursts.
//!
//! Decides without I/O: a trial result goes in, the next trial comes out.

use linerate_metric::capacity::{CapacityTrial, DelayAt, LossAt, SizeCapacity, Throughput};
use linerate_metric::generate::{GAP_BYTES, line_frames};
use linerate_metric::histogram::Quantiles;

use super::burst_search::{BurstSearch, NextBurst};
use super::multi_goal_search::{self, End, Search};
use crate::generate::{Disturbance, Filling};

/// A test of RFC 2544 section 26.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Test {
    /// Section 26.1, for each loss goal.
    Throughput,
    /// Section 26.2.
    Latency,
    /// Section 26.3.
    FrameLoss,
    /// Section 26.4.
    BackToBack,
}

impl Test {
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
pub struct Options {
    /// Frame sizes as given by the user, with the mean bytes of each, FCS included.
    pub sizes: Vec<(String, f64)>,
    pub tests: Vec<Test>,
    /// Loss goals: highest fractions of the frames that may be lost, the smallest first.
    pub goals: Vec<f64>,
    /// Highest distance of the bounds, as a fraction of the upper one.
    pub resolution: f64,
    /// Duration of the full-length trials, which decide, in seconds.
    pub trial_s: f64,
    /// Duration of the first, shortest trials, in seconds.
    pub first_s: f64,
    /// Loads of the latency test, as fractions of the throughput.
    pub shares: Vec<f64>,
    /// Maximum number of trials per search.
    pub trials: u32,
    /// Number of failed full-length trials after which a load counts as failed.
    pub tries: u32,
    /// Number of searches for the longest burst, which are averaged (RFC 9004: many).
    pub searches: u32,
    /// Bit rate of the line, where it is known.
    pub line_bps: Option<u64>,
}

/// Amount of traffic of a trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// Duration in seconds.
    Time(f64),
    /// Number of frames.
    Frames(u64),
}

/// A trial to run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ask {
    /// Index into [`Options::sizes`].
    pub size: usize,
    pub test: Test,
    /// Intended load in frames per second; `None`: unlimited.
    pub load: Option<f64>,
    pub amount: Amount,
}

/// Measured result of a trial.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seen {
    /// Number of frames that left.
    pub sent: u64,
    /// Number of frames that did not arrive.
    pub lost: u64,
    /// Duration of sending.
    pub duration_ns: u64,
    /// Offered load: frames per second that left.
    pub offered: f64,
    /// Forwarding rate: frames that arrived, per second of sending (RFC 2285 section 3.6.1).
    pub forwarded: f64,
    /// True if the generator offered the intended load.
    pub kept: bool,
    pub delay: Option<Quantiles>,
    /// Queue on the path that was growing when sending ended.
    pub filling: Option<Filling>,
    /// Frames that arrived, per second between the first and the last arrival.
    pub arrival: Option<f64>,
    /// Disturbances of this program: late frames, stalls, drops in its own ring.
    pub own: Disturbance,
}

impl Seen {
    /// Returns the lost fraction, or `None` if nothing was sent: such a trial has not passed.
    fn loss(&self) -> Option<f64> {
        (self.sent > 0).then(|| self.lost as f64 / self.sent as f64)
    }
}

/// Steps of the offered load in the frame loss test: 100 %, 90 %, … (RFC 2544 section 26.3).
const LOSS_STEPS: u32 = 10;
/// Trials at unlimited load, of which the best counts. A single one may run on a busy host, and all
/// that follows would be compared with it.
const MOST_TRIALS: u32 = 3;
/// Trials in a row without a sent frame after which the measurement ends. A stalled generator
/// causes one such trial.
const UNSENT_TRIALS: u32 = 3;
/// Repetitions of a trial whose losses this host may have caused, before they count.
const DISTURBED_TRIALS: u32 = 2;
/// Ratio up to which two loads are the same: an offered load is a count divided by a time.
const SAME_LOAD: f64 = 1.001;
/// Longest burst, in seconds at the highest rate (RFC 2544 section 26.4: trials of at least 2 s).
const BURST_S: f64 = 2.0;

enum Phase {
    /// Unlimited load, where the line rate is unknown: trials so far and the best offered load.
    Most {
        made: u32,
        best: f64,
    },
    Throughput(Search),
    Latency {
        next: usize,
    },
    FrameLoss {
        step: u32,
        clean: u32,
    },
    BackToBack {
        search: BurstSearch,
        longest: Option<Burst>,
    },
    Over,
}

/// Longest burst that passed.
#[derive(Clone, Copy)]
struct Burst {
    frames: u64,
    /// Rate in frames per second at which it left; 0 if unknown.
    fps: f64,
    /// True if it left at the intended gap.
    kept: bool,
}

/// State of a measurement.
pub struct Campaign {
    options: Options,
    size: usize,
    phase: Phase,
    made: u32,
    /// Trials in a row without a sent frame.
    unsent: u32,
    /// Repetitions of the present trial because this host was disturbed.
    again: u32,
    /// True if the highest load is the limit of the generator and not of the line.
    generator: bool,
    results: Vec<SizeCapacity>,
}

impl Campaign {
    #[must_use]
    pub fn new(options: Options) -> Self {
        let mut campaign = Self {
            size: 0,
            phase: Phase::Over,
            made: 0,
            unsent: 0,
            again: 0,
            generator: false,
            results: Vec::new(),
            options,
        };
        campaign.begin_size(0);
        campaign
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
        if let Phase::Throughput(search) = &self.phase {
            let found = search.so_far();
            self.found(&found, true);
        }
        self.phase = Phase::Over;
    }

    fn begin_size(&mut self, size: usize) {
        self.size = size;
        let Some((name, frame_bytes)) = self.options.sizes.get(size).cloned() else {
            self.phase = Phase::Over;
            return;
        };
        let line = self
            .options
            .line_bps
            .map(|bps| line_frames(bps, frame_bytes));
        self.generator = line.is_none();
        self.results.push(SizeCapacity {
            size: name,
            frame_bytes,
            most_fps: line.unwrap_or(0.0),
            ..SizeCapacity::default()
        });
        self.phase = match line {
            None => Phase::Most { made: 0, best: 0.0 },
            Some(most) => self.search(most, 0),
        };
    }

    fn result(&mut self) -> &mut SizeCapacity {
        self.results.last_mut().expect("a frame size was started")
    }

    fn most(&self) -> f64 {
        self.results.last().map_or(0.0, |result| result.most_fps)
    }

    /// Starts a throughput search with a known highest load, after `made` trials that found it.
    fn search(&self, most: f64, made: u32) -> Phase {
        Phase::Throughput(Search::new(multi_goal_search::Options {
            goals: self.options.goals.clone(),
            resolution: self.options.resolution,
            trial_s: self.options.trial_s,
            first_s: self.options.first_s,
            most: most.max(1.0 / self.options.trial_s),
            trials: self.options.trials.saturating_sub(made),
            tries: self.options.tries,
        }))
    }

    /// Returns the next trial, or `None` at the end.
    pub fn propose(&mut self) -> Option<Ask> {
        loop {
            let ask = |test, load, amount| {
                Some(Ask {
                    size: self.size,
                    test,
                    load,
                    amount,
                })
            };
            let trial = Amount::Time(self.options.trial_s);
            let has = |test| self.options.tests.contains(&test);
            match &self.phase {
                Phase::Over => return None,
                Phase::Most { .. } => {
                    let first = self.options.first_s.min(self.options.trial_s);
                    return ask(Test::Throughput, None, Amount::Time(first));
                }
                Phase::Throughput(search) => match search.next() {
                    multi_goal_search::Next::Try(tried) => {
                        let amount = Amount::Time(tried.duration_s);
                        return ask(Test::Throughput, Some(tried.load), amount);
                    }
                    multi_goal_search::Next::Over(found) => {
                        self.found(&found, false);
                        self.phase = Phase::Latency { next: 0 };
                    }
                },
                Phase::Latency { next } => {
                    let share = self
                        .options
                        .shares
                        .get(*next)
                        .filter(|_| has(Test::Latency));
                    match share.zip(self.throughput()) {
                        Some((share, fps)) => return ask(Test::Latency, Some(fps * share), trial),
                        None => self.phase = Phase::FrameLoss { step: 0, clean: 0 },
                    }
                }
                &Phase::FrameLoss { step, clean } => {
                    if has(Test::FrameLoss) && step < LOSS_STEPS && clean < 2 {
                        let load = self.most() * share_of(step);
                        return ask(Test::FrameLoss, Some(load), trial);
                    }
                    self.begin_bursts(None);
                }
                Phase::BackToBack { search, .. } => match search.next() {
                    NextBurst::Try(frames) if has(Test::BackToBack) => {
                        // The smallest gap is that of the line or, if its rate is unknown, of the
                        // generator.
                        let load = self.options.line_bps.map(|_| self.most());
                        return ask(Test::BackToBack, load, Amount::Frames(frames));
                    }
                    NextBurst::Over { frames, unlimited } => self.burst_found(frames, unlimited),
                    NextBurst::Try(_) => self.begin_size(self.size + 1),
                },
            }
        }
    }

    fn begin_bursts(&mut self, longest: Option<Burst>) {
        let most = (self.most() * BURST_S).max(1.0) as u64;
        let search = BurstSearch::new(most, self.options.resolution);
        self.phase = Phase::BackToBack { search, longest };
    }

    /// Returns the highest rate that met the smallest loss goal met by any rate.
    fn throughput(&self) -> Option<f64> {
        let goals = &self.results.last()?.throughput;
        goals.iter().find_map(|goal| goal.fps)
    }

    /// Records the result of the trial that [`Campaign::propose`] returned.
    pub fn take(&mut self, ask: Ask, seen: &Seen) {
        self.made += 1;
        let resolution = self.options.resolution;
        // The growth of a queue is defined relative to an intended load only.
        let queued = ask.load.map_or(0, |_| seen.queued(resolution));
        let is_excusable = seen.is_excusable(&self.goals_of(&ask), resolution);
        let again = is_excusable && self.again < DISTURBED_TRIALS;
        self.again = if again { self.again + 1 } else { 0 };
        let some = |count: u64| Some(count).filter(|&count| count > 0);
        let trial = CapacityTrial {
            number: self.made,
            test: ask.test.name().to_owned(),
            size: self.options.sizes[ask.size].0.clone(),
            asked_fps: ask.load,
            duration_ns: seen.duration_ns,
            sent: seen.sent,
            lost: seen.lost,
            offered_fps: seen.offered,
            forwarding_fps: seen.forwarded,
            loss_fraction: seen.loss().unwrap_or(0.0),
            kept: seen.kept,
            queued: some(queued),
            queue_wait_ns: seen
                .filling
                .filter(|_| queued > 0)
                .map(|filling| filling.wait_ns),
            own: some(seen.own_frames()),
            again,
        };
        self.result().trials.push(trial);
        let Some(loss) = seen.loss() else {
            return self.nothing_left();
        };
        self.unsent = 0;
        if again {
            if let Phase::Throughput(search) = &mut self.phase {
                search.pass_over();
            }
            return;
        }
        let held = loss + queued as f64 / seen.sent as f64;
        if matches!(ask.test, Test::Latency | Test::FrameLoss) && !is_excusable {
            self.compare(seen.offered, held);
        }
        let shares = self.options.shares.clone();
        let not_offered = ask.load.filter(|_| !seen.kept);
        match &mut self.phase {
            Phase::Most { made, best } => {
                *made += 1;
                *best = best.max(seen.offered);
                let (made, best) = (*made, *best);
                self.result().most_fps = best;
                // These trials belong to the search, which keeps at least one.
                let most_trials = MOST_TRIALS.min(self.options.trials.saturating_sub(1).max(1));
                if made >= most_trials {
                    self.phase = self.search(best, made);
                }
            }
            Phase::Throughput(search) => {
                let Amount::Time(duration_s) = ask.amount else {
                    return;
                };
                let tried = multi_goal_search::Ask {
                    load: ask.load.unwrap_or(0.0),
                    duration_s,
                    decides: false,
                };
                // Under overload a queue delivers for longer than was sent: the arrival rate is the
                // better guess.
                let forwarded = match held > 0.0 {
                    true => seen.forwarded.min(seen.arrival.unwrap_or(f64::INFINITY)),
                    false => seen.forwarded,
                };
                search.take(
                    tried,
                    multi_goal_search::Seen {
                        offered: seen.offered,
                        forwarded,
                        loss: held,
                        kept: seen.kept,
                        disturbed: is_excusable,
                    },
                );
            }
            Phase::Latency { next } => {
                let share = shares[*next];
                *next += 1;
                self.result().latency.push(DelayAt {
                    share,
                    offered_fps: seen.offered,
                    not_offered_fps: not_offered,
                    loss_fraction: loss,
                    one_way_delay_ns: seen.delay,
                });
            }
            Phase::FrameLoss { step, clean } => {
                let share = share_of(*step);
                *clean = if held == 0.0 { *clean + 1 } else { 0 };
                *step += 1;
                self.result().frame_loss.push(LossAt {
                    share,
                    offered_fps: seen.offered,
                    not_offered_fps: not_offered,
                    forwarding_fps: seen.forwarded,
                    loss_fraction: loss,
                });
            }
            Phase::BackToBack { search, longest } => {
                if let Amount::Frames(frames) = ask.amount {
                    let passed = seen.lost == 0 && seen.sent == frames;
                    search.take(frames, passed);
                    // A generator slower than the line would otherwise send for longer than a
                    // trial.
                    if passed && seen.duration_ns as f64 >= BURST_S * 1e9 {
                        search.end_with(frames);
                    }
                    if passed && longest.is_none_or(|longest| frames > longest.frames) {
                        *longest = Some(Burst {
                            frames,
                            fps: seen.offered,
                            kept: seen.kept,
                        });
                    }
                }
            }
            Phase::Over => {}
        }
    }

    /// Returns the loss goals that apply to a trial.
    fn goals_of(&self, ask: &Ask) -> Vec<f64> {
        match ask.test {
            Test::Throughput => self.options.goals.clone(),
            // The goal of the throughput that the load is a fraction of.
            Test::Latency => {
                let found = self
                    .results
                    .last()
                    .into_iter()
                    .flat_map(|size| &size.throughput);
                let found = found.filter(|goal| goal.fps.is_some());
                found.map(|goal| goal.loss_goal).take(1).collect()
            }
            Test::FrameLoss | Test::BackToBack => vec![0.0],
        }
    }

    /// Returns whether the measurement ended because no frame was sent any more.
    #[must_use]
    pub fn sends_nothing(&self) -> bool {
        self.unsent >= UNSENT_TRIALS
    }

    /// Counts a trial without a sent frame, which is no result of the device. The trial is
    /// repeated, and after [`UNSENT_TRIALS`] in a row the measurement ends, also for the remaining
    /// sizes.
    fn nothing_left(&mut self) {
        self.unsent += 1;
        if !self.sends_nothing() {
            return;
        }
        if matches!(self.phase, Phase::Most { .. } | Phase::Throughput(_)) {
            let goals = self.options.goals.iter();
            let none = goals.map(|&goal| Throughput {
                name: name_of(goal).to_owned(),
                loss_goal: goal,
                stopped_by: "nothing-sent".to_owned(),
                ..Throughput::default()
            });
            self.result().throughput = none.collect();
        }
        self.phase = Phase::Over;
    }

    /// Checks a trial after the search: marks each throughput that is not below the trial's load if
    /// the trial lost more than the goal allows.
    fn compare(&mut self, offered: f64, loss: f64) {
        for found in &mut self.result().throughput {
            let is_below = found.fps.is_some_and(|fps| offered <= fps * SAME_LOAD);
            let is_lowest = found.contradicted_fps.is_none_or(|known| offered < known);
            if is_below && loss > found.loss_goal && is_lowest {
                found.contradicted_fps = Some(offered);
                found.contradicted_loss = Some(loss);
            }
        }
    }

    fn found(&mut self, found: &[multi_goal_search::Found], interrupted: bool) {
        let bytes = self.results.last().map_or(0.0, |result| result.frame_bytes);
        let generator = self.generator;
        let throughput = found.iter().map(|found| {
            let passed = found.lower.map(|load| named(load, found.lower_offered));
            let failed = found.upper.map(|load| named(load, found.upper_offered));
            let bits = |more: f64| passed.map(|fps| fps * (bytes + more) * 8.0);
            Throughput {
                name: name_of(found.goal).to_owned(),
                loss_goal: found.goal,
                fps: passed,
                l2_bps: bits(0.0),
                l1_bps: bits(f64::from(GAP_BYTES)),
                loss_fraction: found.loss,
                forwarding_fps: found.forwarded,
                failed_fps: failed,
                failed_asked_fps: found.upper_asked.filter(|&asked| failed != Some(asked)),
                stopped_by: match found.end {
                    _ if interrupted => "interrupted",
                    End::Resolution => "resolution",
                    End::Most if generator => "generator",
                    End::Most => "line",
                    End::Generator => "generator",
                    End::Floor => "floor",
                    End::Trials => "trials",
                }
                .to_owned(),
                contradicted_fps: None,
                contradicted_loss: None,
                disturbed: found.disturbed,
                beyond_frames: Some(found.beyond).filter(|&frames| frames > 0.0),
            }
        });
        self.result().throughput = throughput.collect();
    }

    fn burst_found(&mut self, frames: u64, unlimited: bool) {
        let Phase::BackToBack { longest, .. } = &self.phase else {
            return;
        };
        let (longest, throughput, searches) = (*longest, self.throughput(), self.options.searches);
        let has_line = self.options.line_bps.is_some();
        let result = self.result();
        let found = result.back_to_back.get_or_insert_default();
        found.searches.push(frames);
        found.unlimited |= unlimited;
        if let Some(longest) = longest {
            found.burst_fps = longest.fps;
            found.at_line_rate = has_line.then_some(longest.kept);
        }
        let sum: u64 = found.searches.iter().sum();
        found.frames = sum as f64 / found.searches.len() as f64;
        // Corrected buffer time (RFC 9004 section 6.4): minus the frames that leave while the burst
        // arrives.
        let most = result.most_fps.max(found.burst_fps);
        found.buffer_ns = throughput
            .filter(|_| most > 0.0 && !found.unlimited)
            .map(|throughput| {
                let implied = found.frames / most;
                (implied * (1.0 - (throughput / most).min(1.0)) * 1e9) as u64
            });
        if (found.searches.len() as u32) < searches && !unlimited {
            self.begin_bursts(longest);
        } else {
            self.begin_size(self.size + 1);
        }
    }
}

/// Returns the load to report: the intended one, unless the offered load differs by more than
/// rounding.
fn named(load: f64, offered: Option<f64>) -> f64 {
    let other = offered.filter(|offered| (offered / load - 1.0).abs() > SAME_LOAD - 1.0);
    other.unwrap_or(load)
}

fn name_of(goal: f64) -> &'static str {
    if goal > 0.0 { "pdr" } else { "ndr" }
}

/// Returns the fraction of the highest load at a step.
fn share_of(step: u32) -> f64 {
    f64::from(LOSS_STEPS - step) / f64::from(LOSS_STEPS)
}

#[cfg(test)]
mod tests;
