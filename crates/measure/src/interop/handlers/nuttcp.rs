//! nuttcp clients: a control connection with lines of text, and data on separate ports.

mod data;

use std::io::Read;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use linerate_dialect::nuttcp::{
    Counts, Cpu, DIALECT, Interval, NuttcpError, Server, ServerEvent, Test as TestRequest, Way,
};
use linerate_dialect::remote_report::FarReport;
use linerate_dialect::sniff::Carrier;
use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::readiness::{self, Ready};
use linerate_host::sys::socket;
use linerate_metric::event::Problem;
use linerate_metric::plan::{Direction, Kind, Plan, Protocol};

use self::data::{Data, other_port};
use super::rejection_log::Refused;
use super::test_run::{Limit, Test};
use super::{Caller, OnStream, Speaker, how, say};
use crate::error::MeasureError;
use crate::flow_counters::Totals;
use crate::session::server_state::{Claim, Seat};

/// Handler of nuttcp. Its datagrams belong to tests that expect them.
pub const SPEAKER: Speaker = Speaker {
    name: DIALECT.name,
    port: None,
    speaks_first: false,
    stream: Some(OnStream::Talk(talk)),
    flow_of: None,
    datagrams: None,
    turns_away: None,
};

/// Time for a client to send its parameters.
const PARAMETERS_PATIENCE: Nanos = 10_000_000_000;

/// Poll interval of the control connection.
const STEP: Duration = Duration::from_millis(50);

/// Time for a client to receive its results.
const RESULTS_NS: Nanos = 1_000_000_000;

/// Time for payload to arrive after the client has closed its control connection.
const GRACE_NS: Nanos = 2_000_000_000;

fn talk(caller: Caller, seat: Seat, stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let mut session = Session {
        caller,
        control: stream,
        machine: Server::default(),
        claim: None,
        seat: Some(seat),
        asked: None,
        data: None,
        client_closed: Arc::default(),
        closed_ns: None,
        told: None,
        reported: (Totals::default(), 0),
        began_ns: clock::now(),
    };
    session.run();
}

/// Control connection of one client.
struct Session {
    caller: Caller,
    control: TcpStream,
    machine: Server,
    claim: Option<Claim>,
    /// Permit, held until there is a test.
    seat: Option<Seat>,
    asked: Option<TestRequest>,
    /// Prepared sockets of the data.
    data: Option<Data>,
    /// Set for receivers of datagrams once the client has closed.
    client_closed: Arc<AtomicBool>,
    closed_ns: Option<Nanos>,
    /// State of the client when its results were sent.
    told: Option<Told>,
    /// Totals and time of the last interval line.
    reported: (Totals, Nanos),
    began_ns: Nanos,
}

/// State of a client when its results were sent.
#[derive(Clone, Copy)]
enum Told {
    /// Connected.
    Waiting,
    /// Closed for sending: by a client that has sent all its datagrams, or by one that was killed.
    HalfClosed,
}

impl Session {
    fn run(&mut self) {
        let mut test = None;
        let result = self.converse(&mut test);
        if let Err(error) = &result {
            self.machine.abort(&error.to_string());
        }
        self.say();
        let Some(test) = test else {
            match (&result, &self.asked) {
                (Err(error), Some(asked)) => self.tell_failure(error, asked),
                (Err(error), None) => self.caller.fruitless(DIALECT.name, &how(error)),
                (Ok(()), _) => {
                    if let Some(reason) = self.machine.misread() {
                        let how = format!("its parameters are invalid ({reason})");
                        self.caller.fruitless(DIALECT.name, &how);
                    }
                }
            }
            return;
        };
        let _ = self.control.shutdown(std::net::Shutdown::Write);
        let result = result.and_then(|()| match test.is_cut() || self.took_its_results() {
            true => Ok(()),
            false => Err(self.vanished("it was gone before it received its results")),
        });
        test.finish(FarReport::default(), result.err());
    }

    /// Logs the failure of a test that was agreed on and did not start, which leaves no record.
    fn tell_failure(&self, error: &MeasureError, asked: &TestRequest) {
        let refused = Refused {
            why: match asked.client_connects() {
                true => "data",
                false => "data-back",
            },
            dialect: DIALECT.name,
            from: self.caller.peer,
        };
        self.caller.house.hall.refuse(refused, || error.problem());
    }

    /// Returns whether the client received its results. A killed client closes its connections as a
    /// finished one does, but its host answers later segments with a reset and acknowledges
    /// nothing. A client that has its results may also end with a reset.
    fn took_its_results(&self) -> bool {
        let until = clock::now() + RESULTS_NS;
        while self.machine.outgoing().is_empty() && clock::now() < until {
            let reset = !matches!(self.control.take_error(), Ok(None));
            // After the results only the FIN is sent, which counts as one byte.
            let left = socket::unacknowledged(&self.control);
            if reset {
                let has_them = left.is_ok_and(|bytes| bytes <= 1);
                return has_them || matches!(self.told, Some(Told::Waiting));
            }
            if left.is_ok_and(|bytes| bytes == 0) {
                return true;
            }
            clock::sleep_until(clock::now() + 2_000_000);
        }
        false
    }

    fn converse(&mut self, test: &mut Option<Test>) -> Result<(), MeasureError> {
        loop {
            self.say();
            self.listen()?;
            while let Some(event) = self.machine.poll() {
                match event {
                    ServerEvent::Prepare(asked) => self.prepare(asked),
                    ServerEvent::Run(asked) => {
                        // The client listens once it has received the reply.
                        self.say();
                        self.start(&asked, test)?;
                    }
                    ServerEvent::ClientClosed => {
                        self.client_closed.store(true, Relaxed);
                        self.closed_ns = Some(clock::now());
                    }
                    ServerEvent::Close => return Ok(()),
                }
            }
            match test {
                Some(test) => self.look_after(test)?,
                None => self.wait_for_words()?,
            }
        }
    }

    /// Returns an error once a client without parameters has timed out.
    fn wait_for_words(&self) -> Result<(), MeasureError> {
        let waited = clock::now().saturating_sub(self.began_ns);
        if waited > PARAMETERS_PATIENCE || self.caller.house.stop.load(Relaxed) {
            return Err(self.vanished("it requested no test"));
        }
        Ok(())
    }

    /// Polls the running test: limits, interval lines, end.
    fn look_after(&mut self, test: &mut Test) -> Result<(), MeasureError> {
        test.look();
        if let Some(limit) = test.limit() {
            test.cut(limit);
            let why = match limit {
                Limit::Stopped => "the server is stopping",
                Limit::Time => "the server limits the time of tests",
            };
            self.machine.abort(why);
            return Ok(());
        }
        self.tell_interval(test);
        let gone = self
            .closed_ns
            .is_some_and(|at| clock::now().saturating_sub(at) > GRACE_NS);
        // A sender of datagrams closes once all are sent, which may be before all have arrived.
        let needs_it = self
            .asked
            .as_ref()
            .is_some_and(|asked| asked.carrier == Carrier::Stream || asked.way == Way::ToClient);
        if gone && needs_it && !test.is_done() {
            return Err(self.vanished("it closed the control connection during the test"));
        }
        if test.is_done() {
            let counts = self.counts(test);
            self.machine.finish(&counts);
            self.told = Some(match self.closed_ns {
                Some(_) => Told::HalfClosed,
                None => Told::Waiting,
            });
        }
        Ok(())
    }

    fn vanished(&self, how: &str) -> MeasureError {
        MeasureError::Vanished {
            peer: self.caller.peer,
            how: how.to_owned(),
        }
    }

    fn broken(&self, error: &NuttcpError) -> MeasureError {
        self.vanished(&error.to_string())
    }

    /// Receives from the control connection.
    fn listen(&mut self) -> Result<(), MeasureError> {
        if self.told.is_some() {
            return Ok(());
        }
        if self.closed_ns.is_some() {
            clock::sleep_until(clock::now() + STEP.as_nanos() as u64);
            return Ok(());
        }
        if !readiness::poll(&self.control, Ready::Receive, STEP).is_ok_and(|ready| ready) {
            return Ok(());
        }
        let mut room = [0; 4096];
        let heard = match (&self.control).read(&mut room) {
            Ok(0) => self.machine.closed(),
            Ok(bytes) => self.machine.receive(&room[..bytes]),
            Err(error) => return Err(self.vanished(&error.to_string())),
        };
        heard.map_err(|error| self.broken(&error))
    }

    fn say(&mut self) {
        let said = say(&self.control, self.machine.outgoing());
        self.machine.sent(said);
    }

    /// Prepares the data sockets, or rejects the test.
    fn prepare(&mut self, asked: TestRequest) {
        let claim = self.caller.house.claim().and_then(|mut claim| {
            claim.take_sockets(usize::from(asked.streams))?;
            Ok(claim)
        });
        match claim {
            Ok(claim) => self.claim = Some(claim),
            Err(denied) => {
                let reason = denied.refuse.problem.situation.clone();
                let peer = self.caller.peer;
                let hall = &self.caller.house.hall;
                hall.refuse_test(DIALECT.name, peer, &denied);
                return self.machine.refuse(&reason);
            }
        }
        let ready = match asked.ports().next() {
            Some(port) if !asked.client_connects() && !self.may_connect_back(port) => Err(format!(
                "this server does not connect back to {}, which is in no connected network: use -F, or start \
                 the server with --allow",
                self.caller.peer.ip()
            )),
            _ => Data::prepare(&self.caller, &asked),
        };
        match ready {
            Ok(data) => {
                self.data = Some(data);
                self.asked = Some(asked);
                self.seat = None;
                self.machine.ready();
            }
            Err(reason) => {
                self.claim = None;
                if let Some(port) = asked.ports().next()
                    && asked.client_connects()
                {
                    self.tell_taken(port, &reason);
                }
                self.machine.refuse(&reason);
            }
        }
    }

    /// Logs a data port that is taken; the client receives the reason, too.
    fn tell_taken(&self, port: u16, reason: &str) {
        let wish = Problem::new(
            reason,
            format!("data at port {port}"),
            format!("let it use another (`nuttcp -p {}`)", other_port(port)),
        );
        let Caller { house, peer, .. } = &self.caller;
        house.hall.refuse_wish(DIALECT.name, *peer, &wish);
    }

    fn may_connect_back(&self, port: u16) -> bool {
        let Caller { house, peer, .. } = &self.caller;
        let otherwise = "let it use -F";
        (house.hall).may_connect_back(DIALECT.name, *peer, port, otherwise)
    }

    /// Returns the test within the server's limits for sending.
    fn within_limits(&self, mut asked: TestRequest) -> TestRequest {
        let limits = self.caller.house.hall.limits();
        if asked.way == Way::ToClient {
            let rate = asked.rate_kbps.map(|kbps| kbps.saturating_mul(1000));
            let rate = limits.rate(rate, 1);
            asked.rate_kbps = rate.map(|rate| (rate / 1000).max(1));
            asked.time_ns = limits.time(asked.time_ns);
        }
        asked
    }

    fn start(&mut self, asked: &TestRequest, test: &mut Option<Test>) -> Result<(), MeasureError> {
        let (Some(claim), Some(data)) = (self.claim.take(), self.data.take()) else {
            return Ok(());
        };
        let within = self.within_limits(asked.clone());
        let sockets = data.open(&self.caller, &within)?;
        let agent = match self.machine.client_version() {
            Some(version) => format!("nuttcp {version}"),
            None => "nuttcp".to_owned(),
        };
        let plan = plan(asked, &self.caller);
        let begun = Test::begin(&mut self.caller, claim, DIALECT.name, &agent, plan);
        // Datagrams have markers before and after them, with half a second between two.
        let mut begun = match asked.carrier {
            Carrier::Datagram => begun.ending_by_silence(),
            Carrier::Stream => begun,
        };
        begun.with_numbers(asked.numbers_datagrams());
        data::spawn(&mut begun, &within, sockets, &self.client_closed)?;
        *test = Some(begun);
        Ok(())
    }

    /// Sends an interval line, which the client prints as its own.
    fn tell_interval(&mut self, test: &Test) {
        let Some(length) = self.asked.as_ref().and_then(|asked| asked.interval_ns) else {
            return;
        };
        if !test.has_begun() {
            return;
        }
        let now = clock::now();
        let (before, since) = self.reported;
        let since = since.max(test.start_ns());
        if now < since + length {
            return;
        }
        let sum = test.sum();
        let more = sum.since(before);
        self.reported = (sum, now);
        let udp = self
            .asked
            .as_ref()
            .is_some_and(|asked| asked.carrier == Carrier::Datagram);
        let numbered = self
            .asked
            .as_ref()
            .is_some_and(TestRequest::numbers_datagrams);
        self.machine.interval(&Interval {
            bytes: more.bytes,
            duration_ns: now - since,
            lost_of: (udp && numbered)
                .then_some((more.missing, more.missing.saturating_add(more.packets))),
            retransmits: None,
        });
    }

    fn counts(&self, test: &Test) -> Counts {
        let sum = test.sum();
        let (user_ns, system_ns) = test.processor_time();
        let tcp = test
            .moved(1)
            .and_then(|moved| moved.socket.as_ref()?.tcp.clone());
        let sends = self
            .asked
            .as_ref()
            .is_some_and(|asked| asked.way == Way::ToClient);
        Counts {
            bytes: sum.bytes,
            duration_ns: test.span_ns(),
            cpu: Some(Cpu { user_ns, system_ns }),
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
fn plan(asked: &TestRequest, caller: &Caller) -> Plan {
    let protocol = match asked.carrier {
        Carrier::Stream => Protocol::Tcp,
        Carrier::Datagram => Protocol::Udp,
    };
    let mut plan = Plan::new(Kind::Throughput, protocol, caller.local.ip().to_string());
    plan.port = caller.door;
    plan.directions = vec![match asked.way {
        Way::ToServer => Direction::Send,
        Way::ToClient => Direction::Receive,
    }];
    plan.streams = u32::from(asked.streams);
    plan.duration_ns = asked.time_ns;
    let bytes = asked.buffer_bytes as u64;
    plan.amount_bytes = asked.buffers.map(|buffers| buffers.saturating_mul(bytes));
    plan.payload_bytes = bytes;
    plan.rate_bps = asked.rate_kbps.map(|kbps| kbps.saturating_mul(1000));
    plan.window_bytes = asked.window_bytes.map(u64::from);
    plan.socket.mss_bytes = asked.mss;
    plan.socket.no_delay = asked.no_delay;
    plan.socket.tos = Some(asked.tos).filter(|&tos| tos > 0);
    plan
}
