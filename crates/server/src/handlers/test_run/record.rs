//! Record of a test, built from the results of its workers.

use linerate_host::snapshot::cpu_quota::read_cpu_throttling;
use linerate_protocol::remote_report::RemoteReport;
use linerate_record::cost::ThreadCost;
use linerate_record::event::{ErrorReport, EventKind};
use linerate_record::facts::Role;
use linerate_record::ids::CaveatId;
use linerate_record::plan::{RunKind, TransportProtocol};
use linerate_record::record::{Caveat, CpuCost, FlowEnd, ServedClient};
use linerate_session::cpu_cost;
use linerate_session::cpu_cost::CpuCostInputs;
use linerate_session::error::SessionError;
use linerate_session::setup::host_facts;
use linerate_session::third_party_record::{FlowCounts, InteropTest, local_results};
use linerate_sys::cpu::ThreadUsage;
use linerate_transport::flow_role::FlowRole;

use super::{MIN_LAST_INTERVAL_NS, MIN_ONLY_INTERVAL_NS, TestRun, TestWorker};
use crate::handlers::worker::{FlowFailure, FlowWorkerResult};

/// Returns the caveat of datagrams that are in no count.
fn unparsed_caveat(protocol: &str, unparsed: u64) -> Caveat {
    let datagrams = match unparsed {
        1 => "1 datagram was received that is",
        _ => &format!("{unparsed} datagrams were received that are"),
    };
    Caveat::new(
        CaveatId::UnreadDatagrams,
        format!(
            "{datagrams} not of {protocol}, and in no count; a port that is given to plain payload \
             counts all (--also PORT=plain)"
        ),
    )
}

/// Returns the caveat of a flow whose first received datagram is not its first one.
fn late_start_caveat(before: u64) -> Caveat {
    Caveat::new(
        CaveatId::StartedEarlier,
        format!(
            "the first received datagram has number {}: {before} before it are in no count here, and lost in the \
             client's own report; they were sent before this server accepted the flow (its log has the rejection), to \
             another server, before a pause of the client that ended its test, or were lost",
            before.saturating_add(1)
        ),
    )
}

impl TestRun {
    /// Builds and emits the record, and releases all resources. `failure` is the error that ended
    /// the test early.
    pub fn finish(mut self, remote_report: RemoteReport, failure: Option<SessionError>) {
        self.join();
        let is_short_flow = self.is_short_flow();
        self.end_intervals();
        let failure = failure.or_else(|| self.first_failure());
        if is_short_flow {
            let description = format!("one datagram of {} B", self.total().bytes);
            self.server.interop.log_short_flow(self.peer, &description);
            (self.reservation.started, self.reservation.number_shown) = (false, true);
            return;
        }
        let unparsed: u64 = self.results().map(|result| result.unparsed).sum();
        if unparsed > 0 {
            self.add_caveat(unparsed_caveat(self.protocol, unparsed));
        }
        if let Some(before) = self
            .results()
            .map(|result| result.before_first)
            .max()
            .filter(|&n| n > 0)
        {
            self.add_caveat(late_start_caveat(before));
        }
        let no_figures = if self.total().bytes == 0 {
            Some(("no payload was received", "see the client's own messages"))
        } else if self.has_no_responses() {
            let next = "see which responses were rejected, and what would allow them";
            Some(("no request was answered", next))
        } else {
            None
        };
        if let Some((situation, next)) = no_figures {
            let problem = failure.as_ref().map_or_else(
                || ErrorReport::new(situation, self.peer.to_string(), next),
                SessionError::to_report,
            );
            self.emit(EventKind::Failed { problem });
            self.store_failure(failure);
            return;
        }
        if self.sized_by_payload
            && let Some(bytes) = self.largest_size()
        {
            self.plan.payload_bytes = bytes;
        }
        let host = host_facts(Role::Server, self.peer.ip());
        let flow_counts: Vec<_> = self
            .workers
            .iter()
            .map(|worker| self.flow_counts(worker))
            .collect();
        let mut local_results = local_results(Role::Server, host, &self.plan, &flow_counts);
        if self.plan.kind == RunKind::Latency {
            for (flow, worker) in local_results.streams.iter_mut().zip(&self.workers) {
                let Some(result) = &worker.result else {
                    continue;
                };
                let summary = &mut flow.stream.summary;
                summary.bytes_received = Some(result.totals.bytes);
                summary.round_trips = result.responses;
                let seconds = summary.duration_ns.filter(|&ns| ns > 0);
                summary.round_trips_per_second =
                    (result.responses.zip(seconds)).map(|(n, ns)| n as f64 * 1e9 / ns as f64);
            }
        }
        local_results.cpu = Some(self.cpu_cost());
        local_results.interrupted = self.interrupted;
        local_results.caveats = std::mem::take(&mut self.caveats);
        let mut test = InteropTest::new(
            self.protocol,
            self.plan.clone(),
            self.started,
            local_results,
        );
        test.intervals = std::mem::take(&mut self.intervals);
        test.dropped_intervals = self.dropped_intervals;
        test.remote_report = remote_report;
        test.failure = failure;
        test.ipv6 = self.peer.is_ipv6();
        let (mut record, failure) = test.into_record();
        record.served_client = Some(ServedClient {
            address: self.peer.to_string(),
            agent: std::mem::take(&mut self.agent),
        });
        self.emit(EventKind::Finished {
            record: Box::new(record),
        });
        self.store_failure(failure);
    }

    /// Emits the last interval, once all workers have ended.
    pub fn end_intervals(&mut self) {
        self.start_with_payload();
        let last = self
            .workers
            .iter()
            .filter_map(|worker| self.payload_times(worker));
        let last = last.map(|(_, last)| last).max().unwrap_or(self.start_ns);
        self.discard_silence();
        while self.interval_end_ns() <= last {
            self.close_interval(self.interval_end_ns());
        }
        let shortest = match self.interval_number {
            0 => MIN_ONLY_INTERVAL_NS,
            _ => MIN_LAST_INTERVAL_NS,
        };
        if last > self.interval_start_ns + shortest && !self.between_phases {
            self.close_interval(last);
        }
        self.emit_held();
    }

    /// Returns the results of the workers that have ended.
    fn results(&self) -> impl Iterator<Item = &FlowWorkerResult> {
        self.workers
            .iter()
            .filter_map(|worker| worker.result.as_ref())
    }

    /// Returns the size of the received datagrams; of several flows, the largest.
    fn largest_size(&self) -> Option<u64> {
        self.results()
            .filter_map(|result| result.datagram_size.majority())
            .max()
    }

    /// Returns whether there were requests but not one response.
    fn has_no_responses(&self) -> bool {
        let responses = || self.results().filter_map(|result| result.responses);
        self.plan.kind == RunKind::Latency
            && self.plan.protocol == TransportProtocol::Udp
            && responses().next().is_some()
            && responses().sum::<u64>() == 0
    }

    fn store_failure(&self, failure: Option<SessionError>) {
        if let Some(failure) = failure {
            *self.server.failure.lock().expect("no holder panics") = Some(failure);
        }
    }

    /// Returns the failure of the first worker that ended early.
    fn first_failure(&self) -> Option<SessionError> {
        let mut failure = self
            .workers
            .iter()
            .filter_map(|worker| worker.result.as_ref()?.failure.as_ref());
        failure.next().map(|failure| SessionError::PeerLost {
            peer: self.peer,
            reason: match failure {
                FlowFailure::Idle(time) => format!("no payload moved for {} s", time.as_secs_f64()),
                FlowFailure::Socket(error) => error.to_string(),
                FlowFailure::InvalidData(reason) => reason.clone(),
            },
        })
    }

    fn flow_counts(&self, worker: &TestWorker) -> FlowCounts {
        let mut counts = FlowCounts::new(worker.id, worker.role);
        let Some(result) = &worker.result else {
            return counts;
        };
        let udp = self.plan.protocol == TransportProtocol::Udp;
        let omitted = self.omitted_totals(worker.id);
        let totals = result.totals.since(omitted);
        counts.bytes = totals.bytes;
        counts.packets = udp.then_some(totals.packets);
        counts.calls = Some(totals.calls);
        counts.duration_ns = self.worker_duration_ns(worker).unwrap_or(0);
        if let Some(sequence_stats) = result.sequence_stats {
            counts.lost = sequence_stats
                .lost
                .map(|lost| lost.saturating_sub(omitted.missing));
            counts.out_of_order = sequence_stats.out_of_order;
            counts.duplicates = sequence_stats.duplicates;
            counts.ipdv_ns = sequence_stats.ipdv_ns;
        }
        counts.one_way_delays = result
            .one_way_delays
            .as_ref()
            .and_then(|d| d.histogram().cloned());
        if worker.role == FlowRole::Sender {
            let tcp = result
                .socket
                .as_ref()
                .and_then(|socket| socket.tcp.as_ref());
            counts.retransmits = tcp.map(|tcp| tcp.retransmits);
        }
        counts.socket.clone_from(&result.socket);
        counts
    }

    /// Returns the processor cost of the workers.
    fn cpu_cost(&self) -> CpuCost {
        let mut usage = ThreadUsage::default();
        let mut threads = Vec::new();
        // Workers also wait for the first payload, and the cost of that is theirs.
        let (mut begin_ns, mut end_ns) = (self.start_ns, self.start_ns);
        for worker in &self.workers {
            let Some(result) = &worker.result else {
                continue;
            };
            let worker_usage = result.usage;
            usage.cpu_ns += worker_usage.cpu_ns;
            usage.user_ns += worker_usage.user_ns;
            usage.system_ns += worker_usage.system_ns;
            usage.voluntary_switches += worker_usage.voluntary_switches;
            usage.involuntary_switches += worker_usage.involuntary_switches;
            begin_ns = begin_ns.min(result.lifetime.0);
            end_ns = end_ns.max(result.lifetime.1);
            threads.push(ThreadCost {
                direction: worker.direction(),
                flow_end: match worker.role {
                    FlowRole::Sender => FlowEnd::Sender,
                    FlowRole::Receiver => FlowEnd::Receiver,
                },
                flows: 1,
                wall_ns: result.lifetime.1.saturating_sub(result.lifetime.0),
                cpu_ns: worker_usage.cpu_ns,
                user_ns: worker_usage.user_ns,
                system_ns: worker_usage.system_ns,
                runnable_ns: None,
                blocked_ns: None,
                voluntary_switches: worker_usage.voluntary_switches,
                involuntary_switches: worker_usage.involuntary_switches,
                cpus: None,
                calls: Some(result.totals.calls),
                empty_calls: None,
                cycles: None,
                instructions: None,
            });
        }
        cpu_cost::cpu_cost(&CpuCostInputs {
            role: Role::Server,
            plan: &self.plan,
            wall_ns: end_ns.saturating_sub(begin_ns),
            thread_usage: &usage,
            thread_costs: &threads,
            totals: self.total(),
            throttling: (read_cpu_throttling().zip(self.throttling_at_start))
                .map(|(now, before)| now.since(&before)),
            machine: None,
            processors: Vec::new(),
            uncounted_because: None,
        })
    }
}
