//! Knobs: options of a measurement, keys of the user-space stack, host settings, and user commands.

mod builtin;
mod file;
mod limit;

pub use builtin::{applicable_knobs, knob_names, present_name, target_of};
pub use file::from_toml;
pub use limit::KnobLimit;

use serde::{Deserialize, Serialize};

use crate::guard::SettingKind;

/// Value that omits an option and leaves a setting unchanged.
pub const DEFAULT_VALUE: &str = "default";

/// Default timeout of a command that sets or restores a knob, s.
///
/// Loading a driver takes seconds, booting another kernel minutes.
pub const COMMAND_TIMEOUT_S: u64 = 600;

/// Target of a knob: where its value is applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KnobTarget {
    /// An option of the measuring command, by its long name.
    Option(String),
    /// A key of the user-space stack's configuration: `--set KEY=VALUE` of the measuring command.
    StackKey(String),
    /// A knob of an experiment: `--point NAME=VALUE` of `linerate run`.
    Point,
    /// A setting of all hosts whose settings may be changed.
    #[serde(rename = "host")]
    HostSetting {
        kind: SettingKind,
        /// Name of the sysctl; empty for interface settings, which apply to all interfaces that may
        /// be changed.
        name: String,
    },
    /// A sysctl of the remote host, set by its server.
    #[serde(rename = "remote", alias = "far")]
    RemoteSysctl(String),
    /// A shell command in which `{}` is replaced by the value; it runs when the value changes.
    Command {
        #[serde(alias = "line")]
        command: String,
        /// Command that restores the original state; absent: `command` with the first value.
        restore: Option<String>,
        /// Timeout of either command, s; absent: [`COMMAND_TIMEOUT_S`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[serde(alias = "within_s")]
        timeout_s: Option<u64>,
    },
}

/// A setting that a search can vary. The first value is the start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Knob {
    pub name: String,
    pub values: Vec<String>,
    #[serde(alias = "set")]
    pub target: KnobTarget,
    /// True if the values are in ascending order, so that neighbors are meaningful.
    pub ordered: bool,
    /// True if a value may be rejected on this host: missing privilege, missing grant, or the
    /// kernel.
    #[serde(alias = "uncertain")]
    pub may_be_rejected: bool,
    /// Memory per unit of the value, bytes; only for user-defined knobs that declare it.
    #[serde(alias = "memory")]
    pub bytes_per_unit: Option<f64>,
}

/// Sysctls that a server sets for a remote client, with the largest number that it accepts for
/// each.
pub const REMOTE_SYSCTLS: &[(&str, u64)] = &[
    ("net.ipv4.tcp_rmem", MAX_REMOTE_BYTES),
    ("net.ipv4.tcp_wmem", MAX_REMOTE_BYTES),
    ("net.core.rmem_max", MAX_REMOTE_BYTES),
    ("net.core.wmem_max", MAX_REMOTE_BYTES),
];

/// 64 MiB for one socket: the bandwidth-delay product of 50 Gb/s over 10 ms.
const MAX_REMOTE_BYTES: u64 = 64 << 20;

impl Knob {
    /// Knob that sets an option of the measuring command.
    #[must_use]
    pub fn option(name: &str, values: Vec<String>) -> Self {
        Self {
            name: name.to_owned(),
            values,
            target: KnobTarget::Option(name.to_owned()),
            ordered: false,
            may_be_rejected: true,
            bytes_per_unit: None,
        }
    }

    /// Returns the command that sets `value` and the command that restores, for knobs with a user
    /// command.
    #[must_use]
    pub fn commands_for(&self, value: &str) -> Option<(String, String)> {
        let KnobTarget::Command {
            command, restore, ..
        } = &self.target
        else {
            return None;
        };
        let restore_command = restore.clone().unwrap_or_else(|| {
            let first = self.values.first().map_or("", String::as_str);
            command.replace("{}", first)
        });
        Some((command.replace("{}", value), restore_command))
    }
}

/// Facts about the run and the hosts that decide which knobs apply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnobContext {
    /// True for a latency run, false for throughput.
    pub is_latency: bool,
    /// True for UDP, false for TCP.
    pub is_udp: bool,
    /// True if the client uses the user-space stack instead of the kernel's.
    pub uses_netstack: bool,
    /// CPUs that may be used.
    pub cpus: Vec<u32>,
    /// Congestion control algorithms that sockets may select.
    pub congestion_controls: Vec<String>,
    /// True if host settings may be changed.
    pub host_settings: bool,
    /// True if there are interfaces whose settings may be changed.
    pub link_settings: bool,
    /// True if the remote server applies requested settings.
    pub remote_settings: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Knobs in journals of commit b37400c, before the renaming of keys.
    #[test]
    fn knobs_with_earlier_keys_load() {
        let command = KnobTarget::Command {
            command: "load {}".to_owned(),
            restore: None,
            timeout_s: Some(5),
        };
        for (target, expected) in [
            (
                r#"{"far":"net.core.rmem_max"}"#,
                KnobTarget::RemoteSysctl("net.core.rmem_max".to_owned()),
            ),
            (
                r#"{"command":{"line":"load {}","restore":null,"within_s":5}}"#,
                command,
            ),
        ] {
            let text = format!(
                r#"{{"name":"k","values":["1"],"set":{target},"ordered":true,"uncertain":true,"memory":2.0}}"#
            );
            let knob: Knob = serde_json::from_str(&text).expect(target);
            let expected = Knob {
                name: "k".to_owned(),
                values: vec!["1".to_owned()],
                target: expected,
                ordered: true,
                may_be_rejected: true,
                bytes_per_unit: Some(2.0),
            };
            assert_eq!(knob, expected, "{target}");
        }
    }
}
