//! Pacer: computes departure times so that the offered load matches the intended load.
//!
//! Decides without a clock: time and bytes are inputs, the next departure time is the output. The
//! lateness of departures comes from the same readings.

use linerate_stats::histogram::Histogram;
use linerate_sys::clock::Nanos;

/// Default lateness that is caught up with a burst. Older payload is dropped from the schedule, so
/// that a stall of the sender is not followed by a flood.
const CATCH_UP_NS: Nanos = 100_000_000;

/// Spreads payload evenly over time at a fixed rate, in bursts.
#[derive(Clone, Debug)]
pub struct Pacer {
    /// `None`: unlimited.
    rate_bps: Option<u64>,
    next_ns: Nanos,
    /// Remainder of the division for `next_ns`, so that rounding errors do not add up.
    remainder: u64,
    /// Size of a burst, and the unsent rest of the current one.
    burst_bytes: u64,
    burst_rest_bytes: u64,
    /// Time by which payload is handed over before its departure, where the kernel delays it.
    lead_ns: Nanos,
    /// Lateness that is caught up.
    catch_up_ns: Nanos,
    /// Lateness of burst starts.
    lateness: Option<Histogram>,
    /// With smooth catch-up (at most twice the rate): earliest time of the next payload.
    smooth_from_ns: Option<Nanos>,
}

/// Payload that may leave in one burst during smooth catch-up, as its time at twice the rate;
/// longer than one poll of a busy loop.
const SMOOTH_BURST_NS: Nanos = 100_000;

impl Pacer {
    /// Creates a pacer of `rate_bps` payload bits per second with its first departure at
    /// `start_ns`.
    #[must_use]
    pub fn new(rate_bps: Option<u64>, start_ns: Nanos) -> Self {
        let rate_bps = rate_bps.filter(|&rate| rate > 0);
        Self {
            rate_bps,
            next_ns: start_ns,
            remainder: 0,
            burst_bytes: 0,
            burst_rest_bytes: 0,
            lead_ns: 0,
            catch_up_ns: CATCH_UP_NS,
            lateness: rate_bps.map(|_| Histogram::coarse()),
            smooth_from_ns: None,
        }
    }

    /// Limits late payload to twice the rate, so that the sender adds no bursts of its own that
    /// look like the path's.
    #[must_use]
    pub fn with_smooth_catch_up(self) -> Self {
        Self {
            smooth_from_ns: Some(0),
            ..self
        }
    }

    /// Sets the burst size in bytes.
    #[must_use]
    pub fn with_burst_bytes(self, burst_bytes: u64) -> Self {
        Self {
            burst_bytes,
            ..self
        }
    }

    /// Sets the time by which payload is handed over before its departure.
    #[must_use]
    pub fn with_lead_ns(self, lead_ns: Nanos) -> Self {
        Self { lead_ns, ..self }
    }

    /// Sets the lateness that is caught up; older payload is dropped.
    #[must_use]
    pub fn with_catch_up_ns(self, catch_up_ns: Nanos) -> Self {
        Self {
            catch_up_ns,
            ..self
        }
    }

    /// Delays the first payload, of this size, by its own transmission time, so that the sent
    /// amount never exceeds the rate.
    #[must_use]
    pub fn with_delayed_start(mut self, bytes: u64) -> Self {
        if let Some(rate) = self.rate_bps {
            self.advance(u128::from(bytes), rate);
        }
        self
    }

    /// Sets the departure time of the first payload.
    pub fn set_start_ns(&mut self, start_ns: Nanos) {
        self.next_ns = start_ns;
    }

    /// Returns whether a rate is set.
    #[inline]
    #[must_use]
    pub fn is_paced(&self) -> bool {
        self.rate_bps.is_some()
    }

    /// Returns the time until which no payload may leave; `None` when some may leave now.
    #[inline]
    #[must_use]
    pub fn wait_until(&self, now_ns: Nanos) -> Option<Nanos> {
        let departure_ns = self.next_ns.saturating_sub(self.lead_ns);
        let departure_ns = departure_ns.max(self.smooth_from_ns.unwrap_or(0));
        (self.rate_bps.is_some() && self.burst_rest_bytes == 0 && now_ns < departure_ns)
            .then_some(departure_ns)
    }

    /// Returns whether the next payload may leave now, if it was scheduled by `until_ns`. At the
    /// end of a run, only payload scheduled before the end leaves.
    #[inline]
    #[must_use]
    pub fn may_send(&self, now_ns: Nanos, until_ns: Nanos) -> bool {
        self.rate_bps.is_none()
            || self.burst_rest_bytes > 0
            || self.next_ns.saturating_sub(self.lead_ns) <= until_ns
                && self
                    .smooth_from_ns
                    .is_none_or(|earliest_ns| earliest_ns <= now_ns)
    }

    /// Returns the departure time of the next payload.
    #[inline]
    #[must_use]
    pub fn next_departure_ns(&self) -> Nanos {
        self.next_ns
    }

    /// Returns the part of a burst that may leave now, at least `payload` bytes; meaningful only
    /// with a rate.
    #[inline]
    #[must_use]
    pub fn allowance(&self, payload: u64) -> u64 {
        let rest = match self.burst_rest_bytes {
            0 => self.burst_bytes,
            rest => rest,
        };
        rest.max(payload)
    }

    /// Drops overdue payload from the schedule; returns the number of payloads of `bytes`.
    /// Fractions of a payload stay scheduled.
    #[inline]
    pub fn drop_overdue(&mut self, now_ns: Nanos, bytes: u64) -> u64 {
        let oldest = now_ns.saturating_sub(self.catch_up_ns);
        match self.rate_bps {
            Some(rate) if self.next_ns < oldest => {
                let overdue_bits = u128::from(oldest - self.next_ns) * u128::from(rate);
                let payload_bits = u128::from(bytes.max(1)) * 8_000_000_000;
                let count = u64::try_from(overdue_bits / payload_bits).unwrap_or(u64::MAX);
                self.advance(u128::from(bytes) * u128::from(count), rate);
                count
            }
            _ => 0,
        }
    }

    /// Drops all overdue payload: the schedule continues from now.
    #[inline]
    pub fn restart(&mut self, now_ns: Nanos) {
        if self.rate_bps.is_some() {
            self.next_ns = self.next_ns.max(now_ns);
        }
    }

    /// Returns the number of overdue payloads of `bytes`; 0 without a rate.
    #[inline]
    #[must_use]
    pub fn overdue_payloads(&self, now_ns: Nanos, bytes: u64) -> u64 {
        let Some(rate) = self.rate_bps else { return 0 };
        let late_ns = u128::from(now_ns.saturating_sub(self.next_ns));
        let payload_bits = u128::from(bytes.max(1)) * 8_000_000_000;
        u64::try_from(late_ns * u128::from(rate) / payload_bits).unwrap_or(u64::MAX)
    }

    /// Records that `bytes` left at `now_ns`.
    #[inline]
    pub fn record_sent(&mut self, bytes: u64, now_ns: Nanos) {
        let Some(rate) = self.rate_bps else { return };
        if self.burst_rest_bytes == 0 {
            self.burst_rest_bytes = self.burst_bytes;
            if let Some(lateness) = &mut self.lateness {
                lateness.record(now_ns.saturating_sub(self.next_ns));
            }
        }
        self.burst_rest_bytes = self.burst_rest_bytes.saturating_sub(bytes);
        let previous_ns = self.next_ns;
        self.advance(u128::from(bytes), rate);
        if let Some(earliest_ns) = &mut self.smooth_from_ns {
            let half_ns = (self.next_ns - previous_ns) / 2;
            *earliest_ns = (*earliest_ns).max(now_ns.saturating_sub(SMOOTH_BURST_NS)) + half_ns;
        }
    }

    #[inline]
    fn advance(&mut self, bytes: u128, rate: u64) {
        // u128: 1 GiB x 8 x 10^9 does not fit 64 bits.
        let scaled = bytes * 8_000_000_000 + u128::from(self.remainder);
        let time = u64::try_from(scaled / u128::from(rate)).unwrap_or(u64::MAX);
        self.next_ns = self.next_ns.saturating_add(time);
        self.remainder = (scaled % u128::from(rate)) as u64;
    }

    /// Returns the lateness of burst starts; `None` without a rate.
    #[must_use]
    pub fn into_lateness(self) -> Option<Histogram> {
        self.lateness
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn without_a_rate_no_payload_waits() {
        let mut pacer = Pacer::new(None, 0);
        pacer.record_sent(1 << 30, 0);
        assert_eq!(pacer.wait_until(0), None);
        assert_eq!(pacer.drop_overdue(1 << 40, 1), 0);
        assert!(pacer.into_lateness().is_none());
    }

    #[test]
    fn a_stall_is_not_followed_by_a_flood() {
        // 8 Mb/s in 1000-byte payloads: one a millisecond. After 1 s of sleep, 100 ms are caught
        // up.
        let mut pacer = Pacer::new(Some(8_000_000), 0);
        pacer.record_sent(1000, 0);
        let late = 1_000_000_000;
        assert_eq!(pacer.wait_until(late), None);
        assert_eq!(pacer.overdue_payloads(late, 1000), 999);
        assert_eq!(pacer.drop_overdue(late, 1000), 899);
        let mut sent = 0;
        while pacer.wait_until(late).is_none() {
            pacer.record_sent(1000, late);
            sent += 1;
        }
        assert_eq!(sent, 101, "100 ms of them, and the current one");
        assert_eq!(pacer.drop_overdue(late, 1000), 0);
    }

    #[test]
    fn a_restarted_schedule_has_nothing_overdue() {
        let mut pacer = Pacer::new(Some(8_000_000), 0);
        pacer.record_sent(1000, 0);
        pacer.restart(50_500_000);
        assert_eq!(pacer.overdue_payloads(50_500_000, 1000), 0);
        assert_eq!(pacer.wait_until(50_500_000), None);
        pacer.record_sent(1000, 50_500_000);
        assert_eq!(pacer.wait_until(50_500_000), Some(51_500_000));
        pacer.restart(51_000_000);
        assert_eq!(
            pacer.next_departure_ns(),
            51_500_000,
            "what is not due stays"
        );
    }

    /// A payload per millisecond, and a stall of 20 ms: overdue payload leaves at twice the rate,
    /// and after another 20 ms the schedule is kept again.
    #[test]
    fn smooth_catch_up_is_limited_to_twice_the_rate() {
        let mut pacer = Pacer::new(Some(8_000_000), 0).with_smooth_catch_up();
        let mut sent = Vec::new();
        let mut now = 0;
        while now < 60_000_000 {
            let is_stalled = (10_000_000..30_000_000).contains(&now);
            while !is_stalled && pacer.wait_until(now).is_none() {
                pacer.record_sent(1000, now);
                sent.push(now);
            }
            now += 10_000;
        }
        assert_eq!(sent.len(), 60, "no payload is dropped");
        let shortest_gap = sent.windows(2).map(|pair| pair[1] - pair[0]).min();
        assert!(shortest_gap >= Some(390_000), "{shortest_gap:?}");
        assert_eq!(sent.last(), Some(&59_000_000), "on time again");
        // Payload scheduled before an end leaves after it too, and no more.
        let mut late = Pacer::new(Some(8_000_000), 0).with_smooth_catch_up();
        let mut sent_late = Vec::new();
        for now in (0..20_000_000)
            .step_by(10_000)
            .filter(|now| *now > 6_000_000)
        {
            if late.may_send(now, 9_999_999) {
                late.record_sent(1000, now);
                sent_late.push(now);
            }
        }
        assert_eq!(sent_late.len(), 10, "{sent_late:?}");
        assert!(
            sent_late
                .last()
                .is_some_and(|&last| (9_000_000..12_000_000).contains(&last))
        );
        // A rate faster than the loop: all payload of one poll leaves together.
        let mut fast = Pacer::new(Some(8_000_000_000), 0).with_smooth_catch_up();
        let mut burst = 0;
        while fast.wait_until(50_000).is_none() {
            fast.record_sent(1000, 50_000);
            burst += 1;
        }
        assert_eq!(burst, 51);
    }

    #[test]
    fn a_burst_leaves_at_once_and_the_next_one_waits() {
        let mut pacer = Pacer::new(Some(8_000_000), 0).with_burst_bytes(4_000);
        assert_eq!(pacer.allowance(1_000), 4_000);
        for rest in [3_000, 2_000, 1_000] {
            pacer.record_sent(1_000, 5);
            assert_eq!(pacer.wait_until(5), None);
            assert_eq!(pacer.allowance(1_000), rest);
        }
        pacer.record_sent(1_000, 5);
        assert_eq!(pacer.wait_until(5), Some(4_000_000));
        let lateness = pacer.into_lateness().unwrap();
        assert_eq!((lateness.count(), lateness.max()), (1, Some(5)));
    }

    #[test]
    fn payload_with_a_departure_time_is_handed_over_early() {
        let mut pacer = Pacer::new(Some(8_000), 10_000_000_000).with_lead_ns(1_000_000);
        assert_eq!(pacer.wait_until(0), Some(9_999_000_000));
        assert_eq!(pacer.wait_until(9_999_000_000), None);
        assert_eq!(pacer.next_departure_ns(), 10_000_000_000);
        pacer.record_sent(1_000, 9_999_000_000);
        let lateness = pacer.into_lateness().unwrap();
        assert_eq!(lateness.max(), Some(0), "early is not late");
    }

    proptest! {
        #[test]
        fn the_rate_is_exact_over_time(
            rate in 1_000u64..100_000_000_000, bytes in 1u64..1 << 20, count in 1u64..3_000, burst in 1u64..40,
        ) {
            let mut pacer = Pacer::new(Some(rate), 0).with_burst_bytes(burst * bytes);
            let mut now = 0;
            for _ in 0..count {
                now = pacer.wait_until(now).unwrap_or(now);
                pacer.record_sent(bytes, now);
            }
            let want = u128::from(count) * u128::from(bytes) * 8_000_000_000 / u128::from(rate);
            let got = u128::from(pacer.next_ns);
            prop_assert!(got.abs_diff(want) <= 1, "{got} for {want}");
            let bursts = pacer.into_lateness().unwrap().count();
            prop_assert_eq!(bursts, count.div_ceil(burst));
        }

        #[test]
        fn skipped_and_sent_packets_make_the_schedule(
            rate in 8_000u64..1_000_000_000, bytes in 1u64..65_536, stall in 0u64..10_000_000_000,
        ) {
            let mut pacer = Pacer::new(Some(rate), 0);
            let given_up = pacer.drop_overdue(stall, bytes);
            let want = u128::from(given_up) * u128::from(bytes) * 8_000_000_000 / u128::from(rate);
            prop_assert_eq!(u128::from(pacer.next_ns), want);
            prop_assert!(pacer.next_ns <= stall.saturating_sub(CATCH_UP_NS));
        }
    }
}
