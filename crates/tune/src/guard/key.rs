//! Keys of host settings.

use serde::{Deserialize, Serialize};

/// Kind of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SettingKind {
    /// A sysctl by its dotted name.
    Sysctl,
    /// GSO and GRO maximum sizes of an interface: four numbers (GSO, GRO, GSO IPv4, GRO IPv4),
    /// bytes.
    SegmentSizes,
    /// MTU of an interface.
    Mtu,
    /// Administrative state of an interface: `up` or `down`.
    State,
    /// Configured addresses of an interface: `10.0.0.1/24 fd00::1/64`.
    Addresses,
    /// Ring sizes of an interface, descriptors: `rx=512 tx=512`.
    Rings,
    /// Number of queues in use: `rx=2 tx=2`, `combined=4`.
    Channels,
    /// RSS indirection table: `default`, or queue numbers in table order.
    Rss,
    /// Rule that steers a flow to a queue: `on` or `off` for the name `eth0 udp4:7>0`.
    Flow,
    /// Interrupt coalescing: `rx-usecs=50 adaptive-rx=off`.
    Coalescing,
    /// Offloads as of `ethtool -K`: `tso=on gso=off`.
    Offloads,
    /// RPS CPUs of the receive queues: one mask for all, or one per queue.
    Rps,
    /// XPS CPUs of the transmit queues: one mask for all, or one per queue.
    Xps,
    /// User command; its value is the complete shell command that restores.
    Command,
}

/// Key of a setting of a host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SettingKey {
    /// Host name for display.
    pub host: String,
    /// Inode number of the network namespace.
    #[serde(rename = "namespace")]
    pub namespace_inode: u64,
    /// Cookie of that namespace, if the kernel has one: inode numbers are reused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "cookie")]
    pub namespace_cookie: Option<u64>,
    pub kind: SettingKind,
    /// Sysctl, interface, or interface with its rule.
    pub name: String,
}

impl SettingKey {
    /// Returns whether the setting belongs to this namespace; a cookie missing on either side is
    /// ignored.
    #[must_use]
    pub fn is_in_namespace(&self, namespace_inode: u64, namespace_cookie: Option<u64>) -> bool {
        let is_other_cookie = self
            .namespace_cookie
            .zip(namespace_cookie)
            .is_some_and(|(own_cookie, is_other_cookie)| own_cookie != is_other_cookie);
        self.namespace_inode == namespace_inode && !is_other_cookie
    }

    /// Interface of the setting; `None` for sysctls and commands.
    #[must_use]
    pub fn interface(&self) -> Option<&str> {
        match self.kind {
            SettingKind::Sysctl | SettingKind::Command => None,
            _ => self.name.split(' ').next(),
        }
    }

    /// Key of the same setting on the interface `name`.
    #[must_use]
    pub fn with_interface(&self, name: &str) -> Self {
        let name = match self.name.split_once(' ') {
            Some((_, rule)) => format!("{name} {rule}"),
            None => name.to_owned(),
        };
        Self {
            name,
            ..self.clone()
        }
    }

    /// Key of a knob set by a user command; it belongs to no namespace.
    #[must_use]
    pub fn for_command(knob: &str) -> Self {
        Self {
            host: "this host".to_owned(),
            namespace_inode: 0,
            namespace_cookie: None,
            kind: SettingKind::Command,
            name: knob.to_owned(),
        }
    }

    /// Command that sets the value, for display.
    #[must_use]
    pub fn shell_command(&self, value: &str) -> String {
        let name = &self.name;
        let pairs = || value.replace('=', " ");
        let queues = |kind: &str, file: &str| {
            let queues_dir = format!("/sys/class/net/{name}/queues");
            let masks: Vec<&str> = value.split_whitespace().collect();
            let specific = |(number, mask): (usize, &&str)| {
                format!("echo {mask} > {queues_dir}/{kind}-{number}/{file}")
            };
            match masks.len() {
                2.. => masks
                    .iter()
                    .enumerate()
                    .map(specific)
                    .collect::<Vec<_>>()
                    .join("; "),
                _ => format!("for f in {queues_dir}/{kind}-*/{file}; do echo {value} > $f; done"),
            }
        };
        match self.kind {
            SettingKind::Sysctl => format!("sysctl -w {name}='{value}'"),
            SettingKind::SegmentSizes => {
                let sizes: Vec<&str> = value.split(' ').collect();
                // A single size applies to all four.
                let size = |at: usize| sizes.get(at).or(sizes.first()).copied().unwrap_or_default();
                let common = format!(
                    "ip link set dev {name} gso_max_size {} gro_max_size {}",
                    size(0),
                    size(1)
                );
                // Up to 64 KiB the IPv4 sizes follow; `ip` has options for them since 6.3.
                let follows = |common: usize, specific: usize| {
                    let small = size(common).parse().is_ok_and(|bytes: u32| bytes <= 65_536);
                    small && size(common) == size(specific)
                };
                match follows(0, 2) && follows(1, 3) {
                    true => common,
                    false => format!(
                        "{common} gso_ipv4_max_size {} gro_ipv4_max_size {}",
                        size(2),
                        size(3)
                    ),
                }
            }
            SettingKind::Mtu => format!("ip link set dev {name} mtu {value}"),
            SettingKind::State => format!("ip link set dev {name} {value}"),
            SettingKind::Addresses => {
                std::iter::once(format!("ip address flush dev {name} scope global"))
                    .chain(
                        value
                            .split_whitespace()
                            .map(|token| address_command(token, name)),
                    )
                    .collect::<Vec<_>>()
                    .join("; ")
            }
            SettingKind::Rings => format!("ethtool -G {name} {}", pairs()),
            SettingKind::Channels => format!("ethtool -L {name} {}", pairs()),
            SettingKind::Rss => format!("ethtool -X {name} {}", rss_arguments(value)),
            SettingKind::Flow => flow_rule_command(name, value),
            SettingKind::Coalescing => format!("ethtool -C {name} {}", pairs()),
            SettingKind::Offloads => format!("ethtool -K {name} {}", pairs()),
            SettingKind::Rps => queues("rx", "rps_cpus"),
            SettingKind::Xps => queues("tx", "xps_cpus"),
            SettingKind::Command => value.to_owned(),
        }
    }
}

/// Command that adds or deletes the flow rule `eth0 udp4:7>0`.
fn flow_rule_command(name: &str, value: &str) -> String {
    let mut tokens = name.split([' ', ':', '>']);
    let mut next_token = || tokens.next().unwrap_or_default();
    let (interface, protocol, port, queue) =
        (next_token(), next_token(), next_token(), next_token());
    match value {
        "on" => {
            format!("ethtool -N {interface} flow-type {protocol} dst-port {port} action {queue}")
        }
        _ => format!("ethtool -N {interface} delete N, as `ethtool -n {interface}` numbers it"),
    }
}

/// Command that adds an address `ADDRESS[>PEER]/LENGTH[+BROADCAST][@SCOPE]`; what follows `,` or
/// `~` has no text form.
fn address_command(token: &str, interface: &str) -> String {
    let token = token.split([',', '~']).next().unwrap_or_default();
    let token = token.replace('>', " peer ").replace('+', " broadcast ");
    let token = token.replace('@', " scope ");
    format!("ip address add {token} dev {interface}")
}

/// Arguments of `ethtool -X` for an indirection table: `equal` from a start, or weights.
fn rss_arguments(value: &str) -> String {
    let queues: Vec<u32> = value
        .split_whitespace()
        .filter_map(|queue| queue.parse().ok())
        .collect();
    let Some(first) = queues.first() else {
        return value.to_owned();
    };
    if queues
        .iter()
        .zip(*first..)
        .all(|(queue, expected)| *queue == expected)
    {
        let start = match first {
            0 => String::new(),
            _ => format!("start {first} "),
        };
        return format!("{start}equal {}", queues.len());
    }
    let last = queues.iter().copied().max().unwrap_or(0);
    let weight = |queue| queues.iter().filter(|entry| **entry == queue).count();
    let weights: Vec<String> = (0..=last).map(|queue| weight(queue).to_string()).collect();
    format!("weight {}", weights.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_match_the_usual_tools() {
        for (kind, value, expected) in [
            (SettingKind::Sysctl, "1 2", "sysctl -w eth0='1 2'"),
            (SettingKind::Mtu, "9000", "ip link set dev eth0 mtu 9000"),
            (SettingKind::State, "down", "ip link set dev eth0 down"),
            (
                SettingKind::Addresses,
                "10.0.0.1/24+10.0.0.255,9=4d000000 10.0.0.2>10.0.0.3/32 fd00::1/64~90:60",
                "ip address flush dev eth0 scope global; ip address add 10.0.0.1/24 broadcast 10.0.0.255 dev eth0; \
                 ip address add 10.0.0.2 peer 10.0.0.3/32 dev eth0; ip address add fd00::1/64 dev eth0",
            ),
            (
                SettingKind::Rings,
                "rx=512 tx=512",
                "ethtool -G eth0 rx 512 tx 512",
            ),
            (
                SettingKind::Channels,
                "rx=2 tx=2",
                "ethtool -L eth0 rx 2 tx 2",
            ),
            (SettingKind::Rss, "default", "ethtool -X eth0 default"),
            (SettingKind::Rss, "0 1", "ethtool -X eth0 equal 2"),
            (SettingKind::Rss, "2 3", "ethtool -X eth0 start 2 equal 2"),
            (SettingKind::Rss, "0 3 3", "ethtool -X eth0 weight 1 0 0 2"),
            (
                SettingKind::Coalescing,
                "rx-usecs=0 adaptive-rx=off",
                "ethtool -C eth0 rx-usecs 0 adaptive-rx off",
            ),
            (SettingKind::Offloads, "tso=off", "ethtool -K eth0 tso off"),
            (
                SettingKind::Rps,
                "3",
                "for f in /sys/class/net/eth0/queues/rx-*/rps_cpus; do echo 3 > $f; done",
            ),
            (
                SettingKind::Xps,
                "1 2",
                "echo 1 > /sys/class/net/eth0/queues/tx-0/xps_cpus; echo 2 > /sys/class/net/eth0/queues/tx-1/xps_cpus",
            ),
            (
                SettingKind::SegmentSizes,
                "65536 65536 65536 65536",
                "ip link set dev eth0 gso_max_size 65536 gro_max_size 65536",
            ),
            (
                SettingKind::SegmentSizes,
                "16384",
                "ip link set dev eth0 gso_max_size 16384 gro_max_size 16384",
            ),
            (
                SettingKind::SegmentSizes,
                "131072",
                "ip link set dev eth0 gso_max_size 131072 gro_max_size 131072 gso_ipv4_max_size 131072 gro_ipv4_max_size 131072",
            ),
        ] {
            let key = SettingKey {
                host: "client".to_owned(),
                namespace_inode: 7,
                namespace_cookie: None,
                kind,
                name: "eth0".to_owned(),
            };
            assert_eq!(key.shell_command(value), expected);
        }
    }

    #[test]
    fn a_rule_for_a_flow_is_made_and_taken_away() {
        let key = SettingKey {
            kind: SettingKind::Flow,
            ..SettingKey::for_command("eth0 udp4:7>3")
        };
        let make = "ethtool -N eth0 flow-type udp4 dst-port 7 action 3";
        assert_eq!(key.shell_command("on"), make);
        let take = "ethtool -N eth0 delete N, as `ethtool -n eth0` numbers it";
        assert_eq!(key.shell_command("off"), take);
    }

    #[test]
    fn a_setting_goes_with_its_interface() {
        for (kind, name, interface, renamed) in [
            (SettingKind::Mtu, "eth0", Some("eth0"), "lan"),
            (
                SettingKind::Flow,
                "eth0 udp4:7>3",
                Some("eth0"),
                "lan udp4:7>3",
            ),
            (SettingKind::Sysctl, "net.core.rmem_max", None, "lan"),
            (SettingKind::Command, "eth0", None, "lan"),
        ] {
            let key = SettingKey {
                kind,
                ..SettingKey::for_command(name)
            };
            assert_eq!(key.interface(), interface, "{name}");
            assert_eq!(key.with_interface("lan").name, renamed, "{name}");
        }
    }

    #[test]
    fn a_later_namespace_with_the_same_inode_is_another_one() {
        let key_with_cookie = |cookie| SettingKey {
            namespace_cookie: cookie,
            namespace_inode: 7,
            ..SettingKey::for_command("a")
        };
        for (own_cookie, inode, cookie, expected) in [
            (Some(3), 7, Some(3), true),
            (Some(3), 7, Some(4), false),
            (Some(3), 8, Some(3), false),
            // A journal of an older version, and a kernel without cookies.
            (None, 7, Some(4), true),
            (Some(3), 7, None, true),
        ] {
            assert_eq!(
                key_with_cookie(own_cookie).is_in_namespace(inode, cookie),
                expected,
                "{own_cookie:?} {inode} {cookie:?}"
            );
        }
        let line = r#"{"host":"a","namespace":7,"kind":"sysctl","name":"b"}"#;
        let old: SettingKey = serde_json::from_str(line).expect("as it was written before");
        assert_eq!(old.namespace_cookie, None);
    }
}
