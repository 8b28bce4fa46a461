//! Traffic of streams and ports, line for line in the layout of testpmd.

use linerate_record::forward::{
    BitRates, ForwardFigures, ForwardPort, ForwardStream, QueueFigures, ResidenceTime,
};
use linerate_stats::units::{format_bit_rate, format_count, format_nanos};

pub(super) fn push_line(out: &mut String, text: &str) {
    out.push_str(text.trim_end());
    out.push('\n');
}

/// Formats a title between two rules of a repeated character.
pub(super) fn title_with_rules(title: &str, rule: char, width: usize) -> String {
    let rule = rule.to_string().repeat(width);
    format!("  {rule} {title} {rule}")
}

/// Formats a rule that is as wide as the widest [`title_with_rules`] title.
pub(super) fn horizontal_rule(rule: char) -> String {
    format!("  {}", rule.to_string().repeat(76))
}

/// Formats the counters of both queues: `RX-packets: 1 RX-dropped: 0 RX-total: 1`, then the same
/// for TX.
fn format_counts(receive: &QueueFigures, transmit: &QueueFigures) -> String {
    let row = |direction: &str, queue: &QueueFigures| {
        format!(
            "  {direction}-packets: {:<14} {direction}-dropped: {:<14}{direction}-total: {}",
            queue.packets,
            queue.dropped,
            queue.packets + queue.dropped
        )
    };
    format!("{}\n{}", row("RX", receive), row("TX", transmit))
}

/// Formats the drops by cause: `TX-dropped because: ring-full 12`.
fn format_drop_causes(direction: &str, queue: &QueueFigures) -> Option<String> {
    if queue.drops.is_empty() {
        return None;
    }
    let causes = queue.drops.iter();
    let causes: Vec<_> = causes
        .map(|(cause, count)| format!("{cause} {count}"))
        .collect();
    Some(format!(
        "  {direction}-dropped because: {}",
        causes.join(", ")
    ))
}

/// Renders the traffic of streams, one block each.
fn format_streams(streams: &[ForwardStream]) -> String {
    let mut out = String::new();
    for stream in streams {
        let title = format!(
            "Forward Stats for RX Port={:>2}/Queue={:>2} -> TX Port={:>2}/Queue={:>2}",
            stream.rx_port, stream.rx_queue, stream.tx_port, stream.tx_queue
        );
        push_line(&mut out, &title_with_rules(&title, '-', 7));
        push_line(
            &mut out,
            &format!(
                "  RX-packets: {:<14} TX-packets: {:<14} TX-dropped: {:<14}",
                stream.receive.packets, stream.transmit.packets, stream.transmit.dropped
            ),
        );
        if stream.consumed > 0 {
            push_line(
                &mut out,
                &format!("  consumed by the mode: {}", stream.consumed),
            );
        }
        for (name, count) in stream.mode_counters.iter().filter(|(_, count)| **count > 0) {
            push_line(&mut out, &format!("  {name}: {count}"));
        }
        if let Some(cycles) = stream.cycles_per_packet {
            push_line(&mut out, &format!("  CPU cycles/packet={cycles:.2}"));
        }
        if let Some(times) = &stream.residence {
            push_line(&mut out, &format_residence(times));
        }
        out.push('\n');
    }
    out.truncate(out.trim_end().len());
    out
}

/// Formats the time frames spend in the forwarder: `Latency, poll to transmit queue: min 90 ns, avg
/// 120 ns, …`.
fn format_residence(times: &ResidenceTime) -> String {
    let time = |ns: u64| format_nanos(ns as f64);
    format!(
        "  Latency, poll to transmit queue: min {}, avg {}, max {}, jitter {} ({} polls)",
        time(times.min_ns),
        time(times.mean_ns),
        time(times.max_ns),
        time(times.jitter_ns),
        format_count(times.polls)
    )
}

fn format_bit_rates(direction: &str, rates: &BitRates) -> String {
    format!(
        "  Bit rate {direction}: last second {}, smoothed {}, peak {}",
        format_bit_rate(rates.last_l2_bps),
        format_bit_rate(rates.smoothed_l2_bps),
        format_bit_rate(rates.peak_l2_bps)
    )
}

/// Renders the traffic of ports, one block each, and the sum of all ports.
fn format_ports(ports: &[ForwardPort]) -> String {
    let mut out = String::new();
    let (mut received, mut sent) = (QueueFigures::default(), QueueFigures::default());
    for port in ports {
        let title = format!("Forward statistics for port {:<2}", port.port);
        push_line(&mut out, &title_with_rules(&title, '-', 22));
        push_line(&mut out, &format_counts(&port.receive, &port.transmit));
        let why = [
            format_drop_causes("RX", &port.receive),
            format_drop_causes("TX", &port.transmit),
        ];
        for why in why.into_iter().flatten() {
            push_line(&mut out, &why);
        }
        if let Some(rates) = &port.bit_rates {
            push_line(&mut out, &format_bit_rates("in ", &rates.receive));
            push_line(&mut out, &format_bit_rates("out", &rates.transmit));
        }
        push_line(&mut out, &horizontal_rule('-'));
        out.push('\n');
        received.add(&port.receive);
        sent.add(&port.transmit);
    }
    let ends = "+".repeat(15);
    push_line(
        &mut out,
        &format!("  {ends} Accumulated forward statistics for all ports{ends}"),
    );
    push_line(&mut out, &format_counts(&received, &sent));
    push_line(&mut out, &horizontal_rule('+'));
    out.truncate(out.trim_end().len());
    out
}

/// Renders the traffic of a run as `stop` prints it: ports and their sum, preceded by the streams
/// if these hold additional information.
#[must_use]
pub fn forward_statistics(figures: &ForwardFigures) -> String {
    let recorded = |stream: &ForwardStream| {
        stream.cycles_per_packet.is_some()
            || stream.residence.is_some()
            || stream.mode_counters.values().any(|count| *count > 0)
    };
    match figures.streams.len() > figures.ports.len() || figures.streams.iter().any(recorded) {
        true => full_statistics(figures),
        false => format_ports(&figures.ports),
    }
}

/// Renders streams and ports (`show fwd stats all`).
#[must_use]
pub fn full_statistics(figures: &ForwardFigures) -> String {
    match figures.streams.is_empty() {
        true => format_ports(&figures.ports),
        false => format!(
            "{}\n\n{}",
            format_streams(&figures.streams),
            format_ports(&figures.ports)
        ),
    }
}
