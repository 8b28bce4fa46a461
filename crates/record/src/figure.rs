//! Figures by name: those of `--expect`, and the processor cost of a run.

use crate::comparison::BetterWhen;
use crate::expect::{FIGURES, FigureUnit, NamedFigure};
use crate::plan::RunKind;
use crate::record::{Record, Summary};

/// Processor time of both ends per unit of work: ns per byte of throughput, or per round trip of
/// latency.
///
/// Absent unless both ends report it.
pub const CPU_FIGURE: NamedFigure = NamedFigure {
    name: "cpu",
    unit: FigureUnit::Nanos,
    kinds: &[RunKind::Throughput, RunKind::Latency],
    read: cpu_ns_per_unit,
};

fn cpu_ns_per_unit(summary: &Summary) -> Option<f64> {
    // Datagrams and round trips have both costs; a TCP stream has bytes only.
    let sum_over_hosts = |read: fn(&crate::record::CpuCost) -> Option<f64>| -> Option<f64> {
        let per_host: Option<Vec<f64>> = summary.cpu.iter().map(read).collect();
        per_host
            .filter(|per_host| per_host.len() > 1)
            .map(|per_host| per_host.iter().sum())
    };
    match summary.rtt_ns {
        Some(_) => sum_over_hosts(|cost| cost.ns_per_packet),
        None => sum_over_hosts(|cost| cost.ns_per_byte),
    }
}

/// Returns the figure with this name; the record's notation (`goodput_bps`, `p99_9`) works as well.
#[must_use]
pub fn find(name: &str) -> Option<&'static NamedFigure> {
    let name = match name {
        "packets_per_second" => "pps",
        "round_trips_per_second" => "rate",
        "loss_fraction" => "loss",
        spelling => spelling.strip_suffix("_bps").unwrap_or(spelling),
    };
    let name = name.replace("p99_", "p99.");
    FIGURES
        .iter()
        .chain([&CPU_FIGURE])
        .find(|figure| figure.name == name)
}

/// Returns the names of all figures, for messages.
#[must_use]
pub fn names() -> String {
    let names: Vec<_> = FIGURES
        .iter()
        .chain([&CPU_FIGURE])
        .map(|figure| figure.name)
        .collect();
    names.join(", ")
}

/// Returns the figure by which runs of this kind are compared by default.
#[must_use]
pub fn default_for(kind: RunKind) -> &'static NamedFigure {
    let name = match kind {
        RunKind::Throughput => "goodput",
        RunKind::Latency => "p50",
        _ => "pps",
    };
    find(name).expect("the names above are figures")
}

impl NamedFigure {
    /// Returns the direction in which the figure improves.
    #[must_use]
    pub fn better_when(&self) -> BetterWhen {
        match (self.unit, self.name) {
            (FigureUnit::BitRate | FigureUnit::PerSecond, _) | (_, "round_trips") => {
                BetterWhen::Higher
            }
            _ => BetterWhen::Lower,
        }
    }

    /// Reads the figure from a run.
    #[must_use]
    pub fn value_in(&self, run: &Record) -> Option<f64> {
        (self.read)(&run.summary)
    }
}

/// Formats a value of a figure, which may be a name that is not in our list.
#[must_use]
pub fn format(figure: &str, value: f64) -> String {
    match find(figure) {
        Some(figure) if figure.unit != FigureUnit::Count => figure.unit.format(value),
        _ if value != 0.0 && (value.abs() < 1e-3 || value.abs() >= 1e9) => format!("{value:.3e}"),
        _ => {
            let digits = (3 - value.abs().max(1.0).log10().floor() as i32).max(0);
            format!("{value:.*}", usize::try_from(digits).unwrap_or(0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_name_a_figure() {
        for (name, expected) in [
            ("goodput", "goodput"),
            ("goodput_bps", "goodput"),
            ("p99_9", "p99.9"),
            ("p99.9", "p99.9"),
            ("packets_per_second", "pps"),
            ("cpu", "cpu"),
        ] {
            assert_eq!(
                find(name).map(|figure| figure.name),
                Some(expected),
                "{name}"
            );
        }
        assert!(find("speed").is_none());
    }

    #[test]
    fn rates_are_better_higher_and_times_lower() {
        for (name, better) in [
            ("goodput", BetterWhen::Higher),
            ("rate", BetterWhen::Higher),
            ("round_trips", BetterWhen::Higher),
            ("p50", BetterWhen::Lower),
            ("loss", BetterWhen::Lower),
            ("retransmits", BetterWhen::Lower),
            ("cpu", BetterWhen::Lower),
        ] {
            assert_eq!(find(name).unwrap().better_when(), better, "{name}");
        }
    }

    #[test]
    fn values_of_other_figures_keep_four_digits() {
        for (value, expected) in [
            (0.0, "0.000"),
            (12.345_6, "12.35"),
            (98_765.4, "98765"),
            (2.5e9, "2.500e9"),
        ] {
            assert_eq!(format("my own", value), expected);
        }
        assert_eq!(format("goodput", 9.41e9), "9.41 Gb/s");
    }
}
