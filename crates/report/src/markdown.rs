//! Runs as Markdown for a pull request: a table of figures and its caveats.

use std::fmt::Write as _;

use linerate_record::experiment::{ExperimentResult, ShapeState};
use linerate_record::run_set::{RateSearchResult, RunSet};

use crate::comparison::DocumentComparison;
#[cfg(feature = "history")]
use crate::history::{PlanTrends, describe_period};
use crate::model::{self, INTERVAL_LEGEND};
use crate::phrases;
use crate::style::strip_control_characters;

/// Escapes a text as a table cell: no character ends the cell or begins markup.
pub(crate) fn escape_cell(text: &str) -> String {
    let mut out = String::new();
    for c in strip_control_characters(text).chars() {
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

/// Renders a Markdown table whose label columns are left-aligned, the others right-aligned.
pub(crate) fn render_table(
    headings: &[String],
    rows: &[Vec<String>],
    label_columns: usize,
) -> String {
    let mut out = String::new();
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    out.push_str(&line(headings));
    let marks: Vec<String> = (0..headings.len())
        .map(|column| {
            if column < label_columns {
                "---"
            } else {
                "---:"
            }
            .to_owned()
        })
        .collect();
    out.push_str(&line(&marks));
    for row in rows {
        out.push_str(&line(row));
    }
    out
}

/// Renders a comparison of documents; two documents get a ratio column.
#[must_use]
pub fn render_comparison(sides: &DocumentComparison) -> String {
    let two = sides.documents.len() == 2;
    let mut headings = vec!["figure".to_owned()];
    headings.extend(sides.documents.iter().map(|side| escape_cell(&side.name)));
    if two {
        headings.push("second / first".to_owned());
    }
    let rows: Vec<Vec<String>> = sides
        .figures()
        .map(|figure_row| {
            let name = figure_row.key();
            let mut row = vec![escape_cell(&name)];
            row.extend(sides.documents.iter().map(|side| {
                let value = side.figures.get(&name);
                model::or_unknown(value, |value| {
                    escape_cell(&model::format_estimate(figure_row.unit, value))
                })
            }));
            if two {
                let ratio = sides.ratio(&name);
                row.push(model::or_unknown(ratio, model::format_ratio));
            }
            row
        })
        .collect();
    let mut out = String::new();
    for sentence in &sides.verdict {
        let _ = writeln!(out, "{}\n", escape_cell(sentence));
    }
    out.push_str(&render_differences(sides));
    out.push_str(&render_table(&headings, &rows, 1));
    out.push('\n');
    out.push_str(INTERVAL_LEGEND);
    out.push('\n');
    let caveats: Vec<String> = sides
        .documents
        .iter()
        .flat_map(|side| {
            let named =
                |why: &String| format!("- {}: {}", escape_cell(&side.name), escape_cell(why));
            side.caveats.iter().map(named)
        })
        .collect();
    if !caveats.is_empty() {
        let _ = write!(
            out,
            "\n<details><summary>Caveats</summary>\n\n{}\n\n</details>\n",
            caveats.join("\n")
        );
    }
    out.trim_end().to_owned()
}

/// Renders the differences in options and hosts; empty for one document.
fn render_differences(sides: &DocumentComparison) -> String {
    if sides.documents.len() < 2 {
        return String::new();
    }
    if sides.differences.is_empty() {
        return format!("{}\n\n", crate::differences::NO_DIFFERENCES);
    }
    let (headings, rows) = crate::differences::difference_table(&sides.differences, &sides.names());
    let cells =
        |texts: &[String]| -> Vec<String> { texts.iter().map(|text| escape_cell(text)).collect() };
    let rows: Vec<Vec<String>> = rows.iter().map(|row| cells(row)).collect();
    format!("{}\n", render_table(&cells(&headings), &rows, 1))
}

/// Renders an experiment: verdicts, tables, published figures, caveats.
#[must_use]
pub fn render_experiment(result: &ExperimentResult, set: &RunSet) -> String {
    let mut out = format!(
        "## {}\n\n{}\n\n{}\n\n",
        escape_cell(&crate::experiment::heading(result)),
        escape_cell(&result.question),
        escape_cell(&crate::experiment::verdict(result))
    );
    for shape in &result.shapes {
        let word = crate::experiment::expectation_state(shape);
        let description = escape_cell(&crate::experiment::describe_expectation(shape));
        let _ = writeln!(out, "- **{word}**: {description}");
    }
    let comparisons = crate::experiment::compare_trends(result).into_iter();
    for trend in comparisons.filter(|trend| trend.state == ShapeState::Misses) {
        let _ = writeln!(out, "- **{}**: {}", trend.verdict, escape_cell(&trend.text));
    }
    let tables = result.tables.iter();
    let grids = tables.map(|table| crate::experiment::build_table(result, table));
    let grids = grids.chain(crate::experiment::published_tables(result));
    for grid in grids.filter(|grid| !grid.folded && !grid.rows.is_empty()) {
        let headings: Vec<String> = grid.headings.iter().map(|text| escape_cell(text)).collect();
        let rows: Vec<Vec<String>> = grid
            .rows
            .iter()
            .map(|row| row.iter().map(|text| escape_cell(text)).collect())
            .collect();
        let _ = write!(
            out,
            "\n### {}\n\n{}",
            escape_cell(&grid.title),
            render_table(&headings, &rows, grid.label_columns)
        );
    }
    for (reason, points) in crate::experiment::skipped_points(result) {
        let _ = write!(
            out,
            "\nNot tested: {}: {}.\n",
            escape_cell(&points.join(", ")),
            escape_cell(&reason)
        );
    }
    for note in crate::experiment::notes(result) {
        let _ = write!(out, "\n{}\n", escape_cell(&model::capitalise(&note)));
    }
    let caveats = phrases::count_caveats(&set.runs);
    if !caveats.is_empty() {
        out.push_str("\nCaveats:\n\n");
        for kind in caveats {
            let _ = writeln!(
                out,
                "- {} ({})",
                escape_cell(&kind.describe()),
                escape_cell(kind.example.id.as_str())
            );
        }
    }
    out.trim_end().to_owned()
}

/// Renders many runs: for each plan how its figures changed over time.
#[cfg(feature = "history")]
#[must_use]
pub fn render_over_time(plans: &[PlanTrends]) -> String {
    let mut out = format!("{}\n", describe_period(plans));
    for plan in plans {
        let _ = write!(out, "\n**{}**\n\n", escape_cell(&plan.title));
        for trend in &plan.trends {
            let _ = writeln!(out, "- {}", escape_cell(&trend.describe()));
        }
        if plan.trends.is_empty() {
            for row in phrases::measurements(&plan.runs) {
                let _ = writeln!(
                    out,
                    "- {}",
                    escape_cell(&format!("{}: {}", row.name, row.figure))
                );
            }
        }
    }
    out.trim_end().to_owned()
}

/// Renders a rate search: its result and its trials.
#[must_use]
pub fn render_search(search: &RateSearchResult) -> String {
    let grid = crate::rate_search::trial_table(search);
    let rows: Vec<Vec<String>> = (grid.rows.iter())
        .map(|row| row.iter().map(|text| escape_cell(text)).collect())
        .collect();
    format!(
        "{}\n\n{}",
        escape_cell(&crate::rate_search::search_headline(search)),
        render_table(&grid.headings, &rows, grid.left_columns.max(1)).trim_end()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_that_name_a_row_are_flush_left() {
        let cells = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let headings = cells(["protocol", "direction", "time"]);
        let text = render_table(&headings, &[cells(["tcp", "send", "140 ms"])], 2);
        assert_eq!(
            text,
            "| protocol | direction | time |\n| --- | --- | ---: |\n| tcp | send | 140 ms |\n"
        );
    }
}
