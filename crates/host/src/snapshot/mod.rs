//! The facts of a host and of an interface, for the host part of a record.
//!
//! Text from /proc and /sys is parsed by pure functions; the reading part takes a root so that tests
//! can lay out a tree. What depends on a network namespace is asked over netlink and ethtool sockets,
//! which answer for the calling thread: /sys/class/net shows the namespace in which it was mounted.
//! What cannot be read is absent.

pub mod netlink;
pub mod places;

mod files;
mod hypervisor;
mod interface;
mod networks;
mod nodes;
mod offloads;
mod processor;
mod sysctls;
mod system;

#[cfg(test)]
mod tests;

use linerate_metric::facts;

pub use files::Files;
pub use interface::{interface, interface_towards, is_own_address};
pub use nodes::NumaNodes;
pub use offloads::{Offload, offloads};
pub use processor::{cpu_list, text_of_cpu_list};
pub use sysctls::SYSCTLS;

#[cfg(test)]
pub(crate) use files::tree;
pub(crate) use processor::idle_states;
pub(crate) use sysctls::value as sysctl;
pub(crate) use system::{host as host_on, meminfo_bytes, meminfo_count};

/// This host: everything but its role and the interface of a run.
#[must_use]
pub fn host() -> facts::Host {
    system::host(&Files::machine())
}

/// The frequency of that of these processors which is nearest to its highest, and that highest, Hz; `None`
/// where the kernel does not scale frequencies.
#[must_use]
pub fn frequency(cpus: &[u32]) -> Option<(u64, u64)> {
    processor::frequency(&Files::machine(), cpus)
}

/// The networks that this host is directly connected to, as address and length of the prefix: whoever
/// is in one of them is a neighbour. Loopback and tunnels are not among them; empty where the kernel does not tell.
#[must_use]
pub fn connected_networks() -> Vec<(std::net::IpAddr, u8)> {
    networks::connected_networks()
}

/// Which processor of this host belongs to which NUMA node.
#[must_use]
pub fn numa_nodes() -> NumaNodes {
    NumaNodes::read(&Files::machine())
}
