//! What records say of a stack.

use std::collections::BTreeMap;

use linerate_metric::stack::{STACK_NAME, StackFacts, StackMemory, StackMemoryItem, StackPlan};
use linerate_port::PortUrl;
use linerate_stack::{Config, Counters, Stack};

/// What is settled before the first packet.
pub fn of(plan: &StackPlan, config: &Config, url: &PortUrl, stack: &Stack) -> StackFacts {
    let ethernet = stack.ethernet().map(|byte| format!("{byte:02x}"));
    StackFacts {
        name: STACK_NAME.to_owned(),
        device: plan.device.clone(),
        ethernet: Some(ethernet.join(":")),
        far_interface: stack.capabilities().far_interface.clone(),
        addresses: plan.addresses.clone(),
        configuration: rows(config),
        memory: memory(config, url),
        counters: BTreeMap::new(),
    }
}

/// The whole configuration, by key.
pub fn rows(config: &Config) -> BTreeMap<String, String> {
    let rows = config.rows();
    rows.map(|(key, value)| (key.to_owned(), value)).collect()
}

/// What a configuration takes of memory over a port.
pub fn memory(config: &Config, url: &PortUrl) -> StackMemory {
    let account = config.memory(url);
    let item = |item: linerate_stack::config::MemoryItem| StackMemoryItem {
        what: match item.name {
            "frames" => format!("{} frames of {} B", account.frames, account.slot_bytes),
            name => name.to_owned(),
        },
        bytes: item.bytes as u64,
    };
    StackMemory {
        bytes: account.bytes() as u64,
        items: account.items().map(item).collect(),
    }
}

/// Counters by protocol and name.
pub fn counters(counters: &Counters) -> BTreeMap<String, BTreeMap<String, u64>> {
    let mut all: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    for (protocol, name, count) in counters.rows() {
        let of = all.entry(protocol.to_owned()).or_default();
        of.insert(name.to_owned(), count);
    }
    all
}
