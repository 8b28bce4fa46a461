//! Pairs of a comparison as a chart.

use linerate_metric::comparison::Comparison;
use linerate_metric::figure;
use linerate_metric::run_set::{RunSet, SetResult};

use super::figure::{self as frame, Data, Row};
use super::pretty;
use crate::phrases::short;
use crate::svg::{Axis, Chart, Mark, Reference, Series, Unit, escape};
use crate::text;

/// Returns the comparison of a set: its result, or the proof of a search.
pub(super) fn of(result: &SetResult) -> Option<&Comparison> {
    let proof = result.tuning.as_deref().map(|found| &found.proof);
    let proof = proof.and_then(Option::as_deref);
    result.comparison.as_deref().or(proof)
}

/// Renders both sides, the verdict, and the ratio B over A of each pair.
pub(super) fn section(set: &RunSet) -> String {
    let Some(found) = of(&set.result) else {
        return String::new();
    };
    // For a search, the section on tuning already shows the proof.
    let said = match set.result.comparison.is_some() {
        true => sides(found),
        false => String::new(),
    };
    let pairs: Vec<_> = (found.pairs.iter().enumerate())
        .filter(|(_, pair)| pair.dropped.is_none() && pair.a > 0.0 && pair.b > 0.0)
        .map(|(number, pair)| (number + 1, pair, (pair.b / pair.a - 1.0) * 100.0))
        .collect();
    let Some(ratio) = found.ratio.filter(|_| !pairs.is_empty()) else {
        return said;
    };
    let changes = || pairs.iter().map(|(_, _, change)| *change);
    let low = changes().fold(0.0, f64::min);
    let high = changes().fold(0.0, f64::max);
    let centre = (ratio.median - 1.0) * 100.0;
    let points = pairs
        .iter()
        .map(|(number, _, change)| (*number as f64, *change, (*change, *change)));
    let chart = Chart {
        title: format!("Difference of B to A in each pair: {}", found.figure),
        low: false,
        x: Axis::between("pair", 1.0, found.pairs.len().max(2) as f64, Unit::COUNT),
        y: Axis::around("difference", low, high, Unit::PERCENT),
        series: vec![Series {
            name: "B / A - 1".to_owned(),
            mark: Mark::Measured(points.collect()),
        }],
        shades: Vec::new(),
        references: vec![
            Reference {
                value: 0.0,
                label: "no difference".to_owned(),
            },
            Reference {
                value: centre,
                label: format!("{} %", short((centre * 100.0).round() / 100.0)),
            },
        ],
    };
    let value = |value| pretty(&figure::format(&found.figure, value));
    let rows = pairs
        .iter()
        .map(|(number, pair, change)| Row {
            x: *number as f64,
            text: format!("{number}: A {}, B {}", value(pair.a), value(pair.b)),
            cells: vec![Some((*change, format!("{change:+.2} %")))],
        })
        .collect();
    let data = Data {
        headings: vec!["pair".to_owned(), "difference".to_owned()],
        rows,
    };
    format!(
        "{said}<section>\n{}</section>\n",
        frame::chart(&chart, &data)
    )
}

/// Renders the table of both sides and the notes.
fn sides(found: &Comparison) -> String {
    let notes: String = (text::comparison_notes(found).iter())
        .map(|note| format!("<p>{}</p>\n", escape(&pretty(note))))
        .collect();
    format!(
        "<section>\n<h2>Conclusions</h2>\n<p class=\"muted\">{}</p>\n{}{notes}</section>\n",
        escape(&pretty(&text::comparison_title(found))),
        frame::grid(&text::comparison_sides(found))
    )
}
