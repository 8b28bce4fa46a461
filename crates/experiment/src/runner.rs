//! Measurement of single points: labs that stay up in between, remote programs, records.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use linerate_lab::{Lab, Topology};
use linerate_record::event::{ErrorReport, RETRY_HINT};
use linerate_record::exit_codes;
use linerate_record::experiment::KnobValues;
use linerate_record::record::{RUN_SCHEMA, Record};
use linerate_record::run_set::SET_SCHEMA;
use serde::Deserialize;
use serde_json::Value;

use crate::ExperimentError;
use crate::file::{Experiment, ExperimentCommand, FigureSource, SkipCondition};
use crate::location::{RunLocation, has_terminal};
use crate::point::{NameValues, applies_at, describe_setting, has_values, selected_settings};
use crate::point_state::{PointMeasurement, PointState};
use crate::process::{
    ProgramResult, RunningPrograms, describe_signal, first_output_line, run_to_end, start_program,
};
use crate::retry::PointFailure;
use crate::run_options::RunOptions;

mod skip_group;

/// Time limit of one command: more than ten times what any built-in experiment needs.
const COMMAND_TIME_LIMIT: Duration = Duration::from_secs(180);

/// Placeholder for the address of a host while commands are only analyzed.
const PLACEHOLDER_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Manual steps for a point on real hosts.
pub(crate) struct ManualSteps {
    /// Knobs of the network with their values.
    settings: Vec<String>,
    /// Commands to start on the remote host, except the server shared by all points.
    start_commands: Vec<String>,
    host: String,
}

impl ManualSteps {
    /// Text such as `set hops=2; on 192.0.2.7 start linerate stack ...`; empty without steps.
    pub(crate) fn describe(&self) -> String {
        let settings =
            (!self.settings.is_empty()).then(|| format!("set {}", self.settings.join(" ")));
        let start_commands = self.start_commands.iter();
        let start_commands =
            start_commands.map(|command| format!("on {} start `{command}`", self.host));
        let steps: Vec<String> = settings.into_iter().chain(start_commands).collect();
        steps.join("; ")
    }
}

/// Reason why a point is never measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PointExclusion {
    pub(crate) reason: String,
    /// Next step if no other points were selected.
    pub(crate) next_step: String,
    /// Exit code in that case.
    pub(crate) exit_code: u8,
}

impl PointExclusion {
    /// First skip condition that applies to a point with this number of CPUs, with or without root.
    fn find(
        skips: &[SkipCondition],
        setting: &KnobValues,
        cores: usize,
        rootless: bool,
    ) -> Option<Self> {
        let skip = skips.iter().find(|skip| {
            let is_always = skip.cores_below == 0 && !skip.without_root;
            let has_too_few = cores < skip.cores_below;
            let is_missing = is_always || has_too_few || (skip.without_root && rootless);
            is_missing && has_values(&skip.setting, setting)
        })?;
        let reason = &skip.reason;
        let select_others = "select other points (--point)";
        Some(if skip.cores_below > cores {
            let required = skip.cores_below;
            Self {
                reason: format!("{reason} (needs {required} CPUs, this machine has {cores})"),
                next_step: format!("{select_others}, or use a machine with {required} CPUs"),
                exit_code: exit_codes::MISSING,
            }
        } else if skip.without_root {
            Self {
                reason: format!("{reason} (needs root)"),
                next_step: format!("run it as root, or {select_others}"),
                exit_code: exit_codes::MISSING,
            }
        } else {
            Self {
                reason: reason.clone(),
                next_step: select_others.to_owned(),
                exit_code: exit_codes::USAGE,
            }
        })
    }
}

/// Failed measurement of a point.
pub(crate) struct FailedMeasurement {
    pub(crate) failure: PointFailure,
    /// Remote command that did not start.
    pub(crate) remote_command: Option<ExperimentCommand>,
}

impl FailedMeasurement {
    /// Failure of a measuring command that ended with this exit code.
    fn by_command(problem: ErrorReport, exit_code: Option<i32>) -> Self {
        let exit_code = exit_code.and_then(|exit_code| u8::try_from(exit_code).ok());
        Self {
            failure: PointFailure {
                problem,
                exit_code: exit_code
                    .filter(|&exit_code| exit_code != exit_codes::OK)
                    .unwrap_or(exit_codes::FAILED),
            },
            remote_command: None,
        }
    }
}

/// Measures points one by one.
pub(crate) struct PointRunner<'a> {
    experiment: &'a Experiment,
    options: &'a RunOptions<'a>,
    /// Labs by the key of their network; they stay up until the end.
    labs: BTreeMap<String, Lab>,
    /// Switches of the longest path between client and server so far.
    switches: Vec<String>,
    rootless: bool,
    serial: u32,
}

impl Experiment {
    /// Returns the distinct command lines of this program at the selected points, with placeholder
    /// addresses.
    ///
    /// # Errors
    /// [`ExperimentError::InvalidContent`] for an unknown name, [`ExperimentError::UnknownPoint`].
    pub fn command_lines(
        &self,
        quick: bool,
        only: &KnobValues,
    ) -> Result<Vec<Vec<String>>, ExperimentError> {
        let mut lines: Vec<Vec<String>> = Vec::new();
        for (command, args) in self.expand_commands(quick, only, ".")? {
            if command.linerate_args.is_some() && !lines.contains(&args) {
                lines.push(args);
            }
        }
        Ok(lines)
    }

    /// Arguments of all commands at these points, of this program and of others; `dir` is the
    /// results directory.
    fn expand_commands(
        &self,
        quick: bool,
        only: &KnobValues,
        dir: &str,
    ) -> Result<Vec<(&ExperimentCommand, Vec<String>)>, ExperimentError> {
        let hosts = self.placeholder_hosts();
        let mut expanded = Vec::new();
        for setting in selected_settings(self, quick, only)? {
            let names = NameValues::at_point(self, &setting, quick, &hosts, "1");
            let commands = self.measure.iter().chain(&self.remote_programs);
            for command in commands.filter(|command| applies_at(command, &setting)) {
                expanded.push((command, names.command_args(command, dir)?));
            }
        }
        Ok(expanded)
    }

    /// Returns the names of files in the results directory that the commands name.
    ///
    /// # Errors
    /// As [`Experiment::command_lines`].
    pub fn output_files(
        &self,
        quick: bool,
        only: &KnobValues,
    ) -> Result<Vec<String>, ExperimentError> {
        /// Placeholder for the directory that occurs nowhere else in a command.
        const DIR_MARKER: &str = "\u{1}";
        let dir_prefix = format!("{DIR_MARKER}/");
        let mut files = BTreeSet::new();
        for (_, args) in self.expand_commands(quick, only, DIR_MARKER)? {
            // Also inside a port URL: `pcap:tx={dir}/sent.pcap,mtu=9000`.
            let texts = args.iter().flat_map(|arg| arg.split(&dir_prefix).skip(1));
            let is_end = |c: char| matches!(c, ',' | ';' | '\'' | '"');
            let file_names = texts.filter_map(|part| part.split(is_end).next());
            files.extend(
                file_names
                    .filter(|name| !name.is_empty())
                    .map(str::to_owned),
            );
        }
        Ok(files.into_iter().collect())
    }

    /// Returns the literal addresses in these command lines: they belong to the experiment's own
    /// network.
    ///
    /// # Errors
    /// As [`Experiment::command_lines`].
    pub fn literal_addresses(
        &self,
        quick: bool,
        only: &KnobValues,
    ) -> Result<Vec<IpAddr>, ExperimentError> {
        let lines = self.command_lines(quick, only)?;
        // `10.77.0.9/24` counts too.
        let args = lines
            .iter()
            .flatten()
            .filter_map(|arg| arg.split('/').next());
        let addresses = args.filter_map(|arg| arg.parse().ok());
        let literal = addresses.filter(|address: &IpAddr| *address != PLACEHOLDER_ADDRESS);
        Ok(literal.collect::<BTreeSet<_>>().into_iter().collect())
    }

    /// Hosts of the experiment, each with a placeholder address.
    fn placeholder_hosts(&self) -> Vec<(String, String)> {
        let hosts = self.host_names().into_iter();
        hosts
            .map(|name| (name, PLACEHOLDER_ADDRESS.to_string()))
            .collect()
    }
}

impl<'a> PointRunner<'a> {
    pub(crate) fn new(
        experiment: &'a Experiment,
        options: &'a RunOptions<'a>,
        rootless: bool,
    ) -> Result<Self, ExperimentError> {
        experiment.check_location(&options.location, options.quick, &options.at_points)?;
        Ok(Self {
            experiment,
            options,
            labs: BTreeMap::new(),
            switches: Vec::new(),
            rootless,
            serial: 0,
        })
    }

    /// Switches of the longest path built.
    pub(crate) fn into_switches(self) -> Vec<String> {
        self.switches
    }

    /// Reason why a point is not to be measured here.
    pub(crate) fn exclusion(&self, setting: &KnobValues) -> Option<PointExclusion> {
        PointExclusion::find(
            &self.experiment.skip,
            setting,
            self.options.cores,
            self.rootless,
        )
    }

    /// Command lines on a point's remote host, each with whether it starts `linerate server`.
    fn remote_commands(
        &self,
        setting: &KnobValues,
        names: &NameValues,
    ) -> Result<Vec<(String, bool)>, ExperimentError> {
        let remote = self.experiment.remote_programs.iter();
        remote
            .filter(|command| applies_at(command, setting))
            .map(|command| {
                let args = names.command_args(command, &self.results_dir())?.join(" ");
                Ok(match command.linerate_args {
                    Some(_) => {
                        let is_server = args.split(' ').next() == Some("server");
                        (format!("linerate {args}"), is_server)
                    }
                    None => (args, false),
                })
            })
            .collect()
    }

    /// Manual steps for a point; none in a lab.
    pub(crate) fn manual_steps(
        &self,
        setting: &KnobValues,
    ) -> Result<ManualSteps, ExperimentError> {
        let RunLocation::Host(remote) = &self.options.location else {
            return Ok(ManualSteps {
                settings: Vec::new(),
                start_commands: Vec::new(),
                host: String::new(),
            });
        };
        let names = self.name_values(setting, None, "1");
        let commands = self.remote_commands(setting, &names)?.into_iter();
        Ok(ManualSteps {
            settings: self.experiment.manual_settings(setting),
            start_commands: (commands.filter(|(_, is_server)| !is_server))
                .map(|(command, _)| command)
                .collect(),
            host: remote.name.clone(),
        })
    }

    /// Skips points that need a program started manually, if no user can be prompted and the points
    /// differ in it.
    pub(crate) fn skip_manual_points(
        &self,
        points: &mut [PointState],
    ) -> Result<(), ExperimentError> {
        if self.options.location == RunLocation::Lab || has_terminal() {
            return Ok(());
        }
        let mut manual_steps = Vec::new();
        for point in &*points {
            manual_steps.push(self.manual_steps(&point.setting)?);
        }
        let started: BTreeSet<String> = manual_steps
            .iter()
            .map(|steps| steps.start_commands.join("; "))
            .collect();
        if started.len() > 1 {
            for (point, steps) in points.iter_mut().zip(&manual_steps) {
                if let Some(command) = steps.start_commands.first() {
                    point.skip_reason.get_or_insert_with(|| {
                        format!(
                            "{} must run `{command}`: start it there and add the points that use it, --point KNOB=VALUE --label NAME",
                            steps.host
                        )
                    });
                }
            }
        }
        Ok(())
    }

    /// Command line of the server that all points on a real host share, with every grant that they
    /// need.
    pub(crate) fn server_command(&self, points: &[PointState]) -> Option<String> {
        let RunLocation::Host(remote) = &self.options.location else {
            return None;
        };
        let mut grants: Vec<String> = Vec::new();
        let mut is_server = false;
        for point in points.iter().filter(|point| point.skip_reason.is_none()) {
            let names = self.name_values(&point.setting, None, "1");
            for (command, _) in (self
                .remote_commands(&point.setting, &names)
                .ok()?
                .into_iter())
            .filter(|(_, is_server)| *is_server)
            {
                is_server = true;
                let mut args = command.split(' ').skip_while(|arg| *arg != "--grant");
                let granted = args.nth(1).unwrap_or_default().split(',');
                for grant in granted.filter(|grant| !grant.is_empty()) {
                    if !grants.iter().any(|listed| listed == grant) {
                        grants.push(grant.to_owned());
                    }
                }
            }
        }
        is_server.then(|| {
            let mut command = "linerate server".to_owned();
            if let Some(port) = remote.port {
                command.push_str(&format!(" -p {port}"));
            }
            if !grants.is_empty() {
                command.push_str(&format!(" --grant {}", grants.join(",")));
            }
            command
        })
    }

    /// Results directory, for commands that write files.
    fn results_dir(&self) -> String {
        self.options.results_dir.display().to_string()
    }

    /// Values of `{name}` at a point.
    fn name_values(&self, setting: &KnobValues, lab: Option<&Lab>, id: &str) -> NameValues {
        let hosts: Vec<(String, String)> = match (&self.options.location, lab) {
            (RunLocation::Host(remote), _) => vec![
                ("server".to_owned(), remote.name.clone()),
                ("client".to_owned(), "127.0.0.1".to_owned()),
            ],
            (_, Some(lab)) => lab
                .hosts()
                .iter()
                .map(|host| (host.name().to_owned(), host.address().to_string()))
                .collect(),
            _ => self.experiment.placeholder_hosts(),
        };
        let names = NameValues::at_point(self.experiment, setting, self.options.quick, &hosts, id);
        match &self.options.location {
            RunLocation::Host(remote) => names.with_remote_host(remote),
            RunLocation::Lab => names,
        }
    }

    /// Commands to run around those of a point to reproduce it by hand.
    fn setup_commands(
        &self,
        setting: &KnobValues,
        names: &NameValues,
    ) -> Result<Vec<String>, ExperimentError> {
        let name = &self.experiment.name;
        let mut setup_commands = Vec::new();
        if let (RunLocation::Lab, Some(lab)) = (&self.options.location, &self.experiment.lab) {
            setup_commands.push(match &lab.hops {
                Some(hops) => format!("linerate lab up --name {name} --hops {}", names.replace_all(hops)?),
                None => format!(
                    "linerate run {} --print-lab > lab.toml; linerate lab up --name {name} lab.toml",
                    self.options.experiment_arg
                ),
            });
        }
        let remote = self.experiment.remote_programs.iter();
        for command in remote.filter(|command| applies_at(command, setting)) {
            let args = names.command_args(command, &self.results_dir())?.join(" ");
            let program = if command.linerate_args.is_some() {
                "linerate "
            } else {
                ""
            };
            let line = format!("{program}{args}");
            setup_commands.push(match &self.options.location {
                RunLocation::Host(remote) => format!("on {}: {line}", remote.name),
                RunLocation::Lab => format!("{} &", self.host_command_line(&command.host, &line)),
            });
        }
        Ok(setup_commands)
    }

    /// Command line as typed for a host of the experiment's lab; unchanged without a lab.
    fn host_command_line(&self, host: &str, line: &str) -> String {
        let name = &self.experiment.name;
        match (&self.options.location, &self.experiment.lab) {
            (RunLocation::Lab, Some(_)) => format!("linerate lab exec {name}/{host} -- {line}"),
            _ => line.to_owned(),
        }
    }

    /// Returns whether the run was stopped.
    pub(crate) fn is_stopped(&self) -> bool {
        self.options.stop.load(Relaxed)
    }

    /// Setting as text.
    pub(crate) fn describe_setting(&self, setting: &KnobValues) -> String {
        describe_setting(self.experiment, setting)
    }

    /// Returns whether each point still to be measured runs this same command on the remote host.
    pub(crate) fn is_at_every_point(
        &self,
        command: &ExperimentCommand,
        points: &[PointState],
    ) -> Result<bool, ExperimentError> {
        let mut lines: Vec<Vec<String>> = Vec::new();
        for point in points.iter().filter(|point| point.skip_reason.is_none()) {
            if !applies_at(command, &point.setting) {
                return Ok(false);
            }
            let args = self
                .name_values(&point.setting, None, "1")
                .command_args(command, ".")?;
            lines.push(args);
        }
        Ok(lines.windows(2).all(|pair| pair[0] == pair[1]))
    }

    /// Figures of a measured point with their values as text.
    pub(crate) fn format_figures(&self, measured: &PointMeasurement) -> Vec<(String, String)> {
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
        setting: &KnobValues,
        round: u32,
    ) -> Result<Result<PointMeasurement, FailedMeasurement>, ExperimentError> {
        self.serial += 1;
        let id = format!("{}-{}", std::process::id(), self.serial);
        let lab = match &self.options.location {
            RunLocation::Lab => self.bring_up_lab(setting, &id)?,
            RunLocation::Host(_) => None,
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
            Some(error) => Err(FailedMeasurement::by_command(
                error.to_report(),
                Some(error.exit_code().into()),
            )),
            None => measured,
        })
    }

    /// Measures a point in a network that is up.
    fn measure_in(
        &self,
        lab: Option<&str>,
        setting: &KnobValues,
        round: u32,
        id: &str,
    ) -> Result<Result<PointMeasurement, FailedMeasurement>, ExperimentError> {
        let lab = lab.map(|key| &self.labs[key]);
        let names = self.name_values(setting, lab, id);
        let lab_host = |host: &str| lab.map(|lab| lab.host(host)).transpose();
        let mut running = RunningPrograms::default();
        let remote = self.experiment.remote_programs.iter();
        for command in remote.filter(|command| applies_at(command, setting)) {
            if matches!(self.options.location, RunLocation::Host(_)) {
                continue;
            }
            let mut args = names.command_args(command, &self.results_dir())?;
            let program = match command.linerate_args {
                Some(_) => self.options.program.clone(),
                None if args.is_empty() => continue,
                None => PathBuf::from(args.remove(0)),
            };
            match start_program(
                lab_host(&command.host)?,
                &program,
                &args,
                command.ready_prefix.as_deref(),
                self.options.stop,
            ) {
                Ok(started) => running.push(started),
                Err(error @ ExperimentError::RemoteProgram { .. }) => {
                    return Ok(Err(FailedMeasurement {
                        failure: PointFailure {
                            problem: error.to_report(),
                            exit_code: error.exit_code(),
                        },
                        remote_command: Some(command.clone()),
                    }));
                }
                Err(error) => return Err(error),
            }
        }
        let mut commands = Vec::new();
        let mut values = BTreeMap::new();
        let mut runs = Vec::new();
        let measures = self.experiment.measure.iter();
        for command in measures.filter(|command| applies_at(command, setting)) {
            let mut args = names.command_args(command, &self.results_dir())?;
            let line = format!("linerate {}", args.join(" "));
            commands.push(self.host_command_line(&command.host, &line));
            let json_option = match self.options.listener {
                Some(_) => "--json-stream",
                None => "--json",
            };
            args.extend([json_option.to_owned(), "--no-store".to_owned()]);
            let host = lab_host(&command.host)?;
            let result = run_to_end(
                host,
                &self.options.program,
                &args,
                COMMAND_TIME_LIMIT,
                self.options.stop,
                self.options.listener.as_ref(),
            )?;
            let document: Value = serde_json::from_str(result.stdout.trim()).unwrap_or(Value::Null);
            if result.code != Some(i32::from(exit_codes::OK)) {
                let problem = failure_report(&document, &result, &line);
                return Ok(Err(FailedMeasurement::by_command(problem, result.code)));
            }
            let Some((mut record, value)) = parse_record(&document) else {
                let next_step = "run it by hand to see its output";
                let problem = ErrorReport::new("it returned no record", line, next_step);
                return Ok(Err(FailedMeasurement::by_command(problem, None)));
            };
            record.label = Some(describe_setting(self.experiment, setting));
            for figure in &self.experiment.figures {
                if has_values(&figure.at_points, setting)
                    && let Some(number) = read_figure(figure, &value)
                {
                    values.entry(figure.name.clone()).or_insert(number);
                }
            }
            runs.push(record);
        }
        drop(running);
        Ok(Ok(PointMeasurement {
            round,
            setting: setting.clone(),
            commands,
            setup_commands: self.setup_commands(setting, &names)?,
            values,
            runs,
            distance: None,
        }))
    }

    /// Network of a point with its key; `None` if commands run without a lab.
    fn network(
        &self,
        setting: &KnobValues,
        id: &str,
    ) -> Result<Option<(String, Topology)>, ExperimentError> {
        let Some(lab) = &self.experiment.lab else {
            return Ok(None);
        };
        Ok(match (&lab.hops, &lab.topology) {
            (Some(hops), _) => {
                let names =
                    NameValues::at_point(self.experiment, setting, self.options.quick, &[], id);
                let hops = names.replace_all(hops)?;
                let count: usize = hops.parse().map_err(|_| {
                    ExperimentError::invalid_content(
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
    fn bring_up_lab(
        &mut self,
        setting: &KnobValues,
        id: &str,
    ) -> Result<Option<String>, ExperimentError> {
        let Some((key, topology)) = self.network(setting, id)? else {
            return Ok(None);
        };
        if !self.labs.contains_key(&key) {
            self.labs.insert(key.clone(), Lab::up(&topology)?);
            self.update_switches(&topology);
        }
        Ok(Some(key))
    }

    /// Adds the switches of a point that an earlier process measured.
    pub(crate) fn add_switches_of(&mut self, setting: &KnobValues) -> Result<(), ExperimentError> {
        if self.options.location == RunLocation::Lab
            && let Some((_, topology)) = self.network(setting, "1")?
        {
            self.update_switches(&topology);
        }
        Ok(())
    }

    fn update_switches(&mut self, topology: &Topology) {
        let path = switches_between(topology, "client", "server");
        if path.len() > self.switches.len() {
            self.switches = path;
        }
    }
}

/// Nodes between two hosts on the shortest path.
fn switches_between(topology: &Topology, from: &str, to: &str) -> Vec<String> {
    let mut paths: Vec<Vec<String>> = vec![vec![from.to_owned()]];
    let mut visited = vec![from.to_owned()];
    while let Some(path) = (!paths.is_empty()).then(|| paths.remove(0)) {
        let last_node = path.last().cloned().unwrap_or_default();
        if last_node == to {
            return path[1..path.len() - 1].to_vec();
        }
        for link in &topology.links {
            let [first_end, second_end] = &link.between;
            let next = match (*first_end == last_node, *second_end == last_node) {
                (true, _) => second_end,
                (_, true) => first_end,
                _ => continue,
            };
            if !visited.contains(next) {
                visited.push(next.clone());
                let mut longer = path.clone();
                longer.push(next.clone());
                paths.push(longer);
            }
        }
    }
    Vec::new()
}

/// Record of an output document, as a type and as JSON; the last one of several runs, which is the
/// main one.
fn parse_record(document: &Value) -> Option<(Record, Value)> {
    let value = match document["schema"].as_str()? {
        RUN_SCHEMA => document.clone(),
        SET_SCHEMA => document["runs"].as_array()?.last()?.clone(),
        _ => return None,
    };
    let record = serde_json::from_value(value.clone()).ok()?;
    Some((record, value))
}

fn read_figure(figure: &FigureSource, record: &Value) -> Option<f64> {
    let mut numbers = figure
        .pointers
        .iter()
        .filter_map(|pointer| record.pointer(pointer)?.as_f64());
    numbers.next().filter(|number| number.is_finite())
}

/// Error that a failed command reported, or a description of how it ended.
fn failure_report(document: &Value, result: &ProgramResult, command: &str) -> ErrorReport {
    if let Ok(mut problem) = ErrorReport::deserialize(&document["error"]) {
        // The experiment retries by itself, and its commands are fixed in its file.
        problem.next_step = problem.next_step.replace(RETRY_HINT, "");
        return problem;
    }
    let object = format!("`{command}`");
    match result.signal {
        _ if result.timed_out => ErrorReport::new(
            format!(
                "took more than {} s and was ended",
                COMMAND_TIME_LIMIT.as_secs()
            ),
            object,
            "measure less at once: a shorter -t, a smaller -n",
        ),
        Some(signal) => ErrorReport::new(
            describe_signal(signal),
            object,
            "run it by hand; if the kernel killed it, `dmesg` shows the reason",
        ),
        None => ErrorReport::new(
            first_output_line(&result.stderr),
            object,
            "run it by hand to see its output",
        ),
    }
}

#[cfg(test)]
mod tests;
