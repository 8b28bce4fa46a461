//! Text about a port: properties, traffic, and all counters under testpmd's names.

use linerate_record::forward::{BusyPollFacts, ForwardPort, QueueFigures, XdpFacts};

use super::statistics::{horizontal_rule, push_line, title_with_rules};
use crate::model::or_unknown;

/// Rates of a port since the last display.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PortRates {
    pub receive_pps: f64,
    /// Bits of frames received per second, without preamble, gap and FCS.
    pub receive_bps: f64,
    pub transmit_pps: f64,
    /// Bits of frames sent per second, without preamble, gap and FCS.
    pub transmit_bps: f64,
}

fn drops_by_cause(queue: &QueueFigures, name: &str) -> u64 {
    queue.drops.get(name).copied().unwrap_or(0)
}

/// Number of received frames that were unusable.
fn receive_errors(queue: &QueueFigures) -> u64 {
    drops_by_cause(queue, "bad") + drops_by_cause(queue, "too-long")
}

/// Renders the traffic of a port (`show port stats`). The last argument holds the lines of
/// [`format_displayed`], or is empty.
#[must_use]
pub fn port_statistics(port: &ForwardPort, rates: Option<PortRates>, displayed: &str) -> String {
    let mut out = String::new();
    let title = format!("NIC statistics for port {:<2}", port.port);
    push_line(&mut out, &title_with_rules(&title, '#', 24));
    let (receive, transmit) = (&port.receive, &port.transmit);
    push_line(
        &mut out,
        &format!(
            "  RX-packets: {:<10} RX-missed: {:<10} RX-bytes:  {}",
            receive.packets,
            drops_by_cause(receive, "ring-full"),
            receive.bytes
        ),
    );
    push_line(
        &mut out,
        &format!("  RX-errors: {}", receive_errors(receive)),
    );
    push_line(
        &mut out,
        &format!("  RX-nombuf:  {}", drops_by_cause(receive, "no-buffer")),
    );
    push_line(
        &mut out,
        &format!(
            "  TX-packets: {:<10} TX-errors: {:<10} TX-bytes:  {}",
            transmit.packets, transmit.dropped, transmit.bytes
        ),
    );
    if let Some(rates) = rates {
        out.push('\n');
        push_line(&mut out, "  Throughput (since last show)");
        let mut row = |direction: &str, pps: f64, bps: f64| {
            push_line(
                &mut out,
                &format!("  {direction}-pps: {pps:>12.0}          {direction}-bps: {bps:>12.0}"),
            );
        };
        row("Rx", rates.receive_pps, rates.receive_bps);
        row("Tx", rates.transmit_pps, rates.transmit_bps);
    }
    if !displayed.is_empty() {
        out.push('\n');
        push_line(&mut out, displayed);
    }
    push_line(&mut out, &horizontal_rule('#'));
    out.truncate(out.trim_end().len());
    out
}

/// Returns all counters of a port by name: testpmd's names first, then drops by cause. `queues`
/// holds the queue pairs (receive, transmit).
#[must_use]
pub fn extended_statistics(
    port: &ForwardPort,
    queues: &[(QueueFigures, QueueFigures)],
) -> Vec<(String, u64)> {
    let (receive, transmit) = (&port.receive, &port.transmit);
    let mut counters = vec![
        ("rx_good_packets".to_owned(), receive.packets),
        ("tx_good_packets".to_owned(), transmit.packets),
        ("rx_good_bytes".to_owned(), receive.bytes),
        ("tx_good_bytes".to_owned(), transmit.bytes),
        (
            "rx_missed_errors".to_owned(),
            drops_by_cause(receive, "ring-full"),
        ),
        ("rx_errors".to_owned(), receive_errors(receive)),
        ("tx_errors".to_owned(), transmit.dropped),
        (
            "rx_mbuf_allocation_errors".to_owned(),
            drops_by_cause(receive, "no-buffer"),
        ),
    ];
    for (number, (queue, _)) in queues.iter().enumerate() {
        counters.push((format!("rx_q{number}_packets"), queue.packets));
        counters.push((format!("rx_q{number}_bytes"), queue.bytes));
        counters.push((format!("rx_q{number}_errors"), queue.dropped));
    }
    for (number, (_, queue)) in queues.iter().enumerate() {
        counters.push((format!("tx_q{number}_packets"), queue.packets));
        counters.push((format!("tx_q{number}_bytes"), queue.bytes));
    }
    for (direction, queue) in [("rx", receive), ("tx", transmit)] {
        for name in ["ring-full", "no-buffer", "too-long", "bad"] {
            let count = drops_by_cause(queue, name);
            counters.push((
                format!("{direction}_dropped_{}", name.replace('-', "_")),
                count,
            ));
        }
    }
    if let Some(rates) = &port.bit_rates {
        for (direction, rates) in [("in", &rates.receive), ("out", &rates.transmit)] {
            counters.push((format!("mean_bits_{direction}"), rates.last_l2_bps as u64));
            counters.push((
                format!("ewma_bits_{direction}"),
                rates.smoothed_l2_bps as u64,
            ));
            counters.push((format!("peak_bits_{direction}"), rates.peak_l2_bps as u64));
        }
    }
    counters
}

/// Renders selected counters with their growth (`--display-xstats`). `before` holds the counters of
/// the last display and the seconds since then.
#[must_use]
pub fn format_displayed(
    names: &[String],
    now: &[(String, u64)],
    before: Option<(&[(String, u64)], f64)>,
) -> String {
    let value_of = |counters: &[(String, u64)], name: &str| {
        let counter = counters
            .iter()
            .find(|(counter_name, _)| counter_name == name);
        counter.map(|(_, value)| *value)
    };
    let mut out = String::new();
    if names.is_empty() {
        return out;
    }
    push_line(
        &mut out,
        &format!("  {:<25}{:>9}{:>34}", "", "Value", "Rate (since last show)"),
    );
    for name in names {
        let Some(value) = value_of(now, name) else {
            continue;
        };
        let rate = before.map_or(0.0, |(before, seconds)| {
            let previous = value_of(before, name).unwrap_or(0);
            value.saturating_sub(previous) as f64 / seconds.max(1e-9)
        });
        push_line(&mut out, &format!("  {name:<25}{value:>12}{rate:>16.0}"));
    }
    out.truncate(out.trim_end().len());
    out
}

fn enabled_text(on: bool) -> &'static str {
    if on { "enabled" } else { "disabled" }
}

/// State of the link: no carrier, or the peer is missing.
fn link_state(port: &ForwardPort) -> &'static str {
    let is_gone = (port.peer_outages.last()).is_some_and(|absence| absence.until_ns.is_none());
    match (port.carrier, port.peer_seen) {
        (Some(false), _) => "down (no carrier)",
        (_, Some(false)) => "down (the peer has not connected yet)",
        (_, Some(true)) if is_gone => "down (the peer has disconnected)",
        _ => "up",
    }
}

/// Splits a port URL into its kind and the rest.
fn split_url(port: &ForwardPort) -> (&str, &str) {
    port.name.split_once(':').unwrap_or((&port.name, ""))
}

/// Renders the properties of a port (`show port info`).
#[must_use]
pub fn port_info(port: &ForwardPort) -> String {
    let mut out = String::new();
    let title = format!("Infos for port {:<2}", port.port);
    push_line(&mut out, title_with_rules(&title, '*', 21).trim_start());
    let address = port.address.as_deref().unwrap_or("none");
    push_line(&mut out, &format!("MAC address: {address}"));
    push_line(&mut out, &format!("Device name: {}", port.name));
    push_line(&mut out, &format!("Driver name: {}", split_url(port).0));
    push_line(&mut out, &format!("Link status: {}", link_state(port)));
    if let Some(bytes) = port.frame_bytes {
        // The frame length includes the Ethernet header (14 B) and one VLAN tag (4 B), the MTU does
        // not.
        push_line(&mut out, &format!("MTU: {}", bytes.saturating_sub(18)));
    }
    let promiscuous = port
        .promiscuous
        .map_or("enabled (no address filter)", enabled_text);
    push_line(&mut out, &format!("Promiscuous mode: {promiscuous}"));
    if let Some(bytes) = port.frame_bytes {
        push_line(
            &mut out,
            &format!("Maximum configurable length of RX packet: {bytes} (without FCS)"),
        );
    }
    let format_count =
        |descriptors: Option<u32>| or_unknown(descriptors, |count| count.to_string());
    for (direction, descriptors) in [("RX", port.rx_descriptors), ("TX", port.tx_descriptors)] {
        push_line(
            &mut out,
            &format!("Current number of {direction} queues: {}", port.queues),
        );
        push_line(
            &mut out,
            &format!(
                "Number of {direction}Ds per queue: {}",
                format_count(descriptors)
            ),
        );
    }
    push_line(&mut out, &format!("Copies of each frame: {}", port.copies));
    if let Some(xdp) = &port.xdp {
        push_line(&mut out, &format!("Wake-up: {}", describe_wakeup(xdp)));
    }
    for note in &port.notes {
        push_line(&mut out, &format!("Note: {note}"));
    }
    out.truncate(out.trim_end().len());
    out
}

/// Describes the wake-up between an AF_XDP socket and the kernel: `need-wakeup; busy polling, 64
/// frames per call (NAPI id 394)`.
pub(crate) fn describe_wakeup(xdp: &XdpFacts) -> String {
    let wakeup = match xdp.need_wakeup {
        true => "need-wakeup",
        false => "kernel wake-up for every burst",
    };
    let polling = match xdp.busy_poll {
        None => "no busy polling".to_owned(),
        Some(BusyPollFacts { napi_id: 0, .. }) => {
            "busy polling enabled without effect (NAPI id 0)".to_owned()
        }
        Some(BusyPollFacts { budget, napi_id }) => {
            format!("busy polling, {budget} frames per call (NAPI id {napi_id})")
        }
    };
    format!("{wakeup}; {polling}")
}

/// Renders one line per port (`show port summary`). The flag is true for a started port.
#[must_use]
pub fn port_summary(ports: &[(ForwardPort, bool)], available: usize) -> String {
    let width = ports.iter().map(|(port, _)| port.name.chars().count());
    let width = width.max().unwrap_or(0).max(12);
    let mut out = String::new();
    push_line(&mut out, &format!("Number of available ports: {available}"));
    push_line(
        &mut out,
        &format!(
            "{:<4} {:<17} {:<width$} {:<8} {:<7} {:<8} Link",
            "Port", "MAC Address", "Name", "Driver", "Queues", "Status"
        ),
    );
    for (port, is_started) in ports {
        push_line(
            &mut out,
            &format!(
                "{:<4} {:<17} {:<width$} {:<8} {:<7} {:<8} {}",
                port.port,
                port.address.as_deref().unwrap_or("-"),
                port.name,
                split_url(port).0,
                port.queues,
                if *is_started { "started" } else { "stopped" },
                if *is_started { link_state(port) } else { "-" }
            ),
        );
    }
    out.truncate(out.trim_end().len());
    out
}

/// Renders one queue (`show rxq info`, `show txq info`). The direction is `RX` or `TX`, `polled_by`
/// the polling core.
#[must_use]
pub fn queue_info(
    port: &ForwardPort,
    direction: &str,
    queue: u32,
    figures: &QueueFigures,
    polled_by: &str,
) -> String {
    let descriptors = match direction {
        "RX" => port.rx_descriptors,
        _ => port.tx_descriptors,
    };
    let mut out = String::new();
    let title = format!(
        "Infos for port {:<2}, {direction} queue {queue:<2}",
        port.port
    );
    push_line(&mut out, title_with_rules(&title, '*', 21).trim_start());
    let descriptor_count = or_unknown(descriptors, |count| count.to_string());
    push_line(
        &mut out,
        &format!("Number of {direction}Ds: {descriptor_count}"),
    );
    push_line(&mut out, &format!("Polled by: {polled_by}"));
    push_line(
        &mut out,
        &format!("{direction}-packets: {}", figures.packets),
    );
    push_line(&mut out, &format!("{direction}-bytes: {}", figures.bytes));
    push_line(
        &mut out,
        &format!("{direction}-dropped: {}", figures.dropped),
    );
    out.truncate(out.trim_end().len());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_the_names_of_testpmd() {
        let queue = |packets, cause: &str| QueueFigures {
            packets,
            bytes: packets * 64,
            dropped: 3,
            drops: [(cause.to_owned(), 3)].into(),
        };
        for (need_wakeup, busy_poll, text) in [
            (true, None, "need-wakeup; no busy polling"),
            (
                false,
                Some((64, 0)),
                "kernel wake-up for every burst; busy polling enabled without effect (NAPI id 0)",
            ),
            (
                true,
                Some((64, 394)),
                "need-wakeup; busy polling, 64 frames per call (NAPI id 394)",
            ),
        ] {
            let busy_poll = busy_poll.map(|(budget, napi_id)| BusyPollFacts { budget, napi_id });
            let xdp = XdpFacts {
                need_wakeup,
                busy_poll,
                ..XdpFacts::default()
            };
            assert_eq!(describe_wakeup(&xdp), text);
        }
        let port = ForwardPort {
            receive: queue(10, "no-buffer"),
            transmit: queue(20, "ring-full"),
            ..ForwardPort::default()
        };
        let counters = extended_statistics(&port, &[(port.receive.clone(), port.transmit.clone())]);
        for (name, value) in [
            ("rx_good_packets", 10),
            ("tx_good_bytes", 1280),
            ("rx_missed_errors", 0),
            ("rx_mbuf_allocation_errors", 3),
            ("tx_errors", 3),
            ("rx_q0_errors", 3),
            ("tx_q0_packets", 20),
            ("tx_dropped_ring_full", 3),
        ] {
            assert!(
                counters.contains(&(name.to_owned(), value)),
                "{name}: {counters:?}"
            );
        }
        let names: std::collections::BTreeSet<_> = counters.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), counters.len());
        let names = ["rx_good_packets".to_owned(), "tx_q0_bytes".to_owned()];
        let before = [("rx_good_packets".to_owned(), 4)];
        assert_eq!(
            format_displayed(&names, &counters, Some((&before, 2.0))),
            "                               Value            Rate (since last show)\n  \
             rx_good_packets                    10               3\n  \
             tx_q0_bytes                      1280             640"
        );
        assert_eq!(format_displayed(&[], &counters, None), "");
    }
}
