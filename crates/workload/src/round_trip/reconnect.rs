//! A socket per request: opened, bound if requested, connected, used once, closed.
//!
//! Over TCP the responding end closes first, so that TIME_WAIT stays at its one port and uses up
//! no ports of the requesting end.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::task::Poll;

use linerate_protocol::control::flow as wire;
use linerate_record::plan::TransportProtocol;
use linerate_stats::histogram::Histogram;
use linerate_sys::clock::Nanos;
use linerate_transport::{FlowOptions, Transport};

use super::request_tracker::{RequestTracker, ResponseCheck, ResponseKind, classify};
use crate::flow::FlowEndResults;
use crate::histogram_pool::HistogramPool;
use crate::{OpenFlow, Progress, ReconnectOptions, WorkerContext, Workload};

/// Pause before the next try to get a local port.
const NO_PORT_PAUSE_NS: Nanos = 1_000_000;

/// Pause after a connection was refused or reset.
const BROKEN_PAUSE_NS: Nanos = 1_000_000;

/// EADDRNOTAVAIL, "Cannot assign requested address": no local port is free.
const EADDRNOTAVAIL: i32 = 99;

/// Histograms of the steps of a round trip, of all flows of a thread.
pub struct StepHistograms {
    open: Histogram,
    bind: Histogram,
    connect: Histogram,
    send: Histogram,
    receive: Histogram,
    close: Histogram,
    total: Histogram,
}

/// Times of the steps of the current round trip.
#[derive(Clone, Copy, Default)]
struct StepTimes {
    start_ns: Nanos,
    opened_ns: Nanos,
    bound_ns: Nanos,
    connected_ns: Nanos,
    request_ns: Nanos,
    sent_ns: Nanos,
    response_ns: Nanos,
}

impl StepHistograms {
    /// Takes the histograms of the first flow of a thread.
    pub fn from_pool(pool: &mut HistogramPool) -> Self {
        Self {
            open: pool.take_auxiliary(),
            bind: pool.take_auxiliary(),
            connect: pool.take_auxiliary(),
            send: pool.take_auxiliary(),
            receive: pool.take_auxiliary(),
            close: pool.take_auxiliary(),
            total: pool.take_auxiliary(),
        }
    }

    fn record(&mut self, times: &StepTimes, has_bind: bool, closed_ns: Nanos) {
        self.open
            .record(times.opened_ns.saturating_sub(times.start_ns));
        if has_bind {
            self.bind
                .record(times.bound_ns.saturating_sub(times.opened_ns));
        }
        let connect = times.connected_ns.saturating_sub(times.bound_ns);
        self.connect.record(connect);
        self.send
            .record(times.sent_ns.saturating_sub(times.request_ns));
        self.receive
            .record(times.response_ns.saturating_sub(times.sent_ns));
        self.close
            .record(closed_ns.saturating_sub(times.response_ns));
        self.total.record(closed_ns.saturating_sub(times.start_ns));
    }

    fn into_named(self) -> Vec<(&'static str, Histogram)> {
        vec![
            ("open_ns", self.open),
            ("bind_ns", self.bind),
            ("connect_ns", self.connect),
            ("send_ns", self.send),
            ("receive_ns", self.receive),
            ("close_ns", self.close),
            ("whole_ns", self.total),
        ]
    }
}

/// State of a round trip.
#[derive(Clone, Copy)]
enum RequestStep {
    /// No socket is open; the next one is opened from this time on.
    Idle(Nanos),
    Connecting,
    Sending(usize),
    Waiting {
        received_bytes: usize,
        is_correct: bool,
    },
    /// TCP: the response is complete, the end of the stream is awaited.
    AwaitingClose(ResponseCheck),
}

/// Sends each request over a socket of its own.
pub struct ReconnectingSender<'a, S> {
    requests: RequestTracker<'a>,
    protocol: TransportProtocol,
    remote: SocketAddr,
    local: Option<SocketAddr>,
    options: FlowOptions,
    /// Socket opened before the start, then the one in use.
    socket: Option<S>,
    step: RequestStep,
    times: StepTimes,
    number: u64,
    /// Number of sockets so far.
    socket_count: u64,
    histograms: Rc<RefCell<StepHistograms>>,
}

impl<'a, S: Copy> ReconnectingSender<'a, S> {
    pub fn new(
        worker: &'a WorkerContext<'a>,
        mut flow: OpenFlow<S>,
        steps: Rc<RefCell<StepHistograms>>,
    ) -> Self {
        let requests = RequestTracker::new(worker, &mut flow);
        let ReconnectOptions { remote, options } = *flow
            .reconnect
            .expect("a flow that opens sockets has their options");
        let unspecified: IpAddr = match remote {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let protocol = worker.plan.protocol;
        let local = match (options.local, protocol) {
            // A port cannot be reused at once, so only the address is kept.
            (Some(local), _) => Some(SocketAddr::new(local.ip(), 0)),
            // As most programs do; so this step is measured, too.
            (None, TransportProtocol::Udp) => Some(SocketAddr::new(unspecified, 0)),
            // Binding would reserve a port against all destinations; `connect` chooses one.
            (None, TransportProtocol::Tcp) => None,
        };
        Self {
            requests: match protocol {
                TransportProtocol::Udp => requests.with_numbers(),
                TransportProtocol::Tcp => requests,
            },
            protocol,
            remote,
            local,
            options,
            socket: Some(flow.socket),
            step: RequestStep::Idle(0),
            times: StepTimes::default(),
            number: 0,
            socket_count: 0,
            histograms: steps,
        }
    }

    fn socket(&self) -> S {
        self.socket.expect("a step that uses a socket has one")
    }

    fn close<T: Transport<Socket = S>>(&mut self, transport: &mut T) {
        if let Some(socket) = self.socket.take() {
            transport.close(socket);
        }
        self.step = RequestStep::Idle(0);
    }

    /// Opens the next socket and starts to connect it.
    fn open<T: Transport<Socket = S>>(&mut self, transport: &mut T) -> io::Result<()> {
        self.close(transport);
        self.times.start_ns = T::read_clock();
        let socket = transport.open(self.remote, &self.options)?;
        self.socket = Some(socket);
        self.socket_count += 1;
        self.times.opened_ns = T::read_clock();
        self.times.bound_ns = self.times.opened_ns;
        if let Some(local) = self.local {
            transport.bind(socket, local)?;
            self.times.bound_ns = T::read_clock();
        }
        self.step = RequestStep::Connecting;
        Ok(())
    }

    /// Waits for a free local port.
    fn wait_for_port<T: Transport<Socket = S>>(&mut self, transport: &mut T) -> Progress {
        self.close(transport);
        self.requests.port_waits += 1;
        let retry_at_ns = T::read_clock() + NO_PORT_PAUSE_NS;
        self.step = RequestStep::Idle(retry_at_ns);
        Progress::Starved(Some(retry_at_ns))
    }

    fn send<T: Transport<Socket = S>>(
        &mut self,
        transport: &mut T,
        sent: usize,
    ) -> io::Result<bool> {
        let socket = self.socket();
        let number = self.number;
        let rest = &self.requests.message[sent..];
        let mut request_ns = 0;
        let accepted = match self.protocol {
            TransportProtocol::Udp => transport.udp_send(socket, rest.len(), |payload| {
                payload.copy_from_slice(rest);
                request_ns = T::read_clock();
                wire::write_header(payload, number, request_ns);
            }),
            TransportProtocol::Tcp => transport.tcp_send(socket, rest.len(), |payload| {
                payload.copy_from_slice(&rest[..payload.len()]);
                request_ns = T::read_clock();
            }),
        };
        let Poll::Ready(accepted) = accepted else {
            return Ok(false);
        };
        let accepted = accepted?;
        self.times.sent_ns = T::read_clock();
        if sent == 0 {
            self.times.request_ns = request_ns;
            if self.protocol == TransportProtocol::Udp {
                wire::write_header(&mut self.requests.message, number, request_ns);
            }
        }
        let sent = sent + accepted;
        self.step = match sent < self.requests.message.len() {
            true => RequestStep::Sending(sent),
            false => RequestStep::Waiting {
                received_bytes: 0,
                is_correct: true,
            },
        };
        Ok(true)
    }

    /// Receives what is available of the response; returns the comparison once it is complete.
    fn receive<T: Transport<Socket = S>>(
        &mut self,
        transport: &mut T,
        received: usize,
        is_correct: bool,
    ) -> io::Result<Option<ResponseCheck>> {
        let (socket, number) = (self.socket(), self.number);
        let (request, verify) = (&self.requests.message, self.requests.verify);
        if self.protocol == TransportProtocol::Udp {
            let response = transport.udp_receive(socket, |payload, _| {
                (T::read_clock(), classify(payload, request, number, verify))
            });
            let Poll::Ready(response) = response else {
                return Ok(None);
            };
            return Ok(match response? {
                (now, ResponseKind::Current(verdict)) => {
                    self.times.response_ns = now;
                    Some(verdict)
                }
                (now, ResponseKind::Earlier(number)) => {
                    self.requests.record_earlier_response(number, now);
                    None
                }
                (_, ResponseKind::SetupDatagram) => None,
            });
        }
        let response = transport.tcp_receive(socket, request.len() - received, |payload| {
            let now = T::read_clock();
            let expected = &request[received..received + payload.len()];
            (now, payload.len(), !verify || payload == expected)
        });
        let Poll::Ready(response) = response else {
            return Ok(None);
        };
        let (now, bytes, is_equal) = response?;
        if bytes == 0 {
            // The connection ended before the response: too short.
            self.times.response_ns = now;
            return Ok(Some(ResponseCheck::WrongLength));
        }
        let (received, is_correct) = (received + bytes, is_correct && is_equal);
        self.step = RequestStep::Waiting {
            received_bytes: received,
            is_correct,
        };
        if received < request.len() {
            return Ok(None);
        }
        self.times.response_ns = now;
        Ok(Some(match is_correct {
            true => ResponseCheck::Correct,
            false => ResponseCheck::WrongContent,
        }))
    }

    /// Closes the socket and counts the round trip.
    fn complete_round_trip<T: Transport<Socket = S>>(
        &mut self,
        transport: &mut T,
        verdict: ResponseCheck,
    ) {
        self.close(transport);
        let closed_ns = T::read_clock();
        if self.times.response_ns >= self.requests.worker.run_clock.count_from_ns {
            let mut steps = self.histograms.borrow_mut();
            steps.record(&self.times, self.local.is_some(), closed_ns);
        }
        let (request_ns, response_ns) = (self.times.request_ns, self.times.response_ns);
        self.requests.record_response(
            transport,
            None,
            self.number,
            request_ns,
            response_ns,
            verdict,
        );
    }

    /// Counts a refused or reset connection as a missing response.
    fn on_connection_error<T: Transport<Socket = S>>(&mut self, transport: &mut T) -> Progress {
        self.close(transport);
        if self.requests.worker.phase.is_interrupted() {
            return Progress::Done;
        }
        let now = T::read_clock();
        self.requests.broken_connections += 1;
        self.requests.record_missing(self.number, now);
        // Paused, because a server that refuses one connection refuses the next at once.
        let retry_at_ns = now + BROKEN_PAUSE_NS;
        self.step = RequestStep::Idle(retry_at_ns);
        Progress::Starved(Some(retry_at_ns))
    }

    /// Advances the connection as far as possible without waiting.
    fn advance<T: Transport<Socket = S>>(&mut self, transport: &mut T) -> io::Result<Progress> {
        if let RequestStep::Idle(retry_at_ns) = self.step {
            if self.requests.is_over() {
                self.close(transport);
                return Ok(Progress::Done);
            }
            if retry_at_ns > 0 && T::read_clock() < retry_at_ns {
                return Ok(Progress::Starved(Some(retry_at_ns)));
            }
            self.requests.pause_if_due();
            self.number = self.requests.write_next_number();
            match self.open(transport) {
                Err(error) if error.raw_os_error() == Some(EADDRNOTAVAIL) => {
                    return Ok(self.wait_for_port(transport));
                }
                opened => opened?,
            }
        }
        if let RequestStep::Connecting = self.step {
            match transport.poll_connect(self.socket(), self.remote) {
                Poll::Ready(Ok(())) => {
                    self.times.connected_ns = T::read_clock();
                    self.step = RequestStep::Sending(0);
                }
                Poll::Ready(Err(error)) if error.raw_os_error() == Some(EADDRNOTAVAIL) => {
                    return Ok(self.wait_for_port(transport));
                }
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => {}
            }
        }
        if let RequestStep::Sending(sent) = self.step
            && self.send(transport, sent)?
            && matches!(self.step, RequestStep::Sending(_))
        {
            return Ok(Progress::Worked);
        }
        if let RequestStep::Waiting {
            received_bytes: received,
            is_correct,
        } = self.step
        {
            match self.receive(transport, received, is_correct) {
                Ok(Some(verdict)) if self.protocol == TransportProtocol::Udp => {
                    self.complete_round_trip(transport, verdict);
                    return Ok(Progress::Worked);
                }
                Ok(Some(verdict)) => self.step = RequestStep::AwaitingClose(verdict),
                Ok(None) if matches!(self.step, RequestStep::Waiting { received_bytes: now, .. } if now > received) =>
                {
                    return Ok(Progress::Worked);
                }
                Ok(None) => {}
                Err(error) => return Err(error),
            }
        }
        if let RequestStep::AwaitingClose(verdict) = self.step {
            match transport.tcp_receive(self.socket(), 1, |payload| payload.len()) {
                // More than the response arrived.
                Poll::Ready(Ok(1)) => {
                    self.complete_round_trip(transport, ResponseCheck::WrongLength);
                    return Ok(Progress::Worked);
                }
                Poll::Ready(_) => {
                    self.complete_round_trip(transport, verdict);
                    return Ok(Progress::Worked);
                }
                Poll::Pending => {}
            }
        }
        let now = T::read_clock();
        self.requests.advance_time(now);
        if now >= self.times.start_ns + self.requests.timeout_ns {
            // Timed out in any of the steps.
            self.close(transport);
            self.requests.give_up(self.number, self.times.start_ns, now);
            return Ok(Progress::Worked);
        }
        if self.requests.stops_waiting(self.times.start_ns, now) {
            self.close(transport);
            return Ok(Progress::Done);
        }
        Ok(Progress::Starved(None))
    }
}

/// Returns whether an error ends one connection and not the run: refused, reset or unreachable.
fn is_connection_error(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::ConnectionRefused
            | Kind::ConnectionReset
            | Kind::ConnectionAborted
            | Kind::BrokenPipe
            | Kind::TimedOut
            | Kind::HostUnreachable
            | Kind::NetworkUnreachable
    )
}

impl<T: Transport> Workload<T> for ReconnectingSender<'_, T::Socket> {
    fn step(&mut self, transport: &mut T) -> io::Result<Progress> {
        match self.advance(transport) {
            Err(error) if is_connection_error(&error) => Ok(self.on_connection_error(transport)),
            result => result,
        }
    }

    fn socket(&self) -> Option<T::Socket> {
        self.socket
    }

    fn newest_socket(&self) -> Option<(u64, T::Socket)> {
        Some((self.socket_count, self.socket?))
    }

    fn finish(mut self, transport: &T, error: Option<io::Error>) -> FlowEndResults {
        // The last flow of the thread reports the steps of all.
        if let Some(steps) = Rc::into_inner(self.histograms) {
            self.requests.more_histograms = steps.into_inner().into_named();
        }
        self.requests.finish(transport, self.socket, error)
    }
}
