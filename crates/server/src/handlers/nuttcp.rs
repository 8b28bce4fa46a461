//! nuttcp clients: a control connection with lines of text, and data on separate ports.

mod data;

use std::io::Read;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use linerate_protocol::nuttcp::{
    CpuTimes, NuttcpCounts, NuttcpDirection, NuttcpError, NuttcpInterval, NuttcpServer,
    NuttcpServerEvent, NuttcpTest as TestRequest, PROTOCOL,
};
use linerate_protocol::remote_report::RemoteReport;
use linerate_protocol::sniff::TransportKind;
use linerate_record::event::ErrorReport;
use linerate_record::plan::{Direction, Plan, RunKind, TransportProtocol};
use linerate_session::error::SessionError;
use linerate_sys::clock::Nanos;
use linerate_sys::readiness::Readiness;
use linerate_sys::{clock, readiness, socket};
use linerate_workload::flow_counters::PayloadTotals;

use self::data::{DataSockets, alternative_port};
use super::test_run::{StopReason, TestRun};
use super::{AcceptedClient, ProtocolHandler, StreamHandler, failure_reason, write_control};
use crate::interop_state::RejectionKey;
use crate::server_state::{SessionPermit, TestReservation};

/// Handler of nuttcp. Its datagrams belong to tests that expect them.
pub const HANDLER: ProtocolHandler = ProtocolHandler {
    name: PROTOCOL.name,
    port: None,
    sends_first: false,
    stream: Some(StreamHandler::Control(serve_control)),
    expected_flow: None,
    datagrams: None,
    rejects_flow: None,
};

/// Poll interval of the control connection.
const CONTROL_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Time for a client to receive its results.
const RESULTS_TIMEOUT_NS: Nanos = 1_000_000_000;

/// Time for payload to arrive after the client has closed its control connection.
const CLOSED_CONTROL_GRACE_NS: Nanos = 2_000_000_000;

fn serve_control(client: AcceptedClient, permit: SessionPermit, stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let mut session = NuttcpSession {
        client,
        control: stream,
        machine: NuttcpServer::default(),
        reservation: None,
        permit: Some(permit),
        request: None,
        data: None,
        client_closed: Arc::default(),
        closed_ns: None,
        results_state: None,
        last_interval: (PayloadTotals::default(), 0),
        start_ns: clock::now(),
    };
    session.run();
}

/// Control connection of one client.
struct NuttcpSession {
    client: AcceptedClient,
    control: TcpStream,
    machine: NuttcpServer,
    reservation: Option<TestReservation>,
    /// Permit, held until there is a test.
    permit: Option<SessionPermit>,
    request: Option<TestRequest>,
    /// Prepared sockets of the data.
    data: Option<DataSockets>,
    /// Set for receivers of datagrams once the client has closed.
    client_closed: Arc<AtomicBool>,
    closed_ns: Option<Nanos>,
    /// State of the client when its results were sent.
    results_state: Option<ClientState>,
    /// Totals and time of the last interval line.
    last_interval: (PayloadTotals, Nanos),
    start_ns: Nanos,
}

/// State of a client when its results were sent.
#[derive(Clone, Copy)]
enum ClientState {
    /// Connected.
    Connected,
    /// Closed for sending: by a client that has sent all its datagrams, or by one that was killed.
    HalfClosed,
}

impl NuttcpSession {
    fn run(&mut self) {
        let mut test = None;
        let result = self.run_control(&mut test);
        if let Err(error) = &result {
            self.machine.abort(&error.to_string());
        }
        self.flush_control();
        let Some(test) = test else {
            match (&result, &self.request) {
                (Err(error), Some(request)) => self.log_failure(error, request),
                (Err(error), None) => self
                    .client
                    .log_no_test_started(PROTOCOL.name, &failure_reason(error)),
                (Ok(()), _) => {
                    if let Some(reason) = self.machine.invalid_parameters() {
                        let description = format!("its parameters are invalid ({reason})");
                        self.client.log_no_test_started(PROTOCOL.name, &description);
                    }
                }
            }
            return;
        };
        let _ = self.control.shutdown(std::net::Shutdown::Write);
        let result =
            result.and_then(
                |()| match test.is_aborted() || self.client_received_results() {
                    true => Ok(()),
                    false => Err(self.peer_lost("it disconnected before it received its results")),
                },
            );
        test.finish(RemoteReport::default(), result.err());
    }

    /// Logs the failure of a test that was agreed on and did not start, which leaves no record.
    fn log_failure(&self, error: &SessionError, request: &TestRequest) {
        let key = RejectionKey {
            reason: match request.client_connects() {
                true => "data",
                false => "data-back",
            },
            protocol: PROTOCOL.name,
            from: self.client.peer,
        };
        self.client
            .server
            .interop
            .log_rejection(key, || error.to_report());
    }

    /// Returns whether the client received its results. A killed client closes its connections as a
    /// finished one does, but its host answers later segments with a reset and acknowledges
    /// nothing. A client that has its results may also end with a reset.
    fn client_received_results(&self) -> bool {
        let until = clock::now() + RESULTS_TIMEOUT_NS;
        while self.machine.outgoing().is_empty() && clock::now() < until {
            let reset = !matches!(self.control.take_error(), Ok(None));
            // After the results only the FIN is sent, which counts as one byte.
            let left = socket::read_unacknowledged_bytes(&self.control);
            if reset {
                let has_them = left.is_ok_and(|bytes| bytes <= 1);
                return has_them || matches!(self.results_state, Some(ClientState::Connected));
            }
            if left.is_ok_and(|bytes| bytes == 0) {
                return true;
            }
            clock::sleep_until(clock::now() + 2_000_000);
        }
        false
    }

    fn run_control(&mut self, test: &mut Option<TestRun>) -> Result<(), SessionError> {
        loop {
            self.flush_control();
            self.receive_control()?;
            while let Some(event) = self.machine.poll() {
                match event {
                    NuttcpServerEvent::Prepare(request) => self.prepare_test(request),
                    NuttcpServerEvent::Run(request) => {
                        // The client listens once it has received the reply.
                        self.flush_control();
                        self.start_test(&request, test)?;
                    }
                    NuttcpServerEvent::ClientClosed => {
                        self.client_closed.store(true, Relaxed);
                        self.closed_ns = Some(clock::now());
                    }
                    NuttcpServerEvent::Close => return Ok(()),
                }
            }
            match test {
                Some(test) => self.poll_test(test)?,
                None => self.check_parameters_timeout()?,
            }
        }
    }

    /// Returns an error once a client without parameters has timed out.
    fn check_parameters_timeout(&self) -> Result<(), SessionError> {
        let waited = clock::now().saturating_sub(self.start_ns);
        let timeout_ns = self.client.timeouts().request.as_nanos() as Nanos;
        if waited > timeout_ns || self.client.server.stop.load(Relaxed) {
            return Err(self.peer_lost("it requested no test"));
        }
        Ok(())
    }

    /// Polls the running test: limits, interval lines, end.
    fn poll_test(&mut self, test: &mut TestRun) -> Result<(), SessionError> {
        test.poll();
        if let Some(stop_reason) = test.stop_reason() {
            test.abort(stop_reason);
            let reason = match stop_reason {
                StopReason::Stopped => "the server is stopping",
                StopReason::Time => "the server limits the time of tests",
            };
            self.machine.abort(reason);
            return Ok(());
        }
        self.send_interval(test);
        let grace_over = self
            .closed_ns
            .is_some_and(|at| clock::now().saturating_sub(at) > CLOSED_CONTROL_GRACE_NS);
        // A sender of datagrams closes once all are sent, which may be before all have arrived.
        let needs_control = self.request.as_ref().is_some_and(|request| {
            request.transport == TransportKind::Stream
                || request.direction == NuttcpDirection::ToClient
        });
        if grace_over && needs_control && !test.is_done() {
            return Err(self.peer_lost("control connection closed during the test"));
        }
        if test.is_done() {
            let counts = self.counts(test);
            self.machine.finish(&counts);
            self.results_state = Some(match self.closed_ns {
                Some(_) => ClientState::HalfClosed,
                None => ClientState::Connected,
            });
        }
        Ok(())
    }

    fn peer_lost(&self, reason: &str) -> SessionError {
        SessionError::PeerLost {
            peer: self.client.peer,
            reason: reason.to_owned(),
        }
    }

    fn protocol_error(&self, error: &NuttcpError) -> SessionError {
        self.peer_lost(&error.to_string())
    }

    /// Receives from the control connection.
    fn receive_control(&mut self) -> Result<(), SessionError> {
        if self.results_state.is_some() {
            return Ok(());
        }
        if self.closed_ns.is_some() {
            clock::sleep_until(clock::now() + CONTROL_POLL_INTERVAL.as_nanos() as u64);
            return Ok(());
        }
        if !readiness::poll(&self.control, Readiness::Receive, CONTROL_POLL_INTERVAL)
            .is_ok_and(|ready| ready)
        {
            return Ok(());
        }
        let mut buffer = [0; 4096];
        let received = match (&self.control).read(&mut buffer) {
            Ok(0) => self.machine.mark_closed(),
            Ok(bytes) => self.machine.receive(&buffer[..bytes]),
            Err(error) => return Err(self.peer_lost(&error.to_string())),
        };
        received.map_err(|error| self.protocol_error(&error))
    }

    fn flush_control(&mut self) {
        let sent = write_control(&self.control, self.machine.outgoing());
        self.machine.mark_sent(sent);
    }

    /// Prepares the data sockets, or rejects the test.
    fn prepare_test(&mut self, request: TestRequest) {
        let reservation = self
            .client
            .server
            .reserve_test(self.client.peer.ip())
            .and_then(|mut reservation| {
                reservation.reserve_sockets(usize::from(request.streams))?;
                Ok(reservation)
            });
        match reservation {
            Ok(reservation) => self.reservation = Some(reservation),
            Err(rejection) => {
                let reason = rejection.reply.problem.situation.clone();
                let peer = self.client.peer;
                let interop = &self.client.server.interop;
                interop.reject_test(PROTOCOL.name, peer, &rejection);
                return self.machine.reject(&reason);
            }
        }
        let ready = match request.ports().next() {
            Some(port) if !request.client_connects() && !self.may_connect_back(port) => {
                Err(format!(
                    "this server does not connect back to {}, which is in no connected network: use -F, or start \
                 the server with --allow",
                    self.client.peer.ip()
                ))
            }
            _ => DataSockets::prepare(&self.client, &request),
        };
        match ready {
            Ok(data) => {
                self.data = Some(data);
                self.request = Some(request);
                self.permit = None;
                self.machine.mark_ready();
            }
            Err(reason) => {
                self.reservation = None;
                if let Some(port) = request.ports().next()
                    && request.client_connects()
                {
                    self.log_taken_port(port, &reason);
                }
                self.machine.reject(&reason);
            }
        }
    }

    /// Logs a data port that is taken; the client receives the reason, too.
    fn log_taken_port(&self, port: u16, reason: &str) {
        let request = ErrorReport::new(
            reason,
            format!("data at port {port}"),
            format!(
                "let it use another (`nuttcp -p {}`)",
                alternative_port(port)
            ),
        );
        let AcceptedClient { server, peer, .. } = &self.client;
        server
            .interop
            .reject_request(PROTOCOL.name, *peer, &request);
    }

    fn may_connect_back(&self, port: u16) -> bool {
        let AcceptedClient { server, peer, .. } = &self.client;
        let alternative = "let it use -F";
        (server.interop).may_connect_back(PROTOCOL.name, *peer, port, alternative)
    }

    /// Returns the test within the server's limits for sending.
    fn within_limits(&self, mut request: TestRequest) -> TestRequest {
        let limits = self.client.server.interop.limits();
        if request.direction == NuttcpDirection::ToClient {
            let rate = request.rate_kbps.map(|kbps| kbps.saturating_mul(1000));
            let rate = limits.rate(rate, 1);
            request.rate_kbps = rate.map(|rate| (rate / 1000).max(1));
            request.duration_ns = limits.time(request.duration_ns);
        }
        request
    }

    fn start_test(
        &mut self,
        request: &TestRequest,
        test: &mut Option<TestRun>,
    ) -> Result<(), SessionError> {
        let (Some(reservation), Some(data)) = (self.reservation.take(), self.data.take()) else {
            return Ok(());
        };
        let limited = self.within_limits(request.clone());
        let sockets = data.open(&self.client, &limited)?;
        let agent = match self.machine.client_version() {
            Some(version) => format!("nuttcp {version}"),
            None => "nuttcp".to_owned(),
        };
        let plan = plan(request, &self.client);
        let started = TestRun::begin(&mut self.client, reservation, PROTOCOL.name, &agent, plan);
        // Datagrams have markers before and after them, with half a second between two.
        let mut started = match request.transport {
            TransportKind::Datagram => started.ending_by_silence(),
            TransportKind::Stream => started,
        };
        started.set_sequence_numbers(request.numbers_datagrams());
        data::spawn_workers(&mut started, &limited, sockets, &self.client_closed)?;
        *test = Some(started);
        Ok(())
    }

    /// Sends an interval line, which the client prints as its own.
    fn send_interval(&mut self, test: &TestRun) {
        let Some(length) = self
            .request
            .as_ref()
            .and_then(|request| request.interval_ns)
        else {
            return;
        };
        if !test.has_started() {
            return;
        }
        let now = clock::now();
        let (before, since) = self.last_interval;
        let since = since.max(test.start_ns());
        if now < since + length {
            return;
        }
        let sum = test.total();
        let more = sum.since(before);
        self.last_interval = (sum, now);
        let udp = self
            .request
            .as_ref()
            .is_some_and(|request| request.transport == TransportKind::Datagram);
        let numbered = self
            .request
            .as_ref()
            .is_some_and(TestRequest::numbers_datagrams);
        self.machine.report_interval(&NuttcpInterval {
            bytes: more.bytes,
            duration_ns: now - since,
            lost_of: (udp && numbered)
                .then_some((more.missing, more.missing.saturating_add(more.packets))),
            retransmits: None,
        });
    }

    fn counts(&self, test: &TestRun) -> NuttcpCounts {
        let sum = test.total();
        let (user_ns, system_ns) = test.processor_time();
        let tcp = test
            .result(1)
            .and_then(|result| result.socket.as_ref()?.tcp.clone());
        let sends = self
            .request
            .as_ref()
            .is_some_and(|request| request.direction == NuttcpDirection::ToClient);
        NuttcpCounts {
            bytes: sum.bytes,
            duration_ns: test.payload_duration_ns(),
            cpu: Some(CpuTimes { user_ns, system_ns }),
            calls: Some(sum.calls),
            retransmits: tcp.as_ref().filter(|_| sends).map(|tcp| tcp.retransmits),
            rtt_ns: tcp.as_ref().filter(|_| sends).map(|tcp| tcp.rtt_ns),
            mss: tcp
                .as_ref()
                .filter(|_| sends)
                .and_then(|tcp| u32::try_from(tcp.mss_bytes).ok()),
        }
    }
}

/// Returns the plan of the client's request.
fn plan(request: &TestRequest, client: &AcceptedClient) -> Plan {
    let protocol = match request.transport {
        TransportKind::Stream => TransportProtocol::Tcp,
        TransportKind::Datagram => TransportProtocol::Udp,
    };
    let mut plan = Plan::new(RunKind::Throughput, protocol, client.local.ip().to_string());
    plan.port = client.port;
    plan.directions = vec![match request.direction {
        NuttcpDirection::ToServer => Direction::Send,
        NuttcpDirection::ToClient => Direction::Receive,
    }];
    plan.streams = u32::from(request.streams);
    plan.duration_ns = request.duration_ns;
    let bytes = request.buffer_bytes as u64;
    plan.amount_bytes = request
        .buffer_limit
        .map(|buffers| buffers.saturating_mul(bytes));
    plan.payload_bytes = bytes;
    plan.rate_bps = request.rate_kbps.map(|kbps| kbps.saturating_mul(1000));
    plan.window_bytes = request.window_bytes.map(u64::from);
    plan.socket.mss_bytes = request.mss;
    plan.socket.no_delay = request.no_delay;
    plan.socket.tos = Some(request.tos).filter(|&tos| tos > 0);
    plan
}
