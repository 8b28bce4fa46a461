//! Result of a search over knobs: changes, their proof, rejected settings.

use linerate_metric::comparison::Side;
use linerate_metric::figure;
use linerate_metric::tuning::{Change, Pointed, Tuning};
use linerate_metric::units::{format_bytes, format_nanos, format_share};

use super::comparison::{signed, verdict_words};
use super::table::Grid;
use crate::phrases;
use crate::style::{Paint, Style, clean, hang, wrap};

/// Renders the result of `tune`.
pub(super) fn tuning(found: &Tuning, style: &Style) -> String {
    let name = clean(&found.goal);
    let title = format!("{name} of {}", clean(&found.command));
    let mut blocks = vec![style.paint(Paint::Bold, &title), spent(found, style)];
    blocks.extend(pointed(found, style));
    match &found.proof {
        Some(proof) => {
            blocks.extend(before_and_after(found).map(|grid| grid.text(style)));
            blocks.push(wrap(&verdict_words(proof), style.width).join("\n"));
        }
        None => blocks.push(wrap(&without_proof(found), style.width).join("\n")),
    }
    if let Some(grid) = changes(found) {
        let mut text = grid.text(style);
        text.push_str("\n\n");
        if let Some(mark) = undecided(found) {
            text.push_str(&wrap(mark, style.width).join("\n"));
            text.push_str("\n\n");
        }
        if found.proof.is_some() {
            let command = format!("linerate {}", clean(&found.tuned_command));
            text.push_str(&hang("run:  ", "run:  ", &command, style.width));
        } else {
            text.push_str(UNPROVED);
        }
        for command in found.changes.iter().flat_map(|change| &change.commands) {
            text.push('\n');
            text.push_str(&hang("set:  ", "set:  ", &clean(command), style.width));
        }
        if found.kept {
            text.push('\n');
            text.push_str(KEPT);
        }
        for snippet in &found.snippets {
            text.push_str(&format!("\n\n{}:", of_format(&snippet.format)));
            for line in snippet.text.lines() {
                text.push_str(&format!("\n  {}", clean(line)));
            }
        }
        blocks.push(text);
    }
    if !found.vain.is_empty() {
        let mut lines = vec!["Rejected settings:".to_owned()];
        for vain in &found.vain {
            let said = format!("{}={}: {}", vain.knob, vain.value, vain.why);
            lines.push(hang("  ", "  ", &clean(&said), style.width));
        }
        blocks.push(lines.join("\n"));
    }
    blocks.join("\n\n")
}

/// Text for changes without a final comparison of all of them together.
pub(crate) const UNPROVED: &str = "Each change was tested in pairs; the proof of all changes together against the start is missing.";

/// Text for settings that were not restored.
pub(crate) const KEPT: &str = "These settings were left in place.";

/// Returns the table of goal and cost before and after; `None` without a proof.
pub(crate) fn before_and_after(found: &Tuning) -> Option<Grid> {
    let proof = found.proof.as_deref()?;
    let name = clean(&found.goal);
    let value = |value: f64| figure::format(&found.goal, value);
    let side = |side: &Side| phrases::or_unknown(side.value, |v| value(v.median));
    let bytes = |value: Option<f64>| phrases::or_unknown(value, |v| format_bytes(v as u64));
    let cost = |value: Option<f64>| phrases::or_unknown(value, format_nanos);
    let row = |what: &str, before: String, after: String| vec![what.to_owned(), before, after];
    let rows = vec![
        row(&name, side(&proof.a), side(&proof.b)),
        row(
            "buffers",
            bytes(found.memory_bytes[0]),
            bytes(found.memory_bytes[1]),
        ),
        row("cpu", cost(found.cpu_ns[0]), cost(found.cpu_ns[1])),
    ];
    Grid::new(&["", "start (A)", "tuned (B)"], rows, 1)
}

/// Returns the table of changes with the loss without each; `None` without changes.
pub(crate) fn changes(found: &Tuning) -> Option<Grid> {
    let rows = found.changes.iter().map(|change| {
        vec![
            clean(&change.knob).into_owned(),
            clean(&change.from).into_owned(),
            clean(&change.to).into_owned(),
            without(change),
        ]
    });
    let heading = format!("{} without it", clean(&found.goal));
    Grid::new(&["change", "from", "to", &heading], rows.collect(), 3)
}

/// Explains the question mark after a change; `None` if no change has one.
pub(crate) fn undecided(found: &Tuning) -> Option<&'static str> {
    let is_there = found.changes.iter().any(|change| change.undecided);
    let mark = match found.proof {
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
fn without(change: &Change) -> String {
    let lost = phrases::or_unknown(change.without, |ratio| signed(ratio.median - 1.0));
    match change.undecided {
        true => format!("{lost} (?)"),
        false => lost,
    }
}

/// Renders the number of runs by purpose.
fn spent(found: &Tuning, style: &Style) -> String {
    wrap(&spent_words(found), style.width).join("\n")
}

/// Describes the number of runs by purpose: `53 runs: 14 search, 12 minimal set, 24 proof`.
pub(crate) fn spent_words(found: &Tuning) -> String {
    let spent = &found.spent;
    let parts = [
        (spent.search, "search"),
        (spent.check, "availability check"),
        (spent.minimal_set, "minimal set"),
        (spent.proof, "proof"),
    ];
    let parts: Vec<_> = (parts.iter())
        .filter(|(runs, _)| *runs > 0)
        .map(|(runs, what)| format!("{runs} {what}"))
        .collect();
    match parts.is_empty() {
        true => format!("{} runs", found.runs),
        false => format!("{} runs: {}", found.runs, parts.join(", ")),
    }
}

/// Renders the findings of the first measurement.
fn pointed(found: &Tuning, style: &Style) -> Option<String> {
    if found.findings.is_empty() {
        return None;
    }
    let mut lines = vec!["Findings of the first measurement:".to_owned()];
    for finding in &found.findings {
        let knobs = pointed_words(finding);
        let said = format!(
            "{} (costs {}): {knobs}",
            finding.cause,
            format_share(finding.cost)
        );
        lines.push(hang("  ", "  ", &clean(&said), style.width));
    }
    Some(lines.join("\n"))
}

/// Lists the knobs related to a finding.
pub(crate) fn pointed_words(finding: &Pointed) -> String {
    match finding.knobs.is_empty() {
        true => "no knob available here".to_owned(),
        false => finding.knobs.join(", "),
    }
}

/// Explains the missing proof: no improvement, or an interruption.
pub(crate) fn without_proof(found: &Tuning) -> String {
    let best = found.best_seen.as_ref().map(|best| {
        let setting: Vec<_> = (best.setting.iter())
            .map(|(knob, value)| format!("{knob}={value}"))
            .collect();
        let value = |value: f64| figure::format(&found.goal, value);
        let start = best
            .start
            .map_or_else(String::new, |start| format!(" (start {})", value(start)));
        match setting.is_empty() {
            true => format!("Best so far: the start, {}.", value(best.value)),
            false => format!(
                "Best so far, not proved: {} with {}{start}, median of {}.",
                clean(&setting.join(" ")),
                value(best.value),
                phrases::amount(best.runs as u64, "run")
            ),
        }
    });
    match &found.stopped_in {
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
pub(crate) fn of_format(format: &str) -> &str {
    match format {
        "sysctl" => "for a file in /etc/sysctl.d",
        "ethtool" => "as a script",
        "stack.toml" => "for a file of --config",
        "toml" => "as TOML",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_metric::comparison::Better;
    use linerate_metric::tuning::Best;

    fn interrupted(stage: &str, best: Option<Best>) -> Tuning {
        Tuning {
            goal: "goodput".to_owned(),
            better: Better::Higher,
            memory_limit_bytes: None,
            command: "throughput h".to_owned(),
            tuned_command: "throughput h".to_owned(),
            findings: Vec::new(),
            knobs: Vec::new(),
            changes: Vec::new(),
            snippets: Vec::new(),
            vain: Vec::new(),
            trials: Vec::new(),
            proof: None,
            memory_bytes: [None; 2],
            cpu_ns: [None; 2],
            runs: 5,
            spent: linerate_metric::tuning::Spent::default(),
            stopped_in: (!stage.is_empty()).then(|| stage.to_owned()),
            best_seen: best,
            seed: 1,
            kept: false,
        }
    }

    #[test]
    fn what_nobody_is_sure_of_is_not_called_proved() {
        let mut found = interrupted("proof", None);
        assert_eq!(undecided(&found), None);
        found.changes.push(Change {
            knob: "mtu".to_owned(),
            from: "1500".to_owned(),
            to: "9000".to_owned(),
            commands: Vec::new(),
            without: None,
            undecided: true,
        });
        let text = tuning(&found, &Style::PLAIN);
        assert!(text.contains("may have no effect"), "{text}");
        assert!(!text.contains("covers all changes"), "{text}");
        assert!(!text.contains("shown to matter"), "{text}");
    }

    #[test]
    fn an_interrupt_never_says_that_nothing_helps() {
        let best = Best {
            setting: [("wait".to_owned(), "spin".to_owned())].into(),
            value: 9.0e9,
            runs: 2,
            start: Some(1.0e9),
        };
        let text = without_proof(&interrupted("search", Some(best)));
        assert!(!text.contains("No tested change"), "{text}");
        assert!(
            text.contains("wait=spin with 9.00 Gb/s (start 1.00 Gb/s)"),
            "{text}"
        );
        assert!(text.contains("median of 2 runs"), "{text}");
        let text = without_proof(&interrupted("check", None));
        assert!(
            text.contains("not decided") && text.contains("Only the start"),
            "{text}"
        );
        let text = without_proof(&interrupted("", None));
        assert!(
            text.contains("No tested change improved the goal"),
            "{text}"
        );
    }
}
