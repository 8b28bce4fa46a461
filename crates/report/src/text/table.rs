//! Layout of tables as aligned columns without borders.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};

use crate::model::Grid;
use crate::style::{PaintRole, TextStyle, wrap};

/// Narrowest column for sentences: below this width an overlong line is easier to read.
const MIN_SENTENCE_WIDTH: usize = 20;

impl Grid {
    /// Renders the table as text.
    pub(super) fn render(self, style: &TextStyle) -> String {
        let headings: Vec<_> = self.headings.iter().map(String::as_str).collect();
        render_table(&headings, self.rows, self.left_columns, style)
    }
}

/// Lays out a table: the leading columns are left-aligned, the others right-aligned. If the
/// lines are too long, sentences in the last column are wrapped, or the remaining figures follow in
/// a second table.
///
/// Cells must not contain control characters.
pub(super) fn render_table(
    headings: &[&str],
    mut rows: Vec<Vec<String>>,
    left_columns: usize,
    style: &TextStyle,
) -> String {
    let widths: Vec<_> = (0..headings.len())
        .map(|column| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            let widths = cells.map(|cell| cell.chars().count());
            widths
                .max()
                .unwrap_or(0)
                .max(headings[column].chars().count())
        })
        .collect();
    let width_of = |columns: usize, gap: usize| {
        widths[..columns].iter().sum::<usize>() + gap * columns.saturating_sub(1)
    };
    let column_count = headings.len();
    let has_sentences = left_columns == column_count;
    let sentence_width = |gap: usize| {
        style
            .width
            .saturating_sub(width_of(column_count - 1, gap) + gap)
    };
    // The gap shrinks to one space if that makes the column of sentences wide enough.
    let is_wide_enough = |gap| sentence_width(gap) >= MIN_SENTENCE_WIDTH;
    let keeps_wide_gap = has_sentences && (is_wide_enough(2) || !is_wide_enough(1));
    let gap = if width_of(column_count, 2) <= style.width || keeps_wide_gap {
        2
    } else {
        1
    };
    if width_of(column_count, gap) > style.width {
        if has_sentences {
            let width = sentence_width(gap).max(MIN_SENTENCE_WIDTH);
            for sentence in rows.iter_mut().filter_map(|row| row.last_mut()) {
                *sentence = wrap(sentence, width).join("\n");
            }
        } else {
            let last_fitting = (left_columns + 1..column_count)
                .rev()
                .find(|&n| width_of(n, gap) <= style.width);
            let first_below = last_fitting.unwrap_or(left_columns + 1);
            if first_below < column_count {
                let (upper, lower) = split_columns(headings, &rows, left_columns, first_below);
                let upper = render_table(&upper.0, upper.1, left_columns, style);
                return format!(
                    "{upper}\n{}",
                    render_table(&lower.0, lower.1, left_columns, style)
                );
            }
        }
    }
    lay_out(headings, rows, left_columns, gap, style)
}

type TablePart<'a> = (Vec<&'a str>, Vec<Vec<String>>);

/// Splits a table in two; the second part repeats the columns that name the rows.
fn split_columns<'a>(
    headings: &[&'a str],
    rows: &[Vec<String>],
    left_columns: usize,
    first_below: usize,
) -> (TablePart<'a>, TablePart<'a>) {
    fn lower_cells<T: Clone>(cells: &[T], left_columns: usize, first_below: usize) -> Vec<T> {
        let mut part = cells[..left_columns].to_vec();
        part.extend_from_slice(&cells[first_below..]);
        part
    }
    let upper = rows.iter().map(|row| row[..first_below].to_vec()).collect();
    let lower_rows = rows
        .iter()
        .map(|row| lower_cells(row, left_columns, first_below))
        .collect();
    (
        (headings[..first_below].to_vec(), upper),
        (lower_cells(headings, left_columns, first_below), lower_rows),
    )
}

fn lay_out(
    headings: &[&str],
    rows: Vec<Vec<String>>,
    left_columns: usize,
    gap: usize,
    style: &TextStyle,
) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(headings.iter().copied());
    for row in rows {
        table.add_row(row);
    }
    for (position, column) in table.column_iter_mut().enumerate() {
        let last = position + 1 == headings.len();
        column.set_padding((0, if last { 0 } else { gap as u16 }));
        column.set_cell_alignment(if position < left_columns {
            CellAlignment::Left
        } else {
            CellAlignment::Right
        });
    }
    // Colours are added after the layout, because escape sequences would count as width.
    let lines: Vec<_> = table
        .lines()
        .enumerate()
        .map(|(position, line)| {
            let line = line.trim_end();
            if position == 0 {
                style.paint(PaintRole::Heading, line)
            } else {
                line.to_owned()
            }
        })
        .collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gap_shrinks_before_sentences_get_too_narrow() {
        let style = TextStyle {
            width: 80,
            ..TextStyle::PLAIN
        };
        let mut cells: Vec<String> = vec!["connect".into()];
        cells.extend(["2.36 us"; 6].map(str::to_owned));
        cells.push("naming the server; over TCP the handshake".into());
        let headings = [
            "step", "min", "p50", "p90", "p99", "p99.9", "max", "meaning",
        ];
        let text = render_table(&headings, vec![cells], headings.len(), &style);
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        assert!(text.contains("us naming the server;"), "{text}");
    }

    #[test]
    fn narrow_lines_hold_wide_tables() {
        let style = TextStyle {
            width: 24,
            ..TextStyle::PLAIN
        };
        let rows = || {
            vec![
                vec![
                    "send".into(),
                    "31.0 Gb/s".into(),
                    "60,391".into(),
                    "0".into(),
                ],
                vec!["receive".into(), "1 Gb/s".into(), "1".into(), "17".into()],
            ]
        };
        let headings = ["dir", "goodput", "lost", "reordered"];
        insta::assert_snapshot!(render_table(&headings, rows(), 1, &style), @r"
        dir       goodput   lost
        send    31.0 Gb/s 60,391
        receive    1 Gb/s      1
        dir      reordered
        send             0
        receive         17
        ");
        let sentence = vec![vec![
            "path".into(),
            "between the hosts, or nowhere at all".into(),
        ]];
        let lines = render_table(&["lost at", "meaning"], sentence, 2, &style);
        insta::assert_snapshot!(lines, @r"
        lost at  meaning
        path     between the hosts,
                 or nowhere at all
        ");
    }
}
