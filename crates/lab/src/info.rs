//! Description of a running lab, as `lab list --json` prints it.

use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use crate::error::LabError;

/// Running lab.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LabInfo {
    pub name: String,
    /// Process that holds the lab, as numbered in the caller's PID namespace. When it ends, even by
    /// `kill -9`, the lab and everything that runs in it is gone.
    pub holder_pid: u32,
    /// User who started the lab.
    pub uid: u32,
    /// True when the lab has a user namespace: its user is root inside, without privileges outside.
    pub rootless: bool,
    /// Hosts, in the order of the lab file.
    pub hosts: Vec<HostInfo>,
    pub switches: Vec<String>,
    /// Links, in the order of the lab file.
    pub links: Vec<LinkInfo>,
}

impl LabInfo {
    /// Checks that no link has failed.
    ///
    /// # Errors
    /// [`LabError::LinkFailed`]: what is measured over such a link is invalid.
    pub fn check_links(&self) -> Result<(), LabError> {
        let failure = |link: &LinkInfo| {
            let reason = link.failure.clone()?;
            Some(LabError::LinkFailed {
                link: link.between.join(" - "),
                lab: self.name.clone(),
                reason,
            })
        };
        self.links.iter().find_map(failure).map_or(Ok(()), Err)
    }
}

/// Host of a lab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostInfo {
    pub name: String,
    /// IPv4 address of its first interface.
    pub address: Ipv4Addr,
    /// IPv6 address of its first interface; absent where the kernel has no IPv6 or a link is
    /// smaller than 1280 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address_v6: Option<Ipv6Addr>,
    /// `eth0`, `eth1`, ... in the order of its links.
    pub interfaces: Vec<InterfaceInfo>,
}

/// Interface of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceInfo {
    /// Name inside the host.
    pub name: String,
    /// Host or switch at the other end of the link.
    pub peer: String,
    /// Largest packet in bytes.
    pub mtu: u32,
    /// IPv4 address.
    pub address: Ipv4Addr,
    /// Prefix length of the IPv4 network in bits.
    pub prefix: u8,
    /// IPv6 address, in a network of 64 bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address_v6: Option<Ipv6Addr>,
}

/// Link of a lab.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkInfo {
    /// Names of the two ends.
    pub between: [String; 2],
    /// Interface names at the two ends.
    pub interfaces: [String; 2],
    /// Largest packet in bytes.
    pub mtu: u32,
    /// Rate of each direction in bit/s, where it is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bps: Option<u64>,
    /// Delay of each direction in ns, where it is emulated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ns: Option<u64>,
    /// Variation of `delay_ns`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter_ns: Option<u64>,
    /// Fraction of packets lost, where that is emulated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Fraction of packets reordered, where that is emulated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reorder: Option<f64>,
    /// Largest segment of GSO and GRO in bytes, where it was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gso_bytes: Option<u32>,
    /// Reason why the link is down: the process that emulates it on a kernel without netem has
    /// exited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "ended")]
    pub failure: Option<String>,
}
