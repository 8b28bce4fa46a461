//! A run of the forwarder for some time, and its record.

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

use super::engine::{Forwarder, Primed};
use super::port::PortTotals;
use super::settings::Settings;
use crate::MeasureError;

/// What all ports moved within a stretch of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// From here on, counted from the start of the run.
    pub start_ns: u64,
    /// To here.
    pub end_ns: u64,
    /// By port.
    pub ports: Vec<PortTotals>,
}

impl Reading {
    fn sum(&self, queues: impl Fn(&PortTotals) -> QueueTotals) -> QueueTotals {
        let all = self.ports.iter().map(queues);
        all.fold(QueueTotals::default(), QueueTotals::plus)
    }

    /// Received at all ports.
    #[must_use]
    pub fn received(&self) -> QueueTotals {
        self.sum(|port| port.receive)
    }

    /// Sent from all ports.
    #[must_use]
    pub fn sent(&self) -> QueueTotals {
        self.sum(|port| port.transmit)
    }

    /// The stretch as the record has it.
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

/// How long a run lasts and how often it is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Its length; none: until somebody stops it.
    pub duration: Option<Duration>,
    /// Length of an interval.
    pub interval: Duration,
    /// Nothing must have come for so long for receive queues to count as empty before the start.
    pub quiet: Duration,
}

/// What a run tells while it lasts.
#[derive(Debug)]
pub enum Told<'a> {
    /// Threads forward: who carries what.
    Started(&'a [StreamPlace]),
    /// First frames are in circulation: how many.
    Primed(Primed),
    /// An interval is over.
    Interval(&'a Reading),
}

/// What a run gave.
#[derive(Debug)]
pub struct Ran {
    /// When threads began to forward.
    pub started: Timestamp,
    /// How streams were dealt to threads, those that died included.
    pub places: Vec<StreamPlace>,
    /// All figures.
    pub figures: ForwardFigures,
    /// The series.
    pub readings: Vec<Reading>,
    /// Whether somebody stopped it before its time.
    pub interrupted: bool,
    /// Why a port stopped working, if one did.
    pub trouble: Option<PortError>,
    /// That ports, memory and threads sit on several NUMA nodes.
    pub numa: Option<Doubt>,
}

impl Ran {
    /// The least that a thread had of its processor.
    #[must_use]
    pub fn least_share(&self) -> f64 {
        let shares = self.figures.cores.iter().map(|core| core.cpu_share);
        shares.fold(1.0, f64::min)
    }

    /// Whether something else ran on the processors of threads that never sleep.
    #[must_use]
    pub fn is_disturbed(&self, settings: &Settings) -> bool {
        settings.idle == Idle::Spin && self.least_share() < WHOLE_CORE
    }
}

/// How often a run looks whether its ports are read to their end.
const LOOK: Duration = Duration::from_millis(100);
/// The same until it is known how many frames circulate, which a few milliseconds show.
const PRIMING: Duration = Duration::from_millis(5);

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Forwards until the time is over, `stop` is set, all ports are read to their end, or one fails.
///
/// # Errors
/// Why it could not start.
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
    // Threads may have moved much since they began.
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
            // Before the last look, or what threads still move would be in no interval.
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
            // Too short a rest says nothing by itself: it belongs to the interval before.
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
                unreachable!("it was started above, and nobody else stops it");
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

/// The record of a run.
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

/// The processor of each thread, where it was kept on one.
fn cores_of(places: &[StreamPlace]) -> Vec<Option<u32>> {
    let cores: BTreeMap<u32, Option<u32>> =
        places.iter().map(|place| (place.core, place.cpu)).collect();
    cores.into_values().collect()
}

/// The plan of a run whose streams are dealt to threads like this.
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
    // A sink sends nothing: what it received is what it handled.
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

/// What an emulated link lost is what it was asked for: it has a place of its own. What ports dropped they tell
/// by cause.
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

/// That nobody ever came to the other end of a port.
pub(crate) fn no_peer(port: &str) -> Doubt {
    Doubt::new(
        "no-peer",
        format!("nobody came to the other end of {port}: {NO_PEER_NEXT}"),
    )
}

/// What then helps.
pub(crate) const NO_PEER_NEXT: &str =
    "start the other process with the same name, one of the two with role=server";

/// That the process at the other end of a port went away: the figures are of the whole time all the same.
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
        times => format!(", {times} times in all"),
    };
    let came = match (first.until_ns, absences.last()?.until_ns) {
        (_, None) => "nobody has come since".to_owned(),
        (Some(first), _) => format!("somebody was there again at {}", time(first)),
        (None, Some(_)) => "somebody came later".to_owned(),
    };
    Some(Doubt::new(
        "peer-left",
        format!(
            "the process at the other end of {port} left {} after the start{times}, and {came}: figures are of \
             the whole {}, {} of which nobody was there",
            time(first.from_ns),
            time(duration_ns),
            time(gone)
        ),
    ))
}

/// Less of its core than this, and a spinning thread shared it with somebody.
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
                "a forwarding thread had its core for {:.0} % of the time only: something else ran \
                 there",
                least * 100.0
            ),
        ));
    }
    for port in ran
        .figures
        .ports
        .iter()
        // Of a port that was refused its trouble is told.
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
            // Other modes count other things.
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
                    "left 800 ms after the start, and nobody has come since",
                    "1.70 s of which",
                ],
            ),
            (
                &[(800, Some(900))],
                ["somebody was there again at 900 ms", "100 ms of which"],
            ),
            (
                &[(800, Some(900)), (1000, None)],
                [
                    "2 times in all, and nobody has come since",
                    "1.60 s of which",
                ],
            ),
            // Gone before the run, and back after it was over.
            (
                &[(0, Some(9000))],
                ["left 0 ns after the start", "2.50 s of which"],
            ),
        ] {
            let why = said(absences).unwrap();
            assert!(words.iter().all(|word| why.contains(word)), "{why}");
        }
    }
}
