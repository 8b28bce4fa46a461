//! Reassembly of fragments (RFC 791, RFC 815; RFC 8200, section 4.5), with configured buffers and
//! timeout.

use std::net::{IpAddr, Ipv4Addr};

use crate::Nanos;
use crate::counters::Counters;
use crate::prefault;
use crate::wire::ip::{Header, Piece};

/// Separate runs of bytes that a datagram may have before the gaps between them are filled. RFC 815
/// needs no limit; a datagram of 64 KiB in fragments for an MTU of 576 has 119, and packets are
/// rarely reordered by more than a few.
const RUNS: usize = 32;

/// Finished datagrams that are remembered. Far fewer than a sender has identification numbers
/// (65,536), so that none is reused while it is remembered.
const REMEMBERED: usize = 16;

/// Reassembly buffers of a stack.
pub(crate) struct Reassembly {
    buffers: Vec<Buffer>,
    /// Datagrams completed or dropped last, and the time until which their fragments are ignored.
    over: [Option<(Key, Nanos)>; REMEMBERED],
    next_over: usize,
    /// Size of a buffer in bytes.
    longest: usize,
    timeout: Nanos,
    next_deadline: Option<Nanos>,
}

/// Fields that all fragments of a datagram have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    from: IpAddr,
    to: IpAddr,
    /// Zero for IPv6, where numbers apply to all protocols, and later fragments may name any.
    protocol: u8,
    id: u32,
}

const NOBODY: Key = Key {
    from: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    to: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    protocol: 0,
    id: 0,
};

struct Buffer {
    state: State,
    bytes: Vec<u8>,
    key: Key,
    /// Protocol in the first fragment.
    protocol: u8,
    deadline: Nanos,
    /// Ranges received, in order; they neither overlap nor touch.
    runs: [(u32, u32); RUNS],
    count: usize,
    total: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Gathering,
    /// Complete, and in use by the receive queue.
    Lent,
}

/// Result of adding a fragment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Incomplete, or the fragment was dropped.
    Waiting,
    /// Complete: index of the buffer, length in bytes, and protocol.
    Whole(u32, usize, u8),
}

impl Reassembly {
    pub(crate) fn new(on: bool, count: u32, bytes: u32, timeout: Nanos) -> Self {
        let buffer = || Buffer {
            state: State::Free,
            bytes: prefault::filled(bytes as usize),
            key: NOBODY,
            protocol: 0,
            deadline: 0,
            runs: [(0, 0); RUNS],
            count: 0,
            total: None,
        };
        let count = if on { count as usize } else { 0 };
        let mut buffers = Vec::with_capacity(count);
        buffers.extend((0..count).map(|_| buffer()));
        Self {
            buffers,
            over: [None; REMEMBERED],
            next_over: 0,
            longest: bytes as usize,
            timeout,
            next_deadline: None,
        }
    }

    pub(crate) const fn heap_bytes(on: bool, count: u32, bytes: u32) -> usize {
        if on {
            count as usize * (size_of::<Buffer>() + bytes as usize)
        } else {
            0
        }
    }

    /// Adds a fragment.
    pub(crate) fn input(
        &mut self,
        header: &Header,
        piece: Piece,
        payload: &[u8],
        now: Nanos,
        counters: &mut Counters,
    ) -> Outcome {
        counters.ip.reassembly_required += 1;
        if self.buffers.is_empty() {
            counters.ip.reassembly_errors += 1;
            return Outcome::Waiting;
        }
        self.expire(now, counters);
        let key = Key {
            from: header.from,
            to: header.to,
            protocol: match header.to {
                IpAddr::V4(_) => header.protocol,
                IpAddr::V6(_) => 0,
            },
            id: piece.id,
        };
        let same = |buffer: &Buffer| buffer.state == State::Gathering && buffer.key == key;
        let found = self.buffers.iter().position(same);
        if piece.offset + payload.len() > self.longest {
            counters.ip.reassembly_too_long += 1;
            // The rest of such a datagram would only occupy a buffer.
            if let Some(at) = found {
                self.give_up(at, now);
            }
            return Outcome::Waiting;
        }
        let at = match found {
            Some(at) => at,
            None if self.is_over(key, now) => {
                counters.ip.reassembly_late += 1;
                return Outcome::Waiting;
            }
            None => match self.begin(key, now, counters) {
                Some(at) => at,
                None => {
                    counters.ip.reassembly_no_buffer += 1;
                    return Outcome::Waiting;
                }
            },
        };
        let buffer = &mut self.buffers[at];
        if !buffer.add(piece, payload) {
            // Contradicting or overlapping fragments are an attack or a fault: the datagram is
            // dropped (RFC 5722 requires that for IPv6, and Linux does it for IPv4 as well).
            counters.ip.reassembly_errors += 1;
            self.give_up(at, now);
            return Outcome::Waiting;
        }
        if piece.offset == 0 {
            buffer.protocol = header.protocol;
        }
        match buffer.total {
            Some(total) if buffer.count == 1 && buffer.runs[0] == (0, total) => {
                counters.ip.reassembly_ok += 1;
                buffer.state = State::Lent;
                let protocol = buffer.protocol;
                self.remember(key, now);
                Outcome::Whole(at as u32, total as usize, protocol)
            }
            _ => Outcome::Waiting,
        }
    }

    /// Starts a datagram in a free buffer. If there is none, the oldest incomplete datagram is
    /// dropped: one lost fragment would otherwise occupy its buffer until the timeout.
    fn begin(&mut self, key: Key, now: Nanos, counters: &mut Counters) -> Option<usize> {
        let free = |buffer: &Buffer| buffer.state == State::Free;
        let at = match self.buffers.iter().position(free) {
            Some(at) => at,
            None => {
                let gathering = |&at: &usize| self.buffers[at].state == State::Gathering;
                let oldest = (0..self.buffers.len())
                    .filter(gathering)
                    .min_by_key(|&at| self.buffers[at].deadline)?;
                counters.ip.reassembly_evicted += 1;
                self.give_up(oldest, now);
                oldest
            }
        };
        let deadline = now + self.timeout;
        let first = self.next_deadline.unwrap_or(deadline);
        self.next_deadline = Some(first.min(deadline));
        let buffer = &mut self.buffers[at];
        buffer.state = State::Gathering;
        (buffer.key, buffer.deadline) = (key, deadline);
        (buffer.count, buffer.total) = (0, None);
        Some(at)
    }

    /// Drops an incomplete datagram; its later fragments are ignored.
    fn give_up(&mut self, at: usize, now: Nanos) {
        self.buffers[at].state = State::Free;
        self.remember(self.buffers[at].key, now);
    }

    fn remember(&mut self, key: Key, now: Nanos) {
        self.over[self.next_over] = Some((key, now + self.timeout));
        self.next_over = (self.next_over + 1) % REMEMBERED;
    }

    /// Returns whether a datagram was completed or dropped recently.
    fn is_over(&self, key: Key, now: Nanos) -> bool {
        let mut over = self.over.iter().flatten();
        over.any(|&(other, until)| other == key && now < until)
    }

    /// Returns the bytes of a complete datagram.
    pub(crate) fn bytes(&self, buffer: u32) -> &[u8] {
        &self.buffers[buffer as usize].bytes
    }

    /// Frees the buffer of a complete datagram.
    pub(crate) fn free(&mut self, buffer: u32) {
        self.buffers[buffer as usize].state = State::Free;
    }

    /// Drops incomplete datagrams whose timeout has passed.
    pub(crate) fn expire(&mut self, now: Nanos, counters: &mut Counters) {
        if self.next_deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        self.next_deadline = None;
        for at in 0..self.buffers.len() {
            let buffer = &self.buffers[at];
            if buffer.state != State::Gathering {
                continue;
            }
            if now >= buffer.deadline {
                self.give_up(at, now);
                counters.ip.reassembly_timeouts += 1;
            } else {
                let first = self.next_deadline.unwrap_or(buffer.deadline);
                self.next_deadline = Some(first.min(buffer.deadline));
            }
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        self.next_deadline
    }
}

impl Buffer {
    /// Inserts a fragment; false if it contradicts the bytes present. An equal fragment counts as a
    /// duplicate.
    fn add(&mut self, piece: Piece, payload: &[u8]) -> bool {
        let (start, end) = (piece.offset, piece.offset + payload.len());
        if payload.is_empty()
            || end > self.bytes.len()
            || (piece.more && !payload.len().is_multiple_of(8))
        {
            return false;
        }
        let (start32, end32) = (start as u32, end as u32);
        let last = self.runs[..self.count].last().map_or(0, |run| run.1);
        match self.total {
            Some(total) if end32 > total || (!piece.more && end32 != total) => return false,
            None if !piece.more && end32 < last => return false,
            None if !piece.more => self.total = Some(end32),
            _ => {}
        }
        // The first run that does not end before this fragment begins.
        let runs = &self.runs[..self.count];
        let at = runs.iter().position(|run| run.1 >= start32);
        let at = at.unwrap_or(self.count);
        if let Some(&(from, to)) = runs.get(at) {
            if from <= start32 && end32 <= to {
                return self.bytes[start..end] == *payload;
            }
            if to > start32 && from < end32 {
                return false;
            }
        }
        let joins_before = runs.get(at).is_some_and(|run| run.1 == start32);
        let behind = if joins_before { at + 1 } else { at };
        if runs.get(behind).is_some_and(|run| run.0 < end32) {
            return false;
        }
        let joins_behind = runs.get(behind).is_some_and(|run| run.0 == end32);
        match (joins_before, joins_behind) {
            (true, true) => {
                self.runs[at].1 = self.runs[behind].1;
                self.runs.copy_within(behind + 1..self.count, behind);
                self.count -= 1;
            }
            (true, false) => self.runs[at].1 = end32,
            (false, true) => self.runs[at].0 = start32,
            (false, false) => {
                if self.count == RUNS {
                    return false;
                }
                self.runs.copy_within(at..self.count, at + 1);
                self.runs[at] = (start32, end32);
                self.count += 1;
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

    fn header() -> Header {
        Header {
            from: [10, 0, 0, 1].into(),
            to: [10, 0, 0, 2].into(),
            protocol: 17,
            tos: 0,
            body: 20,
            end: 0,
            piece: None,
        }
    }

    fn content(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at * 7 / 3) as u8).collect()
    }

    fn pieces(id: u32, length: usize, step: usize) -> Vec<(Piece, Vec<u8>)> {
        let all = content(length);
        let cut = |(number, part): (usize, &[u8])| {
            let offset = number * step;
            let more = offset + part.len() < length;
            (Piece { id, offset, more }, part.to_vec())
        };
        all.chunks(step).enumerate().map(cut).collect()
    }

    struct Fixture {
        reassembly: Reassembly,
        counters: Counters,
    }

    impl Fixture {
        fn new(count: u32) -> Self {
            Self {
                reassembly: Reassembly::new(true, count, 65_515, 1_000),
                counters: Counters::default(),
            }
        }

        fn give(&mut self, (piece, payload): &(Piece, Vec<u8>), now: Nanos) -> Option<Vec<u8>> {
            let Self {
                reassembly,
                counters,
            } = self;
            match reassembly.input(&header(), *piece, payload, now, counters) {
                Outcome::Waiting => None,
                Outcome::Whole(buffer, length, protocol) => {
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
            let mut parts = pieces(7, length, step);
            let mut random = fastrand::Rng::with_seed(seed);
            // Fewer than the separate runs allowed, in any order.
            prop_assume!(parts.len() <= 2 * RUNS);
            random.shuffle(&mut parts);
            let mut fixture = Fixture::new(1);
            let last = parts.len() - 1;
            for (number, part) in parts.iter().enumerate() {
                let whole = fixture.give(part, 0);
                prop_assert_eq!(whole.is_some(), number == last);
                if let Some(whole) = whole {
                    prop_assert_eq!(whole, content(length));
                } else if random.bool() {
                    prop_assert!(fixture.give(part, 0).is_none());
                }
            }
            prop_assert_eq!(fixture.counters.ip.reassembly_errors, 0);
        }
    }

    #[test]
    fn what_overlaps_is_given_up() {
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
            let piece = |offset, more| Piece { id, offset, more };
            let make = |(offset, length, more): (usize, usize, bool), fill: u8| {
                (piece(offset, more), vec![fill; length])
            };
            let before = fixture.counters.ip.reassembly_errors;
            assert!(fixture.give(&make(first, 1), 0).is_none());
            assert!(fixture.give(&make(second, 2), 0).is_none());
            assert_eq!(
                fixture.counters.ip.reassembly_errors,
                before + 1,
                "{first:?} {second:?}"
            );
        }
        // The one buffer is free again: a valid datagram is reassembled.
        let whole = pieces(2, 3000, 1480);
        assert!(whole.iter().any(|part| fixture.give(part, 0).is_some()));
    }

    #[test]
    fn what_misses_a_piece_is_given_up_in_time() {
        let mut fixture = Fixture::new(2);
        for (id, now) in [(0, 0), (1, 400)] {
            fixture.give(&pieces(id, 3000, 1480)[0], now);
        }
        assert_eq!(fixture.reassembly.next_deadline(), Some(1_000));
        let rest = |id: u32| pieces(id, 3000, 1480).split_off(1);
        assert!(
            rest(0)
                .iter()
                .all(|part| fixture.give(part, 1_000).is_none())
        );
        assert_eq!(fixture.counters.ip.reassembly_timeouts, 1);
        // Its remaining fragments take no buffer.
        assert_eq!(fixture.counters.ip.reassembly_late, 2);
        assert!(
            rest(1)
                .iter()
                .any(|part| fixture.give(part, 1_000).is_some())
        );
        assert_eq!(fixture.counters.ip.reassembly_ok, 1);
    }

    /// A fragment in eight is lost: each incomplete datagram would keep its buffer until the
    /// timeout.
    #[test]
    fn losses_do_not_stop_what_comes_after() {
        let mut fixture = Fixture::new(2);
        let mut whole = 0;
        for id in 0..100 {
            for (number, part) in pieces(id, 3000, 1480).iter().enumerate() {
                if (id as usize * 3 + number) % 8 != 7 {
                    whole += u32::from(fixture.give(part, 0).is_some());
                }
            }
        }
        assert_eq!(whole, 63);
        let ip = fixture.counters.ip;
        assert_eq!((ip.reassembly_ok, ip.reassembly_evicted), (63, 36));
        assert_eq!((ip.reassembly_no_buffer, ip.reassembly_timeouts), (0, 0));
    }

    #[test]
    fn the_oldest_makes_room() {
        let mut fixture = Fixture::new(2);
        for (id, now) in [(1, 0), (2, 10), (3, 20)] {
            fixture.give(&pieces(id, 3000, 1480)[0], now);
        }
        let mut finish = |id: u32| {
            let rest = pieces(id, 3000, 1480).split_off(1);
            rest.iter().any(|part| fixture.give(part, 30).is_some())
        };
        assert_eq!([1, 2, 3].map(&mut finish), [false, true, true]);
        assert_eq!(fixture.counters.ip.reassembly_evicted, 1);
    }

    /// Complete datagrams that were not read yet are never dropped.
    #[test]
    fn a_buffer_that_is_lent_stays_so() {
        let mut fixture = Fixture::new(1);
        let Fixture {
            reassembly,
            counters,
        } = &mut fixture;
        for (piece, payload) in pieces(1, 3000, 1480) {
            reassembly.input(&header(), piece, &payload, 0, counters);
        }
        for (piece, payload) in pieces(2, 3000, 1480) {
            let outcome = reassembly.input(&header(), piece, &payload, 0, counters);
            assert_eq!(outcome, Outcome::Waiting);
        }
        assert_eq!(counters.ip.reassembly_no_buffer, 3);
        assert_eq!(reassembly.bytes(0)[..3000], content(3000));
    }

    #[test]
    fn a_late_duplicate_takes_no_buffer() {
        let mut fixture = Fixture::new(1);
        let first = pieces(1, 3000, 1480);
        assert!(first.iter().any(|part| fixture.give(part, 0).is_some()));
        assert!(fixture.give(&first[1], 10).is_none());
        assert_eq!(fixture.counters.ip.reassembly_late, 1);
        fixture.give(&pieces(2, 3000, 1480)[0], 20);
        assert_eq!(fixture.counters.ip.reassembly_evicted, 0);
        // The same number later belongs to another datagram.
        let again = pieces(1, 3000, 1480);
        assert!(again.iter().any(|part| fixture.give(part, 1_000).is_some()));
    }

    #[test]
    fn what_is_too_long_or_odd_is_refused() {
        let mut fixture = Fixture::new(1);
        let of = |id, offset, more| Piece { id, offset, more };
        let place = |offset, more| of(1, offset, more);
        for part in [
            (of(3, 65_512, true), vec![0; 8]),
            (of(4, 0, true), vec![0; 9]),
            (of(5, 8, false), vec![]),
        ] {
            assert!(fixture.give(&part, 0).is_none());
        }
        let counted = &fixture.counters.ip;
        assert_eq!(
            (counted.reassembly_too_long, counted.reassembly_errors),
            (1, 2)
        );
        // A datagram with a fragment beyond the limit keeps no buffer from the next one.
        assert!(fixture.give(&(place(0, true), vec![0; 16]), 0).is_none());
        assert!(
            fixture
                .give(&(place(65_512, true), vec![0; 64]), 0)
                .is_none()
        );
        let mut whole = pieces(2, 3000, 1480).into_iter();
        assert!(whole.any(|part| fixture.give(&part, 0).is_some()));
    }
}
