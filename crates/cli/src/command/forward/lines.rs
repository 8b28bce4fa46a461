//! Where the shell's commands come from: a terminal with history and completion, a pipe, a file.
//!
//! A thread reads, one line each time it is asked to: so whoever waits for a line can also be told to
//! stop.

use std::io::{BufRead, IsTerminal, stdin};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{Context, Editor, Helper};

use super::commands;

/// What the shell shows before a command.
pub const PROMPT: &str = "forward> ";

/// What was read.
pub enum Line {
    /// A command.
    Text(String),
    /// There is no more.
    End,
    /// Ctrl-C on a terminal.
    Interrupted,
}

/// Lines, read when they are asked for.
pub struct Lines {
    ask: Sender<()>,
    answers: Receiver<Line>,
    /// The terminal as it was: a thread that still reads has changed it.
    before: Option<Termios>,
    /// Whether lines are typed, so that they stand on the screen already.
    pub typed: bool,
}

impl Lines {
    /// Lines of standard input.
    pub fn of_stdin() -> Self {
        let typed = stdin().is_terminal();
        let (ask, asked) = mpsc::channel();
        let (answer, answers) = mpsc::channel();
        thread::spawn(move || {
            if typed && let Ok(editor) = editor() {
                type_in(editor, &asked, &answer);
                return;
            }
            let mut lines = stdin().lock().lines();
            while asked.recv().is_ok() {
                let line = match lines.next() {
                    Some(Ok(line)) => Line::Text(line),
                    _ => Line::End,
                };
                if answer.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            ask,
            answers,
            before: typed.then(|| tcgetattr(stdin()).ok()).flatten(),
            typed,
        }
    }

    /// Asks for a line.
    pub fn ask(&self) {
        // A reader that is gone shows when its answer is waited for.
        let _ = self.ask.send(());
    }

    /// Waits for it for a while; none when it is not there yet.
    pub fn wait(&self, patience: Duration) -> Option<Line> {
        match self.answers.recv_timeout(patience) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Line::End),
        }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // The terminal may be gone, and then nobody misses its settings.
            let _ = tcsetattr(stdin(), OptionalActions::Now, before);
        }
    }
}

/// Where history is kept: `$XDG_STATE_HOME/linerate/forward_history`.
fn history_file() -> Option<PathBuf> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let state = named("XDG_STATE_HOME").map(PathBuf::from);
    let state = state.or_else(|| Some(PathBuf::from(named("HOME")?).join(".local/state")))?;
    Some(state.join("linerate/forward_history"))
}

fn editor() -> rustyline::Result<Editor<Completions, FileHistory>> {
    let mut editor = Editor::new()?;
    editor.set_helper(Some(Completions));
    if let Some(file) = history_file() {
        // The first time there is none.
        let _ = editor.load_history(&file);
    }
    Ok(editor)
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

/// Saves history after each command, so that a killed shell has it too. Without a folder to write to
/// it lasts as long as the shell.
fn keep(editor: &mut Editor<Completions, FileHistory>) {
    if let Some(file) = history_file() {
        if let Some(folder) = file.parent() {
            let _ = std::fs::create_dir_all(folder);
        }
        let _ = editor.save_history(&file);
    }
}

/// Completes words of the table of commands.
struct Completions;

impl Completer for Completions {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        position: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        Ok(commands::complete(&line[..position]))
    }
}

impl Helper for Completions {}
impl Highlighter for Completions {}
impl Validator for Completions {}
impl Hinter for Completions {
    type Hint = String;
}
