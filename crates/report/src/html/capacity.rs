//! Capacity measurement (RFC 2544) as HTML.

use std::collections::BTreeMap;

use linerate_metric::capacity::{Capacity, DelayAt, SizeCapacity};
use linerate_metric::units::{format_nanos, format_per_second, format_share};

use super::figure::{self, Data, Row};
use super::pretty;
use crate::svg::{Axis, Bar, BarChart, COLORS, Chart, Mark, Series, Unit, escape};
use crate::text::capacity as text;

/// Renders rates by frame size and loss goal, delay, loss, bursts, and all trials.
pub(super) fn section(capacity: &Capacity) -> String {
    let mut out = format!(
        "<section>\n<h2>Capacity of the device</h2>\n<p class=\"muted\">{}</p>\n",
        escape(&pretty(&text::title(capacity)))
    );
    let grid = |title: &str, grid: Option<crate::text::Grid>| match grid {
        Some(grid) => format!("<h3>{title}</h3>\n{}", figure::grid(&grid)),
        None => String::new(),
    };
    out.push_str(&grid("Throughput by loss goal", text::throughput(capacity)));
    for sentence in text::endings(capacity) {
        out.push_str(&format!("<p class=\"callout\">{}</p>\n", escape(sentence)));
    }
    out.push_str(&throughput(capacity));
    out.push_str(&forwarding(capacity));
    out.push_str(&grid("Delay at load", text::latency(capacity)));
    out.push_str(&delays(capacity));
    out.push_str(&grid("Frame loss", text::frame_loss(capacity)));
    out.push_str(&loss(capacity));
    out.push_str(&grid("Back-to-back frames", text::bursts(capacity)));
    if let Some(trials) = text::trials(capacity) {
        out.push_str(&format!(
            "<details><summary>{} trials</summary>{}</details>\n",
            trials.rows.len(),
            figure::grid(&trials)
        ));
    }
    out.push_str("</section>\n");
    out
}

/// Names a frame size: `64 B`, `imix`.
fn name(size: &SizeCapacity) -> String {
    match size.size.bytes().all(|digit| digit.is_ascii_digit()) {
        true => format!("{} B", size.size),
        false => size.size.clone(),
    }
}

fn throughput(capacity: &Capacity) -> String {
    let goals = capacity.sizes.iter().map(|size| size.throughput.len());
    let several = goals.max().unwrap_or(0) > 1;
    let mut bars = Vec::new();
    for size in &capacity.sizes {
        for (color, found) in size.throughput.iter().enumerate() {
            let name = match several {
                true => format!("{}, {}", name(size), text::goal(found)),
                false => name(size),
            };
            bars.extend(found.fps.map(|value| Bar {
                name,
                value,
                reach: None,
                text: format_per_second(value),
                color,
            }));
        }
    }
    let highest = bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
    let lowest = bars.iter().map(|bar| bar.value).fold(highest, f64::min);
    if bars.is_empty() {
        return String::new();
    }
    figure::bars(&BarChart {
        title: "Throughput in frames per second, by frame size".to_owned(),
        axis: Axis::of_bars("frames", lowest, highest, Unit::of_frequency(highest)),
        bars,
    })
}

/// Curves by frame size: name and ascending points.
type Lines = Vec<(String, Vec<(f64, f64)>)>;

/// Renders lines over two axes; the closures format x and y for the data table. When there are more
/// lines than colours, sizes from the middle are left out.
fn lines_chart(
    title: &str,
    axes: (Axis, Axis),
    mut lines: Lines,
    headings: &str,
    write: (impl Fn(f64) -> String, impl Fn(f64) -> String),
) -> String {
    lines.retain(|(_, points)| points.len() > 1);
    while lines.len() > COLORS {
        lines.remove(lines.len() / 2);
    }
    if lines.is_empty() {
        return String::new();
    }
    for (_, points) in &mut lines {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    let mut rows: BTreeMap<u64, Row> = BTreeMap::new();
    for (column, (_, points)) in lines.iter().enumerate() {
        for &(x, y) in points {
            // The bits of positive floats have the same order as their values.
            let row = rows.entry(x.to_bits()).or_insert_with(|| Row {
                x,
                text: pretty(&write.0(x)),
                cells: (0..lines.len()).map(|_| None).collect(),
            });
            row.cells[column] = Some((y, pretty(&write.1(y))));
        }
    }
    let mut columns = vec![headings.to_owned()];
    columns.extend(lines.iter().map(|(name, _)| name.clone()));
    let chart = Chart {
        title: title.to_owned(),
        low: false,
        x: axes.0,
        y: axes.1,
        series: lines
            .into_iter()
            .map(|(name, points)| Series {
                name,
                // Each trial is marked, because lines without loss coincide.
                mark: Mark::Measured(points.into_iter().map(|(x, y)| (x, y, (y, y))).collect()),
            })
            .collect(),
        shades: Vec::new(),
        references: Vec::new(),
    };
    let data = Data {
        headings: columns,
        rows: rows.into_values().collect(),
    };
    figure::chart(&chart, &data)
}

fn highest(lines: &Lines, which: impl Fn(&(f64, f64)) -> f64) -> f64 {
    let points = lines.iter().flat_map(|(_, points)| points);
    points.map(which).fold(0.0, f64::max)
}

/// Renders received against offered load; the device starts to lose frames where the line leaves
/// the diagonal.
fn forwarding(capacity: &Capacity) -> String {
    let lines: Lines = (capacity.sizes.iter())
        .map(|size| {
            let trials = size.trials.iter();
            let paced = trials.filter(|trial| trial.test != "back-to-back");
            let points = paced.map(|trial| (trial.offered_fps, trial.forwarding_fps));
            (name(size), points.collect())
        })
        .collect();
    let (most, arrived) = (highest(&lines, |p| p.0), highest(&lines, |p| p.1));
    lines_chart(
        "Received by offered load",
        (
            Axis::between("offered", 0.0, most, Unit::of_frequency(most)),
            Axis::from_zero("received", arrived, Unit::of_frequency(arrived)),
        ),
        lines,
        "offered",
        (format_per_second, format_per_second),
    )
}

/// Renders delay by share of the throughput: percentiles for one size, medians and 99th percentiles
/// for several.
fn delays(capacity: &Capacity) -> String {
    let of = |size: &SizeCapacity, read: fn(&DelayAt) -> Option<u64>| {
        let points = size.latency.iter();
        let points = points.filter_map(|at| Some((at.share * 100.0, read(at)? as f64)));
        points.collect::<Vec<_>>()
    };
    let p50: fn(&DelayAt) -> Option<u64> = |at| Some(at.one_way_delay_ns?.p50);
    let p99: fn(&DelayAt) -> Option<u64> = |at| Some(at.one_way_delay_ns?.p99);
    let max: fn(&DelayAt) -> Option<u64> = |at| Some(at.one_way_delay_ns?.max);
    let draw = |title: &str, lines: Lines| {
        let points = || lines.iter().flat_map(|(_, points)| points);
        let low = points().map(|p| p.1).fold(f64::INFINITY, f64::min);
        let high = points().map(|p| p.1).fold(0.0, f64::max);
        if !low.is_finite() {
            return String::new();
        }
        lines_chart(
            title,
            (
                Axis::from_zero(
                    "offered, % of throughput",
                    highest(&lines, |p| p.0),
                    Unit::COUNT,
                ),
                Axis::log_time("one-way delay", low, high),
            ),
            lines,
            "of the throughput",
            (
                |share: f64| format_share(share / 100.0),
                |time: f64| format_nanos(time),
            ),
        )
    };
    match &capacity.sizes[..] {
        [size] => draw(
            "One-way delay by load",
            [("p50", p50), ("p99", p99), ("max", max)]
                .map(|(name, read)| (name.to_owned(), of(size, read)))
                .into(),
        ),
        sizes => {
            type Read = fn(&DelayAt) -> Option<u64>;
            let lines = |read: Read| {
                let lines = sizes.iter().map(|size| (name(size), of(size, read)));
                lines.collect::<Lines>()
            };
            let median = draw("Median one-way delay by load", lines(p50));
            median + &draw("99th percentile of one-way delay by load", lines(p99))
        }
    }
}

fn loss(capacity: &Capacity) -> String {
    let lines: Lines = (capacity.sizes.iter())
        .map(|size| {
            let points = size.frame_loss.iter();
            let points = points.map(|at| (at.offered_fps, at.loss_fraction));
            (name(size), points.collect())
        })
        .collect();
    let (most, lost) = (highest(&lines, |p| p.0), highest(&lines, |p| p.1));
    if lost == 0.0 {
        return String::new();
    }
    lines_chart(
        "Frames lost by offered load",
        (
            Axis::between("offered", 0.0, most, Unit::of_frequency(most)),
            Axis::from_zero("lost", lost, Unit::SHARE),
        ),
        lines,
        "offered",
        (format_per_second, format_share),
    )
}
