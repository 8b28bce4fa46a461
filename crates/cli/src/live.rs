//! `--tui`: a run, or a series of them, on the whole terminal while it goes on; the text of the result
//! follows when it is over.
//!
//! The screen is drawn a few times a second by the thread that otherwise prints lines, so nothing more
//! runs beside the measuring threads than without it.

mod canvas;
mod heard;
mod run;
mod screen;
mod sight;
mod state;

use std::io::IsTerminal;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use linerate_host::stop::{ABORTED, Stop};
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
use crate::scene::{Scene, Screen};
use canvas::Canvas;
use heard::Heard;
use sight::Sight;
use state::{Key, State};

/// Time between two looks at the keys; keys feel at once below a tenth of a second.
const LOOK: Duration = Duration::from_millis(80);

/// Time between two drawings at least: more than eyes follow only takes processor time.
const DRAW: Duration = Duration::from_millis(200);

/// After so long a second `q` is another wish than the first: to end at once, whatever goes on.
const REPEATED: Duration = Duration::from_millis(500);

/// A terminal that took nothing for so long stands still: nobody reads it, and who wants an end has waited
/// enough.
const STILL: Duration = Duration::from_secs(2);

/// Refuses a screen where there is none, before anything is measured.
pub fn check(asked: bool) -> Result<(), Failure> {
    let there = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    match there || !asked {
        true => Ok(()),
        false => Err(Failure::usage(Problem::new(
            "needs a terminal for its screen and its keys",
            "--tui",
            "leave it out where output goes to a file or a pipe",
        ))),
    }
}

/// Runs `body` beside the screen where that is asked for, and beside a printer otherwise.
///
/// # Errors
/// That the terminal, or a thread, could not be had.
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

/// Runs a series of that title, whose parts an output is told: shown where that is asked for.
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

/// Runs `body` under a screen of what it tells; `q` ends it as Ctrl-C does.
///
/// # Errors
/// That the terminal, or a thread, could not be had.
pub fn while_shown<T>(stop: &Stop, body: impl FnOnce(&Teller) -> T) -> Result<T, Failure> {
    let (queue, waiting) = mpsc::channel();
    let teller = Teller::of(queue);
    let not_had = |error: std::io::Error| {
        Failure::failed(Problem::new(
            format!("cannot be taken over ({error})"),
            "the terminal",
            "leave out --tui",
        ))
    };
    // From here on whatever ends this, and be it a signal, puts the terminal back.
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
            format!("no thread to draw with ({error})"),
            "this process",
            "raise the limit of processes: `ulimit -u`",
        )));
    }
    // However `body` ends: the screen goes then.
    let over = Over(&teller);
    let result = body(&teller);
    drop(over);
    // The result is printed on the terminal as it was before. Whoever reads keys from one that has gone
    // away may never come back.
    let mut still = Still::since_now();
    while shown.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) && !has_hung_up() {
        if still.is_so(stop, &drawn) {
            // First: settings that are put back wake whoever waits there, and for a moment it seems to be read.
            leave_unread();
            break;
        }
    }
    drop(taken);
    // Theirs is to know that the terminal can be taken over once more.
    let _ = disable_raw_mode();
    Ok(result)
}

/// Whether the terminal stands still while somebody wants an end. Without such a wish its reader may come back
/// whenever it likes.
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

/// Tells the screen that nothing more comes when it is dropped.
struct Over<'a>(&'a Teller);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Draws what is told, and does what keys say, until nothing more is told.
fn show(mut terminal: canvas::Screen, waiting: &Receiver<Told>, stop: &Stop) {
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
            // A terminal that went away ends the screen, not the run.
            let _ = terminal.draw(|frame| screen::draw(&state, frame));
            drawn = Instant::now();
        }
    }
    // Dropped, it would show the cursor, which whoever took the terminal does, and panic where neither that
    // nor a word about it can be written any more.
    std::mem::forget(terminal);
}

/// Keys since the last look.
fn pressed() -> Vec<Key> {
    let mut keys = Vec::new();
    // At the end of what was typed on a terminal that is gone, its reader turns round without end.
    while !has_hung_up() && event::poll(Duration::ZERO).unwrap_or(false) {
        keys.extend(event::read().ok().and_then(key));
    }
    // crossterm tells of another size and forgets, until the next key, that keys are there as well: its epoll is
    // edge-triggered, and it leaves at the first thing that it finds.
    keys.extend(hidden(&typed()));
    keys
}

/// Keys among bytes that no parser has seen; sequences of escape are none of ours, and an escape with nothing
/// behind it begins none.
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
        // In raw mode the terminal sends no signal.
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
            // Behind another key, and held down.
            (b"s\x1b", &[Key::Save, Key::Quit]),
            (b"\x1b\x1b", &[Key::Quit, Key::Quit]),
            (b"\x1b[5~\x1b", &[Key::Quit]),
            (b"ps\r", &[Key::Pause, Key::Save, Key::Done]),
            // Page up, and what follows it: what belongs to the sequence only its parser knows.
            (b" \x1b[5~q", &[Key::Pause]),
            (b"xyz", &[]),
            (b"", &[]),
        ] {
            assert_eq!(hidden(bytes), keys, "{bytes:?}");
        }
    }
}
