//! Layout of a topology: its segments, every interface with its addresses, and the routes between
//! segments. Pure: the same topology always gives the same layout.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::topology::{IPV6_MIN_MTU, Ipv4Prefix, Topology, TopologyError};

/// Prefix length of every IPv6 network of a lab.
pub const IPV6_PREFIX: u8 = 64;

/// Layout of a topology. Hosts, switches and links are identified by their index in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Hosts, in the order of [`Topology::hosts`].
    pub hosts: Vec<HostLayout>,
    /// Ends of every link, in the order of [`Topology::links`].
    pub links: Vec<[LinkEndpoint; 2]>,
}

/// Interfaces and routes of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostLayout {
    /// `eth0`, `eth1`, ... in the order of its links.
    pub interfaces: Vec<HostInterface>,
    /// Routes to the segments that the host is not on.
    pub routes: Vec<HostRoute>,
    /// True when other hosts reach a segment through this one.
    pub forwards: bool,
}

/// Interface of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostInterface {
    /// Name inside the host.
    pub name: String,
    /// Index of the link.
    pub link: usize,
    /// Index of the segment that the link is in.
    pub segment: usize,
    /// IPv4 address and network.
    pub address: Ipv4Prefix,
    /// IPv6 address; `None` when a link of the lab has an MTU below IPv6's minimum.
    pub address_v6: Option<Ipv6Addr>,
}

/// Route to a segment through another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRoute {
    /// Network of the segment, with its network address.
    pub network: Ipv4Prefix,
    /// Next hop, on a common segment.
    pub gateway: Ipv4Addr,
    /// IPv6 network and gateway.
    pub v6: Option<(Ipv6Addr, Ipv6Addr)>,
}

/// Host or switch at the end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeIndex {
    /// Index of a host in the topology.
    Host(usize),
    /// Index of a switch in the topology.
    Switch(usize),
}

/// End of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkEndpoint {
    /// Host or switch of this end.
    pub node: NodeIndex,
    /// Interface name there.
    pub interface: String,
}

impl Layout {
    /// Computes the layout of a topology whose names and links were checked.
    pub(crate) fn from_topology(topology: &Topology) -> Result<Self, TopologyError> {
        let nodes: Vec<[NodeIndex; 2]> = topology
            .links
            .iter()
            .map(|link| {
                link.between
                    .each_ref()
                    .map(|name| node_index(topology, name))
            })
            .collect();
        let segments = link_segments(topology, &nodes)?;
        let mut hosts = vec![HostLayout::default(); topology.hosts.len()];
        let mut ports = 0;
        let mut links = Vec::with_capacity(nodes.len());
        for (link, ends) in nodes.into_iter().enumerate() {
            links.push(ends.map(|node| {
                let interface = match node {
                    NodeIndex::Host(host) => {
                        let name = format!("eth{}", hosts[host].interfaces.len());
                        hosts[host].interfaces.push(HostInterface {
                            name: name.clone(),
                            link,
                            segment: segments[link],
                            address: UNASSIGNED,
                            address_v6: None,
                        });
                        name
                    }
                    // All switches share one namespace, so their ports are numbered consecutively.
                    NodeIndex::Switch(_) => {
                        ports += 1;
                        format!("port{ports}")
                    }
                };
                LinkEndpoint { node, interface }
            }));
        }
        let mut layout = Self { hosts, links };
        layout.reject_duplicate_segments(topology)?;
        layout.assign_addresses(topology)?;
        layout.add_routes();
        Ok(layout)
    }

    /// Removes all IPv6 addresses, for a kernel without IPv6.
    pub(crate) fn drop_ipv6(&mut self) {
        for host in &mut self.hosts {
            for interface in &mut host.interfaces {
                interface.address_v6 = None;
            }
            for route in &mut host.routes {
                route.v6 = None;
            }
        }
    }

    /// Iterates over the interfaces on a segment as (host, interface), in the order of hosts.
    fn members(&self, segment: usize) -> impl Iterator<Item = (usize, usize)> {
        self.hosts
            .iter()
            .enumerate()
            .flat_map(move |(host, layout)| {
                let on = move |(number, interface): (usize, &HostInterface)| {
                    (interface.segment == segment).then_some((host, number))
                };
                layout.interfaces.iter().enumerate().filter_map(on)
            })
    }

    fn segment_count(&self) -> usize {
        let all = self.hosts.iter().flat_map(|host| &host.interfaces);
        all.map(|interface| interface.segment + 1)
            .max()
            .unwrap_or(0)
    }

    fn reject_duplicate_segments(&self, topology: &Topology) -> Result<(), TopologyError> {
        for (host, (name, _)) in self.hosts.iter().zip(&topology.hosts) {
            for (number, one) in host.interfaces.iter().enumerate() {
                let twin = host.interfaces[..number]
                    .iter()
                    .find(|other| other.segment == one.segment);
                if let Some(other) = twin {
                    return Err(TopologyError::DuplicateSegment {
                        host: name.clone(),
                        interfaces: format!("{} and {}", other.name, one.name),
                    });
                }
            }
        }
        Ok(())
    }

    /// Assigns addresses to all interfaces.
    fn assign_addresses(&mut self, topology: &Topology) -> Result<(), TopologyError> {
        let networks = self.segment_networks(topology)?;
        let ipv6 = topology.links.iter().all(|link| link.mtu() >= IPV6_MIN_MTU);
        for (segment, network) in networks.iter().enumerate() {
            let members: Vec<_> = self.members(segment).collect();
            let requested_address = |(host, number): (usize, usize)| {
                // The address in the file belongs to the first interface.
                let address = topology.hosts[host].1.address;
                address.filter(|_| number == 0)
            };
            let used_numbers: Vec<u32> = members
                .iter()
                .filter_map(|&member| requested_address(member))
                .map(Ipv4Prefix::host_number)
                .collect();
            let mut next = 1;
            for &(host, number) in &members {
                let number_in_network = match requested_address((host, number)) {
                    Some(address) => address.host_number(),
                    None => {
                        while used_numbers.contains(&next) {
                            next += 1;
                        }
                        next += 1;
                        next - 1
                    }
                };
                if number_in_network > network.last_host() {
                    return Err(TopologyError::NetworkFull {
                        network: network.to_string(),
                        host: topology.hosts[host].0.clone(),
                    });
                }
                let interface = &mut self.hosts[host].interfaces[number];
                interface.address = Ipv4Prefix {
                    address: Ipv4Addr::from_bits(network.network() | number_in_network),
                    length: network.length,
                };
                interface.address_v6 = ipv6.then(|| ipv6_address(segment, number_in_network));
            }
        }
        Ok(())
    }

    /// Returns the network of every segment: the requested one, or the next free 10.77.N.0/24.
    fn segment_networks(&self, topology: &Topology) -> Result<Vec<Ipv4Prefix>, TopologyError> {
        let mut requested: Vec<Option<(usize, Ipv4Prefix)>> = Vec::new();
        for segment in 0..self.segment_count() {
            let segment_requests: Vec<(usize, Ipv4Prefix)> = self
                .members(segment)
                .filter(|&(_, number)| number == 0)
                .filter_map(|(host, _)| Some((host, topology.hosts[host].1.address?)))
                .collect();
            check_requested_addresses(topology, &segment_requests)?;
            let first = segment_requests.first().copied();
            if let Some((host, network)) = first {
                let clash = requested
                    .iter()
                    .flatten()
                    .find(|(_, one)| one.overlaps(network));
                if let Some((_, other)) = clash {
                    return Err(TopologyError::Overlap {
                        first: network_of(*other).to_string(),
                        second: network_of(network).to_string(),
                        host: topology.hosts[host].0.clone(),
                    });
                }
            }
            requested.push(first);
        }
        let mut free = (0..)
            .map(|number: u32| Ipv4Prefix {
                address: Ipv4Addr::from_bits(FIRST_NETWORK + (number << 8)),
                length: 24,
            })
            .filter(|candidate| {
                !requested
                    .iter()
                    .flatten()
                    .any(|(_, one)| one.overlaps(*candidate))
            });
        Ok(requested
            .iter()
            .map(|requested_network| match requested_network {
                Some((_, network)) => network_of(*network),
                None => free.next().expect("an endless iterator"),
            })
            .collect())
    }

    /// Adds a route from every host to every segment that it is not on, with the fewest hops; of
    /// equal paths the first in the file wins.
    fn add_routes(&mut self) {
        let count = self.segment_count();
        let members: Vec<Vec<(usize, usize)>> = (0..count)
            .map(|segment| self.members(segment).collect())
            .collect();
        for start in 0..self.hosts.len() {
            // Breadth-first search over segments; each keeps the first hop through which it was
            // reached.
            let mut through: Vec<Option<Option<(usize, usize)>>> = vec![None; count];
            let mut waiting = VecDeque::new();
            for interface in &self.hosts[start].interfaces {
                through[interface.segment] = Some(None);
                waiting.push_back(interface.segment);
            }
            while let Some(segment) = waiting.pop_front() {
                for &(host, number) in &members[segment] {
                    for next in self.hosts[host].interfaces.iter().map(|i| i.segment) {
                        if through[next].is_none() {
                            let first = through[segment].flatten().unwrap_or((host, number));
                            through[next] = Some(Some(first));
                            waiting.push_back(next);
                        }
                    }
                }
            }
            for (segment, first_hop) in through.into_iter().enumerate() {
                let (Some(Some((host, number))), Some(&(target_host, port))) =
                    (first_hop, members[segment].first())
                else {
                    continue;
                };
                let gateway = &self.hosts[host].interfaces[number];
                let target = &self.hosts[target_host].interfaces[port];
                let route = HostRoute {
                    network: network_of(target.address),
                    gateway: gateway.address.address,
                    v6: gateway
                        .address_v6
                        .map(|gateway| (ipv6_address(segment, 0), gateway)),
                };
                self.hosts[host].forwards = true;
                self.hosts[start].routes.push(route);
            }
        }
    }
}

/// 10.77.0.0.
const FIRST_NETWORK: u32 = u32::from_be_bytes([10, 77, 0, 0]);
/// Placeholder until addresses are assigned.
const UNASSIGNED: Ipv4Prefix = Ipv4Prefix {
    address: Ipv4Addr::UNSPECIFIED,
    length: 24,
};

/// Returns `fd77:0:0:SEGMENT::HOST`, a unique local address (RFC 4193) with IPv4's host number.
fn ipv6_address(segment: usize, host: u32) -> Ipv6Addr {
    let segment = u128::from(segment as u16) << 64;
    Ipv6Addr::from_bits(0xfd77_u128 << 112 | segment | u128::from(host))
}

fn network_of(prefix: Ipv4Prefix) -> Ipv4Prefix {
    Ipv4Prefix {
        address: Ipv4Addr::from_bits(prefix.network()),
        length: prefix.length,
    }
}

fn node_index(topology: &Topology, name: &str) -> NodeIndex {
    let host = topology
        .hosts
        .iter()
        .position(|(host_name, _)| host_name == name);
    let switch = topology
        .switches
        .iter()
        .position(|(host_name, _)| host_name == name);
    match (host, switch) {
        (Some(host), _) => NodeIndex::Host(host),
        (None, switch) => NodeIndex::Switch(switch.expect("ends of links were checked")),
    }
}

/// Returns the segment of every link: links that meet in a switch share one. Numbered by the
/// first link.
fn link_segments(
    topology: &Topology,
    links: &[[NodeIndex; 2]],
) -> Result<Vec<usize>, TopologyError> {
    // Union-find over switches: with so few, path compression is not needed.
    let mut parent: Vec<usize> = (0..topology.switches.len()).collect();
    let root = |parent: &[usize], mut switch: usize| {
        while parent[switch] != switch {
            switch = parent[switch];
        }
        switch
    };
    for (number, ends) in links.iter().enumerate() {
        if let [NodeIndex::Switch(one), NodeIndex::Switch(other)] = *ends {
            let (one, other) = (root(&parent, one), root(&parent, other));
            if one == other {
                return Err(TopologyError::SwitchLoop {
                    link: topology.links[number].label(),
                });
            }
            parent[other] = one;
        }
    }
    let mut of_switch = vec![None; parent.len()];
    let mut count = 0;
    Ok(links
        .iter()
        .map(|ends| {
            let switch = ends.iter().find_map(|end| match end {
                NodeIndex::Switch(switch) => Some(root(&parent, *switch)),
                NodeIndex::Host(_) => None,
            });
            let numbered = switch.and_then(|switch| of_switch[switch]);
            numbered.unwrap_or_else(|| {
                if let Some(switch) = switch {
                    of_switch[switch] = Some(count);
                }
                count += 1;
                count - 1
            })
        })
        .collect())
}

/// Checks that the addresses requested on one segment differ and are in one network.
fn check_requested_addresses(
    topology: &Topology,
    requested: &[(usize, Ipv4Prefix)],
) -> Result<(), TopologyError> {
    let name = |host: usize| topology.hosts[host].0.clone();
    let Some(&(first, network)) = requested.first() else {
        return Ok(());
    };
    for (number, &(host, address)) in requested.iter().enumerate() {
        if network_of(address) != network_of(network) {
            return Err(TopologyError::NotInNetwork {
                host: name(host),
                address: address.to_string(),
                neighbour: name(first),
                network: network_of(network).to_string(),
            });
        }
        let twin = requested[..number]
            .iter()
            .find(|(_, other)| *other == address);
        if let Some(&(other, _)) = twin {
            return Err(TopologyError::DuplicateAddress {
                first: name(other),
                second: name(host),
                address: address.to_string(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
