//! CPU and memory cost of a run as sentences, and totals of `TCP_INFO`.

use linerate_record::cost::{MemoryCost, TcpInterval, run_delay_shares};
use linerate_record::record::{CpuCost, Record};
use linerate_stats::units::{format_bytes, format_count, format_nanos, format_share};

use crate::model::format_short;

/// Smallest share that is shown.
const MIN_SHOWN_SHARE: f64 = 0.0005;

/// Describes where the time went: `blocked 5.90 % of the time, 0.80 % wake-up latency, 1.00 %
/// waiting for a core; 0.121 ns per byte; machine: 5.33 % softirq`. `None` when no cost was
/// measured.
pub(crate) fn describe_time(cost: &CpuCost) -> Option<String> {
    let shown = |share: Option<f64>| share.filter(|&share| share >= MIN_SHOWN_SHARE);
    let mut spent = Vec::new();
    spent.extend(
        shown(cost.blocked_share)
            .map(|share| format!("blocked {} of the time", format_share(share))),
    );
    let delays = run_delay_shares(&cost.threads);
    spent.extend(
        shown(delays.map(|(waking, _)| waking))
            .map(|share| format!("{} wake-up latency", format_share(share))),
    );
    spent.extend(
        shown(delays.map(|(_, waited)| waited))
            .map(|share| format!("{} waiting for a CPU", format_share(share))),
    );
    spent.extend(shown(cost.empty_share).map(|share| {
        format!(
            "{} of the calls returned no data (EAGAIN)",
            format_share(share)
        )
    }));
    let mut parts = Vec::new();
    if !spent.is_empty() {
        parts.push(spent.join(", "));
    }
    let costs_ns = [(cost.ns_per_byte, "byte"), (cost.ns_per_packet, "packet")];
    parts.extend(costs_ns.into_iter().filter_map(|(ns, unit_name)| {
        let time = match ns? {
            // A byte costs fractions of a nanosecond.
            ns if ns < 10.0 => format!("{ns:.3} ns"),
            ns if ns < 1_000.0 => format!("{ns:.0} ns"),
            ns => format_nanos(ns),
        };
        Some(format!("{time} per {unit_name}"))
    }));
    if let (Some(cycles), Some(instructions)) = (cost.cycles, cost.instructions)
        && cycles > 0
    {
        parts.push(format!(
            "{} instructions per cycle",
            format_short((instructions as f64 / cycles as f64 * 100.0).round() / 100.0)
        ));
    }
    parts.extend(describe_machine(cost));
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Describes a cost in one line: `98.0 % of a CPU, blocked 1.20 %, waiting for a CPU 0.80 %`.
pub(crate) fn describe_cpu_briefly(cost: &CpuCost) -> String {
    let waiting = run_delay_shares(&cost.threads).map(|(_, waited)| waited);
    let shares = [
        ("blocked", cost.blocked_share),
        ("waiting for a CPU", waiting),
    ];
    let mut text = format!("{} of a CPU", format_share(cost.share));
    for (name, share) in shares {
        if let Some(share) = share.filter(|&share| share >= MIN_SHOWN_SHARE) {
            text.push_str(&format!(", {name} {}", format_share(share)));
        }
    }
    text
}

/// Describes the load of the machine: `machine: 5.33 % softirq, 0.10 % steal`.
fn describe_machine(cost: &CpuCost) -> Option<String> {
    let machine = cost.machine.as_ref()?;
    let softirq = machine.share_of_total(machine.softirq_ns)?;
    let stolen = machine.share_of_total(machine.steal_ns)?;
    Some(format!(
        "machine: {} softirq, {} steal",
        format_share(softirq),
        format_share(stolen)
    ))
}

/// Describes the memory per flow: `client 1.24 KiB in the process, 26.8 KiB in the socket`. `None`
/// for one flow.
pub(crate) fn describe_memory(run: &Record) -> Option<String> {
    let describe_host = |cost: &MemoryCost| {
        let describe_part = |bytes: Option<f64>, location| {
            bytes.map(|bytes| format!("{} in {location}", format_bytes(bytes.round() as u64)))
        };
        let parts: Vec<_> = [
            describe_part(cost.process_bytes_per_stream, "the process"),
            describe_part(cost.socket_bytes_per_stream, "the socket"),
        ]
        .into_iter()
        .flatten()
        .collect();
        format!("{} {}", cost.role.as_str(), parts.join(", "))
    };
    let several = run.summary.memory.iter().any(|cost| cost.streams > 1);
    several.then(|| {
        let hosts: Vec<_> = run.summary.memory.iter().map(describe_host).collect();
        hosts.join("; ")
    })
}

/// Rows of `TCP_INFO` totals of the sending kernels over the full run: name, value, meaning.
pub(crate) fn tcp_rows(run: &Record) -> Vec<(&'static str, String, &'static str)> {
    let samples: Vec<&TcpInterval> = run
        .intervals
        .iter()
        .filter_map(|i| i.tcp.as_ref())
        .collect();
    if samples.is_empty() {
        return Vec::new();
    }
    let count = |read: fn(&TcpInterval) -> Option<u64>| {
        let values: Option<Vec<u64>> = samples.iter().map(|tcp| read(tcp)).collect();
        values.map(|values| format_count(values.iter().sum()))
    };
    let mean = |read: fn(&TcpInterval) -> Option<f64>| {
        let values: Option<Vec<f64>> = samples.iter().map(|tcp| read(tcp)).collect();
        values.map(|values| format_share(values.iter().sum::<f64>() / values.len() as f64))
    };
    let rows = [
        (
            "retransmits",
            count(|tcp| Some(tcp.retransmits)),
            "segments, including the omitted time",
        ),
        (
            "spurious",
            count(|tcp| tcp.spurious_retransmits),
            "retransmits that the receiver had already (DSACK)",
        ),
        (
            "timeouts",
            count(|tcp| tcp.timeouts),
            "expirations of the retransmission timer",
        ),
        (
            "reordering",
            count(|tcp| tcp.reordering_seen),
            "reordering events detected by the sender",
        ),
        (
            "marked",
            count(|tcp| tcp.marked),
            "segments with ECN congestion marks",
        ),
        (
            "busy",
            mean(|tcp| tcp.busy),
            "of the time with data to send",
        ),
        (
            "window-limited",
            mean(|tcp| tcp.receive_window_limited),
            "of the time limited by the receive window",
        ),
        (
            "buffer-limited",
            mean(|tcp| tcp.send_buffer_limited),
            "of the time limited by the send buffer; the kernel misses most of it",
        ),
    ];
    rows.into_iter()
        .filter_map(|(name, value, meaning)| Some((name, value?, meaning)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_per_byte_and_per_packet_have_readable_units() {
        let text = r#"{ "role": "client", "share": 1.0, "voluntary_switches": 0, "involuntary_switches": 0 }"#;
        let mut cost: CpuCost = serde_json::from_str(text).expect("a cost");
        for (byte, packet, expected) in [
            (0.121, None, "0.121 ns per byte"),
            (
                2.027,
                Some(132_772.0),
                "2.027 ns per byte; 133 us per packet",
            ),
            (842.2, Some(999.4), "842 ns per byte; 999 ns per packet"),
            (
                1_518.0,
                Some(97_171.0),
                "1.52 us per byte; 97.2 us per packet",
            ),
        ] {
            cost.ns_per_byte = Some(byte);
            cost.ns_per_packet = packet;
            assert_eq!(describe_time(&cost).as_deref(), Some(expected));
        }
    }
}
