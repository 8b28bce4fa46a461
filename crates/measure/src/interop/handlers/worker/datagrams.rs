//! Payload over UDP.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::socket::{self, Flags};
use socket2::Socket;

use super::{Broke, Context, LOOK_UP, Moved, Numbers, Sending, is_nothing, wait_for_turn};
use crate::flow_counters::Totals;

/// Datagram flow of one protocol.
pub trait Datagrams {
    /// Processes a datagram that arrived at `now`.
    fn take(&mut self, now: Nanos, datagram: &mut [u8]) -> Take;

    /// Returns whether the flow is over: by its end marker, or by silence.
    fn is_over(&mut self, now: Nanos) -> bool;

    /// Returns the totals so far.
    fn totals(&self) -> Totals;

    /// Returns the statistics by sequence numbers, at the end.
    fn numbers(&mut self) -> Option<Numbers>;

    /// Returns the reply to the last datagram, where it is not a prefix of that datagram.
    fn reply(&self) -> &[u8] {
        &[]
    }

    /// Returns whether datagrams may be replied to, so that each is needed at its arrival time.
    fn answers(&self) -> bool {
        false
    }
}

/// Classification of a datagram, with the action to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// Payload.
    Payload,
    /// No payload, but the start of the flow's time.
    Opening,
    /// No payload.
    Other,
    /// Datagram that the protocol cannot parse.
    Unread,
    /// No payload; reply with [`Datagrams::reply`].
    Reply,
    /// Reply with the first bytes of the datagram, as they are now.
    Answer {
        /// Bytes of the reply.
        bytes: usize,
        /// True if the datagram counts as payload.
        payload: bool,
    },
}

/// Failed sends after which the client counts as gone, each within [`REFUSED_NS`] of the one
/// before. An ICMP error is reported by the call after the datagram that caused it, so other calls
/// succeed in between, and routers send few such errors per second (RFC 1812 section 4.3.2.8).
const REFUSED_LIMIT: u32 = 4;

/// Time without a failed send after which the count starts again.
const REFUSED_NS: Nanos = 5_000_000_000;

/// Counter of failed sends to a client.
#[derive(Default)]
pub struct Refusals {
    count: u32,
    last_ns: Nanos,
}

impl Refusals {
    /// Counts a failed send; returns true once the client counts as gone.
    pub fn take(&mut self, now: Nanos) -> bool {
        if now.saturating_sub(self.last_ns) > REFUSED_NS {
            self.count = 0;
        }
        self.count += 1;
        self.last_ns = now;
        self.count >= REFUSED_LIMIT
    }
}

/// Gaps after a first request that may be a probe for a responder: shorter ones are noise, and
/// after longer ones intervals have been emitted already.
const AFTER_PROBE_NS: std::ops::Range<Nanos> = 20_000_000..800_000_000;

/// Minimum ratio of such a gap to the next one.
const PROBE_RATIO: u64 = 8;

/// Arrival times of a flow's first requests.
#[derive(Default)]
struct FirstQuestions {
    came: u8,
    /// Arrival time of the second one, and its distance from the first.
    second: (Nanos, Nanos),
    first_ns: Nanos,
}

impl FirstQuestions {
    /// Counts a request; returns the start of the flow's time if that is not its first request.
    #[inline]
    fn take(&mut self, now: Nanos) -> Option<Nanos> {
        match self.came {
            0 => self.first_ns = now,
            1 => self.second = (now, now.saturating_sub(self.first_ns)),
            2 => {
                self.came = 3;
                let (second, gap) = self.second;
                let next = now.saturating_sub(second);
                let probed = AFTER_PROBE_NS.contains(&gap) && gap / PROBE_RATIO > next;
                return probed.then_some(second);
            }
            _ => return None,
        }
        self.came += 1;
        None
    }
}

/// Consecutive errors of replies after which the client counts as gone.
const UNWANTED_LIMIT: u32 = 16;

/// Buffer of one receive call: the largest datagram, or several that GRO has merged.
const DATAGRAM_ROOM: usize = 1 << 16;

/// Receives a flow of datagrams until its end.
///
/// `allow` returns whether a reply may be sent, from the time, the bytes received since the last
/// call, and the size of the reply.
pub fn receive_datagrams<D: Datagrams>(
    context: &Context,
    socket: &Socket,
    early: Vec<(Nanos, Box<[u8]>)>,
    dialect: &mut D,
    mut allow: impl FnMut(Nanos, u64, u64) -> bool,
) -> Moved {
    let mut moved = Moved::default();
    let answered = Cell::new(0);
    let mut first_questions = FirstQuestions::default();
    // Bytes received since the last call of `allow`.
    let mut unsaid = 0;
    let mut room = vec![0; DATAGRAM_ROOM];
    if let Err(error) = socket
        .set_nonblocking(false)
        .and_then(|()| socket.set_read_timeout(Some(LOOK_UP)))
    {
        moved.broke = Some(Broke::Error(error));
        return moved;
    }
    if !dialect.answers() {
        // Without GRO each datagram takes a call of its own.
        let _ = socket::set_udp_coalescing(socket);
    }
    let mut take = |dialect: &mut D, moved: &mut Moved, now, datagram: &mut [u8]| {
        let bytes = datagram.len();
        unsaid += bytes as u64;
        let mut say = |answer: &[u8]| {
            if allow(now, std::mem::take(&mut unsaid), answer.len() as u64)
                && socket::send(socket, answer, Flags::NONE).is_ok()
            {
                answered.set(answered.get() + 1);
            }
        };
        let mut is_question = false;
        let is_payload = match dialect.take(now, datagram) {
            Take::Payload => true,
            Take::Opening => {
                moved.at(now);
                false
            }
            Take::Other => false,
            Take::Unread => {
                moved.unread += 1;
                false
            }
            Take::Reply => {
                say(dialect.reply());
                false
            }
            Take::Answer { bytes, payload } => {
                say(&datagram[..bytes.min(datagram.len())]);
                is_question = payload;
                payload
            }
        };
        if is_payload {
            moved.at(now);
            if is_question && let Some(first) = first_questions.take(now) {
                moved.span = Some((first, now));
            }
            moved.sizes.take(bytes);
        }
    };
    let mut calls = 0;
    for (now, mut datagram) in early {
        take(dialect, &mut moved, now, &mut datagram);
        calls += 1;
    }
    let mut refused = 0;
    loop {
        moved.totals = Totals {
            calls,
            ..dialect.totals()
        };
        if dialect.answers() {
            let came = moved.totals.packets;
            moved.totals.missing = came.saturating_sub(answered.get());
        }
        context.publish(&moved);
        match socket::receive_segments(socket, &mut room, Flags::NONE) {
            Ok((bytes, segment)) => {
                let now = clock::now();
                calls += 1;
                refused = 0;
                // After a shutdown, receive calls return 0 bytes again and again.
                if bytes == 0 && !context.signals.closed.load(Relaxed) {
                    take(dialect, &mut moved, now, &mut []);
                }
                let size = segment.map_or(bytes, usize::from).max(1);
                for datagram in room[..bytes].chunks_mut(size) {
                    take(dialect, &mut moved, now, datagram);
                }
                // An uninterrupted flow ends with its end marker.
                if dialect.is_over(now) || context.signals.closed.load(Relaxed) {
                    break;
                }
            }
            Err(error) if is_nothing(&error) => {
                if dialect.is_over(clock::now()) || context.signals.closed.load(Relaxed) {
                    break;
                }
            }
            // ICMP error of an earlier reply: the client has closed its socket.
            Err(_) if refused < UNWANTED_LIMIT => {
                refused += 1;
                if dialect.is_over(clock::now()) || context.signals.closed.load(Relaxed) {
                    break;
                }
            }
            Err(error) => {
                moved.broke = Some(Broke::Error(error));
                break;
            }
        }
    }
    moved.numbers = dialect.numbers();
    moved.answered = dialect.answers().then_some(answered.get());
    moved
}

/// Sends datagrams of one size.
///
/// `stamp` writes the header of a datagram from its number (from 1) and the time. After the last
/// one, `farewell` writes end markers until it returns false.
pub fn send_datagrams(
    context: &Context,
    socket: &Socket,
    sending: &Sending,
    payload: &mut [u8],
    mut stamp: impl FnMut(&mut [u8], u64, Nanos),
    mut farewell: impl FnMut(&mut [u8], u64, Nanos) -> bool,
) -> Moved {
    let mut moved = Moved::default();
    let ready = socket
        .set_nonblocking(false)
        .and_then(|()| socket.set_write_timeout(Some(LOOK_UP)));
    if let Err(error) = ready {
        moved.broke = Some(Broke::Error(error));
        return moved;
    }
    let begun = clock::now();
    let mut pacer = sending.pacer(begun, payload.len());
    let bytes = payload.len() as u64;
    let mut refusals = Refusals::default();
    loop {
        let now = clock::now();
        if sending.is_over(&context.signals, now, moved.totals.bytes) {
            break;
        }
        if wait_for_turn(&pacer, now, sending.until_ns) {
            continue;
        }
        pacer.give_up(now, bytes);
        stamp(payload, moved.totals.packets + 1, clock::now());
        match socket::send(socket, payload, Flags::NONE) {
            Ok(_) => {
                let now = clock::now();
                moved.began(begun, &pacer);
                moved.at(now);
                pacer.left(bytes, now);
                moved.totals.bytes += bytes;
                moved.totals.packets += 1;
                moved.totals.calls += 1;
                context.publish(&moved);
            }
            Err(error) if is_nothing(&error) => {}
            // The device's queue is full: retry shortly.
            Err(error)
                if error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) =>
            {
                clock::sleep_until(now + 100_000);
            }
            Err(error) => {
                if refusals.take(now) {
                    moved.broke = Some(Broke::Error(error));
                    break;
                }
            }
        }
    }
    moved.sent_all(sending.until_ns, &context.signals);
    while !context.signals.closed.load(Relaxed)
        && farewell(payload, moved.totals.packets, clock::now())
    {
        // No reply is expected. A failed send equals a lost datagram.
        let _ = socket::send(socket, payload, Flags::NONE);
        clock::sleep_until(clock::now() + 10_000_000);
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_that_is_asked_long_before_the_others_opens_no_time() {
        let ms = 1_000_000;
        let begins = |gaps: [Nanos; 3]| {
            let (mut questions, mut now) = (FirstQuestions::default(), 5 * ms);
            let first = questions.take(now);
            let more = gaps.map(|gap| {
                now += gap;
                questions.take(now)
            });
            first.into_iter().chain(more.into_iter().flatten()).next()
        };
        assert_eq!(begins([190 * ms, ms, ms]), Some(195 * ms));
        // Requests at irregular intervals all belong to the test.
        assert_eq!(begins([190 * ms, 100 * ms, ms]), None);
        assert_eq!(begins([10 * ms, ms / 10, ms]), None);
        assert_eq!(begins([900 * ms, ms, ms]), None);
    }

    #[test]
    fn a_client_is_gone_after_refusals_that_come_close() {
        let second = 1_000_000_000;
        let mut refusals = Refusals::default();
        let told: Vec<bool> = (1..=4).map(|at| refusals.take(at * second)).collect();
        assert_eq!(told, [false, false, false, true]);
        // Errors far apart are a route that comes and goes.
        let mut refusals = Refusals::default();
        assert!((1..20).all(|at| !refusals.take(at * 6 * second)));
    }
}
