//! Page of an experiment: verdict, curves, tables, command of each point.

use std::fmt::Write as _;

use linerate_metric::expect::Unit;
use linerate_metric::experiment::{ExperimentResult, PlotOf, Point, Setting, ShapeState, number};
use linerate_metric::run_set::RunSet;
use linerate_metric::statistics::Estimate;
use linerate_metric::units::{format_count, format_nanos};

use super::figure::{Data, Row, chart};
use super::{experiment_points, hosts, pretty};
use crate::experiment::{
    Grid, circumstances, grid, published, shape_words, skipped, state, trends, verdict,
};
use crate::markdown;
use crate::phrases::{self, capitalised};
use crate::svg::{self, Axis, Bar, BarChart, Chart, Mark, Series, escape};
use crate::text;

/// Text for an experiment with reduced duration.
const QUICK: &str = "quick: fewer points, each shorter";

/// Renders the body of the page.
pub(super) fn body(result: &ExperimentResult, set: &RunSet) -> String {
    let mut out = format!(
        "<header>\n<p class=\"brand\">linerate</p>\n<h1>{}</h1>\n<p class=\"lead\">{}</p>\n<p class=\"lead\">{}</p>\n",
        escape(&result.title),
        escape(&verdict(result)),
        escape(&result.question)
    );
    let mut about = format!(
        "{}, started {}",
        phrases::amount(set.runs.len() as u64, "run"),
        set.started.strftime("%Y-%m-%d %H:%M:%S UTC")
    );
    for how in circumstances(result) {
        let how = if how == "quick" { QUICK } else { &how };
        let _ = write!(about, ", {how}");
    }
    let _ = writeln!(out, "<p class=\"muted\">{}</p>", escape(&about));
    if set.interrupted {
        let _ = writeln!(out, "<p class=\"callout\">{}</p>", super::INTERRUPTED);
    }
    for note in &set.result.notes {
        let _ = writeln!(out, "<p class=\"callout\">{}</p>", escape(note));
    }
    for kind in phrases::counted(&set.runs) {
        let _ = writeln!(
            out,
            "<p class=\"callout\"><b>Note.</b> {} <code>{}</code></p>",
            escape(&capitalised(&pretty(&kind.words()))),
            escape(&kind.example.doubt)
        );
    }
    out.push_str("</header>\n");
    out.push_str(&shapes(result));
    let plots: String = result
        .plots
        .iter()
        .filter_map(|plot| plotted(result, plot))
        .collect();
    if !plots.is_empty() {
        let _ = writeln!(out, "<section>\n<h2>Curves</h2>\n{plots}</section>");
    }
    for table in &result.tables {
        out.push_str(&tabled(&grid(result, table)));
    }
    for grid in published(result) {
        out.push_str(&tabled(&grid));
    }
    out.push_str(&slow(set));
    out.push_str(&experiment_points::section(result, set));
    out.push_str(&meanings(result));
    out.push_str(&experiment_points::ways(result, set));
    out.push_str(&hosts::section(set.runs.get(..1).unwrap_or_default()));
    out.push_str(&commands(result));
    out
}

fn shapes(result: &ExperimentResult) -> String {
    let mut out = String::from("<section>\n<h2>Expectations</h2>\n<ul>\n");
    for shape in &result.shapes {
        let _ = writeln!(
            out,
            "<li><b>{}</b>: {}</li>",
            escape(&state(shape).replace("DOES NOT AGREE", "does not agree")),
            escape(&pretty(&shape_words(shape)))
        );
    }
    out.push_str("</ul>\n");
    let trends = trends(result);
    let told = trends
        .iter()
        .filter(|trend| trend.state != ShapeState::Untested);
    let told: String = told
        .map(|trend| {
            let word = trend.word.replace("NOT", "not");
            format!("<li><b>{word}</b>: {}</li>\n", escape(&pretty(&trend.text)))
        })
        .collect();
    if !told.is_empty() {
        let _ = writeln!(out, "<h3>Published changes</h3>\n<ul>\n{told}</ul>");
    }
    out.push_str("</section>\n");
    for figure in &result.unread {
        let _ = writeln!(
            out,
            "<p class=\"callout\"><b>Note.</b> Figure missing from all records: {}</p>",
            escape(figure)
        );
    }
    out
}

fn tabled(grid: &Grid) -> String {
    let mut out = format!(
        "<section>\n<h2>{}</h2>\n<div class=\"scroll\"><table><thead><tr>",
        escape(&grid.title)
    );
    for (position, heading) in grid.headings.iter().enumerate() {
        let class = match position < grid.left {
            true => " class=\"text\"",
            false => "",
        };
        let _ = write!(out, "<th scope=\"col\"{class}>{}</th>", escape(heading));
    }
    out.push_str("</tr></thead><tbody>\n");
    for row in &grid.rows {
        out.push_str("<tr>");
        for (position, cell) in row.iter().enumerate() {
            let _ = match position < grid.left {
                true => write!(out, "<th scope=\"row\">{}</th>", escape(&pretty(cell))),
                false => write!(out, "<td>{}</td>", figure_cell(&pretty(cell))),
            };
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n</section>\n");
    out
}

/// Renders a figure with its interval and its change on separate lines, so that the columns of a
/// table stay narrow.
fn figure_cell(cell: &str) -> String {
    let with_interval = cell.split_once(" (").and_then(|(value, rest)| {
        let (interval, after) = rest.split_once(')')?;
        Some((value, vec![interval, after.trim_start_matches(", ")]))
    });
    let moved = || {
        let (value, way) = cell.split_once(", ")?;
        Some((value, vec![way]))
    };
    let (value, below) = with_interval.or_else(moved).unwrap_or((cell, Vec::new()));
    let mut out = escape(value);
    for line in below.iter().filter(|line| !line.is_empty()) {
        let line = super::figure::below(line);
        let _ = write!(out, "<span class=\"interval\">{line}</span>");
    }
    out
}

/// Number of slow responses shown on a page.
const SLOW: usize = 200;

/// Renders the slowest responses above the limit, folded; empty if there are none.
fn slow(set: &RunSet) -> String {
    let mut answers: Vec<_> = (set.runs.iter())
        .flat_map(|run| run.slow.iter().map(move |slow| (run, slow)))
        .collect();
    answers.sort_by_key(|(_, slow)| std::cmp::Reverse(slow.time_ns));
    let listed = answers.len();
    let rows: Vec<Vec<String>> = (answers.iter().take(SLOW))
        .map(|(run, slow)| {
            vec![
                phrases::name(run),
                slow.number.to_string(),
                format_nanos(slow.time_ns as f64),
                slow.cause.clone(),
            ]
        })
        .collect();
    let Some(grid) = text::Grid::new(&["run", "response", "time", "cause"], rows, 1) else {
        return String::new();
    };
    // A record lists a limited number of slow responses, but counts all of them.
    let all: u64 = set.runs.iter().filter_map(|run| run.summary.slow).sum();
    let all = all.max(listed as u64);
    let summary = match all {
        all if all > SLOW as u64 => format!("The {SLOW} slowest"),
        _ => "All slow responses".to_owned(),
    };
    let rest = match all {
        all if all > SLOW as u64 => {
            format!("; the records list {} of them", format_count(listed as u64))
        }
        _ => String::new(),
    };
    format!(
        "<section>\n<h2>Slow responses</h2>\n<p>{} responses took longer than the limit{rest}.</p>\n<details><summary>{summary}</summary>\n{}</details>\n</section>\n",
        format_count(all),
        super::figure::grid(&grid)
    )
}

fn meanings(result: &ExperimentResult) -> String {
    let mut out = String::from(
        "<section>\n<h2>Figures</h2>\n<details><summary>Meaning of each figure, and limits without root</summary>\n<ul>\n",
    );
    for figure in &result.figures {
        let _ = writeln!(
            out,
            "<li><b>{}</b>: {}</li>",
            escape(&figure.name.replace('_', " ")),
            escape(&figure.says)
        );
    }
    let _ = writeln!(
        out,
        "</ul>\n<p>Without root: {}</p>\n</details>\n</section>",
        escape(&result.without_root)
    );
    out
}

/// Renders the skipped points, and the commands of each point.
fn commands(result: &ExperimentResult) -> String {
    let mut out = String::from("<section>\n<h2>Points</h2>\n");
    for (because, points) in skipped(result) {
        let _ = writeln!(
            out,
            "<p class=\"callout\">Not tested: {}: {}.</p>",
            escape(&points.join(", ")),
            escape(&because)
        );
    }
    out.push_str(
        "<details><summary>Commands and records of each point</summary>\n<div class=\"scroll\"><table><thead><tr>",
    );
    for knob in &result.knobs {
        let name = escape(&knob.name);
        let _ = write!(out, "<th scope=\"col\" class=\"text\">{name}</th>");
    }
    out.push_str(
        "<th scope=\"col\" class=\"text\">command</th><th scope=\"col\" class=\"text\">records</th></tr></thead><tbody>\n",
    );
    for point in &result.points {
        out.push_str("<tr>");
        for knob in &result.knobs {
            let value = point.setting.get(&knob.name).map_or("", String::as_str);
            let _ = write!(out, "<th scope=\"row\">{}</th>", escape(value));
        }
        let _ = writeln!(
            out,
            "<td class=\"text command\">{}</td><td class=\"text\">{}</td></tr>",
            coded(point),
            escape(&point.runs.join(" "))
        );
    }
    out.push_str("</tbody></table></div></details>\n</section>\n");
    out
}

/// Renders the commands that repeat a point, one per line: setup, then measurement.
fn coded(point: &Point) -> String {
    let lines = point.around.iter().chain(&point.commands);
    let lines: Vec<String> = lines
        .map(|line| format!("<code>{}</code>", escape(line)))
        .collect();
    lines.join("<br>")
}

/// Ratio of the highest interval bound to the highest value above which the axis is logarithmic.
const PRESSED: f64 = 3.0;

/// Formats the name of a figure: `tcp send rate` for `tcp_send_rate`.
fn figure_words(name: &str) -> String {
    name.replace('_', " ")
}

/// Renders a figure by a non-numeric knob: one group of bars per combination of the other knobs.
fn barred(result: &ExperimentResult, plot: &PlotOf, unit: Unit) -> String {
    let mut groups: Vec<(Setting, Vec<(String, Estimate)>)> = Vec::new();
    for point in &result.points {
        let (Some(value), Some(x)) = (point.figures.get(&plot.figure), point.setting.get(&plot.x))
        else {
            continue;
        };
        let mut setting = point.setting.clone();
        setting.retain(|knob, _| plot.series.contains(knob));
        let bar = (x.clone(), *value);
        match groups.iter_mut().find(|(known, _)| *known == setting) {
            Some((_, bars)) => bars.push(bar),
            None => groups.push((setting, vec![bar])),
        }
    }
    let mut out = String::new();
    for (position, (setting, bars)) in groups.into_iter().enumerate() {
        let named: Vec<&str> = setting.values().map(String::as_str).collect();
        // The axis includes the intervals, and shows the shortest bar next to the longest.
        let values = || bars.iter().map(|bar| bar.1);
        let most = values().map(|value| value.median.max(value.high));
        let most = most.fold(0.0, f64::max);
        let least = values().map(|value| value.median).fold(most, f64::min);
        if most <= 0.0 {
            continue;
        }
        let drawn = BarChart {
            title: match named.is_empty() {
                true => plot.title.clone(),
                false => format!("{}: {}", plot.title, named.join(", ")),
            },
            axis: Axis::of_bars(
                &figure_words(&plot.figure),
                least,
                most,
                super::unit(unit, most),
            ),
            bars: bars
                .into_iter()
                .map(|(name, value)| Bar {
                    name,
                    value: value.median,
                    reach: Some((value.low, value.high)),
                    text: pretty(&markdown::figure(unit, &value)),
                    color: position,
                })
                .collect(),
        };
        out.push_str(&super::figure::bars(&drawn));
    }
    out
}

/// Renders a figure by a numeric knob, one line per combination of the others; `None` with fewer
/// than two values.
fn plotted(result: &ExperimentResult, plot: &PlotOf) -> Option<String> {
    let figure = result.figure(&plot.figure)?;
    let knob = result.knobs.iter().find(|knob| knob.name == plot.x)?;
    if knob.values.iter().any(|value| number(value).is_none()) {
        return Some(barred(result, plot, figure.unit));
    }
    let mut xs: Vec<(f64, &String)> = knob
        .values
        .iter()
        .filter_map(|value| Some((number(value)?, value)))
        .collect();
    xs.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut names: Vec<Setting> = Vec::new();
    for point in &result.points {
        let mut setting = point.setting.clone();
        setting.retain(|knob, _| plot.series.contains(knob));
        if !names.contains(&setting) && point.figures.contains_key(&plot.figure) {
            names.push(setting);
        }
    }
    let value = |setting: &Setting, x: &String| {
        let mut asked = setting.clone();
        asked.insert(plot.x.clone(), x.clone());
        let mut fitting = result.fitting(&asked);
        fitting.find_map(|point| point.figures.get(&plot.figure).copied())
    };
    let all: Vec<Estimate> = names
        .iter()
        .flat_map(|name| xs.iter().filter_map(|(_, x)| value(name, x)))
        .collect();
    let highest = all.iter().map(|value| value.median).reduce(f64::max)?;
    let reach = all.iter().map(|value| value.high).fold(highest, f64::max);
    let least = all.iter().map(|value| value.low.min(value.median));
    let least = least.fold(highest, f64::min);
    // The axis is logarithmic if a line would lie on the zero line, or if a wide interval would
    // compress the rest.
    let lowest_line = names.iter().filter_map(|name| {
        let values = xs.iter().filter_map(|(_, x)| value(name, x));
        values.map(|value| value.median).reduce(f64::max)
    });
    let lowest_line = lowest_line.fold(highest, f64::min);
    let is_pressed = Axis::are_apart(lowest_line, highest) || reach > highest * PRESSED;
    let (first, last) = (xs.first()?.0, xs.last()?.0);
    if xs.len() < 2 {
        return None;
    }
    let unit = super::unit(figure.unit, highest);
    let y_name = figure_words(&figure.name);
    let y = match is_pressed && least > 0.0 {
        true => Axis::log(&y_name, least, reach, unit),
        false => Axis::from_zero(&y_name, reach, unit),
    };
    let x = match plot.log_x && first > 0.0 {
        true => Axis::log_count(&plot.x, first, last),
        false => Axis::between(&plot.x, first, last, svg::Unit::COUNT),
    };
    let named = |setting: &Setting| {
        let words = plot.series.iter().filter_map(|knob| {
            let value = setting.get(knob)?;
            Some(match number(value).is_some() {
                true => format!("{knob} {value}"),
                false => value.clone(),
            })
        });
        words.collect::<Vec<_>>().join(", ")
    };
    let series = names
        .iter()
        .map(|name| Series {
            name: named(name),
            mark: Mark::Measured(
                xs.iter()
                    .filter_map(|(at, x)| {
                        let value = value(name, x)?;
                        Some((*at, value.median, (value.low, value.high)))
                    })
                    .collect(),
            ),
        })
        .collect();
    let drawn = Chart {
        title: plot.title.clone(),
        low: false,
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
        .map(|(at, x)| Row {
            x: *at,
            text: (*x).clone(),
            cells: names
                .iter()
                .map(|name| {
                    value(name, x).map(|v| (v.median, pretty(&markdown::figure(figure.unit, &v))))
                })
                .collect(),
        })
        .collect();
    Some(chart(&drawn, &Data { headings, rows }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_metric::experiment::{FigureOf, Knob};

    /// Renders one point per value of a knob, with its figure and interval.
    fn drawn(knob: &str, points: &[(&str, f64, (f64, f64))]) -> String {
        let named = |value: &str| Setting::from([(knob.to_owned(), value.to_owned())]);
        let result = ExperimentResult {
            knobs: vec![Knob {
                name: knob.to_owned(),
                values: points.iter().map(|point| point.0.to_owned()).collect(),
            }],
            figures: vec![FigureOf {
                name: "trip".to_owned(),
                unit: Unit::Nanos,
                says: String::new(),
                exact: false,
            }],
            points: (points.iter())
                .map(|&(value, median, (low, high))| Point {
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
                    ..Point::default()
                })
                .collect(),
            ..ExperimentResult::default()
        };
        let plot = PlotOf {
            title: "Trip".to_owned(),
            figure: "trip".to_owned(),
            x: knob.to_owned(),
            ..PlotOf::default()
        };
        plotted(&result, &plot).expect("a drawing")
    }

    /// Counts the caps of all whiskers in both drawings (wide and narrow).
    fn caps(drawing: &str, step: char) -> usize {
        let whiskers = drawing.split("class=\"whisker\" d=\"").skip(1);
        let ends = |whisker: &str| {
            let (path, _) = whisker.split_once('"').unwrap_or_default();
            path.matches(step).count()
        };
        whiskers.map(ends).sum()
    }

    #[test]
    fn what_is_said_of_a_figure_stands_below_it() {
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
            assert_eq!(figure_cell(cell), format!("{value}{lines}"));
        }
        assert_eq!(figure_cell("1,234 /s"), "1,234 /s");
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
        for far in [70e3, 900e3] {
            let line = drawn(
                "hops",
                &[("0", 20e3, (18e3, 22e3)), ("1", 40e3, (30e3, far))],
            );
            assert_eq!(caps(&line, 'h'), 8, "{far}");
            // A wide interval selects the logarithmic axis.
            assert_eq!(line.contains("logarithmic"), far > 100e3);
        }
    }

    #[test]
    fn bars_far_apart_are_seen_beside_each_other() {
        let none = (0.0, 0.0);
        let bars = drawn("setup", &[("default", 55e3, none), ("kernel", 434e6, none)]);
        assert!(bars.contains("trip, logarithmic"), "{bars}");
    }
}
