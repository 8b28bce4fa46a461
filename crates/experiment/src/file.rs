//! Format of an experiment file.

use std::collections::BTreeMap;

use linerate_lab::Topology;
use linerate_metric::expect::Unit;
use linerate_metric::experiment::{Distance, PlotOf, Setting, TableOf};
use serde::{Deserialize, Deserializer};

use crate::ExperimentError;
use crate::validation::line_of;

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
    pub knobs: Vec<KnobOf>,
    /// Texts that replace the values of a knob in commands: `words.socket.reopened = "--reopen"`.
    #[serde(default)]
    pub words: BTreeMap<String, BTreeMap<String, String>>,
    /// Texts that depend on the time available: `[with --quick, without]`.
    #[serde(default)]
    pub amounts: BTreeMap<String, [String; 2]>,
    /// Network; without one, commands run on this machine as it is.
    #[serde(default)]
    pub lab: Option<LabOf>,
    /// Programs that run on other hosts during the measurement.
    #[serde(default)]
    pub far: Vec<CommandOf>,
    /// Commands that measure a point; each returns one record (the last one of several runs).
    pub measure: Vec<CommandOf>,
    /// Figures read from the records.
    pub figures: Vec<FigureFrom>,
    #[serde(default, deserialize_with = "tables")]
    pub tables: Vec<TableOf>,
    #[serde(default, deserialize_with = "plots")]
    pub plots: Vec<PlotOf>,
    /// Results that others published.
    #[serde(default)]
    pub published: Vec<PublishedOf>,
    /// Assertions about the results.
    #[serde(default)]
    pub shapes: Vec<ShapeOf>,
    /// Points that cannot be measured on every machine.
    #[serde(default)]
    pub skip: Vec<SkipOf>,
}

/// Table as written in a file. Unknown keys are errors here, but not in records, which may come
/// from a later version.
#[derive(Deserialize)]
#[serde(remote = "TableOf", deny_unknown_fields)]
struct TableIn {
    title: String,
    figures: Vec<String>,
    #[serde(default)]
    rows: Vec<String>,
    #[serde(default)]
    columns: Vec<String>,
    #[serde(default)]
    at: Setting,
    #[serde(default)]
    steps: bool,
    #[serde(default)]
    against: Option<String>,
}

fn tables<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<TableOf>, D::Error> {
    #[derive(Deserialize)]
    struct Read(#[serde(with = "TableIn")] TableOf);
    let tables = Vec::<Read>::deserialize(from)?.into_iter();
    Ok(tables.map(|Read(table)| table).collect())
}

/// Plot as written in a file.
#[derive(Deserialize)]
#[serde(remote = "PlotOf", deny_unknown_fields)]
struct PlotIn {
    title: String,
    figure: String,
    x: String,
    #[serde(default)]
    series: Vec<String>,
    #[serde(default)]
    log_x: bool,
}

fn plots<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<PlotOf>, D::Error> {
    #[derive(Deserialize)]
    struct Read(#[serde(with = "PlotIn")] PlotOf);
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
pub struct KnobOf {
    pub name: String,
    pub values: Vec<String>,
    /// Values with `--quick`; empty: all values.
    #[serde(default)]
    pub quick: Vec<String>,
    /// Shell command that sets the knob, with `{}` for the value; runs before a point whose value
    /// differs.
    #[serde(default)]
    pub set: Option<String>,
    /// Command that restores the original state at the end; absent: `set` with the first value.
    #[serde(default)]
    pub restore: Option<String>,
    /// Timeout of `set` and of `restore`; absent: ten minutes.
    #[serde(default)]
    pub within: Option<String>,
    /// Memory per unit of the value, bytes; for `linerate tune --under memory=…`.
    #[serde(default)]
    pub memory: Option<u64>,
}

/// Network of an experiment.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabOf {
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
pub struct CommandOf {
    /// Host of the lab.
    pub host: String,
    /// Arguments of `linerate`, with `{names}` to replace.
    #[serde(default)]
    pub run: Option<String>,
    /// Another program with its arguments, as the alternative.
    #[serde(default)]
    pub exec: Option<String>,
    /// Restricts the command to points with these values.
    #[serde(default)]
    pub when: Setting,
    /// Prefix of the line with which a remote program reports that it is ready; absent: a short
    /// delay.
    #[serde(default)]
    pub ready: Option<String>,
}

/// Figure and its location in a record.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FigureFrom {
    pub name: String,
    /// Restricts the figure to points with these values; a name may occur again for other points.
    #[serde(default)]
    pub when: Setting,
    /// JSON pointers into the record (RFC 6901); the first that leads to a number counts.
    pub from: Vec<String>,
    /// Unit in which values are displayed.
    pub unit: Unit,
    /// True for a computed figure that is equal in every run, so that any difference is
    /// significant.
    #[serde(default)]
    pub exact: bool,
    /// Description of the figure.
    pub says: String,
}

/// Published figure.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedOf {
    #[serde(default)]
    pub setting: Setting,
    pub figure: String,
    /// Value with its unit.
    pub value: String,
    /// Hardware or setup on which it was measured.
    pub on: String,
    /// Reason why its trend may differ here.
    #[serde(default)]
    pub why: String,
}

/// Assertion about the results.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShapeOf {
    /// Description of the assertion.
    pub says: String,
    /// Rule in the syntax of [`crate::rule`].
    pub rule: String,
    /// Reason why the assertion may fail elsewhere.
    #[serde(default)]
    pub why: String,
    /// Number of CPUs required.
    #[serde(default)]
    pub cores: usize,
    /// Required distance of the CPUs: only runs measured at that distance count.
    #[serde(default)]
    pub processors: Option<Distance>,
}

/// Points that are skipped: always, or if a requirement is missing.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SkipOf {
    /// Values of the points.
    pub setting: Setting,
    /// Skips only with fewer CPUs than this.
    #[serde(default)]
    pub cores_below: usize,
    /// Skips only without root.
    #[serde(default)]
    pub without_root: bool,
    /// Reason that is reported.
    pub because: String,
}

impl Experiment {
    /// Returns whether an assertion depends on the distance of CPUs.
    pub(crate) fn asks_distance(&self) -> bool {
        self.shapes.iter().any(|shape| shape.processors.is_some())
    }

    /// Parses an experiment and validates it completely.
    ///
    /// # Errors
    /// [`ExperimentError::Syntax`], [`ExperimentError::Content`].
    pub fn from_toml(text: &str) -> Result<Self, ExperimentError> {
        let experiment: Self = toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start));
            ExperimentError::Syntax {
                line: before.unwrap_or_default().matches('\n').count() + 1,
                error: Box::new(error),
            }
        })?;
        match experiment.check() {
            Err(ExperimentError::Content {
                place,
                situation,
                next_step,
                ..
            }) => Err(ExperimentError::Content {
                line: line_of(text, &situation, &place),
                place,
                situation,
                next_step,
            }),
            checked => checked.map(|()| experiment),
        }
    }

    /// Knob with this name.
    #[must_use]
    pub fn knob(&self, name: &str) -> Option<&KnobOf> {
        self.knobs.iter().find(|knob| knob.name == name)
    }

    /// Names of hosts that commands may run on: those of the topology, or `client` and `server`.
    #[must_use]
    pub fn hosts(&self) -> Vec<String> {
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
    pub fn lab_file(&self) -> Option<String> {
        let topology = self.lab.as_ref()?.topology.as_ref()?;
        Some(toml::to_string(topology).expect("it came from such a file"))
    }

    /// Returns whether the experiment needs another host: it has a lab, or a command names
    /// `{server}`.
    #[must_use]
    pub fn goes_out(&self) -> bool {
        let commands = self
            .measure
            .iter()
            .filter_map(|command| command.run.as_ref());
        let words = self.words.values().flat_map(|words| words.values());
        self.lab.is_some() || commands.chain(words).any(|text| text.contains("{server}"))
    }

    /// Knobs that the network is built from; on real hosts they can only be set manually.
    #[must_use]
    pub fn knobs_of_the_network(&self) -> Vec<&str> {
        let hops = self.lab.as_ref().and_then(|lab| lab.hops.as_deref());
        let named = |knob: &&KnobOf| hops.is_some_and(|hops| hops == format!("{{{}}}", knob.name));
        let knobs = self.knobs.iter().filter(named);
        knobs.map(|knob| knob.name.as_str()).collect()
    }

    /// Value of a published figure, in base units.
    pub(crate) fn value_of(&self, published: &PublishedOf) -> Result<f64, ExperimentError> {
        let unit = self.figures.iter().find(|f| f.name == published.figure);
        let unit = unit.map_or(Unit::Count, |figure| figure.unit);
        unit.parse(&published.value).map_err(|error| {
            ExperimentError::content(
                format!("published `{}`", published.value),
                error.to_string(),
                "write it with its unit",
            )
        })
    }
}
