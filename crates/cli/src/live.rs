//! `--tui`: shows a run or a series on the full screen while it continues; the text of the result
//! follows after it.
//!
//! The thread that otherwise prints lines draws the screen a few times a second, so that no further
//! thread competes with the measuring threads.

mod event_log;
mod live_counters;
mod run;
mod screen;
mod state;
mod terminal_writer;

use std::io::IsTerminal;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use linerate_host::stop_flag::{ABORTED, Stop};
use linerate_host::sys::terminal::{
    Taken, has_hung_up, leave_unread, put_back, takes_output, typed,
};
use linerate_metric::event::Problem;
use linerate_report::stream;
use ratatui::crossterm::event::{
    self, Event as Input, KeyCode, KeyEvent, KeyEventKind, KeyModifiers,
};
use ratatui::crossterm::terminal::disable_raw_mode;

use crate::failure::Failure;
use crate::output::Output;
use crate::printer::{Teller, Told, while_printing};
use crate::ui_update::{Scene, Screen};
use event_log::Heard;
use live_counters::Sight;
use state::{Key, State};
use terminal_writer::Canvas;

/// Time between two polls of the keys: below a tenth of a second, keys feel immediate.
const LOOK: Duration = Duration::from_millis(80);

/// Minimum time between two redraws: more than the eye can follow only costs processor time.
const DRAW: Duration = Duration::from_millis(200);

/// Time after which a second `q` counts as a request to end at once, not as a repeated key.
const REPEATED: Duration = Duration::from_millis(500);

/// Time without output after which a terminal counts as stalled: its reader is gone, and the user
/// waits for the end.
const STILL: Duration = Duration::from_secs(2);

/// Checks before a measurement that a terminal exists if the screen is requested.
pub fn check(asked: bool) -> Result<(), Failure> {
    let there = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    match there || !asked {
        true => Ok(()),
        false => Err(Failure::usage(Problem::new(
            "needs a terminal for the display and the keys",
            "--tui",
            "leave it out when output goes to a file or a pipe",
        ))),
    }
}

/// Runs `body` with the full-screen display if requested, else with a printer.
///
/// # Errors
/// Fails if the terminal or a thread is not available.
pub fn while_told<T>(
    asked: bool,
    stop: &Stop,
    output: &mut Output,
    body: impl FnOnce(&Teller) -> T,
) -> Result<T, Failure> {
    match asked {
        true => while_shown(stop, body),
        false => while_printing(output, body),
    }
}

/// Runs a series with this title, on the full screen if requested.
///
/// # Errors
/// As [`while_shown`].
pub fn series<T>(
    asked: bool,
    title: &str,
    stop: &Stop,
    output: &mut Output,
    body: impl FnOnce(&mut Output) -> T,
) -> Result<T, Failure> {
    if !asked {
        return Ok(body(output));
    }
    let result = while_shown(stop, |teller| {
        teller.show(Scene::Title(title.to_owned()));
        output.put_on(Some(Screen::behind(teller.clone())));
        body(output)
    });
    output.put_on(None);
    result
}

/// Runs `body` with the full-screen display of its events; `q` ends the run as Ctrl-C does.
///
/// # Errors
/// Fails if the terminal or a thread is not available.
pub fn while_shown<T>(stop: &Stop, body: impl FnOnce(&Teller) -> T) -> Result<T, Failure> {
    let (queue, waiting) = mpsc::channel();
    let teller = Teller::of(queue);
    let not_had = |error: std::io::Error| {
        Failure::failed(Problem::new(
            format!("cannot switch to full-screen mode ({error})"),
            "the terminal",
            "leave out --tui",
        ))
    };
    // From here on the terminal is restored at each exit, even by a signal.
    let taken = Taken::screen().map_err(not_had)?;
    let (terminal, drawn) = Canvas::on_terminal().map_err(not_had)?;
    let stopping = stop.clone();
    let (shows, shown) = mpsc::channel::<()>();
    let screen = thread::Builder::new()
        .name("screen".to_owned())
        .spawn(move || {
            show(terminal, &waiting, &stopping);
            drop(shows);
        });
    if let Err(error) = screen {
        return Err(Failure::failed(Problem::new(
            format!("cannot start the screen thread ({error})"),
            "this process",
            "raise the process limit: `ulimit -u`",
        )));
    }
    // Ends the screen however `body` ends.
    let over = Over(&teller);
    let result = body(&teller);
    drop(over);
    // The result is printed on the restored terminal. The screen thread may block forever in a read
    // of a terminal that has hung up, so it is not joined.
    let mut still = Still::since_now();
    while shown.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) && !has_hung_up() {
        if still.is_so(stop, &drawn) {
            // First, because restoring the settings wakes a blocked writer, and the terminal then
            // seems to be read.
            leave_unread();
            break;
        }
    }
    drop(taken);
    // crossterm must see raw mode end, so that the terminal can be taken again.
    let _ = disable_raw_mode();
    Ok(result)
}

/// Detects a terminal that accepts no output while the user wants the run to end. Without that
/// request, a reader may pause for any time.
struct Still {
    since: Instant,
    drawn: u64,
}

impl Still {
    fn since_now() -> Self {
        Self {
            since: Instant::now(),
            drawn: 0,
        }
    }

    fn is_so(&mut self, stop: &Stop, drawn: &AtomicU64) -> bool {
        let drawn = drawn.load(Relaxed);
        if drawn != self.drawn || !stop.is_set() || takes_output() {
            *self = Self {
                since: Instant::now(),
                drawn,
            };
        }
        self.since.elapsed() >= STILL
    }
}

/// Sends the end of the updates on drop.
struct Over<'a>(&'a Teller);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Draws updates and handles keys until the updates end.
fn show(mut terminal: terminal_writer::Screen, waiting: &Receiver<Told>, stop: &Stop) {
    let mut state = State::default();
    let mut sight = Sight::default();
    let mut heard = Heard::default();
    let began = Instant::now();
    let mut drawn = began - DRAW;
    let mut quit: Option<Instant> = None;
    let mut over = false;
    while !over {
        state.pass(began.elapsed());
        match waiting.recv_timeout(LOOK) {
            Ok(Told::Event(at, mut event)) => {
                event.test = state.begun().max(event.test);
                heard.push(stream::line(&event, at));
                sight.take(&event);
                state.take(Told::Event(at, event));
            }
            Ok(Told::Scene(scene)) => {
                sight.scene(&scene);
                state.take(Told::Scene(scene));
            }
            Ok(Told::End) | Err(RecvTimeoutError::Disconnected) => over = true,
            Err(RecvTimeoutError::Timeout) => {}
        }
        for key in pressed() {
            match key {
                Key::Quit => {
                    if quit.is_some_and(|since| since.elapsed() > REPEATED) {
                        put_back();
                        std::process::exit(ABORTED);
                    }
                    quit.get_or_insert_with(Instant::now);
                    state.key(Key::Quit);
                    stop.as_flag().store(true, Relaxed);
                }
                Key::Save => state.say(heard.save()),
                key => state.key(key),
            }
        }
        if drawn.elapsed() >= DRAW || over {
            if let Some(places) = sight.look() {
                state.see(places);
            }
            // A terminal that went away ends the display, not the run.
            let _ = terminal.draw(|frame| screen::draw(&state, frame));
            drawn = Instant::now();
        }
    }
    // Its drop would show the cursor, which the owner of the terminal does already, and panic if
    // neither the cursor nor an error message can be written any more.
    std::mem::forget(terminal);
}

/// Returns the keys since the last poll.
fn pressed() -> Vec<Key> {
    let mut keys = Vec::new();
    // On a terminal that has hung up, crossterm's reader loops forever at the end of the input.
    while !has_hung_up() && event::poll(Duration::ZERO).unwrap_or(false) {
        keys.extend(event::read().ok().and_then(key));
    }
    // After a resize event crossterm does not report keys that are also waiting until the next key:
    // its epoll is edge-triggered, and it returns at the first event.
    keys.extend(hidden(&typed()));
    keys
}

/// Returns the keys among raw bytes that crossterm has not parsed. Escape sequences are ignored; an
/// escape at the end is the key itself.
fn hidden(bytes: &[u8]) -> Vec<Key> {
    const ESCAPE: u8 = 0x1b;
    let escapes = bytes.iter().rev().take_while(|byte| **byte == ESCAPE);
    let (before, escapes) = bytes.split_at(bytes.len() - escapes.count());
    let plain = before.iter().take_while(|byte| **byte != ESCAPE);
    let code = |byte: &u8| match byte {
        &ESCAPE => Some(KeyCode::Esc.into()),
        0x03 => Some(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)),
        b'\r' | b'\n' => Some(KeyCode::Enter.into()),
        byte if byte.is_ascii_graphic() || *byte == b' ' => {
            Some(KeyCode::Char(char::from(*byte)).into())
        }
        _ => None,
    };
    plain
        .chain(escapes)
        .filter_map(code)
        .filter_map(|event| key(Input::Key(event)))
        .collect()
}

fn key(input: Input) -> Option<Key> {
    let Input::Key(key) = input else {
        return None;
    };
    if key.kind != KeyEventKind::Press {
        return None;
    }
    match key.code {
        // In raw mode Ctrl-C sends no signal.
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Some(Key::Quit),
        KeyCode::Char('q') | KeyCode::Esc => Some(Key::Quit),
        KeyCode::Char('p' | ' ') => Some(Key::Pause),
        KeyCode::Char('s') => Some(Key::Save),
        KeyCode::Enter => Some(Key::Done),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_known_without_a_parser() {
        for (bytes, keys) in [
            (&b"q"[..], &[Key::Quit][..]),
            (b"\x03", &[Key::Quit]),
            (b"\x1b", &[Key::Quit]),
            // After another key, and held down.
            (b"s\x1b", &[Key::Save, Key::Quit]),
            (b"\x1b\x1b", &[Key::Quit, Key::Quit]),
            (b"\x1b[5~\x1b", &[Key::Quit]),
            (b"ps\r", &[Key::Pause, Key::Save, Key::Done]),
            // Page up and a key: without a parser, the end of the sequence is unknown.
            (b" \x1b[5~q", &[Key::Pause]),
            (b"xyz", &[]),
            (b"", &[]),
        ] {
            assert_eq!(hidden(bytes), keys, "{bytes:?}");
        }
    }
}
