//! Forwarding in words and tables, laid out as users of DPDK's testpmd know it.

use std::fmt::Write;

use linerate_metric::forward::{
    ForwardCore, ForwardFigures, ForwardPlan, ForwardPort, ForwardStream, QueueFigures, Saturation,
    StreamPlace,
};
use linerate_metric::plan::Plan;
use linerate_metric::record::{Record, Summary};
use linerate_metric::units::{
    format_bytes, format_count, format_nanos, format_per_second, format_share,
};

use crate::figures::{Figure, figure};
use crate::words::or_unknown;

/// Width of a block of statistics.
const WIDTH: usize = 78;

/// `io forwarding, 2 ports, 1 core, 32 packets in flight at the start`.
pub(crate) fn title(plan: &Plan) -> String {
    let Some(forward) = &plan.forward else {
        return "forwarding".to_owned();
    };
    format!(
        "{} forwarding between {}, {}",
        forward.mode,
        counted(forward.ports.len() as u64, "port"),
        counted(forward.cores.into(), "core")
    )
}

/// The plan beyond its title, and how long it lasted: ports that are read to their end are over before the time.
pub(crate) fn details(forward: &ForwardPlan, lasted_ns: Option<u64>) -> Vec<String> {
    let mut words = vec![
        forward.ports.join(" "),
        format!("bursts of {}", forward.burst),
        format!("idle: {}", forward.idle),
    ];
    if forward.tx_first > 0 {
        words.push(format!("tx_first {}", forward.tx_first));
    }
    words.extend(lasted_ns.map(|time| format_nanos(time as f64)));
    words
}

fn counted(count: u64, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {what}{plural}", format_count(count))
}

/// What the main figure of a run means.
pub(crate) fn meaning(run: &Record) -> String {
    let lost = run.summary.lost.unwrap_or(0);
    let rate = run.summary.packets_per_second.filter(|&rate| rate > 0.0);
    let Some(rate) = rate else {
        return "no frame was forwarded".to_owned();
    };
    let cores = run.forward.iter().flat_map(|found| &found.cores);
    let (count, rounds, idle) = cores.fold((0, 0, 0), |(count, rounds, idle), core| {
        (count + 1, rounds + core.rounds, idle + core.idle_rounds)
    });
    // Where threads mostly wait, time over frames is what came and not what a frame costs.
    let cost = match idle * 2 < rounds {
        true => format!(
            ", {} a frame and core",
            format_nanos(f64::from(count) * 1e9 / rate)
        ),
        false => String::new(),
    };
    format!(
        "frames forwarded per second{cost}; {} dropped",
        format_count(lost)
    )
}

/// The figures of a run.
pub(crate) fn figures(summary: &Summary) -> Vec<Figure> {
    vec![
        figure(
            "packets/s",
            "frames forwarded per second, all streams",
            summary.packets_per_second.map(format_per_second),
        ),
        figure(
            "received",
            "frames received, all ports",
            summary.packets_received.map(format_count),
        ),
        figure(
            "sent",
            "frames sent, all ports; those sent before the start included",
            summary.packets_sent.map(format_count),
        ),
        figure(
            "dropped",
            "frames dropped at receive and transmit rings",
            summary.lost.map(format_count),
        ),
    ]
}

/// Who carries what, as it is printed at the start.
#[must_use]
pub fn stream_map(mode: &str, ports: usize, places: &[StreamPlace]) -> String {
    let cores = places.iter().map(|place| place.core + 1).max().unwrap_or(0);
    let mut out = format!(
        "{mode} packet forwarding - ports={ports} - cores={cores} - streams={}\n",
        places.len()
    );
    for core in 0..cores {
        let own: Vec<_> = places.iter().filter(|place| place.core == core).collect();
        let cpu = own.iter().find_map(|place| place.cpu);
        let pinned = cpu.map_or("any processor".to_owned(), |cpu| format!("processor {cpu}"));
        let streams = counted(own.len() as u64, "stream");
        line(
            &mut out,
            &format!("Core {core} ({pinned}) forwards packets on {streams}:"),
        );
        for place in own {
            let StreamPlace {
                rx_port,
                rx_queue,
                tx_port,
                tx_queue,
                peer,
                ..
            } = place;
            line(
                &mut out,
                &format!(
                    "  RX P={rx_port}/Q={rx_queue} -> TX P={tx_port}/Q={tx_queue} peer={peer}"
                ),
            );
        }
    }
    out.truncate(out.trim_end().len());
    out
}

fn line(out: &mut String, text: &str) {
    out.push_str(text.trim_end());
    out.push('\n');
}

/// A title between two runs of one character, over the whole width.
fn ruled(title: &str, rule: char) -> String {
    let room = WIDTH.saturating_sub(title.chars().count() + 4);
    let (left, right) = (room / 2, room - room / 2);
    let repeat = |count| rule.to_string().repeat(count);
    format!("  {} {title} {}", repeat(left), repeat(right))
}

fn rule(rule: char) -> String {
    format!("  {}", rule.to_string().repeat(WIDTH - 2))
}

/// `RX-packets: 1  RX-dropped: 0  RX-total: 1`, and the same for TX.
fn counts(receive: &QueueFigures, transmit: &QueueFigures) -> String {
    let row = |way: &str, queue: &QueueFigures| {
        format!(
            "  {way}-packets: {:<16} {way}-dropped: {:<14} {way}-total: {}",
            queue.packets,
            queue.dropped,
            queue.packets + queue.dropped
        )
    };
    format!("{}\n{}", row("RX", receive), row("TX", transmit))
}

/// Why frames were dropped: `TX-dropped because: ring-full 12`.
fn causes(way: &str, queue: &QueueFigures) -> Option<String> {
    if queue.drops.is_empty() {
        return None;
    }
    let causes = queue.drops.iter();
    let causes: Vec<_> = causes
        .map(|(cause, count)| format!("{cause} {count}"))
        .collect();
    Some(format!("  {way}-dropped because: {}", causes.join(", ")))
}

/// What streams moved, one block each (`show fwd stats all`).
#[must_use]
pub fn stream_statistics(streams: &[ForwardStream]) -> String {
    let mut out = String::new();
    for stream in streams {
        let title = format!(
            "Forward Stats for RX Port={:>2}/Queue={:>2} -> TX Port={:>2}/Queue={:>2}",
            stream.rx_port, stream.rx_queue, stream.tx_port, stream.tx_queue
        );
        line(&mut out, &ruled(&title, '-'));
        line(&mut out, &counts(&stream.receive, &stream.transmit));
        if stream.taken > 0 {
            line(
                &mut out,
                &format!("  taken out by the mode: {}", stream.taken),
            );
        }
        for (name, count) in stream.counts.iter().filter(|(_, count)| **count > 0) {
            line(&mut out, &format!("  {name}: {count}"));
        }
        if let Some(cycles) = stream.cycles_per_packet {
            line(&mut out, &format!("  CPU cycles/packet={cycles:.2}"));
        }
        let polls: u64 = stream.bursts.iter().sum();
        if polls > 0 {
            line(
                &mut out,
                &format!("  RX-bursts: {polls} [{}]", spread(&stream.bursts, polls)),
            );
        }
    }
    line(&mut out, &rule('-'));
    out.truncate(out.trim_end().len());
    out
}

/// The commonest sizes of bursts: `97% of 32 pkts + 3% of 8 pkts`.
fn spread(bursts: &[u64], polls: u64) -> String {
    let mut sizes: Vec<(usize, u64)> = (1..).zip(bursts.iter().copied()).collect();
    sizes.sort_by_key(|&(size, count)| (std::cmp::Reverse(count), size));
    let shown: Vec<_> = sizes
        .iter()
        .take(3)
        .filter(|(_, count)| *count > 0)
        .collect();
    let mut words: Vec<_> = shown
        .iter()
        .map(|(size, count)| format!("{} of {size} pkts", share(*count, polls)))
        .collect();
    let rest = polls - shown.iter().map(|(_, count)| count).sum::<u64>();
    if rest > 0 {
        words.push(format!("{} of others", share(rest, polls)));
    }
    words.join(" + ")
}

fn share(part: u64, of: u64) -> String {
    format_share(part as f64 / of.max(1) as f64).replace(' ', "")
}

/// What a run moved: ports, and all of them together (what `stop` prints).
#[must_use]
pub fn forward_statistics(figures: &ForwardFigures) -> String {
    let mut out = String::new();
    let recorded = |stream: &ForwardStream| {
        !stream.bursts.is_empty()
            || stream.cycles_per_packet.is_some()
            || stream.counts.values().any(|count| *count > 0)
    };
    if figures.streams.len() > figures.ports.len() || figures.streams.iter().any(recorded) {
        line(&mut out, &stream_statistics(&figures.streams));
        out.push('\n');
    }
    let (mut received, mut sent) = (QueueFigures::default(), QueueFigures::default());
    for port in &figures.ports {
        let title = format!("Forward statistics for port {}", port.port);
        line(&mut out, &ruled(&title, '-'));
        line(&mut out, &counts(&port.receive, &port.transmit));
        let why = [causes("RX", &port.receive), causes("TX", &port.transmit)];
        for why in why.into_iter().flatten() {
            line(&mut out, &why);
        }
        line(&mut out, &rule('-'));
        received.add(&port.receive);
        sent.add(&port.transmit);
    }
    out.push('\n');
    line(
        &mut out,
        &ruled("Accumulated forward statistics for all ports", '+'),
    );
    line(&mut out, &counts(&received, &sent));
    line(&mut out, &rule('+'));
    out.truncate(out.trim_end().len());
    out
}

/// Rates of a port since they were shown last.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PortRates {
    /// Frames received per second.
    pub receive_pps: f64,
    /// Bits of frames received per second, without preamble, gap and check sequence.
    pub receive_bps: f64,
    /// Frames sent per second.
    pub transmit_pps: f64,
    /// Bits of frames sent per second.
    pub transmit_bps: f64,
}

/// What a port moved (`show port stats`).
#[must_use]
pub fn port_statistics(port: &ForwardPort, rates: Option<PortRates>) -> String {
    let mut out = String::new();
    let title = format!("NIC statistics for port {}", port.port);
    line(&mut out, &ruled(&title, '#'));
    let cause = |queue: &QueueFigures, name: &str| queue.drops.get(name).copied().unwrap_or(0);
    let (receive, transmit) = (&port.receive, &port.transmit);
    line(
        &mut out,
        &format!(
            "  RX-packets: {:<12} RX-missed: {:<10} RX-bytes:  {}",
            receive.packets,
            cause(receive, "ring-full"),
            receive.bytes
        ),
    );
    let errors = cause(receive, "bad") + cause(receive, "too-long");
    line(&mut out, &format!("  RX-errors: {errors}"));
    line(
        &mut out,
        &format!("  RX-nombuf:  {}", cause(receive, "no-buffer")),
    );
    line(
        &mut out,
        &format!(
            "  TX-packets: {:<12} TX-errors: {:<10} TX-bytes:  {}",
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
    line(&mut out, &rule('#'));
    out.truncate(out.trim_end().len());
    out
}

/// What threads did and cost, a line each.
#[must_use]
pub fn core_statistics(figures: &ForwardFigures) -> String {
    let mut out = String::new();
    for core in &figures.cores {
        let place = core
            .cpu
            .map_or_else(String::new, |cpu| format!(" on processor {cpu}"));
        let idle = core.idle_rounds as f64 / core.rounds.max(1) as f64;
        line(
            &mut out,
            &format!(
                "core {}{place}: {} of a core, {} rounds, {} of them idle\n  slept {}, pushed off {}",
                core.core,
                format_share(core.cpu_share),
                format_count(core.rounds),
                format_share(idle),
                times(core.voluntary_switches),
                times(core.involuntary_switches),
            ),
        );
        if let Some(words) = waiting(core, figures.duration_ns) {
            line(&mut out, &format!("  {words}"));
        }
    }
    out.truncate(out.trim_end().len());
    out
}

/// How long a frame that finds the thread idle waits for it.
pub(crate) fn waiting(core: &ForwardCore, duration_ns: u64) -> Option<String> {
    let time = |ns: u64| format_nanos(ns as f64);
    Some(match (core.idle_gap_ns, core.wake_ns) {
        (Some(mean), _) => format!(
            "a frame that finds it idle waits up to {} on average, {} at most",
            time(mean),
            or_unknown(core.idle_gap_max_ns, time)
        ),
        (None, Some(wake)) => format!(
            "a frame that finds it idle waits for a wake: {} (tried before the start)",
            time(wake)
        ),
        (None, None) if core.idle_rounds > 0 => format!(
            "a frame that finds it idle waits for a round: {} on average",
            time(duration_ns / core.rounds.max(1))
        ),
        (None, None) => return None,
    })
}

/// The same for a table.
pub(crate) fn waiting_briefly(core: &ForwardCore, duration_ns: u64) -> Option<String> {
    let time = |ns: u64| format_nanos(ns as f64);
    Some(match (core.idle_gap_ns, core.wake_ns) {
        (Some(mean), _) => format!("up to {}", time(mean)),
        (None, Some(wake)) => format!("wake {}", time(wake)),
        (None, None) if core.idle_rounds > 0 => {
            format!("round {}", time(duration_ns / core.rounds.max(1)))
        }
        (None, None) => return None,
    })
}

fn times(count: u64) -> String {
    counted(count, "time")
}

/// What a port is (`show port info`).
#[must_use]
pub fn port_info(port: &ForwardPort) -> String {
    let mut out = String::new();
    line(
        &mut out,
        &ruled(&format!("Infos for port {}", port.port), '*'),
    );
    line(&mut out, &format!("  Name: {}", port.name));
    let address = port.address.as_deref().unwrap_or("none of its own");
    line(&mut out, &format!("  MAC address: {address}"));
    if let Some(bytes) = port.frame_bytes {
        // Ethernet's header and one VLAN tag are no part of the MTU.
        line(&mut out, &format!("  MTU: {}", bytes.saturating_sub(18)));
        line(
            &mut out,
            &format!("  Maximum frame: {bytes} bytes (without check sequence)"),
        );
    }
    line(&mut out, &format!("  Queue pairs: {}", port.queues));
    let ring = |descriptors: Option<u32>| or_unknown(descriptors, |count| count.to_string());
    line(
        &mut out,
        &format!(
            "  Descriptors: RX {}, TX {}",
            ring(port.rx_descriptors),
            ring(port.tx_descriptors)
        ),
    );
    if let Some(carrier) = port.carrier {
        let word = if carrier { "up" } else { "down (no carrier)" };
        line(&mut out, &format!("  Link status: {word}"));
    }
    if let Some(joined) = port.joined {
        let is_gone = (port.absences.last()).is_some_and(|absence| absence.until_ns.is_none());
        let word = match joined {
            true if is_gone => "has left",
            true => "has come",
            false => "has not come yet",
        };
        line(&mut out, &format!("  Other end: {word}"));
    }
    line(
        &mut out,
        &format!("  Copies of each frame: {}", port.copies),
    );
    for note in &port.notes {
        line(&mut out, &format!("  Note: {note}"));
    }
    out.truncate(out.trim_end().len());
    out
}

/// What the memory of frames costs.
pub(crate) fn memory(figures: &ForwardFigures) -> Option<String> {
    let memory = figures.memory.as_ref()?;
    let pages = if memory.huge_pages {
        "huge"
    } else {
        "ordinary"
    };
    Some(format!(
        "{} frames of {}: {} in {pages} pages",
        format_count(memory.frames.into()),
        format_bytes(memory.slot_bytes),
        format_bytes(memory.bytes)
    ))
}

/// Rows of the table of a walk: bursts, packets in flight, rate, dropped.
pub(crate) fn saturation_rows(found: &Saturation) -> Vec<Vec<String>> {
    let on_plateau = |in_flight| found.plateau_in_flight == Some(in_flight);
    let points = found.points.iter();
    points
        .map(|point| {
            vec![
                found.cores.to_string(),
                point.tx_first.to_string(),
                format_count(point.in_flight),
                format_per_second(point.packets_per_second),
                format_count(point.dropped),
                match on_plateau(point.in_flight) {
                    true => "the plateau begins",
                    false if point.disturbed => "disturbed",
                    false => "",
                }
                .to_owned(),
            ]
        })
        .collect()
}

/// Headings of [`saturation_rows`].
pub(crate) const SATURATION: [&str; 6] = [
    "cores",
    "tx_first",
    "in flight",
    "packets/s",
    "dropped",
    "note",
];

/// `2 cores: 1.63 G/s from 512 packets in flight on (the rate rises no more)`.
#[must_use]
pub fn saturation_words(found: &Saturation) -> String {
    let why = match found.stopped_by.as_str() {
        "plateau" => "it rises no more",
        "full" => "the rings are full",
        "limit" => "the walk ends here",
        _ => "interrupted",
    };
    let mut out = counted(found.cores.into(), "core");
    match (found.plateau_pps, found.plateau_in_flight) {
        (Some(rate), Some(in_flight)) => {
            let _ = write!(
                out,
                ": {} packets from {} in flight on ({why})",
                format_per_second(rate),
                format_count(in_flight)
            );
        }
        _ if found.points.iter().any(|point| point.disturbed) => {
            let disturbed = found.points.iter().filter(|point| point.disturbed).count();
            let _ = write!(
                out,
                ": no plateau is named, because something else ran on the processors in {disturbed} of {} steps, \
                 and again when they were repeated (core-disturbed)",
                found.points.len()
            );
        }
        _ => out.push_str(": nothing was forwarded"),
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_metric::forward::ForwardCore;

    fn queue(packets: u64, dropped: u64) -> QueueFigures {
        QueueFigures {
            packets,
            bytes: packets * 64,
            dropped,
            drops: [("ring-full".to_owned(), dropped)]
                .into_iter()
                .filter(|(_, count)| *count > 0)
                .collect(),
        }
    }

    fn sample() -> ForwardFigures {
        let port = |port, sent, dropped| ForwardPort {
            port,
            name: format!("ring:{port}"),
            queues: 1,
            copies: "none".to_owned(),
            receive: queue(1_000_000, 0),
            transmit: queue(sent, dropped),
            ..ForwardPort::default()
        };
        ForwardFigures {
            duration_ns: 1_000_000_000,
            ports: vec![port(0, 999_968, 32), port(1, 1_000_000, 0)],
            streams: vec![ForwardStream {
                receive: queue(1_000_000, 0),
                transmit: queue(1_000_000, 0),
                tx_port: 1,
                bursts: [vec![10; 31], vec![90]].concat(),
                cycles_per_packet: Some(12.345),
                counts: [("lost".to_owned(), 7)].into(),
                ..ForwardStream::default()
            }],
            cores: vec![ForwardCore {
                cpu: Some(1),
                cpu_share: 0.998,
                rounds: 40_000,
                idle_rounds: 10_000,
                ..ForwardCore::default()
            }],
            ..ForwardFigures::default()
        }
    }

    #[test]
    fn statistics_are_laid_out_as_known() {
        let figures = sample();
        let rates = PortRates {
            receive_pps: 1e6,
            receive_bps: 512e6,
            ..PortRates::default()
        };
        let places = [StreamPlace {
            rx_port: 0,
            rx_queue: 0,
            tx_port: 1,
            tx_queue: 0,
            peer: "02:00:00:00:00:01".to_owned(),
            core: 0,
            cpu: Some(1),
        }];
        insta::assert_snapshot!(
            [
                stream_map("io", 2, &places),
                forward_statistics(&figures),
                port_statistics(&figures.ports[0], Some(rates)),
                core_statistics(&figures),
                port_info(&figures.ports[0]),
            ]
            .join("\n\n")
        );
    }
}
