//! Reading and validation of a lab file before anything is built.

use std::collections::HashSet;

use crate::layout::Layout;
use crate::offload::Offload;
use crate::topology::{ETHERNET_HEADER_BYTES, GSO_MAX_BYTES, LinkSpec, Topology, TopologyError};

/// Longest name of a host or a switch in bytes: the kernel's limit for interface names, because a
/// switch is an interface.
const NAME_BYTES: usize = 15;
/// MTUs of veth in bytes: `ETH_MIN_MTU` to `ETH_MAX_MTU`.
const MTU: std::ops::RangeInclusive<u32> = 68..=65_535;
/// `512K`, accepted for [`GSO_MAX_BYTES`].
const GSO_WRITTEN_MAX: u64 = 512 * 1024;
const _: () = assert!(GSO_WRITTEN_MAX - GSO_MAX_BYTES == 8);

impl Topology {
    /// Reads and checks a lab file.
    ///
    /// # Errors
    /// [`TopologyError::Syntax`] with line number and text for an invalid file, and the other
    /// variants as [`Topology::validate`].
    pub fn from_toml(text: &str) -> Result<Self, TopologyError> {
        let topology: Self = toml::from_str(text)
            .map_err(|error| TopologyError::Syntax(located_message(text, &error)))?;
        topology.validate()?;
        Ok(topology)
    }

    /// Checks that such a network can be built.
    ///
    /// # Errors
    /// The first error, with the name of the offending item.
    pub fn validate(&self) -> Result<(), TopologyError> {
        if self.hosts.is_empty() {
            return Err(TopologyError::NoHosts);
        }
        check_names(self)?;
        for link in &self.links {
            check_ends(self, link)?;
            check_numbers(link)?;
            check_dependencies(link)?;
            check_offloads(link)?;
        }
        check_connected(self)?;
        // Addresses and routes are computed here as well: a clash is an error of the file.
        Layout::from_topology(self).map(drop)
    }
}

/// Formats a parser error on one line: line number, text of the line, reason.
fn located_message(text: &str, error: &toml::de::Error) -> String {
    let why = error.message().replace('\n', ", ");
    let Some(before) = error.span().and_then(|span| text.get(..span.start)) else {
        return why;
    };
    let number = before.matches('\n').count() + 1;
    let line = text.lines().nth(number - 1).unwrap_or_default();
    format!("line {number}, `{}`: {why}", line.trim())
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
    for (property, is_set, requires, has_required) in requires {
        if is_set && !has_required {
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
    let mut used: Vec<(Offload, &String)> = Vec::new();
    for name in link.offloads.keys() {
        let offload = Offload::parse(name).ok_or_else(|| TopologyError::UnknownOffload {
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
