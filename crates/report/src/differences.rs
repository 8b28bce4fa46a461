//! Differences between runs: options and facts of the hosts.

use std::collections::BTreeMap;

use linerate_record::experiment::{ExperimentResult, KnobValues};
use linerate_record::facts::HostFacts;
use linerate_record::record::Record;
use linerate_stats::units::{format_bit_rate, format_bytes};
use serde::Serialize;
use serde_json::Value;

use crate::document::Document;
use crate::facts;
use crate::model::{format_duration, or_unknown};

/// An option or a host fact whose value differs between documents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Source: `option`, `client`, `server`, `path` (between the hosts), or `knob` (varied by an
    /// experiment).
    #[serde(rename = "of")]
    pub source: &'static str,
    /// Key in the record's plan or host: `wait.client`.
    pub name: String,
    /// Command-line option that sets it, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub option: Option<&'static str>,
    /// Value in each document, in their order; `None` if not recorded.
    pub values: Vec<Option<String>>,
}

/// Command-line options by keys of the plan. A longer key precedes its prefix.
const OPTION_KEYS: &[(&str, &str)] = &[
    ("protocol", "-u"),
    ("host", "HOST"),
    ("port", "-p"),
    ("peer_protocol", "--peer"),
    ("directions", "-R, --bidir"),
    ("streams", "-P"),
    ("threads", "--threads"),
    ("duration_ns", "-t"),
    ("amount_bytes", "-n"),
    ("round_trips", "-n"),
    ("omit_ns", "-O"),
    ("interval_ns", "-i"),
    ("payload_bytes", "-l"),
    ("window_bytes", "-w"),
    ("socket.send_buffer_bytes", "--sndbuf"),
    ("socket.receive_buffer_bytes", "--rcvbuf"),
    ("socket.no_delay", "-N"),
    ("rate_bps", "-b"),
    ("congestion_control", "-C"),
    ("bind", "-B"),
    ("wait", "--wait"),
    ("cpu", "--cpu"),
    ("sched", "--sched"),
    ("verify", "--verify"),
    ("calls", "--calls"),
    ("hold_latency", "--hold-latency"),
    ("client_stack.device", "--dev"),
    ("client_stack.addresses", "--ip"),
    ("client_stack.profile", "--profile"),
    ("client_stack.configuration", "--set"),
    ("client_stack", "--dev"),
    ("forward.cores", "--cores"),
    ("forward.cpus", "--corelist"),
    ("forward.ports", "--dev"),
    ("forward.mode", "--mode"),
    ("forward.tx_first", "--tx-first"),
    ("forward.burst", "--burst"),
];

/// Facts of a host that change by themselves or are unique to it; they are not compared.
const VOLATILE_FACTS: &[&str] = &[
    "role",
    "boot_id",
    "wake_up_ns",
    "cpu.frequency_hz",
    "interface.mac",
    "stack.counters",
    "stack.memory",
    "stack.ethernet",
];

/// Keys that follow from another option, which is reported instead.
const DERIVED_KEYS: &[&str] = &[
    "client_wait",
    "congestion_control_requested",
    "response_timeout_requested",
    "udp_offload.requested",
];

/// Returns the differences between documents; empty for fewer than two. A document with several
/// runs is represented by its first; experiments by the first run of a point that all of them
/// measured.
#[must_use]
pub fn differences(documents: &[Document]) -> Vec<Difference> {
    if documents.len() < 2 {
        return Vec::new();
    }
    let mut found = Vec::new();
    let experiments: Vec<_> = documents.iter().filter_map(Document::experiment).collect();
    if experiments.len() == documents.len() {
        found = diff_facts(
            "knob",
            &experiments
                .iter()
                .map(|e| knob_values(e))
                .collect::<Vec<_>>(),
        );
    }
    let Some(runs) = comparable_runs(documents) else {
        return found;
    };
    if found.is_empty() {
        let points: Option<Vec<_>> = runs.iter().map(|run| point_of_label(run)).collect();
        found.extend(points.map_or_else(Vec::new, |points| diff_facts("knob", &points)));
    }
    let switches = runs.iter().map(|run| {
        let between = facts::switches(run);
        let named = (!between.is_empty()).then(|| ("switches".to_owned(), between.join(", ")));
        named.into_iter().collect()
    });
    found.extend(diff_facts("path", &switches.collect::<Vec<_>>()));
    found.extend(diff_runs(&runs));
    found
}

/// Returns the measured values of an experiment's knobs, its place and its mode.
fn knob_values(experiment: &ExperimentResult) -> BTreeMap<String, String> {
    let mut facts: BTreeMap<String, String> = BTreeMap::new();
    for knob in &experiment.knobs {
        let measured = |value: &&String| {
            let mut points = experiment.points.iter();
            points.any(|p| !p.runs.is_empty() && p.setting.get(&knob.name) == Some(value))
        };
        let values: Vec<&str> = (knob.values.iter().filter(measured))
            .map(String::as_str)
            .collect();
        facts.insert(knob.name.clone(), values.join(", "));
    }
    for (name, value) in [
        ("experiment", experiment.name.clone()),
        ("--on", experiment.location.clone()),
        ("--quick", format_value("", &Value::Bool(experiment.quick))),
    ] {
        facts.insert(name.to_owned(), value);
    }
    facts
}

/// Returns one run per document, of a common point if there is one; `None` if a document has no
/// run.
fn comparable_runs(documents: &[Document]) -> Option<Vec<&Record>> {
    let of_point = |document: &'_ Document, setting: &KnobValues| -> Option<usize> {
        let points = &document.experiment()?.points;
        let point = points.iter().find(|point| point.setting == *setting)?;
        let first = point.runs.first()?;
        document.runs().iter().position(|run| run.id == *first)
    };
    let settings = documents[0].experiment().map_or(&[][..], |e| &e.points);
    let common = settings.iter().find_map(|point| {
        let each = documents.iter();
        let runs = each.map(|document| of_point(document, &point.setting));
        runs.collect::<Option<Vec<usize>>>()
    });
    let number = |position: usize| common.as_ref().map_or(0, |common| common[position]);
    (documents.iter().enumerate())
        .map(|(position, document)| document.runs().get(number(position)))
        .collect()
}

/// Parses the label of a run as a point of an experiment: `hops=4 size=32K`; `None` for other
/// labels.
fn point_of_label(run: &Record) -> Option<BTreeMap<String, String>> {
    let settings = run.label.as_deref()?.split(' ');
    let knob = |setting: &str| {
        let (name, value) = setting.split_once('=')?;
        Some((name.to_owned(), value.to_owned()))
    };
    settings.map(knob).collect()
}

fn diff_runs(runs: &[&Record]) -> Vec<Difference> {
    let plans = runs.iter().map(|run| {
        let mut value = serde_json::to_value(&run.plan).expect("a plan is JSON");
        // The record omits it when all values are defaults; without it they would be unknown.
        let round_trip = serde_json::to_value(&run.plan.round_trip).expect("a plan is JSON");
        value["round_trip"] = round_trip;
        flatten(&value, DERIVED_KEYS)
    });
    let mut differences = diff_facts("option", &plans.collect::<Vec<_>>());
    for (source, position) in [("client", 0), ("server", 1)] {
        let hosts: Vec<Option<&HostFacts>> =
            runs.iter().map(|run| run.hosts.get(position)).collect();
        // A host that is missing in one document cannot be compared.
        if hosts.iter().any(Option::is_none) {
            continue;
        }
        let facts = hosts.iter().map(|host| {
            let value = serde_json::to_value(host).expect("a host is JSON");
            flatten(&value, VOLATILE_FACTS)
        });
        let mut host_differences = diff_facts(source, &facts.collect::<Vec<_>>());
        // A network namespace hides some sysctls, so a missing one is no difference.
        host_differences
            .retain(|d| !d.name.starts_with("sysctls.") || d.values.iter().all(Option::is_some));
        differences.extend(host_differences);
    }
    differences
}

fn diff_facts(source: &'static str, facts_of_runs: &[BTreeMap<String, String>]) -> Vec<Difference> {
    let mut names: Vec<&String> = facts_of_runs.iter().flat_map(BTreeMap::keys).collect();
    names.sort();
    names.dedup();
    let differs = |name: &&&String| {
        let first = facts_of_runs[0].get(**name);
        facts_of_runs.iter().any(|facts| facts.get(**name) != first)
    };
    names
        .iter()
        .filter(differs)
        .map(|name| Difference {
            source,
            name: (*name).clone(),
            option: (source == "option").then(|| option_of_key(name)).flatten(),
            values: facts_of_runs
                .iter()
                .map(|facts| facts.get(*name).cloned())
                .collect(),
        })
        .collect()
}

fn option_of_key(name: &str) -> Option<&'static str> {
    let is_at_or_below = |key: &str| {
        name.strip_prefix(key)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let entry = OPTION_KEYS.iter().find(|(key, _)| is_at_or_below(key));
    entry.map(|(_, option)| *option)
}

/// Flattens JSON to values by dotted key, formatted with units.
fn flatten(value: &Value, skipped_keys: &[&str]) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    flatten_into("", value, skipped_keys, &mut out);
    out
}

fn flatten_into(
    name: &str,
    value: &Value,
    skipped_keys: &[&str],
    out: &mut BTreeMap<String, String>,
) {
    if skipped_keys.contains(&name) {
        return;
    }
    match value {
        Value::Null => {}
        Value::Object(fields) => {
            for (key, value) in fields {
                let name = match name {
                    "" => key.clone(),
                    name => format!("{name}.{key}"),
                };
                flatten_into(&name, value, skipped_keys, out);
            }
        }
        Value::Array(values) => {
            let texts: Vec<String> = values
                .iter()
                .map(|value| format_value(name, value))
                .collect();
            out.insert(name.to_owned(), texts.join(", "));
        }
        value => {
            out.insert(name.to_owned(), format_value(name, value));
        }
    }
}

fn format_value(name: &str, value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(true) => "on".to_owned(),
        Value::Bool(false) => "off".to_owned(),
        Value::Number(number) => match number.as_u64() {
            Some(integer) if name.ends_with("_ns") => format_duration(integer),
            Some(integer) if name.ends_with("_bytes") => format_bytes(integer),
            Some(integer) if name.ends_with("_bps") => format_bit_rate(integer as f64),
            _ => number.to_string(),
        },
        other_value => other_value.to_string(),
    }
}

/// Returns headings and rows of the table: name of the difference, then its value per document.
pub(crate) fn difference_table(
    differences: &[Difference],
    names: &[String],
) -> (Vec<String>, Vec<Vec<String>>) {
    let mut headings = vec!["differs".to_owned()];
    headings.extend(names.iter().cloned());
    // A difference that is equal at both hosts is listed once.
    let is_equal_at = |item: &Difference, source: &str| {
        let mut candidates = differences.iter();
        candidates.any(|candidate| {
            (candidate.source, &candidate.name, &candidate.values)
                == (source, &item.name, &item.values)
        })
    };
    let shown = differences
        .iter()
        .filter(|item| item.source != "server" || !is_equal_at(item, "client"));
    let rows = shown.map(|difference| {
        let label = match (difference.source, difference.option) {
            ("client", _) if is_equal_at(difference, "server") => {
                format!("both ends {}", difference.name)
            }
            ("option", Some(option)) => format!("{option} ({})", difference.name),
            ("option" | "knob", None) => difference.name.clone(),
            (host, _) => format!("{host} {}", difference.name),
        };
        let values = difference.values.iter();
        std::iter::once(label)
            .chain(values.map(|value| or_unknown(value.as_ref(), Clone::clone)))
            .collect()
    });
    (headings, rows.collect())
}

/// Text shown instead of the table when there is no difference.
pub(crate) const NO_DIFFERENCES: &str = "No differences: all options and all recorded host facts are the same. \
The path between the hosts is recorded only in labs.";

#[cfg(test)]
mod tests {
    use linerate_record::plan::Plan;
    use serde_json::json;

    use super::*;

    fn documents(change: impl Fn(&mut Record)) -> [Document; 2] {
        let text = include_str!("../tests/fixtures/run-1.json");
        let mut first: Record = serde_json::from_str(text).unwrap();
        let server = first.hosts[0].clone();
        first.hosts.push(server);
        let mut second = first.clone();
        change(&mut second);
        [first, second].map(|run| Document::Run(Box::new(run)))
    }

    #[test]
    fn a_difference_that_is_equal_at_both_hosts_is_listed_once() {
        let documents = documents(|run| {
            run.hosts[0].kernel = Some("9.9".to_owned());
            run.hosts[1].kernel = Some("9.9".to_owned());
            run.hosts[1].hostname = Some("elsewhere".to_owned());
        });
        let found = differences(&documents);
        let names: Vec<_> = found
            .iter()
            .map(|found| (found.source, &*found.name))
            .collect();
        assert_eq!(
            names,
            [
                ("client", "kernel"),
                ("server", "hostname"),
                ("server", "kernel")
            ]
        );
        let (_, rows) = difference_table(&found, &["a".to_owned(), "b".to_owned()]);
        let labels: Vec<_> = rows.iter().map(|row| &*row[0]).collect();
        assert_eq!(labels, ["both ends kernel", "server hostname"]);
    }

    #[test]
    fn unrecorded_facts_and_default_options_are_no_difference() {
        let documents = documents(|run| {
            let busy = "net.core.busy_poll".to_owned();
            run.hosts[0].sysctls.insert(busy, "0".to_owned());
            run.plan.round_trip.limit_ns = Some(200_000);
        });
        let found = differences(&documents);
        let names: Vec<_> = found.iter().map(|found| &*found.name).collect();
        assert_eq!(names, ["round_trip.limit_ns"], "{found:#?}");
    }

    /// Returns whether a type has this key, by its schema.
    fn has_key(schema: &Value, name: &str) -> bool {
        let mut place = schema;
        name.split('.').all(|part| {
            while let Some(reference) = place.get("$ref").or(place.pointer("/anyOf/0/$ref")) {
                let pointer = reference.as_str().unwrap().trim_start_matches('#');
                place = schema.pointer(pointer).unwrap();
            }
            let found = place.pointer(&format!("/properties/{part}"));
            place = found.unwrap_or(place);
            found.is_some()
        })
    }

    #[test]
    fn keys_of_the_tables_exist() {
        let plan = schemars::schema_for!(Plan).to_value();
        let host = schemars::schema_for!(HostFacts).to_value();
        let options = OPTION_KEYS.iter().map(|(key, _)| key);
        for key in options.chain(DERIVED_KEYS) {
            assert!(has_key(&plan, key), "no {key} in a plan");
        }
        for key in VOLATILE_FACTS {
            assert!(has_key(&host, key), "no {key} of a host");
        }
    }

    #[test]
    fn only_differences_are_listed_with_units() {
        let first = json!({"streams": 1, "duration_ns": 1_000_000_000u64, "wait": {"client": "block"},
            "verify": false, "client_wait": "block", "directions": ["send"]});
        let second = json!({"streams": 4, "duration_ns": 1_000_000_000u64, "wait": {"client": "spin"},
            "client_wait": "spin", "directions": ["send", "receive"]});
        let differences = diff_facts(
            "option",
            &[
                flatten(&first, DERIVED_KEYS),
                flatten(&second, DERIVED_KEYS),
            ],
        );
        let listed: Vec<_> = differences
            .iter()
            .map(|differences| {
                (
                    differences.name.as_str(),
                    differences.option,
                    differences.values.clone(),
                )
            })
            .collect();
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(
            listed,
            [
                (
                    "directions",
                    Some("-R, --bidir"),
                    vec![some("send"), some("send, receive")]
                ),
                ("streams", Some("-P"), vec![some("1"), some("4")]),
                ("verify", Some("--verify"), vec![some("off"), None]),
                (
                    "wait.client",
                    Some("--wait"),
                    vec![some("block"), some("spin")]
                ),
            ]
        );
        assert_eq!(
            format_value("duration_ns", &json!(1_500_000_000u64)),
            "1.5 s"
        );
        assert_eq!(format_value("payload_bytes", &json!(2048)), "2 KiB");
        assert_eq!(option_of_key("hosting"), None);
    }
}
