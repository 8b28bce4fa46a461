//! Transports: the seam between workloads and the network stack that moves their payload.
//!
//! Start at [`Transport`], which kernel sockets, io_uring and our user-space stack implement. A
//! transport is owned by one thread; there is no lock in its path. The wait mode (block, spin,
//! `poll`, `select`, `epoll`) is chosen when the run starts, and workloads are compiled once for
//! every combination.
//!
//! A transport decides neither what is sent nor when: that is the workload's.
#![forbid(unsafe_code)]

pub mod flow_options;
pub mod flow_role;
mod socket_defaults;

mod kernel;
pub mod netstack;
pub mod stack_thread;
mod uring;

mod aligned_buffer;
pub mod call_times;
mod copy_mode;
mod error;
pub mod payload_pattern;
mod run_clock;

#[cfg(any(test, feature = "test-support"))]
pub mod test_support;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{OwnedFd, RawFd};
use std::task::Poll;
use std::time::Duration;

use call_times::CallStats;
use linerate_record::plan::{CopyModes, SocketPlan, TransportProtocol, WaitMode};
use linerate_record::record::SocketFacts;
use linerate_record::stack::StackFacts;
use linerate_sys::clock::Nanos;
use linerate_sys::pacing::TxtimeClock;

pub use copy_mode::zero_copy_bytes;
pub use error::TransportError;
pub use kernel::connect::open as open_socket;
pub use kernel::{
    BlockingWait, EpollWait, KernelTransport, PollWait as PollCall, SelectWait, SocketWait,
    SocketWatch, SpinWait,
};
pub use kernel::{congestion_control, facts_of};
use linerate_sys::packet_timestamps::TxTimestampPoint;
use linerate_sys::readiness::Readiness;
pub use netstack::{
    NetstackTransport, RecordingNetstack, close_reason, connect_timeout_reason,
    to_io_error as stack_error,
};
pub use run_clock::RunClock;
pub use uring::{UringTransport, pool_bytes};

/// Largest number of round trips kept: 1 MiB at each end.
pub const MAX_TIMESTAMPED_ROUND_TRIPS: usize = 1 << 14;

/// Longest time in which a connection may open: two retransmitted SYNs (1 s + 2 s) and a reserve.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// [`CONNECT_TIMEOUT`] in nanoseconds.
const CONNECT_TIMEOUT_NS: Nanos = CONNECT_TIMEOUT.as_nanos() as Nanos;

/// Time before a departure during which the thread spins: a sleep ends up to 70 us late on a core
/// that halts.
pub const SPIN_BEFORE_DEPARTURE_NS: Nanos = 150_000;

/// Longest time that a thread idles before it checks the phase of the run.
pub const MAX_IDLE_NS: Nanos = 100_000_000;

/// Metadata of received payload. A field is `None` when it was not requested or the transport
/// does not support it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecvMeta {
    /// Time at which the stack received the packet, on the transport's clock.
    pub timestamp_ns: Option<u64>,
    /// Hardware receive timestamp, converted to the transport's clock.
    pub hardware_ns: Option<u64>,
    /// Time at which the user-space stack appended it to the socket's receive queue.
    pub queued_ns: Option<u64>,
    /// Datagrams dropped because the receive queue was full, since the socket was opened.
    pub queue_drops: Option<u32>,
    /// Payload bytes of each datagram, when several were received as one (UDP GRO).
    pub segment_bytes: Option<u16>,
    /// Type of service (IPv4) or traffic class (IPv6).
    pub tos: Option<u8>,
}

/// Transmit timestamp: a packet passed one point on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxTimestamp {
    /// Datagrams: number of the send call, from 0. Streams: number of the call's last byte. Both
    /// modulo 2^32, as with SO_TIMESTAMPING.
    pub id: u32,
    pub point: TxTimestampPoint,
    /// Time on the transport's clock.
    pub at_ns: Nanos,
    /// True for a hardware timestamp, false for one of the stack.
    pub is_hardware: bool,
}

/// Differences between transports, as data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportCapabilities {
    /// True if a call may block until its one socket is ready. A workload with several sockets on
    /// one thread needs a transport without this.
    pub blocks_in_calls: bool,
    /// True if a transmit timestamp ends a wait for payload, so that it must be read before the
    /// next wait.
    pub timestamps_end_waits: bool,
    /// True if sockets can be registered edge-triggered ([`Transport::register_edge_triggered`]).
    pub has_edge_trigger: bool,
}

/// Options of a flow to be opened.
#[derive(Clone, Debug)]
pub struct FlowOptions {
    pub protocol: TransportProtocol,
    /// Local address and port; with port 0 the stack chooses one.
    pub local: Option<SocketAddr>,
    /// Interface to bind to (SO_BINDTODEVICE).
    pub interface: Option<String>,
    /// Socket options to set.
    pub socket_plan: SocketPlan,
    /// Congestion control to set (TCP_CONGESTION).
    pub congestion_control: Option<String>,
    /// Payload bytes of each datagram that one send call is split into (UDP GSO).
    pub segment_bytes: Option<u16>,
    /// True to receive several datagrams of one size per call (UDP GRO).
    pub gro: bool,
    /// Largest number of datagrams per call (`sendmmsg`, `recvmmsg`).
    pub batch: Option<u32>,
    /// Sends without a copy: MSG_ZEROCOPY, or written directly into the user-space stack's buffers.
    pub zero_copy: bool,
    /// Hands received stream payload to the workload in the user-space stack's buffers, without a
    /// copy. Kernel sockets use [`TransportSetup::copies`] instead.
    pub receive_in_place: bool,
    /// UDP: datagrams have individual departure times. A send on a full socket then returns at once
    /// instead of blocking.
    pub paced: bool,
    /// Rate limit enforced by the kernel (SO_MAX_PACING_RATE), in bytes per second.
    pub max_rate: Option<u64>,
    /// Clock of the departure times passed to the kernel (SO_TXTIME).
    pub departure_clock: Option<TxtimeClock>,
    /// Ignores the system's buffer limits (SO_SNDBUFFORCE, SO_RCVBUFFORCE).
    pub force_buffers: bool,
    /// Time for which a blocking call polls the interface's queue first (SO_BUSY_POLL).
    pub busy_poll: Option<Duration>,
    /// Longest time for which a call may block. It bounds the delay until a stop is noticed, and
    /// the time for which a late response is awaited.
    pub timeout: Duration,
    pub addressing: PeerAddressing,
    /// Hop limit of multicast datagrams.
    pub multicast_hops: u8,
}

/// Addressing of a socket's payload (see socket(7) on connected and unconnected sockets).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PeerAddressing {
    /// Connected to one peer.
    #[default]
    Connected,
    /// Unconnected: a destination is given with each datagram.
    Unconnected,
    /// Sends to a multicast group and receives the responses of the remote end.
    Multicast(IpAddr),
    /// Accepts datagrams or connections from any port of this address and replies to the sender.
    AnyFrom(IpAddr),
}

/// Number of calls on sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallAttempts {
    pub calls: u64,
    /// Calls that moved nothing.
    pub empty: u64,
}

impl CallAttempts {
    /// Returns the calls made since an earlier snapshot.
    #[must_use]
    pub fn since(self, earlier: &Self) -> Self {
        Self {
            calls: self.calls - earlier.calls,
            empty: self.empty - earlier.empty,
        }
    }
}

/// Parameters of a worker thread's transport.
#[derive(Clone, Copy, Debug)]
pub struct TransportSetup {
    pub wait: WaitMode,
    /// Largest payload of one send call, in bytes.
    pub send_bytes: usize,
    /// Largest payload of one receive call, in bytes.
    pub receive_bytes: usize,
    /// Largest number of datagrams per call (`sendmmsg`, `recvmmsg`).
    pub batch: Option<usize>,
    /// Copy modes of sending and receiving, as far as they concern this thread.
    pub copies: CopyModes,
}

/// Operations that worker threads need from a transport beyond those of workloads.
pub trait WorkerTransport: Transport + Sized {
    /// Creates a transport without sockets.
    ///
    /// # Errors
    /// When the process is out of file descriptors, or the kernel rejects a resource.
    fn new(setup: &TransportSetup) -> io::Result<Self>;

    /// Adopts a connected kernel socket that was opened or accepted elsewhere.
    ///
    /// # Errors
    /// When the kernel rejects one of the options.
    fn adopt(&mut self, fd: OwnedFd, options: &FlowOptions) -> io::Result<Self::Socket>;

    /// Adopts a socket of the user-space stack that was opened or accepted elsewhere.
    ///
    /// # Errors
    /// `Unsupported` for transports on kernel sockets.
    fn adopt_netstack(
        &mut self,
        _: linerate_stack::SocketId,
        _: &FlowOptions,
    ) -> io::Result<Self::Socket> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Returns a handle for observation by another thread; the socket stays open as long as the
    /// handle lives. `None` where the transport has no such handle.
    fn watch(&self, socket: Self::Socket) -> Option<SocketWatch>;

    /// Runs the stack while its thread waits for something else. Returns false when the stack needs
    /// no polling, so that the thread may sleep.
    fn poll_background(&mut self) -> bool {
        false
    }

    /// Returns the counters of the user-space stack since the start of the run.
    fn netstack_facts(&mut self) -> Option<Box<StackFacts>> {
        None
    }

    /// Returns the open files of this transport when they are its sockets alone. `None` when the
    /// thread must not get a file table of its own.
    fn descriptors(&self) -> Option<Vec<RawFd>>;

    /// Opens connections in parallel and returns once all are established, in the order of the
    /// targets.
    ///
    /// # Errors
    /// The error of the first connection that fails; `Interrupted` when `is_cancelled` returns
    /// true.
    fn connect_many(
        &mut self,
        targets: &[(SocketAddr, &FlowOptions)],
        is_cancelled: &dyn Fn() -> bool,
    ) -> io::Result<Vec<Self::Socket>>;

    /// Removes the time limit of blocking receive calls; the thread is woken from outside.
    ///
    /// # Errors
    /// The error of `setsockopt`.
    fn clear_receive_timeout(&mut self, socket: Self::Socket) -> io::Result<()>;

    /// Starts the run: calls are recorded from here on, if call timing is enabled.
    fn start(&mut self, run_clock: &RunClock);

    /// Returns the recorded call times.
    fn call_stats(&self) -> Option<CallStats>;
}

/// Outcome of an echo call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EchoOutcome {
    /// Number of bytes sent back.
    Sent(usize),
    /// Number of bytes left in the caller's buffer because the socket was full.
    Full(usize),
    /// The datagram was not a request.
    Ignored,
}

/// Receives one datagram into the caller's buffer and sends it back from there.
fn echo_through_buffer<T: Transport + ?Sized>(
    transport: &mut T,
    socket: T::Socket,
    buffer: &mut [u8],
    is_request: impl FnOnce(&[u8]) -> bool,
) -> Poll<io::Result<EchoOutcome>> {
    let received = transport.udp_receive(socket, |payload, _| {
        let bytes = payload.len().min(buffer.len());
        buffer[..bytes].copy_from_slice(&payload[..bytes]);
        bytes
    });
    let bytes = match received {
        Poll::Ready(Ok(bytes)) => bytes,
        Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
        Poll::Pending => return Poll::Pending,
    };
    let request = &buffer[..bytes];
    if !is_request(request) {
        return Poll::Ready(Ok(EchoOutcome::Ignored));
    }
    match transport.udp_send(socket, bytes, |payload| payload.copy_from_slice(request)) {
        Poll::Ready(sent) => Poll::Ready(sent.map(EchoOutcome::Sent)),
        Poll::Pending => Poll::Ready(Ok(EchoOutcome::Full(bytes))),
    }
}

/// A network stack as workloads use it.
///
/// Payload goes through closures over the transport's own buffer. A user-space stack therefore
/// needs no extra copy; the kernel transports copy from a buffer of theirs. [`Poll::Pending`]
/// means that nothing could be done now: poll, idle, try again.
pub trait Transport {
    /// Handle of a socket of this transport.
    type Socket: Copy;

    /// Runs the stack: reads the clock once, receives a burst, runs timers, transmits.
    fn poll(&mut self);

    /// Returns the current time; a polled stack returns the time of its last poll.
    fn now(&self) -> Nanos;

    /// Reads the clock now; for events between two polls.
    fn read_clock() -> Nanos;

    /// Transmits what was just sent instead of waiting for the next poll. Called before waiting for
    /// the response.
    #[inline]
    fn flush(&mut self) {}

    /// Waits for sockets as configured, or until `until` when the workload waits for a departure
    /// time.
    fn idle(&mut self, until: Option<Nanos>);

    /// Opens a flow to `remote`; returns once it is established.
    ///
    /// # Errors
    /// The error of the stack; `PermissionDenied` when an option is not permitted.
    fn connect(&mut self, remote: SocketAddr, options: &FlowOptions) -> io::Result<Self::Socket>;

    /// Opens a socket that is neither bound nor connected, for flows that do so for each request.
    ///
    /// # Errors
    /// The error of the stack; `Unsupported` where sockets cannot be opened during the run.
    fn open(&mut self, _remote: SocketAddr, _: &FlowOptions) -> io::Result<Self::Socket> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Binds an open socket to a local address.
    ///
    /// # Errors
    /// The error of the stack.
    fn bind(&mut self, _: Self::Socket, _local: SocketAddr) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Starts to connect an open socket, or continues to.
    fn poll_connect(&mut self, _: Self::Socket, _remote: SocketAddr) -> Poll<io::Result<()>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    /// Accepts the next connection of a listening socket.
    fn accept(&mut self, _: Self::Socket, _: &FlowOptions) -> Poll<io::Result<Self::Socket>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    /// Closes a socket. Its handle may be reused.
    fn close(&mut self, _: Self::Socket) {}

    /// Limits an unconnected socket to the sender of the last datagram.
    fn connect_to_last_sender(&mut self, _: Self::Socket) {}

    /// Sets the longest time for which receive calls on a socket wait; zero disables waiting. Calls
    /// that block in the kernel keep the limit of their socket.
    fn set_receive_timeout(&mut self, _: Self::Socket, _: Duration) {}

    /// Sends one datagram of `bytes`, written by `fill` into a buffer of that length.
    ///
    /// The buffer's initial content is undefined.
    fn udp_send(
        &mut self,
        socket: Self::Socket,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Poll<io::Result<usize>>;

    /// Sends one datagram that the stack holds back until `at_ns` where it supports that; otherwise
    /// it is sent at once.
    fn udp_send_at(
        &mut self,
        socket: Self::Socket,
        bytes: usize,
        _at_ns: Nanos,
        fill: impl FnOnce(&mut [u8]),
    ) -> Poll<io::Result<usize>> {
        self.udp_send(socket, bytes, fill)
    }

    /// Receives one datagram and passes it to `take`.
    fn udp_receive<R>(
        &mut self,
        socket: Self::Socket,
        take: impl FnOnce(&[u8], RecvMeta) -> R,
    ) -> Poll<io::Result<R>>;

    /// Receives one datagram and sends it back, up to the size of `buffer`, if `is_request` accepts
    /// it. When the socket is full, the datagram stays in `buffer`.
    ///
    /// A transport that can, sends it from the buffer in which it was received. The two copies
    /// through `buffer` would otherwise add to the round-trip time.
    fn udp_echo(
        &mut self,
        socket: Self::Socket,
        buffer: &mut [u8],
        is_request: impl FnOnce(&[u8]) -> bool,
    ) -> Poll<io::Result<EchoOutcome>> {
        echo_through_buffer(self, socket, buffer, is_request)
    }

    /// Returns the largest number of datagrams of `bytes` for one [`Self::udp_send_burst`].
    fn max_burst(&self, socket: Self::Socket, bytes: usize) -> usize;

    /// Sends up to `count` datagrams of `bytes` each in one call, the nth written by `fill(n, ..)`.
    /// Returns the number accepted.
    fn udp_send_burst(
        &mut self,
        socket: Self::Socket,
        bytes: usize,
        count: usize,
        fill: impl FnMut(usize, &mut [u8]),
    ) -> Poll<io::Result<usize>>;

    /// Receives the waiting datagrams, up to a burst, and passes each to `take`. Returns their
    /// number.
    fn udp_receive_burst(
        &mut self,
        socket: Self::Socket,
        take: impl FnMut(&[u8], RecvMeta),
    ) -> Poll<io::Result<usize>>;

    /// Offers up to `bytes` of stream payload, written by `fill`. Returns the number accepted.
    ///
    /// The rest is discarded: the next call fills again from the end of the accepted part.
    fn tcp_send(
        &mut self,
        socket: Self::Socket,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Poll<io::Result<usize>>;

    /// Receives at most `buffer` bytes of the stream and passes them to `take`; an empty slice is
    /// the end of the stream.
    fn tcp_receive<R>(
        &mut self,
        socket: Self::Socket,
        buffer: usize,
        take: impl FnOnce(&[u8]) -> R,
    ) -> Poll<io::Result<R>>;

    /// Enables timestamps of everything that a socket sends and receives from now on; transmit
    /// timestamps are numbered from here. Returns warnings, such as an unusable hardware clock.
    ///
    /// # Errors
    /// `Unsupported` when this stack has no timestamps; the methods below are then not called.
    fn enable_timestamps(
        &mut self,
        _: Self::Socket,
        _: TransportProtocol,
    ) -> io::Result<Vec<String>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Receives a datagram, or at most `_max_bytes` bytes of a stream, with its receive timestamp.
    fn receive_with_timestamp<R>(
        &mut self,
        _: Self::Socket,
        _max_bytes: usize,
        _take: impl FnOnce(&[u8], RecvMeta) -> R,
    ) -> Poll<io::Result<R>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    /// Passes the transmit timestamps since the last call to `_take`.
    ///
    /// # Errors
    /// The error of the stack.
    fn take_tx_timestamps(
        &mut self,
        _: Self::Socket,
        _take: impl FnMut(TxTimestamp),
    ) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Returns the error bound of hardware timestamps; `None` without hardware timestamps.
    fn hardware_error_ns(&self) -> Option<Nanos> {
        None
    }

    /// Returns the step of the timestamp clock against the transport's clock since timestamps were
    /// enabled (the system time was set meanwhile).
    fn clock_step_ns(&self) -> Nanos {
        0
    }

    /// Shuts down the sending side of a connection.
    ///
    /// # Errors
    /// When the connection no longer exists.
    fn shutdown_send(&mut self, socket: Self::Socket) -> io::Result<()>;

    /// Removes a socket from waiting. It stays open until the transport is dropped, so that late
    /// datagrams of the remote end do not meet a closed port.
    fn deregister(&mut self, socket: Self::Socket);

    /// Registers a socket under a key, level-triggered: [`Self::wait_ready`] returns the key
    /// whenever the socket is ready. Returns false when this transport does not support
    /// registration. Either all sockets are registered or none.
    ///
    /// # Errors
    /// The error of the stack.
    fn register(
        &mut self,
        _socket: Self::Socket,
        _readiness: Readiness,
        _key: usize,
    ) -> io::Result<bool> {
        Ok(false)
    }

    /// Registers a socket under a key, edge-triggered: [`Self::wait_ready`] returns the key once
    /// for each change (connected, data received, send space available) and once for the present
    /// state.
    ///
    /// # Errors
    /// The error of the stack; `Unsupported` where it has no edge-triggered registration.
    fn register_edge_triggered(&mut self, _socket: Self::Socket, _key: usize) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Waits until registered sockets are ready and appends their keys, up to the capacity of
    /// `_keys`, least recently reported first. Appends none when the timeout expires.
    fn wait_ready(&mut self, _keys: &mut Vec<usize>, _timeout: Duration) {}

    /// Returns the number of calls on sockets so far, and of those that found no data or no send
    /// space. `None` where they are not counted.
    fn call_attempts(&self) -> Option<CallAttempts> {
        None
    }

    /// Returns the stack's view of a socket, for the record.
    fn socket_facts(&self, socket: Self::Socket) -> SocketFacts;

    /// Returns the TCP segments retransmitted since the connection began; `None` where they are not
    /// counted.
    fn retransmits(&self, _socket: Self::Socket) -> Option<u64> {
        None
    }

    /// Starts to record the arrivals of a socket, for [`Self::since_arrival_ns`].
    fn track_arrivals(&self, _socket: Self::Socket) {}

    /// Returns a lower bound of the time since the last received payload arrived; `None` where
    /// arrivals are not recorded.
    fn since_arrival_ns(&self, _socket: Self::Socket) -> Option<Nanos> {
        None
    }

    fn capabilities(&self) -> TransportCapabilities;
}
