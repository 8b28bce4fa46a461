//! The shell: its settings, and the forwarder that its commands start and stop.

mod ports;
mod settings;
mod show;

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use linerate_forwarder::{ForwardRun, ForwardSettings, Forwarder, RunTimes, plan, record};
use linerate_host::stop_flag::StopFlag;
use linerate_port::FrameRunError;
use linerate_record::event::Event;
use linerate_record::exit_codes;
use linerate_record::forward::ForwardFigures;
use linerate_record::record::{Record, new_id};
use linerate_record::run_set::{RunSet, SET_SCHEMA, SetResult};
use linerate_report::forward::{core_statistics, forward_statistics, stream_map};
use linerate_stats::units::parse_duration;

use super::command_input::{CommandInput, PROMPT, ShellInput};
use super::commands::SECTIONS;
use super::{DEFAULT_INTERVAL, QUIET_TIME, grammar, print_text, started_event, too_few_in_flight};
use crate::args::ForwardArgs;
use crate::failure::CommandFailure;
use crate::output::CommandOutput;
use crate::port_devices::PortDevices;

/// Result of a command.
pub enum CommandReply {
    /// Text to print, possibly empty.
    Text(String),
    /// Ends the shell.
    Quit,
}

/// Time between two polls for a signal while the shell waits for a command.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Timing of a run in the shell, which a command ends.
const SHELL_TIMES: RunTimes = RunTimes {
    duration: None,
    interval: DEFAULT_INTERVAL,
    flush_quiet: QUIET_TIME,
};

/// Maximum number of pending commands of files: beyond it, a file loads itself.
const MAX_PENDING_LINES: usize = 100_000;

/// A shell with open ports.
pub struct ForwardShell<'a> {
    forwarder: Forwarder,
    /// Applied device settings. Declared after the ports, so that they drop after them.
    devices: PortDevices,
    settings: ForwardSettings,
    defaults: ForwardSettings,
    output: &'a mut CommandOutput,
    stop: &'a StopFlag,
    /// Time and settings of the current run; later changes apply to the next one.
    started: Option<(Timestamp, ForwardSettings)>,
    /// Counters of the ports at the last `show`, start or clear, with its time.
    last_shown: Option<show::PortCounters>,
    /// Names of counters that are shown with the port statistics.
    displayed: Vec<String>,
    /// Figures of the last run, for `show` after its end.
    last_figures: Option<ForwardFigures>,
    /// Pending commands of files.
    pending_lines: VecDeque<String>,
    /// A command failed, which sets the exit code of a script.
    has_failed: bool,
    /// Ctrl-C was pressed at the prompt.
    interrupted: bool,
    /// Records for the one document on standard output.
    runs: Vec<Record>,
}

/// Runs the shell and returns the exit code.
pub fn run(
    args: &ForwardArgs,
    settings: ForwardSettings,
    (forwarder, nics): (Forwarder, PortDevices),
    stop: &StopFlag,
    output: &mut CommandOutput,
) -> Result<u8, CommandFailure> {
    let tx_first = settings.tx_first;
    let mut shell = ForwardShell {
        forwarder,
        devices: nics,
        defaults: settings.clone(),
        settings,
        output,
        stop,
        started: None,
        last_shown: None,
        displayed: args.display_xstats.clone(),
        last_figures: None,
        pending_lines: VecDeque::new(),
        has_failed: false,
        interrupted: false,
        runs: Vec::new(),
    };
    let shell_started = Timestamp::now();
    if let Some(file) = &args.commands
        && let Err(error) = shell.load(&file.display().to_string())
    {
        return Err(CommandFailure::usage(
            linerate_record::event::ErrorReport::new(error, "--commands", "name a readable file"),
        ));
    }
    if args.auto_start || args.tx_first.is_some() {
        let reply = shell.start(tx_first);
        shell.print_reply(reply);
    }
    // A command file ends the shell with its last line, unless a terminal or a pipe follows.
    let continues = args.interactive || args.commands.is_none();
    let code = shell.run_commands(continues);
    // However it ends: the statistics are printed, and the record is stored.
    if shell.forwarder.is_running() {
        let reply = shell.stop();
        shell.print_reply(reply);
    }
    shell.print_document(shell_started)?;
    // A user at a terminal has seen the failures; a script needs the exit code.
    let is_typed = continues && std::io::stdin().is_terminal();
    Ok(match code {
        exit_codes::OK if shell.has_failed && !is_typed => exit_codes::FAILED,
        code => code,
    })
}

impl ForwardShell<'_> {
    fn run_commands(&mut self, continues: bool) -> u8 {
        if let Some(code) = self.run_pending_lines() {
            return code;
        }
        if !continues {
            return exit_codes::OK;
        }
        let lines = CommandInput::from_stdin(self.forwarder.numbers(), self.output.is_text());
        loop {
            lines.set_ports(self.forwarder.numbers());
            lines.request_line();
            let line = loop {
                if let Some(line) = lines.wait_for_line(POLL_INTERVAL) {
                    break line;
                }
                if self.stop.is_set() {
                    return exit_codes::INTERRUPTED;
                }
                self.forwarder.poll_background();
                if self.forwarder.is_running()
                    && (self.forwarder.has_ended() || self.forwarder.has_port_error())
                {
                    let reply = self.stop();
                    self.print_reply(reply);
                }
            };
            match line {
                ShellInput::Text(line) => {
                    if !lines.is_typed {
                        self.echo(&line);
                    }
                    let exit_code = self
                        .run_line_or_stop(&line)
                        .or_else(|| self.run_pending_lines());
                    if let Some(code) = exit_code {
                        return code;
                    }
                }
                ShellInput::End => return exit_codes::OK,
                ShellInput::Interrupted => {
                    self.interrupted = true;
                    return exit_codes::INTERRUPTED;
                }
            }
        }
    }

    /// Runs a line; returns the exit code if the shell ends: on `quit`, or on Ctrl-C meanwhile,
    /// which also ends a script.
    fn run_line_or_stop(&mut self, line: &str) -> Option<u8> {
        match self.run_line(line) {
            true => Some(exit_codes::OK),
            false => self.stop.is_set().then_some(exit_codes::INTERRUPTED),
        }
    }

    /// Runs the pending lines of files.
    fn run_pending_lines(&mut self) -> Option<u8> {
        while let Some(line) = self.pending_lines.pop_front() {
            self.echo(&line);
            if let Some(code) = self.run_line_or_stop(&line) {
                return Some(code);
            }
        }
        None
    }

    /// Prints the document of `--json`: the record of the only run, or a set.
    fn print_document(&mut self, shell_started: Timestamp) -> Result<(), CommandFailure> {
        if !self.output.is_json() {
            return Ok(());
        }
        if let [record] = &self.runs[..] {
            return self.output.write_record_document(record);
        }
        let started = self.runs.first().map_or(shell_started, |run| run.started);
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
            true => self.output.write_document(&set, |_| String::new()),
            false => self.output.write_set(&set, &[]),
        }
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted || self.stop.is_set()
    }

    /// Prints a command that was not typed, as if it was.
    fn echo(&self, line: &str) {
        print_text(self.output, &format!("{PROMPT}{line}"));
    }

    /// Runs a line; returns whether the shell ends.
    fn run_line(&mut self, line: &str) -> bool {
        let command_text = line.split('#').next().unwrap_or("");
        let words: Vec<_> = command_text.split_whitespace().collect();
        if words.is_empty() {
            return false;
        }
        let Some((command, values)) = grammar::find_command(&words) else {
            self.has_failed = true;
            print_text(self.output, &grammar::unknown_command(&words));
            return false;
        };
        let reply = (command.run)(self, &values);
        self.print_reply(reply)
    }

    /// Prints the result of a command; returns whether the shell ends.
    fn print_reply(&mut self, reply: Result<CommandReply, String>) -> bool {
        match reply {
            Ok(CommandReply::Text(text)) => {
                if !text.is_empty() {
                    print_text(self.output, &text);
                }
                false
            }
            Ok(CommandReply::Quit) => true,
            Err(error) => {
                self.has_failed = true;
                print_text(self.output, &format!("error: {error}"));
                false
            }
        }
    }

    pub fn start(&mut self, tx_first: u64) -> Result<CommandReply, String> {
        let settings = ForwardSettings {
            tx_first,
            ..self.settings.clone()
        };
        let before = self.read_counters();
        let streams = self
            .forwarder
            .start(&settings, QUIET_TIME)
            .map_err(failure_text)?;
        // The first `show` prints rates since here.
        self.last_shown = Some(before);
        let ports = self.forwarder.numbers().len();
        let mut map = stream_map(&settings.mode.to_string(), ports, &streams);
        if self.output.is_stream() {
            let what = started_event(plan(
                &self.forwarder.urls(),
                &settings,
                &SHELL_TIMES,
                &streams,
            ));
            self.output.print_event(
                &Event {
                    test: 1,
                    kind: what,
                },
                Timestamp::now(),
            );
        }
        self.started = Some((Timestamp::now(), settings));
        // Wait until the number of circulating packets is known, which takes long only if a peer
        // does not receive.
        while tx_first > 0 && self.forwarder.is_running() && !self.stop.is_set() {
            if let Some(primed) = self.forwarder.primed() {
                map.extend(too_few_in_flight(tx_first, primed).map(|note| format!("\n{note}")));
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(CommandReply::Text(map))
    }

    pub fn stop(&mut self) -> Result<CommandReply, String> {
        let Some(mut stopped) = self.forwarder.stop() else {
            return Err("forwarding is not running: use `start`".to_owned());
        };
        // Counters cleared meanwhile are printed from there; the record has the full figures.
        let shown = stopped.since_cleared.take();
        let shown = shown.unwrap_or_else(|| stopped.figures.clone());
        let mut text = format!(
            "{}\n\n{}",
            forward_statistics(&shown),
            core_statistics(&stopped.figures)
        );
        self.last_figures = Some(shown);
        if let Some(error) = &stopped.port_error {
            self.has_failed = true;
            text.push_str(&format!("\nerror: {error}"));
        }
        if let Some(caveat) = &stopped.numa_caveat {
            text.push_str(&format!("\nwarning: {}", caveat.reason));
        }
        let (started, settings) =
            (self.started.take()).unwrap_or_else(|| (Timestamp::now(), self.settings.clone()));
        let finished_run = ForwardRun {
            started,
            routes: stopped.routes,
            figures: stopped.figures,
            intervals: Vec::new(),
            interrupted: self.is_interrupted(),
            port_error: stopped.port_error.take(),
            numa_caveat: stopped.numa_caveat.take(),
        };
        let record = record(
            &self.forwarder.urls(),
            &settings,
            &SHELL_TIMES,
            finished_run,
        );
        let stored = self.output.store_result(&record);
        if self.output.is_json() {
            self.runs.push(record);
        }
        stored.map_err(|failure| failure.problem.to_string())?;
        Ok(CommandReply::Text(text))
    }

    pub fn quit(&mut self) -> Result<CommandReply, String> {
        Ok(CommandReply::Quit)
    }

    pub fn sleep(&mut self, time: &str) -> Result<CommandReply, String> {
        let time = parse_duration(time).map_err(|error| error.to_string())?;
        let end = Instant::now() + time.min(Duration::from_secs(86_400));
        while !self.stop.is_set() {
            let remaining = end.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                break;
            }
            std::thread::sleep(remaining.min(POLL_INTERVAL));
            self.forwarder.poll_background();
            if self.forwarder.has_port_error() {
                // Reported now, not at the next `stop`; there is nothing left to wait for.
                return self.stop();
            }
        }
        Ok(CommandReply::Text(String::new()))
    }

    pub fn load(&mut self, file: &str) -> Result<CommandReply, String> {
        let text = std::fs::read_to_string(file)
            .map_err(|error| format!("cannot read {file}: {error}"))?;
        if self.pending_lines.len() > MAX_PENDING_LINES {
            return Err(format!("{file} loads itself"));
        }
        for line in text.lines().rev() {
            self.pending_lines.push_front(line.to_owned());
        }
        Ok(CommandReply::Text(String::new()))
    }

    pub fn help(&mut self, part: Option<&str>) -> Result<CommandReply, String> {
        let Some(part) = part else {
            let names: Vec<_> = SECTIONS.iter().map(|section| section.name).collect();
            return Ok(CommandReply::Text(format!(
                "help SECTION, where SECTION is one of {}, all\n\
                 most used: start tx_first 1, stop, show port stats all, set fwd macswap, quit",
                names.join(", ")
            )));
        };
        let sections: Vec<_> = SECTIONS
            .iter()
            .filter(|section| part == "all" || part == section.name)
            .collect();
        if sections.is_empty() {
            return Err(format!("no help section `{part}`: use `help`"));
        }
        let commands = sections.iter().flat_map(|section| section.commands);
        let width = commands.clone().map(|command| command.pattern.len()).max();
        let width = width.unwrap_or(0);
        let lines =
            commands.map(|command| format!("{:<width$}  {}", command.pattern, command.about));
        Ok(CommandReply::Text(lines.collect::<Vec<_>>().join("\n")))
    }
}

/// Formats a failure in one line, with the next step.
fn failure_text(error: FrameRunError) -> String {
    let problem = error.to_report();
    format!("{problem}; {}", problem.next_step)
}
