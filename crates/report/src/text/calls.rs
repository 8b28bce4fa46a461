//! Table of system calls.

use linerate_metric::record::Record;

use super::table::table;
use crate::calls;
use crate::style::{Paint, Style, clean, wrap};

/// Renders the times of each call; `None` for a run that did not record calls.
pub(super) fn calls(record: &Record, style: &Style) -> Option<String> {
    let rows: Vec<_> = calls::rows(record)
        .into_iter()
        .map(|row| {
            let mut cells = vec![
                row.end.to_owned(),
                clean(&row.call).into_owned(),
                row.found.to_owned(),
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
    let mut text = table(&headings, rows, 3, style);
    for clock in calls::clocks(record) {
        for line in wrap(&clean(&clock), style.width) {
            text.push('\n');
            text.push_str(&style.paint(Paint::Dim, &line));
        }
    }
    Some(text)
}
