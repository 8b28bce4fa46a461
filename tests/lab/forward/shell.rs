//! The shell: on a pipe, from a file and on a terminal, and its JSON documents.

use std::io::Write;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::*;
use crate::common::skip;

#[test]
fn the_shell_reads_commands_from_a_pipe() {
    let dir = TestDir::new();
    let output = run_shell(
        &dir,
        "forward --dev ring:0 --dev ring:1 --interactive --idle yield",
        "# settings first\n\
         set fwd macswap\nset burst 16\nset nbcore 1\nset txpkts 128\nset eth-peer 1 02:00:00:00:00:aa\n\
         show config fwd\nshow config rxtx\n\
         start tx_first 4\nsleep 1\nshow port stats all\nshow fwd stats all\nclear port stats all\n\
         sleep 100ms\nshow port stats 0\nshow port info all\nshow port summary all\n\
         start\nstop\nport stop 0\nshow port summary 0\nport start 0\nstart tx_first\nsleep 50ms\nstop\n\
         strat\nset burst 99\nhelp\nhelp all\nquit\nstart\n",
    )
    .expect(1);
    let printed = &output.stdout;
    for expected in [
        "forward> start tx_first 4",
        "macswap packet forwarding - ports=2 - cores=1 - streams=2",
        "peer=02:00:00:00:00:AA",
        "packets/burst=16",
        "NIC statistics for port 1",
        "statistics are cleared",
        "Infos for port 0",
        "error: forwarding: it is running already; use `stop` first",
        "Accumulated forward statistics for all ports",
        "stopped",
        "no such command: strat",
        "error: `99` is not a valid burst",
        "show fwd stats all",
    ] {
        assert!(printed.contains(expected), "no `{expected}` in {printed}");
    }
    // Nothing after `quit` is executed, and each stop stores a record.
    assert!(!printed.ends_with("forward> start\n"), "{printed}");
    let stored = dir.stored();
    assert_eq!(stored.len(), 2);
    assert!(stored.iter().all(|record| record["kind"] == "forward"));
    let bursts = |record: &Value| record["plan"]["forward"]["tx_first"].as_u64();
    // Ids of the same second have no order.
    let first = stored.iter().find(|record| bursts(record) == Some(4));
    let first = first.expect("the first run is stored");
    assert_eq!(first["plan"]["forward"]["burst"], 16);
    assert_eq!(number_at(first, "/forward/primed"), 128.0);
}

/// `--json` gives one document whatever is typed: a record, or a set of all records.
#[test]
fn a_shell_gives_one_document() {
    let dir = TestDir::new();
    let args = "forward --dev ring:0 --interactive --idle yield --json";
    let run = "start tx_first 1\nsleep 20ms\nstop\n";
    for (commands, runs) in [("", 0), (run, 1), (&*run.repeat(2), 2)] {
        let document = run_shell(&dir, args, commands).expect(0).json();
        if runs == 1 {
            assert_eq!(document["kind"], "forward");
            continue;
        }
        assert_eq!(document["schema"], "linerate/set/1");
        assert_eq!(document["kind"], "shell");
        assert_eq!(document["runs"].as_array().map(Vec::len), Some(runs));
    }
    // A stream gets each record at its end, and the plan at its start.
    let stream = args.replace("--json", "--json-stream");
    let lines = run_shell(&dir, &stream, &run.repeat(2))
        .expect(0)
        .json_lines();
    let events: Vec<_> = lines.iter().map(|line| line["event"].clone()).collect();
    assert_eq!(events, ["started", "finished", "started", "finished"]);
    assert_eq!(lines[0]["plan"], lines[1]["record"]["plan"]);
}

/// Also when the commands are typed: the prompt is not part of it.
#[test]
fn a_document_has_no_prompt_in_it() {
    let dir = TestDir::new();
    let line = format!(
        "{} forward --dev ring:0 --idle yield --interactive --json --no-store > document",
        dir.binary().display()
    );
    let script = dir
        .command("script", ["-q", "-e", "-c", &line, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut script) = script else {
        skip!("script (util-linux) is not installed");
    };
    let mut keys = script.stdin.take().expect("piped");
    let mut script = KilledOnDrop(script);
    wait_until("its end", || {
        // The shell discards input that came before its prompt, and after its end the pipe is
        // closed.
        let _ = keys.write_all(b"quit\r").and_then(|()| keys.flush());
        std::thread::sleep(Duration::from_millis(500));
        script.0.try_wait().expect("a child has a status").is_some()
    });
    let document = fs::read_to_string(dir.path().join("document")).expect("a document");
    let document: Value = serde_json::from_str(&document).expect(&document);
    assert_eq!(document["kind"], "shell");
}

/// A failure during `sleep` is reported at once and ends the sleep.
#[test]
fn a_port_that_stops_working_is_reported_while_the_shell_sleeps() {
    let dir = TestDir::new();
    // A capture with the header of one frame of 60 bytes, but without its data.
    let mut bytes = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    bytes.extend([0xff, 0xff, 0, 0, 1, 0, 0, 0]);
    bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 60, 0, 0, 0, 60, 0, 0, 0]);
    fs::write(dir.path().join("cut.pcap"), bytes).unwrap();
    fs::write(dir.path().join("script"), "start\nsleep 4h\nhelp\n").unwrap();
    let args =
        "forward --dev pcap:rx=cut.pcap --dev null: --commands script --idle yield --no-store";
    let printed = dir.run(args).expect(1).stdout;
    let (at, next) = (printed.find("damaged"), printed.find("help SECTION"));
    assert!(at.is_some() && at < next, "{printed}");
}

#[test]
fn commands_come_from_a_file() {
    let dir = TestDir::new();
    fs::write(dir.path().join("more"), "stop\n").unwrap();
    fs::write(
        dir.path().join("script"),
        "start tx_first 1\nsleep 50ms\nload more\n",
    )
    .unwrap();
    let printed = dir
        .run("forward --dev ring:0 --commands script --idle yield")
        .expect(0)
        .stdout;
    assert!(
        printed.contains("Accumulated forward statistics"),
        "{printed}"
    );
    // A failed script has exit code 1; forwarding that still runs at its end is stopped and
    // reported.
    fs::write(dir.path().join("bad"), "start\nnonsense\n").unwrap();
    let output = dir
        .run("forward --dev ring:0 --commands bad --idle yield")
        .expect(1);
    assert!(output.stdout.contains("Accumulated"), "{}", output.stdout);
    // Likewise for a file, a pipe, or one after the other.
    let args = "forward --dev ring:0 --interactive --idle yield --no-store";
    let piped = run_shell(&dir, args, "start\nnonsense\nstop\n").expect(1);
    assert!(piped.stdout.contains("no such command: nonsense"));
    run_shell(&dir, args, "start\nstop\n").expect(0);
    run_shell(&dir, &format!("{args} --commands script"), "strat\n").expect(1);
    // Commands of testpmd without a meaning here count as failed.
    run_shell(&dir, args, "vlan set strip on 0\n").expect(1);
}

/// Ctrl-C ends a script, wherever it comes from.
#[test]
fn a_signal_ends_a_script() {
    let dir = TestDir::new();
    let lines = "start tx_first 1\nsleep 600\nstop\nsleep 600\nhelp\nquit\n";
    fs::write(dir.path().join("script"), lines).unwrap();
    fs::write(dir.path().join("loads"), "load script\nquit\n").unwrap();
    let args = "forward --dev ring:0 --idle yield --no-store";
    for (more, piped) in [
        ("--commands script", None),
        ("--interactive", Some("script")),
        ("--interactive", Some("loads")),
    ] {
        let mut command = dir.linerate(&format!("{args} {more}"));
        if let Some(file) = piped {
            command.stdin(fs::File::open(dir.path().join(file)).unwrap());
        }
        let mut running = RunningCommand::start(&mut command);
        running.wait_line(|line| line.ends_with("> sleep 600"));
        running.interrupt();
        let printed = running.wait().expect(130).stdout;
        assert!(!printed.contains("help SECTION"), "{more}: {printed}");
        assert!(printed.contains("Accumulated"), "{more}: {printed}");
    }
}

/// Child process that is killed with its test.
struct KilledOnDrop(std::process::Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// On a terminal of its own: a prompt, completion, history, and an end by Ctrl-C that restores the
/// terminal.
#[test]
fn the_shell_on_a_terminal() {
    let dir = TestDir::new();
    let Ok(mut script) = dir
        .command(
            "script",
            [
                "-q",
                "-e",
                "-c",
                &format!(
                    "{} forward --dev ring:0 --idle yield",
                    dir.binary().display()
                ),
                "/dev/null",
            ],
        )
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
    else {
        skip!("script (util-linux) is not installed");
    };
    let keys = script.stdin.take().expect("piped");
    let mut shown = script.stdout.take().expect("piped");
    let out = Arc::new(Mutex::new(String::new()));
    let reader = std::thread::spawn({
        let out = Arc::clone(&out);
        move || {
            let mut buffer = [0; 4096];
            while let Ok(bytes @ 1..) = std::io::Read::read(&mut shown, &mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..bytes]);
                out.lock().expect("a reader").push_str(&text);
            }
        }
    });
    // The shell discards input that came before its prompt, so each line waits for the prompt after
    // the previous reply.
    let mut script = KilledOnDrop(script);
    let mut keys = Some(keys);
    let mut from = 0;
    for (typed, reply) in [
        ("", ""),
        ("start tx_first 1\r", "io packet forwarding"),
        // Completion makes it `show port stats all`.
        ("show port sta\t all\r", "NIC statistics for port 0"),
        ("stop\r", "Accumulated forward statistics"),
    ] {
        let keys = keys.as_mut().expect("until the end");
        keys.write_all(typed.as_bytes()).expect("it reads");
        keys.flush().expect("it reads");
        wait_until(&format!("a prompt after `{typed}`"), || {
            let shown = &out.lock().expect("a reader")[from..];
            let begin = shown.find(reply);
            let at = begin.and_then(|begin| Some(begin + shown[begin..].find("forward> ")?));
            from += at.map_or(0, |at| at + "forward> ".len());
            at.is_some()
        });
    }
    wait_until("its end", || {
        // After its end the pipe is closed.
        let keys = keys.as_mut().expect("until the end");
        let _ = keys.write_all(b"quit\r").and_then(|()| keys.flush());
        std::thread::sleep(Duration::from_millis(500));
        script.0.try_wait().expect("a child has a status").is_some()
    });
    drop(keys.take());
    let status = script.0.wait().expect("it ended");
    reader.join().expect("a reader");
    let out = out.lock().expect("a reader").clone();
    assert_eq!(status.code(), Some(0), "{out}");
    // Bracketed paste, which a signal could leave on: pasted text would then have marks around it.
    assert!(!out.contains("\u{1b}[?2004"), "{out:?}");
    let history = dir.path().join(".local/state/linerate/forward_history");
    let history = fs::read_to_string(history).expect("a history");
    assert!(history.contains("start tx_first 1"), "{history}");
}
