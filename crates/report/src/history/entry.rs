//! Index entry: summary of one document.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use linerate_record::expect::FIGURES;
use linerate_record::experiment::{ExpectedShape, ExperimentResult, ShapeState};
use linerate_record::facts::Role;
use linerate_record::plan::Direction;
use linerate_record::record::Record;
use linerate_record::run_set::SetResult;
use serde::{Deserialize, Serialize};

use crate::document::Document;
use crate::experiment::describe_setting;

/// Headline figure of a sweep, comparison or tuning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeadlineFigure {
    /// Name as in `--expect`.
    pub figure: String,
    /// Value in base units.
    pub value: f64,
}

/// Result of an experiment's expectations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpectationCounts {
    /// Number of expectations that hold.
    pub hold: usize,
    /// Number of expectations that were tested.
    pub tested: usize,
    /// Number of tested expectations whose runs have caveats.
    pub with_caveats: usize,
}

impl ExpectationCounts {
    fn count(experiment: &ExperimentResult) -> Self {
        let count =
            |counts: fn(&&ExpectedShape) -> bool| experiment.shapes.iter().filter(counts).count();
        Self {
            hold: count(|shape| shape.state == ShapeState::Holds),
            tested: count(|shape| shape.state != ShapeState::Untested),
            with_caveats: count(|shape| !shape.caveats.is_empty()),
        }
    }
}

/// Summary of a stored document.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HistoryEntry {
    pub id: String,
    /// `throughput`, `latency`, `forward`, `generate`; for a set `set:` and the command that made
    /// it.
    pub kind: String,
    /// Time of the first payload.
    pub started: Timestamp,
    /// True if the run was interrupted.
    pub interrupted: bool,
    /// Label of the run; for an experiment, label of its table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Name of the experiment: `udp-hops`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experiment: Option<String>,
    /// Role of the host that recorded a copy of a run started elsewhere: a server's copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded_by: Option<Role>,
    /// Remote host as named in the plan, or the ports.
    pub target: String,
    /// Protocol of another program at one end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_protocol: Option<String>,
    /// Address of the served client, in the record of a server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// Directions of the payload from the client's view.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub directions: Vec<Direction>,
    /// Host names, the client's first.
    pub hosts: Vec<String>,
    /// `TCP` or `UDP`; absent for frame-based runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// Fingerprint of the plan; runs with equal plans are comparable. 64-bit FNV-1a over the plan
    /// without ports, in hexadecimal.
    pub plan: String,
    /// Number of runs.
    pub runs: u64,
    /// Ids of the runs in a set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<String>,
    /// First run of each measured point of an experiment, by `KNOB=VALUE…`. A growing table is
    /// stored again with all of its points.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub points: BTreeMap<String, String>,
    /// Result of an experiment's expectations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expectations: Option<ExpectationCounts>,
    /// Number of caveats.
    pub caveats: u64,
    /// Figures by the names of `--expect`; for repeats the medians.
    pub figures: BTreeMap<String, f64>,
    /// Headline figure of a sweep, comparison or tuning. Not part of trends, which use figures of
    /// runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headline: Option<HeadlineFigure>,
    /// Tags in alphabetical order.
    pub tags: BTreeSet<String>,
    /// Notes, the oldest first.
    pub notes: Vec<DocumentNote>,
}

/// Note of a user on a document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DocumentNote {
    pub at: Timestamp,
    pub text: String,
}

impl HistoryEntry {
    /// Summarises a document; tags and notes are not part of it.
    #[must_use]
    pub fn summarise(document: &Document) -> Self {
        let first = document.runs().first();
        let mut entry = Self {
            id: document.id().to_owned(),
            started: document.started(),
            runs: document.runs().len() as u64,
            target: first.map_or_else(String::new, target_of),
            peer_protocol: first.and_then(|run| run.plan.peer_protocol.clone()),
            client: first.and_then(|run| Some(run.served_client.as_ref()?.ip().to_owned())),
            directions: first.map_or_else(Vec::new, |run| run.plan.directions.clone()),
            hosts: first.map_or_else(Vec::new, host_names),
            protocol: first.and_then(protocol_of),
            plan: first.map_or_else(String::new, plan_fingerprint),
            caveats: (document.runs().iter())
                .map(|run| run.validity.len() as u64)
                .sum(),
            ..Self::default()
        };
        match document {
            Document::Run(run) => {
                entry.kind = run.kind.to_string();
                entry.interrupted = run.interrupted;
                entry.label.clone_from(&run.label);
                entry.recorded_by = run.recorded_by;
                let read = FIGURES
                    .iter()
                    .filter_map(|figure| Some((figure.name, (figure.read)(&run.summary)?)));
                entry.figures = finite_figures(read);
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
                entry.figures =
                    finite_figures(medians.map(|(name, estimate)| (&**name, estimate.median)));
                entry
                    .figures
                    .extend(experiment.map_or_else(BTreeMap::new, figures_of_points));
                entry.points = experiment.map_or_else(BTreeMap::new, measured_points);
                entry.expectations = experiment.map(ExpectationCounts::count);
                entry.headline = headline_figure(&set.result);
            }
        }
        entry
    }
}

/// Returns the best point of a sweep, side B of a comparison, or the proven settings of a tuning.
fn headline_figure(result: &SetResult) -> Option<HeadlineFigure> {
    let (figure, value) = if let Some(sweep) = result.sweep.as_deref() {
        let best = sweep.points.get(sweep.best?)?;
        (&sweep.figure, best.value?)
    } else {
        let proof = || result.tuning.as_ref()?.proof.as_deref();
        let pairs = result.comparison.as_deref().or_else(proof)?;
        (&pairs.figure, pairs.b.value?)
    };
    Some(HeadlineFigure {
        figure: figure.clone(),
        value: value.median,
    })
}

/// Returns all figures of all points, by `KNOB=VALUE… FIGURE`.
fn figures_of_points(experiment: &ExperimentResult) -> BTreeMap<String, f64> {
    let figures = experiment.points.iter().flat_map(|point| {
        let at = describe_setting(experiment, &point.setting);
        let figures = point.figures.iter();
        figures.map(move |(name, value)| (format!("{at} {name}"), value.median))
    });
    figures.filter(|(_, value)| value.is_finite()).collect()
}

/// Returns the first run of every measured point.
fn measured_points(experiment: &ExperimentResult) -> BTreeMap<String, String> {
    let points = experiment.points.iter().filter_map(|point| {
        let at = describe_setting(experiment, &point.setting);
        Some((at, point.runs.first()?.clone()))
    });
    points.collect()
}

fn finite_figures<'a>(figures: impl Iterator<Item = (&'a str, f64)>) -> BTreeMap<String, f64> {
    figures
        .filter(|(_, value)| value.is_finite())
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

fn target_of(run: &Record) -> String {
    if let Some(forward) = &run.plan.forward {
        return forward.ports.join(" ");
    }
    run.plan.host.clone()
}

fn host_names(run: &Record) -> Vec<String> {
    let names = run.hosts.iter().filter_map(|host| host.hostname.clone());
    let mut hosts: Vec<String> = names.collect();
    hosts.dedup();
    hosts
}

fn protocol_of(run: &Record) -> Option<String> {
    use linerate_record::plan::RunKind;
    let on_sockets = matches!(run.kind, RunKind::Throughput | RunKind::Latency);
    on_sockets.then(|| run.plan.protocol.to_string())
}

/// FNV-1a over the plan as JSON. Ports are left out, because they can differ between equal runs.
fn plan_fingerprint(run: &Record) -> String {
    let mut plan = run.plan.clone();
    plan.port = 0;
    plan.source_port = None;
    let text = serde_json::to_string(&plan).expect("a plan has a JSON form");
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}
