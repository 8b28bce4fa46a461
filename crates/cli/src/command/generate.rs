//! `linerate generate`: sends frames at a rate and measures what arrives.

use std::sync::Arc;
use std::time::Duration;

use linerate_host::stop_flag::Stop;
use linerate_measure::MeasureError;
use linerate_measure::carrier;
use linerate_measure::generate::{
    Arrival, Capture, Ports, Ran, Settings, Told, What as Sent, plan, record, run as run_generator,
};
use linerate_metric::event::{Event, Problem, What};
use linerate_metric::exit;
use linerate_metric::plan::{Cpus, Ends, Wait};
use linerate_port::QueueTotals;

use super::generator_ports::Named;
use super::measure::stop_on_signals;
use crate::args::GenerateArgs;
use crate::failure::Failure;
use crate::live;
use crate::output::Output;
use crate::printer::Teller;
use crate::ui_update::Scene;

/// Default time of a run without time and count.
const TIME: Duration = Duration::from_secs(10);

/// Runs the command and returns the exit code.
pub fn run(args: &GenerateArgs) -> u8 {
    let mut output = Output::new(&args.output)
        .labelled(args.label.as_deref())
        .with_page(args.html.as_deref(), "linerate generate");
    let code = measure(args, &mut output).unwrap_or_else(|failure| {
        output.failure(&failure);
        failure.code
    });
    output.gated(code, args.fail_on_finding)
}

fn settings(args: &GenerateArgs, named: &Named) -> Result<Settings, Failure> {
    if args.time.is_some_and(|time| time.is_zero()) {
        return Err(Failure::usage(Problem::new(
            "a time of 0 sends nothing",
            "--time 0",
            "give a time above 0, or a number of frames (--count) without a time",
        )));
    }
    let what = match &args.pcap {
        Some(file) => Sent::Capture(Arc::new(Capture::read(file, args.recorded_times)?)),
        None => Sent::Template(args.frames.plan(args.size.as_deref())?),
    };
    Ok(Settings {
        what,
        load: args.pps.unwrap_or(args.rate),
        line_bps: named.line_bps(&args.ports),
        duration: args.time.or_else(|| args.count.is_none().then_some(TIME)),
        frames: args.count,
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
        ..Settings::default()
    })
}

fn measure(args: &GenerateArgs, output: &mut Output) -> Result<u8, Failure> {
    output.check_file()?;
    live::check(args.screen.is_asked())?;
    let named = Named::new(&args.ports, args.receive.as_ref(), args.no_receive)?;
    let settings = settings(args, &named)?;
    settings.check()?;
    let receives = !matches!(named.arrival, Arrival::Nowhere);
    let threads = settings.check_threads(receives);
    threads.map_err(|error| Failure::from(error).of_option("cpu"))?;
    // Before a device is changed, so that an early exit restores it.
    let stop = stop_on_signals()?;
    let _nics = named.nics(&stop, output)?;
    let mut ports = named.open()?;
    if let Some(port) = ports.without_carrier() {
        output.remark(&format!("warning: {}", carrier::warning(port)));
    }
    let (send, receive) = named.names();
    let names = (send.as_str(), receive.as_deref());
    let ran = live::while_told(args.screen.is_asked(), &stop, output, |teller| {
        go(&mut ports, names, &settings, &stop, teller)
    })??;
    let interrupted = ran.interrupted;
    let stopped = ran.trouble.is_some();
    let record = record(names, &settings, ran);
    let verdicts: Vec<_> = args
        .expect
        .iter()
        .map(|expectation| expectation.judge(&record.summary))
        .collect();
    output.record(&record, &verdicts)?;
    Ok(if interrupted {
        exit::INTERRUPTED
    } else if stopped {
        exit::FAILED
    } else if verdicts.iter().any(|verdict| !verdict.holds) {
        exit::GATE
    } else {
        exit::OK
    })
}

/// Runs the generator and sends its events.
fn go(
    ports: &mut Ports,
    names: (&str, Option<&str>),
    settings: &Settings,
    stop: &Stop,
    teller: &Teller,
) -> Result<Ran, MeasureError> {
    let mut number = 0;
    let (mut sent, mut received) = (QueueTotals::default(), QueueTotals::default());
    let tell = |what| teller.tell(Event { test: 1, what });
    run_generator(ports, settings, &stop.as_flag(), &mut |told| match told {
        Told::Started(facts) => tell(What::Started {
            plan: Box::new(plan(names, settings, facts)),
            wait: Ends::both(Wait::Spin),
            cpu: Ends::both(Cpus(facts.cpus.clone())),
            because: None,
        }),
        Told::Interval(reading) => {
            let interval = Box::new(reading.interval(number));
            number += 1;
            tell(What::Interval { interval });
            (sent, received) = (sent.plus(reading.sent), received.plus(reading.received));
            teller.show(Scene::drops([
                ("sending".to_owned(), sent),
                ("receiving".to_owned(), received),
            ]));
        }
    })
}
