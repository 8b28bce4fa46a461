//! `--saturate`: how many packets must be in flight for the highest rate.

use std::time::Duration;

use jiff::Timestamp;
use linerate_host::stop::Stop;
use linerate_measure::MeasureError;
use linerate_measure::forward::saturate::Walk;
use linerate_measure::forward::{Forwarder, PortUrl, Ran, Settings, Times, record, run as forward};
use linerate_metric::event::Problem;
use linerate_metric::exit;
use linerate_metric::forward::{SaturationPoint, circulates};
use linerate_metric::record::{Record, new_id};
use linerate_metric::set::{RunSet, SET_SCHEMA, SetResult};
use linerate_metric::units::{format_count, format_per_second};

use super::args::ForwardArgs;
use super::say;
use crate::failure::Failure;
use crate::output::Output;

/// Packets of the step before must be gone: those on their way through another process come late.
const QUIET: Duration = Duration::from_millis(20);

/// Walks for 1 to `--cores` threads and prints the set; gives the exit code.
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
            format!("nothing circulates in mode {mode}: frames end there, or are made there"),
            "--saturate",
            "use a mode that hands frames on, like io or macswap",
        )));
    }
    let started = Timestamp::now();
    let times = Times {
        duration: Some(args.trial),
        interval: args.trial.max(Duration::from_millis(10)),
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
                1 => "1 stream keeps no more than 1 core busy: more cores are left out".to_owned(),
                _ => format!(
                    "{streams} streams keep no more than {streams} cores busy: more cores are left out"
                ),
            });
            break;
        }
        let mut walk = Walk::default();
        while let Some(tx_first) = walk.next_step().filter(|_| !stop.is_set()) {
            let step = Settings {
                cores,
                tx_first,
                flush: true,
                ..settings.clone()
            };
            let Some(ran) = undisturbed(forwarder, &step, &times, stop)? else {
                break;
            };
            let disturbed = ran.is_disturbed(&step);
            let in_flight = ran.figures.primed;
            let mut record = record(urls, &step, &times, ran);
            let plural = if cores == 1 { "" } else { "s" };
            record.label = Some(format!("{cores} core{plural}, tx_first {tx_first}"));
            let point = SaturationPoint {
                tx_first,
                in_flight,
                packets_per_second: record.summary.packets_per_second.unwrap_or(0.0),
                dropped: record.summary.lost.unwrap_or(0),
                disturbed,
                record: record.id.clone(),
            };
            say(
                output,
                &format!(
                    "{cores} core{plural}, tx_first {tx_first}: {} in flight, {}{}",
                    format_count(in_flight),
                    format_per_second(point.packets_per_second),
                    if disturbed { ", disturbed" } else { "" }
                ),
            );
            walk.take(point);
            runs.push(record);
        }
        result.saturation.push(walk.conclude(cores));
        if stop.is_set() {
            break;
        }
    }
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

/// Tries of a step that something else disturbs.
const TRIES: u32 = 3;

/// Makes a step, and again while something else runs on its processors: the try that had most of them counts.
/// None where somebody stopped it.
fn undisturbed(
    forwarder: &mut Forwarder,
    step: &Settings,
    times: &Times,
    stop: &Stop,
) -> Result<Option<Ran>, Failure> {
    let mut best: Option<Ran> = None;
    for _ in 0..TRIES {
        let ran = forward(forwarder, step, times, &stop.as_flag(), &mut |_| {})?;
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
