//! Capacity measurement (RFC 2544) as HTML.

use std::collections::BTreeMap;

use linerate_record::capacity::{Capacity, DelayPoint, SizeCapacity};
use linerate_stats::units::{format_nanos, format_per_second, format_share};

use super::figure::{self, ChartData, ChartRow};
use super::with_micro_sign;
use crate::model;
use crate::svg::{
    AxisUnit, BarChart, ChartAxis, ChartSeries, LineChart, SERIES_COLORS, SeriesMark, ValueBar,
    escape_markup,
};

/// Renders rates by frame size and loss goal, delay, loss, bursts, and all trials.
pub(super) fn capacity_section(capacity: &Capacity) -> String {
    let mut out = format!(
        "<section>\n<h2>Capacity of the device</h2>\n<p class=\"muted\">{}</p>\n",
        escape_markup(&with_micro_sign(&crate::capacity::describe_setup(capacity)))
    );
    let grid = |title: &str, grid: Option<model::Grid>| match grid {
        Some(grid) => format!("<h3>{title}</h3>\n{}", figure::render_grid(&grid)),
        None => String::new(),
    };
    out.push_str(&grid(
        "Throughput by loss goal",
        crate::capacity::throughput_table(capacity),
    ));
    for sentence in crate::capacity::result_notes(capacity) {
        out.push_str(&format!(
            "<p class=\"callout\">{}</p>\n",
            escape_markup(sentence)
        ));
    }
    out.push_str(&throughput_bars(capacity));
    out.push_str(&forwarding_chart(capacity));
    out.push_str(&grid(
        "Delay at load",
        crate::capacity::delay_table(capacity),
    ));
    out.push_str(&delay_charts(capacity));
    out.push_str(&grid(
        "Frame loss",
        crate::capacity::frame_loss_table(capacity),
    ));
    out.push_str(&loss_chart(capacity));
    out.push_str(&grid(
        "Back-to-back frames",
        crate::capacity::burst_table(capacity),
    ));
    if let Some(trials) = crate::capacity::trial_table(capacity) {
        out.push_str(&format!(
            "<details><summary>{} trials</summary>{}</details>\n",
            trials.rows.len(),
            figure::render_grid(&trials)
        ));
    }
    out.push_str("</section>\n");
    out
}

/// Names a frame size: `64 B`, `imix`.
fn size_name(size: &SizeCapacity) -> String {
    match size.size.bytes().all(|digit| digit.is_ascii_digit()) {
        true => format!("{} B", size.size),
        false => size.size.clone(),
    }
}

fn throughput_bars(capacity: &Capacity) -> String {
    let goals = capacity.sizes.iter().map(|size| size.throughput.len());
    let several = goals.max().unwrap_or(0) > 1;
    let mut bars = Vec::new();
    for size in &capacity.sizes {
        for (color, found) in size.throughput.iter().enumerate() {
            let name = match several {
                true => format!(
                    "{}, {}",
                    size_name(size),
                    crate::capacity::loss_goal_name(found)
                ),
                false => size_name(size),
            };
            bars.extend(found.fps.map(|value| ValueBar {
                name,
                value,
                interval: None,
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
    figure::render_bars(&BarChart {
        title: "Throughput in frames per second, by frame size".to_owned(),
        axis: ChartAxis::for_bars(
            "frames",
            lowest,
            highest,
            AxisUnit::for_packet_rate(highest),
        ),
        bars,
    })
}

/// Curves by frame size: name and ascending points.
type SizeCurves = Vec<(String, Vec<(f64, f64)>)>;

/// Renders lines over two axes; the closures format x and y for the data table. When there are more
/// lines than colours, sizes from the middle are left out.
fn lines_chart(
    title: &str,
    axes: (ChartAxis, ChartAxis),
    mut lines: SizeCurves,
    headings: &str,
    write: (impl Fn(f64) -> String, impl Fn(f64) -> String),
) -> String {
    lines.retain(|(_, points)| points.len() > 1);
    while lines.len() > SERIES_COLORS {
        lines.remove(lines.len() / 2);
    }
    if lines.is_empty() {
        return String::new();
    }
    for (_, points) in &mut lines {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    let mut rows: BTreeMap<u64, ChartRow> = BTreeMap::new();
    for (column, (_, points)) in lines.iter().enumerate() {
        for &(x, y) in points {
            // The bits of positive floats have the same order as their values.
            let row = rows.entry(x.to_bits()).or_insert_with(|| ChartRow {
                x,
                text: with_micro_sign(&write.0(x)),
                cells: (0..lines.len()).map(|_| None).collect(),
            });
            row.cells[column] = Some((y, with_micro_sign(&write.1(y))));
        }
    }
    let mut columns = vec![headings.to_owned()];
    columns.extend(lines.iter().map(|(name, _)| name.clone()));
    let chart = LineChart {
        title: title.to_owned(),
        is_secondary: false,
        x: axes.0,
        y: axes.1,
        series: lines
            .into_iter()
            .map(|(name, points)| ChartSeries {
                name,
                // Each trial is marked, because lines without loss coincide.
                mark: SeriesMark::Measured(
                    points.into_iter().map(|(x, y)| (x, y, (y, y))).collect(),
                ),
            })
            .collect(),
        shades: Vec::new(),
        references: Vec::new(),
    };
    let data = ChartData {
        headings: columns,
        rows: rows.into_values().collect(),
    };
    figure::render_chart(&chart, &data)
}

fn highest_of(lines: &SizeCurves, coordinate: impl Fn(&(f64, f64)) -> f64) -> f64 {
    let points = lines.iter().flat_map(|(_, points)| points);
    points.map(coordinate).fold(0.0, f64::max)
}

/// Renders received against offered load; the device starts to lose frames where the line leaves
/// the diagonal.
fn forwarding_chart(capacity: &Capacity) -> String {
    let lines: SizeCurves = (capacity.sizes.iter())
        .map(|size| {
            let trials = size.trials.iter();
            let paced = trials.filter(|trial| trial.test != "back-to-back");
            let points = paced.map(|trial| (trial.offered_fps, trial.forwarding_fps));
            (size_name(size), points.collect())
        })
        .collect();
    let (max_offered, max_received) = (highest_of(&lines, |p| p.0), highest_of(&lines, |p| p.1));
    lines_chart(
        "Received by offered load",
        (
            ChartAxis::between(
                "offered",
                0.0,
                max_offered,
                AxisUnit::for_packet_rate(max_offered),
            ),
            ChartAxis::from_zero(
                "received",
                max_received,
                AxisUnit::for_packet_rate(max_received),
            ),
        ),
        lines,
        "offered",
        (format_per_second, format_per_second),
    )
}

/// Renders delay by share of the throughput: percentiles for one size, medians and 99th percentiles
/// for several.
fn delay_charts(capacity: &Capacity) -> String {
    let points_of = |size: &SizeCapacity, read: fn(&DelayPoint) -> Option<u64>| {
        let points = size.latency.iter();
        let points = points.filter_map(|delay| Some((delay.share * 100.0, read(delay)? as f64)));
        points.collect::<Vec<_>>()
    };
    let p50: fn(&DelayPoint) -> Option<u64> = |delay| Some(delay.one_way_delay_ns?.p50);
    let p99: fn(&DelayPoint) -> Option<u64> = |delay| Some(delay.one_way_delay_ns?.p99);
    let max: fn(&DelayPoint) -> Option<u64> = |delay| Some(delay.one_way_delay_ns?.max);
    let draw = |title: &str, lines: SizeCurves| {
        let points = || lines.iter().flat_map(|(_, points)| points);
        let low = points().map(|p| p.1).fold(f64::INFINITY, f64::min);
        let high = points().map(|p| p.1).fold(0.0, f64::max);
        if !low.is_finite() {
            return String::new();
        }
        lines_chart(
            title,
            (
                ChartAxis::from_zero(
                    "offered, % of throughput",
                    highest_of(&lines, |p| p.0),
                    AxisUnit::COUNT,
                ),
                ChartAxis::log_time("one-way delay", low, high),
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
                .map(|(name, read)| (name.to_owned(), points_of(size, read)))
                .into(),
        ),
        sizes => {
            type DelayReader = fn(&DelayPoint) -> Option<u64>;
            let lines = |read: DelayReader| {
                let lines = sizes
                    .iter()
                    .map(|size| (size_name(size), points_of(size, read)));
                lines.collect::<SizeCurves>()
            };
            let median = draw("Median one-way delay by load", lines(p50));
            median + &draw("99th percentile of one-way delay by load", lines(p99))
        }
    }
}

fn loss_chart(capacity: &Capacity) -> String {
    let lines: SizeCurves = (capacity.sizes.iter())
        .map(|size| {
            let points = size.frame_loss.iter();
            let points = points.map(|point| (point.offered_fps, point.loss_fraction));
            (size_name(size), points.collect())
        })
        .collect();
    let (max_offered, lost) = (highest_of(&lines, |p| p.0), highest_of(&lines, |p| p.1));
    if lost == 0.0 {
        return String::new();
    }
    lines_chart(
        "Frames lost by offered load",
        (
            ChartAxis::between(
                "offered",
                0.0,
                max_offered,
                AxisUnit::for_packet_rate(max_offered),
            ),
            ChartAxis::from_zero("lost", lost, AxisUnit::SHARE),
        ),
        lines,
        "offered",
        (format_per_second, format_share),
    )
}
