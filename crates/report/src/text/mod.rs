//! Results as text: aligned tables with the doubts beside the figures.

mod examination;
mod hosts;
mod set;
mod summary;
mod table;
mod verdicts;

pub use examination::examination;
pub use hosts::hosts;
pub use set::set;
pub use summary::summary;
pub use verdicts::verdicts;

use linerate_metric::event::Problem;
use linerate_metric::record::Doubt;

use crate::style::{Paint, Style, clean, hang};

/// Entries of a long list that are shown before it is cut.
const SHOWN: usize = 10;

/// A failure: what happened to what, and what to do.
#[must_use]
pub fn problem(problem: &Problem, style: &Style) -> String {
    let error = format!("{}: {}", clean(&problem.object), clean(&problem.situation));
    let mut text = hang(
        "error: ",
        &style.paint(Paint::Bad, "error: "),
        &error,
        style.width,
    );
    if !problem.next_step.is_empty() {
        text.push('\n');
        text.push_str(&hang(
            "help:  ",
            &style.paint(Paint::Head, "help:  "),
            &clean(&problem.next_step),
            style.width,
        ));
    }
    text
}

/// `note: why [id]`.
pub(crate) fn note(doubt: &Doubt, style: &Style, width: usize) -> String {
    let text = format!("{} [{}]", clean(&doubt.why), clean(&doubt.doubt));
    sentence_note(&text, style, width)
}

fn sentence_note(text: &str, style: &Style, width: usize) -> String {
    hang("note: ", &style.paint(Paint::Warn, "note: "), text, width)
}

/// `… and 5 more`.
fn and_more(left: usize, style: &Style) -> String {
    format!("{} and {left} more", style.glyph("…", "..."))
}
