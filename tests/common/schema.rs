//! Subset of JSON Schema that our schemas use: enough to check a document against them.

use serde_json::Value;

/// Returns every violation of the schema, with its path in the document.
pub fn complaints(schema: &Value, document: &Value) -> Vec<String> {
    let mut found = Vec::new();
    check(schema, schema, document, "$", &mut found);
    found
}

fn check(root: &Value, schema: &Value, value: &Value, place: &str, found: &mut Vec<String>) {
    let rules = match schema {
        Value::Bool(true) => return,
        Value::Object(rules) => rules,
        _ => panic!("no schema at {place}: {schema}"),
    };
    for (rule, want) in rules {
        let holds = match rule.as_str() {
            "$schema" | "$defs" | "title" | "description" | "default" | "format" => true,
            "$ref" => {
                let name = want.as_str().expect("a reference is a text");
                let pointer = name.strip_prefix('#').expect("it points into the document");
                let target = root.pointer(pointer).expect("it points to something");
                check(root, target, value, place, found);
                true
            }
            "type" => match want {
                Value::Array(any) => any.iter().any(|kind| is_a(kind, value)),
                kind => is_a(kind, value),
            },
            "const" => value == want,
            "enum" => list(want).contains(value),
            "anyOf" | "oneOf" => {
                let fits = |one: &&Value| {
                    let mut unlike = Vec::new();
                    check(root, one, value, place, &mut unlike);
                    unlike.is_empty()
                };
                let fitting = list(want).iter().filter(fits).count();
                fitting == 1 || (fitting > 1 && rule == "anyOf")
            }
            "required" => list(want)
                .iter()
                .all(|name| value.get(name.as_str().expect("a name")).is_some()),
            "properties" => {
                for (name, schema) in want.as_object().expect("schemas by name") {
                    if let Some(value) = value.get(name) {
                        check(root, schema, value, &format!("{place}.{name}"), found);
                    }
                }
                true
            }
            "additionalProperties" => {
                let known = rules.get("properties");
                for (name, value) in value.as_object().into_iter().flatten() {
                    if known.and_then(|known| known.get(name)).is_none() {
                        check(root, want, value, &format!("{place}.{name}"), found);
                    }
                }
                true
            }
            "items" => {
                for (number, value) in value.as_array().into_iter().flatten().enumerate() {
                    check(root, want, value, &format!("{place}[{number}]"), found);
                }
                true
            }
            "prefixItems" => {
                for (number, schema) in list(want).iter().enumerate() {
                    if let Some(value) = value.get(number) {
                        check(root, schema, value, &format!("{place}[{number}]"), found);
                    }
                }
                true
            }
            "minItems" => value
                .as_array()
                .is_none_or(|all| all.len() as u64 >= number(want)),
            "maxItems" => value
                .as_array()
                .is_none_or(|all| all.len() as u64 <= number(want)),
            "minimum" => value
                .as_f64()
                .is_none_or(|it| it >= want.as_f64().expect("a number")),
            "maximum" => value
                .as_f64()
                .is_none_or(|it| it <= want.as_f64().expect("a number")),
            other => panic!("the schema at {place} uses `{other}`: support it in this file"),
        };
        if !holds {
            found.push(format!("{place}: {value} is not {rule} {want}"));
        }
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a count")
}

fn is_a(kind: &Value, value: &Value) -> bool {
    match kind.as_str().expect("the name of a type") {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("no type: {other}"),
    }
}
