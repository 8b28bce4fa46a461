//! The file of an experiment, and what must be true of it before anything is measured.

use std::collections::BTreeMap;

use linerate_lab::Topology;
use linerate_metric::expect::Unit;
use linerate_metric::experiment::{Distance, PlotOf, Setting, TableOf};
use serde::{Deserialize, Deserializer};

use crate::ExperimentError;
use crate::check::line_of;

/// An experiment as it stands in its file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Its name: that of its file.
    pub name: String,
    /// What it is called in a heading.
    pub title: String,
    /// What it answers.
    pub question: String,
    /// What it does without root.
    pub without_root: String,
    /// How often each point is measured, in rounds over all points.
    #[serde(default = "three")]
    pub repeats: u32,
    /// The same with `--quick`.
    #[serde(default = "one")]
    pub quick_repeats: u32,
    /// What is varied, the slowest first.
    pub knobs: Vec<KnobOf>,
    /// Words that stand for the values of a knob in commands: `words.socket.reopened = "--reopen"`.
    #[serde(default)]
    pub words: BTreeMap<String, BTreeMap<String, String>>,
    /// Words that depend on how long it may take: `[with --quick, without]`.
    #[serde(default)]
    pub amounts: BTreeMap<String, [String; 2]>,
    /// The network; without one, commands run on this machine as they are.
    #[serde(default)]
    pub lab: Option<LabOf>,
    /// Programs that run on other hosts meanwhile.
    #[serde(default)]
    pub far: Vec<CommandOf>,
    /// The commands that measure a point, one record each (of several runs the last).
    pub measure: Vec<CommandOf>,
    /// What is read from the records.
    pub figures: Vec<FigureFrom>,
    /// How it is tabulated.
    #[serde(default, deserialize_with = "tables")]
    pub tables: Vec<TableOf>,
    /// How it is drawn.
    #[serde(default, deserialize_with = "plots")]
    pub plots: Vec<PlotOf>,
    /// What others published.
    #[serde(default)]
    pub published: Vec<PublishedOf>,
    /// What is expected.
    #[serde(default)]
    pub shapes: Vec<ShapeOf>,
    /// Points that cannot be tested on every machine.
    #[serde(default)]
    pub skip: Vec<SkipOf>,
}

/// A table as it stands in a file, where a key that is none is a mistake; a record that has one may come from
/// a later version.
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

/// A plot as it stands in a file.
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

/// Something that is varied.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnobOf {
    /// Its name.
    pub name: String,
    /// Its values.
    pub values: Vec<String>,
    /// Those of `--quick`; all without it.
    #[serde(default)]
    pub quick: Vec<String>,
    /// A shell command that turns it, `{}` for the value: run before a point with another value than the one
    /// before.
    #[serde(default)]
    pub set: Option<String>,
    /// What sets it back at the end; without it `set` with the first value.
    #[serde(default)]
    pub restore: Option<String>,
    /// How long `set` may take, and `restore`; ten minutes without it.
    #[serde(default)]
    pub within: Option<String>,
    /// Bytes that a unit of its value takes, for `linerate tune --under memory=…`.
    #[serde(default)]
    pub memory: Option<u64>,
}

/// The network of an experiment.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabOf {
    /// Hosts `client` and `server` with so many switches between them; a knob may stand here: `{hops}`.
    #[serde(default)]
    pub hops: Option<String>,
    /// Or a lab file.
    #[serde(default)]
    pub topology: Option<Topology>,
}

/// A command on a host.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandOf {
    /// The host of the lab.
    pub host: String,
    /// Words for `linerate`, with `{names}` to be replaced.
    #[serde(default)]
    pub run: Option<String>,
    /// Or another program with its words.
    #[serde(default)]
    pub exec: Option<String>,
    /// Only at points of this setting.
    #[serde(default)]
    pub when: Setting,
    /// Of a far program: the beginning of a line that says that it is ready; without one it is given
    /// a moment.
    #[serde(default)]
    pub ready: Option<String>,
}

/// A figure and where it is in a record.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FigureFrom {
    /// Its name.
    pub name: String,
    /// Only at points of this setting; a figure may be there several times, for several settings.
    #[serde(default)]
    pub when: Setting,
    /// JSON pointers into the record (RFC 6901); the first that leads to a number counts.
    pub from: Vec<String>,
    /// How its values are written.
    pub unit: Unit,
    /// Whether it is the same in every run, as something computed is: any difference is one then.
    #[serde(default)]
    pub exact: bool,
    /// What it means.
    pub says: String,
}

/// A published figure.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedOf {
    /// The point.
    #[serde(default)]
    pub setting: Setting,
    /// The figure.
    pub figure: String,
    /// Its value with its unit.
    pub value: String,
    /// What it was measured on.
    pub on: String,
    /// Why it may move another way here than there.
    #[serde(default)]
    pub why: String,
}

/// An expected shape.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShapeOf {
    /// What is expected.
    pub says: String,
    /// As a rule.
    pub rule: String,
    /// Why it need not be so.
    #[serde(default)]
    pub why: String,
    /// Processors that it takes.
    #[serde(default)]
    pub cores: usize,
    /// How far apart they have to be: it rests on the runs alone that were measured while they were.
    #[serde(default)]
    pub processors: Option<Distance>,
}

/// Points that are left out: always, or where something is missing.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SkipOf {
    /// Which.
    pub setting: Setting,
    /// With fewer processors than this.
    #[serde(default)]
    pub cores_below: usize,
    /// Without root.
    #[serde(default)]
    pub without_root: bool,
    /// Why.
    pub because: String,
}

impl Experiment {
    /// Whether some shape depends on how far apart processors are.
    pub(crate) fn asks_distance(&self) -> bool {
        self.shapes.iter().any(|shape| shape.processors.is_some())
    }

    /// Reads an experiment and checks all of it.
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

    /// The knob of a name.
    #[must_use]
    pub fn knob(&self, name: &str) -> Option<&KnobOf> {
        self.knobs.iter().find(|knob| knob.name == name)
    }

    /// Names that commands may run on: the hosts of its network, or of the pair that stands for one.
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

    /// Its network as a lab file, where it has one in its file.
    #[must_use]
    pub fn lab_file(&self) -> Option<String> {
        let topology = self.lab.as_ref()?.topology.as_ref()?;
        Some(toml::to_string(topology).expect("it came from such a file"))
    }

    /// Whether its commands name another host: without that there is nothing to measure to.
    #[must_use]
    pub fn goes_out(&self) -> bool {
        let commands = self
            .measure
            .iter()
            .filter_map(|command| command.run.as_ref());
        let words = self.words.values().flat_map(|words| words.values());
        self.lab.is_some() || commands.chain(words).any(|text| text.contains("{server}"))
    }

    /// Knobs that the network is built from: on real hosts hands set them.
    #[must_use]
    pub fn knobs_of_the_network(&self) -> Vec<&str> {
        let hops = self.lab.as_ref().and_then(|lab| lab.hops.as_deref());
        let named = |knob: &&KnobOf| hops.is_some_and(|hops| hops == format!("{{{}}}", knob.name));
        let knobs = self.knobs.iter().filter(named);
        knobs.map(|knob| knob.name.as_str()).collect()
    }

    /// The value of a published figure, in base units.
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
