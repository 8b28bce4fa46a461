//! Addresses and gateways of the stack.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use crate::error::StackError;

/// Removes the IPv6 scope id and flow label: a stack has one link, and frames carry neither.
pub(crate) fn without_scope(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}

/// Interface address with the prefix length of its network: `10.0.0.2/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// Address of the stack.
    pub address: IpAddr,
    /// Prefix length in bits.
    pub prefix: u8,
}

impl InterfaceAddress {
    /// Returns whether an address is reached without a gateway.
    #[must_use]
    pub fn contains(&self, other: IpAddr) -> bool {
        match (self.address, other) {
            (IpAddr::V4(local), IpAddr::V4(other)) => {
                let mask = self.mask_v4();
                u32::from(local) & mask == u32::from(other) & mask
            }
            (IpAddr::V6(local), IpAddr::V6(other)) => {
                let mask = u128::MAX
                    .checked_shl(128 - u32::from(self.prefix))
                    .unwrap_or(0);
                u128::from(local) & mask == u128::from(other) & mask
            }
            _ => false,
        }
    }

    /// Returns the kind of a special address that no host can have: network and broadcast addresses
    /// (RFC 1122, section 3.2.1.3), loopback, 0.0.0.0/8 and IPv4-mapped addresses (RFC 4291,
    /// section 2.5).
    fn special_kind(&self) -> Option<&'static str> {
        match self.address {
            IpAddr::V4(local) if local.is_loopback() => return Some("a loopback address"),
            IpAddr::V6(local) if local.is_loopback() => return Some("the loopback address"),
            IpAddr::V4(local) if local.octets()[0] == 0 => return Some("an address of 0.0.0.0/8"),
            IpAddr::V6(local) if local.to_ipv4_mapped().is_some() => {
                return Some("an IPv4-mapped IPv6 address");
            }
            _ => {}
        }
        let broadcast = self.broadcast()?;
        match self.address {
            IpAddr::V4(local) if local == broadcast => {
                Some("the broadcast address of that network")
            }
            IpAddr::V4(local) if u32::from(local) & !self.mask_v4() == 0 => {
                Some("the address of that network itself")
            }
            _ => None,
        }
    }

    fn mask_v4(&self) -> u32 {
        u32::MAX
            .checked_shl(32 - u32::from(self.prefix))
            .unwrap_or(0)
    }

    /// Returns the directed broadcast address, which prefixes of 31 and 32 bits do not have (RFC
    /// 919, RFC 3021).
    fn broadcast(&self) -> Option<Ipv4Addr> {
        match self.address {
            IpAddr::V4(local) if self.prefix < 31 => {
                Some(Ipv4Addr::from(u32::from(local) | !self.mask_v4()))
            }
            _ => None,
        }
    }
}

impl FromStr for InterfaceAddress {
    type Err = StackError;

    fn from_str(text: &str) -> Result<Self, StackError> {
        let parsed = || {
            let (address, prefix) = text.split_once('/')?;
            let address: IpAddr = address.parse().ok()?;
            let prefix: u8 = prefix.parse().ok()?;
            let max_prefix = if address.is_ipv4() { 32 } else { 128 };
            let unicast = !address.is_unspecified() && !address.is_multicast();
            (prefix <= max_prefix && unicast && address != IpAddr::V4(Ipv4Addr::BROADCAST))
                .then_some(Self { address, prefix })
        };
        let network = parsed().ok_or_else(|| StackError::BadInterfaceAddress {
            text: text.to_owned(),
        })?;
        match network.special_kind() {
            None => Ok(network),
            Some(why) => Err(StackError::NotAHostAddress {
                text: text.to_owned(),
                reason: why,
            }),
        }
    }
}

impl fmt::Display for InterfaceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// Addresses and gateways of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackAddressing {
    /// Interface addresses: one to eight.
    pub networks: Vec<InterfaceAddress>,
    /// Default gateways, at most one for each IP version.
    pub gateways: Vec<IpAddr>,
    /// Ethernet address; `None`: that of the port, or one derived from the first IP address.
    pub ethernet: Option<[u8; 6]>,
    /// Seed of port and sequence numbers; runs with equal seeds are equal.
    pub seed: u64,
}

/// Addresses that a smoltcp interface can hold (feature `iface-max-addr-count-8`).
const MAX_ADDRESSES: usize = 8;
/// A gateway for each IP version.
const MAX_GATEWAYS: usize = 2;

impl StackAddressing {
    /// Returns an addressing with these interface addresses and no gateway.
    ///
    /// # Errors
    /// [`StackError::BadInterfaceAddress`] or [`StackError::NotAHostAddress`] for an address;
    /// [`StackError::Contradiction`] for none or more than eight.
    pub fn new(networks: &[&str]) -> Result<Self, StackError> {
        let networks: Result<Vec<InterfaceAddress>, _> =
            networks.iter().map(|text| text.parse()).collect();
        let addressing = Self {
            networks: networks?,
            gateways: Vec::new(),
            ethernet: None,
            seed: 0x6c69_6e65_7261_7465,
        };
        addressing.check()?;
        Ok(addressing)
    }

    /// Heap bytes of what [`StackAddressing::with_full_capacity`] returns.
    pub(crate) const HEAP_BYTES: usize =
        MAX_ADDRESSES * size_of::<InterfaceAddress>() + MAX_GATEWAYS * size_of::<IpAddr>();

    /// Copies with full capacity whatever the number of entries, so that a stack's memory is known
    /// beforehand.
    pub(crate) fn with_full_capacity(&self) -> Self {
        let mut networks = Vec::with_capacity(MAX_ADDRESSES);
        networks.extend_from_slice(&self.networks);
        let mut gateways = Vec::with_capacity(MAX_GATEWAYS);
        gateways.extend_from_slice(&self.gateways);
        Self {
            networks,
            gateways,
            ..*self
        }
    }

    pub(crate) fn check(&self) -> Result<(), StackError> {
        let contradiction = |why: String, remedy: &str| {
            Err(StackError::Contradiction {
                reason: why,
                remedy: remedy.to_owned(),
            })
        };
        if self.networks.is_empty() || self.networks.len() > MAX_ADDRESSES {
            return contradiction(
                format!("the stack has {} addresses", self.networks.len()),
                "give it one to eight",
            );
        }
        if self.gateways.len() > MAX_GATEWAYS {
            return contradiction(
                format!("the stack has {} gateways", self.gateways.len()),
                "give it at most one for each IP version",
            );
        }
        for (at, local) in self.networks.iter().enumerate() {
            if self.networks[..at]
                .iter()
                .any(|other| other.address == local.address)
            {
                return contradiction(
                    format!("the stack's address {} is given twice", local.address),
                    "give each address once",
                );
            }
        }
        for (at, gateway) in self.gateways.iter().enumerate() {
            if self.is_local(*gateway) {
                return contradiction(
                    format!("the gateway {gateway} is an address of the stack itself"),
                    "give another host of its network",
                );
            }
            let mut before = self.gateways[..at].iter();
            if let Some(other) = before.find(|other| other.is_ipv4() == gateway.is_ipv4()) {
                return contradiction(
                    format!("the stack cannot choose between the gateways {other} and {gateway}"),
                    "give it at most one for each IP version",
                );
            }
            if !self.networks.iter().any(|local| local.contains(*gateway)) {
                return contradiction(
                    format!("the gateway {gateway} is in no network of the stack"),
                    "give a gateway in a network of the stack",
                );
            }
        }
        if self.ethernet.is_some_and(|address| address[0] & 1 != 0) {
            return contradiction(
                "the stack's Ethernet address is a multicast address".to_owned(),
                "give one whose first byte is even",
            );
        }
        Ok(())
    }

    /// Returns whether an address belongs to the stack.
    #[must_use]
    #[inline]
    pub fn is_local(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|local| local.address == address)
    }

    /// Returns whether an address is a broadcast address.
    #[must_use]
    pub fn is_broadcast(&self, address: Ipv4Addr) -> bool {
        address == Ipv4Addr::BROADCAST
            || self
                .networks
                .iter()
                .any(|local| local.broadcast() == Some(address))
    }

    /// Returns whether packets to this address are for the stack.
    #[inline(always)]
    pub(crate) fn accepts(&self, address: IpAddr) -> bool {
        self.is_local(address) || self.is_broadcast_or_group(address)
    }

    /// Returns whether an address is invalid as a source (RFC 1122, section 3.2.1.3; RFC 4291,
    /// section 2.5): multicast, broadcast, loopback or "this host". The unspecified IPv6 address is
    /// left to the caller: duplicate address detection sends from it.
    #[inline(always)]
    pub(crate) fn is_invalid_source(&self, from: IpAddr) -> bool {
        match from {
            IpAddr::V4(from) => {
                let [first, .., last] = from.octets();
                // The broadcast address of a network ends in two ones at least.
                matches!(first, 0 | 127 | 224..=239) || (last & 3 == 3 && self.is_broadcast(from))
            }
            IpAddr::V6(from) => from.is_multicast() || from.is_loopback(),
        }
    }

    #[cold]
    fn is_broadcast_or_group(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.is_broadcast(address) || address == ALL_HOSTS_V4,
            IpAddr::V6(address) => address == ALL_NODES_V6
                || self.networks.iter().any(
                    |local| matches!(local.address, IpAddr::V6(own) if solicited_node_group(own) == address),
                ),
        }
    }

    /// Returns the next hop towards an address; `None` without a route.
    #[must_use]
    pub fn next_hop(&self, to: IpAddr) -> Option<IpAddr> {
        if self.networks.iter().any(|local| local.contains(to)) || self.is_link_local(to) {
            return Some(to);
        }
        self.gateways
            .iter()
            .copied()
            .find(|gateway| gateway.is_ipv4() == to.is_ipv4())
    }

    /// Returns whether an address is link-local, which every IPv6 interface has. Linux sends its
    /// unreachability probes from it (RFC 4861, section 7.3.3).
    fn is_link_local(&self, to: IpAddr) -> bool {
        let v6 = |local: &InterfaceAddress| local.address.is_ipv6();
        matches!(to, IpAddr::V6(to) if to.is_unicast_link_local()) && self.networks.iter().any(v6)
    }

    /// Returns the source address of packets to `to`.
    pub(crate) fn source_for(&self, to: IpAddr) -> Option<IpAddr> {
        let on_link = self.networks.iter().find(|local| local.contains(to));
        let same_version = || {
            self.networks
                .iter()
                .find(|local| local.address.is_ipv4() == to.is_ipv4())
        };
        on_link.or_else(same_version).map(|local| local.address)
    }

    /// Returns a locally administered Ethernet address derived from the first IP address, so that
    /// stacks with different addresses never share one.
    pub(crate) fn derived_ethernet(&self) -> [u8; 6] {
        let low: [u8; 4] = match self.networks[0].address {
            IpAddr::V4(address) => address.octets(),
            IpAddr::V6(address) => {
                let octets = address.octets();
                [octets[12], octets[13], octets[14], octets[15]]
            }
        };
        [0x02, 0x6c, low[0], low[1], low[2], low[3]]
    }
}

/// RFC 1112.
const ALL_HOSTS_V4: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);
/// RFC 4291, section 2.7.1.
pub(crate) const ALL_NODES_V6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Returns the solicited-node multicast address (RFC 4291, section 2.7.1).
pub(crate) fn solicited_node_group(address: Ipv6Addr) -> Ipv6Addr {
    let low = address.octets();
    Ipv6Addr::new(
        0xff02,
        0,
        0,
        0,
        0,
        1,
        0xff00 | u16::from(low[13]),
        u16::from_be_bytes([low[14], low[15]]),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_and_sources_are_chosen() {
        let mut addressing =
            StackAddressing::new(&["10.0.0.2/24", "192.168.9.1/30", "fd00::2/64"]).unwrap();
        addressing.gateways.push("10.0.0.1".parse().unwrap());
        addressing.check().unwrap();
        for (to, expected, from) in [
            ("10.0.0.9", Some("10.0.0.9"), "10.0.0.2"),
            ("192.168.9.2", Some("192.168.9.2"), "192.168.9.1"),
            ("8.8.8.8", Some("10.0.0.1"), "10.0.0.2"),
            ("fd00::9", Some("fd00::9"), "fd00::2"),
            ("fd01::9", None, "fd00::2"),
            ("fe80::9", Some("fe80::9"), "fd00::2"),
        ] {
            let to: IpAddr = to.parse().unwrap();
            assert_eq!(
                addressing.next_hop(to),
                expected.map(|text| text.parse().unwrap()),
                "{to}"
            );
            assert_eq!(
                addressing.source_for(to),
                Some(from.parse().unwrap()),
                "{to}"
            );
        }
        for (address, accepted) in [
            ("10.0.0.2", true),
            ("10.0.0.255", true),
            ("255.255.255.255", true),
            ("192.168.9.3", true),
            ("10.0.0.3", false),
            ("ff02::1", true),
            ("ff02::1:ff00:2", true),
            ("ff02::1:ff00:3", false),
        ] {
            assert_eq!(
                addressing.accepts(address.parse().unwrap()),
                accepted,
                "{address}"
            );
        }
        for (gateway, why) in [
            ("10.9.0.1", "choose between"),
            ("fd09::1", "no network"),
            ("fd00::2", "itself"),
        ] {
            let mut wrong = addressing.clone();
            wrong.gateways.push(gateway.parse().unwrap());
            let error = wrong.check().unwrap_err().to_string();
            assert!(error.contains(why), "{gateway}: {error}");
        }
        let duplicate = StackAddressing::new(&["10.0.0.2/24", "10.0.0.2/16"]).unwrap_err();
        assert!(duplicate.to_string().contains("twice"), "{duplicate}");
    }

    #[test]
    fn invalid_sources_are_recognised() {
        let addressing =
            StackAddressing::new(&["10.0.0.2/24", "192.168.9.1/30", "fd00::2/64"]).unwrap();
        for (from, is_invalid) in [
            ("10.0.0.9", false),
            ("10.0.0.7", false),
            ("10.0.1.255", false),
            ("223.255.255.254", false),
            ("240.0.0.1", false),
            ("10.0.0.255", true),
            ("192.168.9.3", true),
            ("255.255.255.255", true),
            ("0.0.0.0", true),
            ("127.0.0.1", true),
            ("224.0.0.1", true),
            ("239.1.2.3", true),
            ("fd00::9", false),
            ("fe80::9", false),
            ("::", false),
            ("::1", true),
            ("ff02::1", true),
        ] {
            assert_eq!(
                addressing.is_invalid_source(from.parse().unwrap()),
                is_invalid,
                "{from}"
            );
        }
    }

    #[test]
    fn invalid_interface_addresses_are_rejected() {
        for text in [
            "10.0.0.2",
            "10.0.0.2/33",
            "x/24",
            "224.0.0.1/24",
            "0.0.0.0/0",
            "::/64",
            // The stack itself drops packets from such sources.
            "127.0.0.1/8",
            "127.9.9.9/32",
            "0.1.2.3/8",
            "::1/128",
            "::ffff:10.0.0.2/96",
        ] {
            assert!(text.parse::<InterfaceAddress>().is_err(), "{text}");
        }
        assert!(StackAddressing::new(&[]).is_err());
        let v4 = StackAddressing::new(&["10.0.0.2/24"]).unwrap();
        assert_eq!(v4.next_hop("fe80::9".parse().unwrap()), None);
        let point: InterfaceAddress = "10.0.0.2/32".parse().unwrap();
        assert!(!point.contains("10.0.0.3".parse().unwrap()));
        let all: InterfaceAddress = "10.0.0.2/0".parse().unwrap();
        assert!(all.contains("8.8.8.8".parse().unwrap()));
    }
}
