//! Facts of the hosts as rows of a table.

use linerate_record::facts::{HostFacts, InterfaceFacts, Role};
use linerate_record::record::Record;
use linerate_stats::units::{format_bit_rate, format_bytes};

use crate::model::count_of;

/// Table row: a fact and its value on each host.
pub(crate) struct HostFactRow {
    pub(crate) name: &'static str,
    /// Values in the order of the hosts.
    pub(crate) values: Vec<FactValue>,
}

/// Value of a fact on one host.
#[derive(Clone, PartialEq)]
pub(crate) enum FactValue {
    /// The value could not be read.
    Unknown,
    Text(String),
    /// Several named values with a summary.
    List {
        /// Summary, such as `9 active`.
        summary: String,
        /// Name and value of each.
        entries: Vec<(String, String)>,
    },
}

impl FactValue {
    fn from_option(value: Option<String>) -> Self {
        value.map_or(Self::Unknown, Self::Text)
    }

    fn join_parts(parts: impl IntoIterator<Item = Option<String>>) -> Self {
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        Self::from_option((!parts.is_empty()).then(|| parts.join(", ")))
    }
}

/// Returns the column heading of a host: `client (alpha)`.
pub(crate) fn host_heading(host: &HostFacts) -> String {
    match (host.role.map(Role::as_str), &host.hostname) {
        (Some(role), Some(name)) => format!("{role} ({name})"),
        (Some(role), None) => role.to_owned(),
        (None, Some(name)) => name.clone(),
        (None, None) => "this host".to_owned(),
    }
}

/// Returns the rows for some hosts. Facts that not every machine has (a governor, a PCI address)
/// get a row only when one of the hosts has them.
pub(crate) fn host_fact_rows(hosts: &[HostFacts]) -> Vec<HostFactRow> {
    let mut rows = Vec::new();
    for &(name, shown_without_value, read) in FACTS {
        let values: Vec<FactValue> = hosts.iter().map(read).collect();
        if shown_without_value || values.iter().any(|value| *value != FactValue::Unknown) {
            rows.push(HostFactRow { name, values });
        }
    }
    rows
}

type FactReader = fn(&HostFacts) -> FactValue;

/// Facts in table order: name, true if the row is shown even without a value, reader.
const FACTS: &[(&str, bool, FactReader)] = &[
    ("kernel", true, |host| {
        FactValue::from_option(match (&host.kernel, &host.architecture) {
            (Some(kernel), Some(architecture)) => Some(format!("{kernel} on {architecture}")),
            (kernel, _) => kernel.clone(),
        })
    }),
    ("distribution", true, |host| {
        FactValue::from_option(host.distribution.clone())
    }),
    ("processor", true, |host| {
        FactValue::from_option(host.cpu.model.clone())
    }),
    ("processors", true, processors),
    ("hypervisor", false, |host| {
        FactValue::from_option(host.cpu.hypervisor.clone())
    }),
    ("governor", false, |host| {
        FactValue::from_option(host.cpu.governor.clone())
    }),
    ("idle states", false, |host| {
        FactValue::from_option(host.cpu.idle.clone())
    }),
    ("mitigations", false, mitigations),
    ("memory", true, |host| {
        FactValue::from_option(host.memory_bytes.map(format_bytes))
    }),
    ("clock source", true, |host| {
        FactValue::from_option(host.clock_source.clone())
    }),
    ("interface", true, |host| {
        read_interface(host, |i| FactValue::Text(i.name.clone()))
    }),
    ("driver", true, |host| {
        read_interface(host, |i| {
            FactValue::join_parts([
                i.driver.clone(),
                i.driver_version.as_ref().map(|v| format!("version {v}")),
                i.firmware.as_ref().map(|f| format!("firmware {f}")),
            ])
        })
    }),
    ("PCI device", false, |host| {
        read_interface(host, |i| {
            FactValue::join_parts([
                i.pci_id.clone(),
                i.pci_address.as_ref().map(|a| format!("at {a}")),
                i.numa_node.map(|n| format!("NUMA node {n}")),
            ])
        })
    }),
    ("link", false, |host| {
        read_interface(host, |i| {
            FactValue::join_parts([
                i.speed_bps.map(|speed| format_bit_rate(speed as f64)),
                i.duplex.as_ref().map(|duplex| format!("{duplex} duplex")),
            ])
        })
    }),
    ("link address", false, |host| {
        read_interface(host, |i| FactValue::from_option(i.mac.clone()))
    }),
    ("MTU", true, |host| {
        read_interface(host, |i| {
            FactValue::from_option(i.mtu.map(|mtu| format!("{mtu} B")))
        })
    }),
    ("queues", true, |host| read_interface(host, queues)),
    ("queueing", false, |host| {
        read_interface(host, |i| FactValue::from_option(queueing(i)))
    }),
    ("GSO limit", false, |host| {
        read_interface(host, |i| {
            let [ipv4, ipv6] = [false, true].map(|is_ipv6| i.gso_bytes(is_ipv6));
            let of = |name: &str, bytes: u32| format!("{name}{}", format_bytes(bytes.into()));
            match ipv4 == ipv6 {
                true => FactValue::from_option(ipv4.map(|bytes| of("", bytes))),
                false => FactValue::join_parts([
                    ipv4.map(|bytes| of("IPv4 ", bytes)),
                    ipv6.map(|bytes| of("IPv6 ", bytes)),
                ]),
            }
        })
    }),
    ("offloads", false, |host| read_interface(host, offloads)),
    ("sysctls", false, |host| {
        list_fact(
            format!("{} read", host.sysctls.len()),
            host.sysctls
                .iter()
                .map(|(name, value)| {
                    (
                        name.clone(),
                        value.split_whitespace().collect::<Vec<_>>().join(" "),
                    )
                })
                .collect(),
        )
    }),
];

fn read_interface(host: &HostFacts, read: impl FnOnce(&InterfaceFacts) -> FactValue) -> FactValue {
    host.interface.as_ref().map_or(FactValue::Unknown, read)
}

fn list_fact(summary: String, entries: Vec<(String, String)>) -> FactValue {
    if entries.is_empty() {
        return FactValue::Unknown;
    }
    FactValue::List { summary, entries }
}

fn processors(host: &HostFacts) -> FactValue {
    let cpu = &host.cpu;
    FactValue::join_parts([
        cpu.logical.map(|n| format!("{n} logical")),
        cpu.usable
            .filter(|_| cpu.usable != cpu.logical)
            .map(|n| format!("{n} usable")),
        (cpu.quota.as_ref()).map(|quota| format!("quota of {:.2}", quota.cpus())),
        cpu.cores.map(|n| count_of(n.into(), "core")),
        cpu.sockets.map(|n| count_of(n.into(), "socket")),
        cpu.numa_nodes.map(|n| count_of(n.into(), "NUMA node")),
    ])
}

fn mitigations(host: &HostFacts) -> FactValue {
    let entries: Vec<_> = host
        .cpu
        .mitigations
        .iter()
        .map(|(name, state)| (name.clone(), state.clone()))
        .collect();
    let vulnerable = entries
        .iter()
        .filter(|(_, state)| state.starts_with("Vulnerable"))
        .count();
    let active = entries.len() - vulnerable;
    let summary = match (active, vulnerable) {
        (active, 0) => format!("{active} active"),
        (active, vulnerable) => format!("{active} active, {vulnerable} off (vulnerable)"),
    };
    list_fact(summary, entries)
}

fn queues(interface: &InterfaceFacts) -> FactValue {
    let queue = |name: &str, count: Option<u32>, descriptors: Option<u32>| {
        count.map(|count| match descriptors {
            Some(descriptors) => format!("{count} {name} of {descriptors} descriptors"),
            None => format!("{count} {name}"),
        })
    };
    FactValue::join_parts([
        queue("receive", interface.rx_queues, interface.rx_descriptors),
        queue("transmit", interface.tx_queues, interface.tx_descriptors),
    ])
}

/// Describes the queueing disciplines: the root, and its children.
fn queueing(interface: &InterfaceFacts) -> Option<String> {
    let root = interface.qdisc.clone()?;
    let children = interface.qdisc_children.iter();
    let children: Vec<String> = children
        .map(|child| match child.count {
            ..=1 => child.kind.clone(),
            count => format!("{count} {}", child.kind),
        })
        .collect();
    Some(match children.is_empty() {
        true => root,
        false => format!("{root} over {}", children.join(", ")),
    })
}

fn offloads(interface: &InterfaceFacts) -> FactValue {
    let on = interface.offloads.values().filter(|on| **on).count();
    list_fact(
        format!("{on} of {} on", interface.offloads.len()),
        interface
            .offloads
            .iter()
            .map(|(name, on)| (name.clone(), if *on { "on" } else { "off" }.to_owned()))
            .collect(),
    )
}

/// Returns the names of the devices between the hosts, in path order: switches of a lab, found
/// through their counters. A host has counters of its own as well as of its interfaces; a switch
/// has only those of interfaces.
pub(crate) fn switches(run: &Record) -> Vec<String> {
    let is_end = |name: &str| {
        let mut counters = run.counters.iter();
        counters.any(|counter| counter.host == name && counter.interface.is_none())
    };
    let mut names: Vec<String> = Vec::new();
    for counter in &run.counters {
        let name = &counter.host;
        if !names.contains(name) && !["client", "server"].contains(&&**name) && !is_end(name) {
            names.push(name.clone());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use linerate_record::record::CounterDelta;

    use super::*;

    #[test]
    fn hosts_of_a_lab_are_not_listed_as_switches() {
        let text = include_str!("../tests/fixtures/run-1.json");
        let mut run: Record = serde_json::from_str(text).unwrap();
        let counter = |host: &str, interface: Option<&str>| CounterDelta {
            host: host.to_owned(),
            interface: interface.map(str::to_owned),
            counter: "rx_dropped".to_owned(),
            before: 0,
            after: 0,
        };
        run.counters = vec![
            counter("a", Some("eth0")),
            counter("s1", Some("p1")),
            counter("b", Some("eth0")),
            counter("a", None),
            counter("b", None),
        ];
        assert_eq!(switches(&run), ["s1"]);
    }
}
