//! Subset of JSON Schema that our schemas use: enough to check a document against them.

use serde_json::Value;

/// Returns every violation of the schema, with its path in the document.
pub fn violations(schema: &Value, document: &Value) -> Vec<String> {
    let mut violations_found = Vec::new();
    check(schema, schema, document, "$", &mut violations_found);
    violations_found
}

fn check(root: &Value, schema: &Value, value: &Value, path: &str, violations: &mut Vec<String>) {
    let rules = match schema {
        Value::Bool(true) => return,
        Value::Object(rules) => rules,
        _ => panic!("no schema at {path}: {schema}"),
    };
    for (rule, expected) in rules {
        let holds = match rule.as_str() {
            "$schema" | "$defs" | "title" | "description" | "default" | "format" => true,
            "$ref" => {
                let name = expected.as_str().expect("a reference is a text");
                let pointer = name.strip_prefix('#').expect("it points into the document");
                let target = root.pointer(pointer).expect("it points to something");
                check(root, target, value, path, violations);
                true
            }
            "type" => match expected {
                Value::Array(any) => any.iter().any(|kind| is_a(kind, value)),
                kind => is_a(kind, value),
            },
            "const" => value == expected,
            "enum" => list(expected).contains(value),
            "anyOf" | "oneOf" => {
                let matches = |one: &&Value| {
                    let mut mismatches = Vec::new();
                    check(root, one, value, path, &mut mismatches);
                    mismatches.is_empty()
                };
                let match_count = list(expected).iter().filter(matches).count();
                match_count == 1 || (match_count > 1 && rule == "anyOf")
            }
            "required" => list(expected)
                .iter()
                .all(|name| value.get(name.as_str().expect("a name")).is_some()),
            "properties" => {
                for (name, schema) in expected.as_object().expect("schemas by name") {
                    if let Some(value) = value.get(name) {
                        check(root, schema, value, &format!("{path}.{name}"), violations);
                    }
                }
                true
            }
            "additionalProperties" => {
                let properties = rules.get("properties");
                for (name, value) in value.as_object().into_iter().flatten() {
                    if properties
                        .and_then(|properties| properties.get(name))
                        .is_none()
                    {
                        check(root, expected, value, &format!("{path}.{name}"), violations);
                    }
                }
                true
            }
            "items" => {
                for (number, value) in value.as_array().into_iter().flatten().enumerate() {
                    check(
                        root,
                        expected,
                        value,
                        &format!("{path}[{number}]"),
                        violations,
                    );
                }
                true
            }
            "prefixItems" => {
                for (number, schema) in list(expected).iter().enumerate() {
                    if let Some(value) = value.get(number) {
                        check(
                            root,
                            schema,
                            value,
                            &format!("{path}[{number}]"),
                            violations,
                        );
                    }
                }
                true
            }
            "minItems" => value
                .as_array()
                .is_none_or(|all| all.len() as u64 >= number(expected)),
            "maxItems" => value
                .as_array()
                .is_none_or(|all| all.len() as u64 <= number(expected)),
            "minimum" => value
                .as_f64()
                .is_none_or(|it| it >= expected.as_f64().expect("a number")),
            "maximum" => value
                .as_f64()
                .is_none_or(|it| it <= expected.as_f64().expect("a number")),
            other => panic!("the schema at {path} uses `{other}`: support it in this file"),
        };
        if !holds {
            violations.push(format!("{path}: {value} is not {rule} {expected}"));
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
