//! `linerate stack`: our user-space stack as a host on a port.

use std::collections::BTreeMap;
use std::time::Duration;

use linerate_record::device_timestamps::DeviceTimestamps;
use linerate_record::event::{ErrorReport, Event, EventKind};
use linerate_record::exit_codes;
use linerate_record::plan::{PerEnd, Plan, RunKind, TransportProtocol, WaitMode};
use linerate_record::stack::StackFacts;
use linerate_report::text;
use linerate_server::stack_host;
use linerate_server::stack_host::{ServiceHostEvent, ServiceHostOptions};

use super::measure::stop_on_signals;
use crate::args::StackHostArgs;
use crate::event_queue::EventSender;
use crate::failure::CommandFailure;
use crate::live;
use crate::output::CommandOutput;
use crate::plan::stack;
use crate::port_devices::PortDevices;
use crate::standard_streams::print_stdout;
use crate::ui_update::UiUpdate;

/// Default interval of the full-screen display.
const SCREEN_INTERVAL: Duration = Duration::from_millis(500);

/// Counters of lost packets: protocol, name, and loss point for display.
const LOSS_COUNTERS: &[(&str, &str, &str)] = &[
    ("link", "port_ring_full", "the port's receive ring"),
    ("link", "port_no_buffer", "the port, no buffer"),
    ("link", "port_too_long", "the port, too long"),
    ("link", "port_bad", "the port, no frames"),
    ("link", "port_out_dropped", "the port, on sending"),
    ("link", "out_no_buffer", "sending, no buffer"),
    ("link", "out_ring_full", "the port's transmit ring"),
    ("link", "out_answers_limited", "rate-limited replies"),
    ("link", "out_unresolved", "neighbour not resolved"),
    ("ip", "in_no_buffer", "TCP fragments, no buffer"),
    ("ip", "in_too_long", "TCP fragments, too long"),
    ("ip", "reassembly_timeouts", "reassembly, timeout"),
    ("ip", "reassembly_evicted", "reassembly, evicted"),
    ("ip", "reassembly_no_buffer", "reassembly, no buffer"),
    ("ip", "reassembly_too_long", "reassembly, too long"),
    ("udp", "receive_queue_full", "a UDP socket's queue"),
    ("udp", "no_buffer", "UDP, no buffer"),
    ("tcp", "listen_overflows", "a listener's queue"),
    ("tcp", "no_sockets", "TCP, no socket"),
];

/// Packets lost so far, by loss point.
type LostByPoint = BTreeMap<&'static str, u64>;

/// Runs the command and returns the exit code.
pub fn run(args: &StackHostArgs) -> u8 {
    let mut output =
        CommandOutput::for_server(&args.output, false).with_label(args.label.as_deref());
    run_host(args, &mut output).unwrap_or_else(|failure| {
        output.report_failure(&failure);
        failure.code
    })
}

fn run_host(args: &StackHostArgs, output: &mut CommandOutput) -> Result<u8, CommandFailure> {
    output.check_files()?;
    let full_screen = args.screen.is_enabled();
    live::check_terminal(full_screen)?;
    let mut plan = stack::plan_stack_host(&args.stack)?;
    plan.payload_timestamps = payload_timestamps(args)?;
    let options = ServiceHostOptions {
        plan,
        services: args.serve.clone(),
        allow: args.allow.clone(),
        duration: args.time,
        interval: match args.interval.is_zero() {
            true => full_screen.then_some(SCREEN_INTERVAL),
            false => Some(args.interval),
        },
    };
    let stop = stop_on_signals()?;
    let _devices = PortDevices::for_stack(args.stack.dev.as_ref(), &stop, output)?;
    let outcome = live::run_series(full_screen, "", &stop, output, |output| {
        let mut lost = LostByPoint::new();
        stack_host::run(
            &options,
            &stop.atomic(),
            &mut |update| match output.event_sender().cloned() {
                Some(screen) => show_event(update, &options, &mut lost, &screen, output),
                None => print_event(update, args, output),
            },
        )
    })?;
    let (record, failure) = outcome?;
    output.write_record(&record, &[])?;
    if let Some(error) = failure {
        let failure = CommandFailure::from(error);
        match output.is_json() {
            // The document is already printed.
            true => output.warn(&format!("error: {}", failure.problem)),
            false => output.report_failure(&failure),
        }
        return Ok(failure.code);
    }
    Ok(if record.interrupted {
        exit_codes::INTERRUPTED
    } else {
        exit_codes::OK
    })
}

/// Returns `--stamp-payload`, if a service supports it.
fn payload_timestamps(args: &StackHostArgs) -> Result<Option<DeviceTimestamps>, CommandFailure> {
    match args.stamp_payload {
        Some(stamps)
            if !args
                .serve
                .iter()
                .any(|spec| spec.kind.supports_timestamps()) =>
        {
            Err(CommandFailure::usage(ErrorReport::new(
                "no effect: only UDP responses of echo and sockperf carry timestamps",
                format!("--stamp-payload {stamps}"),
                "add --serve echo, or leave it out",
            )))
        }
        stamps => Ok(stamps),
    }
}

/// Prints an event.
fn print_event(update: ServiceHostEvent<'_>, args: &StackHostArgs, output: &mut CommandOutput) {
    let quiet = args.output.quiet;
    let is_text = !output.is_json() && !output.is_stream();
    match update {
        ServiceHostEvent::Ready(facts) => {
            let services: Vec<_> = args.serve.iter().map(ToString::to_string).collect();
            let ready = format!(
                "READY dev={} ip={} services={}",
                facts.device,
                facts.addresses.join(","),
                services.join(",")
            );
            match is_text {
                true => print_stdout(&ready),
                false => output.warn(&ready),
            }
            if args.output.verbose {
                output.report_progress(&startup_text(facts, output));
            }
        }
        ServiceHostEvent::Interval(interval) if output.is_stream() => {
            let interval = Box::new(interval.clone());
            emit_host_event(EventKind::StackInterval { interval }, output);
        }
        ServiceHostEvent::Interval(interval) if !quiet => {
            output.report_progress(&text::stack::describe_interval(interval))
        }
        ServiceHostEvent::Interval(_) => {}
        ServiceHostEvent::Test(event) => handle_test_event(&event, output),
        ServiceHostEvent::Warning(caveat) if output.is_stream() => {
            let caveat = caveat.clone();
            emit_host_event(EventKind::CaveatRaised { caveat }, output);
        }
        ServiceHostEvent::Warning(caveat) => output.warn(&format!("warning: {}", caveat.reason)),
    }
}

/// Emits an event of the host itself, outside of tests.
fn emit_host_event(what: EventKind, output: &mut CommandOutput) {
    output.print_event(
        &Event {
            test: 0,
            kind: what,
        },
        jiff::Timestamp::now(),
    );
}

/// Shows an event on the full-screen display.
fn show_event(
    update: ServiceHostEvent<'_>,
    options: &ServiceHostOptions,
    lost: &mut LostByPoint,
    screen: &EventSender,
    output: &CommandOutput,
) {
    match update {
        ServiceHostEvent::Ready(facts) => screen.send(Event {
            test: 1,
            kind: started_event(facts, options),
        }),
        ServiceHostEvent::Interval(interval) => {
            let count = |protocol: &str, name: &str| {
                let by_name = interval.counters.get(protocol);
                by_name
                    .and_then(|by_name| by_name.get(name))
                    .copied()
                    .unwrap_or(0)
            };
            screen.show(UiUpdate::Frames {
                start_ns: interval.start_ns,
                end_ns: interval.end_ns,
                count: count("link", "in_frames"),
            });
            for &(protocol, name, loss_point) in LOSS_COUNTERS {
                *lost.entry(loss_point).or_default() += count(protocol, name);
            }
            let lost_points = lost.iter();
            let lost_points =
                lost_points.map(|(loss_point, count)| ((*loss_point).to_owned(), *count));
            screen.show(UiUpdate::LossCounters(lost_points.collect()));
        }
        ServiceHostEvent::Test(Event { test, kind: what }) => match what {
            EventKind::Finished { record } => {
                output.store_record(&record);
                screen.show(UiUpdate::part_result(&format!("test {test}"), &record));
            }
            EventKind::Failed { problem } => {
                output.report_progress(&format!("test {test}: {problem}"))
            }
            EventKind::Refused { problem } => output.report_progress(&problem.to_string()),
            _ => {}
        },
        ServiceHostEvent::Warning(caveat) => output.warn(&format!("warning: {}", caveat.reason)),
    }
}

/// Returns the first event for the screen.
fn started_event(facts: &StackFacts, options: &ServiceHostOptions) -> EventKind {
    let services: Vec<_> = options.services.iter().map(ToString::to_string).collect();
    let name = format!(
        "{}, {}: {}",
        facts.device,
        facts.addresses.join(" "),
        services.join(", ")
    );
    let mut plan = Plan::new(RunKind::Stack, TransportProtocol::Udp, name);
    plan.duration_ns =
        (options.duration).map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    EventKind::Started {
        wait: PerEnd::same(WaitMode::Spin),
        cpu: plan.cpu.clone(),
        plan: Box::new(plan),
        wait_reason: None,
    }
}

/// Handles an event of a test of our server. The one document of `--json` is that of the host.
fn handle_test_event(event: &Event, output: &mut CommandOutput) {
    if !output.is_json() {
        return output.print_event(event, jiff::Timestamp::now());
    }
    match &event.kind {
        EventKind::Finished { record } => output.store_record(record),
        EventKind::Failed { problem } => output.warn(&format!("error: {problem}")),
        EventKind::Refused { problem } => output.warn(&format!("rejected: {problem}")),
        _ => {}
    }
}

/// Returns the configuration and memory of the stack, printed at the start.
fn startup_text(facts: &StackFacts, output: &CommandOutput) -> String {
    let style = output.style();
    format!(
        "{}\n\n{}\n",
        text::stack::render_configuration(facts, style),
        text::stack::render_memory(&facts.memory, style)
    )
}
