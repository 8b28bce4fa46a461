//! Forwarders that connect over shared memory, or find no peer there.

use std::path::Path;

use rustix::process::Signal;

use super::*;

/// Returns the sockets in the directory where shared-memory peers connect.
fn meetings(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder.join("linerate")).into_iter().flatten();
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    names
        .map(|name| name.to_string_lossy().into_owned())
        .collect()
}

/// A missing peer is reported, before the run and after it.
#[test]
fn a_missing_peer_is_told() {
    let room = Room::new();
    let run = room.path().join("run");
    fs::create_dir(&run).unwrap();
    let words = "forward --dev shm:alone -t 0.3 --idle yield --no-store";
    let done = finish(room.linerate(words).env("XDG_RUNTIME_DIR", &run)).expect(0);
    assert!(done.stdout.contains("not connected yet"), "{}", done.stdout);
    assert!(done.stdout.contains("[no-peer]"), "{}", done.stdout);
}

/// A second client is rejected, without findings that only follow from that.
#[test]
fn a_second_client_is_refused_and_no_ring_is_blamed() {
    let room = Room::new();
    let run = room.path().join("run");
    fs::create_dir(&run).unwrap();
    let start = |words: &str| Running::start(room.linerate(words).env("XDG_RUNTIME_DIR", &run));
    let far = start("forward --dev shm:x,role=server --idle yield --stats-period 0.1");
    soon("the port waits", || !meetings(&run).is_empty());
    let mut near = start("forward --dev shm:x --tx-first 1 --idle yield --stats-period 0.1");
    // The first client gets the place: received packets show that it is connected.
    near.line(|line| {
        let count = line
            .split_once("RX-packets:")
            .map(|(_, count)| count.split_whitespace());
        let count = count.and_then(|mut words| words.next()?.parse().ok());
        count > Some(0_u64)
    });
    let words = "forward --dev shm:x --tx-first 40 -t 0.5 --idle yield --no-store";
    let mut told = None;
    soon("a refusal", || {
        let done = finish(room.linerate(words).env("XDG_RUNTIME_DIR", &run));
        let refused = done.stderr.contains("has a client already");
        told = refused.then_some(done);
        refused
    });
    let done = told.expect("it was refused").expect(1);
    for wrong in ["[no-peer]", "too-few-descriptors"] {
        assert!(!done.stdout.contains(wrong), "{}", done.stdout);
    }
    for held in [near, far] {
        held.interrupt();
        held.wait();
    }
}

/// Two hosts back to back; the second one sends the first packets.
#[test]
fn two_processes_pass_packets_round() {
    let room = Room::new();
    let run = room.path().join("run");
    fs::create_dir(&run).unwrap();
    let words = "forward --dev shm:x,role=server --dev shm:y,role=server --no-flush-rx --idle yield --stats-period 0.1";
    let far = Running::start(room.linerate(words).env("XDG_RUNTIME_DIR", &run));
    soon("both ports wait", || meetings(&run).len() >= 2);
    let mut near = room.linerate(
        "forward --dev shm:x --dev shm:y --tx-first 4 -t 4 --json --idle yield --no-store",
    );
    let found = finish(near.env("XDG_RUNTIME_DIR", &run)).expect(0).json();
    assert_eq!(number(&found, "/forward/primed"), 256.0);
    for port in 0..2 {
        let received = number(&found, &format!("/forward/ports/{port}/receive/packets"));
        assert!(received > 256.0, "packets went round: {received}");
    }
    far.interrupt();
    let out = far.wait().expect(0).stdout;
    assert!(out.contains("Forward statistics for port 1"), "{out}");
}

/// The first packets that a process receives are forwarded like all later ones.
#[test]
fn the_first_step_through_another_process_counts() {
    let room = Room::new();
    let run = room.path().join("run");
    fs::create_dir(&run).unwrap();
    let words =
        "forward --dev shm:x,role=server --dev shm:y,role=server --idle yield --stats-period 0.1";
    let far = Running::start(room.linerate(words).env("XDG_RUNTIME_DIR", &run));
    soon("both ports wait", || meetings(&run).len() >= 2);
    let mut near = room.linerate(
        "forward --dev shm:x --dev shm:y --saturate --trial 1 --json --idle yield --no-store",
    );
    let set = finish(near.env("XDG_RUNTIME_DIR", &run)).expect(0).json();
    let first = &set["result"]["saturation"][0]["points"][0];
    assert_eq!(number(first, "/in_flight"), 64.0);
    assert!(number(first, "/packets_per_second") > 0.0, "{set:#}");
    far.interrupt();
    far.wait();
}

/// A killed forwarder leaves nothing that blocks the next one.
#[test]
fn a_killed_process_leaves_no_memory() {
    let room = Room::new();
    let run = room.path().join("run");
    fs::create_dir(&run).unwrap();
    for _ in 0..2 {
        let words = "forward --dev shm:k,role=server --idle yield --stats-period 0.1";
        let held = Running::start(room.linerate(words).env("XDG_RUNTIME_DIR", &run));
        soon("the port waits", || !meetings(&run).is_empty());
        held.signal(Signal::KILL);
        held.wait();
        // The memory had no name: it went with the process. A socket file may stay, and is
        // replaced.
        let shared = fs::read_dir("/dev/shm").into_iter().flatten();
        let named = shared.filter(|entry| {
            let name = entry.as_ref().expect("an entry").file_name();
            name.to_string_lossy().contains("linerate")
        });
        assert_eq!(named.count(), 0);
    }
}
