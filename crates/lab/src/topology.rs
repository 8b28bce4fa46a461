//! What network is asked for: hosts, switches and links, as the lab file says it.
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
//! Pure data: reading and checking a topology touches neither the kernel nor a file.

mod figure;
mod validate;

use std::collections::BTreeMap;
use std::time::Duration;

use linerate_metric::units::{BitRate, ByteSize};
use serde::{Deserialize, Serialize};

pub(crate) use validate::ETHERNET_HEADER_BYTES;
pub use validate::TopologyError;

/// The largest GSO size that the kernel takes, in bytes: `GSO_MAX_SIZE` of linux/netdevice.h,
/// eight times 65535.
pub const GSO_MAX_BYTES: u64 = 524_280;
/// Frames of Ethernet without jumbo: what a link has when nothing is asked for.
pub const DEFAULT_MTU: u32 = 1500;
/// The smallest MTU that IPv6 allows (RFC 8200 §5). A lab with a smaller one has IPv4 alone.
pub const IPV6_MIN_MTU: u32 = 1280;

/// A whole network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// Hosts by name, in the order of the file: addresses are given in this order.
    #[serde(default, with = "figure::named")]
    pub hosts: Vec<(String, Host)>,
    /// Switches by name, in the order of the file.
    #[serde(default, with = "figure::named")]
    pub switches: Vec<(String, Switch)>,
    /// Links, in the order of the file: a host's interfaces are numbered in this order.
    #[serde(default)]
    pub links: Vec<Link>,
}

/// A host: a network namespace with an interface for each of its links.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// IPv4 address and prefix length of its first interface; the next free one when absent. The
    /// other hosts on the segment then get addresses of this network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Ipv4Prefix>,
}

/// A switch: a Linux bridge without spanning tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Switch {}

/// A link: a veth pair between two of the hosts and switches. Everything asked for holds in both
/// directions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// The names of its two ends.
    #[serde(deserialize_with = "figure::two_names")]
    pub between: [String; 2],
    /// Largest packet in bytes, without the Ethernet header; 1500 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Rate of each direction in bit/s, Ethernet header counted and FCS, preamble and gap not
    /// (as the token bucket counts).
    #[serde(
        default,
        with = "figure::rate",
        skip_serializing_if = "Option::is_none"
    )]
    pub rate: Option<BitRate>,
    /// Bytes that may leave at once after a pause; needs `rate`.
    #[serde(
        default,
        with = "figure::size",
        skip_serializing_if = "Option::is_none"
    )]
    pub burst: Option<ByteSize>,
    /// Bytes that wait before the link drops; needs `rate` or `delay`.
    #[serde(
        default,
        with = "figure::size",
        skip_serializing_if = "Option::is_none"
    )]
    pub queue: Option<ByteSize>,
    /// Time that every packet is held, each way.
    #[serde(
        default,
        with = "figure::duration",
        skip_serializing_if = "Option::is_none"
    )]
    pub delay: Option<Duration>,
    /// By how much `delay` varies; needs `delay`.
    #[serde(
        default,
        with = "figure::duration",
        skip_serializing_if = "Option::is_none"
    )]
    pub jitter: Option<Duration>,
    /// Share of packets that are lost, `0.0..=1.0`.
    #[serde(
        default,
        with = "figure::share",
        skip_serializing_if = "Option::is_none"
    )]
    pub loss: Option<f64>,
    /// Share of packets that overtake by skipping `delay`, `0.0..=1.0`; needs `delay`.
    #[serde(
        default,
        with = "figure::share",
        skip_serializing_if = "Option::is_none"
    )]
    pub reorder: Option<f64>,
    /// Largest segment that GSO and GRO build, in bytes, for IPv4 and IPv6; at most 524280 (`512K` is
    /// taken as that).
    #[serde(
        default,
        with = "figure::size",
        skip_serializing_if = "Option::is_none"
    )]
    pub gso: Option<ByteSize>,
    /// Offloads to switch, by ethtool's name: `tso`, `gso`, `gro`, `tx-checksumming`,
    /// `rx-checksumming`, `scatter-gather`, or a feature such as `tx-udp-segmentation`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub offloads: BTreeMap<String, bool>,
}

impl Link {
    /// A plain link.
    #[must_use]
    pub fn between(one: &str, other: &str) -> Self {
        Self {
            between: [one.to_owned(), other.to_owned()],
            ..Self::default()
        }
    }

    /// Its MTU in bytes, given or default.
    #[must_use]
    pub fn mtu(&self) -> u32 {
        self.mtu.unwrap_or(DEFAULT_MTU)
    }

    /// The GSO size asked for, as the kernel takes it: `512K` is eight bytes more than its largest,
    /// and what people write for that.
    #[must_use]
    pub fn gso_bytes(&self) -> Option<u32> {
        let asked = self.gso?.0.min(GSO_MAX_BYTES);
        u32::try_from(asked).ok()
    }

    /// `client-s1`: how messages call it.
    #[must_use]
    pub fn label(&self) -> String {
        self.between.join("-")
    }

    /// Whether it asks for what only netem makes.
    #[must_use]
    pub fn needs_netem(&self) -> bool {
        self.delay.is_some()
            || self.jitter.is_some()
            || self.loss.is_some()
            || self.reorder.is_some()
    }
}

/// What is wrong with a file, on one line: its line's number, what stands there, and why not.
fn placed(text: &str, error: &toml::de::Error) -> String {
    let why = error.message().replace('\n', ", ");
    let Some(before) = error.span().and_then(|span| text.get(..span.start)) else {
        return why;
    };
    let number = before.matches('\n').count() + 1;
    let line = text.lines().nth(number - 1).unwrap_or_default();
    format!("line {number}, `{}`: {why}", line.trim())
}

impl Topology {
    /// Reads and checks a lab file.
    ///
    /// # Errors
    /// [`TopologyError::Syntax`] with the place in the file for what is not a lab file, and the other
    /// variants as [`Topology::validate`].
    pub fn from_toml(text: &str) -> Result<Self, TopologyError> {
        let topology: Self =
            toml::from_str(text).map_err(|error| TopologyError::Syntax(placed(text, &error)))?;
        topology.validate()?;
        Ok(topology)
    }

    /// Hosts `client` and `server` with `switches` switches (`s1`, `s2`, ...) in a row between
    /// them; with none, one veth pair.
    #[must_use]
    pub fn hops(switches: usize) -> Self {
        let names: Vec<String> = (1..=switches).map(|number| format!("s{number}")).collect();
        let mut row = vec!["client"];
        row.extend(names.iter().map(String::as_str));
        row.push("server");
        Self {
            hosts: ["client", "server"]
                .map(|name| (name.to_owned(), Host::default()))
                .into(),
            links: row
                .windows(2)
                .map(|pair| Link::between(pair[0], pair[1]))
                .collect(),
            switches: names
                .into_iter()
                .map(|name| (name, Switch::default()))
                .collect(),
        }
    }

    /// Checks that such a network can be built.
    ///
    /// # Errors
    /// The first thing found wrong, with the name of the offending item.
    pub fn validate(&self) -> Result<(), TopologyError> {
        validate::validate(self)?;
        // Addresses and routes are worked out here as well: a clash is the file's fault.
        crate::layout::Layout::of(self).map(drop)
    }
}

/// An IPv4 address with the prefix length of its network, as `10.77.0.2/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ipv4Prefix {
    /// The address of the host itself.
    pub address: std::net::Ipv4Addr,
    /// Bits of the network, `1..=30`.
    pub length: u8,
}

impl Ipv4Prefix {
    /// The bits of the network as a mask.
    #[must_use]
    pub fn mask(self) -> u32 {
        u32::MAX << (32 - u32::from(self.length.clamp(1, 32)))
    }

    /// The network's first address.
    #[must_use]
    pub fn network(self) -> u32 {
        self.address.to_bits() & self.mask()
    }

    /// The bits that tell hosts of the network apart.
    #[must_use]
    pub fn host_number(self) -> u32 {
        self.address.to_bits() & !self.mask()
    }

    /// The largest number a host of the network can have (the one above is the broadcast address).
    #[must_use]
    pub fn last_host(self) -> u32 {
        !self.mask() - 1
    }

    /// Whether the two networks share an address.
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
        let wrong = |why: &str| format!("`{text}` {why}: write it as 10.77.0.2/24");
        let (address, length) = text
            .split_once('/')
            .ok_or_else(|| wrong("has no prefix length"))?;
        let prefix = Self {
            address: address
                .parse()
                .map_err(|_| wrong("does not start with an IPv4 address"))?,
            length: length
                .parse()
                .ok()
                .filter(|length| (1..=30).contains(length))
                .ok_or_else(|| wrong("has no prefix length of 1 to 30"))?,
        };
        let usable = !prefix.address.is_loopback()
            && !prefix.address.is_multicast()
            && prefix.address.octets()[0] != 0
            && prefix.address.octets()[0] < 240;
        if !usable {
            return Err(wrong("is no address that a host can have"));
        }
        if prefix.host_number() == 0 || prefix.host_number() > prefix.last_host() {
            return Err(wrong("is the network's own or its broadcast address"));
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
