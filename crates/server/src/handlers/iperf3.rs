//! iperf3 clients: a control connection each, and flows matched by its cookie (TCP) or by the
//! address of the hello (UDP).

mod flows;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::time::Duration;

use linerate_protocol::iperf3::{
    BUSY, COOKIE_BYTES, Cookie, CpuPercent, FlowResult, Iperf3Direction, Iperf3Error,
    Iperf3ErrorCode, Iperf3Flow, Iperf3Params, Iperf3Results, Iperf3Server, Iperf3ServerEvent,
    Iperf3Transport, PROTOCOL, READ_AHEAD_BYTES, remote_report,
};
use linerate_record::event::ErrorReport;
use linerate_session::error::SessionError;
use linerate_session::plan_checks;
use linerate_session::third_party_record::lost_of_total;
use linerate_sys::clock::Nanos;
use linerate_sys::readiness::Readiness;
use linerate_sys::{clock, readiness};
use linerate_workload::flow_counters::PayloadTotals;

use self::flows::{begin_flow, plan, prepare_socket};
use super::test_run::{StopReason, TestRun};
use super::worker::POLL_INTERVAL;
use super::{
    AcceptedClient, ProtocolHandler, StreamHandler, failure_reason, report, write_control,
};
use crate::interop_state::{ExpectationGuard, ExpectedFlow, IncomingFlow, RejectionKey};
use crate::options::Grant;
use crate::server_state::{SessionPermit, TestReservation};

/// Handler of iperf3.
pub const HANDLER: ProtocolHandler = ProtocolHandler {
    name: PROTOCOL.name,
    port: None,
    sends_first: false,
    stream: Some(StreamHandler::Control(serve_control)),
    expected_flow: Some(expected_flow),
    datagrams: None,
    rejects_flow: None,
};

/// Poll interval while flows arrive.
const FLOW_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Poll interval while payload moves.
const RUN_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Time for payload in flight to arrive after the client's end.
const DRAIN_TIMEOUT_NS: Nanos = 2_000_000_000;

/// Silence that ends this wait for datagrams, of which some may be lost.
const DRAIN_SILENCE_TIMEOUT_NS: Nanos = 100_000_000;

fn expected_flow(first: &[u8]) -> Option<ExpectedFlow> {
    let cookie = Cookie::read(first.first_chunk::<COOKIE_BYTES>()?)?;
    Some(ExpectedFlow::Iperf3Cookie(cookie))
}

fn serve_control(client: AcceptedClient, permit: SessionPermit, stream: TcpStream) {
    let first = read_cookie(&client, &stream);
    let opened = first.and_then(|first| Iperf3Server::open(&first, clock::now()));
    let Some((cookie, machine)) = opened else {
        let reason = "its first bytes are not a complete iperf3 cookie";
        client.log_no_test_started(HANDLER.name, reason);
        return;
    };
    // Small messages that the client waits for.
    let _ = stream.set_nodelay(true);
    let (arrival_sender, arrivals) = mpsc::channel();
    let mut session = Iperf3Session {
        client,
        control: stream,
        machine,
        cookie,
        params: Iperf3Params::default(),
        reservation: None,
        permit: Some(permit),
        arrival_sender,
        arrivals,
        expectation: None,
        flows: Vec::new(),
        client_results: None,
        client_end_ns: None,
    };
    session.run();
}

/// Reads the cookie. Returns `None` on a close or at the timeout, however often single bytes
/// arrive.
fn read_cookie(client: &AcceptedClient, mut stream: &TcpStream) -> Option<[u8; COOKIE_BYTES]> {
    // The connection may have waited for its permit; bytes that arrived since then are in the
    // socket.
    let timeout = client.timeouts().request;
    let deadline = client.arrived_ns + timeout.as_nanos() as u64;
    let mut first = [0; COOKIE_BYTES];
    let mut received = 0;
    while !client.server.stop.load(Relaxed) {
        let expired = clock::now() >= deadline;
        let step = if expired {
            Duration::ZERO
        } else {
            POLL_INTERVAL
        };
        if readiness::poll(stream, Readiness::Receive, step).ok()? {
            match stream.read(&mut first[received..]).ok()? {
                0 => return None,
                bytes => received += bytes,
            }
        }
        if received == COOKIE_BYTES {
            return Some(first);
        }
        if expired {
            break;
        }
    }
    None
}

/// Control connection of one client.
struct Iperf3Session {
    client: AcceptedClient,
    control: TcpStream,
    machine: Iperf3Server,
    cookie: Cookie,
    params: Iperf3Params,
    /// Reservation of the test, from the agreement to its start.
    reservation: Option<TestReservation>,
    /// Permit, held until then.
    permit: Option<SessionPermit>,
    arrival_sender: mpsc::Sender<IncomingFlow>,
    arrivals: mpsc::Receiver<IncomingFlow>,
    expectation: Option<ExpectationGuard>,
    flows: Vec<(Iperf3Flow, IncomingFlow)>,
    client_results: Option<Iperf3Results>,
    /// Time of the client's end message.
    client_end_ns: Option<Nanos>,
}

/// Checks that the kernel has the requested congestion control, and that clients may use it, before
/// the flows' sockets exist.
fn check_congestion_control(params: &Iperf3Params, grants: &[Grant]) -> std::io::Result<()> {
    let (Some(name), Iperf3Transport::Tcp) = (&params.congestion, params.protocol) else {
        return Ok(());
    };
    let check = || plan_checks::try_loaded_congestion_control(name);
    match grants.contains(&Grant::Socket) {
        true => check(),
        false => plan_checks::without_network_privileges(check),
    }
}

/// Returns the log text of a request that no test fulfils.
fn describe_rejected_request(
    params: &Iperf3Params,
    rejection_code: Iperf3ErrorCode,
) -> ErrorReport {
    let calls = || format!("calls of {} B", params.block_bytes);
    match rejection_code {
        Iperf3ErrorCode::NO_SCTP => ErrorReport::new(
            "this server has no SCTP",
            "SCTP",
            "let it measure TCP, or UDP (-u)",
        ),
        Iperf3ErrorCode::PARALLEL => ErrorReport::new(
            "more than iperf3 supports",
            format!("{} streams", params.parallel),
            "let it use -P 1 to 128",
        ),
        Iperf3ErrorCode::UDP_BLOCK => ErrorReport::new(
            "iperf3 has no datagram of that size",
            calls(),
            "let it use another -l",
        ),
        _ => ErrorReport::new(
            "iperf3 has no block of that size",
            calls(),
            "let it use another -l",
        ),
    }
}

/// Next state of the control connection.
enum NextState {
    Listen,
    /// Finished.
    Close,
}

impl Iperf3Session {
    fn run(&mut self) {
        let mut test = None;
        let end = self.run_control(&mut test);
        self.flush_control();
        let Some(mut test) = test else {
            if let Err(error) = &end {
                self.client
                    .log_no_test_started(HANDLER.name, &failure_reason(error));
            }
            return;
        };
        test.join();
        let remote_report = self
            .client_results
            .as_ref()
            .map(|client_results| remote_report(&self.params, false, client_results));
        test.finish(remote_report.unwrap_or_default(), end.err());
    }

    fn run_control(&mut self, test: &mut Option<TestRun>) -> Result<(), SessionError> {
        loop {
            self.flush_control();
            self.take_flows(test)?;
            let step = match test {
                Some(test) => {
                    test.poll();
                    let next = test.next_poll_ns().saturating_sub(clock::now());
                    RUN_POLL_INTERVAL.min(Duration::from_nanos(next))
                }
                None => FLOW_POLL_INTERVAL,
            };
            let ready = readiness::poll(&self.control, Readiness::Receive, step);
            if ready.is_ok_and(|ready| ready) {
                let mut buffer = [0; READ_AHEAD_BYTES];
                match (&self.control).read(&mut buffer) {
                    Ok(0) => return self.try_step(|session| session.machine.mark_closed()),
                    Ok(bytes) => {
                        self.try_step(|session| session.machine.receive(&buffer[..bytes]))?
                    }
                    Err(error) => return Err(self.peer_lost(&error.to_string())),
                }
            }
            if let Some(reason) = self.stop_reason(test.as_ref()) {
                self.machine.terminate();
                self.flush_control();
                if let Some(test) = test {
                    // Connections that end before the client has read that would be an error for
                    // it.
                    let _ = readiness::poll(&self.control, Readiness::Receive, RUN_POLL_INTERVAL);
                    test.abort(reason);
                }
                return Ok(());
            }
            self.try_step(|session| session.machine.check_deadline(clock::now()))?;
            while let Some(event) =
                self.try_step(|session| session.machine.next_event(clock::now()))?
            {
                if let NextState::Close = self.handle_event(event, test)? {
                    return Ok(());
                }
            }
            if let Some(test) = test {
                self.check_progress(test)?;
            }
        }
    }

    fn stop_reason(&self, test: Option<&TestRun>) -> Option<StopReason> {
        match test {
            Some(test) => test.stop_reason(),
            None => {
                let stop = self.client.server.stop.load(Relaxed);
                stop.then_some(StopReason::Stopped)
            }
        }
    }

    /// Returns an error once no payload and no message has arrived for the idle timeout, though the
    /// connection is open.
    fn check_progress(&self, test: &TestRun) -> Result<(), SessionError> {
        let idle = test.timeouts().idle;
        let last = test.last_progress_ns();
        match clock::now().saturating_sub(last) > idle.as_nanos() as u64
            && self.client_results.is_none()
        {
            true => Err(self.peer_lost(&format!("no payload moved for {} s", idle.as_secs_f64()))),
            false => Ok(()),
        }
    }

    fn peer_lost(&self, reason: &str) -> SessionError {
        SessionError::PeerLost {
            peer: self.client.peer,
            reason: reason.to_owned(),
        }
    }

    fn try_step<T>(
        &mut self,
        step: impl FnOnce(&mut Self) -> Result<T, Iperf3Error>,
    ) -> Result<T, SessionError> {
        let result = step(self);
        result.map_err(|error| {
            self.flush_control();
            match error {
                Iperf3Error::Busy => self.peer_lost(
                    "another UDP test of the same client was opening its flows all the time: let it \
                     try again after that test",
                ),
                error => self.peer_lost(&error.to_string()),
            }
        })
    }

    fn handle_event(
        &mut self,
        event: Iperf3ServerEvent,
        test: &mut Option<TestRun>,
    ) -> Result<NextState, SessionError> {
        match event {
            Iperf3ServerEvent::TestRequested(params) => return self.negotiate(*params),
            Iperf3ServerEvent::TestEnded => {
                let now = clock::now();
                self.client_end_ns = Some(now);
                if let Some(test) = test {
                    test.set_agreed_end(now);
                    test.join_senders();
                }
            }
            Iperf3ServerEvent::Results(client_results) => {
                if let Some(test) = test {
                    self.drain(test, &client_results);
                    test.join();
                    test.end_intervals();
                    let server_results = self.results(test, &client_results);
                    self.try_step(|session| {
                        session.machine.send_results(&server_results, clock::now())
                    })?;
                }
                self.client_results = Some(*client_results);
            }
            Iperf3ServerEvent::Terminated => {
                return Err(self.peer_lost("it was stopped before its end"));
            }
            Iperf3ServerEvent::Done => return Ok(NextState::Close),
        }
        Ok(NextState::Listen)
    }

    /// Accepts or rejects the test that the client requests.
    fn negotiate(&mut self, params: Iperf3Params) -> Result<NextState, SessionError> {
        self.params = params;
        if let Err(rejection_code) = self.params.validate() {
            let (interop, peer) = (&self.client.server.interop, self.client.peer);
            interop.reject_request(
                HANDLER.name,
                peer,
                &describe_rejected_request(&self.params, rejection_code),
            );
            self.machine.reject(rejection_code, 0);
            return Ok(NextState::Close);
        }
        if let Err(error) = check_congestion_control(&self.params, &self.client.server.grants) {
            let name = self.params.congestion.as_deref().unwrap_or_default();
            let key = RejectionKey {
                reason: "congestion",
                protocol: HANDLER.name,
                from: self.client.peer,
            };
            self.client.server.interop.log_rejection(key, || {
                ErrorReport::new(
                    format!(
                        "requested by {}, and the kernel rejects it ({error})",
                        self.client.peer
                    ),
                    format!("congestion control {name}"),
                    "`sysctl net.ipv4.tcp_available_congestion_control` lists the available ones, \
                     net.ipv4.tcp_allowed_congestion_control those that need no --grant socket",
                )
            });
            let errno = error.raw_os_error().unwrap_or_default();
            self.machine.reject(Iperf3ErrorCode::CONGESTION, errno);
            return Ok(NextState::Close);
        }
        let reservation = self
            .client
            .server
            .reserve_test(self.client.peer.ip())
            .and_then(|mut reservation| {
                reservation.reserve_sockets(self.params.flows().len())?;
                Ok(reservation)
            });
        match reservation {
            Ok(reservation) => self.reservation = Some(reservation),
            Err(rejection) => {
                let peer = self.client.peer;
                let interop = &self.client.server.interop;
                interop.reject_test(HANDLER.name, peer, &rejection);
                self.flush_control();
                let _ = (&self.control).write_all(&BUSY);
                return Ok(NextState::Close);
            }
        }
        self.permit = None;
        self.expect_flows()?;
        Ok(NextState::Listen)
    }

    /// Lets flows arrive. UDP flows have no test identifier, so only one test of an address waits
    /// for them at a time; the client of another one does not notice the wait.
    fn expect_flows(&mut self) -> Result<(), SessionError> {
        let expected = match self.params.protocol {
            Iperf3Transport::Udp => ExpectedFlow::Iperf3Hello {
                port: self.client.port,
            },
            _ => ExpectedFlow::Iperf3Cookie(self.cookie),
        };
        self.expectation = self.client.server.interop.expect(
            self.client.peer.ip(),
            expected,
            self.arrival_sender.clone(),
        );
        if self.expectation.is_some() {
            self.try_step(|session| session.machine.accept(clock::now()))?;
        }
        Ok(())
    }

    fn take_flows(&mut self, test: &mut Option<TestRun>) -> Result<(), SessionError> {
        if self.reservation.is_none() {
            return Ok(());
        }
        if self.expectation.is_none() {
            return self.expect_flows();
        }
        while let Ok(incoming) = self.arrivals.try_recv() {
            let opened = prepare_socket(&self.params, &incoming);
            if opened.is_none() {
                continue;
            }
            if let Some(flow) = self.machine.assign_flow() {
                self.flows.push((flow, incoming));
            }
        }
        if self.flows.is_empty() || self.machine.waits_for_flows() {
            return Ok(());
        }
        self.expectation = None;
        let Some(reservation) = self.reservation.take() else {
            return Ok(());
        };
        let agent = match &self.params.client_version {
            Some(version) => format!("iperf3 {}", version.trim_start_matches("iperf ")),
            None => "iperf3".to_owned(),
        };
        let plan = plan(&self.params, &self.client);
        let mut started = TestRun::begin(&mut self.client, reservation, HANDLER.name, &agent, plan);
        started.set_sequence_numbers(true);
        started.start_at(clock::now());
        let flows = std::mem::take(&mut self.flows);
        for (flow, incoming) in flows {
            begin_flow(&mut started, &self.params, flow, incoming)?;
        }
        *test = Some(started);
        self.try_step(|session| session.machine.start(clock::now()))?;
        self.flush_control();
        Ok(())
    }

    fn flush_control(&mut self) {
        let sent = write_control(&self.control, self.machine.outgoing());
        self.machine.mark_sent(sent);
    }

    /// Waits for payload in flight, up to the amount that the client has reported.
    fn drain(&self, test: &mut TestRun, client_results: &Iperf3Results) {
        let udp = self.params.protocol == Iperf3Transport::Udp;
        let deadline = clock::now() + DRAIN_TIMEOUT_NS;
        let sent = |flow: &Iperf3Flow| {
            let result = client_results
                .flows
                .iter()
                .find(|result| result.id == flow.id)?;
            result.bytes
        };
        let received = |test: &TestRun, flow: &Iperf3Flow| {
            let all = test.totals(flow.id).bytes;
            all.saturating_sub(test.omitted_totals(flow.id).bytes)
        };
        let flows: Vec<_> = self
            .params
            .flows()
            .into_iter()
            .filter(|flow| flow.from_client)
            .collect();
        let (mut last, mut progress_ns) = (test.total().bytes, clock::now());
        loop {
            let now = clock::now();
            let missing =
                |flow: &Iperf3Flow| sent(flow).is_some_and(|sent| received(test, flow) < sent);
            if now >= deadline || !flows.iter().any(missing) {
                return;
            }
            let sum = test.total().bytes;
            if sum != last {
                (last, progress_ns) = (sum, now);
            } else if udp && now.saturating_sub(progress_ns) > DRAIN_SILENCE_TIMEOUT_NS {
                return;
            }
            test.wait(now + 1_000_000);
        }
    }

    /// Returns the results of this end.
    fn results(&self, test: &TestRun, client_results: &Iperf3Results) -> Iperf3Results {
        let client_report = remote_report(&self.params, false, client_results);
        let udp = self.params.protocol == Iperf3Transport::Udp;
        // Until the client's end message: time after that is not part of the test.
        let end_ns = self.client_end_ns.unwrap_or_else(clock::now);
        let ran_ns = end_ns.saturating_sub(test.start_ns());
        let counted_ns = ran_ns.saturating_sub(self.params.omit_ns);
        let sends = self.params.direction != Iperf3Direction::Forward;
        let flows = self.params.flows().into_iter().map(|flow| {
            let omitted = test.omitted_totals(flow.id);
            let totals = test.totals(flow.id).since(omitted);
            let result = test.result(flow.id);
            let sequence_stats = result
                .and_then(|result| result.sequence_stats)
                .unwrap_or_default();
            let tcp = result
                .and_then(|result| result.socket.as_ref())
                .and_then(|socket| socket.tcp.as_ref());
            let all = test.totals(flow.id);
            // A client chooses its sequence numbers freely, up to 2^64.
            let highest = |totals: &PayloadTotals| totals.packets.saturating_add(totals.missing);
            let unique = all
                .packets
                .saturating_sub(sequence_stats.duplicates.unwrap_or(0));
            let reported = client_report
                .flows
                .iter()
                .find(|reported| reported.id == Some(flow.id));
            let sent = reported.and_then(|reported| reported.figures.packets);
            let counted = unique.saturating_sub(omitted.packets);
            let gaps = all.missing.saturating_sub(omitted.missing);
            let lost = sent
                .filter(|_| flow.from_client)
                .and_then(|sent| lost_of_total(test.plan(), sent, counted, Some(gaps)))
                .unwrap_or(gaps)
                .saturating_add(omitted.missing);
            FlowResult {
                id: flow.id,
                bytes: Some(totals.bytes),
                retransmits: tcp.filter(|_| !flow.from_client).map(|tcp| tcp.retransmits),
                ipdv_ns: sequence_stats.ipdv_ns.or(Some(0.0)),
                lost: Some(if udp { lost } else { 0 }),
                packets: Some(match (udp, flow.from_client) {
                    (true, true) => unique.saturating_add(lost),
                    (true, false) => all.packets,
                    (false, _) => 0,
                }),
                omitted_lost: (self.params.omit_ns > 0 && udp).then_some(omitted.missing),
                omitted_packets: (self.params.omit_ns > 0 && udp).then_some(highest(&omitted)),
                start_ns: Some(0),
                // Same value as in the record.
                end_ns: Some(test.duration_ns(flow.id).unwrap_or(counted_ns)),
            }
        });
        let (user, system) = test.processor_time();
        let percent = |ns: u64| ns as f64 * 100.0 / ran_ns.max(1) as f64;
        Iperf3Results {
            cpu: Some(CpuPercent {
                total: percent(user + system),
                user: percent(user),
                system: percent(system),
            }),
            has_retransmits: (sends && !udp).then_some(true),
            congestion: (!udp).then(|| test.congestion_control()).flatten(),
            flows: flows.collect(),
            output_text: self
                .params
                .server_output
                .then(|| report::format_report(test)),
            output_json: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_congestion_control_is_rejected() {
        let requested = |name: Option<&str>, protocol| Iperf3Params {
            congestion: name.map(str::to_owned),
            protocol,
            ..Iperf3Params::default()
        };
        for grants in [&[][..], &[Grant::Socket]] {
            let check = |name, protocol| {
                let checked = check_congestion_control(&requested(name, protocol), grants);
                checked.map_err(|error| error.kind())
            };
            let unknown = check(Some("no-such"), Iperf3Transport::Tcp);
            assert_eq!(unknown, Err(std::io::ErrorKind::NotFound));
            assert_eq!(check(Some("reno"), Iperf3Transport::Tcp), Ok(()));
            // Datagrams have no congestion control.
            assert_eq!(check(Some("no-such"), Iperf3Transport::Udp), Ok(()));
            assert_eq!(check(None, Iperf3Transport::Tcp), Ok(()));
        }
    }
}
