//! Runs as Markdown for a pull request: a table of figures and its caveats.

use std::fmt::Write as _;

use linerate_metric::expect::Unit;
use linerate_metric::experiment::{ExperimentResult, ShapeState};
use linerate_metric::run_set::{RateSearch, RunSet};
use linerate_metric::statistics::Estimate;

use crate::comparison::SideBySide;
use crate::phrases;
use crate::style::clean;

/// Escapes a text as a table cell: no character ends the cell or begins markup.
pub(crate) fn cell(text: &str) -> String {
    let mut out = String::new();
    for c in clean(text).chars() {
        match c {
            '|' | '\\' | '`' | '*' | '_' | '[' | ']' | '#' => {
                out.push('\\');
                out.push(c);
            }
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            c => out.push(c),
        }
    }
    out
}

/// Formats a figure with its interval; the interval is omitted when it rounds to the figure itself.
pub(crate) fn figure(unit: Unit, value: &Estimate) -> String {
    let format = |value: f64| match unit {
        Unit::Count if value.fract() != 0.0 => phrases::short(value),
        unit => unit.format(value),
    };
    let (median, low, high) = (format(value.median), format(value.low), format(value.high));
    match low == median && high == median {
        true => median,
        false => format!("{median} ({low} to {high})"),
    }
}

/// Renders a Markdown table whose label columns are left-aligned, the others right-aligned.
pub(crate) fn table(headings: &[String], rows: &[Vec<String>], left: usize) -> String {
    let mut out = String::new();
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    out.push_str(&line(headings));
    let marks: Vec<String> = (0..headings.len())
        .map(|column| if column < left { "---" } else { "---:" }.to_owned())
        .collect();
    out.push_str(&line(&marks));
    for row in rows {
        out.push_str(&line(row));
    }
    out
}

/// Renders a comparison of documents; two documents get a ratio column.
#[must_use]
pub fn side_by_side(sides: &SideBySide) -> String {
    let two = sides.sides.len() == 2;
    let mut headings = vec!["figure".to_owned()];
    headings.extend(sides.sides.iter().map(|side| cell(&side.name)));
    if two {
        headings.push("second / first".to_owned());
    }
    let rows: Vec<Vec<String>> = sides
        .figures()
        .map(|known| {
            let name = known.name();
            let mut row = vec![cell(&name)];
            row.extend(sides.sides.iter().map(|side| {
                let value = side.figures.get(&name);
                phrases::or_unknown(value, |value| cell(&figure(known.unit, value)))
            }));
            if two {
                let ratio = sides.ratio(&name);
                row.push(phrases::or_unknown(ratio, phrases::ratio));
            }
            row
        })
        .collect();
    let mut out = String::new();
    for sentence in &sides.verdict {
        let _ = writeln!(out, "{}\n", cell(sentence));
    }
    out.push_str(&differences(sides));
    out.push_str(&table(&headings, &rows, 1));
    out.push('\n');
    out.push_str(INTERVALS);
    out.push('\n');
    let doubts: Vec<String> = sides
        .sides
        .iter()
        .flat_map(|side| {
            let named = |why: &String| format!("- {}: {}", cell(&side.name), cell(why));
            side.doubts.iter().map(named)
        })
        .collect();
    if !doubts.is_empty() {
        let _ = write!(
            out,
            "\n<details><summary>Caveats</summary>\n\n{}\n\n</details>\n",
            doubts.join("\n")
        );
    }
    out.trim_end().to_owned()
}

/// Renders the differences in options and hosts; empty for one document.
fn differences(sides: &SideBySide) -> String {
    if sides.sides.len() < 2 {
        return String::new();
    }
    if sides.differences.is_empty() {
        return format!("{}\n\n", crate::differences::NONE);
    }
    let (headings, rows) = crate::differences::grid(&sides.differences, &sides.names());
    let cells = |texts: &[String]| -> Vec<String> { texts.iter().map(|text| cell(text)).collect() };
    let rows: Vec<Vec<String>> = rows.iter().map(|row| cells(row)).collect();
    format!("{}\n", table(&cells(&headings), &rows, 1))
}

/// Renders an experiment: verdicts, tables, published figures, caveats.
#[must_use]
pub fn experiment(result: &ExperimentResult, set: &RunSet) -> String {
    let mut out = format!(
        "## {}\n\n{}\n\n{}\n\n",
        cell(&crate::experiment::heading(result)),
        cell(&result.question),
        cell(&crate::experiment::verdict(result))
    );
    for shape in &result.shapes {
        let word = crate::experiment::state(shape);
        let said = cell(&crate::experiment::shape_words(shape));
        let _ = writeln!(out, "- **{word}**: {said}");
    }
    let others = crate::experiment::trends(result).into_iter();
    for trend in others.filter(|trend| trend.state == ShapeState::Misses) {
        let _ = writeln!(out, "- **{}**: {}", trend.word, cell(&trend.text));
    }
    let tables = result.tables.iter();
    let grids = tables.map(|table| crate::experiment::grid(result, table));
    for grid in grids.chain(crate::experiment::published(result)) {
        let headings: Vec<String> = grid.headings.iter().map(|text| cell(text)).collect();
        let rows: Vec<Vec<String>> = grid
            .rows
            .iter()
            .map(|row| row.iter().map(|text| cell(text)).collect())
            .collect();
        let _ = write!(
            out,
            "\n### {}\n\n{}",
            cell(&grid.title),
            table(&headings, &rows, grid.left)
        );
    }
    for (because, points) in crate::experiment::skipped(result) {
        let _ = write!(
            out,
            "\nNot tested: {}: {}.\n",
            cell(&points.join(", ")),
            cell(&because)
        );
    }
    for remark in crate::experiment::remarks(result) {
        let _ = write!(out, "\n{}\n", cell(&phrases::capitalised(&remark)));
    }
    let doubts = phrases::counted(&set.runs);
    if !doubts.is_empty() {
        out.push_str("\nCaveats:\n\n");
        for kind in doubts {
            let _ = writeln!(
                out,
                "- {} ({})",
                cell(&kind.words()),
                cell(&kind.example.doubt)
            );
        }
    }
    out.trim_end().to_owned()
}

/// Renders a rate search: its result and its trials.
#[must_use]
pub fn search(search: &RateSearch) -> String {
    let grid = crate::text::trials(search);
    let rows: Vec<Vec<String>> = (grid.rows.iter())
        .map(|row| row.iter().map(|text| cell(text)).collect())
        .collect();
    format!(
        "{}\n\n{}",
        cell(&crate::text::search_words(search)),
        table(&grid.headings, &rows, grid.left.max(1)).trim_end()
    )
}

/// Legend of the intervals.
pub(crate) const INTERVALS: &str = "In brackets: 95 % confidence interval of the median over repeats; \
for a single run, of its own samples (the spread between runs is larger).";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_that_name_a_row_are_flush_left() {
        let cells = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let headings = cells(["protocol", "direction", "time"]);
        let text = table(&headings, &[cells(["tcp", "send", "140 ms"])], 2);
        assert_eq!(
            text,
            "| protocol | direction | time |\n| --- | --- | ---: |\n| tcp | send | 140 ms |\n"
        );
    }
}
