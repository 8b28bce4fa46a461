//! What all measurements between two hosts share: run, repeat, judge, print.

use jiff::Timestamp;
use linerate_host::stop::Stop;
use linerate_measure::MeasureError;
use linerate_metric::event::{Event, Problem};
use linerate_metric::exit;
use linerate_metric::expect::Verdict;
use linerate_metric::record::{Record, new_id};
use linerate_metric::set::{RunSet, SET_SCHEMA, SetResult};

use crate::args::MeasureArgs;
use crate::failure::Failure;
use crate::output::Output;
use crate::plan::Measurement;

/// Runs what was planned; gives the exit code.
pub fn run(measurement: Result<Measurement, Failure>, args: &MeasureArgs) -> u8 {
    let mut output = Output::new(&args.output);
    let result = measurement.and_then(|measurement| measure(&measurement, args, &mut output));
    result.unwrap_or_else(|failure| {
        output.failure(&failure);
        failure.code
    })
}

/// Ends the program in order when somebody presses Ctrl-C.
pub fn stop_on_signals() -> Result<Stop, Failure> {
    Stop::on_signals().map_err(|error| {
        Failure::failed(Problem::new(
            format!("signals cannot be caught ({error})"),
            "this process",
            "see what limits it",
        ))
    })
}

fn measure(
    measurement: &Measurement,
    args: &MeasureArgs,
    output: &mut Output,
) -> Result<u8, Failure> {
    let stop = stop_on_signals()?;
    let mut runs: Vec<Record> = Vec::new();
    let mut vanished: Option<MeasureError> = None;
    for number in 1..=measurement.repeat {
        let flag = stop.as_flag();
        let ran = measurement.client.run(&flag, &mut |what| {
            output.event(&Event { test: number, what });
        });
        match ran {
            Ok((record, failure)) => {
                runs.push(record);
                vanished = failure;
            }
            // What was measured before is not lost.
            Err(error) if !runs.is_empty() => vanished = Some(error),
            Err(error) => return Err(error.into()),
        }
        if stop.is_set() || vanished.is_some() {
            break;
        }
    }
    let interrupted = stop.is_set();
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
    if let Some(error) = vanished {
        let failure = Failure::from(error);
        // Under --json the document is out already, and says so in `validity`.
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

fn judge(
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
