//! Ethernet addresses as numbers and text.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::mac_address::MacAddress;

/// Length of an Ethernet address.
pub const MAC_BYTES: usize = 6;

/// Parses `02:00:00:00:00:01` as a number of 48 bits.
#[must_use]
pub fn parse_mac(text: &str) -> Option<u128> {
    let address: MacAddress = text.parse().ok()?;
    Some(mac_number(address.0))
}

/// Returns the bytes of an address as a number.
#[must_use]
pub fn mac_number(bytes: [u8; MAC_BYTES]) -> u128 {
    bytes
        .iter()
        .fold(0, |value, &byte| value << 8 | u128::from(byte))
}

/// Returns the low 48 bits as the bytes of an address.
#[must_use]
pub fn mac_bytes(number: u128) -> [u8; MAC_BYTES] {
    let mut bytes = [0; MAC_BYTES];
    bytes.copy_from_slice(&number.to_be_bytes()[16 - MAC_BYTES..]);
    bytes
}

/// Formats an address as `02:00:00:00:00:01`.
#[must_use]
pub fn mac_text(bytes: [u8; MAC_BYTES]) -> String {
    let parts: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    parts.join(":")
}

pub(super) fn parse_ipv4(text: &str) -> Option<u128> {
    let address: Ipv4Addr = text.parse().ok()?;
    Some(u128::from(address.to_bits()))
}

pub(super) fn parse_ipv6(text: &str) -> Option<u128> {
    let address: Ipv6Addr = text.parse().ok()?;
    Some(address.to_bits())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_as_they_print() {
        for text in ["02:00:00:00:00:01", "aa:bb:cc:dd:ee:ff"] {
            let number = parse_mac(text).unwrap();
            assert_eq!(mac_text(mac_bytes(number)), text);
            assert_eq!(mac_number(mac_bytes(number)), number);
        }
        for text in [
            "",
            "1:2:3:4:5",
            "1:2:3:4:5:6:7",
            "g0:0:0:0:0:0",
            "+1:0:0:0:0:0",
        ] {
            assert_eq!(parse_mac(text), None, "{text}");
        }
    }
}
