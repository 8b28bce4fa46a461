//! Requested network: hosts, switches and links, as a lab file describes them.
//!
//! ```toml
//! [hosts.client]
//! [hosts.server]
//! address = "10.77.0.2/24"
//! [switches.s1]
//! [[links]]
//! between = ["client", "s1"]
//! rate = "1G"
//! [[links]]
//! between = ["s1", "server"]
//! ```
//!
//! Pure data: reading and checking a topology accesses neither the kernel nor a file.

mod error;
mod figure;

use std::collections::BTreeMap;
use std::time::Duration;

use linerate_stats::units::{BitRate, ByteSize};
use serde::{Deserialize, Serialize};

pub use error::TopologyError;

/// Largest GSO size that the kernel accepts, in bytes: `GSO_MAX_SIZE` of linux/netdevice.h, eight
/// times 65535.
pub const GSO_MAX_BYTES: u64 = 524_280;
/// Bytes of the Ethernet header, which the token bucket counts.
pub(crate) const ETHERNET_HEADER_BYTES: u32 = 14;
/// Default MTU of a link in bytes: Ethernet without jumbo frames.
pub const DEFAULT_MTU: u32 = 1500;
/// Smallest MTU that IPv6 allows (RFC 8200 §5). A lab with a smaller one has only IPv4.
pub const IPV6_MIN_MTU: u32 = 1280;

/// Hosts, switches and links of a network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// Hosts by name, in the order of the file: addresses are given in this order.
    #[serde(default, with = "figure::named")]
    pub hosts: Vec<(String, HostSpec)>,
    /// Switches by name, in the order of the file.
    #[serde(default, with = "figure::named")]
    pub switches: Vec<(String, SwitchSpec)>,
    /// Links, in the order of the file: a host's interfaces are numbered in this order.
    #[serde(default)]
    pub links: Vec<LinkSpec>,
}

/// Host: a network namespace with one interface a link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostSpec {
    /// IPv4 address and prefix length of the first interface; the next free one when absent. The
    /// other hosts on the segment get addresses of this network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Ipv4Prefix>,
}

/// Switch: a Linux bridge without spanning tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchSpec {}

/// Link: a veth pair between two hosts or switches. All properties apply to both directions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSpec {
    /// Names of the two ends.
    #[serde(deserialize_with = "figure::two_names")]
    pub between: [String; 2],
    /// Largest packet in bytes, without the Ethernet header; 1500 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Rate of each direction in bit/s, with the Ethernet header but without FCS, preamble and gap
    /// (as the token bucket counts).
    #[serde(
        default,
        with = "figure::rate",
        skip_serializing_if = "Option::is_none"
    )]
    pub rate: Option<BitRate>,
    /// Bytes that may be sent at once after a pause; needs `rate`.
    #[serde(
        default,
        with = "figure::size",
        skip_serializing_if = "Option::is_none"
    )]
    pub burst: Option<ByteSize>,
    /// Bytes queued before the link drops; needs `rate` or `delay`.
    #[serde(
        default,
        with = "figure::size",
        skip_serializing_if = "Option::is_none"
    )]
    pub queue: Option<ByteSize>,
    /// Delay of each direction.
    #[serde(
        default,
        with = "figure::duration",
        skip_serializing_if = "Option::is_none"
    )]
    pub delay: Option<Duration>,
    /// Variation of `delay`; needs `delay`.
    #[serde(
        default,
        with = "figure::duration",
        skip_serializing_if = "Option::is_none"
    )]
    pub jitter: Option<Duration>,
    /// Fraction of packets that are lost, `0.0..=1.0`.
    #[serde(
        default,
        with = "figure::share",
        skip_serializing_if = "Option::is_none"
    )]
    pub loss: Option<f64>,
    /// Fraction of packets that skip `delay` and so overtake others, `0.0..=1.0`; needs `delay`.
    #[serde(
        default,
        with = "figure::share",
        skip_serializing_if = "Option::is_none"
    )]
    pub reorder: Option<f64>,
    /// Largest segment that GSO and GRO build, in bytes, for IPv4 and IPv6; at most 524280 (`512K`
    /// is accepted for that).
    #[serde(
        default,
        with = "figure::size",
        skip_serializing_if = "Option::is_none"
    )]
    pub gso: Option<ByteSize>,
    /// Offloads to switch, by ethtool name: `tso`, `gso`, `gro`, `tx-checksumming`,
    /// `rx-checksumming`, `scatter-gather`, or a feature such as `tx-udp-segmentation`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub offloads: BTreeMap<String, bool>,
}

impl LinkSpec {
    /// Returns a link without any properties.
    #[must_use]
    pub fn between(one: &str, other: &str) -> Self {
        Self {
            between: [one.to_owned(), other.to_owned()],
            ..Self::default()
        }
    }

    /// Returns the MTU in bytes, given or default.
    #[must_use]
    pub fn mtu(&self) -> u32 {
        self.mtu.unwrap_or(DEFAULT_MTU)
    }

    /// Returns the requested GSO size in bytes, capped at the kernel's maximum: `512K`, eight bytes
    /// more than that, is accepted as the customary spelling.
    #[must_use]
    pub fn gso_bytes(&self) -> Option<u32> {
        let requested = self.gso?.0.min(GSO_MAX_BYTES);
        u32::try_from(requested).ok()
    }

    /// Returns the name of the link in messages: `client-s1`.
    #[must_use]
    pub fn label(&self) -> String {
        self.between.join("-")
    }

    /// Returns whether the link needs netem.
    #[must_use]
    pub fn needs_netem(&self) -> bool {
        self.delay.is_some()
            || self.jitter.is_some()
            || self.loss.is_some()
            || self.reorder.is_some()
    }
}

impl Topology {
    /// Returns hosts `client` and `server` with a row of `switches` switches (`s1`, `s2`, ...)
    /// between them; with none, one veth pair.
    #[must_use]
    pub fn hops(switches: usize) -> Self {
        let names: Vec<String> = (1..=switches).map(|number| format!("s{number}")).collect();
        let mut row = vec!["client"];
        row.extend(names.iter().map(String::as_str));
        row.push("server");
        Self {
            hosts: ["client", "server"]
                .map(|name| (name.to_owned(), HostSpec::default()))
                .into(),
            links: row
                .windows(2)
                .map(|pair| LinkSpec::between(pair[0], pair[1]))
                .collect(),
            switches: names
                .into_iter()
                .map(|name| (name, SwitchSpec::default()))
                .collect(),
        }
    }
}

/// IPv4 address with the prefix length of its network, as `10.77.0.2/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ipv4Prefix {
    /// Address of the host.
    pub address: std::net::Ipv4Addr,
    /// Prefix length in bits, `1..=30`.
    pub length: u8,
}

impl Ipv4Prefix {
    /// Returns the netmask.
    #[must_use]
    pub fn mask(self) -> u32 {
        u32::MAX << (32 - u32::from(self.length.clamp(1, 32)))
    }

    /// Returns the network address.
    #[must_use]
    pub fn network(self) -> u32 {
        self.address.to_bits() & self.mask()
    }

    /// Returns the host bits of the address.
    #[must_use]
    pub fn host_number(self) -> u32 {
        self.address.to_bits() & !self.mask()
    }

    /// Returns the largest host number in the network (the next one is the broadcast address).
    #[must_use]
    pub fn last_host(self) -> u32 {
        !self.mask() - 1
    }

    /// Returns whether the two networks share an address.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        let mask = self.mask() & other.mask();
        self.address.to_bits() & mask == other.address.to_bits() & mask
    }
}

impl std::fmt::Display for Ipv4Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl std::str::FromStr for Ipv4Prefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error = |why: &str| format!("`{text}` {why}: write it as 10.77.0.2/24");
        let (address, length) = text
            .split_once('/')
            .ok_or_else(|| error("has no prefix length"))?;
        let prefix = Self {
            address: address
                .parse()
                .map_err(|_| error("does not start with an IPv4 address"))?,
            length: length
                .parse()
                .ok()
                .filter(|length| (1..=30).contains(length))
                .ok_or_else(|| error("has no prefix length of 1 to 30"))?,
        };
        let usable = !prefix.address.is_loopback()
            && !prefix.address.is_multicast()
            && prefix.address.octets()[0] != 0
            && prefix.address.octets()[0] < 240;
        if !usable {
            return Err(error("is not a valid host address"));
        }
        if prefix.host_number() == 0 || prefix.host_number() > prefix.last_host() {
            return Err(error("is the network or the broadcast address"));
        }
        Ok(prefix)
    }
}

impl Serialize for Ipv4Prefix {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Ipv4Prefix {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests;
