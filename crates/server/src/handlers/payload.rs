//! Payload buffer that is sent repeatedly.

use linerate_protocol::iperf2::WriteTimestamper;
use linerate_sys::clock;
use linerate_sys::clock::Nanos;

/// Payload that is sent repeatedly; a partial send resumes where it stopped.
#[derive(Clone, Debug)]
pub struct PayloadRing {
    bytes: Vec<u8>,
    position: usize,
    /// Headers written over the start of each round, with the number of rounds sent.
    stamps: Option<(WriteTimestamper, u32)>,
    /// Offset of the wall clock from the monotonic clock, for these headers.
    wall_offset_ns: Nanos,
}

impl PayloadRing {
    /// Creates a ring of these bytes.
    ///
    /// # Panics
    /// If `bytes` is empty.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        assert!(!bytes.is_empty(), "the payload is empty");
        Self {
            bytes,
            position: 0,
            stamps: None,
            wall_offset_ns: 0,
        }
    }

    /// Writes number and time at the start of each round.
    #[must_use]
    pub fn with_write_stamps(mut self, stamps: Option<WriteTimestamper>) -> Self {
        self.stamps = stamps.map(|stamps| (stamps, 0));
        self.wall_offset_ns = clock::wall_offset();
        self
    }

    /// Creates a ring of random bytes, which cannot be compressed on the path.
    #[must_use]
    pub fn random(bytes: usize) -> Self {
        let mut payload = vec![0; bytes.max(1)];
        fastrand::fill(&mut payload);
        Self::new(payload)
    }

    /// Returns the next bytes, at most `at_most`.
    #[must_use]
    pub fn next(&mut self, at_most: usize) -> &[u8] {
        if let (0, Some((stamps, rounds))) = (self.position, &mut self.stamps) {
            stamps.stamp(
                &mut self.bytes,
                rounds.wrapping_add(1),
                clock::now().wrapping_add(self.wall_offset_ns),
            );
        }
        let rest = &self.bytes[self.position..];
        &rest[..rest.len().min(at_most)]
    }

    /// Advances by `bytes`, which were sent.
    pub fn advance(&mut self, bytes: usize) {
        self.position += bytes;
        if self.position >= self.bytes.len() {
            self.position %= self.bytes.len();
            if let Some((_, rounds)) = &mut self.stamps {
                *rounds = rounds.wrapping_add(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_send_resumes() {
        let mut ring = PayloadRing::new(b"abc".to_vec());
        let mut out = Vec::new();
        for at_most in [2, 2, 5, 1] {
            let some = ring.next(at_most).to_vec();
            ring.advance(some.len());
            out.extend(some);
        }
        assert_eq!(out, b"abcabca"[..out.len()]);
        assert!(out.len() >= 6);
    }
}
