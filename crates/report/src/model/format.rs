//! Numbers, durations, addresses and estimates as text.

use linerate_record::expect::FigureUnit;
use linerate_stats::statistics::Estimate;
use linerate_stats::units::format_count;

/// Placeholder for an unknown value.
pub(crate) const UNKNOWN: &str = "-";

/// Formats a value, or returns the placeholder for an unknown one.
pub(crate) fn or_unknown<T>(value: Option<T>, format: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), format)
}

/// Formats a socket address: `10.77.0.2:5201`, `[fd00::1]:5201`.
pub(crate) fn format_address(host: &str, port: u16) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// Formats a configured duration without padding zeros: `10 s`, `1.5 s`, `500 ms`.
pub(crate) fn format_duration(nanoseconds: u64) -> String {
    let (unit, name) = match nanoseconds {
        n if n >= 1_000_000_000 => (1e9, "s"),
        n if n >= 1_000_000 => (1e6, "ms"),
        n if n >= 1_000 => (1e3, "us"),
        _ => (1.0, "ns"),
    };
    format!("{} {name}", format_short(nanoseconds as f64 / unit))
}

/// Formats a number with up to three decimals and no trailing zeros.
pub(crate) fn format_short(value: f64) -> String {
    let text = format!("{value:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" {
        "0".to_owned()
    } else {
        text.to_owned()
    }
}

/// Formats a ratio with three significant digits, or more for large ratios: `0.736`, `2.57`,
/// `1,544`.
pub(crate) fn format_ratio(ratio: f64) -> String {
    match ratio {
        r if r < 0.0995 => format!("{r:.4}"),
        r if r < 0.9995 => format!("{r:.3}"),
        r if r < 1.1 => format!("{r:.3}"),
        r if r < 9.995 => format!("{r:.2}"),
        r if r < 99.95 => format!("{r:.1}"),
        r => format_count(r.round() as u64),
    }
}

/// Formats a factor with one decimal below ten: `7.9x`, `12x`.
pub(crate) fn format_factor(ratio: f64) -> String {
    if ratio >= 9.95 {
        format!("{ratio:.0}x")
    } else {
        format!("{ratio:.1}x")
    }
}

/// Formats a relative difference with two significant digits: `4.1 %`.
pub(crate) fn format_relative(share: f64) -> String {
    let percent = share * 100.0;
    match percent.abs() {
        p if p < 0.095 => format!("{percent:.2} %"),
        p if p < 9.95 => format!("{percent:.1} %"),
        _ => format!("{percent:.0} %"),
    }
}

/// Formats a relative change: `+4.1 %`.
pub(crate) fn format_change(change: f64) -> String {
    format!(
        "{}{}",
        if change < 0.0 { "-" } else { "+" },
        format_relative(change.abs())
    )
}

/// Formats a value in its unit; a fraction of a count has up to three decimals.
pub(crate) fn format_value(unit: FigureUnit, value: f64) -> String {
    match unit {
        FigureUnit::Count if value.fract() != 0.0 => format_short(value),
        unit => unit.format(value),
    }
}

/// Formats a figure with its interval; the interval is omitted when it rounds to the figure itself.
pub(crate) fn format_estimate(unit: FigureUnit, value: &Estimate) -> String {
    let format = |value: f64| format_value(unit, value);
    let (median, low, high) = (format(value.median), format(value.low), format(value.high));
    match low == median && high == median {
        true => median,
        false => format!("{median} ({low} to {high})"),
    }
}

/// Formats the bounds of an interval over runs. A single run has none: it does not show the spread
/// between runs.
pub(crate) fn format_bounds(
    value: Option<Estimate>,
    format: impl Fn(f64) -> String,
) -> [String; 2] {
    let value = value.filter(|value| value.runs > 1);
    [
        or_unknown(value, |value| format(value.low)),
        or_unknown(value, |value| format(value.high)),
    ]
}

/// Returns the headings of an interval of the median over a number of runs: 95 % takes six runs, and
/// with fewer the interval has the extremes.
pub(crate) fn interval_headings(runs: usize) -> [&'static str; 2] {
    match runs {
        0..6 => ["lowest", "highest"],
        _ => ["95 % CI low", "high"],
    }
}

/// Legend of the intervals.
pub(crate) const INTERVAL_LEGEND: &str = "In brackets: 95 % confidence interval of the median over repeats, with \
fewer than six the lowest and the highest. A single run has none: use --repeat.";

/// Capitalises the first letter of a sentence.
pub(crate) fn capitalise(text: &str) -> String {
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_uppercase().chain(letters).collect(),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_have_the_digits_that_are_read() {
        for (value, text) in [
            (0.002, "0.0020"),
            (0.7361, "0.736"),
            (1.0043, "1.004"),
            (2.567, "2.57"),
            (34.351, "34.4"),
            (1544.462, "1,544"),
        ] {
            assert_eq!(format_ratio(value), text);
        }
    }

    #[test]
    fn chosen_lengths_print_short() {
        for (nanoseconds, expected) in [
            (10_000_000_000, "10 s"),
            (1_500_000_000, "1.5 s"),
            (500_000_000, "500 ms"),
            (20_000, "20 us"),
            (0, "0 ns"),
        ] {
            assert_eq!(format_duration(nanoseconds), expected);
        }
    }

    #[test]
    fn addresses_of_both_families() {
        assert_eq!(format_address("10.0.0.1", 7), "10.0.0.1:7");
        assert_eq!(format_address("fd00::1", 7), "[fd00::1]:7");
        assert_eq!(format_address("[fd00::1]", 7), "[fd00::1]:7");
    }
}
