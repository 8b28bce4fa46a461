//! `--saturate`: finds the number of packets in flight for the highest rate.

use std::time::Duration;

use jiff::Timestamp;
use linerate_forwarder::saturation::SaturationSweep;
use linerate_forwarder::{
    ForwardRun, ForwardSettings, Forwarder, RunTimes, plan, record, run as forward,
};
use linerate_host::stop_flag::StopFlag;
use linerate_port::{FrameRunError, PortUrl};
use linerate_record::event::{ErrorReport, Event, EventKind};
use linerate_record::exit_codes;
use linerate_record::forward::{SaturationPoint, circulates};
use linerate_record::record::{Record, new_id};
use linerate_record::run_set::{RunSet, SET_SCHEMA, SetResult};
use linerate_stats::units::{count_of, format_count, format_per_second};

use super::screen::ForwardEvents;
use super::{print_text, screen, started_event};
use crate::args::ForwardArgs;
use crate::failure::CommandFailure;
use crate::live;
use crate::output::CommandOutput;
use crate::ui_update::SeriesPart;

/// Time for packets of the previous step to leave: those in another process arrive late.
const QUIET_TIME: Duration = Duration::from_millis(20);

/// Runs the steps for 1 to `--cores` threads, prints the set and returns the exit code.
pub fn run(
    args: &ForwardArgs,
    urls: &[PortUrl],
    settings: &ForwardSettings,
    forwarder: &mut Forwarder,
    stop: &StopFlag,
    output: &mut CommandOutput,
) -> Result<u8, CommandFailure> {
    let mode = settings.mode.to_string();
    if !circulates(&mode) {
        return Err(CommandFailure::usage(ErrorReport::new(
            format!("no packets circulate in mode {mode}: it drops or generates frames"),
            "--saturate",
            "use a mode that forwards frames, like io or macswap",
        )));
    }
    let started = Timestamp::now();
    let title = format!("packets in flight for the highest rate, mode {mode}");
    let outcome = live::run_series(args.is_shown(), &title, stop, output, |output| {
        run_steps(args, urls, settings, forwarder, stop, output)
    })?;
    let (runs, result) = outcome?;
    if runs.is_empty() {
        return Err(CommandFailure::interrupted());
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
    output.write_set(&set, &[])?;
    Ok(if interrupted {
        exit_codes::INTERRUPTED
    } else {
        exit_codes::OK
    })
}

/// Runs the steps; returns their records and the result.
fn run_steps(
    args: &ForwardArgs,
    urls: &[PortUrl],
    settings: &ForwardSettings,
    forwarder: &mut Forwarder,
    stop: &StopFlag,
    output: &mut CommandOutput,
) -> Result<(Vec<Record>, SetResult), CommandFailure> {
    let interval = match output.event_sender() {
        Some(_) => args.trial.min(screen::SCREEN_INTERVAL),
        None => args.trial,
    };
    let times = RunTimes {
        duration: Some(args.trial),
        interval: interval.max(Duration::from_millis(10)),
        flush_quiet: QUIET_TIME,
    };
    let mut runs: Vec<Record> = Vec::new();
    let mut result = SetResult::default();
    for cores in 1..=args.cores {
        let streams = forwarder.routes(&ForwardSettings {
            cores,
            ..settings.clone()
        })?;
        let threads = streams.iter().map(|stream| stream.core + 1).max();
        if threads.is_some_and(|threads| threads < cores) {
            let stream_count = streams.len();
            result.notes.push(match stream_count {
                1 => "1 stream keeps only 1 core busy: more cores are not tried".to_owned(),
                _ => format!(
                    "{stream_count} streams keep only {stream_count} cores busy: more cores are not tried"
                ),
            });
            break;
        }
        let mut sweep = SaturationSweep::default();
        while let Some(tx_first) = sweep.next_bursts().filter(|_| !stop.is_set()) {
            let step = ForwardSettings {
                cores,
                tx_first,
                flush: true,
                ..settings.clone()
            };
            let step_name = format!("{}, tx_first {tx_first}", count_of(cores.into(), "core"));
            output.show_part(SeriesPart {
                name: "step",
                number: runs.len() + 1,
                settings: step_name.clone(),
                ..SeriesPart::default()
            });
            let test = u32::try_from(runs.len() + 1).unwrap_or(u32::MAX);
            if output.is_stream() {
                let what = started_event(plan(urls, &step, &times, &streams));
                output.print_event(&Event { test, kind: what }, Timestamp::now());
            }
            let Some(outcome) = run_undisturbed(forwarder, urls, &step, &times, stop, output)?
            else {
                break;
            };
            let disturbed = outcome.is_disturbed(&step);
            let in_flight = outcome.figures.primed;
            let mut record = record(urls, &step, &times, outcome);
            record.label = Some(step_name.clone());
            let point = SaturationPoint {
                tx_first,
                in_flight,
                packets_per_second: record.summary.packets_per_second.unwrap_or(0.0),
                dropped: record.summary.lost.unwrap_or(0),
                disturbed,
                record: record.id.clone(),
            };
            let line = format!(
                "{step_name}: {} in flight, {}{}",
                format_count(in_flight),
                format_per_second(point.packets_per_second),
                if disturbed { ", disturbed" } else { "" }
            );
            match output.event_sender() {
                Some(_) => output.report_progress(&line),
                None => print_text(output, &line),
            }
            if output.is_stream() {
                let record = Box::new(record.clone());
                let what = EventKind::Finished { record };
                output.print_event(&Event { test, kind: what }, Timestamp::now());
            }
            sweep.record(point);
            runs.push(record);
        }
        result.saturation.push(sweep.conclude(cores));
        if stop.is_set() {
            break;
        }
    }
    Ok((runs, result))
}

/// Maximum number of tries of a disturbed step.
const MAX_TRIES: u32 = 3;

/// Runs a step, repeated while other load takes its processors: the least disturbed try counts.
/// `None` if it was interrupted.
fn run_undisturbed(
    forwarder: &mut Forwarder,
    urls: &[PortUrl],
    step: &ForwardSettings,
    times: &RunTimes,
    stop: &StopFlag,
    output: &CommandOutput,
) -> Result<Option<ForwardRun>, CommandFailure> {
    let mut best: Option<ForwardRun> = None;
    for _ in 0..MAX_TRIES {
        let mut shown =
            (output.event_sender()).map(|events| ForwardEvents::new(urls, times.duration, events));
        let outcome = forward(forwarder, step, times, &stop.atomic(), &mut |update| {
            if let Some(shown) = &mut shown {
                shown.on_update(&update);
            }
        })?;
        if let Some(error) = outcome.port_error {
            return Err(CommandFailure::from(FrameRunError::Port(error)));
        }
        if outcome.interrupted {
            return Ok(None);
        }
        if best
            .as_ref()
            .is_none_or(|best| outcome.min_core_share() > best.min_core_share())
        {
            best = Some(outcome);
        }
        if best.as_ref().is_some_and(|best| !best.is_disturbed(step)) {
            break;
        }
    }
    Ok(best)
}
