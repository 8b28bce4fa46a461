//! The summary of one run.

use linerate_metric::plan::{Kind, Plan};
use linerate_metric::record::{DirectionFigures, Record, Summary};
use linerate_metric::units::format_nanos;

use super::table::table;
use super::{SHOWN, and_more, note};
use crate::figures::{self, Figure};
use crate::style::{Paint, Style, clean, hang, wrap};
use crate::words::{self, UNKNOWN, or_unknown};

/// Everything people look for after a run: what was done, the figures by direction and stream, what it
/// cost, what was lost where, and what speaks against the figures.
#[must_use]
pub fn summary(record: &Record, style: &Style) -> String {
    let mut blocks = vec![heading(record, style)];
    blocks.extend(match record.kind {
        Kind::Throughput => vec![by_direction(record, style)],
        Kind::Latency => vec![
            one_row(figures::round_trip_times(&record.summary), style),
            one_row(figures::round_trips(&record.summary), style),
        ],
    });
    blocks.extend(streams(record, style));
    blocks.push(cpu(&record.summary, style));
    blocks.extend(losses(record, style));
    let notes: Vec<_> = record
        .validity
        .iter()
        .map(|doubt| note(doubt, style, style.width))
        .collect();
    if !notes.is_empty() {
        blocks.push(notes.join("\n"));
    }
    blocks.join("\n\n")
}

fn heading(record: &Record, style: &Style) -> String {
    let plan = &record.plan;
    let title = match &record.label {
        Some(label) => format!("{label}: {}", words::title(plan)),
        None => words::title(plan),
    };
    let mut lines = vec![style.paint(Paint::Bold, &clean(&title))];
    let mut details = words::details(plan).join(", ");
    if let Some(wait) = &plan.wait {
        details.push_str("; ");
        details.push_str(&words::ends("client", "server", wait, &plan.cpu));
    }
    lines.extend(
        wrap(&clean(&details), style.width)
            .iter()
            .map(|line| style.paint(Paint::Dim, line)),
    );
    if record.interrupted {
        let until = record.summary.duration_ns.map_or_else(
            || "the figures cover what was measured until then".to_owned(),
            |time| format!("the figures cover {}", format_nanos(time as f64)),
        );
        lines.push(hang(
            "interrupted: ",
            &style.paint(Paint::Warn, "interrupted: "),
            &until,
            style.width,
        ));
    }
    lines.join("\n")
}

fn by_direction(record: &Record, style: &Style) -> String {
    let whole = [DirectionFigures {
        direction: *record
            .plan
            .directions
            .first()
            .unwrap_or(&linerate_metric::plan::Direction::Send),
        summary: record.summary.clone(),
        streams: Vec::new(),
    }];
    // A run that ended before its directions were known still has its summary.
    let directions = if record.directions.is_empty() {
        &whole[..]
    } else {
        &record.directions
    };
    let mut headings = vec!["way", "time"];
    let mut rows = Vec::new();
    for direction in directions {
        let shown = figures::figures(&record.plan, &direction.summary);
        if rows.is_empty() {
            headings.extend(shown.iter().map(|figure| figure.name));
        }
        let mut row = vec![
            direction.direction.to_string(),
            or_unknown(direction.summary.duration_ns, |time| {
                format_nanos(time as f64)
            }),
        ];
        row.extend(values(shown));
        rows.push(row);
    }
    table(&headings, rows, 1, style)
}

fn one_row(shown: Vec<Figure>, style: &Style) -> String {
    let headings: Vec<_> = shown.iter().map(|figure| figure.name).collect();
    table(&headings, vec![values(shown).collect()], 0, style)
}

fn values(shown: Vec<Figure>) -> impl Iterator<Item = String> {
    shown
        .into_iter()
        .map(|figure| or_unknown(figure.value, |value| value))
}

/// The flows, when there are several of them, with what they come to.
fn streams(record: &Record, style: &Style) -> Option<String> {
    let flows: Vec<_> = record
        .directions
        .iter()
        .flat_map(|direction| {
            direction
                .streams
                .iter()
                .map(move |stream| (direction, stream))
        })
        .collect();
    let both_ways = record.directions.len() > 1;
    if flows.len() <= record.directions.len() {
        return None;
    }
    let mut headings = vec!["stream"];
    if both_ways {
        headings.push("way");
    }
    headings.extend(
        stream_figures(&record.plan, &Summary::default())
            .iter()
            .map(|f| f.name),
    );
    let row = |name: String, way: Option<String>, summary: &Summary| {
        let mut row = vec![name];
        if both_ways {
            row.push(way.unwrap_or_default());
        }
        row.extend(values(stream_figures(&record.plan, summary)));
        row
    };
    let mut rows: Vec<_> = flows
        .iter()
        .take(SHOWN)
        .map(|(direction, stream)| {
            let way = direction.direction.to_string();
            row(stream.id.to_string(), Some(way), &stream.summary)
        })
        .collect();
    if flows.len() > SHOWN {
        let mut more = vec![and_more(flows.len() - SHOWN, style)];
        more.resize(headings.len(), String::new());
        rows.push(more);
    }
    for direction in &record.directions {
        let way = direction.direction.to_string();
        rows.push(row("all".to_owned(), Some(way), &direction.summary));
    }
    let left = if both_ways { 2 } else { 1 };
    Some(table(&headings, rows, left, style))
}

/// A flow's figures: of round trips the few that tell flows apart.
fn stream_figures(plan: &Plan, summary: &Summary) -> Vec<Figure> {
    let mut shown = figures::figures(plan, summary);
    if plan.kind == Kind::Latency {
        shown
            .retain(|figure| matches!(figure.name, "p50" | "p99" | "max" | "round trips" | "lost"));
    }
    shown
}

fn cpu(summary: &Summary, style: &Style) -> String {
    let lines: Vec<_> = figures::cpu(summary)
        .into_iter()
        .map(|(role, cost)| {
            let prefix = format!("cpu {}  ", figures::role(role));
            let cost = cost.map_or_else(|| UNKNOWN.to_owned(), figures::cpu_words);
            hang(
                &prefix,
                &style.paint(Paint::Head, &prefix),
                &cost,
                style.width,
            )
        })
        .collect();
    lines.join("\n")
}

fn losses(record: &Record, style: &Style) -> Option<String> {
    if record.losses.is_empty() {
        return None;
    }
    let rows = record
        .losses
        .iter()
        .map(|loss| {
            vec![
                clean(&loss.place).into_owned(),
                loss.direction.to_string(),
                figures::loss_count(loss),
                figures::place(&loss.place).unwrap_or_default().to_owned(),
            ]
        })
        .collect();
    Some(table(
        &["lost at", "way", "packets", "what it is"],
        rows,
        4,
        style,
    ))
}
