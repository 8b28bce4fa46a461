//! Both ends of iperf3 over blocking sockets: what an engine has to do around the machines.
//!
//! No pace, no intervals, no omitted time: only what the protocol needs.

pub mod client;
pub mod flows;
pub mod server;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use linerate_protocol::iperf3::READ_AHEAD_BYTES;

/// How long a reader sleeps before it looks around.
pub const NAP: Duration = Duration::from_millis(5);

/// A clock that never goes back.
pub struct Clock(Instant);

impl Clock {
    pub fn start() -> Self {
        Self(Instant::now())
    }

    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap()
    }
}

/// Writes what a machine wants to say; how much it was. A peer that has gone is found out by reading.
pub fn flush(mut stream: &TcpStream, bytes: &[u8]) -> usize {
    let _ = stream.write_all(bytes);
    bytes.len()
}

/// What arrived within a nap: `None` for nothing, an empty piece for the end.
pub fn listen(mut stream: &TcpStream) -> Option<Vec<u8>> {
    stream.set_read_timeout(Some(NAP)).unwrap();
    let mut room = vec![0; READ_AHEAD_BYTES];
    match stream.read(&mut room) {
        Ok(bytes) => {
            room.truncate(bytes);
            Some(room)
        }
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => None,
        Err(_) => Some(Vec::new()),
    }
}
