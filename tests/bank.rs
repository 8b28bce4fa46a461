//! Bank of injected bottlenecks: the first finding of every record must be the injected fault, and
//! healthy runs have no cause.
//!
//! `recorded` has real runs with the faults of `bank/faults.rs` (`bank_live.rs`). `made` has
//! changed copies of those for causes that one machine cannot inject (each file gives the reason).

#[path = "bank/commands.rs"]
mod commands;
#[path = "bank/confusion_matrix.rs"]
mod confusion_matrix;
#[path = "bank/evidence.rs"]
mod evidence;
#[path = "bank/gains.rs"]
mod gains;
#[path = "bank/netstack.rs"]
mod netstack;
#[path = "bank/processors.rs"]
mod processors;
#[path = "bank/records.rs"]
mod records;
#[path = "bank/references.rs"]
mod references;
#[path = "bank/rules.rs"]
mod rules;
#[path = "bank/settings.rs"]
mod settings;

use std::collections::BTreeMap;

use confusion_matrix::{ConfusionMatrix, HEALTHY};
use linerate_record::finding::Finding;
use linerate_record::ids::CauseId;
use linerate_record::record::Record;
use records::{made_record, put_at_pointer, read_documents};
use serde_json::{Value, json};

#[test]
fn the_bank_finds_the_injected_faults() {
    let mut matrix = ConfusionMatrix::default();
    let mut cases_by_fault: BTreeMap<String, u32> = BTreeMap::new();
    let mut records: BTreeMap<String, Value> = BTreeMap::new();
    for (name, document) in read_documents("recorded") {
        records.insert(name.clone(), document["record"].clone());
        let fault = document["planted"].as_str().expect("a fault");
        let findings = judge(&name, fault, document["record"].clone(), &mut matrix);
        check_remedy(&name, &document, &findings);
        *cases_by_fault.entry(fault.to_owned()).or_default() += 1;
    }
    for (name, case) in read_documents("made") {
        let fault = case["planted"].as_str().expect("a fault");
        let findings = judge(
            &name,
            fault,
            made_record(&name, &case, &records),
            &mut matrix,
        );
        check_remedy(&name, &case, &findings);
        *cases_by_fault.entry(fault.to_owned()).or_default() += 1;
    }
    matrix.print("recorded bank");
    for rule in linerate_explain::RULES {
        let cases = cases_by_fault.get(rule.id().as_str()).copied().unwrap_or(0);
        assert!(cases >= 2, "{} has {cases} cases in the bank", rule.id());
    }
    assert!(cases_by_fault.get(HEALTHY).is_some_and(|&cases| cases >= 5));
    assert!(
        matrix.wrong_cases().is_empty(),
        "{:?}",
        matrix.wrong_cases()
    );
}

#[test]
fn hosts_of_a_lab_may_have_any_names() {
    let recorded: BTreeMap<String, Value> = read_documents("recorded").into_iter().collect();
    for (name, expected, hosts) in [
        ("reassembly-no-memory", "reassembly", ["a", "b"]),
        ("reassembly-back", "reassembly", ["server", "client"]),
        ("qdisc-drop-back", "qdisc-drop", ["near", "far"]),
    ] {
        let mut record = recorded[name]["record"].clone();
        for counter in record["counters"].as_array_mut().expect("counters") {
            match counter["host"].as_str() {
                Some("client") => counter["host"] = json!(hosts[0]),
                Some("server") => counter["host"] = json!(hosts[1]),
                _ => {}
            }
        }
        let record: Record = serde_json::from_value(record).expect("a record");
        let findings = linerate_explain::explain(&record);
        let first = findings.first().map(|found| found.cause.as_str());
        assert_eq!(first, Some(expected), "{name} between {hosts:?}");
    }
}

/// Another program's socket reports no drops: neither a server's nor a client's.
#[test]
fn drops_of_another_programs_socket_are_no_path_loss() {
    let recorded: BTreeMap<String, Value> = read_documents("recorded").into_iter().collect();
    let cases: BTreeMap<String, Value> = read_documents("made").into_iter().collect();
    let case = &cases["path-loss-udp"];
    let records = recorded
        .iter()
        .map(|(name, document)| (name.clone(), document["record"].clone()))
        .collect();
    let own_record = made_record("path-loss-udp", case, &records);
    let kinds = |record: &Value| {
        let record: Record = serde_json::from_value(record.clone()).expect("a record");
        let findings = linerate_explain::explain(&record);
        let of = findings
            .into_iter()
            .filter(|found| found.cause == CauseId::PathLoss);
        of.map(|found| format!("{:?}", found.kind).to_lowercase())
            .collect::<Vec<_>>()
    };
    assert_eq!(kinds(&own_record), ["cause"]);
    // The server sends, and the other program in place of the client reports the received count.
    let mut peer_record = own_record.clone();
    peer_record["plan"]["peer_protocol"] = json!("iperf3");
    let hosts = peer_record["hosts"].as_array_mut().expect("hosts");
    hosts.retain(|host| host["role"] != "client");
    assert_eq!(kinds(&peer_record), ["unknown"]);
}

/// A route that is missing for a while leaves a fast start and a steady rest, or the reverse.
#[test]
fn a_missing_route_is_no_shaped_link() {
    let recorded: BTreeMap<String, Value> = read_documents("recorded").into_iter().collect();
    let shaped = |record: Value| {
        let record: Record = serde_json::from_value(record).expect("a record");
        let findings = linerate_explain::explain(&record);
        findings
            .iter()
            .any(|found| found.cause == CauseId::ShapedLink)
    };
    let mut record = recorded["shaped-link-many-flows"]["record"].clone();
    for counter in record["counters"].as_array_mut().expect("counters") {
        // As outside a lab, where switches on the path are not visible.
        if counter["counter"] == "qdisc_rate_bps" {
            counter["after"] = json!(0);
        }
    }
    assert!(shaped(record.clone()), "seen by its queue alone");
    put_at_pointer(
        &mut record,
        "/directions/0/streams/*/sender/unroutable",
        json!(40),
    );
    assert!(!shaped(record));
}

/// The minimum round trip is that of segments that overtook others: it shows no queue.
#[test]
fn segments_that_overtake_others_show_no_queue() {
    let recorded: BTreeMap<String, Value> = read_documents("recorded").into_iter().collect();
    let record = &recorded["reordering-back-live"]["record"];
    for (seen, shaped) in [(None, false), (Some(0), true)] {
        let mut record = record.clone();
        if let Some(seen) = seen {
            put_at_pointer(&mut record, "/intervals/*/tcp/reordering_seen", json!(seen));
        }
        let record: Record = serde_json::from_value(record).expect("a record");
        let findings = linerate_explain::explain(&record);
        let found = findings
            .iter()
            .any(|found| found.cause == CauseId::ShapedLink);
        assert_eq!(found, shaped, "{seen:?}: {findings:#?}");
    }
}

/// When both ends wait for each other, `compare` finds separate cores no better: a stream between
/// distant cores loses 76 %, a blocking round trip takes three times as long.
#[test]
fn one_core_for_both_ends_is_a_cause_where_they_work_at_once() {
    let recorded: BTreeMap<String, Value> = read_documents("recorded").into_iter().collect();
    let cases: BTreeMap<String, Value> = read_documents("made").into_iter().collect();
    let records = (recorded.iter())
        .map(|(name, document)| (name.clone(), document["record"].clone()))
        .collect();
    let blocking = made_record(
        "shared-core-blocking",
        &cases["shared-core-blocking"],
        &records,
    );
    let mut open = blocking.clone();
    put_at_pointer(&mut open, "/plan/round_trip/outstanding", json!(32));
    for (name, record, at_once) in [
        ("shared-core-tcp", &records["shared-core-tcp"], false),
        ("shared-core-blocking", &blocking, false),
        ("several requests open", &open, true),
        ("shared-core-udp", &records["shared-core-udp"], true),
        ("shared-core-latency", &records["shared-core-latency"], true),
    ] {
        let record: Record = serde_json::from_value(record.clone()).expect("a record");
        let findings = linerate_explain::explain(&record);
        let first = findings.first().expect("a finding");
        assert_eq!(first.cause, CauseId::SharedCore, "{name}");
        assert_eq!(first.is_cause(), at_once, "{name}");
        assert_eq!(first.gain.is_some(), at_once, "{name}");
        let causes = findings.iter().any(Finding::is_cause);
        assert_eq!(causes, at_once, "{name}: {findings:?}");
    }
}

/// Ends that share a processor wait no longer than the other one runs.
#[test]
fn another_program_on_the_processor_is_not_the_peer() {
    let recorded: BTreeMap<String, Value> = read_documents("recorded").into_iter().collect();
    let mut record = recorded["shared-core-tcp"]["record"].clone();
    for end in 0..2 {
        let thread = format!("/summary/cpu/{end}/threads/0");
        put_at_pointer(&mut record, &format!("{thread}/cpu_ns"), json!(200_000_000));
        put_at_pointer(
            &mut record,
            &format!("{thread}/runnable_ns"),
            json!(780_000_000),
        );
        put_at_pointer(
            &mut record,
            &format!("{thread}/blocked_ns"),
            json!(20_000_000),
        );
    }
    let record: Record = serde_json::from_value(record).expect("a record");
    let findings = linerate_explain::explain(&record);
    assert!(
        findings
            .iter()
            .all(|found| found.cause != CauseId::SharedCore),
        "{findings:#?}"
    );
    let cause = findings.iter().find(|found| found.is_cause());
    assert_eq!(
        cause.map(|found| &found.cause),
        Some(&CauseId::SchedulingDelay.into()),
        "{findings:#?}"
    );
}

/// Directions of different delay are reported only as part of the round trip.
#[test]
fn a_longer_path_matters_by_its_share_of_the_round_trip() {
    let recorded: BTreeMap<String, Value> = read_documents("recorded").into_iter().collect();
    for (there_ns, back_ns, p50_ns, is_reported) in [
        (32_600, 4_200, 60_000, true),
        (2_000_000, 400_000, 5_763_000, true),
        // Most of the round trip is spent elsewhere.
        (32_600, 4_200, 5_763_000, false),
    ] {
        let mut record = recorded["healthy-latency-spin"]["record"].clone();
        let stage = |name: &str, p50_ns: u64| json!({ "stage": name, "p50_ns": p50_ns, "p90_ns": p50_ns, "p99_ns": p50_ns, "mean_ns": p50_ns as f64, "stamps": "software" });
        record["stages"] = json!([
            stage("path-to-server", there_ns),
            stage("path-to-client", back_ns)
        ]);
        record["summary"]["rtt_ns"]["p50"] = json!(p50_ns);
        let record: Record = serde_json::from_value(record).expect("a record");
        let findings = linerate_explain::explain(&record);
        let found = findings
            .iter()
            .any(|found| found.cause == CauseId::AsymmetricPath);
        assert_eq!(found, is_reported, "{there_ns} {back_ns} {p50_ns}");
    }
}

/// Measured gain of a remedy: the "up to" of the finding must not be less.
const MEASURED: &[(&str, f64)] = &[
    ("small-writes-1k", 31.0),
    ("delayed-ack-nodelay", 128.0),
    ("delayed-ack-own-command", 128.0),
    ("delayed-ack-own-stack", 1000.0),
];

/// Checks that the first finding promises no less than was measured and has the case's command, and
/// that no command has a placeholder.
fn check_remedy(name: &str, case: &Value, findings: &[Finding]) {
    let first = findings.first();
    if let Some((_, measured)) = MEASURED.iter().find(|(known, _)| *known == name) {
        let gain = first.and_then(|found| found.gain).expect("a gain");
        assert!(gain >= *measured, "{name}: {gain} of {measured}");
    }
    if let Some(command) = case["command"].as_str() {
        let advice = first.and_then(|found| found.command.as_deref());
        assert_eq!(advice, Some(command), "{name}");
    }
    for found in findings {
        let command = found.command.as_deref().unwrap_or_default();
        assert!(!command.contains('…'), "{name}: {command}");
        assert!(found.command.as_deref() != Some(""), "{name}: {found:?}");
    }
}

fn judge(name: &str, expected: &str, record: Value, matrix: &mut ConfusionMatrix) -> Vec<Finding> {
    let record: Record =
        serde_json::from_value(record).unwrap_or_else(|error| panic!("{name}: {error}"));
    let findings = linerate_explain::explain(&record);
    for finding in &findings {
        assert!(!finding.evidence.is_empty(), "{name}: {finding:?}");
        assert!(
            !finding.remedy.is_empty() && !finding.summary.is_empty(),
            "{name}"
        );
        assert!((0.0..=1.0).contains(&finding.cost), "{name}: {finding:?}");
    }
    if !matrix.add(name, expected, &findings) {
        for finding in &findings {
            println!(
                "  {name}: {:?} {} {}: {}",
                finding.kind, finding.cause, finding.cost, finding.summary
            );
        }
    }
    findings
}
