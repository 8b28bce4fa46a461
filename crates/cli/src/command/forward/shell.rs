//! The shell: settings that commands change, and the forwarder that they start and stop.

mod ports;
mod set;
mod show;

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use linerate_host::stop::Stop;
use linerate_measure::MeasureError;
use linerate_measure::forward::{Forwarder, Ran, Settings, Times, plan, record};
use linerate_metric::event::Event;
use linerate_metric::exit;
use linerate_metric::forward::ForwardFigures;
use linerate_metric::record::{Record, new_id};
use linerate_metric::set::{RunSet, SET_SCHEMA, SetResult};
use linerate_metric::units::parse_duration;
use linerate_report::forward::{core_statistics, forward_statistics, stream_map};

use super::args::ForwardArgs;
use super::commands::SECTIONS;
use super::lines::{Line, Lines, PROMPT};
use super::{INTERVAL, QUIET, few_in_flight, foreign, grammar, say, started};
use crate::failure::Failure;
use crate::nic::Nics;
use crate::output::Output;

/// What follows from a command.
pub enum Reply {
    /// Something to say, which may be nothing.
    Said(String),
    /// The shell ends.
    Quit,
}

/// How often a shell that waits for a command looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(50);

/// Who types ends a run.
const TIMES: Times = Times {
    duration: None,
    interval: INTERVAL,
    quiet: QUIET,
};

/// Most commands that files may leave to be done: beyond it they load themselves.
const LOADED_LINES: usize = 100_000;

/// A shell with open ports.
pub struct Shell<'a> {
    forwarder: Forwarder,
    /// What ports asked of their devices, set back when they are closed: behind them, so that it drops after them.
    nics: Nics,
    settings: Settings,
    defaults: Settings,
    output: &'a mut Output,
    stop: &'a Stop,
    /// When forwarding started, and with which settings: later ones are for the next time.
    started: Option<(Timestamp, Settings)>,
    /// What ports had moved when they were shown last, or when they started or were cleared, and when that was.
    shown: Option<show::Shown>,
    /// Counters that are shown with what ports moved.
    displayed: Vec<String>,
    /// What the last run moved, for who asks after its stop.
    last: Option<ForwardFigures>,
    /// Commands of files that have yet to come.
    loaded: VecDeque<String>,
    /// Whether a command failed: for the exit code of a script.
    failed: bool,
    /// Whether somebody pressed Ctrl-C at the prompt.
    interrupted: bool,
    /// What standard output gets at the end, where that is one document.
    runs: Vec<Record>,
}

/// Runs it; gives the exit code.
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
            "name a file that can be read",
        )));
    }
    if args.auto_start || args.tx_first.is_some() {
        let reply = shell.start(tx_first);
        shell.tell(reply);
    }
    // Files alone end with their last line; a terminal or a pipe goes on after them.
    let goes_on = args.interactive || args.commands.is_none();
    let code = shell.serve(goes_on);
    // Whatever ended it: what was moved is told, and the record stored.
    if shell.forwarder.is_running() {
        let reply = shell.stop();
        shell.tell(reply);
    }
    shell.document(began)?;
    // Who types has seen what failed; who reads an exit code has not.
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

    /// Does what a line says; the exit code where the shell ends: somebody quits, or pressed Ctrl-C meanwhile,
    /// and waits for no more of a script.
    fn ended_by(&mut self, line: &str) -> Option<u8> {
        match self.take(line) {
            true => Some(exit::OK),
            false => self.stop.is_set().then_some(exit::INTERRUPTED),
        }
    }

    /// The same for lines of files.
    fn take_loaded(&mut self) -> Option<u8> {
        while let Some(line) = self.loaded.pop_front() {
            self.echo(&line);
            if let Some(code) = self.ended_by(&line) {
                return Some(code);
            }
        }
        None
    }

    /// What `--json` prints: the record of the only run, or a set of as many as there were.
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
            // There is a document, and nothing to be kept.
            true => self.output.document(&set, |_| String::new()),
            false => self.output.set(&set, &[]),
        }
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted || self.stop.is_set()
    }

    /// A command that nobody typed is shown as if somebody had.
    fn echo(&self, line: &str) {
        say(self.output, &format!("{PROMPT}{line}"));
    }

    /// Does what a line says; whether the shell ends.
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

    /// Says what a command came to; whether the shell ends.
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
        // Whoever looks for the first time sees the rates since then.
        self.shown = Some(before);
        let ports = self.forwarder.numbers().len();
        let mut map = stream_map(&settings.mode.to_string(), ports, &places);
        if self.output.is_stream() {
            let what = started(plan(&self.forwarder.urls(), &settings, &TIMES, &places));
            self.output
                .event(&Event { test: 1, what }, Timestamp::now());
        }
        self.started = Some((Timestamp::now(), settings));
        // Until it is known how many packets circulate, which takes long only where nobody takes them.
        while tx_first > 0 && self.forwarder.is_running() && !self.stop.is_set() {
            if let Some(primed) = self.forwarder.primed() {
                map.extend(few_in_flight(tx_first, primed).map(|words| format!("\n{words}")));
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Reply::Said(map))
    }

    /// Shows packets that passed, where that was asked for.
    fn show_passed(&mut self) {
        let passed = self.forwarder.described();
        if !passed.is_empty() {
            say(self.output, &passed.join("\n"));
        }
    }

    pub fn stop(&mut self) -> Result<Reply, String> {
        let Some(mut outcome) = self.forwarder.stop() else {
            return Err("nothing is forwarded: say `start`".to_owned());
        };
        if !outcome.described.is_empty() {
            say(self.output, &outcome.described.join("\n"));
        }
        // Who counted from zero meanwhile sees that; the record has all of it.
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
                // Told now, and not when somebody says `stop`; there is nothing left to wait for.
                return self.stop();
            }
        }
        Ok(Reply::Said(String::new()))
    }

    pub fn load(&mut self, file: &str) -> Result<Reply, String> {
        let text = std::fs::read_to_string(file)
            .map_err(|error| format!("{file} cannot be read: {error}"))?;
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
                "help PART, where PART is one of {}, all\nhelp absent: words of testpmd that mean nothing \
                 here\nmost used: start tx_first 1, stop, show port stats all, set fwd macswap, quit",
                names.join(", ")
            )));
        };
        // Parts of testpmd's help that are about NICs.
        if [
            "absent",
            "filters",
            "traffic_management",
            "devices",
            "drivers",
        ]
        .contains(&part)
        {
            return Ok(Reply::Said(foreign::list()));
        }
        let sections: Vec<_> = SECTIONS
            .iter()
            .filter(|section| part == "all" || part == section.name)
            .collect();
        if sections.is_empty() {
            return Err(format!("there is no part `{part}`: say `help`"));
        }
        let commands = sections.iter().flat_map(|section| section.commands);
        let width = commands.clone().map(|command| command.words.len()).max();
        let width = width.unwrap_or(0);
        let lines = commands.map(|command| format!("{:<width$}  {}", command.words, command.about));
        Ok(Reply::Said(lines.collect::<Vec<_>>().join("\n")))
    }
}

/// A failure in one line, with what to do.
fn words(error: MeasureError) -> String {
    let problem = error.problem();
    format!("{problem}; {}", problem.next_step)
}
