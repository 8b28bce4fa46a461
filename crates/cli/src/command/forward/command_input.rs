//! Input of the shell: a terminal with history and completion, a pipe, or a file.
//!
//! A thread reads one line per request, so that the shell can also stop while it waits for a line.

use std::io::{BufRead, IsTerminal, stdin, stdout};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use linerate_host::sys::terminal::Taken;
use rustyline::completion::{Completer, Pair};
use rustyline::config::Behavior;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{CompletionType, Config, Context, Editor, ExternalPrinter, Helper};

use super::grammar;

/// Prompt of the shell.
pub const PROMPT: &str = "forward> ";

/// Result of a read.
pub enum Line {
    /// A line of text.
    Text(String),
    /// End of the input.
    End,
    /// Ctrl-C on a terminal.
    Interrupted,
}

/// Lines, read on request.
pub struct Lines {
    ask: Sender<()>,
    answers: Receiver<Line>,
    /// Restores the terminal settings on drop, because a thread that still reads has changed them.
    _taken: Option<Taken>,
    /// Lines are typed on a terminal, which shows them already.
    pub typed: bool,
    /// Printer for text above the line being typed.
    above: Option<Box<dyn ExternalPrinter + Send>>,
    /// Port numbers, for completion.
    ports: Arc<Mutex<Vec<u32>>>,
}

impl Lines {
    /// Reads standard input. A terminal's echo goes to standard output, unless that is for programs
    /// or redirected.
    pub fn of_stdin(ports: Vec<u32>, for_people: bool) -> Self {
        let typed = stdin().is_terminal();
        let (ask, asked) = mpsc::channel();
        let (answer, answers) = mpsc::channel();
        let ports = Arc::new(Mutex::new(ports));
        let mut editor = match typed {
            true => {
                let beside = !for_people || !stdout().is_terminal();
                editor(Arc::clone(&ports), beside).ok()
            }
            false => None,
        };
        let above = editor.as_mut().and_then(|editor| {
            let printer = editor.create_external_printer().ok()?;
            Some(Box::new(printer) as Box<dyn ExternalPrinter + Send>)
        });
        thread::spawn(move || {
            if let Some(editor) = editor {
                type_in(editor, &asked, &answer);
                return;
            }
            read_from(stdin().lock(), &asked, &answer);
        });
        Self {
            ask,
            answers,
            _taken: typed.then(|| Taken::settings().ok()).flatten(),
            typed,
            above,
            ports,
        }
    }

    /// Sets the port numbers for completion.
    pub fn know(&self, ports: Vec<u32>) {
        *self.ports.lock().unwrap_or_else(PoisonError::into_inner) = ports;
    }

    /// Prints while a line is awaited: above it on a terminal, else with `plain`.
    pub fn print(&mut self, text: &str, plain: impl FnOnce(&str)) {
        match &mut self.above {
            // A terminal that has hung up is detected at the next line.
            Some(above) => drop(above.print(format!("{text}\n"))),
            None => plain(text),
        }
    }

    /// Requests a line.
    pub fn ask(&self) {
        // A reader that has ended is detected in `wait`.
        let _ = self.ask.send(());
    }

    /// Waits for the requested line; `None` if it does not arrive in time.
    pub fn wait(&self, patience: Duration) -> Option<Line> {
        match self.answers.recv_timeout(patience) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Line::End),
        }
    }
}

/// Returns the file of the history: `$XDG_STATE_HOME/linerate/forward_history`.
fn history_file() -> Option<PathBuf> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let state = named("XDG_STATE_HOME").map(PathBuf::from);
    let state = state.or_else(|| Some(PathBuf::from(named("HOME")?).join(".local/state")))?;
    Some(state.join("linerate/forward_history"))
}

/// Creates an editor on standard output, or on the terminal device itself if standard output holds
/// a document.
fn editor(
    ports: Arc<Mutex<Vec<u32>>>,
    beside: bool,
) -> rustyline::Result<Editor<Completions, FileHistory>> {
    // As in a shell: first the common prefix of all candidates, then their list.
    let list = Config::builder().completion_type(CompletionType::List);
    // Without bracketed paste, each pasted line is a command of its own, and a signal that ends the
    // process leaves no terminal mode to reset.
    let list = list.bracketed_paste(false).behavior(match beside {
        true => Behavior::PreferTerm,
        false => Behavior::Stdio,
    });
    let mut editor = Editor::with_config(list.build())?;
    editor.set_helper(Some(Completions { ports }));
    if let Some(file) = history_file() {
        // The file does not exist at first use.
        let _ = editor.load_history(&file);
    }
    Ok(editor)
}

/// Reads lines of a pipe or a file. Invalid UTF-8 becomes an unknown command, not the end of the
/// input.
fn read_from(mut input: impl BufRead, asked: &Receiver<()>, answer: &Sender<Line>) {
    while asked.recv().is_ok() {
        let mut bytes = Vec::new();
        let line = match input.read_until(b'\n', &mut bytes) {
            Ok(0) | Err(_) => Line::End,
            Ok(_) => Line::Text(String::from_utf8_lossy(&bytes).trim_end().to_owned()),
        };
        if answer.send(line).is_err() {
            return;
        }
    }
}

fn type_in(
    mut editor: Editor<Completions, FileHistory>,
    asked: &Receiver<()>,
    answer: &Sender<Line>,
) {
    while asked.recv().is_ok() {
        let line = match editor.readline(PROMPT) {
            Ok(line) => {
                if !line.trim().is_empty() {
                    let _ = editor.add_history_entry(&line);
                    keep(&mut editor);
                }
                Line::Text(line)
            }
            Err(ReadlineError::Interrupted) => Line::Interrupted,
            Err(_) => Line::End,
        };
        if answer.send(line).is_err() {
            return;
        }
    }
}

/// Saves the history after each command, so that a killed shell keeps it too. Without a writable
/// directory it lasts as long as the shell.
fn keep(editor: &mut Editor<Completions, FileHistory>) {
    if let Some(file) = history_file() {
        if let Some(folder) = file.parent() {
            let _ = std::fs::create_dir_all(folder);
        }
        let _ = editor.save_history(&file);
    }
}

/// Completion with the table of commands.
struct Completions {
    ports: Arc<Mutex<Vec<u32>>>,
}

impl Completer for Completions {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        position: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        let (start, found) = grammar::complete(&line[..position], &ports);
        let pairs = found.into_iter().map(|word| Pair {
            // After a colon, the same word continues.
            replacement: match word.ends_with(':') {
                true => word.clone(),
                false => format!("{word} "),
            },
            display: word,
        });
        Ok((start, pairs.collect()))
    }
}

impl Helper for Completions {}
impl Highlighter for Completions {}
impl Validator for Completions {}
impl Hinter for Completions {
    type Hint = String;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_text_end_nothing() {
        let ((ask, asked), (answer, answers)) = (mpsc::channel(), mpsc::channel());
        (0..4).for_each(|_| ask.send(()).unwrap());
        drop(ask);
        read_from(&b"start\r\n\xff\xfe set\nstop"[..], &asked, &answer);
        drop(answer);
        let lines: Vec<_> = answers.iter().collect();
        let texts: Vec<_> = (lines.iter())
            .map(|line| match line {
                Line::Text(text) => text.as_str(),
                Line::End => "the end",
                Line::Interrupted => "Ctrl-C",
            })
            .collect();
        assert_eq!(texts, ["start", "\u{fffd}\u{fffd} set", "stop", "the end"]);
    }
}
