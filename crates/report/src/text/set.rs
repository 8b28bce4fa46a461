//! Sets of runs as text: repeats as medians with intervals, different measurements in one table.

use linerate_record::expect::FIGURES;
use linerate_record::record::{Caveat, Record};
use linerate_record::run_set::RunSet;

use super::set_results::render_set_results;
use super::table::render_table;
use super::{MAX_LIST_ENTRIES, more_entries, render_caveat, render_note};
use crate::model::{self, or_unknown};
use crate::phrases;
use crate::style::{PaintRole, TextStyle, strip_control_characters, wrap};

/// Renders a set: for repeats the median and interval of every figure, otherwise one row per
/// measurement with an explanation.
#[must_use]
pub fn render_set(set: &RunSet, style: &TextStyle) -> String {
    let mut blocks = Vec::new();
    if set.interrupted {
        blocks.push(render_note(
            "interrupted: these are the results up to the interruption",
            style,
            style.width,
        ));
    }
    if let Some(result) = &set.result.experiment {
        blocks.push(super::experiment::render_experiment(result, style));
    } else if let Some(capacity) = &set.result.capacity {
        blocks.push(super::capacity::render_capacity(capacity, style));
        // All runs use the same ports.
        let direction_lines = set
            .runs
            .first()
            .map(|run| super::summary::access_mode_lines(run, style));
        blocks.extend(direction_lines.map(|lines| lines.join("\n")));
    } else if let Some(search) = &set.result.search {
        blocks.push(super::rate_search::render_search(set, search, style));
    } else if set.result.has_uniform_runs() {
        // The conclusion below summarises the runs, so they are not listed.
    } else if let (Some(_), Some(run)) = (&set.result.waiting_costs, set.runs.first()) {
        // There are many rounds, so only their number is shown.
        let title = format!(
            "{}: {} alternating runs",
            strip_control_characters(&phrases::plan_title(&run.plan)),
            set.runs.len()
        );
        blocks.push(style.paint(PaintRole::Bold, &title));
    } else if let (false, Some(run)) = (set.result.saturation.is_empty(), set.runs.first()) {
        let ports = run
            .plan
            .forward
            .as_ref()
            .map_or_else(String::new, |plan| plan.ports.join(" "));
        let title = format!(
            "saturation of {}: {} runs",
            strip_control_characters(&ports),
            set.runs.len()
        );
        blocks.push(style.paint(PaintRole::Bold, &title));
    } else if set.result.figures.is_empty() {
        blocks.push(render_measurements(set, style));
        let sentences: Vec<_> = phrases::run_headlines(&set.runs)
            .iter()
            .flat_map(|sentence| wrap(sentence, style.width))
            .collect();
        if !sentences.is_empty() {
            blocks.push(sentences.join("\n"));
        }
    } else {
        blocks.push(render_repeats(set, style));
    }
    blocks.extend(render_set_results(&set.result, style));
    blocks.extend(render_calls_of_runs(set, style));
    blocks.extend(render_notes(set, style));
    blocks.retain(|block| !block.is_empty());
    blocks.join("\n\n")
}

/// Renders the calls of each run that recorded them. Rounds of a comparison are too many to list;
/// experiments and searches have tables of their own.
fn render_calls_of_runs(set: &RunSet, style: &TextStyle) -> Vec<String> {
    let result = &set.result;
    let has_own_tables =
        result.experiment.is_some() || result.search.is_some() || result.capacity.is_some();
    if has_own_tables || result.has_uniform_runs() || result.waiting_costs.is_some() {
        return Vec::new();
    }
    let runs = phrases::with_distinct_labels(&set.runs);
    let table = |run: &Record| {
        let calls = super::calls::render_calls(run, style)?;
        let title = format!(
            "calls, {}",
            strip_control_characters(&phrases::run_name(run))
        );
        Some(format!("{}\n{calls}", style.paint(PaintRole::Bold, &title)))
    };
    runs.iter()
        .filter_map(table)
        .take(MAX_LIST_ENTRIES)
        .collect()
}

fn render_repeats(set: &RunSet, style: &TextStyle) -> String {
    let figures = &set.result.figures;
    let runs = figures
        .values()
        .map(|estimate| estimate.runs)
        .max()
        .unwrap_or(0);
    let title = set.runs.first().map_or_else(String::new, |run| {
        format!(
            "{}: ",
            strip_control_characters(&phrases::plan_title(&run.plan))
        )
    });
    let mut text = style.paint(PaintRole::Bold, &format!("{title}median of {runs} runs"));
    text.push('\n');
    let [low, high] = model::interval_headings(runs);
    let rows = FIGURES
        .iter()
        .filter_map(|figure| Some((figure, figures.get(figure.name)?)))
        .map(|(figure, estimate)| {
            // The median of an even number of counts may be fractional.
            let format = |value: f64| model::format_value(figure.unit, value);
            vec![
                figure.name.to_owned(),
                format(estimate.median),
                format(estimate.low),
                format(estimate.high),
            ]
        })
        .collect();
    text.push_str(&render_table(
        &["figure", "median", low, high],
        rows,
        1,
        style,
    ));
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
            .take(MAX_LIST_ENTRIES)
            .map(|run| {
                or_unknown((figure.read)(&run.summary), |value| {
                    figure.unit.format(value)
                })
            })
            .collect();
        if set.runs.len() > MAX_LIST_ENTRIES {
            values.push(more_entries(set.runs.len() - MAX_LIST_ENTRIES, style));
        }
        let prefix = format!("{name} of each run: ");
        text.push_str("\n\n");
        text.push_str(&crate::style::wrap_with_prefix(
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

fn render_measurements(set: &RunSet, style: &TextStyle) -> String {
    let runs = phrases::with_distinct_labels(&set.runs);
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
    let header = format!(
        "{:<name_width$}  {:>figure_width$}  meaning",
        "measurement", "result"
    );
    let mut lines = vec![style.paint(PaintRole::Heading, &header)];
    for row in rows {
        let meaning = wrap(
            &strip_control_characters(&row.meaning),
            style.width - indent.min(style.width - 24),
        );
        let name = strip_control_characters(&row.name);
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
                style.paint(PaintRole::Bold, &figure)
            );
            lines.push(line.trim_end().to_owned());
        }
        lines.extend(name_lines);
    }
    lines.join("\n")
}

/// Returns whether caveats are counted by kind, because there are many runs: repeats, rounds, trials,
/// or points of an experiment.
fn counts_caveats_by_kind(set: &RunSet) -> bool {
    let result = &set.result;
    let mut names = set.runs.iter().map(phrases::run_name);
    let first = names.next();
    let is_repeated = set.runs.len() > 1 && names.all(|name| Some(name) == first);
    is_repeated
        || result.waiting_costs.is_some()
        || result.search.is_some()
        || result.has_uniform_runs()
        || result.experiment.is_some()
        || !result.saturation.is_empty()
}

/// Renders the notes of a set, then the caveats of its runs: each once with its runs, or for many
/// runs each kind with the number of runs that have it.
fn render_notes(set: &RunSet, style: &TextStyle) -> Option<String> {
    let mut notes: Vec<_> = set
        .result
        .notes
        .iter()
        .map(|text| render_note(&strip_control_characters(text), style, style.width))
        .collect();
    // The notes of a capacity measurement already contain the caveats of its trials.
    let runs = match set.result.capacity {
        Some(_) => &[][..],
        None => &set.runs[..],
    };
    if counts_caveats_by_kind(set) {
        notes.extend(phrases::count_caveats(runs).iter().map(|kind| {
            let caveat = Caveat {
                id: kind.example.id.clone(),
                reason: kind.describe(),
            };
            render_caveat(&caveat, style, style.width)
        }));
    } else {
        for (caveat, names) in phrases::distinct_caveats(runs) {
            let mut caveat = caveat.clone();
            if names.len() < set.runs.len() {
                caveat.reason = format!("{}: {}", names.join("; "), caveat.reason);
            }
            notes.push(render_caveat(&caveat, style, style.width));
        }
    }
    (!notes.is_empty()).then(|| notes.join("\n"))
}
