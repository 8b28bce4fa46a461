//! Measurement of single points: labs that stay up in between, remote programs, records.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

use linerate_lab::{Lab, Topology};
use linerate_metric::event::{Problem, WAIT_FOR_IT};
use linerate_metric::exit;
use linerate_metric::experiment::Setting;
use linerate_metric::record::{RUN_SCHEMA, Record};
use linerate_metric::run_set::SET_SCHEMA;
use serde::Deserialize;
use serde_json::Value;

use crate::ExperimentError;
use crate::file::{CommandOf, Experiment, FigureFrom, SkipOf};
use crate::location::{Place, can_ask};
use crate::point::{Names, applies, fits, settings, words_of};
use crate::process::{Ended, Programs, finish, first_line, signal_words, start};
use crate::retry::Failed;
use crate::run::{COMMAND_LIMIT, Kept, Measured, Options};

mod skip_group;

pub(crate) use skip_group::Alike;

/// Placeholder for the address of a host while commands are only analyzed.
const STANDS_FOR: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Manual steps for a point on real hosts.
pub(crate) struct Hands {
    /// Knobs of the network with their values.
    set: Vec<String>,
    /// Commands to start on the remote host, except the server shared by all points.
    start: Vec<String>,
    host: String,
}

impl Hands {
    /// Text such as `set hops=2; on 192.0.2.7 start linerate stack ...`; empty without steps.
    pub(crate) fn words(&self) -> String {
        let set = (!self.set.is_empty()).then(|| format!("set {}", self.set.join(" ")));
        let start = self.start.iter();
        let start = start.map(|command| format!("on {} start `{command}`", self.host));
        let all: Vec<String> = set.into_iter().chain(start).collect();
        all.join("; ")
    }
}

/// Reason why a point is never measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeftOut {
    pub(crate) because: String,
    /// Next step if no other points were selected.
    pub(crate) next_step: String,
    /// Exit code in that case.
    pub(crate) code: u8,
}

impl LeftOut {
    /// First skip condition that applies to a point with this number of CPUs, with or without root.
    fn of(skips: &[SkipOf], setting: &Setting, cores: usize, rootless: bool) -> Option<Self> {
        let skip = skips.iter().find(|skip| {
            let always = skip.cores_below == 0 && !skip.without_root;
            let few = cores < skip.cores_below;
            let lacks = always || few || (skip.without_root && rootless);
            lacks && fits(&skip.setting, setting)
        })?;
        let because = &skip.because;
        let others = "select other points (--point)";
        Some(if skip.cores_below > cores {
            let takes = skip.cores_below;
            Self {
                because: format!("{because} (needs {takes} processors, this machine has {cores})"),
                next_step: format!("{others}, or use a machine with {takes} processors"),
                code: exit::MISSING,
            }
        } else if skip.without_root {
            Self {
                because: format!("{because} (needs root)"),
                next_step: format!("run it as root, or {others}"),
                code: exit::MISSING,
            }
        } else {
            Self {
                because: because.clone(),
                next_step: others.to_owned(),
                code: exit::USAGE,
            }
        })
    }
}

/// Failed measurement of a point.
pub(crate) struct Missed {
    pub(crate) failed: Failed,
    /// Remote command that did not start.
    pub(crate) far_command: Option<CommandOf>,
}

impl Missed {
    /// Failure of a measuring command that ended with this exit code.
    fn by(problem: Problem, code: Option<i32>) -> Self {
        let code = code.and_then(|code| u8::try_from(code).ok());
        Self {
            failed: Failed {
                problem,
                code: code
                    .filter(|&code| code != exit::OK)
                    .unwrap_or(exit::FAILED),
            },
            far_command: None,
        }
    }
}

/// Measures points one by one.
pub(crate) struct Runner<'a> {
    experiment: &'a Experiment,
    options: &'a Options<'a>,
    /// Labs by the key of their network; they stay up until the end.
    labs: BTreeMap<String, Lab>,
    /// Switches of the longest path between client and server so far.
    between: Vec<String>,
    rootless: bool,
    serial: u32,
}

impl Experiment {
    /// Returns the distinct command lines of this program at the selected points, with placeholder
    /// addresses.
    ///
    /// # Errors
    /// [`ExperimentError::Content`] for an unknown name, [`ExperimentError::NoSuchPoint`].
    pub fn command_lines(
        &self,
        quick: bool,
        only: &Setting,
    ) -> Result<Vec<Vec<String>>, ExperimentError> {
        let mut lines: Vec<Vec<String>> = Vec::new();
        for (command, words) in self.commands(quick, only, ".")? {
            if command.run.is_some() && !lines.contains(&words) {
                lines.push(words);
            }
        }
        Ok(lines)
    }

    /// Arguments of all commands at these points, of this program and of others; `dir` is the
    /// results directory.
    fn commands(
        &self,
        quick: bool,
        only: &Setting,
        dir: &str,
    ) -> Result<Vec<(&CommandOf, Vec<String>)>, ExperimentError> {
        let hosts = self.stand_ins();
        let mut all = Vec::new();
        for setting in settings(self, quick, only)? {
            let names = Names::at(self, &setting, quick, &hosts, "1");
            let commands = self.measure.iter().chain(&self.far);
            for command in commands.filter(|command| applies(command, &setting)) {
                all.push((command, names.words(command, dir)?));
            }
        }
        Ok(all)
    }

    /// Returns the names of files in the results directory that the commands name.
    ///
    /// # Errors
    /// As [`Experiment::command_lines`].
    pub fn files_left(&self, quick: bool, only: &Setting) -> Result<Vec<String>, ExperimentError> {
        /// Placeholder for the directory that occurs nowhere else in a command.
        const FOLDER: &str = "\u{1}";
        let inside = format!("{FOLDER}/");
        let mut files = BTreeSet::new();
        for (_, words) in self.commands(quick, only, FOLDER)? {
            // Also inside a port URL: `pcap:tx={dir}/sent.pcap,mtu=9000`.
            let parts = words.iter().flat_map(|word| word.split(&inside).skip(1));
            let ends = |c: char| matches!(c, ',' | ';' | '\'' | '"');
            let named = parts.filter_map(|part| part.split(ends).next());
            files.extend(named.filter(|name| !name.is_empty()).map(str::to_owned));
        }
        Ok(files.into_iter().collect())
    }

    /// Returns the literal addresses in these command lines: they belong to the experiment's own
    /// network.
    ///
    /// # Errors
    /// As [`Experiment::command_lines`].
    pub fn own_addresses(
        &self,
        quick: bool,
        only: &Setting,
    ) -> Result<Vec<IpAddr>, ExperimentError> {
        let lines = self.command_lines(quick, only)?;
        // `10.77.0.9/24` counts too.
        let words = lines
            .iter()
            .flatten()
            .filter_map(|word| word.split('/').next());
        let addresses = words.filter_map(|word| word.parse().ok());
        let own = addresses.filter(|address: &IpAddr| *address != STANDS_FOR);
        Ok(own.collect::<BTreeSet<_>>().into_iter().collect())
    }

    /// Hosts of the experiment, each with a placeholder address.
    fn stand_ins(&self) -> Vec<(String, String)> {
        let hosts = self.hosts().into_iter();
        hosts.map(|name| (name, STANDS_FOR.to_string())).collect()
    }
}

impl<'a> Runner<'a> {
    pub(crate) fn new(
        experiment: &'a Experiment,
        options: &'a Options<'a>,
        rootless: bool,
    ) -> Result<Self, ExperimentError> {
        experiment.check_place(&options.place, options.quick, &options.only)?;
        Ok(Self {
            experiment,
            options,
            labs: BTreeMap::new(),
            between: Vec::new(),
            rootless,
            serial: 0,
        })
    }

    /// Switches of the longest path built.
    pub(crate) fn into_between(self) -> Vec<String> {
        self.between
    }

    /// Reason why a point is not to be measured here.
    pub(crate) fn left_out(&self, setting: &Setting) -> Option<LeftOut> {
        LeftOut::of(
            &self.experiment.skip,
            setting,
            self.options.cores,
            self.rootless,
        )
    }

    /// Command lines on a point's remote host, each with whether it starts `linerate server`.
    fn far_commands(
        &self,
        setting: &Setting,
        names: &Names,
    ) -> Result<Vec<(String, bool)>, ExperimentError> {
        let far = self.experiment.far.iter();
        far.filter(|command| applies(command, setting))
            .map(|command| {
                let words = names.words(command, &self.dir())?.join(" ");
                Ok(match command.run {
                    Some(_) => {
                        let serves = words.split(' ').next() == Some("server");
                        (format!("linerate {words}"), serves)
                    }
                    None => (words, false),
                })
            })
            .collect()
    }

    /// Manual steps for a point; none in a lab.
    pub(crate) fn hands(&self, setting: &Setting) -> Result<Hands, ExperimentError> {
        let Place::Host(far) = &self.options.place else {
            return Ok(Hands {
                set: Vec::new(),
                start: Vec::new(),
                host: String::new(),
            });
        };
        let names = self.names(setting, None, "1");
        let commands = self.far_commands(setting, &names)?.into_iter();
        Ok(Hands {
            set: self.experiment.set_by_hand(setting),
            start: (commands.filter(|(_, serves)| !serves))
                .map(|(command, _)| command)
                .collect(),
            host: far.name.clone(),
        })
    }

    /// Skips points that need a program started manually, if no user can be prompted and the points
    /// differ in it.
    pub(crate) fn leave_to_hands(&self, points: &mut [Kept]) -> Result<(), ExperimentError> {
        if self.options.place == Place::Lab || can_ask() {
            return Ok(());
        }
        let mut all = Vec::new();
        for point in &*points {
            all.push(self.hands(&point.setting)?);
        }
        let started: BTreeSet<String> = all.iter().map(|hands| hands.start.join("; ")).collect();
        if started.len() > 1 {
            for (point, hands) in points.iter_mut().zip(&all) {
                if let Some(command) = hands.start.first() {
                    point.skipped.get_or_insert_with(|| {
                        format!(
                            "{} must run `{command}`: start it there and add the points that use it, --point KNOB=VALUE --label NAME",
                            hands.host
                        )
                    });
                }
            }
        }
        Ok(())
    }

    /// Command line of the server that all points on a real host share, with every grant that they
    /// need.
    pub(crate) fn server_of(&self, points: &[Kept]) -> Option<String> {
        let Place::Host(far) = &self.options.place else {
            return None;
        };
        let mut grants: Vec<String> = Vec::new();
        let mut serves = false;
        for point in points.iter().filter(|point| point.skipped.is_none()) {
            let names = self.names(&point.setting, None, "1");
            for (command, _) in (self.far_commands(&point.setting, &names).ok()?.into_iter())
                .filter(|(_, serves)| *serves)
            {
                serves = true;
                let mut words = command.split(' ').skip_while(|word| *word != "--grant");
                let named = words.nth(1).unwrap_or_default().split(',');
                for grant in named.filter(|grant| !grant.is_empty()) {
                    if !grants.iter().any(|known| known == grant) {
                        grants.push(grant.to_owned());
                    }
                }
            }
        }
        serves.then(|| {
            let mut command = "linerate server".to_owned();
            if let Some(port) = far.port {
                command.push_str(&format!(" -p {port}"));
            }
            if !grants.is_empty() {
                command.push_str(&format!(" --grant {}", grants.join(",")));
            }
            command
        })
    }

    /// Results directory, for commands that write files.
    fn dir(&self) -> String {
        self.options.dir.display().to_string()
    }

    /// Values of `{names}` at a point.
    fn names(&self, setting: &Setting, lab: Option<&Lab>, id: &str) -> Names {
        let hosts: Vec<(String, String)> = match (&self.options.place, lab) {
            (Place::Host(far), _) => vec![
                ("server".to_owned(), far.name.clone()),
                ("client".to_owned(), "127.0.0.1".to_owned()),
            ],
            (_, Some(lab)) => lab
                .hosts()
                .iter()
                .map(|host| (host.name().to_owned(), host.address().to_string()))
                .collect(),
            _ => self.experiment.stand_ins(),
        };
        let names = Names::at(self.experiment, setting, self.options.quick, &hosts, id);
        match &self.options.place {
            Place::Host(far) => names.towards(far),
            Place::Lab => names,
        }
    }

    /// Commands to run around those of a point to reproduce it by hand.
    fn around(&self, setting: &Setting, names: &Names) -> Result<Vec<String>, ExperimentError> {
        let name = &self.experiment.name;
        let mut around = Vec::new();
        if let (Place::Lab, Some(lab)) = (&self.options.place, &self.experiment.lab) {
            around.push(match &lab.hops {
                Some(hops) => format!("linerate lab up --name {name} --hops {}", names.fill(hops)?),
                None => format!(
                    "linerate run {} --print-lab > lab.toml; linerate lab up --name {name} lab.toml",
                    self.options.file
                ),
            });
        }
        let far = self.experiment.far.iter();
        for command in far.filter(|command| applies(command, setting)) {
            let words = names.words(command, &self.dir())?.join(" ");
            let program = if command.run.is_some() {
                "linerate "
            } else {
                ""
            };
            let line = format!("{program}{words}");
            around.push(match &self.options.place {
                Place::Host(far) => format!("on {}: {line}", far.name),
                Place::Lab => format!("{} &", self.on_host(&command.host, &line)),
            });
        }
        Ok(around)
    }

    /// Command line as typed for a host of the experiment's lab; unchanged without a lab.
    fn on_host(&self, host: &str, line: &str) -> String {
        let name = &self.experiment.name;
        match (&self.options.place, &self.experiment.lab) {
            (Place::Lab, Some(_)) => format!("linerate lab exec {name}/{host} -- {line}"),
            _ => line.to_owned(),
        }
    }

    /// Returns whether the run was stopped.
    pub(crate) fn is_stopped(&self) -> bool {
        self.options.stop.load(Relaxed)
    }

    /// Setting as text.
    pub(crate) fn words_of(&self, setting: &Setting) -> String {
        words_of(self.experiment, setting)
    }

    /// Returns whether each point still to be measured runs this same command on the remote host.
    pub(crate) fn is_at_every_point(
        &self,
        command: &CommandOf,
        points: &[Kept],
    ) -> Result<bool, ExperimentError> {
        let mut lines: Vec<Vec<String>> = Vec::new();
        for point in points.iter().filter(|point| point.skipped.is_none()) {
            if !applies(command, &point.setting) {
                return Ok(false);
            }
            let words = self.names(&point.setting, None, "1").words(command, ".")?;
            lines.push(words);
        }
        Ok(lines.windows(2).all(|pair| pair[0] == pair[1]))
    }

    /// Figures of a measured point with their values as text.
    pub(crate) fn figures_of(&self, measured: &Measured) -> Vec<(String, String)> {
        let mut figures: Vec<(String, String)> = Vec::new();
        for figure in &self.experiment.figures {
            if let Some(&value) = measured.values.get(&figure.name)
                && figures.iter().all(|(name, _)| *name != figure.name)
            {
                figures.push((figure.name.clone(), figure.unit.format(value)));
            }
        }
        figures
    }

    /// Measures a point once; the inner error is the failure of the point.
    pub(crate) fn measure(
        &mut self,
        setting: &Setting,
        round: u32,
    ) -> Result<Result<Measured, Missed>, ExperimentError> {
        self.serial += 1;
        let id = format!("{}-{}", std::process::id(), self.serial);
        let lab = match &self.options.place {
            Place::Lab => self.lab(setting, &id)?,
            Place::Host(_) => None,
        };
        let measured = self.measure_in(lab.as_deref(), setting, round, &id)?;
        let broken = lab.and_then(|key| {
            let broken = self.labs[&key].check_links().err()?;
            // The next point that needs this network gets a new lab.
            self.labs.remove(&key);
            Some(ExperimentError::from(broken))
        });
        Ok(match broken {
            // The result is invalid: the network was not the requested one.
            Some(error) => Err(Missed::by(error.problem(), Some(error.exit_code().into()))),
            None => measured,
        })
    }

    /// Measures a point in a network that is up.
    fn measure_in(
        &self,
        lab: Option<&str>,
        setting: &Setting,
        round: u32,
        id: &str,
    ) -> Result<Result<Measured, Missed>, ExperimentError> {
        let lab = lab.map(|key| &self.labs[key]);
        let names = self.names(setting, lab, id);
        let place = |host: &str| lab.map(|lab| lab.host(host)).transpose();
        let mut running = Programs::default();
        let far = self.experiment.far.iter();
        for command in far.filter(|command| applies(command, setting)) {
            if matches!(self.options.place, Place::Host(_)) {
                continue;
            }
            let mut words = names.words(command, &self.dir())?;
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
                self.options.stop,
            ) {
                Ok(started) => running.push(started),
                Err(error @ ExperimentError::Far { .. }) => {
                    return Ok(Err(Missed {
                        failed: Failed {
                            problem: error.problem(),
                            code: error.exit_code(),
                        },
                        far_command: Some(command.clone()),
                    }));
                }
                Err(error) => return Err(error),
            }
        }
        let mut commands = Vec::new();
        let mut found = BTreeMap::new();
        let mut runs = Vec::new();
        let measures = self.experiment.measure.iter();
        for command in measures.filter(|command| applies(command, setting)) {
            let mut words = names.words(command, &self.dir())?;
            let line = format!("linerate {}", words.join(" "));
            commands.push(self.on_host(&command.host, &line));
            let form = match self.options.listener {
                Some(_) => "--json-stream",
                None => "--json",
            };
            words.extend([form.to_owned(), "--no-store".to_owned()]);
            let host = place(&command.host)?;
            let ended = finish(
                host,
                &self.options.program,
                &words,
                COMMAND_LIMIT,
                self.options.stop,
                self.options.listener.as_ref(),
            )?;
            let document: Value = serde_json::from_str(ended.stdout.trim()).unwrap_or(Value::Null);
            if ended.code != Some(i32::from(exit::OK)) {
                let problem = why(&document, &ended, &line);
                return Ok(Err(Missed::by(problem, ended.code)));
            }
            let Some((mut record, value)) = record(&document) else {
                let next = "run it by hand to see its output";
                let problem = Problem::new("it returned no record", line, next);
                return Ok(Err(Missed::by(problem, None)));
            };
            record.label = Some(words_of(self.experiment, setting));
            for figure in &self.experiment.figures {
                if fits(&figure.when, setting)
                    && let Some(number) = read(figure, &value)
                {
                    found.entry(figure.name.clone()).or_insert(number);
                }
            }
            runs.push(record);
        }
        drop(running);
        Ok(Ok(Measured {
            round,
            setting: setting.clone(),
            commands,
            around: self.around(setting, &names)?,
            values: found,
            runs,
            distance: None,
        }))
    }

    /// Network of a point with its key; `None` if commands run without a lab.
    fn network(
        &self,
        setting: &Setting,
        id: &str,
    ) -> Result<Option<(String, Topology)>, ExperimentError> {
        let Some(lab) = &self.experiment.lab else {
            return Ok(None);
        };
        Ok(match (&lab.hops, &lab.topology) {
            (Some(hops), _) => {
                let names = Names::at(self.experiment, setting, self.options.quick, &[], id);
                let hops = names.fill(hops)?;
                let count: usize = hops.parse().map_err(|_| {
                    ExperimentError::content(
                        "[lab]",
                        format!("`{hops}` is not a valid number of switches"),
                        "give a number, or a knob with numbers",
                    )
                })?;
                Some((hops, Topology::hops(count)))
            }
            (None, Some(topology)) => Some(("file".to_owned(), topology.clone())),
            (None, None) => None,
        })
    }

    /// Brings up the network of a point and returns its key; `None` if commands run without a lab.
    fn lab(&mut self, setting: &Setting, id: &str) -> Result<Option<String>, ExperimentError> {
        let Some((key, topology)) = self.network(setting, id)? else {
            return Ok(None);
        };
        if !self.labs.contains_key(&key) {
            self.labs.insert(key.clone(), Lab::up(&topology)?);
            self.note(&topology);
        }
        Ok(Some(key))
    }

    /// Adds the switches of a point that an earlier process measured.
    pub(crate) fn note_way(&mut self, setting: &Setting) -> Result<(), ExperimentError> {
        if self.options.place == Place::Lab
            && let Some((_, topology)) = self.network(setting, "1")?
        {
            self.note(&topology);
        }
        Ok(())
    }

    fn note(&mut self, topology: &Topology) {
        let way = switches_between(topology, "client", "server");
        if way.len() > self.between.len() {
            self.between = way;
        }
    }
}

/// Nodes between two hosts on the shortest path.
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

/// Record of an output document, as a type and as JSON; the last one of several runs, which is the
/// main one.
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

/// Error that a failed command reported, or a description of how it ended.
fn why(document: &Value, ended: &Ended, command: &str) -> Problem {
    if let Ok(mut problem) = Problem::deserialize(&document["error"]) {
        // The experiment retries by itself, and its commands are fixed in its file.
        problem.next_step = problem.next_step.replace(WAIT_FOR_IT, "");
        return problem;
    }
    let object = format!("`{command}`");
    match ended.signal {
        _ if ended.late => Problem::new(
            format!("took more than {} s and was ended", COMMAND_LIMIT.as_secs()),
            object,
            "measure less at once: a shorter -t, a smaller -n",
        ),
        Some(signal) => Problem::new(
            signal_words(signal),
            object,
            "run it by hand; if the kernel killed it, `dmesg` shows the reason",
        ),
        None => Problem::new(
            first_line(&ended.stderr),
            object,
            "run it by hand to see its output",
        ),
    }
}

#[cfg(test)]
mod tests;
