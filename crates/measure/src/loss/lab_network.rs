//! Visible network, such as a lab: interfaces between two addresses.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Nodes and links of a network whose counters are readable, such as a lab.
#[derive(Clone, Debug, Default)]
pub struct Network {
    nodes: Vec<Node>,
    links: Vec<[Plug; 2]>,
}

#[derive(Clone, Debug)]
struct Node {
    name: String,
    namespace: Option<Arc<OwnedFd>>,
    /// Interfaces with their addresses.
    addresses: Vec<(String, IpAddr)>,
}

#[derive(Clone, Debug)]
struct Plug {
    node: usize,
    interface: String,
}

/// Interface of a node.
#[derive(Clone, Debug)]
pub struct Place {
    pub host: String,
    /// Network namespace of the node; absent: that of the calling thread.
    pub namespace: Option<Arc<OwnedFd>>,
    pub interface: String,
}

/// Link of a path, with its two interfaces.
#[derive(Clone, Debug)]
pub struct Hop {
    /// Transmitting interface.
    pub from: Place,
    /// Receiving interface.
    pub to: Place,
}

impl Network {
    /// Adds a host or a switch with the addresses of its interfaces; returns its number.
    pub fn add_node(
        &mut self,
        name: impl Into<String>,
        namespace: Option<Arc<OwnedFd>>,
        addresses: Vec<(String, IpAddr)>,
    ) -> usize {
        self.nodes.push(Node {
            name: name.into(),
            namespace,
            addresses,
        });
        self.nodes.len() - 1
    }

    /// Adds a link between interfaces of two nodes.
    pub fn add_link(&mut self, ends: [(usize, String); 2]) {
        self.links
            .push(ends.map(|(node, interface)| Plug { node, interface }));
    }

    /// Returns the links from one address to another; `None` when one of them is not in the
    /// network.
    #[must_use]
    pub fn way(&self, from: IpAddr, to: IpAddr) -> Option<Vec<Hop>> {
        let (first, out) = self.find(from)?;
        let (last, into) = self.find(to)?;
        if first == last {
            return Some(Vec::new());
        }
        // Prefers a path through the interfaces that have the addresses.
        self.search(first, last, Some(out), Some(into))
            .or_else(|| self.search(first, last, None, None))
    }

    fn find(&self, address: IpAddr) -> Option<(usize, &str)> {
        let address = address.to_canonical();
        self.nodes.iter().enumerate().find_map(|(number, node)| {
            let mut own = node.addresses.iter();
            let (interface, _) = own.find(|(_, own)| *own == address)?;
            Some((number, interface.as_str()))
        })
    }

    /// Returns the shortest path (breadth-first search).
    fn search(
        &self,
        first: usize,
        last: usize,
        out: Option<&str>,
        into: Option<&str>,
    ) -> Option<Vec<Hop>> {
        let mut came: Vec<Option<(usize, bool)>> = vec![None; self.nodes.len()];
        let mut queue = VecDeque::from([first]);
        while let Some(node) = queue.pop_front() {
            if node == last {
                break;
            }
            for (number, ends) in self.links.iter().enumerate() {
                for turned in [false, true] {
                    let (from, to) = Self::turn(ends, turned);
                    let leaves = from.node == node
                        && (node != first || out.is_none_or(|out| out == from.interface));
                    let enters = to.node != last || into.is_none_or(|into| into == to.interface);
                    if leaves && enters && to.node != first && came[to.node].is_none() {
                        came[to.node] = Some((number, turned));
                        queue.push_back(to.node);
                    }
                }
            }
        }
        let mut hops = Vec::new();
        let mut node = last;
        while node != first {
            let (number, turned) = came[node]?;
            let (from, to) = Self::turn(&self.links[number], turned);
            hops.push(Hop {
                from: self.place(from),
                to: self.place(to),
            });
            node = from.node;
        }
        hops.reverse();
        Some(hops)
    }

    fn turn(ends: &[Plug; 2], turned: bool) -> (&Plug, &Plug) {
        match turned {
            false => (&ends[0], &ends[1]),
            true => (&ends[1], &ends[0]),
        }
    }

    fn place(&self, plug: &Plug) -> Place {
        let node = &self.nodes[plug.node];
        Place {
            host: node.name.clone(),
            namespace: node.namespace.clone(),
            interface: plug.interface.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn names(way: &[Hop]) -> Vec<String> {
        way.iter()
            .map(|hop| {
                format!(
                    "{}:{}>{}:{}",
                    hop.from.host, hop.from.interface, hop.to.host, hop.to.interface
                )
            })
            .collect()
    }

    #[test]
    fn a_way_through_switches_and_back() {
        let mut network = Network::default();
        let eth = |text| vec![("eth0".to_owned(), address(text))];
        let client = network.add_node("client", None, eth("10.77.0.1"));
        let s1 = network.add_node("s1", None, Vec::new());
        let s2 = network.add_node("s2", None, Vec::new());
        let server = network.add_node("server", None, eth("10.77.0.2"));
        network.add_link([(client, "eth0".into()), (s1, "s1p1".into())]);
        network.add_link([(s1, "s1p2".into()), (s2, "s2p1".into())]);
        network.add_link([(s2, "s2p2".into()), (server, "eth0".into())]);
        let there = network.way(address("10.77.0.1"), address("10.77.0.2"));
        assert_eq!(
            names(&there.unwrap()),
            [
                "client:eth0>s1:s1p1",
                "s1:s1p2>s2:s2p1",
                "s2:s2p2>server:eth0"
            ]
        );
        let back = network.way(address("::ffff:10.77.0.2"), address("10.77.0.1"));
        assert_eq!(
            names(&back.unwrap()),
            [
                "server:eth0>s2:s2p2",
                "s2:s2p1>s1:s1p2",
                "s1:s1p1>client:eth0"
            ]
        );
        assert!(
            network
                .way(address("10.77.0.1"), address("192.0.2.1"))
                .is_none()
        );
    }

    #[test]
    fn of_two_links_the_one_with_the_addresses_is_taken() {
        let mut network = Network::default();
        let both = |one, two| {
            vec![
                ("eth0".to_owned(), address(one)),
                ("eth1".to_owned(), address(two)),
            ]
        };
        let a = network.add_node("a", None, both("10.77.0.1", "10.77.1.1"));
        let b = network.add_node("b", None, both("10.77.0.2", "10.77.1.2"));
        network.add_link([(a, "eth0".into()), (b, "eth0".into())]);
        network.add_link([(a, "eth1".into()), (b, "eth1".into())]);
        let way = network.way(address("10.77.1.1"), address("10.77.1.2"));
        assert_eq!(names(&way.unwrap()), ["a:eth1>b:eth1"]);
        let crossed = network.way(address("10.77.0.1"), address("10.77.1.2"));
        assert_eq!(crossed.unwrap().len(), 1);
    }
}
