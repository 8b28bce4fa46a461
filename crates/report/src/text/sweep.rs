//! Sweep over a matrix of settings as text: heat map, table, best point.

use linerate_record::figure;
use linerate_record::sweep::Sweep;

use super::table::render_table;
use crate::model::{self, format_relative};
use crate::style::{PaintRole, TextStyle, strip_control_characters, wrap};
use crate::sweep::{
    best_values, cheapest_near_best, describe_best, describe_setting, format_memory, front_legend,
    point_table, rank,
};

/// Blocks of a heat map, from worst to best.
const BLOCKS: [&str; 8] = ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
/// ASCII replacement of [`BLOCKS`].
const DIGITS: [&str; 8] = ["1", "2", "3", "4", "5", "6", "7", "8"];

/// Renders the result of a sweep.
pub(super) fn render_sweep(found: &Sweep, style: &TextStyle) -> String {
    let name = strip_control_characters(&found.figure);
    let measured = found
        .points
        .iter()
        .filter(|point| point.value.is_some())
        .count();
    let title = format!(
        "{name} of {}: {measured} of {} points",
        strip_control_characters(&found.command),
        found.points.len()
    );
    let mut blocks = vec![style.paint(PaintRole::Bold, &title)];
    blocks.extend(render_heat_map(found, style));
    blocks.push(render_points(found, style));
    let mut sentences = Vec::new();
    if let Some(best) = found.best.and_then(|best| found.points.get(best)) {
        let mut sentence = describe_best(found).unwrap_or_default();
        let cheapest = cheapest_near_best(found, best);
        if let Some(cheap) = cheapest {
            let loss = match (cheap.value, best.value) {
                (Some(cheap), Some(best)) => (1.0 - cheap.median / best.median).abs(),
                _ => 0.0,
            };
            sentence.push_str(&format!(
                " {} is within {} of it and takes {} instead of {}.",
                describe_setting(found, cheap),
                format_relative(loss.max(0.001)),
                model::or_unknown(cheap.memory_bytes, format_memory),
                model::or_unknown(best.memory_bytes, format_memory)
            ));
        }
        sentences.push(sentence);
    }
    sentences.push(front_legend(found));
    blocks.push(wrap(&sentences.join(" "), style.width).join("\n"));
    blocks.join("\n\n")
}

fn render_heat_map(sweep: &Sweep, style: &TextStyle) -> Option<String> {
    let cells = best_values(sweep)?;
    let (rows, columns) = (&sweep.axes[0], &sweep.axes[1]);
    let corner = format!(
        "{} \\ {}",
        strip_control_characters(&rows.name),
        strip_control_characters(&columns.name)
    );
    let mut headings = vec![corner];
    headings.extend(
        columns
            .values
            .iter()
            .map(|value| strip_control_characters(value).into_owned()),
    );
    let cell = |value: &Option<f64>| match value {
        None => "-".to_owned(),
        Some(value) => {
            let level = (rank(sweep, *value) * 7.0).round() as usize;
            let block = style.glyph(BLOCKS[level.min(7)], DIGITS[level.min(7)]);
            format!("{} {block}", figure::format(&sweep.figure, *value))
        }
    };
    let lines = rows
        .values
        .iter()
        .zip(&cells)
        .map(|(value, cells)| {
            let mut line = vec![strip_control_characters(value).into_owned()];
            line.extend(cells.iter().map(cell));
            line
        })
        .collect();
    let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
    Some(render_table(&headings, lines, 1, style))
}

fn render_points(sweep: &Sweep, style: &TextStyle) -> String {
    let mut text = point_table(sweep).map_or_else(String::new, |grid| grid.render(style));
    let mut listed = std::collections::BTreeSet::new();
    for point in &sweep.points {
        let Some(reason) = point
            .failed
            .as_deref()
            .filter(|reason| listed.insert(*reason))
        else {
            continue;
        };
        let note = format!(
            "{}: {}",
            describe_setting(sweep, point),
            strip_control_characters(reason)
        );
        text.push('\n');
        text.push_str(&super::render_note(&note, style, style.width));
    }
    text
}
