//! Content of verified payload: cheap to write and to compare, different for every flow and at
//! every position.
//!
//! The word at byte 8i of a stream is `key + i * STEP` (wrapping, little-endian). The key is
//! derived from the flow's token, which both ends have. Words do not repeat within 2^64 of them, so
//! changed, shifted, swapped, repeated and missing bytes are detected. Each datagram has its own
//! key, derived from the flow's key, its number and its time, so that its header is verified too.
//! The pattern is no protection against forgery.

use std::hint::black_box;

use linerate_dialect::control::Token;
use linerate_host::sys::clock;
use linerate_metric::facts::Role;
use linerate_metric::record::{Mismatch, Verification};

/// Difference of consecutive words: 2^64 over the golden ratio, whose multiples are spread evenly.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

const WORD: usize = 8;

/// Words compared between two checks of the result: 4 KiB.
const BLOCK: usize = 512;

/// Bytes of a mismatch that are reported.
const SHOWN: usize = 16;

/// Content of one flow, or of one datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    key: u64,
}

/// Mismatch between payload and pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Offset of the first wrong byte in the compared slice.
    pub at: usize,
    /// Number of wrong bytes.
    pub bytes: u64,
}

impl Pattern {
    /// Returns the content of the flow with this token.
    #[must_use]
    pub fn of(token: Token) -> Self {
        let mut key = 0;
        for half in token.0.chunks(WORD) {
            let mut word = [0; WORD];
            word[..half.len()].copy_from_slice(half);
            key ^= u64::from_le_bytes(word);
        }
        Self { key }
    }

    /// Returns the content of a datagram of this flow, after its header.
    #[inline]
    #[must_use]
    pub fn datagram(self, sequence: u64, sent_ns: u64) -> Self {
        // Odd factors: distinct numbers, and distinct times, give distinct keys.
        const OF_SEQUENCE: u64 = 0xc2b2_ae3d_27d4_eb4f;
        const OF_TIME: u64 = 0x1656_67b1_9e37_79f9;
        Self {
            key: self
                .key
                .wrapping_add(sequence.wrapping_mul(OF_SEQUENCE))
                .wrapping_add(sent_ns.wrapping_mul(OF_TIME)),
        }
    }

    #[inline]
    fn word(self, number: u64) -> u64 {
        self.key.wrapping_add(number.wrapping_mul(STEP))
    }

    /// Returns the byte at an offset.
    #[inline]
    #[must_use]
    pub fn byte(self, offset: u64) -> u8 {
        self.word(offset / WORD as u64).to_le_bytes()[(offset % WORD as u64) as usize]
    }

    /// Returns the number of bytes before the next word boundary.
    #[inline]
    fn head(offset: u64, length: usize) -> usize {
        let head = (offset.wrapping_neg() % WORD as u64) as usize;
        head.min(length)
    }

    /// Writes the content from `offset` on.
    #[inline]
    pub fn fill(self, offset: u64, payload: &mut [u8]) {
        let (head, rest) = payload.split_at_mut(Self::head(offset, payload.len()));
        self.fill_bytes(offset, head);
        let start = offset.wrapping_add(head.len() as u64);
        let mut word = self.word(start / WORD as u64);
        let (words, tail) = rest.as_chunks_mut::<WORD>();
        let count = words.len();
        for place in words {
            *place = word.to_le_bytes();
            word = word.wrapping_add(STEP);
        }
        self.fill_bytes(start.wrapping_add((count * WORD) as u64), tail);
    }

    fn fill_bytes(self, offset: u64, bytes: &mut [u8]) {
        for (place, at) in bytes.iter_mut().zip(0..) {
            *place = self.byte(offset.wrapping_add(at));
        }
    }

    /// Compares received payload that starts at `offset`; `None` when every byte is right.
    #[inline]
    #[must_use]
    pub fn check(self, offset: u64, payload: &[u8]) -> Option<Difference> {
        let (head, rest) = payload.split_at(Self::head(offset, payload.len()));
        let start = offset.wrapping_add(head.len() as u64);
        let (words, tail) = rest.as_chunks::<WORD>();
        let mut word = self.word(start / WORD as u64);
        let mut wrong = self.differs(offset, head);
        for block in words.chunks(BLOCK) {
            let mut difference = 0;
            for found in block {
                // Without a branch or early exit, so that the loop is vectorised.
                difference |= u64::from_le_bytes(*found) ^ word;
                word = word.wrapping_add(STEP);
            }
            wrong |= difference != 0;
        }
        let end = start.wrapping_add((words.len() * WORD) as u64);
        wrong |= self.differs(end, tail);
        wrong.then(|| self.locate(offset, payload)).flatten()
    }

    fn differs(self, offset: u64, bytes: &[u8]) -> bool {
        let mut found = bytes.iter().zip(0..);
        found.any(|(&byte, at)| byte != self.byte(offset.wrapping_add(at)))
    }

    /// Compares byte by byte and returns the mismatch.
    #[cold]
    fn locate(self, offset: u64, payload: &[u8]) -> Option<Difference> {
        let mut first = None;
        let mut bytes = 0;
        for (at, &byte) in payload.iter().enumerate() {
            if byte != self.byte(offset.wrapping_add(at as u64)) {
                first.get_or_insert(at);
                bytes += 1;
            }
        }
        first.map(|at| Difference { at, bytes })
    }
}

/// Verification state of a receiving flow.
#[derive(Debug)]
pub struct Verifier {
    pattern: Pattern,
    /// Bytes that differ, are missing in a datagram, or are excess.
    pub mismatched: u64,
    /// First mismatch.
    pub first: Option<Mismatch>,
}

impl Verifier {
    /// Creates the state for a flow with this content.
    #[must_use]
    pub fn new(pattern: Pattern) -> Self {
        Self {
            pattern,
            mismatched: 0,
            first: None,
        }
    }

    /// Compares a part of the stream that starts at `offset`.
    #[inline]
    pub fn stream(&mut self, offset: u64, payload: &[u8]) {
        if let Some(difference) = self.pattern.check(offset, payload) {
            self.note(self.pattern, None, offset, payload, difference);
        }
    }

    /// Compares a datagram of expected size `length`. `header` has its number and time, and
    /// occupies the first `skip` bytes.
    #[inline]
    pub fn datagram(
        &mut self,
        header: Option<(u64, u64)>,
        skip: usize,
        payload: &[u8],
        length: usize,
    ) {
        let pattern = match header {
            Some((sequence, sent_ns)) => self.pattern.datagram(sequence, sent_ns),
            None => self.pattern,
        };
        let content = &payload[skip.min(payload.len())..];
        let mut difference = pattern.check(skip as u64, content);
        if payload.len() != length {
            let shorter = payload.len().min(length);
            let cut = Difference {
                at: shorter.saturating_sub(skip),
                bytes: payload.len().abs_diff(length) as u64,
            };
            difference = Some(difference.map_or(cut, |found| Difference {
                at: found.at.min(cut.at),
                bytes: found.bytes.max(cut.bytes),
            }));
        }
        if let Some(difference) = difference {
            let number = header.map(|(sequence, _)| sequence);
            self.note(pattern, number, skip as u64, content, difference);
        }
    }

    #[cold]
    fn note(
        &mut self,
        pattern: Pattern,
        datagram: Option<u64>,
        start: u64,
        payload: &[u8],
        difference: Difference,
    ) {
        self.mismatched += difference.bytes;
        if self.first.is_some() {
            return;
        }
        let offset = start + difference.at as u64;
        let found = &payload[difference.at.min(payload.len())..];
        let found = &found[..found.len().min(SHOWN)];
        let mut expected = [0; SHOWN];
        pattern.fill(offset, &mut expected);
        self.first = Some(Mismatch {
            offset,
            datagram,
            expected: hex(&expected[..found.len().max(1)]),
            found: hex(found),
        });
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        write!(text, "{byte:02x}").expect("a String takes everything");
    }
    text
}

/// Measures the cost of writing and comparing content on this CPU: best of several rounds over a
/// buffer of the size of a receive call.
#[must_use]
pub fn cost(role: Role, sends: bool, receives: bool) -> Verification {
    const BYTES: usize = 256 << 10;
    const ROUNDS: usize = 8;
    let pattern = Pattern { key: 1 };
    let mut buffer = vec![0; BYTES];
    let (mut fill, mut check) = (u64::MAX, u64::MAX);
    for _ in 0..ROUNDS {
        let began = clock::now();
        pattern.fill(0, black_box(&mut buffer));
        let filled = clock::now();
        black_box(pattern.check(0, black_box(&buffer)));
        let checked = clock::now();
        fill = fill.min(filled - began);
        check = check.min(checked - filled);
    }
    let per_kib = |ns: u64| ns as f64 / (BYTES >> 10) as f64;
    Verification {
        role,
        fill_ns_per_kib: sends.then(|| per_kib(fill)),
        check_ns_per_kib: receives.then(|| per_kib(check)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FLOW: Pattern = Pattern {
        key: 0x0123_4567_89ab_cdef,
    };

    #[test]
    fn both_ends_make_it_of_the_token() {
        let mut bytes = *b"0123456789abcdef";
        let one = Pattern::of(Token(bytes));
        assert_eq!(Pattern::of(Token(bytes)), one);
        bytes[15] ^= 1;
        assert_ne!(Pattern::of(Token(bytes)), one);
    }

    #[test]
    fn datagrams_differ_by_number_and_by_time() {
        let one = FLOW.datagram(7, 1_000);
        assert_ne!(one, FLOW.datagram(8, 1_000));
        assert_ne!(one, FLOW.datagram(7, 1_001));
    }

    #[test]
    fn what_was_swapped_or_left_out_is_told() {
        let mut payload = vec![0; 8_192];
        FLOW.fill(40, &mut payload);
        let mut swapped = payload.clone();
        swapped.rotate_left(4_096);
        // Single bytes repeat sooner than words, so the first byte may match by chance.
        assert!(FLOW.check(40, &swapped).unwrap().at < WORD);
        // 4 KiB are missing in the middle.
        let cut = [&payload[..100], &payload[4_196..]].concat();
        let found = FLOW.check(40, &cut).unwrap();
        assert!((100..108).contains(&found.at), "{found:?}");
    }

    #[test]
    fn a_difference_is_told_with_what_was_expected() {
        let mut verifier = Verifier::new(FLOW);
        let mut payload = vec![0; 5_000];
        FLOW.fill(1_000, &mut payload);
        verifier.stream(1_000, &payload);
        assert_eq!((verifier.mismatched, &verifier.first), (0, &None));
        payload[4_321] ^= 0x40;
        payload[4_999] ^= 0x01;
        verifier.stream(1_000, &payload);
        let first = verifier.first.clone().unwrap();
        assert_eq!(verifier.mismatched, 2);
        assert_eq!((first.offset, first.datagram), (5_321, None));
        assert_eq!(first.expected.len(), 32);
        assert_eq!(&first.expected[..2], format!("{:02x}", FLOW.byte(5_321)));
        assert_eq!(
            &first.found[..2],
            format!("{:02x}", FLOW.byte(5_321) ^ 0x40)
        );
        assert_eq!(first.expected[2..], first.found[2..]);
    }

    #[test]
    fn datagrams_have_their_length() {
        let content = FLOW.datagram(3, 9);
        let mut payload = vec![0; 100];
        content.fill(16, &mut payload[16..]);
        let check = |payload: &[u8], length| {
            let mut verifier = Verifier::new(FLOW);
            verifier.datagram(Some((3, 9)), 16, payload, length);
            (verifier.mismatched, verifier.first)
        };
        assert_eq!(check(&payload, 100), (0, None));
        let (count, first) = check(&payload[..90], 100);
        assert_eq!((count, first.unwrap().offset), (10, 90));
        let (count, first) = check(&payload, 90);
        assert_eq!((count, first.unwrap().offset), (10, 90));
        let (count, first) = check(&payload[..10], 100);
        assert_eq!((count, first.unwrap().datagram), (90, Some(3)));
        // Another number in the header: the content does not match.
        let mut verifier = Verifier::new(FLOW);
        verifier.datagram(Some((4, 9)), 16, &payload, 100);
        assert!(verifier.mismatched > 70);
    }

    #[test]
    fn it_is_vectorised() {
        let cost = cost(Role::Server, true, true);
        let (fill, check) = (cost.fill_ns_per_kib, cost.check_ns_per_kib);
        // Byte by byte it would take 1 ns each; printed only, because the machine may be busy.
        println!("fill {fill:?}, check {check:?} ns per KiB");
        let mut copy = vec![1u8; 256 << 10];
        let source = vec![2u8; 256 << 10];
        let began = clock::now();
        for _ in 0..64 {
            black_box(&mut copy).copy_from_slice(black_box(&source));
        }
        let copied = (clock::now() - began) as f64 / (64.0 * 256.0);
        println!("copy {copied:.1} ns per KiB");
    }

    proptest! {
        #[test]
        fn every_byte_is_as_told(offset in any::<u64>(), length in 0usize..3_000) {
            let mut payload = vec![0; length];
            FLOW.fill(offset, &mut payload);
            for (at, &byte) in payload.iter().enumerate() {
                prop_assert_eq!(byte, FLOW.byte(offset.wrapping_add(at as u64)));
            }
            prop_assert_eq!(FLOW.check(offset, &payload), None);
        }

        #[test]
        fn one_wrong_byte_is_found(
            offset in 0u64..1 << 40,
            length in 1usize..12_000,
            place in any::<prop::sample::Index>(),
            flip in 1u8..,
        ) {
            let at = place.index(length);
            let mut payload = vec![0; length];
            FLOW.fill(offset, &mut payload);
            payload[at] ^= flip;
            prop_assert_eq!(FLOW.check(offset, &payload), Some(Difference { at, bytes: 1 }));
        }
    }
}
