//! Headers as bytes.

pub(crate) mod ip;

pub(crate) use linerate_port::checksum::Sum;

/// Bytes of an Ethernet header without tags.
pub(crate) const ETHERNET_BYTES: usize = 14;
pub(crate) const UDP_BYTES: usize = 8;
pub(crate) const TCP_BYTES: usize = 20;

pub(crate) const ETHERTYPE_IPV4: u16 = 0x0800;
pub(crate) const ETHERTYPE_ARP: u16 = 0x0806;
pub(crate) const ETHERTYPE_IPV6: u16 = 0x86dd;

pub(crate) const ICMP: u8 = 1;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMPV6: u8 = 58;
/// IPv6's header of fragments (RFC 8200, section 4.5).
pub(crate) const FRAGMENT_V6: u8 = 44;

/// Flags in the word of a TCP header that its length begins.
pub(crate) const FIN: u16 = 0x01;
pub(crate) const SYN: u16 = 0x02;
pub(crate) const RST: u16 = 0x04;
pub(crate) const PSH: u16 = 0x08;
pub(crate) const ACK: u16 = 0x10;

/// TTL and hop limit of what the stack sends (RFC 1700; Linux has the same).
pub(crate) const HOPS: u8 = 64;

#[inline]
pub(crate) fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
pub(crate) fn long(bytes: &[u8], at: usize) -> u32 {
    u32::from(word(bytes, at)) << 16 | u32::from(word(bytes, at + 2))
}

#[inline]
pub(crate) fn put(bytes: &mut [u8], at: usize, word: u16) {
    bytes[at..at + 2].copy_from_slice(&word.to_be_bytes());
}

/// The sum of bytes, folded.
#[inline]
pub(crate) fn sum(bytes: &[u8]) -> u16 {
    Sum::of(bytes).folded()
}

/// Several words, or folded sums, together.
#[inline]
pub(crate) fn combine<const N: usize>(words: [u16; N]) -> u16 {
    let sum = |sum, word| sum + Sum::word(word);
    words.into_iter().fold(Sum::default(), sum).folded()
}

/// What a checksum that is to be verified says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// All is as it was sent.
    Right,
    /// Only the pseudo header is summed: the sender left the rest to a device.
    Open,
    /// Something changed on the way.
    Wrong,
}

impl Verdict {
    /// Of a transport's bytes, whose checksum stands there as `stands`.
    #[inline(always)]
    pub(crate) fn of(pseudo: Sum, bytes: &[u8], stands: u16) -> Self {
        if (pseudo + Sum::of(bytes)).is_right() {
            Self::Right
        } else {
            Self::not_right(pseudo, stands)
        }
    }

    /// Out of the way of what is right: telling the others apart there costs each 64 B datagram nanoseconds.
    #[cold]
    #[inline(never)]
    fn not_right(pseudo: Sum, stands: u16) -> Self {
        match pseudo.folded() == stands {
            true => Self::Open,
            false => Self::Wrong,
        }
    }
}

/// A checksum after a word that it covers has changed (RFC 1624, equation 3).
#[inline]
pub(crate) fn changed(checksum: u16, from: u16, to: u16) -> u16 {
    !combine([!checksum, !from, to])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_changed_word_changes_the_sum(mut words in prop::collection::vec(any::<u8>(), 8..64), to: u16) {
            words.truncate(words.len() & !1);
            let before = !sum(&words);
            let from = word(&words, 4);
            put(&mut words, 4, to);
            let after = changed(before, from, to);
            // Both zeros of ones' complement are the same sum.
            prop_assert_eq!(!sum(&words) % 0xffff, after % 0xffff);
        }
    }
}
