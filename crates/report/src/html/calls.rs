//! The table of system calls on the page.

use linerate_metric::record::Record;

use super::pretty;
use crate::calls;
use crate::svg::escape;

/// What each call took; nothing for a run that did not record them.
pub(super) fn section(run: &Record) -> String {
    match table(run) {
        table if table.is_empty() => table,
        table => format!("<h3>What system calls took</h3>\n{table}"),
    }
}

/// The same without a heading.
pub(super) fn table(run: &Record) -> String {
    let rows = calls::rows(run);
    if rows.is_empty() {
        return String::new();
    }
    let mut out = String::from(
        "<div class=\"scroll\"><table><thead><tr><th>call</th><th class=\"text\">end</th><th class=\"text\">found</th>",
    );
    for (name, meaning) in calls::COLUMNS {
        out.push_str(&format!("<th title=\"{meaning}\">{name}</th>"));
    }
    out.push_str("</tr></thead><tbody>");
    for row in rows {
        out.push_str(&format!(
            "<tr><th scope=\"row\"><code>{}</code></th><td class=\"text\">{}</td><td class=\"text\">{}</td>",
            escape(&row.call),
            row.end,
            row.found
        ));
        for figure in row.figures {
            out.push_str(&format!("<td>{}</td>", escape(&pretty(&figure))));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>\n");
    for clock in calls::clocks(run) {
        out.push_str(&format!("<p class=\"muted\">{}.</p>\n", escape(&clock)));
    }
    out
}
