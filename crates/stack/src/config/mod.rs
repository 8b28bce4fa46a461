//! Sizes and behaviour of a stack, with the settings that embedded stacks have.

mod keys;
mod value;

use std::time::Duration;

use linerate_record::plan::{CpuList, SchedPolicy};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::StackError;

pub use keys::{ConfigKey, KEYS};

/// Built-in configurations: name, purpose, TOML text.
pub const PROFILES: &[(&str, &str, &str)] = &[
    (
        "default",
        "tuned for speed",
        include_str!("../../profiles/default.toml"),
    ),
    (
        "embedded-default",
        "an embedded stack's defaults: the smallest buffers that work",
        include_str!("../../profiles/embedded-default.toml"),
    ),
    (
        "embedded-tuned",
        "embedded stack with larger buffers, and a driver thread of higher priority than the application",
        include_str!("../../profiles/embedded-tuned.toml"),
    ),
];

/// Place where checksums are computed and verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumMode {
    /// By the stack.
    Software,
    /// By the other side of the port through the vnet header; on ports within memory no checksum is
    /// computed.
    Offload,
}

/// Policy for the PSH flag of TCP segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PshPolicy {
    /// Set on the segment that empties the send buffer.
    BufferEmpty,
    /// Set on every segment with payload.
    Always,
    /// Never set.
    Never,
}

/// Congestion control of TCP senders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CongestionAlgorithm {
    /// Limited by the receiver's window alone.
    None,
    /// RFC 5681.
    Reno,
    /// RFC 9438.
    Cubic,
}

/// TCP settings of a [`StackConfig`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpConfig {
    /// Bytes of one connection that may be queued or unacknowledged.
    pub send_buffer: usize,
    /// Bytes of one connection that may wait for the application to read them.
    pub receive_window: usize,
    /// Time that an acknowledgement may be delayed; `None`: none is delayed.
    pub delayed_ack: Option<Duration>,
    /// Nagle's algorithm: a small segment waits while another is unacknowledged (RFC 896).
    pub nagle: bool,
    /// Policy for the PSH flag.
    pub psh: PshPolicy,
    /// Congestion control of the sender.
    pub congestion_control: CongestionAlgorithm,
    /// Shortest retransmission timeout, also the initial one.
    pub min_rto: Duration,
    /// Time beyond two round trips without an acknowledgement after which a tail loss probe is sent
    /// (RFC 8985), when more than one segment is in flight; `None`: no probe, only the
    /// retransmission timeout.
    pub tail_probe: Option<Duration>,
    /// Maximum segment size in bytes, for segments sent and announced to the peer; `None`: as much
    /// as the MTU allows.
    pub mss: Option<u16>,
}

/// UDP settings of a [`StackConfig`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpConfig {
    /// Capacity of one socket's receive queue, in packets.
    pub receive_queue: u32,
    /// Packets that may wait in the receive queues of all sockets together.
    pub buffers: u32,
}

/// IP settings of a [`StackConfig`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpConfig {
    /// Type of service or traffic class of the TCP segments and UDP datagrams sent.
    pub tos: u8,
    /// Datagrams longer than the MTU are sent in fragments.
    pub fragmentation: bool,
    /// Received fragments are reassembled.
    pub reassembly: bool,
    /// Datagrams that may be incomplete, or complete and not yet read, at a time.
    pub reassembly_count: u32,
    /// Longest datagram that can be reassembled: bytes after its IP header.
    pub reassembly_bytes: u32,
    /// Time from the first fragment until an incomplete datagram is dropped.
    pub reassembly_timeout: Duration,
}

/// Scheduling of a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadConfig {
    /// Scheduling class and priority.
    pub sched: SchedPolicy,
    /// CPUs that it may run on; an empty set means any.
    pub cpus: CpuList,
}

/// Configuration of a stack.
///
/// ```
/// use linerate_stack::StackConfig;
///
/// let mut config = StackConfig::profile("embedded-default")?;
/// config.apply("tcp.send_buffer=16K")?;
/// assert_eq!(config.tcp.send_buffer, 16384);
/// let error = config.set("tcp.psh", "sometimes").unwrap_err();
/// assert!(error.to_string().contains("buffer-empty, always or never"));
/// # Ok::<(), linerate_stack::StackError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackConfig {
    /// Maximum number of frames received by one poll, and receive descriptors requested from the
    /// port.
    pub rx_descriptors: u32,
    /// Maximum number of frames sent by one poll, and transmit descriptors requested from the port.
    pub tx_descriptors: u32,
    /// Largest IP packet in a frame, in bytes.
    pub mtu: u16,
    /// Place where checksums are computed and verified.
    pub checksum: ChecksumMode,
    /// TCP settings.
    pub tcp: TcpConfig,
    /// UDP settings.
    pub udp: UdpConfig,
    /// IP settings.
    pub ip: IpConfig,
    /// Capacity of the neighbour cache (ARP and neighbour discovery together).
    pub arp_cache: u32,
    /// Time from one poll to the next; `None`: no pause (spin).
    pub poll_interval: Option<Duration>,
    /// Maximum number of TCP connections, those that are closing included.
    pub tcp_sockets: u32,
    /// Maximum number of UDP sockets.
    pub udp_sockets: u32,
    /// Number of threads: 1 for driver and application together, 2 for one each.
    pub threads: u32,
    /// Thread that polls the port.
    pub driver: ThreadConfig,
    /// Thread that runs the application.
    pub application: ThreadConfig,
}

impl Default for StackConfig {
    fn default() -> Self {
        Self::profile("default").expect("the profile is checked by a test")
    }
}

impl StackConfig {
    /// Returns a built-in configuration.
    ///
    /// # Errors
    /// [`StackError::UnknownProfile`], with the names of all profiles.
    pub fn profile(name: &str) -> Result<Self, StackError> {
        let Some((.., file)) = PROFILES
            .iter()
            .find(|(profile_name, ..)| *profile_name == name)
        else {
            let names: Vec<_> = PROFILES
                .iter()
                .map(|(profile_name, ..)| *profile_name)
                .collect();
            return Err(StackError::UnknownProfile {
                name: name.to_owned(),
                valid_profiles: names.join(", "),
            });
        };
        let mut config = Self::minimal();
        config.read_toml(file)?;
        Ok(config)
    }

    /// Changes one setting, as `--set KEY=VALUE` does.
    ///
    /// # Errors
    /// Errors of [`StackConfig::set`], or [`StackError::MissingValue`] without `=`.
    pub fn apply(&mut self, setting: &str) -> Result<(), StackError> {
        match setting.split_once('=') {
            Some((key, value)) => self.set(key.trim(), value.trim()),
            None => Err(StackError::MissingValue {
                text: setting.to_owned(),
            }),
        }
    }

    /// Changes one setting.
    ///
    /// # Errors
    /// [`StackError::UnknownKey`] with all keys; [`StackError::BadValue`] with the accepted values.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), StackError> {
        let Some(key_entry) = KEYS.iter().find(|candidate| candidate.name == key) else {
            let names: Vec<_> = KEYS.iter().map(|candidate| candidate.name).collect();
            return Err(StackError::UnknownKey {
                key: key.to_owned(),
                valid_keys: names.join(", "),
            });
        };
        key_entry.parse(self, value)
    }

    /// Returns the value of a key in the form that [`StackConfig::set`] accepts; `None` for an
    /// unknown key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<String> {
        let key_entry = KEYS.iter().find(|candidate| candidate.name == key)?;
        Some(key_entry.format(self))
    }

    /// Returns all keys and their values, in the order of [`KEYS`].
    pub fn entries(&self) -> impl Iterator<Item = (&'static str, String)> + '_ {
        KEYS.iter().map(|key| (key.name, key.format(self)))
    }

    /// Changes the settings listed in a TOML file.
    ///
    /// # Errors
    /// [`StackError::BadToml`], or those of [`StackConfig::set`].
    pub fn read_toml(&mut self, text: &str) -> Result<(), StackError> {
        for (key, value) in Self::parse_toml(text)? {
            self.set(&key, &value)?;
        }
        Ok(())
    }

    /// Returns the keys of a TOML file, with values in the form that [`StackConfig::set`] accepts.
    /// Tables and dotted keys are equivalent.
    ///
    /// # Errors
    /// [`StackError::BadToml`].
    pub fn parse_toml(text: &str) -> Result<Vec<(String, String)>, StackError> {
        let root: toml::Table = toml::from_str(text).map_err(|error| StackError::BadToml {
            reason: match error.span() {
                Some(byte_range) => {
                    let before = text.get(..byte_range.start).unwrap_or(text);
                    let line = before.matches('\n').count() + 1;
                    format!("line {line}: {}", error.message())
                }
                None => error.message().to_owned(),
            },
        })?;
        let mut settings = Vec::new();
        add_settings("", &root, &mut settings);
        Ok(settings)
    }

    /// Returns the state before a profile is read; every profile sets all values that matter.
    fn minimal() -> Self {
        Self {
            rx_descriptors: 1,
            tx_descriptors: 1,
            mtu: 1500,
            checksum: ChecksumMode::Software,
            tcp: TcpConfig {
                send_buffer: 1024,
                receive_window: 1024,
                delayed_ack: None,
                nagle: true,
                psh: PshPolicy::BufferEmpty,
                congestion_control: CongestionAlgorithm::None,
                min_rto: Duration::from_secs(1),
                tail_probe: None,
                mss: None,
            },
            udp: UdpConfig {
                receive_queue: 1,
                buffers: 1,
            },
            ip: IpConfig {
                tos: 0,
                fragmentation: true,
                reassembly: true,
                reassembly_count: 1,
                reassembly_bytes: 8192,
                reassembly_timeout: Duration::from_secs(1),
            },
            arp_cache: 1,
            poll_interval: None,
            tcp_sockets: 1,
            udp_sockets: 1,
            threads: 1,
            driver: ThreadConfig::default(),
            application: ThreadConfig::default(),
        }
    }
}

/// Adds the settings of a table and of its subtables.
fn add_settings(prefix: &str, table: &toml::Table, settings: &mut Vec<(String, String)>) {
    for (name, value) in table {
        let key = match prefix {
            "" => name.clone(),
            _ => format!("{prefix}.{name}"),
        };
        let value = match value {
            toml::Value::Table(inner) => {
                add_settings(&key, inner, settings);
                continue;
            }
            toml::Value::String(text) => text.clone(),
            toml::Value::Boolean(is_on) => if *is_on { "on" } else { "off" }.to_owned(),
            scalar => scalar.to_string(),
        };
        settings.push((key, value));
    }
}

impl Serialize for StackConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.entries())
    }
}

impl<'de> Deserialize<'de> for StackConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let entries = std::collections::BTreeMap::<String, String>::deserialize(deserializer)?;
        let mut config = Self::default();
        for (key, value) in entries {
            config.set(&key, &value).map_err(D::Error::custom)?;
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests;
