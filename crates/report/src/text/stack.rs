//! The user-space stack: configuration, memory, counters.

use linerate_metric::facts::Host;
use linerate_metric::plan::Kind;
use linerate_metric::record::Record;
use linerate_metric::stack::{ServiceFigures, StackFacts, StackInterval, StackMemory};
use linerate_metric::units::{format_bytes, format_count};

use super::table::table;
use crate::figures;
use crate::style::{Paint, Style, clean, hang};

/// Renders the blocks of a record about the stacks of its hosts.
pub(crate) fn blocks(record: &Record, style: &Style) -> Vec<String> {
    let mut blocks = Vec::new();
    if let Some(figures) = &record.stack {
        blocks.extend(services(&figures.services, style));
    }
    for host in &record.hosts {
        let Some(stack) = &host.stack else { continue };
        blocks.push(heading(record, host, stack, style));
        if record.kind == Kind::Stack {
            blocks.push(memory(&stack.memory, style));
        }
        blocks.extend(counters(stack, style));
    }
    blocks
}

/// Renders the counters of an interval: `12.0-13.0 s  udp: in_datagrams 1,234, …`.
#[must_use]
pub fn interval(interval: &StackInterval) -> String {
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
        let counted: Vec<_> = (counters.iter())
            .map(|(name, count)| format!("{} {}", clean(name), format_count(*count)))
            .collect();
        text.push_str(&format!("  {}: {}", clean(protocol), counted.join(", ")));
    }
    text
}

/// Renders the heading of a stack: `client's stack tap:t0 as 10.0.0.1/24; 1.2 MiB of memory,
/// allocated at start`.
fn heading(record: &Record, host: &Host, stack: &StackFacts, style: &Style) -> String {
    let prefix = match host.role.filter(|_| record.kind != Kind::Stack) {
        Some(role) => format!("{}'s stack  ", figures::role(role)),
        None => "stack  ".to_owned(),
    };
    let words = format!(
        "{} as {}; {} of memory, allocated at start",
        stack.device,
        stack.addresses.join(" and "),
        format_bytes(stack.memory.bytes)
    );
    hang(
        &prefix,
        &style.paint(Paint::Head, &prefix),
        &clean(&words),
        style.width,
    )
}

/// Renders the complete configuration, one key per line.
#[must_use]
pub fn configuration(stack: &StackFacts, style: &Style) -> String {
    let rows = stack.configuration.iter();
    let rows = rows.map(|(key, value)| vec![key.clone(), clean(value).into_owned()]);
    table(&["setting", "value"], rows.collect(), 2, style)
}

/// Renders the memory of a stack by purpose.
#[must_use]
pub fn memory(memory: &StackMemory, style: &Style) -> String {
    let row = |what: &str, bytes: u64| vec![what.to_owned(), format_bytes(bytes)];
    let mut rows: Vec<_> = (memory.items.iter())
        .map(|item| row(&clean(&item.what), item.bytes))
        .collect();
    rows.push(row("total", memory.bytes));
    table(&["memory", "bytes"], rows, 1, style)
}

/// Renders the traffic of the services.
fn services(services: &[ServiceFigures], style: &Style) -> Option<String> {
    // The column for lost responses exists only if there are any.
    let lost = services.iter().any(|service| service.answers_lost > 0);
    let rows: Vec<_> = services
        .iter()
        .map(|service| {
            let mut row = vec![
                clean(&service.service).into_owned(),
                service.port.to_string(),
                format_count(service.connections),
                format_count(service.datagrams),
                format_bytes(service.bytes_received),
                format_bytes(service.bytes_sent),
            ];
            row.extend(lost.then(|| format_count(service.answers_lost)));
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
    headings.extend(lost.then_some("responses lost"));
    (!rows.is_empty()).then(|| table(&headings, rows, 1, style))
}

/// Renders non-zero counters, one protocol per line as in /proc/net/snmp.
fn counters(stack: &StackFacts, style: &Style) -> Option<String> {
    let rows: Vec<_> = (stack.counters.iter())
        .filter_map(|(protocol, counters)| {
            let counted = counters.iter().filter(|(_, count)| **count > 0);
            let words: Vec<_> = counted
                .map(|(name, count)| format!("{name} {}", format_count(*count)))
                .collect();
            (!words.is_empty()).then(|| {
                vec![
                    clean(protocol).into_owned(),
                    clean(&words.join(", ")).into_owned(),
                ]
            })
        })
        .collect();
    (!rows.is_empty()).then(|| table(&["protocol", "counters"], rows, 2, style))
}
