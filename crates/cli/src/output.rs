//! Output of a command: results go to standard output, all else to standard error.

use std::io::IsTerminal;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use jiff::Timestamp;
use linerate_record::event::{ErrorReport, Event, EventKind};
use linerate_record::exit_codes;
use linerate_record::expect::ExpectationResult;
use linerate_record::finding::Finding;
use linerate_record::record::Record;
use linerate_record::run_set::RunSet;
use linerate_report::lines::LiveLines;
use linerate_report::store::{RecordStore, write_file};
use linerate_report::style::{TextStyle, wrap_lines};
use linerate_report::{ReportError, html, json_stream, text};
use serde::Serialize;

use crate::args::OutputArgs;
use crate::event_queue::EventSender;
use crate::failure::CommandFailure;
use crate::screen_output::ScreenOutput;
use crate::standard_streams::{
    can_show_live_line, continue_without_reader, print_stderr, print_stdout, serve_without_reader,
    show_live_line, stream_style,
};
use crate::ui_update::{SeriesPart, UiUpdate};
use crate::{command_line, disk_space, findings};

/// Format of standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputFormat {
    /// Text for a terminal.
    Text,
    Json,
    /// One JSON line per event.
    JsonStream,
}

pub struct CommandOutput {
    format: OutputFormat,
    quiet: bool,
    verbose: bool,
    style: TextStyle,
    error_style: TextStyle,
    lines: LiveLines,
    store: bool,
    /// Set once a failure to store a record is reported.
    has_reported_store_failure: AtomicBool,
    file: Option<std::path::PathBuf>,
    /// Label of the results (`--label`).
    label: Option<String>,
    /// File and title of the report page.
    report_page: Option<(std::path::PathBuf, String)>,
    server_mode: Option<ServerMode>,
    /// Number of the test that failures belong to.
    test: u32,
    /// Set once a record has a finding of kind `cause`.
    has_cause: bool,
    /// Failure that a line of the stream already reported.
    reported_failure: Option<ErrorReport>,
    /// Full-screen display, while one is active.
    screen: Option<ScreenOutput>,
}

/// Server mode of an output.
#[derive(Clone, Copy, Debug)]
struct ServerMode {
    /// The server ends after one test and prints one document.
    is_one_off: bool,
}

/// Checks before a measurement that a file can be written: the path is no directory, and its
/// directory exists and is writable for this user.
pub fn check_writable_file(file: &std::path::Path) -> Result<(), CommandFailure> {
    if file == std::path::Path::new("-") {
        return Ok(());
    }
    let reject = |why: String, next_step: String| {
        let situation = format!("cannot be written ({why})");
        Err(CommandFailure::failed(ErrorReport::new(
            situation,
            file.display().to_string(),
            next_step,
        )))
    };
    let found = std::fs::metadata(file);
    if found.as_ref().is_ok_and(std::fs::Metadata::is_dir) {
        let next_step = "name a file, not a directory".to_owned();
        return reject("is a directory".to_owned(), next_step);
    }
    // A write through a symbolic link replaces the target file, in the target's directory.
    let link_target = match &found {
        Ok(found) if found.is_file() => std::fs::canonicalize(file).ok(),
        // Pipes and devices are written in place.
        Ok(_) => return Ok(()),
        Err(_) => None,
    };
    let dir = match link_target.as_deref().unwrap_or(file).parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => std::path::Path::new("."),
    };
    if !std::fs::metadata(dir).is_ok_and(|found| found.is_dir()) {
        let next_step = format!("create {} first, or name another file", dir.display());
        return reject("no such directory".to_owned(), next_step);
    }
    match check_writable_dir(dir) {
        Ok(()) => Ok(()),
        Err(error) => reject(
            error.to_string(),
            format!(
                "make {} writable for this user, or name another file",
                dir.display()
            ),
        ),
    }
}

/// Checks that files can be created in a directory.
pub fn check_writable_dir(dir: &std::path::Path) -> std::io::Result<()> {
    use rustix::fs::{Access, access};
    Ok(access(dir, Access::WRITE_OK | Access::EXEC_OK)?)
}

impl CommandOutput {
    /// Creates the output that the options describe.
    pub fn new(args: &OutputArgs) -> Self {
        let out = TextStyle {
            brief: !args.verbose,
            ..stream_style(args.color, std::io::stdout().is_terminal())
        };
        let to_stdout = std::path::Path::new("-");
        if args.output.as_deref().is_some_and(|file| file != to_stdout) {
            continue_without_reader();
        }
        Self {
            format: match (args.json, args.json_stream) {
                (true, _) => OutputFormat::Json,
                (_, true) => OutputFormat::JsonStream,
                _ => OutputFormat::Text,
            },
            quiet: args.quiet,
            verbose: args.verbose,
            style: out,
            error_style: stream_style(args.color, std::io::stderr().is_terminal()),
            lines: LiveLines::new(out).with_per_stream(args.verbose),
            store: !args.no_store,
            has_reported_store_failure: AtomicBool::new(false),
            file: args.output.clone(),
            label: None,
            report_page: None,
            server_mode: None,
            test: 0,
            has_cause: false,
            reported_failure: None,
            screen: None,
        }
    }

    /// Creates the output of a server, whose tests run concurrently.
    pub fn for_server(args: &OutputArgs, is_one_off: bool) -> Self {
        let output = Self::new(args);
        serve_without_reader();
        Self {
            lines: LiveLines::for_server(output.style).with_per_stream(args.verbose),
            server_mode: Some(ServerMode { is_one_off }),
            ..output
        }
    }

    /// Sets the label of the results.
    pub fn with_label(mut self, label: Option<&str>) -> Self {
        self.label = label.map(str::to_owned);
        self
    }

    /// Returns the style for standard output.
    pub fn style(&self) -> &TextStyle {
        &self.style
    }

    /// Returns whether standard output gets one JSON line per event.
    pub fn is_stream(&self) -> bool {
        self.format == OutputFormat::JsonStream
    }

    /// Returns whether standard output gets text.
    pub fn is_text(&self) -> bool {
        self.format == OutputFormat::Text
    }

    /// Returns whether only the result is printed.
    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Checks before a measurement that the files of `-o` and of the page can be written.
    pub fn check_files(&self) -> Result<(), CommandFailure> {
        if let Some((page, _)) = &self.report_page {
            check_writable_file(page)?;
        }
        self.file.as_deref().map_or(Ok(()), check_writable_file)
    }

    /// Returns whether standard output gets one JSON document.
    pub fn is_json(&self) -> bool {
        self.format == OutputFormat::Json
    }

    /// Returns a copy of the record with command, label and findings.
    fn explain(&mut self, record: &Record) -> Record {
        let mut record = record.clone();
        if self.server_mode.is_none() {
            // Records of a child process already have the child's command.
            record.command = record.command.or_else(command_line::our_command_line);
            record.label = record.label.or_else(|| self.label.clone());
        }
        findings::add_findings(&mut record);
        self.has_cause |= record.findings.iter().any(Finding::is_cause);
        record
    }

    /// Returns the exit code of a command that ends with `code`: with `--fail-on-finding`, a cause
    /// turns success into a failed check.
    pub fn gate_exit_code(&self, code: u8, fail_on_finding: bool) -> u8 {
        match code {
            exit_codes::OK if fail_on_finding && self.has_cause => exit_codes::GATE,
            code => code,
        }
    }

    /// Prints an event. A server's results are events too.
    pub fn print_event(&mut self, event: &Event, at: Timestamp) {
        let explained;
        let event = match &event.kind {
            EventKind::Finished { record } => {
                explained = Event {
                    test: event.test,
                    kind: EventKind::Finished {
                        record: Box::new(self.explain(record)),
                    },
                };
                &explained
            }
            _ => event,
        };
        self.test = event.test;
        match (&event.kind, self.server_mode) {
            (
                EventKind::Ready {
                    port,
                    addresses,
                    other_ports: also,
                },
                _,
            ) => return self.print_ready(event, at, *port, addresses, also),
            (EventKind::Finished { record }, Some(_)) => self.finish_server_test(record),
            (EventKind::Failed { problem }, Some(serving)) => {
                self.fail_server_test(problem, serving)
            }
            _ => {}
        }
        match self.format {
            // The last line of a stream holds the whole record.
            OutputFormat::JsonStream => print_stdout(&json_stream::event_line(event, at)),
            // Progress is printed in each format.
            _ if matches!(
                event.kind,
                EventKind::Pass { .. } | EventKind::Waiting { .. }
            ) =>
            {
                if let Some(text) = self.lines.render_event(event) {
                    self.report_status(&text);
                }
            }
            OutputFormat::Json if self.verbose => {
                if let Some(text) = self.lines.render_event(event) {
                    print_stderr(&text);
                }
            }
            OutputFormat::Json => {}
            OutputFormat::Text if self.quiet && !self.is_result(&event.kind) => {
                // `lines` needs the connection, because the result of a test names its client.
                if self.server_mode.is_some() && matches!(event.kind, EventKind::Connected { .. }) {
                    self.lines.render_event(event);
                }
            }
            OutputFormat::Text => {
                if let Some(text) = self.lines.render_event(event) {
                    print_stdout(&text);
                }
            }
        }
    }

    /// Returns whether an event of a server's test is printed even with --quiet.
    fn is_result(&self, what: &EventKind) -> bool {
        self.server_mode.is_some()
            && matches!(what, EventKind::Finished { .. } | EventKind::Failed { .. })
    }

    /// Prints the ready line of a server, for scripts, in each format.
    fn print_ready(
        &self,
        event: &Event,
        at: Timestamp,
        port: u16,
        addresses: &[String],
        also: &[u16],
    ) {
        match self.format {
            OutputFormat::JsonStream => print_stdout(&json_stream::event_line(event, at)),
            OutputFormat::Json => print_stderr(&json_stream::event_line(event, at)),
            OutputFormat::Text => {
                let also: Vec<_> = also.iter().map(u16::to_string).collect();
                let also = match also.is_empty() {
                    true => String::new(),
                    false => format!(" also={}", also.join(",")),
                };
                print_stdout(&format!(
                    "READY port={port} address={}{also}",
                    addresses.join(",")
                ));
            }
        }
    }

    /// Stores the record of a test whose result is printed in another document.
    pub fn store_record(&self, record: &Record) {
        if self.store {
            self.report_stored(RecordStore::open_default().and_then(|store| store.store(record)));
        }
    }

    /// Stores the result of a server's test, and prints it if the format is JSON.
    fn finish_server_test(&self, record: &Record) {
        if self.store {
            match RecordStore::open_default() {
                Ok(store) if disk_space::is_nearly_full(store.dir()) => self.warn(&format!(
                    "warning: {} is nearly full: the record of this test is not stored",
                    store.dir().display()
                )),
                store => self.report_stored(store.and_then(|store| store.store(record))),
            }
        }
        let json = record.to_json();
        if self.format == OutputFormat::Json && self.file.is_none() {
            print_stdout(&json);
        }
        if let Err(failure) = self.write_json_file(&json) {
            self.warn(&format!("warning: {}", failure.problem));
        }
    }

    /// Reports a failed test of a server.
    fn fail_server_test(&mut self, problem: &ErrorReport, serving: ServerMode) {
        match self.format {
            // A server for one test prints its one document when it ends.
            OutputFormat::Json if !serving.is_one_off => {
                print_failure(
                    self.format,
                    &CommandFailure::failed(problem.clone()),
                    self.test,
                );
            }
            OutputFormat::JsonStream => self.reported_failure = Some(problem.clone()),
            _ => {}
        }
    }

    /// Prints and stores the result of one run.
    pub fn write_record(
        &mut self,
        record: &Record,
        verdicts: &[ExpectationResult],
    ) -> Result<(), CommandFailure> {
        let record = &self.explain(record);
        self.write_explained_record(record, verdicts)
    }

    fn write_explained_record(
        &mut self,
        record: &Record,
        verdicts: &[ExpectationResult],
    ) -> Result<(), CommandFailure> {
        if self.store {
            let stored = RecordStore::open_default().and_then(|store| store.store(record));
            self.report_stored(stored);
        }
        match self.format {
            OutputFormat::Text => {
                let render = match self.lines.has_printed_details() {
                    true => text::render_finished_run,
                    false => text::render_summary,
                };
                print_stdout(&render(record, &self.style));
                if self.style.brief && self.store && !record.findings.is_empty() {
                    print_stdout("evidence and gains: linerate explain last");
                }
                self.print_verdicts(verdicts);
            }
            OutputFormat::JsonStream => {
                let event = Event {
                    test: 1,
                    kind: EventKind::Finished {
                        record: Box::new(record.clone()),
                    },
                };
                print_stdout(&json_stream::event_line(&event, Timestamp::now()));
                self.print_verdicts(verdicts);
            }
            OutputFormat::Json => {
                if self.file.is_none() {
                    print_stdout(&record.to_json());
                }
                self.print_verdicts(verdicts);
            }
        }
        self.write_report(record)?;
        self.write_json_file(&record.to_json())
    }

    /// Stores one of several results of a shell. A stream prints it too; the one document of
    /// `--json` is printed at the end.
    pub fn store_result(&mut self, record: &Record) -> Result<(), CommandFailure> {
        let record = &self.explain(record);
        if self.format == OutputFormat::JsonStream {
            return self.write_explained_record(record, &[]);
        }
        if self.store {
            self.report_stored(RecordStore::open_default().and_then(|store| store.store(record)));
        }
        self.write_report(record)?;
        self.write_json_file(&record.to_json())
    }

    /// Prints the only result of a shell, which is already stored.
    pub fn write_record_document(&mut self, record: &Record) -> Result<(), CommandFailure> {
        let record = self.explain(record);
        self.write_document(&record, |style| text::render_summary(&record, style))
    }

    /// Prints and stores the result of several runs.
    pub fn write_set(
        &mut self,
        set: &RunSet,
        verdicts: &[ExpectationResult],
    ) -> Result<(), CommandFailure> {
        let mut set = set.clone();
        set.result.label = set.result.label.take().or_else(|| self.label.clone());
        let had_cause = self.has_cause;
        for run in &mut set.runs {
            *run = self.explain(run);
        }
        // A search loses packets on purpose: only the runs that decide its result count.
        if set.result.search.is_some() || set.result.capacity.is_some() {
            let is_deciding =
                |run: &&Record| set.result.depends_on(&run.id, run.summary.loss_fraction);
            let mut deciding = set.runs.iter().filter(is_deciding);
            let has_deciding_cause = deciding.any(|run| run.findings.iter().any(Finding::is_cause));
            self.has_cause = had_cause || has_deciding_cause;
        }
        let set = &set;
        let json = serde_json::to_string(set).expect("a set holds only what JSON can say");
        // A set without runs, interrupted before its first, is not stored.
        if self.store && !set.runs.is_empty() {
            let stored = RecordStore::open_default().and_then(|store| {
                for run in &set.runs {
                    store.store(run)?;
                }
                store.store_set(set)
            });
            self.report_stored(stored);
        }
        match self.format {
            OutputFormat::Text => print_stdout(&text::render_set(set, &self.style)),
            OutputFormat::Json if self.file.is_none() => print_stdout(&json),
            OutputFormat::JsonStream => print_stdout(&json),
            OutputFormat::Json => {}
        }
        self.print_verdicts(verdicts);
        if let Some((file, title)) = &self.report_page {
            write_file(file, &html::render_set(title, set))?;
        }
        self.write_json_file(&json)
    }

    /// Also writes a report page with this title.
    pub fn with_report(mut self, file: Option<&std::path::Path>, title: &str) -> Self {
        if file.is_some() {
            continue_without_reader();
        }
        self.report_page = file.map(|file| (file.to_owned(), title.to_owned()));
        self
    }

    fn write_report(&self, record: &Record) -> Result<(), CommandFailure> {
        if let Some((file, title)) = &self.report_page {
            let runs = std::slice::from_ref(record);
            write_file(file, &html::render_report(title, runs, &[]))?;
        }
        Ok(())
    }

    fn write_json_file(&self, json: &str) -> Result<(), CommandFailure> {
        if let Some(file) = &self.file {
            write_file(file, &format!("{json}\n"))?;
        }
        Ok(())
    }

    fn report_stored(&self, stored: Result<std::path::PathBuf, ReportError>) {
        match stored {
            Ok(path) if self.verbose => print_stderr(&format!("stored as {}", path.display())),
            Ok(_) => {}
            // The result itself is not lost: it is printed next.
            Err(error) => self.report_store_failure(&error),
        }
    }

    /// Reports that a result is not stored. A command reports it once, because the cause is the
    /// same for all of its records; a server reports it for each test, because tests may be days
    /// apart.
    pub fn report_store_failure(&self, error: &ReportError) {
        if !self.has_reported_store_failure.swap(true, Relaxed) || self.server_mode.is_some() {
            self.warn(&format!("warning: {error}"));
        }
    }

    fn print_verdicts(&self, verdicts: &[ExpectationResult]) {
        if verdicts.is_empty() {
            return;
        }
        match self.format {
            OutputFormat::Text => print_stdout(&text::render_verdicts(verdicts, &self.style)),
            _ => print_stderr(&text::render_verdicts(verdicts, &self.error_style)),
        }
    }

    /// Prints a document as JSON, or as the text that `text` makes.
    pub fn write_document<T: Serialize>(
        &self,
        value: &T,
        text: impl FnOnce(&TextStyle) -> String,
    ) -> Result<(), CommandFailure> {
        let json = serde_json::to_string(value).expect("our documents hold only what JSON can say");
        match self.format {
            OutputFormat::Text => print_stdout(&text(&self.style)),
            _ if self.file.is_none() => print_stdout(&json),
            _ => {}
        }
        self.write_json_file(&json)
    }

    /// Sets or removes the full-screen display; on removal, its warnings are printed.
    #[cfg(feature = "tui")]
    pub fn set_screen(&mut self, screen: Option<ScreenOutput>) {
        let old_screen = std::mem::replace(&mut self.screen, screen);
        for warning in old_screen.into_iter().flat_map(ScreenOutput::into_warnings) {
            print_stderr(&warning);
        }
    }

    /// Returns the sender of events to the full-screen display, if there is one.
    pub fn event_sender(&self) -> Option<&EventSender> {
        self.screen.as_ref().map(ScreenOutput::sender)
    }

    /// Shows on the full-screen display which part of a series starts; without one, the part is
    /// printed at its end.
    pub fn show_part(&self, part: SeriesPart) {
        if let Some(sender) = self.event_sender() {
            sender.show(UiUpdate::PartStarted(part));
        }
    }

    /// Reports the progress of a series: as text, or on standard error if standard output gets
    /// JSON.
    pub fn report_progress(&self, text: &str) {
        if let Some(screen) = &self.screen {
            return screen.show_line(text);
        }
        match self.format {
            _ if self.quiet => {}
            // A terminal would break the line within a word.
            OutputFormat::Text if std::io::stdout().is_terminal() => {
                print_stdout(&wrap_lines(text, self.style.width));
            }
            OutputFormat::Text => print_stdout(text),
            _ if self.verbose => print_stderr(text),
            _ => {}
        }
    }

    /// Reports a step of a long series: on a terminal each step replaces the last one.
    pub fn report_step(&self, text: &str) {
        if !self.show_live(text) {
            self.report_progress(text);
        }
    }

    /// Shows a line that the next one replaces, if there is a terminal; returns whether it did.
    pub fn show_live(&self, text: &str) -> bool {
        let is_plain = self.screen.is_none() && self.is_text() && !self.quiet && !self.verbose;
        let can_show = is_plain && can_show_live_line();
        if can_show {
            show_live_line(text);
        }
        can_show
    }

    /// Reports status on standard error, unless --quiet is given.
    pub fn report_status(&self, text: &str) {
        match &self.screen {
            Some(screen) => screen.show_line(text),
            None if self.quiet => {}
            None => print_stderr(text),
        }
    }

    /// Prints a warning or a note.
    pub fn warn(&self, text: &str) {
        match &self.screen {
            Some(screen) => screen.warn(text),
            None => print_stderr(text),
        }
    }

    /// Reports a failure after the result is printed: with --json, no second document may follow.
    pub fn report_late_failure(&self, failure: &CommandFailure) {
        match self.format {
            OutputFormat::Json => self.warn(&format!("error: {}", failure.problem)),
            _ => self.report_failure(failure),
        }
    }

    /// Reports a failure in the output format.
    pub fn report_failure(&self, failure: &CommandFailure) {
        match self.format {
            OutputFormat::Text => {
                print_stderr(&text::render_error(&failure.problem, &self.error_style))
            }
            OutputFormat::JsonStream
                if self.reported_failure.as_ref() == Some(&failure.problem) => {}
            format => print_failure(format, failure, self.test),
        }
    }
}

#[derive(Serialize)]
struct ErrorDocument<'a> {
    error: &'a ErrorReport,
    exit_code: u8,
}

/// Prints a failure to standard output: as the JSON document of a command, or as a line of its
/// stream.
pub fn print_failure(format: OutputFormat, failure: &CommandFailure, test: u32) {
    if format == OutputFormat::JsonStream {
        let what = EventKind::Failed {
            problem: failure.problem.clone(),
        };
        print_stdout(&json_stream::event_line(
            &Event { test, kind: what },
            Timestamp::now(),
        ));
        return;
    }
    let document = ErrorDocument {
        error: &failure.problem,
        exit_code: failure.code,
    };
    print_stdout(&serde_json::to_string(&document).expect("a problem holds only texts"));
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    use super::*;

    #[test]
    fn unwritable_files_are_reported_first() {
        let dir = tempfile::tempdir().expect("a folder");
        let locked = dir.path().join("locked");
        std::fs::create_dir(&locked).expect("a folder");
        std::fs::write(locked.join("there"), "").expect("a file");
        symlink("locked/there", dir.path().join("link")).expect("a link");
        std::fs::set_permissions(&locked, PermissionsExt::from_mode(0o555)).expect("a mode");
        // Root writes everywhere.
        let is_root = check_writable_dir(&locked).is_ok();
        for (file, why) in [
            ("new.json", None),
            ("", Some("is a directory")),
            ("nowhere/new.json", Some("no such directory")),
            ("locked/new.json", Some("denied").filter(|_| !is_root)),
            ("link", Some("denied").filter(|_| !is_root)),
        ] {
            let situation = check_writable_file(&dir.path().join(file));
            let situation = situation.err().map(|failure| failure.problem.situation);
            match (&situation, why) {
                (Some(situation), Some(why)) => {
                    assert!(situation.contains(why), "{file}: {situation}")
                }
                _ => assert_eq!(situation.as_deref(), why, "{file}"),
            }
        }
        std::fs::set_permissions(&locked, PermissionsExt::from_mode(0o755)).expect("a mode");
        // A device is written in place, and `-` is not a file.
        for file in ["/dev/full", "-"] {
            assert!(check_writable_file(Path::new(file)).is_ok(), "{file}");
        }
    }
}
