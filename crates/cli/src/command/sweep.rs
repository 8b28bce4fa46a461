//! `linerate sweep`: measures every combination of option values in random order, and finds the
//! best ones.

use std::path::PathBuf;

use jiff::Timestamp;
use linerate_host::stop_flag::StopFlag;
use linerate_record::event::ErrorReport;
use linerate_record::exit_codes;
use linerate_record::experiment::{KnobAxis, KnobValues};
use linerate_record::figure;
use linerate_record::record::{Record, new_id};
use linerate_record::run_set::{RunSet, SET_SCHEMA, SetResult};
use linerate_record::sweep::{Sweep, SweepPoint, buffer_bytes};
use linerate_stats::statistics::{estimate, median};
use linerate_stats::units::count_of;
use linerate_tune::TuneError;
use linerate_tune::journal::{Journal, state_dir};
use linerate_tune::knob::Knob;
use linerate_tune::matrix;
use linerate_tune::search::SearchPoint;
use linerate_tune::sweep_axis::SweepAxis;
use serde::{Deserialize, Serialize};

use super::measure::stop_on_signals;
use super::measuring_command::{add_default_time, fresh_seed, kind_of};
use crate::args::SweepArgs;
use crate::event_queue::EventSender;
use crate::failure::{CommandFailure, SeriesEnd};
use crate::knob_applier::{self, KnobApplier};
use crate::knobs::AvailableKnobs;
use crate::output::CommandOutput;
use crate::ui_update::SeriesPart;
use crate::{child_process, live, shell_words, unrestored_settings};

/// Runs the command and returns the exit code.
pub fn run(args: &SweepArgs) -> u8 {
    let mut output =
        CommandOutput::new(&args.output).with_report(args.many.html.as_deref(), "linerate sweep");
    let result = run_sweep(args, &mut output);
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

/// Definition of a sweep: the first line of its journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SweepRequest {
    id: String,
    command: Vec<String>,
    axes: Vec<Knob>,
    figure: String,
    repeats: u32,
    seed: u64,
    started: Timestamp,
}

/// Result of a run: a further line of the journal.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct SweepRunResult {
    /// Index of the run in the order.
    step: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    record: Option<Box<Record>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failed: Option<String>,
}

fn run_sweep(args: &SweepArgs, output: &mut CommandOutput) -> Result<u8, CommandFailure> {
    output.check_files()?;
    live::check_terminal(args.screen.is_enabled())?;
    let (request, mut results, mut journal) = match &args.resume {
        Some(name) => resume_sweep(name)?,
        None => {
            child_process::check_report_option("sweep", &args.command)?;
            start_sweep(args)?
        }
    };
    let points = sweep_points(&request)?;
    let commands = point_commands(&request, &points)?;
    let order = run_order(&request, points.len())?;
    check_journal(&request, &results, order.len())?;
    let available = AvailableKnobs::collect(&args.knobs, &request.command)?;
    check_permissions(&request, &available)?;
    let stop = stop_on_signals()?;
    unrestored_settings::warn(output);
    let mut applier = KnobApplier::new(request.axes.clone(), &available, &request.command, &stop)?;
    output.report_progress(&format!(
        "sweep {}: {} x {} = {} in random order, seed {}; to resume after a crash: linerate sweep --resume {}",
        request.id,
        count_of(points.len() as u64, "point"),
        count_of(request.repeats.into(), "repeat"),
        count_of(order.len() as u64, "run"),
        request.seed,
        request.id
    ));
    let measured = SweepPlan {
        request: &request,
        commands: &commands,
        points: &points
            .iter()
            .map(|point| point_of(&request, point))
            .collect::<Vec<_>>(),
        order: &order,
        stop: &stop,
    };
    let title = format!("sweep of {}", shell_words::join_args(&request.command));
    let end = live::run_series(args.screen.is_enabled(), &title, &stop, output, |output| {
        measured.run_all(&mut applier, &mut results, journal.as_mut(), output)
    })?;
    let notes = applier
        .restore()
        .into_iter()
        .map(|why| format!("could not be restored: {why}"));
    let mut notes: Vec<String> = notes.collect();
    let interrupted = results.len() < order.len();
    let failure = match end {
        Err(SeriesEnd::Failed(failure)) => Some(failure),
        Err(SeriesEnd::Interrupted) | Ok(()) => None,
    };
    if results.iter().all(|results| results.record.is_none()) {
        knob_applier::report_unrestored(&notes, output);
        // No run has a result, so there is nothing to resume.
        if !interrupted && let Some(journal) = journal {
            journal.remove().map_err(journal_failure)?;
        }
        let why = results.iter().find_map(|results| results.failed.clone());
        return Err(failure.unwrap_or_else(|| match why {
            Some(why) => CommandFailure::failed(ErrorReport::new(
                why,
                "every point",
                "run the measuring command by itself to see its output",
            )),
            None => CommandFailure::interrupted(),
        }));
    }
    if interrupted && journal.is_some() {
        notes.push(format!("to resume: linerate sweep --resume {}", request.id));
    }
    let set = result_set(&request, points, &order, results, interrupted, notes);
    output.write_set(&set, &[])?;
    if !interrupted && let Some(journal) = journal {
        journal.remove().map_err(journal_failure)?;
    }
    if let Some(failure) = failure {
        output.report_late_failure(&failure);
        return Ok(failure.code);
    }
    Ok(match stop.is_set() {
        true => exit_codes::INTERRUPTED,
        false => exit_codes::OK,
    })
}

fn start_sweep(
    args: &SweepArgs,
) -> Result<(SweepRequest, Vec<SweepRunResult>, Option<Journal>), CommandFailure> {
    if args.over.is_empty() {
        return reject("--over", "no option to vary", "give --over NAME=VALUES");
    }
    if args.command.is_empty() {
        return reject(
            "sweep",
            "no measuring command",
            "end with one: throughput HOST, latency HOST",
        );
    }
    if args.repeats == 0 {
        return reject("--repeats 0", "no run to measure", "give 1 or more");
    }
    for (position, axis) in args.over.iter().enumerate() {
        if args.over[..position]
            .iter()
            .any(|earlier| earlier.name == axis.name)
        {
            return reject(
                &format!("--over {}", axis.name),
                "given twice",
                "give all values in one --over",
            );
        }
    }
    let mut command = args.command.clone();
    add_default_time(&mut command);
    let available = AvailableKnobs::collect(&args.knobs, &command)?;
    available.check_limits()?;
    let axes = (args.over.iter()).map(|over| available.resolve(over, &command));
    let axes = axes.collect::<Result<Vec<_>, _>>()?;
    let first = axes.iter().map(|axis| (axis, axis.values[0].as_str()));
    let kind = kind_of("sweep", &command_with_values(&command, first)?)?;
    let figure = match &args.figure {
        Some(name) => figure::find(name),
        None => Some(figure::default_for(kind)),
    };
    let Some(figure) = figure else {
        return reject(
            "--figure",
            "no figure of a run has that name",
            &format!("choose one of {}", figure::names()),
        );
    };
    let started = Timestamp::now();
    let request = SweepRequest {
        id: new_id(started),
        command,
        axes,
        figure: figure.name.to_owned(),
        repeats: args.repeats,
        seed: args.many.seed.unwrap_or_else(|| u64::from(fresh_seed())),
        started,
    };
    // Checked before the journal is created.
    let points = sweep_points(&request)?;
    point_commands(&request, &points)?;
    run_order(&request, points.len())?;
    let journal = match state_dir("sweep") {
        Some(dir) => {
            let path = dir.join(format!("{}.jsonl", request.id));
            Some(Journal::create(&path, &request).map_err(journal_failure)?)
        }
        None => None,
    };
    Ok((request, Vec::new(), journal))
}

fn resume_sweep(
    name: &str,
) -> Result<(SweepRequest, Vec<SweepRunResult>, Option<Journal>), CommandFailure> {
    let path = PathBuf::from(name);
    let path = match (path.is_file(), state_dir("sweep")) {
        (false, Some(dir)) if !name.contains('/') => dir.join(format!("{name}.jsonl")),
        _ => path,
    };
    if !path.is_file() {
        let unfinished = unfinished_sweeps();
        return Err(CommandFailure::failed(ErrorReport::new(
            "no sweep of that name to resume",
            format!("--resume {name}"),
            match unfinished.is_empty() {
                true => "no sweep is unfinished: start a new one with --over".to_owned(),
                false => format!("unfinished: {}", unfinished.join(", ")),
            },
        )));
    }
    let (request, done, journal) = Journal::resume(&path).map_err(|error| {
        CommandFailure::failed(ErrorReport::new(
            error.to_string(),
            format!("--resume {name}"),
            RESTART_HINT,
        ))
    })?;
    Ok((request, done, Some(journal)))
}

/// Next step if a journal cannot be resumed.
const RESTART_HINT: &str = "start a new sweep with --over";

/// Rejects a journal that does not fit this sweep or this version.
fn check_journal(
    request: &SweepRequest,
    done: &[SweepRunResult],
    runs: usize,
) -> Result<(), CommandFailure> {
    let unknown_step = done.iter().map(|done| done.step).find(|step| *step >= runs);
    let why = match (figure::find(&request.figure), unknown_step) {
        (None, _) => format!("no figure of a run is named `{}`", request.figure),
        (_, Some(step)) => format!("contains run {} of {runs}", step.saturating_add(1)),
        (Some(_), None) => return Ok(()),
    };
    Err(CommandFailure::failed(ErrorReport::new(
        why,
        format!("the journal of sweep {}", request.id),
        RESTART_HINT,
    )))
}

/// Returns the ids of unfinished sweeps, newest first.
fn unfinished_sweeps() -> Vec<String> {
    let entries = state_dir("sweep").and_then(|dir| std::fs::read_dir(dir).ok());
    let names = entries.into_iter().flatten().flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        Some(name.strip_suffix(".jsonl")?.to_owned())
    });
    let mut names: Vec<String> = names.collect();
    names.sort_unstable_by(|a, b| b.cmp(a));
    names
}

/// Checks that a resumed sweep may still change the settings of hosts that it varies.
fn check_permissions(
    request: &SweepRequest,
    available: &AvailableKnobs,
) -> Result<(), CommandFailure> {
    use linerate_tune::knob::KnobTarget;
    let (mut uses_hosts, mut uses_remote) = (false, false);
    for axis in &request.axes {
        uses_hosts |= matches!(axis.target, KnobTarget::HostSetting { .. });
        uses_remote |= matches!(axis.target, KnobTarget::RemoteSysctl(_));
    }
    if (uses_hosts && !available.context.host_settings)
        || (uses_remote && !available.context.remote_settings)
    {
        return reject(
            "--resume",
            "the sweep changes settings of hosts, which is not permitted now",
            "repeat its options --try-host, --try-interface, --try-far, or run it in its lab",
        );
    }
    Ok(())
}

fn journal_failure(error: TuneError) -> CommandFailure {
    CommandFailure::failed(ErrorReport::new(
        error.to_string(),
        "the journal",
        "set XDG_STATE_HOME to a writable directory",
    ))
}

fn sweep_points(request: &SweepRequest) -> Result<Vec<KnobValues>, CommandFailure> {
    let axes: Vec<SweepAxis> = (request.axes.iter())
        .map(|axis| SweepAxis {
            name: axis.name.clone(),
            values: axis.values.clone(),
        })
        .collect();
    match matrix::all_points(&axes) {
        Some(points) => Ok(points),
        None => reject(
            "--over",
            &format!("more than {} points", matrix::MAX_POINTS),
            "give fewer values",
        ),
    }
}

/// Returns the point of each run, in random order.
fn run_order(request: &SweepRequest, points: usize) -> Result<Vec<usize>, CommandFailure> {
    match matrix::run_order(points, request.repeats, request.seed) {
        Some(order) => Ok(order),
        None => reject(
            &format!("--repeats {}", request.repeats),
            &format!("more than {} runs", matrix::MAX_RUNS),
            "give fewer repeats, or fewer values",
        ),
    }
}

/// Returns the measuring command with these values, as far as they are options of it.
fn command_with_values<'a>(
    command: &[String],
    values: impl Iterator<Item = (&'a Knob, &'a str)>,
) -> Result<Vec<String>, CommandFailure> {
    use linerate_tune::knob::{DEFAULT_VALUE, KnobTarget};
    let mut args = command.to_vec();
    for (axis, value) in values {
        match &axis.target {
            KnobTarget::Option(option) => shell_words::set_option(&mut args, option, value)?,
            KnobTarget::StackKey(key) if value != DEFAULT_VALUE => {
                args.push(format!("--set={key}={value}"))
            }
            _ => {}
        }
    }
    Ok(args)
}

/// Returns the command of each point; an invalid one is rejected before any run.
fn point_commands(
    request: &SweepRequest,
    points: &[KnobValues],
) -> Result<Vec<Vec<String>>, CommandFailure> {
    points
        .iter()
        .map(|point| {
            let values = request.axes.iter();
            let values = values.map(|axis| (axis, point[&axis.name].as_str()));
            let args = command_with_values(&request.command, values)?;
            kind_of("sweep", &args)?;
            Ok(args)
        })
        .collect()
}

/// Returns a setting as indices of its values.
fn point_of(request: &SweepRequest, setting: &KnobValues) -> SearchPoint {
    let number = |axis: &Knob| {
        let value = &setting[&axis.name];
        axis.values
            .iter()
            .position(|value_index| value_index == value)
    };
    request
        .axes
        .iter()
        .map(|axis| number(axis).unwrap_or(0))
        .collect()
}

/// Runs to make, and their order.
struct SweepPlan<'a> {
    request: &'a SweepRequest,
    commands: &'a [Vec<String>],
    points: &'a [SearchPoint],
    order: &'a [usize],
    stop: &'a StopFlag,
}

impl SweepPlan<'_> {
    fn run_all(
        &self,
        applier: &mut KnobApplier<'_>,
        done: &mut Vec<SweepRunResult>,
        mut journal: Option<&mut Journal>,
        output: &CommandOutput,
    ) -> Result<(), SeriesEnd> {
        let figure = figure::find(&self.request.figure);
        for (step, &point) in self.order.iter().enumerate() {
            if done.iter().any(|done| done.step == step) {
                continue;
            }
            let varied = (self.request.axes.iter().zip(&self.points[point]))
                .map(|(axis, &number)| format!("{}={}", axis.name, axis.values[number]));
            let varied = varied.collect::<Vec<_>>().join(" ");
            output.show_part(SeriesPart {
                name: "run",
                number: step + 1,
                total: Some(self.order.len()),
                settings: varied.clone(),
                ..SeriesPart::default()
            });
            let (record, failed) = self.measure(applier, point, output.event_sender())?;
            let value = record.as_ref().and_then(|record| figure?.value_in(record));
            let outcome = match (&failed, value) {
                (Some(why), _) => why.clone(),
                (None, Some(value)) => figure::format(&self.request.figure, value),
                (None, None) => format!("no {}", self.request.figure),
            };
            let result = SweepRunResult {
                step,
                record,
                failed,
            };
            // Written to the journal before it is reported.
            if let Some(journal) = journal.as_deref_mut() {
                journal
                    .append(&result)
                    .map_err(|error| SeriesEnd::Failed(journal_failure(error)))?;
            }
            let total = self.order.len();
            output.report_step(&format!("run {} of {total}: {varied}: {outcome}", step + 1));
            done.push(result);
        }
        Ok(())
    }

    /// Measures a point; returns the record, or the reason why there is none.
    fn measure(
        &self,
        applier: &mut KnobApplier<'_>,
        point: usize,
        screen: Option<&EventSender>,
    ) -> Result<PointResult, SeriesEnd> {
        if let Err(why) = applier.apply(&self.points[point])? {
            return Ok((None, Some(why)));
        }
        match child_process::run_measurement(&self.commands[point], self.stop, screen) {
            Ok(record) => Ok((Some(Box::new(record)), None)),
            // A lost server fails all points.
            Err(SeriesEnd::Failed(failure)) if failure.code != exit_codes::PEER => {
                Ok((None, Some(failure.problem.to_string())))
            }
            Err(end) => Err(end),
        }
    }
}

type PointResult = (Option<Box<Record>>, Option<String>);

fn result_set(
    request: &SweepRequest,
    settings: Vec<KnobValues>,
    order: &[usize],
    done: Vec<SweepRunResult>,
    interrupted: bool,
    notes: Vec<String>,
) -> RunSet {
    let figure = figure::find(&request.figure).expect("it was checked when the sweep began");
    let mut runs = Vec::new();
    let mut points: Vec<SweepPoint> = Vec::new();
    for (number, setting) in settings.into_iter().enumerate() {
        let results: Vec<&SweepRunResult> = done
            .iter()
            .filter(|done| order[done.step] == number)
            .collect();
        let records: Vec<&Record> = results
            .iter()
            .filter_map(|done| done.record.as_deref())
            .collect();
        let values_of = |read: &dyn Fn(&Record) -> Option<f64>| -> Vec<f64> {
            records.iter().filter_map(|record| read(record)).collect()
        };
        let label: Vec<_> = request
            .axes
            .iter()
            .map(|axis| format!("{}={}", axis.name, setting[&axis.name]))
            .collect();
        runs.extend(records.iter().map(|record| Record {
            label: Some(label.join(" ")),
            ..(*record).clone()
        }));
        points.push(SweepPoint {
            value: estimate(&values_of(&|run| figure.value_in(run))),
            memory_bytes: point_memory(request, &setting, median(&values_of(&buffer_bytes))),
            cpu_ns: median(&values_of(&|run| figure::CPU_FIGURE.value_in(run))),
            pareto: false,
            failed: results.iter().find_map(|done| done.failed.clone()),
            records: records.iter().map(|record| record.id.clone()).collect(),
            setting,
        });
    }
    let has_memory = points.iter().any(|point| point.memory_bytes.is_some());
    let costs: Vec<_> = points
        .iter()
        .map(|point| {
            let cost = if has_memory {
                point.memory_bytes
            } else {
                point.cpu_ns
            };
            (point.value.map(|value| value.median), cost)
        })
        .collect();
    for (point, on_front) in points
        .iter_mut()
        .zip(matrix::pareto_front(figure.better_when(), &costs))
    {
        point.pareto = on_front;
    }
    let best = best_point(figure.better_when(), &points);
    RunSet {
        schema: SET_SCHEMA.to_owned(),
        id: request.id.clone(),
        kind: "sweep".to_owned(),
        started: request.started,
        interrupted,
        runs,
        result: SetResult {
            sweep: Some(Box::new(Sweep {
                command: shell_words::join_args(&request.command),
                figure: request.figure.clone(),
                better: figure.better_when(),
                seed: request.seed,
                repeats: request.repeats,
                axes: (request.axes.iter())
                    .map(|axis| KnobAxis {
                        name: axis.name.clone(),
                        values: axis.values.clone(),
                    })
                    .collect(),
                points,
                best,
            })),
            notes,
            ..SetResult::default()
        },
    }
}

/// Returns the memory of the buffers and of the user's knobs in bytes.
fn point_memory(request: &SweepRequest, setting: &KnobValues, buffers: Option<f64>) -> Option<f64> {
    let knob_bytes = (request.axes.iter()).filter_map(|axis| {
        let size: linerate_stats::units::ByteSize = setting[&axis.name].parse().ok()?;
        Some(axis.bytes_per_unit? * size.0 as f64)
    });
    let knob_bytes: Vec<f64> = knob_bytes.collect();
    match (buffers, knob_bytes.is_empty()) {
        (buffers, true) => buffers,
        // A board does not report its buffers: only its knobs count.
        (buffers, false) => Some(buffers.unwrap_or(0.0) + knob_bytes.iter().sum::<f64>()),
    }
}

fn best_point(
    better: linerate_record::comparison::BetterWhen,
    points: &[SweepPoint],
) -> Option<usize> {
    use linerate_record::comparison::BetterWhen;
    let valued = points
        .iter()
        .enumerate()
        .filter_map(|(number, point)| Some((number, point.value?.median)));
    let compare = |a: &(usize, f64), b: &(usize, f64)| a.1.total_cmp(&b.1);
    match better {
        BetterWhen::Higher => valued.max_by(compare),
        BetterWhen::Lower => valued.min_by(compare),
    }
    .map(|(number, _)| number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(figure: &str) -> SweepRequest {
        SweepRequest {
            id: "20261126T080000Z-000001".to_owned(),
            command: vec!["throughput".to_owned(), "h".to_owned()],
            axes: Vec::new(),
            figure: figure.to_owned(),
            repeats: 2,
            seed: 1,
            started: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn a_journal_of_another_sweep_is_rejected_first() {
        let done = |step| SweepRunResult {
            step,
            record: None,
            failed: None,
        };
        for (figure, step, expected) in [
            ("goodput", 1, None),
            ("goodput", 2, Some("run 3 of 2")),
            ("goodput", usize::MAX, Some("run 18446744073709551615 of 2")),
            ("speed", 0, Some("`speed`")),
        ] {
            let situation = check_journal(&request(figure), &[done(0), done(step)], 2).err();
            let situation = situation.map(|failure| failure.problem.situation);
            assert_eq!(
                situation.is_some(),
                expected.is_some(),
                "{figure} {step}: {situation:?}"
            );
            let matches = expected.is_none_or(|expected| {
                situation
                    .as_ref()
                    .is_some_and(|situation| situation.contains(expected))
            });
            assert!(matches, "{figure} {step}: {situation:?}");
        }
    }

    #[test]
    fn too_many_runs_are_rejected() {
        let too_many = SweepRequest {
            repeats: u32::MAX,
            ..request("goodput")
        };
        let error = run_order(&too_many, 4).expect_err("it is too many").problem;
        assert!(
            error.situation.contains("more than 1000000 runs"),
            "{error}"
        );
        assert_eq!(
            run_order(&request("goodput"), 4)
                .map(|order| order.len())
                .ok(),
            Some(8)
        );
    }
}
