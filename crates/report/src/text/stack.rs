//! The user-space stack as text: configuration, memory, counters.

use linerate_record::facts::HostFacts;
use linerate_record::plan::RunKind;
use linerate_record::record::Record;
use linerate_record::stack::{ServiceFigures, StackFacts, StackInterval, StackMemory};
use linerate_stats::units::{format_bytes, format_count};

use super::table::render_table;
use crate::style::{PaintRole, TextStyle, strip_control_characters, wrap_with_prefix};

/// Renders the blocks of a record about the stacks of its hosts.
pub(crate) fn stack_blocks(record: &Record, style: &TextStyle) -> Vec<String> {
    let mut blocks = Vec::new();
    if let Some(figures) = &record.stack {
        blocks.extend(render_services(&figures.services, style));
    }
    for host in &record.hosts {
        let Some(stack) = &host.stack else { continue };
        blocks.push(render_heading(record, host, stack, style));
        if record.kind == RunKind::Stack {
            blocks.push(render_memory(&stack.memory, style));
        }
        blocks.extend(render_counters(stack, style));
    }
    blocks
}

/// Renders the counters of an interval: `12.0-13.0 s  udp: in_datagrams 1,234, …`.
#[must_use]
pub fn describe_interval(interval: &StackInterval) -> String {
    let seconds = |ns: u64| ns as f64 / 1e9;
    let mut text = format!(
        "{:.1}-{:.1} s",
        seconds(interval.start_ns),
        seconds(interval.end_ns)
    );
    if interval.counters.is_empty() {
        text.push_str("  no change");
    }
    for (protocol, counters) in &interval.counters {
        let counts: Vec<_> = (counters.iter())
            .map(|(name, count)| {
                format!(
                    "{} {}",
                    strip_control_characters(name),
                    format_count(*count)
                )
            })
            .collect();
        text.push_str(&format!(
            "  {}: {}",
            strip_control_characters(protocol),
            counts.join(", ")
        ));
    }
    text
}

/// Renders the heading of a stack: `user-space stack at the client  tap:t0 as 10.0.0.1/24; 1.2 MiB of memory,
/// allocated at start`.
fn render_heading(
    record: &Record,
    host: &HostFacts,
    stack: &StackFacts,
    style: &TextStyle,
) -> String {
    let prefix = match host.role.filter(|_| record.kind != RunKind::Stack) {
        Some(role) => format!("user-space stack at the {}  ", role.as_str()),
        None => "user-space stack  ".to_owned(),
    };
    let text = format!(
        "{} as {}; {} of memory, allocated at start",
        stack.device,
        stack.addresses.join(" and "),
        format_bytes(stack.memory.bytes)
    );
    wrap_with_prefix(
        &prefix,
        &style.paint(PaintRole::Heading, &prefix),
        &strip_control_characters(&text),
        style.width,
    )
}

/// Renders the complete configuration, one key per line.
#[must_use]
pub fn render_configuration(stack: &StackFacts, style: &TextStyle) -> String {
    let rows = stack.configuration.iter();
    let rows =
        rows.map(|(key, value)| vec![key.clone(), strip_control_characters(value).into_owned()]);
    render_table(&["setting", "value"], rows.collect(), 2, style)
}

/// Renders the memory of a stack by purpose.
#[must_use]
pub fn render_memory(memory: &StackMemory, style: &TextStyle) -> String {
    let row = |purpose: &str, bytes: u64| vec![purpose.to_owned(), format_bytes(bytes)];
    let mut rows: Vec<_> = (memory.items.iter())
        .map(|item| row(&strip_control_characters(&item.purpose), item.bytes))
        .collect();
    rows.push(row("total", memory.bytes));
    render_table(&["memory", "size"], rows, 1, style)
}

/// Renders the traffic of the services.
fn render_services(services: &[ServiceFigures], style: &TextStyle) -> Option<String> {
    // The column for lost responses exists only if there are any.
    let has_lost_responses = services.iter().any(|service| service.responses_lost > 0);
    let rows: Vec<_> = services
        .iter()
        .map(|service| {
            let mut row = vec![
                strip_control_characters(&service.service).into_owned(),
                service.port.to_string(),
                format_count(service.connections),
                format_count(service.datagrams),
                format_bytes(service.bytes_received),
                format_bytes(service.bytes_sent),
            ];
            row.extend(has_lost_responses.then(|| format_count(service.responses_lost)));
            row
        })
        .collect();
    let mut headings = vec![
        "service",
        "port",
        "connections",
        "datagrams",
        "received",
        "sent",
    ];
    headings.extend(has_lost_responses.then_some("responses lost"));
    (!rows.is_empty()).then(|| render_table(&headings, rows, 1, style))
}

/// Renders non-zero counters, one protocol per line as in /proc/net/snmp.
fn render_counters(stack: &StackFacts, style: &TextStyle) -> Option<String> {
    let rows: Vec<_> = (stack.counters.iter())
        .filter_map(|(protocol, counters)| {
            let nonzero = counters.iter().filter(|(_, count)| **count > 0);
            let parts: Vec<_> = nonzero
                .map(|(name, count)| format!("{name} {}", format_count(*count)))
                .collect();
            (!parts.is_empty()).then(|| {
                vec![
                    strip_control_characters(protocol).into_owned(),
                    strip_control_characters(&parts.join(", ")).into_owned(),
                ]
            })
        })
        .collect();
    (!rows.is_empty()).then(|| render_table(&["protocol", "counters"], rows, 2, style))
}
