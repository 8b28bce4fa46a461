//! History as text: lists of runs, marks, trends.

use linerate_record::expect::{FIGURES, FigureUnit};
use linerate_record::plan::Direction;

use super::render_note;
use super::table::render_table;
use crate::history::{ExpectationCounts, FigureTrend, HistoryEntry, PlanTrends, describe_period};
use crate::model;
use crate::phrases;
use crate::style::{PaintRole, TextStyle, strip_control_characters, wrap, wrap_with_prefix};

/// Figures in the order of preference for a list; the first that an entry has is shown.
const RESULT_FIGURES: &[&str] = &[
    "goodput",
    "p50",
    "connections",
    "pps",
    "offered",
    "round_trips",
];

fn unit_of(name: &str) -> FigureUnit {
    let entry = FIGURES.iter().find(|figure| figure.name == name);
    entry.map_or(FigureUnit::Count, |figure| figure.unit)
}

/// Describes the expectations of an experiment: `5 of 6 expectations hold, 2 in doubt`.
fn describe_expectations(shapes: &ExpectationCounts) -> String {
    let doubts = match shapes.with_caveats {
        0 => String::new(),
        n => format!(", {n} in doubt"),
    };
    match shapes.tested {
        0 => "no expectation tested".to_owned(),
        tested => format!("{} of {tested} expectations hold{doubts}", shapes.hold),
    }
}

/// Describes the result of an entry: `goodput 37.1 Gb/s`, `p50 56.1 us, p99 90.4 us`, `5 of 6
/// expectations hold (24 runs)`.
fn describe_result(entry: &HistoryEntry) -> String {
    if let Some(shapes) = &entry.expectations {
        return format!(
            "{} ({})",
            describe_expectations(shapes),
            model::count_of(entry.runs, "run")
        );
    }
    let shown = RESULT_FIGURES
        .iter()
        .find_map(|name| Some((*name, *entry.figures.get(*name)?)));
    let Some((name, value)) = shown else {
        return match (&entry.headline, entry.runs) {
            (None, 0 | 1) => model::UNKNOWN.to_owned(),
            (None, runs) => model::count_of(runs, "run"),
            (Some(headline), runs) => {
                let formatted = linerate_record::figure::format(&headline.figure, headline.value);
                format!(
                    "{} {formatted} ({})",
                    strip_control_characters(&headline.figure),
                    model::count_of(runs, "run")
                )
            }
        };
    };
    let mut text = format!("{name} {}", unit_of(name).format(value));
    if let ("p50", Some(p99)) = (name, entry.figures.get("p99")) {
        text.push_str(&format!(", p99 {}", FigureUnit::Nanos.format(*p99)));
    }
    if entry.runs > 1 {
        text.push_str(&format!(" ({})", model::count_of(entry.runs, "run")));
    }
    text
}

/// Text for an empty store.
#[must_use]
pub fn empty_store_text(dir: &str) -> String {
    format!(
        "No records in {}: nothing was measured yet, or results were not stored.\n\n\
         Try first:\n  \
         linerate demo                  all workloads on this machine, no root needed\n  \
         linerate throughput HOST       with `linerate server` running there\n  \
         linerate runs import FILE      add records of another machine",
        strip_control_characters(dir)
    )
}

/// Names the peer of a run: `10.77.0.2`, `10.77.0.2 (iperf3)`; in a server's record `from 10.77.0.1
/// (iperf3)`, with the direction from the server's view.
fn describe_peer(entry: &HistoryEntry) -> String {
    let (sends, receives) = (
        entry.directions.contains(&Direction::Receive),
        entry.directions.contains(&Direction::Send),
    );
    let mut peer = match &entry.client {
        None => entry.target.clone(),
        Some(client) if entry.kind == "latency" => format!("requests from {client}"),
        Some(client) if sends && receives => format!("bidirectional, {client}"),
        Some(client) if sends => format!("to {client}"),
        Some(client) => format!("from {client}"),
    };
    if let Some(peer_protocol) = &entry.peer_protocol {
        peer.push_str(&format!(" ({peer_protocol})"));
    }
    peer
}

/// Renders a list of documents, newest last. When the rows do not fit the width, result and notes
/// follow below each row.
#[must_use]
pub fn render_list(entries: &[HistoryEntry], style: &TextStyle) -> String {
    if entries.is_empty() {
        return "no record matches; `linerate runs list --all` lists all records".to_owned();
    }
    let rows: Vec<Vec<String>> = entries
        .iter()
        .map(|entry| {
            let mut notes: Vec<String> = Vec::new();
            if entry.interrupted {
                notes.push("interrupted".to_owned());
            }
            if entry.recorded_by.is_some() {
                notes.push("recorded by the server".to_owned());
            }
            notes.extend(
                entry
                    .label
                    .iter()
                    .map(|label| strip_control_characters(label).into_owned()),
            );
            notes.extend(
                entry
                    .tags
                    .iter()
                    .map(|tag| format!("#{}", strip_control_characters(tag))),
            );
            if let Some(note) = entry.notes.last() {
                notes.push(format!("\"{}\"", strip_control_characters(&note.text)));
            }
            let protocol = entry.protocol.clone().unwrap_or_default();
            let kind = entry
                .experiment
                .as_ref()
                .map(|name| format!("{} {name}", entry.kind));
            let kind_cell = match entry.kind.starts_with("set:") {
                true => kind.unwrap_or_else(|| entry.kind.clone()),
                false => format!("{} {protocol}", entry.kind).trim_end().to_owned(),
            };
            vec![
                strip_control_characters(&entry.id).into_owned(),
                strip_control_characters(&kind_cell).into_owned(),
                strip_control_characters(&describe_peer(entry)).into_owned(),
                describe_result(entry),
                notes.join(" "),
            ]
        })
        .collect();
    let headings = ["id", "kind", "peer", "result", "notes"];
    let flat = render_table(&headings, rows.clone(), headings.len(), style);
    match flat.lines().all(|line| line.chars().count() <= style.width) {
        true => flat,
        false => render_two_lines_per_row(rows, style),
    }
}

/// Renders rows with their last two columns below the others, indented.
fn render_two_lines_per_row(rows: Vec<Vec<String>>, style: &TextStyle) -> String {
    const INDENT: &str = "    ";
    let second_lines: Vec<String> = (rows.iter())
        .map(|row| match row[4].as_str() {
            "" => row[3].clone(),
            notes => format!("{}; {notes}", row[3]),
        })
        .collect();
    // The unlimited width keeps each row on one line.
    let wide = TextStyle {
        width: usize::MAX,
        ..*style
    };
    let first_lines = rows.into_iter().map(|row| row[..3].to_vec()).collect();
    let first_lines = render_table(&["id", "kind", "peer"], first_lines, 3, &wide);
    let mut lines = first_lines.lines();
    let mut out: Vec<String> = lines.next().map(str::to_owned).into_iter().collect();
    for (line, second_lines) in lines.zip(second_lines) {
        out.push(line.to_owned());
        let second_lines = wrap(&second_lines, style.width.saturating_sub(INDENT.len()));
        out.extend(
            second_lines
                .into_iter()
                .map(|line| format!("{INDENT}{line}")),
        );
    }
    out.join("\n")
}

/// Renders tags and notes of one document.
#[must_use]
pub fn render_marks(entry: &HistoryEntry, style: &TextStyle) -> String {
    let mut lines = Vec::new();
    if !entry.tags.is_empty() {
        let tags: Vec<_> = entry
            .tags
            .iter()
            .map(|tag| strip_control_characters(tag))
            .collect();
        lines.push(format!("tags  {}", tags.join(" ")));
    }
    for note in &entry.notes {
        let when = note.at.strftime("%Y-%m-%d %H:%M UTC");
        let text = format!("{when}: {}", strip_control_characters(&note.text));
        lines.push(wrap_with_prefix("note  ", "note  ", &text, style.width));
    }
    lines.join("\n")
}

/// Renders many runs: for each plan the figures over time, the first one with chart and levels.
#[must_use]
pub fn render_over_time(plans: &[PlanTrends], style: &TextStyle) -> String {
    let mut blocks = vec![style.paint(PaintRole::Bold, &describe_period(plans))];
    let (series, single): (Vec<_>, Vec<_>) = plans.iter().partition(|plan| !plan.trends.is_empty());
    for plan in &series {
        let title = strip_control_characters(&plan.title);
        let mut block = wrap(&title, style.width).join("\n");
        for trend in plan.trends.iter().skip(1) {
            let text = strip_control_characters(&trend.describe()).into_owned();
            block.push_str(&format!(
                "\n{}",
                wrap_with_prefix("  ", "  ", &text, style.width)
            ));
        }
        blocks.push(block);
        blocks.extend(plan.trends.first().map(|trend| render_trend(trend, style)));
    }
    let rows = single
        .iter()
        .flat_map(|plan| phrases::measurements(&plan.runs));
    let rows: Vec<Vec<String>> = rows
        .map(|row| {
            vec![
                row.run.started.strftime("%Y-%m-%d %H:%M").to_string(),
                strip_control_characters(&row.run.plan.host).into_owned(),
                strip_control_characters(&row.name).into_owned(),
                row.figure,
            ]
        })
        .collect();
    if !rows.is_empty() {
        if !series.is_empty() {
            blocks.push("Runs of other plans".to_owned());
        }
        let headings = ["started", "host", "run", "figure"];
        blocks.push(render_table(&headings, rows, 3, style));
    }
    blocks.join("\n\n")
}

/// Renders a figure over time: chart, levels, changes.
#[must_use]
pub fn render_trend(trend: &FigureTrend, style: &TextStyle) -> String {
    let format = |value: f64| model::format_value(trend.unit, value);
    let (Some(first), Some(last)) = (trend.points.first(), trend.points.last()) else {
        return format!(
            "no matching record has {}: see `linerate runs list`",
            trend.figure
        );
    };
    let runs = model::count_of(trend.points.len() as u64, "run");
    let title = format!(
        "{} of {runs}, {} to {}",
        trend.figure,
        first.started.strftime("%Y-%m-%d %H:%M"),
        last.started.strftime("%Y-%m-%d %H:%M UTC")
    );
    let mut blocks = vec![style.paint(PaintRole::Bold, &title)];
    if style.unicode {
        blocks.push(bar_chart(trend, style.width));
    }
    // Without a change there is no column of changes.
    let columns = match trend.levels.len() {
        1 => 6,
        _ => 7,
    };
    let rows = trend
        .levels
        .iter()
        .map(|level| {
            let first_point = &trend.points[level.from];
            let mut row = vec![
                first_point
                    .started
                    .strftime("%Y-%m-%d %H:%M:%S")
                    .to_string(),
                strip_control_characters(&first_point.id).into_owned(),
                (level.to - level.from).to_string(),
                format(level.figure.median),
                format(level.figure.low),
                format(level.figure.high),
                level.ratio.map_or_else(String::new, |ratio| {
                    format!("{:+.1} %", (ratio - 1.0) * 100.0)
                }),
            ];
            row.truncate(columns);
            row
        })
        .collect();
    let fewest_runs = trend.levels.iter().map(|level| level.figure.runs).min();
    let [low, high] = model::interval_headings(fewest_runs.unwrap_or(0));
    let headings = ["since", "first run", "runs", "median", low, high, "change"];
    blocks.push(render_table(&headings[..columns], rows, 2, style));
    if trend.levels.len() == 1 {
        blocks.push("The level did not change.".to_owned());
    }
    if trend.plans > 1 {
        let note = format!(
            "these runs have {} different plans, so a change may come from the plan: --like ID selects only \
             runs with the plan of ID",
            trend.plans
        );
        blocks.push(render_note(&note, style, style.width));
    }
    blocks.join("\n\n")
}

/// Renders a bar per run, or per group of runs when there are more runs than columns.
fn bar_chart(trend: &FigureTrend, width: usize) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let values: Vec<f64> = trend.points.iter().map(|point| point.value).collect();
    let values_per_bar = values.len().div_ceil(width.max(1)).max(1);
    let means: Vec<f64> = values
        .chunks(values_per_bar)
        .map(|chunk| chunk.iter().sum::<f64>() / chunk.len() as f64)
        .collect();
    let high = means.iter().copied().fold(f64::MIN, f64::max);
    let low = means.iter().copied().fold(f64::MAX, f64::min);
    means
        .iter()
        .map(|value| {
            let share = match high > low {
                true => (value - low) / (high - low),
                false => 0.5,
            };
            BARS[((share * 7.0).round() as usize).min(7)]
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_experiment_is_listed_with_its_verdict() {
        let entry = |shapes| HistoryEntry {
            kind: "set:experiment".to_owned(),
            experiment: Some("udp-hops".to_owned()),
            runs: 24,
            expectations: Some(shapes),
            ..HistoryEntry::default()
        };
        for (hold, tested, with_caveats, expected) in [
            (5, 6, 0, "5 of 6 expectations hold (24 runs)"),
            (6, 6, 2, "6 of 6 expectations hold, 2 in doubt (24 runs)"),
            (0, 0, 0, "no expectation tested (24 runs)"),
        ] {
            let shapes = ExpectationCounts {
                hold,
                tested,
                with_caveats,
            };
            let style = TextStyle {
                color: false,
                width: 120,
                unicode: true,
                brief: false,
            };
            let list = render_list(&[entry(shapes)], &style);
            assert!(list.contains(expected), "{list}");
            let single_run = HistoryEntry {
                runs: 1,
                ..entry(shapes)
            };
            let list = render_list(&[single_run], &style);
            assert!(list.contains("(1 run)"), "{list}");
        }
    }

    #[test]
    fn a_list_keeps_within_its_lines() {
        let entry = |id: &str, shapes| HistoryEntry {
            id: id.to_owned(),
            kind: "set:experiment".to_owned(),
            target: "10.77.0.2".to_owned(),
            experiment: Some("udp-response".to_owned()),
            runs: 36,
            interrupted: true,
            expectations: shapes,
            ..HistoryEntry::default()
        };
        let shapes = Some(ExpectationCounts {
            hold: 8,
            tested: 8,
            with_caveats: 7,
        });
        let entries = [
            entry("20261126T125413Z-677736", shapes),
            entry("20261126T125457Z-f1616e", None),
        ];
        let style = TextStyle {
            color: false,
            width: 80,
            unicode: false,
            brief: false,
        };
        insta::assert_snapshot!(render_list(&entries, &style), @r"
        id                       kind                         peer
        20261126T125413Z-677736  set:experiment udp-response  10.77.0.2
            8 of 8 expectations hold, 7 in doubt (36 runs); interrupted
        20261126T125457Z-f1616e  set:experiment udp-response  10.77.0.2
            36 runs; interrupted
        ");
        let wide = TextStyle {
            width: usize::MAX,
            ..style
        };
        // One line per entry, for grep.
        assert_eq!(render_list(&entries, &wide).lines().count(), 3);
    }

    #[test]
    fn a_level_that_did_not_change_has_no_column_of_changes() {
        let entry = |second: i64| HistoryEntry {
            id: format!("20261101T0000{second:02}Z-000001"),
            started: jiff::Timestamp::from_second(second).unwrap(),
            figures: [("goodput".to_owned(), 9e9)].into(),
            ..HistoryEntry::default()
        };
        let style = TextStyle {
            color: false,
            width: 80,
            unicode: false,
            brief: false,
        };
        for (count, runs) in [(1, "goodput of 1 run, "), (7, "goodput of 7 runs, ")] {
            let entries: Vec<HistoryEntry> = (0..count).map(entry).collect();
            let trend_of_entries = crate::history::trend("goodput", FigureUnit::BitRate, &entries);
            let text = render_trend(&trend_of_entries, &style);
            assert!(text.starts_with(runs), "{text}");
            assert_eq!(text.matches("first run").count(), 1, "one table: {text}");
        }
    }
}
