//! NUMA placement of ports, frame memory and threads.

use linerate_host::snapshot::{self, NumaNodes};
use linerate_metric::record::Doubt;
use linerate_port::{Capabilities, Memory};

/// Resource of a run, with its NUMA node.
type Seat = (String, u32);

/// NUMA nodes of ports and frame memory, read once when the ports are open.
#[derive(Clone, Debug)]
pub(crate) struct Seats {
    seats: Vec<Seat>,
    nodes: NumaNodes,
}

impl Seats {
    /// Reads the nodes of these ports and of the frame memory.
    pub(crate) fn of<'a>(ports: impl Iterator<Item = &'a Capabilities>, memory: &Memory) -> Self {
        // Virtual interfaces have no node: only devices on a bus have one.
        let ports = ports.filter_map(|port| {
            let interface = snapshot::interface(port.interface.as_ref()?.name())?;
            Some((port.name.clone(), interface.numa_node?))
        });
        let memory = (memory.numa_node()).map(|node| ("the memory of frames".to_owned(), node));
        Self {
            seats: ports.chain(memory).collect(),
            nodes: snapshot::numa_nodes(),
        }
    }

    /// Warns when a run with threads on these CPUs spans several nodes.
    pub(crate) fn doubt(&self, cpus: &[u32]) -> Option<Doubt> {
        let mut cpus = cpus.to_vec();
        cpus.sort_unstable();
        cpus.dedup();
        let cpus = cpus
            .iter()
            .filter_map(|&cpu| Some((format!("CPU {cpu}"), self.nodes.of_cpu(cpu)?)));
        let seats: Vec<Seat> = self.seats.iter().cloned().chain(cpus).collect();
        let wanted = seats.first()?.1;
        if seats.iter().all(|seat| seat.1 == wanted) {
            return None;
        }
        let seats: Vec<String> = seats
            .iter()
            .map(|(what, node)| format!("{what} on node {node}"))
            .collect();
        Some(Doubt::new(
            "numa-nodes",
            format!(
                "the run uses several NUMA nodes ({}), and frames cross between them: use one node with \
                 numactl --cpunodebind={wanted} --membind={wanted} linerate ..., and CPUs of that node",
                seats.join(", ")
            ),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_host::snapshot::Files;
    use std::fs;

    /// CPUs 0 and 1 on node 0, 2 and 3 on node 1.
    fn two() -> NumaNodes {
        let folder = tempfile::tempdir().unwrap();
        for (node, cpus) in [(0, "0-1"), (1, "2-3")] {
            let directory = folder
                .path()
                .join(format!("sys/devices/system/node/node{node}"));
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("cpulist"), cpus).unwrap();
        }
        NumaNodes::read(&Files::below(folder.path()))
    }

    #[test]
    fn seats_on_several_nodes_are_told() {
        let why = |port: Option<u32>, memory: Option<u32>, cpus: &[u32]| {
            let port = port.map(|node| ("packet:eth0".to_owned(), node));
            let memory = memory.map(|node| ("the memory of frames".to_owned(), node));
            let seats = Seats {
                seats: port.into_iter().chain(memory).collect(),
                nodes: two(),
            };
            seats.doubt(cpus).map(|doubt| doubt.why)
        };
        for (port, memory, cpus, wanted) in [
            (Some(0), Some(1), &[1][..], "the memory of frames on node 1"),
            (Some(1), Some(0), &[0], "--cpunodebind=1"),
            (None, Some(0), &[1, 2, 2], "CPU 2 on node 1"),
        ] {
            let why = why(port, memory, cpus).unwrap();
            assert!(why.contains(wanted), "{wanted}: {why}");
        }
        assert_eq!(why(Some(0), Some(0), &[0, 1]), None);
        assert_eq!(why(Some(1), Some(1), &[2]), None);
        // An unknown node is no other node.
        assert_eq!(why(None, None, &[7]), None);
        assert_eq!(why(Some(1), None, &[]), None);
    }

    #[test]
    fn this_machine_tells_where_memory_lies() {
        let memory = Memory::new(linerate_port::MemoryPlan::default()).unwrap();
        let known = snapshot::host().cpu.numa_nodes;
        // A kernel without NUMA has no such call.
        if let (Some(nodes), Some(node)) = (known, memory.numa_node()) {
            assert!(nodes > 1 || node == 0, "{node} of {nodes}");
        }
    }
}
