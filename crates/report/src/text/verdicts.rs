//! Results of thresholds (`--expect`) as text.

use linerate_record::expect::ExpectationResult;

use crate::style::{PaintRole, TextStyle, strip_control_characters};

/// Renders one line per threshold: whether it holds, and the measured value.
#[must_use]
pub fn render_verdicts(verdicts: &[ExpectationResult], style: &TextStyle) -> String {
    let width = verdicts
        .iter()
        .map(|verdict| verdict.expectation.chars().count())
        .max()
        .unwrap_or(0);
    let lines: Vec<_> = verdicts
        .iter()
        .map(|verdict| {
            let (glyph, label, paint) = if verdict.holds {
                (style.glyph("✓ ", ""), "met:    ", PaintRole::Good)
            } else {
                (style.glyph("✗ ", ""), "not met:", PaintRole::Bad)
            };
            // The name of the figure is in the expectation.
            let measured = match verdict.measured.split_once(" = ") {
                Some((_, value)) => format!("measured {value}"),
                None => verdict.measured.clone(),
            };
            format!(
                "{} {:<width$}  ({})",
                style.paint(paint, &format!("{glyph}{label}")),
                strip_control_characters(&verdict.expectation),
                strip_control_characters(&measured)
            )
        })
        .collect();
    lines.join("\n")
}
