//! Measurement of one side of a pair: a measuring command of this program, or a command of the user.

use linerate_host::stop_flag::Stop;
use linerate_metric::event::Problem;
use linerate_metric::figure;
use linerate_metric::record::Record;
use regex_lite::Regex;

use crate::child_process;
use crate::command::series::Ended;
use crate::failure::Failure;
use crate::printer::Teller;
use crate::shell_words;

/// Source of a measurement.
pub enum Half {
    /// A measuring command of this program.
    Measure(Vec<String>),
    /// A shell command.
    Command(String),
}

impl Half {
    /// Returns the command as text.
    pub fn label(&self) -> String {
        match self {
            Self::Measure(words) => shell_words::join(words),
            Self::Command(line) => line.clone(),
        }
    }

    /// Measures; returns the figure, and the record if there is one.
    pub fn run(
        &self,
        name: &str,
        expression: Option<&Regex>,
        stop: &Stop,
        screen: Option<&Teller>,
    ) -> Result<(f64, Option<Record>), Ended> {
        let text = match self {
            Self::Measure(words) => {
                let record = child_process::measure(words, stop, screen)?;
                return of_record(record, name, &self.label());
            }
            Self::Command(line) => child_process::shell(line, stop)?,
        };
        if let (None, Ok(record)) = (expression, serde_json::from_str::<Record>(&text)) {
            return of_record(record, name, &self.label());
        }
        let found = match expression {
            Some(expression) => expression.captures(&text).and_then(|captures| {
                let number = captures.get(1).or_else(|| captures.get(0))?;
                number.as_str().trim().parse::<f64>().ok()
            }),
            None => text.trim().parse::<f64>().ok(),
        };
        let missing = || {
            Failure::failed(Problem::new(
                format!("printed no number for `{name}`"),
                self.label(),
                "print only a number, or a record, or give --figure a regular expression whose first \
                 group is the number",
            ))
        };
        let value = found
            .filter(|value| value.is_finite())
            .ok_or_else(missing)?;
        Ok((value, None))
    }
}

fn of_record(record: Record, name: &str, label: &str) -> Result<(f64, Option<Record>), Ended> {
    let name = match name {
        "output" => figure::of_kind(record.kind).name,
        name => name,
    };
    let value = figure::named(name).and_then(|figure| figure.of(&record));
    match value {
        Some(value) => Ok((value, Some(record))),
        None => Err(Ended::Over(Failure::failed(Problem::new(
            format!("its run has no {name}"),
            label.to_owned(),
            "choose another --figure",
        )))),
    }
}
