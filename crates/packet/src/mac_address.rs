//! Ethernet address.

use std::fmt;
use std::str::FromStr;

/// Ethernet address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// Default address of a port without an address and of an unconfigured peer: locally
    /// administered (IEEE 802c), with the port number in it.
    #[must_use]
    pub const fn of_port(port: u32) -> Self {
        let [a, b, c, d] = port.to_be_bytes();
        Self([2, 0, a, b, c, d])
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02X}:{b:02X}:{c:02X}:{d:02X}:{e:02X}:{g:02X}")
    }
}

impl FromStr for MacAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rejection = || format!("`{text}` is not an Ethernet address: use 02:00:00:00:00:01");
        let mut address = [0; 6];
        let mut parts = text.split([':', '-']);
        for byte in &mut address {
            // `from_str_radix` accepts a sign, which is no digit.
            let is_byte = |part: &&str| {
                (1..=2).contains(&part.len()) && part.bytes().all(|digit| digit.is_ascii_hexdigit())
            };
            let part = parts.next().filter(is_byte);
            *byte = u8::from_str_radix(part.ok_or_else(rejection)?, 16).map_err(|_| rejection())?;
        }
        match parts.next() {
            None => Ok(Self(address)),
            Some(_) => Err(rejection()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_as_they_print() {
        for text in ["02:00:00:00:00:01", "AA:BB:CC:DD:EE:FF"] {
            assert_eq!(text.parse::<MacAddress>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "1:2:3:4:5",
            "1:2:3:4:5:6:7",
            "g0:0:0:0:0:0",
            "+1:0:0:0:0:0",
        ] {
            assert!(text.parse::<MacAddress>().is_err(), "{text}");
        }
    }
}
