//! Steal time: processor time that the hypervisor gave to other virtual machines.

use std::fs;

/// Processor time since boot, summed over all processors, in ticks of [`ticks_per_second`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StealTicks {
    /// Time in which a processor had work but the hypervisor ran another virtual machine.
    pub steal: u64,
    /// Total time, idle time included.
    pub total: u64,
}

impl StealTicks {
    /// Reads the counters; `None` where /proc/stat is unreadable.
    #[must_use]
    pub fn read() -> Option<Self> {
        parse_ticks(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// Returns the fraction of the time since `earlier` that was stolen, `0.0..=1.0`; `None` when
    /// no time passed.
    #[must_use]
    pub fn stolen_fraction_since(&self, earlier: &Self) -> Option<f64> {
        let total = self.total.checked_sub(earlier.total)?;
        let steal = self.steal.checked_sub(earlier.steal)?;
        (total > 0).then(|| steal as f64 / total as f64)
    }

    /// Returns the time stolen since `earlier`, summed over all processors, ns. `None` when a
    /// processor went offline.
    #[must_use]
    pub fn stolen_ns_since(&self, earlier: &Self) -> Option<u64> {
        let steal = self.steal.checked_sub(earlier.steal)?;
        Some(steal.saturating_mul(1_000_000_000 / ticks_per_second().max(1)))
    }
}

/// Returns the ticks stolen since boot, summed over all processors; `None` where the kernel does
/// not count them.
#[must_use]
pub fn read_steal_ticks() -> Option<u64> {
    StealTicks::read().map(|ticks| ticks.steal)
}

/// Returns the tick rate of /proc/stat, usually 100 per second.
#[must_use]
pub fn ticks_per_second() -> u64 {
    rustix::param::clock_ticks_per_second()
}

fn parse_ticks(stat: &str) -> Option<StealTicks> {
    // proc(5): user nice system idle iowait irq softirq steal guest guest_nice. Guest time is part
    // of user and nice time already.
    const STEAL: usize = 7;
    let line = stat
        .lines()
        .find(|line| line.split_whitespace().next() == Some("cpu"))?;
    let numbers: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .take(STEAL + 1)
        .map(|number| number.parse().ok())
        .collect::<Option<_>>()?;
    Some(StealTicks {
        steal: *numbers.get(STEAL)?,
        total: numbers
            .iter()
            .fold(0, |sum, number| sum.saturating_add(*number)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_eighth_number_is_steal() {
        let table = [
            (
                "cpu  1 2 3 4 5 6 7 8 90 90\ncpu0 9 9 9 9 9 9 9 9 9 9\n",
                Some(StealTicks {
                    steal: 8,
                    total: 36,
                }),
            ),
            ("cpu  1 2 3 4\n", None),
            ("cpu  1 2 3 4 5 6 x 8\n", None),
            ("intr 1\n", None),
            ("", None),
        ];
        for (text, expected) in table {
            assert_eq!(parse_ticks(text), expected, "{text:?}");
        }
    }

    #[test]
    fn stolen_fraction_between_two_reads() {
        let ticks = |steal, total| StealTicks { steal, total };
        assert_eq!(
            ticks(30, 300).stolen_fraction_since(&ticks(10, 200)),
            Some(0.2)
        );
        assert_eq!(ticks(10, 200).stolen_fraction_since(&ticks(10, 200)), None);
        // A processor that goes offline takes its ticks with it.
        assert_eq!(ticks(10, 100).stolen_fraction_since(&ticks(10, 200)), None);
        let tick_ns = 1_000_000_000 / ticks_per_second();
        let since = ticks(30, 300).stolen_ns_since(&ticks(10, 200));
        assert_eq!(since, Some(20 * tick_ns));
        assert_eq!(ticks(9, 300).stolen_ns_since(&ticks(10, 200)), None);
    }

    #[test]
    fn this_machine_counts_upwards() {
        let Some(before) = read_steal_ticks() else {
            println!("needs /proc/stat");
            return;
        };
        assert!(read_steal_ticks().unwrap() >= before);
        assert!(ticks_per_second() > 0);
    }
}
