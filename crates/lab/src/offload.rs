//! Offloads by their ethtool names.

use std::io;
use std::os::fd::BorrowedFd;

use linerate_host::sys::ethtool_features::{self, Switch};

/// Offload that can be switched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offload {
    /// Legacy ethtool switch, which covers a group of features.
    Switch(Switch),
    /// Feature by the kernel's name.
    Feature(String),
}

impl Offload {
    /// Reads a name as `ethtool -K` takes it; `None` for an invalid one. Only the interface shows
    /// whether the kernel has a feature of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let switch = match name {
            "tso" | "tcp-segmentation-offload" => Switch::Tso,
            "gso" | "generic-segmentation-offload" => Switch::Gso,
            "gro" | "generic-receive-offload" => Switch::Gro,
            "tx" | "tx-checksumming" => Switch::TxChecksum,
            "rx" | "rx-checksumming" => Switch::RxChecksum,
            "sg" | "scatter-gather" => Switch::ScatterGather,
            _ => {
                // Every feature name of the kernel has this form, with at least one `-`.
                let good = name.contains('-')
                    && name.len() < 32
                    && name
                        .chars()
                        .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
                return good.then(|| Self::Feature(name.to_owned()));
            }
        };
        Some(Self::Switch(switch))
    }

    /// Returns whether the offload is on, compared with the requested state. The socket selects the
    /// namespace.
    pub(crate) fn read(
        &self,
        socket: BorrowedFd<'_>,
        interface: &str,
        asked: bool,
    ) -> io::Result<bool> {
        match self {
            // "Off" requires that all kinds are off, "on" only that the basic kinds are on.
            Self::Switch(Switch::Tso) if !asked => {
                Ok(ethtool_features::switch(socket, interface, Switch::Tso)?
                    || ethtool_features::features(socket, interface)?
                        .iter()
                        .any(|feature| is_tso(feature) && feature.active))
            }
            Self::Switch(switch) => ethtool_features::switch(socket, interface, *switch),
            Self::Feature(name) => ethtool_features::features(socket, interface)?
                .into_iter()
                .find(|feature| feature.name == *name)
                .map(|feature| feature.active)
                .ok_or_else(|| io::Error::from_raw_os_error(ENOENT)),
        }
    }

    /// Switches the offload.
    pub(crate) fn set(&self, socket: BorrowedFd<'_>, interface: &str, on: bool) -> io::Result<()> {
        match self {
            Self::Switch(switch) => {
                ethtool_features::set_switch(socket, interface, *switch, on)?;
                // The kernel's own group lacks the newest kinds (accurate ECN, Linux 6.16), which
                // `ethtool` matches by name.
                if *switch == Switch::Tso && !on {
                    for feature in ethtool_features::features(socket, interface)? {
                        if is_tso(&feature) && feature.active && feature.available {
                            ethtool_features::set_feature(socket, interface, &feature.name, false)?;
                        }
                    }
                }
                Ok(())
            }
            Self::Feature(name) => ethtool_features::set_feature(socket, interface, name, on),
        }
    }
}

/// Returns whether a feature is a kind of TCP segmentation.
fn is_tso(feature: &ethtool_features::Feature) -> bool {
    feature.name.starts_with("tx-tcp") && feature.name.ends_with("-segmentation")
}

/// Error for a feature that this kernel does not have.
pub(crate) const ENOENT: i32 = rustix::io::Errno::NOENT.raw_os_error();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_ethtools() {
        for (name, want) in [
            ("tso", Some(Offload::Switch(Switch::Tso))),
            ("tx-checksumming", Some(Offload::Switch(Switch::TxChecksum))),
            ("tx", Some(Offload::Switch(Switch::TxChecksum))),
            (
                "tx-udp-segmentation",
                Some(Offload::Feature("tx-udp-segmentation".to_owned())),
            ),
            ("tsoo", None),
            ("", None),
            ("TX-UDP", None),
            ("a-name-that-is-much-longer-than-the-kernel-has", None),
        ] {
            assert_eq!(Offload::parse(name), want, "{name}");
        }
    }
}
