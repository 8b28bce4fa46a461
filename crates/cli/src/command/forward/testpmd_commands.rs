//! Commands of testpmd that our ports do not have, with hints for a replacement. A command without
//! effect is rejected, not ignored.

/// First words of commands, with their hints.
const COMMAND_HINTS: &[(&str, &str)] = &[
    (
        "show port rxq desc used count",
        "a ring is not read while a thread polls it: `set record-burst-stats on` counts the frames per poll, \
         `show rxq info PORT QUEUE` shows the ring's size",
    ),
    (
        "show bonding",
        "there are no bonded ports: bond interfaces in the kernel and use packet:bond0",
    ),
    (
        "show port rss-hash",
        "ports select no queue by a hash: the kernel does (`ethtool -x IF`)",
    ),
    (
        "show port rss",
        "ports select no queue by a hash: the kernel does (`ethtool -x IF`)",
    ),
    ("show port", "ports have info, summary, stats and xstats"),
    (
        "set txsplit",
        "frames have a single segment: `set txpkts 64,64` adds the lengths up",
    ),
    (
        "set txtimes",
        "frames are not scheduled: `linerate generate --rate` paces them and reports the error",
    ),
    (
        "set rxpkts",
        "frames have a single segment: give URLs a larger mtu=",
    ),
    (
        "set rxoffs",
        "frames have a single segment: give URLs a larger mtu=",
    ),
    (
        "set allmulti",
        "`set promisc PORT on` receives all frames, multicast too",
    ),
    (
        "set link-up",
        "the kernel manages links: `ip link set IF up`",
    ),
    (
        "set link-down",
        "the kernel manages links: `ip link set IF down`",
    ),
    (
        "set flow_ctrl",
        "the kernel manages pause frames: `ethtool -A IF rx on tx on`",
    ),
    (
        "set stat_qmap",
        "each queue has its own counters: `show port xstats PORT`",
    ),
    (
        "set xstats-hide-zero",
        "`show port xstats` hides only causes of drops that are zero",
    ),
    (
        "set vf",
        "there are no virtual functions: `ip link set IF vf N`",
    ),
    (
        "vlan",
        "tags are not changed: `linerate generate` sends tagged frames, `ip link` adds interfaces",
    ),
    (
        "rx_vlan",
        "tags are not changed, and frames are not filtered by them",
    ),
    (
        "tx_vlan",
        "tags are not changed: `linerate generate` sends tagged frames",
    ),
    (
        "mac_addr",
        "a port has its interface's address: `ip link set IF address MAC`",
    ),
    (
        "mcast_addr",
        "`set promisc PORT on` receives all frames, multicast too",
    ),
    (
        "flow",
        "ports have no flow rules: `ethtool -N IF` sets those of an interface",
    ),
    (
        "tso",
        "frames are sent unchanged: `linerate stack` segments",
    ),
    (
        "gso",
        "frames are sent unchanged: `linerate stack` segments",
    ),
    (
        "gro",
        "frames are forwarded as they arrive: `linerate stack` joins segments",
    ),
    (
        "tunnel_tso",
        "frames are sent unchanged: `linerate stack` segments",
    ),
    (
        "csum parse-tunnel",
        "mode csum computes the outermost checksums",
    ),
    (
        "csum mac-swap",
        "mode csum sets addresses as mode mac does: `set fwd macswap` swaps them",
    ),
    (
        "port config rss",
        "ports select no queue by a hash: the kernel does (`ethtool -X IF`)",
    ),
    (
        "port config speed",
        "the kernel manages links: `ethtool -s IF speed N`",
    ),
    (
        "port config",
        "there is: rxq, txq, rxd, txd, mtu, max-pkt-len and burst, of a port or all",
    ),
    ("port cleanup", "sent frames are freed automatically"),
    (
        "bonding",
        "there are no bonded ports: bond interfaces in the kernel and use packet:bond0",
    ),
    (
        "create",
        "there are no bonded ports and no tunnels: make them with `ip link add`",
    ),
    (
        "dump_",
        "`show port info all`, `show config cores` and `--json` describe memory and cores",
    ),
    (
        "add port",
        "there is no scheduler tree: `set port P queue Q rate MBPS`, or `tc` on an interface",
    ),
    (
        "del port",
        "there is no scheduler tree: `set port P queue Q rate MBPS`, or `tc` on an interface",
    ),
    (
        "read",
        "there are no registers: `ethtool -d IF` reads those of an interface",
    ),
    ("write", "there are no registers"),
    ("bpf-load", "only xdp: ports load programs"),
    ("ptype", "`set verbose 1` describes the content of frames"),
    ("ddp", "there is no NIC to load profiles into"),
    ("E-tag", "tags are not changed"),
];

/// Returns whether a line starts with the words of an entry. Numbers and `all` between them, which
/// name ports and queues, are skipped.
fn matches_entry(line: &[&str], entry: &str) -> bool {
    let mut words = line.iter().filter(|word| {
        let is_number = word.parse::<u32>().is_ok();
        !is_number && **word != "all"
    });
    entry.split(' ').all(|word| {
        words.next().is_some_and(|words| match word.ends_with('_') {
            true => words.starts_with(word),
            false => *words == word,
        })
    })
}

/// Returns the hint for a command of testpmd; `None` if testpmd has no such command.
pub fn hint_for(line: &[&str]) -> Option<&'static str> {
    let mut entries = COMMAND_HINTS.iter();
    let (_, hint) = entries.find(|(entry, _)| matches_entry(line, entry))?;
    Some(hint)
}

/// Returns all entries as text, for help.
pub fn list_hints() -> String {
    let width = COMMAND_HINTS.iter().map(|(entry, _)| entry.len()).max();
    let width = width.unwrap_or(0);
    let lines = COMMAND_HINTS
        .iter()
        .map(|(entry, hint)| format!("{entry:<width$}  {hint}"));
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::forward::grammar;

    #[test]
    fn commands_of_nics_have_a_hint() {
        for (line, expected) in [
            ("show port 0 rxq 0 desc used count", "record-burst-stats"),
            ("vlan set strip on 0", "tags"),
            ("flow create 0 ingress", "rules"),
            ("set txtimes 1,2", "generate --rate"),
            ("dump_mempool", "show port info"),
            ("port config all rss ip", "hash"),
            ("port config all nonsense 1", "there is: rxq"),
            ("show port 0 rss-hash", "hash"),
        ] {
            let words: Vec<_> = line.split(' ').collect();
            let hint = hint_for(&words).unwrap_or_else(|| panic!("{line}"));
            assert!(hint.contains(expected), "{line}: {hint}");
            assert!(grammar::find_command(&words).is_none(), "{line}");
        }
        for line in ["strat", "set", "show", "dump", "help flow"] {
            let words: Vec<_> = line.split(' ').collect();
            assert_eq!(hint_for(&words), None, "{line}");
        }
    }

    /// The more specific of two matching entries comes first.
    #[test]
    fn no_entry_hides_another() {
        for (at, (entry, hint)) in COMMAND_HINTS.iter().enumerate() {
            assert!(!hint.is_empty() && !hint.ends_with('.'), "{entry}");
            let words: Vec<_> = entry.split(' ').collect();
            let first = COMMAND_HINTS
                .iter()
                .position(|(other_entry, _)| matches_entry(&words, other_entry));
            assert_eq!(first, Some(at), "{entry}");
        }
    }
}
