//! Turning knobs, and turning all of them back.

use std::collections::BTreeMap;
use std::time::Duration;

use linerate_host::stop::Stop;
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
use crate::machine::{self, Hosts};
use crate::output::Output;
use crate::{child, words};

/// Knobs with what turns them.
pub struct Turner<'a> {
    /// The knobs; a point holds the number of a value of each.
    pub knobs: Vec<Knob>,
    hosts: &'a Hosts,
    may_change: bool,
    far: Option<FarSettings>,
    guard: Guard<&'a Hosts>,
    stop: &'a Stop,
    /// What each knob stands at, by its name; absent: never turned; `None`: somewhere between two values.
    at: BTreeMap<String, Option<String>>,
}

impl<'a> Turner<'a> {
    /// Turns nothing yet. Where a knob of the far host is among them, its server is asked whether it may be.
    ///
    /// # Errors
    /// The far end's refusal, and no place for a journal.
    pub fn new(
        knobs: Vec<Knob>,
        known: &'a Knobs,
        command: &[String],
        stop: &'a Stop,
    ) -> Result<Self, Failure> {
        let mut guard = machine::guard(&known.hosts, folder("tune"));
        // What options turn needs no journal; and all else would be refused value by value, as if nothing helped.
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

    /// The measuring command of a setting.
    ///
    /// # Errors
    /// It has no such option.
    pub fn command(&self, words: &[String], point: &Point) -> Result<Vec<String>, Failure> {
        let mut words = words.to_vec();
        for (knob, &value) in self.knobs.iter().zip(point) {
            let value = knob.values[value].as_str();
            match &knob.set {
                Set::Option(option) if !is_default(value) => {
                    words::set_option(&mut words, option, value)?;
                }
                Set::StackKey(key) if !is_default(value) => {
                    words.push(format!("--set={key}={value}"));
                }
                // Of an experiment one point is measured: each of its knobs is named.
                Set::Point => words.push(format!("--point={}={value}", knob.name)),
                _ => {}
            }
        }
        Ok(words)
    }

    /// Turns what is not part of the measuring command; the inner error says why a value cannot be had, as where a
    /// command of the user's failed.
    ///
    /// # Errors
    /// The far end is gone, or somebody pressed Ctrl-C.
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

    /// Turns one knob; why it could not be otherwise.
    ///
    /// # Errors
    /// What its command said, or that somebody pressed Ctrl-C.
    pub fn turn_one(&mut self, name: &str, value: &str) -> Result<(), String> {
        let known = self.knobs.iter().find(|knob| knob.name == name).cloned();
        let knob = known.ok_or_else(|| format!("there is no knob {name}"))?;
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
                // Whether it was turned is not known when it fails: then it is turned back as well.
                self.at.insert(knob.name.clone(), None);
                match child::shell_within(&line, limit, self.stop) {
                    Ok(_) => {}
                    // Of what a device does not take another value may do.
                    Err(Ended::Over(failure)) => return Ok(Err(failure.problem.to_string())),
                    Err(stopped) => return Err(stopped),
                }
            }
            Set::Far(name) => {
                let Some(far) = &self.far else {
                    return Ok(Err("the far end makes no settings".to_owned()));
                };
                let set = far.set(name, value).map_err(Failure::from)?;
                if let Err(why) = set {
                    return Ok(Err(format!("{name} of the far host: {why}")));
                }
            }
            Set::Host { kind, name } => {
                for key in self.hosts.keys(*kind, name) {
                    let set = match is_default(value) {
                        true => self.guard.reset(&key),
                        false => self.guard.set(&key, value),
                    };
                    if let Err(why) = set {
                        // Part of it may be set: the next value sets all of it.
                        self.at.insert(knob.name.clone(), None);
                        return Ok(Err(format!("{} of {}: {why}", key.name, key.host)));
                    }
                }
            }
        }
        self.at.insert(knob.name.clone(), Some(value.to_owned()));
        Ok(Ok(()))
    }

    /// Bytes that knobs of the user's own say they take.
    pub fn memory(&self, point: &Point) -> f64 {
        let each = self.knobs.iter().zip(point).filter_map(|(knob, &value)| {
            let size: ByteSize = knob.values[value].parse().ok()?;
            Some(knob.memory? * size.0 as f64)
        });
        each.sum()
    }

    /// A change, with the places of it.
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

    /// The commands that make a change outside of a measurement.
    pub fn commands(&self, knob: &Knob, value: &str) -> Vec<String> {
        match &knob.set {
            Set::Option(_) | Set::StackKey(_) | Set::Point => Vec::new(),
            Set::Command { .. } => knob
                .lines(value)
                .into_iter()
                .map(|(line, _)| line)
                .collect(),
            Set::Far(name) => vec![format!("sysctl -w {name}='{value}'  # far host")],
            Set::Host { .. } => (self.turned(knob, value).keys.iter())
                .map(|key| format!("{}  # {}", key.command(value), key.host))
                .collect(),
        }
    }

    /// Everything as it was: says what could not be, and that it may be tried again.
    pub fn back(&mut self) -> Vec<String> {
        self.settle();
        let mut wrong = self.far_back();
        self.far = None;
        self.at.clear();
        wrong.extend(said(self.guard.restore()));
        wrong
    }

    /// What was set at the far host as it was: says so where nobody is there to do it.
    fn far_back(&self) -> Vec<String> {
        let Some(far) = &self.far else {
            return Vec::new();
        };
        let turned = self.knobs.iter().filter_map(|knob| match &knob.set {
            Set::Far(name) if self.at_of(knob).is_some_and(|at| !is_default(at)) => Some(name),
            _ => None,
        });
        let back = |name: &String| match far.set(name, DEFAULT) {
            Ok(Ok(_)) => None,
            Ok(Err(why)) => Some(format!("{name} of the far host: {why}")),
            Err(error) => Some(format!(
                "{name} of the far host ({error}): run `linerate tune --restore` there"
            )),
        };
        turned.filter_map(back).collect()
    }

    /// Leaves what this setting changes as it is now, and all else as it was; what the far host set goes back all the
    /// same. Says what could not be set back, after what sets back by hand what is left.
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

    /// What a knob was turned to last, where that is known.
    fn at_of(&self, knob: &Knob) -> Option<&str> {
        self.at.get(&knob.name)?.as_deref()
    }

    /// What was run last is not run once more to set it back: it may take minutes.
    fn settle(&mut self) {
        for knob in &self.knobs {
            let last = self.at_of(knob).and_then(|at| knob.lines(at));
            if last.is_some_and(|(line, back)| line == back) {
                self.guard.settled(&Key::of_command(&knob.name));
            }
        }
    }
}

/// Whether what was there before is to be written down.
fn is_of_journal(knob: &Knob) -> bool {
    matches!(knob.set, Set::Host { .. } | Set::Command { .. })
}

/// What could not be set back, with what tries it again.
fn said(wrong: Vec<String>) -> Vec<String> {
    let each = wrong.into_iter();
    each.map(|why| format!("{why} (`linerate tune --restore` tries again)"))
        .collect()
}

/// A line that means the same wherever it is run later.
fn here(line: &str) -> String {
    match std::env::current_dir() {
        Ok(folder) => {
            let folder = words::join(&[folder.display().to_string()]);
            format!("cd {folder} && {{ {line}\n}}")
        }
        Err(_) => line.to_owned(),
    }
}

fn journal_failed(error: &linerate_tune::TuneError) -> Failure {
    Failure::failed(Problem::new(
        error.to_string(),
        "the journal of changes",
        "set XDG_STATE_HOME to a folder that can be written",
    ))
}

/// Asks the far end's server for a value that it has already: whether it sets anything at all.
fn far_settings(command: &[String], name: &str) -> Result<FarSettings, Failure> {
    let object = "--try-far";
    let far = Knobs::far(command).ok_or_else(|| {
        Failure::usage(Problem::new(
            "the far end has no address",
            object,
            "name a host that can be reached",
        ))
    })?;
    let key = words::value_of(command, "key");
    let key = key.and_then(|source| source.parse::<crate::key::Source>().ok());
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

/// Tells what did not go back of a command that ends without a result, which would have it among its notes.
pub fn warn_of(stuck: &[String], output: &Output) {
    for why in stuck {
        output.remark(&format!("warning: {why}"));
    }
}

/// What to say before something is measured or changed while settings of a killed command still stand; none for a part
/// of a command that has said it.
pub fn left_note() -> Option<String> {
    let is_part = |variable| std::env::var_os(variable).is_some();
    if is_part(child::PART_VARIABLE) || is_part(linerate_experiment::PARENT_VARIABLE) {
        return None;
    }
    let journals = folder("tune")?;
    // Most have none: then nobody has to look around.
    std::fs::read_dir(&journals).ok()?.next()?.ok()?;
    let hosts = Hosts::of_lab().or_else(|| Hosts::own(&[]))?;
    let boot = machine::boot();
    let left = linerate_tune::guard::count_left(&journals, &hosts, &boot, machine::runs);
    let said = match left {
        0 => return None,
        1 => "1 setting stands".to_owned(),
        n => format!("{n} settings stand"),
    };
    Some(format!(
        "note: {said} as a killed command left them, and what is measured now starts from there; \
         `linerate tune --restore` sets them back"
    ))
}

/// Sets back what a killed command left, wherever it can be done from here.
pub fn restore_left() -> Result<linerate_tune::guard::Restored, Failure> {
    let hosts = Hosts::of_lab().or_else(|| Hosts::own(&[]));
    let hosts = hosts.ok_or_else(|| {
        Failure::failed(Problem::new(
            "cannot be seen",
            "this network",
            "mount /proc",
        ))
    })?;
    let journals = folder("tune").ok_or_else(|| {
        Failure::failed(Problem::new(
            "there is no folder for it",
            "the journal of changes",
            "set HOME or XDG_STATE_HOME to an absolute path",
        ))
    })?;
    let left =
        linerate_tune::guard::restore_left(&journals, &hosts, &machine::boot(), machine::runs);
    left.map_err(|error| {
        Failure::failed(Problem::new(
            error.to_string(),
            "a journal",
            "see who may read it",
        ))
    })
}
