//! Services over TCP.

use std::task::Poll;

use linerate_dialect::iperf2::{Amount, Dual, Settings, TcpJob, TcpServer, Way, WriteStamps, fill};
use linerate_dialect::{chargen, echo, sockperf};
use linerate_host::sys::clock::{self, Nanos};
use linerate_metric::stack::ServiceFigures;
use linerate_stack::{SocketId, Stack, StackError};

use super::ServiceKind;
use crate::interop::handlers::{Answers, Bounce, Ring};

/// Steps per round; the stack is polled in between.
const STEPS: usize = 64;

/// Idle timeout of a connection.
const SILENCE_NS: Nanos = 300_000_000_000;

/// Length of repeated payload: whole periods of chargen's pattern, and a multiple of the ten digits
/// that
/// iperf2 sends.
const PATTERN_BYTES: usize = 10 * chargen::PERIOD_BYTES;

/// Write size of iperf2 unless its client requests another, and the largest that is allocated.
const WRITE_BYTES: u32 = 128 << 10;
const MOST_WRITE_BYTES: u32 = 1 << 20;

/// State of a connection after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Continues when its socket changes.
    Wait,
    /// Continues in the next round: there may be more work.
    Again,
    /// Continues at a time.
    Timed,
    /// Finished or failed.
    Over,
}

/// A connection to a service.
pub struct Connection {
    socket: SocketId,
    service: usize,
    machine: Machine,
    last_ns: Nanos,
    /// The remote end has finished sending.
    ended: bool,
    /// This end has finished sending.
    finished: bool,
    /// Settings of a second connection that the client requested, towards it.
    wish: Option<Box<Settings>>,
}

enum Machine {
    Echo(echo::Stream),
    Sockperf(Box<sockperf::Server>),
    Bounce(Box<Bounce>),
    Sink,
    Source(Source),
    /// iperf2, until the client's settings are complete.
    Header(Box<TcpServer>),
    /// iperf2: replies, then payload if requested, while input is received and discarded.
    Both(Box<TcpServer>, Option<Source>),
}

/// Payload that is sent without requests.
struct Source {
    /// Protocol reply before the payload, not counted as payload.
    first: Vec<u8>,
    payload: Ring,
    left: u64,
    until_ns: Option<Nanos>,
    /// Rate in bit/s, and the start of the flow.
    rate: Option<(u64, Nanos)>,
    /// Size of writes with timestamps; such a write is sent as a unit.
    write_bytes: Option<u64>,
    sent: u64,
}

impl Source {
    fn new(payload: Ring) -> Self {
        Self {
            first: Vec::new(),
            payload,
            left: u64::MAX,
            until_ns: None,
            rate: None,
            write_bytes: None,
            sent: 0,
        }
    }

    fn of(settings: &Settings, now: Nanos) -> Self {
        let block = settings.buffer_bytes.unwrap_or(WRITE_BYTES);
        let write = block.min(MOST_WRITE_BYTES) as usize;
        let stamps = WriteStamps::new(settings, write, clock::real());
        // A second connection carries payload only, without a reply.
        let stamps = stamps.filter(|_| settings.dual.is_none());
        let bytes = if stamps.is_some() {
            write
        } else {
            PATTERN_BYTES
        };
        let mut digits = vec![0; bytes];
        fill(&mut digits);
        let first = stamps.as_ref().map(|stamps| stamps.reply().to_vec());
        let mut source = Self {
            first: first.unwrap_or_default(),
            write_bytes: stamps.as_ref().map(|_| write as u64),
            ..Self::new(Ring::new(digits).stamped(stamps))
        };
        match settings.amount {
            Some(Amount::Bytes(bytes)) => source.left = bytes,
            Some(Amount::Time(ns)) => source.until_ns = Some(now.saturating_add(ns)),
            None => {}
        }
        let bits = |rate: u64| match settings.rate_is_packets {
            true => rate.saturating_mul(u64::from(block) * 8),
            false => rate,
        };
        source.rate = settings.rate.map(|rate| (bits(rate), now));
        source
    }

    /// Returns the number of bytes that may be sent now.
    fn due(&self, now: Nanos) -> usize {
        if self.until_ns.is_some_and(|until| now >= until) {
            return 0;
        }
        let by_rate = self.rate.map_or(u64::MAX, |(bits, from)| {
            let time = u128::from(now.saturating_sub(from));
            let all = u128::from(bits) * time / 8_000_000_000;
            let all = u64::try_from(all).unwrap_or(u64::MAX);
            match self.write_bytes {
                None => all.saturating_sub(self.sent),
                // A write that has been started is sent to its end.
                Some(write) => {
                    let begun = self.sent.next_multiple_of(write);
                    let whole = all.max(begun) / write * write;
                    whole.saturating_sub(self.sent)
                }
            }
        });
        usize::try_from(by_rate.min(self.left)).unwrap_or(usize::MAX)
    }

    fn is_over(&self, now: Nanos) -> bool {
        self.left == 0 || self.until_ns.is_some_and(|until| now >= until)
    }
}

impl Connection {
    pub fn new(kind: ServiceKind, service: usize, socket: SocketId, now: Nanos) -> Self {
        let machine = match kind {
            ServiceKind::Echo => Machine::Echo(echo::Stream::default()),
            // Sockets of the linerate service are handled by the acceptor.
            ServiceKind::Discard | ServiceKind::Linerate => Machine::Sink,
            ServiceKind::Chargen => {
                let mut pattern = vec![0; PATTERN_BYTES];
                chargen::fill(0, &mut pattern);
                Machine::Source(Source::new(Ring::new(pattern)))
            }
            ServiceKind::Sockperf => Machine::Sockperf(Box::default()),
            ServiceKind::Iperf2 => Machine::Header(Box::new(TcpServer::new())),
        };
        Self {
            socket,
            service,
            machine,
            last_ns: now,
            ended: false,
            finished: false,
            wish: None,
        }
    }

    /// Creates the second connection towards an iperf2 client, which is established already.
    pub fn back(settings: &Settings, service: usize, socket: SocketId, now: Nanos) -> Self {
        let source = Source::of(settings, now);
        Self {
            machine: Machine::Both(Box::new(TcpServer::new()), Some(source)),
            ..Self::new(ServiceKind::Iperf2, service, socket, now)
        }
    }

    /// Takes the second connection that the client requested, once it is due; `over`: this one has
    /// ended.
    pub fn wish(&mut self, over: bool) -> Option<Box<Settings>> {
        let wish = self.wish.take_if(|wish| match wish.dual {
            Some(Dual::After) => over,
            _ => true,
        })?;
        // After a failure the client is gone.
        (!over || self.ended).then_some(wish)
    }

    pub fn socket(&self) -> SocketId {
        self.socket
    }

    pub fn service(&self) -> usize {
        self.service
    }

    /// Returns whether the idle timeout has expired.
    pub fn is_forgotten(&self, now: Nanos) -> bool {
        now.saturating_sub(self.last_ns) > SILENCE_NS
    }

    /// Moves as much as is possible now.
    pub fn step(
        &mut self,
        stack: &mut Stack,
        now: Nanos,
        room: &mut [u8],
        figures: &mut ServiceFigures,
    ) -> Next {
        for _ in 0..STEPS {
            let sent = match self.send(stack, now) {
                Ok(sent) => sent,
                Err(_) => return Next::Over,
            };
            figures.bytes_sent += sent as u64;
            let took = match self.receive(stack, room) {
                Ok(took) => took,
                Err(_) => return Next::Over,
            };
            figures.bytes_received += took.unwrap_or(0) as u64;
            if sent > 0 || took.is_some() {
                self.last_ns = now;
            }
            if self.is_over(now) {
                return Next::Over;
            }
            if sent == 0 && took.is_none() {
                return match self.source() {
                    Some(source) if source.rate.is_some() || source.until_ns.is_some() => {
                        Next::Timed
                    }
                    _ => Next::Wait,
                };
            }
        }
        Next::Again
    }

    fn source(&self) -> Option<&Source> {
        match &self.machine {
            Machine::Source(source) | Machine::Both(_, Some(source)) => Some(source),
            _ => None,
        }
    }

    fn is_over(&mut self, now: Nanos) -> bool {
        match &mut self.machine {
            Machine::Echo(stream) => self.ended && stream.outgoing().is_empty(),
            Machine::Sockperf(server) => self.ended && server.outgoing().is_empty(),
            Machine::Bounce(bounce) => {
                (self.ended || bounce.is_over()) && bounce.outgoing().is_empty()
            }
            Machine::Sink | Machine::Header(_) => self.ended,
            Machine::Source(source) => self.ended || source.is_over(now),
            // A client that receives closes the connection at its end.
            Machine::Both(server, _) => self.ended && server.outgoing().is_empty(),
        }
    }

    /// Sends as much as there is space for; returns the number of bytes.
    fn send(&mut self, stack: &mut Stack, now: Nanos) -> Result<usize, StackError> {
        let socket = self.socket;
        let mut all = 0;
        let put = |stack: &mut Stack, bytes: &[u8]| -> Result<usize, StackError> {
            if bytes.is_empty() {
                return Ok(0);
            }
            match stack.tcp_send(socket, |room| {
                let some = bytes.len().min(room.len());
                room[..some].copy_from_slice(&bytes[..some]);
                some
            }) {
                Poll::Ready(sent) => sent,
                Poll::Pending => Ok(0),
            }
        };
        loop {
            let sent = match &mut self.machine {
                Machine::Echo(stream) => {
                    let sent = put(stack, stream.outgoing())?;
                    stream.sent(sent);
                    sent
                }
                Machine::Sockperf(server) => {
                    let sent = put(stack, server.outgoing())?;
                    server.sent(sent);
                    sent
                }
                Machine::Bounce(bounce) => {
                    let sent = put(stack, bounce.outgoing())?;
                    bounce.sent(sent);
                    sent
                }
                Machine::Sink | Machine::Header(_) => 0,
                Machine::Source(source) => source.put(stack, now, &put)?,
                Machine::Both(server, source) => {
                    let said = put(stack, server.outgoing())?;
                    server.sent(said);
                    match source.as_mut().filter(|_| server.outgoing().is_empty()) {
                        Some(source) => {
                            let sent = source.put(stack, now, &put)?;
                            if source.is_over(now) && !self.finished {
                                self.finished = true;
                                stack.tcp_finish(socket)?;
                            }
                            said + sent
                        }
                        None => said,
                    }
                }
            };
            all += sent;
            if sent == 0 || all >= PATTERN_BYTES {
                return Ok(all);
            }
        }
    }

    /// Receives available data; returns the number of bytes, `None` without data.
    fn receive(&mut self, stack: &mut Stack, room: &mut [u8]) -> Result<Option<usize>, StackError> {
        if self.ended {
            return Ok(None);
        }
        let machine = &mut self.machine;
        let received = stack.tcp_receive(self.socket, |bytes| {
            if bytes.is_empty() {
                return (0, Some(Heard::End));
            }
            let heard = machine.hear(bytes, room);
            let taken = match &heard {
                Some(Heard::Took(taken)) => *taken,
                Some(Heard::Wants(taken, _)) => *taken,
                Some(Heard::End) | None => 0,
            };
            (taken, heard)
        });
        let heard = match received {
            Poll::Pending => return Ok(None),
            Poll::Ready(heard) => heard?,
        };
        match heard {
            Some(Heard::End) => {
                self.ended = true;
                if let Machine::Echo(stream) = &mut self.machine {
                    stream.finish();
                }
                Ok(Some(0))
            }
            Some(Heard::Took(0)) => Ok(None),
            Some(Heard::Took(taken)) => Ok(Some(taken)),
            Some(Heard::Wants(taken, job)) => {
                self.begin(*job);
                Ok(Some(taken))
            }
            // Invalid input: the connection is closed, which every protocol understands.
            None => Err(StackError::Reset),
        }
    }

    /// Starts the job of an iperf2 client.
    fn begin(&mut self, job: TcpJob) {
        let now = self.last_ns;
        let machine = std::mem::replace(&mut self.machine, Machine::Sink);
        let Machine::Header(server) = machine else {
            return;
        };
        self.machine = match job {
            TcpJob::Plain => Machine::Sink,
            TcpJob::Bounceback(questions) => Machine::Bounce(Box::new(Bounce::new(*questions))),
            TcpJob::Test(settings) => {
                self.wish = settings.dual.map(|_| settings.clone());
                let source = (settings.way != Way::Forward).then(|| Source::of(&settings, now));
                Machine::Both(server, source)
            }
        };
    }
}

/// Result of a read.
enum Heard {
    /// Number of bytes consumed.
    Took(usize),
    /// Number of bytes consumed, and the complete request of an iperf2 client.
    Wants(usize, Box<TcpJob>),
    /// End of the stream.
    End,
}

impl Machine {
    /// Consumes input; `None` when it is invalid.
    fn hear(&mut self, bytes: &[u8], room: &mut [u8]) -> Option<Heard> {
        let took = match self {
            Self::Echo(stream) => stream.receive(bytes),
            Self::Sockperf(server) => server.receive(bytes).ok()?,
            Self::Bounce(bounce) => bounce.receive(bytes).ok()?,
            Self::Header(server) => {
                let (taken, job) = server.receive(bytes, clock::real()).ok()?;
                return Some(match job {
                    Some(job) => Heard::Wants(taken, Box::new(job)),
                    None => Heard::Took(taken),
                });
            }
            Self::Sink | Self::Source(_) | Self::Both(..) => {
                // Copied into the service's memory, as a normal program would.
                let bytes = &bytes[..bytes.len().min(room.len())];
                room[..bytes.len()].copy_from_slice(bytes);
                bytes.len()
            }
        };
        Some(Heard::Took(took))
    }
}

impl Source {
    fn put(
        &mut self,
        stack: &mut Stack,
        now: Nanos,
        put: &impl Fn(&mut Stack, &[u8]) -> Result<usize, StackError>,
    ) -> Result<usize, StackError> {
        if !self.first.is_empty() {
            let said = put(stack, &self.first)?;
            self.first.drain(..said);
            return Ok(said);
        }
        let due = self.due(now);
        if due == 0 {
            return Ok(0);
        }
        let sent = put(stack, self.payload.next(due))?;
        self.payload.sent(sent);
        self.left -= sent as u64;
        self.sent += sent as u64;
        Ok(sent)
    }
}
