//! Carries the bytes of a connection of the stack to a pair of sockets and back, so that a thread that
//! does not own the stack can talk over it.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::task::Poll;

use linerate_host::sys::clock::Nanos;
use linerate_stack::{SocketId, Stack, TcpState};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::transport::{stack_error, why_closed, why_opening};

/// Bytes that are on their way to the stack at most: more than any frame that is not a result.
const ROOM_BYTES: usize = 16 << 10;

/// Longest time that a connection may take to open.
const PATIENCE_NS: Nanos = 5_000_000_000;

/// The two ends of a connection that stands: our own, and the other one.
pub type Ends = (SocketAddr, SocketAddr);

/// One connection and one pair.
pub struct Bridge {
    socket: SocketId,
    pair: UnixStream,
    /// Who waits for it to stand, since when.
    opening: Option<(mpsc::Sender<io::Result<Ends>>, Nanos)>,
    /// What came from the pair and the stack has not taken yet.
    room: Box<[u8; ROOM_BYTES]>,
    from: usize,
    to: usize,
    /// The pair's far end has said all, and the stack knows.
    near_over: bool,
    finished: bool,
    far_over: bool,
}

impl Bridge {
    /// Over a connection that was just begun; `said` is told once it stands, or why it does not.
    ///
    /// # Errors
    /// When the pair cannot be read without waiting.
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

    /// Over a connection that stands.
    ///
    /// # Errors
    /// When the pair cannot be read without waiting.
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

    /// Carries what can be carried now: whether anything moved. `None` when the bridge is over.
    pub fn pump(&mut self, stack: &mut Stack, now: Nanos) -> Option<bool> {
        if self.opening.is_some() {
            return self.open(stack, now);
        }
        let moved = self.pump_out(stack)? | self.pump_in(stack)?;
        let unsent = self.from < self.to;
        if self.near_over && !unsent && (self.far_over || self.is_left()) {
            // A connection that is gone already is closed, too.
            let _ = stack.close(self.socket);
            return None;
        }
        Some(moved)
    }

    /// Nobody holds the other end of the pair any more: what the far end may still say nobody would read, and
    /// one that says nothing and does not end would keep its place for ever.
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
                    // Whoever asked may have given up; then the pair is closed, too.
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

    /// From the pair to the stack.
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
                    // A connection that broke says so where it is read.
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

    /// From the stack to the pair.
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
                    // Gone already: then nobody waits for the end.
                    let _ = self.pair.shutdown(Shutdown::Write);
                }
                Poll::Ready(Ok(Ok(_))) => moved = true,
                Poll::Ready(Ok(Err(error))) => match error.kind() {
                    io::ErrorKind::WouldBlock => break,
                    io::ErrorKind::Interrupted => {}
                    // Nobody reads any more.
                    _ => return self.broke(stack),
                },
                Poll::Ready(Err(_)) => return self.broke(stack),
            }
        }
        Some(moved)
    }

    fn broke(&mut self, stack: &mut Stack) -> Option<bool> {
        // The pair closes with this.
        let _ = stack.abort(self.socket);
        None
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use linerate_host::sys::clock;

    use super::*;
    use crate::stack::pair::{pair, until};

    const PORT: u16 = 7;

    /// A far end that says nothing and does not end would keep the connection's place for ever.
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
        (&own).write_all(b"what was said last").unwrap();
        // It may still want to hear what is said to that.
        own.shutdown(Shutdown::Write).unwrap();
        let server = accepted.unwrap();
        until(&mut stacks, |[near, far]| {
            assert!(
                bridge.pump(near, clock::now()).is_some(),
                "somebody listens"
            );
            far.tcp_state(server).unwrap() == TcpState::FarFinished
        });
        drop(own);
        until(&mut stacks, |[near, _]| {
            bridge.pump(near, clock::now()).is_none()
        });
        // All of it came, and the end.
        let heard = stacks[1].tcp_receive(server, |bytes| (bytes.len(), bytes.to_vec()));
        assert!(matches!(heard, Poll::Ready(Ok(heard)) if heard == b"what was said last"));
    }
}
