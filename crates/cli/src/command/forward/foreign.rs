//! Words of testpmd that mean nothing on our ports: why, and what stands in their place. Nothing is accepted
//! that does nothing.

/// First words of a command, and what to say.
const FOREIGN: &[(&str, &str)] = &[
    (
        "show port rxq desc used count",
        "no ring is looked into while a thread polls it: `set record-burst-stats on` counts how many frames \
         polls find, `show rxq info PORT QUEUE` has the ring's size",
    ),
    (
        "show bonding",
        "there are no bonded ports: bond interfaces in the kernel and use packet:bond0",
    ),
    (
        "show port rss-hash",
        "ports choose no queue by a hash: the kernel does (`ethtool -x IF`)",
    ),
    (
        "show port rss",
        "ports choose no queue by a hash: the kernel does (`ethtool -x IF`)",
    ),
    (
        "show port",
        "there is info, summary, stats and xstats of a port",
    ),
    (
        "set txsplit",
        "a frame is one piece here: `set txpkts 64,64` makes frames of the sum",
    ),
    (
        "set txtimes",
        "frames are not sent at times: `linerate generate --rate` paces them and states the error",
    ),
    (
        "set rxpkts",
        "a frame is one piece here: give URLs a larger mtu= instead",
    ),
    (
        "set rxoffs",
        "a frame is one piece here: give URLs a larger mtu= instead",
    ),
    (
        "set allmulti",
        "`set promisc PORT on` receives every frame, those to groups too",
    ),
    ("set link-up", "links are the kernel's: `ip link set IF up`"),
    (
        "set link-down",
        "links are the kernel's: `ip link set IF down`",
    ),
    (
        "set flow_ctrl",
        "pause frames are the kernel's: `ethtool -A IF rx on tx on`",
    ),
    (
        "set stat_qmap",
        "every queue is counted by itself: `show port xstats PORT`",
    ),
    (
        "set xstats-hide-zero",
        "`show port xstats` leaves causes out that never struck, and nothing else",
    ),
    (
        "set vf",
        "there are no virtual functions: `ip link set IF vf N`",
    ),
    (
        "vlan",
        "tags are left as they are: `linerate generate` makes tagged frames, `ip link` adds interfaces",
    ),
    (
        "rx_vlan",
        "tags are left as they are, and nothing is filtered by them",
    ),
    (
        "tx_vlan",
        "tags are left as they are: `linerate generate` makes tagged frames",
    ),
    (
        "mac_addr",
        "a port has its interface's address: `ip link set IF address MAC`",
    ),
    (
        "mcast_addr",
        "`set promisc PORT on` receives every frame, those to groups too",
    ),
    (
        "flow",
        "nothing is steered by rules here: `ethtool -N IF` does it for interfaces",
    ),
    (
        "tso",
        "frames are sent as they are: `linerate stack` segments",
    ),
    (
        "gso",
        "frames are sent as they are: `linerate stack` segments",
    ),
    (
        "gro",
        "frames are sent as they come: `linerate stack` joins segments",
    ),
    (
        "tunnel_tso",
        "frames are sent as they are: `linerate stack` segments",
    ),
    ("csum parse-tunnel", "mode csum sums the outermost headers"),
    (
        "csum mac-swap",
        "mode csum writes addresses as mode mac does: `set fwd macswap` swaps them",
    ),
    (
        "port config rss",
        "ports choose no queue by a hash: the kernel does (`ethtool -X IF`)",
    ),
    (
        "port config speed",
        "links are the kernel's: `ethtool -s IF speed N`",
    ),
    (
        "port config",
        "there is: rxq, txq, rxd, txd, mtu, max-pkt-len and burst of a port or all",
    ),
    (
        "port cleanup",
        "what has left goes back to the memory by itself",
    ),
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
        "`show port info all`, `show config cores` and `--json` have what there is of memory and cores",
    ),
    (
        "add port",
        "nothing is shaped by a tree: `set port P queue Q rate MBPS`, or `tc` on an interface",
    ),
    (
        "del port",
        "nothing is shaped by a tree: `set port P queue Q rate MBPS`, or `tc` on an interface",
    ),
    (
        "read",
        "there are no registers: `ethtool -d IF` reads those of an interface",
    ),
    ("write", "there are no registers"),
    ("bpf-load", "programs are loaded by xdp: ports alone"),
    (
        "ptype",
        "`set verbose 1` describes frames by what is in them",
    ),
    ("ddp", "there is no NIC to load profiles into"),
    ("E-tag", "tags are left as they are"),
];

/// Whether a line begins as an entry does; numbers and `all` between its words are of ports and queues.
fn begins(line: &[&str], entry: &str) -> bool {
    let mut said = line.iter().filter(|word| {
        let is_number = word.parse::<u32>().is_ok();
        !is_number && **word != "all"
    });
    entry.split(' ').all(|word| {
        said.next().is_some_and(|said| match word.ends_with('_') {
            true => said.starts_with(word),
            false => *said == word,
        })
    })
}

/// What a line of testpmd's is answered with; none where it is not known there either.
pub fn instead_of(line: &[&str]) -> Option<&'static str> {
    let mut entries = FOREIGN.iter();
    let (_, instead) = entries.find(|(entry, _)| begins(line, entry))?;
    Some(instead)
}

/// All of them, for help.
pub fn list() -> String {
    let width = FOREIGN.iter().map(|(entry, _)| entry.len()).max();
    let width = width.unwrap_or(0);
    let lines = FOREIGN
        .iter()
        .map(|(entry, instead)| format!("{entry:<width$}  {instead}"));
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::forward::grammar;

    #[test]
    fn words_of_nics_are_answered() {
        for (line, wanted) in [
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
            let said = instead_of(&words).unwrap_or_else(|| panic!("{line}"));
            assert!(said.contains(wanted), "{line}: {said}");
            assert!(grammar::find(&words).is_none(), "{line}");
        }
        for line in ["strat", "set", "show", "dump", "help flow"] {
            let words: Vec<_> = line.split(' ').collect();
            assert_eq!(instead_of(&words), None, "{line}");
        }
    }

    /// Of two that fit, the one that says more comes first.
    #[test]
    fn no_entry_hides_another() {
        for (at, (entry, instead)) in FOREIGN.iter().enumerate() {
            assert!(!instead.is_empty() && !instead.ends_with('.'), "{entry}");
            let words: Vec<_> = entry.split(' ').collect();
            let first = FOREIGN.iter().position(|(other, _)| begins(&words, other));
            assert_eq!(first, Some(at), "{entry}");
        }
    }
}
