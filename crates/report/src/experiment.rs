//! Experiment results as tables of text, shared by text, HTML and Markdown.

use linerate_metric::expect::Unit;
use linerate_metric::experiment::{
    ExperimentResult, Point, Setting, Shape, ShapeState, TableOf, number,
};
use linerate_metric::statistics::{Estimate, slope};

use crate::markdown;
use crate::phrases::{UNKNOWN, times};

/// A table of text cells.
pub(crate) struct Grid {
    pub(crate) title: String,
    pub(crate) headings: Vec<String>,
    /// Number of leading columns that name the row.
    pub(crate) left: usize,
    pub(crate) rows: Vec<Vec<String>>,
}

/// Returns all combinations of the values of some knobs; the first knob varies slowest.
fn combinations(result: &ExperimentResult, knobs: &[String]) -> Vec<Setting> {
    let mut settings = vec![Setting::new()];
    for name in knobs {
        let knob = result.knobs.iter().find(|knob| knob.name == *name);
        let values = knob.map_or(&[][..], |knob| &knob.values);
        settings = settings
            .iter()
            .flat_map(|setting| {
                values.iter().map(|value| {
                    let mut setting = setting.clone();
                    setting.insert(name.clone(), value.clone());
                    setting
                })
            })
            .collect();
    }
    settings
}

/// Describes a setting: `hops=4 size=32K`, in the order of the knobs.
pub(crate) fn setting_words(result: &ExperimentResult, setting: &Setting) -> String {
    let named = result.knobs.iter().filter_map(|knob| {
        let value = setting.get(&knob.name)?;
        Some(format!("{}={value}", knob.name))
    });
    named.collect::<Vec<_>>().join(" ")
}

fn point<'a>(result: &'a ExperimentResult, row: &Setting, column: &Setting) -> Option<&'a Point> {
    let mut setting = row.clone();
    setting.extend(column.clone());
    result.points.iter().find(|point| point.setting == setting)
}

fn unit(result: &ExperimentResult, figure: &str) -> Unit {
    result
        .figure(figure)
        .map_or(Unit::Count, |figure| figure.unit)
}

/// Builds one table of the experiment.
pub(crate) fn grid(result: &ExperimentResult, table: &TableOf) -> Grid {
    let mut sides = combinations(result, &table.rows);
    for side in &mut sides {
        side.extend(table.at.clone());
    }
    let tops = combinations(result, &table.columns);
    let several = table.figures.len() > 1;
    let mut columns: Vec<(&Setting, &String)> = tops
        .iter()
        .flat_map(|top| table.figures.iter().map(move |figure| (top, figure)))
        .collect();
    let mut headings = table.rows.clone();
    headings.extend(columns.iter().map(|(top, figure)| {
        let mut words: Vec<String> = top_words(table, top);
        if several || words.is_empty() {
            words.push((*figure).replace('_', " "));
        }
        words.join(" ")
    }));
    let mut rows: Vec<Vec<String>> = Vec::new();
    for side in &sides {
        if tops.iter().all(|top| point(result, side, top).is_none()) {
            continue;
        }
        let mut row: Vec<String> = table.rows.iter().map(|knob| side[knob].clone()).collect();
        for (top, figure) in &columns {
            row.push(cell(result, table, side, top, figure));
        }
        rows.push(row);
    }
    let mut column = table.rows.len();
    while column < headings.len() && !rows.is_empty() {
        let (top, figure) = columns[column - table.rows.len()];
        match !says_something(result, &sides, top, figure) && headings.len() > table.rows.len() + 1
        {
            true => {
                headings.remove(column);
                columns.remove(column - table.rows.len());
                for row in &mut rows {
                    row.remove(column);
                }
            }
            false => column += 1,
        }
    }
    if table.steps {
        let mut row = vec!["added per step".to_owned()];
        for (top, figure) in &columns {
            let unit = unit(result, figure);
            let step = step(result, &sides, top, figure, &table.rows[0]);
            row.push(step.map_or_else(|| UNKNOWN.to_owned(), |step| signed(unit, step)));
        }
        rows.push(row);
    }
    Grid {
        title: table.title.clone(),
        headings,
        left: table.rows.len(),
        rows,
    }
}

/// Returns whether a column has content: a figure, or "not tested". When points were measured and
/// none has the figure, this kind of point has no such figure; skipped points would not have it
/// either.
fn says_something(
    result: &ExperimentResult,
    sides: &[Setting],
    top: &Setting,
    figure: &str,
) -> bool {
    let points = || sides.iter().filter_map(|side| point(result, side, top));
    let known = points().any(|point| point.figures.contains_key(figure));
    let measured = points().any(|point| point.skipped.is_none());
    known || (!measured && points().next().is_some())
}

/// Returns the knob values that head a column. Numbers are shown with the knob's name, other values
/// without.
fn top_words(table: &TableOf, top: &Setting) -> Vec<String> {
    table
        .columns
        .iter()
        .map(|knob| {
            let value = &top[knob];
            let is_number = number(value).is_some();
            match is_number {
                true => format!("{knob}={value}"),
                false => value.clone(),
            }
        })
        .collect()
}

fn cell(
    result: &ExperimentResult,
    table: &TableOf,
    side: &Setting,
    top: &Setting,
    figure: &str,
) -> String {
    let Some(point) = point(result, side, top) else {
        return UNKNOWN.to_owned();
    };
    let Some(estimate) = point.figures.get(figure) else {
        return match &point.skipped {
            Some(_) => "not tested".to_owned(),
            None => UNKNOWN.to_owned(),
        };
    };
    let unit = unit(result, figure);
    let mut text = match estimate.runs {
        1 => unit.format(estimate.median),
        _ => markdown::figure(unit, estimate),
    };
    if let (Some(against), [knob]) = (&table.against, &table.rows[..])
        && side[knob] != *against
    {
        let mut base = side.clone();
        base.insert(knob.clone(), against.clone());
        let base = self::point(result, &base, top);
        if let Some(base) = base.and_then(|base| base.figures.get(figure)) {
            let way = match result.figure(figure).is_some_and(|figure| figure.exact) {
                true => direction(base.median, estimate.median),
                false => moved(base, estimate),
            };
            text.push_str(&format!(", {way}"));
        }
    }
    text
}

/// Smallest ratio that one run per side shows as a direction; two equal runs can differ by less.
const CLEAR: f64 = 1.5;

/// Describes the change of a figure; "no clear change" if the confidence intervals overlap.
fn moved(base: &Estimate, estimate: &Estimate) -> String {
    let overlap = estimate.low <= base.high && base.low <= estimate.high;
    let close = |ratio: f64| (1.0 / CLEAR..=CLEAR).contains(&ratio);
    let single = base.runs < 2 || estimate.runs < 2;
    let unclear = match single {
        true => base.median != estimate.median && close(estimate.median / base.median),
        false => overlap && base.median != estimate.median,
    };
    match unclear {
        true => "no clear change".to_owned(),
        false => direction(base.median, estimate.median),
    }
}

/// Describes the change of a value: `up 3.1x`, `down 20 %`, `same`.
fn direction(base: f64, value: f64) -> String {
    match (base, value) {
        (base, value) if base == value => "same".to_owned(),
        (0.0, _) => "up".to_owned(),
        (_, 0.0) => "down to zero".to_owned(),
        _ => {
            let ratio = value / base;
            match ratio {
                r if (0.98..=1.02).contains(&r) => "same".to_owned(),
                r if r >= 2.0 => format!("up {}", times(r)),
                r if r > 1.0 => format!("up {:.0} %", (r - 1.0) * 100.0),
                r if r > 0.5 => format!("down {:.0} %", (1.0 - r) * 100.0),
                r => format!("down {}", times(1.0 / r)),
            }
        }
    }
}

/// Returns the increase of a figure per unit of a knob: the slope over all runs.
fn step(
    result: &ExperimentResult,
    sides: &[Setting],
    top: &Setting,
    figure: &str,
    knob: &str,
) -> Option<f64> {
    let mut runs = Vec::new();
    for side in sides {
        let at = number(&side[knob]);
        if let Some((at, point)) = at.zip(point(result, side, top)) {
            runs.extend(point.each(figure).into_iter().map(|value| (at, value)));
        }
    }
    slope(&runs)
}

fn signed(unit: Unit, value: f64) -> String {
    match value < 0.0 {
        true => format!("-{}", unit.format(-value)),
        false => unit.format(value),
    }
}

/// Describes the conditions of the measurement: `quick, to 192.0.2.7, table bench`.
pub(crate) fn circumstances(result: &ExperimentResult) -> Vec<String> {
    let quick = result.quick.then(|| "quick".to_owned());
    // A table measured on several hosts names the host of its latest point.
    let host = !matches!(result.place.as_str(), "" | "lab");
    let host = host.then(|| format!("to {}", result.place));
    let table = result.label.as_ref().map(|label| format!("table {label}"));
    quick.into_iter().chain(host).chain(table).collect()
}

/// Returns the title with the conditions of the measurement in brackets.
pub(crate) fn heading(result: &ExperimentResult) -> String {
    let how = circumstances(result);
    match how.is_empty() {
        true => result.title.clone(),
        false => format!("{} ({})", result.title, how.join(", ")),
    }
}

/// Returns notes on the result: figures missing from all records, and limits of a run without root.
pub(crate) fn remarks(result: &ExperimentResult) -> Vec<String> {
    let unread = result.unread.iter();
    let unread = unread.map(|figure| format!("figure missing from all records: {figure}"));
    let rootless = result
        .rootless
        .then(|| format!("without root: {}", result.without_root));
    unread.chain(rootless).collect()
}

/// Returns tables of published figures next to the measured ones, one per platform of the
/// publication.
pub(crate) fn published(result: &ExperimentResult) -> Vec<Grid> {
    let mut grids: Vec<Grid> = Vec::new();
    for published in &result.published {
        let unit = unit(result, &published.figure);
        let named: Vec<String> = published
            .setting
            .iter()
            .map(|(knob, value)| format!("{knob}={value}"))
            .collect();
        let row = vec![
            published.figure.replace('_', " "),
            named.join(" "),
            unit.format(published.value),
            (published.measured).map_or_else(|| "not measured".to_owned(), |v| unit.format(v)),
        ];
        let title = format!("Published ({}) and measured", published.on);
        match grids.iter_mut().find(|grid| grid.title == title) {
            Some(grid) => grid.rows.push(row),
            None => grids.push(Grid {
                title,
                headings: ["figure", "at", "published", "measured"]
                    .map(str::to_owned)
                    .into(),
                left: 2,
                rows: vec![row],
            }),
        }
    }
    grids
}

/// Comparison of a published change of a figure with the measured one.
pub(crate) struct TrendTold {
    pub(crate) state: ShapeState,
    /// The state as text, with "in doubt" where its runs have caveats.
    pub(crate) word: String,
    /// Both changes, and a reason why they may differ.
    pub(crate) text: String,
}

/// Compares each published change of a figure with the measured one. A different direction is not a
/// failure.
pub(crate) fn trends(result: &ExperimentResult) -> Vec<TrendTold> {
    let told = result.trends.iter().map(|trend| {
        let stands: Vec<String> = (trend.at.iter())
            .map(|(knob, value)| format!("{knob}={value}"))
            .collect();
        let at = match stands.is_empty() {
            true => String::new(),
            false => format!(" at {}", stands.join(" ")),
        };
        let mut text = format!(
            "{}{at}, {} from {} to {}: published {}, measured {}",
            trend.figure.replace('_', " "),
            trend.knob,
            trend.from,
            trend.to,
            direction(1.0, trend.published),
            (trend.measured).map_or_else(|| "nothing".to_owned(), |ratio| direction(1.0, ratio)),
        );
        text.push_str(&doubted(&trend.doubts));
        if !trend.why.is_empty() {
            text.push_str(&format!(". {}", trend.why));
        }
        let state = match trend.agrees {
            Some(true) => ShapeState::Holds,
            Some(false) => ShapeState::Misses,
            None => ShapeState::Untested,
        };
        TrendTold {
            state,
            word: in_doubt(trend_state(state), &trend.doubts),
            text,
        }
    });
    told.collect()
}

/// Returns the state as text: `as published`, `NOT as published`, `not tested`.
fn trend_state(state: ShapeState) -> &'static str {
    match state {
        ShapeState::Holds => "as published",
        ShapeState::Misses => "NOT as published",
        ShapeState::Untested => "not tested",
    }
}

/// Returns the state as text: `agrees`, `DOES NOT AGREE`, `not tested`; `agrees, in doubt` if its
/// runs have caveats.
pub(crate) fn state(shape: &Shape) -> String {
    let word = match shape.state {
        ShapeState::Holds => "agrees",
        ShapeState::Misses => "DOES NOT AGREE",
        ShapeState::Untested => "not tested",
    };
    in_doubt(word, &shape.doubts)
}

fn in_doubt(word: &str, doubts: &[String]) -> String {
    match doubts.is_empty() {
        true => word.to_owned(),
        false => format!("{word}, in doubt"),
    }
}

/// Describes an expectation: the measured value, caveats, and a reason why it may not hold.
pub(crate) fn shape_words(shape: &Shape) -> String {
    let mut text = format!(
        "{} ({}){}",
        shape.says,
        shape.measured,
        doubted(&shape.doubts)
    );
    if !shape.why.is_empty() {
        text.push_str(&format!(". {}", shape.why));
    }
    text
}

/// Describes the caveats: `. Its runs are in doubt: steal in 2 of 4 runs`.
fn doubted(doubts: &[String]) -> String {
    match doubts.is_empty() {
        true => String::new(),
        false => format!(". Its runs are in doubt: {}", doubts.join(", ")),
    }
}

/// Returns the points that were not measured, grouped by reason.
pub(crate) fn skipped(result: &ExperimentResult) -> Vec<(String, Vec<String>)> {
    let mut reasons: Vec<(String, Vec<String>)> = Vec::new();
    for point in &result.points {
        let Some(because) = &point.skipped else {
            continue;
        };
        let words = setting_words(result, &point.setting);
        match reasons.iter_mut().find(|(reason, _)| reason == because) {
            Some((_, points)) => points.push(words),
            None => reasons.push((because.clone(), vec![words])),
        }
    }
    reasons
}

/// Summarises the experiment in one sentence: the number of expectations that hold.
pub(crate) fn verdict(result: &ExperimentResult) -> String {
    let count = |state| result.shapes.iter().filter(|s| s.state == state).count();
    let (holds, misses, untested) = (
        count(ShapeState::Holds),
        count(ShapeState::Misses),
        count(ShapeState::Untested),
    );
    let cut = |point: &Point| {
        let because = point.skipped.as_deref();
        because.is_some_and(|because| because.starts_with("interrupted"))
    };
    if result.points.iter().any(cut) {
        return match holds + misses {
            0 => "Interrupted before any expectation was tested.".to_owned(),
            tested => format!(
                "Interrupted: {holds} of {tested} expectations hold for the points measured so far."
            ),
        };
    }
    let mut text = match misses {
        0 if holds == 0 => "No expectation was tested".to_owned(),
        0 => format!("All expectations hold: {holds} of {holds} that were tested"),
        _ => format!("{misses} of {} expectations do not hold", holds + misses),
    };
    let doubted = result
        .shapes
        .iter()
        .filter(|shape| !shape.doubts.is_empty());
    match (doubted.count(), holds + misses) {
        (0, _) => {}
        (all, tested) if all == tested => text.push_str("; all of these verdicts are in doubt"),
        (some, _) => text.push_str(&format!("; {some} of these verdicts are in doubt")),
    }
    if untested > 0 {
        text.push_str(&format!("; {untested} could not be tested here"));
    }
    let known = result.trends.iter().filter_map(|trend| trend.agrees);
    let (same, others): (Vec<bool>, Vec<bool>) = known.partition(|agrees| *agrees);
    let all = same.len() + others.len();
    match others.len() {
        0 if all == 0 => {}
        0 => text.push_str(&format!(
            "; all {all} published changes have the same direction here"
        )),
        n => text.push_str(&format!(
            "; {n} of {all} published changes have another direction here"
        )),
    }
    text.push('.');
    text
}

#[cfg(test)]
mod tests {
    use linerate_metric::experiment::Knob;

    use super::*;

    #[test]
    fn points_left_out_make_no_column_of_a_figure_that_their_kind_has_not() {
        let values = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect();
        let knob = |name: &str, of: &[&str]| Knob {
            name: name.to_owned(),
            values: values(of),
        };
        let point =
            |workload: &str, setup: &str, figure: Option<f64>, skipped: Option<&str>| Point {
                setting: [("workload", workload), ("setup", setup)]
                    .map(|(knob, value)| (knob.to_owned(), value.to_owned()))
                    .into(),
                figures: (figure.into_iter())
                    .map(|median| {
                        let (low, high, runs) = (median, median, 1);
                        let estimate = Estimate {
                            median,
                            low,
                            high,
                            runs,
                        };
                        ("loss".to_owned(), estimate)
                    })
                    .collect(),
                skipped: skipped.map(str::to_owned),
                ..Point::default()
            };
        let root = Some("real-time scheduling (it takes root)");
        let result = ExperimentResult {
            knobs: vec![
                knob("workload", &["tcp", "udp", "raw"]),
                knob("setup", &["default", "above"]),
            ],
            points: vec![
                point("tcp", "default", None, None),
                point("tcp", "above", None, root),
                point("udp", "default", Some(0.5), None),
                point("udp", "above", None, root),
                point("raw", "default", None, root),
                point("raw", "above", None, root),
            ],
            ..ExperimentResult::default()
        };
        let table = TableOf {
            figures: values(&["loss"]),
            rows: values(&["setup"]),
            columns: values(&["workload"]),
            ..TableOf::default()
        };
        let grid = grid(&result, &table);
        assert_eq!(grid.headings, ["setup", "udp", "raw"]);
        assert_eq!(grid.rows[1], ["above", "not tested", "not tested"]);
    }
}
