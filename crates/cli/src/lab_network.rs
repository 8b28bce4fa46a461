//! The lab that runs this program, as a topology for the ends of a run.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use linerate_lab::CurrentLab;
use linerate_session::loss::LabNetwork;

/// Returns the topology of the lab, if `lab exec` started this program.
pub fn lab_network() -> Option<Arc<LabNetwork>> {
    linerate_lab::current_lab().map(topology_of).map(Arc::new)
}

/// Returns the `lab exec` command that started this program, as arguments before its own; empty if
/// it was started otherwise, for example by a shell inside the lab.
pub fn lab_exec_args(program: &str) -> Vec<String> {
    // Under `lab exec` the parent is outside the lab's PID namespace, so its number is 0.
    if rustix::process::getppid().is_some() {
        return Vec::new();
    }
    let Some(lab) = linerate_lab::current_lab() else {
        return Vec::new();
    };
    let host = match lab.current_host {
        Some(host) => format!("{}/{host}", lab.info.name),
        None => return Vec::new(),
    };
    [program, "lab", "exec", &host, "--"]
        .map(str::to_owned)
        .into()
}

/// Returns the topology of a lab: interfaces with their addresses, and links.
pub fn topology_of(lab: CurrentLab) -> LabNetwork {
    let CurrentLab {
        info,
        hosts,
        switches,
        current_host: _,
    } = lab;
    let mut network = LabNetwork::default();
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
        let position = hosts.iter().position(|(name, _)| *name == host.name);
        let namespace = position.map(|position| hosts.swap_remove(position).1);
        let number = network.add_node(&host.name, namespace, addresses.collect());
        numbers.push((host.name.as_str(), number));
    }
    let switches = switches.map(Arc::new);
    for switch in &info.switches {
        let number = network.add_node(switch, switches.clone(), Vec::new());
        numbers.push((switch.as_str(), number));
    }
    let number = |name: &str| numbers.iter().find(|(host_name, _)| *host_name == name);
    for link in &info.links {
        let [first, second] = &link.between;
        if let (Some(&(_, first)), Some(&(_, second))) = (number(first), number(second)) {
            let [first_interface, second_interface] = link.interfaces.clone();
            network.add_link([(first, first_interface), (second, second_interface)]);
        }
    }
    network
}
