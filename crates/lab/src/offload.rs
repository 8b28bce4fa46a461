//! Offloads by their ethtool names.

use std::io;
use std::os::fd::BorrowedFd;

use linerate_sys::ethtool_features;
use linerate_sys::ethtool_features::OffloadSwitch;

/// Offload that can be switched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offload {
    /// Legacy ethtool switch, which covers a group of features.
    Switch(OffloadSwitch),
    /// Feature by the kernel's name.
    Feature(String),
}

impl Offload {
    /// Reads a name as `ethtool -K` takes it; `None` for an invalid one. Only the interface shows
    /// whether the kernel has a feature of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let switch = match name {
            "tso" | "tcp-segmentation-offload" => OffloadSwitch::Tso,
            "gso" | "generic-segmentation-offload" => OffloadSwitch::Gso,
            "gro" | "generic-receive-offload" => OffloadSwitch::Gro,
            "tx" | "tx-checksumming" => OffloadSwitch::TxChecksum,
            "rx" | "rx-checksumming" => OffloadSwitch::RxChecksum,
            "sg" | "scatter-gather" => OffloadSwitch::ScatterGather,
            _ => {
                // Every feature name of the kernel has this form, with at least one `-`.
                let is_valid = name.contains('-')
                    && name.len() < 32
                    && name
                        .chars()
                        .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
                return is_valid.then(|| Self::Feature(name.to_owned()));
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
        requested: bool,
    ) -> io::Result<bool> {
        match self {
            // "Off" requires that all kinds are off, "on" only that the basic kinds are on.
            Self::Switch(OffloadSwitch::Tso) if !requested => {
                Ok(
                    ethtool_features::read_switch(socket, interface, OffloadSwitch::Tso)?
                        || ethtool_features::read_features(socket, interface)?
                            .iter()
                            .any(|feature| is_tso(feature) && feature.is_active),
                )
            }
            Self::Switch(switch) => ethtool_features::read_switch(socket, interface, *switch),
            Self::Feature(name) => ethtool_features::read_features(socket, interface)?
                .into_iter()
                .find(|feature| feature.name == *name)
                .map(|feature| feature.is_active)
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
                if *switch == OffloadSwitch::Tso && !on {
                    for feature in ethtool_features::read_features(socket, interface)? {
                        if is_tso(&feature) && feature.is_active && feature.is_changeable {
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
fn is_tso(feature: &ethtool_features::NamedFeature) -> bool {
    feature.name.starts_with("tx-tcp") && feature.name.ends_with("-segmentation")
}

/// Error for a feature that this kernel does not have.
pub(crate) const ENOENT: i32 = rustix::io::Errno::NOENT.raw_os_error();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_ethtools() {
        for (name, expected) in [
            ("tso", Some(Offload::Switch(OffloadSwitch::Tso))),
            (
                "tx-checksumming",
                Some(Offload::Switch(OffloadSwitch::TxChecksum)),
            ),
            ("tx", Some(Offload::Switch(OffloadSwitch::TxChecksum))),
            (
                "tx-udp-segmentation",
                Some(Offload::Feature("tx-udp-segmentation".to_owned())),
            ),
            ("tsoo", None),
            ("", None),
            ("TX-UDP", None),
            ("a-name-that-is-much-longer-than-the-kernel-has", None),
        ] {
            assert_eq!(Offload::parse(name), expected, "{name}");
        }
    }
}
