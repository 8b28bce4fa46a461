//! The pairs of a comparison, as a chart.

use linerate_metric::figure;
use linerate_metric::set::RunSet;

use super::figure::{self as frame, Data, Row};
use super::pretty;
use crate::svg::{Axis, Chart, Mark, Reference, Series, Unit};
use crate::words::short;

/// B over A of each pair in their order; empty without pairs.
pub(super) fn section(set: &RunSet) -> String {
    let proof = set
        .result
        .tuning
        .as_ref()
        .and_then(|found| found.proof.as_deref());
    let Some(found) = set.result.comparison.as_deref().or(proof) else {
        return String::new();
    };
    let pairs: Vec<_> = (found.pairs.iter().enumerate())
        .filter(|(_, pair)| pair.dropped.is_none() && pair.a > 0.0 && pair.b > 0.0)
        .map(|(number, pair)| (number + 1, pair, (pair.b / pair.a - 1.0) * 100.0))
        .collect();
    let (Some(ratio), Some(first), Some(last)) = (found.ratio, pairs.first(), pairs.last()) else {
        return String::new();
    };
    let changes = || pairs.iter().map(|(_, _, change)| *change);
    let low = changes().fold(0.0, f64::min);
    let high = changes().fold(0.0, f64::max);
    let centre = (ratio.median - 1.0) * 100.0;
    let points = pairs
        .iter()
        .map(|(number, _, change)| (*number as f64, *change));
    let chart = Chart {
        title: format!("B against A, pair by pair: {}", found.figure),
        low: false,
        x: Axis::between("pair", first.0 as f64, last.0.max(2) as f64, Unit::COUNT),
        y: Axis::between("difference", low, high, Unit::PERCENT),
        series: vec![Series {
            name: "B over A, less one".to_owned(),
            mark: Mark::Line(points.collect()),
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
    format!("<section>\n{}</section>\n", frame::chart(&chart, &data))
}
