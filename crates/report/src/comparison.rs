//! Comparison of documents: the figures of each, with the confidence intervals of repeats.

use std::collections::{BTreeMap, BTreeSet};

use linerate_record::expect::{FIGURES, FigureUnit};
use linerate_record::experiment::ExperimentResult;
use linerate_record::record::Record;
use linerate_stats::statistics::{Estimate, estimate};
use serde::Serialize;

use crate::differences::{Difference, differences};
use crate::document::Document;
use crate::experiment::describe_setting;
use crate::phrases;

/// Schema id of a [`DocumentComparison`].
pub const COMPARISON_SCHEMA: &str = "linerate/side-by-side/1";

/// Comparison of documents.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DocumentComparison {
    /// [`COMPARISON_SCHEMA`].
    pub schema: &'static str,
    /// Documents in the order of the command line.
    pub documents: Vec<ComparedDocument>,
    /// Options and host facts that differ. A document with several runs is represented by its
    /// first; experiments by the first run of a point that all of them measured.
    pub differences: Vec<Difference>,
    /// Sentences of the comparison: the main figure of each, and for two documents whether they
    /// differ.
    pub verdict: Vec<String>,
    /// Figures that at least one document has, in display order.
    #[serde(skip)]
    pub figures: Vec<ComparedFigure>,
}

/// Figure that at least one of the documents has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComparedFigure {
    /// Point of an experiment, followed by a space; empty for other documents.
    pub point: String,
    /// Name of the figure at that point.
    pub figure: String,
    /// Unit for formatting.
    pub unit: FigureUnit,
}

impl ComparedFigure {
    /// Key of the figure in [`ComparedDocument::figures`].
    #[must_use]
    pub fn key(&self) -> String {
        format!("{}{}", self.point, self.figure)
    }
}

/// Document of the comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedDocument {
    pub id: String,
    /// Display name: the label, or a short description.
    pub name: String,
    /// Number of runs in the document.
    pub runs: usize,
    /// Figures by the names of `--expect`; for an experiment those of its points, by `KNOB=VALUE…
    /// FIGURE`. The interval is that of the repeats (`runs` has their number). A single run does not
    /// show the spread between runs: low and high equal the median.
    pub figures: BTreeMap<String, Estimate>,
    /// Caveats; of several runs one per kind, with the number of runs that have it.
    pub caveats: Vec<String>,
}

impl DocumentComparison {
    /// Compares documents. Equal names are made distinct with the end of the id, then with a
    /// number.
    #[must_use]
    pub fn compare(documents: &[Document]) -> Self {
        let mut compared: Vec<ComparedDocument> = documents.iter().map(compared_document).collect();
        make_names_distinct(&mut compared, |side, _| {
            let id_suffix = side.id.rsplit('-').next().unwrap_or(&side.id);
            format!("{} {id_suffix}", side.name)
        });
        make_names_distinct(&mut compared, |side, number| {
            format!("{} ({number})", side.name)
        });
        let figures = collect_figures(documents, &compared);
        let names: Vec<String> = compared.iter().map(|side| side.name.clone()).collect();
        Self {
            schema: COMPARISON_SCHEMA,
            documents: compared,
            differences: differences(documents),
            verdict: phrases::compare_documents(documents, &names),
            figures,
        }
    }

    /// Figures that at least one document has, in display order.
    pub fn figures(&self) -> impl Iterator<Item = &ComparedFigure> + '_ {
        self.figures.iter()
    }

    /// Display names of the documents.
    pub(crate) fn names(&self) -> Vec<String> {
        self.documents
            .iter()
            .map(|side| side.name.clone())
            .collect()
    }

    /// Returns second over first if there are two documents and both have the figure.
    #[must_use]
    pub fn ratio(&self, figure: &str) -> Option<f64> {
        let [first, second] = &self.documents[..] else {
            return None;
        };
        let first = first.figures.get(figure)?.median;
        let second = second.figures.get(figure)?.median;
        (first != 0.0).then(|| second / first)
    }
}

/// Renames sides with equal names; `name` gets the side and its number among those with its name.
fn make_names_distinct(
    compared: &mut [ComparedDocument],
    name: impl Fn(&ComparedDocument, usize) -> String,
) {
    let names: Vec<String> = compared.iter().map(|side| side.name.clone()).collect();
    let count_equal =
        |own_name: &str, names: &[String]| names.iter().filter(|name| *name == own_name).count();
    for (position, side) in compared.iter_mut().enumerate() {
        let own_name = &names[position];
        if count_equal(own_name, &names) > 1 {
            side.name = name(side, count_equal(own_name, &names[..=position]));
        }
    }
}

/// Collects the figures of all sides: those of runs in the order of [`FIGURES`], then those
/// of points.
fn collect_figures(documents: &[Document], compared: &[ComparedDocument]) -> Vec<ComparedFigure> {
    let mut figures: Vec<ComparedFigure> = FIGURES
        .iter()
        .map(|figure| ComparedFigure {
            point: String::new(),
            figure: figure.name.to_owned(),
            unit: figure.unit,
        })
        .collect();
    for experiment in documents.iter().filter_map(Document::experiment) {
        for point in &experiment.points {
            for figure in &experiment.figures {
                let figure = ComparedFigure {
                    point: format!("{} ", describe_setting(experiment, &point.setting)),
                    figure: figure.name.clone(),
                    unit: figure.unit,
                };
                if !figures.contains(&figure) {
                    figures.push(figure);
                }
            }
        }
    }
    figures.extend(figures_of_named_runs(documents, compared));
    figures.retain(|figure| {
        let name = figure.key();
        compared.iter().any(|side| side.figures.contains_key(&name))
    });
    figures
}

/// Returns the main figures of the runs of sets that have no figures of their own. A loss that never
/// occurred is left out.
fn figures_of_named_runs(
    documents: &[Document],
    compared: &[ComparedDocument],
) -> Vec<ComparedFigure> {
    let sets = documents.iter().filter(|document| match document {
        Document::Run(_) => false,
        Document::Set(set) => set.result.experiment.is_none() && set.result.figures.is_empty(),
    });
    let mut names: Vec<String> = Vec::new();
    let mut seen = BTreeSet::new();
    for name in sets.flat_map(Document::runs).map(phrases::run_name) {
        if seen.insert(name.clone()) {
            names.push(name);
        }
    }
    let figures = names.iter().flat_map(|name| {
        let main = FIGURES
            .iter()
            .filter(|of| NAMED_RUN_FIGURES.contains(&of.name));
        main.map(move |of| ComparedFigure {
            point: format!("{name} "),
            figure: of.name.to_owned(),
            unit: of.unit,
        })
    });
    let occurs = |figure: &ComparedFigure| {
        let key = figure.key();
        let mut values = compared.iter().filter_map(|side| side.figures.get(&key));
        figure.figure != "loss" || values.any(|value| value.median != 0.0)
    };
    figures.filter(occurs).collect()
}

fn compared_document(document: &Document) -> ComparedDocument {
    let runs = document.runs();
    let caveats: Vec<String> = match document {
        Document::Run(run) => run
            .validity
            .iter()
            .map(|caveat| caveat.reason.clone())
            .collect(),
        Document::Set(_) => (phrases::count_caveats(runs).iter())
            .map(|kind| kind.describe())
            .collect(),
    };
    let first = runs.first();
    let name = first.map_or_else(|| document.id().to_owned(), phrases::run_name);
    let (name, figures) = match document {
        Document::Run(run) => (name, figures_of_run(run)),
        Document::Set(set) => match &set.result.experiment {
            Some(experiment) => {
                let label = experiment.label.as_ref().unwrap_or(&experiment.name);
                (label.clone(), figures_of_points(experiment))
            }
            None if set.result.figures.is_empty() => {
                let id_suffix = set.id.rsplit('-').next().unwrap_or(&set.id);
                (format!("{} {id_suffix}", set.kind), figures_by_name(runs))
            }
            None => (name, set.result.figures.clone()),
        },
    };
    ComparedDocument {
        id: document.id().to_owned(),
        name,
        runs: runs.len(),
        figures,
        caveats,
    }
}

/// Figures by which the named runs of sets are compared.
const NAMED_RUN_FIGURES: [&str; 5] = ["goodput", "pps", "loss", "p50", "p99"];

/// Returns whether a figure is compared for a named run: the packet rate only without a goodput,
/// as in runs of frames.
fn is_main_figure(run: &Record, figure: &str) -> bool {
    let has_goodput = run.summary.goodput_bps.is_some();
    NAMED_RUN_FIGURES.contains(&figure) && !(figure == "pps" && has_goodput)
}

/// Returns the main figures of runs, by `NAME FIGURE`; of runs with the same name the median.
fn figures_by_name(runs: &[Record]) -> BTreeMap<String, Estimate> {
    let mut values: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for run in runs {
        let name = phrases::run_name(run);
        for (figure, value) in figures_of_run(run) {
            if is_main_figure(run, &figure) {
                values
                    .entry(format!("{name} {figure}"))
                    .or_default()
                    .push(value.median);
            }
        }
    }
    let estimates = values.into_iter();
    estimates
        .filter_map(|(name, values)| Some((name, estimate(&values)?)))
        .collect()
}

/// Returns the figures of all points.
fn figures_of_points(experiment: &ExperimentResult) -> BTreeMap<String, Estimate> {
    let of_point = experiment.points.iter().flat_map(|point| {
        let at = describe_setting(experiment, &point.setting);
        let figures = point.figures.iter();
        figures.map(move |(name, value)| (format!("{at} {name}"), *value))
    });
    of_point.collect()
}

fn figures_of_run(run: &Record) -> BTreeMap<String, Estimate> {
    let read = FIGURES.iter().filter_map(|figure| {
        let value = (figure.read)(&run.summary).filter(|value| value.is_finite())?;
        let figure_value = Estimate {
            median: value,
            low: value,
            high: value,
            runs: 1,
        };
        Some((figure.name.to_owned(), figure_value))
    });
    read.collect()
}

#[cfg(test)]
mod tests {
    use linerate_record::experiment::{ExperimentPoint, FigureSpec, KnobAxis, KnobValues};
    use linerate_record::ids::CaveatId;
    use linerate_record::record::Caveat;
    use linerate_record::run_set::RunSet;
    use linerate_record::run_set::SetResult;

    use super::*;

    fn experiment(id: &str, hops: &[(&str, f64)]) -> Document {
        let text = include_str!("../tests/fixtures/run-1.json");
        let mut run: Record = serde_json::from_str(text).unwrap();
        run.validity = vec![Caveat::new(CaveatId::CrowdedCores, "10 % of a CPU")];
        let setting = |value: &str| -> KnobValues {
            [("hops".to_owned(), value.to_owned())]
                .into_iter()
                .collect()
        };
        let mut runs = Vec::new();
        let mut points = Vec::new();
        for (value, median) in hops {
            run.id = format!("{id}-{value}");
            run.label = Some(format!("hops={value}"));
            runs.push(run.clone());
            let round_trip = Estimate {
                median: *median,
                low: *median,
                high: *median,
                runs: 1,
            };
            points.push(ExperimentPoint {
                setting: setting(value),
                figures: [("trip".to_owned(), round_trip)].into_iter().collect(),
                runs: vec![run.id.clone()],
                ..ExperimentPoint::default()
            });
        }
        let result = ExperimentResult {
            name: "udp-hops".to_owned(),
            knobs: vec![KnobAxis {
                name: "hops".to_owned(),
                values: hops.iter().map(|(value, _)| (*value).to_owned()).collect(),
            }],
            figures: vec![FigureSpec {
                name: "trip".to_owned(),
                unit: FigureUnit::Nanos,
                description: String::new(),
                exact: false,
            }],
            points,
            ..ExperimentResult::default()
        };
        Document::Set(Box::new(RunSet {
            schema: linerate_record::run_set::SET_SCHEMA.to_owned(),
            id: id.to_owned(),
            kind: "experiment".to_owned(),
            started: run.started,
            interrupted: false,
            runs,
            result: SetResult {
                experiment: Some(Box::new(result)),
                ..SetResult::default()
            },
        }))
    }

    #[test]
    fn measurements_of_sets_are_compared_by_name() {
        let text = include_str!("../tests/fixtures/run-1.json");
        let run = |label: &str, goodput: f64| {
            let mut run: Record = serde_json::from_str(text).unwrap();
            run.label = Some(label.to_owned());
            run.summary.goodput_bps = Some(goodput);
            run.summary.loss_fraction = Some(0.0);
            run
        };
        let demo = |id: &str, goodput: f64| {
            Document::Set(Box::new(RunSet {
                schema: String::new(),
                id: format!("20261101T000000Z-{id}"),
                kind: "demo".to_owned(),
                started: run("", 1.0).started,
                interrupted: false,
                runs: vec![run("TCP", goodput), run("UDP", 2e9)],
                result: SetResult::default(),
            }))
        };
        let sides = DocumentComparison::compare(&[demo("aa", 1e9), demo("bb", 3e9)]);
        assert_eq!(sides.names(), ["demo aa", "demo bb"]);
        let keys: Vec<String> = sides.figures().map(ComparedFigure::key).collect();
        assert_eq!(keys, ["TCP goodput", "UDP goodput"]);
        assert_eq!(sides.ratio("TCP goodput"), Some(3.0));
    }

    #[test]
    fn experiments_are_compared_point_by_point() {
        let documents = [
            experiment("20261122T000000Z-aaaaaa", &[("1", 10_000.0)]),
            experiment(
                "20261122T000001Z-bbbbbb",
                &[("1", 15_000.0), ("3", 20_000.0)],
            ),
        ];
        let sides = DocumentComparison::compare(&documents);
        let names: Vec<String> = sides.figures().map(ComparedFigure::key).collect();
        assert_eq!(names, ["hops=1 trip", "hops=3 trip"]);
        assert_eq!(sides.ratio("hops=1 trip"), Some(1.5));
        assert_eq!(sides.ratio("hops=3 trip"), None);
        let differs: Vec<_> = (sides.differences.iter())
            .map(|difference| {
                (
                    difference.source,
                    &*difference.name,
                    difference.values.clone(),
                )
            })
            .collect();
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(
            differs,
            [("knob", "hops", vec![some("1"), some("1, 3")])],
            "and the records of the common point are alike"
        );
        assert_eq!(
            sides.documents[1].caveats,
            ["in 2 of 2 runs, for example hops=1: 10 % of a CPU"]
        );
        let rows = crate::csv::render_comparison(&sides);
        assert!(
            rows.contains(
                "\nhops=3 trip_ns,20261122T000001Z-bbbbbb,udp-hops bbbbbb,20000,20000,20000,1\n"
            ),
            "{rows}"
        );
        let page = crate::html::render_comparison("x", &sides, &documents);
        assert!(!page.contains("section class=\"run\""));
    }

    #[test]
    fn caveats_of_an_experiment_are_in_every_format() {
        let document = experiment("20261122T000001Z-bbbbbb", &[("1", 1.5e4), ("3", 2e4)]);
        let Document::Set(set) = &document else {
            unreachable!("an experiment is a set");
        };
        let caveat = "in 2 of 2 runs, for example hops=1: 10 % of a CPU";
        let page = crate::html::render_set("x", set);
        assert!(page.contains(&caveat.replace("in 2", "In 2")), "{page}");
        assert!(page.contains("Diagram of the point hops=1; 1 other point has the same diagram"));
        let style = crate::TextStyle {
            color: false,
            width: 200,
            unicode: true,
            brief: false,
        };
        let text = crate::text::render_set(set, &style);
        assert!(
            text.contains(&format!("note: {caveat} [crowded-cores]")),
            "{text}"
        );
        let result = set.result.experiment.as_deref().unwrap();
        let markdown = crate::markdown::render_experiment(result, set);
        assert!(markdown.contains("- in 2 of 2 runs"), "{markdown}");
    }

    #[test]
    fn conditions_of_an_experiment_are_in_every_format() {
        let mut document = experiment("20261122T000001Z-bbbbbb", &[("1", 1.5e4)]);
        let Document::Set(set) = &mut document else {
            unreachable!("an experiment is a set");
        };
        let result = set.result.experiment.as_deref_mut().unwrap();
        (result.title, result.location) = ("Trips".to_owned(), "192.0.2.7".to_owned());
        (result.quick, result.rootless) = (true, true);
        result.label = Some("quick".to_owned());
        result.without_root = "half of it".to_owned();
        result.missing_figures = vec!["p50 (/none)".to_owned()];
        let style = crate::TextStyle {
            color: false,
            width: 200,
            unicode: true,
            brief: false,
        };
        let text = crate::text::render_set(set, &style);
        let markdown =
            crate::markdown::render_experiment(set.result.experiment.as_ref().unwrap(), set);
        for shown in [&text, &markdown] {
            for part in [
                "Trips (quick, to 192.0.2.7, table quick)",
                "igure missing from all records: p50 (/none)",
                "ithout root: half of it",
            ] {
                assert!(shown.contains(part), "{part}: {shown}");
            }
        }
        let page = crate::html::render_set("x", set);
        let conditions = ", quick: fewer points, each shorter, to 192.0.2.7, table quick</p>";
        assert!(
            page.contains("1 run, started") && page.contains(conditions),
            "{page}"
        );
    }

    #[test]
    fn points_of_an_experiment_differ_in_their_knobs() {
        let set = experiment("20261122T000000Z-aaaaaa", &[("0", 1.0), ("4", 2.0)]);
        let documents: Vec<Document> = (set.runs().iter())
            .map(|run| Document::Run(Box::new(run.clone())))
            .collect();
        let differences = DocumentComparison::compare(&documents).differences;
        assert_eq!(
            (differences[0].source, &*differences[0].name),
            ("knob", "hops")
        );
        assert_eq!(differences.len(), 1);
    }
}
