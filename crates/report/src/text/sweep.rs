//! Sweep over a matrix of settings: heat map, table, Pareto front.

use linerate_metric::comparison::Better;
use linerate_metric::figure;
use linerate_metric::sweep::{Sweep, SweepPoint};
use linerate_metric::units::{format_bytes, format_nanos};

use super::comparison::share;
use super::table::{Grid, table};
use crate::phrases;
use crate::style::{Paint, Style, clean, wrap};

/// Blocks of a heat map, from worst to best.
const BLOCKS: [&str; 8] = ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
/// ASCII replacement of [`BLOCKS`].
const DIGITS: [&str; 8] = ["1", "2", "3", "4", "5", "6", "7", "8"];

/// Renders the result of a sweep.
pub(super) fn sweep(found: &Sweep, style: &Style) -> String {
    let name = clean(&found.figure);
    let measured = found
        .points
        .iter()
        .filter(|point| point.value.is_some())
        .count();
    let title = format!(
        "{name} of {}: {measured} of {} points",
        clean(&found.command),
        found.points.len()
    );
    let mut blocks = vec![style.paint(Paint::Bold, &title)];
    blocks.extend(heat(found, style));
    blocks.push(points(found, style));
    let mut sentences = Vec::new();
    if let Some(best) = found.best.and_then(|best| found.points.get(best)) {
        let value = phrases::or_unknown(best.value, |v| figure::format(&found.figure, v.median));
        let mut sentence = format!("Best: {} with {value}.", setting(found, best));
        let at_least = cheap(found, best);
        if let Some(cheap) = at_least {
            let loss = match (cheap.value, best.value) {
                (Some(cheap), Some(best)) => (1.0 - cheap.median / best.median).abs(),
                _ => 0.0,
            };
            sentence.push_str(&format!(
                " {} is within {} of it and takes {} instead of {}.",
                setting(found, cheap),
                share(loss.max(0.001)),
                phrases::or_unknown(cheap.memory_bytes, bytes),
                phrases::or_unknown(best.memory_bytes, bytes)
            ));
        }
        sentences.push(sentence);
    }
    sentences.push(front_words(found));
    blocks.push(wrap(&sentences.join(" "), style.width).join("\n"));
    blocks.join("\n\n")
}

/// Legend of the table.
pub(crate) fn front_words(found: &Sweep) -> String {
    format!(
        "Rows marked * are on the Pareto front: no other point is as good with less {}. Figure: {} ({} is better); \
         memory: granted socket buffers, both ends. Seed {}.",
        match found
            .points
            .iter()
            .any(|point| point.memory_bytes.is_some())
        {
            true => "memory",
            false => "CPU time",
        },
        clean(&found.figure),
        match found.better {
            Better::Higher => "higher",
            Better::Lower => "lower",
        },
        found.seed
    )
}

/// Returns the point on the front with the least memory among those within 5 % of the best.
fn cheap<'a>(found: &'a Sweep, best: &SweepPoint) -> Option<&'a SweepPoint> {
    let top = best.value?.median;
    let near = |point: &&SweepPoint| {
        point.pareto
            && point
                .value
                .is_some_and(|value| (value.median / top - 1.0).abs() <= 0.05)
            && point.memory_bytes < best.memory_bytes
    };
    found.points.iter().filter(near).min_by(|a, b| {
        let memory = |point: &SweepPoint| point.memory_bytes.unwrap_or(f64::MAX);
        memory(a).total_cmp(&memory(b))
    })
}

/// Summarises a sweep: `Best: 10.5 Gb/s with length=32K.`
pub(crate) fn best_words(found: &Sweep) -> Option<String> {
    let best = found.points.get(found.best?)?;
    let value = figure::format(&found.figure, best.value?.median);
    Some(format!("Best: {value} with {}.", setting(found, best)))
}

fn setting(found: &Sweep, point: &SweepPoint) -> String {
    let parts: Vec<_> = (found.axes.iter())
        .filter_map(|axis| Some(format!("{}={}", axis.name, point.setting.get(&axis.name)?)))
        .collect();
    clean(&parts.join(" ")).into_owned()
}

fn bytes(value: f64) -> String {
    format_bytes(value as u64)
}

/// Ratio of the highest to the lowest value above which the colour scale is logarithmic. From 0.4
/// Mb/s to 50 Gb/s a linear scale would distinguish only the best.
const WIDE: f64 = 30.0;

/// Maps a value to 0 (worst) to 1 (best) among the values of the sweep.
pub(crate) fn rank(found: &Sweep, value: f64) -> f64 {
    let values = || {
        found
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
    let share = match low > 0.0 && high / low > WIDE {
        true => (value / low).ln() / (high / low).ln(),
        false => (value - low) / (high - low),
    };
    match found.better {
        Better::Higher => share,
        Better::Lower => 1.0 - share,
    }
}

/// Returns the best value for each pair of values of the first two axes.
pub(crate) fn cells(found: &Sweep) -> Option<Vec<Vec<Option<f64>>>> {
    let [rows, columns, ..] = found.axes.as_slice() else {
        return None;
    };
    let best = |row: &String, column: &String| {
        let here = found.points.iter().filter(|point| {
            point.setting.get(&rows.name) == Some(row)
                && point.setting.get(&columns.name) == Some(column)
        });
        let values = here
            .filter_map(|point| point.value)
            .map(|value| value.median);
        match found.better {
            Better::Higher => values.reduce(f64::max),
            Better::Lower => values.reduce(f64::min),
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

fn heat(found: &Sweep, style: &Style) -> Option<String> {
    let cells = cells(found)?;
    let (rows, columns) = (&found.axes[0], &found.axes[1]);
    let corner = format!("{} \\ {}", clean(&rows.name), clean(&columns.name));
    let mut headings = vec![corner];
    headings.extend(columns.values.iter().map(|value| clean(value).into_owned()));
    let cell = |value: &Option<f64>| match value {
        None => "-".to_owned(),
        Some(value) => {
            let at = (rank(found, *value) * 7.0).round() as usize;
            let block = style.glyph(BLOCKS[at.min(7)], DIGITS[at.min(7)]);
            format!("{} {block}", figure::format(&found.figure, *value))
        }
    };
    let lines = rows
        .values
        .iter()
        .zip(&cells)
        .map(|(value, cells)| {
            let mut line = vec![clean(value).into_owned()];
            line.extend(cells.iter().map(cell));
            line
        })
        .collect();
    let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
    Some(table(&headings, lines, 1, style))
}

/// Returns the table of all points, the best first.
pub(crate) fn grid(found: &Sweep) -> Option<Grid> {
    let mut headings: Vec<&str> = found.axes.iter().map(|axis| axis.name.as_str()).collect();
    let axes = headings.len();
    headings.extend([
        found.figure.as_str(),
        "from",
        "to",
        "memory",
        "cpu",
        "front",
    ]);
    let mut order: Vec<&SweepPoint> = found.points.iter().collect();
    order.sort_by(|a, b| {
        let rank = |point: &SweepPoint| point.value.map_or(-1.0, |v| rank(found, v.median));
        rank(b).total_cmp(&rank(a))
    });
    let value = |value: f64| figure::format(&found.figure, value);
    let rows = order.iter().map(|point| {
        let mut row: Vec<String> = (found.axes.iter())
            .map(|axis| point.setting.get(&axis.name).map_or("", |v| v).to_owned())
            .map(|value| clean(&value).into_owned())
            .collect();
        row.push(phrases::or_unknown(point.value, |v| value(v.median)));
        row.push(phrases::or_unknown(point.value, |v| value(v.low)));
        row.push(phrases::or_unknown(point.value, |v| value(v.high)));
        row.push(phrases::or_unknown(point.memory_bytes, bytes));
        row.push(phrases::or_unknown(point.cpu_ns, format_nanos));
        row.push(if point.pareto { "*" } else { "" }.to_owned());
        row
    });
    Grid::new(&headings, rows.collect(), axes)
}

fn points(found: &Sweep, style: &Style) -> String {
    let mut text = grid(found).map_or_else(String::new, |grid| grid.text(style));
    let mut told = std::collections::BTreeSet::new();
    for point in &found.points {
        let Some(why) = point.failed.as_deref().filter(|why| told.insert(*why)) else {
            continue;
        };
        let said = format!("{}: {}", setting(found, point), clean(why));
        text.push('\n');
        text.push_str(&super::sentence_note(&said, style, style.width));
    }
    text
}
