//! Measurements between two hosts: run, repeat, check, print.

use jiff::Timestamp;
use linerate_host::stop_flag::StopFlag;
use linerate_record::event::{ErrorReport, Event, EventKind};
use linerate_record::exit_codes;
use linerate_record::expect::ExpectationResult;
use linerate_record::ids::CaveatId;
use linerate_record::plan::RunKind;
use linerate_record::record::{Record, new_id};
use linerate_record::run_set::{RunSet, SET_SCHEMA, SetResult};
use linerate_stats::units::format_count;

use super::stage_passes;
use crate::args::MeasureArgs;
use crate::event_queue::EventSender;
use crate::failure::CommandFailure;
use crate::output::{self, CommandOutput};
use crate::plan::MeasurementPlan;
use crate::port_devices::PortDevices;
use crate::ui_update::{SeriesPart, UiUpdate};
use crate::{lab_network, live, standard_streams};

/// Runs a measurement and returns the exit code.
pub fn run_measurement(
    measurement: Result<MeasurementPlan, CommandFailure>,
    args: &MeasureArgs,
) -> u8 {
    let kind = (measurement.as_ref()).map_or(RunKind::Throughput, |found| found.client.plan.kind);
    let mut output = CommandOutput::new(&args.output)
        .with_label(args.label.as_deref())
        .with_report(args.html.as_deref(), &args.report_title(kind));
    let result = measurement.and_then(|measurement| measure(&measurement, args, &mut output));
    let code = result.unwrap_or_else(|failure| {
        output.report_failure(&failure);
        failure.code
    });
    output.gate_exit_code(code, args.fail_on_finding)
}

/// Installs handlers that stop the run in order on Ctrl-C and SIGTERM.
pub fn stop_on_signals() -> Result<StopFlag, CommandFailure> {
    StopFlag::on_signals().map_err(|error| {
        CommandFailure::failed(ErrorReport::new(
            format!("cannot catch signals ({error})"),
            "this process",
            "check the limits of this process",
        ))
    })
}

/// Makes the runs until a failure; returns the records and the failure.
fn make_runs(
    measurement: &MeasurementPlan,
    stop: &StopFlag,
    events: &EventSender,
) -> (Vec<Record>, Option<CommandFailure>) {
    let flag = stop.atomic();
    let network = lab_network::lab_network();
    let mut runs: Vec<Record> = Vec::new();
    for test in 1..=measurement.repeat {
        let emit = |what| events.send(Event { test, kind: what });
        if measurement.repeat > 1 {
            events.show(UiUpdate::PartStarted(SeriesPart {
                name: "run",
                number: test as usize,
                total: Some(measurement.repeat as usize),
                ..SeriesPart::default()
            }));
        }
        let outcome = stage_passes::run_with_stages(
            &measurement.client,
            network.as_ref(),
            &flag,
            &mut |what| emit(what),
        );
        let (record, failure) = match outcome {
            Ok((record, failure)) => (record, failure.map(CommandFailure::from)),
            // Earlier runs are kept.
            Err(error) => return (runs, Some(error.into())),
        };
        let has_server_ended = record.interrupted && failure.is_none() && !stop.is_set();
        let failure = failure.or_else(|| has_server_ended.then(|| server_ended_failure(&record)));
        if measurement.repeat > 1 {
            emit(EventKind::Finished {
                record: Box::new(record.clone()),
            });
            events.show(UiUpdate::part_result(&format!("run {test}"), &record));
        }
        runs.push(record);
        if stop.is_set() || failure.is_some() {
            return (runs, failure);
        }
    }
    (runs, None)
}

/// Returns the failure of a run whose server was stopped; the server sent its results so far.
pub(super) fn server_ended_failure(record: &Record) -> CommandFailure {
    let plan = &record.plan;
    let host = match plan.host.contains(':') && !plan.host.starts_with('[') {
        true => format!("[{}]", plan.host),
        false => plan.host.clone(),
    };
    let mut caveats = record.validity.iter();
    let next = match caveats.any(|caveat| caveat.id == CaveatId::CutShort) {
        true => {
            "set a time (-t) within the server's --max-time, or start the server with a higher one"
        }
        false => "check why the server was stopped, and run it again when the server is up",
    };
    CommandFailure {
        problem: ErrorReport::new(
            "the server ended the run early",
            format!("{host}:{}", plan.port),
            next,
        ),
        code: exit_codes::PEER,
    }
}

fn measure(
    measurement: &MeasurementPlan,
    args: &MeasureArgs,
    output: &mut CommandOutput,
) -> Result<u8, CommandFailure> {
    output.check_files()?;
    live::check_terminal(args.screen.is_enabled())?;
    if let Some(file) = &measurement.trace {
        standard_streams::continue_without_reader();
        output::check_writable_file(file)?;
    }
    let stop = stop_on_signals()?;
    let _devices = PortDevices::for_stack(args.local_stack.stack.dev.as_ref(), &stop, output)?;
    let (mut runs, mut failure) =
        live::run_with_output(args.screen.is_enabled(), &stop, output, |events| {
            make_runs(measurement, &stop, events)
        })?;
    if let Some(failure) = failure.as_mut().filter(|_| stop.is_set()) {
        failure.code = exit_codes::INTERRUPTED;
    }
    if runs.is_empty() {
        return Err(failure.expect("a run gives a record or a failure"));
    }
    if let Some(file) = &measurement.trace {
        // The results are printed even if the timeline cannot be written.
        if let Err(unwritten) = stage_passes::write_trace(file, &mut runs) {
            failure.get_or_insert(unwritten);
        }
    }
    let interrupted = stop.is_set();
    let corrupted = corrupted(&runs);
    let verdicts = if measurement.repeat == 1 {
        let record = &runs[0];
        let verdicts =
            judge_expectations(args, |expectation| expectation.evaluate(&record.summary));
        output.write_record(record, &verdicts)?;
        verdicts
    } else {
        let set = repeats(runs, interrupted);
        let verdicts = judge_expectations(args, |expectation| {
            expectation.evaluate_repeats(&set.result.figures)
        });
        output.write_set(&set, &verdicts)?;
        verdicts
    };
    if let Some(failure) = failure {
        // With --json the document is already printed, and its `validity` has the reason.
        if output.is_json() {
            output.warn(&format!("error: {}", failure.problem));
        } else {
            output.report_failure(&failure);
        }
        return Ok(failure.code);
    }
    if let Some(failure) = corrupted.filter(|_| !interrupted) {
        if output.is_json() {
            output.warn(&format!("error: {}", failure.problem));
        } else {
            output.report_failure(&failure);
        }
        return Ok(failure.code);
    }
    Ok(if interrupted {
        exit_codes::INTERRUPTED
    } else if verdicts.iter().any(|verdict| !verdict.holds) {
        exit_codes::GATE
    } else {
        exit_codes::OK
    })
}

/// Returns a failure if a run with --verify received wrong bytes.
fn corrupted(runs: &[Record]) -> Option<CommandFailure> {
    let has_mismatch = |run: &&Record| run.plan.verify && run.summary.mismatched > Some(0);
    let run = runs.iter().find(has_mismatch)?;
    let bytes = run.summary.mismatched.unwrap_or(0);
    Some(CommandFailure::failed(ErrorReport::new(
        format!("{} B arrived with wrong content", format_count(bytes)),
        "content",
        "the note has the first of them; disable offloads of the interfaces and run it again to find the \
         cause (`ethtool -K IF tx off rx off gro off`)",
    )))
}

pub(super) fn judge_expectations(
    args: &MeasureArgs,
    judge: impl Fn(&linerate_record::expect::Expectation) -> ExpectationResult,
) -> Vec<ExpectationResult> {
    args.expect.iter().map(judge).collect()
}

fn repeats(runs: Vec<Record>, interrupted: bool) -> RunSet {
    let started = runs.first().map_or_else(Timestamp::now, |run| run.started);
    RunSet {
        schema: SET_SCHEMA.to_owned(),
        id: new_id(started),
        kind: "repeat".to_owned(),
        started,
        interrupted,
        result: SetResult::from_repeats(&runs),
        runs,
    }
}
