//! Creates a stack from its plan: configuration, addresses, port, memory.

use std::net::IpAddr;
use std::sync::Arc;

use linerate_host::snapshot::is_local_address;
use linerate_port::{AnyPort, PortUrl, RxQueue, TxQueue};
use linerate_record::stack::{StackFacts, StackPlan};
use linerate_stack::{
    MemoryUsage, Stack, StackAddressing, StackConfig, StackError, memory_plan, port_url,
};
use linerate_stats::units::format_bytes;
use linerate_sys::frames::frame_memory::FrameRegion;
use linerate_sys::{cpu, memory_info};

use super::port_driver::PortDriver;
use super::port_state::PortState;
use super::{stack_facts, thread_schedule};
use crate::TransportError;

/// Returns the configuration of a plan: its profile, with the changed keys.
///
/// # Errors
/// [`StackError`] with the key, its value and the accepted values.
pub fn read_config(plan: &StackPlan) -> Result<StackConfig, StackError> {
    let mut config = StackConfig::profile(&plan.profile)?;
    for (key, value) in &plan.configuration {
        config.set(key, value)?;
    }
    Ok(config)
}

/// Returns the addresses and gateways of a plan.
///
/// # Errors
/// [`StackError::BadInterfaceAddress`], and contradictions between them.
pub fn read_addressing(plan: &StackPlan) -> Result<StackAddressing, StackError> {
    let addresses: Vec<&str> = plan.addresses.iter().map(String::as_str).collect();
    let mut addressing = StackAddressing::new(&addresses)?;
    for gateway in &plan.gateways {
        let address = gateway
            .parse()
            .map_err(|_| StackError::BadInterfaceAddress {
                text: gateway.clone(),
            })?;
        addressing.gateways.push(address);
    }
    addressing.seed = fastrand::u64(..);
    Ok(addressing)
}

/// Returns the port's URL, with descriptors and MTU of the configuration as defaults.
///
/// # Errors
/// When the URL is invalid.
pub fn port_url_of(config: &StackConfig, plan: &StackPlan) -> Result<PortUrl, TransportError> {
    Ok(port_url(config, &plan.device)?)
}

/// Rejects an address that the kernel has, too, on a port whose frames the kernel also receives.
/// The kernel would refuse connections to the stack, and treat the stack's packets as its own.
fn check_addresses(
    plan: &StackPlan,
    addressing: &StackAddressing,
    is_kernel_address: impl Fn(IpAddr) -> bool,
) -> Result<(), TransportError> {
    let shared = ["packet:", "tap:"]
        .iter()
        .any(|kind| plan.device.starts_with(kind));
    let mut addresses = addressing.networks.iter().map(|network| network.address);
    match addresses.find(|address| shared && is_kernel_address(*address)) {
        None => Ok(()),
        Some(address) => Err(TransportError::OptionRejected {
            option: format!("--ip {address} on {}", plan.device),
            why: "the kernel of this host has the same address and would respond in the stack's place".to_owned(),
            next_step: "give the stack an address of its own in that network".to_owned(),
        }),
    }
}

/// Rejects a configuration that needs more memory than is available. All buffers are allocated
/// before the first packet; an excess would make the kernel kill some process later.
fn check_memory(config: &StackConfig, url: &PortUrl) -> Result<(), TransportError> {
    let needed = config.memory_usage(url).bytes() as u64;
    match memory_info::available_bytes() {
        Some(available) if needed > available => Err(TransportError::OptionRejected {
            option: format!("--set, for {} of memory", format_bytes(needed)),
            why: format!("the machine has {} available", format_bytes(available)),
            next_step: memory_advice(&config.memory_usage(url)),
        }),
        _ => Ok(()),
    }
}

/// Returns advice to lower the keys of the largest memory item.
fn memory_advice(usage: &MemoryUsage) -> String {
    const KEYS: &[(&str, &str)] = &[
        (
            "TCP buffers",
            "tcp.send_buffer, tcp.receive_window or sockets.tcp",
        ),
        ("TCP connections", "sockets.tcp"),
        ("UDP sockets and queues", "udp.receive_queue or sockets.udp"),
        ("UDP port table", "sockets.udp"),
        (
            "reassembly buffers",
            "ip.reassembly_buffers.count or ip.reassembly_buffers.bytes",
        ),
        ("neighbours", "arp.cache"),
        (
            "frames",
            "udp.buffers, udp.receive_queue, rx_descriptors, tx_descriptors or mtu",
        ),
    ];
    let largest = usage.items().max_by_key(|item| item.bytes);
    let (name, bytes) = largest.map_or(("", 0), |item| (item.name, item.bytes as u64));
    let keys = KEYS.iter().find(|(item, _)| *item == name);
    let keys = keys.map_or("sizes", |(_, keys)| *keys);
    format!(
        "{name} take {} of it: set {keys} lower",
        format_bytes(bytes)
    )
}

/// Opens the port and creates the stack, with all the memory that it will ever use.
///
/// # Errors
/// When the port cannot be opened, or does not support the configuration.
pub fn open_stack(
    plan: &StackPlan,
    state: &Arc<PortState>,
) -> Result<(Stack, StackFacts, Option<PortDriver>), TransportError> {
    let config = read_config(plan)?;
    let addressing = read_addressing(plan)?;
    let url = port_url_of(&config, plan)?;
    let usable = cpu::list_usable().map_err(|error| TransportError::system("affinity", error))?;
    thread_schedule::check_threads(&config, &usable)?;
    check_addresses(plan, &addressing, is_local_address)?;
    check_memory(&config, &url)?;
    let memory = FrameRegion::new(memory_plan(&config, &url))?;
    let mut ports = linerate_port::open(&url, &memory)?;
    let port = match (ports.pop(), ports.is_empty()) {
        (Some(port), true) => port,
        _ => {
            return Err(TransportError::OptionRejected {
                option: format!("--dev {}", plan.device),
                why: "the stack polls one queue, and this port has several".to_owned(),
                next_step: match url.kind().extra_keys.iter().any(|key| key.name == "q") {
                    true => "name one of them: q=0".to_owned(),
                    false => "leave out queues=".to_owned(),
                },
            });
        }
    };
    let drops = [port.receive.counters(), port.transmit.counters()].map(Arc::clone);
    let (port, driver) = match config.threads {
        1 => (port, None),
        _ => {
            let (stack_end, driver) = start_driver(port, &memory, &config, state)?;
            (stack_end, Some(driver))
        }
    };
    let mut stack = Stack::new(port, &memory, &config, &addressing)?;
    stack.set_drop_counters(drops);
    let facts = stack_facts::stack_facts(plan, &config, &url, &stack);
    Ok((stack, facts, driver))
}

/// Starts a driver thread for a port. The stack gets one end of a ring instead, with the
/// capabilities of the port.
fn start_driver(
    port: AnyPort,
    memory: &FrameRegion,
    config: &StackConfig,
    state: &Arc<PortState>,
) -> Result<(AnyPort, PortDriver), TransportError> {
    let open_end = |open_end: &str| -> Result<AnyPort, TransportError> {
        let url: PortUrl = linerate_stack::ring_url(config, open_end).parse()?;
        let mut ports = linerate_port::open(&url, memory)?;
        ports.pop().ok_or_else(|| {
            TransportError::system("a ring", std::io::Error::other("it has no queue"))
        })
    };
    let (mut stack_end, driver_end) = (open_end("a")?, open_end("b")?);
    stack_end.capabilities = port.capabilities.clone();
    let driver = PortDriver::start(port, driver_end, memory, config, Arc::clone(state))?;
    Ok((stack_end, driver))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without the check the kernel refused connections, and the server seemed to use another
    /// protocol.
    #[test]
    fn an_address_of_the_kernel_is_rejected_on_shared_ports() {
        let is_kernel_address = |address: IpAddr| address == IpAddr::from([10, 0, 0, 1]);
        for (device, address, is_rejected) in [
            ("packet:eth0", "10.0.0.1/24", true),
            ("tap:t0", "10.0.0.1/24", true),
            ("packet:eth0", "10.0.0.2/24", false),
            ("xdp:eth0", "10.0.0.1/24", false),
            ("shm:x", "10.0.0.1/24", false),
        ] {
            let plan = StackPlan {
                device: device.to_owned(),
                addresses: vec![address.to_owned()],
                ..StackPlan::default()
            };
            let result =
                check_addresses(&plan, &read_addressing(&plan).unwrap(), is_kernel_address);
            assert_eq!(
                result.is_err(),
                is_rejected,
                "{device} {address}: {result:?}"
            );
        }
    }

    #[test]
    fn the_largest_item_is_to_be_lowered() {
        let url: PortUrl = "null:".parse().unwrap();
        for (setting, key) in [
            ("tcp.send_buffer=1G", "tcp.send_buffer"),
            (
                "ip.reassembly_buffers.count=4096",
                "ip.reassembly_buffers.count",
            ),
            ("udp.buffers=1048576", "udp.buffers"),
            ("sockets.udp=65535", "udp.receive_queue or sockets.udp"),
            ("arp.cache=65536", "arp.cache"),
        ] {
            let mut config = StackConfig::profile("embedded-default").unwrap();
            if setting.starts_with("udp.buffers") {
                config.apply("udp.receive_queue=65536").unwrap();
            }
            config.apply(setting).unwrap();
            let advice = memory_advice(&config.memory_usage(&url));
            assert!(
                advice.contains(&format!("set {key}")),
                "{setting}: {advice}"
            );
        }
    }
}
