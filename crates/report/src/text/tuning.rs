//! Search over knobs as text: findings, proof, changes with their commands, rejected settings.

use linerate_record::tuning::Tuning;
use linerate_stats::units::format_share;

use crate::paired_comparison::describe_verdict;
use crate::style::{PaintRole, TextStyle, strip_control_characters, wrap, wrap_with_prefix};
use crate::tuning::{
    KEPT_NOTE, UNPROVED_NOTE, before_after_table, change_table, describe_knobs,
    describe_spent_runs, explain_missing_proof, snippet_use, undecided_note,
};

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

/// Renders the number of runs by purpose.
fn render_spent_runs(tuning: &Tuning, style: &TextStyle) -> String {
    wrap(&describe_spent_runs(tuning), style.width).join("\n")
}

/// Renders the findings of the first measurement.
fn render_findings(tuning: &Tuning, style: &TextStyle) -> Option<String> {
    if tuning.findings.is_empty() {
        return None;
    }
    let mut lines = vec!["Findings of the baseline:".to_owned()];
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

#[cfg(test)]
mod tests {
    use linerate_record::comparison::BetterWhen;
    use linerate_record::ids::TuneStage;
    use linerate_record::tuning::{BestTrial, TuningChange};

    use super::*;

    fn interrupted(stage: Option<TuneStage>, best: Option<BestTrial>) -> Tuning {
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
            stopped_in: stage.map(Into::into),
            best_trial: best,
            seed: 1,
            settings_kept: false,
        }
    }

    #[test]
    fn undecided_changes_are_not_called_proved() {
        let mut found = interrupted(Some(TuneStage::Proof), None);
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
        let text = explain_missing_proof(&interrupted(Some(TuneStage::Search), Some(best)));
        assert!(!text.contains("No tested change"), "{text}");
        assert!(
            text.contains("wait=spin with 9.00 Gb/s (baseline 1.00 Gb/s)"),
            "{text}"
        );
        assert!(text.contains("median of 2 runs"), "{text}");
        let text = explain_missing_proof(&interrupted(Some(TuneStage::Check), None));
        assert!(
            text.contains("not decided") && text.contains("Only the baseline"),
            "{text}"
        );
        let text = explain_missing_proof(&interrupted(None, None));
        assert!(
            text.contains("No tested change improved the goal"),
            "{text}"
        );
    }
}
