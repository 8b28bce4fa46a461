//! Facts of a stack for records.

use std::collections::BTreeMap;

use linerate_metric::plan::{Plan, Protocol};
use linerate_metric::stack::{STACK_NAME, StackFacts, StackMemory, StackMemoryItem, StackPlan};
use linerate_port::PortUrl;
use linerate_stack::{Config, Counters, Stack};

/// Returns the facts that are known before the first packet.
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

/// Returns the complete configuration, by key.
pub fn rows(config: &Config) -> BTreeMap<String, String> {
    let rows = config.rows();
    rows.map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Returns the memory of a configuration over a port.
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

/// Converts counters to a map by protocol and name.
pub fn counters(counters: &Counters) -> BTreeMap<String, BTreeMap<String, u64>> {
    let mut all: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    for (protocol, name, count) in counters.rows() {
        let of = all.entry(protocol.to_owned()).or_default();
        of.insert(name.to_owned(), count);
    }
    all
}

/// Returns the segments retransmitted by the only stream of a run. The stack counts them for all
/// connections together, so several streams or an omitted start make them ambiguous. With the
/// control
/// connection over the stack, its few segments are included.
#[must_use]
pub fn retransmits(stack: &StackFacts, plan: &Plan) -> Option<u64> {
    let streams = u64::from(plan.streams) * plan.directions.len() as u64;
    let is_alone = plan.protocol == Protocol::Tcp && streams == 1 && plan.omit_ns == 0;
    is_alone.then(|| stack.counter("tcp", "retransmitted_segments"))
}

#[cfg(test)]
mod tests {
    use linerate_metric::plan::{Direction, Kind};

    use super::*;

    /// Documented earlier than it was recorded.
    #[test]
    fn a_lone_stream_has_the_segments_that_were_sent_again() {
        let mut stack = StackFacts::default();
        let of_tcp = stack.counters.entry("tcp".to_owned()).or_default();
        of_tcp.insert("retransmitted_segments".to_owned(), 7);
        let plan = |protocol| Plan::new(Kind::Throughput, protocol, "10.9.0.1");
        let tcp = plan(Protocol::Tcp);
        assert_eq!(retransmits(&stack, &tcp), Some(7));
        let several: [fn(&mut Plan); 3] = [
            |plan| plan.streams = 2,
            |plan| plan.directions = vec![Direction::Send, Direction::Receive],
            |plan| plan.omit_ns = 1,
        ];
        for change in several {
            let mut plan = tcp.clone();
            change(&mut plan);
            assert_eq!(retransmits(&stack, &plan), None, "{plan:?}");
        }
        assert_eq!(retransmits(&stack, &plan(Protocol::Udp)), None);
    }
}
