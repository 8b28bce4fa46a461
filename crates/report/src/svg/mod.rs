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

pub(crate) use axis::{Axis, Unit};
pub(crate) use bars::{Bar, BarChart};
pub(crate) use chart::{Chart, Mark, Reference, Series, Shade};
pub(crate) use heat_map::Heat;
pub(crate) use loss_flow::Flow;
pub(crate) use path_diagram::{Column, Crossing, Place, Way};

use std::fmt::Write;

/// Number of series colours; `style.css` defines as many.
pub(crate) const COLORS: usize = 6;

/// Size of a drawing in its own units: CSS pixels at scale 1.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) class: &'static str,
    pub(crate) width: f64,
    pub(crate) height: f64,
}

/// Size for pages from 640 px on.
pub(crate) const WIDE: Size = Size {
    class: "wide",
    width: 860.0,
    height: 290.0,
};

/// Size for phones of 360 to 430 px.
pub(crate) const NARROW: Size = Size {
    class: "narrow",
    width: 350.0,
    height: 250.0,
};

/// Average width of a character in the page's font at 12 px.
const CHARACTER: f64 = 6.7;
/// Width factor of bold 13 px text in the widest of the page's fonts (DejaVu Sans, the fallback).
const BOLD: f64 = 1.25;

/// Escapes text for HTML and SVG; control characters are removed.
pub(crate) fn escape(text: &str) -> String {
    let text = crate::style::clean(text);
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
fn number(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

fn open(out: &mut String, size: Size, height: f64, title: &str, plot: Option<Plot>) {
    let data = plot.map_or(String::new(), |plot| {
        format!(
            " data-plot=\"{} {} {} {}\"",
            number(plot.left),
            number(plot.top),
            number(plot.width),
            number(plot.height)
        )
    });
    let title = escape(title);
    write!(
        out,
        "<svg class=\"{}\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{title}\"{data}><title>{title}</title>",
        size.class,
        number(size.width),
        number(height),
    )
    .expect("a string takes all that is written");
}

/// Rectangle of the marks in the drawing's units.
#[derive(Clone, Copy)]
struct Plot {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
}
