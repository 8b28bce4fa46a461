//! Transport over the user-space stack and its port.
//!
//! One thread owns it. In addition to the sockets of workloads it has background sockets, which are
//! polled at intervals: the control connection, and services for other hosts.

mod payload;
mod recording;
mod socket_table;
mod sockets;
mod tx_timestamps;

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Duration;

use linerate_record::stack::StackFacts;
use linerate_stack::{Counters, SocketId, SocketKind, Stack, StackError};
use linerate_sys::clock::Nanos;
use linerate_sys::{clock, tick_clock};
use socket_table::{NetstackSocket, SocketTable};

use crate::aligned_buffer::AlignedBuffer;
use crate::stack_thread::background::BackgroundWork;
use crate::stack_thread::port_driver::PortDriver;
use crate::stack_thread::stack_facts;
use crate::stack_thread::stack_service::PayloadCounters;
use crate::{CallAttempts, RecvMeta};
pub use recording::RecordingNetstack;
pub use socket_table::SocketSlot;

/// Interval at which background sockets are polled while payload moves.
const BACKGROUND_INTERVAL_NS: Nanos = 1_000_000;

/// Pause between two polls while the thread has no workload.
const IDLE_POLL_INTERVAL_NS: Nanos = 50_000;

/// Port polls between two readings of the clock while the stack is idle and spins. On a port that
/// needs system calls, a port poll costs half of a stack poll; on one in memory a tenth. An
/// arriving frame waits for the poll in progress.
const PORT_POLLS_PER_CLOCK_READ: u32 = 16;

/// Longest time for which only the port is polled; other work of the thread waits for it.
const PORT_POLLING_NS: Nanos = 4_000;

/// Upper bound of the time of such a wait. Before an earlier departure the stack is polled instead.
const MAX_PORT_POLLING_NS: Nanos = 20_000;

/// Largest number of flows that are checked for refused sends; a closed port refuses all of them.
const MAX_CHECKED_FLOWS: usize = 16;

/// Largest number of datagrams per call: a burst of the port.
const MAX_BATCH: usize = 32;

/// Largest payload of one call. It is copied between the workload and the stack's buffers, as with
/// kernel sockets.
const MAX_CALL_BYTES: usize = 256 << 10;

/// The user-space stack and its sockets, on the thread that owns it.
pub struct NetstackTransport {
    stack: Stack,
    /// Facts for records, as of the start.
    facts: StackFacts,
    start_counters: Counters,
    /// Minimum time between two polls; `None` for busy polling.
    poll_interval_ns: Option<Nanos>,
    next_poll_ns: Nanos,
    now: Nanos,
    /// True if payload was sent since the last poll.
    has_unsent: bool,
    send_buffer: AlignedBuffer,
    receive_buffer: AlignedBuffer,
    sockets: SocketTable,
    background: BackgroundWork,
    next_background_ns: Nanos,
    attempts: CallAttempts,
    /// True if the last poll received a frame.
    last_poll_received: bool,
    /// Start of the current idle time of the port, and idle time in all until the last poll.
    idle_since_ns: Option<Nanos>,
    idle_ns: Nanos,
    /// Payload moved by workloads, for the counters of the service that started them.
    payload: PayloadCounters,
    /// Set by another thread to end received streams.
    end_receives: Arc<AtomicBool>,
    receives_ended: bool,
    /// Thread that polls the port, if not this one. Declared last, so that it ends after the stack.
    _driver: Option<PortDriver>,
}

impl NetstackTransport {
    /// Takes ownership of a stack, with its facts for records.
    pub fn with_stack(
        stack: Stack,
        facts: StackFacts,
        background: BackgroundWork,
        end_receives: Arc<AtomicBool>,
    ) -> Self {
        let now = tick_clock::interpolated_now();
        Self {
            start_counters: stack.counters(),
            poll_interval_ns: (stack.config().poll_interval)
                .map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)),
            facts,
            next_poll_ns: now,
            now,
            has_unsent: false,
            send_buffer: AlignedBuffer::new(MAX_CALL_BYTES),
            receive_buffer: AlignedBuffer::new(MAX_CALL_BYTES),
            sockets: SocketTable::new(),
            background,
            next_background_ns: now,
            attempts: CallAttempts::default(),
            last_poll_received: false,
            idle_since_ns: None,
            idle_ns: 0,
            payload: PayloadCounters::default(),
            end_receives,
            receives_ended: false,
            _driver: None,
            stack,
        }
    }

    /// Adds a thread that polls the port.
    pub fn with_driver(self, driver: Option<PortDriver>) -> Self {
        Self {
            _driver: driver,
            ..self
        }
    }

    /// Returns whether a background connection still has data to transmit.
    #[inline]
    pub fn is_busy(&self) -> bool {
        self.background.is_busy()
    }

    /// Returns the facts for records, with the counters since the start of the count.
    pub fn current_facts(&mut self) -> StackFacts {
        self.background.refresh(&mut self.stack);
        StackFacts {
            counters: stack_facts::counter_map(&self.stack.counters().since(&self.start_counters)),
            ..self.facts.clone()
        }
    }

    /// Starts the counters at zero.
    pub fn reset_counters(&mut self) {
        self.background.refresh(&mut self.stack);
        self.start_counters = self.stack.counters();
    }

    /// Polls the stack if it is time. Returns whether frames were received; `None` if not polled.
    fn poll_stack(&mut self) -> Option<bool> {
        if self.poll_interval_ns.is_none() && self.has_unsent {
            // A response is transmitted before the clock is read.
            self.stack.flush_frames();
        }
        self.now = self
            .stack
            .prefetched_at()
            .unwrap_or_else(tick_clock::interpolated_now);
        if let Some(from) = self.idle_since_ns.take() {
            // A longer time was no port poll: the thread was preempted.
            self.idle_ns += self.now.saturating_sub(from).min(MAX_PORT_POLLING_NS);
        }
        if let Some(interval) = self.poll_interval_ns {
            if self.now < self.next_poll_ns {
                return None;
            }
            // Missed polls are not made up for.
            self.next_poll_ns = (self.next_poll_ns + interval).max(self.now);
        }
        self.has_unsent = false;
        let poll = self.stack.poll(self.now);
        if self.sockets.has_registrations() || self.background.has_services() {
            while let Some(socket) = self.stack.next_ready() {
                if !self.sockets.mark_changed(socket) {
                    self.background
                        .on_socket_change(&mut self.stack, socket, self.now);
                }
            }
            self.background
                .run_ready_services(&mut self.stack, self.now);
        }
        self.last_poll_received = poll.received > 0;
        Some(self.last_poll_received)
    }

    /// Transmits unsent payload instead of waiting for the next poll; returns whether there was
    /// any.
    #[inline]
    fn flush_unsent(&mut self) -> bool {
        let unsent = std::mem::take(&mut self.has_unsent);
        if unsent {
            self.stack.flush();
        }
        unsent
    }

    /// Flushes if there is only one flow. Payload of several flows leaves together with the next
    /// poll.
    #[inline]
    fn flush_single_flow(&mut self) -> bool {
        self.sockets.has_one() && self.flush_unsent()
    }

    /// Idles as configured, at most until `until`; returns whether the thread slept.
    #[inline]
    fn pause(&mut self, flushed: bool, until: Option<Nanos>) -> bool {
        match self.poll_interval_ns {
            None if flushed => {}
            None => std::hint::spin_loop(),
            Some(_) => {
                let until = until.map_or(self.next_poll_ns, |until| until.min(self.next_poll_ns));
                clock::sleep_until(until);
                return true;
            }
        }
        false
    }

    /// Idles between two polls without sleep: polls the port until a frame arrives or a deadline is
    /// near.
    #[inline]
    fn spin_for_frames(&mut self, until: Option<Nanos>) {
        if self.background.has_ready_work() {
            return;
        }
        // Time spent on received frames is not idle time.
        let from = if self.last_poll_received {
            tick_clock::interpolated_now()
        } else {
            self.now
        };
        self.idle_since_ns = Some(from);
        let is_departure_near = until.is_some_and(|until| until < from + MAX_PORT_POLLING_NS);
        if is_departure_near || !self.poll_port_until(from + PORT_POLLING_NS) {
            std::hint::spin_loop();
        }
    }

    /// Polls the port until a frame has arrived or `until` has passed.
    #[inline]
    fn poll_port_until(&mut self, until: Nanos) -> bool {
        loop {
            if (0..PORT_POLLS_PER_CLOCK_READ).any(|_| self.stack.prefetch()) {
                return true;
            }
            if tick_clock::interpolated_now() >= until {
                return false;
            }
        }
    }

    /// Appends the keys of sockets that may be ready; returns until when to idle if there are none.
    #[inline]
    fn collect_ready(&mut self, keys: &mut Vec<usize>, timeout: Duration) -> Option<Nanos> {
        self.sockets.collect_ready(keys);
        let idles = keys.is_empty() && !timeout.is_zero();
        let timeout = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        idles.then(|| self.now.saturating_add(timeout))
    }

    /// Returns the kind of a socket, if it is open.
    #[inline]
    fn socket_kind(&self, slot: SocketSlot) -> Option<SocketKind> {
        Some(self.sockets.get(slot).socket?.kind())
    }

    /// Polls the background sockets if it is time.
    #[inline]
    fn poll_background_if_due(&mut self) {
        if self.now >= self.next_background_ns {
            self.next_background_ns = self.now + BACKGROUND_INTERVAL_NS;
            self.receives_ended = self.end_receives.load(Relaxed);
            self.background.set_test_payload(self.payload);
            self.background.poll(&mut self.stack, self.now);
            self.collect_refused_sends();
        }
    }

    /// Counts refused sends on sockets from which no workload receives.
    fn collect_refused_sends(&mut self) {
        for (socket, refused_sends) in self.sockets.unread(MAX_CHECKED_FLOWS) {
            // Without a waiting datagram, the call can only return an error.
            let empty = self
                .stack
                .udp_queued(socket)
                .is_ok_and(|waiting| waiting == 0);
            if empty
                && let Poll::Ready(Err(StackError::ConnectionRefused { .. })) =
                    self.stack.udp_receive(socket, |_, _| ())
            {
                *refused_sends = refused_sends.saturating_add(1);
            }
        }
    }

    /// Closes the sockets of workloads.
    pub fn close_sockets(&mut self) {
        self.stack.unwatch_stages();
        for socket in self.sockets.clear() {
            // It may be closed already.
            let _ = self.stack.close(socket);
        }
        self.background.end_test(&mut self.stack);
        self.stack.flush();
    }

    /// Polls once on a thread without a workload; returns whether anything happened.
    pub fn poll_without_workload(&mut self) -> bool {
        let worked = self.poll_stack() == Some(true);
        self.next_background_ns = self.now;
        self.background.set_test_payload(self.payload);
        let background_worked = self.background.poll(&mut self.stack, self.now);
        if background_worked {
            self.stack.flush();
        }
        worked || background_worked
    }

    /// Idles on a thread without a workload; one that serves other hosts idles as configured.
    pub fn idle_without_workload(&mut self) {
        match (self.poll_interval_ns, self.background.has_services()) {
            (None, true) => self.spin_for_frames(None),
            (Some(_), true) => clock::sleep_until(self.next_poll_ns),
            (_, false) => clock::sleep_until(self.now + IDLE_POLL_INTERVAL_NS),
        }
    }

    /// Returns the datagrams dropped by the receive queue of a workload's socket.
    fn queue_drops(&self, entry: &NetstackSocket) -> u64 {
        let is_only_flow = self.sockets.of_kind(SocketKind::Udp).count() == 1;
        // Each datagram carries the drops before it; only the stack's sum includes the last ones.
        let reported = u64::from(entry.queue_drops);
        let (now, before) = (&self.stack.counters(), &self.start_counters);
        let all = |of: &Counters| of.udp.receive_queue_full + of.udp.no_buffer;
        match is_only_flow && !self.background.has_services() {
            true => all(now).saturating_sub(all(before)),
            false => reported,
        }
    }

    /// Returns the stack's socket of a slot, for calls that need an open one.
    #[inline]
    fn socket_id(&self, slot: SocketSlot) -> io::Result<SocketId> {
        let socket = self.sockets.get(slot).socket;
        socket.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn count_call<R>(&mut self, result: &Poll<io::Result<R>>) {
        self.attempts.calls += 1;
        self.attempts.empty += u64::from(result.is_pending());
    }

    /// Counts a call; after a pending one the socket must change before it is ready again.
    #[inline]
    fn count_socket_call<R>(&mut self, slot: SocketSlot, result: &Poll<io::Result<R>>) {
        self.count_call(result);
        if result.is_pending() {
            self.sockets.mark_starved(slot);
        }
    }
}

/// Converts an error of the stack to the [`io::Error`] that the kernel would return.
#[inline]
pub fn to_io_error(error: StackError) -> io::Error {
    let kind = match &error {
        StackError::ConnectionRefused { .. } => io::ErrorKind::ConnectionRefused,
        StackError::ConnectionReset => io::ErrorKind::ConnectionReset,
        StackError::SendFinished => io::ErrorKind::BrokenPipe,
        StackError::Unreachable { .. } | StackError::NeighborSilent { .. } => {
            io::ErrorKind::HostUnreachable
        }
        StackError::NoRoute { .. } => io::ErrorKind::NetworkUnreachable,
        StackError::PortInUse { .. } => io::ErrorKind::AddrInUse,
        StackError::NotLocal { .. } => io::ErrorKind::AddrNotAvailable,
        StackError::NotConnected => io::ErrorKind::NotConnected,
        StackError::TooLong { .. } => io::ErrorKind::InvalidInput,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

/// Returns the reason why a connection closed before it was established.
pub fn close_reason(stack: &mut Stack, socket: SocketId) -> io::Error {
    match stack.tcp_receive(socket, |_| (0, ())) {
        Poll::Ready(Err(error)) => to_io_error(error),
        _ => io::ErrorKind::ConnectionReset.into(),
    }
}

/// Returns the reason why a connection is not established in time: no reply, or an ICMP error.
pub fn connect_timeout_reason(stack: &Stack, socket: SocketId) -> io::Error {
    let kind = io::ErrorKind::TimedOut;
    match stack.tcp_icmp_error(socket) {
        Ok(Some((error, reporter))) => {
            io::Error::new(kind, format!("{reporter} reports that {error}"))
        }
        _ => kind.into(),
    }
}

/// Converts the result of a call on the stack to that of a call on a socket.
#[inline]
fn to_socket_result<R>(result: Poll<Result<R, StackError>>) -> Poll<io::Result<R>> {
    match result {
        // As with the kernel: a neighbour may return, and frames lost meanwhile are counted.
        Poll::Ready(Err(StackError::NeighborSilent { .. })) => Poll::Pending,
        result => result.map(|result| result.map_err(to_io_error)),
    }
}

#[inline]
fn recv_meta(meta: &linerate_stack::DatagramMeta) -> RecvMeta {
    RecvMeta {
        timestamp_ns: Some(meta.arrived_ns),
        queued_ns: meta.queued_ns,
        queue_drops: Some(meta.queue_drops),
        tos: Some(meta.tos),
        ..RecvMeta::default()
    }
}
