//! Labs held by a process of their own, driven from the command line.
//!
//! Every test runs inside a network namespace of its own: labs are found by the sockets of a
//! namespace, so tests see neither each other's labs nor the user's.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::{labctl, namespace_is_held, soon, with_privilege};
use linerate_lab::{Lab, LabInfo, Topology};

/// Environment to run `labctl` in, where no other labs are visible.
struct LabEnv {
    lab: Lab,
    program: PathBuf,
    uid: Option<u32>,
}

impl LabEnv {
    fn run(&self, arguments: &[&str]) -> Output {
        self.start(arguments).wait_with_output().unwrap()
    }

    fn start(&self, arguments: &[&str]) -> std::process::Child {
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(uid) = self.uid {
            command.uid(uid).gid(uid);
        }
        let inside = self.lab.host("client").unwrap();
        inside.run(|| command.spawn().unwrap()).unwrap()
    }

    fn up(&self, arguments: &[&str]) -> LabInfo {
        let output = self.run(&[&["up"], arguments].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn list(&self) -> Vec<LabInfo> {
        serde_json::from_slice(&self.run(&["list"]).stdout).unwrap()
    }

    fn exec(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output = self.run(&[&["exec"], arguments].concat());
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &stderr(&output);
        (output.status.code(), text.trim().to_owned())
    }
}

impl Drop for LabEnv {
    fn drop(&mut self) {
        // A failed test must not leave labs behind either.
        for lab in self.list() {
            self.run(&["down", &lab.name]);
        }
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn with_lab_env(name: &str, test: impl FnOnce(&LabEnv)) {
    with_privilege(name, || {
        let Some(program) = labctl() else { return };
        test(&LabEnv {
            lab: Lab::up(&Topology::hops(0)).unwrap(),
            program,
            uid: None,
        });
    });
}

fn process_is_running(pid: u32) -> bool {
    // An unreaped zombie does not count.
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").starts_with(" Z"))
}

#[test]
fn a_lab_is_started_listed_entered_and_ended() {
    with_lab_env("holder::a_lab_is_started_listed_entered_and_ended", |env| {
        assert!(env.list().is_empty());
        let lab = env.up(&["--hops", "1"]);
        assert_eq!(lab.name, "lab1");
        assert_eq!(lab.switches, ["s1"]);
        assert_eq!(env.list(), std::slice::from_ref(&lab));
        assert!(process_is_running(lab.holder_pid));

        // With one lab its name may be left out.
        let read_namespace = "readlink /proc/self/ns/net";
        let (code, client) = env.exec(&["client", "--", "sh", "-c", read_namespace]);
        assert_eq!(code, Some(0), "{client}");
        let (_, server) = env.exec(&["lab1/server", "sh", "-c", read_namespace]);
        assert_ne!(client, server);
        let (_, interfaces) = env.exec(&["client", "cat", "/proc/net/dev"]);
        assert!(interfaces.contains("eth0"), "{interfaces}");

        let output = env.run(&["down"]);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(env.list().is_empty());
        soon("the holder is gone", || !process_is_running(lab.holder_pid));
        soon("the host is gone", || !namespace_is_held(&client));
    });
}

#[test]
fn several_labs_need_names() {
    with_lab_env("holder::several_labs_need_names", |env| {
        for expected in ["lab1", "lab2"] {
            assert_eq!(env.up(&["--hops", "0"]).name, expected);
        }
        assert_eq!(env.up(&["--hops", "0", "--name", "mine"]).name, "mine");
        let in_use = stderr(&env.run(&["up", "--hops", "0", "--name", "mine"]));
        assert!(in_use.contains("`mine` is up already"), "{in_use}");
        let ambiguous = stderr(&env.run(&["exec", "client", "true"]));
        assert!(ambiguous.contains("lab1, lab2, mine"), "{ambiguous}");
        let unknown = stderr(&env.run(&["down", "other"]));
        assert!(unknown.contains("no lab `other`"), "{unknown}");
        let bad = stderr(&env.run(&["up", "--hops", "0", "--name", "a/b"]));
        assert!(bad.contains("cannot name a lab"), "{bad}");
        env.run(&["down", "lab1"]);
        // A free name is assigned again.
        assert_eq!(env.up(&["--hops", "0"]).name, "lab1");
        assert_eq!(env.list().len(), 3);
    });
}

#[test]
fn exit_codes_and_streams_pass_through() {
    with_lab_env("holder::exit_codes_and_streams_pass_through", |env| {
        env.up(&["--hops", "0"]);
        for (command, code, text) in [
            ("exit 7", 7, ""),
            ("echo out; echo err >&2", 0, "out\nerr"),
            ("kill -9 $$", 137, ""),
            ("kill -TERM $$", 143, ""),
        ] {
            let result = env.exec(&["client", "sh", "-c", command]);
            assert_eq!(result, (Some(code), text.to_owned()), "{command}");
        }
        let (code, text) = env.exec(&["client", "no-such-program"]);
        assert_eq!(code, Some(127));
        assert!(text.contains("`no-such-program` was not found"), "{text}");
        let (code, text) = env.exec(&["client", "/etc/passwd"]);
        assert_eq!(code, Some(126), "{text}");
        let (code, text) = env.exec(&["nobody", "true"]);
        assert_eq!(code, Some(1));
        assert!(text.contains("choose one of client, server"), "{text}");
    });
}

#[test]
fn switches_can_be_looked_at_and_shaped() {
    with_lab_env("holder::switches_can_be_looked_at_and_shaped", |env| {
        let lab = env.up(&["--hops", "2"]);
        assert_eq!(lab.switches.len(), 2);
        for switch in &lab.switches {
            let (code, text) = env.exec(&[switch, "ls", "/sys/class/net"]);
            assert_eq!(code, Some(0), "{text}");
            for port in ["port1", "port2", "port3", "port4"] {
                assert!(text.split_whitespace().any(|name| name == port), "{text}");
            }
            assert!(!text.contains("eth0"), "{text}");
        }
        let (code, text) = env.exec(&["nobody", "true"]);
        assert_eq!(code, Some(1));
        let names = format!("choose one of client, server, {}", lab.switches.join(", "));
        assert!(text.contains(&names), "{text}");
    });
}

#[test]
fn signals_are_passed_on() {
    with_lab_env("holder::signals_are_passed_on", |env| {
        env.up(&["--hops", "0"]);
        let script = "trap 'echo got; exit 3' TERM; echo ready; while :; do sleep 0.05; done";
        let mut child = env.start(&["exec", "client", "sh", "-c", script]);
        let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        std::io::BufRead::read_line(&mut output, &mut line).unwrap();
        assert_eq!(line, "ready\n");
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        line.clear();
        std::io::BufRead::read_line(&mut output, &mut line).unwrap();
        assert_eq!(line, "got\n");
        assert_eq!(child.wait().unwrap().code(), Some(3));
    });
}

#[test]
fn processes_inside_end_with_the_holder() {
    with_lab_env("holder::processes_inside_end_with_the_holder", |env| {
        let lab = env.up(&["--hops", "1"]);
        let (_, space) = env.exec(&["client", "readlink", "/proc/self/ns/net"]);
        // One in the foreground, and one that left its parent and session.
        let child = env.start(&[
            "exec",
            "client",
            "sh",
            "-c",
            "setsid sleep 1000 & sleep 1000",
        ]);
        let pid = child.id();
        std::thread::sleep(Duration::from_millis(300));
        let (_, inside) = env.exec(&["server", "sh", "-c", "cat /proc/[0-9]*/comm"]);
        assert!(inside.matches("sleep").count() >= 2, "{inside}");
        let holder = rustix::process::Pid::from_raw(lab.holder_pid as i32).unwrap();
        rustix::process::kill_process(holder, rustix::process::Signal::KILL).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(137), "{pid}");
        assert!(env.list().is_empty());
        soon("the namespace is gone", || !namespace_is_held(&space));
        let unknown = stderr(&env.run(&["exec", "client", "true"]));
        assert!(unknown.contains("no lab is up"), "{unknown}");
    });
}

#[test]
fn a_command_ends_with_its_parent() {
    with_lab_env("holder::a_command_ends_with_its_parent", |env| {
        env.up(&["--hops", "0"]);
        let mut child = env.start(&["exec", "client", "sleep", "1000"]);
        let sleeps = || env.exec(&["client", "sh", "-c", "cat /proc/[0-9]*/comm"]).1;
        soon("the command runs", || sleeps().contains("sleep"));
        child.kill().unwrap();
        child.wait().unwrap();
        soon("the command is gone", || !sleeps().contains("sleep"));
    });
}

#[test]
fn orphans_are_reaped() {
    with_lab_env("holder::orphans_are_reaped", |env| {
        env.up(&["--hops", "0"]);
        env.exec(&["client", "sh", "-c", "(sleep 0.1 &) ; (sleep 0.2 &) ; true"]);
        let states = || env.exec(&["client", "sh", "-c", "cat /proc/[0-9]*/stat"]).1;
        soon("no zombie is left", || {
            let states = states();
            !states.contains(" Z ") && !states.contains("(sleep)")
        });
    });
}

#[test]
fn a_lab_that_cannot_be_built_leaves_nothing() {
    with_lab_env("holder::a_lab_that_cannot_be_built_leaves_nothing", |env| {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("lab.toml");
        let text = "[hosts.a]\n[hosts.b]\n[[links]]\nbetween=['a','b']\n\
                    offloads={tso=true, tx-checksumming=false}\n";
        std::fs::write(&file, text).unwrap();
        let output = env.run(&["up", file.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1));
        let text = stderr(&output);
        assert!(text.contains("offload tso is off instead of on"), "{text}");
        assert!(env.list().is_empty());
    });
}

#[test]
fn up_returns_soon_and_keeps_no_stream_open() {
    with_lab_env("holder::up_returns_soon_and_keeps_no_stream_open", |env| {
        let start = Instant::now();
        // Reading to the end would wait for a holder that kept standard output open.
        env.up(&["--hops", "4"]);
        assert!(
            start.elapsed() < Duration::from_secs(8),
            "{:?}",
            start.elapsed()
        );
    });
}

#[test]
fn an_ordinary_user_has_labs_of_its_own() {
    let name = "holder::an_ordinary_user_has_labs_of_its_own";
    with_privilege(name, || {
        let Some(built) = labctl() else { return };
        if rustix::process::geteuid().as_raw() != 0 || !maps_users() {
            println!("skipped: needs root outside to become another user");
            return;
        }
        // The build directory may be closed to other users.
        let dir = tempfile::tempdir().unwrap();
        let open = |path: &Path| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        };
        open(dir.path());
        let program = dir.path().join("labctl");
        std::fs::copy(built, &program).unwrap();
        open(&program);
        let mut env = LabEnv {
            lab: Lab::up(&Topology::hops(0)).unwrap(),
            program,
            uid: Some(65_534),
        };
        let output = env.run(&["up", "--hops", "1"]);
        if output.status.code() == Some(4) {
            println!("skipped: {}", stderr(&output));
            return;
        }
        assert!(output.status.success(), "{}", stderr(&output));
        let lab: LabInfo = serde_json::from_slice(&output.stdout).unwrap();
        assert!(lab.rootless);
        assert_eq!(lab.uid, 65_534);
        let (code, text) = env.exec(&["client", "sh", "-c", "id -u; cat /proc/net/dev"]);
        assert_eq!(code, Some(0), "{text}");
        assert!(
            text.starts_with('0') && text.contains("eth0"),
            "root inside: {text}"
        );
        // Another user sees nothing of the lab; root sees and enters everything.
        env.uid = Some(65_533);
        assert!(env.list().is_empty());
        assert!(stderr(&env.run(&["exec", "lab1/client", "true"])).contains("no lab `lab1`"));
        env.uid = None;
        assert_eq!(env.list(), std::slice::from_ref(&lab));
        let (code, text) = env.exec(&["lab1/server", "sh", "-c", "id -u"]);
        assert_eq!((code, text.as_str()), (Some(0), "0"));
        env.uid = Some(65_534);
        env.run(&["down"]);
        assert!(env.list().is_empty());
        soon("the holder is gone", || !process_is_running(lab.holder_pid));
    });
}

/// Returns whether other users exist here; a user namespace may map only one.
fn maps_users() -> bool {
    std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| {
        map.split_ascii_whitespace()
            .nth(2)
            .is_some_and(|n| n.len() > 6)
    })
}
