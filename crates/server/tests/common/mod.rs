//! Server in this process, and runs against it.
#![allow(dead_code, reason = "each test binary uses some of it")]

pub mod third_party;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Duration;

use linerate_record::plan::{Plan, RunKind, TransportProtocol};
use linerate_record::record::Record;
use linerate_server::options::ServerOptions;
use linerate_server::server::Server;
use linerate_session::client::Client;
use linerate_session::dial::AddressFamily;
use linerate_session::error::SessionError;

/// Server that is stopped and joined on drop.
pub struct TestServer {
    pub port: u16,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), SessionError>>>,
}

impl TestServer {
    pub fn start() -> Self {
        let server = Server::bind(&ServerOptions {
            port: 0,
            address: Some(Ipv4Addr::LOCALHOST.into()),
            interface: None,
            family: AddressFamily::Any,
            single_test: false,
            grants: Vec::new(),
            ..ServerOptions::default()
        })
        .unwrap();
        let port = server.port();
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let thread = std::thread::spawn(move || server.run(flag, Arc::new(|_| {})));
        Self {
            port,
            stop,
            thread: Some(thread),
        }
    }

    /// Returns a plan with the defaults, against this server.
    pub fn plan(&self, kind: RunKind, protocol: TransportProtocol) -> Plan {
        let mut plan = Plan::new(kind, protocol, "127.0.0.1");
        plan.port = self.port;
        plan
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let stopped = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            stopped.unwrap().unwrap().unwrap();
        }
    }
}

/// Runs a plan to its end; the error is the reason why it did not start.
pub fn try_run(plan: Plan) -> Result<Record, SessionError> {
    let client = Client {
        plan,
        family: AddressFamily::Any,
        retry_timeout: Duration::ZERO,
        key: None,
    };
    let (record, failure) = client.run(&AtomicBool::new(false), &mut |_| {})?;
    assert!(failure.is_none(), "{failure:?}");
    let read = Record::from_json(&record.to_json()).unwrap();
    assert_eq!(read, record, "a record round-trips exactly");
    Ok(record)
}

pub fn run(plan: Plan) -> Record {
    try_run(plan).unwrap()
}

/// Returns the ids of a record's caveats.
pub fn caveats(record: &Record) -> Vec<&str> {
    (record.validity.iter())
        .map(|caveat| caveat.id.as_str())
        .collect()
}
