//! Documents written by commit b37400c, before the renaming of keys, load under the present names.
//!
//! The fixtures are shortened: few entries of each list, and few or no runs of a set.

use std::collections::BTreeMap;

use linerate_record::ids::{CaveatId, StoredId};
use linerate_record::json_pointer::resolve_number;
use linerate_record::plan::WaitMode;
use linerate_record::record::{FlowEnd, Record};
use linerate_record::run_set::{RunSet, SetResult};
use serde::Serialize;
use serde_json::Value;

/// Counts the numbers, texts and true flags of a document; null, false and empty values may be
/// omitted.
fn count_values(value: &Value, counts: &mut BTreeMap<String, u32>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| count_values(item, counts)),
        Value::Object(fields) => fields
            .values()
            .for_each(|field| count_values(field, counts)),
        Value::Null | Value::Bool(false) => {}
        Value::String(text) if text.is_empty() => {}
        Value::Number(number) => {
            *counts.entry(format!("{:?}", number.as_f64())).or_default() += 1;
        }
        // Ids have new names too.
        Value::String(text) => {
            let present = match text.as_str() {
                "path-there" => "path-to-server",
                "path-back" => "path-to-client",
                text => text,
            };
            let id = StoredId::<CaveatId>::from_text(present.to_owned());
            *counts.entry(id.to_string()).or_default() += 1;
        }
        text_or_true => *counts.entry(text_or_true.to_string()).or_default() += 1,
    }
}

/// Asserts that a loaded document has every value of the text that it was read from: a key without
/// an alias is skipped and its value lost.
fn assert_complete(text: &str, loaded: &impl Serialize, name: &str) {
    let (mut earlier, mut present) = (BTreeMap::new(), BTreeMap::new());
    count_values(&serde_json::from_str(text).unwrap(), &mut earlier);
    count_values(&serde_json::to_value(loaded).unwrap(), &mut present);
    earlier.retain(|value, count| present.get(value).copied().unwrap_or(0) < *count);
    assert!(earlier.is_empty(), "{name}: values lost: {earlier:?}");
}

fn load_record(name: &str, text: &str) -> Record {
    let record = Record::from_json(text).expect(name);
    assert_complete(text, &record, name);
    record
}

fn load_result(name: &str, text: &str) -> SetResult {
    let set: RunSet = serde_json::from_str(text).expect(name);
    assert_complete(text, &set, name);
    set.result
}

macro_rules! load {
    ($load:ident, $name:literal) => {
        $load(
            $name,
            include_str!(concat!("fixtures/earlier/", $name, ".json")),
        )
    };
}

#[test]
fn earlier_documents_load_under_the_present_names() {
    let throughput = load!(load_record, "throughput");
    assert_eq!(throughput.summary.goodput_bps, Some(40_053_333.333_333_336));
    assert_eq!(throughput.plan.wait.unwrap().server, WaitMode::Block);
    let thread = &throughput.summary.cpu[0].threads[0];
    assert_eq!(thread.flow_end, FlowEnd::Sender);

    let latency = load!(load_record, "latency");
    assert_eq!(latency.summary.round_trips, Some(50_246));
    let pass = latency.stage_pass.unwrap();
    assert_eq!(pass.incomplete, 1);
    assert_eq!(pass.timestamp_overhead_ns, Some(7_880));
    assert_eq!(pass.tracing_overhead_ns, Some(8_608));
    assert_eq!(latency.stages[0].timestamp_source, "software");
    let slice = &latency.timeline.unwrap().slices[0];
    assert_eq!(slice.round_trip, Some(15_733));

    let forward = load!(load_record, "forward").forward.unwrap();
    assert_eq!(forward.ports[0].receive.packets, 696_160);
    let generate = load!(load_record, "generate").generate.unwrap();
    assert_eq!(generate.flows_per_entry, 1);

    let search = load!(load_result, "search").search.unwrap();
    assert_eq!(search.trials[1].intended_bps, Some(4_142_525_779.620_929_7));
    let capacity = load!(load_result, "capacity").capacity.unwrap();
    assert_eq!(capacity.sizes[0].max_tried_fps, 505_600.0);
    assert!(capacity.sizes[0].trials[0].load_met);
    let sweep = load!(load_result, "sweep").sweep.unwrap();
    assert_eq!(sweep.points[0].memory_bytes, Some(4_070_912.0));
    let comparison = load!(load_result, "comparison").comparison.unwrap();
    let rtt_ns = comparison.pairs[0].cache_line_rtt_ns;
    assert_eq!(rtt_ns, Some([213.0, 258.0]));
    let tuning = load!(load_result, "tuning").tuning.unwrap();
    assert_eq!(tuning.run_counts.proof, 22);
    assert_eq!(tuning.best_trial.unwrap().value, 2_080_000.000_000_001_6);
    assert!(tuning.findings[0].summary.starts_with("1.00 Mb/s"));
    let experiment = load!(load_result, "experiment").experiment.unwrap();
    assert_eq!(experiment.location, "lab");
    assert_eq!(experiment.figures[0].description, "Goodput.");
}

/// Appends a JSON pointer to every number of a document.
fn number_pointers(value: &Value, at: &str, pointers: &mut Vec<String>) {
    match value {
        Value::Number(_) => pointers.push(at.to_owned()),
        Value::Array(items) => {
            for (position, item) in items.iter().enumerate() {
                number_pointers(item, &format!("{at}/{position}"), pointers);
            }
        }
        Value::Object(fields) => {
            for (name, field) in fields {
                let name = name.replace('~', "~0").replace('/', "~1");
                number_pointers(field, &format!("{at}/{name}"), pointers);
            }
        }
        _ => {}
    }
}

/// A pointer into an earlier record leads to the same number of the record that was read from it.
#[test]
fn earlier_pointers_lead_to_the_same_numbers() {
    let texts = [
        include_str!("fixtures/earlier/throughput.json"),
        include_str!("fixtures/earlier/latency.json"),
        include_str!("fixtures/earlier/forward.json"),
        include_str!("fixtures/earlier/generate.json"),
    ];
    for text in texts {
        let earlier: Value = serde_json::from_str(text).unwrap();
        let present = serde_json::to_value(Record::from_json(text).unwrap()).unwrap();
        let mut pointers = Vec::new();
        number_pointers(&earlier, "", &mut pointers);
        for pointer in pointers {
            let resolved =
                resolve_number(&pointer).unwrap_or_else(|error| panic!("{pointer}: {error:?}"));
            let number = present.pointer(&resolved).and_then(Value::as_f64);
            let expected = earlier.pointer(&pointer).and_then(Value::as_f64);
            assert_eq!(number, expected, "{pointer}: {resolved}");
        }
    }
}
