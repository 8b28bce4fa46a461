//! What a search over knobs found: the changes, their proof, and what was tried in vain.

use linerate_metric::comparison::Side;
use linerate_metric::figure;
use linerate_metric::tuning::{Change, Pointed, Tuning};
use linerate_metric::units::{format_bytes, format_nanos, format_share};

use super::comparison::{signed, verdict_words};
use super::table::Grid;
use crate::style::{Paint, Style, clean, hang, wrap};
use crate::words;

/// What `tune` found.
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
        let mut lines = vec!["Tried in vain:".to_owned()];
        for vain in &found.vain {
            let said = format!("{}={}: {}", vain.knob, vain.value, vain.why);
            lines.push(hang("  ", "  ", &clean(&said), style.width));
        }
        blocks.push(lines.join("\n"));
    }
    blocks.join("\n\n")
}

/// What is said of changes without a proof of all of them together.
pub(crate) const UNPROVED: &str =
    "Each of these had its own pairs; the proof of all against the start is missing.";

/// What is said of settings that did not go back.
pub(crate) const KEPT: &str = "These settings were left in place.";

/// The goal before and after, and what both cost; none without a proof.
pub(crate) fn before_and_after(found: &Tuning) -> Option<Grid> {
    let proof = found.proof.as_deref()?;
    let name = clean(&found.goal);
    let value = |value: f64| figure::format(&found.goal, value);
    let side = |side: &Side| words::or_unknown(side.value, |v| value(v.median));
    let bytes = |value: Option<f64>| words::or_unknown(value, |v| format_bytes(v as u64));
    let cost = |value: Option<f64>| words::or_unknown(value, format_nanos);
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

/// The changes that matter, each with what is lost without it; none where nothing does.
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

/// What the mark behind a change means, where one has it.
pub(crate) fn undecided(found: &Tuning) -> Option<&'static str> {
    let is_there = found.changes.iter().any(|change| change.undecided);
    let mark = match found.proof {
        Some(_) => {
            "(?) It stays although its own pairs were too few or too wild to be sure, or it could not be measured without \
             it: all changes together have their proof."
        }
        None => {
            "(?) Its own pairs were too few or too wild to be sure, or it could not be measured without it: it may be of no \
             use."
        }
    };
    is_there.then_some(mark)
}

/// What is lost without a change; a question mark where its own pairs were too few or too wild to be sure.
fn without(change: &Change) -> String {
    let lost = words::or_unknown(change.without, |ratio| signed(ratio.median - 1.0));
    match change.undecided {
        true => format!("{lost} (?)"),
        false => lost,
    }
}

/// What the runs were for.
fn spent(found: &Tuning, style: &Style) -> String {
    wrap(&spent_words(found), style.width).join("\n")
}

/// `53 runs: 14 search, 12 which changes matter, 24 proof`.
pub(crate) fn spent_words(found: &Tuning) -> String {
    let spent = &found.spent;
    let parts = [
        (spent.search, "search"),
        (spent.check, "check of what can be had"),
        (spent.minimal_set, "which changes matter"),
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

/// What the first measurement pointed at.
fn pointed(found: &Tuning, style: &Style) -> Option<String> {
    if found.findings.is_empty() {
        return None;
    }
    let mut lines = vec!["The first measurement found:".to_owned()];
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

/// The knobs that a finding points at.
pub(crate) fn pointed_words(finding: &Pointed) -> String {
    match finding.knobs.is_empty() {
        true => "no knob that can be turned here".to_owned(),
        false => finding.knobs.join(", "),
    }
}

/// Why there is no proof: nothing helps, or it was not finished.
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
            true => format!("Best seen until then: the start, {}.", value(best.value)),
            false => format!(
                "Best seen until then, not proved: {} with {}{start}, median of {}.",
                clean(&setting.join(" ")),
                value(best.value),
                words::amount(best.runs as u64, "run")
            ),
        }
    });
    match &found.stopped_in {
        None => "Nothing that was tried makes it better by more than noise.".to_owned(),
        Some(stage) => {
            let stage = match stage.as_str() {
                "check" => "while it was looked what can be had",
                "search" => "during the search",
                "minimal-set" => "while it was found out which changes matter",
                _ => "during the proof",
            };
            let best = best.unwrap_or_else(|| "Nothing but the start was measured.".to_owned());
            format!("Interrupted {stage}: whether anything helps is not decided. {best}")
        }
    }
}

/// What a snippet is for.
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
        assert!(text.contains("may be of no use"), "{text}");
        assert!(!text.contains("have their proof"), "{text}");
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
        assert!(!text.contains("Nothing that was tried"), "{text}");
        assert!(
            text.contains("wait=spin with 9.00 Gb/s (start 1.00 Gb/s)"),
            "{text}"
        );
        assert!(text.contains("median of 2 runs"), "{text}");
        let text = without_proof(&interrupted("check", None));
        assert!(
            text.contains("not decided") && text.contains("Nothing but the start"),
            "{text}"
        );
        let text = without_proof(&interrupted("", None));
        assert!(
            text.contains("Nothing that was tried makes it better"),
            "{text}"
        );
    }
}
