//! `--tui`: a run on the whole terminal while it goes on; the text of the result follows when it is over.
//!
//! The screen is drawn a few times a second by the thread that otherwise prints lines, so nothing more
//! runs beside the measuring threads than without it.

mod screen;
mod state;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use linerate_host::stop::Stop;
use linerate_metric::event::{Event, Problem};
use linerate_report::stream;
use ratatui::crossterm::event::{self, Event as Input, KeyCode, KeyEventKind, KeyModifiers};

use crate::failure::Failure;
use crate::printer::Teller;
use state::{Key, State};

/// Time between two looks at the keys; keys feel at once below a tenth of a second.
const LOOK: Duration = Duration::from_millis(80);

/// Time between two drawings at least: more than eyes follow only takes processor time.
const DRAW: Duration = Duration::from_millis(200);

/// Refuses a screen where there is none, before anything is measured.
pub fn check() -> Result<(), Failure> {
    let there = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    match there {
        true => Ok(()),
        false => Err(Failure::usage(Problem::new(
            "needs a terminal for its screen and its keys",
            "--tui",
            "leave it out where output goes to a file or a pipe",
        ))),
    }
}

/// Runs `body` under a screen of what it tells; `q` ends it as Ctrl-C does.
///
/// # Errors
/// That the terminal, or a thread, could not be had.
pub fn while_shown<T>(stop: &Stop, body: impl FnOnce(&Teller) -> T) -> Result<T, Failure> {
    let (queue, waiting) = mpsc::channel();
    thread::scope(|scope| {
        let teller = Teller::of(queue);
        let mut terminal = ratatui::try_init().map_err(|error| {
            Failure::failed(Problem::new(
                format!("cannot be taken over ({error})"),
                "the terminal",
                "leave out --tui",
            ))
        })?;
        let flag = stop.as_flag();
        let show = move || {
            let mut state = State::default();
            let mut told: Vec<(Timestamp, Event)> = Vec::new();
            let mut drawn = Instant::now() - DRAW;
            let mut over = false;
            while !over {
                match waiting.recv_timeout(LOOK) {
                    Ok(Some((at, event))) => {
                        state.take(&event);
                        told.push((at, event));
                    }
                    Ok(None) | Err(RecvTimeoutError::Disconnected) => over = true,
                    Err(RecvTimeoutError::Timeout) => {}
                }
                while event::poll(Duration::ZERO).unwrap_or(false) {
                    match event::read().ok().and_then(key) {
                        Some(Key::Quit) => {
                            state.key(Key::Quit);
                            flag.store(true, std::sync::atomic::Ordering::Relaxed);
                        }
                        Some(Key::Save) => state.say(saved(&told)),
                        Some(key) => state.key(key),
                        None => {}
                    }
                }
                if drawn.elapsed() >= DRAW || over {
                    // A terminal that went away ends the screen, not the run.
                    let _ = terminal.draw(|frame| screen::draw(&state, frame));
                    drawn = Instant::now();
                }
            }
            ratatui::restore();
        };
        let screen = thread::Builder::new()
            .name("screen".to_owned())
            .spawn_scoped(scope, show)
            .map_err(|error| {
                ratatui::restore();
                Failure::failed(Problem::new(
                    format!("no thread to draw with ({error})"),
                    "this process",
                    "raise the limit of processes: `ulimit -u`",
                ))
            })?;
        let result = body(&teller);
        teller.end();
        // The result is printed on the terminal as it was before.
        let _ = screen.join();
        Ok(result)
    })
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
        _ => None,
    }
}

/// Writes what was told so far, a line of JSON each, as `--json-stream` does; says where.
fn saved(told: &[(Timestamp, Event)]) -> String {
    let now = Timestamp::now().strftime("%Y%m%dT%H%M%SZ");
    let path = PathBuf::from(format!("linerate-live-{now}.jsonl"));
    let lines: String = told
        .iter()
        .map(|(at, event)| stream::line(event, *at) + "\n")
        .collect();
    let written =
        std::fs::File::create(&path).and_then(|mut file| file.write_all(lines.as_bytes()));
    match written {
        Ok(()) => format!("saved {} events to {}", told.len(), path.display()),
        Err(error) => format!("cannot write {}: {error}", path.display()),
    }
}
