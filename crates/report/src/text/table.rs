//! Aligned columns without lines around them.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};

use crate::style::{Paint, Style};

/// Lays out a table: the first `left` columns flush left, the others flush right under their headings.
///
/// Cells must be clean already.
pub(super) fn table(
    headings: &[&str],
    rows: Vec<Vec<String>>,
    left: usize,
    style: &Style,
) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(headings.iter().copied());
    for row in rows {
        table.add_row(row);
    }
    for (position, column) in table.column_iter_mut().enumerate() {
        let last = position + 1 == headings.len();
        column.set_padding((0, if last { 0 } else { 2 }));
        column.set_cell_alignment(if position < left {
            CellAlignment::Left
        } else {
            CellAlignment::Right
        });
    }
    // Colours come after the layout: their sequences must not count as width.
    let lines: Vec<_> = table
        .lines()
        .enumerate()
        .map(|(position, line)| {
            let line = line.trim_end();
            if position == 0 {
                style.paint(Paint::Head, line)
            } else {
                line.to_owned()
            }
        })
        .collect();
    lines.join("\n")
}
