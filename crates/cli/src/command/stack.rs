//! `linerate stack`: our user-space stack as a host on a port.

use std::collections::BTreeMap;
use std::time::Duration;

use linerate_measure::netstack::service_host::{self, HostOptions, Told};
use linerate_metric::device_timestamps::DeviceStamps;
use linerate_metric::event::{Event, Problem, What};
use linerate_metric::exit;
use linerate_metric::plan::{Ends, Kind, Plan, Protocol, Wait};
use linerate_metric::stack::StackFacts;
use linerate_report::text::stack as words;

use super::measure::stop_on_signals;
use crate::args::StackHostArgs;
use crate::failure::Failure;
use crate::live;
use crate::output::{Output, print};
use crate::plan::stack;
use crate::port_devices::Nics;
use crate::printer::Teller;
use crate::ui_update::Scene;

/// Default interval of the full-screen display.
const SHOWN: Duration = Duration::from_millis(500);

/// Counters of lost packets: protocol, name, and loss point for display.
const LOSES: &[(&str, &str, &str)] = &[
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
type Lost = BTreeMap<&'static str, u64>;

/// Runs the command and returns the exit code.
pub fn run(args: &StackHostArgs) -> u8 {
    let mut output = Output::serving(&args.output, false).labelled(args.label.as_deref());
    serve(args, &mut output).unwrap_or_else(|failure| {
        output.failure(&failure);
        failure.code
    })
}

fn serve(args: &StackHostArgs, output: &mut Output) -> Result<u8, Failure> {
    output.check_file()?;
    let shown = args.screen.is_asked();
    live::check(shown)?;
    let mut plan = stack::host(&args.stack)?;
    plan.stamp_payload = stamps(args)?;
    let options = HostOptions {
        plan,
        services: args.serve.clone(),
        allow: args.allow.clone(),
        duration: args.time,
        interval: match args.interval.is_zero() {
            true => shown.then_some(SHOWN),
            false => Some(args.interval),
        },
    };
    let stop = stop_on_signals()?;
    let _nics = Nics::for_stack(args.stack.dev.as_ref(), &stop, output)?;
    let ran = live::series(shown, "", &stop, output, |output| {
        let mut lost = Lost::new();
        service_host::run(
            &options,
            &stop.as_flag(),
            &mut |told| match output.teller().cloned() {
                Some(screen) => show(told, &options, &mut lost, &screen, output),
                None => say(told, args, output),
            },
        )
    })?;
    let (record, failure) = ran?;
    output.record(&record, &[])?;
    if let Some(error) = failure {
        let failure = Failure::from(error);
        match output.is_json() {
            // The document is already printed.
            true => output.remark(&format!("error: {}", failure.problem)),
            false => output.failure(&failure),
        }
        return Ok(failure.code);
    }
    Ok(if record.interrupted {
        exit::INTERRUPTED
    } else {
        exit::OK
    })
}

/// Returns `--stamp-payload`, if a service supports it.
fn stamps(args: &StackHostArgs) -> Result<Option<DeviceStamps>, Failure> {
    match args.stamp_payload {
        Some(stamps) if !args.serve.iter().any(|spec| spec.kind.carries_times()) => {
            Err(Failure::usage(Problem::new(
                "no effect: only UDP responses of echo and sockperf carry timestamps",
                format!("--stamp-payload {stamps}"),
                "add --serve echo, or leave it out",
            )))
        }
        stamps => Ok(stamps),
    }
}

/// Prints an event.
fn say(told: Told<'_>, args: &StackHostArgs, output: &mut Output) {
    let quiet = args.output.quiet;
    let plain = !output.is_json() && !output.is_stream();
    match told {
        Told::Ready(facts) => {
            let services: Vec<_> = args.serve.iter().map(ToString::to_string).collect();
            let ready = format!(
                "READY dev={} ip={} services={}",
                facts.device,
                facts.addresses.join(","),
                services.join(",")
            );
            match plain {
                true => print(&ready),
                false => output.remark(&ready),
            }
            if !quiet {
                output.progress(&before(facts, output));
            }
        }
        Told::Interval(interval) if output.is_stream() => {
            let interval = Box::new(interval.clone());
            own(What::StackInterval { interval }, output);
        }
        Told::Interval(interval) if !quiet => output.progress(&words::interval(interval)),
        Told::Interval(_) => {}
        Told::Test(event) => test(&event, output),
        Told::Doubt(doubt) if output.is_stream() => {
            let doubt = doubt.clone();
            own(What::Doubted { doubt }, output);
        }
        Told::Doubt(doubt) => output.remark(&format!("warning: {}", doubt.why)),
    }
}

/// Emits an event of the host itself, outside of tests.
fn own(what: What, output: &mut Output) {
    output.event(&Event { test: 0, what }, jiff::Timestamp::now());
}

/// Shows an event on the full-screen display.
fn show(told: Told<'_>, options: &HostOptions, lost: &mut Lost, screen: &Teller, output: &Output) {
    match told {
        Told::Ready(facts) => screen.tell(Event {
            test: 1,
            what: started(facts, options),
        }),
        Told::Interval(interval) => {
            let count = |protocol: &str, name: &str| {
                let of = interval.counters.get(protocol);
                of.and_then(|of| of.get(name)).copied().unwrap_or(0)
            };
            screen.show(Scene::Frames {
                start_ns: interval.start_ns,
                end_ns: interval.end_ns,
                count: count("link", "in_frames"),
            });
            for &(protocol, name, place) in LOSES {
                *lost.entry(place).or_default() += count(protocol, name);
            }
            let places = lost.iter();
            let places = places.map(|(place, count)| ((*place).to_owned(), *count));
            screen.show(Scene::Places(places.collect()));
        }
        Told::Test(Event { test, what }) => match what {
            What::Finished { record } => {
                output.put_away(&record);
                screen.show(Scene::came_to(&format!("test {test}"), &record));
            }
            What::Failed { problem } => output.progress(&format!("test {test}: {problem}")),
            What::Refused { problem } => output.progress(&problem.to_string()),
            _ => {}
        },
        Told::Doubt(doubt) => output.remark(&format!("warning: {}", doubt.why)),
    }
}

/// Returns the first event for the screen.
fn started(facts: &StackFacts, options: &HostOptions) -> What {
    let services: Vec<_> = options.services.iter().map(ToString::to_string).collect();
    let name = format!(
        "{}, {}: {}",
        facts.device,
        facts.addresses.join(" "),
        services.join(", ")
    );
    let mut plan = Plan::new(Kind::Stack, Protocol::Udp, name);
    plan.duration_ns =
        (options.duration).map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    What::Started {
        wait: Ends::both(Wait::Spin),
        cpu: plan.cpu.clone(),
        plan: Box::new(plan),
        because: None,
    }
}

/// Handles an event of a test of our server. The one document of `--json` is that of the host.
fn test(event: &Event, output: &mut Output) {
    if !output.is_json() {
        return output.event(event, jiff::Timestamp::now());
    }
    match &event.what {
        What::Finished { record } => output.put_away(record),
        What::Failed { problem } => output.remark(&format!("error: {problem}")),
        What::Refused { problem } => output.remark(&format!("rejected: {problem}")),
        _ => {}
    }
}

/// Returns the configuration and memory of the stack, printed at the start.
fn before(facts: &StackFacts, output: &Output) -> String {
    let style = output.style();
    format!(
        "{}\n\n{}\n",
        words::configuration(facts, style),
        words::memory(&facts.memory, style)
    )
}
