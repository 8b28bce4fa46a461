//! Sweep over a matrix of settings: best point, cells of the heat map, table of all points.

use linerate_record::comparison::BetterWhen;
use linerate_record::figure;
use linerate_record::sweep::{Sweep, SweepPoint};
use linerate_stats::units::{format_bytes, format_nanos};

use crate::model::{self, Grid};
use crate::style::strip_control_characters;

/// Legend of the table.
pub(crate) fn front_legend(sweep: &Sweep) -> String {
    format!(
        "Rows marked * are on the Pareto front: no other point is as good with less {}. Figure: {} ({} is better); \
         memory: granted socket buffers, both ends. Seed {}.",
        match sweep
            .points
            .iter()
            .any(|point| point.memory_bytes.is_some())
        {
            true => "memory",
            false => "CPU time",
        },
        strip_control_characters(&sweep.figure),
        match sweep.better {
            BetterWhen::Higher => "higher",
            BetterWhen::Lower => "lower",
        },
        sweep.seed
    )
}

/// Returns the point on the front with the least memory among those within 5 % of the best.
pub(crate) fn cheapest_near_best<'a>(
    sweep: &'a Sweep,
    best: &SweepPoint,
) -> Option<&'a SweepPoint> {
    let best_value = best.value?.median;
    let is_near_best = |point: &&SweepPoint| {
        point.pareto
            && point
                .value
                .is_some_and(|value| (value.median / best_value - 1.0).abs() <= 0.05)
            && point.memory_bytes < best.memory_bytes
    };
    sweep.points.iter().filter(is_near_best).min_by(|a, b| {
        let memory = |point: &SweepPoint| point.memory_bytes.unwrap_or(f64::MAX);
        memory(a).total_cmp(&memory(b))
    })
}

/// Summarises a sweep: `Best: 10.5 Gb/s with length=32K.`
pub(crate) fn describe_best(sweep: &Sweep) -> Option<String> {
    let best = sweep.points.get(sweep.best?)?;
    let value = figure::format(&sweep.figure, best.value?.median);
    Some(format!(
        "Best: {value} with {}.",
        describe_setting(sweep, best)
    ))
}

pub(crate) fn describe_setting(sweep: &Sweep, point: &SweepPoint) -> String {
    let parts: Vec<_> = (sweep.axes.iter())
        .filter_map(|axis| Some(format!("{}={}", axis.name, point.setting.get(&axis.name)?)))
        .collect();
    strip_control_characters(&parts.join(" ")).into_owned()
}

pub(crate) fn format_memory(value: f64) -> String {
    format_bytes(value as u64)
}

/// Ratio of the highest to the lowest value above which the colour scale is logarithmic. From 0.4
/// Mb/s to 50 Gb/s a linear scale would distinguish only the best.
const LOGARITHMIC_RATIO: f64 = 30.0;

/// Maps a value to 0 (worst) to 1 (best) among the values of the sweep.
pub(crate) fn rank(sweep: &Sweep, value: f64) -> f64 {
    let values = || {
        sweep
            .points
            .iter()
            .filter_map(|point| point.value)
            .map(|value| value.median)
    };
    let (low, high) = (
        values().fold(f64::MAX, f64::min),
        values().fold(f64::MIN, f64::max),
    );
    if high <= low {
        return 1.0;
    }
    let share = match low > 0.0 && high / low > LOGARITHMIC_RATIO {
        true => (value / low).ln() / (high / low).ln(),
        false => (value - low) / (high - low),
    };
    match sweep.better {
        BetterWhen::Higher => share,
        BetterWhen::Lower => 1.0 - share,
    }
}

/// Returns the best value for each pair of values of the first two axes.
pub(crate) fn best_values(sweep: &Sweep) -> Option<Vec<Vec<Option<f64>>>> {
    let [rows, columns, ..] = sweep.axes.as_slice() else {
        return None;
    };
    let best = |row: &String, column: &String| {
        let matching = sweep.points.iter().filter(|point| {
            point.setting.get(&rows.name) == Some(row)
                && point.setting.get(&columns.name) == Some(column)
        });
        let values = matching
            .filter_map(|point| point.value)
            .map(|value| value.median);
        match sweep.better {
            BetterWhen::Higher => values.reduce(f64::max),
            BetterWhen::Lower => values.reduce(f64::min),
        }
    };
    let cells = rows.values.iter();
    Some(
        cells
            .map(|row| {
                columns
                    .values
                    .iter()
                    .map(|column| best(row, column))
                    .collect()
            })
            .collect(),
    )
}

/// Returns the table of all points, the best first.
pub(crate) fn point_table(sweep: &Sweep) -> Option<Grid> {
    let mut headings: Vec<&str> = sweep.axes.iter().map(|axis| axis.name.as_str()).collect();
    let axes = headings.len();
    let values = sweep.points.iter().filter_map(|point| point.value.as_ref());
    let fewest_runs = values.map(|value| value.runs).min();
    let [low, high] = model::interval_headings(fewest_runs.unwrap_or(0));
    headings.extend([sweep.figure.as_str(), low, high, "memory", "cpu", "front"]);
    let mut order: Vec<&SweepPoint> = sweep.points.iter().collect();
    order.sort_by(|a, b| {
        let rank = |point: &SweepPoint| point.value.map_or(-1.0, |v| rank(sweep, v.median));
        rank(b).total_cmp(&rank(a))
    });
    let value = |value: f64| figure::format(&sweep.figure, value);
    let rows = order.iter().map(|point| {
        let mut row: Vec<String> = (sweep.axes.iter())
            .map(|axis| point.setting.get(&axis.name).map_or("", |v| v).to_owned())
            .map(|value| strip_control_characters(&value).into_owned())
            .collect();
        row.push(model::or_unknown(point.value, |v| value(v.median)));
        row.extend(model::format_bounds(point.value, value));
        row.push(model::or_unknown(point.memory_bytes, format_memory));
        row.push(model::or_unknown(point.cpu_ns, format_nanos));
        row.push(if point.pareto { "*" } else { "" }.to_owned());
        row
    });
    Grid::new(&headings, rows.collect(), axes)
}
