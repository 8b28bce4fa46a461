//! Results as text: aligned tables, sentences and caveats, within the width of the terminal.
//!
//! Each file lays out one kind of result; the builder of the same name at the crate root makes its
//! tables and sentences.

mod calls;
mod capacity;
mod doctor;
mod document_comparison;
mod experiment;
mod findings;
mod generate;
#[cfg(feature = "history")]
pub mod history;
mod hosts;
mod pacing;
mod paired_comparison;
mod rate_search;
mod set;
mod set_results;
pub mod stack;
mod stages;
mod summary;
mod sweep;
mod table;
mod tuning;
mod verdicts;

use linerate_record::event::ErrorReport;
use linerate_record::record::Caveat;

use crate::style::{PaintRole, TextStyle, strip_control_characters, wrap_with_prefix};

pub use crate::capacity::describe_capacity_trial;
pub use crate::figures::format_loss_count;
pub use doctor::render_doctor_report;
pub use document_comparison::render_comparison;
pub use findings::{describe_finding, render_explanation, render_findings};
pub(crate) use generate::generator_tables;
pub use hosts::render_hosts;
pub use paired_comparison::describe_pair;
pub use rate_search::describe_trial;
pub use set::render_set;
pub use summary::{render_finished_run, render_server_line, render_server_summary, render_summary};
pub use verdicts::render_verdicts;

/// Number of entries shown of a long list.
const MAX_LIST_ENTRIES: usize = 10;

/// Renders a request that a server rejected.
#[must_use]
pub fn render_rejection(problem: &ErrorReport, style: &TextStyle) -> String {
    let mut text = format!(
        "{}: {}",
        strip_control_characters(&problem.object),
        strip_control_characters(&problem.situation)
    );
    if !problem.next_step.is_empty() {
        // Only some rejections can be lifted with an option.
        let option_marks = ["--", "`ulimit "];
        let lead = match option_marks
            .iter()
            .any(|option| problem.next_step.contains(option))
        {
            true => "to allow it: ",
            false => "",
        };
        text.push_str(&format!(
            " ({lead}{})",
            strip_control_characters(&problem.next_step)
        ));
    }
    let prefix = "rejected ";
    wrap_with_prefix(
        prefix,
        &style.paint(PaintRole::Heading, prefix),
        &text,
        style.width,
    )
}

/// Renders an error: object, situation and next step.
#[must_use]
pub fn render_error(problem: &ErrorReport, style: &TextStyle) -> String {
    let error = format!(
        "{}: {}",
        strip_control_characters(&problem.object),
        strip_control_characters(&problem.situation)
    );
    let mut text = wrap_with_prefix(
        "error: ",
        &style.paint(PaintRole::Bad, "error: "),
        &error,
        style.width,
    );
    if !problem.next_step.is_empty() {
        text.push('\n');
        text.push_str(&wrap_with_prefix(
            "help:  ",
            &style.paint(PaintRole::Heading, "help:  "),
            &strip_control_characters(&problem.next_step),
            style.width,
        ));
    }
    text
}

/// Renders names with a sentence each, one per line: `udp-hops       What does each switch add?`.
#[must_use]
pub fn render_named_list(entries: &[(String, String)], style: &TextStyle) -> String {
    let names = entries.iter().map(|(name, _)| name.chars().count());
    let width = names.max().unwrap_or(0) + 2;
    let line = |(name, sentence): &(String, String)| {
        let prefix = format!("{name:width$}");
        wrap_with_prefix(
            &prefix,
            &prefix,
            &strip_control_characters(sentence),
            style.width,
        )
    };
    entries.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Renders a caveat: `note: why [id]`.
pub(crate) fn render_caveat(caveat: &Caveat, style: &TextStyle, width: usize) -> String {
    let text = format!(
        "{} [{}]",
        strip_control_characters(&caveat.reason),
        strip_control_characters(caveat.id.as_str())
    );
    render_note(&text, style, width)
}

fn render_note(text: &str, style: &TextStyle, width: usize) -> String {
    wrap_with_prefix(
        "note: ",
        &style.paint(PaintRole::Warn, "note: "),
        text,
        width,
    )
}

/// Renders the end of a shortened list: `… and 5 more`.
fn more_entries(remaining: usize, style: &TextStyle) -> String {
    format!("{} and {remaining} more", style.glyph("…", "..."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_refusals_with_an_option_name_it() {
        let style = TextStyle {
            width: 400,
            ..TextStyle::PLAIN
        };
        for (next, suffix) in [
            ("--allow 10.0.0.1", "(to allow it: --allow 10.0.0.1)"),
            (
                "start the server behind `ulimit -n 1234`",
                "(to allow it: start the server behind `ulimit -n 1234`)",
            ),
            ("try again later", "(try again later)"),
        ] {
            let text = render_rejection(&ErrorReport::new("why", "a test", next), &style);
            assert!(text.ends_with(suffix), "{text}");
        }
    }
}
