//! JSON Schema (2020-12) of the JSON output, generated from the types.

use linerate_record::record::Record;
use linerate_record::run_set::RunSet;
use schemars::{JsonSchema, schema_for};

/// Returns the schema of one run, `linerate/run/1`.
#[must_use]
pub fn record_schema() -> String {
    schema_of::<Record>()
}

/// Returns the schema of a set of runs, `linerate/set/1`.
#[must_use]
pub fn set_schema() -> String {
    schema_of::<RunSet>()
}

fn schema_of<T: JsonSchema>() -> String {
    let mut text = serde_json::to_string_pretty(&schema_for!(T)).expect("a schema is JSON");
    text.push('\n');
    text
}
