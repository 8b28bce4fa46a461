//! Transport over kernel sockets.

pub mod connect;
mod options;
mod socket_facts;
pub(super) mod socket_wait;
mod sockets;
mod syscall;
mod timestamping_device;
mod timestamps;
mod transfer;

use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use std::{io, task};

use linerate_record::plan::{
    CopyModes, MAX_DATAGRAM_BYTES, ReceiveCopy, SendCopy, TransportProtocol,
};
use linerate_record::record::SocketFacts;
use linerate_sys::clock::Nanos;
use linerate_sys::datagram_batch::DatagramBatch;
use linerate_sys::pacing::TxtimeSender;
use linerate_sys::packet_timestamps::RealtimeConverter;
use linerate_sys::readiness::Readiness;
use linerate_sys::socket::MessageFlags;
use linerate_sys::zerocopy::SplicePipe;
use linerate_sys::{clock, pacing, packet_timestamps, socket, zerocopy};
use socket2::Socket;

pub use self::socket_facts::congestion_control;
pub use self::socket_facts::{SocketWatch, facts_of};
pub use self::socket_wait::IDLE_TIMEOUT;
pub use self::socket_wait::{BlockingWait, EpollWait, PollWait, SelectWait, SocketWait, SpinWait};
use self::sockets::PeerFilter;
pub use self::syscall::{EINVAL, EIO, to_poll};
use self::syscall::{nonblocking_outcome, send_with};
use self::timestamping_device::TimestampingDevice;
use self::transfer::PayloadSource;
use crate::aligned_buffer::AlignedBuffer;
use crate::call_times::{CallRecorder, CallStats, NoRecorder, TransportCall};
use crate::copy_mode::{CopyMode, ZeroCopySends, create_memory_file};
use crate::{
    CallAttempts, EchoOutcome, FlowOptions, RecvMeta, RunClock, SPIN_BEFORE_DEPARTURE_NS,
    Transport, TransportCapabilities, TransportSetup, TxTimestamp, WorkerTransport,
};

/// Kernel sockets of one thread; `R` records their calls.
pub struct KernelTransport<W, R = NoRecorder> {
    sockets: Vec<Option<KernelSocket>>,
    /// Slots of closed sockets.
    free_slots: Vec<usize>,
    open_count: usize,
    send_buffer: AlignedBuffer,
    receive_buffer: AlignedBuffer,
    wait: W,
    recorder: R,
    /// For `sendmmsg` and `recvmmsg`: the message lists and the receive bytes of each datagram.
    batch: Option<(DatagramBatch, usize)>,
    copies: CopyModes,
    /// Source of `sendfile`, shared by all flows.
    sendfile_source: Option<Arc<File>>,
    /// Payload bytes of a datagram, or of a stream's call.
    payload_bytes: usize,
    /// True from the start of the run. Before it, flow openings are sent and received with copies.
    started: bool,
    /// Converts timestamps to our clock, once they are enabled.
    clock_bridge: Option<RealtimeConverter>,
    /// Clock of the interface, if it makes hardware timestamps.
    timestamping_device: Option<TimestampingDevice>,
    attempts: CallAttempts,
}

/// A socket and the state that its calls need.
struct KernelSocket {
    /// Shared with observers: the coordinator closes it, in the file table in which it was opened.
    socket: Arc<Socket>,
    timeout: Duration,
    /// Datagrams that one send call may hold; 1 without UDP GSO.
    max_datagrams: usize,
    /// UDP GSO size to be set before the first burst. The opening of a flow is larger than a small
    /// datagram and must not be split.
    pending_gso_bytes: Option<u16>,
    /// True if a receive call may return several datagrams (UDP GRO).
    gro: bool,
    /// Send path without a copy, if any.
    copy_mode: Option<CopyMode>,
    /// True if a send on a full socket returns at once, however other calls wait.
    paced: bool,
    /// Departure times for the kernel (SO_TXTIME).
    departure_times: Option<TxtimeSender>,
    /// Peer of its datagrams.
    peer: PeerFilter,
    /// Sends that failed because the remote port is closed (ECONNREFUSED).
    port_unreachable: Arc<AtomicU32>,
    /// Sends that failed because a route, host or link was unreachable.
    unroutable: u32,
}

impl KernelSocket {
    fn with_defaults(socket: Socket, timeout: Duration) -> Self {
        Self {
            socket: Arc::new(socket),
            timeout,
            max_datagrams: 1,
            pending_gso_bytes: None,
            gro: false,
            copy_mode: None,
            paced: false,
            departure_times: None,
            peer: PeerFilter::Connected,
            port_unreachable: Arc::default(),
            unroutable: 0,
        }
    }
}

/// Handle of a socket of a [`KernelTransport`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketIndex(pub usize);

impl<W: SocketWait, R: CallRecorder> WorkerTransport for KernelTransport<W, R> {
    fn new(setup: &TransportSetup) -> io::Result<Self> {
        let batch = setup.batch.map(|batch| {
            let capacity = setup.receive_bytes / batch.max(1);
            (DatagramBatch::new(batch), capacity)
        });
        let mut calls = vec![TransportCall::SendTo, TransportCall::RecvFrom];
        calls.extend(W::WAIT_CALL);
        Ok(Self {
            sockets: Vec::new(),
            free_slots: Vec::new(),
            open_count: 0,
            send_buffer: AlignedBuffer::new(setup.send_bytes),
            receive_buffer: AlignedBuffer::new(setup.receive_bytes),
            wait: W::new(setup.wait)?,
            recorder: R::new(&calls),
            batch,
            copies: setup.copies,
            sendfile_source: match setup.copies.send {
                SendCopy::SendFile => Some(Arc::new(create_memory_file(setup.send_bytes)?)),
                _ => None,
            },
            payload_bytes: setup.send_bytes,
            started: false,
            clock_bridge: None,
            timestamping_device: None,
            attempts: CallAttempts::default(),
        })
    }

    fn adopt(&mut self, fd: OwnedFd, options: &FlowOptions) -> io::Result<SocketIndex> {
        let socket = connect::adopt_socket(fd, options, W::CALLS_BLOCK)?;
        self.add_socket(socket, options, PeerFilter::for_accepted(options))
    }

    fn watch(&self, socket: SocketIndex) -> Option<SocketWatch> {
        let entry = self.socket_entry(socket);
        Some(SocketWatch::of(&entry.socket).with_port_unreachable(&entry.port_unreachable))
    }

    fn descriptors(&self) -> Option<Vec<RawFd>> {
        // Send paths without a copy use pipes and other files.
        let sockets_alone = W::SOCKETS_ONLY && self.copies.send == SendCopy::Copied;
        let sockets = self.sockets.iter().flatten();
        sockets_alone.then(|| sockets.map(|entry| entry.socket.as_raw_fd()).collect())
    }

    fn connect_many(
        &mut self,
        targets: &[(SocketAddr, &FlowOptions)],
        is_cancelled: &dyn Fn() -> bool,
    ) -> io::Result<Vec<SocketIndex>> {
        let sockets = connect::connect_many(targets, is_cancelled)?;
        let sockets_and_targets = sockets.into_iter().zip(targets);
        sockets_and_targets
            .map(|(socket, (remote, options))| {
                self.add_socket(socket, options, PeerFilter::towards(*remote, options))
            })
            .collect()
    }

    fn clear_receive_timeout(&mut self, socket: SocketIndex) -> io::Result<()> {
        self.socket_entry(socket).socket.set_read_timeout(None)
    }

    fn start(&mut self, run_clock: &RunClock) {
        self.started = true;
        self.recorder.start(run_clock);
    }

    fn call_stats(&self) -> Option<CallStats> {
        self.recorder.stats()
    }
}

impl<W: SocketWait, R: CallRecorder> KernelTransport<W, R> {
    fn add_socket(
        &mut self,
        socket: Socket,
        options: &FlowOptions,
        peer: PeerFilter,
    ) -> io::Result<SocketIndex> {
        if options.gro {
            socket::enable_udp_gro(&socket)?;
        }
        let copy_mode = self.choose_copy_mode(&socket, options)?;
        if let Some(bytes) = options.max_rate {
            pacing::set_max_rate(&socket, bytes)?;
        }
        let departures = match options.departure_clock {
            Some(clock) => Some(TxtimeSender::enable(&socket, clock)?),
            None => None,
        };
        Ok(self.insert_socket(KernelSocket {
            socket: Arc::new(socket),
            timeout: options.timeout,
            max_datagrams: match (options.segment_bytes, options.batch) {
                (Some(_), _) => GSO_SEGMENT_LIMITS[0],
                (None, Some(batch)) => batch as usize,
                (None, None) => 1,
            },
            pending_gso_bytes: options.segment_bytes,
            gro: options.gro,
            copy_mode,
            paced: options.paced,
            departure_times: departures,
            peer,
            port_unreachable: Arc::default(),
            unroutable: 0,
        }))
    }

    /// Prepares the send path of a new socket; `None` where payload is copied.
    fn choose_copy_mode(
        &self,
        socket: &Socket,
        options: &FlowOptions,
    ) -> io::Result<Option<CopyMode>> {
        let copy_mode = match (self.copies.send, &self.sendfile_source) {
            (SendCopy::ZeroCopy, _) if options.zero_copy => {
                zerocopy::enable_zero_copy(socket)?;
                let buffer_bytes = match options.protocol {
                    TransportProtocol::Udp => self.payload_bytes,
                    TransportProtocol::Tcp => 0,
                };
                return Ok(Some(CopyMode::ZeroCopy(Box::new(ZeroCopySends::new(
                    buffer_bytes,
                )))));
            }
            (SendCopy::SendFile, Some(file)) => CopyMode::SendFile(Arc::clone(file)),
            (SendCopy::Splice, _) => CopyMode::Splice(SplicePipe::new(self.payload_bytes)?),
            _ => return Ok(None),
        };
        // `sendfile` and `splice` have no flag for a non-blocking call.
        socket.set_nonblocking(true)?;
        Ok(Some(copy_mode))
    }

    #[inline]
    fn socket_entry(&self, index: SocketIndex) -> &KernelSocket {
        self.sockets[index.0].as_ref().expect(SOCKET_IS_OPEN)
    }
}

/// Panic message of a lookup by a stale handle.
const SOCKET_IS_OPEN: &str = "a workload does not use a socket that it closed";

/// Limits of datagrams in one GSO send: Linux 6.9 and later, earlier, and for devices without
/// checksum offload.
pub const GSO_SEGMENT_LIMITS: [usize; 3] = [128, 64, 1];

/// Largest payload of one UDP send call, with or without GSO.
pub const MAX_UDP_CALL_BYTES: usize = MAX_DATAGRAM_BYTES as usize;

impl<W: SocketWait, R: CallRecorder> Transport for KernelTransport<W, R> {
    type Socket = SocketIndex;

    #[inline]
    fn poll(&mut self) {}

    #[inline]
    fn now(&self) -> Nanos {
        clock::now()
    }

    #[inline]
    fn read_clock() -> Nanos {
        clock::now()
    }

    #[inline]
    fn idle(&mut self, until: Option<Nanos>) {
        let Some(until) = until else {
            self.wait.idle(&mut self.recorder, IDLE_TIMEOUT);
            return;
        };
        if W::MAY_SLEEP && until > clock::now() + SPIN_BEFORE_DEPARTURE_NS {
            clock::sleep_until(until - SPIN_BEFORE_DEPARTURE_NS);
        }
    }

    fn connect(&mut self, remote: SocketAddr, options: &FlowOptions) -> io::Result<SocketIndex> {
        let socket = connect::open(remote, options)?;
        self.add_socket(socket, options, PeerFilter::towards(remote, options))
    }

    fn open(&mut self, remote: SocketAddr, options: &FlowOptions) -> io::Result<SocketIndex> {
        self.open_socket(remote, options)
    }

    fn bind(&mut self, socket: SocketIndex, local: SocketAddr) -> io::Result<()> {
        self.bind_socket(socket, local)
    }

    fn poll_connect(
        &mut self,
        socket: SocketIndex,
        remote: SocketAddr,
    ) -> task::Poll<io::Result<()>> {
        self.connect_socket(socket, remote)
    }

    fn accept(
        &mut self,
        listener: SocketIndex,
        options: &FlowOptions,
    ) -> task::Poll<io::Result<SocketIndex>> {
        self.accept_socket(listener, options)
    }

    fn close(&mut self, socket: SocketIndex) {
        self.close_socket(socket);
    }

    fn connect_to_last_sender(&mut self, socket: SocketIndex) {
        self.limit_to_last_sender(socket);
    }

    fn set_receive_timeout(&mut self, socket: SocketIndex, timeout: Duration) {
        self.set_timeout(socket, timeout);
    }

    #[inline]
    fn udp_send(
        &mut self,
        socket: SocketIndex,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> task::Poll<io::Result<usize>> {
        if self.started
            && matches!(
                self.socket_entry(socket).copy_mode,
                Some(CopyMode::ZeroCopy(_))
            )
        {
            let mut fill = Some(fill);
            return self.send_zero_copy_datagrams(socket, bytes, 1, |_, payload| {
                if let Some(fill) = fill.take() {
                    fill(payload);
                }
            });
        }
        self.send(socket, bytes, fill)
    }

    #[inline]
    fn udp_send_at(
        &mut self,
        socket: SocketIndex,
        bytes: usize,
        at_ns: Nanos,
        fill: impl FnOnce(&mut [u8]),
    ) -> task::Poll<io::Result<usize>> {
        let entry = self.sockets[socket.0].as_ref().expect(SOCKET_IS_OPEN);
        let Some(departures) = entry.departure_times else {
            return self.udp_send(socket, bytes, fill);
        };
        let payload = self.send_buffer.prefix(bytes);
        fill(payload);
        self.recorder.begin();
        let sent = departures.send(&entry.socket, payload, MessageFlags::DONT_WAIT, at_ns);
        self.recorder
            .end(TransportCall::SendMsg, nonblocking_outcome(&sent));
        self.finish_send(socket, sent)
    }

    #[inline]
    fn udp_receive<T>(
        &mut self,
        socket: SocketIndex,
        take: impl FnOnce(&[u8], RecvMeta) -> T,
    ) -> task::Poll<io::Result<T>> {
        let capacity = self.receive_buffer.length;
        let received = match self.socket_entry(socket).peer {
            PeerFilter::Connected => {
                self.receive(socket, TransportCall::RecvFrom, capacity, socket::receive)
            }
            _ => self.receive_from_peer(socket),
        };
        received.map_ok(|bytes| take(self.receive_buffer.prefix(bytes), RecvMeta::default()))
    }

    #[inline]
    fn udp_echo(
        &mut self,
        socket: SocketIndex,
        buffer: &mut [u8],
        is_request: impl FnOnce(&[u8]) -> bool,
    ) -> task::Poll<io::Result<EchoOutcome>> {
        let bytes = match self.udp_receive(socket, |payload, _| payload.len().min(buffer.len())) {
            task::Poll::Ready(Ok(bytes)) => bytes,
            task::Poll::Ready(Err(error)) => return task::Poll::Ready(Err(error)),
            task::Poll::Pending => return task::Poll::Pending,
        };
        if !is_request(self.receive_buffer.prefix(bytes)) {
            return task::Poll::Ready(Ok(EchoOutcome::Ignored));
        }
        match self.send_buffered(socket, bytes, PayloadSource::ReceiveBuffer) {
            task::Poll::Ready(sent) => task::Poll::Ready(sent.map(EchoOutcome::Sent)),
            task::Poll::Pending => {
                buffer[..bytes].copy_from_slice(self.receive_buffer.prefix(bytes));
                task::Poll::Ready(Ok(EchoOutcome::Full(bytes)))
            }
        }
    }

    #[inline]
    fn max_burst(&self, socket: SocketIndex, bytes: usize) -> usize {
        let max_by_size = match &self.batch {
            Some(_) => self.send_buffer.length / bytes.max(1),
            None => MAX_UDP_CALL_BYTES / bytes.max(1),
        };
        self.socket_entry(socket)
            .max_datagrams
            .min(max_by_size)
            .max(1)
    }

    #[inline]
    fn udp_send_burst(
        &mut self,
        socket: SocketIndex,
        bytes: usize,
        count: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> task::Poll<io::Result<usize>> {
        if let Some((messages, _)) = &mut self.batch {
            let payload = self.send_buffer.prefix(bytes * count);
            for (number, datagram) in payload.chunks_mut(bytes).enumerate() {
                fill(number, datagram);
            }
            let entry = self.sockets[socket.0].as_ref().expect(SOCKET_IS_OPEN);
            let calls = &mut self.recorder;
            let sent = send_with::<W, R>(calls, TransportCall::SendMmsg, count, |from, flags| {
                messages.send(&entry.socket, &payload[from * bytes..], bytes, flags)
            });
            return self.finish_send(socket, sent);
        }
        let entry = self.sockets[socket.0].as_mut().expect(SOCKET_IS_OPEN);
        if let Some(bytes) = entry.pending_gso_bytes.take()
            && let Err(error) = socket::enable_udp_gso(&entry.socket, bytes)
        {
            return task::Poll::Ready(Err(error));
        }
        let sent = if matches!(
            self.socket_entry(socket).copy_mode,
            Some(CopyMode::ZeroCopy(_))
        ) {
            self.send_zero_copy_datagrams(socket, bytes, count, fill)
        } else {
            self.send(socket, bytes * count, |payload| {
                for (number, datagram) in payload.chunks_mut(bytes).enumerate() {
                    fill(number, datagram);
                }
            })
        };
        match sent {
            task::Poll::Ready(Err(error))
                if count > 1 && matches!(error.raw_os_error(), Some(EINVAL | EIO)) =>
            {
                let entry = self.sockets[socket.0].as_mut().expect(SOCKET_IS_OPEN);
                let fewer = GSO_SEGMENT_LIMITS.into_iter().find(|&limit| limit < count);
                entry.max_datagrams = fewer.unwrap_or(1);
                task::Poll::Pending
            }
            sent => sent.map_ok(|sent| sent.div_ceil(bytes)),
        }
    }

    #[inline]
    fn udp_receive_burst(
        &mut self,
        socket: SocketIndex,
        mut take: impl FnMut(&[u8], RecvMeta),
    ) -> task::Poll<io::Result<usize>> {
        if let Some((mut messages, capacity)) = self.batch.take() {
            let total_bytes = self.receive_buffer.length;
            let received = self.receive(
                socket,
                TransportCall::RecvMmsg,
                total_bytes,
                |socket, all, flags| messages.receive(socket, all, capacity, flags),
            );
            if let task::Poll::Ready(Ok(count)) = received {
                let all = self.receive_buffer.prefix(total_bytes);
                for (number, slot) in all.chunks(capacity).take(count).enumerate() {
                    take(
                        &slot[..messages.length(number).min(capacity)],
                        RecvMeta::default(),
                    );
                }
            }
            self.batch = Some((messages, capacity));
            return received;
        }
        if !self.socket_entry(socket).gro {
            return self.udp_receive(socket, take).map_ok(|()| 1);
        }
        let capacity = self.receive_buffer.length;
        let received = self.receive(
            socket,
            TransportCall::RecvMsg,
            capacity,
            socket::receive_segments,
        );
        received.map_ok(|(bytes, segment)| {
            let meta = RecvMeta {
                segment_bytes: segment,
                ..RecvMeta::default()
            };
            let size = segment.map_or(bytes, usize::from).max(1);
            let mut count = 0;
            for datagram in self.receive_buffer.prefix(bytes).chunks(size) {
                take(datagram, meta);
                count += 1;
            }
            count
        })
    }

    #[inline]
    fn tcp_send(
        &mut self,
        socket: SocketIndex,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> task::Poll<io::Result<usize>> {
        if self.started && self.socket_entry(socket).copy_mode.is_some() {
            return self.send_without_copy(socket, bytes);
        }
        self.send(socket, bytes, fill)
    }

    #[inline]
    fn tcp_receive<T>(
        &mut self,
        socket: SocketIndex,
        capacity: usize,
        take: impl FnOnce(&[u8]) -> T,
    ) -> task::Poll<io::Result<T>> {
        if self.copies.receive == ReceiveCopy::Discarded && self.started {
            let received = self.receive(
                socket,
                TransportCall::RecvFrom,
                capacity,
                |socket, buffer, flags| {
                    socket::receive(socket, buffer, flags.union(MessageFlags::TRUNCATE))
                },
            );
            // MSG_TRUNC discards the payload: only the length is valid.
            return received.map_ok(|bytes| take(self.receive_buffer.prefix(bytes)));
        }
        let received = self.receive(socket, TransportCall::RecvFrom, capacity, socket::receive);
        received.map_ok(|bytes| take(self.receive_buffer.prefix(bytes)))
    }

    fn enable_timestamps(
        &mut self,
        socket: SocketIndex,
        protocol: TransportProtocol,
    ) -> io::Result<Vec<String>> {
        self.start_timestamps(socket, protocol)
    }

    #[inline]
    fn receive_with_timestamp<T>(
        &mut self,
        socket: SocketIndex,
        capacity: usize,
        take: impl FnOnce(&[u8], RecvMeta) -> T,
    ) -> task::Poll<io::Result<T>> {
        self.receive_timestamped(socket, capacity, take)
    }

    fn take_tx_timestamps(
        &mut self,
        socket: SocketIndex,
        take: impl FnMut(TxTimestamp),
    ) -> io::Result<()> {
        self.drain_tx_timestamps(socket, take)
    }

    fn hardware_error_ns(&self) -> Option<Nanos> {
        self.timestamping_device
            .as_ref()
            .map(|device| device.error_ns())
    }

    fn clock_step_ns(&self) -> Nanos {
        self.realtime_step_ns()
    }

    fn shutdown_send(&mut self, socket: SocketIndex) -> io::Result<()> {
        self.socket_entry(socket)
            .socket
            .shutdown(std::net::Shutdown::Write)
    }

    fn deregister(&mut self, socket: SocketIndex) {
        let entry = self.sockets[socket.0].as_mut().expect(SOCKET_IS_OPEN);
        if let Some(CopyMode::ZeroCopy(sends)) = &mut entry.copy_mode {
            sends.await_completions(&mut self.recorder, &entry.socket);
        }
        self.wait.deregister(socket.0, &entry.socket);
    }

    fn register(&mut self, socket: SocketIndex, ready: Readiness, key: usize) -> io::Result<bool> {
        let entry = self.sockets[socket.0].as_ref().expect(SOCKET_IS_OPEN);
        self.wait.register(socket.0, &entry.socket, ready, key)
    }

    fn register_edge_triggered(&mut self, socket: SocketIndex, key: usize) -> io::Result<()> {
        let entry = self.sockets[socket.0].as_ref().expect(SOCKET_IS_OPEN);
        (self.wait).register_edge_triggered(socket.0, &entry.socket, key)
    }

    #[inline]
    fn wait_ready(&mut self, keys: &mut Vec<usize>, timeout: Duration) {
        self.wait.wait_ready(&mut self.recorder, keys, timeout);
    }

    fn call_attempts(&self) -> Option<CallAttempts> {
        Some(self.attempts)
    }

    fn socket_facts(&self, socket: SocketIndex) -> SocketFacts {
        let entry = self.socket_entry(socket);
        SocketFacts {
            datagrams_per_call: (entry.max_datagrams > 1).then_some(entry.max_datagrams as u32),
            zero_copy: match &entry.copy_mode {
                Some(CopyMode::ZeroCopy(sends)) => Some(sends.facts()),
                _ => None,
            },
            port_unreachable: Some(entry.port_unreachable.load(Relaxed))
                .filter(|&failed_sends| failed_sends > 0),
            unroutable: (entry.unroutable > 0).then_some(entry.unroutable),
            ..facts_of(&entry.socket)
        }
    }

    fn retransmits(&self, socket: SocketIndex) -> Option<u64> {
        let info = socket::read_tcp_info(&self.socket_entry(socket).socket).ok()?;
        Some(u64::from(info.retransmits))
    }

    fn track_arrivals(&self, socket: SocketIndex) {
        // The first query enables timestamps; its result does not matter.
        let _ = packet_timestamps::read_last_rx_timestamp(&self.socket_entry(socket).socket);
    }

    fn since_arrival_ns(&self, socket: SocketIndex) -> Option<Nanos> {
        let socket = &self.socket_entry(socket).socket;
        if let Some(arrived) = packet_timestamps::read_last_rx_timestamp(socket) {
            return Some(clock::now_realtime().saturating_sub(arrived));
        }
        // A jiffy of the slowest kernels (100 Hz) bounds the rounding error.
        const TICK_MS: u64 = 10;
        let info = socket::read_tcp_info(socket).ok()?;
        let elapsed_ms = u64::from(info.since_received_ms).checked_sub(TICK_MS)?;
        (elapsed_ms > 0).then_some(elapsed_ms * 1_000_000)
    }

    fn capabilities(&self) -> TransportCapabilities {
        TransportCapabilities {
            blocks_in_calls: W::BLOCKS_ON_ONE_SOCKET,
            timestamps_end_waits: W::WAIT_CALL.is_some(),
            has_edge_trigger: W::EDGE_TRIGGERED,
        }
    }
}
