//! `linerate stack`: our user-space stack as a host that answers ARP and ping, and runs the
//! services of [`stack_services`](crate::stack_services) until it is stopped.

mod sessions;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::time::Duration;

use jiff::Timestamp;
use linerate_host::snapshot;
use linerate_port::caveats::no_peer_caveat;
use linerate_protocol::amplification_guard::IpNetwork;
use linerate_record::event::Event;
use linerate_record::facts::Role;
use linerate_record::ids::{CaveatId, StoredId};
use linerate_record::plan::{Direction, PerEnd, Plan, RunKind, TransportProtocol, WaitMode};
use linerate_record::record::{Caveat, Record, Summary, new_id};
use linerate_record::stack::{
    STACK_NAME, ServiceFigures, StackFacts, StackFigures, StackInterval, StackPlan,
};
use linerate_session::error::SessionError;
use linerate_stack::Counters;
use linerate_sys::clock;
use linerate_sys::clock::Nanos;
use linerate_sys::scheduling::PriorityBoost;
use linerate_transport::stack_thread::{
    StackThread, open_stack, stack_caveats, stack_facts, thread_schedule,
};

use crate::stack_services as services;
use crate::stack_services::ServiceSpec;

/// Longest delay until Ctrl-C or a failed port is noticed.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Interval of the check for preventable losses.
const WARNING_INTERVAL_NS: Nanos = 1_000_000_000;

/// Largest number of intervals in a record.
const MAX_INTERVALS: usize = 100_000;

/// Options of a host on a stack.
#[derive(Clone, Debug)]
pub struct ServiceHostOptions {
    /// Port, addresses and configuration.
    pub plan: StackPlan,
    pub services: Vec<ServiceSpec>,
    /// Addresses that may be sent UDP flows without address validation; and networks to whose hosts
    /// connections may be opened at their request.
    pub allow: Vec<IpNetwork>,
    /// Time to run; `None`: until stopped.
    pub duration: Option<Duration>,
    /// Time between two reports; `None`: no reports.
    pub interval: Option<Duration>,
}

/// Events of a host.
pub enum ServiceHostEvent<'a> {
    /// The host can be reached.
    Ready(&'a StackFacts),
    /// An interval is over.
    Interval(&'a StackInterval),
    /// Event of a test of the linerate service.
    Test(Event),
    /// Preventable losses occurred for the first time.
    Warning(&'a Caveat),
}

/// Counters of the stack and its services at one time.
struct StackReading {
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
    options: &ServiceHostOptions,
    stop: &AtomicBool,
    emit: &mut dyn FnMut(ServiceHostEvent<'_>),
) -> Result<(Record, Option<SessionError>), SessionError> {
    let config = open_stack::read_config(&options.plan)?;
    let started = Timestamp::now();
    let (events, test_events) = mpsc::channel();
    let (context, linerate_service, connections) =
        sessions::prepare(&options.services, &options.allow, events);
    let thread = StackThread::start(
        &options.plan,
        services::opener(options.services.clone(), context),
    )?;
    std::thread::scope(|scope| {
        let _sessions = linerate_service.map(|prepared| {
            sessions::ServiceSessions::start(scope, prepared, &thread, connections)
        });
        monitor(options, &config, started, &thread, &test_events, stop, emit)
    })
}

/// Monitors the stack's thread until the end.
fn monitor(
    options: &ServiceHostOptions,
    config: &linerate_stack::StackConfig,
    started: Timestamp,
    thread: &StackThread,
    test_events: &mpsc::Receiver<Event>,
    stop: &AtomicBool,
    emit: &mut dyn FnMut(ServiceHostEvent<'_>),
) -> Result<(Record, Option<SessionError>), SessionError> {
    // Spinning real-time threads on all processors would keep this thread from running, and thus
    // from noticing Ctrl-C and the end of the duration.
    let _priority_boost =
        thread_schedule::real_time_priority(thread.facts()).and_then(PriorityBoost::above);
    emit(ServiceHostEvent::Ready(thread.facts()));
    let thread_ended = || {
        let end_error = std::io::Error::other("it ended early");
        SessionError::system("the stack's thread", end_error)
    };
    let first_reading = take_reading(thread).ok_or_else(thread_ended)?;
    let start_ns = first_reading.at_ns;
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let end_ns = options
        .duration
        .map(|time| start_ns.saturating_add(nanos(time)));
    let mut intervals = Vec::new();
    let mut last_reading = first_reading;
    let mut failure = None;
    let mut interrupted = false;
    let base = last_reading.counters;
    let mut reported: Vec<StoredId<CaveatId>> = Vec::new();
    let mut next_warning_ns = start_ns;
    loop {
        test_events
            .try_iter()
            .for_each(|event| emit(ServiceHostEvent::Test(event)));
        let now = clock::now();
        if now >= next_warning_ns {
            next_warning_ns = now + WARNING_INTERVAL_NS;
            let counters = thread.handle().with_stack(|stack, _| stack.counters());
            let grown = counters.map(|counters| counters.since(&base));
            for warning in grown.iter().flat_map(|grown| warnings_of(thread, grown)) {
                if !reported.contains(&warning.id) {
                    emit(ServiceHostEvent::Warning(&warning));
                    reported.push(warning.id);
                }
            }
        }
        let stopped = stop.load(Relaxed);
        let is_over = stopped || end_ns.is_some_and(|limit_ns| now >= limit_ns);
        let next_interval_ns =
            (options.interval).map(|time| last_reading.at_ns.saturating_add(nanos(time)));
        if is_over || next_interval_ns.is_some_and(|next_interval_ns| now >= next_interval_ns) {
            let Some(reading) = take_reading(thread) else {
                failure = Some(thread_ended());
                break;
            };
            if options.interval.is_some() {
                let interval = StackInterval {
                    start_ns: last_reading.at_ns - start_ns,
                    end_ns: reading.at_ns - start_ns,
                    counters: nonzero_counters(&reading.counters.since(&last_reading.counters)),
                };
                // The last interval is only reported if it is long enough to be meaningful.
                let is_long = interval.end_ns - interval.start_ns > 10_000_000;
                if is_long {
                    emit(ServiceHostEvent::Interval(&interval));
                }
                if is_long && intervals.len() < MAX_INTERVALS {
                    intervals.push(interval);
                }
            }
            last_reading = reading;
        }
        if is_over {
            // Without a duration, a stop is the regular end.
            interrupted = stopped && end_ns.is_some();
            break;
        }
        if let Some(error) = thread.take_failure() {
            failure = Some(error.into());
            break;
        }
        let until = next_interval_ns
            .unwrap_or(Nanos::MAX)
            .min(end_ns.unwrap_or(Nanos::MAX));
        clock::sleep_until(until.min(now + nanos(STOP_POLL_INTERVAL)));
    }
    let mut stack = thread.facts().clone();
    stack.counters = stack_facts::counter_map(&last_reading.counters.since(&base));
    let figures = StackFigures {
        duration_ns: last_reading.at_ns - start_ns,
        services: last_reading.services,
        intervals,
    };
    // Stopped early or by a failure: the figures are complete up to that time.
    let interrupted = interrupted || failure.is_some();
    let mut record = build_record(options, config, started, stack, figures, interrupted);
    if thread.never_had_peer() {
        record.validity.push(no_peer_caveat(&thread.port_name()));
    }
    Ok((record, failure))
}

fn take_reading(thread: &StackThread) -> Option<StackReading> {
    thread
        .handle()
        .with_fresh_counters(|stack, services| StackReading {
            at_ns: clock::now(),
            counters: stack.counters(),
            services: services::downcast(services)
                .map(|services| services.figures())
                .unwrap_or_default(),
        })
}

/// Returns the warnings from these counters.
fn warnings_of(thread: &StackThread, counters: &Counters) -> Vec<Caveat> {
    stack_caveats::stack_warnings(&StackFacts {
        counters: stack_facts::counter_map(counters),
        ..thread.facts().clone()
    })
}

/// Returns the counters that are not zero.
fn nonzero_counters(counters: &Counters) -> BTreeMap<String, BTreeMap<String, u64>> {
    let mut all = stack_facts::counter_map(counters);
    for names in all.values_mut() {
        names.retain(|_, count| *count > 0);
    }
    all.retain(|_, names| !names.is_empty());
    all
}

fn build_record(
    options: &ServiceHostOptions,
    config: &linerate_stack::StackConfig,
    started: Timestamp,
    stack: StackFacts,
    figures: StackFigures,
    interrupted: bool,
) -> Record {
    let addresses = options.plan.addresses.join(" ");
    let mut plan = Plan::new(RunKind::Stack, TransportProtocol::Udp, addresses);
    plan.port = 0;
    plan.directions = vec![Direction::Receive];
    plan.duration_ns = (options.duration).map(|time| u64::try_from(time.as_nanos()).unwrap_or(0));
    plan.interval_ns = (options.interval).map(|time| u64::try_from(time.as_nanos()).unwrap_or(0));
    plan.payload_bytes = 0;
    plan.stack = PerEnd::same(STACK_NAME.to_owned());
    plan.client_wait = Some(match config.poll_interval {
        None => WaitMode::Spin,
        Some(time) => WaitMode::Interval {
            time_ns: u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
        },
    });
    plan.client_stack = Some(Box::new(StackPlan {
        configuration: stack_facts::configuration(config),
        ..options.plan.clone()
    }));
    let mut host = snapshot::read_host();
    host.role = Some(Role::Server);
    let validity = stack_caveats::stack_warnings(&stack);
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
