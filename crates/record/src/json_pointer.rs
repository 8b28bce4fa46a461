//! Validates JSON pointers into a record against the schema of records.

use std::sync::OnceLock;

use schemars::schema_for;
use serde_json::Value;

use crate::earlier_names::{present_entry, present_key};
use crate::record::Record;

/// Most names that an error message lists.
const MAX_LISTED_NAMES: usize = 40;

/// Checks that a JSON pointer (RFC 6901) can lead to a number in a record, and returns it with the
/// present names in place of earlier ones. Maps with free names (histograms, calls) accept any
/// name.
///
/// # Errors
/// The problem, and the valid names, as sentence fragments.
pub fn resolve_number(pointer: &str) -> Result<String, (String, String)> {
    static SHAPE: OnceLock<Value> = OnceLock::new();
    let root = SHAPE.get_or_init(|| schema_for!(Record).to_value());
    let Some(path) = pointer.strip_prefix('/') else {
        return Err((
            "is not a JSON pointer".to_owned(),
            "start it with `/`, as in `/summary/rtt_ns/p50`".to_owned(),
        ));
    };
    let mut schemas = resolve(root, root);
    let mut parent_path = String::new();
    for part in path.split('/') {
        let name = part.replace("~1", "/").replace("~0", "~");
        let children_of = |name: &str| -> Vec<&Value> {
            let children = schemas.iter().filter_map(|at| child(at, name));
            children.flat_map(|at| resolve(root, at)).collect()
        };
        let mut present = part;
        let mut children = children_of(&name);
        if children.is_empty()
            && let Some(renamed) = present_key(&name)
        {
            (present, children) = (renamed, children_of(renamed));
        } else if !schemas.iter().any(|at| has_property(at, &name))
            && let Some(renamed) = present_entry(&name)
        {
            present = renamed;
        }
        if children.is_empty() {
            let parent = match parent_path.is_empty() {
                true => "a record".to_owned(),
                false => format!("{parent_path} of a record"),
            };
            return Err((
                format!("does not exist: {parent} has no {name}"),
                match names(&schemas) {
                    names if names.is_empty() => "end the pointer there".to_owned(),
                    names => format!("use one of {names}"),
                },
            ));
        }
        parent_path.push('/');
        parent_path.push_str(present);
        schemas = children;
    }
    if schemas.iter().any(|at| is_number(at)) {
        return Ok(parent_path);
    }
    Err((
        "points to a value that is not a number".to_owned(),
        match names(&schemas) {
            names if names.is_empty() => "point to a number of the record".to_owned(),
            names => format!("continue with one of {names}"),
        },
    ))
}

/// Returns a schema with references resolved, as a list of its alternatives.
fn resolve<'a>(root: &'a Value, schema: &'a Value) -> Vec<&'a Value> {
    if let Some(name) = schema["$ref"].as_str() {
        let target = name.strip_prefix('#').and_then(|path| root.pointer(path));
        return target.map_or_else(Vec::new, |target| resolve(root, target));
    }
    let alternatives: Vec<&Value> = (["anyOf", "oneOf", "allOf"].iter())
        .filter_map(|key| schema[key].as_array())
        .flatten()
        .flat_map(|one| resolve(root, one))
        .collect();
    match alternatives.is_empty() {
        true => vec![schema],
        false => alternatives,
    }
}

/// Returns true if an earlier version had a key of this name in its records, and the present names
/// replace it.
#[must_use]
pub fn is_earlier_key(name: &str) -> bool {
    present_key(name).is_some()
}

fn has_property(schema: &Value, name: &str) -> bool {
    schema["properties"].get(name).is_some()
}

/// Returns the schema of a property, or of an array element.
fn child<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
    if let Some(property) = schema["properties"].get(name) {
        return Some(property);
    }
    if let Ok(position) = name.parse::<usize>() {
        let of_tuple = schema["prefixItems"].get(position);
        let of_list = Some(&schema["items"]).filter(|items| items.is_object());
        if let Some(item) = of_tuple.or(of_list) {
            return Some(item);
        }
    }
    Some(&schema["additionalProperties"]).filter(|free| free.is_object())
}

fn is_number(schema: &Value) -> bool {
    let number = |kind: &Value| matches!(kind.as_str(), Some("number" | "integer"));
    match &schema["type"] {
        Value::Array(kinds) => kinds.iter().any(number),
        kind => number(kind),
    }
}

/// Returns the property names, where they are fixed.
fn names(schemas: &[&Value]) -> String {
    let properties = schemas.iter().filter_map(|at| at["properties"].as_object());
    let mut names: Vec<&str> = properties
        .flat_map(|p| p.keys().map(String::as_str))
        .collect();
    names.dedup();
    let more = names.len().saturating_sub(MAX_LISTED_NAMES);
    names.truncate(MAX_LISTED_NAMES);
    match more {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_to_numbers_pass() {
        for pointer in [
            "/summary/goodput_bps",
            "/summary/rtt_ns/p99_9",
            "/hosts/0/stack/memory/bytes",
            "/calls/select/ready/p50",
            "/server_calls/recvfrom/ready/p50",
            "/forward/ports/1/transmit/dropped",
            "/directions/0/retransmits",
        ] {
            assert_eq!(resolve_number(pointer).as_deref(), Ok(pointer), "{pointer}");
        }
    }

    #[test]
    fn earlier_pointers_get_the_present_names() {
        for (earlier, present) in [
            (
                "/far_calls/sendto/room/p50",
                "/server_calls/sendto/accepted/p50",
            ),
            ("/calls/turn/ready/count", "/calls/stack_poll/ready/count"),
            ("/stage_pass/asking_ns", "/stage_pass/timestamp_overhead_ns"),
            ("/generate/refused_polls", "/generate/short_transmits"),
            (
                "/plan/round_trip/burn/far",
                "/plan/round_trip/load_threads/server",
            ),
        ] {
            let resolved = resolve_number(earlier);
            assert_eq!(resolved.as_deref(), Ok(present), "{earlier}");
        }
    }

    #[test]
    fn other_pointers_are_rejected_with_the_valid_names() {
        for (pointer, situation, next) in [
            (
                "/summary/rtt_ns/p51",
                "/summary/rtt_ns of a record has no p51",
                "p50",
            ),
            ("/sumary/goodput_bps", "a record has no sumary", "summary"),
            (
                "summary/goodput_bps",
                "not a JSON pointer",
                "start it with `/`",
            ),
            ("/summary/rtt_ns", "not a number", "p50"),
            (
                "/summary/rtt_ns/p50/low",
                "has no low",
                "end the pointer there",
            ),
            ("/hosts/first/cpu", "/hosts of a record has no first", ""),
            ("/started", "not a number", "point to a number"),
        ] {
            let (situation_text, names) = resolve_number(pointer).expect_err(pointer);
            assert!(
                situation_text.contains(situation),
                "{pointer}: {situation_text}"
            );
            assert!(names.contains(next), "{pointer}: {names}");
        }
    }
}
