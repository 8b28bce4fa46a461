//! Payload buffer that is sent repeatedly.

use linerate_dialect::iperf2::WriteStamps;
use linerate_host::sys::clock;

/// Payload that is sent repeatedly; a partial send resumes where it stopped.
#[derive(Clone, Debug)]
pub struct Ring {
    bytes: Vec<u8>,
    at: usize,
    /// Headers written over the start of each round, with the number of rounds sent.
    stamps: Option<(WriteStamps, u32)>,
}

impl Ring {
    /// Creates a ring of these bytes.
    ///
    /// # Panics
    /// If `bytes` is empty.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        assert!(!bytes.is_empty(), "nothing cannot be sent");
        Self {
            bytes,
            at: 0,
            stamps: None,
        }
    }

    /// Writes number and time at the start of each round.
    #[must_use]
    pub fn stamped(mut self, stamps: Option<WriteStamps>) -> Self {
        self.stamps = stamps.map(|stamps| (stamps, 0));
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
        if let (0, Some((stamps, rounds))) = (self.at, &mut self.stamps) {
            stamps.stamp(&mut self.bytes, rounds.wrapping_add(1), clock::real());
        }
        let rest = &self.bytes[self.at..];
        &rest[..rest.len().min(at_most)]
    }

    /// Advances by `bytes`, which were sent.
    pub fn sent(&mut self, bytes: usize) {
        self.at += bytes;
        if self.at >= self.bytes.len() {
            self.at %= self.bytes.len();
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
    fn it_goes_on_where_it_stopped() {
        let mut ring = Ring::new(b"abc".to_vec());
        let mut out = Vec::new();
        for want in [2, 2, 5, 1] {
            let some = ring.next(want).to_vec();
            ring.sent(some.len());
            out.extend(some);
        }
        assert_eq!(out, b"abcabca"[..out.len()]);
        assert!(out.len() >= 6);
    }
}
