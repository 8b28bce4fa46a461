//! Forwarders that connect over shared memory, or find no peer there.

use std::path::Path;

use rustix::process::Signal;

use super::*;

/// Returns the sockets in the directory where shared-memory peers connect.
fn peer_sockets(runtime_dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(runtime_dir.join("linerate"))
        .into_iter()
        .flatten();
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    names
        .map(|name| name.to_string_lossy().into_owned())
        .collect()
}

/// A missing peer is reported, before the run and after it.
#[test]
fn a_missing_peer_is_reported() {
    let dir = TestDir::new();
    let run = dir.path().join("run");
    fs::create_dir(&run).unwrap();
    let args = "forward --dev shm:alone -t 0.3 --idle yield --no-store";
    let done = finish(dir.linerate(args).env("XDG_RUNTIME_DIR", &run)).expect(0);
    assert!(done.stdout.contains("not connected yet"), "{}", done.stdout);
    assert!(done.stdout.contains("[no-peer]"), "{}", done.stdout);
}

/// A second client is rejected, without findings that only follow from that.
#[test]
fn a_second_client_is_rejected_and_no_ring_is_blamed() {
    let dir = TestDir::new();
    let run = dir.path().join("run");
    fs::create_dir(&run).unwrap();
    let start = |args: &str| RunningCommand::start(dir.linerate(args).env("XDG_RUNTIME_DIR", &run));
    let server = start("forward --dev shm:x,role=server --idle yield --stats-period 0.1");
    wait_until("the port waits", || !peer_sockets(&run).is_empty());
    let mut client = start("forward --dev shm:x --tx-first 1 --idle yield --stats-period 0.1");
    // The first client gets the place: received packets show that it is connected.
    client.wait_line(|line| {
        let count = line
            .split_once("RX-packets:")
            .map(|(_, count)| count.split_whitespace());
        let count = count.and_then(|mut args| args.next()?.parse().ok());
        count > Some(0_u64)
    });
    let args = "forward --dev shm:x --tx-first 40 -t 0.5 --idle yield --no-store";
    let mut finished = None;
    wait_until("a refusal", || {
        let done = finish(dir.linerate(args).env("XDG_RUNTIME_DIR", &run));
        let rejected = done.stderr.contains("has a client already");
        finished = rejected.then_some(done);
        rejected
    });
    let done = finished.expect("it was refused").expect(1);
    for wrong in ["[no-peer]", "too-few-descriptors"] {
        assert!(!done.stdout.contains(wrong), "{}", done.stdout);
    }
    for forwarder in [client, server] {
        forwarder.interrupt();
        forwarder.wait();
    }
}

/// Two hosts back to back; the second one sends the first packets.
#[test]
fn two_processes_pass_packets_round() {
    let dir = TestDir::new();
    let run = dir.path().join("run");
    fs::create_dir(&run).unwrap();
    let args = "forward --dev shm:x,role=server --dev shm:y,role=server --no-flush-rx --idle yield --stats-period 0.1";
    let server = RunningCommand::start(dir.linerate(args).env("XDG_RUNTIME_DIR", &run));
    wait_until("both ports wait", || peer_sockets(&run).len() >= 2);
    let mut client = dir.linerate(
        "forward --dev shm:x --dev shm:y --tx-first 4 -t 4 --json --idle yield --no-store",
    );
    let record = finish(client.env("XDG_RUNTIME_DIR", &run)).expect(0).json();
    assert_eq!(number_at(&record, "/forward/primed"), 256.0);
    for port in 0..2 {
        let received = number_at(&record, &format!("/forward/ports/{port}/receive/packets"));
        assert!(received > 256.0, "packets went round: {received}");
    }
    server.interrupt();
    let out = server.wait().expect(0).stdout;
    assert!(out.contains("Forward statistics for port 1"), "{out}");
}

/// The first packets that a process receives are forwarded like all later ones.
#[test]
fn the_first_step_through_another_process_counts() {
    let dir = TestDir::new();
    let run = dir.path().join("run");
    fs::create_dir(&run).unwrap();
    let args =
        "forward --dev shm:x,role=server --dev shm:y,role=server --idle yield --stats-period 0.1";
    let server = RunningCommand::start(dir.linerate(args).env("XDG_RUNTIME_DIR", &run));
    wait_until("both ports wait", || peer_sockets(&run).len() >= 2);
    let mut client = dir.linerate(
        "forward --dev shm:x --dev shm:y --saturate --trial 1 --json --idle yield --no-store",
    );
    let set = finish(client.env("XDG_RUNTIME_DIR", &run)).expect(0).json();
    let first = &set["result"]["saturation"][0]["points"][0];
    assert_eq!(number_at(first, "/in_flight"), 64.0);
    assert!(number_at(first, "/packets_per_second") > 0.0, "{set:#}");
    server.interrupt();
    server.wait();
}

/// A killed forwarder leaves nothing that blocks the next one.
#[test]
fn a_killed_process_leaves_no_memory() {
    let dir = TestDir::new();
    let run = dir.path().join("run");
    fs::create_dir(&run).unwrap();
    for _ in 0..2 {
        let args = "forward --dev shm:k,role=server --idle yield --stats-period 0.1";
        let running = RunningCommand::start(dir.linerate(args).env("XDG_RUNTIME_DIR", &run));
        wait_until("the port waits", || !peer_sockets(&run).is_empty());
        running.send_signal(Signal::KILL);
        running.wait();
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
