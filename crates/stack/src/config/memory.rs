//! Memory needed by a configuration.

use linerate_port::{MemoryPlan, PortUrl};

use super::Config;
use crate::addressing::Addressing;
use crate::link::Link;
use crate::neighbors::Neighbors;
use crate::pmtu_cache::Paths;
use crate::stack::{frames_of_its_own, memory_plan};
use crate::tcp::Tcp;
use crate::udp::Udp;
use crate::udp::fragment::Fragmenter;
use crate::udp::reassembly::Reassembly;

/// Memory used for one purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryItem {
    /// Purpose.
    pub name: &'static str,
    /// Size in bytes.
    pub bytes: usize,
}

/// Memory that a stack takes when it is created; it allocates none afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryAccount {
    /// Heap memory of the stack itself.
    pub heap: Vec<MemoryItem>,
    /// Frame slots that the stack and its port need. They lie in the memory that the caller maps
    /// for all ports of a run.
    pub frames: u32,
    /// Bytes from one frame slot to the next.
    pub slot_bytes: usize,
}

impl MemoryAccount {
    /// Returns the heap memory in bytes.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.heap.iter().map(|item| item.bytes).sum()
    }

    /// Returns the memory for frames in bytes.
    #[must_use]
    pub fn frame_bytes(&self) -> usize {
        self.frames as usize * self.slot_bytes
    }

    /// Returns heap and frame memory together, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.heap_bytes() + self.frame_bytes()
    }

    /// Returns all items, frames last.
    pub fn items(&self) -> impl Iterator<Item = MemoryItem> + '_ {
        let frames = MemoryItem {
            name: "frames",
            bytes: self.frame_bytes(),
        };
        self.heap.iter().copied().chain([frames])
    }
}

impl Config {
    /// Returns the memory that a stack with this configuration takes, over a port of this URL.
    #[must_use]
    pub fn memory(&self, url: &PortUrl) -> MemoryAccount {
        let plan = memory_plan(self, url);
        MemoryAccount {
            heap: self.heap(&plan),
            frames: plan.frames,
            slot_bytes: plan.slot_bytes(),
        }
    }

    fn heap(&self, plan: &MemoryPlan) -> Vec<MemoryItem> {
        debug_assert!(plan.frames >= frames_of_its_own(self, plan.frame_bytes));
        let (connections, buffers) = Tcp::heap_bytes(self);
        let (sockets, ports) =
            Udp::heap_bytes(self.udp_sockets as usize, self.udp.receive_queue as usize);
        let reassembly = Reassembly::heap_bytes(
            self.ip.reassembly,
            self.ip.reassembly_count,
            self.ip.reassembly_bytes,
        );
        let cpus = self.driver.cpus.0.len() + self.application.cpus.0.len();
        let item = |name, bytes| MemoryItem { name, bytes };
        vec![
            item("TCP buffers", buffers),
            item("TCP connections", connections),
            item("UDP sockets and queues", sockets),
            item("UDP port table", ports),
            item("reassembly buffers", reassembly),
            item(
                "fragmentation buffer",
                Fragmenter::heap_bytes(self.ip.fragmentation),
            ),
            item("neighbours", Neighbors::heap_bytes(self.arp_cache as usize)),
            item("path MTU cache", Paths::heap_bytes()),
            item(
                "frame pool and scratch packet",
                Link::heap_bytes(plan, self),
            ),
            item("settings", Addressing::HEAP_BYTES + cpus * size_of::<u32>()),
        ]
    }
}
