//! Transport over io_uring: a send is submitted and waited for; multishot receives fill registered
//! buffers.

use std::net::SocketAddr;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;
use std::{io, task};

use linerate_record::plan::TransportProtocol;
use linerate_record::record::SocketFacts;
use linerate_sys::clock::Nanos;
use linerate_sys::uring::{ReceiveKind, ReceiveResult, ReceivedBuffer, UringSockets};
use linerate_sys::{clock, pacing, socket};
use socket2::Socket;

use crate::aligned_buffer::AlignedBuffer;
use crate::call_times::{CallOutcome, CallRecorder, CallStats, TransportCall};
use crate::kernel::{
    EINVAL, EIO, GSO_SEGMENT_LIMITS, IDLE_TIMEOUT, MAX_UDP_CALL_BYTES, SocketIndex, SocketWatch,
    connect, facts_of, to_poll,
};
use crate::{
    FlowOptions, PeerAddressing, RecvMeta, RunClock, SPIN_BEFORE_DEPARTURE_NS, Transport,
    TransportCapabilities, TransportSetup, WorkerTransport,
};

/// Receive memory in all, in bytes.
const POOL_BYTES: usize = 1 << 20;

/// Largest buffer: the largest datagram, and what one receive of a stream returns.
const MAX_BUFFER_BYTES: usize = 64 << 10;

/// Bounds of the number of buffers; the kernel accepts powers of two.
const MIN_BUFFERS: usize = 8;
const MAX_BUFFERS: usize = 1_024;

/// Returns the memory of a ring's buffers when each call receives up to `receive_bytes`.
#[must_use]
pub fn pool_bytes(receive_bytes: usize) -> usize {
    let (count, bytes) = pool_shape(receive_bytes);
    count * bytes
}

fn pool_shape(receive_bytes: usize) -> (usize, usize) {
    let bytes = receive_bytes.clamp(64, MAX_BUFFER_BYTES);
    let count = (POOL_BYTES / bytes).clamp(MIN_BUFFERS, MAX_BUFFERS);
    // The largest power of two that is not above it.
    (1 << count.ilog2(), bytes)
}

/// Sockets of one thread on one io_uring; `R` records their calls.
pub struct UringTransport<R> {
    // Declared before the sockets, so that its requests end before they are closed.
    ring: UringSockets,
    sockets: Vec<UringSocket>,
    send_buffer: AlignedBuffer,
    recorder: R,
}

struct UringSocket {
    socket: Arc<Socket>,
    timeout: Duration,
    max_datagrams: usize,
    pending_gso_bytes: Option<u16>,
    /// True if a send on a full socket returns at once: the next datagram has its own departure
    /// time.
    paced: bool,
    /// Unread rest of the last received buffer: the buffer and the offset in it.
    unread: Option<(ReceivedBuffer, usize)>,
}

impl<R: CallRecorder> UringTransport<R> {
    fn add_socket(&mut self, socket: Socket, options: &FlowOptions) -> io::Result<SocketIndex> {
        if options.addressing != PeerAddressing::Connected {
            // Sends and receives carry no address, and sockets cannot be opened during the run.
            return Err(io::ErrorKind::Unsupported.into());
        }
        let kind = match (options.protocol, options.gro) {
            (TransportProtocol::Tcp, _) => ReceiveKind::Stream,
            (TransportProtocol::Udp, false) => ReceiveKind::Datagrams,
            (TransportProtocol::Udp, true) => {
                socket::enable_udp_gro(&socket)?;
                ReceiveKind::Coalesced
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
        self.sockets.push(UringSocket {
            socket: Arc::new(socket),
            timeout: options.timeout,
            max_datagrams: match options.segment_bytes {
                Some(_) => GSO_SEGMENT_LIMITS[0],
                None => 1,
            },
            pending_gso_bytes: options.segment_bytes,
            paced: options.paced,
            unread: None,
        });
        Ok(SocketIndex(number))
    }

    /// Returns whether there is one socket, which may be waited for; several are polled in
    /// rotation.
    fn has_one_socket(&self) -> bool {
        self.sockets.len() == 1
    }

    fn send(
        &mut self,
        index: SocketIndex,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> task::Poll<io::Result<usize>> {
        let entry = &self.sockets[index.0];
        // Only then may the send block.
        let may_wait_for_send = self.has_one_socket() && !entry.paced;
        let payload = self.send_buffer.prefix(bytes);
        fill(payload);
        let timeout = if may_wait_for_send {
            entry.timeout
        } else {
            Duration::ZERO
        };
        self.recorder.begin();
        let immediate = if R::ON && may_wait_for_send {
            // As with blocking calls: tried without blocking, to detect whether there was space.
            self.ring.send(index.0, payload, Duration::ZERO)
        } else {
            self.ring.send(index.0, payload, timeout)
        };
        let taken = match &immediate {
            Ok(taken) => *taken,
            Err(_) => 0,
        };
        let full = taken < payload.len();
        let may_wait = match &immediate {
            Ok(_) => full,
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        };
        let sent = if R::ON && may_wait_for_send && may_wait {
            match self.ring.send(index.0, &payload[taken..], timeout) {
                Ok(more) => Ok(taken + more),
                Err(_) if taken > 0 => Ok(taken),
                Err(error) => Err(error),
            }
        } else {
            immediate
        };
        let call_outcome = if full {
            CallOutcome::Waited
        } else {
            CallOutcome::Ready
        };
        self.recorder.end(TransportCall::UringSend, call_outcome);
        let sent = to_poll(sent);
        if sent.is_pending() && !may_wait_for_send {
            let (timeout, has_one_socket) = (self.sockets[index.0].timeout, self.has_one_socket());
            let registered = self.ring.poll_writable(index.0);
            let waited = registered.and_then(|()| match has_one_socket {
                true => self.wait_for_events(timeout).map(|_| ()),
                false => Ok(()),
            });
            if let Err(error) = waited {
                return task::Poll::Ready(Err(error));
            }
        }
        sent
    }

    /// Receives the next buffer of a socket; waits for it when there is no other socket.
    fn receive(&mut self, index: SocketIndex) -> task::Poll<io::Result<ReceiveResult>> {
        match self.ring.receive(index.0) {
            Ok(Some(received)) => return task::Poll::Ready(Ok(received)),
            Ok(None) => {}
            Err(error) => return to_poll(Err(error)),
        }
        if !self.has_one_socket() {
            return task::Poll::Pending;
        }
        let timeout = self.sockets[index.0].timeout;
        if let Err(error) = self.wait_for_events(timeout) {
            return task::Poll::Ready(Err(error));
        }
        match self.ring.receive(index.0) {
            Ok(Some(received)) => task::Poll::Ready(Ok(received)),
            Ok(None) => task::Poll::Pending,
            Err(error) => to_poll(Err(error)),
        }
    }

    fn wait_for_events(&mut self, timeout: Duration) -> io::Result<bool> {
        self.recorder.begin();
        if R::ON && self.ring.poll()? {
            self.recorder
                .end(TransportCall::UringWait, CallOutcome::Ready);
            return Ok(true);
        }
        let woken = self.ring.wait(timeout);
        let wait_outcome = if R::ON {
            CallOutcome::Waited
        } else {
            CallOutcome::Ready
        };
        self.recorder.end(TransportCall::UringWait, wait_outcome);
        woken
    }
}

impl<R: CallRecorder> WorkerTransport for UringTransport<R> {
    fn new(setup: &TransportSetup) -> io::Result<Self> {
        let (count, bytes) = pool_shape(setup.receive_bytes);
        let count = u16::try_from(count).expect("MOST fits");
        Ok(Self {
            ring: UringSockets::new(count, bytes)?,
            sockets: Vec::new(),
            send_buffer: AlignedBuffer::new(setup.send_bytes),
            recorder: R::new(&[TransportCall::UringSend, TransportCall::UringWait]),
        })
    }

    fn adopt(&mut self, fd: OwnedFd, options: &FlowOptions) -> io::Result<SocketIndex> {
        let socket = connect::adopt_socket(fd, options, true)?;
        self.add_socket(socket, options)
    }

    fn watch(&self, socket: SocketIndex) -> Option<SocketWatch> {
        Some(SocketWatch::of(&self.sockets[socket.0].socket))
    }

    fn descriptors(&self) -> Option<Vec<RawFd>> {
        // The ring is a file, too.
        None
    }

    fn connect_many(
        &mut self,
        targets: &[(SocketAddr, &FlowOptions)],
        is_cancelled: &dyn Fn() -> bool,
    ) -> io::Result<Vec<SocketIndex>> {
        let sockets = connect::connect_many(targets, is_cancelled)?;
        let sockets_and_targets = sockets.into_iter().zip(targets);
        sockets_and_targets
            .map(|(socket, (_, options))| self.add_socket(socket, options))
            .collect()
    }

    fn clear_receive_timeout(&mut self, _: SocketIndex) -> io::Result<()> {
        // Waits of the ring have a timeout of their own at no extra cost.
        Ok(())
    }

    fn start(&mut self, run_clock: &RunClock) {
        self.recorder.start(run_clock);
    }

    fn call_stats(&self) -> Option<CallStats> {
        self.recorder.stats()
    }
}

impl<R: CallRecorder> Transport for UringTransport<R> {
    type Socket = SocketIndex;

    #[inline]
    fn poll(&mut self) {
        // With several sockets no call waits: their requests are submitted here.
        if !self.has_one_socket() && self.ring.has_requests() {
            // A failure shows at the next call on a socket.
            let _ = self.ring.poll();
        }
    }

    #[inline]
    fn now(&self) -> Nanos {
        clock::now()
    }

    #[inline]
    fn read_clock() -> Nanos {
        clock::now()
    }

    fn idle(&mut self, until: Option<Nanos>) {
        match until {
            // A failure shows at the next call on a socket.
            None if self.has_one_socket() => {}
            None => {
                let _ = self.wait_for_events(IDLE_TIMEOUT);
            }
            Some(until) if until > clock::now() + SPIN_BEFORE_DEPARTURE_NS => {
                clock::sleep_until(until - SPIN_BEFORE_DEPARTURE_NS);
            }
            Some(_) => {}
        }
    }

    fn connect(&mut self, remote: SocketAddr, options: &FlowOptions) -> io::Result<SocketIndex> {
        let socket = connect::open(remote, options)?;
        self.add_socket(socket, options)
    }

    fn udp_send(
        &mut self,
        socket: SocketIndex,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> task::Poll<io::Result<usize>> {
        self.send(socket, bytes, fill)
    }

    fn udp_receive<T>(
        &mut self,
        socket: SocketIndex,
        take: impl FnOnce(&[u8], RecvMeta) -> T,
    ) -> task::Poll<io::Result<T>> {
        self.receive(socket).map_ok(|received| match received {
            ReceiveResult::Buffer(buffer) => {
                let taken = take(self.ring.payload(&buffer).0, RecvMeta::default());
                self.ring.recycle(buffer);
                taken
            }
            ReceiveResult::End => take(&[], RecvMeta::default()),
        })
    }

    fn max_burst(&self, socket: SocketIndex, bytes: usize) -> usize {
        let fits = MAX_UDP_CALL_BYTES / bytes.max(1);
        self.sockets[socket.0].max_datagrams.min(fits).max(1)
    }

    fn udp_send_burst(
        &mut self,
        socket: SocketIndex,
        bytes: usize,
        count: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> task::Poll<io::Result<usize>> {
        let entry = &mut self.sockets[socket.0];
        if let Some(bytes) = entry.pending_gso_bytes.take()
            && let Err(error) = socket::enable_udp_gso(&entry.socket, bytes)
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
                let fewer = GSO_SEGMENT_LIMITS.into_iter().find(|&limit| limit < count);
                self.sockets[socket.0].max_datagrams = fewer.unwrap_or(1);
                task::Poll::Pending
            }
            sent => sent.map_ok(|sent| sent.div_ceil(bytes)),
        }
    }

    fn udp_receive_burst(
        &mut self,
        socket: SocketIndex,
        mut take: impl FnMut(&[u8], RecvMeta),
    ) -> task::Poll<io::Result<usize>> {
        self.receive(socket).map_ok(|received| {
            let ReceiveResult::Buffer(buffer) = received else {
                return 0;
            };
            let (payload, segment) = self.ring.payload(&buffer);
            let meta = RecvMeta {
                segment_bytes: segment,
                ..RecvMeta::default()
            };
            let size = segment.map_or(payload.len(), usize::from).max(1);
            let mut count = 0;
            for datagram in payload.chunks(size) {
                take(datagram, meta);
                count += 1;
            }
            self.ring.recycle(buffer);
            count
        })
    }

    fn tcp_send(
        &mut self,
        socket: SocketIndex,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> task::Poll<io::Result<usize>> {
        self.send(socket, bytes, fill)
    }

    fn tcp_receive<T>(
        &mut self,
        socket: SocketIndex,
        max_bytes: usize,
        take: impl FnOnce(&[u8]) -> T,
    ) -> task::Poll<io::Result<T>> {
        let unread = self.sockets[socket.0].unread.take();
        let (buffer, from) = match unread {
            Some(unread) => unread,
            None => match self.receive(socket) {
                task::Poll::Ready(Ok(ReceiveResult::Buffer(buffer))) => (buffer, 0),
                task::Poll::Ready(Ok(ReceiveResult::End)) => {
                    return task::Poll::Ready(Ok(take(&[])));
                }
                task::Poll::Ready(Err(error)) => return task::Poll::Ready(Err(error)),
                task::Poll::Pending => return task::Poll::Pending,
            },
        };
        let (payload, _) = self.ring.payload(&buffer);
        let end = payload.len().min(from + max_bytes);
        let is_complete = end == payload.len();
        let taken = take(&payload[from..end]);
        if is_complete {
            self.ring.recycle(buffer);
        } else {
            self.sockets[socket.0].unread = Some((buffer, end));
        }
        task::Poll::Ready(Ok(taken))
    }

    fn shutdown_send(&mut self, socket: SocketIndex) -> io::Result<()> {
        let socket = &self.sockets[socket.0].socket;
        socket.shutdown(std::net::Shutdown::Write)
    }

    fn deregister(&mut self, socket: SocketIndex) {
        if let Some((buffer, _)) = self.sockets[socket.0].unread.take() {
            self.ring.recycle(buffer);
        }
        self.ring.remove(socket.0);
    }

    fn socket_facts(&self, socket: SocketIndex) -> SocketFacts {
        let entry = &self.sockets[socket.0];
        SocketFacts {
            datagrams_per_call: (entry.max_datagrams > 1).then_some(entry.max_datagrams as u32),
            ..facts_of(&entry.socket)
        }
    }

    fn retransmits(&self, socket: SocketIndex) -> Option<u64> {
        let info = socket::read_tcp_info(&self.sockets[socket.0].socket).ok()?;
        Some(u64::from(info.retransmits))
    }

    fn capabilities(&self) -> TransportCapabilities {
        TransportCapabilities {
            blocks_in_calls: false,
            timestamps_end_waits: false,
            has_edge_trigger: false,
        }
    }
}
