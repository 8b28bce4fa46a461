//! Sizes and behaviour of a stack, with the settings that embedded stacks have.

mod keys;
mod memory;
mod value;

use std::time::Duration;

use linerate_metric::plan::{Cpus, Sched};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::StackError;
pub use keys::{KEYS, Key};
pub use memory::{MemoryAccount, MemoryItem};

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
pub enum Checksum {
    /// By the stack.
    Software,
    /// By the other side of the port through the vnet header; on ports within memory no checksum is
    /// computed.
    Offload,
}

/// Policy for the PSH flag of TCP segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Psh {
    /// Set on the segment that empties the send buffer.
    BufferEmpty,
    /// Set on every segment with payload.
    Always,
    /// Never set.
    Never,
}

/// Congestion control of TCP senders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CongestionControl {
    /// Limited by the receiver's window alone.
    None,
    /// RFC 5681.
    Reno,
    /// RFC 9438.
    Cubic,
}

/// TCP settings of a [`Config`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tcp {
    /// Bytes of one connection that may be queued or unacknowledged.
    pub send_buffer: usize,
    /// Bytes of one connection that may wait for the application to read them.
    pub receive_window: usize,
    /// Time that an acknowledgement may be delayed; `None`: none is delayed.
    pub delayed_ack: Option<Duration>,
    /// Nagle's algorithm: a small segment waits while another is unacknowledged (RFC 896).
    pub nagle: bool,
    /// Policy for the PSH flag.
    pub psh: Psh,
    /// Congestion control of the sender.
    pub congestion_control: CongestionControl,
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

/// UDP settings of a [`Config`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Udp {
    /// Capacity of one socket's receive queue, in packets.
    pub receive_queue: u32,
    /// Packets that may wait in the receive queues of all sockets together.
    pub buffers: u32,
}

/// IP settings of a [`Config`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ip {
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
pub struct Thread {
    /// Scheduling class and priority.
    pub sched: Sched,
    /// CPUs that it may run on; an empty set means any.
    pub cpus: Cpus,
}

/// Configuration of a stack.
///
/// ```
/// use linerate_stack::Config;
///
/// let mut config = Config::profile("embedded-default")?;
/// config.apply("tcp.send_buffer=16K")?;
/// assert_eq!(config.tcp.send_buffer, 16384);
/// let error = config.set("tcp.psh", "sometimes").unwrap_err();
/// assert!(error.to_string().contains("buffer-empty, always or never"));
/// # Ok::<(), linerate_stack::StackError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Maximum number of frames received by one poll, and receive descriptors requested from the
    /// port.
    pub rx_descriptors: u32,
    /// Maximum number of frames sent by one poll, and transmit descriptors requested from the port.
    pub tx_descriptors: u32,
    /// Largest IP packet in a frame, in bytes.
    pub mtu: u16,
    /// Place where checksums are computed and verified.
    pub checksum: Checksum,
    /// TCP settings.
    pub tcp: Tcp,
    /// UDP settings.
    pub udp: Udp,
    /// IP settings.
    pub ip: Ip,
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
    pub driver: Thread,
    /// Thread that runs the application.
    pub application: Thread,
}

impl Default for Config {
    fn default() -> Self {
        Self::profile("default").expect("the profile is checked by a test")
    }
}

impl Config {
    /// Returns a built-in configuration.
    ///
    /// # Errors
    /// [`StackError::UnknownProfile`], with the names of all profiles.
    pub fn profile(name: &str) -> Result<Self, StackError> {
        let Some((.., file)) = PROFILES.iter().find(|(known, ..)| *known == name) else {
            let names: Vec<_> = PROFILES.iter().map(|(known, ..)| *known).collect();
            return Err(StackError::UnknownProfile {
                name: name.to_owned(),
                known: names.join(", "),
            });
        };
        let mut config = Self::bare();
        config.read_toml(file)?;
        Ok(config)
    }

    /// Changes one setting, as `--set KEY=VALUE` does.
    ///
    /// # Errors
    /// Errors of [`Config::set`], or [`StackError::NotASetting`] without `=`.
    pub fn apply(&mut self, setting: &str) -> Result<(), StackError> {
        match setting.split_once('=') {
            Some((key, value)) => self.set(key.trim(), value.trim()),
            None => Err(StackError::NotASetting {
                text: setting.to_owned(),
            }),
        }
    }

    /// Changes one setting.
    ///
    /// # Errors
    /// [`StackError::UnknownKey`] with all keys; [`StackError::BadValue`] with the accepted values.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), StackError> {
        let Some(found) = KEYS.iter().find(|known| known.name == key) else {
            let names: Vec<_> = KEYS.iter().map(|known| known.name).collect();
            return Err(StackError::UnknownKey {
                key: key.to_owned(),
                known: names.join(", "),
            });
        };
        found.write(self, value)
    }

    /// Returns the value of a key in the form that [`Config::set`] accepts; `None` for an unknown
    /// key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<String> {
        let found = KEYS.iter().find(|known| known.name == key)?;
        Some(found.read(self))
    }

    /// Returns all keys and their values, in the order of [`KEYS`].
    pub fn rows(&self) -> impl Iterator<Item = (&'static str, String)> + '_ {
        KEYS.iter().map(|key| (key.name, key.read(self)))
    }

    /// Changes the settings listed in a TOML file.
    ///
    /// # Errors
    /// [`StackError::BadToml`], or those of [`Config::set`].
    pub fn read_toml(&mut self, text: &str) -> Result<(), StackError> {
        for (key, value) in Self::settings(text)? {
            self.set(&key, &value)?;
        }
        Ok(())
    }

    /// Returns the keys of a TOML file, with values in the form that [`Config::set`] accepts.
    /// Tables and dotted keys are equivalent.
    ///
    /// # Errors
    /// [`StackError::BadToml`].
    pub fn settings(text: &str) -> Result<Vec<(String, String)>, StackError> {
        let table: toml::Table = toml::from_str(text).map_err(|error| StackError::BadToml {
            why: match error.span() {
                Some(span) => {
                    let before = text.get(..span.start).unwrap_or(text);
                    let line = before.matches('\n').count() + 1;
                    format!("line {line}: {}", error.message())
                }
                None => error.message().to_owned(),
            },
        })?;
        let mut settings = Vec::new();
        add_settings("", &table, &mut settings);
        Ok(settings)
    }

    /// Returns the state before a profile is read; every profile sets all values that matter.
    fn bare() -> Self {
        Self {
            rx_descriptors: 1,
            tx_descriptors: 1,
            mtu: 1500,
            checksum: Checksum::Software,
            tcp: Tcp {
                send_buffer: 1024,
                receive_window: 1024,
                delayed_ack: None,
                nagle: true,
                psh: Psh::BufferEmpty,
                congestion_control: CongestionControl::None,
                min_rto: Duration::from_secs(1),
                tail_probe: None,
                mss: None,
            },
            udp: Udp {
                receive_queue: 1,
                buffers: 1,
            },
            ip: Ip {
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
            driver: Thread::default(),
            application: Thread::default(),
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
            toml::Value::Boolean(yes) => if *yes { "on" } else { "off" }.to_owned(),
            other => other.to_string(),
        };
        settings.push((key, value));
    }
}

impl Serialize for Config {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.rows())
    }
}

impl<'de> Deserialize<'de> for Config {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let rows = std::collections::BTreeMap::<String, String>::deserialize(deserializer)?;
        let mut config = Self::default();
        for (key, value) in rows {
            config.set(&key, &value).map_err(D::Error::custom)?;
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests;
