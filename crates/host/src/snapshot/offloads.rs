//! Offloads of an interface, named as `ethtool -k` prints them.

use crate::sys::ethtool::{Ethtool, Feature};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offload {
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
const OFFLOADS: &[(&str, &[&str])] = &[
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
pub fn offloads(interface: &str) -> Vec<Offload> {
    Ethtool::new(interface)
        .and_then(|ethtool| ethtool.features())
        .map(|features| offloads_of(&features))
        .unwrap_or_default()
}

fn offloads_of(features: &[Feature]) -> Vec<Offload> {
    OFFLOADS
        .iter()
        .filter_map(|&(name, behind)| {
            let mut found = features
                .iter()
                .filter(|feature| behind.iter().any(|pattern| fits(pattern, &feature.name)))
                .peekable();
            found.peek()?;
            let (mut on, mut changeable) = (false, false);
            for feature in found {
                on |= feature.active;
                changeable |= feature.changeable;
            }
            Some(Offload {
                name,
                on,
                changeable,
            })
        })
        .collect()
}

fn fits(pattern: &str, name: &str) -> bool {
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
        let feature = |name: &str, active, changeable| Feature {
            name: name.to_owned(),
            active,
            changeable,
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
        let offload = |name, on, changeable| Offload {
            name,
            on,
            changeable,
        };
        assert_eq!(
            offloads_of(&features),
            [
                offload("tx-checksumming", true, true),
                offload("tcp-segmentation-offload", true, true),
                offload("tx-tcp-segmentation", true, true),
                offload("tx-tcp6-segmentation", false, true),
                offload("generic-receive-offload", false, true),
                offload("large-receive-offload", false, false),
            ]
        );
        assert_eq!(offloads_of(&[]), []);
    }

    #[test]
    fn nothing_is_known_of_no_interface() {
        assert_eq!(offloads("none-such0"), []);
    }
}
