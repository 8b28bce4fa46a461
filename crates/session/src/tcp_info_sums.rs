//! TCP_INFO of many connections, from interval to interval.

use linerate_record::cost::TcpInterval;
use linerate_sys::socket::TcpInfo;

/// Sums over connections at one moment. A field that one connection lacks is `None`.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpSums {
    flows: u32,
    retransmits: u64,
    cwnd_bytes: u64,
    rtt_us: u64,
    min_rtt_us: Option<u64>,
    delivery_rate: Option<u64>,
    retransmitted_bytes: Option<u64>,
    duplicates_reported: Option<u64>,
    reordering_detected: Option<u64>,
    timeouts: Option<u64>,
    marked: Option<u64>,
    busy_us: Option<u64>,
    receive_window_limited_us: Option<u64>,
    send_buffer_limited_us: Option<u64>,
}

impl TcpSums {
    /// Adds a connection.
    pub fn add(&mut self, info: &TcpInfo) {
        let first = self.flows == 0;
        self.flows += 1;
        self.retransmits += u64::from(info.retransmits);
        self.cwnd_bytes += u64::from(info.cwnd) * u64::from(info.mss);
        self.rtt_us += u64::from(info.rtt_us);
        self.min_rtt_us = match (self.min_rtt_us, info.min_rtt_us.map(u64::from)) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let add = |sum: &mut Option<u64>, more: Option<u64>| {
            *sum = match (*sum, more) {
                (None, more) if first => more,
                (sum, more) => sum.zip(more).map(|(sum, more)| sum.saturating_add(more)),
            };
        };
        add(&mut self.delivery_rate, info.delivery_rate);
        add(&mut self.retransmitted_bytes, info.retransmitted_bytes);
        add(
            &mut self.duplicates_reported,
            info.dsack_duplicates.map(u64::from),
        );
        add(
            &mut self.reordering_detected,
            info.reordering_events.map(u64::from),
        );
        add(&mut self.timeouts, info.timeouts.map(u64::from));
        add(&mut self.marked, info.delivered_ce.map(u64::from));
        add(&mut self.busy_us, info.busy_us);
        add(
            &mut self.receive_window_limited_us,
            info.receive_window_limited_us,
        );
        add(
            &mut self.send_buffer_limited_us,
            info.send_buffer_limited_us,
        );
    }

    /// Returns the mean of the smoothed round-trip times; `None` without connections.
    fn rtt_ns(&self) -> Option<u64> {
        (self.flows > 0).then(|| self.rtt_us * 1_000 / u64::from(self.flows))
    }

    /// Returns the figures of an interval of `length_ns` that ends now; `None` without connections.
    #[must_use]
    pub fn since(&self, earlier: &Self, length_ns: u64) -> Option<TcpInterval> {
        let rtt_ns = self.rtt_ns()?;
        let delta = |now: Option<u64>, before: Option<u64>| {
            Some(now?.saturating_sub(before.unwrap_or_default()))
        };
        let total_us = length_ns as f64 / 1e3 * f64::from(self.flows);
        let share = |now, before| {
            let time = delta(now, before)? as f64;
            (total_us > 0.0).then(|| (time / total_us).min(1.0))
        };
        Some(TcpInterval {
            flows: self.flows,
            cwnd_bytes: self.cwnd_bytes,
            rtt_ns,
            min_rtt_ns: self.min_rtt_us.map(|rtt| rtt * 1_000),
            // Mean of the rates: flows deliver at different times, so a sum never passed.
            delivery_rate_bps: self
                .delivery_rate
                .map(|rate| rate.saturating_mul(8) / u64::from(self.flows)),
            retransmits: self.retransmits.saturating_sub(earlier.retransmits),
            retransmitted_bytes: delta(self.retransmitted_bytes, earlier.retransmitted_bytes),
            spurious_retransmits: delta(self.duplicates_reported, earlier.duplicates_reported),
            reordering_seen: delta(self.reordering_detected, earlier.reordering_detected),
            timeouts: delta(self.timeouts, earlier.timeouts),
            marked: delta(self.marked, earlier.marked),
            busy: share(self.busy_us, earlier.busy_us),
            receive_window_limited: share(
                self.receive_window_limited_us,
                earlier.receive_window_limited_us,
            ),
            send_buffer_limited: share(self.send_buffer_limited_us, earlier.send_buffer_limited_us),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_differences_and_states_are_sums() {
        let info = TcpInfo {
            retransmits: 5,
            cwnd: 10,
            mss: 1_000,
            rtt_us: 40,
            min_rtt_us: Some(30),
            delivery_rate: Some(100),
            busy_us: Some(600),
            dsack_duplicates: Some(1),
            ..TcpInfo::default()
        };
        let mut before = TcpSums::default();
        before.add(&info);
        before.add(&info);
        let mut after = TcpSums::default();
        after.add(&TcpInfo {
            retransmits: 9,
            min_rtt_us: Some(20),
            dsack_duplicates: Some(4),
            busy_us: Some(1_100),
            ..info
        });
        after.add(&info);
        let interval = after.since(&before, 1_000_000).unwrap();
        assert_eq!((interval.flows, interval.retransmits), (2, 4));
        assert_eq!((interval.cwnd_bytes, interval.rtt_ns), (20_000, 40_000));
        assert_eq!(interval.min_rtt_ns, Some(20_000));
        assert_eq!(interval.delivery_rate_bps, Some(800));
        assert_eq!(interval.spurious_retransmits, Some(3));
        assert_eq!(interval.busy, Some(0.25));
        assert_eq!(
            interval.timeouts, None,
            "a field that the kernel does not report is not zero"
        );
        assert!(TcpSums::default().since(&before, 1).is_none());
    }

    #[test]
    fn a_field_that_one_connection_lacks_is_missing() {
        let with_field = TcpInfo {
            busy_us: Some(1),
            ..TcpInfo::default()
        };
        for order in [
            [with_field, TcpInfo::default()],
            [TcpInfo::default(), with_field],
        ] {
            let mut sums = TcpSums::default();
            order.iter().for_each(|info| sums.add(info));
            assert_eq!(sums.since(&TcpSums::default(), 1_000).unwrap().busy, None);
        }
    }
}
