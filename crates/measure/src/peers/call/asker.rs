//! What a far end is asked over before anything is known of it: the kernel's sockets, or our own stack's.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use linerate_host::sys::clock;
use socket2::{Domain, SockAddr, Socket, Type};

use super::socket::FlowSocket;
use crate::error::MeasureError;
use crate::session::ground;
use crate::session::reach::{Local, open};
use crate::stack::StackHandle;

/// How soon Ctrl-C is noticed while an answer is waited for.
const LOOK_UP: Duration = Duration::from_millis(50);

/// Who asks.
pub struct Asker<'a> {
    /// Local address and interface.
    pub local: &'a Local,
    /// Our own stack, where all of it goes over that.
    pub stack: Option<&'a StackHandle>,
    /// Set by Ctrl-C.
    pub stop: &'a AtomicBool,
}

/// Datagrams to and from one address.
pub struct Line<'a> {
    socket: FlowSocket,
    stop: &'a AtomicBool,
}

impl<'a> Asker<'a> {
    /// A connection to an address: over our own stack the near end of a pair whose bytes it carries.
    ///
    /// # Errors
    /// Why it does not stand; [`MeasureError::Refused`] when nobody listens.
    pub fn connect(&self, address: SocketAddr) -> Result<Socket, MeasureError> {
        let Some(stack) = self.stack else {
            return open(address, self.local, self.stop).map(Socket::from);
        };
        let (pair, _) = stack
            .connect(address, &|| self.stop.load(Relaxed))
            .map_err(|error| ground::failed(address, error))?;
        Ok(OwnedFd::from(pair).into())
    }

    /// A socket for datagrams to an address.
    ///
    /// # Errors
    /// What the socket says.
    pub fn datagrams(&self, address: SocketAddr) -> Result<Line<'a>, MeasureError> {
        let system = |error| MeasureError::system("a UDP socket", error);
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
                FlowSocket::datagrams(stack, local, address).map_err(system)?
            }
        };
        Ok(Line {
            socket,
            stop: self.stop,
        })
    }
}

impl Line<'_> {
    /// Sends one.
    ///
    /// # Errors
    /// What the socket says, also that the one before was refused.
    pub fn send(&self, datagram: &[u8]) -> io::Result<()> {
        self.socket.send(datagram)
    }

    /// Takes the next one.
    ///
    /// # Errors
    /// What the socket says; `WouldBlock` where none came within the time, or Ctrl-C did.
    pub fn receive(&self, room: &mut [u8], patience: Duration) -> io::Result<usize> {
        let until = clock::now() + u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        loop {
            let left = Duration::from_nanos(until.saturating_sub(clock::now()));
            if self.socket.wait(left.min(LOOK_UP))? {
                return self.socket.receive(room);
            }
            if left.is_zero() || self.stop.load(Relaxed) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        // A stack has few sockets, and lasts longer than the question.
        self.socket.close();
    }
}
