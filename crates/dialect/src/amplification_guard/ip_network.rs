//! IP networks in CIDR notation.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// IP network: an address and the length of its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

/// Reason why a text is not an IP network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// The text has no valid address.
    #[error("{text:?} is not an IP network: write it as 192.0.2.0/24, 2001:db8::/32 or 192.0.2.7")]
    Address {
        /// The text.
        text: String,
    },
    /// The prefix length is missing or out of range.
    #[error("{text:?} has no prefix length from 0 to {most} after the slash")]
    Prefix {
        /// The text.
        text: String,
        /// Longest prefix of this address family, in bits.
        most: u8,
    },
}

impl Network {
    /// Creates the network of an address; a longer prefix than the address is limited to its
    /// length.
    #[must_use]
    pub fn new(address: IpAddr, prefix: u8) -> Self {
        let prefix = prefix.min(bits(address));
        Self { address, prefix }
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
    pub fn is_one(&self) -> bool {
        self.prefix == bits(self.address)
    }

    /// Returns whether the network contains an address. An IPv4-mapped IPv6 address
    /// (`::ffff:192.0.2.1`, as dual-stack sockets report it) counts as IPv4.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                let shift = 32 - u32::from(self.prefix);
                let differing = ours.to_bits() ^ theirs.to_bits();
                differing.checked_shr(shift).unwrap_or(0) == 0
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => {
                let shift = 128 - u32::from(self.prefix);
                let differing = ours.to_bits() ^ theirs.to_bits();
                differing.checked_shr(shift).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

fn bits(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| NetworkError::Address {
            text: text.to_owned(),
        })?;
        let most = bits(address);
        let prefix = match prefix.map(str::parse) {
            None => most,
            Some(Ok(prefix)) if prefix <= most => prefix,
            Some(_) => {
                return Err(NetworkError::Prefix {
                    text: text.to_owned(),
                    most,
                });
            }
        };
        Ok(Self { address, prefix })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}
