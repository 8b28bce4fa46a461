//! Comparison of two sides A and B in one figure: table of the sides, verdict, notes.

use linerate_record::comparison::{
    BetterWhen, Comparison, ComparisonSide, ComparisonVerdict, RankTest, min_samples,
};
use linerate_record::expect::FigureUnit;
use linerate_record::figure;
use linerate_stats::statistics::Estimate;

use crate::model::{self, Grid, count_of, format_change, format_relative};
use crate::style::strip_control_characters;

/// Describes the comparison: `goodput of A and B: 8 alternating pairs`.
pub(crate) fn title(comparison: &Comparison) -> String {
    let name = strip_control_characters(&comparison.figure);
    match comparison.test {
        RankTest::SignedRank => {
            let pairs = comparison
                .pairs
                .iter()
                .filter(|pair| pair.dropped.is_none());
            format!(
                "{name} of A and B: {}",
                count_of(pairs.count() as u64, "alternating pair")
            )
        }
        RankTest::MannWhitney => format!("{name} of A and B, independent runs"),
    }
}

/// Returns the table of both sides with their descriptions.
pub(crate) fn side_table(comparison: &Comparison) -> Grid {
    let mut headings = vec!["side", "description"];
    headings.extend(&side_headings(comparison)[1..]);
    let with_label = |mut row: Vec<String>, side: &ComparisonSide| {
        row.insert(1, describe_side(side));
        row
    };
    let [a, b] = side_rows(comparison);
    Grid {
        headings: headings.into_iter().map(str::to_owned).collect(),
        rows: vec![with_label(a, &comparison.a), with_label(b, &comparison.b)],
        left_columns: 2,
    }
}

/// Returns the headings of the figures of a side.
pub(crate) fn side_headings(comparison: &Comparison) -> [&'static str; 5] {
    let runs = [&comparison.a, &comparison.b].map(|side| side.value.map_or(0, |value| value.runs));
    let [low, high] = model::interval_headings(runs[0].min(runs[1]));
    ["side", "median", low, high, "runs"]
}

/// Returns the letter of a side with the name that the user gave: `A (old)`.
pub(crate) fn side_name(letter: &str, side: &ComparisonSide) -> String {
    match &side.name {
        Some(name) => format!("{letter} ({})", strip_control_characters(name)),
        None => letter.to_owned(),
    }
}

/// Returns the description of a side: its command, and the one that ran before it.
pub(crate) fn describe_side(side: &ComparisonSide) -> String {
    let text = match &side.prepare {
        Some(line) => format!("{} (after: {line})", side.label),
        None => side.label.clone(),
    };
    strip_control_characters(&text).into_owned()
}

pub(crate) fn side_rows(comparison: &Comparison) -> [Vec<String>; 2] {
    let value = |value: f64| figure::format(&comparison.figure, value);
    let row = |letter: &str, side: &ComparisonSide| {
        let [low, high] = model::format_bounds(side.value, value);
        vec![
            side_name(letter, side),
            model::or_unknown(side.value, |v| value(v.median)),
            low,
            high,
            model::or_unknown(side.value, |v| v.runs.to_string()),
        ]
    };
    [row("A", &comparison.a), row("B", &comparison.b)]
}

/// Returns notes on the verdict: the number of pairs needed, and the excluded pairs.
pub(crate) fn verdict_notes(comparison: &Comparison) -> Vec<String> {
    let mut notes = vec![describe_needed_runs(comparison)];
    let dropped = comparison
        .pairs
        .iter()
        .filter(|pair| pair.dropped.is_some());
    let dropped = match dropped.count() {
        0 => return notes,
        1 => "1 pair was excluded".to_owned(),
        n => format!("{n} pairs were excluded"),
    };
    notes.push(format!(
        "{dropped}: the threads moved to other CPUs, because the cache-line round trip between the CPUs \
         changed between the two runs."
    ));
    notes
}

/// Describes the verdict in a sentence.
pub(crate) fn describe_verdict(comparison: &Comparison) -> String {
    let Some(estimate) = comparison.ratio.or(comparison.difference) else {
        return "Undecided: no valid pair.".to_owned();
    };
    let name = strip_control_characters(&comparison.figure);
    let b = side_name("B", &comparison.b);
    let p = model::or_unknown(comparison.p_value, format_p_value);
    let (size, low, high, largest) = match comparison.ratio {
        Some(ratio) => describe_ratio(ratio, comparison.largest_difference),
        None => describe_difference(&comparison.figure, estimate),
    };
    let bounds = format!(
        "{low} to {high} with {} % confidence, {p}",
        (comparison.confidence * 100.0).round()
    );
    match comparison.verdict {
        ComparisonVerdict::Faster => format!(
            "{b} is {}: its {name} is {size} ({bounds}).",
            better_adjective(comparison)
        ),
        ComparisonVerdict::Slower if comparison.regression => {
            format!(
                "{b} is {}: its {name} is {size} ({bounds}).",
                worse_adjective(comparison)
            )
        }
        ComparisonVerdict::Slower => format!(
            "{b} is {}, but by less than the relevant effect: its {name} is {size} ({bounds}).",
            worse_adjective(comparison)
        ),
        ComparisonVerdict::NoDifference if largest.is_empty() => {
            format!("No difference: {name} was equal on both sides each time ({bounds}).")
        }
        ComparisonVerdict::NoDifference => {
            format!("No difference larger than {largest} ({bounds}).")
        }
        ComparisonVerdict::Undecided if estimate.runs < 2 => format!(
            "Undecided: B's {name} is {size}, but with one run per side a difference cannot be separated \
             from noise."
        ),
        ComparisonVerdict::Undecided => {
            let noun = match comparison.test {
                RankTest::SignedRank => "pair",
                RankTest::MannWhitney => "run",
            };
            let sides = match comparison.test {
                RankTest::SignedRank => "",
                RankTest::MannWhitney => " per side",
            };
            let min_samples = min_samples(comparison.test, comparison.significance);
            let samples = count_samples(comparison);
            match samples < min_samples {
                true => format!(
                    "Undecided: only {}{sides}, at least {min_samples} are needed. \
                     B's {name} is {size} ({bounds}).",
                    count_of(samples as u64, noun)
                ),
                false => format!(
                    "Undecided: the noise hides a difference of {}. B's {name} is {size} ({bounds}).",
                    format_relative(comparison.effect)
                ),
            }
        }
    }
}

/// Describes a ratio: its size, the bounds of its interval, and the largest plausible difference.
/// The last is empty if the sides never differed.
fn describe_ratio(ratio: Estimate, largest: Option<f64>) -> (String, String, String, String) {
    let change = ratio.median - 1.0;
    let direction = if change > 0.0 { "higher" } else { "lower" };
    let size = match change.abs() >= 1.0 {
        true => format!("{} as high", model::format_factor(ratio.median)),
        false => format!("{} {direction}", format_relative(change.abs())),
    };
    let [low, high] = [ratio.low, ratio.high].map(|bound| format_change(bound - 1.0));
    let largest = match (ratio.low, ratio.high) == (1.0, 1.0) {
        true => String::new(),
        false => model::or_unknown(largest, format_relative),
    };
    (size, low, high, largest)
}

/// Like [`describe_ratio`] for a difference, used when a figure was zero.
fn describe_difference(figure: &str, difference: Estimate) -> (String, String, String, String) {
    let direction = if difference.median > 0.0 {
        "higher"
    } else {
        "lower"
    };
    let size = format!(
        "{} {direction}",
        figure::format(figure, difference.median.abs())
    );
    let [low, high] =
        [difference.low, difference.high].map(|bound| format_difference(figure, bound));
    let largest = difference.low.abs().max(difference.high.abs());
    let largest = match largest > 0.0 {
        true => figure::format(figure, largest),
        false => String::new(),
    };
    (size, low, high, largest)
}

/// Number of valid pairs, or of runs of the side that has fewer.
fn count_samples(comparison: &Comparison) -> usize {
    match comparison.test {
        RankTest::SignedRank => {
            let counts = comparison
                .pairs
                .iter()
                .filter(|pair| pair.dropped.is_none());
            counts.count()
        }
        RankTest::MannWhitney => {
            let runs = |side: &ComparisonSide| side.value.map_or(0, |value| value.runs);
            runs(&comparison.a).min(runs(&comparison.b))
        }
    }
}

/// Returns whether the figure is a rate or time (faster, slower) rather than a loss or cost
/// (better, worse).
fn is_speed(comparison: &Comparison) -> bool {
    figure::find(&comparison.figure).is_some_and(|figure| {
        figure.name != figure::CPU_FIGURE.name
            && matches!(
                figure.unit,
                FigureUnit::BitRate | FigureUnit::PerSecond | FigureUnit::Nanos
            )
    })
}

fn better_adjective(comparison: &Comparison) -> &'static str {
    if is_speed(comparison) {
        "faster"
    } else {
        "better"
    }
}

fn worse_adjective(comparison: &Comparison) -> &'static str {
    if is_speed(comparison) {
        "slower"
    } else {
        "worse"
    }
}

fn describe_needed_runs(comparison: &Comparison) -> String {
    let better = match comparison.better {
        BetterWhen::Higher => "higher",
        BetterWhen::Lower => "lower",
    };
    let (noun, per_side) = match comparison.test {
        RankTest::SignedRank => ("pair", ""),
        RankTest::MannWhitney => ("run", " per side"),
    };
    let effect = format_relative(comparison.effect);
    let needed = match comparison.pairs_needed {
        Some(needed) => {
            let count = count_of(needed, noun);
            format!("With this noise, a difference of {effect} needs {count}{per_side}")
        }
        None => format!("The number of {noun}s needed for a difference of {effect} is unknown"),
    };
    format!(
        "{needed}; {better} {} is better.",
        strip_control_characters(&comparison.figure)
    )
}

/// Formats a difference in the unit of the figure: `+12`.
pub(crate) fn format_difference(figure: &str, value: f64) -> String {
    format!(
        "{}{}",
        if value < 0.0 { "-" } else { "+" },
        figure::format(figure, value.abs())
    )
}

/// Formats a p-value: `p = 0.03`.
fn format_p_value(p: f64) -> String {
    match p {
        p if p < 1e-4 => "p < 0.0001".to_owned(),
        p if p < 0.01 => format!("p = {p:.4}"),
        p => format!("p = {p:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use linerate_record::comparison::{ComparisonSpec, RunPair, SIGNIFICANCE, compare_pairs};

    use super::*;

    fn verdict_of(figure: &str, a: f64, b: f64) -> String {
        let side = |label: &str| ComparisonSide {
            label: label.to_owned(),
            ..ComparisonSide::default()
        };
        let pair = RunPair {
            a,
            b,
            b_first: false,
            cache_line_rtt_ns: None,
            dropped: None,
        };
        let spec = ComparisonSpec {
            figure: figure.to_owned(),
            better: BetterWhen::Lower,
            effect: 0.05,
            significance: SIGNIFICANCE,
        };
        describe_verdict(&compare_pairs(&spec, [side("A"), side("B")], vec![pair; 8]))
    }

    #[test]
    fn differences_from_zero_have_the_unit_of_the_figure() {
        for (figure, a, b, expected) in [
            (
                "loss",
                0.0,
                0.02,
                "B is worse: its loss is 2.00 % higher (+2.00 % to +2.00 % with 98 % confidence, p = 0.0078).",
            ),
            (
                "loss",
                0.02,
                0.0,
                "B is better: its loss is 2.00 % lower (-2.00 % to -2.00 % with 98 % confidence, p = 0.0078).",
            ),
            (
                "loss",
                0.0,
                0.0,
                "No difference: loss was equal on both sides each time (+0.00 % to +0.00 % with 98 % confidence, p = 1.00).",
            ),
            (
                "retransmits",
                0.0,
                12.0,
                "B is worse: its retransmits is 12.00 higher (+12.00 to +12.00 with 98 % confidence, p = 0.0078).",
            ),
            (
                "loss",
                0.02,
                0.04,
                "B is worse: its loss is 2.0x as high (+100 % to +100 % with 98 % confidence, p = 0.0078).",
            ),
        ] {
            assert_eq!(verdict_of(figure, a, b), expected);
        }
    }

    #[test]
    fn a_figure_that_is_the_same_each_time_has_no_difference() {
        assert_eq!(
            verdict_of("took", 0.4, 0.4),
            "No difference: took was equal on both sides each time (+0.00 % to +0.00 % with 98 % confidence, p = 1.00)."
        );
    }

    #[test]
    fn p_values_have_two_significant_digits() {
        for (p, expected) in [
            (0.000_01, "p < 0.0001"),
            (0.0078, "p = 0.0078"),
            (0.983, "p = 0.98"),
        ] {
            assert_eq!(format_p_value(p), expected);
        }
    }
}
