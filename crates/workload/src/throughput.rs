//! Throughput: payload in one direction, as fast as possible or at a rate.

use std::io;
use std::sync::Arc;
use std::task::Poll;

use linerate_protocol::control::flow as wire;
use linerate_record::pace::PacingMethod;
use linerate_record::plan::TransportProtocol;
use linerate_sys::clock::Nanos;
use linerate_sys::readiness::Readiness;
use linerate_transport::Transport;
use linerate_transport::flow_role::FlowRole;
use linerate_transport::payload_pattern::{PayloadPattern, PayloadVerifier};

use super::round_trip::rt_yield::RtYield;
use super::{
    OpenFlow, Progress, WorkerContext, Workload, drive, drive_reporting, drive_with_idle_hook,
    readiness_driver,
};
use crate::delay_variation::DelayVariation;
use crate::flow::{FlowEndResults, FlowShared, TimingHistograms};
use crate::flow_counters::PayloadTotals;
use crate::framing::{DatagramClass, Framing};
use crate::pacer::Pacer;
use crate::sequence_tracker::SequenceTracker;

/// Silence after which a receiver counts the rest of a finished UDP flow as lost.
const DRAIN_SILENCE_NS: Nanos = 250_000_000;

/// Lead of the send call before the departure time that the kernel keeps (SO_TXTIME): a sleeping
/// thread wakes up to 0.1 ms late.
const TXTIME_LEAD_NS: Nanos = 1_000_000;

/// Runs the flows of one thread.
pub fn run<T: Transport>(
    worker: &WorkerContext<'_>,
    transport: &mut T,
    flows: Vec<OpenFlow<T::Socket>>,
) -> Vec<FlowEndResults> {
    match (worker.plan.protocol, worker.role) {
        (TransportProtocol::Tcp, FlowRole::Sender) => {
            let flows = flows.into_iter().map(|flow| TcpSendFlow::new(worker, flow));
            drive_flows(worker, transport, flows.collect())
        }
        (TransportProtocol::Tcp, FlowRole::Receiver) => {
            let flows = flows
                .into_iter()
                .map(|flow| TcpReceiveFlow::new(worker, flow));
            drive_flows(worker, transport, flows.collect())
        }
        (TransportProtocol::Udp, FlowRole::Sender) => {
            let flows = flows.into_iter().map(|flow| UdpSendFlow::new(worker, flow));
            drive_flows(worker, transport, flows.collect())
        }
        (TransportProtocol::Udp, FlowRole::Receiver) => {
            let flows = flows
                .into_iter()
                .map(|flow| UdpReceiveFlow::new(worker, flow));
            drive_flows(worker, transport, flows.collect())
        }
    }
}

/// Runs flows of both directions on one thread.
pub fn run_bidirectional<T: Transport>(
    workers: &[WorkerContext<'_>],
    transport: &mut T,
    flows: Vec<Vec<OpenFlow<T::Socket>>>,
    on_finished: impl FnMut(FlowEndResults),
) {
    let all = workers.iter().zip(flows);
    let all = all.flat_map(|(worker, flows)| flows.into_iter().map(move |flow| (worker, flow)));
    let Some(first) = workers.first() else {
        return;
    };
    match first.plan.protocol {
        TransportProtocol::Tcp => {
            let flows = all.map(|(worker, flow)| match worker.role {
                FlowRole::Sender => BidirectionalFlow::Sender(TcpSendFlow::new(worker, flow)),
                FlowRole::Receiver => {
                    BidirectionalFlow::Receiver(TcpReceiveFlow::new(worker, flow))
                }
            });
            drive_reporting(transport, flows.collect(), || {}, on_finished);
        }
        TransportProtocol::Udp => {
            let flows = all.map(|(worker, flow)| match worker.role {
                FlowRole::Sender => BidirectionalFlow::Sender(UdpSendFlow::new(worker, flow)),
                FlowRole::Receiver => {
                    BidirectionalFlow::Receiver(UdpReceiveFlow::new(worker, flow))
                }
            });
            drive_reporting(transport, flows.collect(), || {}, on_finished);
        }
    }
}

/// A flow of a thread with flows of both directions.
enum BidirectionalFlow<A, B> {
    Sender(A),
    Receiver(B),
}

impl<T: Transport, A: Workload<T>, B: Workload<T>> Workload<T> for BidirectionalFlow<A, B> {
    #[inline]
    fn step(&mut self, transport: &mut T) -> io::Result<Progress> {
        match self {
            Self::Sender(flow) => flow.step(transport),
            Self::Receiver(flow) => flow.step(transport),
        }
    }

    fn socket(&self) -> Option<T::Socket> {
        match self {
            Self::Sender(flow) => flow.socket(),
            Self::Receiver(flow) => flow.socket(),
        }
    }

    fn finish(self, transport: &T, error: Option<io::Error>) -> FlowEndResults {
        match self {
            Self::Sender(flow) => flow.finish(transport, error),
            Self::Receiver(flow) => flow.finish(transport, error),
        }
    }
}

/// Runs the flows of a thread: by readiness where there are several, otherwise (or at a rate) by
/// polling them in rotation.
fn drive_flows<T: Transport, W: Workload<T>>(
    worker: &WorkerContext<'_>,
    transport: &mut T,
    flows: Vec<W>,
) -> Vec<FlowEndResults> {
    let ready = match worker.role {
        FlowRole::Sender => Readiness::Send,
        FlowRole::Receiver => Readiness::Receive,
    };
    if let Some(mut rt_yield) = RtYield::for_worker(worker) {
        return drive_with_idle_hook(transport, flows, || rt_yield.pause_if_due());
    }
    let paced = worker.role == FlowRole::Sender && worker.plan.rate_bps.is_some();
    if paced || flows.len() < readiness_driver::MIN_FLOWS {
        return drive(transport, flows);
    }
    // A TCP socket reports its end, unless the run is over: sweeping ten thousand idle flows ten
    // times a second would take a tenth of a core. With UDP the last datagram may be lost.
    let should_sweep =
        || worker.plan.protocol == TransportProtocol::Udp || worker.phase.is_ending();
    readiness_driver::drive(transport, flows, ready, should_sweep)
        .unwrap_or_else(|flows| drive(transport, flows))
}

/// Sending limits of one flow: its share of the amount, and its rate.
struct SendBudget {
    remaining_bytes: u64,
    pacer: Pacer,
    /// Start of the counted time, while it lies ahead.
    count_from_ns: Option<Nanos>,
}

impl SendBudget {
    fn new(worker: &WorkerContext<'_>, id: u32) -> Self {
        let plan = worker.plan;
        let remaining_bytes = plan.amount_bytes;
        let remaining_bytes =
            remaining_bytes.map_or(u64::MAX, |amount| worker.share_of(amount, id));
        // With SO_MAX_PACING_RATE the kernel alone keeps the rate: its pacing is what is measured.
        let rate = plan
            .rate_bps
            .filter(|_| plan.pace.method != PacingMethod::Socket);
        let pacer = Pacer::new(rate, worker.run_clock.start_ns)
            .with_burst_bytes(plan.pace.burst_bytes(plan.payload_bytes));
        Self {
            remaining_bytes,
            count_from_ns: (plan.omit_ns > 0 && rate.is_some())
                .then_some(worker.run_clock.count_from_ns),
            pacer: match plan.pace.method {
                PacingMethod::Txtime => pacer.with_lead_ns(TXTIME_LEAD_NS),
                _ => pacer,
            },
        }
    }
}

impl SendBudget {
    /// Restarts the pacer when counting starts: debt of the omitted time is dropped.
    #[inline]
    fn restart_when_counting(&mut self, now: Nanos) {
        if self.count_from_ns.is_some_and(|from| now >= from) {
            self.count_from_ns = None;
            self.pacer.restart(now);
        }
    }
}

/// Figures of every flow.
struct FlowStats<'a, S> {
    worker: &'a WorkerContext<'a>,
    id: u32,
    socket: S,
    shared: Arc<FlowShared>,
    totals: PayloadTotals,
    /// Receiver: time of the first payload.
    first_ns: Option<Nanos>,
    end_ns: Nanos,
    /// Payload content to verify, if any.
    pattern: Option<PayloadPattern>,
}

impl<'a, S: Copy> FlowStats<'a, S> {
    fn new(worker: &'a WorkerContext<'a>, flow: OpenFlow<S>) -> Self {
        Self {
            worker,
            id: flow.id,
            socket: flow.socket,
            shared: flow.shared,
            totals: PayloadTotals::default(),
            first_ns: None,
            end_ns: worker.run_clock.start_ns,
            pattern: flow.pattern,
        }
    }

    #[inline]
    fn count_transfer(&mut self, bytes: usize) {
        self.totals.bytes += bytes as u64;
        self.totals.calls += 1;
        self.shared.counters.publish(&self.totals);
    }

    /// Counts datagrams whose time passed while the socket was full.
    fn count_unsent(&mut self, datagrams: u64) {
        self.totals.missing += datagrams;
        self.shared.counters.publish(&self.totals);
    }

    fn finish<T: Transport<Socket = S>>(
        self,
        transport: &T,
        sequence: Option<SequenceTracker>,
        verifier: Option<PayloadVerifier>,
        timing: TimingHistograms,
        error: Option<io::Error>,
    ) -> FlowEndResults {
        let (mismatched, first_mismatch) = verifier.map_or((0, None), |verifier| {
            (verifier.mismatched, verifier.first_mismatch)
        });
        FlowEndResults {
            id: self.id,
            direction: self.worker.direction,
            role: self.worker.role,
            totals: self.totals,
            sequence,
            times: None,
            mismatched,
            first_mismatch,
            log: None,
            timing,
            facts: transport.socket_facts(self.socket),
            first_ns: self.first_ns,
            ended_ns: match error {
                // A failed flow may have read the clock long ago.
                Some(_) => transport.now(),
                None => self.end_ns,
            },
            error,
            requests: None,
        }
    }
}

/// Sends a stream. The clock is read only for a rate: the coordinator ends the run.
struct TcpSendFlow<'a, S> {
    stats: FlowStats<'a, S>,
    framing: Framing,
    budget: SendBudget,
    call_bytes: u64,
}

impl<'a, S: Copy> TcpSendFlow<'a, S> {
    fn new(worker: &'a WorkerContext<'a>, mut flow: OpenFlow<S>) -> Self {
        Self {
            framing: std::mem::take(&mut flow.framing),
            budget: SendBudget::new(worker, flow.id),
            call_bytes: worker.plan.payload_bytes,
            stats: FlowStats::new(worker, flow),
        }
    }
}

impl<T: Transport> Workload<T> for TcpSendFlow<'_, T::Socket> {
    #[inline]
    fn step(&mut self, transport: &mut T) -> io::Result<Progress> {
        let bytes = self.call_bytes.min(self.budget.remaining_bytes);
        if bytes == 0 || self.stats.worker.phase.is_ending() {
            self.stats.end_ns = transport.now();
            // An error means that the connection is closed already.
            let _ = transport.shutdown_send(self.stats.socket);
            return Ok(Progress::Done);
        }
        let paced = self.budget.pacer.is_paced();
        let mut now = 0;
        if paced {
            now = transport.now();
            self.budget.restart_when_counting(now);
            if let Some(departure_ns) = self.budget.pacer.wait_until(now) {
                return Ok(Progress::Starved(Some(departure_ns)));
            }
        }
        let (pattern, offset) = (self.stats.pattern, self.stats.totals.bytes);
        let framing = &self.framing;
        let sent = transport.tcp_send(self.stats.socket, bytes as usize, |payload| {
            // Without verification the buffer keeps its old content.
            if let Some(pattern) = pattern {
                pattern.fill(offset, payload);
            }
            framing.write_prefix(offset, payload);
        });
        match sent {
            Poll::Pending => Ok(Progress::Starved(None)),
            Poll::Ready(accepted) => {
                let accepted = accepted?;
                self.budget.remaining_bytes -= accepted as u64;
                if paced {
                    // Time lost to a full buffer beyond the pacer's limit is not made up for.
                    self.budget.pacer.drop_overdue(now, self.call_bytes);
                    self.budget.pacer.record_sent(accepted as u64, now);
                }
                self.stats.count_transfer(accepted);
                Ok(Progress::Worked)
            }
        }
    }

    fn socket(&self) -> Option<T::Socket> {
        Some(self.stats.socket)
    }

    fn finish(self, transport: &T, error: Option<io::Error>) -> FlowEndResults {
        let timing = TimingHistograms {
            lateness: self.budget.pacer.into_lateness(),
            ..TimingHistograms::default()
        };
        self.stats.finish(transport, None, None, timing, error)
    }
}

/// Receives a stream to its end. The clock is read once, right after the last payload.
struct TcpReceiveFlow<'a, S> {
    stats: FlowStats<'a, S>,
    call_bytes: usize,
    verifier: Option<PayloadVerifier>,
}

impl<'a, S: Copy> TcpReceiveFlow<'a, S> {
    fn new(worker: &'a WorkerContext<'a>, flow: OpenFlow<S>) -> Self {
        let call_bytes = worker
            .plan
            .receive_bytes
            .unwrap_or(worker.plan.payload_bytes);
        Self {
            verifier: flow.pattern.map(PayloadVerifier::new),
            stats: FlowStats::new(worker, flow),
            call_bytes: call_bytes as usize,
        }
    }
}

impl<T: Transport> Workload<T> for TcpReceiveFlow<'_, T::Socket> {
    #[inline]
    fn step(&mut self, transport: &mut T) -> io::Result<Progress> {
        let (verifier, offset) = (&mut self.verifier, self.stats.totals.bytes);
        let received = transport.tcp_receive(self.stats.socket, self.call_bytes, |payload| {
            if let Some(verifier) = verifier {
                verifier.check_stream(offset, payload);
            }
            payload.len()
        });
        match received {
            Poll::Ready(Ok(0)) => {
                self.stats.end_ns = transport.now();
                Ok(Progress::Done)
            }
            Poll::Ready(Ok(bytes)) => {
                if self.stats.first_ns.is_none() {
                    self.stats.first_ns = Some(transport.now());
                }
                self.stats.count_transfer(bytes);
                if self.stats.worker.phase.is_aborted() {
                    self.stats.end_ns = transport.now();
                    return Ok(Progress::Done);
                }
                Ok(Progress::Worked)
            }
            Poll::Ready(Err(error)) => {
                self.stats.end_ns = transport.now();
                Err(error)
            }
            Poll::Pending if self.stats.worker.phase.is_aborted() => {
                self.stats.end_ns = transport.now();
                Ok(Progress::Done)
            }
            Poll::Pending => Ok(Progress::Starved(None)),
        }
    }

    fn socket(&self) -> Option<T::Socket> {
        Some(self.stats.socket)
    }

    fn finish(self, transport: &T, error: Option<io::Error>) -> FlowEndResults {
        self.stats.finish(
            transport,
            None,
            self.verifier,
            TimingHistograms::default(),
            error,
        )
    }
}

/// Fills a datagram behind its header, or completely if it is too small for a header.
#[inline]
fn fill_datagram(pattern: PayloadPattern, payload: &mut [u8], number: u64, sent_ns: Nanos) {
    match payload.get_mut(wire::HEADER_BYTES..) {
        Some(content) => {
            let pattern = pattern.for_datagram(number, sent_ns);
            pattern.fill(wire::HEADER_BYTES as u64, content);
        }
        None => pattern.fill(0, payload),
    }
}

/// Sends numbered datagrams.
struct UdpSendFlow<'a, S> {
    stats: FlowStats<'a, S>,
    framing: Framing,
    budget: SendBudget,
    payload_bytes: usize,
    /// True if datagrams have departure times; a copy of the pacer's flag.
    is_paced: bool,
    /// True if the kernel keeps the departure times (SO_TXTIME).
    has_txtime: bool,
    /// True if the socket was full when the present datagram was due.
    is_socket_full: bool,
}

impl<'a, S: Copy> UdpSendFlow<'a, S> {
    fn new(worker: &'a WorkerContext<'a>, mut flow: OpenFlow<S>) -> Self {
        let budget = SendBudget::new(worker, flow.id);
        Self {
            framing: std::mem::take(&mut flow.framing),
            is_paced: budget.pacer.is_paced(),
            has_txtime: budget.pacer.is_paced() && worker.plan.pace.method == PacingMethod::Txtime,
            budget,
            payload_bytes: worker.plan.payload_bytes as usize,
            stats: FlowStats::new(worker, flow),
            is_socket_full: false,
        }
    }

    /// Drops overdue datagrams. Where the socket was full they count as lost there, as for an
    /// application that cannot wait; a stall of this thread was never offered load.
    #[inline]
    fn drop_overdue(&mut self, now: Nanos) {
        let bytes = self.payload_bytes as u64;
        let dropped = self.budget.pacer.drop_overdue(now, bytes);
        if dropped > 0 && self.is_socket_full {
            self.stats.count_unsent(dropped);
        }
    }
}

impl<T: Transport> Workload<T> for UdpSendFlow<'_, T::Socket> {
    #[inline]
    fn step(&mut self, transport: &mut T) -> io::Result<Progress> {
        // One clock reading serves the pacing and the timestamp in the payload.
        let now = transport.now();
        if self.budget.remaining_bytes == 0 || self.stats.worker.phase.is_ending() {
            self.stats.end_ns = now;
            if self.is_socket_full || self.stats.totals.missing > 0 {
                // Overdue datagrams for which the socket was full are not sent any more.
                let overdue = self
                    .budget
                    .pacer
                    .overdue_payloads(now, self.payload_bytes as u64);
                self.stats.count_unsent(overdue);
            }
            return Ok(Progress::Done);
        }
        self.budget.restart_when_counting(now);
        if let Some(departure_ns) = self.budget.pacer.wait_until(now) {
            return Ok(Progress::Starved(Some(departure_ns)));
        }
        self.drop_overdue(now);
        let bytes = self.payload_bytes;
        // Datagrams dropped because of a full socket have numbers, too.
        let first = self.stats.totals.packets + self.stats.totals.missing;
        let burst = transport.max_burst(self.stats.socket, bytes) as u64;
        let (pattern, framing) = (self.stats.pattern, &self.framing);
        let write = |payload: &mut [u8], number: u64| {
            framing.write_header(payload, number, now);
            if let Some(pattern) = pattern {
                fill_datagram(pattern, payload, number, now);
            }
        };
        let sent = if self.has_txtime {
            let departure_ns = self.budget.pacer.next_departure_ns();
            transport
                .udp_send_at(self.stats.socket, bytes, departure_ns, |payload| {
                    write(payload, first)
                })
                .map_ok(|_| 1)
        } else if self.is_paced && burst == 1 {
            transport
                .udp_send(self.stats.socket, bytes, |payload| write(payload, first))
                .map_ok(|_| 1)
        } else {
            let remaining = self.budget.remaining_bytes.div_ceil(bytes as u64);
            let mut count = burst.min(remaining);
            if self.is_paced {
                count = count.min(self.budget.pacer.allowance(bytes as u64) / bytes as u64);
            }
            let count = count as usize;
            transport.udp_send_burst(self.stats.socket, bytes, count, |number, payload| {
                write(payload, first + number as u64);
            })
        };
        match sent {
            Poll::Pending => {
                self.is_socket_full = true;
                Ok(Progress::Starved(None))
            }
            Poll::Ready(datagrams) => {
                let datagrams = datagrams? as u64;
                self.is_socket_full = false;
                let sent = datagrams * bytes as u64;
                self.budget.remaining_bytes = self.budget.remaining_bytes.saturating_sub(sent);
                self.budget.pacer.record_sent(sent, now);
                self.stats.totals.packets += datagrams;
                self.stats.count_transfer(sent as usize);
                Ok(Progress::Worked)
            }
        }
    }

    fn socket(&self) -> Option<T::Socket> {
        Some(self.stats.socket)
    }

    fn finish(self, transport: &T, error: Option<io::Error>) -> FlowEndResults {
        let timing = TimingHistograms {
            lateness: self.budget.pacer.into_lateness(),
            ..TimingHistograms::default()
        };
        let unsent = self.stats.totals.missing;
        let mut result = self.stats.finish(transport, None, None, timing, error);
        result.facts.send_refused = self.is_paced.then_some(unsent);
        result
    }
}

/// Receives numbered datagrams and tracks their sequence.
struct UdpReceiveFlow<'a, S> {
    stats: FlowStats<'a, S>,
    framing: Framing,
    sequence: SequenceTracker,
    arrivals: DelayVariation,
    /// Payloads below 16 B carry no number and are only counted.
    is_numbered: bool,
    verifier: Option<PayloadVerifier>,
}

impl<'a, S: Copy> UdpReceiveFlow<'a, S> {
    fn new(worker: &'a WorkerContext<'a>, mut flow: OpenFlow<S>) -> Self {
        let is_numbered = flow.framing.is_numbered();
        Self {
            framing: std::mem::take(&mut flow.framing),
            verifier: flow.pattern.map(PayloadVerifier::new),
            stats: FlowStats::new(worker, flow),
            sequence: SequenceTracker::new(),
            arrivals: DelayVariation::new(worker.plan.rate_bps.is_some()),
            is_numbered: worker.plan.payload_bytes >= wire::HEADER_BYTES as u64 && is_numbered,
        }
    }

    /// Returns whether no more datagrams are to be expected.
    fn is_complete(&self, now: Nanos) -> bool {
        if self.stats.worker.phase.is_aborted() {
            return true;
        }
        if !self.stats.shared.has_sender_ended() {
            return false;
        }
        // Without a known total, only silence ends the flow.
        let expected = self.stats.shared.expected().unwrap_or(u64::MAX);
        let arrived = if self.is_numbered {
            self.sequence.unique()
        } else {
            self.stats.totals.packets
        };
        arrived >= expected || now >= self.stats.end_ns + DRAIN_SILENCE_NS
    }
}

impl<T: Transport> Workload<T> for UdpReceiveFlow<'_, T::Socket> {
    #[inline]
    fn step(&mut self, transport: &mut T) -> io::Result<Progress> {
        let (mut bytes, mut datagrams, mut sent, mut is_end) = (0, 0, None, false);
        let (numbered, sequence) = (self.is_numbered, &mut self.sequence);
        let (verifier, length) = (
            &mut self.verifier,
            self.stats.worker.plan.payload_bytes as usize,
        );
        let (framing, shared) = (&self.framing, &self.stats.shared);
        let before = self.stats.totals.packets;
        let received = transport.udp_receive_burst(self.stats.socket, |payload, _| {
            let header = match framing.classify(payload) {
                // A repeated opening of the flow may still be in the queue.
                DatagramClass::Marker if before > 0 || datagrams > 0 => {
                    return shared.set_sender_ended();
                }
                DatagramClass::NonPayload | DatagramClass::Marker => return,
                DatagramClass::End(Some(packets)) => {
                    is_end = !shared.has_sender_ended();
                    return shared.set_expected(packets);
                }
                DatagramClass::End(None) => return shared.set_sender_ended(),
                DatagramClass::Numbered(number, sent_ns) => numbered.then_some((number, sent_ns)),
                DatagramClass::Plain => None,
            };
            bytes += payload.len();
            datagrams += 1;
            if let Some((number, sent_ns)) = header {
                sequence.record(number);
                let first = sent.map_or(number, |(first, _, _)| first);
                sent = Some((first, number, sent_ns));
            }
            if let Some(verifier) = verifier {
                let header = header.map(|(number, sent_ns)| (number, sent_ns.unwrap_or(0)));
                let skip = header.map_or(0, |_| wire::HEADER_BYTES);
                verifier.check_datagram(header, skip, payload, length);
            }
        });
        let now = transport.now();
        match received {
            Poll::Pending if self.is_complete(now) => Ok(Progress::Done),
            Poll::Pending => Ok(Progress::Starved(None)),
            Poll::Ready(received) => {
                received?;
                if is_end {
                    // The end is the time of its receipt, if payload before it was lost.
                    self.stats.end_ns = now;
                }
                if datagrams == 0 {
                    // Repeated flow openings alone must not delay an abort.
                    return Ok(match self.stats.worker.phase.is_aborted() {
                        true => Progress::Done,
                        false => Progress::Worked,
                    });
                }
                if let Some((first, last, sent_ns)) = sent {
                    self.sequence.record_arrival(first, now);
                    if let Some(sent_ns) = sent_ns {
                        // Datagrams of one call share its arrival time: they count once.
                        let difference = self.sequence.record_times(last, sent_ns, now);
                        self.arrivals.record(first, last, now, difference);
                    }
                    self.stats.totals.missing = self.sequence.missing();
                    self.stats.totals.duplicates = self.sequence.duplicates();
                }
                if self.stats.first_ns.is_none() {
                    self.stats.first_ns = Some(now);
                }
                self.stats.end_ns = now;
                self.stats.totals.packets += datagrams;
                self.stats.count_transfer(bytes);
                let may_end =
                    self.stats.shared.has_sender_ended() || self.stats.worker.phase.is_aborted();
                if may_end && self.is_complete(now) {
                    return Ok(Progress::Done);
                }
                Ok(Progress::Worked)
            }
        }
    }

    fn socket(&self) -> Option<T::Socket> {
        Some(self.stats.socket)
    }

    fn finish(mut self, transport: &T, error: Option<io::Error>) -> FlowEndResults {
        let sequence = self.is_numbered.then_some(self.sequence);
        let start_ns = sequence.as_ref().and_then(SequenceTracker::start_ns);
        self.stats.first_ns = start_ns.or(self.stats.first_ns);
        let (variation, gaps) = self.arrivals.into_distributions();
        let has_variation = sequence.as_ref().is_some_and(|s| s.ipdv_ns().is_some());
        let timing = TimingHistograms {
            lateness: None,
            variation: has_variation.then_some(variation),
            gaps: gaps.filter(|_| self.is_numbered),
        };
        self.stats
            .finish(transport, sequence, self.verifier, timing, error)
    }
}

#[cfg(test)]
mod tests {
    use linerate_record::plan::{Plan, RunKind, TransportProtocol};

    use crate::scripted_transport::{ScriptedTransport, run_scripted};

    #[test]
    fn a_full_socket_loses_overdue_datagrams_in_the_counted_time() {
        // 1,000 datagrams per second are due, and the socket accepts 400.
        const ACCEPT_INTERVAL_NS: u64 = 2_500_000;
        let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Udp, "host");
        plan.payload_bytes = 1_000;
        plan.rate_bps = Some(8_000_000);
        plan.duration_ns = Some(1_000_000_000);
        for (omit_ns, due_datagrams) in [(0, 1_000), (1_000_000_000, 2_000 - 100)] {
            plan.omit_ns = omit_ns;
            let transport = ScriptedTransport::with_delay(0).with_full_socket(ACCEPT_INTERVAL_NS);
            let totals = run_scripted(&plan, transport, None).totals;
            let sent = (omit_ns + 1_000_000_000) / ACCEPT_INTERVAL_NS;
            assert!(totals.packets.abs_diff(sent) <= 1, "{totals:?}");
            // The last 100 ms of the omitted time are dropped: they were not overdue yet.
            let numbered = totals.packets + totals.missing;
            assert!(
                numbered.abs_diff(due_datagrams) <= 2,
                "{totals:?} of {due_datagrams}"
            );
        }
    }
}
