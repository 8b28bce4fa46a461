//! Record of a generator run.

use linerate_host::snapshot;
use linerate_packet::template::MIN_FRAME_WITH_FCS;
use linerate_port::caveats::no_peer_caveat;
use linerate_record::facts::Role;
use linerate_record::generate::{GeneratePlan, TemplatePlan};
use linerate_record::ids::CaveatId;
use linerate_record::plan::{Direction, PerEnd, Plan, RunKind, TransportProtocol};
use linerate_record::record::{Caveat, FlowEnd, Interval, Record, Summary, new_id};
use linerate_record::throttling::CpuThrottling;
use linerate_stats::histogram::HistogramData;
use linerate_stats::units::{format_count, format_share};

use super::run::{FrameInput, GeneratorFacts, GeneratorInterval, GeneratorRun, GeneratorSettings};

/// Ratio of the offered to the intended load below which the generator was the limit.
pub const MIN_LOAD_RATIO: f64 = 0.99;

impl GeneratorInterval {
    /// Returns the interval in the form of the record.
    #[must_use]
    pub fn interval(&self, number: u64) -> Interval {
        Interval {
            number,
            start_ns: self.start_ns,
            end_ns: self.end_ns,
            direction: Direction::Send,
            omitted: false,
            counted_at: FlowEnd::Receiver,
            bytes: self.received.bytes,
            packets: Some(self.received.frames),
            calls: None,
            bytes_sent: Some(self.sent.bytes),
            packets_sent: Some(self.sent.frames),
            lost: Some(self.missing),
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

impl GeneratorRun {
    /// Returns the offered load divided by the intended load, or `None` without an intended load.
    #[must_use]
    pub fn load_ratio(&self) -> Option<f64> {
        let intended = self.facts.intended_fps?;
        Some(self.figures.offered_fps / intended)
    }

    /// Returns whether the generator offered the intended load.
    #[must_use]
    pub fn is_load_met(&self) -> bool {
        // Rounding to whole frames matters in short trials.
        let one_frame_fps = 1e9 / self.figures.duration_ns.max(1) as f64;
        self.facts.intended_fps.is_none_or(|intended| {
            self.figures.offered_fps + one_frame_fps >= intended * MIN_LOAD_RATIO
        })
    }
}

/// Returns the plan in the form of the record.
#[must_use]
pub fn plan(
    ports: (&str, Option<&str>),
    settings: &GeneratorSettings,
    facts: &GeneratorFacts,
) -> Plan {
    let (send, receive) = ports;
    let target = receive.map_or_else(|| send.to_owned(), |receive| format!("{send} {receive}"));
    let mut plan = Plan::new(RunKind::Generate, TransportProtocol::Udp, target);
    let nanos = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let is_unsized =
        matches!(&settings.input, FrameInput::Template(template) if template.size.is_none());
    let is_size_fitted = is_unsized && facts.frame_bytes > f64::from(MIN_FRAME_WITH_FCS);
    plan.port = 0;
    plan.directions = vec![Direction::Send];
    plan.streams = facts.flows;
    plan.duration_ns = settings.duration.map(nanos);
    plan.interval_ns = settings.interval.map(nanos);
    plan.payload_bytes = facts.frame_bytes.round() as u64;
    plan.stack = PerEnd::same("port".to_owned());
    plan.generate = Some(Box::new(GeneratePlan {
        send: send.to_owned(),
        receive: receive.map(str::to_owned),
        load: settings.load,
        intended_fps: facts.intended_fps,
        line_bps: settings.line_bps,
        frames: settings.max_frames,
        burst: settings.burst.max(1),
        drain_ns: nanos(settings.drain),
        template: match &settings.input {
            // A size that was chosen automatically is recorded as if requested: the record alone
            // shows what was sent.
            FrameInput::Template(template) => Some(TemplatePlan {
                size: (template.size.clone())
                    .or_else(|| is_size_fitted.then(|| facts.frame_bytes.to_string())),
                ..template.clone()
            }),
            FrameInput::Capture(_) => None,
        },
        size_fitted: is_size_fitted,
        capture: match &settings.input {
            FrameInput::Template(_) => None,
            FrameInput::Capture(capture) => Some(capture.path().display().to_string()),
        },
        recorded_times: matches!(&settings.input, FrameInput::Capture(capture) if capture.recorded_times()),
        flows: facts.flows,
        frame_bytes: facts.frame_bytes,
        threads: facts.threads,
        cpus: facts.cpus.clone(),
    }));
    plan
}

/// Makes the record of a run; `ports` are the names of the ports.
#[must_use]
pub fn record(
    ports: (&str, Option<&str>),
    settings: &GeneratorSettings,
    run: GeneratorRun,
) -> Record {
    let mut host = snapshot::read_host();
    host.role = Some(Role::Client);
    let histograms = run.delays.as_ref().filter(|delay| delay.count() > 0);
    let plan = plan(ports, settings, &run.facts);
    Record {
        interrupted: run.interrupted,
        hosts: vec![host],
        summary: summary(&run),
        intervals: (0..)
            .zip(&run.intervals)
            .map(|(number, reading)| reading.interval(number))
            .collect(),
        histograms: histograms
            .map(|delay| ("one_way_delay_ns".to_owned(), HistogramData::from(delay)))
            .into_iter()
            .collect(),
        validity: caveats(settings, &run),
        generate: Some(Box::new(run.figures)),
        ..Record::new(new_id(run.started), run.started, plan)
    }
}

fn summary(run: &GeneratorRun) -> Summary {
    let figures = &run.figures;
    Summary {
        duration_ns: Some(figures.duration_ns),
        packets_per_second: figures.forwarding_fps,
        packets_sent: Some(figures.sent),
        packets_received: figures.received,
        bytes_sent: Some(figures.send.bytes),
        bytes_received: figures.receive.as_ref().map(|port| port.bytes),
        loss_fraction: figures.loss_fraction,
        lost: figures.lost,
        out_of_order: figures.out_of_order,
        duplicates: figures.duplicates,
        reordering_extent: figures
            .flows
            .iter()
            .filter_map(|flow| flow.reordering_extent)
            .max(),
        unsent: Some(figures.unsent),
        rate_error: run.load_ratio().map(|share| share - 1.0),
        lateness_ns: run
            .lateness
            .as_ref()
            .and_then(|lateness| lateness.summary()),
        ..Summary::default()
    }
}

/// Returns the caveats of a run.
#[must_use]
pub fn caveats(settings: &GeneratorSettings, run: &GeneratorRun) -> Vec<Caveat> {
    let figures = &run.figures;
    let mut caveats = Vec::new();
    let without_carrier = (std::iter::once(&figures.send).chain(&figures.receive))
        .find(|port| port.carrier == Some(false));
    caveats
        .extend(without_carrier.map(|port| linerate_port::caveats::no_carrier_caveat(&port.name)));
    caveats.extend(run.peerless_port.as_deref().map(no_peer_caveat));
    caveats.extend(run.peer_outages.iter().cloned());
    caveats.extend(run.numa_caveat.clone());
    // A port without carrier or peer, even for part of the run, is no limit of the generator.
    let leads_nowhere = without_carrier.is_some()
        || run.peerless_port.is_some()
        || !run.peer_outages.is_empty()
        || run.port_error.is_some();
    let load_ratio = run
        .load_ratio()
        .filter(|_| !run.is_load_met() && !run.interrupted && !leads_nowhere);
    if let Some(share) = load_ratio {
        caveats.push(Caveat::new(
            CaveatId::ToolLimit,
            format!(
                "the generator offered {} of the intended load: this is the limit of the generator or of \
                 the port",
                format_share(share)
            ),
        ));
    }
    if figures.unsent > 0 && !leads_nowhere {
        caveats.push(Caveat::new(
            CaveatId::SenderStalled,
            format!(
                "the generator stalled for more than 100 ms and skipped {} frames",
                format_count(figures.unsent)
            ),
        ));
    }
    if let Some(port) = &figures.receive {
        let name = port.name.trim_end_matches(':');
        let ring_drops = run.disturbance.ring_drops;
        if ring_drops > 0 {
            caveats.push(Caveat::new(
                CaveatId::ToolLimit,
                format!(
                    "{name} dropped {} frames, of this run or others, because linerate polled it too slowly: they \
                     may be among the lost frames",
                    format_count(ring_drops)
                ),
            ));
        }
        let unfit = port.dropped.saturating_sub(ring_drops);
        if unfit > 0 {
            caveats.push(Caveat::new(
                CaveatId::UnfitFrames,
                format!(
                    "{} frames that arrived at {name}, of this run or others, were longer than it accepts (`mtu=`) \
                     or malformed: they count as not received, and their sender is the cause",
                    format_count(unfit)
                ),
            ));
        }
    }
    if figures.sent > 0 && figures.received == Some(0) && run.peerless_port.is_none() {
        let receive = figures.receive.as_ref();
        let location = receive.map_or(String::new(), |port| format!(" at port {}", port.name));
        caveats.push(Caveat::new(
            CaveatId::NothingArrived,
            format!(
                "no frame arrived{location}, of {} sent: the device between the ports forwards nothing, \
                 forwards elsewhere (--destination-mac, --learn), or no peer is connected",
                format_count(figures.sent)
            ),
        ));
    }
    if let Some(corrupted) = figures.corrupted.filter(|&corrupted| corrupted > 0) {
        caveats.push(Caveat::new(
            CaveatId::CorruptedFrames,
            format!(
                "{} frames arrived with changed bytes: they count neither as received nor as lost",
                format_count(corrupted)
            ),
        ));
    }
    if figures.receive.is_some() && !run.facts.tagged {
        caveats.push(Caveat::new(
            CaveatId::UntaggedFrames,
            "frames carry no number and no timestamp (too short, or captured): every frame of their \
             length is counted, and order and delay are unknown",
        ));
    }
    if figures.receive.is_some() && run.shared_cores {
        caveats.push(Caveat::new(
            CaveatId::SharedCores,
            "there are as many polling threads as processors: the generator and the device, if it is on \
             this host, waited for each other",
        ));
    }
    if !run.shared_cores && run.disturbance.core_share < linerate_sys::cpu::MIN_SPINNING_SHARE {
        caveats.push(Caveat::new(
            CaveatId::CoreDisturbed,
            format!(
                "the polling thread ran for {:.0} % of the time; {}, and frames were sent and received \
                 late",
                run.disturbance.core_share * 100.0,
                CpuThrottling::lost_time_reason(figures.throttling.as_ref())
            ),
        ));
    }
    if run.unpinned {
        caveats.push(Caveat::new(
            CaveatId::NotPinned,
            format!(
                "a thread could not be pinned to its CPU ({:?})",
                settings.cpus
            ),
        ));
    }
    if figures.flows_per_entry > 1 && run.facts.tagged {
        caveats.push(Caveat::new(
            CaveatId::FlowsGrouped,
            format!(
                "{} flows are counted in groups of {}: frames of different flows of a group that overtake \
                 each other count as out of order",
                format_count(run.facts.flows.into()),
                figures.flows_per_entry
            ),
        ));
    }
    if let Some(port_error) = &run.port_error {
        let problem = port_error.to_report();
        caveats.push(Caveat::new(
            CaveatId::PortStopped,
            format!("{problem}; {}", problem.next_step),
        ));
    }
    caveats
}
