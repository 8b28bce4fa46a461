//! Record of a generator run.

use linerate_host::snapshot;
use linerate_metric::facts::Role;
use linerate_metric::generate::{GeneratePlan, TemplatePlan};
use linerate_metric::histogram::HistogramData;
use linerate_metric::plan::{Direction, Ends, Kind, Plan, Protocol};
use linerate_metric::record::{CountedAt, Doubt, Interval, Record, Summary, new_id};
use linerate_metric::units::{format_count, format_share};

use crate::forward::no_peer;

use super::run::{Facts, Ran, Reading, Settings, What};
use super::template::SHORTEST_BYTES;

/// Ratio of the offered to the intended load below which the generator was the limit.
pub const KEPT: f64 = 0.99;

impl Reading {
    /// Returns the interval in the form of the record.
    #[must_use]
    pub fn interval(&self, number: u64) -> Interval {
        Interval {
            number,
            start_ns: self.start_ns,
            end_ns: self.end_ns,
            direction: Direction::Send,
            omitted: false,
            counted_at: CountedAt::Receiver,
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

impl Ran {
    /// Returns the offered load divided by the intended load, or `None` without an intended load.
    #[must_use]
    pub fn kept_share(&self) -> Option<f64> {
        let intended = self.facts.intended_fps?;
        Some(self.figures.offered_fps / intended)
    }

    /// Returns whether the generator offered the intended load.
    #[must_use]
    pub fn kept(&self) -> bool {
        // Rounding to whole frames matters in short trials.
        let frame = 1e9 / self.figures.duration_ns.max(1) as f64;
        self.facts
            .intended_fps
            .is_none_or(|intended| self.figures.offered_fps + frame >= intended * KEPT)
    }
}

/// Returns the plan in the form of the record.
#[must_use]
pub fn plan(ports: (&str, Option<&str>), settings: &Settings, facts: &Facts) -> Plan {
    let (send, receive) = ports;
    let to = receive.map_or_else(|| send.to_owned(), |receive| format!("{send} {receive}"));
    let mut plan = Plan::new(Kind::Generate, Protocol::Udp, to);
    let nanos = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let is_unsized = matches!(&settings.what, What::Template(template) if template.size.is_none());
    let fitted = is_unsized && facts.frame_bytes > f64::from(SHORTEST_BYTES);
    plan.port = 0;
    plan.directions = vec![Direction::Send];
    plan.streams = facts.flows;
    plan.duration_ns = settings.duration.map(nanos);
    plan.interval_ns = settings.interval.map(nanos);
    plan.payload_bytes = facts.frame_bytes.round() as u64;
    plan.stack = Ends::both("port".to_owned());
    plan.generate = Some(Box::new(GeneratePlan {
        send: send.to_owned(),
        receive: receive.map(str::to_owned),
        load: settings.load,
        intended_fps: facts.intended_fps,
        line_bps: settings.line_bps,
        frames: settings.frames,
        burst: settings.burst.max(1),
        drain_ns: nanos(settings.drain),
        template: match &settings.what {
            // A size that was chosen automatically is recorded as if requested: the record alone
            // shows what was sent.
            What::Template(template) => Some(TemplatePlan {
                size: (template.size.clone())
                    .or_else(|| fitted.then(|| facts.frame_bytes.to_string())),
                ..template.clone()
            }),
            What::Capture(_) => None,
        },
        size_fitted: fitted,
        capture: match &settings.what {
            What::Template(_) => None,
            What::Capture(capture) => Some(capture.path().display().to_string()),
        },
        recorded_times: matches!(&settings.what, What::Capture(capture) if capture.recorded_times()),
        flows: facts.flows,
        frame_bytes: facts.frame_bytes,
        threads: facts.threads,
        cpus: facts.cpus.clone(),
    }));
    plan
}

/// Makes the record of a run; `ports` are the names of the ports.
#[must_use]
pub fn record(ports: (&str, Option<&str>), settings: &Settings, ran: Ran) -> Record {
    let mut host = snapshot::host();
    host.role = Some(Role::Client);
    let histograms = ran.delay.as_ref().filter(|delay| delay.count() > 0);
    let plan = plan(ports, settings, &ran.facts);
    Record {
        interrupted: ran.interrupted,
        hosts: vec![host],
        summary: summary(&ran),
        intervals: (0..)
            .zip(&ran.readings)
            .map(|(number, reading)| reading.interval(number))
            .collect(),
        histograms: histograms
            .map(|delay| ("one_way_delay_ns".to_owned(), HistogramData::from(delay)))
            .into_iter()
            .collect(),
        validity: doubts(settings, &ran),
        generate: Some(Box::new(ran.figures)),
        ..Record::new(new_id(ran.started), ran.started, plan)
    }
}

fn summary(ran: &Ran) -> Summary {
    let figures = &ran.figures;
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
        rate_error: ran.kept_share().map(|share| share - 1.0),
        lateness_ns: ran
            .lateness
            .as_ref()
            .and_then(|lateness| lateness.summary()),
        ..Summary::default()
    }
}

/// Returns the caveats of a run.
#[must_use]
pub fn doubts(settings: &Settings, ran: &Ran) -> Vec<Doubt> {
    let figures = &ran.figures;
    let mut doubts = Vec::new();
    let down = (std::iter::once(&figures.send).chain(&figures.receive))
        .find(|port| port.carrier == Some(false));
    doubts.extend(down.map(|port| crate::carrier::doubt(&port.name)));
    doubts.extend(ran.alone.as_deref().map(no_peer));
    doubts.extend(ran.left.iter().cloned());
    doubts.extend(ran.numa.clone());
    // A port without carrier or peer, even for part of the run, is no limit of the generator.
    let leads_nowhere =
        down.is_some() || ran.alone.is_some() || !ran.left.is_empty() || ran.trouble.is_some();
    let short = ran
        .kept_share()
        .filter(|_| !ran.kept() && !ran.interrupted && !leads_nowhere);
    if let Some(share) = short {
        doubts.push(Doubt::new(
            "tool-limit",
            format!(
                "the generator offered {} of the intended load: this is the limit of the generator or of \
                 the port",
                format_share(share)
            ),
        ));
    }
    if figures.unsent > 0 && !leads_nowhere {
        doubts.push(Doubt::new(
            "sender-stalled",
            format!(
                "the generator stalled for more than 100 ms and skipped {} frames",
                format_count(figures.unsent)
            ),
        ));
    }
    if let Some(port) = &figures.receive {
        let name = port.name.trim_end_matches(':');
        let own = ran.own.dropped;
        if own > 0 {
            doubts.push(Doubt::new(
                "tool-limit",
                format!(
                    "{name} dropped {} frames, of this run or others, because linerate polled it too slowly: they \
                     may be among the lost frames",
                    format_count(own)
                ),
            ));
        }
        let unfit = port.dropped.saturating_sub(own);
        if unfit > 0 {
            doubts.push(Doubt::new(
                "unfit-frames",
                format!(
                    "{} frames that arrived at {name}, of this run or others, were longer than it accepts (`mtu=`) \
                     or malformed: they count as not received, and their sender is the cause",
                    format_count(unfit)
                ),
            ));
        }
    }
    if figures.sent > 0 && figures.received == Some(0) && ran.alone.is_none() {
        let receive = figures.receive.as_ref();
        // `null:` already ends with a colon.
        let name = receive.map(|port| port.name.trim_end_matches(':'));
        let at = name.map_or(String::new(), |name| format!(" at {name}"));
        doubts.push(Doubt::new(
            "nothing-arrived",
            format!(
                "none of {} frames arrived{at}: the device between the ports forwards nothing, forwards \
                 elsewhere (--destination-mac, --learn), or no peer is connected",
                format_count(figures.sent)
            ),
        ));
    }
    if let Some(corrupted) = figures.corrupted.filter(|&corrupted| corrupted > 0) {
        doubts.push(Doubt::new(
            "corrupted-frames",
            format!(
                "{} frames arrived with changed bytes: they count neither as received nor as lost",
                format_count(corrupted)
            ),
        ));
    }
    if figures.receive.is_some() && !ran.facts.tagged {
        doubts.push(Doubt::new(
            "untagged-frames",
            "frames carry no number and no timestamp (too short, or captured): every frame of their \
             length is counted, and order and delay are unknown",
        ));
    }
    if figures.receive.is_some() && ran.shared_cores {
        doubts.push(Doubt::new(
            "shared-cores",
            "there are as many polling threads as processors: the generator and the device, if it is on \
             this host, waited for each other",
        ));
    }
    if !ran.shared_cores && ran.own.core_share < crate::forward::WHOLE_CORE {
        doubts.push(Doubt::new(
            "core-disturbed",
            format!(
                "a polling thread had its core for {:.0} % of the time only: other work ran there, and \
                 frames were sent and received late",
                ran.own.core_share * 100.0
            ),
        ));
    }
    if ran.unpinned {
        doubts.push(Doubt::new(
            "not-pinned",
            format!(
                "a thread could not be pinned to its processor ({:?})",
                settings.cpus
            ),
        ));
    }
    if figures.flows_each > 1 && ran.facts.tagged {
        doubts.push(Doubt::new(
            "flows-grouped",
            format!(
                "{} flows are counted in groups of {}: frames of different flows of a group that overtake \
                 each other count as out of order",
                format_count(ran.facts.flows.into()),
                figures.flows_each
            ),
        ));
    }
    if let Some(trouble) = &ran.trouble {
        let problem = trouble.problem();
        doubts.push(Doubt::new(
            "port-stopped",
            format!("{problem}; {}", problem.next_step),
        ));
    }
    doubts
}
