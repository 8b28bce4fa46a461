//! Summary of one run.

use linerate_metric::plan::{Kind, Plan};
use linerate_metric::record::{DirectionFigures, Record, Summary};
use linerate_metric::units::{format_count, format_nanos};

use super::table::table;
use super::{SHOWN, and_more, note, stages};
use crate::costs;
use crate::figures::{self, Figure};
use crate::forward;
use crate::phrases::{self, UNKNOWN, or_unknown};
use crate::round_trips;
use crate::style::{Paint, Style, clean, hang, wrap};
use crate::timeline::{file_words, trigger_words};

/// Renders a run: title, figures by direction and stream, cost, losses, findings, caveats. A record
/// of a server is rendered from the server's view.
#[must_use]
pub fn summary(record: &Record, style: &Style) -> String {
    told(record, record.served.as_ref().map(|it| &*it.client), style)
}

/// Renders a run from the view of the server, for a test with this client.
#[must_use]
pub fn served_summary(record: &Record, peer: &str, style: &Style) -> String {
    let peer = match peer {
        "" => "a client",
        peer => peer,
    };
    told(record, Some(peer), style)
}

fn told(record: &Record, client: Option<&str>, style: &Style) -> String {
    let serving = client.is_some();
    let mut blocks = vec![heading(record, client, style)];
    blocks.extend(match record.kind {
        Kind::Throughput => vec![by_direction(record, serving, style)],
        Kind::Generate => super::generate_tables(record, style),
        Kind::Latency => vec![
            one_row(figures::round_trip_times(&record.summary), style),
            one_row(figures::round_trips(&record.summary), style),
        ],
        Kind::Forward => forward_blocks(record, style),
        Kind::Stack => Vec::new(),
    });
    blocks.extend(super::stack::blocks(record, style));
    blocks.extend(
        round_trips::more_times(record)
            .map(|(headings, rows)| table(&headings, rows, headings.len(), style)),
    );
    blocks.extend(slow(record, style));
    blocks.extend(super::pacing::pacing(record, serving, style));
    blocks.extend(streams(record, serving, style));
    if !matches!(record.kind, Kind::Forward | Kind::Generate | Kind::Stack) {
        let mut costs = vec![cpu(&record.summary, style)];
        costs.extend(memory(record, style));
        costs.extend(buffers(record, style));
        blocks.push(costs.join(
            "
",
        ));
    }
    blocks.extend(figures::verification(record).map(|cost| {
        let prefix = "verified: ";
        hang(
            prefix,
            &style.paint(Paint::Head, prefix),
            &cost,
            style.width,
        )
    }));
    blocks.extend(losses(record, serving, style));
    blocks.extend(super::calls::calls(record, style));
    blocks.extend(stages::stages(record, style));
    blocks.extend(stages::drivers(record, style));
    blocks.extend(timeline(record, style));
    if !record.findings.is_empty() {
        let told = super::findings::told(&record.findings, serving, style);
        blocks.push(told);
    }
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

/// Renders a forwarding run, which has no client and server.
fn forward_blocks(record: &Record, style: &Style) -> Vec<String> {
    let mut blocks = vec![one_row(
        figures::figures(&record.plan, &record.summary),
        style,
    )];
    if let Some(figures) = &record.forward {
        blocks.extend(forward::link_table(figures).map(|grid| grid.text(style)));
        blocks.push(forward::core_statistics(figures));
        blocks.extend(forward::memory(figures).map(|words| {
            let prefix = "memory  ";
            hang(
                prefix,
                &style.paint(Paint::Head, prefix),
                &words,
                style.width,
            )
        }));
    }
    blocks
}

fn heading(record: &Record, client: Option<&str>, style: &Style) -> String {
    let plan = &record.plan;
    let title = match (client, &plan.dialect) {
        (None, _) => phrases::title(plan),
        (Some(client), None) => phrases::served_title(plan, client),
        (Some(client), Some(dialect)) => {
            format!("{} ({dialect})", phrases::served_title(plan, client))
        }
    };
    let title = match &record.label {
        Some(label) => format!("{label}: {title}"),
        None => title,
    };
    let mut lines = vec![style.paint(Paint::Bold, &clean(&title))];
    let mut details = match &plan.forward {
        Some(forward) => {
            forward::details(forward, record.summary.duration_ns.or(plan.duration_ns)).join(", ")
        }
        None => phrases::details(plan).join(", "),
    };
    if let Some(wait) = &plan.wait {
        details.push_str("; ");
        details.push_str(&phrases::ends("client", "server", wait, &plan.cpu));
    }
    lines.extend(
        wrap(&clean(&details), style.width)
            .iter()
            .map(|line| style.paint(Paint::Dim, line)),
    );
    lines.extend(ways(record, style));
    if record.interrupted {
        let until = record.summary.duration_ns.map_or_else(
            || "the figures cover the time until then".to_owned(),
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

/// Renders the access mode of each port that had a choice, one line per port.
pub(super) fn ways(record: &Record, style: &Style) -> Vec<String> {
    let line = |(port, words): &(String, String)| {
        let prefix = format!("{}: ", clean(port));
        let head = style.paint(Paint::Head, &prefix);
        hang(&prefix, &head, &clean(words), style.width)
    };
    obtained(record).iter().map(line).collect()
}

/// Returns the access mode of ports that had a choice: `xdp:eth0`, `XDP native; copy: …`.
fn obtained(record: &Record) -> Vec<(String, String)> {
    let forward = record.forward.iter().flat_map(|figures| &figures.ports);
    let forward = forward.map(|port| (&port.name, &port.notes, &port.xdp));
    let generate = record.generate.iter();
    let generate =
        generate.flat_map(|figures| std::iter::once(&figures.send).chain(&figures.receive));
    let all = forward.chain(generate.map(|port| (&port.name, &port.notes, &port.xdp)));
    let mut found: Vec<(String, String)> = all
        .filter_map(|(name, notes, xdp)| {
            let ways = way_of(notes).into_iter();
            let ways: Vec<_> = ways.chain(xdp.as_ref().map(forward::waking)).collect();
            (!ways.is_empty()).then(|| (name.clone(), ways.join("; ")))
        })
        .collect();
    found.dedup();
    found
}

/// Selects the notes that name an access mode; the others are advice.
fn way_of(notes: &[String]) -> Option<String> {
    const BEGIN: [&str; 3] = ["XDP ", "copy: ", "zero-copy: "];
    let is_way = |note: &&String| {
        BEGIN.iter().any(|begin| note.starts_with(begin)) && !note.starts_with("XDP programs")
    };
    let ways: Vec<&str> = notes.iter().filter(is_way).map(String::as_str).collect();
    (!ways.is_empty()).then(|| ways.join("; "))
}

fn by_direction(record: &Record, serving: bool, style: &Style) -> String {
    let whole = [DirectionFigures {
        direction: *record
            .plan
            .directions
            .first()
            .unwrap_or(&linerate_metric::plan::Direction::Send),
        summary: record.summary.clone(),
        streams: Vec::new(),
    }];
    // A run that ended before its directions were set up still has a summary.
    let directions = if record.directions.is_empty() {
        &whole[..]
    } else {
        &record.directions
    };
    let mut headings = vec!["direction", "time"];
    let mut rows = Vec::new();
    for direction in directions {
        let shown = figures::figures(&record.plan, &direction.summary);
        if rows.is_empty() {
            headings.extend(shown.iter().map(|figure| figure.name));
        }
        let mut row = vec![
            phrases::way(direction.direction, serving).to_owned(),
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

/// Renders the streams and their total; `None` for a single stream.
fn streams(record: &Record, serving: bool, style: &Style) -> Option<String> {
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
        headings.push("direction");
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
            let way = phrases::way(direction.direction, serving).to_owned();
            row(stream.id.to_string(), Some(way), &stream.summary)
        })
        .collect();
    if flows.len() > SHOWN {
        let mut more = vec![and_more(flows.len() - SHOWN, style)];
        more.resize(headings.len(), String::new());
        rows.push(more);
    }
    for direction in &record.directions {
        let way = phrases::way(direction.direction, serving).to_owned();
        rows.push(row("all".to_owned(), Some(way), &direction.summary));
    }
    let left = if both_ways { 2 } else { 1 };
    Some(table(&headings, rows, left, style))
}

/// Returns a stream's figures; for round trips only those that differ between streams.
fn stream_figures(plan: &Plan, summary: &Summary) -> Vec<Figure> {
    let mut shown = figures::stream_figures(plan, summary);
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
            let words = cost.map_or_else(|| UNKNOWN.to_owned(), figures::cpu_words);
            let mut line = hang(
                &prefix,
                &style.paint(Paint::Head, &prefix),
                &words,
                style.width,
            );
            if let Some(time) = cost.and_then(costs::time_words) {
                let indent = " ".repeat(prefix.len());
                line.push('\n');
                line.push_str(&hang(&indent, &indent, &time, style.width));
            }
            line
        })
        .collect();
    lines.join("\n")
}

/// Renders the memory per stream; `None` for a single stream.
fn memory(record: &Record, style: &Style) -> Option<String> {
    let words = costs::memory_words(record)?;
    let prefix = "memory per stream  ";
    let head = style.paint(Paint::Head, prefix);
    Some(hang(prefix, &head, &words, style.width))
}

/// Renders the file of the timeline and the state of its trigger.
fn timeline(record: &Record, style: &Style) -> Option<String> {
    let lines: Vec<_> = [file_words(record), trigger_words(record)]
        .into_iter()
        .flatten()
        .map(|words| {
            let prefix = "timeline: ";
            let head = style.paint(Paint::Head, prefix);
            hang(prefix, &head, &clean(&words), style.width)
        })
        .collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// Renders the socket buffers granted by the kernel, if sizes were requested.
fn buffers(record: &Record, style: &Style) -> Option<String> {
    let words = phrases::granted_buffers(record)?;
    let prefix = "granted buffers  ";
    let head = style.paint(Paint::Head, prefix);
    Some(hang(prefix, &head, &words, style.width))
}

/// Renders the first slow responses with their causes, and the number of each cause.
fn slow(record: &Record, style: &Style) -> Option<String> {
    let (headings, rows) = round_trips::slow_rows(record, SHOWN);
    if rows.is_empty() {
        return None;
    }
    let rows: Vec<Vec<String>> = rows
        .into_iter()
        .map(|row| row.iter().map(|cell| clean(cell).into_owned()).collect())
        .collect();
    let mut text = table(&headings, rows, headings.len(), style);
    if record.slow.len() > SHOWN {
        text.push('\n');
        text.push_str(&and_more(record.slow.len() - SHOWN, style));
    }
    let counted = record.summary.slow.unwrap_or(0);
    let listed = match record.slow.len() as u64 {
        listed if listed < counted => format!("causes of the first {}: ", format_count(listed)),
        _ => "causes: ".to_owned(),
    };
    let causes = clean(&round_trips::causes(record)).into_owned();
    text.push_str("\n\n");
    text.push_str(&hang(&listed, &listed, &causes, style.width));
    Some(text)
}

fn losses(record: &Record, serving: bool, style: &Style) -> Option<String> {
    if record.losses.is_empty() {
        return None;
    }
    let rows = record
        .losses
        .iter()
        .map(|loss| {
            vec![
                clean(&loss.place).into_owned(),
                phrases::way(loss.direction, serving).to_owned(),
                figures::loss_count(loss),
                figures::place(&loss.place).unwrap_or_default().to_owned(),
            ]
        })
        .collect();
    Some(table(
        &["lost at", "direction", "packets", "meaning"],
        rows,
        4,
        style,
    ))
}
