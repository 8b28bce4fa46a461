//! Throughput: payload in one direction, as fast as possible or at a rate.

use std::io;
use std::sync::Arc;
use std::task::Poll;

use linerate_dialect::control::flow as wire;
use linerate_host::sys::clock::Nanos;
use linerate_metric::pace::Pacing;
use linerate_metric::plan::Protocol;

use super::round_trip::rt_yield::Breath;
use super::{Lane, Opened, Progress, Workload, drive, drive_each, drive_with, readiness_driver};
use crate::delay_variation::Arrivals;
use crate::flow::{FlowOutcome, Part, Shared, Timing};
use crate::flow_counters::Totals;
use crate::interop::framing::{Framing, Seen};
use crate::pacer::Pacer;
use crate::payload_pattern::{Pattern, Verifier};
use crate::sequence_tracker::Sequence;
use crate::transport::{Ready, Transport};

/// Silence after which a receiver counts the rest of a finished UDP flow as lost.
const SILENCE_NS: Nanos = 250_000_000;

/// Lead of the send call before the departure time that the kernel keeps (SO_TXTIME): a sleeping
/// thread wakes up to 0.1 ms late.
const TXTIME_LEAD_NS: Nanos = 1_000_000;

/// Runs the flows of one thread.
pub fn run<T: Transport>(
    lane: &Lane<'_>,
    transport: &mut T,
    flows: Vec<Opened<T::Socket>>,
) -> Vec<FlowOutcome> {
    match (lane.plan.protocol, lane.part) {
        (Protocol::Tcp, Part::Source) => {
            let flows = flows.into_iter().map(|flow| TcpSource::new(lane, flow));
            move_all(lane, transport, flows.collect())
        }
        (Protocol::Tcp, Part::Sink) => {
            let flows = flows.into_iter().map(|flow| TcpSink::new(lane, flow));
            move_all(lane, transport, flows.collect())
        }
        (Protocol::Udp, Part::Source) => {
            let flows = flows.into_iter().map(|flow| UdpSource::new(lane, flow));
            move_all(lane, transport, flows.collect())
        }
        (Protocol::Udp, Part::Sink) => {
            let flows = flows.into_iter().map(|flow| UdpSink::new(lane, flow));
            move_all(lane, transport, flows.collect())
        }
    }
}

/// Runs flows of both directions on one thread.
pub fn run_together<T: Transport>(
    lanes: &[Lane<'_>],
    transport: &mut T,
    flows: Vec<Vec<Opened<T::Socket>>>,
    ended: impl FnMut(FlowOutcome),
) {
    let all = lanes.iter().zip(flows);
    let all = all.flat_map(|(lane, flows)| flows.into_iter().map(move |flow| (lane, flow)));
    let Some(first) = lanes.first() else {
        return;
    };
    match first.plan.protocol {
        Protocol::Tcp => {
            let flows = all.map(|(lane, flow)| match lane.part {
                Part::Source => Either::Source(TcpSource::new(lane, flow)),
                Part::Sink => Either::Sink(TcpSink::new(lane, flow)),
            });
            drive_each(transport, flows.collect(), || {}, ended);
        }
        Protocol::Udp => {
            let flows = all.map(|(lane, flow)| match lane.part {
                Part::Source => Either::Source(UdpSource::new(lane, flow)),
                Part::Sink => Either::Sink(UdpSink::new(lane, flow)),
            });
            drive_each(transport, flows.collect(), || {}, ended);
        }
    }
}

/// A flow of a thread with flows of both directions.
enum Either<A, B> {
    Source(A),
    Sink(B),
}

impl<T: Transport, A: Workload<T>, B: Workload<T>> Workload<T> for Either<A, B> {
    #[inline]
    fn step(&mut self, transport: &mut T) -> io::Result<Progress> {
        match self {
            Self::Source(flow) => flow.step(transport),
            Self::Sink(flow) => flow.step(transport),
        }
    }

    fn socket(&self) -> Option<T::Socket> {
        match self {
            Self::Source(flow) => flow.socket(),
            Self::Sink(flow) => flow.socket(),
        }
    }

    fn outcome(self, transport: &T, error: Option<io::Error>) -> FlowOutcome {
        match self {
            Self::Source(flow) => flow.outcome(transport, error),
            Self::Sink(flow) => flow.outcome(transport, error),
        }
    }
}

/// Runs the flows of a thread: by readiness where there are several, otherwise (or at a rate) by
/// polling them in rotation.
fn move_all<T: Transport, W: Workload<T>>(
    lane: &Lane<'_>,
    transport: &mut T,
    flows: Vec<W>,
) -> Vec<FlowOutcome> {
    let ready = match lane.part {
        Part::Source => Ready::Send,
        Part::Sink => Ready::Receive,
    };
    if let Some(mut breath) = Breath::of(lane) {
        return drive_with(transport, flows, || breath.pause());
    }
    let paced = lane.part == Part::Source && lane.plan.rate_bps.is_some();
    if paced || flows.len() < readiness_driver::FLOWS_FROM {
        return drive(transport, flows);
    }
    // A TCP socket reports its end, unless the run is over: sweeping ten thousand idle flows ten
    // times
    // a second would take a tenth of a core. With UDP the last datagram may be lost.
    let looks = || lane.plan.protocol == Protocol::Udp || lane.phase.is_ending();
    readiness_driver::drive(transport, flows, ready, looks)
        .unwrap_or_else(|flows| drive(transport, flows))
}

/// Sending limits of one flow: its share of the amount, and its rate.
struct Budget {
    left_bytes: u64,
    pacer: Pacer,
    /// Start of the counted time, while it lies ahead.
    counts_from_ns: Option<Nanos>,
}

impl Budget {
    fn new(lane: &Lane<'_>, id: u32) -> Self {
        let plan = lane.plan;
        let left_bytes = plan.amount_bytes;
        let left_bytes = left_bytes.map_or(u64::MAX, |amount| lane.share(amount, id));
        // With SO_MAX_PACING_RATE the kernel alone keeps the rate: its pacing is what is measured.
        let rate = plan.rate_bps.filter(|_| plan.pace.by != Pacing::Socket);
        let pacer = Pacer::new(rate, lane.timeline.start_ns)
            .in_bursts_of(plan.pace.burst_bytes(plan.payload_bytes));
        Self {
            left_bytes,
            counts_from_ns: (plan.omit_ns > 0 && rate.is_some())
                .then_some(lane.timeline.count_from_ns),
            pacer: match plan.pace.by {
                Pacing::Txtime => pacer.ahead_by(TXTIME_LEAD_NS),
                _ => pacer,
            },
        }
    }
}

impl Budget {
    /// Restarts the pacer when counting starts: debt of the omitted time is dropped.
    #[inline]
    fn begin_to_count(&mut self, now: Nanos) {
        if self.counts_from_ns.is_some_and(|from| now >= from) {
            self.counts_from_ns = None;
            self.pacer.restart(now);
        }
    }
}

/// Figures of every flow.
struct Book<'a, S> {
    lane: &'a Lane<'a>,
    id: u32,
    socket: S,
    shared: Arc<Shared>,
    totals: Totals,
    ended_ns: Nanos,
    /// Payload content to verify, if any.
    pattern: Option<Pattern>,
}

impl<'a, S: Copy> Book<'a, S> {
    fn new(lane: &'a Lane<'a>, flow: Opened<S>) -> Self {
        Self {
            lane,
            id: flow.id,
            socket: flow.socket,
            shared: flow.shared,
            totals: Totals::default(),
            ended_ns: lane.timeline.start_ns,
            pattern: flow.pattern,
        }
    }

    #[inline]
    fn moved(&mut self, bytes: usize) {
        self.totals.bytes += bytes as u64;
        self.totals.calls += 1;
        self.shared.meter.publish(&self.totals);
    }

    /// Counts datagrams whose time passed while the socket was full.
    fn refused(&mut self, datagrams: u64) {
        self.totals.missing += datagrams;
        self.shared.meter.publish(&self.totals);
    }

    fn close<T: Transport<Socket = S>>(
        self,
        transport: &T,
        sequence: Option<Sequence>,
        verifier: Option<Verifier>,
        timing: Timing,
        error: Option<io::Error>,
    ) -> FlowOutcome {
        let (mismatched, first_mismatch) =
            verifier.map_or((0, None), |verifier| (verifier.mismatched, verifier.first));
        FlowOutcome {
            id: self.id,
            direction: self.lane.direction,
            part: self.lane.part,
            totals: self.totals,
            sequence,
            times: None,
            mismatched,
            first_mismatch,
            log: None,
            timing,
            facts: transport.facts(self.socket),
            ended_ns: match error {
                // A failed flow may have read the clock long ago.
                Some(_) => transport.now(),
                None => self.ended_ns,
            },
            error,
            asking: None,
        }
    }
}

/// Sends a stream. The clock is read only for a rate: the coordinator ends the run.
struct TcpSource<'a, S> {
    book: Book<'a, S>,
    framing: Framing,
    budget: Budget,
    call_bytes: u64,
}

impl<'a, S: Copy> TcpSource<'a, S> {
    fn new(lane: &'a Lane<'a>, mut flow: Opened<S>) -> Self {
        Self {
            framing: std::mem::take(&mut flow.framing),
            budget: Budget::new(lane, flow.id),
            call_bytes: lane.plan.payload_bytes,
            book: Book::new(lane, flow),
        }
    }
}

impl<T: Transport> Workload<T> for TcpSource<'_, T::Socket> {
    #[inline]
    fn step(&mut self, transport: &mut T) -> io::Result<Progress> {
        let bytes = self.call_bytes.min(self.budget.left_bytes);
        if bytes == 0 || self.book.lane.phase.is_ending() {
            self.book.ended_ns = transport.now();
            // An error means that the connection is closed already.
            let _ = transport.finish_sending(self.book.socket);
            return Ok(Progress::Done);
        }
        let paced = self.budget.pacer.is_paced();
        let mut began = 0;
        if paced {
            began = transport.now();
            self.budget.begin_to_count(began);
            if let Some(due) = self.budget.pacer.wait_until(began) {
                return Ok(Progress::Starved(Some(due)));
            }
        }
        let (pattern, offset) = (self.book.pattern, self.book.totals.bytes);
        let framing = &self.framing;
        let sent = transport.tcp_send(self.book.socket, bytes as usize, |payload| {
            // Without verification the buffer keeps its old content.
            if let Some(pattern) = pattern {
                pattern.fill(offset, payload);
            }
            framing.begin(offset, payload);
        });
        match sent {
            Poll::Pending => Ok(Progress::Starved(None)),
            Poll::Ready(taken) => {
                let taken = taken?;
                self.budget.left_bytes -= taken as u64;
                if paced {
                    // Time lost to a full buffer beyond the pacer's limit is not made up for.
                    self.budget.pacer.give_up(began, self.call_bytes);
                    self.budget.pacer.left(taken as u64, began);
                }
                self.book.moved(taken);
                Ok(Progress::Worked)
            }
        }
    }

    fn socket(&self) -> Option<T::Socket> {
        Some(self.book.socket)
    }

    fn outcome(self, transport: &T, error: Option<io::Error>) -> FlowOutcome {
        let timing = Timing {
            lateness: self.budget.pacer.into_lateness(),
            ..Timing::default()
        };
        self.book.close(transport, None, None, timing, error)
    }
}

/// Receives a stream to its end. The clock is read once, right after the last payload.
struct TcpSink<'a, S> {
    book: Book<'a, S>,
    room: usize,
    verifier: Option<Verifier>,
}

impl<'a, S: Copy> TcpSink<'a, S> {
    fn new(lane: &'a Lane<'a>, flow: Opened<S>) -> Self {
        let room = lane.plan.receive_bytes.unwrap_or(lane.plan.payload_bytes);
        Self {
            verifier: flow.pattern.map(Verifier::new),
            book: Book::new(lane, flow),
            room: room as usize,
        }
    }
}

impl<T: Transport> Workload<T> for TcpSink<'_, T::Socket> {
    #[inline]
    fn step(&mut self, transport: &mut T) -> io::Result<Progress> {
        let (verifier, offset) = (&mut self.verifier, self.book.totals.bytes);
        let received = transport.tcp_receive(self.book.socket, self.room, |payload| {
            if let Some(verifier) = verifier {
                verifier.stream(offset, payload);
            }
            payload.len()
        });
        match received {
            Poll::Ready(Ok(0)) => {
                self.book.ended_ns = transport.now();
                Ok(Progress::Done)
            }
            Poll::Ready(Ok(bytes)) => {
                self.book.moved(bytes);
                if self.book.lane.phase.is_aborted() {
                    self.book.ended_ns = transport.now();
                    return Ok(Progress::Done);
                }
                Ok(Progress::Worked)
            }
            Poll::Ready(Err(error)) => {
                self.book.ended_ns = transport.now();
                Err(error)
            }
            Poll::Pending if self.book.lane.phase.is_aborted() => {
                self.book.ended_ns = transport.now();
                Ok(Progress::Done)
            }
            Poll::Pending => Ok(Progress::Starved(None)),
        }
    }

    fn socket(&self) -> Option<T::Socket> {
        Some(self.book.socket)
    }

    fn outcome(self, transport: &T, error: Option<io::Error>) -> FlowOutcome {
        self.book
            .close(transport, None, self.verifier, Timing::default(), error)
    }
}

/// Fills a datagram behind its header, or completely if it is too small for a header.
#[inline]
fn fill_datagram(pattern: Pattern, payload: &mut [u8], number: u64, sent_ns: Nanos) {
    match payload.get_mut(wire::HEADER_BYTES..) {
        Some(content) => {
            let pattern = pattern.datagram(number, sent_ns);
            pattern.fill(wire::HEADER_BYTES as u64, content);
        }
        None => pattern.fill(0, payload),
    }
}

/// Sends numbered datagrams.
struct UdpSource<'a, S> {
    book: Book<'a, S>,
    framing: Framing,
    budget: Budget,
    payload_bytes: usize,
    /// True if datagrams have departure times; a copy of the pacer's flag.
    paced: bool,
    /// True if the kernel keeps the departure times (SO_TXTIME).
    timed: bool,
    /// True if the socket was full when the present datagram was due.
    no_room: bool,
}

impl<'a, S: Copy> UdpSource<'a, S> {
    fn new(lane: &'a Lane<'a>, mut flow: Opened<S>) -> Self {
        let budget = Budget::new(lane, flow.id);
        Self {
            framing: std::mem::take(&mut flow.framing),
            paced: budget.pacer.is_paced(),
            timed: budget.pacer.is_paced() && lane.plan.pace.by == Pacing::Txtime,
            budget,
            payload_bytes: lane.plan.payload_bytes as usize,
            book: Book::new(lane, flow),
            no_room: false,
        }
    }

    /// Drops overdue datagrams. Where the socket was full they count as lost there, as for an
    /// application that cannot wait; a stall of this thread was never offered load.
    #[inline]
    fn give_up(&mut self, now: Nanos) {
        let bytes = self.payload_bytes as u64;
        let given_up = self.budget.pacer.give_up(now, bytes);
        if given_up > 0 && self.no_room {
            self.book.refused(given_up);
        }
    }
}

impl<T: Transport> Workload<T> for UdpSource<'_, T::Socket> {
    #[inline]
    fn step(&mut self, transport: &mut T) -> io::Result<Progress> {
        // One clock reading serves the pacing and the timestamp in the payload.
        let now = transport.now();
        if self.budget.left_bytes == 0 || self.book.lane.phase.is_ending() {
            self.book.ended_ns = now;
            if self.no_room || self.book.totals.missing > 0 {
                // Overdue datagrams for which the socket was full are not sent any more.
                let owed = self.budget.pacer.owed(now, self.payload_bytes as u64);
                self.book.refused(owed);
            }
            return Ok(Progress::Done);
        }
        self.budget.begin_to_count(now);
        if let Some(due) = self.budget.pacer.wait_until(now) {
            return Ok(Progress::Starved(Some(due)));
        }
        self.give_up(now);
        let bytes = self.payload_bytes;
        // Datagrams dropped because of a full socket have numbers, too.
        let first = self.book.totals.packets + self.book.totals.missing;
        let burst = transport.burst(self.book.socket, bytes) as u64;
        let (pattern, framing) = (self.book.pattern, &self.framing);
        let write = |payload: &mut [u8], number: u64| {
            framing.write(payload, number, now);
            if let Some(pattern) = pattern {
                fill_datagram(pattern, payload, number, now);
            }
        };
        let sent = if self.timed {
            let due = self.budget.pacer.due_ns();
            transport
                .udp_send_at(self.book.socket, bytes, due, |payload| {
                    write(payload, first)
                })
                .map_ok(|_| 1)
        } else if self.paced && burst == 1 {
            transport
                .udp_send(self.book.socket, bytes, |payload| write(payload, first))
                .map_ok(|_| 1)
        } else {
            let left = self.budget.left_bytes.div_ceil(bytes as u64);
            let mut count = burst.min(left);
            if self.paced {
                count = count.min(self.budget.pacer.allowance(bytes as u64) / bytes as u64);
            }
            let count = count as usize;
            transport.udp_send_burst(self.book.socket, bytes, count, |number, payload| {
                write(payload, first + number as u64);
            })
        };
        match sent {
            Poll::Pending => {
                self.no_room = true;
                Ok(Progress::Starved(None))
            }
            Poll::Ready(datagrams) => {
                let datagrams = datagrams? as u64;
                self.no_room = false;
                let sent = datagrams * bytes as u64;
                self.budget.left_bytes = self.budget.left_bytes.saturating_sub(sent);
                self.budget.pacer.left(sent, now);
                self.book.totals.packets += datagrams;
                self.book.moved(sent as usize);
                Ok(Progress::Worked)
            }
        }
    }

    fn socket(&self) -> Option<T::Socket> {
        Some(self.book.socket)
    }

    fn outcome(self, transport: &T, error: Option<io::Error>) -> FlowOutcome {
        let timing = Timing {
            lateness: self.budget.pacer.into_lateness(),
            ..Timing::default()
        };
        let refused = self.book.totals.missing;
        let mut outcome = self.book.close(transport, None, None, timing, error);
        outcome.facts.send_refused = self.paced.then_some(refused);
        outcome
    }
}

/// Receives numbered datagrams and tracks their sequence.
struct UdpSink<'a, S> {
    book: Book<'a, S>,
    framing: Framing,
    sequence: Sequence,
    arrivals: Arrivals,
    /// Payloads below 16 B carry no number and are only counted.
    numbered: bool,
    verifier: Option<Verifier>,
}

impl<'a, S: Copy> UdpSink<'a, S> {
    fn new(lane: &'a Lane<'a>, mut flow: Opened<S>) -> Self {
        let is_numbered = flow.framing.is_numbered();
        Self {
            framing: std::mem::take(&mut flow.framing),
            verifier: flow.pattern.map(Verifier::new),
            book: Book::new(lane, flow),
            sequence: Sequence::new(),
            arrivals: Arrivals::new(lane.plan.rate_bps.is_some()),
            numbered: lane.plan.payload_bytes >= wire::HEADER_BYTES as u64 && is_numbered,
        }
    }

    /// Returns whether no more datagrams are to be expected.
    fn is_complete(&self, now: Nanos) -> bool {
        if self.book.lane.phase.is_aborted() {
            return true;
        }
        if !self.book.shared.is_over() {
            return false;
        }
        // Without a known total, only silence ends the flow.
        let expected = self.book.shared.expected().unwrap_or(u64::MAX);
        let arrived = if self.numbered {
            self.sequence.unique()
        } else {
            self.book.totals.packets
        };
        arrived >= expected || now >= self.book.ended_ns + SILENCE_NS
    }
}

impl<T: Transport> Workload<T> for UdpSink<'_, T::Socket> {
    #[inline]
    fn step(&mut self, transport: &mut T) -> io::Result<Progress> {
        let (mut bytes, mut datagrams, mut sent) = (0, 0, None);
        let (numbered, sequence) = (self.numbered, &mut self.sequence);
        let (verifier, length) = (
            &mut self.verifier,
            self.book.lane.plan.payload_bytes as usize,
        );
        let (framing, shared) = (&self.framing, &self.book.shared);
        let before = self.book.totals.packets;
        let received = transport.udp_receive_burst(self.book.socket, |payload, _| {
            let header = match framing.read(payload) {
                // A repeated opening of the flow may still be in the queue.
                Seen::Marker if before > 0 || datagrams > 0 => return shared.expect_no_more(),
                Seen::Aside | Seen::Marker => return,
                Seen::End(Some(packets)) => return shared.expect(packets),
                Seen::End(None) => return shared.expect_no_more(),
                Seen::Numbered(number, sent_ns) => numbered.then_some((number, sent_ns)),
                Seen::Plain => None,
            };
            bytes += payload.len();
            datagrams += 1;
            if let Some((number, sent_ns)) = header {
                sequence.take(number);
                let first = sent.map_or(number, |(first, _, _)| first);
                sent = Some((first, number, sent_ns));
            }
            if let Some(verifier) = verifier {
                let header = header.map(|(number, sent_ns)| (number, sent_ns.unwrap_or(0)));
                let skip = header.map_or(0, |_| wire::HEADER_BYTES);
                verifier.datagram(header, skip, payload, length);
            }
        });
        let now = transport.now();
        match received {
            Poll::Pending if self.is_complete(now) => Ok(Progress::Done),
            Poll::Pending => Ok(Progress::Starved(None)),
            Poll::Ready(received) => {
                received?;
                if datagrams == 0 {
                    // Repeated flow openings alone must not delay an abort.
                    return Ok(match self.book.lane.phase.is_aborted() {
                        true => Progress::Done,
                        false => Progress::Worked,
                    });
                }
                if let Some((first, last, sent_ns)) = sent {
                    if let Some(sent_ns) = sent_ns {
                        // Datagrams of one call share its arrival time: they count once.
                        let transit = now.wrapping_sub(sent_ns) as i64;
                        self.sequence.take_transit(transit);
                        self.arrivals.take(first, last, now, transit);
                    }
                    self.book.totals.missing = self.sequence.missing();
                    self.book.totals.repeated = self.sequence.duplicates();
                }
                self.book.ended_ns = now;
                self.book.totals.packets += datagrams;
                self.book.moved(bytes);
                let may_end = self.book.shared.is_over() || self.book.lane.phase.is_aborted();
                if may_end && self.is_complete(now) {
                    return Ok(Progress::Done);
                }
                Ok(Progress::Worked)
            }
        }
    }

    fn socket(&self) -> Option<T::Socket> {
        Some(self.book.socket)
    }

    fn outcome(self, transport: &T, error: Option<io::Error>) -> FlowOutcome {
        let sequence = self.numbered.then_some(self.sequence);
        let (variation, gaps) = self.arrivals.into_distributions();
        let timing = Timing {
            lateness: None,
            variation: self.numbered.then_some(variation),
            gaps: gaps.filter(|_| self.numbered),
        };
        self.book
            .close(transport, sequence, self.verifier, timing, error)
    }
}

#[cfg(test)]
mod tests {
    use linerate_metric::plan::{Kind, Plan, Protocol};

    use crate::workload::scripted_transport::{Far, asked};

    #[test]
    fn a_full_socket_loses_what_is_due_while_it_is_counted() {
        // 1,000 datagrams per second are due, and the socket accepts 400.
        const TAKEN_EACH_NS: u64 = 2_500_000;
        let mut plan = Plan::new(Kind::Throughput, Protocol::Udp, "host");
        plan.payload_bytes = 1_000;
        plan.rate_bps = Some(8_000_000);
        plan.duration_ns = Some(1_000_000_000);
        for (omit_ns, due) in [(0, 1_000), (1_000_000_000, 2_000 - 100)] {
            plan.omit_ns = omit_ns;
            let far = Far::after(0).with_room_each(TAKEN_EACH_NS);
            let totals = asked(&plan, far, None).totals;
            let sent = (omit_ns + 1_000_000_000) / TAKEN_EACH_NS;
            assert!(totals.packets.abs_diff(sent) <= 1, "{totals:?}");
            // The last 100 ms of the omitted time are dropped: they were not overdue yet.
            let numbered = totals.packets + totals.missing;
            assert!(numbered.abs_diff(due) <= 2, "{totals:?} of {due}");
        }
    }
}
