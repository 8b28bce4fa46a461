//! `linerate stack`: our own stack as a host on a port.

use std::collections::BTreeMap;
use std::time::Duration;

use linerate_measure::stack::host::{self, HostOptions, Told};
use linerate_metric::device_stamps::DeviceStamps;
use linerate_metric::event::{Event, Problem, What};
use linerate_metric::exit;
use linerate_metric::plan::{Ends, Kind, Plan, Protocol, Wait};
use linerate_metric::stack::StackFacts;
use linerate_report::text::stack as words;

use super::measure::stop_on_signals;
use crate::args::StackHostArgs;
use crate::failure::Failure;
use crate::live;
use crate::nic::Nics;
use crate::output::{Output, print};
use crate::plan::stack;
use crate::printer::Teller;
use crate::scene::Scene;

/// Interval of the screen where nobody asked for another.
const SHOWN: Duration = Duration::from_millis(500);

/// Counters of packets that are lost: protocol, name, and the place for people.
const LOSES: &[(&str, &str, &str)] = &[
    ("link", "port_ring_full", "the port's receive ring"),
    ("link", "port_no_buffer", "the port, no buffer"),
    ("link", "port_too_long", "the port, too long"),
    ("link", "port_bad", "the port, no frames"),
    ("link", "port_out_dropped", "the port, on sending"),
    ("link", "out_no_buffer", "sending, no buffer"),
    ("link", "out_ring_full", "the port's transmit ring"),
    ("link", "out_answers_limited", "answers, beyond their share"),
    ("link", "out_unresolved", "waiting for a neighbour"),
    ("ip", "in_no_buffer", "TCP in pieces, no buffer"),
    ("ip", "in_too_long", "TCP in pieces, too long"),
    ("ip", "reassembly_timeouts", "reassembly, time over"),
    ("ip", "reassembly_evicted", "reassembly, for newer ones"),
    ("ip", "reassembly_no_buffer", "reassembly, no buffer"),
    ("ip", "reassembly_too_long", "reassembly, too long"),
    ("udp", "receive_queue_full", "a UDP socket's queue"),
    ("udp", "no_buffer", "UDP, no buffer"),
    ("tcp", "listen_overflows", "a listener's queue"),
    ("tcp", "no_sockets", "TCP, no socket"),
];

/// Packets lost so far, by place.
type Lost = BTreeMap<&'static str, u64>;

/// Runs it; gives the exit code.
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
        host::run(
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
            // The document is out already.
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

/// Which times go into answers, where any of them can carry some.
fn stamps(args: &StackHostArgs) -> Result<Option<DeviceStamps>, Failure> {
    match args.stamp_payload {
        Some(stamps) if !args.serve.iter().any(|spec| spec.kind.carries_times()) => {
            Err(Failure::usage(Problem::new(
                "it has no effect: only answers of echo and sockperf over UDP carry times",
                format!("--stamp-payload {stamps}"),
                "add --serve echo, or leave it out",
            )))
        }
        stamps => Ok(stamps),
    }
}

/// Prints what happens.
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

/// What happens to the host itself, and to no test of it.
fn own(what: What, output: &mut Output) {
    output.event(&Event { test: 0, what }, jiff::Timestamp::now());
}

/// What a host is told while it runs, on a screen.
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

/// What the screen is told first.
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

/// What happens to a test of our own server. The one document of `--json` is the host's.
fn test(event: &Event, output: &mut Output) {
    if !output.is_json() {
        return output.event(event, jiff::Timestamp::now());
    }
    match &event.what {
        What::Finished { record } => output.put_away(record),
        What::Failed { problem } => output.remark(&format!("error: {problem}")),
        What::Refused { problem } => output.remark(&format!("refused: {problem}")),
        _ => {}
    }
}

/// What it is, before anything happens: its configuration, and what that takes.
fn before(facts: &StackFacts, output: &Output) -> String {
    let style = output.style();
    format!(
        "{}\n\n{}\n",
        words::configuration(facts, style),
        words::memory(&facts.memory, style)
    )
}
