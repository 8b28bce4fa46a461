//! Findings as text: causes, limits, evidence, remedies.

use linerate_metric::finding::{Finding, FindingKind};
use linerate_metric::plan::{Kind, Protocol};
use linerate_metric::record::Record;
use linerate_metric::units::format_share;

use crate::phrases;
use crate::style::{Paint, Style, clean, hang};

/// Number of findings shown of a long list.
const SHOWN: usize = 6;

/// Renders the title of a record and its findings, or that there is none.
#[must_use]
pub fn explained(record: &Record, style: &Style) -> String {
    let title = match &record.label {
        Some(label) => format!("{label}: {}", phrases::run_title(record)),
        None => phrases::run_title(record),
    };
    let title = style.paint(Paint::Bold, &clean(&title));
    match record.findings.is_empty() {
        true => format!("{title}\n{}", unexplained(record)),
        false => {
            let serving = record.served.is_some();
            format!("{title}\n\n{}", told(&record.findings, serving, style))
        }
    }
}

/// Text for a run without findings; a run whose losses or received amount are unknown gets no clean
/// bill.
fn unexplained(record: &Record) -> &'static str {
    let of_payload = record.kind == Kind::Throughput;
    let ways = || record.directions.iter().filter(move |_| of_payload);
    let udp = record.plan.protocol == Protocol::Udp;
    if ways().any(|way| way.summary.goodput_bps.is_none()) {
        "The received amount is unknown, so no bottleneck can be identified."
    } else if udp && ways().any(|way| way.summary.loss_fraction.is_none()) {
        "No bottleneck found; the loss is unknown."
    } else {
        "No bottleneck found."
    }
}

/// Renders all findings with evidence, remedy and expected gain; empty text for none.
#[must_use]
pub fn findings(findings: &[Finding], style: &Style) -> String {
    told(findings, false, style)
}

/// Renders findings; `serving` selects the server's names of directions.
pub(super) fn told(findings: &[Finding], serving: bool, style: &Style) -> String {
    let mut blocks: Vec<String> = findings
        .iter()
        .take(SHOWN)
        .map(|found| one(found, serving, style))
        .collect();
    if findings.len() > SHOWN {
        blocks.push(super::and_more(findings.len() - SHOWN, style));
    }
    blocks.join("\n")
}

fn one(found: &Finding, serving: bool, style: &Style) -> String {
    let (word, paint) = match found.kind {
        FindingKind::Cause => ("cause", Paint::Bad),
        FindingKind::Limit => ("limit", Paint::Head),
        FindingKind::Unknown => ("unknown", Paint::Warn),
    };
    let prefix = format!("{word} ");
    let mut about = vec![phrases::finding_end(found.end).to_owned()];
    about.extend((found.direction).map(|direction| phrases::way(direction, serving).to_owned()));
    if found.kind != FindingKind::Unknown {
        about.push(format_share(found.cost));
    }
    about.extend(
        found
            .follows_from
            .as_ref()
            .map(|from| format!("follows from {}", clean(from))),
    );
    let text = format!(
        "{} ({}): {}",
        clean(&found.cause),
        about.join(", "),
        clean(&found.what)
    );
    let mut lines = vec![hang(
        &prefix,
        &style.paint(paint, &prefix),
        &text,
        style.width,
    )];
    let mut more = |name: &str, text: &str| {
        let indented = format!("  {name} ");
        lines.push(hang(
            &indented,
            &style.paint(Paint::Dim, &indented),
            &clean(text),
            style.width,
        ));
    };
    more("evidence", &evidence(found));
    more("try     ", &found.remedy);
    if let Some(command) = &found.command {
        // Not wrapped, so that it can be copied.
        lines.push(format!("           {}", clean(command)));
    }
    let mut more = |name: &str, text: &str| {
        let indented = format!("  {name} ");
        lines.push(hang(
            &indented,
            &style.paint(Paint::Dim, &indented),
            &clean(text),
            style.width,
        ));
    };
    if !found.tried.is_empty() {
        more("tried   ", &found.tried.join(", "));
    }
    if let (Some(gain), formula) = (found.gain, &found.gain_formula) {
        let formula = formula.as_deref().unwrap_or("");
        more("gain    ", &format!("up to {gain:.2} times ({formula})"));
    }
    lines.join("\n")
}

/// Renders the evidence in one line.
fn evidence(found: &Finding) -> String {
    let readings = found.evidence.iter().map(phrases::evidence);
    readings.collect::<Vec<_>>().join("; ")
}
