//! Payload goes through libc's symbols at both ends, so that a preloaded stack is measured.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{LinerateServer, TestDir, check_command, finish, skip};

/// Compiles the library that counts calls, or another one; `Err` has the reason of a failure.
fn compile_library(dir: &TestDir, name: &str) -> Result<PathBuf, String> {
    let source_dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/preload/");
    let source = format!("{source_dir}{name}.c");
    let library = dir.path().join(format!("{name}.so"));
    check_command(
        Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(&library)
            .arg(source)
            .arg("-ldl"),
    )?;
    Ok(library)
}

/// Returns the numbers of send and receive calls of one end.
fn read_counts(file: &Path) -> (u64, u64) {
    let text = fs::read_to_string(file).expect("the library has written its counts");
    let (sends, receives) = text.trim().split_once(' ').expect("two counts");
    (
        sends.parse().expect("a count"),
        receives.parse().expect("a count"),
    )
}

#[test]
fn payload_goes_through_the_symbols_of_libc() {
    const ROUND_TRIPS: u64 = 1000;
    const CALLS: u64 = 40;
    let dir = TestDir::new();
    let library = match compile_library(&dir, "count") {
        Ok(library) => library,
        Err(reason) => skip!("no C compiler: {reason}"),
    };
    let preloaded = |args: &str, counts: &Path| {
        let mut command = dir.linerate(args);
        command.env("LD_PRELOAD", &library).env("COUNTS", counts);
        command
    };
    for (args, at_least) in [
        (format!("latency -n {ROUND_TRIPS}"), ROUND_TRIPS),
        (format!("latency -u -n {ROUND_TRIPS}"), ROUND_TRIPS),
        (format!("latency -n {ROUND_TRIPS} --wait spin"), ROUND_TRIPS),
        (format!("throughput -l 64K -n {}K", 64 * CALLS), CALLS),
        (format!("throughput -R -l 64K -n {}K", 64 * CALLS), CALLS),
    ] {
        println!("{args}");
        let (client, remote) = (dir.path().join("near"), dir.path().join("far"));
        let server = LinerateServer::start(&mut preloaded("server -1 -p 0 -q", &remote));
        let args = format!("{args} 127.0.0.1 -p {} -q", server.port);
        finish(&mut preloaded(&args, &client)).expect(0);
        server.running.wait().expect(0);
        let (client, remote) = (read_counts(&client), read_counts(&remote));
        if args.starts_with("latency") {
            for (end, (sends, receives)) in [("near", client), ("far", remote)] {
                assert!(sends >= at_least, "{args}: {end} sent {sends} times");
                assert!(
                    receives >= at_least,
                    "{args}: {end} received {receives} times"
                );
            }
        } else {
            let (source, sink) = if args.contains("-R") {
                (remote, client)
            } else {
                (client, remote)
            };
            assert!(source.0 >= at_least, "{args}: sent {} times", source.0);
            // One receive call may return the data of several sends.
            assert!(sink.1 > at_least / 16, "{args}: received {} times", sink.1);
        }
    }
}

/// With `-u` one call may send many datagrams, through other symbols.
#[test]
fn datagrams_too() {
    let dir = TestDir::new();
    let library = match compile_library(&dir, "count") {
        Ok(library) => library,
        Err(reason) => skip!("no C compiler: {reason}"),
    };
    let counted = dir.path().join("near");
    let server = dir.server("-q");
    let args = format!(
        "throughput -u -b 50M -l 1000 -t 0.3 127.0.0.1 -p {} --json",
        server.port
    );
    let mut command = dir.linerate(&args);
    command.env("LD_PRELOAD", &library).env("COUNTS", &counted);
    let record = finish(&mut command).expect(0).json();
    let sent = record["summary"]["bytes_sent"].as_u64().expect("a count");
    // No call carries more than one maximum IP packet.
    let (sends, _) = read_counts(&counted);
    assert!(sends >= sent / 65_536, "{sends} calls for {sent} B");
}

#[test]
fn forbidden_io_uring_is_rejected_before_any_traffic() {
    let dir = TestDir::new();
    let library = match compile_library(&dir, "no_uring") {
        Ok(library) => library,
        Err(reason) => skip!("no C compiler: {reason}"),
    };
    let forbidden = |args: &str| {
        let mut command = dir.linerate(args);
        command.env("LD_PRELOAD", &library);
        command
    };
    let server = LinerateServer::start(&mut forbidden("server -p 0 -q"));
    for (kind, local) in [("throughput", true), ("latency -u", false)] {
        let args = format!("{kind} 127.0.0.1 -p {} -t 0.2 -q", server.port);
        println!("{args}");
        // First at the remote end; then locally, before any connection.
        let remote = format!("{args} --wait block/io-uring");
        let rejected = finish(&mut dir.linerate(&remote)).expect(4);
        assert!(
            rejected.stderr.contains("remote end reports"),
            "{}",
            rejected.stderr
        );
        assert!(
            rejected.stderr.contains("io_uring_disabled"),
            "{}",
            rejected.stderr
        );
        if local {
            let local = format!("{args} --wait io-uring/block");
            let rejected = finish(&mut forbidden(&local)).expect(4);
            assert!(
                rejected.stderr.contains("io_uring_disabled"),
                "{}",
                rejected.stderr
            );
            assert!(
                !rejected.stderr.contains("remote end"),
                "{}",
                rejected.stderr
            );
        }
        finish(&mut dir.linerate(&args)).expect(0);
    }
}

/// A host without IPv6 serves and measures over IPv4, and its labs have no IPv6 addresses.
#[test]
fn a_host_without_ipv6_uses_ipv4() {
    let dir = TestDir::new();
    let library = match compile_library(&dir, "no_ipv6") {
        Ok(library) => library,
        Err(reason) => skip!("no C compiler: {reason}"),
    };
    let preloaded = |args: &str| {
        let mut command = dir.linerate(args);
        command.env("LD_PRELOAD", &library);
        command
    };
    let server = LinerateServer::start(&mut preloaded("server -p 0 -q --no-store"));
    for args in [
        "throughput",
        "latency -u",
        "throughput --peer iperf3",
        "ttcp -t",
    ] {
        for host in ["localhost", "127.0.0.1"] {
            let limit = if args.starts_with("ttcp") {
                "-n 64"
            } else {
                "-t 1"
            };
            let args = format!("{args} {host} -p {} {limit} -q --no-store", server.port);
            finish(&mut preloaded(&args)).expect(0);
        }
    }
    let refused = finish(&mut preloaded("server -6 -p 0 -q --no-store")).expect(1);
    assert!(refused.stderr.contains("Address family"), "{refused:?}");
    let name = format!("no-ipv6-{}", std::process::id());
    let up = finish(&mut preloaded(&format!(
        "lab up --hops 1 --name {name} --json"
    )));
    if up.exit_code() == 4 {
        skip!("no labs here: {}", up.stderr);
    }
    let lab = up.expect(0).stdout;
    finish(&mut preloaded(&format!("lab down {name}"))).expect(0);
    assert!(!lab.contains("fd77:"), "{lab}");
}
