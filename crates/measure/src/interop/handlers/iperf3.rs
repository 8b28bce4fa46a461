//! iperf3 clients: a control connection each, and flows matched by its cookie (TCP) or by the
//! address of the hello (UDP).

mod flows;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::time::Duration;

use linerate_dialect::iperf3::{
    BUSY, COOKIE_BYTES, Cookie, Cpu, DIALECT, Flow, FlowResult, Iperf3Error, Params, Protocol,
    READ_AHEAD_BYTES, Refusal, Results, Server, ServerEvent, Way, far_report,
};
use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::readiness::{self, Ready};
use linerate_metric::event::Problem;
use socket2::{Domain, Socket, Type};

use self::flows::{begin_flow, open, plan};
use super::interop_state::Expectation;
use super::rejection_log::Refused;
use super::report;
use super::test_run::{IDLE, Limit, Test};
use super::worker::LOOK_UP;
use super::{Caller, Hall, OnStream, Speaker, Wanted, how, say};
use crate::error::MeasureError;
use crate::flow_counters::Totals;
use crate::session::server_state::{Claim, Seat};
use crate::session::udp_demux::Arrived;

/// Handler of iperf3.
pub const SPEAKER: Speaker = Speaker {
    name: DIALECT.name,
    port: None,
    speaks_first: false,
    stream: Some(OnStream::Talk(talk)),
    flow_of: Some(flow_of),
    datagrams: None,
    turns_away: None,
};

/// Time for a client to send its cookie, which the reference client sends at once.
const COOKIE_PATIENCE: Duration = Duration::from_secs(10);

/// Poll interval while flows arrive.
const FLOWS_STEP: Duration = Duration::from_millis(5);

/// Poll interval while payload moves.
const RUN_STEP: Duration = Duration::from_millis(100);

/// Time for payload in flight to arrive after the client's end.
const DRAIN_NS: Nanos = 2_000_000_000;

/// Silence that ends this wait for datagrams, of which some may be lost.
const DRAIN_SILENCE_NS: Nanos = 100_000_000;

fn flow_of(first: &[u8]) -> Option<Wanted> {
    let cookie = Cookie::read(first.first_chunk::<COOKIE_BYTES>()?)?;
    Some(Wanted::Cookie(cookie))
}

fn talk(caller: Caller, seat: Seat, stream: TcpStream) {
    let first = read_cookie(&caller, &stream);
    let opened = first.and_then(|first| Server::open(&first, clock::now()));
    let Some((cookie, machine)) = opened else {
        let how = "its first bytes are not a complete iperf3 cookie";
        caller.fruitless(SPEAKER.name, how);
        return;
    };
    // Small messages that the client waits for.
    let _ = stream.set_nodelay(true);
    let (arrived, arrivals) = mpsc::channel();
    let mut session = Session {
        caller,
        control: stream,
        machine,
        cookie,
        params: Params::default(),
        claim: None,
        seat: Some(seat),
        arrived,
        arrivals,
        waits: None,
        flows: Vec::new(),
        theirs: None,
        ended_ns: None,
    };
    session.run();
}

/// Reads the cookie. Returns `None` on a close or at the timeout, however often single bytes
/// arrive.
fn read_cookie(caller: &Caller, mut stream: &TcpStream) -> Option<[u8; COOKIE_BYTES]> {
    // The connection may have waited for its permit; bytes that arrived since then are in the
    // socket.
    let deadline = caller.came_ns + COOKIE_PATIENCE.as_nanos() as u64;
    let mut first = [0; COOKIE_BYTES];
    let mut came = 0;
    while !caller.house.stop.load(Relaxed) {
        let late = clock::now() >= deadline;
        let step = if late { Duration::ZERO } else { LOOK_UP };
        if readiness::poll(stream, Ready::Receive, step).ok()? {
            match stream.read(&mut first[came..]).ok()? {
                0 => return None,
                bytes => came += bytes,
            }
        }
        if came == COOKIE_BYTES {
            return Some(first);
        }
        if late {
            break;
        }
    }
    None
}

/// Control connection of one client.
struct Session {
    caller: Caller,
    control: TcpStream,
    machine: Server,
    cookie: Cookie,
    params: Params,
    /// Reservation of the test, from the agreement to its start.
    claim: Option<Claim>,
    /// Permit, held until then.
    seat: Option<Seat>,
    arrived: mpsc::Sender<Arrived>,
    arrivals: mpsc::Receiver<Arrived>,
    waits: Option<Expectation>,
    flows: Vec<(Flow, Arrived)>,
    theirs: Option<Results>,
    /// Time of the client's end message.
    ended_ns: Option<Nanos>,
}

/// Checks that the kernel accepts the requested congestion control, before the flows' sockets
/// exist.
fn try_congestion(params: &Params) -> std::io::Result<()> {
    match (&params.congestion, params.protocol) {
        (Some(name), Protocol::Tcp) => {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
            socket.set_tcp_congestion(name.as_bytes())
        }
        _ => Ok(()),
    }
}

/// Returns the log text of a request that no test fulfils.
fn wish(params: &Params, refusal: Refusal) -> Problem {
    let calls = || format!("calls of {} B", params.block_bytes);
    match refusal {
        Refusal::NO_SCTP => Problem::new(
            "this server has no SCTP",
            "SCTP",
            "let it measure TCP, or UDP (-u)",
        ),
        Refusal::PARALLEL => Problem::new(
            "more than iperf3 supports",
            format!("{} streams", params.parallel),
            "let it use -P 1 to 128",
        ),
        Refusal::UDP_BLOCK => Problem::new(
            "iperf3 has no datagram of that size",
            calls(),
            "let it use another -l",
        ),
        _ => Problem::new(
            "iperf3 has no block of that size",
            calls(),
            "let it use another -l",
        ),
    }
}

/// Next state of the control connection.
enum Next {
    Listen,
    /// Finished.
    Close,
}

impl Session {
    fn run(&mut self) {
        let mut test = None;
        let end = self.converse(&mut test);
        self.say();
        let Some(mut test) = test else {
            if let Err(error) = &end {
                self.caller.fruitless(SPEAKER.name, &how(error));
            }
            return;
        };
        test.join();
        let far = self
            .theirs
            .as_ref()
            .map(|theirs| far_report(&self.params, false, theirs));
        test.finish(far.unwrap_or_default(), end.err());
    }

    fn converse(&mut self, test: &mut Option<Test>) -> Result<(), MeasureError> {
        loop {
            self.say();
            self.take_flows(test)?;
            let step = match test {
                Some(test) => {
                    test.look();
                    let next = test.next_look().saturating_sub(clock::now());
                    RUN_STEP.min(Duration::from_nanos(next))
                }
                None => FLOWS_STEP,
            };
            let heard = readiness::poll(&self.control, Ready::Receive, step);
            if heard.is_ok_and(|heard| heard) {
                let mut room = [0; READ_AHEAD_BYTES];
                match (&self.control).read(&mut room) {
                    Ok(0) => return self.told(|session| session.machine.closed()),
                    Ok(bytes) => self.told(|session| session.machine.receive(&room[..bytes]))?,
                    Err(error) => return Err(self.vanished(&error.to_string())),
                }
            }
            if let Some(limit) = self.limit(test.as_ref()) {
                self.machine.terminate();
                self.say();
                if let Some(test) = test {
                    // Connections that end before the client has read that would be an error for
                    // it.
                    let _ = readiness::poll(&self.control, Ready::Receive, RUN_STEP);
                    test.cut(limit);
                }
                return Ok(());
            }
            self.told(|session| session.machine.check(clock::now()))?;
            while let Some(event) = self.told(|session| session.machine.next_event(clock::now()))? {
                if let Next::Close = self.hear(event, test)? {
                    return Ok(());
                }
            }
            if let Some(test) = test {
                self.see_that_it_moves(test)?;
            }
        }
    }

    fn limit(&self, test: Option<&Test>) -> Option<Limit> {
        match test {
            Some(test) => test.limit(),
            None => {
                let stop = self.caller.house.stop.load(Relaxed);
                stop.then_some(Limit::Stopped)
            }
        }
    }

    /// Returns an error once no payload and no message has arrived for the idle timeout, though the
    /// connection is open.
    fn see_that_it_moves(&self, test: &Test) -> Result<(), MeasureError> {
        let idle = IDLE.as_nanos() as u64;
        let last = test.last_moved_ns();
        match clock::now().saturating_sub(last) > idle && self.theirs.is_none() {
            true => Err(self.vanished(&format!("no payload moved for {} s", IDLE.as_secs()))),
            false => Ok(()),
        }
    }

    fn vanished(&self, how: &str) -> MeasureError {
        MeasureError::Vanished {
            peer: self.caller.peer,
            how: how.to_owned(),
        }
    }

    fn told<T>(
        &mut self,
        step: impl FnOnce(&mut Self) -> Result<T, Iperf3Error>,
    ) -> Result<T, MeasureError> {
        let result = step(self);
        result.map_err(|error| {
            self.say();
            match error {
                Iperf3Error::Busy => self.vanished(
                    "another UDP test of the same client was opening its flows all the time: let it \
                     try again after that test",
                ),
                error => self.vanished(&error.to_string()),
            }
        })
    }

    fn hear(&mut self, event: ServerEvent, test: &mut Option<Test>) -> Result<Next, MeasureError> {
        match event {
            ServerEvent::Asked(params) => return self.agree(*params),
            ServerEvent::Ended => {
                let now = clock::now();
                self.ended_ns = Some(now);
                if let Some(test) = test {
                    test.over_at(now);
                    test.join_sources();
                }
            }
            ServerEvent::Results(theirs) => {
                if let Some(test) = test {
                    self.drain(test, &theirs);
                    test.join();
                    test.end_intervals();
                    let ours = self.results(test);
                    self.told(|session| session.machine.results(&ours, clock::now()))?;
                }
                self.theirs = Some(*theirs);
            }
            ServerEvent::Terminated => {
                return Err(self.vanished("it was stopped before its end"));
            }
            ServerEvent::Done => return Ok(Next::Close),
        }
        Ok(Next::Listen)
    }

    /// Accepts or rejects the test that the client requests.
    fn agree(&mut self, params: Params) -> Result<Next, MeasureError> {
        self.params = params;
        if let Err(refusal) = self.params.check() {
            let (hall, peer) = (&self.caller.house.hall, self.caller.peer);
            hall.refuse_wish(SPEAKER.name, peer, &wish(&self.params, refusal));
            self.machine.refuse(refusal, 0);
            return Ok(Next::Close);
        }
        if let Err(error) = try_congestion(&self.params) {
            let name = self.params.congestion.as_deref().unwrap_or_default();
            let refused = Refused {
                why: "congestion",
                dialect: SPEAKER.name,
                from: self.caller.peer,
            };
            self.caller.house.hall.refuse(refused, || {
                Problem::new(
                    format!(
                        "requested by {}, and the kernel rejects it ({error})",
                        self.caller.peer
                    ),
                    format!("congestion control {name}"),
                    "`sysctl net.ipv4.tcp_available_congestion_control` lists the available ones, \
                     net.ipv4.tcp_allowed_congestion_control those for unprivileged users",
                )
            });
            let errno = error.raw_os_error().unwrap_or_default();
            self.machine.refuse(Refusal::CONGESTION, errno);
            return Ok(Next::Close);
        }
        let claim = self.caller.house.claim().and_then(|mut claim| {
            claim.take_sockets(self.params.flows().len())?;
            Ok(claim)
        });
        match claim {
            Ok(claim) => self.claim = Some(claim),
            Err(denied) => {
                let peer = self.caller.peer;
                let hall = &self.caller.house.hall;
                hall.refuse_test(SPEAKER.name, peer, &denied);
                self.say();
                let _ = (&self.control).write_all(&BUSY);
                return Ok(Next::Close);
            }
        }
        self.seat = None;
        self.open_for_flows()?;
        Ok(Next::Listen)
    }

    /// Lets flows arrive. UDP flows have no test identifier, so only one test of an address waits
    /// for them at a time; the client of another one does not notice the wait.
    fn open_for_flows(&mut self) -> Result<(), MeasureError> {
        let wanted = match self.params.protocol {
            Protocol::Udp => Wanted::Hello {
                port: self.caller.door,
            },
            _ => Wanted::Cookie(self.cookie),
        };
        self.waits = Hall::expect(&self.caller, wanted, self.arrived.clone());
        if self.waits.is_some() {
            self.told(|session| session.machine.accept(clock::now()))?;
        }
        Ok(())
    }

    fn take_flows(&mut self, test: &mut Option<Test>) -> Result<(), MeasureError> {
        if self.claim.is_none() {
            return Ok(());
        }
        if self.waits.is_none() {
            return self.open_for_flows();
        }
        while let Ok(arrived) = self.arrivals.try_recv() {
            let opened = open(&self.params, &arrived);
            if opened.is_none() {
                continue;
            }
            if let Some(flow) = self.machine.flow_arrived() {
                self.flows.push((flow, arrived));
            }
        }
        if self.flows.is_empty() || self.machine.waits_for_flows() {
            return Ok(());
        }
        self.waits = None;
        let Some(claim) = self.claim.take() else {
            return Ok(());
        };
        let agent = match &self.params.client_version {
            Some(version) => format!("iperf3 {}", version.trim_start_matches("iperf ")),
            None => "iperf3".to_owned(),
        };
        let plan = plan(&self.params, &self.caller);
        let mut begun = Test::begin(&mut self.caller, claim, SPEAKER.name, &agent, plan);
        begun.with_numbers(true);
        begun.start_at(clock::now());
        let flows = std::mem::take(&mut self.flows);
        for (flow, arrived) in flows {
            begin_flow(&mut begun, &self.params, flow, arrived)?;
        }
        *test = Some(begun);
        self.told(|session| session.machine.start(clock::now()))?;
        self.say();
        Ok(())
    }

    fn say(&mut self) {
        let said = say(&self.control, self.machine.outgoing());
        self.machine.sent(said);
    }

    /// Waits for payload in flight, up to the amount that the client has reported.
    fn drain(&self, test: &mut Test, theirs: &Results) {
        let udp = self.params.protocol == Protocol::Udp;
        let deadline = clock::now() + DRAIN_NS;
        let sent = |flow: &Flow| {
            let result = theirs.flows.iter().find(|result| result.id == flow.id)?;
            result.bytes
        };
        let came = |test: &Test, flow: &Flow| {
            let all = test.totals(flow.id).bytes;
            all.saturating_sub(test.omitted(flow.id).bytes)
        };
        let flows: Vec<_> = self
            .params
            .flows()
            .into_iter()
            .filter(|flow| flow.from_client)
            .collect();
        let (mut last, mut moved_ns) = (test.sum().bytes, clock::now());
        loop {
            let now = clock::now();
            let missing = |flow: &Flow| sent(flow).is_some_and(|sent| came(test, flow) < sent);
            if now >= deadline || !flows.iter().any(missing) {
                return;
            }
            let sum = test.sum().bytes;
            if sum != last {
                (last, moved_ns) = (sum, now);
            } else if udp && now.saturating_sub(moved_ns) > DRAIN_SILENCE_NS {
                return;
            }
            test.wait(now + 1_000_000);
        }
    }

    /// Returns the results of this end.
    fn results(&self, test: &Test) -> Results {
        let udp = self.params.protocol == Protocol::Udp;
        // Until the client's end message: time after that is not part of the test.
        let ended_ns = self.ended_ns.unwrap_or_else(clock::now);
        let ran_ns = ended_ns.saturating_sub(test.start_ns());
        let counted_ns = ran_ns.saturating_sub(self.params.omit_ns);
        let sends = self.params.way != Way::Forward;
        let flows = self.params.flows().into_iter().map(|flow| {
            let omitted = test.omitted(flow.id);
            let totals = test.totals(flow.id).since(omitted);
            let moved = test.moved(flow.id);
            let numbers = moved.and_then(|moved| moved.numbers).unwrap_or_default();
            let tcp = moved
                .and_then(|moved| moved.socket.as_ref())
                .and_then(|socket| socket.tcp.as_ref());
            let all = test.totals(flow.id);
            // A client chooses its sequence numbers freely, up to 2^64.
            let highest = |totals: &Totals| totals.packets.saturating_add(totals.missing);
            FlowResult {
                id: flow.id,
                bytes: Some(totals.bytes),
                retransmits: tcp.filter(|_| !flow.from_client).map(|tcp| tcp.retransmits),
                ipdv_ns: numbers.ipdv_ns.or(Some(0.0)),
                lost: Some(if udp { all.missing } else { 0 }),
                packets: Some(match (udp, flow.from_client) {
                    (true, true) => highest(&all).saturating_sub(numbers.duplicates.unwrap_or(0)),
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
        Results {
            cpu: Some(Cpu {
                total: percent(user + system),
                user: percent(user),
                system: percent(system),
            }),
            knows_retransmits: (sends && !udp).then_some(true),
            congestion: (!udp).then(|| test.congestion_control()).flatten(),
            flows: flows.collect(),
            output_text: self.params.server_output.then(|| report::of(test)),
            output_json: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_congestion_control_that_is_not_there_is_refused() {
        let asked = |name: Option<&str>, protocol| Params {
            congestion: name.map(str::to_owned),
            protocol,
            ..Params::default()
        };
        let refused = try_congestion(&asked(Some("no-such"), Protocol::Tcp));
        assert_eq!(
            refused.unwrap_err().raw_os_error(),
            Some(rustix::io::Errno::NOENT.raw_os_error())
        );
        assert!(try_congestion(&asked(Some("reno"), Protocol::Tcp)).is_ok());
        // Datagrams have no congestion control.
        assert!(try_congestion(&asked(Some("no-such"), Protocol::Udp)).is_ok());
        assert!(try_congestion(&asked(None, Protocol::Tcp)).is_ok());
    }
}
