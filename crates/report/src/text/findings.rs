//! Findings as text: causes, limits, evidence, remedies.

use linerate_record::finding::{Finding, FindingKind};
use linerate_record::plan::{RunKind, TransportProtocol};
use linerate_record::record::Record;

use crate::phrases;
use crate::style::{PaintRole, TextStyle, strip_control_characters, wrap_with_prefix};

/// Number of findings shown of a long list.
const MAX_FINDINGS: usize = 6;

/// Renders the title of a record and its findings, or that there is none.
#[must_use]
pub fn render_explanation(record: &Record, style: &TextStyle) -> String {
    let style = &TextStyle {
        brief: false,
        ..*style
    };
    let title = match &record.label {
        Some(label) => format!("{label}: {}", phrases::run_title(record)),
        None => phrases::run_title(record),
    };
    let title = style.paint(PaintRole::Bold, &strip_control_characters(&title));
    match record.findings.is_empty() {
        true => format!("{title}\n{}", text_without_findings(record)),
        false => {
            let serving = record.served_client.is_some();
            format!(
                "{title}\n\n{}",
                render_findings_for(&record.findings, serving, style)
            )
        }
    }
}

/// Text for a run without findings; a run whose losses or received amount are unknown gets no clean
/// bill.
fn text_without_findings(record: &Record) -> &'static str {
    let of_payload = record.kind == RunKind::Throughput;
    let directions = || record.directions.iter().filter(move |_| of_payload);
    let udp = record.plan.protocol == TransportProtocol::Udp;
    if directions().any(|direction| direction.summary.goodput_bps.is_none()) {
        "The received amount is unknown, so no bottleneck can be identified."
    } else if udp && directions().any(|direction| direction.summary.loss_fraction.is_none()) {
        "No bottleneck found; the loss is unknown."
    } else {
        "No bottleneck found."
    }
}

/// Renders all findings with evidence, remedy and expected gain; empty text for none.
#[must_use]
pub fn render_findings(findings: &[Finding], style: &TextStyle) -> String {
    let style = &TextStyle {
        brief: false,
        ..*style
    };
    render_findings_for(findings, false, style)
}

/// Renders findings; `serving` selects the server's names of directions.
pub(super) fn render_findings_for(
    findings: &[Finding],
    serving: bool,
    style: &TextStyle,
) -> String {
    let mut blocks: Vec<String> = findings
        .iter()
        .take(MAX_FINDINGS)
        .map(|finding| render_finding(finding, serving, style))
        .collect();
    if findings.len() > MAX_FINDINGS {
        blocks.push(super::more_entries(findings.len() - MAX_FINDINGS, style));
    }
    blocks.join("\n")
}

fn render_finding(finding: &Finding, serving: bool, style: &TextStyle) -> String {
    let (kind_name, paint) = match finding.kind {
        FindingKind::Cause => ("cause", PaintRole::Bad),
        FindingKind::Limit => ("limit", PaintRole::Heading),
        FindingKind::Unknown => ("unknown", PaintRole::Warn),
    };
    let prefix = format!("{kind_name} ");
    let text = match style.brief {
        true => describe_finding_briefly(finding),
        false => describe_finding(finding, serving),
    };
    let mut lines = vec![wrap_with_prefix(
        &prefix,
        &style.paint(paint, &prefix),
        &text,
        style.width,
    )];
    let line = |name: &str, text: &str| {
        let indented = format!("  {name} ");
        wrap_with_prefix(
            &indented,
            &style.paint(PaintRole::Dim, &indented),
            &strip_control_characters(text),
            style.width,
        )
    };
    // A command is not wrapped, so that it can be copied.
    let command = (finding.command.as_ref()).map(|command| strip_control_characters(command));
    if style.brief {
        if finding.needs_our_server {
            lines.push(line("first", "start `linerate server` on the server host"));
        }
        lines.push(match command {
            Some(command) => format!("  try  {command}"),
            None => line("try ", &finding.remedy),
        });
        return lines.join("\n");
    }
    lines.push(line("evidence", &evidence_line(finding)));
    lines.push(line("try     ", &finding.remedy));
    lines.extend(command.map(|command| format!("           {command}")));
    if !finding.tried.is_empty() {
        lines.push(line("tried   ", &finding.tried.join(", ")));
    }
    if let Some(gain) = phrases::describe_gain(finding) {
        lines.push(line("gain    ", &gain));
    }
    lines.join("\n")
}

/// Describes a finding in one sentence: `nagle (client, send): …`.
#[must_use]
pub fn describe_finding(finding: &Finding, serving: bool) -> String {
    let text = format!(
        "{} ({}): {}",
        finding.cause,
        phrases::finding_attributes(finding, serving).join(", "),
        finding.summary
    );
    strip_control_characters(&text).into_owned()
}

/// Describes a finding by cause and sentence: `nagle (client): …`.
fn describe_finding_briefly(finding: &Finding) -> String {
    let location = crate::model::finding_location(finding.end);
    let text = format!("{} ({location}): {}", finding.cause, finding.summary);
    strip_control_characters(&text).into_owned()
}

/// Renders the evidence in one line.
fn evidence_line(finding: &Finding) -> String {
    let readings = finding.evidence.iter().map(phrases::describe_evidence);
    readings.collect::<Vec<_>>().join("; ")
}
