//! Bridge between a connection of the stack and a pair of sockets, for threads that do not own the
//! stack.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::task::Poll;

use linerate_host::sys::clock::Nanos;
use linerate_stack::{SocketId, Stack, TcpState};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::transport::{stack_error, why_closed, why_opening};

/// Buffer towards the stack: larger than any control frame except results.
const ROOM_BYTES: usize = 16 << 10;

/// Longest time in which a connection may open.
const PATIENCE_NS: Nanos = 5_000_000_000;

/// Local and remote address of an established connection.
pub type Ends = (SocketAddr, SocketAddr);

/// A connection and its pair of sockets.
pub struct Bridge {
    socket: SocketId,
    pair: UnixStream,
    /// Receiver of the connection's result, and the start of the attempt.
    opening: Option<(mpsc::Sender<io::Result<Ends>>, Nanos)>,
    /// Bytes read from the pair that the stack has not accepted yet.
    room: Box<[u8; ROOM_BYTES]>,
    from: usize,
    to: usize,
    /// End of the stream from the pair.
    near_over: bool,
    finished: bool,
    far_over: bool,
}

impl Bridge {
    /// Creates the bridge of a connection being opened; `said` receives the result.
    ///
    /// # Errors
    /// When the pair cannot be set to non-blocking mode.
    pub fn opening(
        socket: SocketId,
        pair: UnixStream,
        said: mpsc::Sender<io::Result<Ends>>,
        now: Nanos,
    ) -> io::Result<Self> {
        let bridge = Self::over(socket, pair)?;
        Ok(Self {
            opening: Some((said, now)),
            ..bridge
        })
    }

    /// Creates the bridge of an established connection.
    ///
    /// # Errors
    /// When the pair cannot be set to non-blocking mode.
    pub fn over(socket: SocketId, pair: UnixStream) -> io::Result<Self> {
        pair.set_nonblocking(true)?;
        Ok(Self {
            socket,
            pair,
            opening: None,
            room: Box::new([0; ROOM_BYTES]),
            from: 0,
            to: 0,
            near_over: false,
            finished: false,
            far_over: false,
        })
    }

    /// Moves what is possible now; returns whether anything moved. `None` when the bridge has
    /// ended.
    pub fn pump(&mut self, stack: &mut Stack, now: Nanos) -> Option<bool> {
        if self.opening.is_some() {
            return self.open(stack, now);
        }
        let moved = self.pump_out(stack)? | self.pump_in(stack)?;
        let unsent = self.from < self.to;
        if self.near_over && !unsent && (self.far_over || self.is_left()) {
            // An error means that the connection is closed already.
            let _ = stack.close(self.socket);
            return None;
        }
        Some(moved)
    }

    /// Returns whether the other socket of the pair is closed. Data of the remote end would then be
    /// read by no thread, and a silent connection would keep its slot forever.
    fn is_left(&self) -> bool {
        let mut pair = [PollFd::new(&self.pair, PollFlags::HUP)];
        let now = Timespec::default();
        poll(&mut pair, Some(&now)).is_ok() && pair[0].revents().contains(PollFlags::HUP)
    }

    fn open(&mut self, stack: &mut Stack, now: Nanos) -> Option<bool> {
        let (_, since) = self.opening.as_ref()?;
        let late = now.saturating_sub(*since) > PATIENCE_NS;
        let failed = match stack.tcp_state(self.socket) {
            Ok(TcpState::Opening) if !late => return Some(false),
            Ok(TcpState::Opening) => why_opening(stack, self.socket),
            Ok(TcpState::Closed) => why_closed(stack, self.socket),
            Err(error) => stack_error(error),
            Ok(_) => {
                let ends = stack.local(self.socket).and_then(|local| {
                    let remote = stack.remote(self.socket)?;
                    Ok((local, remote.unwrap_or(local)))
                });
                if let Some((said, _)) = self.opening.take() {
                    // The requester may have given up; then the pair is closed, too.
                    let _ = said.send(ends.map_err(stack_error));
                }
                return Some(true);
            }
        };
        if let Some((said, _)) = self.opening.take() {
            let _ = said.send(Err(failed));
        }
        let _ = stack.abort(self.socket);
        None
    }

    /// Moves bytes from the pair to the stack.
    fn pump_out(&mut self, stack: &mut Stack) -> Option<bool> {
        let mut moved = false;
        loop {
            if self.from == self.to && !self.near_over {
                (self.from, self.to) = (0, 0);
                match (&self.pair).read(&mut self.room[..]) {
                    Ok(0) => self.near_over = true,
                    Ok(bytes) => self.to = bytes,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Some(moved),
                    Err(_) => self.near_over = true,
                }
            }
            if self.from == self.to {
                if !self.finished {
                    self.finished = true;
                    moved = true;
                    // An error of the connection shows when it is read.
                    let _ = stack.tcp_finish(self.socket);
                }
                return Some(moved);
            }
            let rest = &self.room[self.from..self.to];
            let taken = stack.tcp_send(self.socket, |room| {
                let bytes = rest.len().min(room.len());
                room[..bytes].copy_from_slice(&rest[..bytes]);
                bytes
            });
            match taken {
                Poll::Ready(Ok(bytes)) => {
                    self.from += bytes;
                    moved = true;
                }
                Poll::Pending => return Some(moved),
                Poll::Ready(Err(_)) => return self.broke(stack),
            }
        }
    }

    /// Moves bytes from the stack to the pair.
    fn pump_in(&mut self, stack: &mut Stack) -> Option<bool> {
        let mut moved = false;
        while !self.far_over {
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
                    self.far_over = true;
                    moved = true;
                    // An error means that the session has closed the pair.
                    let _ = self.pair.shutdown(Shutdown::Write);
                }
                Poll::Ready(Ok(Ok(_))) => moved = true,
                Poll::Ready(Ok(Err(error))) => match error.kind() {
                    io::ErrorKind::WouldBlock => break,
                    io::ErrorKind::Interrupted => {}
                    // The session has closed the pair.
                    _ => return self.broke(stack),
                },
                Poll::Ready(Err(_)) => return self.broke(stack),
            }
        }
        Some(moved)
    }

    fn broke(&mut self, stack: &mut Stack) -> Option<bool> {
        // Returning `None` drops the bridge, which closes the pair.
        let _ = stack.abort(self.socket);
        None
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use linerate_host::sys::clock;

    use super::*;
    use crate::netstack::test_pair::{pair, until};

    const PORT: u16 = 7;

    /// A silent remote end without an end of stream would keep the connection's slot forever.
    #[test]
    fn a_bridge_that_its_talker_left_ends() {
        let mut stacks = pair("bridge-left");
        let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT));
        let listener = stacks[1].tcp_listen(any, 1).unwrap();
        let far = SocketAddr::from(([10, 9, 0, 2], PORT));
        let near = stacks[0].tcp_connect(far, None).unwrap();
        let mut accepted = None;
        until(&mut stacks, |[_, far]| {
            if let Poll::Ready(socket) = far.tcp_accept(listener) {
                accepted = Some(socket.unwrap());
            }
            accepted.is_some()
        });
        let (own, pair) = UnixStream::pair().unwrap();
        let mut bridge = Bridge::over(near, pair).unwrap();
        (&own).write_all(b"the last message").unwrap();
        // Half-closed: the session may still read the response.
        own.shutdown(Shutdown::Write).unwrap();
        let server = accepted.unwrap();
        until(&mut stacks, |[near, far]| {
            assert!(bridge.pump(near, clock::now()).is_some(), "pair is open");
            far.tcp_state(server).unwrap() == TcpState::FarFinished
        });
        drop(own);
        until(&mut stacks, |[near, _]| {
            bridge.pump(near, clock::now()).is_none()
        });
        // All bytes arrived before the end of the stream.
        let heard = stacks[1].tcp_receive(server, |bytes| (bytes.len(), bytes.to_vec()));
        assert!(matches!(heard, Poll::Ready(Ok(heard)) if heard == b"the last message"));
    }
}
