//! Ring of the latest round trips of one end, with their timestamps.

use std::collections::VecDeque;

use linerate_host::sys::clock::Nanos;
use linerate_metric::plan::Stamping;

/// Largest number of round trips kept: 1 MiB at each end.
pub const KEPT: usize = 1 << 14;

/// Largest number of pieces of receive work kept.
pub const WORKS: usize = 4 * KEPT;

/// Timestamps of one round trip at one end, on its monotonic clock; 0 where unknown.
///
/// The requesting end sends first and receives last, the responding end the other way round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Half {
    /// Number of the request.
    pub number: u64,
    /// Receive timestamp of the incoming message.
    pub arrived_ns: Nanos,
    /// Wake-up of the waiting thread. On the user-space stack, whose threads do not sleep: arrival
    /// in the socket's receive queue.
    pub woken_ns: Nanos,
    /// Switch-in of that thread on a processor.
    pub running_ns: Nanos,
    /// Return of the receive call.
    pub received_ns: Nanos,
    /// Start of the send call.
    pub handed_ns: Nanos,
    /// Handover of the outgoing message to the queueing discipline.
    pub queued_ns: Nanos,
    /// Handover to the driver.
    pub driver_ns: Nanos,
    /// Return of the send call.
    pub returned_ns: Nanos,
}

/// Round trips of the warm-up, which never end a pass: they meet cold caches, unresolved neighbours
/// and
/// sleeping cores.
pub const COLD_TRIPS: u64 = 16;

/// Number of values of a [`Half`] on the wire.
pub const WORDS: usize = 9;

impl Half {
    /// Returns whether its end runs on the user-space stack, judged by its times.
    #[must_use]
    pub fn is_of_stack(&self) -> bool {
        self.woken_ns != 0 && self.running_ns == 0
    }

    /// Encodes for the other end.
    #[must_use]
    pub fn to_words(self) -> [u64; WORDS] {
        [
            self.number,
            self.arrived_ns,
            self.woken_ns,
            self.running_ns,
            self.received_ns,
            self.handed_ns,
            self.queued_ns,
            self.driver_ns,
            self.returned_ns,
        ]
    }

    /// Decodes from the other end.
    #[must_use]
    pub fn from_words(words: [u64; WORDS]) -> Self {
        let [
            number,
            arrived_ns,
            woken_ns,
            running_ns,
            received_ns,
            rest @ ..,
        ] = words;
        let [handed_ns, queued_ns, driver_ns, returned_ns] = rest;
        Self {
            number,
            arrived_ns,
            woken_ns,
            running_ns,
            received_ns,
            handed_ns,
            queued_ns,
            driver_ns,
            returned_ns,
        }
    }

    /// Converts to a clock that is `ahead_ns` behind this one.
    #[must_use]
    pub fn carried(self, ahead_ns: i64) -> Self {
        let carry = |time: Nanos| match time {
            0 => 0,
            time => time.wrapping_sub(ahead_ns as u64).max(1),
        };
        let mut words = self.to_words();
        words[1..].iter_mut().for_each(|word| *word = carry(*word));
        Self::from_words(words)
    }
}

/// A run of the kernel's receive work (the NET_RX softirq).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    pub from_ns: Nanos,
    pub to_ns: Nanos,
    pub cpu: u32,
}

/// Use of an end's hardware timestamps instead of the kernel's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceUse {
    /// True if departures have hardware timestamps.
    pub departures: bool,
    /// True if arrivals have hardware timestamps.
    pub arrivals: bool,
    /// Error bound of the hardware timestamps.
    pub error_ns: Nanos,
}

/// Share of the round trips that need hardware timestamps before these replace the kernel's: all
/// others are left out.
const SHARE_OF_DEVICE: f64 = 0.9;

/// Hardware timestamps of the round trip in the same slot; 0 where missing.
#[derive(Clone, Copy, Debug, Default)]
struct DeviceTimes {
    driver_ns: Nanos,
    arrived_ns: Nanos,
}

/// A request whose response timed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenUp {
    pub number: u64,
    /// Start of the send call.
    pub handed_ns: Nanos,
    /// Time at which it was given up.
    pub at_ns: Nanos,
}

/// Contents of a [`Log`].
#[derive(Debug)]
pub struct Finished {
    /// Round trips by number.
    pub halves: Vec<Half>,
    /// Receive work of the processors.
    pub work: Vec<Work>,
    /// Warnings about data that could not be recorded.
    pub notes: Vec<String>,
    /// Use of hardware timestamps.
    pub device: DeviceUse,
    /// Lost request that ended the pass.
    pub given_up: Option<GivenUp>,
}

/// Ring of the latest round trips of one end.
#[derive(Debug)]
pub struct Log {
    /// Latest round trip whose number maps to the slot.
    halves: Vec<Half>,
    /// Hardware timestamps by slot.
    devices: Vec<DeviceTimes>,
    /// Error bound of the hardware timestamps; `None` if there are none that can be used.
    pub device_error_ns: Option<Nanos>,
    /// Numbers of the round trips by send call.
    sent: Vec<u64>,
    sends: u64,
    wakings: Times,
    runs: Times,
    work: VecDeque<Work>,
    /// Warnings about data that could not be recorded.
    pub notes: Vec<String>,
    /// Lost request that ended the pass.
    pub given_up: Option<GivenUp>,
}

/// Ring of times.
#[derive(Debug)]
struct Times {
    times: Vec<Nanos>,
    next: usize,
}

impl Times {
    fn new() -> Self {
        Self {
            times: vec![0; 2 * KEPT],
            next: 0,
        }
    }

    fn push(&mut self, time: Nanos) {
        self.times[self.next] = time;
        self.next = (self.next + 1) % self.times.len();
    }

    fn sorted(mut self) -> Vec<Nanos> {
        self.times.retain(|&time| time != 0);
        self.times.sort_unstable();
        self.times
    }
}

/// Returns the largest number up to `last` with `id` as its lower 32 bits; `None` if there is none.
fn latest(last: u64, id: u32) -> Option<u64> {
    let behind = u64::from((last as u32).wrapping_sub(id));
    last.checked_sub(behind)
}

/// Returns the last of `times` after `after` and not after `until`; 0 if there is none.
fn last_within(times: &[Nanos], after: Nanos, until: Nanos) -> Nanos {
    let end = times.partition_point(|&time| time <= until);
    match times[..end].last() {
        Some(&time) if time > after => time,
        _ => 0,
    }
}

const EMPTY: Half = Half {
    number: u64::MAX,
    arrived_ns: 0,
    woken_ns: 0,
    running_ns: 0,
    received_ns: 0,
    handed_ns: 0,
    queued_ns: 0,
    driver_ns: 0,
    returned_ns: 0,
};

impl Log {
    /// Returns the memory of a log and of its encoded copies for the other end.
    #[must_use]
    pub const fn bytes(level: Stamping) -> u64 {
        /// The ring, its conversion to frames, and their encoding on the wire.
        const TIMES: usize = 3;
        let work = match level {
            Stamping::Driver => WORKS * size_of::<Work>(),
            _ => 0,
        };
        let trip = size_of::<Half>()
            + size_of::<DeviceTimes>()
            + size_of::<u64>()
            + 4 * size_of::<Nanos>();
        (TIMES * (KEPT * trip + work)) as u64
    }

    /// Creates an empty log; all its memory is allocated here.
    #[must_use]
    pub fn new() -> Self {
        Self {
            halves: vec![EMPTY; KEPT],
            devices: vec![DeviceTimes::default(); KEPT],
            device_error_ns: None,
            sent: vec![0; KEPT],
            sends: 0,
            wakings: Times::new(),
            runs: Times::new(),
            work: VecDeque::new(),
            notes: Vec::new(),
            given_up: None,
        }
    }

    /// Returns the entry of a round trip; an older one in its slot is dropped.
    pub fn trip(&mut self, number: u64) -> &mut Half {
        let slot = (number % KEPT as u64) as usize;
        let half = &mut self.halves[slot];
        if half.number != number {
            *half = Half { number, ..EMPTY };
            self.devices[slot] = DeviceTimes::default();
        }
        half
    }

    /// Records the hardware timestamp of a round trip's incoming message.
    pub fn arrived_at_device(&mut self, number: u64, at_ns: Nanos) {
        self.devices[(number % KEPT as u64) as usize].arrived_ns = at_ns;
    }

    /// Records the hardware timestamp of a round trip's outgoing message.
    pub fn left_device(&mut self, number: u64, at_ns: Nanos) {
        let times = &mut self.devices[(number % KEPT as u64) as usize];
        // Of the first fragment or copy.
        if times.driver_ns == 0 {
            times.driver_ns = at_ns;
        }
    }

    /// Records the round trip of the next send call.
    pub fn sends(&mut self, number: u64) {
        let slot = (self.sends % KEPT as u64) as usize;
        self.sent[slot] = number;
        self.sends += 1;
    }

    /// Returns the send call that the kernel numbered `id` (modulo 2^32); `None` if there was none.
    #[must_use]
    pub fn send_of(&self, id: u32) -> Option<u64> {
        latest(self.sends.checked_sub(1)?, id)
    }

    /// Returns the send call of a stream whose last byte the kernel numbered `id`, with `bytes` per
    /// call. The byte offset is counted modulo 2^32, too.
    #[must_use]
    pub fn send_of_byte(&self, id: u32, bytes: u64) -> Option<u64> {
        let last_byte = self.sends.checked_mul(bytes)?.checked_sub(1)?;
        latest(last_byte, id).map(|byte| byte / bytes.max(1))
    }

    /// Returns the entry of a send call, counted from 0; `None` if it is too old or was never made.
    pub fn trip_of_send(&mut self, send: u64) -> Option<&mut Half> {
        let last = self.sends.checked_sub(1)?;
        if send > last || last - send >= KEPT as u64 {
            return None;
        }
        let number = self.sent[(send % KEPT as u64) as usize];
        let half = &mut self.halves[(number % KEPT as u64) as usize];
        (half.number == number).then_some(half)
    }

    /// Records a wake-up of this end's thread.
    pub fn woken(&mut self, at_ns: Nanos) {
        self.wakings.push(at_ns);
    }

    /// Records a switch-in of this end's thread.
    pub fn ran(&mut self, at_ns: Nanos) {
        self.runs.push(at_ns);
    }

    /// Reserves memory for the receive work of processors.
    pub fn expect_work(&mut self) {
        self.work.reserve_exact(WORKS);
    }

    /// Records receive work; drops the oldest when the memory is full.
    pub fn worked(&mut self, work: Work) {
        if self.work.len() == self.work.capacity() && self.work.pop_front().is_none() {
            return;
        }
        self.work.push_back(work);
    }

    /// Replaces the kernel's timestamps by hardware timestamps, if there are enough.
    fn take_over_device(&mut self) -> DeviceUse {
        let Some(error_ns) = self.device_error_ns else {
            return DeviceUse::default();
        };
        let known = |half: &&mut Half| half.number != u64::MAX;
        let trips = self.halves.iter_mut().filter(known).count().max(1) as f64;
        let enough = |of: fn(&DeviceTimes) -> Nanos| {
            let count = self.devices.iter().filter(|times| of(times) != 0).count();
            count as f64 / trips >= SHARE_OF_DEVICE
        };
        let taken = DeviceUse {
            departures: enough(|times| times.driver_ns),
            arrivals: enough(|times| times.arrived_ns),
            error_ns,
        };
        // A round trip without its hardware timestamp is left out later.
        for (half, times) in self.halves.iter_mut().zip(&self.devices) {
            if taken.departures {
                half.driver_ns = times.driver_ns;
            }
            if taken.arrivals {
                half.arrived_ns = times.arrived_ns;
            }
        }
        taken
    }

    /// Returns the round trips by number, with wake-ups assigned to them.
    #[must_use]
    pub fn finish(mut self) -> Finished {
        let device = self.take_over_device();
        let (wakings, runs) = (self.wakings.sorted(), self.runs.sorted());
        let mut halves = self.halves;
        halves.retain(|half| half.number != u64::MAX);
        halves.sort_unstable_by_key(|half| half.number);
        for half in &mut halves {
            if half.arrived_ns == 0 || half.received_ns == 0 {
                continue;
            }
            half.running_ns = last_within(&runs, half.arrived_ns, half.received_ns);
            if half.running_ns != 0 {
                half.woken_ns = last_within(&wakings, half.arrived_ns, half.running_ns);
            }
        }
        Finished {
            halves,
            work: self.work.into(),
            notes: self.notes,
            device,
            given_up: self.given_up,
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_trips_are_kept() {
        let mut log = Log::new();
        for number in 0..KEPT as u64 + 10 {
            log.sends(number);
            log.trip(number).handed_ns = number + 1;
        }
        assert!(log.trip_of_send(0).is_none(), "too old");
        assert_eq!(log.trip_of_send(12).unwrap().number, 12);
        assert!(log.trip_of_send(KEPT as u64 + 10).is_none(), "never made");
        let halves = log.finish().halves;
        assert_eq!(halves.len(), KEPT);
        assert_eq!(halves[0].number, 10);
        assert!(halves.iter().all(|half| half.handed_ns == half.number + 1));
    }

    #[test]
    fn numbers_of_the_kernel_wrap_and_ours_do_not() {
        assert_eq!(latest(5, 5), Some(5));
        assert_eq!(latest(5, 6), None, "not sent yet");
        let beyond = (1 << 32) + 7;
        assert_eq!(latest(beyond, 7), Some(beyond));
        assert_eq!(latest(beyond, u32::MAX), Some((1 << 32) - 1));
        let mut log = Log::new();
        for number in 0..5 {
            log.sends(number);
        }
        // 5 sends of 2^30 bytes: the last byte is beyond 2^32.
        let bytes = 1u64 << 30;
        let id = |send: u64| ((send + 1) * bytes - 1) as u32;
        for send in 1..5 {
            assert_eq!(log.send_of_byte(id(send), bytes), Some(send), "{send}");
        }
        assert_eq!(log.send_of(4), Some(4));
        assert_eq!(log.send_of(5), None);
    }

    #[test]
    fn wake_ups_belong_to_the_trip_that_they_lie_in() {
        let mut log = Log::new();
        for number in 0..3u64 {
            let half = log.trip(number);
            half.arrived_ns = 100 * number + 10;
            half.received_ns = 100 * number + 50;
        }
        // In the second round trip the thread did not sleep; in the third it was woken and
        // preempted
        // once.
        for time in [20, 220, 230] {
            log.woken(time);
        }
        for time in [30, 225, 240, 199] {
            log.ran(time);
        }
        let halves = log.finish().halves;
        let seen: Vec<_> = halves.iter().map(|h| (h.woken_ns, h.running_ns)).collect();
        assert_eq!(seen, [(20, 30), (0, 0), (230, 240)]);
    }

    #[test]
    fn a_device_that_stamps_enough_stands_for_the_kernel() {
        let of = |departures: u64, arrivals: u64, error_ns| {
            let mut log = Log::new();
            for number in 0..100 {
                let half = log.trip(number);
                (half.driver_ns, half.arrived_ns) = (10, 20);
                if number < departures {
                    log.left_device(number, 1_000 + number);
                    log.left_device(number, 9_000);
                }
                if number < arrivals {
                    log.arrived_at_device(number, 2_000 + number);
                }
            }
            log.device_error_ns = error_ns;
            let done = log.finish();
            let last = *done.halves.last().unwrap();
            (done.device, last.driver_ns, last.arrived_ns)
        };
        let used = |departures, arrivals| DeviceUse {
            departures,
            arrivals,
            error_ns: 300,
        };
        for (departures, arrivals, error_ns, want) in [
            (100, 100, None, (DeviceUse::default(), 10, 20)),
            (100, 100, Some(300), (used(true, true), 1_099, 2_099)),
            (0, 100, Some(300), (used(false, true), 10, 2_099)),
            (89, 0, Some(300), (used(false, false), 10, 20)),
            // Round trips without it are left out.
            (90, 0, Some(300), (used(true, false), 0, 20)),
        ] {
            assert_eq!(
                of(departures, arrivals, error_ns),
                want,
                "{departures} {arrivals}"
            );
        }
    }

    #[test]
    fn a_slot_forgets_the_device_with_its_trip() {
        let mut log = Log::new();
        log.trip(3);
        log.left_device(3, 7);
        log.trip(3 + KEPT as u64).driver_ns = 5;
        log.device_error_ns = Some(1);
        let done = log.finish();
        assert_eq!(done.halves[0].driver_ns, 5);
        assert!(!done.device.departures);
    }

    #[test]
    fn halves_cross_the_wire_and_the_clocks() {
        let half = Half {
            number: 7,
            arrived_ns: 1_000,
            handed_ns: 2_000,
            ..Half::default()
        };
        assert_eq!(Half::from_words(half.to_words()), half);
        let carried = half.carried(600);
        assert_eq!((carried.arrived_ns, carried.handed_ns), (400, 1_400));
        assert_eq!((carried.number, carried.woken_ns), (7, 0));
        assert_eq!(half.carried(-5).arrived_ns, 1_005);
    }
}
