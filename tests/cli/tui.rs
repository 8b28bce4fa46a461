//! Screen of a run and prompts on a terminal, through a pseudo-terminal of tmux.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{
    LINERATE, RunningCommand, TIME_LIMIT, TestDir, free_port, is_listening, skip, wait_until,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};

/// Session of tmux that ends with its test.
struct TmuxSession {
    socket: String,
}

impl TmuxSession {
    fn start(dir: &TestDir, args: &str) -> Option<Self> {
        let socket = dir.path().join("tmux").display().to_string();
        // The arguments may contain quotes.
        let start = format!("echo $$ > pid; exec {LINERATE} {args}");
        std::fs::write(dir.path().join("start"), start).unwrap();
        // Ctrl-C goes to all processes of the terminal, and this one must survive to report the
        // exit code.
        let command = "trap : INT; stty -g > before; sh start; code=$?; echo $code > code; \
            stty -g > after; echo ended with $code; sleep 900";
        let status = dir
            .command(
                "tmux",
                ["-f", "/dev/null", "-S", &socket, "new-session", "-d"],
            )
            .args(["-x", "100", "-y", "30", "sh", "-c", command])
            .env("TERM", "xterm")
            .status();
        status
            .is_ok_and(|status| status.success())
            .then_some(Self { socket })
    }

    fn tmux(&self, args: &[&str]) -> String {
        let output = Command::new("tmux")
            .args(["-S", &self.socket])
            .args(args)
            .output();
        output.map_or(String::new(), |out| {
            String::from_utf8_lossy(&out.stdout).into_owned()
        })
    }

    /// Waits until the screen satisfies the condition.
    fn wait(&self, state_name: &str, fits: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + TIME_LIMIT;
        loop {
            let screen = self.tmux(&["capture-pane", "-p"]);
            if fits(&screen) {
                return screen;
            }
            assert!(Instant::now() < deadline, "{state_name}:\n{screen}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Sends these signals, the last of several repeatedly: two that a busy machine delivers within
    /// a moment count as one, as do two key presses closer than a person can make them.
    fn end_with(&self, dir: &TestDir, signals: &[Signal]) -> String {
        for &each in signals {
            signal(dir, each);
            std::thread::sleep(Duration::from_millis(200));
        }
        self.wait("the end", |screen| {
            let has_ended = screen.contains("ended with");
            if let (false, [_, .., last]) = (has_ended, signals) {
                signal(dir, *last);
                std::thread::sleep(Duration::from_millis(200));
            }
            has_ended
        })
    }

    fn press(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    /// Resizes the terminal and waits for the screen of that size.
    fn resize(&self, width: usize, height: usize) -> String {
        self.tmux(&["set-option", "-g", "window-size", "manual"]);
        let (x, y) = (width.to_string(), height.to_string());
        self.tmux(&["resize-window", "-x", &x, "-y", &y]);
        let screen = self.wait("the other size", |screen| {
            let lines: Vec<&str> = screen.lines().collect();
            // First and last row are in place, and nothing is left of the other size.
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

    /// Saves the event stream with `s` and returns its number of lines.
    fn save_events(&self, dir: &TestDir) -> usize {
        self.press("s");
        self.wait("saved", |screen| screen.contains("saved"));
        let saved = std::fs::read_dir(dir.path())
            .unwrap()
            .filter_map(|file| file.unwrap().file_name().into_string().ok())
            .find(|name| name.starts_with("linerate-live-"))
            .expect("a file of the events");
        let text = std::fs::read_to_string(dir.path().join(saved)).unwrap();
        for line in text.lines() {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            assert!(line["event"].is_string(), "{line}");
        }
        text.lines().count()
    }
}

/// Sends a signal to the program in a terminal.
fn signal(dir: &TestDir, signal: Signal) {
    let _ = kill_process(pid(dir), signal);
}

fn pid(dir: &TestDir) -> Pid {
    let text = std::fs::read_to_string(dir.path().join("pid")).expect("the number of a process");
    Pid::from_raw(text.trim().parse().expect("a number")).expect("not 0")
}

/// Checks that the terminal's settings, screen and cursor are restored.
#[track_caller]
fn assert_restored(terminal: &TmuxSession, dir: &TestDir, how: &str) {
    let settings = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    assert_eq!(settings("after"), settings("before"), "{how}");
    let state = terminal.tmux(&["display", "-p", "#{alternate_on} #{cursor_flag}"]);
    assert_eq!(state.trim(), "0 1", "{how}");
}

fn has_tmux() -> bool {
    let version = Command::new("tmux").arg("-V").output();
    version.is_ok_and(|out| out.status.success())
}

impl Drop for TmuxSession {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

#[test]
fn the_screen_shows_the_run_and_obeys_its_keys() {
    let dir = TestDir::new();
    if !has_tmux() {
        skip!("no tmux");
    }
    let server = dir.server("-q --no-store");
    let args = format!(
        "latency 127.0.0.1 -u -p {} -t 900 -i 0.1 --tui --no-store",
        server.port
    );
    let Some(terminal) = TmuxSession::start(&dir, &args) else {
        skip!("tmux gives no session");
    };
    let screen = terminal.wait("the picture", |screen| {
        screen.contains("p50") && screen.contains("round trips")
    });
    assert!(
        screen.contains("q quit") && screen.contains("of 900.0 s"),
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
    // Over loopback both ends are this host, so all places are visible.
    terminal.wait("places", |screen| {
        screen.contains("none at sender-socket, qdisc")
    });
    assert!(terminal.save_events(&dir) > 2);
    // Both events within one poll of the program.
    terminal.tmux(&[
        "resize-window",
        "-x",
        "100",
        "-y",
        "30",
        ";",
        "send-keys",
        "p",
    ]);
    terminal.wait("standing still", |screen| screen.contains("PAUSED"));
    terminal.press("q");
    let screen = terminal.wait("the end", |screen| screen.contains("ended with"));
    assert!(screen.contains("ended with 130"), "{screen}");
    assert_restored(&terminal, &dir, "q");
}

/// Whatever the signals are, and even when the remote end does not respond.
#[test]
fn the_terminal_is_put_back_by_every_signal_that_ends_it() {
    if !has_tmux() {
        skip!("no tmux");
    }
    let server_dir = TestDir::new();
    for (signals, is_aborted) in [
        (&[Signal::TERM, Signal::TERM][..], true),
        (&[Signal::INT, Signal::TERM], true),
        (&[Signal::HUP, Signal::TERM, Signal::INT], true),
        (&[Signal::TERM], false),
        (&[Signal::HUP], false),
    ] {
        let how = format!("{signals:?}");
        let server = server_dir.server("-q --no-store");
        let dir = TestDir::new();
        let args = format!(
            "throughput 127.0.0.1 -p {} -t 900 -i 0.1 --tui",
            server.port
        );
        let Some(terminal) = TmuxSession::start(&dir, &args) else {
            skip!("tmux gives no session");
        };
        terminal.wait("the picture", |screen| screen.contains("full height"));
        if is_aborted {
            // The remote end does not respond, so an orderly end takes seconds.
            server.running.send_signal(Signal::STOP);
        }
        let screen = terminal.end_with(&dir, signals);
        assert!(screen.contains("ended with 130"), "{how}: {screen}");
        // Only an orderly end stores a record.
        assert_eq!(dir.stored().len(), usize::from(!is_aborted), "{how}");
        assert_restored(&terminal, &dir, &how);
    }
}

/// The line editor of the shell also changes the terminal.
#[test]
fn the_terminal_is_put_back_when_the_shell_is_aborted() {
    if !has_tmux() {
        skip!("no tmux");
    }
    let dir = TestDir::new();
    let args = "forward --dev ring:0 --interactive --no-store";
    let Some(terminal) = TmuxSession::start(&dir, args) else {
        skip!("tmux gives no session");
    };
    terminal.wait("the prompt", |screen| screen.contains("forward>"));
    let screen = terminal.end_with(&dir, &[Signal::TERM, Signal::TERM]);
    assert!(screen.contains("ended with 130"), "{screen}");
    assert_restored(&terminal, &dir, "the shell");
}

/// Stops the tmux server, which reads the terminals, until this is dropped.
struct StoppedReader(Pid);

impl StoppedReader {
    fn reader_of(terminal: &TmuxSession) -> Self {
        let text = terminal.tmux(&["display", "-p", "#{pid}"]);
        let pid = Pid::from_raw(text.trim().parse().expect("a number")).expect("not 0");
        let _ = kill_process(pid, Signal::STOP);
        Self(pid)
    }
}

impl Drop for StoppedReader {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// The first signal ends the program in order even when its screen waits for a terminal without a
/// reader.
#[test]
fn an_unread_terminal_does_not_delay_the_end() {
    if !has_tmux() {
        skip!("no tmux");
    }
    let server_dir = TestDir::new();
    for how in [Signal::TERM, Signal::INT] {
        let server = server_dir.server("-q --no-store");
        let dir = TestDir::new();
        let args = format!(
            "throughput 127.0.0.1 -p {} -t 900 -i 0.02 --tui",
            server.port
        );
        let Some(terminal) = TmuxSession::start(&dir, &args) else {
            skip!("tmux gives no session");
        };
        terminal.wait("the picture", |screen| screen.contains("full height"));
        // A large screen fills the terminal's buffer sooner.
        terminal.resize(500, 150);
        let path = terminal.tmux(&["display", "-p", "#{pane_tty}"]);
        let tty = std::fs::File::open(path.trim()).expect("the terminal of the run");
        let stopped_reader = StoppedReader::reader_of(&terminal);
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // While a screen is written the terminal is busy: only a lasting state shows that it is
        // full.
        let mut full_since = None;
        wait_until("a full terminal", || {
            let mut polled = [PollFd::new(&tty, PollFlags::OUT)];
            let is_full = poll(&mut polled, Some(&now)).is_ok_and(|ready| ready == 0);
            full_since = full_since
                .filter(|_| is_full)
                .or(is_full.then(Instant::now));
            full_since.is_some_and(|since: Instant| since.elapsed() > Duration::from_secs(3))
        });
        let pid = pid(&dir);
        signal(&dir, how);
        wait_until("its end", || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
            stat.map_or(true, |stat| stat.contains(") Z "))
        });
        assert_eq!(dir.stored().len(), 1, "{how:?}");
        // Not on the terminal: its output stops in the middle of a screen.
        wait_until("the code", || {
            let code = std::fs::read_to_string(dir.path().join("code"));
            code.is_ok_and(|code| code.trim() == "130")
        });
        drop(stopped_reader);
    }
}

/// A closed terminal ends the run.
#[test]
fn a_run_ends_with_its_terminal() {
    if !has_tmux() {
        skip!("no tmux");
    }
    let server_dir = TestDir::new();
    let server = server_dir.server("-q --no-store");
    let dir = TestDir::new();
    let args = format!("latency 127.0.0.1 -u -p {} -t 900 --tui", server.port);
    let Some(terminal) = TmuxSession::start(&dir, &args) else {
        skip!("tmux gives no session");
    };
    terminal.wait("the picture", |screen| screen.contains("p50"));
    let pid = pid(&dir);
    drop(terminal);
    wait_until("its end", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        // Its new parent may not have reaped it yet.
        stat.map_or(true, |stat| stat.contains(") Z "))
    });
    // In order: the measurement is stored.
    assert_eq!(dir.stored().len(), 1);
}

/// Forwarding, generating and the capacity search have the same screen and keys.
#[test]
fn forwarding_and_generating_have_the_screen() {
    if !has_tmux() {
        skip!("no tmux");
    }
    for (args, title) in [
        (
            "forward --dev ring:0 --dev ring:1 --tx-first 1 -t 900 --tui --no-store",
            "forwarding between ring:0 ring:1",
        ),
        (
            "forward --dev ring:0 --saturate --trial 60 --tui --no-store",
            "1 core, tx_first 1",
        ),
        (
            "generate --dev ring:0 --rate 10kpps -t 900 -i 0.2 --tui --no-store",
            "frames over ring:0",
        ),
        (
            "capacity --dev ring:0 --sizes 64 --trial 300ms --drain 10ms --trials 1000 --resolution 0.01% --tui --no-store",
            "capacity of ring:0",
        ),
    ] {
        // A directory each: the server of the last session may still be ending on its socket.
        let dir = TestDir::new();
        let Some(terminal) = TmuxSession::start(&dir, args) else {
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
        // A search may have ended before the key arrived.
        let over = screen.contains("ended with 130")
            || (args.starts_with("capacity") && screen.contains("ended with 0"));
        assert!(over, "{screen}");
    }
}

/// Checks the screen of a series, which shows its current run, and the results of finished ones; in
/// the arguments, `PORT` is the server's.
fn check_series(args: &str, [title, now, over]: [&str; 3]) {
    if !has_tmux() {
        skip!("no tmux");
    }
    let server_dir = TestDir::new();
    let server = server_dir.server("-q --no-store");
    let port = server.port;
    let args = args.replace("PORT", &port.to_string());
    let dir = TestDir::new();
    let measure = format!("latency {{server}} -p {port} -u -t 300ms -i 100ms");
    let small = crate::experiment::by_size("", &measure);
    std::fs::write(dir.path().join("small.toml"), small).unwrap();
    let Some(terminal) = TmuxSession::start(&dir, &args) else {
        skip!("tmux gives no session");
    };
    let screen = terminal.wait(&args, |screen| {
        screen.contains(title)
            && screen.contains(now)
            && screen.contains(over)
            && screen.contains("rate: ")
            && !screen.contains("rate: none yet")
    });
    assert!(screen.contains("findings"), "{screen}");
    terminal.press("p");
    terminal.wait("standing still", |screen| screen.contains("PAUSED"));
    for (width, height) in [(40, 12), (200, 60), (80, 24)] {
        terminal.resize(width, height);
    }
    terminal.press("p");
    assert!(terminal.save_events(&dir) > 2, "{args}");
    terminal.press("q");
    let screen = terminal.wait("the end", |screen| screen.contains("ended with"));
    assert!(screen.contains("ended with 130"), "{args}: {screen}");
}

// Each series continues for minutes after its first part.

#[test]
fn a_sweep_shows_what_runs_and_what_is_over() {
    check_series(
        "sweep --over length=1K,16K --repeats 5000 --tui --no-store throughput 127.0.0.1 -p PORT -t 200ms \
         -i 0.1",
        ["sweep of throughput 127.0.0.1", "now: length=", "length="],
    );
}

#[test]
fn a_comparison_shows_what_runs_and_what_is_over() {
    check_series(
        "compare --b '-l 1M' --pairs 5000 --tui --no-store throughput 127.0.0.1 -p PORT -t 200ms -i 0.1",
        ["compare by goodput", "now: ", ": A "],
    );
}

#[test]
fn a_search_of_knobs_shows_what_runs_and_what_is_over() {
    check_series(
        "tune 127.0.0.1 -p PORT --knobs write-size,wait -t 1 --tui --no-store -- -i 0.1",
        ["for goodput", "now: ", "baseline: "],
    );
}

#[test]
fn an_experiment_shows_what_runs_and_what_is_over() {
    check_series(
        "run small.toml --repeat 500 --tui --no-store",
        ["experiment small", "now: size=", "size=64: trip"],
    );
}

#[test]
fn several_lengths_show_what_runs_and_what_is_over() {
    let lengths: Vec<_> = (64..364).map(|length| length.to_string()).collect();
    let lengths = lengths.join(",");
    check_series(
        &format!("latency 127.0.0.1 -u -p PORT -l {lengths} -t 1 -i 0.1 --tui --no-store"),
        ["UDP latency with 127.0.0.1", "now: ", "64 B: "],
    );
}

#[test]
fn a_search_of_the_highest_rate_shows_what_runs_and_what_is_over() {
    check_series(
        "throughput 127.0.0.1 -u -b max -p PORT --trial 500ms -t 300 --tui --no-store",
        ["UDP throughput with 127.0.0.1", "now: ", " received, "],
    );
}

/// Manual steps are waited for without a screen too: for an Enter typed after the prompt.
#[test]
fn manual_steps_wait_for_enter_or_the_end() {
    if !has_tmux() {
        skip!("no tmux");
    }
    let server_dir = TestDir::new();
    let server = server_dir.server("-q --no-store");
    let measure = format!("latency {{server}} -p {} -u -t 3 -i 0", server.port);
    let manual_step = |size: &str| {
        format!(
            "[[remote]]\nhost = \"server\"\nexec = \"serve-{size}\"\nwhen = {{ size = \"{size}\" }}\n"
        )
    };
    let small = crate::experiment::by_size(&(manual_step("64") + &manual_step("1K")), &measure);
    for enters in [0, 1] {
        let dir = TestDir::new();
        std::fs::write(dir.path().join("small.toml"), &small).unwrap();
        let args = "run small.toml --repeat 1 --on 127.0.0.1 --no-store";
        let Some(terminal) = TmuxSession::start(&dir, args) else {
            skip!("tmux gives no session");
        };
        let has_prompt = |screen: &str, size: &str| {
            screen.contains(&format!("start `serve-{size}`, then press Enter"))
        };
        terminal.wait("a question", |screen| has_prompt(screen, "64"));
        for _ in 0..enters {
            terminal.press("Enter");
            terminal.wait("a point", |screen| screen.contains("point 1 of 2"));
            // Too early: there was no prompt yet.
            terminal.press("Enter");
            terminal.wait("another question", |screen| has_prompt(screen, "1K"));
        }
        terminal.press("C-c");
        let screen = terminal.wait("the end", |screen| screen.contains("ended with"));
        assert!(screen.contains("ended with 130"), "{screen}");
        let is_resumable = screen.contains("to resume: linerate run --resume");
        assert_eq!(is_resumable, enters > 0, "{screen}");
        // An empty page would replace an earlier one.
        let page = dir.path().join("linerate-small/report.html");
        assert_eq!(page.exists(), enters > 0, "{screen}");
    }
}

/// Also commands without a server of ours at the other end.
#[test]
fn ttcp_and_our_stack_have_the_screen_too() {
    if !has_tmux() {
        skip!("no tmux");
    }
    let dir = TestDir::new();
    let port = free_port();
    let receiver =
        RunningCommand::start(&mut dir.linerate(&format!("ttcp -r -p {port} --no-store")));
    // The classic tool prints nothing when it listens.
    wait_until("a receiver that listens", || is_listening(port));
    for (args, title, rate) in [
        (
            format!("ttcp -t 127.0.0.1 -p {port} -n 1000000000 --tui --no-store"),
            "TCP throughput with 127.0.0.1",
            "b/s",
        ),
        (
            "stack --dev ring:0 --ip 10.0.0.2/24 -t 900 --tui --no-store".to_owned(),
            "user-space stack on ring:0",
            "/s frames",
        ),
    ] {
        let dir = TestDir::new();
        let Some(terminal) = TmuxSession::start(&dir, &args) else {
            skip!("tmux gives no session");
        };
        terminal.wait(&args, |screen| {
            screen.contains(title) && screen.contains(rate)
        });
        for (width, height) in [(40, 12), (200, 60), (80, 24)] {
            terminal.resize(width, height);
        }
        terminal.press("p");
        terminal.wait("standing still", |screen| screen.contains("PAUSED"));
        assert!(terminal.save_events(&dir) >= 1);
        terminal.press("q");
        let screen = terminal.wait("the end", |screen| screen.contains("ended with"));
        assert!(screen.contains("ended with 130"), "{args}: {screen}");
    }
    drop(receiver);
}

#[test]
fn the_screen_is_rejected_without_a_terminal() {
    let dir = TestDir::new();
    let rejected = dir.run("latency 127.0.0.1 -u --tui").expect(2).stderr;
    assert!(rejected.contains("needs a terminal"), "{rejected}");
    dir.run("latency 127.0.0.1 -u --tui --json").expect(2);
    // Before anything is measured, for every command.
    for args in [
        "sweep --over length=1K --tui throughput 127.0.0.1",
        "compare --tui throughput 127.0.0.1",
        "tune 127.0.0.1 --tui",
        "run udp-hops --quick --tui",
        "ttcp -r --tui",
        "stack --dev ring:0 --ip 10.0.0.2/24 --tui",
        "latency 127.0.0.1 -u --tui -l 64,128",
        "throughput 127.0.0.1 -u -b max --tui",
    ] {
        let rejected = dir.run(args).expect(2).stderr;
        assert!(rejected.contains("needs a terminal"), "{args}: {rejected}");
    }
}
