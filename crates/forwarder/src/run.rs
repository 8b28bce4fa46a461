//! Timed run of the forwarder, and its record.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use jiff::Timestamp;
use linerate_host::snapshot;
use linerate_port::caveats::peer_outage_caveat;
use linerate_port::{PortError, PortUrl, QueueTotals};
use linerate_record::facts::Role;
use linerate_record::forward::{ForwardFigures, ForwardPlan, IdleStrategy, StreamRoute};
use linerate_record::ids::{CaveatId, LossPoint};
use linerate_record::plan::{Direction, Plan, RunKind, TransportProtocol};
use linerate_record::record::{Caveat, FlowEnd, Interval, PacketLoss, Record, Summary, new_id};
use linerate_record::throttling::CpuThrottling;
use linerate_sys::cpu::MIN_SPINNING_SHARE;
use linerate_sys::{clock, cpu};

use super::forwarder::{Forwarder, PrimedFrames};
use super::forwarder_port::PortTotals;
use super::settings::ForwardSettings;
use linerate_port::FrameRunError;
use linerate_port::caveats::no_peer_caveat;

/// Totals of all ports over one interval of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardInterval {
    /// Start, relative to the start of the run.
    pub start_ns: u64,
    /// End, relative to the start of the run.
    pub end_ns: u64,
    /// Totals by port.
    pub ports: Vec<PortTotals>,
}

impl ForwardInterval {
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
            counted_at: FlowEnd::Receiver,
            bytes: received.bytes,
            packets: Some(received.frames),
            calls: None,
            bytes_sent: Some(sent.bytes),
            packets_sent: Some(sent.frames),
            lost: Some(received.total_drops() + sent.total_drops()),
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
pub struct RunTimes {
    /// Duration of the run; `None`: until it is stopped.
    pub duration: Option<Duration>,
    pub interval: Duration,
    /// Time without arrivals after which receive queues count as empty before the start.
    pub flush_quiet: Duration,
}

/// Event of a run in progress.
#[derive(Debug)]
pub enum ForwardEvent<'a> {
    /// The threads forward; lists the routes of the streams.
    Started(&'a [StreamRoute]),
    /// The first frames are in circulation.
    Primed(PrimedFrames),
    /// An interval has ended.
    Interval(&'a ForwardInterval),
}

/// Result of a run.
#[derive(Debug)]
pub struct ForwardRun {
    /// Time at which the threads started to forward.
    pub started: Timestamp,
    /// Assignment of streams to threads, including threads that panicked.
    pub routes: Vec<StreamRoute>,
    pub figures: ForwardFigures,
    /// Totals by interval.
    pub intervals: Vec<ForwardInterval>,
    /// True if the run was stopped early.
    pub interrupted: bool,
    /// Error that stopped a port.
    pub port_error: Option<PortError>,
    /// Caveat about ports, memory and threads on different NUMA nodes.
    pub numa_caveat: Option<Caveat>,
}

impl ForwardRun {
    /// Returns the smallest fraction of its processor that a thread received.
    #[must_use]
    pub fn min_core_share(&self) -> f64 {
        let shares = self.figures.cores.iter().map(|core| core.cpu_share);
        shares.fold(1.0, f64::min)
    }

    /// Returns whether other work ran on the processors of spinning threads.
    #[must_use]
    pub fn is_disturbed(&self, settings: &ForwardSettings) -> bool {
        settings.idle == IdleStrategy::Spin && self.min_core_share() < MIN_SPINNING_SHARE
    }
}

/// Interval at which a run checks whether its ports have been read to their end.
const END_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// That interval until the number of circulating frames is known, which takes a few milliseconds.
const PRIMING_POLL_INTERVAL: Duration = Duration::from_millis(5);

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
    settings: &ForwardSettings,
    times: &RunTimes,
    stop: &AtomicBool,
    on_event: &mut dyn FnMut(ForwardEvent<'_>),
) -> Result<ForwardRun, FrameRunError> {
    let routes = forwarder.start(settings, times.flush_quiet)?;
    let (started, started_ns) = (Timestamp::now(), clock::now());
    on_event(ForwardEvent::Started(&routes));
    let end_ns = times
        .duration
        .map(|time| started_ns.saturating_add(nanos(time)));
    let interval_ns = nanos(times.interval).max(1);
    let mut intervals: Vec<ForwardInterval> = Vec::new();
    // Threads may have moved many frames since they started.
    let (mut last_totals, mut interval_start) = (forwarder.totals_at_start(), started_ns);
    let mut totals_before_last = last_totals.clone();
    let mut next_reading = started_ns + interval_ns;
    let mut is_primed = false;
    loop {
        let now = clock::now();
        if !is_primed && let Some(primed) = forwarder.primed() {
            is_primed = true;
            on_event(ForwardEvent::Primed(primed));
        }
        forwarder.poll_background();
        let is_over = end_ns.is_some_and(|end_ns| now >= end_ns);
        let is_stopped = stop.load(Relaxed) || forwarder.has_ended() || forwarder.has_port_error();
        let mut results = None;
        if is_over || is_stopped {
            // Stop before the last reading: frames moved after it would belong to no interval.
            results = forwarder.stop();
        }
        if now >= next_reading || is_over || is_stopped {
            forwarder.refresh();
            let totals = forwarder.totals();
            let now_ns = clock::now();
            let ports = totals.iter().zip(&last_totals);
            let interval_totals = ForwardInterval {
                start_ns: interval_start - started_ns,
                end_ns: now_ns - started_ns,
                ports: ports
                    .map(|(now, last_totals)| now.since(*last_totals))
                    .collect(),
            };
            // A very short rest gives no useful rates: it is added to the interval before it.
            let is_short_rest =
                interval_totals.end_ns - interval_totals.start_ns < interval_ns / 10;
            match intervals.last_mut().filter(|_| is_short_rest) {
                None => {
                    on_event(ForwardEvent::Interval(&interval_totals));
                    intervals.push(interval_totals);
                    totals_before_last = std::mem::replace(&mut last_totals, totals);
                    interval_start = now_ns;
                }
                Some(last) if is_over || is_stopped => {
                    let ports = totals.iter().zip(&totals_before_last);
                    last.ports = ports
                        .map(|(now, last_totals)| now.since(*last_totals))
                        .collect();
                    last.end_ns = interval_totals.end_ns;
                }
                Some(_) => {}
            }
            while next_reading <= now_ns {
                next_reading += interval_ns;
            }
        }
        if is_over || is_stopped {
            let Some(results) = results else {
                unreachable!("it was started above, and only this function stops it");
            };
            return Ok(ForwardRun {
                started,
                routes: results.routes,
                figures: results.figures,
                numa_caveat: results.numa_caveat,
                intervals,
                interrupted: stop.load(Relaxed) && !is_over,
                port_error: results.port_error,
            });
        }
        let poll_interval = if is_primed {
            END_POLL_INTERVAL
        } else {
            PRIMING_POLL_INTERVAL
        };
        let wake_at = next_reading
            .min(end_ns.unwrap_or(u64::MAX))
            .min(now + nanos(poll_interval));
        clock::sleep_until(wake_at);
    }
}

/// Makes the record of a run.
#[must_use]
pub fn record(
    urls: &[PortUrl],
    settings: &ForwardSettings,
    times: &RunTimes,
    run_result: ForwardRun,
) -> Record {
    let plan = plan(urls, settings, times, &run_result.routes);
    let mut host = snapshot::read_host();
    host.role = Some(Role::Client);
    Record {
        interrupted: run_result.interrupted,
        hosts: vec![host],
        summary: summary(settings, &run_result.figures),
        losses: losses(&run_result.figures),
        intervals: (0..)
            .zip(&run_result.intervals)
            .map(|(number, reading)| reading.interval(number))
            .collect(),
        validity: caveats(settings, &run_result),
        forward: Some(Box::new(run_result.figures)),
        ..Record::new(new_id(run_result.started), run_result.started, plan)
    }
}

/// Returns the processor of each thread, if it is pinned.
fn thread_cpus(routes: &[StreamRoute]) -> Vec<Option<u32>> {
    let cores: BTreeMap<u32, Option<u32>> =
        routes.iter().map(|route| (route.core, route.cpu)).collect();
    cores.into_values().collect()
}

/// Returns the plan of a run with these stream routes.
#[must_use]
pub fn plan(
    urls: &[PortUrl],
    settings: &ForwardSettings,
    times: &RunTimes,
    routes: &[StreamRoute],
) -> Plan {
    let names: Vec<String> = urls.iter().map(ToString::to_string).collect();
    let mut plan = Plan::new(RunKind::Forward, TransportProtocol::Udp, names.join(" "));
    plan.port = 0;
    plan.directions = Vec::new();
    plan.streams = u32::try_from(routes.len()).unwrap_or(u32::MAX);
    plan.duration_ns = times.duration.map(nanos);
    plan.interval_ns = Some(nanos(times.interval));
    plan.payload_bytes = settings.mode_settings.frame.bytes.into();
    plan.stack = linerate_record::plan::PerEnd::same("port".to_owned());
    plan.forward = Some(Box::new(forward_plan(
        names,
        settings,
        &thread_cpus(routes),
    )));
    plan
}

fn forward_plan(
    names: Vec<String>,
    settings: &ForwardSettings,
    cores: &[Option<u32>],
) -> ForwardPlan {
    ForwardPlan {
        ports: names,
        mode: settings.mode.to_string(),
        cores: u32::try_from(cores.len()).unwrap_or(u32::MAX),
        cpus: cores.iter().copied().flatten().collect(),
        topology: settings.topology,
        burst: u32::try_from(settings.burst).unwrap_or(u32::MAX),
        tx_first: settings.tx_first,
        frame_bytes: settings.mode_settings.frame.bytes.into(),
        idle: settings.idle,
        flush: settings.flush,
        retries: settings.retry.map(|retry| retry.times),
        seed: settings.mode_settings.seed,
    }
}

fn summary(settings: &ForwardSettings, figures: &ForwardFigures) -> Summary {
    let ports = || figures.ports.iter();
    let received: u64 = ports().map(|port| port.receive.packets).sum();
    let sent: u64 = ports().map(|port| port.transmit.packets).sum();
    // `rxonly` sends nothing: it handles what it receives.
    let forwarded = match settings.mode.name() {
        "rxonly" => received,
        _ => sent.saturating_sub(figures.primed),
    };
    let seconds = figures.duration_ns as f64 / 1e9;
    Summary {
        duration_ns: Some(figures.duration_ns),
        packets_per_second: (seconds > 0.0).then(|| forwarded as f64 / seconds),
        packets_received: Some(received),
        packets_sent: Some(sent),
        bytes_received: Some(ports().map(|port| port.receive.bytes).sum()),
        bytes_sent: Some(ports().map(|port| port.transmit.bytes).sum()),
        lost: Some(
            ports()
                .map(|port| port.receive.dropped + port.transmit.dropped)
                .sum::<u64>()
                + figures.link_losses(),
        ),
        ..Summary::default()
    }
}

/// Returns the losses of emulated links, which are intended and have a loss point of their own.
/// Ports record their drops by cause.
fn losses(figures: &ForwardFigures) -> Vec<PacketLoss> {
    let packets = figures.link_losses();
    let on_links = (packets > 0).then(|| PacketLoss {
        direction: Direction::Receive,
        place: LossPoint::EmulatedLink.into(),
        packets,
        exact: true,
        at_least: None,
        at_most: None,
    });
    on_links.into_iter().collect()
}

fn caveats(settings: &ForwardSettings, run_result: &ForwardRun) -> Vec<Caveat> {
    let mut caveats = Vec::new();
    let threads = thread_cpus(&run_result.routes).len();
    let usable = cpu::list_usable().map_or(0, |usable| usable.len());
    if threads > usable && usable > 0 {
        caveats.push(Caveat::new(
            CaveatId::MoreThreadsThanCores,
            format!("{threads} threads shared {usable} processors: they waited for each other"),
        ));
    }
    let min_share = run_result.min_core_share();
    if run_result.is_disturbed(settings) && threads <= usable {
        caveats.push(Caveat::new(
            CaveatId::CoreDisturbed,
            format!(
                "the forwarding thread ran for {:.0} % of the time; {}",
                min_share * 100.0,
                CpuThrottling::lost_time_reason(run_result.figures.throttling.as_ref())
            ),
        ));
    }
    for port in run_result
        .figures
        .ports
        .iter()
        // The error of a rejected port is reported instead.
        .filter(|port| port.peer_seen == Some(false) && run_result.port_error.is_none())
    {
        caveats.push(no_peer_caveat(&port.name));
    }
    for port in &run_result.figures.ports {
        caveats.extend(peer_outage_caveat(
            &port.name,
            &port.peer_outages,
            run_result.figures.duration_ns,
        ));
        caveats.extend(
            (port.carrier == Some(false))
                .then(|| linerate_port::caveats::no_carrier_caveat(&port.name)),
        );
    }
    caveats.extend(run_result.numa_caveat.clone());
    if let Some(port_error) = &run_result.port_error {
        caveats.push(Caveat::new(CaveatId::PortStopped, port_error.to_string()));
    }
    caveats
}

#[cfg(test)]
mod tests {
    use linerate_record::forward::{ForwardPort, ForwardStream, PeerOutage};

    use super::*;

    #[test]
    fn link_losses_have_a_loss_point() {
        let stream = |counts: &[(&str, u64)]| ForwardStream {
            mode_counters: (counts.iter())
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
        let lost = |figures: &ForwardFigures| summary(&ForwardSettings::default(), figures).lost;
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
            (link.place.known(), link.packets, link.exact),
            (Some(LossPoint::EmulatedLink), 25, true)
        );
    }

    #[test]
    fn peer_outage_is_reported_with_its_times() {
        let why_of = |outages: &[(u64, Option<u64>)]| {
            let outages = outages.iter().map(|&(from, until)| PeerOutage {
                from_ns: from * 1_000_000,
                until_ns: until.map(|until| until * 1_000_000),
            });
            let outages: Vec<_> = outages.collect();
            peer_outage_caveat("shm:x", &outages, 2_500_000_000).map(|caveat| caveat.reason)
        };
        assert_eq!(why_of(&[]), None);
        for (outages, fragments) in [
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
            let why = why_of(outages).unwrap();
            assert!(fragments.iter().all(|word| why.contains(word)), "{why}");
        }
    }
}
