//! Measuring at a setting of the knobs.

use std::thread;
use std::time::Duration;

use linerate_host::stop::Stop;
use linerate_metric::comparison::Better;
use linerate_metric::exit;
use linerate_metric::expect::Figure;
use linerate_metric::experiment::Setting;
use linerate_metric::record::Record;
use linerate_metric::sweep::buffer_bytes;
use linerate_metric::units::format_bytes;
use linerate_tune::search::Point;

use super::asked;
use crate::child;
use crate::command::series::Ended;
use crate::failure::Failure;
use crate::printer::Teller;
use crate::scene::{Part, Scene};
use crate::turn::Turner;
use crate::words;

/// Time of a run that only tells whether the far end is there, how often that is tried, and the pause between: what was
/// set may need a moment to come up again.
const ANSWER: &str = "100ms";
const ANSWERS: u32 = 3;
const BETWEEN: Duration = Duration::from_secs(1);

/// Knobs, the command that measures, and the figure that tells.
pub struct Bench<'a> {
    /// The knobs.
    pub turner: Turner<'a>,
    /// The measuring command of the start.
    pub words: Vec<String>,
    /// What is to get better.
    pub figure: &'static Figure,
    /// Bytes that a setting may take.
    pub memory_limit: Option<u64>,
    /// Runs so far.
    pub runs: u32,
    /// What runs are for now.
    pub purpose: &'static str,
    /// The screen that shows them.
    pub screen: Option<Teller>,
    stop: &'a Stop,
}

/// That a setting takes more than it may, and how much.
fn over_memory(bytes: f64, limit: u64) -> String {
    format!(
        "it takes {} of memory, more than the {} of --under",
        format_bytes(bytes.ceil() as u64),
        format_bytes(limit)
    )
}

/// What a run came to.
pub struct Seen {
    /// The figure.
    pub value: Option<f64>,
    /// Bytes that it took.
    pub memory_bytes: Option<f64>,
    /// Its record.
    pub record: Option<Record>,
    /// Why it may not be chosen.
    pub refused: Option<String>,
}

impl<'a> Bench<'a> {
    /// Nothing is measured yet.
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

    /// Measures at a setting; `time` in place of that of the command.
    ///
    /// # Errors
    /// The far end is gone, or somebody pressed Ctrl-C.
    pub fn measure(&mut self, point: &Point, time: Option<&str>) -> Result<Seen, Ended> {
        let refused = |why: String| Seen {
            value: None,
            memory_bytes: None,
            record: None,
            refused: Some(why),
        };
        let mut words = self.turner.command(&self.words, point)?;
        if let Some(time) = time {
            words::set_option(&mut words, "time", time)?;
        }
        if let Err(failure) = asked::check(&words) {
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
            // A far end that answers at the start is gone for this setting alone: a board that does not come up with it.
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
                None => "what it takes of memory is not known".to_owned(),
            }),
        })
    }

    fn run(&self, words: &[String]) -> Result<Record, Ended> {
        match asked::is_experiment(words) {
            true => child::point(words, self.stop),
            false => child::measure(words, self.stop, self.screen.as_ref()),
        }
    }

    /// Whether the far end answers at the start, where this setting is another one.
    ///
    /// # Errors
    /// Somebody pressed Ctrl-C.
    fn start_answers(&mut self, point: &Point) -> Result<bool, Ended> {
        let start: Point = vec![0; point.len()];
        if *point == start || self.turner.apply(&start)?.is_err() {
            return Ok(false);
        }
        let mut words = self.turner.command(&self.words, &start)?;
        if !asked::is_experiment(&words) {
            words::set_option(&mut words, "time", ANSWER)?;
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

    /// What buffers take, and what knobs of the user's own say they take.
    fn memory(&self, record: &Record, point: &Point) -> Option<f64> {
        let own = self.turner.memory(point);
        match buffer_bytes(record) {
            Some(bytes) => Some(bytes + own),
            // A board tells nothing of its buffers: what its knobs take is what is known.
            None => (own > 0.0).then_some(own),
        }
    }

    /// Of a value above zero; higher is better, a difference is a ratio.
    pub fn score(&self, value: f64) -> f64 {
        match self.figure.better() {
            Better::Higher => value.ln(),
            Better::Lower => -value.ln(),
        }
    }

    /// The value that a score stands for.
    pub fn value(&self, score: f64) -> f64 {
        match self.figure.better() {
            Better::Higher => score.exp(),
            Better::Lower => (-score).exp(),
        }
    }

    /// What differs from the start.
    pub fn setting(&self, point: &Point) -> Setting {
        (self.turner.knobs.iter().zip(point))
            .filter(|(_, value)| **value != 0)
            .map(|(knob, &value)| (knob.name.clone(), knob.values[value].clone()))
            .collect()
    }

    /// The same for people.
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

/// Why a setting was refused. What this host or the far end lacks can be given to it: with how.
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
