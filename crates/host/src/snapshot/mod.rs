//! Facts of a host and of an interface, for the host part of a record.
//!
//! Text from /proc and /sys is parsed by pure functions; the readers take a root directory so that
//! tests can lay out a tree. Facts of a network namespace are read over netlink and ethtool
//! sockets, which belong to the namespace of the calling thread: /sys/class/net shows the namespace
//! in which it was mounted. A fact that cannot be read is absent.

pub mod cpu_quota;
pub mod loss_counters;
pub mod neighbour_watch;

mod connected_networks;
mod hypervisor;
mod interface;
mod numa_nodes;
mod offloads;
mod processor;
mod sysctls;
mod system;
mod system_files;

#[cfg(test)]
mod tests;

use linerate_record::facts;

pub use interface::{egress_interface, is_local_address, read_interface};
pub use numa_nodes::NumaNodes;
pub use offloads::{OffloadState, read_offloads};
pub(crate) use processor::read_idle_states;
pub use processor::{format_cpu_list, parse_cpu_list};
pub use sysctls::RECORDED_SYSCTLS;
pub(crate) use sysctls::read_sysctl as sysctl;
pub(crate) use system::read_host as host_on;
pub use system_files::SystemFiles;
#[cfg(test)]
pub(crate) use system_files::tree;

/// Reads the facts of this host, without its role and the interface of a run.
#[must_use]
pub fn read_host() -> facts::HostFacts {
    system::read_host(&SystemFiles::of_machine())
}

/// Returns current and maximum frequency, Hz, of that of `cpus` which runs closest to its maximum;
/// `None` where the kernel does not scale frequencies.
#[must_use]
pub fn read_frequency(cpus: &[u32]) -> Option<(u64, u64)> {
    processor::read_frequency(&SystemFiles::of_machine(), cpus)
}

/// Lists the networks that this host is directly connected to, as address and prefix length. Hosts
/// in them are neighbours. Loopback and tunnels are excluded; empty where the kernel lists nothing.
#[must_use]
pub fn list_connected_networks() -> Vec<(std::net::IpAddr, u8)> {
    connected_networks::list_connected_networks()
}

/// Reads the NUMA node of every processor.
#[must_use]
pub fn read_numa_nodes() -> NumaNodes {
    NumaNodes::read(&SystemFiles::of_machine())
}
