//! Our user-space stack in place of the kernel's: port, configuration, memory and counters.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Name of the user-space stack in plans and records.
pub const STACK_NAME: &str = "linerate";

/// Configuration keys that are also set by options of a run, with the options' long names. A
/// contradiction between the two is rejected.
pub const OPTION_CONFIG_KEYS: &[(&str, &str)] = &[
    ("tcp.send_buffer", "window"),
    ("tcp.send_buffer", "sndbuf"),
    ("tcp.send_buffer", "buffer"),
    ("tcp.receive_window", "window"),
    ("tcp.receive_window", "rcvbuf"),
    ("tcp.receive_window", "buffer"),
    ("tcp.nagle", "no-delay"),
    ("tcp.mss", "mss"),
    ("ip.tos", "tos"),
    ("tcp.congestion_control", "congestion"),
    ("poll.interval", "wait"),
    ("threads.application.cpus", "cpu"),
    ("threads.application.sched", "sched"),
];

/// Path of the control connection in a run over the user-space stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ControlPath {
    /// The user-space stack, as for the payload.
    #[default]
    Stack,
    /// The kernel, over a separate route to the server.
    Kernel,
}

impl fmt::Display for ControlPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Stack => "stack",
            Self::Kernel => "kernel",
        })
    }
}

impl FromStr for ControlPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "stack" => Ok(Self::Stack),
            "kernel" => Ok(Self::Kernel),
            _ => Err(format!(
                "`{text}` is not a control path: use stack or kernel"
            )),
        }
    }
}

/// Plan of the user-space stack at an end of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StackPlan {
    /// Port of the stack, as a URL.
    pub device: String,
    /// Addresses with prefix lengths, `10.0.0.2/24`.
    pub addresses: Vec<String>,
    /// Gateways to other networks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<String>,
    /// Name of the profile that the configuration is based on.
    pub profile: String,
    /// Full configuration, by key.
    pub configuration: BTreeMap<String, String>,
    /// Path of the control connection.
    pub control: ControlPath,
    /// Position of the driver timestamps in UDP responses: arrival of the request and departure of
    /// the response.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(alias = "stamp_payload")]
    pub payload_timestamps: Option<crate::device_timestamps::DeviceTimestamps>,
}

/// Item of a stack's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StackMemoryItem {
    /// Purpose of the memory.
    #[serde(alias = "what")]
    pub purpose: String,
    /// Size in bytes.
    pub bytes: u64,
}

/// Memory of a stack, allocated before the first packet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StackMemory {
    /// Total size in bytes.
    pub bytes: u64,
    /// Sizes by purpose.
    pub items: Vec<StackMemoryItem>,
}

/// Facts of the user-space stack at a host of a record.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StackFacts {
    /// Name: `linerate`.
    pub name: String,
    /// Port of the stack, as a URL.
    pub device: String,
    /// Ethernet address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ethernet: Option<String>,
    /// Interface at the other end of the port's link, if it is visible, such as a veth's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(alias = "far_interface")]
    pub peer_interface: Option<String>,
    /// Addresses with prefix lengths.
    pub addresses: Vec<String>,
    /// Full configuration, by key.
    pub configuration: BTreeMap<String, String>,
    /// Memory of the stack.
    pub memory: StackMemory,
    /// Counters over the run, by protocol and name as in /proc/net/snmp: `udp`, `in_datagrams`.
    #[serde(deserialize_with = "crate::earlier_names::nested_map")]
    pub counters: BTreeMap<String, BTreeMap<String, u64>>,
}

impl StackFacts {
    /// Returns the value of a configuration key as text; empty for an unknown key.
    #[must_use]
    pub fn config_value(&self, key: &str) -> &str {
        self.configuration.get(key).map_or("", String::as_str)
    }

    /// Returns a counter by protocol and name; zero for an unknown one.
    #[must_use]
    pub fn counter(&self, protocol: &str, name: &str) -> u64 {
        let counters = self
            .counters
            .get(protocol)
            .and_then(|counters| counters.get(name));
        counters.copied().unwrap_or(0)
    }
}

/// Figures of a stack that ran as a host with services.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StackFigures {
    /// Time of operation.
    pub duration_ns: u64,
    /// Figures by service.
    pub services: Vec<ServiceFigures>,
    /// Increases of the stack's counters by interval.
    pub intervals: Vec<StackInterval>,
}

/// Figures of one service of a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ServiceFigures {
    /// Name: `echo`, `discard`, ...
    pub service: String,
    /// Port number.
    pub port: u16,
    /// Connections accepted.
    pub connections: u64,
    /// Datagrams received.
    pub datagrams: u64,
    /// Payload bytes received.
    pub bytes_received: u64,
    /// Payload bytes sent.
    pub bytes_sent: u64,
    /// UDP responses that could not be sent.
    #[serde(alias = "answers_lost")]
    pub responses_lost: u64,
}

/// Increases of a stack's counters in an interval.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StackInterval {
    /// Start of the interval, from the start of the run.
    pub start_ns: u64,
    /// End of the interval.
    pub end_ns: u64,
    /// Increases by protocol and name; unchanged counters are left out.
    #[serde(deserialize_with = "crate::earlier_names::nested_map")]
    pub counters: BTreeMap<String, BTreeMap<String, u64>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_reads_as_it_prints() {
        for control in [ControlPath::Stack, ControlPath::Kernel] {
            assert_eq!(control.to_string().parse(), Ok(control));
        }
        assert!("".parse::<ControlPath>().is_err());
    }

    #[test]
    fn an_unknown_counter_is_zero() {
        let mut facts = StackFacts::default();
        let udp = facts.counters.entry("udp".to_owned()).or_default();
        udp.insert("no_ports".to_owned(), 3);
        assert_eq!(facts.counter("udp", "no_ports"), 3);
        assert_eq!(facts.counter("tcp", "no_ports"), 0);
    }
}
