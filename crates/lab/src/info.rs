//! What a lab that is up consists of, as `lab list --json` shows it.

use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use crate::error::LabError;

/// A lab that is up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LabInfo {
    /// Its name.
    pub name: String,
    /// The process that holds it, as numbered where it was asked. When it ends, by `kill -9` too,
    /// the lab and everything that runs in it is gone.
    pub holder_pid: u32,
    /// The user who started it.
    pub uid: u32,
    /// It lives in a user namespace, so its user is root inside and nobody outside.
    pub rootless: bool,
    /// In the order of the lab file.
    pub hosts: Vec<HostInfo>,
    /// Names of the switches.
    pub switches: Vec<String>,
    /// In the order of the lab file.
    pub links: Vec<LinkInfo>,
}

impl LabInfo {
    /// Looks whether all links carry.
    ///
    /// # Errors
    /// [`LabError::LinkEnded`]: what is measured over such a link says nothing of a network.
    pub fn check_links(&self) -> Result<(), LabError> {
        let ended = |link: &LinkInfo| {
            let why = link.ended.clone()?;
            Some(LabError::LinkEnded {
                link: link.between.join(" - "),
                lab: self.name.clone(),
                why,
            })
        };
        self.links.iter().find_map(ended).map_or(Ok(()), Err)
    }
}

/// A host of a lab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostInfo {
    /// Its name.
    pub name: String,
    /// IPv4 address of its first interface.
    pub address: Ipv4Addr,
    /// IPv6 address of its first interface; absent where the kernel has no IPv6 or a link is smaller
    /// than 1280 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address_v6: Option<Ipv6Addr>,
    /// `eth0`, `eth1`, ... in the order of its links.
    pub interfaces: Vec<InterfaceInfo>,
}

/// An interface of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceInfo {
    /// Its name inside the host.
    pub name: String,
    /// What is at the other end of its link.
    pub peer: String,
    /// Largest packet in bytes.
    pub mtu: u32,
    /// Its IPv4 address.
    pub address: Ipv4Addr,
    /// Bits of its IPv4 network.
    pub prefix: u8,
    /// Its IPv6 address, of a network of 64 bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address_v6: Option<Ipv6Addr>,
}

/// A link of a lab.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkInfo {
    /// Its two ends.
    pub between: [String; 2],
    /// The names of the interfaces there.
    pub interfaces: [String; 2],
    /// Largest packet in bytes.
    pub mtu: u32,
    /// Rate of each direction in bit/s, where it is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bps: Option<u64>,
    /// Time that packets are held each way, where it is emulated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ns: Option<u64>,
    /// By how much `delay_ns` varies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter_ns: Option<u64>,
    /// Share of packets that are lost, where that is emulated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Share of packets that overtake, where that is emulated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reorder: Option<f64>,
    /// Largest segment of GSO and GRO in bytes, where it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gso_bytes: Option<u32>,
    /// Why it carries nothing any more, where that is so: the program that makes it, on kernels without netem, has
    /// ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
}
