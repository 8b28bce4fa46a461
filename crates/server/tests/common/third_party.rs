//! Server in this process for clients of other tools.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU16};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_record::event::{ErrorReport, Event, EventKind};
use linerate_record::record::{Interval, Record};
use linerate_server::options::{ExtraPort, InteropOptions, ServerOptions};
use linerate_server::server::Server;
use linerate_server::timeouts::Timeouts;
use linerate_session::error::SessionError;

/// Longest wait for a record.
const RECORD_TIMEOUT: Duration = Duration::from_secs(60);

/// Server that is stopped on drop.
pub struct InteropServer {
    pub port: u16,
    /// Additional ports.
    pub also: Vec<u16>,
    stop: Arc<AtomicBool>,
    events: Arc<Mutex<Vec<Event>>>,
    thread: Option<JoinHandle<Result<(), SessionError>>>,
}

impl InteropServer {
    pub fn start() -> Self {
        Self::with(InteropOptions::default())
    }

    /// Starts a server with a port for each of these protocols alone.
    pub fn with_ports(dialects: &[&str]) -> Self {
        Self::with_ports_and_timeouts(dialects, Timeouts::default())
    }

    pub fn with_ports_and_timeouts(dialects: &[&str], timeouts: Timeouts) -> Self {
        // Another process may take a port that was free a moment ago.
        for _ in 0..20 {
            let also = dialects.iter().map(|protocol| {
                let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
                let port = port.local_addr().unwrap().port();
                format!("{port}={protocol}").parse::<ExtraPort>().unwrap()
            });
            let peers = InteropOptions {
                extra_ports: also.collect(),
                ..InteropOptions::default()
            };
            let options = ServerOptions {
                timeouts,
                ..Self::options(peers)
            };
            if let Ok(host) = Self::of(&options) {
                return host;
            }
        }
        panic!("no free ports");
    }

    /// Starts a server with short silence limits, for tests that wait for silence.
    pub fn with_short_timeouts() -> Self {
        Self::with_timeouts(Timeouts::short())
    }

    pub fn with_timeouts(timeouts: Timeouts) -> Self {
        let options = ServerOptions {
            timeouts,
            ..Self::options(InteropOptions::default())
        };
        Self::of(&options).unwrap()
    }

    pub fn with(peers: InteropOptions) -> Self {
        Self::of(&Self::options(peers)).unwrap()
    }

    fn options(interop: InteropOptions) -> ServerOptions {
        ServerOptions {
            address: Some(Ipv4Addr::LOCALHOST.into()),
            interop,
            ..ServerOptions::default()
        }
    }

    /// Starts a server with these options, in the namespace of the calling thread.
    pub fn of(options: &ServerOptions) -> Result<Self, SessionError> {
        let server = Server::bind(options)?;
        let (port, also) = (server.port(), server.extra_ports());
        let stop = Arc::new(AtomicBool::new(false));
        let events = Arc::new(Mutex::new(Vec::new()));
        let (flag, log) = (Arc::clone(&stop), Arc::clone(&events));
        let emit = Arc::new(move |event: Event| log.lock().unwrap().push(event));
        let thread = std::thread::spawn(move || server.run(flag, emit));
        Ok(Self {
            port,
            also,
            stop,
            events,
            thread: Some(thread),
        })
    }

    /// Removes and returns the first event that matches, within a time.
    fn take<T>(&self, timeout: Duration, want: impl Fn(&EventKind) -> Option<T>) -> Option<T> {
        let until = Instant::now() + timeout;
        loop {
            {
                let mut events = self.events.lock().unwrap();
                let found = events.iter().enumerate();
                let found = found
                    .filter_map(|(at, event)| Some((at, want(&event.kind)?)))
                    .next();
                if let Some((at, found)) = found {
                    events.remove(at);
                    return Some(found);
                }
            }
            if Instant::now() > until {
                return None;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the next record, after a round trip through JSON.
    pub fn record(&self) -> Record {
        let record = self.take(RECORD_TIMEOUT, |event| match event {
            EventKind::Finished { record } => Some(record.clone()),
            _ => None,
        });
        let record = *record.unwrap_or_else(|| panic!("no record: {:#?}", self.descriptions()));
        assert_eq!(Record::from_json(&record.to_json()).unwrap(), record);
        record
    }

    /// Returns the next interval.
    pub fn interval(&self) -> Option<Interval> {
        self.take(RECORD_TIMEOUT, |event| match event {
            EventKind::Interval { interval } => Some(*interval.clone()),
            _ => None,
        })
    }

    /// Returns the names of the events so far.
    fn descriptions(&self) -> Vec<String> {
        let events = self.events.lock().unwrap();
        let described = events.iter().filter_map(|event| match &event.kind {
            EventKind::Connected { peer, agent, .. } => {
                Some(format!("[{}] {peer} {agent}", event.test))
            }
            EventKind::Refused { problem } | EventKind::Failed { problem } => {
                Some(format!("[{}] {}", event.test, problem.situation))
            }
            _ => None,
        });
        described.collect()
    }

    /// Returns the first rejection whose text contains `text`.
    pub fn take_rejection(&self, text: &str) -> Option<ErrorReport> {
        self.take(Duration::from_secs(1), |event| match event {
            EventKind::Refused { problem } if problem.situation.contains(text) => {
                Some(problem.clone())
            }
            _ => None,
        })
    }

    /// Returns the number of tests that have started.
    pub fn started_tests(&self) -> usize {
        let events = self.events.lock().unwrap();
        let started = |event: &&Event| matches!(event.kind, EventKind::Started { .. });
        events.iter().filter(started).count()
    }

    /// Waits until this many tests have started.
    pub fn wait_for_tests(&self, count: usize) {
        let until = Instant::now() + RECORD_TIMEOUT;
        while self.started_tests() < count {
            let started = self.started_tests();
            let names = self.descriptions();
            assert!(Instant::now() < until, "{started} of {count}: {names:#?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until this many tests of other tools have reported an interval.
    pub fn wait_for_intervals(&self, count: usize) {
        let until = Instant::now() + RECORD_TIMEOUT;
        loop {
            let reporting: BTreeSet<u32> = {
                let events = self.events.lock().unwrap();
                let intervals = events.iter().filter(|event| {
                    let number = event.test;
                    matches!(event.kind, EventKind::Interval { .. })
                        && events.iter().any(|event| {
                            event.test == number
                                && matches!(&event.kind, EventKind::Started { plan, .. }
                                    if plan.peer_protocol.is_some())
                        })
                });
                intervals.map(|event| event.test).collect()
            };
            if reporting.len() >= count {
                return;
            }
            assert!(Instant::now() < until, "{reporting:?} of {count}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the number of tests that have failed.
    pub fn failures(&self) -> usize {
        let events = self.events.lock().unwrap();
        let failed = |event: &&Event| matches!(event.kind, EventKind::Failed { .. });
        events.iter().filter(failed).count()
    }
}

impl Drop for InteropServer {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let stopped = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            stopped.unwrap().unwrap().unwrap();
        }
    }
}

/// Returns a free port, and leaves the next one for `-N 2`: outside the kernel's ephemeral range,
/// and for each process another one.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = (std::process::id() % 218) as u16 * 64;
    loop {
        let step = NEXT.fetch_add(2, Relaxed);
        let port = 10_000 + (first + step) % 14_000;
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
