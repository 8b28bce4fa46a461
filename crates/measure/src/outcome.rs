//! What one end found, as figures: made once, when its threads have ended.

use std::collections::BTreeMap;

use linerate_dialect::control::{FlowFigures, Outcome};
use linerate_host::steal::Ticks;
use linerate_host::sys::clock::Nanos;
use linerate_host::sys::cpu::ThreadUsage;
use linerate_metric::facts::{Host, Role};
use linerate_metric::histogram::Histogram;
use linerate_metric::plan::{Direction, Kind, Plan, Protocol, Wait};
use linerate_metric::record::{CpuCost, Doubt, HistogramData, Loss, Stream, Summary};
use linerate_metric::units::format_share;

use crate::end::{FlowHandle, Reading};
use crate::flow::{FlowOutcome, Part};
use crate::meter::Totals;

/// Stolen processor time from which a figure is doubtful: the third digit moves.
const STEAL_SHARE: f64 = 0.01;

/// Share of its core below which a thread that never sleeps was held up by others.
const OWN_CORE_SHARE: f64 = 0.95;

/// Largest payload that one UDP send call holds.
const CALL_BYTES: u64 = 65_507;

/// Everything that figures are made from.
pub struct Account<'a> {
    /// Which end.
    pub role: Role,
    /// What was run.
    pub plan: &'a Plan,
    /// This host.
    pub host: &'a Host,
    /// The flows as the coordinator saw them.
    pub flows: &'a [FlowHandle],
    /// What they came to.
    pub finished: &'a [FlowOutcome],
    /// Counters when counting began, by flow.
    pub base: &'a BTreeMap<u32, Reading>,
    /// When payload could move.
    pub start_ns: Nanos,
    /// When counting began.
    pub counted_from_ns: Nanos,
    /// Until when a sink counts at least.
    pub window_end_ns: Option<Nanos>,
    /// How many threads moved payload.
    pub threads: usize,
    /// When the last of them ended.
    pub threads_ended_ns: Nanos,
    /// What they cost.
    pub usage: ThreadUsage,
    /// The machine's clock ticks at the start, where this end watches over it.
    pub ticks: Option<&'a Ticks>,
    /// Whether somebody ended the run early.
    pub interrupted: bool,
    /// What is known to speak against the figures.
    pub doubts: Vec<Doubt>,
}

impl Account<'_> {
    /// What this end tells the other one and puts into the record.
    #[must_use]
    pub fn outcome(self) -> Outcome {
        let ended = self.finished.iter().map(|flow| self.ended_ns(flow)).max();
        let ended = ended.unwrap_or(self.counted_from_ns);
        let streams: Vec<_> = self
            .finished
            .iter()
            .map(|flow| FlowFigures {
                direction: flow.direction,
                stream: self.stream(flow),
            })
            .collect();
        let mut doubts = self.doubts.clone();
        doubts.extend(self.broken());
        doubts.extend(self.stolen());
        doubts.extend(self.crowded());
        doubts.extend(self.not_cut());
        Outcome {
            role: self.role,
            host: self.host.clone(),
            cpu: Some(self.cpu()),
            losses: losses(self.plan, &streams),
            streams,
            histograms: self.histograms(),
            doubts,
            interrupted: self.interrupted,
            duration_ns: ended.saturating_sub(self.counted_from_ns),
        }
    }

    fn histograms(&self) -> BTreeMap<String, HistogramData> {
        let mut times = Histogram::new();
        for flow in self.finished {
            if let Some(more) = &flow.times {
                times.add(more);
            }
        }
        let mut histograms = BTreeMap::new();
        if times.count() > 0 {
            histograms.insert("rtt_ns".to_owned(), HistogramData::from(&times));
        }
        histograms
    }

    /// When a flow's counted time ends: for a sink not before the run does, so that a path that
    /// went dead counts as slow and not as short.
    fn ended_ns(&self, flow: &FlowOutcome) -> Nanos {
        match (flow.part, self.plan.kind, self.window_end_ns) {
            (Part::Sink, Kind::Throughput, Some(window)) => {
                // An amount that has arrived whole was over with its last payload.
                let whole = self.plan.duration_ns.is_none() && !self.interrupted;
                let complete = whole && self.lost(flow, Totals::default()).unwrap_or(0) == 0;
                if complete {
                    flow.ended_ns
                } else {
                    flow.ended_ns.max(window)
                }
            }
            _ => flow.ended_ns,
        }
    }

    fn broken(&self) -> Option<Doubt> {
        let broken = self.finished.iter().filter_map(|flow| {
            let error = flow.error.as_ref()?;
            Some(format!("flow {}: {error}", flow.id))
        });
        let broken: Vec<_> = broken.take(3).collect();
        (!broken.is_empty()).then(|| Doubt::new("stream-broken", broken.join("; ")))
    }

    /// Says so when the hypervisor gave processor time of this machine to others.
    fn stolen(&self) -> Option<Doubt> {
        let share = Ticks::now()?.stolen_since(self.ticks?)?;
        (share >= STEAL_SHARE).then(|| {
            Doubt::new(
                "steal",
                format!(
                    "the hypervisor gave {} of this machine's processor time to others meanwhile",
                    format_share(share)
                ),
            )
        })
    }

    /// Says so when threads that never sleep did not have their cores to themselves.
    fn crowded(&self) -> Option<Doubt> {
        let wait = self.plan.wait.as_ref()?;
        let (name, wait) = match self.role {
            Role::Client => ("client", wait.near),
            Role::Server => ("server", wait.far),
        };
        // Of a throughput run, sources may sleep all the same.
        let all_spin = self.plan.kind == Kind::Latency
            || self.finished.iter().all(|flow| flow.part == Part::Sink);
        if !all_spin || wait != Wait::Spin || self.threads == 0 {
            return None;
        }
        let share = self.cpu().share / self.threads as f64;
        (share < OWN_CORE_SHARE).then(|| {
            Doubt::new(
                "crowded-cores",
                format!(
                    "the {name}'s spinning threads had {} of a core each: something else ran there",
                    format_share(share)
                ),
            )
        })
    }

    /// Says so when the kernel turned out not to cut datagrams on this path.
    fn not_cut(&self) -> Option<Doubt> {
        let asked = self.plan.udp_offload.gso == Some(true);
        let several = CALL_BYTES / self.plan.payload_bytes.max(1) > 1;
        let refused = self
            .finished
            .iter()
            .any(|flow| flow.part == Part::Source && flow.facts.datagrams_per_call.is_none());
        (asked && several && refused).then(|| {
            Doubt::new(
                "offload-refused",
                "the interface does not take UDP GSO: one datagram a call left",
            )
        })
    }

    fn cpu(&self) -> CpuCost {
        let wall = self.threads_ended_ns.saturating_sub(self.start_ns).max(1) as f64;
        CpuCost {
            role: self.role,
            share: self.usage.cpu_ns as f64 / wall,
            user_share: self.usage.user_ns as f64 / wall,
            voluntary_switches: self.usage.voluntary_switches,
            involuntary_switches: self.usage.involuntary_switches,
        }
    }

    /// What this end knows of one flow.
    fn stream(&self, flow: &FlowOutcome) -> Stream {
        let plan = self.plan;
        let base = self.base.get(&flow.id).copied().unwrap_or_default();
        let totals = flow.totals.since(base.totals);
        let duration_ns = self.ended_ns(flow).saturating_sub(self.counted_from_ns);
        let seconds = duration_ns as f64 / 1e9;
        let per_second = |count: u64| (duration_ns > 0).then(|| count as f64 / seconds);
        let is_udp = plan.protocol == Protocol::Udp;
        let mut summary = Summary {
            duration_ns: Some(duration_ns),
            ..Summary::default()
        };
        let retransmits = flow.facts.tcp.as_ref().map(|tcp| tcp.retransmits);
        let retransmits = retransmits.map(|now| now.saturating_sub(base.retransmits));
        match (plan.kind, flow.part) {
            (Kind::Throughput, Part::Source) => {
                summary.bytes_sent = Some(totals.bytes);
                summary.packets_sent = is_udp.then_some(totals.packets);
                summary.offered_bps = per_second(totals.bytes * 8);
                summary.calls_per_second = (!is_udp).then(|| per_second(totals.calls)).flatten();
                summary.retransmits = retransmits;
            }
            (Kind::Throughput, Part::Sink) => {
                summary.bytes_received = Some(totals.bytes);
                summary.goodput_bps = per_second(totals.bytes * 8);
                if is_udp {
                    summary.packets_received = Some(totals.packets);
                    summary.packets_per_second = per_second(totals.packets);
                    self.account(flow, base.totals, &mut summary);
                }
            }
            (Kind::Latency, Part::Source) => {
                let times = flow.times.as_ref();
                let trips = times.map_or(0, Histogram::count);
                summary.rtt_ns = times.and_then(Histogram::summary);
                summary.round_trips = Some(trips);
                summary.round_trips_per_second = per_second(trips);
                summary.lost = Some(totals.missing);
                let asked = trips + totals.missing;
                summary.loss_fraction = (asked > 0).then(|| totals.missing as f64 / asked as f64);
                summary.mismatched = Some(flow.mismatched);
                summary.bytes_sent = Some(totals.calls * plan.payload_bytes);
                summary.bytes_received = Some(totals.bytes);
                summary.retransmits = retransmits;
            }
            (Kind::Latency, Part::Sink) => {}
        }
        let facts = Some(flow.facts.clone());
        let (sender, receiver) = match flow.part {
            Part::Source => (facts, None),
            Part::Sink => (None, facts),
        };
        Stream {
            id: flow.id,
            summary,
            sender,
            receiver,
        }
    }

    /// Different datagrams that a sink has received.
    fn unique(flow: &FlowOutcome) -> u64 {
        match &flow.sequence {
            Some(sequence) => sequence.unique(),
            None => flow.totals.packets,
        }
    }

    /// Datagrams of a flow that did not arrive at its sink since `base`; `None` when nobody can
    /// tell.
    fn lost(&self, flow: &FlowOutcome, base: Totals) -> Option<u64> {
        let handle = self.flows.iter().find(|handle| handle.id == flow.id)?;
        let lost = match (handle.shared.expected(), &flow.sequence) {
            (Some(expected), _) => expected.saturating_sub(Self::unique(flow)),
            // The sender could not say what it sent: gaps are all there is to see.
            (None, Some(sequence)) => sequence.missing(),
            (None, None) => return None,
        };
        Some(lost.saturating_sub(base.missing))
    }

    /// What the numbers on datagrams and the sender's total tell together.
    fn account(&self, flow: &FlowOutcome, base: Totals, summary: &mut Summary) {
        if let Some(sequence) = &flow.sequence {
            summary.out_of_order = Some(sequence.out_of_order());
            summary.duplicates = Some(sequence.duplicates());
            summary.ipdv_ns = sequence.ipdv_ns();
        }
        let Some(lost) = self.lost(flow, base) else {
            return;
        };
        let received = Self::unique(flow).saturating_sub(base.packets);
        let sent = received + lost;
        summary.lost = Some(lost);
        summary.loss_fraction = (sent > 0).then(|| lost as f64 / sent as f64);
    }
}

/// Where this end saw its lost datagrams go: its own sockets refused some, the rest never came.
fn losses(plan: &Plan, streams: &[FlowFigures]) -> Vec<Loss> {
    if plan.kind != Kind::Throughput || plan.protocol != Protocol::Udp {
        return Vec::new();
    }
    // Joined datagrams are refused, and counted, as one.
    let joined = plan.udp_offload.gro == Some(true) && plan.udp_offload.gso == Some(true);
    let at_most = if joined {
        (CALL_BYTES / plan.payload_bytes.max(1)).clamp(1, 128)
    } else {
        1
    };
    let mut losses = Vec::new();
    for direction in [Direction::Send, Direction::Receive] {
        let (mut lost, mut refused, mut known) = (0, 0, false);
        for flow in streams.iter().filter(|flow| flow.direction == direction) {
            let Some(flow_lost) = flow.stream.summary.lost else {
                continue;
            };
            known = true;
            lost += flow_lost;
            let socket = flow.stream.receiver.as_ref();
            let drops = socket.and_then(|socket| socket.receive_queue_drops);
            refused += drops.unwrap_or(0).saturating_mul(at_most).min(flow_lost);
        }
        if !known || lost == 0 {
            continue;
        }
        // The socket counts from its opening: with omitted time its count is an upper bound.
        let exact = plan.omit_ns == 0 && !joined;
        for (place, packets) in [("udp-receive-queue", refused), ("path", lost - refused)] {
            if packets > 0 {
                losses.push(Loss {
                    direction,
                    place: place.to_owned(),
                    packets,
                    // The rest is not yet told apart: queues of both hosts are in it.
                    exact: exact && place != "path",
                });
            }
        }
    }
    losses
}
