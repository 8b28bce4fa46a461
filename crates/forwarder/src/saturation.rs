//! Search for the number of packets in flight that gives the highest rate. Decides without ports.

use linerate_record::forward::{SaturationCurve, SaturationPoint};
use linerate_record::ids::SearchEnd;
use linerate_stats::statistics::median;

/// Largest number of bursts per stream: 32768 packets exceed any ring here.
const MAX_BURSTS: u64 = 1024;
/// Ratio to the best rate so far above which a step counts as faster.
const MIN_RISE_RATIO: f64 = 1.03;
/// Number of steps in a row that are not faster, after which the sweep ends: a single one may have
/// been disturbed.
const FLAT_STEPS: usize = 2;
/// Fraction of the highest rate from which on a step belongs to the plateau.
const PLATEAU_FRACTION: f64 = 0.95;

/// Sweep over 1, 2, 4, … bursts for one number of threads.
#[derive(Clone, Debug, Default)]
pub struct SaturationSweep {
    points: Vec<SaturationPoint>,
}

impl SaturationSweep {
    /// Returns the next number of bursts; `None` at the end of the sweep.
    #[must_use]
    pub fn next_bursts(&self) -> Option<u64> {
        let Some(last) = self.points.last() else {
            return Some(1);
        };
        match self.stop_reason() {
            Some(_) => None,
            None => Some(last.tx_first * 2),
        }
    }

    /// Records the result of a step.
    pub fn record(&mut self, point: SaturationPoint) {
        self.points.push(point);
    }

    /// Returns the reason why the sweep has ended; `None` before its end.
    fn stop_reason(&self) -> Option<SearchEnd> {
        let [.., last] = &self.points[..] else {
            return None;
        };
        // Packets that a full ring rejects are not in flight: their number has reached its maximum.
        let previous = self.points.len().checked_sub(2).map(|at| &self.points[at]);
        // A much lower number is no full ring: another process did not run while the packets were
        // sent.
        let is_as_full = |previous: &SaturationPoint| {
            last.in_flight <= previous.in_flight && last.in_flight * 4 >= previous.in_flight * 3
        };
        if previous.is_some_and(is_as_full) && !last.disturbed {
            return Some(SearchEnd::Full);
        }
        if self.flat_steps() >= FLAT_STEPS {
            return Some(SearchEnd::Plateau);
        }
        (last.tx_first >= MAX_BURSTS).then_some(SearchEnd::Limit)
    }

    /// Returns the number of steps at the end that are not faster than the best step before them.
    fn flat_steps(&self) -> usize {
        let mut best: f64 = 0.0;
        let mut flat = 0;
        // A disturbed step is slower for that reason and no sign of a plateau.
        for point in self.points.iter().filter(|point| !point.disturbed) {
            if point.packets_per_second > best * MIN_RISE_RATIO {
                flat = 0;
            } else {
                flat += 1;
            }
            best = best.max(point.packets_per_second);
        }
        flat
    }

    /// Returns the result of the sweep.
    #[must_use]
    pub fn conclude(self, cores: u32) -> SaturationCurve {
        let stopped_by = self.stop_reason().unwrap_or(SearchEnd::Interrupted).into();
        let is_disturbed = self.points.iter().any(|point| point.disturbed);
        let best = self.points.iter().map(|point| point.packets_per_second);
        let best = best.fold(0.0, f64::max);
        let plateau = self.points.iter();
        let plateau = plateau.filter(|point| {
            best > 0.0 && !is_disturbed && point.packets_per_second >= best * PLATEAU_FRACTION
        });
        let rates: Vec<f64> = plateau
            .clone()
            .map(|point| point.packets_per_second)
            .collect();
        SaturationCurve {
            cores,
            plateau_pps: median(&rates),
            plateau_in_flight: plateau.map(|point| point.in_flight).min(),
            stopped_by,
            points: self.points,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a sweep with a device of known rate.
    fn run_sweep(rate: impl Fn(u64) -> f64, capacity: u64) -> SaturationCurve {
        let mut sweep = SaturationSweep::default();
        while let Some(tx_first) = sweep.next_bursts() {
            let in_flight = (tx_first * 32).min(capacity);
            sweep.record(SaturationPoint {
                tx_first,
                in_flight,
                packets_per_second: rate(in_flight),
                ..SaturationPoint::default()
            });
        }
        sweep.conclude(1)
    }

    #[test]
    fn a_rate_that_rises_to_a_plateau() {
        // Round trip 100 us, at most 10 M/s: full with 1000 packets in flight.
        let saturation = run_sweep(|in_flight| (in_flight as f64 / 100e-6).min(10e6), u64::MAX);
        assert_eq!(saturation.stopped_by, SearchEnd::Plateau);
        assert_eq!(saturation.plateau_in_flight, Some(1024));
        assert_eq!(saturation.plateau_pps, Some(10e6));
        assert_eq!(saturation.points.len(), 8);
    }

    #[test]
    fn a_rate_that_never_changes() {
        let saturation = run_sweep(|_| 5.0, u64::MAX);
        assert_eq!(
            (saturation.points.len(), saturation.plateau_in_flight),
            (3, Some(32))
        );
    }

    #[test]
    fn a_ring_that_is_full() {
        let saturation = run_sweep(|in_flight| in_flight as f64, 1024);
        assert_eq!(saturation.stopped_by, SearchEnd::Full);
        assert_eq!(saturation.plateau_in_flight, Some(1024));
    }

    #[test]
    fn a_rate_that_rises_for_ever() {
        let saturation = run_sweep(|in_flight| in_flight as f64, u64::MAX);
        assert_eq!(saturation.stopped_by, SearchEnd::Limit);
        assert_eq!(
            saturation.points.last().map(|point| point.tx_first),
            Some(MAX_BURSTS)
        );
    }

    /// A step with 8 % of its core does not mean that the rate no longer rises.
    #[test]
    fn disturbed_steps_name_no_plateau() {
        let mut sweep = SaturationSweep::default();
        let mut disturbed = 0;
        while let Some(tx_first) = sweep.next_bursts() {
            let is_disturbed = tx_first == 4 || tx_first == 8;
            disturbed += usize::from(is_disturbed);
            sweep.record(SaturationPoint {
                tx_first,
                in_flight: tx_first * 32,
                packets_per_second: if is_disturbed {
                    1.0
                } else {
                    (tx_first as f64).min(64.0)
                },
                disturbed: is_disturbed,
                ..SaturationPoint::default()
            });
        }
        let saturation = sweep.conclude(1);
        assert_eq!(disturbed, 2);
        // The sweep continued to the real plateau.
        assert_eq!(
            saturation.points.last().map(|point| point.tx_first),
            Some(256)
        );
        assert_eq!(
            (saturation.plateau_pps, saturation.plateau_in_flight),
            (None, None)
        );
    }

    /// A single step that found a full ring, because the peer did not run, does not end the sweep.
    #[test]
    fn stalled_peer_is_no_full_ring() {
        let mut sweep = SaturationSweep::default();
        while let Some(tx_first) = sweep.next_bursts() {
            let in_flight = match tx_first {
                16 => 64,
                _ => (tx_first * 32).min(4096),
            };
            sweep.record(SaturationPoint {
                tx_first,
                in_flight,
                packets_per_second: if tx_first == 16 {
                    0.0
                } else {
                    in_flight as f64
                },
                ..SaturationPoint::default()
            });
        }
        let saturation = sweep.conclude(1);
        assert_eq!(saturation.stopped_by, SearchEnd::Full);
        assert_eq!(saturation.plateau_in_flight, Some(4096));
    }

    #[test]
    fn zero_rate_has_no_plateau() {
        let saturation = run_sweep(|_| 0.0, u64::MAX);
        assert_eq!(
            (saturation.plateau_pps, saturation.plateau_in_flight),
            (None, None)
        );
        assert_eq!(
            SaturationSweep::default().conclude(1).stopped_by,
            SearchEnd::Interrupted
        );
    }
}
