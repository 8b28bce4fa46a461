//! What the history knows of one document without opening it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use linerate_metric::expect::FIGURES;
use linerate_metric::experiment::{ExperimentResult, Shape, ShapeState};
use linerate_metric::facts::Role;
use linerate_metric::plan::Direction;
use linerate_metric::record::Record;
use linerate_metric::set::SetResult;
use serde::{Deserialize, Serialize};

use crate::document::Document;
use crate::experiment::setting_words;

/// A figure that several runs came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// By the name `--expect` knows.
    pub figure: String,
    /// In base units.
    pub value: f64,
}

/// How an experiment came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shapes {
    /// Expectations that hold.
    pub hold: usize,
    /// Expectations that were tested.
    pub tested: usize,
    /// Of these, how many rest on runs that something speaks against.
    pub in_doubt: usize,
}

impl Shapes {
    fn of(experiment: &ExperimentResult) -> Self {
        let count = |counts: fn(&&Shape) -> bool| experiment.shapes.iter().filter(counts).count();
        Self {
            hold: count(|shape| shape.state == ShapeState::Holds),
            tested: count(|shape| shape.state != ShapeState::Untested),
            in_doubt: count(|shape| !shape.doubts.is_empty()),
        }
    }
}

/// A stored document in short.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Its id.
    pub id: String,
    /// `throughput`, `latency`, `forward`, `generate`; of a set what made it, behind `set:`.
    pub kind: String,
    /// When its first payload was sent.
    pub started: Timestamp,
    /// Whether it was ended before its time.
    pub interrupted: bool,
    /// Its label; of an experiment that of its table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The name of the experiment that it is: `udp-hops`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experiment: Option<String>,
    /// The end that kept it beside the one that asked for the run: a server's copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_by: Option<Role>,
    /// What was asked: the far end as the plan names it, or the ports.
    pub target: String,
    /// The dialect of another program at one end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dialect: Option<String>,
    /// In the record of a server, the address of the client that it served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// Directions in which payload flowed, as the client sees them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub directions: Vec<Direction>,
    /// Names of the hosts that took part, the client first.
    pub hosts: Vec<String>,
    /// `TCP` or `UDP`; absent where frames are moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// What the plan comes to: runs with equal plans can be compared. 64 bits of FNV-1a over the plan
    /// without ports, in hexadecimal digits.
    pub plan: String,
    /// How many runs it holds.
    pub runs: u64,
    /// Ids of the runs that a set holds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<String>,
    /// Of an experiment, the first run of each point that was measured, by `KNOB=VALUE…`: a table that grows
    /// is stored anew with all of its points.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub points: BTreeMap<String, String>,
    /// How many expectations of an experiment hold, of how many that were tested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shapes: Option<Shapes>,
    /// How many things speak against its figures.
    pub doubts: u64,
    /// Its figures by the names `--expect` knows; of repeats their medians.
    pub figures: BTreeMap<String, f64>,
    /// What a search or a comparison came to. No figure of a run: it has no place in a trend of those.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// Tags, in alphabetical order.
    pub tags: BTreeSet<String>,
    /// Notes, the oldest first.
    pub notes: Vec<Note>,
}

/// A remark that somebody made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// When.
    pub at: Timestamp,
    /// What.
    pub text: String,
}

impl Entry {
    /// What is to be known of a document; tags and notes are not in it.
    #[must_use]
    pub fn of(document: &Document) -> Self {
        let first = document.runs().first();
        let mut entry = Self {
            id: document.id().to_owned(),
            started: document.started(),
            runs: document.runs().len() as u64,
            target: first.map_or_else(String::new, target),
            dialect: first.and_then(|run| run.plan.dialect.clone()),
            client: first.and_then(|run| Some(run.served.as_ref()?.address().to_owned())),
            directions: first.map_or_else(Vec::new, |run| run.plan.directions.clone()),
            hosts: first.map_or_else(Vec::new, hosts),
            protocol: first.and_then(protocol),
            plan: first.map_or_else(String::new, plan),
            doubts: (document.runs().iter())
                .map(|run| run.validity.len() as u64)
                .sum(),
            ..Self::default()
        };
        match document {
            Document::Run(run) => {
                entry.kind = run.kind.to_string();
                entry.interrupted = run.interrupted;
                entry.label.clone_from(&run.label);
                entry.kept_by = run.kept_by;
                let read = FIGURES
                    .iter()
                    .filter_map(|figure| Some((figure.name, (figure.read)(&run.summary)?)));
                entry.figures = finite(read);
            }
            Document::Set(set) => {
                entry.kind = format!("set:{}", set.kind);
                entry.interrupted = set.interrupted;
                let experiment = set.result.experiment.as_deref();
                entry.experiment = experiment.map(|experiment| experiment.name.clone());
                let of_table = experiment.and_then(|experiment| experiment.label.clone());
                entry.label = set.result.label.clone().or(of_table);
                entry.members = set.runs.iter().map(|run| run.id.clone()).collect();
                let medians = set.result.figures.iter();
                entry.figures = finite(medians.map(|(name, estimate)| (&**name, estimate.median)));
                entry
                    .figures
                    .extend(experiment.map_or_else(BTreeMap::new, of_points));
                entry.points = experiment.map_or_else(BTreeMap::new, measured_points);
                entry.shapes = experiment.map(Shapes::of);
                entry.outcome = outcome(&set.result);
            }
        }
        entry
    }
}

/// What a search or a comparison came to: the best point of a sweep, side B of pairs, the proven settings.
fn outcome(result: &SetResult) -> Option<Outcome> {
    let (figure, value) = if let Some(found) = result.sweep.as_deref() {
        let best = found.points.get(found.best?)?;
        (&found.figure, best.value?)
    } else {
        let proof = || result.tuning.as_ref()?.proof.as_deref();
        let pairs = result.comparison.as_deref().or_else(proof)?;
        (&pairs.figure, pairs.b.value?)
    };
    Some(Outcome {
        figure: figure.clone(),
        value: value.median,
    })
}

/// Every figure of every point, by `KNOB=VALUE… FIGURE`.
fn of_points(experiment: &ExperimentResult) -> BTreeMap<String, f64> {
    let figures = experiment.points.iter().flat_map(|point| {
        let at = setting_words(experiment, &point.setting);
        let figures = point.figures.iter();
        figures.map(move |(name, value)| (format!("{at} {name}"), value.median))
    });
    figures.filter(|(_, value)| value.is_finite()).collect()
}

/// The first run of every point that was measured.
fn measured_points(experiment: &ExperimentResult) -> BTreeMap<String, String> {
    let points = experiment.points.iter().filter_map(|point| {
        let at = setting_words(experiment, &point.setting);
        Some((at, point.runs.first()?.clone()))
    });
    points.collect()
}

fn finite<'a>(figures: impl Iterator<Item = (&'a str, f64)>) -> BTreeMap<String, f64> {
    figures
        .filter(|(_, value)| value.is_finite())
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

fn target(run: &Record) -> String {
    if let Some(forward) = &run.plan.forward {
        return forward.ports.join(" ");
    }
    run.plan.host.clone()
}

fn hosts(run: &Record) -> Vec<String> {
    let names = run.hosts.iter().filter_map(|host| host.hostname.clone());
    let mut hosts: Vec<String> = names.collect();
    hosts.dedup();
    hosts
}

fn protocol(run: &Record) -> Option<String> {
    use linerate_metric::plan::Kind;
    let on_sockets = matches!(run.kind, Kind::Throughput | Kind::Latency);
    on_sockets.then(|| run.plan.protocol.to_string())
}

/// FNV-1a over the plan as JSON; ports are chosen anew for each run of a test and say nothing.
fn plan(run: &Record) -> String {
    let mut plan = run.plan.clone();
    plan.port = 0;
    plan.source_port = None;
    let text = serde_json::to_string(&plan).expect("a plan holds only what JSON can say");
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}
