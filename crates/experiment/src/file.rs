//! The file of an experiment, and what must be true of it before anything is measured.

use std::collections::{BTreeMap, BTreeSet};

use linerate_lab::Topology;
use linerate_metric::expect::Unit;
use linerate_metric::experiment::{PlotOf, Setting, TableOf, number};
use serde::Deserialize;

use crate::ExperimentError;
use crate::rule::Rule;

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
    #[serde(default)]
    pub tables: Vec<TableOf>,
    /// How it is drawn.
    #[serde(default)]
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

fn wrong<T>(
    place: impl Into<String>,
    situation: impl Into<String>,
    next_step: impl Into<String>,
) -> Result<T, ExperimentError> {
    Err(ExperimentError::Content {
        place: place.into(),
        situation: situation.into(),
        next_step: next_step.into(),
    })
}

impl Experiment {
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
        experiment.check()?;
        Ok(experiment)
    }

    /// The knob of a name.
    #[must_use]
    pub fn knob(&self, name: &str) -> Option<&KnobOf> {
        self.knobs.iter().find(|knob| knob.name == name)
    }

    /// Knobs that the network is built from: on real hosts hands set them.
    #[must_use]
    pub fn knobs_of_the_network(&self) -> Vec<&str> {
        let hops = self.lab.as_ref().and_then(|lab| lab.hops.as_deref());
        let named = |knob: &&KnobOf| hops.is_some_and(|hops| hops == format!("{{{}}}", knob.name));
        let knobs = self.knobs.iter().filter(named);
        knobs.map(|knob| knob.name.as_str()).collect()
    }

    fn check(&self) -> Result<(), ExperimentError> {
        self.check_knobs()?;
        self.check_commands()?;
        let figures: BTreeSet<&str> = self.figures.iter().map(|f| f.name.as_str()).collect();
        let figure = |place: &str, name: &str| match figures.contains(name) {
            true => Ok(()),
            false => wrong(
                place,
                format!("there is no figure `{name}`"),
                "add it to [[figures]]",
            ),
        };
        for table in &self.tables {
            let place = format!("table `{}`", table.title);
            table
                .figures
                .iter()
                .try_for_each(|name| figure(&place, name))?;
            for knob in table.rows.iter().chain(&table.columns) {
                self.check_knob(&place, knob)?;
            }
            for knob in &self.knobs {
                let stands = table.at.contains_key(&knob.name);
                if !stands
                    && !table.rows.contains(&knob.name)
                    && !table.columns.contains(&knob.name)
                {
                    return wrong(
                        place,
                        format!(
                            "the knob `{}` is neither along its side nor its top, nor does it stand still",
                            knob.name
                        ),
                        "name every knob in `rows`, `columns` or `at`",
                    );
                }
            }
            self.check_setting(&place, &table.at)?;
            if table.steps && table.rows.len() != 1 {
                return wrong(
                    place,
                    "steps need one knob along the side",
                    "name one in `rows`",
                );
            }
        }
        for plot in &self.plots {
            let place = format!("plot `{}`", plot.title);
            figure(&place, &plot.figure)?;
            self.check_knob(&place, &plot.x)?;
            plot.series
                .iter()
                .try_for_each(|knob| self.check_knob(&place, knob))?;
            let knob = self.knob(&plot.x).map_or(&[][..], |knob| &knob.values);
            let word = knob.iter().find(|value| number(value).is_none());
            if let Some(value) = word.filter(|_| plot.log_x) {
                return wrong(
                    place,
                    format!("`{value}` of x is no number"),
                    "leave out `log_x`: words are drawn as bars",
                );
            }
        }
        for published in &self.published {
            figure("a published figure", &published.figure)?;
            self.check_setting("a published figure", &published.setting)?;
            self.value_of(published)?;
        }
        for skip in &self.skip {
            self.check_setting("a point that is skipped", &skip.setting)?;
        }
        for shape in &self.shapes {
            let place = format!("shape `{}`", shape.says);
            let rule = Rule::parse(&shape.rule).map_err(|why| ExperimentError::Content {
                place: place.clone(),
                situation: why,
                next_step: "write it as `slope(p50 over hops) > 0`".to_owned(),
            })?;
            for term in rule.terms() {
                figure(&place, &term.figure)?;
                self.check_setting(&place, &term.setting)?;
                if let Some((_, knob)) = &term.over {
                    self.check_knob(&place, knob)?;
                }
            }
        }
        Ok(())
    }

    /// The value of a published figure, in base units.
    pub(crate) fn value_of(&self, published: &PublishedOf) -> Result<f64, ExperimentError> {
        let unit = self.figures.iter().find(|f| f.name == published.figure);
        let unit = unit.map_or(Unit::Count, |figure| figure.unit);
        unit.parse(&published.value)
            .map_err(|error| ExperimentError::Content {
                place: "a published figure".to_owned(),
                situation: error.to_string(),
                next_step: "write it with its unit".to_owned(),
            })
    }

    fn check_knobs(&self) -> Result<(), ExperimentError> {
        let mut seen = BTreeSet::new();
        for knob in &self.knobs {
            let place = format!("knob `{}`", knob.name);
            if knob.values.is_empty() || !seen.insert(&knob.name) {
                return wrong(
                    place,
                    "has no value, or is there twice",
                    "give each knob its values once",
                );
            }
            if let Some(value) = knob.quick.iter().find(|value| !knob.values.contains(value)) {
                return wrong(
                    place,
                    format!("`{value}` is only in `quick`"),
                    "add it to `values`",
                );
            }
            let Some(words) = self.words.get(&knob.name) else {
                continue;
            };
            if let Some(value) = knob.values.iter().find(|value| !words.contains_key(*value)) {
                return wrong(
                    place,
                    format!("there are no words for `{value}`"),
                    "add them to [words]",
                );
            }
        }
        if let Some(name) = self.words.keys().find(|name| self.knob(name).is_none()) {
            return wrong(
                "[words]",
                format!("there is no knob `{name}`"),
                "name a knob",
            );
        }
        if self.repeats == 0 || self.quick_repeats == 0 {
            return wrong("repeats", "0 measures nothing", "give 1 or more");
        }
        Ok(())
    }

    fn check_commands(&self) -> Result<(), ExperimentError> {
        if self.measure.is_empty() {
            return wrong("[[measure]]", "nothing is measured", "add a command");
        }
        for command in self.measure.iter().chain(&self.far) {
            if command.run.is_some() == command.exec.is_some() {
                return wrong(
                    "a command",
                    "neither `run` nor `exec`, or both",
                    "give one of them",
                );
            }
            self.check_setting("a command", &command.when)?;
        }
        if self.measure.iter().any(|command| command.run.is_none()) {
            return wrong("[[measure]]", "only linerate gives a record", "use `run`");
        }
        if let Some(lab) = &self.lab
            && lab.hops.is_some() == lab.topology.is_some()
        {
            return wrong(
                "[lab]",
                "neither `hops` nor `topology`, or both",
                "give one of them",
            );
        }
        Ok(())
    }

    fn check_knob(&self, place: &str, name: &str) -> Result<(), ExperimentError> {
        match self.knob(name) {
            Some(_) => Ok(()),
            None => wrong(
                place,
                format!("there is no knob `{name}`"),
                "add it to [[knobs]]",
            ),
        }
    }

    pub(crate) fn check_setting(
        &self,
        place: &str,
        setting: &Setting,
    ) -> Result<(), ExperimentError> {
        for (name, value) in setting {
            self.check_knob(place, name)?;
            let known = self.knob(name).map_or(&[][..], |knob| &knob.values);
            if !known.contains(value) {
                return wrong(
                    place,
                    format!("`{value}` is no value of `{name}`"),
                    format!("use one of {}", known.join(", ")),
                );
            }
        }
        Ok(())
    }
}
