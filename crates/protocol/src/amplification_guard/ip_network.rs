//! IP networks in CIDR notation.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// IP network: an address and the length of its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpNetwork {
    address: IpAddr,
    prefix_bits: u8,
}

/// Reason why a text is not an IP network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IpNetworkError {
    /// The text has no valid address.
    #[error("{text:?} is not an IP network: write it as 192.0.2.0/24, 2001:db8::/32 or 192.0.2.7")]
    Address {
        /// The text.
        text: String,
    },
    /// The prefix length is missing or out of range.
    #[error("{text:?} has no prefix length from 0 to {max_bits} after the slash")]
    Prefix {
        /// The text.
        text: String,
        /// Longest prefix of this address family, in bits.
        max_bits: u8,
    },
}

impl IpNetwork {
    /// Creates the network of an address; a longer prefix than the address is limited to its
    /// length.
    #[must_use]
    pub fn new(address: IpAddr, prefix: u8) -> Self {
        let prefix = prefix.min(address_bits(address));
        Self {
            address,
            prefix_bits: prefix,
        }
    }

    /// Returns the loopback networks of IPv4 and IPv6.
    #[must_use]
    pub fn loopback() -> [Self; 2] {
        [
            Self::new(Ipv4Addr::LOCALHOST.into(), 8),
            Self::new(Ipv6Addr::LOCALHOST.into(), 128),
        ]
    }

    /// Returns whether the network is a single address.
    #[must_use]
    pub fn is_single_address(&self) -> bool {
        self.prefix_bits == address_bits(self.address)
    }

    /// Returns whether the network contains an address. An IPv4-mapped IPv6 address
    /// (`::ffff:192.0.2.1`, as dual-stack sockets report it) counts as IPv4.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(network_address), IpAddr::V4(candidate)) => {
                let shift = 32 - u32::from(self.prefix_bits);
                let differing = network_address.to_bits() ^ candidate.to_bits();
                differing.checked_shr(shift).unwrap_or(0) == 0
            }
            (IpAddr::V6(network_address), IpAddr::V6(candidate)) => {
                let shift = 128 - u32::from(self.prefix_bits);
                let differing = network_address.to_bits() ^ candidate.to_bits();
                differing.checked_shr(shift).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

fn address_bits(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

impl FromStr for IpNetwork {
    type Err = IpNetworkError;

    fn from_str(text: &str) -> Result<Self, IpNetworkError> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| IpNetworkError::Address {
            text: text.to_owned(),
        })?;
        let max_bits = address_bits(address);
        let prefix = match prefix.map(str::parse) {
            None => max_bits,
            Some(Ok(prefix)) if prefix <= max_bits => prefix,
            Some(_) => {
                return Err(IpNetworkError::Prefix {
                    text: text.to_owned(),
                    max_bits,
                });
            }
        };
        Ok(Self {
            address,
            prefix_bits: prefix,
        })
    }
}

impl fmt::Display for IpNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_bits)
    }
}
