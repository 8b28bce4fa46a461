//! Heat map: cells in rows and columns, darker for better values.

use std::fmt::Write;

use super::{CHARACTER, Size, escape, number, open};

/// Cells with their texts.
pub(crate) struct Heat {
    /// Title and accessible name.
    pub(crate) title: String,
    /// Name of the row axis.
    pub(crate) row_label: String,
    /// Name of the column axis.
    pub(crate) column_label: String,
    pub(crate) rows: Vec<String>,
    pub(crate) columns: Vec<String>,
    /// Cells by row: rank from 0 (worst) to 1 (best), and text; `None` for a missing value.
    pub(crate) cells: Vec<Vec<Option<(f64, String)>>>,
}

const ROW: f64 = 34.0;
const TOP: f64 = 44.0;

impl Heat {
    /// Renders the map as SVG.
    pub(crate) fn draw(&self, size: Size) -> String {
        let height = TOP + self.rows.len() as f64 * ROW + 4.0;
        let longest = (self.rows.iter().chain([&self.row_label]))
            .map(|text| text.chars().count())
            .max()
            .unwrap_or(1);
        let left = (longest as f64 * CHARACTER + 12.0).min(size.width / 3.0);
        let width = (size.width - left) / self.columns.len().max(1) as f64;
        let mut out = String::new();
        open(&mut out, size, height, &self.title, None);
        let mut put = |text: std::fmt::Arguments<'_>| {
            out.write_fmt(text)
                .expect("a string takes all that is written");
        };
        put(format_args!(
            "<text class=\"name\" x=\"{}\" y=\"14\">{}</text><text class=\"name\" x=\"0\" y=\"36\">{}</text>",
            number(left),
            escape(&self.column_label),
            escape(&self.row_label)
        ));
        for (column, text) in self.columns.iter().enumerate() {
            put(format_args!(
                "<text class=\"name\" x=\"{}\" y=\"36\">{}</text>",
                number(left + column as f64 * width + 6.0),
                escape(&fitting(text, width))
            ));
        }
        for (row, (text, cells)) in self.rows.iter().zip(&self.cells).enumerate() {
            let top = TOP + row as f64 * ROW;
            put(format_args!(
                "<text class=\"name\" x=\"0\" y=\"{}\">{}</text>",
                number(top + 21.0),
                escape(&fitting(text, left))
            ));
            for (column, cell) in cells.iter().enumerate() {
                let x = left + column as f64 * width;
                let (share, text) = match cell {
                    Some((share, text)) => (*share, text.as_str()),
                    None => (0.0, "–"),
                };
                // The opacity is limited so that the text stays readable.
                put(format_args!(
                    "<g class=\"c0\"><rect class=\"bar\" fill-opacity=\"{:.2}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"3\"/></g><text class=\"value\" x=\"{}\" y=\"{}\">{}</text>",
                    0.06 + 0.5 * share,
                    number(x + 1.0),
                    number(top + 1.0),
                    number((width - 2.0).max(1.0)),
                    number(ROW - 2.0),
                    number(x + 6.0),
                    number(top + 21.0),
                    escape(&figure(text, width))
                ));
            }
        }
        out.push_str("</svg>");
        out
    }
}

fn room(width: f64) -> usize {
    ((width - 8.0) / CHARACTER).max(1.0) as usize
}

/// Shortens a value to its SI prefix if the unit does not fit: `626k`. The title names the unit.
fn figure(text: &str, width: f64) -> String {
    if text.chars().count() <= room(width) {
        return text.to_owned();
    }
    let short = text.trim_end_matches("b/s").trim_end_matches("/s");
    fitting(&short.replace(' ', ""), width)
}

fn fitting(text: &str, width: f64) -> String {
    let room = room(width);
    if text.chars().count() <= room {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(room.saturating_sub(1)).collect();
    short.push('…');
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_in_a_narrow_cell_keeps_its_digits_and_its_prefix() {
        let narrow = 6.0 * CHARACTER + 8.0;
        for (text, shown) in [
            ("626 kb/s", "626k"),
            ("49.3 Gb/s", "49.3G"),
            ("1.2 M/s", "1.2M"),
            ("12 µs", "12 µs"),
            ("1,234,567", "1,234…"),
        ] {
            assert_eq!(figure(text, narrow), shown);
            assert_eq!(figure(text, 1000.0), text);
        }
    }
}
