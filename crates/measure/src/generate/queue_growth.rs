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

use linerate_host::sys::clock::Nanos;

/// Periods of equal length in the time of sending; the second half of them is evaluated.
const STRETCHES: usize = 8;
/// Slots of each period.
const MOMENTS: usize = 8;

/// Detects a growing queue from delays in order of arrival.
#[derive(Clone, Debug)]
pub struct Course {
    moment_ns: Nanos,
    /// End of the present slot, in send time.
    end_ns: Nanos,
    at: usize,
    /// Minimum delay by slot; [`NONE`] if no frame was sent in it.
    least: [Nanos; STRETCHES * MOMENTS],
}

const NONE: Nanos = Nanos::MAX;

/// Queue that was still growing when sending ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Filling {
    /// Growth of the delay per time: offered load divided by forwarding rate, minus 1.
    pub growth: f64,
    /// Delay at the end minus the minimum delay.
    pub wait_ns: Nanos,
}

impl Filling {
    /// Returns the fraction of the offered frames that remained in the queue.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.growth / (1.0 + self.growth)
    }
}

impl Course {
    /// Creates the detector for a run that sends for `duration_ns`.
    #[must_use]
    pub fn new(duration_ns: Nanos) -> Self {
        Self {
            moment_ns: (duration_ns / (STRETCHES * MOMENTS) as u64).max(1),
            end_ns: 0,
            at: 0,
            least: [NONE; STRETCHES * MOMENTS],
        }
    }

    /// Records a frame sent at `sent_ns` that was on the path for `delay_ns`.
    #[inline]
    pub fn take(&mut self, sent_ns: Nanos, delay_ns: Nanos) {
        if sent_ns >= self.end_ns {
            self.advance(sent_ns);
        }
        let least = &mut self.least[self.at];
        *least = (*least).min(delay_ns);
    }

    #[cold]
    fn advance(&mut self, sent_ns: Nanos) {
        if self.end_ns == 0 {
            self.end_ns = sent_ns.saturating_add(self.moment_ns);
            return;
        }
        while sent_ns >= self.end_ns && self.at + 1 < self.least.len() {
            self.at += 1;
            self.end_ns = self.end_ns.saturating_add(self.moment_ns);
        }
        if self.at + 1 == self.least.len() {
            self.end_ns = Nanos::MAX;
        }
    }

    /// Returns the queue that was growing at the end; `None` if the delay did not grow steadily, or
    /// if too few frames arrived.
    #[must_use]
    pub fn filling(&self) -> Option<Filling> {
        let mut late = [0; STRETCHES / 2];
        let stretches = self.least.chunks(MOMENTS).skip(STRETCHES / 2);
        for (to, moments) in late.iter_mut().zip(stretches) {
            *to = median(moments)?;
        }
        let steps = late.windows(2).map(|two| two[1].checked_sub(two[0]));
        let least = steps.min().flatten().filter(|&step| step > 0)?;
        let stretch_ns = self.moment_ns * MOMENTS as u64;
        Some(Filling {
            growth: least as f64 / stretch_ns as f64,
            wait_ns: late.last()? - self.least.iter().min()?,
        })
    }
}

/// Returns the median over the slots in which frames were sent, or `None` without such slots.
fn median(moments: &[Nanos]) -> Option<Nanos> {
    let mut known: Vec<Nanos> = moments.iter().copied().filter(|&at| at != NONE).collect();
    known.sort_unstable();
    known.get(known.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends frames at `load` through a queue that is emptied at `rate`; the device is stalled
    /// within `stall`.
    fn course(load: f64, rate: f64, seconds: f64, stall: (f64, f64)) -> Option<Filling> {
        let mut course = Course::new((seconds * 1e9) as u64);
        let mut free = 0.0;
        for number in 0..(load * seconds) as u64 {
            let sent = 1.0 + number as f64 / load;
            let mut begins = sent.max(free);
            if (1.0 + stall.0..1.0 + stall.1).contains(&begins) {
                begins = 1.0 + stall.1;
            }
            free = begins + 1.0 / rate;
            course.take((sent * 1e9) as u64, ((free - sent) * 1e9) as u64);
        }
        course.filling()
    }

    #[test]
    fn a_queue_that_fills_is_seen_with_its_rate() {
        for (load, rate) in [(2_820.0, 2_350.0), (2_362.0, 2_350.0), (50_000.0, 2_350.0)] {
            let found = course(load, rate, 2.0, (0.0, 0.0)).unwrap();
            let left = load * (1.0 - found.share());
            assert!((left / rate - 1.0).abs() < 0.001, "{load}: {found:?}");
            let wait = 2.0 * (load / rate - 1.0) * 1e9;
            let seen = found.wait_ns as f64;
            assert!((0.8..=1.01).contains(&(seen / wait)), "{load}: {found:?}");
        }
    }

    #[test]
    fn a_queue_that_does_not_fill_is_none() {
        for load in [100.0, 2_000.0, 2_340.0] {
            assert_eq!(course(load, 2_350.0, 2.0, (0.0, 0.0)), None, "{load}");
        }
        // A stall close to capacity delays frames until the end: a step, whenever it happens.
        for tenth in 0..19 {
            let from = f64::from(tenth) / 10.0;
            let found = course(2_345.0, 2_350.0, 2.0, (from, from + 0.03));
            assert_eq!(found, None, "{from}");
        }
        // No frame, or too few, arrived.
        assert_eq!(Course::new(1_000).filling(), None);
        assert_eq!(course(3.0, 2.0, 1.0, (0.0, 0.0)), None);
    }

    #[test]
    fn a_run_longer_than_was_said_ends_in_the_last_stretch() {
        let mut course = Course::new(800);
        for sent in 1..2_000u64 {
            course.take(sent, sent / 2);
        }
        let found = course.filling().unwrap();
        assert!((found.growth - 0.5).abs() < 0.02, "{found:?}");
        // Identical send times.
        let mut still = Course::new(0);
        for _ in 0..100 {
            still.take(7, 9);
        }
        assert_eq!(still.filling(), None);
    }
}
