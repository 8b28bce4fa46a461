//! Experiment: tables, verdict, state of each expectation, comparison with published figures.

use linerate_record::expect::FigureUnit;
use linerate_record::experiment::{
    ExpectedShape, ExperimentPoint, ExperimentResult, KnobValues, ShapeState, TableSpec,
    combine_values, parse_number,
};
use linerate_stats::statistics::{Estimate, theil_sen_slope};

use crate::model::{self, UNKNOWN, format_factor};

/// A table of text cells.
pub(crate) struct ResultTable {
    pub(crate) title: String,
    pub(crate) headings: Vec<String>,
    /// Number of leading columns that name the row.
    pub(crate) label_columns: usize,
    pub(crate) rows: Vec<Vec<String>>,
    /// Rows without any tested figure.
    pub(crate) untested_rows: Vec<Vec<String>>,
    /// True if the table has details only.
    pub(crate) folded: bool,
}

/// Cell of a point that was skipped.
const NOT_TESTED: &str = "not tested";

/// Cell of a published figure that was not measured here.
const NOT_MEASURED: &str = "not measured";

/// Splits off the rows that have no tested figure in the columns after the labels.
fn split_untested(
    rows: Vec<Vec<String>>,
    label_columns: usize,
) -> (Vec<Vec<String>>, Vec<Vec<String>>) {
    rows.into_iter().partition(|row| {
        let cells = || row.iter().skip(label_columns);
        let is_untested = cells().any(|cell| cell == NOT_TESTED)
            && cells().all(|cell| cell == NOT_TESTED || cell == UNKNOWN);
        !is_untested && !cells().any(|cell| cell == NOT_MEASURED)
    })
}

/// Returns all combinations of the values of the named knobs; the first knob varies slowest.
fn combinations(result: &ExperimentResult, names: &[String]) -> Vec<KnobValues> {
    combine_values(names.iter().map(|name| {
        let knob = result.knobs.iter().find(|knob| knob.name == *name);
        (name.as_str(), knob.map_or(&[][..], |knob| &knob.values))
    }))
}

/// Describes a setting: `hops=4 size=32K`, in the order of the knobs.
pub(crate) fn describe_setting(result: &ExperimentResult, setting: &KnobValues) -> String {
    let named = result.knobs.iter().filter_map(|knob| {
        let value = setting.get(&knob.name)?;
        Some(format!("{}={value}", knob.name))
    });
    named.collect::<Vec<_>>().join(" ")
}

fn point_at<'a>(
    result: &'a ExperimentResult,
    row: &KnobValues,
    column: &KnobValues,
) -> Option<&'a ExperimentPoint> {
    let mut setting = row.clone();
    setting.extend(column.clone());
    result.points.iter().find(|point| point.setting == setting)
}

fn unit_of_figure(result: &ExperimentResult, figure: &str) -> FigureUnit {
    result
        .figure(figure)
        .map_or(FigureUnit::Count, |figure| figure.unit)
}

/// Builds one table of the experiment.
pub(crate) fn build_table(result: &ExperimentResult, table: &TableSpec) -> ResultTable {
    let mut row_settings = combinations(result, &table.rows);
    for row_setting in &mut row_settings {
        row_setting.extend(table.at.clone());
    }
    let column_settings = combinations(result, &table.columns);
    let several = table.figures.len() > 1;
    let mut columns: Vec<(&KnobValues, &String)> = column_settings
        .iter()
        .flat_map(|column_setting| {
            table
                .figures
                .iter()
                .map(move |figure| (column_setting, figure))
        })
        .collect();
    let mut headings = table.rows.clone();
    headings.extend(columns.iter().map(|(column_setting, figure)| {
        let mut labels: Vec<String> = column_labels(table, column_setting);
        if several || labels.is_empty() {
            labels.push((*figure).replace('_', " "));
        }
        labels.join(" ")
    }));
    let mut rows: Vec<Vec<String>> = Vec::new();
    for row_setting in &row_settings {
        if column_settings
            .iter()
            .all(|column_setting| point_at(result, row_setting, column_setting).is_none())
        {
            continue;
        }
        let mut row: Vec<String> = table
            .rows
            .iter()
            .map(|knob| row_setting[knob].clone())
            .collect();
        for (column_setting, figure) in &columns {
            row.push(format_cell(
                result,
                table,
                row_setting,
                column_setting,
                figure,
            ));
        }
        rows.push(row);
    }
    let mut column = table.rows.len();
    while column < headings.len() && !rows.is_empty() {
        let (column_setting, figure) = columns[column - table.rows.len()];
        match !has_content(result, &row_settings, column_setting, figure)
            && headings.len() > table.rows.len() + 1
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
    let (mut rows, untested_rows) = split_untested(rows, table.rows.len());
    if table.steps {
        let mut row = vec!["added per step".to_owned()];
        for (column_setting, figure) in &columns {
            let unit = unit_of_figure(result, figure);
            let step = slope_per_step(
                result,
                &row_settings,
                column_setting,
                figure,
                &table.rows[0],
            );
            row.push(step.map_or_else(|| UNKNOWN.to_owned(), |step| format_signed(unit, step)));
        }
        rows.push(row);
    }
    ResultTable {
        title: table.title.clone(),
        headings,
        label_columns: table.rows.len(),
        rows,
        untested_rows,
        folded: table.folded,
    }
}

/// Returns whether a column has content: a figure, or "not tested". When points were measured and
/// none has the figure, this kind of point has no such figure; skipped points would not have it
/// either.
fn has_content(
    result: &ExperimentResult,
    row_settings: &[KnobValues],
    column_setting: &KnobValues,
    figure: &str,
) -> bool {
    let points = || {
        row_settings
            .iter()
            .filter_map(|row_setting| point_at(result, row_setting, column_setting))
    };
    let has_figure = points().any(|point| point.figures.contains_key(figure));
    let measured = points().any(|point| point.skipped.is_none());
    has_figure || (!measured && points().next().is_some())
}

/// Returns the knob values that head a column. Numbers are shown with the knob's name, other values
/// without.
fn column_labels(table: &TableSpec, column_setting: &KnobValues) -> Vec<String> {
    table
        .columns
        .iter()
        .map(|knob| {
            let value = &column_setting[knob];
            let is_number = parse_number(value).is_some();
            match is_number {
                true => format!("{knob}={value}"),
                false => value.clone(),
            }
        })
        .collect()
}

fn format_cell(
    result: &ExperimentResult,
    table: &TableSpec,
    row_setting: &KnobValues,
    column_setting: &KnobValues,
    figure: &str,
) -> String {
    let Some(point) = point_at(result, row_setting, column_setting) else {
        return UNKNOWN.to_owned();
    };
    let Some(estimate) = point.figures.get(figure) else {
        return match &point.skipped {
            Some(_) => NOT_TESTED.to_owned(),
            None => UNKNOWN.to_owned(),
        };
    };
    let unit = unit_of_figure(result, figure);
    let mut text = match estimate.runs {
        1 => unit.format(estimate.median),
        _ => model::format_estimate(unit, estimate),
    };
    if let (Some(baseline), [knob]) = (&table.against, &table.rows[..])
        && row_setting[knob] != *baseline
    {
        let mut base = row_setting.clone();
        base.insert(knob.clone(), baseline.clone());
        let base = self::point_at(result, &base, column_setting);
        if let Some(base) = base.and_then(|base| base.figures.get(figure)) {
            let change = match result.figure(figure).is_some_and(|figure| figure.exact) {
                true => describe_change(base.median, estimate.median),
                false => describe_estimate_change(base, estimate),
            };
            text.push_str(&format!(", {change}"));
        }
    }
    text
}

/// Smallest ratio that one run per side shows as a direction; two equal runs can differ by less.
const CLEAR_RATIO: f64 = 1.5;

/// Describes the change of a figure; "no clear change" if the confidence intervals overlap.
fn describe_estimate_change(base: &Estimate, estimate: &Estimate) -> String {
    let overlap = estimate.low <= base.high && base.low <= estimate.high;
    let close = |ratio: f64| (1.0 / CLEAR_RATIO..=CLEAR_RATIO).contains(&ratio);
    let single = base.runs < 2 || estimate.runs < 2;
    let unclear = match single {
        true => base.median != estimate.median && close(estimate.median / base.median),
        false => overlap && base.median != estimate.median,
    };
    match unclear {
        true => "no clear change".to_owned(),
        false => describe_change(base.median, estimate.median),
    }
}

/// Describes the change of a value: `up 3.1x`, `down 20 %`, `same`.
fn describe_change(base: f64, value: f64) -> String {
    match (base, value) {
        (base, value) if base == value => "same".to_owned(),
        (0.0, _) => "up".to_owned(),
        (_, 0.0) => "down to zero".to_owned(),
        _ => {
            let ratio = value / base;
            match ratio {
                r if (0.98..=1.02).contains(&r) => "same".to_owned(),
                r if r >= 2.0 => format!("up {}", format_factor(r)),
                r if r > 1.0 => format!("up {:.0} %", (r - 1.0) * 100.0),
                r if r > 0.5 => format!("down {:.0} %", (1.0 - r) * 100.0),
                r => format!("down {}", format_factor(1.0 / r)),
            }
        }
    }
}

/// Returns the increase of a figure per unit of a knob: the slope over all runs.
fn slope_per_step(
    result: &ExperimentResult,
    row_settings: &[KnobValues],
    column_setting: &KnobValues,
    figure: &str,
    knob: &str,
) -> Option<f64> {
    let mut runs = Vec::new();
    for row_setting in row_settings {
        let knob_value = parse_number(&row_setting[knob]);
        if let Some((knob_value, point)) =
            knob_value.zip(point_at(result, row_setting, column_setting))
        {
            runs.extend(
                point
                    .run_values(figure)
                    .into_iter()
                    .map(|value| (knob_value, value)),
            );
        }
    }
    theil_sen_slope(&runs)
}

fn format_signed(unit: FigureUnit, value: f64) -> String {
    match value < 0.0 {
        true => format!("-{}", unit.format(-value)),
        false => unit.format(value),
    }
}

/// Describes the conditions of the measurement: `quick, to 192.0.2.7, table bench`.
pub(crate) fn conditions(result: &ExperimentResult) -> Vec<String> {
    let quick = result.quick.then(|| "quick".to_owned());
    // A table measured on several hosts names the host of its latest point.
    let host = !matches!(result.location.as_str(), "" | "lab");
    let host = host.then(|| format!("to {}", result.location));
    let table = result.label.as_ref().map(|label| format!("table {label}"));
    quick.into_iter().chain(host).chain(table).collect()
}

/// Returns the title with the conditions of the measurement in brackets.
pub(crate) fn heading(result: &ExperimentResult) -> String {
    let conditions = conditions(result);
    match conditions.is_empty() {
        true => result.title.clone(),
        false => format!("{} ({})", result.title, conditions.join(", ")),
    }
}

/// Returns notes on the result: figures missing from all records, and limits of a run without root.
pub(crate) fn notes(result: &ExperimentResult) -> Vec<String> {
    let unread = result.missing_figures.iter();
    let unread = unread.map(|figure| format!("figure missing from all records: {figure}"));
    let rootless = result
        .rootless
        .then(|| format!("without root: {}", result.without_root));
    unread.chain(rootless).collect()
}

/// Returns tables of published figures next to the measured ones, one per platform of the
/// publication.
pub(crate) fn published_tables(result: &ExperimentResult) -> Vec<ResultTable> {
    let mut grids: Vec<ResultTable> = Vec::new();
    for published in &result.published {
        let unit = unit_of_figure(result, &published.figure);
        let named: Vec<String> = published
            .setting
            .iter()
            .map(|(knob, value)| format!("{knob}={value}"))
            .collect();
        let row = vec![
            published.figure.replace('_', " "),
            named.join(" "),
            unit.format(published.value),
            (published.measured).map_or_else(|| NOT_MEASURED.to_owned(), |v| unit.format(v)),
        ];
        let title = format!("Published ({}) and measured", published.on);
        match grids.iter_mut().find(|grid| grid.title == title) {
            Some(grid) => grid.rows.push(row),
            None => grids.push(ResultTable {
                title,
                headings: ["figure", "at", "published", "measured"]
                    .map(str::to_owned)
                    .into(),
                label_columns: 2,
                rows: vec![row],
                untested_rows: Vec::new(),
                folded: false,
            }),
        }
    }
    for grid in &mut grids {
        let rows = std::mem::take(&mut grid.rows);
        (grid.rows, grid.untested_rows) = split_untested(rows, grid.label_columns);
    }
    grids
}

/// Comparison of a published change of a figure with the measured one.
pub(crate) struct TrendComparison {
    pub(crate) state: ShapeState,
    /// The state as text, with "in doubt" where its runs have caveats.
    pub(crate) verdict: String,
    /// Both changes, and a reason why they may differ.
    pub(crate) text: String,
}

/// Compares each published change of a figure with the measured one. A different direction is not a
/// failure.
pub(crate) fn compare_trends(result: &ExperimentResult) -> Vec<TrendComparison> {
    let comparisons = result.trends.iter().map(|trend| {
        let settings: Vec<String> = (trend.at.iter())
            .map(|(knob, value)| format!("{knob}={value}"))
            .collect();
        let at = match settings.is_empty() {
            true => String::new(),
            false => format!(" at {}", settings.join(" ")),
        };
        let mut text = format!(
            "{}{at}, {} from {} to {}: published {}, measured {}",
            trend.figure.replace('_', " "),
            trend.knob,
            trend.from,
            trend.to,
            describe_change(1.0, trend.published),
            (trend.measured)
                .map_or_else(|| "nothing".to_owned(), |ratio| describe_change(1.0, ratio)),
        );
        text.push_str(&describe_caveats(&trend.caveats));
        if !trend.why.is_empty() {
            text.push_str(&format!(". {}", trend.why));
        }
        let state = match trend.agrees {
            Some(true) => ShapeState::Holds,
            Some(false) => ShapeState::Misses,
            None => ShapeState::Untested,
        };
        TrendComparison {
            state,
            verdict: mark_in_doubt(trend_state(state), &trend.caveats),
            text,
        }
    });
    comparisons.collect()
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
pub(crate) fn expectation_state(shape: &ExpectedShape) -> String {
    let verdict = match shape.state {
        ShapeState::Holds => "agrees",
        ShapeState::Misses => "DOES NOT AGREE",
        ShapeState::Untested => "not tested",
    };
    mark_in_doubt(verdict, &shape.caveats)
}

/// Appends `, in doubt` to a verdict that has caveats.
fn mark_in_doubt(verdict: &str, caveats: &[String]) -> String {
    match caveats.is_empty() {
        true => verdict.to_owned(),
        false => format!("{verdict}, in doubt"),
    }
}

/// Describes an expectation: its conclusion, or the measured value; caveats; and a reason why it may
/// not hold.
pub(crate) fn describe_expectation(shape: &ExpectedShape) -> String {
    let mut text = match shape.conclusion.is_empty() {
        true => format!("{} ({})", shape.description, shape.measured),
        false => shape.conclusion.clone(),
    };
    text.push_str(&describe_caveats(&shape.caveats));
    if !shape.why.is_empty() {
        text.push_str(&format!(". {}", shape.why));
    }
    text
}

/// Describes the caveats: `. Its runs are in doubt: steal in 2 of 4 runs`.
fn describe_caveats(caveats: &[String]) -> String {
    match caveats.is_empty() {
        true => String::new(),
        false => format!(". Its runs are in doubt: {}", caveats.join(", ")),
    }
}

/// Returns the points that were not measured, grouped by reason.
pub(crate) fn skipped_points(result: &ExperimentResult) -> Vec<(String, Vec<String>)> {
    let mut reasons: Vec<(String, Vec<String>)> = Vec::new();
    for point in &result.points {
        let Some(skip_reason) = &point.skipped else {
            continue;
        };
        let setting = describe_setting(result, &point.setting);
        match reasons.iter_mut().find(|(reason, _)| reason == skip_reason) {
            Some((_, points)) => points.push(setting),
            None => reasons.push((skip_reason.clone(), vec![setting])),
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
    if result.points.iter().any(ExperimentPoint::is_not_reached) {
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
    let in_doubt = result
        .shapes
        .iter()
        .filter(|shape| !shape.caveats.is_empty());
    match (in_doubt.count(), holds + misses) {
        (0, _) => {}
        (all, tested) if all == tested => text.push_str("; all of these verdicts are in doubt"),
        (some, _) => text.push_str(&format!("; {some} of these verdicts are in doubt")),
    }
    if untested > 0 {
        text.push_str(&format!("; {untested} could not be tested here"));
    }
    let agreements = result.trends.iter().filter_map(|trend| trend.agrees);
    let (agreeing, differing): (Vec<bool>, Vec<bool>) = agreements.partition(|agrees| *agrees);
    let all = agreeing.len() + differing.len();
    match differing.len() {
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
    use linerate_record::experiment::KnobAxis;

    use super::*;

    #[test]
    fn skipped_points_add_no_column_for_a_figure_that_their_kind_does_not_have() {
        let values = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect();
        let knob = |name: &str, of: &[&str]| KnobAxis {
            name: name.to_owned(),
            values: values(of),
        };
        let point = |workload: &str, setup: &str, figure: Option<f64>, skipped: Option<&str>| {
            ExperimentPoint {
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
                ..ExperimentPoint::default()
            }
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
        let table = TableSpec {
            figures: values(&["loss"]),
            rows: values(&["setup"]),
            columns: values(&["workload"]),
            ..TableSpec::default()
        };
        let grid = build_table(&result, &table);
        assert_eq!(grid.headings, ["setup", "udp", "raw"]);
        assert_eq!(grid.rows.len(), 1);
        assert_eq!(
            grid.untested_rows,
            [["above", "not tested", "not tested"].map(str::to_owned)]
        );
    }
}
