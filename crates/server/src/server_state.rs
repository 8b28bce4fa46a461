//! State shared by all connections of one server, and the guards that release what a test reserved.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use linerate_protocol::control::{FlowToken, PresharedKey, Reject};
use linerate_record::event::ErrorReport;
use linerate_record::exit_codes;
use linerate_record::plan::TransportProtocol;
use linerate_session::descriptor_limit;
use linerate_session::error::SessionError;
use linerate_session::loss::LabNetwork;
use linerate_session::remote_settings::RemoteTuning;
use linerate_stack::SocketId;
use linerate_stats::units::format_bytes;
use linerate_sys::clock;
use linerate_sys::clock::Nanos;

use crate::client_shares::{NoTest, SessionShares, TestShares};
use crate::interop_state::InteropState;
use crate::limits::{
    INTEROP_SOCKET_LIMIT, MEMORY_LIMIT, RESERVED_SOCKETS_PER_TEST, SERVICE_PORT_LIMIT, TEST_LIMIT,
};
use crate::options::{EventCallback, Grant, ServerOptions};
use crate::test_rejection::{RETRY_LATER, TestRejection};

/// Time that a test may take to end after its client has disconnected.
const TEST_END_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause between two checks for a free test.
const TEST_END_POLL: Duration = Duration::from_millis(5);

/// Flow that was announced to the client and has not arrived yet.
pub struct AnnouncedFlow {
    pub id: u32,
    pub protocol: TransportProtocol,
    /// Address of this host that the client reached; replies to its UDP flows leave from there.
    pub local: SocketAddr,
    /// Source address of the control connection. UDP from any other address is ignored, so that a
    /// client cannot make this host send to a third one.
    pub peer: IpAddr,
    pub sockets: mpsc::Sender<(u32, AcceptedSocket)>,
}

/// Socket of a flow that has arrived.
pub enum AcceptedSocket {
    Kernel(OwnedFd),
    /// Socket of the user-space stack.
    Netstack(SocketId),
    /// No socket: the user-space stack has this many, and all are in use.
    Exhausted(u32),
}

/// State shared by all connections of one server: options, admission counters, announced flows.
pub struct ServerState {
    /// Shared secret that clients must prove; absent: no authentication.
    pub key: Option<PresharedKey>,
    pub emit: EventCallback,
    /// Set when the server is to stop.
    pub stop: Arc<AtomicBool>,
    /// Serve one test, then end.
    pub single_test: bool,
    /// Privileges that remote clients may request.
    pub grants: Vec<Grant>,
    /// Applies settings that clients request; `None` without [`Grant::Tune`].
    pub tuning: Option<RemoteTuning>,
    /// Port of the server.
    pub port: u16,
    /// Interface that the server is bound to.
    pub interface: Option<String>,
    /// Network around the server, where its counters are readable (lab).
    pub network: Option<Arc<LabNetwork>>,
    /// State of tests with clients of other tools.
    pub interop: InteropState,
    /// Set when the single test has ended.
    pub finished: AtomicBool,
    /// Error that ended the single test.
    pub failure: Mutex<Option<SessionError>>,
    announced_flows: Mutex<HashMap<FlowToken, AnnouncedFlow>>,
    /// Control connections that have not started a test.
    beginnings: SessionShares,
    running_tests: Mutex<TestShares>,
    last_test: AtomicU32,
    /// Bytes reserved by all running tests.
    memory_bytes: AtomicU64,
    threads: AtomicUsize,
    /// Threads that generate CPU load (`--load cpu`); part of `threads`.
    load_threads: AtomicUsize,
    /// Ports in use by flows that have one of their own.
    flow_ports: AtomicUsize,
    /// Sockets of tests with clients of other tools.
    interop_sockets: AtomicUsize,
    /// A test traces the machine's scheduler.
    tracing: AtomicBool,
    /// A client has reserved the single test.
    single_test_taken: AtomicBool,
}

/// Adds to a counter unless the sum would exceed its limit; true when it was added.
macro_rules! try_add {
    ($counter:expr, $more:expr, $limit:expr) => {
        $counter
            .fetch_update(Relaxed, Relaxed, |now| {
                now.checked_add($more).filter(|&sum| sum <= $limit)
            })
            .is_ok()
    };
}

impl ServerState {
    /// Creates the state of a server that listens on the port in `options`.
    pub fn new(
        options: ServerOptions,
        emit: EventCallback,
        stop: Arc<AtomicBool>,
        network: Option<Arc<LabNetwork>>,
    ) -> Self {
        Self {
            key: options.key,
            emit,
            stop,
            single_test: options.single_test,
            tuning: (options.tuning).filter(|_| options.grants.contains(&Grant::Tune)),
            grants: options.grants,
            port: options.port,
            interface: options.interface,
            network,
            interop: InteropState::default(),
            finished: AtomicBool::new(false),
            failure: Mutex::new(None),
            announced_flows: Mutex::default(),
            beginnings: SessionShares::default(),
            running_tests: Mutex::default(),
            last_test: AtomicU32::new(0),
            memory_bytes: AtomicU64::new(0),
            threads: AtomicUsize::new(0),
            load_threads: AtomicUsize::new(0),
            flow_ports: AtomicUsize::new(0),
            interop_sockets: AtomicUsize::new(0),
            tracing: AtomicBool::new(false),
            single_test_taken: AtomicBool::new(false),
        }
    }

    /// Sets the state of tests with clients of other tools.
    #[must_use]
    pub fn with_interop(self, interop: InteropState) -> Self {
        Self { interop, ..self }
    }

    /// Returns a permit for one control connection of a client; `None` while there is none for its
    /// address. `stream` returns a handle that ends a connection without a test.
    pub fn acquire_permit(
        self: &Arc<Self>,
        client: IpAddr,
        stream: impl FnOnce() -> Option<TcpStream>,
    ) -> Option<SessionPermit> {
        let id = self.beginnings.add(clock::now(), client, stream)?;
        Some(SessionPermit {
            server: Arc::clone(self),
            id,
        })
    }

    fn test_shares(&self) -> MutexGuard<'_, TestShares> {
        self.running_tests
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves a test for a client.
    ///
    /// # Errors
    /// The limit that prevents it.
    pub fn reserve_test(
        self: &Arc<Self>,
        client: IpAddr,
    ) -> Result<TestReservation, TestRejection> {
        let rejection = |situation: String, next: &str| Reject {
            problem: ErrorReport::new(situation, self.description(), next),
            exit_code: exit_codes::PEER,
            retryable: true,
        };
        if self.single_test && self.single_test_taken.swap(true, Relaxed) {
            let rejection = rejection(
                "it serves a single test, and another client runs it".to_owned(),
                "start a server without -1",
            );
            return Err(TestRejection::new(rejection, "start it without -1"));
        }
        let limit = self
            .interop
            .max_tests()
            .unwrap_or(TEST_LIMIT)
            .min(TEST_LIMIT);
        let mut shares = self.test_shares();
        if let Err(reason) = shares.add(client, limit) {
            // Its place is free a moment later.
            shares.end_silent(clock::now(), client, reason);
            // No other client holds the single test.
            self.single_test_taken.store(false, Relaxed);
            let rejection = rejection(
                match (reason, limit) {
                    (NoTest::Reserved { own }, _) => format!(
                        "it already runs {own} tests of this address, and keeps the others for \
                         other addresses"
                    ),
                    (NoTest::Full, 1) => "it already runs a test".to_owned(),
                    (NoTest::Full, _) => format!("it already runs {limit} tests"),
                },
                "try again later, or with --retry 30s",
            );
            let remedy = match limit < TEST_LIMIT {
                true => "a higher --max-tests",
                false => RETRY_LATER,
            };
            return Err(TestRejection::new(rejection, remedy));
        }
        drop(shares);
        Ok(TestReservation {
            server: Arc::clone(self),
            client,
            may_be_ended: false,
            endable: None,
            number: self.last_test.fetch_add(1, Relaxed) + 1,
            started: false,
            number_shown: false,
            memory_bytes: 0,
            threads: 0,
            load_threads: 0,
            flow_ports: 0,
            interop_sockets: 0,
            traces: false,
            tokens: Vec::new(),
        })
    }

    /// Reserves a test; waits a moment while all are in use. For sessions that have their own
    /// thread.
    ///
    /// A test ends a little after its client has received the results and disconnected. The client
    /// may start its next test at once.
    ///
    /// # Errors
    /// As [`ServerState::reserve_test`].
    pub fn wait_for_test(
        self: &Arc<Self>,
        client: IpAddr,
    ) -> Result<TestReservation, TestRejection> {
        let deadline = Instant::now() + TEST_END_TIMEOUT;
        loop {
            let reserved = self.reserve_test(client);
            let give_up = Instant::now() >= deadline || self.stop.load(Relaxed);
            if reserved.is_ok() || self.single_test || give_up {
                return reserved;
            }
            thread::sleep(TEST_END_POLL);
        }
    }

    /// Threads of all running tests.
    pub fn busy_threads(&self) -> usize {
        self.threads.load(Relaxed)
    }

    /// Gives the announced flow of this token the socket that `open` returns; without one it stays
    /// announced.
    pub fn deliver_socket(
        &self,
        token: FlowToken,
        open: impl FnOnce(&AnnouncedFlow) -> Option<AcceptedSocket>,
    ) {
        let mut flows = self.announced_flows.lock().expect("no holder panics");
        let Some(socket) = flows.get(&token).and_then(open) else {
            return;
        };
        if let Some(flow) = flows.remove(&token) {
            // The session may have ended meanwhile; then the socket just closes.
            let _ = flow.sockets.send((flow.id, socket));
        }
    }

    fn description(&self) -> String {
        format!("server port {}", self.port)
    }
}

/// Permit for one control connection that has not started a test; released on drop.
pub struct SessionPermit {
    server: Arc<ServerState>,
    id: u64,
}

impl SessionPermit {
    /// Records that the client has proved the server's key.
    pub fn prove(&self) {
        self.server.beginnings.prove(self.id);
    }
}

impl Drop for SessionPermit {
    fn drop(&mut self) {
        self.server.beginnings.remove(self.id);
    }
}

/// Reservation of one test and its resources; released on drop.
pub struct TestReservation {
    server: Arc<ServerState>,
    client: IpAddr,
    /// It may be ended while it is silent and another test needs its place: it began without a
    /// handshake.
    pub may_be_ended: bool,
    /// Its number among these.
    endable: Option<u64>,
    /// Number of the test.
    pub number: u32,
    /// Payload was sent or received.
    pub started: bool,
    /// The number was printed, so that no later test may reuse it.
    pub number_shown: bool,
    memory_bytes: u64,
    threads: usize,
    load_threads: usize,
    flow_ports: usize,
    interop_sockets: usize,
    traces: bool,
    tokens: Vec<FlowToken>,
}

impl TestReservation {
    /// Passes what ends the test, if it may be ended.
    pub fn set_end(&mut self, end_if_silent: impl Fn(Nanos) -> bool + Send + 'static) {
        if self.may_be_ended && self.endable.is_none() {
            let mut shares = self.server.test_shares();
            self.endable = Some(shares.add_endable(self.client, Box::new(end_if_silent)));
        }
    }

    /// Reserves memory and threads; `bytes` is `None` when the size overflows.
    ///
    /// # Errors
    /// The limit that is exceeded.
    pub fn reserve(&mut self, bytes: Option<u64>, threads: usize) -> Result<(), Reject> {
        let needed = bytes.filter(|&bytes| bytes <= MEMORY_LIMIT);
        let limit = format_bytes(MEMORY_LIMIT);
        let Some(needed) = needed else {
            return Err(Reject {
                problem: ErrorReport::new(
                    format!(
                        "the test needs {} on the server, and all tests together may use {limit}",
                        bytes.map_or("too much memory".to_owned(), format_bytes)
                    ),
                    self.server.description(),
                    "use fewer flows (-P), or shorter calls (-l)",
                ),
                exit_code: exit_codes::USAGE,
                retryable: false,
            });
        };
        if !try_add!(self.server.memory_bytes, needed, MEMORY_LIMIT) {
            return Err(self.busy(format!(
                "the test needs {} on the server, and other tests use most of the {limit} for all",
                format_bytes(needed)
            )));
        }
        self.memory_bytes += needed;
        self.server.threads.fetch_add(threads, Relaxed);
        self.threads += threads;
        Ok(())
    }

    /// Reserves CPU load threads (`--load cpu`), up to the number of `processors`.
    ///
    /// # Errors
    /// The limit that is exceeded.
    pub fn reserve_load_threads(
        &mut self,
        threads: usize,
        processors: usize,
    ) -> Result<(), Reject> {
        if threads > processors {
            return Err(Reject {
                problem: ErrorReport::new(
                    format!(
                        "it has {processors} CPUs for load threads, and {threads} are requested"
                    ),
                    self.server.description(),
                    format!("use --load cpu:THREADS/{processors} at most"),
                ),
                exit_code: exit_codes::USAGE,
                retryable: false,
            });
        }
        if !try_add!(self.server.load_threads, threads, processors) {
            return Err(self.busy("other tests use its CPUs for load threads".to_owned()));
        }
        self.load_threads += threads;
        self.server.threads.fetch_add(threads, Relaxed);
        self.threads += threads;
        Ok(())
    }

    /// Reserves ports for flows that have one each.
    ///
    /// # Errors
    /// The limit that is exceeded.
    pub fn reserve_ports(&mut self, flows: usize) -> Result<(), Reject> {
        if !try_add!(self.server.flow_ports, flows, SERVICE_PORT_LIMIT) {
            return Err(self.busy(format!(
                "at most {SERVICE_PORT_LIMIT} flows may have a port of their own, and other tests use \
                 most of them"
            )));
        }
        self.flow_ports += flows;
        Ok(())
    }

    /// Reserves sockets and descriptors for a test with a client of another tool, before its
    /// threads start.
    ///
    /// # Errors
    /// The limit that is exceeded.
    pub fn reserve_sockets(&mut self, flows: usize) -> Result<(), TestRejection> {
        // A client announces many flows before it opens them. Large tests leave enough sockets for
        // `RESERVED_SOCKETS_PER_TEST` in each test.
        let limit = match flows <= RESERVED_SOCKETS_PER_TEST {
            true => INTEROP_SOCKET_LIMIT,
            false => INTEROP_SOCKET_LIMIT - TEST_LIMIT * RESERVED_SOCKETS_PER_TEST,
        };
        if !try_add!(self.server.interop_sockets, flows, limit) {
            let reply = self.busy(format!(
                "its {flows} flows and those of other tests exceed the limit of {limit}"
            ));
            return Err(TestRejection::new(reply, RETRY_LATER));
        }
        self.interop_sockets += flows;
        match descriptor_limit::exceeds_limit(flows) {
            None => Ok(()),
            Some((needed, limit)) => Err(self.too_few_files(flows, needed, limit)),
        }
    }

    fn too_few_files(&self, flows: usize, needed: usize, limit: usize) -> TestRejection {
        let reply = self.busy(format!(
            "its {flows} flows need {needed} open files, and the limit is {limit}"
        ));
        TestRejection::new(
            reply,
            format!(
                "start the server behind `ulimit -n {needed}` (root: also above the hard limit)"
            ),
        )
    }

    /// Reserves tracing of the machine, for one test at a time; returns whether it was free.
    #[must_use]
    pub fn acquire_tracing(&mut self) -> bool {
        self.traces = self.traces || !self.server.tracing.swap(true, Relaxed);
        self.traces
    }

    /// Rejection that may pass when other tests end.
    fn busy(&self, situation: String) -> Reject {
        Reject {
            problem: ErrorReport::new(
                situation,
                self.server.description(),
                "try again later, or with --retry 30s",
            ),
            exit_code: exit_codes::PEER,
            retryable: true,
        }
    }

    /// Adds a flow whose socket is to arrive.
    pub fn announce_flow(&mut self, token: FlowToken, flow: AnnouncedFlow) {
        self.tokens.push(token);
        let mut announced = self
            .server
            .announced_flows
            .lock()
            .expect("no holder panics");
        announced.insert(token, flow);
    }

    /// Removes its announced flows: a socket that arrives later is closed.
    pub fn withdraw_flows(&mut self) {
        if let Ok(mut announced) = self.server.announced_flows.lock() {
            for token in self.tokens.drain(..) {
                announced.remove(&token);
            }
        }
    }
}

impl Drop for TestReservation {
    fn drop(&mut self) {
        self.withdraw_flows();
        let server = &self.server;
        server.memory_bytes.fetch_sub(self.memory_bytes, Relaxed);
        server.threads.fetch_sub(self.threads, Relaxed);
        server.load_threads.fetch_sub(self.load_threads, Relaxed);
        server.flow_ports.fetch_sub(self.flow_ports, Relaxed);
        server
            .interop_sockets
            .fetch_sub(self.interop_sockets, Relaxed);
        if self.traces {
            server.tracing.store(false, Relaxed);
        }
        if !self.started && !self.number_shown {
            // Reuses the number for the next test, unless a later test has started.
            let _ =
                server
                    .last_test
                    .compare_exchange(self.number, self.number - 1, Relaxed, Relaxed);
        }
        let mut shares = server.test_shares();
        shares.remove(self.client);
        if let Some(id) = self.endable {
            shares.remove_endable(id);
        }
        drop(shares);
        if server.single_test {
            if self.started {
                server.finished.store(true, Relaxed);
            } else {
                // No payload moved: the single test is available again.
                server.single_test_taken.store(false, Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::SESSION_PERMIT_LIMIT;

    fn server(once: bool) -> Arc<ServerState> {
        let emit: EventCallback = Arc::new(|_| {});
        let options = ServerOptions {
            port: 1,
            single_test: once,
            ..ServerOptions::default()
        };
        Arc::new(ServerState::new(options, emit, Arc::default(), None))
    }

    /// Address of another client for each number.
    fn client(number: usize) -> IpAddr {
        IpAddr::from([10, 0, (number >> 8) as u8, number as u8])
    }

    #[test]
    fn permits_are_released_on_drop() {
        let server = server(false);
        let acquire = |number| server.acquire_permit(client(number), || None);
        let mut permits: Vec<_> = (0..SESSION_PERMIT_LIMIT)
            .map(|number| acquire(number).unwrap())
            .collect();
        assert!(acquire(1_000).is_none());
        permits.pop();
        assert!(acquire(1_000).is_some());
    }

    #[test]
    fn tests_have_a_limit_that_passes() {
        let server = server(false);
        let reservations: Vec<_> = (0..TEST_LIMIT)
            .map(|number| server.reserve_test(client(number)).unwrap())
            .collect();
        let rejection = server.reserve_test(client(0)).err().unwrap();
        assert!(rejection.reply.retryable);
        drop(reservations);
        assert!(server.reserve_test(client(0)).is_ok());
    }

    #[test]
    fn a_rejection_names_what_would_allow_the_test() {
        let full = server(false);
        let _claims: Vec<_> = (0..TEST_LIMIT)
            .map(|number| full.reserve_test(client(number)).unwrap())
            .collect();
        assert_eq!(
            full.reserve_test(client(0)).err().unwrap().remedy,
            RETRY_LATER
        );
        let once = server(true);
        let reservation = once.reserve_test(client(0)).unwrap();
        assert_eq!(
            once.reserve_test(client(0)).err().unwrap().remedy,
            "start it without -1"
        );
        let rejection = reservation.too_few_files(128, 1_234, 1_024);
        assert!(
            rejection.remedy.contains("`ulimit -n 1234`"),
            "{}",
            rejection.remedy
        );
        assert!(rejection.reply.problem.situation.contains("limit is 1024"));
    }

    #[test]
    fn the_next_test_waits_for_the_end_of_the_last() {
        let server = server(false);
        let mut reservations: Vec<_> = (0..TEST_LIMIT)
            .map(|number| server.reserve_test(client(number)).unwrap())
            .collect();
        let last = reservations.pop().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(50));
                drop(last);
            });
            assert!(server.wait_for_test(client(0)).is_ok());
        });
        // The wait is bounded.
        reservations.push(server.reserve_test(client(0)).unwrap());
        assert!(
            server
                .wait_for_test(client(0))
                .err()
                .unwrap()
                .reply
                .retryable
        );
    }

    #[test]
    fn memory_is_shared_and_given_back() {
        let server = server(false);
        let mut first = server.reserve_test(client(0)).unwrap();
        let mut second = server.reserve_test(client(0)).unwrap();
        first.reserve(Some(MEMORY_LIMIT - 10), 3).unwrap();
        assert_eq!(server.busy_threads(), 3);
        assert!(second.reserve(Some(11), 1).unwrap_err().retryable);
        assert!(
            !second
                .reserve(Some(MEMORY_LIMIT + 1), 1)
                .unwrap_err()
                .retryable
        );
        assert!(!second.reserve(None, 1).unwrap_err().retryable);
        second.reserve(Some(10), 1).unwrap();
        drop(first);
        second.reserve(Some(MEMORY_LIMIT - 10), 1).unwrap();
        drop(second);
        assert_eq!(server.busy_threads(), 0);
        assert_eq!(server.memory_bytes.load(Relaxed), 0);
    }

    #[test]
    fn processors_ports_and_the_view_of_the_machine_are_shared() {
        let server = server(false);
        let mut first = server.reserve_test(client(0)).unwrap();
        let mut second = server.reserve_test(client(0)).unwrap();
        assert!(!first.reserve_load_threads(5, 4).unwrap_err().retryable);
        first.reserve_load_threads(3, 4).unwrap();
        assert_eq!(server.busy_threads(), 3);
        assert!(second.reserve_load_threads(2, 4).unwrap_err().retryable);
        second.reserve_load_threads(1, 4).unwrap();
        first.reserve_ports(SERVICE_PORT_LIMIT - 1).unwrap();
        assert!(second.reserve_ports(2).unwrap_err().retryable);
        let many = INTEROP_SOCKET_LIMIT / 32;
        while first.reserve_sockets(many).is_ok() {}
        assert!(second.reserve_sockets(many).unwrap_err().reply.retryable);
        // Every possible test finds sockets for a few flows.
        for _ in 0..TEST_LIMIT {
            second.reserve_sockets(RESERVED_SOCKETS_PER_TEST).unwrap();
        }
        assert!(first.acquire_tracing() && first.acquire_tracing());
        assert!(!second.acquire_tracing());
        drop(first);
        second.reserve_ports(SERVICE_PORT_LIMIT).unwrap();
        second.reserve_load_threads(3, 4).unwrap();
        assert!(second.acquire_tracing());
        drop(second);
        assert_eq!(server.busy_threads(), 0);
        let mut third = server.reserve_test(client(0)).unwrap();
        third.reserve_load_threads(4, 4).unwrap();
        third.reserve_ports(SERVICE_PORT_LIMIT).unwrap();
        assert!(third.acquire_tracing());
    }

    #[test]
    fn a_number_that_was_shown_is_not_reused() {
        let server = server(false);
        let number = |shown| {
            let mut reservation = server.reserve_test(client(0)).unwrap();
            reservation.number_shown = shown;
            reservation.number
        };
        assert_eq!([number(false), number(true), number(false)], [1, 1, 2]);
    }

    #[test]
    fn the_one_test_is_free_again_until_it_began() {
        let server = server(true);
        let reservation = server.reserve_test(client(0)).unwrap();
        assert!(server.reserve_test(client(0)).is_err());
        drop(reservation);
        assert!(!server.finished.load(Relaxed));
        let panicked = std::thread::spawn({
            let server = Arc::clone(&server);
            move || {
                let mut reservation = server.reserve_test(client(0)).unwrap();
                reservation.started = true;
                panic!("as a bug would");
            }
        });
        assert!(panicked.join().is_err());
        assert!(
            server.finished.load(Relaxed),
            "the server does not wait for ever"
        );
    }
}
