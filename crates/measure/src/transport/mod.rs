//! What a workload runs on: the seam between what is measured and the stack that moves it.
//!
//! A transport is owned by one thread; there is no lock in its path. How it waits is its own
//! property, chosen when the run starts, and a workload is compiled once for each.

mod kernel;

use std::io;
use std::net::SocketAddr;
use std::task::Poll;
use std::time::Duration;

use linerate_host::sys::clock::Nanos;
use linerate_metric::plan::{Protocol, SocketPlan};
use linerate_metric::record::Socket as SocketFacts;

pub(crate) use kernel::congestion_control;
pub use kernel::{Block, Epoll, Kernel, Poll as PollCall, Select, Spin, Waiting, Watch};

/// What came with received payload. `None`: not asked for, or this transport cannot tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// When the stack took the packet in, on the kernel's real-time clock.
    pub stamp_ns: Option<u64>,
    /// Datagrams that the receive queue has refused since the socket was opened.
    pub queue_drops: Option<u32>,
    /// Payload bytes of each datagram, where several came as one.
    pub segment_bytes: Option<u16>,
    /// Type of service or traffic class.
    pub tos: Option<u8>,
}

/// What differs between transports, as data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Whether a call may sleep until its one socket can go on; a workload with several sockets
    /// on one thread needs a transport that does not.
    pub sleeps_in_calls: bool,
}

/// How a flow is to be opened.
#[derive(Clone, Debug)]
pub struct FlowOptions {
    /// Transport protocol.
    pub protocol: Protocol,
    /// Local address and port; port 0 lets the stack choose.
    pub local: Option<SocketAddr>,
    /// Interface that the flow is bound to.
    pub interface: Option<String>,
    /// What is asked of the socket.
    pub socket: SocketPlan,
    /// Congestion control to ask for.
    pub congestion_control: Option<String>,
    /// Payload bytes of the datagrams that one call's payload is cut into (UDP GSO).
    pub segment_bytes: Option<u16>,
    /// Datagrams of one size may be handed over together (UDP GRO).
    pub coalesce: bool,
    /// Longest time that a sleeping call may last: how soon a stop is noticed, or how late an
    /// answer may come.
    pub patience: Duration,
}

/// A network stack as workloads use it.
///
/// Payload goes through closures over the transport's own buffer: a stack that owns its frames
/// needs no copy, and the kernel's adapter copies from a buffer of its own. [`Poll::Pending`] means
/// that nothing could be done now: turn, idle, try again.
pub trait Transport {
    /// Names a socket of this transport.
    type Socket: Copy;

    /// Lets the stack work: read its clock once, take a burst in, run its timers, flush.
    fn turn(&mut self);

    /// The time now; a polled stack gives the time of the last turn.
    fn now(&self) -> Nanos;

    /// The time now, read for this call: for what happens within a turn.
    fn clock() -> Nanos;

    /// Passes time: until `until` when a workload waits for a departure, otherwise as this
    /// transport waits for its sockets.
    fn idle(&mut self, until: Option<Nanos>);

    /// Opens a flow to `remote`; returns once it stands.
    ///
    /// # Errors
    /// What the stack says; `PermissionDenied` when an option is not allowed.
    fn connect(&mut self, remote: SocketAddr, options: &FlowOptions) -> io::Result<Self::Socket>;

    /// Sends one datagram of `bytes`, written by `fill` into a buffer of that length.
    ///
    /// What the buffer holds before is undefined.
    fn udp_send(
        &mut self,
        socket: Self::Socket,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Poll<io::Result<usize>>;

    /// Receives one datagram and shows it to `take`.
    fn udp_receive<R>(
        &mut self,
        socket: Self::Socket,
        take: impl FnOnce(&[u8], Meta) -> R,
    ) -> Poll<io::Result<R>>;

    /// How many datagrams of `bytes` one [`Self::udp_send_burst`] takes at most.
    fn burst(&self, socket: Self::Socket, bytes: usize) -> usize;

    /// Sends up to `count` datagrams of `bytes` each in one call, the nth written by `fill(n, ..)`;
    /// returns how many were taken.
    fn udp_send_burst(
        &mut self,
        socket: Self::Socket,
        bytes: usize,
        count: usize,
        fill: impl FnMut(usize, &mut [u8]),
    ) -> Poll<io::Result<usize>>;

    /// Receives what is there, up to a burst, and shows each datagram to `take`; returns how many.
    fn udp_receive_burst(
        &mut self,
        socket: Self::Socket,
        take: impl FnMut(&[u8], Meta),
    ) -> Poll<io::Result<usize>>;

    /// Offers up to `bytes` of stream payload, written by `fill`; returns how many were taken.
    ///
    /// The rest is forgotten: the next call fills anew from where this one ended.
    fn tcp_send(
        &mut self,
        socket: Self::Socket,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Poll<io::Result<usize>>;

    /// Receives at most `room` bytes of the stream and shows them to `take`; none at its end.
    fn tcp_receive<R>(
        &mut self,
        socket: Self::Socket,
        room: usize,
        take: impl FnOnce(&[u8]) -> R,
    ) -> Poll<io::Result<R>>;

    /// Says that nothing more will be sent.
    ///
    /// # Errors
    /// When the connection is gone already.
    fn finish_sending(&mut self, socket: Self::Socket) -> io::Result<()>;

    /// Nothing more is wanted of a socket: it is not waited for again. It stays open until the
    /// transport goes, so that late datagrams of the other end do not meet a closed port.
    fn release(&mut self, socket: Self::Socket);

    /// What the stack knows of a socket, for the record.
    fn facts(&self, socket: Self::Socket) -> SocketFacts;

    /// What differs between transports.
    fn capabilities(&self) -> Capabilities;
}
