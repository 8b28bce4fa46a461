//! Offloads of an interface, named as `ethtool -k` prints them.

use linerate_sys::ethtool::EthtoolSocket;
use linerate_sys::ethtool_features::NamedFeature;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffloadState {
    /// Name in `ethtool -k` and `ethtool -K`.
    pub name: &'static str,
    pub on: bool,
    /// True if the device allows to change it.
    pub changeable: bool,
}

/// Names of `ethtool -k` with the kernel features of each; an offload is on when one of its
/// features is.
///
/// Lists only offloads that move or check the bytes of a measurement. The kernel has 60 more, most
/// of them fixed. `*` at the end matches any suffix.
const OFFLOAD_FEATURES: &[(&str, &[&str])] = &[
    ("rx-checksumming", &["rx-checksum"]),
    ("tx-checksumming", &["tx-checksum-*"]),
    ("scatter-gather", &["tx-scatter-gather*"]),
    (
        "tcp-segmentation-offload",
        &[
            "tx-tcp-segmentation",
            "tx-tcp-ecn-segmentation",
            "tx-tcp-mangleid-segmentation",
            "tx-tcp6-segmentation",
            "tx-tcp-accecn-segmentation",
        ],
    ),
    ("tx-tcp-segmentation", &["tx-tcp-segmentation"]),
    ("tx-tcp6-segmentation", &["tx-tcp6-segmentation"]),
    ("tx-udp-segmentation", &["tx-udp-segmentation"]),
    ("tx-gso-partial", &["tx-gso-partial"]),
    ("tx-gso-list", &["tx-gso-list"]),
    ("generic-segmentation-offload", &["tx-generic-segmentation"]),
    ("generic-receive-offload", &["rx-gro"]),
    ("rx-gro-hw", &["rx-gro-hw"]),
    ("rx-gro-list", &["rx-gro-list"]),
    ("rx-udp-gro-forwarding", &["rx-udp-gro-forwarding"]),
    ("large-receive-offload", &["rx-lro"]),
    ("receive-hashing", &["rx-hashing"]),
    ("ntuple-filters", &["rx-ntuple-filter"]),
    ("rx-vlan-offload", &["rx-vlan-hw-parse"]),
    ("tx-vlan-offload", &["tx-vlan-hw-insert"]),
    ("tx-nocache-copy", &["tx-nocache-copy"]),
    ("hw-tc-offload", &["hw-tc-offload"]),
    ("tls-hw-tx-offload", &["tls-hw-tx-offload"]),
    ("tls-hw-rx-offload", &["tls-hw-rx-offload"]),
];

/// Reads the offloads of `interface` that affect a measurement; empty where the kernel reports
/// none.
#[must_use]
pub fn read_offloads(interface: &str) -> Vec<OffloadState> {
    EthtoolSocket::new(interface)
        .and_then(|ethtool| ethtool.read_features())
        .map(|features| group_features(&features))
        .unwrap_or_default()
}

fn group_features(features: &[NamedFeature]) -> Vec<OffloadState> {
    OFFLOAD_FEATURES
        .iter()
        .filter_map(|&(name, patterns)| {
            let mut matching = features
                .iter()
                .filter(|feature| {
                    patterns
                        .iter()
                        .any(|pattern| matches_pattern(pattern, &feature.name))
                })
                .peekable();
            matching.peek()?;
            let (mut on, mut changeable) = (false, false);
            for feature in matching {
                on |= feature.is_active;
                changeable |= feature.is_changeable;
            }
            Some(OffloadState {
                name,
                on,
                changeable,
            })
        })
        .collect()
}

fn matches_pattern(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => pattern == name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_on_when_a_part_of_it_is() {
        let feature = |name: &str, is_active, is_changeable| NamedFeature {
            name: name.to_owned(),
            is_active,
            is_changeable,
        };
        let features = [
            feature("tx-checksum-ipv4", false, false),
            feature("tx-checksum-ip-generic", true, true),
            feature("tx-tcp-segmentation", true, true),
            feature("tx-tcp6-segmentation", false, true),
            feature("rx-gro", false, true),
            feature("rx-lro", false, false),
            feature("highdma", true, false),
        ];
        let offload = |name, on, changeable| OffloadState {
            name,
            on,
            changeable,
        };
        assert_eq!(
            group_features(&features),
            [
                offload("tx-checksumming", true, true),
                offload("tcp-segmentation-offload", true, true),
                offload("tx-tcp-segmentation", true, true),
                offload("tx-tcp6-segmentation", false, true),
                offload("generic-receive-offload", false, true),
                offload("large-receive-offload", false, false),
            ]
        );
        assert_eq!(group_features(&[]), []);
    }

    #[test]
    fn a_missing_interface_has_no_offloads() {
        assert_eq!(read_offloads("none-such0"), []);
    }
}
