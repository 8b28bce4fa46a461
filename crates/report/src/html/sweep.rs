//! Points of a sweep: heat map, cost chart, table.

use linerate_record::figure as figures;
use linerate_record::record::Record;
use linerate_record::run_set::RunSet;
use linerate_record::sweep::{Sweep, SweepPoint};
use linerate_stats::units::{format_bytes, format_nanos};

use super::figure::{self, ChartData, ChartRow};
use super::{axis_unit, with_micro_sign};
use crate::svg::{AxisUnit, ChartAxis, ChartSeries, HeatMap, LineChart, SeriesMark, escape_markup};
use crate::sweep::{best_values, front_legend, point_table, rank};

/// Renders all points: heat map, figure by cost, table.
pub(super) fn sweep_section(set: &RunSet) -> String {
    let Some(sweep) = &set.result.sweep else {
        return String::new();
    };
    let mut out = format!("<section>\n{}", heat_map(sweep));
    out.push_str(&front_chart(sweep));
    if let Some(grid) = point_table(sweep) {
        out.push_str(&format!(
            "<h3>All points</h3>\n{}<p class=\"muted\">{}</p>\n",
            figure::render_grid(&grid),
            escape_markup(&front_legend(sweep))
        ));
    }
    out.push_str("</section>\n");
    out
}

/// Returns one run per point on the front, the best point first.
pub(super) fn runs_on_front(sweep: &Sweep, runs: &[Record]) -> Vec<Record> {
    let mut points: Vec<_> = (sweep.points.iter().enumerate())
        .filter(|(number, point)| point.pareto || Some(*number) == sweep.best)
        .filter_map(|(_, point)| Some((rank(sweep, point.value?.median), point)))
        .collect();
    points.sort_by(|a, b| b.0.total_cmp(&a.0));
    // The run closest to the median represents its point.
    let figure = figures::find(&sweep.figure);
    let run = |point: &SweepPoint| {
        let center = point.value?.median;
        let distance = |run: &&Record| {
            let value = figure.and_then(|figure| figure.value_in(run));
            value.map_or(f64::INFINITY, |value| (value - center).abs())
        };
        let runs_of_point = runs.iter().filter(|run| point.records.contains(&run.id));
        runs_of_point
            .min_by(|left, right| distance(left).total_cmp(&distance(right)))
            .cloned()
    };
    points.iter().filter_map(|(_, point)| run(point)).collect()
}

/// Renders the figure by memory or CPU time.
fn front_chart(sweep: &Sweep) -> String {
    let has_memory = (sweep.points.iter()).any(|point| point.memory_bytes.is_some());
    let cost = |point: &SweepPoint| match has_memory {
        true => point.memory_bytes.map(|bytes| bytes / 1024.0),
        false => point.cpu_ns,
    };
    let mut points: Vec<_> = (sweep.points.iter())
        .filter_map(|point| {
            let value = point.value?;
            Some((cost(point).filter(|cost| *cost > 0.0)?, value, point))
        })
        .collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return String::new();
    };
    if first.0 == last.0 {
        // All points have the same cost, so there is no trade-off.
        return String::new();
    }
    let (x, cost_name) = match has_memory {
        // Within a factor of two a logarithmic axis would be mostly empty.
        true if last.0 < first.0 * 2.0 => (
            ChartAxis::between("memory (KiB)", first.0, last.0, AxisUnit::COUNT),
            "memory",
        ),
        true => (
            ChartAxis::log_count("memory (KiB)", first.0, last.0),
            "memory",
        ),
        false => (ChartAxis::log_time("CPU time", first.0, last.0), "CPU time"),
    };
    let highest = points
        .iter()
        .map(|(_, value, _)| value.high.max(value.median))
        .fold(0.0, f64::max);
    let unit = figures::find(&sweep.figure).map_or(AxisUnit::COUNT, |named_figure| {
        axis_unit(named_figure.unit, highest)
    });
    let points_on_front = |on_front: bool| {
        points
            .iter()
            .filter(move |(.., point)| point.pareto == on_front)
    };
    let front = points_on_front(true)
        .map(|(cost, value, _)| (*cost, value.median, (value.low, value.high)));
    let dominated: Vec<_> = points_on_front(false)
        .map(|(cost, value, _)| (*cost, value.median))
        .collect();
    let mut series = vec![ChartSeries {
        name: "front".to_owned(),
        mark: SeriesMark::Measured(front.collect()),
    }];
    let mut headings = vec![cost_name.to_owned(), "front".to_owned()];
    let has_dominated = !dominated.is_empty();
    if has_dominated {
        headings.push("other points".to_owned());
        series.push(ChartSeries {
            name: "other points".to_owned(),
            mark: SeriesMark::Points(dominated),
        });
    }
    let rows = points.iter().map(|(cost, value, point)| {
        let cell = Some((
            value.median,
            with_micro_sign(&figures::format(&sweep.figure, value.median)),
        ));
        let mut cells = match point.pareto {
            true => vec![cell, None],
            false => vec![None, cell],
        };
        cells.truncate(headings.len() - 1);
        ChartRow {
            x: *cost,
            text: match has_memory {
                true => format_bytes((cost * 1024.0) as u64),
                false => with_micro_sign(&format_nanos(*cost)),
            },
            cells,
        }
    });
    let rows = rows.collect();
    let chart = LineChart {
        title: format!("{} by {cost_name}", sweep.figure),
        is_secondary: false,
        x,
        y: ChartAxis::from_zero(&sweep.figure, highest, unit),
        series,
        shades: Vec::new(),
        references: Vec::new(),
    };
    figure::render_chart(&chart, &ChartData { headings, rows })
}

/// Renders the first two axes as a heat map; empty for one axis.
fn heat_map(sweep: &Sweep) -> String {
    let Some(cells) = best_values(sweep) else {
        return String::new();
    };
    let (rows, columns) = (&sweep.axes[0], &sweep.axes[1]);
    let suffix = match sweep.axes.len() {
        2 => "",
        _ => ", best over all other axes",
    };
    let heat = HeatMap {
        title: format!(
            "{} by {} and {}{suffix}",
            sweep.figure, rows.name, columns.name
        ),
        row_label: rows.name.clone(),
        column_label: columns.name.clone(),
        rows: rows.values.clone(),
        columns: columns.values.clone(),
        cells: (cells.iter())
            .map(|row| {
                let cell = |value: &Option<f64>| {
                    let text = |value| with_micro_sign(&figures::format(&sweep.figure, value));
                    value.map(|value| (rank(sweep, value), text(value)))
                };
                row.iter().map(cell).collect()
            })
            .collect(),
    };
    figure::render_heat_map(&heat)
}
