//! iperf2 clients, current and legacy: a header in front of the payload, or none.

mod reverse_flow;
mod udp;

pub use reverse_flow::Back;
pub use udp::Flow;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use linerate_dialect::iperf2::{
    Amount, DIALECT, Dual, LEGACY_DIALECT, Settings, TcpJob, TcpServer, Way, WriteStamps,
    WriteTimes, bounceback, fill,
};
use linerate_dialect::remote_report::FarReport;
use linerate_host::sys::clock::{self, Nanos};
use linerate_metric::plan::{Direction, Kind, Plan, Protocol};
use socket2::{Domain, SockAddr, Socket, Type};

use super::limits::Limits;
use super::payload::Ring;
use super::responder_loop::{Answers, answer_stream};
use super::test_run::{IDLE, PLAIN_IDLE, Test};
use super::worker::{
    Context, Delays, LOOK_UP, Moved, Sending, Signals, is_nothing, receive_stream, send_stream,
    watch_stream,
};
use super::{Caller, OnStream, Speaker, at_port};
use crate::error::MeasureError;
use crate::flow::Part;
use crate::flow_counters::Totals;
use crate::session::server_state::Claim;

/// Handler of iperf2 with a header.
pub const SPEAKER: Speaker = Speaker {
    name: DIALECT.name,
    port: None,
    speaks_first: false,
    stream: Some(OnStream::Test(|caller, claim, connection| {
        stream(DIALECT.name, caller, claim, connection);
    })),
    flow_of: None,
    datagrams: Some(|caller, claim, arrived| udp::serve(DIALECT.name, caller, claim, arrived)),
    turns_away: Some(|hall, from, first| udp::turns_away(DIALECT.name, hall, from, first)),
};

/// Handler of iperf2 without a header.
pub const LEGACY_SPEAKER: Speaker = Speaker {
    name: LEGACY_DIALECT.name,
    stream: Some(OnStream::Test(|caller, claim, connection| {
        stream(LEGACY_DIALECT.name, caller, claim, connection);
    })),
    datagrams: Some(|caller, claim, arrived| {
        udp::serve(LEGACY_DIALECT.name, caller, claim, arrived);
    }),
    turns_away: Some(|hall, from, first| udp::turns_away(LEGACY_DIALECT.name, hall, from, first)),
    ..SPEAKER
};

/// Time for the rest of a header to arrive.
const HEADER_PATIENCE: Duration = Duration::from_secs(5);

/// Time for a client to accept a second connection.
const DUAL_PATIENCE: Duration = Duration::from_secs(5);

/// Timeout of one attempt of that: a lost SYN is sent again after 1 s, and the server can stop
/// between two attempts.
const DUAL_TRY: Duration = Duration::from_secs(2);

/// Pause between two attempts.
const DUAL_AGAIN_NS: Nanos = 20_000_000;

/// Bytes of a write where the client announces none: the default of reference servers.
const WRITE_BYTES: usize = 128 << 10;

/// Alternative of a client to which no second connection is made.
const OTHERWISE: &str = "let it use --full-duplex or -R";

/// Flow number of the second connection, or of the reverse direction on the first one.
const BACK: u32 = 2;

fn stream(dialect: &'static str, mut caller: Caller, claim: Claim, connection: TcpStream) {
    let mut server = TcpServer::new();
    let stop = &caller.house.stop;
    let (job, behind) = match read_header(&mut server, &connection, stop) {
        Ok(read) => read,
        Err(how) => return caller.fruitless(dialect, &how),
    };
    let moved = Moved {
        totals: Totals {
            bytes: server.payload_bytes() + behind.len() as u64,
            calls: 1,
            ..Totals::default()
        },
        ..Moved::since(caller.came_ns)
    };
    match job {
        TcpJob::Plain => {
            let mut plan = plan(&caller, Protocol::Tcp, None);
            plan.duration_ns = None;
            let mut test = Test::begin(&mut caller, claim, dialect, dialect, plan);
            let spawned = test.spawn(1, Part::Sink, connection.into(), |context, socket| {
                receive_stream(context, socket, PLAIN_IDLE, moved)
            });
            test.conclude(spawned, FarReport::default);
        }
        TcpJob::Bounceback(questions) => bounce(caller, claim, connection, *questions, &behind),
        TcpJob::Test(settings) => {
            if let Err(error) = (&connection).write_all(server.outgoing()) {
                let how = format!("it closed the connection before the reply ({error})");
                return caller.fruitless(dialect, &how);
            }
            let plan = plan(&caller, Protocol::Tcp, Some(&settings));
            let agent = agent(&settings);
            let mut test = Test::begin(&mut caller, claim, dialect, &agent, plan);
            let spawned = run(&caller, &mut test, connection, &settings, (moved, behind));
            test.conclude(spawned, FarReport::default);
        }
    }
}

/// Reads the client's settings, and bytes received after them. Fails at the timeout, however often
/// single bytes arrive.
fn read_header(
    server: &mut TcpServer,
    connection: &TcpStream,
    stop: &AtomicBool,
) -> Result<(TcpJob, Vec<u8>), String> {
    let deadline = clock::now() + HEADER_PATIENCE.as_nanos() as u64;
    let gone = |error: std::io::Error| format!("its header was not received ({error})");
    connection.set_read_timeout(Some(LOOK_UP)).map_err(gone)?;
    let mut room = [0; 512];
    while clock::now() < deadline && !stop.load(Relaxed) {
        let bytes = match (&*connection).read(&mut room) {
            Err(error) if is_nothing(&error) => continue,
            read => read.map_err(gone)?,
        };
        let (taken, job) = server
            .receive(&room[..bytes], clock::real())
            .map_err(|error| error.to_string())?;
        if let Some(job) = job {
            return Ok((job, room[taken..bytes].to_vec()));
        }
        if bytes == 0 {
            // Too short for the header that it resembles, so it was payload.
            return Ok((TcpJob::Plain, Vec::new()));
        }
    }
    Err(format!(
        "its header was not complete after {} s",
        HEADER_PATIENCE.as_secs()
    ))
}

fn run(
    caller: &Caller,
    test: &mut Test,
    connection: TcpStream,
    settings: &Settings,
    (moved, behind): (Moved, Vec<u8>),
) -> Result<(), MeasureError> {
    let socket = Socket::from(connection);
    let system = |error| MeasureError::system("a second handle on a socket", error);
    if settings.way != Way::Reverse {
        let own = socket.try_clone().map_err(system)?;
        let timed = settings.trip_times;
        test.spawn(1, Part::Sink, own, move |context, socket| match timed {
            true => receive_timed(context, socket, moved, &behind),
            false => receive_stream(context, socket, IDLE, moved),
        })?;
    }
    if settings.way != Way::Forward {
        let id = if settings.way == Way::Both { BACK } else { 1 };
        send(test, id, socket, settings)?;
    }
    let Some(dual) = settings.dual else {
        return Ok(());
    };
    if dual == Dual::After {
        test.run_lanes();
        if test.is_cut() {
            return Ok(());
        }
        test.next_part();
    }
    let hall = &caller.house.hall;
    if !hall.may_connect_back(DIALECT.name, caller.peer, settings.port, OTHERWISE) {
        return Ok(());
    }
    let back = connect_back(caller, test, settings.port)?;
    send(test, BACK, back, settings)
}

/// Receives a connection whose writes carry send times; `behind` was received with the settings.
fn receive_timed(context: &Context, socket: &Socket, moved: Moved, behind: &[u8]) -> Moved {
    let mut writes = WriteTimes::new();
    let mut delays = Delays::new();
    let mut watch = |bytes: &[u8]| {
        writes.receive(bytes, clock::real(), |delay| delays.take(delay));
    };
    watch(behind);
    let mut moved = watch_stream(context, socket, IDLE, moved, watch);
    moved.delays = (!writes.is_lost()).then_some(delays);
    moved
}

/// Sends what the client requested, and closes the sending half.
fn send(test: &mut Test, id: u32, socket: Socket, settings: &Settings) -> Result<(), MeasureError> {
    let mut sending = sending(settings, WRITE_BYTES, test.limits());
    if settings.trip_times {
        // The time in front of a write applies to the whole write.
        sending.block_bytes = sending.piece_bytes();
    }
    // A second connection carries payload only.
    let settings = settings.clone();
    let told = move || {
        let stamps = WriteStamps::new(&settings, sending.block_bytes, clock::real());
        stamps.filter(|_| settings.dual.is_none())
    };
    test.reserve(sending.block_bytes as u64)?;
    test.spawn(
        id,
        Part::Source,
        socket,
        move |context: &Context, socket| {
            let mut digits = vec![0; sending.block_bytes];
            fill(&mut digits);
            let stamps = told();
            if let Some(stamps) = &stamps {
                // A failed early reply shows as a failed payload.
                let _ = (&*socket).write_all(stamps.reply());
            }
            let mut payload = Ring::new(digits).stamped(stamps);
            let moved = send_stream(context, from_ref(socket), &sending, &mut payload);
            let _ = socket.shutdown(std::net::Shutdown::Write);
            moved
        },
    )
}

/// Returns the send plan of the client's request.
fn sending(settings: &Settings, block: usize, limits: &Limits) -> Sending {
    let block = settings.buffer_bytes.map_or(block, |bytes| bytes as usize);
    // Bounds the memory for a block size that the client chose.
    let mut sending = Sending::new(block.min(1 << 20), IDLE);
    match settings.amount {
        Some(Amount::Bytes(bytes)) => sending.amount_bytes = Some(bytes),
        Some(Amount::Time(ns)) => sending.until_ns = Some(clock::now() + ns),
        None => {}
    }
    let bits = |rate: u64| match settings.rate_is_packets {
        true => rate.saturating_mul(sending.block_bytes as u64 * 8),
        false => rate,
    };
    sending.rate_bps = settings.rate.map(bits);
    sending.within(limits, settings.flows)
}

/// Connects to the client's own port. The client may start to listen a moment after its request, so
/// the connection is retried.
fn connect_back(caller: &Caller, test: &mut Test, port: u16) -> Result<Socket, MeasureError> {
    let to = at_port(caller.peer, port);
    let connect = || {
        if port == 0 {
            return Err(std::io::Error::other("its port is not from 1 to 65535"));
        }
        if caller.house.hall.is_own(to, caller.local.ip()) {
            return Err(std::io::Error::other(
                "its port is this server's own: choose another with -L",
            ));
        }
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
        socket.connect_timeout(&SockAddr::from(to), DUAL_TRY)?;
        Ok(socket)
    };
    let until = clock::now() + DUAL_PATIENCE.as_nanos() as u64;
    let is_early = |error: &std::io::Error| {
        let passes = matches!(
            error.kind(),
            std::io::ErrorKind::ConnectionRefused | std::io::ErrorKind::TimedOut
        );
        passes && clock::now() < until
    };
    loop {
        match connect() {
            Err(error) if is_early(&error) && test.limit().is_none() => {
                test.wait(clock::now() + DUAL_AGAIN_NS);
            }
            done => {
                return done.map_err(|error: std::io::Error| MeasureError::Vanished {
                    peer: to,
                    how: format!("it accepts no second connection ({error})"),
                });
            }
        }
    }
}

/// Returns the plan of the client's request.
fn plan(caller: &Caller, protocol: Protocol, settings: Option<&Settings>) -> Plan {
    let mut plan = super::plain::plan(caller, Kind::Throughput, protocol, Direction::Send);
    let Some(settings) = settings else {
        return plan;
    };
    plan.directions = match (settings.way, settings.dual) {
        (Way::Both, _) | (_, Some(_)) => vec![Direction::Send, Direction::Receive],
        (Way::Forward, None) => vec![Direction::Send],
        (Way::Reverse, None) => vec![Direction::Receive],
    };
    plan.in_turn = settings.dual == Some(Dual::After);
    match settings.amount {
        Some(Amount::Bytes(bytes)) => plan.amount_bytes = Some(bytes),
        Some(Amount::Time(ns)) => plan.duration_ns = Some(ns),
        None => {}
    }
    plan.payload_bytes = settings.buffer_bytes.map_or(0, u64::from);
    plan.rate_bps = settings.rate.filter(|_| !settings.rate_is_packets);
    plan.socket.tos = settings.tos;
    plan
}

fn agent(settings: &Settings) -> String {
    match settings.version {
        Some((upper, lower)) => {
            let (major, minor, patch) = (upper >> 16, upper & 0xffff, lower >> 16);
            format!("iperf {major}.{minor}.{patch}")
        }
        None => "iperf 2.0".to_owned(),
    }
}

/// Responds to bounceback requests.
fn bounce(
    mut caller: Caller,
    claim: Claim,
    connection: TcpStream,
    questions: bounceback::Server,
    behind: &[u8],
) {
    let mut plan = super::plain::plan(&caller, Kind::Latency, Protocol::Tcp, Direction::Send);
    plan.payload_bytes = questions.message_bytes() as u64;
    let mut machine = Bounce::new(questions);
    let came_ns = caller.came_ns;
    let mut test = Test::begin(&mut caller, claim, DIALECT.name, "iperf 2", plan);
    let mut rest = behind.to_vec();
    // Request and response.
    let room = test.reserve(2 * machine.server.message_bytes() as u64);
    let spawned = room.and_then(|()| {
        test.spawn(1, Part::Sink, connection.into(), move |context, socket| {
            machine.held = socket.try_clone().ok().map(|socket| Held {
                signals: Arc::clone(&context.signals),
                socket,
            });
            machine.answer_if_due();
            while !rest.is_empty() {
                // A first message in several reads; no client sends another request before the
                // response.
                match machine.receive(&rest) {
                    Ok(taken) if taken > 0 => drop(rest.drain(..taken)),
                    _ => break,
                }
            }
            let mut moved = answer_stream(context, socket, IDLE, came_ns, &mut machine);
            moved.totals.bytes += machine.began;
            moved
        })
    });
    test.conclude(spawned, FarReport::default);
}

/// Responder of iperf2 bounceback on a connection.
pub struct Bounce {
    server: bounceback::Server,
    /// Bytes of the first request that were received with the header.
    began: u64,
    answer: Vec<u8>,
    sent: usize,
    taken: u64,
    over: bool,
    /// State for delayed responses.
    held: Option<Held>,
}

/// State that a delayed response needs.
struct Held {
    /// Stop signals that end the delay.
    signals: Arc<Signals>,
    /// Connection on which the request is acknowledged.
    socket: Socket,
}

impl Bounce {
    /// Creates a responder for a client whose first request has started to arrive.
    #[must_use]
    pub fn new(questions: bounceback::Server) -> Self {
        Self {
            answer: Vec::with_capacity(questions.message_bytes()),
            began: bounceback::BEGINNING_BYTES as u64,
            server: questions,
            sent: 0,
            taken: 0,
            over: false,
            held: None,
        }
    }

    /// Sleeps for the delay that the client requested, in steps that check the stop signals.
    fn hold_back(&self, hold_ns: Nanos) {
        let held = self.held.as_ref();
        if self.server.wants_quick_ack()
            && let Some(held) = held
        {
            // An immediate response carries the acknowledgement. A delayed one would delay that,
            // and the client's kernel would measure the delay as round-trip time.
            let _ = held.socket.set_tcp_quickack(true);
        }
        let is_over = || held.is_some_and(|held| held.signals.closed.load(Relaxed));
        let until = clock::now() + hold_ns;
        while clock::now() < until && !is_over() {
            clock::sleep_until(until.min(clock::now() + LOOK_UP.as_nanos() as u64));
        }
    }

    fn answer_if_due(&mut self) {
        self.over = self.server.is_over();
        if !self.server.is_due() {
            return;
        }
        match self.server.hold_ns() {
            0 => {}
            hold_ns => self.hold_back(hold_ns),
        }
        self.answer.clear();
        self.sent = 0;
        self.answer
            .extend_from_slice(self.server.answer(clock::real()));
        self.server.answered();
    }
}

impl Answers for Bounce {
    fn receive(&mut self, bytes: &[u8]) -> Result<usize, String> {
        if !self.outgoing().is_empty() || self.over {
            return Ok(0);
        }
        let taken = self.server.receive(bytes, clock::real());
        self.taken += taken as u64;
        self.answer_if_due();
        Ok(taken)
    }

    fn outgoing(&self) -> &[u8] {
        &self.answer[self.sent..]
    }

    fn sent(&mut self, bytes: usize) {
        self.sent += bytes;
    }

    fn totals(&self) -> Totals {
        Totals {
            bytes: self.taken,
            packets: self.server.answers(),
            ..Totals::default()
        }
    }

    fn answered(&self) -> Option<u64> {
        Some(self.server.answers())
    }

    fn is_over(&self) -> bool {
        self.over
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_question_whose_answer_is_held_back_is_acknowledged_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = Socket::from(listener.accept().unwrap().0);
        for (hold_us, quick) in [(0, false), (1, true)] {
            let mut client = bounceback::Client::new(100, hold_us).unwrap();
            let question = client.question(1).to_vec();
            let mut bounce = Bounce::new(bounceback::Server::new(&question).unwrap());
            bounce.held = Some(Held {
                signals: Arc::default(),
                socket: socket.try_clone().unwrap(),
            });
            // As the kernel sets it on a request/response connection.
            socket.set_tcp_quickack(false).unwrap();
            assert_eq!(bounce.receive(&question), Ok(100));
            assert_eq!(bounce.outgoing().len(), 100);
            assert_eq!(socket.tcp_quickack().unwrap(), quick, "{hold_us}");
        }
    }
}
