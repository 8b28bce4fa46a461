//! `--saturate`: finds the number of packets in flight for the highest rate.

use std::time::Duration;

use jiff::Timestamp;
use linerate_host::stop_flag::Stop;
use linerate_measure::MeasureError;
use linerate_measure::forward::saturation::Walk;
use linerate_measure::forward::{
    Forwarder, PortUrl, Ran, Settings, Times, plan, record, run as forward,
};
use linerate_metric::event::{Event, Problem, What};
use linerate_metric::exit;
use linerate_metric::forward::{SaturationPoint, circulates};
use linerate_metric::record::{Record, new_id};
use linerate_metric::run_set::{RunSet, SET_SCHEMA, SetResult};
use linerate_metric::units::{format_count, format_per_second};

use super::args::ForwardArgs;
use super::screen::{self, Shown};
use super::{say, started};
use crate::failure::Failure;
use crate::live;
use crate::output::Output;
use crate::ui_update::Part;

/// Time for packets of the previous step to leave: those in another process arrive late.
const QUIET: Duration = Duration::from_millis(20);

/// Runs the steps for 1 to `--cores` threads, prints the set and returns the exit code.
pub fn run(
    args: &ForwardArgs,
    urls: &[PortUrl],
    settings: &Settings,
    forwarder: &mut Forwarder,
    stop: &Stop,
    output: &mut Output,
) -> Result<u8, Failure> {
    let mode = settings.mode.to_string();
    if !circulates(&mode) {
        return Err(Failure::usage(Problem::new(
            format!("no packets circulate in mode {mode}: it drops or generates frames"),
            "--saturate",
            "use a mode that forwards frames, like io or macswap",
        )));
    }
    let started = Timestamp::now();
    let title = format!("packets in flight for the highest rate, mode {mode}");
    let walked = live::series(args.is_shown(), &title, stop, output, |output| {
        walked(args, urls, settings, forwarder, stop, output)
    })?;
    let (runs, result) = walked?;
    if runs.is_empty() {
        return Err(Failure::from(MeasureError::Interrupted));
    }
    let interrupted = stop.is_set();
    let set = RunSet {
        schema: SET_SCHEMA.to_owned(),
        id: new_id(started),
        kind: "saturation".to_owned(),
        started,
        interrupted,
        runs,
        result,
    };
    output.set(&set, &[])?;
    Ok(if interrupted {
        exit::INTERRUPTED
    } else {
        exit::OK
    })
}

/// Runs the steps; returns their records and the result.
fn walked(
    args: &ForwardArgs,
    urls: &[PortUrl],
    settings: &Settings,
    forwarder: &mut Forwarder,
    stop: &Stop,
    output: &mut Output,
) -> Result<(Vec<Record>, SetResult), Failure> {
    let interval = match output.teller() {
        Some(_) => args.trial.min(screen::INTERVAL),
        None => args.trial,
    };
    let times = Times {
        duration: Some(args.trial),
        interval: interval.max(Duration::from_millis(10)),
        quiet: QUIET,
    };
    let mut runs: Vec<Record> = Vec::new();
    let mut result = SetResult::default();
    for cores in 1..=args.cores {
        let places = forwarder.places(&Settings {
            cores,
            ..settings.clone()
        })?;
        let threads = places.iter().map(|place| place.core + 1).max();
        if threads.is_some_and(|threads| threads < cores) {
            let streams = places.len();
            result.notes.push(match streams {
                1 => "1 stream keeps only 1 core busy: more cores are not tried".to_owned(),
                _ => format!(
                    "{streams} streams keep only {streams} cores busy: more cores are not tried"
                ),
            });
            break;
        }
        let plural = if cores == 1 { "" } else { "s" };
        let mut walk = Walk::default();
        while let Some(tx_first) = walk.next_step().filter(|_| !stop.is_set()) {
            let step = Settings {
                cores,
                tx_first,
                flush: true,
                ..settings.clone()
            };
            let words = format!("{cores} core{plural}, tx_first {tx_first}");
            output.part(Part {
                name: "step",
                number: runs.len() + 1,
                words: words.clone(),
                ..Part::default()
            });
            let test = u32::try_from(runs.len() + 1).unwrap_or(u32::MAX);
            if output.is_stream() {
                let what = started(plan(urls, &step, &times, &places));
                output.event(&Event { test, what }, Timestamp::now());
            }
            let Some(ran) = undisturbed(forwarder, urls, &step, &times, stop, output)? else {
                break;
            };
            let disturbed = ran.is_disturbed(&step);
            let in_flight = ran.figures.primed;
            let mut record = record(urls, &step, &times, ran);
            record.label = Some(words.clone());
            let point = SaturationPoint {
                tx_first,
                in_flight,
                packets_per_second: record.summary.packets_per_second.unwrap_or(0.0),
                dropped: record.summary.lost.unwrap_or(0),
                disturbed,
                record: record.id.clone(),
            };
            let line = format!(
                "{words}: {} in flight, {}{}",
                format_count(in_flight),
                format_per_second(point.packets_per_second),
                if disturbed { ", disturbed" } else { "" }
            );
            match output.teller() {
                Some(_) => output.progress(&line),
                None => say(output, &line),
            }
            if output.is_stream() {
                let record = Box::new(record.clone());
                let what = What::Finished { record };
                output.event(&Event { test, what }, Timestamp::now());
            }
            walk.take(point);
            runs.push(record);
        }
        result.saturation.push(walk.conclude(cores));
        if stop.is_set() {
            break;
        }
    }
    Ok((runs, result))
}

/// Maximum number of tries of a disturbed step.
const TRIES: u32 = 3;

/// Runs a step, repeated while other load takes its processors: the least disturbed try counts.
/// `None` if it was interrupted.
fn undisturbed(
    forwarder: &mut Forwarder,
    urls: &[PortUrl],
    step: &Settings,
    times: &Times,
    stop: &Stop,
    output: &Output,
) -> Result<Option<Ran>, Failure> {
    let mut best: Option<Ran> = None;
    for _ in 0..TRIES {
        let mut shown = (output.teller()).map(|teller| Shown::new(urls, times.duration, teller));
        let ran = forward(forwarder, step, times, &stop.as_flag(), &mut |told| {
            if let Some(shown) = &mut shown {
                shown.take(&told);
            }
        })?;
        if let Some(error) = ran.trouble {
            return Err(Failure::from(MeasureError::Port(error)));
        }
        if ran.interrupted {
            return Ok(None);
        }
        if best
            .as_ref()
            .is_none_or(|best| ran.least_share() > best.least_share())
        {
            best = Some(ran);
        }
        if best.as_ref().is_some_and(|best| !best.is_disturbed(step)) {
            break;
        }
    }
    Ok(best)
}
