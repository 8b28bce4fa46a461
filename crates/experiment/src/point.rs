//! Points of an experiment and the arguments of their commands.

use std::collections::BTreeMap;

use linerate_record::experiment::{KnobValues, combine_values};

use crate::ExperimentError;
use crate::file::{Experiment, ExperimentCommand};
use crate::remote_host::RemoteHost;

/// Selected combinations of knob values, the first knob varying slowest.
pub(crate) fn selected_settings(
    experiment: &Experiment,
    quick: bool,
    only: &KnobValues,
) -> Result<Vec<KnobValues>, ExperimentError> {
    for (name, value) in only {
        let is_known = experiment
            .knob(name)
            .is_some_and(|knob| knob.values.contains(value));
        if !is_known {
            let names = experiment.knobs.iter();
            let is_known: Vec<String> = names
                .map(|knob| format!("{}={}", knob.name, knob.values.join("|")))
                .collect();
            return Err(ExperimentError::UnknownPoint {
                requested: format!("{name}={value}"),
                available: is_known.join(", "),
            });
        }
    }
    let knobs = experiment.knobs.iter().map(|knob| {
        let values = match only.get(&knob.name) {
            Some(value) => std::slice::from_ref(value),
            None if quick && !knob.quick_values.is_empty() => &knob.quick_values[..],
            None => &knob.values[..],
        };
        (knob.name.as_str(), values)
    });
    Ok(combine_values(knobs))
}

/// Formats a setting as `hops=2 size=1024`, in the order of the file.
pub(crate) fn describe_setting(experiment: &Experiment, setting: &KnobValues) -> String {
    let assignments = experiment.knobs.iter().filter_map(|knob| {
        let value = setting.get(&knob.name)?;
        Some(format!("{}={value}", knob.name))
    });
    assignments.collect::<Vec<_>>().join(" ")
}

/// Placeholder of the results directory until a command is split: the path may contain spaces.
const DIR_PLACEHOLDER: char = '\u{1}';

/// Values of `{name}` at a point.
pub(crate) struct NameValues {
    values: BTreeMap<String, String>,
    /// Remote host, if the experiment does not run in a lab.
    remote_host: Option<RemoteHost>,
}

impl NameValues {
    pub(crate) fn at_point(
        experiment: &Experiment,
        setting: &KnobValues,
        quick: bool,
        hosts: &[(String, String)],
        id: &str,
    ) -> Self {
        let mut name_values: BTreeMap<String, String> = hosts.iter().cloned().collect();
        name_values.insert("id".to_owned(), id.to_owned());
        name_values.insert("dir".to_owned(), DIR_PLACEHOLDER.to_string());
        let values = experiment.knobs.iter();
        let values = values.filter_map(|knob| setting.get(&knob.name));
        let point: Vec<&str> = values.map(String::as_str).collect();
        name_values.insert("point".to_owned(), point.join("-"));
        for (name, amounts) in &experiment.amounts {
            name_values.insert(name.clone(), amounts[usize::from(!quick)].clone());
        }
        for (name, value) in setting {
            let replacement_texts = experiment
                .words
                .get(name)
                .and_then(|replacement_texts| replacement_texts.get(value));
            name_values.insert(name.clone(), replacement_texts.unwrap_or(value).clone());
        }
        Self {
            values: name_values,
            remote_host: None,
        }
    }

    /// Adds the remote host, whose port is inserted into commands of this program.
    pub(crate) fn with_remote_host(self, remote_host: &RemoteHost) -> Self {
        Self {
            remote_host: Some(remote_host.clone()),
            ..self
        }
    }

    /// Replaces all names in `text`; the text of a knob value may contain names too, one level
    /// deep.
    pub(crate) fn replace_all(&self, text: &str) -> Result<String, ExperimentError> {
        let replaced = self.replace_once(text)?;
        self.replace_once(&replaced)
    }

    fn replace_once(&self, text: &str) -> Result<String, ExperimentError> {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('{') {
            let (before, from_brace) = rest.split_at(at);
            out.push_str(before);
            let end = from_brace
                .find('}')
                .ok_or_else(|| unknown_name(text, from_brace))?;
            let name = &from_brace[1..end];
            let value = self
                .values
                .get(name)
                .ok_or_else(|| unknown_name(text, name))?;
            out.push_str(value);
            rest = &from_brace[end + 1..];
        }
        out.push_str(rest);
        Ok(out)
    }

    /// Arguments of a command; `dir` is the results directory.
    pub(crate) fn command_args(
        &self,
        command: &ExperimentCommand,
        dir: &str,
    ) -> Result<Vec<String>, ExperimentError> {
        let text = command
            .linerate_args
            .as_ref()
            .or(command.command_line.as_ref());
        let filled = self.replace_all(text.map_or("", String::as_str))?;
        let args = filled.split_whitespace();
        let args: Vec<String> = args.map(|arg| arg.replace(DIR_PLACEHOLDER, dir)).collect();
        Ok(match &self.remote_host {
            Some(RemoteHost {
                name,
                port: Some(port),
            }) if command.linerate_args.is_some() => insert_port(args, name, *port),
            _ => args,
        })
    }
}

/// Inserts the server's port into a command of this program: the server itself, or a client that
/// connects to `host`.
///
/// A command that names a port or another program (`--peer`) is unchanged.
fn insert_port(mut args: Vec<String>, host: &str, port: u16) -> Vec<String> {
    let names_port = |arg: &String| {
        let starts_with_digit = |rest: &str| rest.starts_with(|c: char| c.is_ascii_digit());
        let option = arg.split('=').next().unwrap_or_default();
        matches!(option, "-p" | "--port" | "--peer")
            || arg.strip_prefix("-p").is_some_and(starts_with_digit)
    };
    let position = match args.first().map(String::as_str) {
        Some("server") => Some(0),
        Some("throughput" | "latency") => args.iter().position(|arg| arg == host),
        _ => None,
    };
    if let Some(position) = position.filter(|_| !args.iter().any(names_port)) {
        let option = ["-p".to_owned(), port.to_string()];
        args.splice(position + 1..position + 1, option);
    }
    args
}

fn unknown_name(text: &str, name: &str) -> ExperimentError {
    ExperimentError::invalid_content(
        format!("`{text}`"),
        format!("unknown name `{name}`"),
        "name a knob, an amount, a host of the lab, id, dir or point",
    )
}

/// Names in a text, in order; an error is the rest that begins with an unclosed brace.
pub(crate) fn find_names(text: &str) -> Result<Vec<&str>, &str> {
    let mut names = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('{') {
        let from_brace = &rest[at..];
        let end = from_brace.find('}').ok_or(from_brace)?;
        names.push(&from_brace[1..end]);
        rest = &from_brace[end + 1..];
    }
    Ok(names)
}

/// Returns whether a command belongs to a point.
pub(crate) fn applies_at(command: &ExperimentCommand, setting: &KnobValues) -> bool {
    has_values(&command.at_points, setting)
}

/// Returns whether `setting` has all values of the other one.
pub(crate) fn has_values(required: &KnobValues, setting: &KnobValues) -> bool {
    required
        .iter()
        .all(|(knob, value)| setting.get(knob) == Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_port_is_inserted_into_its_commands() {
        for (line, expected) in [
            ("server -q", "server -p 5302 -q"),
            ("throughput far -u", "throughput far -p 5302 -u"),
            ("latency -u far -l 64", "latency -u far -p 5302 -l 64"),
            // A port is given.
            ("latency far -p 7", "latency far -p 7"),
            ("latency far -p7", "latency far -p7"),
            ("latency far --port=7", "latency far --port=7"),
            ("server --port 7", "server --port 7"),
            // Another program, or another host.
            ("latency far --peer echo", "latency far --peer echo"),
            ("ttcp -t far", "ttcp -t far"),
            ("latency 10.77.0.9 -u", "latency 10.77.0.9 -u"),
            ("forward --dev null:", "forward --dev null:"),
        ] {
            let args = line.split(' ').map(str::to_owned).collect();
            assert_eq!(insert_port(args, "far", 5302).join(" "), expected);
        }
    }
}
