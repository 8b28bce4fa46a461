//! Where the shell's commands come from: a terminal with history and completion, a pipe, a file.
//!
//! A thread reads, one line each time it is asked to: so whoever waits for a line can also be told to
//! stop.

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
    /// Puts the terminal back as it was: a thread that still reads has changed it.
    _taken: Option<Taken>,
    /// Whether lines are typed, so that they stand on the screen already.
    pub typed: bool,
    /// Prints above the line that is typed.
    above: Option<Box<dyn ExternalPrinter + Send>>,
    /// Numbers of ports, for completion.
    ports: Arc<Mutex<Vec<u32>>>,
}

impl Lines {
    /// Lines of standard input. What is typed is shown on standard output, unless that is for programs or goes
    /// elsewhere.
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

    /// Which ports there are now.
    pub fn know(&self, ports: Vec<u32>) {
        *self.ports.lock().unwrap_or_else(PoisonError::into_inner) = ports;
    }

    /// Prints while a line is waited for: above it where one is typed, else as `plain` does.
    pub fn print(&mut self, text: &str, plain: impl FnOnce(&str)) {
        match &mut self.above {
            // A terminal that is gone shows at the next line.
            Some(above) => drop(above.print(format!("{text}\n"))),
            None => plain(text),
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

/// Where history is kept: `$XDG_STATE_HOME/linerate/forward_history`.
fn history_file() -> Option<PathBuf> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let state = named("XDG_STATE_HOME").map(PathBuf::from);
    let state = state.or_else(|| Some(PathBuf::from(named("HOME")?).join(".local/state")))?;
    Some(state.join("linerate/forward_history"))
}

/// An editor on standard output, or beside it on the terminal itself: a prompt is no part of a document.
fn editor(
    ports: Arc<Mutex<Vec<u32>>>,
    beside: bool,
) -> rustyline::Result<Editor<Completions, FileHistory>> {
    // As in a shell: what all words that fit have in common, then a list of them.
    let list = Config::builder().completion_type(CompletionType::List);
    // A paste is its lines, one command each, as if they were typed; and a signal that ends the process leaves the
    // terminal nothing to be turned off.
    let list = list.bracketed_paste(false).behavior(match beside {
        true => Behavior::PreferTerm,
        false => Behavior::Stdio,
    });
    let mut editor = Editor::with_config(list.build())?;
    editor.set_helper(Some(Completions { ports }));
    if let Some(file) = history_file() {
        // The first time there is none.
        let _ = editor.load_history(&file);
    }
    Ok(editor)
}

/// Reads lines of a pipe or a file. What is no text makes a word that nobody knows, and not the end of all that
/// follows.
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
            // Behind a colon more of the same word follows.
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
