//! Services over TCP.

use std::task::Poll;

use linerate_protocol::iperf2::{
    DualTest, Iperf2Direction, Iperf2Settings, Iperf2TcpRequest, Iperf2TcpServer, TestAmount,
    WriteTimestamper, fill,
};
use linerate_protocol::{chargen, echo, sockperf};
use linerate_record::stack::ServiceFigures;
use linerate_stack::{SocketId, Stack, StackError};
use linerate_sys::clock;
use linerate_sys::clock::Nanos;

use super::ServiceKind;
use crate::handlers::{BouncebackResponder, PayloadRing, StreamResponder};

/// Steps per round; the stack is polled in between.
const STEPS_PER_ROUND: usize = 64;

/// Idle timeout of a connection.
const IDLE_TIMEOUT_NS: Nanos = 300_000_000_000;

/// Length of repeated payload: whole periods of chargen's pattern, and a multiple of the ten digits
/// that iperf2 sends.
const PATTERN_BYTES: usize = 10 * chargen::PERIOD_BYTES;

/// Write size of iperf2 unless its client requests another, and the largest that is allocated.
const DEFAULT_WRITE_BYTES: u32 = 128 << 10;
const MAX_WRITE_BYTES: u32 = 1 << 20;

/// State of a connection after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// Continues when its socket changes.
    Wait,
    /// Continues in the next round: there may be more work.
    Ready,
    /// Continues at a time.
    Timed,
    /// Finished or failed.
    Finished,
}

/// A connection to a service.
pub struct ServiceConnection {
    socket: SocketId,
    service_index: usize,
    protocol: ServiceProtocol,
    last_activity_ns: Nanos,
    /// The remote end has finished sending.
    remote_finished: bool,
    /// This end has finished sending.
    local_finished: bool,
    /// Settings of a second connection that the client requested, towards it.
    second_connection: Option<Box<Iperf2Settings>>,
}

enum ServiceProtocol {
    Echo(echo::EchoStream),
    Sockperf(Box<sockperf::SockperfServer>),
    Bounceback(Box<BouncebackResponder>),
    Discard,
    Stream(StreamSource),
    /// iperf2, until the client's settings are complete.
    Iperf2Header(Box<Iperf2TcpServer>),
    /// iperf2: replies, then payload if requested, while input is received and discarded.
    Iperf2Test(Box<Iperf2TcpServer>, Option<StreamSource>),
}

/// Payload that is sent without requests.
struct StreamSource {
    /// Protocol reply before the payload, not counted as payload.
    reply: Vec<u8>,
    payload: PayloadRing,
    remaining: u64,
    end_ns: Option<Nanos>,
    /// Rate in bit/s, and the start of the flow.
    rate: Option<(u64, Nanos)>,
    /// Size of writes with timestamps; such a write is sent as a unit.
    write_bytes: Option<u64>,
    sent_bytes: u64,
}

impl StreamSource {
    fn new(payload: PayloadRing) -> Self {
        Self {
            reply: Vec::new(),
            payload,
            remaining: u64::MAX,
            end_ns: None,
            rate: None,
            write_bytes: None,
            sent_bytes: 0,
        }
    }

    fn for_test(settings: &Iperf2Settings, now: Nanos) -> Self {
        let write_size = settings.buffer_bytes.unwrap_or(DEFAULT_WRITE_BYTES);
        let write_bytes = write_size.min(MAX_WRITE_BYTES) as usize;
        let timestamps = WriteTimestamper::new(settings, write_bytes, clock::now_realtime());
        // A second connection carries payload only, without a reply.
        let timestamps = timestamps.filter(|_| settings.dual.is_none());
        let bytes = if timestamps.is_some() {
            write_bytes
        } else {
            PATTERN_BYTES
        };
        let mut digits = vec![0; bytes];
        fill(&mut digits);
        let reply = timestamps
            .as_ref()
            .map(|timestamps| timestamps.reply().to_vec());
        let mut source = Self {
            reply: reply.unwrap_or_default(),
            write_bytes: timestamps.as_ref().map(|_| write_bytes as u64),
            ..Self::new(PayloadRing::new(digits).with_write_stamps(timestamps))
        };
        match settings.amount {
            Some(TestAmount::Bytes(bytes)) => source.remaining = bytes,
            Some(TestAmount::Time(ns)) => source.end_ns = Some(now.saturating_add(ns)),
            None => {}
        }
        let to_bits = |rate: u64| match settings.rate_is_packets {
            true => rate.saturating_mul(u64::from(write_size) * 8),
            false => rate,
        };
        source.rate = settings.rate.map(|rate| (to_bits(rate), now));
        source
    }

    /// Returns the number of bytes that may be sent now.
    fn due_bytes(&self, now: Nanos) -> usize {
        if self.end_ns.is_some_and(|until| now >= until) {
            return 0;
        }
        let rate_limit = self.rate.map_or(u64::MAX, |(to_bits, from)| {
            let time = u128::from(now.saturating_sub(from));
            let due_total = u128::from(to_bits) * time / 8_000_000_000;
            let due_total = u64::try_from(due_total).unwrap_or(u64::MAX);
            match self.write_bytes {
                None => due_total.saturating_sub(self.sent_bytes),
                // A write that has been started is sent to its end.
                Some(write_bytes) => {
                    let started_bytes = self.sent_bytes.next_multiple_of(write_bytes);
                    let due_writes = due_total.max(started_bytes) / write_bytes * write_bytes;
                    due_writes.saturating_sub(self.sent_bytes)
                }
            }
        });
        usize::try_from(rate_limit.min(self.remaining)).unwrap_or(usize::MAX)
    }

    fn is_over(&self, now: Nanos) -> bool {
        self.remaining == 0 || self.end_ns.is_some_and(|until| now >= until)
    }
}

impl ServiceConnection {
    pub fn new(kind: ServiceKind, service: usize, socket: SocketId, now: Nanos) -> Self {
        let protocol = match kind {
            ServiceKind::Echo => ServiceProtocol::Echo(echo::EchoStream::default()),
            // Sockets of the linerate service are handled by the acceptor.
            ServiceKind::Discard | ServiceKind::Linerate => ServiceProtocol::Discard,
            ServiceKind::Chargen => {
                let mut pattern = vec![0; PATTERN_BYTES];
                chargen::fill(0, &mut pattern);
                ServiceProtocol::Stream(StreamSource::new(PayloadRing::new(pattern)))
            }
            ServiceKind::Sockperf => ServiceProtocol::Sockperf(Box::default()),
            ServiceKind::Iperf2 => ServiceProtocol::Iperf2Header(Box::new(Iperf2TcpServer::new())),
        };
        Self {
            socket,
            service_index: service,
            protocol,
            last_activity_ns: now,
            remote_finished: false,
            local_finished: false,
            second_connection: None,
        }
    }

    /// Creates the second connection towards an iperf2 client, which is established already.
    pub fn second(settings: &Iperf2Settings, service: usize, socket: SocketId, now: Nanos) -> Self {
        let source = StreamSource::for_test(settings, now);
        Self {
            protocol: ServiceProtocol::Iperf2Test(Box::new(Iperf2TcpServer::new()), Some(source)),
            ..Self::new(ServiceKind::Iperf2, service, socket, now)
        }
    }

    /// Takes the second connection that the client requested, once it is due; `has_ended`: this one
    /// has ended.
    pub fn take_second_connection(&mut self, has_ended: bool) -> Option<Box<Iperf2Settings>> {
        let request = self
            .second_connection
            .take_if(|request| match request.dual {
                Some(DualTest::Sequential) => has_ended,
                _ => true,
            })?;
        // After a failure the client is gone.
        (!has_ended || self.remote_finished).then_some(request)
    }

    pub fn socket(&self) -> SocketId {
        self.socket
    }

    pub fn service_index(&self) -> usize {
        self.service_index
    }

    /// Returns whether the idle timeout has expired.
    pub fn is_idle_timed_out(&self, now: Nanos) -> bool {
        now.saturating_sub(self.last_activity_ns) > IDLE_TIMEOUT_NS
    }

    /// Moves as much as is possible now.
    pub fn step(
        &mut self,
        stack: &mut Stack,
        now: Nanos,
        buffer: &mut [u8],
        figures: &mut ServiceFigures,
    ) -> NextStep {
        for _ in 0..STEPS_PER_ROUND {
            let sent = match self.send(stack, now) {
                Ok(sent) => sent,
                Err(_) => return NextStep::Finished,
            };
            figures.bytes_sent += sent as u64;
            let consumed = match self.receive(stack, buffer) {
                Ok(consumed) => consumed,
                Err(_) => return NextStep::Finished,
            };
            figures.bytes_received += consumed.unwrap_or(0) as u64;
            if sent > 0 || consumed.is_some() {
                self.last_activity_ns = now;
            }
            if self.is_over(now) {
                return NextStep::Finished;
            }
            if sent == 0 && consumed.is_none() {
                return match self.source() {
                    Some(source) if source.rate.is_some() || source.end_ns.is_some() => {
                        NextStep::Timed
                    }
                    _ => NextStep::Wait,
                };
            }
        }
        NextStep::Ready
    }

    fn source(&self) -> Option<&StreamSource> {
        match &self.protocol {
            ServiceProtocol::Stream(source) | ServiceProtocol::Iperf2Test(_, Some(source)) => {
                Some(source)
            }
            _ => None,
        }
    }

    fn is_over(&mut self, now: Nanos) -> bool {
        match &mut self.protocol {
            ServiceProtocol::Echo(stream) => self.remote_finished && stream.outgoing().is_empty(),
            ServiceProtocol::Sockperf(server) => {
                self.remote_finished && server.outgoing().is_empty()
            }
            ServiceProtocol::Bounceback(bounce) => {
                (self.remote_finished || bounce.is_finished()) && bounce.outgoing().is_empty()
            }
            ServiceProtocol::Discard | ServiceProtocol::Iperf2Header(_) => self.remote_finished,
            ServiceProtocol::Stream(source) => self.remote_finished || source.is_over(now),
            // A client that receives closes the connection at its end.
            ServiceProtocol::Iperf2Test(server, _) => {
                self.remote_finished && server.outgoing().is_empty()
            }
        }
    }

    /// Sends as much as there is space for; returns the number of bytes.
    fn send(&mut self, stack: &mut Stack, now: Nanos) -> Result<usize, StackError> {
        let socket = self.socket;
        let mut sent_total = 0;
        let send_bytes = |stack: &mut Stack, bytes: &[u8]| -> Result<usize, StackError> {
            if bytes.is_empty() {
                return Ok(0);
            }
            match stack.tcp_send(socket, |buffer| {
                let count = bytes.len().min(buffer.len());
                buffer[..count].copy_from_slice(&bytes[..count]);
                count
            }) {
                Poll::Ready(sent) => sent,
                Poll::Pending => Ok(0),
            }
        };
        loop {
            let sent = match &mut self.protocol {
                ServiceProtocol::Echo(stream) => {
                    let sent = send_bytes(stack, stream.outgoing())?;
                    stream.mark_sent(sent);
                    sent
                }
                ServiceProtocol::Sockperf(server) => {
                    let sent = send_bytes(stack, server.outgoing())?;
                    server.mark_sent(sent);
                    sent
                }
                ServiceProtocol::Bounceback(bounce) => {
                    let sent = send_bytes(stack, bounce.outgoing())?;
                    bounce.sent(sent);
                    sent
                }
                ServiceProtocol::Discard | ServiceProtocol::Iperf2Header(_) => 0,
                ServiceProtocol::Stream(source) => source.send_due(stack, now, &send_bytes)?,
                ServiceProtocol::Iperf2Test(server, source) => {
                    let reply_bytes = send_bytes(stack, server.outgoing())?;
                    server.mark_sent(reply_bytes);
                    match source.as_mut().filter(|_| server.outgoing().is_empty()) {
                        Some(source) => {
                            let sent = source.send_due(stack, now, &send_bytes)?;
                            if source.is_over(now) && !self.local_finished {
                                self.local_finished = true;
                                stack.tcp_finish(socket)?;
                            }
                            reply_bytes + sent
                        }
                        None => reply_bytes,
                    }
                }
            };
            sent_total += sent;
            if sent == 0 || sent_total >= PATTERN_BYTES {
                return Ok(sent_total);
            }
        }
    }

    /// Receives available data; returns the number of bytes, `None` without data.
    fn receive(
        &mut self,
        stack: &mut Stack,
        buffer: &mut [u8],
    ) -> Result<Option<usize>, StackError> {
        if self.remote_finished {
            return Ok(None);
        }
        let protocol = &mut self.protocol;
        let received = stack.tcp_receive(self.socket, |bytes| {
            if bytes.is_empty() {
                return (0, Some(ReadOutcome::End));
            }
            let outcome = protocol.consume(bytes, buffer);
            let consumed = match &outcome {
                Some(ReadOutcome::Consumed(consumed)) => *consumed,
                Some(ReadOutcome::Request(consumed, _)) => *consumed,
                Some(ReadOutcome::End) | None => 0,
            };
            (consumed, outcome)
        });
        let outcome = match received {
            Poll::Pending => return Ok(None),
            Poll::Ready(outcome) => outcome?,
        };
        match outcome {
            Some(ReadOutcome::End) => {
                self.remote_finished = true;
                if let ServiceProtocol::Echo(stream) = &mut self.protocol {
                    stream.close_input();
                }
                Ok(Some(0))
            }
            Some(ReadOutcome::Consumed(0)) => Ok(None),
            Some(ReadOutcome::Consumed(consumed)) => Ok(Some(consumed)),
            Some(ReadOutcome::Request(consumed, job)) => {
                self.start_job(*job);
                Ok(Some(consumed))
            }
            // Invalid input: the connection is closed, which every protocol understands.
            None => Err(StackError::ConnectionReset),
        }
    }

    /// Starts the job of an iperf2 client.
    fn start_job(&mut self, job: Iperf2TcpRequest) {
        let now = self.last_activity_ns;
        let protocol = std::mem::replace(&mut self.protocol, ServiceProtocol::Discard);
        let ServiceProtocol::Iperf2Header(server) = protocol else {
            return;
        };
        self.protocol = match job {
            Iperf2TcpRequest::Plain => ServiceProtocol::Discard,
            Iperf2TcpRequest::Bounceback(header) => {
                ServiceProtocol::Bounceback(Box::new(BouncebackResponder::new(*header)))
            }
            Iperf2TcpRequest::Test(settings) => {
                self.second_connection = settings.dual.map(|_| settings.clone());
                let source = (settings.direction != Iperf2Direction::Forward)
                    .then(|| StreamSource::for_test(&settings, now));
                ServiceProtocol::Iperf2Test(server, source)
            }
        };
    }
}

/// Result of a read.
enum ReadOutcome {
    /// Number of bytes consumed.
    Consumed(usize),
    /// Number of bytes consumed, and the complete request of an iperf2 client.
    Request(usize, Box<Iperf2TcpRequest>),
    /// End of the stream.
    End,
}

impl ServiceProtocol {
    /// Consumes input; `None` when it is invalid.
    fn consume(&mut self, bytes: &[u8], buffer: &mut [u8]) -> Option<ReadOutcome> {
        let consumed = match self {
            Self::Echo(stream) => stream.receive(bytes),
            Self::Sockperf(server) => server.receive_stream(bytes).ok()?,
            Self::Bounceback(bounce) => bounce.receive(bytes).ok()?,
            Self::Iperf2Header(server) => {
                let (consumed, job) = server.receive(bytes, clock::now_realtime()).ok()?;
                return Some(match job {
                    Some(job) => ReadOutcome::Request(consumed, Box::new(job)),
                    None => ReadOutcome::Consumed(consumed),
                });
            }
            Self::Discard | Self::Stream(_) | Self::Iperf2Test(..) => {
                // Copied into the service's memory, as a normal program would.
                let bytes = &bytes[..bytes.len().min(buffer.len())];
                buffer[..bytes.len()].copy_from_slice(bytes);
                bytes.len()
            }
        };
        Some(ReadOutcome::Consumed(consumed))
    }
}

impl StreamSource {
    fn send_due(
        &mut self,
        stack: &mut Stack,
        now: Nanos,
        send_bytes: &impl Fn(&mut Stack, &[u8]) -> Result<usize, StackError>,
    ) -> Result<usize, StackError> {
        if !self.reply.is_empty() {
            let reply_bytes = send_bytes(stack, &self.reply)?;
            self.reply.drain(..reply_bytes);
            return Ok(reply_bytes);
        }
        let due_bytes = self.due_bytes(now);
        if due_bytes == 0 {
            return Ok(0);
        }
        let sent = send_bytes(stack, self.payload.next(due_bytes))?;
        self.payload.advance(sent);
        self.remaining -= sent as u64;
        self.sent_bytes += sent as u64;
        Ok(sent)
    }
}
