//! Call recorder: duration and result of each call that a thread makes on its stack. Calls on
//! kernel sockets are system calls.
//!
//! The recorder is a type parameter of the transports, so that [`Silent`] costs nothing in the
//! loop. A timestamp is one reading of the cheapest counter. Where calls follow each other
//! directly, the end of one is the start of the next.

use std::io;
use std::time::Duration;

use linerate_host::sys::clock::Nanos;
use linerate_host::sys::tick_clock::{self, Anchor, Source};
use linerate_metric::call_times::{Call as CallFigures, CallClock, CallTimes, Calls};
use linerate_metric::facts::Role;
use linerate_metric::histogram::Histogram;

use crate::flow::Timeline;

/// A system call by its kernel name, or a call on the user-space stack by the name of its method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
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
    Turn,
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

/// Calls in the order of [`Call`], each with its name in records and true if it sends.
const CALLS: [(Call, &str, bool); 23] = [
    (Call::SendTo, "sendto", true),
    (Call::SendMsg, "sendmsg", true),
    (Call::SendMmsg, "sendmmsg", true),
    (Call::RecvFrom, "recvfrom", false),
    (Call::RecvMsg, "recvmsg", false),
    (Call::RecvMmsg, "recvmmsg", false),
    (Call::Poll, "poll", false),
    (Call::Select, "select", false),
    (Call::EpollWait, "epoll_wait", false),
    (Call::SendFile, "sendfile", true),
    (Call::Splice, "splice", true),
    (Call::UringSend, "io_uring_enter", true),
    (Call::UringWait, "io_uring_enter", false),
    (Call::Turn, "stack_poll", false),
    (Call::Flush, "flush", true),
    (Call::Sleep, "sleep", false),
    (Call::UdpSend, "udp_send", true),
    (Call::UdpSendBurst, "udp_send_burst", true),
    (Call::UdpReceive, "udp_receive", false),
    (Call::UdpReceiveBurst, "udp_receive_burst", false),
    (Call::UdpEcho, "udp_echo", false),
    (Call::TcpSend, "tcp_send", true),
    (Call::TcpReceive, "tcp_receive", false),
];

/// Result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Data was available, or there was space for the complete payload.
    Ready,
    /// The call blocked. For a send: too little space, blocking or not.
    Waited,
    /// No data or space was available, and the call returned at once.
    Empty,
}

/// Number of [`Found`] variants.
const FOUND: usize = 3;

/// Records calls.
pub trait Recorder: Sized {
    /// False if nothing is recorded at all.
    const ON: bool;

    /// Creates a recorder with memory for these calls; memory for others is allocated at their
    /// first use.
    fn new(calls: &[Call]) -> Self;

    /// Starts the run; earlier calls are not counted.
    fn start(&mut self, timeline: &Timeline);

    /// Marks the start of a call.
    fn begin(&mut self);

    /// Marks the end of the call that was started last, or of the one that followed it directly.
    fn end(&mut self, call: Call, found: Found);

    /// Returns the recorded times.
    fn tally(&self) -> Option<CallTally>;
}

/// Recorder that records nothing.
pub struct Silent;

impl Recorder for Silent {
    const ON: bool = false;

    fn new(_: &[Call]) -> Self {
        Self
    }

    fn start(&mut self, _: &Timeline) {}

    #[inline(always)]
    fn begin(&mut self) {}

    #[inline(always)]
    fn end(&mut self, _: Call, _: Found) {}

    fn tally(&self) -> Option<CallTally> {
        None
    }
}

/// Recorder of the duration of every call.
pub struct Stopwatch {
    source: Source,
    last: u64,
    count_from: u64,
    anchor: Anchor,
    buckets: [Option<Box<Buckets>>; CALLS.len() * FOUND],
    read_ns: f64,
    record_ns: f64,
}

impl Recorder for Stopwatch {
    const ON: bool = true;

    fn new(calls: &[Call]) -> Self {
        let source = tick_clock::source();
        let mut watch = Self {
            source,
            last: 0,
            count_from: 0,
            anchor: Anchor::now(source),
            buckets: [const { None }; CALLS.len() * FOUND],
            read_ns: 0.0,
            record_ns: 0.0,
        };
        (watch.read_ns, watch.record_ns) = watch.cost();
        watch.buckets.fill_with(|| None);
        for &call in calls {
            for found in 0..FOUND {
                // The kernel zeroes pages at their first use: unused buckets cost no memory.
                watch.buckets[call as usize * FOUND + found] = Some(Box::default());
            }
        }
        // Nothing is counted before the start.
        watch.count_from = u64::MAX;
        watch
    }

    fn start(&mut self, timeline: &Timeline) {
        let hz = tick_clock::hz(self.source);
        self.anchor = Anchor::now(self.source);
        self.count_from = self.anchor.ticks_at(timeline.count_from_ns, hz);
    }

    #[inline]
    fn begin(&mut self) {
        self.last = tick_clock::read(self.source);
    }

    #[inline]
    fn end(&mut self, call: Call, found: Found) {
        let now = tick_clock::read(self.source);
        let took = now.wrapping_sub(self.last);
        self.last = now;
        if now < self.count_from {
            return;
        }
        match &mut self.buckets[call as usize * FOUND + found as usize] {
            Some(buckets) => buckets.add(took),
            none => first(none, took),
        }
    }

    fn tally(&self) -> Option<CallTally> {
        let known = tick_clock::hz(self.source);
        // The run itself is a longer, more exact calibration, unless it was very short.
        let measured = self.anchor.hz_until(&Anchor::now(self.source));
        let hz = measured
            .filter(|hz| (hz / known - 1.0).abs() < 0.01)
            .unwrap_or(known);
        let times = (self.buckets.iter().enumerate())
            .filter_map(|(slot, buckets)| {
                let times = buckets.as_ref()?.times(1e9 / hz)?;
                Some((slot, times))
            })
            .collect();
        Some(CallTally {
            times,
            source: self.source,
            hz,
            read_ns: self.read_ns,
            record_ns: self.record_ns,
            threads: 1,
            latest: Vec::new(),
        })
    }
}

/// Recorder of every duration that also keeps the latest calls with their times.
pub struct Tracer {
    watch: Stopwatch,
    latest: Vec<Kept>,
    next: usize,
    /// Duration in ticks above which the trace ends soon.
    ends_above: u64,
    /// Number of calls still to be kept.
    left: u64,
}

/// Number of latest calls kept by a thread: 200 KiB.
const LATEST: usize = 1 << 13;

/// Number of latest calls kept of all threads of one end.
pub const LATEST_OF_ALL: usize = 1 << 16;

/// Memory of one thread's latest calls, while recorded and when exported.
pub const TRACE_BYTES: u64 = LATEST as u64 * (size_of::<Kept>() + size_of::<TimedCall>()) as u64;

/// Memory of the latest calls of all threads.
pub const TRACES_BYTES: u64 = 2 * LATEST_OF_ALL as u64 * size_of::<TimedCall>() as u64;

/// Start and end of a call in ticks, and its slot.
type Kept = (u64, u64, u16);

/// Number of calls kept after the slow one that ends the trace.
const AFTERMATH: u64 = 64;

impl Recorder for Tracer {
    const ON: bool = true;

    fn new(calls: &[Call]) -> Self {
        Self {
            watch: Stopwatch::new(calls),
            latest: vec![(0, 0, 0); LATEST],
            next: 0,
            ends_above: u64::MAX,
            left: u64::MAX,
        }
    }

    fn start(&mut self, timeline: &Timeline) {
        self.watch.start(timeline);
        if let Some(limit) = timeline.trace_on_ns {
            self.ends_above = (limit as f64 * tick_clock::hz(self.watch.source) / 1e9) as u64;
        }
    }

    #[inline]
    fn begin(&mut self) {
        self.watch.begin();
    }

    #[inline]
    fn end(&mut self, call: Call, found: Found) {
        let from = self.watch.last;
        self.watch.end(call, found);
        let to = self.watch.last;
        // A spinning thread makes millions of empty calls; they would fill the trace.
        if found == Found::Empty || self.left == 0 || to < self.watch.count_from {
            return;
        }
        self.latest[self.next] = (from, to, slot(call, found));
        self.next = (self.next + 1) % LATEST;
        self.left -= 1;
        if to.wrapping_sub(from) > self.ends_above {
            self.ends_above = u64::MAX;
            self.left = self.left.min(AFTERMATH);
        }
    }

    fn tally(&self) -> Option<CallTally> {
        let mut tally = self.watch.tally()?;
        let anchor = &self.watch.anchor;
        let ns = |ticks| anchor.ns_at(ticks, tally.hz);
        let (newer, older) = self.latest.split_at(self.next);
        tally.latest = (older.iter().chain(newer))
            .filter(|(_, to, _)| *to != 0)
            .map(|&(from, to, slot)| TimedCall {
                from_ns: ns(from),
                to_ns: ns(to),
                slot,
                thread: 0,
            })
            .collect();
        Some(tally)
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
        let (_, name, sends) = CALLS.get(slot / FOUND)?;
        Some(match (sends, slot % FOUND) {
            (_, 0) => (*name).to_owned(),
            (true, _) => format!("{name} full"),
            (false, 1) => format!("{name} waited"),
            (false, _) => format!("{name} empty"),
        })
    }
}

fn slot(call: Call, found: Found) -> u16 {
    (call as usize * FOUND + found as usize) as u16
}

/// Records the first call of a kind without allocated memory.
#[cold]
fn first(place: &mut Option<Box<Buckets>>, took: u64) {
    place.get_or_insert_default().add(took);
}

impl Stopwatch {
    /// Measures the cost of one counter reading and of one recorded call, in nanoseconds. The
    /// minimum of several rounds, because interruptions only add time.
    fn cost(&mut self) -> (f64, f64) {
        const ROUNDS: usize = 16;
        const CALLS_A_ROUND: u32 = 256;
        let hz = tick_clock::hz(self.source);
        let (mut read, mut record) = (u64::MAX, u64::MAX);
        for _ in 0..ROUNDS {
            let began = tick_clock::read(self.source);
            for _ in 0..CALLS_A_ROUND {
                std::hint::black_box(tick_clock::read(self.source));
            }
            let between = tick_clock::read(self.source);
            for _ in 0..CALLS_A_ROUND {
                self.begin();
                self.end(std::hint::black_box(Call::SendTo), Found::Ready);
            }
            let ended = tick_clock::read(self.source);
            read = read.min(between.wrapping_sub(began));
            record = record.min(ended.wrapping_sub(between));
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
struct Buckets(Box<[u64; BUCKETS + 3]>);

const SUM: usize = BUCKETS;
const MIN: usize = BUCKETS + 1;
const SPAN: usize = BUCKETS + 2;

/// Binary digits of precision.
const DIGITS: u32 = 11;

/// Longer durations, above 26 s at 2.6 GHz, count in the last bucket; their sum and maximum are
/// exact.
const LONGEST: u64 = (1 << 36) - 1;

const BUCKETS: usize = index(LONGEST) + 1;

#[inline]
const fn index(ticks: u64) -> usize {
    // Below 2^(DIGITS + 1) every value has a bucket of its own.
    let shift = (u64::BITS - DIGITS - 1).saturating_sub(ticks.leading_zeros());
    ((shift as usize) << DIGITS) + (ticks >> shift) as usize
}

/// Returns the first value of a bucket and the number of values in it.
fn values(index: usize) -> (u64, u64) {
    let shift = (index >> DIGITS).saturating_sub(1);
    let first = (index - (shift << DIGITS)) as u64;
    (first << shift, 1 << shift)
}

impl Default for Buckets {
    fn default() -> Self {
        // On the heap; the kernel zeroes pages at their first use.
        let memory: Box<[u64; BUCKETS + 3]> = vec![0; BUCKETS + 3]
            .try_into()
            .expect("a vector of that length");
        Self(memory)
    }
}

impl Buckets {
    #[inline]
    fn add(&mut self, ticks: u64) {
        self.0[index(ticks.min(LONGEST))] += 1;
        self.0[SUM] = self.0[SUM].wrapping_add(ticks);
        if ticks.wrapping_sub(self.0[MIN]) > self.0[SPAN] {
            self.widen(ticks);
        }
    }

    /// Records a new minimum or maximum.
    #[cold]
    fn widen(&mut self, ticks: u64) {
        let (min, span) = (self.0[MIN], self.0[SPAN]);
        let longest = min + span;
        // The first value: no call takes zero ticks.
        let shortest = if longest == 0 { ticks } else { min.min(ticks) };
        self.0[MIN] = shortest;
        self.0[SPAN] = longest.max(ticks) - shortest;
    }

    /// Converts to nanoseconds; `None` when empty.
    fn times(&self, ns_per_tick: f64) -> Option<Histogram> {
        let counts = &self.0[..BUCKETS];
        if counts.iter().all(|&count| count == 0) {
            return None;
        }
        let (min, span) = (self.0[MIN], self.0[SPAN]);
        let ns = |ticks: f64| (ticks * ns_per_tick).round() as u64;
        let counted = (counts.iter().enumerate())
            .filter(|&(_, &count)| count > 0)
            .map(|(index, &count)| {
                let (first, width) = values(index);
                (ns(first as f64 + (width - 1) as f64 / 2.0), count)
            });
        let mut times = Histogram::new();
        times.add_counted(
            counted,
            ns(min as f64),
            ns((min + span) as f64),
            (self.0[SUM] as f64 * ns_per_tick).round() as u128,
        );
        Some(times)
    }
}

/// Call times of one or several threads.
#[derive(Debug)]
pub struct CallTally {
    /// Histograms by slot (call and result).
    times: Vec<(usize, Histogram)>,
    source: Source,
    hz: f64,
    read_ns: f64,
    record_ns: f64,
    threads: u32,
    /// Latest calls of all threads, if kept.
    latest: Vec<TimedCall>,
}

impl CallTally {
    /// Takes the latest calls out.
    pub fn take_latest(&mut self) -> Vec<TimedCall> {
        self.forget_old();
        std::mem::take(&mut self.latest)
    }

    /// Drops all but the latest calls of all threads.
    fn forget_old(&mut self) {
        let old = self.latest.len().saturating_sub(LATEST_OF_ALL);
        if old > 0 {
            self.latest
                .select_nth_unstable_by_key(old, |call| call.from_ns);
            self.latest.drain(..old);
        }
    }

    /// Adds the times of another thread of the same end.
    pub fn add(&mut self, other: Self) {
        for (slot, more) in other.times {
            match self.times.iter_mut().find(|(own, _)| *own == slot) {
                Some((_, times)) => times.add(&more),
                None => self.times.push((slot, more)),
            }
        }
        let own = self.threads;
        self.latest
            .extend(other.latest.into_iter().map(|call| TimedCall {
                thread: call.thread + own,
                ..call
            }));
        // Not at each call: selecting the old ones costs as much as the copy of the rest.
        if self.latest.len() > 2 * LATEST_OF_ALL - LATEST {
            self.forget_old();
        }
        self.threads += other.threads;
        // The larger overhead of both, so that it is never understated.
        self.read_ns = self.read_ns.max(other.read_ns);
        self.record_ns = self.record_ns.max(other.record_ns);
    }

    /// Converts to the figures of the record.
    #[must_use]
    pub fn figures(&self, role: Role) -> (Calls, CallClock) {
        let mut calls = Calls::new();
        for (slot, times) in &self.times {
            let (_, name, sends) = CALLS[slot / FOUND];
            let call: &mut CallFigures = calls.entry(name.to_owned()).or_default();
            let place = match (sends, slot % FOUND) {
                (true, 0) => &mut call.room,
                (true, _) => &mut call.full,
                (false, 0) => &mut call.ready,
                (false, 1) => &mut call.waited,
                (false, _) => &mut call.empty,
            };
            *place = CallTimes::of(times);
        }
        let clock = CallClock {
            role,
            source: self.source.name().to_owned(),
            hz: self.hz,
            read_ns: self.read_ns,
            record_ns: self.record_ns,
            threads: self.threads,
        };
        (calls, clock)
    }
}

/// Adds the times of a thread to those of others.
pub fn add_tally(all: &mut Option<CallTally>, more: Option<CallTally>) {
    match (all, more) {
        (Some(all), Some(more)) => all.add(more),
        (all, Some(more)) => *all = Some(more),
        (_, None) => {}
    }
}

/// Checks readiness with a call that may block. When recorded, it is called without blocking first:
/// only that distinguishes data that was available from data that was waited for. The recorded
/// duration includes both calls.
#[inline]
pub fn watched<R: Recorder>(
    calls: &mut R,
    call: Call,
    patience: Duration,
    mut look: impl FnMut(Duration) -> io::Result<bool>,
) -> io::Result<bool> {
    if !R::ON {
        return look(patience);
    }
    let at_once = look(Duration::ZERO);
    if !matches!(at_once, Ok(false)) {
        calls.end(call, Found::Ready);
        return at_once;
    }
    let found = look(patience);
    calls.end(call, Found::Waited);
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_table_is_in_the_order_of_the_calls() {
        for (position, (call, name, _)) in CALLS.iter().enumerate() {
            assert_eq!(*call as usize, position, "{name}");
        }
    }

    #[test]
    fn buckets_meet_without_gaps() {
        let mut next = 0;
        for bucket in 0..BUCKETS {
            let (first, width) = values(bucket);
            assert_eq!(first, next, "{bucket}");
            assert_eq!(index(first), bucket);
            assert_eq!(index(first + width - 1), bucket);
            next = first + width;
        }
        assert_eq!(next, LONGEST + 1);
    }

    #[test]
    fn only_counted_time_is_noted() {
        let mut watch = Stopwatch::new(&[Call::SendTo]);
        watch.begin();
        watch.end(Call::SendTo, Found::Ready);
        let now = linerate_host::sys::clock::now();
        watch.start(&Timeline {
            start_ns: now,
            count_from_ns: now + 3_000_000,
            interval_ns: None,
            trace_on_ns: None,
        });
        watch.begin();
        watch.end(Call::SendTo, Found::Ready);
        linerate_host::sys::clock::sleep_until(now + 5_000_000);
        watch.begin();
        watch.end(Call::SendTo, Found::Waited);
        watch.end(Call::Poll, Found::Empty);
        let tally = watch.tally().unwrap();
        let (calls, clock) = tally.figures(Role::Server);
        assert_eq!(calls.len(), 2, "{calls:?}");
        assert!(calls["sendto"].room.is_none());
        assert_eq!(calls["sendto"].full.as_ref().unwrap().times.count, 1);
        assert_eq!(calls["poll"].empty.as_ref().unwrap().times.count, 1);
        assert!(
            clock.read_ns > 0.0 && clock.record_ns >= clock.read_ns,
            "{clock:?}"
        );
        println!("{clock:?}");
    }

    #[test]
    fn of_many_threads_the_latest_calls_are_kept() {
        let tally = |from_ns: Nanos| CallTally {
            times: Vec::new(),
            source: tick_clock::source(),
            hz: 1e9,
            read_ns: 0.0,
            record_ns: 0.0,
            threads: 1,
            latest: (from_ns..from_ns + LATEST as u64)
                .map(|from_ns| TimedCall {
                    from_ns,
                    to_ns: from_ns + 1,
                    slot: 0,
                    thread: 0,
                })
                .collect(),
        };
        // The last thread to be added is not the one with the latest calls.
        let mut all = tally(1_000_000);
        for thread in 0..100 {
            all.add(tally(thread * LATEST as u64));
            assert!(all.latest.len() <= 2 * LATEST_OF_ALL, "{thread}");
        }
        let mut latest = all.take_latest();
        assert_eq!(latest.len(), LATEST_OF_ALL);
        latest.sort_unstable_by_key(|call| (call.from_ns, call.thread));
        let last = latest.last().unwrap();
        assert_eq!(
            (last.from_ns, last.thread),
            (1_000_000 + LATEST as u64 - 1, 0)
        );
        assert_eq!(latest[0].from_ns, (100 - 7) * LATEST as u64);
    }

    proptest! {
        #[test]
        fn durations_survive_the_buckets(ticks in prop::collection::vec(1u64..1 << 36, 1..200)) {
            let mut buckets = Buckets::default();
            for &ticks in &ticks {
                buckets.add(ticks);
            }
            let times = buckets.times(0.4).unwrap();
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
