//! References of the rules (docs/CAUSES.md) against the findings of the bank.

use std::collections::{BTreeMap, BTreeSet};

use linerate_explain::RULES;
use linerate_record::finding::{Evidence, Finding, FindingKind};
use linerate_record::json_pointer::is_earlier_key;
use linerate_record::record::Record;
use serde_json::Value;

use super::{made_record, read_documents};

/// Returns the findings of all cases, with the names of the cases.
fn all_findings() -> Vec<(String, Finding)> {
    let mut records: BTreeMap<String, Value> = read_documents("recorded")
        .into_iter()
        .map(|(name, document)| (name, document["record"].clone()))
        .collect();
    let made = read_documents("made").into_iter();
    let made: Vec<(String, Value)> = made
        .map(|(name, case)| (name.clone(), made_record(&name, &case, &records)))
        .collect();
    records.extend(made);
    let findings = records.into_iter().flat_map(|(name, record)| {
        let record: Record = serde_json::from_value(record).expect("a record");
        let findings = linerate_explain::explain(&record).into_iter();
        findings.map(move |finding| (name.clone(), finding))
    });
    findings.collect()
}

/// Returns true if a reference lists this evidence; a missing value has no unit.
fn is_listed(listed: &[(&str, &str)], evidence: &Evidence) -> bool {
    listed.iter().any(|(name, unit)| {
        *name == evidence.counter && (*unit == evidence.unit || evidence.missing.is_some())
    })
}

#[test]
fn evidence_and_kinds_of_findings_are_listed() {
    for (name, finding) in all_findings() {
        let rule = RULES.iter().find(|rule| finding.cause == rule.id());
        let reference = rule.expect("a rule").reference();
        for evidence in &finding.evidence {
            assert!(
                is_listed(reference.evidence, evidence),
                "{name}: {} does not list {evidence:?}",
                finding.cause
            );
        }
        // A consequence of a limit is a limit.
        let follows_limit = finding.kind == FindingKind::Limit && finding.follows_from.is_some();
        assert!(
            follows_limit || reference.kinds().contains(&finding.kind),
            "{name}: {} is not documented as {:?}",
            finding.cause,
            finding.kind
        );
    }
}

/// Returns the sources of the rules without their references.
fn sources_without_references() -> String {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/src/rules");
    let files = std::fs::read_dir(dir).expect("the rules");
    let sources = files.map(|file| {
        let source = std::fs::read_to_string(file.expect("a file").path()).expect("a rule");
        let start = source.find("fn reference(").expect("a reference");
        let length = source[start..].find("\n    }\n").expect("its end");
        source[..start].to_owned() + &source[start + length..]
    });
    let shared = concat!(env!("CARGO_MANIFEST_DIR"), "/src/rules.rs");
    let shared = std::fs::read_to_string(shared).expect("rules.rs");
    sources.chain([shared]).collect()
}

/// A listed name that no case of the bank has is a name in the rules.
#[test]
fn listed_evidence_exists() {
    let attached: BTreeSet<(String, String)> = all_findings()
        .into_iter()
        .flat_map(|(_, finding)| {
            let cause = finding.cause;
            let evidence = finding.evidence.into_iter();
            evidence.map(move |evidence| (cause.to_string(), evidence.counter))
        })
        .collect();
    let sources = sources_without_references();
    for rule in RULES {
        for (name, _) in rule.reference().evidence {
            let is_attached = attached.contains(&(rule.id().to_string(), (*name).to_owned()));
            let is_name = sources.contains(&format!("\"{name}\""));
            assert!(is_attached || is_name, "{}: {name}", rule.id());
        }
    }
}

/// Evidence that is a key of the record has the present name of the key.
#[test]
fn evidence_has_no_earlier_name_of_a_key() {
    for rule in RULES {
        for (name, _) in rule.reference().evidence {
            let earlier = name.split('.').find(|part| is_earlier_key(part));
            assert_eq!(earlier, None, "{}: {name}", rule.id());
        }
    }
}
