//! CSV fields (RFC 4180), and the comparison of runs as CSV.

use std::fmt::Write as _;

use linerate_metric::expect::Unit;

use crate::comparison::SideBySide;

/// Renders a comparison of documents as CSV: one row per figure and document.
#[must_use]
pub fn side_by_side(sides: &SideBySide) -> String {
    let mut out = String::from("figure,id,name,median,low,high,runs\n");
    for figure in sides.figures() {
        for side in &sides.sides {
            if let Some(value) = side.figures.get(&figure.name()) {
                let _ = writeln!(
                    out,
                    "{},{},{},{},{},{},{}",
                    field(&format!(
                        "{}{}",
                        figure.at,
                        column(&figure.figure, figure.unit)
                    )),
                    field(&side.id),
                    field(&side.name),
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
pub(crate) fn column(name: &str, unit: Unit) -> String {
    let unit = match unit {
        Unit::BitRate => "_bps",
        Unit::Nanos => "_ns",
        Unit::PerSecond => "_per_second",
        Unit::Share => "_fraction",
        Unit::Bytes => "_bytes",
        Unit::Count => "",
    };
    format!("{}{unit}", name.replace('.', "_"))
}

/// Quotes a text as one CSV field. A text that a spreadsheet would evaluate as a formula gets a
/// leading quote.
pub(crate) fn field(text: &str) -> String {
    let text = crate::style::clean(text).into_owned();
    let text = match text.starts_with(['=', '+', '-', '@']) {
        true => format!("'{text}"),
        false => text,
    };
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}
