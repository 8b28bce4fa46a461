//! Content of verified payload: cheap to write and to compare, different for every flow and at
//! every position.
//!
//! The word at byte 8i of a stream is `key + i * STEP` (wrapping, little-endian). The key is
//! derived from the flow's token, which both ends have. Words do not repeat within 2^64 of them, so
//! changed, shifted, swapped, repeated and missing bytes are detected. Each datagram has its own
//! key, derived from the flow's key, its number and its time, so that its header is verified too.
//! The pattern is no protection against forgery.

use std::hint::black_box;

use linerate_protocol::control::FlowToken;
use linerate_record::facts::Role;
use linerate_record::record::{ContentMismatch, VerificationCost};
use linerate_sys::clock;

/// Difference of consecutive words: 2^64 over the golden ratio, whose multiples are spread evenly.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

const WORD_BYTES: usize = 8;

/// Words compared between two checks of the result: 4 KiB.
const BLOCK_WORDS: usize = 512;

/// Bytes of a mismatch that are reported.
const SHOWN_BYTES: usize = 16;

/// Content of one flow, or of one datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadPattern {
    key: u64,
}

/// Mismatch between payload and pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatternMismatch {
    /// Offset of the first wrong byte in the compared slice.
    pub offset: usize,
    /// Number of wrong bytes.
    pub bytes: u64,
}

impl PayloadPattern {
    /// Returns the content of the flow with this token.
    #[must_use]
    pub fn from_token(token: FlowToken) -> Self {
        let mut key = 0;
        for chunk in token.0.chunks(WORD_BYTES) {
            let mut word = [0; WORD_BYTES];
            word[..chunk.len()].copy_from_slice(chunk);
            key ^= u64::from_le_bytes(word);
        }
        Self { key }
    }

    /// Returns the content of a datagram of this flow, after its header.
    #[inline]
    #[must_use]
    pub fn for_datagram(self, sequence: u64, sent_ns: u64) -> Self {
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
    fn word_at(self, number: u64) -> u64 {
        self.key.wrapping_add(number.wrapping_mul(STEP))
    }

    /// Returns the byte at an offset.
    #[inline]
    #[must_use]
    pub fn byte_at(self, offset: u64) -> u8 {
        self.word_at(offset / WORD_BYTES as u64).to_le_bytes()
            [(offset % WORD_BYTES as u64) as usize]
    }

    /// Returns the number of bytes before the next word boundary.
    #[inline]
    fn head_length(offset: u64, length: usize) -> usize {
        let head = (offset.wrapping_neg() % WORD_BYTES as u64) as usize;
        head.min(length)
    }

    /// Writes the content from `offset` on.
    #[inline]
    pub fn fill(self, offset: u64, payload: &mut [u8]) {
        let (head, rest) = payload.split_at_mut(Self::head_length(offset, payload.len()));
        self.fill_bytes(offset, head);
        let start = offset.wrapping_add(head.len() as u64);
        let mut word = self.word_at(start / WORD_BYTES as u64);
        let (words, tail) = rest.as_chunks_mut::<WORD_BYTES>();
        let count = words.len();
        for slot in words {
            *slot = word.to_le_bytes();
            word = word.wrapping_add(STEP);
        }
        self.fill_bytes(start.wrapping_add((count * WORD_BYTES) as u64), tail);
    }

    fn fill_bytes(self, offset: u64, bytes: &mut [u8]) {
        for (slot, index) in bytes.iter_mut().zip(0..) {
            *slot = self.byte_at(offset.wrapping_add(index));
        }
    }

    /// Compares received payload that starts at `offset`; `None` when every byte is right.
    #[inline]
    #[must_use]
    pub fn check(self, offset: u64, payload: &[u8]) -> Option<PatternMismatch> {
        let (head, rest) = payload.split_at(Self::head_length(offset, payload.len()));
        let start = offset.wrapping_add(head.len() as u64);
        let (words, tail) = rest.as_chunks::<WORD_BYTES>();
        let mut word = self.word_at(start / WORD_BYTES as u64);
        let mut wrong = self.differs(offset, head);
        for block in words.chunks(BLOCK_WORDS) {
            let mut difference = 0;
            for received in block {
                // Without a branch or early exit, so that the loop is vectorised.
                difference |= u64::from_le_bytes(*received) ^ word;
                word = word.wrapping_add(STEP);
            }
            wrong |= difference != 0;
        }
        let end = start.wrapping_add((words.len() * WORD_BYTES) as u64);
        wrong |= self.differs(end, tail);
        wrong.then(|| self.find_mismatch(offset, payload)).flatten()
    }

    fn differs(self, offset: u64, bytes: &[u8]) -> bool {
        let mut pairs = bytes.iter().zip(0..);
        pairs.any(|(&byte, at)| byte != self.byte_at(offset.wrapping_add(at)))
    }

    /// Compares byte by byte and returns the mismatch.
    #[cold]
    fn find_mismatch(self, offset: u64, payload: &[u8]) -> Option<PatternMismatch> {
        let mut first = None;
        let mut bytes = 0;
        for (at, &byte) in payload.iter().enumerate() {
            if byte != self.byte_at(offset.wrapping_add(at as u64)) {
                first.get_or_insert(at);
                bytes += 1;
            }
        }
        first.map(|at| PatternMismatch { offset: at, bytes })
    }
}

/// Verification state of a receiving flow.
#[derive(Debug)]
pub struct PayloadVerifier {
    pattern: PayloadPattern,
    /// Bytes that differ, are missing in a datagram, or are excess.
    pub mismatched: u64,
    /// First mismatch.
    pub first_mismatch: Option<ContentMismatch>,
}

impl PayloadVerifier {
    /// Creates the state for a flow with this content.
    #[must_use]
    pub fn new(pattern: PayloadPattern) -> Self {
        Self {
            pattern,
            mismatched: 0,
            first_mismatch: None,
        }
    }

    /// Compares a part of the stream that starts at `offset`.
    #[inline]
    pub fn check_stream(&mut self, offset: u64, payload: &[u8]) {
        if let Some(difference) = self.pattern.check(offset, payload) {
            self.record_mismatch(self.pattern, None, offset, payload, difference);
        }
    }

    /// Compares a datagram of expected size `length`. `header` has its number and time, and
    /// occupies the first `skip` bytes.
    #[inline]
    pub fn check_datagram(
        &mut self,
        header: Option<(u64, u64)>,
        skip: usize,
        payload: &[u8],
        length: usize,
    ) {
        let pattern = match header {
            Some((sequence, sent_ns)) => self.pattern.for_datagram(sequence, sent_ns),
            None => self.pattern,
        };
        let content = &payload[skip.min(payload.len())..];
        let mut difference = pattern.check(skip as u64, content);
        if payload.len() != length {
            let shorter = payload.len().min(length);
            let length_mismatch = PatternMismatch {
                offset: shorter.saturating_sub(skip),
                bytes: payload.len().abs_diff(length) as u64,
            };
            difference = Some(difference.map_or(length_mismatch, |found| PatternMismatch {
                offset: found.offset.min(length_mismatch.offset),
                bytes: found.bytes.max(length_mismatch.bytes),
            }));
        }
        if let Some(difference) = difference {
            let number = header.map(|(sequence, _)| sequence);
            self.record_mismatch(pattern, number, skip as u64, content, difference);
        }
    }

    #[cold]
    fn record_mismatch(
        &mut self,
        pattern: PayloadPattern,
        datagram: Option<u64>,
        start: u64,
        payload: &[u8],
        difference: PatternMismatch,
    ) {
        self.mismatched += difference.bytes;
        if self.first_mismatch.is_some() {
            return;
        }
        let offset = start + difference.offset as u64;
        let actual = &payload[difference.offset.min(payload.len())..];
        let actual = &actual[..actual.len().min(SHOWN_BYTES)];
        let mut expected = [0; SHOWN_BYTES];
        pattern.fill(offset, &mut expected);
        self.first_mismatch = Some(ContentMismatch {
            offset,
            datagram,
            expected: hex(&expected[..actual.len().max(1)]),
            received: hex(actual),
        });
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        write!(text, "{byte:02x}").expect("writing to a String cannot fail");
    }
    text
}

/// Measures the cost of writing and comparing content on this CPU: best of several rounds over a
/// buffer of the size of a receive call.
#[must_use]
pub fn measure_cost(role: Role, sends: bool, receives: bool) -> VerificationCost {
    const BYTES: usize = 256 << 10;
    const ROUNDS: usize = 8;
    let pattern = PayloadPattern { key: 1 };
    let mut buffer = vec![0; BYTES];
    let (mut fill, mut check) = (u64::MAX, u64::MAX);
    for _ in 0..ROUNDS {
        let start_ns = clock::now();
        pattern.fill(0, black_box(&mut buffer));
        let filled = clock::now();
        black_box(pattern.check(0, black_box(&buffer)));
        let checked = clock::now();
        fill = fill.min(filled - start_ns);
        check = check.min(checked - filled);
    }
    let per_kib = |ns: u64| ns as f64 / (BYTES >> 10) as f64;
    VerificationCost {
        role,
        fill_ns_per_kib: sends.then(|| per_kib(fill)),
        check_ns_per_kib: receives.then(|| per_kib(check)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FLOW: PayloadPattern = PayloadPattern {
        key: 0x0123_4567_89ab_cdef,
    };

    #[test]
    fn both_ends_derive_it_from_the_token() {
        let mut bytes = *b"0123456789abcdef";
        let one = PayloadPattern::from_token(FlowToken(bytes));
        assert_eq!(PayloadPattern::from_token(FlowToken(bytes)), one);
        bytes[15] ^= 1;
        assert_ne!(PayloadPattern::from_token(FlowToken(bytes)), one);
    }

    #[test]
    fn datagrams_differ_by_number_and_by_time() {
        let one = FLOW.for_datagram(7, 1_000);
        assert_ne!(one, FLOW.for_datagram(8, 1_000));
        assert_ne!(one, FLOW.for_datagram(7, 1_001));
    }

    #[test]
    fn swapped_and_missing_bytes_are_detected() {
        let mut payload = vec![0; 8_192];
        FLOW.fill(40, &mut payload);
        let mut swapped = payload.clone();
        swapped.rotate_left(4_096);
        // Single bytes repeat sooner than words, so the first byte may match by chance.
        assert!(FLOW.check(40, &swapped).unwrap().offset < WORD_BYTES);
        // 4 KiB are missing in the middle.
        let shortened = [&payload[..100], &payload[4_196..]].concat();
        let mismatch = FLOW.check(40, &shortened).unwrap();
        assert!((100..108).contains(&mismatch.offset), "{mismatch:?}");
    }

    #[test]
    fn a_mismatch_is_reported_with_the_expected_bytes() {
        let mut verifier = PayloadVerifier::new(FLOW);
        let mut payload = vec![0; 5_000];
        FLOW.fill(1_000, &mut payload);
        verifier.check_stream(1_000, &payload);
        assert_eq!((verifier.mismatched, &verifier.first_mismatch), (0, &None));
        payload[4_321] ^= 0x40;
        payload[4_999] ^= 0x01;
        verifier.check_stream(1_000, &payload);
        let first = verifier.first_mismatch.clone().unwrap();
        assert_eq!(verifier.mismatched, 2);
        assert_eq!((first.offset, first.datagram), (5_321, None));
        assert_eq!(first.expected.len(), 32);
        assert_eq!(&first.expected[..2], format!("{:02x}", FLOW.byte_at(5_321)));
        assert_eq!(
            &first.received[..2],
            format!("{:02x}", FLOW.byte_at(5_321) ^ 0x40)
        );
        assert_eq!(first.expected[2..], first.received[2..]);
    }

    #[test]
    fn datagrams_have_their_length() {
        let content = FLOW.for_datagram(3, 9);
        let mut payload = vec![0; 100];
        content.fill(16, &mut payload[16..]);
        let check = |payload: &[u8], length| {
            let mut verifier = PayloadVerifier::new(FLOW);
            verifier.check_datagram(Some((3, 9)), 16, payload, length);
            (verifier.mismatched, verifier.first_mismatch)
        };
        assert_eq!(check(&payload, 100), (0, None));
        let (count, first) = check(&payload[..90], 100);
        assert_eq!((count, first.unwrap().offset), (10, 90));
        let (count, first) = check(&payload, 90);
        assert_eq!((count, first.unwrap().offset), (10, 90));
        let (count, first) = check(&payload[..10], 100);
        assert_eq!((count, first.unwrap().datagram), (90, Some(3)));
        // Another number in the header: the content does not match.
        let mut verifier = PayloadVerifier::new(FLOW);
        verifier.check_datagram(Some((4, 9)), 16, &payload, 100);
        assert!(verifier.mismatched > 70);
    }

    proptest! {
        #[test]
        fn every_byte_follows_the_pattern(offset in any::<u64>(), length in 0usize..3_000) {
            let mut payload = vec![0; length];
            FLOW.fill(offset, &mut payload);
            for (at, &byte) in payload.iter().enumerate() {
                prop_assert_eq!(byte, FLOW.byte_at(offset.wrapping_add(at as u64)));
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
            prop_assert_eq!(FLOW.check(offset, &payload), Some(PatternMismatch { offset: at, bytes: 1 }));
        }
    }
}
