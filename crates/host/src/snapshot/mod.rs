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

use linerate_metric::facts;

pub use files::Files;
pub use interface::{interface, interface_towards};
pub use offloads::{Offload, offloads};
pub use processor::{cpu_list, text_of_cpu_list};
pub use sysctls::SYSCTLS;

/// This host: everything but its role and the interface of a run.
#[must_use]
pub fn host() -> facts::Host {
    system::host(&Files::machine())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_knows_its_kernel_and_processors() {
        let host = host();
        let uname = rustix::system::uname();
        assert_eq!(host.kernel.as_deref(), uname.release().to_str().ok());
        assert!(host.memory_bytes.is_some_and(|bytes| bytes > 1 << 20));
        assert!(host.cpu.usable <= host.cpu.logical, "{:?}", host.cpu);
        assert!(host.role.is_none() && host.interface.is_none());
        assert!(
            host.sysctls
                .values()
                .all(|value| !value.contains(['\t', '\n'])),
            "{:?}",
            host.sysctls
        );
    }
}
