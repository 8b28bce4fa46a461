//! Decisions of an emulated link for each frame: arrival time in, departure time out.

use std::fmt;

use linerate_packet::frame::MIN_FRAME_BYTES;
use linerate_stats::units::{
    BitRate, format_exact_duration, format_exact_rate, format_exact_share, parse_duration,
    parse_fraction,
};

use crate::stream::{FromOptions, parse_options};

/// Bytes of a frame on an Ethernet link beyond those that ports count: preamble 7, SFD 1, FCS 4,
/// gap 12 (IEEE 802.3).
const LINE_OVERHEAD_BYTES: u64 = 24;
/// Default maximum of frames in the link: the usual transmit queue length of Linux (txqueuelen).
const DEFAULT_LIMIT: u32 = 1000;

/// Parameters of a link.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkPlan {
    /// Bits per second of the line, preamble and gap included; `None`: unlimited.
    pub rate_bps: Option<u64>,
    /// Propagation delay.
    pub delay_ns: u64,
    /// Maximum deviation from the delay, in both directions, evenly distributed; the frame order is
    /// kept (see [`JitterWalk`]).
    pub jitter_ns: u64,
    /// Fraction of frames lost.
    pub loss: f64,
    /// Fraction of frames without delay, which overtake others.
    pub reorder: f64,
    /// Fraction of frames duplicated.
    pub duplicate: f64,
    /// Fraction of frames with a flipped bit.
    pub corrupt: f64,
    /// Maximum number of frames in the link, the queue before the line included.
    pub limit: u32,
}

impl Default for LinkPlan {
    fn default() -> Self {
        Self {
            rate_bps: None,
            delay_ns: 0,
            jitter_ns: 0,
            loss: 0.0,
            reorder: 0.0,
            duplicate: 0.0,
            corrupt: 0.0,
            limit: DEFAULT_LIMIT,
        }
    }
}

impl FromOptions for LinkPlan {
    const HELP: &'static [(&'static str, &'static str)] = &[
        (
            "rate=RATE",
            "bits per second of the line, preamble and gap included (no limit)",
        ),
        ("delay=TIME", "propagation delay (0)"),
        (
            "jitter=TIME",
            "deviation from the delay, in both directions, evenly distributed; keeps the order (0)",
        ),
        ("loss=SHARE", "fraction of frames lost: 0.1%, 0.001 (0)"),
        (
            "reorder=SHARE",
            "fraction of frames without delay, which overtake others (0)",
        ),
        ("duplicate=SHARE", "fraction of frames duplicated (0)"),
        ("corrupt=SHARE", "fraction of frames with a flipped bit (0)"),
        (
            "limit=N",
            "maximum frames in the link, the queue included (1000)",
        ),
    ];

    fn from_options(text: &str) -> Result<Self, String> {
        let mut plan = Self::default();
        parse_options(text, |key, value| {
            let time = || {
                let time = parse_duration(value).map_err(|error| error.to_string())?;
                Ok::<_, String>(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
            };
            let share = || match parse_fraction(value) {
                Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
                Ok(_) => Err(format!("`{key}={value}` is above 100%: use 0.1%, 0.001")),
                Err(error) => Err(error.to_string()),
            };
            match key {
                "rate" => {
                    let BitRate(rate) = value.parse().map_err(|error| format!("{error}"))?;
                    if rate == 0 {
                        return Err("`rate=0` passes no frame: use loss=100%".to_owned());
                    }
                    plan.rate_bps = Some(rate);
                }
                "delay" => plan.delay_ns = time()?,
                "jitter" => plan.jitter_ns = time()?,
                "loss" => plan.loss = share()?,
                "reorder" => plan.reorder = share()?,
                "duplicate" => plan.duplicate = share()?,
                "corrupt" => plan.corrupt = share()?,
                "limit" => {
                    let limit = value.parse().ok().filter(|&limit| limit > 0);
                    plan.limit =
                        limit.ok_or_else(|| format!("`limit={value}` is not a number above 0"))?;
                }
                _ => {
                    return Err(format!(
                        "link has no option `{key}`: use rate, delay, jitter, loss, reorder, \
                         duplicate, corrupt or limit"
                    ));
                }
            }
            Ok(())
        })?;
        Ok(plan)
    }
}

impl fmt::Display for LinkPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(rate) = self.rate_bps {
            write!(f, "rate={},", format_exact_rate(rate))?;
        }
        for (name, time) in [("delay", self.delay_ns), ("jitter", self.jitter_ns)] {
            if time > 0 {
                write!(f, "{name}={},", format_exact_duration(time))?;
            }
        }
        for (name, share) in [
            ("loss", self.loss),
            ("reorder", self.reorder),
            ("duplicate", self.duplicate),
            ("corrupt", self.corrupt),
        ] {
            if share > 0.0 {
                write!(f, "{name}={},", format_exact_share(share))?;
            }
        }
        write!(f, "limit={}", self.limit)
    }
}

/// Decision for one frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkDecision {
    /// Departure time; `None` if the frame is dropped.
    pub departure_ns: Option<u64>,
    /// Departure time of a duplicate.
    pub duplicate_ns: Option<u64>,
    /// Flipped bit, counted from the first bit of the first byte.
    pub flipped_bit: Option<u32>,
}

/// Counts of the decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounts {
    /// Lost at random.
    pub lost: u64,
    /// Dropped because the link was full.
    pub overflowed: u64,
    pub duplicated: u64,
    /// Selected for duplication, but no memory for the copy.
    pub not_duplicated: u64,
    pub corrupted: u64,
    /// Sent without delay.
    pub reordered: u64,
}

/// Random walk between 0 and twice the jitter, evenly distributed: the variable part of a delay.
///
/// Frames keep their order, so the delay of a frame may fall below that of the frame before it by
/// at most the time between them. With an independent draw per frame, held back where it would
/// overtake, the delay of a busy link would stay at its maximum: the largest of many draws delays
/// all frames after it.
/// So the value moves up and down at half the speed of the clock. It turns at both bounds and at
/// random points in between, with or without frames. At any load it spends equal time at each
/// value. Frames too far apart to overtake get independent draws.
#[derive(Clone, Debug)]
struct JitterWalk {
    /// Upper bound: twice the jitter.
    most_ns: u64,
    at_ns: u64,
    /// Value in half nanoseconds; the speed is one of them per nanosecond.
    half_ns: u64,
    is_falling: bool,
    /// Time until the next turn.
    until_turn_ns: u64,
}

impl JitterWalk {
    fn new(jitter_ns: u64, random: &mut fastrand::Rng) -> Self {
        let mut walk = Self {
            most_ns: jitter_ns.saturating_mul(2).min(u64::MAX / 8),
            at_ns: 0,
            half_ns: 0,
            is_falling: false,
            until_turn_ns: 0,
        };
        walk.redraw(random);
        walk
    }

    fn redraw(&mut self, random: &mut fastrand::Rng) {
        self.half_ns = random.u64(..=self.most_ns * 2);
        self.turn_around(random);
        self.is_falling = random.bool();
    }

    /// Turns. From bound to bound takes twice `most_ns`, so turns in between are about as frequent
    /// as at the bounds.
    fn turn_around(&mut self, random: &mut fastrand::Rng) {
        self.is_falling = !self.is_falling;
        self.until_turn_ns = random.u64(..=self.most_ns * 4).max(1);
    }

    /// Returns the value for a frame sent at `now_ns`, which must not decrease.
    fn value_at(&mut self, now_ns: u64, random: &mut fastrand::Rng) -> u64 {
        if self.most_ns == 0 {
            return 0;
        }
        let mut elapsed_ns = now_ns.saturating_sub(self.at_ns);
        self.at_ns = now_ns;
        if elapsed_ns >= self.most_ns {
            self.redraw(random);
            return self.half_ns / 2;
        }
        while elapsed_ns > 0 {
            let to_bound = match self.is_falling {
                true => self.half_ns,
                false => self.most_ns * 2 - self.half_ns,
            };
            let step = elapsed_ns.min(self.until_turn_ns).min(to_bound);
            match self.is_falling {
                true => self.half_ns -= step,
                false => self.half_ns += step,
            }
            elapsed_ns -= step;
            self.until_turn_ns -= step;
            if step == to_bound {
                self.is_falling = !self.is_falling;
            }
            if self.until_turn_ns == 0 {
                self.turn_around(random);
            }
        }
        self.half_ns / 2
    }
}

/// One direction of a link.
#[derive(Clone, Debug)]
pub struct LinkEmulation {
    plan: LinkPlan,
    random: fastrand::Rng,
    /// Time at which the line becomes free, in ns and a fraction of 1 ns.
    line_free_at: (u64, u64),
    jitter: JitterWalk,
    /// Latest departure time of a frame that kept its order.
    last_ns: u64,
    counts: LinkCounts,
}

impl LinkEmulation {
    /// Creates an idle link; the same seed and frames give the same decisions.
    #[must_use]
    pub fn new(plan: LinkPlan, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        Self {
            jitter: JitterWalk::new(plan.jitter_ns, &mut random),
            plan,
            random,
            line_free_at: (0, 0),
            last_ns: 0,
            counts: LinkCounts::default(),
        }
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn counts(&self) -> LinkCounts {
        self.counts
    }

    /// Records that there was no memory for the duplicate of the last frame.
    pub fn record_missing_copy(&mut self) {
        self.counts.duplicated -= 1;
        self.counts.not_duplicated += 1;
    }

    fn happens(&mut self, share: f64) -> bool {
        share > 0.0 && self.random.f64() < share
    }

    /// Decides for a frame of `bytes` that arrives at `now_ns` with `frames_in_link` frames in the
    /// link; `is_full` if there is no memory for another.
    pub fn decide(
        &mut self,
        now_ns: u64,
        bytes: u16,
        frames_in_link: usize,
        is_full: bool,
    ) -> LinkDecision {
        if self.happens(self.plan.loss) {
            self.counts.lost += 1;
            return LinkDecision::default();
        }
        if is_full || frames_in_link >= self.plan.limit as usize {
            self.counts.overflowed += 1;
            return LinkDecision::default();
        }
        let is_duplicated = self.happens(self.plan.duplicate);
        let corrupt = self.happens(self.plan.corrupt);
        let reordered = self.happens(self.plan.reorder);
        let sent_ns = self.line_end_ns(now_ns, bytes);
        let departure_ns = self.departure_ns(sent_ns, reordered);
        let duplicate_ns = is_duplicated.then(|| {
            let sent_ns = self.line_end_ns(now_ns, bytes);
            self.departure_ns(sent_ns, false)
        });
        self.counts.duplicated += u64::from(is_duplicated);
        self.counts.corrupted += u64::from(corrupt && bytes > 0);
        self.counts.reordered += u64::from(reordered);
        LinkDecision {
            departure_ns: Some(departure_ns),
            duplicate_ns,
            flipped_bit: (corrupt && bytes > 0).then(|| self.random.u32(..u32::from(bytes) * 8)),
        }
    }

    /// Returns the time at which the line has sent the frame, after all earlier frames.
    fn line_end_ns(&mut self, now_ns: u64, bytes: u16) -> u64 {
        let Some(rate) = self.plan.rate_bps else {
            return now_ns;
        };
        let bits = (u64::from(bytes).max(MIN_FRAME_BYTES as u64) + LINE_OVERHEAD_BYTES) * 8;
        let (free_ns, rest) = match self.line_free_at {
            (free_ns, rest) if free_ns >= now_ns => (free_ns, rest),
            _ => (now_ns, 0),
        };
        // The fraction of a nanosecond is kept in units of 1/rate, so that rounding errors do not
        // add up.
        let total = u128::from(bits) * 1_000_000_000 + u128::from(rest);
        let ns = u64::try_from(total / u128::from(rate)).unwrap_or(u64::MAX);
        let rest = u64::try_from(total % u128::from(rate)).unwrap_or(0);
        self.line_free_at = (free_ns.saturating_add(ns), rest);
        self.line_free_at.0
    }

    /// Returns the time at which a frame sent at `sent_ns` leaves the link.
    fn departure_ns(&mut self, sent_ns: u64, reordered: bool) -> u64 {
        if reordered {
            return sent_ns;
        }
        let jitter = self.jitter.value_at(sent_ns, &mut self.random);
        // Not before it was sent.
        let departure_ns = sent_ns
            .saturating_add(self.plan.delay_ns)
            .saturating_add(jitter)
            .saturating_sub(self.plan.jitter_ns)
            .max(sent_ns);
        self.last_ns = self.last_ns.max(departure_ns);
        self.last_ns
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn link(options: &str) -> LinkEmulation {
        LinkEmulation::new(LinkPlan::from_options(options).unwrap(), 7)
    }

    #[test]
    fn a_key_is_given_once() {
        let message = LinkPlan::from_options("loss=1%,delay=1ms,loss=2%").unwrap_err();
        assert!(message.contains("`loss` is given twice"), "{message}");
    }

    #[test]
    fn a_rate_spaces_frames_as_a_line_does() {
        // 60 B and 24 B of overhead are 672 bits: 672 ns at 1 Gb/s, 67.2 ns at 10 Gb/s.
        let mut gigabit = link("rate=1G");
        let mut ten_gigabit = link("rate=10G");
        for number in 1..=1000u64 {
            let next_departure =
                |link: &mut LinkEmulation| link.decide(0, 60, 0, false).departure_ns.unwrap();
            assert_eq!(next_departure(&mut gigabit), 672 * number);
            assert_eq!(next_departure(&mut ten_gigabit), 672 * number / 10);
        }
        // After an idle time the line starts anew.
        assert_eq!(
            gigabit.decide(10_000_000, 1514, 0, false).departure_ns,
            Some(10_000_000 + (1514 + 24) * 8)
        );
        // Frames below the minimum length are padded on the line.
        assert_eq!(
            link("rate=1G").decide(0, 20, 0, false).departure_ns,
            Some(672)
        );
    }

    #[test]
    fn delay_comes_after_the_line() {
        let mut link = link("rate=1G,delay=50us");
        assert_eq!(link.decide(1000, 60, 0, false).departure_ns, Some(51_672));
    }

    #[test]
    fn jitter_varies_evenly_and_keeps_the_order() {
        let mut link = link("delay=50us,jitter=5us");
        let mut last = 0;
        let (mut low, mut high, mut sum) = (u64::MAX, 0, 0.0);
        for number in 0..100_000u64 {
            // Far enough apart that the order has no effect.
            let now = number * 20_000;
            let departure_ns = link.decide(now, 60, 0, false).departure_ns.unwrap();
            assert!(departure_ns >= last);
            last = departure_ns;
            let delay = departure_ns - now;
            (low, high) = (low.min(delay), high.max(delay));
            sum += delay as f64;
        }
        assert!((45_000..45_100).contains(&low), "{low}");
        assert!((54_900..=55_000).contains(&high), "{high}");
        let mean = sum / 100_000.0;
        assert!((mean - 50_000.0).abs() < 50.0, "{mean}");
    }

    /// With frames at any distance the delay is evenly distributed about its configured value, and
    /// the order is kept.
    #[test]
    fn jitter_stays_jitter_under_load() {
        for (gap, jitter) in [
            (2, 100),
            (100, 5_000),
            (700, 5_000),
            (3_000, 5_000),
            (9_000, 5_000),
        ] {
            let mut link = link(&format!("delay=50us,jitter={jitter}ns"));
            let (mut last, mut sum, mut changed, mut last_jittered) = (0, 0.0, 0u64, 0);
            let mut tenths = [0u64; 10];
            // At least 5,000 passes from bound to bound.
            let frames = 1_000_000;
            for number in 0..frames {
                let now = number * gap;
                let departure_ns = link.decide(now, 60, 0, false).departure_ns.unwrap();
                assert!(departure_ns >= last, "{gap}: {departure_ns} after {last}");
                last = departure_ns;
                let jittered = (departure_ns - now + jitter).checked_sub(50_000).unwrap();
                assert!(jittered <= jitter * 2, "{gap}: {jittered}");
                sum += jittered as f64 / jitter as f64;
                tenths[(jittered * 5 / jitter).min(9) as usize] += 1;
                changed += u64::from(jittered != last_jittered);
                last_jittered = jittered;
            }
            let mean = sum / frames as f64;
            assert!((0.95..1.05).contains(&mean), "{gap}: {mean}");
            for share in tenths.map(|count| count as f64 / frames as f64) {
                assert!((0.08..0.12).contains(&share), "{gap}: {tenths:?}");
            }
            assert!(changed > frames / 3, "{gap}: {changed}");
        }
    }

    /// One minute of a bad link in simulated time, the same on every run.
    #[test]
    fn fractions_are_as_configured() {
        let run = || {
            let mut link =
                link("delay=1ms,loss=1%,reorder=2%,duplicate=3%,corrupt=4%,limit=100000");
            let mut departed = 0u64;
            for number in 0..600_000u64 {
                let decision = link.decide(number * 100_000, 100, 10, false);
                departed += u64::from(decision.departure_ns.is_some())
                    + u64::from(decision.duplicate_ns.is_some());
                if let Some(bit) = decision.flipped_bit {
                    assert!(bit < 800);
                }
            }
            (link.counts(), departed)
        };
        let (counts, departed) = run();
        assert_eq!(run(), (counts, departed));
        // Five standard deviations of a binomial count.
        let assert_close = |count: u64, total: f64, share: f64| {
            let spread = 5.0 * (total * share * (1.0 - share)).sqrt();
            assert!(
                (count as f64 - total * share).abs() < spread,
                "{count} of {total}"
            );
        };
        assert_close(counts.lost, 600_000.0, 0.01);
        let passed = 600_000.0 - counts.lost as f64;
        assert_close(counts.reordered, passed, 0.02);
        assert_close(counts.duplicated, passed, 0.03);
        assert_close(counts.corrupted, passed, 0.04);
        assert_eq!(departed, 600_000 - counts.lost + counts.duplicated);
    }

    #[test]
    fn a_reordered_frame_overtakes() {
        let mut link = link("delay=1ms,reorder=50%");
        let departures: Vec<_> = (0..100)
            .map(|number| {
                link.decide(number * 1000, 60, 0, false)
                    .departure_ns
                    .unwrap()
            })
            .collect();
        assert!(departures.is_sorted_by(|a, b| a <= b) == (link.counts().reordered == 0));
        assert!(link.counts().reordered > 10);
        for (number, departures) in (0..).zip(departures) {
            assert!(departures == number * 1000 || departures == number * 1000 + 1_000_000);
        }
    }

    #[test]
    fn a_full_queue_drops() {
        let mut link = link("rate=1M,limit=3");
        assert!(link.decide(0, 60, 2, false).departure_ns.is_some());
        assert!(link.decide(0, 60, 3, false).departure_ns.is_none());
        assert!(link.decide(0, 60, 0, true).departure_ns.is_none());
        assert_eq!(link.counts().overflowed, 2);
    }

    proptest! {
        #[test]
        fn plans_read_as_they_print(
            rate in prop::option::of(1u64..400_000_000_000),
            delay in 0u64..10_000_000_000,
            jitter in 0u64..10_000_000,
            shares in prop::array::uniform4(0.0f64..1.0),
            limit in 1u32..1_000_000,
        ) {
            let plan = LinkPlan {
                rate_bps: rate,
                delay_ns: delay,
                jitter_ns: jitter,
                loss: shares[0],
                reorder: shares[1],
                duplicate: shares[2],
                corrupt: shares[3],
                limit,
            };
            prop_assert_eq!(LinkPlan::from_options(&plan.to_string()), Ok(plan));
        }

        /// With any parameters, frames never leave before the line has sent them, and frames that
        /// keep their order leave in order.
        #[test]
        fn nothing_travels_back_in_time(
            rate in prop::option::of(1_000u64..100_000_000_000),
            delay in 0u64..1_000_000,
            jitter in 0u64..1_000_000,
            gaps in prop::collection::vec((0u64..100_000, 14u16..1600), 1..100),
        ) {
            let plan = LinkPlan { rate_bps: rate, delay_ns: delay, jitter_ns: jitter, ..LinkPlan::default() };
            let mut link = LinkEmulation::new(plan, 3);
            let (mut now, mut last) = (0, 0);
            for (gap, bytes) in gaps {
                now += gap;
                let leaves = link.decide(now, bytes, 0, false).departure_ns.unwrap();
                let sending = rate.map_or(0, |rate| (u64::from(bytes).max(60) + 24) * 8_000_000_000 / rate);
                prop_assert!(leaves >= now + sending);
                prop_assert!(leaves >= last);
                last = leaves;
            }
        }
    }
}
