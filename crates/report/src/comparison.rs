//! Comparison of documents: the figures of each, with confidence intervals from their own samples.

use std::collections::BTreeMap;

use linerate_metric::expect::{FIGURES, Unit};
use linerate_metric::experiment::ExperimentResult;
use linerate_metric::histogram::Histogram;
use linerate_metric::plan::Kind;
use linerate_metric::record::Record;
use linerate_metric::statistics::{Estimate, estimate};
use serde::Serialize;

use crate::differences::{Difference, differences};
use crate::document::Document;
use crate::experiment::setting_words;
use crate::phrases;

/// Schema id of a [`SideBySide`].
pub const SIDE_SCHEMA: &str = "linerate/side-by-side/1";

/// Standard errors on either side of a 95 % interval of a normal distribution.
const REACH: f64 = 1.96;

/// Comparison of documents.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SideBySide {
    /// [`SIDE_SCHEMA`].
    pub schema: &'static str,
    /// Documents in the order of the command line.
    pub sides: Vec<Side>,
    /// Options and host facts that differ. A document with several runs is represented by its
    /// first; experiments by the first run of a point that all of them measured.
    pub differences: Vec<Difference>,
    /// Sentences of the comparison: the main figure of each, and for two documents whether they
    /// differ.
    pub verdict: Vec<String>,
    /// Figures that at least one document has, in display order.
    #[serde(skip)]
    pub figures: Vec<Shown>,
}

/// Figure that at least one of the documents has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Point of an experiment, followed by a space; empty for other documents.
    pub at: String,
    /// Name of the figure at that point.
    pub figure: String,
    /// Unit for formatting.
    pub unit: Unit,
}

impl Shown {
    /// Key of the figure in [`Side::figures`].
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}{}", self.at, self.figure)
    }
}

/// Document of the comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Side {
    pub id: String,
    /// Display name: the label, or a short description.
    pub name: String,
    /// Number of runs in the document.
    pub runs: usize,
    /// Figures by the names of `--expect`; for an experiment those of its points, by `KNOB=VALUE…
    /// FIGURE`. The interval is that of the repeats (`runs` has their number), or of the samples
    /// within a single run. Low and high equal the median when the spread is unknown.
    pub figures: BTreeMap<String, Estimate>,
    /// Caveats; of several runs one per kind, with the number of runs that have it.
    pub doubts: Vec<String>,
}

impl SideBySide {
    /// Compares documents. Equal names are made distinct with the end of the id, then with a
    /// number.
    #[must_use]
    pub fn of(documents: &[Document]) -> Self {
        let mut sides: Vec<Side> = documents.iter().map(side).collect();
        tell_apart(&mut sides, |side, _| {
            let end = side.id.rsplit('-').next().unwrap_or(&side.id);
            format!("{} {end}", side.name)
        });
        tell_apart(&mut sides, |side, number| {
            format!("{} ({number})", side.name)
        });
        let figures = shown(documents, &sides);
        let names: Vec<String> = sides.iter().map(|side| side.name.clone()).collect();
        Self {
            schema: SIDE_SCHEMA,
            sides,
            differences: differences(documents),
            verdict: phrases::against(documents, &names),
            figures,
        }
    }

    /// Figures that at least one document has, in display order.
    pub fn figures(&self) -> impl Iterator<Item = &Shown> + '_ {
        self.figures.iter()
    }

    /// Display names of the documents.
    pub(crate) fn names(&self) -> Vec<String> {
        self.sides.iter().map(|side| side.name.clone()).collect()
    }

    /// Returns second over first if there are two documents and both have the figure.
    #[must_use]
    pub fn ratio(&self, figure: &str) -> Option<f64> {
        let [one, other] = &self.sides[..] else {
            return None;
        };
        let one = one.figures.get(figure)?.median;
        let other = other.figures.get(figure)?.median;
        (one != 0.0).then(|| other / one)
    }
}

/// Renames sides with equal names; `name` gets the side and its number among those with its name.
fn tell_apart(sides: &mut [Side], name: impl Fn(&Side, usize) -> String) {
    let names: Vec<String> = sides.iter().map(|side| side.name.clone()).collect();
    let alike = |own: &str, names: &[String]| names.iter().filter(|name| *name == own).count();
    for (position, side) in sides.iter_mut().enumerate() {
        let own = &names[position];
        if alike(own, &names) > 1 {
            side.name = name(side, alike(own, &names[..=position]));
        }
    }
}

/// Collects the figures of all sides: those of runs in the order of [`FIGURES`], then those of
/// points.
fn shown(documents: &[Document], sides: &[Side]) -> Vec<Shown> {
    let mut found: Vec<Shown> = FIGURES
        .iter()
        .map(|figure| Shown {
            at: String::new(),
            figure: figure.name.to_owned(),
            unit: figure.unit,
        })
        .collect();
    for experiment in documents.iter().filter_map(Document::experiment) {
        for point in &experiment.points {
            for figure in &experiment.figures {
                let figure = Shown {
                    at: format!("{} ", setting_words(experiment, &point.setting)),
                    figure: figure.name.clone(),
                    unit: figure.unit,
                };
                if !found.contains(&figure) {
                    found.push(figure);
                }
            }
        }
    }
    found.retain(|figure| {
        let name = figure.name();
        sides.iter().any(|side| side.figures.contains_key(&name))
    });
    found
}

fn side(document: &Document) -> Side {
    let runs = document.runs();
    let doubts: Vec<String> = match document {
        Document::Run(run) => run.validity.iter().map(|doubt| doubt.why.clone()).collect(),
        Document::Set(_) => (phrases::counted(runs).iter())
            .map(|kind| kind.words())
            .collect(),
    };
    let first = runs.first();
    let name = first.map_or_else(|| document.id().to_owned(), phrases::name);
    let (name, figures) = match document {
        Document::Run(run) => (name, of_run(run)),
        Document::Set(set) => match &set.result.experiment {
            Some(experiment) => {
                let label = experiment.label.as_ref().unwrap_or(&experiment.name);
                (label.clone(), of_points(experiment))
            }
            None if set.result.figures.is_empty() => {
                (format!("{} ({})", set.kind, set.id), BTreeMap::new())
            }
            None => (name, set.result.figures.clone()),
        },
    };
    Side {
        id: document.id().to_owned(),
        name,
        runs: runs.len(),
        figures,
        doubts,
    }
}

/// Returns the figures of all points.
fn of_points(experiment: &ExperimentResult) -> BTreeMap<String, Estimate> {
    let of_point = experiment.points.iter().flat_map(|point| {
        let at = setting_words(experiment, &point.setting);
        let figures = point.figures.iter();
        figures.map(move |(name, value)| (format!("{at} {name}"), *value))
    });
    of_point.collect()
}

fn of_run(run: &Record) -> BTreeMap<String, Estimate> {
    let read = FIGURES.iter().filter_map(|figure| {
        let value = (figure.read)(&run.summary).filter(|value| value.is_finite())?;
        let (low, high) = spread(run, figure.name).unwrap_or((value, value));
        let figure_value = Estimate {
            median: value,
            low: low.min(value),
            high: high.max(value),
            runs: 1,
        };
        Some((figure.name.to_owned(), figure_value))
    });
    read.collect()
}

/// Returns the 95 % interval of a figure, from the samples of one run.
fn spread(run: &Record, figure: &str) -> Option<(f64, f64)> {
    let share = match figure {
        "p50" => 0.5,
        "p90" => 0.9,
        "p99" => 0.99,
        "p99.9" => 0.999,
        "p99.99" => 0.9999,
        "goodput" if run.kind == Kind::Throughput => return of_intervals(run),
        _ => return None,
    };
    let histogram = Histogram::from(run.histograms.get("rtt_ns")?);
    let count = histogram.count() as f64;
    if count < 2.0 {
        return None;
    }
    // Order statistics: the number of samples below a quantile is binomial for any distribution.
    let reach = REACH * (share * (1.0 - share) / count).sqrt();
    let low = histogram.quantile((share - reach).max(0.0))?;
    let high = histogram.quantile((share + reach).min(1.0))?;
    Some((low as f64, high as f64))
}

/// Returns the interval of the median over complete intervals, summed over directions.
fn of_intervals(run: &Record) -> Option<(f64, f64)> {
    let mut rates: BTreeMap<u64, (f64, usize)> = BTreeMap::new();
    for interval in run.intervals.iter().filter(|interval| !interval.omitted) {
        let length = interval.end_ns.saturating_sub(interval.start_ns);
        if length == 0 {
            continue;
        }
        let rate = interval.bytes as f64 * 8e9 / length as f64;
        let entry = rates.entry(interval.number).or_default();
        *entry = (entry.0 + rate, entry.1 + 1);
    }
    let ways = run.directions.len().max(1);
    let whole = rates.values().filter(|(_, count)| *count == ways);
    let rates: Vec<f64> = whole.map(|(rate, _)| *rate).collect();
    // With fewer than six the interval would span the extremes, and the last interval is often
    // short.
    let figure = (rates.len() >= 6).then(|| estimate(&rates)).flatten()?;
    Some((figure.low, figure.high))
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_metric::experiment::{FigureOf, Knob, Point, Setting};
    use linerate_metric::record::Doubt;
    use linerate_metric::run_set::RunSet;
    use linerate_metric::run_set::SetResult;

    fn experiment(id: &str, hops: &[(&str, f64)]) -> Document {
        let text = include_str!("../tests/fixtures/run-1.json");
        let mut run: Record = serde_json::from_str(text).unwrap();
        run.validity = vec![Doubt::new("crowded-cores", "10 % of a core")];
        let setting = |value: &str| -> Setting {
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
            let trip = Estimate {
                median: *median,
                low: *median,
                high: *median,
                runs: 1,
            };
            points.push(Point {
                setting: setting(value),
                figures: [("trip".to_owned(), trip)].into_iter().collect(),
                runs: vec![run.id.clone()],
                ..Point::default()
            });
        }
        let result = ExperimentResult {
            name: "udp-hops".to_owned(),
            knobs: vec![Knob {
                name: "hops".to_owned(),
                values: hops.iter().map(|(value, _)| (*value).to_owned()).collect(),
            }],
            figures: vec![FigureOf {
                name: "trip".to_owned(),
                unit: Unit::Nanos,
                says: String::new(),
                exact: false,
            }],
            points,
            ..ExperimentResult::default()
        };
        Document::Set(Box::new(RunSet {
            schema: linerate_metric::run_set::SET_SCHEMA.to_owned(),
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
    fn experiments_are_compared_point_by_point() {
        let documents = [
            experiment("20261122T000000Z-aaaaaa", &[("1", 10_000.0)]),
            experiment(
                "20261122T000001Z-bbbbbb",
                &[("1", 15_000.0), ("3", 20_000.0)],
            ),
        ];
        let sides = SideBySide::of(&documents);
        let names: Vec<String> = sides.figures().map(Shown::name).collect();
        assert_eq!(names, ["hops=1 trip", "hops=3 trip"]);
        assert_eq!(sides.ratio("hops=1 trip"), Some(1.5));
        assert_eq!(sides.ratio("hops=3 trip"), None);
        let differs: Vec<_> = (sides.differences.iter())
            .map(|found| (found.of, &*found.name, found.values.clone()))
            .collect();
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(
            differs,
            [("knob", "hops", vec![some("1"), some("1, 3")])],
            "and the records of the common point are alike"
        );
        assert_eq!(
            sides.sides[1].doubts,
            ["in 2 of 2 runs, for example hops=1: 10 % of a core"]
        );
        let rows = crate::csv::side_by_side(&sides);
        assert!(
            rows.contains(
                "\nhops=3 trip_ns,20261122T000001Z-bbbbbb,udp-hops bbbbbb,20000,20000,20000,1\n"
            ),
            "{rows}"
        );
        let page = crate::html::side_by_side("x", &sides, &documents);
        assert!(!page.contains("section class=\"run\""));
    }

    #[test]
    fn what_speaks_against_an_experiment_stands_on_every_surface() {
        let document = experiment("20261122T000001Z-bbbbbb", &[("1", 1.5e4), ("3", 2e4)]);
        let Document::Set(set) = &document else {
            unreachable!("an experiment is a set");
        };
        let doubt = "in 2 of 2 runs, for example hops=1: 10 % of a core";
        let page = crate::html::of_set("x", set);
        assert!(page.contains(&doubt.replace("in 2", "In 2")), "{page}");
        assert!(page.contains("Diagram of the point hops=1; 1 other point has the same diagram"));
        let style = crate::Style {
            color: false,
            width: 200,
            unicode: true,
        };
        let text = crate::text::set(set, &style);
        assert!(
            text.contains(&format!("note: {doubt} [crowded-cores]")),
            "{text}"
        );
        let result = set.result.experiment.as_deref().unwrap();
        let markdown = crate::markdown::experiment(result, set);
        assert!(markdown.contains("- in 2 of 2 runs"), "{markdown}");
    }

    #[test]
    fn how_an_experiment_was_measured_stands_on_every_surface() {
        let mut document = experiment("20261122T000001Z-bbbbbb", &[("1", 1.5e4)]);
        let Document::Set(set) = &mut document else {
            unreachable!("an experiment is a set");
        };
        let result = set.result.experiment.as_deref_mut().unwrap();
        (result.title, result.place) = ("Trips".to_owned(), "192.0.2.7".to_owned());
        (result.quick, result.rootless) = (true, true);
        result.label = Some("quick".to_owned());
        result.without_root = "half of it".to_owned();
        result.unread = vec!["p50 (/none)".to_owned()];
        let style = crate::Style {
            color: false,
            width: 200,
            unicode: true,
        };
        let text = crate::text::set(set, &style);
        let markdown = crate::markdown::experiment(set.result.experiment.as_ref().unwrap(), set);
        for shown in [&text, &markdown] {
            for part in [
                "Trips (quick, to 192.0.2.7, table quick)",
                "igure missing from all records: p50 (/none)",
                "ithout root: half of it",
            ] {
                assert!(shown.contains(part), "{part}: {shown}");
            }
        }
        let page = crate::html::of_set("x", set);
        let how = ", quick: fewer points, each shorter, to 192.0.2.7, table quick</p>";
        assert!(
            page.contains("1 run, started") && page.contains(how),
            "{page}"
        );
    }

    #[test]
    fn points_of_an_experiment_are_told_apart_by_their_knobs() {
        let set = experiment("20261122T000000Z-aaaaaa", &[("0", 1.0), ("4", 2.0)]);
        let documents: Vec<Document> = (set.runs().iter())
            .map(|run| Document::Run(Box::new(run.clone())))
            .collect();
        let found = SideBySide::of(&documents).differences;
        assert_eq!((found[0].of, &*found[0].name), ("knob", "hops"));
        assert_eq!(found.len(), 1);
    }
}
