//! Measurement of one side of a pair: a measuring command of this program, or a command of the
//! user.

use linerate_host::stop_flag::StopFlag;
use linerate_record::event::ErrorReport;
use linerate_record::figure;
use linerate_record::record::Record;
use regex_lite::Regex;

use crate::child_process;
use crate::event_queue::EventSender;
use crate::failure::{CommandFailure, SeriesEnd};
use crate::shell_words;

/// Source of a measurement.
pub enum PairSource {
    /// A measuring command of this program.
    Measure(Vec<String>),
    /// A shell command.
    Command(String),
}

impl PairSource {
    /// Returns the command as text.
    pub fn label(&self) -> String {
        match self {
            Self::Measure(args) => shell_words::join_args(args),
            Self::Command(line) => line.clone(),
        }
    }

    /// Measures; returns the figure, and the record if there is one.
    pub fn run(
        &self,
        name: &str,
        pattern: Option<&Regex>,
        stop: &StopFlag,
        screen: Option<&EventSender>,
    ) -> Result<(f64, Option<Record>), SeriesEnd> {
        let text = match self {
            Self::Measure(args) => {
                let record = child_process::run_measurement(args, stop, screen)?;
                return of_record(record, name, &self.label());
            }
            Self::Command(line) => child_process::run_shell(line, stop)?,
        };
        if let (None, Ok(record)) = (pattern, serde_json::from_str::<Record>(&text)) {
            return of_record(record, name, &self.label());
        }
        let parsed = match pattern {
            Some(pattern) => pattern.captures(&text).and_then(|captures| {
                let number = captures.get(1).or_else(|| captures.get(0))?;
                number.as_str().trim().parse::<f64>().ok()
            }),
            None => text.trim().parse::<f64>().ok(),
        };
        let missing = || {
            CommandFailure::failed(ErrorReport::new(
                format!("printed no number for `{name}`"),
                self.label(),
                "print only a number, or a record, or give --figure a regular expression whose first \
                 group is the number",
            ))
        };
        let value = parsed
            .filter(|value| value.is_finite())
            .ok_or_else(missing)?;
        Ok((value, None))
    }
}

fn of_record(record: Record, name: &str, label: &str) -> Result<(f64, Option<Record>), SeriesEnd> {
    let name = match name {
        "output" => figure::default_for(record.kind).name,
        name => name,
    };
    let value = figure::find(name).and_then(|figure| figure.value_in(&record));
    match value {
        Some(value) => Ok((value, Some(record))),
        None => Err(SeriesEnd::Failed(CommandFailure::failed(ErrorReport::new(
            format!("its run has no {name}"),
            label.to_owned(),
            "choose another --figure",
        )))),
    }
}
