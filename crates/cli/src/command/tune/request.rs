//! The measuring command of a search, and its knobs.

use linerate_experiment::file::ExperimentKnob;
use linerate_record::experiment::parse_number;
use linerate_record::stack::OPTION_CONFIG_KEYS;
use linerate_tune::knob::{Knob, KnobTarget};

use super::reject;
use crate::args::TuneArgs;
use crate::command::measuring_command::kind_of;
use crate::command::run;
use crate::failure::CommandFailure;
use crate::knobs::AvailableKnobs;
use crate::shell_words;

/// Returns whether a measuring command is a point of an experiment.
pub fn is_experiment(command: &[String]) -> bool {
    command.first().is_some_and(|name| name == "run")
}

/// Rejects an invalid measuring command before any run.
pub fn check_command(command: &[String]) -> Result<(), CommandFailure> {
    match is_experiment(command) {
        // Its file is checked already, and its points report their own errors.
        true => Ok(()),
        false => kind_of("tune", command).map(drop),
    }
}

/// Returns the measuring command of the start.
pub fn command_args(args: &TuneArgs) -> Result<Vec<String>, CommandFailure> {
    if let Some(experiment) = &args.experiment {
        let mut command = ["run", experiment, "--repeat=1"]
            .map(str::to_owned)
            .to_vec();
        command.extend(args.host.iter().map(|host| format!("--on={host}")));
        command.extend(args.options.iter().cloned());
        return Ok(command);
    }
    let is_latency = matches!(args.goal.figure(), "p50" | "p99");
    let Some(host) = &args.host else {
        return reject(
            "tune",
            "no server to measure to",
            "name the host where `linerate server` runs",
        );
    };
    if args.goal.figure() == "pps" && !args.udp {
        return reject(
            "--goal pps",
            "TCP has no datagrams",
            "add -u, or choose another goal",
        );
    }
    let name = if is_latency { "latency" } else { "throughput" };
    let mut command = vec![name.to_owned(), host.clone()];
    if let Some(port) = args.port {
        command.extend(["-p".to_owned(), port.to_string()]);
    }
    if args.udp {
        command.push("-u".to_owned());
    }
    command.extend([
        "-t".to_owned(),
        format!("{}ms", args.time.as_millis().max(1)),
    ]);
    shell_words::add_args(&mut command, &args.options);
    Ok(command)
}

/// Returns the knobs to search.
pub fn searched_knobs(
    args: &TuneArgs,
    command: &[String],
    available: &AvailableKnobs,
) -> Result<Vec<Knob>, CommandFailure> {
    available.check_limits()?;
    if let Some(experiment) = &args.experiment {
        return experiment_knobs(args, experiment, available);
    }
    let mut all = available.all();
    available.check_remaining_values(&all, &args.only)?;
    // Options that the command line sets are not varied.
    all.retain(|knob| !sets_option_or_key(command, &knob.target));
    let names = available.names();
    keep_named_knobs(args, all, &names)
}

/// Returns the knobs of an experiment, each starting at its first value, and knobs of the user that
/// run a command.
fn experiment_knobs(
    args: &TuneArgs,
    file: &str,
    available: &AvailableKnobs,
) -> Result<Vec<Knob>, CommandFailure> {
    let experiment = run::load_experiment(file)?;
    if let Some(knob) = (available.user_knobs.iter())
        .find(|knob| !matches!(knob.target, KnobTarget::Command { .. }))
    {
        return reject(
            &knob.name,
            "options and settings do not apply to the commands of an experiment",
            "set it by a command (set = \"…\"), or make it a knob of the experiment",
        );
    }
    let quick = args.options.iter().any(|arg| arg == "--quick");
    let is_fixed = |name: &str| {
        let sets_knob = |arg: &String| {
            let arg = arg.strip_prefix("--point=").unwrap_or(arg);
            arg.split_once('=').is_some_and(|(knob, _)| knob == name)
        };
        args.options.iter().any(sets_knob)
    };
    let values = |knob: &ExperimentKnob| match quick && !knob.quick_values.is_empty() {
        true => knob.quick_values.clone(),
        false => knob.values.clone(),
    };
    let mut all: Vec<Knob> = (experiment.knobs.iter())
        .filter(|knob| !is_fixed(&knob.name))
        .map(|knob| Knob {
            name: knob.name.clone(),
            ordered: values(knob)
                .iter()
                .all(|value| parse_number(value).is_some()),
            values: values(knob),
            target: KnobTarget::Point,
            may_be_rejected: false,
            bytes_per_unit: knob.bytes_per_unit.map(|bytes| bytes as f64),
        })
        .collect();
    // A knob with one value is not varied.
    all.retain(|knob| knob.values.len() > 1);
    all.extend(available.user_knobs.iter().cloned());
    for limit in &args.knobs.limit {
        let mut limited = all.iter_mut().filter(|knob| knob.name == limit.name);
        limited.try_for_each(|knob| {
            limit.apply(knob);
            match knob.values.is_empty() {
                true => reject(
                    &knob.name,
                    "has no value within its --limit",
                    "widen the limit",
                ),
                false => Ok(()),
            }
        })?;
    }
    let names: Vec<String> = all.iter().map(|knob| knob.name.clone()).collect();
    keep_named_knobs(args, all, &names)
}

/// Keeps the knobs that `--knobs` names.
fn keep_named_knobs(
    args: &TuneArgs,
    mut all: Vec<Knob>,
    names: &[String],
) -> Result<Vec<Knob>, CommandFailure> {
    if !args.only.is_empty() {
        if let Some(name) = args.only.iter().find(|name| !names.contains(name)) {
            return reject(
                &format!("--knobs {name}"),
                "no such knob",
                &format!("choose from {}", names.join(", ")),
            );
        }
        all.retain(|knob| args.only.contains(&knob.name));
    }
    match all.is_empty() {
        true => reject(
            "--knobs",
            "no knob can be set here",
            "settings of hosts need a lab or --try-host; options on the command line are not varied",
        ),
        false => Ok(all),
    }
}

/// Returns whether a measuring command sets what a knob would set.
pub fn sets_option_or_key(command: &[String], set: &KnobTarget) -> bool {
    match set {
        KnobTarget::Option(option) => {
            // For its other keys, our stack has knobs of its own.
            let keys = OPTION_CONFIG_KEYS.iter();
            let mut keys = keys
                .filter(|(key, option_name)| option_name == option && key.starts_with("threads."));
            shell_words::sets_option(command, option) || keys.any(|(key, _)| sets_key(command, key))
        }
        KnobTarget::StackKey(key) => {
            let options = OPTION_CONFIG_KEYS.iter();
            let mut options = options.filter(|(option_name, _)| {
                option_name == key && shell_words::sets_option(command, "dev")
            });
            sets_key(command, key)
                || options.any(|(_, option)| shell_words::sets_option(command, option))
        }
        _ => false,
    }
}

/// Returns whether a measuring command sets a key.
fn sets_key(command: &[String], key: &str) -> bool {
    command.iter().any(|arg| arg_sets_key(arg, key))
}

/// Returns whether an argument of `--set` sets a key.
fn arg_sets_key(arg: &str, key: &str) -> bool {
    let arg = arg.strip_prefix("--set=").unwrap_or(arg);
    (arg.split(';')).any(|part| part.split_once('=').is_some_and(|(name, _)| name == key))
}
