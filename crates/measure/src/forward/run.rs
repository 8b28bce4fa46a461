//! Timed run of the forwarder, and its record.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use jiff::Timestamp;
use linerate_host::snapshot;
use linerate_host::sys::{clock, cpu};
use linerate_metric::facts::Role;
use linerate_metric::forward::{ForwardFigures, ForwardPlan, Idle, PeerAbsence, StreamPlace};
use linerate_metric::plan::{Direction, Kind, Plan, Protocol};
use linerate_metric::record::{CountedAt, Doubt, Interval, Loss, Record, Summary, new_id};
use linerate_metric::units::format_nanos;
use linerate_port::{PortError, PortUrl, QueueTotals};

use super::forwarder::{Forwarder, Primed};
use super::forwarder_port::PortTotals;
use super::settings::Settings;
use crate::MeasureError;

/// Totals of all ports over one interval of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Start, relative to the start of the run.
    pub start_ns: u64,
    /// End, relative to the start of the run.
    pub end_ns: u64,
    /// Totals by port.
    pub ports: Vec<PortTotals>,
}

impl Reading {
    fn sum(&self, queues: impl Fn(&PortTotals) -> QueueTotals) -> QueueTotals {
        let all = self.ports.iter().map(queues);
        all.fold(QueueTotals::default(), QueueTotals::plus)
    }

    /// Returns the sum of the frames received at all ports.
    #[must_use]
    pub fn received(&self) -> QueueTotals {
        self.sum(|port| port.receive)
    }

    /// Returns the sum of the frames sent from all ports.
    #[must_use]
    pub fn sent(&self) -> QueueTotals {
        self.sum(|port| port.transmit)
    }

    /// Returns the interval in the form of the record.
    #[must_use]
    pub fn interval(&self, number: u64) -> Interval {
        let (received, sent) = (self.received(), self.sent());
        Interval {
            number,
            start_ns: self.start_ns,
            end_ns: self.end_ns,
            direction: Direction::Receive,
            omitted: false,
            counted_at: CountedAt::Receiver,
            bytes: received.bytes,
            packets: Some(received.frames),
            calls: None,
            bytes_sent: Some(sent.bytes),
            packets_sent: Some(sent.frames),
            lost: Some(received.all_dropped() + sent.all_dropped()),
            retransmits: None,
            cwnd_bytes: None,
            tcp_rtt_ns: None,
            rtt_ns: None,
            tcp: None,
            sender_threads: None,
            receiver_threads: None,
            streams: Vec::new(),
        }
    }
}

/// Durations of a run.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Duration of the run; `None`: until it is stopped.
    pub duration: Option<Duration>,
    pub interval: Duration,
    /// Time without arrivals after which receive queues count as empty before the start.
    pub quiet: Duration,
}

/// Event of a run in progress.
#[derive(Debug)]
pub enum Told<'a> {
    /// The threads forward; lists the routes of the streams.
    Started(&'a [StreamPlace]),
    /// The first frames are in circulation.
    Primed(Primed),
    /// An interval has ended.
    Interval(&'a Reading),
}

/// Result of a run.
#[derive(Debug)]
pub struct Ran {
    /// Time at which the threads started to forward.
    pub started: Timestamp,
    /// Assignment of streams to threads, including threads that panicked.
    pub places: Vec<StreamPlace>,
    pub figures: ForwardFigures,
    /// Totals by interval.
    pub readings: Vec<Reading>,
    /// True if the run was stopped early.
    pub interrupted: bool,
    /// Error that stopped a port.
    pub trouble: Option<PortError>,
    /// Caveat about ports, memory and threads on different NUMA nodes.
    pub numa: Option<Doubt>,
}

impl Ran {
    /// Returns the smallest fraction of its processor that a thread received.
    #[must_use]
    pub fn least_share(&self) -> f64 {
        let shares = self.figures.cores.iter().map(|core| core.cpu_share);
        shares.fold(1.0, f64::min)
    }

    /// Returns whether other work ran on the processors of spinning threads.
    #[must_use]
    pub fn is_disturbed(&self, settings: &Settings) -> bool {
        settings.idle == Idle::Spin && self.least_share() < WHOLE_CORE
    }
}

/// Interval at which a run checks whether its ports have been read to their end.
const LOOK: Duration = Duration::from_millis(100);
/// That interval until the number of circulating frames is known, which takes a few milliseconds.
const PRIMING: Duration = Duration::from_millis(5);

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Forwards until the time has passed, `stop` is set, all ports have been read to their end, or a
/// port fails.
///
/// # Errors
/// Error that prevents the start.
pub fn run(
    forwarder: &mut Forwarder,
    settings: &Settings,
    times: &Times,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(Told<'_>),
) -> Result<Ran, MeasureError> {
    let places = forwarder.start(settings, times.quiet)?;
    let (started, began) = (Timestamp::now(), clock::now());
    tell(Told::Started(&places));
    let end = times.duration.map(|time| began.saturating_add(nanos(time)));
    let step = nanos(times.interval).max(1);
    let mut readings: Vec<Reading> = Vec::new();
    // Threads may have moved many frames since they started.
    let (mut before, mut from) = (forwarder.totals_at_start(), began);
    let mut last_before = before.clone();
    let mut next = began + step;
    let mut is_primed = false;
    loop {
        let now = clock::now();
        if !is_primed && let Some(primed) = forwarder.primed() {
            is_primed = true;
            tell(Told::Primed(primed));
        }
        forwarder.look();
        let is_over = end.is_some_and(|end| now >= end);
        let is_stopped = stop.load(Relaxed) || forwarder.has_ended() || forwarder.is_troubled();
        let mut outcome = None;
        if is_over || is_stopped {
            // Stop before the last reading: frames moved after it would belong to no interval.
            outcome = forwarder.stop();
        }
        if now >= next || is_over || is_stopped {
            forwarder.refresh();
            let totals = forwarder.totals();
            let at = clock::now();
            let ports = totals.iter().zip(&before);
            let reading = Reading {
                start_ns: from - began,
                end_ns: at - began,
                ports: ports.map(|(now, before)| now.since(*before)).collect(),
            };
            // A very short rest gives no useful rates: it is added to the interval before it.
            let is_rest = reading.end_ns - reading.start_ns < step / 10;
            match readings.last_mut().filter(|_| is_rest) {
                None => {
                    tell(Told::Interval(&reading));
                    readings.push(reading);
                    last_before = std::mem::replace(&mut before, totals);
                    from = at;
                }
                Some(last) if is_over || is_stopped => {
                    let ports = totals.iter().zip(&last_before);
                    last.ports = ports.map(|(now, before)| now.since(*before)).collect();
                    last.end_ns = reading.end_ns;
                }
                Some(_) => {}
            }
            while next <= at {
                next += step;
            }
        }
        if is_over || is_stopped {
            let Some(outcome) = outcome else {
                unreachable!("it was started above, and only this function stops it");
            };
            return Ok(Ran {
                started,
                places: outcome.places,
                figures: outcome.figures,
                numa: outcome.numa,
                readings,
                interrupted: stop.load(Relaxed) && !is_over,
                trouble: outcome.trouble,
            });
        }
        let look = if is_primed { LOOK } else { PRIMING };
        let wake = next.min(end.unwrap_or(u64::MAX)).min(now + nanos(look));
        clock::sleep_until(wake);
    }
}

/// Makes the record of a run.
#[must_use]
pub fn record(urls: &[PortUrl], settings: &Settings, times: &Times, ran: Ran) -> Record {
    let plan = plan(urls, settings, times, &ran.places);
    let mut host = snapshot::host();
    host.role = Some(Role::Client);
    Record {
        interrupted: ran.interrupted,
        hosts: vec![host],
        summary: summary(settings, &ran.figures),
        losses: losses(&ran.figures),
        intervals: (0..)
            .zip(&ran.readings)
            .map(|(number, reading)| reading.interval(number))
            .collect(),
        validity: doubts(settings, &ran),
        forward: Some(Box::new(ran.figures)),
        ..Record::new(new_id(ran.started), ran.started, plan)
    }
}

/// Returns the processor of each thread, if it is pinned.
fn cores_of(places: &[StreamPlace]) -> Vec<Option<u32>> {
    let cores: BTreeMap<u32, Option<u32>> =
        places.iter().map(|place| (place.core, place.cpu)).collect();
    cores.into_values().collect()
}

/// Returns the plan of a run with these stream routes.
#[must_use]
pub fn plan(urls: &[PortUrl], settings: &Settings, times: &Times, places: &[StreamPlace]) -> Plan {
    let names: Vec<String> = urls.iter().map(ToString::to_string).collect();
    let mut plan = Plan::new(Kind::Forward, Protocol::Udp, names.join(" "));
    plan.port = 0;
    plan.directions = Vec::new();
    plan.streams = u32::try_from(places.len()).unwrap_or(u32::MAX);
    plan.duration_ns = times.duration.map(nanos);
    plan.interval_ns = Some(nanos(times.interval));
    plan.payload_bytes = settings.frame.bytes.into();
    plan.stack = linerate_metric::plan::Ends::both("port".to_owned());
    plan.forward = Some(Box::new(forward_plan(names, settings, &cores_of(places))));
    plan
}

fn forward_plan(names: Vec<String>, settings: &Settings, cores: &[Option<u32>]) -> ForwardPlan {
    ForwardPlan {
        ports: names,
        mode: settings.mode.to_string(),
        cores: u32::try_from(cores.len()).unwrap_or(u32::MAX),
        cpus: cores.iter().copied().flatten().collect(),
        topology: settings.topology,
        burst: u32::try_from(settings.burst).unwrap_or(u32::MAX),
        tx_first: settings.tx_first,
        frame_bytes: settings.frame.bytes.into(),
        idle: settings.idle,
        flush: settings.flush,
        retries: settings.retry.map(|retry| retry.times),
        seed: settings.seed,
    }
}

fn summary(settings: &Settings, figures: &ForwardFigures) -> Summary {
    let ports = || figures.ports.iter();
    let received: u64 = ports().map(|port| port.receive.packets).sum();
    let sent: u64 = ports().map(|port| port.transmit.packets).sum();
    // `rxonly` sends nothing: it handles what it receives.
    let handled = match settings.mode.name() {
        "rxonly" => received,
        _ => sent.saturating_sub(figures.primed),
    };
    let seconds = figures.duration_ns as f64 / 1e9;
    Summary {
        duration_ns: Some(figures.duration_ns),
        packets_per_second: (seconds > 0.0).then(|| handled as f64 / seconds),
        packets_received: Some(received),
        packets_sent: Some(sent),
        bytes_received: Some(ports().map(|port| port.receive.bytes).sum()),
        bytes_sent: Some(ports().map(|port| port.transmit.bytes).sum()),
        lost: Some(
            ports()
                .map(|port| port.receive.dropped + port.transmit.dropped)
                .sum::<u64>()
                + figures.lost_by_links(),
        ),
        ..Summary::default()
    }
}

/// Returns the losses of emulated links, which are intended and have a loss point of their own.
/// Ports record their drops by cause.
fn losses(figures: &ForwardFigures) -> Vec<Loss> {
    let packets = figures.lost_by_links();
    let on_links = (packets > 0).then(|| Loss {
        direction: Direction::Receive,
        place: "emulated-link".to_owned(),
        packets,
        exact: true,
        at_least: None,
        at_most: None,
    });
    on_links.into_iter().collect()
}

/// Makes the caveat about a port whose peer has never connected.
pub(crate) fn no_peer(port: &str) -> Doubt {
    Doubt::new(
        "no-peer",
        format!("no peer connected to the other end of {port}: {NO_PEER_NEXT}"),
    )
}

/// Remedy for a port without a peer.
pub(crate) const NO_PEER_NEXT: &str =
    "start the other process with the same name, one of the two with role=server";

/// Makes the caveat about a peer that left during a run. The figures of such a run cover its full
/// time.
pub(crate) fn peer_left(port: &str, absences: &[PeerAbsence], duration_ns: u64) -> Option<Doubt> {
    let first = absences.first()?;
    let time = |ns: u64| format_nanos(ns as f64);
    let gone: u64 = (absences.iter())
        .map(|absence| {
            let until = absence.until_ns.unwrap_or(duration_ns).min(duration_ns);
            until.saturating_sub(absence.from_ns)
        })
        .sum();
    let times = match absences.len() {
        1 => String::new(),
        times => format!(" ({times} times in total)"),
    };
    let came = match (first.until_ns, absences.last()?.until_ns) {
        (_, None) => "no peer has reconnected".to_owned(),
        (Some(first), _) => format!("a peer reconnected at {}", time(first)),
        (None, Some(_)) => "a peer connected later".to_owned(),
    };
    Some(Doubt::new(
        "peer-left",
        format!(
            "the peer of {port} disconnected {} after the start{times}, and {came}: figures cover the full {}, \
             including {} without a peer",
            time(first.from_ns),
            time(duration_ns),
            time(gone)
        ),
    ))
}

/// Fraction of its core below which a spinning thread shared the core with other work.
pub(crate) const WHOLE_CORE: f64 = 0.95;

fn doubts(settings: &Settings, ran: &Ran) -> Vec<Doubt> {
    let mut doubts = Vec::new();
    let threads = cores_of(&ran.places).len();
    let usable = cpu::usable().map_or(0, |usable| usable.len());
    if threads > usable && usable > 0 {
        doubts.push(Doubt::new(
            "more-threads-than-cores",
            format!("{threads} threads shared {usable} processors: they waited for each other"),
        ));
    }
    let least = ran.least_share();
    if ran.is_disturbed(settings) && threads <= usable {
        doubts.push(Doubt::new(
            "core-disturbed",
            format!(
                "a forwarding thread had its core for {:.0} % of the time only: other work ran \
                 there",
                least * 100.0
            ),
        ));
    }
    for port in ran
        .figures
        .ports
        .iter()
        // The error of a rejected port is reported instead.
        .filter(|port| port.joined == Some(false) && ran.trouble.is_none())
    {
        doubts.push(no_peer(&port.name));
    }
    for port in &ran.figures.ports {
        doubts.extend(peer_left(
            &port.name,
            &port.absences,
            ran.figures.duration_ns,
        ));
        doubts.extend((port.carrier == Some(false)).then(|| crate::carrier::doubt(&port.name)));
    }
    doubts.extend(ran.numa.clone());
    if let Some(trouble) = &ran.trouble {
        doubts.push(Doubt::new("port-stopped", trouble.to_string()));
    }
    doubts
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_metric::forward::{ForwardPort, ForwardStream};

    #[test]
    fn what_a_link_lost_is_lost_and_has_its_place() {
        let stream = |counts: &[(&str, u64)]| ForwardStream {
            counts: (counts.iter())
                .map(|&(name, count)| (name.to_owned(), count))
                .collect(),
            ..ForwardStream::default()
        };
        let mut port = ForwardPort::default();
        port.transmit.dropped = 3;
        let mut figures = ForwardFigures {
            ports: vec![port],
            // Counts of other modes are no losses.
            streams: vec![stream(&[("bad-ip-checksum", 9)])],
            ..ForwardFigures::default()
        };
        let lost = |figures: &ForwardFigures| summary(&Settings::default(), figures).lost;
        assert_eq!((lost(&figures), losses(&figures)), (Some(3), Vec::new()));
        figures.streams = vec![
            stream(&[("lost", 20), ("queue-full", 0), ("corrupted", 7)]),
            stream(&[("lost", 1), ("queue-full", 4)]),
        ];
        assert_eq!(lost(&figures), Some(28));
        let [link] = &losses(&figures)[..] else {
            panic!("one place");
        };
        assert_eq!(
            (&*link.place, link.packets, link.exact),
            ("emulated-link", 25, true)
        );
    }

    #[test]
    fn a_peer_that_left_is_told_with_its_times() {
        let said = |absences: &[(u64, Option<u64>)]| {
            let absences = absences.iter().map(|&(from, until)| PeerAbsence {
                from_ns: from * 1_000_000,
                until_ns: until.map(|until| until * 1_000_000),
            });
            let absences: Vec<_> = absences.collect();
            peer_left("shm:x", &absences, 2_500_000_000).map(|doubt| doubt.why)
        };
        assert_eq!(said(&[]), None);
        for (absences, words) in [
            (
                &[(800, None)][..],
                [
                    "disconnected 800 ms after the start, and no peer has reconnected",
                    "1.70 s without a peer",
                ],
            ),
            (
                &[(800, Some(900))],
                ["a peer reconnected at 900 ms", "100 ms without a peer"],
            ),
            (
                &[(800, Some(900)), (1000, None)],
                [
                    "(2 times in total), and no peer has reconnected",
                    "1.60 s without a peer",
                ],
            ),
            // Disconnected before the run, and reconnected after it.
            (
                &[(0, Some(9000))],
                ["disconnected 0 ns after the start", "2.50 s without a peer"],
            ),
        ] {
            let why = said(absences).unwrap();
            assert!(words.iter().all(|word| why.contains(word)), "{why}");
        }
    }
}
