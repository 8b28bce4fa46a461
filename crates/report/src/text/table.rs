//! Aligned columns without borders.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};

use crate::style::{Paint, Style, wrap};

/// Narrowest column for sentences: below this width an overlong line is easier to read.
const NARROWEST_SENTENCE: usize = 20;

/// A table for text or HTML.
pub(crate) struct Grid {
    pub(crate) headings: Vec<String>,
    /// Rows; each has as many cells as there are headings.
    pub(crate) rows: Vec<Vec<String>>,
    /// Number of left-aligned columns.
    pub(crate) left: usize,
}

impl Grid {
    /// Creates a table; `None` without rows.
    pub(crate) fn new(headings: &[&str], rows: Vec<Vec<String>>, left: usize) -> Option<Self> {
        let headings = headings.iter().map(|&heading| heading.to_owned());
        (!rows.is_empty()).then(|| Self {
            headings: headings.collect(),
            rows,
            left,
        })
    }

    /// Renders the table as text.
    pub(super) fn text(self, style: &Style) -> String {
        let headings: Vec<_> = self.headings.iter().map(String::as_str).collect();
        table(&headings, self.rows, self.left, style)
    }
}

/// Lays out a table: the leading columns are left-aligned, the others right-aligned. If the
/// lines are too long, sentences in the last column are wrapped, or the remaining figures follow in
/// a second table.
///
/// Cells must not contain control characters.
pub(super) fn table(
    headings: &[&str],
    mut rows: Vec<Vec<String>>,
    left: usize,
    style: &Style,
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
    let room = |columns: usize, gap: usize| {
        widths[..columns].iter().sum::<usize>() + gap * columns.saturating_sub(1)
    };
    let all = headings.len();
    let has_sentences = left == all;
    let for_sentences = |gap: usize| style.width.saturating_sub(room(all - 1, gap) + gap);
    // The gap shrinks to one space if that makes the column of sentences wide enough.
    let is_helped = |gap| for_sentences(gap) >= NARROWEST_SENTENCE;
    let sentences_keep = has_sentences && (is_helped(2) || !is_helped(1));
    let gap = if room(all, 2) <= style.width || sentences_keep {
        2
    } else {
        1
    };
    if room(all, gap) > style.width {
        if has_sentences {
            let width = for_sentences(gap).max(NARROWEST_SENTENCE);
            for sentence in rows.iter_mut().filter_map(|row| row.last_mut()) {
                *sentence = wrap(sentence, width).join("\n");
            }
        } else {
            let fitting = (left + 1..all).rev().find(|&n| room(n, gap) <= style.width);
            let first = fitting.unwrap_or(left + 1);
            if first < all {
                let (upper, lower) = split(headings, &rows, left, first);
                let upper = table(&upper.0, upper.1, left, style);
                return format!("{upper}\n{}", table(&lower.0, lower.1, left, style));
            }
        }
    }
    lay_out(headings, rows, left, gap, style)
}

type Part<'a> = (Vec<&'a str>, Vec<Vec<String>>);

/// Splits a table in two; the second part repeats the columns that name the rows.
fn split<'a>(
    headings: &[&'a str],
    rows: &[Vec<String>],
    left: usize,
    first: usize,
) -> (Part<'a>, Part<'a>) {
    fn lower<T: Clone>(cells: &[T], left: usize, first: usize) -> Vec<T> {
        let mut part = cells[..left].to_vec();
        part.extend_from_slice(&cells[first..]);
        part
    }
    let upper = rows.iter().map(|row| row[..first].to_vec()).collect();
    let below = rows.iter().map(|row| lower(row, left, first)).collect();
    (
        (headings[..first].to_vec(), upper),
        (lower(headings, left, first), below),
    )
}

fn lay_out(
    headings: &[&str],
    rows: Vec<Vec<String>>,
    left: usize,
    gap: usize,
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
        column.set_padding((0, if last { 0 } else { gap as u16 }));
        column.set_cell_alignment(if position < left {
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
                style.paint(Paint::Head, line)
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
    fn figures_move_together_before_a_sentence_is_too_long_for_its_line() {
        let style = Style {
            width: 80,
            ..Style::PLAIN
        };
        let mut cells: Vec<String> = vec!["connect".into()];
        cells.extend(["2.36 us"; 6].map(str::to_owned));
        cells.push("naming the server; over TCP the handshake".into());
        let headings = [
            "step", "min", "p50", "p90", "p99", "p99.9", "max", "meaning",
        ];
        let text = table(&headings, vec![cells], headings.len(), &style);
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        assert!(text.contains("us naming the server;"), "{text}");
    }

    #[test]
    fn narrow_lines_hold_wide_tables() {
        let style = Style {
            width: 24,
            ..Style::PLAIN
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
        insta::assert_snapshot!(table(&headings, rows(), 1, &style), @r"
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
        let lines = table(&["lost at", "meaning"], sentence, 2, &style);
        insta::assert_snapshot!(lines, @r"
        lost at  meaning
        path     between the hosts,
                 or nowhere at all
        ");
    }
}
