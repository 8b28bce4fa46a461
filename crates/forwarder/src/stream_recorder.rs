//! Optional figures of a stream: cycles of polls that returned frames, and the residence time of
//! frames in the forwarder.
//!
//! The forwarding thread writes with plain stores while other threads read. A reader may see one
//! figure a poll ahead of another.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use linerate_port::add_single_writer;
use linerate_record::forward::{ForwardStream, ResidenceTime};

use super::settings::ForwardSettings;

/// Recorder of a stream. Aligned like the counters of queues, so that no two share a cache line.
#[repr(align(128))]
#[derive(Debug)]
pub(super) struct StreamRecorder {
    counts_cycles: bool,
    /// Costs two more clock reads per poll.
    times_frames: bool,
    cycles: AtomicU64,
    handled: AtomicU64,
    times: ResidenceTimes,
    /// Times since the last clear; written only after a clear.
    times_since_clear: ResidenceTimes,
    /// State of the last clear: [`NOT_CLEARED`], [`CLEAR_REQUESTED`] or [`CLEARED`].
    clear_state: AtomicU8,
}

const NOT_CLEARED: u8 = 0;
const CLEAR_REQUESTED: u8 = 1;
const CLEARED: u8 = 2;

/// Values of the counters at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecorderSample {
    cycles: u64,
    handled: u64,
}

impl StreamRecorder {
    /// Creates a recorder for the figures that the settings require; `None` if they require none.
    pub(super) fn for_settings(settings: &ForwardSettings) -> Option<Self> {
        let recorder = Self {
            counts_cycles: settings.record_cycles,
            times_frames: settings.record_residence,
            cycles: AtomicU64::new(0),
            handled: AtomicU64::new(0),
            times: ResidenceTimes::default(),
            times_since_clear: ResidenceTimes::default(),
            clear_state: AtomicU8::new(NOT_CLEARED),
        };
        (recorder.counts_cycles || recorder.times_frames).then_some(recorder)
    }

    /// Returns whether cycles are recorded.
    #[inline]
    pub(super) fn counts_cycles(&self) -> bool {
        self.counts_cycles
    }

    /// Returns whether residence times are recorded.
    #[inline]
    pub(super) fn times_frames(&self) -> bool {
        self.times_frames
    }

    /// Records the residence time of the frames of a poll.
    #[inline]
    pub(super) fn record_residence(&self, ns: u64) {
        self.times.record(ns);
        if self.clear_state.load(Relaxed) != NOT_CLEARED {
            self.record_since_clear(ns);
        }
    }

    #[inline(never)]
    fn record_since_clear(&self, ns: u64) {
        // The writing thread resets: otherwise two threads would write the same counters.
        if self.clear_state.swap(CLEARED, Relaxed) == CLEAR_REQUESTED {
            self.times_since_clear.reset();
        }
        self.times_since_clear.record(ns);
    }

    /// Records the frames handled by a poll, and its cycles.
    #[inline]
    pub(super) fn record_cycles(&self, handled: usize, cycles: u64) {
        if handled > 0 {
            add_single_writer(&self.cycles, cycles);
            add_single_writer(&self.handled, handled as u64);
        }
    }

    /// Returns the present values.
    pub(super) fn sample(&self) -> RecorderSample {
        RecorderSample {
            cycles: self.cycles.load(Relaxed),
            handled: self.handled.load(Relaxed),
        }
    }

    /// Writes the figures since the start into the figures of a stream.
    pub(super) fn write_totals(&self, stream: &mut ForwardStream) {
        self.write_counts(&self.sample(), stream);
        if self.times_frames {
            stream.residence = self.times.residence();
        }
    }

    /// Writes the figures since an earlier sample.
    pub(super) fn write_since(&self, earlier: &RecorderSample, stream: &mut ForwardStream) {
        self.write_counts(&self.sample().since(earlier), stream);
        if self.times_frames {
            // Until a frame arrives, the times are not reset.
            let residence = self.times_since_clear.residence();
            stream.residence = residence.filter(|_| self.clear_state.load(Relaxed) == CLEARED);
        }
    }

    /// Starts separate times from now on, because minimum and maximum cannot be split later.
    pub(super) fn clear(&self) {
        self.clear_state.store(CLEAR_REQUESTED, Relaxed);
    }

    fn write_counts(&self, sample: &RecorderSample, stream: &mut ForwardStream) {
        if self.counts_cycles && sample.handled > 0 {
            stream.cycles_per_packet = Some(sample.cycles as f64 / sample.handled as f64);
        }
    }
}

impl RecorderSample {
    fn since(self, earlier: &Self) -> Self {
        Self {
            cycles: self.cycles.saturating_sub(earlier.cycles),
            handled: self.handled.saturating_sub(earlier.handled),
        }
    }
}

/// Residence times of polls that returned frames: from before the poll until the transmit queue has
/// the frames.
#[derive(Debug, Default)]
struct ResidenceTimes {
    polls: AtomicU64,
    sum_ns: AtomicU64,
    min_ns: AtomicU64,
    max_ns: AtomicU64,
    last_ns: AtomicU64,
    /// Jitter times 16, as computed in RFC 3550 (appendix A.8).
    jitter_16: AtomicU64,
}

impl ResidenceTimes {
    /// Records the time of a poll.
    fn record(&self, ns: u64) {
        let min = match self.polls.load(Relaxed) {
            0 => ns,
            _ => {
                let jitter = self.jitter_16.load(Relaxed);
                let smoothed = (jitter + 8) >> 4;
                let difference = self.last_ns.load(Relaxed).abs_diff(ns);
                (self.jitter_16).store(jitter.saturating_add(difference) - smoothed, Relaxed);
                self.min_ns.load(Relaxed).min(ns)
            }
        };
        self.min_ns.store(min, Relaxed);
        add_single_writer(&self.sum_ns, ns);
        let max = self.max_ns.load(Relaxed).max(ns);
        self.max_ns.store(max, Relaxed);
        self.last_ns.store(ns, Relaxed);
        add_single_writer(&self.polls, 1);
    }

    /// Resets all counters.
    fn reset(&self) {
        let counters = [
            &self.polls,
            &self.sum_ns,
            &self.min_ns,
            &self.max_ns,
            &self.last_ns,
            &self.jitter_16,
        ];
        counters
            .into_iter()
            .for_each(|count| count.store(0, Relaxed));
    }

    /// Returns the times in the form of the record; `None` if no poll returned a frame.
    fn residence(&self) -> Option<ResidenceTime> {
        let polls = self.polls.load(Relaxed);
        Some(ResidenceTime {
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
    fn residence_times_are_summed() {
        let times = ResidenceTimes::default();
        assert_eq!(times.residence(), None);
        for ns in [100, 300, 200] {
            times.record(ns);
        }
        let residence = times.residence().unwrap();
        assert_eq!(
            (
                residence.polls,
                residence.min_ns,
                residence.mean_ns,
                residence.max_ns
            ),
            (3, 100, 200, 300)
        );
        // A constant difference of 200: the jitter converges to it.
        let times = ResidenceTimes::default();
        (0..1000).for_each(|at| times.record(100 + at % 2 * 200));
        assert!(times.residence().unwrap().jitter_ns.abs_diff(200) <= 1);
        // No difference: no jitter.
        let times = ResidenceTimes::default();
        (0..9).for_each(|_| times.record(7));
        assert_eq!(times.residence().unwrap().jitter_ns, 0);
    }

    /// Minimum and maximum before a `clear` belong to the figures of the run only.
    #[test]
    fn clear_restarts_residence_times() {
        let recorder = StreamRecorder::for_settings(&ForwardSettings {
            record_residence: true,
            ..ForwardSettings::default()
        })
        .unwrap();
        let residence_since = |recorder: &StreamRecorder, earlier: &RecorderSample| {
            let mut stream = ForwardStream::default();
            recorder.write_since(earlier, &mut stream);
            stream.residence
        };
        [10, 9000]
            .into_iter()
            .for_each(|ns| recorder.record_residence(ns));
        recorder.clear();
        let earlier = recorder.sample();
        assert_eq!(residence_since(&recorder, &earlier), None);
        [200, 100]
            .into_iter()
            .for_each(|ns| recorder.record_residence(ns));
        let residence = residence_since(&recorder, &earlier).unwrap();
        assert_eq!(
            (residence.polls, residence.min_ns, residence.max_ns),
            (2, 100, 200)
        );
        let mut totals = ForwardStream::default();
        recorder.write_totals(&mut totals);
        let totals = totals.residence.unwrap();
        assert_eq!((totals.polls, totals.min_ns, totals.max_ns), (4, 10, 9000));
    }

    #[test]
    fn requested_figures_are_recorded() {
        assert!(StreamRecorder::for_settings(&ForwardSettings::default()).is_none());
        let recorder = StreamRecorder::for_settings(&ForwardSettings {
            record_cycles: true,
            ..ForwardSettings::default()
        })
        .unwrap();
        for handled in [0, 32, 32, 1] {
            recorder.record_cycles(handled, 650);
        }
        let (mut totals, mut since_sample) = (ForwardStream::default(), ForwardStream::default());
        recorder.write_totals(&mut totals);
        let earlier = recorder.sample();
        recorder.record_cycles(32, 320);
        recorder.write_since(&earlier, &mut since_sample);
        // Polls without frames add no cycles.
        assert_eq!(
            (totals.cycles_per_packet, since_sample.cycles_per_packet),
            (Some(30.0), Some(10.0))
        );
        assert_eq!(totals.residence, None);
    }
}
