//! Sums for the Internet checksum (RFC 1071).
//!
//! A stack needs nine of them for a datagram of 64 B, most over a few bytes. As separate calls that
//! fold each result they took a third of the datagram's processing time. These are inlined into the
//! caller, and sums that belong together are folded once.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Add;

use multiversion::multiversion;

/// Size from which bytes are summed by a called function: the compiler's vector code pays off
/// there, and costs short packets more than it saves.
const VECTOR_MIN_BYTES: usize = 256;

/// A sum of 16-bit words that is not yet folded.
///
/// Sums do not depend on byte order if all words are read in the same order (RFC 1071 section 2 B):
/// these are read in native order, several at a time. Each part is below 2^48, so thousands can be
/// added.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnfoldedSum(u64);

impl UnfoldedSum {
    /// Sum of bytes; an odd last one is padded with zero.
    #[inline(always)]
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        if bytes.len() >= VECTOR_MIN_BYTES {
            return sum_long(bytes);
        }
        let (chunks, rest) = bytes.as_chunks::<8>();
        // Additions with carry: one for eight bytes. No vector instructions: their loads would wait
        // for the short stores that have just written a header.
        let mut total = 0u128;
        for chunk in chunks {
            total += u128::from(u64::from_ne_bytes(*chunk));
        }
        // 2^64 is congruent to 1 modulo 2^16 - 1.
        Self(add_halves(total as u64) + (total >> 64) as u64 + sum_tail(rest))
    }

    /// Sum of an IPv4 header without options.
    #[inline(always)]
    #[must_use]
    pub fn from_ipv4_header(bytes: &[u8; 20]) -> Self {
        let (chunks, _) = bytes.as_chunks::<4>();
        let mut total = 0;
        for chunk in chunks {
            total += u64::from(u32::from_ne_bytes(*chunk));
        }
        Self(total)
    }

    /// Sum of one word, given as its value.
    #[inline(always)]
    #[must_use]
    pub fn from_u16(word: u16) -> Self {
        Self(word.to_be().into())
    }

    /// Sum of an address.
    #[inline(always)]
    #[must_use]
    pub fn from_address(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self::from_ipv4(address),
            IpAddr::V6(address) => Self::from_ipv6(address),
        }
    }

    #[inline(always)]
    fn from_ipv4(address: Ipv4Addr) -> Self {
        Self(u32::from_ne_bytes(address.octets()).into())
    }

    #[inline(always)]
    fn from_ipv6(address: Ipv6Addr) -> Self {
        let bits = u128::from_ne_bytes(address.octets());
        Self(add_halves((bits >> 64) as u64) + add_halves(bits as u64))
    }

    /// Folded sum as a value; its complement is the checksum.
    #[inline(always)]
    #[must_use]
    pub fn to_u16(self) -> u16 {
        u16::from_be(fold(self.0))
    }

    /// Folded sum in native order, as stored in memory.
    #[inline(always)]
    #[must_use]
    pub fn to_native_u16(self) -> u16 {
        fold(self.0)
    }

    /// Returns true if data summed together with its checksum is unchanged.
    #[inline(always)]
    #[must_use]
    pub fn is_valid(self) -> bool {
        fold(self.0) == 0xffff
    }
}

impl Add for UnfoldedSum {
    type Output = Self;

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

/// Sums bytes; compiled for wider vectors too, which process twice the bytes at a time.
#[multiversion(targets("x86_64+avx2"))]
fn sum_long(bytes: &[u8]) -> UnfoldedSum {
    let (chunks, rest) = bytes.as_chunks::<8>();
    let (mut all, mut high) = (0u64, 0u64);
    for chunk in chunks {
        let chunk = u64::from_ne_bytes(*chunk);
        all = all.wrapping_add(chunk);
        high += chunk >> 32;
    }
    // The remaining sum is that of the lower halves. It is below 2^64, so lost carries do not
    // matter. Masking each word would take one more instruction.
    let low = all.wrapping_sub(high << 32);
    UnfoldedSum(low + high + sum_tail(rest))
}

/// Adds both halves of a word: sums of such values have 31 bits left for carries.
#[inline(always)]
const fn add_halves(word: u64) -> u64 {
    (word & 0xffff_ffff) + (word >> 32)
}

/// Sum of up to seven bytes.
#[inline(always)]
fn sum_tail(mut rest: &[u8]) -> u64 {
    let mut total = 0;
    if rest.is_empty() {
        return total;
    }
    if let Some((chunk, remaining)) = rest.split_first_chunk::<4>() {
        total += u64::from(u32::from_ne_bytes(*chunk));
        rest = remaining;
    }
    if let Some((chunk, remaining)) = rest.split_first_chunk::<2>() {
        total += u64::from(u16::from_ne_bytes(*chunk));
        rest = remaining;
    }
    if let [last] = rest {
        total += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    total
}

#[inline(always)]
const fn fold(total: u64) -> u16 {
    // Both halves with the carry of their sum, which then has 32 bits.
    let (sum, carry) = (total as u32).overflowing_add((total >> 32) as u32);
    let sum = sum + carry as u32;
    // Added to itself with exchanged halves: the upper half is the sum of both, plus the carry of
    // the lower.
    (sum.wrapping_add(sum.rotate_left(16)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::super::reference_sum as slow;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sums_are_those_of_the_standard(
            bytes in prop::collection::vec(any::<u8>(), 0..2_000),
            skip in 0usize..8,
        ) {
            let bytes = &bytes[skip.min(bytes.len())..];
            let sum = UnfoldedSum::from_bytes(bytes).to_u16();
            // Ones' complement has two zeros, which are the same sum.
            prop_assert_eq!(sum % 0xffff, slow(bytes) % 0xffff);
            prop_assert_eq!(sum == 0, bytes.iter().all(|byte| *byte == 0));
            prop_assert_eq!(u16::from_be(UnfoldedSum::from_bytes(bytes).to_native_u16()), sum);
            let Ok(header) = <&[u8; 20]>::try_from(&bytes[..bytes.len().min(20)]) else {
                return Ok(());
            };
            prop_assert_eq!(UnfoldedSum::from_ipv4_header(header).to_u16(), UnfoldedSum::from_bytes(header).to_u16());
        }

        #[test]
        fn folding_keeps_the_rest(total: u64) {
            for total in [total, total << 32, total >> 16, u64::MAX - total % 3, 1 << (total % 64)] {
                prop_assert_eq!(u64::from(fold(total)) % 0xffff, total % 0xffff);
                prop_assert_eq!(fold(total) == 0, total == 0);
            }
        }

        #[test]
        fn parts_add_up(v4: u32, v6: u128, word: u16, bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let v4 = Ipv4Addr::from(v4);
            let v6 = Ipv6Addr::from(v6);
            let mut all = [&v4.octets()[..], &v6.octets(), &word.to_be_bytes(), &bytes].concat();
            let parts = UnfoldedSum::from_address(v4.into()) + UnfoldedSum::from_address(v6.into()) + UnfoldedSum::from_u16(word) + UnfoldedSum::from_bytes(&bytes);
            prop_assert_eq!(parts.to_u16() % 0xffff, slow(&all) % 0xffff);
            // Data with its own checksum is valid.
            if all.len() % 2 == 1 {
                all.push(0);
            }
            let checksum = !UnfoldedSum::from_bytes(&all).to_u16();
            prop_assert!((UnfoldedSum::from_bytes(&all) + UnfoldedSum::from_u16(checksum)).is_valid());
        }
    }

    #[test]
    fn the_longest_packet_of_ones_folds() {
        for length in [1usize, 2, 7, 8, 255, 256, 65_535, 65_536] {
            // An odd last byte has no lower half.
            let expected = if length % 2 == 1 { 0xff00 } else { 0xffff };
            assert_eq!(
                UnfoldedSum::from_bytes(&vec![0xff; length]).to_u16(),
                expected,
                "{length}"
            );
        }
    }
}
