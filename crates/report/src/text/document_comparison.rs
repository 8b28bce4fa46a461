//! Comparison of documents as text.

use super::render_note;
use super::table::render_table;
use crate::comparison::DocumentComparison;
use crate::differences::{NO_DIFFERENCES, difference_table};
use crate::model::{self, INTERVAL_LEGEND, format_estimate};
use crate::style::{TextStyle, strip_control_characters, wrap};

/// Renders one row per figure and one column per document; two documents get a ratio column.
#[must_use]
pub fn render_comparison(sides: &DocumentComparison, style: &TextStyle) -> String {
    let two = sides.documents.len() == 2;
    let mut headings = vec!["figure".to_owned()];
    headings.extend(
        sides
            .documents
            .iter()
            .map(|side| strip_control_characters(&side.name).into_owned()),
    );
    if two {
        headings.push("second/first".to_owned());
    }
    let rows = sides
        .figures()
        .map(|figure_row| {
            let name = figure_row.key();
            let mut row = vec![strip_control_characters(&name).into_owned()];
            row.extend(sides.documents.iter().map(|side| {
                let value = side.figures.get(&name);
                model::or_unknown(value, |value| format_estimate(figure_row.unit, value))
            }));
            if two {
                let ratio = sides.ratio(&name);
                row.push(model::or_unknown(ratio, model::format_ratio));
            }
            row
        })
        .collect();
    let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
    let mut text = String::new();
    for sentence in &sides.verdict {
        text.push_str(&wrap(&strip_control_characters(sentence), style.width).join("\n"));
        text.push_str("\n\n");
    }
    text.push_str(&render_differences(sides, style));
    text.push_str(&render_table(&headings, rows, 1, style));
    text.push_str("\n\n");
    text.push_str(&render_note(INTERVAL_LEGEND, style, style.width));
    for side in &sides.documents {
        for caveat in &side.caveats {
            text.push('\n');
            let caveat = format!(
                "{}: {}",
                strip_control_characters(&side.name),
                strip_control_characters(caveat)
            );
            text.push_str(&render_note(&caveat, style, style.width));
        }
    }
    text
}

/// Renders the differences in options and hosts; empty for one document.
fn render_differences(sides: &DocumentComparison, style: &TextStyle) -> String {
    if sides.documents.len() < 2 {
        return String::new();
    }
    if sides.differences.is_empty() {
        return format!("{}\n\n", wrap(NO_DIFFERENCES, style.width).join("\n"));
    }
    let clean_all = |texts: Vec<String>| -> Vec<String> {
        texts
            .iter()
            .map(|text| strip_control_characters(text).into_owned())
            .collect()
    };
    let (headings, rows) = difference_table(&sides.differences, &sides.names());
    let headings = clean_all(headings);
    let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
    let rows = rows.into_iter().map(clean_all).collect();
    format!("{}\n\n", render_table(&headings, rows, 1, style))
}
