//! Findings of a run as HTML.

use linerate_record::finding::{Finding, FindingKind};
use linerate_record::record::Record;

use super::{mark_code, with_micro_sign};
use crate::phrases;
use crate::svg::escape_markup;

/// Renders the findings of a run; empty without findings.
pub(super) fn findings_section(run: &Record) -> String {
    if run.findings.is_empty() {
        return String::new();
    }
    let items: String = run.findings.iter().map(render_finding).collect();
    format!("<h3>Findings</h3>\n{items}")
}

/// Renders the costliest finding for the head of the page; empty without findings.
pub(super) fn costliest_finding(run: &Record) -> String {
    let has_cause = |finding: &&Finding| finding.kind != FindingKind::Unknown;
    let Some(finding) = run.findings.iter().find(has_cause) else {
        return String::new();
    };
    format!(
        "<p class=\"lead\">Bottleneck: {}.</p>\n",
        mark_code(&with_micro_sign(&finding.summary))
    )
}

fn render_finding(finding: &Finding) -> String {
    let kind = match finding.kind {
        FindingKind::Cause => "Cause",
        FindingKind::Limit => "Limit",
        FindingKind::Unknown => "Unknown",
    };
    let attributes = phrases::finding_attributes(finding, false);
    let mut out = format!(
        "<div class=\"callout\"><p><b>{kind}: {}.</b> {} <span class=\"muted\">({})</span></p>\n",
        escape_markup(finding.cause.as_str()),
        mark_code(&with_micro_sign(&finding.summary)),
        escape_markup(&with_micro_sign(&attributes.join(", ")))
    );
    let readings: String = finding
        .evidence
        .iter()
        .map(|reading| {
            format!(
                "<li>{}</li>",
                escape_markup(&with_micro_sign(&phrases::describe_evidence(reading)))
            )
        })
        .collect();
    out.push_str(&format!("<ul class=\"muted\">{readings}</ul>\n"));
    out.push_str(&format!(
        "<p>Remedy: {}",
        mark_code(&with_micro_sign(&finding.remedy))
    ));
    if let Some(command) = &finding.command {
        out.push_str(&format!(
            " <code class=\"typed\">{}</code>",
            escape_markup(command)
        ));
    }
    out.push_str("</p>");
    if let Some(gain) = phrases::describe_gain(finding) {
        let gain = mark_code(&with_micro_sign(&gain));
        out.push_str(&format!("<p class=\"muted\">Gain: {gain}</p>"));
    }
    out.push_str("</div>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Next to the sentence the command would run into its code parts.
    #[test]
    fn commands_have_their_own_line() {
        let finding: Finding = serde_json::from_value(serde_json::json!({
            "kind": "cause", "cause": "slow", "end": "server", "cost": 0.5, "what": "it is slow",
            "evidence": [], "remedy": "start it with `--grant sched`", "command": "linerate x",
        }))
        .unwrap();
        let expected = "<code>--grant sched</code> <code class=\"typed\">linerate x</code>";
        assert!(
            render_finding(&finding).contains(expected),
            "{}",
            render_finding(&finding)
        );
        let style = include_str!("style.css");
        assert!(style.contains(".typed { display: block;"));
    }
}
