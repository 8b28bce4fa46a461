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
use std::sync::mpsc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use event_log::EventLog;
use linerate_host::stop_flag::{ABORTED_EXIT_CODE, StopFlag};
use linerate_record::event::ErrorReport;
use linerate_report::json_stream;
use linerate_sys::terminal::{
    TerminalGuard, can_write_output, has_hung_up, read_input, redirect_output_to_null, restore,
};
use live_counters::LiveCounters;
use ratatui::crossterm::event;
use ratatui::crossterm::event::{Event as Input, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::terminal::disable_raw_mode;
use state::{ScreenKey, ScreenModel};
use terminal_writer::TerminalWriter;

use crate::event_queue::{EventSender, UiMessage};
use crate::failure::CommandFailure;
use crate::output::CommandOutput;
use crate::printer::run_with_printer;
use crate::screen_output::ScreenOutput;
use crate::ui_update::UiUpdate;

/// Time between two polls of the keys: below a tenth of a second, keys feel immediate.
const KEY_POLL_INTERVAL: Duration = Duration::from_millis(80);

/// Minimum time between two redraws: more than the eye can follow only costs processor time.
const REDRAW_INTERVAL: Duration = Duration::from_millis(200);

/// Time after which a second `q` counts as a request to end at once, not as a repeated key.
const SECOND_QUIT_DELAY: Duration = Duration::from_millis(500);

/// Time without output after which a terminal counts as stalled: its reader is gone, and the user
/// waits for the end.
const STALLED_TERMINAL_TIMEOUT: Duration = Duration::from_secs(2);

/// Checks before a measurement that a terminal exists if the screen is requested.
pub fn check_terminal(enabled: bool) -> Result<(), CommandFailure> {
    let is_terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    match is_terminal || !enabled {
        true => Ok(()),
        false => Err(CommandFailure::usage(ErrorReport::new(
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
pub fn run_with_output<T>(
    enabled: bool,
    stop: &StopFlag,
    output: &mut CommandOutput,
    body: impl FnOnce(&EventSender) -> T,
) -> Result<T, CommandFailure> {
    match enabled {
        true => run_on_screen(stop, body),
        false => run_with_printer(output, body),
    }
}

/// Runs a series with this title, on the full screen if requested.
///
/// # Errors
/// As [`run_on_screen`].
pub fn run_series<T>(
    enabled: bool,
    title: &str,
    stop: &StopFlag,
    output: &mut CommandOutput,
    body: impl FnOnce(&mut CommandOutput) -> T,
) -> Result<T, CommandFailure> {
    if !enabled {
        return Ok(body(output));
    }
    let result = run_on_screen(stop, |sender| {
        sender.show(UiUpdate::Title(title.to_owned()));
        output.set_screen(Some(ScreenOutput::new(sender.clone())));
        body(output)
    });
    output.set_screen(None);
    result
}

/// Runs `body` with the full-screen display of its events; `q` ends the run as Ctrl-C does.
///
/// # Errors
/// Fails if the terminal or a thread is not available.
pub fn run_on_screen<T>(
    stop: &StopFlag,
    body: impl FnOnce(&EventSender) -> T,
) -> Result<T, CommandFailure> {
    let (queue, receiver) = mpsc::channel();
    let sender = EventSender::unbounded(queue);
    let terminal_error = |error: std::io::Error| {
        CommandFailure::failed(ErrorReport::new(
            format!("cannot switch to full-screen mode ({error})"),
            "the terminal",
            "leave out --tui",
        ))
    };
    // From here on the terminal is restored at each exit, even by a signal.
    let terminal_guard = TerminalGuard::for_screen().map_err(terminal_error)?;
    let (terminal, drawn) = TerminalWriter::take_terminal().map_err(terminal_error)?;
    let stopping = stop.clone();
    let (screen_alive, screen_done) = mpsc::channel::<()>();
    let screen = thread::Builder::new()
        .name("screen".to_owned())
        .spawn(move || {
            run_screen(terminal, &receiver, &stopping);
            drop(screen_alive);
        });
    if let Err(error) = screen {
        return Err(CommandFailure::failed(ErrorReport::new(
            format!("cannot start the screen thread ({error})"),
            "this process",
            "raise the process limit: `ulimit -u`",
        )));
    }
    // Ends the screen however `body` ends.
    let end_on_drop = EndOnDrop(&sender);
    let result = body(&sender);
    drop(end_on_drop);
    // The result is printed on the restored terminal. The screen thread may block forever in a read
    // of a terminal that has hung up, so it is not joined.
    let mut stall = StallDetector::new();
    while screen_done.recv_timeout(KEY_POLL_INTERVAL) == Err(RecvTimeoutError::Timeout)
        && !has_hung_up()
    {
        if stall.is_stalled(stop, &drawn) {
            // First, because restoring the settings wakes a blocked writer, and the terminal then
            // seems to be read.
            redirect_output_to_null();
            break;
        }
    }
    drop(terminal_guard);
    // crossterm must see raw mode end, so that the terminal can be taken again.
    let _ = disable_raw_mode();
    Ok(result)
}

/// Detects a terminal that accepts no output while the user wants the run to end. Without that
/// request, a reader may pause for any time.
struct StallDetector {
    since: Instant,
    drawn: u64,
}

impl StallDetector {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            drawn: 0,
        }
    }

    fn is_stalled(&mut self, stop: &StopFlag, drawn: &AtomicU64) -> bool {
        let drawn = drawn.load(Relaxed);
        if drawn != self.drawn || !stop.is_set() || can_write_output() {
            *self = Self {
                since: Instant::now(),
                drawn,
            };
        }
        self.since.elapsed() >= STALLED_TERMINAL_TIMEOUT
    }
}

/// Sends the end of the updates on drop.
struct EndOnDrop<'a>(&'a EventSender);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.finish();
    }
}

/// Draws updates and handles keys until the updates end.
fn run_screen(
    mut terminal: terminal_writer::ScreenTerminal,
    receiver: &Receiver<UiMessage>,
    stop: &StopFlag,
) {
    let mut state = ScreenModel::default();
    let mut counters = LiveCounters::default();
    let mut log = EventLog::default();
    let started_at = Instant::now();
    let mut drawn = started_at - REDRAW_INTERVAL;
    let mut quit: Option<Instant> = None;
    let mut is_over = false;
    while !is_over {
        state.set_elapsed(started_at.elapsed());
        match receiver.recv_timeout(KEY_POLL_INTERVAL) {
            Ok(UiMessage::Event(at, mut event)) => {
                event.test = state.parts_started().max(event.test);
                log.push(json_stream::event_line(&event, at));
                counters.on_event(&event);
                state.apply(UiMessage::Event(at, event));
            }
            Ok(UiMessage::Update(update)) => {
                counters.apply_update(&update);
                state.apply(UiMessage::Update(update));
            }
            Ok(UiMessage::End) | Err(RecvTimeoutError::Disconnected) => is_over = true,
            Err(RecvTimeoutError::Timeout) => {}
        }
        for key in read_keys() {
            match key {
                ScreenKey::Quit => {
                    if quit.is_some_and(|since| since.elapsed() > SECOND_QUIT_DELAY) {
                        restore();
                        std::process::exit(ABORTED_EXIT_CODE);
                    }
                    quit.get_or_insert_with(Instant::now);
                    state.on_key(ScreenKey::Quit);
                    stop.atomic().store(true, Relaxed);
                }
                ScreenKey::Save => state.set_message(log.save()),
                key => state.on_key(key),
            }
        }
        if drawn.elapsed() >= REDRAW_INTERVAL || is_over {
            if let Some(loss_points) = counters.poll() {
                state.set_loss_counters(loss_points);
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
fn read_keys() -> Vec<ScreenKey> {
    let mut keys = Vec::new();
    // On a terminal that has hung up, crossterm's reader loops forever at the end of the input.
    while !has_hung_up() && event::poll(Duration::ZERO).unwrap_or(false) {
        keys.extend(event::read().ok().and_then(parse_key));
    }
    // After a resize event crossterm does not report keys that are also waiting until the next key:
    // its epoll is edge-triggered, and it returns at the first event.
    keys.extend(parse_raw_keys(&read_input()));
    keys
}

/// Returns the keys among raw bytes that crossterm has not parsed. Escape sequences are ignored; an
/// escape at the end is the key itself.
fn parse_raw_keys(bytes: &[u8]) -> Vec<ScreenKey> {
    const ESCAPE: u8 = 0x1b;
    let escapes = bytes.iter().rev().take_while(|byte| **byte == ESCAPE);
    let (before, escapes) = bytes.split_at(bytes.len() - escapes.count());
    let keys = before.iter().take_while(|byte| **byte != ESCAPE);
    let code = |byte: &u8| match byte {
        &ESCAPE => Some(KeyCode::Esc.into()),
        0x03 => Some(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)),
        b'\r' | b'\n' => Some(KeyCode::Enter.into()),
        byte if byte.is_ascii_graphic() || *byte == b' ' => {
            Some(KeyCode::Char(char::from(*byte)).into())
        }
        _ => None,
    };
    keys.chain(escapes)
        .filter_map(code)
        .filter_map(|event| parse_key(Input::Key(event)))
        .collect()
}

fn parse_key(input: Input) -> Option<ScreenKey> {
    let Input::Key(key) = input else {
        return None;
    };
    if key.kind != KeyEventKind::Press {
        return None;
    }
    match key.code {
        // In raw mode Ctrl-C sends no signal.
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
            Some(ScreenKey::Quit)
        }
        KeyCode::Char('q') | KeyCode::Esc => Some(ScreenKey::Quit),
        KeyCode::Char('p' | ' ') => Some(ScreenKey::Pause),
        KeyCode::Char('s') => Some(ScreenKey::Save),
        KeyCode::Enter => Some(ScreenKey::ConfirmStep),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_known_without_a_parser() {
        for (bytes, keys) in [
            (&b"q"[..], &[ScreenKey::Quit][..]),
            (b"\x03", &[ScreenKey::Quit]),
            (b"\x1b", &[ScreenKey::Quit]),
            // After another key, and held down.
            (b"s\x1b", &[ScreenKey::Save, ScreenKey::Quit]),
            (b"\x1b\x1b", &[ScreenKey::Quit, ScreenKey::Quit]),
            (b"\x1b[5~\x1b", &[ScreenKey::Quit]),
            (
                b"ps\r",
                &[ScreenKey::Pause, ScreenKey::Save, ScreenKey::ConfirmStep],
            ),
            // Page up and a key: without a parser, the end of the sequence is unknown.
            (b" \x1b[5~q", &[ScreenKey::Pause]),
            (b"xyz", &[]),
            (b"", &[]),
        ] {
            assert_eq!(parse_raw_keys(bytes), keys, "{bytes:?}");
        }
    }
}
