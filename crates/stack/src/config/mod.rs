//! How a stack is sized and behaves, in the words of embedded stacks.

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

/// Configurations that are shipped: their name, what each is for, and the file.
pub const PROFILES: &[(&str, &str, &str)] = &[
    (
        "default",
        "for speed",
        include_str!("../../profiles/default.toml"),
    ),
    (
        "embedded-default",
        "an embedded stack as it comes, with the smallest buffers that work",
        include_str!("../../profiles/embedded-default.toml"),
    ),
    (
        "embedded-tuned",
        "the same stack with larger buffers and the driver's thread above the application's",
        include_str!("../../profiles/embedded-tuned.toml"),
    ),
];

/// Who sums what is sent and checks what comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// The stack.
    Software,
    /// The port's other side, by the vnet header; or nobody, where frames do not leave memory.
    Offload,
}

/// When a TCP segment asks for delivery (PSH).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Psh {
    /// When it empties the send buffer.
    BufferEmpty,
    /// Whenever it carries payload.
    Always,
    /// Never.
    Never,
}

/// What keeps a TCP sender from filling the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CongestionControl {
    /// The receiver's window alone.
    None,
    /// RFC 5681.
    Reno,
    /// RFC 9438.
    Cubic,
}

/// TCP's part of a [`Config`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tcp {
    /// Bytes that one connection may have sent or queued without an acknowledgement.
    pub send_buffer: usize,
    /// Bytes that one connection takes in before the application fetches them.
    pub receive_window: usize,
    /// How long an acknowledgement waits for company; `None`: not at all.
    pub delayed_ack: Option<Duration>,
    /// Whether a small segment waits while another one is unacknowledged (RFC 896).
    pub nagle: bool,
    /// When a segment asks for delivery.
    pub psh: Psh,
    /// What keeps a sender from filling the path.
    pub congestion_control: CongestionControl,
    /// The shortest time after which what was not acknowledged is sent again; also the first one.
    pub min_rto: Duration,
    /// How much longer than two round trips nothing may be heard until one segment is sent again (RFC 8985), where
    /// more than one is on its way; `None`: it waits for its time-out.
    pub tail_probe: Option<Duration>,
    /// Payload of the longest segment, in bytes, both of those sent and of those asked for; `None`: as much
    /// as the MTU allows.
    pub mss: Option<u16>,
}

/// UDP's part of a [`Config`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Udp {
    /// Packets that wait at one socket at most.
    pub receive_queue: u32,
    /// Packets that wait at all sockets together at most.
    pub buffers: u32,
}

/// IP's part of a [`Config`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ip {
    /// Type of service or traffic class of the TCP segments and UDP datagrams that are sent.
    pub tos: u8,
    /// Whether datagrams that are longer than the MTU leave in fragments.
    pub fragmentation: bool,
    /// Whether fragments are put together.
    pub reassembly: bool,
    /// Datagrams that may be in pieces, or whole and not yet fetched, at a time.
    pub reassembly_count: u32,
    /// The longest datagram that can be put together: bytes behind its IP header.
    pub reassembly_bytes: u32,
    /// How long the first fragment waits for the last.
    pub reassembly_timeout: Duration,
}

/// A thread's place among others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    /// Scheduling class and priority.
    pub sched: Sched,
    /// Processors that it may run on; none named means any.
    pub cpus: Cpus,
}

/// Everything about a stack that can be chosen.
///
/// ```
/// use linerate_stack::Config;
///
/// let mut config = Config::profile("embedded-default")?;
/// config.apply("tcp.send_buffer=16K")?;
/// assert_eq!(config.tcp.send_buffer, 16384);
/// let refused = config.set("tcp.psh", "sometimes").unwrap_err();
/// assert!(refused.to_string().contains("buffer-empty, always or never"));
/// # Ok::<(), linerate_stack::StackError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Frames that one turn takes in at most, and descriptors asked of the port.
    pub rx_descriptors: u32,
    /// Frames that one turn sends at most, and descriptors asked of the port.
    pub tx_descriptors: u32,
    /// Largest IP packet in a frame.
    pub mtu: u16,
    /// Who sums and checks.
    pub checksum: Checksum,
    /// TCP.
    pub tcp: Tcp,
    /// UDP.
    pub udp: Udp,
    /// IP.
    pub ip: Ip,
    /// Neighbours whose Ethernet address is remembered (ARP and neighbour discovery together).
    pub arp_cache: u32,
    /// Time from one turn to the next; `None`: no pause (spin).
    pub poll_interval: Option<Duration>,
    /// TCP connections at a time, also those that only wait for their end.
    pub tcp_sockets: u32,
    /// UDP sockets at a time.
    pub udp_sockets: u32,
    /// One thread for driver and application, or one for each.
    pub threads: u32,
    /// The thread that polls the port.
    pub driver: Thread,
    /// The thread that runs the application.
    pub application: Thread,
}

impl Default for Config {
    fn default() -> Self {
        Self::profile("default").expect("the profile is checked by a test")
    }
}

impl Config {
    /// A configuration that is shipped.
    ///
    /// # Errors
    /// [`StackError::UnknownProfile`], which names them.
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

    /// Changes one key, as `--set KEY=VALUE` does.
    ///
    /// # Errors
    /// As [`Config::set`], or [`StackError::NotASetting`] without `=`.
    pub fn apply(&mut self, setting: &str) -> Result<(), StackError> {
        match setting.split_once('=') {
            Some((key, value)) => self.set(key.trim(), value.trim()),
            None => Err(StackError::NotASetting {
                text: setting.to_owned(),
            }),
        }
    }

    /// Changes one key.
    ///
    /// # Errors
    /// [`StackError::UnknownKey`] with all keys; [`StackError::BadValue`] with what the key takes.
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

    /// What a key is set to, as [`Config::set`] takes it. `None` for an unknown key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<String> {
        let found = KEYS.iter().find(|known| known.name == key)?;
        Some(found.read(self))
    }

    /// Every key and its value, in the order of [`KEYS`].
    pub fn rows(&self) -> impl Iterator<Item = (&'static str, String)> + '_ {
        KEYS.iter().map(|key| (key.name, key.read(self)))
    }

    /// Changes the keys that a TOML file has.
    ///
    /// # Errors
    /// [`StackError::BadToml`], or as [`Config::set`].
    pub fn read_toml(&mut self, text: &str) -> Result<(), StackError> {
        for (key, value) in Self::settings(text)? {
            self.set(&key, &value)?;
        }
        Ok(())
    }

    /// The keys that a TOML file has, each with its value as [`Config::set`] takes it; tables and dotted keys are the
    /// same.
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

    /// What holds for a stack with no profile: every profile sets all that matters.
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

/// Adds what a table has, and the tables in it.
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
