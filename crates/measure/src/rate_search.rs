//! Search for the highest rate at which the loss stays at or below a limit.
//!
//! Decides without I/O and without a clock: a trial result goes in, the next trial comes out.
//! Small losses, and losses that a stall of the sender can explain, are verified by further trials
//! (binary search with loss verification). Occasional losses that have nothing to do with the rate
//! must not halve the result.

/// Goal and limits of one search.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Highest loss that a trial may have and still pass, as a fraction of the datagrams (0..=1).
    pub loss: f64,
    /// The search ends when the bounds are this close, as a fraction of the upper one.
    pub resolution: f64,
    /// Maximum number of trials, confirmations included.
    pub trials: u32,
    /// Lowest rate that is tried, in payload bits per second.
    pub floor_bps: f64,
}

/// A trial to run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ask {
    /// Intended load: payload bits per second of all flows; `None`: unlimited.
    pub rate_bps: Option<f64>,
    /// True for the longer trial that confirms the best rate.
    pub confirms: bool,
}

/// Result of a trial.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Offered load: payload bits per second that left the sender, plus what its full socket buffer
    /// rejected.
    pub offered_bps: f64,
    /// Payload bits per second that arrived.
    pub received_bps: f64,
    /// Lost fraction of the datagrams.
    pub loss: f64,
    /// True if the sender offered the intended load.
    pub kept: bool,
    /// Largest backlog that the sender built up in a stall and then sent as one burst, as a
    /// fraction of its datagrams; 0 without stalls.
    pub burst: f64,
}

impl Seen {
    /// Returns whether the loss is within the limit and the datagrams arrived as fast as they left.
    /// A lower receive rate means that a queue is filling, which overflows in a longer trial.
    #[must_use]
    pub fn passes(&self, loss_limit: f64) -> bool {
        let queued = 1.0 - self.loss - self.received_bps / self.offered_bps.max(f64::MIN_POSITIVE);
        self.loss <= loss_limit && queued <= QUEUED
    }
}

/// Reason why a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The bounds are as close as the resolution requires.
    Resolution,
    /// The sender is the limit, or a link whose full queue blocks it.
    Sender,
    /// Even the lowest rate failed.
    Floor,
    /// The maximum number of trials was reached.
    Trials,
}

/// Next step of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Next {
    /// Run this trial.
    Try(Ask),
    /// The search has ended.
    Over(Found),
}

/// Bounds found by a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// The highest rate that passed; `None` if no rate passed.
    pub low_bps: Option<f64>,
    /// The lowest rate above it that failed or could not be offered.
    pub high_bps: Option<f64>,
    /// True if a longer trial at the lower bound passed.
    pub confirmed: bool,
    pub end: End,
}

/// First step away from a rate that passed or failed, as a fraction of it; later steps double.
const STEP: f64 = 0.05;

/// Fraction of a trial's datagrams that may still be in queues when the last one has left. Rounding
/// at the start and the end of a short trial looks the same.
const QUEUED: f64 = 0.03;

/// Largest downward step, as a fraction of the rate.
const LARGEST_STEP: f64 = 0.5;

/// A trial that failed with less loss than this is repeated before it counts.
const SMALL_LOSS: f64 = 0.01;

/// Number of failures at a rate, with small losses, after which it counts as failed.
const TRIES: u32 = 3;

/// Number of failed confirmations after which a rate is unconfirmed.
const CONFIRMATIONS: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Unlimited rate: measures what the sender can offer, and how much of it arrives.
    Flat,
    /// Narrows the bounds.
    Edge,
    /// Repeats the best rate in a longer trial.
    Confirm,
    Over(End),
}

/// State of a search.
#[derive(Clone, Debug)]
pub struct Search {
    options: Options,
    phase: Phase,
    /// Intended load of the next trial in bits per second; `None`: unlimited.
    rate: Option<f64>,
    low: Option<f64>,
    high: Option<f64>,
    /// True if the upper bound really failed; false if it is only the most that the sender can
    /// offer.
    bracketed: bool,
    /// True if the sender cannot offer the upper bound.
    sender_bound: bool,
    step: f64,
    /// Failures in a row at this rate that chance can explain.
    failed: u32,
    confirmed: bool,
    made: u32,
}

impl Search {
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            options,
            phase: Phase::Flat,
            rate: None,
            low: None,
            high: None,
            bracketed: false,
            sender_bound: false,
            step: STEP.max(2.0 * options.resolution),
            failed: 0,
            confirmed: false,
            made: 0,
        }
    }

    /// Returns the next trial, or the bounds when the search has ended.
    #[must_use]
    pub fn next(&self) -> Next {
        let end = match self.phase {
            Phase::Over(end) => end,
            _ if self.made >= self.options.trials => End::Trials,
            phase => {
                return Next::Try(Ask {
                    rate_bps: self.rate,
                    confirms: phase == Phase::Confirm,
                });
            }
        };
        Next::Over(Found {
            low_bps: self.low,
            high_bps: self.high,
            confirmed: self.confirmed,
            end,
        })
    }

    /// Records the result of the trial that [`Self::next`] returned.
    pub fn take(&mut self, seen: Seen) {
        self.made += 1;
        let passed = seen.passes(self.options.loss);
        // A stall can explain the loss of at most the datagrams of its burst.
        let luck = SMALL_LOSS
            .max(2.0 * self.options.loss)
            .max(self.options.loss + seen.burst);
        if !passed && seen.loss <= luck && self.phase != Phase::Flat {
            self.failed += 1;
            let tries = match self.phase {
                Phase::Confirm => CONFIRMATIONS,
                _ => TRIES,
            };
            if self.failed < tries {
                return;
            }
        }
        self.failed = 0;
        match self.phase {
            Phase::Flat => self.take_flat(passed, seen),
            Phase::Edge => self.take_edge(passed, seen),
            Phase::Confirm => self.take_confirmation(passed, seen),
            Phase::Over(_) => {}
        }
    }

    fn take_flat(&mut self, passed: bool, seen: Seen) {
        self.high = Some(seen.offered_bps);
        if passed {
            self.low = Some(seen.offered_bps);
            self.sender_bound = true;
            self.phase = Phase::Confirm;
        } else {
            self.phase = Phase::Edge;
            // The rate that arrives under overload is a good first guess, unless overload lowers
            // it.
            self.go_to(seen.received_bps.max(self.options.floor_bps));
        }
    }

    fn take_edge(&mut self, passed: bool, seen: Seen) {
        let asked = self.rate.unwrap_or(seen.offered_bps);
        if !seen.kept {
            // Loads above the offered one have not been tested.
            self.lower_high(asked);
            self.sender_bound = true;
        }
        let tried = if seen.kept {
            asked
        } else {
            seen.offered_bps.min(asked)
        };
        if passed {
            self.low = Some(self.low.map_or(tried, |low| low.max(tried)));
        } else {
            self.lower_high(tried);
            self.bracketed = true;
            self.sender_bound = false;
        }
        self.settle();
    }

    fn take_confirmation(&mut self, passed: bool, seen: Seen) {
        if passed {
            self.confirmed = true;
            // Report a rate that passed a long trial, also if the trials run out on the way down.
            self.low = self.rate;
            if self.rate.is_none() {
                // The longer trial gives the better figure of what the sender can offer.
                self.low = Some(seen.offered_bps);
                self.high = None;
            } else if !self.is_close() && !self.sender_bound {
                // The failed rate lies far above: bisect, and confirm each rate at once.
                self.halve();
                return;
            }
            self.phase = Phase::Over(if self.sender_bound {
                End::Sender
            } else {
                End::Resolution
            });
            return;
        }
        self.sender_bound = false;
        self.bracketed = true;
        match self.rate {
            None => {
                // The unlimited rate passed only briefly: search below it.
                self.low = None;
                self.high = Some(seen.offered_bps);
                self.phase = Phase::Edge;
                self.go_to(seen.received_bps.max(self.options.floor_bps));
            }
            Some(rate) if self.confirmed => {
                self.high = Some(rate);
                match self.is_close() {
                    true => self.phase = Phase::Over(End::Resolution),
                    false => self.halve(),
                }
            }
            Some(rate) => {
                // The rate passed only briefly: step down, and confirm each rate at once.
                self.high = Some(rate);
                self.low = None;
                self.step = (2.0 * self.step).min(LARGEST_STEP);
                self.go_down(rate);
            }
        }
    }

    /// Returns whether the bounds are within the resolution.
    fn is_close(&self) -> bool {
        let (Some(low), Some(high)) = (self.low, self.high) else {
            return false;
        };
        high - low <= self.options.resolution * high
    }

    /// Continues in the middle of the bounds.
    fn halve(&mut self) {
        let (Some(low), Some(high)) = (self.low, self.high) else {
            return;
        };
        self.go_to(f64::midpoint(low, high));
    }

    fn lower_high(&mut self, rate: f64) {
        self.high = Some(self.high.map_or(rate, |high| high.min(rate)));
        // A pass above a failure was chance.
        if self.low.is_some_and(|low| low > rate) {
            self.low = None;
        }
    }

    /// Chooses the next rate from the bounds.
    fn settle(&mut self) {
        let high = self.high.unwrap_or(f64::INFINITY);
        let Some(low) = self.low else {
            let from = high;
            self.go_down(from);
            self.step = (2.0 * self.step).min(LARGEST_STEP);
            return;
        };
        if self.is_close() {
            self.phase = Phase::Confirm;
            self.step = self.options.resolution;
            self.rate = Some(low);
            return;
        }
        let middle = f64::midpoint(low, high);
        if self.bracketed {
            self.go_to(middle);
        } else {
            // The upper bound is only what the sender can offer, and may be far away.
            let next = (low * (1.0 + self.step)).min(middle);
            self.step *= 2.0;
            self.go_to(next);
        }
    }

    fn go_down(&mut self, from: f64) {
        let next = from * (1.0 - self.step.min(LARGEST_STEP));
        if next < self.options.floor_bps {
            self.phase = Phase::Over(End::Floor);
        } else {
            self.go_to(next);
        }
    }

    fn go_to(&mut self, rate: f64) {
        self.rate = Some(rate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OPTIONS: Options = Options {
        loss: 0.0,
        resolution: 0.01,
        trials: 60,
        floor_bps: 10_000.0,
    };

    /// Simulated path and sender; rates in bits per second.
    struct Simulated {
        capacity: f64,
        sender: f64,
        /// Rate received under overload, as a fraction of the capacity.
        collapse: f64,
        /// Relative variation of the capacity, and probability of a small random loss in a trial.
        jitter: f64,
        stray: f64,
        /// Fraction of a trial's datagrams that a queue holds, and length of a trial relative to a
        /// confirmation.
        queue: f64,
        shortness: f64,
        random: fastrand::Rng,
    }

    impl Simulated {
        fn new(capacity: f64, sender: f64) -> Self {
            Self {
                capacity,
                sender,
                collapse: 1.0,
                jitter: 0.0,
                stray: 0.0,
                queue: 0.0,
                shortness: 0.2,
                random: fastrand::Rng::with_seed(7),
            }
        }

        fn trial(&mut self, ask: Ask) -> Seen {
            let asked = ask.rate_bps.unwrap_or(f64::INFINITY);
            let offered = asked.min(self.sender);
            let noise = 1.0 - self.jitter * self.random.f64();
            let capacity = self.capacity * noise;
            let mut received = if offered > capacity {
                capacity * self.collapse
            } else {
                offered
            };
            if self.random.f64() < self.stray {
                received *= 0.9995;
            }
            let queued = match ask.confirms {
                true => self.queue * self.shortness,
                false => self.queue,
            };
            Seen {
                offered_bps: offered,
                received_bps: received,
                loss: (1.0 - received / offered - queued).max(0.0),
                kept: ask.rate_bps.is_none() || offered >= 0.99 * asked,
                burst: 0.0,
            }
        }

        fn search(&mut self, options: Options) -> (Found, u32) {
            let mut search = Search::new(options);
            for made in 0.. {
                match search.next() {
                    Next::Try(ask) => {
                        let seen = self.trial(ask);
                        search.take(seen);
                    }
                    Next::Over(found) => return (found, made),
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
            let (found, made) = Simulated::new(capacity, sender).search(OPTIONS);
            let low = found.low_bps.unwrap();
            assert!(
                low <= capacity && low >= 0.985 * capacity,
                "{capacity} {found:?}"
            );
            assert_eq!((found.end, found.confirmed), (End::Resolution, true));
            assert!(made < 25, "{made} trials for {capacity}");
        }
    }

    #[test]
    fn a_network_faster_than_the_sender_says_so() {
        let (found, made) = Simulated::new(10e9, 3e9).search(OPTIONS);
        assert_eq!((found.end, found.confirmed, made), (End::Sender, true, 2));
        assert_eq!(found.low_bps, Some(3e9));
    }

    #[test]
    fn a_receiver_that_drowns_is_not_taken_for_its_capacity() {
        let mut network = Simulated::new(800e6, 5e9);
        network.collapse = 0.1;
        let (found, made) = network.search(OPTIONS);
        let low = found.low_bps.unwrap();
        assert!((0.985 * 800e6..=800e6).contains(&low), "{found:?}");
        assert!(made < 30, "{made}");
    }

    #[test]
    fn nothing_that_passes_ends_at_the_floor() {
        let mut network = Simulated::new(1.0, 1e9);
        network.collapse = 0.5;
        let (found, _) = network.search(OPTIONS);
        assert_eq!(
            (found.low_bps, found.end, found.confirmed),
            (None, End::Floor, false)
        );
    }

    #[test]
    fn what_is_lost_now_and_then_does_not_halve_the_result() {
        for seed in 0..200 {
            let mut network = Simulated::new(100e6, 5e9);
            network.random = fastrand::Rng::with_seed(seed);
            network.stray = 0.1;
            network.jitter = 0.02;
            let (found, _) = network.search(OPTIONS);
            let low = found.low_bps.unwrap();
            assert!((70e6..=100e6).contains(&low), "seed {seed}: {found:?}");
        }
    }

    #[test]
    fn a_queue_that_fills_is_no_capacity() {
        for queue in [0.02, 0.05, 0.15, 0.6] {
            let mut network = Simulated::new(195e6, 5e9);
            network.queue = queue;
            let (found, made) = network.search(OPTIONS);
            let low = found.low_bps.unwrap();
            // The part of the longest trial that the queue holds is within `QUEUED`.
            assert!(
                (0.985 * 195e6..=1.032 * 195e6).contains(&low),
                "{queue} {found:?}"
            );
            assert_eq!((found.end, found.confirmed), (End::Resolution, true));
            let high = found.high_bps.unwrap();
            assert!(high - low <= 0.011 * high, "{queue} {found:?}");
            assert!(made < 40, "{made} trials for {queue}");
        }
    }

    #[test]
    fn a_confirmation_that_fails_twice_is_none() {
        let mut search = Search::new(OPTIONS);
        let seen = |loss| Seen {
            offered_bps: 1e9,
            received_bps: 1e9 * (1.0 - loss),
            loss,
            kept: true,
            burst: 0.4,
        };
        search.take(seen(0.0));
        for loss in [0.3, 0.3] {
            assert!(matches!(search.next(), Next::Try(ask) if ask.confirms));
            search.take(seen(loss));
        }
        assert!(matches!(search.next(), Next::Try(ask) if !ask.confirms));
        // A burst does not excuse losses that exceed it.
        let mut search = Search::new(OPTIONS);
        search.take(seen(0.0));
        search.take(seen(0.5));
        assert!(matches!(search.next(), Next::Try(ask) if !ask.confirms));
    }

    #[test]
    fn some_loss_may_be_allowed() {
        let options = Options {
            loss: 0.1,
            ..OPTIONS
        };
        let (found, _) = Simulated::new(90e6, 5e9).search(options);
        let low = found.low_bps.unwrap();
        assert!((0.985 * 100e6..=100.1e6).contains(&low), "{found:?}");
    }

    proptest! {
        #[test]
        fn it_always_ends_and_never_claims_what_failed(
            capacity in 1_000f64..1e11, sender in 1e6f64..1e11, collapse in 0.01f64..1.0,
            jitter in 0.0f64..0.3, random_loss in 0.0f64..0.5, loss in 0.0f64..0.5, seed in any::<u64>(),
        ) {
            let mut network = Simulated {
                capacity, sender, collapse, jitter, stray: random_loss, queue: 0.0, shortness: 1.0,
                random: fastrand::Rng::with_seed(seed),
            };
            let options = Options { loss, ..OPTIONS };
            let (found, made) = network.search(options);
            prop_assert!(made <= options.trials);
            if let (true, Some(low)) = (found.confirmed, found.low_bps) {
                let top = capacity / (1.0 - loss) * 1.0001;
                prop_assert!(low <= top.max(capacity) && low <= sender * 1.02, "{found:?}");
                prop_assert!(found.high_bps.is_none_or(|high| high >= low * 0.999), "{found:?}");
            }
        }
    }
}
