//! Our own stack over a port, as workloads use it.
//!
//! One thread owns it. Besides the sockets of workloads it has some in the background, which are looked
//! after once in a while: the control connection, and services for others.

#[cfg(test)]
pub(crate) mod alone;
mod entries;
mod opening;
mod payload;
mod recorded;
mod stages;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::Poll;
use std::time::Duration;

use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::ticks;
use linerate_metric::stack::StackFacts;
use linerate_stack::{Counters, SocketId, SocketKind, Stack, StackError};

use super::kernel::Buffer;
use super::{Attempts, Meta};
use crate::stack::background::Background;
use crate::stack::driver::Driver;
use crate::stack::facts;
use crate::stack::services::Payload;
pub use entries::Place;
use entries::{Entries, Entry};
pub use recorded::Recorded;

/// How often what is in the background is looked after while payload moves.
const LOOK_NS: Nanos = 1_000_000;

/// Pause between two turns while the thread only waits for others.
const TEND_NS: Nanos = 50_000;

/// Looks at the port from one reading of the clock to the next, between two turns that have nothing to do and where nobody
/// sleeps. Of a port that is asked by system calls a look is half of a turn, of one in memory a tenth; a frame that comes
/// waits for what is under way.
const LOOKS: u32 = 16;

/// Time after which there is a turn again: what else a thread has to do waits for it.
const LOOKING_NS: Nanos = 4_000;

/// Longer than looks take: a departure that is due sooner is waited for in turns.
const LOOKS_NS: Nanos = 20_000;

/// Flows whose refusals are looked for: where nobody has a port all are refused.
const REFUSED_FLOWS: usize = 16;

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
    entries: Entries,
    background: Background,
    look_ns: Nanos,
    attempts: Attempts,
    /// Whether the last turn found anything.
    came: bool,
    /// Since when nothing has come, where that was looked for in vain; and how long it was until the last turn.
    idle_from: Option<Nanos>,
    idle_ns: Nanos,
    /// Payload that workloads moved, for the service that they are of.
    payload: Payload,
    /// Somebody wants received streams to end.
    cut: Arc<AtomicBool>,
    is_cut: bool,
    /// The thread that polls the port, where it is another one: it ends after the stack.
    _driver: Option<Driver>,
}

impl OnStack {
    /// Takes over a stack, with what records say of it.
    pub fn of(
        stack: Stack,
        facts: StackFacts,
        background: Background,
        cut: Arc<AtomicBool>,
    ) -> Self {
        let now = ticks::now();
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

    /// The same with a thread of its own that polls the port.
    pub fn with_driver(self, driver: Option<Driver>) -> Self {
        Self {
            _driver: driver,
            ..self
        }
    }

    /// Whether a connection of the background still carries something.
    pub fn is_busy(&self) -> bool {
        self.background.is_busy()
    }

    /// What records say of it now.
    pub fn facts_now(&mut self) -> StackFacts {
        self.background.refresh(&mut self.stack);
        StackFacts {
            counters: facts::counters(&self.stack.counters().since(&self.before)),
            ..self.facts.clone()
        }
    }

    /// Counters begin at zero from here.
    pub fn begin_counting(&mut self) {
        self.background.refresh(&mut self.stack);
        self.before = self.stack.counters();
    }

    /// Lets the stack work if it is time, and says whether anything came then.
    fn work(&mut self) -> Option<bool> {
        if self.interval.is_none() && self.unsent {
            // Nor does an answer wait for the clock.
            self.stack.send_made();
        }
        self.now = self.stack.found_at().unwrap_or_else(ticks::now);
        if let Some(from) = self.idle_from.take() {
            // What took longer was no look: somebody else had the processor.
            self.idle_ns += self.now.saturating_sub(from).min(LOOKS_NS);
        }
        if let Some(interval) = self.interval {
            if self.now < self.turn_ns {
                return None;
            }
            // What was missed is not made up for.
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

    /// What was just sent is not to wait for another look at the port: it leaves now. Whether there was any.
    #[inline]
    fn flush_unsent(&mut self) -> bool {
        let unsent = std::mem::take(&mut self.unsent);
        if unsent {
            self.stack.flush();
        }
        unsent
    }

    /// The same where a flow is alone: what several have sent leaves together, with the next turn or before it.
    #[inline]
    fn flush_alone(&mut self) -> bool {
        self.entries.is_one() && self.flush_unsent()
    }

    /// Passes time as this stack does, not beyond `until`; whether it slept.
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

    /// Passes time between two turns where nobody sleeps: looks whether anything comes, as long as nothing is due by the
    /// time.
    #[inline]
    fn await_frames(&mut self, until: Option<Nanos>) {
        if self.background.is_pressed() {
            return;
        }
        // What was done with what came has taken its time, and is not idle.
        let from = if self.came { ticks::now() } else { self.now };
        self.idle_from = Some(from);
        let due_soon = until.is_some_and(|until| until < from + LOOKS_NS);
        if due_soon || !self.finds(from + LOOKING_NS) {
            std::hint::spin_loop();
        }
    }

    /// Looks until something has come, or it is so late.
    #[inline]
    fn finds(&mut self, until: Nanos) -> bool {
        loop {
            if (0..LOOKS).any(|_| self.stack.look()) {
                return true;
            }
            if ticks::now() >= until {
                return false;
            }
        }
    }

    /// Adds the keys of sockets that may go on; how long to idle where there is none.
    #[inline]
    fn tell(&mut self, keys: &mut Vec<usize>, patience: Duration) -> Option<Nanos> {
        self.entries.tell(keys);
        let idles = keys.is_empty() && !patience.is_zero();
        let patience = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        idles.then(|| self.now.saturating_add(patience))
    }

    /// What kind of socket is at a place, where one is.
    fn kind(&self, place: Place) -> Option<SocketKind> {
        Some(self.entries.get(place).socket?.kind())
    }

    /// Looks after what is in the background, if it is time.
    fn look(&mut self) {
        if self.now >= self.look_ns {
            self.look_ns = self.now + LOOK_NS;
            self.is_cut = self.cut.load(Relaxed);
            self.background.moved(self.payload);
            self.background.look(&mut self.stack, self.now);
            self.hear_refusals();
        }
    }

    /// Counts what was refused of sockets that only send.
    fn hear_refusals(&mut self) {
        for (socket, refusals) in self.entries.unread(REFUSED_FLOWS) {
            // Where nothing is to be fetched only a refusal can come of this.
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
            // It may be gone already.
            let _ = self.stack.close(socket);
        }
        self.background.part(&mut self.stack);
        self.stack.flush();
    }

    /// One round of a thread that has no workload: whether anything happened.
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

    /// Passes time where nothing happened: a thread that serves others does it as it is configured.
    pub fn rest(&mut self) {
        match (self.interval, self.background.serves()) {
            (None, true) => self.await_frames(None),
            (Some(_), true) => clock::sleep_until(self.turn_ns),
            (_, false) => clock::sleep_until(self.now + TEND_NS),
        }
    }

    /// Datagrams that the queue of a workload's socket has refused.
    fn queue_drops(&self, entry: &Entry) -> u64 {
        let alone = self.entries.of(SocketKind::Udp).count() == 1;
        // With each datagram comes what was refused before it; of the last ones only the sum tells.
        let seen = u64::from(entry.queue_drops);
        let (now, before) = (&self.stack.counters(), &self.before);
        let all = |of: &Counters| of.udp.receive_queue_full + of.udp.no_buffer;
        match alone && !self.background.serves() {
            true => all(now).saturating_sub(all(before)),
            false => seen,
        }
    }

    /// The socket of a place, for calls that need one.
    #[inline]
    fn id(&self, place: Place) -> io::Result<SocketId> {
        let socket = self.entries.get(place).socket;
        socket.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn note<R>(&mut self, found: &Poll<io::Result<R>>) {
        self.attempts.calls += 1;
        self.attempts.empty += u64::from(found.is_pending());
    }

    /// The same of a call that cannot go on before something changes at its socket.
    #[inline]
    fn note_at<R>(&mut self, place: Place, found: &Poll<io::Result<R>>) {
        self.note(found);
        if found.is_pending() {
            self.entries.starved(place);
        }
    }
}

/// The stack's error in the terms of the kernel's.
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

/// Why a connection never stood.
pub fn why_closed(stack: &mut Stack, socket: SocketId) -> io::Error {
    match stack.tcp_receive(socket, |_| (0, ())) {
        Poll::Ready(Err(error)) => system(error),
        _ => io::ErrorKind::ConnectionReset.into(),
    }
}

/// Why a connection does not stand after so long: nobody answered, or somebody said why nobody does.
pub fn why_opening(stack: &Stack, socket: SocketId) -> io::Error {
    let kind = io::ErrorKind::TimedOut;
    match stack.tcp_trouble(socket) {
        Ok(Some((what, by))) => io::Error::new(kind, format!("{by} says that {what}")),
        _ => kind.into(),
    }
}

/// The outcome of a call on the stack as one on a socket.
#[inline]
fn outcome<R>(found: Poll<Result<R, StackError>>) -> Poll<io::Result<R>> {
    match found {
        // As over the kernel: a neighbour may come back, and what was lost meanwhile is counted.
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
