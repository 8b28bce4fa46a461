//! What can be turned: options of a measurement, keys of our stack, settings of hosts, and commands of
//! the user's.

mod limit;
mod own;
mod table;

pub use limit::Limit;
pub use own::from_toml;
pub use table::{knobs, names, set_of};

use serde::{Deserialize, Serialize};

use crate::guard::Kind;

/// The value that leaves an option out and a setting as it is.
pub const DEFAULT: &str = "default";

/// How long a command that turns a knob may take, and the one that sets it back, unless its file says otherwise, s: to
/// load a driver takes seconds, another kernel minutes.
pub const TURNING_S: u64 = 600;

/// How a knob is turned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Set {
    /// An option of the measuring command, by its long name.
    Option(String),
    /// A key of our own stack's configuration: `--set KEY=VALUE` of the measuring command.
    StackKey(String),
    /// A knob of an experiment: `--point NAME=VALUE` of `linerate run`.
    Point,
    /// A setting of all hosts that may be changed.
    Host {
        /// What kind of setting.
        kind: Kind,
        /// Which one; for interfaces empty: all that may be changed.
        name: String,
    },
    /// A sysctl of the far host, which its server sets.
    Far(String),
    /// A shell command in which `{}` stands for the value; it runs when the value changes.
    Command {
        /// The command.
        line: String,
        /// What sets it back; absent: the command with the first value.
        restore: Option<String>,
        /// How long it may take, and what sets it back, s; absent: [`TURNING_S`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        within_s: Option<u64>,
    },
}

/// Something that can be turned. Its first value is the start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Knob {
    /// Its name.
    pub name: String,
    /// Its values.
    pub values: Vec<String>,
    /// How it is turned.
    pub set: Set,
    /// Whether its values are in an order.
    pub ordered: bool,
    /// Whether a value may be refused here: by a privilege, a grant, or the kernel.
    pub uncertain: bool,
    /// Bytes that a unit of its value takes, for knobs of the user's that say so.
    pub memory: Option<f64>,
}

/// Sysctls that a server sets for a far client, and the largest number that it takes for each.
pub const FAR: &[(&str, u64)] = &[
    ("net.ipv4.tcp_rmem", FAR_MOST),
    ("net.ipv4.tcp_wmem", FAR_MOST),
    ("net.core.rmem_max", FAR_MOST),
    ("net.core.wmem_max", FAR_MOST),
];

/// 64 MiB for a socket: what 50 Gb/s over 10 ms take, and nobody's memory.
const FAR_MOST: u64 = 64 << 20;

impl Knob {
    /// A knob that is an option of the measuring command.
    #[must_use]
    pub fn option(name: &str, values: Vec<String>) -> Self {
        Self {
            name: name.to_owned(),
            values,
            set: Set::Option(name.to_owned()),
            ordered: false,
            uncertain: true,
            memory: None,
        }
    }

    /// The command that sets a value, and what sets it back, where this is a command of the user's.
    #[must_use]
    pub fn lines(&self, value: &str) -> Option<(String, String)> {
        let Set::Command { line, restore, .. } = &self.set else {
            return None;
        };
        let back = restore.clone().unwrap_or_else(|| {
            let first = self.values.first().map_or("", String::as_str);
            line.replace("{}", first)
        });
        Some((line.replace("{}", value), back))
    }
}

/// What is known before a search: which knobs make sense.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ground {
    /// Round trips rather than throughput.
    pub latency: bool,
    /// UDP rather than TCP.
    pub udp: bool,
    /// Our own stack stands in place of the kernel's at this end.
    pub own_stack: bool,
    /// Processors that may be used.
    pub processors: Vec<u32>,
    /// Congestion controls that sockets may ask for.
    pub congestion: Vec<String>,
    /// Whether settings of hosts may be changed.
    pub hosts: bool,
    /// Whether there are interfaces whose settings may be changed.
    pub links: bool,
    /// Whether the far end's server sets what it is asked to.
    pub far: bool,
}
