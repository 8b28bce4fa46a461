//! Comparison of two sides as text: table, descriptions of the sides, coloured verdict.

use linerate_record::comparison::{Comparison, ComparisonVerdict, RunPair};
use linerate_record::figure;

use super::table::render_table;
use crate::model::format_change;
use crate::paired_comparison::{
    describe_side, describe_verdict, format_difference, side_headings, side_name, side_rows, title,
    verdict_notes,
};
use crate::style::{PaintRole, TextStyle, strip_control_characters, wrap, wrap_with_prefix};

/// Describes a pair of runs: `pair 3: A 9.41 Gb/s, B 9.80 Gb/s: +4.1 %`.
#[must_use]
pub fn describe_pair(number: usize, name: &str, pair: &RunPair, width: usize) -> String {
    let prefix = format!("pair {number}: ");
    let change = match pair.a > 0.0 && pair.b > 0.0 {
        true => format_change(pair.b / pair.a - 1.0),
        false => format_difference(name, pair.b - pair.a),
    };
    let dropped = match &pair.dropped {
        Some(why) => format!(" (excluded: {})", strip_control_characters(why)),
        None => String::new(),
    };
    let text = format!(
        "A {}, B {}: {change}{dropped}",
        figure::format(name, pair.a),
        figure::format(name, pair.b)
    );
    wrap_with_prefix(&prefix, &prefix, &text, width)
}

/// Renders a comparison as a table with its verdict.
pub(super) fn render_comparison(found: &Comparison, style: &TextStyle) -> String {
    let mut text = style.paint(PaintRole::Bold, &title(found));
    text.push('\n');
    text.push_str(&render_table(
        &side_headings(found),
        side_rows(found).into(),
        1,
        style,
    ));
    for (letter, side) in [("A", &found.a), ("B", &found.b)] {
        let prefix = format!("{}: ", side_name(letter, side));
        text.push('\n');
        text.push_str(&wrap_with_prefix(
            &prefix,
            &prefix,
            &describe_side(side),
            style.width,
        ));
    }
    text.push_str("\n\n");
    let verdict = describe_verdict(found);
    let color = match found.verdict {
        _ if found.regression => PaintRole::Bad,
        ComparisonVerdict::Faster => PaintRole::Good,
        ComparisonVerdict::Undecided => PaintRole::Warn,
        _ => PaintRole::Bold,
    };
    let painted_lines: Vec<_> = wrap(&verdict, style.width)
        .iter()
        .map(|line| style.paint(color, line))
        .collect();
    text.push_str(&painted_lines.join("\n"));
    for line in verdict_notes(found)
        .iter()
        .flat_map(|note| wrap(note, style.width))
    {
        text.push('\n');
        text.push_str(&line);
    }
    text
}
