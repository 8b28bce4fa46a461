//! Ring of the latest round trips of one end, with their timestamps.

use std::collections::VecDeque;

use linerate_record::plan::TimestampLevel;
use linerate_sys::clock::Nanos;
use linerate_transport::MAX_TIMESTAMPED_ROUND_TRIPS;

/// Largest number of pieces of receive work kept.
pub const MAX_RECEIVE_WORK: usize = 4 * MAX_TIMESTAMPED_ROUND_TRIPS;

/// Timestamps of one round trip at one end, on its monotonic clock; 0 where unknown.
///
/// The requesting end sends first and receives last, the responding end the other way round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndTimestamps {
    /// Number of the request.
    pub number: u64,
    /// Receive timestamp of the incoming message.
    pub arrived_ns: Nanos,
    /// Wake-up of the waiting thread. On the user-space stack, whose threads do not sleep: arrival
    /// in the socket's receive queue.
    pub woken_ns: Nanos,
    /// Switch-in of that thread on a processor.
    pub switched_in_ns: Nanos,
    /// Return of the receive call.
    pub received_ns: Nanos,
    /// Start of the send call.
    pub send_call_ns: Nanos,
    /// Handover of the outgoing message to the queueing discipline.
    pub queued_ns: Nanos,
    /// Handover to the driver.
    pub driver_ns: Nanos,
    /// Return of the send call.
    pub send_returned_ns: Nanos,
}

/// Round trips of the warm-up, which never end a pass: they meet cold caches, unresolved neighbours
/// and sleeping cores.
pub const WARM_UP_ROUND_TRIPS: u64 = 16;

/// Number of values of an [`EndTimestamps`] on the wire.
pub const END_TIMESTAMPS_FIELDS: usize = 9;

impl EndTimestamps {
    /// Returns whether its end runs on the user-space stack, judged by its times.
    #[must_use]
    pub fn is_netstack(&self) -> bool {
        self.woken_ns != 0 && self.switched_in_ns == 0
    }

    /// Encodes for the other end.
    #[must_use]
    pub fn to_fields(self) -> [u64; END_TIMESTAMPS_FIELDS] {
        [
            self.number,
            self.arrived_ns,
            self.woken_ns,
            self.switched_in_ns,
            self.received_ns,
            self.send_call_ns,
            self.queued_ns,
            self.driver_ns,
            self.send_returned_ns,
        ]
    }

    /// Decodes from the other end.
    #[must_use]
    pub fn from_fields(fields: [u64; END_TIMESTAMPS_FIELDS]) -> Self {
        let [
            number,
            arrived_ns,
            woken_ns,
            switched_in_ns,
            received_ns,
            rest @ ..,
        ] = fields;
        let [send_call_ns, queued_ns, driver_ns, send_returned_ns] = rest;
        Self {
            number,
            arrived_ns,
            woken_ns,
            switched_in_ns,
            received_ns,
            send_call_ns,
            queued_ns,
            driver_ns,
            send_returned_ns,
        }
    }

    /// Converts to a clock that is `ahead_ns` behind this one.
    #[must_use]
    pub fn to_clock_behind(self, ahead_ns: i64) -> Self {
        let convert = |time: Nanos| match time {
            0 => 0,
            time => time.wrapping_sub(ahead_ns as u64).max(1),
        };
        let mut fields = self.to_fields();
        fields[1..]
            .iter_mut()
            .for_each(|field| *field = convert(*field));
        Self::from_fields(fields)
    }
}

/// A run of the kernel's receive work (the NET_RX softirq).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveWork {
    pub from_ns: Nanos,
    pub to_ns: Nanos,
    pub cpu: u32,
}

/// Use of an end's hardware timestamps instead of the kernel's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardwareTimestampUse {
    /// True if departures have hardware timestamps.
    pub departures: bool,
    /// True if arrivals have hardware timestamps.
    pub arrivals: bool,
    /// Error bound of the hardware timestamps.
    pub error_ns: Nanos,
}

/// Share of the round trips that need hardware timestamps before these replace the kernel's: all
/// others are left out.
const MIN_HARDWARE_SHARE: f64 = 0.9;

/// Hardware timestamps of the round trip in the same slot; 0 where missing.
#[derive(Clone, Copy, Debug, Default)]
struct HardwareTimestamps {
    driver_ns: Nanos,
    arrived_ns: Nanos,
}

/// A request whose response timed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostRequest {
    pub number: u64,
    /// Start of the send call.
    pub send_call_ns: Nanos,
    /// Time at which it was given up.
    pub given_up_ns: Nanos,
}

/// Contents of a [`TimestampRing`].
#[derive(Debug)]
pub struct RingContents {
    /// Round trips by number.
    pub entries: Vec<EndTimestamps>,
    /// Receive work of the processors.
    pub receive_work: Vec<ReceiveWork>,
    /// Warnings about data that could not be recorded.
    pub warnings: Vec<String>,
    /// Use of hardware timestamps.
    pub device: HardwareTimestampUse,
    /// Lost request that ended the pass.
    pub lost_request: Option<LostRequest>,
}

/// Ring of the latest round trips of one end.
#[derive(Debug)]
pub struct TimestampRing {
    /// Latest round trip whose number maps to the slot.
    entries: Vec<EndTimestamps>,
    /// Hardware timestamps by slot.
    hardware: Vec<HardwareTimestamps>,
    /// Error bound of the hardware timestamps; `None` if there are none that can be used.
    pub hardware_error_ns: Option<Nanos>,
    /// Numbers of the round trips by send call.
    round_trip_of_send: Vec<u64>,
    send_count: u64,
    wake_ups: TimeRing,
    switch_ins: TimeRing,
    receive_work: VecDeque<ReceiveWork>,
    /// Warnings about data that could not be recorded.
    pub warnings: Vec<String>,
    /// Lost request that ended the pass.
    pub lost_request: Option<LostRequest>,
}

/// Ring of times.
#[derive(Debug)]
struct TimeRing {
    times: Vec<Nanos>,
    next: usize,
}

impl TimeRing {
    fn new() -> Self {
        Self {
            times: vec![0; 2 * MAX_TIMESTAMPED_ROUND_TRIPS],
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
fn extend_to_64_bits(last: u64, id: u32) -> Option<u64> {
    let distance = u64::from((last as u32).wrapping_sub(id));
    last.checked_sub(distance)
}

/// Returns the last of `times` after `after` and not after `until`; 0 if there is none.
fn last_within(times: &[Nanos], after: Nanos, until: Nanos) -> Nanos {
    let end = times.partition_point(|&time| time <= until);
    match times[..end].last() {
        Some(&time) if time > after => time,
        _ => 0,
    }
}

const EMPTY_ENTRY: EndTimestamps = EndTimestamps {
    number: u64::MAX,
    arrived_ns: 0,
    woken_ns: 0,
    switched_in_ns: 0,
    received_ns: 0,
    send_call_ns: 0,
    queued_ns: 0,
    driver_ns: 0,
    send_returned_ns: 0,
};

impl TimestampRing {
    /// Returns the memory of a log and of its encoded copies for the other end.
    #[must_use]
    pub const fn memory_bytes(level: TimestampLevel) -> u64 {
        /// The ring, its conversion to frames, and their encoding on the wire.
        const COPIES: usize = 3;
        let work = match level {
            TimestampLevel::Driver => MAX_RECEIVE_WORK * size_of::<ReceiveWork>(),
            _ => 0,
        };
        let entry_bytes = size_of::<EndTimestamps>()
            + size_of::<HardwareTimestamps>()
            + size_of::<u64>()
            + 4 * size_of::<Nanos>();
        (COPIES * (MAX_TIMESTAMPED_ROUND_TRIPS * entry_bytes + work)) as u64
    }

    /// Creates an empty ring; all its memory is allocated here.
    #[must_use]
    pub fn new() -> Self {
        Self {
            entries: vec![EMPTY_ENTRY; MAX_TIMESTAMPED_ROUND_TRIPS],
            hardware: vec![HardwareTimestamps::default(); MAX_TIMESTAMPED_ROUND_TRIPS],
            hardware_error_ns: None,
            round_trip_of_send: vec![0; MAX_TIMESTAMPED_ROUND_TRIPS],
            send_count: 0,
            wake_ups: TimeRing::new(),
            switch_ins: TimeRing::new(),
            receive_work: VecDeque::new(),
            warnings: Vec::new(),
            lost_request: None,
        }
    }

    /// Returns the entry of a round trip; an older one in its slot is dropped.
    pub fn entry(&mut self, number: u64) -> &mut EndTimestamps {
        let slot = (number % MAX_TIMESTAMPED_ROUND_TRIPS as u64) as usize;
        let entry = &mut self.entries[slot];
        if entry.number != number {
            *entry = EndTimestamps {
                number,
                ..EMPTY_ENTRY
            };
            self.hardware[slot] = HardwareTimestamps::default();
        }
        entry
    }

    /// Records the hardware timestamp of a round trip's incoming message.
    pub fn record_hardware_arrival(&mut self, number: u64, at_ns: Nanos) {
        self.hardware[(number % MAX_TIMESTAMPED_ROUND_TRIPS as u64) as usize].arrived_ns = at_ns;
    }

    /// Records the hardware timestamp of a round trip's outgoing message.
    pub fn record_hardware_departure(&mut self, number: u64, at_ns: Nanos) {
        let times = &mut self.hardware[(number % MAX_TIMESTAMPED_ROUND_TRIPS as u64) as usize];
        // Of the first fragment or copy.
        if times.driver_ns == 0 {
            times.driver_ns = at_ns;
        }
    }

    /// Records the round trip of the next send call.
    pub fn record_send(&mut self, number: u64) {
        let slot = (self.send_count % MAX_TIMESTAMPED_ROUND_TRIPS as u64) as usize;
        self.round_trip_of_send[slot] = number;
        self.send_count += 1;
    }

    /// Returns the send call that the kernel numbered `id` (modulo 2^32); `None` if there was none.
    #[must_use]
    pub fn send_of_id(&self, id: u32) -> Option<u64> {
        extend_to_64_bits(self.send_count.checked_sub(1)?, id)
    }

    /// Returns the send call of a stream whose last byte the kernel numbered `id`, with `bytes` per
    /// call. The byte offset is counted modulo 2^32, too.
    #[must_use]
    pub fn send_of_byte_id(&self, id: u32, bytes: u64) -> Option<u64> {
        let last_byte = self.send_count.checked_mul(bytes)?.checked_sub(1)?;
        extend_to_64_bits(last_byte, id).map(|byte| byte / bytes.max(1))
    }

    /// Returns the entry of a send call, counted from 0; `None` if it is too old or was never made.
    pub fn entry_of_send(&mut self, send: u64) -> Option<&mut EndTimestamps> {
        let last = self.send_count.checked_sub(1)?;
        if send > last || last - send >= MAX_TIMESTAMPED_ROUND_TRIPS as u64 {
            return None;
        }
        let number = self.round_trip_of_send[(send % MAX_TIMESTAMPED_ROUND_TRIPS as u64) as usize];
        let entry = &mut self.entries[(number % MAX_TIMESTAMPED_ROUND_TRIPS as u64) as usize];
        (entry.number == number).then_some(entry)
    }

    /// Records a wake-up of this end's thread.
    pub fn record_wake_up(&mut self, at_ns: Nanos) {
        self.wake_ups.push(at_ns);
    }

    /// Records a switch-in of this end's thread.
    pub fn record_switch_in(&mut self, at_ns: Nanos) {
        self.switch_ins.push(at_ns);
    }

    /// Reserves memory for the receive work of processors.
    pub fn reserve_receive_work(&mut self) {
        self.receive_work.reserve_exact(MAX_RECEIVE_WORK);
    }

    /// Records receive work; drops the oldest when the memory is full.
    pub fn record_receive_work(&mut self, work: ReceiveWork) {
        if self.receive_work.len() == self.receive_work.capacity()
            && self.receive_work.pop_front().is_none()
        {
            return;
        }
        self.receive_work.push_back(work);
    }

    /// Replaces the kernel's timestamps by hardware timestamps, if there are enough.
    fn apply_hardware_timestamps(&mut self) -> HardwareTimestampUse {
        let Some(error_ns) = self.hardware_error_ns else {
            return HardwareTimestampUse::default();
        };
        let is_used = |entry: &&mut EndTimestamps| entry.number != u64::MAX;
        let entry_count = self.entries.iter_mut().filter(is_used).count().max(1) as f64;
        let enough = |of: fn(&HardwareTimestamps) -> Nanos| {
            let count = self.hardware.iter().filter(|times| of(times) != 0).count();
            count as f64 / entry_count >= MIN_HARDWARE_SHARE
        };
        let hardware = HardwareTimestampUse {
            departures: enough(|times| times.driver_ns),
            arrivals: enough(|times| times.arrived_ns),
            error_ns,
        };
        // A round trip without its hardware timestamp is left out later.
        for (entry, times) in self.entries.iter_mut().zip(&self.hardware) {
            if hardware.departures {
                entry.driver_ns = times.driver_ns;
            }
            if hardware.arrivals {
                entry.arrived_ns = times.arrived_ns;
            }
        }
        hardware
    }

    /// Returns the round trips by number, with wake-ups assigned to them.
    #[must_use]
    pub fn finish(mut self) -> RingContents {
        let device = self.apply_hardware_timestamps();
        let (wake_ups, switch_ins) = (self.wake_ups.sorted(), self.switch_ins.sorted());
        let mut entries = self.entries;
        entries.retain(|entry| entry.number != u64::MAX);
        entries.sort_unstable_by_key(|entry| entry.number);
        for entry in &mut entries {
            if entry.arrived_ns == 0 || entry.received_ns == 0 {
                continue;
            }
            entry.switched_in_ns = last_within(&switch_ins, entry.arrived_ns, entry.received_ns);
            if entry.switched_in_ns != 0 {
                entry.woken_ns = last_within(&wake_ups, entry.arrived_ns, entry.switched_in_ns);
            }
        }
        RingContents {
            entries,
            receive_work: self.receive_work.into(),
            warnings: self.warnings,
            device,
            lost_request: self.lost_request,
        }
    }
}

impl Default for TimestampRing {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_round_trips_are_kept() {
        let mut ring = TimestampRing::new();
        for number in 0..MAX_TIMESTAMPED_ROUND_TRIPS as u64 + 10 {
            ring.record_send(number);
            ring.entry(number).send_call_ns = number + 1;
        }
        assert!(ring.entry_of_send(0).is_none(), "too old");
        assert_eq!(ring.entry_of_send(12).unwrap().number, 12);
        assert!(
            ring.entry_of_send(MAX_TIMESTAMPED_ROUND_TRIPS as u64 + 10)
                .is_none(),
            "never made"
        );
        let entries = ring.finish().entries;
        assert_eq!(entries.len(), MAX_TIMESTAMPED_ROUND_TRIPS);
        assert_eq!(entries[0].number, 10);
        assert!(
            entries
                .iter()
                .all(|half| half.send_call_ns == half.number + 1)
        );
    }

    #[test]
    fn the_kernels_ids_wrap_and_ours_do_not() {
        assert_eq!(extend_to_64_bits(5, 5), Some(5));
        assert_eq!(extend_to_64_bits(5, 6), None, "not sent yet");
        let beyond = (1 << 32) + 7;
        assert_eq!(extend_to_64_bits(beyond, 7), Some(beyond));
        assert_eq!(extend_to_64_bits(beyond, u32::MAX), Some((1 << 32) - 1));
        let mut ring = TimestampRing::new();
        for number in 0..5 {
            ring.record_send(number);
        }
        // 5 sends of 2^30 bytes: the last byte is beyond 2^32.
        let bytes = 1u64 << 30;
        let id = |send: u64| ((send + 1) * bytes - 1) as u32;
        for send in 1..5 {
            assert_eq!(ring.send_of_byte_id(id(send), bytes), Some(send), "{send}");
        }
        assert_eq!(ring.send_of_id(4), Some(4));
        assert_eq!(ring.send_of_id(5), None);
    }

    #[test]
    fn wake_ups_belong_to_the_round_trip_around_them() {
        let mut ring = TimestampRing::new();
        for number in 0..3u64 {
            let entry = ring.entry(number);
            entry.arrived_ns = 100 * number + 10;
            entry.received_ns = 100 * number + 50;
        }
        // In the second round trip the thread did not sleep; in the third it was woken and
        // preempted once.
        for time in [20, 220, 230] {
            ring.record_wake_up(time);
        }
        for time in [30, 225, 240, 199] {
            ring.record_switch_in(time);
        }
        let entries = ring.finish().entries;
        let times: Vec<_> = entries
            .iter()
            .map(|h| (h.woken_ns, h.switched_in_ns))
            .collect();
        assert_eq!(times, [(20, 30), (0, 0), (230, 240)]);
    }

    #[test]
    fn enough_hardware_timestamps_replace_the_kernels() {
        let of = |departures: u64, arrivals: u64, error_ns| {
            let mut ring = TimestampRing::new();
            for number in 0..100 {
                let entry = ring.entry(number);
                (entry.driver_ns, entry.arrived_ns) = (10, 20);
                if number < departures {
                    ring.record_hardware_departure(number, 1_000 + number);
                    ring.record_hardware_departure(number, 9_000);
                }
                if number < arrivals {
                    ring.record_hardware_arrival(number, 2_000 + number);
                }
            }
            ring.hardware_error_ns = error_ns;
            let contents = ring.finish();
            let last = *contents.entries.last().unwrap();
            (contents.device, last.driver_ns, last.arrived_ns)
        };
        let used = |departures, arrivals| HardwareTimestampUse {
            departures,
            arrivals,
            error_ns: 300,
        };
        for (departures, arrivals, error_ns, expected) in [
            (100, 100, None, (HardwareTimestampUse::default(), 10, 20)),
            (100, 100, Some(300), (used(true, true), 1_099, 2_099)),
            (0, 100, Some(300), (used(false, true), 10, 2_099)),
            (89, 0, Some(300), (used(false, false), 10, 20)),
            // Round trips without it are left out.
            (90, 0, Some(300), (used(true, false), 0, 20)),
        ] {
            assert_eq!(
                of(departures, arrivals, error_ns),
                expected,
                "{departures} {arrivals}"
            );
        }
    }

    #[test]
    fn a_reused_slot_drops_its_hardware_timestamps() {
        let mut ring = TimestampRing::new();
        ring.entry(3);
        ring.record_hardware_departure(3, 7);
        ring.entry(3 + MAX_TIMESTAMPED_ROUND_TRIPS as u64).driver_ns = 5;
        ring.hardware_error_ns = Some(1);
        let contents = ring.finish();
        assert_eq!(contents.entries[0].driver_ns, 5);
        assert!(!contents.device.departures);
    }

    #[test]
    fn entries_are_encoded_and_converted_between_clocks() {
        let entry = EndTimestamps {
            number: 7,
            arrived_ns: 1_000,
            send_call_ns: 2_000,
            ..EndTimestamps::default()
        };
        assert_eq!(EndTimestamps::from_fields(entry.to_fields()), entry);
        let converted = entry.to_clock_behind(600);
        assert_eq!((converted.arrived_ns, converted.send_call_ns), (400, 1_400));
        assert_eq!((converted.number, converted.woken_ns), (7, 0));
        assert_eq!(entry.to_clock_behind(-5).arrived_ns, 1_005);
    }
}
