//! Running an experiment: rounds over its points, labs that stay up between them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use jiff::Timestamp;
use linerate_lab::{Lab, Topology};
use linerate_metric::exit;
use linerate_metric::experiment::{ExperimentResult, FigureOf, Point, Setting};
use linerate_metric::record::{RUN_SCHEMA, Record, new_id};
use linerate_metric::set::{RunSet, SET_SCHEMA, SetResult};
use linerate_metric::statistics::estimate;
use serde_json::Value;

use crate::ExperimentError;
use crate::file::{Experiment, FigureFrom};
use crate::judge::{judge, knobs_of};
use crate::point::{Names, applies, fits, settings, words_of};
use crate::process::{Running, finish, first_line, start};

/// How an experiment is run.
pub struct Options<'a> {
    /// Fewer points, shorter.
    pub quick: bool,
    /// Where.
    pub place: Place,
    /// Only points of this setting.
    pub only: Setting,
    /// Rounds; as the file says without it.
    pub repeats: Option<u32>,
    /// The table that points are added to.
    pub label: Option<String>,
    /// What was in that table before.
    pub before: Option<&'a RunSet>,
    /// The program that measures: this one.
    pub program: PathBuf,
    /// Processors of this machine.
    pub cores: usize,
    /// Ends it early.
    pub stop: &'a AtomicBool,
}

/// Where an experiment is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In networks of its own on this machine.
    Lab,
    /// From here to a host, on which `linerate server` runs.
    Host(String),
}

/// What happens meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A point is about to be measured.
    Point {
        /// Which, from 1.
        number: usize,
        /// Of how many, all rounds.
        of: usize,
        /// Its setting in words.
        words: String,
    },
    /// It could not be.
    Skipped {
        /// Its setting in words.
        words: String,
        /// Why.
        because: String,
    },
    /// Knobs that hands must set now have these values; nothing goes on before this returns.
    Hands {
        /// Their setting in words.
        words: String,
    },
}

/// Longest time of one command: none of an experiment takes a tenth of it.
const COMMAND_LIMIT: Duration = Duration::from_secs(180);

/// Why a point was not measured that was still to come when somebody ended it.
const INTERRUPTED: &str = "interrupted before it was measured";

/// Runs an experiment: the records of all points, and what they say.
///
/// # Errors
/// [`ExperimentError`]; a point that cannot be measured is no error as long as another can.
pub fn run(
    experiment: &Experiment,
    options: &Options<'_>,
    progress: &mut dyn FnMut(&Progress),
) -> Result<RunSet, ExperimentError> {
    let started = Timestamp::now();
    let settings = settings(experiment, options.quick, &options.only)?;
    let mut runner = Runner {
        experiment,
        options,
        labs: BTreeMap::new(),
        between: Vec::new(),
        rootless: !linerate_lab::privileged() || !is_root(),
        serial: 0,
    };
    let rounds = options.repeats.unwrap_or(match options.quick {
        true => experiment.quick_repeats,
        false => experiment.repeats,
    });
    let mut kept: Vec<Kept> = settings.into_iter().map(Kept::new).collect();
    for point in &mut kept {
        point.skipped = runner.left_out(&point.setting);
    }
    let hands = runner.hands(&kept)?;
    let of = kept.len() * rounds as usize;
    let mut number = 0;
    let mut by_hand: Option<String> = None;
    for _ in 0..rounds {
        for point in &mut kept {
            if options.stop.load(Relaxed) {
                break;
            }
            number += 1;
            let words = words_of(experiment, &point.setting);
            if point.skipped.is_some() {
                continue;
            }
            let now = hands_of(&hands, &point.setting);
            if !now.is_empty() && by_hand.as_ref() != Some(&now) {
                progress(&Progress::Hands { words: now.clone() });
                by_hand = Some(now);
            }
            progress(&Progress::Point {
                number,
                of,
                words: words.clone(),
            });
            if let Err(because) = runner.measure(point)? {
                // Whatever a command says that was ended with us is not why it did not go on.
                if options.stop.load(Relaxed) {
                    break;
                }
                progress(&Progress::Skipped {
                    words,
                    because: because.clone(),
                });
                if point.runs.is_empty() {
                    point.skipped = Some(because);
                }
            }
        }
    }
    let interrupted = options.stop.load(Relaxed);
    if interrupted {
        for point in kept.iter_mut().filter(|point| point.runs.is_empty()) {
            point.skipped.get_or_insert_with(|| INTERRUPTED.to_owned());
        }
    }
    if kept.iter().all(|point| point.runs.is_empty()) && !interrupted {
        let why = kept.iter().find_map(|point| point.skipped.clone());
        return Err(ExperimentError::Nothing {
            why: why.unwrap_or_default(),
        });
    }
    let ground = (runner.rootless, runner.between);
    Ok(set(experiment, options, kept, ground, started, interrupted))
}

fn is_root() -> bool {
    // Inside a user namespace of our own everybody is root; the map tells.
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let outside = map
        .split_whitespace()
        .nth(1)
        .is_some_and(|first| first == "0");
    outside && rustix::process::geteuid().is_root()
}

fn hands_of(knobs: &[String], setting: &Setting) -> String {
    let named = knobs
        .iter()
        .filter_map(|knob| Some(format!("{knob}={}", setting.get(knob)?)));
    named.collect::<Vec<_>>().join(" ")
}

/// A point while it is measured.
struct Kept {
    setting: Setting,
    commands: Vec<String>,
    values: BTreeMap<String, Vec<f64>>,
    runs: Vec<Record>,
    skipped: Option<String>,
}

impl Kept {
    fn new(setting: Setting) -> Self {
        Self {
            setting,
            commands: Vec::new(),
            values: BTreeMap::new(),
            runs: Vec::new(),
            skipped: None,
        }
    }

    fn point(&self) -> Point {
        let figures = self
            .values
            .iter()
            .filter_map(|(name, values)| Some((name.clone(), estimate(values)?)));
        Point {
            setting: self.setting.clone(),
            commands: self.commands.clone(),
            figures: figures.collect(),
            runs: self.runs.iter().map(|run| run.id.clone()).collect(),
            skipped: self.skipped.clone(),
        }
    }
}

struct Runner<'a> {
    experiment: &'a Experiment,
    options: &'a Options<'a>,
    /// Networks by what they are, up until the end.
    labs: BTreeMap<String, Lab>,
    /// Switches of the longest way between client and server so far.
    between: Vec<String>,
    rootless: bool,
    serial: u32,
}

impl Runner<'_> {
    /// Why a point is not to be measured here.
    fn left_out(&self, setting: &Setting) -> Option<String> {
        let skip = self.experiment.skip.iter().find(|skip| {
            let always = skip.cores_below == 0 && !skip.without_root;
            let few = self.options.cores < skip.cores_below;
            let lacks = always || few || (skip.without_root && self.rootless);
            lacks && fits(&skip.setting, setting)
        })?;
        let cores = self.options.cores;
        Some(if skip.cores_below > cores {
            format!(
                "{} (it takes {} processors, this machine has {cores})",
                skip.because, skip.cores_below
            )
        } else if skip.without_root {
            format!("{} (it takes root)", skip.because)
        } else {
            skip.because.clone()
        })
    }

    /// Knobs that hands set on real hosts; with several values and nobody to ask it is refused.
    fn hands(&self, points: &[Kept]) -> Result<Vec<String>, ExperimentError> {
        if self.options.place == Place::Lab {
            return Ok(Vec::new());
        }
        let knobs = self.experiment.knobs_of_the_network();
        let knobs: Vec<String> = knobs.into_iter().map(str::to_owned).collect();
        let mut values: Vec<String> = points
            .iter()
            .map(|point| hands_of(&knobs, &point.setting))
            .collect();
        values.sort();
        values.dedup();
        let alone = !std::io::IsTerminal::is_terminal(&std::io::stdin());
        if values.len() > 1 && alone {
            return Err(ExperimentError::NeedsHands {
                knobs: knobs.join(", "),
                example: values.swap_remove(0),
            });
        }
        Ok(knobs)
    }

    /// Measures a point once: `Ok(Err(why))` where it could not be.
    fn measure(&mut self, point: &mut Kept) -> Result<Result<(), String>, ExperimentError> {
        self.serial += 1;
        let id = format!("{}-{}", std::process::id(), self.serial);
        let lab = match &self.options.place {
            Place::Lab => self.lab(&point.setting, &id)?,
            Place::Host(_) => None,
        };
        let lab = lab.map(|key| &self.labs[&key]);
        let hosts: Vec<(String, String)> = match (&self.options.place, lab) {
            (Place::Host(host), _) => vec![("server".to_owned(), host.clone())],
            (_, Some(lab)) => lab
                .hosts()
                .iter()
                .map(|host| (host.name().to_owned(), host.address().to_string()))
                .collect(),
            _ => ["client", "server"]
                .map(|name| (name.to_owned(), "127.0.0.1".to_owned()))
                .into(),
        };
        let names = Names::at(
            self.experiment,
            &point.setting,
            self.options.quick,
            &hosts,
            &id,
        );
        let place = |host: &str| lab.map(|lab| lab.host(host)).transpose();
        let mut running: Vec<Running> = Vec::new();
        let far = self.experiment.far.iter();
        for command in far.filter(|command| applies(command, &point.setting)) {
            if matches!(self.options.place, Place::Host(_)) {
                continue;
            }
            let mut words = names.words(command)?;
            let program = match command.run {
                Some(_) => self.options.program.clone(),
                None if words.is_empty() => continue,
                None => PathBuf::from(words.remove(0)),
            };
            match start(
                place(&command.host)?,
                &program,
                &words,
                command.ready.as_deref(),
            ) {
                Ok(started) => running.push(started),
                Err(error @ ExperimentError::Far { .. }) => return Ok(Err(error.to_string())),
                Err(error) => return Err(error),
            }
        }
        let mut commands = Vec::new();
        let mut found = BTreeMap::new();
        let mut runs = Vec::new();
        let measures = self.experiment.measure.iter();
        for command in measures.filter(|command| applies(command, &point.setting)) {
            let mut words = names.words(command)?;
            commands.push(format!("linerate {}", words.join(" ")));
            words.extend(["--json".to_owned(), "--no-store".to_owned()]);
            let host = place(&command.host)?;
            let ended = finish(
                host,
                &self.options.program,
                &words,
                COMMAND_LIMIT,
                self.options.stop,
            )?;
            let document: Value = serde_json::from_str(ended.stdout.trim()).unwrap_or(Value::Null);
            if ended.code != Some(i32::from(exit::OK)) {
                return Ok(Err(why(&document, &ended.stderr)));
            }
            let Some((mut record, value)) = record(&document) else {
                return Ok(Err("it gave no record".to_owned()));
            };
            record.label = Some(words_of(self.experiment, &point.setting));
            for figure in &self.experiment.figures {
                if fits(&figure.when, &point.setting)
                    && let Some(number) = read(figure, &value)
                {
                    found.entry(figure.name.clone()).or_insert(number);
                }
            }
            runs.push(record);
        }
        drop(running);
        point.commands = commands;
        point.runs.extend(runs);
        for (name, value) in found {
            point.values.entry(name).or_default().push(value);
        }
        Ok(Ok(()))
    }

    /// The key of the network of a point, which is up then; `None` where commands run as they are.
    fn lab(&mut self, setting: &Setting, id: &str) -> Result<Option<String>, ExperimentError> {
        let Some(lab) = &self.experiment.lab else {
            return Ok(None);
        };
        let (key, topology) = match (&lab.hops, &lab.topology) {
            (Some(hops), _) => {
                let names = Names::at(self.experiment, setting, self.options.quick, &[], id);
                let hops = names.fill(hops)?;
                let count: usize = hops.parse().map_err(|_| ExperimentError::Content {
                    place: "[lab]".to_owned(),
                    situation: format!("`{hops}` is no number of switches"),
                    next_step: "give a number, or a knob with numbers".to_owned(),
                })?;
                (hops, Topology::hops(count))
            }
            (None, Some(topology)) => ("file".to_owned(), topology.clone()),
            (None, None) => return Ok(None),
        };
        if !self.labs.contains_key(&key) {
            self.labs.insert(key.clone(), Lab::up(&topology)?);
            let way = switches_between(&topology, "client", "server");
            if way.len() > self.between.len() {
                self.between = way;
            }
        }
        Ok(Some(key))
    }
}

/// What lies between two hosts of a network, by the shortest way.
fn switches_between(topology: &Topology, from: &str, to: &str) -> Vec<String> {
    let mut ways: Vec<Vec<String>> = vec![vec![from.to_owned()]];
    let mut seen = vec![from.to_owned()];
    while let Some(way) = (!ways.is_empty()).then(|| ways.remove(0)) {
        let end = way.last().cloned().unwrap_or_default();
        if end == to {
            return way[1..way.len() - 1].to_vec();
        }
        for link in &topology.links {
            let [one, other] = &link.between;
            let next = match (*one == end, *other == end) {
                (true, _) => other,
                (_, true) => one,
                _ => continue,
            };
            if !seen.contains(next) {
                seen.push(next.clone());
                let mut longer = way.clone();
                longer.push(next.clone());
                ways.push(longer);
            }
        }
    }
    Vec::new()
}

/// The record of a document, as a type and as JSON; of several runs the last, which is the one that the
/// others are there for.
fn record(document: &Value) -> Option<(Record, Value)> {
    let value = match document["schema"].as_str()? {
        RUN_SCHEMA => document.clone(),
        SET_SCHEMA => document["runs"].as_array()?.last()?.clone(),
        _ => return None,
    };
    let record = serde_json::from_value(value.clone()).ok()?;
    Some((record, value))
}

fn read(figure: &FigureFrom, record: &Value) -> Option<f64> {
    let mut numbers = figure
        .from
        .iter()
        .filter_map(|pointer| record.pointer(pointer)?.as_f64());
    numbers.next().filter(|number| number.is_finite())
}

/// What a command that failed said.
fn why(document: &Value, stderr: &str) -> String {
    let text = |part: &str| document["error"][part].as_str().map(str::to_owned);
    match (text("object"), text("situation")) {
        (Some(object), Some(situation)) => format!("{object}: {situation}"),
        _ => first_line(stderr),
    }
}

/// The figures, each once.
fn figures_of(experiment: &Experiment) -> Vec<FigureOf> {
    let mut figures: Vec<FigureOf> = Vec::new();
    for figure in &experiment.figures {
        if figures.iter().all(|known| known.name != figure.name) {
            figures.push(FigureOf {
                name: figure.name.clone(),
                unit: figure.unit,
                says: figure.says.clone(),
            });
        }
    }
    figures
}

/// All that came out, with what was in the table before.
fn set(
    experiment: &Experiment,
    options: &Options<'_>,
    kept: Vec<Kept>,
    (rootless, between): (bool, Vec<String>),
    started: Timestamp,
    interrupted: bool,
) -> RunSet {
    let mut points: Vec<Point> = kept.iter().map(Kept::point).collect();
    let mut runs: Vec<Record> = kept.into_iter().flat_map(|point| point.runs).collect();
    if let Some(before) = options.before {
        let earlier = before.result.experiment.as_ref();
        let earlier = earlier.map_or(&[][..], |result| &result.points);
        let now: Vec<Setting> = points.iter().map(|point| point.setting.clone()).collect();
        // A point that is measured again takes the place of the earlier one.
        let stays = |point: &&Point| !now.contains(&point.setting);
        let staying: Vec<Point> = earlier.iter().filter(stays).cloned().collect();
        let ids: Vec<&String> = staying.iter().flat_map(|point| &point.runs).collect();
        runs.extend(
            before
                .runs
                .iter()
                .filter(|run| ids.contains(&&run.id))
                .cloned(),
        );
        points.extend(staying);
        let order = |point: &Point| {
            let places = experiment.knobs.iter().map(|knob| {
                let value = point.setting.get(&knob.name);
                knob.values.iter().position(|known| Some(known) == value)
            });
            places.collect::<Vec<_>>()
        };
        points.sort_by_key(order);
    }
    let all: Vec<Setting> = points.iter().map(|point| point.setting.clone()).collect();
    let mut result = ExperimentResult {
        name: experiment.name.clone(),
        title: experiment.title.clone(),
        question: experiment.question.clone(),
        label: options.label.clone(),
        quick: options.quick,
        place: match &options.place {
            Place::Lab => "lab".to_owned(),
            Place::Host(host) => host.clone(),
        },
        between,
        rootless,
        without_root: experiment.without_root.clone(),
        knobs: knobs_of(experiment, &all),
        figures: figures_of(experiment),
        points,
        tables: experiment.tables.clone(),
        plots: experiment.plots.clone(),
        published: Vec::new(),
        shapes: Vec::new(),
    };
    judge(experiment, &mut result, options.cores);
    RunSet {
        schema: SET_SCHEMA.to_owned(),
        id: new_id(started),
        kind: "experiment".to_owned(),
        started,
        interrupted,
        runs,
        result: SetResult {
            experiment: Some(Box::new(result)),
            ..SetResult::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_stand_in_the_order_of_the_way() {
        let topology = Topology::hops(3);
        let between = switches_between(&topology, "client", "server");
        assert_eq!(between.len(), 3, "{between:?}");
        let mut back = switches_between(&topology, "server", "client");
        back.reverse();
        assert_eq!(back, between);
        assert!(switches_between(&topology, "client", "nobody").is_empty());
        assert!(switches_between(&Topology::hops(0), "client", "server").is_empty());
    }
}
