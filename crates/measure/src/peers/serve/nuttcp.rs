//! nuttcp clients: a control connection in lines of text, and data on ports of their own.

mod data;

use std::io::Read;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use linerate_dialect::far::FarReport;
use linerate_dialect::nuttcp::{
    Counts, Cpu, DIALECT, Interval, NuttcpError, Server, ServerEvent, Test as Asked, Way,
};
use linerate_dialect::sniff::Carrier;
use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::socket;
use linerate_host::sys::wait::{self, Ready};
use linerate_metric::event::Problem;
use linerate_metric::plan::{Direction, Kind, Plan, Protocol};

use self::data::{Data, other_port};
use super::refusals::Refused;
use super::test::{Limit, Test};
use super::{Caller, OnStream, Speaker, how, say};
use crate::error::MeasureError;
use crate::meter::Totals;
use crate::session::house::{Claim, Seat};

/// nuttcp, as the table of speakers has it. Its datagrams belong to tests that wait for them.
pub const SPEAKER: Speaker = Speaker {
    name: DIALECT.name,
    port: None,
    speaks_first: false,
    stream: Some(OnStream::Talk(talk)),
    flow_of: None,
    datagrams: None,
    turns_away: None,
};

/// How long a client may take to say what it wants.
const PARAMETERS_PATIENCE: Nanos = 10_000_000_000;

/// How often the control connection is looked after.
const STEP: Duration = Duration::from_millis(50);

/// How long it may take until a client has its results.
const RESULTS_NS: Nanos = 1_000_000_000;

/// How long payload may still come after the client gave its control connection up.
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

/// A conversation with one client.
struct Session {
    caller: Caller,
    control: TcpStream,
    machine: Server,
    claim: Option<Claim>,
    /// Held until there is a test.
    seat: Option<Seat>,
    asked: Option<Asked>,
    /// Where the data will come or go.
    data: Option<Data>,
    /// Told to whoever takes datagrams.
    client_closed: Arc<AtomicBool>,
    closed_ns: Option<Nanos>,
    /// Its results are said.
    told: Option<Told>,
    /// What the last interval's line ended with, and when.
    reported: (Totals, Nanos),
    began_ns: Nanos,
}

/// What was known of a client when it was told its results.
#[derive(Clone, Copy)]
enum Told {
    /// It was there.
    Waiting,
    /// It had closed its half, as one does that has sent all its datagrams, and one that was killed.
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
                        let how = format!("its parameters make no sense ({reason})");
                        self.caller.fruitless(DIALECT.name, &how);
                    }
                }
            }
            return;
        };
        let _ = self.control.shutdown(std::net::Shutdown::Write);
        let result = result.and_then(|()| match test.is_cut() || self.took_its_results() {
            true => Ok(()),
            false => Err(self.vanished("it was gone before it had its results")),
        });
        test.finish(FarReport::default(), result.err());
    }

    /// A test that was agreed on and did not begin leaves no record: this is all that is told of it.
    fn tell_failure(&self, error: &MeasureError, asked: &Asked) {
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

    /// Whether the client was there to take its results. One that was killed leaves the same end of its
    /// connections as one that is done; but then its host answers what is sent to it with a reset, and
    /// acknowledges nothing. One that was there ends as it likes once it has them, with a reset, too.
    fn took_its_results(&self) -> bool {
        let until = clock::now() + RESULTS_NS;
        while self.machine.outgoing().is_empty() && clock::now() < until {
            let reset = !matches!(self.control.take_error(), Ok(None));
            // Behind the results nothing is sent but the end, which counts as a byte.
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
                        // The client listens once it has heard that.
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

    /// A client that asks for nothing is not waited for.
    fn wait_for_words(&self) -> Result<(), MeasureError> {
        let waited = clock::now().saturating_sub(self.began_ns);
        if waited > PARAMETERS_PATIENCE || self.caller.house.stop.load(Relaxed) {
            return Err(self.vanished("it asked for no test"));
        }
        Ok(())
    }

    /// Whether the test is over, and what is to be said of it meanwhile.
    fn look_after(&mut self, test: &mut Test) -> Result<(), MeasureError> {
        test.look();
        if let Some(limit) = test.limit() {
            test.cut(limit);
            let why = match limit {
                Limit::Stopped => "the server is told to end",
                Limit::Time => "the server ends tests after a time",
            };
            self.machine.abort(why);
            return Ok(());
        }
        self.tell_interval(test);
        let gone = self
            .closed_ns
            .is_some_and(|at| clock::now().saturating_sub(at) > GRACE_NS);
        // Whoever sends datagrams closes when all are sent, which may be before all have come.
        let needs_it = self
            .asked
            .as_ref()
            .is_some_and(|asked| asked.carrier == Carrier::Stream || asked.way == Way::ToClient);
        if gone && needs_it && !test.is_done() {
            return Err(self.vanished("it gave the test up"));
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

    /// Takes what the client said.
    fn listen(&mut self) -> Result<(), MeasureError> {
        if self.told.is_some() {
            return Ok(());
        }
        if self.closed_ns.is_some() {
            clock::sleep_until(clock::now() + STEP.as_nanos() as u64);
            return Ok(());
        }
        if !wait::poll(&self.control, Ready::Receive, STEP).is_ok_and(|ready| ready) {
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

    /// Makes ready what the data needs, or says why there will be no test.
    fn prepare(&mut self, asked: Asked) {
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
                "this server does not connect back to {}, which is no neighbour: use -F, or start \
                 it with --allow",
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

    /// The client learns it, too.
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

    /// What is done of what was asked: what this end sends stays within its limits.
    fn within_limits(&self, mut asked: Asked) -> Asked {
        let limits = self.caller.house.hall.limits();
        if asked.way == Way::ToClient {
            let rate = asked.rate_kbps.map(|kbps| kbps.saturating_mul(1000));
            let rate = limits.rate(rate, 1);
            asked.rate_kbps = rate.map(|rate| (rate / 1000).max(1));
            asked.time_ns = limits.time(asked.time_ns);
        }
        asked
    }

    fn start(&mut self, asked: &Asked, test: &mut Option<Test>) -> Result<(), MeasureError> {
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
        // Datagrams have markers before and behind them, with half a second between two.
        let mut begun = match asked.carrier {
            Carrier::Datagram => begun.ending_by_silence(),
            Carrier::Stream => begun,
        };
        begun.with_numbers(asked.numbers_datagrams());
        data::spawn(&mut begun, &within, sockets, &self.client_closed)?;
        *test = Some(begun);
        Ok(())
    }

    /// The client prints our intervals as its own.
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
        let numbered = self.asked.as_ref().is_some_and(Asked::numbers_datagrams);
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

/// What the client asked for, in our words.
fn plan(asked: &Asked, caller: &Caller) -> Plan {
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
