//! SVG charts that follow the theme of the page: colours are CSS classes.
//!
//! Each chart is drawn for a wide page and for a phone. A single drawing, when scaled, would have
//! too small or too large text on one of them.

mod axis;
mod bars;
mod chart;
mod downsample;
mod heat_map;
mod loss_flow;
mod path_diagram;

pub(crate) use axis::{AxisUnit, ChartAxis};
pub(crate) use bars::{BarChart, ValueBar};
pub(crate) use chart::{ChartSeries, LineChart, ReferenceLine, SeriesMark, ShadedRange};
pub(crate) use heat_map::HeatMap;
pub(crate) use loss_flow::LossFlow;
pub(crate) use path_diagram::{ForwardDiagram, HostColumn, PathBox, PathDiagram};

use std::fmt::Write;

/// Number of series colours; `style.css` defines as many.
pub(crate) const SERIES_COLORS: usize = 6;

/// Size of a drawing in its own units: CSS pixels at scale 1.
#[derive(Clone, Copy)]
pub(crate) struct DrawingSize {
    pub(crate) class: &'static str,
    pub(crate) width: f64,
    pub(crate) height: f64,
}

/// Size for pages from 640 px on.
pub(crate) const WIDE_SIZE: DrawingSize = DrawingSize {
    class: "wide",
    width: 860.0,
    height: 290.0,
};

/// Size for phones of 360 to 430 px.
pub(crate) const NARROW_SIZE: DrawingSize = DrawingSize {
    class: "narrow",
    width: 350.0,
    height: 250.0,
};

/// Average width of a character in the page's font at 12 px.
const CHARACTER_WIDTH: f64 = 6.7;
/// Width factor of bold 13 px text in the widest of the page's fonts (DejaVu Sans, the fallback).
const BOLD_FACTOR: f64 = 1.25;

/// Escapes text for HTML and SVG; control characters are removed.
pub(crate) fn escape_markup(text: &str) -> String {
    let text = crate::style::strip_control_characters(text);
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Formats a coordinate with one decimal.
fn format_coordinate(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

fn open_svg(out: &mut String, size: DrawingSize, height: f64, title: &str, plot: Option<PlotArea>) {
    let data = plot.map_or(String::new(), |plot| {
        format!(
            " data-plot=\"{} {} {} {}\"",
            format_coordinate(plot.left),
            format_coordinate(plot.top),
            format_coordinate(plot.width),
            format_coordinate(plot.height)
        )
    });
    let title = escape_markup(title);
    write!(
        out,
        "<svg class=\"{}\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{title}\"{data}><title>{title}</title>",
        size.class,
        format_coordinate(size.width),
        format_coordinate(height),
    )
    .expect("writing to a String cannot fail");
}

/// Rectangle of the marks in the drawing's units.
#[derive(Clone, Copy)]
struct PlotArea {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
}
