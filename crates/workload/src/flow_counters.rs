//! Flow counters that a worker thread writes and the coordinator reads while payload moves.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Payload counters of one flow at this end.
///
/// The only writer stores totals with plain stores, so neither side takes a lock or needs an atomic
/// addition. A reader may see one counter a call ahead of another. Aligned so that no two flows
/// share a cache line (128 B: adjacent lines are fetched in pairs).
#[repr(align(128))]
#[derive(Debug, Default)]
pub struct FlowCounters {
    bytes: AtomicU64,
    packets: AtomicU64,
    calls: AtomicU64,
    missing: AtomicU64,
    duplicates: AtomicU64,
}

/// Reading of a [`FlowCounters`], or a sum of readings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PayloadTotals {
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
    pub duplicates: u64,
}

impl PayloadTotals {
    /// Returns the increase since an earlier reading.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(earlier.bytes),
            packets: self.packets.saturating_sub(earlier.packets),
            calls: self.calls.saturating_sub(earlier.calls),
            // A late datagram counts as missing first and arrives later: the count may fall.
            missing: self.missing.saturating_sub(earlier.missing),
            duplicates: self.duplicates.saturating_sub(earlier.duplicates),
        }
    }
}

/// Saturates: the missing count is derived from a peer's sequence numbers and has no bound.
impl std::ops::AddAssign for PayloadTotals {
    fn add_assign(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.packets = self.packets.saturating_add(other.packets);
        self.calls = self.calls.saturating_add(other.calls);
        self.missing = self.missing.saturating_add(other.missing);
        self.duplicates = self.duplicates.saturating_add(other.duplicates);
    }
}

impl FlowCounters {
    /// Publishes the writer's totals.
    #[inline]
    pub fn publish(&self, totals: &PayloadTotals) {
        self.bytes.store(totals.bytes, Relaxed);
        self.packets.store(totals.packets, Relaxed);
        self.calls.store(totals.calls, Relaxed);
        self.missing.store(totals.missing, Relaxed);
        self.duplicates.store(totals.duplicates, Relaxed);
    }

    /// Reads the counters from another thread.
    #[must_use]
    pub fn read(&self) -> PayloadTotals {
        PayloadTotals {
            bytes: self.bytes.load(Relaxed),
            packets: self.packets.load(Relaxed),
            calls: self.calls.load(Relaxed),
            missing: self.missing.load(Relaxed),
            duplicates: self.duplicates.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unbounded_missing_counts_saturate() {
        let flow = PayloadTotals {
            packets: 2,
            missing: u64::MAX - 2,
            ..PayloadTotals::default()
        };
        let mut sum = flow;
        sum += flow;
        assert_eq!((sum.packets, sum.missing), (4, u64::MAX));
    }
}
