//! Experiment as text: tables, then the state of each expectation.

use linerate_metric::experiment::{ExperimentResult, ShapeState};

use super::sentence_note;
use super::table::table;
use crate::experiment::{
    grid, heading, published, remarks, shape_words, skipped, state, trends, verdict,
};
use crate::style::{Paint, Style, clean, hang, wrap};

/// Renders the title of a table; each line is coloured separately because wrapping breaks escape
/// sequences.
fn title(text: &str, style: &Style) -> String {
    let lines = wrap(&clean(text), style.width).into_iter();
    let painted = lines.map(|line| style.paint(Paint::Bold, &line));
    painted.collect::<Vec<_>>().join("\n")
}

/// Renders an experiment.
pub(super) fn experiment(result: &ExperimentResult, style: &Style) -> String {
    let mut blocks = vec![format!(
        "{}\n{}",
        style.paint(Paint::Bold, &clean(&heading(result))),
        wrap(&clean(&result.question), style.width).join("\n")
    )];
    let tables = result.tables.iter().map(|table| grid(result, table));
    for grid in tables.chain(published(result)) {
        let headings: Vec<&str> = grid.headings.iter().map(String::as_str).collect();
        let rows = grid
            .rows
            .iter()
            .map(|row| row.iter().map(|text| clean(text).into_owned()).collect())
            .collect();
        blocks.push(format!(
            "{}\n{}",
            title(&grid.title, style),
            table(&headings, rows, grid.left, style)
        ));
    }
    let mut lines = Vec::new();
    for shape in &result.shapes {
        let word = state(shape);
        let paint = match shape.state {
            ShapeState::Holds if !shape.doubts.is_empty() => Paint::Warn,
            ShapeState::Holds => Paint::Good,
            ShapeState::Misses => Paint::Bad,
            ShapeState::Untested => Paint::Warn,
        };
        let text = clean(&shape_words(shape)).into_owned();
        let prefix = format!("{word}: ");
        lines.push(hang(
            &prefix,
            &style.paint(paint, &prefix),
            &text,
            style.width,
        ));
    }
    // Trends that agree are counted in the verdict and listed only in the HTML report.
    let others = trends(result).into_iter();
    for trend in others.filter(|trend| trend.state == ShapeState::Misses) {
        let paint = Paint::Warn;
        let prefix = format!("{}: ", trend.word);
        lines.push(hang(
            &prefix,
            &style.paint(paint, &prefix),
            &clean(&trend.text),
            style.width,
        ));
    }
    blocks.push(lines.join("\n"));
    blocks.push(wrap(&verdict(result), style.width).join("\n"));
    let notes: Vec<String> = skipped(result)
        .into_iter()
        .map(|(because, points)| {
            let text = format!("not tested: {}: {}", points.join(", "), because);
            sentence_note(&clean(&text), style, style.width)
        })
        .collect();
    blocks.push(notes.join("\n"));
    for text in remarks(result) {
        blocks.push(sentence_note(&clean(&text), style, style.width));
    }
    blocks.retain(|block| !block.is_empty());
    blocks.join("\n\n")
}
