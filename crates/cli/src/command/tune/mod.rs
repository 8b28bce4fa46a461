//! `linerate tune`: searches for better settings, verifies each change, and restores the old
//! settings at the end.

mod request;
mod result_set;
mod search;
mod trial_runner;
mod verification;

use jiff::Timestamp;
use linerate_record::comparison::{BetterWhen, Comparison, ComparisonVerdict};
use linerate_record::event::ErrorReport;
use linerate_record::exit_codes;
use linerate_record::figure;
use linerate_record::ids::TuneStage;
use linerate_record::record::Record;
use linerate_record::tuning::{
    BestTrial, FindingHint, RejectedSetting, RunCounts, TuningChange, TuningTrial,
};
use linerate_stats::units::format_bytes;
use linerate_tune::guard::SettingKey;
use linerate_tune::knob::KnobTarget;
use linerate_tune::search::SearchPoint;
use linerate_tune::snippet::KnobChange;

use self::trial_runner::TrialRunner;
use super::compare;
use super::measure::stop_on_signals;
use super::measuring_command::fresh_seed;
use crate::args::TuneArgs;
use crate::failure::{CommandFailure, SeriesEnd};
use crate::knob_applier::{self, KnobApplier};
use crate::knobs::AvailableKnobs;
use crate::output::CommandOutput;
use crate::{child_process, live, shell_words, unrestored_settings};

/// Default maximum of pairs per comparison.
const DEFAULT_MAX_PAIRS: usize = 30;

/// Runs the command and returns the exit code.
pub fn run(args: &TuneArgs) -> u8 {
    let mut output =
        CommandOutput::new(&args.output).with_report(args.many.html.as_deref(), "linerate tune");
    let result = match args.restore {
        true => restore_settings(&output),
        false => run_tune(args, &mut output),
    };
    result.unwrap_or_else(|failure| {
        output.report_failure(&failure);
        failure.code
    })
}

fn reject<T>(object: &str, situation: &str, next_step: &str) -> Result<T, CommandFailure> {
    Err(CommandFailure::usage(ErrorReport::new(
        situation, object, next_step,
    )))
}

/// Restores the settings that a killed search left changed.
fn restore_settings(output: &CommandOutput) -> Result<u8, CommandFailure> {
    let restored = unrestored_settings::restore_leftovers()?;
    for pid in &restored.running_pids {
        output.warn(&format!(
            "note: process {pid} is still running and restores its changes itself"
        ));
    }
    let mut moved_notes: Vec<String> = restored.relocated.iter().map(moved_note).collect();
    moved_notes.dedup();
    for note in &moved_notes {
        output.report_progress(note);
    }
    let removed_note = match restored.removed {
        0 => None,
        1 => {
            Some("1 setting no longer exists, because its network or interface is gone".to_owned())
        }
        n => Some(format!(
            "{n} settings no longer exist, because their networks or interfaces are gone"
        )),
    };
    if let Some(removed_note) = &removed_note {
        output.report_progress(&format!(
            "{removed_note} (for example a lab that was taken down): nothing to restore there"
        ));
    }
    let restored_note = match restored.restored {
        0 if !restored.errors.is_empty() || removed_note.is_some() => None,
        0 => Some("nothing to restore".to_owned()),
        1 => Some("1 setting restored".to_owned()),
        n => Some(format!("{n} settings restored")),
    };
    restored_note
        .iter()
        .for_each(|restored_note| output.report_progress(restored_note));
    let Some(first) = restored.errors.first() else {
        return Ok(exit_codes::OK);
    };
    let count = match restored.errors.len() {
        1 => "1 setting".to_owned(),
        n => format!("{n} settings"),
    };
    let journals = restored
        .failed_journals
        .iter()
        .map(|path| path.display().to_string());
    Err(CommandFailure::failed(ErrorReport::new(
        format!("{count} could not be restored: {first}"),
        "settings that a killed command left",
        format!(
            "run it as the same user in the network namespace of the settings (`linerate lab exec LAB/HOST -- linerate tune \
             --restore`); if that network no longer exists, remove {}",
            journals.collect::<Vec<_>>().join(", ")
        ),
    )))
}

/// Returns a note on an interface that was renamed or moved since its settings were changed.
fn moved_note((old_key, new_key): &(SettingKey, SettingKey)) -> String {
    let [old_name, new_name] = [old_key, new_key].map(|key| key.interface().unwrap_or(&key.name));
    match old_key.is_in_namespace(new_key.namespace_inode, new_key.namespace_cookie) {
        true => format!(
            "{old_name} of {} is named {new_name} now: its settings are restored there",
            old_key.host
        ),
        false => format!(
            "{old_name} of {} is {new_name} of {} now: its settings are restored there",
            old_key.host, new_key.host
        ),
    }
}

/// State and results of a search.
#[derive(Default)]
struct TuneState {
    stage: TuneStage,
    spent: RunCounts,
    finding_hints: Vec<FindingHint>,
    trials: Vec<TuningTrial>,
    best_so_far: Option<BestTrial>,
    rejected: Vec<RejectedSetting>,
    untried: Vec<String>,
    changes: Vec<TuningChange>,
    applied: Vec<KnobChange>,
    proof: Option<Comparison>,
    runs: Vec<Record>,
    winner: SearchPoint,
}

impl TuneState {
    fn is_proven(&self) -> bool {
        (self.proof.as_ref()).is_some_and(|proof| proof.verdict == ComparisonVerdict::Faster)
    }
}

fn run_tune(args: &TuneArgs, output: &mut CommandOutput) -> Result<u8, CommandFailure> {
    output.check_files()?;
    live::check_terminal(args.screen.is_enabled())?;
    compare::check_pair_args(&args.pairs_until)?;
    if args.runs == 0 {
        return reject("--runs 0", "no run to search with", "give 1 or more");
    }
    let command = request::command_args(args)?;
    child_process::check_report_option("tune", &command)?;
    request::check_command(&command)?;
    let available = AvailableKnobs::collect(&args.knobs, &command)?;
    let knobs = request::searched_knobs(args, &command, &available)?;
    let figure = figure::find(args.goal.figure()).expect("every goal is a figure");
    let seed = (args.many.seed).unwrap_or_else(|| u64::from(fresh_seed()));
    let stop = stop_on_signals()?;
    let names: Vec<_> = knobs.iter().map(|knob| knob.name.clone()).collect();
    let max_runs = verification::max_runs(args);
    output.report_progress(&format!(
        "linerate {}\ngoal: {}, {} better; seed {seed}\nruns: at most {} for the search, then at most {max_runs} for each \
         change that it finds, and {max_runs} to verify all changes together\nknobs: {}",
        shell_words::join_args(&command),
        figure.name,
        match figure.better_when() {
            BetterWhen::Higher => "higher is",
            BetterWhen::Lower => "lower is",
        },
        args.runs,
        names.join(", ")
    ));
    compare::warn_if_too_few(verification::pair_amount(args), output);
    unrestored_settings::warn(output);
    let applier = KnobApplier::new(knobs, &available, &command, &stop)?;
    let limit = args.under.map(|under| under.memory_bytes);
    let mut bench = TrialRunner::new(applier, command, figure, limit, &stop);
    let started = Timestamp::now();
    let mut state = TuneState::default();
    let title = format!(
        "tune {} for {}",
        shell_words::join_args(&bench.command),
        figure.name
    );
    let end = live::run_series(args.screen.is_enabled(), &title, &stop, output, |output| {
        bench.screen = output.event_sender().cloned();
        let end = run_stages(args, seed, &mut bench, &mut state, output);
        bench.screen = None;
        end
    })?;
    let complete = end.is_ok();
    let mut notes = Vec::new();
    // Settings of the remote host are restored when its connection closes.
    let is_local = |change: &KnobChange| {
        matches!(
            change.target,
            KnobTarget::HostSetting { .. } | KnobTarget::Command { .. }
        )
    };
    let is_remote = |change: &KnobChange| matches!(change.target, KnobTarget::RemoteSysctl(_));
    let mut unrestored = Vec::new();
    let is_proven = complete && state.is_proven();
    let keeps_changes = args.keep && is_proven && state.applied.iter().any(is_local);
    if args.keep && is_proven && state.applied.iter().any(is_remote) {
        notes.push("--keep does not apply to the remote host: make its changes there".to_owned());
    }
    if args.keep && !keeps_changes {
        notes.push(
            match is_proven {
                true => "--keep kept nothing here: the verified changes are options of the command or settings of the \
                         remote host",
                false => "--keep kept nothing: no change was verified",
            }
            .to_owned(),
        );
    }
    // The last measurement of the proof may have been the start.
    let not_applied =
        (keeps_changes.then(|| bench.applier.apply(&state.winner))).and_then(reason_not_applied);
    let keeps_changes = keeps_changes && not_applied.is_none();
    notes.extend(not_applied.map(|why| format!("--keep kept nothing: {why}")));
    let failures = if keeps_changes {
        let (restore_commands, failures) = bench.applier.keep_settings(&state.winner);
        let each = restore_commands.into_iter();
        notes.extend(each.map(|line| format!("to restore it: {line}")));
        failures
    } else {
        let failures = bench.applier.restore();
        if !complete && failures.is_empty() {
            output.report_progress("all settings are restored");
        }
        failures
    };
    unrestored.extend(
        failures
            .into_iter()
            .map(|why| format!("could not be restored: {why}")),
    );
    let failure = match end {
        Err(SeriesEnd::Failed(failure)) => Some(failure),
        _ => None,
    };
    if state.trials.iter().all(|trial| trial.value.is_none()) {
        knob_applier::report_unrestored(&unrestored, output);
        return Err(failure.unwrap_or_else(|| match stop.is_set() {
            true => CommandFailure::interrupted(),
            false => CommandFailure::failed(ErrorReport::new(
                (state.trials.first())
                    .and_then(|trial| trial.rejected.clone())
                    .unwrap_or_else(|| "no run has the figure".to_owned()),
                "the baseline",
                "run the measuring command by itself to see its output",
            )),
        }));
    }
    notes.extend(unrestored);
    notes.extend(limit.and_then(|limit| none_fits_note(&state.trials, limit)));
    let set = result_set::set_of(
        &bench,
        state,
        seed,
        started,
        (!complete, keeps_changes),
        notes,
    );
    output.write_set(&set, &[])?;
    if let Some(failure) = failure {
        output.report_late_failure(&failure);
        return Ok(failure.code);
    }
    Ok(match complete {
        true => exit_codes::OK,
        false => exit_codes::INTERRUPTED,
    })
}

/// Returns why verified settings could not be applied again, if so.
fn reason_not_applied(applied: Result<Result<(), String>, SeriesEnd>) -> Option<String> {
    match applied {
        Ok(applied) => applied.err(),
        Err(SeriesEnd::Failed(failure)) => Some(failure.problem.to_string()),
        Err(SeriesEnd::Interrupted) => {
            Some("interrupted while the changes were applied again".to_owned())
        }
    }
}

/// Returns a note if no measured setting is within the memory limit, with the smallest memory of
/// one.
fn none_fits_note(trials: &[TuningTrial], limit: u64) -> Option<String> {
    let measured = || trials.iter().filter(|trial| trial.value.is_some());
    let fits = |trial: &TuningTrial| trial.rejected.is_none();
    let min_bytes = measured()
        .filter_map(|trial| trial.memory_bytes)
        .min_by(f64::total_cmp)?;
    (!measured().any(fits) && min_bytes > limit as f64).then(|| {
        format!(
            "no measured setting fits --under memory: the smallest takes {} (buffers of both ends, and all memory of our \
             stack), the limit is {}. Raise the limit, or choose a smaller start",
            format_bytes(min_bytes.ceil() as u64),
            format_bytes(limit)
        )
    })
}

/// Runs all stages, from the first measurement to the proof.
fn run_stages(
    args: &TuneArgs,
    seed: u64,
    bench: &mut TrialRunner<'_>,
    state: &mut TuneState,
    output: &CommandOutput,
) -> Result<(), SeriesEnd> {
    let start: SearchPoint = vec![0; bench.applier.knobs.len()];
    bench.purpose = "first measurement";
    let first = search::measure_start(bench, &start, state, output)?;
    search::check_values(bench, state, output)?;
    let Some(winner) = search::run_search(args, seed, bench, state, first, output)? else {
        return Ok(());
    };
    verification::verify_changes(args, seed, bench, state, winner, output)
}

#[cfg(test)]
mod tests {
    use linerate_tune::guard::SettingKind;

    use super::*;

    #[test]
    fn a_moved_interface_is_reported() {
        let of = |host: &str, namespace, kind, name: &str| SettingKey {
            host: host.to_owned(),
            namespace_inode: namespace,
            kind,
            ..SettingKey::for_command(name)
        };
        let old_key = of("this host", 7, SettingKind::Mtu, "t0");
        assert_eq!(
            moved_note(&(old_key.clone(), old_key.with_interface("t1"))),
            "t0 of this host is named t1 now: its settings are restored there"
        );
        let rule = of("this host", 7, SettingKind::Flow, "eth0 udp4:7>0");
        let new_key = of("network 9", 9, SettingKind::Flow, "eth0 udp4:7>0");
        assert_eq!(
            moved_note(&(rule, new_key)),
            "eth0 of this host is eth0 of network 9 now: its settings are restored there"
        );
    }

    fn trial(memory_bytes: f64, is_rejected: bool) -> TuningTrial {
        TuningTrial {
            setting: Default::default(),
            value: Some(1.0),
            memory_bytes: Some(memory_bytes),
            record: None,
            rejected: is_rejected.then(|| "too much".to_owned()),
        }
    }

    /// A knob between two values is not the verified setting, and must stay in the journal.
    #[test]
    fn changes_that_cannot_be_applied_again_are_not_kept() {
        assert_eq!(reason_not_applied(Ok(Ok(()))), None);
        assert!(reason_not_applied(Ok(Err("no space".to_owned()))).is_some());
        assert!(reason_not_applied(Err(SeriesEnd::Interrupted)).is_some());
    }

    #[test]
    fn if_nothing_fits_the_smallest_is_reported() {
        let note = none_fits_note(&[trial(9e4, true), trial(65_536.0, true)], 24 << 10);
        let note = note.expect("a note");
        assert!(note.contains("64 KiB") && note.contains("24 KiB"), "{note}");
        let note_or_none = none_fits_note(&[trial(9e4, true), trial(2e4, false)], 24 << 10);
        assert_eq!(note_or_none, None);
        assert_eq!(none_fits_note(&[], 24 << 10), None);
    }
}
