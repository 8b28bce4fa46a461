//! Result of a search over knobs: changes, their proof, rejected settings.

use linerate_record::comparison::ComparisonSide;
use linerate_record::figure;
use linerate_record::tuning::{FindingHint, Tuning, TuningChange};
use linerate_stats::units::{format_bytes, format_nanos, format_share};

use super::comparison::describe_verdict;
use crate::model::{self, Grid, format_change};
use crate::style::{PaintRole, TextStyle, strip_control_characters, wrap, wrap_with_prefix};

/// Renders the result of `tune`.
pub(super) fn render_tuning(found: &Tuning, style: &TextStyle) -> String {
    let name = strip_control_characters(&found.goal);
    let title = format!("{name} of {}", strip_control_characters(&found.command));
    let mut blocks = vec![
        style.paint(PaintRole::Bold, &title),
        render_spent_runs(found, style),
    ];
    blocks.extend(render_findings(found, style));
    match &found.proof {
        Some(proof) => {
            blocks.extend(before_after_table(found).map(|grid| grid.render(style)));
            blocks.push(wrap(&describe_verdict(proof), style.width).join("\n"));
        }
        None => blocks.push(wrap(&explain_missing_proof(found), style.width).join("\n")),
    }
    if let Some(grid) = change_table(found) {
        let mut text = grid.render(style);
        text.push_str("\n\n");
        if let Some(mark) = undecided_note(found) {
            text.push_str(&wrap(mark, style.width).join("\n"));
            text.push_str("\n\n");
        }
        if found.proof.is_some() {
            let command = format!(
                "linerate {}",
                strip_control_characters(&found.tuned_command)
            );
            text.push_str(&wrap_with_prefix("run:  ", "run:  ", &command, style.width));
        } else {
            text.push_str(UNPROVED_NOTE);
        }
        for command in found.changes.iter().flat_map(|change| &change.commands) {
            text.push('\n');
            text.push_str(&wrap_with_prefix(
                "set:  ",
                "set:  ",
                &strip_control_characters(command),
                style.width,
            ));
        }
        if found.settings_kept {
            text.push('\n');
            text.push_str(KEPT_NOTE);
        }
        for snippet in &found.snippets {
            text.push_str(&format!("\n\n{}:", snippet_use(&snippet.format)));
            for line in snippet.text.lines() {
                text.push_str(&format!("\n  {}", strip_control_characters(line)));
            }
        }
        blocks.push(text);
    }
    if !found.rejected.is_empty() {
        let mut lines = vec!["Rejected settings:".to_owned()];
        for rejected in &found.rejected {
            let sentence = format!("{}={}: {}", rejected.knob, rejected.value, rejected.reason);
            lines.push(wrap_with_prefix(
                "  ",
                "  ",
                &strip_control_characters(&sentence),
                style.width,
            ));
        }
        blocks.push(lines.join("\n"));
    }
    blocks.join("\n\n")
}

/// Text for changes without a final comparison of all of them together.
pub(crate) const UNPROVED_NOTE: &str = "Each change was tested in pairs; the proof of all changes together against the start is missing.";

/// Text for settings that were not restored.
pub(crate) const KEPT_NOTE: &str = "These settings were left in place.";

/// Returns the table of goal and cost before and after; `None` without a proof.
pub(crate) fn before_after_table(tuning: &Tuning) -> Option<Grid> {
    let proof = tuning.proof.as_deref()?;
    let name = strip_control_characters(&tuning.goal);
    let value = |value: f64| figure::format(&tuning.goal, value);
    let side = |side: &ComparisonSide| model::or_unknown(side.value, |v| value(v.median));
    let bytes = |value: Option<f64>| model::or_unknown(value, |v| format_bytes(v as u64));
    let cost = |value: Option<f64>| model::or_unknown(value, format_nanos);
    let row = |label: &str, before: String, after: String| vec![label.to_owned(), before, after];
    let rows = vec![
        row(&name, side(&proof.a), side(&proof.b)),
        row(
            "buffers",
            bytes(tuning.memory_bytes[0]),
            bytes(tuning.memory_bytes[1]),
        ),
        row("cpu", cost(tuning.cpu_ns[0]), cost(tuning.cpu_ns[1])),
    ];
    Grid::new(&["", "start (A)", "tuned (B)"], rows, 1)
}

/// Returns the table of changes with the loss without each; `None` without changes.
pub(crate) fn change_table(tuning: &Tuning) -> Option<Grid> {
    let rows = tuning.changes.iter().map(|change| {
        vec![
            strip_control_characters(&change.knob).into_owned(),
            strip_control_characters(&change.from).into_owned(),
            strip_control_characters(&change.to).into_owned(),
            format_loss_without(change),
        ]
    });
    let heading = format!("{} without it", strip_control_characters(&tuning.goal));
    Grid::new(&["change", "from", "to", &heading], rows.collect(), 3)
}

/// Explains the question mark after a change; `None` if no change has one.
pub(crate) fn undecided_note(tuning: &Tuning) -> Option<&'static str> {
    let is_there = tuning.changes.iter().any(|change| change.undecided);
    let mark = match tuning.proof {
        Some(_) => {
            "(?) Kept although its pairs were too few or too noisy for a verdict, or it could not be measured without \
             it; the proof covers all changes together."
        }
        None => {
            "(?) Its pairs were too few or too noisy for a verdict, or it could not be measured without it; it may have \
             no effect."
        }
    };
    is_there.then_some(mark)
}

/// Formats the loss without a change; a question mark if its pairs were too few or too noisy.
fn format_loss_without(change: &TuningChange) -> String {
    let lost = model::or_unknown(change.without, |ratio| format_change(ratio.median - 1.0));
    match change.undecided {
        true => format!("{lost} (?)"),
        false => lost,
    }
}

/// Renders the number of runs by purpose.
fn render_spent_runs(tuning: &Tuning, style: &TextStyle) -> String {
    wrap(&describe_spent_runs(tuning), style.width).join("\n")
}

/// Describes the number of runs by purpose: `53 runs: 14 search, 12 minimal set, 24 proof`.
pub(crate) fn describe_spent_runs(tuning: &Tuning) -> String {
    let spent = &tuning.run_counts;
    let parts = [
        (spent.search, "search"),
        (spent.check, "availability check"),
        (spent.minimal_set, "minimal set"),
        (spent.proof, "proof"),
    ];
    let parts: Vec<_> = (parts.iter())
        .filter(|(runs, _)| *runs > 0)
        .map(|(runs, purpose)| format!("{runs} {purpose}"))
        .collect();
    match parts.is_empty() {
        true => format!("{} runs", tuning.runs),
        false => format!("{} runs: {}", tuning.runs, parts.join(", ")),
    }
}

/// Renders the findings of the first measurement.
fn render_findings(tuning: &Tuning, style: &TextStyle) -> Option<String> {
    if tuning.findings.is_empty() {
        return None;
    }
    let mut lines = vec!["Findings of the first measurement:".to_owned()];
    for finding in &tuning.findings {
        let knobs = describe_knobs(finding);
        let text = format!(
            "{} (costs {}): {knobs}",
            finding.cause,
            format_share(finding.cost)
        );
        lines.push(wrap_with_prefix(
            "  ",
            "  ",
            &strip_control_characters(&text),
            style.width,
        ));
    }
    Some(lines.join("\n"))
}

/// Lists the knobs related to a finding.
pub(crate) fn describe_knobs(finding: &FindingHint) -> String {
    match finding.knobs.is_empty() {
        true => "no knob available here".to_owned(),
        false => finding.knobs.join(", "),
    }
}

/// Explains the missing proof: no improvement, or an interruption.
pub(crate) fn explain_missing_proof(tuning: &Tuning) -> String {
    let best = tuning.best_trial.as_ref().map(|best| {
        let setting: Vec<_> = (best.setting.iter())
            .map(|(knob, value)| format!("{knob}={value}"))
            .collect();
        let value = |value: f64| figure::format(&tuning.goal, value);
        let start = best
            .start
            .map_or_else(String::new, |start| format!(" (start {})", value(start)));
        match setting.is_empty() {
            true => format!("Best so far: the start, {}.", value(best.value)),
            false => format!(
                "Best so far, not proved: {} with {}{start}, median of {}.",
                strip_control_characters(&setting.join(" ")),
                value(best.value),
                model::count_of(best.runs as u64, "run")
            ),
        }
    });
    match &tuning.stopped_in {
        None => "No tested change improved the goal by more than noise.".to_owned(),
        Some(stage) => {
            let stage = match stage.as_str() {
                "check" => "during the availability check",
                "search" => "during the search",
                "minimal-set" => "during the search for the minimal set",
                _ => "during the proof",
            };
            let best = best.unwrap_or_else(|| "Only the start was measured.".to_owned());
            format!("Interrupted {stage}: not decided whether any change helps. {best}")
        }
    }
}

/// Describes the use of a snippet.
pub(crate) fn snippet_use(format: &str) -> &str {
    match format {
        "sysctl" => "for a file in /etc/sysctl.d",
        "ethtool" => "as a script",
        "stack.toml" => "for a file of --config",
        "toml" => "as TOML",
        other_format => other_format,
    }
}

#[cfg(test)]
mod tests {
    use linerate_record::comparison::BetterWhen;
    use linerate_record::tuning::BestTrial;

    use super::*;

    fn interrupted(stage: &str, best: Option<BestTrial>) -> Tuning {
        Tuning {
            goal: "goodput".to_owned(),
            better: BetterWhen::Higher,
            memory_limit_bytes: None,
            command: "throughput h".to_owned(),
            tuned_command: "throughput h".to_owned(),
            findings: Vec::new(),
            knobs: Vec::new(),
            changes: Vec::new(),
            snippets: Vec::new(),
            rejected: Vec::new(),
            trials: Vec::new(),
            proof: None,
            memory_bytes: [None; 2],
            cpu_ns: [None; 2],
            runs: 5,
            run_counts: linerate_record::tuning::RunCounts::default(),
            stopped_in: (!stage.is_empty()).then(|| stage.to_owned()),
            best_trial: best,
            seed: 1,
            settings_kept: false,
        }
    }

    #[test]
    fn undecided_changes_are_not_called_proved() {
        let mut found = interrupted("proof", None);
        assert_eq!(undecided_note(&found), None);
        found.changes.push(TuningChange {
            knob: "mtu".to_owned(),
            from: "1500".to_owned(),
            to: "9000".to_owned(),
            commands: Vec::new(),
            without: None,
            undecided: true,
        });
        let text = render_tuning(&found, &TextStyle::PLAIN);
        assert!(text.contains("may have no effect"), "{text}");
        assert!(!text.contains("covers all changes"), "{text}");
        assert!(!text.contains("shown to matter"), "{text}");
    }

    #[test]
    fn an_interrupt_never_says_that_nothing_helps() {
        let best = BestTrial {
            setting: [("wait".to_owned(), "spin".to_owned())].into(),
            value: 9.0e9,
            runs: 2,
            start: Some(1.0e9),
        };
        let text = explain_missing_proof(&interrupted("search", Some(best)));
        assert!(!text.contains("No tested change"), "{text}");
        assert!(
            text.contains("wait=spin with 9.00 Gb/s (start 1.00 Gb/s)"),
            "{text}"
        );
        assert!(text.contains("median of 2 runs"), "{text}");
        let text = explain_missing_proof(&interrupted("check", None));
        assert!(
            text.contains("not decided") && text.contains("Only the start"),
            "{text}"
        );
        let text = explain_missing_proof(&interrupted("", None));
        assert!(
            text.contains("No tested change improved the goal"),
            "{text}"
        );
    }
}
