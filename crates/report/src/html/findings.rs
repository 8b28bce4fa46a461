//! Findings of a run as HTML.

use linerate_metric::finding::{Finding, FindingKind};
use linerate_metric::record::Record;
use linerate_metric::units::format_share;

use super::{pretty, ticked};
use crate::phrases;
use crate::svg::escape;

/// Renders the findings of a run; empty without findings.
pub(super) fn section(run: &Record) -> String {
    if run.findings.is_empty() {
        return String::new();
    }
    let items: String = run.findings.iter().map(item).collect();
    format!("<h3>Findings</h3>\n{items}")
}

/// Renders the costliest finding for the head of the page; empty without findings.
pub(super) fn verdict(run: &Record) -> String {
    let known = |found: &&Finding| found.kind != FindingKind::Unknown;
    let Some(found) = run.findings.iter().find(known) else {
        return String::new();
    };
    format!(
        "<p class=\"lead\">Bottleneck: {}.</p>\n",
        ticked(&pretty(&found.what))
    )
}

fn item(found: &Finding) -> String {
    let kind = match found.kind {
        FindingKind::Cause => "Cause",
        FindingKind::Limit => "Limit",
        FindingKind::Unknown => "Unknown",
    };
    let mut about = vec![phrases::finding_end(found.end).to_owned()];
    about.extend(found.direction.map(|direction| direction.to_string()));
    if found.kind != FindingKind::Unknown {
        about.push(pretty(&format_share(found.cost)));
    }
    about.extend(
        found
            .follows_from
            .as_ref()
            .map(|from| format!("follows from {from}")),
    );
    let mut out = format!(
        "<div class=\"callout\"><p><b>{kind}: {}.</b> {} <span class=\"muted\">({})</span></p>\n",
        escape(&found.cause),
        ticked(&pretty(&found.what)),
        escape(&about.join(", "))
    );
    let readings: String = found
        .evidence
        .iter()
        .map(|reading| format!("<li>{}</li>", escape(&pretty(&phrases::evidence(reading)))))
        .collect();
    out.push_str(&format!("<ul class=\"muted\">{readings}</ul>\n"));
    out.push_str(&format!("<p>Remedy: {}", ticked(&pretty(&found.remedy))));
    if let Some(command) = &found.command {
        out.push_str(&format!(
            " <code class=\"typed\">{}</code>",
            escape(command)
        ));
    }
    if let Some(gain) = found.gain {
        let formula = found.gain_formula.as_deref().unwrap_or("");
        out.push_str(&format!(
            " Gain: up to {gain:.2} times <span class=\"muted\">({})</span>",
            ticked(&pretty(formula))
        ));
    }
    out.push_str("</p></div>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Next to the sentence the command would run into its code parts.
    #[test]
    fn what_is_typed_has_a_line_of_its_own() {
        let found: Finding = serde_json::from_value(serde_json::json!({
            "kind": "cause", "cause": "slow", "end": "server", "cost": 0.5, "what": "it is slow",
            "evidence": [], "remedy": "start it with `--grant sched`", "command": "linerate x",
        }))
        .unwrap();
        let words = "<code>--grant sched</code> <code class=\"typed\">linerate x</code>";
        assert!(item(&found).contains(words), "{}", item(&found));
        let style = include_str!("style.css");
        assert!(style.contains(".typed { display: block;"));
    }
}
