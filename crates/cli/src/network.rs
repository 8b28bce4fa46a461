//! The lab around this program, as the ends of a run look into it.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use linerate_lab::Inside;
use linerate_measure::Network;

/// The network that this program was started in by `lab exec`; `None` elsewhere.
pub fn around() -> Option<Arc<Network>> {
    linerate_lab::inside().map(network_of).map(Arc::new)
}

/// What this program was started through, where that was `lab exec` and no shell inside the lab: the
/// words before its own.
pub fn started_through(program: &str) -> Vec<String> {
    // Whoever started it is out of sight: it is in no process-number namespace of the lab.
    if rustix::process::getppid().is_some() {
        return Vec::new();
    }
    let Some(lab) = linerate_lab::inside() else {
        return Vec::new();
    };
    let host = match lab.own {
        Some(host) => format!("{}/{host}", lab.info.name),
        None => return Vec::new(),
    };
    [program, "lab", "exec", &host, "--"]
        .map(str::to_owned)
        .into()
}

/// A lab as the ends of a run need it: interfaces with their addresses, and how they are joined.
pub fn network_of(lab: Inside) -> Network {
    let Inside {
        info,
        hosts,
        switches,
        own: _,
    } = lab;
    let mut network = Network::default();
    let mut numbers = Vec::new();
    let mut hosts: Vec<(String, Arc<OwnedFd>)> = hosts
        .into_iter()
        .map(|(name, namespace)| (name, Arc::new(namespace)))
        .collect();
    for host in &info.hosts {
        let addresses = host.interfaces.iter().flat_map(|interface| {
            let v6 = interface.address_v6.map(IpAddr::V6);
            [Some(IpAddr::V4(interface.address)), v6]
                .into_iter()
                .flatten()
                .map(|address| (interface.name.clone(), address))
        });
        let place = hosts.iter().position(|(name, _)| *name == host.name);
        let namespace = place.map(|place| hosts.swap_remove(place).1);
        let number = network.add_node(&host.name, namespace, addresses.collect());
        numbers.push((host.name.as_str(), number));
    }
    let switches = switches.map(Arc::new);
    for switch in &info.switches {
        let number = network.add_node(switch, switches.clone(), Vec::new());
        numbers.push((switch.as_str(), number));
    }
    let number = |name: &str| numbers.iter().find(|(known, _)| *known == name);
    for link in &info.links {
        let [one, other] = &link.between;
        if let (Some(&(_, one)), Some(&(_, other))) = (number(one), number(other)) {
            let [near, far] = link.interfaces.clone();
            network.add_link([(one, near), (other, far)]);
        }
    }
    network
}
