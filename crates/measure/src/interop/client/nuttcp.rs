//! nuttcp: a test agreed on in lines of text, with separate data connections.

mod sockets;

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use linerate_dialect::control::FlowTotal;
use linerate_dialect::nuttcp::{
    CONTROL_PORT, Client, ClientEvent, CountReader, DATA_PORT, START_GAP_NS, Send,
    Test as TestRequest, UdpSender, Way,
};
use linerate_dialect::remote_report::FarReport;
use linerate_dialect::sniff::Carrier;
use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::readiness::{Ready, poll_any};
use linerate_metric::plan::{Direction, Kind, Plan, Protocol};

use super::control_socket::Control;
use super::flow_socket::FlowSocket;
use super::setup_context::{Context, PATIENCE_NS, failed, foreign};
use super::{CalledFlow, Caller, Refusal, Speech, first, refuse_omit};
use crate::error::MeasureError;
use crate::interop::framing::Framing;
use sockets::{accept, connect, first_datagram, listening};

/// Client of `nuttcp -S`.
pub const CALLER: Caller = Caller {
    name: "nuttcp",
    about: "TCP and UDP, one direction; the server's bytes, time and retransmits, its report",
    kinds: &[Kind::Throughput],
    port: CONTROL_PORT,
    datagram_bytes: 1_024,
    refuse,
    open,
};

/// Time for the report after the end of the data.
const REPORT_NS: Nanos = 10_000_000_000;

/// Time for the report after an early end.
const CUT_OFF_NS: Nanos = 1_000_000_000;

fn refuse(plan: &Plan) -> Option<Refusal> {
    first(&[
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
            plan.congestion_control_asked,
            "-C",
            "nuttcp's server has no option for it",
        ),
        (
            plan.pace.burst.is_some() && plan.flows(Direction::Receive),
            "-b RATE/BURST with -R",
            "nuttcp keeps an average or single gaps",
        ),
        (
            plan.protocol == Protocol::Udp
                && plan.payload_bytes != 0
                && plan.payload_bytes < 32,
            "-l",
            "its count of what was sent ends at byte 32 of a datagram",
        ),
    ])
    .or_else(|| refuse_omit(plan))
}

fn asked(plan: &Plan, data_port: u16) -> TestRequest {
    let udp = plan.protocol == Protocol::Udp;
    let way = match plan.directions[0] {
        Direction::Send => Way::ToServer,
        Direction::Receive => Way::ToClient,
    };
    let carrier = if udp {
        Carrier::Datagram
    } else {
        Carrier::Stream
    };
    let buffer_bytes = usize::try_from(plan.payload_bytes).unwrap_or(usize::MAX);
    TestRequest {
        buffer_bytes,
        buffers: (plan.amount_bytes).map(|bytes| bytes.div_ceil(plan.payload_bytes.max(1))),
        time_ns: plan.duration_ns,
        rate_kbps: plan.rate_bps.map(|rate| (rate / 1_000).max(1)),
        window_bytes: plan
            .window_bytes
            .and_then(|bytes| u32::try_from(bytes).ok()),
        // With intervals, datagrams carry the number of bytes sent before them.
        interval_ns: udp.then(|| plan.interval_ns.unwrap_or(1_000_000_000)),
        mss: plan.socket.mss_bytes,
        tos: plan.socket.tos.unwrap_or(0),
        no_delay: plan.socket.no_delay,
        ..TestRequest::new(way, carrier, data_port)
    }
}

/// Driver of one test.
struct Test {
    peer: SocketAddr,
    control: Control,
    machine: Client,
    called: Vec<CalledFlow>,
    socket: Option<FlowSocket>,
    /// Marker protocol of the datagrams that this end sends.
    sender: Option<UdpSender>,
    marker_due_ns: Option<Nanos>,
    /// True if payload is sent in datagrams.
    datagrams: bool,
    running: bool,
    started: bool,
    sent: bool,
    /// Timeout of the report.
    until_ns: Option<Nanos>,
    over: bool,
    /// True if the run was ended here before its time: then the server's messages about that are
    /// ignored.
    cut_off: bool,
}

fn open(context: &Context<'_>) -> Result<Box<dyn Speech>, MeasureError> {
    let system = |error| MeasureError::system("nuttcp's data", error);
    let stream = context.control()?;
    let receives = context.plan.flows(Direction::Receive);
    let tcp = context.plan.protocol == Protocol::Tcp;
    // The transmitter connects, so the server needs a port of ours.
    let waiting = receives.then(|| listening(context)).transpose()?;
    let port = match &waiting {
        Some(socket) => socket.port().map_err(system)?,
        None => DATA_PORT,
    };
    let asked = asked(context.plan, port);
    let machine = Client::new(asked.clone()).map_err(|error| context.foreign(error))?;
    let mut test = Test {
        peer: context.far,
        control: Control::new(stream).map_err(system)?,
        machine,
        called: Vec::new(),
        socket: None,
        sender: None,
        marker_due_ns: None,
        datagrams: !tcp,
        running: false,
        started: false,
        sent: false,
        until_ns: None,
        over: false,
        cut_off: false,
    };
    let until = clock::now() + PATIENCE_NS;
    while !test.running {
        if context.stop.load(Relaxed) {
            return Err(MeasureError::Interrupted);
        }
        if clock::now() >= until {
            return Err(context.mute("nuttcp"));
        }
        test.talk()?;
        test.wait(20);
    }
    let (direction, socket) = match waiting {
        Some(waiting) if tcp => (Direction::Receive, accept(context, &mut test, &waiting)?),
        Some(waiting) => (
            Direction::Receive,
            first_datagram(context, &mut test, waiting)?,
        ),
        None => (Direction::Send, connect(context, &mut test, tcp)?),
    };
    if !tcp && direction == Direction::Send {
        test.begin(&asked, &socket)?;
    }
    test.socket = Some(socket.copy().map_err(system)?);
    test.called.push(CalledFlow {
        id: 1,
        direction,
        opening: socket.opening(),
        framing: match tcp {
            true => Framing::Bare,
            false => Framing::Nuttcp(CountReader::default()),
        },
    });
    Ok(Box::new(test))
}

impl Test {
    /// Receives and sends control messages.
    fn talk(&mut self) -> Result<(), MeasureError> {
        if self.over {
            return Ok(());
        }
        let peer = self.peer;
        while !self.machine.outgoing().is_empty() {
            match self.control.write(self.machine.outgoing()) {
                Ok(0) | Err(_) => break,
                Ok(bytes) => self.machine.sent(bytes),
            }
        }
        let machine = &mut self.machine;
        let mut refused = None;
        let open = self.control.read(|bytes| {
            if let Err(error) = machine.receive(bytes) {
                refused.get_or_insert(error);
            }
            Ok::<(), io::Error>(())
        });
        if let Some(error) = refused {
            return Err(foreign(peer, error));
        }
        // After a reset or close, messages received before still count.
        if !open.unwrap_or(false) {
            self.machine
                .closed()
                .map_err(|error| foreign(peer, error))?;
        }
        while let Some(event) = self.machine.poll() {
            match event {
                ClientEvent::Prepare(_) => self.machine.ready(),
                ClientEvent::Start(_) => self.running = true,
                ClientEvent::Ended => self.over = true,
                ClientEvent::Interval(_) | ClientEvent::Done => {}
            }
        }
        match self.over && !self.cut_off {
            true => self.judge_end(),
            false => Ok(()),
        }
    }

    /// Returns an error if the server has closed without figures, or before all payload was sent.
    fn judge_end(&self) -> Result<(), MeasureError> {
        let report = self.machine.report();
        if !self.machine.far_report().flows.is_empty() {
            // Datagrams have an end marker: until then there is more.
            return match self.started && !self.sent && self.sender.is_some() {
                true => Err(self.gave_up("it ended the test early")),
                false => Ok(()),
            };
        }
        // Payload from the server is counted here: once it has started, those figures are valid.
        if self.called_back() && self.started {
            return Ok(());
        }
        match self.complaint() {
            Some(said) => Err(self.gave_up(&said)),
            None if !self.started || report.text.is_empty() => {
                Err(self.gave_up("it closed the control connection without a report"))
            }
            None if self.sender.is_some() && !self.sent => {
                Err(self.gave_up("it ended the test early"))
            }
            None => Ok(()),
        }
    }

    /// Returns the error for a server that ended the test, with the reason.
    fn gave_up(&self, why: &str) -> MeasureError {
        let look = match self.called_back() {
            true => "see its messages, and whether it can connect to this host".to_owned(),
            false => {
                format!("see its messages, and which other program uses port {DATA_PORT} there")
            }
        };
        foreign(
            self.peer,
            format!("the nuttcp server ended the test ({why}): {look}"),
        )
    }

    fn wait(&self, milliseconds: u64) {
        let wanted: Vec<_> = (self.control.listens().into_iter())
            .map(|fd| (fd, Ready::Receive))
            .collect();
        // An error is ignored: the caller has a timeout.
        let _ = poll_any(&wanted, Duration::from_millis(milliseconds));
    }

    /// Sends the start markers of datagrams.
    fn begin(&mut self, asked: &TestRequest, socket: &FlowSocket) -> Result<(), MeasureError> {
        let mut sender = UdpSender::new(asked);
        loop {
            match sender.step(clock::now()) {
                Send::Marker { bytes, .. } => {
                    socket
                        .send(&bytes)
                        .map_err(|error| failed(self.peer, error))?;
                    if bytes == *b"BOD1" {
                        break;
                    }
                }
                Send::Wait { until_ns } => {
                    clock::sleep_until(until_ns);
                    self.talk()?;
                }
                Send::Data { .. } | Send::Nothing => break,
            }
        }
        self.sender = Some(sender);
        Ok(())
    }

    /// Waits for the start of datagrams: the BOD1 marker, or the first of them if the marker was
    /// lost.
    fn await_begin(&mut self, now: Nanos, stop: &AtomicBool) -> Result<(), MeasureError> {
        let Some(socket) = &self.socket else {
            return Ok(());
        };
        let mut room = [0; 64];
        let until = now + 2 * START_GAP_NS;
        while clock::now() < until && !stop.load(Relaxed) {
            let peer = self.peer;
            let broke = |error| failed(peer, error);
            if !socket.wait(Duration::from_millis(20)).map_err(broke)? {
                continue;
            }
            let begins = match socket.peek(&mut room).map_err(broke)? {
                (4, _) => Some(room.starts_with(b"BOD1")),
                _ => None,
            };
            let Some(begins) = begins else {
                return Ok(());
            };
            let _ = socket.receive(&mut room);
            if begins {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Sends the next end marker.
    fn mark(&mut self, now: Nanos) {
        let (Some(sender), Some(socket)) = (&mut self.sender, &self.socket) else {
            return;
        };
        if !self.sent || self.marker_due_ns.is_none_or(|due| now < due) {
            return;
        }
        match sender.step(now) {
            Send::Marker { bytes, .. } => {
                // A server that has ended rejects the last ones.
                let _ = socket.offer(&bytes);
                self.marker_due_ns = Some(now);
            }
            Send::Wait { until_ns } => self.marker_due_ns = Some(until_ns),
            Send::Data { .. } | Send::Nothing => {
                self.marker_due_ns = None;
                self.control.finish();
            }
        }
    }
}

impl Speech for Test {
    fn flows(&mut self) -> Vec<CalledFlow> {
        std::mem::take(&mut self.called)
    }

    fn started(&mut self, now: Nanos, stop: &AtomicBool) -> Result<(), MeasureError> {
        self.started = true;
        if self.called_back() && self.datagrams {
            // Once stopped, the run ends as soon as it has begun.
            self.await_begin(now, stop)?;
        }
        Ok(())
    }

    fn turn(&mut self, now: Nanos) -> Result<(), MeasureError> {
        self.mark(now);
        self.talk()?;
        if self.until_ns.is_some_and(|until| now >= until) && !self.over {
            self.over = true;
            if self.cut_off {
                return Ok(());
            }
            let said = self.complaint();
            let said = said.map_or_else(String::new, |said| format!(" ({said})"));
            return Err(foreign(
                self.peer,
                format!(
                    "the nuttcp server sent no report after the end of the data{said}: it hangs, or was stopped"
                ),
            ));
        }
        Ok(())
    }

    fn sent(&mut self, now: Nanos, _: &[FlowTotal]) {
        if self.sent || self.called_back() {
            return;
        }
        self.sent = true;
        if let Some(sender) = &mut self.sender {
            sender.finish();
            self.marker_due_ns = Some(now);
        }
    }

    fn stop(&mut self, _: Nanos, early: bool) {
        self.cut_off |= early;
        // At the end of the time, the server ends by itself.
        if let (true, true, Some(socket)) = (early, self.called_back(), &self.socket) {
            match self.datagrams {
                true => socket.deafen(),
                false => socket.cut(),
            }
        }
    }

    fn ended(&mut self, now: Nanos, _: &linerate_dialect::control::Outcome) {
        let patience = if self.cut_off { CUT_OFF_NS } else { REPORT_NS };
        self.until_ns = Some(now + patience);
        if self.called_back() {
            self.control.finish();
        }
    }

    fn far_sent(&mut self) -> Option<Vec<FlowTotal>> {
        self.over.then(Vec::new)
    }

    fn is_over(&self) -> bool {
        self.over
    }

    fn due_ns(&self, now: Nanos) -> Nanos {
        self.marker_due_ns.unwrap_or(now + 50_000_000)
    }

    fn listens(&self) -> Vec<BorrowedFd<'_>> {
        self.control.listens()
    }

    fn far_report(&self) -> FarReport {
        self.machine.far_report()
    }

    fn complaint(&self) -> Option<String> {
        let lines = self.machine.report().text.iter();
        lines
            .filter(|_| !self.cut_off)
            .find_map(|line| error_in(line))
    }

    fn agent(&self) -> String {
        match self.machine.server_version() {
            Some(version) => format!("nuttcp {version}"),
            None => "nuttcp".to_owned(),
        }
    }
}

impl Test {
    /// Returns whether payload comes from the server.
    fn called_back(&self) -> bool {
        self.machine.way() == Way::ToClient
    }
}

/// Returns the error in a line of the server's report, if there is one: `nuttcp-r: v6.1.2: Error:
/// bind: Address already in use`.
fn error_in(line: &str) -> Option<String> {
    if line.trim() == "KO" {
        return Some("KO".to_owned());
    }
    let (who, what) = line.split_once("Error: ")?;
    let says = who.is_empty() || who.starts_with("nuttcp");
    says.then(|| what.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::time::Instant;

    use super::*;

    #[test]
    fn who_waits_for_datagrams_hears_that_he_is_to_stop() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = listener.local_addr().unwrap();
        let asked = TestRequest::new(Way::ToClient, Carrier::Datagram, 5001);
        let mut test = Test {
            peer,
            control: Control::new(TcpStream::connect(peer).unwrap().into()).unwrap(),
            machine: Client::new(asked).unwrap(),
            called: Vec::new(),
            socket: Some(FlowSocket::Kernel(
                UdpSocket::bind("127.0.0.1:0").unwrap().into(),
            )),
            sender: None,
            marker_due_ns: None,
            datagrams: true,
            running: true,
            started: false,
            sent: false,
            until_ns: None,
            over: false,
            cut_off: false,
        };
        let begun = Instant::now();
        let now = clock::now();
        test.started(now, &AtomicBool::new(true)).unwrap();
        assert!(begun.elapsed() < Duration::from_nanos(START_GAP_NS));
        // Without a stop, the wait takes its full time.
        test.started(now, &AtomicBool::new(false)).unwrap();
        assert!(begun.elapsed() >= Duration::from_nanos(2 * START_GAP_NS));
    }

    #[test]
    fn errors_are_told_from_reports() {
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
            assert_eq!(error_in(line).as_deref(), error, "{line}");
        }
    }
}
