//! Workers that move the payload of third-party tests, one thread for each flow and direction.
//!
//! Their calls block in the kernel for at most [`POLL_INTERVAL`], so that a peer that stops reading
//! or sending holds up no other test. Nothing is allocated, locked or printed while payload moves,
//! except where the server's guard has to allow a response.

mod tcp_payload;
mod udp_payload;

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use linerate_record::record::SocketFacts;
use linerate_stats::histogram::Histogram;
use linerate_sys::clock;
use linerate_sys::clock::Nanos;
use linerate_sys::cpu::ThreadUsage;
use linerate_transport::facts_of;
use linerate_workload::flow_counters::{FlowCounters, PayloadTotals};
use linerate_workload::pacer::Pacer;
use socket2::Socket;

pub use crate::handlers::worker::tcp_payload::{receive_stream, send_stream, watch_stream};
pub use crate::handlers::worker::udp_payload::{
    DatagramAction, DatagramFlow, UnreachableCounter, receive_datagrams, send_datagrams,
};
use crate::interop_limits::InteropLimits;

/// Interval at which a blocked worker checks its stop signals.
pub const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Buffer of one receive call on a connection.
pub const RECEIVE_BUFFER_BYTES: usize = 256 << 10;

/// Stop signals from a test to its workers.
#[derive(Debug, Default)]
pub struct StopSignals {
    /// Time from which nothing more is sent, while payload in flight may still be received. 0
    /// before.
    end_ns: AtomicU64,
    /// True once the test is over.
    pub closed: AtomicBool,
}

impl StopSignals {
    /// Ends sending now, unless it has ended already.
    pub fn end_sending(&self) {
        let now = clock::now();
        let _ = (self.end_ns).compare_exchange(0, now, Relaxed, Relaxed);
    }

    /// Returns the time from which nothing more is sent.
    #[must_use]
    pub fn end_ns(&self) -> Option<Nanos> {
        let end_ns = self.end_ns.load(Relaxed);
        (end_ns > 0).then_some(end_ns)
    }
}

/// State that a worker shares with its test.
#[derive(Clone, Debug)]
pub struct FlowWorkerContext {
    /// Totals so far.
    pub counters: Arc<FlowCounters>,
    /// Times of its first and last payload.
    pub times: Arc<PayloadTimes>,
    /// Stop signals from the test.
    pub signals: Arc<StopSignals>,
}

/// Times of the first and last payload of a worker; 0 before the first.
#[derive(Debug, Default)]
pub struct PayloadTimes {
    first_ns: AtomicU64,
    last_ns: AtomicU64,
}

impl FlowWorkerContext {
    /// Publishes the totals so far, and the times of payload.
    #[inline]
    pub fn publish(&self, result: &FlowWorkerResult) {
        self.counters.publish(&result.totals);
        if let Some((first, last)) = result.payload_times {
            self.times.first_ns.store(first, Relaxed);
            self.times.last_ns.store(last, Relaxed);
        }
    }

    /// Returns the times of the first and last payload; `None` before the first.
    #[must_use]
    pub fn payload_times(&self) -> Option<(Nanos, Nanos)> {
        let first = self.times.first_ns.load(Relaxed);
        (first > 0).then(|| (first, self.times.last_ns.load(Relaxed).max(first)))
    }
}

/// Result of a worker.
#[derive(Debug, Default)]
pub struct FlowWorkerResult {
    pub totals: PayloadTotals,
    /// Times of the first and last payload.
    pub payload_times: Option<(Nanos, Nanos)>,
    /// Size of its datagrams.
    pub datagram_size: MajoritySize,
    /// Datagrams that the protocol could not parse.
    pub unparsed: u64,
    /// Datagrams with numbers before the first one received; in no count.
    pub before_first: u64,
    /// Losses and jitter by the sequence numbers of its datagrams.
    pub sequence_stats: Option<SequenceStats>,
    /// One-way delays, where the clocks agree.
    pub one_way_delays: Option<OneWayDelays>,
    /// Responses sent.
    pub responses: Option<u64>,
    /// Reason for an early end.
    pub failure: Option<FlowFailure>,
    /// State of its socket at the end.
    pub socket: Option<SocketFacts>,
    /// Processor time.
    pub usage: ThreadUsage,
    /// Start and end of the thread.
    pub lifetime: (Nanos, Nanos),
}

/// Statistics by sequence numbers; `None` for what a protocol's numbers do not show.
#[derive(Clone, Copy, Debug, Default)]
pub struct SequenceStats {
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
pub struct OneWayDelays {
    histogram: Histogram,
    /// True once a delay was negative: the clocks do not agree.
    clocks_disagree: bool,
}

impl OneWayDelays {
    /// Creates an empty set.
    #[must_use]
    pub fn new() -> Self {
        Self {
            histogram: Histogram::coarse(),
            clocks_disagree: false,
        }
    }

    /// Records one delay.
    #[inline]
    pub fn record(&mut self, delay_ns: i64) {
        match u64::try_from(delay_ns) {
            Ok(delay) => self.histogram.record(delay),
            Err(_) => self.clocks_disagree = true,
        }
    }

    /// Returns the delays; `None` if there are none or the clocks do not agree.
    #[must_use]
    pub fn histogram(&self) -> Option<&Histogram> {
        (!self.clocks_disagree && self.histogram.count() > 0).then_some(&self.histogram)
    }
}

/// Size of the majority of a flow's datagrams; headers and markers have other sizes. (Boyer-Moore
/// majority vote: without a majority, it is one of the sizes received.)
#[derive(Clone, Copy, Debug, Default)]
pub struct MajoritySize {
    bytes: usize,
    lead: u64,
}

impl MajoritySize {
    /// Counts one datagram.
    #[inline]
    pub fn record(&mut self, bytes: usize) {
        if self.bytes == bytes {
            self.lead += 1;
        } else if self.lead == 0 {
            (self.bytes, self.lead) = (bytes, 1);
        } else {
            self.lead -= 1;
        }
    }

    /// Returns the size; `None` before the first datagram.
    #[must_use]
    pub fn majority(&self) -> Option<u64> {
        (self.bytes > 0).then_some(self.bytes as u64)
    }
}

/// Reason for a flow to end early.
#[derive(Debug)]
pub enum FlowFailure {
    /// The client was silent for this time.
    Idle(Duration),
    /// The socket failed.
    Socket(io::Error),
    /// The client sent invalid data.
    InvalidData(String),
}

impl FlowWorkerResult {
    /// Creates a result for payload that started to arrive at `arrived_ns`.
    #[must_use]
    pub fn started_at(arrived_ns: Nanos) -> Self {
        Self {
            payload_times: Some((arrived_ns, arrived_ns)),
            ..Self::default()
        }
    }

    /// Starts the time of paced payload at `start_ns`: the wait for the first send time counts.
    #[inline]
    fn record_start(&mut self, start_ns: Nanos, pacer: &Pacer) {
        if pacer.is_paced() && self.payload_times.is_none() {
            self.payload_times = Some((start_ns, start_ns));
        }
    }

    /// Records that payload moved.
    #[inline]
    fn record_payload(&mut self, now: Nanos) {
        self.payload_times = Some((self.payload_times.map_or(now, |(first, _)| first), now));
    }

    /// Records the end of sending: the planned end, the stop signal or now, whichever came first.
    /// Time in which the sender was blocked or paced counts. For a client that takes nothing any
    /// more, the time of its loss is not known: then the last payload is the end.
    pub fn record_send_end(&mut self, until_ns: Option<Nanos>, signals: &StopSignals) {
        if matches!(self.failure, Some(FlowFailure::Idle(_))) {
            return;
        }
        let planned_ends = until_ns.into_iter().chain(signals.end_ns());
        let end = planned_ends.fold(clock::now(), Nanos::min);
        if let Some((_, last)) = &mut self.payload_times {
            *last = end.max(*last);
        }
    }
}

/// Runs a worker and adds the results that only its own thread and socket can provide.
pub fn run_worker(socket: &Socket, work: impl FnOnce() -> FlowWorkerResult) -> FlowWorkerResult {
    let before = ThreadUsage::read();
    let start_ns = clock::now();
    let mut result = work();
    result.usage = ThreadUsage::read().since(&before);
    result.lifetime = (start_ns, clock::now());
    result.socket = Some(facts_of(socket));
    result
}

/// Returns whether a call is to be retried: nothing was ready, or a signal interrupted it.
pub fn is_retryable(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

/// Payload time of one paced write on a connection: even in any printed interval, and 200 wake-ups
/// a second cost nothing.
const PACED_WRITE_NS: Nanos = 5_000_000;

/// Smallest paced write: smaller ones would be more packets and no steadier, because this is the
/// payload of one packet (1,500 B of Ethernet less the headers of IP and TCP with timestamps).
const MIN_PACED_WRITE_BYTES: u64 = 1_448;

/// Lateness of payload that is made up for where the server limits the rate: wake-ups are late by
/// less. Payload delayed for longer by a slow client would leave as a burst above the limit.
const LIMITED_CATCH_UP_NS: Nanos = 20_000_000;

/// Plan of a sending worker.
#[derive(Clone, Copy, Debug)]
pub struct SendPlan {
    /// Bytes of a write, or of a datagram.
    pub block_bytes: usize,
    /// Payload bits per second; `None` for no pacing.
    pub rate_bps: Option<u64>,
    /// Burst size that the client requested with a rate.
    pub burst_bytes: u64,
    /// Limit of the server for one flow, never exceeded.
    pub limit_bps: Option<u64>,
    /// True if the rate is that limit or close to it: missed payload is not made up for.
    pub at_limit: bool,
    /// Planned end; `None` to send until stopped.
    pub until_ns: Option<Nanos>,
    /// Total bytes; `None` for no limit.
    pub amount_bytes: Option<u64>,
    /// Time a client may take no payload before it counts as gone.
    pub idle_timeout: Duration,
}

impl SendPlan {
    /// Creates a plan without pacing, until stopped.
    #[must_use]
    pub fn new(block_bytes: usize, idle_timeout: Duration) -> Self {
        Self {
            block_bytes: block_bytes.max(1),
            rate_bps: None,
            burst_bytes: 0,
            limit_bps: None,
            at_limit: false,
            until_ns: None,
            amount_bytes: None,
            idle_timeout,
        }
    }

    /// Applies the server's limits for a client with `flows` flows.
    #[must_use]
    pub fn within_limits(mut self, limits: &InteropLimits, flows: u32) -> Self {
        self.rate_bps = limits.rate(self.rate_bps, flows);
        self.limit_bps = limits.rate(None, flows);
        // Far below the limit, missed payload may be made up for.
        if let (Some(rate), Some(limit)) = (self.rate_bps, self.limit_bps)
            && rate > limit / 2
        {
            (self.at_limit, self.burst_bytes) = (true, 0);
        }
        match limits.time_ns {
            Some(time) => self.end_by(clock::now().saturating_add(time)),
            None => self,
        }
    }

    /// Limits the end to `latest`.
    #[must_use]
    pub fn end_by(mut self, latest: Nanos) -> Self {
        self.until_ns = Some(self.until_ns.map_or(latest, |until| until.min(latest)));
        self
    }

    /// Returns the planned end of a flow that starts now; `None` without time or paced amount.
    #[must_use]
    pub fn planned_end_ns(&self, now: Nanos) -> Option<Nanos> {
        let duration_of = |(bytes, rate): (u64, u64)| {
            let ns = u128::from(bytes) * 8_000_000_000 / u128::from(rate.max(1));
            u64::try_from(ns).unwrap_or(u64::MAX)
        };
        let sent = self.amount_bytes.zip(self.rate_bps).map(duration_of);
        let sent = sent.map(|ns| now.saturating_add(ns));
        [self.until_ns, sent].into_iter().flatten().min()
    }

    fn is_over(&self, signals: &StopSignals, now: Nanos, sent: u64) -> bool {
        signals.end_ns().is_some() || signals.closed.load(Relaxed) || self.is_complete(now, sent)
    }

    /// Returns whether the amount was sent or the time is over.
    #[must_use]
    pub fn is_complete(&self, now: Nanos, sent: u64) -> bool {
        self.until_ns.is_some_and(|until| now >= until)
            || self.amount_bytes.is_some_and(|amount| sent >= amount)
    }

    /// Returns the bytes of one call on a connection: a block, or the part of one that the rate
    /// gives in [`PACED_WRITE_NS`].
    #[must_use]
    pub fn write_bytes(&self) -> usize {
        let Some(rate) = self.rate_bps.filter(|_| self.burst_bytes == 0) else {
            return self.block_bytes;
        };
        let write_bytes = u128::from(rate) * u128::from(PACED_WRITE_NS) / 8_000_000_000;
        let write_bytes = usize::try_from(write_bytes).unwrap_or(usize::MAX);
        write_bytes
            .max(MIN_PACED_WRITE_BYTES as usize)
            .min(self.block_bytes)
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
        let pacer = Pacer::new(self.rate_bps, now).with_burst_bytes(self.burst_bytes);
        let pacer = match self.at_limit {
            true => pacer.with_catch_up_ns(LIMITED_CATCH_UP_NS),
            false => pacer,
        };
        match self.burst_bytes {
            0 => pacer.with_delayed_start(bytes as u64),
            _ => pacer,
        }
    }
}

/// Sleeps until payload may be sent, at most one poll interval and not past the end. Returns
/// whether it slept, so that the caller checks for the end again.
fn wait_for_pacer(pacer: &Pacer, now: Nanos, until_ns: Option<Nanos>) -> bool {
    let Some(deadline) = pacer.wait_until(now) else {
        return false;
    };
    let step = now + POLL_INTERVAL.as_nanos() as u64;
    clock::sleep_until(deadline.min(step).min(until_ns.unwrap_or(Nanos::MAX)));
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_sending_ends_follows_from_time_amount_and_rate() {
        let second = 1_000_000_000;
        for (until, amount, rate, end) in [
            (None, None, Some(8_000), None),
            (None, Some(5_000), None, None),
            (None, Some(5_000), Some(8_000), Some(7 * second)),
            (Some(4 * second), None, Some(8_000), Some(4 * second)),
            (Some(9 * second), Some(5_000), Some(8_000), Some(7 * second)),
            (None, Some(u64::MAX), Some(0), Some(u64::MAX)),
        ] {
            let send_plan = SendPlan {
                until_ns: until,
                amount_bytes: amount,
                rate_bps: rate,
                ..SendPlan::new(1_000, Duration::ZERO)
            };
            let case = format!("{until:?} {amount:?} {rate:?}");
            assert_eq!(send_plan.planned_end_ns(2 * second), end, "{case}");
            assert!(
                send_plan.end_by(3 * second).until_ns <= Some(3 * second),
                "{case}"
            );
        }
    }

    /// Returns the bytes sent within `until`, by a sender that sends whenever it may.
    fn sent_within(
        send_plan: &SendPlan,
        bytes: usize,
        until: Nanos,
        mut stall: Option<Nanos>,
    ) -> u64 {
        let start = 5_000_000_000;
        let (mut now, mut pacer, mut sent) = (start, send_plan.pacer(start, bytes), 0);
        loop {
            now = pacer.wait_until(now).unwrap_or(now);
            if now > start + until {
                return sent;
            }
            if let Some(length) = stall.take_if(|_| now > start + until / 2) {
                now += length;
                continue;
            }
            if send_plan.at_limit {
                pacer.drop_overdue(now, bytes as u64);
            }
            pacer.record_sent(bytes as u64, now);
            sent += bytes as u64;
        }
    }

    #[test]
    fn a_rate_is_never_exceeded_however_short_the_time() {
        let limits = |rate_bps| InteropLimits {
            rate_bps: Some(rate_bps),
            time_ns: None,
        };
        let ms = 1_000_000;
        for rate in [50_000, 1_000_000, 5_000_000, 1_000_000_000, 40_000_000_000] {
            let stream = SendPlan::new(128 << 10, Duration::ZERO).within_limits(&limits(rate), 1);
            let write_bytes = stream.write_bytes();
            assert!((1_448..=128 << 10).contains(&write_bytes), "{write_bytes}");
            for bytes in [write_bytes, 1_470] {
                for time in [1, 20, 100, 1_000, 10_000].map(|time| time * ms) {
                    let most = (u128::from(rate) * u128::from(time) / 8_000_000_000) as u64;
                    let sent = sent_within(&stream, bytes, time, None);
                    let case = format!("{sent} of {most} B in {time} ns at {rate}");
                    assert!(sent <= most, "{case}");
                    assert!(sent + bytes as u64 >= most, "{case}");
                }
                // After a client stalls for a second, the missed payload is not sent at once.
                let time = 4_000 * ms;
                let least = u128::from(rate) * u128::from(time - 1_000 * ms) / 8_000_000_000;
                let caught_up = u128::from(rate) * u128::from(LIMITED_CATCH_UP_NS) / 8_000_000_000;
                let sent = u128::from(sent_within(&stream, bytes, time, Some(1_000 * ms)));
                let tolerance = caught_up + 2 * bytes as u128;
                assert!(
                    sent.abs_diff(least) <= tolerance,
                    "{sent} of {least} B at {rate}"
                );
            }
        }
        // Bursts are for servers without a limit, or with one far above the rate.
        let requested = SendPlan {
            burst_bytes: 1 << 20,
            rate_bps: Some(5_000_000),
            ..SendPlan::new(128 << 10, Duration::ZERO)
        };
        assert_eq!(requested.write_bytes(), 128 << 10);
        assert_eq!(sent_within(&requested, 128 << 10, ms, None), 1 << 20);
        let below_limit = requested.within_limits(&limits(50_000_000), 1);
        assert_eq!(sent_within(&below_limit, 128 << 10, ms, None), 1 << 20);
        let at_limit = requested.within_limits(&limits(5_000_000), 1);
        assert_eq!(at_limit.write_bytes(), 3_125);
        assert_eq!(sent_within(&at_limit, 3_125, ms, None), 0);
    }

    #[test]
    fn the_size_is_that_of_the_majority() {
        let majority = |sizes: &[usize]| {
            let mut vote = MajoritySize::default();
            sizes.iter().for_each(|&bytes| vote.record(bytes));
            vote.majority()
        };
        assert_eq!(majority(&[]), None);
        assert_eq!(majority(&[76, 64, 64, 64]), Some(64));
        assert_eq!(majority(&[1470, 1470, 12]), Some(1470));
        assert_eq!(majority(&[100]), Some(100));
    }
}
