//! Flow counters that a worker thread writes and the coordinator reads while payload moves.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Payload counters of one flow at this end.
///
/// The only writer stores totals with plain stores, so neither side takes a lock or needs an atomic
/// addition. A reader may see one counter a call ahead of another. Aligned so that no two flows
/// share a cache line (128 B: adjacent lines are fetched in pairs).
#[repr(align(128))]
#[derive(Debug, Default)]
pub struct Meter {
    bytes: AtomicU64,
    packets: AtomicU64,
    calls: AtomicU64,
    missing: AtomicU64,
    repeated: AtomicU64,
}

/// Reading of a [`Meter`], or a sum of readings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Payload bytes.
    pub bytes: u64,
    /// Datagrams, or round trips.
    pub packets: u64,
    /// Calls that moved payload.
    pub calls: u64,
    /// Missing datagrams, datagrams rejected by a full socket buffer, and responses that were late
    /// or missing.
    pub missing: u64,
    /// Duplicate datagrams; included in `packets`.
    pub repeated: u64,
}

impl Totals {
    /// Returns the increase since an earlier reading.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(earlier.bytes),
            packets: self.packets.saturating_sub(earlier.packets),
            calls: self.calls.saturating_sub(earlier.calls),
            // A late datagram counts as missing first and arrives later: the count may fall.
            missing: self.missing.saturating_sub(earlier.missing),
            repeated: self.repeated.saturating_sub(earlier.repeated),
        }
    }
}

/// Saturates: the missing count is derived from a peer's sequence numbers and has no bound.
impl std::ops::AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.packets = self.packets.saturating_add(other.packets);
        self.calls = self.calls.saturating_add(other.calls);
        self.missing = self.missing.saturating_add(other.missing);
        self.repeated = self.repeated.saturating_add(other.repeated);
    }
}

impl Meter {
    /// Publishes the writer's totals.
    #[inline]
    pub fn publish(&self, totals: &Totals) {
        self.bytes.store(totals.bytes, Relaxed);
        self.packets.store(totals.packets, Relaxed);
        self.calls.store(totals.calls, Relaxed);
        self.missing.store(totals.missing, Relaxed);
        self.repeated.store(totals.repeated, Relaxed);
    }

    /// Reads the counters from another thread.
    #[must_use]
    pub fn read(&self) -> Totals {
        Totals {
            bytes: self.bytes.load(Relaxed),
            packets: self.packets.load(Relaxed),
            calls: self.calls.load(Relaxed),
            missing: self.missing.load(Relaxed),
            repeated: self.repeated.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_peer_numbers_out_of_bounds_has_a_sum() {
        let flow = Totals {
            packets: 2,
            missing: u64::MAX - 2,
            ..Totals::default()
        };
        let mut sum = flow;
        sum += flow;
        assert_eq!((sum.packets, sum.missing), (4, u64::MAX));
    }
}
