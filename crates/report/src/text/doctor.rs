//! Report of `linerate doctor`.

use linerate_metric::facts::{Ability, Examination};

use crate::style::{Paint, Style, clean, hang, wrap};

/// Returns the mark of a support level: glyph, ASCII word, colour.
fn mark(ability: Ability) -> (&'static str, &'static str, Paint) {
    match ability {
        Ability::Ok => ("✓", "ok", Paint::Good),
        Ability::Limited => ("!", "limited", Paint::Warn),
        Ability::Missing => ("✗", "missing", Paint::Bad),
        Ability::Unknown => ("?", "unknown", Paint::Dim),
    }
}

/// Renders one line per check, followed by the remedy for what is missing.
#[must_use]
pub fn examination(examination: &Examination, style: &Style) -> String {
    let name_width = examination
        .checks
        .iter()
        .map(|check| check.name.chars().count())
        .max()
        .unwrap_or(0);
    let mark_width = if style.unicode { 1 } else { "missing".len() };
    let mut lines = Vec::new();
    for check in &examination.checks {
        let (glyph, word, paint) = mark(check.ability);
        let mark = format!("{:<mark_width$}", style.glyph(glyph, word));
        let name = format!("{:<name_width$}", clean(&check.name));
        let prefix = format!("{mark}  {name}  ");
        let painted = format!("{}  {name}  ", style.paint(paint, &mark));
        lines.push(hang(&prefix, &painted, &clean(&check.found), style.width));
        if let Some(enable) = &check.enable {
            let indent = " ".repeat(mark_width + 2);
            for line in enable.lines() {
                // An indented line is a command: it is not wrapped, so that it can be pasted.
                let pieces = if line.starts_with(' ') {
                    vec![clean(line.trim_end()).into_owned()]
                } else {
                    wrap(&clean(line), style.width - indent.len() - 2)
                };
                for piece in pieces {
                    lines.push(format!("{indent}  {}", style.paint(Paint::Head, &piece)));
                }
            }
        }
    }
    let counts: Vec<_> = [
        Ability::Ok,
        Ability::Limited,
        Ability::Missing,
        Ability::Unknown,
    ]
    .into_iter()
    .filter_map(|ability| {
        let (glyph, word, paint) = mark(ability);
        let count = examination
            .checks
            .iter()
            .filter(|check| check.ability == ability)
            .count();
        let sign = if style.unicode {
            format!("{} ", style.paint(paint, glyph))
        } else {
            String::new()
        };
        (count > 0).then(|| format!("{sign}{count} {word}"))
    })
    .collect();
    lines.push(String::new());
    lines.push(counts.join(", "));
    lines.join("\n")
}
