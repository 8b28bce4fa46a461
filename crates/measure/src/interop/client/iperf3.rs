//! iperf3: a control connection, separate flows, results of both ends.

mod finish;

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use linerate_dialect::control::{FlowTotal, Outcome};
use linerate_dialect::iperf3::{
    Client, ClientEvent, Cookie, Counters, Flow, PARALLEL_LIMIT, Params, Protocol, Results, Way,
    far_report, udp,
};
use linerate_dialect::remote_report::FarReport;
use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::readiness::{Ready, poll_any};
use linerate_metric::plan::{self, Direction, Kind, Plan, SendCopy};

use super::control_socket::Control;
use super::flow_socket::FlowSocket;
use super::setup_context::{Context, PATIENCE_NS, foreign};
use super::{CalledFlow, Caller, Refusal, Speech, first};
use crate::error::MeasureError;
use crate::interop::framing::Framing;

/// Client of iperf3.
pub const CALLER: Caller = Caller {
    name: "iperf3",
    about: "TCP and UDP, all directions; both ends' counts, loss, IPDV, retransmits, the server's report",
    kinds: &[Kind::Throughput],
    port: 5201,
    datagram_bytes: 1_460,
    refuse,
    open,
};

/// Time for the last payload to arrive before the end message: a reference server closes its flows
/// when it receives that.
const ARRIVAL_NS: Nanos = 3_000_000_000;

/// Block sizes that reference servers accept.
const TCP_BLOCK_LIMIT: u64 = 1 << 20;
const UDP_BLOCK_RANGE: std::ops::RangeInclusive<u64> = 16..=65_507;

fn refuse(plan: &Plan) -> Option<Refusal> {
    let udp = plan.protocol == plan::Protocol::Udp;
    first(&[
        (
            plan.streams > PARALLEL_LIMIT,
            "-P",
            "iperf3 takes 128 flows at most",
        ),
        (
            !udp && plan.payload_bytes > TCP_BLOCK_LIMIT,
            "-l",
            "iperf3 takes blocks of 1 MiB at most",
        ),
        (
            udp && plan.payload_bytes != 0 && !UDP_BLOCK_RANGE.contains(&plan.payload_bytes),
            "-l",
            "iperf3's datagrams have 16 to 65507 B",
        ),
        (
            !plan.omit_ns.is_multiple_of(1_000_000_000),
            "-O",
            "iperf3 takes whole seconds",
        ),
        (
            plan.duration_ns
                .is_some_and(|time| !time.is_multiple_of(1_000_000_000))
                && plan.flows(Direction::Receive),
            "-t",
            "iperf3's server counts whole seconds",
        ),
        (
            plan.pace.burst.is_some() && plan.flows(Direction::Receive),
            "-b RATE/BURST with -R",
            "iperf3's bursts are counted in blocks; a size in bytes cannot be sent to it",
        ),
    ])
}

fn params(plan: &Plan) -> Params {
    let sends = plan.flows(Direction::Send);
    let receives = plan.flows(Direction::Receive);
    Params {
        protocol: match plan.protocol {
            plan::Protocol::Tcp => Protocol::Tcp,
            plan::Protocol::Udp => Protocol::Udp,
        },
        way: match (sends, receives) {
            (true, true) => Way::Both,
            (false, true) => Way::Reverse,
            _ => Way::Forward,
        },
        parallel: plan.streams,
        duration_ns: plan.duration_ns,
        amount_bytes: plan.amount_bytes,
        omit_ns: plan.omit_ns,
        // Checked before.
        block_bytes: u32::try_from(plan.payload_bytes).unwrap_or(u32::MAX),
        rate_bps: plan.rate_bps,
        window_bytes: plan.window_bytes,
        mss_bytes: plan.socket.mss_bytes,
        no_delay: plan.socket.no_delay,
        tos: plan.socket.tos,
        congestion: plan
            .congestion_control
            .clone()
            .filter(|_| plan.congestion_control_asked),
        counters: match plan.protocol {
            plan::Protocol::Udp => Counters::Bits64,
            plan::Protocol::Tcp => Counters::Bits32,
        },
        zero_copy: plan.copies.send == SendCopy::SendFile,
        server_output: true,
        client_version: Some("3.12".to_owned()),
        ..Params::default()
    }
}

/// Driver of one test.
struct Test {
    peer: SocketAddr,
    control: Control,
    machine: Client,
    params: Params,
    called: Vec<CalledFlow>,
    /// Last flow, which is announced once everything here is ready: the server's clock starts then.
    last: Option<FlowSocket>,
    cookie: Cookie,
    /// Sockets of TCP flows that this end sends.
    sending: Vec<FlowSocket>,
    /// Latest time of the end message, which is sent earlier once everything has arrived.
    ending_ns: Option<Nanos>,
    /// Time at which the last payload was sent.
    sent_ns: Nanos,
    /// Unacknowledged bytes, and since when they are that many.
    left: (u64, Nanos),
    /// Time at which everything was acknowledged, and the likely time of its arrival.
    arrived_ns: Option<(Nanos, Nanos)>,
    /// Start of the server's clock and time of the end message, by our clock.
    ran: (Nanos, Nanos),
    /// Time that the last payload was in flight, as far as that was observed.
    drain_ns: Nanos,
    /// Time for which this end sent.
    own_send_ns: Option<Nanos>,
    finished: bool,
    wants_results: bool,
    far_sent: bool,
    own: Option<Results>,
    theirs: Option<Results>,
    over: bool,
    running: bool,
}

fn open(context: &Context<'_>) -> Result<Box<dyn Speech>, MeasureError> {
    let system = |error| MeasureError::system("control connection", error);
    let stream = context.control()?;
    let mut random = [0; 36];
    random.fill_with(|| fastrand::u8(..));
    let cookie = Cookie::new(random);
    let params = params(context.plan);
    let machine = Client::new(cookie, params.clone(), clock::now());
    let mut test = Test {
        peer: context.far,
        control: Control::new(stream).map_err(system)?,
        machine,
        params,
        called: Vec::new(),
        last: None,
        cookie,
        sending: Vec::new(),
        ending_ns: None,
        sent_ns: 0,
        left: (u64::MAX, 0),
        arrived_ns: None,
        ran: (0, 0),
        drain_ns: 0,
        own_send_ns: None,
        finished: false,
        wants_results: false,
        far_sent: false,
        own: None,
        theirs: None,
        over: false,
        running: false,
    };
    while test.called.is_empty() {
        test.goes_on(context.stop)?;
        if test.talk(clock::now())? {
            for (number, flow) in (1..).zip(test.params.flows()) {
                test.goes_on(context.stop)?;
                let called = test.flow(context, number, flow)?;
                test.called.push(called);
            }
        } else {
            test.wait(20)?;
        }
    }
    Ok(Box::new(test))
}

impl Test {
    /// Checks for Ctrl-C while flows are opened, and terminates the test on it.
    fn goes_on(&mut self, stop: &AtomicBool) -> Result<(), MeasureError> {
        if !stop.load(Relaxed) {
            return Ok(());
        }
        self.machine.terminate();
        let _ = self.say();
        Err(MeasureError::Interrupted)
    }

    /// Opens and announces a flow.
    fn flow(
        &mut self,
        context: &Context<'_>,
        number: u32,
        flow: Flow,
    ) -> Result<CalledFlow, MeasureError> {
        let direction = flow.at_client();
        let socket = context.flow(number, direction, context.far.port())?;
        let broken = |error| MeasureError::system("opening an iperf3 flow", error);
        let is_last = number as usize == self.params.flows().len();
        if is_last {
            self.last = Some(socket.copy().map_err(broken)?);
        } else {
            self.announce(&socket, context.stop)?;
        }
        let framing = match self.params.protocol {
            Protocol::Udp => Framing::Iperf3(self.params.counters),
            _ => {
                if flow.from_client {
                    self.sending.push(socket.copy().map_err(broken)?);
                }
                Framing::Bare
            }
        };
        Ok(CalledFlow {
            id: number,
            direction,
            opening: socket.opening(),
            framing,
        })
    }

    /// Sends the cookie, or the UDP hello, of a flow.
    fn announce(&mut self, socket: &FlowSocket, stop: &AtomicBool) -> Result<(), MeasureError> {
        let peer = self.peer;
        let failed = |error| super::setup_context::failed(peer, error);
        if self.params.protocol != Protocol::Udp {
            return socket.write_all(&self.cookie.to_wire()).map_err(failed);
        }
        socket.send(&udp::Hello::Little.wire()).map_err(failed)?;
        let until = clock::now() + PATIENCE_NS;
        let mut room = [0; 64];
        while clock::now() < until {
            self.goes_on(stop)?;
            if !socket.wait(Duration::from_millis(50)).map_err(failed)? {
                continue;
            }
            // Payload may follow the reply directly: it stays in the queue.
            let bytes = socket.receive(&mut room).map_err(failed)?;
            if udp::is_answer(&room[..bytes]) {
                return Ok(());
            }
        }
        Err(MeasureError::UdpBlocked { address: self.peer })
    }

    fn wait(&self, milliseconds: u64) -> Result<(), MeasureError> {
        let wanted: Vec<_> = (self.control.listens().into_iter())
            .map(|fd| (fd, Ready::Receive))
            .collect();
        poll_any(&wanted, Duration::from_millis(milliseconds))
            .map(|_| ())
            .map_err(|error| MeasureError::system("poll", error))
    }

    fn say(&mut self) -> Result<(), MeasureError> {
        while !self.machine.outgoing().is_empty() {
            match self.control.write(self.machine.outgoing()) {
                Ok(0) => break,
                Ok(bytes) => self.machine.sent(bytes),
                // Pending messages of the server may explain the error.
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// Receives and sends control messages; returns true when flows are to be opened.
    fn talk(&mut self, now: Nanos) -> Result<bool, MeasureError> {
        if self.over {
            return Ok(false);
        }
        let peer = self.peer;
        self.say()?;
        let mut wants_flows = false;
        let machine = &mut self.machine;
        let mut heard = Vec::new();
        let open = self
            .control
            .read(|bytes| {
                heard.extend_from_slice(bytes);
                Ok::<(), std::io::Error>(())
            })
            .map_err(|error| {
                foreign(
                    peer,
                    format!("the iperf3 server broke the control connection ({error})"),
                )
            })?;
        let mut rest = heard.as_slice();
        loop {
            let some = rest.len().min(linerate_dialect::iperf3::READ_AHEAD_BYTES);
            machine
                .receive(&rest[..some])
                .map_err(|error| foreign(peer, error))?;
            rest = &rest[some..];
            while let Some(event) = machine
                .next_event(now)
                .map_err(|error| foreign(peer, error))?
            {
                match event {
                    ClientEvent::OpenFlows => wants_flows = true,
                    ClientEvent::Started => (self.running, self.ran.0) = (true, now),
                    ClientEvent::WantsResults => {
                        self.wants_results = true;
                        self.far_sent = true;
                    }
                    ClientEvent::Results(theirs) => self.theirs = Some(*theirs),
                    ClientEvent::Finished => self.over = true,
                    ClientEvent::Terminated => {
                        return Err(foreign(
                            peer,
                            "the iperf3 server stopped the test before its end: see why it was stopped",
                        ));
                    }
                }
            }
            if rest.is_empty() {
                break;
            }
        }
        if let (true, Some(own)) = (self.wants_results, &self.own) {
            self.wants_results = false;
            machine
                .results(own, now)
                .map_err(|error| foreign(peer, error))?;
        }
        machine.check(now).map_err(|error| foreign(peer, error))?;
        self.say()?;
        if !open && !self.over {
            self.machine
                .closed()
                .map_err(|error| foreign(peer, error))?;
        }
        Ok(wants_flows)
    }
}

impl Speech for Test {
    fn flows(&mut self) -> Vec<CalledFlow> {
        std::mem::take(&mut self.called)
    }

    fn started(&mut self, now: Nanos, stop: &AtomicBool) -> Result<(), MeasureError> {
        if let Some(last) = self.last.take() {
            self.announce(&last, stop)?;
        }
        let until = now + 2 * PATIENCE_NS;
        while !self.running && clock::now() < until {
            self.goes_on(stop)?;
            self.talk(clock::now())?;
            if !self.running {
                self.wait(20)?;
            }
        }
        Ok(())
    }

    fn turn(&mut self, now: Nanos) -> Result<(), MeasureError> {
        self.finish_in_time(now)?;
        self.talk(now).map(|_| ())
    }

    fn sent(&mut self, now: Nanos, _: &[FlowTotal]) {
        // Without anything to send that is not the end.
        if self.params.way != Way::Reverse {
            self.ending_ns.get_or_insert(now + ARRIVAL_NS);
            (self.left.1, self.sent_ns) = (now, now);
        }
    }

    fn stop(&mut self, now: Nanos, _early: bool) {
        if self.params.way == Way::Reverse {
            self.ending_ns.get_or_insert(now);
        }
    }

    fn ended(&mut self, _: Nanos, own: &Outcome) {
        self.note_own(own);
    }

    fn far_sent(&mut self) -> Option<Vec<FlowTotal>> {
        self.far_sent.then(Vec::new)
    }

    fn is_over(&self) -> bool {
        self.over
    }

    fn due_ns(&self, now: Nanos) -> Nanos {
        match self.ending_ns {
            Some(_) if !self.finished => now + 1_000_000,
            _ => now + 100_000_000,
        }
    }

    fn listens(&self) -> Vec<BorrowedFd<'_>> {
        self.control.listens()
    }

    fn far_report(&self) -> FarReport {
        let Some(theirs) = &self.theirs else {
            return FarReport::default();
        };
        let mut report = far_report(&self.params, true, theirs);
        let numbers: Vec<_> = (1_u32..).zip(self.params.flows()).collect();
        for flow in &mut report.flows {
            if flow.direction == Direction::Send {
                let time = flow.figures.duration_ns;
                flow.figures.duration_ns = time.map(|time| self.without_pauses(time));
            }
            // Our flows are numbered consecutively, those of iperf3 are not.
            flow.id = flow.id.and_then(|id| {
                let found = numbers.iter().find(|(_, flow)| flow.id == id);
                found.map(|(number, _)| *number)
            });
        }
        report
    }

    fn agent(&self) -> String {
        "iperf3".to_owned()
    }
}
