//! Figures by name: those of `--expect`, and the processor cost of a run.

use crate::comparison::Better;
use crate::expect::{FIGURES, Figure, Unit};
use crate::plan::Kind;
use crate::record::{Record, Summary};

/// Processor time of both ends per unit of work: ns per byte of throughput, or per round trip of
/// latency.
///
/// Absent unless both ends report it.
pub const CPU: Figure = Figure {
    name: "cpu",
    unit: Unit::Nanos,
    kinds: &[Kind::Throughput, Kind::Latency],
    read: cpu,
};

fn cpu(summary: &Summary) -> Option<f64> {
    // Datagrams and round trips have both costs; a TCP stream has bytes only.
    let each = |read: fn(&crate::record::CpuCost) -> Option<f64>| -> Option<f64> {
        let ends: Option<Vec<f64>> = summary.cpu.iter().map(read).collect();
        ends.filter(|ends| ends.len() > 1)
            .map(|ends| ends.iter().sum())
    };
    match summary.rtt_ns {
        Some(_) => each(|cost| cost.ns_per_packet),
        None => each(|cost| cost.ns_per_byte),
    }
}

/// Returns the figure with this name; the record's notation (`goodput_bps`, `p99_9`) works as well.
#[must_use]
pub fn named(name: &str) -> Option<&'static Figure> {
    let name = match name {
        "packets_per_second" => "pps",
        "round_trips_per_second" => "rate",
        "loss_fraction" => "loss",
        other => other.strip_suffix("_bps").unwrap_or(other),
    };
    let name = name.replace("p99_", "p99.");
    FIGURES
        .iter()
        .chain([&CPU])
        .find(|figure| figure.name == name)
}

/// Returns the names of all figures, for messages.
#[must_use]
pub fn names() -> String {
    let names: Vec<_> = FIGURES
        .iter()
        .chain([&CPU])
        .map(|figure| figure.name)
        .collect();
    names.join(", ")
}

/// Returns the figure by which runs of this kind are compared by default.
#[must_use]
pub fn of_kind(kind: Kind) -> &'static Figure {
    let name = match kind {
        Kind::Throughput => "goodput",
        Kind::Latency => "p50",
        _ => "pps",
    };
    named(name).expect("the names above are figures")
}

impl Figure {
    /// Returns the direction in which the figure improves.
    #[must_use]
    pub fn better(&self) -> Better {
        match (self.unit, self.name) {
            (Unit::BitRate | Unit::PerSecond, _) | (_, "round_trips") => Better::Higher,
            _ => Better::Lower,
        }
    }

    /// Reads the figure from a run.
    #[must_use]
    pub fn of(&self, run: &Record) -> Option<f64> {
        (self.read)(&run.summary)
    }
}

/// Formats a value of a figure, which may be a name that is not in our list.
#[must_use]
pub fn format(figure: &str, value: f64) -> String {
    match named(figure) {
        Some(figure) if figure.unit != Unit::Count => figure.unit.format(value),
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
    fn names_of_both_spellings() {
        for (name, want) in [
            ("goodput", "goodput"),
            ("goodput_bps", "goodput"),
            ("p99_9", "p99.9"),
            ("p99.9", "p99.9"),
            ("packets_per_second", "pps"),
            ("cpu", "cpu"),
        ] {
            assert_eq!(named(name).map(|figure| figure.name), Some(want), "{name}");
        }
        assert!(named("speed").is_none());
    }

    #[test]
    fn rates_are_better_higher_and_times_lower() {
        for (name, better) in [
            ("goodput", Better::Higher),
            ("rate", Better::Higher),
            ("round_trips", Better::Higher),
            ("p50", Better::Lower),
            ("loss", Better::Lower),
            ("retransmits", Better::Lower),
            ("cpu", Better::Lower),
        ] {
            assert_eq!(named(name).unwrap().better(), better, "{name}");
        }
    }

    #[test]
    fn values_of_other_figures_keep_four_digits() {
        for (value, want) in [
            (0.0, "0.000"),
            (12.345_6, "12.35"),
            (98_765.4, "98765"),
            (2.5e9, "2.500e9"),
        ] {
            assert_eq!(format("my own", value), want);
        }
        assert_eq!(format("goodput", 9.41e9), "9.41 Gb/s");
    }
}
