//! Points of a sweep: heat map, cost chart, table.

use linerate_metric::figure as figures;
use linerate_metric::record::Record;
use linerate_metric::run_set::RunSet;
use linerate_metric::sweep::{Sweep, SweepPoint};
use linerate_metric::units::{format_bytes, format_nanos};

use super::figure::{self, Data, Row};
use super::{pretty, unit};
use crate::svg::{Axis, Chart, Heat, Mark, Series, Unit, escape};
use crate::text::{front_words, sweep_cells, sweep_grid, sweep_rank};

/// Renders all points: heat map, figure by cost, table.
pub(super) fn section(set: &RunSet) -> String {
    let Some(found) = &set.result.sweep else {
        return String::new();
    };
    let mut out = format!("<section>\n{}", heat(found));
    out.push_str(&front(found));
    if let Some(grid) = sweep_grid(found) {
        out.push_str(&format!(
            "<h3>All points</h3>\n{}<p class=\"muted\">{}</p>\n",
            figure::grid(&grid),
            escape(&front_words(found))
        ));
    }
    out.push_str("</section>\n");
    out
}

/// Returns one run per point on the front, the best point first.
pub(super) fn shown(found: &Sweep, runs: &[Record]) -> Vec<Record> {
    let mut points: Vec<_> = (found.points.iter().enumerate())
        .filter(|(number, point)| point.pareto || Some(*number) == found.best)
        .filter_map(|(_, point)| Some((sweep_rank(found, point.value?.median), point)))
        .collect();
    points.sort_by(|a, b| b.0.total_cmp(&a.0));
    // The run closest to the median represents its point.
    let figure = figures::named(&found.figure);
    let run = |point: &SweepPoint| {
        let middle = point.value?.median;
        let off = |run: &&Record| {
            let value = figure.and_then(|figure| figure.of(run));
            value.map_or(f64::INFINITY, |value| (value - middle).abs())
        };
        let made = runs.iter().filter(|run| point.records.contains(&run.id));
        made.min_by(|one, other| off(one).total_cmp(&off(other)))
            .cloned()
    };
    points.iter().filter_map(|(_, point)| run(point)).collect()
}

/// Renders the figure by memory or CPU time.
fn front(found: &Sweep) -> String {
    let has_memory = (found.points.iter()).any(|point| point.memory_bytes.is_some());
    let cost = |point: &SweepPoint| match has_memory {
        true => point.memory_bytes.map(|bytes| bytes / 1024.0),
        false => point.cpu_ns,
    };
    let mut points: Vec<_> = (found.points.iter())
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
            Axis::between("memory (KiB)", first.0, last.0, Unit::COUNT),
            "memory",
        ),
        true => (Axis::log_count("memory (KiB)", first.0, last.0), "memory"),
        false => (Axis::log_time("CPU time", first.0, last.0), "CPU time"),
    };
    let highest = points
        .iter()
        .map(|(_, value, _)| value.high.max(value.median))
        .fold(0.0, f64::max);
    let unit = figures::named(&found.figure).map_or(Unit::COUNT, |known| unit(known.unit, highest));
    let of = |on_front: bool| {
        points
            .iter()
            .filter(move |(.., point)| point.pareto == on_front)
    };
    let front = of(true).map(|(cost, value, _)| (*cost, value.median, (value.low, value.high)));
    let others: Vec<_> = of(false)
        .map(|(cost, value, _)| (*cost, value.median))
        .collect();
    let mut series = vec![Series {
        name: "front".to_owned(),
        mark: Mark::Measured(front.collect()),
    }];
    let mut headings = vec![cost_name.to_owned(), "front".to_owned()];
    let has_others = !others.is_empty();
    if has_others {
        headings.push("other points".to_owned());
        series.push(Series {
            name: "other points".to_owned(),
            mark: Mark::Points(others),
        });
    }
    let rows = points.iter().map(|(cost, value, point)| {
        let cell = Some((
            value.median,
            pretty(&figures::format(&found.figure, value.median)),
        ));
        let mut cells = match point.pareto {
            true => vec![cell, None],
            false => vec![None, cell],
        };
        cells.truncate(headings.len() - 1);
        Row {
            x: *cost,
            text: match has_memory {
                true => format_bytes((cost * 1024.0) as u64),
                false => pretty(&format_nanos(*cost)),
            },
            cells,
        }
    });
    let rows = rows.collect();
    let chart = Chart {
        title: format!("{} by {cost_name}", found.figure),
        low: false,
        x,
        y: Axis::from_zero(&found.figure, highest, unit),
        series,
        shades: Vec::new(),
        references: Vec::new(),
    };
    figure::chart(&chart, &Data { headings, rows })
}

/// Renders the first two axes as a heat map; empty for one axis.
fn heat(found: &Sweep) -> String {
    let Some(cells) = sweep_cells(found) else {
        return String::new();
    };
    let (rows, columns) = (&found.axes[0], &found.axes[1]);
    let others = match found.axes.len() {
        2 => "",
        _ => ", best over all other axes",
    };
    let heat = Heat {
        title: format!(
            "{} by {} and {}{others}",
            found.figure, rows.name, columns.name
        ),
        row_label: rows.name.clone(),
        column_label: columns.name.clone(),
        rows: rows.values.clone(),
        columns: columns.values.clone(),
        cells: (cells.iter())
            .map(|row| {
                let cell = |value: &Option<f64>| {
                    let text = |value| pretty(&figures::format(&found.figure, value));
                    value.map(|value| (sweep_rank(found, value), text(value)))
                };
                row.iter().map(cell).collect()
            })
            .collect(),
    };
    figure::heat(&heat)
}
