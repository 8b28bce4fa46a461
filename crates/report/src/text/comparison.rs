//! Comparison of two sides in one figure: medians, difference, verdict.

use linerate_metric::comparison::{Better, Comparison, Pair, Side, Test, Verdict, fewest};
use linerate_metric::expect::Unit;
use linerate_metric::figure;
use linerate_metric::statistics::Estimate;

use super::table::{Grid, table};
use crate::phrases;
use crate::style::{Paint, Style, clean, hang, wrap};

/// Describes a pair of runs: `pair 3: A 9.41 Gb/s, B 9.80 Gb/s: +4.1 %`.
#[must_use]
pub fn pair(number: usize, name: &str, pair: &Pair, width: usize) -> String {
    let prefix = format!("pair {number}: ");
    let change = match pair.a > 0.0 && pair.b > 0.0 {
        true => signed(pair.b / pair.a - 1.0),
        false => signed_value(name, pair.b - pair.a),
    };
    let dropped = match &pair.dropped {
        Some(why) => format!(" (excluded: {})", clean(why)),
        None => String::new(),
    };
    let said = format!(
        "A {}, B {}: {change}{dropped}",
        figure::format(name, pair.a),
        figure::format(name, pair.b)
    );
    hang(&prefix, &prefix, &said, width)
}

/// Describes the comparison: `goodput of A and B: 8 alternating pairs`.
pub(crate) fn title(found: &Comparison) -> String {
    let name = clean(&found.figure);
    match found.test {
        Test::SignedRank => {
            let pairs = found.pairs.iter().filter(|pair| pair.dropped.is_none());
            format!(
                "{name} of A and B: {}",
                many(pairs.count(), "alternating pair")
            )
        }
        Test::MannWhitney => format!("{name} of A and B, independent runs"),
    }
}

/// Returns the table of both sides with their descriptions.
pub(crate) fn sides(found: &Comparison) -> Grid {
    let mut headings = vec!["side", "description"];
    headings.extend(&FIGURES[1..]);
    let what = |mut row: Vec<String>, side: &Side| {
        row.insert(1, clean(&side.label).into_owned());
        row
    };
    let [a, b] = rows(found);
    Grid {
        headings: headings.into_iter().map(str::to_owned).collect(),
        rows: vec![what(a, &found.a), what(b, &found.b)],
        left: 2,
    }
}

/// Headings of the figures of a side.
const FIGURES: [&str; 5] = ["side", "median", "95 % from", "to", "runs"];

fn rows(found: &Comparison) -> [Vec<String>; 2] {
    let value = |value: f64| figure::format(&found.figure, value);
    let row = |letter: &str, side: &Side| {
        vec![
            letter.to_owned(),
            phrases::or_unknown(side.value, |v| value(v.median)),
            phrases::or_unknown(side.value, |v| value(v.low)),
            phrases::or_unknown(side.value, |v| value(v.high)),
            phrases::or_unknown(side.value, |v| v.runs.to_string()),
        ]
    };
    [row("A", &found.a), row("B", &found.b)]
}

/// Returns notes on the verdict: the number of pairs needed, and the excluded pairs.
pub(crate) fn notes(found: &Comparison) -> Vec<String> {
    let mut notes = vec![needed_words(found)];
    let dropped = found.pairs.iter().filter(|pair| pair.dropped.is_some());
    let dropped = match dropped.count() {
        0 => return notes,
        1 => "1 pair was excluded".to_owned(),
        n => format!("{n} pairs were excluded"),
    };
    notes.push(format!(
        "{dropped}: the threads moved to other cores, because the cache-line round trip between the cores \
         changed between the two runs."
    ));
    notes
}

/// Renders a comparison as a table with its verdict.
pub(super) fn comparison(found: &Comparison, style: &Style) -> String {
    let mut text = style.paint(Paint::Bold, &title(found));
    text.push('\n');
    text.push_str(&table(&FIGURES, rows(found).into(), 1, style));
    for (letter, side) in [("A: ", &found.a), ("B: ", &found.b)] {
        text.push('\n');
        text.push_str(&hang(letter, letter, &clean(&side.label), style.width));
    }
    text.push_str("\n\n");
    let verdict = verdict_words(found);
    let color = match found.verdict {
        _ if found.regression => Paint::Bad,
        Verdict::Faster => Paint::Good,
        Verdict::Undecided => Paint::Warn,
        _ => Paint::Bold,
    };
    let said: Vec<_> = wrap(&verdict, style.width)
        .iter()
        .map(|line| style.paint(color, line))
        .collect();
    text.push_str(&said.join("\n"));
    for line in notes(found).iter().flat_map(|note| wrap(note, style.width)) {
        text.push('\n');
        text.push_str(&line);
    }
    text
}

/// Describes the verdict in a sentence.
pub(crate) fn verdict_words(found: &Comparison) -> String {
    let Some(told) = found.ratio.or(found.difference) else {
        return "Undecided: no valid pair.".to_owned();
    };
    let name = clean(&found.figure);
    let p = phrases::or_unknown(found.p_value, probability);
    let (size, low, high, largest) = match found.ratio {
        Some(ratio) => sizes(ratio, found.largest_difference),
        None => differences(&found.figure, told),
    };
    let bounds = format!(
        "{low} to {high} with {} % confidence, {p}",
        (found.confidence * 100.0).round()
    );
    match found.verdict {
        Verdict::Faster => format!(
            "B is {}: its {name} is {size} ({bounds}).",
            better_word(found)
        ),
        Verdict::Slower if found.regression => {
            format!(
                "B is {}: its {name} is {size} ({bounds}).",
                worse_word(found)
            )
        }
        Verdict::Slower => format!(
            "B is {}, but by less than the relevant effect: its {name} is {size} ({bounds}).",
            worse_word(found)
        ),
        Verdict::NoDifference if largest.is_empty() => {
            format!("No difference: {name} was equal on both sides each time ({bounds}).")
        }
        Verdict::NoDifference => {
            format!("No difference larger than {largest} ({bounds}).")
        }
        Verdict::Undecided if told.runs < 2 => format!(
            "Undecided: B's {name} is {size}, but with one run per side a difference cannot be separated \
             from noise."
        ),
        Verdict::Undecided => {
            let what = match found.test {
                Test::SignedRank => "pair",
                Test::MannWhitney => "run",
            };
            let sides = match found.test {
                Test::SignedRank => "",
                Test::MannWhitney => " per side",
            };
            let fewest = fewest(found.test, found.significance);
            let seen = counted(found);
            match seen < fewest {
                true => format!(
                    "Undecided: only {}{sides}, at least {fewest} are needed. \
                     B's {name} is {size} ({bounds}).",
                    many(seen, what)
                ),
                false => format!(
                    "Undecided: the noise hides a difference of {}. B's {name} is {size} ({bounds}).",
                    share(found.effect)
                ),
            }
        }
    }
}

/// Describes a ratio: its size, the bounds of its interval, and the largest plausible difference.
/// The last is empty if the sides never differed.
fn sizes(ratio: Estimate, largest: Option<f64>) -> (String, String, String, String) {
    let change = ratio.median - 1.0;
    let way = if change > 0.0 { "higher" } else { "lower" };
    let size = match change.abs() >= 1.0 {
        true => format!("{} as high", phrases::times(ratio.median)),
        false => format!("{} {way}", share(change.abs())),
    };
    let [low, high] = [ratio.low, ratio.high].map(|end| signed(end - 1.0));
    let largest = match (ratio.low, ratio.high) == (1.0, 1.0) {
        true => String::new(),
        false => phrases::or_unknown(largest, share),
    };
    (size, low, high, largest)
}

/// Like [`sizes`] for a difference, used when a figure was zero.
fn differences(figure: &str, found: Estimate) -> (String, String, String, String) {
    let way = if found.median > 0.0 {
        "higher"
    } else {
        "lower"
    };
    let size = format!("{} {way}", figure::format(figure, found.median.abs()));
    let [low, high] = [found.low, found.high].map(|end| signed_value(figure, end));
    let largest = found.low.abs().max(found.high.abs());
    let largest = match largest > 0.0 {
        true => figure::format(figure, largest),
        false => String::new(),
    };
    (size, low, high, largest)
}

/// Number of valid pairs, or of runs of the side that has fewer.
fn counted(found: &Comparison) -> usize {
    match found.test {
        Test::SignedRank => {
            let counts = found.pairs.iter().filter(|pair| pair.dropped.is_none());
            counts.count()
        }
        Test::MannWhitney => {
            let runs = |side: &Side| side.value.map_or(0, |value| value.runs);
            runs(&found.a).min(runs(&found.b))
        }
    }
}

/// Returns whether the figure is a rate or time (faster, slower) rather than a loss or cost
/// (better, worse).
fn is_speed(found: &Comparison) -> bool {
    figure::named(&found.figure).is_some_and(|figure| {
        figure.name != figure::CPU.name
            && matches!(figure.unit, Unit::BitRate | Unit::PerSecond | Unit::Nanos)
    })
}

fn better_word(found: &Comparison) -> &'static str {
    if is_speed(found) { "faster" } else { "better" }
}

fn worse_word(found: &Comparison) -> &'static str {
    if is_speed(found) { "slower" } else { "worse" }
}

fn needed_words(found: &Comparison) -> String {
    let better = match found.better {
        Better::Higher => "higher",
        Better::Lower => "lower",
    };
    let (what, whose) = match found.test {
        Test::SignedRank => ("pair", ""),
        Test::MannWhitney => ("run", " per side"),
    };
    let effect = share(found.effect);
    let needed = match found.pairs_needed {
        Some(needed) => {
            let count = many(usize::try_from(needed).unwrap_or(usize::MAX), what);
            format!("With this noise, a difference of {effect} needs {count}{whose}")
        }
        None => format!("The number of {what}s needed for a difference of {effect} is unknown"),
    };
    format!("{needed}; {better} {} is better.", clean(&found.figure))
}

fn many(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    }
}

/// Formats a relative difference with two significant digits: `4.1 %`.
pub(crate) fn share(share: f64) -> String {
    let percent = share * 100.0;
    match percent.abs() {
        p if p < 0.095 => format!("{percent:.2} %"),
        p if p < 9.95 => format!("{percent:.1} %"),
        _ => format!("{percent:.0} %"),
    }
}

/// Formats a relative change: `+4.1 %`.
pub(crate) fn signed(change: f64) -> String {
    format!(
        "{}{}",
        if change < 0.0 { "-" } else { "+" },
        share(change.abs())
    )
}

/// Formats a difference in the unit of the figure: `+12`.
fn signed_value(figure: &str, value: f64) -> String {
    format!(
        "{}{}",
        if value < 0.0 { "-" } else { "+" },
        figure::format(figure, value.abs())
    )
}

/// Formats a p-value: `p = 0.03`.
fn probability(p: f64) -> String {
    match p {
        p if p < 1e-4 => "p < 0.0001".to_owned(),
        p if p < 0.01 => format!("p = {p:.4}"),
        p => format!("p = {p:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_metric::comparison::{Question, SIGNIFICANCE, of_pairs};

    fn compared(figure: &str, a: f64, b: f64) -> String {
        let side = |label: &str| Side {
            label: label.to_owned(),
            value: None,
            records: Vec::new(),
        };
        let pair = Pair {
            a,
            b,
            b_first: false,
            line_rtt_ns: None,
            dropped: None,
        };
        let question = Question {
            figure: figure.to_owned(),
            better: Better::Lower,
            effect: 0.05,
            significance: SIGNIFICANCE,
        };
        verdict_words(&of_pairs(&question, [side("A"), side("B")], vec![pair; 8]))
    }

    #[test]
    fn figures_at_zero_are_told_in_their_unit() {
        for (figure, a, b, want) in [
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
            assert_eq!(compared(figure, a, b), want);
        }
    }

    #[test]
    fn a_figure_that_is_the_same_each_time_has_no_difference() {
        assert_eq!(
            compared("took", 0.4, 0.4),
            "No difference: took was equal on both sides each time (+0.00 % to +0.00 % with 98 % confidence, p = 1.00)."
        );
    }

    #[test]
    fn probabilities_are_told_as_far_as_they_are_known() {
        for (p, want) in [
            (0.000_01, "p < 0.0001"),
            (0.0078, "p = 0.0078"),
            (0.983, "p = 0.98"),
        ] {
            assert_eq!(probability(p), want);
        }
    }
}
