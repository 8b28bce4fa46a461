//! Our own stack over a port, as workloads use it.
//!
//! One thread owns it. Besides the sockets of workloads it has some in the background, which are looked
//! after once in a while: the control connection, and services for others.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::Poll;

use linerate_host::sys::clock::{self, Nanos};
use linerate_metric::plan::Protocol;
use linerate_metric::record::Socket as SocketFacts;
use linerate_metric::stack::StackFacts;
use linerate_stack::{Counters, SocketId, SocketKind, Stack, StackError, TcpState};

use super::calls::CallTally;
use super::kernel::{Buffer, Watch};
use super::{Adapter, Attempts, Capabilities, Correspondent, FlowOptions, Meta, Setup, Transport};
use crate::flow::Timeline;
use crate::stack::background::Background;
use crate::stack::facts;

/// Longest time that a connection may take to open: two requests sent again (1 s + 2 s) and some.
const CONNECT_PATIENCE_NS: Nanos = 5_000_000_000;

/// How often what is in the background is looked after while payload moves.
const LOOK_NS: Nanos = 1_000_000;

/// Pause between two turns while the thread only waits for others.
const TEND_NS: Nanos = 50_000;

/// Datagrams that one call moves at most: a burst of the port.
const BURST: usize = 32;

/// Room for payload on its way between a workload and the stack's buffers, which is copied as with
/// the kernel's sockets.
const CALL_BYTES: usize = 256 << 10;

/// A stack and its sockets, on the thread that owns it.
pub struct OnStack {
    stack: Stack,
    /// What records say of it, as it was at the start.
    facts: StackFacts,
    before: Counters,
    /// Time from one turn to the next; none: no pause.
    interval: Option<Nanos>,
    turn_ns: Nanos,
    now: Nanos,
    /// Something was sent since the last turn.
    unsent: bool,
    outgoing: Buffer,
    incoming: Buffer,
    entries: Vec<Entry>,
    background: Background,
    look_ns: Nanos,
    attempts: Attempts,
    /// Somebody wants received streams to end.
    cut: Arc<AtomicBool>,
    is_cut: bool,
}

/// What is kept of a workload's socket.
#[derive(Clone, Copy)]
struct Entry {
    socket: SocketId,
    local: Option<SocketAddr>,
    remote: Option<SocketAddr>,
    /// Whom each datagram is sent to by name.
    addressee: Option<SocketAddr>,
    /// Who sent the last one.
    from: Option<SocketAddr>,
    queue_drops: u32,
    batch: usize,
}

/// Names a socket of an [`OnStack`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(usize);

impl OnStack {
    /// Takes over a stack, with what records say of it.
    pub fn of(
        stack: Stack,
        facts: StackFacts,
        background: Background,
        cut: Arc<AtomicBool>,
    ) -> Self {
        let now = clock::now();
        Self {
            before: *stack.counters(),
            interval: (stack.config().poll_interval)
                .map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)),
            facts,
            turn_ns: now,
            now,
            unsent: false,
            outgoing: Buffer::new(CALL_BYTES),
            incoming: Buffer::new(CALL_BYTES),
            entries: Vec::with_capacity(64),
            background,
            look_ns: now,
            attempts: Attempts::default(),
            cut,
            is_cut: false,
            stack,
        }
    }

    /// Whether a connection of the background still carries something.
    pub fn is_busy(&self) -> bool {
        self.background.is_busy()
    }

    /// What records say of it now.
    pub fn facts_now(&self) -> StackFacts {
        StackFacts {
            counters: facts::counters(&self.stack.counters().since(&self.before)),
            ..self.facts.clone()
        }
    }

    /// Counters begin at zero from here.
    pub fn begin_counting(&mut self) {
        self.before = *self.stack.counters();
    }

    /// Lets the stack work if it is time; whether anything came.
    fn work(&mut self) -> bool {
        self.now = clock::now();
        if let Some(interval) = self.interval {
            if self.now < self.turn_ns {
                return false;
            }
            // What was missed is not made up for.
            self.turn_ns = (self.turn_ns + interval).max(self.now);
        }
        self.unsent = false;
        let turn = self.stack.turn(self.now);
        self.background.serve(&mut self.stack, self.now);
        turn.received > 0
    }

    /// Looks after what is in the background, if it is time.
    fn look(&mut self) {
        if self.now >= self.look_ns {
            self.look_ns = self.now + LOOK_NS;
            self.is_cut = self.cut.load(Relaxed);
            self.background.look(&mut self.stack, self.now);
        }
    }

    /// Payload of each connection of workloads that was not acknowledged yet, in the order of opening.
    pub fn unacknowledged(&mut self) -> Vec<usize> {
        let mut all = Vec::new();
        for entry in &self.entries {
            if entry.socket.kind() == SocketKind::Tcp {
                // Of a connection that is gone nothing is waited for.
                let queued = self.stack.tcp_queued(entry.socket);
                all.push(queued.map_or(0, |(sent, _)| sent));
            }
        }
        all
    }

    /// Closes the sockets of workloads.
    pub fn close(&mut self) {
        for entry in self.entries.drain(..) {
            // It may be gone already.
            let _ = self.stack.close(entry.socket);
        }
        self.stack.flush();
    }

    /// One round of a thread that has no workload: whether anything happened.
    pub fn round(&mut self) -> bool {
        let worked = self.work();
        self.look_ns = self.now;
        let looked = self.background.look(&mut self.stack, self.now);
        if looked {
            self.stack.flush();
        }
        worked || looked
    }

    /// Passes time where nothing happened: a thread that serves others does it as it is configured.
    pub fn rest(&mut self) {
        match (self.interval, self.background.serves()) {
            (None, true) => std::hint::spin_loop(),
            (Some(_), true) => clock::sleep_until(self.turn_ns),
            (_, false) => clock::sleep_until(self.now + TEND_NS),
        }
    }

    /// Datagrams that the queue of a workload's socket has refused.
    fn queue_drops(&self, entry: &Entry) -> u64 {
        let streams = self.entries.iter();
        let alone = streams
            .filter(|entry| entry.socket.kind() == SocketKind::Udp)
            .count()
            == 1;
        // With each datagram comes what was refused before it; of the last ones only the sum tells.
        let seen = u64::from(entry.queue_drops);
        let (now, before) = (self.stack.counters(), &self.before);
        let all = |of: &Counters| of.udp.receive_queue_full + of.udp.no_buffer;
        match alone && !self.background.serves() {
            true => all(now).saturating_sub(all(before)),
            false => seen,
        }
    }

    #[inline]
    fn id(&self, place: Place) -> SocketId {
        self.entries[place.0].socket
    }

    fn keep(&mut self, socket: SocketId, options: &FlowOptions) -> Place {
        let place = Place(self.entries.len());
        let remote = self.stack.remote(socket).ok().flatten();
        self.entries.push(Entry {
            socket,
            local: self.stack.local(socket).ok(),
            remote,
            addressee: None,
            from: None,
            queue_drops: 0,
            batch: options.batch.map_or(BURST, |batch| batch as usize),
        });
        place
    }

    fn connect_udp(&mut self, remote: SocketAddr, options: &FlowOptions) -> io::Result<Place> {
        let local = options.local.unwrap_or_else(|| anywhere(remote));
        let socket = self.stack.udp_bind(local).map_err(system)?;
        let place = if options.correspondent == Correspondent::Connected {
            self.stack.udp_connect(socket, remote).map_err(system)?;
            self.keep(socket, options)
        } else {
            let place = self.keep(socket, options);
            self.entries[place.0].addressee = Some(remote);
            place
        };
        Ok(place)
    }

    /// Begins several connections, and waits until all stand.
    fn connect_tcp(
        &mut self,
        wanted: &[(SocketAddr, &FlowOptions)],
        called_off: &dyn Fn() -> bool,
    ) -> io::Result<Vec<Place>> {
        let mut begun = Vec::with_capacity(wanted.len());
        for (remote, options) in wanted {
            begun.push(
                self.stack
                    .tcp_connect(*remote, options.local)
                    .map_err(system)?,
            );
        }
        let give_up = clock::now() + CONNECT_PATIENCE_NS;
        for &socket in &begun {
            loop {
                match self.stack.tcp_state(socket).map_err(system)? {
                    TcpState::Opening => {}
                    TcpState::Closed => return Err(why_closed(&mut self.stack, socket)),
                    _ => break,
                }
                if called_off() {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                if clock::now() >= give_up {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                self.tend();
            }
        }
        let kept = begun.into_iter().zip(wanted);
        Ok(kept
            .map(|(socket, (_, options))| self.keep(socket, options))
            .collect())
    }

    fn note<R>(&mut self, found: &Poll<io::Result<R>>) {
        self.attempts.calls += 1;
        self.attempts.empty += u64::from(found.is_pending());
    }
}

/// Any address of the family of another one.
fn anywhere(like: SocketAddr) -> SocketAddr {
    let address: IpAddr = match like {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(address, 0)
}

/// The stack's error in the terms of the kernel's.
pub fn system(error: StackError) -> io::Error {
    let kind = match &error {
        StackError::Refused { .. } => io::ErrorKind::ConnectionRefused,
        StackError::Reset => io::ErrorKind::ConnectionReset,
        StackError::Finished => io::ErrorKind::BrokenPipe,
        StackError::NoRoute { .. } => io::ErrorKind::NetworkUnreachable,
        StackError::PortTaken { .. } => io::ErrorKind::AddrInUse,
        StackError::NotLocal { .. } => io::ErrorKind::AddrNotAvailable,
        StackError::NotConnected => io::ErrorKind::NotConnected,
        StackError::TooLong { .. } => io::ErrorKind::InvalidInput,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

/// Why a connection never stood.
pub fn why_closed(stack: &mut Stack, socket: SocketId) -> io::Error {
    match stack.tcp_receive(socket, |_| (0, ())) {
        Poll::Ready(Err(error)) => system(error),
        _ => io::ErrorKind::ConnectionReset.into(),
    }
}

/// The outcome of a call on the stack as one on a socket.
#[inline]
fn outcome<R>(found: Poll<Result<R, StackError>>) -> Poll<io::Result<R>> {
    found.map(|found| found.map_err(system))
}

fn meta_of(meta: &linerate_stack::Meta) -> Meta {
    Meta {
        stamp_ns: Some(meta.arrived_ns),
        queue_drops: Some(meta.queue_drops),
        tos: Some(meta.tos),
        ..Meta::default()
    }
}

impl Adapter for OnStack {
    fn new(_: &Setup) -> io::Result<Self> {
        // Its thread has one before it has payload to move.
        Err(io::ErrorKind::Unsupported.into())
    }

    fn adopt(&mut self, _: OwnedFd, _: &FlowOptions) -> io::Result<Place> {
        // The kernel's sockets are none of this stack.
        Err(io::ErrorKind::Unsupported.into())
    }

    fn watch(&self, _: Place) -> Option<Watch> {
        None
    }

    fn tend(&mut self) -> bool {
        let worked = self.work();
        self.look();
        if !worked {
            self.stack.flush();
            clock::sleep_until(self.now + TEND_NS);
        }
        true
    }

    fn stack_facts(&self) -> Option<Box<StackFacts>> {
        Some(Box::new(self.facts_now()))
    }

    fn descriptors(&self) -> Option<Vec<RawFd>> {
        // The port and the bridges have files of their own.
        None
    }

    fn connect_many(
        &mut self,
        wanted: &[(SocketAddr, &FlowOptions)],
        called_off: &dyn Fn() -> bool,
    ) -> io::Result<Vec<Place>> {
        self.connect_tcp(wanted, called_off)
    }

    fn sleep_without_limit(&mut self, _: Place) -> io::Result<()> {
        // No call of it sleeps.
        Ok(())
    }

    fn start(&mut self, _: &Timeline) {
        self.begin_counting();
    }

    fn tally(&self) -> Option<CallTally> {
        None
    }
}

impl Transport for OnStack {
    type Socket = Place;

    #[inline]
    fn turn(&mut self) {
        self.work();
        self.look();
    }

    #[inline]
    fn now(&self) -> Nanos {
        self.now
    }

    #[inline]
    fn clock() -> Nanos {
        clock::now()
    }

    #[inline]
    fn idle(&mut self, until: Option<Nanos>) {
        match self.interval {
            // What was just sent is not to wait for another look at the port.
            None if self.unsent => {
                self.unsent = false;
                self.stack.flush();
            }
            None => std::hint::spin_loop(),
            Some(_) => {
                let until = until.map_or(self.turn_ns, |until| until.min(self.turn_ns));
                clock::sleep_until(until);
            }
        }
    }

    fn connect(&mut self, remote: SocketAddr, options: &FlowOptions) -> io::Result<Place> {
        match options.protocol {
            Protocol::Udp => self.connect_udp(remote, options),
            Protocol::Tcp => {
                let opened = self.connect_tcp(&[(remote, options)], &|| false)?;
                opened.into_iter().next().ok_or(io::ErrorKind::Other.into())
            }
        }
    }

    fn recognise(&mut self, place: Place) {
        let entry = self.entries[place.0];
        if let Some(from) = entry.from.filter(|_| entry.addressee.is_some()) {
            // A way to whoever was heard there is.
            let _ = self.stack.udp_connect(entry.socket, from);
        }
    }

    #[inline]
    fn udp_send(
        &mut self,
        place: Place,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Poll<io::Result<usize>> {
        let Entry {
            socket, addressee, ..
        } = self.entries[place.0];
        let sent = outcome(self.stack.udp_send(socket, addressee, bytes, fill));
        self.unsent = true;
        self.note(&sent);
        sent
    }

    #[inline]
    fn udp_receive<R>(
        &mut self,
        place: Place,
        take: impl FnOnce(&[u8], Meta) -> R,
    ) -> Poll<io::Result<R>> {
        let entry = &mut self.entries[place.0];
        let received = self.stack.udp_receive(entry.socket, |payload, meta| {
            entry.queue_drops = meta.queue_drops;
            entry.from = Some(meta.from);
            take(payload, meta_of(&meta))
        });
        let received = outcome(received);
        self.note(&received);
        received
    }

    fn burst(&self, place: Place, _: usize) -> usize {
        self.entries[place.0].batch.max(1)
    }

    fn udp_send_burst(
        &mut self,
        place: Place,
        bytes: usize,
        count: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> Poll<io::Result<usize>> {
        let Entry {
            socket, addressee, ..
        } = self.entries[place.0];
        // Payload comes out of the program's memory, as with the kernel's sockets.
        let own = &mut self.outgoing;
        let write = |number: usize, room: &mut [u8]| {
            let payload = own.front(room.len());
            fill(number, payload);
            room[..payload.len()].copy_from_slice(payload);
        };
        let sent = self
            .stack
            .udp_send_burst(socket, addressee, bytes, count, write);
        self.unsent = true;
        let sent = outcome(sent);
        self.note(&sent);
        sent
    }

    fn udp_receive_burst(
        &mut self,
        place: Place,
        mut take: impl FnMut(&[u8], Meta),
    ) -> Poll<io::Result<usize>> {
        let entry = &mut self.entries[place.0];
        let own = &mut self.incoming;
        let most = entry.batch.max(1);
        let received = self
            .stack
            .udp_receive_burst(entry.socket, most, |payload, meta| {
                entry.queue_drops = meta.queue_drops;
                let copy = own.front(payload.len());
                copy.copy_from_slice(&payload[..copy.len()]);
                take(copy, meta_of(&meta));
            });
        let received = outcome(received);
        self.note(&received);
        received
    }

    #[inline]
    fn tcp_send(
        &mut self,
        place: Place,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Poll<io::Result<usize>> {
        let socket = self.id(place);
        let own = &mut self.outgoing;
        let sent = self.stack.tcp_send(socket, |room| {
            let payload = own.front(room.len().min(bytes));
            fill(payload);
            room[..payload.len()].copy_from_slice(payload);
            payload.len()
        });
        self.unsent = true;
        let sent = outcome(sent);
        self.note(&sent);
        sent
    }

    #[inline]
    fn tcp_receive<R>(
        &mut self,
        place: Place,
        room: usize,
        take: impl FnOnce(&[u8]) -> R,
    ) -> Poll<io::Result<R>> {
        if self.is_cut {
            return Poll::Ready(Ok(take(&[])));
        }
        let socket = self.id(place);
        let own = &mut self.incoming;
        let received = self.stack.tcp_receive(socket, |payload| {
            let copy = own.front(payload.len().min(room));
            copy.copy_from_slice(&payload[..copy.len()]);
            (copy.len(), take(copy))
        });
        // The window that opened is to be told.
        self.unsent |= received.is_ready();
        let received = outcome(received);
        self.note(&received);
        received
    }

    fn finish_sending(&mut self, place: Place) -> io::Result<()> {
        let socket = self.id(place);
        self.unsent = true;
        self.stack.tcp_finish(socket).map_err(system)
    }

    fn release(&mut self, _: Place) {}

    fn attempts(&self) -> Option<Attempts> {
        Some(self.attempts)
    }

    fn facts(&self, place: Place) -> SocketFacts {
        let entry = &self.entries[place.0];
        let config = self.stack.config();
        let stream = entry.socket.kind() == SocketKind::Tcp;
        SocketFacts {
            local: entry.local.map(|local| local.to_string()),
            remote: (entry.remote.or(entry.addressee)).map(|remote| remote.to_string()),
            send_buffer_bytes: stream.then_some(config.tcp.send_buffer as u64),
            receive_buffer_bytes: stream.then_some(config.tcp.receive_window as u64),
            congestion_control: stream
                .then(|| config.get("tcp.congestion_control"))
                .flatten(),
            receive_queue_drops: (!stream).then(|| self.queue_drops(entry)),
            ..SocketFacts::default()
        }
    }

    fn retransmits(&self, place: Place) -> Option<u64> {
        // Counted for all connections together: they are those of the only one.
        let streams = self.entries.iter();
        let streams = streams.filter(|entry| entry.socket.kind() == SocketKind::Tcp);
        let alone = streams.count() == 1 && self.id(place).kind() == SocketKind::Tcp;
        let now = self.stack.counters().tcp.retransmitted_segments;
        alone.then(|| now.saturating_sub(self.before.tcp.retransmitted_segments))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            sleeps_in_calls: false,
            stamps_end_waits: false,
            tells_changes: false,
        }
    }
}
