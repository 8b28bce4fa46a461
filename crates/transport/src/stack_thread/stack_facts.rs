//! Facts of a stack for records.

use std::collections::BTreeMap;

use linerate_port::PortUrl;
use linerate_record::plan::{Plan, TransportProtocol};
use linerate_record::stack::{STACK_NAME, StackFacts, StackMemory, StackMemoryItem, StackPlan};
use linerate_stack::{Counters, Stack, StackConfig};

/// Returns the facts that are known before the first packet.
pub fn stack_facts(
    plan: &StackPlan,
    config: &StackConfig,
    url: &PortUrl,
    stack: &Stack,
) -> StackFacts {
    let ethernet = stack.ethernet_address().map(|byte| format!("{byte:02x}"));
    StackFacts {
        name: STACK_NAME.to_owned(),
        device: plan.device.clone(),
        ethernet: Some(ethernet.join(":")),
        peer_interface: stack.capabilities().peer_interface.clone(),
        addresses: plan.addresses.clone(),
        configuration: configuration(config),
        memory: memory_facts(config, url),
        counters: BTreeMap::new(),
    }
}

/// Returns the complete configuration, by key.
pub fn configuration(config: &StackConfig) -> BTreeMap<String, String> {
    let pairs = config.entries();
    pairs.map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Returns the memory of a configuration over a port.
pub fn memory_facts(config: &StackConfig, url: &PortUrl) -> StackMemory {
    let usage = config.memory_usage(url);
    let item = |item: linerate_stack::MemoryItem| StackMemoryItem {
        purpose: match item.name {
            "frames" => format!("{} frames of {} B", usage.frames, usage.slot_bytes),
            name => name.to_owned(),
        },
        bytes: item.bytes as u64,
    };
    StackMemory {
        bytes: usage.bytes() as u64,
        items: usage.items().map(item).collect(),
    }
}

/// Converts counters to a map by protocol and name.
pub fn counter_map(counters: &Counters) -> BTreeMap<String, BTreeMap<String, u64>> {
    let mut all: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    for (protocol, name, count) in counters.entries() {
        let names = all.entry(protocol.to_owned()).or_default();
        names.insert(name.to_owned(), count);
    }
    all
}

/// Returns the segments retransmitted by the only stream of a run. The stack counts them for all
/// connections together, so several streams or an omitted start make them ambiguous. With the
/// control connection over the stack, its few segments are included.
#[must_use]
pub fn retransmits(stack: &StackFacts, plan: &Plan) -> Option<u64> {
    let streams = u64::from(plan.streams) * plan.directions.len() as u64;
    let is_only_stream =
        plan.protocol == TransportProtocol::Tcp && streams == 1 && plan.omit_ns == 0;
    is_only_stream.then(|| stack.counter("tcp", "retransmitted_segments"))
}

#[cfg(test)]
mod tests {
    use linerate_record::plan::{Direction, RunKind};

    use super::*;

    /// Documented earlier than it was recorded.
    #[test]
    fn a_single_stream_has_its_retransmissions() {
        let mut stack = StackFacts::default();
        let tcp_counters = stack.counters.entry("tcp".to_owned()).or_default();
        tcp_counters.insert("retransmitted_segments".to_owned(), 7);
        let plan = |protocol| Plan::new(RunKind::Throughput, protocol, "10.9.0.1");
        let tcp = plan(TransportProtocol::Tcp);
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
        assert_eq!(retransmits(&stack, &plan(TransportProtocol::Udp)), None);
    }
}
