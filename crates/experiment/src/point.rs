//! Points of an experiment and the arguments of their commands.

use std::collections::BTreeMap;

use linerate_metric::experiment::Setting;

use crate::ExperimentError;
use crate::file::{CommandOf, Experiment};
use crate::location::FarHost;

/// Selected combinations of knob values, the first knob varying slowest.
pub(crate) fn settings(
    experiment: &Experiment,
    quick: bool,
    only: &Setting,
) -> Result<Vec<Setting>, ExperimentError> {
    for (name, value) in only {
        let known = experiment
            .knob(name)
            .is_some_and(|knob| knob.values.contains(value));
        if !known {
            let names = experiment.knobs.iter();
            let known: Vec<String> = names
                .map(|knob| format!("{}={}", knob.name, knob.values.join("|")))
                .collect();
            return Err(ExperimentError::NoSuchPoint {
                asked: format!("{name}={value}"),
                known: known.join(", "),
            });
        }
    }
    let mut settings = vec![Setting::new()];
    for knob in &experiment.knobs {
        let values: Vec<&String> = match only.get(&knob.name) {
            Some(value) => vec![value],
            None if quick && !knob.quick.is_empty() => knob.quick.iter().collect(),
            None => knob.values.iter().collect(),
        };
        settings = settings
            .iter()
            .flat_map(|setting| {
                values.iter().map(|value| {
                    let mut setting = setting.clone();
                    setting.insert(knob.name.clone(), (*value).clone());
                    setting
                })
            })
            .collect();
    }
    Ok(settings)
}

/// Formats a setting as `hops=2 size=1024`, in the order of the file.
pub(crate) fn words_of(experiment: &Experiment, setting: &Setting) -> String {
    let named = experiment.knobs.iter().filter_map(|knob| {
        let value = setting.get(&knob.name)?;
        Some(format!("{}={value}", knob.name))
    });
    named.collect::<Vec<_>>().join(" ")
}

/// Placeholder of the results directory until a command is split: the path may contain spaces.
const DIR: char = '\u{1}';

/// Values of `{names}` at a point.
pub(crate) struct Names {
    known: BTreeMap<String, String>,
    /// Remote host, if the experiment does not run in a lab.
    far: Option<FarHost>,
}

impl Names {
    pub(crate) fn at(
        experiment: &Experiment,
        setting: &Setting,
        quick: bool,
        hosts: &[(String, String)],
        id: &str,
    ) -> Self {
        let mut known: BTreeMap<String, String> = hosts.iter().cloned().collect();
        known.insert("id".to_owned(), id.to_owned());
        known.insert("dir".to_owned(), DIR.to_string());
        let values = experiment.knobs.iter();
        let values = values.filter_map(|knob| setting.get(&knob.name));
        let point: Vec<&str> = values.map(String::as_str).collect();
        known.insert("point".to_owned(), point.join("-"));
        for (name, amounts) in &experiment.amounts {
            known.insert(name.clone(), amounts[usize::from(!quick)].clone());
        }
        for (name, value) in setting {
            let words = experiment
                .words
                .get(name)
                .and_then(|words| words.get(value));
            known.insert(name.clone(), words.unwrap_or(value).clone());
        }
        Self { known, far: None }
    }

    /// Adds the remote host, whose port is inserted into commands of this program.
    pub(crate) fn towards(self, far: &FarHost) -> Self {
        Self {
            far: Some(far.clone()),
            ..self
        }
    }

    /// Replaces all names in `text`; the text of a knob value may contain names too, one level
    /// deep.
    pub(crate) fn fill(&self, text: &str) -> Result<String, ExperimentError> {
        let once = self.replace(text)?;
        self.replace(&once)
    }

    fn replace(&self, text: &str) -> Result<String, ExperimentError> {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('{') {
            let (before, from) = rest.split_at(at);
            out.push_str(before);
            let end = from.find('}').ok_or_else(|| unknown(text, from))?;
            let name = &from[1..end];
            let value = self.known.get(name).ok_or_else(|| unknown(text, name))?;
            out.push_str(value);
            rest = &from[end + 1..];
        }
        out.push_str(rest);
        Ok(out)
    }

    /// Arguments of a command; `dir` is the results directory.
    pub(crate) fn words(
        &self,
        command: &CommandOf,
        dir: &str,
    ) -> Result<Vec<String>, ExperimentError> {
        let text = command.run.as_ref().or(command.exec.as_ref());
        let filled = self.fill(text.map_or("", String::as_str))?;
        let words = filled.split_whitespace();
        let words: Vec<String> = words.map(|word| word.replace(DIR, dir)).collect();
        Ok(match &self.far {
            Some(FarHost {
                name,
                port: Some(port),
            }) if command.run.is_some() => with_port(words, name, *port),
            _ => words,
        })
    }
}

/// Inserts the server's port into a command of this program: the server itself, or a client that
/// connects to `host`.
///
/// A command that names a port or another program (`--peer`) is unchanged.
fn with_port(mut words: Vec<String>, host: &str, port: u16) -> Vec<String> {
    let of_its_own = |word: &String| {
        let digits = |rest: &str| rest.starts_with(|c: char| c.is_ascii_digit());
        let option = word.split('=').next().unwrap_or_default();
        matches!(option, "-p" | "--port" | "--peer") || word.strip_prefix("-p").is_some_and(digits)
    };
    let after = match words.first().map(String::as_str) {
        Some("server") => Some(0),
        Some("throughput" | "latency") => words.iter().position(|word| word == host),
        _ => None,
    };
    if let Some(after) = after.filter(|_| !words.iter().any(of_its_own)) {
        let option = ["-p".to_owned(), port.to_string()];
        words.splice(after + 1..after + 1, option);
    }
    words
}

fn unknown(text: &str, name: &str) -> ExperimentError {
    ExperimentError::content(
        format!("`{text}`"),
        format!("unknown name `{name}`"),
        "name a knob, an amount, a host of the lab, id, dir or point",
    )
}

/// Names in a text, in order; an error is the rest that begins with an unclosed brace.
pub(crate) fn names_in(text: &str) -> Result<Vec<&str>, &str> {
    let mut names = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('{') {
        let from = &rest[at..];
        let end = from.find('}').ok_or(from)?;
        names.push(&from[1..end]);
        rest = &from[end + 1..];
    }
    Ok(names)
}

/// Returns whether a command belongs to a point.
pub(crate) fn applies(command: &CommandOf, setting: &Setting) -> bool {
    fits(&command.when, setting)
}

/// Returns whether `setting` has all values of the other one.
pub(crate) fn fits(asked: &Setting, setting: &Setting) -> bool {
    asked
        .iter()
        .all(|(knob, value)| setting.get(knob) == Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_of_the_far_server_is_in_all_commands_that_are_for_it() {
        for (line, wanted) in [
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
            let words = line.split(' ').map(str::to_owned).collect();
            assert_eq!(with_port(words, "far", 5302).join(" "), wanted);
        }
    }
}
