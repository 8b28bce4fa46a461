//! Packet generator runs as text.

use linerate_record::record::Record;

use super::{MAX_LIST_ENTRIES, more_entries};
use crate::generate::{flow_table, load_table, loss_table, rate_error, time_table};
use crate::style::TextStyle;

/// Returns the tables of a run: load, losses and order, delay, rate error, flows.
pub(crate) fn generator_tables(record: &Record, style: &TextStyle) -> Vec<String> {
    let Some(figures) = record.generate.as_deref() else {
        return Vec::new();
    };
    let mut blocks = vec![load_table(record, figures)];
    blocks.push(loss_table(figures));
    blocks.push(time_table(record, figures));
    let mut blocks: Vec<String> = (blocks.into_iter().flatten())
        .map(|grid| grid.render(style))
        .collect();
    if let Some(error) = rate_error(record)
        && let Some(last) = blocks.last_mut()
    {
        last.push_str(&format!("\nrate error  {error}"));
    }
    if let Some(grid) = flow_table(figures, MAX_LIST_ENTRIES) {
        let mut text = grid.render(style);
        if figures.flows.len() > MAX_LIST_ENTRIES {
            text.push('\n');
            text.push_str(&more_entries(figures.flows.len() - MAX_LIST_ENTRIES, style));
        }
        blocks.push(text);
    }
    blocks
}
