//! Results of one end: figures that are built once its threads have ended.

use std::collections::BTreeMap;

use linerate_host::steal::StealTicks;
use linerate_protocol::control::{EndResults, FlowFigures};
use linerate_record::cost::{MachineTime, MemoryCost, ProcessorTime};
use linerate_record::facts::{HostFacts, Role};
use linerate_record::ids::CaveatId;
use linerate_record::plan::{MAX_DATAGRAM_BYTES, Plan, RunKind, TransportProtocol, WaitMode};
use linerate_record::record::{
    Caveat, CounterDelta, CpuCost, SlowResponse, StreamFigures, Summary, VerificationCost,
};
use linerate_record::round_trip::{MAX_LISTED_SLOW_RESPONSES, SocketMode};
use linerate_record::throttling::CpuThrottling;
use linerate_stats::histogram::{Histogram, HistogramData};
use linerate_stats::units::{count_of, format_share};
use linerate_sys::clock::Nanos;
use linerate_sys::cpu::{MIN_SPINNING_SHARE, ThreadUsage};
use linerate_transport::call_times::CallStats;
use linerate_transport::flow_role::FlowRole;
use linerate_transport::payload_pattern;
use linerate_workload::flow::FlowEndResults;
use linerate_workload::flow_counters::PayloadTotals;

use crate::cpu_cost;
use crate::cpu_cost::CpuCostInputs;
use crate::flow_handle::{CounterReading, FlowHandle, find_flow};
use crate::receive_window::ReceiveTimes;
use crate::worker_costs::WorkerCosts;

/// Fraction of stolen CPU time from which figures are doubtful: it changes the third digit.
const MIN_STEAL_SHARE: f64 = 0.01;

/// Builder of one end's results: everything that its figures are made from.
pub struct ResultBuilder<'a> {
    pub role: Role,
    pub plan: &'a Plan,
    pub host: &'a HostFacts,
    pub flows: &'a [FlowHandle],
    pub finished_flows: &'a [FlowEndResults],
    /// Counters by flow at the start of counting.
    pub baseline: &'a BTreeMap<u32, CounterReading>,
    /// Start of payload.
    pub start_ns: Nanos,
    /// Start of counting, after the omitted time.
    pub counted_from_ns: Nanos,
    /// Time until which a receiver counts at least.
    pub window_end_ns: Option<Nanos>,
    /// Number of threads that moved payload.
    pub thread_count: usize,
    /// Cost of each thread.
    pub thread_costs: &'a WorkerCosts,
    /// Memory of the flows.
    pub memory: Option<MemoryCost>,
    /// Stops by a CPU quota during the run.
    pub throttling: Option<CpuThrottling>,
    /// CPU time of the machine during the run.
    pub machine: Option<MachineTime>,
    /// CPU time of each CPU during the run.
    pub cpu_times: Vec<ProcessorTime>,
    /// End time of the last thread.
    pub workers_ended_ns: Nanos,
    /// CPU time and context switches of all threads.
    pub thread_usage: ThreadUsage,
    /// Durations of their system calls, where they were recorded.
    pub call_tally: Option<&'a CallStats>,
    /// Steal ticks at the start, where this end measures them.
    pub steal_ticks: Option<&'a StealTicks>,
    /// Stopped early by a user.
    pub interrupted: bool,
    /// Warnings so far.
    pub caveats: Vec<Caveat>,
    /// Loss counters of this host.
    pub counters: Vec<CounterDelta>,
}

/// Longest measurement of the wake-up time in nanoseconds: the other end waits for the results
/// meanwhile.
const WAKE_UP_TEST_LIMIT_NS: u64 = 30_000_000;

impl ResultBuilder<'_> {
    /// Builds the results for the other end and for the record.
    #[must_use]
    pub fn build(self) -> EndResults {
        let windows = self
            .finished_flows
            .iter()
            .map(|flow| self.counted_window(flow));
        let durations = windows.map(|(from_ns, end_ns)| end_ns.saturating_sub(from_ns));
        let duration_ns = durations.max().unwrap_or(0);
        let streams: Vec<_> = self
            .finished_flows
            .iter()
            .map(|flow| FlowFigures {
                direction: flow.direction,
                stream: self.stream_figures(flow),
            })
            .collect();
        let slow = self.slow_responses();
        let mut caveats = self.caveats.clone();
        caveats.extend(self.broken_streams());
        caveats.extend(self.ports_exhausted());
        caveats.extend(self.broken_connections());
        caveats.extend(self.missing_route());
        caveats.extend(self.steal_time());
        caveats.extend(self.crowded_cores());
        caveats.extend(self.gso_unsupported());
        caveats.extend(self.missing_poll_queue());
        caveats.extend(self.content_mismatch());
        caveats.extend(self.copied_sends());
        caveats.extend(self.overdue_requests());
        caveats.extend(self.device_times());
        let verification = self.verification();
        let calls = self.call_tally.map(|calls| calls.to_record(self.role));
        let (calls, call_clock) = calls.unzip();
        EndResults {
            role: self.role,
            host: self.host(),
            cpu: Some(self.cpu_cost()),
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
            caveats,
            slow,
            interrupted: self.interrupted,
            duration_ns,
        }
    }

    /// Returns the facts of this host, with those that are known only after the run.
    fn host(&self) -> HostFacts {
        let mut host = self.host.clone();
        let cpus = linerate_sys::cpu::list_usable().unwrap_or_default();
        let frequency = linerate_host::snapshot::read_frequency(&cpus);
        (host.cpu.frequency_hz, host.cpu.frequency_max_hz) = frequency.unzip();
        // A spinning thread is never woken. Of two ends on one machine, one measures the wake-up
        // time.
        if self.local_wait() != Some(WaitMode::Spin)
            && !self.interrupted
            && self.steal_ticks.is_some()
        {
            host.wake_up_ns = linerate_host::wake_up::measure_round_trip(WAKE_UP_TEST_LIMIT_NS);
        }
        host
    }

    fn histograms(&self) -> BTreeMap<String, HistogramData> {
        let mut histograms = crate::rate_accuracy::histograms_by_direction(self.finished_flows);
        let mut times = Histogram::new();
        for flow in self.finished_flows {
            if let Some(histogram) = &flow.times {
                times.add(histogram);
            }
        }
        if times.count() > 0 {
            histograms.insert("rtt_ns".to_owned(), HistogramData::from(&times));
        }
        let mut histogram: BTreeMap<&str, Histogram> = BTreeMap::new();
        for requests in self
            .finished_flows
            .iter()
            .filter_map(|flow| flow.requests.as_ref())
        {
            for (name, times) in &requests.histograms {
                histogram.entry(name).or_default().add(times);
            }
        }
        let histogram = histogram.iter().filter(|(_, times)| times.count() > 0);
        histograms
            .extend(histogram.map(|(&name, times)| (name.to_owned(), HistogramData::from(times))));
        histograms
    }

    /// Returns the first responses above the limit, over all flows.
    fn slow_responses(&self) -> Vec<SlowResponse> {
        let mut slow: Vec<SlowResponse> = (self.finished_flows.iter())
            .filter_map(|flow| flow.requests.as_ref()?.slow.as_ref())
            .flat_map(|(_, listed)| listed.iter().cloned())
            .collect();
        slow.sort_by_key(|response| response.at_ns);
        slow.truncate(MAX_LISTED_SLOW_RESPONSES);
        slow
    }

    /// Returns start and end of a flow's counted time.
    fn counted_window(&self, flow: &FlowEndResults) -> (Nanos, Nanos) {
        if (flow.role, self.plan.kind) != (FlowRole::Receiver, RunKind::Throughput) {
            return (self.counted_from_ns, flow.ended_ns);
        }
        let is_amount = self.plan.duration_ns.is_none() && !self.interrupted;
        let is_complete = is_amount
            && self
                .lost_datagrams(flow, PayloadTotals::default())
                .unwrap_or(0)
                == 0;
        let tcp = flow.facts.tcp.as_ref();
        let times = ReceiveTimes {
            start_ns: self.start_ns,
            counted_from_ns: self.counted_from_ns,
            first_ns: flow.first_ns,
            last_ns: flow.ended_ns,
            run_end_ns: self.window_end_ns.filter(|_| !is_complete),
            ends_by_time: !is_amount,
            min_rtt_ns: tcp.and_then(|tcp| tcp.min_rtt_ns),
            workers_ended_ns: self.workers_ended_ns,
        };
        times.window()
    }

    fn broken_streams(&self) -> Option<Caveat> {
        let broken = self.finished_flows.iter().filter_map(|flow| {
            let error = flow.error.as_ref()?;
            Some(format!("flow {}: {error}", flow.id))
        });
        let broken: Vec<_> = broken.take(3).collect();
        (!broken.is_empty()).then(|| Caveat::new(CaveatId::StreamBroken, broken.join("; ")))
    }

    /// Warns when connections had to wait for a local port.
    fn ports_exhausted(&self) -> Option<Caveat> {
        let requests = self
            .finished_flows
            .iter()
            .filter_map(|flow| flow.requests.as_ref());
        let waits: u64 = requests.map(|requests| requests.port_waits).sum();
        (waits > 0).then(|| {
            Caveat::new(
                CaveatId::PortsExhausted,
                format!(
                    "no local port was free for a new connection {waits} times, with a retry after \
                     1 ms: see `ss -tan state time-wait` and net.ipv4.ip_local_port_range"
                ),
            )
        })
    }

    /// Warns when connections were rejected or broken.
    fn broken_connections(&self) -> Option<Caveat> {
        let requests = self
            .finished_flows
            .iter()
            .filter_map(|flow| flow.requests.as_ref());
        let count: u64 = requests.map(|requests| requests.broken).sum();
        (count > 0).then(|| {
            Caveat::new(
                CaveatId::ConnectionsBroken,
                format!(
                    "{count} connections were rejected or reset, and their round trips count as lost: \
                     causes are a full listen queue, connection tracking or a filter, see \
                     `nstat -az TcpExtListenOverflows TcpEstabResets`"
                ),
            )
        })
    }

    /// Warns when the kernel had no route for a while.
    fn missing_route(&self) -> Option<Caveat> {
        let facts = self
            .finished_flows
            .iter()
            .filter_map(|flow| flow.facts.unroutable);
        let count: u64 = facts.map(u64::from).sum();
        (count > 0).then(|| {
            Caveat::new(
                CaveatId::NoRoute,
                format!(
                    "{count} sends had no route and were repeated: a link or a route was \
                     down, see `ip route get` and `ip -s link`"
                ),
            )
        })
    }

    /// Warns when intended round-trip times are lower bounds.
    fn overdue_requests(&self) -> Option<Caveat> {
        let requests = self
            .finished_flows
            .iter()
            .filter_map(|flow| flow.requests.as_ref());
        let count: u64 = requests.map(|requests| requests.without_response).sum();
        (count > 0).then(|| {
            Caveat::new(
                CaveatId::NoResponseAtEnd,
                format!(
                    "{} without a response at the end: each counts with its age \
                     since the scheduled send, a lower bound of its time",
                    count_of(count, "scheduled request")
                ),
            )
        })
    }

    /// Warns when responses carry no device times, or impossible ones.
    fn device_times(&self) -> Option<Caveat> {
        let requests = self
            .finished_flows
            .iter()
            .filter_map(|flow| flow.requests.as_ref());
        let (mut valid, mut missing, mut impossible) = (0, 0, 0);
        for counts in requests.filter_map(|requests| requests.device) {
            valid += counts.valid;
            missing += counts.missing;
            impossible += counts.impossible;
        }
        let all = valid + missing + impossible;
        let Some(stamps) = self.plan.round_trip.device_timestamps else {
            return self.unread_device_times();
        };
        if impossible > 0 {
            return Some(Caveat::new(
                CaveatId::DeviceTimestampsImpossible,
                format!(
                    "{impossible} of {all} responses have a device time above the round-trip time, \
                     read with --device-stamps {stamps}: compare its offset, width, order and hz \
                     with what the device writes"
                ),
            ));
        }
        (missing > 0).then(|| {
            Caveat::new(
                CaveatId::DeviceTimestampsMissing,
                format!(
                    "{missing} of {all} responses carry no device times at bytes {} to {}: the device \
                     writes none there",
                    stamps.byte_range().start,
                    stamps.byte_range().end - 1
                ),
            )
        })
    }

    /// Warns when responses seem to carry device times that are not read.
    fn unread_device_times(&self) -> Option<Caveat> {
        let requests = || {
            self.finished_flows
                .iter()
                .filter_map(|flow| flow.requests.as_ref())
        };
        let device_like: u64 = requests()
            .map(|requests| requests.differs_in_device_time)
            .sum();
        let wrong = requests().map(|requests| requests.wrong_content + requests.wrong_length);
        let is_echo = self.plan.peer_protocol.as_deref() == Some("echo");
        // A path that corrupts some responses is another cause.
        (is_echo && device_like > 0 && device_like == wrong.sum::<u64>()).then(|| {
            Caveat::new(
                CaveatId::DeviceTimestampsUnread,
                format!(
                    "{device_like} responses differ from their requests only in bytes 16 to 31, where a \
                     device may write its times (`linerate target-code --stamps`): \
                     --device-stamps 16 reads them"
                ),
            )
        })
    }

    /// Warns when the hypervisor gave CPU time of this machine to other guests.
    fn steal_time(&self) -> Option<Caveat> {
        let share = StealTicks::read()?.stolen_fraction_since(self.steal_ticks?)?;
        (share >= MIN_STEAL_SHARE).then(|| {
            Caveat::new(
                CaveatId::Steal,
                format!(
                    "the hypervisor gave {} of this machine's CPU time to other guests (steal time)",
                    format_share(share)
                ),
            )
        })
    }

    /// Returns the wait mode of this end, if the plan has one.
    fn local_wait(&self) -> Option<WaitMode> {
        let wait = self.plan.wait.as_ref()?;
        Some(match self.role {
            Role::Client => wait.client,
            Role::Server => wait.server,
        })
    }

    /// Warns when spinning threads did not have their CPUs to themselves.
    fn crowded_cores(&self) -> Option<Caveat> {
        let name = self.role.as_str();
        let wait = self.local_wait()?;
        // The senders of a throughput run may sleep.
        let all_spin = self.plan.kind == RunKind::Latency
            || self
                .finished_flows
                .iter()
                .all(|flow| flow.role == FlowRole::Receiver);
        if !all_spin || wait != WaitMode::Spin || self.thread_count == 0 {
            return None;
        }
        let cost = self.cpu_cost();
        let share = cost.share / self.thread_count as f64;
        // CPU time that a thread yields is not taken by others.
        let min_share = MIN_SPINNING_SHARE
            - if self.plan.round_trip.rt_yield {
                0.1
            } else {
                0.0
            };
        (share < min_share).then(|| {
            Caveat::new(
                CaveatId::CrowdedCores,
                format!(
                    "the {name}'s spinning threads had {} of a CPU each: {}",
                    format_share(share),
                    CpuThrottling::lost_time_reason(cost.throttling.as_ref())
                ),
            )
        })
    }

    /// Warns when the kernel does not segment datagrams on this path.
    fn gso_unsupported(&self) -> Option<Caveat> {
        let requests_total = self.plan.udp_offload.gso == Some(true);
        let many_per_call = MAX_DATAGRAM_BYTES / self.plan.payload_bytes.max(1) > 1;
        let rejected = self
            .finished_flows
            .iter()
            .any(|flow| flow.role == FlowRole::Sender && flow.facts.datagrams_per_call.is_none());
        (requests_total && many_per_call && rejected).then(|| {
            Caveat::new(
                CaveatId::OffloadRefused,
                "the interface does not support UDP GSO: each call sent one datagram",
            )
        })
    }

    /// Warns when busy polling had no receive queue.
    fn missing_poll_queue(&self) -> Option<Caveat> {
        let name = self.role.as_str();
        let wait = self.local_wait()?;
        let lacks_napi_id = |flow: &FlowEndResults| flow.facts.napi_id.is_none();
        let polls = matches!(wait, WaitMode::BusyPoll { .. });
        (polls && !self.finished_flows.is_empty() && self.finished_flows.iter().all(lacks_napi_id))
            .then(|| {
                Caveat::new(
                    CaveatId::NothingToPoll,
                    format!(
                        "the {name}'s interface gives its sockets no NAPI id (as with loopback and \
                     plain veth): busy polling was blocking"
                    ),
                )
            })
    }

    /// Warns when content differs from what was sent.
    fn content_mismatch(&self) -> Option<Caveat> {
        let bytes: u64 = (self.finished_flows.iter())
            .filter(|flow| flow.first_mismatch.is_some())
            .map(|flow| flow.mismatched)
            .sum();
        // The flow with the lowest number is the first that was opened.
        let first = (self.finished_flows.iter())
            .filter_map(|flow| Some((flow.id, flow.first_mismatch.as_ref()?)))
            .min_by_key(|(id, _)| *id);
        let (id, mismatch) = first?;
        let position = match mismatch.datagram {
            Some(number) => format!("datagram {number}, offset {}", mismatch.offset),
            None => format!("offset {}", mismatch.offset),
        };
        let actual = match mismatch.received.as_str() {
            "" => "no more bytes",
            actual => actual,
        };
        Some(Caveat::new(
            CaveatId::ContentMismatch,
            format!(
                "{bytes} B differ from what was sent; first in stream {id}, {position}: \
                 expected {}, found {actual}",
                mismatch.expected
            ),
        ))
    }

    /// Warns when zero-copy sends were copied.
    fn copied_sends(&self) -> Option<Caveat> {
        let facts = self
            .finished_flows
            .iter()
            .filter_map(|flow| flow.facts.zero_copy);
        let (sends, copied) = facts.fold((0, 0), |(sends, copied), facts| {
            (sends + facts.sends, copied + facts.copied)
        });
        (copied > 0).then(|| {
            Caveat::new(
                CaveatId::ZeroCopyCopied,
                format!(
                    "the kernel copied {} of the {sends} sends with MSG_ZEROCOPY, as it \
                     does on loopback and veth",
                    format_share(copied as f64 / sends.max(1) as f64)
                ),
            )
        })
    }

    /// Measures the cost of verification on this CPU, while no payload moves.
    fn verification(&self) -> Option<VerificationCost> {
        let has_role = |part| self.finished_flows.iter().any(|flow| flow.role == part);
        (self.plan.verify).then(|| {
            payload_pattern::measure_cost(
                self.role,
                has_role(FlowRole::Sender),
                has_role(FlowRole::Receiver),
            )
        })
    }

    fn cpu_cost(&self) -> CpuCost {
        let mut totals_of_all = PayloadTotals::default();
        for flow in self.finished_flows {
            totals_of_all += flow.totals;
        }
        cpu_cost::cpu_cost(&CpuCostInputs {
            role: self.role,
            plan: self.plan,
            wall_ns: self.workers_ended_ns.saturating_sub(self.start_ns),
            thread_usage: &self.thread_usage,
            thread_costs: self.thread_costs.costs(),
            totals: totals_of_all,
            throttling: self.throttling,
            machine: self.machine,
            processors: self.cpu_times.clone(),
            uncounted_because: self.thread_costs.uncounted_because(),
        })
    }

    /// Returns this end's figures of one flow.
    fn stream_figures(&self, flow: &FlowEndResults) -> StreamFigures {
        let plan = self.plan;
        let baseline = self.baseline.get(&flow.id).copied().unwrap_or_default();
        let totals = flow.totals.since(baseline.totals);
        let (from_ns, end_ns) = self.counted_window(flow);
        let duration_ns = end_ns.saturating_sub(from_ns);
        let seconds = duration_ns as f64 / 1e9;
        let per_second = |count: u64| (duration_ns > 0).then(|| count as f64 / seconds);
        let is_udp = plan.protocol == TransportProtocol::Udp;
        let mut summary = Summary {
            duration_ns: Some(duration_ns),
            ..Summary::default()
        };
        let retransmits = flow.facts.tcp.as_ref().map(|tcp| tcp.retransmits);
        let retransmits = retransmits.map(|now| now.saturating_sub(baseline.retransmits));
        let of_netstack = || {
            linerate_transport::stack_thread::stack_facts::retransmits(
                self.host.stack.as_deref()?,
                plan,
            )
        };
        let retransmits = retransmits.or_else(of_netstack);
        match (plan.kind, flow.role) {
            (RunKind::Throughput, FlowRole::Sender) => {
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
            (RunKind::Throughput, FlowRole::Receiver) => {
                summary.bytes_received = Some(totals.bytes);
                summary.goodput_bps = per_second(totals.bytes * 8);
                summary.mismatched = plan.verify.then_some(flow.mismatched);
                if is_udp {
                    summary.packets_received = Some(totals.packets);
                    summary.packets_per_second = per_second(totals.packets);
                    self.add_sequence_results(flow, baseline.totals, &mut summary);
                }
            }
            (RunKind::Latency, FlowRole::Sender) => {
                let times = flow.times.as_ref();
                let round_trips = times.map_or(0, Histogram::count);
                summary.rtt_ns = times.and_then(Histogram::summary);
                summary.round_trips = Some(round_trips);
                summary.round_trips_per_second = per_second(round_trips);
                let connects = plan.round_trip.socket_mode == SocketMode::Reopened && !is_udp;
                summary.connections_per_second =
                    connects.then(|| per_second(round_trips)).flatten();
                summary.lost = Some(totals.missing);
                let requests_total = round_trips + totals.missing;
                summary.loss_fraction =
                    (requests_total > 0).then(|| totals.missing as f64 / requests_total as f64);
                summary.mismatched = Some(flow.mismatched).filter(|_| plan.round_trip.verify);
                self.add_request_results(flow, &mut summary);
                summary.bytes_sent = Some(totals.calls * plan.payload_bytes);
                summary.bytes_received = Some(totals.bytes);
                summary.retransmits = retransmits;
            }
            (RunKind::Latency, FlowRole::Receiver)
            | (RunKind::Forward | RunKind::Generate | RunKind::Stack, _) => {}
        }
        let mut facts = flow.facts.clone();
        if flow.role == FlowRole::Sender
            && let Some(rejected) = &mut facts.send_refused
        {
            *rejected = rejected.saturating_sub(baseline.totals.missing);
            summary.unsent = Some(*rejected).filter(|&rejected| rejected > 0);
        }
        let facts = Some(facts);
        let (sender, receiver) = match flow.role {
            FlowRole::Sender => (facts, None),
            FlowRole::Receiver => (None, facts),
        };
        StreamFigures {
            id: flow.id,
            summary,
            mismatch: flow.first_mismatch.clone(),
            sender,
            receiver,
        }
    }

    /// Adds the results of a requesting end other than its round-trip times.
    fn add_request_results(&self, flow: &FlowEndResults, summary: &mut Summary) {
        if let Some(numbers) = &flow.sequence {
            summary.out_of_order = Some(numbers.out_of_order());
            summary.duplicates = Some(numbers.duplicates());
        }
        let Some(requests) = &flow.requests else {
            return;
        };
        let verified = self.plan.round_trip.verify;
        summary.wrong_length = verified.then_some(requests.wrong_length);
        summary.wrong_content = verified.then_some(requests.wrong_content);
        summary.slow = requests.slow.as_ref().map(|(count, _)| *count);
        summary.unsent = requests.unsent;
    }

    /// Returns the number of distinct datagrams that a receiver got.
    fn unique_datagrams(flow: &FlowEndResults) -> u64 {
        match &flow.sequence {
            Some(sequence) => sequence.unique(),
            None => flow.totals.packets,
        }
    }

    /// Returns the datagrams of a flow that did not arrive since `baseline`; `None` when this is
    /// unknown.
    fn lost_datagrams(&self, flow: &FlowEndResults, baseline: PayloadTotals) -> Option<u64> {
        let handle = find_flow(self.flows, flow.id)?;
        let lost = match (handle.shared.expected(), &flow.sequence) {
            // Without sequence numbers, losses in the omitted time cannot be separated.
            (Some(_), None) if self.plan.omit_ns > 0 => return None,
            (Some(expected), _) => expected.saturating_sub(Self::unique_datagrams(flow)),
            // Without the sender's total, only gaps are visible.
            (None, Some(sequence)) => sequence.missing(),
            (None, None) => return None,
        };
        Some(lost.saturating_sub(baseline.missing))
    }

    /// Adds the figures of sequence numbers and the sender's total.
    fn add_sequence_results(
        &self,
        flow: &FlowEndResults,
        baseline: PayloadTotals,
        summary: &mut Summary,
    ) {
        if let Some(sequence) = &flow.sequence {
            summary.out_of_order = Some(sequence.out_of_order());
            summary.duplicates = Some(sequence.duplicates().saturating_sub(baseline.duplicates));
            summary.reordering_extent = sequence.reordering_extent();
            summary.ipdv_ns = sequence.ipdv_ns();
        }
        let Some(lost) = self.lost_datagrams(flow, baseline) else {
            return;
        };
        let before = baseline.packets.saturating_sub(baseline.duplicates);
        let received = Self::unique_datagrams(flow).saturating_sub(before);
        let sent = received + lost;
        summary.lost = Some(lost);
        summary.loss_fraction = (sent > 0).then(|| lost as f64 / sent as f64);
    }
}
