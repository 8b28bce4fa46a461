//! Search over knobs: tables of changes and of their proof, notes on what is not proved.

use linerate_record::comparison::ComparisonSide;
use linerate_record::figure;
use linerate_record::ids::TuneStage;
use linerate_record::tuning::{FindingHint, Tuning, TuningChange};
use linerate_stats::units::{format_bytes, format_nanos};

use crate::model::{self, Grid, format_change};
use crate::style::strip_control_characters;

/// Text for changes without a final comparison of all of them together.
pub(crate) const UNPROVED_NOTE: &str = "Each change was tested in pairs; the proof of all changes together against the baseline is missing.";

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
    Grid::new(&["", "baseline (A)", "tuned (B)"], rows, 1)
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
            .map_or_else(String::new, |start| format!(" (baseline {})", value(start)));
        match setting.is_empty() {
            true => format!("Best so far: the baseline, {}.", value(best.value)),
            false => format!(
                "Best so far, not proved: {} with {}{start}, median of {}.",
                strip_control_characters(&setting.join(" ")),
                value(best.value),
                model::count_of(best.runs as u64, "run")
            ),
        }
    });
    match &tuning.stopped_in {
        None if tuning.memory_limit_bytes.is_some() => {
            "No tested change within the limit of --under improved the goal by more than noise."
                .to_owned()
        }
        None => "No tested change improved the goal by more than noise.".to_owned(),
        Some(stage) => {
            let stage = match stage.known() {
                Some(TuneStage::Check) => "during the availability check",
                Some(TuneStage::Search) => "during the search",
                Some(TuneStage::MinimalSet) => "during the search for the minimal set",
                Some(TuneStage::Proof) | None => "during the proof",
            };
            let best = best.unwrap_or_else(|| "Only the baseline was measured.".to_owned());
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
