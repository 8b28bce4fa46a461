//! What is sent: some bytes, over and over.

/// Bytes that are sent again and again; whoever sends less than all goes on where it stopped.
#[derive(Clone, Debug)]
pub struct Ring {
    bytes: Vec<u8>,
    at: usize,
}

impl Ring {
    /// A ring of these bytes.
    ///
    /// # Panics
    /// When there are none.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        assert!(!bytes.is_empty(), "nothing cannot be sent");
        Self { bytes, at: 0 }
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
    pub fn next(&self, at_most: usize) -> &[u8] {
        let rest = &self.bytes[self.at..];
        &rest[..rest.len().min(at_most)]
    }

    /// So many of them were sent.
    pub fn sent(&mut self, bytes: usize) {
        self.at = (self.at + bytes) % self.bytes.len();
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
