//! Horizontal bars, one per row, with the name above and the value at the end.

use std::fmt::Write;

use super::axis::ChartAxis;
use super::{
    BOLD_FACTOR, CHARACTER_WIDTH, DrawingSize, SERIES_COLORS, escape_markup, format_coordinate,
    open_svg,
};

/// Horizontal bars over one axis that starts at zero.
pub(crate) struct BarChart {
    /// Title and accessible name.
    pub(crate) title: String,
    pub(crate) axis: ChartAxis,
    pub(crate) bars: Vec<ValueBar>,
}

/// Bar with its name and value.
pub(crate) struct ValueBar {
    pub(crate) name: String,
    pub(crate) value: f64,
    /// Confidence interval, drawn as a whisker; `None` if unknown.
    pub(crate) interval: Option<(f64, f64)>,
    /// Formatted value.
    pub(crate) text: String,
    pub(crate) color: usize,
}

impl ValueBar {
    /// Returns name and value shortened to the width. The interval is dropped first, since it is
    /// also drawn and in the table; then the end of the name.
    fn fit_text(&self, width: f64) -> (String, &str) {
        let max_name_chars = |text: &str| {
            let value_width = text.chars().count() as f64 * VALUE_CHARACTER_WIDTH + NAME_VALUE_GAP;
            ((width - value_width) / NAME_CHARACTER_WIDTH).max(0.0) as usize
        };
        let text = match self.text.split_once(" (") {
            Some((value, _)) if self.name.chars().count() > max_name_chars(&self.text) => value,
            _ => &self.text,
        };
        (shorten(&self.name, max_name_chars(text)), text)
    }
}

/// Width of a character of a name (13 px) and of a value (bold).
const NAME_CHARACTER_WIDTH: f64 = CHARACTER_WIDTH * 1.12;
const VALUE_CHARACTER_WIDTH: f64 = CHARACTER_WIDTH * BOLD_FACTOR;
/// Smallest gap between a name and its value.
const NAME_VALUE_GAP: f64 = 12.0;
const ROW_HEIGHT: f64 = 42.0;
const BAR_HEIGHT: f64 = 14.0;
/// Height of the axis labels and axis title below the bars; only a logarithmic axis has them.
const AXIS_HEIGHT: f64 = 40.0;

impl BarChart {
    /// Renders the bars as SVG.
    pub(crate) fn draw(&self, size: DrawingSize) -> String {
        let rows = self.bars.len() as f64 * ROW_HEIGHT;
        let is_logarithmic = self.axis.is_logarithmic();
        let height = rows + if is_logarithmic { AXIS_HEIGHT } else { 6.0 };
        let mut out = String::new();
        open_svg(&mut out, size, height, &self.title, None);
        let lines = match is_logarithmic {
            true => self.draw_scale(&mut out, size, rows),
            false => Vec::new(),
        };
        for (position, bar) in self.bars.iter().enumerate() {
            let top = position as f64 * ROW_HEIGHT;
            let width = (self.axis.position(bar.value) * size.width).max(2.0);
            let (name, text) = bar.fit_text(size.width);
            write!(
                out,
                "<text class=\"name\" x=\"0\" y=\"{}\">{}</text><text class=\"value end\" x=\"{}\" y=\"{}\">{}</text>\
                 <rect class=\"track\" x=\"0\" y=\"{y}\" width=\"{}\" height=\"{BAR_HEIGHT}\" rx=\"3\"/>{}\
                 <g class=\"c{}\"><rect class=\"bar\" x=\"0\" y=\"{y}\" width=\"{}\" height=\"{BAR_HEIGHT}\" rx=\"3\"/></g>",
                format_coordinate(top + 15.0),
                escape_markup(&name),
                format_coordinate(size.width),
                format_coordinate(top + 15.0),
                escape_markup(text),
                format_coordinate(size.width),
                grid_lines(&lines, top + 21.0),
                bar.color % SERIES_COLORS,
                format_coordinate(width),
                y = format_coordinate(top + 21.0),
            )
            .expect("writing to a String cannot fail");
            if let Some((low, high)) = bar.interval.filter(|(low, high)| low < high) {
                let at = |value: f64| self.axis.position(value) * size.width;
                let mut d = format!(
                    "M{} {y}H{}",
                    format_coordinate(at(low)),
                    format_coordinate(at(high)),
                    y = format_coordinate(top + 28.0)
                );
                // An end outside the drawing has no cap.
                for end in [low, high] {
                    if self.axis.shows(end) {
                        d.push_str(&format!(
                            "M{} {}v6",
                            format_coordinate(at(end)),
                            format_coordinate(top + 25.0)
                        ));
                    }
                }
                write!(out, "<path class=\"whisker\" d=\"{d}\"/>")
                    .expect("writing to a String cannot fail");
            }
        }
        out.push_str("</svg>");
        out
    }

    /// Draws tick labels below the bars, needed when lengths are not proportional to amounts.
    /// Returns their positions.
    fn draw_scale(&self, out: &mut String, size: DrawingSize, rows: f64) -> Vec<f64> {
        let mut lines = Vec::new();
        let bottom = rows + 2.0;
        let mut last_label_end = f64::NEG_INFINITY;
        for tick in self.axis.ticks(size.width, 110.0) {
            let x = tick.position * size.width;
            let label_width = tick.label.chars().count() as f64 * CHARACTER_WIDTH;
            let (class, from) = match x {
                x if x < label_width / 2.0 => ("start", x),
                x if x > size.width - label_width / 2.0 => ("end", x - label_width),
                x => ("mid", x - label_width / 2.0),
            };
            lines.push(x);
            if from > last_label_end + 6.0 {
                last_label_end = from + label_width;
                let _ = write!(
                    out,
                    "<text class=\"tick {class}\" x=\"{}\" y=\"{}\">{}</text>",
                    format_coordinate(x),
                    format_coordinate(bottom + 12.0),
                    escape_markup(&tick.label)
                );
            }
        }
        let _ = write!(
            out,
            "<text class=\"label end\" x=\"{}\" y=\"{}\">{}</text>",
            format_coordinate(size.width),
            format_coordinate(bottom + 30.0),
            escape_markup(&self.axis.label)
        );
        lines
    }
}

/// Draws the grid lines of an axis across the track of a bar at `top`.
fn grid_lines(lines: &[f64], top: f64) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let line = |x: &f64| {
        format!(
            "M{} {}v{BAR_HEIGHT}",
            format_coordinate(*x),
            format_coordinate(top)
        )
    };
    let d: String = lines.iter().map(line).collect();
    format!("<path class=\"grid decades\" d=\"{d}\"/>")
}

fn shorten(text: &str, max_chars: usize) -> String {
    if text.chars().count() <= max_chars {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(max_chars.saturating_sub(1)).collect();
    short.push('…');
    short
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::svg::{AxisUnit, WIDE_SIZE};

    fn drawn(values: &[(f64, (f64, f64))]) -> String {
        let bars = values.iter().map(|&(value, interval)| ValueBar {
            name: "kernel".to_owned(),
            value,
            interval: Some(interval),
            text: value.to_string(),
            color: 0,
        });
        let highest = values.iter().map(|value| value.1.1).fold(0.0, f64::max);
        let lowest = values
            .iter()
            .map(|value| value.0)
            .fold(f64::INFINITY, f64::min);
        let chart = BarChart {
            title: "trip".to_owned(),
            axis: ChartAxis::for_bars("trip", lowest, highest, AxisUnit::for_time(highest)),
            bars: bars.collect(),
        };
        chart.draw(WIDE_SIZE)
    }

    fn lengths(drawing: &str) -> Vec<f64> {
        let bars = drawing.split("<rect class=\"bar\"").skip(1);
        let width = |bar: &str| {
            let (_, rest) = bar.split_once("width=\"")?;
            rest.split_once('"')?.0.parse().ok()
        };
        bars.filter_map(width).collect()
    }

    #[test]
    fn a_name_and_its_value_never_overlap() {
        let fit = |name: &str, text: &str, width: f64| {
            let bar = ValueBar {
                name: name.to_owned(),
                value: 1.0,
                interval: None,
                text: text.to_owned(),
                color: 0,
            };
            let (name, text) = bar.fit_text(width);
            (name, text.to_owned())
        };
        let value = "36.5 Mb/s (7.78 Mb/s to 65.2 Mb/s)";
        let name = "window-and-descriptors";
        let pair = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        assert_eq!(fit(name, value, WIDE_SIZE.width), pair(name, value));
        let narrow = crate::svg::NARROW_SIZE.width;
        assert_eq!(fit(name, value, narrow), pair(name, "36.5 Mb/s"));
        assert_eq!(
            fit("tuned", "20.0 Mb/s", narrow),
            pair("tuned", "20.0 Mb/s")
        );
        let long = "x".repeat(60);
        let (shortened, text) = fit(&long, value, narrow);
        assert!(
            shortened.ends_with('…') && text == "36.5 Mb/s",
            "{shortened}"
        );
        let total_width = shortened.chars().count() as f64 * NAME_CHARACTER_WIDTH
            + text.chars().count() as f64 * VALUE_CHARACTER_WIDTH;
        assert!(total_width < narrow, "{total_width}");
    }

    #[test]
    fn a_bar_is_visible_next_to_one_that_is_a_thousand_times_longer() {
        let drawing = drawn(&[(1e3, (1e3, 1e3)), (1e6, (1e6, 1e6))]);
        let lengths = lengths(&drawing);
        assert!(lengths[0] > 50.0 && lengths[1] > 2.0 * lengths[0]);
        for part in ["trip, logarithmic", ">1 µs<", ">1 ms<"] {
            assert!(drawing.contains(part), "{part}: {drawing}");
        }
        // Amounts of similar size get a linear axis, which needs no labels.
        let even = drawn(&[(1e3, (1e3, 1e3)), (2e3, (2e3, 2e3))]);
        assert!(!even.contains("logarithmic") && !even.contains("tick"));
    }
}
