//! The screen of a run, through a pseudo-terminal that tmux keeps.

mod common;

use std::process::Command;
use std::time::{Duration, Instant};

use common::{LINERATE, Room, Running, skip, soon};

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

    /// Gives the terminal another size, and waits for the picture of that size.
    fn resize(&self, width: usize, height: usize) -> String {
        self.tmux(&["set-option", "-g", "window-size", "manual"]);
        let (x, y) = (width.to_string(), height.to_string());
        self.tmux(&["resize-window", "-x", &x, "-y", &y]);
        let screen = self.wait("the other size", |screen| {
            let lines: Vec<&str> = screen.lines().collect();
            // The first row and the last one are where they belong, and nothing is left of another size.
            lines
                .first()
                .is_some_and(|line| line.starts_with("linerate:"))
                && lines
                    .get(height - 1)
                    .is_some_and(|line| line.contains("q quit"))
                && screen.matches("q quit").count() == 1
                && screen.matches("linerate:").count() == 1
        });
        assert!(
            screen.lines().all(|line| line.chars().count() <= width),
            "{screen}"
        );
        screen
    }

    /// What was saved in a room by `s`: how many lines of a stream.
    fn saved(&self, room: &Room) -> usize {
        self.press("s");
        self.wait("saved", |screen| screen.contains("saved"));
        let saved = std::fs::read_dir(room.path())
            .unwrap()
            .filter_map(|file| file.unwrap().file_name().into_string().ok())
            .find(|name| name.starts_with("linerate-live-"))
            .expect("a file of what was told");
        let text = std::fs::read_to_string(room.path().join(saved)).unwrap();
        for line in text.lines() {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            assert!(line["event"].is_string(), "{line}");
        }
        text.lines().count()
    }
}

fn tmux_is_there() -> bool {
    let version = Command::new("tmux").arg("-V").output();
    version.is_ok_and(|out| out.status.success())
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

#[test]
fn the_screen_shows_the_run_and_obeys_its_keys() {
    let room = Room::new();
    if !tmux_is_there() {
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
    for (width, height) in [(40, 12), (200, 60), (80, 24)] {
        let screen = terminal.resize(width, height);
        assert!(
            screen.contains("p50") && screen.contains("lost"),
            "{screen}"
        );
    }
    // Over loopback every place is this host's own.
    terminal.wait("places", |screen| {
        screen.contains("none at sender-socket, qdisc")
    });
    assert!(terminal.saved(&room) > 2);
    terminal.press("q");
    let screen = terminal.wait("the end", |screen| screen.contains("ended with"));
    assert!(screen.contains("ended with 130"), "{screen}");
}

/// Forwarding, generating and the search for what a device can carry have the same screen and the same keys.
#[test]
fn what_moves_frames_has_the_screen_too() {
    if !tmux_is_there() {
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

/// An experiment of two points without a network of its own.
fn experiment(port: u16) -> String {
    format!(
        r#"
name = "small"
title = "Small"
question = "Is it shown?"
without_root = "All of it."

[[knobs]]
name = "size"
values = ["64", "1K"]

[[measure]]
host = "client"
run = "latency {{server}} -p {port} -u -t 300ms -i 100ms -l {{size}}"

[[figures]]
name = "trip"
from = ["/summary/rtt_ns/p50"]
unit = "nanos"
says = "median round trip"

[[tables]]
title = "Median"
figures = ["trip"]
rows = ["size"]
"#
    )
}

/// What makes several runs shows which of them goes on, and what those before came to.
#[test]
fn series_show_what_runs_and_what_is_over() {
    if !tmux_is_there() {
        skip!("no tmux");
    }
    let far = Room::new();
    let server = far.server("-q --no-store");
    let port = server.port;
    for (words, title, now, over) in [
        (
            format!(
                "sweep --over length=1K,16K --repeats 500 --tui --no-store throughput 127.0.0.1 -p {port} -t 200ms -i 0.1"
            ),
            "sweep of throughput 127.0.0.1",
            "now: length=",
            "length=",
        ),
        (
            format!(
                "compare --b '-l 1M' --pairs 500 --tui --no-store throughput 127.0.0.1 -p {port} -t 200ms -i 0.1"
            ),
            "compare by goodput",
            "now: ",
            ": A ",
        ),
        (
            format!(
                "tune 127.0.0.1 -p {port} --knobs write-size,wait -t 200ms --tui --no-store -- -i 0.1"
            ),
            "for goodput",
            "now: ",
            "start: ",
        ),
        (
            "run small.toml --repeat 500 --tui --no-store".to_owned(),
            "experiment small",
            "now: size=",
            "size=64: trip",
        ),
        (
            format!("latency 127.0.0.1 -u -p {port} -l 64,128,256 -t 2 -i 0.1 --tui --no-store"),
            "UDP latency with 127.0.0.1",
            "now: ",
            "64 B: ",
        ),
        (
            format!("throughput 127.0.0.1 -u -b max -p {port} -t 4 --tui --no-store"),
            "UDP throughput with 127.0.0.1",
            "now: ",
            " arrived, ",
        ),
    ] {
        let room = Room::new();
        std::fs::write(room.path().join("small.toml"), experiment(port)).unwrap();
        let Some(terminal) = Terminal::start(&room, &words) else {
            skip!("tmux gives no session");
        };
        let screen = terminal.wait(&words, |screen| {
            screen.contains(title)
                && screen.contains(now)
                && screen.contains(over)
                && screen.contains("rate: ")
                && !screen.contains("rate: nothing yet")
        });
        assert!(screen.contains("findings"), "{screen}");
        terminal.press("p");
        terminal.wait("standing still", |screen| screen.contains("PAUSED"));
        for (width, height) in [(40, 12), (200, 60), (80, 24)] {
            terminal.resize(width, height);
        }
        terminal.press("p");
        assert!(terminal.saved(&room) > 2, "{words}");
        terminal.press("q");
        let screen = terminal.wait("the end", |screen| screen.contains("ended with"));
        assert!(screen.contains("ended with 130"), "{words}: {screen}");
    }
}

/// What has no server of ours at the other end, too.
#[test]
fn ttcp_and_our_stack_have_the_screen_too() {
    if !tmux_is_there() {
        skip!("no tmux");
    }
    let room = Room::new();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let receiver = Running::start(&mut room.linerate(&format!("ttcp -r -p {port} --no-store")));
    // The classic says no word when it listens.
    soon("a receiver that listens", || {
        let sockets =
            ["tcp", "tcp6"].map(|file| std::fs::read_to_string(format!("/proc/net/{file}")));
        let sockets = sockets.into_iter().flatten().collect::<String>();
        let mut lines = sockets.lines();
        lines.any(|line| line.contains(&format!(":{port:04X} ")) && line.contains(" 0A "))
    });
    for (words, title, rate) in [
        (
            format!("ttcp -t 127.0.0.1 -p {port} -n 1000000000 --tui --no-store"),
            "TCP throughput with 127.0.0.1",
            "b/s",
        ),
        (
            "stack --dev ring:0 --ip 10.0.0.2/24 -t 80 --tui --no-store".to_owned(),
            "our own stack on ring:0",
            "/s frames",
        ),
    ] {
        let room = Room::new();
        let Some(terminal) = Terminal::start(&room, &words) else {
            skip!("tmux gives no session");
        };
        terminal.wait(&words, |screen| {
            screen.contains(title) && screen.contains(rate)
        });
        for (width, height) in [(40, 12), (200, 60), (80, 24)] {
            terminal.resize(width, height);
        }
        terminal.press("p");
        terminal.wait("standing still", |screen| screen.contains("PAUSED"));
        assert!(terminal.saved(&room) >= 1);
        terminal.press("q");
        let screen = terminal.wait("the end", |screen| screen.contains("ended with"));
        assert!(screen.contains("ended with 130"), "{words}: {screen}");
    }
    drop(receiver);
}

#[test]
fn without_a_terminal_it_is_refused() {
    let room = Room::new();
    let refused = room.run("latency 127.0.0.1 -u --tui").expect(2).stderr;
    assert!(refused.contains("needs a terminal"), "{refused}");
    room.run("latency 127.0.0.1 -u --tui --json").expect(2);
    // Before anything is measured, and whichever command it is.
    for words in [
        "sweep --over length=1K --tui throughput 127.0.0.1",
        "compare --tui throughput 127.0.0.1",
        "tune 127.0.0.1 --tui",
        "run udp-hops --quick --tui",
        "ttcp -r --tui",
        "stack --dev ring:0 --ip 10.0.0.2/24 --tui",
        "latency 127.0.0.1 -u --tui -l 64,128",
        "throughput 127.0.0.1 -u -b max --tui",
    ] {
        let refused = room.run(words).expect(2).stderr;
        assert!(refused.contains("needs a terminal"), "{words}: {refused}");
    }
}
