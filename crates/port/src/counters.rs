//! What a queue has moved and lost, and why.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Why a frame was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The ring had no room: the other side takes frames too slowly.
    RingFull,
    /// No free frame or kernel buffer to put it into.
    NoBuffer,
    /// Longer than a slot of the memory, or than the port sends.
    TooLong,
    /// Not a frame: too short, cut off, or refused by the kernel.
    Bad,
}

impl Cause {
    /// Every cause, in the order of [`QueueTotals::drops`].
    pub const ALL: [Self; 4] = [Self::RingFull, Self::NoBuffer, Self::TooLong, Self::Bad];

    /// The name in records (kebab-case).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RingFull => "ring-full",
            Self::NoBuffer => "no-buffer",
            Self::TooLong => "too-long",
            Self::Bad => "bad",
        }
    }
}

/// Counters of one queue, written by its owner and read by whoever reports.
///
/// One writer stores plain totals: neither side takes a lock or an atomic addition, and what was counted
/// is seen at once. Aligned so that no two queues share a line (128 B: adjacent lines come in pairs).
#[repr(align(128))]
#[derive(Debug, Default)]
pub struct QueueCounters {
    frames: AtomicU64,
    bytes: AtomicU64,
    drops: [AtomicU64; Cause::ALL.len()],
}

/// A reading of [`QueueCounters`], or a sum or difference of readings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueTotals {
    /// Frames that the queue gave to its user (receive) or took to send (transmit).
    pub frames: u64,
    /// Their bytes, without preamble, gap and check sequence.
    pub bytes: u64,
    /// Frames dropped, by [`Cause::ALL`].
    pub drops: [u64; Cause::ALL.len()],
}

impl QueueTotals {
    /// Frames dropped for this reason.
    #[must_use]
    pub const fn dropped(&self, cause: Cause) -> u64 {
        self.drops[cause as usize]
    }

    /// Frames dropped for any reason.
    #[must_use]
    pub fn all_dropped(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// What was added since an earlier reading.
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

    /// Both together.
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

/// Adds to a counter that only the calling thread writes.
#[inline]
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Relaxed) + more, Relaxed);
}

impl QueueCounters {
    /// Counts frames moved. Only the queue's owner may call it.
    #[inline]
    pub fn moved(&self, frames: usize, bytes: u64) {
        add(&self.frames, frames as u64);
        add(&self.bytes, bytes);
    }

    /// Counts frames dropped. Only the queue's owner may call it.
    #[inline]
    pub fn dropped(&self, cause: Cause, frames: u64) {
        add(&self.drops[cause as usize], frames);
    }

    /// The totals so far; one of them may be a burst ahead of another.
    #[must_use]
    pub fn read(&self) -> QueueTotals {
        let mut drops = [0; Cause::ALL.len()];
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
    fn causes_are_told_apart() {
        let counters = QueueCounters::default();
        counters.moved(32, 2048);
        let before = counters.read();
        for (count, cause) in (1..).zip(Cause::ALL) {
            counters.dropped(cause, count);
        }
        counters.moved(1, 60);
        let since = counters.read().since(before);
        assert_eq!((since.frames, since.bytes), (1, 60));
        assert_eq!(since.dropped(Cause::RingFull), 1);
        assert_eq!(since.dropped(Cause::Bad), 4);
        assert_eq!(since.all_dropped(), 10);
        assert_eq!(before.plus(since), counters.read());
    }
}
