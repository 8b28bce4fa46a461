//! Setting knobs, and restoring all of them.

use std::collections::BTreeMap;
use std::time::Duration;

use linerate_host::stop_flag::Stop;
use linerate_measure::FarSettings;
use linerate_metric::event::Problem;
use linerate_metric::exit;
use linerate_metric::units::ByteSize;
use linerate_tune::guard::{Guard, Key};
use linerate_tune::journal::folder;
use linerate_tune::knob::{DEFAULT, Knob, Set, TURNING_S};
use linerate_tune::search::Point;
use linerate_tune::snippet::Turned;

use crate::command::series::Ended;
use crate::failure::Failure;
use crate::knobs::{Knobs, is_default};
use crate::output::Output;
use crate::tunable_hosts::{self, Hosts};
use crate::{child_process, shell_words};

/// Knobs with the means to set them.
pub struct Turner<'a> {
    /// Knobs; a point holds the index of a value for each.
    pub knobs: Vec<Knob>,
    hosts: &'a Hosts,
    may_change: bool,
    far: Option<FarSettings>,
    guard: Guard<&'a Hosts>,
    stop: &'a Stop,
    /// Current value by knob name; absent if never set, `None` if the last change failed halfway.
    at: BTreeMap<String, Option<String>>,
}

impl<'a> Turner<'a> {
    /// Creates it without changing a setting. If a knob of the remote host is among the knobs, its
    /// server must permit that.
    ///
    /// # Errors
    /// Returns the server's rejection, or that a journal cannot be written.
    pub fn new(
        knobs: Vec<Knob>,
        known: &'a Knobs,
        command: &[String],
        stop: &'a Stop,
    ) -> Result<Self, Failure> {
        let mut guard = tunable_hosts::guard(&known.hosts, folder("tune"));
        // Options need no journal. For other knobs, each value would fail as if it did not help.
        if knobs.iter().any(is_of_journal) {
            guard.begin().map_err(|error| journal_failed(&error))?;
        }
        let wanted = knobs.iter().find_map(|knob| match &knob.set {
            Set::Far(name) => Some(name),
            _ => None,
        });
        let far = match wanted {
            Some(name) => Some(far_settings(command, name)?),
            None => None,
        };
        Ok(Self {
            knobs,
            hosts: &known.hosts,
            may_change: known.may_change,
            far,
            guard,
            stop,
            at: BTreeMap::new(),
        })
    }

    /// Returns the measuring command with the options of a point.
    ///
    /// # Errors
    /// Fails if the command has no such option.
    pub fn command(&self, words: &[String], point: &Point) -> Result<Vec<String>, Failure> {
        let mut words = words.to_vec();
        for (knob, &value) in self.knobs.iter().zip(point) {
            let value = knob.values[value].as_str();
            match &knob.set {
                Set::Option(option) if !is_default(value) => {
                    shell_words::set_option(&mut words, option, value)?;
                }
                Set::StackKey(key) if !is_default(value) => {
                    words.push(format!("--set={key}={value}"));
                }
                // One point of an experiment is measured: each of its knobs is named.
                Set::Point => words.push(format!("--point={}={value}", knob.name)),
                _ => {}
            }
        }
        Ok(words)
    }

    /// Applies the settings that are not options of the measuring command. The inner error is the
    /// reason why a value is not possible, for example a failed command of the user.
    ///
    /// # Errors
    /// Fails if the server is lost, or on Ctrl-C.
    pub fn apply(&mut self, point: &Point) -> Result<Result<(), String>, Ended> {
        for (knob, &value) in self.knobs.clone().iter().zip(point) {
            let value = &knob.values[value];
            let stands = match self.at.get(&knob.name) {
                Some(now) => now.as_ref() == Some(value),
                None => is_default(value),
            };
            if stands {
                continue;
            }
            if let Err(why) = self.turn(knob, value)? {
                return Ok(Err(why));
            }
        }
        Ok(Ok(()))
    }

    /// Sets one knob.
    ///
    /// # Errors
    /// Returns the error of its command, or that it was interrupted.
    pub fn turn_one(&mut self, name: &str, value: &str) -> Result<(), String> {
        let knob = self.knobs.iter().find(|knob| knob.name == name).cloned();
        let knob = knob.ok_or_else(|| format!("there is no knob {name}"))?;
        match self.turn(&knob, value) {
            Ok(turned) => turned,
            Err(Ended::Over(failure)) => Err(failure.problem.to_string()),
            Err(Ended::Stopped) => Err("interrupted".to_owned()),
        }
    }

    fn turn(&mut self, knob: &Knob, value: &str) -> Result<Result<(), String>, Ended> {
        match &knob.set {
            Set::Option(_) | Set::StackKey(_) | Set::Point => return Ok(Ok(())),
            Set::Command { within_s, .. } => {
                let limit = Duration::from_secs(within_s.unwrap_or(TURNING_S));
                let Some((line, back)) = knob.lines(value) else {
                    return Ok(Ok(()));
                };
                let key = Key::of_command(&knob.name);
                let noted = self.guard.note_within(&key, &here(&back), *within_s);
                noted.map_err(|error| journal_failed(&error))?;
                // If the command fails, its effect is unknown: the setting is restored too.
                self.at.insert(knob.name.clone(), None);
                match child_process::shell_within(&line, limit, self.stop) {
                    Ok(_) => {}
                    // A device that rejects this value may accept another one.
                    Err(Ended::Over(failure)) => return Ok(Err(failure.problem.to_string())),
                    Err(stopped) => return Err(stopped),
                }
            }
            Set::Far(name) => {
                let Some(far) = &self.far else {
                    return Ok(Err("the server changes no settings".to_owned()));
                };
                let set = far.set(name, value).map_err(Failure::from)?;
                if let Err(why) = set {
                    return Ok(Err(format!("{name} of the remote host: {why}")));
                }
            }
            Set::Host { kind, name } => {
                for key in self.hosts.keys(*kind, name) {
                    let set = match is_default(value) {
                        true => self.guard.reset(&key),
                        false => self.guard.set(&key, value),
                    };
                    if let Err(why) = set {
                        // It may be set on some hosts: the next value sets all of them.
                        self.at.insert(knob.name.clone(), None);
                        return Ok(Err(format!("{} of {}: {why}", key.name, key.host)));
                    }
                }
            }
        }
        self.at.insert(knob.name.clone(), Some(value.to_owned()));
        Ok(Ok(()))
    }

    /// Returns the memory in bytes that knobs of the user declare.
    pub fn memory(&self, point: &Point) -> f64 {
        let each = self.knobs.iter().zip(point).filter_map(|(knob, &value)| {
            let size: ByteSize = knob.values[value].parse().ok()?;
            Some(knob.memory? * size.0 as f64)
        });
        each.sum()
    }

    /// Returns a change with the keys it sets.
    pub fn turned(&self, knob: &Knob, value: &str) -> Turned {
        Turned {
            knob: knob.name.clone(),
            set: knob.set.clone(),
            value: value.to_owned(),
            keys: match &knob.set {
                Set::Host { kind, name } if self.may_change => self.hosts.keys(*kind, name),
                _ => Vec::new(),
            },
        }
    }

    /// Returns the commands that make a change outside of a measurement.
    pub fn commands(&self, knob: &Knob, value: &str) -> Vec<String> {
        match &knob.set {
            Set::Option(_) | Set::StackKey(_) | Set::Point => Vec::new(),
            Set::Command { .. } => knob
                .lines(value)
                .into_iter()
                .map(|(line, _)| line)
                .collect(),
            Set::Far(name) => vec![format!("sysctl -w {name}='{value}'  # remote host")],
            Set::Host { .. } => (self.turned(knob, value).keys.iter())
                .map(|key| format!("{}  # {}", key.command(value), key.host))
                .collect(),
        }
    }

    /// Restores all settings; returns the failures, each with a hint to retry.
    pub fn back(&mut self) -> Vec<String> {
        self.settle();
        let mut wrong = self.far_back();
        self.far = None;
        self.at.clear();
        wrong.extend(said(self.guard.restore()));
        wrong
    }

    /// Restores the settings of the remote host; returns the failures.
    fn far_back(&self) -> Vec<String> {
        let Some(far) = &self.far else {
            return Vec::new();
        };
        let changed = self.knobs.iter().filter_map(|knob| match &knob.set {
            Set::Far(name) if self.at_of(knob).is_some_and(|at| !is_default(at)) => Some(name),
            _ => None,
        });
        let restore = |name: &String| match far.set(name, DEFAULT) {
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
    pub fn keep(&mut self, point: &Point) -> (Vec<String>, Vec<String>) {
        let changed = self.knobs.iter().zip(point);
        let changed = changed.filter(|(_, value)| **value != 0);
        let keys = changed.flat_map(|(knob, _)| match &knob.set {
            Set::Host { kind, name } => self.hosts.keys(*kind, name),
            Set::Command { .. } => vec![Key::of_command(&knob.name)],
            Set::Option(_) | Set::StackKey(_) | Set::Point | Set::Far(_) => Vec::new(),
        });
        let keys: Vec<Key> = keys.collect();
        self.settle();
        let ways_back = self.guard.ways_back(&keys);
        (ways_back, said(self.guard.keep(&keys)))
    }

    /// Returns the last value of a knob, if known.
    fn at_of(&self, knob: &Knob) -> Option<&str> {
        self.at.get(&knob.name)?.as_deref()
    }

    /// Marks commands whose restore command equals the last command as restored: a second run may
    /// take minutes.
    fn settle(&mut self) {
        for knob in &self.knobs {
            let last = self.at_of(knob).and_then(|at| knob.lines(at));
            if last.is_some_and(|(line, back)| line == back) {
                self.guard.settled(&Key::of_command(&knob.name));
            }
        }
    }
}

/// Returns whether the old value of a knob goes to the journal.
fn is_of_journal(knob: &Knob) -> bool {
    matches!(knob.set, Set::Host { .. } | Set::Command { .. })
}

/// Returns the failed restores, each with the command to retry.
fn said(wrong: Vec<String>) -> Vec<String> {
    let each = wrong.into_iter();
    each.map(|why| format!("{why} (`linerate tune --restore` tries again)"))
        .collect()
}

/// Returns a command line that runs in the current directory later too.
fn here(line: &str) -> String {
    match std::env::current_dir() {
        Ok(folder) => {
            let folder = shell_words::join(&[folder.display().to_string()]);
            format!("cd {folder} && {{ {line}\n}}")
        }
        Err(_) => line.to_owned(),
    }
}

fn journal_failed(error: &linerate_tune::TuneError) -> Failure {
    Failure::failed(Problem::new(
        error.to_string(),
        "the journal of changes",
        "set XDG_STATE_HOME to a writable directory",
    ))
}

/// Opens the settings of the remote host, and checks the permission with a request that changes
/// nothing.
fn far_settings(command: &[String], name: &str) -> Result<FarSettings, Failure> {
    let object = "--try-far";
    let far = Knobs::far(command).ok_or_else(|| {
        Failure::usage(Problem::new(
            "the server has no address",
            object,
            "name a host that can be reached",
        ))
    })?;
    let key = shell_words::value_of(command, "key");
    let key = key.and_then(|source| source.parse::<crate::key_source::Source>().ok());
    let key = key.map(|source| source.read()).transpose()?;
    let settings = FarSettings::open(far, key.as_ref())?;
    match settings.set(name, linerate_tune::knob::DEFAULT)? {
        Ok(_) => Ok(settings),
        Err(why) => Err(Failure {
            problem: Problem::new(
                why,
                format!("settings of {far}"),
                "start its server with --grant tune, or leave out --try-far",
            ),
            code: exit::MISSING,
        }),
    }
}

/// Reports failed restores of a command that ends without a result, whose notes would list them.
pub fn warn_of(stuck: &[String], output: &Output) {
    for why in stuck {
        output.remark(&format!("warning: {why}"));
    }
}

/// Returns a note if settings of a killed command are still changed; `None` for a run that is part
/// of a command, which has reported it.
pub fn left_note() -> Option<String> {
    let is_part = |variable| std::env::var_os(variable).is_some();
    if is_part(child_process::PART_VARIABLE) || is_part(linerate_experiment::PARENT_VARIABLE) {
        return None;
    }
    let journals = folder("tune")?;
    // Most hosts have no journal: then nothing needs to be read.
    std::fs::read_dir(&journals).ok()?.next()?.ok()?;
    let hosts = Hosts::of_lab().or_else(|| Hosts::own(&[]))?;
    let boot = tunable_hosts::boot();
    let left = linerate_tune::guard::count_left(&journals, &hosts, &boot, tunable_hosts::runs);
    let said = match left {
        0 => return None,
        1 => "1 setting is".to_owned(),
        n => format!("{n} settings are"),
    };
    Some(format!(
        "note: {said} still changed by a killed command, and measurements start from there; \
         `linerate tune --restore` restores the old values"
    ))
}

/// Restores what killed commands left changed, if possible from here.
pub fn restore_left() -> Result<linerate_tune::guard::Restored, Failure> {
    let hosts = Hosts::of_lab().or_else(|| Hosts::own(&[]));
    let hosts = hosts.ok_or_else(|| {
        Failure::failed(Problem::new(
            "cannot be read",
            "the network namespace of this process",
            "mount /proc",
        ))
    })?;
    let journals = folder("tune").ok_or_else(|| {
        Failure::failed(Problem::new(
            "no directory for it",
            "the journal of changes",
            "set HOME or XDG_STATE_HOME to an absolute path",
        ))
    })?;
    let left = linerate_tune::guard::restore_left(
        &journals,
        &hosts,
        &tunable_hosts::boot(),
        tunable_hosts::runs,
    );
    left.map_err(|error| {
        Failure::failed(Problem::new(
            error.to_string(),
            "a journal",
            "check who may read it",
        ))
    })
}
