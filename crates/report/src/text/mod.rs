//! Results as text: aligned tables with caveats.

mod calls;
pub(crate) mod capacity;
mod comparison;
mod conclusions;
mod doctor;
mod document_comparison;
mod experiment;
mod findings;
pub(crate) mod generate;
#[cfg(feature = "history")]
pub mod history;
mod hosts;
mod pacing;
mod search;
mod set;
pub mod stack;
mod stages;
mod summary;
mod sweep;
mod table;
pub(crate) mod tuning;
mod verdicts;

pub use capacity::trial as capacity_trial;
pub use comparison::pair;
pub(crate) use comparison::{
    notes as comparison_notes, sides as comparison_sides, title as comparison_title, verdict_words,
};
pub(crate) use conclusions::conclusions_of;
pub use doctor::examination;
pub use document_comparison::side_by_side;
pub use findings::{explained, findings};
pub(crate) use generate::tables as generate_tables;
pub use hosts::hosts;
pub use search::trial;
pub(crate) use search::{headline as search_words, trials};
pub use set::set;
pub(crate) use stages::pass_words;
pub use summary::{served_summary, summary};
pub(crate) use sweep::{
    best_words, cells as sweep_cells, front_words, grid as sweep_grid, rank as sweep_rank,
};
pub(crate) use table::Grid;
pub use verdicts::verdicts;

pub use crate::figures::loss_count;

use linerate_metric::event::Problem;
use linerate_metric::record::Doubt;

use crate::style::{Paint, Style, clean, hang};

/// Number of entries shown of a long list.
const SHOWN: usize = 10;

/// Renders a request that a server refused.
#[must_use]
pub fn refusal(problem: &Problem, style: &Style) -> String {
    let mut said = format!("{}: {}", clean(&problem.object), clean(&problem.situation));
    if !problem.next_step.is_empty() {
        // Only some refusals can be lifted with an option.
        let allows = ["--", "`ulimit "];
        let lead = match allows.iter().any(|word| problem.next_step.contains(word)) {
            true => "to allow it: ",
            false => "",
        };
        said.push_str(&format!(" ({lead}{})", clean(&problem.next_step)));
    }
    let prefix = "refused ";
    hang(
        prefix,
        &style.paint(Paint::Head, prefix),
        &said,
        style.width,
    )
}

/// Renders an error: object, situation and next step.
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

/// Renders names with a sentence each, one per line: `udp-hops       What does each switch add?`.
#[must_use]
pub fn named(entries: &[(String, String)], style: &Style) -> String {
    let names = entries.iter().map(|(name, _)| name.chars().count());
    let width = names.max().unwrap_or(0) + 2;
    let line = |(name, said): &(String, String)| {
        let prefix = format!("{name:width$}");
        hang(&prefix, &prefix, &clean(said), style.width)
    };
    entries.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Renders a caveat: `note: why [id]`.
pub(crate) fn note(doubt: &Doubt, style: &Style, width: usize) -> String {
    let text = format!("{} [{}]", clean(&doubt.why), clean(&doubt.doubt));
    sentence_note(&text, style, width)
}

fn sentence_note(text: &str, style: &Style, width: usize) -> String {
    hang("note: ", &style.paint(Paint::Warn, "note: "), text, width)
}

/// Renders the end of a shortened list: `… and 5 more`.
fn and_more(left: usize, style: &Style) -> String {
    format!("{} and {left} more", style.glyph("…", "..."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_would_allow_it_is_said_to() {
        let style = Style {
            width: 400,
            ..Style::PLAIN
        };
        for (next, said) in [
            ("--allow 10.0.0.1", "(to allow it: --allow 10.0.0.1)"),
            (
                "start the server behind `ulimit -n 1234`",
                "(to allow it: start the server behind `ulimit -n 1234`)",
            ),
            ("try again later", "(try again later)"),
        ] {
            let text = refusal(&Problem::new("why", "a test", next), &style);
            assert!(text.ends_with(said), "{text}");
        }
    }
}
