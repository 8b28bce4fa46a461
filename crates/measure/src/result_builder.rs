//! Results of one end: figures that are built once its threads have ended.

use std::collections::BTreeMap;

use linerate_dialect::control::{FlowFigures, Outcome};
use linerate_host::steal::Ticks;
use linerate_host::sys::clock::Nanos;
use linerate_host::sys::cpu::ThreadUsage;
use linerate_metric::cost::{MachineTime, MemoryCost, ProcessorTime};
use linerate_metric::facts::{Host, Role};
use linerate_metric::histogram::Histogram;
use linerate_metric::plan::{Kind, LARGEST_DATAGRAM_BYTES, Plan, Protocol, Wait};
use linerate_metric::record::{
    CpuCost, Doubt, HistogramData, PlaceCounter, SlowAnswer, Stream, Summary, Verification,
};
use linerate_metric::round_trip::{Attachment, SLOW_LISTED};
use linerate_metric::units::format_share;

use crate::coordinator::{FlowHandle, Reading, flow_of};
use crate::cpu_cost::{self, Spent};
use crate::flow::{FlowOutcome, Part};
use crate::flow_counters::Totals;
use crate::payload_pattern;
use crate::transport::call_times::CallTally;
use crate::worker_costs::Threads;

/// Fraction of stolen CPU time from which figures are doubtful: it changes the third digit.
const STEAL_SHARE: f64 = 0.01;

/// Fraction of its CPU below which a spinning thread was preempted by others.
const OWN_CORE_SHARE: f64 = 0.95;

/// Builder of one end's results: everything that its figures are made from.
pub struct Account<'a> {
    pub role: Role,
    pub plan: &'a Plan,
    pub host: &'a Host,
    pub flows: &'a [FlowHandle],
    pub finished: &'a [FlowOutcome],
    /// Counters by flow at the start of counting.
    pub base: &'a BTreeMap<u32, Reading>,
    /// Start of payload.
    pub start_ns: Nanos,
    /// Start of counting, after the omitted time.
    pub counted_from_ns: Nanos,
    /// Time until which a receiver counts at least.
    pub window_end_ns: Option<Nanos>,
    /// Number of threads that moved payload.
    pub threads: usize,
    /// Cost of each thread.
    pub costs: &'a Threads,
    /// Memory of the flows.
    pub memory: Option<MemoryCost>,
    /// CPU time of the machine during the run.
    pub machine: Option<MachineTime>,
    /// CPU time of each CPU during the run.
    pub processors: Vec<ProcessorTime>,
    /// End time of the last thread.
    pub threads_ended_ns: Nanos,
    /// CPU time and context switches of all threads.
    pub usage: ThreadUsage,
    /// Durations of their system calls, where they were recorded.
    pub calls: Option<&'a CallTally>,
    /// Steal ticks at the start, where this end measures them.
    pub ticks: Option<&'a Ticks>,
    /// Stopped early by a user.
    pub interrupted: bool,
    /// Warnings so far.
    pub doubts: Vec<Doubt>,
    /// Loss counters of this host.
    pub counters: Vec<PlaceCounter>,
}

/// Longest measurement of the wake-up time in nanoseconds: the other end waits for the results
/// meanwhile.
const WAKE_UP_LIMIT_NS: u64 = 30_000_000;

impl Account<'_> {
    /// Builds the results for the other end and for the record.
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
        let slow = self.slow();
        let mut doubts = self.doubts.clone();
        doubts.extend(self.broken());
        doubts.extend(self.without_ports());
        doubts.extend(self.broken_connections());
        doubts.extend(self.unroutable());
        doubts.extend(self.stolen());
        doubts.extend(self.crowded());
        doubts.extend(self.not_cut());
        doubts.extend(self.nothing_to_poll());
        doubts.extend(self.differs());
        doubts.extend(self.copied_after_all());
        doubts.extend(self.unanswered());
        doubts.extend(self.device());
        let verification = self.verification();
        let calls = self.calls.map(|calls| calls.figures(self.role));
        let (calls, call_clock) = calls.unzip();
        Outcome {
            role: self.role,
            host: self.host(),
            cpu: Some(self.cpu()),
            memory: self.memory,
            // Losses need the counters of both ends ([`crate::loss`]); earlier versions expect the
            // field.
            losses: Vec::new(),
            streams,
            histograms: self.histograms(),
            counters: self.counters,
            verification,
            calls: calls.unwrap_or_default(),
            call_clock,
            doubts,
            slow,
            interrupted: self.interrupted,
            duration_ns: ended.saturating_sub(self.counted_from_ns),
        }
    }

    /// Returns the facts of this host, with those that are known only after the run.
    fn host(&self) -> Host {
        let mut host = self.host.clone();
        let cpus = linerate_host::sys::cpu::usable().unwrap_or_default();
        let frequency = linerate_host::snapshot::frequency(&cpus);
        (host.cpu.frequency_hz, host.cpu.frequency_max_hz) = frequency.unzip();
        let wait = self.plan.wait.as_ref().map(|wait| match self.role {
            Role::Client => wait.near,
            Role::Server => wait.far,
        });
        // A spinning thread is never woken. Of two ends on one machine, one measures the wake-up
        // time.
        if wait != Some(Wait::Spin) && !self.interrupted && self.ticks.is_some() {
            host.wake_up_ns = linerate_host::wake_up::round_trip(WAKE_UP_LIMIT_NS);
        }
        host
    }

    fn histograms(&self) -> BTreeMap<String, HistogramData> {
        let mut histograms = crate::rate_accuracy::histograms(self.finished);
        let mut times = Histogram::new();
        for flow in self.finished {
            if let Some(more) = &flow.times {
                times.add(more);
            }
        }
        if times.count() > 0 {
            histograms.insert("rtt_ns".to_owned(), HistogramData::from(&times));
        }
        let mut more: BTreeMap<&str, Histogram> = BTreeMap::new();
        for asking in self.finished.iter().filter_map(|flow| flow.asking.as_ref()) {
            for (name, times) in &asking.histograms {
                more.entry(name).or_default().add(times);
            }
        }
        let more = more.iter().filter(|(_, times)| times.count() > 0);
        histograms.extend(more.map(|(&name, times)| (name.to_owned(), HistogramData::from(times))));
        histograms
    }

    /// Returns the first responses above the limit, over all flows.
    fn slow(&self) -> Vec<SlowAnswer> {
        let mut slow: Vec<SlowAnswer> = (self.finished.iter())
            .filter_map(|flow| flow.asking.as_ref()?.slow.as_ref())
            .flat_map(|(_, listed)| listed.iter().cloned())
            .collect();
        slow.sort_by_key(|answer| answer.at_ns);
        slow.truncate(SLOW_LISTED);
        slow
    }

    /// Returns the end of a flow's counted time: for a receiver not before the end of the run, so
    /// that a dead path counts as slow and not as short.
    fn ended_ns(&self, flow: &FlowOutcome) -> Nanos {
        match (flow.part, self.plan.kind, self.window_end_ns) {
            (Part::Sink, Kind::Throughput, Some(window)) => {
                // A complete amount ends with its last payload.
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

    /// Warns when connections had to wait for a local port.
    fn without_ports(&self) -> Option<Doubt> {
        let asking = self.finished.iter().filter_map(|flow| flow.asking.as_ref());
        let waited: u64 = asking.map(|asking| asking.ports_waited).sum();
        (waited > 0).then(|| {
            Doubt::new(
                "ports-exhausted",
                format!(
                    "no local port was free for a new connection {waited} times, with a retry after \
                     1 ms: see `ss -tan state time-wait` and net.ipv4.ip_local_port_range"
                ),
            )
        })
    }

    /// Warns when connections were rejected or broken.
    fn broken_connections(&self) -> Option<Doubt> {
        let asking = self.finished.iter().filter_map(|flow| flow.asking.as_ref());
        let count: u64 = asking.map(|asking| asking.broken).sum();
        (count > 0).then(|| {
            Doubt::new(
                "connections-broken",
                format!(
                    "{count} connections were rejected or reset, and their round trips count as lost: \
                     causes are a full listen queue, connection tracking or a filter, see \
                     `nstat -az TcpExtListenOverflows TcpEstabResets`"
                ),
            )
        })
    }

    /// Warns when the kernel had no route for a while.
    fn unroutable(&self) -> Option<Doubt> {
        let facts = self
            .finished
            .iter()
            .filter_map(|flow| flow.facts.unroutable);
        let count: u64 = facts.map(u64::from).sum();
        (count > 0).then(|| {
            Doubt::new(
                "no-route",
                format!(
                    "{count} sends had no route and were repeated: a link or a route was \
                     down, see `ip route get` and `ip -s link`"
                ),
            )
        })
    }

    /// Warns when intended round-trip times are lower bounds.
    fn unanswered(&self) -> Option<Doubt> {
        let asking = self.finished.iter().filter_map(|flow| flow.asking.as_ref());
        let count: u64 = asking.map(|asking| asking.unanswered).sum();
        (count > 0).then(|| {
            Doubt::new(
                "unanswered-at-end",
                format!(
                    "{count} scheduled requests had no response at the end: each counts with its age \
                     since the scheduled send, a lower bound of its time"
                ),
            )
        })
    }

    /// Warns when responses carry no device times, or impossible ones.
    fn device(&self) -> Option<Doubt> {
        let asking = self.finished.iter().filter_map(|flow| flow.asking.as_ref());
        let (mut read, mut without, mut impossible) = (0, 0, 0);
        for account in asking.filter_map(|asking| asking.device) {
            read += account.read;
            without += account.without;
            impossible += account.impossible;
        }
        let all = read + without + impossible;
        let Some(stamps) = self.plan.round_trip.device_stamps else {
            return self.unread_stamps();
        };
        if impossible > 0 {
            return Some(Doubt::new(
                "device-stamps-impossible",
                format!(
                    "{impossible} of {all} responses have a device time above the round-trip time, \
                     read with --device-stamps {stamps}: compare its offset, width, order and hz \
                     with what the device writes"
                ),
            ));
        }
        (without > 0).then(|| {
            Doubt::new(
                "device-stamps-missing",
                format!(
                    "{without} of {all} responses carry no device times at bytes {} to {}: the device \
                     writes none there",
                    stamps.range().start,
                    stamps.range().end - 1
                ),
            )
        })
    }

    /// Warns when responses seem to carry device times that are not read.
    fn unread_stamps(&self) -> Option<Doubt> {
        let asking = || self.finished.iter().filter_map(|flow| flow.asking.as_ref());
        let stamped: u64 = asking().map(|asking| asking.stamped).sum();
        let wrong = asking().map(|asking| asking.wrong_content + asking.wrong_length);
        let is_echo = self.plan.dialect.as_deref() == Some("echo");
        // A path that corrupts some responses is another cause.
        (is_echo && stamped > 0 && stamped == wrong.sum::<u64>()).then(|| {
            Doubt::new(
                "device-stamps-unread",
                format!(
                    "{stamped} responses differ from their requests only in bytes 16 to 31, where a \
                     device may write its times (`linerate target-code --stamps`): \
                     --device-stamps 16 reads them"
                ),
            )
        })
    }

    /// Warns when the hypervisor gave CPU time of this machine to other guests.
    fn stolen(&self) -> Option<Doubt> {
        let share = Ticks::now()?.stolen_since(self.ticks?)?;
        (share >= STEAL_SHARE).then(|| {
            Doubt::new(
                "steal",
                format!(
                    "the hypervisor gave {} of this machine's CPU time to other guests (steal time)",
                    format_share(share)
                ),
            )
        })
    }

    /// Warns when spinning threads did not have their CPUs to themselves.
    fn crowded(&self) -> Option<Doubt> {
        let wait = self.plan.wait.as_ref()?;
        let (name, wait) = match self.role {
            Role::Client => ("client", wait.near),
            Role::Server => ("server", wait.far),
        };
        // The senders of a throughput run may sleep.
        let all_spin = self.plan.kind == Kind::Latency
            || self.finished.iter().all(|flow| flow.part == Part::Sink);
        if !all_spin || wait != Wait::Spin || self.threads == 0 {
            return None;
        }
        let share = self.cpu().share / self.threads as f64;
        // CPU time that a thread yields is not taken by others.
        let own = OWN_CORE_SHARE
            - if self.plan.round_trip.rt_yield {
                0.1
            } else {
                0.0
            };
        (share < own).then(|| {
            Doubt::new(
                "crowded-cores",
                format!(
                    "the {name}'s spinning threads had {} of a CPU each: other threads ran there",
                    format_share(share)
                ),
            )
        })
    }

    /// Warns when the kernel does not segment datagrams on this path.
    fn not_cut(&self) -> Option<Doubt> {
        let asked = self.plan.udp_offload.gso == Some(true);
        let several = LARGEST_DATAGRAM_BYTES / self.plan.payload_bytes.max(1) > 1;
        let refused = self
            .finished
            .iter()
            .any(|flow| flow.part == Part::Source && flow.facts.datagrams_per_call.is_none());
        (asked && several && refused).then(|| {
            Doubt::new(
                "offload-refused",
                "the interface does not support UDP GSO: each call sent one datagram",
            )
        })
    }

    /// Warns when busy polling had no receive queue.
    fn nothing_to_poll(&self) -> Option<Doubt> {
        let wait = self.plan.wait.as_ref()?;
        let (name, wait) = match self.role {
            Role::Client => ("client", wait.near),
            Role::Server => ("server", wait.far),
        };
        let blind = |flow: &FlowOutcome| flow.facts.napi_id.is_none();
        let polls = matches!(wait, Wait::BusyPoll { .. });
        (polls && !self.finished.is_empty() && self.finished.iter().all(blind)).then(|| {
            Doubt::new(
                "nothing-to-poll",
                format!(
                    "the {name}'s interface gives its sockets no NAPI id (as with loopback and \
                     plain veth): busy polling was blocking"
                ),
            )
        })
    }

    /// Warns when content differs from what was sent.
    fn differs(&self) -> Option<Doubt> {
        let bytes: u64 = (self.finished.iter())
            .filter(|flow| flow.first_mismatch.is_some())
            .map(|flow| flow.mismatched)
            .sum();
        // The flow with the lowest number is the first that was opened.
        let first = (self.finished.iter())
            .filter_map(|flow| Some((flow.id, flow.first_mismatch.as_ref()?)))
            .min_by_key(|(id, _)| *id);
        let (id, mismatch) = first?;
        let place = match mismatch.datagram {
            Some(number) => format!("datagram {number}, offset {}", mismatch.offset),
            None => format!("offset {}", mismatch.offset),
        };
        let found = match mismatch.found.as_str() {
            "" => "no more bytes",
            found => found,
        };
        Some(Doubt::new(
            "content-mismatch",
            format!(
                "{bytes} B differ from what was sent; first in stream {id}, {place}: \
                 expected {}, found {found}",
                mismatch.expected
            ),
        ))
    }

    /// Warns when zero-copy sends were copied.
    fn copied_after_all(&self) -> Option<Doubt> {
        let facts = self.finished.iter().filter_map(|flow| flow.facts.zero_copy);
        let (sends, copied) = facts.fold((0, 0), |(sends, copied), facts| {
            (sends + facts.sends, copied + facts.copied)
        });
        (copied > 0).then(|| {
            Doubt::new(
                "copied-after-all",
                format!(
                    "the kernel copied {} of the {sends} sends with MSG_ZEROCOPY, as it \
                     does on loopback and veth",
                    format_share(copied as f64 / sends.max(1) as f64)
                ),
            )
        })
    }

    /// Measures the cost of verification on this CPU, while no payload moves.
    fn verification(&self) -> Option<Verification> {
        let does = |part| self.finished.iter().any(|flow| flow.part == part);
        (self.plan.verify)
            .then(|| payload_pattern::cost(self.role, does(Part::Source), does(Part::Sink)))
    }

    fn cpu(&self) -> CpuCost {
        let mut moved = Totals::default();
        for flow in self.finished {
            moved += flow.totals;
        }
        cpu_cost::cpu(&Spent {
            role: self.role,
            plan: self.plan,
            wall_ns: self.threads_ended_ns.saturating_sub(self.start_ns),
            usage: &self.usage,
            threads: self.costs.costs(),
            moved,
            machine: self.machine,
            processors: self.processors.clone(),
            uncounted: self.costs.uncounted(),
        })
    }

    /// Returns this end's figures of one flow.
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
        let of_stack =
            || crate::netstack::stack_facts::retransmits(self.host.stack.as_deref()?, plan);
        let retransmits = retransmits.or_else(of_stack);
        match (plan.kind, flow.part) {
            (Kind::Throughput, Part::Source) => {
                summary.bytes_sent = Some(totals.bytes);
                // Datagrams rejected by a full socket buffer have a number, and count as lost.
                summary.packets_sent = is_udp.then_some(totals.packets + totals.missing);
                summary.offered_bps = per_second(totals.bytes * 8);
                summary.rate_error = crate::rate_accuracy::rate_error(
                    plan,
                    summary.offered_bps,
                    summary.duration_ns,
                    1,
                );
                summary.calls_per_second = (!is_udp).then(|| per_second(totals.calls)).flatten();
                summary.retransmits = retransmits;
            }
            (Kind::Throughput, Part::Sink) => {
                summary.bytes_received = Some(totals.bytes);
                summary.goodput_bps = per_second(totals.bytes * 8);
                summary.mismatched = plan.verify.then_some(flow.mismatched);
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
                let connects = plan.round_trip.attachment == Attachment::Reopened && !is_udp;
                summary.connections_per_second = connects.then(|| per_second(trips)).flatten();
                summary.lost = Some(totals.missing);
                let asked = trips + totals.missing;
                summary.loss_fraction = (asked > 0).then(|| totals.missing as f64 / asked as f64);
                summary.mismatched = Some(flow.mismatched).filter(|_| plan.round_trip.verify);
                self.asked(flow, &mut summary);
                summary.bytes_sent = Some(totals.calls * plan.payload_bytes);
                summary.bytes_received = Some(totals.bytes);
                summary.retransmits = retransmits;
            }
            (Kind::Latency, Part::Sink) | (Kind::Forward | Kind::Generate | Kind::Stack, _) => {}
        }
        let mut facts = flow.facts.clone();
        if flow.part == Part::Source
            && let Some(refused) = &mut facts.send_refused
        {
            *refused = refused.saturating_sub(base.totals.missing);
        }
        let facts = Some(facts);
        let (sender, receiver) = match flow.part {
            Part::Source => (facts, None),
            Part::Sink => (None, facts),
        };
        Stream {
            id: flow.id,
            summary,
            mismatch: flow.first_mismatch.clone(),
            sender,
            receiver,
        }
    }

    /// Adds the results of a requesting end other than its round-trip times.
    fn asked(&self, flow: &FlowOutcome, summary: &mut Summary) {
        if let Some(numbers) = &flow.sequence {
            summary.out_of_order = Some(numbers.out_of_order());
            summary.duplicates = Some(numbers.duplicates());
        }
        let Some(asking) = &flow.asking else { return };
        let verified = self.plan.round_trip.verify;
        summary.wrong_length = verified.then_some(asking.wrong_length);
        summary.wrong_content = verified.then_some(asking.wrong_content);
        summary.slow = asking.slow.as_ref().map(|(count, _)| *count);
        summary.unsent = asking.unsent;
    }

    /// Returns the number of distinct datagrams that a receiver got.
    fn unique(flow: &FlowOutcome) -> u64 {
        match &flow.sequence {
            Some(sequence) => sequence.unique(),
            None => flow.totals.packets,
        }
    }

    /// Returns the datagrams of a flow that did not arrive since `base`; `None` when this is
    /// unknown.
    fn lost(&self, flow: &FlowOutcome, base: Totals) -> Option<u64> {
        let handle = flow_of(self.flows, flow.id)?;
        let lost = match (handle.shared.expected(), &flow.sequence) {
            // Without sequence numbers, losses in the omitted time cannot be separated.
            (Some(_), None) if self.plan.omit_ns > 0 => return None,
            (Some(expected), _) => expected.saturating_sub(Self::unique(flow)),
            // Without the sender's total, only gaps are visible.
            (None, Some(sequence)) => sequence.missing(),
            (None, None) => return None,
        };
        Some(lost.saturating_sub(base.missing))
    }

    /// Adds the figures of sequence numbers and the sender's total.
    fn account(&self, flow: &FlowOutcome, base: Totals, summary: &mut Summary) {
        if let Some(sequence) = &flow.sequence {
            summary.out_of_order = Some(sequence.out_of_order());
            summary.duplicates = Some(sequence.duplicates().saturating_sub(base.repeated));
            summary.reordering_extent = sequence.reordering_extent();
            summary.ipdv_ns = sequence.ipdv_ns();
        }
        let Some(lost) = self.lost(flow, base) else {
            return;
        };
        let before = base.packets.saturating_sub(base.repeated);
        let received = Self::unique(flow).saturating_sub(before);
        let sent = received + lost;
        summary.lost = Some(lost);
        summary.loss_fraction = (sent > 0).then(|| lost as f64 / sent as f64);
    }
}
