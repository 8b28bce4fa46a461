//! Transport over the user-space stack and its port.
//!
//! One thread owns it. In addition to the sockets of workloads it has background sockets, which are
//! polled at intervals: the control connection, and services for other hosts.

mod payload;
mod recording;
mod socket_table;
mod sockets;
#[cfg(test)]
pub(crate) mod test_stack;
mod tx_timestamps;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::Poll;
use std::time::Duration;

use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::tick_clock;
use linerate_metric::stack::StackFacts;
use linerate_stack::{Counters, SocketId, SocketKind, Stack, StackError};

use super::kernel::Buffer;
use super::{Attempts, Meta};
use crate::netstack::background::Background;
use crate::netstack::port_driver::Driver;
use crate::netstack::services::Payload;
use crate::netstack::stack_facts;
pub use recording::Recorded;
pub use socket_table::Place;
use socket_table::{Entries, Entry};

/// Interval at which background sockets are polled while payload moves.
const LOOK_NS: Nanos = 1_000_000;

/// Pause between two polls while the thread has no workload.
const TEND_NS: Nanos = 50_000;

/// Port polls between two readings of the clock while the stack is idle and spins. On a port that
/// needs system calls, a port poll costs half of a stack poll; on one in memory a tenth. An
/// arriving
/// frame waits for the poll in progress.
const LOOKS: u32 = 16;

/// Longest time for which only the port is polled; other work of the thread waits for it.
const LOOKING_NS: Nanos = 4_000;

/// Upper bound of the time of such a wait. Before an earlier departure the stack is polled instead.
const LOOKS_NS: Nanos = 20_000;

/// Largest number of flows that are checked for refused sends; a closed port refuses all of them.
const REFUSED_FLOWS: usize = 16;

/// Largest number of datagrams per call: a burst of the port.
const BURST: usize = 32;

/// Largest payload of one call. It is copied between the workload and the stack's buffers, as with
/// kernel sockets.
const CALL_BYTES: usize = 256 << 10;

/// The user-space stack and its sockets, on the thread that owns it.
pub struct OnStack {
    stack: Stack,
    /// Facts for records, as of the start.
    facts: StackFacts,
    before: Counters,
    /// Minimum time between two polls; `None` for busy polling.
    interval: Option<Nanos>,
    turn_ns: Nanos,
    now: Nanos,
    /// True if payload was sent since the last poll.
    unsent: bool,
    outgoing: Buffer,
    incoming: Buffer,
    entries: Entries,
    background: Background,
    look_ns: Nanos,
    attempts: Attempts,
    /// True if the last poll received a frame.
    came: bool,
    /// Start of the current idle time of the port, and idle time in all until the last poll.
    idle_from: Option<Nanos>,
    idle_ns: Nanos,
    /// Payload moved by workloads, for the counters of the service that started them.
    payload: Payload,
    /// Set by another thread to end received streams.
    cut: Arc<AtomicBool>,
    is_cut: bool,
    /// Thread that polls the port, if not this one. Declared last, so that it ends after the stack.
    _driver: Option<Driver>,
}

impl OnStack {
    /// Takes ownership of a stack, with its facts for records.
    pub fn of(
        stack: Stack,
        facts: StackFacts,
        background: Background,
        cut: Arc<AtomicBool>,
    ) -> Self {
        let now = tick_clock::now();
        Self {
            before: stack.counters(),
            interval: (stack.config().poll_interval)
                .map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)),
            facts,
            turn_ns: now,
            now,
            unsent: false,
            outgoing: Buffer::new(CALL_BYTES),
            incoming: Buffer::new(CALL_BYTES),
            entries: Entries::new(),
            background,
            look_ns: now,
            attempts: Attempts::default(),
            came: false,
            idle_from: None,
            idle_ns: 0,
            payload: Payload::default(),
            cut,
            is_cut: false,
            _driver: None,
            stack,
        }
    }

    /// Adds a thread that polls the port.
    pub fn with_driver(self, driver: Option<Driver>) -> Self {
        Self {
            _driver: driver,
            ..self
        }
    }

    /// Returns whether a background connection still has data to transmit.
    pub fn is_busy(&self) -> bool {
        self.background.is_busy()
    }

    /// Returns the facts for records, with the counters since the start of the count.
    pub fn facts_now(&mut self) -> StackFacts {
        self.background.refresh(&mut self.stack);
        StackFacts {
            counters: stack_facts::counters(&self.stack.counters().since(&self.before)),
            ..self.facts.clone()
        }
    }

    /// Starts the counters at zero.
    pub fn begin_counting(&mut self) {
        self.background.refresh(&mut self.stack);
        self.before = self.stack.counters();
    }

    /// Polls the stack if it is time. Returns whether frames were received; `None` if not polled.
    fn work(&mut self) -> Option<bool> {
        if self.interval.is_none() && self.unsent {
            // A response is transmitted before the clock is read.
            self.stack.send_made();
        }
        self.now = self.stack.found_at().unwrap_or_else(tick_clock::now);
        if let Some(from) = self.idle_from.take() {
            // A longer time was no port poll: the thread was preempted.
            self.idle_ns += self.now.saturating_sub(from).min(LOOKS_NS);
        }
        if let Some(interval) = self.interval {
            if self.now < self.turn_ns {
                return None;
            }
            // Missed polls are not made up for.
            self.turn_ns = (self.turn_ns + interval).max(self.now);
        }
        self.unsent = false;
        let turn = self.stack.turn(self.now);
        if self.entries.tells() || self.background.serves() {
            while let Some(socket) = self.stack.ready() {
                if !self.entries.change(socket) {
                    self.background.changed(&mut self.stack, socket, self.now);
                }
            }
            self.background.serve(&mut self.stack, self.now);
        }
        self.came = turn.received > 0;
        Some(self.came)
    }

    /// Transmits unsent payload instead of waiting for the next poll; returns whether there was
    /// any.
    #[inline]
    fn flush_unsent(&mut self) -> bool {
        let unsent = std::mem::take(&mut self.unsent);
        if unsent {
            self.stack.flush();
        }
        unsent
    }

    /// Flushes if there is only one flow. Payload of several flows leaves together with the next
    /// poll.
    #[inline]
    fn flush_alone(&mut self) -> bool {
        self.entries.is_one() && self.flush_unsent()
    }

    /// Idles as configured, at most until `until`; returns whether the thread slept.
    #[inline]
    fn pause(&mut self, flushed: bool, until: Option<Nanos>) -> bool {
        match self.interval {
            None if flushed => {}
            None => std::hint::spin_loop(),
            Some(_) => {
                let until = until.map_or(self.turn_ns, |until| until.min(self.turn_ns));
                clock::sleep_until(until);
                return true;
            }
        }
        false
    }

    /// Idles between two polls without sleep: polls the port until a frame arrives or a deadline is
    /// near.
    #[inline]
    fn await_frames(&mut self, until: Option<Nanos>) {
        if self.background.is_pressed() {
            return;
        }
        // Time spent on received frames is not idle time.
        let from = if self.came {
            tick_clock::now()
        } else {
            self.now
        };
        self.idle_from = Some(from);
        let due_soon = until.is_some_and(|until| until < from + LOOKS_NS);
        if due_soon || !self.finds(from + LOOKING_NS) {
            std::hint::spin_loop();
        }
    }

    /// Polls the port until a frame has arrived or `until` has passed.
    #[inline]
    fn finds(&mut self, until: Nanos) -> bool {
        loop {
            if (0..LOOKS).any(|_| self.stack.look()) {
                return true;
            }
            if tick_clock::now() >= until {
                return false;
            }
        }
    }

    /// Appends the keys of sockets that may be ready; returns until when to idle if there are none.
    #[inline]
    fn tell(&mut self, keys: &mut Vec<usize>, patience: Duration) -> Option<Nanos> {
        self.entries.tell(keys);
        let idles = keys.is_empty() && !patience.is_zero();
        let patience = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        idles.then(|| self.now.saturating_add(patience))
    }

    /// Returns the kind of a socket, if it is open.
    fn kind(&self, place: Place) -> Option<SocketKind> {
        Some(self.entries.get(place).socket?.kind())
    }

    /// Polls the background sockets if it is time.
    fn look(&mut self) {
        if self.now >= self.look_ns {
            self.look_ns = self.now + LOOK_NS;
            self.is_cut = self.cut.load(Relaxed);
            self.background.moved(self.payload);
            self.background.look(&mut self.stack, self.now);
            self.hear_refusals();
        }
    }

    /// Counts refused sends on sockets from which no workload receives.
    fn hear_refusals(&mut self) {
        for (socket, refusals) in self.entries.unread(REFUSED_FLOWS) {
            // Without a waiting datagram, the call can only return an error.
            let empty = self
                .stack
                .udp_waiting(socket)
                .is_ok_and(|waiting| waiting == 0);
            if empty
                && let Poll::Ready(Err(StackError::Refused { .. })) =
                    self.stack.udp_receive(socket, |_, _| ())
            {
                *refusals = refusals.saturating_add(1);
            }
        }
    }

    /// Closes the sockets of workloads.
    pub fn close(&mut self) {
        self.stack.unwatch_stages();
        for socket in self.entries.clear() {
            // It may be closed already.
            let _ = self.stack.close(socket);
        }
        self.background.part(&mut self.stack);
        self.stack.flush();
    }

    /// Polls once on a thread without a workload; returns whether anything happened.
    pub fn round(&mut self) -> bool {
        let worked = self.work() == Some(true);
        self.look_ns = self.now;
        self.background.moved(self.payload);
        let looked = self.background.look(&mut self.stack, self.now);
        if looked {
            self.stack.flush();
        }
        worked || looked
    }

    /// Idles on a thread without a workload; one that serves other hosts idles as configured.
    pub fn rest(&mut self) {
        match (self.interval, self.background.serves()) {
            (None, true) => self.await_frames(None),
            (Some(_), true) => clock::sleep_until(self.turn_ns),
            (_, false) => clock::sleep_until(self.now + TEND_NS),
        }
    }

    /// Returns the datagrams dropped by the receive queue of a workload's socket.
    fn queue_drops(&self, entry: &Entry) -> u64 {
        let alone = self.entries.of(SocketKind::Udp).count() == 1;
        // Each datagram carries the drops before it; only the stack's sum includes the last ones.
        let seen = u64::from(entry.queue_drops);
        let (now, before) = (&self.stack.counters(), &self.before);
        let all = |of: &Counters| of.udp.receive_queue_full + of.udp.no_buffer;
        match alone && !self.background.serves() {
            true => all(now).saturating_sub(all(before)),
            false => seen,
        }
    }

    /// Returns the stack's socket of a slot, for calls that need an open one.
    #[inline]
    fn id(&self, place: Place) -> io::Result<SocketId> {
        let socket = self.entries.get(place).socket;
        socket.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn note<R>(&mut self, found: &Poll<io::Result<R>>) {
        self.attempts.calls += 1;
        self.attempts.empty += u64::from(found.is_pending());
    }

    /// Counts a call; after a pending one the socket must change before it is ready again.
    #[inline]
    fn note_at<R>(&mut self, place: Place, found: &Poll<io::Result<R>>) {
        self.note(found);
        if found.is_pending() {
            self.entries.starved(place);
        }
    }
}

/// Converts an error of the stack to the `io::Error` that the kernel would return.
pub fn system(error: StackError) -> io::Error {
    let kind = match &error {
        StackError::Refused { .. } => io::ErrorKind::ConnectionRefused,
        StackError::Reset => io::ErrorKind::ConnectionReset,
        StackError::Finished => io::ErrorKind::BrokenPipe,
        StackError::Unreachable { .. } | StackError::NeighborSilent { .. } => {
            io::ErrorKind::HostUnreachable
        }
        StackError::NoRoute { .. } => io::ErrorKind::NetworkUnreachable,
        StackError::PortTaken { .. } => io::ErrorKind::AddrInUse,
        StackError::NotLocal { .. } => io::ErrorKind::AddrNotAvailable,
        StackError::NotConnected => io::ErrorKind::NotConnected,
        StackError::TooLong { .. } => io::ErrorKind::InvalidInput,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

/// Returns the reason why a connection closed before it was established.
pub fn why_closed(stack: &mut Stack, socket: SocketId) -> io::Error {
    match stack.tcp_receive(socket, |_| (0, ())) {
        Poll::Ready(Err(error)) => system(error),
        _ => io::ErrorKind::ConnectionReset.into(),
    }
}

/// Returns the reason why a connection is not established in time: no reply, or an ICMP error.
pub fn why_opening(stack: &Stack, socket: SocketId) -> io::Error {
    let kind = io::ErrorKind::TimedOut;
    match stack.tcp_trouble(socket) {
        Ok(Some((what, by))) => io::Error::new(kind, format!("{by} reports that {what}")),
        _ => kind.into(),
    }
}

/// Converts the result of a call on the stack to that of a call on a socket.
#[inline]
fn outcome<R>(found: Poll<Result<R, StackError>>) -> Poll<io::Result<R>> {
    match found {
        // As with the kernel: a neighbour may return, and frames lost meanwhile are counted.
        Poll::Ready(Err(StackError::NeighborSilent { .. })) => Poll::Pending,
        found => found.map(|found| found.map_err(system)),
    }
}

fn meta_of(meta: &linerate_stack::Meta) -> Meta {
    Meta {
        stamp_ns: Some(meta.arrived_ns),
        queued_ns: meta.queued_ns,
        queue_drops: Some(meta.queue_drops),
        tos: Some(meta.tos),
        ..Meta::default()
    }
}
