//! Capabilities of the calling thread.

use crate::snapshot::SystemFiles;

/// Capabilities that a measurement may need: bit (linux/capability.h) and name.
pub(super) const USEFUL_CAPABILITIES: &[(u32, &str)] = &[
    (12, "net_admin"),
    (13, "net_raw"),
    (21, "sys_admin"),
    (23, "sys_nice"),
    (14, "ipc_lock"),
    (39, "bpf"),
];

/// Capabilities that the kernel checks in the initial user namespace only: useless in any other
/// one.
const INITIAL_NAMESPACE_ONLY: &[&str] = &["sys_nice", "ipc_lock", "bpf"];

/// Effective capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EffectiveCapabilities {
    /// Bit set; `None` where /proc is unreadable.
    effective: Option<u64>,
    /// True inside a user namespace other than the initial one.
    pub(super) in_user_namespace: bool,
}

impl EffectiveCapabilities {
    /// Reads the thread's status file and its user mapping.
    pub(super) fn read(files: &SystemFiles) -> Self {
        const MAP: &str = "/proc/thread-self/uid_map";
        let status = files
            .read_text("/proc/thread-self/status")
            .unwrap_or_default();
        let in_user_namespace = match files.read_text(MAP) {
            Some(map) => !is_identity_map(&map),
            // The map is empty until a user is mapped.
            None => files.exists(MAP),
        };
        Self::parse(&status, in_user_namespace)
    }

    fn parse(status: &str, in_user_namespace: bool) -> Self {
        let effective = status
            .lines()
            .find_map(|line| line.strip_prefix("CapEff:"))
            .and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
        Self {
            effective,
            in_user_namespace,
        }
    }

    /// Returns whether the capabilities could be read.
    pub(super) fn is_known(self) -> bool {
        self.effective.is_some()
    }

    /// Returns whether the named capability is effective; `false` when unknown.
    pub(super) fn has(self, name: &str) -> bool {
        if self.in_user_namespace && INITIAL_NAMESPACE_ONLY.contains(&name) {
            return false;
        }
        let bit = USEFUL_CAPABILITIES
            .iter()
            .find(|(_, capability)| *capability == name);
        match (self.effective, bit) {
            (Some(effective), Some((bit, _))) => effective >> bit & 1 == 1,
            _ => false,
        }
    }

    /// Names of the [`USEFUL_CAPABILITIES`] capabilities that are not effective.
    pub(super) fn missing(self) -> Vec<&'static str> {
        USEFUL_CAPABILITIES
            .iter()
            .map(|(_, name)| *name)
            .filter(|name| !self.has(name))
            .collect()
    }

    /// Instructions for getting the named capabilities.
    pub(super) fn grant_instruction(self, names: &[&str]) -> String {
        if self.in_user_namespace {
            return "run with sudo outside this user namespace".to_owned();
        }
        let list: Vec<String> = names.iter().map(|name| format!("cap_{name}")).collect();
        format!(
            "run with sudo, or `sudo setcap {}+ep \"$(command -v linerate)\"`",
            list.join(",")
        )
    }
}

/// Returns whether a user namespace maps every user to itself, as the initial one does.
fn is_identity_map(uid_map: &str) -> bool {
    uid_map.split_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_become_names() {
        let table: [(&str, &[&str]); 4] = [
            ("CapEff:\t000001ffffffffff\n", &[]),
            (
                "CapEff:\t0000000000000000\n",
                &[
                    "net_admin",
                    "net_raw",
                    "sys_admin",
                    "sys_nice",
                    "ipc_lock",
                    "bpf",
                ],
            ),
            // Docker's default set has net_raw alone of these.
            (
                "Name:\tx\nCapPrm:\t0\nCapEff:\t00000000a80425fb\n",
                &["net_admin", "sys_admin", "sys_nice", "ipc_lock", "bpf"],
            ),
            (
                "",
                &[
                    "net_admin",
                    "net_raw",
                    "sys_admin",
                    "sys_nice",
                    "ipc_lock",
                    "bpf",
                ],
            ),
        ];
        for (status, missing) in table {
            let capabilities = EffectiveCapabilities::parse(status, false);
            assert_eq!(capabilities.missing(), missing, "{status:?}");
            assert_eq!(capabilities.is_known(), !status.is_empty(), "{status:?}");
        }
    }

    #[test]
    fn a_user_namespace_removes_some() {
        let inside = EffectiveCapabilities::parse("CapEff:\t000001ffffffffff\n", true);
        assert_eq!(inside.missing(), ["sys_nice", "ipc_lock", "bpf"]);
        assert!(is_identity_map("         0          0 4294967295\n"));
        assert!(!is_identity_map("         0       1000          1\n"));
        assert!(!is_identity_map("0 100000 65536"));
    }
}
