//! Setting knobs, and restoring all of them.

use std::collections::BTreeMap;
use std::time::Duration;

use linerate_host::stop_flag::StopFlag;
use linerate_record::event::ErrorReport;
use linerate_record::exit_codes;
use linerate_session::client_stack::try_in_order;
use linerate_session::remote_settings::RemoteSettings;
use linerate_stats::units::ByteSize;
use linerate_tune::guard::{RollbackGuard, SettingKey};
use linerate_tune::journal::state_dir;
use linerate_tune::knob::{COMMAND_TIMEOUT_S, DEFAULT_VALUE, Knob, KnobTarget};
use linerate_tune::search::SearchPoint;
use linerate_tune::snippet::KnobChange;

use crate::failure::{CommandFailure, SeriesEnd};
use crate::knobs::{AvailableKnobs, is_default};
use crate::output::CommandOutput;
use crate::standard_streams::stop_without_reader;
use crate::tunable_hosts::TunableHosts;
use crate::{child_process, shell_words, tunable_hosts};

/// Knobs with the means to set them.
pub struct KnobApplier<'a> {
    /// Knobs; a point holds the index of a value for each.
    pub knobs: Vec<Knob>,
    hosts: &'a TunableHosts,
    may_change: bool,
    remote: Option<RemoteSettings>,
    guard: RollbackGuard<&'a TunableHosts>,
    stop: &'a StopFlag,
    /// Current value by knob name; absent if never set, `None` if the last change failed halfway.
    current: BTreeMap<String, Option<String>>,
}

impl<'a> KnobApplier<'a> {
    /// Creates it without changing a setting. If a knob of the remote host is among the knobs, its
    /// server must permit that.
    ///
    /// # Errors
    /// Returns the server's rejection, or that a journal cannot be written.
    pub fn new(
        knobs: Vec<Knob>,
        available: &'a AvailableKnobs,
        command: &[String],
        stop: &'a StopFlag,
    ) -> Result<Self, CommandFailure> {
        let mut guard = tunable_hosts::new_guard(&available.hosts, state_dir("tune"));
        // Options need no journal. For other knobs, each value would fail as if it did not help.
        if knobs.iter().any(needs_journal) {
            guard
                .create_journal()
                .map_err(|error| journal_failed(&error))?;
            stop_without_reader(stop);
        }
        let remote_name = knobs.iter().find_map(|knob| match &knob.target {
            KnobTarget::RemoteSysctl(name) => Some(name),
            _ => None,
        });
        let remote = match remote_name {
            Some(name) => Some(open_remote_settings(command, name)?),
            None => None,
        };
        Ok(Self {
            knobs,
            hosts: &available.hosts,
            may_change: available.may_change,
            remote,
            guard,
            stop,
            current: BTreeMap::new(),
        })
    }

    /// Returns the measuring command with the options of a point.
    ///
    /// # Errors
    /// Fails if the command has no such option.
    pub fn measuring_command(
        &self,
        args: &[String],
        point: &SearchPoint,
    ) -> Result<Vec<String>, CommandFailure> {
        let mut args = args.to_vec();
        for (knob, &value) in self.knobs.iter().zip(point) {
            let value = knob.values[value].as_str();
            match &knob.target {
                KnobTarget::Option(option) if !is_default(value) => {
                    shell_words::set_option(&mut args, option, value)?;
                }
                KnobTarget::StackKey(key) if !is_default(value) => {
                    args.push(format!("--set={key}={value}"));
                }
                // One point of an experiment is measured: each of its knobs is named.
                KnobTarget::Point => args.push(format!("--point={}={value}", knob.name)),
                _ => {}
            }
        }
        Ok(args)
    }

    /// Applies the settings that are not options of the measuring command. The inner error is the
    /// reason why a value is not possible, for example a failed command of the user.
    ///
    /// # Errors
    /// Fails if the server is lost, or on Ctrl-C.
    pub fn apply(&mut self, point: &SearchPoint) -> Result<Result<(), String>, SeriesEnd> {
        for (knob, &value) in self.knobs.clone().iter().zip(point) {
            let value = &knob.values[value];
            let is_set = match self.current.get(&knob.name) {
                Some(now) => now.as_ref() == Some(value),
                None => is_default(value),
            };
            if is_set {
                continue;
            }
            if let Err(why) = self.set_value(knob, value)? {
                return Ok(Err(why));
            }
        }
        Ok(Ok(()))
    }

    /// Sets one knob.
    ///
    /// # Errors
    /// Returns the error of its command, or that it was interrupted.
    pub fn set_knob(&mut self, name: &str, value: &str) -> Result<(), String> {
        let knob = self.knobs.iter().find(|knob| knob.name == name).cloned();
        let knob = knob.ok_or_else(|| format!("there is no knob {name}"))?;
        match self.set_value(&knob, value) {
            Ok(result) => result,
            Err(SeriesEnd::Failed(failure)) => Err(failure.problem.to_string()),
            Err(SeriesEnd::Interrupted) => Err("interrupted".to_owned()),
        }
    }

    fn set_value(&mut self, knob: &Knob, value: &str) -> Result<Result<(), String>, SeriesEnd> {
        match &knob.target {
            KnobTarget::Option(_) | KnobTarget::StackKey(_) | KnobTarget::Point => {
                return Ok(Ok(()));
            }
            KnobTarget::Command {
                timeout_s: within_s,
                ..
            } => {
                let limit = Duration::from_secs(within_s.unwrap_or(COMMAND_TIMEOUT_S));
                let Some((line, restore_line)) = knob.commands_for(value) else {
                    return Ok(Ok(()));
                };
                let key = SettingKey::for_command(&knob.name);
                let noted =
                    self.guard
                        .save_with_timeout(&key, &in_current_dir(&restore_line), *within_s);
                noted.map_err(|error| journal_failed(&error))?;
                // If the command fails, its effect is unknown: the setting is restored too.
                self.current.insert(knob.name.clone(), None);
                match child_process::run_shell_within(&line, limit, self.stop) {
                    Ok(_) => {}
                    // A device that rejects this value may accept another one.
                    Err(SeriesEnd::Failed(failure)) => return Ok(Err(failure.problem.to_string())),
                    Err(stopped) => return Err(stopped),
                }
            }
            KnobTarget::RemoteSysctl(name) => {
                let Some(remote) = &self.remote else {
                    return Ok(Err("the server changes no settings".to_owned()));
                };
                let set = remote.set(name, value).map_err(CommandFailure::from)?;
                if let Err(why) = set {
                    return Ok(Err(format!("{name} of the remote host: {why}")));
                }
            }
            KnobTarget::HostSetting { kind, name } => {
                for key in self.hosts.keys(*kind, name) {
                    let set = match is_default(value) {
                        true => self.guard.restore_one(&key),
                        false => self.guard.set(&key, value),
                    };
                    if let Err(why) = set {
                        // It may be set on some hosts: the next value sets all of them.
                        self.current.insert(knob.name.clone(), None);
                        return Ok(Err(format!("{} of {}: {why}", key.name, key.host)));
                    }
                }
            }
        }
        self.current
            .insert(knob.name.clone(), Some(value.to_owned()));
        Ok(Ok(()))
    }

    /// Returns the memory in bytes that knobs of the user declare.
    pub fn memory(&self, point: &SearchPoint) -> f64 {
        let each = self.knobs.iter().zip(point).filter_map(|(knob, &value)| {
            let size: ByteSize = knob.values[value].parse().ok()?;
            Some(knob.bytes_per_unit? * size.0 as f64)
        });
        each.sum()
    }

    /// Returns a change with the keys it sets.
    pub fn applied_change(&self, knob: &Knob, value: &str) -> KnobChange {
        KnobChange {
            knob: knob.name.clone(),
            target: knob.target.clone(),
            value: value.to_owned(),
            keys: match &knob.target {
                KnobTarget::HostSetting { kind, name } if self.may_change => {
                    self.hosts.keys(*kind, name)
                }
                _ => Vec::new(),
            },
        }
    }

    /// Returns the commands that make a change outside of a measurement.
    pub fn shell_commands(&self, knob: &Knob, value: &str) -> Vec<String> {
        match &knob.target {
            KnobTarget::Option(_) | KnobTarget::StackKey(_) | KnobTarget::Point => Vec::new(),
            KnobTarget::Command { .. } => knob
                .commands_for(value)
                .into_iter()
                .map(|(line, _)| line)
                .collect(),
            KnobTarget::RemoteSysctl(name) => {
                vec![format!("sysctl -w {name}='{value}'  # remote host")]
            }
            KnobTarget::HostSetting { .. } => (self.applied_change(knob, value).keys.iter())
                .map(|key| format!("{}  # {}", key.shell_command(value), key.host))
                .collect(),
        }
    }

    /// Restores all settings; returns the failures, each with a hint to retry.
    pub fn restore(&mut self) -> Vec<String> {
        self.mark_restored();
        let mut failures = self.restore_remote();
        self.remote = None;
        self.current.clear();
        failures.extend(with_retry_hint(self.guard.restore_all()));
        failures
    }

    /// Restores the settings of the remote host; returns the failures.
    fn restore_remote(&self) -> Vec<String> {
        let Some(remote) = &self.remote else {
            return Vec::new();
        };
        let changed = self.knobs.iter().filter_map(|knob| match &knob.target {
            KnobTarget::RemoteSysctl(name)
                if self
                    .current_value(knob)
                    .is_some_and(|current| !is_default(current)) =>
            {
                Some(name)
            }
            _ => None,
        });
        let restore = |name: &String| match remote.set(name, DEFAULT_VALUE) {
            Ok(Ok(_)) => None,
            Ok(Err(why)) => Some(format!("{name} of the remote host: {why}")),
            Err(error) => Some(format!(
                "{name} of the remote host ({error}): run `linerate tune --restore` there"
            )),
        };
        changed.filter_map(restore).collect()
    }

    /// Keeps the settings of a point, and restores all others and those of the remote host. Returns
    /// the commands that would restore the kept settings, and the failures.
    pub fn keep_settings(&mut self, point: &SearchPoint) -> (Vec<String>, Vec<String>) {
        let changed = self.knobs.iter().zip(point);
        let changed = changed.filter(|(_, value)| **value != 0);
        let keys = changed.flat_map(|(knob, _)| match &knob.target {
            KnobTarget::HostSetting { kind, name } => self.hosts.keys(*kind, name),
            KnobTarget::Command { .. } => vec![SettingKey::for_command(&knob.name)],
            KnobTarget::Option(_)
            | KnobTarget::StackKey(_)
            | KnobTarget::Point
            | KnobTarget::RemoteSysctl(_) => Vec::new(),
        });
        let keys: Vec<SettingKey> = keys.collect();
        self.mark_restored();
        let restore_commands = self.guard.restore_commands(&keys);
        (
            restore_commands,
            with_retry_hint(self.guard.keep_only(&keys)),
        )
    }

    /// Returns the last value of a knob, if known.
    fn current_value(&self, knob: &Knob) -> Option<&str> {
        self.current.get(&knob.name)?.as_deref()
    }

    /// Marks commands whose restore command equals the last command as restored: a second run may
    /// take minutes.
    fn mark_restored(&mut self) {
        for knob in &self.knobs {
            let last = self
                .current_value(knob)
                .and_then(|current| knob.commands_for(current));
            if last.is_some_and(|(line, restore_line)| line == restore_line) {
                self.guard
                    .discard_saved(&SettingKey::for_command(&knob.name));
            }
        }
    }
}

/// Returns whether the old value of a knob goes to the journal.
fn needs_journal(knob: &Knob) -> bool {
    matches!(
        knob.target,
        KnobTarget::HostSetting { .. } | KnobTarget::Command { .. }
    )
}

/// Returns the failed restores, each with the command to retry.
fn with_retry_hint(failures: Vec<String>) -> Vec<String> {
    let each = failures.into_iter();
    each.map(|why| format!("{why} (`linerate tune --restore` tries again)"))
        .collect()
}

/// Returns a command line that runs in the current directory later too.
fn in_current_dir(line: &str) -> String {
    match std::env::current_dir() {
        Ok(dir) => {
            let dir = shell_words::join_args(&[dir.display().to_string()]);
            format!("cd {dir} && {{ {line}\n}}")
        }
        Err(_) => line.to_owned(),
    }
}

fn journal_failed(error: &linerate_tune::TuneError) -> CommandFailure {
    CommandFailure::failed(ErrorReport::new(
        error.to_string(),
        "the journal of changes",
        "set XDG_STATE_HOME to a writable directory",
    ))
}

/// Opens the settings of the remote host, and checks the permission with a request that changes
/// nothing.
fn open_remote_settings(command: &[String], name: &str) -> Result<RemoteSettings, CommandFailure> {
    let object = "--try-far";
    let servers = AvailableKnobs::server_addresses(command);
    if servers.is_empty() {
        return Err(CommandFailure::usage(ErrorReport::new(
            "the server has no address",
            object,
            "name a host that can be reached",
        )));
    }
    let key = shell_words::value_of(command, "key");
    let key = key.and_then(|source| source.parse::<crate::key_source::KeySource>().ok());
    let key = key.map(|source| source.read()).transpose()?;
    let settings = try_in_order(servers, |server| RemoteSettings::open(server, key.as_ref()))?;
    match settings.set(name, linerate_tune::knob::DEFAULT_VALUE)? {
        Ok(_) => Ok(settings),
        Err(why) => Err(CommandFailure {
            problem: ErrorReport::new(
                why,
                format!("settings of {}", settings.server()),
                "start its server with --grant tune, or leave out --try-far",
            ),
            code: exit_codes::MISSING,
        }),
    }
}

/// Reports failed restores of a command that ends without a result, whose notes would list them.
pub fn report_unrestored(failures: &[String], output: &CommandOutput) {
    for why in failures {
        output.warn(&format!("warning: {why}"));
    }
}
