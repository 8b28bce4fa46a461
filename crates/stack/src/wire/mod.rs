//! Protocol headers as bytes.

pub(crate) mod ip;

pub(crate) use linerate_packet::checksum::UnfoldedSum;

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
/// Protocol number of the IPv6 fragment header (RFC 8200, section 4.5).
pub(crate) const FRAGMENT_HEADER_V6: u8 = 44;

/// TCP flags, in the 16-bit word that begins with the data offset.
pub(crate) const FIN: u16 = 0x01;
pub(crate) const SYN: u16 = 0x02;
pub(crate) const RST: u16 = 0x04;
pub(crate) const PSH: u16 = 0x08;
pub(crate) const ACK: u16 = 0x10;

/// Default TTL and hop limit of packets sent (RFC 1700; Linux uses the same).
pub(crate) const DEFAULT_HOP_LIMIT: u8 = 64;

#[inline]
pub(crate) fn read_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
pub(crate) fn read_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from(read_u16(bytes, at)) << 16 | u32::from(read_u16(bytes, at + 2))
}

#[inline]
pub(crate) fn write_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Returns the ones' complement sum of bytes, folded to 16 bits.
#[inline]
pub(crate) fn checksum_sum(bytes: &[u8]) -> u16 {
    UnfoldedSum::from_bytes(bytes).to_u16()
}

/// Adds words or folded sums, and folds the result.
#[inline]
pub(crate) fn combine_sums<const N: usize>(words: [u16; N]) -> u16 {
    let sum = |sum, value| sum + UnfoldedSum::from_u16(value);
    words.into_iter().fold(UnfoldedSum::default(), sum).to_u16()
}

/// Result of checksum verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChecksumVerdict {
    /// Correct.
    Valid,
    /// Only the pseudo header is summed: the sender left the rest to an offload device.
    Partial,
    /// Wrong: the packet was corrupted.
    Invalid,
}

impl ChecksumVerdict {
    /// Verifies a transport header with payload whose checksum field is `field`.
    #[inline(always)]
    pub(crate) fn verify(pseudo: UnfoldedSum, bytes: &[u8], field: u16) -> Self {
        if (pseudo + UnfoldedSum::from_bytes(bytes)).is_valid() {
            Self::Valid
        } else {
            Self::classify_mismatch(pseudo, field)
        }
    }

    /// Distinguishes partial from wrong checksums. Out of line: this check would cost each 64 B
    /// datagram nanoseconds.
    #[cold]
    #[inline(never)]
    fn classify_mismatch(pseudo: UnfoldedSum, field: u16) -> Self {
        match pseudo.to_u16() == field {
            true => Self::Partial,
            false => Self::Invalid,
        }
    }
}

/// Returns a checksum updated after a change of one covered word (RFC 1624, equation 3).
#[inline]
pub(crate) fn update_checksum(checksum: u16, from: u16, to: u16) -> u16 {
    !combine_sums([!checksum, !from, to])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_changed_word_changes_the_sum(mut words in prop::collection::vec(any::<u8>(), 8..64), to: u16) {
            words.truncate(words.len() & !1);
            let before = !checksum_sum(&words);
            let from = read_u16(&words, 4);
            write_u16(&mut words, 4, to);
            let after = update_checksum(before, from, to);
            // Ones' complement has two zeros, which are equal sums.
            prop_assert_eq!(!checksum_sum(&words) % 0xffff, after % 0xffff);
        }
    }
}
