//! How many packets must be in flight for the highest rate: decided without ports.

use linerate_metric::forward::{Saturation, SaturationPoint};
use linerate_metric::statistics::median;

/// Largest step: 32768 packets of each stream are more than any ring here holds.
const LARGEST: u64 = 1024;
/// A step that is not this much faster than all before it does not rise.
const RISE: f64 = 1.03;
/// Steps in a row that do not rise before the walk ends: one may have been disturbed.
const FLAT_STEPS: usize = 2;
/// Share of the highest rate from which on a step lies on the plateau.
const PLATEAU: f64 = 0.95;

/// The walk over 1, 2, 4, … bursts, for one number of threads.
#[derive(Clone, Debug, Default)]
pub struct Walk {
    points: Vec<SaturationPoint>,
}

impl Walk {
    /// The next step; none when the walk is over.
    #[must_use]
    pub fn next_step(&self) -> Option<u64> {
        let Some(last) = self.points.last() else {
            return Some(1);
        };
        match self.end() {
            Some(_) => None,
            None => Some(last.tx_first * 2),
        }
    }

    /// Takes what a step gave.
    pub fn take(&mut self, point: SaturationPoint) {
        self.points.push(point);
    }

    /// Why the walk is over; none while it is not.
    fn end(&self) -> Option<&'static str> {
        let [.., last] = &self.points[..] else {
            return None;
        };
        // Packets that found no room are not in flight: more of them cannot be.
        let before = self.points.len().checked_sub(2).map(|at| &self.points[at]);
        // Far fewer than before are no full ring: another process had no turn while they were put in.
        let is_as_full = |before: &SaturationPoint| {
            last.in_flight <= before.in_flight && last.in_flight * 4 >= before.in_flight * 3
        };
        if before.is_some_and(is_as_full) && !last.disturbed {
            return Some("full");
        }
        if self.flat_steps() >= FLAT_STEPS {
            return Some("plateau");
        }
        (last.tx_first >= LARGEST).then_some("limit")
    }

    /// Steps at the end that are not faster than the fastest before them.
    fn flat_steps(&self) -> usize {
        let mut best: f64 = 0.0;
        let mut flat = 0;
        // A step that something else disturbed is slower for that: it says nothing of a plateau.
        for point in self.points.iter().filter(|point| !point.disturbed) {
            if point.packets_per_second > best * RISE {
                flat = 0;
            } else {
                flat += 1;
            }
            best = best.max(point.packets_per_second);
        }
        flat
    }

    /// What the walk found.
    #[must_use]
    pub fn conclude(self, cores: u32) -> Saturation {
        let stopped_by = self.end().unwrap_or("interrupted").to_owned();
        let is_disturbed = self.points.iter().any(|point| point.disturbed);
        let best = self.points.iter().map(|point| point.packets_per_second);
        let best = best.fold(0.0, f64::max);
        let level = self.points.iter();
        let level = level.filter(|point| {
            best > 0.0 && !is_disturbed && point.packets_per_second >= best * PLATEAU
        });
        let rates: Vec<f64> = level
            .clone()
            .map(|point| point.packets_per_second)
            .collect();
        Saturation {
            cores,
            plateau_pps: median(&rates),
            plateau_in_flight: level.map(|point| point.in_flight).min(),
            stopped_by,
            points: self.points,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Walks against a device whose rate is known.
    fn walk(rate: impl Fn(u64) -> f64, room: u64) -> Saturation {
        let mut walk = Walk::default();
        while let Some(tx_first) = walk.next_step() {
            let in_flight = (tx_first * 32).min(room);
            walk.take(SaturationPoint {
                tx_first,
                in_flight,
                packets_per_second: rate(in_flight),
                ..SaturationPoint::default()
            });
        }
        walk.conclude(1)
    }

    #[test]
    fn a_rate_that_rises_to_a_plateau() {
        // 100 us there and back, 10 M/s at most: full with 1000 packets in flight.
        let found = walk(|in_flight| (in_flight as f64 / 100e-6).min(10e6), u64::MAX);
        assert_eq!(found.stopped_by, "plateau");
        assert_eq!(found.plateau_in_flight, Some(1024));
        assert_eq!(found.plateau_pps, Some(10e6));
        assert_eq!(found.points.len(), 8);
    }

    #[test]
    fn a_rate_that_never_changes() {
        let found = walk(|_| 5.0, u64::MAX);
        assert_eq!((found.points.len(), found.plateau_in_flight), (3, Some(32)));
    }

    #[test]
    fn a_ring_that_is_full() {
        let found = walk(|in_flight| in_flight as f64, 1024);
        assert_eq!(found.stopped_by, "full");
        assert_eq!(found.plateau_in_flight, Some(1024));
    }

    #[test]
    fn a_rate_that_rises_for_ever() {
        let found = walk(|in_flight| in_flight as f64, u64::MAX);
        assert_eq!(found.stopped_by, "limit");
        assert_eq!(
            found.points.last().map(|point| point.tx_first),
            Some(LARGEST)
        );
    }

    /// A step that had 8 % of its core is no sign that the rate rises no more.
    #[test]
    fn disturbed_steps_name_no_plateau() {
        let mut walk = Walk::default();
        let mut disturbed = 0;
        while let Some(tx_first) = walk.next_step() {
            let is_disturbed = tx_first == 4 || tx_first == 8;
            disturbed += usize::from(is_disturbed);
            walk.take(SaturationPoint {
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
        let found = walk.conclude(1);
        assert_eq!(disturbed, 2);
        // The walk went on over them, to the real plateau.
        assert_eq!(found.points.last().map(|point| point.tx_first), Some(256));
        assert_eq!((found.plateau_pps, found.plateau_in_flight), (None, None));
    }

    /// One step that found no room, because nobody at the other end took frames, ends no walk.
    #[test]
    fn a_far_end_without_a_turn_is_no_full_ring() {
        let mut walk = Walk::default();
        while let Some(tx_first) = walk.next_step() {
            let in_flight = match tx_first {
                16 => 64,
                _ => (tx_first * 32).min(4096),
            };
            walk.take(SaturationPoint {
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
        let found = walk.conclude(1);
        assert_eq!(found.stopped_by, "full");
        assert_eq!(found.plateau_in_flight, Some(4096));
    }

    #[test]
    fn nothing_at_all() {
        let found = walk(|_| 0.0, u64::MAX);
        assert_eq!((found.plateau_pps, found.plateau_in_flight), (None, None));
        assert_eq!(Walk::default().conclude(1).stopped_by, "interrupted");
    }
}
