//! Report of `linerate doctor` as text.

use linerate_record::facts::{DoctorReport, Support};

use crate::style::{PaintRole, TextStyle, strip_control_characters, wrap, wrap_with_prefix};

/// Returns the mark of a support level: glyph, ASCII word, colour.
fn support_mark(support: Support) -> (&'static str, &'static str, PaintRole) {
    match support {
        Support::Ok => ("✓", "ok", PaintRole::Good),
        Support::Limited => ("!", "limited", PaintRole::Warn),
        Support::Missing => ("✗", "missing", PaintRole::Bad),
        Support::Unknown => ("?", "unknown", PaintRole::Dim),
    }
}

/// Renders one line per check, followed by the remedy for what is missing.
#[must_use]
pub fn render_doctor_report(report: &DoctorReport, style: &TextStyle) -> String {
    let name_width = report
        .checks
        .iter()
        .map(|check| check.name.chars().count())
        .max()
        .unwrap_or(0);
    let mark_width = if style.unicode { 1 } else { "missing".len() };
    let mut lines = Vec::new();
    for check in &report.checks {
        let (glyph, label, paint) = support_mark(check.support);
        let mark = format!("{:<mark_width$}", style.glyph(glyph, label));
        let name = format!("{:<name_width$}", strip_control_characters(&check.name));
        let prefix = format!("{mark}  {name}  ");
        let painted = format!("{}  {name}  ", style.paint(paint, &mark));
        lines.push(wrap_with_prefix(
            &prefix,
            &painted,
            &strip_control_characters(&check.detail),
            style.width,
        ));
        if let Some(enable) = &check.enable {
            let indent = " ".repeat(mark_width + 2);
            for (number, line) in enable.lines().enumerate() {
                let label = if number == 0 { "fix: " } else { "" };
                // An indented line is a command: it is not wrapped, so that it can be pasted.
                let wrapped = if line.starts_with(' ') {
                    vec![strip_control_characters(line.trim_end()).into_owned()]
                } else {
                    wrap(
                        &strip_control_characters(&format!("{label}{line}")),
                        style.width - indent.len() - 2,
                    )
                };
                for part in wrapped {
                    lines.push(format!(
                        "{indent}  {}",
                        style.paint(PaintRole::Heading, &part)
                    ));
                }
            }
        }
    }
    let counts: Vec<_> = [
        Support::Ok,
        Support::Limited,
        Support::Missing,
        Support::Unknown,
    ]
    .into_iter()
    .filter_map(|support| {
        let (glyph, label, paint) = support_mark(support);
        let count = report
            .checks
            .iter()
            .filter(|check| check.support == support)
            .count();
        let sign = if style.unicode {
            format!("{} ", style.paint(paint, glyph))
        } else {
            String::new()
        };
        (count > 0).then(|| format!("{sign}{count} {label}"))
    })
    .collect();
    lines.push(String::new());
    lines.push(counts.join(", "));
    lines.join("\n")
}
