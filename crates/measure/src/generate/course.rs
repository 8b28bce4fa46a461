//! How the delay of frames goes on while a run sends: whether a queue on the way fills.
//!
//! Frames that wait in a queue are not lost, and a run that ends before the queue is full loses none, at
//! whatever rate. But each frame waits for longer than the one before it: where more comes than leaves, the
//! delay grows by the same share of the time. A stall, of this machine or of the device, makes frames late as
//! well, but once: it is a step and no slope. A sender that stands still lets the queue run empty meanwhile, and
//! then makes up for it. So the time of sending is cut into stretches, and these into moments; the shortest
//! delay of each moment is kept, and the median of those is the stretch's: what happens in less than half of its
//! moments leaves it alone. A queue fills where that grows from each stretch to the next, and as fast as the least
//! of these steps says: whatever else there is in the others is no slope.

use linerate_host::sys::clock::Nanos;

/// Stretches of equal length that the time of sending is cut into; the last half of them is looked at.
const STRETCHES: usize = 8;
/// Moments of each.
const MOMENTS: usize = 8;

/// Takes delays in the order of arrival.
#[derive(Clone, Debug)]
pub struct Course {
    moment_ns: Nanos,
    /// When the present moment is over, by the time at which frames left.
    end_ns: Nanos,
    at: usize,
    /// The shortest delay by moment; [`NONE`] where no frame left.
    least: [Nanos; STRETCHES * MOMENTS],
}

const NONE: Nanos = Nanos::MAX;

/// A queue that was still filling when sending ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Filling {
    /// What the delay grew by, over the time in which it did: offered over forwarded rate, less one.
    pub growth: f64,
    /// How much longer frames took at the end than the fastest ones.
    pub wait_ns: Nanos,
}

impl Filling {
    /// Share of the frames offered that did not leave the queue meanwhile.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.growth / (1.0 + self.growth)
    }
}

impl Course {
    /// Of a run that sends for so long.
    #[must_use]
    pub fn new(duration_ns: Nanos) -> Self {
        Self {
            moment_ns: (duration_ns / (STRETCHES * MOMENTS) as u64).max(1),
            end_ns: 0,
            at: 0,
            least: [NONE; STRETCHES * MOMENTS],
        }
    }

    /// Takes a frame that left at `sent_ns` and was so long on its way.
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

    /// The queue that was filling at the end; none where delays did not grow steadily, or too few frames
    /// arrived to tell.
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

/// The median of the moments in which frames left; none where there was no such moment.
fn median(moments: &[Nanos]) -> Option<Nanos> {
    let mut known: Vec<Nanos> = moments.iter().copied().filter(|&at| at != NONE).collect();
    known.sort_unstable();
    known.get(known.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames at `load` through a queue that is emptied at `rate`, as seen after `base_ns`; the device stands
    /// still within `stall`.
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
        // A stall near the capacity leaves frames late to the end: a step, whenever it comes.
        for tenth in 0..19 {
            let from = f64::from(tenth) / 10.0;
            let found = course(2_345.0, 2_350.0, 2.0, (from, from + 0.03));
            assert_eq!(found, None, "{from}");
        }
        // Nothing, or too little, arrived.
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
        // As when all have the same time.
        let mut still = Course::new(0);
        for _ in 0..100 {
            still.take(7, 9);
        }
        assert_eq!(still.filling(), None);
    }
}
