//! Both ends of iperf2 over blocking sockets: what an engine has to do around the machines.
//!
//! No intervals, and paces only as good as a test needs them.

pub mod tcp;
pub mod udp;

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use linerate_protocol::iperf2::TestAmount;

/// How long a reader sleeps before it looks around.
pub const NAP: Duration = Duration::from_millis(1);

/// The wall clock in nanoseconds.
pub fn wall_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(now.as_nanos()).unwrap()
}

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

/// When a source has sent enough.
pub struct Until {
    begun: Instant,
    amount: Option<TestAmount>,
}

impl Until {
    pub fn now(amount: Option<TestAmount>) -> Self {
        Self {
            begun: Instant::now(),
            amount,
        }
    }

    /// Bytes of the next write: at most `block`, nothing when all was sent.
    pub fn next(&self, sent: u64, block: usize) -> usize {
        match self.amount {
            Some(TestAmount::Bytes(bytes)) => {
                usize::try_from(bytes.saturating_sub(sent)).map_or(block, |left| left.min(block))
            }
            Some(TestAmount::Time(ns)) if self.begun.elapsed() >= Duration::from_nanos(ns) => 0,
            Some(TestAmount::Time(_)) => block,
            // A server without a request sends nothing.
            None => 0,
        }
    }
}

/// A server that was started a moment ago may not listen yet.
pub fn connect(server: SocketAddr) -> TcpStream {
    for _ in 0..200 {
        if let Ok(stream) = TcpStream::connect(server) {
            return stream;
        }
        std::thread::sleep(NAP * 20);
    }
    panic!("nobody listens on {server}");
}
