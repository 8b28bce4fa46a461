//! Workers that move the payload of third-party tests, one thread for each flow and direction.
//!
//! Their calls block in the kernel for at most [`LOOK_UP`], so that a peer that stops reading or
//! sending holds up no other test. Nothing is allocated, locked or printed while payload moves,
//! except where the server's guard has to allow a response.

mod datagrams;
mod stream;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::cpu::ThreadUsage;
use linerate_metric::histogram::Histogram;
use linerate_metric::record::Socket as SocketFacts;
use socket2::Socket;

use super::limits::Limits;
use crate::flow_counters::{Meter, Totals};
use crate::pacer::Pacer;
use crate::transport::facts_of;

pub use datagrams::{Datagrams, Refusals, Take, receive_datagrams, send_datagrams};
pub use stream::{receive_stream, send_stream, watch_stream};

/// Interval at which a blocked worker checks its stop signals.
pub const LOOK_UP: Duration = Duration::from_millis(100);

/// Buffer of one receive call on a connection.
pub const RECEIVE_BYTES: usize = 256 << 10;

/// Stop signals from a test to its workers.
#[derive(Debug, Default)]
pub struct Signals {
    /// Time from which nothing more is sent, while payload in flight may still be received. 0
    /// before.
    ended_ns: AtomicU64,
    /// True once the test is over.
    pub closed: AtomicBool,
}

impl Signals {
    /// Ends sending now, unless it has ended already.
    pub fn end(&self) {
        let now = clock::now();
        let _ = (self.ended_ns).compare_exchange(0, now, Relaxed, Relaxed);
    }

    /// Returns the time from which nothing more is sent.
    #[must_use]
    pub fn ended_ns(&self) -> Option<Nanos> {
        let ended = self.ended_ns.load(Relaxed);
        (ended > 0).then_some(ended)
    }
}

/// State that a worker shares with its test.
#[derive(Clone, Debug)]
pub struct Context {
    /// Totals so far.
    pub meter: Arc<Meter>,
    /// Times of its first and last payload.
    pub times: Arc<Times>,
    /// Stop signals from the test.
    pub signals: Arc<Signals>,
}

/// Times of the first and last payload of a worker; 0 before the first.
#[derive(Debug, Default)]
pub struct Times {
    first_ns: AtomicU64,
    last_ns: AtomicU64,
}

impl Context {
    /// Publishes the totals so far, and the times of payload.
    #[inline]
    pub fn publish(&self, moved: &Moved) {
        self.meter.publish(&moved.totals);
        if let Some((first, last)) = moved.span {
            self.times.first_ns.store(first, Relaxed);
            self.times.last_ns.store(last, Relaxed);
        }
    }

    /// Returns the times of the first and last payload; `None` before the first.
    #[must_use]
    pub fn span(&self) -> Option<(Nanos, Nanos)> {
        let first = self.times.first_ns.load(Relaxed);
        (first > 0).then(|| (first, self.times.last_ns.load(Relaxed).max(first)))
    }
}

/// Result of a worker.
#[derive(Debug, Default)]
pub struct Moved {
    pub totals: Totals,
    /// Times of the first and last payload.
    pub span: Option<(Nanos, Nanos)>,
    /// Size of its datagrams.
    pub sizes: Sizes,
    /// Datagrams that the protocol could not parse.
    pub unread: u64,
    /// Datagrams with numbers before the first one received; in no count.
    pub before: u64,
    /// Losses and jitter by the sequence numbers of its datagrams.
    pub numbers: Option<Numbers>,
    /// One-way delays, where the clocks agree.
    pub delays: Option<Delays>,
    /// Responses sent.
    pub answered: Option<u64>,
    /// Reason for an early end.
    pub broke: Option<Broke>,
    /// State of its socket at the end.
    pub socket: Option<SocketFacts>,
    /// Processor time.
    pub usage: ThreadUsage,
    /// Start and end of the thread.
    pub lived: (Nanos, Nanos),
}

/// Statistics by sequence numbers; `None` for what a protocol's numbers do not show.
#[derive(Clone, Copy, Debug, Default)]
pub struct Numbers {
    /// Missing datagrams.
    pub lost: Option<u64>,
    /// Datagrams received after one with a higher number.
    pub out_of_order: Option<u64>,
    /// Datagrams received more than once.
    pub duplicates: Option<u64>,
    /// Variation of the transit time (RFC 3550 section 6.4.1), in ns.
    pub ipdv_ns: Option<f64>,
}

/// One-way delays by two clocks that the sender declares synchronised.
#[derive(Clone, Debug)]
pub struct Delays {
    times: Histogram,
    /// True once a delay was negative: the clocks do not agree.
    impossible: bool,
}

impl Delays {
    /// Creates an empty set.
    #[must_use]
    pub fn new() -> Self {
        Self {
            times: Histogram::coarse(),
            impossible: false,
        }
    }

    /// Records one delay.
    #[inline]
    pub fn take(&mut self, delay_ns: i64) {
        match u64::try_from(delay_ns) {
            Ok(delay) => self.times.record(delay),
            Err(_) => self.impossible = true,
        }
    }

    /// Returns the delays; `None` if there are none or the clocks do not agree.
    #[must_use]
    pub fn times(&self) -> Option<&Histogram> {
        (!self.impossible && self.times.count() > 0).then_some(&self.times)
    }
}

/// Size of the majority of a flow's datagrams; headers and markers have other sizes. (Boyer-Moore
/// majority vote: without a majority, it is one of the sizes received.)
#[derive(Clone, Copy, Debug, Default)]
pub struct Sizes {
    bytes: usize,
    ahead: u64,
}

impl Sizes {
    /// Counts one datagram.
    #[inline]
    pub fn take(&mut self, bytes: usize) {
        if self.bytes == bytes {
            self.ahead += 1;
        } else if self.ahead == 0 {
            (self.bytes, self.ahead) = (bytes, 1);
        } else {
            self.ahead -= 1;
        }
    }

    /// Returns the size; `None` before the first datagram.
    #[must_use]
    pub fn most(&self) -> Option<u64> {
        (self.bytes > 0).then_some(self.bytes as u64)
    }
}

/// Reason for a flow to end early.
#[derive(Debug)]
pub enum Broke {
    /// The client was silent for this time.
    Silent(Duration),
    /// The socket failed.
    Error(io::Error),
    /// The client sent invalid data.
    Nonsense(String),
}

impl Moved {
    /// Creates a result for payload that started to arrive at `arrived_ns`.
    #[must_use]
    pub fn since(came_ns: Nanos) -> Self {
        Self {
            span: Some((came_ns, came_ns)),
            ..Self::default()
        }
    }

    /// Starts the time of paced payload at `start_ns`: the wait for the first send time counts.
    #[inline]
    fn began(&mut self, begun: Nanos, pacer: &Pacer) {
        if pacer.is_paced() && self.span.is_none() {
            self.span = Some((begun, begun));
        }
    }

    /// Records that payload moved.
    #[inline]
    fn at(&mut self, now: Nanos) {
        self.span = Some((self.span.map_or(now, |(first, _)| first), now));
    }

    /// Records the end of sending: the planned end, the stop signal or now, whichever came first.
    /// Time in which the sender was blocked or paced counts. For a client that takes nothing any
    /// more, the time of its loss is not known: then the last payload is the end.
    pub fn sent_all(&mut self, until_ns: Option<Nanos>, signals: &Signals) {
        if matches!(self.broke, Some(Broke::Silent(_))) {
            return;
        }
        let ends = until_ns.into_iter().chain(signals.ended_ns());
        let end = ends.fold(clock::now(), Nanos::min);
        if let Some((_, last)) = &mut self.span {
            *last = end.max(*last);
        }
    }
}

/// Runs a worker and adds the results that only its own thread and socket can provide.
pub fn lived(socket: &Socket, work: impl FnOnce() -> Moved) -> Moved {
    let before = ThreadUsage::now();
    let began = clock::now();
    let mut moved = work();
    moved.usage = ThreadUsage::now().since(&before);
    moved.lived = (began, clock::now());
    moved.socket = Some(facts_of(socket));
    moved
}

/// Returns whether a call is to be retried: nothing was ready, or a signal interrupted it.
pub fn is_nothing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

/// Payload time of one paced write on a connection: even in any printed interval, and 200 wake-ups
/// a second cost nothing.
const PIECE_NS: Nanos = 5_000_000;

/// Smallest paced write: smaller ones would be more packets and no steadier, because this is the
/// payload of one packet (1,500 B of Ethernet less the headers of IP and TCP with timestamps).
const PIECE_BYTES: u64 = 1_448;

/// Lateness of payload that is made up for where the server limits the rate: wake-ups are late by
/// less. Payload delayed for longer by a slow client would leave as a burst above the limit.
const HELD_CATCH_UP_NS: Nanos = 20_000_000;

/// Plan of a sending worker.
#[derive(Clone, Copy, Debug)]
pub struct Sending {
    /// Bytes of a write, or of a datagram.
    pub block_bytes: usize,
    /// Payload bits per second; `None` for no pacing.
    pub rate_bps: Option<u64>,
    /// Burst size that the client requested with a rate.
    pub burst_bytes: u64,
    /// Limit of the server for one flow, never exceeded.
    pub most_bps: Option<u64>,
    /// True if the rate is that limit or close to it: missed payload is not made up for.
    pub held: bool,
    /// Planned end; `None` to send until stopped.
    pub until_ns: Option<Nanos>,
    /// Total bytes; `None` for no limit.
    pub amount_bytes: Option<u64>,
    /// Time a client may take no payload before it counts as gone.
    pub idle: Duration,
}

impl Sending {
    /// Creates a plan without pacing, until stopped.
    #[must_use]
    pub fn new(block_bytes: usize, idle: Duration) -> Self {
        Self {
            block_bytes: block_bytes.max(1),
            rate_bps: None,
            burst_bytes: 0,
            most_bps: None,
            held: false,
            until_ns: None,
            amount_bytes: None,
            idle,
        }
    }

    /// Applies the server's limits for a client with `flows` flows.
    #[must_use]
    pub fn within(mut self, limits: &Limits, flows: u32) -> Self {
        self.rate_bps = limits.rate(self.rate_bps, flows);
        self.most_bps = limits.rate(None, flows);
        // Far below the limit, missed payload may be made up for.
        if let (Some(rate), Some(most)) = (self.rate_bps, self.most_bps)
            && rate > most / 2
        {
            (self.held, self.burst_bytes) = (true, 0);
        }
        match limits.time_ns {
            Some(time) => self.until(clock::now().saturating_add(time)),
            None => self,
        }
    }

    /// Limits the end to `latest`.
    #[must_use]
    pub fn until(mut self, latest: Nanos) -> Self {
        self.until_ns = Some(self.until_ns.map_or(latest, |until| until.min(latest)));
        self
    }

    /// Returns the planned end of a flow that starts now; `None` without time or paced amount.
    #[must_use]
    pub fn ends_ns(&self, now: Nanos) -> Option<Nanos> {
        let lasts = |(bytes, rate): (u64, u64)| {
            let ns = u128::from(bytes) * 8_000_000_000 / u128::from(rate.max(1));
            u64::try_from(ns).unwrap_or(u64::MAX)
        };
        let sent = self.amount_bytes.zip(self.rate_bps).map(lasts);
        let sent = sent.map(|ns| now.saturating_add(ns));
        [self.until_ns, sent].into_iter().flatten().min()
    }

    fn is_over(&self, signals: &Signals, now: Nanos, sent: u64) -> bool {
        signals.ended_ns().is_some() || signals.closed.load(Relaxed) || self.is_spent(now, sent)
    }

    /// Returns whether the amount was sent or the time is over.
    #[must_use]
    pub fn is_spent(&self, now: Nanos, sent: u64) -> bool {
        self.until_ns.is_some_and(|until| now >= until)
            || self.amount_bytes.is_some_and(|amount| sent >= amount)
    }

    /// Returns the bytes of one call on a connection: a block, or the part of one that the rate
    /// gives in [`PIECE_NS`].
    #[must_use]
    pub fn piece_bytes(&self) -> usize {
        let Some(rate) = self.rate_bps.filter(|_| self.burst_bytes == 0) else {
            return self.block_bytes;
        };
        let piece = u128::from(rate) * u128::from(PIECE_NS) / 8_000_000_000;
        let piece = usize::try_from(piece).unwrap_or(usize::MAX);
        piece.max(PIECE_BYTES as usize).min(self.block_bytes)
    }

    /// Returns the time of a block at the rate; 0 without a rate.
    #[must_use]
    pub fn block_ns(&self) -> Nanos {
        let ns = |rate: u64| self.block_bytes as u128 * 8_000_000_000 / u128::from(rate.max(1));
        (self.rate_bps).map_or(0, |rate| u64::try_from(ns(rate)).unwrap_or(u64::MAX))
    }

    /// Creates a pacer for calls of `bytes`. Unless the client requested bursts, no call precedes
    /// the send time of its bytes: an immediate first call would exceed the rate at first.
    pub fn pacer(&self, now: Nanos, bytes: usize) -> Pacer {
        let pacer = Pacer::new(self.rate_bps, now).in_bursts_of(self.burst_bytes);
        let pacer = match self.held {
            true => pacer.catching_up(HELD_CATCH_UP_NS),
            false => pacer,
        };
        match self.burst_bytes {
            0 => pacer.behind(bytes as u64),
            _ => pacer,
        }
    }
}

/// Sleeps until payload may be sent, at most one poll interval and not past the end. Returns
/// whether it slept, so that the caller checks for the end again.
fn wait_for_turn(pacer: &Pacer, now: Nanos, until_ns: Option<Nanos>) -> bool {
    let Some(due) = pacer.wait_until(now) else {
        return false;
    };
    let step = now + LOOK_UP.as_nanos() as u64;
    clock::sleep_until(due.min(step).min(until_ns.unwrap_or(Nanos::MAX)));
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_sending_ends_follows_from_time_amount_and_rate() {
        let second = 1_000_000_000;
        for (until, amount, rate, ends) in [
            (None, None, Some(8_000), None),
            (None, Some(5_000), None, None),
            (None, Some(5_000), Some(8_000), Some(7 * second)),
            (Some(4 * second), None, Some(8_000), Some(4 * second)),
            (Some(9 * second), Some(5_000), Some(8_000), Some(7 * second)),
            (None, Some(u64::MAX), Some(0), Some(u64::MAX)),
        ] {
            let sending = Sending {
                until_ns: until,
                amount_bytes: amount,
                rate_bps: rate,
                ..Sending::new(1_000, Duration::ZERO)
            };
            let told = format!("{until:?} {amount:?} {rate:?}");
            assert_eq!(sending.ends_ns(2 * second), ends, "{told}");
            assert!(
                sending.until(3 * second).until_ns <= Some(3 * second),
                "{told}"
            );
        }
    }

    /// Returns the bytes sent within `until`, by a sender that sends whenever it may.
    fn leaves(sending: &Sending, bytes: usize, until: Nanos, mut stall: Option<Nanos>) -> u64 {
        let start = 5_000_000_000;
        let (mut now, mut pacer, mut sent) = (start, sending.pacer(start, bytes), 0);
        loop {
            now = pacer.wait_until(now).unwrap_or(now);
            if now > start + until {
                return sent;
            }
            if let Some(length) = stall.take_if(|_| now > start + until / 2) {
                now += length;
                continue;
            }
            if sending.held {
                pacer.give_up(now, bytes as u64);
            }
            pacer.left(bytes as u64, now);
            sent += bytes as u64;
        }
    }

    #[test]
    fn a_rate_is_never_exceeded_however_short_the_time() {
        let limits = |rate_bps| Limits {
            rate_bps: Some(rate_bps),
            time_ns: None,
        };
        let ms = 1_000_000;
        for rate in [50_000, 1_000_000, 5_000_000, 1_000_000_000, 40_000_000_000] {
            let stream = Sending::new(128 << 10, Duration::ZERO).within(&limits(rate), 1);
            let piece = stream.piece_bytes();
            assert!((1_448..=128 << 10).contains(&piece), "{piece}");
            for bytes in [piece, 1_470] {
                for time in [1, 20, 100, 1_000, 10_000].map(|time| time * ms) {
                    let most = (u128::from(rate) * u128::from(time) / 8_000_000_000) as u64;
                    let sent = leaves(&stream, bytes, time, None);
                    let told = format!("{sent} of {most} B in {time} ns at {rate}");
                    assert!(sent <= most, "{told}");
                    assert!(sent + bytes as u64 >= most, "{told}");
                }
                // After a client stalls for a second, the missed payload is not sent at once.
                let time = 4_000 * ms;
                let least = u128::from(rate) * u128::from(time - 1_000 * ms) / 8_000_000_000;
                let caught_up = u128::from(rate) * u128::from(HELD_CATCH_UP_NS) / 8_000_000_000;
                let sent = u128::from(leaves(&stream, bytes, time, Some(1_000 * ms)));
                let room = caught_up + 2 * bytes as u128;
                assert!(
                    sent.abs_diff(least) <= room,
                    "{sent} of {least} B at {rate}"
                );
            }
        }
        // Bursts are for servers without a limit, or with one far above the rate.
        let asked = Sending {
            burst_bytes: 1 << 20,
            rate_bps: Some(5_000_000),
            ..Sending::new(128 << 10, Duration::ZERO)
        };
        assert_eq!(asked.piece_bytes(), 128 << 10);
        assert_eq!(leaves(&asked, 128 << 10, ms, None), 1 << 20);
        let far_below = asked.within(&limits(50_000_000), 1);
        assert_eq!(leaves(&far_below, 128 << 10, ms, None), 1 << 20);
        let held = asked.within(&limits(5_000_000), 1);
        assert_eq!(held.piece_bytes(), 3_125);
        assert_eq!(leaves(&held, 3_125, ms, None), 0);
    }

    #[test]
    fn the_size_is_that_of_most_datagrams() {
        let most = |sizes: &[usize]| {
            let mut vote = Sizes::default();
            sizes.iter().for_each(|&bytes| vote.take(bytes));
            vote.most()
        };
        assert_eq!(most(&[]), None);
        assert_eq!(most(&[76, 64, 64, 64]), Some(64));
        assert_eq!(most(&[1470, 1470, 12]), Some(1470));
        assert_eq!(most(&[100]), Some(100));
    }
}
