//! Sentences that compare documents.

use linerate_metric::comparison::{Question, SIGNIFICANCE, Side, of_samples};
use linerate_metric::expect::Figure;
use linerate_metric::figure;
use linerate_metric::plan::Kind;
use linerate_metric::record::Record;
use linerate_metric::statistics::median;

use super::{headline, set_headline};
use crate::document::Document;

/// Smallest relative difference that counts as an effect: the default of `compare`.
const EFFECT: f64 = 0.05;

/// Compares documents of one kind: the figure of each, and a verdict if there are two. Documents
/// without a common figure get a headline each. `names` are the display names.
pub(crate) fn against(documents: &[Document], names: &[String]) -> Vec<String> {
    if documents.len() < 2 {
        return Vec::new();
    }
    let kinds: Option<Vec<Kind>> = documents.iter().map(kind).collect();
    let alike = kinds.and_then(|kinds| {
        let first = *kinds.first()?;
        kinds.iter().all(|kind| *kind == first).then_some(first)
    });
    let Some(figure) = alike.map(figure::of_kind) else {
        return each(documents, names);
    };
    let values: Vec<Vec<f64>> = (documents.iter())
        .map(|document| values(document, figure))
        .collect();
    if values.iter().any(Vec::is_empty) {
        return each(documents, names);
    }
    let told = names
        .iter()
        .zip(&values)
        .enumerate()
        .map(|(number, (name, own))| {
            let letter = letter(number);
            let value = median(own).map_or_else(String::new, |value| figure.unit.format(value));
            let of = match own.len() {
                1 => String::new(),
                n => format!(", median of {n} runs"),
            };
            format!("{letter} {value} ({name}{of})")
        });
    let told = told.collect::<Vec<_>>().join(", ");
    let mut sentences = vec![format!("{} per document: {told}.", figure.name)];
    if let [a, b] = &values[..] {
        let question = Question {
            figure: figure.name.to_owned(),
            better: figure.better(),
            effect: EFFECT,
            significance: SIGNIFICANCE,
        };
        let side = |name: &String| Side {
            label: name.clone(),
            value: None,
            records: Vec::new(),
        };
        let found = of_samples(&question, [side(&names[0]), side(&names[1])], a, b);
        sentences.push(crate::text::verdict_words(&found));
    }
    sentences
}

/// Returns the letter of a document: `A` to `Z`, then `A2` to `Z2`.
fn letter(number: usize) -> String {
    let letter = char::from(b'A' + (number % 26) as u8);
    match number / 26 {
        0 => letter.to_string(),
        round => format!("{letter}{}", round + 1),
    }
}

/// Returns the kind of a document's runs; `None` for a set whose runs are not repeats of one
/// another.
fn kind(document: &Document) -> Option<Kind> {
    if let Document::Set(set) = document
        && set.result.figures.is_empty()
    {
        return None;
    }
    document.runs().first().map(|run| run.kind)
}

fn values(document: &Document, figure: &Figure) -> Vec<f64> {
    let known = |run: &Record| figure.of(run).filter(|value| value.is_finite());
    document.runs().iter().filter_map(known).collect()
}

/// Returns the headline of each document, prefixed with its name.
fn each(documents: &[Document], names: &[String]) -> Vec<String> {
    let of_one = |(document, name): (&Document, &String)| -> Vec<String> {
        let sentences = match document {
            Document::Set(set) => match &set.result.experiment {
                Some(experiment) => vec![crate::experiment::verdict(experiment)],
                None => set_headline(&set.result, &set.runs),
            },
            Document::Run(run) => headline(std::slice::from_ref(run)),
        };
        let named = sentences.into_iter().map(|said| format!("{name}: {said}"));
        named.collect()
    };
    documents.iter().zip(names).flat_map(of_one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_metric::run_set::{RunSet, SET_SCHEMA, SetResult};

    fn run(goodput: f64) -> Record {
        let text = include_str!("../../tests/fixtures/run-1.json");
        let mut run: Record = serde_json::from_str(text).unwrap();
        run.summary.goodput_bps = Some(goodput);
        run
    }

    fn single(goodput: f64) -> Document {
        Document::Run(Box::new(run(goodput)))
    }

    fn repeats(goodputs: &[f64]) -> Document {
        let runs: Vec<Record> = goodputs.iter().map(|&goodput| run(goodput)).collect();
        Document::Set(Box::new(RunSet {
            schema: SET_SCHEMA.to_owned(),
            id: "x".to_owned(),
            kind: "repeat".to_owned(),
            started: runs[0].started,
            interrupted: false,
            result: SetResult::of_repeats(&runs),
            runs,
        }))
    }

    fn told(documents: &[Document]) -> Vec<String> {
        let names = ["before", "after", "later"].map(str::to_owned);
        against(documents, &names[..documents.len()])
    }

    #[test]
    fn two_runs_are_held_against_each_other() {
        let told = told(&[single(1e9), single(2e9)]);
        assert_eq!(
            told[0],
            "goodput per document: A 1.00 Gb/s (before), B 2.00 Gb/s (after)."
        );
        assert!(told[1].contains("B's goodput is 2.0x as high"), "{told:?}");
        assert!(told[1].contains("with one run per side"), "{told:?}");
    }

    #[test]
    fn repeats_give_the_ratio_its_interval() {
        let few = |middle: f64| repeats(&[middle, middle * 1.01, middle * 0.99]);
        let text = told(&[few(1e9), few(2e9)]);
        assert!(
            text[0].contains("B 2.00 Gb/s (after, median of 3 runs)"),
            "{text:?}"
        );
        assert!(text[1].contains("only 3 runs per side"), "{text:?}");
        let many = |middle: f64| {
            let noise = (0..8).map(|n| middle * (1.0 + f64::from(n) / 1e3));
            repeats(&noise.collect::<Vec<_>>())
        };
        let text = told(&[many(1e9), many(2e9)]);
        assert!(
            text[1].starts_with("B is faster: its goodput is 2.0x as high (+"),
            "{text:?}"
        );
        assert!(text[1].contains("confidence"), "{text:?}");
    }

    #[test]
    fn of_several_each_is_told_and_of_different_ones_each_alone() {
        let three = told(&[single(1e9), single(2e9), single(3e9)]);
        assert_eq!(three.len(), 1, "{three:?}");
        assert!(three[0].contains("C 3.00 Gb/s (later)"), "{three:?}");
        let mut other = run(2e9);
        other.kind = Kind::Latency;
        other.summary.rtt_ns = None;
        let mixed = told(&[single(1e9), Document::Run(Box::new(other))]);
        assert!(mixed[0].starts_with("before: "), "{mixed:?}");
        assert!(!mixed.concat().contains("median of 2"), "{mixed:?}");
    }
}
