//! Facts of a host and of the interface that a run used.
//!
//! Plain data for the record; the `host` crate reads it from the kernel. A fact that could not be
//! read is `None` or left out, never zero.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::command_line::shell_quote;
use crate::plan::SchedPolicy;
use crate::stack::StackFacts;

/// End of a run.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The end that started the run.
    Client,
    /// The end that served the run.
    Server,
}

impl Role {
    /// Returns the name as records and sentences have it: `client`, `server`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }
}

/// Facts of one host of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct HostFacts {
    /// End of the run; absent for a host that only examined itself (`linerate doctor`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// Node name.
    pub hostname: Option<String>,
    /// Boot id of the kernel: two ends with the same id share one machine and its cores.
    pub boot_id: Option<String>,
    /// Kernel release, as `uname -r` prints it.
    pub kernel: Option<String>,
    /// Distribution, from os-release.
    pub distribution: Option<String>,
    /// Machine architecture, as `uname -m` prints it.
    pub architecture: Option<String>,
    /// Processor facts.
    pub cpu: CpuFacts,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Clock source of the kernel (`tsc` is the fast and steady one on x86).
    pub clock_source: Option<String>,
    /// Round-trip time of two threads on different cores that block and wake each other, in ns
    /// (lower quartile): two wake-ups without a network. Absent if no thread blocked in the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wake_up_ns: Option<u64>,
    /// Interface that carried the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<InterfaceFacts>,
    /// Real-time policy that the program was started with (`chrt`); absent if none. Threads inherit
    /// it unless another policy was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_as: Option<SchedPolicy>,
    /// Facts of the user-space stack, if it carried the payload instead of the kernel's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack: Option<Box<StackFacts>>,
    /// Network settings by their sysctl names.
    pub sysctls: BTreeMap<String, String>,
}

/// Facts of a host's processors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CpuFacts {
    /// Model name.
    pub model: Option<String>,
    /// Processors that this process may use (its affinity mask).
    pub usable: Option<u32>,
    /// Smallest quota of processor time of this process's cgroups; absent without a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<CpuQuota>,
    /// Logical processors online.
    pub logical: Option<u32>,
    /// Physical cores online.
    pub cores: Option<u32>,
    /// CPU sockets.
    pub sockets: Option<u32>,
    /// NUMA nodes.
    pub numa_nodes: Option<u32>,
    /// Hypervisor; absent on bare metal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hypervisor: Option<String>,
    /// Frequency governor of processor 0; absent without frequency scaling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub governor: Option<String>,
    /// Current frequency in Hz at the end of the run, of the usable processor that was closest to
    /// its maximum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frequency_hz: Option<u64>,
    /// Maximum frequency in Hz.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frequency_max_hz: Option<u64>,
    /// Current idle driver and its idle states.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<String>,
    /// Idle states of processor 0, shallowest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub idle_states: Vec<IdleState>,
    /// CPU mitigations by vulnerability, without those that do not affect the processor.
    pub mitigations: BTreeMap<String, String>,
}

/// Quota of processor time of a cgroup. When it is used up, all threads of the cgroup stop until the
/// next period.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CpuQuota {
    /// Processor time per period, ns.
    pub quota_ns: u64,
    /// Period, ns.
    pub period_ns: u64,
    /// File that sets the quota.
    pub file: String,
}

impl CpuQuota {
    /// Returns the quota in processors: 0.5 is half the time of one.
    #[must_use]
    pub fn cpus(&self) -> f64 {
        self.quota_ns as f64 / self.period_ns.max(1) as f64
    }

    /// Returns the command that removes the quota.
    #[must_use]
    pub fn lift_command(&self) -> String {
        let no_limit = match self.file.ends_with("cpu.max") {
            true => "max",
            false => "-1",
        };
        format!("echo {no_limit} > {}", shell_quote(&self.file))
    }
}

/// An idle state of a processor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct IdleState {
    /// `POLL`, `C1`, `C6`, ...
    pub name: String,
    /// Exit latency that the driver declares, us.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<u64>,
    /// True if the state is disabled.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub disabled: bool,
}

/// Facts of a network interface.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct InterfaceFacts {
    /// Name.
    pub name: String,
    /// Driver.
    pub driver: Option<String>,
    /// Driver version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver_version: Option<String>,
    /// Firmware version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firmware: Option<String>,
    /// PCI vendor and device id, `8086:1521`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci_id: Option<String>,
    /// PCI address, `0000:03:00.0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci_address: Option<String>,
    /// NUMA node of the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// Link-layer address.
    pub mac: Option<String>,
    /// Link speed in bit/s; absent for links without one (veth, loopback).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed_bps: Option<u64>,
    /// Highest speed that the device supports, bit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fastest_bps: Option<u64>,
    /// `full` or `half`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duplex: Option<String>,
    /// Bus of the device, if it is hardware: `pci`, `usb`, `virtio`, `platform`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bus: Option<String>,
    /// MTU in bytes.
    pub mtu: Option<u32>,
    /// Root qdisc.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qdisc: Option<String>,
    /// Rate limit of the root qdisc, bit/s with the Ethernet header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qdisc_rate_bps: Option<u64>,
    /// Bytes that the root qdisc may send at once after a pause, if it has a rate limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qdisc_burst_bytes: Option<u64>,
    /// Child qdiscs of the root, equal ones grouped: `mq` has one for each transmit queue.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub qdisc_children: Vec<ChildQdisc>,
    /// Offloads by their ethtool names (`tx-tcp-segmentation`, `generic-receive-offload`, ...).
    pub offloads: BTreeMap<String, bool>,
    /// Offloads that the driver does not let users change (`[fixed]` in `ethtool -k`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fixed_offloads: Vec<String>,
    /// Largest segmentation-offload packet in bytes for IPv6.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gso_max_bytes: Option<u32>,
    /// Largest segmentation-offload packet in bytes for IPv4.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gso_ipv4_max_bytes: Option<u32>,
    /// Most segments of such a packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gso_max_segments: Option<u32>,
    /// Largest segmentation-offload packet that the driver accepts, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tso_max_bytes: Option<u32>,
    /// Most segments of a packet that the driver accepts.
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
    /// Most receive descriptors that a queue can have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rx_descriptors_max: Option<u32>,
    /// Interrupt coalescing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coalescing: Option<CoalescingSettings>,
    /// Coalescing settings that the driver supports, by their `ethtool -C` names; empty if the
    /// kernel does not report them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub coalescing_settings: Vec<String>,
    /// Energy-Efficient Ethernet (IEEE 802.3az).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy_efficient: Option<EeeState>,
}

impl InterfaceFacts {
    /// Returns the largest segmentation-offload packet in bytes for a family. Records without the
    /// limit of IPv6 have one for both.
    #[must_use]
    pub fn gso_bytes(&self, is_ipv6: bool) -> Option<u32> {
        self.gso_max_bytes
            .filter(|_| is_ipv6)
            .or(self.gso_ipv4_max_bytes)
    }
}

/// Equal child qdiscs of another qdisc.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ChildQdisc {
    /// `fq`, `fq_codel`, `tbf`, ...
    pub kind: String,
    /// Number of equal qdiscs.
    pub count: u32,
    /// Rate limit of each qdisc, bit/s with the Ethernet header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_bps: Option<u64>,
    /// Bytes that each qdisc may send at once after a pause, if it has a rate limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst_bytes: Option<u64>,
}

/// Interrupt coalescing of a device (`ethtool -c`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CoalescingSettings {
    /// Longest time from a received frame to its interrupt, us.
    pub rx_us: u32,
    /// Received frames that trigger an interrupt at once.
    pub rx_frames: u32,
    /// Longest time from a sent frame to its interrupt, us.
    pub tx_us: u32,
    /// Sent frames that trigger an interrupt at once.
    pub tx_frames: u32,
    /// True if the driver adapts `rx_us`.
    pub adaptive_rx: bool,
}

/// Energy-Efficient Ethernet: the link sleeps between frames and needs time to wake up (`ethtool
/// --show-eee`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct EeeState {
    /// True if this end has it enabled.
    pub enabled: bool,
    /// True if both ends negotiated it.
    pub active: bool,
    /// Idle time before the link sleeps, us.
    pub tx_timer_us: u32,
}

/// Degree to which this machine supports something that a run may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Support {
    /// Supported.
    Ok,
    /// Supported with limits.
    Limited,
    /// Not supported.
    Missing,
    /// Could not be determined.
    Unknown,
}

/// Check of `linerate doctor`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DoctorCheck {
    /// Kebab-case name, stable for scripts.
    pub name: String,
    /// Degree of support.
    #[serde(alias = "ability")]
    pub support: Support,
    /// Result of the check, as text for users.
    #[serde(alias = "found")]
    pub detail: String,
    /// Instructions for enabling what is missing or limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable: Option<String>,
}

/// Full result of `linerate doctor`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DoctorReport {
    /// `linerate/doctor/1`.
    pub schema: String,
    /// The host.
    pub host: HostFacts,
    /// Checks in the order in which they are printed.
    pub checks: Vec<DoctorCheck>,
}

/// Schema id of an [`DoctorReport`].
pub const DOCTOR_SCHEMA: &str = "linerate/doctor/1";
