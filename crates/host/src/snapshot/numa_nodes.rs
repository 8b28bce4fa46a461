//! NUMA nodes of processors.

use std::collections::BTreeMap;

use super::processor::parse_cpu_list;
use super::system_files::SystemFiles;

const NODES_DIR: &str = "/sys/devices/system/node";

/// Processors of each NUMA node, as the kernel lists them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumaNodes {
    node_of: BTreeMap<u32, u32>,
}

impl NumaNodes {
    /// Reads the nodes from /sys.
    #[must_use]
    pub fn read(files: &SystemFiles) -> Self {
        let mut node_of = BTreeMap::new();
        for name in files.list_names(NODES_DIR) {
            // The directory also has files such as online and possible.
            let Some(node) = name.strip_prefix("node").and_then(|n| n.parse().ok()) else {
                continue;
            };
            let cpus = files.read_text(&format!("{NODES_DIR}/{name}/cpulist"));
            let cpus = cpus
                .and_then(|text| parse_cpu_list(&text))
                .unwrap_or_default();
            node_of.extend(cpus.into_iter().map(|cpu| (cpu, node)));
        }
        Self { node_of }
    }

    /// Returns the node of a processor; `None` where unknown.
    #[must_use]
    pub fn of_cpu(&self, cpu: u32) -> Option<u32> {
        self.node_of.get(&cpu).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::super::system_files::tree;
    use super::*;

    #[test]
    fn every_processor_has_a_node() {
        let (_directory, files) = tree(&[
            ("/sys/devices/system/node/online", "0-2\n"),
            ("/sys/devices/system/node/node0/cpulist", "0-1,4\n"),
            ("/sys/devices/system/node/node1/cpulist", "2-3\n"),
            // A node with memory only.
            ("/sys/devices/system/node/node2/cpulist", "\n"),
        ]);
        let nodes = NumaNodes::read(&files);
        let node_numbers: Vec<_> = (0..6).map(|cpu| nodes.of_cpu(cpu)).collect();
        assert_eq!(
            node_numbers,
            [Some(0), Some(0), Some(1), Some(1), Some(0), None]
        );
        let (_directory, no_files) = tree(&[]);
        assert_eq!(NumaNodes::read(&no_files), NumaNodes::default());
    }
}
