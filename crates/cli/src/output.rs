//! Where a command's results and remarks go: results to standard output, all else to standard error.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use jiff::Timestamp;
use linerate_metric::event::{Event, Problem, What};
use linerate_metric::exit;
use linerate_metric::expect::Verdict;
use linerate_metric::finding::Finding;
use linerate_metric::record::Record;
use linerate_metric::set::RunSet;
use linerate_report::ReportError;
use linerate_report::lines::Lines;
use linerate_report::store::{Store, write_file};
use linerate_report::style::{ColorChoice, Output as Terminal, Style};
use linerate_report::{html, stream, text};
use serde::Serialize;

use crate::args::OutputArgs;
use crate::command_line;
use crate::disk;
use crate::failure::Failure;
use crate::printer::Teller;
use crate::scene::{Part, Scene, Screen};

/// What standard output gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Text for people.
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
    /// Whether it was told that something could not be put there.
    told_unstored: AtomicBool,
    file: Option<std::path::PathBuf>,
    /// What its results are called (`--label`).
    label: Option<String>,
    /// Where a page goes, and what it is called.
    page: Option<(std::path::PathBuf, String)>,
    serving: Option<Serving>,
    /// The test that failures belong to.
    test: u32,
    /// Whether a finding of kind `cause` was told.
    found_cause: bool,
    /// The failure that a line of the stream has told already.
    told: Option<Problem>,
    /// The screen that has the terminal meanwhile.
    screen: Option<Screen>,
}

/// How a server serves.
#[derive(Clone, Copy, Debug)]
struct Serving {
    /// One test, and one document.
    once: bool,
}

/// Whether something could not be printed. A process has one standard output.
static STDOUT_FAILED: AtomicBool = AtomicBool::new(false);

/// Whether the result goes to files as well, so that the command goes on without a reader, and whether one
/// of its readers went away.
static HAS_FILES: AtomicBool = AtomicBool::new(false);
static READER_GONE: AtomicBool = AtomicBool::new(false);

/// The result goes to a file that was asked for: a reader that goes away does not end the command before it
/// is written.
pub fn write_files_without_reader() {
    HAS_FILES.store(true, Relaxed);
}

/// Ends the program as quietly as other tools of a pipeline, where its reader went away while it went on.
pub fn end_if_reader_is_gone() {
    if READER_GONE.load(Relaxed) {
        linerate_host::stop::end_by_sigpipe();
    }
}

/// Prints text and the end of its line to standard output.
pub fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    // A full disk is told, once.
    if let Err(error) = writeln!(out, "{text}").and_then(|()| out.flush())
        && !end_without_reader(&error)
        && !STDOUT_FAILED.swap(true, Relaxed)
    {
        complain(&format!(
            "error: standard output cannot be written: {error}\n\
             help:  free some space where it goes, or send it elsewhere; `linerate runs list` has the runs that were stored"
        ));
    }
}

/// Prints text and the end of its line to standard error.
pub fn complain(text: &str) {
    if let Err(error) = writeln!(std::io::stderr().lock(), "{text}") {
        end_without_reader(&error);
    }
}

/// A reader of our output that went away ends the program as quietly as other tools of a pipeline, at once or
/// after its files are written; tells whether that is what happened.
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

/// Whether something that was to be printed is lost.
pub fn stdout_failed() -> bool {
    STDOUT_FAILED.load(Relaxed)
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

/// How text on standard output may look, for commands without output options; `to_stdout` is false where
/// it goes to a file.
pub fn stdout_style(choice: ColorChoice, to_stdout: bool) -> Style {
    style(choice, to_stdout && std::io::stdout().is_terminal())
}

/// How lists look on standard output, for commands without output options: where no terminal reads them, a line for
/// each entry, however long, for what looks for lines.
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

/// Refuses a file that cannot be written, before anything is measured: its folder is not there or not this user's to
/// write in, or it is a folder itself.
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
        let next_step = "name a file, not a folder".to_owned();
        return refused("is a folder".to_owned(), next_step);
    }
    // Through a symbolic link the file it points to is replaced, in its own folder.
    let behind = match &found {
        Ok(found) if found.is_file() => std::fs::canonicalize(file).ok(),
        // A pipe or a device is written as it is.
        Ok(_) => return Ok(()),
        Err(_) => None,
    };
    let folder = match behind.as_deref().unwrap_or(file).parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => std::path::Path::new("."),
    };
    if !std::fs::metadata(folder).is_ok_and(|found| found.is_dir()) {
        let next_step = format!("create {} first, or name another file", folder.display());
        return refused("there is no such folder".to_owned(), next_step);
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

/// Whether files can be made in a folder.
pub fn check_writable(folder: &std::path::Path) -> std::io::Result<()> {
    use rustix::fs::{Access, access};
    Ok(access(folder, Access::WRITE_OK | Access::EXEC_OK)?)
}

impl Output {
    /// Settles it from the options.
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

    /// The same for a server, whose tests run side by side.
    pub fn serving(args: &OutputArgs, once: bool) -> Self {
        let output = Self::new(args);
        // A server has no end of its own to go on to.
        HAS_FILES.store(false, Relaxed);
        Self {
            lines: Lines::serving(output.style).per_stream(args.verbose),
            serving: Some(Serving { once }),
            ..output
        }
    }

    /// Calls its results so.
    pub fn labelled(mut self, label: Option<&str>) -> Self {
        self.label = label.map(str::to_owned);
        self
    }

    /// How text on standard output may look.
    pub fn style(&self) -> &Style {
        &self.style
    }

    /// Whether every event is a line on standard output.
    pub fn is_stream(&self) -> bool {
        self.form == Form::JsonStream
    }

    /// Whether standard output is text for people.
    pub fn is_for_people(&self) -> bool {
        self.form == Form::Text
    }

    /// Whether only the result is asked for.
    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Finds out before anything is measured that the file of `-o` cannot be written.
    pub fn check_file(&self) -> Result<(), Failure> {
        if let Some((page, _)) = &self.page {
            check_folder(page)?;
        }
        self.file.as_deref().map_or(Ok(()), check_folder)
    }

    /// Whether a document of JSON is what standard output gets.
    pub fn is_json(&self) -> bool {
        self.form == Form::Json
    }

    /// The record with its findings.
    fn explained(&mut self, record: &Record) -> Record {
        let mut record = record.clone();
        if self.serving.is_none() {
            // What was made by a program of its own came with its command.
            record.command = record.command.or_else(command_line::own);
            record.label = record.label.or_else(|| self.label.clone());
        }
        linerate_explain::complete(&mut record);
        self.found_cause |= record.findings.iter().any(Finding::is_cause);
        record
    }

    /// The exit code of a command that ends with `code`: a cause that was found is a gate that failed
    /// where `--fail-on-finding` makes it one.
    pub fn gated(&self, code: u8, fail_on_finding: bool) -> u8 {
        match code {
            exit::OK if fail_on_finding && self.found_cause => exit::GATE,
            code => code,
        }
    }

    /// Tells what happens while it happens. A server's results are its events.
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
            // The whole record is in the last line of a stream.
            Form::JsonStream => print(&stream::line(event, at)),
            // How far it is, whatever the result's form.
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
                // The result of a test names its client.
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

    /// What is told of a server's test even when nothing but results is asked for.
    fn is_result(&self, what: &What) -> bool {
        self.serving.is_some() && matches!(what, What::Finished { .. } | What::Failed { .. })
    }

    /// The line that tells scripts where a server can be reached, whatever the form.
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

    /// Puts the result of a test away that another document is printed beside.
    pub fn put_away(&self, record: &Record) {
        if self.store {
            self.stored(Store::open_default().and_then(|store| store.store(record)));
        }
    }

    /// Puts the result of a server's test away, and prints it where it is a document.
    fn served(&self, record: &Record) {
        if self.store {
            match Store::open_default() {
                Ok(store) if disk::is_nearly_full(store.folder()) => self.remark(&format!(
                    "warning: {} is nearly full: the server keeps no record of this test",
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

    /// A test of a server that came to nothing.
    fn gave_up(&mut self, problem: &Problem, serving: Serving) {
        match self.form {
            // A server for one test prints one document, when it ends.
            Form::Json if !serving.once => {
                print_failure(self.form, &Failure::failed(problem.clone()), self.test);
            }
            Form::JsonStream => self.told = Some(problem.clone()),
            _ => {}
        }
    }

    /// Prints the result of one run, and puts it away.
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

    /// Puts away one of several results of a shell; a stream gets it as well, and the one document of `--json`
    /// is printed when all are known.
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

    /// Prints the one result of a shell that was put away.
    pub fn document_of(&mut self, record: &Record) -> Result<(), Failure> {
        let record = self.explained(record);
        self.document(&record, |style| text::summary(&record, style))
    }

    /// Prints the result of several runs, and puts them away.
    pub fn set(&mut self, set: &RunSet, verdicts: &[Verdict]) -> Result<(), Failure> {
        let mut set = set.clone();
        set.result.label = set.result.label.take().or_else(|| self.label.clone());
        let found_before = self.found_cause;
        for run in &mut set.runs {
            *run = self.explained(run);
        }
        // A search goes where something is lost on purpose: what counts is where it ended.
        if set.result.search.is_some() || set.result.capacity.is_some() {
            let rests = |run: &&Record| set.result.rests_on(&run.id, run.summary.loss_fraction);
            let mut deciding = set.runs.iter().filter(rests);
            let found = deciding.any(|run| run.findings.iter().any(Finding::is_cause));
            self.found_cause = found_before || found;
        }
        let set = &set;
        let json = serde_json::to_string(set).expect("a set holds only what JSON can say");
        // Of what was ended before its first run there is nothing to keep.
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

    /// Also writes a page of that title.
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

    /// Tells that something is not in the store: once, since what keeps one record out keeps the others out,
    /// and a server of each test, which are others' and days apart.
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

    /// Prints any document: as JSON, or as the text made for people.
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

    /// Lets a screen have the terminal, or takes it back: what was remarked meanwhile is said then.
    #[cfg(feature = "tui")]
    pub fn put_on(&mut self, screen: Option<Screen>) {
        let gone = std::mem::replace(&mut self.screen, screen);
        for remark in gone.into_iter().flat_map(Screen::remarks) {
            complain(&remark);
        }
    }

    /// Who tells the screen, where there is one.
    pub fn teller(&self) -> Option<&Teller> {
        self.screen.as_ref().map(Screen::teller)
    }

    /// Shows what of a series begins now; without a screen it is told when it is over.
    pub fn part(&self, part: Part) {
        if let Some(teller) = self.teller() {
            teller.show(Scene::Part(part));
        }
    }

    /// Tells how far a series is: a line of text, on standard error where standard output gets JSON.
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

    /// Tells on standard error how far something is, unless only the result is asked for.
    pub fn told(&self, text: &str) {
        match &self.screen {
            Some(screen) => screen.line(text),
            None if self.quiet => {}
            None => complain(text),
        }
    }

    /// Says something that is not the result.
    pub fn remark(&self, text: &str) {
        match &self.screen {
            Some(screen) => screen.remark(text),
            None => complain(text),
        }
    }

    /// Tells what ended a command whose result is out already: a document cannot be followed by another.
    pub fn after_result(&self, failure: &Failure) {
        match self.form {
            Form::Json => self.remark(&format!("error: {}", failure.problem)),
            _ => self.failure(failure),
        }
    }

    /// Tells a failure in the form that was asked for.
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

/// A failure on standard output: as the one JSON document of a command, or as a line of its stream.
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
            ("", Some("is a folder")),
            ("nowhere/new.json", Some("there is no such folder")),
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
        // A device is written as it is, and `-` is no file.
        for file in ["/dev/full", "-"] {
            assert!(check_folder(Path::new(file)).is_ok(), "{file}");
        }
    }
}
