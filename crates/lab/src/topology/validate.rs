//! Checks of a topology before anything is built.

use std::collections::HashSet;

use super::{GSO_MAX_BYTES, LinkSpec, Topology};

/// Longest name of a host or a switch in bytes: the kernel's limit for interface names, because a
/// switch is an interface.
const NAME_BYTES: usize = 15;
/// MTUs of veth in bytes: `ETH_MIN_MTU` to `ETH_MAX_MTU`.
const MTU: std::ops::RangeInclusive<u32> = 68..=65_535;
/// `512K`, accepted for [`GSO_MAX_BYTES`].
const GSO_WRITTEN_MAX: u64 = 512 * 1024;
const _: () = assert!(GSO_WRITTEN_MAX - GSO_MAX_BYTES == 8);
/// Bytes of the Ethernet header, which the token bucket counts.
pub(crate) const ETHERNET_HEADER_BYTES: u32 = 14;

/// Error in a lab file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each text names the situation and its fields")]
pub enum TopologyError {
    #[error("not a lab file: {0}")]
    Syntax(String),
    #[error("the lab has no hosts: add [hosts.client] and [hosts.server]")]
    NoHosts,
    #[error(
        "`{name}` cannot be a name: use 1 to 15 letters, digits, `-` and `_`, with a letter or digit first (`lo`, `all` and `default` are the kernel's)"
    )]
    BadName { name: String },
    #[error("`{name}` is used twice: every host and switch needs a name of its own")]
    DuplicateName { name: String },
    #[error(
        "link {link} ends at `{name}`, which is neither a host nor a switch: choose one of {available}"
    )]
    UnknownEnd {
        link: String,
        name: String,
        available: String,
    },
    #[error("link {link} joins `{name}` with itself: name two ends")]
    SelfLink { link: String, name: String },
    #[error("`{name}` has no link: join it with [[links]] or remove it")]
    Unlinked { name: String },
    #[error(
        "`{first}` and `{second}` are not connected: add a link between their parts of the network"
    )]
    Disconnected { first: String, second: String },
    #[error(
        "link {link} closes a loop of switches, in which broadcasts would circulate for ever: remove one link of the loop"
    )]
    SwitchLoop { link: String },
    #[error(
        "host `{host}` has two links to the same segment (interfaces {interfaces}): remove one, or connect it to another switch"
    )]
    DuplicateSegment { host: String, interfaces: String },
    #[error("link {link}: mtu {mtu} is not possible: choose 68 to 65535 bytes")]
    InvalidMtu { link: String, mtu: u32 },
    #[error(
        "link {link}: gso {bytes} is not possible: the kernel accepts at most 524280 bytes (`512K` means that), and a frame has {mtu} plus 14"
    )]
    InvalidGso { link: String, bytes: u64, mtu: u32 },
    #[error("link {link}: rate {rate} bit/s is not possible: choose 8 bit/s to 10T")]
    InvalidRate { link: String, rate: u64 },
    #[error(
        "link {link}: {property} of {bytes} bytes is not possible: choose {min_bytes} (one frame) to 4294967295"
    )]
    InvalidSize {
        link: String,
        property: &'static str,
        bytes: u64,
        min_bytes: u64,
    },
    #[error("link {link}: {property} needs {requires}: add it or remove {property}")]
    MissingDependency {
        link: String,
        property: &'static str,
        requires: &'static str,
    },
    #[error(
        "link {link}: {property} {value} is not a share: choose 0 to 1, or \"0%\" to \"100%\" (5 % is 0.05 or \"5%\")"
    )]
    InvalidShare {
        link: String,
        property: &'static str,
        value: String,
    },
    #[error("link {link}: {property} of {seconds} s is longer than an hour: did you mean ms?")]
    DelayTooLong {
        link: String,
        property: &'static str,
        seconds: u64,
    },
    #[error(
        "link {link}: `{name}` is not an offload: use tso, gso, gro, tx-checksumming, rx-checksumming, scatter-gather or a feature that `ethtool -k` lists"
    )]
    UnknownOffload { link: String, name: String },
    #[error("link {link}: `{name}` and `{duplicate_of}` are the same offload: keep one")]
    DuplicateOffload {
        link: String,
        name: String,
        duplicate_of: String,
    },
    #[error(
        "hosts `{first}` and `{second}` have the same address {address}: change one or leave it out"
    )]
    DuplicateAddress {
        first: String,
        second: String,
        address: String,
    },
    #[error(
        "address {address} of `{host}` is not in {network}, the network of `{neighbour}` on the same segment: change one of them"
    )]
    NotInNetwork {
        host: String,
        address: String,
        neighbour: String,
        network: String,
    },
    #[error(
        "networks {first} and {second} overlap, but are not on the same segment: change the address of `{host}`"
    )]
    Overlap {
        first: String,
        second: String,
        host: String,
    },
    #[error("network {network} has no address left for `{host}`: use a shorter prefix")]
    NetworkFull { network: String, host: String },
}

pub(super) fn validate(topology: &Topology) -> Result<(), TopologyError> {
    if topology.hosts.is_empty() {
        return Err(TopologyError::NoHosts);
    }
    check_names(topology)?;
    for link in &topology.links {
        check_ends(topology, link)?;
        check_numbers(link)?;
        check_dependencies(link)?;
        check_offloads(link)?;
    }
    check_connected(topology)
}

fn all_names(topology: &Topology) -> impl Iterator<Item = &String> {
    let hosts = topology.hosts.iter().map(|(name, _)| name);
    hosts.chain(topology.switches.iter().map(|(name, _)| name))
}

fn check_names(topology: &Topology) -> Result<(), TopologyError> {
    let mut used = HashSet::new();
    for name in all_names(topology) {
        // No `.` although the kernel accepts it: the name would look like a domain, and sysctl
        // treats dots specially. `/` separates the lab from the host on the command line.
        let good = (1..=NAME_BYTES).contains(&name.len())
            && name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
        // All switches are interfaces of one namespace, which already has interface `lo`.
        if !good || name == "lo" || name == "all" || name == "default" {
            return Err(TopologyError::BadName { name: name.clone() });
        }
        if !used.insert(name) {
            return Err(TopologyError::DuplicateName { name: name.clone() });
        }
    }
    Ok(())
}

fn check_ends(topology: &Topology, link: &LinkSpec) -> Result<(), TopologyError> {
    for name in &link.between {
        if !all_names(topology).any(|available| available == name) {
            let available: Vec<&str> = all_names(topology).map(String::as_str).collect();
            return Err(TopologyError::UnknownEnd {
                link: link.label(),
                name: name.clone(),
                available: available.join(", "),
            });
        }
    }
    if link.between[0] == link.between[1] {
        return Err(TopologyError::SelfLink {
            link: link.label(),
            name: link.between[0].clone(),
        });
    }
    Ok(())
}

fn check_numbers(link: &LinkSpec) -> Result<(), TopologyError> {
    let label = || link.label();
    let mtu = link.mtu();
    if !MTU.contains(&mtu) {
        return Err(TopologyError::InvalidMtu { link: label(), mtu });
    }
    let frame = u64::from(mtu + ETHERNET_HEADER_BYTES);
    if let Some(gso) = link.gso
        // Below one frame, ordinary packets would no longer pass the device.
        && !(frame..=GSO_WRITTEN_MAX).contains(&gso.0)
    {
        return Err(TopologyError::InvalidGso {
            link: label(),
            bytes: gso.0,
            mtu,
        });
    }
    // 8 bit/s is one byte per second, the token bucket's unit.
    if let Some(rate) = link.rate
        && !(8..=10_000_000_000_000).contains(&rate.0)
    {
        return Err(TopologyError::InvalidRate {
            link: label(),
            rate: rate.0,
        });
    }
    for (property, size) in [("burst", link.burst), ("queue", link.queue)] {
        if let Some(size) = size
            && !(frame..=u64::from(u32::MAX)).contains(&size.0)
        {
            return Err(TopologyError::InvalidSize {
                link: label(),
                property,
                bytes: size.0,
                min_bytes: frame,
            });
        }
    }
    Ok(())
}

fn check_dependencies(link: &LinkSpec) -> Result<(), TopologyError> {
    let label = || link.label();
    let requires = [
        ("burst", link.burst.is_some(), "rate", link.rate.is_some()),
        (
            "queue",
            link.queue.is_some(),
            "rate or delay",
            link.rate.is_some() || link.delay.is_some(),
        ),
        (
            "jitter",
            link.jitter.is_some(),
            "delay",
            link.delay.is_some(),
        ),
        (
            "reorder",
            link.reorder.is_some(),
            "delay",
            link.delay.is_some(),
        ),
    ];
    for (property, is_set, requires, there) in requires {
        if is_set && !there {
            return Err(TopologyError::MissingDependency {
                link: label(),
                property,
                requires,
            });
        }
    }
    for (property, share) in [("loss", link.loss), ("reorder", link.reorder)] {
        if let Some(share) = share
            && !(0.0..=1.0).contains(&share)
        {
            return Err(TopologyError::InvalidShare {
                link: label(),
                property,
                value: share.to_string(),
            });
        }
    }
    for (property, time) in [("delay", link.delay), ("jitter", link.jitter)] {
        if let Some(time) = time
            && time.as_secs() > 3600
        {
            return Err(TopologyError::DelayTooLong {
                link: label(),
                property,
                seconds: time.as_secs(),
            });
        }
    }
    Ok(())
}

fn check_offloads(link: &LinkSpec) -> Result<(), TopologyError> {
    let mut used: Vec<(crate::offload::Offload, &String)> = Vec::new();
    for name in link.offloads.keys() {
        let offload =
            crate::offload::Offload::parse(name).ok_or_else(|| TopologyError::UnknownOffload {
                link: link.label(),
                name: name.clone(),
            })?;
        if let Some((_, other)) = used.iter().find(|(known, _)| *known == offload) {
            return Err(TopologyError::DuplicateOffload {
                link: link.label(),
                name: name.clone(),
                duplicate_of: (*other).clone(),
            });
        }
        used.push((offload, name));
    }
    Ok(())
}

/// Checks that every host and switch is connected to the first host.
fn check_connected(topology: &Topology) -> Result<(), TopologyError> {
    for name in all_names(topology) {
        let linked = topology
            .links
            .iter()
            .any(|link| link.between.contains(name));
        if !linked {
            return Err(TopologyError::Unlinked { name: name.clone() });
        }
    }
    let first = &topology.hosts[0].0;
    let mut reached = HashSet::from([first]);
    let mut waiting = vec![first];
    while let Some(name) = waiting.pop() {
        for link in &topology.links {
            let [one, other] = &link.between;
            for (from, to) in [(one, other), (other, one)] {
                if from == name && reached.insert(to) {
                    waiting.push(to);
                }
            }
        }
    }
    match all_names(topology).find(|name| !reached.contains(name)) {
        Some(name) => Err(TopologyError::Disconnected {
            first: first.clone(),
            second: name.clone(),
        }),
        None => Ok(()),
    }
}
