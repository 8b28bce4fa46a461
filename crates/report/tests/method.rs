//! Every number that a record or a set can hold, and every figure that `--expect` knows, has its word in
//! docs/METHOD.md.

use std::collections::BTreeSet;

use linerate_metric::expect::FIGURES;
use linerate_metric::figure::named;
use linerate_report::schema;
use serde_json::Value;

const METHOD: &str = include_str!("../../../docs/METHOD.md");

/// Types of what was asked for, besides those that end in `Plan`: they are as the command line says.
const ASKED: &[&str] = &["Pace", "Burst", "Argument"];

/// Types of what a host is: they are as the kernel and the device say.
const FACTS: &[&str] = &[
    "Host",
    "Cpu",
    "IdleState",
    "Interface",
    "ChildQdisc",
    "Coalescing",
    "EnergyEfficient",
];

/// Fields of files, not of measurements.
const LAYOUT: &[(&str, &str)] = &[
    ("HistogramData", "buckets"), // places and counts, from which the percentiles are made
];

/// Names that the file has between backticks, taken apart at what is no part of a name.
fn words() -> BTreeSet<&'static str> {
    // Blocks of code have three of them, and are left out.
    let prose = METHOD.split("```").step_by(2);
    let code = prose.flat_map(|text| text.split('`').skip(1).step_by(2));
    code.flat_map(|code| code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'))
        .collect()
}

/// Whether a field holds a number, or a list of them.
fn is_number(field: &Value) -> bool {
    let is = |name: &str| match &field["type"] {
        Value::String(only) => only == name,
        Value::Array(several) => several.iter().any(|one| one == name),
        _ => false,
    };
    is("integer") || is("number") || (is("array") && is_number(&field["items"]))
}

/// Fields of a type and of its variants.
fn fields(of: &Value, found: &mut BTreeSet<String>) {
    for (name, field) in of["properties"].as_object().into_iter().flatten() {
        if is_number(field) {
            found.insert(name.clone());
        }
    }
    for several in ["oneOf", "anyOf", "allOf"] {
        for one in of[several].as_array().into_iter().flatten() {
            fields(one, found);
        }
    }
}

/// `Type.field` of all that no word is about.
fn unnamed(schema: &str, words: &BTreeSet<&str>) -> Vec<String> {
    let schema: Value = serde_json::from_str(schema).expect("a schema is JSON");
    let types = schema["$defs"].as_object().expect("it has types");
    let own = [("the document".to_owned(), &schema)];
    let types = types.iter().map(|(name, of)| (name.clone(), of));
    let mut missing = Vec::new();
    for (name, of) in own.into_iter().chain(types) {
        if name.ends_with("Plan") || ASKED.contains(&&*name) || FACTS.contains(&&*name) {
            continue;
        }
        let mut numbers = BTreeSet::new();
        fields(of, &mut numbers);
        let is_known = |field: &String| {
            words.contains(field.as_str()) || LAYOUT.contains(&(name.as_str(), field.as_str()))
        };
        let unnamed = numbers.iter().filter(|field| !is_known(field));
        missing.extend(unnamed.map(|field| format!("{name}.{field}")));
    }
    missing
}

#[test]
fn every_number_has_its_word() {
    let words = words();
    assert!(
        words.len() > 300,
        "the file is taken apart: {}",
        words.len()
    );
    for schema in [schema::record_schema(), schema::set_schema()] {
        let missing = unnamed(&schema, &words);
        assert!(
            missing.is_empty(),
            "docs/METHOD.md says nothing of {missing:?}: what it is, from where, how wrong"
        );
    }
    for figure in FIGURES {
        // By its own name, or as the record spells it.
        let name = figure.name;
        let is_it = |word: &&str| {
            word.strip_suffix("_ns") == Some(name)
                || named(word).is_some_and(|known| known.name == name)
        };
        assert!(
            words.iter().any(is_it),
            "docs/METHOD.md says nothing of `--expect {name}`"
        );
    }
}

#[test]
fn a_number_without_a_word_is_found() {
    let schema = r#"{"$defs": {
        "Made": {"properties": {"zz_ns": {"type": ["integer", "null"]}, "name": {"type": "string"}}},
        "Several": {"oneOf": [{"properties": {"zz_list": {"type": "array", "items": {"type": "number"}}}}]},
        "MadePlan": {"properties": {"zz_asked": {"type": "integer"}}}
    }}"#;
    assert_eq!(unnamed(schema, &words()), ["Made.zz_ns", "Several.zz_list"]);
}
