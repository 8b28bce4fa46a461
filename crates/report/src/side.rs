//! Runs side by side: each figure of each with the interval that its own samples give it.

use std::collections::BTreeMap;

use linerate_metric::expect::{FIGURES, Figure};
use linerate_metric::histogram::Histogram;
use linerate_metric::plan::Kind;
use linerate_metric::record::Record;
use linerate_metric::statistics::{Estimate, estimate};
use serde::Serialize;

use crate::differences::{Difference, differences};
use crate::document::Document;
use crate::words;

/// Schema id of a [`SideBySide`].
pub const SIDE_SCHEMA: &str = "linerate/side-by-side/1";

/// Standard errors on either side of an interval of 95 % of a normal distribution.
const REACH: f64 = 1.96;

/// Documents side by side.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SideBySide {
    /// [`SIDE_SCHEMA`].
    pub schema: &'static str,
    /// The documents, in the order they were named.
    pub sides: Vec<Side>,
    /// Options and facts of the hosts that are not the same in all; of a document with several runs
    /// those of the first.
    pub differences: Vec<Difference>,
}

/// One document of several.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Side {
    /// Its id.
    pub id: String,
    /// What it is called: its label, or what it does.
    pub name: String,
    /// How many runs it holds.
    pub runs: usize,
    /// Its figures by the names `--expect` knows. The interval is that of repeats where there are some
    /// (`runs` of it says how many), else that of the samples within the run; low and high equal the
    /// median where nothing tells the spread.
    pub figures: BTreeMap<&'static str, Estimate>,
    /// What speaks against its figures.
    pub doubts: Vec<String>,
}

impl SideBySide {
    /// Puts documents side by side. Names that are alike get the ends of their ids.
    #[must_use]
    pub fn of(documents: &[Document]) -> Self {
        let mut sides: Vec<Side> = documents.iter().map(side).collect();
        let names: Vec<String> = sides.iter().map(|side| side.name.clone()).collect();
        for side in &mut sides {
            if names.iter().filter(|name| **name == side.name).count() > 1 {
                let end = side.id.rsplit('-').next().unwrap_or(&side.id);
                side.name = format!("{} {end}", side.name);
            }
        }
        let firsts: Option<Vec<&Record>> = documents.iter().map(|d| d.runs().first()).collect();
        Self {
            schema: SIDE_SCHEMA,
            sides,
            differences: firsts.map_or_else(Vec::new, |runs| differences(&runs)),
        }
    }

    /// The figures that any of them has, in the order of [`FIGURES`].
    pub fn figures(&self) -> impl Iterator<Item = &'static Figure> + '_ {
        let known = |figure: &&Figure| {
            let mut sides = self.sides.iter();
            sides.any(|side| side.figures.contains_key(figure.name))
        };
        FIGURES.iter().filter(known)
    }

    /// What each document is called.
    pub(crate) fn names(&self) -> Vec<String> {
        self.sides.iter().map(|side| side.name.clone()).collect()
    }

    /// The second over the first, where there are two and both have the figure.
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

fn side(document: &Document) -> Side {
    let runs = document.runs();
    let mut doubts: Vec<String> = Vec::new();
    for doubt in runs.iter().flat_map(|run| &run.validity) {
        if !doubts.contains(&doubt.why) {
            doubts.push(doubt.why.clone());
        }
    }
    let first = runs.first();
    let name = first.map_or_else(|| document.id().to_owned(), words::name);
    let (name, figures) = match document {
        Document::Run(run) => (name, of_run(run)),
        Document::Set(set) if set.result.figures.is_empty() => {
            (format!("{} ({})", set.kind, set.id), BTreeMap::new())
        }
        Document::Set(set) => {
            let medians = FIGURES
                .iter()
                .filter_map(|figure| Some((figure.name, *set.result.figures.get(figure.name)?)));
            (name, medians.collect())
        }
    };
    Side {
        id: document.id().to_owned(),
        name,
        runs: runs.len(),
        figures,
        doubts,
    }
}

fn of_run(run: &Record) -> BTreeMap<&'static str, Estimate> {
    let read = FIGURES.iter().filter_map(|figure| {
        let value = (figure.read)(&run.summary).filter(|value| value.is_finite())?;
        let (low, high) = spread(run, figure.name).unwrap_or((value, value));
        let figure_value = Estimate {
            median: value,
            low: low.min(value),
            high: high.max(value),
            runs: 1,
        };
        Some((figure.name, figure_value))
    });
    read.collect()
}

/// What the samples of one run say of a figure's uncertainty.
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
    // Order statistics: the number of samples below a quantile is binomial, whatever their shape.
    let reach = REACH * (share * (1.0 - share) / count).sqrt();
    let low = histogram.quantile((share - reach).max(0.0))?;
    let high = histogram.quantile((share + reach).min(1.0))?;
    Some((low as f64, high as f64))
}

/// The interval of the median of the whole intervals, each way's sum.
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
    // Of fewer, the extremes would be given, and the last one is often short.
    let figure = (rates.len() >= 6).then(|| estimate(&rates)).flatten()?;
    Some((figure.low, figure.high))
}
