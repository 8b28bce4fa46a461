//! Bit rates of ports, sampled each second. Decides without a clock.

use linerate_metric::forward::{BitRates, PortBitRates};

use super::forwarder_port::PortTotals;

/// Sample interval, as in DPDK's bit-rate statistics.
const STEP_NS: u64 = 1_000_000_000;
/// Weight of a sample in the smoothed rate (lib/bitratestats/rte_bitrate.c: `alpha_percent` 20).
const WEIGHT: f64 = 0.2;

/// Bit rates of all ports.
#[derive(Debug)]
pub(super) struct Observed {
    before: Vec<PortTotals>,
    before_ns: u64,
    /// `None` before the first sample.
    rates: Option<Vec<PortBitRates>>,
}

fn moved(rates: &mut BitRates, bytes: u64, seconds: f64) {
    let rate = bytes as f64 * 8.0 / seconds;
    rates.last_l2_bps = rate;
    rates.smoothed_l2_bps += (rate - rates.smoothed_l2_bps) * WEIGHT;
    rates.peak_l2_bps = rates.peak_l2_bps.max(rate);
}

impl Observed {
    /// Starts with these totals.
    pub(super) fn new(totals: Vec<PortTotals>, now_ns: u64) -> Self {
        Self {
            before: totals,
            before_ns: now_ns,
            rates: None,
        }
    }

    /// Returns whether the sample interval has passed.
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.before_ns) >= STEP_NS
    }

    /// Takes a sample over the time since the last one, which is longer if the call is late.
    pub(super) fn take(&mut self, totals: Vec<PortTotals>, now_ns: u64) {
        let seconds = now_ns.saturating_sub(self.before_ns) as f64 / 1e9;
        if seconds <= 0.0 {
            return;
        }
        let rates = self.rates.get_or_insert_default();
        rates.resize_with(totals.len(), PortBitRates::default);
        for ((rates, now), before) in rates.iter_mut().zip(&totals).zip(&self.before) {
            let since = now.since(*before);
            moved(&mut rates.receive, since.receive.bytes, seconds);
            moved(&mut rates.transmit, since.transmit.bytes, seconds);
        }
        (self.before, self.before_ns) = (totals, now_ns);
    }

    /// Takes the last sample of a run. A run shorter than the interval has this one only.
    pub(super) fn end(&mut self, totals: Vec<PortTotals>, now_ns: u64) {
        if self.rates.is_none() || self.is_due(now_ns) {
            self.take(totals, now_ns);
        }
    }

    /// Returns the rates of the port at this index; `None` before the first sample.
    pub(super) fn of(&self, port: usize) -> Option<PortBitRates> {
        self.rates.as_ref()?.get(port).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_port::QueueTotals;

    fn totals(received: u64, sent: u64) -> Vec<PortTotals> {
        let queue = |bytes| QueueTotals {
            bytes,
            ..QueueTotals::default()
        };
        vec![PortTotals {
            receive: queue(received),
            transmit: queue(sent),
        }]
    }

    #[test]
    fn a_second_at_a_time() {
        let mut seen = Observed::new(totals(1000, 0), 5);
        assert!(!seen.is_due(STEP_NS) && seen.is_due(STEP_NS + 5));
        assert_eq!(seen.of(0), None);
        // 8000 bits in 1 s, then 4000 in 2 s, then none.
        let mut now = 5;
        for (bytes, seconds) in [(2000, 1), (3000, 2), (3000, 1)] {
            now += seconds * STEP_NS;
            seen.take(totals(bytes, 0), now);
        }
        let found = seen.of(0).unwrap();
        let smoothed = ((8000.0 * 0.2) + (4000.0 - 8000.0 * 0.2) * 0.2) * 0.8;
        assert!((found.receive.smoothed_l2_bps - smoothed).abs() < 1e-6);
        assert_eq!(
            (found.receive.last_l2_bps, found.receive.peak_l2_bps),
            (0.0, 8000.0)
        );
        assert_eq!(found.transmit, BitRates::default());
        assert_eq!(seen.of(1), None);
    }

    #[test]
    fn a_short_run_is_a_step() {
        let mut seen = Observed::new(totals(0, 0), 0);
        seen.end(totals(100, 50), STEP_NS / 10);
        let found = seen.of(0).unwrap();
        assert_eq!(
            (found.receive.peak_l2_bps, found.transmit.peak_l2_bps),
            (8000.0, 4000.0)
        );
        // The rest after full seconds is no sample.
        seen.end(totals(100, 50), STEP_NS / 5);
        assert_eq!(seen.of(0).unwrap(), found);
    }
}
