//! Where a command's results and remarks go: results to standard output, all else to standard error.

use std::io::{IsTerminal, Write};

use jiff::Timestamp;
use linerate_metric::event::{Event, Problem, What};
use linerate_metric::expect::Verdict;
use linerate_metric::record::Record;
use linerate_metric::set::RunSet;
use linerate_report::lines::Lines;
use linerate_report::store::{Store, write_file};
use linerate_report::style::{ColorChoice, Output as Terminal, Style};
use linerate_report::{stream, text};
use serde::Serialize;

use crate::args::OutputArgs;
use crate::failure::Failure;

/// What standard output gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Text,
    /// One document at the end.
    Json,
    /// One line per event.
    JsonStream,
}

/// A command's output.
pub struct Output {
    form: Form,
    quiet: bool,
    verbose: bool,
    style: Style,
    error_style: Style,
    lines: Lines,
    store: bool,
    file: Option<std::path::PathBuf>,
}

/// How text may look on one of our streams.
fn style(choice: ColorChoice, is_terminal: bool) -> Style {
    let variable = |name| std::env::var(name).ok();
    let (no_color, clicolor_force, term) = (
        variable("NO_COLOR"),
        variable("CLICOLOR_FORCE"),
        variable("TERM"),
    );
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .find_map(|name| variable(name).filter(|value| !value.is_empty()));
    let columns = is_terminal
        .then(|| rustix::termios::tcgetwinsize(std::io::stdout()).ok())
        .flatten()
        .map(|size| usize::from(size.ws_col))
        .filter(|&columns| columns > 0);
    Style::decide(
        choice,
        &Terminal {
            is_terminal,
            columns,
            no_color: no_color.as_deref(),
            clicolor_force: clicolor_force.as_deref(),
            term: term.as_deref(),
            locale: locale.as_deref(),
        },
    )
}

/// How text on standard error may look, for commands without output options.
pub fn stderr_style() -> Style {
    style(ColorChoice::Auto, std::io::stderr().is_terminal())
}

impl Output {
    /// Settles it from the options.
    pub fn new(args: &OutputArgs) -> Self {
        let out = style(args.color, std::io::stdout().is_terminal());
        Self {
            form: match (args.json, args.json_stream) {
                (true, _) => Form::Json,
                (_, true) => Form::JsonStream,
                _ => Form::Text,
            },
            quiet: args.quiet,
            verbose: args.verbose,
            style: out,
            error_style: style(args.color, std::io::stderr().is_terminal()),
            lines: Lines::new(out),
            store: !args.no_store,
            file: args.output.clone(),
        }
    }

    /// The same for a server, whose tests run side by side.
    pub fn serving(args: &OutputArgs) -> Self {
        let output = Self::new(args);
        Self {
            lines: Lines::serving(output.style),
            ..output
        }
    }

    /// Whether a document of JSON is what standard output gets.
    pub fn is_json(&self) -> bool {
        self.form == Form::Json
    }

    /// Tells what happens while it happens.
    pub fn event(&mut self, event: &Event) {
        match self.form {
            // The whole record is in the last line of a stream.
            Form::JsonStream => self.say(&stream::line(event, Timestamp::now())),
            Form::Json if self.verbose => {
                if let Some(text) = self.lines.event(event) {
                    eprintln!("{text}");
                }
            }
            Form::Json => {}
            Form::Text if self.quiet => {}
            Form::Text => {
                if let Some(text) = self.lines.event(event) {
                    self.say(&text);
                }
            }
        }
    }

    /// The line that tells scripts where a server can be reached, whatever the form.
    pub fn ready(&mut self, event: &Event) {
        let What::Ready { port, addresses } = &event.what else {
            return;
        };
        match self.form {
            Form::JsonStream => self.say(&stream::line(event, Timestamp::now())),
            Form::Json => eprintln!("{}", stream::line(event, Timestamp::now())),
            Form::Text => self.say(&format!(
                "READY port={port} address={}",
                addresses.join(",")
            )),
        }
    }

    /// Prints the result of one run, and puts it away.
    pub fn record(&mut self, record: &Record, verdicts: &[Verdict]) -> Result<(), Failure> {
        if self.store {
            let stored = Store::open_default().and_then(|store| store.store(record));
            self.stored(stored);
        }
        match self.form {
            Form::Text => {
                self.say(&text::summary(record, &self.style));
                self.verdicts(verdicts);
            }
            Form::JsonStream => {
                self.event(&Event {
                    test: 1,
                    what: What::Finished {
                        record: Box::new(record.clone()),
                    },
                });
                self.verdicts(verdicts);
            }
            Form::Json => {
                if self.file.is_none() {
                    self.say(&record.to_json());
                }
                self.verdicts(verdicts);
            }
        }
        self.write_out(&record.to_json())
    }

    /// Prints the result of several runs, and puts them away.
    pub fn set(&mut self, set: &RunSet, verdicts: &[Verdict]) -> Result<(), Failure> {
        let json = serde_json::to_string(set).expect("a set holds only what JSON can say");
        if self.store {
            let stored = Store::open_default().and_then(|store| {
                for run in &set.runs {
                    store.store(run)?;
                }
                store.store_set(set)
            });
            self.stored(stored);
        }
        match self.form {
            Form::Text => self.say(&text::set(set, &self.style)),
            Form::Json if self.file.is_none() => self.say(&json),
            Form::JsonStream => self.say(&json),
            Form::Json => {}
        }
        self.verdicts(verdicts);
        self.write_out(&json)
    }

    fn write_out(&self, json: &str) -> Result<(), Failure> {
        if let Some(file) = &self.file {
            write_file(file, &format!("{json}\n"))?;
        }
        Ok(())
    }

    fn stored(&self, stored: Result<std::path::PathBuf, linerate_report::ReportError>) {
        match stored {
            Ok(path) if self.verbose => eprintln!("stored as {}", path.display()),
            Ok(_) => {}
            // The result itself is not lost: it is printed next.
            Err(error) => self.remark(&format!("warning: {error}")),
        }
    }

    fn verdicts(&self, verdicts: &[Verdict]) {
        if verdicts.is_empty() {
            return;
        }
        match self.form {
            Form::Text => self.say(&text::verdicts(verdicts, &self.style)),
            _ => eprintln!("{}", text::verdicts(verdicts, &self.error_style)),
        }
    }

    /// Prints any document: as JSON, or as the text made for people.
    pub fn document<T: Serialize>(
        &self,
        value: &T,
        text: impl FnOnce(&Style) -> String,
    ) -> Result<(), Failure> {
        let json = serde_json::to_string(value).expect("our documents hold only what JSON can say");
        match self.form {
            Form::Text => self.say(&text(&self.style)),
            _ if self.file.is_none() => self.say(&json),
            _ => {}
        }
        self.write_out(&json)
    }

    /// Prints a line of the result.
    pub fn say(&self, text: &str) {
        let mut out = std::io::stdout().lock();
        // A reader that went away ends the program through SIGPIPE; a full disk is told below.
        if let Err(error) = writeln!(out, "{text}").and_then(|()| out.flush()) {
            eprintln!("warning: standard output cannot be written: {error}");
        }
    }

    /// Says something that is not the result.
    pub fn remark(&self, text: &str) {
        eprintln!("{text}");
    }

    /// Tells a failure in the form that was asked for.
    pub fn failure(&self, failure: &Failure) {
        match self.form {
            Form::Text => eprintln!("{}", text::problem(&failure.problem, &self.error_style)),
            Form::Json | Form::JsonStream => print_error_json(failure),
        }
    }
}

#[derive(Serialize)]
struct ErrorDocument<'a> {
    error: &'a Problem,
    exit_code: u8,
}

/// A failure as the one JSON document of a command.
pub fn print_error_json(failure: &Failure) {
    let document = ErrorDocument {
        error: &failure.problem,
        exit_code: failure.code,
    };
    println!(
        "{}",
        serde_json::to_string(&document).expect("a problem holds only texts")
    );
}
