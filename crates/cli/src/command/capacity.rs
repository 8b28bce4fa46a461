//! `linerate capacity`: the RFC 2544 tests of a device between two ports.

use std::time::Duration;

use jiff::Timestamp;
use linerate_generator::capacity::{
    CapacityResults, SuiteOptions, SuiteTest, run as measure_capacity,
};
use linerate_generator::{FrameInput, GeneratorSettings};
use linerate_packet::template::{FrameSizes, MIN_FRAME_WITH_FCS, TemplateError, fitted_size};
use linerate_port::FrameRunError;
use linerate_record::capacity::{Capacity, CapacityTrial};
use linerate_record::event::{ErrorReport, Event, EventKind};
use linerate_record::exit_codes;
use linerate_record::generate::TemplatePlan;
use linerate_record::ids::CaveatId;
use linerate_record::record::new_id;
use linerate_record::run_set::{RunSet, SET_SCHEMA, SetResult};
use linerate_report::text;
use linerate_stats::units::count_of;

use super::generator_ports::NamedPorts;
use super::measure::stop_on_signals;
use crate::args::CapacityArgs;
use crate::failure::CommandFailure;
use crate::output::CommandOutput;
use crate::{args, live};

/// Ratio of the time of deciding trials to that of the first ones.
const FIRST_TRIAL_DIVISOR: u32 = 20;

/// Formats a time that is known to a minute: `40 s`, `12 min`, `1.5 h`.
fn format_rough_time(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 90.0 => format!("{seconds:.0} s"),
        seconds if seconds < 5400.0 => format!("{:.0} min", seconds / 60.0),
        seconds => format!("{:.1} h", seconds / 3600.0),
    }
}

/// Runs the command and returns the exit code.
pub fn run(args: &CapacityArgs) -> u8 {
    let mut output = CommandOutput::new(&args.output)
        .with_label(args.label.as_deref())
        .with_report(args.html.as_deref(), "linerate capacity");
    let code = measure(args, &mut output).unwrap_or_else(|failure| {
        output.report_failure(&failure);
        failure.code
    });
    output.gate_exit_code(code, args.fail_on_finding)
}

/// Default sizes: those of RFC 2544 (section 9.1), and a mix of them.
const DEFAULT_SIZES: [&str; 8] = ["64", "128", "256", "512", "1024", "1280", "1518", "imix"];

/// Returns the default sizes: that of the template, else all of RFC 2544, raised to the minimum for
/// the headers; and a note if sizes were raised.
fn default_sizes(plan: &TemplatePlan) -> Result<(Vec<String>, Option<String>), TemplateError> {
    if let Some(size) = &plan.size {
        return Ok((vec![size.clone()], None));
    }
    let min_bytes = fitted_size(plan)?;
    if min_bytes <= MIN_FRAME_WITH_FCS {
        return Ok((DEFAULT_SIZES.map(str::to_owned).to_vec(), None));
    }
    let mut sizes: Vec<String> = DEFAULT_SIZES
        .iter()
        .map(|size| match size.parse::<u16>() {
            Ok(bytes) => bytes.max(min_bytes).to_string(),
            Err(_) => FrameSizes::imix_with_min(min_bytes),
        })
        .collect();
    sizes.dedup();
    let note = format!(
        "frames of {MIN_FRAME_WITH_FCS} B are too short for these headers, a number and a time: the minimum of {min_bytes} B \
         replaces them, in the mix too (--sizes sets other sizes)"
    );
    Ok((sizes, Some(note)))
}

fn capacity_options(
    args: &CapacityArgs,
    sizes: &[String],
    line_bps: Option<u64>,
) -> Result<SuiteOptions, CommandFailure> {
    let sizes: Result<Vec<(String, f64)>, TemplateError> = sizes
        .iter()
        .map(|size| {
            Ok((
                size.clone(),
                FrameSizes::parse(size, args.frames.seed.unwrap_or(1))?.mean(),
            ))
        })
        .collect();
    let mut goals = args.loss.clone();
    goals.sort_by(f64::total_cmp);
    goals.dedup();
    if args.trial.is_zero() {
        return Err(CommandFailure::usage(ErrorReport::new(
            "a trial needs a time above 0",
            "--trial",
            "use 60s, as RFC 2544 requires, or 1s for a quick test",
        )));
    }
    let first = args.first_trial.unwrap_or(args.trial / FIRST_TRIAL_DIVISOR);
    let tests = args.tests.iter().map(|test| match test {
        args::Rfc2544Test::Throughput => SuiteTest::Throughput,
        args::Rfc2544Test::Latency => SuiteTest::Latency,
        args::Rfc2544Test::FrameLoss => SuiteTest::FrameLoss,
        args::Rfc2544Test::BackToBack => SuiteTest::BackToBack,
    });
    Ok(SuiteOptions {
        sizes: sizes.map_err(FrameRunError::from)?,
        tests: tests.collect(),
        loss_goals: goals,
        resolution: args.resolution,
        trial_s: args.trial.as_secs_f64(),
        first_trial_s: first
            .max(Duration::from_millis(1))
            .min(args.trial)
            .as_secs_f64(),
        latency_loads: args.latency_at.clone(),
        max_trials: args.trials,
        tries: args.tries,
        burst_searches: args.burst_searches,
        line_bps,
    })
}

fn measure(args: &CapacityArgs, output: &mut CommandOutput) -> Result<u8, CommandFailure> {
    output.check_files()?;
    let full_screen = args.screen.is_enabled();
    live::check_terminal(full_screen)?;
    let ports_named = NamedPorts::new(&args.ports, None, false)?;
    let line_bps = ports_named.line_bps(&args.ports);
    let plan = args.frames.plan(None)?;
    let (sizes, note) = match &args.sizes[..] {
        [] => default_sizes(&plan).map_err(FrameRunError::from)?,
        requested => (requested.to_vec(), None),
    };
    let options = capacity_options(args, &sizes, line_bps)?;
    let base = GeneratorSettings {
        input: FrameInput::Template(plan.clone()),
        line_bps,
        drain: args.drain,
        threads: args.ports.threads,
        cpus: args
            .ports
            .cpu
            .clone()
            .map(|cpus| cpus.0)
            .unwrap_or_default(),
        learn: args.ports.learn,
        ..GeneratorSettings::default()
    };
    let threads = base.check_threads(true);
    threads.map_err(|error| CommandFailure::from(error).with_variable("cpu"))?;
    // Before opening, because that truncates the file of a port that writes one.
    for (size, _) in &options.sizes {
        let plan = TemplatePlan {
            size: Some(size.clone()),
            ..plan.clone()
        };
        let sized = GeneratorSettings {
            input: FrameInput::Template(plan),
            ..base.clone()
        };
        sized.check_template()?;
    }
    // Before a device is changed, so that an early exit restores it.
    let stop = stop_on_signals()?;
    let _devices = ports_named.apply_device_settings(&stop, output)?;
    let mut ports = ports_named.open()?;
    if let Some(note) = &note {
        output.report_status(&format!("note: {note}"));
    }
    let (least, usual) = options.expected_time_s(args.drain.as_secs_f64());
    output.report_status(&format!(
        "{}, trials of up to {} s and {} s after each: about {} to {}",
        count_of(options.sizes.len() as u64, "size"),
        args.trial.as_secs_f64(),
        args.drain.as_secs_f64(),
        format_rough_time(least),
        format_rough_time(usual),
    ));
    let (send, receive) = ports_named.names();
    let started = Timestamp::now();
    if output.is_stream() {
        let event_kind = started_event(&send, receive.as_deref(), &base);
        output.print_event(
            &Event {
                test: 1,
                kind: event_kind,
            },
            Timestamp::now(),
        );
    }
    let mut report_trial = |trial: &CapacityTrial| {
        if output.is_stream() {
            let trial = Box::new(trial.clone());
            let event_kind = EventKind::CapacityTrial { trial };
            output.print_event(
                &Event {
                    test: 1,
                    kind: event_kind,
                },
                Timestamp::now(),
            );
        } else {
            output.report_progress(&text::describe_capacity_trial(trial));
        }
    };
    let names = (send.as_str(), receive.as_deref());
    let flag = stop.atomic();
    let measured = match full_screen {
        true => live::run_with_output(true, &stop, output, |events| {
            let emit = |event_kind| {
                events.send(Event {
                    test: 1,
                    kind: event_kind,
                })
            };
            emit(started_event(&send, receive.as_deref(), &base));
            measure_capacity(&mut ports, names, options, &base, &flag, &mut |trial| {
                let trial = Box::new(trial.clone());
                emit(EventKind::CapacityTrial { trial });
            })
        })?,
        false => measure_capacity(&mut ports, names, options, &base, &flag, &mut report_trial),
    }?;
    let (interrupted, failed) = (measured.interrupted, measured.failure.is_some());
    let port_stopped = measured
        .caveats
        .iter()
        .any(|caveat| caveat.id == CaveatId::PortStopped);
    let mut measured = measured;
    let failure = measured.failure.take().map(CommandFailure::from);
    let mut set = set_of(
        args,
        measured,
        (&send, receive.as_deref()),
        line_bps,
        started,
    );
    set.result.notes.splice(0..0, note);
    output.write_set(&set, &[])?;
    if let Some(failure) = failure {
        output.warn(&format!("error: {}", failure.problem));
        return Ok(failure.code);
    }
    Ok(match (interrupted, failed || port_stopped) {
        (true, _) => exit_codes::INTERRUPTED,
        (false, true) => exit_codes::FAILED,
        (false, false) => exit_codes::OK,
    })
}

/// Returns the first event for a stream or a screen.
fn started_event(send: &str, receive: Option<&str>, base: &GeneratorSettings) -> EventKind {
    use linerate_record::plan::{CpuList, PerEnd, Plan, RunKind, TransportProtocol, WaitMode};
    let names = receive.map_or_else(|| send.to_owned(), |to| format!("{send} to {to}"));
    let mut plan = Plan::new(RunKind::Generate, TransportProtocol::Udp, names);
    // The number of trials is unknown in advance.
    plan.duration_ns = None;
    plan.port = 0;
    plan.stack = PerEnd::same("port".to_owned());
    EventKind::Started {
        wait: PerEnd::same(WaitMode::Spin),
        cpu: PerEnd::same(CpuList(base.cpus.clone())),
        plan: Box::new(plan),
        wait_reason: None,
    }
}

fn set_of(
    args: &CapacityArgs,
    measured: CapacityResults,
    names: (&str, Option<&str>),
    line_bps: Option<u64>,
    started: Timestamp,
) -> RunSet {
    let notes = measured.caveats.iter();
    let notes = notes.map(|caveat| format!("{} [{}]", caveat.reason, caveat.id));
    RunSet {
        schema: SET_SCHEMA.to_owned(),
        id: new_id(started),
        kind: "capacity".to_owned(),
        started,
        interrupted: measured.interrupted,
        result: SetResult {
            capacity: Some(Box::new(Capacity {
                send: names.0.to_owned(),
                receive: names.1.unwrap_or(names.0).to_owned(),
                trial_ns: u64::try_from(args.trial.as_nanos()).unwrap_or(u64::MAX),
                resolution: args.resolution,
                line_bps,
                sizes: measured.sizes,
            })),
            notes: notes.collect(),
            ..SetResult::default()
        },
        runs: measured.records,
    }
}

#[cfg(test)]
mod tests {
    use linerate_record::generate::VlanPlan;

    use super::*;

    #[test]
    fn default_sizes_fit_the_headers() {
        let (sizes, note) = default_sizes(&TemplatePlan::default()).unwrap();
        assert_eq!(sizes, DEFAULT_SIZES);
        assert_eq!(note, None);
        // A mix of the user's own comes from a template file, because a list of sizes uses commas
        // itself.
        let plan = TemplatePlan {
            size: Some("64:7,594:4".to_owned()),
            ..TemplatePlan::default()
        };
        let (sizes, note) = default_sizes(&plan).unwrap();
        assert_eq!((sizes.join(" ").as_str(), note), ("64:7,594:4", None));
        let tag = VlanPlan {
            id: "1".to_owned(),
            ..VlanPlan::default()
        };
        let plan = TemplatePlan {
            ipv6: Some(Default::default()),
            tcp: Some(Default::default()),
            vlan: vec![tag; 11],
            ..TemplatePlan::default()
        };
        // Headers of 14 + 44 + 40 + 20 B, tag of 10 B, FCS of 4 B.
        let (sizes, note) = default_sizes(&plan).unwrap();
        let expected = "132 256 512 1024 1280 1518 132:7,594:4,1518:1";
        assert_eq!(sizes.join(" "), expected);
        assert!(note.unwrap().contains("minimum of 132 B"));
    }
}
