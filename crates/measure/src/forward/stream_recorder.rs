//! Optional figures of a stream: burst sizes, cycles of polls that returned frames, and the
//! residence time of frames in the forwarder.
//!
//! The forwarding thread writes with plain stores while other threads read. A reader may see one
//! figure a poll ahead of another.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use linerate_metric::forward::{ForwardStream, Residence};
use linerate_port::BURST_FRAMES;

use super::settings::Settings;

/// Adds to a counter that only the calling thread writes.
#[inline]
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Relaxed) + more, Relaxed);
}

/// Recorder of a stream. Aligned like the counters of queues, so that no two share a cache line.
#[repr(align(128))]
#[derive(Debug)]
pub(super) struct Recorded {
    counts_bursts: bool,
    counts_cycles: bool,
    /// Costs two more clock reads per poll.
    times_frames: bool,
    /// Number of polls by the number of frames returned, 0 included.
    bursts: [AtomicU64; BURST_FRAMES + 1],
    cycles: AtomicU64,
    handled: AtomicU64,
    times: Times,
    /// Times since the last clear; written only after a clear.
    recent: Times,
    /// State of the last clear: [`NEVER`], [`ASKED`] or [`BEGUN`].
    cleared: AtomicU8,
}

const NEVER: u8 = 0;
const ASKED: u8 = 1;
const BEGUN: u8 = 2;

/// Values of the counters at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    bursts: [u64; BURST_FRAMES + 1],
    cycles: u64,
    handled: u64,
}

impl Recorded {
    /// Creates a recorder for the figures that the settings require; `None` if they require none.
    pub(super) fn wanted(settings: &Settings) -> Option<Self> {
        let recorded = Self {
            counts_bursts: settings.record_bursts,
            counts_cycles: settings.record_cycles,
            times_frames: settings.record_residence,
            bursts: [const { AtomicU64::new(0) }; BURST_FRAMES + 1],
            cycles: AtomicU64::new(0),
            handled: AtomicU64::new(0),
            times: Times::default(),
            recent: Times::default(),
            cleared: AtomicU8::new(NEVER),
        };
        let any = recorded.counts_bursts || recorded.counts_cycles || recorded.times_frames;
        any.then_some(recorded)
    }

    /// Returns whether residence times are recorded.
    #[inline]
    pub(super) fn times_frames(&self) -> bool {
        self.times_frames
    }

    /// Records the residence time of the frames of a poll.
    #[inline]
    pub(super) fn stayed(&self, ns: u64) {
        self.times.take(ns);
        if self.cleared.load(Relaxed) != NEVER {
            self.stayed_since(ns);
        }
    }

    #[inline(never)]
    fn stayed_since(&self, ns: u64) {
        // The writing thread resets: otherwise two threads would write the same counters.
        if self.cleared.swap(BEGUN, Relaxed) == ASKED {
            self.recent.reset();
        }
        self.recent.take(ns);
    }

    /// Records the frames received and handled by a poll, and its cycles.
    #[inline]
    pub(super) fn polled(&self, received: u64, handled: usize, cycles: u64) {
        let size = usize::try_from(received).map_or(BURST_FRAMES, |size| size.min(BURST_FRAMES));
        add(&self.bursts[size], 1);
        if handled > 0 {
            add(&self.cycles, cycles);
            add(&self.handled, handled as u64);
        }
    }

    /// Returns the present values.
    pub(super) fn sample(&self) -> Sample {
        Sample {
            bursts: self.bursts.each_ref().map(|count| count.load(Relaxed)),
            cycles: self.cycles.load(Relaxed),
            handled: self.handled.load(Relaxed),
        }
    }

    /// Writes the figures since the start into the figures of a stream.
    pub(super) fn all_into(&self, stream: &mut ForwardStream) {
        self.write(&self.sample(), stream);
        if self.times_frames {
            stream.residence = self.times.found();
        }
    }

    /// Writes the figures since an earlier sample.
    pub(super) fn later_into(&self, earlier: &Sample, stream: &mut ForwardStream) {
        self.write(&self.sample().since(earlier), stream);
        if self.times_frames {
            // Until a frame arrives, the times are not reset.
            let found = self.recent.found();
            stream.residence = found.filter(|_| self.cleared.load(Relaxed) == BEGUN);
        }
    }

    /// Starts separate times from now on, because minimum and maximum cannot be split later.
    pub(super) fn clear(&self) {
        self.cleared.store(ASKED, Relaxed);
    }

    fn write(&self, sample: &Sample, stream: &mut ForwardStream) {
        if self.counts_bursts {
            stream.bursts = sample.bursts[1..].to_vec();
        }
        if self.counts_cycles && sample.handled > 0 {
            stream.cycles_per_packet = Some(sample.cycles as f64 / sample.handled as f64);
        }
    }
}

impl Sample {
    fn since(mut self, earlier: &Self) -> Self {
        for (now, then) in self.bursts.iter_mut().zip(earlier.bursts) {
            *now = now.saturating_sub(then);
        }
        Self {
            cycles: self.cycles.saturating_sub(earlier.cycles),
            handled: self.handled.saturating_sub(earlier.handled),
            ..self
        }
    }
}

/// Residence times of polls that returned frames: from before the poll until the transmit queue has
/// the frames.
#[derive(Debug, Default)]
struct Times {
    polls: AtomicU64,
    sum_ns: AtomicU64,
    min_ns: AtomicU64,
    max_ns: AtomicU64,
    last_ns: AtomicU64,
    /// Jitter times 16, as computed in RFC 3550 (appendix A.8).
    jitter_16: AtomicU64,
}

impl Times {
    /// Records the time of a poll.
    fn take(&self, ns: u64) {
        let min = match self.polls.load(Relaxed) {
            0 => ns,
            _ => {
                let jitter = self.jitter_16.load(Relaxed);
                let smoothed = (jitter + 8) >> 4;
                let apart = self.last_ns.load(Relaxed).abs_diff(ns);
                (self.jitter_16).store(jitter.saturating_add(apart) - smoothed, Relaxed);
                self.min_ns.load(Relaxed).min(ns)
            }
        };
        self.min_ns.store(min, Relaxed);
        add(&self.sum_ns, ns);
        let max = self.max_ns.load(Relaxed).max(ns);
        self.max_ns.store(max, Relaxed);
        self.last_ns.store(ns, Relaxed);
        add(&self.polls, 1);
    }

    /// Resets all counters.
    fn reset(&self) {
        let all = [
            &self.polls,
            &self.sum_ns,
            &self.min_ns,
            &self.max_ns,
            &self.last_ns,
            &self.jitter_16,
        ];
        all.into_iter().for_each(|count| count.store(0, Relaxed));
    }

    /// Returns the times in the form of the record; `None` if no poll returned a frame.
    fn found(&self) -> Option<Residence> {
        let polls = self.polls.load(Relaxed);
        Some(Residence {
            polls,
            min_ns: self.min_ns.load(Relaxed),
            mean_ns: self.sum_ns.load(Relaxed).checked_div(polls)?,
            max_ns: self.max_ns.load(Relaxed),
            jitter_ns: self.jitter_16.load(Relaxed) >> 4,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_summed_up() {
        let times = Times::default();
        assert_eq!(times.found(), None);
        for ns in [100, 300, 200] {
            times.take(ns);
        }
        let found = times.found().unwrap();
        assert_eq!(
            (found.polls, found.min_ns, found.mean_ns, found.max_ns),
            (3, 100, 200, 300)
        );
        // A constant difference of 200: the jitter converges to it.
        let times = Times::default();
        (0..1000).for_each(|at| times.take(100 + at % 2 * 200));
        assert!(times.found().unwrap().jitter_ns.abs_diff(200) <= 1);
        // No difference: no jitter.
        let times = Times::default();
        (0..9).for_each(|_| times.take(7));
        assert_eq!(times.found().unwrap().jitter_ns, 0);
    }

    /// Minimum and maximum before a `clear` belong to the figures of the run only.
    #[test]
    fn times_begin_anew_with_a_clear() {
        let recorded = Recorded::wanted(&Settings {
            record_residence: true,
            ..Settings::default()
        })
        .unwrap();
        let later = |recorded: &Recorded, earlier: &Sample| {
            let mut stream = ForwardStream::default();
            recorded.later_into(earlier, &mut stream);
            stream.residence
        };
        [10, 9000].into_iter().for_each(|ns| recorded.stayed(ns));
        recorded.clear();
        let earlier = recorded.sample();
        assert_eq!(later(&recorded, &earlier), None);
        [200, 100].into_iter().for_each(|ns| recorded.stayed(ns));
        let found = later(&recorded, &earlier).unwrap();
        assert_eq!((found.polls, found.min_ns, found.max_ns), (2, 100, 200));
        let mut all = ForwardStream::default();
        recorded.all_into(&mut all);
        let all = all.residence.unwrap();
        assert_eq!((all.polls, all.min_ns, all.max_ns), (4, 10, 9000));
    }

    #[test]
    fn what_is_asked_for_is_recorded() {
        assert!(Recorded::wanted(&Settings::default()).is_none());
        let wanted = |bursts, cycles| {
            Recorded::wanted(&Settings {
                record_bursts: bursts,
                record_cycles: cycles,
                ..Settings::default()
            })
            .unwrap()
        };
        for (bursts, cycles) in [(true, false), (false, true), (true, true)] {
            let recorded = wanted(bursts, cycles);
            for received in [0, 32, 32, 1] {
                recorded.polled(received, received as usize, 650);
            }
            let (mut all, mut later) = (ForwardStream::default(), ForwardStream::default());
            recorded.all_into(&mut all);
            let earlier = recorded.sample();
            recorded.polled(32, 32, 320);
            recorded.later_into(&earlier, &mut later);
            let counted = |stream: &ForwardStream| stream.bursts.iter().sum::<u64>();
            let want = if bursts { (3, 1) } else { (0, 0) };
            assert_eq!((counted(&all), counted(&later)), want);
            // Polls without frames add no cycles.
            let want = (cycles.then_some(30.0), cycles.then_some(10.0));
            assert_eq!((all.cycles_per_packet, later.cycles_per_packet), want);
            assert_eq!(all.residence, None);
        }
    }
}
