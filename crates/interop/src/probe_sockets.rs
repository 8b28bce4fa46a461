//! Sockets of probes, before anything of the server is known: of the kernel or of the user-space
//! stack.

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use linerate_session::client_stack;
use linerate_session::dial::{SourceBinding, connect};
use linerate_session::error::SessionError;
use linerate_sys::clock;
use linerate_transport::stack_thread::StackHandle;
use socket2::{Domain, SockAddr, Socket, Type};

use super::flow_socket::FlowSocket;

/// Interval at which a wait checks for Ctrl-C.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Opens sockets for probes.
pub struct ProbeSockets<'a> {
    /// Local address and interface.
    pub local: &'a SourceBinding,
    /// User-space stack, if it carries the test.
    pub stack: Option<&'a StackHandle>,
    pub stop: &'a AtomicBool,
    /// Shortest time of a connect that was accepted or refused.
    pub shortest_connect: Cell<Option<Duration>>,
}

/// Datagram socket connected to one address.
pub struct ProbeSocket<'a> {
    socket: FlowSocket,
    stop: &'a AtomicBool,
}

impl<'a> ProbeSockets<'a> {
    /// Connects to an address; on the user-space stack, returns the local end of a pair whose bytes
    /// the stack carries.
    ///
    /// # Errors
    /// Error of the connect; [`SessionError::ConnectionRefused`] if no program listens.
    pub fn connect(&self, address: SocketAddr) -> Result<Socket, SessionError> {
        let begin = Instant::now();
        let connected = self.connect_untimed(address);
        if let Ok(_) | Err(SessionError::ConnectionRefused { .. }) = connected {
            let shortest = self.shortest_connect.get().unwrap_or(Duration::MAX);
            self.shortest_connect
                .set(Some(shortest.min(begin.elapsed())));
        }
        connected
    }

    /// Returns a time that a server needs, extended by the round trip of the path.
    pub fn with_round_trip(&self, time: Duration) -> Duration {
        time + self.shortest_connect.get().unwrap_or_default()
    }

    fn connect_untimed(&self, address: SocketAddr) -> Result<Socket, SessionError> {
        let Some(stack) = self.stack else {
            return connect(address, self.local, self.stop).map(Socket::from);
        };
        let (pair, _) = stack
            .connect(address, &|| self.stop.load(Relaxed))
            .map_err(|error| client_stack::netstack_connect_error(address, error))?;
        Ok(OwnedFd::from(pair).into())
    }

    /// Opens a datagram socket to an address.
    ///
    /// # Errors
    /// Error of the socket.
    pub fn open_udp(&self, address: SocketAddr) -> Result<ProbeSocket<'a>, SessionError> {
        let system = |error| SessionError::system("a UDP socket", error);
        let socket = match self.stack {
            None => {
                let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None);
                let socket = socket.map_err(system)?;
                self.local.bind(&socket)?;
                socket.connect(&SockAddr::from(address)).map_err(system)?;
                FlowSocket::Kernel(socket)
            }
            Some(stack) => {
                let any: IpAddr = match address.is_ipv4() {
                    true => [0; 4].into(),
                    false => [0; 16].into(),
                };
                let local = SocketAddr::new(self.local.address.unwrap_or(any), 0);
                FlowSocket::open_udp(stack, local, address).map_err(system)?
            }
        };
        Ok(ProbeSocket {
            socket,
            stop: self.stop,
        })
    }
}

impl ProbeSocket<'_> {
    /// Sends a datagram.
    ///
    /// # Errors
    /// Error of the socket, also an ICMP error of the previous datagram.
    pub fn send(&self, datagram: &[u8]) -> io::Result<()> {
        self.socket.send(datagram)
    }

    /// Receives the next datagram.
    ///
    /// # Errors
    /// Error of the socket; `WouldBlock` at the timeout or on Ctrl-C.
    pub fn receive(&self, buffer: &mut [u8], timeout: Duration) -> io::Result<usize> {
        let until = clock::now() + u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        loop {
            let remaining = Duration::from_nanos(until.saturating_sub(clock::now()));
            if self
                .socket
                .wait_readable(remaining.min(STOP_POLL_INTERVAL))?
            {
                return self.socket.receive(buffer);
            }
            if remaining.is_zero() || self.stop.load(Relaxed) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
    }
}

impl Drop for ProbeSocket<'_> {
    fn drop(&mut self) {
        // A stack has few sockets, and outlives the probe.
        self.socket.close();
    }
}
