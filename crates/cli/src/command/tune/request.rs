//! The measuring command of a search, and its knobs.

use linerate_experiment::file::KnobOf;
use linerate_metric::experiment::number;
use linerate_metric::stack::KEYS_OF_OPTIONS;
use linerate_tune::knob::{Knob, Set};

use super::refuse;
use crate::args::TuneArgs;
use crate::command::measuring_command::kind_of;
use crate::command::run;
use crate::failure::Failure;
use crate::knobs::Knobs;
use crate::shell_words;

/// Returns whether a measuring command is a point of an experiment.
pub fn is_experiment(words: &[String]) -> bool {
    words.first().is_some_and(|name| name == "run")
}

/// Rejects an invalid measuring command before any run.
pub fn check(words: &[String]) -> Result<(), Failure> {
    match is_experiment(words) {
        // Its file is checked already, and its points report their own errors.
        true => Ok(()),
        false => kind_of("tune", words).map(drop),
    }
}

/// Returns the measuring command of the start.
pub fn words_of(args: &TuneArgs) -> Result<Vec<String>, Failure> {
    if let Some(experiment) = &args.experiment {
        let mut words = ["run", experiment, "--repeat=1"]
            .map(str::to_owned)
            .to_vec();
        words.extend(args.host.iter().map(|host| format!("--on={host}")));
        words.extend(args.options.iter().cloned());
        return Ok(words);
    }
    let round_trips = matches!(args.goal.figure(), "p50" | "p99");
    let Some(host) = &args.host else {
        return refuse(
            "tune",
            "no server to measure to",
            "name the host where `linerate server` runs",
        );
    };
    if args.goal.figure() == "pps" && !args.udp {
        return refuse(
            "--goal pps",
            "TCP has no datagrams",
            "add -u, or choose another goal",
        );
    }
    let name = if round_trips { "latency" } else { "throughput" };
    let mut words = vec![name.to_owned(), host.clone()];
    if let Some(port) = args.port {
        words.extend(["-p".to_owned(), port.to_string()]);
    }
    if args.udp {
        words.push("-u".to_owned());
    }
    words.extend([
        "-t".to_owned(),
        format!("{}ms", args.time.as_millis().max(1)),
    ]);
    shell_words::add(&mut words, &args.options);
    Ok(words)
}

/// Returns the knobs to search.
pub fn knobs_of(args: &TuneArgs, words: &[String], known: &Knobs) -> Result<Vec<Knob>, Failure> {
    known.check_limits()?;
    if let Some(experiment) = &args.experiment {
        return of_experiment(args, experiment, known);
    }
    let mut all = known.all();
    known.check_left(&all, &args.only)?;
    // Options that the command line sets are not varied.
    all.retain(|knob| !says(words, &knob.set));
    let names = known.names();
    only(args, all, &names)
}

/// Returns the knobs of an experiment, each starting at its first value, and knobs of the user that
/// run a command.
fn of_experiment(args: &TuneArgs, file: &str, known: &Knobs) -> Result<Vec<Knob>, Failure> {
    let experiment = run::experiment_of(file)?;
    if let Some(knob) = (known.own.iter()).find(|knob| !matches!(knob.set, Set::Command { .. })) {
        return refuse(
            &knob.name,
            "options and settings do not apply to the commands of an experiment",
            "set it by a command (set = \"…\"), or make it a knob of the experiment",
        );
    }
    let quick = args.options.iter().any(|word| word == "--quick");
    let fixed = |name: &str| {
        let starts = |word: &String| {
            let word = word.strip_prefix("--point=").unwrap_or(word);
            word.split_once('=').is_some_and(|(knob, _)| knob == name)
        };
        args.options.iter().any(starts)
    };
    let values = |knob: &KnobOf| match quick && !knob.quick.is_empty() {
        true => knob.quick.clone(),
        false => knob.values.clone(),
    };
    let mut all: Vec<Knob> = (experiment.knobs.iter())
        .filter(|knob| !fixed(&knob.name))
        .map(|knob| Knob {
            name: knob.name.clone(),
            ordered: values(knob).iter().all(|value| number(value).is_some()),
            values: values(knob),
            set: Set::Point,
            uncertain: false,
            memory: knob.memory.map(|bytes| bytes as f64),
        })
        .collect();
    // A knob with one value is not varied.
    all.retain(|knob| knob.values.len() > 1);
    all.extend(known.own.iter().cloned());
    for limit in &args.knobs.limit {
        let mut named = all.iter_mut().filter(|knob| knob.name == limit.name);
        named.try_for_each(|knob| {
            limit.apply(knob);
            match knob.values.is_empty() {
                true => refuse(
                    &knob.name,
                    "has no value within its --limit",
                    "widen the limit",
                ),
                false => Ok(()),
            }
        })?;
    }
    let names: Vec<String> = all.iter().map(|knob| knob.name.clone()).collect();
    only(args, all, &names)
}

/// Keeps the knobs that `--knobs` names.
fn only(args: &TuneArgs, mut all: Vec<Knob>, names: &[String]) -> Result<Vec<Knob>, Failure> {
    if !args.only.is_empty() {
        if let Some(name) = args.only.iter().find(|name| !names.contains(name)) {
            return refuse(
                &format!("--knobs {name}"),
                "no such knob",
                &format!("choose from {}", names.join(", ")),
            );
        }
        all.retain(|knob| args.only.contains(&knob.name));
    }
    match all.is_empty() {
        true => refuse(
            "--knobs",
            "no knob can be set here",
            "settings of hosts need a lab or --try-host; options on the command line are not varied",
        ),
        false => Ok(all),
    }
}

/// Returns whether a measuring command sets what a knob would set.
pub fn says(words: &[String], set: &Set) -> bool {
    match set {
        Set::Option(option) => {
            // For its other keys, our stack has knobs of its own.
            let keys = KEYS_OF_OPTIONS.iter();
            let mut keys = keys.filter(|(key, own)| own == option && key.starts_with("threads."));
            shell_words::names(words, option) || keys.any(|(key, _)| names_key(words, key))
        }
        Set::StackKey(key) => {
            let options = KEYS_OF_OPTIONS.iter();
            let mut options =
                options.filter(|(own, _)| own == key && shell_words::names(words, "dev"));
            names_key(words, key) || options.any(|(_, option)| shell_words::names(words, option))
        }
        _ => false,
    }
}

/// Returns whether a measuring command sets a key.
fn names_key(words: &[String], key: &str) -> bool {
    words.iter().any(|word| says_key(word, key))
}

/// Returns whether an argument of `--set` sets a key.
fn says_key(word: &str, key: &str) -> bool {
    let word = word.strip_prefix("--set=").unwrap_or(word);
    (word.split(';')).any(|part| part.split_once('=').is_some_and(|(name, _)| name == key))
}
