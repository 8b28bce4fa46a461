//! Input of the shell: a terminal with history and completion, a pipe, or a file.
//!
//! A thread reads one line per request, so that the shell can also stop while it waits for a line.

use std::io::{BufRead, IsTerminal, stdin, stdout};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use linerate_sys::terminal::TerminalGuard;
use rustyline::completion::{Completer, Pair};
use rustyline::config::Behavior;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{CompletionType, Config, Context, Editor, Helper};

use super::grammar;

/// Prompt of the shell.
pub const PROMPT: &str = "forward> ";

/// Result of a read.
pub enum ShellInput {
    /// A line of text.
    Text(String),
    /// End of the input.
    End,
    /// Ctrl-C on a terminal.
    Interrupted,
}

/// Lines, read on request.
pub struct CommandInput {
    requests: Sender<()>,
    lines: Receiver<ShellInput>,
    /// Restores the terminal settings on drop, because a thread that still reads has changed them.
    _terminal_guard: Option<TerminalGuard>,
    /// Lines are typed on a terminal, which shows them already.
    pub is_typed: bool,
    /// Port numbers, for completion.
    ports: Arc<Mutex<Vec<u32>>>,
}

impl CommandInput {
    /// Reads standard input. A terminal's echo goes to standard output, unless that is for programs
    /// or redirected.
    pub fn from_stdin(ports: Vec<u32>, allows_stdout: bool) -> Self {
        let is_typed = stdin().is_terminal();
        let (request_sender, requests) = mpsc::channel();
        let (replies, lines) = mpsc::channel();
        let ports = Arc::new(Mutex::new(ports));
        let editor = match is_typed {
            true => {
                let on_terminal = !allows_stdout || !stdout().is_terminal();
                new_editor(Arc::clone(&ports), on_terminal).ok()
            }
            false => None,
        };
        thread::spawn(move || {
            if let Some(editor) = editor {
                read_typed_lines(editor, &requests, &replies);
                return;
            }
            read_lines(stdin().lock(), &requests, &replies);
        });
        Self {
            requests: request_sender,
            lines,
            _terminal_guard: is_typed
                .then(|| TerminalGuard::for_settings().ok())
                .flatten(),
            is_typed,
            ports,
        }
    }

    /// Sets the port numbers for completion.
    pub fn set_ports(&self, ports: Vec<u32>) {
        *self.ports.lock().unwrap_or_else(PoisonError::into_inner) = ports;
    }

    /// Requests a line.
    pub fn request_line(&self) {
        // A reader that has ended is detected in `wait_for_line`.
        let _ = self.requests.send(());
    }

    /// Waits for the requested line; `None` if it does not arrive in time.
    pub fn wait_for_line(&self, timeout: Duration) -> Option<ShellInput> {
        match self.lines.recv_timeout(timeout) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(ShellInput::End),
        }
    }
}

/// Returns the file of the history: `$XDG_STATE_HOME/linerate/forward_history`.
fn history_file() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let state = variable("XDG_STATE_HOME").map(PathBuf::from);
    let state = state.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".local/state")))?;
    Some(state.join("linerate/forward_history"))
}

/// Creates an editor on standard output, or on the terminal device itself if standard output holds
/// a document.
fn new_editor(
    ports: Arc<Mutex<Vec<u32>>>,
    on_terminal: bool,
) -> rustyline::Result<Editor<CommandCompleter, FileHistory>> {
    // As in a shell: first the common prefix of all candidates, then their list.
    let list = Config::builder().completion_type(CompletionType::List);
    // Without bracketed paste, each pasted line is a command of its own, and a signal that ends the
    // process leaves no terminal mode to reset.
    let list = list.bracketed_paste(false).behavior(match on_terminal {
        true => Behavior::PreferTerm,
        false => Behavior::Stdio,
    });
    let mut editor = Editor::with_config(list.build())?;
    editor.set_helper(Some(CommandCompleter { ports }));
    if let Some(file) = history_file() {
        // The file does not exist at first use.
        let _ = editor.load_history(&file);
    }
    Ok(editor)
}

/// Reads lines of a pipe or a file. Invalid UTF-8 becomes an unknown command, not the end of the
/// input.
fn read_lines(mut input: impl BufRead, requests: &Receiver<()>, replies: &Sender<ShellInput>) {
    while requests.recv().is_ok() {
        let mut bytes = Vec::new();
        let line = match input.read_until(b'\n', &mut bytes) {
            Ok(0) | Err(_) => ShellInput::End,
            Ok(_) => ShellInput::Text(String::from_utf8_lossy(&bytes).trim_end().to_owned()),
        };
        if replies.send(line).is_err() {
            return;
        }
    }
}

fn read_typed_lines(
    mut editor: Editor<CommandCompleter, FileHistory>,
    requests: &Receiver<()>,
    replies: &Sender<ShellInput>,
) {
    while requests.recv().is_ok() {
        let line = match editor.readline(PROMPT) {
            Ok(line) => {
                if !line.trim().is_empty() {
                    let _ = editor.add_history_entry(&line);
                    save_history(&mut editor);
                }
                ShellInput::Text(line)
            }
            Err(ReadlineError::Interrupted) => ShellInput::Interrupted,
            Err(_) => ShellInput::End,
        };
        if replies.send(line).is_err() {
            return;
        }
    }
}

/// Saves the history after each command, so that a killed shell keeps it too. Without a writable
/// directory it lasts as long as the shell.
fn save_history(editor: &mut Editor<CommandCompleter, FileHistory>) {
    if let Some(file) = history_file() {
        if let Some(dir) = file.parent() {
            let _ = std::fs::create_dir_all(dir);
        }
        let _ = editor.save_history(&file);
    }
}

/// Completion with the table of commands.
struct CommandCompleter {
    ports: Arc<Mutex<Vec<u32>>>,
}

impl Completer for CommandCompleter {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        position: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        let (start, candidates) = grammar::completions(&line[..position], &ports);
        let pairs = candidates.into_iter().map(|candidate| Pair {
            // After a colon, the same word continues.
            replacement: match candidate.ends_with(':') {
                true => candidate.clone(),
                false => format!("{candidate} "),
            },
            display: candidate,
        });
        Ok((start, pairs.collect()))
    }
}

impl Helper for CommandCompleter {}
impl Highlighter for CommandCompleter {}
impl Validator for CommandCompleter {}
impl Hinter for CommandCompleter {
    type Hint = String;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_text_end_nothing() {
        let ((request_sender, requests), (reply_sender, replies)) =
            (mpsc::channel(), mpsc::channel());
        (0..4).for_each(|_| request_sender.send(()).unwrap());
        drop(request_sender);
        read_lines(
            &b"start\r\n\xff\xfe set\nstop"[..],
            &requests,
            &reply_sender,
        );
        drop(reply_sender);
        let lines: Vec<_> = replies.iter().collect();
        let texts: Vec<_> = (lines.iter())
            .map(|line| match line {
                ShellInput::Text(text) => text.as_str(),
                ShellInput::End => "the end",
                ShellInput::Interrupted => "Ctrl-C",
            })
            .collect();
        assert_eq!(texts, ["start", "\u{fffd}\u{fffd} set", "stop", "the end"]);
    }
}
