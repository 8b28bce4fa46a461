//! Sets of runs: repeats as medians with intervals, different measurements in one table.

use linerate_metric::expect::{FIGURES, Unit};
use linerate_metric::record::{Doubt, Record};
use linerate_metric::run_set::RunSet;

use super::conclusions::conclusions;
use super::table::table;
use super::{SHOWN, and_more, note, sentence_note};
use crate::phrases::{self, or_unknown};
use crate::style::{Paint, Style, clean, wrap};

/// Renders a set: for repeats the median and interval of every figure, otherwise one row per
/// measurement with an explanation.
#[must_use]
pub fn set(set: &RunSet, style: &Style) -> String {
    let mut blocks = Vec::new();
    if set.interrupted {
        blocks.push(sentence_note(
            "interrupted: these are the results up to the interruption",
            style,
            style.width,
        ));
    }
    if let Some(result) = &set.result.experiment {
        blocks.push(super::experiment::experiment(result, style));
    } else if let Some(capacity) = &set.result.capacity {
        blocks.push(super::capacity::capacity(capacity, style));
        // All runs use the same ports.
        let ways = set.runs.first().map(|run| super::summary::ways(run, style));
        blocks.extend(ways.map(|lines| lines.join("\n")));
    } else if let Some(search) = &set.result.search {
        blocks.push(super::search::search(set, search, style));
    } else if set.result.is_many_alike() {
        // The conclusion below summarises the runs, so they are not listed.
    } else if let (Some(_), Some(run)) = (&set.result.waiting_costs, set.runs.first()) {
        // There are many rounds, so only their number is shown.
        let title = format!(
            "{}: {} alternating runs",
            clean(&phrases::title(&run.plan)),
            set.runs.len()
        );
        blocks.push(style.paint(Paint::Bold, &title));
    } else if let (false, Some(run)) = (set.result.saturation.is_empty(), set.runs.first()) {
        let ports = run
            .plan
            .forward
            .as_ref()
            .map_or_else(String::new, |plan| plan.ports.join(" "));
        let title = format!("saturation of {}: {} runs", clean(&ports), set.runs.len());
        blocks.push(style.paint(Paint::Bold, &title));
    } else if set.result.figures.is_empty() {
        blocks.push(measurements(set, style));
        let sentences: Vec<_> = phrases::headline(&set.runs)
            .iter()
            .flat_map(|sentence| wrap(sentence, style.width))
            .collect();
        if !sentences.is_empty() {
            blocks.push(sentences.join("\n"));
        }
    } else {
        blocks.push(repeats(set, style));
    }
    blocks.extend(conclusions(&set.result, style));
    blocks.extend(calls(set, style));
    blocks.extend(notes(set, style));
    blocks.retain(|block| !block.is_empty());
    blocks.join("\n\n")
}

/// Renders the calls of each run that recorded them. Rounds of a comparison are too many to list;
/// experiments and searches have tables of their own.
fn calls(set: &RunSet, style: &Style) -> Vec<String> {
    let result = &set.result;
    let own = result.experiment.is_some() || result.search.is_some() || result.capacity.is_some();
    if own || result.is_many_alike() || result.waiting_costs.is_some() {
        return Vec::new();
    }
    let runs = phrases::told_apart(&set.runs);
    let table = |run: &Record| {
        let calls = super::calls::calls(run, style)?;
        let title = format!("calls, {}", clean(&phrases::name(run)));
        Some(format!("{}\n{calls}", style.paint(Paint::Bold, &title)))
    };
    runs.iter().filter_map(table).take(SHOWN).collect()
}

fn repeats(set: &RunSet, style: &Style) -> String {
    let figures = &set.result.figures;
    let runs = figures
        .values()
        .map(|estimate| estimate.runs)
        .max()
        .unwrap_or(0);
    let title = set.runs.first().map_or_else(String::new, |run| {
        format!("{}: ", clean(&phrases::title(&run.plan)))
    });
    let mut text = style.paint(Paint::Bold, &format!("{title}median of {runs} runs"));
    text.push('\n');
    // A 95 % interval of the median needs six runs; with fewer, low and high are the extremes.
    let (low, high) = if runs < 6 {
        ("lowest", "highest")
    } else {
        ("95 % from", "to")
    };
    let rows = FIGURES
        .iter()
        .filter_map(|figure| Some((figure, figures.get(figure.name)?)))
        .map(|(figure, estimate)| {
            // The median of an even number of counts may be fractional.
            let format = |value: f64| match figure.unit {
                Unit::Count if value.fract() != 0.0 => phrases::short(value),
                unit => unit.format(value),
            };
            vec![
                figure.name.to_owned(),
                format(estimate.median),
                format(estimate.low),
                format(estimate.high),
            ]
        })
        .collect();
    text.push_str(&table(&["figure", "median", low, high], rows, 1, style));
    for name in ["goodput", "p50"] {
        let Some(figure) = FIGURES
            .iter()
            .find(|f| f.name == name && figures.contains_key(name))
        else {
            continue;
        };
        let mut values: Vec<_> = set
            .runs
            .iter()
            .take(SHOWN)
            .map(|run| {
                or_unknown((figure.read)(&run.summary), |value| {
                    figure.unit.format(value)
                })
            })
            .collect();
        if set.runs.len() > SHOWN {
            values.push(and_more(set.runs.len() - SHOWN, style));
        }
        let prefix = format!("{name} of each run: ");
        text.push_str("\n\n");
        text.push_str(&crate::style::hang(
            &prefix,
            &prefix,
            &values.join(", "),
            style.width,
        ));
    }
    text
}

/// Maximum width of a measurement's name.
const NAME_WIDTH: usize = 34;

fn measurements(set: &RunSet, style: &Style) -> String {
    let runs = phrases::told_apart(&set.runs);
    let rows = phrases::measurements(&runs);
    let name_width = rows
        .iter()
        .map(|row| row.name.chars().count())
        .max()
        .unwrap_or(0)
        .clamp("measurement".len(), NAME_WIDTH);
    let figure_width = rows
        .iter()
        .map(|row| row.figure.len())
        .max()
        .unwrap_or(0)
        .max("result".len());
    let indent = name_width + 2 + figure_width + 2;
    let head = format!(
        "{:<name_width$}  {:>figure_width$}  meaning",
        "measurement", "result"
    );
    let mut lines = vec![style.paint(Paint::Head, &head)];
    for row in rows {
        let meaning = wrap(
            &clean(&row.meaning),
            style.width - indent.min(style.width - 24),
        );
        let name = clean(&row.name);
        let mut name_lines = wrap(&name, name_width).into_iter();
        for (position, meaning) in meaning.iter().enumerate() {
            let name = name_lines.next().unwrap_or_default();
            let figure = if position == 0 {
                row.figure.as_str()
            } else {
                ""
            };
            let figure = format!("{figure:>figure_width$}");
            let line = format!(
                "{name:<name_width$}  {}  {meaning}",
                style.paint(Paint::Bold, &figure)
            );
            lines.push(line.trim_end().to_owned());
        }
        lines.extend(name_lines);
    }
    lines.join("\n")
}

/// Returns whether caveats are counted by kind, because there are many runs: rounds or points of an
/// experiment.
fn counts_doubts(set: &RunSet) -> bool {
    let result = &set.result;
    result.waiting_costs.is_some() || result.is_many_alike() || result.experiment.is_some()
}

/// Renders the notes of a set, then the caveats of its runs: each once with its runs, or for many
/// runs each kind with the number of runs that have it.
fn notes(set: &RunSet, style: &Style) -> Option<String> {
    let mut notes: Vec<_> = set
        .result
        .notes
        .iter()
        .map(|text| sentence_note(&clean(text), style, style.width))
        .collect();
    // The notes of a capacity measurement already contain the caveats of its trials.
    let runs = match set.result.capacity {
        Some(_) => &[][..],
        None => &set.runs[..],
    };
    if counts_doubts(set) {
        notes.extend(phrases::counted(runs).iter().map(|kind| {
            let doubt = Doubt::new(&kind.example.doubt, kind.words());
            note(&doubt, style, style.width)
        }));
    } else {
        for (doubt, names) in phrases::doubts(runs) {
            let mut doubt = doubt.clone();
            if names.len() < set.runs.len() {
                doubt.why = format!("{}: {}", names.join("; "), doubt.why);
            }
            notes.push(note(&doubt, style, style.width));
        }
    }
    (!notes.is_empty()).then(|| notes.join("\n"))
}
