//! Forwarding runs, and the sweep of `--saturate`, as HTML.

use std::collections::BTreeMap;

use linerate_record::forward::{QueueFigures, SaturationCurve};
use linerate_record::record::Record;
use linerate_stats::statistics::median;
use linerate_stats::units::{format_bytes, format_count, format_per_second, format_share};

use super::figure::{self, ChartData, ChartRow};
use crate::forward;
use crate::model::{Grid, count_of, or_unknown};
use crate::svg::{AxisUnit, ChartAxis, ChartSeries, LineChart, SeriesMark, escape_markup};

/// Renders ports, emulated links and threads; also the statistics as text in testpmd's layout.
pub(super) fn forward_section(run: &Record) -> String {
    let Some(figures) = &run.forward else {
        return String::new();
    };
    let mut out = super::generate::rates_over_time(run);
    let dropped = |queue: &QueueFigures| {
        let causes = queue.drops.iter();
        let causes: Vec<_> = causes
            .map(|(cause, count)| format!("{cause} {}", format_count(*count)))
            .collect();
        match causes.is_empty() {
            true => format_count(queue.dropped),
            false => causes.join(", "),
        }
    };
    let ports = figures.ports.iter().map(|port| {
        let mut row = vec![format!("{} {}", port.port, port.name)];
        for queue in [&port.receive, &port.transmit] {
            row.push(format_count(queue.packets));
            row.push(format_bytes(queue.bytes));
            row.push(dropped(queue));
        }
        row
    });
    let headings = [
        "port",
        "received",
        "bytes",
        "dropped on receive",
        "sent",
        "bytes",
        "dropped on send",
    ];
    if let Some(grid) = Grid::new(&headings, ports.collect(), 1) {
        out.push_str("<h3>Ports</h3>\n");
        out.push_str(&figure::render_grid(&grid));
    }
    if let Some(grid) = forward::link_table(figures) {
        out.push_str("<h3>Emulated link</h3>\n");
        out.push_str(&figure::render_grid(&grid));
    }
    let cores = figures.cores.iter().map(|core| {
        vec![
            core.core.to_string(),
            or_unknown(core.cpu, |cpu| cpu.to_string()),
            core.streams.to_string(),
            format_share(core.cpu_share),
            format_count(core.rounds),
            format_share(core.idle_rounds as f64 / core.rounds.max(1) as f64),
            format_count(core.voluntary_switches),
            format_count(core.involuntary_switches),
            or_unknown(
                forward::idle_delay_cell(core, figures.duration_ns),
                |words| words,
            ),
        ]
    });
    let headings = [
        "thread",
        "CPU",
        "streams",
        "of a core",
        "rounds",
        "idle",
        "voluntary switches",
        "involuntary switches",
        "delay when idle",
    ];
    if let Some(grid) = Grid::new(&headings, cores.collect(), 1) {
        out.push_str("<h3>Threads</h3>\n");
        out.push_str(&figure::render_grid(&grid));
    }
    out.push_str(&format!(
        "<details><summary>Forward statistics</summary>{}</details>\n",
        figure::render_preformatted(&format!(
            "{}\n\n{}",
            forward::forward_statistics(figures),
            forward::core_statistics(figures)
        ))
    ));
    out
}

/// Renders packets per second by packets in flight, one line per number of cores; empty without a
/// sweep.
pub(super) fn saturation_section(sweeps: &[SaturationCurve]) -> String {
    if sweeps.is_empty() {
        return String::new();
    }
    let mut out = String::from("<section>\n<h2>Saturation</h2>\n");
    for sweep in sweeps {
        out.push_str(&format!(
            "<p>{}</p>\n",
            escape_markup(&forward::describe_saturation(sweep))
        ));
    }
    out.push_str(&saturation_chart(sweeps));
    let rows = sweeps.iter().flat_map(forward::saturation_rows).collect();
    out.extend(
        Grid::new(&forward::SATURATION_HEADINGS, rows, 1).map(|grid| figure::render_grid(&grid)),
    );
    out.push_str("</section>\n");
    out
}

fn saturation_chart(sweeps: &[SaturationCurve]) -> String {
    let mut lines: BTreeMap<u32, Vec<(f64, f64)>> = BTreeMap::new();
    for sweep in sweeps {
        // Steps beyond full rings have the same number in flight, so they become one point.
        let mut rates: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        for point in sweep.points.iter().filter(|point| point.in_flight > 0) {
            let rates_at_step = rates.entry(point.in_flight).or_default();
            rates_at_step.push(point.packets_per_second);
        }
        let points = rates.into_iter();
        let points = points.filter_map(|(step, rates)| Some((step as f64, median(&rates)?)));
        lines.entry(sweep.cores).or_default().extend(points);
    }
    lines.retain(|_, points| points.len() > 1);
    if lines.is_empty() {
        return String::new();
    }
    let all_points = || lines.values().flatten();
    let low = all_points()
        .map(|point| point.0)
        .fold(f64::INFINITY, f64::min);
    let high = all_points().map(|point| point.0).fold(0.0, f64::max);
    let highest = all_points().map(|point| point.1).fold(0.0, f64::max);
    let name = |cores: &u32| count_of((*cores).into(), "core");
    let chart = LineChart {
        title: "Packets per second by packets in flight".to_owned(),
        is_secondary: false,
        x: ChartAxis::log_count("packets in flight", low, high),
        y: ChartAxis::from_zero("packets", highest, AxisUnit::for_packet_rate(highest)),
        series: lines
            .iter()
            .map(|(cores, points)| ChartSeries {
                name: name(cores),
                mark: SeriesMark::Measured(points.iter().map(|&(x, y)| (x, y, (y, y))).collect()),
            })
            .collect(),
        shades: Vec::new(),
        references: Vec::new(),
    };
    let mut steps: Vec<f64> = all_points().map(|point| point.0).collect();
    steps.sort_by(f64::total_cmp);
    steps.dedup();
    let mut headings = vec!["packets in flight".to_owned()];
    headings.extend(lines.keys().map(name));
    let rows = steps.into_iter().map(|step| ChartRow {
        x: step,
        text: format_count(step as u64),
        cells: lines
            .values()
            .map(|points| {
                let point = points.iter().find(|point| point.0 == step)?;
                Some((point.1, format_per_second(point.1)))
            })
            .collect(),
    });
    let data = ChartData {
        headings,
        rows: rows.collect(),
    };
    figure::render_chart(&chart, &data)
}
