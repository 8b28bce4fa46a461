//! Format of an experiment file.

use std::collections::BTreeMap;

use linerate_lab::Topology;
use linerate_record::expect::FigureUnit;
use linerate_record::experiment::{CoreDistance, KnobValues, PlotSpec, TableSpec};
use serde::{Deserialize, Deserializer};

use crate::ExperimentError;

/// Experiment as written in its file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Name, equal to that of the file.
    pub name: String,
    /// Heading.
    pub title: String,
    /// Question that the experiment answers.
    pub question: String,
    /// Description of the parts that run without root.
    pub without_root: String,
    /// Number of rounds over all points.
    #[serde(default = "three")]
    pub repeats: u32,
    /// Number of rounds with `--quick`.
    #[serde(default = "one")]
    pub quick_repeats: u32,
    /// Knobs that are varied, the slowest first.
    pub knobs: Vec<ExperimentKnob>,
    /// Texts that replace the values of a knob in commands: `words.socket.reopened = "--reopen"`.
    #[serde(default)]
    pub words: BTreeMap<String, BTreeMap<String, String>>,
    /// Texts that depend on the time available: `[with --quick, without]`.
    #[serde(default)]
    pub amounts: BTreeMap<String, [String; 2]>,
    /// Network; without one, commands run on this machine as it is.
    #[serde(default)]
    pub lab: Option<ExperimentLab>,
    /// Programs that run on other hosts during the measurement.
    #[serde(default)]
    #[serde(rename = "remote", alias = "far")]
    pub remote_programs: Vec<ExperimentCommand>,
    /// Commands that measure a point; each returns one record (the last one of several runs).
    pub measure: Vec<ExperimentCommand>,
    /// Figures read from the records.
    pub figures: Vec<FigureSource>,
    #[serde(default, deserialize_with = "tables")]
    pub tables: Vec<TableSpec>,
    #[serde(default, deserialize_with = "plots")]
    pub plots: Vec<PlotSpec>,
    /// Results that others published.
    #[serde(default)]
    pub published: Vec<PublishedEntry>,
    /// Assertions about the results.
    #[serde(default)]
    pub shapes: Vec<ShapeAssertion>,
    /// Points that cannot be measured on every machine.
    #[serde(default)]
    pub skip: Vec<SkipCondition>,
}

/// Table as written in a file. Unknown keys are errors here, but not in records, which may come
/// from a later version.
#[derive(Deserialize)]
#[serde(remote = "TableSpec", deny_unknown_fields)]
struct TableIn {
    title: String,
    figures: Vec<String>,
    #[serde(default)]
    rows: Vec<String>,
    #[serde(default)]
    columns: Vec<String>,
    #[serde(default)]
    at: KnobValues,
    #[serde(default)]
    steps: bool,
    #[serde(default)]
    against: Option<String>,
    #[serde(default)]
    folded: bool,
}

fn tables<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<TableSpec>, D::Error> {
    #[derive(Deserialize)]
    struct Read(#[serde(with = "TableIn")] TableSpec);
    let tables = Vec::<Read>::deserialize(from)?.into_iter();
    Ok(tables.map(|Read(table)| table).collect())
}

/// Plot as written in a file.
#[derive(Deserialize)]
#[serde(remote = "PlotSpec", deny_unknown_fields)]
struct PlotIn {
    title: String,
    figure: String,
    x: String,
    #[serde(default)]
    series: Vec<String>,
    #[serde(default)]
    log_x: bool,
}

fn plots<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<PlotSpec>, D::Error> {
    #[derive(Deserialize)]
    struct Read(#[serde(with = "PlotIn")] PlotSpec);
    let plots = Vec::<Read>::deserialize(from)?.into_iter();
    Ok(plots.map(|Read(plot)| plot).collect())
}

fn three() -> u32 {
    3
}

fn one() -> u32 {
    1
}

/// Knob of an experiment.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExperimentKnob {
    pub name: String,
    pub values: Vec<String>,
    /// Values with `--quick`; empty: all values.
    #[serde(default)]
    #[serde(rename = "quick")]
    pub quick_values: Vec<String>,
    /// Shell command that sets the knob, with `{}` for the value; runs before a point whose value
    /// differs.
    #[serde(default)]
    #[serde(rename = "set")]
    pub set_command: Option<String>,
    /// Command that restores the original state at the end; absent: `set_command` with the first
    /// value.
    #[serde(default)]
    #[serde(rename = "restore")]
    pub restore_command: Option<String>,
    /// Timeout of `set_command` and of `restore_command`; absent: ten minutes.
    #[serde(default)]
    #[serde(rename = "within")]
    pub timeout: Option<String>,
    /// Memory per unit of the value, bytes; for `linerate tune --under memory=…`.
    #[serde(default)]
    #[serde(rename = "memory")]
    pub bytes_per_unit: Option<u64>,
}

/// Network of an experiment.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExperimentLab {
    /// Number of switches between the hosts `client` and `server`; may name a knob: `{hops}`.
    #[serde(default)]
    pub hops: Option<String>,
    /// Topology of a lab file, as the alternative.
    #[serde(default)]
    pub topology: Option<Topology>,
}

/// Command on a host.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExperimentCommand {
    /// Host of the lab.
    pub host: String,
    /// Arguments of `linerate`, with `{name}` to replace.
    #[serde(default)]
    #[serde(rename = "run")]
    pub linerate_args: Option<String>,
    /// Another program with its arguments, as the alternative.
    #[serde(default)]
    #[serde(rename = "exec")]
    pub command_line: Option<String>,
    /// Restricts the command to points with these values.
    #[serde(default)]
    #[serde(rename = "when")]
    pub at_points: KnobValues,
    /// Prefix of the line with which a remote program reports that it is ready; absent: a short
    /// delay.
    #[serde(default)]
    #[serde(rename = "ready")]
    pub ready_prefix: Option<String>,
}

/// Figure and its location in a record.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FigureSource {
    pub name: String,
    /// Restricts the figure to points with these values; a name may occur again for other points.
    #[serde(default)]
    #[serde(rename = "when")]
    pub at_points: KnobValues,
    /// JSON pointers into the record (RFC 6901); the first that leads to a number counts.
    #[serde(rename = "from")]
    pub pointers: Vec<String>,
    /// Unit in which values are displayed.
    pub unit: FigureUnit,
    /// True for a computed figure that is equal in every run, so that any difference is
    /// significant.
    #[serde(default)]
    #[serde(rename = "exact")]
    pub is_exact: bool,
    /// Description of the figure.
    #[serde(rename = "description", alias = "says")]
    pub description: String,
}

/// Published figure.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedEntry {
    #[serde(default)]
    pub setting: KnobValues,
    pub figure: String,
    /// Value with its unit.
    pub value: String,
    /// Hardware or setup on which it was measured.
    #[serde(rename = "on")]
    pub measured_on: String,
    /// Reason why its trend may differ here.
    #[serde(default)]
    #[serde(rename = "why")]
    pub reason: String,
}

/// Assertion about the results.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShapeAssertion {
    /// Description of the assertion.
    #[serde(rename = "description", alias = "says")]
    pub description: String,
    /// Rule in the syntax of [`crate::rule`].
    pub rule: String,
    /// Sentence for results that agree, with figures in braces: `each hop adds {slope(p50 over
    /// hops)}`.
    #[serde(default)]
    pub conclusion: String,
    /// Reason why the assertion may fail elsewhere.
    #[serde(default)]
    #[serde(rename = "why")]
    pub reason: String,
    /// Number of CPUs required.
    #[serde(default)]
    #[serde(rename = "cores")]
    pub min_cores: usize,
    /// Required distance of the CPUs: only runs measured at that distance count.
    #[serde(default)]
    #[serde(rename = "processors")]
    pub core_distance: Option<CoreDistance>,
}

/// Points that are skipped: always, or if a requirement is missing.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SkipCondition {
    /// Values of the points.
    pub setting: KnobValues,
    /// Skips only with fewer CPUs than this.
    #[serde(default)]
    pub cores_below: usize,
    /// Skips only without root.
    #[serde(default)]
    pub without_root: bool,
    /// Reason that is reported.
    #[serde(rename = "because")]
    pub reason: String,
}

impl Experiment {
    /// Returns whether an assertion depends on the distance of CPUs.
    pub(crate) fn depends_on_core_distance(&self) -> bool {
        self.shapes
            .iter()
            .any(|shape| shape.core_distance.is_some())
    }

    /// Knob with this name.
    #[must_use]
    pub fn knob(&self, name: &str) -> Option<&ExperimentKnob> {
        self.knobs.iter().find(|knob| knob.name == name)
    }

    /// Names of hosts that commands may run on: those of the topology, or `client` and `server`.
    #[must_use]
    pub fn host_names(&self) -> Vec<String> {
        let topology = self.lab.as_ref().and_then(|lab| lab.topology.as_ref());
        match topology {
            Some(topology) => topology
                .hosts
                .iter()
                .map(|(name, _)| name.clone())
                .collect(),
            None => ["client", "server"].map(str::to_owned).into(),
        }
    }

    /// Topology as a lab file, if the experiment contains one.
    #[must_use]
    pub fn to_lab_file(&self) -> Option<String> {
        let topology = self.lab.as_ref()?.topology.as_ref()?;
        Some(toml::to_string(topology).expect("it came from such a file"))
    }

    /// Returns whether the experiment needs another host: it has a lab, or a command names
    /// `{server}`.
    #[must_use]
    pub fn needs_remote_host(&self) -> bool {
        let commands = self
            .measure
            .iter()
            .filter_map(|command| command.linerate_args.as_ref());
        let replacement_texts = self
            .words
            .values()
            .flat_map(|replacement_texts| replacement_texts.values());
        self.lab.is_some()
            || commands
                .chain(replacement_texts)
                .any(|text| text.contains("{server}"))
    }

    /// Knobs that the network is built from; on real hosts they can only be set manually.
    #[must_use]
    pub fn topology_knobs(&self) -> Vec<&str> {
        let hops = self.lab.as_ref().and_then(|lab| lab.hops.as_deref());
        let is_topology_knob =
            |knob: &&ExperimentKnob| hops.is_some_and(|hops| hops == format!("{{{}}}", knob.name));
        let knobs = self.knobs.iter().filter(is_topology_knob);
        knobs.map(|knob| knob.name.as_str()).collect()
    }

    /// Value of a published figure, in base units.
    pub(crate) fn published_value(
        &self,
        published: &PublishedEntry,
    ) -> Result<f64, ExperimentError> {
        let unit = self.figures.iter().find(|f| f.name == published.figure);
        let unit = unit.map_or(FigureUnit::Count, |figure| figure.unit);
        unit.parse(&published.value).map_err(|error| {
            ExperimentError::invalid_content(
                format!("published `{}`", published.value),
                error.to_string(),
                "write it with its unit",
            )
        })
    }
}
