//! Throughput: payload in one direction, as fast as it goes or at a rate.

use std::io;
use std::sync::Arc;
use std::task::Poll;

use linerate_dialect::control::flow as wire;
use linerate_host::sys::clock::Nanos;
use linerate_metric::plan::Protocol;

use super::{Lane, Opened, Progress, Workload, drive};
use crate::flow::{FlowOutcome, Part, Shared, is_greeting};
use crate::meter::Totals;
use crate::pacing::Pacer;
use crate::sequence::Sequence;
use crate::transport::Transport;

/// Silence after which a sink believes that the rest of a finished UDP flow is lost.
const SILENCE_NS: Nanos = 250_000_000;

/// Runs the flows of one thread.
pub fn run<T: Transport>(
    lane: &Lane<'_>,
    transport: &mut T,
    flows: Vec<Opened<T::Socket>>,
) -> Vec<FlowOutcome> {
    match (lane.plan.protocol, lane.part) {
        (Protocol::Tcp, Part::Source) => {
            let flows = flows.into_iter().map(|flow| TcpSource::new(lane, flow));
            drive(transport, flows.collect())
        }
        (Protocol::Tcp, Part::Sink) => {
            let flows = flows.into_iter().map(|flow| TcpSink::new(lane, flow));
            drive(transport, flows.collect())
        }
        (Protocol::Udp, Part::Source) => {
            let flows = flows.into_iter().map(|flow| UdpSource::new(lane, flow));
            drive(transport, flows.collect())
        }
        (Protocol::Udp, Part::Sink) => {
            let flows = flows.into_iter().map(|flow| UdpSink::new(lane, flow));
            drive(transport, flows.collect())
        }
    }
}

/// What one flow may send: its share of the amount, at its rate.
struct Budget {
    left_bytes: u64,
    pacer: Pacer,
}

impl Budget {
    fn new(lane: &Lane<'_>, id: u32) -> Self {
        let plan = lane.plan;
        let left_bytes = plan.amount_bytes;
        let left_bytes = left_bytes.map_or(u64::MAX, |amount| lane.share(amount, id));
        Self {
            left_bytes,
            pacer: Pacer::new(plan.rate_bps, lane.timeline.start_ns),
        }
    }
}

/// Figures that every flow keeps.
struct Book<'a, S> {
    lane: &'a Lane<'a>,
    id: u32,
    socket: S,
    shared: Arc<Shared>,
    totals: Totals,
    ended_ns: Nanos,
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
        }
    }

    #[inline]
    fn moved(&mut self, bytes: usize) {
        self.totals.bytes += bytes as u64;
        self.totals.calls += 1;
        self.shared.meter.publish(&self.totals);
    }

    fn close<T: Transport<Socket = S>>(
        self,
        transport: &T,
        sequence: Option<Sequence>,
        error: Option<io::Error>,
    ) -> FlowOutcome {
        FlowOutcome {
            id: self.id,
            direction: self.lane.direction,
            part: self.lane.part,
            totals: self.totals,
            sequence,
            times: None,
            mismatched: 0,
            facts: transport.facts(self.socket),
            ended_ns: match error {
                // It broke now, whenever it last looked at the clock.
                Some(_) => transport.now(),
                None => self.ended_ns,
            },
            error,
        }
    }
}

/// Sends a stream. The clock is read only when there is a rate to keep: the coordinator says when
/// the time is over.
struct TcpSource<'a, S> {
    book: Book<'a, S>,
    budget: Budget,
    call_bytes: u64,
}

impl<'a, S: Copy> TcpSource<'a, S> {
    fn new(lane: &'a Lane<'a>, flow: Opened<S>) -> Self {
        Self {
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
            // A connection that is gone already needs no farewell.
            let _ = transport.finish_sending(self.book.socket);
            return Ok(Progress::Done);
        }
        if self.budget.pacer.is_paced()
            && let Some(due) = self.budget.pacer.wait_until(transport.now())
        {
            return Ok(Progress::Starved(Some(due)));
        }
        // The buffer keeps what it held: without verification any content will do.
        match transport.tcp_send(self.book.socket, bytes as usize, |_| {}) {
            Poll::Pending => Ok(Progress::Starved(None)),
            Poll::Ready(taken) => {
                let taken = taken?;
                self.budget.left_bytes -= taken as u64;
                if self.budget.pacer.is_paced() {
                    self.budget.pacer.left(taken as u64, transport.now());
                }
                self.book.moved(taken);
                Ok(Progress::Worked)
            }
        }
    }

    fn socket(&self) -> T::Socket {
        self.book.socket
    }

    fn outcome(self, transport: &T, error: Option<io::Error>) -> FlowOutcome {
        self.book.close(transport, None, error)
    }
}

/// Receives a stream to its end. The clock is read once, at the end: it comes right behind the
/// last payload.
struct TcpSink<'a, S> {
    book: Book<'a, S>,
    room: usize,
}

impl<'a, S: Copy> TcpSink<'a, S> {
    fn new(lane: &'a Lane<'a>, flow: Opened<S>) -> Self {
        let room = lane.plan.receive_bytes.unwrap_or(lane.plan.payload_bytes);
        Self {
            book: Book::new(lane, flow),
            room: room as usize,
        }
    }
}

impl<T: Transport> Workload<T> for TcpSink<'_, T::Socket> {
    #[inline]
    fn step(&mut self, transport: &mut T) -> io::Result<Progress> {
        match transport.tcp_receive(self.book.socket, self.room, <[u8]>::len) {
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

    fn socket(&self) -> T::Socket {
        self.book.socket
    }

    fn outcome(self, transport: &T, error: Option<io::Error>) -> FlowOutcome {
        self.book.close(transport, None, error)
    }
}

/// Sends numbered datagrams.
struct UdpSource<'a, S> {
    book: Book<'a, S>,
    budget: Budget,
    payload_bytes: usize,
}

impl<'a, S: Copy> UdpSource<'a, S> {
    fn new(lane: &'a Lane<'a>, flow: Opened<S>) -> Self {
        Self {
            budget: Budget::new(lane, flow.id),
            payload_bytes: lane.plan.payload_bytes as usize,
            book: Book::new(lane, flow),
        }
    }
}

impl<T: Transport> Workload<T> for UdpSource<'_, T::Socket> {
    #[inline]
    fn step(&mut self, transport: &mut T) -> io::Result<Progress> {
        // One reading serves the pacing and the stamp in the payload.
        let now = transport.now();
        if self.budget.left_bytes == 0 || self.book.lane.phase.is_ending() {
            self.book.ended_ns = now;
            return Ok(Progress::Done);
        }
        if let Some(due) = self.budget.pacer.wait_until(now) {
            return Ok(Progress::Starved(Some(due)));
        }
        let bytes = self.payload_bytes;
        let first = self.book.totals.packets;
        let sent = if self.budget.pacer.is_paced() {
            // Evenly spread: each datagram has its own time to leave.
            transport
                .udp_send(self.book.socket, bytes, |payload| {
                    wire::write_header(payload, first, now);
                })
                .map_ok(|_| 1)
        } else {
            let left = self.budget.left_bytes.div_ceil(bytes as u64);
            let burst = transport.burst(self.book.socket, bytes) as u64;
            let count = burst.min(left) as usize;
            transport.udp_send_burst(self.book.socket, bytes, count, |number, payload| {
                wire::write_header(payload, first + number as u64, now);
            })
        };
        match sent {
            Poll::Pending => Ok(Progress::Starved(None)),
            Poll::Ready(datagrams) => {
                let datagrams = datagrams? as u64;
                let sent = datagrams * bytes as u64;
                self.budget.left_bytes = self.budget.left_bytes.saturating_sub(sent);
                self.budget.pacer.left(sent, now);
                self.book.totals.packets += datagrams;
                self.book.moved(sent as usize);
                Ok(Progress::Worked)
            }
        }
    }

    fn socket(&self) -> T::Socket {
        self.book.socket
    }

    fn outcome(self, transport: &T, error: Option<io::Error>) -> FlowOutcome {
        self.book.close(transport, None, error)
    }
}

/// Receives numbered datagrams and keeps account of their numbers.
struct UdpSink<'a, S> {
    book: Book<'a, S>,
    sequence: Sequence,
    /// Payloads below 16 B carry no number and are only counted.
    numbered: bool,
}

impl<'a, S: Copy> UdpSink<'a, S> {
    fn new(lane: &'a Lane<'a>, flow: Opened<S>) -> Self {
        Self {
            book: Book::new(lane, flow),
            sequence: Sequence::new(),
            numbered: lane.plan.payload_bytes >= wire::HEADER_BYTES as u64,
        }
    }

    /// Whether nothing more can come.
    fn is_complete(&self, now: Nanos) -> bool {
        if self.book.lane.phase.is_aborted() {
            return true;
        }
        let Some(expected) = self.book.shared.expected() else {
            return false;
        };
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
        let (mut bytes, mut datagrams, mut sent_ns) = (0, 0, None);
        let (numbered, sequence) = (self.numbered, &mut self.sequence);
        let received = transport.udp_receive_burst(self.book.socket, |payload, _| {
            // A repeated greeting of the flow's opening may still be in the queue.
            if is_greeting(payload) {
                return;
            }
            bytes += payload.len();
            datagrams += 1;
            if let (true, Some(header)) = (numbered, wire::read_header(payload)) {
                sequence.take(header.sequence);
                sent_ns = Some(header.sent_ns);
            }
        });
        let now = transport.now();
        match received {
            Poll::Pending if self.is_complete(now) => Ok(Progress::Done),
            Poll::Pending => Ok(Progress::Starved(None)),
            Poll::Ready(received) => {
                received?;
                if datagrams == 0 {
                    return Ok(Progress::Worked);
                }
                if let Some(sent_ns) = sent_ns {
                    // Datagrams of one call share its time of arrival: they count once.
                    let transit = now.wrapping_sub(sent_ns) as i64;
                    self.sequence.take_transit(transit);
                    self.book.totals.missing = self.sequence.missing();
                }
                self.book.ended_ns = now;
                self.book.totals.packets += datagrams;
                self.book.moved(bytes);
                let may_end =
                    self.book.shared.expected().is_some() || self.book.lane.phase.is_aborted();
                if may_end && self.is_complete(now) {
                    return Ok(Progress::Done);
                }
                Ok(Progress::Worked)
            }
        }
    }

    fn socket(&self) -> T::Socket {
        self.book.socket
    }

    fn outcome(self, transport: &T, error: Option<io::Error>) -> FlowOutcome {
        let sequence = self.numbered.then_some(self.sequence);
        self.book.close(transport, sequence, error)
    }
}
