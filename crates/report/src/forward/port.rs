//! Text about a port: properties, traffic, and all counters under testpmd's names.

use linerate_metric::forward::{BusyPollFacts, ForwardPort, QueueFigures, XdpFacts};

use super::statistics::{line, rule, ruled};
use crate::phrases::or_unknown;

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

fn cause(queue: &QueueFigures, name: &str) -> u64 {
    queue.drops.get(name).copied().unwrap_or(0)
}

/// Number of received frames that were unusable.
fn receive_errors(queue: &QueueFigures) -> u64 {
    cause(queue, "bad") + cause(queue, "too-long")
}

/// Renders the traffic of a port (`show port stats`). The last argument holds the lines of
/// [`displayed`], or is empty.
#[must_use]
pub fn port_statistics(port: &ForwardPort, rates: Option<PortRates>, beside: &str) -> String {
    let mut out = String::new();
    let title = format!("NIC statistics for port {:<2}", port.port);
    line(&mut out, &ruled(&title, '#', 24));
    let (receive, transmit) = (&port.receive, &port.transmit);
    line(
        &mut out,
        &format!(
            "  RX-packets: {:<10} RX-missed: {:<10} RX-bytes:  {}",
            receive.packets,
            cause(receive, "ring-full"),
            receive.bytes
        ),
    );
    line(
        &mut out,
        &format!("  RX-errors: {}", receive_errors(receive)),
    );
    line(
        &mut out,
        &format!("  RX-nombuf:  {}", cause(receive, "no-buffer")),
    );
    line(
        &mut out,
        &format!(
            "  TX-packets: {:<10} TX-errors: {:<10} TX-bytes:  {}",
            transmit.packets, transmit.dropped, transmit.bytes
        ),
    );
    if let Some(rates) = rates {
        out.push('\n');
        line(&mut out, "  Throughput (since last show)");
        let mut row = |way: &str, pps: f64, bps: f64| {
            line(
                &mut out,
                &format!("  {way}-pps: {pps:>12.0}          {way}-bps: {bps:>12.0}"),
            );
        };
        row("Rx", rates.receive_pps, rates.receive_bps);
        row("Tx", rates.transmit_pps, rates.transmit_bps);
    }
    if !beside.is_empty() {
        out.push('\n');
        line(&mut out, beside);
    }
    line(&mut out, &rule('#'));
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
    let mut all = vec![
        ("rx_good_packets".to_owned(), receive.packets),
        ("tx_good_packets".to_owned(), transmit.packets),
        ("rx_good_bytes".to_owned(), receive.bytes),
        ("tx_good_bytes".to_owned(), transmit.bytes),
        ("rx_missed_errors".to_owned(), cause(receive, "ring-full")),
        ("rx_errors".to_owned(), receive_errors(receive)),
        ("tx_errors".to_owned(), transmit.dropped),
        (
            "rx_mbuf_allocation_errors".to_owned(),
            cause(receive, "no-buffer"),
        ),
    ];
    for (at, (queue, _)) in queues.iter().enumerate() {
        all.push((format!("rx_q{at}_packets"), queue.packets));
        all.push((format!("rx_q{at}_bytes"), queue.bytes));
        all.push((format!("rx_q{at}_errors"), queue.dropped));
    }
    for (at, (_, queue)) in queues.iter().enumerate() {
        all.push((format!("tx_q{at}_packets"), queue.packets));
        all.push((format!("tx_q{at}_bytes"), queue.bytes));
    }
    for (way, queue) in [("rx", receive), ("tx", transmit)] {
        for name in ["ring-full", "no-buffer", "too-long", "bad"] {
            let count = cause(queue, name);
            all.push((format!("{way}_dropped_{}", name.replace('-', "_")), count));
        }
    }
    if let Some(rates) = &port.bit_rates {
        for (way, rates) in [("in", &rates.receive), ("out", &rates.transmit)] {
            all.push((format!("mean_bits_{way}"), rates.last_l2_bps as u64));
            all.push((format!("ewma_bits_{way}"), rates.smoothed_l2_bps as u64));
            all.push((format!("peak_bits_{way}"), rates.peak_l2_bps as u64));
        }
    }
    all
}

/// Renders selected counters with their growth (`--display-xstats`). `before` holds the counters of
/// the last display and the seconds since then.
#[must_use]
pub fn displayed(
    names: &[String],
    now: &[(String, u64)],
    before: Option<(&[(String, u64)], f64)>,
) -> String {
    let of = |all: &[(String, u64)], name: &str| {
        let found = all.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| *value)
    };
    let mut out = String::new();
    if names.is_empty() {
        return out;
    }
    line(
        &mut out,
        &format!("  {:<25}{:>9}{:>34}", "", "Value", "Rate (since last show)"),
    );
    for name in names {
        let Some(value) = of(now, name) else {
            continue;
        };
        let rate = before.map_or(0.0, |(before, seconds)| {
            let earlier = of(before, name).unwrap_or(0);
            value.saturating_sub(earlier) as f64 / seconds.max(1e-9)
        });
        line(&mut out, &format!("  {name:<25}{value:>12}{rate:>16.0}"));
    }
    out.truncate(out.trim_end().len());
    out
}

fn switch(on: bool) -> &'static str {
    if on { "enabled" } else { "disabled" }
}

/// State of the link: no carrier, or the peer is missing.
fn link(port: &ForwardPort) -> &'static str {
    let is_gone = (port.absences.last()).is_some_and(|absence| absence.until_ns.is_none());
    match (port.carrier, port.joined) {
        (Some(false), _) => "down (no carrier)",
        (_, Some(false)) => "down (the peer has not connected yet)",
        (_, Some(true)) if is_gone => "down (the peer has disconnected)",
        _ => "up",
    }
}

/// Splits a port URL into its kind and the rest.
fn driver(port: &ForwardPort) -> (&str, &str) {
    port.name.split_once(':').unwrap_or((&port.name, ""))
}

/// Renders the properties of a port (`show port info`).
#[must_use]
pub fn port_info(port: &ForwardPort) -> String {
    let mut out = String::new();
    let title = format!("Infos for port {:<2}", port.port);
    line(&mut out, ruled(&title, '*', 21).trim_start());
    let address = port.address.as_deref().unwrap_or("none");
    line(&mut out, &format!("MAC address: {address}"));
    line(&mut out, &format!("Device name: {}", port.name));
    line(&mut out, &format!("Driver name: {}", driver(port).0));
    line(&mut out, &format!("Link status: {}", link(port)));
    if let Some(bytes) = port.frame_bytes {
        // The frame length includes the Ethernet header (14 B) and one VLAN tag (4 B), the MTU does
        // not.
        line(&mut out, &format!("MTU: {}", bytes.saturating_sub(18)));
    }
    let promiscuous = port
        .promiscuous
        .map_or("enabled (no address filter)", switch);
    line(&mut out, &format!("Promiscuous mode: {promiscuous}"));
    if let Some(bytes) = port.frame_bytes {
        line(
            &mut out,
            &format!("Maximum configurable length of RX packet: {bytes} (without FCS)"),
        );
    }
    let ring = |descriptors: Option<u32>| or_unknown(descriptors, |count| count.to_string());
    for (way, descriptors) in [("RX", port.rx_descriptors), ("TX", port.tx_descriptors)] {
        line(
            &mut out,
            &format!("Current number of {way} queues: {}", port.queues),
        );
        line(
            &mut out,
            &format!("Number of {way}Ds per queue: {}", ring(descriptors)),
        );
    }
    line(&mut out, &format!("Copies of each frame: {}", port.copies));
    if let Some(xdp) = &port.xdp {
        line(&mut out, &format!("Wake-up: {}", waking(xdp)));
    }
    for note in &port.notes {
        line(&mut out, &format!("Note: {note}"));
    }
    out.truncate(out.trim_end().len());
    out
}

/// Describes the wake-up between an AF_XDP socket and the kernel: `need-wakeup; busy polling, 64
/// frames per call (NAPI id 394)`.
pub(crate) fn waking(xdp: &XdpFacts) -> String {
    let waking = match xdp.need_wakeup {
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
    format!("{waking}; {polling}")
}

/// Renders one line per port (`show port summary`). The flag is true for a started port.
#[must_use]
pub fn port_summary(ports: &[(ForwardPort, bool)], available: usize) -> String {
    let width = ports.iter().map(|(port, _)| port.name.chars().count());
    let width = width.max().unwrap_or(0).max(12);
    let mut out = String::new();
    line(&mut out, &format!("Number of available ports: {available}"));
    line(
        &mut out,
        &format!(
            "{:<4} {:<17} {:<width$} {:<8} {:<7} {:<8} Link",
            "Port", "MAC Address", "Name", "Driver", "Queues", "Status"
        ),
    );
    for (port, is_started) in ports {
        line(
            &mut out,
            &format!(
                "{:<4} {:<17} {:<width$} {:<8} {:<7} {:<8} {}",
                port.port,
                port.address.as_deref().unwrap_or("-"),
                port.name,
                driver(port).0,
                port.queues,
                if *is_started { "started" } else { "stopped" },
                if *is_started { link(port) } else { "-" }
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
    way: &str,
    queue: u32,
    moved: &QueueFigures,
    polled_by: &str,
) -> String {
    let descriptors = match way {
        "RX" => port.rx_descriptors,
        _ => port.tx_descriptors,
    };
    let mut out = String::new();
    let title = format!("Infos for port {:<2}, {way} queue {queue:<2}", port.port);
    line(&mut out, ruled(&title, '*', 21).trim_start());
    let ring = or_unknown(descriptors, |count| count.to_string());
    line(&mut out, &format!("Number of {way}Ds: {ring}"));
    line(&mut out, &format!("Polled by: {polled_by}"));
    line(&mut out, &format!("{way}-packets: {}", moved.packets));
    line(&mut out, &format!("{way}-bytes: {}", moved.bytes));
    line(&mut out, &format!("{way}-dropped: {}", moved.dropped));
    out.truncate(out.trim_end().len());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_known_names() {
        let queue = |packets, cause: &str| QueueFigures {
            packets,
            bytes: packets * 64,
            dropped: 3,
            drops: [(cause.to_owned(), 3)].into(),
        };
        for (need_wakeup, busy_poll, words) in [
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
            assert_eq!(waking(&xdp), words);
        }
        let port = ForwardPort {
            receive: queue(10, "no-buffer"),
            transmit: queue(20, "ring-full"),
            ..ForwardPort::default()
        };
        let all = extended_statistics(&port, &[(port.receive.clone(), port.transmit.clone())]);
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
            assert!(all.contains(&(name.to_owned(), value)), "{name}: {all:?}");
        }
        let names: std::collections::BTreeSet<_> = all.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), all.len());
        let names = ["rx_good_packets".to_owned(), "tx_q0_bytes".to_owned()];
        let before = [("rx_good_packets".to_owned(), 4)];
        assert_eq!(
            displayed(&names, &all, Some((&before, 2.0))),
            "                               Value            Rate (since last show)\n  \
             rx_good_packets                    10               3\n  \
             tx_q0_bytes                      1280             640"
        );
        assert_eq!(displayed(&[], &all, None), "");
    }
}
