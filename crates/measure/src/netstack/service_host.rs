//! A stack as a host with services, until it is stopped.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::Duration;

use jiff::Timestamp;
use linerate_dialect::amplification_guard::Network;
use linerate_host::snapshot;
use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::scheduling::Above;
use linerate_metric::event::Event;
use linerate_metric::facts::Role;
use linerate_metric::plan::{Direction, Ends, Kind, Plan, Protocol, Wait};
use linerate_metric::record::{Doubt, Record, Summary, new_id};
use linerate_metric::stack::{
    STACK_NAME, ServiceFigures, StackFacts, StackFigures, StackInterval, StackPlan,
};
use linerate_stack::Counters;

use super::services::ServiceSpec;
use super::{StackThread, open_stack, sessions, stack_facts, stack_warnings, thread_schedule};
use crate::error::MeasureError;
use crate::forward::no_peer;

/// Longest delay until Ctrl-C or a failed port is noticed.
const LOOK_UP: Duration = Duration::from_millis(50);

/// Interval of the check for preventable losses.
const DOUBTS_NS: Nanos = 1_000_000_000;

/// Largest number of intervals in a record.
const INTERVALS_KEPT: usize = 100_000;

/// Options of a host on a stack.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// Port, addresses and configuration.
    pub plan: StackPlan,
    pub services: Vec<ServiceSpec>,
    /// Addresses that may be sent UDP flows without address validation; and networks to whose hosts
    /// connections may be opened at their request.
    pub allow: Vec<Network>,
    /// Time to run; `None`: until stopped.
    pub duration: Option<Duration>,
    /// Time between two reports; `None`: no reports.
    pub interval: Option<Duration>,
}

/// Events of a host.
pub enum Told<'a> {
    /// The host can be reached.
    Ready(&'a StackFacts),
    /// An interval is over.
    Interval(&'a StackInterval),
    /// Event of a test of the linerate service.
    Test(Event),
    /// Preventable losses occurred for the first time.
    Doubt(&'a Doubt),
}

/// Counters of the stack and its services at one time.
struct Reading {
    at_ns: Nanos,
    counters: Counters,
    services: Vec<ServiceFigures>,
}

/// Runs until `stop` is set or the duration is over; returns the record, and the error that ended
/// it.
///
/// # Errors
/// When the host cannot be started.
pub fn run(
    options: &HostOptions,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(Told<'_>),
) -> Result<(Record, Option<MeasureError>), MeasureError> {
    let config = open_stack::config(&options.plan)?;
    let started = Timestamp::now();
    let (events, told) = mpsc::channel();
    let (front, reception, visitors) = sessions::open(&options.services, &options.allow, events);
    let thread = StackThread::start(&options.plan, options.services.clone(), front)?;
    std::thread::scope(|scope| {
        let _sessions =
            reception.map(|open| sessions::Sessions::start(scope, open, &thread, visitors));
        serve(options, &config, started, &thread, &told, stop, tell)
    })
}

/// Monitors the stack's thread until the end.
fn serve(
    options: &HostOptions,
    config: &linerate_stack::Config,
    started: Timestamp,
    thread: &StackThread,
    told: &mpsc::Receiver<Event>,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(Told<'_>),
) -> Result<(Record, Option<MeasureError>), MeasureError> {
    // Spinning real-time threads on all processors would keep this thread from running, and thus
    // from noticing Ctrl-C and the end of the duration.
    let _above = thread_schedule::real_time_priority(thread.facts()).and_then(Above::priority);
    tell(Told::Ready(thread.facts()));
    let gone = || {
        let died = std::io::Error::other("it ended early");
        MeasureError::system("the stack's thread", died)
    };
    let first = read(thread).ok_or_else(gone)?;
    let start_ns = first.at_ns;
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let ends_ns = options
        .duration
        .map(|time| start_ns.saturating_add(nanos(time)));
    let mut intervals = Vec::new();
    let mut last = first;
    let mut failure = None;
    let mut interrupted = false;
    let base = last.counters;
    let mut told_of: Vec<String> = Vec::new();
    let mut doubt_ns = start_ns;
    loop {
        told.try_iter().for_each(|event| tell(Told::Test(event)));
        let now = clock::now();
        if now >= doubt_ns {
            doubt_ns = now + DOUBTS_NS;
            let counters = thread.handle().look(|stack, _| stack.counters());
            let since = counters.map(|counters| counters.since(&base));
            for doubt in since.iter().flat_map(|since| doubts_of(thread, since)) {
                if !told_of.contains(&doubt.doubt) {
                    tell(Told::Doubt(&doubt));
                    told_of.push(doubt.doubt);
                }
            }
        }
        let stopped = stop.load(Relaxed);
        let over = stopped || ends_ns.is_some_and(|ends| now >= ends);
        let due = (options.interval).map(|time| last.at_ns.saturating_add(nanos(time)));
        if over || due.is_some_and(|due| now >= due) {
            let Some(reading) = read(thread) else {
                failure = Some(gone());
                break;
            };
            if options.interval.is_some() {
                let interval = StackInterval {
                    start_ns: last.at_ns - start_ns,
                    end_ns: reading.at_ns - start_ns,
                    counters: changed(&reading.counters.since(&last.counters)),
                };
                // The last interval is only reported if it is long enough to be meaningful.
                let long = interval.end_ns - interval.start_ns > 10_000_000;
                if long {
                    tell(Told::Interval(&interval));
                }
                if long && intervals.len() < INTERVALS_KEPT {
                    intervals.push(interval);
                }
            }
            last = reading;
        }
        if over {
            // Without a duration, a stop is the regular end.
            interrupted = stopped && ends_ns.is_some();
            break;
        }
        if let Some(error) = thread.take_failure() {
            failure = Some(error.into());
            break;
        }
        let until = due.unwrap_or(Nanos::MAX).min(ends_ns.unwrap_or(Nanos::MAX));
        clock::sleep_until(until.min(now + nanos(LOOK_UP)));
    }
    let mut stack = thread.facts().clone();
    stack.counters = stack_facts::counters(&last.counters.since(&base));
    let figures = StackFigures {
        duration_ns: last.at_ns - start_ns,
        services: last.services,
        intervals,
    };
    // Stopped early or by a failure: the figures are complete up to that time.
    let interrupted = interrupted || failure.is_some();
    let mut record = record(options, config, started, stack, figures, interrupted);
    if thread.is_alone() {
        record.validity.push(no_peer(&thread.port_name()));
    }
    Ok((record, failure))
}

fn read(thread: &StackThread) -> Option<Reading> {
    thread.handle().count(|stack, services| Reading {
        at_ns: clock::now(),
        counters: stack.counters(),
        services: services
            .map(|services| services.figures())
            .unwrap_or_default(),
    })
}

/// Returns the warnings from these counters.
fn doubts_of(thread: &StackThread, counters: &Counters) -> Vec<Doubt> {
    stack_warnings::of(&StackFacts {
        counters: stack_facts::counters(counters),
        ..thread.facts().clone()
    })
}

/// Returns the counters that are not zero.
fn changed(counters: &Counters) -> BTreeMap<String, BTreeMap<String, u64>> {
    let mut all = stack_facts::counters(counters);
    for of in all.values_mut() {
        of.retain(|_, count| *count > 0);
    }
    all.retain(|_, of| !of.is_empty());
    all
}

fn record(
    options: &HostOptions,
    config: &linerate_stack::Config,
    started: Timestamp,
    stack: StackFacts,
    figures: StackFigures,
    interrupted: bool,
) -> Record {
    let addresses = options.plan.addresses.join(" ");
    let mut plan = Plan::new(Kind::Stack, Protocol::Udp, addresses);
    plan.port = 0;
    plan.directions = vec![Direction::Receive];
    plan.duration_ns = (options.duration).map(|time| u64::try_from(time.as_nanos()).unwrap_or(0));
    plan.interval_ns = (options.interval).map(|time| u64::try_from(time.as_nanos()).unwrap_or(0));
    plan.payload_bytes = 0;
    plan.stack = Ends::both(STACK_NAME.to_owned());
    plan.near_wait = Some(match config.poll_interval {
        None => Wait::Spin,
        Some(time) => Wait::Interval {
            time_ns: u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
        },
    });
    plan.near_stack = Some(Box::new(StackPlan {
        configuration: stack_facts::rows(config),
        ..options.plan.clone()
    }));
    let mut host = snapshot::host();
    host.role = Some(Role::Server);
    let validity = stack_warnings::of(&stack);
    host.stack = Some(Box::new(stack));
    let services = figures.services.iter();
    let (received, sent) = services.fold((0, 0), |(received, sent), service| {
        (received + service.bytes_received, sent + service.bytes_sent)
    });
    Record {
        interrupted,
        hosts: vec![host],
        summary: Summary {
            duration_ns: Some(figures.duration_ns),
            bytes_received: Some(received),
            bytes_sent: Some(sent),
            ..Summary::default()
        },
        validity,
        stack: Some(Box::new(figures)),
        ..Record::new(new_id(started), started, plan)
    }
}
