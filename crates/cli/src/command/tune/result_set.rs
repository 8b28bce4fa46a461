//! Result of a search as a set of runs.

use jiff::Timestamp;
use linerate_metric::experiment::Knob;
use linerate_metric::figure;
use linerate_metric::record::{Record, new_id};
use linerate_metric::run_set::{RunSet, SET_SCHEMA, SetResult};
use linerate_metric::statistics::median;
use linerate_metric::sweep::buffer_bytes;
use linerate_metric::tuning::{Tuning, Vain};
use linerate_tune::snippet::snippets;

use super::Found;
use super::trial_runner::Bench;
use crate::shell_words;

/// Returns the set; the pair of flags is whether it was interrupted, and whether settings were
/// kept.
pub fn set_of(
    bench: &Bench<'_>,
    found: Found,
    seed: u64,
    started: Timestamp,
    (interrupted, kept): (bool, bool),
    mut notes: Vec<String>,
) -> RunSet {
    let proven = found.is_proven();
    let of = |letter: &str, read: &dyn Fn(&Record) -> Option<f64>| {
        let own = (found.runs.iter()).filter(|run| run.label.as_deref() == Some(letter));
        median(&own.filter_map(read).collect::<Vec<_>>())
    };
    let both = |read: &dyn Fn(&Record) -> Option<f64>| [of("A", read), of("B", read)];
    // Only the trials include the memory of the user's knobs.
    let trial = |setting: &linerate_metric::experiment::Setting| {
        let same = (found.trials.iter()).filter(|trial| trial.setting == *setting);
        median(
            &same
                .filter_map(|trial| trial.memory_bytes)
                .collect::<Vec<_>>(),
        )
    };
    let measured = both(&buffer_bytes);
    let start = vec![0; bench.turner.knobs.len()];
    let memory_bytes = [
        trial(&bench.setting(&start)).or(measured[0]),
        match found.winner.is_empty() {
            true => measured[1],
            false => measured[1].map_or_else(
                || trial(&bench.setting(&found.winner)),
                |bytes| Some(bytes + bench.turner.memory(&found.winner)),
            ),
        },
    ];
    let cpu_ns = both(&|run| figure::CPU.of(run));
    let tuned = match proven {
        true => bench.turner.command(&bench.words, &found.winner),
        false => Ok(bench.words.clone()),
    };
    let tuned = tuned.unwrap_or_default();
    if !found.untried.is_empty() {
        notes.push(format!("not tried: {}", found.untried.join("; ")));
    }
    let mut vain = found.vain;
    let shown = proven || (found.proof.is_none() && interrupted);
    if !shown {
        vain.extend(found.changes.iter().map(|change| Vain {
            knob: change.knob.clone(),
            value: change.to.clone(),
            why: "could not be verified against the start".to_owned(),
        }));
    }
    let tuning = Tuning {
        goal: bench.figure.name.to_owned(),
        better: bench.figure.better(),
        memory_limit_bytes: bench.memory_limit,
        command: shell_words::join(&bench.words),
        tuned_command: shell_words::join(&tuned),
        findings: found.pointed,
        knobs: (bench.turner.knobs.iter())
            .map(|knob| Knob {
                name: knob.name.clone(),
                values: knob.values.clone(),
            })
            .collect(),
        changes: if shown { found.changes } else { Vec::new() },
        snippets: match proven {
            true => snippets(&found.turned),
            false => Vec::new(),
        },
        vain,
        trials: found.trials,
        memory_bytes,
        cpu_ns,
        proof: found.proof.map(Box::new),
        runs: bench.runs,
        spent: found.spent,
        stopped_in: interrupted.then(|| found.stage.name().to_owned()),
        best_seen: found.best_seen,
        seed,
        kept,
    };
    RunSet {
        schema: SET_SCHEMA.to_owned(),
        id: new_id(started),
        kind: "tune".to_owned(),
        started,
        interrupted,
        runs: found.runs,
        result: SetResult {
            tuning: Some(Box::new(tuning)),
            notes,
            ..SetResult::default()
        },
    }
}
