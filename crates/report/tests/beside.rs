//! The presentation of a document does not depend on the document it is compared with.

mod samples;

use linerate_metric::plan::{Ends, Wait};
use linerate_metric::record::Record;
use linerate_metric::run_set::{RunSet, SetResult};
use linerate_report::comparison::SideBySide;
use linerate_report::document::Document;
use linerate_report::{Style, csv, html, markdown, text};
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
        run(samples::udp_both()),
        run(samples::latency_blocking()),
        run(samples::latency_spinning()),
        run(samples::latency_reopened()),
        run(samples::interrupted()),
        run(samples::far_unknown()),
        run(unanswered),
        set(samples::repeats()),
        set(samples::demo()),
        set(sizes()),
    ]
}

/// Changes every number in the figures of a document; names and plan stay.
fn otherwise(document: &Document) -> Document {
    fn walk(value: &mut Value) {
        match value {
            Value::Number(number) => {
                *number = match number.as_u64() {
                    Some(whole) => (whole * 13 / 7 + 3).into(),
                    None => Number::from_f64(number.as_f64().unwrap() * 0.37).unwrap(),
                };
            }
            Value::Array(values) => values.iter_mut().for_each(walk),
            Value::Object(fields) => fields.values_mut().for_each(walk),
            _ => {}
        }
    }
    let other = |run: &Record| -> Record {
        let mut value = serde_json::to_value(run).unwrap();
        for key in ["summary", "directions"] {
            walk(&mut value[key]);
        }
        let mut other: Record = serde_json::from_value(value).unwrap();
        // The number of a stream is its name.
        for (way, known) in other.directions.iter_mut().zip(&run.directions) {
            for (stream, known) in way.streams.iter_mut().zip(&known.streams) {
                stream.id = known.id;
            }
        }
        other
    };
    match document {
        Document::Run(run) => self::run(other(run)),
        Document::Set(set) => {
            let runs: Vec<Record> = set.runs.iter().map(other).collect();
            let figures = match set.result.figures.is_empty() {
                true => set.result.clone(),
                false => SetResult::of_repeats(&runs),
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
fn told(documents: &[Document], at: usize) -> Vec<String> {
    let sides = SideBySide::of(documents);
    let name = sides.sides[at].name.clone();
    let of_it = |text: &str| {
        let other = |side: &linerate_report::comparison::Side| {
            side.name != name && text.contains(&side.name)
        };
        text.contains(&name) && !sides.sides.iter().any(other)
    };
    let mut found = Vec::new();
    for sentence in &sides.verdict {
        match sentence.split_once(" per document: ") {
            Some((figure, clauses)) => {
                for (number, clause) in clauses.trim_end_matches('.').split("), ").enumerate() {
                    if number == at {
                        let clause = clause.trim_end_matches(')');
                        let (_, value) = clause.split_once(' ').unwrap();
                        assert!(value.contains(&name), "{value} is of {name}");
                        found.push(format!("{figure} {value}"));
                    }
                }
            }
            None if of_it(sentence) => found.push(sentence.clone()),
            None => {}
        }
    }
    found.extend(
        (csv::side_by_side(&sides).lines().skip(1))
            .filter(|line| {
                let id = format!(",{},", sides.sides[at].id);
                line.contains(&id)
            })
            .map(str::to_owned),
    );
    // Column of the table, cell by cell.
    let markdown = markdown::side_by_side(&sides);
    let rows = markdown
        .lines()
        .skip_while(|line| !line.starts_with("| figure"));
    found.extend(rows.take_while(|line| line.starts_with('|')).map(|line| {
        let cells: Vec<&str> = line.split(" | ").collect();
        format!("{} {}", cells[0], cells[at + 1].trim_end_matches(" |"))
    }));
    let page = html::side_by_side("x", &sides, documents);
    // The sentences of the header are already covered.
    let sections = page.split("<section").skip(1);
    let parts = sections.flat_map(|part| part.split("<figure"));
    let rows = parts.flat_map(|part| part.split("<tr"));
    // Text after the end of a row does not belong to it.
    let rows = rows.map(|row| row.split("</tr>").next().unwrap_or(row));
    // A record that is on the page twice has a suffix in its second id.
    let row = |row: &str| row.replace("-2\"", "\"");
    found.extend(rows.filter(|row| of_it(row)).map(row));
    found
}

/// Removes the lines of figures that a document lacks and the other one has.
fn known(told: Vec<String>) -> Vec<String> {
    told.into_iter()
        .filter(|line| !line.ends_with(" -"))
        .collect()
}

#[test]
fn figures_of_two_documents_never_mix() {
    let all = documents();
    for (i, one) in all.iter().enumerate() {
        for (k, other) in all.iter().enumerate() {
            let changed = otherwise(other);
            let pair = [one.clone(), other.clone()];
            let beside = [one.clone(), changed.clone()];
            let what = format!("{i} beside {k}");
            if i != k {
                assert_eq!(told(&pair, 0), told(&beside, 0), "{what}");
                assert_ne!(
                    told(&pair, 1),
                    told(&beside, 1),
                    "{what}: the second one has changed"
                );
            }
            // Two documents with the same id and name get distinct names.
            let swapped = [changed, one.clone()];
            let (sides, turned) = (SideBySide::of(&beside), SideBySide::of(&swapped));
            assert_ne!(sides.sides[0].name, sides.sides[1].name, "{what}");
            for (number, side) in sides.sides.iter().enumerate() {
                let alone = SideBySide::of(&beside[number..=number]);
                assert_eq!(side.figures, alone.sides[0].figures, "{what}");
                assert_eq!(side.doubts, alone.sides[0].doubts, "{what}");
                assert_eq!(side.figures, turned.sides[1 - number].figures, "{what}");
            }
            if i != k {
                assert_eq!(
                    known(told(&beside, 0)),
                    known(told(&swapped, 1)),
                    "{what}, turned"
                );
            }
        }
    }
}

#[test]
fn a_missing_figure_is_nobody_elses() {
    let all = documents();
    for (i, one) in all.iter().enumerate() {
        for (k, other) in all.iter().enumerate() {
            let sides = SideBySide::of(&[one.clone(), other.clone()]);
            for figure in sides.figures() {
                let name = figure.name();
                let values = [0, 1].map(|side| sides.sides[side].figures.get(&name));
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
    let (one, other) = (set(sizes()), otherwise(&set(sizes())));
    let sides = SideBySide::of(&[one.clone(), other.clone()]);
    let page = html::side_by_side("x", &sides, &[one.clone(), other.clone()]);
    for (side, document) in sides.sides.iter().zip([&one, &other]) {
        let Document::Set(own) = document else {
            unreachable!("both are sets");
        };
        let alone = html::of_set("x", own);
        let title = format!("<h4>Round-trip times by size: {}</h4>", side.name);
        let chart = page.split("<figure").find(|part| part.contains(&title));
        let chart = chart.unwrap_or_else(|| panic!("no chart {title}"));
        let known = alone
            .split("<figure")
            .find(|part| part.contains("<h4>Round-trip times by size</h4>"));
        let rows = |part: &str| part.split("<tbody>").nth(1).map(str::to_owned);
        assert_eq!(rows(chart), rows(known.expect("a chart of its own page")));
    }
}

/// "Than blocking" is used only for runs of one document.
#[test]
fn a_run_is_not_measured_by_that_of_another_document() {
    let (block, spin) = (samples::latency_blocking(), samples::latency_spinning());
    assert_eq!(spin.plan.wait, Some(Ends::both(Wait::Spin)));
    let apart = [run(block.clone()), run(spin.clone())];
    let page = html::side_by_side("x", &SideBySide::of(&apart), &apart);
    assert!(!page.contains("faster than blocking"));
    assert!(html::report("x", &[block, spin], &[]).contains("faster than blocking"));
}

#[test]
fn the_same_record_twice_has_two_places_in_the_page() {
    let twice = [
        run(samples::tcp_send()),
        otherwise(&run(samples::tcp_send())),
    ];
    let page = html::side_by_side("x", &SideBySide::of(&twice), &twice);
    let id = twice[0].id();
    for place in [format!("run-{id}"), format!("run-{id}-2")] {
        assert_eq!(
            page.matches(&format!("id=\"{place}\"")).count(),
            1,
            "{place}"
        );
        assert_eq!(
            page.matches(&format!("href=\"#{place}\"")).count(),
            1,
            "{place}"
        );
    }
    let text = text::side_by_side(&SideBySide::of(&twice), &Style::PLAIN);
    assert!(text.contains("(1)") && text.contains("(2)"), "{text}");
}
