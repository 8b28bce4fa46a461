//! Reassembly of fragments (RFC 791, RFC 815; RFC 8200, section 4.5), with configured buffers and
//! timeout.

use std::net::{IpAddr, Ipv4Addr};

use crate::Nanos;
use crate::counters::Counters;
use crate::prefault;
use crate::wire::ip::{FragmentPosition, IpHeader};

/// Separate runs of bytes that a datagram may have before the gaps between them are filled. RFC 815
/// needs no limit; a datagram of 64 KiB in fragments for an MTU of 576 has 119, and packets are
/// rarely reordered by more than a few.
const MAX_RUNS: usize = 32;

/// Finished datagrams that are remembered. Far fewer than a sender has identification numbers
/// (65,536), so that none is reused while it is remembered.
const FINISHED_SLOTS: usize = 16;

/// Reassembly buffers of a stack.
pub(crate) struct ReassemblyBuffers {
    buffers: Vec<ReassemblyBuffer>,
    /// Datagrams completed or dropped last, and the time until which their fragments are ignored.
    finished: [Option<(FragmentKey, Nanos)>; FINISHED_SLOTS],
    next_finished: usize,
    /// Size of a buffer in bytes.
    buffer_bytes: usize,
    timeout: Nanos,
    next_deadline: Option<Nanos>,
}

/// Fields that all fragments of a datagram have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FragmentKey {
    from: IpAddr,
    to: IpAddr,
    /// Zero for IPv6, where numbers apply to all protocols, and later fragments may name any.
    protocol: u8,
    id: u32,
}

const NO_KEY: FragmentKey = FragmentKey {
    from: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    to: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    protocol: 0,
    id: 0,
};

struct ReassemblyBuffer {
    state: BufferState,
    bytes: Vec<u8>,
    key: FragmentKey,
    /// Protocol in the first fragment.
    protocol: u8,
    deadline: Nanos,
    /// Ranges received, in order; they neither overlap nor touch.
    runs: [(u32, u32); MAX_RUNS],
    run_count: usize,
    total_bytes: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum BufferState {
    Free,
    Incomplete,
    /// Complete, and in use by the receive queue.
    InUse,
}

/// Result of adding a fragment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FragmentResult {
    /// Incomplete, or the fragment was dropped.
    Incomplete,
    /// Complete: index of the buffer, length in bytes, and protocol.
    Complete(u32, usize, u8),
}

impl ReassemblyBuffers {
    pub(crate) fn new(on: bool, count: u32, bytes: u32, timeout: Nanos) -> Self {
        let buffer = || ReassemblyBuffer {
            state: BufferState::Free,
            bytes: prefault::filled(bytes as usize),
            key: NO_KEY,
            protocol: 0,
            deadline: 0,
            runs: [(0, 0); MAX_RUNS],
            run_count: 0,
            total_bytes: None,
        };
        let count = if on { count as usize } else { 0 };
        let mut buffers = Vec::with_capacity(count);
        buffers.extend((0..count).map(|_| buffer()));
        Self {
            buffers,
            finished: [None; FINISHED_SLOTS],
            next_finished: 0,
            buffer_bytes: bytes as usize,
            timeout,
            next_deadline: None,
        }
    }

    pub(crate) const fn heap_bytes(on: bool, count: u32, bytes: u32) -> usize {
        if on {
            count as usize * (size_of::<ReassemblyBuffer>() + bytes as usize)
        } else {
            0
        }
    }

    /// Adds a fragment.
    pub(crate) fn input(
        &mut self,
        header: &IpHeader,
        fragment: FragmentPosition,
        payload: &[u8],
        now: Nanos,
        counters: &mut Counters,
    ) -> FragmentResult {
        counters.ip.reassembly_required += 1;
        if self.buffers.is_empty() {
            counters.ip.reassembly_errors += 1;
            return FragmentResult::Incomplete;
        }
        self.expire(now, counters);
        let key = FragmentKey {
            from: header.from,
            to: header.to,
            protocol: match header.to {
                IpAddr::V4(_) => header.protocol,
                IpAddr::V6(_) => 0,
            },
            id: fragment.id,
        };
        let is_same_datagram = |buffer: &ReassemblyBuffer| {
            buffer.state == BufferState::Incomplete && buffer.key == key
        };
        let position = self.buffers.iter().position(is_same_datagram);
        if fragment.offset + payload.len() > self.buffer_bytes {
            counters.ip.reassembly_too_long += 1;
            // The rest of such a datagram would only occupy a buffer.
            if let Some(at) = position {
                self.discard(at, now);
            }
            return FragmentResult::Incomplete;
        }
        let at = match position {
            Some(at) => at,
            None if self.is_finished(key, now) => {
                counters.ip.reassembly_late += 1;
                return FragmentResult::Incomplete;
            }
            None => match self.start_datagram(key, now, counters) {
                Some(at) => at,
                None => {
                    counters.ip.reassembly_no_buffer += 1;
                    return FragmentResult::Incomplete;
                }
            },
        };
        let buffer = &mut self.buffers[at];
        if !buffer.insert(fragment, payload) {
            // Contradicting or overlapping fragments are an attack or a fault: the datagram is
            // dropped (RFC 5722 requires that for IPv6, and Linux does it for IPv4 as well).
            counters.ip.reassembly_errors += 1;
            self.discard(at, now);
            return FragmentResult::Incomplete;
        }
        if fragment.offset == 0 {
            buffer.protocol = header.protocol;
        }
        match buffer.total_bytes {
            Some(total) if buffer.run_count == 1 && buffer.runs[0] == (0, total) => {
                counters.ip.reassembly_ok += 1;
                buffer.state = BufferState::InUse;
                let protocol = buffer.protocol;
                self.record_finished(key, now);
                FragmentResult::Complete(at as u32, total as usize, protocol)
            }
            _ => FragmentResult::Incomplete,
        }
    }

    /// Starts a datagram in a free buffer. If there is none, the oldest incomplete datagram is
    /// dropped: one lost fragment would otherwise occupy its buffer until the timeout.
    fn start_datagram(
        &mut self,
        key: FragmentKey,
        now: Nanos,
        counters: &mut Counters,
    ) -> Option<usize> {
        let is_free = |buffer: &ReassemblyBuffer| buffer.state == BufferState::Free;
        let at = match self.buffers.iter().position(is_free) {
            Some(at) => at,
            None => {
                let is_incomplete = |&at: &usize| self.buffers[at].state == BufferState::Incomplete;
                let oldest = (0..self.buffers.len())
                    .filter(is_incomplete)
                    .min_by_key(|&at| self.buffers[at].deadline)?;
                counters.ip.reassembly_evicted += 1;
                self.discard(oldest, now);
                oldest
            }
        };
        let deadline = now + self.timeout;
        let first_deadline = self.next_deadline.unwrap_or(deadline);
        self.next_deadline = Some(first_deadline.min(deadline));
        let buffer = &mut self.buffers[at];
        buffer.state = BufferState::Incomplete;
        (buffer.key, buffer.deadline) = (key, deadline);
        (buffer.run_count, buffer.total_bytes) = (0, None);
        Some(at)
    }

    /// Drops an incomplete datagram; its later fragments are ignored.
    fn discard(&mut self, at: usize, now: Nanos) {
        self.buffers[at].state = BufferState::Free;
        self.record_finished(self.buffers[at].key, now);
    }

    fn record_finished(&mut self, key: FragmentKey, now: Nanos) {
        self.finished[self.next_finished] = Some((key, now + self.timeout));
        self.next_finished = (self.next_finished + 1) % FINISHED_SLOTS;
    }

    /// Returns whether a datagram was completed or dropped recently.
    fn is_finished(&self, key: FragmentKey, now: Nanos) -> bool {
        let mut finished = self.finished.iter().flatten();
        finished.any(|&(other_key, expires_at)| other_key == key && now < expires_at)
    }

    /// Returns the bytes of a complete datagram.
    pub(crate) fn bytes(&self, buffer: u32) -> &[u8] {
        &self.buffers[buffer as usize].bytes
    }

    /// Frees the buffer of a complete datagram.
    pub(crate) fn free(&mut self, buffer: u32) {
        self.buffers[buffer as usize].state = BufferState::Free;
    }

    /// Drops incomplete datagrams whose timeout has passed.
    pub(crate) fn expire(&mut self, now: Nanos, counters: &mut Counters) {
        if self.next_deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        self.next_deadline = None;
        for at in 0..self.buffers.len() {
            let buffer = &self.buffers[at];
            if buffer.state != BufferState::Incomplete {
                continue;
            }
            if now >= buffer.deadline {
                self.discard(at, now);
                counters.ip.reassembly_timeouts += 1;
            } else {
                let first_deadline = self.next_deadline.unwrap_or(buffer.deadline);
                self.next_deadline = Some(first_deadline.min(buffer.deadline));
            }
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        self.next_deadline
    }
}

impl ReassemblyBuffer {
    /// Inserts a fragment; false if it contradicts the bytes present. An equal fragment counts as a
    /// duplicate.
    fn insert(&mut self, fragment: FragmentPosition, payload: &[u8]) -> bool {
        let (start, end) = (fragment.offset, fragment.offset + payload.len());
        if payload.is_empty()
            || end > self.bytes.len()
            || (fragment.has_more && !payload.len().is_multiple_of(8))
        {
            return false;
        }
        let (start32, end32) = (start as u32, end as u32);
        let received_end = self.runs[..self.run_count].last().map_or(0, |run| run.1);
        match self.total_bytes {
            Some(total) if end32 > total || (!fragment.has_more && end32 != total) => return false,
            None if !fragment.has_more && end32 < received_end => return false,
            None if !fragment.has_more => self.total_bytes = Some(end32),
            _ => {}
        }
        // The first run that does not end before this fragment begins.
        let runs = &self.runs[..self.run_count];
        let at = runs.iter().position(|run| run.1 >= start32);
        let at = at.unwrap_or(self.run_count);
        if let Some(&(from, to)) = runs.get(at) {
            if from <= start32 && end32 <= to {
                return self.bytes[start..end] == *payload;
            }
            if to > start32 && from < end32 {
                return false;
            }
        }
        let joins_previous = runs.get(at).is_some_and(|run| run.1 == start32);
        let next = if joins_previous { at + 1 } else { at };
        if runs.get(next).is_some_and(|run| run.0 < end32) {
            return false;
        }
        let joins_next = runs.get(next).is_some_and(|run| run.0 == end32);
        match (joins_previous, joins_next) {
            (true, true) => {
                self.runs[at].1 = self.runs[next].1;
                self.runs.copy_within(next + 1..self.run_count, next);
                self.run_count -= 1;
            }
            (true, false) => self.runs[at].1 = end32,
            (false, true) => self.runs[at].0 = start32,
            (false, false) => {
                if self.run_count == MAX_RUNS {
                    return false;
                }
                self.runs.copy_within(at..self.run_count, at + 1);
                self.runs[at] = (start32, end32);
                self.run_count += 1;
            }
        }
        self.bytes[start..end].copy_from_slice(payload);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ipv4_header() -> IpHeader {
        IpHeader {
            from: [10, 0, 0, 1].into(),
            to: [10, 0, 0, 2].into(),
            protocol: 17,
            tos: 0,
            transport: 20,
            end: 0,
            fragment: None,
        }
    }

    fn content(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at * 7 / 3) as u8).collect()
    }

    fn fragments(id: u32, length: usize, step: usize) -> Vec<(FragmentPosition, Vec<u8>)> {
        let all = content(length);
        let make_fragment = |(number, part): (usize, &[u8])| {
            let offset = number * step;
            let more = offset + part.len() < length;
            (
                FragmentPosition {
                    id,
                    offset,
                    has_more: more,
                },
                part.to_vec(),
            )
        };
        all.chunks(step).enumerate().map(make_fragment).collect()
    }

    struct Fixture {
        reassembly: ReassemblyBuffers,
        counters: Counters,
    }

    impl Fixture {
        fn new(count: u32) -> Self {
            Self {
                reassembly: ReassemblyBuffers::new(true, count, 65_515, 1_000),
                counters: Counters::default(),
            }
        }

        fn input(
            &mut self,
            (fragment, payload): &(FragmentPosition, Vec<u8>),
            now: Nanos,
        ) -> Option<Vec<u8>> {
            let Self {
                reassembly,
                counters,
            } = self;
            match reassembly.input(&ipv4_header(), *fragment, payload, now, counters) {
                FragmentResult::Incomplete => None,
                FragmentResult::Complete(buffer, length, protocol) => {
                    assert_eq!(protocol, 17);
                    let bytes = reassembly.bytes(buffer)[..length].to_vec();
                    reassembly.free(buffer);
                    Some(bytes)
                }
            }
        }
    }

    proptest! {
        /// Any order, any size, with duplicates: complete exactly when the last fragment has
        /// arrived.
        #[test]
        fn any_order_is_put_together(
            length in 1usize..20_000,
            step in prop::sample::select(vec![552usize, 1480]),
            seed: u64,
        ) {
            let mut parts = fragments(7, length, step);
            let mut random = fastrand::Rng::with_seed(seed);
            // Fewer than the separate runs allowed, in any order.
            prop_assume!(parts.len() <= 2 * MAX_RUNS);
            random.shuffle(&mut parts);
            let mut fixture = Fixture::new(1);
            let last = parts.len() - 1;
            for (number, part) in parts.iter().enumerate() {
                let whole = fixture.input(part, 0);
                prop_assert_eq!(whole.is_some(), number == last);
                if let Some(whole) = whole {
                    prop_assert_eq!(whole, content(length));
                } else if random.bool() {
                    prop_assert!(fixture.input(part, 0).is_none());
                }
            }
            prop_assert_eq!(fixture.counters.ip.reassembly_errors, 0);
        }
    }

    #[test]
    fn overlapping_fragments_are_discarded() {
        let mut fixture = Fixture::new(1);
        for ((first, second), id) in [
            ((0, 16, true), (8, 16, true)),
            ((8, 16, true), (0, 16, true)),
            // The last fragment ends before data already received.
            ((16, 16, true), (0, 8, false)),
            // Beyond the end.
            ((8, 8, false), (16, 8, true)),
            // Two different ends.
            ((8, 8, false), (16, 8, false)),
            // Within a received range, with other bytes.
            ((0, 32, true), (8, 8, true)),
        ]
        .into_iter()
        .zip(100..)
        {
            let position = |offset, more| FragmentPosition {
                id,
                offset,
                has_more: more,
            };
            let make = |(offset, length, more): (usize, usize, bool), fill: u8| {
                (position(offset, more), vec![fill; length])
            };
            let before = fixture.counters.ip.reassembly_errors;
            assert!(fixture.input(&make(first, 1), 0).is_none());
            assert!(fixture.input(&make(second, 2), 0).is_none());
            assert_eq!(
                fixture.counters.ip.reassembly_errors,
                before + 1,
                "{first:?} {second:?}"
            );
        }
        // The one buffer is free again: a valid datagram is reassembled.
        let fragments = fragments(2, 3000, 1480);
        assert!(
            fragments
                .iter()
                .any(|part| fixture.input(part, 0).is_some())
        );
    }

    #[test]
    fn incomplete_datagrams_are_discarded_after_the_timeout() {
        let mut fixture = Fixture::new(2);
        for (id, now) in [(0, 0), (1, 400)] {
            fixture.input(&fragments(id, 3000, 1480)[0], now);
        }
        assert_eq!(fixture.reassembly.next_deadline(), Some(1_000));
        let rest = |id: u32| fragments(id, 3000, 1480).split_off(1);
        assert!(
            rest(0)
                .iter()
                .all(|part| fixture.input(part, 1_000).is_none())
        );
        assert_eq!(fixture.counters.ip.reassembly_timeouts, 1);
        // Its remaining fragments take no buffer.
        assert_eq!(fixture.counters.ip.reassembly_late, 2);
        assert!(
            rest(1)
                .iter()
                .any(|part| fixture.input(part, 1_000).is_some())
        );
        assert_eq!(fixture.counters.ip.reassembly_ok, 1);
    }

    /// A fragment in eight is lost: each incomplete datagram would keep its buffer until the
    /// timeout.
    #[test]
    fn losses_do_not_block_later_datagrams() {
        let mut fixture = Fixture::new(2);
        let mut complete = 0;
        for id in 0..100 {
            for (number, part) in fragments(id, 3000, 1480).iter().enumerate() {
                if (id as usize * 3 + number) % 8 != 7 {
                    complete += u32::from(fixture.input(part, 0).is_some());
                }
            }
        }
        assert_eq!(complete, 63);
        let ip = fixture.counters.ip;
        assert_eq!((ip.reassembly_ok, ip.reassembly_evicted), (63, 36));
        assert_eq!((ip.reassembly_no_buffer, ip.reassembly_timeouts), (0, 0));
    }

    #[test]
    fn the_oldest_is_evicted() {
        let mut fixture = Fixture::new(2);
        for (id, now) in [(1, 0), (2, 10), (3, 20)] {
            fixture.input(&fragments(id, 3000, 1480)[0], now);
        }
        let mut finish = |id: u32| {
            let rest = fragments(id, 3000, 1480).split_off(1);
            rest.iter().any(|part| fixture.input(part, 30).is_some())
        };
        assert_eq!([1, 2, 3].map(&mut finish), [false, true, true]);
        assert_eq!(fixture.counters.ip.reassembly_evicted, 1);
    }

    /// Complete datagrams that were not read yet are never dropped.
    #[test]
    fn buffers_in_use_are_never_evicted() {
        let mut fixture = Fixture::new(1);
        let Fixture {
            reassembly,
            counters,
        } = &mut fixture;
        for (fragment, payload) in fragments(1, 3000, 1480) {
            reassembly.input(&ipv4_header(), fragment, &payload, 0, counters);
        }
        for (fragment, payload) in fragments(2, 3000, 1480) {
            let result = reassembly.input(&ipv4_header(), fragment, &payload, 0, counters);
            assert_eq!(result, FragmentResult::Incomplete);
        }
        assert_eq!(counters.ip.reassembly_no_buffer, 3);
        assert_eq!(reassembly.bytes(0)[..3000], content(3000));
    }

    #[test]
    fn a_late_duplicate_takes_no_buffer() {
        let mut fixture = Fixture::new(1);
        let first = fragments(1, 3000, 1480);
        assert!(first.iter().any(|part| fixture.input(part, 0).is_some()));
        assert!(fixture.input(&first[1], 10).is_none());
        assert_eq!(fixture.counters.ip.reassembly_late, 1);
        fixture.input(&fragments(2, 3000, 1480)[0], 20);
        assert_eq!(fixture.counters.ip.reassembly_evicted, 0);
        // The same number later belongs to another datagram.
        let reused = fragments(1, 3000, 1480);
        assert!(
            reused
                .iter()
                .any(|part| fixture.input(part, 1_000).is_some())
        );
    }

    #[test]
    fn fragments_that_are_too_long_or_malformed_are_rejected() {
        let mut fixture = Fixture::new(1);
        let position = |id, offset, more| FragmentPosition {
            id,
            offset,
            has_more: more,
        };
        let position_of_first = |offset, more| position(1, offset, more);
        for part in [
            (position(3, 65_512, true), vec![0; 8]),
            (position(4, 0, true), vec![0; 9]),
            (position(5, 8, false), vec![]),
        ] {
            assert!(fixture.input(&part, 0).is_none());
        }
        let counted = &fixture.counters.ip;
        assert_eq!(
            (counted.reassembly_too_long, counted.reassembly_errors),
            (1, 2)
        );
        // A datagram with a fragment beyond the limit keeps no buffer from the next one.
        assert!(
            fixture
                .input(&(position_of_first(0, true), vec![0; 16]), 0)
                .is_none()
        );
        assert!(
            fixture
                .input(&(position_of_first(65_512, true), vec![0; 64]), 0)
                .is_none()
        );
        let mut fragments = fragments(2, 3000, 1480).into_iter();
        assert!(fragments.any(|part| fixture.input(&part, 0).is_some()));
    }
}
