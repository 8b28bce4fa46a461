//! Payload goes through libc's symbols at both ends, so that a preloaded stack is measured.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Room, Server, finish, skip, works};

/// Compiles the library that counts calls, or another one; `Err` has the reason of a failure.
fn library(room: &Room, name: &str) -> Result<PathBuf, String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/preload/");
    let source = format!("{folder}{name}.c");
    let library = room.path().join(format!("{name}.so"));
    works(
        Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(&library)
            .arg(source)
            .arg("-ldl"),
    )?;
    Ok(library)
}

/// Returns the numbers of send and receive calls of one end.
fn counts(file: &Path) -> (u64, u64) {
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
    let room = Room::new();
    let library = match library(&room, "count") {
        Ok(library) => library,
        Err(why) => skip!("no C compiler: {why}"),
    };
    let preloaded = |words: &str, counts: &Path| {
        let mut command = room.linerate(words);
        command.env("LD_PRELOAD", &library).env("COUNTS", counts);
        command
    };
    for (words, at_least) in [
        (format!("latency -n {ROUND_TRIPS}"), ROUND_TRIPS),
        (format!("latency -u -n {ROUND_TRIPS}"), ROUND_TRIPS),
        (format!("latency -n {ROUND_TRIPS} --wait spin"), ROUND_TRIPS),
        (format!("throughput -l 64K -n {}K", 64 * CALLS), CALLS),
        (format!("throughput -R -l 64K -n {}K", 64 * CALLS), CALLS),
    ] {
        println!("{words}");
        let (near, far) = (room.path().join("near"), room.path().join("far"));
        let server = Server::start(&mut preloaded("server -1 -p 0 -q", &far));
        let words = format!("{words} 127.0.0.1 -p {} -q", server.port);
        finish(&mut preloaded(&words, &near)).expect(0);
        server.running.wait().expect(0);
        let (near, far) = (counts(&near), counts(&far));
        if words.starts_with("latency") {
            for (end, (sends, receives)) in [("near", near), ("far", far)] {
                assert!(sends >= at_least, "{words}: {end} sent {sends} times");
                assert!(
                    receives >= at_least,
                    "{words}: {end} received {receives} times"
                );
            }
        } else {
            let (source, sink) = if words.contains("-R") {
                (far, near)
            } else {
                (near, far)
            };
            assert!(source.0 >= at_least, "{words}: sent {} times", source.0);
            // One receive call may return the data of several sends.
            assert!(sink.1 > at_least / 16, "{words}: received {} times", sink.1);
        }
    }
}

/// With `-u` one call may send many datagrams, through other symbols.
#[test]
fn datagrams_too() {
    let room = Room::new();
    let library = match library(&room, "count") {
        Ok(library) => library,
        Err(why) => skip!("no C compiler: {why}"),
    };
    let counted = room.path().join("near");
    let server = room.server("-q");
    let words = format!(
        "throughput -u -b 50M -l 1000 -t 0.3 127.0.0.1 -p {} --json",
        server.port
    );
    let mut command = room.linerate(&words);
    command.env("LD_PRELOAD", &library).env("COUNTS", &counted);
    let record = finish(&mut command).expect(0).json();
    let sent = record["summary"]["bytes_sent"].as_u64().expect("a count");
    // No call carries more than one maximum IP packet.
    let (sends, _) = counts(&counted);
    assert!(sends >= sent / 65_536, "{sends} calls for {sent} B");
}

#[test]
fn where_io_uring_is_forbidden_it_is_refused_before_any_traffic() {
    let room = Room::new();
    let library = match library(&room, "no_uring") {
        Ok(library) => library,
        Err(why) => skip!("no C compiler: {why}"),
    };
    let forbidden = |words: &str| {
        let mut command = room.linerate(words);
        command.env("LD_PRELOAD", &library);
        command
    };
    let server = Server::start(&mut forbidden("server -p 0 -q"));
    for (kind, near) in [("throughput", true), ("latency -u", false)] {
        let words = format!("{kind} 127.0.0.1 -p {} -t 0.2 -q", server.port);
        println!("{words}");
        // First at the remote end; then locally, before any connection.
        let far = format!("{words} --wait block/io-uring");
        let refused = finish(&mut room.linerate(&far)).expect(4);
        assert!(
            refused.stderr.contains("remote end reports"),
            "{}",
            refused.stderr
        );
        assert!(
            refused.stderr.contains("io_uring_disabled"),
            "{}",
            refused.stderr
        );
        if near {
            let near = format!("{words} --wait io-uring/block");
            let refused = finish(&mut forbidden(&near)).expect(4);
            assert!(
                refused.stderr.contains("io_uring_disabled"),
                "{}",
                refused.stderr
            );
            assert!(!refused.stderr.contains("remote end"), "{}", refused.stderr);
        }
        finish(&mut room.linerate(&words)).expect(0);
    }
}
