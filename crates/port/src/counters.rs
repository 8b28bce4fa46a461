//! Counters of a queue: frames and bytes moved, frames dropped by cause.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Reason for dropping a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropCause {
    /// The ring was full: the other side takes frames too slowly.
    RingFull,
    /// No free frame or kernel buffer was available.
    NoBuffer,
    /// Longer than a slot of the frame memory, or than the port can send.
    TooLong,
    /// Not a valid frame: too short, truncated, or rejected by the kernel.
    Invalid,
}

impl DropCause {
    /// Causes in the order of [`QueueTotals::drops`].
    pub const ALL: [Self; 4] = [Self::RingFull, Self::NoBuffer, Self::TooLong, Self::Invalid];

    /// Name in records (kebab-case).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RingFull => "ring-full",
            Self::NoBuffer => "no-buffer",
            Self::TooLong => "too-long",
            Self::Invalid => "bad",
        }
    }
}

/// Counters of one queue, written by its owner and readable by any thread.
///
/// There is one writer, which stores plain totals: neither side needs a lock or an atomic addition,
/// and readers see new totals at once. Aligned so that no two queues share a cache line (128 B:
/// adjacent lines are fetched in pairs).
#[repr(align(128))]
#[derive(Debug, Default)]
pub struct QueueCounters {
    frames: AtomicU64,
    bytes: AtomicU64,
    drops: [AtomicU64; DropCause::ALL.len()],
}

/// Reading of [`QueueCounters`], or a sum or difference of readings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueTotals {
    /// Frames that the queue delivered (receive) or accepted for transmission (transmit).
    pub frames: u64,
    /// Bytes of these frames, without preamble, inter-frame gap and FCS.
    pub bytes: u64,
    /// Frames dropped, indexed as [`DropCause::ALL`].
    pub drops: [u64; DropCause::ALL.len()],
}

impl QueueTotals {
    /// Frames dropped for `cause`.
    #[must_use]
    pub const fn drops_by(&self, cause: DropCause) -> u64 {
        self.drops[cause as usize]
    }

    /// Frames dropped for any reason.
    #[must_use]
    pub fn total_drops(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// Difference from an earlier reading.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        let mut drops = self.drops;
        for (now, then) in drops.iter_mut().zip(earlier.drops) {
            *now = now.saturating_sub(then);
        }
        Self {
            frames: self.frames.saturating_sub(earlier.frames),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            drops,
        }
    }

    /// Sum of two readings.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let mut drops = self.drops;
        for (sum, more) in drops.iter_mut().zip(other.drops) {
            *sum += more;
        }
        Self {
            frames: self.frames + other.frames,
            bytes: self.bytes + other.bytes,
            drops,
        }
    }
}

/// Adds to a counter that only the calling thread writes: a load and a store, cheaper than an atomic
/// addition.
#[inline]
pub fn add_single_writer(counter: &AtomicU64, increment: u64) {
    counter.store(counter.load(Relaxed) + increment, Relaxed);
}

impl QueueCounters {
    /// Counts frames received or sent. Only the queue's owner may call this.
    #[inline]
    pub fn add_frames(&self, frames: usize, bytes: u64) {
        add_single_writer(&self.frames, frames as u64);
        add_single_writer(&self.bytes, bytes);
    }

    /// Counts dropped frames. Only the queue's owner may call this.
    #[inline]
    pub fn add_drops(&self, cause: DropCause, frames: u64) {
        add_single_writer(&self.drops[cause as usize], frames);
    }

    /// Current totals; they are not read atomically, so one may be a burst ahead of another.
    #[must_use]
    pub fn read(&self) -> QueueTotals {
        let mut drops = [0; DropCause::ALL.len()];
        for (into, from) in drops.iter_mut().zip(&self.drops) {
            *into = from.load(Relaxed);
        }
        QueueTotals {
            frames: self.frames.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            drops,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_counted_separately() {
        let counters = QueueCounters::default();
        counters.add_frames(32, 2048);
        let before = counters.read();
        for (count, cause) in (1..).zip(DropCause::ALL) {
            counters.add_drops(cause, count);
        }
        counters.add_frames(1, 60);
        let since = counters.read().since(before);
        assert_eq!((since.frames, since.bytes), (1, 60));
        assert_eq!(since.drops_by(DropCause::RingFull), 1);
        assert_eq!(since.drops_by(DropCause::Invalid), 4);
        assert_eq!(since.total_drops(), 10);
        assert_eq!(before.plus(since), counters.read());
    }
}
