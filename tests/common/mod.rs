//! Helpers of the tests that run the real binary: clean environments, time limits, and servers that
//! end with their test.
#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "every test file is a program of its own and uses only some of this"
)]

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

mod lab;
pub use lab::TestLab;
pub(crate) use lab::lab;

/// Binary under test.
pub const LINERATE: &str = env!("CARGO_BIN_EXE_linerate");

/// Time limit of every wait: enough for a machine that is many times slower and busier than this.
pub const TIME_LIMIT: Duration = Duration::from_secs(300);

/// User without files or processes (`is_unprivileged`).
const UNPRIVILEGED_UID: u32 = 65534;

/// Returns whether ONLY=name,… selects a name by its beginning; an empty ONLY selects all.
pub fn is_selected(name: &str) -> bool {
    let only = std::env::var("ONLY").unwrap_or_default();
    let mut names = (only.split(',')).filter(|name| !name.is_empty()).peekable();
    names.peek().is_none() || names.any(|only| name.starts_with(only))
}

/// Prints why a test does not run here and returns from it. `tests/run` collects these lines.
macro_rules! skip {
    ($($why:tt)*) => {{
        println!("skipped: {}", format_args!($($why)*));
        return;
    }};
}
pub(crate) use skip;

/// Returns whether this process is root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Directory of a test: home, store and working directory of its commands.
pub struct TestDir {
    temp_dir: TempDir,
    is_unprivileged: bool,
}

impl TestDir {
    pub fn new() -> Self {
        Self {
            temp_dir: tempfile::tempdir().expect("a temporary folder"),
            is_unprivileged: false,
        }
    }

    /// Returns a directory for an unprivileged user. `None`: only root can change to another user.
    pub fn unprivileged() -> Option<Self> {
        let mut dir = Self::new();
        if !is_root() {
            return Some(dir);
        }
        let owner = (Some(UNPRIVILEGED_UID), Some(UNPRIVILEGED_UID));
        std::os::unix::fs::chown(dir.path(), owner.0, owner.1).ok()?;
        // The checkout may lie where other users cannot read.
        let copy = dir.path().join("linerate");
        // Copied by another process: a child that another thread forks now would inherit our
        // writable descriptor until its exec, and a file open for writing cannot be executed
        // (ETXTBSY).
        let copied = Command::new("cp").arg(LINERATE).arg(&copy).status();
        assert!(copied.expect("cp").success(), "space for the binary");
        dir.is_unprivileged = true;
        let runs = dir
            .command("true", [""; 0])
            .status()
            .is_ok_and(|status| status.success());
        runs.then_some(dir)
    }

    pub fn path(&self) -> &Path {
        self.temp_dir.path()
    }

    /// Path of the binary that this directory's commands start.
    pub fn binary(&self) -> PathBuf {
        if self.is_unprivileged {
            self.path().join("linerate")
        } else {
            LINERATE.into()
        }
    }

    /// Returns a command whose environment has nothing that could change its behaviour.
    pub fn command<A: AsRef<OsStr>>(
        &self,
        program: impl AsRef<OsStr>,
        args: impl IntoIterator<Item = A>,
    ) -> Command {
        let mut command = Command::new(program);
        command
            .args(args)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.path())
            .env("XDG_DATA_HOME", self.path().join("data"))
            .current_dir(self.path())
            .stdin(Stdio::null());
        if self.is_unprivileged {
            command.uid(UNPRIVILEGED_UID).gid(UNPRIVILEGED_UID);
        }
        command
    }

    /// Writes records of one plan to a directory, an hour apart; from the middle on the goodput is a
    /// fifth lower.
    pub fn write_series(&self, name: &str, count: u32) {
        let text = include_str!("../../crates/report/tests/fixtures/run-1.json");
        let mut record: Value = serde_json::from_str(text).expect("a record");
        let dir = self.path().join(name);
        fs::create_dir(&dir).expect("a directory");
        for number in 0..count {
            let rate = if number < count / 2 { 1e9 } else { 0.8e9 };
            record["summary"]["goodput_bps"] = (rate + f64::from(number % 3) * 1e6).into();
            record["id"] = format!("20261101T{number:06}Z-000000").into();
            let (day, hour) = (number / 24 + 1, number % 24);
            record["started"] = format!("2026-11-{day:02}T{hour:02}:00:00Z").into();
            fs::write(dir.join(format!("{number}.json")), record.to_string()).expect("a file");
        }
    }

    /// Returns `linerate` with these arguments.
    pub fn linerate(&self, args: &str) -> Command {
        self.command(self.binary(), args.split_whitespace())
    }

    /// Runs `linerate` with these arguments to its end.
    pub fn run(&self, args: &str) -> FinishedCommand {
        finish(&mut self.linerate(args))
    }

    /// Starts `linerate server` on a free port.
    pub fn server(&self, args: &str) -> LinerateServer {
        LinerateServer::start(&mut self.linerate(&format!("server -p 0 {args}")))
    }

    /// Returns the documents in the store.
    pub fn stored(&self) -> Vec<Value> {
        let runs_dir = self.path().join("data/linerate/runs");
        let mut files: Vec<_> = fs::read_dir(runs_dir)
            .into_iter()
            .flatten()
            .map(|entry| entry.expect("an entry").path())
            .collect();
        files.sort();
        files
            .iter()
            .map(|file| {
                let text = fs::read_to_string(file).expect("a stored document");
                serde_json::from_str(&text).unwrap_or_else(|error| panic!("{file:?}: {error}"))
            })
            .collect()
    }
}

/// Joins the wrapped lines of a text.
pub fn join_lines(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Command that has ended.
#[derive(Debug)]
pub struct FinishedCommand {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl FinishedCommand {
    pub fn exit_code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| panic!("{self:#?}"))
    }

    /// Panics with the full output unless the exit code is this one.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.status.code(), Some(code), "{self:#?}");
        self
    }

    /// Parses standard output as one JSON document.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("not one document ({error}): {self:#?}"))
    }

    /// Parses standard output as JSON documents, one a line.
    #[track_caller]
    pub fn json_lines(&self) -> Vec<Value> {
        self.stdout
            .lines()
            .map(|line| {
                serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
            })
            .collect()
    }
}

/// Running command; it is killed on drop, so also when its test fails.
pub struct RunningCommand {
    child: Child,
    stdout: Option<JoinHandle<String>>,
    stderr: Option<JoinHandle<String>>,
    /// Lines of standard output as they arrive.
    lines: Receiver<String>,
    /// Lines of standard error as they arrive.
    errors: Receiver<String>,
}

/// Returns the number at a JSON pointer of a document.
#[track_caller]
pub fn number_at(document: &Value, pointer: &str) -> f64 {
    let value = document.pointer(pointer).and_then(Value::as_f64);
    value.unwrap_or_else(|| panic!("no {pointer} in {document:#}"))
}

/// Reads a stream on a thread: returns all of it at the end, and each line as it arrives.
fn spawn_line_reader(from: impl Read + Send + 'static) -> (JoinHandle<String>, Receiver<String>) {
    let (sink, lines) = channel();
    let mut from = BufReader::new(from);
    let text_thread = std::thread::spawn(move || {
        let (mut all, mut line) = (String::new(), Vec::new());
        while from
            .read_until(b'\n', &mut line)
            .is_ok_and(|bytes| bytes > 0)
        {
            let text = String::from_utf8_lossy(&line);
            all.push_str(&text);
            let _ = sink.send(text.trim_end_matches('\n').to_owned());
            line.clear();
        }
        all
    });
    (text_thread, lines)
}

impl RunningCommand {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let (stdout, lines) = spawn_line_reader(child.stdout.take().expect("it is piped"));
        let (stderr, errors) = spawn_line_reader(child.stderr.take().expect("it is piped"));
        Self {
            child,
            stdout: Some(stdout),
            stderr: Some(stderr),
            lines,
            errors,
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn send_signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("it runs");
    }

    pub fn interrupt(&self) {
        self.send_signal(rustix::process::Signal::INT);
    }

    /// Waits for the next line on standard output that satisfies the condition.
    #[track_caller]
    pub fn wait_line(&mut self, condition: impl Fn(&str) -> bool) -> String {
        match next_line(&self.lines, condition) {
            Some(line) => line,
            None => self.fail(),
        }
    }

    /// Waits for the next line on standard error that satisfies the condition.
    #[track_caller]
    pub fn wait_error_line(&mut self, condition: impl Fn(&str) -> bool) -> String {
        match next_line(&self.errors, condition) {
            Some(line) => line,
            None => self.fail(),
        }
    }

    #[track_caller]
    fn fail(&mut self) -> ! {
        let _ = self.child.kill();
        let finished = self.collect();
        panic!("the line did not arrive: {finished:#?}");
    }

    /// Returns whether the command has ended.
    pub fn has_exited(&mut self) -> bool {
        let status = self.child.try_wait().expect("a child has a status");
        status.is_some()
    }

    /// Waits for the `started` event in the output of `--json-stream`.
    pub fn wait_started(&mut self) {
        self.wait_line(|line| line.contains(r#""event":"started""#));
    }

    /// Waits for the end of the command.
    #[track_caller]
    pub fn wait(mut self) -> FinishedCommand {
        let end = Instant::now() + TIME_LIMIT;
        while !self.has_exited() {
            if Instant::now() > end {
                let _ = self.child.kill();
                let finished = self.collect();
                panic!("still running after {TIME_LIMIT:?}: {finished:#?}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.collect()
    }

    fn collect(&mut self) -> FinishedCommand {
        let status = self.child.wait().expect("a child can be waited for");
        let text = |thread: &mut Option<JoinHandle<String>>| {
            let thread = thread.take().expect("collected once");
            thread.join().expect("a reader does not panic")
        };
        FinishedCommand {
            status,
            stdout: text(&mut self.stdout),
            stderr: text(&mut self.stderr),
        }
    }
}

/// Waits for the next line that satisfies the condition; `None` at the end of the stream or after
/// the time limit.
fn next_line(lines: &Receiver<String>, condition: impl Fn(&str) -> bool) -> Option<String> {
    let end = Instant::now() + TIME_LIMIT;
    loop {
        let remaining = end.saturating_duration_since(Instant::now());
        let line = lines.recv_timeout(remaining).ok()?;
        if condition(&line) {
            return Some(line);
        }
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command to its end.
#[track_caller]
pub fn finish(command: &mut Command) -> FinishedCommand {
    RunningCommand::start(command).wait()
}

/// Runs a command to find out whether it works here.
pub fn check_command(command: &mut Command) -> Result<(), String> {
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!(
            "{command:?}: {}{}",
            String::from_utf8_lossy(&output.stderr).trim(),
            match output.status.signal() {
                Some(signal) => format!("(signal {signal})"),
                None => String::new(),
            }
        )),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

/// Puts `unshare` with these flags in front of a command: directly as root, else in a user
/// namespace. `Err` has the reason when that is not possible.
pub fn unshare_command(
    dir: &TestDir,
    flags: &str,
    command_args: &[&str],
) -> Result<Command, String> {
    let mut args: Vec<&str> = flags.split_whitespace().collect();
    if !is_root() {
        args.extend(["--user", "--map-root-user"]);
    }
    args.push("--");
    check_command(&mut dir.command("unshare", args.iter().chain([&"true"])))?;
    args.extend(command_args);
    Ok(dir.command("unshare", args))
}

/// Returns `linerate` run without capabilities and without permission to make user namespaces.
pub fn without_user_namespaces(dir: &TestDir, args: &str) -> Result<Command, String> {
    // The limit belongs to the namespace in which it is written: the rest of the machine keeps its
    // own.
    let script = "echo 0 > /proc/sys/user/max_user_namespaces
        exec setpriv --bounding-set=-all --inh-caps=-all -- \"$@\"";
    let inside = ["--user", "--map-root-user", "sh", "-ec", script, "sh"];
    check_command(&mut dir.command("unshare", inside.iter().chain([&"true"])))?;
    let mut command = dir.command("unshare", inside);
    command.arg(dir.binary()).args(args.split_whitespace());
    Ok(command)
}

/// Running `linerate server`.
pub struct LinerateServer {
    pub running: RunningCommand,
    pub port: u16,
}

impl LinerateServer {
    /// Starts a server and waits until it accepts connections.
    #[track_caller]
    pub fn start(command: &mut Command) -> Self {
        let mut running = RunningCommand::start(command);
        let ready = running
            .wait_line(|line| line.contains("READY port=") || line.contains(r#""event":"ready""#));
        let digits = ready
            .split_once("port=")
            .or_else(|| ready.split_once(r#""port":"#))
            .expect("the ready line names the port")
            .1;
        let digits: String = digits.chars().take_while(char::is_ascii_digit).collect();
        Self {
            running,
            port: digits.parse().expect("a port"),
        }
    }

    /// Ends the server with SIGINT, as an operator does.
    #[track_caller]
    pub fn stop(self) -> FinishedCommand {
        self.running.interrupt();
        self.running.wait()
    }
}

/// Returns a port that is free over TCP and UDP and outside the kernel's ephemeral range, so it
/// stays free until the test binds it.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    /// Number of ports tried.
    const PORTS_TRIED: u16 = 8_000;
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let range = range.unwrap_or_default();
    let lowest = range
        .split_whitespace()
        .next()
        .and_then(|low| low.parse().ok());
    let begin = lowest
        .unwrap_or(32_768_u16)
        .saturating_sub(PORTS_TRIED)
        .max(10_000);
    // Other checkouts run the same tests: each process begins at another port.
    let process_offset =
        u16::try_from(std::process::id() % u32::from(PORTS_TRIED)).expect("less than the span");
    for _ in 0..PORTS_TRIED {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = begin + (process_offset.wrapping_mul(31).wrapping_add(step)) % PORTS_TRIED;
        let is_free = [true, false].into_iter().all(|v6| {
            let any = if v6 { "::" } else { "0.0.0.0" };
            // Without IPv6 the port is free there.
            let (tcp, udp) = (TcpListener::bind((any, port)), UdpSocket::bind((any, port)));
            let is_in_use = |error: &std::io::Error| error.kind() == std::io::ErrorKind::AddrInUse;
            !tcp.as_ref().is_err_and(is_in_use) && !udp.as_ref().is_err_and(is_in_use)
        });
        if is_free {
            return port;
        }
    }
    panic!("no port is free");
}

/// Returns whether a socket listens on a TCP port of this network namespace.
pub fn is_listening(port: u16) -> bool {
    let tables = ["tcp", "tcp6"].map(|file| fs::read_to_string(format!("/proc/net/{file}")));
    let tables = tables.into_iter().flatten().collect::<String>();
    let (port_field, state) = (format!(":{port:04X} "), " 0A ");
    (tables.lines()).any(|line| line.contains(&port_field) && line.contains(state))
}

/// Loopback port without a listener. A bound socket reserves it, so no other process gets it, also
/// not after it is released.
pub struct ClosedPort {
    _socket: socket2::Socket,
    pub port: u16,
}

impl ClosedPort {
    pub fn new() -> Self {
        loop {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)
                .expect("a socket");
            let port = free_port();
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            // Bound but not listening: connections are refused.
            if socket.bind(&address.into()).is_ok() {
                return Self {
                    port,
                    _socket: socket,
                };
            }
        }
    }
}

/// Checks the parts that every stored, printed or written record has.
#[track_caller]
pub fn assert_record(value: &Value) {
    assert_eq!(value["schema"], "linerate/run/1", "{value:#}");
    let record: linerate_record::record::Record =
        serde_json::from_value(value.clone()).expect("a record");
    let rewritten = serde_json::to_value(&record).expect("a record is JSON");
    assert_eq!(
        &rewritten, value,
        "a record survives reading and writing exactly"
    );
}

/// Waits until a condition holds.
#[track_caller]
pub fn wait_until(condition_name: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + TIME_LIMIT;
    while !holds() {
        assert!(
            Instant::now() < end,
            "{condition_name}: not within {TIME_LIMIT:?}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}
