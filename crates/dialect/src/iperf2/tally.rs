//! What a receiver of datagrams counts, in iperf2's way.

use super::datagram::Header;
use super::report::{Report, Transit};

/// Accounts for the datagrams of one flow. No call allocates.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    bytes: u64,
    arrived: u64,
    /// The highest number that came, and the lowest.
    highest: u64,
    lowest: Option<u64>,
    out_of_order: u64,
    first_ns: Option<u64>,
    last_ns: u64,
    last_transit_ns: Option<i64>,
    ipdv_ns: f64,
    transit: Spread,
}

/// Mean and spread of the transit times, in microseconds (Welford).
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
    /// Takes a datagram of `bytes` that arrived at `now_ns` of the wall clock. The end's datagram is
    /// one too, with the number behind its sign.
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
            // Repeated ones are among these: nobody remembers which came.
            self.out_of_order += 1;
        }
        // Clocks may be anywhere; only differences of transits are of use without a common one.
        let transit = now_ns.wrapping_sub(header.sent_ns) as i64;
        if let Some(last) = self.last_transit_ns.replace(transit) {
            let difference = transit.wrapping_sub(last).unsigned_abs() as f64;
            self.ipdv_ns += (difference - self.ipdv_ns) / 16.0;
        }
        self.transit.take(transit as f64 / 1000.0);
    }

    /// Datagrams that came, repeated ones and the end included.
    #[must_use]
    pub fn arrived(&self) -> u64 {
        self.arrived
    }

    /// Their bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Numbers below the highest one that did not come.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.highest.saturating_sub(self.arrived)
    }

    /// Those among them below the lowest one that came. Stock servers count them too, and may never have been
    /// sent any: a client goes on that was stopped for longer than its flow was waited for.
    #[must_use]
    pub fn before(&self) -> u64 {
        self.lowest
            .map_or(0, |lowest| lowest.saturating_sub(1))
            .min(self.lost())
    }

    /// Numbers between the lowest one that came and the highest that did not come.
    #[must_use]
    pub fn lost_since_first(&self) -> u64 {
        self.lost() - self.before()
    }

    /// Arrival less stamp of the last datagram, in nanoseconds; `None` before the first.
    #[inline]
    #[must_use]
    pub fn last_transit_ns(&self) -> Option<i64> {
        self.last_transit_ns
    }

    /// What a server says of it. Transit times are told when the client says that the clocks agree.
    #[must_use]
    pub fn report(&self, with_transit: bool) -> Report {
        let ns = |us: f64| (us * 1000.0).max(0.0) as u64;
        let spread = &self.transit;
        // Clocks that do not agree make times that cannot be; then there are none.
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
