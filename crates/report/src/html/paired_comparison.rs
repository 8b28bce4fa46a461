//! Pairs of a comparison as a chart.

use linerate_record::comparison::Comparison;
use linerate_record::figure;
use linerate_record::run_set::{RunSet, SetResult};

use super::figure::{self as frame, ChartData, ChartRow};
use super::with_micro_sign;
use crate::model::format_short;
use crate::paired_comparison::{side_table, title, verdict_notes};
use crate::svg::{
    AxisUnit, ChartAxis, ChartSeries, LineChart, ReferenceLine, SeriesMark, escape_markup,
};

/// Returns the comparison of a set: its result, or the proof of a search.
pub(super) fn comparison_of(result: &SetResult) -> Option<&Comparison> {
    let proof = result.tuning.as_deref().map(|tuning| &tuning.proof);
    let proof = proof.and_then(Option::as_deref);
    result.comparison.as_deref().or(proof)
}

/// Renders both sides, the verdict, and the ratio B over A of each pair.
pub(super) fn pair_section(set: &RunSet) -> String {
    let Some(comparison) = comparison_of(&set.result) else {
        return String::new();
    };
    // For a search, the section on tuning already shows the proof.
    let side_html = match set.result.comparison.is_some() {
        true => side_section(comparison),
        false => String::new(),
    };
    let pairs: Vec<_> = (comparison.pairs.iter().enumerate())
        .filter(|(_, pair)| pair.dropped.is_none() && pair.a > 0.0 && pair.b > 0.0)
        .map(|(number, pair)| (number + 1, pair, (pair.b / pair.a - 1.0) * 100.0))
        .collect();
    let Some(ratio) = comparison.ratio.filter(|_| !pairs.is_empty()) else {
        return side_html;
    };
    let changes = || pairs.iter().map(|(_, _, change)| *change);
    let low = changes().fold(0.0, f64::min);
    let high = changes().fold(0.0, f64::max);
    let center = (ratio.median - 1.0) * 100.0;
    let points = pairs
        .iter()
        .map(|(number, _, change)| (*number as f64, *change, (*change, *change)));
    let chart = LineChart {
        title: format!("Difference of B to A in each pair: {}", comparison.figure),
        is_secondary: false,
        x: ChartAxis::between(
            "pair",
            1.0,
            comparison.pairs.len().max(2) as f64,
            AxisUnit::COUNT,
        ),
        y: ChartAxis::including_zero("difference", low, high, AxisUnit::PERCENT),
        series: vec![ChartSeries {
            name: "B / A - 1".to_owned(),
            mark: SeriesMark::Measured(points.collect()),
        }],
        shades: Vec::new(),
        references: vec![
            ReferenceLine {
                value: 0.0,
                label: "no difference".to_owned(),
            },
            ReferenceLine {
                value: center,
                label: format!("{} %", format_short((center * 100.0).round() / 100.0)),
            },
        ],
    };
    let value = |value| with_micro_sign(&figure::format(&comparison.figure, value));
    let rows = pairs
        .iter()
        .map(|(number, pair, change)| ChartRow {
            x: *number as f64,
            text: format!("{number}: A {}, B {}", value(pair.a), value(pair.b)),
            cells: vec![Some((*change, format!("{change:+.2} %")))],
        })
        .collect();
    let data = ChartData {
        headings: vec!["pair".to_owned(), "difference".to_owned()],
        rows,
    };
    format!(
        "{side_html}<section>\n{}</section>\n",
        frame::render_chart(&chart, &data)
    )
}

/// Renders the table of both sides and the notes.
fn side_section(comparison: &Comparison) -> String {
    let notes: String = (verdict_notes(comparison).iter())
        .map(|note| format!("<p>{}</p>\n", escape_markup(&with_micro_sign(note))))
        .collect();
    format!(
        "<section>\n<h2>Conclusions</h2>\n<p class=\"muted\">{}</p>\n{}{notes}</section>\n",
        escape_markup(&with_micro_sign(&title(comparison))),
        frame::render_grid(&side_table(comparison))
    )
}
