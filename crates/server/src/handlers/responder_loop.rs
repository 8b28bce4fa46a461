//! Responders: connections and flows with requests and responses.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use linerate_protocol::amplification_guard::{RecentReplies, ReturnedReply, SendCredit};
use linerate_protocol::echo::may_reply_to;
use linerate_protocol::remote_report::RemoteReport;
use linerate_record::event::ErrorReport;
use linerate_record::plan::Plan;
use linerate_sys::clock::Nanos;
use linerate_sys::readiness::{Readiness, poll_any};
use linerate_sys::socket::MessageFlags;
use linerate_sys::{clock, socket};
use linerate_transport::flow_role::FlowRole;
use linerate_workload::flow_counters::PayloadTotals;
use socket2::Socket;

use super::AcceptedClient;
use super::plain::request_silence;
use super::test_run::TestRun;
use super::worker::{
    DatagramAction, DatagramFlow, FlowFailure, FlowWorkerContext, FlowWorkerResult, POLL_INTERVAL,
    SequenceStats, receive_datagrams,
};
use crate::interop_state::{IncomingFlow, InteropState, RejectionKey};
use crate::server_state::{ServerState, TestReservation};
use crate::timeouts::Timeouts;

/// Buffer of one receive call.
const RECEIVE_BUFFER_BYTES: usize = 64 << 10;

/// Responder of one protocol over a stream.
pub trait StreamResponder {
    /// Processes received bytes and returns how many were consumed; the others are passed again.
    ///
    /// # Errors
    /// If the bytes are invalid.
    fn receive(&mut self, bytes: &[u8]) -> Result<usize, String>;

    /// Handles the end of the client's stream.
    fn finish(&mut self) {}

    /// Returns whether the client has announced the end of its requests.
    fn is_finished(&self) -> bool {
        false
    }

    /// Returns whether clients of this protocol end by closing, possibly with unread responses: the
    /// resulting reset is a regular end.
    fn ends_by_reset(&self) -> bool {
        false
    }

    /// Returns the bytes to send next.
    fn outgoing(&self) -> &[u8];

    /// Drops `bytes` of them, which were sent.
    fn sent(&mut self, bytes: usize);

    /// Returns the totals so far.
    fn totals(&self) -> PayloadTotals;

    /// Returns the number of responses; `None` if the protocol has no response boundaries.
    fn responses(&self) -> Option<u64>;
}

/// Responds to requests on a connection, of which the first arrived at `arrived_ns`, until the
/// client has ended it and has received everything.
pub fn respond_on_stream(
    context: &FlowWorkerContext,
    socket: &Socket,
    idle: Duration,
    arrived_ns: Nanos,
    responder: &mut impl StreamResponder,
) -> FlowWorkerResult {
    let mut result = FlowWorkerResult::started_at(arrived_ns);
    let idle_ns = idle.as_nanos() as u64;
    let mut buffer = vec![0; RECEIVE_BUFFER_BYTES];
    let (mut start, mut end) = (0, 0);
    let (mut client_closed, mut has_new_requests, mut calls) = (false, false, 0);
    let (mut last, mut waited) = (clock::now(), false);
    let ready = socket
        .set_read_timeout(Some(POLL_INTERVAL))
        .and_then(|()| socket.set_tcp_nodelay(true));
    if let Err(error) = ready {
        result.failure = Some(FlowFailure::Socket(error));
        return result;
    }
    while !context.signals.closed.load(Relaxed) {
        while start < end {
            match responder.receive(&buffer[start..end]) {
                Ok(0) => break,
                Ok(consumed) => start += consumed,
                Err(reason) => {
                    result.failure = Some(FlowFailure::InvalidData(reason));
                    client_closed = true;
                    (start, end) = (0, 0);
                }
            }
        }
        if std::mem::take(&mut has_new_requests) {
            result.totals = PayloadTotals {
                calls,
                ..responder.totals()
            };
            context.publish(&result);
        }
        let mut full = false;
        while !full && !responder.outgoing().is_empty() {
            match socket::send(socket, responder.outgoing(), MessageFlags::DONT_WAIT) {
                Ok(bytes) => responder.sent(bytes),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => full = true,
                Err(error) => {
                    if !is_regular_end(&error, responder) {
                        result.failure.get_or_insert(FlowFailure::Socket(error));
                    }
                    return close(context, responder, result, calls);
                }
            }
        }
        if (client_closed || responder.is_finished()) && responder.outgoing().is_empty() {
            break;
        }
        // The clock is read only after a wait: requests in a row have times of their own.
        if std::mem::take(&mut waited) && clock::now().saturating_sub(last) > idle_ns {
            result.failure = Some(FlowFailure::Idle(idle));
            break;
        }
        if start < end || full {
            waited = true;
            let interests = [(socket.as_fd(), Readiness::Send)];
            let _ = poll_any(&interests, POLL_INTERVAL);
            if start < end || client_closed {
                continue;
            }
        }
        let flags = if full {
            MessageFlags::DONT_WAIT
        } else {
            MessageFlags::NONE
        };
        match socket::receive(socket, &mut buffer, flags) {
            Ok(0) => {
                client_closed = true;
                responder.finish();
                // Requests may be few: the test lasted until the receipt of its end. A client that
                // requested no response only sent, and its test ended with the last payload.
                if responder.responses() != Some(0) {
                    result.payload_times =
                        result.payload_times.map(|(first, _)| (first, clock::now()));
                }
            }
            Ok(bytes) => {
                last = clock::now();
                (start, end) = (0, bytes);
                calls += 1;
                result.payload_times =
                    Some((result.payload_times.map_or(last, |(first, _)| first), last));
                has_new_requests = true;
            }
            Err(error) if super::worker::is_retryable(&error) => waited = true,
            Err(error) => {
                if !is_regular_end(&error, responder) {
                    result.failure = Some(FlowFailure::Socket(error));
                }
                break;
            }
        }
    }
    close(context, responder, result, calls)
}

/// Returns whether an error is the regular end of a client of this protocol.
fn is_regular_end(error: &io::Error, responder: &impl StreamResponder) -> bool {
    let closed = matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    );
    closed && responder.ends_by_reset() && responder.totals().bytes > 0
}

fn close(
    context: &FlowWorkerContext,
    responder: &impl StreamResponder,
    mut result: FlowWorkerResult,
    calls: u64,
) -> FlowWorkerResult {
    result.totals = PayloadTotals {
        calls,
        ..responder.totals()
    };
    context.publish(&result);
    result.responses = responder.responses();
    result
}

/// Returns whether a reply to this sender would be replied to in turn; that is logged, and the
/// sender gets none.
pub fn rejects_reply_loop(
    protocol: &'static str,
    interop: &InteropState,
    from: SocketAddr,
) -> bool {
    if may_reply_to(from.port(), interop.ports()) {
        return false;
    }
    let key = RejectionKey {
        reason: "answering-port",
        protocol,
        from,
    };
    interop.log_rejection(key, || {
        ErrorReport::new(
            format!("{from} would reply to every reply (endless loop)"),
            format!("{protocol} over UDP"),
            "let the client send from another port; no option allows this",
        )
    });
    true
}

/// Runs the test of a connection whose requests `responder` answers.
pub fn respond_to_stream(
    protocol: &'static str,
    plan: Plan,
    mut client: AcceptedClient,
    reservation: TestReservation,
    stream: TcpStream,
    mut responder: impl StreamResponder + Send + 'static,
) {
    let (arrived_ns, idle) = (client.arrived_ns, client.timeouts().idle);
    let mut test = TestRun::begin(&mut client, reservation, protocol, protocol, plan);
    let spawned = test.spawn(
        1,
        FlowRole::Receiver,
        stream.into(),
        move |context, socket| respond_on_stream(context, socket, idle, arrived_ns, &mut responder),
    );
    test.conclude(spawned, RemoteReport::default);
}

/// Replies to datagrams, each with one of at most its size, as far as the server's guard allows.
pub fn respond_to_datagrams<D: DatagramFlow + Send + 'static>(
    protocol: &'static str,
    plan: Plan,
    mut accepted: AcceptedClient,
    reservation: TestReservation,
    incoming: IncomingFlow,
    mut flow: D,
) {
    let (server, source) = (accepted.server.clone(), (protocol, accepted.peer));
    let test = TestRun::begin(&mut accepted, reservation, protocol, protocol, plan);
    let mut test = test.without_end_marker();
    test.hold_open_flow(incoming.key, false);
    test.use_payload_size();
    let early = incoming.early_datagrams;
    let spawned = test.spawn(
        1,
        FlowRole::Receiver,
        incoming.socket,
        move |context, socket| {
            let mut credit = SendCredit::default();
            let allow = |now, received_bytes, response_bytes| {
                let interop = &server.interop;
                interop.may_respond(&mut credit, now, source, received_bytes, response_bytes)
            };
            receive_datagrams(context, socket, early, &mut flow, allow)
        },
    );
    test.conclude(spawned, RemoteReport::default);
}

/// Flow of datagrams that are all requests, answered in place.
pub struct RequestFlow<A> {
    server: Arc<ServerState>,
    protocol: &'static str,
    peer: SocketAddr,
    local: IpAddr,
    recent: RecentReplies,
    /// Socket of the last check of this peer.
    check: Option<UdpSocket>,
    /// Turns a request, with its number from 0, into its response and returns the size of that.
    respond: A,
    totals: PayloadTotals,
    last_ns: Nanos,
    timeouts: Timeouts,
}

impl<A: FnMut(&mut [u8], u64) -> usize> RequestFlow<A> {
    /// Creates the flow of a client; `respond` turns a request, with its number from 0, into its
    /// response and returns its size.
    pub fn with_responder(protocol: &'static str, client: &AcceptedClient, respond: A) -> Self {
        Self {
            server: Arc::clone(&client.server),
            protocol,
            peer: client.peer,
            local: client.local.ip(),
            recent: RecentReplies::new(None),
            check: None,
            respond,
            totals: PayloadTotals::default(),
            last_ns: 0,
            timeouts: *client.timeouts(),
        }
    }
}

impl<A> RequestFlow<A> {
    /// Returns whether a datagram is responded to that repeats a recent response.
    #[cold]
    fn may_respond_again(&mut self, now: Nanos) -> bool {
        let interop = &self.server.interop;
        if let Some(check) = &self.check {
            match check.recv(&mut [0]) {
                Ok(_) => interop.mark_service(now, self.peer.ip()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // The connected socket of a client: its host says that nothing receives there.
                Err(_) => self.check = None,
            }
        }
        match interop.count_returned(self.protocol, now, self.peer) {
            ReturnedReply::Send => true,
            ReturnedReply::SendAndCheck => {
                self.check = send_check(self.local, self.peer).ok();
                true
            }
            ReturnedReply::Reject => false,
        }
    }
}

/// Sends one byte to a peer from a port of its own: a service responds to it, and the connected
/// socket of a client does not receive it.
fn send_check(local: IpAddr, peer: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((local, 0))?;
    socket.set_nonblocking(true)?;
    socket.connect(peer)?;
    socket.send(b"?")?;
    Ok(socket)
}

impl<A: FnMut(&mut [u8], u64) -> usize> DatagramFlow for RequestFlow<A> {
    #[inline]
    fn receive(&mut self, now: Nanos, datagram: &mut [u8]) -> DatagramAction {
        let number = self.totals.packets;
        self.totals.packets += 1;
        self.totals.bytes += datagram.len() as u64;
        self.last_ns = now;
        let request = self.recent.digest(self.peer, datagram);
        if self.recent.contains(request) && !self.may_respond_again(now) {
            return DatagramAction::Payload;
        }
        let bytes = (self.respond)(datagram, number);
        let response = &datagram[..bytes.min(datagram.len())];
        self.recent.insert(self.recent.digest(self.peer, response));
        DatagramAction::ReplyInPlace {
            bytes,
            is_payload: true,
        }
    }

    fn is_finished(&mut self, now: Nanos) -> bool {
        let silence = request_silence(self.totals.packets, &self.timeouts);
        now.saturating_sub(self.last_ns) > silence.as_nanos() as u64
    }

    fn totals(&self) -> PayloadTotals {
        self.totals
    }

    fn sequence_stats(&mut self) -> Option<SequenceStats> {
        None
    }

    fn sends_replies(&self) -> bool {
        true
    }
}
