//! Documents of somebody else: every text and every number of every kind of document is replaced by
//! a poisoned one, and goes through every back-end.

use crate::samples;
use linerate_record::run_set::{RunSet, SetResult};
use linerate_report::comparison::DocumentComparison;
use linerate_report::document::Document;
use linerate_report::{TextStyle, csv, html, markdown, text};
use serde_json::{Value, json};

/// Sequences for a terminal, markup for a page, separators of tables, and directions of writing.
const POISON: &str =
    "x\u{1b}]0;TITLE\u{7}\u{1b}[2J\u{9b}31m\r\u{202e}<img src=x onerror=alert(1)>\"'|,&y";

/// Numbers that no measurement has. The integer is the largest that all programs keep exactly in
/// JSON (RFC 8259 section 6).
fn poisoned_numbers() -> [Value; 3] {
    [json!(0), json!((1_u64 << 53) - 1), json!(1e308)]
}

/// One document of each kind, as JSON.
fn documents() -> Vec<(&'static str, Value)> {
    let fixture = |text: &str| serde_json::from_str(text).unwrap();
    macro_rules! earlier {
        ($($name:literal),*) => {
            vec![$((
                $name,
                fixture(include_str!(concat!("../../../record/tests/fixtures/earlier/", $name, ".json"))),
            )),*]
        };
    }
    let mut documents = earlier!(
        "capacity",
        "comparison",
        "experiment",
        "forward",
        "generate",
        "latency",
        "search",
        "sweep",
        "throughput",
        "tuning"
    );
    let saturation = RunSet {
        result: SetResult {
            saturation: serde_json::from_value(json!([{
                "cores": 2,
                "points": [
                    {"tx_first": 1, "in_flight": 64, "packets_per_second": 1e6, "dropped": 0, "record": "a"},
                    {"tx_first": 2, "in_flight": 128, "packets_per_second": 2e6, "dropped": 3, "record": "b"},
                ],
                "plateau_pps": 2e6,
                "plateau_in_flight": 128,
                "stopped_by": "plateau",
            }]))
            .unwrap(),
            ..SetResult::default()
        },
        ..samples::repeats()
    };
    let values = [
        ("tcp", serde_json::to_value(samples::tcp_send())),
        ("udp", serde_json::to_value(samples::udp_bidirectional())),
        ("stages", serde_json::to_value(samples::staged())),
        ("conclusions", serde_json::to_value(samples::conclusions())),
        ("waiting", serde_json::to_value(samples::waiting())),
        ("demo", serde_json::to_value(samples::demo())),
        ("saturation", serde_json::to_value(saturation)),
    ];
    documents.extend(values.map(|(name, value)| (name, value.unwrap())));
    documents.iter_mut().for_each(|(_, value)| shorten(value));
    documents
}

/// Keeps two items of each list: all are alike, and a document is read some hundred times.
fn shorten(value: &mut Value) {
    match value {
        Value::Object(fields) => fields.values_mut().for_each(shorten),
        Value::Array(items) => {
            items.truncate(2);
            items.iter_mut().for_each(shorten);
        }
        _ => {}
    }
}

/// Paths of all values that are no objects and no lists.
fn leaves(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let name = name.replace('~', "~0").replace('/', "~1");
                leaves(value, &format!("{path}/{name}"), found);
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                leaves(value, &format!("{path}/{index}"), found);
            }
        }
        _ => found.push(path.to_owned()),
    }
}

/// Replaces the values at these paths as far as the document is still accepted: all, or those of
/// each half. Returns the number replaced.
fn poison(document: &mut Value, paths: &[String], value: &Value) -> usize {
    let mut poisoned = document.clone();
    for path in paths {
        *poisoned.pointer_mut(path).unwrap() = value.clone();
    }
    if Document::from_json(&poisoned.to_string()).is_ok() {
        *document = poisoned;
        return paths.len();
    }
    let (first, second) = paths.split_at(paths.len() / 2);
    match first.is_empty() {
        true => 0,
        false => poison(document, first, value) + poison(document, second, value),
    }
}

/// Output of every back-end: pages of markup, and text for a terminal.
fn render(document: &Document) -> (Vec<String>, Vec<String>) {
    let style = TextStyle {
        width: 80,
        ..TextStyle::PLAIN
    };
    let (mut pages, mut texts) = (Vec::new(), Vec::new());
    match document {
        Document::Run(run) => {
            pages.push(html::render_report("x", std::slice::from_ref(run), &[]));
            texts.push(text::render_summary(run, &style));
            texts.push(text::render_server_summary(run, "peer", true, &style));
            texts.push(text::render_explanation(run, &style));
            texts.push(text::render_findings(&run.findings, &style));
        }
        Document::Set(set) => {
            pages.push(html::render_set("x", set));
            texts.push(text::render_set(set, &style));
            let result = &set.result;
            texts.extend(
                (result.experiment.as_ref())
                    .map(|experiment| markdown::render_experiment(experiment, set)),
            );
            texts.extend(
                result
                    .search
                    .as_ref()
                    .map(|search| markdown::render_search(search)),
            );
        }
    }
    let documents = [document.clone(), document.clone()];
    let sides = DocumentComparison::compare(&documents);
    pages.push(html::render_comparison("x", &sides, &documents));
    texts.push(text::render_comparison(&sides, &style));
    texts.push(markdown::render_comparison(&sides));
    texts.push(csv::render_comparison(&sides));
    (pages, texts)
}

fn check_texts(what: &str, document: &Document) {
    let (pages, texts) = render(document);
    for page in pages {
        assert!(!page.contains("<img src=x"), "{what}: markup in a page");
        let control = page
            .chars()
            .find(|c| c.is_control() && !"\n\t".contains(*c));
        assert_eq!(control, None, "{what}: in a page");
    }
    for text in texts {
        let control = text
            .chars()
            .find(|c| c.is_control() && !"\n\t".contains(*c));
        assert_eq!(control, None, "{what}: {text}");
        assert!(!text.contains('\u{202e}'), "{what}: {text}");
    }
}

#[test]
fn poisoned_texts_reach_no_output() {
    for (name, original) in documents() {
        let mut paths = Vec::new();
        leaves(&original, "", &mut paths);
        let is_text = |path: &String| original.pointer(path).is_some_and(Value::is_string);
        paths.retain(|path| is_text(path) && !path.ends_with("/schema"));
        let mut poisoned = original.clone();
        let count = poison(&mut poisoned, &paths, &json!(POISON));
        assert!(count > 2, "{name}: {count} texts");
        let document = Document::from_json(&poisoned.to_string()).unwrap();
        check_texts(name, &document);
    }
}

#[test]
fn poisoned_numbers_stop_no_output() {
    for (name, original) in documents() {
        let mut paths = Vec::new();
        leaves(&original, "", &mut paths);
        paths.retain(|path| original.pointer(path).is_some_and(Value::is_number));
        for number in poisoned_numbers() {
            // All at once, and one alone.
            for changed in [&paths[..], &paths[paths.len() / 2..=paths.len() / 2]] {
                let mut poisoned = original.clone();
                poison(&mut poisoned, changed, &number);
                let Ok(document) = Document::from_json(&poisoned.to_string()) else {
                    continue;
                };
                let rendered = std::panic::catch_unwind(|| render(&document));
                assert!(rendered.is_ok(), "{name}: {number} at {:?}", &changed[..1]);
            }
        }
    }
}
