//! Measurement at a setting of the knobs.

use std::thread;
use std::time::Duration;

use linerate_host::stop_flag::Stop;
use linerate_metric::comparison::Better;
use linerate_metric::exit;
use linerate_metric::expect::Figure;
use linerate_metric::experiment::Setting;
use linerate_metric::record::Record;
use linerate_metric::sweep::buffer_bytes;
use linerate_metric::units::format_bytes;
use linerate_tune::search::Point;

use super::request;
use crate::child_process;
use crate::command::series::Ended;
use crate::failure::Failure;
use crate::knob_applier::Turner;
use crate::printer::Teller;
use crate::shell_words;
use crate::ui_update::{Part, Scene};

/// Time of a run that only checks whether the server responds. A new setting may need a moment to
/// take effect, so it is repeated.
const ANSWER: &str = "100ms";
const ANSWERS: u32 = 3;
const BETWEEN: Duration = Duration::from_secs(1);

/// Knobs, the measuring command, and the figure to optimise.
pub struct Bench<'a> {
    pub turner: Turner<'a>,
    /// Measuring command of the start.
    pub words: Vec<String>,
    /// Figure to optimise.
    pub figure: &'static Figure,
    /// Maximum memory of a setting.
    pub memory_limit: Option<u64>,
    /// Number of runs so far.
    pub runs: u32,
    /// Purpose of the current runs, for the screen.
    pub purpose: &'static str,
    /// Screen that shows the runs.
    pub screen: Option<Teller>,
    stop: &'a Stop,
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
pub struct Seen {
    /// Value of the figure.
    pub value: Option<f64>,
    /// Memory of the setting.
    pub memory_bytes: Option<f64>,
    pub record: Option<Record>,
    /// Reason why the setting may not be chosen.
    pub refused: Option<String>,
}

impl<'a> Bench<'a> {
    /// Creates it without a measurement.
    pub fn new(
        turner: Turner<'a>,
        words: Vec<String>,
        figure: &'static Figure,
        memory_limit: Option<u64>,
        stop: &'a Stop,
    ) -> Self {
        Self {
            turner,
            words,
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
    pub fn measure(&mut self, point: &Point, time: Option<&str>) -> Result<Seen, Ended> {
        let refused = |why: String| Seen {
            value: None,
            memory_bytes: None,
            record: None,
            refused: Some(why),
        };
        let mut words = self.turner.command(&self.words, point)?;
        if let Some(time) = time {
            shell_words::set_option(&mut words, "time", time)?;
        }
        if let Err(failure) = request::check(&words) {
            return Ok(refused(reason(&failure)));
        }
        if let Err(why) = self.turner.apply(point)? {
            return Ok(refused(why));
        }
        self.runs += 1;
        if let Some(screen) = &self.screen {
            screen.show(Scene::Part(Part {
                name: "run",
                number: self.runs as usize,
                words: format!("{}: {}", self.purpose, self.said(point)),
                ..Part::default()
            }));
        }
        let record = match self.run(&words) {
            Ok(record) => record,
            // A server that responds at the start setting fails at this setting only, like a board
            // that does not boot with it.
            Err(Ended::Over(failure))
                if failure.code != exit::PEER || self.start_answers(point)? =>
            {
                return Ok(refused(reason(&failure)));
            }
            Err(ended) => return Err(ended),
        };
        let memory_bytes = self.memory(&record, point);
        let over = (self.memory_limit)
            .filter(|&limit| memory_bytes.is_none_or(|bytes| bytes > limit as f64));
        Ok(Seen {
            value: self.figure.of(&record),
            memory_bytes,
            record: Some(record),
            refused: over.map(|limit| match memory_bytes {
                Some(bytes) => over_memory(bytes, limit),
                None => "its memory is unknown".to_owned(),
            }),
        })
    }

    fn run(&self, words: &[String]) -> Result<Record, Ended> {
        match request::is_experiment(words) {
            true => child_process::point(words, self.stop),
            false => child_process::measure(words, self.stop, self.screen.as_ref()),
        }
    }

    /// Applies the start setting and returns whether the server responds there; false if this is
    /// the start already.
    ///
    /// # Errors
    /// Fails on Ctrl-C.
    fn start_answers(&mut self, point: &Point) -> Result<bool, Ended> {
        let start: Point = vec![0; point.len()];
        if *point == start || self.turner.apply(&start)?.is_err() {
            return Ok(false);
        }
        let mut words = self.turner.command(&self.words, &start)?;
        if !request::is_experiment(&words) {
            shell_words::set_option(&mut words, "time", ANSWER)?;
        }
        for _ in 0..ANSWERS {
            match self.run(&words) {
                Ok(_) => return Ok(true),
                Err(Ended::Over(_)) => thread::sleep(BETWEEN),
                Err(stopped) => return Err(stopped),
            }
        }
        Ok(false)
    }

    /// Returns the memory of the buffers and of the user's knobs in bytes.
    fn memory(&self, record: &Record, point: &Point) -> Option<f64> {
        let own = self.turner.memory(point);
        match buffer_bytes(record) {
            Some(bytes) => Some(bytes + own),
            // A board does not report its buffers: only its knobs count.
            None => (own > 0.0).then_some(own),
        }
    }

    /// Returns the score of a value above zero: higher is better, and a difference is a ratio of
    /// values.
    pub fn score(&self, value: f64) -> f64 {
        match self.figure.better() {
            Better::Higher => value.ln(),
            Better::Lower => -value.ln(),
        }
    }

    /// Returns the value of a score.
    pub fn value(&self, score: f64) -> f64 {
        match self.figure.better() {
            Better::Higher => score.exp(),
            Better::Lower => (-score).exp(),
        }
    }

    /// Returns the differences from the start.
    pub fn setting(&self, point: &Point) -> Setting {
        (self.turner.knobs.iter().zip(point))
            .filter(|(_, value)| **value != 0)
            .map(|(knob, &value)| (knob.name.clone(), knob.values[value].clone()))
            .collect()
    }

    /// Returns the differences from the start as text.
    pub fn said(&self, point: &Point) -> String {
        let setting = self.setting(point);
        let parts = setting
            .iter()
            .map(|(knob, value)| format!("{knob}={value}"));
        match setting.is_empty() {
            true => "start".to_owned(),
            false => parts.collect::<Vec<_>>().join(" "),
        }
    }
}

/// Returns why a setting was rejected; for a missing privilege or feature, with the next step.
fn reason(failure: &Failure) -> String {
    let problem = &failure.problem;
    match failure.code {
        exit::MISSING => format!("{problem} ({})", problem.next_step),
        _ => problem.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_metric::event::Problem;

    #[test]
    fn what_is_missing_is_told_with_what_gives_it() {
        let problem = Problem::new("not allowed for ordinary users", "-C cubic", "run as root");
        for (code, want) in [
            (
                exit::MISSING,
                "-C cubic: not allowed for ordinary users (run as root)",
            ),
            (exit::FAILED, "-C cubic: not allowed for ordinary users"),
        ] {
            let problem = problem.clone();
            assert_eq!(reason(&Failure { problem, code }), want);
        }
    }
}
