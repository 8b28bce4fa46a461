//! Tables of hosts, folded behind one line each.

use linerate_record::facts::HostFacts;
use linerate_record::plan::RunKind;
use linerate_record::record::Record;

use crate::facts::{self, FactValue, HostFactRow};
use crate::model::count_of;
use crate::phrases;
use crate::svg::escape_markup;

/// Number of hosts per table, limited by the width.
const HOSTS_PER_TABLE: usize = 2;

/// Renders the hosts of the first run, and for other runs the facts that differ.
pub(super) fn host_section(runs: &[Record]) -> String {
    if runs.is_empty() {
        return String::new();
    }
    let first: &[HostFacts] = runs
        .iter()
        .map(|run| &run.hosts[..])
        .find(|hosts| !hosts.is_empty())
        .unwrap_or_default();
    let mut out = String::from("<section>\n<h2>Hosts</h2>\n");
    if first.is_empty() {
        out.push_str("<p class=\"muted\">No host facts recorded.</p>\n");
    }
    let has_server = |run: &Record| matches!(run.kind, RunKind::Throughput | RunKind::Latency);
    if runs
        .iter()
        .any(|run| run.hosts.len() == 1 && has_server(run))
    {
        out.push_str(
            "<p class=\"muted\">The facts of the server are missing in at least one run.</p>\n",
        );
    }
    let share_a_kernel = |run: &Record| match &run.hosts[..] {
        [client, server] => client.boot_id.is_some() && client.boot_id == server.boot_id,
        _ => false,
    };
    if runs.iter().any(share_a_kernel) {
        out.push_str(
            "<p class=\"muted\">Client and server run on the same kernel and share its CPUs.</p>\n",
        );
    }
    for hosts in first.chunks(HOSTS_PER_TABLE) {
        let names: Vec<String> = hosts.iter().map(host_summary).collect();
        out.push_str(&render_folded(
            &names.join("; "),
            &facts::host_fact_rows(hosts),
            hosts,
        ));
    }
    let mut shown: Vec<Vec<String>> = Vec::new();
    for run in runs {
        if run.hosts.is_empty() || run.hosts.len() > HOSTS_PER_TABLE {
            continue;
        }
        // With another number of hosts, positions do not correspond.
        let rows = match run.hosts.len() == first.len() {
            true => differing_rows(first, &run.hosts),
            false => facts::host_fact_rows(&run.hosts),
        };
        if rows.is_empty() {
            continue;
        }
        let texts: Vec<String> = rows.iter().map(|row| fact_row(row, &run.hosts)).collect();
        // Equal differences of several runs are shown once.
        if shown.contains(&texts) || shown.len() == MAX_DIFFERENCE_TABLES {
            continue;
        }
        let fact_names: Vec<&str> = rows.iter().map(|row| row.name).collect();
        let summary = match run.hosts.len() == first.len() {
            true => format!(
                "Of {}: other {}",
                phrases::run_name(run),
                fact_names.join(", ")
            ),
            false => {
                let names: Vec<String> = run.hosts.iter().map(host_summary).collect();
                format!("Of {}: {}", phrases::run_name(run), names.join("; "))
            }
        };
        out.push_str(&render_folded(&summary, &rows, &run.hosts));
        shown.push(texts);
    }
    out.push_str("</section>\n");
    out
}

/// Largest number of tables of differences.
const MAX_DIFFERENCE_TABLES: usize = 8;

/// Returns the rows in which hosts differ from the hosts of the first run at the same positions.
fn differing_rows(first: &[HostFacts], hosts: &[HostFacts]) -> Vec<HostFactRow> {
    let first_rows = facts::host_fact_rows(first);
    let mut rows = facts::host_fact_rows(hosts);
    rows.retain(|row| {
        let first_row = first_rows
            .iter()
            .find(|first_rows| first_rows.name == row.name);
        first_row.is_none_or(|first_row| first_row.values != row.values)
    });
    rows
}

/// Describes a host in one line: `client (alpha): Linux 6.18, 2 processors, eth0`.
fn host_summary(host: &HostFacts) -> String {
    let mut parts: Vec<String> = Vec::new();
    parts.extend(host.kernel.as_ref().map(|kernel| format!("Linux {kernel}")));
    let processors = host.cpu.logical.map(u64::from);
    parts.extend(processors.map(|count| count_of(count, "CPU")));
    parts.extend(host.interface.as_ref().map(|i| i.name.clone()));
    match parts.is_empty() {
        true => facts::host_heading(host),
        false => format!("{}: {}", facts::host_heading(host), parts.join(", ")),
    }
}

fn render_folded(summary: &str, rows: &[HostFactRow], hosts: &[HostFacts]) -> String {
    format!(
        "<details><summary>{}</summary>\n{}</details>\n",
        escape_markup(summary),
        host_table(rows, hosts)
    )
}

fn host_table(rows: &[HostFactRow], hosts: &[HostFacts]) -> String {
    let mut out = String::from("<table class=\"hosts\"><thead><tr><td></td>");
    for host in hosts {
        out.push_str(&format!(
            "<th scope=\"col\">{}</th>",
            escape_markup(&facts::host_heading(host))
        ));
    }
    out.push_str("</tr></thead><tbody>");
    for row in rows {
        out.push_str(&fact_row(row, hosts));
    }
    out.push_str("</tbody></table>\n");
    out
}

fn fact_row(row: &HostFactRow, hosts: &[HostFacts]) -> String {
    let mut out = format!("<tr><th scope=\"row\">{}</th>", escape_markup(row.name));
    let is_shared = row.values.len() > 1 && row.values.iter().all(|value| *value == row.values[0]);
    if is_shared {
        // A value shared by both hosts has one cell, so that differences are visible.
        out.push_str(&format!(
            "<td colspan=\"{}\">{}</td>",
            hosts.len(),
            fact_cell(&row.values[0])
        ));
    } else {
        for (value, host) in row.values.iter().zip(hosts) {
            out.push_str(&format!(
                "<td data-host=\"{}\">{}</td>",
                escape_markup(&facts::host_heading(host)),
                fact_cell(value)
            ));
        }
    }
    out.push_str("</tr>");
    out
}

fn fact_cell(fact: &FactValue) -> String {
    match fact {
        FactValue::Unknown => "-".to_owned(),
        FactValue::Text(value) => escape_markup(value),
        FactValue::List { summary, entries } => {
            let entries: String = entries
                .iter()
                .map(|(name, value)| {
                    format!(
                        "<dt>{}</dt><dd>{}</dd>",
                        escape_markup(name),
                        escape_markup(value)
                    )
                })
                .collect();
            format!(
                "<details><summary>{}</summary><dl>{entries}</dl></details>",
                escape_markup(summary)
            )
        }
    }
}
