//! Result of a search as a set of runs.

use jiff::Timestamp;
use linerate_record::experiment::KnobAxis;
use linerate_record::figure;
use linerate_record::record::{Record, new_id};
use linerate_record::run_set::{RunSet, SET_SCHEMA, SetResult};
use linerate_record::sweep::buffer_bytes;
use linerate_record::tuning::{RejectedSetting, Tuning};
use linerate_stats::statistics::median;
use linerate_tune::snippet::render_snippets;

use super::TuneState;
use super::trial_runner::TrialRunner;
use crate::shell_words;

/// Returns the set; the pair of flags is whether it was interrupted, and whether settings were
/// kept.
pub fn set_of(
    bench: &TrialRunner<'_>,
    state: TuneState,
    seed: u64,
    started: Timestamp,
    (interrupted, settings_kept): (bool, bool),
    mut notes: Vec<String>,
) -> RunSet {
    let proven = state.is_proven();
    let median_of = |letter: &str, read: &dyn Fn(&Record) -> Option<f64>| {
        let matching = (state.runs.iter()).filter(|run| run.label.as_deref() == Some(letter));
        median(&matching.filter_map(read).collect::<Vec<_>>())
    };
    let of_sides =
        |read: &dyn Fn(&Record) -> Option<f64>| [median_of("A", read), median_of("B", read)];
    // Only the trials include the memory of the user's knobs.
    let trial_memory = |setting: &linerate_record::experiment::KnobValues| {
        let same = (state.trials.iter()).filter(|trial_memory| trial_memory.setting == *setting);
        median(
            &same
                .filter_map(|trial_memory| trial_memory.memory_bytes)
                .collect::<Vec<_>>(),
        )
    };
    let measured = of_sides(&buffer_bytes);
    let start = vec![0; bench.applier.knobs.len()];
    let memory_bytes = [
        trial_memory(&bench.setting(&start)).or(measured[0]),
        match state.winner.is_empty() {
            true => measured[1],
            false => measured[1].map_or_else(
                || trial_memory(&bench.setting(&state.winner)),
                |bytes| Some(bytes + bench.applier.memory(&state.winner)),
            ),
        },
    ];
    let cpu_ns = of_sides(&|run| figure::CPU_FIGURE.value_in(run));
    let tuned = match proven {
        true => bench
            .applier
            .measuring_command(&bench.command, &state.winner),
        false => Ok(bench.command.clone()),
    };
    let tuned = tuned.unwrap_or_default();
    if !state.untried.is_empty() {
        notes.push(format!("not tried: {}", state.untried.join("; ")));
    }
    let mut rejected = state.rejected;
    let shows_changes = proven || (state.proof.is_none() && interrupted);
    if !shows_changes {
        rejected.extend(state.changes.iter().map(|change| RejectedSetting {
            knob: change.knob.clone(),
            value: change.to.clone(),
            reason: "could not be verified against the baseline".to_owned(),
        }));
    }
    let tuning = Tuning {
        goal: bench.figure.name.to_owned(),
        better: bench.figure.better_when(),
        memory_limit_bytes: bench.memory_limit,
        command: shell_words::join_args(&bench.command),
        tuned_command: shell_words::join_args(&tuned),
        findings: state.finding_hints,
        knobs: (bench.applier.knobs.iter())
            .map(|knob| KnobAxis {
                name: knob.name.clone(),
                values: knob.values.clone(),
            })
            .collect(),
        changes: if shows_changes {
            state.changes
        } else {
            Vec::new()
        },
        snippets: match proven {
            true => render_snippets(&state.applied),
            false => Vec::new(),
        },
        rejected,
        trials: state.trials,
        memory_bytes,
        cpu_ns,
        proof: state.proof.map(Box::new),
        runs: bench.runs,
        run_counts: state.spent,
        stopped_in: interrupted.then(|| state.stage.into()),
        best_trial: state.best_so_far,
        seed,
        settings_kept,
    };
    RunSet {
        schema: SET_SCHEMA.to_owned(),
        id: new_id(started),
        kind: "tune".to_owned(),
        started,
        interrupted,
        runs: state.runs,
        result: SetResult {
            tuning: Some(Box::new(tuning)),
            notes,
            ..SetResult::default()
        },
    }
}
