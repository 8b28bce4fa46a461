//! All trials of a measurement of capacity, one after the other: for each size of frames throughput,
//! then delay, loss and bursts.
//!
//! Decides without I/O: what a trial saw goes in, the next trial comes out.

use linerate_metric::capacity::{CapacityTrial, DelayAt, LossAt, SizeCapacity, Throughput};
use linerate_metric::generate::{GAP_BYTES, line_frames};
use linerate_metric::histogram::Quantiles;

use super::bursts::{BurstSearch, NextBurst};
use super::search::{self, End, Search};
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
    /// As records have it.
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

/// What is measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// Sizes as they were asked for, with the mean of each, check sequence included.
    pub sizes: Vec<(String, f64)>,
    /// Tests.
    pub tests: Vec<Test>,
    /// Shares of the frames that may be lost, the smallest first.
    pub goals: Vec<f64>,
    /// How close bounds have to come.
    pub resolution: f64,
    /// Length of the trials that decide, in seconds.
    pub trial_s: f64,
    /// Length of the first ones.
    pub first_s: f64,
    /// Shares of the throughput at which delay is measured.
    pub shares: Vec<f64>,
    /// Trials of a search at most.
    pub trials: u32,
    /// How often a load may fail before it counts as failed.
    pub tries: u32,
    /// Searches for the longest burst, which are averaged (RFC 9004 asks for many).
    pub searches: u32,
    /// Rate of the line, where it is known.
    pub line_bps: Option<u64>,
}

/// How much is sent in a trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// Seconds.
    Time(f64),
    /// Frames.
    Frames(u64),
}

/// A trial to be made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ask {
    /// Which size, by its place in [`Options::sizes`].
    pub size: usize,
    /// What for.
    pub test: Test,
    /// Frames per second; none: as fast as it goes.
    pub load: Option<f64>,
    /// How much.
    pub amount: Amount,
}

/// What a trial saw.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seen {
    /// Frames that left.
    pub sent: u64,
    /// Frames that did not arrive.
    pub lost: u64,
    /// Length of sending.
    pub duration_ns: u64,
    /// Frames per second that left.
    pub offered: f64,
    /// Frames that arrived, over the time of sending.
    pub forwarded: f64,
    /// Whether the generator offered what it was asked for.
    pub kept: bool,
    /// Delays.
    pub delay: Option<Quantiles>,
    /// A queue on the way that was filling when sending ended.
    pub filling: Option<Filling>,
    /// Frames that arrived over the time from the first to the last of them.
    pub arrival: Option<f64>,
    /// What kept this program from its work.
    pub own: Disturbance,
}

impl Seen {
    /// None where nothing was sent: that is no trial without loss.
    fn loss(&self) -> Option<f64> {
        (self.sent > 0).then(|| self.lost as f64 / self.sent as f64)
    }
}

/// Steps of offered load when loss is measured: 100 %, 90 %, … (RFC 2544 section 26.3).
const LOSS_STEPS: u32 = 10;
/// Trials as fast as it goes, of which the best counts: one alone may have met a busy machine, and all
/// that follows would be held against it.
const MOST_TRIALS: u32 = 3;
/// Trials in a row in which no frame leaves before that counts as all there is: a generator that stands
/// still does so once.
const UNSENT_TRIALS: u32 = 3;
/// How often a trial is made again whose losses this machine may be to blame for, before they count.
const DISTURBED_TRIALS: u32 = 2;
/// A load that is this much higher than another is the same: what is offered is a count over a time.
const SAME_LOAD: f64 = 1.001;
/// Longest burst, in seconds at the highest rate (RFC 2544 section 26.4: a trial is two).
const BURST_S: f64 = 2.0;

enum Phase {
    /// As fast as it goes, where no line says what the most is: so many trials, the best of them so far.
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

/// The longest burst that passed.
#[derive(Clone, Copy)]
struct Burst {
    frames: u64,
    /// How fast it left; 0 where that is not known.
    fps: f64,
    /// Whether at the gap that was asked for.
    kept: bool,
}

/// A measurement on its way.
pub struct Campaign {
    options: Options,
    size: usize,
    phase: Phase,
    made: u32,
    /// Trials in a row in which no frame left.
    unsent: u32,
    /// How often the present trial was made again because this machine was disturbed.
    again: u32,
    /// Whether the highest load is the generator's and not the line's.
    generator: bool,
    results: Vec<SizeCapacity>,
}

impl Campaign {
    /// Nothing tried yet.
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

    /// The results so far, by size.
    #[must_use]
    pub fn results(&self) -> &[SizeCapacity] {
        &self.results
    }

    /// The last trial.
    #[must_use]
    pub fn last_trial(&self) -> Option<&CapacityTrial> {
        self.results.last()?.trials.last()
    }

    /// Takes what is known of a search that did not end.
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
        self.results.last_mut().expect("a size has begun")
    }

    fn most(&self) -> f64 {
        self.results.last().map_or(0.0, |result| result.most_fps)
    }

    /// A search after so many trials that found the most.
    fn search(&self, most: f64, made: u32) -> Phase {
        Phase::Throughput(Search::new(search::Options {
            goals: self.options.goals.clone(),
            resolution: self.options.resolution,
            trial_s: self.options.trial_s,
            first_s: self.options.first_s,
            most: most.max(1.0 / self.options.trial_s),
            trials: self.options.trials.saturating_sub(made),
            tries: self.options.tries,
        }))
    }

    /// What is to be done now; none: it is over.
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
                    search::Next::Try(tried) => {
                        let amount = Amount::Time(tried.duration_s);
                        return ask(Test::Throughput, Some(tried.load), amount);
                    }
                    search::Next::Over(found) => {
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
                        // The smallest gap is the line's; without one, the generator's.
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

    /// The rate at which nothing is lost, or else at which little is.
    fn throughput(&self) -> Option<f64> {
        let goals = &self.results.last()?.throughput;
        goals.iter().find_map(|goal| goal.fps)
    }

    /// Takes what the trial of [`Campaign::propose`] saw.
    pub fn take(&mut self, ask: Ask, seen: &Seen) {
        self.made += 1;
        let resolution = self.options.resolution;
        // As fast as it goes is no load that a queue could be measured by.
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
                // They are of the same search: it keeps at least one.
                let most_trials = MOST_TRIALS.min(self.options.trials.saturating_sub(1).max(1));
                if made >= most_trials {
                    self.phase = self.search(best, made);
                }
            }
            Phase::Throughput(search) => {
                let Amount::Time(duration_s) = ask.amount else {
                    return;
                };
                let tried = search::Ask {
                    load: ask.load.unwrap_or(0.0),
                    duration_s,
                    decides: false,
                };
                // Under overload a queue gives for longer than was sent: what left it is the better guess.
                let forwarded = match held > 0.0 {
                    true => seen.forwarded.min(seen.arrival.unwrap_or(f64::INFINITY)),
                    false => seen.forwarded,
                };
                search.take(
                    tried,
                    search::Seen {
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
                    // A generator that is slower than the line would send for longer than a trial.
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

    /// Shares that may be lost in a trial.
    fn goals_of(&self, ask: &Ask) -> Vec<f64> {
        match ask.test {
            Test::Throughput => self.options.goals.clone(),
            // Of the throughput that its load is a share of.
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

    /// Whether it ended because no frame left any more.
    #[must_use]
    pub fn sends_nothing(&self) -> bool {
        self.unsent >= UNSENT_TRIALS
    }

    /// A trial in which no frame left says nothing of the device: it is made again, and after some of them all
    /// is over, for this size and those that would follow.
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

    /// Holds a trial after the search against what the search found: a load that passed then and loses now did
    /// not pass.
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

    fn found(&mut self, found: &[search::Found], interrupted: bool) {
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
        // Corrected buffer time, RFC 9004 section 6.4: less what leaves while the burst comes in.
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

/// What a load is told as: the one that was asked for, unless less or more left.
fn named(load: f64, offered: Option<f64>) -> f64 {
    let other = offered.filter(|offered| (offered / load - 1.0).abs() > SAME_LOAD - 1.0);
    other.unwrap_or(load)
}

fn name_of(goal: f64) -> &'static str {
    if goal > 0.0 { "pdr" } else { "ndr" }
}

/// Share of the highest load at a step.
fn share_of(step: u32) -> f64 {
    f64::from(LOSS_STEPS - step) / f64::from(LOSS_STEPS)
}

#[cfg(test)]
mod tests;
