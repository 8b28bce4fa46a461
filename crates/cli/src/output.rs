//! Output of a command: results go to standard output, all else to standard error.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use jiff::Timestamp;
use linerate_metric::event::{Event, Problem, What};
use linerate_metric::exit;
use linerate_metric::expect::Verdict;
use linerate_metric::finding::Finding;
use linerate_metric::record::Record;
use linerate_metric::run_set::RunSet;
use linerate_report::ReportError;
use linerate_report::lines::Lines;
use linerate_report::store::{Store, write_file};
use linerate_report::style::{ColorChoice, Output as Terminal, Style};
use linerate_report::{html, stream, text};
use serde::Serialize;

use crate::args::OutputArgs;
use crate::command_line;
use crate::disk_space;
use crate::failure::Failure;
use crate::printer::Teller;
use crate::ui_update::{Part, Scene, Screen};

/// Format of standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Text for a terminal.
    Text,
    Json,
    /// One JSON line per event.
    JsonStream,
}

pub struct Output {
    form: Form,
    quiet: bool,
    verbose: bool,
    style: Style,
    error_style: Style,
    lines: Lines,
    store: bool,
    /// Set once a failure to store a record is reported.
    told_unstored: AtomicBool,
    file: Option<std::path::PathBuf>,
    /// Label of the results (`--label`).
    label: Option<String>,
    /// File and title of the report page.
    page: Option<(std::path::PathBuf, String)>,
    serving: Option<Serving>,
    /// Number of the test that failures belong to.
    test: u32,
    /// Set once a record has a finding of kind `cause`.
    found_cause: bool,
    /// Failure that a line of the stream already reported.
    told: Option<Problem>,
    /// Full-screen display, while one is active.
    screen: Option<Screen>,
}

/// Server mode of an output.
#[derive(Clone, Copy, Debug)]
struct Serving {
    /// The server ends after one test and prints one document.
    once: bool,
}

/// Set when a write to standard output fails. Global, because a process has one standard output.
static STDOUT_FAILED: AtomicBool = AtomicBool::new(false);

/// Set if the result also goes to files: the command then continues without a reader.
static HAS_FILES: AtomicBool = AtomicBool::new(false);
/// Set when a reader of our output has closed its end.
static READER_GONE: AtomicBool = AtomicBool::new(false);

/// Lets the command continue until its files are written, even if the reader of its output closes.
pub fn write_files_without_reader() {
    HAS_FILES.store(true, Relaxed);
}

/// Ends the process by SIGPIPE, as pipeline tools do, if its reader closed while the command
/// continued.
pub fn end_if_reader_is_gone() {
    if READER_GONE.load(Relaxed) {
        linerate_host::stop_flag::end_by_sigpipe();
    }
}

/// Prints text and a newline to standard output.
pub fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    // A full disk is reported only once.
    if let Err(error) = writeln!(out, "{text}").and_then(|()| out.flush())
        && !end_without_reader(&error)
        && !STDOUT_FAILED.swap(true, Relaxed)
    {
        complain(&format!(
            "error: cannot write to standard output: {error}\n\
             help:  free disk space there or redirect the output; `linerate runs list` lists the stored runs"
        ));
    }
}

/// Prints text and a newline to standard error.
pub fn complain(text: &str) {
    if let Err(error) = writeln!(std::io::stderr().lock(), "{text}") {
        end_without_reader(&error);
    }
}

/// Handles a write error: a closed reader ends the process quietly, at once or after its files are
/// written. Returns whether the error was a closed reader.
pub fn end_without_reader(error: &std::io::Error) -> bool {
    let gone = error.kind() == std::io::ErrorKind::BrokenPipe;
    if gone {
        READER_GONE.store(true, Relaxed);
        if !HAS_FILES.load(Relaxed) {
            end_if_reader_is_gone();
        }
    }
    gone
}

/// Returns whether output was lost.
pub fn stdout_failed() -> bool {
    STDOUT_FAILED.load(Relaxed)
}

/// Returns the text style for one of our streams.
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

/// Returns the style for standard error, for commands without output options.
pub fn stderr_style() -> Style {
    style(ColorChoice::Auto, std::io::stderr().is_terminal())
}

/// Returns the style for standard output, for commands without output options; `to_stdout` is false
/// if the text goes to a file.
pub fn stdout_style(choice: ColorChoice, to_stdout: bool) -> Style {
    style(choice, to_stdout && std::io::stdout().is_terminal())
}

/// Returns the style of lists on standard output, for commands without output options. Without a
/// terminal each entry is one line of any length, so that line-oriented tools can read it.
pub fn list_style() -> Style {
    let is_terminal = std::io::stdout().is_terminal();
    let style = style(ColorChoice::Auto, is_terminal);
    match is_terminal {
        true => style,
        false => Style {
            width: usize::MAX,
            ..style
        },
    }
}

/// Checks before a measurement that a file can be written: the path is no directory, and its
/// directory exists and is writable for this user.
pub fn check_folder(file: &std::path::Path) -> Result<(), Failure> {
    if file == std::path::Path::new("-") {
        return Ok(());
    }
    let refused = |why: String, next_step: String| {
        let situation = format!("cannot be written ({why})");
        Err(Failure::failed(Problem::new(
            situation,
            file.display().to_string(),
            next_step,
        )))
    };
    let found = std::fs::metadata(file);
    if found.as_ref().is_ok_and(std::fs::Metadata::is_dir) {
        let next_step = "name a file, not a directory".to_owned();
        return refused("is a directory".to_owned(), next_step);
    }
    // A write through a symbolic link replaces the target file, in the target's directory.
    let behind = match &found {
        Ok(found) if found.is_file() => std::fs::canonicalize(file).ok(),
        // Pipes and devices are written in place.
        Ok(_) => return Ok(()),
        Err(_) => None,
    };
    let folder = match behind.as_deref().unwrap_or(file).parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => std::path::Path::new("."),
    };
    if !std::fs::metadata(folder).is_ok_and(|found| found.is_dir()) {
        let next_step = format!("create {} first, or name another file", folder.display());
        return refused("no such directory".to_owned(), next_step);
    }
    match check_writable(folder) {
        Ok(()) => Ok(()),
        Err(error) => refused(
            error.to_string(),
            format!(
                "make {} writable for this user, or name another file",
                folder.display()
            ),
        ),
    }
}

/// Checks that files can be created in a directory.
pub fn check_writable(folder: &std::path::Path) -> std::io::Result<()> {
    use rustix::fs::{Access, access};
    Ok(access(folder, Access::WRITE_OK | Access::EXEC_OK)?)
}

impl Output {
    /// Creates the output that the options describe.
    pub fn new(args: &OutputArgs) -> Self {
        let out = style(args.color, std::io::stdout().is_terminal());
        let to_stdout = std::path::Path::new("-");
        if args.output.as_deref().is_some_and(|file| file != to_stdout) {
            write_files_without_reader();
        }
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
            lines: Lines::new(out).per_stream(args.verbose),
            store: !args.no_store,
            told_unstored: AtomicBool::new(false),
            file: args.output.clone(),
            label: None,
            page: None,
            serving: None,
            test: 0,
            found_cause: false,
            told: None,
            screen: None,
        }
    }

    /// Creates the output of a server, whose tests run concurrently.
    pub fn serving(args: &OutputArgs, once: bool) -> Self {
        let output = Self::new(args);
        // A server has no result at its end that it could still write.
        HAS_FILES.store(false, Relaxed);
        Self {
            lines: Lines::serving(output.style).per_stream(args.verbose),
            serving: Some(Serving { once }),
            ..output
        }
    }

    /// Sets the label of the results.
    pub fn labelled(mut self, label: Option<&str>) -> Self {
        self.label = label.map(str::to_owned);
        self
    }

    /// Returns the style for standard output.
    pub fn style(&self) -> &Style {
        &self.style
    }

    /// Returns whether standard output gets one JSON line per event.
    pub fn is_stream(&self) -> bool {
        self.form == Form::JsonStream
    }

    /// Returns whether standard output gets text.
    pub fn is_for_people(&self) -> bool {
        self.form == Form::Text
    }

    /// Returns whether only the result is printed.
    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Checks before a measurement that the files of `-o` and of the page can be written.
    pub fn check_file(&self) -> Result<(), Failure> {
        if let Some((page, _)) = &self.page {
            check_folder(page)?;
        }
        self.file.as_deref().map_or(Ok(()), check_folder)
    }

    /// Returns whether standard output gets one JSON document.
    pub fn is_json(&self) -> bool {
        self.form == Form::Json
    }

    /// Returns a copy of the record with command, label and findings.
    fn explained(&mut self, record: &Record) -> Record {
        let mut record = record.clone();
        if self.serving.is_none() {
            // Records of a child process already have the child's command.
            record.command = record.command.or_else(command_line::own);
            record.label = record.label.or_else(|| self.label.clone());
        }
        linerate_explain::complete(&mut record);
        self.found_cause |= record.findings.iter().any(Finding::is_cause);
        record
    }

    /// Returns the exit code of a command that ends with `code`: with `--fail-on-finding`, a cause
    /// turns success into a failed check.
    pub fn gated(&self, code: u8, fail_on_finding: bool) -> u8 {
        match code {
            exit::OK if fail_on_finding && self.found_cause => exit::GATE,
            code => code,
        }
    }

    /// Prints an event. A server's results are events too.
    pub fn event(&mut self, event: &Event, at: Timestamp) {
        let told;
        let event = match &event.what {
            What::Finished { record } => {
                told = Event {
                    test: event.test,
                    what: What::Finished {
                        record: Box::new(self.explained(record)),
                    },
                };
                &told
            }
            _ => event,
        };
        self.test = event.test;
        match (&event.what, self.serving) {
            (
                What::Ready {
                    port,
                    addresses,
                    also,
                },
                _,
            ) => return self.ready(event, at, *port, addresses, also),
            (What::Finished { record }, Some(_)) => self.served(record),
            (What::Failed { problem }, Some(serving)) => self.gave_up(problem, serving),
            _ => {}
        }
        match self.form {
            // The last line of a stream holds the whole record.
            Form::JsonStream => print(&stream::line(event, at)),
            // Progress is printed in each format.
            _ if matches!(event.what, What::Pass { .. } | What::Awaited { .. }) => {
                if let Some(text) = self.lines.event(event) {
                    self.told(&text);
                }
            }
            Form::Json if self.verbose => {
                if let Some(text) = self.lines.event(event) {
                    complain(&text);
                }
            }
            Form::Json => {}
            Form::Text if self.quiet && !self.is_result(&event.what) => {
                // `Lines` must see the connection, because the result of a test names its client.
                if self.serving.is_some() && matches!(event.what, What::Connected { .. }) {
                    self.lines.event(event);
                }
            }
            Form::Text => {
                if let Some(text) = self.lines.event(event) {
                    print(&text);
                }
            }
        }
    }

    /// Returns whether an event of a server's test is printed even with --quiet.
    fn is_result(&self, what: &What) -> bool {
        self.serving.is_some() && matches!(what, What::Finished { .. } | What::Failed { .. })
    }

    /// Prints the ready line of a server, for scripts, in each format.
    fn ready(&self, event: &Event, at: Timestamp, port: u16, addresses: &[String], also: &[u16]) {
        match self.form {
            Form::JsonStream => print(&stream::line(event, at)),
            Form::Json => complain(&stream::line(event, at)),
            Form::Text => {
                let also: Vec<_> = also.iter().map(u16::to_string).collect();
                let also = match also.is_empty() {
                    true => String::new(),
                    false => format!(" also={}", also.join(",")),
                };
                print(&format!(
                    "READY port={port} address={}{also}",
                    addresses.join(",")
                ));
            }
        }
    }

    /// Stores the record of a test whose result is printed in another document.
    pub fn put_away(&self, record: &Record) {
        if self.store {
            self.stored(Store::open_default().and_then(|store| store.store(record)));
        }
    }

    /// Stores the result of a server's test, and prints it if the format is JSON.
    fn served(&self, record: &Record) {
        if self.store {
            match Store::open_default() {
                Ok(store) if disk_space::is_nearly_full(store.folder()) => self.remark(&format!(
                    "warning: {} is nearly full: the record of this test is not stored",
                    store.folder().display()
                )),
                store => self.stored(store.and_then(|store| store.store(record))),
            }
        }
        let json = record.to_json();
        if self.form == Form::Json && self.file.is_none() {
            print(&json);
        }
        if let Err(failure) = self.write_out(&json) {
            self.remark(&format!("warning: {}", failure.problem));
        }
    }

    /// Reports a failed test of a server.
    fn gave_up(&mut self, problem: &Problem, serving: Serving) {
        match self.form {
            // A server for one test prints its one document when it ends.
            Form::Json if !serving.once => {
                print_failure(self.form, &Failure::failed(problem.clone()), self.test);
            }
            Form::JsonStream => self.told = Some(problem.clone()),
            _ => {}
        }
    }

    /// Prints and stores the result of one run.
    pub fn record(&mut self, record: &Record, verdicts: &[Verdict]) -> Result<(), Failure> {
        let record = &self.explained(record);
        self.explained_record(record, verdicts)
    }

    fn explained_record(&mut self, record: &Record, verdicts: &[Verdict]) -> Result<(), Failure> {
        if self.store {
            let stored = Store::open_default().and_then(|store| store.store(record));
            self.stored(stored);
        }
        match self.form {
            Form::Text => {
                print(&text::summary(record, &self.style));
                self.verdicts(verdicts);
            }
            Form::JsonStream => {
                let event = Event {
                    test: 1,
                    what: What::Finished {
                        record: Box::new(record.clone()),
                    },
                };
                print(&stream::line(&event, Timestamp::now()));
                self.verdicts(verdicts);
            }
            Form::Json => {
                if self.file.is_none() {
                    print(&record.to_json());
                }
                self.verdicts(verdicts);
            }
        }
        self.write_page(record)?;
        self.write_out(&record.to_json())
    }

    /// Stores one of several results of a shell. A stream prints it too; the one document of
    /// `--json` is printed at the end.
    pub fn keep(&mut self, record: &Record) -> Result<(), Failure> {
        let record = &self.explained(record);
        if self.form == Form::JsonStream {
            return self.explained_record(record, &[]);
        }
        if self.store {
            self.stored(Store::open_default().and_then(|store| store.store(record)));
        }
        self.write_page(record)?;
        self.write_out(&record.to_json())
    }

    /// Prints the only result of a shell, which is already stored.
    pub fn document_of(&mut self, record: &Record) -> Result<(), Failure> {
        let record = self.explained(record);
        self.document(&record, |style| text::summary(&record, style))
    }

    /// Prints and stores the result of several runs.
    pub fn set(&mut self, set: &RunSet, verdicts: &[Verdict]) -> Result<(), Failure> {
        let mut set = set.clone();
        set.result.label = set.result.label.take().or_else(|| self.label.clone());
        let found_before = self.found_cause;
        for run in &mut set.runs {
            *run = self.explained(run);
        }
        // A search loses packets on purpose: only the runs that decide its result count.
        if set.result.search.is_some() || set.result.capacity.is_some() {
            let rests = |run: &&Record| set.result.rests_on(&run.id, run.summary.loss_fraction);
            let mut deciding = set.runs.iter().filter(rests);
            let found = deciding.any(|run| run.findings.iter().any(Finding::is_cause));
            self.found_cause = found_before || found;
        }
        let set = &set;
        let json = serde_json::to_string(set).expect("a set holds only what JSON can say");
        // A set without runs, interrupted before its first, is not stored.
        if self.store && !set.runs.is_empty() {
            let stored = Store::open_default().and_then(|store| {
                for run in &set.runs {
                    store.store(run)?;
                }
                store.store_set(set)
            });
            self.stored(stored);
        }
        match self.form {
            Form::Text => print(&text::set(set, &self.style)),
            Form::Json if self.file.is_none() => print(&json),
            Form::JsonStream => print(&json),
            Form::Json => {}
        }
        self.verdicts(verdicts);
        if let Some((file, title)) = &self.page {
            write_file(file, &html::of_set(title, set))?;
        }
        self.write_out(&json)
    }

    /// Also writes a report page with this title.
    pub fn with_page(mut self, file: Option<&std::path::Path>, title: &str) -> Self {
        if file.is_some() {
            write_files_without_reader();
        }
        self.page = file.map(|file| (file.to_owned(), title.to_owned()));
        self
    }

    fn write_page(&self, record: &Record) -> Result<(), Failure> {
        if let Some((file, title)) = &self.page {
            let runs = std::slice::from_ref(record);
            write_file(file, &html::report(title, runs, &[]))?;
        }
        Ok(())
    }

    fn write_out(&self, json: &str) -> Result<(), Failure> {
        if let Some(file) = &self.file {
            write_file(file, &format!("{json}\n"))?;
        }
        Ok(())
    }

    fn stored(&self, stored: Result<std::path::PathBuf, ReportError>) {
        match stored {
            Ok(path) if self.verbose => complain(&format!("stored as {}", path.display())),
            Ok(_) => {}
            // The result itself is not lost: it is printed next.
            Err(error) => self.unstored(&error),
        }
    }

    /// Reports that a result is not stored. A command reports it once, because the cause is the
    /// same for all of its records; a server reports it for each test, because tests may be days
    /// apart.
    pub fn unstored(&self, error: &ReportError) {
        if !self.told_unstored.swap(true, Relaxed) || self.serving.is_some() {
            self.remark(&format!("warning: {error}"));
        }
    }

    fn verdicts(&self, verdicts: &[Verdict]) {
        if verdicts.is_empty() {
            return;
        }
        match self.form {
            Form::Text => print(&text::verdicts(verdicts, &self.style)),
            _ => complain(&text::verdicts(verdicts, &self.error_style)),
        }
    }

    /// Prints a document as JSON, or as the text that `text` makes.
    pub fn document<T: Serialize>(
        &self,
        value: &T,
        text: impl FnOnce(&Style) -> String,
    ) -> Result<(), Failure> {
        let json = serde_json::to_string(value).expect("our documents hold only what JSON can say");
        match self.form {
            Form::Text => print(&text(&self.style)),
            _ if self.file.is_none() => print(&json),
            _ => {}
        }
        self.write_out(&json)
    }

    /// Sets or removes the full-screen display; on removal, its warnings are printed.
    #[cfg(feature = "tui")]
    pub fn put_on(&mut self, screen: Option<Screen>) {
        let gone = std::mem::replace(&mut self.screen, screen);
        for remark in gone.into_iter().flat_map(Screen::remarks) {
            complain(&remark);
        }
    }

    /// Returns the sender of events to the full-screen display, if there is one.
    pub fn teller(&self) -> Option<&Teller> {
        self.screen.as_ref().map(Screen::teller)
    }

    /// Shows on the full-screen display which part of a series starts; without one, the part is
    /// printed at its end.
    pub fn part(&self, part: Part) {
        if let Some(teller) = self.teller() {
            teller.show(Scene::Part(part));
        }
    }

    /// Reports the progress of a series: as text, or on standard error if standard output gets
    /// JSON.
    pub fn progress(&self, text: &str) {
        if let Some(screen) = &self.screen {
            return screen.line(text);
        }
        match self.form {
            _ if self.quiet => {}
            Form::Text => print(text),
            _ if self.verbose => complain(text),
            _ => {}
        }
    }

    /// Reports status on standard error, unless --quiet is given.
    pub fn told(&self, text: &str) {
        match &self.screen {
            Some(screen) => screen.line(text),
            None if self.quiet => {}
            None => complain(text),
        }
    }

    /// Prints a warning or a note.
    pub fn remark(&self, text: &str) {
        match &self.screen {
            Some(screen) => screen.remark(text),
            None => complain(text),
        }
    }

    /// Reports a failure after the result is printed: with --json, no second document may follow.
    pub fn after_result(&self, failure: &Failure) {
        match self.form {
            Form::Json => self.remark(&format!("error: {}", failure.problem)),
            _ => self.failure(failure),
        }
    }

    /// Reports a failure in the output format.
    pub fn failure(&self, failure: &Failure) {
        match self.form {
            Form::Text => complain(&text::problem(&failure.problem, &self.error_style)),
            Form::JsonStream if self.told.as_ref() == Some(&failure.problem) => {}
            form => print_failure(form, failure, self.test),
        }
    }
}

#[derive(Serialize)]
struct ErrorDocument<'a> {
    error: &'a Problem,
    exit_code: u8,
}

/// Prints a failure to standard output: as the JSON document of a command, or as a line of its
/// stream.
pub fn print_failure(form: Form, failure: &Failure, test: u32) {
    if form == Form::JsonStream {
        let what = What::Failed {
            problem: failure.problem.clone(),
        };
        print(&stream::line(&Event { test, what }, Timestamp::now()));
        return;
    }
    let document = ErrorDocument {
        error: &failure.problem,
        exit_code: failure.code,
    };
    print(&serde_json::to_string(&document).expect("a problem holds only texts"));
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    use super::*;

    #[test]
    fn a_file_that_cannot_be_written_is_told_beforehand() {
        let room = tempfile::tempdir().expect("a folder");
        let locked = room.path().join("locked");
        std::fs::create_dir(&locked).expect("a folder");
        std::fs::write(locked.join("there"), "").expect("a file");
        symlink("locked/there", room.path().join("link")).expect("a link");
        std::fs::set_permissions(&locked, PermissionsExt::from_mode(0o555)).expect("a mode");
        // Root writes everywhere.
        let is_root = check_writable(&locked).is_ok();
        for (file, why) in [
            ("new.json", None),
            ("", Some("is a directory")),
            ("nowhere/new.json", Some("no such directory")),
            ("locked/new.json", Some("denied").filter(|_| !is_root)),
            ("link", Some("denied").filter(|_| !is_root)),
        ] {
            let told = check_folder(&room.path().join(file));
            let told = told.err().map(|failure| failure.problem.situation);
            match (&told, why) {
                (Some(told), Some(why)) => assert!(told.contains(why), "{file}: {told}"),
                _ => assert_eq!(told.as_deref(), why, "{file}"),
            }
        }
        std::fs::set_permissions(&locked, PermissionsExt::from_mode(0o755)).expect("a mode");
        // A device is written in place, and `-` is not a file.
        for file in ["/dev/full", "-"] {
            assert!(check_folder(Path::new(file)).is_ok(), "{file}");
        }
    }
}
