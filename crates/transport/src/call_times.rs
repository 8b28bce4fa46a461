//! Call recorder: duration and result of each call that a thread makes on its stack. Calls on
//! kernel sockets are system calls.
//!
//! The recorder is a type parameter of the transports, so that [`NoRecorder`] costs nothing in the
//! loop. A timestamp is one reading of the cheapest counter. Where calls follow each other
//! directly, the end of one is the start of the next.

use std::io;
use std::time::Duration;

use linerate_record::call_times::{CallClock, CallOutcomes as CallFigures, CallTimes, CallsByName};
use linerate_record::facts::Role;
use linerate_stats::histogram::Histogram;
use linerate_sys::clock::Nanos;
use linerate_sys::tick_clock;
use linerate_sys::tick_clock::{ClockPair, TickSource};

use crate::RunClock;

/// A system call by its kernel name, or a call on the user-space stack by the name of its method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportCall {
    /// `send`.
    SendTo,
    /// `sendmsg`.
    SendMsg,
    /// `sendmmsg`.
    SendMmsg,
    /// `recv`.
    RecvFrom,
    /// `recvmsg`.
    RecvMsg,
    /// `recvmmsg`.
    RecvMmsg,
    /// `ppoll`.
    Poll,
    /// `select`.
    Select,
    /// `epoll_wait`.
    EpollWait,
    /// `sendfile`.
    SendFile,
    /// `vmsplice` and `splice` together.
    Splice,
    /// `io_uring_enter` for a send.
    UringSend,
    /// `io_uring_enter` that waits for received data.
    UringWait,
    /// The user-space stack is polled: it receives a burst, runs timers and transmits.
    StackPoll,
    /// The user-space stack transmits at once.
    Flush,
    /// Sleep until the next poll of the port.
    Sleep,
    /// Send of one datagram on the user-space stack.
    UdpSend,
    /// Send of several datagrams on the user-space stack.
    UdpSendBurst,
    /// Receive of one datagram from the user-space stack.
    UdpReceive,
    /// Receive of all waiting datagrams from the user-space stack.
    UdpReceiveBurst,
    /// Echo of a datagram on the user-space stack, in its frame or through a copy.
    UdpEcho,
    /// Send of stream payload on the user-space stack.
    TcpSend,
    /// Receive of stream payload from the user-space stack.
    TcpReceive,
}

/// Calls in the order of [`TransportCall`], each with its name in records and true if it sends.
const CALLS: [(TransportCall, &str, bool); 23] = [
    (TransportCall::SendTo, "sendto", true),
    (TransportCall::SendMsg, "sendmsg", true),
    (TransportCall::SendMmsg, "sendmmsg", true),
    (TransportCall::RecvFrom, "recvfrom", false),
    (TransportCall::RecvMsg, "recvmsg", false),
    (TransportCall::RecvMmsg, "recvmmsg", false),
    (TransportCall::Poll, "poll", false),
    (TransportCall::Select, "select", false),
    (TransportCall::EpollWait, "epoll_wait", false),
    (TransportCall::SendFile, "sendfile", true),
    (TransportCall::Splice, "splice", true),
    (TransportCall::UringSend, "io_uring_enter", true),
    (TransportCall::UringWait, "io_uring_enter", false),
    (TransportCall::StackPoll, "stack_poll", false),
    (TransportCall::Flush, "flush", true),
    (TransportCall::Sleep, "sleep", false),
    (TransportCall::UdpSend, "udp_send", true),
    (TransportCall::UdpSendBurst, "udp_send_burst", true),
    (TransportCall::UdpReceive, "udp_receive", false),
    (TransportCall::UdpReceiveBurst, "udp_receive_burst", false),
    (TransportCall::UdpEcho, "udp_echo", false),
    (TransportCall::TcpSend, "tcp_send", true),
    (TransportCall::TcpReceive, "tcp_receive", false),
];

/// Result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// Data was available, or there was space for the complete payload.
    Ready,
    /// The call blocked. For a send: too little space, blocking or not.
    Waited,
    /// No data or space was available, and the call returned at once.
    Empty,
}

/// Number of [`CallOutcome`] variants.
const OUTCOMES: usize = 3;

/// Records calls.
pub trait CallRecorder: Sized {
    /// False if nothing is recorded at all.
    const ON: bool;

    /// Creates a recorder with memory for these calls; memory for others is allocated at their
    /// first use.
    fn new(calls: &[TransportCall]) -> Self;

    /// Starts the run; earlier calls are not counted.
    fn start(&mut self, run_clock: &RunClock);

    /// Marks the start of a call.
    fn begin(&mut self);

    /// Marks the end of the call that was started last, or of the one that followed it directly.
    fn end(&mut self, call: TransportCall, outcome: CallOutcome);

    /// Returns the recorded times.
    fn stats(&self) -> Option<CallStats>;
}

/// Recorder that records nothing.
pub struct NoRecorder;

impl CallRecorder for NoRecorder {
    const ON: bool = false;

    fn new(_: &[TransportCall]) -> Self {
        Self
    }

    fn start(&mut self, _: &RunClock) {}

    #[inline(always)]
    fn begin(&mut self) {}

    #[inline(always)]
    fn end(&mut self, _: TransportCall, _: CallOutcome) {}

    fn stats(&self) -> Option<CallStats> {
        None
    }
}

/// Recorder of the duration of every call.
pub struct CallTimer {
    counter: TickSource,
    last_ticks: u64,
    count_from_ticks: u64,
    clock_pair: ClockPair,
    histograms: [Option<Box<TickHistogram>>; CALLS.len() * OUTCOMES],
    read_ns: f64,
    record_ns: f64,
}

impl CallRecorder for CallTimer {
    const ON: bool = true;

    fn new(calls: &[TransportCall]) -> Self {
        let counter = tick_clock::choose_source();
        let mut timer = Self {
            counter,
            last_ticks: 0,
            count_from_ticks: 0,
            clock_pair: ClockPair::read(counter),
            histograms: [const { None }; CALLS.len() * OUTCOMES],
            read_ns: 0.0,
            record_ns: 0.0,
        };
        (timer.read_ns, timer.record_ns) = timer.measure_cost();
        timer.histograms.fill_with(|| None);
        for &call in calls {
            for outcome in 0..OUTCOMES {
                // The kernel zeroes pages at their first use: unused buckets cost no memory.
                timer.histograms[call as usize * OUTCOMES + outcome] = Some(Box::default());
            }
        }
        // Nothing is counted before the start.
        timer.count_from_ticks = u64::MAX;
        timer
    }

    fn start(&mut self, run_clock: &RunClock) {
        let hz = tick_clock::tick_hz(self.counter);
        self.clock_pair = ClockPair::read(self.counter);
        self.count_from_ticks = self.clock_pair.ticks_at(run_clock.count_from_ns, hz);
    }

    #[inline]
    fn begin(&mut self) {
        self.last_ticks = tick_clock::read_ticks(self.counter);
    }

    #[inline]
    fn end(&mut self, call: TransportCall, outcome: CallOutcome) {
        let now = tick_clock::read_ticks(self.counter);
        let elapsed = now.wrapping_sub(self.last_ticks);
        self.last_ticks = now;
        if now < self.count_from_ticks {
            return;
        }
        match &mut self.histograms[call as usize * OUTCOMES + outcome as usize] {
            Some(buckets) => buckets.add(elapsed),
            none => add_to_new(none, elapsed),
        }
    }

    fn stats(&self) -> Option<CallStats> {
        let nominal_hz = tick_clock::tick_hz(self.counter);
        // The run itself is a longer, more exact calibration, unless it was very short.
        let measured = self
            .clock_pair
            .tick_hz_until(&ClockPair::read(self.counter));
        let hz = measured
            .filter(|hz| (hz / nominal_hz - 1.0).abs() < 0.01)
            .unwrap_or(nominal_hz);
        let times = (self.histograms.iter().enumerate())
            .filter_map(|(slot, buckets)| {
                let times = buckets.as_ref()?.to_histogram(1e9 / hz)?;
                Some((slot, times))
            })
            .collect();
        Some(CallStats {
            times,
            counter: self.counter,
            hz,
            read_ns: self.read_ns,
            record_ns: self.record_ns,
            threads: 1,
            latest: Vec::new(),
        })
    }
}

/// Recorder of every duration that also keeps the latest calls with their times.
pub struct CallTracer {
    timer: CallTimer,
    trace: Vec<TracedCall>,
    next: usize,
    /// Duration in ticks above which the trace ends soon.
    stop_above_ticks: u64,
    /// Number of calls still to be kept.
    remaining_calls: u64,
    /// The previous call was empty.
    follows_empty: bool,
}

/// Number of latest calls kept by a thread: 200 KiB.
const TRACED_CALLS: usize = 1 << 13;

/// Number of latest calls kept of all threads of one end.
pub const MAX_TRACED_CALLS: usize = 1 << 16;

/// Memory of one thread's latest calls, while recorded and when exported.
pub const TRACE_BYTES: u64 =
    TRACED_CALLS as u64 * (size_of::<TracedCall>() + size_of::<TimedCall>()) as u64;

/// Memory of the latest calls of all threads.
pub const ALL_TRACES_BYTES: u64 = 2 * MAX_TRACED_CALLS as u64 * size_of::<TimedCall>() as u64;

/// Start and end of a call in ticks, and its slot.
type TracedCall = (u64, u64, u16);

/// Number of calls kept after the slow one that ends the trace.
const CALLS_AFTER_TRIGGER: u64 = 64;

impl CallRecorder for CallTracer {
    const ON: bool = true;

    fn new(calls: &[TransportCall]) -> Self {
        Self {
            timer: CallTimer::new(calls),
            trace: vec![(0, 0, 0); TRACED_CALLS],
            next: 0,
            stop_above_ticks: u64::MAX,
            remaining_calls: u64::MAX,
            follows_empty: false,
        }
    }

    fn start(&mut self, run_clock: &RunClock) {
        self.timer.start(run_clock);
        if let Some(limit) = run_clock.trace_stop_call_ns {
            self.stop_above_ticks =
                (limit as f64 * tick_clock::tick_hz(self.timer.counter) / 1e9) as u64;
        }
    }

    #[inline]
    fn begin(&mut self) {
        self.timer.begin();
    }

    #[inline]
    fn end(&mut self, call: TransportCall, outcome: CallOutcome) {
        let from = self.timer.last_ticks;
        self.timer.end(call, outcome);
        let to = self.timer.last_ticks;
        // Of empty calls in a row only the first is kept: a spinning thread would fill the trace with
        // millions of them. The rounds of a thread that sleeps in between are all kept.
        let is_empty = outcome == CallOutcome::Empty;
        let repeats_empty = is_empty && self.follows_empty;
        self.follows_empty = is_empty;
        if repeats_empty || self.remaining_calls == 0 || to < self.timer.count_from_ticks {
            return;
        }
        self.trace[self.next] = (from, to, slot_of(call, outcome));
        self.next = (self.next + 1) % TRACED_CALLS;
        self.remaining_calls -= 1;
        if to.wrapping_sub(from) > self.stop_above_ticks {
            self.stop_above_ticks = u64::MAX;
            self.remaining_calls = self.remaining_calls.min(CALLS_AFTER_TRIGGER);
        }
    }

    fn stats(&self) -> Option<CallStats> {
        let mut stats = self.timer.stats()?;
        let clock_pair = &self.timer.clock_pair;
        let ns = |ticks| clock_pair.ns_at(ticks, stats.hz);
        let (newer, older) = self.trace.split_at(self.next);
        stats.latest = (older.iter().chain(newer))
            .filter(|(_, to, _)| *to != 0)
            .map(|&(from, to, slot)| TimedCall {
                from_ns: ns(from),
                to_ns: ns(to),
                slot,
                thread: 0,
            })
            .collect();
        Some(stats)
    }
}

/// A call with its start and end times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedCall {
    pub from_ns: Nanos,
    pub to_ns: Nanos,
    /// Call and result, as an index.
    pub slot: u16,
    /// Number of the thread within its end.
    pub thread: u32,
}

impl TimedCall {
    /// Returns the call's name, with its result unless that is "ready"; `None` for a call unknown
    /// to this version.
    #[must_use]
    pub fn name(&self) -> Option<String> {
        let slot = usize::from(self.slot);
        let (_, name, sends) = CALLS.get(slot / OUTCOMES)?;
        Some(match (sends, slot % OUTCOMES) {
            (_, 0) => (*name).to_owned(),
            (true, _) => format!("{name} full"),
            (false, 1) => format!("{name} waited"),
            (false, _) => format!("{name} empty"),
        })
    }
}

#[inline]
fn slot_of(call: TransportCall, outcome: CallOutcome) -> u16 {
    (call as usize * OUTCOMES + outcome as usize) as u16
}

/// Records the first call of a kind without allocated memory.
#[cold]
fn add_to_new(histogram: &mut Option<Box<TickHistogram>>, elapsed: u64) {
    histogram.get_or_insert_default().add(elapsed);
}

impl CallTimer {
    /// Measures the cost of one counter reading and of one recorded call, in nanoseconds. The
    /// minimum of several rounds, because interruptions only add time.
    fn measure_cost(&mut self) -> (f64, f64) {
        const ROUNDS: usize = 16;
        const CALLS_A_ROUND: u32 = 256;
        let hz = tick_clock::tick_hz(self.counter);
        let (mut read, mut record) = (u64::MAX, u64::MAX);
        for _ in 0..ROUNDS {
            let start = tick_clock::read_ticks(self.counter);
            for _ in 0..CALLS_A_ROUND {
                std::hint::black_box(tick_clock::read_ticks(self.counter));
            }
            let middle = tick_clock::read_ticks(self.counter);
            for _ in 0..CALLS_A_ROUND {
                self.begin();
                self.end(
                    std::hint::black_box(TransportCall::SendTo),
                    CallOutcome::Ready,
                );
            }
            let end = tick_clock::read_ticks(self.counter);
            read = read.min(middle.wrapping_sub(start));
            record = record.min(end.wrapping_sub(middle));
        }
        let ns = |ticks: u64| ticks as f64 * 1e9 / hz / f64::from(CALLS_A_ROUND);
        (ns(read), ns(record))
    }
}

/// Histogram of durations in ticks. Each power of two has 2^11 buckets, so that a bucket's middle
/// is within 0.025 % of every value in it.
///
/// Behind the buckets, in one allocation, are the sum (2^64 ticks last some two hundred years), the
/// minimum, and the difference of maximum and minimum. One comparison then detects a new extreme.
struct TickHistogram(Box<[u64; BUCKET_COUNT + 3]>);

const SUM_SLOT: usize = BUCKET_COUNT;
const MIN_SLOT: usize = BUCKET_COUNT + 1;
const RANGE_SLOT: usize = BUCKET_COUNT + 2;

/// Binary digits of precision.
const PRECISION_BITS: u32 = 11;

/// Longer durations, above 26 s at 2.6 GHz, count in the last bucket; their sum and maximum are
/// exact.
const MAX_TICKS: u64 = (1 << 36) - 1;

const BUCKET_COUNT: usize = bucket_index(MAX_TICKS) + 1;

#[inline]
const fn bucket_index(ticks: u64) -> usize {
    // Below 2^(DIGITS + 1) every value has a bucket of its own.
    let shift = (u64::BITS - PRECISION_BITS - 1).saturating_sub(ticks.leading_zeros());
    ((shift as usize) << PRECISION_BITS) + (ticks >> shift) as usize
}

/// Returns the first value of a bucket and the number of values in it.
fn bucket_range(index: usize) -> (u64, u64) {
    let shift = (index >> PRECISION_BITS).saturating_sub(1);
    let first = (index - (shift << PRECISION_BITS)) as u64;
    (first << shift, 1 << shift)
}

impl Default for TickHistogram {
    fn default() -> Self {
        // On the heap; the kernel zeroes pages at their first use.
        let memory: Box<[u64; BUCKET_COUNT + 3]> = vec![0; BUCKET_COUNT + 3]
            .try_into()
            .expect("a vector of that length");
        Self(memory)
    }
}

impl TickHistogram {
    #[inline]
    fn add(&mut self, ticks: u64) {
        self.0[bucket_index(ticks.min(MAX_TICKS))] += 1;
        self.0[SUM_SLOT] = self.0[SUM_SLOT].wrapping_add(ticks);
        if ticks.wrapping_sub(self.0[MIN_SLOT]) > self.0[RANGE_SLOT] {
            self.extend_range(ticks);
        }
    }

    /// Records a new minimum or maximum.
    #[cold]
    fn extend_range(&mut self, ticks: u64) {
        let (min, range) = (self.0[MIN_SLOT], self.0[RANGE_SLOT]);
        let longest = min + range;
        // The first value: no call takes zero ticks.
        let shortest = if longest == 0 { ticks } else { min.min(ticks) };
        self.0[MIN_SLOT] = shortest;
        self.0[RANGE_SLOT] = longest.max(ticks) - shortest;
    }

    /// Converts to nanoseconds; `None` when empty.
    fn to_histogram(&self, ns_per_tick: f64) -> Option<Histogram> {
        let counts = &self.0[..BUCKET_COUNT];
        if counts.iter().all(|&count| count == 0) {
            return None;
        }
        let (min, range) = (self.0[MIN_SLOT], self.0[RANGE_SLOT]);
        let ns = |ticks: f64| (ticks * ns_per_tick).round() as u64;
        let counted = (counts.iter().enumerate())
            .filter(|&(_, &count)| count > 0)
            .map(|(index, &count)| {
                let (first, width) = bucket_range(index);
                (ns(first as f64 + (width - 1) as f64 / 2.0), count)
            });
        let mut times = Histogram::new();
        times.add_counted(
            counted,
            ns(min as f64),
            ns((min + range) as f64),
            (self.0[SUM_SLOT] as f64 * ns_per_tick).round() as u128,
        );
        Some(times)
    }
}

/// Call times of one or several threads.
#[derive(Debug)]
pub struct CallStats {
    /// Histograms by slot (call and result).
    times: Vec<(usize, Histogram)>,
    counter: TickSource,
    hz: f64,
    read_ns: f64,
    record_ns: f64,
    threads: u32,
    /// Latest calls of all threads, if kept.
    latest: Vec<TimedCall>,
}

impl CallStats {
    /// Takes the latest calls out.
    pub fn take_latest(&mut self) -> Vec<TimedCall> {
        self.drop_oldest();
        std::mem::take(&mut self.latest)
    }

    /// Drops all but the latest calls of all threads.
    fn drop_oldest(&mut self) {
        let old = self.latest.len().saturating_sub(MAX_TRACED_CALLS);
        if old > 0 {
            self.latest
                .select_nth_unstable_by_key(old, |call| call.from_ns);
            self.latest.drain(..old);
        }
    }

    /// Adds the times of another thread of the same end.
    pub fn add(&mut self, thread: Self) {
        for (slot, added) in thread.times {
            match self
                .times
                .iter_mut()
                .find(|(own_threads, _)| *own_threads == slot)
            {
                Some((_, times)) => times.add(&added),
                None => self.times.push((slot, added)),
            }
        }
        let own_threads = self.threads;
        self.latest
            .extend(thread.latest.into_iter().map(|call| TimedCall {
                thread: call.thread + own_threads,
                ..call
            }));
        // Not at each call: selecting the old ones costs as much as the copy of the rest.
        if self.latest.len() > 2 * MAX_TRACED_CALLS - TRACED_CALLS {
            self.drop_oldest();
        }
        self.threads += thread.threads;
        // The larger overhead of both, so that it is never understated.
        self.read_ns = self.read_ns.max(thread.read_ns);
        self.record_ns = self.record_ns.max(thread.record_ns);
    }

    /// Converts to the figures of the record.
    #[must_use]
    pub fn to_record(&self, role: Role) -> (CallsByName, CallClock) {
        let mut calls = CallsByName::new();
        for (slot, times) in &self.times {
            let (_, name, sends) = CALLS[slot / OUTCOMES];
            let call: &mut CallFigures = calls.entry(name.to_owned()).or_default();
            let target = match (sends, slot % OUTCOMES) {
                (true, 0) => &mut call.accepted,
                (true, _) => &mut call.full,
                (false, 0) => &mut call.ready,
                (false, 1) => &mut call.waited,
                (false, _) => &mut call.empty,
            };
            *target = CallTimes::from_histogram(times);
        }
        let clock = CallClock {
            role,
            source: self.counter.name().to_owned(),
            hz: self.hz,
            read_ns: self.read_ns,
            record_ns: self.record_ns,
            threads: self.threads,
        };
        (calls, clock)
    }
}

/// Adds the times of a thread to those of others.
pub fn merge_call_stats(all: &mut Option<CallStats>, more: Option<CallStats>) {
    match (all, more) {
        (Some(all), Some(more)) => all.add(more),
        (all, Some(more)) => *all = Some(more),
        (_, None) => {}
    }
}

/// Checks readiness with a call that may block. When recorded, it is called without blocking first:
/// only that distinguishes data that was available from data that was waited for. A first call that
/// finds nothing is recorded as an empty one.
#[inline]
pub fn poll_readiness<R: CallRecorder>(
    calls: &mut R,
    call: TransportCall,
    timeout: Duration,
    mut check: impl FnMut(Duration) -> io::Result<bool>,
) -> io::Result<bool> {
    if !R::ON {
        return check(timeout);
    }
    let immediate = check(Duration::ZERO);
    if !matches!(immediate, Ok(false)) {
        calls.end(call, CallOutcome::Ready);
        return immediate;
    }
    calls.end(call, CallOutcome::Empty);
    let outcome = check(timeout);
    calls.end(call, CallOutcome::Waited);
    outcome
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_calls() {
        for (position, (call, name, _)) in CALLS.iter().enumerate() {
            assert_eq!(*call as usize, position, "{name}");
        }
    }

    #[test]
    fn buckets_meet_without_gaps() {
        let mut next = 0;
        for bucket in 0..BUCKET_COUNT {
            let (first, width) = bucket_range(bucket);
            assert_eq!(first, next, "{bucket}");
            assert_eq!(bucket_index(first), bucket);
            assert_eq!(bucket_index(first + width - 1), bucket);
            next = first + width;
        }
        assert_eq!(next, MAX_TICKS + 1);
    }

    #[test]
    fn only_counted_time_is_recorded() {
        let mut timer = CallTimer::new(&[TransportCall::SendTo]);
        timer.begin();
        timer.end(TransportCall::SendTo, CallOutcome::Ready);
        let now = linerate_sys::clock::now();
        timer.start(&RunClock {
            start_ns: now,
            count_from_ns: now + 3_000_000,
            interval_ns: None,
            trace_stop_call_ns: None,
        });
        timer.begin();
        timer.end(TransportCall::SendTo, CallOutcome::Ready);
        linerate_sys::clock::sleep_until(now + 5_000_000);
        timer.begin();
        timer.end(TransportCall::SendTo, CallOutcome::Waited);
        timer.end(TransportCall::Poll, CallOutcome::Empty);
        let stats = timer.stats().unwrap();
        let (calls, clock) = stats.to_record(Role::Server);
        assert_eq!(calls.len(), 2, "{calls:?}");
        assert!(calls["sendto"].accepted.is_none());
        assert_eq!(calls["sendto"].full.as_ref().unwrap().times.count, 1);
        assert_eq!(calls["poll"].empty.as_ref().unwrap().times.count, 1);
        assert!(
            clock.read_ns > 0.0 && clock.record_ns >= clock.read_ns,
            "{clock:?}"
        );
        println!("{clock:?}");
    }

    /// Starts a recorder that counts from now on.
    fn started<R: CallRecorder>() -> R {
        let mut recorder = R::new(&[]);
        let now = linerate_sys::clock::now();
        recorder.start(&RunClock {
            start_ns: now,
            count_from_ns: now - 1_000_000,
            interval_ns: None,
            trace_stop_call_ns: None,
        });
        recorder
    }

    /// What the kernel counts is what the record has: a wait is made of two calls.
    #[test]
    fn each_call_of_a_wait_is_counted() {
        let mut timer: CallTimer = started();
        let mut made = 0;
        // Data is there at once, after a wait, or never.
        for results in [&[true][..], &[false, true], &[false, false]] {
            let mut results = results.iter();
            timer.begin();
            let check = |_| {
                made += 1;
                Ok(*results.next().expect("no third call"))
            };
            poll_readiness(&mut timer, TransportCall::Select, Duration::ZERO, check).unwrap();
        }
        let (calls, _) = timer.stats().unwrap().to_record(Role::Server);
        let select = &calls["select"];
        let counts = [&select.ready, &select.waited, &select.empty]
            .map(|times| times.as_ref().map_or(0, |times| times.times.count));
        assert_eq!(counts, [1, 2, 2]);
        assert_eq!(counts.iter().sum::<u64>(), made);
    }

    /// Rounds that find nothing are in the trace, unless a thread makes one after another.
    #[test]
    fn empty_rounds_are_traced() {
        use CallOutcome::{Empty, Ready, Waited};
        let (poll, sleep) = (TransportCall::StackPoll, TransportCall::Sleep);
        for (calls, expected) in [
            (
                &[
                    (poll, Empty),
                    (sleep, Waited),
                    (poll, Empty),
                    (sleep, Waited),
                ][..],
                &[
                    "stack_poll empty",
                    "sleep waited",
                    "stack_poll empty",
                    "sleep waited",
                ][..],
            ),
            (
                &[(poll, Empty), (poll, Empty), (poll, Empty), (poll, Ready)],
                &["stack_poll empty", "stack_poll"],
            ),
        ] {
            let mut tracer: CallTracer = started();
            for &(call, outcome) in calls {
                tracer.begin();
                tracer.end(call, outcome);
            }
            let traced = tracer.stats().unwrap().latest;
            let names: Vec<_> = traced.iter().filter_map(TimedCall::name).collect();
            assert_eq!(names, expected);
        }
    }

    #[test]
    fn of_many_threads_the_latest_calls_are_kept() {
        let stats = |from_ns: Nanos| CallStats {
            times: Vec::new(),
            counter: tick_clock::choose_source(),
            hz: 1e9,
            read_ns: 0.0,
            record_ns: 0.0,
            threads: 1,
            latest: (from_ns..from_ns + TRACED_CALLS as u64)
                .map(|from_ns| TimedCall {
                    from_ns,
                    to_ns: from_ns + 1,
                    slot: 0,
                    thread: 0,
                })
                .collect(),
        };
        // The last thread to be added is not the one with the latest calls.
        let mut all = stats(1_000_000);
        for thread in 0..100 {
            all.add(stats(thread * TRACED_CALLS as u64));
            assert!(all.latest.len() <= 2 * MAX_TRACED_CALLS, "{thread}");
        }
        let mut latest = all.take_latest();
        assert_eq!(latest.len(), MAX_TRACED_CALLS);
        latest.sort_unstable_by_key(|call| (call.from_ns, call.thread));
        let last = latest.last().unwrap();
        assert_eq!(
            (last.from_ns, last.thread),
            (1_000_000 + TRACED_CALLS as u64 - 1, 0)
        );
        assert_eq!(latest[0].from_ns, (100 - 7) * TRACED_CALLS as u64);
    }

    proptest! {
        #[test]
        fn durations_survive_the_buckets(ticks in prop::collection::vec(1u64..1 << 36, 1..200)) {
            let mut buckets = TickHistogram::default();
            for &ticks in &ticks {
                buckets.add(ticks);
            }
            let times = buckets.to_histogram(0.4).unwrap();
            prop_assert_eq!(times.count(), ticks.len() as u64);
            let ns = |ticks: u64| (ticks as f64 * 0.4).round() as u64;
            prop_assert_eq!(times.max(), ticks.iter().max().map(|&n| ns(n)));
            prop_assert_eq!(times.min(), ticks.iter().min().map(|&n| ns(n)));
            let mut sorted = ticks.clone();
            sorted.sort_unstable();
            let median = sorted[sorted.len().div_ceil(2) - 1];
            let (got, want) = (times.quantile(0.5).unwrap() as f64, median as f64 * 0.4);
            prop_assert!((got - want).abs() <= want * 0.0013 + 1.0, "{} for {}", got, want);
        }
    }
}
