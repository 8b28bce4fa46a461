//! Sentences that compare documents.

use linerate_record::comparison::{ComparisonSide, ComparisonSpec, SIGNIFICANCE, compare_samples};
use linerate_record::expect::NamedFigure;
use linerate_record::figure;
use linerate_record::plan::RunKind;
use linerate_record::record::Record;
use linerate_stats::statistics::median;

use super::{run_headlines, set_headlines};
use crate::document::Document;

/// Smallest relative difference that counts as an effect: the default of `compare`.
const RELEVANT_EFFECT: f64 = 0.05;

/// Compares documents of one kind: the figure of each, and a verdict if there are two. Documents
/// without a common figure get a headline each. `names` are the display names.
pub(crate) fn compare_documents(documents: &[Document], names: &[String]) -> Vec<String> {
    if documents.len() < 2 {
        return Vec::new();
    }
    let kinds: Option<Vec<RunKind>> = documents.iter().map(common_kind).collect();
    let common_kind = kinds.and_then(|kinds| {
        let first = *kinds.first()?;
        kinds.iter().all(|kind| *kind == first).then_some(first)
    });
    let Some(figure) = common_kind.map(figure::default_for) else {
        return headline_of_each(documents, names);
    };
    let values: Vec<Vec<f64>> = (documents.iter())
        .map(|document| figure_values(document, figure))
        .collect();
    if values.iter().any(Vec::is_empty) {
        return headline_of_each(documents, names);
    }
    let listed =
        names
            .iter()
            .zip(&values)
            .enumerate()
            .map(|(number, (name, values_of_document))| {
                let letter = letter_of(number);
                let value = median(values_of_document)
                    .map_or_else(String::new, |value| figure.unit.format(value));
                let suffix = match values_of_document.len() {
                    1 => String::new(),
                    n => format!(", median of {n} runs"),
                };
                format!("{letter} {value} ({name}{suffix})")
            });
    let listed = listed.collect::<Vec<_>>().join(", ");
    let mut sentences = vec![format!("{} per document: {listed}.", figure.name)];
    if let [a, b] = &values[..] {
        let question = ComparisonSpec {
            figure: figure.name.to_owned(),
            better: figure.better_when(),
            effect: RELEVANT_EFFECT,
            significance: SIGNIFICANCE,
        };
        let side_of = |name: &String| ComparisonSide {
            label: name.clone(),
            ..ComparisonSide::default()
        };
        let comparison = compare_samples(&question, [side_of(&names[0]), side_of(&names[1])], a, b);
        sentences.push(crate::paired_comparison::describe_verdict(&comparison));
    }
    sentences
}

/// Returns the letter of a document: `A` to `Z`, then `A2` to `Z2`.
fn letter_of(number: usize) -> String {
    let letter = char::from(b'A' + (number % 26) as u8);
    match number / 26 {
        0 => letter.to_string(),
        round => format!("{letter}{}", round + 1),
    }
}

/// Returns the kind of a document's runs; `None` for a set whose runs are not repeats of one
/// another.
fn common_kind(document: &Document) -> Option<RunKind> {
    if let Document::Set(set) = document
        && set.result.figures.is_empty()
    {
        return None;
    }
    document.runs().first().map(|run| run.kind)
}

fn figure_values(document: &Document, figure: &NamedFigure) -> Vec<f64> {
    let finite_value = |run: &Record| figure.value_in(run).filter(|value| value.is_finite());
    document.runs().iter().filter_map(finite_value).collect()
}

/// Returns the headline of each document, prefixed with its name.
fn headline_of_each(documents: &[Document], names: &[String]) -> Vec<String> {
    let headline_of = |(document, name): (&Document, &String)| -> Vec<String> {
        let sentences = match document {
            Document::Set(set) => match &set.result.experiment {
                Some(experiment) => vec![crate::experiment::verdict(experiment)],
                None => set_headlines(&set.result, &set.runs),
            },
            Document::Run(run) => run_headlines(std::slice::from_ref(run)),
        };
        let named = sentences
            .into_iter()
            .map(|sentence| format!("{name}: {sentence}"));
        named.collect()
    };
    documents.iter().zip(names).flat_map(headline_of).collect()
}

#[cfg(test)]
mod tests {
    use linerate_record::run_set::{RunSet, SET_SCHEMA, SetResult};

    use super::*;

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
            result: SetResult::from_repeats(&runs),
            runs,
        }))
    }

    fn compared(documents: &[Document]) -> Vec<String> {
        let names = ["before", "after", "later"].map(str::to_owned);
        compare_documents(documents, &names[..documents.len()])
    }

    #[test]
    fn two_runs_are_compared() {
        let sentences = compared(&[single(1e9), single(2e9)]);
        assert_eq!(
            sentences[0],
            "goodput per document: A 1.00 Gb/s (before), B 2.00 Gb/s (after)."
        );
        assert!(
            sentences[1].contains("B's goodput is 2.0x as high"),
            "{sentences:?}"
        );
        assert!(
            sentences[1].contains("with one run per side"),
            "{sentences:?}"
        );
    }

    #[test]
    fn repeats_give_the_ratio_its_interval() {
        let few = |middle: f64| repeats(&[middle, middle * 1.01, middle * 0.99]);
        let text = compared(&[few(1e9), few(2e9)]);
        assert!(
            text[0].contains("B 2.00 Gb/s (after, median of 3 runs)"),
            "{text:?}"
        );
        assert!(text[1].contains("only 3 runs per side"), "{text:?}");
        let many = |middle: f64| {
            let noise = (0..8).map(|n| middle * (1.0 + f64::from(n) / 1e3));
            repeats(&noise.collect::<Vec<_>>())
        };
        let text = compared(&[many(1e9), many(2e9)]);
        assert!(
            text[1].starts_with("B is faster: its goodput is 2.0x as high (+"),
            "{text:?}"
        );
        assert!(text[1].contains("confidence"), "{text:?}");
    }

    #[test]
    fn three_documents_are_listed_and_different_kinds_get_their_own_headlines() {
        let three = compared(&[single(1e9), single(2e9), single(3e9)]);
        assert_eq!(three.len(), 1, "{three:?}");
        assert!(three[0].contains("C 3.00 Gb/s (later)"), "{three:?}");
        let mut latency_run = run(2e9);
        latency_run.kind = RunKind::Latency;
        latency_run.summary.rtt_ns = None;
        let mixed = compared(&[single(1e9), Document::Run(Box::new(latency_run))]);
        assert!(mixed[0].starts_with("before: "), "{mixed:?}");
        assert!(!mixed.concat().contains("median of 2"), "{mixed:?}");
    }
}
