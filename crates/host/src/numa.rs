//! NUMA placement of ports, frame memory and threads.

use linerate_record::ids::CaveatId;
use linerate_record::record::Caveat;

use crate::snapshot::{self, NumaNodes};

/// Resource of a run, with its NUMA node.
type NodePlacement = (String, u32);

/// NUMA nodes of ports and frame memory, read once when the ports are open.
#[derive(Clone, Debug)]
pub struct NumaPlacement {
    placements: Vec<NodePlacement>,
    nodes: NumaNodes,
}

impl NumaPlacement {
    /// Reads the nodes of these ports, by name and interface, and takes that of the frame memory.
    pub fn read<'a>(
        ports: impl Iterator<Item = (String, Option<&'a str>)>,
        memory_node: Option<u32>,
    ) -> Self {
        // Virtual interfaces have no node: only devices on a bus have one.
        let ports = ports.filter_map(|(port, interface)| {
            let interface = snapshot::read_interface(interface?)?;
            Some((port, interface.numa_node?))
        });
        let memory = memory_node.map(|node| ("the memory of frames".to_owned(), node));
        Self {
            placements: ports.chain(memory).collect(),
            nodes: snapshot::read_numa_nodes(),
        }
    }

    /// Warns when a run with threads on these CPUs spans several nodes.
    pub fn warning(&self, cpus: &[u32]) -> Option<Caveat> {
        let mut cpus = cpus.to_vec();
        cpus.sort_unstable();
        cpus.dedup();
        let cpus = cpus
            .iter()
            .filter_map(|&cpu| Some((format!("CPU {cpu}"), self.nodes.of_cpu(cpu)?)));
        let placements: Vec<NodePlacement> = self.placements.iter().cloned().chain(cpus).collect();
        let first_node = placements.first()?.1;
        if placements.iter().all(|placement| placement.1 == first_node) {
            return None;
        }
        let placements: Vec<String> = placements
            .iter()
            .map(|(resource, node)| format!("{resource} on node {node}"))
            .collect();
        Some(Caveat::new(
            CaveatId::NumaNodes,
            format!(
                "the run uses several NUMA nodes ({}), and frames cross between them: use one node with \
                 numactl --cpunodebind={first_node} --membind={first_node} linerate ..., and CPUs of that node",
                placements.join(", ")
            ),
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use linerate_sys::frames::frame_memory::{FrameRegion, MemoryPlan};

    use crate::snapshot::SystemFiles;

    use super::*;

    /// CPUs 0 and 1 on node 0, 2 and 3 on node 1.
    fn two_nodes() -> NumaNodes {
        let dir = tempfile::tempdir().unwrap();
        for (node, cpus) in [(0, "0-1"), (1, "2-3")] {
            let node_dir = dir
                .path()
                .join(format!("sys/devices/system/node/node{node}"));
            fs::create_dir_all(&node_dir).unwrap();
            fs::write(node_dir.join("cpulist"), cpus).unwrap();
        }
        NumaNodes::read(&SystemFiles::below(dir.path()))
    }

    #[test]
    fn several_nodes_are_reported() {
        let why = |port: Option<u32>, memory: Option<u32>, cpus: &[u32]| {
            let port = port.map(|node| ("packet:eth0".to_owned(), node));
            let memory = memory.map(|node| ("the memory of frames".to_owned(), node));
            let placements = NumaPlacement {
                placements: port.into_iter().chain(memory).collect(),
                nodes: two_nodes(),
            };
            placements.warning(cpus).map(|caveat| caveat.reason)
        };
        for (port, memory, cpus, expected) in [
            (Some(0), Some(1), &[1][..], "the memory of frames on node 1"),
            (Some(1), Some(0), &[0], "--cpunodebind=1"),
            (None, Some(0), &[1, 2, 2], "CPU 2 on node 1"),
        ] {
            let why = why(port, memory, cpus).unwrap();
            assert!(why.contains(expected), "{expected}: {why}");
        }
        assert_eq!(why(Some(0), Some(0), &[0, 1]), None);
        assert_eq!(why(Some(1), Some(1), &[2]), None);
        // An unknown node is no other node.
        assert_eq!(why(None, None, &[7]), None);
        assert_eq!(why(Some(1), None, &[]), None);
    }

    #[test]
    fn this_machine_reports_the_node_of_memory() {
        let memory = FrameRegion::new(MemoryPlan::default()).unwrap();
        let nodes = snapshot::read_host().cpu.numa_nodes;
        // A kernel without NUMA has no such call.
        if let (Some(nodes), Some(node)) = (nodes, memory.numa_node()) {
            assert!(nodes > 1 || node == 0, "{node} of {nodes}");
        }
    }
}
