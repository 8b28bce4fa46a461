//! Knobs: options of a measurement, keys of the user-space stack, host settings, and user commands.

mod builtin;
mod file;
mod limit;

pub use builtin::{knobs, names, set_of};
pub use file::from_toml;
pub use limit::Limit;

use serde::{Deserialize, Serialize};

use crate::guard::Kind;

/// Value that omits an option and leaves a setting unchanged.
pub const DEFAULT: &str = "default";

/// Default timeout of a command that sets or restores a knob, s.
///
/// Loading a driver takes seconds, booting another kernel minutes.
pub const TURNING_S: u64 = 600;

/// Target of a knob: where its value is applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Set {
    /// An option of the measuring command, by its long name.
    Option(String),
    /// A key of the user-space stack's configuration: `--set KEY=VALUE` of the measuring command.
    StackKey(String),
    /// A knob of an experiment: `--point NAME=VALUE` of `linerate run`.
    Point,
    /// A setting of all hosts whose settings may be changed.
    Host {
        kind: Kind,
        /// Name of the sysctl; empty for interface settings, which apply to all interfaces that may
        /// be changed.
        name: String,
    },
    /// A sysctl of the remote host, set by its server.
    Far(String),
    /// A shell command in which `{}` is replaced by the value; it runs when the value changes.
    Command {
        line: String,
        /// Command that restores the original state; absent: `line` with the first value.
        restore: Option<String>,
        /// Timeout of either command, s; absent: [`TURNING_S`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        within_s: Option<u64>,
    },
}

/// A setting that a search can vary. The first value is the start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Knob {
    pub name: String,
    pub values: Vec<String>,
    pub set: Set,
    /// True if the values are in ascending order, so that neighbors are meaningful.
    pub ordered: bool,
    /// True if a value may be rejected on this host: missing privilege, missing grant, or the
    /// kernel.
    pub uncertain: bool,
    /// Memory per unit of the value, bytes; only for user-defined knobs that declare it.
    pub memory: Option<f64>,
}

/// Sysctls that a server sets for a remote client, with the largest number that it accepts for
/// each.
pub const FAR: &[(&str, u64)] = &[
    ("net.ipv4.tcp_rmem", FAR_MOST),
    ("net.ipv4.tcp_wmem", FAR_MOST),
    ("net.core.rmem_max", FAR_MOST),
    ("net.core.wmem_max", FAR_MOST),
];

/// 64 MiB for one socket: the bandwidth-delay product of 50 Gb/s over 10 ms.
const FAR_MOST: u64 = 64 << 20;

impl Knob {
    /// Knob that sets an option of the measuring command.
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

    /// Returns the command that sets `value` and the command that restores, for knobs with a user
    /// command.
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

/// Facts about the run and the hosts that decide which knobs apply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ground {
    /// True for a latency run, false for throughput.
    pub latency: bool,
    /// True for UDP, false for TCP.
    pub udp: bool,
    /// True if the client uses the user-space stack instead of the kernel's.
    pub own_stack: bool,
    /// CPUs that may be used.
    pub processors: Vec<u32>,
    /// Congestion control algorithms that sockets may select.
    pub congestion: Vec<String>,
    /// True if host settings may be changed.
    pub hosts: bool,
    /// True if there are interfaces whose settings may be changed.
    pub links: bool,
    /// True if the remote server applies requested settings.
    pub far: bool,
}
