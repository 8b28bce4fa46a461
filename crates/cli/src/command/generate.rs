//! `linerate generate`: sends frames at a rate and measures what arrives.

use std::sync::Arc;
use std::time::Duration;

use linerate_generator::{
    Capture, FrameInput, GeneratorEvent, GeneratorPorts, GeneratorRun, GeneratorSettings,
    ReceiveSide, plan, record, run as run_generator,
};
use linerate_host::stop_flag::StopFlag;
use linerate_port::caveats::no_carrier_warning;
use linerate_port::{FrameRunError, QueueTotals};
use linerate_record::event::{ErrorReport, Event, EventKind};
use linerate_record::exit_codes;
use linerate_record::plan::{CpuList, PerEnd, WaitMode};

use super::generator_ports::NamedPorts;
use super::measure::stop_on_signals;
use crate::args::GenerateArgs;
use crate::event_queue::EventSender;
use crate::failure::CommandFailure;
use crate::live;
use crate::output::CommandOutput;
use crate::ui_update::UiUpdate;

/// Default time of a run without time and count.
const DEFAULT_TIME: Duration = Duration::from_secs(10);

/// Runs the command and returns the exit code.
pub fn run(args: &GenerateArgs) -> u8 {
    let mut output = CommandOutput::new(&args.output)
        .with_label(args.label.as_deref())
        .with_report(args.html.as_deref(), "linerate generate");
    let code = measure(args, &mut output).unwrap_or_else(|failure| {
        output.report_failure(&failure);
        failure.code
    });
    output.gate_exit_code(code, args.fail_on_finding)
}

fn generator_settings(
    args: &GenerateArgs,
    ports_named: &NamedPorts,
) -> Result<GeneratorSettings, CommandFailure> {
    if args.time.is_some_and(|time| time.is_zero()) {
        return Err(CommandFailure::usage(ErrorReport::new(
            "a time of 0 sends nothing",
            "--time 0",
            "give a time above 0, or a number of frames (--count) without a time",
        )));
    }
    let content = match &args.pcap {
        Some(file) => FrameInput::Capture(Arc::new(Capture::read(file, args.recorded_times)?)),
        None => FrameInput::Template(args.frames.plan(args.size.as_deref())?),
    };
    Ok(GeneratorSettings {
        input: content,
        load: args.pps.unwrap_or(args.rate),
        line_bps: ports_named.line_bps(&args.ports),
        duration: args
            .time
            .or_else(|| args.count.is_none().then_some(DEFAULT_TIME)),
        max_frames: args.count,
        burst: args.burst,
        drain: args.drain,
        interval: Some(args.interval).filter(|time| !time.is_zero()),
        threads: args.ports.threads,
        cpus: args
            .ports
            .cpu
            .clone()
            .map(|cpus| cpus.0)
            .unwrap_or_default(),
        learn: args.ports.learn,
        ..GeneratorSettings::default()
    })
}

fn measure(args: &GenerateArgs, output: &mut CommandOutput) -> Result<u8, CommandFailure> {
    output.check_files()?;
    live::check_terminal(args.screen.is_enabled())?;
    let ports_named = NamedPorts::new(&args.ports, args.receive.as_ref(), args.no_receive)?;
    let settings = generator_settings(args, &ports_named)?;
    settings.check()?;
    let receives = !matches!(ports_named.arrival, ReceiveSide::Nowhere);
    let threads = settings.check_threads(receives);
    threads.map_err(|error| CommandFailure::from(error).with_variable("cpu"))?;
    // Before a device is changed, so that an early exit restores it.
    let stop = stop_on_signals()?;
    let _devices = ports_named.apply_device_settings(&stop, output)?;
    let mut ports = ports_named.open()?;
    if let Some(port) = ports.without_carrier() {
        output.warn(&format!("warning: {}", no_carrier_warning(port)));
    }
    let (send, receive) = ports_named.names();
    let names = (send.as_str(), receive.as_deref());
    let outcome = live::run_with_output(args.screen.is_enabled(), &stop, output, |events| {
        run_with_events(&mut ports, names, &settings, &stop, events)
    })??;
    let interrupted = outcome.interrupted;
    let port_stopped = outcome.port_error.is_some();
    let record = record(names, &settings, outcome);
    let verdicts: Vec<_> = args
        .expect
        .iter()
        .map(|expectation| expectation.evaluate(&record.summary))
        .collect();
    output.write_record(&record, &verdicts)?;
    Ok(if interrupted {
        exit_codes::INTERRUPTED
    } else if port_stopped {
        exit_codes::FAILED
    } else if verdicts.iter().any(|verdict| !verdict.holds) {
        exit_codes::GATE
    } else {
        exit_codes::OK
    })
}

/// Runs the generator and sends its events.
fn run_with_events(
    ports: &mut GeneratorPorts,
    names: (&str, Option<&str>),
    settings: &GeneratorSettings,
    stop: &StopFlag,
    events: &EventSender,
) -> Result<GeneratorRun, FrameRunError> {
    let mut number = 0;
    let (mut sent, mut received) = (QueueTotals::default(), QueueTotals::default());
    let emit = |content| {
        events.send(Event {
            test: 1,
            kind: content,
        })
    };
    run_generator(
        ports,
        settings,
        &stop.atomic(),
        &mut |update| match update {
            GeneratorEvent::Started(facts) => emit(EventKind::Started {
                plan: Box::new(plan(names, settings, facts)),
                wait: PerEnd::same(WaitMode::Spin),
                cpu: PerEnd::same(CpuList(facts.cpus.clone())),
                wait_reason: None,
            }),
            GeneratorEvent::Interval(reading) => {
                let interval = Box::new(reading.interval(number));
                number += 1;
                emit(EventKind::Interval { interval });
                (sent, received) = (sent.plus(reading.sent), received.plus(reading.received));
                events.show(UiUpdate::port_drops([
                    ("sending".to_owned(), sent),
                    ("receiving".to_owned(), received),
                ]));
            }
        },
    )
}
