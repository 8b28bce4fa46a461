//! The screen of a run, through a pseudo-terminal that tmux keeps.

mod common;

use std::process::Command;
use std::time::{Duration, Instant};

use common::{LINERATE, Room, skip};

/// A session of tmux that ends with its test.
struct Terminal {
    socket: String,
}

impl Terminal {
    fn start(room: &Room, words: &str) -> Option<Self> {
        let socket = room.path().join("tmux").display().to_string();
        let command = format!("{LINERATE} {words}; echo ended with $?; sleep 100");
        let status = room
            .command(
                "tmux",
                ["-f", "/dev/null", "-S", &socket, "new-session", "-d"],
            )
            .args(["-x", "100", "-y", "30", "sh", "-c", &command])
            .env("TERM", "xterm")
            .status();
        status
            .is_ok_and(|status| status.success())
            .then_some(Self { socket })
    }

    fn tmux(&self, words: &[&str]) -> String {
        let output = Command::new("tmux")
            .args(["-S", &self.socket])
            .args(words)
            .output();
        output.map_or(String::new(), |out| {
            String::from_utf8_lossy(&out.stdout).into_owned()
        })
    }

    /// Waits until the screen fits.
    fn wait(&self, what: &str, fits: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let screen = self.tmux(&["capture-pane", "-p"]);
            if fits(&screen) {
                return screen;
            }
            assert!(Instant::now() < deadline, "{what}:\n{screen}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn press(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

#[test]
fn the_screen_shows_the_run_and_obeys_its_keys() {
    let room = Room::new();
    if !Command::new("tmux")
        .arg("-V")
        .output()
        .is_ok_and(|out| out.status.success())
    {
        skip!("no tmux");
    }
    let server = room.server("-q --no-store");
    let words = format!(
        "latency 127.0.0.1 -u -p {} -t 80 -i 0.1 --tui --no-store",
        server.port
    );
    let Some(terminal) = Terminal::start(&room, &words) else {
        skip!("tmux gives no session");
    };
    let screen = terminal.wait("the picture", |screen| {
        screen.contains("p50") && screen.contains("round trips")
    });
    assert!(
        screen.contains("q quit") && screen.contains("of 80.0 s"),
        "{screen}"
    );
    terminal.press("p");
    terminal.wait("standing still", |screen| screen.contains("PAUSED"));
    terminal.press("p");
    terminal.wait("going on", |screen| !screen.contains("PAUSED"));
    terminal.press("s");
    terminal.wait("saved", |screen| screen.contains("saved"));
    let saved = std::fs::read_dir(room.path())
        .unwrap()
        .filter_map(|file| file.unwrap().file_name().into_string().ok())
        .find(|name| name.starts_with("linerate-live-"))
        .expect("a file of what was told");
    let text = std::fs::read_to_string(room.path().join(saved)).unwrap();
    let line: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert!(line["event"].is_string(), "{line}");
    terminal.press("q");
    let screen = terminal.wait("the end", |screen| screen.contains("ended with"));
    assert!(screen.contains("ended with 130"), "{screen}");
}

/// Forwarding, generating and the search for what a device can carry have the same screen and the same keys.
#[test]
fn what_moves_frames_has_the_screen_too() {
    if !Command::new("tmux")
        .arg("-V")
        .output()
        .is_ok_and(|out| out.status.success())
    {
        skip!("no tmux");
    }
    for (words, title) in [
        (
            "forward --dev ring:0 --dev ring:1 --tx-first 1 -t 80 --tui --no-store",
            "forwarding between ring:0 ring:1",
        ),
        (
            "generate --dev ring:0 --rate 10kpps -t 80 -i 0.2 --tui --no-store",
            "frames over ring:0",
        ),
        (
            "capacity --dev ring:0 --sizes 64 --trial 300ms --drain 10ms --trials 1000 --resolution 0.01% --tui --no-store",
            "capacity of ring:0",
        ),
    ] {
        // A room each: the server of the last session may still be ending on its socket.
        let room = Room::new();
        let Some(terminal) = Terminal::start(&room, words) else {
            skip!("tmux gives no session");
        };
        let screen = terminal.wait("the picture", |screen| {
            screen.contains(title) && screen.contains("/s frames")
        });
        assert!(screen.contains("q quit"), "{screen}");
        terminal.press("p");
        terminal.wait("standing still", |screen| {
            screen.contains("PAUSED") || screen.contains("ended with")
        });
        terminal.press("q");
        let screen = terminal.wait("the end", |screen| screen.contains("ended with"));
        // A search may have found what it looks for before the key came.
        let over = screen.contains("ended with 130")
            || (words.starts_with("capacity") && screen.contains("ended with 0"));
        assert!(over, "{screen}");
    }
}

#[test]
fn without_a_terminal_it_is_refused() {
    let room = Room::new();
    let refused = room.run("latency 127.0.0.1 -u --tui").expect(2).stderr;
    assert!(refused.contains("needs a terminal"), "{refused}");
    room.run("latency 127.0.0.1 -u --tui --json").expect(2);
    let series = room
        .run("latency 127.0.0.1 -u --tui -l 64,128")
        .expect(2)
        .stderr;
    assert!(series.contains("shows one measurement"), "{series}");
}
