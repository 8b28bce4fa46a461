//! Host facts as rows of a table, shared by text and HTML.

use linerate_metric::facts::{Host, Interface};
use linerate_metric::record::Record;
use linerate_metric::units::{format_bit_rate, format_bytes};

/// Table row: a fact and its value on each host.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// Values in the order of the hosts.
    pub(crate) values: Vec<Fact>,
}

/// Value of a fact on one host.
#[derive(Clone, PartialEq)]
pub(crate) enum Fact {
    /// The value could not be read.
    Unknown,
    Value(String),
    /// Several named values with a summary.
    List {
        /// Summary, such as `9 active`.
        summary: String,
        /// Name and value of each.
        entries: Vec<(String, String)>,
    },
}

impl Fact {
    fn of(value: Option<String>) -> Self {
        value.map_or(Self::Unknown, Self::Value)
    }

    fn joined(parts: impl IntoIterator<Item = Option<String>>) -> Self {
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        Self::of((!parts.is_empty()).then(|| parts.join(", ")))
    }
}

/// Returns the column heading of a host: `client (alpha)`.
pub(crate) fn heading(host: &Host) -> String {
    match (host.role.map(crate::figures::role), &host.hostname) {
        (Some(role), Some(name)) => format!("{role} ({name})"),
        (Some(role), None) => role.to_owned(),
        (None, Some(name)) => name.clone(),
        (None, None) => "this host".to_owned(),
    }
}

/// Returns the rows for some hosts. Facts that not every machine has (a governor, a PCI address)
/// get a row only when one of the hosts has them.
pub(crate) fn rows(hosts: &[Host]) -> Vec<Row> {
    let mut rows = Vec::new();
    for &(name, always, read) in FACTS {
        let values: Vec<Fact> = hosts.iter().map(read).collect();
        if always || values.iter().any(|value| *value != Fact::Unknown) {
            rows.push(Row { name, values });
        }
    }
    rows
}

type Read = fn(&Host) -> Fact;

/// Facts in table order: name, true if the row is shown even without a value, reader.
const FACTS: &[(&str, bool, Read)] = &[
    ("kernel", true, |host| {
        Fact::of(match (&host.kernel, &host.architecture) {
            (Some(kernel), Some(architecture)) => Some(format!("{kernel} on {architecture}")),
            (kernel, _) => kernel.clone(),
        })
    }),
    ("distribution", true, |host| {
        Fact::of(host.distribution.clone())
    }),
    ("processor", true, |host| Fact::of(host.cpu.model.clone())),
    ("processors", true, processors),
    ("hypervisor", false, |host| {
        Fact::of(host.cpu.hypervisor.clone())
    }),
    ("governor", false, |host| {
        Fact::of(host.cpu.governor.clone())
    }),
    ("idle states", false, |host| Fact::of(host.cpu.idle.clone())),
    ("mitigations", false, mitigations),
    ("memory", true, |host| {
        Fact::of(host.memory_bytes.map(format_bytes))
    }),
    ("clock source", true, |host| {
        Fact::of(host.clock_source.clone())
    }),
    ("interface", true, |host| {
        on_interface(host, |i| Fact::Value(i.name.clone()))
    }),
    ("driver", true, |host| {
        on_interface(host, |i| {
            Fact::joined([
                i.driver.clone(),
                i.driver_version.as_ref().map(|v| format!("version {v}")),
                i.firmware.as_ref().map(|f| format!("firmware {f}")),
            ])
        })
    }),
    ("PCI device", false, |host| {
        on_interface(host, |i| {
            Fact::joined([
                i.pci_id.clone(),
                i.pci_address.as_ref().map(|a| format!("at {a}")),
                i.numa_node.map(|n| format!("NUMA node {n}")),
            ])
        })
    }),
    ("link", false, |host| {
        on_interface(host, |i| {
            Fact::joined([
                i.speed_bps.map(|speed| format_bit_rate(speed as f64)),
                i.duplex.as_ref().map(|duplex| format!("{duplex} duplex")),
            ])
        })
    }),
    ("link address", false, |host| {
        on_interface(host, |i| Fact::of(i.mac.clone()))
    }),
    ("MTU", true, |host| {
        on_interface(host, |i| Fact::of(i.mtu.map(|mtu| format!("{mtu} B"))))
    }),
    ("queues", true, |host| on_interface(host, queues)),
    ("queueing", false, |host| {
        on_interface(host, |i| Fact::of(queueing(i)))
    }),
    ("GSO limit", false, |host| {
        on_interface(host, |i| {
            Fact::of(i.gso_ipv4_max_bytes.map(|b| format_bytes(b.into())))
        })
    }),
    ("offloads", false, |host| on_interface(host, offloads)),
    ("sysctls", false, |host| {
        list(
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

fn on_interface(host: &Host, read: impl FnOnce(&Interface) -> Fact) -> Fact {
    host.interface.as_ref().map_or(Fact::Unknown, read)
}

fn list(summary: String, entries: Vec<(String, String)>) -> Fact {
    if entries.is_empty() {
        return Fact::Unknown;
    }
    Fact::List { summary, entries }
}

fn processors(host: &Host) -> Fact {
    let cpu = &host.cpu;
    let many = |n: u32, one: &str, more: &str| format!("{n} {}", if n == 1 { one } else { more });
    Fact::joined([
        cpu.logical.map(|n| many(n, "logical", "logical")),
        cpu.usable
            .filter(|_| cpu.usable != cpu.logical)
            .map(|n| format!("{n} usable")),
        cpu.cores.map(|n| many(n, "core", "cores")),
        cpu.sockets.map(|n| many(n, "socket", "sockets")),
        cpu.numa_nodes.map(|n| many(n, "NUMA node", "NUMA nodes")),
    ])
}

fn mitigations(host: &Host) -> Fact {
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
    list(summary, entries)
}

fn queues(interface: &Interface) -> Fact {
    let queue = |name: &str, count: Option<u32>, descriptors: Option<u32>| {
        count.map(|count| match descriptors {
            Some(descriptors) => format!("{count} {name} of {descriptors} descriptors"),
            None => format!("{count} {name}"),
        })
    };
    Fact::joined([
        queue("receive", interface.rx_queues, interface.rx_descriptors),
        queue("transmit", interface.tx_queues, interface.tx_descriptors),
    ])
}

/// Describes the queueing disciplines: the root, and its children.
fn queueing(interface: &Interface) -> Option<String> {
    let root = interface.qdisc.clone()?;
    let below = interface.qdisc_children.iter();
    let below: Vec<String> = below
        .map(|child| match child.count {
            ..=1 => child.kind.clone(),
            count => format!("{count} {}", child.kind),
        })
        .collect();
    Some(match below.is_empty() {
        true => root,
        false => format!("{root} over {}", below.join(", ")),
    })
}

fn offloads(interface: &Interface) -> Fact {
    let on = interface.offloads.values().filter(|on| **on).count();
    list(
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
        let mut own = run.counters.iter();
        own.any(|counter| counter.host == name && counter.interface.is_none())
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
    use super::*;
    use linerate_metric::record::PlaceCounter;

    #[test]
    fn hosts_of_a_lab_are_no_switches_on_the_way() {
        let text = include_str!("../tests/fixtures/run-1.json");
        let mut run: Record = serde_json::from_str(text).unwrap();
        let counter = |host: &str, interface: Option<&str>| PlaceCounter {
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
