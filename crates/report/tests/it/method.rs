//! Checks that the files of docs/method name every number of a record or set, and every figure of
//! `--expect`.

use std::collections::BTreeSet;
use std::fs;

use linerate_record::expect::FIGURES;
use linerate_record::figure::find;
use linerate_report::schema;
use serde_json::Value;

const METHOD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/method");

/// Types of options that do not end in `Plan`; the command line documents them.
const OPTION_TYPES: &[&str] = &["PaceBurst", "CommandArgument"];

/// Types of host facts, documented by the kernel and the device.
const FACT_TYPES: &[&str] = &[
    "HostFacts",
    "CpuFacts",
    "IdleState",
    "InterfaceFacts",
    "ChildQdisc",
    "CoalescingSettings",
    "EeeState",
];

/// Fields of the file format rather than of measurements.
const FORMAT_FIELDS: &[(&str, &str)] = &[
    ("HistogramData", "buckets"), // positions and counts from which the percentiles are computed
];

/// Parts of the frame of a figure, in their order.
const FRAME: [&str; 5] = ["Unit", "Definition", "Formula", "Source", "Error"];

/// Returns name and text of the files of the folder.
fn documents() -> Vec<(String, String)> {
    let entries = fs::read_dir(METHOD).expect("docs/method is readable");
    let paths = entries.map(|entry| entry.expect("docs/method is readable").path());
    paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .map(|path| {
            let text = fs::read_to_string(&path).expect("a file of docs/method is text");
            (path.display().to_string(), text)
        })
        .collect()
}

/// Returns the names between backticks in all files of the folder.
fn documented_names() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (path, text) in documents() {
        // Code blocks have three backticks and are left out.
        let fences = text.matches("```").count();
        assert!(fences.is_multiple_of(2), "{path}: open code block");
        let prose = text.split("```").step_by(2);
        let code = prose.flat_map(|text| text.split('`').skip(1).step_by(2));
        names.extend(
            code.flat_map(|code| code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'))
                .map(str::to_owned),
        );
    }
    names
}

/// Returns whether a field holds a number or a list of numbers.
fn is_number(field: &Value) -> bool {
    let is = |name: &str| match &field["type"] {
        Value::String(only) => only == name,
        Value::Array(several) => several.iter().any(|type_name| type_name == name),
        _ => false,
    };
    is("integer") || is("number") || (is("array") && is_number(&field["items"]))
}

/// Collects the number fields of a type and of its variants.
fn collect_number_fields(type_schema: &Value, names: &mut BTreeSet<String>) {
    for (name, field) in type_schema["properties"].as_object().into_iter().flatten() {
        if is_number(field) {
            names.insert(name.clone());
        }
    }
    for variants in ["oneOf", "anyOf", "allOf"] {
        for variant in type_schema[variants].as_array().into_iter().flatten() {
            collect_number_fields(variant, names);
        }
    }
}

/// Returns `Type.quote_field` of all number fields that are not documented.
fn undocumented_fields(schema: &str, names: &BTreeSet<String>) -> Vec<String> {
    let schema: Value = serde_json::from_str(schema).expect("a schema is JSON");
    let types = schema["$defs"].as_object().expect("a schema has types");
    let document = [("the document".to_owned(), &schema)];
    let types = types.iter().map(|(name, of)| (name.clone(), of));
    let mut missing = Vec::new();
    for (name, of) in document.into_iter().chain(types) {
        if name.ends_with("Plan") || OPTION_TYPES.contains(&&*name) || FACT_TYPES.contains(&&*name)
        {
            continue;
        }
        let mut numbers = BTreeSet::new();
        collect_number_fields(of, &mut numbers);
        let is_documented = |field: &String| {
            names.contains(field.as_str())
                || FORMAT_FIELDS.contains(&(name.as_str(), field.as_str()))
        };
        let unnamed = numbers.iter().filter(|field| !is_documented(field));
        missing.extend(unnamed.map(|field| format!("{name}.{field}")));
    }
    missing
}

#[test]
fn every_number_is_documented() {
    let names = documented_names();
    assert!(names.len() > 300, "too few names parsed: {}", names.len());
    for schema in [schema::record_schema(), schema::set_schema()] {
        let missing = undocumented_fields(&schema, &names);
        assert!(
            missing.is_empty(),
            "docs/method does not document {missing:?}: add meaning, source and error"
        );
    }
    for figure in FIGURES {
        // Under its own name, or as spelled in the record.
        let name = figure.name;
        let is_it = |documented_name: &String| {
            documented_name.strip_suffix("_ns") == Some(name)
                || find(documented_name).is_some_and(|named_figure| named_figure.name == name)
        };
        assert!(
            names.iter().any(is_it),
            "docs/method does not document `--expect {name}`"
        );
    }
}

#[test]
fn every_figure_has_the_frame() {
    let mut framed = 0;
    for (path, text) in documents() {
        for section in text.split("\n### ").skip(1) {
            let heading = section.lines().next().expect("a heading");
            // Headings of figures have their key, headings of options begin with `--`.
            if !heading.contains("(`") || heading.contains("(`--") {
                continue;
            }
            let parts = section.lines().filter_map(|line| line.strip_prefix("- **"));
            let parts: Vec<&str> = parts.filter_map(|line| line.split("**").next()).collect();
            assert!(parts.starts_with(&FRAME), "{path}: {heading}: {parts:?}");
            framed += 1;
        }
    }
    assert!(framed > 100, "too few figures parsed: {framed}");
}

#[test]
fn an_undocumented_number_is_found() {
    let schema = r#"{"$defs": {
        "Made": {"properties": {"zz_ns": {"type": ["integer", "null"]}, "name": {"type": "string"}}},
        "Several": {"oneOf": [{"properties": {"zz_list": {"type": "array", "items": {"type": "number"}}}}]},
        "MadePlan": {"properties": {"zz_asked": {"type": "integer"}}}
    }}"#;
    assert_eq!(
        undocumented_fields(schema, &documented_names()),
        ["Made.zz_ns", "Several.zz_list"]
    );
}
