//! Memory budget of a configuration: what a stack will allocate, item by item.

use linerate_port::PortUrl;
use linerate_sys::frames::frame_memory::MemoryPlan;

use crate::addressing::StackAddressing;
use crate::config::StackConfig;
use crate::link::LinkLayer;
use crate::neighbors::NeighborCache;
use crate::path_mtu_cache::PathMtuCache;
use crate::stack::{frames_needed, memory_plan};
use crate::tcp::TcpLayer;
use crate::udp::UdpLayer;
use crate::udp::fragment::Fragmenter;
use crate::udp::reassembly::ReassemblyBuffers;

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
pub struct MemoryUsage {
    /// Heap memory of the stack itself.
    pub heap: Vec<MemoryItem>,
    /// Frame slots that the stack and its port need. They lie in the memory that the caller maps
    /// for all ports of a run.
    pub frames: u32,
    /// Bytes from one frame slot to the next.
    pub slot_bytes: usize,
}

impl MemoryUsage {
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

impl StackConfig {
    /// Returns the memory that a stack with this configuration takes, over a port of this URL.
    #[must_use]
    pub fn memory_usage(&self, url: &PortUrl) -> MemoryUsage {
        let plan = memory_plan(self, url);
        MemoryUsage {
            heap: self.heap_items(&plan),
            frames: plan.frames,
            slot_bytes: plan.slot_bytes(),
        }
    }

    fn heap_items(&self, plan: &MemoryPlan) -> Vec<MemoryItem> {
        debug_assert!(plan.frames >= frames_needed(self, plan.frame_bytes));
        let (connections, buffers) = TcpLayer::heap_bytes(self);
        let (sockets, ports) =
            UdpLayer::heap_bytes(self.udp_sockets as usize, self.udp.receive_queue as usize);
        let reassembly = ReassemblyBuffers::heap_bytes(
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
            item(
                "neighbours",
                NeighborCache::heap_bytes(self.arp_cache as usize),
            ),
            item("path MTU cache", PathMtuCache::heap_bytes()),
            item(
                "frame pool and scratch packet",
                LinkLayer::heap_bytes(plan, self),
            ),
            item(
                "settings",
                StackAddressing::HEAP_BYTES + cpus * size_of::<u32>(),
            ),
        ]
    }
}
