//! Our own stack in place of the kernel's: where it stands, how it is configured, what it takes and
//! what it counted.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What plans and records call the stack in the box.
pub const STACK_NAME: &str = "linerate";

/// Keys of its configuration that options of a run set, too, by their long names: an option and a key that say different
/// things are refused.
pub const KEYS_OF_OPTIONS: &[(&str, &str)] = &[
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

/// What the control connection of a run over our stack goes over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Control {
    /// The stack itself, like the payload.
    #[default]
    Stack,
    /// The kernel, which has a way of its own to the far end.
    Kernel,
}

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Stack => "stack",
            Self::Kernel => "kernel",
        })
    }
}

impl FromStr for Control {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "stack" => Ok(Self::Stack),
            "kernel" => Ok(Self::Kernel),
            _ => Err(format!("`{text}` is neither stack nor kernel")),
        }
    }
}

/// Our stack at an end of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StackPlan {
    /// The port that it stands on, as a URL.
    pub device: String,
    /// Its addresses with the length of their prefixes, `10.0.0.2/24`.
    pub addresses: Vec<String>,
    /// Gateways to other networks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<String>,
    /// The profile that its configuration began with.
    pub profile: String,
    /// The whole configuration, by key.
    pub configuration: BTreeMap<String, String>,
    /// What the control connection goes over.
    pub control: Control,
    /// Where answers over UDP carry when their question came into the driver and when they left it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stamp_payload: Option<crate::device_stamps::DeviceStamps>,
}

/// One kind of memory that a stack has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StackMemoryItem {
    /// What it is for.
    pub what: String,
    /// Bytes of it.
    pub bytes: u64,
}

/// Memory that a stack has, settled before the first packet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StackMemory {
    /// Bytes in all.
    pub bytes: u64,
    /// What they are for.
    pub items: Vec<StackMemoryItem>,
}

/// Our stack, as a host of a record had it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StackFacts {
    /// `linerate`.
    pub name: String,
    /// The port that it stood on, as a URL.
    pub device: String,
    /// Its Ethernet address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ethernet: Option<String>,
    /// The interface at the other end of its port's wire, where it is one that can be seen: a veth's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub far_interface: Option<String>,
    /// Its addresses with the length of their prefixes.
    pub addresses: Vec<String>,
    /// The whole configuration, by key.
    pub configuration: BTreeMap<String, String>,
    /// What it took of memory.
    pub memory: StackMemory,
    /// What it counted during the run, by protocol and name as in /proc/net/snmp: `udp`, `in_datagrams`.
    pub counters: BTreeMap<String, BTreeMap<String, u64>>,
}

impl StackFacts {
    /// A key of its configuration, as it is written; empty where there is none of that name.
    #[must_use]
    pub fn key(&self, key: &str) -> &str {
        self.configuration.get(key).map_or("", String::as_str)
    }

    /// A counter by its protocol and name; zero where it has none of that name.
    #[must_use]
    pub fn counter(&self, protocol: &str, name: &str) -> u64 {
        let of = self.counters.get(protocol).and_then(|of| of.get(name));
        of.copied().unwrap_or(0)
    }
}

/// A run of the stack as a host that serves others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StackFigures {
    /// How long it served.
    pub duration_ns: u64,
    /// What each service did.
    pub services: Vec<ServiceFigures>,
    /// The counters of the stack that changed, interval by interval.
    pub intervals: Vec<StackInterval>,
}

/// What one service of a stack did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ServiceFigures {
    /// Its name: `echo`, `discard`, ...
    pub service: String,
    /// Its port.
    pub port: u16,
    /// Connections that were accepted.
    pub connections: u64,
    /// Datagrams that came.
    pub datagrams: u64,
    /// Payload bytes that came.
    pub bytes_received: u64,
    /// Payload bytes that were sent.
    pub bytes_sent: u64,
    /// Answers to datagrams that could not be sent.
    pub answers_lost: u64,
}

/// Counters of a stack over an interval.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StackInterval {
    /// Its beginning, from the start.
    pub start_ns: u64,
    /// Its end.
    pub end_ns: u64,
    /// What was added meanwhile, by protocol and name; what did not change is left out.
    pub counters: BTreeMap<String, BTreeMap<String, u64>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_reads_as_it_prints() {
        for control in [Control::Stack, Control::Kernel] {
            assert_eq!(control.to_string().parse(), Ok(control));
        }
        assert!("".parse::<Control>().is_err());
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
