//! The counters of the places where a host can lose packets, all of them since boot.
//!
//! Those of an interface are its own. Those of the host belong to the calling thread's network
//! namespace, but for the backlog, which is the whole machine's.

use super::{Files, netlink};

/// A counter's name and its value.
pub type Count = (&'static str, u64);

/// Names of counters, the same in records.
pub mod name {
    /// Dropped by the queueing discipline of an interface.
    pub const QDISC: &str = "qdisc_drops";
    /// Times that the queueing discipline of an interface held packets back because of its rate.
    pub const OVER_LIMIT: &str = "qdisc_over_limit";
    /// The rate in bit/s that the queueing discipline of an interface holds to: no count, and the same before
    /// and after.
    pub const QDISC_RATE: &str = "qdisc_rate_bps";
    /// The same of each queue's own below `mq`, where all of them have the same: what one flow is held to.
    pub const QUEUE_RATE: &str = "qdisc_queue_rate_bps";
    /// Packets that an interface sent; several that are one for the kernel count once.
    pub const TX_PACKETS: &str = "tx_packets";
    /// Packets that an interface received, counted likewise.
    pub const RX_PACKETS: &str = "rx_packets";
    /// Dropped or failed at an interface on the way out.
    pub const TX: &str = "tx_dropped";
    /// Dropped at an interface on the way in, by the kernel.
    pub const RX: &str = "rx_dropped";
    /// Missed at an interface on the way in: the device had no room for it.
    pub const RX_MISSED: &str = "rx_missed";
    /// Broken at an interface on the way in: a check sequence or a length that does not fit.
    pub const RX_ERRORS: &str = "rx_errors";
    /// Times that an interface lost its carrier. What is sent meanwhile is lost, and counted by none.
    pub const CARRIER: &str = "carrier_losses";
    /// Refused by the full packet queues of the processors, of the whole machine.
    pub const BACKLOG: &str = "backlog_drops";
    /// Rounds of receive work that ended because their time or budget was spent, of the whole machine.
    pub const SQUEEZED: &str = "budget_spent";
    /// Acknowledgements that left by the timer that delays them (TcpExt DelayedACKs).
    pub const DELAYED_ACKS: &str = "delayed_acks";
    /// Segments that a full receive queue refused (TcpExt TCPRcvQDrop).
    pub const RECEIVE_QUEUE_REFUSED: &str = "tcp_receive_queue_refused";
    /// Packets that could not be cut into fragments (FragFails).
    pub const FRAGMENTING_FAILED: &str = "fragmenting_failures";
    /// Reports that something could not be reached, an MTU among them (ICMP, received).
    pub const UNREACHABLE: &str = "icmp_unreachable_received";
    /// Packets thrown away while the link-layer address of a neighbour was asked for, of the whole machine.
    pub const NEIGHBOUR_DISCARDS: &str = "neighbour_discards";
    /// Neighbours whose link-layer address was asked for in vain, of the whole machine.
    pub const NEIGHBOUR_FAILURES: &str = "neighbour_failures";
    /// Times that a neighbour's link-layer address became another one, while it was watched.
    pub const NEIGHBOUR_CHANGES: &str = "neighbour_address_changes";
    /// Times that a neighbour did not answer for its link-layer address, while it was watched.
    pub const NEIGHBOUR_UNANSWERED: &str = "neighbour_unanswered";
    /// Fragments that arrived.
    pub const FRAGMENTS: &str = "fragments_received";
    /// Datagrams put together from fragments.
    pub const REASSEMBLED: &str = "reassembled";
    /// Failures of putting together, as the kernel counts them: of fragments or of datagrams.
    pub const REASSEMBLY_FAILED: &str = "reassembly_failures";
    /// Incomplete datagrams that were given up after their time.
    pub const REASSEMBLY_TIMEOUTS: &str = "reassembly_timeouts";
    /// Incomplete datagrams that wait for the rest now.
    pub const REASSEMBLY_OPEN: &str = "reassembly_open";
}

/// What an interface of the calling thread's namespace has counted; nothing where there is none of
/// that name.
#[must_use]
pub fn interface(name: &str) -> Vec<Count> {
    let Ok(link) = netlink::link(name) else {
        return Vec::new();
    };
    let mut counts = Vec::new();
    if let Some(statistics) = link.statistics {
        counts.extend(of_link(statistics));
    }
    counts.extend(
        link.carrier_losses
            .map(|losses| (name::CARRIER, losses.into())),
    );
    if let Ok(Some((root, below))) = netlink::qdiscs(link.index) {
        counts.extend(of_qdiscs(&root, &below));
    }
    counts
}

/// What the disciplines of an interface count, and hold to.
fn of_qdiscs(root: &netlink::Qdisc, below: &[netlink::Qdisc]) -> Vec<Count> {
    let mut counts = vec![
        (name::QDISC, u64::from(root.drops)),
        (name::OVER_LIMIT, u64::from(root.over_limit)),
    ];
    counts.extend(root.rate_bps.map(|rate| (name::QDISC_RATE, rate)));
    let same = |(first, rest): (&netlink::Qdisc, &[netlink::Qdisc])| {
        let rate = first.rate_bps?;
        (rest.iter().all(|other| other.rate_bps == Some(rate))).then_some(rate)
    };
    // Of classes each flow passes one or another, and nobody tells which.
    let each = (below.split_first().filter(|_| root.kind == "mq")).and_then(same);
    counts.extend(each.map(|rate| (name::QUEUE_RATE, rate)));
    counts
}

/// What an interface counts, by our names. What arrives broken is apart from what found no room: a longer ring
/// mends no cable.
fn of_link(statistics: netlink::Statistics) -> [Count; 6] {
    [
        (name::TX, statistics.tx_dropped + statistics.tx_errors),
        (name::RX, statistics.rx_dropped),
        (name::TX_PACKETS, statistics.tx_packets),
        (name::RX_PACKETS, statistics.rx_packets),
        (name::RX_MISSED, statistics.rx_missed),
        (name::RX_ERRORS, statistics.rx_errors),
    ]
}

/// What the host of the calling thread's namespace has counted, for IPv4 or IPv6.
#[must_use]
pub fn host(ipv6: bool) -> Vec<Count> {
    host_on(&Files::machine(), ipv6)
}

fn host_on(files: &Files, ipv6: bool) -> Vec<Count> {
    let read = |file: &str| files.text(&format!("/proc/thread-self/net/{file}"));
    let mut counts = Vec::new();
    let softnet = read("softnet_stat");
    for (column, name) in [(1, name::BACKLOG), (2, name::SQUEEZED)] {
        let count = softnet
            .as_deref()
            .and_then(|text| softnet_sum(text, column));
        counts.extend(count.map(|count| (name, count)));
    }
    let netstat = read("netstat");
    for (counter, name) in [
        ("DelayedACKs", name::DELAYED_ACKS),
        ("TCPRcvQDrop", name::RECEIVE_QUEUE_REFUSED),
    ] {
        let value = netstat
            .as_deref()
            .and_then(|table| paired(table, "TcpExt:", counter));
        counts.extend(value.map(|value| (name, value)));
    }
    let (table, open) = if ipv6 {
        (read("snmp6"), read("sockstat6"))
    } else {
        (read("snmp"), read("sockstat"))
    };
    for (counter, name) in [
        ("ReasmReqds", name::FRAGMENTS),
        ("ReasmOKs", name::REASSEMBLED),
        ("ReasmFails", name::REASSEMBLY_FAILED),
        ("ReasmTimeout", name::REASSEMBLY_TIMEOUTS),
        ("FragFails", name::FRAGMENTING_FAILED),
    ] {
        let value = table.as_deref().and_then(|table| {
            if ipv6 {
                flat(table, &format!("Ip6{counter}"))
            } else {
                paired(table, "Ip:", counter)
            }
        });
        counts.extend(value.map(|value| (name, value)));
    }
    counts.extend(neighbours(files, ipv6));
    let unreachable = table.as_deref().and_then(|table| match ipv6 {
        true => flat(table, "Icmp6InDestUnreachs"),
        false => paired(table, "Icmp:", "InDestUnreachs"),
    });
    counts.extend(unreachable.map(|value| (name::UNREACHABLE, value)));
    let open = open.as_deref().and_then(|text| incomplete(text, ipv6));
    counts.extend(open.map(|value| (name::REASSEMBLY_OPEN, value)));
    counts
}

/// Datagrams that UDP sockets of the calling thread's namespace, all programs together, could not send and
/// could not take because a buffer was full; `None` where the kernel does not tell.
#[must_use]
pub fn udp_buffers_full(ipv6: bool) -> Option<[u64; 2]> {
    udp_buffers_full_on(&Files::machine(), ipv6)
}

fn udp_buffers_full_on(files: &Files, ipv6: bool) -> Option<[u64; 2]> {
    let file = if ipv6 { "snmp6" } else { "snmp" };
    let table = files.text(&format!("/proc/thread-self/net/{file}"))?;
    let read = |counter: &str| match ipv6 {
        true => flat(&table, &format!("Udp6{counter}")),
        false => paired(&table, "Udp:", counter),
    };
    Some([read("SndbufErrors")?, read("RcvbufErrors")?])
}

/// What became of questions for neighbours' addresses. The kernel counts for the whole machine, and shows it
/// in its first network namespace alone: in a lab process 1 is of that.
fn neighbours(files: &Files, ipv6: bool) -> Vec<Count> {
    let cache = if ipv6 { "ndisc_cache" } else { "arp_cache" };
    let read = |process: &str| files.text(&format!("/proc/{process}/net/stat/{cache}"));
    let Some(text) = read("thread-self").or_else(|| read("1")) else {
        return Vec::new();
    };
    [
        ("unresolved_discards", name::NEIGHBOUR_DISCARDS),
        ("res_failed", name::NEIGHBOUR_FAILURES),
    ]
    .into_iter()
    .filter_map(|(column, name)| Some((name, headed(&text, column)?)))
    .collect()
}

/// A column by its heading, hexadecimal, one line a processor.
fn headed(text: &str, column: &str) -> Option<u64> {
    let (heading, rows) = text.split_once('\n')?;
    let place = heading
        .split_ascii_whitespace()
        .position(|name| name == column)?;
    let counts = rows.lines().map(|line| {
        let word = line.split_ascii_whitespace().nth(place)?;
        u64::from_str_radix(word, 16).ok()
    });
    counts.sum()
}

/// A column of `softnet_stat`, hexadecimal, one line a processor.
fn softnet_sum(text: &str, column: usize) -> Option<u64> {
    let counts = text.lines().map(|line| {
        let word = line.split_ascii_whitespace().nth(column)?;
        u64::from_str_radix(word, 16).ok()
    });
    counts.sum()
}

/// A value of `snmp`: a line of names, then a line of values, both with the same first word.
fn paired(text: &str, protocol: &str, counter: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with(protocol));
    let names = lines.next()?.split_ascii_whitespace();
    let mut values = lines.next()?.split_ascii_whitespace();
    let place = names.into_iter().position(|name| name == counter)?;
    values.nth(place)?.parse().ok()
}

/// A value of `snmp6`: a name and a value on each line.
fn flat(text: &str, counter: &str) -> Option<u64> {
    let line = text
        .lines()
        .find(|line| line.split_ascii_whitespace().next() == Some(counter))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// `FRAG: inuse 3 memory 7000` of `sockstat`.
fn incomplete(text: &str, ipv6: bool) -> Option<u64> {
    let first = if ipv6 { "FRAG6:" } else { "FRAG:" };
    let line = text.lines().find(|line| line.starts_with(first))?;
    let mut words = line.split_ascii_whitespace();
    words.find(|&word| word == "inuse")?;
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::files::tree;
    use super::*;

    #[test]
    fn counters_are_found_by_name_and_not_by_place() {
        let (_directory, files) = tree(&[
            (
                "/proc/thread-self/net/softnet_stat",
                "00ff 00000010 0 0\n00aa 0000000a 0 0\n",
            ),
            (
                "/proc/thread-self/net/snmp",
                "Ip: Forwarding ReasmTimeout ReasmReqds ReasmOKs ReasmFails\nIp: 2 1 60 9 4\nIcmp: InMsgs\nIcmp: 3\n",
            ),
            (
                "/proc/thread-self/net/sockstat",
                "sockets: used 9\nUDP: inuse 1 mem 2\nFRAG: inuse 3 memory 7000\n",
            ),
            (
                "/proc/thread-self/net/snmp6",
                "Ip6ReasmReqds     \t7\nIp6ReasmOKs 2\nIp6ReasmOKsOther 5\n",
            ),
            (
                "/proc/1/net/stat/arp_cache",
                "entries  res_failed unresolved_discards\n00000002 00000001 0000001f\n00000002 00000003 00000001\n",
            ),
        ]);
        assert_eq!(
            host_on(&files, false),
            [
                (name::BACKLOG, 26),
                (name::SQUEEZED, 0),
                (name::FRAGMENTS, 60),
                (name::REASSEMBLED, 9),
                (name::REASSEMBLY_FAILED, 4),
                (name::REASSEMBLY_TIMEOUTS, 1),
                (name::NEIGHBOUR_DISCARDS, 32),
                (name::NEIGHBOUR_FAILURES, 4),
                (name::REASSEMBLY_OPEN, 3),
            ]
        );
        assert_eq!(
            host_on(&files, true),
            [
                (name::BACKLOG, 26),
                (name::SQUEEZED, 0),
                (name::FRAGMENTS, 7),
                (name::REASSEMBLED, 2),
            ]
        );
    }

    #[test]
    fn a_rate_of_all_queues_below_mq_is_told() {
        let of = |kind: &str, rate_bps| netlink::Qdisc {
            kind: kind.to_owned(),
            rate_bps,
            ..netlink::Qdisc::default()
        };
        let (slow, fast, none) = (of("tbf", Some(7)), of("tbf", Some(9)), of("fq", None));
        for (root, below, rates) in [
            (
                of("tbf", Some(5)),
                vec![none.clone()],
                vec![(name::QDISC_RATE, 5)],
            ),
            (
                of("mq", None),
                vec![slow.clone(), slow.clone()],
                vec![(name::QUEUE_RATE, 7)],
            ),
            (of("mq", None), vec![slow.clone(), fast], vec![]),
            (of("mq", None), vec![slow.clone(), none], vec![]),
            (of("mq", None), vec![], vec![]),
            (of("htb", None), vec![slow], vec![]),
        ] {
            let counts = of_qdiscs(&root, &below);
            assert_eq!(counts[2..], rates, "{} over {below:?}", root.kind);
        }
    }

    #[test]
    fn frames_that_arrive_broken_are_apart_from_those_without_room() {
        let counts = of_link(netlink::Statistics {
            rx_errors: 7,
            rx_missed: 30,
            rx_dropped: 2,
            tx_errors: 1,
            tx_dropped: 4,
            ..netlink::Statistics::default()
        });
        for (counter, want) in [
            (name::RX_MISSED, 30),
            (name::RX_ERRORS, 7),
            (name::RX, 2),
            (name::TX, 5),
        ] {
            let found = counts.iter().find(|(name, _)| *name == counter);
            assert_eq!(found.map(|(_, count)| *count), Some(want), "{counter}");
        }
    }

    #[test]
    fn full_buffers_of_sockets_are_counted_by_family() {
        let (_directory, files) = tree(&[
            (
                "/proc/thread-self/net/snmp",
                "Udp: InDatagrams RcvbufErrors SndbufErrors\nUdp: 9 7 2\n",
            ),
            (
                "/proc/thread-self/net/snmp6",
                "Udp6RcvbufErrors 4\nUdp6SndbufErrors 1\n",
            ),
        ]);
        assert_eq!(udp_buffers_full_on(&files, false), Some([2, 7]));
        assert_eq!(udp_buffers_full_on(&files, true), Some([1, 4]));
        let (_directory, none) = tree(&[]);
        assert_eq!(udp_buffers_full_on(&none, false), None);
        assert!(udp_buffers_full(false).is_some());
    }

    #[test]
    fn this_host_counts() {
        let names: Vec<_> = host(false).into_iter().map(|(name, _)| name).collect();
        assert!(names.contains(&name::BACKLOG), "{names:?}");
        assert!(names.contains(&name::FRAGMENTS), "{names:?}");
        let lo: Vec<_> = interface("lo").into_iter().map(|(name, _)| name).collect();
        assert!(lo.contains(&name::RX) && lo.contains(&name::TX), "{lo:?}");
        assert!(interface("none-such0").is_empty());
    }
}
