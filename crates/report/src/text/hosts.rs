//! Table of hosts.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use linerate_metric::facts::Host;

use crate::facts::{self, Fact};
use crate::phrases::UNKNOWN;
use crate::style::{Paint, Style, clean};

/// Renders the facts of each host: one column per host, one row per fact.
#[must_use]
pub fn hosts(hosts: &[Host], style: &Style) -> String {
    if hosts.is_empty() {
        return "no host facts recorded".to_owned();
    }
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(u16::try_from(style.width).unwrap_or(u16::MAX));
    let headings = hosts
        .iter()
        .map(|host| clean(&facts::heading(host)).into_owned());
    table.set_header(std::iter::once("host".to_owned()).chain(headings));
    for row in facts::rows(hosts) {
        let cells = row.values.iter().map(cell);
        table.add_row(std::iter::once(row.name.to_owned()).chain(cells));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
        column.set_cell_alignment(CellAlignment::Left);
    }
    let lines: Vec<_> = table
        .lines()
        .enumerate()
        .map(|(position, line)| match position {
            0 => style.paint(Paint::Head, line.trim_end()),
            _ => line.trim_end().to_owned(),
        })
        .collect();
    lines.join("\n")
}

fn cell(fact: &Fact) -> String {
    match fact {
        Fact::Unknown => UNKNOWN.to_owned(),
        Fact::Value(value) => clean(value).into_owned(),
        Fact::List { summary, entries } => {
            let mut lines = vec![summary.clone()];
            lines.extend(
                entries
                    .iter()
                    .map(|(name, value)| format!("{}: {}", clean(name), clean(value))),
            );
            lines.join("\n")
        }
    }
}
