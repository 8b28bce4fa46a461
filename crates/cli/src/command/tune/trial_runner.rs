//! Measurement at a setting of the knobs.

use std::thread;
use std::time::Duration;

use linerate_host::stop_flag::StopFlag;
use linerate_record::comparison::BetterWhen;
use linerate_record::exit_codes;
use linerate_record::expect::NamedFigure;
use linerate_record::experiment::KnobValues;
use linerate_record::record::Record;
use linerate_record::sweep::buffer_bytes;
use linerate_stats::units::format_bytes;
use linerate_tune::search::SearchPoint;

use super::request;
use crate::child_process;
use crate::event_queue::EventSender;
use crate::failure::{CommandFailure, SeriesEnd};
use crate::knob_applier::KnobApplier;
use crate::shell_words;
use crate::ui_update::{SeriesPart, UiUpdate};

/// Time of a run that only checks whether the server responds. A new setting may need a moment to
/// take effect, so it is repeated.
const RESPONSE_CHECK_TIME: &str = "100ms";
const RESPONSE_CHECKS: u32 = 3;
const RESPONSE_CHECK_PAUSE: Duration = Duration::from_secs(1);

/// Knobs, the measuring command, and the figure to optimise.
pub struct TrialRunner<'a> {
    pub applier: KnobApplier<'a>,
    /// Measuring command of the start.
    pub command: Vec<String>,
    /// Figure to optimise.
    pub figure: &'static NamedFigure,
    /// Maximum memory of a setting.
    pub memory_limit: Option<u64>,
    /// Number of runs so far.
    pub runs: u32,
    /// Purpose of the current runs, for the screen.
    pub purpose: &'static str,
    /// Screen that shows the runs.
    pub screen: Option<EventSender>,
    stop: &'a StopFlag,
}

/// Returns why a setting is rejected that takes too much memory.
fn over_memory(bytes: f64, limit: u64) -> String {
    format!(
        "takes {} of memory, more than the {} of --under",
        format_bytes(bytes.ceil() as u64),
        format_bytes(limit)
    )
}

/// Result of a run.
pub struct MeasuredTrial {
    /// Value of the figure.
    pub value: Option<f64>,
    /// Memory of the setting.
    pub memory_bytes: Option<f64>,
    pub record: Option<Record>,
    /// Reason why the setting may not be chosen.
    pub rejection: Option<String>,
}

impl<'a> TrialRunner<'a> {
    /// Creates it without a measurement.
    pub fn new(
        applier: KnobApplier<'a>,
        args: Vec<String>,
        figure: &'static NamedFigure,
        memory_limit: Option<u64>,
        stop: &'a StopFlag,
    ) -> Self {
        Self {
            applier,
            command: args,
            figure,
            memory_limit,
            runs: 0,
            purpose: "",
            screen: None,
            stop,
        }
    }

    /// Measures a setting; `time` replaces the time of the command.
    ///
    /// # Errors
    /// Fails if the server is lost, or on Ctrl-C.
    pub fn measure(
        &mut self,
        point: &SearchPoint,
        time: Option<&str>,
    ) -> Result<MeasuredTrial, SeriesEnd> {
        let rejected = |why: String| MeasuredTrial {
            value: None,
            memory_bytes: None,
            record: None,
            rejection: Some(why),
        };
        let mut args = self.applier.measuring_command(&self.command, point)?;
        if let Some(time) = time {
            shell_words::set_option(&mut args, "time", time)?;
        }
        if let Err(failure) = request::check_command(&args) {
            return Ok(rejected(rejection_reason(&failure)));
        }
        if let Err(why) = self.applier.apply(point)? {
            return Ok(rejected(why));
        }
        self.runs += 1;
        if let Some(screen) = &self.screen {
            screen.show(UiUpdate::PartStarted(SeriesPart {
                name: "run",
                number: self.runs as usize,
                settings: format!("{}: {}", self.purpose, self.describe_setting(point)),
                ..SeriesPart::default()
            }));
        }
        let record = match self.run_command(&args) {
            Ok(record) => record,
            // A server that responds at the start setting fails at this setting only, like a board
            // that does not boot with it.
            Err(SeriesEnd::Failed(failure))
                if failure.code != exit_codes::PEER || self.start_responds(point)? =>
            {
                return Ok(rejected(rejection_reason(&failure)));
            }
            Err(end) => return Err(end),
        };
        let memory_bytes = self.total_memory(&record, point);
        let exceeded = (self.memory_limit)
            .filter(|&limit| memory_bytes.is_none_or(|bytes| bytes > limit as f64));
        Ok(MeasuredTrial {
            value: self.figure.value_in(&record),
            memory_bytes,
            record: Some(record),
            rejection: exceeded.map(|limit| match memory_bytes {
                Some(bytes) => over_memory(bytes, limit),
                None => "its memory is unknown".to_owned(),
            }),
        })
    }

    fn run_command(&self, args: &[String]) -> Result<Record, SeriesEnd> {
        match request::is_experiment(args) {
            true => child_process::measure_point(args, self.stop),
            false => child_process::run_measurement(args, self.stop, self.screen.as_ref()),
        }
    }

    /// Applies the start setting and returns whether the server responds there; false if this is
    /// the start already.
    ///
    /// # Errors
    /// Fails on Ctrl-C.
    fn start_responds(&mut self, point: &SearchPoint) -> Result<bool, SeriesEnd> {
        let start: SearchPoint = vec![0; point.len()];
        if *point == start || self.applier.apply(&start)?.is_err() {
            return Ok(false);
        }
        let mut args = self.applier.measuring_command(&self.command, &start)?;
        if !request::is_experiment(&args) {
            shell_words::set_option(&mut args, "time", RESPONSE_CHECK_TIME)?;
        }
        for _ in 0..RESPONSE_CHECKS {
            match self.run_command(&args) {
                Ok(_) => return Ok(true),
                Err(SeriesEnd::Failed(_)) => thread::sleep(RESPONSE_CHECK_PAUSE),
                Err(stopped) => return Err(stopped),
            }
        }
        Ok(false)
    }

    /// Returns the memory of the buffers and of the user's knobs in bytes.
    fn total_memory(&self, record: &Record, point: &SearchPoint) -> Option<f64> {
        let knob_bytes = self.applier.memory(point);
        match buffer_bytes(record) {
            Some(bytes) => Some(bytes + knob_bytes),
            // A board does not report its buffers: only its knobs count.
            None => (knob_bytes > 0.0).then_some(knob_bytes),
        }
    }

    /// Returns the score of a value above zero: higher is better, and a difference is a ratio of
    /// values.
    pub fn score(&self, value: f64) -> f64 {
        match self.figure.better_when() {
            BetterWhen::Higher => value.ln(),
            BetterWhen::Lower => -value.ln(),
        }
    }

    /// Returns the value of a score.
    pub fn value(&self, score: f64) -> f64 {
        match self.figure.better_when() {
            BetterWhen::Higher => score.exp(),
            BetterWhen::Lower => (-score).exp(),
        }
    }

    /// Returns the differences from the start.
    pub fn setting(&self, point: &SearchPoint) -> KnobValues {
        (self.applier.knobs.iter().zip(point))
            .filter(|(_, value)| **value != 0)
            .map(|(knob, &value)| (knob.name.clone(), knob.values[value].clone()))
            .collect()
    }

    /// Returns the differences from the start as text.
    pub fn describe_setting(&self, point: &SearchPoint) -> String {
        let setting = self.setting(point);
        let parts = setting
            .iter()
            .map(|(knob, value)| format!("{knob}={value}"));
        match setting.is_empty() {
            true => "baseline".to_owned(),
            false => parts.collect::<Vec<_>>().join(" "),
        }
    }
}

/// Returns why a setting was rejected; for a missing privilege or feature, with the next step.
fn rejection_reason(failure: &CommandFailure) -> String {
    let problem = &failure.problem;
    match failure.code {
        exit_codes::MISSING => format!("{problem} ({})", problem.next_step),
        _ => problem.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use linerate_record::event::ErrorReport;

    use super::*;

    #[test]
    fn a_missing_feature_is_reported_with_its_remedy() {
        let problem = ErrorReport::new("not allowed for ordinary users", "-C cubic", "run as root");
        for (code, expected) in [
            (
                exit_codes::MISSING,
                "-C cubic: not allowed for ordinary users (run as root)",
            ),
            (
                exit_codes::FAILED,
                "-C cubic: not allowed for ordinary users",
            ),
        ] {
            let problem = problem.clone();
            assert_eq!(
                rejection_reason(&CommandFailure { problem, code }),
                expected
            );
        }
    }
}
