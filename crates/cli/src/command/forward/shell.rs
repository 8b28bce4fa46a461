//! The shell: its settings, and the forwarder that its commands start and stop.

mod ports;
mod settings;
mod show;

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use linerate_host::stop_flag::Stop;
use linerate_measure::MeasureError;
use linerate_measure::forward::{Forwarder, Ran, Settings, Times, plan, record};
use linerate_metric::event::Event;
use linerate_metric::exit;
use linerate_metric::forward::ForwardFigures;
use linerate_metric::record::{Record, new_id};
use linerate_metric::run_set::{RunSet, SET_SCHEMA, SetResult};
use linerate_metric::units::parse_duration;
use linerate_report::forward::{core_statistics, forward_statistics, stream_map};

use super::args::ForwardArgs;
use super::command_input::{Line, Lines, PROMPT};
use super::commands::SECTIONS;
use super::{INTERVAL, QUIET, few_in_flight, grammar, say, started, testpmd_commands};
use crate::failure::Failure;
use crate::output::Output;
use crate::port_devices::Nics;

/// Result of a command.
pub enum Reply {
    /// Text to print, possibly empty.
    Said(String),
    /// Ends the shell.
    Quit,
}

/// Time between two polls for a signal while the shell waits for a command.
const LOOK: Duration = Duration::from_millis(50);

/// Timing of a run in the shell, which a command ends.
const TIMES: Times = Times {
    duration: None,
    interval: INTERVAL,
    quiet: QUIET,
};

/// Maximum number of pending commands of files: beyond it, a file loads itself.
const LOADED_LINES: usize = 100_000;

/// A shell with open ports.
pub struct Shell<'a> {
    forwarder: Forwarder,
    /// Applied device settings. Declared after the ports, so that they drop after them.
    nics: Nics,
    settings: Settings,
    defaults: Settings,
    output: &'a mut Output,
    stop: &'a Stop,
    /// Time and settings of the current run; later changes apply to the next one.
    started: Option<(Timestamp, Settings)>,
    /// Counters of the ports at the last `show`, start or clear, with its time.
    shown: Option<show::Shown>,
    /// Names of counters that are shown with the port statistics.
    displayed: Vec<String>,
    /// Figures of the last run, for `show` after its end.
    last: Option<ForwardFigures>,
    /// Pending commands of files.
    loaded: VecDeque<String>,
    /// A command failed, which sets the exit code of a script.
    failed: bool,
    /// Ctrl-C was pressed at the prompt.
    interrupted: bool,
    /// Records for the one document on standard output.
    runs: Vec<Record>,
}

/// Runs the shell and returns the exit code.
pub fn run(
    args: &ForwardArgs,
    settings: Settings,
    (forwarder, nics): (Forwarder, Nics),
    stop: &Stop,
    output: &mut Output,
) -> Result<u8, Failure> {
    let tx_first = settings.tx_first;
    let mut shell = Shell {
        forwarder,
        nics,
        defaults: settings.clone(),
        settings,
        output,
        stop,
        started: None,
        shown: None,
        displayed: args.display_xstats.clone(),
        last: None,
        loaded: VecDeque::new(),
        failed: false,
        interrupted: false,
        runs: Vec::new(),
    };
    let began = Timestamp::now();
    if let Some(file) = &args.commands
        && let Err(error) = shell.load(&file.display().to_string())
    {
        return Err(Failure::usage(linerate_metric::event::Problem::new(
            error,
            "--commands",
            "name a readable file",
        )));
    }
    if args.auto_start || args.tx_first.is_some() {
        let reply = shell.start(tx_first);
        shell.tell(reply);
    }
    // A command file ends the shell with its last line, unless a terminal or a pipe follows.
    let goes_on = args.interactive || args.commands.is_none();
    let code = shell.serve(goes_on);
    // However it ends: the statistics are printed, and the record is stored.
    if shell.forwarder.is_running() {
        let reply = shell.stop();
        shell.tell(reply);
    }
    shell.document(began)?;
    // A user at a terminal has seen the failures; a script needs the exit code.
    let is_typed = goes_on && std::io::stdin().is_terminal();
    Ok(match code {
        exit::OK if shell.failed && !is_typed => exit::FAILED,
        code => code,
    })
}

impl Shell<'_> {
    fn serve(&mut self, goes_on: bool) -> u8 {
        if let Some(code) = self.take_loaded() {
            return code;
        }
        if !goes_on {
            return exit::OK;
        }
        let mut lines = Lines::of_stdin(self.forwarder.numbers(), self.output.is_for_people());
        loop {
            lines.know(self.forwarder.numbers());
            lines.ask();
            let line = loop {
                if let Some(line) = lines.wait(LOOK) {
                    break line;
                }
                if self.stop.is_set() {
                    return exit::INTERRUPTED;
                }
                self.forwarder.look();
                let passed = self.forwarder.described();
                if !passed.is_empty() {
                    lines.print(&passed.join("\n"), |text| say(self.output, text));
                }
                if self.forwarder.is_running()
                    && (self.forwarder.has_ended() || self.forwarder.is_troubled())
                {
                    let reply = self.stop();
                    self.tell(reply);
                }
            };
            match line {
                Line::Text(line) => {
                    if !lines.typed {
                        self.echo(&line);
                    }
                    let ended = self.ended_by(&line).or_else(|| self.take_loaded());
                    if let Some(code) = ended {
                        return code;
                    }
                }
                Line::End => return exit::OK,
                Line::Interrupted => {
                    self.interrupted = true;
                    return exit::INTERRUPTED;
                }
            }
        }
    }

    /// Runs a line; returns the exit code if the shell ends: on `quit`, or on Ctrl-C meanwhile,
    /// which also ends a script.
    fn ended_by(&mut self, line: &str) -> Option<u8> {
        match self.take(line) {
            true => Some(exit::OK),
            false => self.stop.is_set().then_some(exit::INTERRUPTED),
        }
    }

    /// Runs the pending lines of files.
    fn take_loaded(&mut self) -> Option<u8> {
        while let Some(line) = self.loaded.pop_front() {
            self.echo(&line);
            if let Some(code) = self.ended_by(&line) {
                return Some(code);
            }
        }
        None
    }

    /// Prints the document of `--json`: the record of the only run, or a set.
    fn document(&mut self, began: Timestamp) -> Result<(), Failure> {
        if !self.output.is_json() {
            return Ok(());
        }
        if let [record] = &self.runs[..] {
            return self.output.document_of(record);
        }
        let started = self.runs.first().map_or(began, |run| run.started);
        let set = RunSet {
            schema: SET_SCHEMA.to_owned(),
            id: new_id(started),
            kind: "shell".to_owned(),
            started,
            interrupted: self.is_interrupted(),
            runs: std::mem::take(&mut self.runs),
            result: SetResult::default(),
        };
        match set.runs.is_empty() {
            // An empty set is printed, but not stored.
            true => self.output.document(&set, |_| String::new()),
            false => self.output.set(&set, &[]),
        }
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted || self.stop.is_set()
    }

    /// Prints a command that was not typed, as if it was.
    fn echo(&self, line: &str) {
        say(self.output, &format!("{PROMPT}{line}"));
    }

    /// Runs a line; returns whether the shell ends.
    fn take(&mut self, line: &str) -> bool {
        let said = line.split('#').next().unwrap_or("");
        let words: Vec<_> = said.split_whitespace().collect();
        if words.is_empty() {
            return false;
        }
        let Some((command, free)) = grammar::find(&words) else {
            self.failed = true;
            say(self.output, &grammar::unknown(&words));
            return false;
        };
        let reply = (command.run)(self, &free);
        let ends = self.tell(reply);
        self.show_passed();
        ends
    }

    /// Prints the result of a command; returns whether the shell ends.
    fn tell(&mut self, reply: Result<Reply, String>) -> bool {
        match reply {
            Ok(Reply::Said(text)) => {
                if !text.is_empty() {
                    say(self.output, &text);
                }
                false
            }
            Ok(Reply::Quit) => true,
            Err(error) => {
                self.failed = true;
                say(self.output, &format!("error: {error}"));
                false
            }
        }
    }

    pub fn start(&mut self, tx_first: u64) -> Result<Reply, String> {
        let settings = Settings {
            tx_first,
            ..self.settings.clone()
        };
        let before = self.look();
        let places = self.forwarder.start(&settings, QUIET).map_err(words)?;
        // The first `show` prints rates since here.
        self.shown = Some(before);
        let ports = self.forwarder.numbers().len();
        let mut map = stream_map(&settings.mode.to_string(), ports, &places);
        if self.output.is_stream() {
            let what = started(plan(&self.forwarder.urls(), &settings, &TIMES, &places));
            self.output
                .event(&Event { test: 1, what }, Timestamp::now());
        }
        self.started = Some((Timestamp::now(), settings));
        // Wait until the number of circulating packets is known, which takes long only if a peer
        // does not receive.
        while tx_first > 0 && self.forwarder.is_running() && !self.stop.is_set() {
            if let Some(primed) = self.forwarder.primed() {
                map.extend(few_in_flight(tx_first, primed).map(|note| format!("\n{note}")));
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Reply::Said(map))
    }

    /// Prints descriptions of packets, if enabled.
    fn show_passed(&mut self) {
        let passed = self.forwarder.described();
        if !passed.is_empty() {
            say(self.output, &passed.join("\n"));
        }
    }

    pub fn stop(&mut self) -> Result<Reply, String> {
        let Some(mut outcome) = self.forwarder.stop() else {
            return Err("forwarding is not running: use `start`".to_owned());
        };
        if !outcome.described.is_empty() {
            say(self.output, &outcome.described.join("\n"));
        }
        // Counters cleared meanwhile are printed from there; the record has the full figures.
        let shown = outcome.since_cleared.take();
        let shown = shown.unwrap_or_else(|| outcome.figures.clone());
        let mut text = format!(
            "{}\n\n{}",
            forward_statistics(&shown),
            core_statistics(&outcome.figures)
        );
        self.last = Some(shown);
        if let Some(error) = &outcome.trouble {
            self.failed = true;
            text.push_str(&format!("\nerror: {error}"));
        }
        if let Some(doubt) = &outcome.numa {
            text.push_str(&format!("\nwarning: {}", doubt.why));
        }
        let (started, settings) =
            (self.started.take()).unwrap_or_else(|| (Timestamp::now(), self.settings.clone()));
        let ran = Ran {
            started,
            places: outcome.places,
            figures: outcome.figures,
            readings: Vec::new(),
            interrupted: self.is_interrupted(),
            trouble: outcome.trouble.take(),
            numa: outcome.numa.take(),
        };
        let record = record(&self.forwarder.urls(), &settings, &TIMES, ran);
        let kept = self.output.keep(&record);
        if self.output.is_json() {
            self.runs.push(record);
        }
        kept.map_err(|failure| failure.problem.to_string())?;
        Ok(Reply::Said(text))
    }

    pub fn quit(&mut self) -> Result<Reply, String> {
        Ok(Reply::Quit)
    }

    pub fn sleep(&mut self, time: &str) -> Result<Reply, String> {
        let time = parse_duration(time).map_err(|error| error.to_string())?;
        let until = Instant::now() + time.min(Duration::from_secs(86_400));
        while !self.stop.is_set() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(LOOK));
            self.forwarder.look();
            self.show_passed();
            if self.forwarder.is_troubled() {
                // Reported now, not at the next `stop`; there is nothing left to wait for.
                return self.stop();
            }
        }
        Ok(Reply::Said(String::new()))
    }

    pub fn load(&mut self, file: &str) -> Result<Reply, String> {
        let text = std::fs::read_to_string(file)
            .map_err(|error| format!("cannot read {file}: {error}"))?;
        if self.loaded.len() > LOADED_LINES {
            return Err(format!("{file} loads itself"));
        }
        for line in text.lines().rev() {
            self.loaded.push_front(line.to_owned());
        }
        Ok(Reply::Said(String::new()))
    }

    pub fn help(&mut self, part: Option<&str>) -> Result<Reply, String> {
        let Some(part) = part else {
            let names: Vec<_> = SECTIONS.iter().map(|section| section.name).collect();
            return Ok(Reply::Said(format!(
                "help SECTION, where SECTION is one of {}, all\nhelp absent: commands of testpmd that are not \
                 available\nmost used: start tx_first 1, stop, show port stats all, set fwd macswap, quit",
                names.join(", ")
            )));
        };
        // Sections of testpmd's help about NICs.
        if [
            "absent",
            "filters",
            "traffic_management",
            "devices",
            "drivers",
        ]
        .contains(&part)
        {
            return Ok(Reply::Said(testpmd_commands::list()));
        }
        let sections: Vec<_> = SECTIONS
            .iter()
            .filter(|section| part == "all" || part == section.name)
            .collect();
        if sections.is_empty() {
            return Err(format!("no help section `{part}`: use `help`"));
        }
        let commands = sections.iter().flat_map(|section| section.commands);
        let width = commands.clone().map(|command| command.words.len()).max();
        let width = width.unwrap_or(0);
        let lines = commands.map(|command| format!("{:<width$}  {}", command.words, command.about));
        Ok(Reply::Said(lines.collect::<Vec<_>>().join("\n")))
    }
}

/// Formats a failure in one line, with the next step.
fn words(error: MeasureError) -> String {
    let problem = error.problem();
    format!("{problem}; {}", problem.next_step)
}
