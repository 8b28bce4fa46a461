//! Transport over io_uring: a send is submitted and waited for; multishot receives fill registered
//! buffers.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::task;
use std::time::Duration;

use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::pacing;
use linerate_host::sys::socket;
use linerate_host::sys::uring::{Kind, Piece, Received, Ring};
use linerate_metric::plan::Protocol;
use linerate_metric::record::Socket as SocketFacts;
use socket2::Socket;

use super::call_times::{Call, CallTally, Found, Recorder};
use super::kernel::connect;
use super::kernel::{
    AWAKE_NS, Buffer, EINVAL, EIO, IDLE_PATIENCE, Index, SEGMENT_LIMITS, UDP_CALL_BYTES, Watch,
    facts_of, outcome,
};
use super::{Adapter, Capabilities, Correspondent, FlowOptions, Meta, Setup, Transport};
use crate::flow::Timeline;

/// Receive memory in all, in bytes.
const POOL_BYTES: usize = 1 << 20;

/// Largest buffer: the largest datagram, and what one receive of a stream returns.
const LARGEST_PIECE: usize = 64 << 10;

/// Bounds of the number of buffers; the kernel accepts powers of two.
const FEWEST: usize = 8;
const MOST: usize = 1_024;

/// Returns the memory of a ring's buffers when each call receives up to `receive_bytes`.
#[must_use]
pub fn pool_bytes(receive_bytes: usize) -> usize {
    let (count, bytes) = pool(receive_bytes);
    count * bytes
}

fn pool(receive_bytes: usize) -> (usize, usize) {
    let bytes = receive_bytes.clamp(64, LARGEST_PIECE);
    let count = (POOL_BYTES / bytes).clamp(FEWEST, MOST);
    // The largest power of two that is not above it.
    (1 << count.ilog2(), bytes)
}

/// Sockets of one thread on one io_uring; `R` records their calls.
pub struct Uring<R> {
    // Declared before the sockets, so that its requests end before they are closed.
    ring: Ring,
    sockets: Vec<Entry>,
    outgoing: Buffer,
    calls: R,
}

struct Entry {
    socket: Arc<Socket>,
    patience: Duration,
    datagrams: usize,
    to_segment: Option<u16>,
    /// True if a send on a full socket returns at once: the next datagram has its own departure
    /// time.
    paced: bool,
    /// Unread rest of the last received buffer: the buffer and the offset in it.
    rest: Option<(Piece, usize)>,
}

impl<R: Recorder> Uring<R> {
    fn keep(&mut self, socket: Socket, options: &FlowOptions) -> io::Result<Index> {
        if options.correspondent != Correspondent::Connected {
            // Sends and receives carry no address, and sockets cannot be opened during the run.
            return Err(io::ErrorKind::Unsupported.into());
        }
        let kind = match (options.protocol, options.coalesce) {
            (Protocol::Tcp, _) => Kind::Stream,
            (Protocol::Udp, false) => Kind::Datagrams,
            (Protocol::Udp, true) => {
                socket::set_udp_coalescing(&socket)?;
                Kind::Joined
            }
        };
        if let Some(bytes) = options.max_rate {
            pacing::set_max_rate(&socket, bytes)?;
        }
        if options.departure_clock.is_some() {
            // Sends carry no control messages, so no SO_TXTIME.
            return Err(io::ErrorKind::Unsupported.into());
        }
        let number = self.ring.add(&socket, kind);
        debug_assert_eq!(number, self.sockets.len(), "both lists grow together");
        self.sockets.push(Entry {
            socket: Arc::new(socket),
            patience: options.patience,
            datagrams: match options.segment_bytes {
                Some(_) => SEGMENT_LIMITS[0],
                None => 1,
            },
            to_segment: options.segment_bytes,
            paced: options.paced,
            rest: None,
        });
        Ok(Index(number))
    }

    /// Returns whether there is one socket, which may be waited for; several are polled in
    /// rotation.
    fn is_alone(&self) -> bool {
        self.sockets.len() == 1
    }

    fn send(
        &mut self,
        index: Index,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> task::Poll<io::Result<usize>> {
        let entry = &self.sockets[index.0];
        // Only then may the send block.
        let alone = self.is_alone() && !entry.paced;
        let payload = self.outgoing.front(bytes);
        fill(payload);
        let patience = if alone {
            entry.patience
        } else {
            Duration::ZERO
        };
        self.calls.begin();
        let at_once = if R::ON && alone {
            // As with blocking calls: tried without blocking, to detect whether there was space.
            self.ring.send(index.0, payload, Duration::ZERO)
        } else {
            self.ring.send(index.0, payload, patience)
        };
        let taken = match &at_once {
            Ok(taken) => *taken,
            Err(_) => 0,
        };
        let full = taken < payload.len();
        let may_wait = match &at_once {
            Ok(_) => full,
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        };
        let sent = if R::ON && alone && may_wait {
            match self.ring.send(index.0, &payload[taken..], patience) {
                Ok(more) => Ok(taken + more),
                Err(_) if taken > 0 => Ok(taken),
                Err(error) => Err(error),
            }
        } else {
            at_once
        };
        let call_outcome = if full { Found::Waited } else { Found::Ready };
        self.calls.end(Call::UringSend, call_outcome);
        let sent = outcome(sent);
        if sent.is_pending() && !alone {
            let (patience, only) = (self.sockets[index.0].patience, self.is_alone());
            let watched = self.ring.watch_room(index.0);
            let waited = watched.and_then(|()| match only {
                true => self.wait(patience).map(|_| ()),
                false => Ok(()),
            });
            if let Err(error) = waited {
                return task::Poll::Ready(Err(error));
            }
        }
        sent
    }

    /// Receives the next buffer of a socket; waits for it when there is no other socket.
    fn receive(&mut self, index: Index) -> task::Poll<io::Result<Received>> {
        match self.ring.receive(index.0) {
            Ok(Some(received)) => return task::Poll::Ready(Ok(received)),
            Ok(None) => {}
            Err(error) => return outcome(Err(error)),
        }
        if !self.is_alone() {
            return task::Poll::Pending;
        }
        let patience = self.sockets[index.0].patience;
        if let Err(error) = self.wait(patience) {
            return task::Poll::Ready(Err(error));
        }
        match self.ring.receive(index.0) {
            Ok(Some(received)) => task::Poll::Ready(Ok(received)),
            Ok(None) => task::Poll::Pending,
            Err(error) => outcome(Err(error)),
        }
    }

    fn wait(&mut self, patience: Duration) -> io::Result<bool> {
        self.calls.begin();
        if R::ON && self.ring.look()? {
            self.calls.end(Call::UringWait, Found::Ready);
            return Ok(true);
        }
        let found = self.ring.wait(patience);
        let how = if R::ON { Found::Waited } else { Found::Ready };
        self.calls.end(Call::UringWait, how);
        found
    }
}

impl<R: Recorder> Adapter for Uring<R> {
    fn new(setup: &Setup) -> io::Result<Self> {
        let (count, bytes) = pool(setup.receive_bytes);
        let count = u16::try_from(count).expect("MOST fits");
        Ok(Self {
            ring: Ring::new(count, bytes)?,
            sockets: Vec::new(),
            outgoing: Buffer::new(setup.send_bytes),
            calls: R::new(&[Call::UringSend, Call::UringWait]),
        })
    }

    fn adopt(&mut self, fd: OwnedFd, options: &FlowOptions) -> io::Result<Index> {
        let socket = connect::take_over(fd, options, true)?;
        self.keep(socket, options)
    }

    fn watch(&self, socket: Index) -> Option<Watch> {
        Some(Watch::of(&self.sockets[socket.0].socket))
    }

    fn descriptors(&self) -> Option<Vec<RawFd>> {
        // The ring is a file, too.
        None
    }

    fn connect_many(
        &mut self,
        wanted: &[(SocketAddr, &FlowOptions)],
        called_off: &dyn Fn() -> bool,
    ) -> io::Result<Vec<Index>> {
        let sockets = connect::many(wanted, called_off)?;
        let kept = sockets.into_iter().zip(wanted);
        kept.map(|(socket, (_, options))| self.keep(socket, options))
            .collect()
    }

    fn sleep_without_limit(&mut self, _: Index) -> io::Result<()> {
        // Waits of the ring have a timeout of their own at no extra cost.
        Ok(())
    }

    fn start(&mut self, timeline: &Timeline) {
        self.calls.start(timeline);
    }

    fn tally(&self) -> Option<CallTally> {
        self.calls.tally()
    }
}

impl<R: Recorder> Transport for Uring<R> {
    type Socket = Index;

    #[inline]
    fn turn(&mut self) {
        // With several sockets no call waits: their requests are submitted here.
        if !self.is_alone() && self.ring.has_requests() {
            // A failure shows at the next call on a socket.
            let _ = self.ring.look();
        }
    }

    #[inline]
    fn now(&self) -> Nanos {
        clock::now()
    }

    #[inline]
    fn clock() -> Nanos {
        clock::now()
    }

    fn idle(&mut self, until: Option<Nanos>) {
        match until {
            // A failure shows at the next call on a socket.
            None if self.is_alone() => {}
            None => {
                let _ = self.wait(IDLE_PATIENCE);
            }
            Some(until) if until > clock::now() + AWAKE_NS => {
                clock::sleep_until(until - AWAKE_NS);
            }
            Some(_) => {}
        }
    }

    fn connect(&mut self, remote: SocketAddr, options: &FlowOptions) -> io::Result<Index> {
        let socket = connect::open(remote, options)?;
        self.keep(socket, options)
    }

    fn udp_send(
        &mut self,
        socket: Index,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> task::Poll<io::Result<usize>> {
        self.send(socket, bytes, fill)
    }

    fn udp_receive<T>(
        &mut self,
        socket: Index,
        take: impl FnOnce(&[u8], Meta) -> T,
    ) -> task::Poll<io::Result<T>> {
        self.receive(socket).map_ok(|received| match received {
            Received::Piece(piece) => {
                let taken = take(self.ring.payload(&piece).0, Meta::default());
                self.ring.recycle(piece);
                taken
            }
            Received::End => take(&[], Meta::default()),
        })
    }

    fn burst(&self, socket: Index, bytes: usize) -> usize {
        let fits = UDP_CALL_BYTES / bytes.max(1);
        self.sockets[socket.0].datagrams.min(fits).max(1)
    }

    fn udp_send_burst(
        &mut self,
        socket: Index,
        bytes: usize,
        count: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> task::Poll<io::Result<usize>> {
        let entry = &mut self.sockets[socket.0];
        if let Some(bytes) = entry.to_segment.take()
            && let Err(error) = socket::set_udp_segment(&entry.socket, bytes)
        {
            return task::Poll::Ready(Err(error));
        }
        let sent = self.send(socket, bytes * count, |payload| {
            for (number, datagram) in payload.chunks_mut(bytes).enumerate() {
                fill(number, datagram);
            }
        });
        match sent {
            task::Poll::Ready(Err(error))
                if count > 1 && matches!(error.raw_os_error(), Some(EINVAL | EIO)) =>
            {
                let fewer = SEGMENT_LIMITS.into_iter().find(|&limit| limit < count);
                self.sockets[socket.0].datagrams = fewer.unwrap_or(1);
                task::Poll::Pending
            }
            sent => sent.map_ok(|sent| sent.div_ceil(bytes)),
        }
    }

    fn udp_receive_burst(
        &mut self,
        socket: Index,
        mut take: impl FnMut(&[u8], Meta),
    ) -> task::Poll<io::Result<usize>> {
        self.receive(socket).map_ok(|received| {
            let Received::Piece(piece) = received else {
                return 0;
            };
            let (payload, segment) = self.ring.payload(&piece);
            let meta = Meta {
                segment_bytes: segment,
                ..Meta::default()
            };
            let size = segment.map_or(payload.len(), usize::from).max(1);
            let mut count = 0;
            for datagram in payload.chunks(size) {
                take(datagram, meta);
                count += 1;
            }
            self.ring.recycle(piece);
            count
        })
    }

    fn tcp_send(
        &mut self,
        socket: Index,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> task::Poll<io::Result<usize>> {
        self.send(socket, bytes, fill)
    }

    fn tcp_receive<T>(
        &mut self,
        socket: Index,
        room: usize,
        take: impl FnOnce(&[u8]) -> T,
    ) -> task::Poll<io::Result<T>> {
        let rest = self.sockets[socket.0].rest.take();
        let (piece, from) = match rest {
            Some(rest) => rest,
            None => match self.receive(socket) {
                task::Poll::Ready(Ok(Received::Piece(piece))) => (piece, 0),
                task::Poll::Ready(Ok(Received::End)) => return task::Poll::Ready(Ok(take(&[]))),
                task::Poll::Ready(Err(error)) => return task::Poll::Ready(Err(error)),
                task::Poll::Pending => return task::Poll::Pending,
            },
        };
        let (payload, _) = self.ring.payload(&piece);
        let end = payload.len().min(from + room);
        let whole = end == payload.len();
        let taken = take(&payload[from..end]);
        if whole {
            self.ring.recycle(piece);
        } else {
            self.sockets[socket.0].rest = Some((piece, end));
        }
        task::Poll::Ready(Ok(taken))
    }

    fn finish_sending(&mut self, socket: Index) -> io::Result<()> {
        let socket = &self.sockets[socket.0].socket;
        socket.shutdown(std::net::Shutdown::Write)
    }

    fn release(&mut self, socket: Index) {
        if let Some((piece, _)) = self.sockets[socket.0].rest.take() {
            self.ring.recycle(piece);
        }
        self.ring.forget(socket.0);
    }

    fn facts(&self, socket: Index) -> SocketFacts {
        let entry = &self.sockets[socket.0];
        SocketFacts {
            datagrams_per_call: (entry.datagrams > 1).then_some(entry.datagrams as u32),
            ..facts_of(&entry.socket)
        }
    }

    fn retransmits(&self, socket: Index) -> Option<u64> {
        let info = socket::tcp_info(&self.sockets[socket.0].socket).ok()?;
        Some(u64::from(info.retransmits))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            sleeps_in_calls: false,
            stamps_end_waits: false,
            tells_changes: false,
        }
    }
}
