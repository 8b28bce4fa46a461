//! Facts of the hosts as text.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use linerate_record::facts::HostFacts;

use crate::facts::{self, FactValue};
use crate::model::UNKNOWN;
use crate::style::{PaintRole, TextStyle, strip_control_characters};

/// Renders the facts of each host: one column per host, one row per fact.
#[must_use]
pub fn render_hosts(hosts: &[HostFacts], style: &TextStyle) -> String {
    if hosts.is_empty() {
        return "no host facts recorded".to_owned();
    }
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(u16::try_from(style.width).unwrap_or(u16::MAX));
    let headings = hosts
        .iter()
        .map(|host| strip_control_characters(&facts::host_heading(host)).into_owned());
    table.set_header(std::iter::once("host".to_owned()).chain(headings));
    for row in facts::host_fact_rows(hosts) {
        let cells = row.values.iter().map(format_cell);
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
            0 => style.paint(PaintRole::Heading, line.trim_end()),
            _ => line.trim_end().to_owned(),
        })
        .collect();
    lines.join("\n")
}

fn format_cell(fact: &FactValue) -> String {
    match fact {
        FactValue::Unknown => UNKNOWN.to_owned(),
        FactValue::Text(value) => strip_control_characters(value).into_owned(),
        FactValue::List { summary, entries } => {
            let mut lines = vec![summary.clone()];
            lines.extend(entries.iter().map(|(name, value)| {
                format!(
                    "{}: {}",
                    strip_control_characters(name),
                    strip_control_characters(value)
                )
            }));
            lines.join("\n")
        }
    }
}
