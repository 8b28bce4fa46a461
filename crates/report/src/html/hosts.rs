//! Tables of hosts, folded behind one line each.

use linerate_metric::facts::Host;
use linerate_metric::plan::Kind;
use linerate_metric::record::Record;

use crate::facts::{self, Fact, Row};
use crate::phrases::{self, amount};
use crate::svg::escape;

/// Number of hosts per table, limited by the width.
const BESIDE: usize = 2;

/// Renders the hosts of the first run, and for other runs the facts that differ.
pub(super) fn section(runs: &[Record]) -> String {
    if runs.is_empty() {
        return String::new();
    }
    let first: &[Host] = runs
        .iter()
        .map(|run| &run.hosts[..])
        .find(|hosts| !hosts.is_empty())
        .unwrap_or_default();
    let mut out = String::from("<section>\n<h2>Hosts</h2>\n");
    if first.is_empty() {
        out.push_str("<p class=\"muted\">No host facts recorded.</p>\n");
    }
    let has_far_end = |run: &Record| matches!(run.kind, Kind::Throughput | Kind::Latency);
    if runs
        .iter()
        .any(|run| run.hosts.len() == 1 && has_far_end(run))
    {
        out.push_str(
            "<p class=\"muted\">The facts of the server are missing in at least one run.</p>\n",
        );
    }
    let shared = |run: &Record| match &run.hosts[..] {
        [near, far] => near.boot_id.is_some() && near.boot_id == far.boot_id,
        _ => false,
    };
    if runs.iter().any(shared) {
        out.push_str(
            "<p class=\"muted\">Client and server run on the same kernel and share its cores.</p>\n",
        );
    }
    for hosts in first.chunks(BESIDE) {
        let names: Vec<String> = hosts.iter().map(in_a_line).collect();
        out.push_str(&folded(&names.join("; "), &facts::rows(hosts), hosts));
    }
    let mut told: Vec<Vec<String>> = Vec::new();
    for run in runs {
        if run.hosts.is_empty() || run.hosts.len() > BESIDE {
            continue;
        }
        // With another number of hosts, positions do not correspond.
        let rows = match run.hosts.len() == first.len() {
            true => unlike(first, &run.hosts),
            false => facts::rows(&run.hosts),
        };
        if rows.is_empty() {
            continue;
        }
        let texts: Vec<String> = rows.iter().map(|row| line(row, &run.hosts)).collect();
        // Equal differences of several runs are shown once.
        if told.contains(&texts) || told.len() == OTHERS {
            continue;
        }
        let what: Vec<&str> = rows.iter().map(|row| row.name).collect();
        let summary = match run.hosts.len() == first.len() {
            true => format!("Of {}: other {}", phrases::name(run), what.join(", ")),
            false => {
                let names: Vec<String> = run.hosts.iter().map(in_a_line).collect();
                format!("Of {}: {}", phrases::name(run), names.join("; "))
            }
        };
        out.push_str(&folded(&summary, &rows, &run.hosts));
        told.push(texts);
    }
    out.push_str("</section>\n");
    out
}

/// Largest number of tables of differences.
const OTHERS: usize = 8;

/// Returns the rows in which hosts differ from the hosts of the first run at the same positions.
fn unlike(first: &[Host], other: &[Host]) -> Vec<Row> {
    let known = facts::rows(first);
    let mut rows = facts::rows(other);
    rows.retain(|row| {
        let before = known.iter().find(|known| known.name == row.name);
        before.is_none_or(|before| before.values != row.values)
    });
    rows
}

/// Describes a host in one line: `client (alpha): Linux 6.18, 2 processors, eth0`.
fn in_a_line(host: &Host) -> String {
    let mut words: Vec<String> = Vec::new();
    words.extend(host.kernel.as_ref().map(|kernel| format!("Linux {kernel}")));
    let processors = host.cpu.logical.map(u64::from);
    words.extend(processors.map(|count| amount(count, "processor")));
    words.extend(host.interface.as_ref().map(|i| i.name.clone()));
    match words.is_empty() {
        true => facts::heading(host),
        false => format!("{}: {}", facts::heading(host), words.join(", ")),
    }
}

fn folded(summary: &str, rows: &[Row], hosts: &[Host]) -> String {
    format!(
        "<details><summary>{}</summary>\n{}</details>\n",
        escape(summary),
        table(rows, hosts)
    )
}

fn table(rows: &[Row], hosts: &[Host]) -> String {
    let mut out = String::from("<table class=\"hosts\"><thead><tr><td></td>");
    for host in hosts {
        out.push_str(&format!(
            "<th scope=\"col\">{}</th>",
            escape(&facts::heading(host))
        ));
    }
    out.push_str("</tr></thead><tbody>");
    for row in rows {
        out.push_str(&line(row, hosts));
    }
    out.push_str("</tbody></table>\n");
    out
}

fn line(row: &Row, hosts: &[Host]) -> String {
    let mut out = format!("<tr><th scope=\"row\">{}</th>", escape(row.name));
    let same = row.values.len() > 1 && row.values.iter().all(|value| *value == row.values[0]);
    if same {
        // A value shared by both hosts has one cell, so that differences are visible.
        out.push_str(&format!(
            "<td colspan=\"{}\">{}</td>",
            hosts.len(),
            cell(&row.values[0])
        ));
    } else {
        for (value, host) in row.values.iter().zip(hosts) {
            out.push_str(&format!(
                "<td data-host=\"{}\">{}</td>",
                escape(&facts::heading(host)),
                cell(value)
            ));
        }
    }
    out.push_str("</tr>");
    out
}

fn cell(fact: &Fact) -> String {
    match fact {
        Fact::Unknown => "-".to_owned(),
        Fact::Value(value) => escape(value),
        Fact::List { summary, entries } => {
            let entries: String = entries
                .iter()
                .map(|(name, value)| format!("<dt>{}</dt><dd>{}</dd>", escape(name), escape(value)))
                .collect();
            format!(
                "<details><summary>{}</summary><dl>{entries}</dl></details>",
                escape(summary)
            )
        }
    }
}
