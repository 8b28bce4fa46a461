//! Text and tables about forwarding, laid out like the output of DPDK's testpmd.

use std::fmt::Write;

use linerate_record::forward::{
    ForwardCore, ForwardFigures, ForwardPlan, SaturationCurve, StreamRoute,
};
use linerate_record::ids::SearchEnd;
use linerate_record::plan::Plan;
use linerate_record::record::{Record, Summary};
use linerate_stats::units::{
    format_bytes, format_count, format_nanos, format_per_second, format_share,
};

use crate::model::{Grid, SummaryFigure, count_of, or_unknown, summary_figure};

mod port;
mod statistics;

use statistics::push_line;

pub(crate) use port::describe_wakeup;
pub use port::{
    PortRates, extended_statistics, format_displayed, port_info, port_statistics, port_summary,
    queue_info,
};
pub use statistics::{forward_statistics, full_statistics};

/// Describes the run: `io forwarding between 2 ports, 1 core`.
pub(crate) fn describe_forwarding(plan: &Plan) -> String {
    let Some(forward) = &plan.forward else {
        return "forwarding".to_owned();
    };
    format!(
        "{} forwarding between {}, {}",
        forward.mode,
        count_of(forward.ports.len() as u64, "port"),
        count_of(forward.cores.into(), "core")
    )
}

/// Describes the plan beyond its title. The duration is the actual one: a run ends early when a
/// capture file is used up.
pub(crate) fn describe_plan(forward: &ForwardPlan, duration_ns: Option<u64>) -> Vec<String> {
    let mut parts = vec![
        forward.ports.join(" "),
        format!("bursts of {}", forward.burst),
        format!("idle: {}", forward.idle),
    ];
    if forward.tx_first > 0 {
        parts.push(format!("tx_first {}", forward.tx_first));
    }
    parts.extend(duration_ns.map(|time| format_nanos(time as f64)));
    parts
}

/// Explains the headline figure of a run.
pub(crate) fn explain_headline(run: &Record) -> String {
    let links = (run.forward.as_ref()).map_or(0, |figures| figures.link_losses());
    let dropped = run.summary.lost.unwrap_or(0).saturating_sub(links);
    let rate = run.summary.packets_per_second.filter(|&rate| rate > 0.0);
    let Some(rate) = rate else {
        return "no frame was forwarded".to_owned();
    };
    let cores = run.forward.iter().flat_map(|forward| &forward.cores);
    let (count, rounds, idle) = cores.fold((0, 0, 0), |(count, rounds, idle), core| {
        (count + 1, rounds + core.rounds, idle + core.idle_rounds)
    });
    // Where threads are mostly idle, time per frame is the arrival interval, not the cost of a
    // frame.
    let cost = match idle * 2 < rounds {
        true => format!(
            ", {} per frame and core",
            format_nanos(f64::from(count) * 1e9 / rate)
        ),
        false => String::new(),
    };
    let mut text = format!(
        "frames forwarded per second{cost}; {} dropped",
        format_count(dropped)
    );
    if links > 0 {
        text.push_str(&format!(
            ", and {} lost by the emulated link as configured",
            format_count(links)
        ));
    }
    text
}

/// Returns the figures of a run.
pub(crate) fn forward_figures(plan: &Plan, summary: &Summary) -> Vec<SummaryFigure> {
    let mode = plan.forward.as_ref().map_or("", |plan| &plan.mode);
    let (lost, meaning) = match mode.split(':').next() {
        // A loss by the emulated link is not a drop of the forwarder.
        Some("link") => (
            "lost",
            "frames dropped by ports or lost by the emulated link",
        ),
        _ => ("dropped", "frames dropped at receive and transmit rings"),
    };
    vec![
        summary_figure(
            "packets/s",
            "frames forwarded per second, all streams",
            summary.packets_per_second.map(format_per_second),
        ),
        summary_figure(
            "received",
            "frames received, all ports",
            summary.packets_received.map(format_count),
        ),
        summary_figure(
            "sent",
            "frames sent, all ports; including those sent before the start",
            summary.packets_sent.map(format_count),
        ),
        summary_figure(lost, meaning, summary.lost.map(format_count)),
    ]
}

/// Renders the map of cores to streams that is printed at the start.
#[must_use]
pub fn stream_map(mode: &str, ports: usize, streams_of_cores: &[StreamRoute]) -> String {
    let cores = streams_of_cores
        .iter()
        .map(|stream| stream.core + 1)
        .max()
        .unwrap_or(0);
    let mut out = format!(
        "{mode} packet forwarding - ports={ports} - cores={cores} - streams={}\n",
        streams_of_cores.len()
    );
    for core in 0..cores {
        let streams_of_core: Vec<_> = streams_of_cores
            .iter()
            .filter(|stream| stream.core == core)
            .collect();
        let cpu = streams_of_core.iter().find_map(|stream| stream.cpu);
        let pinned = cpu.map_or("any CPU".to_owned(), |cpu| format!("CPU {cpu}"));
        let streams = count_of(streams_of_core.len() as u64, "stream");
        push_line(
            &mut out,
            &format!("Core {core} ({pinned}) forwards packets on {streams}:"),
        );
        for stream in streams_of_core {
            let StreamRoute {
                rx_port,
                rx_queue,
                tx_port,
                tx_queue,
                peer,
                ..
            } = stream;
            push_line(
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

/// Renders load and context switches of each core, one line per fact.
#[must_use]
pub fn core_statistics(figures: &ForwardFigures) -> String {
    let mut out = String::new();
    for core in &figures.cores {
        let on_cpu = core
            .cpu
            .map_or_else(String::new, |cpu| format!(" on CPU {cpu}"));
        let idle_share = core.idle_rounds as f64 / core.rounds.max(1) as f64;
        push_line(
            &mut out,
            &format!(
                "core {}{on_cpu}: {} of a core, {}, {} idle\n  context switches: {} voluntary, {} involuntary",
                core.core,
                format_share(core.cpu_share),
                count_of(core.rounds, "round"),
                format_share(idle_share),
                format_count(core.voluntary_switches),
                format_count(core.involuntary_switches),
            ),
        );
        if let Some(delay) = describe_idle_delay(core, figures.duration_ns) {
            push_line(&mut out, &format!("  {delay}"));
        }
    }
    out.truncate(out.trim_end().len());
    out
}

/// Describes the delay of a frame that arrives while the thread is idle.
pub(crate) fn describe_idle_delay(core: &ForwardCore, duration_ns: u64) -> Option<String> {
    let time = |ns: u64| format_nanos(ns as f64);
    Some(match (core.idle_gap_ns, core.wake_ns) {
        (Some(mean), _) => format!(
            "a frame that arrives while it is idle waits up to {} on average, {} at most",
            time(mean),
            or_unknown(core.idle_gap_max_ns, time)
        ),
        (None, Some(wake)) => format!(
            "a frame that arrives while it is idle waits for a wake-up: {} (measured before the start)",
            time(wake)
        ),
        (None, None) if core.idle_rounds > 0 => format!(
            "a frame that arrives while it is idle waits for a poll round: {} on average",
            time(duration_ns / core.rounds.max(1))
        ),
        (None, None) => return None,
    })
}

/// Short form of [`describe_idle_delay`] for a table cell.
pub(crate) fn idle_delay_cell(core: &ForwardCore, duration_ns: u64) -> Option<String> {
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

/// Describes the memory of the frame buffers.
pub(crate) fn describe_memory(figures: &ForwardFigures) -> Option<String> {
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

/// Returns the table of what an emulated link did to frames, one row per direction. `None` where no
/// link was emulated.
pub(crate) fn link_table(figures: &ForwardFigures) -> Option<Grid> {
    /// Names of the counters of the link mode, in column order.
    const COUNTER_NAMES: [&str; 5] = ["lost", "queue-full", "corrupted", "duplicated", "reordered"];
    let emulated = figures.streams.iter().filter(|stream| stream.is_link());
    let rows = emulated.map(|stream| {
        let mut row = vec![
            format!(
                "{}/{} to {}/{}",
                stream.rx_port, stream.rx_queue, stream.tx_port, stream.tx_queue
            ),
            format_count(stream.receive.packets),
        ];
        let count = |name: &str| stream.mode_counters.get(name).copied().unwrap_or(0);
        row.extend(COUNTER_NAMES.map(|name| format_count(count(name))));
        row.push(format_count(stream.transmit.packets));
        row
    });
    let headings = [
        "link (port/queue)",
        "received",
        "lost",
        "queue full",
        "corrupted",
        "duplicated",
        "reordered",
        "sent",
    ];
    Grid::new(&headings, rows.collect(), 1)
}

/// Returns the rows of a saturation sweep: bursts, packets in flight, rate, dropped.
pub(crate) fn saturation_rows(saturation: &SaturationCurve) -> Vec<Vec<String>> {
    let on_plateau = |in_flight| saturation.plateau_in_flight == Some(in_flight);
    let points = saturation.points.iter();
    points
        .map(|point| {
            vec![
                saturation.cores.to_string(),
                point.tx_first.to_string(),
                format_count(point.in_flight),
                format_per_second(point.packets_per_second),
                format_count(point.dropped),
                match on_plateau(point.in_flight) {
                    true => "start of the plateau",
                    false if point.disturbed => "disturbed",
                    false => "",
                }
                .to_owned(),
            ]
        })
        .collect()
}

/// Headings of [`saturation_rows`].
pub(crate) const SATURATION_HEADINGS: [&str; 6] = [
    "cores",
    "tx_first",
    "in flight",
    "packets/s",
    "dropped",
    "note",
];

/// Describes the result: `2 cores: 1.63 G/s packets from 512 in flight on (no further increase)`.
#[must_use]
pub fn describe_saturation(saturation: &SaturationCurve) -> String {
    let reason = match saturation.stopped_by.known() {
        Some(SearchEnd::Plateau) => "no further increase",
        Some(SearchEnd::Full) => "the rings are full",
        Some(SearchEnd::Limit) => "limit of the sweep",
        _ => "interrupted",
    };
    let mut out = count_of(saturation.cores.into(), "core");
    match (saturation.plateau_pps, saturation.plateau_in_flight) {
        (Some(rate), Some(in_flight)) => {
            let _ = write!(
                out,
                ": {} packets from {} in flight on ({reason})",
                format_per_second(rate),
                format_count(in_flight)
            );
        }
        _ if saturation.points.iter().any(|point| point.disturbed) => {
            let disturbed = saturation
                .points
                .iter()
                .filter(|point| point.disturbed)
                .count();
            let _ = write!(
                out,
                ": no plateau is named: other work ran on the cores in {disturbed} of {} steps, \
                 also when they were repeated (core-disturbed)",
                saturation.points.len()
            );
        }
        _ => out.push_str(": nothing was forwarded"),
    }
    out
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use linerate_record::forward::{
        BitRates, ForwardPort, ForwardStream, PortBitRates, QueueFigures, ResidenceTime,
    };
    use linerate_record::plan::{RunKind, TransportProtocol};

    use super::*;

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
        let rates = PortBitRates {
            receive: BitRates {
                last_l2_bps: 5e8,
                smoothed_l2_bps: 4e8,
                peak_l2_bps: 6e8,
            },
            ..PortBitRates::default()
        };
        ForwardFigures {
            duration_ns: 1_000_000_000,
            ports: vec![
                ForwardPort {
                    bit_rates: Some(rates),
                    promiscuous: Some(true),
                    ..port(0, 999_968, 32)
                },
                port(1, 1_000_000, 0),
            ],
            streams: vec![ForwardStream {
                receive: queue(1_000_000, 0),
                transmit: queue(1_000_000, 0),
                tx_port: 1,
                cycles_per_packet: Some(12.345),
                residence: Some(ResidenceTime {
                    polls: 1000,
                    min_ns: 90,
                    mean_ns: 120,
                    max_ns: 4000,
                    jitter_ns: 6,
                }),
                mode_counters: [("lost".to_owned(), 7)].into(),
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
    fn drops_of_a_link_are_counted_by_cause() {
        let mut figures = sample();
        assert!(link_table(&figures).is_none());
        figures.streams[0].mode_counters = [("lost", 7), ("queue-full", 1_200), ("corrupted", 2)]
            .map(|(name, count)| (name.to_owned(), count))
            .into();
        let table = link_table(&figures).unwrap();
        let row = [
            "0/0 to 1/0",
            "1,000,000",
            "7",
            "1,200",
            "2",
            "0",
            "0",
            "1,000,000",
        ];
        assert_eq!(table.rows, [row.map(str::to_owned)]);
    }

    /// Configured loss of the link is reported, but not as a drop of the forwarder.
    #[test]
    fn a_link_loses_and_a_forwarder_drops() {
        let named = |mode: &str| {
            let mut plan = Plan::new(RunKind::Forward, TransportProtocol::Udp, "ring:0");
            plan.forward = Some(Box::new(ForwardPlan {
                mode: mode.to_owned(),
                ..ForwardPlan::default()
            }));
            let figures = super::forward_figures(&plan, &Summary::default());
            figures.last().unwrap().name
        };
        assert_eq!((named("io"), named("link:loss=1%")), ("dropped", "lost"));
        let mut run = Record::new(
            "a".to_owned(),
            Timestamp::UNIX_EPOCH,
            Plan::new(RunKind::Forward, TransportProtocol::Udp, "ring:0"),
        );
        run.summary.packets_per_second = Some(1000.0);
        run.summary.lost = Some(10);
        let mut figures = sample();
        run.forward = Some(Box::new(figures.clone()));
        assert!(
            explain_headline(&run).ends_with("; 10 dropped"),
            "{}",
            explain_headline(&run)
        );
        figures.streams[0].mode_counters = [("lost", 7), ("queue-full", 1)]
            .map(|(name, count)| (name.to_owned(), count))
            .into();
        run.forward = Some(Box::new(figures));
        let text = explain_headline(&run);
        assert!(
            text.contains("; 2 dropped, and 8 lost by the emulated link as configured"),
            "{text}"
        );
    }

    #[test]
    fn statistics_are_laid_out_as_known() {
        let figures = sample();
        let rates = PortRates {
            receive_pps: 1e6,
            receive_bps: 512e6,
            ..PortRates::default()
        };
        let streams = [StreamRoute {
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
                stream_map("io", 2, &streams),
                forward_statistics(&figures),
                port_statistics(&figures.ports[0], Some(rates), ""),
                core_statistics(&figures),
                port_info(&figures.ports[0]),
                port_summary(
                    &[
                        (figures.ports[0].clone(), true),
                        (figures.ports[1].clone(), false),
                    ],
                    2
                ),
                queue_info(
                    &figures.ports[0],
                    "RX",
                    0,
                    &figures.ports[0].receive,
                    "core 0"
                ),
            ]
            .join("\n\n")
        );
    }
}
