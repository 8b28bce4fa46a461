//! Receive counters of a UDP flow, as iperf2 counts them.

use linerate_stats::transit_variation::TransitVariation;

use super::datagram::Iperf2Header;
use super::report::{Iperf2Report, TransitTimes};

/// Receive counters of one flow. No call allocates.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Iperf2ReceiverStats {
    bytes: u64,
    received: u64,
    /// Highest number received; `lowest_number` is the lowest one.
    highest_number: Option<u64>,
    lowest_number: Option<u64>,
    out_of_order: u64,
    first_ns: Option<u64>,
    last_ns: u64,
    last_transit_ns: Option<i64>,
    variation: TransitVariation,
    transit: TransitSpread,
}

/// Mean and variance of the transit times, in microseconds (Welford's algorithm).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct TransitSpread {
    count: u32,
    mean_us: f64,
    m2_us2: f64,
    min_us: f64,
    max_us: f64,
}

impl TransitSpread {
    fn record(&mut self, transit_us: f64) {
        self.count = self.count.saturating_add(1);
        let deviation = transit_us - self.mean_us;
        self.mean_us += deviation / f64::from(self.count);
        self.m2_us2 += deviation * (transit_us - self.mean_us);
        if self.count == 1 {
            (self.min_us, self.max_us) = (transit_us, transit_us);
        } else {
            self.min_us = self.min_us.min(transit_us);
            self.max_us = self.max_us.max(transit_us);
        }
    }
}

impl Iperf2ReceiverStats {
    /// Counts a datagram of `bytes` that arrived at `now_ns` of the wall clock. The end datagram
    /// counts too, with the absolute value of its number, but not its time, which may be absent.
    #[inline]
    pub fn record(&mut self, header: Iperf2Header, bytes: usize, now_ns: u64) {
        let number = header.sequence.unsigned_abs();
        self.first_ns.get_or_insert(now_ns);
        self.last_ns = now_ns;
        self.bytes += bytes as u64;
        self.received += 1;
        let is_newest = self.highest_number.is_none_or(|highest| number > highest);
        self.lowest_number = Some(
            self.lowest_number
                .map_or(number, |lowest| lowest.min(number)),
        );
        if is_newest {
            self.highest_number = Some(number);
        } else {
            // Includes duplicates: received numbers are not stored.
            self.out_of_order += 1;
        }
        if header.sequence < 0 {
            return;
        }
        self.variation.record(header.sent_ns, now_ns, is_newest);
        // Without synchronised clocks only differences of transit times are meaningful.
        let transit = now_ns.wrapping_sub(header.sent_ns) as i64;
        self.last_transit_ns = (header.sent_ns > 0).then_some(transit);
        if header.sent_ns > 0 {
            self.transit.record(transit as f64 / 1000.0);
        }
    }

    /// Returns the datagrams received, duplicates and the end included.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Returns the bytes received.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the first number of the flow: 1, or 0 with senders of some boards (Zephyr, ESP-IDF);
    /// `None` before the first datagram.
    #[must_use]
    pub fn first_number(&self) -> Option<u64> {
        self.lowest_number.map(|lowest| lowest.min(1))
    }

    /// Returns the numbers from the first of the flow to the highest one received.
    #[must_use]
    pub fn numbered(&self) -> u64 {
        let numbers = self.first_number().zip(self.highest_number);
        numbers.map_or(0, |(first, highest)| (highest - first).saturating_add(1))
    }

    /// Returns the numbers below the highest received one that did not arrive.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.numbered().saturating_sub(self.received)
    }

    /// Returns the lost numbers below the lowest received one. Servers of upstream count them too,
    /// but they may have been sent to an earlier flow: a client may pause for longer than its flow
    /// is kept here, and then continue.
    #[must_use]
    pub fn lost_before_first(&self) -> u64 {
        self.lowest_number
            .map_or(0, |lowest| lowest.saturating_sub(1))
            .min(self.lost())
    }

    /// Returns the lost numbers between the lowest and the highest received one.
    #[must_use]
    pub fn lost_since_first(&self) -> u64 {
        self.lost() - self.lost_before_first()
    }

    /// Returns arrival time minus send time of the last payload, in nanoseconds; `None` before the
    /// first, and if it had no time.
    #[inline]
    #[must_use]
    pub fn last_transit_ns(&self) -> Option<i64> {
        self.last_transit_ns
    }

    /// Returns the smoothed variation of the transit time; `None` if the client's clock does not
    /// show it.
    #[must_use]
    pub fn ipdv_ns(&self) -> Option<f64> {
        self.variation.ipdv_ns()
    }

    /// Returns whether the client's times can be compared with our clock: its clock ran, and was
    /// not set back.
    #[must_use]
    pub fn has_steady_clock(&self) -> bool {
        self.variation.has_steady_clock()
    }

    /// Returns the report of a server; transit times are included if the client reports
    /// synchronised clocks.
    #[must_use]
    pub fn report(&self, with_transit: bool) -> Iperf2Report {
        let ns = |us: f64| (us * 1000.0).max(0.0) as u64;
        let spread = &self.transit;
        // Negative transit times prove that the clocks are not synchronised; then there are none.
        let is_plausible =
            with_transit && spread.count > 0 && spread.min_us >= 0.0 && self.has_steady_clock();
        Iperf2Report {
            bytes: self.bytes,
            duration_ns: self.last_ns.saturating_sub(self.first_ns.unwrap_or(0)),
            lost: self.lost(),
            out_of_order: self.out_of_order,
            datagrams: self.numbered(),
            // The report has no value for an unknown one.
            ipdv_ns: self.ipdv_ns().unwrap_or(0.0) as u64,
            transit: is_plausible.then(|| TransitTimes {
                min_ns: ns(spread.min_us),
                max_ns: ns(spread.max_us),
                sum_ns: ns(spread.mean_us * f64::from(spread.count)),
                mean_ns: ns(spread.mean_us),
                m2_us2: spread.m2_us2,
                count: spread.count,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report_after(numbers: &[i64]) -> Iperf2Report {
        let mut stats = Iperf2ReceiverStats::default();
        for (&sequence, at) in numbers.iter().zip(1..) {
            let header = Iperf2Header {
                sequence,
                sent_ns: at * 1_000_000,
            };
            stats.record(header, 100, at * 1_000_000 + 5_000);
        }
        stats.report(true)
    }

    #[test]
    fn order_and_loss_match_an_upstream_server() {
        for (numbers, datagrams, lost, out_of_order) in [
            (&[1, 2, 3, -4][..], 4, 0, 0),
            (&[1, 3, -4], 4, 1, 0),
            (&[1, 3, 2, -4], 4, 0, 1),
            (&[1, 2, -9], 9, 6, 0),
            // Boards that count from 0; the end continues their numbers.
            (&[0, 1, 2, -3], 4, 0, 0),
            (&[0, 2, -4], 5, 2, 0),
            (&[1, 0, 2, -3], 4, 0, 1),
            (&[i64::MIN], 1 << 63, (1 << 63) - 1, 0),
            (&[0, i64::MIN], (1 << 63) + 1, (1 << 63) - 1, 0),
        ] {
            let report = report_after(numbers);
            assert_eq!(
                (report.datagrams, report.lost, report.out_of_order),
                (datagrams, lost, out_of_order),
                "{numbers:?}"
            );
            assert_eq!(report.bytes, 100 * numbers.len() as u64);
        }
    }

    #[test]
    fn losses_before_the_first_datagram_are_separate() {
        for (numbers, lost_before_first, lost) in [
            (&[][..], 0, 0),
            (&[1, 3], 0, 1),
            (&[2, 1, 3], 0, 0),
            (&[501, 502, -503], 500, 0),
            (&[502, 501, -504], 500, 1),
            (&[501, 501, 501], 498, 0),
            (&[0, 1], 0, 0),
        ] {
            let mut stats = Iperf2ReceiverStats::default();
            for &sequence in numbers {
                stats.record(
                    Iperf2Header {
                        sequence,
                        sent_ns: 0,
                    },
                    100,
                    1,
                );
            }
            let losses = (stats.lost_before_first(), stats.lost_since_first());
            assert_eq!(losses, (lost_before_first, lost), "{numbers:?}");
        }
    }

    #[test]
    fn transit_times_need_clocks_that_agree() {
        let report = report_after(&[1, 2, 3]);
        let transit = report.transit.unwrap();
        assert_eq!(
            (transit.min_ns, transit.max_ns, transit.count),
            (5_000, 5_000, 3)
        );
        assert_eq!(report.ipdv_ns, 0);
        assert_eq!(report.duration_ns, 2_000_000);
        let mut stats = Iperf2ReceiverStats::default();
        stats.record(
            Iperf2Header {
                sequence: 1,
                sent_ns: 9_000,
            },
            1,
            5_000,
        );
        assert_eq!(stats.report(true).transit, None);
    }
}
