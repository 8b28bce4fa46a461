//! CSV fields (RFC 4180), and the comparison of runs as CSV.

use std::fmt::Write as _;

use linerate_record::expect::FigureUnit;

use crate::comparison::DocumentComparison;

/// Renders a comparison of documents as CSV: one row per figure and document.
#[must_use]
pub fn render_comparison(sides: &DocumentComparison) -> String {
    let mut out = String::from("figure,id,name,median,low,high,runs\n");
    for figure in sides.figures() {
        for side in &sides.documents {
            if let Some(value) = side.figures.get(&figure.key()) {
                let _ = writeln!(
                    out,
                    "{},{},{},{},{},{},{}",
                    quote_field(&format!(
                        "{}{}",
                        figure.point,
                        column_name(&figure.figure, figure.unit)
                    )),
                    quote_field(&side.id),
                    quote_field(&side.name),
                    value.median,
                    value.low,
                    value.high,
                    value.runs
                );
            }
        }
    }
    out
}

/// Returns the column name of a figure, with its unit: `p50_ns`, `goodput_bps`.
pub(crate) fn column_name(name: &str, unit: FigureUnit) -> String {
    let unit = match unit {
        FigureUnit::BitRate => "_bps",
        FigureUnit::Nanos => "_ns",
        FigureUnit::PerSecond => "_per_second",
        FigureUnit::Share => "_fraction",
        FigureUnit::Bytes => "_bytes",
        FigureUnit::Count => "",
    };
    format!("{}{unit}", name.replace('.', "_"))
}

/// Quotes a text as one CSV field. A text that a spreadsheet would evaluate as a formula gets a
/// leading quote.
pub(crate) fn quote_field(text: &str) -> String {
    let text = crate::style::strip_control_characters(text).into_owned();
    let text = match text.starts_with(['=', '+', '-', '@']) {
        true => format!("'{text}"),
        false => text,
    };
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}
