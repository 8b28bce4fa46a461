//! Experiment as text: tables, then the state of each expectation.

use linerate_record::experiment::{ExperimentResult, ShapeState};

use super::render_note;
use super::table::render_table;
use crate::experiment::{
    build_table, compare_trends, describe_expectation, expectation_state, heading, notes,
    published_tables, skipped_points, verdict,
};
use crate::model;
use crate::style::{PaintRole, TextStyle, strip_control_characters, wrap, wrap_with_prefix};

/// Renders the title of a table; each line is coloured separately because wrapping breaks escape
/// sequences.
fn render_title(text: &str, style: &TextStyle) -> String {
    let lines = wrap(&strip_control_characters(text), style.width).into_iter();
    let painted = lines.map(|line| style.paint(PaintRole::Bold, &line));
    painted.collect::<Vec<_>>().join("\n")
}

/// Renders an experiment.
pub(super) fn render_experiment(result: &ExperimentResult, style: &TextStyle) -> String {
    let mut blocks = vec![format!(
        "{}\n{}",
        style.paint(PaintRole::Bold, &strip_control_characters(&heading(result))),
        wrap(&strip_control_characters(&result.question), style.width).join("\n")
    )];
    let tables = result.tables.iter().map(|table| build_table(result, table));
    let grids = tables.chain(published_tables(result));
    let (folded, grids): (Vec<_>, Vec<_>) = grids.partition(|grid| grid.folded);
    for grid in grids.iter().filter(|grid| !grid.rows.is_empty()) {
        let headings: Vec<&str> = grid.headings.iter().map(String::as_str).collect();
        let rows = grid
            .rows
            .iter()
            .map(|row| {
                row.iter()
                    .map(|text| strip_control_characters(text).into_owned())
                    .collect()
            })
            .collect();
        let mut block = format!(
            "{}\n{}",
            render_title(&grid.title, style),
            render_table(&headings, rows, grid.label_columns, style)
        );
        if !grid.untested_rows.is_empty() {
            let untested = model::count_of(grid.untested_rows.len() as u64, "row");
            block.push_str(&format!("\n{untested} not tested"));
        }
        blocks.push(block);
    }
    for grid in folded {
        let rows = model::count_of(grid.rows.len() as u64, "row");
        let text = format!("{}: {rows}, in the report (HTML)", grid.title);
        blocks.push(wrap(&strip_control_characters(&text), style.width).join("\n"));
    }
    let mut lines = Vec::new();
    let (untested, tested): (Vec<_>, Vec<_>) =
        (result.shapes.iter()).partition(|shape| shape.state == ShapeState::Untested);
    for shape in tested {
        let state_text = expectation_state(shape);
        let paint = match shape.state {
            ShapeState::Holds if !shape.caveats.is_empty() => PaintRole::Warn,
            ShapeState::Holds => PaintRole::Good,
            ShapeState::Misses => PaintRole::Bad,
            ShapeState::Untested => PaintRole::Warn,
        };
        let text = strip_control_characters(&describe_expectation(shape)).into_owned();
        let prefix = format!("{state_text}: ");
        lines.push(wrap_with_prefix(
            &prefix,
            &style.paint(paint, &prefix),
            &text,
            style.width,
        ));
    }
    // Several for the same reason are one line.
    let mut reasons: Vec<(&str, usize)> = Vec::new();
    for shape in untested {
        match reasons
            .iter_mut()
            .find(|(reason, _)| *reason == shape.measured)
        {
            Some((_, count)) => *count += 1,
            None => reasons.push((&shape.measured, 1)),
        }
    }
    for (reason, count) in reasons {
        let prefix = "not tested: ";
        let text = format!(
            "{} ({reason})",
            model::count_of(count as u64, "expectation")
        );
        lines.push(wrap_with_prefix(
            prefix,
            &style.paint(PaintRole::Warn, prefix),
            &strip_control_characters(&text),
            style.width,
        ));
    }
    // Trends that agree are counted in the verdict and listed only in the HTML report.
    let comparisons = compare_trends(result).into_iter();
    for trend in comparisons.filter(|trend| trend.state == ShapeState::Misses) {
        let paint = PaintRole::Warn;
        let prefix = format!("{}: ", trend.verdict);
        lines.push(wrap_with_prefix(
            &prefix,
            &style.paint(paint, &prefix),
            &strip_control_characters(&trend.text),
            style.width,
        ));
    }
    blocks.push(lines.join("\n"));
    blocks.push(wrap(&verdict(result), style.width).join("\n"));
    let skipped: Vec<String> = skipped_points(result)
        .into_iter()
        .map(|(reason, points)| {
            let text = format!("not tested: {}: {}", points.join(", "), reason);
            render_note(&strip_control_characters(&text), style, style.width)
        })
        .collect();
    blocks.push(skipped.join("\n"));
    for text in notes(result) {
        blocks.push(render_note(
            &strip_control_characters(&text),
            style,
            style.width,
        ));
    }
    blocks.retain(|block| !block.is_empty());
    blocks.join("\n\n")
}

#[cfg(test)]
mod tests {
    use linerate_record::experiment::ExpectedShape;

    use super::*;

    fn shape(state: ShapeState, measured: &str, conclusion: &str) -> ExpectedShape {
        ExpectedShape {
            description: "each hop adds latency".to_owned(),
            rule: "slope(trip over hops) > 0".to_owned(),
            state,
            measured: measured.to_owned(),
            conclusion: conclusion.to_owned(),
            caveats: Vec::new(),
            why: String::new(),
        }
    }

    #[test]
    fn conclusions_stand_in_place_of_rules_and_untested_shapes_are_counted() {
        let result = ExperimentResult {
            shapes: vec![
                shape(ShapeState::Holds, "464 ns > 0 ns", "each hop adds 464 ns"),
                shape(ShapeState::Holds, "464 ns > 0 ns", ""),
                shape(ShapeState::Untested, "needs 4 CPUs", ""),
                shape(ShapeState::Untested, "needs 4 CPUs", ""),
            ],
            ..ExperimentResult::default()
        };
        let text = render_experiment(&result, &TextStyle::PLAIN);
        for line in [
            "agrees: each hop adds 464 ns",
            "agrees: each hop adds latency (464 ns > 0 ns)",
            "not tested: 2 expectations (needs 4 CPUs)",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
    }
}
