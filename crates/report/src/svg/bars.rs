//! Horizontal bars, one per row, with the name above and the value at the end.

use std::fmt::Write;

use super::axis::Axis;
use super::{BOLD, CHARACTER, COLORS, Size, escape, number, open};

/// Horizontal bars over one axis that starts at zero.
pub(crate) struct BarChart {
    /// Title and accessible name.
    pub(crate) title: String,
    pub(crate) axis: Axis,
    pub(crate) bars: Vec<Bar>,
}

/// Bar with its name and value.
pub(crate) struct Bar {
    pub(crate) name: String,
    pub(crate) value: f64,
    /// Confidence interval, drawn as a whisker; `None` if unknown.
    pub(crate) reach: Option<(f64, f64)>,
    /// Formatted value.
    pub(crate) text: String,
    pub(crate) color: usize,
}

impl Bar {
    /// Returns name and value shortened to the width. The interval is dropped first, since it is
    /// also drawn and in the table; then the end of the name.
    fn written(&self, width: f64) -> (String, &str) {
        let room = |text: &str| {
            let taken = text.chars().count() as f64 * VALUE_CHARACTER + GAP;
            ((width - taken) / NAME_CHARACTER).max(0.0) as usize
        };
        let text = match self.text.split_once(" (") {
            Some((value, _)) if self.name.chars().count() > room(&self.text) => value,
            _ => &self.text,
        };
        (cut(&self.name, room(text)), text)
    }
}

/// Width of a character of a name (13 px) and of a value (bold).
const NAME_CHARACTER: f64 = CHARACTER * 1.12;
const VALUE_CHARACTER: f64 = CHARACTER * BOLD;
/// Smallest gap between a name and its value.
const GAP: f64 = 12.0;
const ROW: f64 = 42.0;
const BAR: f64 = 14.0;
/// Height of the axis labels and axis title below the bars; only a logarithmic axis has them.
const AXIS: f64 = 40.0;

impl BarChart {
    /// Renders the bars as SVG.
    pub(crate) fn draw(&self, size: Size) -> String {
        let rows = self.bars.len() as f64 * ROW;
        let is_logarithmic = self.axis.is_logarithmic();
        let height = rows + if is_logarithmic { AXIS } else { 6.0 };
        let mut out = String::new();
        open(&mut out, size, height, &self.title, None);
        let lines = match is_logarithmic {
            true => self.scale(&mut out, size, rows),
            false => Vec::new(),
        };
        for (position, bar) in self.bars.iter().enumerate() {
            let top = position as f64 * ROW;
            let width = (self.axis.position(bar.value) * size.width).max(2.0);
            let (name, text) = bar.written(size.width);
            write!(
                out,
                "<text class=\"name\" x=\"0\" y=\"{}\">{}</text><text class=\"value end\" x=\"{}\" y=\"{}\">{}</text>\
                 <rect class=\"track\" x=\"0\" y=\"{y}\" width=\"{}\" height=\"{BAR}\" rx=\"3\"/>{}\
                 <g class=\"c{}\"><rect class=\"bar\" x=\"0\" y=\"{y}\" width=\"{}\" height=\"{BAR}\" rx=\"3\"/></g>",
                number(top + 15.0),
                escape(&name),
                number(size.width),
                number(top + 15.0),
                escape(text),
                number(size.width),
                across(&lines, top + 21.0),
                bar.color % COLORS,
                number(width),
                y = number(top + 21.0),
            )
            .expect("a string takes all that is written");
            if let Some((low, high)) = bar.reach.filter(|(low, high)| low < high) {
                let at = |value: f64| self.axis.position(value) * size.width;
                let mut d = format!(
                    "M{} {y}H{}",
                    number(at(low)),
                    number(at(high)),
                    y = number(top + 28.0)
                );
                // An end outside the drawing has no cap.
                for end in [low, high] {
                    if self.axis.shows(end) {
                        d.push_str(&format!("M{} {}v6", number(at(end)), number(top + 25.0)));
                    }
                }
                write!(out, "<path class=\"whisker\" d=\"{d}\"/>")
                    .expect("a string takes all that is written");
            }
        }
        out.push_str("</svg>");
        out
    }

    /// Draws tick labels below the bars, needed when lengths are not proportional to amounts.
    /// Returns their positions.
    fn scale(&self, out: &mut String, size: Size, rows: f64) -> Vec<f64> {
        let mut lines = Vec::new();
        let bottom = rows + 2.0;
        let mut taken = f64::NEG_INFINITY;
        for tick in self.axis.ticks(size.width, 110.0) {
            let x = tick.at * size.width;
            let long = tick.label.chars().count() as f64 * CHARACTER;
            let (class, from) = match x {
                x if x < long / 2.0 => ("start", x),
                x if x > size.width - long / 2.0 => ("end", x - long),
                x => ("mid", x - long / 2.0),
            };
            lines.push(x);
            if from > taken + 6.0 {
                taken = from + long;
                let _ = write!(
                    out,
                    "<text class=\"tick {class}\" x=\"{}\" y=\"{}\">{}</text>",
                    number(x),
                    number(bottom + 12.0),
                    escape(&tick.label)
                );
            }
        }
        let _ = write!(
            out,
            "<text class=\"label end\" x=\"{}\" y=\"{}\">{}</text>",
            number(size.width),
            number(bottom + 30.0),
            escape(&self.axis.label)
        );
        lines
    }
}

/// Draws the grid lines of an axis across the track of a bar at `top`.
fn across(lines: &[f64], top: f64) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let line = |x: &f64| format!("M{} {}v{BAR}", number(*x), number(top));
    let d: String = lines.iter().map(line).collect();
    format!("<path class=\"grid decades\" d=\"{d}\"/>")
}

fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(most.saturating_sub(1)).collect();
    short.push('…');
    short
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::svg::{Unit, WIDE};

    fn drawn(values: &[(f64, (f64, f64))]) -> String {
        let bars = values.iter().map(|&(value, reach)| Bar {
            name: "kernel".to_owned(),
            value,
            reach: Some(reach),
            text: value.to_string(),
            color: 0,
        });
        let most = values.iter().map(|value| value.1.1).fold(0.0, f64::max);
        let least = values
            .iter()
            .map(|value| value.0)
            .fold(f64::INFINITY, f64::min);
        let chart = BarChart {
            title: "trip".to_owned(),
            axis: Axis::of_bars("trip", least, most, Unit::of_time(most)),
            bars: bars.collect(),
        };
        chart.draw(WIDE)
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
    fn a_name_and_its_value_never_lie_on_each_other() {
        let written = |name: &str, text: &str, width: f64| {
            let bar = Bar {
                name: name.to_owned(),
                value: 1.0,
                reach: None,
                text: text.to_owned(),
                color: 0,
            };
            let (name, text) = bar.written(width);
            (name, text.to_owned())
        };
        let value = "36.5 Mb/s (7.78 Mb/s to 65.2 Mb/s)";
        let name = "window-and-descriptors";
        let both = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        assert_eq!(written(name, value, WIDE.width), both(name, value));
        let narrow = crate::svg::NARROW.width;
        assert_eq!(written(name, value, narrow), both(name, "36.5 Mb/s"));
        assert_eq!(
            written("tuned", "20.0 Mb/s", narrow),
            both("tuned", "20.0 Mb/s")
        );
        let long = "x".repeat(60);
        let (cut, text) = written(&long, value, narrow);
        assert!(cut.ends_with('…') && text == "36.5 Mb/s", "{cut}");
        let taken = cut.chars().count() as f64 * NAME_CHARACTER
            + text.chars().count() as f64 * VALUE_CHARACTER;
        assert!(taken < narrow, "{taken}");
    }

    #[test]
    fn a_bar_is_seen_beside_one_that_is_a_thousand_times_longer() {
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
