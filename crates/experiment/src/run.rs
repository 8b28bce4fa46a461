//! Run of an experiment: rounds over its points, with labs that stay up in between.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use linerate_record::event::Retryable;
use linerate_record::exit_codes;
use linerate_record::experiment::{ExperimentPoint, KnobValues};
use linerate_record::run_set::RunSet;

use crate::ExperimentError;
use crate::file::{Experiment, ExperimentKnob};
use crate::point::{describe_setting, selected_settings};
use crate::point_state::{PointMeasurement, PointState, SkipReason};
use crate::results::build_set;
use crate::retry::{FailureHistory, NextAction, RETRY_PAUSE};
use crate::run_options::RunOptions;
use crate::runner::{PointExclusion, PointRunner};

/// Progress of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// A point is about to be measured.
    Point {
        /// Number of the measurement, from 1.
        number: usize,
        /// Number of measurements in all rounds.
        total: usize,
        /// Setting as text.
        setting_text: String,
    },
    /// The point failed with a transient error and is tried again.
    Retry {
        /// Setting as text.
        setting_text: String,
        reason: String,
    },
    /// The point was measured.
    Measured {
        /// Setting as text.
        setting_text: String,
        /// Figures with their values as text, in the order of the file.
        figures: Vec<(String, String)>,
        /// Result to save.
        measurement: Box<PointMeasurement>,
    },
    /// The point could not be measured.
    Skipped {
        /// Setting as text.
        setting_text: String,
        reason: String,
    },
    /// Other points depend on the object that failed, and are skipped too.
    SkippedGroup {
        /// Number of these points.
        points: usize,
        /// Object that they have in common.
        object: String,
        next_step: String,
    },
    /// A knob with a command must be set to this value; an error skips the point.
    SetKnob { knob: ExperimentKnob, value: String },
    /// A server must be started on the host of `--on` before anything is measured.
    StartServer {
        /// Command line of the server.
        command: String,
    },
    /// A manual step is required; the run continues when the callback returns.
    ManualStep {
        /// Step as text: `set hops=2`.
        step: String,
    },
}

/// Poll interval of the stop flag between two tries.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Runs an experiment and returns the records of all points with the results.
///
/// Of the values that `progress` returns only the error of [`Progress::SetKnob`] is used.
///
/// # Errors
/// [`ExperimentError`]; a point that cannot be measured is an error only if no other one can be
/// either.
pub fn run(
    experiment: &Experiment,
    options: &RunOptions<'_>,
    progress: &mut dyn FnMut(&Progress) -> Result<(), String>,
) -> Result<RunSet, ExperimentError> {
    let settings = selected_settings(experiment, options.quick, &options.at_points)?;
    let rootless = !linerate_lab::privileged() || !is_root();
    let mut runner = PointRunner::new(experiment, options, rootless)?;
    let rounds = options.repeats.unwrap_or(match options.quick {
        true => experiment.quick_repeats,
        false => experiment.repeats,
    });
    let mut states: Vec<PointState> = settings.into_iter().map(PointState::new).collect();
    for point in &mut states {
        point.skip_reason = runner
            .exclusion(&point.setting)
            .map(|exclusion| exclusion.reason);
    }
    runner.skip_manual_points(&mut states)?;
    for completed in options.completed {
        if let Some(point) = states
            .iter_mut()
            .find(|point| point.setting == completed.setting)
        {
            point.add_measurement(completed);
            runner.add_switches_of(&completed.setting)?;
        }
    }
    if let Some(command) = runner.server_command(&states) {
        let _ = progress(&Progress::StartServer { command });
    }
    let result = states.iter().filter(|point| point.skip_reason.is_none());
    let total = result.count() * rounds as usize;
    let mut number = 0;
    let mut manual_step_done: Option<&String> = None;
    let mut knob_values = BTreeMap::new();
    let distance = || {
        experiment
            .depends_on_core_distance()
            .then(options.measure_distance)
            .flatten()
    };
    let mut failures = FailureHistory::new(!options.completed.is_empty());
    let mut manual_steps = Vec::new();
    for point in &states {
        manual_steps.push(runner.manual_steps(&point.setting)?.describe());
    }
    let mut current = None;
    for (round, index) in measurement_order(&manual_steps, rounds) {
        if current.replace(round) != Some(round) {
            failures.start_round();
        }
        let point = &mut states[index];
        if options.stop.load(Relaxed) {
            break;
        }
        if point.is_excluded() {
            continue;
        }
        number += 1;
        let is_done = |completed: &PointMeasurement| {
            completed.round == round && completed.setting == point.setting
        };
        if options.completed.iter().any(is_done) {
            continue;
        }
        let setting_text = describe_setting(experiment, &point.setting);
        let manual_step = &manual_steps[index];
        if !manual_step.is_empty() && manual_step_done != Some(manual_step) {
            let _ = progress(&Progress::ManualStep {
                step: manual_step.clone(),
            });
            manual_step_done = Some(manual_step);
            if options.stop.load(Relaxed) {
                break;
            }
        }
        let _ = progress(&Progress::Point {
            number,
            total,
            setting_text: setting_text.clone(),
        });
        let distance_before = distance();
        let result = match set_knobs(experiment, &point.setting, &mut knob_values, progress) {
            Ok(()) => measure_with_retries(
                &mut runner,
                &states,
                (index, round),
                &mut failures,
                progress,
            )?,
            Err(reason) => Err(SkipReason {
                reason,
                next_step: "run its command by hand to see the error".to_owned(),
                exit_code: exit_codes::FAILED,
                is_transient: false,
                skip_group: None,
                failed_at: Instant::now(),
            }),
        };
        let point = &mut states[index];
        match result {
            Ok(mut result) => {
                failures.any_measured = true;
                result.distance = distance_before.filter(|_| distance() == distance_before);
                point.add_measurement(&result);
                let _ = progress(&Progress::Measured {
                    setting_text,
                    figures: runner.format_figures(&result),
                    measurement: Box::new(result),
                });
            }
            // Errors of a command that was stopped with the run are not the reason to report.
            Err(_) if options.stop.load(Relaxed) => break,
            Err(skip_reason) => {
                let reason = skip_reason.reason.clone();
                let skip_group = skip_reason.skip_group.clone();
                let next_step = skip_reason.next_step.clone();
                if point.runs.is_empty() {
                    point.skip_reason = Some(reason.clone());
                }
                point.last_failure = Some(skip_reason);
                for &other in skip_group.iter().flat_map(|skip_group| &skip_group.points) {
                    states[other].skip_reason = Some(reason.clone());
                    // This error is permanent, whatever transient error the point had before.
                    states[other].last_failure = None;
                }
                let _ = progress(&Progress::Skipped {
                    setting_text,
                    reason,
                });
                if let Some(skip_group) = skip_group {
                    let _ = progress(&Progress::SkippedGroup {
                        points: skip_group.points.len(),
                        object: skip_group.object,
                        next_step,
                    });
                }
            }
        }
    }
    let interrupted = options.stop.load(Relaxed);
    if interrupted {
        for point in states.iter_mut().filter(|point| point.runs.is_empty()) {
            point
                .skip_reason
                .get_or_insert_with(|| ExperimentPoint::NOT_REACHED.to_owned());
        }
    }
    if states.iter().all(|point| point.runs.is_empty()) && !interrupted {
        return Err(nothing_measured(&runner, &states));
    }
    let environment = (rootless, runner.into_switches());
    Ok(build_set(
        experiment,
        options,
        states,
        environment,
        interrupted,
    ))
}

/// Error for a run without any measured point: a failure if there is one, otherwise a missing
/// requirement.
fn nothing_measured(runner: &PointRunner<'_>, states: &[PointState]) -> ExperimentError {
    if let Some(failure) = states.iter().find_map(|point| point.last_failure.as_ref()) {
        return ExperimentError::NothingMeasured {
            reason: failure.reason.clone(),
            next_step: failure.next_step.clone(),
            code: failure.exit_code,
        };
    }
    let exclusions: Vec<PointExclusion> = (states.iter())
        .filter_map(|point| runner.exclusion(&point.setting))
        .collect();
    let missing_requirement = exclusions
        .iter()
        .find(|exclusions| exclusions.exit_code == exit_codes::MISSING);
    match missing_requirement.or(exclusions.first()) {
        Some(exclusions) => ExperimentError::NothingMeasured {
            reason: exclusions.reason.clone(),
            next_step: exclusions.next_step.clone(),
            code: exclusions.exit_code,
        },
        None => {
            let reason = states.iter().find_map(|point| point.skip_reason.clone());
            ExperimentError::NothingMeasured {
                reason: reason.unwrap_or_default(),
                next_step: String::new(),
                code: exit_codes::FAILED,
            }
        }
    }
}

/// Order of the rounds over the points, as (round, index into `manual_steps`).
///
/// Points with the same manual steps are measured in all rounds before the next step is required,
/// so that no step is repeated.
fn measurement_order(manual_steps: &[String], rounds: u32) -> Vec<(u32, usize)> {
    let mut distinct_steps: Vec<&String> = Vec::new();
    for words in manual_steps {
        if !distinct_steps.contains(&words) {
            distinct_steps.push(words);
        }
    }
    let mut order = Vec::new();
    for step in distinct_steps {
        for round in 0..rounds {
            let same_step = (0..manual_steps.len()).filter(|&index| manual_steps[index] == *step);
            order.extend(same_step.map(|index| (round, index)));
        }
    }
    order
}

/// Measures a point, with retries if its failure may be transient; the inner error is the reason.
fn measure_with_retries(
    runner: &mut PointRunner<'_>,
    states: &[PointState],
    (index, round): (usize, u32),
    failures: &mut FailureHistory,
    progress: &mut dyn FnMut(&Progress) -> Result<(), String>,
) -> Result<Result<PointMeasurement, SkipReason>, ExperimentError> {
    let mut tries = 0;
    // A point that was measured and then failed permanently may work again: only transient failures
    // count.
    let last_failure = states[index]
        .last_failure
        .as_ref()
        .filter(|last_failure| last_failure.is_transient);
    let skipped_before = last_failure.is_some();
    // With few points a round may take less than the pause.
    if let Some(last_failure) = last_failure {
        wait_until(last_failure.failed_at + RETRY_PAUSE, runner);
    }
    loop {
        let mut failed = match runner.measure(&states[index].setting, round)? {
            Ok(measured) => return Ok(Ok(measured)),
            Err(failed) => failed,
        };
        tries += 1;
        if let Some(command) = &failed.remote_command
            && runner.is_at_every_point(command, states)?
        {
            failed.failure.problem.retryable = Some(match tries {
                // A program left behind by another one may have ended by then.
                1 => Retryable::Transient,
                _ => Retryable::Permanent,
            });
        }
        let mut failed = failed.failure;
        let mut skip_group = None;
        if failed.problem.retryable == Some(Retryable::PermanentForObject) {
            skip_group = runner.find_skip_group(&failed.problem.object, states, index)?;
            if skip_group
                .as_ref()
                .is_some_and(|skip_group| skip_group.covers_all)
            {
                failed.problem.retryable = Some(Retryable::Permanent);
                skip_group = None;
            }
        }
        let last_failure = SkipReason {
            reason: failed.problem.to_string(),
            next_step: failed.problem.next_step.clone(),
            exit_code: failed.exit_code,
            is_transient: failed.problem.retryable == Some(Retryable::Transient),
            skip_group,
            failed_at: Instant::now(),
        };
        if runner.is_stopped() || last_failure.skip_group.is_some() {
            return Ok(Err(last_failure));
        }
        match failures.next_action(&failed, tries, skipped_before) {
            NextAction::Retry => {
                let _ = progress(&Progress::Retry {
                    setting_text: runner.describe_setting(&states[index].setting),
                    reason: last_failure.reason.clone(),
                });
                wait_until(last_failure.failed_at + RETRY_PAUSE, runner);
                if runner.is_stopped() {
                    return Ok(Err(last_failure));
                }
            }
            NextAction::Skip => return Ok(Err(last_failure)),
            NextAction::End => {
                return Err(ExperimentError::FailsAtEveryPoint {
                    problem: Box::new(failed.problem),
                    code: failed.exit_code,
                });
            }
        }
    }
}

/// Waits until this time, or until a stop.
fn wait_until(deadline: Instant, runner: &PointRunner<'_>) {
    while Instant::now() < deadline && !runner.is_stopped() {
        std::thread::sleep(STOP_POLL_INTERVAL);
    }
}

/// Sets the knobs that have a command.
///
/// `knob_values` has their current values; a knob is absent if it was never set or its command
/// failed.
fn set_knobs(
    experiment: &Experiment,
    setting: &KnobValues,
    knob_values: &mut BTreeMap<String, String>,
    progress: &mut dyn FnMut(&Progress) -> Result<(), String>,
) -> Result<(), String> {
    for knob in experiment
        .knobs
        .iter()
        .filter(|knob| knob.set_command.is_some())
    {
        let Some(value) = setting.get(&knob.name) else {
            continue;
        };
        if knob_values.get(&knob.name) == Some(value) {
            continue;
        }
        knob_values.remove(&knob.name);
        progress(&Progress::SetKnob {
            knob: knob.clone(),
            value: value.clone(),
        })?;
        knob_values.insert(knob.name.clone(), value.clone());
    }
    Ok(())
}

fn is_root() -> bool {
    // In a user namespace every user may be root; the uid map shows whether this is the initial
    // one.
    let uid_map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let is_initial_namespace = uid_map
        .split_whitespace()
        .nth(1)
        .is_some_and(|first| first == "0");
    is_initial_namespace && rustix::process::geteuid().is_root()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manual_steps_are_done_once_for_all_rounds() {
        let order_of = |manual_steps: &[&str]| -> Vec<(u32, usize)> {
            let manual_steps: Vec<String> =
                manual_steps.iter().map(|&step| step.to_owned()).collect();
            measurement_order(&manual_steps, 2)
        };
        // A lab requires no manual steps: rounds go over all points.
        assert_eq!(order_of(&["", ""]), [(0, 0), (0, 1), (1, 0), (1, 1)]);
        let hops = ["set hops=0", "set hops=0", "set hops=2"];
        let groups = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (1, 2)];
        assert_eq!(order_of(&hops), groups);
        let mixed_steps = ["", "start a", ""];
        assert_eq!(
            order_of(&mixed_steps),
            [(0, 0), (0, 2), (1, 0), (1, 2), (0, 1), (1, 1)]
        );
    }
}
