//! Heat map: cells in rows and columns, darker for better values.

use std::fmt::Write;

use super::{CHARACTER_WIDTH, DrawingSize, escape_markup, format_coordinate, open_svg};

/// Cells with their texts.
pub(crate) struct HeatMap {
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

const ROW_HEIGHT: f64 = 34.0;
const TOP_MARGIN: f64 = 44.0;

impl HeatMap {
    /// Renders the map as SVG.
    pub(crate) fn draw(&self, size: DrawingSize) -> String {
        let height = TOP_MARGIN + self.rows.len() as f64 * ROW_HEIGHT + 4.0;
        let longest = (self.rows.iter().chain([&self.row_label]))
            .map(|text| text.chars().count())
            .max()
            .unwrap_or(1);
        let label_width = (longest as f64 * CHARACTER_WIDTH + 12.0).min(size.width / 3.0);
        let width = (size.width - label_width) / self.columns.len().max(1) as f64;
        let mut out = String::new();
        open_svg(&mut out, size, height, &self.title, None);
        let mut put = |text: std::fmt::Arguments<'_>| {
            out.write_fmt(text)
                .expect("writing to a String cannot fail");
        };
        put(format_args!(
            "<text class=\"name\" x=\"{}\" y=\"14\">{}</text><text class=\"name\" x=\"0\" y=\"36\">{}</text>",
            format_coordinate(label_width),
            escape_markup(&self.column_label),
            escape_markup(&self.row_label)
        ));
        for (column, text) in self.columns.iter().enumerate() {
            put(format_args!(
                "<text class=\"name\" x=\"{}\" y=\"36\">{}</text>",
                format_coordinate(label_width + column as f64 * width + 6.0),
                escape_markup(&fit_text(text, width))
            ));
        }
        for (row, (text, cells)) in self.rows.iter().zip(&self.cells).enumerate() {
            let top = TOP_MARGIN + row as f64 * ROW_HEIGHT;
            put(format_args!(
                "<text class=\"name\" x=\"0\" y=\"{}\">{}</text>",
                format_coordinate(top + 21.0),
                escape_markup(&fit_text(text, label_width))
            ));
            for (column, cell) in cells.iter().enumerate() {
                let x = label_width + column as f64 * width;
                let (share, text) = match cell {
                    Some((share, text)) => (*share, text.as_str()),
                    None => (0.0, "–"),
                };
                // The opacity is limited so that the text stays readable.
                put(format_args!(
                    "<g class=\"c0\"><rect class=\"bar\" fill-opacity=\"{:.2}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"3\"/></g><text class=\"value\" x=\"{}\" y=\"{}\">{}</text>",
                    0.06 + 0.5 * share,
                    format_coordinate(x + 1.0),
                    format_coordinate(top + 1.0),
                    format_coordinate((width - 2.0).max(1.0)),
                    format_coordinate(ROW_HEIGHT - 2.0),
                    format_coordinate(x + 6.0),
                    format_coordinate(top + 21.0),
                    escape_markup(&fit_value(text, width))
                ));
            }
        }
        out.push_str("</svg>");
        out
    }
}

fn max_chars(width: f64) -> usize {
    ((width - 8.0) / CHARACTER_WIDTH).max(1.0) as usize
}

/// Shortens a value to its SI prefix if the unit does not fit: `626k`. The title names the unit.
fn fit_value(text: &str, width: f64) -> String {
    if text.chars().count() <= max_chars(width) {
        return text.to_owned();
    }
    let short = text.trim_end_matches("b/s").trim_end_matches("/s");
    fit_text(&short.replace(' ', ""), width)
}

fn fit_text(text: &str, width: f64) -> String {
    let char_limit = max_chars(width);
    if text.chars().count() <= char_limit {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(char_limit.saturating_sub(1)).collect();
    short.push('…');
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_in_a_narrow_cell_keeps_its_digits_and_its_prefix() {
        let narrow = 6.0 * CHARACTER_WIDTH + 8.0;
        for (text, expected) in [
            ("626 kb/s", "626k"),
            ("49.3 Gb/s", "49.3G"),
            ("1.2 M/s", "1.2M"),
            ("12 µs", "12 µs"),
            ("1,234,567", "1,234…"),
        ] {
            assert_eq!(fit_value(text, narrow), expected);
            assert_eq!(fit_value(text, 1000.0), text);
        }
    }
}
