//! Results of thresholds (`--expect`).

use linerate_metric::expect::Verdict;

use crate::style::{Paint, Style, clean};

/// Renders one line per threshold: whether it holds, and the measured value.
#[must_use]
pub fn verdicts(verdicts: &[Verdict], style: &Style) -> String {
    let width = verdicts
        .iter()
        .map(|verdict| verdict.expectation.chars().count())
        .max()
        .unwrap_or(0);
    let lines: Vec<_> = verdicts
        .iter()
        .map(|verdict| {
            let (glyph, word, paint) = if verdict.holds {
                (style.glyph("✓ ", ""), "holds ", Paint::Good)
            } else {
                (style.glyph("✗ ", ""), "missed", Paint::Bad)
            };
            format!(
                "{}  {:<width$}  {}",
                style.paint(paint, &format!("{glyph}{word}")),
                clean(&verdict.expectation),
                clean(&verdict.measured)
            )
        })
        .collect();
    lines.join("\n")
}
