//! Search for the highest rate at which the loss stays at or below a limit.
//!
//! Decides without I/O and without a clock: a trial result goes in, the next trial comes out.
//! Small losses, and losses that a stall of the sender can explain, are verified by further trials
//! (binary search with loss verification). Occasional losses that have nothing to do with the rate
//! must not halve the result.

use linerate_record::ids::{SearchEnd, TrialFailure};

/// Goal and limits of one search.
#[derive(Clone, Copy, Debug)]
pub struct RateSearchOptions {
    /// Highest loss that a trial may have and still pass, as a fraction of the datagrams (0..=1).
    pub max_loss: f64,
    /// The search ends when the bounds are this close, as a fraction of the upper one.
    pub resolution: f64,
    /// Maximum number of trials, confirmations included.
    pub max_trials: u32,
    /// Lowest rate that is tried, in payload bits per second.
    pub floor_bps: f64,
}

/// A trial to run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateTrial {
    /// Intended load: payload bits per second of all flows; `None`: unlimited.
    pub intended_bps: Option<f64>,
    /// True for the longer trial that confirms the best rate.
    pub is_confirmation: bool,
}

/// Result of a trial.
#[derive(Clone, Copy, Debug)]
pub struct RateTrialResult {
    /// Offered load: payload bits per second that left the sender, plus what its full socket buffer
    /// rejected.
    pub offered_bps: f64,
    /// Payload bits per second that arrived.
    pub received_bps: f64,
    /// Lost fraction of the datagrams.
    pub loss: f64,
    /// True if the sender offered the intended load.
    pub load_met: bool,
    /// Largest backlog that the sender built up in a stall and then sent as one burst, as a
    /// fraction of its datagrams; 0 without stalls.
    pub stall_burst: f64,
}

impl RateTrialResult {
    /// Returns the reason why a trial did not pass: a loss above the limit, or datagrams that arrived
    /// more slowly than they left. A queue is filling then, which overflows in a longer trial.
    #[must_use]
    pub fn failure(&self, loss_limit: f64, queue_limit: f64) -> Option<TrialFailure> {
        let queued = 1.0 - self.loss - self.received_bps / self.offered_bps.max(f64::MIN_POSITIVE);
        if self.loss > loss_limit {
            Some(TrialFailure::Loss)
        } else {
            (queued > queue_limit).then_some(TrialFailure::Queue)
        }
    }
}

/// Verdict on a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrialVerdict {
    Passed,
    Failed(TrialFailure),
    /// Failed in a way that chance can explain: the next trial has the same load.
    Repeated(TrialFailure),
}

/// Next step of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RateSearchStep {
    /// Run this trial.
    Try(RateTrial),
    /// The search has ended.
    Done(RateBounds),
}

/// Bounds found by a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateBounds {
    /// The highest rate that passed; `None` if no rate passed.
    pub low_bps: Option<f64>,
    /// The lowest rate above it that failed or could not be offered.
    pub high_bps: Option<f64>,
    /// True if a longer trial at the lower bound passed.
    pub confirmed: bool,
    pub end: SearchEnd,
}

/// First step away from a rate that passed or failed, as a fraction of it; later steps double.
const FIRST_STEP: f64 = 0.05;

/// Fraction of a trial's datagrams that may still be in queues when the last one has left. Rounding
/// at the start and the end of a short trial looks the same.
const MAX_QUEUED_FRACTION: f64 = 0.03;

/// Lower bound of that fraction for a confirmation, which is longer: the last datagrams of one arrive
/// late by chance.
const MIN_QUEUED_FRACTION: f64 = 0.005;

/// Largest downward step, as a fraction of the rate.
const LARGEST_STEP: f64 = 0.5;

/// A trial that failed with less loss than this is repeated before it counts.
const SMALL_LOSS: f64 = 0.01;

/// Number of failures at a rate, with small losses, after which it counts as failed.
const SMALL_LOSS_TRIALS: u32 = 3;

/// Number of failed confirmations after which a rate is unconfirmed.
const CONFIRM_TRIALS: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq)]
enum RateSearchPhase {
    /// Unlimited rate: measures what the sender can offer, and how much of it arrives.
    Unlimited,
    /// Narrows the bounds.
    Narrow,
    /// Repeats the best rate in a longer trial.
    Confirm,
    Done(SearchEnd),
}

/// State of a search.
#[derive(Clone, Debug)]
pub struct MaxRateSearch {
    options: RateSearchOptions,
    phase: RateSearchPhase,
    /// Intended load of the next trial in bits per second; `None`: unlimited.
    rate_bps: Option<f64>,
    low_bps: Option<f64>,
    high_bps: Option<f64>,
    /// True if the upper bound really failed; false if it is only the most that the sender can
    /// offer.
    has_failed_bound: bool,
    /// True if the sender cannot offer the upper bound.
    is_sender_limited: bool,
    step: f64,
    /// Failures in a row at this rate that chance can explain.
    failures: u32,
    confirmed: bool,
    trials_done: u32,
}

impl MaxRateSearch {
    #[must_use]
    pub fn new(options: RateSearchOptions) -> Self {
        Self {
            options,
            phase: RateSearchPhase::Unlimited,
            rate_bps: None,
            low_bps: None,
            high_bps: None,
            has_failed_bound: false,
            is_sender_limited: false,
            step: FIRST_STEP.max(2.0 * options.resolution),
            failures: 0,
            confirmed: false,
            trials_done: 0,
        }
    }

    /// Returns the next trial, or the bounds when the search has ended.
    #[must_use]
    pub fn next(&self) -> RateSearchStep {
        let end = match self.phase {
            RateSearchPhase::Done(end) => end,
            _ if self.trials_done >= self.options.max_trials => SearchEnd::Trials,
            phase => {
                return RateSearchStep::Try(RateTrial {
                    intended_bps: self.rate_bps,
                    is_confirmation: phase == RateSearchPhase::Confirm,
                });
            }
        };
        RateSearchStep::Done(RateBounds {
            low_bps: self.low_bps,
            high_bps: self.high_bps,
            confirmed: self.confirmed,
            end,
        })
    }

    /// Sets the lowest rate that is tried, once the size of the datagrams is known.
    pub fn set_floor_bps(&mut self, floor_bps: f64) {
        self.options.floor_bps = floor_bps;
    }

    /// Returns the fraction of the next trial's datagrams that may arrive later than they were sent. A
    /// rate that fills a queue during the whole of a confirmation is not confirmed: the distance from
    /// the rate that the path carries would be more than the resolution.
    #[must_use]
    pub fn queue_limit(&self) -> f64 {
        match self.phase {
            RateSearchPhase::Confirm => self
                .options
                .resolution
                .clamp(MIN_QUEUED_FRACTION, MAX_QUEUED_FRACTION),
            _ => MAX_QUEUED_FRACTION,
        }
    }

    /// Records the result of the trial that [`Self::next`] returned, and returns its verdict.
    pub fn record(&mut self, result: RateTrialResult) -> TrialVerdict {
        self.trials_done += 1;
        let failure = result.failure(self.options.max_loss, self.queue_limit());
        let passed = failure.is_none();
        // A stall can explain the loss of at most the datagrams of its burst.
        let chance_loss = SMALL_LOSS
            .max(2.0 * self.options.max_loss)
            .max(self.options.max_loss + result.stall_burst);
        if let Some(failure) = failure
            && (result.loss <= chance_loss || self.has_stalled(result))
            && self.phase != RateSearchPhase::Unlimited
        {
            self.failures += 1;
            let max_failures = match self.phase {
                RateSearchPhase::Confirm => CONFIRM_TRIALS,
                _ => SMALL_LOSS_TRIALS,
            };
            if self.failures < max_failures {
                return TrialVerdict::Repeated(failure);
            }
        }
        self.failures = 0;
        match self.phase {
            RateSearchPhase::Unlimited => self.record_unlimited(passed, result),
            RateSearchPhase::Narrow => self.record_narrowing(passed, result),
            RateSearchPhase::Confirm => self.record_confirmation(passed, result),
            RateSearchPhase::Done(_) => {}
        }
        failure.map_or(TrialVerdict::Passed, TrialVerdict::Failed)
    }

    fn record_unlimited(&mut self, passed: bool, result: RateTrialResult) {
        self.high_bps = Some(result.offered_bps);
        if passed {
            self.low_bps = Some(result.offered_bps);
            self.is_sender_limited = true;
            self.phase = RateSearchPhase::Confirm;
        } else {
            self.phase = RateSearchPhase::Narrow;
            // The rate that arrives under overload is a good first guess, unless overload lowers
            // it.
            self.set_rate(result.received_bps.max(self.options.floor_bps));
        }
    }

    fn record_narrowing(&mut self, passed: bool, result: RateTrialResult) {
        let intended_bps = self.rate_bps.unwrap_or(result.offered_bps);
        if !result.load_met {
            // Loads above the offered one have not been tested.
            self.lower_high(intended_bps);
            self.is_sender_limited = true;
        }
        let tried = if result.load_met || (!passed && self.has_stalled(result)) {
            intended_bps
        } else {
            result.offered_bps.min(intended_bps)
        };
        if passed {
            self.low_bps = Some(self.low_bps.map_or(tried, |low| low.max(tried)));
        } else {
            self.lower_high(tried);
            self.has_failed_bound = true;
            self.is_sender_limited = false;
        }
        self.choose_next();
    }

    fn record_confirmation(&mut self, passed: bool, result: RateTrialResult) {
        if passed {
            self.confirmed = true;
            // Report a rate that passed a long trial, also if the trials run out on the way down.
            self.low_bps = self.rate_bps;
            if self.rate_bps.is_none() {
                // The longer trial gives the better figure of what the sender can offer.
                self.low_bps = Some(result.offered_bps);
                self.high_bps = None;
            } else if !self.is_close() && !self.is_sender_limited {
                // The failed rate lies far above: bisect, and confirm each rate at once.
                self.bisect();
                return;
            }
            self.phase = RateSearchPhase::Done(if self.is_sender_limited {
                SearchEnd::Sender
            } else {
                SearchEnd::Resolution
            });
            return;
        }
        self.is_sender_limited = false;
        self.has_failed_bound = true;
        match self.rate_bps {
            None => {
                // The unlimited rate passed only briefly: search below it.
                self.low_bps = None;
                self.high_bps = Some(result.offered_bps);
                self.phase = RateSearchPhase::Narrow;
                self.set_rate(result.received_bps.max(self.options.floor_bps));
            }
            Some(rate) if self.confirmed => {
                self.high_bps = Some(rate);
                match self.is_close() {
                    true => self.phase = RateSearchPhase::Done(SearchEnd::Resolution),
                    false => self.bisect(),
                }
            }
            Some(rate) => {
                // The rate passed only briefly: step down, and confirm each rate at once.
                self.high_bps = Some(rate);
                self.low_bps = None;
                self.step = (2.0 * self.step).min(LARGEST_STEP);
                self.step_down(rate);
            }
        }
    }

    /// Returns whether the sender stood still for a part of a trial: it offered less than a load that
    /// passed. The rest left in bursts, so its loss says nothing about lower loads.
    fn has_stalled(&self, result: RateTrialResult) -> bool {
        !result.load_met && self.low_bps.is_some_and(|low| result.offered_bps < low)
    }

    /// Returns whether the bounds are within the resolution.
    fn is_close(&self) -> bool {
        let (Some(low), Some(high)) = (self.low_bps, self.high_bps) else {
            return false;
        };
        high - low <= self.options.resolution * high
    }

    /// Continues in the middle of the bounds.
    fn bisect(&mut self) {
        let (Some(low), Some(high)) = (self.low_bps, self.high_bps) else {
            return;
        };
        self.set_rate(f64::midpoint(low, high));
    }

    fn lower_high(&mut self, rate: f64) {
        self.high_bps = Some(self.high_bps.map_or(rate, |high| high.min(rate)));
        // A pass above a failure was chance.
        if self.low_bps.is_some_and(|low| low > rate) {
            self.low_bps = None;
        }
    }

    /// Chooses the next rate from the bounds.
    fn choose_next(&mut self) {
        let high = self.high_bps.unwrap_or(f64::INFINITY);
        let Some(low) = self.low_bps else {
            let from = high;
            self.step_down(from);
            self.step = (2.0 * self.step).min(LARGEST_STEP);
            return;
        };
        if self.is_close() {
            self.phase = RateSearchPhase::Confirm;
            self.step = self.options.resolution;
            self.rate_bps = Some(low);
            return;
        }
        let middle = f64::midpoint(low, high);
        if self.has_failed_bound {
            self.set_rate(middle);
        } else {
            // The upper bound is only what the sender can offer, and may be far away.
            let next = (low * (1.0 + self.step)).min(middle);
            self.step *= 2.0;
            self.set_rate(next);
        }
    }

    fn step_down(&mut self, from: f64) {
        let next = from * (1.0 - self.step.min(LARGEST_STEP));
        if next < self.options.floor_bps {
            self.phase = RateSearchPhase::Done(SearchEnd::MinimumRate);
        } else {
            self.set_rate(next);
        }
    }

    fn set_rate(&mut self, rate: f64) {
        self.rate_bps = Some(rate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OPTIONS: RateSearchOptions = RateSearchOptions {
        max_loss: 0.0,
        resolution: 0.01,
        max_trials: 60,
        floor_bps: 10_000.0,
    };

    /// Simulated path and sender; rates in bits per second.
    struct SimulatedPath {
        capacity: f64,
        sender: f64,
        /// Rate received under overload, as a fraction of the capacity.
        collapse: f64,
        /// Relative variation of the capacity, and probability of a small random loss in a trial.
        jitter: f64,
        random_loss: f64,
        /// Fraction of a trial's datagrams that a queue holds, and length of a trial relative to a
        /// confirmation.
        queue: f64,
        trial_length_ratio: f64,
        random: fastrand::Rng,
    }

    impl SimulatedPath {
        fn new(capacity: f64, sender: f64) -> Self {
            Self {
                capacity,
                sender,
                collapse: 1.0,
                jitter: 0.0,
                random_loss: 0.0,
                queue: 0.0,
                trial_length_ratio: 0.2,
                random: fastrand::Rng::with_seed(7),
            }
        }

        fn trial(&mut self, trial: RateTrial) -> RateTrialResult {
            let intended_bps = trial.intended_bps.unwrap_or(f64::INFINITY);
            let offered = intended_bps.min(self.sender);
            let noise = 1.0 - self.jitter * self.random.f64();
            let capacity = self.capacity * noise;
            let mut received = if offered > capacity {
                capacity * self.collapse
            } else {
                offered
            };
            if self.random.f64() < self.random_loss {
                received *= 0.9995;
            }
            let queued = match trial.is_confirmation {
                true => self.queue * self.trial_length_ratio,
                false => self.queue,
            };
            RateTrialResult {
                offered_bps: offered,
                received_bps: received,
                loss: (1.0 - received / offered - queued).max(0.0),
                load_met: trial.intended_bps.is_none() || offered >= 0.99 * intended_bps,
                stall_burst: 0.0,
            }
        }

        fn search(&mut self, options: RateSearchOptions) -> (RateBounds, u32) {
            let mut search = MaxRateSearch::new(options);
            for trials_done in 0.. {
                match search.next() {
                    RateSearchStep::Try(trial) => {
                        let result = self.trial(trial);
                        search.record(result);
                    }
                    RateSearchStep::Done(bounds) => return (bounds, trials_done),
                }
            }
            unreachable!("it ends by its number of trials")
        }
    }

    #[test]
    fn a_steady_network_is_found_to_the_resolution() {
        for (capacity, sender) in [
            (48e6, 5e9),
            (95.7e6, 120e6),
            (1e9, 1.001e9),
            (20_000.0, 5e9),
        ] {
            let (bounds, trials_done) = SimulatedPath::new(capacity, sender).search(OPTIONS);
            let low = bounds.low_bps.unwrap();
            assert!(
                low <= capacity && low >= 0.985 * capacity,
                "{capacity} {bounds:?}"
            );
            assert_eq!(
                (bounds.end, bounds.confirmed),
                (SearchEnd::Resolution, true)
            );
            assert!(trials_done < 25, "{trials_done} trials for {capacity}");
        }
    }

    #[test]
    fn a_network_faster_than_the_sender_says_so() {
        let (bounds, trials_done) = SimulatedPath::new(10e9, 3e9).search(OPTIONS);
        assert_eq!(
            (bounds.end, bounds.confirmed, trials_done),
            (SearchEnd::Sender, true, 2)
        );
        assert_eq!(bounds.low_bps, Some(3e9));
    }

    #[test]
    fn a_receiver_that_drowns_is_not_taken_for_its_capacity() {
        let mut network = SimulatedPath::new(800e6, 5e9);
        network.collapse = 0.1;
        let (bounds, trials_done) = network.search(OPTIONS);
        let low = bounds.low_bps.unwrap();
        assert!((0.985 * 800e6..=800e6).contains(&low), "{bounds:?}");
        assert!(trials_done < 30, "{trials_done}");
    }

    #[test]
    fn nothing_that_passes_ends_at_the_floor() {
        let mut network = SimulatedPath::new(1.0, 1e9);
        network.collapse = 0.5;
        let (bounds, _) = network.search(OPTIONS);
        assert_eq!(
            (bounds.low_bps, bounds.end, bounds.confirmed),
            (None, SearchEnd::MinimumRate, false)
        );
    }

    #[test]
    fn occasional_losses_do_not_halve_the_result() {
        for seed in 0..200 {
            let mut network = SimulatedPath::new(100e6, 5e9);
            network.random = fastrand::Rng::with_seed(seed);
            network.random_loss = 0.1;
            network.jitter = 0.02;
            let (bounds, _) = network.search(OPTIONS);
            let low = bounds.low_bps.unwrap();
            assert!((70e6..=100e6).contains(&low), "seed {seed}: {bounds:?}");
        }
    }

    /// 5.00 Mb/s into a deep queue in front of 4.87 Mb/s: nothing is lost in any trial.
    #[test]
    fn a_rate_that_fills_a_queue_for_a_whole_trial_is_not_confirmed() {
        let result = |rate: f64| RateTrialResult {
            offered_bps: rate,
            received_bps: rate.min(4.87e6),
            loss: 0.0,
            load_met: true,
            stall_burst: 0.0,
        };
        for resolution in [0.01, 0.02] {
            let mut search = MaxRateSearch::new(RateSearchOptions {
                resolution,
                ..OPTIONS
            });
            let bounds = loop {
                match search.next() {
                    RateSearchStep::Try(trial) => {
                        let rate = trial.intended_bps.unwrap_or(20e6);
                        search.record(result(rate));
                    }
                    RateSearchStep::Done(bounds) => break bounds,
                }
            };
            let low = bounds.low_bps.unwrap();
            assert!(bounds.confirmed, "{bounds:?}");
            assert!(
                (0.95 * 4.87e6..=(1.001 + resolution) * 4.87e6).contains(&low),
                "{resolution} {bounds:?}"
            );
        }
    }

    #[test]
    fn a_queue_that_fills_is_no_capacity() {
        for queue in [0.02, 0.05, 0.15, 0.6] {
            let mut network = SimulatedPath::new(195e6, 5e9);
            network.queue = queue;
            let (bounds, trials_done) = network.search(OPTIONS);
            let low = bounds.low_bps.unwrap();
            // The part of the longest trial that the queue holds is within the resolution.
            assert!(
                (0.985 * 195e6..=1.012 * 195e6).contains(&low),
                "{queue} {bounds:?}"
            );
            assert_eq!(
                (bounds.end, bounds.confirmed),
                (SearchEnd::Resolution, true)
            );
            let high = bounds.high_bps.unwrap();
            assert!(high - low <= 0.011 * high, "{queue} {bounds:?}");
            assert!(trials_done < 40, "{trials_done} trials for {queue}");
        }
    }

    #[test]
    fn a_confirmation_that_fails_twice_is_none() {
        let mut search = MaxRateSearch::new(OPTIONS);
        let result = |loss| RateTrialResult {
            offered_bps: 1e9,
            received_bps: 1e9 * (1.0 - loss),
            loss,
            load_met: true,
            stall_burst: 0.4,
        };
        search.record(result(0.0));
        for loss in [0.3, 0.3] {
            assert!(matches!(search.next(), RateSearchStep::Try(trial) if trial.is_confirmation));
            search.record(result(loss));
        }
        assert!(matches!(search.next(), RateSearchStep::Try(trial) if !trial.is_confirmation));
        // A burst does not excuse losses that exceed it.
        let mut search = MaxRateSearch::new(OPTIONS);
        search.record(result(0.0));
        search.record(result(0.5));
        assert!(matches!(search.next(), RateSearchStep::Try(trial) if !trial.is_confirmation));
    }

    #[test]
    fn each_verdict_has_its_reason() {
        let result = |loss, received| RateTrialResult {
            offered_bps: 1e9,
            received_bps: received * 1e9,
            loss,
            load_met: true,
            stall_burst: 0.0,
        };
        let mut search = MaxRateSearch::new(OPTIONS);
        // The first trial is not repeated: it has no rate that could be tried again.
        for (loss, received, verdict) in [
            (0.005, 0.995, TrialVerdict::Failed(TrialFailure::Loss)),
            (1e-6, 1.0, TrialVerdict::Repeated(TrialFailure::Loss)),
            (0.0, 0.9, TrialVerdict::Repeated(TrialFailure::Queue)),
            (1e-6, 0.9, TrialVerdict::Failed(TrialFailure::Loss)),
            (0.0, 0.98, TrialVerdict::Passed),
            (0.5, 0.5, TrialVerdict::Failed(TrialFailure::Loss)),
        ] {
            assert_eq!(
                search.record(result(loss, received)),
                verdict,
                "{loss} {received}"
            );
        }
    }

    /// A busy machine may stop the sender for most of a trial. What it then offered is far below a
    /// load that passed.
    #[test]
    fn a_stalled_trial_does_not_undo_a_pass() {
        let result = |offered_bps: f64, loss: f64, load_met| RateTrialResult {
            offered_bps,
            received_bps: offered_bps * (1.0 - loss),
            loss,
            load_met,
            stall_burst: 0.0,
        };
        let mut search = MaxRateSearch::new(OPTIONS);
        search.record(result(10e9, 0.6, true));
        let intended = |search: &MaxRateSearch| match search.next() {
            RateSearchStep::Try(trial) => trial.intended_bps.unwrap(),
            RateSearchStep::Done(found) => panic!("{found:?}"),
        };
        let passed = intended(&search);
        search.record(result(passed, 0.0, true));
        let stalled_at = intended(&search);
        assert!(stalled_at > passed);
        let stalled = result(0.6e9, 0.5, false);
        for verdict in [
            TrialVerdict::Repeated(TrialFailure::Loss),
            TrialVerdict::Repeated(TrialFailure::Loss),
            TrialVerdict::Failed(TrialFailure::Loss),
        ] {
            assert_eq!(intended(&search), stalled_at);
            assert_eq!(search.record(stalled), verdict);
        }
        let next = intended(&search);
        assert!((passed..stalled_at).contains(&next), "{next}");
    }

    #[test]
    fn some_loss_may_be_allowed() {
        let options = RateSearchOptions {
            max_loss: 0.1,
            ..OPTIONS
        };
        let (bounds, _) = SimulatedPath::new(90e6, 5e9).search(options);
        let low = bounds.low_bps.unwrap();
        assert!((0.985 * 100e6..=100.1e6).contains(&low), "{bounds:?}");
    }

    proptest! {
        #[test]
        fn the_search_ends_and_never_reports_a_failed_rate(
            capacity in 1_000f64..1e11, sender in 1e6f64..1e11, collapse in 0.01f64..1.0,
            jitter in 0.0f64..0.3, random_loss in 0.0f64..0.5, max_loss in 0.0f64..0.5, seed in any::<u64>(),
        ) {
            let mut network = SimulatedPath {
                capacity, sender, collapse, jitter, random_loss, queue: 0.0, trial_length_ratio: 1.0,
                random: fastrand::Rng::with_seed(seed),
            };
            let options = RateSearchOptions { max_loss, ..OPTIONS };
            let (found, made) = network.search(options);
            prop_assert!(made <= options.max_trials);
            if let (true, Some(low)) = (found.confirmed, found.low_bps) {
                let top = capacity / (1.0 - max_loss) * 1.0001;
                prop_assert!(low <= top.max(capacity) && low <= sender * 1.02, "{found:?}");
                prop_assert!(found.high_bps.is_none_or(|high| high >= low * 0.999), "{found:?}");
            }
        }
    }
}
