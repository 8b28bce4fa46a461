//! Payload over UDP.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

use linerate_sys::clock::Nanos;
use linerate_sys::socket::MessageFlags;
use linerate_sys::{clock, socket};
use linerate_workload::flow_counters::PayloadTotals;
use socket2::Socket;

use super::{
    FlowFailure, FlowWorkerContext, FlowWorkerResult, POLL_INTERVAL, SendPlan, SequenceStats,
    is_retryable, wait_for_pacer,
};

/// Datagram flow of one protocol.
pub trait DatagramFlow {
    /// Processes a datagram that arrived at `now`.
    fn receive(&mut self, now: Nanos, datagram: &mut [u8]) -> DatagramAction;

    /// Returns whether the flow is over: by its end marker, or by silence.
    fn is_finished(&mut self, now: Nanos) -> bool;

    /// Returns the totals so far.
    fn totals(&self) -> PayloadTotals;

    /// Returns the time at which the client started to send, as far as it shows here: by the rate
    /// of the numbers if the first ones were lost. By default that is the first payload.
    fn start_ns(&self) -> Option<Nanos> {
        None
    }

    /// Returns the time at which the client stopped sending, by its end marker: payload before it
    /// may be lost. By default that is the last payload.
    fn end_ns(&self) -> Option<Nanos> {
        None
    }

    /// Returns the statistics by sequence numbers, at the end.
    fn sequence_stats(&mut self) -> Option<SequenceStats>;

    /// Returns the reply to the last datagram, where it is not a prefix of that datagram.
    fn reply(&self) -> &[u8] {
        &[]
    }

    /// Returns whether datagrams may be replied to, so that each is needed at its arrival time.
    fn sends_replies(&self) -> bool {
        false
    }
}

/// Classification of a datagram, with the action to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramAction {
    /// Payload.
    Payload,
    /// No payload, but the start of the flow's time.
    Start,
    /// No payload.
    Ignore,
    /// Datagram that the protocol cannot parse.
    Unparsed,
    /// No payload; reply with [`DatagramFlow::reply`].
    Reply,
    /// Reply with the first bytes of the datagram, as they are now.
    ReplyInPlace {
        /// Bytes of the reply.
        bytes: usize,
        /// True if the datagram counts as payload.
        is_payload: bool,
    },
}

/// Failed sends after which the client counts as gone, each within [`UNREACHABLE_WINDOW_NS`] of the
/// one before. An ICMP error is reported by the call after the datagram that caused it, so other
/// calls succeed in between, and routers send few such errors per second (RFC 1812 section
/// 4.3.2.8).
const UNREACHABLE_LIMIT: u32 = 4;

/// Time without a failed send after which the count starts again.
const UNREACHABLE_WINDOW_NS: Nanos = 5_000_000_000;

/// Counter of failed sends to a client.
#[derive(Default)]
pub struct UnreachableCounter {
    count: u32,
    last_ns: Nanos,
}

impl UnreachableCounter {
    /// Counts a failed send; returns true once the client counts as gone.
    pub fn record(&mut self, now: Nanos) -> bool {
        if now.saturating_sub(self.last_ns) > UNREACHABLE_WINDOW_NS {
            self.count = 0;
        }
        self.count += 1;
        self.last_ns = now;
        self.count >= UNREACHABLE_LIMIT
    }
}

/// Gaps after a first request that may be a probe for a responder: shorter ones are noise, and
/// after longer ones intervals have been emitted already.
const PROBE_GAP_NS: std::ops::Range<Nanos> = 20_000_000..800_000_000;

/// Minimum ratio of such a gap to the next one.
const PROBE_RATIO: u64 = 8;

/// Arrival times of a flow's first requests.
#[derive(Default)]
struct FirstRequests {
    count: u8,
    /// Arrival time of the second one, and its distance from the first.
    second: (Nanos, Nanos),
    first_ns: Nanos,
}

impl FirstRequests {
    /// Counts a request; returns the start of the flow's time if that is not its first request.
    #[inline]
    fn record(&mut self, now: Nanos) -> Option<Nanos> {
        match self.count {
            0 => self.first_ns = now,
            1 => self.second = (now, now.saturating_sub(self.first_ns)),
            2 => {
                self.count = 3;
                let (second, gap) = self.second;
                let next = now.saturating_sub(second);
                let probed = PROBE_GAP_NS.contains(&gap) && gap / PROBE_RATIO > next;
                return probed.then_some(second);
            }
            _ => return None,
        }
        self.count += 1;
        None
    }
}

/// Consecutive errors of replies after which the client counts as gone.
const REJECTED_REPLY_LIMIT: u32 = 16;

/// Buffer of one receive call: the largest datagram, or several that GRO has merged.
const DATAGRAM_BUFFER_BYTES: usize = 1 << 16;

/// Receives a flow of datagrams until its end.
///
/// `allow` returns whether a reply may be sent, from the time, the bytes received since the last
/// call, and the size of the reply.
pub fn receive_datagrams<D: DatagramFlow>(
    context: &FlowWorkerContext,
    socket: &Socket,
    early: Vec<(Nanos, Box<[u8]>)>,
    flow: &mut D,
    mut allow: impl FnMut(Nanos, u64, u64) -> bool,
) -> FlowWorkerResult {
    let mut result = FlowWorkerResult::default();
    let replies = Cell::new(0);
    let mut first_requests = FirstRequests::default();
    // Bytes received since the last call of `allow`.
    let mut uncredited_bytes = 0;
    let mut buffer = vec![0; DATAGRAM_BUFFER_BYTES];
    if let Err(error) = socket
        .set_nonblocking(false)
        .and_then(|()| socket.set_read_timeout(Some(POLL_INTERVAL)))
    {
        result.failure = Some(FlowFailure::Socket(error));
        return result;
    }
    if !flow.sends_replies() {
        // Without GRO each datagram takes a call of its own.
        let _ = socket::enable_udp_gro(socket);
    }
    let mut process = |flow: &mut D, result: &mut FlowWorkerResult, now, datagram: &mut [u8]| {
        let bytes = datagram.len();
        uncredited_bytes += bytes as u64;
        let mut reply = |message: &[u8]| {
            if allow(
                now,
                std::mem::take(&mut uncredited_bytes),
                message.len() as u64,
            ) && socket::send(socket, message, MessageFlags::NONE).is_ok()
            {
                replies.set(replies.get() + 1);
            }
        };
        let mut is_request = false;
        let is_payload = match flow.receive(now, datagram) {
            DatagramAction::Payload => true,
            DatagramAction::Start => {
                result.record_payload(now);
                false
            }
            DatagramAction::Ignore => false,
            DatagramAction::Unparsed => {
                result.unparsed += 1;
                false
            }
            DatagramAction::Reply => {
                reply(flow.reply());
                false
            }
            DatagramAction::ReplyInPlace {
                bytes,
                is_payload: counts,
            } => {
                reply(&datagram[..bytes.min(datagram.len())]);
                is_request = counts;
                counts
            }
        };
        if is_payload {
            result.record_payload(now);
            if is_request && let Some(first) = first_requests.record(now) {
                result.payload_times = Some((first, now));
            }
            result.datagram_size.record(bytes);
        }
    };
    let mut calls = 0;
    for (now, mut datagram) in early {
        process(flow, &mut result, now, &mut datagram);
        calls += 1;
    }
    let mut errors = 0;
    loop {
        result.totals = PayloadTotals {
            calls,
            ..flow.totals()
        };
        if flow.sends_replies() {
            let packets = result.totals.packets;
            result.totals.missing = packets.saturating_sub(replies.get());
        }
        context.publish(&result);
        match socket::receive_segments(socket, &mut buffer, MessageFlags::NONE) {
            Ok((bytes, segment)) => {
                let now = clock::now();
                calls += 1;
                errors = 0;
                // After a shutdown, receive calls return 0 bytes again and again.
                if bytes == 0 && !context.signals.closed.load(Relaxed) {
                    process(flow, &mut result, now, &mut []);
                }
                let size = segment.map_or(bytes, usize::from).max(1);
                for datagram in buffer[..bytes].chunks_mut(size) {
                    process(flow, &mut result, now, datagram);
                }
                // An uninterrupted flow ends with its end marker.
                if flow.is_finished(now) || context.signals.closed.load(Relaxed) {
                    break;
                }
            }
            Err(error) if is_retryable(&error) => {
                if flow.is_finished(clock::now()) || context.signals.closed.load(Relaxed) {
                    break;
                }
            }
            // ICMP error of an earlier reply: the client has closed its socket.
            Err(_) if errors < REJECTED_REPLY_LIMIT => {
                errors += 1;
                if flow.is_finished(clock::now()) || context.signals.closed.load(Relaxed) {
                    break;
                }
            }
            Err(error) => {
                result.failure = Some(FlowFailure::Socket(error));
                break;
            }
        }
    }
    if let Some((first, last)) = &mut result.payload_times {
        *first = flow.start_ns().unwrap_or(*first).min(*first);
        *last = flow.end_ns().unwrap_or(*last).max(*last);
    }
    result.sequence_stats = flow.sequence_stats();
    result.responses = flow.sends_replies().then_some(replies.get());
    result
}

/// Sends datagrams of one size.
///
/// `stamp` writes the header of a datagram from its number (from 1) and the time. After the last
/// one, `farewell` writes end markers until it returns false.
pub fn send_datagrams(
    context: &FlowWorkerContext,
    socket: &Socket,
    send_plan: &SendPlan,
    payload: &mut [u8],
    mut stamp: impl FnMut(&mut [u8], u64, Nanos),
    mut farewell: impl FnMut(&mut [u8], u64, Nanos) -> bool,
) -> FlowWorkerResult {
    let mut result = FlowWorkerResult::default();
    let ready = socket
        .set_nonblocking(false)
        .and_then(|()| socket.set_write_timeout(Some(POLL_INTERVAL)));
    if let Err(error) = ready {
        result.failure = Some(FlowFailure::Socket(error));
        return result;
    }
    let start_ns = clock::now();
    let mut pacer = send_plan.pacer(start_ns, payload.len());
    let bytes = payload.len() as u64;
    let mut unreachable = UnreachableCounter::default();
    // Read after each call that takes time: one read serves a departure and the next decision.
    let mut now = start_ns;
    loop {
        if send_plan.is_over(&context.signals, now, result.totals.bytes) {
            break;
        }
        if wait_for_pacer(&pacer, now, send_plan.until_ns) {
            now = clock::now();
            continue;
        }
        pacer.drop_overdue(now, bytes);
        stamp(payload, result.totals.packets + 1, now);
        let sent = socket::send(socket, payload, MessageFlags::NONE);
        now = clock::now();
        match sent {
            Ok(_) => {
                result.record_start(start_ns, &pacer);
                result.record_payload(now);
                pacer.record_sent(bytes, now);
                result.totals.bytes += bytes;
                result.totals.packets += 1;
                result.totals.calls += 1;
                context.publish(&result);
            }
            Err(error) if is_retryable(&error) => {}
            // The device's queue is full: retry shortly.
            Err(error)
                if error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) =>
            {
                clock::sleep_until(now + 100_000);
                now = clock::now();
            }
            Err(error) => {
                if unreachable.record(now) {
                    result.failure = Some(FlowFailure::Socket(error));
                    break;
                }
            }
        }
    }
    result.record_send_end(send_plan.until_ns, &context.signals);
    while !context.signals.closed.load(Relaxed)
        && farewell(payload, result.totals.packets, clock::now())
    {
        // No reply is expected. A failed send equals a lost datagram.
        let _ = socket::send(socket, payload, MessageFlags::NONE);
        clock::sleep_until(clock::now() + 10_000_000);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_early_probe_does_not_start_the_time() {
        let ms = 1_000_000;
        let start_of = |gaps: [Nanos; 3]| {
            let (mut requests, mut now) = (FirstRequests::default(), 5 * ms);
            let first = requests.record(now);
            let more = gaps.map(|gap| {
                now += gap;
                requests.record(now)
            });
            first.into_iter().chain(more.into_iter().flatten()).next()
        };
        assert_eq!(start_of([190 * ms, ms, ms]), Some(195 * ms));
        // Requests at irregular intervals all belong to the test.
        assert_eq!(start_of([190 * ms, 100 * ms, ms]), None);
        assert_eq!(start_of([10 * ms, ms / 10, ms]), None);
        assert_eq!(start_of([900 * ms, ms, ms]), None);
    }

    #[test]
    fn a_client_is_gone_after_consecutive_send_errors() {
        let second = 1_000_000_000;
        let mut unreachable = UnreachableCounter::default();
        let is_gone: Vec<bool> = (1..=4).map(|at| unreachable.record(at * second)).collect();
        assert_eq!(is_gone, [false, false, false, true]);
        // Errors far apart are a route that comes and goes.
        let mut unreachable = UnreachableCounter::default();
        assert!((1..20).all(|at| !unreachable.record(at * 6 * second)));
    }
}
