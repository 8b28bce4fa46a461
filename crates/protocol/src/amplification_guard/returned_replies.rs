//! Datagrams that repeat a recent reply: a sign that the sender replies to every datagram.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

/// Remembered replies: more than the lines after which a chargen server repeats itself (95), and
/// than the datagrams that usually travel between two hosts.
const REPLY_COUNT: usize = 1_024;

/// Compared bytes at the start of a datagram: a sequence number or a time of a client is there.
const HEAD_BYTES: usize = 64;

/// Compared bytes at the end of a datagram.
const TAIL_BYTES: usize = 16;

/// Digests of the last replies of a service.
///
/// Two services that reply to every datagram, and return what they receive, send each other the
/// same datagrams for ever. A client sends something new: its requests have numbers or times.
/// Compared are the first 64 bytes, the last 16, and the length.
///
/// ```
/// use linerate_protocol::amplification_guard::RecentReplies;
///
/// let mut replies = RecentReplies::new(None);
/// let peer = "10.0.0.1:7777".parse().unwrap();
/// let digest = replies.digest(peer, b"request 1");
/// assert!(!replies.contains(digest));
/// replies.insert(digest);
/// assert!(replies.contains(replies.digest(peer, b"request 1")));
/// assert!(!replies.contains(replies.digest(peer, b"request 2")));
/// ```
#[derive(Clone, Debug)]
pub struct RecentReplies {
    digests: Box<[u64]>,
    /// Bytes that the stack writes after the reply was made: they differ in each reply.
    stamped: Option<Range<usize>>,
}

impl RecentReplies {
    /// Creates an empty table; `stamped` are the bytes of a reply in which a stack writes times.
    #[must_use]
    pub fn new(stamped: Option<Range<usize>>) -> Self {
        Self {
            digests: vec![0; REPLY_COUNT].into(),
            stamped,
        }
    }

    /// Returns the digest of a datagram from or to a peer.
    #[inline]
    #[must_use]
    pub fn digest(&self, peer: SocketAddr, datagram: &[u8]) -> u64 {
        let address = match peer.ip() {
            IpAddr::V4(address) => u64::from(address.to_bits()),
            IpAddr::V6(address) => {
                let bits = address.to_bits();
                mix(bits as u64 ^ KEYS[0], (bits >> 64) as u64 ^ KEYS[1])
            }
        };
        let origin = (datagram.len() as u64) << 16 | u64::from(peer.port());
        let mut hash = mix(address ^ KEYS[2], origin ^ KEYS[3]);
        let bytes = datagram.len().min(HEAD_BYTES);
        let mut head = [0; HEAD_BYTES];
        head[..bytes].copy_from_slice(&datagram[..bytes]);
        match &self.stamped {
            Some(stamped) => {
                let end = stamped.end.min(HEAD_BYTES);
                head[stamped.start.min(end)..end].fill(0);
            }
            None => {
                let rest = &datagram[bytes..];
                let tail = &rest[rest.len().saturating_sub(TAIL_BYTES)..];
                let mut padded = [0; TAIL_BYTES];
                padded[..tail.len()].copy_from_slice(tail);
                hash ^= mix(word(&padded, 0) ^ KEYS[4], word(&padded, 8) ^ KEYS[5]);
            }
        }
        // The products do not depend on each other, so that they take little time.
        for (position, key) in (0..HEAD_BYTES).step_by(16).zip(KEYS) {
            let words = (word(&head, position), word(&head, position + 8));
            hash = hash.rotate_left(7) ^ mix(words.0 ^ key, words.1 ^ key.rotate_left(32));
        }
        // 0 marks an empty place.
        mix(hash ^ KEYS[0], KEYS[1]) | 1
    }

    /// Returns whether a digest is that of a recent reply.
    #[inline]
    #[must_use]
    pub fn contains(&self, digest: u64) -> bool {
        self.digests[place(digest)] == digest
    }

    /// Adds the digest of a reply.
    #[inline]
    pub fn insert(&mut self, digest: u64) {
        self.digests[place(digest)] = digest;
    }
}

/// The upper bits: they depend on all bytes.
fn place(digest: u64) -> usize {
    (digest >> (64 - REPLY_COUNT.ilog2())) as usize
}

/// Odd constants without a pattern. A sender that finds collisions only gets fewer replies.
const KEYS: [u64; 6] = [
    0x9e37_79b9_7f4a_7c15,
    0xd1b5_4a32_d192_ed03,
    0xa076_1d64_78bd_642f,
    0xe703_7ed1_a0b4_28db,
    0x8ebc_6af0_9c88_c6e3,
    0x5899_65cc_7537_4cc3,
];

/// Both halves of the product.
#[inline]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[inline]
fn word(bytes: &[u8], position: usize) -> u64 {
    let bytes = bytes[position..position + 8].try_into();
    u64::from_le_bytes(bytes.expect("8 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No request of a client is taken for a reply, however long the test is.
    #[test]
    fn requests_with_numbers_are_new() {
        let mut replies = RecentReplies::new(None);
        let peer = SocketAddr::from(([10, 0, 0, 1], 40_000));
        for (bytes, position) in [(8, 0), (64, 8), (1_472, 20), (1_472, 1_464)] {
            let mut request = vec![0; bytes];
            for number in 0..50_000_u64 {
                request[position..position + 8].copy_from_slice(&number.to_be_bytes());
                let digest = replies.digest(peer, &request);
                assert!(!replies.contains(digest), "{number} in {bytes} B");
                replies.insert(digest);
            }
        }
    }

    #[test]
    fn replies_that_come_back_are_recognised() {
        let peer = SocketAddr::from(([10, 0, 0, 1], 7_777));
        let other_peer = SocketAddr::from(([10, 0, 0, 2], 7_777));
        for length in [0, 1, 7, 8, 9, 63, 64, 65, 80, 1_472, 65_507] {
            let mut replies = RecentReplies::new(None);
            let datagram = vec![b'x'; length];
            replies.insert(replies.digest(peer, &datagram));
            assert!(
                replies.contains(replies.digest(peer, &datagram)),
                "{length}"
            );
            assert!(!replies.contains(replies.digest(other_peer, &datagram)));
            let longer = vec![b'x'; length + 1];
            assert!(!replies.contains(replies.digest(peer, &longer)), "{length}");
        }
    }

    /// Times that the stack writes into each reply make it no request.
    #[test]
    fn stamps_make_no_new_datagram() {
        let peer = SocketAddr::from(([10, 0, 0, 1], 7_777));
        for stamped in [16..32, 60..76, 80..96] {
            let mut replies = RecentReplies::new(Some(stamped.clone()));
            let mut datagram = [1; 100];
            replies.insert(replies.digest(peer, &datagram));
            datagram[stamped].fill(2);
            assert!(replies.contains(replies.digest(peer, &datagram)));
            datagram[0] = 3;
            assert!(!replies.contains(replies.digest(peer, &datagram)));
        }
    }
}
