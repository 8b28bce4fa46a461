//! The threads that move the payload of foreign tests, one for each flow and direction.
//!
//! Their calls sleep in the kernel, never longer than [`LOOK_UP`], so that a peer that stops reading
//! or sending holds nobody up. Nothing is allocated, locked or printed while payload moves, except
//! where an answer has to be allowed by the server's guard.

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
use crate::meter::{Meter, Totals};
use crate::pacing::Pacer;
use crate::transport::facts_of;

pub use datagrams::{Datagrams, Refusals, Take, receive_datagrams, send_datagrams};
pub use stream::{receive_stream, send_stream, watch_stream};

/// How soon a thread sees that it is to end.
pub const LOOK_UP: Duration = Duration::from_millis(100);

/// Room for one receive call on a connection.
pub const RECEIVE_BYTES: usize = 256 << 10;

/// How a test goes on, told to its threads.
#[derive(Debug, Default)]
pub struct Signals {
    /// Since when nothing more is to be sent; what is on its way may be received. 0 before.
    ended_ns: AtomicU64,
    /// It is over.
    pub closed: AtomicBool,
}

impl Signals {
    /// Nothing more is to be sent, from now on or since it was said before.
    pub fn end(&self) {
        let now = clock::now();
        let _ = (self.ended_ns).compare_exchange(0, now, Relaxed, Relaxed);
    }

    /// Since when nothing more is to be sent.
    #[must_use]
    pub fn ended_ns(&self) -> Option<Nanos> {
        let ended = self.ended_ns.load(Relaxed);
        (ended > 0).then_some(ended)
    }
}

/// What a thread shares with its test.
#[derive(Clone, Debug)]
pub struct Context {
    /// What it has moved.
    pub meter: Arc<Meter>,
    /// When it moved payload.
    pub times: Arc<Times>,
    /// What it is told.
    pub signals: Arc<Signals>,
}

/// When a thread moved payload first and last; 0 before it did.
#[derive(Debug, Default)]
pub struct Times {
    first_ns: AtomicU64,
    last_ns: AtomicU64,
}

impl Context {
    /// Says what was moved so far, and when.
    #[inline]
    pub fn publish(&self, moved: &Moved) {
        self.meter.publish(&moved.totals);
        if let Some((first, last)) = moved.span {
            self.times.first_ns.store(first, Relaxed);
            self.times.last_ns.store(last, Relaxed);
        }
    }

    /// When payload moved first and last; `None` before it did.
    #[must_use]
    pub fn span(&self) -> Option<(Nanos, Nanos)> {
        let first = self.times.first_ns.load(Relaxed);
        (first > 0).then(|| (first, self.times.last_ns.load(Relaxed).max(first)))
    }
}

/// What a thread came to.
#[derive(Debug, Default)]
pub struct Moved {
    /// What it moved.
    pub totals: Totals,
    /// When the first payload came or left, and the last.
    pub span: Option<(Nanos, Nanos)>,
    /// How large its datagrams were.
    pub sizes: Sizes,
    /// Datagrams that its dialect could make nothing of.
    pub unread: u64,
    /// Datagrams with numbers before the first that came, which are in no count.
    pub before: u64,
    /// What the numbers on its datagrams told.
    pub numbers: Option<Numbers>,
    /// How long its datagrams were on their way, where that can be known.
    pub delays: Option<Delays>,
    /// Questions that were answered.
    pub answered: Option<u64>,
    /// Why it ended before it was told to.
    pub broke: Option<Broke>,
    /// Its socket, as the kernel had it at the end.
    pub socket: Option<SocketFacts>,
    /// What it cost.
    pub usage: ThreadUsage,
    /// When it began and ended.
    pub lived: (Nanos, Nanos),
}

/// What numbers on datagrams told; what a dialect's numbers cannot tell is `None`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Numbers {
    /// Datagrams that are missing.
    pub lost: Option<u64>,
    /// Those that came after one with a higher number.
    pub out_of_order: Option<u64>,
    /// Those that came again.
    pub duplicates: Option<u64>,
    /// Variation of the transit time (RFC 3550 section 6.4.1), in ns.
    pub ipdv_ns: Option<f64>,
}

/// How long datagrams were on their way, by two clocks that are said to agree.
#[derive(Clone, Debug)]
pub struct Delays {
    times: Histogram,
    /// One came before it was sent: the clocks do not agree.
    impossible: bool,
}

impl Delays {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            times: Histogram::coarse(),
            impossible: false,
        }
    }

    /// Takes one.
    #[inline]
    pub fn take(&mut self, delay_ns: i64) {
        match u64::try_from(delay_ns) {
            Ok(delay) => self.times.record(delay),
            Err(_) => self.impossible = true,
        }
    }

    /// All of them; `None` where there are none, and when the clocks do not agree.
    #[must_use]
    pub fn times(&self) -> Option<&Histogram> {
        (!self.impossible && self.times.count() > 0).then_some(&self.times)
    }
}

/// The size that most datagrams of a flow have, whatever the first ones have: headers and markers differ.
/// (Boyer and Moore's vote: where no size has more than half of them, it is one of those that came.)
#[derive(Clone, Copy, Debug, Default)]
pub struct Sizes {
    bytes: usize,
    ahead: u64,
}

impl Sizes {
    /// Takes one.
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

    /// The size; `None` before the first.
    #[must_use]
    pub fn most(&self) -> Option<u64> {
        (self.bytes > 0).then_some(self.bytes as u64)
    }
}

/// What ends a flow before its time.
#[derive(Debug)]
pub enum Broke {
    /// The client was silent for so long.
    Silent(Duration),
    /// The connection broke.
    Error(io::Error),
    /// What came makes no sense.
    Nonsense(String),
}

impl Moved {
    /// Nothing yet of what began to come at a moment.
    #[must_use]
    pub fn since(came_ns: Nanos) -> Self {
        Self {
            span: Some((came_ns, came_ns)),
            ..Self::default()
        }
    }

    /// Notes that what is sent at a rate began then: the wait until the first of it is due is its time, too.
    #[inline]
    fn began(&mut self, begun: Nanos, pacer: &Pacer) {
        if pacer.is_paced() && self.span.is_none() {
            self.span = Some((begun, begun));
        }
    }

    /// Notes that payload moved.
    #[inline]
    fn at(&mut self, now: Nanos) {
        self.span = Some((self.span.map_or(now, |(first, _)| first), now));
    }

    /// Notes that nothing more is sent. The time of what was sent is the test's, blocked or waiting for its
    /// turn: until its planned end, until it was told to end, or until now, whichever came first. Since when
    /// a client is gone who takes nothing nobody knows: that time is none.
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

/// Runs a lane's work, and adds what only its own thread and socket know.
pub fn lived(socket: &Socket, work: impl FnOnce() -> Moved) -> Moved {
    let before = ThreadUsage::now();
    let began = clock::now();
    let mut moved = work();
    moved.usage = ThreadUsage::now().since(&before);
    moved.lived = (began, clock::now());
    moved.socket = Some(facts_of(socket));
    moved
}

/// Whether a call only found nothing to do.
pub fn is_nothing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

/// Time of payload that leaves at once on a connection where there is a rate: what anybody prints in intervals
/// is even then, and 200 wake-ups a second cost nothing.
const PIECE_NS: Nanos = 5_000_000;

/// What leaves at once at the lowest rates: smaller pieces would be more packets and no steadier, as this is
/// the payload of one (Ethernet's 1,500 B less the headers of IP and TCP with its times).
const PIECE_BYTES: u64 = 1_448;

/// How late payload may be to be made up for where the server holds the rate: wake-ups come late by less. What
/// a client kept waiting longer would leave as a burst above the limit.
const HELD_CATCH_UP_NS: Nanos = 20_000_000;

/// What is to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Sending {
    /// Bytes of a write, or of a datagram.
    pub block_bytes: usize,
    /// Payload bits a second; `None` as fast as it goes.
    pub rate_bps: Option<u64>,
    /// Bytes that its client wants to leave at once where there is a rate.
    pub burst_bytes: u64,
    /// What the server gives such a flow at most, which nothing exceeds.
    pub most_bps: Option<u64>,
    /// Whether the rate is that, or near it: what was missed is not made up for.
    pub held: bool,
    /// When it ends; `None` when it is told.
    pub until_ns: Option<Nanos>,
    /// How much it is in all; `None` for no limit.
    pub amount_bytes: Option<u64>,
    /// How long a client may leave no room before it counts as gone.
    pub idle: Duration,
}

impl Sending {
    /// As fast as it goes until it is told.
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

    /// The same within what a server gives one client, who has so many of these flows.
    #[must_use]
    pub fn within(mut self, limits: &Limits, flows: u32) -> Self {
        self.rate_bps = limits.rate(self.rate_bps, flows);
        self.most_bps = limits.rate(None, flows);
        // Far below the limit what was missed may be made up for.
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

    /// The same until then at the latest.
    #[must_use]
    pub fn until(mut self, latest: Nanos) -> Self {
        self.until_ns = Some(self.until_ns.map_or(latest, |until| until.min(latest)));
        self
    }

    /// When it ends by itself if it begins now; `None` where nothing says that.
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

    /// Whether all of it was sent, or its time is over.
    #[must_use]
    pub fn is_spent(&self, now: Nanos, sent: u64) -> bool {
        self.until_ns.is_some_and(|until| now >= until)
            || self.amount_bytes.is_some_and(|amount| sent >= amount)
    }

    /// Bytes of a call on a connection: a whole block, or as much of one as the rate gives in [`PIECE_NS`].
    #[must_use]
    pub fn piece_bytes(&self) -> usize {
        let Some(rate) = self.rate_bps.filter(|_| self.burst_bytes == 0) else {
            return self.block_bytes;
        };
        let piece = u128::from(rate) * u128::from(PIECE_NS) / 8_000_000_000;
        let piece = usize::try_from(piece).unwrap_or(usize::MAX);
        piece.max(PIECE_BYTES as usize).min(self.block_bytes)
    }

    /// How long a whole block takes; 0 where there is no rate.
    #[must_use]
    pub fn block_ns(&self) -> Nanos {
        let ns = |rate: u64| self.block_bytes as u128 * 8_000_000_000 / u128::from(rate.max(1));
        (self.rate_bps).map_or(0, |rate| u64::try_from(ns(rate)).unwrap_or(u64::MAX))
    }

    /// When calls of so many bytes may be made. Unless its client wants bursts, none is made before its bytes
    /// are due: a first one at once would be above the rate for as long as nobody waits it out.
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

/// Sleeps until payload is due, in steps and not past the end; whether it slept, and whether that was the end
/// is to be seen again.
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

    /// Bytes that leave by a moment, sent whenever they may, and after that one too.
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
                // A client that takes nothing for a second is not sent all of it at once afterwards.
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
        // Bursts that a client asks for are for servers without a limit, or one far above.
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
