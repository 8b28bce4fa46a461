//! Bridge between a connection of the stack and a pair of sockets, for threads that do not own the
//! stack.

use std::io;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::task::Poll;

use linerate_stack::{SocketId, Stack, TcpState};
use linerate_sys::clock::Nanos;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{CONNECT_TIMEOUT_NS, close_reason, connect_timeout_reason, stack_error};

/// Buffer towards the stack: larger than any control frame except results.
const BUFFER_BYTES: usize = 16 << 10;

/// Local and remote address of an established connection.
pub type ConnectionAddresses = (SocketAddr, SocketAddr);

/// A connection and its pair of sockets.
pub struct ConnectionBridge {
    socket: SocketId,
    pair: UnixStream,
    /// Receiver of the connection's result, and the start of the attempt.
    pending_connect: Option<(mpsc::Sender<io::Result<ConnectionAddresses>>, Nanos)>,
    /// Bytes read from the pair that the stack has not accepted yet.
    buffer: Box<[u8; BUFFER_BYTES]>,
    buffer_start: usize,
    buffer_end: usize,
    /// End of the stream from the pair.
    pair_ended: bool,
    send_shut_down: bool,
    remote_ended: bool,
}

impl ConnectionBridge {
    /// Creates the bridge of a connection being opened; `reply` receives the result.
    ///
    /// # Errors
    /// When the pair cannot be set to non-blocking mode.
    pub fn for_pending(
        socket: SocketId,
        pair: UnixStream,
        reply: mpsc::Sender<io::Result<ConnectionAddresses>>,
        now: Nanos,
    ) -> io::Result<Self> {
        let bridge = Self::for_established(socket, pair)?;
        Ok(Self {
            pending_connect: Some((reply, now)),
            ..bridge
        })
    }

    /// Creates the bridge of an established connection.
    ///
    /// # Errors
    /// When the pair cannot be set to non-blocking mode.
    pub fn for_established(socket: SocketId, pair: UnixStream) -> io::Result<Self> {
        pair.set_nonblocking(true)?;
        Ok(Self {
            socket,
            pair,
            pending_connect: None,
            buffer: Box::new([0; BUFFER_BYTES]),
            buffer_start: 0,
            buffer_end: 0,
            pair_ended: false,
            send_shut_down: false,
            remote_ended: false,
        })
    }

    /// Moves what is possible now; returns whether anything moved. `None` when the bridge has
    /// ended.
    pub fn pump(&mut self, stack: &mut Stack, now: Nanos) -> Option<bool> {
        if self.pending_connect.is_some() {
            return self.poll_connect(stack, now);
        }
        let moved = self.pump_out(stack)? | self.pump_in(stack)?;
        let unsent = self.buffer_start < self.buffer_end;
        if self.pair_ended && !unsent && (self.remote_ended || self.is_pair_hung_up()) {
            // An error means that the connection is closed already.
            let _ = stack.close(self.socket);
            return None;
        }
        Some(moved)
    }

    /// Returns whether the other socket of the pair is closed. Data of the remote end would then be
    /// read by no thread, and a silent connection would keep its slot forever.
    fn is_pair_hung_up(&self) -> bool {
        let mut pair = [PollFd::new(&self.pair, PollFlags::HUP)];
        let now = Timespec::default();
        poll(&mut pair, Some(&now)).is_ok() && pair[0].revents().contains(PollFlags::HUP)
    }

    fn poll_connect(&mut self, stack: &mut Stack, now: Nanos) -> Option<bool> {
        let (_, since) = self.pending_connect.as_ref()?;
        let is_timed_out = now.saturating_sub(*since) > CONNECT_TIMEOUT_NS;
        let failure = match stack.tcp_state(self.socket) {
            Ok(TcpState::Connecting) if !is_timed_out => return Some(false),
            Ok(TcpState::Connecting) => connect_timeout_reason(stack, self.socket),
            Ok(TcpState::Closed) => close_reason(stack, self.socket),
            Err(error) => stack_error(error),
            Ok(_) => {
                let addresses = stack.local(self.socket).and_then(|local| {
                    let remote = stack.remote(self.socket)?;
                    Ok((local, remote.unwrap_or(local)))
                });
                if let Some((reply, _)) = self.pending_connect.take() {
                    // The requester may have given up; then the pair is closed, too.
                    let _ = reply.send(addresses.map_err(stack_error));
                }
                return Some(true);
            }
        };
        if let Some((reply, _)) = self.pending_connect.take() {
            let _ = reply.send(Err(failure));
        }
        let _ = stack.abort(self.socket);
        None
    }

    /// Moves bytes from the pair to the stack.
    fn pump_out(&mut self, stack: &mut Stack) -> Option<bool> {
        let mut moved = false;
        loop {
            if self.buffer_start == self.buffer_end && !self.pair_ended {
                (self.buffer_start, self.buffer_end) = (0, 0);
                match (&self.pair).read(&mut self.buffer[..]) {
                    Ok(0) => self.pair_ended = true,
                    Ok(bytes) => self.buffer_end = bytes,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Some(moved),
                    Err(_) => self.pair_ended = true,
                }
            }
            if self.buffer_start == self.buffer_end {
                if !self.send_shut_down {
                    self.send_shut_down = true;
                    moved = true;
                    // An error of the connection shows when it is read.
                    let _ = stack.tcp_finish(self.socket);
                }
                return Some(moved);
            }
            let unsent = &self.buffer[self.buffer_start..self.buffer_end];
            let accepted = stack.tcp_send(self.socket, |space| {
                let bytes = unsent.len().min(space.len());
                space[..bytes].copy_from_slice(&unsent[..bytes]);
                bytes
            });
            match accepted {
                Poll::Ready(Ok(bytes)) => {
                    self.buffer_start += bytes;
                    moved = true;
                }
                Poll::Pending => return Some(moved),
                Poll::Ready(Err(_)) => return self.abort(stack),
            }
        }
    }

    /// Moves bytes from the stack to the pair.
    fn pump_in(&mut self, stack: &mut Stack) -> Option<bool> {
        let mut moved = false;
        while !self.remote_ended {
            let pair = &self.pair;
            let carried = stack.tcp_receive(self.socket, |bytes| {
                if bytes.is_empty() {
                    return (0, Ok(0));
                }
                let written = (&*pair).write(bytes);
                (*written.as_ref().unwrap_or(&0), written)
            });
            match carried {
                Poll::Pending => break,
                Poll::Ready(Ok(Ok(0))) => {
                    self.remote_ended = true;
                    moved = true;
                    // An error means that the session has closed the pair.
                    let _ = self.pair.shutdown(Shutdown::Write);
                }
                Poll::Ready(Ok(Ok(_))) => moved = true,
                Poll::Ready(Ok(Err(error))) => match error.kind() {
                    io::ErrorKind::WouldBlock => break,
                    io::ErrorKind::Interrupted => {}
                    // The session has closed the pair.
                    _ => return self.abort(stack),
                },
                Poll::Ready(Err(_)) => return self.abort(stack),
            }
        }
        Some(moved)
    }

    fn abort(&mut self, stack: &mut Stack) -> Option<bool> {
        // Returning `None` drops the bridge, which closes the pair.
        let _ = stack.abort(self.socket);
        None
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use linerate_sys::clock;

    use super::*;
    use crate::test_support::{poll_until, stack_pair};

    const PORT: u16 = 7;

    /// A silent remote end without an end of stream would keep the connection's slot forever.
    #[test]
    fn a_bridge_ends_when_its_session_closes_the_pair() {
        let mut stacks = stack_pair("bridge-left");
        let unspecified = SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT));
        let listener = stacks[1].tcp_listen(unspecified, 1).unwrap();
        let server_side = SocketAddr::from(([10, 9, 0, 2], PORT));
        let client = stacks[0].tcp_connect(server_side, None).unwrap();
        let mut accepted = None;
        poll_until(&mut stacks, |[_, server_side]| {
            if let Poll::Ready(socket) = server_side.tcp_accept(listener) {
                accepted = Some(socket.unwrap());
            }
            accepted.is_some()
        });
        let (session_socket, pair) = UnixStream::pair().unwrap();
        let mut bridge = ConnectionBridge::for_established(client, pair).unwrap();
        (&session_socket).write_all(b"the last message").unwrap();
        // Half-closed: the session may still read the response.
        session_socket.shutdown(Shutdown::Write).unwrap();
        let accepted_socket = accepted.unwrap();
        poll_until(&mut stacks, |[client, server_side]| {
            assert!(bridge.pump(client, clock::now()).is_some(), "pair is open");
            server_side.tcp_state(accepted_socket).unwrap() == TcpState::RemoteFinished
        });
        drop(session_socket);
        poll_until(&mut stacks, |[client, _]| {
            bridge.pump(client, clock::now()).is_none()
        });
        // All bytes arrived before the end of the stream.
        let received =
            stacks[1].tcp_receive(accepted_socket, |bytes| (bytes.len(), bytes.to_vec()));
        assert!(matches!(received, Poll::Ready(Ok(bytes)) if bytes == b"the last message"));
    }
}
