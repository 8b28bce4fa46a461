//! Failures of commands: exit code, and a text with the situation, the object and the next step;
//! the same as one JSON document under `--json`.

mod labs;
mod network;
mod peers;

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::process::Command;

use crate::common::{
    ClosedPort, LinerateServer, RunningCommand, TestDir, is_root, join_lines, skip,
};
use serde_json::Value;

/// Expected failure: exit code and a fragment of each part.
struct ExpectedError<'a> {
    code: i32,
    situation: &'a str,
    object: &'a str,
    next_step: &'a str,
}

fn expected_error<'a>(
    code: i32,
    situation: &'a str,
    object: &'a str,
    next_step: &'a str,
) -> ExpectedError<'a> {
    ExpectedError {
        code,
        situation,
        object,
        next_step,
    }
}

/// Runs a command as it is and with `--json`, both at once, and checks the errors.
#[track_caller]
fn check_error(mut plain: Command, mut json: Command, expected: &ExpectedError) {
    json.arg("--json");
    let (plain, json) = (
        RunningCommand::start(&mut plain),
        RunningCommand::start(&mut json),
    );
    let plain = plain.wait().expect(expected.code);
    let message = join_lines(&plain.stderr);
    for part in [expected.situation, expected.object, expected.next_step] {
        assert!(message.contains(part), "no `{part}` in {message}");
    }
    let json = json.wait().expect(expected.code);
    let document = json.json();
    assert_eq!(document["exit_code"], expected.code, "{document}");
    let part = |name: &str| {
        let text = document["error"][name].as_str();
        text.unwrap_or_else(|| panic!("no {name} in {document}"))
            .to_owned()
    };
    for (name, expected) in [
        ("situation", expected.situation),
        ("object", expected.object),
    ] {
        assert!(
            part(name).contains(expected),
            "no `{expected}` in {document}"
        );
    }
    // The text of a usage error is clap's, which ends with a step of its own.
    assert!(!part("next_step").is_empty(), "{document}");
    if expected.code != 2 {
        let step = part("next_step");
        assert!(step.contains(expected.next_step), "{document}");
    }
}

#[track_caller]
fn check_args(dir: &TestDir, args: &str, expected: &ExpectedError) {
    println!("{args}");
    check_error(dir.linerate(args), dir.linerate(args), expected);
}

/// Options and names of other tools: the error names the replacement.
#[test]
fn habits_of_other_tools() {
    let dir = TestDir::new();
    for (args, named, next_step) in [
        ("-c 127.0.0.1", "-c", "linerate throughput HOST"),
        ("throughput -c 127.0.0.1", "-c", "linerate throughput HOST"),
        ("-s", "-s", "linerate server"),
        ("throughput 127.0.0.1 -J", "-J", "--json"),
        ("throughput 127.0.0.1 -A 0,1", "-A", "--cpu CLIENT/SERVER"),
        ("throughput 127.0.0.1 -Z", "-Z", "--offload sendfile"),
        ("throughput 127.0.0.1 -V", "-V", "-v"),
        ("throughput 127.0.0.1 -d", "-d", "--bidir"),
        ("throughput 127.0.0.1 --logfile=x", "--logfile", "-o FILE"),
        ("latency 127.0.0.1 --mps 1000", "--mps", "--rate"),
        ("server -D", "-D", "linerate server"),
        (
            "server --get-server-output",
            "--get-server-output",
            "leave it out",
        ),
        (
            "ping-pong -i 127.0.0.1",
            "ping-pong",
            "linerate latency HOST -u",
        ),
    ] {
        let plain = dir.run(args).expect(2);
        let message = join_lines(&plain.stderr);
        assert!(
            message.contains(named) && message.contains(next_step),
            "{args}: {message}"
        );
        let error = &dir.run(&format!("{args} --json")).expect(2).json()["error"];
        assert_eq!(error["object"], named, "{args}");
        let next = error["next_step"].as_str().unwrap_or_default();
        assert!(next.contains(next_step), "{args}: {error}");
    }
}

/// A server load without a grant fails before the idle run.
#[test]
fn a_load_that_is_not_granted() {
    let (client_dir, server_dir) = (TestDir::new(), TestDir::new());
    let server = server_dir.server("-q");
    check_args(
        &client_dir,
        &format!("latency 127.0.0.1 -p {} --load cpu:1/1 -t 0.2", server.port),
        &expected_error(
            4,
            "the server permits no --load of clients",
            "--load",
            "server --grant load",
        ),
    );
    assert!(client_dir.stored().is_empty(), "nothing was measured");
    server.stop().expect(0);
}

/// Arguments without a valid meaning: rejected before any connection.
#[test]
fn nonsense_and_contradictions() {
    let dir = TestDir::new();
    // A refused connection would end with 5.
    let closed_port = ClosedPort::new();
    let mut wrong = Vec::new();
    // Arguments, and the token that the error must name.
    for (args, named) in [
        ("throughput H -R --bidir", "--bidir"),
        ("throughput H -t 1 -n 1M", "-t"),
        ("throughput H -n 1M -O 1", "-O"),
        ("throughput H -u -C reno", "-C"),
        ("throughput H -4 -6", "--ipv6"),
        ("throughput H -P 0", "-P 0"),
        ("throughput H --threads 0", "--threads 0"),
        ("throughput H -P 2 --threads 3", "--threads 3"),
        (
            "throughput H -P 4 --threads 4/2 --wait block",
            "--wait block",
        ),
        ("throughput H -P many", "many"),
        ("throughput H -l 0", "-l 0"),
        ("throughput H -u -l 70000", "70000"),
        ("throughput H -l 1G", "1073741824"),
        ("throughput H -l much", "much"),
        ("throughput H -t 0", "-t 0"),
        ("throughput H -t soon", "soon"),
        ("throughput H -t=-1", "-1"),
        ("throughput H -b fast", "fast"),
        ("throughput H -n 0", "-n 0"),
        ("throughput H -i 1ms", "-i"),
        ("throughput H -w 0", "-w"),
        ("throughput H -w 8G", "-w"),
        ("throughput H -p 0", "-p 0"),
        ("throughput H -p 70000", "70000"),
        ("throughput H --repeat 0", "--repeat 0"),
        ("throughput H --expect p99<100us", "p99"),
        ("throughput H --expect nonsense", "nonsense"),
        ("throughput H --expect speed>1G", "speed"),
        ("throughput H --expect goodput>much", "much"),
        ("throughput H --cpu first", "first"),
        ("throughput H --cpu 3-1", "3-1"),
        ("throughput H --wait nap", "nap"),
        ("throughput H --wait busy-poll:1s", "busy-poll:1s"),
        ("latency H --load cpu:0", "cpu:0"),
        (
            "latency H --sched fifo:1 --wait spin --rt-yield --outstanding 4",
            "--rt-yield",
        ),
        (
            "latency H --sched fifo:1 --wait spin --rt-yield --stages",
            "--rt-yield",
        ),
        ("latency H -u --peer echo --stages", "--stages with --peer"),
        ("latency H --peer echo --trace f", "--trace with --peer"),
        ("latency H -u --load udp -C reno", "-C"),
        ("latency H -u --load cpu:1 -C reno", "-C"),
        ("throughput H --wait io-uring --offload trunc", "io-uring"),
        ("throughput H -u --wait block/io-uring --batch", "io-uring"),
        (
            "throughput H -u --wait io-uring -b 1M --pacing txtime",
            "io-uring",
        ),
        ("throughput H --batch", "--batch"),
        ("throughput H -u --batch=0", "--batch 0"),
        ("throughput H -u --batch=9999", "9999"),
        ("throughput H -u --batch=8 -b 1M", "-b"),
        ("throughput H -u --batch=8 --offload gso", "--offload"),
        ("throughput H --offload gso", "-u"),
        ("throughput H -u --offload trunc", "-u"),
        (
            "throughput H --dev tap:t0 --ip 10.0.0.2/24 --set threads.driver.cpus=1",
            "threads.driver.cpus=1",
        ),
        (
            "stack --dev tap:t0 --ip 10.0.0.2/24 --serve discard --stamp-payload 16",
            "--stamp-payload 16",
        ),
        ("stack --dev tap:t0 --ip 127.0.0.1/8", "127.0.0.1/8"),
        ("throughput H --offload sendfile,splice", "--offload"),
        ("throughput H --offload none,trunc", "--offload"),
        ("throughput H --verify --offload zerocopy", "--verify"),
        ("throughput H --source-port 0", "--source-port"),
        ("throughput H --source-port 65535 -P 2", "--source-port"),
        ("throughput H --color pink", "pink"),
        ("throughput H --frobnicate", "--frobnicate"),
        ("throughput H again", "again"),
        ("throughput", "<HOST>"),
        ("latency H -n 0", "-n 0"),
        ("latency H -n some", "some"),
        ("latency H -n 5 -t 1", "-t"),
        ("latency H -R", "-R"),
        ("latency H --timeout 0", "--timeout"),
        ("latency H --expect goodput>1G", "goodput"),
        ("server -4 -6", "--ipv6"),
        ("server -B not-an-address", "not-an-address"),
        ("server --time 3", "--time"),
        ("demo -t 0.01", "-t"),
        ("demo --expect goodput>1G", "--expect"),
        ("frobnicate", "frobnicate"),
        ("lab up", "<FILE|--hops"),
        ("lab up some-file.toml --hops 1", "--hops"),
        ("lab up no-such-file.toml", "no-such-file.toml"),
        ("lab up --hops many", "many"),
    ] {
        let args = args.replace(" H", &format!(" 127.0.0.1 -p {}", closed_port.port));
        // A port given twice would be the error instead of the intended one.
        let args = match args.matches(" -p ").count() {
            2 => args.replace(&format!(" -p {}", closed_port.port), ""),
            _ => args,
        };
        let plain = dir.run(&args);
        let json = dir.run(&format!("{args} --json"));
        let mut check = |holds: bool, complaint: &str| {
            if !holds {
                wrong.push(format!("`{args}` {complaint}: {plain:?} {json:?}"));
            }
        };
        check(plain.status.code() == Some(2), "does not end with 2");
        check(
            json.status.code() == Some(2),
            "does not end with 2 under --json",
        );
        let message = join_lines(&plain.stderr);
        check(message.contains(named), "does not name what is wrong");
        check(message.contains("help"), "shows no next step");
        check(plain.stdout.is_empty(), "prints to standard output");
        let error = match serde_json::from_str::<Value>(&json.stdout) {
            Ok(document) => document["error"].clone(),
            Err(_) => Value::Null,
        };
        for part in ["situation", "object", "next_step"] {
            let text = error[part].as_str();
            check(text.is_some_and(|text| !text.is_empty()), part);
        }
        let message = format!("{} {}", error["situation"], error["object"]);
        check(
            message.contains(named),
            "does not name what is wrong in JSON",
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn congestion_controls() {
    let dir = TestDir::new();
    let server = dir.server("-q");
    let args = format!("throughput 127.0.0.1 -p {} -C no-such", server.port);
    let expected = expected_error(
        4,
        "no such congestion control",
        "-C no-such",
        "modprobe tcp_no-such",
    );
    check_args(&dir, &args, &expected);

    let list = |name: &str| -> Vec<String> {
        let text =
            std::fs::read_to_string(format!("/proc/sys/net/ipv4/tcp_{name}_congestion_control"));
        let text = text.unwrap_or_default();
        text.split_whitespace().map(str::to_owned).collect()
    };
    let allowed = list("allowed");
    let Some(forbidden) = list("available")
        .into_iter()
        .find(|name| !allowed.contains(name))
    else {
        skip!("every congestion control that the kernel has is allowed to all users");
    };
    let Some(dir) = TestDir::unprivileged() else {
        skip!("cannot become an unprivileged user here");
    };
    let args = format!("throughput 127.0.0.1 -p {} -C {forbidden}", server.port);
    check_args(
        &dir,
        &args,
        &expected_error(4, "not allowed", &forbidden, "tcp_allowed"),
    );
}

/// The grants of a server decide, also for a server of root.
#[test]
fn reserved_socket_options_need_a_grant() {
    if !is_root() {
        skip!("an unprivileged user's server has nothing to grant");
    }
    let dir = TestDir::new();
    let args = |server: &LinerateServer| {
        let port = server.port;
        format!("throughput 127.0.0.1 -p {port} -t 0.2 --socket-priority 7")
    };
    let granting = dir.server("-q --grant socket");
    assert_eq!(dir.run(&args(&granting)).exit_code(), 0);
    // The privilege that another grant keeps does not replace the grant.
    for grants in ["", "--grant buffers", "--grant tune"] {
        let server = dir.server(&format!("-q {grants}"));
        check_args(
            &dir,
            &args(&server),
            &expected_error(4, "rejects", "--socket-priority 7", "--grant socket"),
        );
    }
}

#[test]
fn processors() {
    let dir = TestDir::new();
    let server = dir.server("-q");
    for (cpus, situation) in [
        ("8000", "this machine has no CPU 8000"),
        ("8000/0", "this machine has no CPU 8000"),
        (
            "0/8000",
            "the remote end reports: the server's machine has no CPU 8000",
        ),
    ] {
        let args = format!("throughput 127.0.0.1 -p {} --cpu {cpus}", server.port);
        let option = format!("--cpu {cpus}");
        check_args(
            &dir,
            &args,
            &expected_error(4, situation, &option, "choose among"),
        );
    }
}

#[test]
fn busy_polling_may_be_the_superusers() {
    let Some(dir) = TestDir::unprivileged() else {
        skip!("cannot become an unprivileged user here");
    };
    let server = crate::common::LinerateServer::start(&mut dir.linerate("server -p 0 -q"));
    let args = |port| format!("throughput 127.0.0.1 -p {port} --wait busy-poll");
    let tried = dir.run(&format!("{} -t 0.1 -q", args(server.port)));
    if tried.status.success() {
        // On loopback there is nothing to poll, and a note reports it.
        assert!(tried.stdout.contains("nothing-to-poll"), "{tried:?}");
        skip!("this kernel lets all users busy-poll");
    }
    let expected = expected_error(
        4,
        "Operation not permitted",
        "busy-poll",
        "net.core.busy_read",
    );
    check_args(&dir, &args(server.port), &expected);
}

/// Files that cannot be written.
#[test]
fn files() {
    let dir = TestDir::new();
    let server = dir.server("-q");
    let args = format!(
        "latency 127.0.0.1 -p {} -n 10 -o no-such-folder/x.json",
        server.port
    );
    check_args(
        &dir,
        &args,
        &expected_error(
            1,
            "cannot be written",
            "no-such-folder/x.json",
            "create no-such-folder",
        ),
    );
    // Before anything is measured.
    std::fs::create_dir(dir.path().join("folder")).expect("a folder");
    check_args(
        &dir,
        "demo -o folder",
        &expected_error(1, "is a directory", "folder", "name a file"),
    );
    check_args(
        &dir,
        "demo --dir /proc/no-such",
        &expected_error(1, "directory", "/proc/no-such", "--dir"),
    );
}
