//! Page of an experiment: verdict, curves, tables, command of each point.

use std::fmt::Write as _;

use linerate_record::expect::FigureUnit;
use linerate_record::experiment::{
    ExpectedShape, ExperimentPoint, ExperimentResult, KnobValues, PlotSpec, ShapeState,
    parse_number,
};
use linerate_record::run_set::RunSet;
use linerate_stats::statistics::Estimate;
use linerate_stats::units::{format_count, format_nanos};

use super::figure::{ChartData, ChartRow, render_chart};
use super::{experiment_points, hosts, with_micro_sign};
use crate::experiment::{
    ResultTable, build_table, compare_trends, conditions, describe_expectation, expectation_state,
    published_tables, skipped_points, verdict,
};
use crate::model::{self, capitalise};
use crate::phrases;
use crate::svg::{
    self, BarChart, ChartAxis, ChartSeries, LineChart, SeriesMark, ValueBar, escape_markup,
};

/// Text for an experiment with reduced duration.
const QUICK_NOTE: &str = "quick: fewer points, each shorter";

/// Renders the body of the page.
pub(super) fn page_body(result: &ExperimentResult, set: &RunSet) -> String {
    let mut out = format!(
        "<header>\n<p class=\"brand\">linerate</p>\n<h1>{}</h1>\n<p class=\"lead\">{}</p>\n<p class=\"lead\">{}</p>\n",
        escape_markup(&result.title),
        escape_markup(&verdict(result)),
        escape_markup(&result.question)
    );
    let mut details = format!(
        "{}, started {}",
        model::count_of(set.runs.len() as u64, "run"),
        set.started.strftime("%Y-%m-%d %H:%M:%S UTC")
    );
    for condition in conditions(result) {
        let condition = if condition == "quick" {
            QUICK_NOTE
        } else {
            &condition
        };
        let _ = write!(details, ", {condition}");
    }
    let _ = writeln!(out, "<p class=\"muted\">{}</p>", escape_markup(&details));
    if set.interrupted {
        let _ = writeln!(out, "<p class=\"callout\">{}</p>", super::INTERRUPTED_NOTE);
    }
    for note in &set.result.notes {
        let _ = writeln!(out, "<p class=\"callout\">{}</p>", escape_markup(note));
    }
    for kind in phrases::count_caveats(&set.runs) {
        let _ = writeln!(
            out,
            "<p class=\"callout\"><b>Note.</b> {} <code>{}</code></p>",
            escape_markup(&capitalise(&with_micro_sign(&kind.describe()))),
            escape_markup(kind.example.id.as_str())
        );
    }
    out.push_str("</header>\n");
    out.push_str(&expectation_section(result));
    let plots: String = result
        .plots
        .iter()
        .filter_map(|plot| line_chart(result, plot))
        .collect();
    if !plots.is_empty() {
        let _ = writeln!(out, "<section>\n<h2>Curves</h2>\n{plots}</section>");
    }
    for table in &result.tables {
        out.push_str(&table_section(&build_table(result, table)));
    }
    for grid in published_tables(result) {
        out.push_str(&table_section(&grid));
    }
    out.push_str(&slow_responses(set));
    out.push_str(&experiment_points::detail_section(result, set));
    out.push_str(&figure_meanings(result));
    out.push_str(&experiment_points::path_diagrams(result, set));
    out.push_str(&hosts::host_section(set.runs.get(..1).unwrap_or_default()));
    out.push_str(&command_section(result));
    out
}

fn expectation_section(result: &ExperimentResult) -> String {
    let mut out = String::from("<section>\n<h2>Expectations</h2>\n");
    let (untested, tested): (Vec<_>, Vec<_>) =
        (result.shapes.iter()).partition(|shape| shape.state == ShapeState::Untested);
    out.push_str(&expectation_list(&tested, describe_expectation));
    if !untested.is_empty() {
        let count = model::count_of(untested.len() as u64, "expectation");
        let _ = writeln!(
            out,
            "<details><summary>{count} not tested</summary>\n{}</details>",
            expectation_list(&untested, describe_expectation)
        );
    }
    // A conclusion stands in place of the values that it was drawn from.
    let concluded: Vec<_> = (tested.into_iter())
        .filter(|shape| !shape.conclusion.is_empty())
        .collect();
    if !concluded.is_empty() {
        let _ = writeln!(
            out,
            "<details><summary>Expectations and values behind these sentences</summary>\n{}</details>",
            expectation_list(&concluded, |shape| format!(
                "{} ({})",
                shape.description, shape.measured
            ))
        );
    }
    let trends = compare_trends(result);
    let listed = trends
        .iter()
        .filter(|trend| trend.state != ShapeState::Untested);
    let listed: String = listed
        .map(|trend| {
            let verdict = trend.verdict.replace("NOT", "not");
            format!(
                "<li><b>{verdict}</b>: {}</li>\n",
                escape_markup(&with_micro_sign(&trend.text))
            )
        })
        .collect();
    if !listed.is_empty() {
        let _ = writeln!(out, "<h3>Published changes</h3>\n<ul>\n{listed}</ul>");
    }
    out.push_str("</section>\n");
    for figure in &result.missing_figures {
        let _ = writeln!(
            out,
            "<p class=\"callout\"><b>Note.</b> Figure missing from all records: {}</p>",
            escape_markup(figure)
        );
    }
    out
}

/// Renders expectations as a list, each with its state.
fn expectation_list(
    shapes: &[&ExpectedShape],
    describe: impl Fn(&ExpectedShape) -> String,
) -> String {
    let items = shapes.iter().map(|shape| {
        let state = expectation_state(shape).replace("DOES NOT AGREE", "does not agree");
        format!(
            "<li><b>{}</b>: {}</li>\n",
            escape_markup(&state),
            escape_markup(&with_micro_sign(&describe(shape)))
        )
    });
    format!("<ul>\n{}</ul>\n", items.collect::<String>())
}

/// Renders a table in a section; rows that were not tested, and tables of details, are folded.
fn table_section(grid: &ResultTable) -> String {
    let mut body = match grid.rows.is_empty() {
        true => String::new(),
        false => render_rows(grid, &grid.rows),
    };
    if !grid.untested_rows.is_empty() {
        let count = model::count_of(grid.untested_rows.len() as u64, "row");
        let _ = writeln!(
            body,
            "<details><summary>{count} not tested</summary>\n{}</details>",
            render_rows(grid, &grid.untested_rows)
        );
    }
    let title = escape_markup(&grid.title);
    match grid.folded {
        true => format!(
            "<section>\n<details><summary>{title}</summary>\n{body}</details>\n</section>\n"
        ),
        false => format!("<section>\n<h2>{title}</h2>\n{body}</section>\n"),
    }
}

fn render_rows(grid: &ResultTable, rows: &[Vec<String>]) -> String {
    let mut out = String::from("<div class=\"scroll\"><table><thead><tr>");
    for (position, heading) in grid.headings.iter().enumerate() {
        let class = match position < grid.label_columns {
            true => " class=\"text\"",
            false => "",
        };
        let _ = write!(
            out,
            "<th scope=\"col\"{class}>{}</th>",
            escape_markup(heading)
        );
    }
    out.push_str("</tr></thead><tbody>\n");
    for row in rows {
        out.push_str("<tr>");
        for (position, cell) in row.iter().enumerate() {
            let _ = match position < grid.label_columns {
                true => write!(
                    out,
                    "<th scope=\"row\">{}</th>",
                    escape_markup(&with_micro_sign(cell))
                ),
                false => write!(
                    out,
                    "<td>{}</td>",
                    render_figure_cell(&with_micro_sign(cell))
                ),
            };
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
    out
}

/// Renders a figure with its interval and its change on separate lines, so that the columns of a
/// table stay narrow.
fn render_figure_cell(cell: &str) -> String {
    let with_interval = cell.split_once(" (").and_then(|(value, rest)| {
        let (interval, after) = rest.split_once(')')?;
        Some((value, vec![interval, after.trim_start_matches(", ")]))
    });
    let with_change = || {
        let (value, change) = cell.split_once(", ")?;
        Some((value, vec![change]))
    };
    let (value, second_lines) = with_interval
        .or_else(with_change)
        .unwrap_or((cell, Vec::new()));
    let mut out = escape_markup(value);
    for line in second_lines.iter().filter(|line| !line.is_empty()) {
        let line = super::figure::render_second_line(line);
        let _ = write!(out, "<span class=\"interval\">{line}</span>");
    }
    out
}

/// Number of slow responses shown on a page.
const MAX_SLOW_RESPONSES: usize = 200;

/// Renders the slowest responses above the limit, folded; empty if there are none.
fn slow_responses(set: &RunSet) -> String {
    let mut responses: Vec<_> = (set.runs.iter())
        .flat_map(|run| run.slow.iter().map(move |slow| (run, slow)))
        .collect();
    responses.sort_by_key(|(_, slow)| std::cmp::Reverse(slow.time_ns));
    let listed = responses.len();
    let rows: Vec<Vec<String>> = (responses.iter().take(MAX_SLOW_RESPONSES))
        .map(|(run, slow)| {
            vec![
                phrases::run_name(run),
                slow.number.to_string(),
                format_nanos(slow.time_ns as f64),
                slow.cause.clone(),
            ]
        })
        .collect();
    let Some(grid) = model::Grid::new(&["run", "response", "time", "cause"], rows, 1) else {
        return String::new();
    };
    // A record lists a limited number of slow responses, but counts all of them.
    let total: u64 = set.runs.iter().filter_map(|run| run.summary.slow).sum();
    let total = total.max(listed as u64);
    let summary = match total {
        total if total > MAX_SLOW_RESPONSES as u64 => format!("The {MAX_SLOW_RESPONSES} slowest"),
        _ => "All slow responses".to_owned(),
    };
    let listed_note = match total {
        total if total > MAX_SLOW_RESPONSES as u64 => {
            format!("; the records list {} of them", format_count(listed as u64))
        }
        _ => String::new(),
    };
    format!(
        "<section>\n<h2>Slow responses</h2>\n<p>{} responses took longer than the limit{listed_note}.</p>\n<details><summary>{summary}</summary>\n{}</details>\n</section>\n",
        format_count(total),
        super::figure::render_grid(&grid)
    )
}

fn figure_meanings(result: &ExperimentResult) -> String {
    let mut out = String::from(
        "<section>\n<h2>Figures</h2>\n<details><summary>Meaning of each figure, and limits without root</summary>\n<ul>\n",
    );
    for figure in &result.figures {
        let _ = writeln!(
            out,
            "<li><b>{}</b>: {}</li>",
            escape_markup(&figure.name.replace('_', " ")),
            escape_markup(&figure.description)
        );
    }
    let _ = writeln!(
        out,
        "</ul>\n<p>Without root: {}</p>\n</details>\n</section>",
        escape_markup(&result.without_root)
    );
    out
}

/// Renders the skipped points, and the commands of each point.
fn command_section(result: &ExperimentResult) -> String {
    let mut out = String::from("<section>\n<h2>Points</h2>\n");
    for (reason, points) in skipped_points(result) {
        let _ = writeln!(
            out,
            "<p class=\"callout\">Not tested: {}: {}.</p>",
            escape_markup(&points.join(", ")),
            escape_markup(&reason)
        );
    }
    out.push_str(
        "<details><summary>Commands and records of each point</summary>\n<div class=\"scroll\"><table><thead><tr>",
    );
    for knob in &result.knobs {
        let name = escape_markup(&knob.name);
        let _ = write!(out, "<th scope=\"col\" class=\"text\">{name}</th>");
    }
    out.push_str(
        "<th scope=\"col\" class=\"text\">command</th><th scope=\"col\" class=\"text\">records</th></tr></thead><tbody>\n",
    );
    for point in &result.points {
        out.push_str("<tr>");
        for knob in &result.knobs {
            let value = point.setting.get(&knob.name).map_or("", String::as_str);
            let _ = write!(out, "<th scope=\"row\">{}</th>", escape_markup(value));
        }
        let _ = writeln!(
            out,
            "<td class=\"text command\">{}</td><td class=\"text\">{}</td></tr>",
            point_commands(point),
            escape_markup(&point.runs.join(" "))
        );
    }
    out.push_str("</tbody></table></div></details>\n</section>\n");
    out
}

/// Renders the commands that repeat a point, one per line: setup, then measurement.
fn point_commands(point: &ExperimentPoint) -> String {
    let lines = point.setup_commands.iter().chain(&point.commands);
    let lines: Vec<String> = lines
        .map(|line| format!("<code>{}</code>", escape_markup(line)))
        .collect();
    lines.join("<br>")
}

/// Ratio of the highest interval bound to the highest value above which the axis is logarithmic.
const MAX_LINEAR_INTERVAL_RATIO: f64 = 3.0;

/// Formats the name of a figure: `tcp send rate` for `tcp_send_rate`.
fn spaced_name(name: &str) -> String {
    name.replace('_', " ")
}

/// Renders a figure by a non-numeric knob: one group of bars per combination of the other knobs.
fn bar_charts(result: &ExperimentResult, plot: &PlotSpec, unit: FigureUnit) -> String {
    let mut groups: Vec<(KnobValues, Vec<(String, Estimate)>)> = Vec::new();
    for point in &result.points {
        let (Some(value), Some(x)) = (point.figures.get(&plot.figure), point.setting.get(&plot.x))
        else {
            continue;
        };
        let mut setting = point.setting.clone();
        setting.retain(|knob, _| plot.series.contains(knob));
        let bar = (x.clone(), *value);
        match groups
            .iter_mut()
            .find(|(group_setting, _)| *group_setting == setting)
        {
            Some((_, bars)) => bars.push(bar),
            None => groups.push((setting, vec![bar])),
        }
    }
    let mut out = String::new();
    for (position, (setting, bars)) in groups.into_iter().enumerate() {
        let named: Vec<&str> = setting.values().map(String::as_str).collect();
        // The axis includes the intervals, and shows the shortest bar next to the longest.
        let values = || bars.iter().map(|bar| bar.1);
        let highest = values().map(|value| value.median.max(value.high));
        let highest = highest.fold(0.0, f64::max);
        let lowest = values().map(|value| value.median).fold(highest, f64::min);
        if highest <= 0.0 {
            continue;
        }
        let bar_chart = BarChart {
            title: match named.is_empty() {
                true => plot.title.clone(),
                false => format!("{}: {}", plot.title, named.join(", ")),
            },
            axis: ChartAxis::for_bars(
                &spaced_name(&plot.figure),
                lowest,
                highest,
                super::axis_unit(unit, highest),
            ),
            bars: bars
                .into_iter()
                .map(|(name, value)| ValueBar {
                    name,
                    value: value.median,
                    interval: Some((value.low, value.high)),
                    text: with_micro_sign(&model::format_estimate(unit, &value)),
                    color: position,
                })
                .collect(),
        };
        out.push_str(&super::figure::render_bars(&bar_chart));
    }
    out
}

/// Renders a figure by a numeric knob, one line per combination of the others; `None` with fewer
/// than two values.
fn line_chart(result: &ExperimentResult, plot: &PlotSpec) -> Option<String> {
    let figure = result.figure(&plot.figure)?;
    let knob = result.knobs.iter().find(|knob| knob.name == plot.x)?;
    if knob
        .values
        .iter()
        .any(|value| parse_number(value).is_none())
    {
        return Some(bar_charts(result, plot, figure.unit));
    }
    let mut xs: Vec<(f64, &String)> = knob
        .values
        .iter()
        .filter_map(|value| Some((parse_number(value)?, value)))
        .collect();
    xs.sort_by(|left, right| left.0.total_cmp(&right.0));
    let mut names: Vec<KnobValues> = Vec::new();
    for point in &result.points {
        let mut setting = point.setting.clone();
        setting.retain(|knob, _| plot.series.contains(knob));
        if !names.contains(&setting) && point.figures.contains_key(&plot.figure) {
            names.push(setting);
        }
    }
    let value = |setting: &KnobValues, x: &String| {
        let mut full_setting = setting.clone();
        full_setting.insert(plot.x.clone(), x.clone());
        let mut matching = result.matching_points(&full_setting);
        matching.find_map(|point| point.figures.get(&plot.figure).copied())
    };
    let estimates: Vec<Estimate> = names
        .iter()
        .flat_map(|name| xs.iter().filter_map(|(_, x)| value(name, x)))
        .collect();
    let highest = estimates
        .iter()
        .map(|value| value.median)
        .reduce(f64::max)?;
    let highest_bound = estimates
        .iter()
        .map(|value| value.high)
        .fold(highest, f64::max);
    let lowest_bound = estimates.iter().map(|value| value.low.min(value.median));
    let lowest_bound = lowest_bound.fold(highest, f64::min);
    // The axis is logarithmic if a line would lie on the zero line, or if a wide interval would
    // compress the rest.
    let lowest_line = names.iter().filter_map(|name| {
        let values = xs.iter().filter_map(|(_, x)| value(name, x));
        values.map(|value| value.median).reduce(f64::max)
    });
    let lowest_line = lowest_line.fold(highest, f64::min);
    let needs_logarithmic = ChartAxis::needs_logarithmic(lowest_line, highest)
        || highest_bound > highest * MAX_LINEAR_INTERVAL_RATIO;
    let (first, last) = (xs.first()?.0, xs.last()?.0);
    if xs.len() < 2 {
        return None;
    }
    let unit = super::axis_unit(figure.unit, highest);
    let y_name = spaced_name(&figure.name);
    let y = match needs_logarithmic && lowest_bound > 0.0 {
        true => ChartAxis::logarithmic(&y_name, lowest_bound, highest_bound, unit),
        false => ChartAxis::from_zero(&y_name, highest_bound, unit),
    };
    let x = match plot.log_x && first > 0.0 {
        true => ChartAxis::log_count(&plot.x, first, last),
        false => ChartAxis::between(&plot.x, first, last, svg::AxisUnit::COUNT),
    };
    let named = |setting: &KnobValues| {
        let parts = plot.series.iter().filter_map(|knob| {
            let value = setting.get(knob)?;
            Some(match parse_number(value).is_some() {
                true => format!("{knob} {value}"),
                false => value.clone(),
            })
        });
        parts.collect::<Vec<_>>().join(", ")
    };
    let series = names
        .iter()
        .map(|name| ChartSeries {
            name: named(name),
            mark: SeriesMark::Measured(
                xs.iter()
                    .filter_map(|(knob_value, x)| {
                        let value = value(name, x)?;
                        Some((*knob_value, value.median, (value.low, value.high)))
                    })
                    .collect(),
            ),
        })
        .collect();
    let chart_data = LineChart {
        title: plot.title.clone(),
        is_secondary: false,
        x,
        y,
        series,
        shades: Vec::new(),
        references: Vec::new(),
    };
    let mut headings = vec![plot.x.clone()];
    headings.extend(names.iter().map(named));
    let rows = xs
        .iter()
        .map(|(knob_value, x)| ChartRow {
            x: *knob_value,
            text: (*x).clone(),
            cells: names
                .iter()
                .map(|name| {
                    value(name, x).map(|v| {
                        (
                            v.median,
                            with_micro_sign(&model::format_estimate(figure.unit, &v)),
                        )
                    })
                })
                .collect(),
        })
        .collect();
    Some(render_chart(&chart_data, &ChartData { headings, rows }))
}

#[cfg(test)]
mod tests {
    use linerate_record::experiment::{FigureSpec, KnobAxis};

    use super::*;

    /// Renders one point per value of a knob, with its figure and interval.
    fn drawn(knob: &str, points: &[(&str, f64, (f64, f64))]) -> String {
        let named = |value: &str| KnobValues::from([(knob.to_owned(), value.to_owned())]);
        let result = ExperimentResult {
            knobs: vec![KnobAxis {
                name: knob.to_owned(),
                values: points.iter().map(|point| point.0.to_owned()).collect(),
            }],
            figures: vec![FigureSpec {
                name: "trip".to_owned(),
                unit: FigureUnit::Nanos,
                description: String::new(),
                exact: false,
            }],
            points: (points.iter())
                .map(|&(value, median, (low, high))| ExperimentPoint {
                    setting: named(value),
                    figures: [(
                        "trip".to_owned(),
                        Estimate {
                            median,
                            low,
                            high,
                            runs: 5,
                        },
                    )]
                    .into(),
                    ..ExperimentPoint::default()
                })
                .collect(),
            ..ExperimentResult::default()
        };
        let plot = PlotSpec {
            title: "Trip".to_owned(),
            figure: "trip".to_owned(),
            x: knob.to_owned(),
            ..PlotSpec::default()
        };
        line_chart(&result, &plot).expect("a drawing")
    }

    /// Counts the caps of all whiskers in both drawings (wide and narrow).
    fn caps(drawing: &str, step: char) -> usize {
        let whiskers = drawing.split("class=\"whisker\" d=\"").skip(1);
        let count_caps = |whisker: &str| {
            let (path, _) = whisker.split_once('"').unwrap_or_default();
            path.matches(step).count()
        };
        whiskers.map(count_caps).sum()
    }

    #[test]
    fn untested_rows_and_details_are_folded() {
        let grid = |rows: &[&str], folded| ResultTable {
            title: "Packets".to_owned(),
            headings: vec!["place".to_owned(), "pps".to_owned()],
            label_columns: 1,
            rows: (rows.iter())
                .map(|row| vec![(*row).to_owned(), "1 /s".to_owned()])
                .collect(),
            untested_rows: vec![vec!["processes".to_owned(), "not tested".to_owned()]],
            folded,
        };
        let shown = table_section(&grid(&["rings"], false));
        let (before, after) = shown.split_once("<details>").expect("a fold");
        assert!(
            before.contains("rings") && !before.contains("processes"),
            "{shown}"
        );
        assert!(
            after.contains("1 row not tested") && after.contains("processes"),
            "{shown}"
        );
        let folded = table_section(&grid(&["rings"], true));
        assert!(
            folded.starts_with("<section>\n<details><summary>Packets"),
            "{folded}"
        );
    }

    #[test]
    fn interval_and_change_are_below_the_figure() {
        for (cell, value, below) in [
            ("23.5 Mb/s, up 71x", "23.5 Mb/s", &["up 71x"][..]),
            (
                "1,234 /s (1,200 to 1,300)",
                "1,234 /s",
                &["1,200 to\u{a0}1,300"],
            ),
            (
                "3 ms (2 ms to 4 ms), no clear change",
                "3 ms",
                &["2\u{a0}ms to\u{a0}4\u{a0}ms", "no clear change"],
            ),
        ] {
            let line = |text: &&str| format!("<span class=\"interval\">{text}</span>");
            let lines: String = below.iter().map(line).collect();
            assert_eq!(render_figure_cell(cell), format!("{value}{lines}"));
        }
        assert_eq!(render_figure_cell("1,234 /s"), "1,234 /s");
    }

    #[test]
    fn intervals_lie_within_the_axis() {
        let bars = drawn(
            "answer",
            &[
                ("kernel", 40e3, (30e3, 70e3)),
                ("stack", 20e3, (10e3, 25e3)),
            ],
        );
        assert_eq!(caps(&bars, 'v'), 8);
        for upper_bound in [70e3, 900e3] {
            let line = drawn(
                "hops",
                &[("0", 20e3, (18e3, 22e3)), ("1", 40e3, (30e3, upper_bound))],
            );
            assert_eq!(caps(&line, 'h'), 8, "{upper_bound}");
            // A wide interval selects the logarithmic axis.
            assert_eq!(line.contains("logarithmic"), upper_bound > 100e3);
        }
    }

    #[test]
    fn bars_of_very_different_length_are_visible() {
        let none = (0.0, 0.0);
        let bars = drawn("setup", &[("default", 55e3, none), ("kernel", 434e6, none)]);
        assert!(bars.contains("trip, logarithmic"), "{bars}");
    }
}
