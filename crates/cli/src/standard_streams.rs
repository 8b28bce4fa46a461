//! Standard output and standard error of the process: printing, a closed reader, text styles.

use std::io::{IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use linerate_host::stop_flag::StopFlag;
use linerate_report::external_text::printable;
use linerate_report::style::{ColorChoice, OutputProperties, TextStyle};

/// Set when a write to standard output fails. Global, because a process has one standard output.
static STDOUT_FAILED: AtomicBool = AtomicBool::new(false);

/// Set if the command continues without a reader: its result also goes to files, or it carries
/// the traffic of others.
static CONTINUES: AtomicBool = AtomicBool::new(false);
/// Set if the command is a server: its reader changes neither its course nor its end.
static IS_SERVER: AtomicBool = AtomicBool::new(false);
/// Stop flag of a command that has settings to restore.
static RESTORING_STOP: OnceLock<StopFlag> = OnceLock::new();
/// Set when a reader of our output has closed its end.
static READER_CLOSED: AtomicBool = AtomicBool::new(false);

/// Set once a style with colours was chosen for one of the streams.
static HAS_COLORS: AtomicBool = AtomicBool::new(false);

/// Lets the command continue to its end, even if the reader of its output closes.
pub fn continue_without_reader() {
    CONTINUES.store(true, Relaxed);
}

/// Lets a server continue without a reader: the tests belong to its clients. What is
/// printed without a reader is lost; a new reader of a named pipe gets what is printed from then on.
pub fn serve_without_reader() {
    IS_SERVER.store(true, Relaxed);
}

/// Lets a closed reader stop the command as Ctrl-C does, so that it restores its settings.
pub fn stop_without_reader(stop: &StopFlag) {
    // A process has one stop flag.
    let _ = RESTORING_STOP.set(stop.clone());
}

/// Ends the process by SIGPIPE, as pipeline tools do, if its reader closed while the command
/// continued.
pub fn exit_if_reader_closed() {
    if READER_CLOSED.load(Relaxed) && !IS_SERVER.load(Relaxed) {
        linerate_sys::signal::exit_by_sigpipe();
    }
}

/// Set while a line of [`show_live_line`] is on the terminal.
static HAS_LIVE_LINE: AtomicBool = AtomicBool::new(false);

/// Returns whether a line can be replaced by the next one: both streams are one terminal.
pub fn can_show_live_line() -> bool {
    std::io::stdout().is_terminal()
        && std::io::stderr().is_terminal()
        && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
}

/// Shows a line that the next line of output replaces.
pub fn show_live_line(text: &str) {
    let width = stdout_columns().unwrap_or(linerate_report::style::PIPE_WIDTH);
    let line: String = printable(text, false).chars().take(width - 1).collect();
    HAS_LIVE_LINE.store(true, Relaxed);
    // Progress only: a failure to show it changes nothing.
    let _ = write!(std::io::stderr().lock(), "\r\x1b[K{line}");
}

/// Removes the line of [`show_live_line`].
fn remove_live_line() {
    if HAS_LIVE_LINE.swap(false, Relaxed) {
        let _ = write!(std::io::stderr().lock(), "\r\x1b[K");
    }
}

/// Prints text and a newline to standard output.
///
/// Only text and our own colours reach it, whatever names of others the text contains.
pub fn print_stdout(text: &str) {
    remove_live_line();
    let text = printable(text, HAS_COLORS.load(Relaxed));
    let mut out = std::io::stdout().lock();
    // A full disk is reported only once.
    if let Err(error) = writeln!(out, "{text}").and_then(|()| out.flush())
        && !exit_on_broken_pipe(&error)
        && !STDOUT_FAILED.swap(true, Relaxed)
    {
        print_stderr(&format!(
            "error: cannot write to standard output: {error}\n\
             help:  free disk space there or redirect the output; `linerate runs list` lists the stored runs"
        ));
    }
}

/// Prints text and a newline to standard error, as [`print_stdout`] does.
pub fn print_stderr(text: &str) {
    remove_live_line();
    let text = printable(text, HAS_COLORS.load(Relaxed));
    if let Err(error) = writeln!(std::io::stderr().lock(), "{text}") {
        exit_on_broken_pipe(&error);
    }
}

/// Handles a write error, as [`end_with_reader`] does if the reader closed. Returns whether it did.
pub fn exit_on_broken_pipe(error: &std::io::Error) -> bool {
    let is_closed = error.kind() == std::io::ErrorKind::BrokenPipe;
    if is_closed {
        end_with_reader();
    }
    is_closed
}

/// Ends the process quietly because a reader closed: at once, or at the end of a command that
/// continues, and never a server.
pub fn end_with_reader() {
    READER_CLOSED.store(true, Relaxed);
    match RESTORING_STOP.get() {
        _ if CONTINUES.load(Relaxed) => {}
        Some(stop) => stop.set(),
        None => exit_if_reader_closed(),
    }
}

/// Returns whether output was lost.
pub fn stdout_failed() -> bool {
    STDOUT_FAILED.load(Relaxed)
}

/// Returns the width of the terminal of standard output.
fn stdout_columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|&columns| columns > 0)
}

/// Returns the width of help: that of the terminal, else of COLUMNS, else any.
pub fn help_columns() -> usize {
    let from_variable = || std::env::var("COLUMNS").ok()?.parse().ok();
    stdout_columns()
        .or_else(from_variable)
        .unwrap_or(usize::MAX)
}

/// Returns the text style for one of our streams.
pub fn stream_style(choice: ColorChoice, is_terminal: bool) -> TextStyle {
    let variable = |name| std::env::var(name).ok();
    let (no_color, clicolor_force, term) = (
        variable("NO_COLOR"),
        variable("CLICOLOR_FORCE"),
        variable("TERM"),
    );
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .find_map(|name| variable(name).filter(|value| !value.is_empty()));
    let columns = is_terminal.then(stdout_columns).flatten();
    let style = TextStyle::choose(
        choice,
        &OutputProperties {
            is_terminal,
            columns,
            no_color: no_color.as_deref(),
            clicolor_force: clicolor_force.as_deref(),
            term: term.as_deref(),
            locale: locale.as_deref(),
        },
    );
    HAS_COLORS.fetch_or(style.color, Relaxed);
    style
}

/// Returns the style for standard error, for commands without output options.
pub fn stderr_style() -> TextStyle {
    stream_style(ColorChoice::Auto, std::io::stderr().is_terminal())
}

/// Returns the style for standard output, for commands without output options; `to_stdout` is false
/// if the text goes to a file.
pub fn stdout_style(choice: ColorChoice, to_stdout: bool) -> TextStyle {
    stream_style(choice, to_stdout && std::io::stdout().is_terminal())
}

/// Returns the style of lists on standard output, for commands without output options. Without a
/// terminal each entry is one line of any length, so that line-oriented tools can read it.
pub fn list_style() -> TextStyle {
    let is_terminal = std::io::stdout().is_terminal();
    let style = stream_style(ColorChoice::Auto, is_terminal);
    match is_terminal {
        true => style,
        false => TextStyle {
            width: usize::MAX,
            ..style
        },
    }
}
