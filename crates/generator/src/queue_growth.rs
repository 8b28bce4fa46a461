//! Detection of a queue on the path that grows while a run sends.
//!
//! Frames in a queue are not lost, and a run that ends before the queue is full loses none, at any
//! rate. But the delay of the frames grows: if more frames enter than leave, it grows by the same
//! fraction of the time. A stall of this host or of the device also makes frames late, but as a
//! step and not as a slope. A stalled sender lets the queue run empty, and then sends the missed
//! frames.
//!
//! So the time of sending is divided into periods, and each period into slots. The minimum delay of
//! each slot is kept, and the median of these minima stands for the period: an event in less than
//! half of the slots has no effect.
//! A queue grows if this median increases from every period to the next. The smallest increase is
//! taken as the slope, because the larger ones may contain steps.

use linerate_sys::clock::Nanos;

/// Periods of equal length in the time of sending; the second half of them is evaluated.
const PERIODS: usize = 8;
/// Slots of each period.
const SLOTS_PER_PERIOD: usize = 8;

/// Detects a growing queue from delays in order of arrival.
#[derive(Clone, Debug)]
pub struct QueueGrowthDetector {
    slot_ns: Nanos,
    /// End of the present slot, in send time.
    slot_end_ns: Nanos,
    slot: usize,
    /// Minimum delay by slot; [`NO_FRAME`] if no frame was sent in it.
    min_delays_ns: [Nanos; PERIODS * SLOTS_PER_PERIOD],
}

const NO_FRAME: Nanos = Nanos::MAX;

/// Queue that was still growing when sending ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueGrowth {
    /// Growth of the delay per time: offered load divided by forwarding rate, minus 1.
    pub growth_ratio: f64,
    /// Delay at the end minus the minimum delay.
    pub wait_ns: Nanos,
}

impl QueueGrowth {
    /// Returns the fraction of the offered frames that remained in the queue.
    #[must_use]
    pub fn queued_fraction(&self) -> f64 {
        self.growth_ratio / (1.0 + self.growth_ratio)
    }
}

impl QueueGrowthDetector {
    /// Creates the detector for a run that sends for `duration_ns`.
    #[must_use]
    pub fn new(duration_ns: Nanos) -> Self {
        Self {
            slot_ns: (duration_ns / (PERIODS * SLOTS_PER_PERIOD) as u64).max(1),
            slot_end_ns: 0,
            slot: 0,
            min_delays_ns: [NO_FRAME; PERIODS * SLOTS_PER_PERIOD],
        }
    }

    /// Records a frame sent at `sent_ns` that was on the path for `delay_ns`.
    #[inline]
    pub fn record(&mut self, sent_ns: Nanos, delay_ns: Nanos) {
        if sent_ns >= self.slot_end_ns {
            self.advance(sent_ns);
        }
        let min_delay_ns = &mut self.min_delays_ns[self.slot];
        *min_delay_ns = (*min_delay_ns).min(delay_ns);
    }

    #[cold]
    fn advance(&mut self, sent_ns: Nanos) {
        if self.slot_end_ns == 0 {
            self.slot_end_ns = sent_ns.saturating_add(self.slot_ns);
            return;
        }
        while sent_ns >= self.slot_end_ns && self.slot + 1 < self.min_delays_ns.len() {
            self.slot += 1;
            self.slot_end_ns = self.slot_end_ns.saturating_add(self.slot_ns);
        }
        if self.slot + 1 == self.min_delays_ns.len() {
            self.slot_end_ns = Nanos::MAX;
        }
    }

    /// Returns the queue that was growing at the end; `None` if the delay did not grow steadily, or
    /// if too few frames arrived.
    #[must_use]
    pub fn queue_growth(&self) -> Option<QueueGrowth> {
        let mut period_delays = [0; PERIODS / 2];
        let periods = self
            .min_delays_ns
            .chunks(SLOTS_PER_PERIOD)
            .skip(PERIODS / 2);
        for (period_delay, slots) in period_delays.iter_mut().zip(periods) {
            *period_delay = median(slots)?;
        }
        let steps = period_delays
            .windows(2)
            .map(|pair| pair[1].checked_sub(pair[0]));
        let min_step = steps.min().flatten().filter(|&step| step > 0)?;
        let period_ns = self.slot_ns * SLOTS_PER_PERIOD as u64;
        Some(QueueGrowth {
            growth_ratio: min_step as f64 / period_ns as f64,
            wait_ns: period_delays.last()? - self.min_delays_ns.iter().min()?,
        })
    }
}

/// Returns the median over the slots in which frames were sent, or `None` without such slots.
fn median(slots: &[Nanos]) -> Option<Nanos> {
    let mut delays: Vec<Nanos> = slots.iter().copied().filter(|&at| at != NO_FRAME).collect();
    delays.sort_unstable();
    delays.get(delays.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends frames at `load` through a queue that is emptied at `rate`; the device is stalled
    /// within `stall`.
    fn growth_after(load: f64, rate: f64, seconds: f64, stall: (f64, f64)) -> Option<QueueGrowth> {
        let mut detector = QueueGrowthDetector::new((seconds * 1e9) as u64);
        let mut free_at = 0.0;
        for number in 0..(load * seconds) as u64 {
            let sent_at = 1.0 + number as f64 / load;
            let mut starts_at = sent_at.max(free_at);
            if (1.0 + stall.0..1.0 + stall.1).contains(&starts_at) {
                starts_at = 1.0 + stall.1;
            }
            free_at = starts_at + 1.0 / rate;
            detector.record((sent_at * 1e9) as u64, ((free_at - sent_at) * 1e9) as u64);
        }
        detector.queue_growth()
    }

    #[test]
    fn a_queue_that_fills_is_seen_with_its_rate() {
        for (load, rate) in [(2_820.0, 2_350.0), (2_362.0, 2_350.0), (50_000.0, 2_350.0)] {
            let growth = growth_after(load, rate, 2.0, (0.0, 0.0)).unwrap();
            let forwarded = load * (1.0 - growth.queued_fraction());
            assert!((forwarded / rate - 1.0).abs() < 0.001, "{load}: {growth:?}");
            let wait = 2.0 * (load / rate - 1.0) * 1e9;
            let measured_wait = growth.wait_ns as f64;
            assert!(
                (0.8..=1.01).contains(&(measured_wait / wait)),
                "{load}: {growth:?}"
            );
        }
    }

    #[test]
    fn a_queue_that_does_not_fill_is_none() {
        for load in [100.0, 2_000.0, 2_340.0] {
            assert_eq!(growth_after(load, 2_350.0, 2.0, (0.0, 0.0)), None, "{load}");
        }
        // A stall close to capacity delays frames until the end: a step, whenever it happens.
        for tenth in 0..19 {
            let from = f64::from(tenth) / 10.0;
            let growth = growth_after(2_345.0, 2_350.0, 2.0, (from, from + 0.03));
            assert_eq!(growth, None, "{from}");
        }
        // No frame, or too few, arrived.
        assert_eq!(QueueGrowthDetector::new(1_000).queue_growth(), None);
        assert_eq!(growth_after(3.0, 2.0, 1.0, (0.0, 0.0)), None);
    }

    #[test]
    fn a_run_longer_than_planned_ends_in_the_last_stretch() {
        let mut detector = QueueGrowthDetector::new(800);
        for sent in 1..2_000u64 {
            detector.record(sent, sent / 2);
        }
        let found = detector.queue_growth().unwrap();
        assert!((found.growth_ratio - 0.5).abs() < 0.02, "{found:?}");
        // Identical send times.
        let mut constant = QueueGrowthDetector::new(0);
        for _ in 0..100 {
            constant.record(7, 9);
        }
        assert_eq!(constant.queue_growth(), None);
    }
}
