//! What is known of a host and of the interface that a run used.
//!
//! Plain data for the record; reading it from the kernel is the `host` crate's work. What could not
//! be read is `None` or left out, never zero.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::plan::Sched;
use crate::stack::StackFacts;

/// Which end of a run a host was.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The end that asked for the run.
    Client,
    /// The end that served it.
    Server,
}

/// One host of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Host {
    /// Which end it was; absent for a host that only looked at itself (`linerate doctor`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// Its node name.
    pub hostname: Option<String>,
    /// A value that differs from boot to boot and machine to machine: equal means the same kernel,
    /// so the ends share their cores.
    pub boot_id: Option<String>,
    /// Kernel release, as `uname -r` prints it.
    pub kernel: Option<String>,
    /// Distribution, from os-release.
    pub distribution: Option<String>,
    /// Machine architecture, as `uname -m` prints it.
    pub architecture: Option<String>,
    /// Processor.
    pub cpu: Cpu,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// The kernel's clock source (`tsc` is the cheap and steady one on x86).
    pub clock_source: Option<String>,
    /// Round-trip time of two threads on different cores that wake each other, each asleep until then:
    /// lower quartile, ns. Two wake-ups and nothing of a network; absent where nobody slept in the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wake_up_ns: Option<u64>,
    /// The interface that carried the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<Interface>,
    /// Real-time class that the program was started in (`chrt`); absent where it was none. Threads of which no
    /// other was asked for have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_as: Option<Sched>,
    /// Our own stack, where it moved the payload in place of the kernel's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack: Option<Box<StackFacts>>,
    /// Settings that matter to a network stack, by their sysctl names.
    pub sysctls: BTreeMap<String, String>,
}

/// The processor of a host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Cpu {
    /// Model name.
    pub model: Option<String>,
    /// Processors this process may run on (its affinity mask).
    pub usable: Option<u32>,
    /// Logical processors online.
    pub logical: Option<u32>,
    /// Physical cores online.
    pub cores: Option<u32>,
    /// Sockets.
    pub sockets: Option<u32>,
    /// NUMA nodes.
    pub numa_nodes: Option<u32>,
    /// Hypervisor that it runs under; absent on bare metal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hypervisor: Option<String>,
    /// Frequency governor of processor 0; absent where the kernel does not scale.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub governor: Option<String>,
    /// Frequency of that processor the process may run on which was nearest to its highest when the run was over, Hz.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frequency_hz: Option<u64>,
    /// The highest frequency that it can have, Hz.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frequency_max_hz: Option<u64>,
    /// Current idle driver, and `idle states` it offers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<String>,
    /// How processor 0 may rest, lightest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub idle_states: Vec<IdleState>,
    /// Mitigations by vulnerability; those not affected are left out.
    pub mitigations: BTreeMap<String, String>,
}

/// One way for a processor to rest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct IdleState {
    /// `POLL`, `C1`, `C6`, ...
    pub name: String,
    /// Time to wake up that the driver states, us.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<u64>,
    /// Whether it was switched off.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub disabled: bool,
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Driver.
    pub driver: Option<String>,
    /// Version that the driver states.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver_version: Option<String>,
    /// Firmware version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firmware: Option<String>,
    /// PCI vendor and device, `8086:1521`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci_id: Option<String>,
    /// PCI address, `0000:03:00.0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci_address: Option<String>,
    /// NUMA node that the device sits on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// Link-layer address.
    pub mac: Option<String>,
    /// Link speed in bit/s; absent where the link has none (veth, loopback).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed_bps: Option<u64>,
    /// The highest speed that the device supports, bit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fastest_bps: Option<u64>,
    /// `full` or `half`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duplex: Option<String>,
    /// What the device sits on, where it is one: `pci`, `usb`, `virtio`, `platform`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bus: Option<String>,
    /// Largest IP packet in bytes.
    pub mtu: Option<u32>,
    /// Root queueing discipline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qdisc: Option<String>,
    /// Rate that the discipline holds the interface to, bit/s with Ethernet's header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qdisc_rate_bps: Option<u64>,
    /// Bytes that may leave at once after a pause, where it has a rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qdisc_burst_bytes: Option<u64>,
    /// Disciplines right below the root one, those that are alike as one: `mq` has one for each transmit queue.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub qdisc_children: Vec<ChildQdisc>,
    /// Offloads by ethtool's names (`tx-tcp-segmentation`, `generic-receive-offload`, ...).
    pub offloads: BTreeMap<String, bool>,
    /// Those of them that the driver lets nobody switch (`[fixed]` in `ethtool -k`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fixed_offloads: Vec<String>,
    /// Largest segmentation-offload packet in bytes for IPv4.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gso_ipv4_max_bytes: Option<u32>,
    /// The most segments that such a packet is cut into.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gso_max_segments: Option<u32>,
    /// The largest of these packets that its driver takes, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tso_max_bytes: Option<u32>,
    /// The most segments of one that its driver takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tso_max_segments: Option<u32>,
    /// Receive queues.
    pub rx_queues: Option<u32>,
    /// Transmit queues.
    pub tx_queues: Option<u32>,
    /// Receive descriptors per queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rx_descriptors: Option<u32>,
    /// Transmit descriptors per queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tx_descriptors: Option<u32>,
    /// The most receive descriptors that a queue can have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rx_descriptors_max: Option<u32>,
    /// How long interrupts are held back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coalescing: Option<Coalescing>,
    /// What of it the driver knows, by the names of `ethtool -C`; empty where the kernel does not tell.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub coalescing_settings: Vec<String>,
    /// Energy-Efficient Ethernet (IEEE 802.3az).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy_efficient: Option<EnergyEfficient>,
}

/// Queueing disciplines below another one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ChildQdisc {
    /// `fq`, `fq_codel`, `tbf`, ...
    pub kind: String,
    /// How many there are of it.
    pub count: u32,
    /// Rate that each of them holds what passes it to, bit/s with Ethernet's header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_bps: Option<u64>,
    /// Bytes that may leave each of them at once after a pause, where it has a rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst_bytes: Option<u64>,
}

/// How long a device holds interrupts back (`ethtool -c`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Coalescing {
    /// Longest time from a received frame to its interrupt, us.
    pub rx_us: u32,
    /// Received frames that cause one at once.
    pub rx_frames: u32,
    /// Longest time from a sent frame to its interrupt, us.
    pub tx_us: u32,
    /// Sent frames that cause one at once.
    pub tx_frames: u32,
    /// Whether the driver changes `rx_us` by itself.
    pub adaptive_rx: bool,
}

/// Energy-Efficient Ethernet: the link sleeps between frames and has to wake up (`ethtool --show-eee`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct EnergyEfficient {
    /// Whether this end wants it.
    pub enabled: bool,
    /// Whether both ends agreed on it.
    pub active: bool,
    /// Time without frames after which the link sleeps, us.
    pub tx_timer_us: u32,
}

/// What this machine can do towards one thing that a run may want.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Ability {
    /// It can.
    Ok,
    /// It can, but less than it could.
    Limited,
    /// It cannot.
    Missing,
    /// Nobody could tell.
    Unknown,
}

/// One line of `linerate doctor`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Check {
    /// Kebab-case name, stable for scripts.
    pub name: String,
    /// Whether the machine can.
    pub ability: Ability,
    /// What was found, for people.
    pub found: String,
    /// How to enable what is missing or limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable: Option<String>,
}

/// All that `linerate doctor` found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Examination {
    /// `linerate/doctor/1`.
    pub schema: String,
    /// The host.
    pub host: Host,
    /// Every check, in the order they print.
    pub checks: Vec<Check>,
}

/// Schema id of an [`Examination`].
pub const EXAMINATION_SCHEMA: &str = "linerate/doctor/1";
