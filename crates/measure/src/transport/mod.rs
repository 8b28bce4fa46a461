//! What a workload runs on: the seam between what is measured and the stack that moves it.
//!
//! A transport is owned by one thread; there is no lock in its path. How it waits is its own
//! property, chosen when the run starts, and a workload is compiled once for each.

pub mod calls;
mod kernel;
pub(crate) mod stack;
mod uring;
mod way;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{OwnedFd, RawFd};
use std::task::Poll;
use std::time::Duration;

use linerate_host::sys::clock::Nanos;
use linerate_host::sys::pacing::DepartureClock;
pub use linerate_host::sys::stamp::Place;
pub use linerate_host::sys::wait::Ready;
use linerate_metric::plan::{Copies, Protocol, SocketPlan, Wait};
use linerate_metric::record::Socket as SocketFacts;
use linerate_metric::stack::StackFacts;

use crate::flow::Timeline;
use calls::CallTally;

pub(crate) use kernel::connect::open as open_socket;
pub use kernel::{Block, Epoll, Kernel, Poll as PollCall, Select, Spin, Waiting, Watch};
pub(crate) use kernel::{congestion_control, facts_of};
pub use stack::{OnStack, Recorded, system as stack_error, why_closed, why_opening};
pub use uring::{Uring, pool_bytes};
pub(crate) use way::zero_copy_bytes;

/// What came with received payload. `None`: not asked for, or this transport cannot tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// When the stack took the packet in, on the transport's own clock.
    pub stamp_ns: Option<u64>,
    /// When the device did, by its own clock and carried over to the transport's.
    pub device_ns: Option<u64>,
    /// When a stack that is not the kernel's had put it into its socket's queue.
    pub queued_ns: Option<u64>,
    /// Datagrams that the receive queue has refused since the socket was opened.
    pub queue_drops: Option<u32>,
    /// Payload bytes of each datagram, where several came as one.
    pub segment_bytes: Option<u16>,
    /// Type of service or traffic class.
    pub tos: Option<u8>,
}

/// A packet on its way out passed a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// Which one: datagrams are numbered from 0 by send call, a stream by the last byte of each
    /// (modulo 2^32).
    pub id: u32,
    /// Where it was.
    pub place: Place,
    /// When, on the transport's own clock.
    pub at_ns: Nanos,
    /// Whether the device told, by its own clock; otherwise the stack did.
    pub by_device: bool,
}

/// What differs between transports, as data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Whether a call may sleep until its one socket can go on; a workload with several sockets
    /// on one thread needs a transport that does not.
    pub sleeps_in_calls: bool,
    /// Whether the stamp of a packet that left ends a wait for payload, so that it has to be taken
    /// before the next one.
    pub stamps_end_waits: bool,
    /// Whether it tells of changes at enrolled sockets ([`Transport::enrol_changes`]).
    pub tells_changes: bool,
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
    /// Datagrams that one call sends or receives at most, each on its own way.
    pub batch: Option<u32>,
    /// Payload leaves without a copy: by MSG_ZEROCOPY, or written into our own stack's buffers.
    pub zero_copy: bool,
    /// Payload of a stream is not copied for who receives it: on our own stack, which shows it where it lies. The
    /// kernel's sockets are told by [`Setup::copies`].
    pub discard: bool,
    /// UDP: each datagram has its own time, so that a full socket is told at once and not slept over in
    /// the call.
    pub paced: bool,
    /// The rate that the kernel is to keep, in bytes per second as it counts them.
    pub max_rate: Option<u64>,
    /// The clock of the times at which datagrams are to leave.
    pub departure_clock: Option<DepartureClock>,
    /// Buffers are as large as asked for, whatever the system's limit (SO_SNDBUFFORCE).
    pub force_buffers: bool,
    /// How long a call that would sleep looks into the interface's queue first (SO_BUSY_POLL).
    pub busy_poll: Option<Duration>,
    /// Longest time that a sleeping call may last: how soon a stop is noticed, or how late an
    /// answer may come.
    pub patience: Duration,
    /// Whom the socket exchanges payload with.
    pub correspondent: Correspondent,
    /// Networks that datagrams to a group may cross.
    pub group_hops: u8,
}

/// Whom a socket exchanges payload with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Correspondent {
    /// The one it is connected to.
    #[default]
    Connected,
    /// The one that is named with each datagram.
    Unconnected,
    /// All of a multicast group, of whom the far end answers.
    Group(IpAddr),
    /// Whoever asks from this address, by datagram or by a connection of its own.
    Asker(IpAddr),
}

/// Calls on sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempts {
    /// All of them.
    pub calls: u64,
    /// Those that could move nothing.
    pub empty: u64,
}

impl Attempts {
    /// Those since an earlier count.
    #[must_use]
    pub fn since(self, earlier: &Self) -> Self {
        Self {
            calls: self.calls - earlier.calls,
            empty: self.empty - earlier.empty,
        }
    }
}

/// What a thread's transport is made with.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// How it waits.
    pub wait: Wait,
    /// The largest payload of a send call.
    pub send_bytes: usize,
    /// The largest payload of a receive call.
    pub receive_bytes: usize,
    /// Datagrams that one call moves at most, each on its own way through the kernel.
    pub batch: Option<usize>,
    /// Whether payload is copied, as far as this part of the run goes.
    pub copies: Copies,
}

/// What a measuring thread needs of its transport besides what workloads do: the kernel's ways.
pub trait Adapter: Transport + Sized {
    /// A transport without sockets.
    ///
    /// # Errors
    /// When the process has no file descriptor left, or the kernel refuses what it is made of.
    fn new(setup: &Setup) -> io::Result<Self>;

    /// Takes over a connected socket that somebody else opened or accepted.
    ///
    /// # Errors
    /// When one of the options is refused.
    fn adopt(&mut self, fd: OwnedFd, options: &FlowOptions) -> io::Result<Self::Socket>;

    /// Takes over a socket of our own stack that somebody else opened or accepted there.
    ///
    /// # Errors
    /// `Unsupported` where there is no such stack.
    fn take(&mut self, _: linerate_stack::SocketId, _: &FlowOptions) -> io::Result<Self::Socket> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// A handle for a thread that looks on, where one can: while it lives the socket stays open.
    fn watch(&self, socket: Self::Socket) -> Option<Watch>;

    /// Does what the stack needs while its thread waits for something else; false where it needs
    /// nothing, and the thread may sleep.
    fn tend(&mut self) -> bool {
        false
    }

    /// What our own stack counted since the start.
    fn stack_facts(&mut self) -> Option<Box<StackFacts>> {
        None
    }

    /// The files that this transport uses, where they are its sockets alone; `None` where the
    /// thread must not have a table of open files of its own.
    fn descriptors(&self) -> Option<Vec<RawFd>>;

    /// Opens connections side by side, so that a thousand of them take a round trip and not a
    /// thousand; returns once all stand, in the order in which they were asked for.
    ///
    /// # Errors
    /// What the first that fails says; `Interrupted` when `called_off` says so meanwhile.
    fn connect_many(
        &mut self,
        wanted: &[(SocketAddr, &FlowOptions)],
        called_off: &dyn Fn() -> bool,
    ) -> io::Result<Vec<Self::Socket>>;

    /// Lets a blocking receive call sleep until something comes: somebody wakes the thread.
    ///
    /// # Errors
    /// What the kernel says.
    fn sleep_without_limit(&mut self, socket: Self::Socket) -> io::Result<()>;

    /// Payload may move now: calls are taken note of, if anybody wants that.
    fn start(&mut self, timeline: &Timeline);

    /// What was noted of calls.
    fn tally(&self) -> Option<CallTally>;
}

/// What became of a datagram that was to go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Echoed {
    /// So many bytes of it left.
    Sent(usize),
    /// So many bytes of it wait in the caller's room: the socket had none.
    Full(usize),
    /// It was no question.
    Ignored,
}

/// Receives one datagram and sends it back by way of the caller's room.
fn echo_through<T: Transport + ?Sized>(
    transport: &mut T,
    socket: T::Socket,
    room: &mut [u8],
    is_question: impl FnOnce(&[u8]) -> bool,
) -> Poll<io::Result<Echoed>> {
    let received = transport.udp_receive(socket, |payload, _| {
        let bytes = payload.len().min(room.len());
        room[..bytes].copy_from_slice(&payload[..bytes]);
        bytes
    });
    let bytes = match received {
        Poll::Ready(Ok(bytes)) => bytes,
        Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
        Poll::Pending => return Poll::Pending,
    };
    let question = &room[..bytes];
    if !is_question(question) {
        return Poll::Ready(Ok(Echoed::Ignored));
    }
    match transport.udp_send(socket, bytes, |payload| payload.copy_from_slice(question)) {
        Poll::Ready(sent) => Poll::Ready(sent.map(Echoed::Sent)),
        Poll::Pending => Poll::Ready(Ok(Echoed::Full(bytes))),
    }
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

    /// Has what was just sent leave, where it would wait for the next turn otherwise: for whoever looks for its answer
    /// next.
    #[inline]
    fn flush(&mut self) {}

    /// Passes time: until `until` when a workload waits for a departure, otherwise as this
    /// transport waits for its sockets.
    fn idle(&mut self, until: Option<Nanos>);

    /// Opens a flow to `remote`; returns once it stands.
    ///
    /// # Errors
    /// What the stack says; `PermissionDenied` when an option is not allowed.
    fn connect(&mut self, remote: SocketAddr, options: &FlowOptions) -> io::Result<Self::Socket>;

    /// Opens a socket that is neither bound nor connected, for flows that do so for each question.
    ///
    /// # Errors
    /// What the stack says; `Unsupported` where sockets do not come and go while payload moves.
    fn open(&mut self, _remote: SocketAddr, _: &FlowOptions) -> io::Result<Self::Socket> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Gives an open socket its local address.
    ///
    /// # Errors
    /// What the stack says.
    fn bind(&mut self, _: Self::Socket, _local: SocketAddr) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Connects an open socket, or goes on connecting it.
    fn begin_connect(&mut self, _: Self::Socket, _remote: SocketAddr) -> Poll<io::Result<()>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    /// Takes the next connection of a listening socket.
    fn accept(&mut self, _: Self::Socket, _: &FlowOptions) -> Poll<io::Result<Self::Socket>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    /// Closes a socket; its name may be given to another one.
    fn close(&mut self, _: Self::Socket) {}

    /// From now on an unconnected socket takes datagrams only of who sent the last one.
    fn recognise(&mut self, _: Self::Socket) {}

    /// How long a receive call on a socket may wait for something at most; zero: not at all. A call
    /// that sleeps by itself keeps its own limit.
    fn be_patient(&mut self, _: Self::Socket, _: Duration) {}

    /// Sends one datagram of `bytes`, written by `fill` into a buffer of that length.
    ///
    /// What the buffer holds before is undefined.
    fn udp_send(
        &mut self,
        socket: Self::Socket,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Poll<io::Result<usize>>;

    /// Sends one datagram that the stack is to hold back until `at_ns`, where it can; otherwise it
    /// leaves at once.
    fn udp_send_at(
        &mut self,
        socket: Self::Socket,
        bytes: usize,
        _at_ns: Nanos,
        fill: impl FnOnce(&mut [u8]),
    ) -> Poll<io::Result<usize>> {
        self.udp_send(socket, bytes, fill)
    }

    /// Receives one datagram and shows it to `take`.
    fn udp_receive<R>(
        &mut self,
        socket: Self::Socket,
        take: impl FnOnce(&[u8], Meta) -> R,
    ) -> Poll<io::Result<R>>;

    /// Receives one datagram and sends it back, as much of it as `room` holds, if `is_question` says
    /// so. What there is no room to send stays in `room`.
    ///
    /// A transport that can sends it from where it was received: the two copies through `room` are a
    /// part of the round trip that a program without them does not have.
    fn udp_echo(
        &mut self,
        socket: Self::Socket,
        room: &mut [u8],
        is_question: impl FnOnce(&[u8]) -> bool,
    ) -> Poll<io::Result<Echoed>> {
        echo_through(self, socket, room, is_question)
    }

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

    /// Has everything stamped that leaves and arrives on a socket from now on; its departures are
    /// numbered from here. Gives what people should know of that, such as a device's stamps that
    /// cannot be used.
    ///
    /// # Errors
    /// `Unsupported` when this stack does not stamp: then those below are not called.
    fn stamp(&mut self, _: Self::Socket, _: Protocol) -> io::Result<Vec<String>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Receives a datagram, or at most `room` bytes of a stream, with the stamp of its arrival.
    fn receive_stamped<R>(
        &mut self,
        _: Self::Socket,
        _room: usize,
        _take: impl FnOnce(&[u8], Meta) -> R,
    ) -> Poll<io::Result<R>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    /// Shows the stamps of what has left since the last look.
    ///
    /// # Errors
    /// What the stack says.
    fn departures(&mut self, _: Self::Socket, _take: impl FnMut(Departure)) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// How far a device's stamp may be off; `None` where no device stamps.
    fn device_error_ns(&self) -> Option<Nanos> {
        None
    }

    /// How far the stamps' clock was moved against the transport's since stamping began.
    fn moved_clock_ns(&self) -> Nanos {
        0
    }

    /// Says that nothing more will be sent.
    ///
    /// # Errors
    /// When the connection is gone already.
    fn finish_sending(&mut self, socket: Self::Socket) -> io::Result<()>;

    /// Nothing more is wanted of a socket: it is not waited for again. It stays open until the
    /// transport goes, so that late datagrams of the other end do not meet a closed port.
    fn release(&mut self, socket: Self::Socket);

    /// Asks to be told by [`Self::ready`], under a number, whenever a socket can go on; false where
    /// this transport does not tell. Whoever asks so for one of its sockets asks for all.
    ///
    /// # Errors
    /// What the stack says.
    fn enrol(&mut self, _socket: Self::Socket, _ready: Ready, _key: usize) -> io::Result<bool> {
        Ok(false)
    }

    /// Asks to be told by [`Self::ready`], under a number, whenever something changes at a socket: it is
    /// connected, something came, there is room again. What is so already is told once.
    ///
    /// # Errors
    /// What the stack says; `Unsupported` where it does not tell.
    fn enrol_changes(&mut self, _socket: Self::Socket, _key: usize) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Waits until enrolled sockets can go on, and adds their numbers to `keys`, up to its capacity:
    /// those that were not told of for the longest time first. None when the patience was over.
    fn ready(&mut self, _keys: &mut Vec<usize>, _patience: Duration) {}

    /// Calls on sockets so far, and those among them that found nothing to receive or no room to
    /// send; `None` where they are not counted.
    fn attempts(&self) -> Option<Attempts> {
        None
    }

    /// What the stack knows of a socket, for the record.
    fn facts(&self, socket: Self::Socket) -> SocketFacts;

    /// TCP: segments sent again since the connection began; `None` where nobody counts them.
    fn retransmits(&self, _socket: Self::Socket) -> Option<u64> {
        None
    }

    /// Has the arrivals of a socket noted from now on, for [`Self::since_arrival`].
    fn note_arrivals(&self, _socket: Self::Socket) {}

    /// How long ago what a socket gave last had arrived, at least; `None` where nobody noted it.
    fn since_arrival(&self, _socket: Self::Socket) -> Option<Nanos> {
        None
    }

    /// What differs between transports.
    fn capabilities(&self) -> Capabilities;
}
