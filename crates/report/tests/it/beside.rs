//! The presentation of a document does not depend on the document it is compared with.

use crate::samples;
use linerate_record::plan::{PerEnd, WaitMode};
use linerate_record::record::Record;
use linerate_record::run_set::{RunSet, SetResult};
use linerate_report::comparison::DocumentComparison;
use linerate_report::document::Document;
use linerate_report::{TextStyle, csv, html, markdown, text};
use serde_json::{Number, Value};

fn run(record: Record) -> Document {
    Document::Run(Box::new(record))
}

fn set(set: RunSet) -> Document {
    Document::Set(Box::new(set))
}

/// Returns latency runs of three sizes, as `-l 64,1K,32K` makes them.
fn sizes() -> RunSet {
    let of = |bytes: u64| {
        let mut run = samples::latency_blocking();
        run.id = format!("20261121T15100{}Z-00512e", bytes % 10);
        run.plan.payload_bytes = bytes;
        run.label = Some(format!("{bytes} B"));
        let rtt = run.summary.rtt_ns.as_mut().unwrap();
        rtt.p50 += bytes * 10;
        rtt.p99 += bytes * 40;
        run
    };
    RunSet {
        id: "20261121T151000Z-512e51".to_owned(),
        kind: "sizes".to_owned(),
        runs: [64, 1_024, 32_768].map(of).into(),
        result: SetResult::default(),
        ..samples::repeats()
    }
}

/// Returns one document of each kind, including one without its main figure.
fn documents() -> Vec<Document> {
    let mut unanswered = samples::latency_blocking();
    unanswered.id = "20261121T160000Z-00a5e5".to_owned();
    unanswered.label = Some("unanswered".to_owned());
    unanswered.summary.rtt_ns = None;
    unanswered.histograms.clear();
    vec![
        run(samples::tcp_send()),
        run(samples::tcp_receive()),
        run(samples::ten_streams()),
        run(samples::udp_bidirectional()),
        run(samples::latency_blocking()),
        run(samples::latency_spinning()),
        run(samples::latency_reopened()),
        run(samples::interrupted()),
        run(samples::server_unknown()),
        run(unanswered),
        set(samples::repeats()),
        set(samples::demo()),
        set(sizes()),
    ]
}

/// Changes every number in the figures of a document; names and plan stay.
fn with_other_figures(document: &Document) -> Document {
    fn change_numbers(value: &mut Value) {
        match value {
            Value::Number(number) => {
                *number = match number.as_u64() {
                    Some(integer) => (integer * 13 / 7 + 3).into(),
                    None => Number::from_f64(number.as_f64().unwrap() * 0.37).unwrap(),
                };
            }
            Value::Array(values) => values.iter_mut().for_each(change_numbers),
            Value::Object(fields) => fields.values_mut().for_each(change_numbers),
            _ => {}
        }
    }
    let changed = |run: &Record| -> Record {
        let mut value = serde_json::to_value(run).unwrap();
        for key in ["summary", "directions"] {
            change_numbers(&mut value[key]);
        }
        let mut changed: Record = serde_json::from_value(value).unwrap();
        // The number of a stream is its name.
        for (direction, original) in changed.directions.iter_mut().zip(&run.directions) {
            for (stream, original) in direction.streams.iter_mut().zip(&original.streams) {
                stream.id = original.id;
            }
        }
        changed
    };
    match document {
        Document::Run(run) => self::run(changed(run)),
        Document::Set(set) => {
            let runs: Vec<Record> = set.runs.iter().map(changed).collect();
            let figures = match set.result.figures.is_empty() {
                true => set.result.clone(),
                false => SetResult::from_repeats(&runs),
            };
            self::set(RunSet {
                runs,
                result: figures,
                ..(**set).clone()
            })
        }
    }
}

/// Returns all text about one document: sentences, clauses of common sentences (without the
/// letter), table lines, and parts of the page.
fn presentation_of(documents: &[Document], index: usize) -> Vec<String> {
    let sides = DocumentComparison::compare(documents);
    let name = sides.documents[index].name.clone();
    let is_about_it = |text: &str| {
        let names_other = |side: &linerate_report::comparison::ComparedDocument| {
            side.name != name && text.contains(&side.name)
        };
        text.contains(&name) && !sides.documents.iter().any(names_other)
    };
    let mut texts = Vec::new();
    for sentence in &sides.verdict {
        match sentence.split_once(" per document: ") {
            Some((figure, clauses)) => {
                for (number, clause) in clauses.trim_end_matches('.').split("), ").enumerate() {
                    if number == index {
                        let clause = clause.trim_end_matches(')');
                        let (_, value) = clause.split_once(' ').unwrap();
                        assert!(value.contains(&name), "{value} is of {name}");
                        texts.push(format!("{figure} {value}"));
                    }
                }
            }
            None if is_about_it(sentence) => texts.push(sentence.clone()),
            None => {}
        }
    }
    texts.extend(
        (csv::render_comparison(&sides).lines().skip(1))
            .filter(|line| {
                let id = format!(",{},", sides.documents[index].id);
                line.contains(&id)
            })
            .map(str::to_owned),
    );
    // Column of the table, cell by cell.
    let markdown = markdown::render_comparison(&sides);
    let rows = markdown
        .lines()
        .skip_while(|line| !line.starts_with("| figure"));
    texts.extend(rows.take_while(|line| line.starts_with('|')).map(|line| {
        let cells: Vec<&str> = line.split(" | ").collect();
        format!("{} {}", cells[0], cells[index + 1].trim_end_matches(" |"))
    }));
    let page = html::render_comparison("x", &sides, documents);
    // The sentences of the header are already covered.
    let sections = page.split("<section").skip(1);
    let parts = sections.flat_map(|part| part.split("<figure"));
    let rows = parts.flat_map(|part| part.split("<tr"));
    // Text after the end of a row does not belong to it.
    let rows = rows.map(|row| row.split("</tr>").next().unwrap_or(row));
    // A record that is on the page twice has a suffix in its second id.
    let row = |row: &str| row.replace("-2\"", "\"");
    texts.extend(rows.filter(|row| is_about_it(row)).map(row));
    texts
}

/// Removes the lines of figures that a document lacks and the other one has.
fn without_missing_figures(parts: Vec<String>) -> Vec<String> {
    parts
        .into_iter()
        .filter(|line| !line.ends_with(" -"))
        .collect()
}

#[test]
fn presentations_of_two_documents_are_independent() {
    let all_documents = documents();
    let count = all_documents.len();
    for (i, first) in all_documents.iter().enumerate() {
        // Itself and the two neighbours, in both orders.
        for k in [i, (i + 1) % count, (i + count - 1) % count] {
            let second = &all_documents[k];
            let changed = with_other_figures(second);
            let pair = [first.clone(), second.clone()];
            let changed_pair = [first.clone(), changed.clone()];
            let context = format!("{i} beside {k}");
            if i != k {
                assert_eq!(
                    presentation_of(&pair, 0),
                    presentation_of(&changed_pair, 0),
                    "{context}"
                );
                assert_ne!(
                    presentation_of(&pair, 1),
                    presentation_of(&changed_pair, 1),
                    "{context}: the second one has changed"
                );
            }
            // Two documents with the same id and name get distinct names.
            let swapped = [changed, first.clone()];
            let (comparison, swapped_comparison) = (
                DocumentComparison::compare(&changed_pair),
                DocumentComparison::compare(&swapped),
            );
            assert_ne!(
                comparison.documents[0].name, comparison.documents[1].name,
                "{context}"
            );
            for (number, side) in comparison.documents.iter().enumerate() {
                let alone = DocumentComparison::compare(&changed_pair[number..=number]);
                assert_eq!(side.figures, alone.documents[0].figures, "{context}");
                assert_eq!(side.caveats, alone.documents[0].caveats, "{context}");
                assert_eq!(
                    side.figures,
                    swapped_comparison.documents[1 - number].figures,
                    "{context}"
                );
            }
            if i != k {
                assert_eq!(
                    without_missing_figures(presentation_of(&changed_pair, 0)),
                    without_missing_figures(presentation_of(&swapped, 1)),
                    "{context}, turned"
                );
            }
        }
    }
}

#[test]
fn missing_figures_have_no_ratio() {
    let all = documents();
    for (i, first) in all.iter().enumerate() {
        for (k, second) in all.iter().enumerate() {
            let sides = DocumentComparison::compare(&[first.clone(), second.clone()]);
            for figure in sides.figures() {
                let name = figure.key();
                let values = [0, 1].map(|side| sides.documents[side].figures.get(&name));
                let ratio = sides.ratio(&name);
                match values {
                    [Some(a), Some(b)] if a.median != 0.0 => {
                        assert_eq!(ratio, Some(b.median / a.median), "{i} beside {k}: {name}");
                    }
                    _ => assert_eq!(ratio, None, "{i} beside {k}: {name}"),
                }
            }
        }
    }
}

#[test]
fn a_series_of_each_document_is_a_chart_of_its_own() {
    let (first, second) = (set(sizes()), with_other_figures(&set(sizes())));
    let sides = DocumentComparison::compare(&[first.clone(), second.clone()]);
    let page = html::render_comparison("x", &sides, &[first.clone(), second.clone()]);
    for (side, document) in sides.documents.iter().zip([&first, &second]) {
        let Document::Set(own) = document else {
            unreachable!("both are sets");
        };
        let alone = html::render_set("x", own);
        let title = format!("<h4>Round-trip times by size: {}</h4>", side.name);
        let chart = page.split("<figure").find(|part| part.contains(&title));
        let chart = chart.unwrap_or_else(|| panic!("no chart {title}"));
        let chart_of_set = alone
            .split("<figure")
            .find(|part| part.contains("<h4>Round-trip times by size</h4>"));
        let rows = |part: &str| part.split("<tbody>").nth(1).map(str::to_owned);
        assert_eq!(
            rows(chart),
            rows(chart_of_set.expect("a chart of its own page"))
        );
    }
}

/// "Than blocking" is used only for runs of one document.
#[test]
fn runs_of_different_documents_are_not_compared() {
    let (block, spin) = (samples::latency_blocking(), samples::latency_spinning());
    assert_eq!(spin.plan.wait, Some(PerEnd::same(WaitMode::Spin)));
    let separate = [run(block.clone()), run(spin.clone())];
    let page = html::render_comparison("x", &DocumentComparison::compare(&separate), &separate);
    assert!(!page.contains("faster than blocking"));
    assert!(html::render_report("x", &[block, spin], &[]).contains("faster than blocking"));
}

#[test]
fn the_same_record_twice_has_two_places_in_the_page() {
    let documents = [
        run(samples::tcp_send()),
        with_other_figures(&run(samples::tcp_send())),
    ];
    let page = html::render_comparison("x", &DocumentComparison::compare(&documents), &documents);
    let id = documents[0].id();
    for html_id in [format!("run-{id}"), format!("run-{id}-2")] {
        assert_eq!(
            page.matches(&format!("id=\"{html_id}\"")).count(),
            1,
            "{html_id}"
        );
        assert_eq!(
            page.matches(&format!("href=\"#{html_id}\"")).count(),
            1,
            "{html_id}"
        );
    }
    let text = text::render_comparison(&DocumentComparison::compare(&documents), &TextStyle::PLAIN);
    assert!(text.contains("(1)") && text.contains("(2)"), "{text}");
}
