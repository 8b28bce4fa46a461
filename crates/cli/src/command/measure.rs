//! Measurements between two hosts: run, repeat, check, print.

use jiff::Timestamp;
use linerate_host::stop_flag::Stop;
use linerate_metric::event::{Event, Problem, What};
use linerate_metric::exit;
use linerate_metric::expect::Verdict;
use linerate_metric::record::{Record, new_id};
use linerate_metric::run_set::{RunSet, SET_SCHEMA, SetResult};
use linerate_metric::units::format_count;

use super::stage_passes;
use crate::args::MeasureArgs;
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::plan::Measurement;
use crate::port_devices::Nics;
use crate::printer::Teller;
use crate::ui_update::{Part, Scene};
use crate::{lab_network, live};

/// Runs a measurement and returns the exit code.
pub fn run(measurement: Result<Measurement, Failure>, args: &MeasureArgs) -> u8 {
    let mut output = Output::new(&args.output)
        .labelled(args.label.as_deref())
        .with_page(args.html.as_deref(), &format!("linerate to {}", args.host));
    let result = measurement.and_then(|measurement| measure(&measurement, args, &mut output));
    let code = result.unwrap_or_else(|failure| {
        output.failure(&failure);
        failure.code
    });
    output.gated(code, args.fail_on_finding)
}

/// Installs handlers that stop the run in order on Ctrl-C and SIGTERM.
pub fn stop_on_signals() -> Result<Stop, Failure> {
    Stop::on_signals().map_err(|error| {
        Failure::failed(Problem::new(
            format!("cannot catch signals ({error})"),
            "this process",
            "check the limits of this process",
        ))
    })
}

/// Makes the runs until a failure; returns the records and the failure.
fn runs(measurement: &Measurement, stop: &Stop, teller: &Teller) -> (Vec<Record>, Option<Failure>) {
    let flag = stop.as_flag();
    let network = lab_network::around();
    let mut runs: Vec<Record> = Vec::new();
    for test in 1..=measurement.repeat {
        let tell = |what| teller.tell(Event { test, what });
        if measurement.repeat > 1 {
            teller.show(Scene::Part(Part {
                name: "run",
                number: test as usize,
                of: Some(measurement.repeat as usize),
                ..Part::default()
            }));
        }
        let ran = stage_passes::run(&measurement.client, network.as_ref(), &flag, &mut |what| {
            tell(what)
        });
        let (record, failure) = match ran {
            Ok((record, failure)) => (record, failure.map(Failure::from)),
            // Earlier runs are kept.
            Err(error) => return (runs, Some(error.into())),
        };
        let left = record.interrupted && failure.is_none() && !stop.is_set();
        let failure = failure.or_else(|| left.then(|| ended_by_far_end(&record)));
        if measurement.repeat > 1 {
            tell(What::Finished {
                record: Box::new(record.clone()),
            });
            teller.show(Scene::came_to(&format!("run {test}"), &record));
        }
        runs.push(record);
        if stop.is_set() || failure.is_some() {
            return (runs, failure);
        }
    }
    (runs, None)
}

/// Returns the failure of a run whose server was stopped; the server sent its results so far.
pub(super) fn ended_by_far_end(record: &Record) -> Failure {
    let plan = &record.plan;
    let host = match plan.host.contains(':') && !plan.host.starts_with('[') {
        true => format!("[{}]", plan.host),
        false => plan.host.clone(),
    };
    let mut doubts = record.validity.iter();
    let next = match doubts.any(|doubt| doubt.doubt == "cut-short") {
        true => {
            "set a time (-t) within the server's --max-time, or start the server with a higher one"
        }
        false => "check why the server was stopped, and run it again when the server is up",
    };
    Failure {
        problem: Problem::new(
            "the server ended the run early",
            format!("{host}:{}", plan.port),
            next,
        ),
        code: exit::PEER,
    }
}

fn measure(
    measurement: &Measurement,
    args: &MeasureArgs,
    output: &mut Output,
) -> Result<u8, Failure> {
    output.check_file()?;
    live::check(args.screen.is_asked())?;
    if let Some(file) = &measurement.trace {
        output::write_files_without_reader();
        output::check_folder(file)?;
    }
    let stop = stop_on_signals()?;
    let _nics = Nics::for_stack(args.near.stack.dev.as_ref(), &stop, output)?;
    let (mut runs, mut failure) =
        live::while_told(args.screen.is_asked(), &stop, output, |teller| {
            runs(measurement, &stop, teller)
        })?;
    if let Some(failure) = failure.as_mut().filter(|_| stop.is_set()) {
        failure.code = exit::INTERRUPTED;
    }
    if runs.is_empty() {
        return Err(failure.expect("a run gives a record or says why it has none"));
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
        let verdicts = judge(args, |expectation| expectation.judge(&record.summary));
        output.record(record, &verdicts)?;
        verdicts
    } else {
        let set = repeats(runs, interrupted);
        let verdicts = judge(args, |expectation| expectation.judge_result(&set.result));
        output.set(&set, &verdicts)?;
        verdicts
    };
    if let Some(failure) = failure {
        // With --json the document is already printed, and its `validity` has the reason.
        if output.is_json() {
            output.remark(&format!("error: {}", failure.problem));
        } else {
            output.failure(&failure);
        }
        return Ok(failure.code);
    }
    if let Some(failure) = corrupted.filter(|_| !interrupted) {
        if output.is_json() {
            output.remark(&format!("error: {}", failure.problem));
        } else {
            output.failure(&failure);
        }
        return Ok(failure.code);
    }
    Ok(if interrupted {
        exit::INTERRUPTED
    } else if verdicts.iter().any(|verdict| !verdict.holds) {
        exit::GATE
    } else {
        exit::OK
    })
}

/// Returns a failure if a run with --verify received wrong bytes.
fn corrupted(runs: &[Record]) -> Option<Failure> {
    let wrong = |run: &&Record| run.plan.verify && run.summary.mismatched > Some(0);
    let run = runs.iter().find(wrong)?;
    let bytes = run.summary.mismatched.unwrap_or(0);
    Some(Failure::failed(Problem::new(
        format!("{} B arrived with wrong content", format_count(bytes)),
        "content",
        "the note has the first of them; disable offloads of the interfaces and run it again to find the \
         cause (`ethtool -K IF tx off rx off gro off`)",
    )))
}

pub(super) fn judge(
    args: &MeasureArgs,
    judge: impl Fn(&linerate_metric::expect::Expectation) -> Verdict,
) -> Vec<Verdict> {
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
        result: SetResult::of_repeats(&runs),
        runs,
    }
}
