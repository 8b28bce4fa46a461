//! The table of hosts that a report opens with.

use linerate_metric::facts::Host;
use linerate_metric::plan::Kind;
use linerate_metric::record::Record;

use crate::facts::{self, Fact, Row};
use crate::svg::escape;

/// Hosts side by side; more would not fit beside each other.
const BESIDE: usize = 2;

/// Every different host of the runs.
pub(super) fn section(runs: &[Record]) -> String {
    let mut hosts: Vec<Host> = Vec::new();
    for host in runs.iter().flat_map(|run| &run.hosts) {
        if !hosts.contains(host) {
            hosts.push(host.clone());
        }
    }
    let mut out = String::from("<section>\n<h2>Hosts</h2>\n");
    if hosts.is_empty() {
        out.push_str("<p class=\"muted\">Nothing is known of the hosts.</p>\n");
    }
    for hosts in hosts.chunks(BESIDE) {
        out.push_str(&table(hosts));
    }
    let has_far_end = |run: &Record| matches!(run.kind, Kind::Throughput | Kind::Latency);
    if runs
        .iter()
        .any(|run| run.hosts.len() == 1 && has_far_end(run))
    {
        out.push_str(
            "<p class=\"muted\">Nothing is known of the far end of at least one run.</p>\n",
        );
    }
    let shared = |run: &Record| match &run.hosts[..] {
        [near, far] => near.boot_id.is_some() && near.boot_id == far.boot_id,
        _ => false,
    };
    if runs.iter().any(shared) {
        out.push_str(
            "<p class=\"muted\">Both ends run on the same kernel and share its cores.</p>\n",
        );
    }
    out.push_str("</section>\n");
    out
}

fn table(hosts: &[Host]) -> String {
    let mut out = String::from("<table class=\"hosts\"><thead><tr><td></td>");
    for host in hosts {
        out.push_str(&format!(
            "<th scope=\"col\">{}</th>",
            escape(&facts::heading(host))
        ));
    }
    out.push_str("</tr></thead><tbody>");
    for row in facts::rows(hosts) {
        out.push_str(&line(&row, hosts));
    }
    out.push_str("</tbody></table>\n");
    out
}

fn line(row: &Row, hosts: &[Host]) -> String {
    let mut out = format!("<tr><th scope=\"row\">{}</th>", escape(row.name));
    let same = row.values.len() > 1 && row.values.iter().all(|value| *value == row.values[0]);
    if same {
        // What both hosts share is said once, so that what differs stands out.
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
