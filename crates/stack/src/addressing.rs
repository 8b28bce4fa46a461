//! Addresses and gateways of the stack.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use crate::error::StackError;

/// Removes the IPv6 scope id and flow label: a stack has one link, and frames carry neither.
pub(crate) fn on_the_link(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}

/// Interface address with the prefix length of its network: `10.0.0.2/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// Address of the stack.
    pub address: IpAddr,
    /// Prefix length in bits.
    pub prefix: u8,
}

impl Network {
    /// Returns whether an address is reached without a gateway.
    #[must_use]
    pub fn contains(&self, other: IpAddr) -> bool {
        match (self.address, other) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let mask = self.mask_v4();
                u32::from(own) & mask == u32::from(other) & mask
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let mask = u128::MAX
                    .checked_shl(128 - u32::from(self.prefix))
                    .unwrap_or(0);
                u128::from(own) & mask == u128::from(other) & mask
            }
            _ => false,
        }
    }

    /// Returns the kind of a special address that no host can have: network and broadcast addresses
    /// (RFC 1122, section 3.2.1.3), loopback, 0.0.0.0/8 and IPv4-mapped addresses (RFC 4291,
    /// section 2.5).
    fn why_no_host(&self) -> Option<&'static str> {
        match self.address {
            IpAddr::V4(own) if own.is_loopback() => return Some("a loopback address"),
            IpAddr::V6(own) if own.is_loopback() => return Some("the loopback address"),
            IpAddr::V4(own) if own.octets()[0] == 0 => return Some("an address of 0.0.0.0/8"),
            IpAddr::V6(own) if own.to_ipv4_mapped().is_some() => {
                return Some("an IPv4-mapped IPv6 address");
            }
            _ => {}
        }
        let everybody = self.broadcast()?;
        match self.address {
            IpAddr::V4(own) if own == everybody => Some("the broadcast address of that network"),
            IpAddr::V4(own) if u32::from(own) & !self.mask_v4() == 0 => {
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
            IpAddr::V4(own) if self.prefix < 31 => {
                Some(Ipv4Addr::from(u32::from(own) | !self.mask_v4()))
            }
            _ => None,
        }
    }
}

impl FromStr for Network {
    type Err = StackError;

    fn from_str(text: &str) -> Result<Self, StackError> {
        let parsed = || {
            let (address, prefix) = text.split_once('/')?;
            let address: IpAddr = address.parse().ok()?;
            let prefix: u8 = prefix.parse().ok()?;
            let most = if address.is_ipv4() { 32 } else { 128 };
            let unicast = !address.is_unspecified() && !address.is_multicast();
            (prefix <= most && unicast && address != IpAddr::V4(Ipv4Addr::BROADCAST))
                .then_some(Self { address, prefix })
        };
        let network = parsed().ok_or_else(|| StackError::BadNetwork {
            text: text.to_owned(),
        })?;
        match network.why_no_host() {
            None => Ok(network),
            Some(why) => Err(StackError::NotAHost {
                text: text.to_owned(),
                why,
            }),
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// Addresses and gateways of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addressing {
    /// Interface addresses: one to eight.
    pub networks: Vec<Network>,
    /// Default gateways, at most one for each IP version.
    pub gateways: Vec<IpAddr>,
    /// Ethernet address; `None`: that of the port, or one derived from the first IP address.
    pub ethernet: Option<[u8; 6]>,
    /// Seed of port and sequence numbers; runs with equal seeds are equal.
    pub seed: u64,
}

/// Addresses that a smoltcp interface can hold (feature `iface-max-addr-count-8`).
const MOST_NETWORKS: usize = 8;
/// A gateway for each IP version.
const MOST_GATEWAYS: usize = 2;

impl Addressing {
    /// Returns an addressing with these interface addresses and no gateway.
    ///
    /// # Errors
    /// [`StackError::BadNetwork`] or [`StackError::NotAHost`] for an address;
    /// [`StackError::Contradiction`] for none or more than eight.
    pub fn new(networks: &[&str]) -> Result<Self, StackError> {
        let networks: Result<Vec<Network>, _> = networks.iter().map(|text| text.parse()).collect();
        let addressing = Self {
            networks: networks?,
            gateways: Vec::new(),
            ethernet: None,
            seed: 0x6c69_6e65_7261_7465,
        };
        addressing.check()?;
        Ok(addressing)
    }

    /// Heap bytes of what [`Addressing::copied`] returns.
    pub(crate) const HEAP_BYTES: usize =
        MOST_NETWORKS * size_of::<Network>() + MOST_GATEWAYS * size_of::<IpAddr>();

    /// Copies with full capacity whatever the number of entries, so that a stack's memory is known
    /// beforehand.
    pub(crate) fn copied(&self) -> Self {
        let mut networks = Vec::with_capacity(MOST_NETWORKS);
        networks.extend_from_slice(&self.networks);
        let mut gateways = Vec::with_capacity(MOST_GATEWAYS);
        gateways.extend_from_slice(&self.gateways);
        Self {
            networks,
            gateways,
            ..*self
        }
    }

    pub(crate) fn check(&self) -> Result<(), StackError> {
        let refused = |why: String, remedy: &str| {
            Err(StackError::Contradiction {
                why,
                remedy: remedy.to_owned(),
            })
        };
        if self.networks.is_empty() || self.networks.len() > MOST_NETWORKS {
            return refused(
                format!("the stack has {} addresses", self.networks.len()),
                "give it one to eight",
            );
        }
        if self.gateways.len() > MOST_GATEWAYS {
            return refused(
                format!("the stack has {} gateways", self.gateways.len()),
                "give it at most one for each IP version",
            );
        }
        for (at, own) in self.networks.iter().enumerate() {
            if self.networks[..at]
                .iter()
                .any(|other| other.address == own.address)
            {
                return refused(
                    format!("the stack's address {} is given twice", own.address),
                    "give each address once",
                );
            }
        }
        for (at, gateway) in self.gateways.iter().enumerate() {
            if self.is_own(*gateway) {
                return refused(
                    format!("the gateway {gateway} is an address of the stack itself"),
                    "give another host of its network",
                );
            }
            let mut before = self.gateways[..at].iter();
            if let Some(other) = before.find(|other| other.is_ipv4() == gateway.is_ipv4()) {
                return refused(
                    format!("the stack cannot choose between the gateways {other} and {gateway}"),
                    "give it at most one for each IP version",
                );
            }
            if !self.networks.iter().any(|own| own.contains(*gateway)) {
                return refused(
                    format!("the gateway {gateway} is in no network of the stack"),
                    "give a gateway in a network of the stack",
                );
            }
        }
        if self.ethernet.is_some_and(|address| address[0] & 1 != 0) {
            return refused(
                "the stack's Ethernet address is a multicast address".to_owned(),
                "give one whose first byte is even",
            );
        }
        Ok(())
    }

    /// Returns whether an address belongs to the stack.
    #[must_use]
    #[inline]
    pub fn is_own(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|own| own.address == address)
    }

    /// Returns whether an address is a broadcast address.
    #[must_use]
    pub fn is_broadcast(&self, address: Ipv4Addr) -> bool {
        address == Ipv4Addr::BROADCAST
            || self
                .networks
                .iter()
                .any(|own| own.broadcast() == Some(address))
    }

    /// Returns whether packets to this address are for the stack.
    #[inline(always)]
    pub(crate) fn accepts(&self, address: IpAddr) -> bool {
        self.is_own(address) || self.is_for_many(address)
    }

    /// Returns whether an address is invalid as a source (RFC 1122, section 3.2.1.3; RFC 4291,
    /// section 2.5): multicast, broadcast, loopback or "this host". The unspecified IPv6 address is
    /// left to the caller: duplicate address detection sends from it.
    #[inline(always)]
    pub(crate) fn is_nobody(&self, from: IpAddr) -> bool {
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
    fn is_for_many(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.is_broadcast(address) || address == ALL_HOSTS_V4,
            IpAddr::V6(address) => address == ALL_NODES_V6
                || self.networks.iter().any(
                    |own| matches!(own.address, IpAddr::V6(own) if solicited_node(own) == address),
                ),
        }
    }

    /// Returns the next hop towards an address; `None` without a route.
    #[must_use]
    pub fn next_hop(&self, to: IpAddr) -> Option<IpAddr> {
        if self.networks.iter().any(|own| own.contains(to)) || self.is_on_the_link(to) {
            return Some(to);
        }
        self.gateways
            .iter()
            .copied()
            .find(|gateway| gateway.is_ipv4() == to.is_ipv4())
    }

    /// Returns whether an address is link-local, which every IPv6 interface has. Linux sends its
    /// unreachability probes from it (RFC 4861, section 7.3.3).
    fn is_on_the_link(&self, to: IpAddr) -> bool {
        let v6 = |own: &Network| own.address.is_ipv6();
        matches!(to, IpAddr::V6(to) if to.is_unicast_link_local()) && self.networks.iter().any(v6)
    }

    /// Returns the source address of packets to `to`.
    pub(crate) fn source_for(&self, to: IpAddr) -> Option<IpAddr> {
        let near = self.networks.iter().find(|own| own.contains(to));
        let same = || {
            self.networks
                .iter()
                .find(|own| own.address.is_ipv4() == to.is_ipv4())
        };
        near.or_else(same).map(|own| own.address)
    }

    /// Returns a locally administered Ethernet address derived from the first IP address, so that
    /// stacks with different addresses never share one.
    pub(crate) fn made_ethernet(&self) -> [u8; 6] {
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
pub(crate) fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
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
    fn ways_are_found() {
        let mut own = Addressing::new(&["10.0.0.2/24", "192.168.9.1/30", "fd00::2/64"]).unwrap();
        own.gateways.push("10.0.0.1".parse().unwrap());
        own.check().unwrap();
        for (to, want, from) in [
            ("10.0.0.9", Some("10.0.0.9"), "10.0.0.2"),
            ("192.168.9.2", Some("192.168.9.2"), "192.168.9.1"),
            ("8.8.8.8", Some("10.0.0.1"), "10.0.0.2"),
            ("fd00::9", Some("fd00::9"), "fd00::2"),
            ("fd01::9", None, "fd00::2"),
            ("fe80::9", Some("fe80::9"), "fd00::2"),
        ] {
            let to: IpAddr = to.parse().unwrap();
            assert_eq!(
                own.next_hop(to),
                want.map(|text| text.parse().unwrap()),
                "{to}"
            );
            assert_eq!(own.source_for(to), Some(from.parse().unwrap()), "{to}");
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
            assert_eq!(own.accepts(address.parse().unwrap()), accepted, "{address}");
        }
        for (gateway, why) in [
            ("10.9.0.1", "choose between"),
            ("fd09::1", "no network"),
            ("fd00::2", "itself"),
        ] {
            let mut wrong = own.clone();
            wrong.gateways.push(gateway.parse().unwrap());
            let refused = wrong.check().unwrap_err().to_string();
            assert!(refused.contains(why), "{gateway}: {refused}");
        }
        let twice = Addressing::new(&["10.0.0.2/24", "10.0.0.2/16"]).unwrap_err();
        assert!(twice.to_string().contains("twice"), "{twice}");
    }

    #[test]
    fn nobody_has_some_addresses() {
        let own = Addressing::new(&["10.0.0.2/24", "192.168.9.1/30", "fd00::2/64"]).unwrap();
        for (from, nobody) in [
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
            assert_eq!(own.is_nobody(from.parse().unwrap()), nobody, "{from}");
        }
    }

    #[test]
    fn what_is_no_network_is_refused() {
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
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
        assert!(Addressing::new(&[]).is_err());
        let v4 = Addressing::new(&["10.0.0.2/24"]).unwrap();
        assert_eq!(v4.next_hop("fe80::9".parse().unwrap()), None);
        let point: Network = "10.0.0.2/32".parse().unwrap();
        assert!(!point.contains("10.0.0.3".parse().unwrap()));
        let all: Network = "10.0.0.2/0".parse().unwrap();
        assert!(all.contains("8.8.8.8".parse().unwrap()));
    }
}
