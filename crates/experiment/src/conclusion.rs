//! Conclusions: sentences with measured figures in braces, `each hop adds {slope(trip over hops)}`.

use linerate_record::expect::FigureUnit;
use linerate_record::experiment::{CoreDistance, ExperimentResult, KnobValues};
use linerate_stats::statistics::{Estimate, estimate, median};

use crate::evaluation::{evaluate_sum, format_value, open_settings};
use crate::rule::{AssertionRule, RuleTerm};

/// Sentence with places for figures.
#[derive(Debug, PartialEq)]
pub(crate) struct ConclusionSentence {
    parts: Vec<ConclusionPart>,
}

#[derive(Debug, PartialEq)]
enum ConclusionPart {
    Text(String),
    /// Sum, or ratio of the left sum to the right one.
    Figure {
        sums: AssertionRule,
        is_ratio: bool,
    },
}

impl ConclusionSentence {
    /// Parses a sentence: `{SUM}` is a sum in the syntax of a rule, `{SUM / SUM}` a ratio.
    ///
    /// # Errors
    /// The error as a sentence fragment.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (inner, next) = after
                .split_once('}')
                .ok_or_else(|| "`}` is missing".to_owned())?;
            let (sums, is_ratio) = AssertionRule::parse_sums(inner)?;
            parts.push(ConclusionPart::Text(before.to_owned()));
            parts.push(ConclusionPart::Figure { sums, is_ratio });
            rest = next;
        }
        parts.push(ConclusionPart::Text(rest.to_owned()));
        Ok(Self { parts })
    }

    /// Figures in the sentence.
    pub(crate) fn terms(&self) -> impl Iterator<Item = &RuleTerm> {
        self.parts.iter().flat_map(|part| match part {
            ConclusionPart::Text(_) => Vec::new(),
            ConclusionPart::Figure { sums, .. } => sums.terms().collect(),
        })
    }

    /// Returns the sentence with the figures of a result; `None` if one of them was not measured.
    pub(crate) fn fill(
        &self,
        result: &ExperimentResult,
        core_distance: Option<CoreDistance>,
    ) -> Option<String> {
        let rounds = split_rounds(result);
        let mut sentence = String::new();
        for part in &self.parts {
            match part {
                ConclusionPart::Text(text) => sentence.push_str(text),
                ConclusionPart::Figure { sums, is_ratio } => {
                    let figure = sums.terms().next().map(|term| &term.figure);
                    let unit = figure
                        .and_then(|name| result.figure(name))
                        .map_or(FigureUnit::Count, |figure| figure.unit);
                    let estimates = estimates_of(sums, *is_ratio, result, &rounds, core_distance);
                    let value = summarize(&estimates)?;
                    sentence.push_str(&match is_ratio {
                        true => describe(&value, |ratio| format!("{} times", format_ratio(ratio))),
                        false => describe(&value, |value| format_value(unit, value)),
                    });
                }
            }
        }
        Some(sentence)
    }
}

/// Returns one result for each round, with the values of its runs only.
fn split_rounds(result: &ExperimentResult) -> Vec<ExperimentResult> {
    let lengths = result.points.iter().flat_map(|point| {
        let at_distance = point.values_at.values().flat_map(|values| values.values());
        point.values.values().chain(at_distance).map(Vec::len)
    });
    let count = lengths.max().unwrap_or(1);
    let rounds = (0..count).map(|round| {
        let mut one_round = result.clone();
        let keep = |values: &mut Vec<f64>| {
            *values = values.get(round).copied().into_iter().collect();
        };
        for point in &mut one_round.points {
            point.values.values_mut().for_each(keep);
            let at_distance = point.values_at.values_mut();
            at_distance
                .flat_map(|values| values.values_mut())
                .for_each(keep);
        }
        one_round
    });
    rounds.collect()
}

/// Returns the estimate over the rounds, for each combination of the knobs that are left open.
fn estimates_of(
    sums: &AssertionRule,
    is_ratio: bool,
    result: &ExperimentResult,
    rounds: &[ExperimentResult],
    core_distance: Option<CoreDistance>,
) -> Vec<Estimate> {
    let value = |setting: &KnobValues, result: &ExperimentResult| {
        let left = evaluate_sum(&sums.left, setting, (result, core_distance), sums)?;
        let right = evaluate_sum(&sums.right, setting, (result, core_distance), sums)?;
        let value = if is_ratio { left / right } else { left };
        value.is_finite().then_some(value)
    };
    let settings = open_settings(sums, &result.knobs).into_iter();
    let of_setting = settings.filter_map(|setting| {
        let values: Vec<f64> = rounds
            .iter()
            .filter_map(|round| value(&setting, round))
            .collect();
        // The figure itself is that of all runs, as in the table and in the rule.
        let center = value(&setting, result)?;
        let over_rounds = estimate(&values)?;
        Some(Estimate {
            median: center,
            low: over_rounds.low.min(center),
            high: over_rounds.high.max(center),
            runs: over_rounds.runs,
        })
    });
    of_setting.collect()
}

/// Returns a single estimate as it is. Of several: their median, the lowest and the highest.
fn summarize(estimates: &[Estimate]) -> Option<Estimate> {
    if let [only] = estimates {
        return Some(*only);
    }
    let medians: Vec<f64> = estimates.iter().map(|estimate| estimate.median).collect();
    Some(Estimate {
        median: median(&medians)?,
        low: medians.iter().copied().fold(f64::INFINITY, f64::min),
        high: medians.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        runs: medians.len(),
    })
}

/// Formats `1.9 us (1.7 to 2.1)`; the unit is written once if all three have the same one.
fn describe(value: &Estimate, format: impl Fn(f64) -> String) -> String {
    let center = format(value.median);
    let (low, high) = (format(value.low), format(value.high));
    if low == center && high == center {
        return center;
    }
    let unit = |text: &str| text.split_once(' ').map(|(_, unit)| unit.to_owned());
    let number = |text: &str| text.split(' ').next().unwrap_or_default().to_owned();
    match unit(&low) == unit(&center) && unit(&high) == unit(&center) {
        true => format!("{center} ({} to {})", number(&low), number(&high)),
        false => format!("{center} ({low} to {high})"),
    }
}

/// Formats a ratio with two digits after the point below ten, with none above.
fn format_ratio(ratio: f64) -> String {
    match ratio {
        ratio if ratio >= 10.0 => format!("{ratio:.0}"),
        ratio => format!("{ratio:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use linerate_record::experiment::{ExperimentPoint, FigureSpec, KnobAxis};

    use super::*;

    fn result(points: &[(&str, &str, [f64; 3])]) -> ExperimentResult {
        let knob = |name: &str, values: &[&str]| KnobAxis {
            name: name.into(),
            values: values.iter().map(|value| (*value).to_owned()).collect(),
        };
        let point = |&(hops, socket, values): &(&str, &str, [f64; 3])| ExperimentPoint {
            setting: [("hops", hops), ("socket", socket)]
                .map(|(knob, value)| (knob.to_owned(), value.to_owned()))
                .into(),
            figures: [("trip".to_owned(), estimate(&values).unwrap())].into(),
            values: [("trip".to_owned(), values.to_vec())].into(),
            ..ExperimentPoint::default()
        };
        ExperimentResult {
            knobs: vec![
                knob("hops", &["0", "2"]),
                knob("socket", &["reused", "reopened"]),
            ],
            figures: vec![FigureSpec {
                name: "trip".into(),
                unit: FigureUnit::Nanos,
                description: String::new(),
                exact: false,
            }],
            points: points.iter().map(point).collect(),
            ..ExperimentResult::default()
        }
    }

    #[test]
    fn sentences_have_the_figures_and_their_intervals() {
        let result = result(&[
            ("0", "reused", [10e3, 10.2e3, 9.8e3]),
            ("2", "reused", [14e3, 14.4e3, 14e3]),
            ("0", "reopened", [26e3, 26.2e3, 25.8e3]),
            ("2", "reopened", [31e3, 31.4e3, 31e3]),
        ]);
        for (text, expected) in [
            ("no figure", Some("no figure")),
            (
                "each hop adds {slope(trip[socket=reused] over hops)}",
                Some("each hop adds 2.10 us (2.00 to 2.10)"),
            ),
            (
                "reopening costs {trip[socket=reopened] - trip[socket=reused]} at every hop count",
                Some("reopening costs 16.5 us (16.0 to 17.0) at every hop count"),
            ),
            (
                "{trip[hops=0,socket=reopened] / trip[hops=0,socket=reused]} the time",
                Some("2.60 times (2.57 to 2.63) the time"),
            ),
            ("{trip[hops=1,socket=reused]}", None),
        ] {
            let conclusion = ConclusionSentence::parse(text).unwrap();
            assert_eq!(
                conclusion.fill(&result, None).as_deref(),
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn wrong_places_are_errors() {
        for text in [
            "{",
            "{trip",
            "{}",
            "{1}",
            "{trip / }",
            "{trip > 0}",
            "{best(trip)}",
        ] {
            assert!(ConclusionSentence::parse(text).is_err(), "{text}");
        }
    }
}
