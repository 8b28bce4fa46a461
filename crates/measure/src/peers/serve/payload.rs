//! What is sent: some bytes, over and over.

use linerate_dialect::iperf2::WriteStamps;
use linerate_host::sys::clock;

/// Bytes that are sent again and again; whoever sends less than all goes on where it stopped.
#[derive(Clone, Debug)]
pub struct Ring {
    bytes: Vec<u8>,
    at: usize,
    /// What is written over its beginning, and how often that was sent.
    stamps: Option<(WriteStamps, u32)>,
}

impl Ring {
    /// A ring of these bytes.
    ///
    /// # Panics
    /// When there are none.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        assert!(!bytes.is_empty(), "nothing cannot be sent");
        Self {
            bytes,
            at: 0,
            stamps: None,
        }
    }

    /// The same where each round begins with its number and time.
    #[must_use]
    pub fn stamped(mut self, stamps: Option<WriteStamps>) -> Self {
        self.stamps = stamps.map(|stamps| (stamps, 0));
        self
    }

    /// Bytes that nothing along the way can shorten, unlike zeros.
    #[must_use]
    pub fn random(bytes: usize) -> Self {
        let mut payload = vec![0; bytes.max(1)];
        fastrand::fill(&mut payload);
        Self::new(payload)
    }

    /// The next bytes, at most so many.
    #[must_use]
    pub fn next(&mut self, at_most: usize) -> &[u8] {
        if let (0, Some((stamps, rounds))) = (self.at, &mut self.stamps) {
            stamps.stamp(&mut self.bytes, rounds.wrapping_add(1), clock::real());
        }
        let rest = &self.bytes[self.at..];
        &rest[..rest.len().min(at_most)]
    }

    /// So many of them were sent.
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
