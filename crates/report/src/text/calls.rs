//! System call times as text.

use linerate_record::record::Record;

use super::table::render_table;
use crate::calls;
use crate::style::{PaintRole, TextStyle, strip_control_characters, wrap};

/// Renders the times of each call; `None` for a run that did not record calls.
pub(super) fn render_calls(record: &Record, style: &TextStyle) -> Option<String> {
    let rows: Vec<_> = calls::call_rows(record)
        .into_iter()
        .map(|row| {
            let mut cells = vec![
                row.role.to_owned(),
                strip_control_characters(&row.call).into_owned(),
                row.result.to_owned(),
            ];
            cells.extend(row.figures);
            cells
        })
        .collect();
    if rows.is_empty() {
        return None;
    }
    let mut headings = vec!["host", "call", "result"];
    headings.extend(calls::COLUMNS.map(|(name, _)| name));
    let mut text = render_table(&headings, rows, 3, style);
    for clock in calls::describe_clocks(record) {
        for line in wrap(&strip_control_characters(&clock), style.width) {
            text.push('\n');
            text.push_str(&style.paint(PaintRole::Dim, &line));
        }
    }
    Some(text)
}
