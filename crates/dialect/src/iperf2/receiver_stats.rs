//! Receive counters of a UDP flow, as iperf2 counts them.

use super::datagram::Header;
use super::report::{Report, Transit};

/// Receive counters of one flow. No call allocates.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    bytes: u64,
    arrived: u64,
    /// Highest number received; `lowest` is the lowest one.
    highest: u64,
    lowest: Option<u64>,
    out_of_order: u64,
    first_ns: Option<u64>,
    last_ns: u64,
    last_transit_ns: Option<i64>,
    ipdv_ns: f64,
    transit: Spread,
}

/// Mean and variance of the transit times, in microseconds (Welford's algorithm).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Spread {
    count: u32,
    mean_us: f64,
    m2_us2: f64,
    min_us: f64,
    max_us: f64,
}

impl Spread {
    fn take(&mut self, transit_us: f64) {
        self.count = self.count.saturating_add(1);
        let away = transit_us - self.mean_us;
        self.mean_us += away / f64::from(self.count);
        self.m2_us2 += away * (transit_us - self.mean_us);
        if self.count == 1 {
            (self.min_us, self.max_us) = (transit_us, transit_us);
        } else {
            self.min_us = self.min_us.min(transit_us);
            self.max_us = self.max_us.max(transit_us);
        }
    }
}

impl Tally {
    /// Counts a datagram of `bytes` that arrived at `now_ns` of the wall clock. The end datagram
    /// counts too, with the absolute value of its number.
    #[inline]
    pub fn take(&mut self, header: Header, bytes: usize, now_ns: u64) {
        let number = header.sequence.unsigned_abs();
        self.first_ns.get_or_insert(now_ns);
        self.last_ns = now_ns;
        self.bytes += bytes as u64;
        self.arrived += 1;
        self.lowest = Some(self.lowest.map_or(number, |lowest| lowest.min(number)));
        if number > self.highest {
            self.highest = number;
        } else {
            // Includes duplicates: received numbers are not stored.
            self.out_of_order += 1;
        }
        // Without synchronised clocks only differences of transit times are meaningful.
        let transit = now_ns.wrapping_sub(header.sent_ns) as i64;
        if let Some(last) = self.last_transit_ns.replace(transit) {
            let difference = transit.wrapping_sub(last).unsigned_abs() as f64;
            self.ipdv_ns += (difference - self.ipdv_ns) / 16.0;
        }
        self.transit.take(transit as f64 / 1000.0);
    }

    /// Returns the datagrams received, duplicates and the end included.
    #[must_use]
    pub fn arrived(&self) -> u64 {
        self.arrived
    }

    /// Returns the bytes received.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the numbers below the highest received one that did not arrive.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.highest.saturating_sub(self.arrived)
    }

    /// Returns the lost numbers below the lowest received one. Servers of upstream count them too,
    /// but they may have been sent to an earlier flow: a client may pause for longer than its flow
    /// is kept here, and then continue.
    #[must_use]
    pub fn before(&self) -> u64 {
        self.lowest
            .map_or(0, |lowest| lowest.saturating_sub(1))
            .min(self.lost())
    }

    /// Returns the lost numbers between the lowest and the highest received one.
    #[must_use]
    pub fn lost_since_first(&self) -> u64 {
        self.lost() - self.before()
    }

    /// Returns arrival time minus send time of the last datagram, in nanoseconds; `None` before the
    /// first.
    #[inline]
    #[must_use]
    pub fn last_transit_ns(&self) -> Option<i64> {
        self.last_transit_ns
    }

    /// Returns the report of a server; transit times are included if the client reports
    /// synchronised clocks.
    #[must_use]
    pub fn report(&self, with_transit: bool) -> Report {
        let ns = |us: f64| (us * 1000.0).max(0.0) as u64;
        let spread = &self.transit;
        // Negative transit times prove that the clocks are not synchronised; then there are none.
        let real = with_transit && spread.count > 0 && spread.min_us >= 0.0;
        Report {
            bytes: self.bytes,
            duration_ns: self.last_ns.saturating_sub(self.first_ns.unwrap_or(0)),
            lost: self.lost(),
            out_of_order: self.out_of_order,
            datagrams: self.highest,
            ipdv_ns: self.ipdv_ns as u64,
            transit: real.then(|| Transit {
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

    fn after(numbers: &[i64]) -> Report {
        let mut tally = Tally::default();
        for (&sequence, at) in numbers.iter().zip(1..) {
            let header = Header {
                sequence,
                sent_ns: at * 1_000_000,
            };
            tally.take(header, 100, at * 1_000_000 + 5_000);
        }
        tally.report(true)
    }

    #[test]
    fn order_and_loss_as_a_stock_server_counts_them() {
        for (numbers, datagrams, lost, out_of_order) in [
            (&[1, 2, 3, -4][..], 4, 0, 0),
            (&[1, 3, -4], 4, 1, 0),
            (&[1, 3, 2, -4], 4, 0, 1),
            (&[1, 2, -9], 9, 6, 0),
            (&[i64::MIN], 1 << 63, (1 << 63) - 1, 0),
        ] {
            let report = after(numbers);
            assert_eq!(
                (report.datagrams, report.lost, report.out_of_order),
                (datagrams, lost, out_of_order),
                "{numbers:?}"
            );
            assert_eq!(report.bytes, 100 * numbers.len() as u64);
        }
    }

    #[test]
    fn what_is_missing_before_the_first_is_known() {
        for (numbers, before, lost) in [
            (&[][..], 0, 0),
            (&[1, 3], 0, 1),
            (&[2, 1, 3], 0, 0),
            (&[501, 502, -503], 500, 0),
            (&[502, 501, -504], 500, 1),
            (&[501, 501, 501], 498, 0),
            (&[0, 1], 0, 0),
        ] {
            let mut tally = Tally::default();
            for &sequence in numbers {
                tally.take(
                    Header {
                        sequence,
                        sent_ns: 0,
                    },
                    100,
                    1,
                );
            }
            let found = (tally.before(), tally.lost_since_first());
            assert_eq!(found, (before, lost), "{numbers:?}");
        }
    }

    #[test]
    fn transit_times_need_clocks_that_agree() {
        let report = after(&[1, 2, 3]);
        let transit = report.transit.unwrap();
        assert_eq!(
            (transit.min_ns, transit.max_ns, transit.count),
            (5_000, 5_000, 3)
        );
        assert_eq!(report.ipdv_ns, 0);
        assert_eq!(report.duration_ns, 2_000_000);
        let mut tally = Tally::default();
        tally.take(
            Header {
                sequence: 1,
                sent_ns: 9_000,
            },
            1,
            5_000,
        );
        assert_eq!(tally.report(true).transit, None);
    }
}
