//! Lying bars, one a row, each with its name above and its value at the end.

use std::fmt::Write;

use super::axis::Axis;
use super::{CHARACTER, COLORS, Size, escape, number, open};

/// Rows of bars over one axis that starts at zero.
pub(crate) struct BarChart {
    /// What it shows.
    pub(crate) title: String,
    pub(crate) axis: Axis,
    pub(crate) bars: Vec<Bar>,
}

/// One row.
pub(crate) struct Bar {
    pub(crate) name: String,
    pub(crate) value: f64,
    /// Where the value may lie as well, drawn as a whisker; absent where nothing tells.
    pub(crate) reach: Option<(f64, f64)>,
    /// The value as it is written.
    pub(crate) text: String,
    pub(crate) color: usize,
}

const ROW: f64 = 42.0;
const BAR: f64 = 14.0;

impl BarChart {
    /// Draws it.
    pub(crate) fn draw(&self, size: Size) -> String {
        let height = self.bars.len() as f64 * ROW + 6.0;
        let mut out = String::new();
        open(&mut out, size, height, &self.title, None);
        for (position, bar) in self.bars.iter().enumerate() {
            let top = position as f64 * ROW;
            let width = (self.axis.position(bar.value) * size.width).max(2.0);
            // A name that does not fit beside its value is cut: the table has all of it.
            let room = (size.width - (bar.text.chars().count() as f64 + 2.0) * CHARACTER)
                / (CHARACTER * 1.1);
            write!(
                out,
                "<text class=\"name\" x=\"0\" y=\"{}\">{}</text><text class=\"value end\" x=\"{}\" y=\"{}\">{}</text>\
                 <rect class=\"track\" x=\"0\" y=\"{y}\" width=\"{}\" height=\"{BAR}\" rx=\"3\"/>\
                 <g class=\"c{}\"><rect class=\"bar\" x=\"0\" y=\"{y}\" width=\"{}\" height=\"{BAR}\" rx=\"3\"/></g>",
                number(top + 15.0),
                escape(&cut(&bar.name, room as usize)),
                number(size.width),
                number(top + 15.0),
                escape(&bar.text),
                number(size.width),
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
                // An end beyond the drawing has no cap: it goes on.
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
}

fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(most.saturating_sub(1)).collect();
    short.push('…');
    short
}
