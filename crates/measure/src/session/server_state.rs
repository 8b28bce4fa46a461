//! State shared by all connections of one server, and the guards that release what a test reserved.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use linerate_dialect::control::{Key, Refuse, Token};
use linerate_metric::event::Problem;
use linerate_metric::exit;
use linerate_metric::plan::Protocol;
use linerate_metric::units::format_bytes;
use linerate_stack::SocketId;

use super::descriptor_limit;
use super::limits::{
    FEW_SOCKETS, MEMORY_LIMIT, SERVICE_LIMIT, SOCKET_LIMIT, TALK_LIMIT, TEST_LIMIT,
};
use super::server::{Emit, Grant, ServerOptions};
use super::settings::Maker;
use crate::error::MeasureError;
use crate::interop::handlers::Hall;
use crate::loss::Network;

/// Time that a test may take to end after its client has disconnected.
const END_PATIENCE: Duration = Duration::from_secs(1);
/// Pause between two checks for a free test.
const END_LOOK: Duration = Duration::from_millis(5);

/// Flow that was announced to the client and has not arrived yet.
pub struct Waiting {
    pub id: u32,
    pub protocol: Protocol,
    /// Address of this host that the client reached; replies to its UDP flows leave from there.
    pub local: SocketAddr,
    /// Source address of the control connection. UDP from any other address is ignored, so that a
    /// client cannot make this host send to a third one.
    pub peer: IpAddr,
    pub arrived: mpsc::Sender<(u32, Arrival)>,
}

/// Socket of a flow that has arrived.
pub enum Arrival {
    Kernel(OwnedFd),
    /// Socket of the user-space stack.
    Stack(SocketId),
    /// No socket: the user-space stack has this many, and all are in use.
    NoneLeft(u32),
}

/// State shared by all connections of one server: options, admission counters, announced flows.
pub struct House {
    /// Shared secret that clients must prove; absent: no authentication.
    pub key: Option<Key>,
    pub emit: Emit,
    /// Set when the server is to stop.
    pub stop: Arc<AtomicBool>,
    /// Serve one test, then end.
    pub once: bool,
    /// Privileges that remote clients may request.
    pub grants: Vec<Grant>,
    /// Applies settings that clients request; `None` without [`Grant::Tune`].
    pub settings: Option<Maker>,
    /// Port of the server.
    pub port: u16,
    /// Interface that the server is bound to.
    pub interface: Option<String>,
    /// Network around the server, where its counters are readable (lab).
    pub network: Option<Arc<Network>>,
    /// State of tests with clients of other tools.
    pub hall: Hall,
    /// Set when the single test has ended.
    pub over: AtomicBool,
    /// Error that ended the single test.
    pub failure: Mutex<Option<MeasureError>>,
    announced: Mutex<HashMap<Token, Waiting>>,
    /// Session permits in use: control connections that have not started a test.
    talks: AtomicUsize,
    running: AtomicUsize,
    tests: AtomicU32,
    /// Bytes reserved by all running tests.
    memory: AtomicU64,
    threads: AtomicUsize,
    /// Threads that generate CPU load (`--load cpu`); part of `threads`.
    burning: AtomicUsize,
    /// Ports in use by flows that have one of their own.
    ports: AtomicUsize,
    /// Sockets of tests with clients of other tools.
    sockets: AtomicUsize,
    /// A test traces the machine's scheduler.
    watched: AtomicBool,
    /// A client has reserved the single test.
    taken: AtomicBool,
}

/// Rejection of a test.
#[derive(Debug)]
pub struct Denied {
    /// Reply to the client.
    pub refuse: Refuse,
    /// Change of the server's options or limits that would allow the test.
    pub remedy: String,
}

impl Denied {
    fn new(refuse: Refuse, remedy: impl Into<String>) -> Self {
        let remedy = remedy.into();
        Self { refuse, remedy }
    }
}

impl From<Denied> for Refuse {
    fn from(denied: Denied) -> Self {
        denied.refuse
    }
}

/// Remedy for a limit that other tests have reached.
const WAIT: &str = "the client can retry when other tests have ended";

/// Adds to a counter unless the sum would exceed its limit; true when it was added.
macro_rules! take {
    ($counter:expr, $more:expr, $limit:expr) => {
        $counter
            .fetch_update(Relaxed, Relaxed, |now| {
                now.checked_add($more).filter(|&sum| sum <= $limit)
            })
            .is_ok()
    };
}

impl House {
    /// Creates the state of a server that listens on the port in `options`.
    pub fn new(
        options: ServerOptions,
        emit: Emit,
        stop: Arc<AtomicBool>,
        network: Option<Arc<Network>>,
    ) -> Self {
        Self {
            key: options.key,
            emit,
            stop,
            once: options.once,
            settings: (options.settings).filter(|_| options.grants.contains(&Grant::Tune)),
            grants: options.grants,
            port: options.port,
            interface: options.interface,
            network,
            hall: Hall::default(),
            over: AtomicBool::new(false),
            failure: Mutex::new(None),
            announced: Mutex::default(),
            talks: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            tests: AtomicU32::new(0),
            memory: AtomicU64::new(0),
            threads: AtomicUsize::new(0),
            burning: AtomicUsize::new(0),
            ports: AtomicUsize::new(0),
            sockets: AtomicUsize::new(0),
            watched: AtomicBool::new(false),
            taken: AtomicBool::new(false),
        }
    }

    /// Sets the state of tests with clients of other tools.
    #[must_use]
    pub fn with_hall(self, hall: Hall) -> Self {
        Self { hall, ..self }
    }

    /// Returns a permit for one control connection; `None` when all are in use.
    pub fn seat(self: &Arc<Self>) -> Option<Seat> {
        take!(self.talks, 1, TALK_LIMIT).then(|| Seat(Arc::clone(self)))
    }

    /// Reserves a test.
    ///
    /// # Errors
    /// The limit that prevents it.
    pub fn claim(self: &Arc<Self>) -> Result<Claim, Denied> {
        let refuse = |situation: String, next: &str| Refuse {
            problem: Problem::new(situation, self.address(), next),
            exit_code: exit::PEER,
            may_pass: true,
        };
        if self.once && self.taken.swap(true, Relaxed) {
            let refuse = refuse(
                "it serves a single test, and another client runs it".to_owned(),
                "start a server without -1",
            );
            return Err(Denied::new(refuse, "start it without -1"));
        }
        let limit = self.hall.max_tests().unwrap_or(TEST_LIMIT).min(TEST_LIMIT);
        if !take!(self.running, 1, limit) {
            // Only one test can run, so no other client holds the single test.
            self.taken.store(false, Relaxed);
            let refuse = refuse(
                match limit {
                    1 => "it already runs a test".to_owned(),
                    _ => format!("it already runs {limit} tests"),
                },
                "try again later, or with --retry 30s",
            );
            let remedy = match limit < TEST_LIMIT {
                true => "a higher --max-tests",
                false => WAIT,
            };
            return Err(Denied::new(refuse, remedy));
        }
        Ok(Claim {
            house: Arc::clone(self),
            test: self.tests.fetch_add(1, Relaxed) + 1,
            began: false,
            shown: false,
            memory: 0,
            threads: 0,
            burning: 0,
            ports: 0,
            sockets: 0,
            watches: false,
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
    /// As [`House::claim`].
    pub fn claim_soon(self: &Arc<Self>) -> Result<Claim, Denied> {
        let until = Instant::now() + END_PATIENCE;
        loop {
            let claim = self.claim();
            let late = Instant::now() >= until || self.stop.load(Relaxed);
            if claim.is_ok() || self.once || late {
                return claim;
            }
            thread::sleep(END_LOOK);
        }
    }

    /// Threads of all running tests.
    pub fn busy_threads(&self) -> usize {
        self.threads.load(Relaxed)
    }

    /// Gives the announced flow of this token the socket that `open` returns; without one it stays
    /// announced.
    pub fn admit(&self, token: Token, open: impl FnOnce(&Waiting) -> Option<Arrival>) {
        let mut announced = self.announced.lock().expect("no holder panics");
        let Some(socket) = announced.get(&token).and_then(open) else {
            return;
        };
        if let Some(waiting) = announced.remove(&token) {
            // The session may have ended meanwhile; then the socket just closes.
            let _ = waiting.arrived.send((waiting.id, socket));
        }
    }

    fn address(&self) -> String {
        format!("server port {}", self.port)
    }
}

/// Permit for one control connection that has not started a test; released on drop.
pub struct Seat(Arc<House>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.talks.fetch_sub(1, Relaxed);
    }
}

/// Reservation of one test and its resources; released on drop.
pub struct Claim {
    house: Arc<House>,
    /// Number of the test.
    pub test: u32,
    /// Payload was sent or received.
    pub began: bool,
    /// The number was printed, so that no later test may reuse it.
    pub shown: bool,
    memory: u64,
    threads: usize,
    burning: usize,
    ports: usize,
    sockets: usize,
    watches: bool,
    tokens: Vec<Token>,
}

impl Claim {
    /// Reserves memory and threads; `bytes` is `None` when the size overflows.
    ///
    /// # Errors
    /// The limit that is exceeded.
    pub fn reserve(&mut self, bytes: Option<u64>, threads: usize) -> Result<(), Refuse> {
        let wanted = bytes.filter(|&bytes| bytes <= MEMORY_LIMIT);
        let limit = format_bytes(MEMORY_LIMIT);
        let Some(wanted) = wanted else {
            return Err(Refuse {
                problem: Problem::new(
                    format!(
                        "the test needs {} on the server, and all tests together may use {limit}",
                        bytes.map_or("too much memory".to_owned(), format_bytes)
                    ),
                    self.house.address(),
                    "use fewer streams (-P), or shorter calls (-l)",
                ),
                exit_code: exit::USAGE,
                may_pass: false,
            });
        };
        if !take!(self.house.memory, wanted, MEMORY_LIMIT) {
            return Err(self.later(format!(
                "the test needs {} on the server, and other tests use most of the {limit} for all",
                format_bytes(wanted)
            )));
        }
        self.memory += wanted;
        self.house.threads.fetch_add(threads, Relaxed);
        self.threads += threads;
        Ok(())
    }

    /// Reserves CPU load threads (`--load cpu`), up to the number of `processors`.
    ///
    /// # Errors
    /// The limit that is exceeded.
    pub fn burn(&mut self, threads: usize, processors: usize) -> Result<(), Refuse> {
        if threads > processors {
            return Err(Refuse {
                problem: Problem::new(
                    format!(
                        "it has {processors} CPUs for load threads, and {threads} are requested"
                    ),
                    self.house.address(),
                    format!("use --load cpu:THREADS/{processors} at most"),
                ),
                exit_code: exit::USAGE,
                may_pass: false,
            });
        }
        if !take!(self.house.burning, threads, processors) {
            return Err(self.later("other tests use its CPUs for load threads".to_owned()));
        }
        self.burning += threads;
        self.house.threads.fetch_add(threads, Relaxed);
        self.threads += threads;
        Ok(())
    }

    /// Reserves ports for flows that have one each.
    ///
    /// # Errors
    /// The limit that is exceeded.
    pub fn take_ports(&mut self, flows: usize) -> Result<(), Refuse> {
        if !take!(self.house.ports, flows, SERVICE_LIMIT) {
            return Err(self.later(format!(
                "at most {SERVICE_LIMIT} flows may have a port of their own, and other tests use \
                 most of them"
            )));
        }
        self.ports += flows;
        Ok(())
    }

    /// Reserves sockets and descriptors for a test with a client of another tool, before its
    /// threads start.
    ///
    /// # Errors
    /// The limit that is exceeded.
    pub fn take_sockets(&mut self, flows: usize) -> Result<(), Denied> {
        // A client announces many flows before it opens them. Large tests leave enough sockets for
        // `FEW_SOCKETS` in each test.
        let limit = match flows <= FEW_SOCKETS {
            true => SOCKET_LIMIT,
            false => SOCKET_LIMIT - TEST_LIMIT * FEW_SOCKETS,
        };
        if !take!(self.house.sockets, flows, limit) {
            let refuse = self.later(format!(
                "its {flows} flows and those of other tests exceed the limit of {limit}"
            ));
            return Err(Denied::new(refuse, WAIT));
        }
        self.sockets += flows;
        match descriptor_limit::too_few(flows) {
            None => Ok(()),
            Some((wanted, limit)) => Err(self.without_files(flows, wanted, limit)),
        }
    }

    fn without_files(&self, flows: usize, wanted: usize, limit: usize) -> Denied {
        let refuse = self.later(format!(
            "its {flows} flows need {wanted} open files, and the limit is {limit}"
        ));
        Denied::new(
            refuse,
            format!(
                "start the server behind `ulimit -n {wanted}` (root: also above the hard limit)"
            ),
        )
    }

    /// Reserves tracing of the machine, for one test at a time; returns whether it was free.
    #[must_use]
    pub fn watch(&mut self) -> bool {
        self.watches = self.watches || !self.house.watched.swap(true, Relaxed);
        self.watches
    }

    /// Rejection that may pass when other tests end.
    fn later(&self, situation: String) -> Refuse {
        Refuse {
            problem: Problem::new(
                situation,
                self.house.address(),
                "try again later, or with --retry 30s",
            ),
            exit_code: exit::PEER,
            may_pass: true,
        }
    }

    /// Adds a flow whose socket is to arrive.
    pub fn announce(&mut self, token: Token, waiting: Waiting) {
        self.tokens.push(token);
        let mut announced = self.house.announced.lock().expect("no holder panics");
        announced.insert(token, waiting);
    }

    /// Removes its announced flows: a socket that arrives later is closed.
    pub fn withdraw(&mut self) {
        if let Ok(mut announced) = self.house.announced.lock() {
            for token in self.tokens.drain(..) {
                announced.remove(&token);
            }
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.withdraw();
        let house = &self.house;
        house.memory.fetch_sub(self.memory, Relaxed);
        house.threads.fetch_sub(self.threads, Relaxed);
        house.burning.fetch_sub(self.burning, Relaxed);
        house.ports.fetch_sub(self.ports, Relaxed);
        house.sockets.fetch_sub(self.sockets, Relaxed);
        if self.watches {
            house.watched.store(false, Relaxed);
        }
        if !self.began && !self.shown {
            // Reuses the number for the next test, unless a later test has started.
            let _ = house
                .tests
                .compare_exchange(self.test, self.test - 1, Relaxed, Relaxed);
        }
        house.running.fetch_sub(1, Relaxed);
        if house.once {
            if self.began {
                house.over.store(true, Relaxed);
            } else {
                // No payload moved: the single test is available again.
                house.taken.store(false, Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn house(once: bool) -> Arc<House> {
        let emit: Emit = Arc::new(|_| {});
        let options = ServerOptions {
            port: 1,
            once,
            ..ServerOptions::default()
        };
        Arc::new(House::new(options, emit, Arc::default(), None))
    }

    #[test]
    fn seats_are_given_back() {
        let house = house(false);
        let mut seats: Vec<_> = (0..TALK_LIMIT).map(|_| house.seat().unwrap()).collect();
        assert!(house.seat().is_none());
        seats.pop();
        assert!(house.seat().is_some());
    }

    #[test]
    fn tests_have_a_limit_that_passes() {
        let house = house(false);
        let claims: Vec<_> = (0..TEST_LIMIT).map(|_| house.claim().unwrap()).collect();
        let denied = house.claim().err().unwrap();
        assert!(denied.refuse.may_pass);
        drop(claims);
        assert!(house.claim().is_ok());
    }

    #[test]
    fn whoever_runs_the_server_learns_what_would_allow_a_test() {
        let full = house(false);
        let _claims: Vec<_> = (0..TEST_LIMIT).map(|_| full.claim().unwrap()).collect();
        assert_eq!(full.claim().err().unwrap().remedy, WAIT);
        let once = house(true);
        let claim = once.claim().unwrap();
        assert_eq!(once.claim().err().unwrap().remedy, "start it without -1");
        let denied = claim.without_files(128, 1_234, 1_024);
        assert!(
            denied.remedy.contains("`ulimit -n 1234`"),
            "{}",
            denied.remedy
        );
        assert!(denied.refuse.problem.situation.contains("limit is 1024"));
    }

    #[test]
    fn the_next_test_waits_for_the_end_of_the_last() {
        let house = house(false);
        let mut claims: Vec<_> = (0..TEST_LIMIT).map(|_| house.claim().unwrap()).collect();
        let last = claims.pop().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(50));
                drop(last);
            });
            assert!(house.claim_soon().is_ok());
        });
        // The wait is bounded.
        claims.push(house.claim().unwrap());
        assert!(house.claim_soon().err().unwrap().refuse.may_pass);
    }

    #[test]
    fn memory_is_shared_and_given_back() {
        let house = house(false);
        let mut first = house.claim().unwrap();
        let mut second = house.claim().unwrap();
        first.reserve(Some(MEMORY_LIMIT - 10), 3).unwrap();
        assert_eq!(house.busy_threads(), 3);
        assert!(second.reserve(Some(11), 1).unwrap_err().may_pass);
        assert!(
            !second
                .reserve(Some(MEMORY_LIMIT + 1), 1)
                .unwrap_err()
                .may_pass
        );
        assert!(!second.reserve(None, 1).unwrap_err().may_pass);
        second.reserve(Some(10), 1).unwrap();
        drop(first);
        second.reserve(Some(MEMORY_LIMIT - 10), 1).unwrap();
        drop(second);
        assert_eq!(house.busy_threads(), 0);
        assert_eq!(house.memory.load(Relaxed), 0);
    }

    #[test]
    fn processors_ports_and_the_view_of_the_machine_are_shared() {
        let house = house(false);
        let mut first = house.claim().unwrap();
        let mut second = house.claim().unwrap();
        assert!(!first.burn(5, 4).unwrap_err().may_pass);
        first.burn(3, 4).unwrap();
        assert_eq!(house.busy_threads(), 3);
        assert!(second.burn(2, 4).unwrap_err().may_pass);
        second.burn(1, 4).unwrap();
        first.take_ports(SERVICE_LIMIT - 1).unwrap();
        assert!(second.take_ports(2).unwrap_err().may_pass);
        let many = SOCKET_LIMIT / 32;
        while first.take_sockets(many).is_ok() {}
        assert!(second.take_sockets(many).unwrap_err().refuse.may_pass);
        // Every possible test finds sockets for a few flows.
        for _ in 0..TEST_LIMIT {
            second.take_sockets(FEW_SOCKETS).unwrap();
        }
        assert!(first.watch() && first.watch());
        assert!(!second.watch());
        drop(first);
        second.take_ports(SERVICE_LIMIT).unwrap();
        second.burn(3, 4).unwrap();
        assert!(second.watch());
        drop(second);
        assert_eq!(house.busy_threads(), 0);
        let mut third = house.claim().unwrap();
        third.burn(4, 4).unwrap();
        third.take_ports(SERVICE_LIMIT).unwrap();
        assert!(third.watch());
    }

    #[test]
    fn a_number_that_was_shown_is_nobody_else_s() {
        let house = house(false);
        let number = |shown| {
            let mut claim = house.claim().unwrap();
            claim.shown = shown;
            claim.test
        };
        assert_eq!([number(false), number(true), number(false)], [1, 1, 2]);
    }

    #[test]
    fn the_one_test_is_free_again_until_it_began() {
        let house = house(true);
        let claim = house.claim().unwrap();
        assert!(house.claim().is_err());
        drop(claim);
        assert!(!house.over.load(Relaxed));
        let panicked = std::thread::spawn({
            let house = Arc::clone(&house);
            move || {
                let mut claim = house.claim().unwrap();
                claim.began = true;
                panic!("as a bug would");
            }
        });
        assert!(panicked.join().is_err());
        assert!(
            house.over.load(Relaxed),
            "the server does not wait for ever"
        );
    }
}
