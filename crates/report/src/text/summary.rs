//! Summary of one run as text.

use linerate_record::facts::Role;
use linerate_record::plan::{Plan, RunKind};
use linerate_record::record::{DirectionFigures, Record, Summary};
use linerate_stats::units::{format_count, format_nanos};

use super::table::render_table;
use super::{MAX_LIST_ENTRIES, more_entries, render_caveat, stages};
use crate::costs;
use crate::figures;
use crate::forward;
use crate::model::{self, SummaryFigure, UNKNOWN, or_unknown};
use crate::phrases;
use crate::round_trips;
use crate::style::{PaintRole, TextStyle, strip_control_characters, wrap, wrap_with_prefix};
use crate::timeline::{describe_file, describe_trigger};

/// Renders a run: title, figures by direction and stream, cost, losses, findings, caveats. A record
/// of a server is rendered from the server's view.
#[must_use]
pub fn render_summary(record: &Record, style: &TextStyle) -> String {
    render_for(
        record,
        record.served_client.as_ref().map(|it| &*it.address),
        true,
        style,
    )
}

/// Renders a run whose title and details were printed at its start.
#[must_use]
pub fn render_finished_run(record: &Record, style: &TextStyle) -> String {
    render_for(record, None, false, style)
}

/// Renders a test in one line of a server's log: time of its start, client, result, causes.
#[must_use]
pub fn render_server_line(record: &Record, peer: &str) -> String {
    let peer = match peer {
        "" => "a client",
        peer => peer,
    };
    let mut title = phrases::server_view_title(&record.plan, peer);
    if let Some(protocol) = &record.plan.peer_protocol {
        title.push_str(&format!(" ({protocol})"));
    }
    let mut parts = Vec::new();
    let summaries = match record.directions.len() {
        // A run that ended before its directions were set up still has a summary.
        0 => vec![(None, &record.summary)],
        _ => (record.directions.iter())
            .map(|of| (Some(of.direction), &of.summary))
            .collect(),
    };
    for (direction, summary) in &summaries {
        let name = direction
            .filter(|_| summaries.len() > 1)
            .map_or("", |direction| model::direction_name(direction, true));
        let shown = figures::log_figures(&record.plan, summary);
        parts.push(format!("{name} {}", shown.join(", ")).trim().to_owned());
    }
    if record.interrupted {
        parts.push("interrupted".to_owned());
    }
    parts.dedup();
    let causes = (record.findings.iter()).filter(|finding| finding.is_cause());
    parts.extend(list_ids(
        "cause",
        causes.map(|finding| finding.cause.as_str()),
    ));
    let caveats = record.validity.iter().map(|caveat| caveat.id.as_str());
    parts.extend(list_ids("note", caveats));
    let started = record.started.strftime("%Y-%m-%d %H:%M:%SZ");
    let line = format!("{started} {title}: {}", parts.join("; "));
    strip_control_characters(&line).into_owned()
}

/// Lists distinct ids after their kind: `causes a, b`; `None` without any.
fn list_ids<'a>(kind: &str, ids: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut distinct: Vec<&str> = Vec::new();
    for id in ids {
        if !distinct.contains(&id) {
            distinct.push(id);
        }
    }
    match &distinct[..] {
        [] => None,
        [id] => Some(format!("{kind} {id}")),
        ids => Some(format!("{kind}s {}", ids.join(", "))),
    }
}

/// Renders a run from the view of the server, for a test with this client.
#[must_use]
pub fn render_server_summary(
    record: &Record,
    peer: &str,
    details: bool,
    style: &TextStyle,
) -> String {
    let peer = match peer {
        "" => "a client",
        peer => peer,
    };
    render_for(record, Some(peer), details, style)
}

fn render_for(record: &Record, client: Option<&str>, details: bool, style: &TextStyle) -> String {
    let serving = client.is_some();
    let mut blocks = vec![render_heading(record, client, details, style)];
    blocks.extend(match record.kind {
        RunKind::Throughput => vec![render_directions(record, serving, style)],
        RunKind::Generate => super::generator_tables(record, style),
        RunKind::Latency => vec![
            render_one_row(labelled_rtt_figures(&record.summary), style),
            render_one_row(figures::round_trip_figures(&record.summary), style),
        ],
        RunKind::Forward => forward_blocks(record, style),
        RunKind::Stack => Vec::new(),
    });
    blocks.extend(super::stack::stack_blocks(record, style));
    blocks.extend(
        round_trips::further_distributions(record)
            .map(|(headings, rows)| render_table(&headings, rows, headings.len(), style)),
    );
    blocks.extend(render_slow_responses(record, style));
    blocks.extend(super::pacing::render_pacing(record, serving, style));
    blocks.extend(render_streams(record, serving, style));
    if !matches!(
        record.kind,
        RunKind::Forward | RunKind::Generate | RunKind::Stack
    ) {
        let mut costs = vec![render_cpu(record, style)];
        costs.extend(render_memory(record, style).filter(|_| !style.brief));
        costs.extend(render_granted_buffers(record, style));
        blocks.push(costs.join(
            "
",
        ));
    }
    blocks.extend(figures::describe_verification(record).map(|cost| {
        let prefix = "verified: ";
        wrap_with_prefix(
            prefix,
            &style.paint(PaintRole::Heading, prefix),
            &cost,
            style.width,
        )
    }));
    blocks.extend(render_losses(record, serving, style));
    blocks.extend(super::calls::render_calls(record, style));
    blocks.extend(stages::render_stages(record, style));
    blocks.extend(stages::render_receive_drivers(record, style));
    blocks.extend(render_timeline(record, style));
    if !record.findings.is_empty() {
        let findings = super::findings::render_findings_for(&record.findings, serving, style);
        blocks.push(findings);
    }
    let notes: Vec<_> = record
        .validity
        .iter()
        .map(|caveat| render_caveat(caveat, style, style.width))
        .collect();
    if !notes.is_empty() {
        blocks.push(notes.join("\n"));
    }
    if blocks[0].is_empty() {
        blocks.remove(0);
        return format!("\n{}", blocks.join("\n\n"));
    }
    blocks.join("\n\n")
}

/// Renders a forwarding run, which has no client and server.
fn forward_blocks(record: &Record, style: &TextStyle) -> Vec<String> {
    let mut blocks = vec![render_one_row(
        figures::summary_figures(&record.plan, &record.summary),
        style,
    )];
    if let Some(figures) = &record.forward {
        blocks.extend(forward::link_table(figures).map(|grid| grid.render(style)));
        blocks.push(forward::core_statistics(figures));
        blocks.extend(forward::describe_memory(figures).map(|text| {
            let prefix = "memory  ";
            wrap_with_prefix(
                prefix,
                &style.paint(PaintRole::Heading, prefix),
                &text,
                style.width,
            )
        }));
    }
    blocks
}

fn render_heading(
    record: &Record,
    client: Option<&str>,
    with_details: bool,
    style: &TextStyle,
) -> String {
    let plan = &record.plan;
    let title = match (client, &plan.peer_protocol) {
        (None, _) => phrases::plan_title(plan),
        (Some(client), None) => phrases::server_view_title(plan, client),
        (Some(client), Some(peer_protocol)) => {
            format!(
                "{} ({peer_protocol})",
                phrases::server_view_title(plan, client)
            )
        }
    };
    let title = match &record.label {
        Some(label) => format!("{label}: {title}"),
        None => title,
    };
    let mut lines = vec![style.paint(PaintRole::Bold, &strip_control_characters(&title))];
    if style.brief && !with_details {
        lines.clear();
    }
    let mut details = match &plan.forward {
        Some(forward) => {
            forward::describe_plan(forward, record.summary.duration_ns.or(plan.duration_ns))
                .join(", ")
        }
        None => phrases::plan_details(plan).join(", "),
    };
    if let Some(wait) = plan.wait.as_ref().filter(|_| !style.brief) {
        details.push_str("; ");
        let [client, server] =
            [Role::Client, Role::Server].map(|role| model::role_name(plan, role));
        details.push_str(&phrases::describe_wait(client, server, wait, &plan.cpu));
    }
    let details = wrap(&strip_control_characters(&details), style.width).into_iter();
    let details = details.filter(|_| with_details);
    lines.extend(details.map(|line| style.paint(PaintRole::Dim, &line)));
    lines.extend(access_mode_lines(record, style));
    if record.interrupted {
        let covered_time = record.summary.duration_ns.map_or_else(
            || "the figures cover the time until then".to_owned(),
            |time| format!("the figures cover {}", format_nanos(time as f64)),
        );
        lines.push(wrap_with_prefix(
            "interrupted: ",
            &style.paint(PaintRole::Warn, "interrupted: "),
            &covered_time,
            style.width,
        ));
    }
    lines.join("\n")
}

/// Renders the access mode of each port that had a choice, one line per port.
pub(super) fn access_mode_lines(record: &Record, style: &TextStyle) -> Vec<String> {
    let render_line = |(port, text): &(String, String)| {
        let prefix = format!("{}: ", strip_control_characters(port));
        let head = style.paint(PaintRole::Heading, &prefix);
        wrap_with_prefix(&prefix, &head, &strip_control_characters(text), style.width)
    };
    access_modes(record).iter().map(render_line).collect()
}

/// Returns the access mode of ports that had a choice: `xdp:eth0`, `XDP native; copy: …`.
fn access_modes(record: &Record) -> Vec<(String, String)> {
    let forward = record.forward.iter().flat_map(|figures| &figures.ports);
    let forward = forward.map(|port| (&port.name, &port.notes, &port.xdp));
    let generate = record.generate.iter();
    let generate =
        generate.flat_map(|figures| std::iter::once(&figures.send).chain(&figures.receive));
    let ports = forward.chain(generate.map(|port| (&port.name, &port.notes, &port.xdp)));
    let mut modes_by_port: Vec<(String, String)> = ports
        .filter_map(|(name, notes, xdp)| {
            let modes = access_mode_of(notes).into_iter();
            let modes: Vec<_> = modes
                .chain(xdp.as_ref().map(forward::describe_wakeup))
                .collect();
            (!modes.is_empty()).then(|| (name.clone(), modes.join("; ")))
        })
        .collect();
    modes_by_port.dedup();
    modes_by_port
}

/// Selects the notes that name an access mode; the others are advice.
fn access_mode_of(notes: &[String]) -> Option<String> {
    const PREFIXES: [&str; 3] = ["XDP ", "copy: ", "zero-copy: "];
    let is_mode = |note: &&String| {
        PREFIXES.iter().any(|begin| note.starts_with(begin)) && !note.starts_with("XDP programs")
    };
    let modes: Vec<&str> = notes.iter().filter(is_mode).map(String::as_str).collect();
    (!modes.is_empty()).then(|| modes.join("; "))
}

fn render_directions(record: &Record, serving: bool, style: &TextStyle) -> String {
    let full_summary = [DirectionFigures {
        direction: *record
            .plan
            .directions
            .first()
            .unwrap_or(&linerate_record::plan::Direction::Send),
        summary: record.summary.clone(),
        streams: Vec::new(),
    }];
    // A run that ended before its directions were set up still has a summary.
    let directions = if record.directions.is_empty() {
        &full_summary[..]
    } else {
        &record.directions
    };
    let mut headings = vec!["direction", "time"];
    let mut rows = Vec::new();
    for direction in directions {
        let shown = figures::summary_figures(&record.plan, &direction.summary);
        if rows.is_empty() {
            headings.extend(shown.iter().map(|figure| figure.name));
        }
        let mut row = vec![
            model::direction_name(direction.direction, serving).to_owned(),
            or_unknown(direction.summary.duration_ns, |time| {
                format_nanos(time as f64)
            }),
        ];
        row.extend(figure_values(shown));
        rows.push(row);
    }
    let mut text = render_table(&headings, rows, 1, style);
    for direction in directions {
        if let Some(unsent) = figures::describe_unsent(&direction.summary) {
            let name = model::direction_name(direction.direction, serving);
            for line in wrap(&format!("{name}: {unsent}"), style.width) {
                text.push('\n');
                text.push_str(&line);
            }
        }
    }
    text
}

/// Returns the figures of the round trips; with a schedule they say from when they count.
fn labelled_rtt_figures(summary: &Summary) -> Vec<SummaryFigure> {
    let mut shown = figures::rtt_figures(summary);
    if summary.rtt_intended_ns.is_some() {
        let from = model::summary_figure("from", "start of the times", Some("sent".to_owned()));
        shown.insert(0, from);
    }
    shown
}

fn render_one_row(figures: Vec<SummaryFigure>, style: &TextStyle) -> String {
    let headings: Vec<_> = figures.iter().map(|figure| figure.name).collect();
    render_table(&headings, vec![figure_values(figures).collect()], 0, style)
}

fn figure_values(figures: Vec<SummaryFigure>) -> impl Iterator<Item = String> {
    figures
        .into_iter()
        .map(|figure| or_unknown(figure.value, |value| value))
}

/// Renders the streams and their total; `None` for a single stream.
fn render_streams(record: &Record, serving: bool, style: &TextStyle) -> Option<String> {
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
    let bidirectional = record.directions.len() > 1;
    if flows.len() <= record.directions.len() {
        return None;
    }
    let mut headings = vec!["flow"];
    if bidirectional {
        headings.push("direction");
    }
    headings.extend(
        figures_of_stream(&record.plan, &Summary::default())
            .iter()
            .map(|f| f.name),
    );
    let row = |name: String, direction_name: Option<String>, summary: &Summary| {
        let mut row = vec![name];
        if bidirectional {
            row.push(direction_name.unwrap_or_default());
        }
        row.extend(figure_values(figures_of_stream(&record.plan, summary)));
        row
    };
    let mut rows: Vec<_> = flows
        .iter()
        .take(MAX_LIST_ENTRIES)
        .map(|(direction, stream)| {
            let direction_name = model::direction_name(direction.direction, serving).to_owned();
            row(stream.id.to_string(), Some(direction_name), &stream.summary)
        })
        .collect();
    if flows.len() > MAX_LIST_ENTRIES {
        let mut remaining_row = vec![more_entries(flows.len() - MAX_LIST_ENTRIES, style)];
        remaining_row.resize(headings.len(), String::new());
        rows.push(remaining_row);
    }
    for direction in &record.directions {
        let direction_name = model::direction_name(direction.direction, serving).to_owned();
        rows.push(row(
            "all".to_owned(),
            Some(direction_name),
            &direction.summary,
        ));
    }
    let label_columns = if bidirectional { 2 } else { 1 };
    Some(render_table(&headings, rows, label_columns, style))
}

/// Returns a stream's figures; for round trips only those that differ between streams.
fn figures_of_stream(plan: &Plan, summary: &Summary) -> Vec<SummaryFigure> {
    let mut shown = figures::stream_figures(plan, summary);
    if plan.kind == RunKind::Latency {
        shown
            .retain(|figure| matches!(figure.name, "p50" | "p99" | "max" | "round trips" | "lost"));
    }
    shown
}

fn render_cpu(record: &Record, style: &TextStyle) -> String {
    let lines: Vec<_> = figures::cpu_costs(&record.summary)
        .into_iter()
        .map(|(role, cost)| {
            let prefix = format!("cpu {}  ", model::role_name(&record.plan, role));
            let describe = match style.brief {
                true => costs::describe_cpu_briefly,
                false => figures::describe_cpu,
            };
            let text = cost.map_or_else(|| UNKNOWN.to_owned(), describe);
            let mut line = wrap_with_prefix(
                &prefix,
                &style.paint(PaintRole::Heading, &prefix),
                &text,
                style.width,
            );
            let time = cost.filter(|_| !style.brief);
            if let Some(time) = time.and_then(costs::describe_time) {
                let indent = " ".repeat(prefix.len());
                line.push('\n');
                line.push_str(&wrap_with_prefix(&indent, &indent, &time, style.width));
            }
            line
        })
        .collect();
    lines.join("\n")
}

/// Renders the memory per stream; `None` for a single stream.
fn render_memory(record: &Record, style: &TextStyle) -> Option<String> {
    let text = costs::describe_memory(record)?;
    let prefix = "memory per flow  ";
    let head = style.paint(PaintRole::Heading, prefix);
    Some(wrap_with_prefix(prefix, &head, &text, style.width))
}

/// Renders the file of the timeline and the state of its trigger.
fn render_timeline(record: &Record, style: &TextStyle) -> Option<String> {
    let lines: Vec<_> = [describe_file(record), describe_trigger(record)]
        .into_iter()
        .flatten()
        .map(|text| {
            let prefix = "timeline: ";
            let head = style.paint(PaintRole::Heading, prefix);
            wrap_with_prefix(prefix, &head, &strip_control_characters(&text), style.width)
        })
        .collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// Renders the socket buffers granted by the kernel, if sizes were requested.
fn render_granted_buffers(record: &Record, style: &TextStyle) -> Option<String> {
    let text = phrases::describe_granted_buffers(record)?;
    let prefix = "granted buffers  ";
    let head = style.paint(PaintRole::Heading, prefix);
    Some(wrap_with_prefix(prefix, &head, &text, style.width))
}

/// Renders the first slow responses with their causes, and the number of each cause.
fn render_slow_responses(record: &Record, style: &TextStyle) -> Option<String> {
    let (headings, rows) = round_trips::slow_response_rows(record, MAX_LIST_ENTRIES);
    if rows.is_empty() {
        return None;
    }
    let rows: Vec<Vec<String>> = rows
        .into_iter()
        .map(|row| {
            row.iter()
                .map(|cell| strip_control_characters(cell).into_owned())
                .collect()
        })
        .collect();
    let mut text = render_table(&headings, rows, headings.len(), style);
    if record.slow.len() > MAX_LIST_ENTRIES {
        text.push('\n');
        text.push_str(&more_entries(record.slow.len() - MAX_LIST_ENTRIES, style));
    }
    let count = record.summary.slow.unwrap_or(0);
    let prefix = match record.slow.len() as u64 {
        prefix if prefix < count => format!("causes of the first {}: ", format_count(prefix)),
        _ => "causes: ".to_owned(),
    };
    let causes = strip_control_characters(&round_trips::count_causes(record)).into_owned();
    text.push_str("\n\n");
    text.push_str(&wrap_with_prefix(&prefix, &prefix, &causes, style.width));
    Some(text)
}

fn render_losses(record: &Record, serving: bool, style: &TextStyle) -> Option<String> {
    if record.losses.is_empty() {
        return None;
    }
    let rows = record
        .losses
        .iter()
        .map(|loss| {
            vec![
                strip_control_characters(loss.place.as_str()).into_owned(),
                model::direction_name(loss.direction, serving).to_owned(),
                figures::format_loss_count(loss),
                (loss.place.known())
                    .map_or("", figures::describe_loss_point)
                    .to_owned(),
            ]
        })
        .collect();
    Some(render_table(
        &["lost at", "direction", "packets", "meaning"],
        rows,
        4,
        style,
    ))
}
