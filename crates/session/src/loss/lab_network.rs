//! Visible network, such as a lab: interfaces between two addresses.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Nodes and links of a network whose counters are readable, such as a lab.
#[derive(Clone, Debug, Default)]
pub struct LabNetwork {
    nodes: Vec<NetworkNode>,
    links: Vec<[LinkEnd; 2]>,
}

#[derive(Clone, Debug)]
struct NetworkNode {
    name: String,
    namespace: Option<Arc<OwnedFd>>,
    /// Interfaces with their addresses.
    addresses: Vec<(String, IpAddr)>,
}

#[derive(Clone, Debug)]
struct LinkEnd {
    node: usize,
    interface: String,
}

/// Interface of a node.
#[derive(Clone, Debug)]
pub struct HopInterface {
    pub host: String,
    /// Network namespace of the node; absent: that of the calling thread.
    pub namespace: Option<Arc<OwnedFd>>,
    pub interface: String,
}

/// Link of a path, with its two interfaces.
#[derive(Clone, Debug)]
pub struct PathHop {
    /// Transmitting interface.
    pub transmitter: HopInterface,
    /// Receiving interface.
    pub receiver: HopInterface,
}

impl LabNetwork {
    /// Adds a host or a switch with the addresses of its interfaces; returns its number.
    pub fn add_node(
        &mut self,
        name: impl Into<String>,
        namespace: Option<Arc<OwnedFd>>,
        addresses: Vec<(String, IpAddr)>,
    ) -> usize {
        self.nodes.push(NetworkNode {
            name: name.into(),
            namespace,
            addresses,
        });
        self.nodes.len() - 1
    }

    /// Adds a link between interfaces of two nodes.
    pub fn add_link(&mut self, link_ends: [(usize, String); 2]) {
        self.links
            .push(link_ends.map(|(node, interface)| LinkEnd { node, interface }));
    }

    /// Returns the links from one address to another; `None` when one of them is not in the
    /// network.
    #[must_use]
    pub fn path(&self, from: IpAddr, to: IpAddr) -> Option<Vec<PathHop>> {
        let (first, outbound) = self.find_node(from)?;
        let (last, inbound) = self.find_node(to)?;
        if first == last {
            return Some(Vec::new());
        }
        // Prefers a path through the interfaces that have the addresses.
        self.shortest_path(first, last, Some(outbound), Some(inbound))
            .or_else(|| self.shortest_path(first, last, None, None))
    }

    fn find_node(&self, address: IpAddr) -> Option<(usize, &str)> {
        let address = address.to_canonical();
        self.nodes.iter().enumerate().find_map(|(number, node)| {
            let mut addresses = node.addresses.iter();
            let (interface, _) = addresses.find(|(_, addresses)| *addresses == address)?;
            Some((number, interface.as_str()))
        })
    }

    /// Returns the shortest path (breadth-first search).
    fn shortest_path(
        &self,
        first: usize,
        last: usize,
        outbound: Option<&str>,
        inbound: Option<&str>,
    ) -> Option<Vec<PathHop>> {
        let mut previous_link: Vec<Option<(usize, bool)>> = vec![None; self.nodes.len()];
        let mut queue = VecDeque::from([first]);
        while let Some(node) = queue.pop_front() {
            if node == last {
                break;
            }
            for (number, link) in self.links.iter().enumerate() {
                for reversed in [false, true] {
                    let (from, to) = Self::oriented(link, reversed);
                    let may_leave = from.node == node
                        && (node != first
                            || outbound.is_none_or(|outbound| outbound == from.interface));
                    let may_enter =
                        to.node != last || inbound.is_none_or(|inbound| inbound == to.interface);
                    if may_leave
                        && may_enter
                        && to.node != first
                        && previous_link[to.node].is_none()
                    {
                        previous_link[to.node] = Some((number, reversed));
                        queue.push_back(to.node);
                    }
                }
            }
        }
        let mut hops = Vec::new();
        let mut node = last;
        while node != first {
            let (number, reversed) = previous_link[node]?;
            let (from, to) = Self::oriented(&self.links[number], reversed);
            hops.push(PathHop {
                transmitter: self.hop_interface(from),
                receiver: self.hop_interface(to),
            });
            node = from.node;
        }
        hops.reverse();
        Some(hops)
    }

    fn oriented(link: &[LinkEnd; 2], reversed: bool) -> (&LinkEnd, &LinkEnd) {
        match reversed {
            false => (&link[0], &link[1]),
            true => (&link[1], &link[0]),
        }
    }

    fn hop_interface(&self, link_end: &LinkEnd) -> HopInterface {
        let node = &self.nodes[link_end.node];
        HopInterface {
            host: node.name.clone(),
            namespace: node.namespace.clone(),
            interface: link_end.interface.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn names(hops: &[PathHop]) -> Vec<String> {
        hops.iter()
            .map(|hop| {
                format!(
                    "{}:{}>{}:{}",
                    hop.transmitter.host,
                    hop.transmitter.interface,
                    hop.receiver.host,
                    hop.receiver.interface
                )
            })
            .collect()
    }

    #[test]
    fn a_path_through_switches_and_back() {
        let mut network = LabNetwork::default();
        let eth = |text| vec![("eth0".to_owned(), address(text))];
        let client = network.add_node("client", None, eth("10.77.0.1"));
        let s1 = network.add_node("s1", None, Vec::new());
        let s2 = network.add_node("s2", None, Vec::new());
        let server = network.add_node("server", None, eth("10.77.0.2"));
        network.add_link([(client, "eth0".into()), (s1, "s1p1".into())]);
        network.add_link([(s1, "s1p2".into()), (s2, "s2p1".into())]);
        network.add_link([(s2, "s2p2".into()), (server, "eth0".into())]);
        let there = network.path(address("10.77.0.1"), address("10.77.0.2"));
        assert_eq!(
            names(&there.unwrap()),
            [
                "client:eth0>s1:s1p1",
                "s1:s1p2>s2:s2p1",
                "s2:s2p2>server:eth0"
            ]
        );
        let back = network.path(address("::ffff:10.77.0.2"), address("10.77.0.1"));
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
                .path(address("10.77.0.1"), address("192.0.2.1"))
                .is_none()
        );
    }

    #[test]
    fn of_two_links_the_one_with_the_addresses_is_chosen() {
        let mut network = LabNetwork::default();
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
        let hops = network.path(address("10.77.1.1"), address("10.77.1.2"));
        assert_eq!(names(&hops.unwrap()), ["a:eth1>b:eth1"]);
        let crossed = network.path(address("10.77.0.1"), address("10.77.1.2"));
        assert_eq!(crossed.unwrap().len(), 1);
    }
}
