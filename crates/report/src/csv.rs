//! Fields of CSV (RFC 4180), and runs side by side as such.

use std::fmt::Write as _;

use linerate_metric::expect::Unit;

use crate::side::SideBySide;

/// Documents side by side as CSV: a row for each figure of each.
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

/// The column of a figure: its name with its unit, `p50_ns`, `goodput_bps`.
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

/// A text as a field. What a spreadsheet would take for a formula gets a quote in front.
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
