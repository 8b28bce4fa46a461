//! The facts of a host and of an interface, for the host part of a record.
//!
//! Text from /proc and /sys is parsed by pure functions; the reading part takes a root so that tests
//! can lay out a tree. What depends on a network namespace is asked over netlink and ethtool sockets,
//! which answer for the calling thread: /sys/class/net shows the namespace in which it was mounted.
//! What cannot be read is absent.

pub mod netlink;

mod files;
mod hypervisor;
mod interface;
mod offloads;
mod processor;
mod sysctls;
mod system;

#[cfg(test)]
mod tests;

use linerate_metric::facts;

pub use files::Files;
pub use interface::{interface, interface_towards};
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
