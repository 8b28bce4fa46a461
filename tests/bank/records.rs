//! Documents of the bank: recorded runs, and cases made from them.
#![allow(dead_code, reason = "every test program uses only some of this")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// Returns a directory of the bank.
pub fn bank_dir(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/bank")
        .join(name)
}

/// Reads the documents of a directory of the bank, by name.
pub fn read_documents(name: &str) -> Vec<(String, Value)> {
    let entries = fs::read_dir(bank_dir(name)).expect("the bank");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("a file").path()).collect();
    files.retain(|file| {
        file.extension()
            .is_some_and(|extension| extension == "json")
    });
    files.sort();
    let read = |file: PathBuf| {
        let text = fs::read_to_string(&file).expect("readable");
        let name = file
            .file_stem()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        (name, value)
    };
    files.into_iter().map(read).collect()
}

/// Returns the record of a made case: a recorded one with values put at JSON pointers.
pub fn made_record(name: &str, case: &Value, recorded: &BTreeMap<String, Value>) -> Value {
    let from = case["from"].as_str().expect("what it is made from");
    let mut record = recorded
        .get(from)
        .unwrap_or_else(|| panic!("{name}: no record {from}"))
        .clone();
    assert!(
        case["why"].is_string(),
        "{name} gives the reason why it is made by hand"
    );
    for (pointer, value) in case["set"].as_object().expect("what is put where") {
        put_at_pointer(&mut record, pointer, value.clone());
    }
    record
}

/// Puts a value at a pointer and creates missing parents; `*` stands for all items of a list.
pub fn put_at_pointer(target: &mut Value, pointer: &str, value: Value) {
    if let Some((before, after)) = pointer.split_once("/*") {
        let list = target.pointer_mut(before).and_then(Value::as_array_mut);
        for item in list.expect("a list") {
            put_at_pointer(item, after, value.clone());
        }
        return;
    }
    let mut at = target;
    for step in pointer.split('/').skip(1) {
        at = match at {
            Value::Array(list) => {
                let item: usize = step.parse().expect("a place in a list");
                while list.len() <= item {
                    list.push(json!({}));
                }
                &mut list[item]
            }
            _ => &mut at[step.replace("~1", "/")],
        };
    }
    *at = value;
}
