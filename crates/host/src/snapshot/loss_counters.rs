//! Counters of the points where a host can lose packets, cumulative since boot.
//!
//! Interface counters cover one interface. Host counters belong to the calling thread's network
//! namespace, except for the backlog, which is counted for the whole machine.

use super::SystemFiles;
use crate::netlink;

/// Name and value of a counter.
pub type CounterValue = (&'static str, u64);

/// Counter names, also used in records.
pub mod name {
    /// Packets dropped by the queueing discipline of an interface.
    pub const QDISC: &str = "qdisc_drops";
    /// Times that the queueing discipline of an interface delayed packets because of its rate
    /// limit.
    pub const OVER_LIMIT: &str = "qdisc_over_limit";
    /// Rate limit of an interface's queueing discipline, bit/s: a setting, not a count.
    pub const QDISC_RATE: &str = "qdisc_rate_bps";
    /// Rate limit of each child of `mq`, bit/s, if equal for all of them: the limit of one flow.
    pub const QUEUE_RATE: &str = "qdisc_queue_rate_bps";
    /// Packets sent by an interface; a GSO packet counts once.
    pub const TX_PACKETS: &str = "tx_packets";
    /// Packets received by an interface, counted in the same way.
    pub const RX_PACKETS: &str = "rx_packets";
    /// Packets dropped or failed on transmission at an interface.
    pub const TX: &str = "tx_dropped";
    /// Received packets dropped by the kernel at an interface.
    pub const RX: &str = "rx_dropped";
    /// Packets missed on reception at an interface: the device had no buffer.
    pub const RX_MISSED: &str = "rx_missed";
    /// Received packets with errors at an interface: bad checksum or length.
    pub const RX_ERRORS: &str = "rx_errors";
    /// Times that an interface lost its carrier. Packets sent meanwhile are lost and not counted.
    pub const CARRIER: &str = "carrier_losses";
    /// Packets dropped because a processor's backlog was full, whole machine.
    pub const BACKLOG: &str = "backlog_drops";
    /// Rounds of receive work that ended because time or budget was used up, whole machine.
    pub const BUDGET_SPENT: &str = "budget_spent";
    /// Acknowledgements sent by the delayed-ACK timer (TcpExt DelayedACKs).
    pub const DELAYED_ACKS: &str = "delayed_acks";
    /// Segments dropped because a receive queue was full (TcpExt TCPRcvQDrop).
    pub const TCP_RECEIVE_QUEUE_DROPS: &str = "tcp_receive_queue_refused";
    /// Packets that could not be fragmented (FragFails).
    pub const FRAGMENTING_FAILED: &str = "fragmenting_failures";
    /// ICMP destination-unreachable messages received, including "fragmentation needed"; over IPv6
    /// with "packet too big", which is a message of its own there.
    pub const UNREACHABLE: &str = "icmp_unreachable_received";
    /// Packets dropped during the resolution of a neighbour's address, whole machine.
    pub const NEIGHBOUR_DISCARDS: &str = "neighbour_discards";
    /// Failed resolutions of neighbour addresses, whole machine.
    pub const NEIGHBOUR_FAILURES: &str = "neighbour_failures";
    /// Times that a neighbour's link-layer address changed while monitored.
    pub const NEIGHBOUR_CHANGES: &str = "neighbour_address_changes";
    /// Times that a neighbour did not reply to address resolution while monitored.
    pub const NEIGHBOUR_UNANSWERED: &str = "neighbour_unanswered";
    /// Fragments received.
    pub const FRAGMENTS: &str = "fragments_received";
    /// Datagrams reassembled from fragments.
    pub const REASSEMBLED: &str = "reassembled";
    /// Reassembly failures; the kernel counts fragments or datagrams.
    pub const REASSEMBLY_FAILED: &str = "reassembly_failures";
    /// Incomplete datagrams dropped by the reassembly timeout.
    pub const REASSEMBLY_TIMEOUTS: &str = "reassembly_timeouts";
    /// Incomplete datagrams that wait for fragments now.
    pub const REASSEMBLY_OPEN: &str = "reassembly_open";
}

/// Reads the counters of an interface of the calling thread's namespace; empty without such an
/// interface.
#[must_use]
pub fn read_interface_counters(name: &str) -> Vec<CounterValue> {
    let Ok(link) = netlink::find_link(name) else {
        return Vec::new();
    };
    let mut counts = Vec::new();
    if let Some(statistics) = link.statistics {
        counts.extend(link_counters(statistics));
    }
    counts.extend(
        link.carrier_losses
            .map(|losses| (name::CARRIER, losses.into())),
    );
    if let Ok(Some((root, children))) = netlink::read_qdiscs(link.index) {
        counts.extend(qdisc_counters(&root, &children));
    }
    counts
}

/// Counters and rate limits of an interface's queueing disciplines.
fn qdisc_counters(root: &netlink::Qdisc, children: &[netlink::Qdisc]) -> Vec<CounterValue> {
    let mut counts = vec![
        (name::QDISC, u64::from(root.drops)),
        (name::OVER_LIMIT, u64::from(root.over_limit)),
    ];
    counts.extend(root.rate_bps.map(|rate| (name::QDISC_RATE, rate)));
    let common_rate = |(first, rest): (&netlink::Qdisc, &[netlink::Qdisc])| {
        let rate = first.rate_bps?;
        (rest.iter().all(|qdisc| qdisc.rate_bps == Some(rate))).then_some(rate)
    };
    // Below a classful discipline a flow takes one class or another, and the choice is unknown.
    let queue_rate = (children.split_first().filter(|_| root.kind == "mq")).and_then(common_rate);
    counts.extend(queue_rate.map(|rate| (name::QUEUE_RATE, rate)));
    counts
}

/// Maps interface statistics to counter names. Errors stay separate from missing buffers: a larger
/// ring does not repair a cable.
fn link_counters(statistics: netlink::LinkStatistics) -> [CounterValue; 6] {
    [
        (name::TX, statistics.tx_dropped + statistics.tx_errors),
        (name::RX, statistics.rx_dropped),
        (name::TX_PACKETS, statistics.tx_packets),
        (name::RX_PACKETS, statistics.rx_packets),
        (name::RX_MISSED, statistics.rx_missed),
        (name::RX_ERRORS, statistics.rx_errors),
    ]
}

/// Reads the host counters of the calling thread's namespace, for IPv4 or IPv6.
#[must_use]
pub fn read_host_counters(ipv6: bool) -> Vec<CounterValue> {
    read_host_counters_from(&SystemFiles::of_machine(), ipv6)
}

fn read_host_counters_from(files: &SystemFiles, ipv6: bool) -> Vec<CounterValue> {
    let read = |file: &str| files.read_text(&format!("/proc/thread-self/net/{file}"));
    let mut counts = Vec::new();
    let softnet = read("softnet_stat");
    for (column, name) in [(1, name::BACKLOG), (2, name::BUDGET_SPENT)] {
        let count = softnet.as_deref().and_then(|text| sum_column(text, column));
        counts.extend(count.map(|count| (name, count)));
    }
    let netstat = read("netstat");
    for (counter, name) in [
        ("DelayedACKs", name::DELAYED_ACKS),
        ("TCPRcvQDrop", name::TCP_RECEIVE_QUEUE_DROPS),
    ] {
        let value = netstat
            .as_deref()
            .and_then(|table| snmp_value(table, "TcpExt:", counter));
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
                snmp6_value(table, &format!("Ip6{counter}"))
            } else {
                snmp_value(table, "Ip:", counter)
            }
        });
        counts.extend(value.map(|value| (name, value)));
    }
    counts.extend(read_neighbour_counters(files, ipv6));
    let unreachable = table.as_deref().and_then(|table| match ipv6 {
        true => Some(
            snmp6_value(table, "Icmp6InDestUnreachs")?
                + snmp6_value(table, "Icmp6InPktTooBigs").unwrap_or(0),
        ),
        false => snmp_value(table, "Icmp:", "InDestUnreachs"),
    });
    counts.extend(unreachable.map(|value| (name::UNREACHABLE, value)));
    let open = open
        .as_deref()
        .and_then(|text| parse_open_reassemblies(text, ipv6));
    counts.extend(open.map(|value| (name::REASSEMBLY_OPEN, value)));
    counts
}

/// Reads the datagrams that all UDP sockets of the calling thread's namespace together failed to
/// send and to receive because a buffer was full; `None` where the kernel does not count them.
#[must_use]
pub fn read_udp_buffer_errors(ipv6: bool) -> Option<[u64; 2]> {
    read_udp_buffer_errors_from(&SystemFiles::of_machine(), ipv6)
}

fn read_udp_buffer_errors_from(files: &SystemFiles, ipv6: bool) -> Option<[u64; 2]> {
    let file = if ipv6 { "snmp6" } else { "snmp" };
    let table = files.read_text(&format!("/proc/thread-self/net/{file}"))?;
    let read = |counter: &str| match ipv6 {
        true => snmp6_value(&table, &format!("Udp6{counter}")),
        false => snmp_value(&table, "Udp:", counter),
    };
    Some([read("SndbufErrors")?, read("RcvbufErrors")?])
}

/// Counters of neighbour resolution. The kernel counts for the whole machine and shows them in the
/// initial network namespace only; from a lab they are read through process 1, which is in that
/// namespace.
fn read_neighbour_counters(files: &SystemFiles, ipv6: bool) -> Vec<CounterValue> {
    let cache = if ipv6 { "ndisc_cache" } else { "arp_cache" };
    let read = |process: &str| files.read_text(&format!("/proc/{process}/net/stat/{cache}"));
    let Some(text) = read("thread-self").or_else(|| read("1")) else {
        return Vec::new();
    };
    [
        ("unresolved_discards", name::NEIGHBOUR_DISCARDS),
        ("res_failed", name::NEIGHBOUR_FAILURES),
    ]
    .into_iter()
    .filter_map(|(column, name)| Some((name, sum_named_column(&text, column)?)))
    .collect()
}

/// Sums a hexadecimal column found by its heading; one line per processor.
fn sum_named_column(text: &str, column: &str) -> Option<u64> {
    let (heading, rows) = text.split_once('\n')?;
    let column_index = heading
        .split_ascii_whitespace()
        .position(|name| name == column)?;
    let counts = rows.lines().map(|line| {
        let value = line.split_ascii_whitespace().nth(column_index)?;
        u64::from_str_radix(value, 16).ok()
    });
    counts.sum()
}

/// Sums a hexadecimal column of `softnet_stat`; one line per processor.
fn sum_column(text: &str, column: usize) -> Option<u64> {
    let counts = text.lines().map(|line| {
        let value = line.split_ascii_whitespace().nth(column)?;
        u64::from_str_radix(value, 16).ok()
    });
    counts.sum()
}

/// Returns a value of `snmp`: a line of names, then a line of values, both with the same prefix.
fn snmp_value(text: &str, protocol: &str, counter: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with(protocol));
    let names = lines.next()?.split_ascii_whitespace();
    let mut values = lines.next()?.split_ascii_whitespace();
    let column_index = names.into_iter().position(|name| name == counter)?;
    values.nth(column_index)?.parse().ok()
}

/// Returns a value of `snmp6`: one name and value per line.
fn snmp6_value(text: &str, counter: &str) -> Option<u64> {
    let line = text
        .lines()
        .find(|line| line.split_ascii_whitespace().next() == Some(counter))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Parses `FRAG: inuse 3 memory 7000` of `sockstat`.
fn parse_open_reassemblies(text: &str, ipv6: bool) -> Option<u64> {
    let prefix = if ipv6 { "FRAG6:" } else { "FRAG:" };
    let line = text.lines().find(|line| line.starts_with(prefix))?;
    let mut fields = line.split_ascii_whitespace();
    fields.find(|&field| field == "inuse")?;
    fields.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::system_files::tree;
    use super::*;

    #[test]
    fn counters_are_found_by_name() {
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
                "Ip6ReasmReqds     \t7\nIp6ReasmOKs 2\nIp6ReasmOKsOther 5\nIp6ReasmFails 6\n\
                 Ip6ReasmTimeout 5\nIcmp6InDestUnreachs 3\nIcmp6InPktTooBigs 40\n",
            ),
            (
                "/proc/thread-self/net/sockstat6",
                "UDP6: inuse 1\nFRAG6: inuse 8 memory 9000\n",
            ),
            (
                "/proc/1/net/stat/ndisc_cache",
                "entries  res_failed unresolved_discards\n00000002 00000007 00000002\n",
            ),
            (
                "/proc/1/net/stat/arp_cache",
                "entries  res_failed unresolved_discards\n00000002 00000001 0000001f\n00000002 00000003 00000001\n",
            ),
        ]);
        assert_eq!(
            read_host_counters_from(&files, false),
            [
                (name::BACKLOG, 26),
                (name::BUDGET_SPENT, 0),
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
            read_host_counters_from(&files, true),
            [
                (name::BACKLOG, 26),
                (name::BUDGET_SPENT, 0),
                (name::FRAGMENTS, 7),
                (name::REASSEMBLED, 2),
                (name::REASSEMBLY_FAILED, 6),
                (name::REASSEMBLY_TIMEOUTS, 5),
                (name::NEIGHBOUR_DISCARDS, 2),
                (name::NEIGHBOUR_FAILURES, 7),
                (name::UNREACHABLE, 43),
                (name::REASSEMBLY_OPEN, 8),
            ]
        );
    }

    #[test]
    fn a_common_rate_of_all_queues_below_mq_is_reported() {
        let qdisc = |kind: &str, rate_bps| netlink::Qdisc {
            kind: kind.to_owned(),
            rate_bps,
            ..netlink::Qdisc::default()
        };
        let (slow, fast, none) = (
            qdisc("tbf", Some(7)),
            qdisc("tbf", Some(9)),
            qdisc("fq", None),
        );
        for (root, children, rates) in [
            (
                qdisc("tbf", Some(5)),
                vec![none.clone()],
                vec![(name::QDISC_RATE, 5)],
            ),
            (
                qdisc("mq", None),
                vec![slow.clone(), slow.clone()],
                vec![(name::QUEUE_RATE, 7)],
            ),
            (qdisc("mq", None), vec![slow.clone(), fast], vec![]),
            (qdisc("mq", None), vec![slow.clone(), none], vec![]),
            (qdisc("mq", None), vec![], vec![]),
            (qdisc("htb", None), vec![slow], vec![]),
        ] {
            let counts = qdisc_counters(&root, &children);
            assert_eq!(counts[2..], rates, "{} over {children:?}", root.kind);
        }
    }

    #[test]
    fn receive_errors_are_separate_from_missed_frames() {
        let counts = link_counters(netlink::LinkStatistics {
            rx_errors: 7,
            rx_missed: 30,
            rx_dropped: 2,
            tx_errors: 1,
            tx_dropped: 4,
            ..netlink::LinkStatistics::default()
        });
        for (counter, expected) in [
            (name::RX_MISSED, 30),
            (name::RX_ERRORS, 7),
            (name::RX, 2),
            (name::TX, 5),
        ] {
            let counter_value = counts.iter().find(|(name, _)| *name == counter);
            assert_eq!(
                counter_value.map(|(_, count)| *count),
                Some(expected),
                "{counter}"
            );
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
        assert_eq!(read_udp_buffer_errors_from(&files, false), Some([2, 7]));
        assert_eq!(read_udp_buffer_errors_from(&files, true), Some([1, 4]));
        let (_directory, none) = tree(&[]);
        assert_eq!(read_udp_buffer_errors_from(&none, false), None);
        assert!(read_udp_buffer_errors(false).is_some());
    }

    #[test]
    fn this_host_has_counters() {
        let names: Vec<_> = read_host_counters(false)
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert!(names.contains(&name::BACKLOG), "{names:?}");
        assert!(names.contains(&name::FRAGMENTS), "{names:?}");
        let lo: Vec<_> = read_interface_counters("lo")
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert!(lo.contains(&name::RX) && lo.contains(&name::TX), "{lo:?}");
        assert!(read_interface_counters("none-such0").is_empty());
    }
}
