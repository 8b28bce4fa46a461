//! nuttcp: a test agreed on in lines of text, with separate data connections.

mod sockets;

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use linerate_protocol::control::FlowTotal;
use linerate_protocol::nuttcp::{
    CONTROL_PORT, CountReader, DATA_PORT, NuttcpClient, NuttcpClientEvent, NuttcpDirection,
    NuttcpSendAction, NuttcpTest as TestRequest, NuttcpUdpSender, START_GAP_NS,
};
use linerate_protocol::remote_report::RemoteReport;
use linerate_protocol::sniff::TransportKind;
use linerate_record::plan::{Direction, Plan, RunKind, TransportProtocol};
use linerate_session::error::SessionError;
use linerate_sys::clock;
use linerate_sys::clock::Nanos;
use linerate_sys::readiness::{Readiness, poll_any};
use linerate_workload::framing::Framing;
use sockets::{accept_server, connect_data, open_listener, receive_first_datagram};

use super::control_socket::ControlSocket;
use super::flow_socket::FlowSocket;
use super::setup_context::{SETUP_TIMEOUT_NS, SetupContext, flow_open_error, protocol_error};
use super::{
    ClientProtocol, ClientProtocolSpec, ConnectedFlow, PlanRejection, first_rejection, reject_omit,
};

/// Client of `nuttcp -S`.
pub const SPEC: ClientProtocolSpec = ClientProtocolSpec {
    name: "nuttcp",
    about: "TCP and UDP, one direction; the server's bytes, time and retransmits, its report",
    kinds: &[RunKind::Throughput],
    port: CONTROL_PORT,
    datagram_bytes: 1_024,
    reject: reject_plan,
    open,
};

/// Time for the report after the end of the data.
const REPORT_TIMEOUT_NS: Nanos = 10_000_000_000;

/// Time for the report after an early end.
const ABORTED_REPORT_TIMEOUT_NS: Nanos = 1_000_000_000;

fn reject_plan(plan: &Plan) -> Option<PlanRejection> {
    first_rejection(&[
        (
            plan.directions.len() > 1,
            "--bidir",
            "a nuttcp test has one direction",
        ),
        (
            plan.streams > 1,
            "-P",
            "nuttcp reads its streams in rotation, a buffer of each, so the slowest one holds up all",
        ),
        (
            plan.congestion_control_requested,
            "-C",
            "nuttcp's server has no option for it",
        ),
        (
            plan.pace.burst.is_some() && plan.has_direction(Direction::Receive),
            "-b RATE/BURST with -R",
            "nuttcp keeps an average or single gaps",
        ),
        (
            plan.protocol == TransportProtocol::Udp
                && plan.payload_bytes != 0
                && plan.payload_bytes < 32,
            "-l",
            "its count of what was sent ends at byte 32 of a datagram",
        ),
    ])
    .or_else(|| reject_omit(plan))
}

fn build_request(plan: &Plan, data_port: u16) -> TestRequest {
    let udp = plan.protocol == TransportProtocol::Udp;
    let direction = match plan.directions[0] {
        Direction::Send => NuttcpDirection::ToServer,
        Direction::Receive => NuttcpDirection::ToClient,
    };
    let carrier = if udp {
        TransportKind::Datagram
    } else {
        TransportKind::Stream
    };
    let buffer_bytes = usize::try_from(plan.payload_bytes).unwrap_or(usize::MAX);
    TestRequest {
        buffer_bytes,
        buffer_limit: (plan.amount_bytes).map(|bytes| bytes.div_ceil(plan.payload_bytes.max(1))),
        duration_ns: plan.duration_ns,
        rate_kbps: plan.rate_bps.map(|rate| (rate / 1_000).max(1)),
        window_bytes: plan
            .window_bytes
            .and_then(|bytes| u32::try_from(bytes).ok()),
        // With intervals, datagrams carry the number of bytes sent before them.
        interval_ns: udp.then(|| plan.interval_ns.unwrap_or(1_000_000_000)),
        mss: plan.socket.mss_bytes,
        tos: plan.socket.tos.unwrap_or(0),
        no_delay: plan.socket.no_delay,
        ..TestRequest::new(direction, carrier, data_port)
    }
}

/// Driver of one test.
struct NuttcpDriver {
    peer: SocketAddr,
    control: ControlSocket,
    machine: NuttcpClient,
    new_flows: Vec<ConnectedFlow>,
    socket: Option<FlowSocket>,
    /// Marker protocol of the datagrams that this end sends.
    sender: Option<NuttcpUdpSender>,
    next_marker_ns: Option<Nanos>,
    /// True if payload is sent in datagrams.
    datagrams: bool,
    running: bool,
    started: bool,
    sent: bool,
    /// Timeout of the report.
    report_deadline_ns: Option<Nanos>,
    finished: bool,
    /// True if the run was ended here before its time: then the server's messages about that are
    /// ignored.
    aborted: bool,
}

fn open(context: &SetupContext<'_>) -> Result<Box<dyn ClientProtocol>, SessionError> {
    let system = |error| SessionError::system("nuttcp's data", error);
    let stream = context.connect_control()?;
    let receives = context.plan.has_direction(Direction::Receive);
    let tcp = context.plan.protocol == TransportProtocol::Tcp;
    // The transmitter connects, so the server needs a port of ours.
    let listener = receives.then(|| open_listener(context)).transpose()?;
    let port = match &listener {
        Some(socket) => socket.port().map_err(system)?,
        None => DATA_PORT,
    };
    let request = build_request(context.plan, port);
    let machine =
        NuttcpClient::new(request.clone()).map_err(|error| context.protocol_error(error))?;
    let mut driver = NuttcpDriver {
        peer: context.remote,
        control: ControlSocket::new(stream).map_err(system)?,
        machine,
        new_flows: Vec::new(),
        socket: None,
        sender: None,
        next_marker_ns: None,
        datagrams: !tcp,
        running: false,
        started: false,
        sent: false,
        report_deadline_ns: None,
        finished: false,
        aborted: false,
    };
    let until = clock::now() + SETUP_TIMEOUT_NS;
    while !driver.running {
        if context.stop.load(Relaxed) {
            return Err(SessionError::Interrupted);
        }
        // The greetings and parameters take several round trips.
        if clock::now() >= until + driver.control.path_delay_ns(false) {
            return Err(context.no_protocol_reply("nuttcp"));
        }
        driver.poll_control()?;
        driver.wait_control(20);
    }
    let (direction, socket) = match listener {
        Some(listener) if tcp => (
            Direction::Receive,
            accept_server(context, &mut driver, &listener)?,
        ),
        Some(listener) => (
            Direction::Receive,
            receive_first_datagram(context, &mut driver, listener)?,
        ),
        None => (Direction::Send, connect_data(context, &mut driver, tcp)?),
    };
    if !tcp && direction == Direction::Send {
        driver.send_start_markers(&request, &socket)?;
    }
    driver.socket = Some(socket.duplicate().map_err(system)?);
    driver.new_flows.push(ConnectedFlow {
        id: 1,
        direction,
        opening: socket.into_opening(),
        framing: match tcp {
            true => Framing::NoHeader,
            false => Framing::Nuttcp(CountReader::default()),
        },
    });
    Ok(Box::new(driver))
}

impl NuttcpDriver {
    /// Receives and sends control messages.
    fn poll_control(&mut self) -> Result<(), SessionError> {
        if self.finished {
            return Ok(());
        }
        let peer = self.peer;
        while !self.machine.outgoing().is_empty() {
            match self.control.write(self.machine.outgoing()) {
                Ok(0) | Err(_) => break,
                Ok(bytes) => self.machine.mark_sent(bytes),
            }
        }
        let machine = &mut self.machine;
        let mut first_error = None;
        let open = self.control.read(|bytes| {
            if let Err(error) = machine.receive(bytes) {
                first_error.get_or_insert(error);
            }
            Ok::<(), io::Error>(())
        });
        if let Some(error) = first_error {
            return Err(protocol_error(peer, error));
        }
        // After a reset or close, messages received before still count.
        if !open.unwrap_or(false) {
            self.machine
                .mark_closed()
                .map_err(|error| protocol_error(peer, error))?;
        }
        while let Some(event) = self.machine.poll() {
            match event {
                NuttcpClientEvent::Prepare(_) => self.machine.mark_ready(),
                NuttcpClientEvent::Start(_) => self.running = true,
                NuttcpClientEvent::ServerClosed => self.finished = true,
                NuttcpClientEvent::Interval(_) | NuttcpClientEvent::Done => {}
            }
        }
        match self.finished && !self.aborted {
            true => self.check_end(),
            false => Ok(()),
        }
    }

    /// Returns an error if the server has closed without figures, or before all payload was sent.
    fn check_end(&self) -> Result<(), SessionError> {
        let report = self.machine.report();
        if !self.machine.remote_report().flows.is_empty() {
            // Datagrams have an end marker: until then there is more.
            return match self.started && !self.sent && self.sender.is_some() {
                true => Err(self.server_ended_error("it ended the test early")),
                false => Ok(()),
            };
        }
        // Payload from the server is counted here: once it has started, those figures are valid.
        if self.receives() && self.started {
            return Ok(());
        }
        match self.remote_error() {
            Some(message) => Err(self.server_ended_error(&message)),
            None if !self.started || report.text.is_empty() => {
                Err(self.server_ended_error("control connection closed without a report"))
            }
            None if self.sender.is_some() && !self.sent => {
                Err(self.server_ended_error("it ended the test early"))
            }
            None => Ok(()),
        }
    }

    /// Returns the error for a server that ended the test, with the reason.
    fn server_ended_error(&self, reason: &str) -> SessionError {
        let next_step = match self.receives() {
            true => "see its messages, and whether it can connect to this host".to_owned(),
            false => {
                format!("see its messages, and which other program uses port {DATA_PORT} there")
            }
        };
        protocol_error(
            self.peer,
            format!("the nuttcp server ended the test ({reason}): {next_step}"),
        )
    }

    fn wait_control(&self, milliseconds: u64) {
        let interests: Vec<_> = (self.control.readable_fds().into_iter())
            .map(|fd| (fd, Readiness::Receive))
            .collect();
        // An error is ignored: the caller has a timeout.
        let _ = poll_any(&interests, Duration::from_millis(milliseconds));
    }

    /// Sends the start markers of datagrams.
    fn send_start_markers(
        &mut self,
        request: &TestRequest,
        socket: &FlowSocket,
    ) -> Result<(), SessionError> {
        let mut sender = NuttcpUdpSender::new(request);
        loop {
            match sender.next_action(clock::now()) {
                NuttcpSendAction::Marker { bytes, .. } => {
                    socket
                        .send(&bytes)
                        .map_err(|error| flow_open_error(self.peer, error))?;
                    if bytes == *b"BOD1" {
                        break;
                    }
                }
                NuttcpSendAction::Wait { until_ns } => {
                    clock::sleep_until(until_ns);
                    self.poll_control()?;
                }
                NuttcpSendAction::Data { .. } | NuttcpSendAction::Finished => break,
            }
        }
        self.sender = Some(sender);
        Ok(())
    }

    /// Waits for the start of datagrams: the BOD1 marker, or the first of them if the marker was
    /// lost.
    fn wait_for_start(&mut self, now: Nanos, stop: &AtomicBool) -> Result<(), SessionError> {
        let Some(socket) = &self.socket else {
            return Ok(());
        };
        let mut buffer = [0; 64];
        let until = now + 2 * START_GAP_NS;
        while clock::now() < until && !stop.load(Relaxed) {
            let peer = self.peer;
            let socket_error = |error| flow_open_error(peer, error);
            if !socket
                .wait_readable(Duration::from_millis(20))
                .map_err(socket_error)?
            {
                continue;
            }
            let is_start = match socket.peek(&mut buffer).map_err(socket_error)? {
                (4, _) => Some(buffer.starts_with(b"BOD1")),
                _ => None,
            };
            let Some(is_start) = is_start else {
                return Ok(());
            };
            let _ = socket.receive(&mut buffer);
            if is_start {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Sends the next end marker.
    fn send_end_marker(&mut self, now: Nanos) {
        let (Some(sender), Some(socket)) = (&mut self.sender, &self.socket) else {
            return;
        };
        if !self.sent || self.next_marker_ns.is_none_or(|due_ns| now < due_ns) {
            return;
        }
        match sender.next_action(now) {
            NuttcpSendAction::Marker { bytes, .. } => {
                // A server that has ended rejects the last ones.
                let _ = socket.try_send(&bytes);
                self.next_marker_ns = Some(now);
            }
            NuttcpSendAction::Wait { until_ns } => self.next_marker_ns = Some(until_ns),
            NuttcpSendAction::Data { .. } | NuttcpSendAction::Finished => {
                self.next_marker_ns = None;
                self.control.shutdown_send();
            }
        }
    }
}

impl ClientProtocol for NuttcpDriver {
    fn flows(&mut self) -> Vec<ConnectedFlow> {
        std::mem::take(&mut self.new_flows)
    }

    fn start(&mut self, now: Nanos, stop: &AtomicBool) -> Result<(), SessionError> {
        self.started = true;
        if self.receives() && self.datagrams {
            // Once stopped, the run ends as soon as it has begun.
            self.wait_for_start(now, stop)?;
        }
        Ok(())
    }

    fn poll(&mut self, now: Nanos) -> Result<(), SessionError> {
        self.send_end_marker(now);
        self.poll_control()?;
        let is_late = |until| now >= until && now >= until + self.path_delay_ns();
        if self.report_deadline_ns.is_some_and(is_late) && !self.finished {
            self.finished = true;
            if self.aborted {
                return Ok(());
            }
            let message = self.remote_error();
            let message = message.map_or_else(String::new, |message| format!(" ({message})"));
            return Err(protocol_error(
                self.peer,
                format!(
                    "the nuttcp server sent no report after the end of the data{message}: it hangs, or was stopped"
                ),
            ));
        }
        Ok(())
    }

    fn payload_sent(&mut self, now: Nanos, _: &[FlowTotal]) {
        if self.sent || self.receives() {
            return;
        }
        self.sent = true;
        if let Some(sender) = &mut self.sender {
            sender.finish();
            self.next_marker_ns = Some(now);
        }
    }

    fn stop(&mut self, _: Nanos, early: bool) {
        self.aborted |= early;
        // At the end of the time, the server ends by itself.
        if let (true, true, Some(socket)) = (early, self.receives(), &self.socket) {
            match self.datagrams {
                true => socket.reject_datagrams(),
                false => socket.shutdown_both(),
            }
        }
    }

    fn flows_ended(&mut self, now: Nanos, _: &linerate_protocol::control::EndResults) {
        let timeout = if self.aborted {
            ABORTED_REPORT_TIMEOUT_NS
        } else {
            REPORT_TIMEOUT_NS
        };
        self.report_deadline_ns = Some(now + timeout);
        if self.receives() {
            self.control.shutdown_send();
        }
    }

    fn remote_totals(&mut self) -> Option<Vec<FlowTotal>> {
        self.finished.then(Vec::new)
    }

    fn is_finished(&self) -> bool {
        self.finished
    }

    fn next_deadline_ns(&self, now: Nanos) -> Nanos {
        self.next_marker_ns.unwrap_or(now + 50_000_000)
    }

    fn readable_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.control.readable_fds()
    }

    fn path_delay_ns(&self) -> Nanos {
        let sends_datagrams = self.datagrams && !self.receives();
        self.control.path_delay_ns(sends_datagrams)
    }

    fn remote_report(&self) -> RemoteReport {
        self.machine.remote_report()
    }

    fn remote_error(&self) -> Option<String> {
        let lines = self.machine.report().text.iter();
        lines
            .filter(|_| !self.aborted)
            .find_map(|line| error_of_line(line))
    }

    fn agent(&self) -> String {
        match self.machine.server_version() {
            Some(version) => format!("nuttcp {version}"),
            None => "nuttcp".to_owned(),
        }
    }
}

impl NuttcpDriver {
    /// Returns whether payload comes from the server.
    fn receives(&self) -> bool {
        self.machine.direction() == NuttcpDirection::ToClient
    }
}

/// Returns the error in a line of the server's report, if there is one: `nuttcp-r: v6.1.2: Error:
/// bind: Address already in use`.
fn error_of_line(line: &str) -> Option<String> {
    if line.trim() == "KO" {
        return Some("KO".to_owned());
    }
    let (prefix, error) = line.split_once("Error: ")?;
    let is_nuttcp = prefix.is_empty() || prefix.starts_with("nuttcp");
    is_nuttcp.then(|| error.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_wait_for_datagrams_can_be_stopped() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = listener.local_addr().unwrap();
        let request = TestRequest::new(NuttcpDirection::ToClient, TransportKind::Datagram, 5001);
        let mut driver = NuttcpDriver {
            peer,
            control: ControlSocket::new(TcpStream::connect(peer).unwrap().into()).unwrap(),
            machine: NuttcpClient::new(request).unwrap(),
            new_flows: Vec::new(),
            socket: Some(FlowSocket::Kernel(
                UdpSocket::bind("127.0.0.1:0").unwrap().into(),
            )),
            sender: None,
            next_marker_ns: None,
            datagrams: true,
            running: true,
            started: false,
            sent: false,
            report_deadline_ns: None,
            finished: false,
            aborted: false,
        };
        let start = Instant::now();
        let now = clock::now();
        driver.start(now, &AtomicBool::new(true)).unwrap();
        assert!(start.elapsed() < Duration::from_nanos(START_GAP_NS));
        // Without a stop, the wait takes its full time.
        driver.start(now, &AtomicBool::new(false)).unwrap();
        assert!(start.elapsed() >= Duration::from_nanos(2 * START_GAP_NS));
    }

    #[test]
    fn errors_are_distinguished_from_reports() {
        for (line, error) in [
            (
                "nuttcp-r: v6.1.2: Error: bind: Address already in use",
                Some("bind: Address already in use"),
            ),
            ("nuttcp-t: v8.2.2: Error: connect", Some("connect")),
            ("KO", Some("KO")),
            ("nuttcp-r: v6.1.2: Ubuntu: Error-free", None),
            (
                "nuttcp-r: 1.0000 MB in 1.00 real seconds = 1024.00 KB/sec = 8.3886 Mbps",
                None,
            ),
            (
                "    1.2500 MB /   1.00 sec =   10.4857 Mbps     0 retrans",
                None,
            ),
        ] {
            assert_eq!(error_of_line(line).as_deref(), error, "{line}");
        }
    }
}
