//! Table of system calls as HTML.

use linerate_record::record::Record;

use super::with_micro_sign;
use crate::calls;
use crate::svg::escape_markup;

/// Renders the section on system calls; empty for a run that did not record them.
pub(super) fn calls_section(run: &Record) -> String {
    match calls_table(run) {
        table if table.is_empty() => table,
        table => format!("<h3>System call times</h3>\n{table}"),
    }
}

/// Renders the table without a heading.
pub(super) fn calls_table(run: &Record) -> String {
    let rows = calls::call_rows(run);
    if rows.is_empty() {
        return String::new();
    }
    let mut out = String::from(
        "<div class=\"scroll\"><table><thead><tr><th>call</th><th class=\"text\">host</th><th class=\"text\">result</th>",
    );
    for (name, meaning) in calls::COLUMNS {
        out.push_str(&format!("<th title=\"{meaning}\">{name}</th>"));
    }
    out.push_str("</tr></thead><tbody>");
    for row in rows {
        out.push_str(&format!(
            "<tr><th scope=\"row\"><code>{}</code></th><td class=\"text\">{}</td><td class=\"text\">{}</td>",
            escape_markup(&row.call),
            row.role,
            row.result
        ));
        for figure in row.figures {
            out.push_str(&format!(
                "<td>{}</td>",
                escape_markup(&with_micro_sign(&figure))
            ));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>\n");
    for clock in calls::describe_clocks(run) {
        out.push_str(&format!(
            "<p class=\"muted\">{}.</p>\n",
            escape_markup(&clock)
        ));
    }
    out
}
