//! Bit rates of ports, sampled each second. Decides without a clock.

use linerate_record::forward::{BitRates, PortBitRates};

use super::forwarder_port::PortTotals;

/// Sample interval, as in DPDK's bit-rate statistics.
const SAMPLE_INTERVAL_NS: u64 = 1_000_000_000;
/// Weight of a sample in the smoothed rate (lib/bitratestats/rte_bitrate.c: `alpha_percent` 20).
const SMOOTHING_WEIGHT: f64 = 0.2;

/// Bit rates of all ports.
#[derive(Debug)]
pub(super) struct BitRateMeter {
    last_totals: Vec<PortTotals>,
    last_sample_ns: u64,
    /// `None` before the first sample.
    rates: Option<Vec<PortBitRates>>,
}

fn update_rates(rates: &mut BitRates, bytes: u64, seconds: f64) {
    let rate = bytes as f64 * 8.0 / seconds;
    rates.last_l2_bps = rate;
    rates.smoothed_l2_bps += (rate - rates.smoothed_l2_bps) * SMOOTHING_WEIGHT;
    rates.peak_l2_bps = rates.peak_l2_bps.max(rate);
}

impl BitRateMeter {
    /// Starts with these totals.
    pub(super) fn new(totals: Vec<PortTotals>, now_ns: u64) -> Self {
        Self {
            last_totals: totals,
            last_sample_ns: now_ns,
            rates: None,
        }
    }

    /// Returns whether the sample interval has passed.
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.last_sample_ns) >= SAMPLE_INTERVAL_NS
    }

    /// Takes a sample over the time since the last one, which is longer if the call is late.
    pub(super) fn sample(&mut self, totals: Vec<PortTotals>, now_ns: u64) {
        let seconds = now_ns.saturating_sub(self.last_sample_ns) as f64 / 1e9;
        if seconds <= 0.0 {
            return;
        }
        let rates = self.rates.get_or_insert_default();
        rates.resize_with(totals.len(), PortBitRates::default);
        for ((rates, now), before) in rates.iter_mut().zip(&totals).zip(&self.last_totals) {
            let since = now.since(*before);
            update_rates(&mut rates.receive, since.receive.bytes, seconds);
            update_rates(&mut rates.transmit, since.transmit.bytes, seconds);
        }
        (self.last_totals, self.last_sample_ns) = (totals, now_ns);
    }

    /// Takes the last sample of a run. A run shorter than the interval has this one only.
    pub(super) fn finish(&mut self, totals: Vec<PortTotals>, now_ns: u64) {
        if self.rates.is_none() || self.is_due(now_ns) {
            self.sample(totals, now_ns);
        }
    }

    /// Returns the rates of the port at this index; `None` before the first sample.
    pub(super) fn port_rates(&self, port: usize) -> Option<PortBitRates> {
        self.rates.as_ref()?.get(port).copied()
    }
}

#[cfg(test)]
mod tests {
    use linerate_port::QueueTotals;

    use super::*;

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
        let mut meter = BitRateMeter::new(totals(1000, 0), 5);
        assert!(!meter.is_due(SAMPLE_INTERVAL_NS) && meter.is_due(SAMPLE_INTERVAL_NS + 5));
        assert_eq!(meter.port_rates(0), None);
        // 8000 bits in 1 s, then 4000 in 2 s, then none.
        let mut now = 5;
        for (bytes, seconds) in [(2000, 1), (3000, 2), (3000, 1)] {
            now += seconds * SAMPLE_INTERVAL_NS;
            meter.sample(totals(bytes, 0), now);
        }
        let rates = meter.port_rates(0).unwrap();
        let smoothed = ((8000.0 * 0.2) + (4000.0 - 8000.0 * 0.2) * 0.2) * 0.8;
        assert!((rates.receive.smoothed_l2_bps - smoothed).abs() < 1e-6);
        assert_eq!(
            (rates.receive.last_l2_bps, rates.receive.peak_l2_bps),
            (0.0, 8000.0)
        );
        assert_eq!(rates.transmit, BitRates::default());
        assert_eq!(meter.port_rates(1), None);
    }

    #[test]
    fn a_short_run_is_a_step() {
        let mut meter = BitRateMeter::new(totals(0, 0), 0);
        meter.finish(totals(100, 50), SAMPLE_INTERVAL_NS / 10);
        let rates = meter.port_rates(0).unwrap();
        assert_eq!(
            (rates.receive.peak_l2_bps, rates.transmit.peak_l2_bps),
            (8000.0, 4000.0)
        );
        // The rest after full seconds is no sample.
        meter.finish(totals(100, 50), SAMPLE_INTERVAL_NS / 5);
        assert_eq!(meter.port_rates(0).unwrap(), rates);
    }
}
